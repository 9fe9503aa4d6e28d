//! What the runs of each kind came to over time, against what its schedule promises (pure).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use roundelay_config::{Config, is_internal, schedule_of_kind};
use roundelay_ledger::Census;
use roundelay_model::clock::Time;
use roundelay_model::fleet::EVERY;
use roundelay_model::fresh::{OfInterval, Visits, class_begins};
use roundelay_model::kind_stats::{KindBucket, KindStats, Spans, Step};
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use utoipa::ToSchema;

use super::format::schedule;

/// Attempts after which the tick has run.
const DONE: &[&str] = &["done", "retired", "cut"];
/// Attempts that ended for good and badly.
const FAILED: &[&str] = &["failed"];
/// Attempts that are made again.
const RETRIED: &[&str] = &["retried", "lost"];
/// So often workers tell what runs came to. Less time has no rate.
const TOLD_EVERY: Duration = EVERY;
/// Attempts that say nothing of how well it goes.
const OTHER: &[&str] = &["snoozed", "fanned_out", "dropped", "skipped", "fenced"];

/// What the runs of a kind came to.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct KindReport {
    /// The kind.
    pub kind: String,
    /// Whether it is the engine's own.
    pub own: bool,
    /// How many chains there are of it that have not ended.
    pub chains: i64,
    /// When its chains are due, for people; null for a kind without a schedule.
    pub schedule: Option<String>,
    /// How long after a run its chain's next one is promised, on average, in milliseconds; null where no schedule says so.
    pub promised_ms: Option<f64>,
    /// How long after a run its chain's next one came, on average, in milliseconds: chains by runs for each time. Null
    /// while a chain has not run twice on average.
    pub apart_ms: Option<f64>,
    /// The throttles of the queues that its chains are on.
    pub throttles: BTreeSet<String>,
    /// What the attempts of the whole time came to.
    pub attempts: AttemptCounts,
    /// Attempts for each minute.
    pub per_minute: PerMinute,
    /// The share of attempts that failed or are made again; null without any.
    pub failure_rate: Option<f64>,
    /// How many occurrences were left out, because the chain still ran or nothing could start.
    pub left_out: u64,
    /// How many occurrences calendars left out.
    pub excluded: u64,
    /// How long handlers ran.
    pub took_ms: Option<Quantiles>,
    /// How long after they were due runs started.
    pub late_ms: Option<Quantiles>,
    /// What the attempts came to in each step, the oldest first; steps without any are left out.
    pub series: Vec<Point>,
    /// Where the calls go, if intervals are learned: by the length of the interval, the shortest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalReport>,
}

/// The chains whose intervals are about as long.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct IntervalReport {
    /// The shortest such interval, in milliseconds.
    pub from_ms: u64,
    /// The longest such interval, in milliseconds; exclusive.
    pub to_ms: u64,
    /// About how many chains.
    pub chains: f64,
    /// Their share of all calls of the kind.
    pub calls: f64,
    /// Their share of what all entities of the kind are worth.
    pub weight: f64,
}

impl IntervalReport {
    /// Of the visits in so many seconds.
    fn all(visits: &Visits, seconds: f64) -> Vec<Self> {
        let ms = |class: u8| u64::try_from(class_begins(class).as_millis()).unwrap_or(u64::MAX);
        let of = |(class, of): (&u8, &OfInterval)| Self {
            from_ms: ms(*class),
            to_ms: ms(class.saturating_add(1)),
            chains: of.gaps / seconds,
            calls: of.calls / visits.calls,
            weight: of.weights / visits.weights,
        };
        visits.intervals.iter().map(of).collect()
    }
}

/// How many attempts ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct AttemptCounts {
    /// The tick has run: done, retired, or cut at the end of its time box.
    pub done: u64,
    /// Failed for good.
    pub failed: u64,
    /// Made again, after an error or because the worker was gone.
    pub retried: u64,
    /// Put off, waiting for a batch, dropped, skipped or fenced.
    pub other: u64,
}

/// Attempts in a minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct PerMinute {
    /// Done.
    pub done: f64,
    /// Failed for good.
    pub failed: f64,
    /// Made again.
    pub retried: f64,
}

/// Of spans of time, in milliseconds; at most an eighth too low.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// Reached or exceeded by one in a hundred.
    pub p99: f64,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Point {
    /// When it began.
    pub at: At,
    /// What the attempts came to.
    #[serde(flatten)]
    pub attempts: AttemptCounts,
}

/// What is asked for: the steps since then, as they are now.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    /// The length of a step.
    pub step: Step,
    /// When the first one begins.
    pub since: Time,
    /// Until now.
    pub now: Time,
}

impl AttemptCounts {
    fn of(stats: &KindStats) -> Self {
        Self {
            done: stats.ended(DONE),
            failed: stats.ended(FAILED),
            retried: stats.ended(RETRIED),
            other: stats.ended(OTHER),
        }
    }

