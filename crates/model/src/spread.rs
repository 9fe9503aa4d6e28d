//! Rungs that take the load of a hot one (pure).
//!
//! A rung is a quorum queue, and a quorum queue is one process of the broker's. A rung that is *hot* has more to do than
//! that process can, and hands its messages on late. It gets siblings: rungs that are one to eight milliseconds longer,
//! so within the time by which the rung of an interval is shorter than its delay
//! ([`AT_THE_DOOR`](crate::ladder::AT_THE_DOOR)). What would sleep on the hot rung sleeps on its siblings, on one after
//! the other, so that the hot rung has time to hand on what it has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Time;

/// A hot rung has so many siblings. The raw loop made 1.6 times as many cycles with 13 rungs as with one.
const SIBLINGS: u64 = 8;
/// A rung's load is judged by as much time.
const WINDOW: Duration = Duration::from_secs(5);
/// A rung is hot after as many windows in a row in which most messages came late.
const WINDOWS: u8 = 2;
/// With fewer messages a second from this worker a rung is not hot: something else makes them late.
const LEAST: u64 = 200;

/// So many rungs may be hot.
const MOST: usize = 16;

/// The rungs that were hot, and so have siblings, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HotRungs(BTreeSet<u64>);

impl HotRungs {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The same with this one. `None` if it is hot already, or if so many are that no further one gets siblings.
    pub fn with(&self, rung: Duration) -> Option<Self> {
        let mut wider = self.0.clone();
        (wider.len() < MOST && wider.insert(ms(rung))).then_some(Self(wider))
    }

    /// The same with those of `other`.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    /// Where a message sleeps whose rung this is: there, or if that is hot on its siblings in turn.
    pub fn rung(&self, rung: Duration, turn: u64) -> Duration {
        match self.0.contains(&ms(rung)) {
            true => sibling(rung, 1 + turn % SIBLINGS),
            false => rung,
        }
    }

    /// The hot rungs.
    pub fn rungs(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().copied().map(Duration::from_millis)
    }

    /// All siblings.
    pub fn siblings(&self) -> impl Iterator<Item = Duration> {
        self.rungs().flat_map(|rung| (1..=SIBLINGS).map(move |nth| sibling(rung, nth)))
    }
}

fn sibling(rung: Duration, nth: u64) -> Duration {
    rung + Duration::from_millis(nth)
}

fn ms(rung: Duration) -> u64 {
    u64::try_from(rung.as_millis()).unwrap_or(u64::MAX)
}

/// The load of each rung, by the successors that a worker sends there.
#[derive(Clone, Debug, Default)]
pub struct Loads(BTreeMap<Duration, Load>);

impl Loads {
    /// A successor is sent to the rung. `late` says that the broker handed its predecessor over late, though there was
    /// room for it. Whether the rung is hot by now; what is known of it begins anew then.
    pub fn sent(&mut self, rung: Duration, late: bool, now: Time) -> bool {
        let load = self.0.entry(rung).or_insert_with(|| Load::new(now));
        let hot = load.sent(late, now);
        if hot {
            *load = Load::new(now);
        }
        hot
    }
}

#[derive(Clone, Debug)]
struct Load {
    began: Time,
    sent: u64,
    late: u64,
    /// For how many windows most messages came late.
    hot: u8,
}

impl Load {
    fn new(began: Time) -> Self {
        Self { began, sent: 0, late: 0, hot: 0 }
    }

    fn sent(&mut self, late: bool, now: Time) -> bool {
        let lasted = now.since(self.began);
        if lasted >= WINDOW {
            let busy = u128::from(self.sent) * 1_000 >= u128::from(LEAST) * lasted.as_millis();
            self.hot = if busy && self.late * 2 > self.sent { self.hot + 1 } else { 0 };
            (self.began, self.sent, self.late) = (now, 0, 0);
        }
        self.sent += 1;
        self.late += u64::from(late);
        self.hot >= WINDOWS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNG: Duration = Duration::from_millis(59_990);

    #[test]
    fn a_hot_rung_is_spared_and_its_siblings_take_turns() {
        let none = HotRungs::default();
        assert_eq!(none.rung(RUNG, 5), RUNG);
        let hot = none.with(RUNG).unwrap();
        assert_eq!(hot.with(RUNG), None);
        let ms = |n| RUNG + Duration::from_millis(n);
        assert_eq!(hot.siblings().collect::<Vec<_>>(), (1..=8).map(ms).collect::<Vec<_>>());
        assert_eq!([0, 1, 7, 8].map(|turn| hot.rung(RUNG, turn)), [ms(1), ms(2), ms(8), ms(1)]);
        // All siblings are over before the delay is.
        assert!(hot.siblings().all(|sibling| sibling < RUNG + crate::ladder::AT_THE_DOOR));
        assert_eq!(hot.rung(Duration::from_secs(1), 5), Duration::from_secs(1), "others are as ever");
    }

    #[test]
    fn what_the_ledger_remembers_is_read_as_it_was_written() {
        let one = HotRungs::default().with(RUNG).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text, "[59990]");
        assert_eq!(serde_json::from_str::<HotRungs>(&text).unwrap(), one);
        let other = HotRungs::default().with(Duration::from_secs(1)).unwrap();
        assert_eq!((one.and(&other), one.and(&other).len()), (other.and(&one), 2));
        let many = (1..99).fold(HotRungs::default(), |hot, n| hot.with(Duration::from_secs(n)).unwrap_or(hot));
        assert_eq!(many.len(), MOST);
    }

    /// When the rung is first found hot, in seconds, with so many messages a second, every n-th of which is not late.
    fn hot_after(rate: u64, every: u64) -> Option<u64> {
        let at = |ms: u64| Time::from_millis(1_000_000 + ms as i64);
        let mut loads = Loads::default();
        let late = |n: &u64| every == 0 || !n.is_multiple_of(every);
        (0..rate * 60).find(|n| loads.sent(RUNG, late(n), at(n * 1_000 / rate))).map(|n| n / rate)
    }

    #[test]
    fn a_rung_is_hot_when_most_messages_come_late_for_ten_seconds() {
        let table = [
            ("all late", 1_000, 0, Some(10)),
            ("two of three late", 1_000, 3, Some(10)),
            ("half of them late", 1_000, 2, None),
            ("none late", 1_000, 1, None),
            ("just enough of them", 200, 0, Some(10)),
            ("too few to be the reason", 190, 0, None),
        ];
        for (label, rate, every, expected) in table {
            assert_eq!(hot_after(rate, every), expected, "{label}");
        }
    }

    #[test]
    fn a_burst_and_a_pause_make_no_rung_hot() {
        let at = |ms: i64| Time::from_millis(ms);
        let mut loads = Loads::default();
        // Seven seconds late, and then in time.
        assert!(!(0..7_000).any(|ms| loads.sent(RUNG, true, at(ms))));
        assert!(!(7_000..60_000).any(|ms| loads.sent(RUNG, false, at(ms))));
        // Late once in a while.
        assert!(!(60..160).any(|second| loads.sent(RUNG, true, at(second * 1_000))));
    }
}
