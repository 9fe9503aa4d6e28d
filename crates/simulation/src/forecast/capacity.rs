//! Whether a configuration can keep up, by arithmetic (pure).
//!
//! A chain of an interval goes round in a circle: it sleeps, waits for its turn, runs, and sleeps
//! again. Where more come than a throttle or a queue's workers let through, the wait grows until as
//! many come as go: with `n` chains of period `p`, each of which takes `c` of a capacity `C`, that is
//! the wait `w` with `n · c / (p + w) = C`. Chains with a higher priority get their share first.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_config::KindSettings;
use roundelay_model::clock::Time;
use roundelay_model::outcome::Backoff;
use roundelay_model::pacing::ThrottleScope;
use roundelay_model::schedule::{From, Rhythm};
use roundelay_model::wall_clock::WallClock;

use super::Plan;
use super::model::Model;
use super::words::{grouped, list, rates, spoken, spoken_seconds};

/// Beyond this much of what is possible a configuration cannot keep up.
const FULL: f64 = 1.0001;
/// Occurrences of the wall clock whose distances are averaged.
const OCCURRENCES: u32 = 500;

/// The chains of a kind on one queue.
#[derive(Clone, Debug)]
struct Load {
    kind: String,
    chains: u64,
    /// What its schedule says.
    interval: Duration,
    /// From one start to the next when nothing holds it up, in seconds.
    period: f64,
    /// What one tick takes of the capacity.
    cost: f64,
    priority: i32,
}

/// How often a chain of this kind is to run from `begin` on, if its schedule says so; on average,
/// where that is the wall clock, or calendars exclude a part of the time.
pub(super) fn interval(kind: &KindSettings, begin: Time) -> Option<Duration> {
    let share = kind.recurrence.as_ref()?.schedule.allowed_share(begin);
    let plain = plain_interval(kind, begin)?;
    (share > 0.0).then(|| Duration::try_from_secs_f64(plain.as_secs_f64() / share).unwrap_or(Duration::MAX))
}

fn plain_interval(kind: &KindSettings, begin: Time) -> Option<Duration> {
    let Rhythm::Cron(cron) = &kind.recurrence.as_ref()?.schedule.rhythm else {
        return kind.recurrence.as_ref()?.schedule.interval(begin, &WallClock::default());
    };
    let first = cron.after(begin)?;
    let last = (0..OCCURRENCES).try_fold(first, |at, _| cron.after(at))?;
    Some(last.since(first) / OCCURRENCES)
}

/// The longest time that may pass between two ticks whose runs take no time.
pub(super) fn first_period(kind: &KindSettings, begin: Time) -> Option<Duration> {
    let recurrence = kind.recurrence.as_ref()?;
    let every = kind.fresh().map_or_else(|| interval(kind, begin), |fresh| Some(fresh.middle()));
    Some(every? + recurrence.schedule.jitter)
}

/// From one start to the next when nothing holds a chain up, in seconds. The interval may count from
/// the end of a run, which is that of its last attempt.
pub(super) fn period(kind: &KindSettings, begin: Time) -> Option<f64> {
    let interval = interval(kind, begin)?.as_secs_f64();
    let (attempts, waits) = attempts(kind);
    let busy = attempts * mean(kind, begin).as_secs_f64() + waits;
    Some(match kind.recurrence.as_ref()?.schedule.rhythm {
        Rhythm::Every { from: From::Finish, .. } => interval + busy,
        _ => interval.max(busy),
    })
}

/// The mean length of a run.
fn mean(kind: &KindSettings, begin: Time) -> Duration {
    let limit = kind
        .recurrence
        .as_ref()
        .and_then(|recurrence| recurrence.time_box(&recurrence.schedule, begin, &WallClock::default()));
    Model::new(&kind.model).mean(limit.map_or(kind.timeout, |(limit, _)| limit))
}

