//! The state of the whole system, once or as a stream.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use tokio::time::{Instant, sleep_until};
use utoipa::ToSchema;

use super::problem::{Problem, Result};
use crate::api::state::Api;
use crate::inspect::overview::{Overview, overview};

/// The time from one event to the next.
const EVERY: Duration = Duration::from_secs(2);
/// After this time the stream ends. The client must show its token again, which may have become invalid.
const MAX_STREAM: Duration = Duration::from_secs(60);

/// Answers the state of the whole system: chains in figures, starts over the last hour, and what is wrong, in words.
///
/// The figures of chains are of the time `counted_at`.
#[utoipa::path(get, path = "/overview", tag = "overview",
    responses((status = 200, description = "The state of the whole system", body = Overview)))]
pub async fn show(State(api): State<Arc<Api>>) -> Result<Json<Overview>> {
    current(&api).map(Json)
}

fn current(api: &Api) -> Result<Overview> {
    let facts = api.status_cache().facts();
    if let Some(why) = &facts.ledger_why {
        return Err(Problem::away("the ledger", why));
    }
    Ok(overview(&facts, &api.config()))
}

/// An event of the stream.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what is written as text")]
pub struct OverviewEvent {
    /// `overview` or `problem`.
    event: String,
    /// The overview or the problem, as JSON.
    data: String,
}

/// Answers the overview every two seconds for a minute, as server-sent events of the name `overview`; then the client
/// asks again.
///
/// While the ledger does not answer, an event of the name `problem` comes instead.
#[utoipa::path(get, path = "/events", tag = "overview",
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = OverviewEvent)))]
pub async fn events(State(api): State<Arc<Api>>) -> Sse<impl Stream<Item = std::result::Result<Event, Infallible>>> {
    let end = Instant::now() + MAX_STREAM;
    let events = stream::unfold((api, Instant::now(), end), async |(api, next, end)| {
        tokio::select! {
            biased;
            () = api.stopping().cancelled() => return None,
            () = sleep_until(end) => return None,
            () = sleep_until(next) => {}
        }
        let event = match current(&api) {
            Ok(overview) => Event::default().event("overview").json_data(overview),
            Err(problem) => Event::default().event("problem").json_data(problem),
        };
        Some((Ok(event.unwrap_or_default()), (api, Instant::now() + EVERY, end)))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
