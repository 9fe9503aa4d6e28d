//! When the chains of a kind recur, and what may keep a tick from starting: raw settings → checked
//! ones. A single chain may have a schedule of its own, written as JSON with the same words.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use roundelay_model::clock::{Time, parse_duration, short_duration};
use roundelay_model::guard::Guard;
use roundelay_model::ladder::rungs_of_interval;
use roundelay_model::outcome::MAX_WAIT;
use roundelay_model::schedule::calendar::{Book, zone as zone_named};
use roundelay_model::schedule::{
    Catch, Cron, Exclusions, From, MISFIRE_WINDOW, Misfire, OneOrMany, Overlap, OwnExclusions, Rhythm, Schedule,
    WhenExcluded,
};
use roundelay_model::wall_clock::WallClock;
use serde::{Deserialize, Serialize};

use super::{calendars, raw};
use crate::fresh::{self, FreshSettings};
use crate::problems::{MAX_TIMEOUT, Problems, TEN_YEARS};

/// What is later than this part of `misfire_spread` is spread: much less than what an outage holds up, and
/// more than an ordinary queue does.
const SPREAD_FROM: u32 = 60;

/// What a time zone is for.
const ZONE: &str = "goes with `cron`, `quiet`, `except` or `only`";

/// When chains of a kind recur.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    /// When ticks come.
    pub schedule: Schedule,
    /// Two starts may lie closer together than the interval by this, and no more.
    pub tolerance: Option<Duration>,
    /// Between the end of a run and the next start, at least.
    pub cooldown: Duration,
    /// How long a run may take before it has to make room.
    pub time_box: Option<TimeBox>,
    /// Within these, a run may say when the next tick is due.
    pub next_in: (Duration, Duration),
    /// An HTTP answer's `Cache-Control` or `Expires` says when the next tick is due.
    pub freshness: bool,
    /// The interval follows from what has been learned; `schedule` has the longest one.
    pub fresh: Option<FreshSettings>,
}

/// A limit that is no failure to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeBox {
    /// How long.
    pub length: Length,
    /// How long after that a run that has not ended is aborted.
    pub grace: Duration,
}

/// How long a time box is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// So long.
    Fixed(Duration),
    /// This share of the interval.
    Share(f64),
}

impl Recurrence {
    /// What a tick has to satisfy before it starts.
    pub fn guard(&self, slack: Duration, wall_clock: &WallClock) -> Guard {
        let Schedule { rhythm, misfire, excluded, .. } = &self.schedule;
        let interval = match rhythm {
            Rhythm::Every { interval, .. } => *interval,
            Rhythm::Cron(_) | Rhythm::At(_) => Duration::ZERO,
        };
        let late_after = match misfire {
            Misfire { policy: Catch::Skip, window, .. } => Some(window.unwrap_or(MISFIRE_WINDOW)),
            Misfire { window: Some(window), spread, .. } if spread.is_zero() => Some(*window),
            Misfire { window, spread, .. } if !spread.is_zero() => {
                let late = (*spread / SPREAD_FROM).min(slack);
                Some(window.map_or(late, |window| window.min(late)))
            }
            _ => None,
        };
        let (tolerance, cooldown, excluded) = (self.tolerance, self.cooldown, excluded.clone());
        Guard { interval, tolerance, cooldown, late_after, excluded, ahead: wall_clock.ahead() }
    }

    /// When ticks come, for a person.
    pub fn words(&self) -> String {
        match &self.fresh {
            Some(fresh) => {
                let calendars = self.schedule.excluded.words().map_or_else(String::new, |words| format!(", {words}"));
                format!("learned, {} to {}{calendars}", short_duration(fresh.min), short_duration(fresh.max))
            }
            None => self.schedule.to_string(),
        }
    }

    /// The schedule of a chain that begins.
    pub fn beginning(&self) -> Schedule {
        let first = self.fresh.as_ref().map(|fresh| Rhythm::Every { interval: fresh.middle(), from: From::Finish });
        Schedule { rhythm: first.unwrap_or_else(|| self.schedule.rhythm.clone()), ..self.schedule.clone() }
    }

