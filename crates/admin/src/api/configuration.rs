//! The configuration, without its secrets.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_config::{HandlerSettings, Recurrence};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::state::Api;

/// The configuration in use.
#[derive(Serialize, ToSchema)]
pub struct Configuration {
    /// The configuration as it was read, without values that may be secret, and without comments.
    toml: String,
    kinds: Vec<KindRow>,
}

/// A kind.
#[derive(Serialize, ToSchema)]
pub struct KindRow {
    /// The name of the kind.
    kind: String,
    /// The platform queue of the kind, or the template for it.
    queue: Option<String>,
    /// The schedule of the kind, in words.
    schedule: Option<String>,
    /// What runs the kind's jobs: http, exec or rust.
    handler: &'static str,
    /// How long a run may take, in milliseconds.
    timeout_ms: u64,
}

/// Answers the configuration in use. Values that may be secret (URLs, headers, environments) are left out.
#[utoipa::path(get, path = "/configuration", tag = "overview",
    responses((status = 200, description = "The configuration", body = Configuration)))]
pub async fn show(State(api): State<Arc<Api>>) -> Json<Configuration> {
    let config = api.config();
    let kinds = config.kinds.iter().map(|(name, kind)| KindRow {
        kind: name.clone(),
        queue: kind.queue.clone(),
        schedule: kind.recurrence.as_ref().map(Recurrence::words),
        handler: match kind.handler {
            HandlerSettings::Http(_) => "http",
            HandlerSettings::Exec(_) => "exec",
            HandlerSettings::Rust => "rust",
        },
        timeout_ms: u64::try_from(kind.timeout.as_millis()).unwrap_or(u64::MAX),
    });
    Json(Configuration { toml: config.shown.clone(), kinds: kinds.collect() })
}
