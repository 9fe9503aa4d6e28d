//! `[calendars]`: sets of days and hours, checked. The files that they name are read here; queries are read by workers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use roundelay_model::clock::{Entropy, Time};
use roundelay_model::job::check_name;
use roundelay_model::schedule::calendar::{Book, Calendar, Days, circle, ics, zone};
use roundelay_model::schedule::{Balance, OneOrMany, Setting};
use roundelay_model::wall_clock::WallClock;

use super::raw;
use crate::problems::{Problems, TEN_YEARS, known};
use crate::roster::{self, RosterSource};
use crate::settings::Config;

/// A database is not asked more often than this.
const MIN_EVERY: Duration = Duration::from_secs(1);
/// How the text of an iCalendar file begins.
const ICS: &str = "BEGIN:VCALENDAR";

/// A calendar of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarSettings {
    /// What the configuration itself says of it.
    pub fixed: Calendar,
    /// Where further days are read.
    pub sql: Option<SqlCalendar>,
}

/// A query whose rows are days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlCalendar {
    /// The database, and the query.
    pub source: RosterSource,
    /// How long after one reading the next begins.
    pub every: Duration,
}

/// Whether `ics` is the text of a calendar itself, and no path.
pub(crate) fn is_text(ics: &str) -> bool {
    ics.trim_start().starts_with(ICS)
}

/// All calendars, with the days that were read of some. One that has not been read yet has no days but those of the
/// configuration.
pub(crate) fn book(calendars: &BTreeMap<String, CalendarSettings>, read: &BTreeMap<String, Days>) -> Arc<Book> {
    let with_days = |(name, settings): (&String, &CalendarSettings)| {
        let mut calendar = settings.fixed.clone();
        if let (Some(days), Some(_)) = (read.get(name), &settings.sql) {
            let all = calendar.days.get_or_insert_default();
            all.dates.extend(&days.dates);
            all.yearly.extend(&days.yearly);
        }
        (name.clone(), calendar)
    };
    Arc::new(calendars.iter().map(with_days).collect())
}

/// The checked calendars; `file` reads the text of a file.
pub(super) fn check(
    problems: &mut Problems,
    raw: BTreeMap<String, raw::Calendar>,
    file: &dyn Fn(&Path) -> Result<String, String>,
) -> BTreeMap<String, CalendarSettings> {
    let names: Vec<String> = raw.keys().cloned().collect();
    let mut calendars = BTreeMap::new();
    for (name, raw) in raw {
        let at = |key: &'static str| ["calendars", &*name, key];
        if let Err(error) = check_name("name", &name) {
            problems.add(&["calendars", &name], error.to_string());
        }
        let sql = raw.sql.map(|sql| check_sql(problems, &name, sql));
        let names_days = !raw.dates.is_empty() || raw.weekdays.is_some() || raw.ics.is_some() || sql.is_some();
        if !names_days && raw.hours.is_none() {
            problems
                .add(&["calendars", &name], "names nothing; set `dates`, `weekdays`, `ics`, `sql` or `hours` in it");
        }
        let mut calendar = Calendar::default();
        let own_zone = raw.zone.as_deref().map(zone).transpose();
        calendar.zone = own_zone.unwrap_or_else(|why| {
            problems.add(&at("zone"), why);
            None
        });
        let mut days = Days::default();
        for text in &raw.dates {
            days.add(text).unwrap_or_else(|why| problems.add(&at("dates"), why));
        }
        if let Some(weekdays) = &raw.weekdays {
            match weekdays.parse() {
                Ok(weekdays) => days.weekdays = weekdays,
                Err(why) => problems.add(&at("weekdays"), why),
            }
        }
        if let Some(text) = &raw.ics {
            let zone = calendar.zone.clone().unwrap_or(TimeZone::UTC);
            let read = match is_text(text) {
                true => ics::parse(text, &zone),
                false => file(Path::new(text))
                    .and_then(|read| ics::parse(&read, &zone).map_err(|why| format!("{text}: {why}"))),
            };
            match read {
                Ok(events) => {
                    days.dates.extend(events.days);
                    calendar.times = events.times;
                }
                Err(why) => problems.add(&at("ics"), why),
            }
        }
        calendar.days = names_days.then_some(days);
        calendar.hours = hours(problems, &at("hours"), raw.hours.as_ref());
        calendar.except = calendars_named(problems, &at("except"), raw.except.as_ref(), names.iter());
        calendars.insert(name, CalendarSettings { fixed: calendar, sql });
    }
    if let Some(path) = circle(&book(&calendars, &BTreeMap::new())) {
        let message = format!("goes in a circle: {}; take one of these out of another", path.join(", without "));
        problems.add(&["calendars", &path[0], "except"], message);
    }
    calendars
}

