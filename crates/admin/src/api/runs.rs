//! Attempts of all chains.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::{EFFORT, RunFilter};
use roundelay_model::ids::Fence;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Query, moment};
use super::page;
use super::problem::Result;
use crate::api::state::Api;
use crate::inspect::chain::AttemptReport;
use crate::inspect::chains::Own;

/// Which attempts, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Attempts with this verdict: done, retried, failed, snoozed, retired, fanned_out, dropped, skipped, cut, fenced
    /// or lost.
    verdict: Option<String>,
    /// Attempts of chains of this kind.
    kind: Option<String>,
    /// Attempts of chains with this key.
    key: Option<String>,
    /// Attempts of chains that belong to this owner.
    owner: Option<String>,
    /// Attempts of chains on this platform queue.
    queue: Option<String>,
    /// Attempts of the engine's own chains: `true` (the default) has them in the list, `false` leaves them out, and
    /// `only` has nothing else.
    own: Option<Own>,
    /// Attempts whose reason contains this text, in capital or small letters.
    text: Option<String>,
    /// Attempts that started at this time or later: a time in RFC 3339, milliseconds since 1970, or a duration, which
    /// is counted back from now.
    #[param(example = "2h")]
    since: Option<String>,
    /// Attempts that started before this time, written in the same way.
    #[param(example = "2027-01-01T03:00:00Z")]
    until: Option<String>,
    /// How many rows a page has; 50 by default, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The cursor: `after` of an earlier answer. The page begins after it.
    after: Option<String>,
}

/// Attempts, latest first.
#[derive(Serialize, ToSchema)]
pub struct Runs {
    runs: Vec<AttemptReport>,
    /// The cursor of the next page; null when there is none.
    after: Option<String>,
    /// Whether the page is full or the last one. If not, the search has stopped early because it had read too many
    /// rows: `after` continues it.
    complete: bool,
}

/// Lists attempts of chains' ticks, latest first, as far back as the history is kept.
#[utoipa::path(get, path = "/runs", tag = "chains", params(ListQuery),
    responses((status = 200, description = "A page of attempts", body = Runs)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<ListQuery>) -> Result<Json<Runs>> {
    let ListQuery { verdict, kind, key, owner, queue, own, text, since, until, limit, after } = wanted;
    let (limit, before) = (page::size(limit)?, page::decode_cursor::<Fence>(after.as_deref())?);
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (now, wall_clock) = (api.ledger().now(), api.ledger().wall_clock());
    let time = |field, text| said(text).map(|text| moment(field, &text, now, &wall_clock)).transpose();
    let (own, chores) = (own.unwrap_or_default(), api.config().topology().names.chores());
    let filter = RunFilter {
        verdict: said(verdict),
        kind: said(kind),
        key: said(key),
        owner: said(owner),
        queue: own.of(said(queue), &chores),
        except_queue: own.except(chores),
        text: said(text),
        since: time("since", since)?,
        until: time("until", until)?,
    };
    let found = api.ledger().runs(filter, before, limit, EFFORT).await?;
    Ok(Json(Runs {
        runs: found.found.into_iter().map(|one| AttemptReport::named(one, &wall_clock)).collect(),
        after: found.after.as_ref().map(page::encode_cursor),
        complete: found.complete,
    }))
}
