//! For which host a request is (pure).
//!
//! A page whose name is made to lead to this machine (DNS rebinding) sends that name as the host.

use std::net::IpAddr;

use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Uri};

/// A host as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// In small letters; an IPv6 address is in brackets.
    pub name: String,
    /// If it is named.
    pub port: Option<u16>,
}

impl Host {
    /// Reads a name with or without a port.
    pub fn read(text: &str) -> Option<Self> {
        let authority: Authority = text.parse().ok()?;
        // Neither a user, nor a port that is none.
        let port = text.strip_prefix(authority.host())?;
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            None => return None,
            Some(port) => Some(port.parse().ok()?),
        };
        Some(Self { name: authority.host().to_ascii_lowercase(), port })
    }

    /// The host that a request is for; nothing where it names none.
    ///
    /// # Errors
    /// Says why it cannot be told.
    pub fn of(uri: &Uri, headers: &HeaderMap) -> Result<Option<Self>, String> {
        let Some(named) = only(headers, &HOST)? else { return Ok(None) };
        let host = Self::read(named).ok_or("the header Host is not a host")?;
        // What stands in the request's first line would go before the header.
        if uri.authority().is_some_and(|authority| Self::read(authority.as_str()).as_ref() != Some(&host)) {
            return Err("the request line names another host than the header Host".into());
        }
        Ok(Some(host))
    }

    /// The address that it is, if it is none by name.
    pub fn ip(&self) -> Option<IpAddr> {
        ip(&self.name)
    }

    /// Whether it is a name of the machine for itself.
    pub fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.ip().is_some_and(|ip| ip.is_loopback())
    }
}

/// An address, in brackets or not.
pub fn ip(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    Some(bare.parse::<IpAddr>().ok()?.to_canonical())
}

/// The only value of a header; nothing where it is absent.
///
/// # Errors
/// When there are two, or it cannot be read.
pub fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => match value.to_str() {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(format!("the header {name} is not ASCII")),
        },
        _ => Err(format!("the header {name} is there more than once")),
    }
}
