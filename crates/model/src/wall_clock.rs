//! How the wall clock stands to the ledger's time (pure).
//!
//! The ledger's time is steady: it goes on as time does, whatever the wall clock is set to. Intervals, backoffs,
//! leases and throttles need nothing else. The wall clock does: a cron expression means what the wall clock shows.
//! So the ledger remembers when the wall clock was set, and how far ahead of its own time it has been since.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::Time;

/// So many settings of the wall clock are remembered.
pub const REMEMBERED: usize = 32;

/// From a time on, the wall clock is so far ahead of the ledger's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// When that began, by the ledger's time.
    pub since: Time,
    /// By how many milliseconds the wall clock is ahead; negative when it is behind.
    pub ahead: i64,
}

/// That the wall clock was set by so many milliseconds, in words.
pub fn set_words(by: i64) -> String {
    let way = if by < 0 { "back" } else { "forward" };
    format!("the wall clock was set {way} by {}", humantime::format_duration(Duration::from_millis(by.unsigned_abs())))
}

/// The wall clock was set forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leap {
    /// When, by the ledger's time.
    pub at: Time,
    /// The first wall time that was not shown.
    pub from: Time,
    /// The first one that was shown again.
    pub to: Time,
}

impl Leap {
    /// Whether this wall time is one of those that it went across.
    pub fn is_across(&self, wall: Time) -> bool {
        self.from <= wall && wall < self.to
    }
}

/// A stretch with its end.
#[derive(Clone, Copy, Debug)]
struct Span {
    since: Time,
    until: Option<Time>,
    ahead: i64,
}

impl Span {
    fn shown_at(&self, time: Time) -> Time {
        Time::from_millis(time.as_millis().saturating_add(self.ahead))
    }

    /// The first wall time that it showed. The first stretch of all has no beginning.
    fn begin(&self) -> Time {
        if self.since.as_millis() == i64::MIN { self.since } else { self.shown_at(self.since) }
    }

    /// The first that it did not show any more.
    fn end(&self) -> Time {
        self.until.map_or(Time::from_millis(i64::MAX), |until| self.shown_at(until))
    }

    fn shows(&self, wall: Time) -> bool {
        self.begin() <= wall && wall < self.end()
    }
}

/// The wall clock shows the ledger's time until it is set.
const EVER: Stretch = Stretch { since: Time::from_millis(i64::MIN), ahead: 0 };

/// What is remembered of the wall clock, oldest first. An empty one has shown the ledger's time ever since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    stretches: Vec<Stretch>,
}

impl WallClock {
    /// Of stretches in their order, as a ledger remembers them. As long as none is forgotten, the wall clock showed the
    /// ledger's time before the first.
    pub fn new(mut stretches: Vec<Stretch>) -> Self {
        let first = stretches.first().filter(|first| first.since != EVER.since);
        if first.is_some() && stretches.len() < REMEMBERED {
            stretches.insert(0, EVER);
        }
        Self { stretches }
    }

