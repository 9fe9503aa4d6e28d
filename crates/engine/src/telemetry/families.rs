//! Every metric by name. `docs/metrics.md` says what each means; a test holds the two together.
//!
//! Labels are names from the configuration and words from closed sets: nothing that a publisher, a
//! handler or an upstream says becomes one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use roundelay_broker::rabbit::certificates::Certificate;
use roundelay_ledger::Census;
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::fresh::{Budget, Objective};
use roundelay_model::wall_clock::WallClock;

use super::{COUNTS, Count};
use crate::throttle::throttled::Throttled;

/// Lateness in seconds: fine where the engine should be, coarse where only the size matters.
const LATENESS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0, 3_600.0];
/// How long handlers run, in seconds.
const DURATION: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];
/// Waits for a slot, in seconds; they are given up after five minutes.
const WAIT: [f64; 10] = [0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 120.0, 300.0];
/// More than four hops are for delays of more than a day.
const HOPS: [f64; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 8.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByQueue {
    pub queue: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByKind {
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByThrottle {
    pub throttle: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByLost {
    pub throttle: String,
    pub reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByBudget {
    budget: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCalls {
    budget: String,
    calls: &'static str,
}

/// A window of a throttle, by its length: there are as many as are configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByWindow {
    throttle: String,
    per: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByAttempt {
    pub kind: String,
    pub verdict: &'static str,
    pub reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByLeftOut {
    pub kind: String,
    pub reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByState {
    pub state: &'static str,
    pub queue: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByWhose {
    whose: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByWorker {
    version: &'static str,
    worker: String,
}

pub(super) type Seconds = Gauge<f64, AtomicU64>;
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics that have labels, or that are set.
#[derive(Debug)]
pub struct Families {
    pub ticks: Family<ByKind, Counter>,
    pub jobs: Family<ByKind, Counter>,
    pub attempts: Family<ByAttempt, Counter>,
    pub left_out: Family<ByLeftOut, Counter>,
    pub starts: Family<ByQueue, Counter>,
    pub running: Family<ByQueue, Gauge>,
    pub lateness: Histograms<ByQueue>,
    pub duration: Histograms<ByKind>,
    pub wait: Histograms<ByThrottle>,
    pub waiting: Family<ByThrottle, Gauge>,
    pub slots: Family<ByThrottle, Counter>,
    pub lost_slots: Family<ByLost, Counter>,
    allowed: Family<ByWindow, Gauge>,
    used: Family<ByWindow, Gauge>,
    held: Family<ByThrottle, Seconds>,
    breaker: Family<ByThrottle, Gauge>,
    apart: Family<ByThrottle, Seconds>,
    ordered: Family<ByThrottle, Gauge>,
    keys: Family<ByThrottle, Gauge>,
    pub hops: Histogram,
    chains: Family<ByState, Gauge>,
    overdue: Family<ByQueue, Gauge>,
    held_chains: Family<ByQueue, Gauge>,
    backlog: Family<ByQueue, Gauge>,
    unsent: Family<ByQueue, Gauge>,
    oldest: Seconds,
    failures: Gauge,
    recovered: Gauge,
    quarantined: Gauge,
    kept_jobs: Gauge,
    census_at: Seconds,
    census_took: Seconds,
    /// How the wall clock stands to the ledger's time.
    clock_ahead: Seconds,
    clock_sets: Gauge,
    clock_set_at: Seconds,
    ledger_up: Gauge,
    broker_up: Gauge,
    native_delays: Gauge,
    hot_rungs: Gauge,
    budget_price: Family<ByBudget, Seconds>,
    budget_calls: Family<ByCalls, Seconds>,
    budget_chains: Family<ByBudget, Seconds>,
    budget_freshness: Family<ByBudget, Seconds>,
    budget_age: Family<ByBudget, Seconds>,
    budget_tenth_more: Family<ByBudget, Seconds>,
    broker_clock_ahead: Seconds,
    certificates: Family<ByWhose, Seconds>,
    ready: Gauge,
    worker: Family<ByWorker, Gauge>,
    started_at: Seconds,
    /// Queues that the last census had: one that has lost its last chain drops out of the next.
    counted: Mutex<Vec<String>>,
    /// Replaces the windows of throttles, which an operator's order may change.
    windows: Mutex<Vec<ByWindow>>,
}

impl Families {
    /// All metrics, at zero, and the registry that writes them.
    pub fn register(counts: &[Counter; COUNTS]) -> (Self, Registry) {
        let families = Self {
            ticks: Family::default(),
            jobs: Family::default(),
            attempts: Family::default(),
            left_out: Family::default(),
            starts: Family::default(),
            running: Family::default(),
            lateness: Family::new_with_constructor(|| Histogram::new(LATENESS)),
            duration: Family::new_with_constructor(|| Histogram::new(DURATION)),
            wait: Family::new_with_constructor(|| Histogram::new(WAIT)),
            waiting: Family::default(),
            slots: Family::default(),
            lost_slots: Family::default(),
            allowed: Family::default(),
            used: Family::default(),
            held: Family::default(),
            breaker: Family::default(),
            apart: Family::default(),
            ordered: Family::default(),
            keys: Family::default(),
            hops: Histogram::new(HOPS),
            chains: Family::default(),
            overdue: Family::default(),
            held_chains: Family::default(),
            backlog: Family::default(),
            unsent: Family::default(),
            oldest: Seconds::default(),
            failures: Gauge::default(),
            recovered: Gauge::default(),
            quarantined: Gauge::default(),
            kept_jobs: Gauge::default(),
            census_at: Seconds::default(),
            census_took: Seconds::default(),
            clock_ahead: Seconds::default(),
            clock_sets: Gauge::default(),
            clock_set_at: Seconds::default(),
            ledger_up: Gauge::default(),
            broker_up: Gauge::default(),
            native_delays: Gauge::default(),
            hot_rungs: Gauge::default(),
            budget_price: Family::default(),
            budget_calls: Family::default(),
            budget_chains: Family::default(),
            budget_freshness: Family::default(),
            budget_age: Family::default(),
            budget_tenth_more: Family::default(),
            broker_clock_ahead: Seconds::default(),
            certificates: Family::default(),
            ready: Gauge::default(),
            worker: Family::default(),
            started_at: Seconds::default(),
            counted: Mutex::default(),
            windows: Mutex::default(),
        };
        let mut registry = Registry::default();
        registry.register("process_start_time_seconds", "When the worker started", families.started_at.clone());
        families.register_with(registry.sub_registry_with_prefix("roundelay"), counts);
        (families, registry)
    }

    fn register_with(&self, to: &mut Registry, counts: &[Counter; COUNTS]) {
        to.register("ticks", "Ticks that came to their end", self.ticks.clone());
        to.register("jobs", "One-off jobs that came to their end", self.jobs.clone());
        to.register("attempts", "Attempts that ended, by how and why", self.attempts.clone());
        to.register("left_out", "Occurrences of a schedule that went by without a run", self.left_out.clone());
        to.register("starts", "Handlers started", self.starts.clone());
        to.register("running", "Handlers running now", self.running.clone());
        to.register("lateness_seconds", "How long after their due time attempts began", self.lateness.clone());
        to.register("handler_duration_seconds", "How long handlers ran", self.duration.clone());
        to.register("throttle_wait_seconds", "How long starts waited for a slot", self.wait.clone());
        to.register("throttle_waiting", "Starts that wait for a slot now", self.waiting.clone());
        to.register("throttle_slots", "Slots that were handed out to this worker", self.slots.clone());
        to.register("throttle_lost_slots", "Of these, those that nothing started with", self.lost_slots.clone());
        to.register("throttle_allowed", "Starts that are allowed in a window", self.allowed.clone());
        to.register("throttle_used", "Starts of the window that ends now", self.used.clone());
        to.register("throttle_held_seconds", "How long nothing starts from now on", self.held.clone());
        to.register("throttle_breaker", "0 closed, 1 one start at a time tries, 2 open", self.breaker.clone());
        to.register(
            "throttle_budget_apart_seconds",
            "How far an upstream's budget puts starts apart",
            self.apart.clone(),
        );
        to.register("throttle_ordered", "Whether an operator's limits are in force", self.ordered.clone());
        to.register("throttle_keys", "Keys that are remembered", self.keys.clone());
        to.register("delay_hops", "Rungs that a delay takes, when it is begun", self.hops.clone());
        for (what, name, help) in [
            (Count::Rearmed, "rearms", "Messages sent on to a further rung"),
            (
                Count::Early,
                "early_messages",
                "Messages that the broker handed on before they had slept until their time",
            ),
            (Count::GaveWay, "gave_way_messages", "Messages that had woken, and went to the end of their queue"),
            (
                Count::LeaseLost,
                "lost_leases",
                "Leases that were renewed too late, and claims that another worker had by then",
            ),
            (Count::Stale, "stale_messages", "Messages that came for a tick already past"),
            (
                Count::Idle,
                "idle_messages",
                "Messages that led to no run: the chain is paused, has ended, waits, or runs already",
            ),
            (Count::Requeued, "requeued_messages", "Messages given back to the broker to come again"),
            (Count::Quarantined, "quarantined_messages", "Messages that could not be used"),
            (Count::SetAside, "set_aside", "Runs that were set aside because workers died over them"),
            (
                Count::HandedOut,
                "handed_out_ticks",
                "Ticks that ran from the ledger: the broker was away, or another worker silent",
            ),
            (
                Count::Left,
                "left_messages",
                "Messages of fair queues that exceeded their tenant's share, left to the backlog",
            ),
            (Count::Resent, "resent_messages", "Messages that catch-up sent again"),
            (Count::Republished, "republished_messages", "Publishes that had to be repeated"),
            (Count::SpansSent, "spans_sent", "Spans that the collector of traces has taken"),
            (Count::SpansDropped, "spans_dropped", "Spans that it has not, and that are gone"),
        ] {
            to.register(name, help, counts[what as usize].clone());
        }
        to.register("chains", "Chains in the ledger, by what they do", self.chains.clone());
        to.register("chains_overdue", "Chains due for longer than the slack and not run", self.overdue.clone());
        to.register(
            "backlog_messages",
            "Messages of fair queues that wait for their tenant's turn",
            self.backlog.clone(),
        );
        to.register("chains_held", "Due chains that an operator lets not start", self.held_chains.clone());
        to.register("chains_unsent", "Chains whose message is not known to be sent", self.unsent.clone());
        to.register(
            "oldest_overdue_seconds",
            "How long the chain has been due that waits longest",
            self.oldest.clone(),
        );
        to.register("ledger_failures", "Entities whose failure the ledger keeps", self.failures.clone());
        to.register(
            "ledger_failures_recovered",
            "Of the entities whose failure the ledger keeps, those that have worked since",
            self.recovered.clone(),
        );
        to.register("ledger_quarantined_messages", "Quarantined messages in the ledger", self.quarantined.clone());
        to.register("ledger_kept_jobs", "One-off jobs kept in the ledger", self.kept_jobs.clone());
        to.register("ledger_up", "Whether the ledger can be read and written", self.ledger_up.clone());
        to.register("census_timestamp_seconds", "When the ledger was last counted", self.census_at.clone());
        to.register("census_duration_seconds", "How long the last count took", self.census_took.clone());
        to.register(
            "clock_ahead_seconds",
            "By how much the wall clock is ahead of the ledger's steady time; negative when it is behind",
            self.clock_ahead.clone(),
        );
        to.register(
            "clock_sets",
            "How often the wall clock was set, as far as the ledger remembers (32 times at most)",
            self.clock_sets.clone(),
        );
        to.register(
            "clock_set_timestamp_seconds",
            "When the wall clock was last set, by what it showed then; 0 if it never was",
            self.clock_set_at.clone(),
        );
        to.register("broker_up", "Whether the broker is connected and takes messages", self.broker_up.clone());
        to.register(
            "native_delays",
            "Whether messages sleep on their own queue, not on rungs",
            self.native_delays.clone(),
        );
        to.register(
            "hot_rungs",
            "How many delay queues were hot, and have others of neighbouring delays beside them, which take their load",
            self.hot_rungs.clone(),
        );
        to.register("budget_price", "What a call of the budget costs", self.budget_price.clone());
        to.register("budget_calls_per_second", "Calls of the budget, by what they are", self.budget_calls.clone());
        to.register("budget_chains", "About how many chains share the budget", self.budget_chains.clone());
        to.register(
            "budget_freshness",
            "The expected share of time in which what is known of an entity is right, by weight",
            self.budget_freshness.clone(),
        );
        to.register(
            "budget_age_seconds",
            "For how long what is known of an entity is expected to have been out of date, over all time, by weight",
            self.budget_age.clone(),
        );
        to.register(
            "budget_tenth_more",
            "What a tenth more calls would bring: seconds less age, or more freshness",
            self.budget_tenth_more.clone(),
        );
        to.register(
            "broker_clock_ahead_seconds",
            "How far the broker's clock is ahead of the ledger's, where messages sleep on their own queue",
            self.broker_clock_ahead.clone(),
        );
        to.register(
            "broker_certificate_expiry_timestamp_seconds",
            "When a certificate of the connection to the broker ends",
            self.certificates.clone(),
        );
        to.register("ready", "Whether this worker is of use", self.ready.clone());
        to.register("worker_info", "Which worker this is", self.worker.clone());
    }

    pub fn introduce(&self, worker: &str, at: Time) {
        let label = ByWorker { version: env!("CARGO_PKG_VERSION"), worker: worker.to_owned() };
        self.worker.clear();
        self.worker.get_or_create(&label).set(1);
        self.started_at.set(seconds(at));
    }

    pub fn up(&self, broker: bool, ledger: bool, ready: bool) {
        self.ready.set(ready.into());
        self.broker_up.set(broker.into());
        self.ledger_up.set(ledger.into());
    }

    pub fn hot_rungs(&self, hot: usize) {
        self.hot_rungs.set(i64::try_from(hot).unwrap_or(i64::MAX));
    }

    pub fn budgets<'b>(&self, budgets: impl Iterator<Item = (&'b str, Arc<Budget>, Objective)>) {
        // Those that the configuration does not have any more are gone.
        self.budget_calls.clear();
        let of_each = [
            &self.budget_price,
            &self.budget_chains,
            &self.budget_freshness,
            &self.budget_age,
            &self.budget_tenth_more,
        ];
        of_each.iter().for_each(|family| family.clear());
        for (name, budget, objective) in budgets {
            let Some(price) = budget.price else { continue };
            let label = ByBudget { budget: name.to_owned() };
            let (chains, gain) = (Some(budget.chains()), budget.a_tenth_more(objective));
            let values = [Some(price.get()), chains, budget.fresh, budget.age, gain];
            for (family, value) in of_each.into_iter().zip(values) {
                value.into_iter().for_each(|value| _ = family.get_or_create(&label).set(value));
            }
            for (calls, value) in [
                ("allowed", budget.allowed),
                ("others", budget.others),
                ("wanted", budget.wanted),
                ("made", budget.made),
            ] {
                self.budget_calls.get_or_create(&ByCalls { budget: name.to_owned(), calls }).set(value);
            }
        }
    }

    pub fn delays(&self, native: Option<i64>) {
        self.native_delays.set(native.is_some().into());
        self.broker_clock_ahead.set(native.unwrap_or_default() as f64 / 1_000.0);
    }

    pub fn certificates(&self, certificates: &[Certificate]) {
        for Certificate { whose, ends } in certificates {
            self.certificates.get_or_create(&ByWhose { whose: whose.as_str() }).set(seconds(*ends));
        }
    }

    /// Of a throttle with keys, the one that has used or is held most counts.
    pub fn throttled(&self, throttles: &[Throttled]) {
        let mut windows = Vec::new();
        for throttled in throttles {
            let label = ByThrottle { throttle: throttled.name.clone() };
            for (n, window) in throttled.limits.windows().enumerate() {
                let used = throttled.keys.iter().filter_map(|(_, view)| view.used.get(n)).map(|(_, used)| *used).max();
                let window_label = ByWindow { throttle: throttled.name.clone(), per: short_duration(window.per) };
                self.allowed.get_or_create(&window_label).set(window.allow.into());
                self.used.get_or_create(&window_label).set(used.unwrap_or(0).into());
                windows.push(window_label);
            }
            let held = throttled.keys.iter().filter_map(|(_, view)| view.held.as_ref()).map(|held| held.until);
            let held = held.chain([throttled.orders.held_until()]).max().unwrap_or(0);
            let left = Duration::from_micros(u64::try_from(held - throttled.now).unwrap_or(0));
            let breaker = throttled.keys.iter().filter(|(_, view)| view.tripped);
            let breaker = breaker.map(|(_, view)| if view.held.is_some() { 2 } else { 1 }).max();
            self.held.get_or_create(&label).set(left.as_secs_f64());
            self.breaker.get_or_create(&label).set(breaker.unwrap_or(0));
            let apart = throttled.keys.iter().filter_map(|(_, view)| view.budget).map(|(apart, _)| apart).max();
            self.apart.get_or_create(&label).set(apart.unwrap_or_default().as_secs_f64());
            self.ordered.get_or_create(&label).set(throttled.orders.limits.is_some().into());
            self.keys.get_or_create(&label).set(i64::try_from(throttled.remembered).unwrap_or(i64::MAX));
        }
        let mut before = self.windows.lock();
        for gone in before.iter().filter(|window| !windows.contains(window)) {
            self.allowed.remove(gone);
            self.used.remove(gone);
        }
        *before = windows;
    }

    pub fn census(&self, census: &Census, (at, wall_clock): (Time, &WallClock), took: Duration) {
        let mut counted = self.counted.lock();
        let chains = |state, queue: &str| ByState { state, queue: queue.to_owned() };
        for gone in counted.iter().filter(|queue| !census.queues.iter().any(|q| q.queue == **queue)) {
            for state in ["sleeping", "due", "running"] {
                self.chains.remove(&chains(state, gone));
            }
            self.overdue.remove(&ByQueue { queue: gone.clone() });
            self.held_chains.remove(&ByQueue { queue: gone.clone() });
            self.unsent.remove(&ByQueue { queue: gone.clone() });
        }
        for queue in &census.queues {
            let label = ByQueue { queue: queue.queue.clone() };
            self.chains.get_or_create(&chains("sleeping", &queue.queue)).set(queue.sleeping);
            self.chains.get_or_create(&chains("due", &queue.queue)).set(queue.due);
            self.chains.get_or_create(&chains("running", &queue.queue)).set(queue.running);
            self.overdue.get_or_create(&label).set(queue.overdue);
            self.held_chains.get_or_create(&label).set(queue.held);
            self.unsent.get_or_create(&label).set(queue.unsent);
        }
        *counted = census.queues.iter().map(|queue| queue.queue.clone()).collect();
        for (state, count) in
            [("paused", census.paused), ("retired", census.retired), ("quarantined", census.quarantined)]
        {
            self.chains.get_or_create(&chains(state, "")).set(count);
        }
        self.backlog.clear();
        let none = census.queues.iter().map(|queue| (&queue.queue, &0));
        for (queue, messages) in none.chain(&census.backlog) {
            self.backlog.get_or_create(&ByQueue { queue: queue.clone() }).set(*messages);
        }
        self.oldest.set(census.oldest_due().map_or(0.0, |due| at.since(due).as_secs_f64()));
        self.failures.set(census.failures);
        self.recovered.set(census.recovered);
        self.quarantined.set(census.quarantined_messages);
        self.kept_jobs.set(census.kept_jobs);
        self.census_at.set(seconds(wall_clock.wall(at)));
        self.clock_ahead.set(wall_clock.ahead() as f64 / 1_000.0);
        self.clock_sets.set(i64::try_from(wall_clock.sets().count()).unwrap_or(i64::MAX));
        self.clock_set_at.set(wall_clock.last_set().map_or(0.0, |at| seconds(wall_clock.showed(at))));
        self.census_took.set(took.as_secs_f64());
    }
}

fn seconds(at: Time) -> f64 {
    at.as_millis() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Telemetry;
    use roundelay_ledger::QueueCensus;
    use roundelay_model::fresh::Price;

    #[test]
    fn a_budget_is_told_once_it_has_a_price_and_until_it_is_gone() {
        let telemetry = Telemetry::default();
        let price = Price::begin(Objective::Age, Duration::from_secs(60), 1.0);
        let known = Budget { price: Some(price), allowed: 2.0, made: 1.5, age: Some(7.0), ..Budget::default() };
        let of = |name, budget: &Budget| (name, Arc::new(budget.clone()), Objective::Age);
        telemetry.budgets([of("a", &known), of("b", &Budget::default())].into_iter());
        let text = telemetry.render();
        for line in [
            "roundelay_budget_calls_per_second{budget=\"a\",calls=\"allowed\"} 2",
            "roundelay_budget_calls_per_second{budget=\"a\",calls=\"made\"} 1.5",
            "roundelay_budget_age_seconds{budget=\"a\"} 7",
            "roundelay_budget_price{budget=\"a\"}",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("budget=\"b\""), "{text}");
        telemetry.budgets(std::iter::empty());
        assert!(!telemetry.render().contains("budget=\"a\""));
    }

    /// A queue of which nothing waits is told, too: who looks at it sees that it is so.
    #[test]
    fn the_backlog_of_each_queue_is_told() {
        let telemetry = Telemetry::default();
        let queue = |name: &str| QueueCensus { queue: name.into(), ..QueueCensus::default() };
        let backlog = [("b".to_owned(), 12), ("roundelay.lane.1.b".to_owned(), 3)].into();
        let census = Census { queues: vec![queue("a"), queue("b")], backlog, ..Census::default() };
        telemetry.census(&census, (Time::default(), &WallClock::default()), Duration::ZERO);
        let text = telemetry.render();
        for (queue, messages) in [("a", 0), ("b", 12), ("roundelay.lane.1.b", 3)] {
            assert!(text.contains(&format!("roundelay_backlog_messages{{queue=\"{queue}\"}} {messages}")), "{text}");
        }
    }

    #[test]
    fn a_census_replaces_the_one_before() {
        let telemetry = Telemetry::default();
        let queue = |name: &str| QueueCensus { queue: name.into(), sleeping: 3, overdue: 1, ..QueueCensus::default() };
        let (at, took) = (Time::from_millis(90_500), Duration::from_millis(250));
        let before = Census { queues: vec![queue("a"), queue("b")], ..Census::default() };
        let never = WallClock::default();
        telemetry.census(&before, (at, &never), took);
        let oldest_due = Some(Time::from_millis(60_500));
        let held = QueueCensus { due: 5, held: 5, overdue: 0, ..queue("c") };
        telemetry.census(
            &Census { queues: vec![QueueCensus { oldest_due, ..queue("b") }, held], paused: 7, ..before },
            (at, &never.set(Time::from_millis(60_000), 3_600_000)),
            took,
        );
        let text = telemetry.render();
        assert!(!text.contains("queue=\"a\""), "{text}");
        for line in [
            "roundelay_chains{state=\"sleeping\",queue=\"b\"} 3",
            "roundelay_chains{state=\"paused\",queue=\"\"} 7",
            "roundelay_chains_overdue{queue=\"b\"} 1",
            "roundelay_chains_held{queue=\"c\"} 5",
            "roundelay_oldest_overdue_seconds 30.0",
            "roundelay_census_timestamp_seconds 3690.5",
            "roundelay_clock_ahead_seconds 3600.0",
            "roundelay_clock_sets 1",
            "roundelay_clock_set_timestamp_seconds 3660.0",
            "roundelay_census_duration_seconds 0.25",
        ] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in {text}");
        }
    }
}
