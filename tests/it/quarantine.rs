//! Messages that cannot be used, workers who set them aside and operators who send them again, and both of whom die
//! meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use roundelay::broker::{Destination, Message};
use roundelay::clock::Entropy;
use roundelay::engine::Connections;
use roundelay::engine::life::{Point, Probe};
use roundelay::engine::replay::{Again, send_again};
use roundelay::job::Envelope;
use roundelay::telemetry::Count;
use roundelay::{Engine, Outcome};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::harness::{Ground, SOON, Watched, until, worker};
use crate::served::{Served, token};

/// One job after the other, in the order of the queue.
const CONFIG: &str = r#"
[api]
name = "tests"
[queues.work]
concurrency = 1
prefetch = 1
[kinds.sync]
queue = "work"
timeout = "20s"
handler.exec.argv = ["/bin/sh", "-c", 'echo "$ROUNDELAY_KEY $ROUNDELAY_ID" >> RUNS']
"#;

#[tokio::test]
async fn a_crash_between_sending_a_message_again_and_removing_it_runs_its_job_once_sqlite() {
    die_between(Ground::rabbit().await).await;
}

#[tokio::test]
async fn a_crash_between_sending_a_message_again_and_removing_it_runs_its_job_once_postgres() {
    die_between(Ground::rabbit_and_postgres().await).await;
}

async fn die_between(ground: Ground) {
    let runs = ground.path("runs");
    let config = ground.config_file(&CONFIG.replace("RUNS", runs.to_str().unwrap()));
    let parsed = roundelay::Config::load(&config).unwrap();
    let connections = Connections::open(&parsed).await.unwrap();
    connections.broker.apply(&parsed.topology()).await.unwrap();
    // Two different jobs without an id of their own that say the same, and one with an id.
    let bodies = [
        json!({ "v": 1, "kind": "sync", "key": "twin" }),
        json!({ "v": 1, "kind": "sync", "key": "twin" }),
        json!({ "v": 1, "kind": "sync", "key": "named", "id": "its-own" }),
    ];
    for body in bodies {
        let to = Destination::Quarantine { from: "work".into(), reason: "there was no [kinds.sync]".into() };
        let message = Message { to, id: Entropy::from_os().token(), body: body.to_string().into(), trace: None };
        connections.broker.publish(message).await.unwrap();
    }
    let quarantine = parsed.topology().names.quarantine();
    let all_there = async |connections: &Connections| {
        let broker = connections.broker.clone();
        until("all lie there", || async { broker.depth(&quarantine).await.unwrap().ready == 3 }).await;
    };
    for _ in 0..2 {
        // An operator sends all of the messages again, and dies before any is taken away.
        let operator = Connections::open(&parsed).await.unwrap();
        all_there(&operator).await;
        let held = operator.broker.peek(&quarantine, 10).await.unwrap();
        assert_eq!(held.len(), 3);
        for shelved in &held {
            assert_eq!(send_again(&parsed, &operator, shelved).await, Again::Sent);
        }
        operator.broker.close().await;
    }
    let served = Served::start(&config).await.with_token(&token(&config, "ann", "operate").await);
    all_there(&connections).await;
    let did: Value = served.post("/api/v1/quarantine/actions", &json!({ "action": "retry" })).await.is(200).json();
    assert_eq!(did["changed"], 3, "{did}");
    let left: Value = served.get("/api/v1/quarantine").await.is(200).json();
    assert_eq!(left["messages"], json!([]));
    let last = json!({ "v": 1, "kind": "sync", "key": "last", "id": "the-last" });
    let message = Message {
        to: Destination::Queue("work".into()),
        id: "last".into(),
        body: last.to_string().into(),
        trace: None,
    };
    connections.broker.publish(message).await.unwrap();
    assert_eq!(connections.broker.depth("work").await.unwrap().ready, 10, "each is there three times");
    let worker = worker(&config);
    let lines = all_before_the_last(&runs).await;
    let keys: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(keys, ["last", "named", "twin", "twin"], "{lines:?}");
    assert_eq!(lines[1], "named its-own");
    assert_ne!(lines[2], lines[3], "they are two jobs");
    drop(worker);
    assert_eq!(served.stop().await, Some(0));
}

/// What has run, in the order of the keys, once the last job has.
async fn all_before_the_last(runs: &Path) -> Vec<String> {
    let lines = || {
        let mut lines: Vec<String> =
            std::fs::read_to_string(runs).unwrap_or_default().lines().map(Into::into).collect();
        lines.sort();
        lines
    };
    until("all before the last have been through", async || lines().iter().any(|line| line.starts_with("last"))).await;
    lines()
}

/// Stands still when a message has been set aside and not been acknowledged.
#[derive(Default)]
struct StandsStill(Arc<Notify>);

impl Probe for StandsStill {
    fn reached(&self, point: Point) -> BoxFuture<'static, ()> {
        if point != Point::SetAside {
            return Box::pin(std::future::ready(()));
        }
        self.0.notify_one();
        Box::pin(std::future::pending())
    }

    fn hold(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        task
    }
}