    fn failure_rate(self) -> Option<f64> {
        let bad = self.failed + self.retried;
        (self.done + bad > 0).then(|| bad as f64 / (self.done + bad) as f64)
    }
}

impl Quantiles {
    fn of(spans: &Spans) -> Option<Self> {
        let ms = |span: Duration| span.as_secs_f64() * 1_000.0;
        Some(Self { p50: ms(spans.quantile(0.5)?), p99: ms(spans.quantile(0.99)?) })
    }
}

/// The kinds that are configured, or have run or chains, by name, the engine's own last.
pub fn kinds(
    buckets: &[KindBucket],
    census: &Census,
    config: &Config,
    period: Period,
    wall_clock: &WallClock,
) -> Vec<KindReport> {
    let mut of_kind: BTreeMap<&str, Vec<&KindBucket>> = BTreeMap::new();
    buckets.iter().for_each(|bucket| of_kind.entry(&bucket.kind).or_default().push(bucket));
    config.kinds.keys().for_each(|kind| _ = of_kind.entry(kind).or_default());
    census.queues.iter().flat_map(|queue| queue.kinds.keys()).for_each(|kind| _ = of_kind.entry(kind).or_default());
    // What began after the period did has had less time.
    let begun = buckets.iter().map(|bucket| bucket.stats.since.unwrap_or(bucket.at)).min();
    let begun = begun.map_or(period.since, |first| first.max(period.since));
    // What came in the last seconds has not been told yet.
    let told = buckets.iter().filter_map(|bucket| bucket.stats.until).max().unwrap_or(period.now);
    let minutes = told.max(period.now - TOLD_EVERY).since(begun).max(TOLD_EVERY).as_secs_f64() / 60.0;
    let report = |(kind, buckets): (&str, Vec<&KindBucket>)| {
        let mut all = KindStats::default();
        buckets.iter().for_each(|bucket| all.add(&bucket.stats));
        let on: Vec<_> = census.queues.iter().filter(|queue| queue.kinds.contains_key(kind)).collect();
        let chains = on.iter().filter_map(|queue| queue.kinds.get(kind)).sum();
        let throttle = |queue: &str| config.queues.get(queue)?.throttle.clone();
        let attempts = AttemptCounts::of(&all);
        let per_minute = |count: u64| count as f64 / minutes;
        let runs = attempts.done + attempts.failed;
        let own = is_internal(kind);
        // What is learned promises no interval.
        let learned = config.kinds.get(kind).is_some_and(|kind| kind.fresh().is_some());
        let promised = schedule_of_kind(config, kind).filter(|_| !own && !learned);
        let promised = promised.and_then(|schedule| schedule.mean_interval(period.now, wall_clock));
        KindReport {
            kind: kind.to_owned(),
            own,
            chains,
            schedule: schedule(kind, None, config).filter(|_| !own),
            promised_ms: promised.map(|every| every.as_secs_f64() * 1_000.0),
            apart_ms: (runs as f64 >= 2.0 * chains as f64 && chains > 0)
                .then(|| chains as f64 * minutes * 60_000.0 / runs as f64),
            throttles: on.iter().filter_map(|queue| throttle(&queue.queue)).collect(),
            attempts,
            per_minute: PerMinute {
                done: per_minute(attempts.done),
                failed: per_minute(attempts.failed),
                retried: per_minute(attempts.retried),
            },
            failure_rate: attempts.failure_rate(),
            left_out: all.left_out,
            excluded: all.excluded,
            took_ms: Quantiles::of(&all.took),
            late_ms: Quantiles::of(&all.late),
            series: buckets
                .iter()
                .map(|bucket| Point { at: At::of(bucket.at, wall_clock), attempts: AttemptCounts::of(&bucket.stats) })
                .collect(),
            intervals: IntervalReport::all(&all.visits, minutes * 60.0),
        }
    };
    let mut reports: Vec<KindReport> = of_kind.into_iter().map(report).collect();
    reports.sort_by_key(|report| report.own);
    reports
}

/// What the attempts of all kinds but the engine's own came to in each step.
pub fn of_all_kinds(buckets: &[KindBucket], wall_clock: &WallClock) -> Vec<Point> {
    let mut all: BTreeMap<Time, KindStats> = BTreeMap::new();
    for bucket in buckets.iter().filter(|bucket| !is_internal(&bucket.kind)) {
        all.entry(bucket.at).or_default().add(&bucket.stats);
    }
    all.into_iter()
        .map(|(at, stats)| Point { at: At::of(at, wall_clock), attempts: AttemptCounts::of(&stats) })
        .collect()
}

/// A kind whose starts are late.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct LateKind {
    /// Its name.
    pub kind: String,
    /// How late starts were: the 99th percentile, in milliseconds; at most an eighth too low.
    pub p99_ms: f64,
}

