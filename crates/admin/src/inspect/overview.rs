//! All chains in figures, and what is wrong, in words (pure).

use std::collections::BTreeMap;

use roundelay_config::{Config, schedule_of_kind};
use roundelay_ledger::Census;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{Lateness, Rhythm, SECONDS};
use roundelay_model::pacing::demand::{Needs, shortage};
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use utoipa::ToSchema;

use super::format::{Late, rough};
use super::kinds::{LateKind, Point, latest_kind, of_all_kinds};
use super::queues::{QueueFacts, QueueReport};
use super::status_cache::{Facts, ThrottledNow};
use super::workers::state;

/// The state of the whole system.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Overview {
    /// When the overview was made, by the ledger's clock.
    pub now: At,
    /// When chains were last counted. With very many chains a count takes a while, and comes every half a minute.
    pub counted_at: Option<At>,
    /// The number of chains, by state.
    pub chains: Counts,
    /// How many jobs wait for a slot of a throttle, in all workers.
    pub waiting_for_slot: i64,
    /// How many failures are kept: of entities, and of parts of entities.
    pub failures: i64,
    /// How many of them are of entities that have worked since.
    pub recovered: i64,
    /// How many unusable messages the ledger keeps.
    pub quarantined_messages: i64,
    /// How many one-off jobs the ledger keeps.
    pub kept_jobs: i64,
    /// How long after its due time a chain becomes late, in milliseconds (`catch_up.slack`).
    pub late_after_ms: u64,
    /// When the longest overdue chain was due.
    pub oldest_due: Option<At>,
    /// Starts of runs.
    pub starts: Starts,
    /// What attempts came to in each minute of the last hour, the oldest first; minutes without any are left out.
    pub attempts: Vec<Point>,
    /// How late starts were in the last ten seconds, on the worker with the latest ones.
    pub late_ms: Option<Late>,
    /// The kind whose starts were latest in the last ten minutes; null without any. A kind with many starts hides it in
    /// `late_ms`.
    pub latest_kind: Option<LateKind>,
    /// The number of workers, by state.
    pub workers: WorkerCounts,
    /// Why the broker could not be asked; null when it was.
    pub broker_why: Option<String>,
    /// What is wrong, the worst first.
    pub troubles: Vec<Trouble>,
}

/// The number of chains, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Counts {
    /// All that have not ended.
    pub total: i64,
    /// Due in the future.
    pub sleeping: i64,
    /// Due, and not running.
    pub due: i64,
    /// Running.
    pub running: i64,
    /// Due for longer than `catch_up.slack`, and nothing holds them (a part of `due`).
    pub overdue: i64,
    /// Due, and an operator holds their queues or throttles (a part of `due`).
    pub held: i64,
    /// Waiting for the end of their batch.
    pub gathering: i64,
    /// With a successor that the broker has not confirmed.
    pub unsent: i64,
    /// Paused by an operator.
    pub paused: i64,
    /// Ended.
    pub retired: i64,
    /// Ended by a run that said the entity is unavailable (a part of `retired`).
    pub unavailable: i64,
    /// Quarantined: workers died over them, or their messages were ahead of the ledger.
    pub quarantined: i64,
}

/// Starts of runs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Starts {
    /// Starts per second, over the last twenty seconds for which all workers have reported.
    pub per_second: f64,
    /// The busiest second of the last hour divided by the mean one; null if starts are too rare for a meaning.
    pub peak_to_mean: Option<f64>,
    /// The last hour, the oldest first: ten seconds each, or single seconds if there are less than two minutes.
    pub hour: Vec<Bucket>,
}

/// The starts within some seconds.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Bucket {
    /// When these seconds began.
    pub at: At,
    /// How many runs started.
    pub starts: u64,
    /// How many seconds these are.
    pub seconds: usize,
    /// How late the starts were: the 99th percentile, in milliseconds.
    pub p99_ms: Option<f64>,
}

/// The number of workers, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct WorkerCounts {
    /// They take jobs.
    pub working: usize,
    /// They take no more jobs, because of an operator's order or because they end.
    pub draining: usize,
    /// They have not reported for 30 s.
    pub silent: usize,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Trouble {
    /// How bad it is.
    pub level: Level,
    /// What is wrong, for people.
    pub what: String,
    /// The screen that shows more.
    pub see: ScreenLink,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something does not run that should.
    Error,
    /// An operator should look at it.
    Warning,
    /// An operator has stopped it, so nothing is wrong.
    Held,
}

/// A screen, and its filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ScreenLink {
    /// The screen: queues, throttles, workers, chains, failures or quarantine.
    pub screen: &'static str,
    /// The filter on that screen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<Query>,
}

