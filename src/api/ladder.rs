//! How many messages sleep on which rung.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::problem::Result;
use crate::inspect::ladder::{RungReport, rungs};

/// The rungs of the ladder.
#[derive(Serialize, ToSchema)]
pub struct Ladder {
    /// From the shortest.
    rungs: Vec<RungReport>,
    /// Chains that sleep, as they were last counted.
    sleeping: i64,
    /// Why the broker cannot be asked.
    broker_why: Option<String>,
}

/// Tells how many messages sleep on which rung.
#[utoipa::path(get, path = "/ladder", tag = "queues", responses((status = 200, description = "All rungs", body = Ladder)))]
pub async fn show(State(api): State<Arc<Api>>) -> Result<Json<Ladder>> {
    let facts = api.board().facts();
    let census = facts.census.as_ref().map(|(census, _)| census);
    let sleeping = census.map_or(0, |census| census.queues.iter().map(|queue| queue.sleeping).sum());
    let (rungs, broker_why) = rungs(&api.config(), &*api.connections().await?.broker).await;
    Ok(Json(Ladder { rungs, sleeping, broker_why }))
}
