//! Cron expressions in a time zone.
//!
//! Five fields, six with seconds in front, or `@hourly` and its like. What daylight saving does to
//! them follows Vixie's cron. An expression whose seconds, minutes and hours are all plain numbers
//! stands for wall-clock times: one that is skipped in spring runs right after the gap, one that
//! comes twice in autumn runs the first time only. Every other expression stands for a rhythm: it
//! has no occurrence in an hour that there is not, and goes on through one that there is twice.
//!
//! The wall clock may run faster than time ([`Pace`]): so a demo shows a night's table in half a minute.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::clock::Time;

/// How the wall clock runs beside time: at `origin` it shows `shown`, and from then on each millisecond is
/// `speed` of them. Before `origin` it stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// When the wall clock begins to run.
    pub origin: Time,
    /// What it shows then.
    pub shown: Time,
    /// How many times as fast as time it runs.
    pub speed: NonZeroU32,
}

impl Pace {
    /// What the wall clock shows at `time`; before its origin, the moment before it begins, so that an occurrence
    /// right at the beginning is still to come.
    pub fn shows(&self, time: Time) -> Time {
        if time < self.origin {
            return self.shown - Duration::from_millis(1);
        }
        let gone = time.as_millis().saturating_sub(self.origin.as_millis());
        Time::from_millis(gone.saturating_mul(self.speed()).saturating_add(self.shown.as_millis()))
    }

    /// The first millisecond at which the wall clock shows `shown` or later.
    pub fn time_of(&self, shown: Time) -> Time {
        let ahead = shown.as_millis().saturating_sub(self.shown.as_millis());
        let steps = ahead.div_euclid(self.speed()) + i64::from(ahead.rem_euclid(self.speed()) > 0);
        Time::from_millis(self.origin.as_millis().saturating_add(steps))
    }

    fn speed(&self) -> i64 {
        i64::from(self.speed.get())
    }
}

/// A cron expression and its time zone; clones share it.
/// ```
/// use jiff::Timestamp;
/// use roundelay_model::clock::Time;
/// use roundelay_model::schedule::Cron;
///
/// let at = |text: &str| text.parse::<Timestamp>().map(|at| Time::from_millis(at.as_millisecond()));
/// // Friday the 13th, in Berlin: `+` asks for both days, where either would be enough without it.
/// let cron = Cron::parse("0 9 13 * +5", Some("Europe/Berlin"))?;
/// assert_eq!(cron.after(at("2026-01-01T00:00:00Z")?), Some(at("2026-02-13T08:00:00Z")?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Cron {
    parsed: Arc<Parsed>,
    pace: Option<Pace>,
}

struct Parsed {
    pattern: croner::Cron,
    zone: TimeZone,
    text: String,
}

