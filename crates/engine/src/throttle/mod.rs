//! Pacing starts: a limit for each window, for all workers together.
//!
//! One [`Throttle`] is shared by all queues that name it. Who waits stands in one line for each key,
//! queues of higher priority first, and then jobs that are due first. Where the throttle is fair, tenants have turns
//! within a priority, as [`roundelay_model::pacing::fair`] says; [`roundelay_model::pacing::slots`] says when the
//! next start may happen. By default the ledger hands the slots out, for all workers; with `scope = "worker"` each
//! worker counts for itself, by the same arithmetic.
//!
//! A slot is for now: a job that does not use its slot in time hands it on, or it is lost. It is had a little
//! before it opens, so that what must be done before a start can be done meanwhile. While the ledger
//! does not answer there are no slots, since starts that are not counted get users banned.

#[cfg(test)]
mod fair_tests;
mod gate;
mod orders_cache;
mod serve_waiters;
pub mod throttled;
pub mod upstream;
mod wait_queue;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::job::Job;
use roundelay_model::pacing::fair::{Shares, Tenant};
use roundelay_model::pacing::latency::Latency;
use roundelay_model::pacing::slots::{Feedback, Limits, Micros, State};
use roundelay_model::pacing::{SlotRequest, SlotResponse, ThrottleScope, ThrottleSettings, serve};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::telemetry::Telemetry;
use crate::telemetry::figures::SlotCounts;
use gate::Gate;
use orders_cache::OrdersCache;
use wait_queue::{Rank, WaitQueue};

/// Of the time in which a slot may be used, this part is left to a start's way to the upstream.
const ON_THE_WAY: u32 = 4;
/// A slot was handed out before a hold if it opens so much earlier than that ends: clocks are not all alike.
const HANDED_OUT_AFTER: Duration = Duration::from_millis(200);
/// A job that is postponed looks again after this long, since the hold may be released.
const MAX_WAIT: Duration = Duration::from_secs(5 * 60);
/// At most so many limits without a waiter are looked at at once, to forget those that are idle.
const MAX_IDLE_LIMITS: usize = 1_000;

/// All throttles of a configuration, by name.
#[derive(Clone, Default)]
pub struct Throttles {
    by_name: BTreeMap<String, Arc<Throttle>>,
    board: Option<Arc<OrdersCache>>,
}

impl Throttles {
    /// Which of the limits of each throttle with a key `job` is under, and for which tenant each fair one has it, by the
    /// throttle's name.
    pub(crate) fn keys_of(&self, job: &Job) -> BTreeMap<String, (String, Tenant)> {
        let key = |throttle: &Throttle| match &*throttle.settings() {
            ThrottleSettings { key: Some(path), .. } => Some((path.of(job), Tenant::default())),
            ThrottleSettings { fair: Some(path), .. } => Some((String::new(), path.of(job).into())),
            _ => None,
        };
        self.by_name.iter().filter_map(|(name, throttle)| Some((name.clone(), key(throttle)?))).collect()
    }

    /// Throttles with these settings. Only a measurement of what gates cost has them not `gated`.
    pub fn new(
        settings: &BTreeMap<String, ThrottleSettings>,
        ledger: &Arc<dyn Ledger>,
        telemetry: &Telemetry,
        shares: &Arc<Shares>,
        gated: bool,
    ) -> Self {
        let board = Arc::new(OrdersCache::new(ledger.clone(), telemetry.notices.clone()));
        let throttle = |(name, settings): (&String, &ThrottleSettings)| {
            let (ledger, counts) = (ledger.clone(), telemetry.slots(name));
            (
                name.clone(),
                Throttle::new(name, settings.clone(), ledger, (board.clone(), shares.clone()), counts, gated),
            )
        };
        Self { by_name: settings.iter().map(throttle).collect(), board: Some(board) }
    }

    /// Slots for all workers are asked for only while this is true: who has none to claim by would take them from those
    /// who have.
    pub fn only_while(&self, able: impl Fn() -> bool + Send + Sync + 'static) {
        if let Some(board) = &self.board {
            board.only_while(able);
        }
    }

