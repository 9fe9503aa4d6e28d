//! Calendars: sets of wall-clock times, and the occurrences that they leave out of a schedule (pure).
//!
//! A [`Calendar`] is some days, or certain hours of them, in a time zone. It is asked for one moment at a time, and
//! answers whether the moment is in it, and from when until when the answer stays the same ([`Piece`]). So a search over
//! years goes from piece to piece, and nothing is stored for each day. A moment belongs to the hours that the wall clock
//! shows then: an hour that a change of the clock repeats is in the calendar both times, and one that is skipped never.
//!
//! [`Exclusions`] are the calendars of a kind, or of a chain. `bend` makes of the occurrences of a schedule those that
//! are left.

pub(super) mod bend;
mod days;
mod exclusions;
pub mod ics;
mod rule;

use std::collections::BTreeMap;

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

pub use days::{Days, Hours, Weekdays, parse_day};
pub use exclusions::{Exclusions, OneOrMany, OwnExclusions, WhenExcluded, zone};

use crate::clock::Time;

pub(super) const DAY_MS: i64 = 86_400_000;

/// A set of wall-clock times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calendar {
    /// Its time zone; absent, that of the schedule that asks.
    pub zone: Option<TimeZone>,
    /// Which days; absent, each.
    pub days: Option<Days>,
    /// Which hours of these days; none, all.
    pub hours: Vec<Hours>,
    /// Times beside the days, whatever the hours: from, and until, exclusive. In their order, and apart.
    pub times: Vec<(Time, Time)>,
    /// The names of calendars that are taken out.
    pub except: Vec<String>,
}

/// Calendars by name.
pub type Book = BTreeMap<String, Calendar>;

/// A stretch of time in which an answer stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The answer.
    pub inside: bool,
    /// The first moment.
    pub from: Time,
    /// The first moment after it.
    pub until: Time,
}

impl Piece {
    /// All of time.
    pub(super) const fn always(inside: bool) -> Self {
        Self { inside, from: Time::from_millis(i64::MIN), until: Time::from_millis(i64::MAX) }
    }

    /// The stretch that both have in common, with this answer.
    pub(super) fn with(self, other: Self, inside: bool) -> Self {
        Self { inside, from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

/// A stretch of time in which the wall clock of a zone runs on without a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    offset: i64,
    from: Time,
    until: Time,
}

impl Local {
    /// The one around `time`.
    pub(super) fn at(zone: &TimeZone, time: Time) -> Self {
        let at = timestamp(time);
        let millis = |at: Timestamp| Time::from_millis(at.as_millisecond());
        // What precedes a moment does not count the moment itself.
        let next = at.checked_add(SignedDuration::from_millis(1)).unwrap_or(Timestamp::MAX);
        let before =
            zone.preceding(next).next().map_or(Time::from_millis(i64::MIN), |change| millis(change.timestamp()));
        let after = zone.following(at).next().map_or(Time::from_millis(i64::MAX), |change| millis(change.timestamp()));
        Self { offset: i64::from(zone.to_offset(at).seconds()) * 1_000, from: before, until: after }
    }

    /// What the wall clock shows: the number of the day since 1970, and the milliseconds since its midnight.
    pub(super) fn shows(&self, time: Time) -> (i64, i64) {
        let shown = time.as_millis().saturating_add(self.offset);
        (shown.div_euclid(DAY_MS), shown.rem_euclid(DAY_MS))
    }

    /// The part of it in which the wall clock shows `from..until` of this day, in milliseconds since midnight.
    fn part(&self, day: i64, (from, until): (i64, i64), inside: bool) -> Piece {
        let at = |millis: i64| Time::from_millis(day.saturating_mul(DAY_MS).saturating_add(millis - self.offset));
        Piece { inside, from: at(from).max(self.from), until: at(until).min(self.until) }
    }
}

/// When the wall clock of a zone first shows so many milliseconds since midnight of a day, or, where that is skipped,
/// as long after the change.
pub(super) fn moment(zone: &TimeZone, day: i64, millis: i64) -> Time {
    let shown = timestamp(Time::from_millis(day.saturating_mul(DAY_MS).saturating_add(millis)));
    let civil = Offset::UTC.to_datetime(shown);
    let at = zone.to_timestamp(civil).unwrap_or(shown);
    Time::from_millis(at.as_millisecond())
}

fn timestamp(time: Time) -> Timestamp {
    let end = if time.as_millis() < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(time.as_millis()).unwrap_or(end)
}

impl Calendar {
    /// Whether `time` is in it. `zone` is that of the schedule that asks.
    pub fn piece(&self, time: Time, zone: &TimeZone, book: &Book) -> Piece {
        let zone = self.zone.as_ref().unwrap_or(zone);
        let by_days = match (&self.days, self.hours.is_empty()) {
            (None, true) => Piece::always(self.times.is_empty()),
            _ => by_days(self.days.as_ref(), &self.hours, time, zone),
        };
        let by_times = self.by_times(time);
        let mut piece = by_days.with(by_times, by_days.inside || by_times.inside);
        for other in self.except.iter().filter_map(|name| book.get(name)) {
            let other = other.piece(time, zone, book);
            piece = piece.with(other, piece.inside && !other.inside);
        }
        piece
    }

    fn by_times(&self, time: Time) -> Piece {
        let next = self.times.partition_point(|(from, _)| *from <= time);
        let last = next.checked_sub(1).map(|at| self.times[at]);
        if let Some((from, until)) = last.filter(|(_, until)| time < *until) {
            return Piece { inside: true, from, until };
        }
        let all = Piece::always(false);
        let until = self.times.get(next).map_or(all.until, |(from, _)| *from);
        Piece { inside: false, from: last.map_or(all.from, |(_, until)| until), until }
    }
}

/// Whether `time` is in these hours, if there are any, of these days, or of each.
fn by_days(days: Option<&Days>, hours: &[Hours], time: Time, zone: &TimeZone) -> Piece {
    let local = Local::at(zone, time);
    let (day, shown) = local.shows(time);
    let on = |day: i64| days.is_none_or(|days| days.contains(day));
    if hours.is_empty() {
        return local.part(day, (0, DAY_MS), on(day));
    }
    let (mut from, mut until, mut inside) = (0, DAY_MS, false);
    for hours in hours {
        for edge in hours.edges() {
            if edge <= shown {
                from = from.max(edge);
            } else {
                until = until.min(edge);
            }
        }
        // What goes on past midnight belongs to the day on which it began.
        inside |= hours.on_their_day(shown) && on(day) || hours.on_the_next(shown) && on(day - 1);
    }
    local.part(day, (from, until), inside)
}

/// The first names that lead back to themselves by `except`, if there are any: calendars that would be made of
/// themselves.
pub fn circle(book: &Book) -> Option<Vec<String>> {
    fn walk<'b>(
        book: &'b Book,
        name: &'b str,
        path: &mut Vec<&'b str>,
        done: &mut Vec<&'b str>,
    ) -> Option<Vec<String>> {
        if let Some(at) = path.iter().position(|before| *before == name) {
            return Some(path[at..].iter().chain([&name]).map(|name| (*name).to_owned()).collect());
        }
        if done.contains(&name) {
            return None;
        }
        path.push(name);
        let found =
            book.get(name).and_then(|calendar| calendar.except.iter().find_map(|other| walk(book, other, path, done)));
        path.pop();
        done.push(name);
        found
    }
    let mut done = Vec::new();
    book.keys().find_map(|name| walk(book, name, &mut Vec::new(), &mut done))
}

#[cfg(test)]
mod tests;
