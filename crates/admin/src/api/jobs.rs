//! One-off jobs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use roundelay_engine::publish::{Publication, PublicationError};
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::extract::{Body, duration};
use super::problem::{Problem, Result};
use super::wire::hex;
use crate::api::detail::{Detail, RequestKey};
use crate::api::state::Api;

/// A job that runs once.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The kind, which names the handler: a name under `[kinds]`.
    kind: String,
    /// The key of the entity.
    key: String,
    /// What the handler gets; any JSON.
    #[serde(default)]
    payload: Value,
    /// The job starts when this time has passed, such as `30m`; absent or null: at once.
    #[schema(example = "10m")]
    delay: Option<String>,
    /// The platform queue, in place of the kind's.
    queue: Option<String>,
    /// The owner of the job.
    owner: Option<String>,
}

/// A job that is safe: the broker has confirmed it, or the ledger keeps it.
#[derive(Serialize, ToSchema)]
pub struct JobPublished {
    /// The id of the job, the same on every attempt.
    id: String,
    /// The platform queue.
    queue: String,
    /// When the job is due; null: at once.
    due: Option<At>,
}

impl From<PublicationError> for Problem {
    fn from(error: PublicationError) -> Self {
        match error {
            PublicationError::Invalid(why) => Self::unprocessable(why),
            PublicationError::Ledger(error) => error.into(),
            other => Self::away_because(format!("failed to publish: {other}")),
        }
    }
}

/// Publishes a job, which runs once, outside any chain.
///
/// A request that is sent again with the same Idempotency-Key gives the job the same id. This is true also when the
/// answer to the first request was lost.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = JobRequest,
    responses((status = 201, description = "The job is safe", body = JobPublished)))]
pub async fn publish(
    State(api): State<Arc<Api>>,
    axum::Extension(key): axum::Extension<RequestKey>,
    Body(wanted): Body<JobRequest>,
) -> Result<(StatusCode, Detail, Json<JobPublished>)> {
    let JobRequest { kind, key: entity, payload, delay, queue, owner } = wanted;
    let delay = delay.as_deref().map(|delay| duration("delay", delay)).transpose()?;
    let config = api.config();
    let id = key.0.map_or_else(|| api.entropy().token(), |hash| hex(&hash[..8]));
    let job = Publication { kind, key: entity, payload, delay, queue, owner, id };
    // The job is checked before anything connects to the broker.
    let job = job.check(&config)?;
    let published = job.send(&config, api.connections().await?).await?;
    // The audit does not get the payload, which may be private.
    let told = json!({
        "kind": published.kind, "key": published.key, "id": published.id, "queue": published.queue,
        "owner": published.owner,
    });
    let answer = JobPublished {
        id: published.id,
        queue: published.queue,
        due: published.due.map(|due| At::of(due, &api.ledger().wall_clock())),
    };
    Ok((StatusCode::CREATED, Detail(told), Json(answer)))
}
