//! The timelines of a cron service for channels, event by event: interval 1:00, counted from the
//! nominal time, tolerance wide enough that 57 s passes and 28 s does not, every run boxed to half
//! the interval. What else the one worker is busy with stands for the congestion.

use std::collections::BTreeSet;
use std::time::Duration;

use roundelay::Outcome;
use roundelay::ledger::NewChain;
use roundelay::outcome::Yield;
use serde_json::{Value, json};

use crate::virtual_time::{MONDAY, World, chain};

const CONFIG: &str = r#"
[queues.work]
concurrency = 1
prefetch = 1
[kinds.poll]
queue = "work"
every = "1m"
from = "nominal"
misfire = "all"
overlap = "buffer-one"
tolerance = "10s"
time_box = "50%"
[kinds.busy]
queue = "work"
timeout = "10m"
"#;

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// One thing that happened: a run with its nominal time, start and end, or a drop.
async fn events(world: &World) -> Vec<String> {
    let mut events = Vec::new();
    let runs = world.seen("poll");
    let mut runs = runs.iter();
    for attempt in world.attempts().await {
        let at = world.mmss(attempt.started);
        match attempt.verdict.as_deref() {
            Some("dropped") => events.push(format!("{at} dropped: {}", attempt.reason.unwrap())),
            verdict => {
                let run = runs.next().expect("a run for each attempt that was not dropped");
                assert_eq!(world.mmss(run.from), at);
                let ended = run.to.map_or("runs on".into(), |to| world.mmss(to));
                let enqueued = world.mmss(run.job.nominal);
                let verdict = verdict.unwrap_or("running");
                events.push(format!("{enqueued} enqueued, {at} starts, {ended} {verdict}"));
            }
        }
    }
    assert!(runs.next().is_none(), "an attempt for each run");
    events
}

/// A worker that is busy from and for how long, with A enqueued first at 00:30; what A does takes as
/// long as `takes` says of its runs.
async fn world(busy: &[(u64, u64)], takes: &'static [u64], until: u64) -> World {
    let mut world = World::new(CONFIG, MONDAY);
    world.script("busy", |job| (s(job.payload["for"].as_u64().unwrap()), Outcome::Done));
    let runs = std::sync::atomic::AtomicUsize::new(0);
    world.script("poll", move |_| {
        let run = runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (s(takes.get(run).copied().unwrap_or(1)), Outcome::Done)
    });
    world.chains(vec![chain("poll", "A", "work", MONDAY + s(30))]).await;
    world.start().await;
    for (n, (at, length)) in busy.iter().enumerate() {
        world.until(s(*at)).await;
        world.publish("work", "busy", &n.to_string(), json!({ "for": length })).await;
    }
    world.until(s(until)).await;
    world
}

