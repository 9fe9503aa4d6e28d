//! When next (pure).

use std::time::Duration;

use crate::clock::{Entropy, Time};
use crate::ladder::jitter_rungs;

/// How a chain recurs: a fixed delay, counted from the finish of the run before, with symmetric
/// jitter drawn anew for each occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every {
    /// The mean distance from a finish to the next start.
    pub interval: Duration,
    /// How far an occurrence may lie from the mean, on either side; below the interval.
    pub jitter: Duration,
}

impl Every {
    /// When the next tick is due after a run that finished at `finished`.
    ///
    /// A jittered distance is one of the interval's own rungs, so it costs one hop. Other rungs in
    /// its window would do that too, but they lie denser at its lower end: the mean would suffer.
    pub fn next(&self, finished: Time, entropy: &Entropy) -> Time {
        if self.jitter.is_zero() {
            return finished + self.interval;
        }
        let choices = jitter_rungs(self.interval, self.jitter);
        finished + choices.get(entropy.below(choices.len())).copied().unwrap_or(self.interval)
    }
}

/// The `n`-th of `count` points spread evenly over `window`, each in the middle of its share.
pub fn spread(n: usize, count: usize, window: Duration) -> Duration {
    if count == 0 {
        return Duration::ZERO;
    }
    let share = (n.min(count - 1) as f64 + 0.5) / count as f64;
    Duration::from_millis((window.as_millis() as f64 * share) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::Ladder;

    const fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn without_jitter_the_distance_is_exact() {
        let every = Every { interval: s(60), jitter: Duration::ZERO };
        let finished = Time::from_millis(1_000);
        let next = every.next(finished, &Entropy::seeded(1));
        assert_eq!(next.since(finished), s(60));
    }

    #[test]
    fn with_jitter_it_is_a_rung_within_the_window_and_the_mean_holds() {
        for (interval, jitter) in [(60, 15), (120, 60), (5, 2), (3_600, 1_800), (86_400, 43_200)] {
            let every = Every { interval: s(interval), jitter: s(jitter) };
            let ladder = Ladder::new(jitter_rungs(every.interval, every.jitter));
            let (entropy, start) = (Entropy::seeded(42), Time::from_millis(0));
            let delays: Vec<_> = (0..2_000).map(|_| every.next(start, &entropy).since(start)).collect();
            let window = s(interval - jitter)..=s(interval + jitter);
            assert!(delays.iter().all(|d| window.contains(d) && ladder.rungs().contains(d)));
            let mean = delays.iter().sum::<Duration>().as_secs_f64() / 2_000.0;
            assert!((mean / interval as f64 - 1.0).abs() < 0.03, "{interval} s ± {jitter} s: mean {mean} s");
        }
    }

    #[test]
    fn a_spread_is_even_and_inside_its_window() {
        let table = [(0, 0, 0), (0, 1, 5_000), (0, 2, 2_500), (1, 2, 7_500), (9, 10, 9_500), (99, 10, 9_500)];
        for (n, count, ms) in table {
            assert_eq!(spread(n, count, s(10)).as_millis(), ms, "{n} of {count}");
        }
    }
}
