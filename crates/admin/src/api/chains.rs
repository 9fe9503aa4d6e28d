//! Chains: found, shown, and changed; one, or all that match a filter.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_engine::holds::Holds;
use roundelay_ledger::{ChainFilter, ChainOrder, Found};
use roundelay_model::guard::IfRunning;
use roundelay_model::ids::Fence;
use roundelay_model::job::RunNow;
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, NoBody, OptionalBody, Path, Query, given};
use super::page;
use super::problem::{Problem, Result};
use super::wire::{Receipt, receipt};
use crate::api::action_result::ActionResult;
use crate::api::detail::Detail;
use crate::api::state::Api;
use crate::inspect::chain::{AttemptReport, Entity, attempts as attempts_of, look, mark_manual};
use crate::inspect::chains;
use crate::inspect::chains::{ChainRow, ChainSearch, Own, State as ChainState};
use crate::operate::chain;

/// How many attempts are answered with a chain.
const ATTEMPTS: u32 = 50;

/// Which chains, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Chains of this kind.
    kind: Option<String>,
    /// Chains of this owner.
    owner: Option<String>,
    /// Chains of this platform queue.
    queue: Option<String>,
    /// Chains in this state.
    state: Option<ChainState>,
    /// Chains whose key contains this text. If the text has `*` (anything) or `?` (one character), chains whose whole
    /// key matches the pattern.
    text: Option<String>,
    /// The engine's own chains: `true` (the default) has them in the list, `false` leaves them out, and `only` has
    /// nothing else.
    own: Option<Own>,
    /// The order of the chains; absent: by kind and key.
    sort: Option<Sort>,
    /// How many rows a page has; 50 by default, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The cursor: `after` of an earlier answer with the same order. The page begins after it.
    after: Option<String>,
}

/// The order of chains in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// The longest overdue first. Only with `state=late`. The ledger goes through all chains for each page, so with
    /// very many chains an answer takes longer.
    Late,
}

/// Chains, in the order of kind and key, or in the order that was asked for.
#[derive(Serialize, ToSchema)]
pub struct ChainPage {
    /// When the chains were read from the ledger.
    now: At,
    chains: Vec<ChainRow>,
    /// The cursor of the next page; null when there is none.
    after: Option<String>,
    /// Whether the page is full or the last one. If not, the search has stopped early because it had read too many
    /// rows: `after` continues it.
    complete: bool,
}

impl ChainPage {
    fn new<P: Serialize>(found: Found<ChainRow, P>, api: &Api) -> Self {
        Self {
            now: At::of(api.ledger().now(), &api.ledger().wall_clock()),
            chains: found.found,
            after: found.after.as_ref().map(page::encode_cursor),
            complete: found.complete,
        }
    }
}

/// Finds chains.
#[utoipa::path(get, path = "/chains", tag = "chains", params(ListQuery),
    responses((status = 200, description = "A page of chains", body = ChainPage)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<ListQuery>) -> Result<Json<ChainPage>> {
    let ListQuery { kind, owner, queue, state, text, own, sort, limit, after } = wanted;
    let (limit, after, config) = (page::size(limit)?, after.as_deref(), api.config());
    let sought = ChainSearch { kind, owner, queue, text, state, own: own.unwrap_or_default() };
    match sort {
        None => {
            let found = chains::page(&sought, page::decode_cursor(after)?, limit, &config, api.ledger()).await?;
            Ok(Json(ChainPage::new(found, &api)))
        }
        Some(Sort::Late) if state == Some(ChainState::Late) => {
            let (after, ledgers) = (page::decode_cursor(after)?, (api.ledger(), api.counting()));
            Ok(Json(ChainPage::new(chains::longest_late(&sought, after, limit, &config, ledgers).await?, &api)))
        }
        Some(Sort::Late) => Err(Problem::bad_request("sort=late: it orders late chains only, so it needs state=late")),
    }
}

/// Answers everything about an entity: its chain, the run beside the rotation, its failures, its one-off jobs that run.
#[utoipa::path(get, path = "/chains/{kind}/{key}", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    responses((status = 200, description = "Everything about the entity", body = Entity),
              (status = 404, description = "The entity is unknown", body = Problem,
               content_type = "application/problem+json")))]
pub async fn show(State(api): State<Arc<Api>>, Path((kind, key)): Path<(String, String)>) -> Result<Json<Entity>> {
    // The status cache has these facts: an answer about a chain does not wait for the broker.
    let facts = api.status_cache().facts();
    let entity = look(&kind, &key, ATTEMPTS, &api.config(), api.ledger(), &facts.asked).await?;
    if entity.is_unknown() {
        return Err(unknown(&kind, &key));
    }
    Ok(Json(entity))
}

