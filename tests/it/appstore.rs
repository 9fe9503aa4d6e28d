//! The crawler of two app stores, by its behaviour: the example's own configuration in virtual time, and its
//! queues with lanes on real brokers.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay::Outcome;
use roundelay::broker::Depth;
use roundelay::clock::Time;
use roundelay::engine::Dispatch;
use roundelay::engine::enroll::{Enroller, Entity, RunOnce};
use roundelay::job::{Envelope, RunNow};
use roundelay::ledger::{NewChain, Reports};
use serde_json::json;

use crate::harness::{Ground, Run, Watched, on_all, until};
use crate::virtual_time::{MONDAY, World, chain};

const MINUTE: Duration = Duration::from_secs(60);

/// A world with the example's configuration.
fn example() -> World {
    example_with(|text| text)
}

fn example_with(change: impl Fn(String) -> String) -> World {
    let text = change(include_str!("../../examples/appstore/roundelay.toml").into());
    let text = text.replace("[ledger]\nurl = \"sqlite://appstore.db\"\n", "");
    World::new(&text.replace("[worker]\nlisten = \"127.0.0.1:9464\"\n", ""), MONDAY)
}

/// What a run takes, for all kinds; none fails.
fn all_take(world: &mut World, takes: Duration) {
    for kind in world.config.kinds.keys().cloned().collect::<Vec<_>>() {
        world.script(&kind, move |_| (takes, Outcome::Done));
    }
}

/// The classes of apps, in the order in which they go: what is wanted on demand is a run of the chain on another queue,
/// and the others are told apart by their chains' priority.
const CLASSES: [&str; 4] = ["on-demand", "tracked", "competitor", "backlog"];

/// Begins `count` chains of a class on a platform, due at once.
async fn enroll(world: &World, class: &str, platform: &str, count: usize) {
    world.connections.broker.apply(&world.config.topology()).await.unwrap();
    let spread = Some(Duration::ZERO);
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "sync-app", spread, true).unwrap();
    let priority = CLASSES.iter().rev().position(|name| *name == class).map(|place| place as u8);
    let (queue, payload) = (format!("sync-tracked-{platform}"), json!({ "platform": platform }).to_string());
    let entity = |n| Entity { priority, ..Entity::new(format!("{class} {platform} {n}"), &queue, &payload) };
    let tally = enroller.enroll((0..count).map(entity).collect()).await.unwrap();
    assert_eq!((tally.created, tally.unsent), (count as u64, 0));
}

/// A person asks for an app now, which has no chain yet.
async fn wants(world: &World, n: usize) {
    world.connections.broker.apply(&world.config.topology()).await.unwrap();
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "sync-app", None, true).unwrap();
    let asked = RunNow { queue: Some("sync-on-demand-ios".into()), ..RunNow::default() };
    let (key, payload) = (format!("on-demand ios {n}"), json!({ "platform": "ios" }));
    assert_eq!(enroller.run_once(&key, Some(&payload), &asked, None).await.unwrap(), RunOnce::Accepted);
}

/// When syncs of a class began.
fn syncs(world: &World, class: &str) -> Vec<Time> {
    let seen = world.seen("sync-app");
    seen.iter().filter(|seen| seen.job.key.starts_with(class)).map(|seen| seen.from).collect()
}

/// Sends a one-off job as `roundelay publish` does.
async fn send(world: &World, kind: &str, queue: &str, key: &str) {
    world.connections.broker.apply(&world.config.topology()).await.unwrap();
    let envelope = Envelope::job(kind, key, json!({ "platform": "ios" }), format!("{kind}-{key}"));
    let envelope = Envelope { queue: Some(queue.into()), ..envelope };
    let now = world.connections.ledger.now();
    Dispatch::new(&world.config, &world.connections).send(&envelope, queue, now).await.unwrap();
}

/// When runs of a kind began.
fn starts(world: &World, kind: &str) -> Vec<Time> {
    world.seen(kind).iter().map(|seen| seen.from).collect()
}

