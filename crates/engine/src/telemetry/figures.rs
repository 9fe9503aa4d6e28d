//! What is counted for one queue, one kind, one throttle: handles on the metrics with their labels
//! filled in, so that a run pays for no look-up.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use roundelay_model::fresh::Known;
use roundelay_model::kind_stats::KindStats;
use roundelay_model::outcome::{LeftOut, Verdict};
use roundelay_model::reason::Class;
use roundelay_model::waits::Hindrance;
use tokio::time::Instant;

use super::families::{ByAttempt, ByKind, ByLeftOut, ByLost, ByQueue, ByThrottle, Families};
use super::lateness::{Latenesses, QueueReport};

/// A platform queue's figures.
#[derive(Debug)]
pub struct QueueFigures {
    /// Over all queues.
    all_starts: Counter,
    starts: Counter,
    ended: Counter,
    running: Gauge,
    lateness: Histogram,
    latenesses: Mutex<Latenesses>,
    /// Those since they were last taken, which are not among the others yet.
    recent: Mutex<Latenesses>,
}

impl QueueFigures {
    pub(super) fn new(families: &Families, queue: &str, all_starts: Counter) -> Self {
        let label = ByQueue { queue: queue.to_owned() };
        Self {
            all_starts,
            starts: families.starts.get_or_create_owned(&label),
            ended: Counter::default(),
            running: families.running.get_or_create_owned(&label),
            lateness: families.lateness.get_or_create_owned(&label),
            latenesses: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    /// A handler starts, `late` after its due time; it runs as long as the answer lives.
    pub fn started(&self, late: Duration) -> Running<'_> {
        self.all_starts.inc();
        self.starts.inc();
        self.running.inc();
        self.lateness.observe(late.as_secs_f64());
        self.recent().record(late);
        Running(self)
    }

    pub(super) fn report(&self) -> QueueReport {
        QueueReport { done: self.ended.get(), running: self.running.get(), late_ms: self.latenesses().summary() }
    }

    /// How many handlers have started.
    pub fn starts(&self) -> u64 {
        self.starts.get()
    }

    /// How many handlers run.
    pub fn running(&self) -> i64 {
        self.running.get()
    }

    /// Takes the latenesses since they were last taken.
    pub(crate) fn take_recent(&self) -> Latenesses {
        let mut all = self.latenesses.lock();
        let recent = std::mem::take(&mut *self.recent());
        all.add(&recent);
        recent
    }

    /// All latenesses so far.
    pub(super) fn latenesses(&self) -> MutexGuard<'_, Latenesses> {
        let mut all = self.latenesses.lock();
        let mut recent = self.recent();
        if !recent.is_empty() {
            all.add(&recent);
            recent.reset();
        }
        all
    }

    fn recent(&self) -> MutexGuard<'_, Latenesses> {
        self.recent.lock()
    }
}

/// A handler that runs.
#[derive(Debug)]
pub struct Running<'a>(&'a QueueFigures);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.dec();
        self.0.ended.inc();
    }
}

/// The words for how an attempt ended: the verdicts, and the two that no handler decides on.
const ENDS: [&str; 11] =
    ["done", "retried", "failed", "snoozed", "retired", "fanned_out", "dropped", "skipped", "cut", "fenced", "lost"];
const FENCED: usize = 9;
const LOST: usize = 10;
/// The reason of what worked.
const NO_REASON: &str = "none";

fn row(verdict: Verdict) -> usize {
    match verdict {
        Verdict::Done => 0,
        Verdict::Retried => 1,
        Verdict::Failed => 2,
        Verdict::Snoozed => 3,
        Verdict::Retired => 4,
        Verdict::FannedOut => 5,
        Verdict::Dropped => 6,
        Verdict::Skipped => 7,
        Verdict::Cut => 8,
    }
}

/// A kind's figures.
#[derive(Debug)]
pub struct KindFigures {
    kind: String,
    ticks: Counter,
    jobs: Counter,
    duration: Histogram,
    family: Family<ByAttempt, Counter>,
    /// A cell for each end and reason; a series begins with the first attempt that ends so.
    attempts: Box<[OnceLock<Counter>]>,
    /// Occurrences left out, by why.
    left_out: [Counter; 5],
    /// What has come since it was last taken, for the ledger.
    recent: Mutex<KindStats>,
}

