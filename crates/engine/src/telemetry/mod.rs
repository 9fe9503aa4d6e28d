//! What the engine has done, in figures.
//!
//! - `families`: every metric by name, as `docs/metrics.md` documents them.
//! - `figures`: what is counted for one queue, one kind, one throttle. The engine gets them once,
//!   at its start, so that a run looks up no label: it adds to atomics and to histograms.
//! - `fleet`: the workers of the ledger and the queues that they take from.
//! - `process`: CPU, memory and open files of this process.
//! - `notices`: log lines of what happens again and again, summed up.
//! - `lateness`: quantiles for people, beside the histograms for Prometheus.
//! - `text`: how it is written for Prometheus.

mod families;
pub mod figures;
mod fleet;
pub mod lateness;
pub mod notices;
pub mod process;
pub mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use roundelay_broker::rabbit::certificates::Certificate;
use roundelay_ledger::{Census, SeenWorker};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Lateness, Subject};
use roundelay_model::fresh::{Budget, Objective};
use roundelay_model::outcome::Verdict;
use roundelay_model::wall_clock::WallClock;

use crate::throttle::throttled::Throttled;
use families::Families;
pub use figures::{KindFigures, QueueFigures, Running, SlotCounts, ThrottleFigures, Waiting};
use fleet::FleetFamilies;
pub use lateness::{Latenesses, QueueReport};
pub use notices::Notices;
use process::Process;

/// The metrics of one worker, and the log lines that are summed up.
#[derive(Debug)]
pub struct Telemetry {
    /// Log lines of what happens again and again, summed up.
    pub notices: Arc<Notices>,
    registry: Registry,
    families: Families,
    fleet: FleetFamilies,
    process: Process,
    counts: [Counter; COUNTS],
    queues: Mutex<BTreeMap<String, Arc<QueueFigures>>>,
    throttles: Mutex<BTreeMap<String, Arc<ThrottleFigures>>>,
}

/// What a worker counts in all. Prometheus gets those from [`Count::LeaseLost`] on; the others it gets by kind and
/// queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Handlers started.
    Started,
    /// Attempts that worked.
    Done,
    /// Attempts that failed and are tried again.
    Retried,
    /// Ticks and jobs that failed for good.
    Failed,
    /// Attempts that were postponed without being counted as attempts.
    Snoozed,
    /// Chains that ended.
    Retired,
    /// Ticks that wait for a batch.
    FannedOut,
    /// Ticks that came too soon after another start, and jobs that a guard refused or that run elsewhere already.
    Dropped,
    /// Ticks that did not start for another reason of their schedule.
    Skipped,
    /// Runs that were ended because their time was up.
    Cut,
    /// Runs that ended after another worker had claimed their tick: their end is not recorded.
    Fenced,
    /// Times that this worker renewed its lease too late, that another worker took it for dead, or that one of its
    /// claims was gone: another worker has the tick, or the chain has begun anew.
    LeaseLost,
    /// Messages that came for a tick already past.
    Stale,
    /// Messages that led to no run: the chain is paused, has ended, waits for its batch or manual run, or runs already.
    Idle,
    /// Messages sent on to a further rung.
    Rearmed,
    /// Messages that came before the time until which they were to sleep on their queue.
    Early,
    /// Messages that had woken, and went to the end of their queue.
    GaveWay,
    /// Messages that could not be used.
    Quarantined,
    /// Messages given back to the broker, which delivers them again.
    Requeued,
    /// Messages that catch-up sent again.
    Resent,
    /// Runs that were set aside because workers died over them.
    SetAside,
    /// Ticks that the ledger has handed out: the broker was away, or another worker silent.
    HandedOut,
    /// Messages of fair queues that were left to the backlog.
    Left,
    /// Publishes that had to be repeated.
    Republished,
    /// Spans that a collector has taken.
    SpansSent,
    /// Spans that it has not, and will not.
    SpansDropped,
}

const COUNTS: usize = Count::SpansDropped as usize + 1;

impl Default for Telemetry {
    fn default() -> Self {
        let counts: [Counter; COUNTS] = Default::default();
        let (families, mut registry) = Families::register(&counts);
        let process = Process::register(&mut registry);
        let fleet = FleetFamilies::register(registry.sub_registry_with_prefix("roundelay"));
        let (notices, queues, throttles) = (Arc::default(), Mutex::default(), Mutex::default());
        Self { notices, registry, families, fleet, process, counts, queues, throttles }
    }
}

impl Telemetry {
    /// Adds 1 to a counter.
    pub fn count(&self, what: Count) {
        self.counts[what as usize].inc();
    }

    /// Adds `many` to a counter.
    pub fn add(&self, what: Count, many: u64) {
        self.counts[what as usize].inc_by(many);
    }

    /// What a counter has come to.
    pub fn get(&self, what: Count) -> u64 {
        self.counts[what as usize].get()
    }