/// A filter of chains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Query {
    /// The state of the chains.
    pub state: &'static str,
}

/// Sums up a census, without the engine's own chains on its queue `chores`.
fn counts(census: &Census, chores: &str) -> Counts {
    let mut counts = Counts {
        paused: census.paused,
        retired: census.retired,
        unavailable: census.unavailable,
        quarantined: census.quarantined,
        ..Counts::default()
    };
    for queue in census.queues.iter().filter(|queue| queue.queue != chores) {
        counts.sleeping += queue.sleeping;
        counts.due += queue.due;
        counts.running += queue.running;
        counts.overdue += queue.overdue;
        counts.held += queue.held;
        counts.gathering += queue.waiting;
        counts.unsent += queue.unsent;
    }
    counts.total =
        counts.sleeping + counts.due + counts.running + counts.gathering + counts.paused + counts.quarantined;
    counts
}

/// Makes the overview from the facts.
pub fn overview(facts: &Facts, config: &Config) -> Overview {
    let Facts { now, wall_clock, census, asked, workers, rhythm, recent_late, waiting, .. } = facts;
    let empty = Census::default();
    let (census, counted_at) = census.as_ref().map_or((&empty, None), |(census, at)| (census, Some(*at)));
    let chains = counts(census, &config.topology().names.chores());
    let mut of_workers = WorkerCounts::default();
    for worker in workers {
        *match state(worker, *now) {
            "working" => &mut of_workers.working,
            "silent" => &mut of_workers.silent,
            _ => &mut of_workers.draining,
        } += 1;
    }
    let Rhythm { sets, seconds, peak_to_mean, per_second } = rhythm;
    let (sets, length) = if seconds.is_empty() { (sets, SECONDS) } else { (seconds, 1) };
    let bucket = |(at, starts, p99_ms): &(Time, u64, Option<f64>)| Bucket {
        at: At::of(*at, wall_clock),
        starts: *starts,
        seconds: length,
        p99_ms: *p99_ms,
    };
    Overview {
        now: At::of(*now, wall_clock),
        counted_at: counted_at.map(|at| At::of(at, wall_clock)),
        chains,
        waiting_for_slot: waiting.values().sum(),
        failures: census.failures,
        recovered: census.recovered,
        quarantined_messages: census.quarantined_messages,
        kept_jobs: census.kept_jobs,
        late_after_ms: u64::try_from(config.catch_up.slack.as_millis()).unwrap_or(u64::MAX),
        oldest_due: census.oldest_due().map(|at| At::of(at, wall_clock)),
        starts: Starts {
            per_second: *per_second,
            peak_to_mean: *peak_to_mean,
            hour: sets.iter().map(bucket).collect(),
        },
        attempts: of_all_kinds(&facts.kinds, wall_clock),
        late_ms: recent_late.map(|late: Lateness| late.into()),
        latest_kind: latest_kind(&facts.kinds, *now),
        workers: of_workers,
        broker_why: asked.error().map(str::to_owned),
        troubles: troubles(facts, census, &chains, of_workers, config),
    }
}

