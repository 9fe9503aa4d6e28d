//! Attempts over all chains.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::{EFFORT, RunFilter};
use roundelay_model::ids::Fence;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::Query;
use super::page;
use super::problem::Result;
use crate::api::state::Api;
use crate::inspect::chain::AttemptReport;

/// Which attempts, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// That ended so: done, retried, failed, snoozed, retired, fanned_out, dropped, skipped, cut, fenced or lost.
    verdict: Option<String>,
    /// Of chains of this kind.
    kind: Option<String>,
    /// So many, 50 when nothing is said, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Those that come after an earlier answer: its `after`.
    after: Option<String>,
}

/// Attempts, latest first.
#[derive(Serialize, ToSchema)]
pub struct Runs {
    runs: Vec<AttemptReport>,
    /// Where the next ones begin; null when there are none.
    after: Option<String>,
    /// Whether the page has all that it could have. Else the search has stopped for the work that it was: `after`
    /// goes on with it.
    complete: bool,
}

/// Lists attempts of chains' ticks, latest first, as far back as the history is kept.
#[utoipa::path(get, path = "/runs", tag = "chains", params(Wanted),
    responses((status = 200, description = "A page of attempts", body = Runs)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<Wanted>) -> Result<Json<Runs>> {
    let Wanted { verdict, kind, limit, after } = wanted;
    let (limit, before) = (page::size(limit)?, page::place::<Fence>(after.as_deref())?);
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let filter = RunFilter { verdict: said(verdict), kind: said(kind) };
    let found = api.ledger().runs(filter, before, limit, EFFORT).await?;
    let calendar = api.ledger().calendar();
    Ok(Json(Runs {
        runs: found.found.into_iter().map(|one| AttemptReport::named(one, &calendar)).collect(),
        after: found.after.as_ref().map(page::after),
        complete: found.complete,
    }))
}