    /// How long a run that starts at `now` may take, and how long it is waited for then. `schedule` is that of its
    /// chain, whose interval a share is of. A box is never longer than a worker can keep the run's message.
    pub fn time_box(&self, schedule: &Schedule, now: Time, wall_clock: &WallClock) -> Option<(Duration, Duration)> {
        let TimeBox { length, grace } = self.time_box?;
        let length = match length {
            Length::Fixed(length) => length,
            Length::Share(share) => schedule.interval(now, wall_clock)?.mul_f64(share),
        };
        Some((length.min(MAX_TIMEOUT), grace))
    }

    /// The schedule of a chain that has one of its own.
    ///
    /// # Errors
    /// Says what is wrong with it, or why it does not go with the kind's `tolerance`: one that is as long as the
    /// interval would keep no two starts apart.
    pub fn with_own(&self, own: &OwnSchedule) -> Result<Schedule, String> {
        let beginning = self.beginning();
        let schedule = own.apply(if own.names_times() { &self.schedule } else { &beginning })?;
        match (&schedule.rhythm, self.tolerance) {
            (Rhythm::Every { interval, .. }, Some(tolerance)) if tolerance >= *interval => Err(format!(
                "its interval of {} is not longer than its kind's `tolerance` of {}, so nothing would keep its starts \
                 apart",
                short_duration(*interval),
                short_duration(tolerance)
            )),
            _ => Ok(schedule),
        }
    }
}

/// A schedule of a chain's own: the part of a kind's settings that says when, in place of all of it. One that says only
/// what calendars exclude leaves the times to the kind.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OwnSchedule {
    /// The interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// What the interval is counted from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<raw::From>,
    /// A cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Its time zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Once, then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// How far an occurrence may lie from its nominal time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    /// Calendars in whose time nothing starts, in place of the kind's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub except: Option<OneOrMany>,
    /// The same for calendars outside of whose time nothing starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only: Option<OneOrMany>,
    /// The same for hours in which nothing starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet: Option<OneOrMany>,
    /// The same for what becomes of an occurrence in excluded time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_excluded: Option<WhenExcluded>,
}

impl OwnSchedule {
    /// Whether it says when ticks come, and not only what calendars exclude.
    pub fn names_times(&self) -> bool {
        self.every.is_some() || self.cron.is_some() || self.at.is_some()
    }

    /// Reads what a roster or an operator says, and checks it.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let own: Self = serde_json::from_str(text).map_err(|error| format!("not a schedule: {error}"))?;
        // Which calendars there are, the kind knows.
        own.times(&Schedule::fixed_delay(Duration::from_secs(1), Duration::ZERO))?;
        Ok(own)
    }

    /// What a person writes in a word: an interval, a cron expression, or JSON.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn from_words(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with('{') {
            return Self::parse(text);
        }
        let own = match parse_duration(text) {
            Ok(_) => Self { every: Some(text.into()), ..Self::default() },
            Err(_) => Self { cron: Some(text.into()), ..Self::default() },
        };
        own.times(&Schedule::fixed_delay(Duration::from_secs(1), Duration::ZERO)).map_err(|_| {
            format!("`{text}` is no schedule; write an interval such as \"5m\", a cron expression, or a JSON object")
        })?;
        Ok(own)
    }

    /// As the ledger keeps it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The kind's schedule with this one's times.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn apply(&self, of_kind: &Schedule) -> Result<Schedule, String> {
        let schedule = self.times(of_kind)?;
        match schedule.excluded.unknown() {
            Some(name) => Err(format!("there is no [calendars.{name}] in the configuration")),
            None if self.zone.is_some() && self.cron.is_none() && schedule.excluded.is_none() => {
                Err(format!("`zone` {ZONE}"))
            }
            None => Ok(schedule),
        }
    }

    fn times(&self, of_kind: &Schedule) -> Result<Schedule, String> {
        let own = OwnExclusions {
            except: self.except.clone(),
            only: self.only.clone(),
            quiet: self.quiet.clone(),
            zone: self.zone.clone(),
            when_excluded: self.when_excluded,
        };
        let excluded = own.apply(&of_kind.excluded).map_err(|(key, message)| format!("`{key}`: {message}"))?;
        let duration = |text: &Option<String>| text.as_deref().map(parse_duration).transpose();
        let when = When {
            every: duration(&self.every)?,
            from: self.from.or_else(|| counted_from(of_kind).filter(|_| self.every.is_some())),
            cron: self.cron.clone(),
            zone: self.zone.clone().or_else(|| zone(of_kind).filter(|_| self.cron.is_some())),
            at: self.at.clone(),
            calendars: true,
        };
        let rhythm = match when.rhythm() {
            Ok(Some(rhythm)) => rhythm,
            Ok(None) if own != OwnExclusions::default() && self.jitter.is_none() => {
                return Ok(Schedule { excluded, ..of_kind.clone() });
            }
            Ok(None) => return Err("it needs one of `every`, `cron` and `at`".into()),
            Err((key, message)) => return Err(format!("`{key}`: {message}")),
        };
        let jitter = duration(&self.jitter)?.unwrap_or_default();
        if matches!(rhythm, Rhythm::Every { interval, .. } if jitter >= interval) {
            return Err("`jitter` must be smaller than `every`".into());
        }
        // A wall clock runs as fast for a chain as for its kind.
        let rhythm = match (rhythm, &of_kind.rhythm) {
            (Rhythm::Cron(own), Rhythm::Cron(of_kind)) => Rhythm::Cron(own.paced(of_kind.pace())),
            (rhythm, _) => rhythm,
        };
        Ok(Schedule { rhythm, jitter, excluded, learns: false, ..of_kind.clone() })
    }
}

