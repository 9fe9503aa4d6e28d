//! How throttles are: what they allow, how much of it is used, what holds them.

use std::collections::BTreeMap;

use roundelay_config::Config;
use roundelay_engine::throttle::throttled::Throttled;
use roundelay_ledger::{Ledger, LedgerError, SeenWorker};
use roundelay_model::calendar::At;
use roundelay_model::pacing::slots::{Limits, View, Window};
use serde::Serialize;
use utoipa::ToSchema;

/// A throttle, as it is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ThrottleReport {
    /// Its name.
    pub name: String,
    /// Who counts: the fleet, that is the ledger for all workers, or each worker for itself.
    pub scope: &'static str,
    /// What of a job says which of many limits is meant.
    pub keyed_by: Option<String>,
    /// How many starts may follow each other at once after a pause.
    pub burst: u32,
    /// The limits that an operator has set in place of those of the configuration.
    pub ordered: Option<OrderedLimits>,
    /// The limits of the configuration.
    pub configured: ConfiguredLimits,
    /// An operator's hold.
    pub hold: Option<Hold>,
    /// How many jobs wait for a slot of it, as workers have last said.
    pub waiting: i64,
    /// Why starts wait for it, if they do.
    pub in_the_way: Option<String>,
    /// The queues that it paces.
    pub queues: Vec<String>,
    /// The headers of an answer by which its upstream says how much remains of a budget.
    pub budget_headers: Option<BudgetHeaders>,
    /// How many keys are remembered.
    pub remembered: u64,
    /// Some of them, those that are idle last first. One that has no keys is its own, with an empty name.
    pub keys: Vec<KeyReport>,
}

/// Limits that an operator has set.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OrderedLimits {
    /// How many starts.
    pub allow: u32,
    /// In so many milliseconds.
    pub per_ms: u64,
    /// How many may follow each other at once.
    pub burst: u32,
    /// Who said so.
    pub by: String,
    /// When.
    pub at: At,
}

/// Limits of the configuration.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ConfiguredLimits {
    /// How many starts, in the window that paces.
    pub allow: u32,
    /// In so many milliseconds.
    pub per_ms: u64,
    /// How many may follow each other at once.
    pub burst: u32,
}

/// The headers of a budget.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BudgetHeaders {
    /// How many calls remain.
    pub remaining: String,
    /// When there are more.
    pub reset: String,
}

/// A throttle's key, as it is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct KeyReport {
    /// Its name; empty where the throttle has no keys.
    pub key: String,
    /// Each window in force, the one that paces first.
    pub windows: Vec<WindowReport>,
    /// When the next slot opens.
    pub opens: At,
    /// What lets nothing start.
    pub held: Option<Hold>,
    /// Starts are farther apart than the limits say until then, since it was held or did not work before.
    pub gentle_until: Option<At>,
    /// One start at a time tries whether its upstream works again.
    pub probing: bool,
    /// By the upstream's budget, starts are farther apart.
    pub budget: Option<Budget>,
}

/// A window, and how much of it is used.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WindowReport {
    /// How many starts it allows.
    pub allow: u32,
    /// In so many milliseconds.
    pub per_ms: u64,
    /// How many of them are used now.
    pub used: u32,
}

/// A hold in force.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Hold {
    /// Nothing starts before.
    pub until: At,
    /// Why, as far as that was said.
    pub why: String,
    /// The operator who said so; nobody when it was an upstream.
    pub by: Option<String>,
}

/// A budget in force.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Budget {
    /// Starts are so far apart at least.
    pub apart_ms: u64,
    /// Until then.
    pub until: At,
}

/// The queues that a throttle paces.
pub fn queues_of(name: &str, config: &Config) -> Vec<String> {
    let paced = config.queues.iter().filter(|(_, queue)| queue.throttle.as_deref() == Some(name));
    paced.map(|(queue, _)| queue.clone()).collect()
}

/// How many wait for slots of which throttle, as workers have last said. Queues that share one tell of the same.
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
    /// Of a throttle that was looked at, for whose slots so many wait.
    pub fn new(throttled: &Throttled, waiting: i64, config: &Config) -> Self {
        let Throttled { name, settings, limits, orders, keys, remembered, .. } = throttled;
        let hold = orders.hold.as_ref().filter(|hold| hold.until > throttled.now);
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

/// One throttle, and no other of its keys than `key`, if that is given.
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
    // One without keys is its own.
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