#[tokio::test(start_paused = true)]
async fn little_congestion() {
    let mut world = world(&[(5, 30), (60, 32)], &[10, 10], 110).await;
    assert_eq!(
        events(&world).await,
        ["00:30 enqueued, 00:35 starts, 00:45 done", "01:30 enqueued, 01:32 starts, 01:42 done"]
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_queue() {
    let mut world = world(&[(5, 90), (60, 59), (100, 60), (165, 30)], &[3, 3, 3], 225).await;
    assert_eq!(
        events(&world).await,
        [
            "00:30 enqueued, 01:35 starts, 01:38 done",
            "01:30 enqueued, 02:37 starts, 02:40 done",
            "02:30 enqueued, 03:40 starts, 03:43 done"
        ],
        "nothing is dropped"
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn late_first_and_early_second() {
    let mut world = world(&[(5, 90), (60, 25), (100, 53), (155, 30)], &[3, 3], 180).await;
    assert_eq!(
        events(&world).await,
        [
            "00:30 enqueued, 01:35 starts, 01:38 done",
            "02:03 dropped: tolerance: the last start was 28s ago, and 50s must lie between two",
            "02:30 enqueued, 02:56 starts, 02:59 done"
        ]
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_quota_is_used_up_and_the_next_run_goes_on_from_there() {
    let mut world = World::new(CONFIG, MONDAY);
    world.script("busy", |job| (s(job.payload["for"].as_u64().unwrap()), Outcome::Done));
    // It looks at its deadline, ends cleanly, and hands on where it was.
    world.script("poll", |job| {
        let left = job.deadline.since(job.nominal + s(5));
        let page = job.carry["page"].as_u64().unwrap_or(0) + 30;
        let yields = Yield { carry: Some(json!({ "page": page })), ..Yield::default() };
        (left.min(s(30)), Outcome::DoneWith(yields))
    });
    world.chains(vec![chain("poll", "A", "work", MONDAY + s(30))]).await;
    world.start().await;
    for (n, (at, length)) in [(5, 30), (70, 22)].into_iter().enumerate() {
        world.until(s(at)).await;
        world.publish("work", "busy", &n.to_string(), json!({ "for": length })).await;
    }
    world.until(s(93)).await;
    let runs = world.seen("poll");
    assert_eq!(world.mmss(runs[0].from), "00:35");
    assert_eq!(world.mmss(runs[0].job.deadline), "01:05", "half the interval");
    assert_eq!(runs[0].to.map(|to| world.mmss(to)).as_deref(), Some("01:05"));
    assert_eq!(world.mmss(runs[1].from), "01:32", "57 s after the last start");
    assert_eq!((&runs[0].job.carry, &runs[1].job.carry), (&Value::Null, &json!({ "page": 30 })));
    world.stop().await;
}

/// A run that does not end by itself is aborted after the grace. That is no failure, and no retry.
#[tokio::test(start_paused = true)]
async fn a_run_that_ignores_its_time_box_is_aborted() {
    let mut world = world(&[], &[600, 1], 100).await;
    assert_eq!(
        events(&world).await,
        ["00:30 enqueued, 00:30 starts, runs on cut", "01:30 enqueued, 01:30 starts, 01:31 done"]
    );
    let record = &world.attempts().await[0];
    assert_eq!(record.reason.as_deref(), Some("its time box of 30s was up"));
    assert_eq!(record.finished.map(|at| world.mmss(at)).as_deref(), Some("01:05"), "30 s and the grace of 5 s");
    world.stop().await;
}

/// Neither the kind's interval nor its timeout, which is shorter here, says how long a chain with an interval of its
/// own may run, and a run whose box is up is cut and not failed.
#[tokio::test(start_paused = true)]
async fn a_time_box_is_a_share_of_the_chains_own_interval() {
    let config = CONFIG.replace("concurrency = 1", "concurrency = 3").replace("prefetch = 1", "prefetch = 3");
    let config = config.replace("time_box = \"50%\"", "time_box = \"50%\"\ntimeout = \"15s\"");
    let mut world = World::new(&config, MONDAY);
    world.script("poll", |_| (s(3_600), Outcome::Done));
    let own = |key: &str, every: Option<&str>| NewChain {
        schedule: every.map(|every| format!(r#"{{"every":"{every}","from":"nominal"}}"#)),
        ..chain("poll", key, "work", MONDAY)
    };
    world.chains(vec![own("short", Some("20s")), own("kind", None), own("long", Some("10m"))]).await;
    world.start().await;
    world.until(s(310)).await;
    for (key, length) in [("short", 10), ("kind", 30), ("long", 300)] {
        let runs = world.seen("poll");
        let first = runs.iter().find(|run| run.job.key == key).expect("it has run");
        assert_eq!(first.job.deadline.since(first.from), s(length), "{key}");
    }
    let verdicts: BTreeSet<_> = world.attempts().await.into_iter().filter_map(|attempt| attempt.verdict).collect();
    assert_eq!(verdicts.into_iter().collect::<Vec<_>>(), ["cut"], "none has failed, and none is tried again");
    world.stop().await;
}

/// A broker takes a message back that is kept for half an hour, so a long run goes on without its message: then the
/// next one may come, where only one is given at a time.
#[tokio::test(start_paused = true)]
async fn a_run_may_take_hours_and_its_message_is_let_go() {
    let config = "[queues.work]\nconcurrency = 2\nprefetch = 1\n[kinds.long]\nqueue = \"work\"\nevery = \"1m\"\ntimeout = \"5h\"\n";
    let mut world = World::new(config, MONDAY);
    world.script("long", |job| (s(if job.key == "A" { 3 * 3_600 } else { 1 }), Outcome::Done));
    world.chains(vec![chain("long", "A", "work", MONDAY), chain("long", "B", "work", MONDAY + s(1))]).await;
    world.start().await;
    world.until(s(3 * 3_600 + 59)).await;
    let runs = world.seen("long");
    let first = |key: &str| runs.iter().find(|run| run.job.key == key).expect("it runs").from.since(MONDAY).as_secs();
    assert_eq!((first("A"), first("B")), (0, 24 * 60), "B as soon as the message of A is let go");
    let verdicts: Vec<_> = world.attempts().await.into_iter().map(|attempt| attempt.verdict).collect();
    assert!(verdicts.len() > 100 && verdicts.iter().all(|verdict| verdict.as_deref() == Some("done")), "{verdicts:?}");
    assert_eq!(runs.iter().filter(|run| run.job.key == "A").count(), 1, "A runs once, and nothing doubles it");
    world.stop().await;
}

/// The trap: a rule of tolerance can starve a task whose runs take longer than interval and tolerance
/// together. Here it cannot: what is dropped leaves the last start where it was, so the next one is
/// far enough from it.
#[tokio::test(start_paused = true)]
async fn a_tolerance_starves_nobody() {
    for overlap in ["skip", "buffer-one"] {
        for misfire in ["skip", "coalesce", "all"] {
            let config = CONFIG
                .replace("time_box = \"50%\"", "timeout = \"10m\"")
                .replace("buffer-one", overlap)
                .replace("misfire = \"all\"", &format!("misfire = \"{misfire}\""));
            let mut world = World::new(&config, MONDAY);
            // Longer than the interval and the tolerance.
            world.script("poll", |_| (s(75), Outcome::Done));
            world.chains(vec![chain("poll", "A", "work", MONDAY)]).await;
            world.start().await;
            world.until(s(3_600)).await;
            let verdicts: Vec<_> = world.attempts().await.into_iter().filter_map(|attempt| attempt.verdict).collect();
            let label = format!("overlap {overlap}, misfire {misfire}: {verdicts:?}");
            let done = verdicts.iter().filter(|verdict| *verdict == "done").count();
            // An hour has room for 48 runs of 75 s; with every other occurrence left out, for 30.
            assert!(done >= 29, "{done} runs; {label}");
            assert!(!verdicts.windows(2).any(|two| two == ["dropped", "dropped"]), "two in a row; {label}");
            world.stop().await;
        }
    }
}
