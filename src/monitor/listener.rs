//! The answers over HTTP: `/metrics`, `/healthz`, `/readyz`.
//!
//! None of them waits for anything. There is no authentication: whoever reaches the port may read.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use super::Watch;
use super::health::Report;
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

    pub(super) async fn serve(self, watch: Arc<Watch>) {
        tracing::info!(address = %self.address, "answering /metrics, /healthz and /readyz");
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(async |State(watch): State<Arc<Watch>>| answer(watch.live())))
            .route("/readyz", get(async |State(watch): State<Arc<Watch>>| answer(watch.ready())))
            .with_state(watch);
        if let Err(error) = axum::serve(self.listener, router).await {
            tracing::error!(%error, address = %self.address, "nobody is answered any more");
        }
    }
}

async fn metrics(State(watch): State<Arc<Watch>>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], watch.metrics()).into_response()
}

fn answer(report: Report) -> Response {
    let status = if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report)).into_response()
}
