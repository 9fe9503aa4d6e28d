//! Days and hours of a calendar, as people write them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, date};

use super::DAY_MS;

/// No range of dates is longer, in days: a wrong year is found.
const MAX_RANGE: i64 = 3_660;

/// Some days.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Days {
    /// The days of the week.
    pub weekdays: Weekdays,
    /// Single days, by their number since 1970.
    pub dates: BTreeSet<i64>,
    /// Days of each year: month and day.
    pub yearly: BTreeSet<(i8, i8)>,
}

impl Days {
    /// Whether the day with this number since 1970 is one of them.
    pub fn contains(&self, day: i64) -> bool {
        self.weekdays.contains(day)
            || self.dates.contains(&day)
            || (!self.yearly.is_empty() && {
                let date = date_of(day);
                self.yearly.contains(&(date.month(), date.day()))
            })
    }

    /// Adds what a text such as `2026-12-25`, `2026-12-24..2026-12-31`, `12-25` or `12-24..12-31` names.
    ///
    /// # Errors
    /// Says what to write.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let (from, to) = text.split_once("..").map_or((text, text), |(from, to)| (from, to));
        match (parse_day(from.trim()), parse_day(to.trim())) {
            (Some(from), Some(to)) if from <= to && to - from <= MAX_RANGE => {
                self.dates.extend(from..=to);
                Ok(())
            }
            (Some(from), Some(to)) if from <= to => {
                Err(format!("`{text}` is longer than ten years; is one of the years wrong?"))
            }
            (Some(_), Some(_)) => Err(format!("`{text}` ends before it begins")),
            _ => self.add_yearly(text, from.trim(), to.trim()),
        }
    }

    fn add_yearly(&mut self, text: &str, from: &str, to: &str) -> Result<(), String> {
        // Those of a leap year are all that there are.
        let day = |text: &str| parse_day(&format!("2000-{text}")).filter(|_| text.len() == 5);
        match (day(from), day(to)) {
            (Some(from), Some(to)) if from <= to => {
                let days = (from..=to).map(date_of);
                self.yearly.extend(days.map(|date| (date.month(), date.day())));
                Ok(())
            }
            (Some(_), Some(_)) => Err(format!(
                "`{text}` goes past the end of the year; write two, such as \"12-24..12-31\" and \"01-01..01-06\""
            )),
            _ => Err(format!(
                "`{text}` is no day; write \"2026-12-25\", \"2026-12-24..2027-01-01\", or \"12-25\" for each year"
            )),
        }
    }
}

/// The number since 1970 of a day such as `2026-12-25`.
pub fn parse_day(text: &str) -> Option<i64> {
    // Others of ISO 8601 would be read, too, such as `2026-12-25T09`.
    (text.len() == 10).then(|| text.parse::<Date>().ok().map(number_of))?
}

/// The number since 1970 of a day.
pub(super) fn number_of(day: Date) -> i64 {
    day.duration_since(date(1970, 1, 1)).as_secs() / (DAY_MS / 1_000)
}

/// The day with this number since 1970.
pub(super) fn date_of(number: i64) -> Date {
    let since = jiff::SignedDuration::from_hours(number.clamp(-4_000_000, 2_900_000) * 24);
    date(1970, 1, 1).saturating_add(since)
}

/// Days of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weekdays(u8);

const NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl Weekdays {
    /// Whether the day with this number since 1970, a Thursday, is one of them.
    fn contains(self, day: i64) -> bool {
        self.0 & 1 << (day + 3).rem_euclid(7) != 0
    }
}

impl FromStr for Weekdays {
    type Err = String;

    /// Of text such as `mon-fri`, or `mon,wed,fri`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` are no days of the week; write \"mon-fri\", or \"mon,wed,fri\"");
        let number = |name: &str| {
            let name = name.trim().to_ascii_lowercase();
            NAMES.iter().position(|known| *known == name).ok_or_else(wrong)
        };
        let mut days = 0_u8;
        for part in text.split(',') {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (mut at, to) = (number(from)?, number(to)?);
            days |= 1 << to;
            while at != to {
                days |= 1 << at;
                at = (at + 1) % 7;
            }
        }
        Ok(Self(days))
    }
}

/// Hours of a day, such as `09:00-17:00`. Those that end before they begin, such as `22:00-06:00`, go on past midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    /// In milliseconds since midnight.
    from: i64,
    /// The same, exclusive.
    until: i64,
}

impl Hours {
    /// Where the answer changes.
    pub(super) fn edges(self) -> [i64; 2] {
        [self.from, self.until]
    }

    pub(super) fn on_their_day(self, shown: i64) -> bool {
        self.from <= shown && (self.until <= self.from || shown < self.until)
    }

    pub(super) fn on_the_next(self, shown: i64) -> bool {
        self.until < self.from && shown < self.until
    }
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` are no hours; write \"09:00-17:00\", or \"22:00-06:00\" across midnight");
        let time = |text: &str| {
            let (hour, minute) =
                text.trim().split_once(':').filter(|(hour, minute)| hour.len() <= 2 && minute.len() == 2)?;
            let digits =
                |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i64>().ok())?;
            let (hour, minute) = (digits(hour)?, digits(minute)?);
            (hour < 24 && minute < 60 || (hour, minute) == (24, 0)).then_some((hour * 60 + minute) * 60_000)
        };
        let (from, until) = text.split_once('-').ok_or_else(wrong)?;
        let (from, until) = (time(from).ok_or_else(wrong)?, time(until).ok_or_else(wrong)?);
        // Midnight at the end is that of the next day.
        let until = if until == 0 { DAY_MS } else { until };
        if from == until || from == DAY_MS {
            return Err(wrong());
        }
        Ok(Self { from, until })
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = |millis: i64| (millis / 3_600_000, millis / 60_000 % 60);
        let ((from, of_from), (until, of_until)) = (minutes(self.from), minutes(self.until));
        write!(f, "{from:02}:{of_from:02}-{until:02}:{of_until:02}")
    }
}
