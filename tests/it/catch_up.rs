//! Messages that are lost are sent again; messages that wait their turn are not.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use roundelay::Outcome;
use roundelay::telemetry::Count;
use serde_json::json;

use crate::harness::{Ground, Watched, until};

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
    let mut engine = Watched::start(&ground, CONFIG).await;
    engine.enroll("x", "work").await;
    engine.next().await.end(Outcome::Done);
    let rung = "roundelay.delay.3s";
    until("the successor sleeps", || async { engine.broker().depth(rung).await.unwrap().ready == 1 }).await;
    vhost.call(Method::DELETE, &format!("queues/{}/{rung}/contents", vhost.name), json!(null)).await;
    for tick in 2..=4 {
        let run = engine.next().await;
        assert_eq!((run.tick(), run.job.attempt), (tick, 1), "one rotation, no tick left out");
        run.end(Outcome::Done);
    }
    assert_eq!(engine.telemetry.get(Count::Resent), 1);
    engine.stop().await;
}

#[tokio::test]
async fn what_waits_its_turn_is_not_sent_again() {
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

#[tokio::test]
async fn a_queue_that_is_gone_keeps_no_other_from_being_looked_after() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let config = format!("{CONFIG}\n[queues.gone]\n");
    let mut engine = Watched::start(&ground, &config).await;
    engine.enroll("on a queue that goes", "gone").await;
    engine.next().await.end(Outcome::Done);
    engine.enroll("x", "work").await;
    engine.next().await.end(Outcome::Done);
    let rung = "roundelay.delay.3s";
    until("both successors sleep", || async { engine.broker().depth(rung).await.unwrap().ready == 2 }).await;
    vhost.call(Method::DELETE, &format!("queues/{}/{rung}/contents", vhost.name), json!(null)).await;
    vhost.delete_queue("gone").await;
    let run = engine.next().await;
    assert_eq!((run.job.key.as_str(), run.tick()), ("x", 2));
    run.end(Outcome::Done);
    engine.stop().await;
}
