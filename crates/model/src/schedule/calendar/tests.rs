use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::bend::Bend;
use super::*;

const MINUTE: i64 = 60_000;
const MS: Duration = Duration::from_millis(1);

fn time(text: &str) -> Time {
    Time::from_millis(text.parse::<Timestamp>().unwrap().as_millisecond())
}

fn tz(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

fn days(weekdays: &str, dates: &[&str]) -> Days {
    let mut days = Days { weekdays: weekdays.parse().unwrap_or_default(), ..Days::default() };
    dates.iter().for_each(|text| days.add(text).unwrap());
    days
}

fn hours(texts: &[&str]) -> Vec<Hours> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Quiet hours, business days, and holidays.
fn rules(quiet: &[&str], only: Option<Calendar>, except: Option<Calendar>, zone: &str) -> Exclusions {
    let (names, mut book) =
        (|there: bool, name: &str| there.then(|| name.to_owned()).into_iter().collect(), Book::new());
    let (has_only, has_except) = (only.is_some(), except.is_some());
    book.extend(only.map(|calendar| ("office".to_owned(), calendar)));
    book.extend(except.map(|calendar| ("holidays".to_owned(), calendar)));
    Exclusions {
        book: Arc::new(book),
        except: names(has_except, "holidays"),
        only: names(has_only, "office"),
        quiet: hours(quiet),
        zone: Some(tz(zone)),
        when: WhenExcluded::Skip,
    }
}

#[test]
fn what_is_no_day_or_hour_says_what_to_write() {
    let mut all = Days::default();
    for (text, expected) in [
        ("2026-12-25", None),
        ("2026-12-24..2027-01-01", None),
        ("12-25", None),
        ("02-29", None),
        ("12-24..12-31", None),
        ("2026-02-29", Some("is no day; write \"2026-12-25\"")),
        ("2026-12-25T09", Some("is no day")),
        ("25.12.2026", Some("is no day")),
        ("13-01", Some("is no day")),
        ("2026-12-25..12-26", Some("is no day")),
        ("2026-12-25..2026-12-24", Some("ends before it begins")),
        ("2026-12-25..2206-12-24", Some("longer than ten years")),
        ("12-24..01-06", Some("goes past the end of the year; write two")),
    ] {
        let told = all.add(text).err();
        assert_eq!(told.is_some(), expected.is_some(), "{text}: {told:?}");
        assert!(told.is_none_or(|told| told.contains(expected.unwrap())), "{text}");
    }
    for (text, shown) in [
        ("09:00-17:00", Some("09:00-17:00")),
        ("9:00-17:30", Some("09:00-17:30")),
        ("22:00-06:00", Some("22:00-06:00")),
        ("22:00-24:00", Some("22:00-24:00")),
        ("22:00-00:00", Some("22:00-24:00")),
        ("00:00-24:00", Some("00:00-24:00")),
        ("09:00", None),
        ("09:00-09:00", None),
        ("9-17", None),
        ("09:60-17:00", None),
        ("24:00-06:00", None),
        ("09:00-25:00", None),
        ("+9:00-17:00", None),
    ] {
        let found = text.parse::<Hours>();
        assert_eq!(found.as_ref().ok().map(ToString::to_string).as_deref(), shown, "{text}: {found:?}");
    }
    for (text, fits) in [("mon-fri", true), ("Mon, wed,FRI", true), ("fri-mon", true), ("monday", false), ("", false)] {
        assert_eq!(text.parse::<Weekdays>().is_ok(), fits, "{text}");
    }
}

#[test]
fn calendars_that_are_made_of_themselves_are_found() {
    let of = |except: &[&str]| Calendar { except: except.iter().map(|e| (*e).into()).collect(), ..Calendar::default() };
    let book =
        |all: &[(&str, &[&str])]| all.iter().map(|(name, except)| ((*name).into(), of(except))).collect::<Book>();
    assert_eq!(circle(&book(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])), None);
    let found = circle(&book(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])])).unwrap();
    assert_eq!(found.join(" "), "b c b");
    assert_eq!(circle(&book(&[("a", &["a"])])).unwrap().join(" "), "a a");
}

