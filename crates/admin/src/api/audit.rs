//! The audit: which changes were requested, by whom, and with which result.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::access::{AuditEntry, NewAuditEntry};
use roundelay_model::scope::Scope;
use roundelay_model::wall_clock::{At, WallClock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::extract::Query;
use super::page;
use super::problem::Result;
use crate::api::state::Api;

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

/// Entries, latest first.
#[derive(Serialize, ToSchema)]
pub struct Audit {
    entries: Vec<Entry>,
    /// The cursor of the next page; null when there is none.
    after: Option<String>,
}

/// A request to change something.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub struct Entry {
    /// The number of the entry; later entries have higher numbers.
    number: i64,
    /// When the request came.
    at: At,
    /// The token's name, or `anonymous@` and an address.
    actor: String,
    /// The scope of the actor at that time.
    scope: Scope,
    /// Method and path of the request.
    #[schema(example = "POST /api/v1/chains/{kind}/{key}/pause")]
    action: String,
    /// The values of the path's parameters, with a space between.
    #[schema(example = "sync-app ios/maps")]
    target: String,
    /// What was requested, or why the request was refused.
    detail: Value,
    /// The HTTP status of the answer; null while the request runs, or when the server ended before it answered.
    status: Option<u16>,
}

impl Entry {
    fn of(AuditEntry { number, at, entry }: AuditEntry, wall_clock: &WallClock) -> Self {
        let NewAuditEntry { actor, scope, action, target, detail, status } = entry;
        let detail = serde_json::from_str(&detail).unwrap_or(Value::String(detail));
        Self { number, at: At::of(at, wall_clock), actor, scope, action, target, detail, status }
    }
}

/// Lists requests to change something, done or refused, latest first.
///
/// Entries are kept for a year.
#[utoipa::path(get, path = "/audit", tag = "access", params(ListQuery),
    responses((status = 200, description = "A page of entries", body = Audit)))]
pub async fn list(State(api): State<Arc<Api>>, Query(which): Query<ListQuery>) -> Result<Json<Audit>> {
    let limit = page::size(which.limit)?;
    let before = page::decode_cursor(which.after.as_deref())?;
    // The additional row tells whether there is a next page.
    let mut found = api.ledger().audit(before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let after = found.last().filter(|_| more).map(|last| page::encode_cursor(&last.number));
    Ok(Json(Audit {
        entries: found.into_iter().map(|entry| Entry::of(entry, &api.ledger().wall_clock())).collect(),
        after,
    }))
}
