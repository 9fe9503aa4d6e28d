//! Fair queues: a flood of one tenant delays no other.

use std::time::Duration;

use roundelay::Outcome;
use roundelay::clock::Time;
use roundelay::engine::Dispatch;
use roundelay::job::Envelope;
use roundelay::ledger::{Backlog, NewChain};
use serde_json::json;

use crate::harness::{Ground, Watched, on_all};
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

/// How many runs of an owner began in this stretch of seconds.
fn count(world: &World, owner: &str, seconds: std::ops::Range<u32>) -> f64 {
    let stretch = MONDAY + SECOND * seconds.start..MONDAY + SECOND * seconds.end;
    starts(world, owner).iter().filter(|(_, from)| stretch.contains(from)).count() as f64
}

/// The weights of tenants count also for what waits in the backlog, in whatever order that has come, over all workers.
#[tokio::test(start_paused = true)]
async fn tenants_share_the_places_by_weight_over_all_workers() {
    let tenants = "[tenants.b]\nweight = 2\n[tenants.c]\nweight = 5\n";
    let mut world = World::new(&format!("{tenants}{CONFIG}").replace("concurrency = 2", "concurrency = 4"), MONDAY);
    world.script("once", |_| (SECOND, Outcome::Done));
    world.connections.broker.apply(&world.config.topology()).await.unwrap();
    for owner in ["a", "b", "c"] {
        for n in 0..2_500 {
            publish(&world, owner, n).await;
        }
    }
    for _ in 0..2 {
        world.start_beside().await;
    }
    world.until(SECOND * 320).await;
    world.stop().await;
    let counts = ["a", "b", "c"].map(|owner| count(&world, owner, 20..320));
    let all: f64 = counts.iter().sum();
    assert!((2_370.0..=2_400.0).contains(&all), "two workers with four places, for five minutes: {all}");
    for (count, weight) in counts.iter().zip([1.0, 2.0, 5.0]) {
        let share = count / all;
        assert!((share - weight / 8.0).abs() < 0.02, "{share:.3}, and {:.3} is meant: {counts:?}", weight / 8.0);
    }
}

/// How many runs of an owner went on at the same time, at most.
fn most_at_once(world: &World, owner: &str) -> usize {
    let runs: Vec<_> = world.seen("once").into_iter().filter(|seen| seen.job.key.starts_with(owner)).collect();
    let at = |now: Time| runs.iter().filter(|run| run.from <= now && run.to.is_none_or(|to| to > now)).count();
    runs.iter().map(|run| at(run.from)).max().unwrap_or_default()
}

/// A quota holds over all workers; the places that it leaves are used by others.
#[tokio::test(start_paused = true)]
async fn no_more_jobs_of_a_tenant_run_than_its_quota_over_all_workers() {
    let config = CONFIG.replace("concurrency = 2", "concurrency = 5\nmost = 3");
    let mut world = World::new(&format!("[tenants.large]\nmost = 6\n{config}"), MONDAY);
    world.script("once", |_| (SECOND, Outcome::Done));
    world.connections.broker.apply(&world.config.topology()).await.unwrap();
    for n in 0..600 {
        publish(&world, "flood", n).await;
    }
    for n in 0..600 {
        publish(&world, "large", n).await;
    }
    for _ in 0..2 {
        world.start_beside().await;
    }
    world.until(SECOND * 60).await;
    assert_eq!((most_at_once(&world, "flood"), most_at_once(&world, "large")), (3, 6));
    let (flood, large) = (count(&world, "flood", 20..60), count(&world, "large", 20..60));
    // A seat that another worker gives back is heard of a tenth of a second later.
    assert!(flood >= 100.0 && large >= 210.0, "{flood} of 120, {large} of 240");
    world.stop().await;
}

mod run {
    use super::*;

    /// How many jobs the other tenant has.
    const SMALL: usize = 40;

    /// With one place, jobs of another tenant that lie behind a flood run in turn with it.
    pub async fn jobs_that_lie_behind_a_flood_run_in_turn_with_it(ground: Ground) {
        let text = "[queues.q]\nconcurrency = 1\nprefetch = 8\nfair = \"owner\"\n[kinds.once]\nqueue = \"q\"\n";
        let mut watched = Watched::start(&ground, text).await;
        let send = async |owner: &str, n: usize| {
            let envelope = Envelope::job("once", &format!("{owner} {n}"), json!({}), format!("once-{owner}-{n}"));
            let envelope = Envelope { queue: Some("q".into()), owner: Some(owner.into()), ..envelope };
            let now = watched.ledger().now();
            Dispatch::new(&watched.config, &watched.connections).send(&envelope, "q", now).await.unwrap();
        };
        for n in 0..400 {
            send("flood", n).await;
        }
        for n in 0..SMALL {
            send("small", n).await;
        }
        let first = watched.next().await;
        crate::harness::until("the flood is in the backlog", || async {
            let left = watched.ledger().backlog("q".into(), None, 10, 1_000).await.unwrap();
            left.iter().any(|of| of.tenant == "small")
        })
        .await;
        first.end(Outcome::Done);
        // From the first to the last run of the other tenant: places are shared by time, and all runs are as short.
        let (mut small, mut flood) = (0, 0);
        while small < SMALL {
            let run = watched.next().await;
            match run.job.key.starts_with("small") {
                true => small += 1,
                false if small > 0 => flood += 1,
                false => {}
            }
            run.end(Outcome::Done);
        }
        assert!(flood <= SMALL * 2, "{flood} of the flood ran between {SMALL} jobs of the other tenant");
        watched.stop_with(|run| run.end(Outcome::Done)).await;
    }
}

on_all!(jobs_that_lie_behind_a_flood_run_in_turn_with_it);
