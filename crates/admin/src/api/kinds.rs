//! Kinds: what their runs came to over time.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::Census;
use roundelay_model::kind_stats::Step;
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::Query;
use super::problem::{Problem, Result};
use crate::api::state::Api;
use crate::inspect::budgets::{BudgetReport, budgets};
use crate::inspect::kinds::{KindReport, Period, kinds};

/// Of which time.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// The last hour in minutes, the last day in steps of ten minutes, or the last week in hours. Without, the hour.
    #[param(inline)]
    period: Option<Length>,
}

/// How far back.
#[derive(Clone, Copy, Deserialize, ToSchema)]
pub enum Length {
    /// In minutes.
    #[serde(rename = "1h")]
    Hour,
    /// In steps of ten minutes.
    #[serde(rename = "24h")]
    Day,
    /// In hours.
    #[serde(rename = "7d")]
    Week,
}

impl Length {
    fn time(self) -> Duration {
        Duration::from_secs(match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
        })
    }
}

/// All kinds.
#[derive(Serialize, ToSchema)]
pub struct Kinds {
    /// When it was asked for.
    now: At,
    /// When the first step begins.
    since: At,
    /// The length of a step.
    step_ms: i64,
    /// When the chains of each kind were counted.
    counted_at: Option<At>,
    kinds: Vec<KindReport>,
    /// The budgets of calls that chains with learned intervals share, by name.
    budgets: Vec<BudgetReport>,
}

/// Answers what the runs of each kind came to over time, and what its schedule promises.
///
/// Workers write it every ten seconds, so the last step is not complete.
#[utoipa::path(get, path = "/kinds", tag = "overview", params(ListQuery),
    responses((status = 200, description = "All kinds", body = Kinds)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<ListQuery>) -> Result<Json<Kinds>> {
    let time = wanted.period.unwrap_or(Length::Hour).time();
    let step = Step::that_shows(time);
    let facts = api.status_cache().facts();
    if let Some(why) = &facts.ledger_why {
        return Err(Problem::away("the ledger", why));
    }
    let (now, wall_clock) = (api.ledger().now(), api.ledger().wall_clock());
    let since = step.begin(now - time);
    let buckets = api.ledger().kinds(step, since).await?;
    let config = api.config();
    let budgets = budgets(&config, api.ledger()).await?;
    let empty = Census::default();
    let (census, counted_at) = facts.census.as_ref().map_or((&empty, None), |(census, at)| (census, Some(*at)));
    Ok(Json(Kinds {
        now: At::of(now, &wall_clock),
        since: At::of(since, &wall_clock),
        step_ms: step.millis(),
        counted_at: counted_at.map(|at| At::of(at, &wall_clock)),
        kinds: kinds(&buckets, census, &config, Period { step, since, now }, &wall_clock),
        budgets,
    }))
}
