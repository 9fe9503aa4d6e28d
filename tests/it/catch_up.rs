//! Messages that are lost are sent again; messages that wait their turn are not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use reqwest::Method;
use roundelay::Outcome;
use roundelay::clock::Time;
use roundelay::engine::life::Point;
use roundelay::ledger::{NewChain, Overdue};
use roundelay::telemetry::Count;
use serde_json::json;
use tokio::time::Instant;

use crate::harness::{Ground, SOON, Watched, on_ladder, until};
use crate::virtual_time::{MONDAY, World, chain};

const CONFIG: &str = r#"
catch_up = { every = "1s", slack = "1s", spread = "0s" }
[queues.work]
concurrency = 1
prefetch = 2
[kinds.sync]
every = "3s"
queue = "work"
timeout = "60s"
"#;

#[tokio::test]
async fn a_purged_rung_costs_a_delay_and_no_chain() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let mut engine = Watched::start(&ground, &on_ladder(CONFIG)).await;
    engine.enroll("x", "work").await;
    engine.next().await.end(Outcome::Done);
    let rung = "roundelay.delay.2975ms";
    until("the successor sleeps", || async { engine.broker().depth(rung).await.unwrap().ready == 1 }).await;
    vhost.call(Method::DELETE, &format!("queues/{}/{rung}/contents", vhost.name), json!(null)).await;
    for tick in 2..=4 {
        let run = engine.next().await;
        assert_eq!((run.tick(), run.job.attempt), (tick, 1), "one rotation, no tick left out");
        run.end(Outcome::Done);
    }
    assert!(engine.telemetry.get(Count::Resent) >= 1);
    engine.stop().await;
}

#[tokio::test]
async fn a_message_that_waits_in_its_queue_is_not_sent_again() {
    for ground in [Ground::embedded(), Ground::rabbit().await] {
        let mut engine = Watched::start(&ground, CONFIG).await;
        for n in 0..30 {
            engine.enroll(&format!("chain-{n}"), "work").await;
        }
        let first = engine.next().await;
        // One runs, and the others wait behind it for several times the slack and several sweeps.
        engine.nothing_for(Duration::from_secs(5)).await;
        assert_eq!(engine.telemetry.get(Count::Resent), 0);
        first.end(Outcome::Done);
        let mut seen = 1;
        while seen < 30 {
            let run = engine.next().await;
            seen += usize::from(run.tick() == 1);
            run.end(Outcome::Done);
        }
        engine.stop().await;
    }
}

#[tokio::test]
async fn an_embedded_broker_begins_again_where_the_ledger_stands() {
    let config = CONFIG.replace("concurrency = 1\nprefetch = 2", "concurrency = 100");
    let ground = Ground::embedded();
    let mut ticks: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for round in 1..=3 {
        let mut engine = Watched::start(&ground, &config).await;
        if round == 1 {
            for n in 0..50 {
                engine.enroll(&format!("chain-{n}"), "work").await;
            }
        }
        // Every chain runs at least once in each round; how often more is a matter of timing.
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 50 {
            let run = engine.next().await;
            ticks.entry(run.job.key.clone()).or_default().push(run.tick());
            seen.insert(run.job.key.clone());
            run.end(Outcome::Done);
        }
        engine.stop().await;
    }
    for (key, ticks) in ticks {
        let expected: Vec<i64> = (1..=ticks.len() as i64).collect();
        assert_eq!(ticks, expected, "{key}: every tick once, in order, through two restarts");
    }
}

#[tokio::test]
async fn jobs_that_another_process_left_in_the_ledger_are_taken_up_once() {
    use roundelay::job::Envelope;
    let ground = Ground::embedded();
    let mut engine = Watched::start(&ground, CONFIG).await;
    let mut job = Envelope::job("sync", "x", json!(null), "job-1".into());
    job.queue = Some("work".into());
    engine.ledger().keep_job("job-1".into(), job.encode()).await.unwrap();
    let run = engine.next().await;
    assert_eq!(run.job.id, "job-1");
    // The process dies while the job runs: it is still in the ledger, and runs again.
    let ledger = engine.connections.ledger.clone();
    assert_eq!(ledger.kept_jobs(0, 10).await.unwrap().len(), 1);
    run.end(Outcome::Done);
    until("it is forgotten", || async { ledger.kept_jobs(0, 10).await.unwrap().is_empty() }).await;
    engine.nothing_for(Duration::from_secs(2)).await;
    engine.stop().await;
}

/// A configuration whose successors sleep for an hour, so that a test has time to lose them.
fn sleepy() -> String {
    CONFIG.replace("every = \"3s\"", "every = \"1h\"")
}

/// A chain whose first message was never sent.
fn unsent(key: &str, queue: &str, now: Time) -> NewChain {
    let (kind, key, queue) = ("sync".into(), key.into(), queue.into());
    NewChain {
        kind,
        key,
        queue,
        payload: "{}".into(),
        priority: None,
        nominal: now,
        due: now,
        watch_at: now,
        revive: false,
        once: false,
        manual: Default::default(),
        owner: None,
        schedule: None,
        keep_schedule: false,
        only_new: false,
        forms: Vec::new(),
        depth: 0,
    }
}