impl KindFigures {
    pub(super) fn new(families: &Families, kind: &str) -> Self {
        let label = ByKind { kind: kind.to_owned() };
        let figures = Self {
            kind: kind.to_owned(),
            ticks: families.ticks.get_or_create_owned(&label),
            jobs: families.jobs.get_or_create_owned(&label),
            duration: families.duration.get_or_create_owned(&label),
            family: families.attempts.clone(),
            attempts: (0..ENDS.len() * (Class::ALL.len() + 1)).map(|_| OnceLock::new()).collect(),
            left_out: ["overlap", "calendar", "misfire", "quota", "turn"]
                .map(|reason| families.left_out.get_or_create_owned(&ByLeftOut { kind: kind.to_owned(), reason })),
            recent: Mutex::default(),
        };
        // These are at zero from the start, so that the first of them is an increase. The others
        // are too many to show for nothing.
        figures.attempt(row(Verdict::Done), None);
        figures.attempt(FENCED, Some(Class::Fenced));
        figures.attempt(LOST, Some(Class::Lost));
        figures
    }

    /// A handler starts, `late` after its due time.
    pub fn started(&self, late: Duration) {
        self.recent.lock().late.add(late);
    }

    /// A handler has run for this long.
    pub fn ran(&self, duration: Duration) {
        self.duration.observe(duration.as_secs_f64());
        self.recent.lock().took.add(duration);
    }

    /// Takes what has come since this was last asked.
    pub(crate) fn take_recent(&self) -> KindStats {
        std::mem::take(&mut *self.recent.lock())
    }

    /// An attempt has ended, of a chain's tick or of a one-off job.
    pub fn ended(&self, verdict: Verdict, class: Option<Class>, chain: bool) {
        self.end(row(verdict), class);
        let over = match verdict {
            Verdict::Done | Verdict::Failed | Verdict::Retired | Verdict::Cut => true,
            Verdict::Retried | Verdict::Snoozed | Verdict::FannedOut => false,
            // Its occurrence is over, and it was no run.
            Verdict::Dropped | Verdict::Skipped => false,
        };
        match (over, chain) {
            (true, true) => _ = self.ticks.inc(),
            (true, false) => _ = self.jobs.inc(),
            (false, _) => {}
        }
    }

    /// Occurrences went by without a run.
    pub fn left_out(&self, left_out: LeftOut) {
        let LeftOut { overlapped, misfired, hindrance, excluded } = left_out;
        let [overlap, calendar, late @ ..] = &self.left_out;
        let [misfire, quota, turn] = late;
        overlap.inc_by(overlapped.into());
        calendar.inc_by(excluded.into());
        let late = match hindrance {
            Hindrance::Misfire => misfire,
            Hindrance::Quota => quota,
            Hindrance::Turn => turn,
        };
        late.inc_by(misfired.into());
        if [overlapped, misfired, excluded] != [0; 3] {
            let mut recent = self.recent.lock();
            recent.left_out += u64::from(overlapped) + u64::from(misfired);
            recent.excluded += u64::from(excluded);
        }
    }

    /// An entity was visited, `gap` after the visit before; the next visit comes in `every`.
    pub(crate) fn visited(&self, gap: Duration, every: Duration, known: &Known) {
        self.recent.lock().visits.visited(gap, every, known);
    }

    /// An attempt has ended after another worker had claimed its tick.
    pub fn fenced(&self) {
        self.end(FENCED, Some(Class::Fenced));
    }

    /// An earlier attempt was found that never ended, and whose lease has run out.
    pub fn lost(&self) {
        self.end(LOST, Some(Class::Lost));
    }

    fn end(&self, end: usize, class: Option<Class>) {
        self.attempt(end, class).inc();
        let mut recent = self.recent.lock();
        match recent.ends.get_mut(ENDS[end]) {
            Some(count) => *count += 1,
            None => drop(recent.ends.insert(ENDS[end].to_owned(), 1)),
        }
    }

    fn attempt(&self, end: usize, class: Option<Class>) -> &Counter {
        let column = class.map_or(0, |class| class as usize + 1);
        self.attempts[end * (Class::ALL.len() + 1) + column].get_or_init(|| {
            let (kind, reason) = (self.kind.clone(), class.map_or(NO_REASON, Class::as_str));
            self.family.get_or_create_owned(&ByAttempt { kind, verdict: ENDS[end], reason })
        })
    }
}

/// A throttle's figures.
#[derive(Debug)]
pub struct ThrottleFigures {
    waiting: Gauge,
    wait: Histogram,
    waits: Mutex<Latenesses>,
}

impl ThrottleFigures {
    pub(super) fn new(families: &Families, throttle: &str) -> Self {
        let label = ByThrottle { throttle: throttle.to_owned() };
        Self {
            waiting: families.waiting.get_or_create_owned(&label),
            wait: families.wait.get_or_create_owned(&label),
            waits: Mutex::default(),
        }
    }

