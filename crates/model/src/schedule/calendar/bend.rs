//! The occurrences that calendars leave of a schedule (pure).
//!
//! All times here are of the wall clock. A schedule has *plain* occurrences; what is left of them are those that come.
//!
//! - **skip**: those that are not excluded. An interval goes on by whole intervals, so chains keep their spread. An
//!   interval that would pass over a whole stretch of allowed time comes within that stretch: where it lay in the
//!   excluded time before it, in proportion. So a chain that ticks each 24 hours and lies in the quiet hours is not
//!   starved by them.
//! - **next** and **previous** have two steps. First, what lies on a day that is excluded as a whole moves to the same
//!   time of the nearest day that is not. Second, what is excluded still moves to the end of the excluded stretch, or to
//!   a minute before it. What falls on one moment is one.
//!
//! Each step says for any time what comes after it, without a memory: so a chain that is asked again, by another worker
//! or after years, gets the same answer.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::{DAY_MS, Exclusions, Local, WhenExcluded, moment};
use crate::clock::Time;

/// What is excluded for longer than this has no end.
pub const HORIZON: Duration = Duration::from_secs(3_660 * 86_400);
/// What lies further back has no say in what comes.
pub const LOOK_BACK: Duration = Duration::from_secs(366 * 86_400);
/// The same in days.
const LOOK_BACK_DAYS: i64 = 366;
/// What moves to before excluded time lies this long before it, so that it starts before that begins.
pub const BEFORE: Duration = Duration::from_secs(60);
/// Occurrences that are counted one by one.
const MAX_COUNTED: u32 = super::super::MAX_COUNTED;
const MS: Duration = Duration::from_millis(1);

/// Plain occurrences, and what excludes some of them.
pub struct Bend<'a> {
    rules: &'a Exclusions,
    zone: TimeZone,
    /// The first plain occurrence after a time.
    after: &'a dyn Fn(Time) -> Option<Time>,
    /// How far two of them are apart, where that is always the same.
    interval: Option<Duration>,
}

/// A day of the zone.
#[derive(Clone, Copy, Debug)]
struct Day {
    number: i64,
    begin: Time,
    end: Time,
}

/// A part of a day in which the wall clock runs on without a change.
#[derive(Clone, Copy, Debug)]
struct Part {
    from: Time,
    until: Time,
    /// What to add to a time for the milliseconds since the day's midnight, as the wall clock shows them.
    shift: i64,
}

impl Part {
    fn shown(self, time: Time) -> i64 {
        time.as_millis() + self.shift
    }

    fn time(self, shown: i64) -> Time {
        Time::from_millis(shown - self.shift)
    }
}

impl<'a> Bend<'a> {
    /// The first occurrence after a time is `after`; `interval` is how far they are apart, where that is always the same.
    pub fn new(rules: &'a Exclusions, after: &'a dyn Fn(Time) -> Option<Time>, interval: Option<Duration>) -> Self {
        Self { rules, zone: rules.zone(), after, interval: interval.map(|interval| interval.max(MS)) }
    }

    /// The first that comes after `time`; nothing when none comes within [`HORIZON`].
    pub fn after(&self, time: Time) -> Option<Time> {
        match (self.rules.when, self.interval) {
            (WhenExcluded::Skip, None) => self.skipped(time),
            (WhenExcluded::Skip, Some(interval)) => self.skipped_by_intervals(time, interval),
            (WhenExcluded::Next, _) => self.postponed(time),
            (WhenExcluded::Previous, _) => self.advanced(time),
        }
    }

    fn skipped(&self, time: Time) -> Option<Time> {
        let horizon = time + HORIZON;
        let mut time = time;
        loop {
            let next = (self.after)(time).filter(|next| *next <= horizon)?;
            if !self.rules.excludes(next) {
                return Some(next);
            }
            time = self.until(next, horizon)? - MS;
        }
    }

    fn skipped_by_intervals(&self, time: Time, interval: Duration) -> Option<Time> {
        let (horizon, mut from) = (time + HORIZON, time + MS);
        while from <= horizon {
            // The allowed stretch at or after `from`.
            let began = !self.rules.excludes(from);
            let begin = if began { from } else { self.until(from, horizon)? };
            let next = (self.after)(begin - MS)?;
            let Some(end) = self.until(begin, next) else { return Some(next) };
            let whole = if began { self.since(begin) } else { begin };
            if let Some(place) = self.place((whole, end), interval).filter(|place| *place >= from) {
                return Some(place);
            }
            // Nothing lies between, so no stretch between has a place either.
            if !self.rules.excludes(next) {
                return Some(next);
            }
            from = self.since(next).max(end);
        }
        None
    }

    /// Where an interval comes in an allowed stretch that it would pass over.
    fn place(&self, (begin, end): (Time, Time), interval: Duration) -> Option<Time> {
        if (self.after)(begin - MS)? < end || !self.rules.excludes(begin - MS) {
            return None;
        }
        let since = self.since(begin - MS);
        let first = (self.after)(since - MS).filter(|first| *first < begin)?;
        // A grid that begins later has its place in the interval, too.
        let gone = (first.since(since).as_millis() % interval.as_millis()) as f64;
        let share = gone / begin.since(since).min(interval).as_millis() as f64;
        Some((begin + end.since(begin).mul_f64(share.clamp(0.0, 1.0))).min(end - MS))
    }