/// What is wrong, the worst first.
fn troubles(facts: &Facts, census: &Census, chains: &Counts, workers: WorkerCounts, config: &Config) -> Vec<Trouble> {
    let mut all = Vec::new();
    let mut say =
        |level, screen, what: String| all.push(Trouble { level, what, see: ScreenLink { screen, query: None } });
    if let Some(why) = facts.asked.error() {
        say(
            Level::Error,
            "queues",
            format!(
                "the broker cannot be asked: {why}. Workers without it run chains from the ledger; one-off jobs wait"
            ),
        );
    }
    if workers.working + workers.draining == 0 && chains.total > 0 {
        let words = match workers.silent {
            0 => "no worker runs, so nothing does".to_owned(),
            silent => format!("no worker is heard of: {} silent", count(silent as i64, "one is", "are")),
        };
        say(Level::Error, "workers", words);
    } else if workers.silent > 0 {
        let words = count(workers.silent as i64, "one worker has", "workers have");
        say(Level::Warning, "workers", format!("{words} said nothing for 30 s: dead, frozen, or cut off"));
    }
    for queue in queues(facts, census, config) {
        let (name, waiting) = (&queue.queue, queue.due);
        if let Some(paused) = &queue.paused {
            let (by, at, why) = (&paused.by, paused.at, &paused.why);
            say(Level::Held, "queues", format!("the queue {name} is paused by {by} since {at}: {why}{}", held(&queue)));
        } else if queue.consumers == Some(0) && (queue.ready.unwrap_or(0) > 0 || waiting > 0) {
            say(
                Level::Error,
                "queues",
                format!(
                    "no worker consumes the queue {name}, where {} due",
                    count(waiting, "one chain is", "chains are")
                ),
            );
        }
    }
    for throttled in &facts.throttled {
        // Each of the three may be there beside the others.
        if let Some(hold) = facts.holds.of_throttle(&throttled.name) {
            say(Level::Held, "throttles", hold.words(&facts.wall_clock));
        }
        if let Some(words) = short_of(throttled, facts, config) {
            say(Level::Warning, "throttles", words);
        }
        if throttled.in_the_way && facts.waiting.get(&throttled.name).copied().unwrap_or(0) > 0 {
            say(Level::Warning, "throttles", throttled.words.clone());
        }
    }
    if census.quarantined_messages > 0 {
        let words = count(
            census.quarantined_messages,
            "one message that cannot be used is",
            "messages that cannot be used are",
        );
        say(Level::Warning, "quarantine", format!("{words} kept in the ledger"));
    }
    let names = config.topology().names;
    for (queue, what) in
        [(names.quarantine(), "cannot be used"), (names.unrouted(), "are for queues that do not exist")]
    {
        if let Some(depth) = facts.asked.depth(&queue).filter(|depth| depth.ready > 0) {
            let (messages, what) = match depth.ready {
                1 => ("one message".to_owned(), what.replacen("are", "is", 1)),
                many => (format!("{many} messages"), what.to_owned()),
            };
            say(Level::Warning, "quarantine", format!("{messages} on {queue} {what}"));
        }
    }
    let failing = census.failures - census.recovered;
    if failing > 0 {
        let words = count(failing, "one entity, or a part of one, is failing", "entities or parts of them are failing");
        say(Level::Warning, "failures", words);
    }
    let mut chains_that = |number: i64, level, state, words: String| {
        if number > 0 {
            let see = ScreenLink { screen: "chains", query: Some(Query { state }) };
            all.push(Trouble { level, what: words, see });
        }
    };
    let oldest = census
        .oldest_due()
        .map(|due| (At::of(due, &facts.wall_clock), rough(facts.now.since(due))))
        .map_or_else(String::new, |(due, span)| format!("; the longest since {due}, for {span}"));
    chains_that(
        chains.overdue,
        Level::Error,
        "late",
        format!("{} late, on {}{oldest}", count(chains.overdue, "one chain is", "chains are"), late_on(census, config)),
    );
    let words = "an older copy of the ledger was restored; `roundelay recover` lets them go on";
    let quarantined = count(chains.quarantined, "one chain is", "chains are");
    chains_that(chains.quarantined, Level::Error, "quarantined", format!("{quarantined} quarantined: {words}"));
    all.sort_by_key(|trouble| trouble.level);
    all
}

/// The queues with late chains, those with the most first.
fn late_on(census: &Census, config: &Config) -> String {
    let chores = config.topology().names.chores();
    let mut late: Vec<_> = census.queues.iter().filter(|of| of.overdue > 0 && of.queue != chores).collect();
    late.sort_by_key(|of| std::cmp::Reverse(of.overdue));
    let names: Vec<&str> = late.iter().take(3).map(|of| of.queue.as_str()).collect();
    let more = if late.len() > 3 { format!(" and {} more", late.len() - 3) } else { String::new() };
    format!("{}{more}", names.join(", "))
}

/// How many chains wait because a queue is held.
fn held(queue: &QueueReport) -> String {
    match queue.held {
        0 => String::new(),
        some => format!(", {}", count(some, "one chain waits", "chains wait")),
    }
}

/// That chains need more starts than a throttle allows, if they do.
pub fn short_of(throttled: &ThrottledNow, facts: &Facts, config: &Config) -> Option<String> {
    let (census, _) = facts.census.as_ref()?;
    let needs = needs(&throttled.name, census, config, (facts.now, &facts.wall_clock));
    Some(shortage(&needs, throttled.limits.as_ref()?)?.words(&throttled.name, &needs))
}

/// What the chains behind a throttle need, by kind.
pub fn needs(throttle: &str, census: &Census, config: &Config, (now, wall_clock): (Time, &WallClock)) -> Vec<Needs> {
    let mut all: BTreeMap<&str, i64> = BTreeMap::new();
    for queue in &census.queues {
        if config.queues.get(&queue.queue).and_then(|queue| queue.throttle.as_deref()) == Some(throttle) {
            queue.kinds.iter().for_each(|(kind, chains)| *all.entry(kind).or_default() += chains);
        }
    }
    let of_kind = |(kind, chains): (&str, i64)| {
        let every = schedule_of_kind(config, kind)?.mean_interval(now, wall_clock)?;
        let cost = config.kinds.get(kind)?.cost;
        Some(Needs { kind: kind.to_owned(), chains: chains.unsigned_abs(), every, cost })
    };
    all.into_iter().filter_map(of_kind).collect()
}

