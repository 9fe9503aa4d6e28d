//! The state of throttles: their limits, how much of them is used, and their holds.

use std::collections::BTreeMap;

use roundelay_config::Config;
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_ledger::{Ledger, LedgerError, SeenWorker};
use roundelay_model::pacing::slots::{Limits, View, Window};
use roundelay_model::wall_clock::At;
use serde::Serialize;
use utoipa::ToSchema;

/// The state of a throttle.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ThrottleReport {
    /// The name of the throttle.
    pub name: String,
    /// Where starts are counted: `fleet`, in the ledger for all workers together, or `worker`, in each worker for
    /// itself.
    pub scope: &'static str,
    /// The part of a job whose value selects the limit: each value has its own.
    pub keyed_by: Option<String>,
    /// How many starts may follow each other at once after a pause.
    pub burst: u32,
    /// The limits that an operator has set in place of the configured ones.
    pub ordered: Option<OrderedLimits>,
    /// The configured limits.
    pub configured: ConfiguredLimits,
    /// An operator's hold.
    pub hold: Option<Hold>,
    /// How many jobs wait for a slot of the throttle, as workers have last reported.
    pub waiting: i64,
    /// Why starts wait for the throttle, if they do.
    pub in_the_way: Option<String>,
    /// That chains need more starts than the throttle allows, if they do, and how often each runs then.
    pub shortage: Option<String>,
    /// Whether nothing but the limits is in the way of starts: no hold, no breaker, no upstream's budget.
    pub only_used: bool,
    /// The queues that the throttle paces.
    pub queues: Vec<String>,
    /// The headers in which the upstream says how much of a budget remains.
    pub budget_headers: Option<BudgetHeaders>,
    /// How many keys the ledger remembers.
    pub remembered: u64,
    /// Some of the keys, the idle ones last. A throttle without keys has one, with an empty name.
    pub keys: Vec<KeyReport>,
}

/// Limits that an operator has set.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OrderedLimits {
    /// How many starts a window allows.
    pub allow: u32,
    /// The length of the window, in milliseconds.
    pub per_ms: u64,
    /// How many starts may follow each other at once after a pause.
    pub burst: u32,
    /// The operator who set the limits.
    pub by: String,
    /// When the limits were set.
    pub at: At,
}

/// The configured limits.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ConfiguredLimits {
    /// How many starts the pacing window allows.
    pub allow: u32,
    /// The length of the window, in milliseconds.
    pub per_ms: u64,
    /// How many starts may follow each other at once after a pause.
    pub burst: u32,
}

/// The names of the headers of a budget.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BudgetHeaders {
    /// The header with the number of calls that remain.
    pub remaining: String,
    /// The header that says when the budget is full again.
    pub reset: String,
}

/// The state of a throttle's key.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct KeyReport {
    /// The name of the key; empty if the throttle has no keys.
    pub key: String,
    /// The windows in force, the pacing one first.
    pub windows: Vec<WindowReport>,
    /// When the next slot opens.
    pub opens: At,
    /// The hold in force, if there is one.
    pub held: Option<Hold>,
    /// The end of the slow start: until then starts are farther apart than the limits say, because of a hold or of
    /// failures before.
    pub gentle_until: Option<At>,
    /// Half-open: one start at a time tries whether the upstream works again.
    pub probing: bool,
    /// The upstream's budget, which sets starts farther apart.
    pub budget: Option<Budget>,
}

/// A window, and how much of it is used.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WindowReport {
    /// How many starts the window allows.
    pub allow: u32,
    /// The length of the window, in milliseconds.
    pub per_ms: u64,
    /// How many of the starts are used now.
    pub used: u32,
}

/// A hold in force.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Hold {
    /// Nothing starts before this time.
    pub until: At,
    /// The reason; may be empty.
    pub why: String,
    /// The operator who ordered the hold; null when an upstream asked for it.
    pub by: Option<String>,
}

/// A budget in force.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Budget {
    /// The shortest distance between two starts, in milliseconds.
    pub apart_ms: u64,
    /// When the budget ends.
    pub until: At,
}

/// The queues that a throttle paces.
pub fn queues_of(name: &str, config: &Config) -> Vec<String> {
    let paced = config.queues.iter().filter(|(_, queue)| queue.throttle.as_deref() == Some(name));
    paced.map(|(queue, _)| queue.clone()).collect()
}

