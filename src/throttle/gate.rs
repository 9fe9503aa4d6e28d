//! The last gate before a start: governor, in each worker, apart from the ledger.
//!
//! Slots keep a limit exact for all workers, but they are only as good as what hands them out: an older copy of a
//! ledger that was restored, a row that was lost, or a mistake of ours would let too many through. So each worker also
//! looks at its own starts, by another algorithm that knows nothing of the ledger: the generic cell rate algorithm of
//! the crate [`governor`]. In calm it never refuses what a slot allows.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use tokio::time::Instant;

use super::clock::UNLIKE;
use super::slots::Limits;

/// Cells follow each other by so little less than the limit's spacing: slots are farther apart by their slip, and this is
/// for clocks that run apart over a long window.
const FASTER: f64 = 0.999;
/// No more keys are looked at again for being as good as new.
const FEW: usize = 1_000;

/// The time since the gate was made, by the clock that simulation steers. governor's own `until_ready` sleeps in real
/// time; only what answers at once is used here.
#[derive(Clone, Debug)]
struct SinceMade(Instant);

impl Clock for SinceMade {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The gate of one throttle, with a state for each of its keys.
pub(super) struct Gate {
    limits: Arc<Limits>,
    burst: NonZeroU32,
    /// The largest cost for which it is made.
    largest: u32,
    limiter: RateLimiter<String, HashMapStateStore<String>, SinceMade, NoOpMiddleware<Duration>>,
    /// The log has been told that it refuses.
    told: AtomicBool,
}

impl Gate {
    /// A gate that lets through whatever slots of these limits can, for starts that cost up to `largest`. None for
    /// limits that are too fast for it: more than a start in a nanosecond.
    pub(super) fn new(limits: Arc<Limits>, largest: u32) -> Option<Self> {
        let window = limits.window;
        let spacing = window.per.mul_f64(FASTER / f64::from(window.allow.max(1)));
        if spacing.is_zero() {
            return None;
        }
        // Between two starts lies less than between their slots: by the slip of the earlier one, and by what two looks at
        // a clock may differ in.
        let unlike = Duration::from_micros(2 * UNLIKE.unsigned_abs());
        let apart = (limits.slip() + unlike).as_secs_f64() / spacing.as_secs_f64();
        let slipped = apart.ceil().min(f64::from(u32::MAX)) as u32;
        // A start is charged when it has its slot, so the last one of a burst may cost as much as any.
        let burst = limits.burst.max(1).saturating_add(largest.max(1) - 1).saturating_add(slipped);
        let burst = NonZeroU32::new(burst)?;
        let quota = Quota::with_period(spacing)?.allow_burst(burst);
        let limiter = RateLimiter::new(quota, HashMapStateStore::default(), SinceMade(Instant::now()));
        Some(Self { limits, burst, largest, limiter, told: AtomicBool::new(false) })
    }

    /// Whether it is made for starts of this cost under these limits.
    pub(super) fn is_for(&self, limits: &Limits, cost: u32) -> bool {
        *self.limits == *limits && cost <= self.largest
    }

    /// Whether a start of `key` that costs so much may happen now; then it is counted.
    pub(super) fn passes(&self, key: &String, cost: u32) -> bool {
        // What these let through, the gate would stop, and nobody would see that they are broken.
        if mutant!(SlotUsedLate) {
            return true;
        }
        if mutant!(ClockBelieved) {
            return true;
        }
        let keys = self.limiter.len();
        if keys > FEW && keys.is_power_of_two() {
            self.limiter.retain_recent();
        }
        let cost = NonZeroU32::new(cost).unwrap_or(NonZeroU32::MIN).min(self.burst);
        let passes = matches!(self.limiter.check_key_n(key, cost), Ok(Ok(())));
        if !passes && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                key,
                limit = %self.limits,
                "a start was refused by this worker's own gate, and others may be: more slots are handed out than the limit \
                 allows, as by an older copy of the ledger that was restored; \
                 roundelay_throttle_lost_slots_total{{reason=\"refused\"}} counts them"
            );
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep_until};

    use super::*;
    use crate::throttle::slots::Window;

    fn limits(allow: u32, per: Duration, burst: u32) -> Arc<Limits> {
        Arc::new(Limits { window: Window { allow, per }, burst, also: Vec::new() })
    }

    /// Slots as far apart as they are handed out, after a burst, each used at once or as late as may be.
    #[tokio::test(start_paused = true)]
    async fn what_slots_allow_passes() {
        let s = Duration::from_secs;
        let table = [(5, s(1), 1, 1), (5, s(60), 1, 1), (5, s(60), 5, 1), (1, s(86_400), 1, 1), (1_000, s(1), 40, 1)];
        let table =
            table.into_iter().chain([(20, s(1), 1, 7), (24, s(60), 3, 24), (1, Duration::from_millis(5), 1, 1)]);
        for (allow, per, burst, cost) in table {
            let limits = limits(allow, per, burst);
            let gate = Gate::new(limits.clone(), cost).unwrap();
            let (begin, spacing, slip) = (Instant::now(), limits.spacing(), limits.slip());
            // When the next slot opens if none was saved up, as the ledger counts.
            let mut next = Duration::ZERO;
            for n in 0..500 {
                let opens = next.saturating_sub(spacing * (burst - 1));
                let late = if n % 3 == 0 { slip - slip / 4 } else { Duration::ZERO };
                sleep_until(begin + opens + late).await;
                let what = format!("start {n} of {allow} per {per:?}, burst {burst}, cost {cost}");
                assert!(gate.passes(&String::new(), cost), "{what}");
                next = next.max(opens) + spacing * cost;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_that_hands_out_too_many_is_stopped() {
        let limits = limits(5, Duration::from_secs(60), 1);
        let gate = Gate::new(limits.clone(), 1).unwrap();
        let (a, b) = (String::from("a"), String::from("b"));
        let passed = |key| (0..100).filter(|_| gate.passes(key, 1)).count();
        assert_eq!((passed(&a), passed(&a)), (2, 0), "one, and one for what may slip");
        assert_eq!(passed(&b), 2, "each key has its own");
        advance(Duration::from_secs(12)).await;
        assert_eq!(passed(&a), 1, "and so on at the pace of the limit");
        assert!(gate.is_for(&limits, 1) && !gate.is_for(&limits, 2));
    }

    #[test]
    fn a_limit_that_no_gate_can_keep_has_none() {
        assert!(Gate::new(limits(1_000_000, Duration::from_micros(1), 1), 1).is_none());
    }
}