impl Cron {
    /// Reads `text`, to be understood in the time zone with this IANA name; UTC when there is none.
    ///
    /// # Errors
    /// Says what is wrong with which of the two.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        let wrong = |error: &dyn fmt::Display| {
            format!(
                "`{text}` is not a cron expression ({error}); write five fields, such as \"5 */4 * * *\" (minute, hour, \
                 day of month, month, day of week), six with seconds in front, or \"@hourly\""
            )
        };
        // The library takes a comma alone for a field that nothing fits, and looks for it for seconds.
        if text.split_whitespace().flat_map(|field| field.split(',')).any(str::is_empty) {
            return Err(wrong(&"a comma has nothing before or behind it"));
        }
        let pattern = text.parse::<croner::Cron>().map_err(|error| wrong(&error))?;
        let zone = match zone {
            None => TimeZone::UTC,
            Some(name) => super::calendar::zone(name)?,
        };
        let text = match zone.iana_name() {
            Some(name) => format!("{text} {name}"),
            None => text.into(),
        };
        let cron = Self { parsed: Arc::new(Parsed { pattern, zone, text }), pace: None };
        // February 30th, for example.
        match cron.after(Time::from_millis(1_700_000_000_000)) {
            Some(_) => Ok(cron),
            None => Err(format!("`{}` never occurs", cron.parsed.text)),
        }
    }

    /// The same expression by a wall clock that runs at `pace`; with none, by the ordinary one.
    pub fn paced(self, pace: Option<Pace>) -> Self {
        Self { pace, ..self }
    }

    /// How its wall clock runs, where that is not as fast as time.
    pub fn pace(&self) -> Option<Pace> {
        self.pace
    }

    /// The name of its time zone; none when it is UTC by default.
    pub fn zone(&self) -> Option<&str> {
        self.parsed.zone.iana_name()
    }

    /// The first occurrence after `time`; none when there is none in the years that the wall clock has.
    pub fn after(&self, time: Time) -> Option<Time> {
        let next = self.parsed.pattern.find_next_occurrence(&self.zoned(self.shown(time))?, false).ok()?;
        Some(self.time_of(next))
    }

    /// The last occurrence at or before `time`.
    pub fn at_or_before(&self, time: Time) -> Option<Time> {
        // Occurrences are whole seconds, and the search compares what is below.
        let second = Time::from_millis(self.shown(time).as_millis().div_euclid(1_000) * 1_000);
        let last = self.parsed.pattern.find_previous_occurrence(&self.zoned(second)?, true).ok()?;
        Some(self.time_of(last))
    }

    fn shown(&self, time: Time) -> Time {
        self.pace.map_or(time, |pace| pace.shows(time))
    }

    fn time_of(&self, occurrence: Zoned) -> Time {
        let shown = Time::from_millis(occurrence.timestamp().as_millisecond());
        self.pace.map_or(shown, |pace| pace.time_of(shown))
    }

    fn zoned(&self, time: Time) -> Option<Zoned> {
        Some(Timestamp::from_millisecond(time.as_millis()).ok()?.to_zoned(self.parsed.zone.clone()))
    }
}

