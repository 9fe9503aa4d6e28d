//! Failures: listed, counted by reason, retried, forgotten.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::{FailureCursor, FailureFilter};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Query, given};
use super::page;
use super::problem::Result;
use crate::api::action_result::ActionResult;
use crate::api::detail::Detail;
use crate::api::state::Api;
use crate::inspect::failures::{FailureReport, ReasonRow};
use crate::operate::failed;

/// Which failures: those that match every field that is given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct FailedFilter {
    /// Failures of this kind.
    kind: Option<String>,
    /// Failures of entities whose chains belong to this owner.
    owner: Option<String>,
    /// Failures with a reason of this name.
    code: Option<String>,
    /// Failures whose entity has a key that contains this text, or, if the text has `*` or `?`, matches the pattern.
    text: Option<String>,
    /// Failures of this part. In an action, an empty text means whole entities.
    item: Option<String>,
    /// True: failures that are never retried automatically. False: those that are.
    permanent: Option<bool>,
    /// True: failures of entities that have worked since. False: those that fail now.
    recovered: Option<bool>,
}

impl FailedFilter {
    /// The filter of a request that only reads: empty fields of a form are as good as absent.
    fn for_reading(self) -> FailureFilter {
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (kind, owner, code) = (said(self.kind), said(self.owner), said(self.code));
        Self { kind, owner, code, text: said(self.text), item: said(self.item), ..self }.read()
    }

    /// The filter of a request that changes something: an empty field is a mistake. The exception is the name of a
    /// part: a whole entity is a part without a name.
    fn for_change(self) -> Result<FailureFilter> {
        let (kind, owner) = (given("kind", self.kind)?, given("owner", self.owner)?);
        let (code, text) = (given("code", self.code)?, given("text", self.text)?);
        Ok(Self { kind, owner, code, text, ..self }.read())
    }

    fn read(self) -> FailureFilter {
        let pattern = |text: String| if text.contains(['*', '?']) { text } else { format!("*{text}*") };
        FailureFilter {
            kind: self.kind,
            key: None,
            like: self.text.map(pattern),
            owner: self.owner,
            item: self.item,
            code: self.code,
            permanent: self.permanent,
            recovered: self.recovered,
        }
    }
}

/// Which failures, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Failures of this kind.
    kind: Option<String>,
    /// Failures of entities whose chains belong to this owner.
    owner: Option<String>,
    /// Failures with a reason of this name.
    code: Option<String>,
    /// Failures whose entity has a key that contains this text, or, if the text has `*` or `?`, matches the pattern.
    text: Option<String>,
    /// Failures of this part.
    item: Option<String>,
    /// True: failures that are never retried automatically. False: those that are.
    permanent: Option<bool>,
    /// True: failures of entities that have worked since. False: those that fail now.
    recovered: Option<bool>,
    /// How many rows a page has; 50 by default, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The cursor: `after` of an earlier answer. The page begins after it.
    after: Option<String>,
}

/// Failures, in the order of kind, key and part.
#[derive(Serialize, ToSchema)]
pub struct Failed {
    failures: Vec<FailureReport>,
    /// The cursor of the next page; null when there is none.
    after: Option<String>,
}

/// Lists failures.
#[utoipa::path(get, path = "/failures", tag = "failures", params(ListQuery),
    responses((status = 200, description = "A page of failures", body = Failed)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<ListQuery>) -> Result<Json<Failed>> {
    let ListQuery { kind, owner, code, text, item, permanent, recovered, limit, after } = wanted;
    let (limit, after) = (page::size(limit)?, page::decode_cursor::<FailureCursor>(after.as_deref())?);
    let filter = FailedFilter { kind, owner, code, text, item, permanent, recovered }.for_reading();
    // The additional row tells whether there is a next page.
    let mut found = api.ledger().failed(filter, after, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let place = found.last().filter(|_| more).map(|last| page::encode_cursor(&(&last.kind, &last.key, &last.item)));
    let (config, now, wall_clock) = (api.config(), api.ledger().now(), api.ledger().wall_clock());
    let failures = found.into_iter().map(|failure| FailureReport::new(failure, &config, now, &wall_clock)).collect();
    Ok(Json(Failed { failures, after: place }))
}

/// How many reasons an answer has. Handlers that put what is different each time into their reasons make one of each.
const MAX_REASONS: u32 = 500;

/// Failures by their reasons.
#[derive(Serialize, ToSchema)]
pub struct Reasons {
    /// The reasons, with the most failures first; at most 500.
    reasons: Vec<ReasonRow>,
    /// Whether these are all.
    complete: bool,
}

/// Counts failures by their reasons.
#[utoipa::path(get, path = "/failures/reasons", tag = "failures", params(FailedFilter),
    responses((status = 200, description = "The reasons", body = Reasons)))]
pub async fn reasons(State(api): State<Arc<Api>>, Query(filter): Query<FailedFilter>) -> Result<Json<Reasons>> {
    let mut reasons = api.counting().reasons(filter.for_reading(), MAX_REASONS + 1).await?;
    let complete = reasons.len() <= MAX_REASONS as usize;
    reasons.truncate(MAX_REASONS as usize);
    let reasons = reasons.into_iter().map(|count| ReasonRow::of(count, &api.ledger().wall_clock())).collect();
    Ok(Json(Reasons { reasons, complete }))
}

/// What to do with failures.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailedAction {
    /// Failed parts are due now, with their attempts counted from 0 again; this includes permanent failures. Whole
    /// entities stay as they are.
    Retry,
    /// The failures are forgotten.
    Drop,
}

/// An action on all failures that match a filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailedActionRequest {
    /// The action.
    action: FailedAction,
    /// The filter. An empty filter means all failures.
    #[serde(default)]
    filter: FailedFilter,
    /// Only count the failures that the action would change.
    #[serde(default)]
    dry_run: bool,
}

/// Retries failed parts, or forgets failures: all that match a filter; with `dry_run`, only counts them.
#[utoipa::path(post, path = "/failures/actions", tag = "failures", request_body = FailedActionRequest,
    responses((status = 200, description = "How many match, and how many changed",
              body = ActionResult<FailedAction>)))]
pub async fn act(
    State(api): State<Arc<Api>>,
    Body(FailedActionRequest { action, filter, dry_run }): Body<FailedActionRequest>,
) -> Result<(Detail, Json<ActionResult<FailedAction>>)> {
    let detail = Detail(json!({ "action": action, "filter": filter, "dry_run": dry_run }));
    let filter = filter.for_change()?;
    let fits = failed::count(api.counting(), filter.clone()).await?;
    let (matching, changed) = match (action, dry_run) {
        (FailedAction::Retry, true) => (fits.parts, None),
        (FailedAction::Retry, false) => {
            (fits.parts, Some(failed::retry(&api.config(), api.ledger(), filter, fits).await?.parts))
        }
        (FailedAction::Drop, true) => (fits.all(), None),
        (FailedAction::Drop, false) => (fits.all(), Some(failed::drop(api.ledger(), filter).await?.0)),
    };
    Ok((detail, Json(ActionResult { action, matching, changed })))
}
