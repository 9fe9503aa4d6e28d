//! Calendars as other programs write them: the part of iCalendar (RFC 5545) that says when events are (pure).
//!
//! An event whose times are dates is days of the calendar; one with times of the day is times. What is not understood is
//! refused with its line: an event that came at another time than its owner meant would be worse.

use jiff::civil::{Date, DateTime, Time as Clock};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp};

use super::days::number_of;
use super::rule::Rule;
use crate::clock::Time;

/// The days and times of the events of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Days, by their number since 1970.
    pub days: Vec<i64>,
    /// Times: from, and until, exclusive. In their order, and apart.
    pub times: Vec<(Time, Time)>,
}

/// A line of the file, unfolded.
struct Line {
    number: usize,
    name: String,
    parameters: Vec<(String, String)>,
    value: String,
}

/// An event as far as it is read.
#[derive(Default)]
struct Event {
    line: usize,
    summary: String,
    start: Option<When>,
    end: Option<When>,
    duration: Option<Span>,
    rule: Option<(usize, String)>,
    except: Vec<When>,
    cancelled: bool,
}

/// A date, or a time of a zone.
#[derive(Clone, Debug, PartialEq)]
enum When {
    Day(Date),
    Time(DateTime, TimeZone),
}

impl When {
    fn date(&self) -> Date {
        match self {
            Self::Day(day) => *day,
            Self::Time(at, _) => at.date(),
        }
    }
}

/// Reads the events of a file. Times that name no zone are of `zone`.
///
/// # Errors
/// Says what is wrong, in which line, and of which event.
pub fn parse(text: &str, zone: &TimeZone) -> Result<Events, String> {
    let mut events = Events::default();
    let (mut inside, mut event, mut calendars) = (Vec::<String>::new(), None::<Event>, 0);
    for line in lines(text)? {
        let at = |why: String| match event.as_ref().map(|event| &event.summary).filter(|summary| !summary.is_empty()) {
            Some(summary) => format!("line {} (event \"{summary}\"): {why}", line.number),
            None => format!("line {}: {why}", line.number),
        };
        match (line.name.as_str(), line.value.to_ascii_uppercase()) {
            ("BEGIN", name) => {
                calendars += usize::from(name == "VCALENDAR");
                if name == "VEVENT" {
                    event = Some(Event { line: line.number, ..Event::default() });
                }
                inside.push(name);
            }
            ("END", name) => {
                if inside.pop().as_ref() != Some(&name) {
                    return Err(at(format!("END:{name} ends nothing that has begun")));
                }
                if name == "VEVENT"
                    && let Some(event) = event.take()
                {
                    let named =
                        if event.summary.is_empty() { String::new() } else { format!(" \"{}\"", event.summary) };
                    let told = |why| format!("the event{named} that begins in line {}: {why}", event.line);
                    event.add_to(&mut events).map_err(told)?;
                }
            }
            // Not of the event itself, but of an alarm in it, say.
            _ if inside.last().is_none_or(|name| name != "VEVENT") => {}
            _ => {
                let Some(event) = &mut event else { continue };
                let number = line.number;
                if let Err(why) = event.read(line, zone) {
                    return Err(format!("line {number}: {why}"));
                }
            }
        }
    }
    if let Some(name) = inside.last() {
        return Err(format!("it ends within {name}; it is not whole"));
    }
    if calendars == 0 {
        return Err("it has no BEGIN:VCALENDAR; is it an iCalendar file?".into());
    }
    events.days.sort_unstable();
    events.days.dedup();
    events.times = joined(events.times);
    Ok(events)
}

/// Times in their order, those that touch or overlap made one.
fn joined(mut times: Vec<(Time, Time)>) -> Vec<(Time, Time)> {
    times.sort_unstable();
    let mut apart: Vec<(Time, Time)> = Vec::with_capacity(times.len());
    for (from, until) in times {
        match apart.last_mut() {
            Some((_, last)) if from <= *last => *last = until.max(*last),
            _ => apart.push((from, until)),
        }
    }
    apart
}