fn zone(schedule: &Schedule) -> Option<String> {
    match &schedule.rhythm {
        Rhythm::Cron(cron) => cron.zone().map(Into::into),
        Rhythm::Every { .. } | Rhythm::At(_) => schedule.excluded.zone.as_ref()?.iana_name().map(Into::into),
    }
}

fn counted_from(schedule: &Schedule) -> Option<raw::From> {
    match schedule.rhythm {
        Rhythm::Every { from: From::Finish, .. } => Some(raw::From::Finish),
        Rhythm::Every { from: From::Start, .. } => Some(raw::From::Start),
        Rhythm::Every { from: From::Nominal, .. } => Some(raw::From::Nominal),
        Rhythm::Cron(_) | Rhythm::At(_) => None,
    }
}

/// The settings that say when.
struct When {
    every: Option<Duration>,
    from: Option<raw::From>,
    cron: Option<String>,
    zone: Option<String>,
    at: Option<String>,
    /// Whether there are calendars for which the zone counts, too.
    calendars: bool,
}

impl When {
    /// The rhythm, if there is one; else what is wrong with which setting.
    fn rhythm(&self) -> Result<Option<Rhythm>, (&'static str, String)> {
        let given = [self.every.is_some(), self.cron.is_some(), self.at.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(("every", "only one of `every`, `cron` and `at` is possible".into()));
        }
        if self.from.is_some() && self.every.is_none() {
            return Err(("from", "goes with `every`".into()));
        }
        if self.zone.is_some() && self.cron.is_none() && !self.calendars {
            return Err(("zone", ZONE.into()));
        }
        if let Some(interval) = self.every {
            let (least, most) = (Duration::from_millis(1), TEN_YEARS);
            if interval < least || interval > most {
                return Err(("every", format!("{interval:?} is out of range; from {least:?} to {most:?} is possible")));
            }
            let from = match self.from.unwrap_or_default() {
                raw::From::Finish => From::Finish,
                raw::From::Start => From::Start,
                raw::From::Nominal => From::Nominal,
            };
            return Ok(Some(Rhythm::Every { interval, from }));
        }
        if let Some(cron) = &self.cron {
            let key = if Cron::parse(cron, None).is_err() { "cron" } else { "zone" };
            return Cron::parse(cron, self.zone.as_deref()).map(|cron| Some(Rhythm::Cron(cron))).map_err(|e| (key, e));
        }
        let Some(at) = &self.at else { return Ok(None) };
        at_time(at).map(|at| Some(Rhythm::At(at))).map_err(|message| ("at", message))
    }
}

/// A point in time as people write it.
///
/// # Errors
/// Says what to write.
pub fn at_time(text: &str) -> Result<Time, String> {
    let time = text.trim().parse::<Timestamp>().map(|at| Time::from_millis(at.as_millisecond()));
    time.map_err(|_| format!("`{text}` is not a time; write \"2027-01-01T03:00:00Z\" or \"2027-01-01T03:00:00+01:00\""))
}

