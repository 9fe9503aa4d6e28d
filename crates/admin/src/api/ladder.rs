//! How many messages wait on each rung.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::problem::Result;
use crate::api::state::Api;
use crate::inspect::ladder::{RungReport, rungs};

/// How long an answer about the rungs is reused: each one asks the broker a hundred questions.
const FRESH: Duration = Duration::from_secs(4);

/// The rungs as they were last read from the broker.
#[derive(Default)]
pub(super) struct Seen(Mutex<Option<Look>>);

struct Look {
    at: Instant,
    rungs: Vec<RungReport>,
    /// Why the broker could not be asked.
    why: Option<String>,
}

/// The rungs of the ladder.
#[derive(Serialize, ToSchema)]
pub struct Ladder {
    /// The rungs, from the shortest delay.
    rungs: Vec<RungReport>,
    /// How many chains sleep, as they were last counted.
    sleeping: i64,
    /// Why the broker could not be asked; null when it was.
    broker_why: Option<String>,
}

/// Tells how many messages wait on each rung.
#[utoipa::path(get, path = "/ladder", tag = "queues", responses((status = 200, description = "All rungs", body = Ladder)))]
pub async fn show(State(api): State<Arc<Api>>) -> Result<Json<Ladder>> {
    let facts = api.status_cache().facts();
    let census = facts.census.as_ref().map(|(census, _)| census);
    let sleeping = census.map_or(0, |census| census.queues.iter().map(|queue| queue.sleeping).sum());
    let broker = &*api.connections().await?.broker;
    let mut seen = api.rungs.0.lock().await;
    let look = match seen.take() {
        Some(look) if look.at.elapsed() < FRESH => look,
        _ => {
            let (rungs, why) = rungs(&api.config(), broker).await;
            Look { at: Instant::now(), rungs, why }
        }
    };
    let Look { rungs, why, .. } = seen.insert(look);
    let (rungs, broker_why) = (rungs.clone(), why.clone());
    Ok(Json(Ladder { rungs, sleeping, broker_why }))
}
