//! Delay → rungs (pure).
//!
//! A rung is a queue in which every message sleeps for the same time; the ladder is all of them.
//! A delay is climbed one hop at a time: the largest rung that fits, then the remainder, until what
//! is left is short enough to be slept in process. Never early: a hop never overshoots, but for the
//! `slop` that the caller says has already passed.
//!
//! Rungs come from two places. Durations that the configuration names (intervals, backoffs, jitter
//! choices) each have a rung of their own, hence one hop: those on which chains sleep are shorter by
//! [`AT_THE_DOOR`], the others exact. The *family* serves every other
//! delay: a positional system whose digits are
//!
//! | digit | rungs | count |
//! |---|---|---|
//! | fifths of a second | 200 ms … 4.8 s | 24 |
//! | five seconds | 5 s … 115 s | 23 |
//! | two minutes | 2 m … 58 m | 29 |
//! | hours | 1 h … 24 h | 24 |
//! | days | 2, 4, 8, 16, 32 d | 5 |
//!
//! Up to a day each digit costs at most one hop, so four hops leave less than [`IN_PROCESS`]. A
//! geometric family with the same bound needs about five times as many queues, because one digit
//! of a positional system has *additive* spacing: after a hop the remainder is below the digit's
//! step whatever the size of the hop was. That argument also holds when named rungs are mixed in.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::{Entropy, Time};

/// What is left of a delay below this is slept in process by the rearm consumer, which holds the
/// message unacknowledged meanwhile.
pub const IN_PROCESS: Duration = Duration::from_millis(200);

/// A remainder this short may be slept by the platform queue's own consumer, which saves the way
/// through the rearm queue. The rungs of chains' delays are shorter than those by as much: the
/// successor is written, sent and delivered in that time, and its tick begins when it is due.
pub const AT_THE_DOOR: Duration = Duration::from_millis(25);

/// RabbitMQ's largest `x-message-ttl`: 2³² − 1 ms, some 49.7 days.
pub const MAX_RUNG: Duration = Duration::from_millis(u32::MAX as u64);

/// How many rungs a jittered interval gets inside its window.
const JITTER_RUNGS: u32 = 16;

/// Where a message goes next on its way to a due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// Now: nothing (or nothing worth a rung) is left. Sleep `wait` in process, then hand the
    /// message to its platform queue.
    Now {
        /// At most [`IN_PROCESS`].
        wait: Duration,
    },
    /// Sleep on `rung`, and arrive at the platform queue when it is due (or [`AT_THE_DOOR`]).
    Last {
        /// The rung's time to live.
        rung: Duration,
    },
    /// Sleep on `rung`, and come back for the remainder.
    Further {
        /// The rung's time to live.
        rung: Duration,
    },
}

/// The set of rungs.
/// ```
/// use std::time::Duration;
/// use roundelay_model::ladder::Ladder;
///
/// // A delay that has a rung of its own is one stored hop; others are a few.
/// let five_minutes = Duration::from_secs(300);
/// let ladder = Ladder::new([five_minutes]);
/// assert!(ladder.rungs().contains(&five_minutes));
/// assert_eq!(ladder.hops(five_minutes), 1);
/// assert!(ladder.hops(Duration::from_millis(7_654_321)) > 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    rungs: Vec<Duration>,
}

