//! Chains that client programs begin and end: one, or many at once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use futures_util::{StreamExt, TryStreamExt, stream};
use roundelay_config::{Config, is_internal};
use roundelay_engine::enroll::{Asked, Became, EnrollError, Enroller, Entity};
use roundelay_ledger::{ChainFilter, ChainOrder, Ledger, LedgerError};
use roundelay_model::clock::Time;
use roundelay_model::job::Enrolment;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::extract::{Body, NoBody, Path};
use super::problem::{Problem, Result};
use crate::api::detail::Detail;
use crate::api::state::Api;

/// The most chains in one request.
const MAX_CHAINS: usize = 5_000;
/// How many chains begin in one transaction.
const BATCH: usize = 1_000;
/// How many chains are ended at the same time.
const ENDING: usize = 16;

/// A chain that must exist. A field that is left out has the kind's value.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChainRequest {
    /// What the handler gets; any JSON.
    payload: Value,
    /// The platform queue, in place of the kind's.
    queue: Option<String>,
    /// The priority on that queue, in place of the kind's; less than the queue's `lanes`.
    #[schema(minimum = 0, maximum = 9)]
    priority: Option<u8>,
    /// The owner of the chain.
    owner: Option<String>,
    /// A schedule of the chain's own in place of the kind's: an interval or a cron expression as text, or an object. If
    /// it is left out, a chain that exists keeps its schedule.
    #[schema(example = "5m")]
    schedule: Option<Value>,
    /// When the first tick of a new chain is due, in milliseconds since 1970. If it is left out, the tick has a place
    /// in the interval that follows from the chain's name. A chain that exists keeps its rhythm.
    first_due: Option<i64>,
}

/// The result for a chain.
#[derive(Serialize, ToSchema)]
pub struct ChainResult {
    /// The result.
    became: Became,
}

impl From<EnrollError> for Problem {
    fn from(error: EnrollError) -> Self {
        match error {
            EnrollError::Entity { reason, .. } => Self::unprocessable(reason),
            EnrollError::Unsealed => Self::conflict(error.to_string()),
            EnrollError::Ledger(error) => error.into(),
            other => Self::unprocessable(other.to_string()),
        }
    }
}

impl ChainRequest {
    /// The entity of this request.
    fn entity(self, config: &Config, kind: &str, key: String) -> std::result::Result<Entity, String> {
        let Self { payload, queue, priority, owner, schedule, first_due } = self;
        let enrolment = Enrolment { queue, priority, owner, schedule, first_due: first_due.map(Time::from_millis) };
        Asked { key, payload, enrolment }.entity(config.kind(kind)?, None)
    }
}

async fn enroller(api: &Api, config: &Config, kind: &str) -> Result<Enroller> {
    let connections = api.connections().await?.clone();
    let enroller = Enroller::new(config, connections, kind, None, false);
    Ok(enroller.map_err(|error| Problem::unprocessable(error.to_string()))?.revive(true).by_name())
}

/// Ensures that a chain exists as the request says: the chain begins, is updated, or stays as it is.
///
/// The same request, sent again, changes nothing more. A chain that has ended begins anew, with a new epoch. A chain
/// that is paused or quarantined is updated and stays paused or quarantined.
#[utoipa::path(put, path = "/chains/{kind}/{key}", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    request_body = ChainRequest,
    responses((status = 200, description = "The chain exists, and was updated or needed no change", body = ChainResult),
              (status = 201, description = "The chain begins", body = ChainResult)))]
pub async fn put(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    Body(wanted): Body<ChainRequest>,
) -> Result<(StatusCode, Detail, Json<ChainResult>)> {
    let config = api.config();
    config.kind(&kind).map_err(Problem::not_found)?;
    let entity = wanted.entity(&config, &kind, key).map_err(Problem::unprocessable)?;
    // The audit does not get the payload, which may be private.
    let told = json!({
        "queue": entity.queue, "priority": entity.priority, "owner": entity.owner, "schedule": entity.schedule,
    });
    let (each, _) = enroller(&api, &config, &kind).await?.enroll_each(vec![entity]).await?;
    let became = each.first().copied().unwrap_or(Became::Unchanged);
    let status = if became == Became::Created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Detail(told), Json(ChainResult { became })))
}

/// Ends a chain, if it exists and has not ended.
///
/// The same request, sent again, changes nothing and is answered with `unchanged`. So is a request for a chain that
/// never existed.
#[utoipa::path(delete, path = "/chains/{kind}/{key}", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    responses((status = 200, description = "The chain has ended, or never existed", body = ChainResult)))]
pub async fn delete(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: NoBody,
) -> Result<Json<ChainResult>> {
    may_end(&kind).map_err(Problem::unprocessable)?;
    let became = end(api.ledger(), kind, key).await?;
    Ok(Json(ChainResult { became }))
}

/// The engine's own chains begin and end with its workers.
fn may_end(kind: &str) -> std::result::Result<(), String> {
    match is_internal(kind) {
        true => Err(format!("{kind} is a kind of the engine's own, whose chains no order ends")),
        false => Ok(()),
    }
}

async fn end(ledger: &dyn Ledger, kind: String, key: String) -> std::result::Result<Became, LedgerError> {
    let one = ChainFilter { kind: Some(kind), key: Some(key), ..ChainFilter::default() };
    let changed = ledger.order_chains(one, ChainOrder::Retire).await?;
    Ok(if changed > 0 { Became::Retired } else { Became::Unchanged })
}