fn unknown(kind: &str, key: &str) -> Problem {
    Problem::not_found(format!("there is no chain {kind} {key}, and nothing of it has failed or runs"))
}

/// Which attempts.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttemptsQuery {
    /// How many rows a page has; 50 by default, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Attempts with a fence below this one; absent: the latest attempts.
    #[param(value_type = Option<i64>)]
    before: Option<Fence>,
}

/// Attempts of a chain, latest first.
#[derive(Serialize, ToSchema)]
pub struct Attempts {
    attempts: Vec<AttemptReport>,
    /// Whether there are attempts before the last one of these.
    more: bool,
}

/// Lists the attempts of a chain's rotation, latest first, as far back as the history is kept.
#[utoipa::path(get, path = "/chains/{kind}/{key}/attempts", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key"),
           AttemptsQuery),
    responses((status = 200, description = "A page of attempts", body = Attempts)))]
pub async fn attempts(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    Query(AttemptsQuery { limit, before }): Query<AttemptsQuery>,
) -> Result<Json<Attempts>> {
    let limit = page::size(limit)?;
    let ledger = api.ledger();
    let chains = ledger.chains(kind.clone(), key.clone()).await?;
    if chains.is_empty() {
        return Err(unknown(&kind, &key));
    }
    if let Some(before) = before
        && let Some(known) = ledger.history(before, 1).await?.pop()
        && chains.iter().all(|chain| chain.hint.epoch != known.epoch)
    {
        return Err(Problem::bad_request(format!("the attempt {before} is one of another chain")));
    }
    let mut found = attempts_of(ledger, &chains, before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let mut attempts: Vec<AttemptReport> =
        found.into_iter().map(|one| AttemptReport::of(one, &api.ledger().wall_clock())).collect();
    if let Some(manual) = chains.iter().find(|chain| chain.once) {
        mark_manual(&mut attempts, manual.hint.epoch);
    }
    Ok(Json(Attempts { attempts, more }))
}

/// What to do with chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The chains stop ticking, and keep their place in the rotation.
    Pause,
    /// The chains tick again; overdue ones at once.
    Resume,
    /// The chains end.
    Retire,
    /// The next ticks of the chains come now.
    Advance,
}

/// The chains to change: those that match every field that is given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = ChainFilter)]
pub struct ChainParameters {
    /// Chains of this kind.
    kind: Option<String>,
    /// Chains of this owner.
    owner: Option<String>,
    /// Chains of this platform queue.
    queue: Option<String>,
    /// Chains in this state. `running` is not possible here, because running chains change all the time.
    state: Option<ChainState>,
    /// Chains whose key contains this text, or matches this pattern.
    text: Option<String>,
}

/// An action on all chains that match a filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainActionRequest {
    /// The action.
    action: Action,
    /// The filter. An empty filter means all chains.
    #[serde(default)]
    filter: ChainParameters,
    /// Only count the chains that the action would change.
    #[serde(default)]
    dry_run: bool,
}

/// Pauses, resumes, retires or brings forward all chains that match a filter; with `dry_run`, only counts them.
///
/// When `pause` or `retire` has answered, no new run of these chains begins. `advance` changes at most 10,000 chains at
/// a time, and of the active chains only those that sleep. An empty text in a field of the filter is refused.
#[utoipa::path(post, path = "/chains/actions", tag = "chains", request_body = ChainActionRequest,
    responses((status = 200, description = "How many match, and how many changed",
              body = ActionResult<Action>)))]