/// Of those that began in these minutes, how many were of each class.
fn shares(world: &World, minutes: std::ops::Range<u32>) -> [f64; 4] {
    let (from, to) = (MONDAY + MINUTE * minutes.start, MONDAY + MINUTE * minutes.end);
    let of = |class| syncs(world, class).iter().filter(|at| (from..to).contains(*at)).count() as f64;
    let counts = CLASSES.map(of);
    let all: f64 = counts.iter().sum();
    // The throttle is used up, and not passed.
    let most = f64::from(5 * (minutes.end - minutes.start));
    assert!(all >= 0.95 * most && all <= most, "{all} of {most}");
    counts.map(|count| count / all)
}

/// E9, with more waiting in each class than the throttle can serve.
#[tokio::test(start_paused = true)]
async fn on_demand_goes_before_tracked_before_competitors_before_the_backlog_and_nothing_starves() {
    let mut world = example();
    all_take(&mut world, Duration::from_secs(2));
    for (class, count) in [("backlog", 300), ("competitor", 100), ("tracked", 250)] {
        enroll(&world, class, "ios", count).await;
    }
    for n in 0..80 {
        wants(&world, n).await;
    }
    world.start().await;
    world.until(MINUTE * 60).await;
    world.stop().await;

    // Of the slots that go to it and to higher ones, each class has one in eight: a tenth with all four.
    let [first, tracked, competitor, backlog] = shares(&world, 4..20);
    assert!(first > 0.65 && tracked > 0.085 && competitor > 0.085 && backlog > 0.085, "{first} {tracked}");
    assert_eq!(syncs(&world, CLASSES[0]).len(), 80);
    let [none, tracked, competitor, backlog] = shares(&world, 30..60);
    assert!(none == 0.0 && tracked > 0.75 && competitor > 0.1 && backlog > 0.1, "{tracked} {competitor} {backlog}");
    // Waiting has cost no attempt.
    assert!(world.attempts().await.iter().all(|attempt| attempt.attempt == 1));
}

/// E9, where the upper classes have little to do: each is served before all of the lower ones that wait.
#[tokio::test(start_paused = true)]
async fn a_new_job_goes_before_all_that_wait_in_lower_classes() {
    let mut world = example();
    all_take(&mut world, Duration::from_secs(2));
    enroll(&world, "backlog", "ios", 1_000).await;
    world.start().await;
    world.until(MINUTE * 10).await;
    let before = syncs(&world, "backlog").len();
    for class in ["competitor", "tracked"] {
        enroll(&world, class, "ios", 3).await;
    }
    wants(&world, 1).await;
    world.until(MINUTE * 14).await;
    world.stop().await;
    let after: Vec<Time> = syncs(&world, "backlog").into_iter().skip(before).collect();
    let last = CLASSES[..3].iter().map(|class| *syncs(&world, class).last().unwrap()).collect::<Vec<_>>();
    assert_eq!(CLASSES[..3].iter().map(|class| syncs(&world, class).len()).collect::<Vec<_>>(), [1, 3, 3]);
    assert!(last.is_sorted(), "{last:?}");
    // One slot was given away already, and one is the backlog's share.
    let between = after.iter().filter(|at| **at < last[2]).count();
    assert!(between <= 2, "{between} of the backlog went before");
}

/// E1: iOS hangs, in all its queues, as long as it may; Android does not notice.
#[tokio::test(start_paused = true)]
async fn a_platform_whose_handlers_hang_never_delays_the_other() {
    let mut paces = Vec::new();
    for hangs in [false, true] {
        let mut world = example();
        for kind in world.config.kinds.keys().cloned().collect::<Vec<_>>() {
            world.script(&kind, move |job| match job.queue.ends_with("-ios") && hangs {
                true => (Duration::from_secs(3_600), Outcome::Done),
                false => (Duration::from_secs(2), Outcome::Done),
            });
        }
        for platform in ["ios", "android"] {
            for class in ["tracked", "backlog"] {
                enroll(&world, class, platform, 200).await;
            }
        }
        world.start().await;
        world.until(MINUTE * 30).await;
        world.stop().await;
        paces.push(["tracked android", "backlog android"].map(|class| syncs(&world, class)));
    }
    assert!(paces[0].iter().map(Vec::len).sum::<usize>() >= 145);
    assert_eq!(paces[0], paces[1], "as if iOS were not there");
}