fn lines(text: &str) -> Result<Vec<Line>, String> {
    let mut unfolded: Vec<(usize, String)> = Vec::new();
    let text = text.trim_start_matches('\u{feff}');
    for (number, line) in text.split('\n').enumerate() {
        let line = line.strip_suffix('\r').unwrap_or(line);
        match (line.strip_prefix([' ', '\t']), unfolded.last_mut()) {
            (Some(more), Some((_, last))) => last.push_str(more),
            _ if line.trim().is_empty() => {}
            _ => unfolded.push((number + 1, line.to_owned())),
        }
    }
    unfolded.into_iter().map(|(number, line)| split(number, &line)).collect()
}

fn split(number: usize, line: &str) -> Result<Line, String> {
    let mut quoted = false;
    let colon = line.char_indices().find(|(_, c)| {
        quoted ^= *c == '"';
        *c == ':' && !quoted
    });
    let (colon, _) = colon.ok_or_else(|| format!("line {number}: `{line}` has no `:`; is it an iCalendar file?"))?;
    let mut parts = line[..colon].split(';');
    let name = parts.next().unwrap_or_default().to_ascii_uppercase();
    let parameters = parts.map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (name.to_ascii_uppercase(), value.trim_matches('"').to_owned())
    });
    Ok(Line { number, name, parameters: parameters.collect(), value: line[colon + 1..].trim().to_owned() })
}

impl Line {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn when(&self, text: &str, zone: &TimeZone) -> Result<When, String> {
        let wrong = || format!("`{text}` is neither a date such as 20261225 nor a time such as 20261225T093000");
        if text.len() == 8 {
            return day(text).map(When::Day).ok_or_else(wrong);
        }
        let (date, clock) = text.split_once('T').ok_or_else(wrong)?;
        let (clock, utc) = clock.strip_suffix('Z').map_or((clock, false), |clock| (clock, true));
        let at = day(date).zip(time(clock)).map(|(date, clock)| date.to_datetime(clock)).ok_or_else(wrong)?;
        let zone = match self.parameter("TZID") {
            _ if utc => TimeZone::UTC,
            None => zone.clone(),
            Some(name) => TimeZone::get(name.trim_start_matches('/')).map_err(|_| {
                format!("its TZID `{name}` is no IANA time zone, such as Europe/Berlin; export the calendar with those")
            })?,
        };
        Ok(When::Time(at, zone))
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn day(text: &str) -> Option<Date> {
    let part = |range: std::ops::Range<usize>| text.get(range);
    Date::new(number(part(0..4)?)?, number(part(4..6)?)?, number(part(6..8)?)?).ok().filter(|_| text.len() == 8)
}

fn time(text: &str) -> Option<Clock> {
    let part = |range: std::ops::Range<usize>| text.get(range);
    // A leap second is the last one of its minute.
    let second: i8 = number(part(4..6)?)?;
    Clock::new(number(part(0..2)?)?, number(part(2..4)?)?, second.min(59), 0).ok().filter(|_| text.len() == 6)
}

impl Event {
    fn read(&mut self, line: Line, zone: &TimeZone) -> Result<(), String> {
        match line.name.as_str() {
            "SUMMARY" => self.summary = line.value,
            "DTSTART" => self.start = Some(line.when(&line.value, zone)?),
            "DTEND" => self.end = Some(line.when(&line.value, zone)?),
            "DURATION" => {
                let wrong = |_| format!("`{}` is no duration such as P1D or PT1H30M", line.value);
                self.duration = Some(line.value.parse().map_err(wrong)?);
            }
            "RRULE" if self.rule.is_some() => return Err("it has two RRULEs; write two events".into()),
            "RRULE" => self.rule = Some((line.number, line.value)),
            "EXDATE" => {
                for text in line.value.split(',') {
                    self.except.push(line.when(text, zone)?);
                }
            }
            "STATUS" => self.cancelled = line.value.eq_ignore_ascii_case("CANCELLED"),
            "RDATE" => return Err("RDATE is not understood; write an event for each of its dates".into()),
            "EXRULE" => return Err("EXRULE is not understood; write EXDATE".into()),
            "RECURRENCE-ID" => {
                let why = "RECURRENCE-ID (one occurrence that is other than its series) is not understood";
                return Err(format!("{why}; write EXDATE in the series, and an event of its own"));
            }
            _ => {}
        }
        Ok(())
    }