/// How many attempts a tick takes on average, and for how many seconds it waits between them.
fn attempts(kind: &KindSettings) -> (f64, f64) {
    let boxed = kind.recurrence.as_ref().is_some_and(|recurrence| recurrence.time_box.is_some());
    let failing = Model::new(&kind.model).failing(if boxed { Duration::MAX } else { kind.timeout });
    let (mut attempts, mut waits, mut reached) = (0.0, 0.0, 1.0);
    for attempt in 1..=kind.retry.attempts.min(1_000) {
        attempts += reached;
        reached *= failing;
        if attempt < kind.retry.attempts && reached > 0.0 {
            waits += reached * wait(&kind.retry.backoff, attempt);
        }
    }
    (attempts, waits)
}

fn wait(backoff: &Backoff, attempt: u32) -> f64 {
    match backoff {
        Backoff::List(waits) => {
            let wait = waits.get(attempt as usize - 1).or(waits.last());
            wait.map_or(0.0, Duration::as_secs_f64)
        }
        Backoff::Exponential { base, factor, max, .. } => {
            let grown = base.as_secs_f64() * factor.powi(i32::try_from(attempt - 1).unwrap_or(i32::MAX));
            grown.min(max.as_secs_f64())
        }
    }
}

/// What cannot keep up, and what will become of it, in words.
pub(super) fn warnings(plan: &Plan) -> Vec<String> {
    let workers = plan.workers as f64;
    let mut warnings = Vec::new();
    // By throttle, and by queue: what is asked of each.
    let mut throttled: BTreeMap<&str, Vec<Load>> = BTreeMap::new();
    let mut queued: BTreeMap<String, Vec<Load>> = BTreeMap::new();
    for (name, population) in &plan.populations {
        let Some(kind) = plan.config.kinds.get(name) else { continue };
        let (Some(interval), Some(period)) = (interval(kind, plan.from), period(kind, plan.from)) else { continue };
        let model = Model::new(&kind.model);
        let ((attempts, _), run) = (attempts(kind), mean(kind, plan.from).as_secs_f64());
        for (queue, chains) in population.by_queue() {
            let Some(settings) = plan.config.queues.get(&queue) else { continue };
            let (kind, priority) = (name.clone(), settings.rank(kind.priority.min(settings.lanes - 1)));
            let load = Load { kind, chains, interval, period, cost: attempts, priority };
            queued.entry(queue).or_default().push(Load { cost: attempts * run, ..load.clone() });
            if let Some(throttle) = &settings.throttle {
                throttled.entry(throttle).or_default().push(load);
            }
        }
        // What has a time box ends when that is over.
        let boxed = kind.recurrence.as_ref().is_some_and(|recurrence| recurrence.time_box.is_some());
        let late = if boxed { 0.0 } else { model.beyond(kind.timeout) };
        if late >= 0.000_5 {
            let share =
                if late < 0.009_5 { format!("{:.2} %", late * 100.0) } else { format!("{:.0} %", late * 100.0) };
            warnings.push(format!(
                "{name}: {share} of its runs take longer than its timeout of {}, and count as failed",
                spoken(kind.timeout)
            ));
        }
    }
    for (name, loads) in throttled {
        // A throttle with keys has one limit for each key, and it is unknown how many chains share a key.
        let throttle = plan.config.throttles.get(name).filter(|throttle| throttle.key.is_none());
        let Some(throttle) = throttle else { continue };
        let counting = if throttle.scope == ThrottleScope::Worker { workers } else { 1.0 };
        let allowed = throttle.limits.rate() * counting;
        let each = if counting > 1.0 { format!(" in {} workers", plan.workers) } else { String::new() };
        warnings.extend(overload(&loads, allowed, |need, allows| {
            format!("need {need}; the throttle `{name}` allows {allows}{each}")
        }));
    }
    for (name, loads) in queued {
        let Some(queue) = plan.config.queues.get(&name) else { continue };
        let slots = queue.concurrency as f64 * workers;
        let runs: f64 = loads.iter().map(|load| load.chains as f64 * load.cost / load.period).sum();
        warnings.extend(overload(&loads, slots, |_, _| {
            format!("keep {} runs going at the same time; the queue `{name}` has room for {slots}", runs.ceil())
        }));
    }
    warnings
}

