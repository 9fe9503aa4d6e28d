//! Judges the crawler by the record of the two app stores that it calls (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_model::clock::{Time, short_duration};
use serde::Serialize;

/// The tolerance for times, which are whole milliseconds and come from two programs.
const ROUNDING: Duration = Duration::from_millis(5);
/// How long the first call of a job may take to reach a store.
const WAY: Duration = Duration::from_millis(250);
/// Of this many windows, one may be too full by a store's own clock: on a busy machine a call takes longer, and those
/// of five syncs that begin together make five windows.
const BUSY_WINDOWS: usize = 5;
/// How many other syncs may begin between a request on demand and its start: a slot may have been given away already,
/// and one of eight is the backlog's.
const BEFORE_ON_DEMAND: usize = 2;
/// By how much a busy machine may be late.
const BUSY: Duration = Duration::from_secs(2);
/// How many syncs of each class a comparison needs at least.
const COMPARED: usize = 5;
/// After this time, each failure has come back once, and each requested sync has begun.
const LONG: Duration = Duration::from_secs(15);
/// After this time, apps were synced more than once, and requests for them accepted.
const ENOUGH: Duration = Duration::from_secs(8);

/// The object of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A phase of an app's sync: identity, metrics or finalize.
    Phase(String),
    /// An app's listing in a country.
    Listing(String),
    /// A chart, named `country/chart`.
    Chart(String),
}

/// A call, as a store has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The store.
    pub store: String,
    /// The app; empty for charts.
    pub app: String,
    /// The object of the call.
    pub what: What,
    /// The job of the call.
    pub job: Job,
    /// When the call came.
    pub began: Time,
    /// When the call was answered, or the caller disconnected.
    pub ended: Time,
    /// The status of the answer; zero when the caller disconnected before.
    pub status: u16,
}

/// The job of a call, as the handler names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job {
    /// The id of the job, the same for all its attempts.
    pub id: String,
    /// The attempt.
    pub attempt: u32,
    pub kind: String,
    /// The platform queue from which the job came.
    pub queue: String,
    /// tracked, competitor or backlog; empty for charts.
    pub class: String,
    /// Whether the job is only for one part that had failed.
    pub part: bool,
    /// The nominal start of the job.
    pub nominal: Time,
    /// When the job started, by its deadline.
    pub started: Time,
}

impl Job {
    fn is_on_demand(&self) -> bool {
        self.queue.starts_with("sync-on-demand-")
    }
}

/// A sync that a user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    pub store: String,
    pub app: String,
    /// When the request had been answered.
    pub at: Time,
    /// Why the request was refused; `None` if it was accepted.
    pub refused: Option<String>,
}

/// How many starts a store allows in which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many starts.
    pub allow: usize,
    /// The length of the window, wherever it begins.
    pub per: Duration,
}

/// The input of the judge.
#[derive(Clone, Debug)]
pub struct Record {
    /// The calls, in the order in which they came.
    pub calls: Vec<Call>,
    /// The limits of syncs, by store.
    pub syncs: BTreeMap<String, Limit>,
    /// The limits of charts, by store.
    pub charts: BTreeMap<String, Limit>,
    /// The charts of the roster, by store.
    pub listed: BTreeSet<(String, String)>,
    /// The interval of charts.
    pub chart_every: Duration,
    /// The store that went down, from when to when.
    pub down: Option<(String, Time, Time)>,
    /// The syncs that users asked for.
    pub wishes: Vec<SyncRequest>,
    /// When all chains had begun, or when the record begins, if that is later.
    pub from: Time,
    /// When the engine was told to stop.
    pub to: Time,
}

/// The figures of a demo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Syncs that began, by store.
    pub syncs: BTreeMap<String, usize>,
    /// The most syncs in any window, by store.
    pub busiest_window: BTreeMap<String, usize>,
    /// Charts that were fetched, by store.
    pub charts: BTreeMap<String, usize>,
    /// Pairs of app and country without a listing.
    pub unavailable: usize,
    /// Syncs that later left out such a country.
    pub synced_again: usize,
    /// Parts with other failures that were retried automatically.
    pub fed_back: usize,
    /// Syncs on demand.
    pub on_demand: usize,
    /// How long the slowest sync on demand waited, in milliseconds.
    pub on_demand_waited_ms: u64,
    /// The median wait of the scheduled syncs, by class, in milliseconds.
    pub waited_ms: BTreeMap<String, u64>,
}

