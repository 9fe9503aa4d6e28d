//! Rules of iCalendar that events recur by (RFC 5545, 3.3.10): the part that calendars of holidays and of meetings use.

use jiff::ToSpan;
use jiff::civil::{Date, Weekday, date};

/// What recurs for ever is known until the end of this year.
const LAST_YEAR: i16 = 2100;
/// No event has more occurrences.
const MAX_OCCURRENCES: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freq {
    Daily,
    Weekly,
    Monthly,
    Yearly,
}

/// When an event recurs.
#[derive(Debug)]
pub struct Rule {
    freq: Freq,
    interval: i32,
    count: Option<usize>,
    until: Option<Date>,
    by_month: Vec<i8>,
    by_month_day: Vec<i8>,
    /// The weekday, and which of the month's: 0 for each, 1 for the first, −1 for the last.
    by_day: Vec<(i8, Weekday)>,
}

impl Rule {
    /// Reads the value of an RRULE; `until` reads its last date.
    ///
    /// # Errors
    /// Says what is wrong, or not understood.
    pub fn parse(text: &str, until: impl Fn(&str) -> Option<Date>) -> Result<Self, String> {
        let (mut freq, mut week) = (None, "MO");
        let mut rule = Self {
            freq: Freq::Yearly,
            interval: 1,
            count: None,
            until: None,
            by_month: Vec::new(),
            by_month_day: Vec::new(),
            by_day: Vec::new(),
        };
        for part in text.split(';').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("`{part}` has no `=`"))?;
            let wrong = || format!("`{part}` cannot be read");
            let numbers = |least: i8, most: i8| -> Result<Vec<i8>, String> {
                let one = |text: &str| text.parse::<i8>().ok().filter(|n| *n != 0 && (least..=most).contains(n));
                value.split(',').map(|text| one(text).ok_or_else(wrong)).collect()
            };
            match name {
                "FREQ" => {
                    freq = Some(match value {
                        "DAILY" => Freq::Daily,
                        "WEEKLY" => Freq::Weekly,
                        "MONTHLY" => Freq::Monthly,
                        "YEARLY" => Freq::Yearly,
                        _ => return Err(format!("FREQ={value} is not understood")),
                    });
                }
                "INTERVAL" => {
                    rule.interval = value.parse().ok().filter(|n| (1..=10_000).contains(n)).ok_or_else(wrong)?;
                }
                "COUNT" => rule.count = Some(value.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?),
                "UNTIL" => rule.until = Some(until(value).ok_or_else(wrong)?),
                "BYMONTH" => rule.by_month = numbers(1, 12)?,
                "BYMONTHDAY" => rule.by_month_day = numbers(-31, 31)?,
                "BYDAY" => {
                    rule.by_day =
                        value.split(',').map(|text| weekday(text).ok_or_else(wrong)).collect::<Result<_, _>>()?;
                }
                "WKST" => week = value,
                _ => return Err(format!("{name} is not understood")),
            }
        }
        rule.freq = freq.ok_or("it has no FREQ")?;
        let numbered = rule.by_day.iter().any(|(nth, _)| *nth != 0);
        match rule.freq {
            Freq::Daily | Freq::Weekly if numbered => Err("a number in BYDAY goes with months".into()),
            Freq::Yearly if !rule.by_day.is_empty() && rule.by_month.is_empty() => {
                Err("BYDAY in a yearly rule is understood with BYMONTH only".into())
            }
            Freq::Weekly if rule.interval > 1 && week != "MO" => {
                Err("weeks that do not begin on Monday (WKST) are not understood".into())
            }
            _ => Ok(rule),
        }
    }

    /// The dates of the event that begins on `start`. That day is the first of them, whether it fits the rule or not.
    ///
    /// # Errors
    /// When there are too many.
    pub fn dates(&self, start: Date) -> Result<Vec<Date>, String> {
        let last = self.until.unwrap_or(Date::MAX).min(date(LAST_YEAR, 12, 31));
        let most = self.count.unwrap_or(usize::MAX);
        let mut dates = vec![start];
        for step in 0_i64.. {
            let Some((_, mut found)) = self.period(start, step).filter(|(first, _)| *first <= last) else { break };
            found.sort_unstable();
            found.dedup();
            for date in found.into_iter().filter(|date| *date > start && *date <= last) {
                if dates.len() == most {
                    return Ok(dates);
                }
                if dates.len() == MAX_OCCURRENCES {
                    return Err(format!("it has more than {MAX_OCCURRENCES} occurrences; add UNTIL or COUNT"));
                }
                dates.push(date);
            }
        }
        Ok(dates)
    }

    /// The first day of the `step`-th day, week, month or year, and the days of it that the rule has.
    fn period(&self, start: Date, step: i64) -> Option<(Date, Vec<Date>)> {
        let n = step.checked_mul(i64::from(self.interval)).filter(|n| *n < 1_000_000)?;
        let in_month = |date: &Date| self.by_month.is_empty() || self.by_month.contains(&date.month());
        match self.freq {
            Freq::Daily => {
                let day = start.checked_add(n.days()).ok()?;
                let fits = in_month(&day)
                    && (self.by_month_day.is_empty() || self.by_month_day.iter().any(|n| is_nth(day, *n)))
                    && (self.by_day.is_empty() || self.is_by_day(day));
                Some((day, fits.then_some(day).into_iter().collect()))
            }
            Freq::Weekly => {
                let back = i64::from(start.weekday().to_monday_zero_offset());
                let monday = start.checked_add((n * 7 - back).days()).ok()?;
                let week = (0..7).filter_map(|n: i64| monday.checked_add(n.days()).ok());
                let fits = |day: &Date| match self.by_day.is_empty() {
                    true => day.weekday() == start.weekday(),
                    false => self.is_by_day(*day),
                };
                Some((monday, week.filter(|day| fits(day) && in_month(day)).collect()))
            }
            Freq::Monthly => {
                let first = start.first_of_month().checked_add(n.months()).ok()?;
                Some((first, if in_month(&first) { self.of_month(first, start) } else { Vec::new() }))
            }
            Freq::Yearly => {
                let year = i16::try_from(i64::from(start.year()) + n).ok()?;
                let months = match (self.by_month.is_empty(), self.by_month_day.is_empty()) {
                    (false, _) => self.by_month.clone(),
                    (true, true) => vec![start.month()],
                    (true, false) => (1..=12).collect(),
                };
                let firsts = months.into_iter().filter_map(|month| Date::new(year, month, 1).ok());
                Some((Date::new(year, 1, 1).ok()?, firsts.flat_map(|first| self.of_month(first, start)).collect()))
            }
        }
    }

    /// The days that the rule has of the month that begins with `first`.
    fn of_month(&self, first: Date, start: Date) -> Vec<Date> {
        let all = (1..=first.days_in_month()).filter_map(|day| Date::new(first.year(), first.month(), day).ok());
        let fits = |day: &Date| match (self.by_month_day.is_empty(), self.by_day.is_empty()) {
            (true, true) => day.day() == start.day(),
            (by_number, by_day) => {
                (by_number || self.by_month_day.iter().any(|n| is_nth(*day, *n))) && (by_day || self.is_by_day(*day))
            }
        };
        all.filter(fits).collect()
    }

    fn is_by_day(&self, day: Date) -> bool {
        let (from_start, from_end) = ((day.day() + 6) / 7, -((day.days_in_month() - day.day()) / 7 + 1));
        let fits = |(nth, weekday): &(i8, Weekday)| {
            *weekday == day.weekday() && (*nth == 0 || *nth == from_start || *nth == from_end)
        };
        self.by_day.iter().any(fits)
    }
}

/// Whether it is this day of its month; −1 is the last.
fn is_nth(day: Date, n: i8) -> bool {
    day.day() == n || day.day() - day.days_in_month() - 1 == n
}

fn weekday(text: &str) -> Option<(i8, Weekday)> {
    let (nth, name) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let day = match name {
        "MO" => Weekday::Monday,
        "TU" => Weekday::Tuesday,
        "WE" => Weekday::Wednesday,
        "TH" => Weekday::Thursday,
        "FR" => Weekday::Friday,
        "SA" => Weekday::Saturday,
        "SU" => Weekday::Sunday,
        _ => return None,
    };
    let nth = if nth.is_empty() { 0 } else { nth.parse::<i8>().ok().filter(|n| *n != 0 && (-5..=5).contains(n))? };
    Some((nth, day))
}
