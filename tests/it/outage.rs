//! The broker goes away and comes back, under a running worker.

use std::time::Duration;

use roundelay::Outcome;
use roundelay::broker::{Destination, Message};
use roundelay::job::Envelope;
use roundelay::telemetry::Count;
use serde_json::json;

use crate::harness::{Ground, Vhost, Watched, until};
use crate::node::Node;

const CONFIG: &str = r#"
catch_up = { every = "1s", slack = "3s", spread = "1s" }
[queues.work]
concurrency = 50
[kinds.sync]
every = "500ms"
queue = "work"
timeout = "60s"
"#;

#[tokio::test]
async fn a_worker_outlives_a_broker_that_stops_and_one_that_is_killed() {
    let mut ground = Ground::embedded();
    let node = Node::start(ground.folder.path(), &[]).await;
    ground.vhost = Some(Vhost::existing("%2f", node.env("AMQP_URL"), node.env("RABBITMQ_MANAGEMENT_URL")));
    let mut engine = Watched::start(&ground, CONFIG).await;
    let chains = 40;
    for n in 0..chains {
        engine.enroll(&format!("chain-{n}"), "work").await;
    }
    let mut last = std::collections::BTreeMap::new();
    for verb in ["stop", "kill"] {
        let mut runs = Vec::new();
        // Every chain is running when the broker goes; the runs end while it is away, so that
        // their finishes are written and their successors are not.
        while runs.len() < chains {
            let run = engine.next().await;
            check(&mut last, &run.job.key, run.tick());
            runs.push(run);
        }
        node.call(verb, &[]).await;
        let failed = engine.telemetry.get(Count::Republished);
        runs.into_iter().for_each(|run| run.end(Outcome::Done));
        until("the worker noticed", || async { engine.telemetry.get(Count::Republished) > failed }).await;
        node.call("start", &[]).await;
        // Each chain ticks on, twice.
        let mut went_on = std::collections::BTreeMap::new();
        while went_on.len() < chains || went_on.values().any(|ticks| *ticks < 2) {
            let run = engine.next().await;
            check(&mut last, &run.job.key, run.tick());
            *went_on.entry(run.job.key.clone()).or_insert(0) += 1;
            run.end(Outcome::Done);
        }
    }
    engine.stop().await;
}

/// Each tick runs once and in order: nothing is lost, nothing doubled.
fn check(last: &mut std::collections::BTreeMap<String, i64>, key: &str, tick: i64) {
    let before = last.insert(key.to_owned(), tick).unwrap_or(0);
    assert_eq!(tick, before + 1, "{key}: tick {tick} after {before}");
}

/// What a worker holds and has not begun comes again on the new connection. It must not run a
/// second time from the old one.
#[tokio::test]
async fn what_waits_in_a_worker_when_its_connection_dies_runs_once() {
    let ground = Ground::rabbit().await;
    let config = "[queues.work]\nconcurrency = 1\nprefetch = 6\n[kinds.sync]\nqueue = \"work\"\n";
    let mut engine = Watched::start(&ground, config).await;
    for n in 0..6 {
        let job = Envelope::job("sync", &n.to_string(), json!(null), format!("job-{n}"));
        engine.broker().publish(Message::new(Destination::Queue("work".into()), &job)).await.unwrap();
    }
    let running = engine.next().await;
    // All six have been delivered, five of them wait behind the one that runs.
    until("all are in the worker", || async { engine.broker().depth("work").await.unwrap().ready == 0 }).await;
    ground.vhost.as_ref().unwrap().kill(&["roundelay consume"]).await;
    until("it consumes again", || async {
        engine.broker().depth("work").await.is_ok_and(|depth| depth.consumers == 1 && depth.ready == 0)
    })
    .await;
    let interrupted = running.job.key.clone();
    running.end(Outcome::Done);
    let mut runs = std::collections::BTreeMap::from([(interrupted.clone(), 1)]);
    for _ in 0..6 {
        let run = engine.next().await;
        *runs.entry(run.job.key.clone()).or_insert(0) += 1;
        run.end(Outcome::Done);
    }
    engine.nothing_for(Duration::from_secs(1)).await;
    assert_eq!(runs.remove(&interrupted), Some(2), "it ran when the connection died: at least once");
    assert!(runs.len() == 5 && runs.values().all(|times| *times == 1), "{runs:?}");
    engine.stop().await;
}