/// The rules that were broken, in sentences, and the figures.
pub fn judge(record: &Record) -> (Vec<String>, Figures) {
    let mut judge = Judge { record, starts: starts(record), said: Vec::new(), figures: Figures::default() };
    for (chart, limits) in [(false, &record.syncs), (true, &record.charts)] {
        for (store, limit) in limits {
            judge.windows(store, chart, *limit);
        }
    }
    judge.unavailable();
    judge.wished();
    judge.one_entity();
    judge.other_store();
    judge.on_demand();
    judge.classes();
    judge.charts();
    judge.fed_back();
    (judge.said, judge.figures)
}

/// A job that has begun, with its first call.
struct Start<'a> {
    store: &'a str,
    app: &'a str,
    chart: bool,
    job: &'a Job,
    began: Time,
    ended: Time,
}

fn starts(record: &Record) -> Vec<Start<'_>> {
    let mut found: BTreeMap<(&str, u32), Start<'_>> = BTreeMap::new();
    for Call { store, app, what, job, began, ended, .. } in &record.calls {
        let chart = matches!(what, What::Chart(_));
        let new = Start { store, app, chart, job, began: *began, ended: *ended };
        let start = found.entry((&job.id, job.attempt)).or_insert(new);
        start.ended = start.ended.max(*ended);
    }
    let mut starts: Vec<Start<'_>> = found.into_values().collect();
    starts.sort_by_key(|start| start.job.started);
    starts
}

struct Judge<'a> {
    record: &'a Record,
    /// The jobs, in the order in which they started.
    starts: Vec<Start<'a>>,
    said: Vec<String>,
    figures: Figures,
}

