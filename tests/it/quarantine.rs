//! Messages that cannot be used, and operators who send them again and die meanwhile.

use roundelay::broker::{Destination, Message};
use roundelay::clock::Entropy;
use roundelay::engine::Connections;
use roundelay::engine::retried::{Again, send_again};
use serde_json::{Value, json};

use crate::harness::{Ground, until, worker};
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
async fn who_dies_between_sending_a_message_again_and_taking_it_away_has_its_job_run_once() {
    die_between(Ground::rabbit().await).await;
}

#[tokio::test]
async fn likewise_with_a_ledger_in_postgres() {
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
        // Somebody sends them all again, and dies before any is taken away.
        let operator = Connections::open(&parsed).await.unwrap();
        all_there(&operator).await;
        let held = operator.broker.shelved(&quarantine, 10).await.unwrap();
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
    let lines = || {
        let mut lines: Vec<String> =
            std::fs::read_to_string(&runs).unwrap_or_default().lines().map(Into::into).collect();
        lines.sort();
        lines
    };
    until("all before the last have been through", async || lines().iter().any(|line| line.starts_with("last"))).await;
    let lines = lines();
    let keys: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(keys, ["last", "named", "twin", "twin"], "{lines:?}");
    assert_eq!(lines[1], "named its-own");
    assert_ne!(lines[2], lines[3], "they are two jobs");
    drop(worker);
    assert_eq!(served.stop().await, Some(0));
}