/// E2: who finds no slot goes back when its patience is over, and no attempt is charged.
#[tokio::test(start_paused = true)]
async fn a_sync_waits_for_its_slot_as_long_as_it_may_and_goes_back_with_all_its_attempts() {
    // At five starts a minute no job waits for its slot for that time: a worker takes up only what can start soon.
    let mut world = example_with(|text| text.replace("allow = 5", "allow = 1"));
    all_take(&mut world, Duration::from_secs(2));
    let block = world.config.throttles["sync-ios"].block;
    for class in ["tracked", "backlog"] {
        enroll(&world, class, "ios", 20).await;
    }
    world.start().await;
    let snoozed = async || {
        let attempts = world.attempts().await;
        attempts.into_iter().filter(|attempt| attempt.verdict.as_deref() == Some("snoozed")).collect::<Vec<_>>()
    };
    world.until(block - Duration::from_secs(1)).await;
    assert!(snoozed().await.is_empty());
    world.until(block + Duration::from_secs(10)).await;
    let first = snoozed().await;
    assert!(!first.is_empty() && first.iter().all(|attempt| attempt.attempt == 1), "{first:?}");
    assert!(first[0].reason.as_deref().unwrap().contains("no slot of its throttle in time"), "{first:?}");
    world.until(MINUTE * 75).await;
    world.stop().await;
    let all = world.attempts().await;
    assert!(all.iter().all(|attempt| attempt.attempt == 1), "no attempt was charged");
    assert_eq!(starts(&world, "sync-app").len(), 40, "and all of them ran");
}

/// E6: charts for the user interface do not wait behind those of the throttle.
#[tokio::test(start_paused = true)]
async fn charts_on_demand_wait_for_no_throttle() {
    let mut world = example();
    all_take(&mut world, Duration::from_secs(1));
    world.chains((0..300).map(|n| chain("chart-snapshot", &n.to_string(), "charts-ios", MONDAY)).collect()).await;
    world.start().await;
    world.until(MINUTE * 2).await;
    for n in 0..40 {
        send(&world, "chart-snapshot-on-demand", "charts-on-demand-ios", &n.to_string()).await;
    }
    world.until(MINUTE * 3).await;
    world.stop().await;
    let charts = starts(&world, "chart-snapshot");
    let within = |minute: u32| {
        charts.iter().filter(|at| (MONDAY + MINUTE * minute..MONDAY + MINUTE * (minute + 1)).contains(*at)).count()
    };
    assert!((22..=24).contains(&within(1)) && (22..=24).contains(&within(2)), "{} {}", within(1), within(2));
    let on_demand = starts(&world, "chart-snapshot-on-demand");
    assert_eq!(on_demand.len(), 40);
    // As fast as there is room for them: 16 at a time, a second each.
    assert!(on_demand.iter().all(|at| *at < MONDAY + MINUTE * 2 + Duration::from_secs(4)));
}

/// E9: classes of one kind. An app that moves from the backlog to the tracked ones stays the same chain.
#[tokio::test(start_paused = true)]
async fn an_app_that_becomes_tracked_stays_the_same_chain_and_goes_first() {
    let config = "[queues.work]\nconcurrency = 1\nprefetch = 4\nlanes = 3\n\
                  [kinds.sync]\nqueue = \"work\"\nevery = \"5m\"\nretry = { attempts = 2, backoff = [\"20s\"] }\n";
    let mut world = World::new(config, MONDAY);
    let takes = Duration::from_secs(10);
    world.script("sync", move |job| match (&*job.key, job.attempt) {
        ("tracked", 1) => (takes, Outcome::retry("not yet")),
        _ => (takes, Outcome::Done),
    });
    let backlog = (0..60).map(|n| chain("sync", &n.to_string(), "work", MONDAY));
    let tracked = NewChain { priority: Some(2), ..chain("sync", "tracked", "work", MONDAY + takes * 3) };
    world.chains(backlog.chain([tracked]).collect()).await;
    world.start().await;
    let of = |world: &World, key: &str| -> Vec<Time> {
        world.seen("sync").into_iter().filter(|seen| seen.job.key == key).map(|seen| seen.from).collect()
    };
    world.until(MINUTE * 2).await;
    let begins = of(&world, "tracked");
    assert_eq!(begins.len(), 2, "its second attempt has not waited for the backlog either");
    assert!(begins[0] < MONDAY + takes * 5 && begins[1] < begins[0] + takes * 5, "{begins:?}");

    let (last, before) = {
        let last = (0..60).map(|n| n.to_string()).find(|key| of(&world, key).is_empty()).unwrap();
        let chain = world.ledger.chains("sync".into(), last.clone()).await.unwrap().remove(0);
        (last, chain)
    };
    let mut enroller = Enroller::new(&world.config, world.connections.clone(), "sync", None, true).unwrap();
    let entity = Entity { priority: Some(2), ..Entity::new(&last, "work", "{}") };
    assert_eq!(enroller.enroll(vec![entity]).await.unwrap().updated, 1);
    world.until(MINUTE * 40).await;
    world.stop().await;
    let after = world.ledger.chains("sync".into(), last.clone()).await.unwrap().remove(0);
    assert_eq!(after.hint.epoch, before.hint.epoch);
    // Its message lay in the lane of the backlog; all that follow go first, five minutes after each end.
    let moved = of(&world, &last);
    assert!(moved.len() >= 3, "{moved:?}");
    for pair in moved.windows(2) {
        assert!(pair[1].since(pair[0]) <= takes + MINUTE * 5 + takes * 3, "{moved:?}");
    }
    let other = (0..60).map(|n| n.to_string()).rfind(|key| *key != last).unwrap();
    let other = of(&world, &other);
    assert!(other.windows(2).all(|pair| pair[1].since(pair[0]) > takes + MINUTE * 5 + takes * 3), "{other:?}");
}

