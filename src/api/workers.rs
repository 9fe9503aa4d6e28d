//! Workers: who they are, and that one of them takes nothing more.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Body, Nothing, Path};
use super::problem::{Problem, Result};
use super::words::Words;
use super::{Actor, Api};
use crate::calendar::At;
use crate::fleet::{FleetOrder, Subject};
use crate::inspect::workers::WorkerReport;

/// All workers that have not ended.
#[derive(Serialize, ToSchema)]
pub struct Workers {
    /// When they were looked at.
    now: At,
    workers: Vec<WorkerReport>,
}

/// Lists workers, those included that have fallen silent within the last hour.
#[utoipa::path(get, path = "/workers", tag = "workers",
    responses((status = 200, description = "All workers", body = Workers)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Workers>> {
    let (now, calendar) = (api.ledger().now(), api.ledger().calendar());
    let workers = api.ledger().workers().await?;
    let workers = workers.into_iter().map(|worker| WorkerReport::new(worker, now, &calendar)).collect();
    Ok(Json(Workers { now: At::of(now, &calendar), workers }))
}

async fn order(api: &Api, actor: &Actor, worker: &str, order: FleetOrder) -> Result<()> {
    let known = api.ledger().workers().await?.iter().any(|known| known.presence.worker == worker);
    if !known {
        return Err(Problem::not_found(format!("there is no worker {worker}; it may have ended")));
    }
    api.ledger().order_fleet(Subject::Worker(worker.into()), order, actor.label()).await?;
    Ok(())
}

/// Why a worker is drained.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// For those who wonder why it runs nothing.
    #[schema(example = "its machine gets a new kernel")]
    why: Option<String>,
}

/// Lets a worker take nothing more. What runs finishes; then it can be stopped without interrupting anything.
#[utoipa::path(post, path = "/workers/{worker}/drain", tag = "workers", request_body = Drain,
    params(("worker" = String, Path, description = "The worker's name")),
    responses((status = 200, description = "It drains", body = Words)))]
pub async fn drain(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(worker): Path<String>,
    Body(Drain { why }): Body<Drain>,
) -> Result<Json<Words>> {
    let why = why.filter(|why| !why.trim().is_empty()).unwrap_or_else(|| "it is to be drained".into());
    order(&api, &actor, &worker, FleetOrder::Close { why }).await?;
    Ok(Json(Words { words: format!("{worker} takes nothing more within two seconds, and what runs finishes") }))
}

/// Lets a worker take jobs again.
#[utoipa::path(post, path = "/workers/{worker}/resume", tag = "workers",
    params(("worker" = String, Path, description = "The worker's name")),
    responses((status = 200, description = "It takes jobs", body = Words)))]
pub async fn resume(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(worker): Path<String>,
    _: Nothing,
) -> Result<Json<Words>> {
    order(&api, &actor, &worker, FleetOrder::Open).await?;
    Ok(Json(Words { words: format!("{worker} takes jobs again within two seconds") }))
}
