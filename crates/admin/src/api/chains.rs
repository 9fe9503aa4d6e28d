//! Chains: found, looked at, steered, one or all that fit a filter.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_ledger::{ChainFilter, ChainOrder, Cursor};
use roundelay_model::calendar::At;
use roundelay_model::guard::IfRunning;
use roundelay_model::ids::Fence;
use roundelay_model::job::RunNow;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Nothing, Path, Perhaps, Query, given};
use super::page;
use super::problem::{Problem, Result};
use super::words::{Words, told};
use crate::api::came::Came;
use crate::api::detail::Detail;
use crate::api::state::Api;
use crate::inspect::chain::{AttemptReport, Entity, attempts as attempts_of, look, mark_manual};
use crate::inspect::chains;
use crate::inspect::chains::{ChainRow, Sought, State as ChainState};
use crate::operate::chain;

/// Attempts that are told with a chain.
const ATTEMPTS: u32 = 50;

/// Which chains, and which page of them.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Of this kind.
    kind: Option<String>,
    /// Of this owner.
    owner: Option<String>,
    /// Of this platform queue.
    queue: Option<String>,
    /// That do this.
    state: Option<ChainState>,
    /// With this in their keys; or, where it has `*` (anything) or `?` (one character), with keys that fit it.
    text: Option<String>,
    /// So many, 50 when nothing is said, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Those that come after an earlier answer: its `after`.
    after: Option<String>,
}

/// Chains, in the order of kind and key.
#[derive(Serialize, ToSchema)]
pub struct ChainPage {
    /// When they were looked at.
    now: At,
    chains: Vec<ChainRow>,
    /// Where the next ones begin; null when there are none.
    after: Option<String>,
    /// Whether the page has all that it could have. Else the search has stopped for the work that it was: `after`
    /// goes on with it.
    complete: bool,
}

/// Finds chains.
#[utoipa::path(get, path = "/chains", tag = "chains", params(Wanted),
    responses((status = 200, description = "A page of chains", body = ChainPage)))]
pub async fn list(State(api): State<Arc<Api>>, Query(wanted): Query<Wanted>) -> Result<Json<ChainPage>> {
    let Wanted { kind, owner, queue, state, text, limit, after } = wanted;
    let (limit, after) = (page::size(limit)?, page::place::<Cursor>(after.as_deref())?);
    let sought = Sought { kind, owner, queue, text, state };
    let found = chains::page(&sought, after, limit, &api.config(), api.ledger()).await?;
    Ok(Json(ChainPage {
        now: At::of(api.ledger().now(), &api.ledger().calendar()),
        chains: found.found,
        after: found.after.as_ref().map(page::after),
        complete: found.complete,
    }))
}

/// Tells all about an entity: its chain, the run beside it, what has failed, one-off jobs that run.
#[utoipa::path(get, path = "/chains/{kind}/{key}", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    responses((status = 200, description = "All about it", body = Entity),
              (status = 404, description = "Nothing is known of it", body = Problem, content_type = "application/problem+json")))]
pub async fn show(State(api): State<Arc<Api>>, Path((kind, key)): Path<(String, String)>) -> Result<Json<Entity>> {
    // As the board knows it: nobody who looks at a chain waits for the broker.
    let facts = api.board().facts();
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
pub struct Before {
    /// So many, 50 when nothing is said, at most 500.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Those before this fence; absent: the latest.
    #[param(value_type = Option<i64>)]
    before: Option<Fence>,
}

/// Attempts of a chain, latest first.
#[derive(Serialize, ToSchema)]
pub struct Attempts {
    attempts: Vec<AttemptReport>,
    /// There are more before the last of these.
    more: bool,
}

/// Lists the attempts of a chain's rotation, latest first, as far back as the history is kept.
#[utoipa::path(get, path = "/chains/{kind}/{key}/attempts", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity"), Before),
    responses((status = 200, description = "A page of attempts", body = Attempts)))]
pub async fn attempts(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    Query(Before { limit, before }): Query<Before>,
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
        found.into_iter().map(|one| AttemptReport::of(one, &api.ledger().calendar())).collect();
    if let Some(manual) = chains.iter().find(|chain| chain.once) {
        mark_manual(&mut attempts, manual.hint.epoch);
    }
    Ok(Json(Attempts { attempts, more }))
}

/// What is wanted of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// They stop ticking, and keep their place.
    Pause,
    /// They tick again; overdue ones at once.
    Resume,
    /// They end.
    Retire,
    /// Their next ticks come now.
    Advance,
}

/// Which chains something is wanted of: those that fit all that is given.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = ChainFilter)]
pub struct ChainParameters {
    /// Of this kind.
    kind: Option<String>,
    /// Of this owner.
    owner: Option<String>,
    /// Of this platform queue.
    queue: Option<String>,
    /// That do this. `running` is no filter for actions, since what runs changes all the time.
    state: Option<ChainState>,
    /// With this in their keys, or with keys that fit this pattern.
    text: Option<String>,
}

/// Something is wanted of all chains that fit a filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// What.
    action: Action,
    /// Of which. An empty filter means all chains.
    #[serde(default)]
    filter: ChainParameters,
    /// Only count those that would be changed.
    #[serde(default)]
    dry_run: bool,
}