    fn postponed(&self, time: Time) -> Option<Time> {
        let (horizon, mut time) = (time + HORIZON, time);
        if self.rules.excludes(time) {
            let end = self.until(time, horizon)?;
            if self.on_allowed_days(self.since(time) - MS).is_some_and(|first| first < end) {
                return Some(end);
            }
            time = end - MS;
        }
        let next = self.on_allowed_days(time)?;
        if self.rules.excludes(next) { self.until(next, horizon) } else { Some(next) }
    }

    fn advanced(&self, time: Time) -> Option<Time> {
        let (horizon, asked, mut time) = (time + HORIZON, time, time);
        loop {
            let next = self.on_allowed_days(time).filter(|next| *next <= horizon)?;
            if !self.rules.excludes(next) {
                // What is excluded right after it may move to before it.
                let moved = self.until(next, next + BEFORE).and_then(|begin| {
                    let end = self.until(begin, horizon)?;
                    self.on_allowed_days(begin - MS).filter(|first| *first < end)?;
                    Some(self.before(begin))
                });
                return Some(moved.filter(|moved| asked < *moved && *moved < next).unwrap_or(next));
            }
            let begin = self.since(next);
            let moved = self.before(begin);
            // What has been excluded for a year has nowhere to go.
            if moved > asked && !self.rules.excludes(begin - MS) {
                return Some(moved);
            }
            // It would lie in the past.
            time = self.until(next, horizon)? - MS;
        }
    }

    /// Where something moves that is excluded from `begin` on, by `previous`.
    fn before(&self, begin: Time) -> Time {
        (begin - BEFORE).max(self.since(begin - MS))
    }

    /// The first occurrence after `time` where all on days that are excluded as a whole have moved to other days.
    fn on_allowed_days(&self, time: Time) -> Option<Time> {
        let (horizon, mut time) = (time + HORIZON, time);
        while time <= horizon {
            let day = self.day(time + MS);
            if self.is_whole(day) {
                time = day.end - MS;
                continue;
            }
            let own = (self.after)(time).filter(|next| *next < day.end);
            let reached = self.reached(day, time);
            let moved = self.block(day).into_iter().flat_map(|other| {
                self.parts(other).filter_map(move |part| {
                    let from = reached.map_or(part.from, |reached| part.time(reached) + MS).max(part.from);
                    let found = (self.after)(from - MS).filter(|found| *found < part.until)?;
                    Some(self.at(day, part.shown(found)))
                })
            });
            if let Some(first) = own.into_iter().chain(moved).min() {
                return Some(first);
            }
            // On the days up to the next one there is nothing.
            let next = self.day((self.after)(day.end - MS)?);
            let target = if self.rules.when == WhenExcluded::Previous { self.block_before(next) } else { next };
            time = (target.begin - MS).max(day.end - MS);
        }
        None
    }

    /// The day itself, or, where it is excluded as a whole, the last before it that is not.
    fn block_before(&self, day: Day) -> Day {
        let days = (0..LOOK_BACK_DAYS).map(|back| self.numbered(day.number - back));
        let mut last = day;
        for earlier in days {
            last = earlier;
            if !self.is_whole(earlier) {
                break;
            }
        }
        last
    }

    /// The days whose occurrences move to this one.
    fn block(&self, day: Day) -> Vec<Day> {
        let step = if self.rules.when == WhenExcluded::Previous { 1 } else { -1 };
        let others = (1..=LOOK_BACK_DAYS).map(|n| self.numbered(day.number + n * step));
        others.take_while(|other| self.is_whole(*other)).collect()
    }

    /// How many plain occurrences come to be one of those after `from` and up to `to`, or to none. Both are occurrences
    /// that come, or `from` is where a chain begins.
    pub fn meant(&self, from: Time, to: Time) -> u64 {
        if self.rules.when == WhenExcluded::Skip {
            return self.plain(from, to);
        }
        let (mut total, mut at) = (0, self.since(from));
        while at <= to + BEFORE {
            let excluded = self.rules.excludes(at);
            let Some(end) = self.until(at, at + HORIZON) else {
                return total + if excluded { 0 } else { self.moved(from.max(at - MS), to) };
            };
            if !excluded {
                total += self.moved(from.max(at - MS), to.min(end - MS));
            } else {
                let image = if self.rules.when == WhenExcluded::Next { end } else { self.before(at) };
                // What would lie in the past is left out.
                let left_out = self.rules.when == WhenExcluded::Previous && image < from && at < to;
                if (from < image && image <= to) || left_out {
                    let begin = if left_out { from.max(at - MS) } else { at - MS };
                    total += self.moved(begin, end - MS);
                }
            }
            at = end;
        }
        total
    }