    /// The times that the wall clock was set, oldest first: when, by how many milliseconds, and by how many it has been
    /// ahead since.
    pub fn sets(&self) -> impl DoubleEndedIterator<Item = (Time, i64, i64)> + '_ {
        self.stretches
            .windows(2)
            .map(|pair| (pair[1].since, pair[1].ahead.saturating_sub(pair[0].ahead), pair[1].ahead))
    }

    /// When it was set last, by the ledger's time.
    pub fn last_set(&self) -> Option<Time> {
        self.sets().next_back().map(|(since, ..)| since)
    }

    /// The stretches in their order.
    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// By how many milliseconds the wall clock is ahead now.
    pub fn ahead(&self) -> i64 {
        self.stretches.last().map_or(0, |stretch| stretch.ahead)
    }

    /// What the wall clock shows at `time` of the ledger, as it is set now.
    pub fn wall(&self, time: Time) -> Time {
        Time::from_millis(time.as_millis().saturating_add(self.ahead()))
    }

    /// The ledger's time at which the wall clock shows `wall`, as it is set now.
    pub fn steady(&self, wall: Time) -> Time {
        Time::from_millis(wall.as_millis().saturating_sub(self.ahead()))
    }

    /// What the wall clock showed at `time` of the ledger, as it was set then.
    pub fn showed(&self, time: Time) -> Time {
        let then = self.stretches.iter().rev().find(|stretch| stretch.since <= time);
        let ahead = then.or(self.stretches.first()).map_or(0, |stretch| stretch.ahead);
        Time::from_millis(time.as_millis().saturating_add(ahead))
    }

    /// Whether the wall clock has gone past `wall` before, by running on, and was then set: so that what comes at
    /// that time would come twice. What it was only set across has not been shown.
    pub fn has_shown(&self, wall: Time) -> bool {
        self.shown_until(wall, Time::from_millis(i64::MAX)).is_some()
    }

    /// If a stretch that had ended by `by` of the ledger's time showed `wall`: what the clock had come to when it
    /// was set, exclusively. The latest, if there are several.
    pub fn shown_until(&self, wall: Time, by: Time) -> Option<Time> {
        let ended = self.spans().filter(|span| span.until.is_some_and(|until| until <= by));
        ended.filter(|span| span.shows(wall)).map(|span| span.end()).max()
    }

    /// When the wall clock came to `wall` last, by the ledger's time, and no later than `by`: when it showed that, or
    /// was set across it. `None` if it has not come there.
    pub fn came_to(&self, wall: Time, by: Time) -> Option<Time> {
        let begun: Vec<Span> = self.spans().filter(|span| span.since <= by).collect();
        let came = |span: &Span| Time::from_millis(wall.as_millis().saturating_sub(span.ahead));
        let showed = begun.iter().rev().find(|span| span.shows(wall) && came(span) <= by).map(came);
        let leapt = || self.leaps().filter(|leap| leap.at <= by && leap.is_across(wall)).last().map(|leap| leap.at);
        showed.or_else(leapt)
    }

    /// The highest time that the wall clock showed from `from` up to `to` of the ledger's time.
    pub fn highest(&self, from: Time, to: Time) -> Time {
        let within = self.spans().filter(|span| span.since <= to && span.until.is_none_or(|until| until > from));
        let last = |span: Span| match span.until.filter(|until| *until <= to) {
            Some(_) => span.end() - Duration::from_millis(1),
            None => Time::from_millis(to.as_millis().saturating_add(span.ahead)),
        };
        within.map(last).max().unwrap_or_else(|| self.wall(to))
    }

    /// The times that the wall clock was set across, where it was set forward: since when, from which wall time up
    /// to which, the last exclusively. Oldest first.
    pub fn leaps(&self) -> impl Iterator<Item = Leap> + '_ {
        let pairs = self.spans().zip(self.spans().skip(1));
        let leaps = pairs.map(|(before, after)| Leap { at: after.since, from: before.end(), to: after.begin() });
        leaps.filter(|leap| leap.from < leap.to)
    }

    /// What the wall clock showed before it was set last: for each stretch from which wall time up to which, the last
    /// exclusively. Oldest first.
    pub fn earlier(&self) -> impl Iterator<Item = (Time, Time)> + '_ {
        self.spans().filter(|span| span.until.is_some()).map(|span| (span.begin(), span.end()))
    }

    fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let never = self.stretches.is_empty().then_some(EVER);
        let next = self.stretches.iter().skip(1).map(|next| Some(next.since)).chain([None]);
        let spans = self.stretches.iter().copied().chain(never).zip(next);
        spans.map(|(Stretch { since, ahead }, until)| Span { since, until, ahead })
    }

    /// The same from `now` on with a wall clock that is so far ahead.
    #[must_use]
    pub fn set(&self, now: Time, ahead: i64) -> Self {
        let mut stretches = self.stretches.clone();
        if stretches.is_empty() {
            stretches.push(EVER);
        }
        stretches.push(Stretch { since: now, ahead });
        let surplus = stretches.len().saturating_sub(REMEMBERED);
        stretches.drain(..surplus);
        Self { stretches }
    }
}

/// A time of the wall clock: milliseconds since 1970, as other programs write them. For people it is RFC 3339. All
/// times that are shown are such; the ledger's become that here, and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = i64, example = 1_790_000_000_123_i64)]
pub struct At(Time);

impl At {
    /// What the wall clock shows at `time` of the ledger, as it is set now.
    pub fn of(time: Time, wall_clock: &WallClock) -> Self {
        Self(wall_clock.wall(time))
    }

    /// The same of a time that may never have come, which the ledger has as zero.
    pub fn known(time: Time, wall_clock: &WallClock) -> Option<Self> {
        (time != Time::default()).then(|| Self::of(time, wall_clock))
    }

    /// What is a time of the wall clock already.
    pub const fn wall(wall: Time) -> Self {
        Self(wall)
    }

