//! Handles the jobs of a kind: the worker POSTs each of them here.
//!
//!     handler [PORT]                            (default: 8000, on 127.0.0.1)
//!
//!     cargo run --example handler
//!
//! Needs axum, parking_lot, serde_json and tokio. With WEBHOOK_SECRET, the `sign` of the kind, only calls with its
//! signature are answered; that needs standardwebhooks. docs/handlers.md describes the request and the answers.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

#[derive(Default)]
struct Handler {
    /// Every client that reaches this port could call; the signature proves that the worker did.
    webhook: Option<Webhook>,
    marks: Mutex<Marks>,
}

/// A job may run again: its worker may die after the work and before the record. Store this together with the effect,
/// in the same transaction; here it is lost with the process.
#[derive(Default)]
struct Marks {
    done: BTreeSet<String>,
    asked: BTreeSet<String>,
}

/// The result of the run: a status, and the outcome.
fn answer(job: &Value, marks: &Mutex<Marks>) -> Response {
    let (Some(id), Some(key)) = (job["id"].as_str(), job["key"].as_str()) else {
        return Json(json!({ "outcome": "fail", "reason": "this is no job" })).into_response();
    };
    let mut marks = marks.lock();
    if marks.done.contains(id) {
        return Json(json!({ "outcome": "done" })).into_response();
    }
    if !job["payload"]["name"].is_string() {
        // A retry would not help.
        return Json(json!({ "outcome": "fail", "reason": "the payload has no name" })).into_response();
    }
    // A payload with "busy" stands for an upstream that is busy at the first call.
    if job["payload"]["busy"] == true && marks.asked.insert(id.to_owned()) {
        // The job runs again after this time, with no attempt charged; other jobs of the same throttle wait, too.
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], "{}").into_response();
    }
    println!("synced {key} {id}");
    marks.done.insert(id.to_owned());
    Json(json!({ "outcome": "done" })).into_response()
}

async fn call(State(handler): State<Arc<Handler>>, headers: HeaderMap, body: Bytes) -> Response {
    // The signature comes before any reading. It must not be older than five minutes, so that a recorded call cannot be
    // replayed later.
    if let Some(webhook) = &handler.webhook
        && let Err(error) = webhook.verify(&body, &headers)
    {
        return (StatusCode::UNAUTHORIZED, Json(json!({ "error": error.to_string() }))).into_response();
    }
    match serde_json::from_slice(&body) {
        Ok(job) => answer(&job, &handler.marks),
        // The kind's `retry` says whether the job runs again.
        Err(error) => {
            let outcome = json!({ "outcome": "retry", "reason": error.to_string() });
            (StatusCode::INTERNAL_SERVER_ERROR, Json(outcome)).into_response()
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = std::env::args().nth(1).map_or(Ok(8000), |port| port.parse())?;
    let secret = std::env::var("WEBHOOK_SECRET").ok().filter(|secret| !secret.is_empty());
    let webhook = secret.map(|secret| Webhook::new(&secret)).transpose()?;
    let handler = Arc::new(Handler { webhook, ..Handler::default() });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, Router::new().fallback(call).with_state(handler)).await?)
}