    /// A job waits for a slot until the returned value is dropped.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.inc();
        Waiting { figures: self.clone(), since: Instant::now() }
    }

    /// How many wait.
    pub fn waiting(&self) -> i64 {
        self.waiting.get()
    }

    /// How long was waited.
    pub(super) fn waits(&self) -> MutexGuard<'_, Latenesses> {
        self.waits.lock()
    }
}

/// What becomes of a throttle's slots in this worker.
#[derive(Clone, Debug, Default)]
pub struct SlotCounts {
    /// They were handed out to it.
    pub granted: Counter,
    /// Those whose start came too late for them.
    pub late: Counter,
    /// Those whose upstream wanted no calls when they opened.
    pub held: Counter,
    /// Slots that were handed back and not used in time.
    pub unused: Counter,
    /// Those that the worker's own gate has refused.
    pub refused: Counter,
}

impl SlotCounts {
    pub(super) fn new(families: &Families, throttle: &str) -> Self {
        let label = ByThrottle { throttle: throttle.to_owned() };
        let lost = |reason| families.lost_slots.get_or_create_owned(&ByLost { throttle: throttle.to_owned(), reason });
        let granted = families.slots.get_or_create_owned(&label);
        Self { granted, late: lost("late"), held: lost("held"), unused: lost("unused"), refused: lost("refused") }
    }
}

/// A wait for a slot. Its length counts whether it ends with a slot or is given up.
#[derive(Debug)]
pub struct Waiting {
    figures: Arc<ThrottleFigures>,
    since: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.figures.waiting.dec();
        let waited = self.since.elapsed();
        self.figures.wait.observe(waited.as_secs_f64());
        self.figures.waits().record(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Telemetry;

    #[test]
    fn attempts_are_counted_by_end_and_reason_and_ticks_when_they_are_over() {
        let telemetry = Telemetry::default();
        let kind = telemetry.kind("sync");
        kind.ended(Verdict::Retried, Some(Class::Http429), true);
        kind.ended(Verdict::Snoozed, Some(Class::Http429), true);
        kind.ended(Verdict::Failed, Some(Class::Timeout), true);
        kind.ended(Verdict::Done, None, true);
        kind.ended(Verdict::Done, None, false);
        kind.lost();
        let text = telemetry.render();
        let counts = |line: &str| assert!(text.lines().any(|l| l == line), "no `{line}` in {text}");
        counts(r#"roundelay_attempts_total{kind="sync",verdict="retried",reason="http_429"} 1"#);
        counts(r#"roundelay_attempts_total{kind="sync",verdict="snoozed",reason="http_429"} 1"#);
        counts(r#"roundelay_attempts_total{kind="sync",verdict="failed",reason="timeout"} 1"#);
        counts(r#"roundelay_attempts_total{kind="sync",verdict="done",reason="none"} 2"#);
        counts(r#"roundelay_attempts_total{kind="sync",verdict="fenced",reason="fenced"} 0"#);
        counts(r#"roundelay_attempts_total{kind="sync",verdict="lost",reason="lost"} 1"#);
        counts(r#"roundelay_ticks_total{kind="sync"} 2"#);
        counts(r#"roundelay_jobs_total{kind="sync"} 1"#);
        assert_eq!(text.matches("roundelay_attempts_total{").count(), 6, "only what has happened: {text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_counts_while_it_lasts_and_by_its_length() {
        let telemetry = Telemetry::default();
        let throttle = telemetry.throttle("slow");
        let wait = throttle.wait();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(telemetry.render().contains("roundelay_throttle_waiting{throttle=\"slow\"} 1\n"));
        drop(wait);
        let text = telemetry.render();
        assert!(text.contains("roundelay_throttle_waiting{throttle=\"slow\"} 0\n"), "{text}");
        assert!(text.contains("roundelay_throttle_wait_seconds_sum{throttle=\"slow\"} 3.0\n"), "{text}");
    }

    #[test]
    fn what_runs_is_counted_until_it_ends() {
        let telemetry = Telemetry::default();
        let queue = telemetry.queue("q");
        let running = queue.started(Duration::from_millis(30));
        assert_eq!((telemetry.by_queue()["q"].running, telemetry.by_queue()["q"].done), (1, 0));
        drop(running);
        assert_eq!((telemetry.by_queue()["q"].running, telemetry.by_queue()["q"].done), (0, 1));
        let text = telemetry.render();
        assert!(text.contains("roundelay_lateness_seconds_bucket{le=\"0.025\",queue=\"q\"} 0\n"), "{text}");
        assert!(text.contains("roundelay_lateness_seconds_bucket{le=\"0.05\",queue=\"q\"} 1\n"), "{text}");
    }
}
