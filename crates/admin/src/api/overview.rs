//! How everything is, once or as it goes on.

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

/// From one event to the next.
const EVERY: Duration = Duration::from_secs(2);
/// Then it ends, and whoever goes on listening shows the token again, which may be worth nothing by then.
const LONGEST: Duration = Duration::from_secs(60);

/// Tells how everything is: chains in figures, starts over the last hour, and what is wrong, in words.
///
/// Figures of chains are of the time that `counted_at` says.
#[utoipa::path(get, path = "/overview", tag = "overview",
    responses((status = 200, description = "How everything is", body = Overview)))]
pub async fn show(State(api): State<Arc<Api>>) -> Result<Json<Overview>> {
    current(&api).map(Json)
}

fn current(api: &Api) -> Result<Overview> {
    let facts = api.board().facts();
    if let Some(why) = &facts.ledger_why {
        return Err(Problem::away("the ledger", why));
    }
    Ok(overview(&facts, &api.config()))
}

/// An event, as it is told.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what is written as text")]
pub struct Told {
    /// `overview` or `problem`.
    event: String,
    /// The overview or the problem, as JSON.
    data: String,
}

/// Tells the same every two seconds, as server-sent events of the name `overview`, for a minute; then ask again.
///
/// While the ledger does not answer, an event of the name `problem` comes in its place.
#[utoipa::path(get, path = "/events", tag = "overview",
    responses((status = 200, description = "Events", content_type = "text/event-stream", body = Told)))]
pub async fn events(State(api): State<Arc<Api>>) -> Sse<impl Stream<Item = std::result::Result<Event, Infallible>>> {
    let end = Instant::now() + LONGEST;
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