    /// How many occurrences there are after `from` and up to `to`, where all on days that are excluded as a whole have
    /// moved to other days.
    fn moved(&self, from: Time, to: Time) -> u64 {
        let (mut total, mut at) = (0, from + MS);
        while at <= to {
            let day = self.day(at);
            let last = (day.end - MS).min(to);
            if !self.is_whole(day) {
                total += self.plain(at - MS, last);
                let (after, up_to) = (self.reached(day, at - MS), self.reached(day, last));
                for part in self.block(day).into_iter().flat_map(|other| self.parts(other)) {
                    let from = after.map_or(part.from, |shown| part.time(shown) + MS).max(part.from);
                    let until = if last == day.end - MS {
                        part.until
                    } else {
                        up_to.map_or(part.from, |shown| part.time(shown) + MS).min(part.until)
                    };
                    total += self.plain(from - MS, until - MS);
                }
            }
            at = day.end;
        }
        total
    }

    /// How many plain occurrences there are after `from` and up to `to`.
    pub fn plain(&self, from: Time, to: Time) -> u64 {
        let Some(first) = (self.after)(from).filter(|first| *first <= to) else { return 0 };
        if let Some(interval) = self.interval {
            return (to.since(first).as_millis() / interval.as_millis()) as u64 + 1;
        }
        let (mut count, mut last) = (1, first);
        while let Some(next) = (self.after)(last).filter(|next| *next <= to && count < u64::from(MAX_COUNTED)) {
            (count, last) = (count + 1, next);
        }
        count
    }

    /// Those that come after `from` and up to `to`: how many, the first, and the last.
    pub fn between(&self, from: Time, to: Time) -> Option<(u64, Time, Time)> {
        let first = self.after(from).filter(|first| *first <= to)?;
        let (mut count, mut last) = (1, first);
        loop {
            if let (WhenExcluded::Skip, Some(interval)) = (self.rules.when, self.interval) {
                // All plain ones of the same allowed stretch at once.
                let end = self.until(last, to).unwrap_or(to + MS) - MS;
                let more = self.plain(last, end);
                count += more;
                last = last + interval * u32::try_from(more).unwrap_or(u32::MAX);
            }
            match self.after(last).filter(|next| *next <= to && count < u64::from(u32::MAX)) {
                Some(next) if self.rules.when == WhenExcluded::Skip || count < u64::from(MAX_COUNTED) => {
                    (count, last) = (count + 1, next);
                }
                _ => return Some((count, first, last)),
            }
        }
    }

    // ---- Stretches of excluded and of allowed time ----

    /// The end of the stretch that has `time`, if it is not after `limit`.
    fn until(&self, time: Time, limit: Time) -> Option<Time> {
        until(self.rules, time, limit)
    }

    /// The beginning of the stretch that has `time`.
    fn since(&self, time: Time) -> Time {
        since(self.rules, time)
    }

    // ---- Days ----

    fn numbered(&self, number: i64) -> Day {
        Day { number, begin: moment(&self.zone, number, 0), end: moment(&self.zone, number + 1, 0) }
    }

    fn day(&self, time: Time) -> Day {
        let day = self.numbered(Local::at(&self.zone, time).shows(time).0);
        // Where the clock was set back across midnight.
        if time >= day.end { self.numbered(day.number + 1) } else { day }
    }

    fn is_whole(&self, day: Day) -> bool {
        self.rules.excludes(day.begin) && self.until(day.begin, day.end - MS).is_none()
    }

    fn parts(&self, day: Day) -> impl Iterator<Item = Part> {
        let mut parts = Vec::with_capacity(1);
        let mut from = day.begin;
        while from < day.end {
            let local = Local::at(&self.zone, from);
            let until = local.until.min(day.end);
            parts.push(Part { from, until, shift: local.offset - day.number * DAY_MS });
            from = until;
        }
        parts.into_iter()
    }

    /// The latest time of day that the wall clock has shown by `time`; none before the day.
    fn reached(&self, day: Day, time: Time) -> Option<i64> {
        let begun = self.parts(day).filter(|part| part.from <= time);
        begun.map(|part| part.shown(time.min(part.until - MS))).max()
    }

    /// When the wall clock first shows this time of the day, or has gone past it.
    fn at(&self, day: Day, shown: i64) -> Time {
        let found = self.parts(day).find_map(|part| {
            let time = part.time(shown).max(part.from);
            (time < part.until).then_some(time)
        });
        found.unwrap_or(day.end - MS)
    }
}

/// The end of the stretch of excluded or allowed time that has `time`, if it is not after `limit`.
pub fn until(rules: &Exclusions, time: Time, limit: Time) -> Option<Time> {
    let piece = rules.piece(time);
    let mut end = piece.until;
    while end <= limit {
        let next = rules.piece(end);
        if next.inside != piece.inside {
            return Some(end);
        }
        end = next.until;
    }
    None
}

/// The beginning of the stretch of excluded or allowed time that has `time`, if it is not more than a year back.
pub fn since(rules: &Exclusions, time: Time) -> Time {
    let piece = rules.piece(time);
    let (mut from, least) = (piece.from, time - LOOK_BACK);
    while from > least {
        let before = rules.piece(from - MS);
        if before.inside != piece.inside {
            return from;
        }
        from = before.from;
    }
    from.max(least)
}
