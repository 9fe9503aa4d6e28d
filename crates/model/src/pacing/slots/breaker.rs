//! The circuit breaker of a throttle (pure).
//!
//! It is *closed* while the upstream works, *open* while nothing starts, and *half-open* while one start at a time
//! probes whether the upstream works again.

use std::time::Duration;

use super::Micros;

/// When the breaker of a throttle opens, and when it probes the upstream again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// How many failures with no success between them open it.
    pub failures: u32,
    /// How long it is open; twice as long after each probe that has failed.
    pub wait: Duration,
    /// The longest time that it is open.
    pub longest: Duration,
    /// How long a probe may take before the next one starts.
    pub patience: Duration,
}

/// The state of the breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Circuit {
    /// Set: open while the throttle is held, and half-open after that. Not set: closed.
    pub tripped: bool,
    /// Failures since the last success.
    pub failures: u32,
    /// How many probes have failed, one after the other.
    pub failed_probes: u32,
}

impl Circuit {
    /// A start has failed. Answers for how long nothing starts, if this failure opens the breaker, or opens it again.
    pub fn failed(&mut self, breaker: Breaker) -> Option<Micros> {
        self.failures = self.failures.saturating_add(1);
        if self.tripped {
            self.failed_probes = self.failed_probes.saturating_add(1);
        } else if self.failures < breaker.failures {
            return None;
        }
        self.tripped = true;
        let doubled = breaker.wait.saturating_mul(2_u32.saturating_pow(self.failed_probes));
        Some(doubled.min(breaker.longest.max(breaker.wait)).as_micros() as Micros)
    }

    /// Closes the breaker; answers whether it was open or half-open.
    pub fn close(&mut self) -> bool {
        std::mem::take(self).tripped
    }
}
