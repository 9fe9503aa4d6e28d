//! Tenants share places and slots, in virtual time: all of their jobs are in the hands of the worker.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay::Outcome;
use roundelay::fleet::{FleetOrder, Subject};
use roundelay::job::Envelope;
use roundelay::ledger::Fleet;
use serde_json::Value;

use crate::virtual_time::{MONDAY, Seen, World};

/// A worker that holds 600 messages, of which 16 have a place. All of them are in its lines within a second.
const THROTTLED: &str = r#"
[queues.work]
concurrency = 16
prefetch = 1000
lanes = 2
throttle = "upstream"
[throttles.upstream]
allow = 60
per = "1s"
fair = "owner"
[kinds.sync]
queue = "work"
[kinds.urgent]
queue = "work"
priority = 1
"#;

/// So many jobs of the owner, all due now.
async fn publish(world: &World, queue: &str, kind: &str, owner: &str, jobs: usize) {
    let begin = world.seen(kind).len();
    for n in begin..begin + jobs {
        let id = format!("{kind}-{owner}-{n}");
        let job = Envelope::job(kind, &id, Value::Null, id.clone());
        world.publish_envelope(queue, &Envelope { owner: Some(owner.into()), ..job }).await;
    }
}

/// What started within these milliseconds since the beginning.
fn between(seen: &[Seen], from: u64, to: u64) -> &[Seen] {
    let place = |ms| seen.partition_point(|seen| seen.from < MONDAY + Duration::from_millis(ms));
    &seen[place(from)..place(to)]
}

fn counts(seen: &[Seen]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for seen in seen {
        *counts.entry(seen.job.owner.as_deref().unwrap()).or_default() += 1;
    }
    counts
}

/// Whether there are so many of each, up to one, or 2 %.
fn are_near(counts: &BTreeMap<&str, usize>, wanted: &[(&str, usize)]) {
    for (owner, wanted) in wanted {
        let had = counts.get(owner).copied().unwrap_or_default();
        assert!(had.abs_diff(*wanted) <= (wanted / 50).max(1), "{owner} is to have {wanted}: {counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn starts_are_shared_by_weight_however_the_jobs_have_come() {
    let config = format!("{THROTTLED}[tenants.b]\nweight = 2\n[tenants.c]\nweight = 5\n");
    let mut world = World::new(&config, MONDAY);
    world.start().await;
    for (owner, jobs) in [("a", 60), ("b", 120), ("c", 300)] {
        publish(&world, "work", "sync", owner, jobs).await;
    }
    world.until(Duration::from_secs(20)).await;
    world.stop().await;
    let seen = world.seen("sync");
    assert_eq!(seen.len(), 480);
    // Those that had places when the others came go first.
    let counts = counts(&seen[16..416]);
    are_near(&counts, &[("a", 50), ("b", 100), ("c", 250)]);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_another_owner_starts_next_while_one_floods() {
    let mut world = World::new(&THROTTLED.replace("allow = 60", "allow = 10"), MONDAY);
    world.start().await;
    publish(&world, "work", "sync", "flood", 90).await;
    for n in 1..=6 {
        world.until(Duration::from_millis(1_037 * n)).await;
        let before = world.seen("sync").len();
        publish(&world, "work", "sync", "other", 1).await;
        world.until(Duration::from_millis(1_037 * n + 900)).await;
        let since = &world.seen("sync")[before..];
        let place = since.iter().position(|seen| seen.job.owner.as_deref() == Some("other"));
        // A slot that has been granted already, for the tenth of a second before it opens, is the flood's.
        assert!(place.is_some_and(|place| place <= 2), "job {n} was number {place:?}");
    }
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_higher_priority_goes_first_and_owners_have_turns_within_each() {
    let mut world = World::new(THROTTLED, MONDAY);
    world.start().await;
    for (kind, owner, jobs) in [("sync", "a", 60), ("sync", "c", 60), ("urgent", "a", 150), ("urgent", "b", 150)] {
        publish(&world, if kind == "urgent" { "roundelay.lane.1.work" } else { "work" }, kind, owner, jobs).await;
    }
    world.until(Duration::from_secs(4)).await;
    world.stop().await;
    let (low, high) = (world.seen("sync"), world.seen("urgent"));
    let (low, high) = (between(&low, 1_500, 4_000), between(&high, 1_500, 4_000));
    let all = low.len() + high.len();
    assert!((140..=150).contains(&all), "{all} starts");
    assert!(low.len().abs_diff(all / 8) <= 1, "{} of {all} are of the lower priority, and one in eight is", low.len());
    are_near(&counts(high), &[("a", high.len() / 2), ("b", high.len() / 2)]);
    are_near(&counts(low), &[("a", low.len() / 2), ("c", low.len() / 2)]);
}

#[tokio::test(start_paused = true)]
async fn another_weight_that_is_ordered_counts_within_two_seconds() {
    let mut world = World::new(THROTTLED, MONDAY);
    // It reads what operators order.
    world.start_with_chores().await;
    publish(&world, "work", "sync", "a", 300).await;
    publish(&world, "work", "sync", "b", 300).await;
    world.until(Duration::from_secs(3)).await;
    let share = FleetOrder::Share { weight: Some(5), most: None };
    world.ledger.order_fleet(Subject::Tenant("b".into()), share, "ann".into()).await.unwrap();
    world.until(Duration::from_secs(6)).await;
    let seen = world.seen("sync");
    world.stop().await;
    are_near(&counts(&between(&seen, 1_000, 3_000)[..100]), &[("a", 50), ("b", 50)]);
    are_near(&counts(&between(&seen, 5_000, 6_000)[..48]), &[("a", 8), ("b", 40)]);
}

/// Runs of one owner take ten times as long. With first come, first served, that owner would have nearly all places.
#[tokio::test(start_paused = true)]
async fn owners_have_the_same_time_of_places_however_long_their_runs_are() {
    let config = r#"
[queues.work]
concurrency = 4
prefetch = 1000
fair = "owner"
[kinds.sync]
queue = "work"
timeout = "1m"
"#;
    let mut world = World::new(config, MONDAY);
    world.script("sync", |job| {
        let takes = if job.owner.as_deref() == Some("slow") { 10 } else { 1 };
        (Duration::from_secs(takes), Outcome::Done)
    });
    world.start().await;
    publish(&world, "work", "sync", "slow", 100).await;
    publish(&world, "work", "sync", "fast", 700).await;
    world.until(Duration::from_secs(300)).await;
    let seen = world.seen("sync");
    world.stop().await;
    let counts = counts(&seen);
    assert!(counts["slow"].abs_diff(60) <= 3 && counts["fast"].abs_diff(600) <= 30, "{counts:?}");
}