/// Says what becomes of loads that ask for more than `capacity`; `what` phrases the need and what
/// is allowed, both for each second.
fn overload(loads: &[Load], capacity: f64, what: impl Fn(String, String) -> String) -> Option<String> {
    let need: f64 = loads.iter().map(|load| load.chains as f64 * load.cost / load.period).sum();
    if need <= capacity * FULL {
        return None;
    }
    let (need, allows) = rates(need, capacity);
    let waits = waits(loads, capacity);
    // Chains of a kind on several queues are one line.
    let mut kinds: BTreeMap<&str, (u64, &Load, f64)> = BTreeMap::new();
    for (load, wait) in loads.iter().zip(waits) {
        let entry = kinds.entry(&load.kind).or_insert((0, load, wait));
        entry.0 += load.chains;
        entry.2 = entry.2.max(wait);
    }
    let several = kinds.len() > 1;
    let who = |(kind, (chains, load, _)): (&&str, &(u64, &Load, f64))| {
        let of = if several { format!(" of {kind}") } else { String::new() };
        let noun = if *chains == 1 { "chain" } else { "chains" };
        format!("{} {noun}{of} every {}", grouped(*chains), spoken(load.interval))
    };
    let becomes = |(kind, (_, load, wait)): (&&str, &(u64, &Load, f64))| {
        let who = if several { format!("each of {kind}") } else { "each".into() };
        match wait {
            w if w.is_infinite() => format!("{who} will hardly ever run"),
            w if *w <= load.period * 0.001 => format!("{who} will run as it should"),
            w => format!("{who} will run every {}", spoken_seconds(load.period + w)),
        }
    };
    let prefix = if several { String::new() } else { format!("{}: ", loads[0].kind) };
    let subjects: Vec<String> = kinds.iter().map(who).collect();
    let ends: Vec<String> = kinds.iter().map(becomes).collect();
    Some(format!("{prefix}{} {}: {}", list(&subjects), what(need, allows), list(&ends)))
}

