//! How many messages sleep where: on each rung, or on each queue.

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
use crate::inspect::delays::{Known, is_native};
use crate::inspect::ladder::{RungReport, SleepReport, rungs, sleepers};

/// How long an answer about the rungs is reused: each one asks the broker a hundred questions.
const FRESH: Duration = Duration::from_secs(4);

/// What was last read from the broker.
#[derive(Default)]
pub(super) struct Seen(Mutex<Option<Look>>);

struct Look {
    at: Instant,
    native: bool,
    rungs: Vec<RungReport>,
    queues: Vec<SleepReport>,
    /// Why the broker could not be asked.
    why: Option<String>,
}

impl Look {
    async fn at(api: &Api) -> Result<Self> {
        let (config, broker) = (api.config(), &*api.connections().await?.broker);
        let known = Known::by(api.ledger()).await?;
        let native = is_native(&config, known.found);
        let (rungs, queues, why) = match native {
            true => {
                let (queues, why) = sleepers(&config, broker).await;
                (Vec::new(), queues, why)
            }
            false => {
                let (rungs, why) = rungs(&config, &known.hot_rungs, broker).await;
                (rungs, Vec::new(), why)
            }
        };
        Ok(Self { at: Instant::now(), native, rungs, queues, why })
    }
}

/// Where messages sleep.
#[derive(Serialize, ToSchema)]
pub struct Ladder {
    /// Whether messages sleep on their own queues. Else they sleep on rungs.
    native: bool,
    /// The rungs, from the shortest delay; none if messages sleep on their own queues.
    rungs: Vec<RungReport>,
    /// The queues with the messages that sleep on them; none if messages sleep on rungs.
    queues: Vec<SleepReport>,
    /// How many chains sleep, as they were last counted.
    sleeping: i64,
    /// Why the broker could not be asked; null when it was.
    broker_why: Option<String>,
}

/// Tells how many messages sleep on each rung, or on each queue.
#[utoipa::path(get, path = "/ladder", tag = "queues", responses((status = 200, description = "Where messages sleep", body = Ladder)))]
pub async fn show(State(api): State<Arc<Api>>) -> Result<Json<Ladder>> {
    let facts = api.status_cache().facts();
    let census = facts.census.as_ref().map(|(census, _)| census);
    let sleeping = census.map_or(0, |census| census.queues.iter().map(|queue| queue.sleeping).sum());
    let mut seen = api.rungs.0.lock().await;
    let look = match seen.take() {
        Some(look) if look.at.elapsed() < FRESH => look,
        _ => Look::at(&api).await?,
    };
    let Look { native, rungs, queues, why, .. } = seen.insert(look);
    let (native, rungs, queues, broker_why) = (*native, rungs.clone(), queues.clone(), why.clone());
    Ok(Json(Ladder { native, rungs, queues, sleeping, broker_why }))
}