/// The chain as catch-up sees it, whenever that looks.
async fn looked_after(engine: &Watched, queue: &str) -> Overdue {
    let far = engine.ledger().now() + Duration::from_secs(7_200);
    let kinds = roundelay::ledger::Kinds { all: vec!["sync".into()], recurring: vec!["sync".into()] };
    engine.ledger().overdue(queue.into(), kinds, far, None, 10).await.unwrap().remove(0)
}

#[tokio::test]
async fn a_queue_that_is_gone_keeps_no_other_from_being_looked_after() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let config = format!("{}\n[queues.gone]\n", sleepy());
    let mut engine = Watched::start(&ground, &config).await;
    vhost.delete_queue("gone").await;
    for (key, queue) in [("on a queue that is gone", "gone"), ("x", "work")] {
        engine.ledger().enroll(vec![unsent(key, queue, engine.ledger().now())]).await.unwrap();
    }
    let run = engine.next().await;
    assert_eq!((run.job.key.as_str(), run.tick()), ("x", 1));
    run.end(Outcome::Done);
    engine.stop().await;
}

/// A publish that fails is not held against the chain: it is looked at as soon as any other.
#[tokio::test]
async fn a_message_that_could_not_be_sent_again_is_tried_again_soon() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let mut engine = Watched::start(&ground, &sleepy()).await;
    // There is nothing between a message and its queue.
    vhost.delete_exchange("roundelay.jobs").await;
    engine.ledger().enroll(vec![unsent("x", "work", engine.ledger().now())]).await.unwrap();
    let mut looks = BTreeSet::new();
    let deadline = Instant::now() + SOON;
    while looks.len() < 4 {
        assert!(Instant::now() < deadline, "catch-up looked only {} times", looks.len());
        let chain = looked_after(&engine, "work").await;
        assert!(chain.looks <= 1, "failures are not counted: {chain:?}");
        looks.insert(chain.watch_at);
        tokio::time::sleep(Duration::from_millis(20)).await; // Between two looks.
    }
    engine.broker().apply(&engine.config.topology()).await.unwrap();
    let again = engine.next().await;
    assert_eq!((again.tick(), again.job.attempt), (1, 1));
    again.end(Outcome::Done);
    engine.stop().await;
}

/// More than one look holds, and no message of them anywhere, as after a broker was lost: they are sent at an even
/// rate over the window, however many workers send them, also when all of them look at the same ones and one of
/// them is faster each time.
#[tokio::test(start_paused = true)]
async fn a_wave_of_overdue_chains_is_as_even_as_its_window_is_long() {
    let config = "catch_up = { every = \"5s\", slack = \"1s\", spread = \"48s\" }
[queues.work]
concurrency = 1000
prefetch = 1000
[kinds.sync]
queue = \"work\"
every = \"1d\"
";
    for (workers, together) in [(1, false), (3, false), (3, true)] {
        let mut world = World::new(config, MONDAY);
        if together {
            world.pause_at(Point::OverdueRead, Duration::from_millis(10));
        }
        let chains = 12_000;
        let yesterday = MONDAY - Duration::from_secs(86_400);
        world.chains((0..chains).map(|n| chain("sync", &n.to_string(), "work", yesterday)).collect()).await;
        for _ in 0..workers {
            world.start_beside().await;
        }
        world.until(Duration::from_secs(75)).await;
        let seen = world.seen("sync");
        assert_eq!(seen.len(), chains, "{workers} workers");
        let begin = seen.iter().map(|run| run.from).min().unwrap();
        assert!(begin.since(MONDAY) < Duration::from_secs(2), "the first begins after {:?}", begin.since(MONDAY));
        let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
        for run in &seen {
            *seconds.entry(run.from.since(begin).as_secs()).or_default() += 1;
        }
        // 250 each second; the last one may be a part.
        let last = *seconds.last_key_value().unwrap().0;
        assert!((46..=50).contains(&last), "{workers} workers, {together}: {seconds:?}");
        for (second, starts) in seconds.range(..last - 1) {
            assert!((190..=320).contains(starts), "{workers} workers, {together}, second {second}: {seconds:?}");
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn an_embedded_broker_has_its_ledger_to_itself() {
    let ground = Ground::embedded();
    let first = Watched::start(&ground, CONFIG).await;
    let config = ground.config(CONFIG);
    let second = roundelay::Engine::new(config.clone())
        .handler("sync", |_: roundelay::Job, _: roundelay::Context| async { Outcome::Done });
    let refused = second.run(Default::default()).await.unwrap_err().to_string();
    assert!(refused.contains("another worker runs on this ledger"), "{refused}");
    first.stop().await;
    Watched::start(&ground, CONFIG).await.stop().await;
}
