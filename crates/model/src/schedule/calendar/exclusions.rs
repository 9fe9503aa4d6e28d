//! The calendars that say when the chains of a kind, or one chain, do not start.

use std::fmt;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::{Book, Hours, Local, Piece, bend, by_days};
use crate::clock::Time;

/// A text, or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum OneOrMany {
    /// One. An empty one is none.
    One(String),
    /// Some.
    Many(Vec<String>),
}

impl OneOrMany {
    /// The texts that are not empty.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let all = match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        };
        all.iter().map(|text| text.trim()).filter(|text| !text.is_empty())
    }
}

/// What becomes of an occurrence in excluded time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WhenExcluded {
    /// It is left out.
    #[default]
    Skip,
    /// It comes later: where a whole day is excluded, at the same time of the next day that is not; else at the end of
    /// the excluded hours.
    Next,
    /// It comes earlier: at the same time of the last day before that is not excluded as a whole; else a minute before
    /// the excluded hours.
    Previous,
}

/// When occurrences are excluded, and what becomes of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exclusions {
    /// All calendars there are, by name.
    pub book: Arc<Book>,
    /// Excluded is what is in one of these.
    pub except: Vec<String>,
    /// And what is in none of these, if there are any.
    pub only: Vec<String>,
    /// And what is in these hours.
    pub quiet: Vec<Hours>,
    /// The zone of `quiet`, of calendars that have none, and of the days that `when` speaks of; absent, UTC.
    pub zone: Option<TimeZone>,
    /// What becomes of an excluded occurrence.
    pub when: WhenExcluded,
}

/// What a chain's own schedule says in place of its kind's: absent, the kind's counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OwnExclusions {
    /// See [`Exclusions::except`].
    pub except: Option<OneOrMany>,
    /// See [`Exclusions::only`].
    pub only: Option<OneOrMany>,
    /// See [`Exclusions::quiet`].
    pub quiet: Option<OneOrMany>,
    /// See [`Exclusions::zone`].
    pub zone: Option<String>,
    /// See [`Exclusions::when`].
    pub when_excluded: Option<WhenExcluded>,
}

impl OwnExclusions {
    /// What these say in place of `of_kind`.
    ///
    /// # Errors
    /// Says which of them is wrong, and why.
    pub fn apply(&self, of_kind: &Exclusions) -> Result<Exclusions, (&'static str, String)> {
        let names = |own: &Option<OneOrMany>, of_kind: &Vec<String>| match own {
            Some(own) => own.texts().map(Into::into).collect(),
            None => of_kind.clone(),
        };
        let quiet = match &self.quiet {
            Some(quiet) => quiet.texts().map(str::parse).collect::<Result<_, _>>().map_err(|why| ("quiet", why))?,
            None => of_kind.quiet.clone(),
        };
        let zone = match &self.zone {
            Some(name) => Some(zone(name).map_err(|why| ("zone", why))?),
            None => of_kind.zone.clone(),
        };
        Ok(Exclusions {
            book: of_kind.book.clone(),
            except: names(&self.except, &of_kind.except),
            only: names(&self.only, &of_kind.only),
            quiet,
            zone,
            when: self.when_excluded.unwrap_or(of_kind.when),
        })
    }
}

/// The time zone with this IANA name.
///
/// # Errors
/// Says what to write.
pub fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name)
        .map_err(|_| format!("`{name}` is not a time zone; write an IANA name, such as \"Europe/Berlin\" or \"UTC\""))
}

/// What excludes a moment.
enum Cause<'e> {
    Quiet(Vec<String>),
    In(&'e str),
    NotIn(&'e [String]),
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quiet(hours) => write!(f, "in the quiet hours {}", hours.join(", ")),
            Self::In(name) => write!(f, "in the calendar `{name}`"),
            Self::NotIn([name]) => write!(f, "not in the calendar `{name}`"),
            Self::NotIn(names) => write!(f, "in none of the calendars `{}`", names.join("`, `")),
        }
    }
}

impl Exclusions {
    /// Whether nothing is excluded.
    pub fn is_none(&self) -> bool {
        self.except.is_empty() && self.only.is_empty() && self.quiet.is_empty()
    }