impl<'a> Judge<'a> {
    fn of(&self, store: &str, chart: bool) -> impl Iterator<Item = &Start<'a>> {
        self.starts.iter().filter(move |start| start.store == store && start.chart == chart)
    }

    /// Rule: no window of a store holds more starts than its limit: neither by the starts that runs report, nor by the
    /// store's own clock, which sees a run when its first call arrives.
    fn windows(&mut self, store: &str, chart: bool, limit: Limit) {
        let times: Vec<Time> = self.of(store, chart).map(|start| start.job.started).collect();
        let noun = if chart { "charts" } else { "syncs" };
        let most = fullness(&times, limit.per.saturating_sub(ROUNDING)).into_iter().max().unwrap_or(0);
        let (per, allow) = (short_duration(limit.per), limit.allow);
        let full = self.full_windows(store, chart, limit);
        if most > allow {
            self.said.push(format!("{store} was asked for {most} {noun} within {per}, where it takes {allow}."));
        } else if full * BUSY_WINDOWS > times.len() {
            self.said.push(format!(
                "{store} was asked for more than {allow} {noun} within {per} {full} times by its own clock, though not by \
                 what the runs say of their starts."
            ));
        }
        let counts = if chart { &mut self.figures.charts } else { &mut self.figures.syncs };
        counts.insert(store.to_owned(), times.len());
        self.figures.busiest_window.insert(format!("{store} {noun}"), most);
    }

    /// How many windows are too full if each run has begun shortly before the store saw it.
    fn full_windows(&self, store: &str, chart: bool, limit: Limit) -> usize {
        let mut times: Vec<Time> =
            self.of(store, chart).map(|start| start.job.started.clamp(start.began - WAY, start.began)).collect();
        times.sort();
        let fullness = fullness(&times, limit.per.saturating_sub(ROUNDING));
        fullness.into_iter().filter(|count| *count > limit.allow).count()
    }

    /// Rule: no other job asks again for a country in which an app is not available.
    fn unavailable(&mut self) {
        let mut gone: BTreeMap<(&str, &str, &str), &Job> = BTreeMap::new();
        let ends: BTreeMap<(&str, u32), Time> =
            self.starts.iter().map(|start| ((start.job.id.as_str(), start.job.attempt), start.ended)).collect();
        for call in &self.record.calls {
            let What::Listing(country) = &call.what else { continue };
            let place = (call.store.as_str(), call.app.as_str(), country.as_str());
            match gone.get(&place) {
                Some(first) => {
                    let known =
                        ends.get(&(first.id.as_str(), first.attempt)).is_some_and(|end| call.job.started > *end);
                    if known && first.id != call.job.id {
                        self.said.push(format!(
                            "{} was asked for {} in {country} again, by {}, where it is not available.",
                            call.store, call.app, call.job.queue
                        ));
                    }
                }
                None if call.status == 404 => {
                    gone.insert(place, &call.job);
                }
                None => {}
            }
        }
        self.figures.unavailable = gone.len();
        let again = |start: &&Start<'_>| {
            let found = gone.iter().filter(|((store, app, _), _)| (*store, *app) == (start.store, start.app));
            !start.job.part && found.clone().count() > 0 && found.into_iter().all(|(_, first)| first.id != start.job.id)
        };
        self.figures.synced_again = self.starts.iter().filter(again).count();
    }

    /// Rule: requests are accepted, and apps that are not available somewhere are synced again. Without these, there is
    /// nothing to judge.
    fn wished(&mut self) {
        let wishes = &self.record.wishes;
        if wishes.is_empty() || self.record.to.since(self.record.from) < ENOUGH {
            return;
        }
        let refused: Vec<&SyncRequest> = wishes.iter().filter(|wish| wish.refused.is_some()).collect();
        if let Some(first) = refused.first().filter(|_| refused.len() * 2 > wishes.len()) {
            self.said.push(format!(
                "{} of {} syncs on demand were refused, so that too few are left to judge by; the first, since {}.",
                refused.len(),
                wishes.len(),
                first.refused.as_deref().unwrap_or_default()
            ));
        }
        if self.figures.synced_again == 0 {
            self.said.push(
                "No app that is not available in some country was synced again: nothing shows that the country is left \
                 out."
                    .into(),
            );
        }
    }

    /// Rule: an app is one entity: of one kind, and never synced twice at once.
    fn one_entity(&mut self) {
        let mut apps: BTreeMap<(&str, &str), Vec<&Start<'_>>> = BTreeMap::new();
        for start in self.starts.iter().filter(|start| !start.chart && !start.job.part) {
            apps.entry((start.store, start.app)).or_default().push(start);
        }
        for ((store, app), starts) in apps {
            for pair in starts.windows(2) {
                if pair[1].began < pair[0].ended {
                    self.said.push(format!(
                        "{store} was asked for {app} by {} while {} still did.",
                        pair[1].job.queue, pair[0].job.queue
                    ));
                }
            }
            let kinds: BTreeSet<&str> = starts.iter().map(|start| start.job.kind.as_str()).collect();
            if kinds.len() > 1 {
                let kinds: Vec<&str> = kinds.into_iter().collect();
                self.said.push(format!("{store}'s {app} has chains of several kinds: {}.", kinds.join(", ")));
            }
        }
    }

    /// Rule: while one store is down, the other gets as many calls as before.
    fn other_store(&mut self) {
        let Some((down, from, to)) = &self.record.down else { return };
        let length = to.since(*from);
        let before = (*from - length).max(self.record.from);
        for store in self.record.syncs.keys().filter(|store| *store != down) {
            let count = |from: Time, to: Time| {
                self.of(store, false).filter(|start| (from..to).contains(&start.job.started)).count()
            };
            // As much of the time before as the record has.
            let share = from.since(before).as_secs_f64() / length.as_secs_f64().max(0.001);
            let (ever, meanwhile) = (count(before, *from), count(*from, *to));
            if (meanwhile as f64) * share * 2.0 + 1.0 < ever as f64 {
                self.said.push(format!(
                    "{store} was asked for {meanwhile} syncs in the {} while {down} was down, and for {ever} in the {} \
                     before.",
                    short_duration(length),
                    short_duration(from.since(before))
                ));
            }
            let late = |from: Time, to: Time| {
                let charts = self.of(store, true).filter(|start| (from..to).contains(&start.job.started));
                median(charts.map(|start| start.job.started.since(start.job.nominal)))
            };
            let (ever, meanwhile) = (late(before, *from), late(*from, *to));
            if let Some(meanwhile) = meanwhile.filter(|meanwhile| *meanwhile > ever.unwrap_or_default() + BUSY) {
                self.said.push(format!(
                    "{store}'s charts were late by {} while {down} was down, and by {} before.",
                    short_duration(meanwhile),
                    short_duration(ever.unwrap_or_default())
                ));
            }
        }
    }

    /// Rule: a sync on demand goes before the backlog.
    fn on_demand(&mut self) {
        for SyncRequest { store, app, at, .. } in self.record.wishes.iter().filter(|wish| wish.refused.is_none()) {
            let wanted = |start: &&Start<'_>| {
                start.app == app && start.job.is_on_demand() && start.job.started + ROUNDING >= *at
            };
            let start = self.of(store, false).find(wanted).map(|start| start.job.started);
            let Some(start) = start else {
                if *at + LONG < self.record.to {
                    self.said.push(format!("{store}'s {app} was asked for on demand, and never synced."));
                }
                continue;
            };
            self.figures.on_demand += 1;
            let waited = start.since(*at).as_millis() as u64;
            self.figures.on_demand_waited_ms = self.figures.on_demand_waited_ms.max(waited);
            let lower =
                |lower: &&Start<'_>| !lower.job.is_on_demand() && lower.job.started > *at && lower.job.started < start;
            let before = self.of(store, false).filter(lower).count();
            if before > BEFORE_ON_DEMAND {
                self.said.push(format!(
                    "{store}'s {app} was asked for on demand, and {before} scheduled syncs began before it."
                ));
            }
        }
    }

    /// Rule: tracked apps wait less than those of the backlog.
    fn classes(&mut self) {
        let mut waits: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        for start in self.starts.iter().filter(|start| !start.chart && !start.job.part && start.job.attempt == 1) {
            if !start.job.is_on_demand() {
                let waited = start.job.started.since(start.job.nominal);
                waits.entry(start.job.class.clone()).or_default().push(waited);
            }
        }
        let medians: BTreeMap<&str, Duration> = waits
            .iter()
            .filter(|(_, waits)| waits.len() >= COMPARED)
            .filter_map(|(class, waits)| Some((class.as_str(), median(waits.iter().copied())?)))
            .collect();
        if let (Some(tracked), Some(backlog)) = (medians.get("tracked"), medians.get("backlog"))
            && *tracked > *backlog + BUSY
        {
            self.said.push(format!(
                "Tracked apps waited for {}, and those of the backlog for {}.",
                short_duration(*tracked),
                short_duration(*backlog)
            ));
        }
        let medians = medians.into_iter().map(|(class, wait)| (class.to_owned(), wait.as_millis() as u64));
        self.figures.waited_ms = medians.collect();
    }

    /// Rule: each chart of the roster is fetched, from its own store.
    fn charts(&mut self) {
        if self.record.to.since(self.record.from) < self.record.chart_every * 2 + BUSY * 2 {
            return;
        }
        let fetched: BTreeSet<(&str, &str)> = self.record.calls.iter().filter_map(fetched_chart).collect();
        for (store, chart) in &self.record.listed {
            if !fetched.contains(&(store.as_str(), chart.as_str())) {
                self.said.push(format!("{store}'s chart {chart} was never fetched."));
            }
        }
    }

    /// Rule: a failure that may come back does.
    fn fed_back(&mut self) {
        let mut failed = None;
        for call in &self.record.calls {
            let listing = matches!(call.what, What::Listing(_));
            if listing && call.status >= 500 && !call.job.part {
                failed = failed.or(Some(call));
            }
        }
        self.figures.fed_back = self.starts.iter().filter(|start| start.job.part).count();
        if let Some(call) = failed.filter(|call| call.ended + LONG < self.record.to && self.figures.fed_back == 0) {
            self.said.push(format!("A part of {}'s {} failed, and none was ever fed back.", call.store, call.app));
        }
    }
}

