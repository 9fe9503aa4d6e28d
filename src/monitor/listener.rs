//! The answers over HTTP: `/metrics`, `/healthz`, `/readyz`; and `/progress/…`, where runs report.
//!
//! None of them waits for anything. There is no authentication: whoever reaches the port may read. To
//! report for a run, one must have been given its URL, which cannot be guessed.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;

use super::Watch;
use super::health::Report;
use crate::progress::{self, MAX_REPORT};
use crate::telemetry::text::CONTENT_TYPE;

/// An address that is listened on.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// Why an address cannot be listened on; phrased to follow "failed to start: ".
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (worker.listen, or --listen): {error}")]
pub struct BindError {
    address: SocketAddr,
    error: std::io::Error,
}

impl Listener {
    /// Takes `address`. Port 0 is any free port.
    ///
    /// # Errors
    /// When it is taken, or not this machine's.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bound.await.map_err(|error| BindError { address, error })
    }

    /// What others reach it by, unless it listens on all addresses of the machine: then nobody here knows.
    pub fn base(&self) -> Option<String> {
        (!self.address.ip().is_unspecified()).then(|| format!("http://{}", self.address))
    }

    pub(super) async fn serve(self, watch: Arc<Watch>) {
        tracing::info!(address = %self.address, "answering /metrics, /healthz and /readyz");
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(async |State(watch): State<Arc<Watch>>| answer(watch.live())))
            .route("/readyz", get(async |State(watch): State<Arc<Watch>>| answer(watch.ready())))
            .route("/progress/{token}", post(progress).layer(DefaultBodyLimit::max(16 * MAX_REPORT)))
            .with_state(watch);
        if let Err(error) = axum::serve(self.listener, router).await {
            tracing::error!(%error, address = %self.address, "nobody is answered any more");
        }
    }
}

async fn metrics(State(watch): State<Arc<Watch>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], watch.metrics()).into_response()
}

/// Takes what a run reports of itself.
async fn progress(State(watch): State<Arc<Watch>>, Path(token): Path<String>, body: Bytes) -> Response {
    let report = match progress::Report::read(&body) {
        Ok(report) => report,
        Err(why) => return (StatusCode::BAD_REQUEST, why + "\n").into_response(),
    };
    if watch.subject.desk.take_by_token(&token, report) {
        StatusCode::NO_CONTENT.into_response()
    } else {
        (StatusCode::NOT_FOUND, "this run has ended, or was never here\n").into_response()
    }
}

fn answer(report: Report) -> Response {
    let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report)).into_response()
}