pub async fn act(
    State(api): State<Arc<Api>>,
    Body(wish): Body<ChainActionRequest>,
) -> Result<(Detail, Json<ActionResult<Action>>)> {
    let ChainActionRequest { action, filter, dry_run } = wish;
    let detail = Detail(json!({ "action": action, "filter": filter, "dry_run": dry_run }));
    let ChainParameters { kind, owner, queue, state, text } = filter;
    let (kind, owner) = (given("kind", kind)?, given("owner", owner)?);
    let (queue, text) = (given("queue", queue)?, given("text", text)?);
    if action == Action::Advance && state == Some(ChainState::Late) {
        return Err(Problem::unprocessable("filter.state: what is late is due already"));
    }
    let config = api.config();
    // The ledger changes what is past the slack, and which of that is held follows from orders that its filter does not
    // know.
    let held = Holds::look(&config, api.ledger()).await?;
    if state == Some(ChainState::Held) || (state == Some(ChainState::Late) && held.iter().next().is_some()) {
        let words =
            "filter.state: while something is held, late and held chains cannot be told apart here; filter by queue";
        return Err(Problem::unprocessable(words));
    }
    let sought = ChainSearch { kind, owner, queue, text, state, own: Own::Too };
    let which = sought.which(&config, api.ledger().now());
    let which = which
        .ok_or_else(|| Problem::unprocessable("filter.state: what runs changes all the time; filter otherwise"))?;
    // A filter by owner changes the owner's chains, and not the state of the owner as a whole: /owners does that.
    let like = which.whole_owner().map(|_| "*".to_owned());
    let which = ChainFilter { like: which.like.clone().or(like), ..which };
    let order = match action {
        // Only active chains can be brought forward, and only those can be paused.
        Action::Pause | Action::Advance => ChainOrder::Pause,
        Action::Resume => ChainOrder::Resume,
        Action::Retire => ChainOrder::Retire,
    };
    let matching = api.counting().matching(which.clone(), order).await?;
    let changed = match (dry_run, action) {
        (true, _) => None,
        (false, Action::Advance) => Some(chain::advance_all(&config, api.connections().await?, which, matching).await?),
        (false, _) => Some(chain::steer(&config, api.ledger(), which, order).await?.count),
    };
    Ok((detail, Json(ActionResult { action, matching, changed })))
}

async fn steer(api: &Api, kind: &str, key: &str, order: ChainOrder) -> Result<Json<Receipt>> {
    receipt(chain::steer(&api.config(), api.ledger(), chain::one(kind, key), order).await)
}

/// Pauses a chain. The chain keeps its place in the rotation.
#[utoipa::path(post, path = "/chains/{kind}/{key}/pause", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    responses((status = 200, description = "The chain is paused", body = Receipt)))]
pub async fn pause(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    steer(&api, &kind, &key, ChainOrder::Pause).await
}

/// Lets a paused chain tick again, at once when it is overdue.
#[utoipa::path(post, path = "/chains/{kind}/{key}/resume", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    responses((status = 200, description = "The chain is resumed", body = Receipt)))]
pub async fn resume(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    steer(&api, &kind, &key, ChainOrder::Resume).await
}

/// Ends a chain.
#[utoipa::path(post, path = "/chains/{kind}/{key}/retire", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    responses((status = 200, description = "The chain has ended", body = Receipt)))]
pub async fn retire(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    steer(&api, &kind, &key, ChainOrder::Retire).await
}

/// Brings a chain's next tick forward to now.
#[utoipa::path(post, path = "/chains/{kind}/{key}/advance", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    responses((status = 200, description = "The next tick is due now", body = Receipt)))]
pub async fn advance(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    let config = api.config();
    // An unknown name is reported also while the broker cannot be reached.
    config.kind(&kind).map_err(Problem::not_found)?;
    receipt(chain::advance(&config, api.connections().await?, &kind, &key).await)
}

/// How a chain runs one more time. A field that is left out has the chain's value, or its kind's.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ManualRun {
    /// The platform queue.
    queue: Option<String>,
    /// The priority on that queue.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// What the handler gets. If it is given, an entity without a chain runs, too.
    #[schema(value_type = Option<Object>)]
    payload: Option<serde_json::Value>,
    /// What to do with this run while the rotation runs.
    if_running: Option<IfRunning>,
    /// Ignore the kind's cooldown for this run.
    force: bool,
}

/// Runs a chain one more time, now.
///
/// This is a run of the chain: its attempts are in the chain's history, its failed parts are the chain's, and cooldowns
/// count it. The run does not shift the rotation.
#[utoipa::path(post, path = "/chains/{kind}/{key}/run", tag = "chains", request_body(content = Option<ManualRun>),
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity's key")),
    responses((status = 200, description = "The chain runs once more", body = Receipt)))]
pub async fn run(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    body: OptionalBody<ManualRun>,
) -> Result<Json<Receipt>> {
    let ManualRun { queue, priority, payload, if_running, force } = body.0;
    let asked = RunNow { queue, priority, if_running, force };
    let config = api.config();
    // An unknown name is reported also while the broker cannot be reached.
    config.kind(&kind).map_err(Problem::not_found)?;
    receipt(chain::run(&config, api.connections().await?, (&kind, &key), payload.as_ref(), &asked).await)
}
