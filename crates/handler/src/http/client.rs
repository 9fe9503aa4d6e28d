//! The clients that calls are made with, and the lookup of names, which refuses what they may not lead to.
//!
//! The address that was checked is the one that is connected to, since the code that connects gets only addresses that
//! have passed here. A connection that is kept is given to later calls by its name, without another look.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, redirect};
use roundelay_model::egress::{Reach, Refused};

use super::{HttpError, root};

/// How long it may take to connect to all addresses of a host, so that one that is silent leaves time for another.
const CONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// The clients that all handlers should share: those share connections that may lead to the same places, and no others.
pub struct Clients {
    resolver: Arc<dyn Resolve>,
    made: Mutex<BTreeMap<Reach, Client>>,
}

impl Default for Clients {
    /// Names are looked up as the system does it.
    fn default() -> Self {
        Self::new(Arc::new(System))
    }
}

impl Clients {
    /// Names are looked up by `resolver`.
    pub fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, made: Mutex::default() }
    }

    /// The client for calls that may lead to `reach`, as far as URLs have names: see [`Reach::check_address`].
    ///
    /// It follows no redirects (they would turn a POST into a GET), asks no system proxy and speaks TLS through ring.
    ///
    /// # Errors
    /// [`HttpError::Client`].
    pub fn get(&self, reach: &Reach) -> Result<Client, HttpError> {
        let mut made = self.made.lock();
        if let Some(client) = made.get(reach) {
            return Ok(client.clone());
        }
        let client = self.make(reach)?;
        made.insert(reach.clone(), client.clone());
        Ok(client)
    }

    fn make(&self, reach: &Reach) -> Result<Client, HttpError> {
        let guard = Arc::new(Guard { reach: reach.clone(), resolver: self.resolver.clone() });
        build(|| builder().dns_resolver(guard.clone()))
    }
}

/// A client like those, for whatever the configuration alone names: it may lead anywhere.
///
/// # Errors
/// [`HttpError::Client`].
pub fn anywhere() -> Result<Client, HttpError> {
    build(builder)
}

fn build(builder: impl Fn() -> ClientBuilder) -> Result<Client, HttpError> {
    // An error means that the program has installed a provider already, and that one serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    builder().build().or_else(|error| {
        // A small container has no certificates, and does not need them to call its neighbours.
        tracing::warn!(error = %root(&error), "no system certificates: calls to https URLs will fail");
        builder().tls_certs_only([]).build().map_err(HttpError::Client)
    })
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").finish_non_exhaustive()
    }
}

fn builder() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECTED_WITHIN)
        .user_agent(concat!("roundelay/", env!("CARGO_PKG_VERSION")))
}

/// That a call was not made because of where it would have led.
pub(super) fn refusal(error: &reqwest::Error) -> Option<&Refused> {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        cause = error.source();
    }
    None
}

/// Looks names up as the system does it.
struct System;

impl Resolve for System {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The port is the URL's.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(found.collect::<Vec<_>>().into_iter()) as Addrs)
        })
    }
}

/// Looks names up, and keeps the addresses that calls may lead to.
struct Guard {
    reach: Reach,
    resolver: Arc<dyn Resolve>,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let (host, reach) = (name.as_str().to_owned(), self.reach.clone());
        let resolving = self.resolver.resolve(name);
        Box::pin(async move {
            let (mut open, mut refused) = (Vec::<SocketAddr>::new(), None);
            for address in resolving.await? {
                match reach.check(&host, address.ip()) {
                    Ok(()) => open.push(address),
                    Err(why) => refused = Some(why),
                }
            }
            match refused {
                Some(refused) if open.is_empty() => Err(refused.into()),
                _ => Ok(Box::new(open.into_iter()) as Addrs),
            }
        })
    }
}
