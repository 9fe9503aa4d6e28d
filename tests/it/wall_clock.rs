//! The wall clock is set while an engine runs: what is counted in time goes on, what follows the wall clock follows it.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay::clock::Time;
use roundelay::engine::enroll::{Enroller, Entity};
use roundelay::job::Envelope;
use roundelay::ledger::{ChainOrders, LedgerClock, Move, Reports};
use serde_json::Value;

use crate::virtual_time::{MONDAY, World};

const CONFIG: &str = r#"
    [queues.q]
    [kinds.steady]
    queue = "q"
    every = "3s"
    [kinds.minutely]
    queue = "q"
    cron = "* * * * *"
    [kinds.hourly]
    queue = "q"
    cron = "@hourly"
    [kinds.often]
    queue = "q"
    cron = "*/2 * * * * *"
    [kinds.once]
    queue = "q"
    at = "2026-01-05T02:30:00Z"
    [kinds.job]
"#;

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// A worker, and a chain of each kind.
async fn world() -> World {
    started(World::new(CONFIG, MONDAY)).await
}

async fn started(mut world: World) -> World {
    for kind in ["steady", "minutely", "hourly", "once"] {
        let enroller = Enroller::new(&world.config, world.connections.clone(), kind, Some(s(1)), true);
        enroller.unwrap().enroll(vec![Entity::new("x", "q", "null")]).await.unwrap();
    }
    world.start().await;
    world
}

/// Each pair of `set` is a time, in seconds from the beginning, and by how many seconds the wall clock is set then.
/// Time goes on to `end`.
async fn play(world: &World, set: &[(u64, i64)], end: u64) {
    for (at, by) in set {
        world.until(s(*at)).await;
        world.connections.clock.set_forward(by * 1_000);
    }
    world.until(s(end)).await;
}

