//! The server: where the API answers, within the bounds of [`roundelay_net::listen`], with TLS or without.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use roundelay_config::ApiSettings;
use roundelay_engine::StartError;
use roundelay_model::scope::Scope;
use roundelay_net::listen::{Bounds, PATIENT, Served};
use roundelay_net::tls;
use roundelay_net::tls::TlsSettings;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::actor::Authenticator;
use super::auth::{self, Gate};
use super::endpoints::routes_and_rules;
use super::host_check;
use super::origin::Site;
use crate::api::state::Api;
use crate::inspect::status_cache::LOOK_EVERY;

/// The default address of `roundelay serve`.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 15_680);
/// How many connections may be open at the same time.
pub const MAX_CONNECTIONS: usize = 512;
/// How many connections one address may have open, unless all requests come from a proxy.
pub const MAX_CONNECTIONS_FROM_ADDRESS: usize = 64;
/// How long running requests may continue after the signal to stop.
const GRACE: Duration = Duration::from_secs(10);
/// How often old rows are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(600);
/// How many rows are deleted at a time: few enough that other statements do not wait long.
const FORGET_ROWS: u32 = 500;

/// An address that the process listens on, but does not answer yet.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    settings: ApiSettings,
    anonymous: Scope,
}

impl Listener {
    /// Listens on `address`. Port 0 is any free port.
    ///
    /// # Errors
    /// When the address is in use or not this machine's, when the certificate cannot be used, or when the settings
    /// would give every client access.
    pub async fn bind(settings: &ApiSettings, address: SocketAddr) -> Result<Self, StartError> {
        let refused = |key: &str, why: String| StartError::Setup(format!("api.{key}: {why}"));
        let anonymous = settings.anonymous_on(address).map_err(|why| refused("anonymous", why))?;
        settings.encrypted_on(address).map_err(|why| refused("listen", why))?;
        let tls = settings.tls.as_ref().map(acceptor).transpose().map_err(|why| refused("tls", why))?;
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = bound.await.map_err(|error: io::Error| {
            StartError::Setup(format!("cannot listen on {address} (api.listen, or --listen): {error}"))
        })?;
        Ok(Self { listener, address, tls, settings: settings.clone(), anonymous })
    }

    /// The address, with the real port where the configuration says port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses to start if no client could use the API: requests need a token and there is no valid one. On a loopback
    /// address this is only a warning.
    async fn check_tokens(&self, api: &Api) -> Result<(), StartError> {
        let now = api.ledger().now();
        if self.anonymous > Scope::None || api.ledger().tokens().await?.iter().any(|token| token.is_valid(now)) {
            return Ok(());
        }
        let what = format!(
            "the API on {} has nobody who may use it: create a token first, with \
             `roundelay token create NAME --scope admin`",
            self.address
        );
        if roundelay_config::is_loopback(self.address) {
            tracing::warn!("{what}");
            return Ok(());
        }
        Err(StartError::Setup(what))
    }
}

/// Refuses a certificate and a key that could not be used.
pub(crate) fn check_tls(settings: &TlsSettings) -> Result<(), String> {
    acceptor(settings).map(drop)
}

fn acceptor(settings: &TlsSettings) -> Result<TlsAcceptor, String> {
    let certificates = tls::certificates(&settings.certificate)?;
    let key = tls::key(&settings.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key));
    let mut config = config.map_err(|error| {
        let (certificate, key) = (settings.certificate.display(), settings.key.display());
        format!("{certificate} and {key} do not go together: {error}")
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The API and the dashboard, ready to answer.
pub struct Server {
    listener: Listener,
    api: Arc<Api>,
    router: Router,
    /// Tasks that continue when their client has left.
    tasks: TaskTracker,
}

impl Server {
    /// Prepares to answer on `listener`.
    ///
    /// # Errors
    /// When no client could use the API, or the ledger cannot be read.
    pub async fn new(listener: Listener, api: Arc<Api>) -> Result<Self, StartError> {
        listener.check_tokens(&api).await?;
        let tasks = TaskTracker::new();
        let settings = &listener.settings;
        let (routes, rules) = routes_and_rules();
        let gate = Gate {
            api: api.clone(),
            rules,
            site: Site {
                hosts: settings.hosts.clone(),
                address: listener.address.ip(),
                secure: settings.tls.is_some() || settings.behind_proxy,
                behind_proxy: settings.behind_proxy,
            },
            authenticator: Authenticator::new(listener.anonymous),
            patience: settings.patience * PATIENT,
            tasks: tasks.clone(),
        };
        let router = router(routes, gate);
        Ok(Self { listener, api, router, tasks })
    }

    /// Answers until `shutdown`, or until a task that must not end has ended. Then running requests finish, for at most
    /// `GRACE`.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { listener: Listener { listener, address, tls, settings, anonymous }, api, router, tasks } = self;
        let scheme = if tls.is_some() { "https" } else { "http" };
        tracing::info!(api = %format!("{scheme}://{address}"), %anonymous, "answering the API");
        // Streams end when the server stops.
        let stopping = api.stopping().clone();
        let forget = async {
            loop {
                forget(&api).await;
                sleep(FORGET_EVERY).await;
            }
        };
        let status_cache = api.clone();
        let mut status_cache =
            AbortOnDropHandle::new(tokio::spawn(async move { status_cache.keep_status_cache(LOOK_EVERY).await }));
        let per_address = if settings.behind_proxy { MAX_CONNECTIONS } else { MAX_CONNECTIONS_FROM_ADDRESS };
        let bounds = Bounds { connections: MAX_CONNECTIONS, per_address, patience: settings.patience };
        let served = Served { router, tls, bounds, stop: shutdown.clone() };
        let mut connections = JoinSet::new();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            never = served.accept(&listener, &mut connections) => never,
            never = forget => never,
            // The dashboard would show old data without a sign of it.
            ended = &mut status_cache => {
                tracing::error!(why = ?ended.err(), "what is shown is not kept up to date any more; the API ends");
            }
        }
        drop(listener);
        stopping.cancel();
        tasks.close();
        let ended = async {
            while connections.join_next().await.is_some() {}
            tasks.wait().await;
        };
        if timeout(GRACE, ended).await.is_err() {
            tracing::warn!("some who use the API were cut off");
        }
    }
}

/// The layers around a request: the door for every request, then the gate for an endpoint.
pub(super) fn router(routes: Router<Arc<Api>>, gate: Gate) -> Router {
    let (api, gate) = (gate.api.clone(), Arc::new(gate));
    routes
        .layer(from_fn_with_state(gate.clone(), auth::pass))
        .fallback(host_check::elsewhere)
        .layer(from_fn_with_state(gate, host_check::pass))
        .with_state(api)
}

/// Deletes old rows, a part at a time.
async fn forget(api: &Api) {
    loop {
        match api.ledger().forget_access(FORGET_ROWS).await {
            Ok(0) => return,
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => {
                tracing::debug!(%error, "what is too old of the API's could not be forgotten");
                return;
            }
        }
    }
}