    /// Counts an attempt by its verdict.
    pub fn verdict(&self, verdict: Verdict) {
        self.count(match verdict {
            Verdict::Done => Count::Done,
            Verdict::Retried => Count::Retried,
            Verdict::Failed => Count::Failed,
            Verdict::Snoozed => Count::Snoozed,
            Verdict::Retired => Count::Retired,
            Verdict::FannedOut => Count::FannedOut,
            Verdict::Dropped => Count::Dropped,
            Verdict::Skipped => Count::Skipped,
            Verdict::Cut => Count::Cut,
        });
    }

    /// The figures of a platform queue.
    pub fn queue(&self, name: &str) -> Arc<QueueFigures> {
        let mut queues = self.queues();
        if let Some(figures) = queues.get(name) {
            return figures.clone();
        }
        let started = self.counts[Count::Started as usize].clone();
        let figures = Arc::new(QueueFigures::new(&self.families, name, started));
        queues.insert(name.to_owned(), figures.clone());
        figures
    }

    /// The figures of a kind, to be kept: each call looks its labels up.
    pub fn kind(&self, name: &str) -> KindFigures {
        KindFigures::new(&self.families, name)
    }

    /// The figures of a throttle.
    pub fn throttle(&self, name: &str) -> Arc<ThrottleFigures> {
        let mut throttles = self.throttles();
        let figures = || Arc::new(ThrottleFigures::new(&self.families, name));
        throttles.entry(name.to_owned()).or_insert_with(figures).clone()
    }

    /// What becomes of a throttle's slots.
    pub fn slots(&self, name: &str) -> SlotCounts {
        SlotCounts::new(&self.families, name)
    }

    /// Sets the gauges of throttles.
    pub fn throttled(&self, throttles: &[Throttled]) {
        self.families.throttled(throttles);
    }

    /// Observes a delay that begins, and is planned to take this many hops.
    pub fn observe_hops(&self, hops: u32) {
        self.families.hops.observe(f64::from(hops));
    }

    /// Sets the worker's name and start time.
    pub fn introduce(&self, worker: &str, at: Time) {
        self.families.introduce(worker, at);
    }

    /// Sets the gauges of chains. `at` is the ledger's time, `took` how long the ledger was asked.
    pub fn census(&self, census: &Census, at: (Time, &WallClock), took: Duration) {
        self.families.census(census, at, took);
    }

    /// Sets the gauges of workers and of what was ordered. `queues` are those of the configuration, each with its
    /// throttle.
    pub fn fleet(
        &self,
        queues: &BTreeMap<String, Option<String>>,
        workers: &[SeenWorker],
        orders: &BTreeMap<Subject, FleetOrders>,
        now: Time,
    ) {
        self.fleet.set(queues, workers, orders, now);
    }

    /// Sets whether the broker and the ledger can be used, and whether this worker is ready.
    pub fn up(&self, broker: bool, ledger: bool, ready: bool) {
        self.families.up(broker, ledger, ready);
    }

    /// Sets how many rungs were hot, and so have siblings.
    pub fn hot_rungs(&self, hot: usize) {
        self.families.hot_rungs(hot);
    }

    /// Sets the gauges of budgets of calls.
    pub(crate) fn budgets<'b>(&self, budgets: impl Iterator<Item = (&'b str, Arc<Budget>, Objective)>) {
        self.families.budgets(budgets);
    }

    /// Sets how messages sleep: on rungs, or natively on a broker whose clock is ahead by so many milliseconds.
    pub fn delays(&self, native: Option<i64>) {
        self.families.delays(native);
    }

    /// Sets when the certificates of the connection to the broker expire.
    pub fn certificates(&self, certificates: &[Certificate]) {
        self.families.certificates(certificates);
    }

    /// Everything, in Prometheus' text format.
    pub fn render(&self) -> String {
        self.process.look();
        text::render(&self.registry)
    }

    /// Forgets the latenesses and waits so far, to measure a part of a run on its own.
    pub fn reset_lateness(&self) {
        self.throttles().values().for_each(|figures| figures.waits().reset());
        self.queues().values().for_each(|figures| figures.latenesses().reset());
    }

    /// How late attempts started, over all queues.
    pub fn lateness(&self) -> Lateness {
        let mut all = Latenesses::default();
        self.queues().values().for_each(|figures| all.add(&figures.latenesses()));
        all.summary()
    }

    /// A summary of each queue's figures.
    pub fn by_queue(&self) -> BTreeMap<String, QueueReport> {
        self.queues().iter().map(|(queue, figures)| (queue.clone(), figures.report())).collect()
    }

    /// How long was waited for slots, over all throttles.
    pub fn waits(&self) -> Latenesses {
        let mut all = Latenesses::default();
        self.throttles().values().for_each(|figures| all.add(&figures.waits()));
        all
    }

    fn throttles(&self) -> MutexGuard<'_, BTreeMap<String, Arc<ThrottleFigures>>> {
        self.throttles.lock()
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<String, Arc<QueueFigures>>> {
        self.queues.lock()
    }
}
