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

/// Collects latenesses and waits, in milliseconds.
#[derive(Debug)]
pub struct Latenesses(Histogram<u64>);

impl Default for Latenesses {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, 30 * 86_400_000, 3).expect("constant bounds in range"))
    }
}

impl Latenesses {
    pub fn record(&mut self, late: std::time::Duration) {
        self.0.saturating_record(u64::try_from(late.as_millis()).unwrap_or(u64::MAX));
    }

    pub fn reset(&mut self) {
        self.0.reset();
    }

    pub fn add(&mut self, other: &Self) {
        // Bounds and precision are the same, so nothing can be out of range.
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
