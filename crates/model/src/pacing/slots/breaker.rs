//! The circuit breaker of a throttle (pure).
//!
//! It is *closed* while the upstream works, *open* while nothing starts, and *half-open* while one start at a time
//! tries whether the upstream works again.

use std::time::Duration;

use super::Micros;

/// When a throttle takes its upstream for broken, and when it tries it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// So many failures with no success between them.
    pub failures: u32,
    /// Nothing starts for so long; twice as long after each start that has tried in vain.
    pub wait: Duration,
    /// But no longer than this.
    pub longest: Duration,
    /// How long a start that tries may take before another one does.
    pub patience: Duration,
}

/// Whether a circuit is closed, as far as failures tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Circuit {
    /// It is open while the throttle is held, and half-open after that; closed if not set.
    pub tripped: bool,
    /// Failures since a start worked.
    pub failures: u32,
    /// How many of those that tried whether the upstream works again have failed, one after the other.
    pub failed_probes: u32,
}

impl Circuit {
    /// A start has failed. Answers for how long nothing starts if that opens the circuit, or opens it again.
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

    /// Closes it; answers whether it was not.
    pub fn close(&mut self) -> bool {
        std::mem::take(self).tripped
    }
}