impl Ladder {
    /// The family and one exact rung for each of `named`. Zero and what no broker can hold in one
    /// rung ([`MAX_RUNG`]) are left to the family.
    pub fn new(named: impl IntoIterator<Item = Duration>) -> Self {
        let ms = Duration::from_millis;
        let mut rungs: BTreeSet<Duration> = BTreeSet::new();
        rungs.extend((1..=24).map(|n| ms(200 * n)));
        rungs.extend((1..=23).map(|n| ms(5_000 * n)));
        rungs.extend((1..=29).map(|n| ms(120_000 * n)));
        rungs.extend((1..=24).map(|n| ms(3_600_000 * n)));
        rungs.extend([2, 4, 8, 16, 32].map(|n| ms(86_400_000 * n)));
        let whole = |d: Duration| ms(u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        rungs.extend(named.into_iter().map(whole).filter(|d| !d.is_zero() && *d <= MAX_RUNG));
        Self { rungs: rungs.into_iter().collect() }
    }

    /// Every rung, shortest first.
    pub fn rungs(&self) -> &[Duration] {
        &self.rungs
    }

    /// The next hop of a message that is due in `remaining`. `slop` is how much later than
    /// `remaining` it may arrive for the sake of an exact rung: the time that has passed since the
    /// delay was decided, and no more.
    pub fn hop(&self, remaining: Duration, slop: Duration) -> Hop {
        if remaining <= AT_THE_DOOR {
            return Hop::Now { wait: remaining };
        }
        // The shortest that leaves no more than can be waited for at the door, since the way there takes time too.
        let at = self.rungs.partition_point(|rung| *rung < remaining - AT_THE_DOOR);
        if let Some(&rung) = self.rungs.get(at)
            && rung <= remaining + slop
        {
            return Hop::Last { rung };
        }
        match at.checked_sub(1).map(|below| self.rungs[below]) {
            Some(rung) if remaining >= IN_PROCESS => Hop::Further { rung },
            // A short named rung below the family's first must not cost a hop of its own.
            _ => Hop::Now { wait: remaining },
        }
    }

    /// How many rungs a message takes that is due in `delay`.
    pub fn hops(&self, delay: Duration) -> u32 {
        let (mut hops, mut left) = (0, delay);
        loop {
            match self.hop(left, Duration::ZERO) {
                Hop::Now { .. } => return hops,
                Hop::Last { .. } => return hops + 1,
                Hop::Further { rung } => {
                    hops += 1;
                    left -= rung;
                }
            }
        }
    }

    /// A random delay in `low..=high` that costs one hop: a rung in the window if there is one,
    /// else any point of it.
    pub fn choose(&self, low: Duration, high: Duration, entropy: &Entropy) -> Duration {
        let from = self.rungs.partition_point(|rung| *rung < low);
        let to = self.rungs.partition_point(|rung| *rung <= high);
        match &self.rungs[from..to.max(from)] {
            [] => entropy.between(low, high),
            window => window[entropy.below(window.len())],
        }
    }
}

/// The rungs of chains that tick so long after the end of a run. Each is shorter than its delay by [`AT_THE_DOOR`], or a
/// tenth if that is less;
/// without jitter the interval also has its exact rung, for clients that publish to it by its name.
pub fn rungs_of_interval(every: Duration, jitter: Duration) -> Vec<Duration> {
    let mut rungs = jitter_rungs(every, jitter);
    // Of what is short, a tenth.
    rungs.iter_mut().for_each(|rung| *rung -= AT_THE_DOOR.min(*rung / 10));
    rungs.extend(jitter.is_zero().then_some(every));
    rungs
}

/// The delays of an interval with symmetric jitter: points of `every − jitter ..= every + jitter`
/// placed by the golden ratio, so that they are evenly dense but on no common lattice; sums of them
/// then fill the gaps, and a fleet that started together still spreads out.
pub fn jitter_rungs(every: Duration, jitter: Duration) -> Vec<Duration> {
    let jitter = jitter.min(every);
    if jitter.is_zero() {
        return vec![every];
    }
    golden_points((every - jitter).as_millis() as f64, 2.0 * jitter.as_millis() as f64)
        .map(|ms| Duration::from_millis(ms as u64))
        .filter(|rung| !rung.is_zero())
        .collect()
}

/// The same points of `low ..= low + 2 × jitter`, where no rung is to be met.
pub fn jitter_points(low: Time, jitter: Duration) -> impl Iterator<Item = Time> {
    golden_points(low.as_millis() as f64, 2.0 * jitter.as_millis() as f64).map(|ms| Time::from_millis(ms as i64))
}

fn golden_points(low: f64, width: f64) -> impl Iterator<Item = f64> {
    let golden = 0.618_033_988_749_894_9_f64;
    (0..JITTER_RUNGS)
        .map(|n| f64::from(n) - f64::from(JITTER_RUNGS - 1) / 2.0)
        .map(move |steps| (low + width * (steps * golden + 0.5).rem_euclid(1.0)).round())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const MS: Duration = Duration::from_millis(1);

    /// Climbs `delay` and returns (stored hops, what was slept on rungs, what was slept in process).
    fn climb(ladder: &Ladder, delay: Duration) -> (u32, Duration, Duration) {
        let (mut hops, mut slept) = (0, Duration::ZERO);
        loop {
            match ladder.hop(delay - slept, Duration::ZERO) {
                Hop::Now { wait } => return (hops, slept, wait),
                Hop::Last { rung } => return (hops + 1, slept + rung, delay - slept - rung),
                Hop::Further { rung } => {
                    hops += 1;
                    slept += rung;
                }
            }
        }
    }

    #[test]
    fn a_table_of_edges() {
        let ladder = Ladder::new([Duration::from_millis(50), Duration::from_secs(61)]);
        let ms = Duration::from_millis;
        let table = [
            (0, Hop::Now { wait: ms(0) }),
            (1, Hop::Now { wait: ms(1) }),
            (49, Hop::Now { wait: ms(49) }),
            (25, Hop::Now { wait: ms(25) }),
            (50, Hop::Last { rung: ms(50) }),
            (75, Hop::Last { rung: ms(50) }),
            (76, Hop::Now { wait: ms(76) }),
            (199, Hop::Now { wait: ms(199) }),
            (200, Hop::Last { rung: ms(200) }),
            (225, Hop::Last { rung: ms(200) }),
            (226, Hop::Further { rung: ms(200) }),
            (60_000, Hop::Last { rung: ms(60_000) }),
            (60_999, Hop::Further { rung: ms(60_000) }),
            (61_000, Hop::Last { rung: ms(61_000) }),
            (86_400_000, Hop::Last { rung: DAY }),
            (10 * 365 * 86_400_000, Hop::Further { rung: 32 * DAY }),
        ];
        for (delay, hop) in table {
            assert_eq!(ladder.hop(ms(delay), Duration::ZERO), hop, "{delay} ms");
        }
    }

    #[test]
    fn slop_lets_a_named_delay_keep_its_one_hop() {
        let ladder = Ladder::new([Duration::from_secs(31)]);
        let decided = Duration::from_secs(31);
        let late = decided - 7 * MS;
        assert_eq!(ladder.hop(late, 7 * MS), Hop::Last { rung: decided });
        assert_eq!(ladder.hop(late, 6 * MS), Hop::Further { rung: Duration::from_secs(30) });
    }

    #[test]
    fn the_message_of_a_chain_comes_before_its_tick_is_due() {
        let (every, jitter) = (Duration::from_secs(30), Duration::from_secs(3));
        let ladder = Ladder::new(rungs_of_interval(every, Duration::ZERO));
        let early = every - AT_THE_DOOR;
        // However long it has taken to decide and to write, up to that time.
        for passed in [Duration::ZERO, MS, AT_THE_DOOR] {
            assert_eq!(ladder.hop(every - passed, passed), Hop::Last { rung: early });
        }
        // After longer it is late by the rest, and no later than without that rung.
        assert_eq!(ladder.hop(every - AT_THE_DOOR - 7 * MS, AT_THE_DOOR + 7 * MS), Hop::Last { rung: early });
        assert_eq!(ladder.hops(every), 1);
        let jittered = Ladder::new(rungs_of_interval(every, jitter));
        for delay in jitter_rungs(every, jitter) {
            assert_eq!(jittered.hop(delay - 2 * MS, 2 * MS), Hop::Last { rung: delay - AT_THE_DOOR });
        }
        assert_eq!(rungs_of_interval(every, jitter).len(), 16);
        assert_eq!(rungs_of_interval(50 * MS, Duration::ZERO), [45 * MS, 50 * MS]);
    }

    #[test]
    fn the_family_is_small() {
        assert_eq!(Ladder::new([]).rungs().len(), 105);
        let unusable = [Duration::ZERO, 50 * DAY, Duration::from_micros(1)];
        assert_eq!(Ladder::new(unusable).rungs().len(), 105);
    }

    #[test]
    fn jitter_stays_in_its_window_and_off_a_lattice() {
        let (every, jitter) = (Duration::from_secs(60), Duration::from_secs(15));
        let rungs: BTreeSet<_> = jitter_rungs(every, jitter).into_iter().collect();
        assert_eq!(rungs.len(), 16);
        assert!(rungs.iter().all(|r| (every - jitter..=every + jitter).contains(r)));
        let gaps: BTreeSet<_> = rungs.iter().zip(rungs.iter().skip(1)).map(|(a, b)| *b - *a).collect();
        assert!(gaps.len() > 1 && *gaps.last().unwrap() < Duration::from_secs(4), "{gaps:?}");
        assert_eq!(jitter_rungs(every, Duration::ZERO), [every]);
    }

    #[test]
    fn a_choice_is_a_rung_whenever_the_window_has_one() {
        let entropy = Entropy::seeded(1);
        let ladder = Ladder::new([]);
        for _ in 0..100 {
            let chosen = ladder.choose(Duration::from_secs(27), Duration::from_secs(33), &entropy);
            assert_eq!(chosen, Duration::from_secs(30));
            let exact = ladder.choose(Duration::from_secs(31), Duration::from_secs(33), &entropy);
            assert!((31_000..=33_000).contains(&exact.as_millis()));
        }
    }

    proptest! {
        #[test]
        fn hops_add_up_are_bounded_and_never_overshoot(
            delay in prop_oneof![0u64..10_000, 0u64..86_400_000, Just(86_399_999), 0u64..10 * 366 * 86_400_000],
            named in prop::collection::vec(1u64..100_000_000, 0..20),
        ) {
            let ladder = Ladder::new(named.iter().copied().map(Duration::from_millis));
            let delay = Duration::from_millis(delay);
            let (hops, slept, wait) = climb(&ladder, delay);
            prop_assert_eq!(hops, ladder.hops(delay));
            prop_assert_eq!(slept + wait, delay);
            prop_assert!(wait < IN_PROCESS);
            if delay <= DAY {
                prop_assert!(hops <= 4, "{hops} hops for {delay:?}");
            } else {
                let days = u32::try_from(delay.as_secs() / 86_400).unwrap();
                prop_assert!(hops <= days / 32 + 5 + 4, "{hops} hops for {delay:?}");
            }
        }

        #[test]
        fn named_durations_take_one_hop(named in prop::collection::vec(1u64..u64::from(u32::MAX), 1..20)) {
            let ladder = Ladder::new(named.iter().copied().map(Duration::from_millis));
            for ms in named {
                let (hops, slept, wait) = climb(&ladder, Duration::from_millis(ms));
                prop_assert_eq!(hops, u32::from(ms > 25));
                prop_assert_eq!(slept + wait, Duration::from_millis(ms));
                prop_assert!(wait <= AT_THE_DOOR);
            }
        }

        #[test]
        fn slop_is_never_exceeded(delay in 1u64..90_000_000, slop in 0u64..200) {
            let (delay, slop) = (Duration::from_millis(delay), Duration::from_millis(slop));
            if let Hop::Last { rung } | Hop::Further { rung } = Ladder::new([]).hop(delay, slop) {
                prop_assert!(rung <= delay + slop);
            }
        }
    }
}