#[test]
fn a_table_of_moments() {
    let office = Calendar {
        zone: Some(tz("Europe/Berlin")),
        days: Some(days("mon-fri", &[])),
        hours: hours(&["09:00-12:00", "13:00-17:00"]),
        except: vec!["holidays".into()],
        ..Calendar::default()
    };
    let night = Calendar { days: Some(days("fri", &[])), hours: hours(&["22:00-06:00"]), ..Calendar::default() };
    let holidays = Calendar { days: Some(days("", &["12-25", "2026-04-03"])), ..Calendar::default() };
    let meeting = Calendar {
        days: Some(Days::default()),
        times: vec![(time("2026-01-05T10:00:00Z"), time("2026-01-05T11:00:00Z"))],
        ..Calendar::default()
    };
    let book: Book = [("holidays", holidays), ("office", office), ("night", night), ("meeting", meeting)]
        .map(|(name, calendar)| (name.to_owned(), calendar))
        .into();
    for (name, zone, at, expected) in [
        ("office", "UTC", "2026-01-05T07:59:59Z", false),
        ("office", "UTC", "2026-01-05T08:00:00Z", true),
        ("office", "UTC", "2026-01-05T11:30:00Z", false),
        ("office", "UTC", "2026-01-05T15:59:59.999Z", true),
        ("office", "UTC", "2026-01-05T16:00:00Z", false),
        ("office", "UTC", "2026-01-04T10:00:00Z", false),
        ("office", "UTC", "2026-12-25T10:00:00Z", false),
        ("office", "UTC", "2026-04-03T10:00:00Z", false),
        ("office", "UTC", "2026-07-06T07:00:00Z", true),
        // From Friday's evening to Saturday's morning, in the zone of who asks.
        ("night", "UTC", "2026-01-02T22:00:00Z", true),
        ("night", "UTC", "2026-01-03T05:59:00Z", true),
        ("night", "UTC", "2026-01-03T22:00:00Z", false),
        ("night", "UTC", "2026-01-02T05:00:00Z", false),
        ("night", "Asia/Tokyo", "2026-01-02T13:00:00Z", true),
        ("holidays", "Asia/Tokyo", "2026-12-24T15:00:00Z", true),
        ("holidays", "America/New_York", "2026-12-24T15:00:00Z", false),
        ("meeting", "UTC", "2026-01-05T10:59:59Z", true),
        ("meeting", "UTC", "2026-01-05T11:00:00Z", false),
    ] {
        let found = book[name].piece(time(at), &tz(zone), &book);
        assert_eq!(found.inside, expected, "{name} at {at}, asked in {zone}");
        assert!(found.from <= time(at) && time(at) < found.until, "{name} at {at}: {found:?}");
    }
}

#[test]
fn why_a_time_is_excluded_is_said_in_the_words_of_its_zone() {
    let holidays = Calendar { days: Some(days("", &["12-25"])), ..Calendar::default() };
    let office = Calendar { days: Some(days("mon-fri", &[])), ..Calendar::default() };
    let rules = rules(&["22:00-06:00"], Some(office), Some(holidays), "Asia/Tokyo");
    for (at, expected) in [
        ("2026-12-24T17:13:00Z", "02:13 is in the quiet hours 22:00-06:00 (Asia/Tokyo), until 2026-12-28 06:00"),
        ("2026-12-21T17:13:00Z", "02:13 is in the quiet hours 22:00-06:00 (Asia/Tokyo), until 06:00"),
        ("2026-12-25T03:00:00Z", "12:00 is in the calendar `holidays` (Asia/Tokyo), until 2026-12-28 06:00"),
        ("2026-12-27T03:00:00Z", "12:00 is not in the calendar `office` (Asia/Tokyo), until 2026-12-28 06:00"),
    ] {
        assert_eq!(rules.why_until(time(at)).as_deref(), Some(expected), "{at}");
    }
    assert_eq!(rules.why_until(time("2026-12-24T03:00:00Z")), None);
    let never = Exclusions { only: vec!["gone".into()], ..Exclusions::default() };
    let told = never.why_until(time("2026-01-01T12:00:00Z")).unwrap();
    assert_eq!(told, "12:00 is not in the calendar `gone` (UTC); nothing is allowed in the next ten years");
}

