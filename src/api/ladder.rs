//! How many messages sleep on which rung.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::Api;
use super::problem::Result;
use crate::inspect::ladder::{RungReport, rungs};

/// How long what was seen of the rungs is told again: the broker is asked a hundred questions for it.
const FRESH: Duration = Duration::from_secs(4);

/// The rungs as they were seen last, why the broker could not be asked, and when that was.
#[derive(Default)]
pub(super) struct Seen(Mutex<Option<(Vec<RungReport>, Option<String>, Instant)>>);

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
    let broker = &*api.connections().await?.broker;
    let mut seen = api.rungs.0.lock().await;
    if seen.as_ref().is_none_or(|(_, _, at)| at.elapsed() >= FRESH) {
        let (rungs, why) = rungs(&api.config(), broker).await;
        *seen = Some((rungs, why, Instant::now()));
    }
    let (rungs, broker_why) = seen.as_ref().map(|(rungs, why, _)| (rungs.clone(), why.clone())).unwrap_or_default();
    Ok(Json(Ladder { rungs, sleeping, broker_why }))
}