/// A backlog lies in the queue; what is urgent comes after it. The workers run one at a time.
const BACKLOG: &str = r#"
[queues.work]
concurrency = 1
prefetch = 4
lanes = 3
[kinds.urgent]
priority = 2
[kinds.soon]
priority = 1
[kinds.some_time]
"#;

async fn ready(engine: &Watched, queue: &str) -> u64 {
    engine.broker().depth(queue).await.map_or(0, |Depth { ready, .. }| ready)
}

on_all!(a_backlog_holds_nothing_urgent_up);
on_all!(a_worker_restarted_with_another_configuration_loses_and_doubles_nothing);
on_all!(lanes_are_kept_over_the_rungs);

mod run {
    use super::*;

    pub async fn a_backlog_holds_nothing_urgent_up(ground: Ground) {
        let mut engine = Watched::start(&ground, BACKLOG).await;
        let dispatch = Dispatch::new(&engine.config, &engine.connections);
        let publish = async |kind: &str, count: usize| {
            for n in 0..count {
                let envelope = Envelope::job(kind, &n.to_string(), json!({}), format!("{kind}-{n}"));
                dispatch.send(&envelope, "work", engine.connections.ledger.now()).await.unwrap();
            }
        };
        let all = [
            ("some_time", "work", 200),
            ("soon", "roundelay.lane.1.work", 30),
            ("urgent", "roundelay.lane.2.work", 60),
        ];
        for (kind, _, count) in all {
            publish(kind, count).await;
        }
        let (mut order, mut ended) = (Vec::new(), BTreeMap::new());
        for _ in 0..120 {
            let run = engine.next().await;
            assert_eq!(run.job.queue, "work", "handlers know nothing of lanes");
            // The worker has had the time to take up as many of each lane as it may, so that it can choose.
            for (kind, lane, count) in all {
                let ended: u64 = ended.get(kind).copied().unwrap_or_default();
                until("the worker has its fill", async || {
                    ready(&engine, lane).await == (count as u64).saturating_sub(ended + 4)
                })
                .await;
            }
            *ended.entry(run.job.kind.clone()).or_default() += 1;
            order.push(run.job.kind.clone());
            run.end(Outcome::Done);
        }
        // One was running when the others came, and the next may have been on its way.
        let urgent = order.iter().position(|kind| kind == "urgent").unwrap();
        assert!(urgent <= 2, "{order:?}");
        let in_fifty = |kind: &str| order[urgent..urgent + 50].iter().filter(|is| *is == kind).count();
        let counts = ["urgent", "soon", "some_time"].map(in_fifty);
        assert!(counts[0] >= 36 && counts[1] >= 4 && counts[2] >= 4, "{counts:?}");
        engine.stop().await;
    }