/// What is right about calendars, and hardly meant: one that no kind names, and a kind that they leave no occurrence in
/// the next year.
pub fn doubtful_calendars(config: &Config, now: Time) -> Vec<String> {
    const YEAR: Duration = Duration::from_secs(366 * 86_400);
    let schedules =
        || config.kinds.iter().filter_map(|(name, kind)| Some((name, kind.recurrence.as_ref()?.beginning())));
    let by_kinds = schedules().flat_map(|(_, of)| of.excluded.names().map(ToOwned::to_owned).collect::<Vec<_>>());
    let by_others = config.calendars.values().flat_map(|calendar| calendar.fixed.except.iter().cloned());
    let named: BTreeSet<String> = by_kinds.chain(by_others).collect();
    let unused = config.calendars.keys().filter(|name| !named.contains(*name));
    let unused = unused.map(|name| {
        format!(
            "no kind names the calendar {name}: set kinds.NAME.except or kinds.NAME.only, unless schedules of single chains \
             name it"
        )
    });
    let empty = schedules().filter(|(_, of)| !of.excluded.is_none()).filter_map(|(name, of)| {
        let (balance, dice, wall_clock) = (Balance::default(), Entropy::seeded(0), WallClock::default());
        let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock };
        let first = of.first(now, Duration::ZERO, setting).map(|first| first.due);
        let comes = first.is_some_and(|first| first.since(now) <= YEAR && !of.excluded.excludes(first));
        (!comes).then(|| format!("the calendars of the kind {name} leave it no occurrence in the next year ({of})"))
    });
    unused.chain(empty).collect()
}

fn check_sql(problems: &mut Problems, name: &str, sql: raw::CalendarSql) -> SqlCalendar {
    let at = |key: &'static str| ["calendars", name, "sql", key];
    problems.range(&at("every"), sql.every.0, MIN_EVERY, TEN_YEARS);
    SqlCalendar { source: roster::query(problems, &at("url"), &at("query"), sql.url, &sql.query), every: sql.every.0 }
}

/// The hours that a setting names.
pub(super) fn hours(
    problems: &mut Problems,
    path: &[&str],
    raw: Option<&OneOrMany>,
) -> Vec<roundelay_model::schedule::calendar::Hours> {
    let mut hours = Vec::new();
    for text in raw.iter().flat_map(|raw| raw.texts()) {
        match text.parse() {
            Ok(found) => hours.push(found),
            Err(why) => problems.add(path, why),
        }
    }
    hours
}