/// The kind whose starts were latest in the last ten minutes; the engine's own do not count.
pub fn latest_kind(buckets: &[KindBucket], now: Time) -> Option<LateKind> {
    let mut of_kind: BTreeMap<&str, Spans> = BTreeMap::new();
    let since = now - Duration::from_secs(600);
    for bucket in buckets.iter().filter(|bucket| bucket.at >= since && !is_internal(&bucket.kind)) {
        of_kind.entry(&bucket.kind).or_default().add_all(&bucket.stats.late);
    }
    let all = of_kind.into_iter().filter_map(|(kind, late)| Some((late.quantile(0.99)?, kind)));
    all.max().map(|(p99, kind)| LateKind { kind: kind.to_owned(), p99_ms: p99.as_secs_f64() * 1_000.0 })
}

#[cfg(test)]
mod tests {
    use roundelay_ledger::QueueCensus;

    use super::*;

    fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn bucket(kind: &str, secs: i64, ends: &[(&str, u64)]) -> KindBucket {
        let mut stats = KindStats { left_out: 1, ..KindStats::default() };
        stats.ends = ends.iter().map(|(end, count)| ((*end).to_owned(), *count)).collect();
        stats.took.add(Duration::from_millis(64));
        KindBucket { step: Step::Minute, at: at(secs), kind: kind.into(), stats }
    }

    #[test]
    fn what_runs_came_to_is_told_for_each_kind() {
        let text = "[queues.work]\nthrottle = \"t\"\n[throttles.t]\nallow = 1\nper = \"1s\"\n
            [kinds.sync]\nqueue = \"work\"\nevery = \"30s\"\nhandler.exec.argv = [\"/bin/true\"]\n
            [kinds.idle]\nqueue = \"work\"\nhandler.exec.argv = [\"/bin/true\"]\n";
        let config = Config::parse(text, "r.toml", []).unwrap();
        let of = |kind: &str, chains| BTreeMap::from([(kind.to_owned(), chains)]);
        let work = QueueCensus { queue: "work".into(), kinds: of("sync", 2), ..QueueCensus::default() };
        let own = QueueCensus { queue: "own".into(), kinds: of("roundelay.history", 1), ..QueueCensus::default() };
        let census = Census { queues: vec![work, own], ..Census::default() };
        let period = Period { step: Step::Minute, since: at(0), now: at(3_600) };
        let buckets = [
            bucket("sync", 3_480, &[("done", 3), ("retried", 2), ("lost", 1), ("snoozed", 9)]),
            bucket("sync", 3_540, &[("cut", 1), ("failed", 1)]),
            bucket("gone", 3_540, &[]),
        ];
        let reports = kinds(&buckets, &census, &config, period, &WallClock::default());
        let names: Vec<(&str, bool)> = reports.iter().map(|report| (report.kind.as_str(), report.own)).collect();
        assert_eq!(names, [("gone", false), ("idle", false), ("sync", false), ("roundelay.history", true)]);
        let sync = &reports[2];
        assert_eq!(sync.attempts, AttemptCounts { done: 4, failed: 1, retried: 3, other: 9 });
        // Two minutes, for it began then.
        assert_eq!(sync.per_minute, PerMinute { done: 2.0, failed: 0.5, retried: 1.5 });
        assert_eq!((sync.failure_rate, sync.left_out), (Some(0.5), 2));
        assert_eq!((sync.promised_ms, sync.apart_ms), (Some(30_000.0), Some(48_000.0)), "5 runs of 2 chains in 120 s");
        assert_eq!(sync.took_ms, Some(Quantiles { p50: 64.0, p99: 64.0 }));
        assert_eq!(sync.late_ms, None, "nothing was noted");
        assert_eq!(sync.throttles.iter().collect::<Vec<_>>(), ["t"]);
        assert_eq!(sync.series.len(), 2);
        let idle = &reports[1];
        assert_eq!(latest_kind(&buckets, at(3_600)), None);
        assert_eq!((idle.failure_rate, idle.apart_ms, idle.promised_ms, idle.series.len()), (None, None, None, 0));
    }

    #[test]
    fn the_kind_that_starts_latest_is_not_hidden_by_one_with_many_starts() {
        let late = |kind: &str, secs, ms, times| {
            let mut bucket = bucket(kind, secs, &[]);
            (0..times).for_each(|_| bucket.stats.late.add(Duration::from_millis(ms)));
            bucket
        };
        let buckets = [
            late("fast", 3_540, 8, 10_000),
            late("pull", 3_540, 32_768, 3),
            late("pull", 3_000, 16_384, 3),
            late("before", 2_940, 65_536, 3),
            late("roundelay.history", 3_540, 65_536, 1),
        ];
        let pull = LateKind { kind: "pull".into(), p99_ms: 32_768.0 };
        assert_eq!(latest_kind(&buckets, at(3_600)), Some(pull));
        assert_eq!(latest_kind(&buckets[..1], at(3_600)), Some(LateKind { kind: "fast".into(), p99_ms: 8.0 }));
    }
}
