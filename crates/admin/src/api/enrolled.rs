//! Chains that programs begin and end: one, or many at once.

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

use super::extract::{Body, Nothing, Path};
use super::problem::{Problem, Result};
use crate::api::detail::Detail;
use crate::api::state::Api;

/// Chains in one request at most.
const MOST: usize = 5_000;
/// Chains that begin in one transaction.
const BATCH: usize = 1_000;
/// Chains that are ended at the same time.
const ENDING: usize = 16;

/// A chain that is to be there. What is left out is as its kind says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChainWanted {
    /// What the handler gets; any JSON.
    payload: Value,
    /// The platform queue, in place of the kind's.
    queue: Option<String>,
    /// The priority on that queue, in place of the kind's; less than the queue's `lanes`.
    #[schema(minimum = 0, maximum = 9)]
    priority: Option<u8>,
    /// Who it belongs to.
    owner: Option<String>,
    /// A schedule of its own in place of the kind's: an interval or a cron expression as text, or an object. Without
    /// it, a chain that is there keeps what it has.
    #[schema(example = "5m")]
    schedule: Option<Value>,
    /// When the first tick of a chain that begins is due, in milliseconds since 1970. Without it, at a place in its
    /// interval that follows from its name. A chain that is there keeps its rhythm.
    first_due: Option<i64>,
}

/// What became of a chain.
#[derive(Serialize, ToSchema)]
pub struct ChainCame {
    /// That.
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

impl ChainWanted {
    /// The entity that is meant.
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

/// Sees to it that a chain is there, as the request says: it begins, is brought up to date, or stays as it is.
///
/// Asked again it changes nothing more. A chain that has ended begins anew, with a new epoch. One that is paused, or
/// quarantined, is brought up to date and stays so.
#[utoipa::path(put, path = "/chains/{kind}/{key}", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    request_body = ChainWanted,
    responses((status = 200, description = "It was there", body = ChainCame),
              (status = 201, description = "It begins", body = ChainCame)))]
pub async fn put(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    Body(wanted): Body<ChainWanted>,
) -> Result<(StatusCode, Detail, Json<ChainCame>)> {
    let config = api.config();
    config.kind(&kind).map_err(Problem::not_found)?;
    let entity = wanted.entity(&config, &kind, key).map_err(Problem::unprocessable)?;
    // Not the payload, which is the chain's own business.
    let told = json!({
        "queue": entity.queue, "priority": entity.priority, "owner": entity.owner, "schedule": entity.schedule,
    });
    let (each, _) = enroller(&api, &config, &kind).await?.enroll_each(vec![entity]).await?;
    let became = each.first().copied().unwrap_or(Became::Unchanged);
    let status = if became == Became::Created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Detail(told), Json(ChainCame { became })))
}

/// Ends a chain, if it is there and has not ended.
///
/// Asked again, or of a chain that was never there, it changes nothing, and is answered with `unchanged`.
#[utoipa::path(delete, path = "/chains/{kind}/{key}", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    responses((status = 200, description = "It does not tick any more", body = ChainCame)))]
pub async fn delete(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: Nothing,
) -> Result<Json<ChainCame>> {
    may_end(&kind).map_err(Problem::unprocessable)?;
    let became = end(api.ledger(), kind, key).await?;
    Ok(Json(ChainCame { became }))
}

/// Chains of the engine's own begin and end with its workers.
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
    /// Its kind.
    kind: String,
    /// Its entity.
    key: String,
    /// It is to end; then nothing else is said of it.
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
    /// Who it belongs to.
    owner: Option<String>,
    /// A schedule of its own, as in a request for one chain.
    schedule: Option<Value>,
    /// When the first tick of a chain that begins is due, in milliseconds since 1970.
    first_due: Option<i64>,
}

/// Many chains.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainsWanted {
    /// At most 5,000, each of them once.
    #[schema(max_items = 5_000)]
    chains: Vec<ChainItem>,
}

/// What became of one of many chains.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ItemCame {
    /// That; null when it was refused.
    became: Option<Became>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// What became of many chains.
#[derive(Serialize, ToSchema)]
pub struct ChainsCame {
    /// How many have begun.
    created: usize,
    /// How many were brought up to date.
    updated: usize,
    /// How many were as they should be.
    unchanged: usize,
    /// How many have ended.
    retired: usize,
    /// How many were refused.
    refused: usize,
    /// Each of them, in the order of the request.
    chains: Vec<ItemCame>,
}

/// What is to be done with many chains, each by its place in the request.
#[derive(Default)]
struct Sorted {
    enroll: BTreeMap<String, Vec<(usize, Entity)>>,
    retire: Vec<(usize, (String, String))>,
    refused: Vec<(usize, String)>,
}

impl ChainsWanted {
    /// Sorts out what can be done (pure).
    fn sort(self, config: &Config) -> Sorted {
        let (mut sorted, mut seen) = (Sorted::default(), HashSet::new());
        for (n, item) in self.chains.into_iter().enumerate() {
            let ChainItem { kind, key, retire, payload, queue, priority, owner, schedule, first_due } = item;
            let name = (kind, key);
            if !seen.insert(name.clone()) {
                sorted.refused.push((n, format!("{} {} comes twice in this request", name.0, name.1)));
                continue;
            }
            let wanted = ChainWanted { payload, queue, priority, owner, schedule, first_due };
            if retire && wanted != ChainWanted::default() {
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

/// Sees to it that many chains are there, or end, and tells what became of each. Those that are refused, with the
/// reason, keep none of the others from being done.
///
/// Asked again it changes nothing more: what was not answered, because ledger or broker were away, may be sent again as
/// a whole.
#[utoipa::path(post, path = "/chains", tag = "chains", request_body = ChainsWanted,
    responses((status = 200, description = "What became of each", body = ChainsCame)))]
pub async fn put_many(
    State(api): State<Arc<Api>>,
    Body(wanted): Body<ChainsWanted>,
) -> Result<(Detail, Json<ChainsCame>)> {
    let count = wanted.chains.len();
    if count > MOST {
        return Err(Problem::unprocessable(format!("chains: {count} are more than {MOST}; send several requests")));
    }
    let config = api.config();
    let Sorted { enroll, retire, refused } = wanted.sort(&config);
    let mut came = vec![ItemCame::default(); count];
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
    Ok((Detail(told), Json(ChainsCame { created, updated, unchanged, retired, refused, chains: came })))
}