    /// The time that the wall clock shows: to compare with others of its kind.
    pub const fn shown(self) -> Time {
        self.0
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(minutes: i64) -> Time {
        Time::from_millis(minutes * 60_000)
    }

    /// A wall clock that is so many minutes ahead from each of these minutes on.
    fn wall_clock(set: &[(i64, i64)]) -> WallClock {
        set.iter().fold(WallClock::default(), |wall_clock, (now, ahead)| wall_clock.set(at(*now), ahead * 60_000))
    }

    #[test]
    fn a_table_of_what_has_been_shown() {
        let back = wall_clock(&[(100, -30)]);
        let forward = wall_clock(&[(100, 60)]);
        let there_and_back = wall_clock(&[(100, 60), (110, 0)]);
        let back_and_right = wall_clock(&[(100, -60), (110, 0)]);
        let table = [
            ("never set", WallClock::default(), 50, false),
            ("set back: gone past", back.clone(), 75, true),
            ("set back: long ago", back.clone(), 10, true),
            ("set back: where it was set, it comes for the first time", back.clone(), 100, false),
            ("set back: to come", back, 101, false),
            ("set forward: gone past", forward.clone(), 99, true),
            ("set forward: what it was set across", forward.clone(), 130, false),
            ("set forward: to come, and this stretch is no earlier one", forward, 165, false),
            ("there and back: what it was set across really comes", there_and_back.clone(), 130, false),
            ("there and back: shown while it was wrong", there_and_back.clone(), 165, true),
            ("there and back: where it was set back", there_and_back, 170, false),
            ("back and right: shown before", back_and_right.clone(), 99, true),
            ("back and right: not shown while it was wrong either", back_and_right, 105, false),
        ];
        for (label, wall_clock, wall, shown) in table {
            assert_eq!(wall_clock.has_shown(at(wall)), shown, "{label}");
        }
    }

    #[test]
    fn a_table_of_when_the_clock_came_to_a_time() {
        let there_and_back = wall_clock(&[(100, 60), (110, 0)]);
        for (wall, by, came) in [
            (90, 95, Some(90)),
            (90, 85, None),
            (130, 105, Some(100)),
            (165, 108, Some(105)),
            (105, 120, Some(100)),
            (115, 120, Some(115)),
            (165, 120, Some(105)),
            (165, 200, Some(165)),
            (500, 200, None),
        ] {
            assert_eq!(there_and_back.came_to(at(wall), at(by)), came.map(at), "{wall} by {by}");
        }
        assert_eq!(there_and_back.showed(at(99)), at(99));
        assert_eq!(there_and_back.showed(at(100)), at(160));
        assert_eq!(there_and_back.showed(at(110)), at(110));
        assert_eq!(there_and_back.highest(at(90), at(120)), at(170) - Duration::from_millis(1));
        assert_eq!(there_and_back.highest(at(110), at(120)), at(120));
        assert_eq!(there_and_back.leaps().collect::<Vec<_>>(), [Leap { at: at(100), from: at(100), to: at(160) }]);
    }

    #[test]
    fn what_a_ledger_remembers_has_a_time_before_it() {
        let stretch = |n: i64| Stretch { since: at(n), ahead: -60_000 * n };
        let wall_clock = WallClock::new(vec![stretch(100)]);
        assert_eq!(wall_clock, super::tests::wall_clock(&[(100, -100)]));
        assert!(wall_clock.has_shown(at(99)) && !wall_clock.has_shown(at(100)));
        assert_eq!(wall_clock.sets().collect::<Vec<_>>(), [(at(100), -6_000_000, -6_000_000)]);
        let full = WallClock::new((1..=REMEMBERED as i64).map(stretch).collect());
        assert_eq!(full.stretches().len(), REMEMBERED, "what came before has been forgotten");
        assert_eq!(WallClock::new(Vec::new()), WallClock::default());
        assert_eq!(set_words(-3_600_000), "the wall clock was set back by 1h");
    }

    proptest! {
        /// Whatever the clock was set to: what counts as shown is what it showed at some minute before it was set last.
        #[test]
        fn what_has_been_shown_is_what_was_seen(
            set in prop::collection::vec((1_i64..40, -200_i64..200), 1..8),
            wall in -300_i64..500,
        ) {
            let mut now = 0;
            let set: Vec<(i64, i64)> = set.into_iter().map(|(gone, ahead)| { now += gone; (now, ahead) }).collect();
            let wall_clock = wall_clock(&set);
            // The clock ran for ever before it was set for the first time.
            let seen = wall < set[0].0 || (set[0].0..now).any(|minute| wall_clock.showed(at(minute)) == at(wall));
            prop_assert_eq!(wall_clock.has_shown(at(wall)), seen);
            prop_assert_eq!(wall_clock.steady(wall_clock.wall(at(wall))), at(wall));
            prop_assert_eq!(wall_clock.wall(at(now)), wall_clock.showed(at(now)));
        }
    }
}
