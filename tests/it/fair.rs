//! Fair queues: a flood of one tenant delays no other.

use std::time::Duration;

use roundelay::Outcome;
use roundelay::clock::Time;
use roundelay::engine::Dispatch;
use roundelay::job::Envelope;
use roundelay::ledger::{Backlog, NewChain};
use serde_json::json;

use crate::virtual_time::{MONDAY, World, chain};

const CONFIG: &str = r#"
[queues.q]
concurrency = 2
fair = "owner"
[kinds.sync]
queue = "q"
every = "1day"
[kinds.once]
queue = "q"
"#;
const SECOND: Duration = Duration::from_secs(1);
const FLOOD: usize = 1_500;

fn owned(owner: &str, n: usize, due: Time) -> NewChain {
    NewChain { owner: Some(owner.into()), ..chain("sync", &format!("{owner} {n}"), "q", due) }
}

/// A world in which each run takes a second, and a flood of chains of one owner is due.
async fn flooded(config: &str) -> World {
    let mut world = World::new(config, MONDAY);
    for kind in ["sync", "once"] {
        world.script(kind, |_| (SECOND, Outcome::Done));
    }
    world.chains((0..FLOOD).map(|n| owned("flood", n, MONDAY)).collect()).await;
    world
}

/// Publishes a one-off job as other programs do.
async fn publish(world: &World, owner: &str, n: usize) {
    let envelope = Envelope::job("once", &format!("{owner} {n}"), json!({}), format!("once-{owner}-{n}"));
    let envelope = Envelope { queue: Some("q".into()), owner: Some(owner.into()), ..envelope };
    let now = world.connections.ledger.now();
    Dispatch::new(&world.config, &world.connections).send(&envelope, "q", now).await.unwrap();
}

/// When the runs of an owner began, and of which job, in their order.
fn starts(world: &World, owner: &str) -> Vec<(String, Time)> {
    let seen = world.seen("sync").into_iter().chain(world.seen("once"));
    let mut starts: Vec<_> =
        seen.filter(|seen| seen.job.key.starts_with(owner)).map(|seen| (seen.job.key.to_string(), seen.from)).collect();
    starts.sort_by_key(|(_, from)| *from);
    starts
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_chains_delays_those_of_others_by_no_more_than_a_run() {
    let mut world = flooded(CONFIG).await;
    let due = |n: usize| MONDAY + SECOND * (7 * n as u32 + 5);
    world.chains((0..20).map(|n| owned("small", n, due(n))).collect()).await;
    world.start().await;
    world.until(SECOND * 300).await;
    let small = starts(&world, "small");
    assert_eq!(small.len(), 20);
    for (n, (key, from)) in small.iter().enumerate() {
        assert_eq!(*key, format!("small {n}"));
        assert!(
            from.since(due(n)) <= SECOND + Duration::from_millis(100),
            "{key} was late by {:?}",
            from.since(due(n))
        );
    }
    // The places are used all the time, and nothing runs twice.
    let flood = starts(&world, "flood");
    assert!((570..=580).contains(&flood.len()), "{}", flood.len());
    world.until(SECOND * 900).await;
    world.stop().await;
    let mut all = starts(&world, "flood");
    assert_eq!(all.len(), FLOOD);
    all.sort();
    all.dedup_by(|a, b| a.0 == b.0);
    assert_eq!(all.len(), FLOOD, "each once");
    assert_eq!(world.ledger.backlog("q".into(), None, 10, 10).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_messages_delays_those_of_others_by_no_more_than_a_run() {
    let mut world = World::new(CONFIG, MONDAY);
    world.script("once", |_| (SECOND, Outcome::Done));
    world.start().await;
    for n in 0..FLOOD {
        publish(&world, "flood", n).await;
    }
    for n in 0..20 {
        world.until(SECOND * (7 * n as u32 + 5)).await;
        publish(&world, "small", n).await;
    }
    world.until(SECOND * 900).await;
    world.stop().await;
    let small = starts(&world, "small");
    assert_eq!(small.len(), 20);
    for (n, (key, from)) in small.iter().enumerate() {
        let late = from.since(MONDAY + SECOND * (7 * n as u32 + 5));
        assert_eq!(*key, format!("small {n}"));
        assert!(late <= SECOND + Duration::from_millis(100), "{key} was late by {late:?}");
    }
    assert_eq!(starts(&world, "flood").len(), FLOOD);
    assert_eq!(world.ledger.backlog("q".into(), None, 10, 10).await.unwrap(), []);
}

/// A queue that keeps up does not ask the ledger whose its jobs are, and leaves it nothing.
#[tokio::test(start_paused = true)]
async fn a_queue_that_keeps_up_leaves_nothing_to_the_backlog() {
    let mut world = World::new(CONFIG, MONDAY);
    world.script("sync", |_| (SECOND, Outcome::Done));
    world.chains((0..50).map(|n| owned("a", n, MONDAY + SECOND * n as u32)).collect()).await;
    world.start().await;
    world.until(SECOND * 60).await;
    world.stop().await;
    assert_eq!(starts(&world, "a").len(), 50);
}

/// What waits in the backlog of a worker that has ended runs on the next one, once.
#[tokio::test(start_paused = true)]
async fn what_waits_in_the_backlog_outlives_the_worker() {
    let mut world = World::new(CONFIG, MONDAY);
    world.script("once", |_| (SECOND, Outcome::Done));
    world.connections.broker.apply(&world.config.topology()).await.unwrap();
    for n in 0..100 {
        publish(&world, "flood", n).await;
    }
    world.start_beside().await;
    world.until(SECOND * 10).await;
    world.stop().await;
    let left: u64 = world.ledger.backlog("q".into(), None, 10, 1_000).await.unwrap().iter().map(|of| of.messages).sum();
    let before = starts(&world, "flood").len();
    assert!((60..=90).contains(&left) && before >= 18, "{left} wait, and {before} have run");
    world.start_beside().await;
    world.until(SECOND * 120).await;
    world.stop().await;
    let mut all = starts(&world, "flood");
    assert_eq!(all.len(), 100);
    all.sort();
    all.dedup_by(|a, b| a.0 == b.0);
    assert_eq!(all.len(), 100);
}
