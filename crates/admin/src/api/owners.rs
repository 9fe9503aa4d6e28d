//! Owners: their chains counted, and all of an owner paused, resumed or retired.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::{ChainFilter, ChainOrder, OWNERS_EFFORT};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Path, Query};
use super::page;
use super::problem::Result;
use crate::api::action_result::ActionResult;
use crate::api::state::Api;
use crate::inspect::owners::{self, OwnerRow};
use crate::operate::chain;

/// Which page.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// How many rows a page has; 50 by default, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The cursor: `after` of an earlier answer. The page begins after it.
    after: Option<String>,
}

/// Owners, in the order of their names.
#[derive(Serialize, ToSchema)]
pub struct Owners {
    owners: Vec<OwnerRow>,
    /// The cursor of the next page; null when there is none.
    after: Option<String>,
}

/// Lists owners, each with how many chains are in which state, how many are late, and how much is failing.
#[utoipa::path(get, path = "/owners", tag = "owners", params(ListQuery),
    responses((status = 200, description = "A page of owners", body = Owners)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<ListQuery>) -> Result<Json<Owners>> {
    let limit = page::size(wanted.limit)?;
    let after = page::decode_cursor::<String>(wanted.after.as_deref())?.unwrap_or_default();
    // The additional row tells whether there is a next page.
    let mut owners = owners::page(after, limit + 1, OWNERS_EFFORT, &api.config(), api.ledger()).await?;
    let more = owners.len() > limit as usize;
    owners.truncate(limit as usize);
    let after = owners.last().filter(|_| more).map(|last| page::encode_cursor(&last.owner));
    let facts = api.status_cache().facts();
    // Where none of all chains was late when they were last counted, none of an owner's was.
    if facts.census.as_ref().is_some_and(|(census, _)| census.queues.iter().all(|queue| queue.overdue == 0)) {
        owners.iter_mut().for_each(|owner| owner.late_complete = true);
    }
    Ok(Json(Owners { owners, after }))
}

/// What to do with everything of an owner.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OwnerActionRequest {
    /// Only count the chains that would change.
    dry_run: bool,
}

async fn steer(
    api: &Api,
    owner: String,
    care: OwnerActionRequest,
    order: ChainOrder,
) -> Result<Json<ActionResult<&'static str>>> {
    let which = ChainFilter { owner: Some(owner), ..ChainFilter::default() };
    let matching = api.counting().matching(which.clone(), order).await?;
    let changed = match care.dry_run {
        true => None,
        false => Some(chain::steer(&api.config(), api.ledger(), which, order).await?.count),
    };
    Ok(Json(ActionResult { action: chain::verb(order).0, matching, changed }))
}

/// Pauses everything of an owner: the chains, and the one-off jobs that wait in queues.
#[utoipa::path(post, path = "/owners/{owner}/pause", tag = "owners", request_body = OwnerActionRequest,
    params(("owner" = String, Path, description = "The owner's name")),
    responses((status = 200, description = "How many chains match, and how many changed",
              body = ActionResult<String>)))]
pub async fn pause(
    State(api): State<Arc<Api>>,
    Path(owner): Path<String>,
    Body(care): Body<OwnerActionRequest>,
) -> Result<Json<ActionResult<&'static str>>> {
    steer(&api, owner, care, ChainOrder::Pause).await
}

/// Resumes everything of an owner.
#[utoipa::path(post, path = "/owners/{owner}/resume", tag = "owners", request_body = OwnerActionRequest,
    params(("owner" = String, Path, description = "The owner's name")),
    responses((status = 200, description = "How many chains match, and how many changed",
              body = ActionResult<String>)))]
pub async fn resume(
    State(api): State<Arc<Api>>,
    Path(owner): Path<String>,
    Body(care): Body<OwnerActionRequest>,
) -> Result<Json<ActionResult<&'static str>>> {
    steer(&api, owner, care, ChainOrder::Resume).await
}

/// Ends everything of an owner, for good.
#[utoipa::path(post, path = "/owners/{owner}/retire", tag = "owners", request_body = OwnerActionRequest,
    params(("owner" = String, Path, description = "The owner's name")),
    responses((status = 200, description = "How many chains match, and how many changed",
              body = ActionResult<String>)))]
pub async fn retire(
    State(api): State<Arc<Api>>,
    Path(owner): Path<String>,
    Body(care): Body<OwnerActionRequest>,
) -> Result<Json<ActionResult<&'static str>>> {
    steer(&api, owner, care, ChainOrder::Retire).await
}
