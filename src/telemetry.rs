//! What the engine has done, in figures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::outcome::Verdict;

/// Counts since the engine started.
#[derive(Debug, Default)]
pub struct Telemetry {
    counts: [AtomicU64; COUNTS],
    queues: Mutex<BTreeMap<String, QueueFigures>>,
}

/// What is counted.
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
    /// Attempts put off with none charged.
    Snoozed,
    /// Chains that ended.
    Retired,
    /// Runs whose lease somebody else took over.
    Fenced,
    /// Leases that could not be renewed, because somebody else has the chain.
    LeaseLost,
    /// Messages that came for a tick already past.
    Stale,
    /// Messages for chains that do not tick, or that are being run.
    Idle,
    /// Messages sent on to a further rung.
    Rearmed,
    /// Messages that could not be used.
    Quarantined,
    /// Messages given back to the broker, which delivers them again.
    Requeued,
    /// Messages that catch-up sent again.
    Resent,
    /// Publishes that had to be repeated.
    Republished,
}

const COUNTS: usize = Count::Republished as usize + 1;

#[derive(Debug)]
struct QueueFigures {
    done: u64,
    running: i64,
    late_ms: Histogram<u64>,
}

impl Default for QueueFigures {
    fn default() -> Self {
        Self { done: 0, running: 0, late_ms: empty() }
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 30 * 86_400_000, 3).expect("constant bounds in range")
}

/// A lateness distribution: how long after its due time an attempt started, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct Lateness {
    /// The median.
    pub p50: f64,
    /// Reached or exceeded by one in a hundred.
    pub p99: f64,
    /// The worst.
    pub max: f64,
}

impl Lateness {
    /// Reads a histogram of microseconds.
    pub fn of_micros(histogram: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1_000.0;
        Self {
            p50: ms(histogram.value_at_quantile(0.5)),
            p99: ms(histogram.value_at_quantile(0.99)),
            max: ms(histogram.max()),
        }
    }

    fn of_millis(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.5) as f64,
            p99: histogram.value_at_quantile(0.99) as f64,
            max: histogram.max() as f64,
        }
    }
}

/// One queue's figures.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct QueueReport {
    /// Attempts ended.
    pub done: u64,
    /// Handlers running now.
    pub running: i64,
    /// How late they started.
    pub late_ms: Lateness,
}

impl Telemetry {
    /// Counts one.
    pub fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    /// A handler starts on `queue`, `late` after its due time.
    pub fn started(&self, queue: &str, late: Duration) {
        self.count(Count::Started);
        self.with(queue, |figures| {
            figures.running += 1;
            figures.late_ms.saturating_record(u64::try_from(late.as_millis()).unwrap_or(u64::MAX));
        });
    }

    /// A handler that had started is over.
    pub fn ended(&self, queue: &str) {
        self.with(queue, |figures| {
            figures.running -= 1;
            figures.done += 1;
        });
    }

    /// How an attempt was recorded.
    pub fn verdict(&self, verdict: Verdict) {
        self.count(match verdict {
            Verdict::Done => Count::Done,
            Verdict::Retried => Count::Retried,
            Verdict::Failed => Count::Failed,
            Verdict::Snoozed => Count::Snoozed,
            Verdict::Retired => Count::Retired,
        });
    }

    /// Forgets the latenesses so far, to measure a part of a run on its own.
    pub fn reset_lateness(&self) {
        self.queues().values_mut().for_each(|figures| figures.late_ms.reset());
    }

    /// How late attempts started, over all queues.
    pub fn lateness(&self) -> Lateness {
        let mut all = empty();
        for figures in self.queues().values() {
            // Bounds and precision are the same, so nothing can be out of range.
            let _ = all.add(&figures.late_ms);
        }
        Lateness::of_millis(&all)
    }

    /// Each queue's figures.
    pub fn by_queue(&self) -> BTreeMap<String, QueueReport> {
        let report = |figures: &QueueFigures| QueueReport {
            done: figures.done,
            running: figures.running,
            late_ms: Lateness::of_millis(&figures.late_ms),
        };
        self.queues().iter().map(|(queue, figures)| (queue.clone(), report(figures))).collect()
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<String, QueueFigures>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, queue: &str, f: impl FnOnce(&mut QueueFigures)) {
        let mut queues = self.queues();
        match queues.get_mut(queue) {
            Some(figures) => f(figures),
            None => f(queues.entry(queue.to_owned()).or_default()),
        }
    }
}