// ---- Against a search minute by minute ----

/// Minutes from some days before a moment to some days after it, in a zone, as its wall clock shows them.
struct Minutes {
    begin: Time,
    excluded: Vec<bool>,
    day: Vec<i64>,
    shown: Vec<i64>,
}

const DAYS: i64 = 24;

impl Minutes {
    fn new(rules: &Exclusions, begin: Time, excludes: impl Fn(&jiff::Zoned) -> bool) -> Self {
        let zone = rules.zone();
        let mut minutes = Self { begin, excluded: Vec::new(), day: Vec::new(), shown: Vec::new() };
        for n in 0..DAYS * 1_440 {
            let at = begin.as_millis() + n * MINUTE;
            let zoned = Timestamp::from_millisecond(at).unwrap().to_zoned(zone.clone());
            minutes.excluded.push(excludes(&zoned));
            minutes.day.push(zoned.date().since(jiff::civil::date(1970, 1, 1)).unwrap().get_days().into());
            minutes.shown.push(i64::from(zoned.hour()) * 60 + i64::from(zoned.minute()));
        }
        minutes
    }

    fn at(&self, n: usize) -> Time {
        Time::from_millis(self.begin.as_millis() + n as i64 * MINUTE)
    }

    fn is_whole(&self, day: i64) -> bool {
        (0..self.day.len()).filter(|n| self.day[*n] == day).all(|n| self.excluded[n])
    }