#[tokio::test]
async fn a_crash_between_quarantining_a_message_and_acknowledging_it_leaves_one_job() {
    let ground = Ground::rabbit().await;
    // There is no [kinds.sync] yet.
    let before = ground.config("[queues.work]\n[kinds.other]\nqueue = \"work\"\nhandler.exec.argv = [\"/bin/true\"]\n");
    let connections = Connections::open(&before).await.unwrap();
    connections.broker.apply(&before.topology()).await.unwrap();
    let publish = async |id: &str, body: Value| {
        let (to, id) = (Destination::Queue("work".into()), id.to_owned());
        connections.broker.publish(Message { to, id, body: body.to_string().into(), trace: None }).await.unwrap();
    };
    let quarantine = before.topology().names.quarantine();
    let lying = async |count: u64| {
        until("they lie there", || async { connections.broker.depth(&quarantine).await.unwrap().ready == count }).await;
    };
    // Jobs are known by their ids; two without any say the same, under the same id of their messages.
    publish("", json!({ "v": 1, "kind": "sync", "key": "named", "id": "order-7" })).await;
    publish("", json!({ "v": 1, "kind": "sync", "key": "own", "id": "its-own" })).await;
    let still = StandsStill::default();
    let set_aside = still.0.clone();
    let engine = Engine::new(before.clone()).without_chores().probe(Arc::new(still));
    let engine = tokio::spawn(engine.run(CancellationToken::new()));
    timeout(SOON, set_aside.notified()).await.expect("one is set aside");
    lying(2).await;
    engine.abort();
    assert!(engine.await.unwrap_err().is_cancelled());
    let stop = CancellationToken::new();
    let next = tokio::spawn(Engine::new(before.clone()).without_chores().run(stop.clone()));
    lying(4).await;
    for _ in 0..2 {
        publish("nightly", json!({ "v": 1, "kind": "sync", "key": "twin" })).await;
    }
    lying(6).await;
    stop.cancel();
    next.await.unwrap().unwrap();

    // Now there is one. An operator sends all messages again, and dies before any is taken away.
    let runs = ground.path("runs");
    let config = ground.config_file(&CONFIG.replace("RUNS", runs.to_str().unwrap()));
    let parsed = roundelay::Config::load(&config).unwrap();
    let operator = Connections::open(&parsed).await.unwrap();
    for shelved in &operator.broker.peek(&quarantine, 10).await.unwrap() {
        assert_eq!(send_again(&parsed, &operator, shelved).await, Again::Sent);
    }
    operator.broker.close().await;
    lying(6).await;

    let served = Served::start(&config).await.with_token(&token(&config, "ann", "operate").await);
    let shown: Value = served.get("/api/v1/quarantine").await.is(200).json();
    assert_eq!((shown["messages"].as_array().unwrap().len(), &shown["ready"]), (4, &json!(6)), "{shown:#}");
    lying(6).await;
    let wish = json!({ "action": "retry", "filter": { "reason": "unknown kind" } });
    let did: Value = served.post("/api/v1/quarantine/actions", &wish).await.is(200).json();
    assert_eq!((&did["matching"], &did["changed"]), (&json!(4), &json!(4)), "{did}");
    lying(0).await;
    assert_eq!(connections.broker.depth("work").await.unwrap().ready, 6 + 4);
    publish("last", json!({ "v": 1, "kind": "sync", "key": "last", "id": "the-last" })).await;
    let worker = worker(&config);
    let lines = all_before_the_last(&runs).await;
    let keys: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(keys, ["last", "named", "own", "twin", "twin"], "{lines:?}");
    drop(worker);
    assert_eq!(served.stop().await, Some(0));
}

#[tokio::test]
async fn a_quarantined_message_of_the_embedded_broker_is_not_found_again_by_the_next_start() {
    let ground = Ground::embedded();
    let text = "[queues.work]\n[kinds.sync]\nqueue = \"work\"\n";
    let config = ground.config(text);
    let ledger = Connections::ledger(&config).await.unwrap();
    let keep = async |kind: &str, id: &str| {
        let job = Envelope { queue: Some("work".into()), ..Envelope::job(kind, "x", Value::Null, id.into()) };
        ledger.keep_job(id.into(), job.encode()).await.unwrap();
    };
    keep("gone", "unusable").await;
    for (nth, quarantined) in [("first", 1), ("second", 0)] {
        // What is kept is taken up in its order.
        keep("sync", nth).await;
        let mut engine = Watched::start(&ground, text).await;
        let run = engine.next().await;
        assert_eq!(run.job.id, nth);
        run.end(Outcome::Done);
        until("the job is forgotten", || async { ledger.census(Duration::ZERO).await.unwrap().kept_jobs == 0 }).await;
        until("what cannot be used is set aside", || async { engine.telemetry.get(Count::Quarantined) == quarantined })
            .await;
        engine.stop().await;
        assert_eq!(ledger.quarantined(None, 9).await.unwrap().len(), 1, "at the {nth} start");
    }
}