/// Checks what a kind says about recurring. `None` for kinds without a schedule.
pub fn check(
    problems: &mut Problems,
    name: &str,
    (kind, http): (&raw::Recurrence, bool),
    book: &Arc<Book>,
    named: &mut Vec<Duration>,
) -> Option<Recurrence> {
    let at = |key: &'static str| ["kinds", name, key];
    let fresh = kind.fresh.as_ref().and_then(|fresh| fresh::check(problems, name, fresh, http));
    if kind.fresh.is_some() {
        let others = [("every", kind.every.is_some()), ("from", kind.from.is_some()), ("cron", kind.cron.is_some())];
        let others = others.into_iter().chain([("at", kind.at.is_some()), ("jitter", kind.jitter.is_some())]);
        for (key, _) in others.filter(|(_, given)| *given) {
            problems.add(&at(key), "does not go with `fresh`, which says when");
        }
    }
    let excluded = exclusions(problems, name, kind, book);
    let when = When {
        every: kind.every.map(|every| every.0),
        from: kind.from,
        cron: kind.cron.clone(),
        zone: kind.zone.clone(),
        at: kind.at.clone(),
        calendars: !excluded.is_none(),
    };
    let longest = fresh.as_ref().map(|fresh| Rhythm::Every { interval: fresh.max, from: From::Finish });
    let rhythm = match longest.map_or_else(|| when.rhythm(), |longest| Ok(Some(longest))) {
        Ok(Some(rhythm)) => rhythm,
        Ok(None) => {
            for (key, given) in kind.needs_a_schedule() {
                if given {
                    problems.add(&at(key), "goes with a schedule, and there is none: add `every`, `cron` or `at`");
                }
            }
            return None;
        }
        Err((key, message)) => {
            problems.add(&at(key), message);
            return None;
        }
    };
    let jitter = kind.jitter.map_or(Duration::ZERO, |jitter| jitter.0);
    let spread_phase = kind.phase == Some(raw::Phase::Spread);
    match &rhythm {
        Rhythm::Every { interval, .. } if jitter >= *interval && !jitter.is_zero() => {
            problems.add(&at("jitter"), "must be smaller than `every`");
        }
        Rhythm::Every { interval, from } => {
            // Only after-finish delays are always the same; the others depend on how long a run took.
            named.extend(if *from == From::Finish { rungs_of_interval(*interval, jitter) } else { vec![*interval] });
            if spread_phase && *from != From::Nominal {
                problems
                    .add(&at("phase"), "goes with `cron`, or with `from = \"nominal\"`: other rhythms have no grid");
            }
        }
        Rhythm::Cron(_) => {}
        Rhythm::At(_) if spread_phase => problems.add(&at("phase"), "goes with a rhythm, and this comes once"),
        Rhythm::At(_) => {}
    }
    let grid = !matches!(rhythm, Rhythm::Every { from: From::Finish, .. });
    if !grid && kind.overlap.is_some() {
        problems
            .add(&at("overlap"), "counted from the finish, runs never overlap: set `from` to \"start\" or \"nominal\"");
    }
    if kind.tolerance.is_some() && !(grid && matches!(rhythm, Rhythm::Every { .. })) {
        problems.add(&at("tolerance"), "goes with `every` and `from = \"start\"` or \"nominal\"");
    } else if matches!((kind.every, kind.tolerance), (Some(every), Some(tolerance)) if tolerance.0 >= every.0) {
        problems.add(&at("tolerance"), "must be smaller than `every`: else nothing keeps two starts apart");
    }
    let overlap = match kind.overlap.unwrap_or_default() {
        raw::Overlap::Skip => Overlap::Skip,
        raw::Overlap::BufferOne => Overlap::BufferOne,
        raw::Overlap::CancelOther => Overlap::CancelOther,
        raw::Overlap::Allow => Overlap::Allow,
    };
    if overlap == Overlap::Allow {
        let of_one_run = [("cooldown", kind.cooldown.is_some()), ("time_box", kind.time_box.is_some())];
        for (setting, _) in of_one_run.into_iter().filter(|(_, given)| *given) {
            problems
                .add(&at(setting), "does not go with `overlap = \"allow\"`, with which runs go on beside each other");
        }
    }
    let policy = match kind.misfire.unwrap_or_default() {
        raw::Misfire::Skip => Catch::Skip,
        raw::Misfire::Coalesce => Catch::Coalesce,
        raw::Misfire::All => Catch::All,
    };
    let (least, most) = kind.next_in.as_ref().map_or((Duration::from_secs(1), MAX_WAIT), |within| {
        if within.min.0 > within.max.0 || within.max.0 > MAX_WAIT || within.min.0.is_zero() {
            let most = short_duration(MAX_WAIT);
            problems
                .add(&at("next_in"), format!("needs a `min` above zero, not above `max`, and a `max` up to {most}"));
        }
        (within.min.0, within.max.0)
    });
    let interval = match rhythm {
        Rhythm::Every { interval, .. } => Some(interval),
        _ => None,
    };
    let learns = fresh.is_some();
    Some(Recurrence {
        tolerance: kind.tolerance.map(|tolerance| tolerance.0),
        cooldown: kind.cooldown.map_or(Duration::ZERO, |cooldown| cooldown.0),
        time_box: time_box(problems, name, kind, interval),
        next_in: (least, most),
        freshness: kind.next_in.as_ref().is_some_and(|within| within.from_headers),
        fresh,
        schedule: Schedule {
            rhythm,
            jitter,
            spread_phase,
            overlap,
            misfire: Misfire {
                policy,
                window: kind.misfire_window.map(|window| window.0),
                spread: kind.misfire_spread.map_or(Duration::ZERO, |spread| spread.0),
            },
            excluded,
            learns,
        },
    })
}