    /// The throttle called `name`.
    pub fn get(&self, name: &str) -> Option<Arc<Throttle>> {
        self.by_name.get(name).cloned()
    }

    /// The settings of each, by name.
    pub fn settings(&self) -> Vec<(String, ThrottleSettings)> {
        self.by_name.iter().map(|(name, throttle)| (name.clone(), (*throttle.settings()).clone())).collect()
    }

    /// Takes over other settings of those that are there.
    pub fn take_over(&self, settings: &BTreeMap<String, ThrottleSettings>) {
        for (name, settings) in settings {
            if let Some(throttle) = self.by_name.get(name) {
                throttle.take_over(settings.clone());
            }
        }
    }
}

/// A limit on starts.
pub struct Throttle {
    name: String,
    settings: RwLock<Arc<ThrottleSettings>>,
    /// The limits in force, as far as this worker has heard.
    limits: RwLock<Option<Arc<Limits>>>,
    ledger: Arc<dyn Ledger>,
    board: Arc<OrdersCache>,
    shares: Arc<Shares>,
    counts: SlotCounts,
    /// What it remembers, by key, when each worker counts for itself.
    own: Mutex<HashMap<String, State>>,
    began: Instant,
    latency: Mutex<Latency>,
    /// Who waits, by key.
    lines: Mutex<HashMap<String, Arc<WaitQueue>>>,
    /// Counts this worker's starts, independently of the slots that the ledger hands out.
    gate: Mutex<Option<Arc<Gate>>>,
    gated: bool,
    this: Weak<Self>,
}

/// What a start needs.
#[derive(Clone, Debug, Default)]
pub struct Want {
    /// Higher goes first.
    pub priority: i32,
    /// It is for a run that has begun, and goes before all of its priority that have not.
    pub begun: bool,
    /// For whom it is, where tenants share the starts.
    pub tenant: Tenant,
    /// Of equals, who is due first.
    pub due: Time,
    /// How many starts it counts for.
    pub cost: u32,
    /// It is part of a start that tries whether the upstream works again.
    pub probe: bool,
}

/// Leave to start when it opens. Dropped without being used, it goes to the next waiter.
#[must_use]
pub struct Slot {
    opens: Instant,
    expires: Instant,
    cost: u32,
    /// Whether the start is to try if the upstream works again.
    pub probe: bool,
    /// Only a probe of a half-open breaker may have it.
    besides: bool,
    /// What it has to pass, and as which key.
    gate: Option<(Arc<Gate>, Arc<String>)>,
    /// Taken once the slot is used.
    line: Option<Arc<WaitQueue>>,
}

impl Slot {
    fn of(mut self, line: Arc<WaitQueue>) -> Self {
        self.line = Some(line);
        self
    }

    /// Waits until it opens and uses it, unless that comes too late, or an upstream wants no calls by then.
    pub async fn start(mut self) -> bool {
        sleep_until(self.opens).await;
        let in_time = Instant::now() <= self.expires;
        let gate = self.gate.take();
        let Some(line) = self.line.take() else { return in_time };
        // The slot was asked for before there was a hold.
        let held = line.held_until().is_some_and(|until| until > self.opens + HANDED_OUT_AFTER);
        if held {
            line.counts().held.inc();
        } else if !in_time {
            line.counts().late.inc();
        }
        if !in_time || held {
            return false;
        }
        let passes = gate.is_none_or(|(gate, key)| gate.passes(&key, self.cost));
        if !passes {
            line.counts().refused.inc();
        }
        passes
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            let Self { opens, expires, cost, probe, besides, .. } = *self;
            let gate = self.gate.take();
            line.hand_back(Slot { opens, expires, cost, probe, besides, gate, line: None });
        }
    }
}