/// Pauses, resumes, retires or brings forward all chains that fit a filter; with `dry_run`, only counts them.
///
/// When it has returned after `pause` or `retire`, no new run of them begins. `advance` concerns at most 10,000
/// chains at a time, and of those that tick it changes those that sleep. A field of the filter that is empty is refused.
#[utoipa::path(post, path = "/chains/actions", tag = "chains", request_body = Wish,
    responses((status = 200, description = "How many it was about", body = Came<Action>)))]
pub async fn act(State(api): State<Arc<Api>>, Body(wish): Body<Wish>) -> Result<(Detail, Json<Came<Action>>)> {
    let Wish { action, filter, dry_run } = wish;
    let detail = Detail(json!({ "action": action, "filter": filter, "dry_run": dry_run }));
    let ChainParameters { kind, owner, queue, state, text } = filter;
    let (kind, owner) = (given("kind", kind)?, given("owner", owner)?);
    let (queue, text) = (given("queue", queue)?, given("text", text)?);
    if action == Action::Advance && state == Some(ChainState::Late) {
        return Err(Problem::unprocessable("filter.state: what is late is due already"));
    }
    let config = api.config();
    let sought = Sought { kind, owner, queue, text, state };
    let which = sought.which(&config, api.ledger().now());
    let which = which
        .ok_or_else(|| Problem::unprocessable("filter.state: what runs changes all the time; filter otherwise"))?;
    // Of an owner her chains, and not what holds for her as a whole: that is for /owners.
    let like = which.whole_owner().map(|_| "*".to_owned());
    let which = ChainFilter { like: which.like.clone().or(like), ..which };
    let order = match action {
        // What can be brought forward ticks, too.
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
    Ok((detail, Json(Came { action, matching, changed })))
}

async fn steer(api: &Api, kind: &str, key: &str, order: ChainOrder) -> Result<Json<Words>> {
    told(chain::steer(&api.config(), api.ledger(), chain::one(kind, key), order).await)
}

/// Stops a chain; it keeps its place.
#[utoipa::path(post, path = "/chains/{kind}/{key}/pause", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    responses((status = 200, description = "It is paused", body = Words)))]
pub async fn pause(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: Nothing,
) -> Result<Json<Words>> {
    steer(&api, &kind, &key, ChainOrder::Pause).await
}

/// Lets a paused chain tick again, at once when it is overdue.
#[utoipa::path(post, path = "/chains/{kind}/{key}/resume", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    responses((status = 200, description = "It goes on", body = Words)))]
pub async fn resume(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: Nothing,
) -> Result<Json<Words>> {
    steer(&api, &kind, &key, ChainOrder::Resume).await
}

/// Ends a chain.
#[utoipa::path(post, path = "/chains/{kind}/{key}/retire", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    responses((status = 200, description = "It has ended", body = Words)))]
pub async fn retire(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: Nothing,
) -> Result<Json<Words>> {
    steer(&api, &kind, &key, ChainOrder::Retire).await
}

/// Brings a chain's next tick forward to now.
#[utoipa::path(post, path = "/chains/{kind}/{key}/advance", tag = "chains",
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    responses((status = 200, description = "It is due now", body = Words)))]
pub async fn advance(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    _: Nothing,
) -> Result<Json<Words>> {
    let config = api.config();
    // An unknown name is told also while the broker is away.
    config.kind(&kind).map_err(Problem::not_found)?;
    told(chain::advance(&config, api.connections().await?, &kind, &key).await)
}

/// How a chain is to run one time more. What is left out is as the chain, or its kind, says it.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ManualRun {
    /// The platform queue.
    queue: Option<String>,
    /// The priority on that queue.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// What the handler gets. With it, also an entity without a chain runs.
    #[schema(value_type = Option<Object>)]
    payload: Option<serde_json::Value>,
    /// What becomes of it while the rotation runs.
    if_running: Option<IfRunning>,
    /// The kind's cooldown does not hold for it.
    force: bool,
}

/// Runs a chain one time more, now.
///
/// It is a run of the chain: its attempts are in the chain's history, its failed parts are the chain's, and cooldowns
/// count it. It does not shift the rotation.
#[utoipa::path(post, path = "/chains/{kind}/{key}/run", tag = "chains", request_body(content = Option<ManualRun>),
    params(("kind" = String, Path, description = "The kind"), ("key" = String, Path, description = "The entity")),
    responses((status = 200, description = "It runs once more", body = Words)))]
pub async fn run(
    State(api): State<Arc<Api>>,
    Path((kind, key)): Path<(String, String)>,
    body: Perhaps<ManualRun>,
) -> Result<Json<Words>> {
    let ManualRun { queue, priority, payload, if_running, force } = body.0;
    let asked = RunNow { queue, priority, if_running, force };
    let config = api.config();
    // An unknown name is told also while the broker is away.
    config.kind(&kind).map_err(Problem::not_found)?;
    told(chain::run(&config, api.connections().await?, (&kind, &key), payload.as_ref(), &asked).await)
}