/// The expression and the zone.
impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parsed.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({self})")
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.parsed.text == other.parsed.text && self.pace == other.pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Time {
        Time::from_millis(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    fn cron(text: &str, zone: &str) -> Cron {
        Cron::parse(text, Some(zone)).unwrap()
    }

    /// Occurrences in `from..to`, as UTC.
    fn occurrences(cron: &Cron, from: &str, to: &str) -> Vec<String> {
        let (mut at, to) = (time(from) - Duration::from_millis(1), time(to));
        let mut found = Vec::new();
        while let Some(next) = cron.after(at).filter(|next| *next < to) {
            found.push(next.to_string().replace(":00.000Z", "Z"));
            at = next;
        }
        found
    }

    #[test]
    fn a_table_of_next_occurrences() {
        let table = [
            ("5 * * * *", "UTC", "2026-01-01T00:05:00Z", "2026-01-01T01:05:00Z"),
            ("5 */4 * * *", "UTC", "2026-01-01T00:05:00Z", "2026-01-01T04:05:00Z"),
            ("5 */4 * * *", "UTC", "2026-01-01T00:04:59.999Z", "2026-01-01T00:05:00Z"),
            ("*/10 * * * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z"),
            ("@hourly", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
            ("@daily", "Europe/Berlin", "2026-01-01T00:00:00Z", "2026-01-01T23:00:00Z"),
            ("0 3 * * *", "Asia/Kolkata", "2026-01-01T00:00:00Z", "2026-01-01T21:30:00Z"),
            ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 12 * * MON", "UTC", "2026-01-01T00:00:00Z", "2026-01-05T12:00:00Z"),
            ("0 0 L * *", "UTC", "2026-02-01T00:00:00Z", "2026-02-28T00:00:00Z"),
        ];
        for (text, zone, from, expected) in table {
            assert_eq!(cron(text, zone).after(time(from)), Some(time(expected)), "{text} {zone} after {from}");
        }
    }

    #[test]
    fn the_last_occurrence_is_the_one_that_the_next_follows() {
        for (text, at, expected) in [
            ("5 * * * *", "2026-01-01T00:05:00Z", "2026-01-01T00:05:00Z"),
            ("5 * * * *", "2026-01-01T00:05:00.001Z", "2026-01-01T00:05:00Z"),
            ("5 * * * *", "2026-01-01T00:04:59.999Z", "2025-12-31T23:05:00Z"),
        ] {
            assert_eq!(cron(text, "UTC").at_or_before(time(at)), Some(time(expected)), "{text} at {at}");
        }
    }

    #[test]
    fn a_wall_clock_time_that_spring_skips_runs_after_the_gap() {
        let daily = cron("30 2 * * *", "Europe/Berlin");
        let found = occurrences(&daily, "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z");
        assert_eq!(found, ["2026-03-29T01:00Z", "2026-03-30T00:30Z"], "03:00 CEST, and then 02:30 CEST");
    }

    #[test]
    fn a_wall_clock_time_that_comes_twice_runs_the_first_time() {
        let daily = cron("30 2 * * *", "Europe/Berlin");
        let found = occurrences(&daily, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
        assert_eq!(found, ["2026-10-25T00:30Z", "2026-10-26T01:30Z"], "02:30 CEST, and then 02:30 CET");
    }

    #[test]
    fn a_rhythm_leaves_out_what_is_skipped_and_goes_on_through_what_comes_twice() {
        let (spring, summer) = ("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z");
        let (autumn, winter) = ("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z");
        for (text, in_spring, in_autumn) in
            [("*/30 * * * *", 46, 50), ("5 * * * *", 23, 25), ("*/5 * * * *", 276, 300), ("5 */4 * * *", 6, 6)]
        {
            let cron = cron(text, "Europe/Berlin");
            assert_eq!(occurrences(&cron, spring, summer).len(), in_spring, "{text}: a day of 23 hours");
            assert_eq!(occurrences(&cron, autumn, winter).len(), in_autumn, "{text}: a day of 25 hours");
        }
    }

    /// 250 minutes of a table in 30 s, from 23:58 on; the wall clock stands still before.
    #[test]
    fn a_wall_clock_that_runs_500_times_as_fast() {
        let origin = Time::from_millis(1_800_000_000_000);
        let shown = time("2026-01-05T22:58:00Z");
        let pace = Pace { origin, shown, speed: NonZeroU32::new(500).unwrap() };
        let paced = |text: &str| cron(text, "Europe/Berlin").paced(Some(pace));
        let minutes = |n: u64| origin + Duration::from_millis(120 * n);
        for (text, after, expected) in [
            ("* * * * *", origin - Duration::from_secs(60), minutes(0)),
            ("* * * * *", origin, minutes(1)),
            ("0 0 * * *", origin, minutes(2)),
            ("5 * * * *", origin, minutes(7)),
            ("5 * * * *", minutes(7), minutes(67)),
            ("0 3 * * *", origin, minutes(182)),
            // A millisecond before an occurrence that one is the next, and at its time the one after it.
            ("*/3 * * * *", minutes(5) - Duration::from_millis(1), minutes(5)),
            ("*/3 * * * *", minutes(5), minutes(8)),
        ] {
            assert_eq!(paced(text).after(after), Some(expected), "{text}");
        }
        assert_eq!(paced("5 * * * *").at_or_before(minutes(60)), Some(minutes(7)));
        // Where a speed does not divide a minute, what comes next is still after, and comes once.
        let odd = cron("* * * * *", "UTC").paced(Some(Pace { speed: NonZeroU32::new(7_001).unwrap(), ..pace }));
        let mut at = origin;
        for n in 1..2_000 {
            let next = odd.after(at).unwrap();
            assert!(next > at && odd.after(next - Duration::from_millis(1)) == Some(next), "occurrence {n}");
            assert_eq!(odd.at_or_before(next), Some(next), "occurrence {n}");
            at = next;
        }
        assert_eq!(at, odd.pace().unwrap().time_of(shown + Duration::from_secs(60 * 1_999)));
    }

    #[test]
    fn what_cannot_be_read_says_what_to_write() {
        for (text, zone, part) in [
            ("every day", None, "`every day` is not a cron expression"),
            ("61 * * * *", None, "not a cron expression"),
            ("0 0 30 2 *", None, "never occurs"),
            ("*/6 , * * * *", None, "a comma has nothing"),
            ("1,,2 * * * *", None, "a comma has nothing"),
            ("@hourly", Some("Berlin"), "`Berlin` is not a time zone; write an IANA name"),
        ] {
            let error = Cron::parse(text, zone).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