fn count(number: i64, one: &str, many: &str) -> String {
    if number == 1 { one.to_owned() } else { format!("{number} {many}") }
}

/// The queues, from the facts.
pub fn queues(facts: &Facts, census: &Census, config: &Config) -> Vec<QueueReport> {
    let known = QueueFacts {
        config,
        census,
        asked: &facts.asked,
        rates: &facts.rates,
        workers: &facts.workers,
        orders: &facts.orders,
        now: facts.now,
        wall_clock: &facts.wall_clock,
    };
    known.reports()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::inspect::broker::BrokerStatus;
    use roundelay_broker::Depth;
    use roundelay_ledger::QueueCensus;
    use roundelay_model::fleet::{FleetOrder, FleetOrders, Subject};

    const fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn facts(census: Census) -> Facts {
        Facts { now: at(1_000), census: Some((census, at(990))), ..Facts::default() }
    }

    #[test]
    fn what_is_wrong_is_told_with_the_worst_first() {
        let config = Config::parse("[queues.work]\n[queues.side]\n", "r.toml", []).unwrap();
        let told = |facts: &Facts| {
            overview(facts, &config).troubles.into_iter().map(|trouble| trouble.what).collect::<Vec<_>>()
        };
        assert_eq!(told(&facts(Census::default())), [""; 0], "nothing is there, so nothing is wrong");
        let work = QueueCensus {
            queue: "work".into(),
            sleeping: 5,
            due: 2,
            overdue: 1,
            oldest_due: Some(at(900)),
            ..QueueCensus::default()
        };
        let census = Census { queues: vec![work], failures: 4, recovered: 1, ..Census::default() };
        let mut all = facts(census);
        assert_eq!(
            told(&all),
            [
                "no worker runs, so nothing does",
                "one chain is late, on work; the longest since 1970-01-01T00:15:00.000Z, for 1m 40s",
                "3 entities or parts of them are failing",
            ]
        );
        let depth = |ready, consumers| Ok(Depth { ready, consumers });
        let depths = [("work", depth(2, 0)), ("side", depth(0, 0)), ("roundelay.quarantine", depth(4, 0))];
        all.asked = BrokerStatus::Depths(depths.into_iter().map(|(queue, depth)| (queue.to_owned(), depth)).collect());
        let mut paused = FleetOrders::default();
        paused.add(FleetOrder::Close { why: "down".into() }, "ann", at(50));
        all.orders = BTreeMap::from([(Subject::Queue("side".into()), paused)]);
        let throttled = |name: &str, words: &str| ThrottledNow {
            name: name.into(),
            words: words.into(),
            in_the_way: true,
            limits: None,
        };
        all.throttled = vec![throttled("ios", "the throttle ios is used up"), throttled("idle", "held")];
        all.waiting = BTreeMap::from([("ios".into(), 3)]);
        let lines = told(&all);
        for words in [
            "no worker consumes the queue work, where 2 chains are due",
            "the queue side is paused by ann since 1970-01-01T00:00:50.000Z: down",
            "the throttle ios is used up",
            "4 messages on roundelay.quarantine cannot be used",
        ] {
            assert!(lines.iter().any(|line| line == words), "no `{words}` in {lines:#?}");
        }
        assert_eq!(lines.len(), 7, "{lines:#?}");
        let levels: Vec<Level> = overview(&all, &config).troubles.iter().map(|trouble| trouble.level).collect();
        assert!(levels.is_sorted(), "{levels:?}");
    }

    #[test]
    fn counts_are_of_all_queues() {
        let queue = |name: &str| QueueCensus {
            queue: name.into(),
            sleeping: 10,
            running: 3,
            due: 2,
            overdue: 1,
            unsent: 1,
            waiting: 4,
            ..QueueCensus::default()
        };
        let census = Census {
            queues: vec![queue("a"), queue("b"), queue("own")],
            paused: 5,
            quarantined: 1,
            retired: 7,
            ..Census::default()
        };
        let Counts { total, sleeping, due, running, overdue, gathering, unsent, .. } = counts(&census, "own");
        assert_eq!((sleeping, due, running, overdue, gathering, unsent), (20, 4, 6, 2, 8, 2));
        assert_eq!(total, 20 + 4 + 6 + 8 + 5 + 1);
    }
}