/// What calendars exclude for a kind.
fn exclusions(problems: &mut Problems, name: &str, kind: &raw::Recurrence, book: &Arc<Book>) -> Exclusions {
    let at = |key: &'static str| ["kinds", name, key];
    let excluded = Exclusions {
        book: book.clone(),
        except: calendars::calendars_named(problems, &at("except"), kind.except.as_ref(), book.keys()),
        only: calendars::calendars_named(problems, &at("only"), kind.only.as_ref(), book.keys()),
        quiet: calendars::hours(problems, &at("quiet"), kind.quiet.as_ref()),
        // That of a cron expression is said there to be wrong. UTC is what counts without one.
        zone: kind.zone.as_deref().filter(|name| *name != "UTC").and_then(|name| zone_named(name).ok()),
        when: kind.when_excluded.unwrap_or_default(),
    };
    if let (Some(name), None) = (&kind.zone, &kind.cron)
        && let Err(why) = zone_named(name)
    {
        problems.add(&at("zone"), why);
    }
    excluded
}

fn time_box(
    problems: &mut Problems,
    name: &str,
    kind: &raw::Recurrence,
    interval: Option<Duration>,
) -> Option<TimeBox> {
    let at = |key: &'static str| ["kinds", name, key];
    let Some(text) = &kind.time_box else {
        if kind.time_box_grace.is_some() {
            problems.add(&at("time_box_grace"), "goes with `time_box`");
        }
        return None;
    };
    let length = match text.trim().strip_suffix('%') {
        Some(percent) => match percent.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Length::Share(percent / 100.0),
            _ => {
                problems.add(&at("time_box"), format!("`{text}` is out of range; \"1%\" to \"100%\" is possible"));
                return None;
            }
        },
        None => match parse_duration(text) {
            Ok(length) if !length.is_zero() => Length::Fixed(length),
            Ok(_) => {
                problems.add(&at("time_box"), "must be longer than zero");
                return None;
            }
            Err(error) => {
                problems.add(&at("time_box"), format!("{error}, or a share of the interval such as \"50%\""));
                return None;
            }
        },
    };
    if matches!((length, interval), (Length::Fixed(length), Some(interval)) if length > interval) {
        problems.add(&at("time_box"), "is longer than `every`");
    }
    Some(TimeBox { length, grace: kind.time_box_grace.map_or(Duration::from_secs(5), |grace| grace.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::schedule::Cron;

    #[test]
    fn a_tolerance_is_smaller_than_a_chains_own_interval() {
        let text = "[kinds.k]\nevery = \"1m\"\nfrom = \"nominal\"\ntolerance = \"10s\"\n";
        let config = crate::Config::parse(text, "here", []).unwrap();
        let recurrence = config.kinds["k"].recurrence.as_ref().unwrap();
        for (own, fits) in [("11s", true), ("10s", false), ("5s", false), ("0 3 * * *", true)] {
            let schedule = recurrence.with_own(&OwnSchedule::from_words(own).unwrap());
            assert_eq!(schedule.is_ok(), fits, "{own}: {schedule:?}");
            let told = schedule.err().unwrap_or_default();
            assert!(fits || told.contains("`tolerance` of 10s"), "{told}");
        }
    }

    #[test]
    fn what_a_chains_own_says_of_calendars_takes_the_place_of_its_kinds() {
        let text = "[calendars.off]\ndates = [\"12-25\"]\n[calendars.office]\nweekdays = \"mon-fri\"\n[kinds.k]\nevery = \"1h\"\n\
                    quiet = \"22:00-06:00\"\nzone = \"Europe/Berlin\"\nexcept = \"off\"\n";
        let config = crate::Config::parse(text, "here", []).unwrap();
        let recurrence = config.kinds["k"].recurrence.as_ref().unwrap();
        for (own, expected) in [
            ("5m", "every 5m, quiet 22:00-06:00 (Europe/Berlin), except `off`"),
            ("0 3 * * *", "cron 0 3 * * * Europe/Berlin, quiet 22:00-06:00 (Europe/Berlin), except `off`"),
            (r#"{"quiet":"20:00-08:00"}"#, "every 60m, quiet 20:00-08:00 (Europe/Berlin), except `off`"),
            (r#"{"zone":"Asia/Tokyo"}"#, "every 60m, quiet 22:00-06:00 (Asia/Tokyo), except `off`"),
            (r#"{"quiet":"","except":[],"only":["office"]}"#, "every 60m, only `office`"),
            (
                r#"{"every":"9s","when_excluded":"next"}"#,
                "every 9s, quiet 22:00-06:00 (Europe/Berlin), except `off`, else the next time",
            ),
        ] {
            let own = OwnSchedule::from_words(own).unwrap();
            let schedule = OwnSchedule::parse(&own.text()).and_then(|own| recurrence.with_own(&own)).unwrap();
            assert_eq!(schedule.to_string(), expected);
        }
        for (own, words) in [
            (r#"{"except":["of"]}"#, "there is no [calendars.of]"),
            (r#"{"quiet":"22-6"}"#, "`quiet`: `22-6` are no hours"),
            (r#"{"every":"5m","zone":"Berlin"}"#, "`zone`: `Berlin` is not a time zone"),
            (r#"{"every":"5m","zone":"UTC","quiet":"","except":""}"#, "`zone` goes with `cron`, `quiet`"),
            (r#"{"jitter":"1s","quiet":""}"#, "it needs one of `every`, `cron` and `at`"),
        ] {
            let told = OwnSchedule::parse(own).and_then(|own| recurrence.with_own(&own)).unwrap_err();
            assert!(told.contains(words), "{own}: {told}");
        }
    }

    #[test]
    fn a_table_of_schedules_of_a_chains_own() {
        let every = |secs| Schedule::fixed_delay(Duration::from_secs(secs), Duration::ZERO);
        let cron = |zone| Schedule { rhythm: Rhythm::Cron(Cron::parse("0 3 * * *", zone).unwrap()), ..every(1) };
        let nominal = Rhythm::Every { interval: Duration::from_secs(9), from: From::Nominal };
        for (of_kind, own, expected) in [
            (every(60), "5m", "every 5m"),
            (Schedule { rhythm: nominal, ..every(9) }, "5m", "every 5m from nominal"),
            (every(60), "15 4 * * *", "cron 15 4 * * * UTC"),
            (cron(None), "15 4 * * *", "cron 15 4 * * * UTC"),
            (cron(Some("Europe/Berlin")), "15 4 * * *", "cron 15 4 * * * Europe/Berlin"),
            (cron(Some("Europe/Berlin")), r#"{"cron":"15 4 * * *","zone":"UTC"}"#, "cron 15 4 * * * UTC"),
            (cron(Some("Europe/Berlin")), "5m", "every 5m"),
        ] {
            let own = OwnSchedule::from_words(own).unwrap();
            // As the ledger gives it back.
            let schedule = OwnSchedule::parse(&own.text()).unwrap().apply(&of_kind).unwrap();
            assert_eq!(schedule.to_string(), expected, "{own:?} for {of_kind}");
        }
    }
}