/// The calendars that a setting names.
pub(super) fn calendars_named<'k>(
    problems: &mut Problems,
    path: &[&str],
    raw: Option<&OneOrMany>,
    there: impl Iterator<Item = &'k String> + Clone,
) -> Vec<String> {
    let names: Vec<String> = raw.iter().flat_map(|raw| raw.texts()).map(Into::into).collect();
    for name in &names {
        known(problems, path, name, "calendars", there.clone());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Time {
        crate::at_time(text).unwrap()
    }

    #[test]
    fn days_that_are_read_are_added_to_those_of_the_configuration() {
        let text = "[calendars.off]\ndates = [\"2026-12-25\"]\nsql = { url = \"sqlite://x\", query = \"SELECT 1\" }\n\
                    [calendars.fixed]\ndates = [\"2026-12-25\"]\n[kinds.k]\nevery = \"1h\"\nexcept = [\"off\", \"fixed\"]\n";
        let mut config = Config::parse(text, "here", []).unwrap();
        let mut days = Days::default();
        days.add("2026-12-24").unwrap();
        let excludes = |config: &Config, name: &str, at: &str| {
            let book = &config.kinds["k"].recurrence.as_ref().unwrap().schedule.excluded.book;
            book[name].piece(time(at), &TimeZone::UTC, book).inside
        };
        assert!(!excludes(&config, "off", "2026-12-24T12:00:00Z") && excludes(&config, "off", "2026-12-25T12:00:00Z"));
        config.take_days(&[("off".to_owned(), days.clone()), ("fixed".to_owned(), days)].into());
        assert!(excludes(&config, "off", "2026-12-24T12:00:00Z") && excludes(&config, "off", "2026-12-25T12:00:00Z"));
        assert!(!excludes(&config, "fixed", "2026-12-24T12:00:00Z"), "it is read from nowhere");
        config.take_days(&BTreeMap::new());
        assert!(!excludes(&config, "off", "2026-12-24T12:00:00Z"), "what was read before is gone");
    }

    #[test]
    fn what_is_hardly_meant_is_noted() {
        let notes =
            |text: &str| doubtful_calendars(&Config::parse(text, "here", []).unwrap(), time("2026-01-01T00:00:00Z"));
        let calendars =
            "[calendars.off]\ndates = [\"12-25\"]\n[calendars.office]\nweekdays = \"mon-fri\"\nexcept = \"off\"\n";
        let kind = |settings: &str| format!("{calendars}[kinds.k]\n{settings}\n");
        assert_eq!(notes(&kind("every = \"1h\"\nonly = \"office\"")), [""; 0]);
        let unused = notes(&kind("every = \"1h\""));
        assert!(unused.len() == 1 && unused[0].contains("no kind names the calendar office"), "{unused:?}");
        for settings in [
            "cron = \"0 23 * * *\"\nonly = \"office\"\nquiet = \"22:00-06:00\"",
            "every = \"1h\"\nonly = \"office\"\nquiet = [\"00:00-12:00\", \"12:00-24:00\"]",
            "at = \"2026-12-25T12:00:00Z\"\nonly = \"office\"",
            "at = \"2030-01-07T12:00:00Z\"\nonly = \"office\"",
        ] {
            let empty = notes(&kind(settings));
            assert!(
                empty.len() == 1 && empty[0].contains("of the kind k leave it no occurrence"),
                "{settings}: {empty:?}"
            );
        }
    }

    #[test]
    fn what_is_shown_of_a_configuration_has_the_text_of_its_files() {
        let ics = "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART;VALUE=DATE:20261225\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";
        let folder = tempfile::tempdir().unwrap();
        let (file, text) = (folder.path().join("off.ics"), folder.path().join("r.toml"));
        std::fs::write(&file, ics).unwrap();
        std::fs::write(&text, format!("[calendars.off]\nics = \"{}\"\n", file.display())).unwrap();
        let config = Config::load(&text).unwrap();
        let again = Config::parse(&config.shown, "again", []).unwrap();
        assert_eq!(config.calendars, again.calendars);
        assert_eq!(config.calendars["off"].fixed.days.as_ref().map(|days| days.dates.len()), Some(1));
        std::fs::write(&file, ics.replace("20261225", "soon")).unwrap();
        let told = Config::load(&text).unwrap_err().to_string();
        assert!(
            told.contains("r.toml:2: calendars.off.ics: ") && told.contains("off.ics: line 3: `soon` is neither"),
            "{told}"
        );
    }
}