    /// The calendars that are named, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.except.iter().chain(&self.only).map(String::as_str)
    }

    /// A name that is in no book, if there is one.
    pub fn unknown(&self) -> Option<&str> {
        self.names().find(|name| !self.book.contains_key(*name))
    }

    /// The zone of days: the schedule's, or else that of the first of its calendars that has one.
    pub fn zone(&self) -> TimeZone {
        let of_calendars = || self.names().find_map(|name| self.book.get(name)?.zone.clone());
        self.zone.clone().or_else(of_calendars).unwrap_or(TimeZone::UTC)
    }

    /// Whether `wall`, a time of the wall clock, is excluded.
    pub fn piece(&self, wall: Time) -> Piece {
        let utc = TimeZone::UTC;
        let zone = self.zone.as_ref().unwrap_or(&utc);
        let mut piece = Piece::always(false);
        if !self.quiet.is_empty() {
            let quiet = by_days(None, &self.quiet, wall, zone);
            piece = piece.with(quiet, quiet.inside);
        }
        for calendar in self.except.iter().filter_map(|name| self.book.get(name)) {
            let found = calendar.piece(wall, zone, &self.book);
            piece = piece.with(found, piece.inside || found.inside);
        }
        let mut only = Piece::always(self.only.is_empty());
        for calendar in self.only.iter().filter_map(|name| self.book.get(name)) {
            let found = calendar.piece(wall, zone, &self.book);
            only = only.with(found, only.inside || found.inside);
        }
        piece.with(only, piece.inside || !only.inside)
    }

    /// Whether `wall` is excluded.
    pub fn excludes(&self, wall: Time) -> bool {
        !self.is_none() && self.piece(wall).inside
    }

    fn cause(&self, wall: Time) -> Option<Cause<'_>> {
        let utc = TimeZone::UTC;
        let zone = self.zone.as_ref().unwrap_or(&utc);
        if !self.quiet.is_empty() && by_days(None, &self.quiet, wall, zone).inside {
            return Some(Cause::Quiet(self.quiet.iter().map(ToString::to_string).collect()));
        }
        let is_in = |name: &&String| self.book.get(*name).is_some_and(|it| it.piece(wall, zone, &self.book).inside);
        if let Some(name) = self.except.iter().find(is_in) {
            return Some(Cause::In(name));
        }
        (!self.only.is_empty() && !self.only.iter().any(|name| is_in(&name))).then_some(Cause::NotIn(&self.only))
    }

    /// The first time from `wall` on that is not excluded; `None` when that does not come for ten years.
    pub fn allowed_from(&self, wall: Time) -> Option<Time> {
        if self.excludes(wall) { bend::until(self, wall, wall + bend::HORIZON) } else { Some(wall) }
    }

    /// Why `wall` is excluded, and until when: `02:13 is in the quiet hours 22:00-06:00 (Asia/Tokyo), until 06:00`.
    pub fn why_until(&self, wall: Time) -> Option<String> {
        let why = self.why(wall, wall)?;
        Some(match self.allowed_from(wall) {
            Some(until) => format!("{why}, until {}", Self::shown(&self.zone(), until, wall)),
            None => format!("{why}; nothing is allowed in the next ten years"),
        })
    }

    /// Why `wall` is excluded, for a person: `02:13 is in the quiet hours 22:00-06:00 (Asia/Tokyo)`. Nothing when it is
    /// not. Of another day than `today`, which is a time of the wall clock too, the date is said as well.
    pub fn why(&self, wall: Time, today: Time) -> Option<String> {
        let (cause, zone) = (self.cause(wall)?, self.zone());
        Some(format!("{} is {cause}{}", Self::shown(&zone, wall, today), Self::zone_words(&zone)))
    }

    /// A time of the wall clock as `zone` shows it: the hour, and for another day than that of `today` the date.
    pub fn shown(zone: &TimeZone, wall: Time, today: Time) -> String {
        let day = |time| Local::at(zone, time).shows(time).0;
        let shown = super::timestamp(wall).to_zoned(zone.clone());
        shown.strftime(if day(wall) == day(today) { "%H:%M" } else { "%Y-%m-%d %H:%M" }).to_string()
    }

    /// The name of a zone, in brackets.
    fn zone_words(zone: &TimeZone) -> String {
        zone.iana_name().map_or_else(String::new, |name| format!(" ({name})"))
    }

    /// What is excluded, and what becomes of it; nothing when nothing is.
    pub fn words(&self) -> Option<String> {
        let list = |names: &[String]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let mut parts = Vec::new();
        if !self.quiet.is_empty() {
            let hours: Vec<String> = self.quiet.iter().map(ToString::to_string).collect();
            let zone = self.zone.clone().unwrap_or(TimeZone::UTC);
            parts.push(format!("quiet {}{}", hours.join(", "), Self::zone_words(&zone)));
        }
        if !self.except.is_empty() {
            parts.push(format!("except {}", list(&self.except)));
        }
        if !self.only.is_empty() {
            parts.push(format!("only {}", list(&self.only)));
        }
        match self.when {
            WhenExcluded::Skip => {}
            WhenExcluded::Next => parts.push("else the next time".into()),
            WhenExcluded::Previous => parts.push("else the time before".into()),
        }
        (!self.is_none()).then(|| parts.join(", "))
    }
}