/// How long each load's ticks wait for their turn, in seconds.
fn waits(loads: &[Load], capacity: f64) -> Vec<f64> {
    let mut priorities: Vec<i32> = loads.iter().map(|load| load.priority).collect();
    priorities.sort_unstable_by_key(|priority| std::cmp::Reverse(*priority));
    priorities.dedup();
    let mut left = capacity;
    let mut waits = vec![0.0; loads.len()];
    for priority in priorities {
        let of_class = |load: &&Load| load.priority == priority;
        let asked = |wait: f64| {
            let asked = |load: &Load| load.chains as f64 * load.cost / (load.period + wait);
            loads.iter().filter(of_class).map(asked).sum::<f64>()
        };
        let wait = if asked(0.0) <= left {
            0.0
        } else if left <= capacity * 1e-6 {
            f64::INFINITY
        } else {
            let (mut low, mut high) = (0.0, 1.0);
            while asked(high) > left {
                (low, high) = (high, high * 2.0);
            }
            for _ in 0..60 {
                let middle = (low + high) / 2.0;
                if asked(middle) > left { low = middle } else { high = middle }
            }
            high
        };
        left = (left - asked(wait)).max(0.0);
        loads.iter().zip(&mut waits).filter(|(load, _)| of_class(load)).for_each(|(_, w)| *w = wait);
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::population::Population;
    use roundelay_config::Config;

    fn warned(text: &str, chains: &[(&str, u64)], workers: usize) -> Vec<String> {
        let config = Config::parse(text, "test", []).unwrap();
        let populations = chains.iter().map(|(kind, n)| {
            let population = Population::counted(&config, kind, *n).unwrap();
            ((*kind).to_owned(), population)
        });
        let plan = Plan {
            populations: populations.collect(),
            from: Time::default(),
            length: Duration::from_secs(86_400),
            seed: 1,
            workers,
            spread: None,
            outages: Vec::new(),
            broker_outages: Vec::new(),
            assumed: Vec::new(),
            config,
        };
        warnings(&plan)
    }

    #[test]
    fn time_that_calendars_exclude_makes_the_mean_interval_longer() {
        let text = "[calendars.office]\nweekdays = \"mon-fri\"\n[kinds.k]\nevery = \"1h\"\nquiet = \"20:00-08:00\"\n\
                    [kinds.week]\ncron = \"@hourly\"\nonly = \"office\"\n[kinds.never]\nevery = \"1h\"\nquiet = \"00:00-24:00\"\n";
        let config = Config::parse(text, "test", []).unwrap();
        let minutes = |kind: &str| interval(&config.kinds[kind], Time::default()).map(|of| of.as_secs() / 60);
        assert_eq!((minutes("k"), minutes("week"), minutes("never")), (Some(120), Some(84), None));
    }

    const SHARED: &str = r#"
        [throttles.store]
        allow = 5
        per = "60s"
        [queues.fast]
        throttle = "store"
        priority = 1
        [queues.slow]
        throttle = "store"
        [kinds.sync]
        queue = "slow"
        every = "1h"
        [kinds.hot]
        queue = "fast"
        every = "60s"
    "#;

    #[test]
    fn a_throttle_that_is_too_tight_says_how_often_each_runs() {
        assert_eq!(
            warned(SHARED, &[("sync", 12_000)], 1),
            ["sync: 12,000 chains every 1 h need 200/min; the throttle `store` allows 5/min: each will run every 40 h"]
        );
        assert_eq!(
            warned(SHARED, &[("sync", 12_000)], 4),
            ["sync: 12,000 chains every 1 h need 200/min; the throttle `store` allows 5/min: each will run every 40 h"]
        );
        let each = SHARED.replacen("allow = 5", "scope = \"worker\"\nallow = 5", 1);
        assert_eq!(
            warned(&each, &[("sync", 12_000)], 4),
            ["sync: 12,000 chains every 1 h need 200/min; the throttle `store` allows 20/min in 4 workers: each \
                 will run every 10 h"]
        );
        assert_eq!(warned(SHARED, &[("sync", 299)], 1), [""; 0]);
        let keyed = SHARED.replacen("allow = 5", "key = \"payload.channel\"\nallow = 5", 1);
        assert_eq!(warned(&keyed, &[("sync", 12_000)], 1), [""; 0], "five for each channel");
    }

    #[test]
    fn who_has_priority_goes_first() {
        let two = warned(SHARED, &[("sync", 600), ("hot", 2)], 1);
        assert_eq!(
            two,
            ["2 chains of hot every 1 min and 600 chains of sync every 1 h need 12/min; the throttle `store` allows \
                 5/min: each of hot will run as it should and each of sync will run every 3.33 h"]
        );
        let starved = warned(SHARED, &[("sync", 600), ("hot", 60)], 1);
        assert!(
            starved[0].ends_with("each of hot will run every 12 min and each of sync will hardly ever run"),
            "{starved:?}"
        );
    }

    #[test]
    fn a_queue_with_too_little_room_and_a_timeout_that_is_too_short_are_seen() {
        let text = r#"
            [queues.q]
            concurrency = 2
            [kinds.sync]
            queue = "q"
            every = "10s"
            timeout = "9s"
            model.duration = { p50 = "5s", p99 = "9s" }
            retry.attempts = 1
        "#;
        let told = warned(text, &[("sync", 10)], 1);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("1 % of its runs take longer than its timeout of 9 s"), "{told:?}");
        assert!(told[1].contains("keep 4 runs going at the same time; the queue `q` has room for 2"), "{told:?}");
        assert!(told[1].contains("each will run every 25.8 s"), "{told:?}");
    }

    #[test]
    fn attempts_and_their_waits_count() {
        let text = r#"
            [queues.q]
            [kinds.sync]
            every = "60s"
            model = { duration = "1s", fail = 0.5 }
            retry = { attempts = 3, backoff = ["10s", "20s"] }
        "#;
        let config = Config::parse(text, "test", []).unwrap();
        assert_eq!(attempts(&config.kinds["sync"]), (1.75, 10.0));
        assert_eq!(period(&config.kinds["sync"], Time::default()), Some(71.75));
    }
}
