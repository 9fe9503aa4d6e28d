//! The outer layer of every request, for the API and for the dashboard: the request gets an id and must be for this
//! server, a panic ends only that request, and every answer has the headers that keep browsers from doing harm.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use roundelay_net::listen::Peer;
use tokio::time::Instant;
use tracing::Instrument;

use super::auth::{Client, Gate};
use super::problem::{Problem, Result};

/// The content security policy: nothing from other sites, nothing inline, no frames, no forms.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                          base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), microphone=(), \
         midi=(), payment=(), usb=()",
    ),
];

/// Lets a request pass, or refuses it, and adds the headers of the answer.
pub async fn pass(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = gate.api.entropy().token();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::info_span!("request", id, %method, path);
    let admitted = gate.admit(&mut request);
    let is_remote = admitted.as_ref().is_ok_and(|is_remote| *is_remote);
    let answered = async {
        let answered = match admitted {
            Ok(_) => AssertUnwindSafe(next.run(request)).catch_unwind().await,
            Err(problem) => Ok(problem.into_response()),
        };
        let response = answered.unwrap_or_else(|_| {
            tracing::error!("answering panicked; this is a fault of the server");
            Problem::broken().into_response()
        });
        tracing::debug!(status = response.status().as_u16(), took = ?begun.elapsed(), "answered");
        response
    };
    let mut response = answered.instrument(span).await;
    guard(response.headers_mut(), gate.site.secure && is_remote);
    if let Ok(id) = HeaderValue::try_from(id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

impl Gate {
    /// Checks that a request is for this server and came through no proxy that the configuration does not name; stores
    /// its host and its client in the request. Answers whether the host is no name or address of loopback.
    fn admit(&self, request: &mut Request) -> Result<bool> {
        let host = self.site.host(request.uri(), request.headers())?;
        self.site.direct(request.version(), request.headers())?;
        let Peer(peer) = *request.extensions().get().ok_or_else(Problem::broken)?;
        let client = Client(self.site.client(peer, request.headers()));
        let is_remote = !host.is_loopback();
        request.extensions_mut().insert(client);
        request.extensions_mut().insert(host);
        Ok(is_remote)
    }
}

/// Adds the headers of every answer.
fn guard(headers: &mut HeaderMap, secure: bool) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Not for loopback: a browser would then ask every server of this machine that is called `localhost` for TLS.
    if secure {
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Answers a path without an endpoint: a file of the dashboard, or 404.
pub async fn elsewhere(path: Option<MatchedPath>, request: Request) -> Response {
    debug_assert!(path.is_none());
    crate::web::answer(request.method(), request.uri().path(), request.headers())
        .unwrap_or_else(|| Problem::not_found("there is no such path").into_response())
}
