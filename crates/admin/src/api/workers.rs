//! Workers: listed, drained and resumed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Body, NoBody, Path};
use super::problem::{Problem, Result};
use super::wire::{Receipt, receipt};
use crate::api::actor::Actor;
use crate::api::state::Api;
use crate::inspect::workers::{self, OpenRunReport, WorkerReport};
use crate::operate::worker;

/// All workers that have not ended.
#[derive(Serialize, ToSchema)]
pub struct Workers {
    /// When the workers were read from the ledger.
    now: At,
    workers: Vec<WorkerReport>,
}

/// Lists workers. The list includes those that have fallen silent within the last hour.
#[utoipa::path(get, path = "/workers", tag = "workers",
    responses((status = 200, description = "All workers", body = Workers)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Workers>> {
    let (now, wall_clock) = (api.ledger().now(), api.ledger().wall_clock());
    let workers = api.ledger().workers().await?;
    let workers = workers.into_iter().map(|worker| WorkerReport::new(worker, now, &wall_clock)).collect();
    Ok(Json(Workers { now: At::of(now, &wall_clock), workers }))
}

/// What a worker runs.
#[derive(Serialize, ToSchema)]
pub struct WorkerRuns {
    /// When the runs were read from the ledger.
    now: At,
    /// The runs that have started and not ended, the longest first; at most 20.
    runs: Vec<OpenRunReport>,
}

/// Lists what a worker runs: the 20 runs that have gone on for the longest time.
///
/// One-off jobs are listed if they report progress. In a fleet that starts thousands of runs a second, a run that began
/// within the last ten seconds may be missing.
#[utoipa::path(get, path = "/workers/{worker}/runs", tag = "workers",
    params(("worker" = String, Path, description = "The worker's name")),
    responses((status = 200, description = "What the worker runs", body = WorkerRuns),
              (status = 404, description = "There is no worker of this name", body = Problem,
               content_type = "application/problem+json")))]
pub async fn runs(State(api): State<Arc<Api>>, Path(worker): Path<String>) -> Result<Json<WorkerRuns>> {
    let ledger = api.ledger();
    let found = ledger.workers().await?.into_iter().find(|seen| seen.presence.worker == worker);
    let found = found.ok_or_else(|| Problem::not_found(format!("there is no worker {worker}")))?;
    let runs = workers::runs(found, ledger).await?;
    Ok(Json(WorkerRuns { now: At::of(ledger.now(), &ledger.wall_clock()), runs }))
}

/// Why a worker is drained.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrainRequest {
    /// The reason, shown to people who ask why the worker runs nothing.
    #[schema(example = "its machine gets a new kernel")]
    why: Option<String>,
}

/// Drains a worker: the worker takes no more jobs. What runs finishes; then the worker can be stopped without
/// interrupting anything.
#[utoipa::path(post, path = "/workers/{worker}/drain", tag = "workers", request_body = DrainRequest,
    params(("worker" = String, Path, description = "The worker's name")),
    responses((status = 200, description = "The worker drains", body = Receipt)))]
pub async fn drain(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(worker): Path<String>,
    Body(DrainRequest { why }): Body<DrainRequest>,
) -> Result<Json<Receipt>> {
    receipt(worker::drain(&api.operator(&actor), &worker, why.as_deref().unwrap_or_default()).await)
}

/// Lets a drained worker take jobs again.
#[utoipa::path(post, path = "/workers/{worker}/resume", tag = "workers",
    params(("worker" = String, Path, description = "The worker's name")),
    responses((status = 200, description = "The worker takes jobs again", body = Receipt)))]
pub async fn resume(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(worker): Path<String>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    receipt(worker::resume(&api.operator(&actor), &worker).await)
}
