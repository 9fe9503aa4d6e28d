//! What has failed: listed, counted by reason, tried again, forgotten.

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
use crate::api::came::Came;
use crate::api::detail::Detail;
use crate::api::state::Api;
use crate::inspect::failures::{FailureReport, ReasonRow};
use crate::operate::failed;

/// Which failures: those that fit all that is given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct FailedFilter {
    /// Of this kind.
    kind: Option<String>,
    /// Of entities whose chains belong to this owner.
    owner: Option<String>,
    /// With a reason of this name.
    code: Option<String>,
    /// With this in the entity's key, or, where it has `*` or `?`, with keys that fit it.
    text: Option<String>,
    /// Of this part; in an order, empty for whole entities.
    item: Option<String>,
    /// Those that are never tried again by themselves, or those that are.
    permanent: Option<bool>,
}

impl FailedFilter {
    /// To look: empty fields of a form mean nothing.
    fn seen(self) -> FailureFilter {
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (kind, owner, code) = (said(self.kind), said(self.owner), said(self.code));
        Self { kind, owner, code, text: said(self.text), item: said(self.item), ..self }.read()
    }

    /// To change something: empty fields are a slip. Only the whole of an entity is a part without a name.
    fn meant(self) -> Result<FailureFilter> {
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
        }
    }
}

/// Which failures, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Of this kind.
    kind: Option<String>,
    /// Of entities whose chains belong to this owner.
    owner: Option<String>,
    /// With a reason of this name.
    code: Option<String>,
    /// With this in the entity's key, or, where it has `*` or `?`, with keys that fit it.
    text: Option<String>,
    /// Of this part.
    item: Option<String>,
    /// Those that are never tried again by themselves, or those that are.
    permanent: Option<bool>,
    /// So many, 50 when nothing is said, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Those that come after an earlier answer: its `after`.
    after: Option<String>,
}

/// Failures, in the order of kind, key and part.
#[derive(Serialize, ToSchema)]
pub struct Failed {
    failures: Vec<FailureReport>,
    /// Where the next ones begin; null when there are none.
    after: Option<String>,
}

/// Lists what has failed.
#[utoipa::path(get, path = "/failures", tag = "failures", params(Wanted),
    responses((status = 200, description = "A page of failures", body = Failed)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<Wanted>) -> Result<Json<Failed>> {
    let Wanted { kind, owner, code, text, item, permanent, limit, after } = wanted;
    let (limit, after) = (page::size(limit)?, page::place::<FailureCursor>(after.as_deref())?);
    let filter = FailedFilter { kind, owner, code, text, item, permanent }.seen();
    // One more tells whether there are more.
    let mut found = api.ledger().failed(filter, after, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let place = found.last().filter(|_| more).map(|last| page::after(&(&last.kind, &last.key, &last.item)));
    let (config, now, calendar) = (api.config(), api.ledger().now(), api.ledger().calendar());
    let failures = found.into_iter().map(|failure| FailureReport::new(failure, &config, now, &calendar)).collect();
    Ok(Json(Failed { failures, after: place }))
}

/// Failures by their reasons.
#[derive(Serialize, ToSchema)]
pub struct Reasons {
    /// Those with the most failures first.
    reasons: Vec<ReasonRow>,
}

/// Counts what has failed by its reasons.
#[utoipa::path(get, path = "/failures/reasons", tag = "failures", params(FailedFilter),
    responses((status = 200, description = "All reasons", body = Reasons)))]
pub async fn reasons(State(api): State<Arc<Api>>, Query(filter): Query<FailedFilter>) -> Result<Json<Reasons>> {
    let reasons = api.counting().reasons(filter.seen()).await?;
    Ok(Json(Reasons {
        reasons: reasons.into_iter().map(|count| ReasonRow::of(count, &api.ledger().calendar())).collect(),
    }))
}

/// What is wanted of failures.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailedAction {
    /// Parts are due now, with no attempt counted any more, permanent ones too. Whole entities stay as they are.
    Retry,
    /// They are forgotten.
    Drop,
}

/// Something is wanted of all failures that fit a filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailedWish {
    /// What.
    action: FailedAction,
    /// Of which. An empty filter means all of them.
    #[serde(default)]
    filter: FailedFilter,
    /// Only count those that it would concern.
    #[serde(default)]
    dry_run: bool,
}

/// Tries failed parts again, or forgets failures: all that fit a filter; with `dry_run`, only counts them.
#[utoipa::path(post, path = "/failures/actions", tag = "failures", request_body = FailedWish,
    responses((status = 200, description = "How many it was about", body = Came<FailedAction>)))]
pub async fn act(
    State(api): State<Arc<Api>>,
    Body(FailedWish { action, filter, dry_run }): Body<FailedWish>,
) -> Result<(Detail, Json<Came<FailedAction>>)> {
    let detail = Detail(json!({ "action": action, "filter": filter, "dry_run": dry_run }));
    let filter = filter.meant()?;
    let fits = failed::count(api.counting(), filter.clone()).await?;
    let (matching, changed) = match (action, dry_run) {
        (FailedAction::Retry, true) => (fits.parts, None),
        (FailedAction::Retry, false) => {
            (fits.parts, Some(failed::retry(&api.config(), api.ledger(), filter, fits).await?.parts))
        }
        (FailedAction::Drop, true) => (fits.all(), None),
        (FailedAction::Drop, false) => (fits.all(), Some(failed::drop(api.ledger(), filter).await?.0)),
    };
    Ok((detail, Json(Came { action, matching, changed })))
}