/// For each of these times, how many lie within `per` from it on.
fn fullness(times: &[Time], per: Duration) -> Vec<usize> {
    times.iter().enumerate().map(|(n, at)| times[n..].partition_point(|next| next.since(*at) < per)).collect()
}

fn fetched_chart(call: &Call) -> Option<(&str, &str)> {
    match &call.what {
        What::Chart(chart) => Some((&call.store, chart)),
        What::Phase(_) | What::Listing(_) => None,
    }
}

fn median(waits: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut waits: Vec<Duration> = waits.collect();
    waits.sort();
    waits.get(waits.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(1_800_000_000_000) + Duration::from_millis(millis)
    }

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn job(id: String, queue: &str, class: &str, started: Time) -> Job {
        let kind = if class.is_empty() { "chart-snapshot" } else { "sync-app" };
        Job {
            id,
            attempt: 1,
            kind: kind.into(),
            queue: queue.into(),
            class: class.into(),
            part: false,
            nominal: started - millis(50),
            started,
        }
    }

    /// A sync of an app in two countries; the app may have no listing in the second one.
    fn sync(store: &str, app: &str, job: &Job, countries: &[(&str, u16)]) -> Vec<Call> {
        let phase = |name: &str| What::Phase(name.into());
        let listings = countries.iter().map(|(country, status)| (What::Listing((*country).into()), *status));
        let calls = [(phase("identity"), 200)]
            .into_iter()
            .chain(listings)
            .chain([(phase("metrics"), 200), (phase("finalize"), 200)]);
        let call = |(n, (what, status)): (u64, (What, u16))| {
            let began = job.started + millis(10 + 20 * n);
            Call {
                store: store.into(),
                app: app.into(),
                what,
                job: job.clone(),
                began,
                ended: began + millis(15),
                status,
            }
        };
        (0..).zip(calls).map(call).collect()
    }

    fn chart(store: &str, name: &str, started: u64) -> Call {
        let job = job(format!("chart-{store}-{name}-{started}"), &format!("charts-{store}"), "", at(started));
        let began = job.started + millis(10);
        Call {
            store: store.into(),
            app: String::new(),
            what: What::Chart(name.into()),
            job,
            began,
            ended: began + millis(20),
            status: 200,
        }
    }

    /// Half a minute of two stores: a sync a second, of apps in turn; `fr` has no app whose number is divided by five.
    fn perfect() -> Record {
        let mut calls = Vec::new();
        for store in ["ios", "android"] {
            for n in 0..30_u64 {
                let app = n % 10;
                let class = ["tracked", "competitor", "backlog"][app as usize % 3];
                let mut job = job(format!("{store}-{n}"), &format!("sync-tracked-{store}"), class, at(n * 1_010));
                if class == "backlog" {
                    job.nominal = job.started - millis(900);
                }
                let us = ("us", if n == 3 { 503 } else { 200 });
                let listings: &[_] = match (app % 5, n < 10) {
                    (0, true) => &[us, ("fr", 404)],
                    (0, false) => &[us],
                    _ => &[us, ("fr", 200)],
                };
                calls.extend(sync(store, &format!("app-{app}"), &job, listings));
            }
            let mut part = job(format!("{store}-part"), &format!("sync-tracked-{store}"), "tracked", at(30_500));
            part.part = true;
            calls.push(sync(store, "app-3", &part, &[("us", 200)]).remove(1));
            for n in 0..8 {
                calls.push(chart(store, "us/top_free", 100 + n * 3_750));
            }
        }
        calls.sort_by_key(|call| call.began);
        let stores =
            |allow| ["ios", "android"].map(|store| (store.to_owned(), Limit { allow, per: millis(5_000) })).into();
        Record {
            calls,
            syncs: stores(5),
            charts: stores(24),
            listed: ["ios", "android"].map(|store| (store.to_owned(), "us/top_free".to_owned())).into(),
            chart_every: millis(3_750),
            down: Some(("ios".into(), at(15_000), at(20_000))),
            wishes: Vec::new(),
            from: at(0),
            to: at(32_000),
        }
    }

    fn violations(change: impl FnOnce(&mut Record)) -> Vec<String> {
        let mut record = perfect();
        change(&mut record);
        record.calls.sort_by_key(|call| call.began);
        judge(&record).0
    }

    #[test]
    fn stores_that_are_called_as_they_should_be_break_nothing() {
        let (said, figures) = judge(&perfect());
        assert_eq!(said, [""; 0]);
        assert_eq!((figures.syncs["ios"], figures.charts["android"], figures.busiest_window["ios syncs"]), (31, 8, 5));
        assert_eq!((figures.unavailable, figures.synced_again, figures.fed_back), (4, 8, 2));
        assert!(figures.waited_ms["tracked"] < figures.waited_ms["backlog"]);
    }

    #[test]
    fn a_window_that_is_too_full() {
        let found = violations(|record| {
            let job = job("more".into(), "sync-tracked-ios", "tracked", at(10_000));
            record.calls.extend(sync("ios", "app-x", &job, &[]));
        });
        assert_eq!(found, ["ios was asked for 6 syncs within 5s, where it takes 5."]);
        let charts = violations(|record| record.charts.get_mut("android").unwrap().allow = 1);
        assert_eq!(charts, ["android was asked for 2 charts within 5s, where it takes 1."]);
    }

    /// A call that took longer, as some do on a busy machine, makes no window fuller.
    #[test]
    fn calls_that_come_in_together_have_not_started_together() {
        let found = violations(|record| {
            for call in record.calls.iter_mut().filter(|call| call.job.id == "ios-7") {
                (call.began, call.ended) = (call.began + millis(700), call.ended + millis(700));
            }
        });
        assert_eq!(found, [""; 0]);
    }

    /// Ten syncs come together although their deadlines say that they started at intervals.
    #[test]
    fn a_window_that_is_too_full_by_the_stores_own_clock() {
        let found = violations(|record| {
            for call in record.calls.iter_mut().filter(|call| call.store == "ios" && !call.app.is_empty()) {
                let Some(n) = call.job.id.strip_prefix("ios-").and_then(|n| n.parse::<u64>().ok()) else { continue };
                let late = millis((9 - n % 10) * 1_010);
                (call.began, call.ended) = (call.began + late, call.ended + late);
            }
        });
        assert_eq!(
            found,
            [
                "ios was asked for more than 5 syncs within 5s 16 times by its own clock, though not by what the runs say of \
              their starts."
            ]
        );
    }

    #[test]
    fn wishes_that_are_refused() {
        let wish = |refused: Option<&str>| SyncRequest {
            store: "ios".into(),
            app: "app-9".into(),
            at: at(30_000),
            refused: refused.map(Into::into),
        };
        let with = |refused: usize, accepted: usize, to| {
            let wishes =
                vec![wish(Some("it has just ended")); refused].into_iter().chain(vec![wish(None); accepted]).collect();
            violations(|record| (record.wishes, record.to) = (wishes, at(to)))
        };
        let said = |refused, of| {
            format!(
                "{refused} of {of} syncs on demand were refused, so that too few are left to judge by; the first, since \
                 it has just ended."
            )
        };
        assert_eq!(with(4, 4, 32_000), [""; 0]);
        assert_eq!(with(5, 3, 32_000), [said(5, 8)]);
        assert_eq!(with(8, 0, 8_000), [said(8, 8)]);
        assert_eq!(with(8, 0, 7_999), [""; 0]);
    }

    #[test]
    fn apps_that_are_never_synced_again() {
        let again = |wishes: Vec<SyncRequest>| {
            violations(|record| {
                record.wishes = wishes;
                record.down = None;
                // Apps of the second and third round that have no listing in `fr`.
                let again = |call: &Call| {
                    ["app-0", "app-5"].contains(&call.app.as_str()) && call.job.started > at(10 * 1_010 - 1)
                };
                record.calls.retain(|call| !again(call));
            })
        };
        let wish = SyncRequest { store: "ios".into(), app: "app-9".into(), at: at(30_000), refused: None };
        assert_eq!(again(Vec::new()), [""; 0]);
        assert_eq!(
            again(vec![wish]),
            [
                "No app that is not available in some country was synced again: nothing shows that the country is left out."
            ]
        );
    }

    #[test]
    fn a_country_that_is_asked_again() {
        for (queue, part) in [("sync-tracked-ios", false), ("sync-on-demand-ios", false), ("sync-tracked-ios", true)] {
            let found = violations(|record| {
                let job = Job { part, ..job("again".into(), queue, "tracked", at(40_000)) };
                record.calls.extend(sync("ios", "app-5", &job, &[("fr", 404)]));
            });
            assert_eq!(found, [format!("ios was asked for app-5 in fr again, by {queue}, where it is not available.")]);
        }
    }

    #[test]
    fn an_app_twice_at_once_and_one_of_two_kinds() {
        let found = violations(|record| {
            record.syncs.get_mut("ios").unwrap().allow = 9;
            let job = job("beside".into(), "sync-on-demand-ios", "tracked", at(7 * 1_010 + 30));
            record.calls.extend(sync("ios", "app-7", &job, &[]));
        });
        assert_eq!(found, ["ios was asked for app-7 by sync-on-demand-ios while sync-tracked-ios still did."]);
        let found = violations(|record| {
            let job =
                Job { kind: "sync-backlog".into(), ..job("twin".into(), "sync-tracked-ios", "backlog", at(40_000)) };
            record.calls.extend(sync("ios", "app-7", &job, &[]));
        });
        assert_eq!(found, ["ios's app-7 has chains of several kinds: sync-app, sync-backlog."]);
    }

    #[test]
    fn a_store_that_suffers_with_the_other() {
        let slower = violations(|record| {
            let kept = |call: &Call| {
                call.store == "ios"
                    || call.job.kind != "sync-app"
                    || call.job.started < at(15_000)
                    || call.job.started > at(19_000)
            };
            record.calls.retain(kept);
        });
        assert_eq!(slower, ["android was asked for 1 syncs in the 5s while ios was down, and for 5 in the 5s before."]);
        let late = violations(|record| {
            for call in &mut record.calls {
                if call.store == "android" && call.app.is_empty() && call.job.started > at(15_000) {
                    call.job.nominal = call.job.nominal - millis(2_500);
                }
            }
        });
        assert_eq!(late, ["android's charts were late by 2550ms while ios was down, and by 50ms before."]);
    }

    #[test]
    fn a_wish_that_waits_behind_the_backlog() {
        let wish = SyncRequest { store: "ios".into(), app: "app-9".into(), at: at(10_200), refused: None };
        let with = |started: u64| {
            let wish = wish.clone();
            move |record: &mut Record| {
                record.syncs.get_mut("ios").unwrap().allow = 9;
                record.wishes.push(wish);
                let job = job("wish".into(), "sync-on-demand-ios", "tracked", at(started));
                record.calls.extend(sync("ios", "app-9", &job, &[("us", 200)]));
            }
        };
        assert_eq!(violations(with(12_500)), [""; 0]);
        assert_eq!(
            violations(with(13_500)),
            ["ios's app-9 was asked for on demand, and 3 scheduled syncs began before it."]
        );
        let never = violations(|record| record.wishes.push(wish.clone()));
        assert_eq!(never, ["ios's app-9 was asked for on demand, and never synced."]);
    }

    #[test]
    fn tracked_apps_that_wait_longer_than_the_backlog() {
        let found = violations(|record| {
            for call in record.calls.iter_mut().filter(|call| call.job.class == "tracked") {
                call.job.nominal = call.job.nominal - millis(5_000);
            }
        });
        assert_eq!(found, ["Tracked apps waited for 5050ms, and those of the backlog for 900ms."]);
    }

    #[test]
    fn a_chart_that_is_never_fetched() {
        let found = violations(|record| record.calls.retain(|call| call.store == "ios" || !call.app.is_empty()));
        assert_eq!(found, ["android's chart us/top_free was never fetched."]);
    }

    #[test]
    fn parts_that_do_not_come_back() {
        let found = violations(|record| record.calls.retain(|call| !call.job.part));
        assert_eq!(found, ["A part of ios's app-3 failed, and none was ever fed back."]);
    }
}