/// How many jobs wait for slots, by throttle, as workers have last reported. Queues that share a throttle report the
/// same jobs.
pub fn waiting(workers: &[SeenWorker], config: &Config) -> BTreeMap<String, i64> {
    let mut waiting = BTreeMap::new();
    for worker in workers {
        let mut of_worker: BTreeMap<&str, i64> = BTreeMap::new();
        for queue in &worker.presence.queues {
            let throttle = config.queues.get(&queue.queue).and_then(|queue| queue.throttle.as_deref());
            if let Some(throttle) = throttle {
                let most = of_worker.entry(throttle).or_default();
                *most = (*most).max(queue.waiting);
            }
        }
        for (throttle, count) in of_worker {
            *waiting.entry(throttle.to_owned()).or_default() += count;
        }
    }
    waiting
}

impl ThrottleReport {
    /// From the state in the ledger; `waiting` is how many jobs wait for the throttle's slots.
    pub fn new(throttled: &Throttled, waiting: i64, config: &Config) -> Self {
        let Throttled { name, settings, limits, orders, keys, remembered, .. } = throttled;
        let hold = orders.hold.as_ref().filter(|hold| hold.until > throttled.now);
        let only_used = !throttled.is_in_trouble() && hold.is_none();
        Self {
            name: name.clone(),
            scope: if throttled.is_counted_here() { "fleet" } else { "worker" },
            keyed_by: settings.key.as_ref().map(ToString::to_string),
            burst: limits.burst,
            ordered: orders.limits.as_ref().map(|said| OrderedLimits {
                allow: said.allow,
                per_ms: said.per_ms,
                burst: said.burst,
                by: said.by.clone(),
                at: throttled.at(said.at),
            }),
            configured: configured(&settings.limits),
            hold: hold.map(|hold| Hold {
                until: throttled.at(hold.until),
                why: hold.why.clone(),
                by: Some(hold.by.clone()),
            }),
            waiting,
            in_the_way: throttled.in_the_way(Some(waiting)),
            shortage: None,
            only_used,
            queues: queues_of(name, config),
            budget_headers: settings
                .budget
                .as_ref()
                .map(|budget| BudgetHeaders { remaining: budget.remaining.clone(), reset: budget.reset.clone() }),
            remembered: *remembered,
            keys: keys.iter().map(|(key, view)| KeyReport::new(key, view, throttled)).collect(),
        }
    }
}

fn configured(limits: &Limits) -> ConfiguredLimits {
    let Window { allow, per } = limits.window;
    ConfiguredLimits { allow, per_ms: millis(per), burst: limits.burst }
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl KeyReport {
    fn new(key: &str, view: &View, throttled: &Throttled) -> Self {
        let window = |(window, used): &(Window, u32)| WindowReport {
            allow: window.allow,
            per_ms: millis(window.per),
            used: *used,
        };
        Self {
            key: key.into(),
            windows: view.used.iter().map(window).collect(),
            opens: throttled.at(view.opens),
            held: view.held.as_ref().map(|held| Hold {
                until: throttled.at(held.until),
                why: held.why.clone(),
                by: held.by.clone(),
            }),
            gentle_until: view.slow_start_until.map(|until| throttled.at(until)),
            probing: view.tripped,
            budget: view.budget.map(|(apart, until)| Budget { apart_ms: millis(apart), until: throttled.at(until) }),
        }
    }
}

/// One throttle; only its key `key`, if that is given.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn look(
    name: &str,
    key: Option<String>,
    config: &Config,
    ledger: &dyn Ledger,
) -> Result<ThrottleReport, LedgerError> {
    let waiting = waiting(&ledger.workers().await?, config).remove(name).unwrap_or(0);
    let settings = config.throttle(name).map_err(LedgerError::Statement)?;
    // A throttle without keys has one unnamed key.
    let key = key.filter(|_| settings.key.is_some());
    let throttled = Throttled::look_at(name, settings, key, ledger).await?;
    Ok(ThrottleReport::new(&throttled, waiting, config))
}

/// All throttles of the configuration.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn all(config: &Config, ledger: &dyn Ledger) -> Result<Vec<ThrottleReport>, LedgerError> {
    let waiting = waiting(&ledger.workers().await?, config);
    let throttled = Throttled::look(config.throttles.clone(), ledger).await?;
    let report = |one: &Throttled| ThrottleReport::new(one, waiting.get(&one.name).copied().unwrap_or(0), config);
    Ok(throttled.iter().map(report).collect())
}
