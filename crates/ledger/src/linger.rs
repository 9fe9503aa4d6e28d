//! How long a group of verbs waits for more of them before it is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// For each verb of the last commit the next begins this much later, and by no more than `MAX_LINGER`.
const LINGER: Duration = Duration::from_micros(100);
const MAX_LINGER: Duration = Duration::from_millis(2);
/// Where ticks are late, `MAX_LINGER` grows to a twentieth of the lateness, up to this many times itself.
const MAX_LINGER_FACTOR: u32 = 4;
/// Who waits for more verbs goes on when none has come for this long.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
/// A group of this many verbs waits for no more; where ticks are late, of twice as many.
const ENOUGH: usize = 64;

/// How late the tick was that was claimed last, in milliseconds.
#[derive(Clone, Default)]
pub(crate) struct Lateness(Arc<AtomicU64>);

impl Lateness {
    /// A tick is claimed so long after it was due.
    pub(crate) fn of_claim(&self, late: Duration) {
        self.0.store(u64::try_from(late.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// How long after the last commit the next begins, when so many verbs were in that one, and so many wait by now (pure).
/// The busier the ledger is, the longer it is worth to wait for more verbs: most of the cost of a commit does not
/// depend on how many share it. A single verb waits for no other, and where enough verbs have come no more are waited
/// for. Where ticks are `late` anyway there is more work than can be done, and a low cost for each counts: then the
/// wait may be a twentieth of that lateness, within bounds.
pub(crate) fn linger(last: usize, waiting: usize, late: Duration) -> Duration {
    let patience = u32::try_from((late / 20).as_millis() / MAX_LINGER.as_millis()).unwrap_or(u32::MAX);
    let patience = patience.clamp(1, MAX_LINGER_FACTOR);
    // No more than that: all jobs that a worker runs may wait already, and then no more verbs come.
    if waiting >= ENOUGH * patience.min(2) as usize || last <= 1 {
        return Duration::ZERO;
    }
    (LINGER * u32::try_from(last).unwrap_or(u32::MAX)).min(MAX_LINGER * patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_verb_waits_for_no_other_and_many_wait_for_more() {
        let in_time = [(0, 1, 0), (1, 1, 0), (1, 63, 0), (2, 1, 200), (15, 3, 1_500), (20, 1, 2_000), (500, 63, 2_000)];
        let (little, much) = (Duration::from_millis(79), Duration::from_secs(3));
        for (last, waiting, micros) in in_time {
            for late in [Duration::ZERO, little] {
                assert_eq!(linger(last, waiting, late), Duration::from_micros(micros), "{last} before, {waiting} now");
            }
        }
        assert_eq!(linger(500, ENOUGH, little), Duration::ZERO);
        // Late by 120 ms: three times as long, and for twice as many.
        assert_eq!(linger(500, 127, Duration::from_millis(120)), Duration::from_millis(6));
        assert_eq!(linger(500, 128, Duration::from_millis(120)), Duration::ZERO);
        assert_eq!(linger(1, 1, much), Duration::ZERO);
        assert_eq!(linger(30, 1, much), Duration::from_millis(3));
        assert_eq!(linger(500, 127, much), Duration::from_millis(8));
        assert_eq!(linger(500, 128, Duration::MAX), Duration::ZERO);
    }
}