    /// Where the occurrence of a minute comes; nothing where it is left out, or that is not known here.
    fn image(&self, n: usize, when: WhenExcluded, whole: &BTreeMap<i64, bool>) -> Option<usize> {
        let step = match when {
            WhenExcluded::Skip => return (!self.excluded[n]).then_some(n),
            WhenExcluded::Next => 1,
            WhenExcluded::Previous => -1,
        };
        let mut day = self.day[n];
        let moved = if whole[&day] {
            while *whole.get(&day)? {
                day += step;
            }
            let of_day = || (0..self.day.len()).filter(|m| self.day[*m] == day);
            of_day().find(|m| self.shown[*m] >= self.shown[n]).or_else(|| of_day().next_back())?
        } else {
            n
        };
        match when {
            WhenExcluded::Previous if self.excluded[moved] => (0..moved).rev().find(|m| !self.excluded[*m]),
            _ => (moved..self.excluded.len()).find(|m| !self.excluded[*m]),
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    zone: &'static str,
    /// Minutes since 1970.
    begin: i64,
    /// From, and until, in quarters of an hour.
    quiet: Option<(i64, i64)>,
    weekdays: bool,
    office: Option<(i64, i64)>,
    /// Days after the beginning, and how many.
    holidays: Vec<(i64, i64)>,
    when: WhenExcluded,
    /// In minutes, and how many the grid lies after midnight.
    interval: i64,
    offset: i64,
    /// The grid follows the wall clock: at these minutes of these hours.
    cron: Option<&'static str>,
}

fn any_case() -> impl Strategy<Value = Case> {
    // A change of the clock in most of them: of an hour, of half an hour, at midnight.
    let place = prop_oneof![
        Just(("Europe/Berlin", "2026-03-29")),
        Just(("Europe/Berlin", "2031-10-26")),
        Just(("America/New_York", "2028-03-12")),
        Just(("America/New_York", "2026-11-01")),
        Just(("Australia/Lord_Howe", "2026-04-05")),
        Just(("Australia/Lord_Howe", "2026-10-04")),
        Just(("America/Santiago", "2026-09-06")),
        Just(("Asia/Tokyo", "2027-12-31")),
        Just(("Asia/Kathmandu", "2028-02-29")),
        Just(("UTC", "2026-06-30")),
    ];
    let span = || prop::option::of((0_i64..96, 0_i64..96).prop_filter("some hours", |(from, until)| from != until));
    let when = prop_oneof![Just(WhenExcluded::Skip), Just(WhenExcluded::Next), Just(WhenExcluded::Previous)];
    let interval = prop_oneof![
        Just(7_i64),
        Just(10),
        Just(45),
        Just(60),
        Just(91),
        Just(720),
        Just(1_440),
        Just(2_880),
        5_i64..3_000
    ];
    let cron = prop_oneof![
        Just("*/20 * * * *"),
        Just("30 2 * * *"),
        Just("15 9 * * *"),
        Just("0 20 * * 6"),
        Just("0 10,20 * * 0"),
        Just("40 23 * * 5,6"),
        Just("5 */4 * * *")
    ];
    let holidays = prop::collection::vec((6_i64..18, 1_i64..5), 0..3);
    (place, 0_i64..4, span(), any::<bool>(), span(), holidays, when, interval, 0_i64..1_440, prop::option::of(cron))
        .prop_map(|((zone, day), shift, quiet, weekdays, office, holidays, when, interval, offset, cron)| {
            let begin = (parse_day(day).unwrap() - DAYS / 2 + shift) * 1_440;
            Case { zone, begin, quiet, weekdays, office, holidays, when, interval, offset, cron }
        })
}

fn quarter(n: i64) -> String {
    format!("{:02}:{:02}", n / 4, n % 4 * 15)
}

impl Case {
    fn rules(&self) -> Exclusions {
        let span = |(from, until): (i64, i64)| format!("{}-{}", quarter(from), quarter(until));
        let quiet: Vec<String> = self.quiet.iter().map(|hours| span(*hours)).collect();
        let only = (self.weekdays || self.office.is_some()).then(|| Calendar {
            days: self.weekdays.then(|| days("mon-fri", &[])),
            hours: self.office.iter().map(|hours| span(*hours).parse().unwrap()).collect(),
            ..Calendar::default()
        });
        let except = (!self.holidays.is_empty()).then(|| {
            let first = self.begin / 1_440;
            let dates = self.holidays.iter().flat_map(|(after, count)| (0..*count).map(move |n| first + after + n));
            Calendar { days: Some(Days { dates: dates.collect(), ..Days::default() }), ..Calendar::default() }
        });
        let quiet: Vec<&str> = quiet.iter().map(String::as_str).collect();
        Exclusions { when: self.when, ..rules(&quiet, only, except, self.zone) }
    }

    /// Whether the wall clock shows excluded time, without calendars' own code.
    fn excludes(&self, at: &jiff::Zoned) -> bool {
        let shown = i64::from(at.hour()) * 60 + i64::from(at.minute());
        let within = |(from, until): (i64, i64)| {
            let (from, until) = (from * 15, if until == 0 { 1_440 } else { until * 15 });
            if from < until { (from <= shown && shown < until, false) } else { (shown >= from, shown < until) }
        };
        let quiet = self.quiet.map(within).is_some_and(|(today, yesterday)| today || yesterday);
        let weekday =
            |back: i64| !self.weekdays || (at.weekday().to_monday_zero_offset() as i64 - back).rem_euclid(7) < 5;
        let office = self.office.map_or(weekday(0), |hours| {
            let (today, yesterday) = within(hours);
            today && weekday(0) || yesterday && weekday(1)
        });
        let day: i64 = at.date().since(jiff::civil::date(1970, 1, 1)).unwrap().get_days().into();
        let first = self.begin / 1_440;
        let holiday = self.holidays.iter().any(|(after, count)| (first + after..first + after + count).contains(&day));
        quiet || holiday || !office
    }

    fn plain(&self) -> Box<dyn Fn(Time) -> Option<Time>> {
        match self.cron {
            Some(cron) => {
                let cron = super::super::Cron::parse(cron, Some(self.zone)).unwrap();
                Box::new(move |time| cron.after(time))
            }
            None => {
                let (first, step) = ((self.begin - 3_000 + self.offset) * MINUTE, self.interval * MINUTE);
                Box::new(move |time| {
                    let steps = (time.as_millis() - first).div_euclid(step) + 1;
                    Some(Time::from_millis(first + steps * step))
                })
            }
        }
    }

    fn interval(&self) -> Option<Duration> {
        self.cron.is_none().then(|| Duration::from_secs(self.interval as u64 * 60))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A moment is excluded when the wall clock shows excluded time, also when it shows it twice.
    #[test]
    fn each_minute_is_excluded_as_the_wall_clock_shows_it(case in any_case()) {
        let rules = case.rules();
        let begin = Time::from_millis(case.begin * MINUTE);
        let minutes = Minutes::new(&rules, begin, |at| case.excludes(at));
        let mut piece = rules.piece(begin);
        for n in 0..minutes.excluded.len() {
            let at = minutes.at(n);
            if at >= piece.until {
                let next = rules.piece(at);
                prop_assert!(piece.until == at && next.from <= at && at < next.until, "{piece:?}, {next:?}");
                piece = next;
            }
            prop_assert_eq!(piece.inside, minutes.excluded[n], "{} in {}", at, case.zone);
            prop_assert_eq!(rules.excludes(at), minutes.excluded[n] && !rules.is_none());
        }
    }

    /// What comes, and for how many plain occurrences each stands, is what a search minute by minute finds.
    #[test]
    fn what_comes_is_what_a_search_minute_by_minute_finds(case in any_case()) {
        let rules = case.rules();
        let begin = Time::from_millis(case.begin * MINUTE);
        let minutes = Minutes::new(&rules, begin, |at| case.excludes(at));
        let whole: BTreeMap<i64, bool> = minutes.day.iter().map(|day| (*day, false)).collect();
        let whole: BTreeMap<i64, bool> = whole.into_keys().map(|day| (day, minutes.is_whole(day))).collect();
        let plain = case.plain();
        let bend = Bend::new(&rules, &*plain, case.interval());
        let mut expected = BTreeMap::<Time, u64>::new();
        let (mut at, end) = (begin - MS, minutes.at(minutes.excluded.len() - 1));
        while let Some(next) = plain(at).filter(|next| *next <= end) {
            let n = ((next.as_millis() - begin.as_millis()) / MINUTE) as usize;
            if let Some(image) = minutes.image(n, case.when, &whole) {
                *expected.entry(minutes.at(image)).or_default() += 1;
            }
            at = next;
        }
        // The middle days: what comes there is known from both sides.
        let (from, to) = (minutes.at(8 * 1_440), minutes.at(14 * 1_440));
        let mut found = Vec::new();
        let mut at = from;
        while let Some(next) = bend.after(at).filter(|next| *next <= to) {
            prop_assert!(next > at && !rules.excludes(next), "{next} after {at}");
            prop_assert_eq!(bend.after(next - MS), Some(next), "asked anew");
            found.push(next);
            at = next;
        }
        let mut wanted: BTreeMap<Time, u64> = expected.range(from + MS..=to).map(|(at, n)| (*at, *n)).collect();
        // Skipping, an interval comes once in each allowed stretch that it would pass over.
        if let (WhenExcluded::Skip, Some(interval)) = (case.when, case.interval()) {
            for extra in found.iter().filter(|at| !expected.contains_key(at)) {
                let (since, until) = (super::bend::since(&rules, *extra), super::bend::until(&rules, *extra, *extra + interval));
                let until = until.unwrap();
                prop_assert!(expected.range(since..until).next().is_none(), "{extra}: an occurrence was there");
                let before = super::bend::since(&rules, since - MS);
                prop_assert!(plain(before - MS).unwrap() < since, "{extra}: nothing was excluded before");
                prop_assert_eq!(found.iter().filter(|at| (since..until).contains(*at)).count(), 1);
                wanted.insert(*extra, 1);
            }
            // And none is starved.
            for n in (8 * 1_440 + 1)..14 * 1_440 {
                if minutes.excluded[n - 1] && !minutes.excluded[n] && case.interval <= 1_440 {
                    let until = super::bend::until(&rules, minutes.at(n), to);
                    let before = super::bend::since(&rules, minutes.at(n - 1));
                    if let Some(until) = until && plain(before - MS).unwrap() < minutes.at(n) {
                        prop_assert!(found.iter().any(|at| (minutes.at(n)..until).contains(at)), "{}", minutes.at(n));
                    }
                }
            }
        }
        prop_assert_eq!(&found, &wanted.keys().copied().collect::<Vec<_>>(), "in {}", case.zone);
        for pair in found.windows(2) {
            let meant = bend.meant(pair[0], pair[1]);
            let stands_for = match case.when {
                WhenExcluded::Skip => bend.plain(pair[0], pair[1]),
                _ => wanted[&pair[1]],
            };
            prop_assert_eq!(meant, stands_for, "{} to {}", pair[0], pair[1]);
        }
        if let (Some(first), Some(last)) = (found.first(), found.last()) {
            prop_assert_eq!(bend.between(from, to), Some((found.len() as u64, *first, *last)));
        }
    }
}

#[test]
fn a_chain_of_a_day_in_quiet_hours_is_not_starved() {
    let rules = rules(&["22:00-06:00"], None, None, "UTC");
    let first = time("2026-01-01T23:00:00Z");
    let plain = |at: Time| {
        let steps = (at.as_millis() - first.as_millis()).div_euclid(DAY_MS) + 1;
        Some(Time::from_millis(first.as_millis() + steps * DAY_MS))
    };
    let bend = Bend::new(&rules, &plain, Some(Duration::from_secs(86_400)));
    // An eighth of the night, and an eighth of the day.
    assert_eq!(bend.after(time("2026-01-01T22:30:00Z")), Some(time("2026-01-02T08:00:00Z")));
    assert_eq!(bend.after(time("2026-01-02T08:00:00Z")), Some(time("2026-01-03T08:00:00Z")));
}

#[test]
fn what_calendars_exclude_for_ever_has_an_end() {
    let gone = Exclusions { only: vec!["gone".into()], ..Exclusions::default() };
    let quiet = rules(&["22:00-06:00"], None, None, "UTC");
    let daily = super::super::Cron::parse("0 23 * * *", None).unwrap();
    let plain = |at: Time| daily.after(at);
    let at = time("2026-01-01T12:00:00Z");
    for when in [WhenExcluded::Skip, WhenExcluded::Next, WhenExcluded::Previous] {
        for interval in [None, Some(Duration::from_secs(86_400))] {
            let rules = Exclusions { when, ..gone.clone() };
            assert_eq!(Bend::new(&rules, &plain, interval).after(at), None, "{when:?} {interval:?}");
        }
    }
    assert_eq!(Bend::new(&quiet, &plain, None).after(at), None, "each of them is excluded");
}

// ---- Against another implementation ----

/// The table's folder has the program that made it.
#[test]
fn a_year_of_business_days_in_three_zones() {
    let table = include_str!("business_days/2026.txt");
    let germany = days("", &include_str!("business_days/germany.txt").lines().collect::<Vec<_>>());
    let by_events = |text: &str| {
        let events = ics::parse(text, &TimeZone::UTC).unwrap();
        assert!(events.times.is_empty());
        Days { dates: events.days.into_iter().collect(), ..Days::default() }
    };
    let holidays: BTreeMap<&str, Days> = BTreeMap::from([
        ("Europe/Berlin", germany),
        ("America/New_York", by_events(include_str!("business_days/united-states.ics"))),
        ("Asia/Tokyo", by_events(include_str!("business_days/japan.ics"))),
    ]);
    let mut compared = 0;
    for line in table.lines() {
        let (place, moments) = line.split_once(": ").unwrap();
        let (zone, month) = place.split_once(' ').unwrap();
        let office = Calendar { days: Some(days("mon-fri", &[])), ..Calendar::default() };
        let holidays = Calendar { days: Some(holidays[zone].clone()), ..Calendar::default() };
        let rules = rules(&[], Some(office), Some(holidays), zone);
        let daily = super::super::Cron::parse("0 9 * * *", Some(zone)).unwrap();
        let plain = |at: Time| daily.after(at);
        let bend = Bend::new(&rules, &plain, None);
        let expected: Vec<Time> = moments.split(' ').map(|at| time(&format!("{month}-{at}:00Z"))).collect();
        let mut at = expected[0] - MS;
        for moment in &expected {
            let next = bend.after(at).unwrap();
            assert_eq!(next, *moment, "{zone}: after {at}");
            at = next;
        }
        compared += expected.len();
    }
    assert_eq!(table.lines().count(), 36);
    assert!(compared > 740, "{compared} business days");
}

// ---- iCalendar ----

fn event(lines: &str) -> Result<ics::Events, String> {
    let text = format!("BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Party\n{lines}\nEND:VEVENT\nEND:VCALENDAR\n");
    ics::parse(&text, &tz("Europe/Berlin"))
}

fn dates(lines: &str) -> Vec<String> {
    event(lines).unwrap().days.into_iter().map(|day| super::days::date_of(day).to_string()).collect()
}

#[test]
fn a_table_of_events_of_whole_days() {
    for (lines, expected) in [
        ("DTSTART;VALUE=DATE:20261225", "2026-12-25"),
        ("DTSTART:20261225\nDTEND:20261227", "2026-12-25 2026-12-26"),
        ("DTSTART;VALUE=DATE:20261225\nDURATION:P2D", "2026-12-25 2026-12-26"),
        (
            "DTSTART;VALUE=DATE:20261231\nRRULE:FREQ=YEARLY;COUNT=2\nDTEND;VALUE=DATE:20270102",
            "2026-12-31 2027-01-01 2027-12-31 2028-01-01",
        ),
        ("DTSTART;VALUE=DATE:20240229\nRRULE:FREQ=YEARLY;UNTIL=20331231", "2024-02-29 2028-02-29 2032-02-29"),
        (
            "DTSTART;VALUE=DATE:20260105\nRRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR;COUNT=4",
            "2026-01-05 2026-01-09 2026-01-19 2026-01-23",
        ),
        ("DTSTART;VALUE=DATE:20260107\nRRULE:FREQ=WEEKLY;UNTIL=20260121T000000Z", "2026-01-07 2026-01-14 2026-01-21"),
        ("DTSTART;VALUE=DATE:20260107\nRRULE:FREQ=WEEKLY;COUNT=3\nEXDATE;VALUE=DATE:20260114", "2026-01-07 2026-01-21"),
        ("DTSTART;VALUE=DATE:20260131\nRRULE:FREQ=MONTHLY;COUNT=3", "2026-01-31 2026-03-31 2026-05-31"),
        ("DTSTART;VALUE=DATE:20260131\nRRULE:FREQ=MONTHLY;BYMONTHDAY=-1;COUNT=3", "2026-01-31 2026-02-28 2026-03-31"),
        ("DTSTART;VALUE=DATE:20260130\nRRULE:FREQ=MONTHLY;BYDAY=-1FR;COUNT=3", "2026-01-30 2026-02-27 2026-03-27"),
        (
            "DTSTART;VALUE=DATE:20260213\nRRULE:FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR;COUNT=3",
            "2026-02-13 2026-03-13 2026-11-13",
        ),
        ("DTSTART;VALUE=DATE:20260102\nRRULE:FREQ=DAILY;INTERVAL=3;COUNT=3", "2026-01-02 2026-01-05 2026-01-08"),
        (
            "DTSTART;VALUE=DATE:20260102\nRRULE:FREQ=DAILY;BYDAY=SA,SU;UNTIL=20260104",
            "2026-01-02 2026-01-03 2026-01-04",
        ),
        ("DTSTART;VALUE=DATE:20261225\nSTATUS:CANCELLED", ""),
        // A folded line, and what is of an alarm.
        ("DTSTART;VALUE=DA\n TE:20261225\nBEGIN:VALARM\nDURATION:PT5M\nEND:VALARM", "2026-12-25"),
    ] {
        assert_eq!(dates(lines).join(" "), expected, "{lines}");
    }
    // What recurs for ever is known for long.
    assert_eq!(dates("DTSTART;VALUE=DATE:20261225\nRRULE:FREQ=YEARLY").last().map(String::as_str), Some("2100-12-25"));
}

#[test]
fn a_table_of_events_with_times() {
    for (lines, expected) in [
        ("DTSTART:20260105T090000Z\nDTEND:20260105T100000Z", "2026-01-05T09:00:00Z/2026-01-05T10:00:00Z"),
        (
            "DTSTART;TZID=America/New_York:20260105T090000\nDURATION:PT1H30M",
            "2026-01-05T14:00:00Z/2026-01-05T15:30:00Z",
        ),
        // Without a zone, that of the calendar.
        ("DTSTART:20260705T090000\nDTEND:20260705T100000", "2026-07-05T07:00:00Z/2026-07-05T08:00:00Z"),
        // The same wall-clock time before and after a change of the clock.
        (
            "DTSTART;TZID=\"Europe/Berlin\":20260322T230000\nDTEND;TZID=Europe/Berlin:20260323T010000\nRRULE:FREQ=WEEKLY;COUNT=2",
            "2026-03-22T22:00:00Z/2026-03-23T00:00:00Z 2026-03-29T21:00:00Z/2026-03-29T23:00:00Z",
        ),
        (
            "DTSTART:20260105T090000Z\nDTEND:20260105T100000Z\nRRULE:FREQ=DAILY;UNTIL=20260107T085959Z\nEXDATE:20260106T090000Z",
            "2026-01-05T09:00:00Z/2026-01-05T10:00:00Z",
        ),
        // Those that touch are one.
        (
            "DTSTART:20260105T000000Z\nDURATION:P1D\nRRULE:FREQ=DAILY;COUNT=3",
            "2026-01-05T00:00:00Z/2026-01-08T00:00:00Z",
        ),
    ] {
        let times = event(lines).unwrap().times;
        let words: Vec<String> =
            times.iter().map(|(from, until)| format!("{from}/{until}").replace(".000", "")).collect();
        assert_eq!(words.join(" "), expected, "{lines}");
    }
}

#[test]
fn what_is_not_understood_is_refused_with_its_line() {
    let day = "DTSTART;VALUE=DATE:20261225\n";
    for (lines, words) in [
        ("DTSTART:2026-12-25".to_owned(), "line 4: `2026-12-25` is neither a date"),
        (
            "DTSTART;TZID=W. Europe Standard Time:20260105T090000".into(),
            "its TZID `W. Europe Standard Time` is no IANA time zone",
        ),
        (format!("{day}RRULE:FREQ=SECONDLY"), "line 5: RRULE:FREQ=SECONDLY: FREQ=SECONDLY is not understood"),
        (format!("{day}RRULE:FREQ=YEARLY;BYSETPOS=1"), "BYSETPOS is not understood"),
        (format!("{day}RRULE:FREQ=YEARLY;BYDAY=MO"), "understood with BYMONTH only"),
        (format!("{day}RRULE:FREQ=WEEKLY;INTERVAL=2;WKST=SU"), "WKST"),
        (format!("{day}RRULE:INTERVAL=2"), "it has no FREQ"),
        (format!("{day}RRULE:FREQ=YEARLY;COUNT=x"), "`COUNT=x` cannot be read"),
        (format!("{day}RDATE:20261226"), "line 5: RDATE is not understood"),
        (format!("{day}RECURRENCE-ID:20261226"), "RECURRENCE-ID"),
        (
            format!("{day}DTEND;VALUE=DATE:20261225"),
            "the event \"Party\" that begins in line 2: it ends before it begins",
        ),
        ("SUMMARY:x".into(), "it has no DTSTART"),
        ("DTSTART:20260105T090000Z".into(), "it has neither DTEND nor DURATION"),
        ("DTSTART:20260105T090000Z\nDTEND;VALUE=DATE:20260106".into(), "begins with a time, and ends with a date"),
        ("no colon".into(), "line 4: `no colon` has no `:`"),
        ("END:VTODO".into(), "END:VTODO ends nothing"),
    ] {
        let told = event(&lines).unwrap_err();
        assert!(told.contains(words), "{lines}: {told}");
    }
    assert!(ics::parse("key,day\n", &TimeZone::UTC).unwrap_err().contains("is it an iCalendar file?"));
    assert!(ics::parse("X:1\n", &TimeZone::UTC).unwrap_err().contains("no BEGIN:VCALENDAR"));
    assert!(ics::parse("BEGIN:VCALENDAR\nBEGIN:VEVENT\n", &TimeZone::UTC).unwrap_err().contains("not whole"));
}
