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

use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use roundelay_model::clock::{Elapsed, MAX_SKEW};
use roundelay_model::pacing::slots::Limits;

/// Starts may follow each other by so much less than slots do: clocks run apart over a long window.
const FASTER: f64 = 0.999;
/// A start counts for this many cells, so that what slots may slip by is a fraction of a start.
const CELLS: u32 = 64;
/// No more keys are looked at again for being as good as new.
const MAX_IDLE_KEYS: usize = 1_000;

/// The gate of one throttle, with a state for each of its keys.
pub(super) struct Gate {
    limits: Arc<Limits>,
    /// In cells.
    burst: NonZeroU32,
    /// The largest cost for which it is made.
    largest: u32,
    limiter: RateLimiter<String, HashMapStateStore<String>, Elapsed, NoOpMiddleware<Duration>>,
    /// The log has been told that it refuses.
    told: AtomicBool,
}

impl Gate {
    /// A gate that lets through whatever slots of these limits can, for starts that cost up to `largest`. None for
    /// limits that are too fast for it: a start in less than 64 nanoseconds.
    pub(super) fn new(limits: Arc<Limits>, largest: u32) -> Option<Self> {
        let window = limits.window.per + limits.slip();
        let emission = window.as_nanos() as f64 * FASTER / (f64::from(limits.window.allow.max(1)) * f64::from(CELLS));
        let emission = Duration::from_nanos(emission as u64);
        // Between two starts lies less than between their slots: by the slip of the earlier one, and by what two looks
        // at a clock may differ in.
        let unlike = Duration::from_micros(2 * MAX_SKEW.unsigned_abs());
        let slipped = ((limits.slip() + unlike).as_secs_f64() / emission.as_secs_f64()).ceil();
        // A start is charged when it has its slot, so the last one of a burst may cost as much as any.
        let starts = limits.burst.max(1).saturating_add(largest.max(1) - 1);
        let burst = NonZeroU32::new(starts.saturating_mul(CELLS).saturating_add(slipped as u32))?;
        let quota = Quota::with_period(emission)?.allow_burst(burst);
        let limiter = RateLimiter::new(quota, HashMapStateStore::default(), Elapsed::default());
        Some(Self { limits, burst, largest, limiter, told: AtomicBool::new(false) })
    }

    /// Whether it is made for starts of this cost under these limits.
    pub(super) fn is_for(&self, limits: &Limits, cost: u32) -> bool {
        *self.limits == *limits && cost <= self.largest
    }

    /// Whether a start of `key` that costs so much may happen now; then it is counted.
    pub(super) fn passes(&self, key: &String, cost: u32) -> bool {
        let keys = self.limiter.len();
        if keys > MAX_IDLE_KEYS && keys.is_power_of_two() {
            self.limiter.retain_recent();
        }
        let cells = NonZeroU32::new(cost.saturating_mul(CELLS)).unwrap_or(NonZeroU32::MIN).min(self.burst);
        let passes = matches!(self.limiter.check_key_n(key, cells), Ok(Ok(())));
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
    use tokio::time::{Instant, advance, sleep_until};

    use super::*;
    use roundelay_model::pacing::slots::Window;

    fn limits(allow: u32, per: Duration, burst: u32) -> Arc<Limits> {
        Arc::new(Limits { window: Window { allow, per }, burst, also: Vec::new() })
    }

    /// Slots as far apart as they are handed out, after a burst, each used at once or as late as may be.
    #[tokio::test(start_paused = true)]
    async fn gate_lets_pass_what_slots_allow() {
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
        assert_eq!((passed(&a), passed(&a)), (1, 0));
        assert_eq!(passed(&b), 1, "each key has its own");
        // Of the 12.2 s between two slots, 1.2 s and a part of a cell are for what may slip, once.
        for (wait, passes) in [(10_800, 0), (300, 1), (11_800, 0), (300, 1), (11_800, 0), (300, 1)] {
            advance(Duration::from_millis(wait)).await;
            assert_eq!(passed(&a), passes, "{wait} ms later");
        }
        assert!(gate.is_for(&limits, 1) && !gate.is_for(&limits, 2));
    }

    #[test]
    fn a_limit_that_no_gate_can_keep_has_none() {
        assert!(Gate::new(limits(1_000_000, Duration::from_millis(1), 1), 1).is_none());
    }
}
