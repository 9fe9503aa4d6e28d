//! How late attempts start, as quantiles.

use hdrhistogram::Histogram;
use roundelay_model::fleet::Lateness;
use serde::Serialize;

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

/// Later counts as this late: 30 days, in milliseconds.
const MAX: u64 = 30 * 86_400_000;

/// Collects latenesses and waits, in milliseconds. Takes some 16 KB, and more only for what is later than two seconds:
/// a worker has several for each queue, and takes a new one every other second.
#[derive(Debug)]
pub struct Latenesses(Histogram<u64>);

impl Default for Latenesses {
    fn default() -> Self {
        Self(Histogram::new(3).expect("a constant precision in range"))
    }
}

impl Latenesses {
    pub fn record(&mut self, late: std::time::Duration) {
        let millis = u64::try_from(late.as_millis()).unwrap_or(u64::MAX).min(MAX);
        // It grows up to `MAX`, which its counts can hold.
        let _ = self.0.record(millis);
    }

    pub fn reset(&mut self) {
        self.0.reset();
    }

    pub fn add(&mut self, other: &Self) {
        // The precision is the same, and it grows.
        let _ = self.0.add(&other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn summary(&self) -> Lateness {
        Lateness {
            p50: self.0.value_at_quantile(0.5) as f64,
            p99: self.0.value_at_quantile(0.99) as f64,
            max: self.0.max() as f64,
        }
    }
}
