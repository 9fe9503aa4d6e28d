//! The answers over HTTP: `/metrics`, `/healthz`, `/readyz`; and `/progress/…`, where runs report.
//!
//! None of them waits for anything. There is no authentication: every program that reaches the port may read. To
//! report for a run, one must have been given its URL, which cannot be guessed.
//!
//! A page in a person's browser reaches it too, by a name that is made to lead here. So a request must be for a host
//! that no such name can be: [`Names`].

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use roundelay_config::WorkerSettings;
use roundelay_model::progress;
use roundelay_model::progress::MAX_REPORT;
use roundelay_net::listen::host::{Host, ip};
use roundelay_net::listen::{Bounds, PATIENT, Served};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Watch;
use super::health::Report;
use crate::error::StartError;
use crate::telemetry::text::CONTENT_TYPE;

/// Enough for Prometheus, probes and the handlers of a worker's runs, and few of the files that it may have open.
const BOUNDS: Bounds = Bounds { connections: 64, per_address: 32, patience: Duration::from_secs(5) };
/// A report's body may have this many bytes, so that one that is too large is told so.
const MAX_BODY: usize = 16 * MAX_REPORT;

/// An address that is listened on.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    names: Names,
}

/// For which hosts requests are answered: addresses, which no name of a page is; names without a dot, as those of
/// Compose's services and of this machine mostly are, which no site of the web has; and those that are configured.
#[derive(Clone, Debug)]
struct Names(BTreeSet<String>);

impl Names {
    fn of(settings: &WorkerSettings) -> Self {
        let mut names = settings.hosts.clone();
        let callback = settings.callback.as_deref().and_then(|url| url::Url::parse(url).ok());
        names.extend(callback.and_then(|url| Some(url.host_str()?.to_ascii_lowercase())));
        names.insert(roundelay_model::fleet::host().to_ascii_lowercase());
        Self(names)
    }

    fn has(&self, host: &Host) -> bool {
        ip(&host.name).is_some() || !host.name.contains('.') || self.0.contains(&host.name)
    }
}

impl Listener {
    /// Takes `address`. Port 0 is any free port.
    ///
    /// # Errors
    /// When it is taken, or not this machine's.
    pub async fn bind(address: SocketAddr, settings: &WorkerSettings) -> Result<Self, StartError> {
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address, names: Names::of(settings) })
        };
        bound.await.map_err(|error: std::io::Error| {
            StartError::Setup(format!("cannot listen on {address} (worker.listen, or --listen): {error}"))
        })
    }

    /// What others reach it by, unless it listens on all addresses of the machine: then the worker cannot know.
    pub fn base(&self) -> Option<String> {
        (!self.address.ip().is_unspecified()).then(|| format!("http://{}", self.address))
    }

    pub(super) async fn serve(self, watch: Arc<Watch>) {
        tracing::info!(address = %self.address, "answering /metrics, /healthz and /readyz");
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(async |State(watch): State<Arc<Watch>>| answer(watch.live())))
            .route("/readyz", get(async |State(watch): State<Arc<Watch>>| answer(watch.ready())))
            .route("/progress/{token}", post(progress))
            .layer(from_fn_with_state(Arc::new(self.names), named))
            .with_state(watch);
        // It ends with the worker, by being dropped.
        let served = Served { router, tls: None, bounds: BOUNDS, stop: CancellationToken::new() };
        served.accept(&self.listener, &mut JoinSet::new()).await
    }
}

/// Refuses what is for a host that is none of this worker's.
async fn named(State(names): State<Arc<Names>>, request: Request, next: Next) -> Response {
    match Host::of(request.uri(), request.headers()) {
        Err(why) => (StatusCode::BAD_REQUEST, why + "\n").into_response(),
        Ok(Some(host)) if !names.has(&host) => {
            let name = host.name.escape_default();
            let why = format!("this worker is not called `{name}`; if that is a name of it, add it to worker.hosts\n");
            (StatusCode::MISDIRECTED_REQUEST, why).into_response()
        }
        // Every browser names one.
        Ok(_) => next.run(request).await,
    }
}

async fn metrics(State(watch): State<Arc<Watch>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], watch.metrics()).into_response()
}

/// Takes what a run reports of itself.
async fn progress(State(watch): State<Arc<Watch>>, Path(token): Path<String>, body: Body) -> Response {
    let gone = || (StatusCode::NOT_FOUND, "this run has ended, or was never here\n").into_response();
    // A client without a run's URL is not listened to for long.
    if !watch.desk.knows(&token) {
        return gone();
    }
    let body = match timeout(BOUNDS.patience * PATIENT, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            return (StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n")).into_response();
        }
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the body was not there in time\n").into_response(),
    };
    let report = match progress::Report::read(&body) {
        Ok(report) => report,
        Err(why) => return (StatusCode::BAD_REQUEST, why + "\n").into_response(),
    };
    match watch.desk.take_by_token(&token, report) {
        true => StatusCode::NO_CONTENT.into_response(),
        false => gone(),
    }
}

fn answer(report: Report) -> Response {
    let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_s_name_is_none_of_the_worker_s() {
        let names = Names(["worker.example.org".to_owned()].into());
        let table = [
            ("localhost", true),
            ("LOCALHOST:9464", true),
            ("10.0.0.7:9464", true),
            ("[2001:db8::1]:9464", true),
            ("worker-ios", true),
            ("WORKER.example.org:1", true),
            ("evil.example", false),
            ("worker.example.org.", false),
            ("x.worker.example.org", false),
            ("localhost.", false),
            ("10.0.0.7.nip.io", false),
            ("0x7f.1", false),
        ];
        for (host, fine) in table {
            assert_eq!(names.has(&Host::read(host).unwrap()), fine, "{host}");
        }
    }
}