/// One of many chains.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainItem {
    /// The kind of the chain.
    kind: String,
    /// The key of the entity.
    key: String,
    /// The chain ends. Then no other field may be given.
    #[serde(default)]
    retire: bool,
    /// What the handler gets; any JSON.
    #[serde(default)]
    payload: Value,
    /// The platform queue, in place of the kind's.
    queue: Option<String>,
    /// The priority on that queue, in place of the kind's; less than the queue's `lanes`.
    #[schema(minimum = 0, maximum = 9)]
    priority: Option<u8>,
    /// The owner of the chain.
    owner: Option<String>,
    /// A schedule of the chain's own, as in a request for one chain.
    schedule: Option<Value>,
    /// When the first tick of a new chain is due, in milliseconds since 1970.
    first_due: Option<i64>,
}

/// Many chains.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainsRequest {
    /// At most 5,000 chains, each only once.
    #[schema(max_items = 5_000)]
    chains: Vec<ChainItem>,
}

/// The result for one of many chains.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ItemResult {
    /// The result; null when the chain was refused.
    became: Option<Became>,
    /// Why the chain was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// The results for many chains.
#[derive(Serialize, ToSchema)]
pub struct ChainsResult {
    /// How many chains have begun.
    created: usize,
    /// How many chains were updated.
    updated: usize,
    /// How many chains needed no change.
    unchanged: usize,
    /// How many chains have ended.
    retired: usize,
    /// How many chains were refused.
    refused: usize,
    /// The result for each chain, in the order of the request.
    chains: Vec<ItemResult>,
}

/// The chains of a request, sorted by what to do with them; each by its index in the request.
#[derive(Default)]
struct Sorted {
    enroll: BTreeMap<String, Vec<(usize, Entity)>>,
    retire: Vec<(usize, (String, String))>,
    refused: Vec<(usize, String)>,
}

impl ChainsRequest {
    /// Sorts the chains by what can be done with them (pure).
    fn sort(self, config: &Config) -> Sorted {
        let (mut sorted, mut seen) = (Sorted::default(), HashSet::new());
        for (n, item) in self.chains.into_iter().enumerate() {
            let ChainItem { kind, key, retire, payload, queue, priority, owner, schedule, first_due } = item;
            let name = (kind, key);
            if !seen.insert(name.clone()) {
                sorted.refused.push((n, format!("{} {} comes twice in this request", name.0, name.1)));
                continue;
            }
            let wanted = ChainRequest { payload, queue, priority, owner, schedule, first_due };
            if retire && wanted != ChainRequest::default() {
                sorted.refused.push((n, "`retire` goes with kind and key alone".into()));
                continue;
            }
            if retire {
                match may_end(&name.0) {
                    Ok(()) => sorted.retire.push((n, name)),
                    Err(why) => sorted.refused.push((n, why)),
                }
                continue;
            }
            let (kind, key) = name;
            match wanted.entity(config, &kind, key) {
                Ok(entity) => sorted.enroll.entry(kind).or_default().push((n, entity)),
                Err(why) => sorted.refused.push((n, why)),
            }
        }
        sorted
    }
}

/// Ensures that many chains exist, or ends them, and answers the result for each. A chain that is refused, with the
/// reason, does not stop the others.
///
/// The same request, sent again, changes nothing more. If ledger or broker were unavailable and there was no answer,
/// the whole request may be sent again.
#[utoipa::path(post, path = "/chains", tag = "chains", request_body = ChainsRequest,
    responses((status = 200, description = "The result for each chain", body = ChainsResult)))]
pub async fn put_many(
    State(api): State<Arc<Api>>,
    Body(wanted): Body<ChainsRequest>,
) -> Result<(Detail, Json<ChainsResult>)> {
    let count = wanted.chains.len();
    if count > MAX_CHAINS {
        return Err(Problem::unprocessable(format!(
            "chains: {count} are more than {MAX_CHAINS}; send several requests"
        )));
    }
    let config = api.config();
    let Sorted { enroll, retire, refused } = wanted.sort(&config);
    let mut came = vec![ItemResult::default(); count];
    for (n, why) in refused {
        came[n].why = Some(why);
    }
    for (kind, asked) in enroll {
        let mut enroller = enroller(&api, &config, &kind).await?;
        let mut good = Vec::with_capacity(asked.len());
        for (n, entity) in asked {
            match enroller.check(&entity) {
                Ok(()) => good.push((n, entity)),
                Err(why) => came[n].why = Some(why),
            }
        }
        for part in good.chunks(BATCH) {
            let entities = part.iter().map(|(_, entity)| entity.clone()).collect();
            let (each, _) = enroller.enroll_each(entities).await?;
            part.iter().zip(each).for_each(|((n, _), became)| came[*n].became = Some(became));
        }
    }
    let ledger = api.ledger();
    let ends = stream::iter(retire).map(async |(n, (kind, key))| {
        let became = end(ledger, kind, key).await?;
        Ok::<_, LedgerError>((n, became))
    });
    let ended: Vec<(usize, Became)> = ends.buffer_unordered(ENDING).try_collect().await?;
    ended.into_iter().for_each(|(n, became)| came[n].became = Some(became));
    let how_many = |became| came.iter().filter(|item| item.became == became).count();
    let (created, updated) = (how_many(Some(Became::Created)), how_many(Some(Became::Updated)));
    let (unchanged, retired) = (how_many(Some(Became::Unchanged)), how_many(Some(Became::Retired)));
    let refused = how_many(None);
    let told = json!({
        "created": created, "updated": updated, "unchanged": unchanged, "retired": retired, "refused": refused,
    });
    Ok((Detail(told), Json(ChainsResult { created, updated, unchanged, retired, refused, chains: came })))
}
