//! How messages sleep: on their own queues where the broker lets them, else on rungs; and the way from one to the other.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use roundelay::broker::embedded::{HeldState, Profile, PublishFault};
use roundelay::broker::{Broker, Destination, Way};
use roundelay::clock::Time;
use roundelay::engine::resend::resend_all;
use roundelay::engine::{Dispatch, topology_guard};
use roundelay::job::Envelope;
use roundelay::spread::HotRungs;
use roundelay::telemetry::Count;
use roundelay::{Engine, Outcome};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::{Ground, Watched, until};
use crate::virtual_time::{MONDAY, World, chain};

/// What is lost is sent again soon.
const CONFIG: &str = "catch_up.slack = \"1s\"\ncatch_up.every = \"1s\"\n[queues.q]\n[kinds.k]\nqueue = \"q\"\nevery = \"10s\"\nfrom = \"nominal\"\n";

fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// When the runs of a kind began, in milliseconds after the beginning.
fn starts(world: &World) -> Vec<i64> {
    world.seen("k").iter().map(|run| run.from.as_millis() - MONDAY.as_millis()).collect()
}

/// A tick every ten seconds, none early, and none later than `late` milliseconds.
fn on_time(world: &World, until: u64, late: i64) {
    let starts = starts(world);
    let due: Vec<i64> = (1..=until as i64 / 10).map(|n| n * 10_000).collect();
    assert_eq!(starts.len(), due.len(), "{starts:?}");
    let apart: Vec<i64> = starts.iter().zip(&due).map(|(start, due)| start - due).collect();
    assert!(apart.iter().all(|apart| (0..=late).contains(apart)), "{apart:?} ms after they were due");
}

fn rungs(broker: &roundelay::broker::embedded::EmbeddedBroker) -> usize {
    broker.queues().iter().filter(|queue| queue.contains(".delay.")).count()
}

