//! Messages that cannot be used: where RabbitMQ carries messages they lie on its quarantine queue, else in the ledger.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_broker::PeekedMessage;
use roundelay_engine::sealing;
use roundelay_ledger::QuarantinedMessage;
use roundelay_model::calendar::At;
use roundelay_model::encryption::Keyring;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Query};
use super::page;
use super::problem::Result;
use crate::api::came::Came;
use crate::api::detail::Detail;
use crate::api::state::Api;
use crate::operate::quarantine::{QuarantineAction, QuarantineFilter};
use crate::operate::{OperateError, quarantine};

/// How much of a body is told, in bytes.
const MOST_OF_A_BODY: usize = 64 << 10;

/// Which page.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// So many, 50 when nothing is said, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Those that come after an earlier answer: its `after`. Of the broker's there is one page only.
    after: Option<String>,
}

/// Messages that cannot be used.
#[derive(Serialize, ToSchema)]
pub struct Quarantine {
    messages: Vec<Unusable>,
    /// Where the next ones begin; null when there are none.
    after: Option<String>,
    /// How many lie on the broker's quarantine queue, if there is one. One that was set aside twice, because a worker
    /// died over it, counts twice here, and is shown once.
    ready: Option<u64>,
}

/// A message that cannot be used.
#[derive(Serialize, ToSchema)]
pub struct Unusable {
    /// In the ledger, its number; later ones have higher numbers.
    number: Option<i64>,
    /// In the ledger, since when.
    at: Option<At>,
    /// The queue that it came from.
    from: String,
    /// Why it cannot be used.
    reason: String,
    /// What it is, as text; cut after 64 KiB. Where it is sealed and does not open here, it stays so.
    body: String,
    /// `ledger` or `broker`.
    #[serde(rename = "where")]
    place: &'static str,
}

fn told(keys: &Keyring, body: &[u8]) -> String {
    let body = sealing::shown(keys, body);
    String::from_utf8_lossy(&body[..body.len().min(MOST_OF_A_BODY)]).into_owned()
}

/// Lists messages that cannot be used, each with its reason. The broker's are fetched, and put back at once.
#[utoipa::path(get, path = "/quarantine", tag = "failures", params(Wanted),
    responses((status = 200, description = "A page of messages", body = Quarantine)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<Wanted>) -> Result<Json<Quarantine>> {
    let (limit, before) = (page::size(wanted.limit)?, page::place::<i64>(wanted.after.as_deref())?);
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
                let (from, reason, body) = (from.clone(), reason.clone(), told(&keys, body));
                messages.push(Unusable { number: None, at: None, from, reason, body, place: "broker" });
            }
            shelved.put_back().await;
        }
    }
    // One more tells whether there are more.
    let mut kept = api.ledger().quarantined(before, limit + 1).await?;
    let more = kept.len() > limit as usize;
    kept.truncate(limit as usize);
    let after = kept.last().filter(|_| more).map(|last| page::after(&last.number));
    messages.extend(kept.into_iter().map(|message| {
        let QuarantinedMessage { number, at, from, reason, body } = message;
        let body = told(&keys, &body);
        Unusable {
            number: Some(number),
            at: Some(At::of(at, &api.ledger().calendar())),
            from,
            reason,
            body,
            place: "ledger",
        }
    }));
    Ok(Json(Quarantine { messages, after, ready }))
}

/// Something is wanted of all messages in quarantine that fit a filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuarantineWish {
    /// What.
    action: QuarantineAction,
    /// Of which. An empty filter means all of them.
    #[serde(default)]
    filter: QuarantineFilter,
    /// Only count those that it would concern.
    #[serde(default)]
    dry_run: bool,
}

/// Sends messages that could not be used to their queues once more, or forgets them: all that fit a filter.
///
/// Of the broker's the first 1,000 are looked at; asked again, it goes on.
#[utoipa::path(post, path = "/quarantine/actions", tag = "failures", request_body = QuarantineWish,
    responses((status = 200, description = "How many it was about", body = Came<QuarantineAction>)))]
pub async fn act(
    State(api): State<Arc<Api>>,
    Body(QuarantineWish { action, filter, dry_run }): Body<QuarantineWish>,
) -> Result<(Detail, Json<Came<QuarantineAction>>)> {
    let detail = Detail(json!({ "action": action, "filter": filter, "dry_run": dry_run }));
    let connections = api.connections().await?;
    let _alone = api.shelf().await;
    let (matching, changed) = quarantine::act(&api.config(), connections, action, &filter, dry_run).await?;
    Ok((detail, Json(Came { action, matching, changed })))
}
