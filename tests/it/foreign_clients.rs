//! Publishers in other languages, as the examples ship them, against a real RabbitMQ.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use roundelay::Outcome;
use serde_json::json;
use tokio::process::Command;

use crate::harness::{Ground, SOON, Watched};

const CONFIG: &str = r#"
[queues.work]
[kinds.sync]
queue = "work"
"#;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start these tests with tests/run"))
}

fn example(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "examples", "foreign", name].iter().collect()
}

fn python() -> Command {
    let mut command = Command::new(variable("ROUNDELAY_TEST_PYTHON"));
    command.arg(example("publish.py"));
    command
}

fn node() -> Command {
    let mut command = Command::new("node");
    command.arg(example("publish.js"));
    let modules = PathBuf::from(variable("ROUNDELAY_TEST_NODE_PATH")).join("node_modules");
    command.env("NODE_PATH", modules);
    command
}

async fn run(mut command: Command, arguments: &[&str]) -> Output {
    let run = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    tokio::time::timeout(SOON, run).await.expect("the publisher ends").expect("the publisher starts")
}

/// The job's id, as the publisher printed it.
async fn publishes(command: Command, arguments: &[&str]) -> String {
    let output = run(command, arguments).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

async fn publish_now_and_later(client: fn() -> Command) {
    let ground = Ground::rabbit().await;
    let url = ground.broker_url();
    let mut engine = Watched::start(&ground, CONFIG).await;

    let id = publishes(client(), &[&url, "roundelay.jobs", "work", "sync", "now", r#"{"ä": [1, null]}"#]).await;
    let job = engine.next().await;
    assert_eq!((job.job.key.as_str(), job.job.id.as_str(), job.job.attempt), ("now", id.as_str(), 1));
    assert_eq!(job.job.payload, json!({ "ä": [1, null] }));
    job.end(Outcome::Done);

    let before = engine.ledger().now();
    publishes(client(), &[&url, "roundelay.delay.1s", "work", "sync", "later"]).await;
    let job = engine.next().await;
    assert_eq!((job.job.key.as_str(), &job.job.payload), ("later", &json!(null)));
    assert!(job.at.since(before).as_millis() >= 1_000, "early, after {:?}", job.at.since(before));
    job.end(Outcome::Done);

    // A queue that does not exist is not an error for the publisher, but nothing is lost.
    publishes(client(), &[&url, "roundelay.jobs", "absent", "sync", "astray"]).await;
    assert_eq!(engine.broker().depth("roundelay.unrouted").await.unwrap().ready, 1);
    // An exchange that does not exist is.
    let astray = run(client(), &[&url, "roundelay.delay.7s", "work", "sync", "astray"]).await;
    let told = String::from_utf8_lossy(&astray.stderr);
    assert!(!astray.status.success() && told.contains("roundelay.delay.7s"), "{told}");
    engine.stop().await;
}

#[tokio::test]
async fn pika_publishes_for_now_and_for_later() {
    publish_now_and_later(python).await;
}

#[tokio::test]
async fn amqplib_publishes_for_now_and_for_later() {
    publish_now_and_later(node).await;
}
