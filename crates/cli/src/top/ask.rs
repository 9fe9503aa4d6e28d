//! Runs the queries of the screen, and gives the confirmed orders, by the functions that commands and the API use.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Error;
use roundelay_admin::api::Api;
use roundelay_admin::inspect::chain::{AttemptReport, look};
use roundelay_admin::inspect::chains::{ChainRow, ChainSearch, State as Doing};
use roundelay_admin::inspect::{chains, throttles};
use roundelay_admin::operate;
use roundelay_admin::operate::chain::Steered;
use roundelay_admin::operate::{Operator, chain, queue, throttle, worker};
use roundelay_config::Config;
use roundelay_engine::holds::Holds;
use roundelay_engine::overslept;
use roundelay_engine::overslept::{Overslept, schedules};
use roundelay_ledger::{ChainOrder, ChainState, EFFORT, LateChain, Listed, RunFilter};
use roundelay_model::clock::short_duration;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::order::{Action, Order};
use super::state::{Input, Query, QueryAnswer, Row, Show};
use crate::audited;

/// How long ledger or broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the broker's connection may take to close.
const FAREWELL: Duration = Duration::from_secs(1);
/// How many rows are queried.
const ROWS: u32 = 200;
/// How many runs of a chain are queried.
const RUNS: u32 = 20;

/// The poller of the screen's data.
pub struct Poller {
    pub config: Config,
    /// How often the ledger is asked.
    pub every: Duration,
    /// The query that the screen needs at the moment.
    pub query: watch::Receiver<Query>,
    /// Confirmed orders.
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// Who gives the orders.
    pub by: String,
    /// Where the answers go.
    pub to: mpsc::UnboundedSender<Input>,
}

impl Poller {
    /// Polls until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let Self { config, every, query, orders, by, to } = self;
        let Some(Some(api)) = stop.run_until_cancelled(open(&config, every, &to)).await else { return };
        let work = async {
            tokio::join!(
                api.keep_status_cache(every),
                tell_facts(&api, &to),
                answer_all(&api, every, query, &to),
                give_all(&api, orders, &by, &to),
            )
        };
        stop.run_until_cancelled(work).await;
        let _ = timeout(FAREWELL, api.close()).await;
    }
}

/// Opens the ledger, again and again while it is unavailable; nothing when the receiver of `to` has gone.
async fn open(config: &Config, every: Duration, to: &mpsc::UnboundedSender<Input>) -> Option<Arc<Api>> {
    loop {
        let why = match timeout(PATIENCE, Api::open(config.clone())).await {
            Ok(Ok(api)) => return Some(api),
            Ok(Err(error)) => error.to_string(),
            Err(_) => late(),
        };
        to.send(Input::NoLedger(why)).ok()?;
        sleep(every).await;
    }
}

fn late() -> String {
    format!("it has not answered within {}s", PATIENCE.as_secs())
}

async fn tell_facts(api: &Api, to: &mpsc::UnboundedSender<Input>) {
    let mut changes = api.status_cache().changes();
    while changes.changed().await.is_ok() {
        let facts = changes.borrow_and_update().clone();
        if to.send(Input::Facts(facts)).is_err() {
            return;
        }
    }
}

async fn answer_all(api: &Api, every: Duration, mut query: watch::Receiver<Query>, to: &mpsc::UnboundedSender<Input>) {
    loop {
        let now = query.borrow_and_update().clone();
        let answer = async {
            match timeout(PATIENCE, answer(api, &now)).await {
                Ok(answer) => answer.transpose(),
                Err(_) => Some(Err(Error::msg(late()))),
            }
        };
        tokio::select! {
            answer = answer => {
                if let Some(answer) = answer {
                    let _ = to.send(Input::QueryAnswer(now, answer.map_err(|error| error.to_string())));
                }
            }
            // If the screen needs another query, this answer is not needed any more.
            changed = query.changed() => match changed {
                Ok(()) => { query.mark_changed(); continue }
                Err(_) => return,
            }
        }
        tokio::select! {
            () = sleep(every) => {}
            changed = query.changed() => match changed {
                Ok(()) => query.mark_changed(),
                Err(_) => return,
            }
        }
    }
}