impl Throttle {
    fn new(
        name: &str,
        settings: ThrottleSettings,
        ledger: Arc<dyn Ledger>,
        (board, shares): (Arc<OrdersCache>, Arc<Shares>),
        counts: SlotCounts,
        gated: bool,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            name: name.to_owned(),
            settings: RwLock::new(Arc::new(settings)),
            limits: RwLock::default(),
            ledger,
            board,
            shares,
            counts,
            own: Mutex::default(),
            began: Instant::now(),
            latency: Mutex::default(),
            lines: Mutex::default(),
            gate: Mutex::default(),
            gated,
            this: this.clone(),
        })
    }

    /// Its settings now.
    pub fn settings(&self) -> Arc<ThrottleSettings> {
        self.settings.read().clone()
    }

    fn take_over(&self, settings: ThrottleSettings) {
        *self.settings.write() = Arc::new(settings);
        self.note(None);
        // Jobs that wait by the old settings ask again by the new ones.
        self.lines().values().for_each(|line| line.hurry());
    }

    /// The limits in force: by an operator's word, if this worker has heard of one, or else as configured.
    pub fn limits(&self) -> Arc<Limits> {
        let heard = self.limits.read().clone();
        heard.unwrap_or_else(|| self.settings().limits.clone())
    }

    fn note(&self, limits: Option<Arc<Limits>>) {
        *self.limits.write() = limits;
    }

    /// The gate for starts of this cost under these limits. Other limits, and a larger cost than any before, make
    /// another one.
    fn gate(&self, limits: &Arc<Limits>, cost: u32) -> Option<Arc<Gate>> {
        if !self.gated {
            return None;
        }
        let mut gate = self.gate.lock();
        if !gate.as_ref().is_some_and(|gate| gate.is_for(limits, cost)) {
            *gate = Gate::new(limits.clone(), cost).map(Arc::new);
        }
        gate.clone()
    }

    /// Waits for a slot of `key`. A wait that is given up costs no slot.
    pub async fn slot(&self, key: &str, want: Want) -> Slot {
        match self.slot_until(key, want, None).await {
            Some(slot) => slot,
            // The runtime ends.
            None => std::future::pending().await,
        }
    }

    /// The same, but for no longer than `patience`.
    ///
    /// # Errors
    /// How long the wait takes about, as soon as that is known to be longer: see [`Throttle::wait_of`].
    pub async fn slot_within(&self, key: &str, want: Want, patience: Duration) -> Result<Slot, Duration> {
        let wait = self.wait_of(key, &want);
        if wait > patience {
            return Err(wait);
        }
        let until = Instant::now() + patience;
        let slot = timeout_at(until, self.slot_until(key, want.clone(), Some(until))).await;
        slot.ok().flatten().ok_or_else(|| self.wait_of(key, &want))
    }

    async fn slot_until(&self, key: &str, want: Want, until: Option<Instant>) -> Option<Slot> {
        let want = self.shared(want);
        let (line, joined) = self.at_line(key, |line| line.join(want, until));
        let waiting = Waits { line, rank: joined.rank };
        let slot = joined.slot.await;
        drop(waiting);
        slot.ok()
    }

    /// Where tenants share nothing, all are one.
    fn shared(&self, want: Want) -> Want {
        match self.settings().fair {
            Some(_) => want,
            None => Want { tenant: Tenant::default(), ..want },
        }
    }

    /// Does something at the line of `key`, and has it served if no task does so yet.
    fn at_line<T>(&self, key: &str, act: impl FnOnce(&WaitQueue) -> (T, bool)) -> (Arc<WaitQueue>, T) {
        let mut lines = self.lines();
        if lines.len() > MAX_IDLE_LIMITS && lines.len().is_power_of_two() && !lines.contains_key(key) {
            lines.retain(|_, line| line.is_needed());
        }
        let line = lines
            .entry(key.to_owned())
            .or_insert_with(|| Arc::new(WaitQueue::new(self.counts.clone(), self.shares.clone())))
            .clone();
        let (value, first) = act(&line);
        if first && let Some(this) = self.this.upgrade() {
            // Looked at again under the same lock before the task ends.
            tokio::spawn(serve_waiters::keep_serving(this, key.to_owned(), line.clone()));
        }
        (line, value)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long a wait for a slot of `key` takes about, as far as this worker knows: for the end of a hold,
    /// and for those who stand before; five minutes if it is more.
    pub fn wait_of(&self, key: &str, want: &Want) -> Duration {
        let line = self.lines().get(key).cloned();
        let want = self.shared(want.clone());
        let before = line.as_ref().map_or(0, |line| line.cost_before(&want));
        let held = line.and_then(|line| line.opens()).map_or(Duration::ZERO, |until| until - Instant::now());
        let turn = self.limits().spacing().saturating_mul(u32::try_from(before).unwrap_or(u32::MAX));
        (held + turn).min(MAX_WAIT)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lines().values().map(|line| line.waiting()).sum()
    }

    /// Whether starts of `key` have failed, as far as this worker knows, so that one that works is news.
    fn is_failing(&self, key: &str) -> bool {
        self.lines().get(key).is_some_and(|line| line.is_failing())
    }

    /// Whether nothing of `key` starts, as far as this worker knows.
    pub fn is_held(&self, key: &str) -> bool {
        self.lines().get(key).is_some_and(|line| line.held_until().is_some())
    }

    /// Nothing of `key` starts for this long: at once in this worker, and when this returns in all of them.
    pub async fn hold(&self, key: &str, wait: Duration, why: &str) {
        let until = self.after(wait);
        let (_, told) = self.at_line(key, |line| {
            let told = line.tell(Feedback::Hold { until, why: why.to_owned() });
            // An answer that does not know of it yet does not end it: there is still something to tell.
            line.hold(Instant::now() + wait);
            told
        });
        tracing::warn!(throttle = self.name, key, why, "held for {}", short_duration(wait));
        heard(told).await;
    }

    /// How much of a budget of `key` remains, and after how long the budget is filled again.
    async fn budget(&self, key: &str, remaining: u32, reset: Duration) {
        let enough = self.settings().budget.as_ref().and_then(|budget| budget.slow_below).unwrap_or(u32::MAX);
        let line = self.lines().get(key).cloned();
        // A queue that does not exist any more has slowed no start.
        let news = line.map_or(remaining < enough, |line| line.wants_budget(remaining, enough));
        if news {
            if remaining == 0 {
                self.at_line(key, |line| (line.hold(Instant::now() + reset), false));
            }
            self.tell(key, Feedback::Budget { remaining, reset: self.after(reset), enough }).await;
        }
    }

    /// Tells it something about `key`; returns when all workers are bound by it.
    pub async fn tell(&self, key: &str, word: Feedback) {
        heard(self.at_line(key, |line| line.tell(word)).1).await;
    }

    /// The time after this long, by this worker's clock: a word may wait for long until it can be told.
    fn after(&self, wait: Duration) -> Micros {
        self.here().saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX))
    }

    async fn ask(&self, request: SlotRequest, scope: ThrottleScope) -> Result<SlotResponse, LedgerError> {
        if scope == ThrottleScope::Worker {
            let orders = self.board.of(&self.name).await;
            let orders = orders.moved(self.here() - self.there());
            let mut own = self.own.lock();
            let now = self.here();
            if own.len() > MAX_IDLE_LIMITS && own.len().is_power_of_two() {
                own.retain(|_, state| state.idle_at(&orders.limits(&request.limits)) > now);
            }
            return Ok(serve(own.entry(request.key.clone()).or_default(), &orders, &request, now, None));
        }
        let answers = self.ledger.slots(vec![request]).await?;
        answers.into_iter().next().ok_or(LedgerError::Closed)
    }

    fn latency(&self) -> MutexGuard<'_, Latency> {
        self.latency.lock()
    }

    /// This worker's clock, which cannot be set. It never shows the beginning of time, which a throttle takes for
    /// never.
    fn here(&self) -> Micros {
        i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX - 1) + 1
    }

    /// The ledger's time.
    fn there(&self) -> Micros {
        self.ledger.now().as_millis() * 1_000
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<String, Arc<WaitQueue>>> {
        self.lines.lock()
    }
}