    fn add_to(&self, events: &mut Events) -> Result<(), String> {
        if self.cancelled {
            return Ok(());
        }
        let start = self.start.as_ref().ok_or("it has no DTSTART")?;
        let dates = match &self.rule {
            None => vec![start.date()],
            Some((line, rule)) => {
                let told = |why| format!("line {line}: RRULE:{rule}: {why}");
                let until = |text: &str| until(text, start);
                Rule::parse(rule, until).and_then(|rule| rule.dates(start.date())).map_err(told)?
            }
        };
        match start {
            When::Day(first) => {
                let length = match (&self.end, self.duration) {
                    (Some(When::Day(end)), _) => number_of(*end) - number_of(*first),
                    (Some(When::Time(..)), _) => return Err("it begins with a date, and ends with a time".into()),
                    (None, Some(duration)) => {
                        let end = first.checked_add(duration).map_err(|_| "its DURATION is too long")?;
                        number_of(end) - number_of(*first)
                    }
                    (None, None) => 1,
                };
                if length < 1 {
                    return Err(
                        "it ends before it begins; the DTEND of an event of whole days is the day after it".into()
                    );
                }
                let gone = |date: &Date| self.except.iter().any(|except| except.date() == *date);
                for date in dates.into_iter().filter(|date| !gone(date)) {
                    events.days.extend((0..length).map(|n| number_of(date) + n));
                }
            }
            When::Time(first, zone) => {
                let moment = |at: DateTime, zone: &TimeZone| {
                    zone.to_timestamp(at).map_err(|_| "it is too far from now".to_owned())
                };
                let times: Vec<DateTime> = dates.into_iter().map(|date| date.to_datetime(first.time())).collect();
                let except = self.except.iter().map(|except| match except {
                    When::Day(day) => moment(day.to_datetime(first.time()), zone),
                    When::Time(at, zone) => moment(*at, zone),
                });
                let except: Vec<Timestamp> = except.collect::<Result<_, _>>()?;
                for at in times {
                    let from = moment(at, zone)?;
                    if except.contains(&from) {
                        continue;
                    }
                    let until = match (&self.end, self.duration) {
                        (Some(When::Time(end, other)), _) if other == zone => {
                            let length = end.duration_since(*first);
                            moment(at.checked_add(length).map_err(|_| "it is too far from now")?, zone)?
                        }
                        (Some(When::Time(end, other)), _) => {
                            let length = moment(*end, other)?.duration_since(moment(*first, zone)?);
                            from.checked_add(length).map_err(|_| "it is too far from now")?
                        }
                        (Some(When::Day(_)), _) => return Err("it begins with a time, and ends with a date".into()),
                        (None, Some(duration)) => {
                            let end = at.checked_add(duration).map_err(|_| "its DURATION is too long")?;
                            moment(end, zone)?
                        }
                        (None, None) => return Err("it has neither DTEND nor DURATION, so it takes no time".into()),
                    };
                    if until <= from {
                        return Err("it ends before it begins".into());
                    }
                    let millis = |at: Timestamp| Time::from_millis(at.as_millisecond());
                    events.times.push((millis(from), millis(until)));
                }
            }
        }
        Ok(())
    }
}

/// The last date of a rule, by the zone of its event's start.
fn until(text: &str, start: &When) -> Option<Date> {
    let Some((date, clock)) = text.split_once('T') else { return day(text) };
    let (clock, utc) = clock.strip_suffix('Z').map_or((clock, false), |clock| (clock, true));
    let at = day(date)?.to_datetime(time(clock)?);
    let at = match start {
        When::Time(_, zone) if utc => zone.to_datetime(TimeZone::UTC.to_timestamp(at).ok()?),
        _ => at,
    };
    let before = match start {
        // An occurrence later on that date is none any more.
        When::Time(first, _) if first.time() > at.time() => SignedDuration::from_hours(24),
        _ => SignedDuration::ZERO,
    };
    at.date().checked_sub(before).ok()
}