/// So many chains that are due every ten seconds, and a worker.
async fn started(config: &str, chains: usize, set_up: impl FnOnce(&World)) -> World {
    let mut world = World::natively(config, MONDAY);
    set_up(&world);
    world.chains((0..chains).map(|n| chain("k", &n.to_string(), "q", MONDAY + s(10))).collect()).await;
    world.start_beside().await;
    resend_all(&world.config, &world.connections).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn messages_sleep_on_their_queue_where_the_broker_lets_them() {
    let mut world = started(CONFIG, 1, |_| {}).await;
    world.until(s(55)).await;
    assert_eq!(rungs(&world.broker), 0);
    let sleeps = |held: &roundelay::broker::embedded::Held| held.queue == "q";
    let held: Vec<_> = world.broker.census().into_iter().filter(sleeps).map(|held| held.state).collect();
    assert!(matches!(held[..], [HeldState::Asleep { .. }]), "{held:?}");
    world.until(s(605)).await;
    on_time(&world, 600, 0);
    world.stop().await;
}

/// It is measured when the worker starts, and again within a minute after the clock was set.
#[tokio::test(start_paused = true)]
async fn a_brokers_clock_that_differs_makes_nothing_early_and_nothing_late() {
    let hours = 22 * 3_600_000;
    for ahead in [0, 300, -300, 90_000, -90_000, hours, -hours] {
        let mut world = started(CONFIG, 1, |world| world.broker.set_clock(ahead)).await;
        world.until(s(305)).await;
        on_time(&world, 300, 5);
        let Some(Way::Native { ahead: found }) = world.connections.broker.sleeping().way() else { panic!("natively") };
        assert!((found - ahead).abs() <= 4, "{found} for {ahead}");
        world.stop().await;
    }
}

/// Set forward, what sleeps wakes early, and goes on over rungs; set back, it oversleeps, and catch-up sends it again.
#[tokio::test(start_paused = true)]
async fn a_brokers_clock_that_is_set_makes_nothing_early() {
    for by in [3_600_000, 30_000, -30_000, -3_600_000] {
        let mut world = started(CONFIG, 1, |_| {}).await;
        world.until(s(95)).await;
        world.broker.set_clock(by);
        world.until(s(905)).await;
        let (all, early) = (starts(&world), by > 0);
        let due: Vec<i64> = all.iter().map(|start| start / 10_000 * 10_000).collect();
        assert!(due.is_sorted_by(|one, next| one < next), "{by}: {all:?}");
        assert!(all.iter().zip(&due).all(|(start, due)| start - due < 5_000), "{by}: {all:?}");
        // A minute of ticks may be late, and none is left out.
        assert!(all.len() >= 88, "{by}: {} of 90: {all:?}", all.len());
        assert_eq!(rungs(&world.broker) > 0, early, "{by}: over rungs for a while");
        let native = matches!(world.connections.broker.sleeping().way(), Some(Way::Native { .. }));
        assert!(native, "{by}: natively again");
        world.stop().await;
    }
}

/// As when a node is rolled back: what sleeps comes at once.
#[tokio::test(start_paused = true)]
async fn a_broker_that_lets_messages_sleep_no_more_is_never_a_hot_loop() {
    let mut world = started(CONFIG, 100, |_| {}).await;
    world.until(s(55)).await;
    let published = Arc::new(Mutex::new(0_u64));
    let count = published.clone();
    world.broker.on_publish(move |_| {
        *count.lock() += 1;
        PublishFault::None
    });
    world.broker.become_like(Profile::Rabbit4);
    world.until(s(115)).await;
    let (runs, published) = (world.seen("k").len(), *published.lock());
    assert_eq!(runs, 1_100, "eleven ticks of each");
    // The 600 that runs send, what came early once, and the rest of its delay in some hops.
    assert!(published < 1_000, "{published} publishes in a minute");
    assert!(rungs(&world.broker) > 0);
    let found = topology_guard::found(&*world.connections.ledger).await.unwrap().unwrap();
    assert!(found.early && !found.native, "{found:?}");
    // It is tried again after ten minutes, and not before, also when the broker is as it was.
    world.broker.become_like(Profile::Rabbit44);
    world.until(s(655)).await;
    assert_eq!(world.connections.broker.sleeping().way(), Some(Way::Ladder));
    world.until(s(800)).await;
    assert!(matches!(world.connections.broker.sleeping().way(), Some(Way::Native { .. })));
    world.stop().await;
}

/// One worker after the other is moved to native delays, and back, while chains run.
#[tokio::test(start_paused = true)]
async fn workers_of_both_ways_run_the_same_chains() {
    let mut world = started(&format!("broker.delays = \"ladder\"\n{CONFIG}"), 50, |_| {}).await;
    world.until(s(33)).await;
    let auto = World::natively(CONFIG, MONDAY).config;
    let ladder = std::mem::replace(&mut world.config, auto);
    world.start_beside().await;
    world.until(s(93)).await;
    let held = |state: fn(&HeldState) -> bool| world.broker.census().iter().filter(|held| state(&held.state)).count();
    let (on_rungs, asleep) = (
        held(|state| matches!(state, HeldState::OnRung { .. })),
        held(|state| matches!(state, HeldState::Asleep { .. })),
    );
    assert!(on_rungs > 0 && asleep > 0, "{on_rungs} on rungs, {asleep} natively");
    world.config = ladder;
    world.start_beside().await;
    world.until(s(303)).await;
    world.stop().await;
    let runs = world.seen("k");
    assert_eq!(runs.len(), 50 * 30);
    let mut ticks: Vec<_> = runs.iter().map(|run| (run.job.key.clone(), run.job.tick.unwrap().tick)).collect();
    ticks.sort();
    ticks.dedup();
    assert_eq!(ticks.len(), runs.len(), "each once");
    for run in &runs {
        let after = run.from.as_millis() - MONDAY.as_millis();
        assert!((0..50).contains(&(after % 10_000)), "{} at {after}", run.job.key);
    }
}

/// Chains that ask for twice as much as their queue allows: what bounds the queue, their interval in seconds, how many
/// there are, and how long each runs.
const ASK_TOO_MUCH: [(&str, u64, u64, u64); 4] = [
    ("[throttles.t]\nallow = 30\nper = \"1m\"\n[queues.q]\nthrottle = \"t\"\n", 60, 60, 0),
    ("[throttles.t]\nallow = 20\nper = \"1s\"\n[queues.q]\nthrottle = \"t\"\n", 1, 40, 0),
    ("[queues.q]\nconcurrency = 1\nprefetch = 4\n", 60, 60, 2),
    ("[queues.q]\nconcurrency = 1\nprefetch = 1\n", 60, 60, 2),
];

async fn asked_too_much(delays: &str, (bound, every, chains, length): (&str, u64, u64, u64)) -> World {
    let kinds = format!("[kinds.k]\nqueue = \"q\"\nevery = \"{every}s\"\n[kinds.job]\nqueue = \"q\"\n");
    let mut world = World::natively(&format!("broker.delays = \"{delays}\"\n{bound}{kinds}"), MONDAY);
    world.script("k", move |_| (s(length), Outcome::Done));
    world.script("job", |_| (s(0), Outcome::Done));
    let due = |n: u64| MONDAY + s(10) + Duration::from_millis(n * every * 1_000 / chains);
    world.chains((0..chains).map(|n| chain("k", &n.to_string(), "q", due(n))).collect()).await;
    world.start_beside().await;
    resend_all(&world.config, &world.connections).await.unwrap();
    world
}

/// What wakes goes ahead of what waits on its queue. Where chains ask for more than the queue allows, something always
/// wakes, and a job without a time would never have its turn.
#[tokio::test(start_paused = true)]
async fn a_job_without_a_time_has_its_turn_among_chains_that_ask_for_more_than_there_is() {
    for case in ASK_TOO_MUCH {
        let (bound, every, chains, _) = case;
        for delays in ["auto", "ladder"] {
            let mut world = asked_too_much(delays, case).await;
            let published = s(10 + 15 * every);
            world.until(published).await;
            for n in 0..5 {
                world.publish("q", "job", &n.to_string(), json!({})).await;
            }
            world.until(published + s(5 * every)).await;
            let (jobs, runs) = (world.seen("job"), world.seen("k"));
            assert_eq!(jobs.len(), 5, "{bound}, {delays}: {jobs:?}");
            // A turn of all that waits takes two intervals.
            let last = jobs.iter().map(|run| run.from).max().unwrap();
            assert!(last <= MONDAY + published + s(3 * every), "{bound}, {delays}: {last}");
            // And chains have their turns in order, each some two intervals after its last one.
            for key in 0..chains {
                let key = key.to_string();
                let from: Vec<_> = runs.iter().filter(|run| run.job.key == key).map(|run| run.from).collect();
                let apart = from.windows(2).map(|two| two[1].since(two[0])).max().unwrap();
                assert!(apart <= s(3 * every), "{bound}, {delays}: {key} after {apart:?}");
            }
            world.stop().await;
        }
    }
}

/// Also where messages go to the end of the queue: what comes early goes over rungs from there.
#[tokio::test(start_paused = true)]
async fn a_full_queue_is_no_hot_loop_when_the_broker_lets_messages_sleep_no_more() {
    for case in ASK_TOO_MUCH {
        let (bound, every, chains, _) = case;
        let mut world = asked_too_much("auto", case).await;
        world.until(s(10 + 5 * every)).await;
        let published = Arc::new(Mutex::new(0_u64));
        let count = published.clone();
        world.broker.on_publish(move |_| {
            *count.lock() += 1;
            PublishFault::None
        });
        world.broker.become_like(Profile::Rabbit4);
        world.until(s(10 + 6 * every)).await;
        // The successors of half of the chains, what came early once, and the rest of its delay in some hops.
        let published = *published.lock();
        assert!(published <= 6 * chains, "{bound}: {published} publishes in an interval of {chains} chains");
        world.stop().await;
    }
}

/// The ledger says what was found, so that a fleet does not probe all at the same time.
#[tokio::test(start_paused = true)]
async fn one_worker_probes_for_all_once_a_minute() {
    let mut world = World::natively(CONFIG, MONDAY);
    let probes = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let seen = probes.clone();
    world.broker.on_publish(move |message| {
        if let Destination::Queue(queue) = &message.to
            && queue.ends_with(".probe")
        {
            seen.lock().insert(message.id.split(' ').next().unwrap_or_default().to_owned());
        }
        PublishFault::None
    });
    for _ in 0..4 {
        world.start_beside().await;
    }
    assert_eq!(probes.lock().len(), 1, "when they start");
    world.until(s(600)).await;
    let probes = probes.lock().len();
    assert!((5..=12).contains(&probes), "{probes} in ten minutes");
    world.stop().await;
}

/// A program that only publishes knows from the ledger how messages sleep.
#[tokio::test(start_paused = true)]
async fn a_program_that_only_publishes_sends_messages_to_sleep_as_workers_do() {
    let mut world = World::natively(CONFIG, MONDAY);
    world.start_beside().await;
    let program = Arc::new(world.broker.connect());
    let connections = roundelay::engine::Connections { broker: program.clone(), ..world.connections.clone() };
    let job = Envelope::job("k", "later", json!({}), "one".to_owned()).due_at(MONDAY + s(30));
    assert_eq!(program.sleeping().way(), None, "nothing is known yet");
    Dispatch::new(&world.config, &connections).send(&job, "q", Time::from_millis(0)).await.unwrap();
    let asleep = world.broker.census().iter().any(|held| held.queue == "q" && held.state != HeldState::Ready);
    assert!(asleep, "{:?}", world.broker.census());
    world.until(s(31)).await;
    assert_eq!(starts(&world), [30_000]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn native_delays_are_refused_where_the_broker_has_none() {
    let config = format!("broker.delays = \"native\"\n{CONFIG}");
    let world = World::natively(&config, MONDAY);
    world.broker.become_like(Profile::Rabbit4);
    let engine = Engine::new(world.config.clone())
        .connections(world.connections.clone())
        .handler("k", |_, _| async { Outcome::Done });
    let error = engine.run(CancellationToken::new()).await.unwrap_err().to_string();
    assert!(error.contains("broker.delays is `native`") && error.contains("`auto` or `ladder`"), "{error}");
}

/// On the RabbitMQ that the tests are given.
#[tokio::test]
async fn the_topology_is_what_the_broker_needs() {
    let ground = Ground::rabbit().await;
    let text = "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1s\"\n";
    let vhost = ground.vhost.as_ref().expect("it is on RabbitMQ");
    let (version, native) = vhost.native_delays().await;
    let mut engine = Watched::start(&ground, text).await;
    let queues = vhost.call(Method::GET, &format!("queues/{}", vhost.name), json!(null)).await;
    let names: Vec<&str> = queues.as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert_eq!(names.iter().any(|name| name.contains(".delay.")), !native, "{version}: {names:?}");
    engine.enroll("x", "work").await;
    let mut last = None;
    for _ in 0..5 {
        let run = engine.next().await;
        let due = run.job.nominal;
        assert!(run.at >= due, "{} before {due}", run.at);
        assert!(last.is_none_or(|last| last < due));
        last = Some(due);
        run.end(Outcome::Done);
    }
    assert_eq!(engine.telemetry.get(Count::Early), 0);
    let told = format!("roundelay_native_delays {}", u8::from(native));
    until("the metric tells", || async { engine.telemetry.render().contains(&told) }).await;
    engine.stop().await;
}

/// A user may not have the permission to probe, or the broker may be full just then.
#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_probe_uses_rungs_and_probes_again_later() {
    let refused = Arc::new(Mutex::new(true));
    let refuses = refused.clone();
    let full = move |world: &World| {
        world.broker.on_publish(move |message| match &message.to {
            Destination::Asleep { .. } if *refuses.lock() => PublishFault::Refused,
            _ => PublishFault::None,
        });
    };
    let mut world = started(CONFIG, 1, full).await;
    world.until(s(95)).await;
    assert_eq!(world.connections.broker.sleeping().way(), Some(Way::Ladder));
    assert!(rungs(&world.broker) > 0);
    *refused.lock() = false;
    world.until(s(205)).await;
    assert!(matches!(world.connections.broker.sleeping().way(), Some(Way::Native { .. })));
    on_time(&world, 200, 20);
    world.stop().await;
}

/// A rung that hands on 250 messages a second has 600 to hand on: all are late. With siblings none is.
#[tokio::test(start_paused = true)]
async fn a_hot_rung_gets_siblings_and_a_cold_one_none() {
    let config = "[queues.q]\nconcurrency = 64\nprefetch = 1000\n[kinds.k]\nqueue = \"q\"\nevery = \"1s\"\n\
                  [kinds.cold]\nqueue = \"q\"\nevery = \"7s\"\n";
    let mut world = World::new(config, MONDAY);
    world.broker.slow_rungs(Duration::from_millis(4));
    let first = |n: u64| MONDAY + s(1) + Duration::from_millis(n * 1_000 / 600);
    world.chains((0..600).map(|n| chain("k", &n.to_string(), "q", first(n))).collect()).await;
    world.chains((0..200).map(|n| chain("cold", &n.to_string(), "q", first(n))).collect()).await;
    world.start().await;
    world.until(s(45)).await;
    let siblings = |world: &World| {
        let named = |ms: u64| format!("roundelay.delay.{ms}ms");
        let queues = world.broker.queues();
        [976, 983, 984, 6_976].map(|ms| queues.contains(&named(ms)))
    };
    assert_eq!(siblings(&world), [true, true, false, false]);
    let known = topology_guard::hot_rungs(&*world.ledger).await.unwrap();
    assert_eq!(known, HotRungs::default().with(Duration::from_millis(975)).unwrap());
    assert_eq!(known, *world.connections.broker.sleeping().hot_rungs());
    let late = |world: &World, from: u64| {
        let since = MONDAY + s(from);
        let late = |run: &crate::virtual_time::Seen| run.from.since(run.job.nominal);
        world.seen("k").iter().filter(|run| run.from >= since).map(late).max().unwrap()
    };
    assert!(late(&world, 0) > s(1));
    assert!(late(&world, 38) < Duration::from_millis(20), "{:?}", late(&world, 38));
    // The next worker knows it from the start.
    world.stop().await;
    let runs = world.seen("k").len();
    world.start().await;
    world.until(s(65)).await;
    assert!(world.seen("k").len() > runs + 600 * 15, "{} and {runs}", world.seen("k").len());
    assert!(late(&world, 50) < Duration::from_millis(20), "{:?}", late(&world, 50));
    assert_eq!(siblings(&world), [true, true, false, false]);
    world.stop().await;
}