/// A place in a line, given up when it is dropped.
struct Waits {
    line: Arc<WaitQueue>,
    rank: Rank,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.line.leave(&self.rank);
    }
}

async fn heard(told: tokio::sync::oneshot::Receiver<()>) {
    // It cannot be lost while the runtime lives.
    let _ = told.await;
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::Ordering;

    use governor::clock::Clock as _;
    use governor::middleware::NoOpMiddleware;
    use governor::state::{InMemoryState, NotKeyed};
    use governor::{Quota, RateLimiter};
    use tokio::time::sleep;

    use super::*;
    use roundelay_ledger::LedgerUrl;
    use roundelay_ledger::sqlite::SqliteLedger;
    use roundelay_model::clock::{Clock, Elapsed, Entropy};
    use roundelay_model::pacing::orders::ThrottleOrder;
    use roundelay_model::pacing::slots::Window;

    pub(super) fn settings(allow: u32, secs: u64, burst: u32, scope: ThrottleScope) -> ThrottleSettings {
        let window = Window { allow, per: Duration::from_secs(secs) };
        let limits = Arc::new(Limits { window, burst, also: Vec::new() });
        ThrottleSettings {
            limits,
            scope,
            key: None,
            fair: None,
            block: Duration::from_secs(60),
            budget: None,
            cost_header: None,
            breaker: None,
        }
    }

    pub(super) fn ledger() -> Arc<dyn Ledger> {
        let clock = Clock::starting_at(Time::from_millis(1_700_000_000_000));
        Arc::new(SqliteLedger::open(&LedgerUrl::Memory, clock, &Entropy::seeded(1)).unwrap())
    }

    fn throttle(settings: ThrottleSettings) -> Arc<Throttle> {
        let ledger = ledger();
        let board = Arc::new(OrdersCache::new(ledger.clone(), Arc::default()));
        Throttle::new("t", settings, ledger, (board, Arc::default()), SlotCounts::default(), true)
    }

    /// A throttle of each scope.
    fn both(allow: u32, secs: u64, burst: u32) -> [Arc<Throttle>; 2] {
        [ThrottleScope::Fleet, ThrottleScope::Worker].map(|scope| throttle(settings(allow, secs, burst, scope)))
    }

    /// One by which a worker counts for itself, among all of a configuration.
    pub(super) fn alone(allow: u32, secs: u64) -> (Throttles, Arc<Throttle>) {
        let settings = BTreeMap::from([("t".to_owned(), settings(allow, secs, 1, ThrottleScope::Worker))]);
        let throttles = Throttles::new(&settings, &ledger(), &Telemetry::default(), &Arc::default(), true);
        let throttle = throttles.get("t").unwrap();
        (throttles, throttle)
    }

    pub(super) fn want(priority: i32, due: i64) -> Want {
        Want { priority, due: Time::from_millis(due), cost: 1, ..Want::default() }
    }

    /// The row is lost each second, as if an older copy of the ledger were restored again and again: each time the
    /// ledger takes it that nothing has started for long.
    #[tokio::test(start_paused = true)]
    async fn the_gate_stops_what_a_ledger_that_was_set_back_lets_through() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ledger.db");
        let clock = Clock::starting_at(Time::from_millis(1_700_000_000_000));
        let ledger = SqliteLedger::open(&LedgerUrl::Sqlite(file.clone()), clock, &Entropy::seeded(1)).unwrap();
        let ledger: Arc<dyn Ledger> = Arc::new(ledger);
        let board = Arc::new(OrdersCache::new(ledger.clone(), Arc::default()));
        let counts = SlotCounts::default();
        let throttle = Throttle::new(
            "t",
            settings(5, 60, 1, ThrottleScope::Fleet),
            ledger,
            (board, Arc::default()),
            counts.clone(),
            true,
        );
        let thief = rusqlite::Connection::open(&file).unwrap();
        let mut starts = 0;
        for _ in 0..120 {
            starts += u64::from(throttle.slot("", want(0, 0)).await.start().await);
            assert_eq!(thief.execute("DELETE FROM throttles", []).unwrap(), 1, "the ledger had counted it");
            sleep(Duration::from_secs(1)).await;
        }
        assert!((10..=13).contains(&starts), "{starts} starts in two minutes and a little, of 10 that are allowed");
        assert_eq!(counts.refused.get(), counts.granted.get() - starts, "all others were refused, and that is counted");
    }

    /// Why governor is the gate of a throttle that a worker counts for itself, and does not hand its slots out: with a
    /// burst it either passes the limit or leaves most of it unused, and what costs more than the burst never starts.
    #[tokio::test(start_paused = true)]
    async fn gate_compared_with_slots_at_five_per_minute() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
        let judge = |starts: &[i64]| (roundelay_model::pacing::windows::check(starts, 5, minute).most, starts.len());
        let quota =
            |period: u64, burst: u32| Quota::with_period(Duration::from_secs(period)).unwrap().allow_burst(many(burst));
        // The burst, a quota; the most starts in any minute and all of an hour, by governor and by slots.
        let table = [
            (1, quota(12, 1), (5, 300), (5, 296)),
            (5, quota(12, 5), (9, 304), (5, 300)),
            (5, quota(60, 5), (5, 64), (5, 300)),
        ];
        for (burst, quota, by_governor, by_slots) in table {
            let limiter: RateLimiter<NotKeyed, _, _, NoOpMiddleware<Duration>> =
                RateLimiter::new(quota, InMemoryState::default(), Elapsed::default());
            let (begin, mut starts) = (Instant::now(), Vec::new());
            while begin.elapsed() < hour {
                match limiter.check() {
                    Ok(()) => starts.push(begin.elapsed().as_micros() as i64),
                    Err(refused) => sleep(refused.wait_time_from(limiter.clock().now())).await,
                }
            }
            assert_eq!(judge(&starts), by_governor, "governor, burst {burst}");
            assert!(limiter.check_n(many(burst + 1)).is_err(), "what costs more than the burst never starts");

            let throttle = throttle(settings(5, 60, burst, ThrottleScope::Worker));
            let (begin, mut starts) = (Instant::now(), Vec::new());
            while begin.elapsed() < hour {
                assert!(throttle.slot("", want(0, 0)).await.start().await);
                starts.push(begin.elapsed().as_micros() as i64);
            }
            // The last was waited for.
            starts.pop();
            assert_eq!(judge(&starts), by_slots, "slots, burst {burst}");
            let dear = Want { cost: 5, ..want(0, 0) };
            assert!(throttle.slot("", dear).await.start().await, "what costs all of a window waits for its room");
        }
    }

    fn many(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_evenly_spaced_after_the_burst() {
        for throttle in both(60, 60, 3) {
            let start = Instant::now();
            let mut at = Vec::new();
            for _ in 0..6 {
                assert!(throttle.slot("", want(0, 0)).await.start().await);
                at.push(start.elapsed().as_secs_f64().round() as u64);
            }
            assert_eq!(at, [0, 0, 0, 1, 2, 3]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn higher_priority_goes_first_then_who_is_due_first() {
        for throttle in both(1, 1, 1) {
            throttle.slot("", want(0, 0)).await.start().await;
            let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
            for (name, priority, due) in [("a", 0, 9), ("b", 0, 8), ("c", 5, 9), ("d", 5, 9)] {
                let (throttle, done) = (throttle.clone(), done.clone());
                tokio::spawn(async move {
                    throttle.slot("", want(priority, due)).await.start().await;
                    let _ = done.send(name);
                });
                tokio::task::yield_now().await;
            }
            let mut got = Vec::new();
            for _ in 0..4 {
                got.extend(order.recv().await);
            }
            assert_eq!(got, ["c", "d", "b", "a"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_have_wait_queues_of_their_own_that_are_removed_when_empty() {
        for throttle in both(1, 10, 1) {
            let start = Instant::now();
            let all = (0..500).map(|n| {
                let throttle = throttle.clone();
                tokio::spawn(async move { throttle.slot(&format!("k{}", n % 250), want(0, 0)).await.start().await })
            });
            for started in futures_util::future::join_all(all).await {
                assert!(started.unwrap());
            }
            assert_eq!(start.elapsed().as_secs(), 10);
            tokio::task::yield_now().await;
            assert_eq!(throttle.lines().len(), 0);
        }
    }

    /// Others can use the room that it would take meanwhile.
    #[tokio::test(start_paused = true)]
    async fn slot_that_comes_too_late_is_refused_at_once() {
        for throttle in both(1, 60, 1) {
            assert!(throttle.slot("k", want(0, 0)).await.start().await);
            tokio::time::sleep(Duration::from_secs(20)).await;
            let start = Instant::now();
            let wait = throttle.slot_within("k", want(0, 0), Duration::from_secs(2)).await.err().unwrap();
            assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
            assert!((40..42).contains(&wait.as_secs()), "{wait:?}");
            assert!(throttle.slot_within("k", want(0, 0), Duration::from_secs(45)).await.unwrap().start().await);
            assert!((40..42).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        }
    }

    /// A release, or a higher limit, need not reach a worker in which no job waits.
    #[tokio::test(start_paused = true)]
    async fn answer_about_a_key_is_believed_only_briefly() {
        for throttle in both(1, 1, 1) {
            throttle
                .tell("k", Feedback::Hold { until: throttle.after(Duration::from_secs(3_600)), why: "ban".into() })
                .await;
            let patience = Duration::from_secs(2);
            let wait = throttle.slot_within("k", want(0, 0), patience).await.err().unwrap();
            assert!(wait >= MAX_WAIT, "{wait:?}");
            let request = SlotRequest {
                throttle: "t".into(),
                key: "k".into(),
                limits: throttle.settings().limits.clone(),
                feedback: vec![Feedback::Release],
                requests: Vec::new(),
                ahead: 0,
            };
            // By another worker.
            throttle.ask(request, throttle.settings().scope).await.unwrap();
            tokio::time::sleep(Duration::from_secs(6)).await;
            assert!(throttle.slot_within("k", want(0, 0), patience).await.is_ok());
        }
    }

    /// The worker has stood still for longer than its lease, and each of its runs is overdue, so it would be the first
    /// to ask.
    #[tokio::test(start_paused = true)]
    async fn worker_that_cannot_claim_takes_no_slot_and_still_sends_feedback() {
        let able = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let all = BTreeMap::from([("t".to_owned(), settings(1, 1, 1, ThrottleScope::Fleet))]);
        let ledger = ledger();
        let throttles = Throttles::new(&all, &ledger, &Telemetry::default(), &Arc::default(), true);
        let its = able.clone();
        throttles.only_while(move || its.load(Ordering::Relaxed));
        let throttle = throttles.get("t").unwrap();
        let waits = tokio::spawn({
            let throttle = throttle.clone();
            async move { throttle.slot("", want(0, 0)).await.start().await }
        });
        sleep(Duration::from_secs(5)).await;
        throttle.tell("", Feedback::Release).await;
        assert!(!waits.is_finished());
        assert_eq!(throttle.counts.granted.get(), 0);
        let other = Throttles::new(&all, &ledger, &Telemetry::default(), &Arc::default(), true).get("t").unwrap();
        let start = Instant::now();
        assert!(other.slot("", want(0, 0)).await.start().await);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        able.store(true, Ordering::Relaxed);
        assert!(waits.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_given_up_costs_no_slot() {
        for throttle in both(1, 10, 1) {
            throttle.slot("", want(0, 0)).await.start().await;
            let start = Instant::now();
            let _ = tokio::time::timeout(Duration::from_secs(1), throttle.slot("", want(9, 0))).await;
            assert_eq!(throttle.waiting(), 0);
            throttle.slot("", want(0, 0)).await.start().await;
            assert_eq!(start.elapsed().as_secs(), 10);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slot_handed_back_goes_to_the_next_waiter_unless_it_has_expired() {
        for throttle in both(1, 10, 1) {
            let first = throttle.slot("", want(0, 0)).await;
            let start = Instant::now();
            let next = tokio::spawn({
                let throttle = throttle.clone();
                async move { throttle.slot("", want(0, 0)).await }
            });
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(first);
            let second = next.await.unwrap();
            assert_eq!(start.elapsed().as_millis(), 100, "at once");
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(!second.start().await, "its time counts from when it opened");
            throttle.slot("", want(0, 0)).await.start().await;
            assert_eq!(start.elapsed().as_secs(), 10);
            let counts = &throttle.counts;
            assert_eq!((counts.granted.get(), counts.late.get(), counts.unused.get()), (2, 1, 0));
            // A slot that comes back while no job waits is not used.
            drop(throttle.slot("", want(0, 0)).await);
            sleep(Duration::from_secs(5)).await;
            throttle.slot("", want(0, 0)).await.start().await;
            assert_eq!((counts.granted.get(), counts.late.get(), counts.unused.get()), (4, 1, 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_limits_hold_from_the_next_slot_on_and_a_hold_stops_all() {
        for throttle in both(1, 3_600, 1) {
            throttle.slot("", want(0, 0)).await.start().await;
            let start = Instant::now();
            let next = tokio::spawn({
                let throttle = throttle.clone();
                async move { throttle.slot("", want(0, 0)).await.start().await }
            });
            tokio::task::yield_now().await;
            throttle.take_over(settings(10, 1, 1, throttle.settings().scope));
            throttle.hold("", Duration::from_secs(20), "a test").await;
            assert!(next.await.unwrap());
            let waited = start.elapsed().as_secs();
            assert!((20..3_700).contains(&waited), "{waited} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_follow_an_order_within_moments() {
        for throttle in both(1, 3_600, 1) {
            let scope = throttle.settings().scope;
            let order = async |order| {
                throttle.ledger.order_throttle("t".into(), order, "ann".into()).await.unwrap();
            };
            let next = || {
                let throttle = throttle.clone();
                tokio::spawn(async move { throttle.slot("", want(0, 0)).await.start().await })
            };
            throttle.slot("", want(0, 0)).await.start().await;
            let waits = next();
            // Long enough for each waiter to have looked more than once.
            sleep(Duration::from_secs(10)).await;
            let start = Instant::now();
            order(ThrottleOrder::Limits { window: Window { allow: 1, per: Duration::from_secs(20) }, burst: 1 }).await;
            assert!(waits.await.unwrap());
            let waited = start.elapsed().as_secs();
            assert!((10..=23).contains(&waited), "{scope:?}: {waited} s");
            assert_eq!(throttle.limits().window.per.as_secs(), 20);

            order(ThrottleOrder::Hold { span: Duration::from_secs(3_600), why: "they are down".into() }).await;
            // Each worker that counts for itself may take a second to hear of it.
            sleep(Duration::from_secs(1)).await;
            throttle.hold("", Duration::from_secs(7_200), "ban").await;
            let waits = next();
            sleep(Duration::from_secs(600)).await;
            assert!(!waits.is_finished());
            let start = Instant::now();
            order(ThrottleOrder::Release).await;
            assert!(waits.await.unwrap());
            assert!(start.elapsed().as_secs() <= 22, "{scope:?}: {:?}", start.elapsed());

            order(ThrottleOrder::Reset).await;
            sleep(Duration::from_secs(1)).await;
            throttle.slot("", want(0, 0)).await.start().await;
            assert_eq!(throttle.limits().window.per.as_secs(), 3_600);
        }
    }
}