/// The nominal times of a kind's runs in seconds from the beginning, and how often each came.
fn nominal(world: &World, kind: &str) -> BTreeMap<i64, u32> {
    let mut runs = BTreeMap::new();
    for seen in world.seen(kind) {
        *runs.entry((seen.job.nominal.as_millis() - MONDAY.as_millis()) / 1_000).or_default() += 1;
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn intervals_go_on_and_each_occurrence_runs_once_however_the_clock_is_set() {
    let end = 4 * HOUR as u64 - 5;
    // When, by how much, and how many occurrences of the hour and of `at` come in four hours.
    for (label, set, hours, once) in [
        ("never set", vec![], vec![1, 2, 3], 1),
        ("7 s forward", vec![(5_395, 7)], vec![1, 2, 3, 4], 1),
        ("7 s back", vec![(3_602, -7)], vec![1, 2, 3], 1),
        ("an hour forward, across one", vec![(1_830, HOUR)], vec![1, 2, 3, 4], 1),
        ("an hour back, over one that has come", vec![(5_430, -HOUR)], vec![1, 2], 1),
        ("a day forward", vec![(5_430, DAY)], vec![1, 2, 26, 27], 1),
        ("a day back", vec![(5_430, -DAY)], vec![1], 0),
        ("an hour forward, and right again", vec![(5_430, HOUR), (6_030, -HOUR)], vec![1, 2, 3], 1),
        ("an hour back, and right again", vec![(5_430, -HOUR), (6_030, HOUR)], vec![1, 2, 3], 1),
        ("a day forward, and right again", vec![(5_430, DAY), (6_030, -DAY)], vec![1, 2, 3], 1),
        ("a day back, and right again", vec![(5_430, -DAY), (6_030, DAY)], vec![1, 2, 3], 1),
    ] {
        let mut world = started(World::on_server(CONFIG, MONDAY)).await;
        play(&world, &set, end).await;
        let steady = world.seen("steady");
        let gaps = steady.windows(2).map(|pair| pair[1].from.since(pair[0].from));
        let longest = gaps.max().unwrap();
        assert!(longest <= s(3) + Duration::from_millis(100), "{label}: {longest:?} between two runs of an interval");
        let hourly = nominal(&world, "hourly");
        let expected: BTreeMap<i64, u32> = hours.into_iter().map(|hour| (hour * HOUR, 1)).collect();
        assert_eq!(hourly, expected, "{label}");
        let minutes = nominal(&world, "minutely");
        assert!(minutes.values().all(|count| *count == 1), "{label}: {minutes:?}");
        // What the wall clock showed by running on, it showed to this chain too.
        let wall_clock = world.ledger.wall_clock();
        for second in (1..end as i64 - 60).filter(|second| !set.iter().any(|(at, _)| second.abs_diff(*at as i64) < 3)) {
            let wall = wall_clock.showed(Time::from_millis(MONDAY.as_millis() + second * 1_000));
            let wall = (wall.as_millis() - MONDAY.as_millis()) / 1_000;
            if wall > 0 && wall % 60 == 0 {
                assert!(minutes.contains_key(&wall), "{label}: the minute {wall} was shown at {second}");
            }
        }
        assert_eq!(nominal(&world, "once").len(), once, "{label}");
        world.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_occurrence_that_was_set_across_is_due_at_once() {
    let mut world = world().await;
    play(&world, &[(1_800, HOUR)], 1_900).await;
    let seen = world.seen("hourly");
    let after = seen[0].from.since(world.begin);
    assert!(after >= s(1_800) && after < s(1_803), "{after:?}");
    // A handler is told the times of the wall clock.
    assert_eq!(seen[0].job.deadline.since(seen[0].from), s(HOUR as u64) + world.config.kinds["hourly"].timeout);
    world.stop().await;
}

/// Workers read the clock once a second. What is due in between, by the clock as it was, waits for its time.
#[tokio::test(start_paused = true)]
async fn no_run_starts_by_a_clock_that_was_set_back_before_the_step_is_noticed() {
    let secs = |millis: i64| (MONDAY.as_millis() + millis).div_euclid(1_000) - MONDAY.as_millis() / 1_000;
    for after in (0..2_000).step_by(150) {
        let mut world = World::on_server(CONFIG, MONDAY);
        let enroller = Enroller::new(&world.config, world.connections.clone(), "often", None, true);
        enroller.unwrap().enroll(vec![Entity::new("x", "q", "null")]).await.unwrap();
        world.start().await;
        let (ahead, back) = (30_300, 40_000 + after);
        for (at, by) in [(ahead, HOUR), (back, -HOUR)] {
            world.until(Duration::from_millis(at as u64)).await;
            world.connections.clock.set_forward(by * 1_000);
        }
        world.until(s(60)).await;
        let mut shown = Vec::new();
        for seen in world.seen("often") {
            let began = seen.from.as_millis() - MONDAY.as_millis();
            let clock = began + if (ahead..back).contains(&began) { HOUR * 1_000 } else { 0 };
            let nominal = seen.job.nominal.as_millis() - MONDAY.as_millis();
            assert!(nominal <= clock + 50, "set back at {back} ms: {nominal} ran when the clock showed {clock}");
            shown.push(secs(nominal));
        }
        let last: Vec<i64> = shown.iter().copied().filter(|second| (back / 1_000 + 1..60).contains(second)).collect();
        let expected: Vec<i64> = (back / 1_000 + 1..60).filter(|second| second % 2 == 0).collect();
        let chain = world.ledger.chains("often".into(), "x".into()).await.unwrap().remove(0);
        let why = format!("{shown:?}, then {} due {}; {:?}", chain.nominal, chain.hint.due, world.ledger.wall_clock());
        assert_eq!(last, expected, "set back at {back} ms: {why}");
        world.stop().await;
    }
}

/// A ledger that says so has been written to by another program, or by a clock that was wrong.
#[tokio::test(start_paused = true)]
async fn a_chain_that_sleeps_for_longer_than_its_schedule_can_explain_is_moved_within_a_minute() {
    let mut world = world().await;
    world.until(s(10)).await;
    let chain = async |kind: &str| world.ledger.chains(kind.into(), "x".into()).await.unwrap().remove(0);
    for kind in ["steady", "hourly"] {
        let sleeps = loop {
            let chain = chain(kind).await;
            if !chain.holder.runs() && chain.hint.due > world.ledger.now() {
                break chain;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let due = sleeps.hint.due + s(DAY as u64);
        let put_off = Move {
            epoch: sleeps.hint.epoch,
            tick: sleeps.hint.tick,
            from: sleeps.hint.due,
            nominal: sleeps.nominal,
            due,
            watch_at: due,
        };
        assert!(world.ledger.reschedule(vec![put_off]).await.unwrap()[0].is_some());
    }
    let before = world.seen("steady").len();
    world.until(s(90)).await;
    let after = world.seen("steady").len();
    assert!(after >= before + 8, "{after} runs instead of {before}");
    assert!(chain("hourly").await.hint.due <= world.begin + s(HOUR as u64));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn jobs_are_due_by_the_clock_that_they_say() {
    let mut world = world().await;
    world.connections.clock.set_forward(HOUR * 1_000);
    let due = |secs: u64| Some(MONDAY + s(secs));
    let job = |key: &str| Envelope::job("job", key, Value::Null, key.into());
    // Another program's, by the wall clock, and the engine's own.
    world.publish_envelope("q", &Envelope { due: due(HOUR as u64 + 100), ..job("theirs") }).await;
    world.publish_envelope("q", &Envelope { due: due(100), clock: Some(0), ..job("own") }).await;
    world
        .publish_envelope("q", &Envelope { due: due(HOUR as u64 + 100), clock: Some(HOUR * 1_000), ..job("foreign") })
        .await;
    world.until(s(50)).await;
    // Those that say which clock they mean stay where they are.
    world.connections.clock.set_forward(-HOUR * 1_000);
    world.until(s(200)).await;
    let started = |world: &World| -> BTreeMap<String, u64> {
        world.seen("job").iter().map(|seen| (seen.job.key.clone(), seen.from.since(MONDAY).as_secs())).collect()
    };
    assert_eq!(started(&world), BTreeMap::from([("own".into(), 100), ("foreign".into(), 100)]));
    world.until(s(2 * HOUR as u64)).await;
    assert_eq!(started(&world)["theirs"], HOUR as u64 + 100);
    world.stop().await;
}
