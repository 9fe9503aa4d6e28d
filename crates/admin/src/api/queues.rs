//! Platform queues: their state, and orders for them while workers run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::Census;
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Body, NoBody, Path};
use super::problem::{Problem, Result};
use super::wire::{Receipt, receipt};
use crate::api::actor::Actor;
use crate::api::state::Api;
use crate::inspect::overview::queues;
use crate::inspect::queues::QueueReport;
use crate::operate::queue;

/// All platform queues.
#[derive(Serialize, ToSchema)]
pub struct Queues {
    /// When the queues were read.
    now: At,
    /// When the chains of each queue were counted.
    counted_at: Option<At>,
    /// Why the broker could not be asked; null when it was.
    broker_why: Option<String>,
    queues: Vec<QueueReport>,
}

/// Answers the state of the platform queues: in the ledger, on the broker, in the workers.
#[utoipa::path(get, path = "/queues", tag = "queues",
    responses((status = 200, description = "All queues", body = Queues)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Queues>> {
    let facts = api.status_cache().facts();
    if let Some(why) = &facts.ledger_why {
        return Err(Problem::away("the ledger", why));
    }
    let empty = Census::default();
    let (census, counted_at) = facts.census.as_ref().map_or((&empty, None), |(census, at)| (census, Some(*at)));
    Ok(Json(Queues {
        now: At::of(facts.now, &facts.wall_clock),
        counted_at: counted_at.map(|at| At::of(at, &facts.wall_clock)),
        broker_why: facts.asked.error().map(str::to_owned),
        queues: queues(&facts, census, &api.config()),
    }))
}

/// Why an operator stops something.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// The reason, shown to people who ask why nothing runs.
    #[schema(example = "their upstream is down")]
    why: String,
}

/// Pauses a queue: workers take no more jobs from it. What runs finishes; the rest waits on the broker.
#[utoipa::path(post, path = "/queues/{queue}/pause", tag = "queues", request_body = PauseRequest,
    params(("queue" = String, Path, description = "The platform queue")),
    responses((status = 200, description = "The queue is paused", body = Receipt)))]
pub async fn pause(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(queue): Path<String>,
    Body(PauseRequest { why }): Body<PauseRequest>,
) -> Result<Json<Receipt>> {
    receipt(queue::pause(&api.operator(&actor), &queue, &why).await)
}

/// Lets workers take jobs from a queue again.
#[utoipa::path(post, path = "/queues/{queue}/resume", tag = "queues",
    params(("queue" = String, Path, description = "The platform queue")),
    responses((status = 200, description = "The queue is resumed", body = Receipt)))]
pub async fn resume(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(queue): Path<String>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    receipt(queue::resume(&api.operator(&actor), &queue).await)
}

/// An order for all queues.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
pub enum QueuesRequest {
    /// Pauses all queues that are not paused.
    Pause {
        /// The reason, shown to people who ask why nothing runs.
        #[schema(example = "incident 7")]
        why: String,
    },
    /// Resumes the queues that are paused.
    Resume {
        /// Only those that were paused with this reason; without, all.
        #[serde(default)]
        why: Option<String>,
    },
}

/// Which queues an order was for.
#[derive(Serialize, ToSchema)]
pub struct QueuesReceipt {
    /// A sentence for people.
    words: String,
    /// Those that it has paused or resumed.
    queues: Vec<String>,
}

/// Pauses or resumes all queues. What runs finishes; the rest waits on the broker.
#[utoipa::path(post, path = "/queues/actions", tag = "queues", request_body = QueuesRequest,
    responses((status = 200, description = "The order is in force", body = QueuesReceipt)))]
pub async fn act(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Body(request): Body<QueuesRequest>,
) -> Result<Json<QueuesReceipt>> {
    let operator = api.operator(&actor);
    let ordered = match &request {
        QueuesRequest::Pause { why } => queue::pause_all(&operator, why).await?,
        QueuesRequest::Resume { why } => queue::resume_all(&operator, why.as_deref()).await?,
    };
    Ok(Json(QueuesReceipt { words: ordered.to_string(), queues: ordered.orders }))
}

/// How many jobs run at the same time.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConcurrencyRequest {
    /// How many jobs of the queue each worker runs at the same time; null: as configured.
    #[schema(minimum = 1, maximum = 65535)]
    concurrency: Option<usize>,
}

/// Sets how many jobs of a queue each worker runs at the same time, in place of the configured number.
#[utoipa::path(put, path = "/queues/{queue}/concurrency", tag = "queues", request_body = ConcurrencyRequest,
    params(("queue" = String, Path, description = "The platform queue")),
    responses((status = 200, description = "The order is in force", body = Receipt)))]
pub async fn concurrency(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(queue): Path<String>,
    Body(ConcurrencyRequest { concurrency }): Body<ConcurrencyRequest>,
) -> Result<Json<Receipt>> {
    receipt(queue::concurrency(&api.operator(&actor), &queue, concurrency).await)
}