    pub async fn lanes_are_kept_over_the_rungs(ground: Ground) {
        let mut engine = Watched::start(&ground, &BACKLOG.replace("prefetch = 4", "prefetch = 2")).await;
        let (dispatch, ledger) =
            (Dispatch::new(&engine.config, &engine.connections), engine.connections.ledger.clone());
        let send = async |kind: &str, key: &str, after: u64| {
            let now = ledger.now();
            let due = Some(now + Duration::from_millis(after));
            let envelope = Envelope { due, ..Envelope::job(kind, key, json!({}), format!("{kind}-{key}")) };
            let envelope = Envelope { queue: Some("work".into()), ..envelope };
            dispatch.send(&envelope, "work", now).await.unwrap();
        };
        send("some_time", "first", 0).await;
        let first = engine.next().await;
        // One hop, and two.
        for (key, after) in [("a", 1_000), ("b", 1_200), ("c", 1_300)] {
            send("some_time", key, after).await;
            send("urgent", key, after).await;
        }
        // Of each lane the worker holds two, the running one included.
        until("each has come to its lane", async || {
            ready(&engine, "work").await == 2 && ready(&engine, "roundelay.lane.2.work").await == 1
        })
        .await;
        first.end(Outcome::Done);
        let mut order = Vec::new();
        for _ in 0..6 {
            let run = engine.next().await;
            order.push(run.job.kind.clone());
            run.end(Outcome::Done);
        }
        assert_eq!(order[..2], ["urgent", "urgent"]);
        order.sort();
        assert_eq!(order, ["some_time", "some_time", "some_time", "urgent", "urgent", "urgent"]);
        engine.stop().await;
    }

    /// E11: what is configured anew holds from the next start on, and the restart costs nothing.
    pub async fn a_worker_restarted_with_another_configuration_loses_and_doubles_nothing(ground: Ground) {
        let config = |queue: &str, kind: &str, timeout: &str| {
            format!(
                "[queues.work]\nconcurrency = 4\nprefetch = 8\n{queue}\n[kinds.sync]\n{kind}\n\
                 timeout = \"{timeout}\"\n[kinds.other]\ntimeout = \"{timeout}\"\n"
            )
        };
        let before = config("", "every = \"100ms\"", "5m");
        let after = config("lanes = 2", "every = \"150ms\"\npriority = 1", "9m");
        let (mut ticks, mut once) = (BTreeMap::<String, Vec<i64>>::new(), Vec::new());
        let mut take = |run: Run, timeout: Duration| {
            let left = run.job.deadline.since(run.at);
            assert!(left <= timeout && left > timeout - MINUTE, "{left:?} of {timeout:?}");
            match &run.job.tick {
                Some(tick) => ticks.entry(run.job.key.clone()).or_default().push(tick.tick.get()),
                None => once.push(run.job.key.clone()),
            }
            run.end(Outcome::Done);
        };
        let mut engine = Watched::start(&ground, &before).await;
        // The embedded broker begins empty, with what the ledger knows.
        let single = if engine.broker().keeps_messages() { 40 } else { 0 };
        for n in 0..8 {
            engine.enroll(&n.to_string(), "work").await;
        }
        let dispatch = Dispatch::new(&engine.config, &engine.connections);
        for n in 0..single {
            let envelope = Envelope::job("other", &n.to_string(), json!({}), format!("other-{n}"));
            dispatch.send(&envelope, "work", engine.ledger().now()).await.unwrap();
        }
        for _ in 0..30 {
            take(engine.next().await, MINUTE * 5);
        }
        engine.stop_with(|run| take(run, MINUTE * 5)).await;

        let mut engine = Watched::start(&ground, &after).await;
        for _ in 0..120 {
            take(engine.next().await, MINUTE * 9);
        }
        engine.stop_with(|run| take(run, MINUTE * 9)).await;
        assert_eq!(ticks.len(), 8);
        for (key, ticks) in &ticks {
            assert_eq!(*ticks, (1..=ticks.len() as i64).collect::<Vec<_>>(), "{key}");
            assert!(ticks.len() > 5, "{key} goes on");
        }
        once.sort_by_key(|key| key.parse::<usize>().unwrap());
        assert_eq!(once, (0..single).map(|n: usize| n.to_string()).collect::<Vec<_>>());
    }
}
