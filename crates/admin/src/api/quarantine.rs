//! Unusable messages. With RabbitMQ they are on its quarantine queue, else in the ledger.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_broker::PeekedMessage;
use roundelay_engine::sealing;
use roundelay_ledger::QuarantinedMessage;
use roundelay_model::encryption::Keyring;
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Query};
use super::page;
use super::problem::Result;
use crate::api::action_result::ActionResult;
use crate::api::detail::Detail;
use crate::api::state::Api;
use crate::operate::quarantine::{QuarantineAction, QuarantineFilter};
use crate::operate::{OperateError, quarantine};

/// How much of a body is answered, in bytes.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Which page.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// How many rows a page has; 50 by default, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The cursor: `after` of an earlier answer. The page begins after it. The broker's messages are one page only.
    after: Option<String>,
}

/// Unusable messages.
#[derive(Serialize, ToSchema)]
pub struct Quarantine {
    messages: Vec<Unusable>,
    /// The cursor of the next page; null when there is none.
    after: Option<String>,
    /// How many messages are on the broker's quarantine queue, if there is one. A message that was put there twice,
    /// because a worker died while it did so, counts twice here and is shown once.
    ready: Option<u64>,
}

/// An unusable message.
#[derive(Serialize, ToSchema)]
pub struct Unusable {
    /// The number of a message in the ledger; later ones have higher numbers.
    number: Option<i64>,
    /// When a message in the ledger was put into quarantine.
    at: Option<At>,
    /// The queue from which the message came.
    from: String,
    /// Why the message cannot be used.
    reason: String,
    /// The body, as text; cut after 64 KiB. A body that is encrypted with an unknown key stays encrypted.
    body: String,
    /// `ledger` or `broker`.
    #[serde(rename = "where")]
    place: &'static str,
}

fn body_text(keys: &Keyring, body: &[u8]) -> String {
    let body = sealing::shown(keys, body);
    String::from_utf8_lossy(&body[..body.len().min(MAX_BODY_BYTES)]).into_owned()
}

/// Lists unusable messages, each with its reason. The broker's messages are fetched, and put back at once.
#[utoipa::path(get, path = "/quarantine", tag = "failures", params(ListQuery),
    responses((status = 200, description = "A page of messages", body = Quarantine)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<ListQuery>) -> Result<Json<Quarantine>> {
    let (limit, before) = (page::size(wanted.limit)?, page::decode_cursor::<i64>(wanted.after.as_deref())?);
    let mut messages = Vec::new();
    let keys = api.config().encryption.clone();
    let connections = api.connections().await?;
    let queue = api.config().topology().names.quarantine();
    let keeps = connections.broker.keeps_messages();
    let ready = match keeps {
        true => connections.broker.depth(&queue).await.ok().map(|depth| depth.ready),
        false => None,
    };
    if keeps && before.is_none() {
        let _alone = api.shelf().await;
        let mut seen = HashSet::new();
        for shelved in connections.broker.peek(&queue, limit as usize).await.map_err(OperateError::from)? {
            let PeekedMessage { id, from, reason, body, .. } = &shelved;
            if id.is_empty() || seen.insert(id.clone()) {
                let (from, reason, body) = (from.clone(), reason.clone(), body_text(&keys, body));
                messages.push(Unusable { number: None, at: None, from, reason, body, place: "broker" });
            }
            shelved.put_back().await;
        }
    }
    // The additional row tells whether there is a next page.
    let mut kept = api.ledger().quarantined(before, limit + 1).await?;
    let more = kept.len() > limit as usize;
    kept.truncate(limit as usize);
    let after = kept.last().filter(|_| more).map(|last| page::encode_cursor(&last.number));
    messages.extend(kept.into_iter().map(|message| {
        let QuarantinedMessage { number, at, from, reason, body } = message;
        let body = body_text(&keys, &body);
        Unusable {
            number: Some(number),
            at: Some(At::of(at, &api.ledger().wall_clock())),
            from,
            reason,
            body,
            place: "ledger",
        }
    }));
    Ok(Json(Quarantine { messages, after, ready }))
}

/// An action on all messages in quarantine that match a filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuarantineActionRequest {
    /// The action.
    action: QuarantineAction,
    /// The filter. An empty filter means all messages.
    #[serde(default)]
    filter: QuarantineFilter,
    /// Only count the messages that the action would change.
    #[serde(default)]
    dry_run: bool,
}

/// Sends unusable messages to their queues again, or forgets them: all that match a filter.
///
/// Of the broker's messages, one request reads the first 1,000; the next request continues.
#[utoipa::path(post, path = "/quarantine/actions", tag = "failures", request_body = QuarantineActionRequest,
    responses((status = 200, description = "How many match, and how many changed",
              body = ActionResult<QuarantineAction>)))]
pub async fn act(
    State(api): State<Arc<Api>>,
    Body(QuarantineActionRequest { action, filter, dry_run }): Body<QuarantineActionRequest>,
) -> Result<(Detail, Json<ActionResult<QuarantineAction>>)> {
    let detail = Detail(json!({ "action": action, "filter": filter, "dry_run": dry_run }));
    let connections = api.connections().await?;
    let _alone = api.shelf().await;
    let (matching, changed) = quarantine::act(&api.config(), connections, action, &filter, dry_run).await?;
    Ok((detail, Json(ActionResult { action, matching, changed })))
}