async fn answer(api: &Api, query: &Query) -> anyhow::Result<Option<QueryAnswer>> {
    let (config, ledger) = (api.config(), api.ledger());
    Ok(match query {
        Query::Nothing => None,
        Query::Throttles => Some(QueryAnswer::Throttles(throttles::all(&config, ledger).await?)),
        Query::Chains(Show::Late) => {
            let (now, wall_clock) = (ledger.now(), ledger.wall_clock());
            let holds = Holds::look(&config, ledger).await?;
            let late = ledger.late(now - config.catch_up.slack, holds.queues(), ROWS).await?;
            let more = late.len() >= ROWS as usize;
            let queues = config.queues.keys().cloned().chain([config.topology().names.chores()]);
            let slept = overslept::look(ledger, queues, &schedules(&config)).await?;
            let slept = slept.into_iter().filter(|of| holds.get(&of.chain.hint.queue).is_none());
            let slept = slept.map(|Overslept { chain: Listed { hint, .. }, since }| Row {
                doing: "late",
                late: Some(now.since(since)),
                due: wall_clock.wall(hint.due),
                kind: hint.kind,
                key: hint.key,
                queue: hint.queue,
            });
            let rows = late.into_iter().map(|LateChain { hint, state, .. }| Row {
                doing: if state == ChainState::Quarantined { "quarantined" } else { "late" },
                late: Some(now.since(hint.due)),
                due: wall_clock.wall(hint.due),
                kind: hint.kind,
                key: hint.key,
                queue: hint.queue,
            });
            Some(QueryAnswer::Chains(rows.chain(slept).collect(), more))
        }
        Query::Chains(show) => {
            let state = match show {
                Show::Held => Some(Doing::Held),
                Show::Paused => Some(Doing::Paused),
                Show::Running => Some(Doing::Running),
                Show::Late | Show::All => None,
            };
            let found =
                chains::page(&ChainSearch { state, ..ChainSearch::default() }, None, ROWS, &config, ledger).await?;
            let row = |ChainRow { kind, key, queue, doing, due, lag_ms, .. }| Row {
                late: (lag_ms > 0).then(|| Duration::from_millis(lag_ms)),
                due: due.shown(),
                kind,
                key,
                queue,
                doing,
            };
            Some(QueryAnswer::Chains(found.found.into_iter().map(row).collect(), found.after.is_some()))
        }
        Query::Chain(kind, key) => {
            let facts = api.status_cache().facts();
            let entity = look(kind, key, RUNS, &config, ledger, &facts.asked).await?;
            Some(QueryAnswer::Chain(Box::new(entity)))
        }
        Query::Runs(verdict) => {
            let filter = RunFilter { verdict: verdict.map(str::to_owned), ..RunFilter::default() };
            let (found, wall_clock) = (ledger.runs(filter, None, ROWS, EFFORT).await?, ledger.wall_clock());
            Some(QueryAnswer::Runs(found.found.into_iter().map(|one| AttemptReport::named(one, &wall_clock)).collect()))
        }
    })
}

async fn give_all(api: &Api, mut orders: mpsc::UnboundedReceiver<Order>, by: &str, to: &mpsc::UnboundedSender<Input>) {
    while let Some(order) = orders.recv().await {
        let (command, target) = order.action.command();
        let detail = json!({ "why": order.why, "span": short_duration(order.span) });
        let entry = audited::Order { by, command, target, detail };
        let given = audited::audited(api.ledger(), entry, execute(api, order, by));
        let became = match timeout(PATIENCE, given).await {
            Ok(became) => became.map_err(|error| format!("{error:#}")),
            Err(_) => Err(format!("{}; it is not known whether it holds", late())),
        };
        let _ = to.send(Input::Given(became));
    }
    // The caller joins this with tasks that never end, and cancels all from outside.
    std::future::pending::<()>().await;
}

/// Gives an order; answers its result in words.
async fn execute(api: &Api, Order { action, span, why }: Order, by: &str) -> anyhow::Result<String> {
    let operator = Operator { config: api.config(), ledger: api.ledger(), by: by.to_owned() };
    Ok(match action {
        Action::PauseQueue(queue) => queue::pause(&operator, &queue, &why).await?.to_string(),
        Action::ResumeQueue(queue) => queue::resume(&operator, &queue).await?.to_string(),
        Action::Hold(throttle) => throttle::hold(&operator, &throttle, span, &why).await?.to_string(),
        Action::Release(throttle) => throttle::release(&operator, &throttle).await?.to_string(),
        Action::Drain(worker) => worker::drain(&operator, &worker, &why).await?.to_string(),
        Action::ResumeWorker(worker) => worker::resume(&operator, &worker).await?.to_string(),
        Action::PauseChain(kind, key) => steer(&operator, &kind, &key, ChainOrder::Pause).await?.to_string(),
        Action::ResumeChain(kind, key) => steer(&operator, &kind, &key, ChainOrder::Resume).await?.to_string(),
        Action::Advance(kind, key) => {
            let connections = api.connections().await.map_err(|problem| Error::msg(problem.detail))?;
            chain::advance(&operator.config, connections, &kind, &key).await?.to_string()
        }
    })
}

async fn steer(operator: &Operator<'_>, kind: &str, key: &str, order: ChainOrder) -> operate::Result<Steered> {
    chain::steer(&operator.config, operator.ledger, chain::one(kind, key), order).await
}
