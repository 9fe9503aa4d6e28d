//! Publishers in other languages: the examples that users copy, against a running engine.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use roundelay::Outcome;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::harness::{Ground, SOON, Vhost, Watched};

const CONFIG: &str = r#"
[queues.work]
[kinds.sync]
queue = "work"
"#;

/// A rung of every ladder.
const RUNG: (&str, Duration) = ("roundelay.delay.1s", Duration::from_secs(1));

#[derive(Clone, Copy, Debug)]
enum Client {
    Python,
    JavaScript,
}

const CLIENTS: [Client; 2] = [Client::Python, Client::JavaScript];

impl Client {
    /// Runs the example; `Err` has what it said when it ended with another exit code than 0.
    async fn publish(self, vhost: &Vhost, exchange: &str, queue: &str, envelope: &Value) -> Result<(), String> {
        let from = |name: &str| {
            PathBuf::from(std::env::var_os(name).unwrap_or_else(|| {
                panic!("{name} is not set: these tests run clients in other languages; start them with tests/run")
            }))
        };
        let examples = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/foreign"));
        let mut command = match self {
            Client::Python => {
                let mut command = Command::new(from("ROUNDELAY_TEST_PYTHON"));
                command.arg(examples.join("publish.py"));
                command
            }
            Client::JavaScript => {
                let mut command = Command::new("node");
                command.arg(examples.join("publish.js"));
                command.env("NODE_PATH", from("ROUNDELAY_TEST_NODE_PATH").join("node_modules"));
                command
            }
        };
        command.args([exchange, queue, &envelope.to_string()]).env("AMQP_URL", &vhost.amqp);
        let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = timeout(SOON, run).await.expect("the client ends").expect("the client starts");
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }
}

#[tokio::test]
async fn what_is_published_to_jobs_runs_at_once() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, CONFIG).await;
    for client in CLIENTS {
        let payload = json!({ "name": "@types/ñode 💡", "n": [1, 2.5, null] });
        let envelope =
            json!({ "v": 1, "kind": "sync", "key": "npm/ñ", "id": format!("{client:?}"), "payload": payload });
        client.publish(ground.vhost.as_ref().unwrap(), "roundelay.jobs", "work", &envelope).await.unwrap();
        let run = engine.next().await;
        assert_eq!((run.job.id.as_str(), run.job.key.as_str()), (&*format!("{client:?}"), "npm/ñ"));
        assert_eq!((run.job.queue.as_str(), run.job.attempt, &run.job.payload), ("work", 1, &payload));
        run.end(Outcome::Done);
    }
    engine.stop().await;
}

#[tokio::test]
async fn what_is_published_to_a_rung_runs_no_sooner() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, CONFIG).await;
    for client in CLIENTS {
        let envelope = json!({ "v": 1, "kind": "sync", "key": "later", "id": format!("{client:?}") });
        let before = engine.ledger().now();
        client.publish(ground.vhost.as_ref().unwrap(), RUNG.0, "work", &envelope).await.unwrap();
        let run = engine.next().await;
        assert_eq!(run.job.id, format!("{client:?}"));
        assert!(run.at.since(before) >= RUNG.1, "{client:?}: after {:?}", run.at.since(before));
        run.end(Outcome::Done);
    }
    engine.stop().await;
}

#[tokio::test]
async fn what_the_broker_does_not_take_fails_loudly() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, CONFIG).await;
    let vhost = ground.vhost.as_ref().unwrap();
    let path = |rest: &str| format!("{rest}/{}", vhost.name);
    let nowhere = json!({ "type": "direct" });
    vhost.call(Method::PUT, &format!("{}/nowhere", path("exchanges")), nowhere).await;
    for client in CLIENTS {
        let full = format!("full-{client:?}");
        let arguments = json!({ "x-max-length": 1, "x-overflow": "reject-publish" });
        vhost.call(Method::PUT, &format!("{}/{full}", path("queues")), json!({ "arguments": arguments })).await;
        vhost
            .call(Method::POST, &format!("{}/e/nowhere/q/{full}", path("bindings")), json!({ "routing_key": full }))
            .await;
        let envelope = json!({ "v": 1, "kind": "sync", "key": "x", "id": format!("{client:?}") });
        let publish = |exchange: &'static str, queue: String| {
            let envelope = envelope.clone();
            async move { client.publish(vhost, exchange, &queue, &envelope).await }
        };
        publish("nowhere", full.clone()).await.unwrap();
        for (exchange, queue, words) in [
            ("roundelay.absent", "work", "roundelay.absent"),
            ("roundelay.jobs", "absent", "absent"),
            (RUNG.0, "absent", "absent"),
            ("nowhere", "work", "returned"),
            ("nowhere", full.as_str(), ""), // Refused; amqplib has only "message nacked" for it.
        ] {
            let error = publish(exchange, queue.into()).await.expect_err(&format!("{client:?} to {exchange}, {queue}"));
            assert!(error.contains(words), "{client:?} to {exchange}, {queue}: {error}");
        }
        // None of these has come through; the next that runs is the last.
        publish("roundelay.jobs", "work".into()).await.unwrap();
        let run = engine.next().await;
        assert_eq!(run.job.id, format!("{client:?}"));
        run.end(Outcome::Done);
    }
    engine.nothing_for(RUNG.1).await;
    engine.stop().await;
}
