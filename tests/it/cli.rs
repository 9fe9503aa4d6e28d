//! The commands, as people and scripts meet them: the real program against a real RabbitMQ.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Ground, Output, roundelay, until, worker};

const CONFIG: &str = r#"
[queues.sync-npm]
[queues.slow]
[kinds.sync]
every = "1h"
queue = "sync-{{ platform }}"
roster.key = "{{ platform }}/{{ name }}"
handler.exec.argv = ["/bin/true"]
[kinds.report]
queue = "slow"
handler.exec.argv = ["/bin/true"]
"#;

async fn run(config: &Path, arguments: &[&str]) -> Output {
    let mut all = arguments.to_vec();
    all.extend(["--config", config.to_str().unwrap()]);
    roundelay(&all).await
}

impl Output {
    fn succeeded(self) -> Self {
        assert!(self.ok, "it failed: {}", self.stderr);
        self
    }

    /// Insists on failure, and returns what was told.
    fn failed(self) -> String {
        assert!(!self.ok, "it did not fail: {}", self.stdout);
        self.stderr
    }
}

// ---- check ----

#[tokio::test]
async fn check_says_what_a_configuration_amounts_to_and_what_is_wrong_with_it() {
    let ground = Ground::embedded();
    let file = ground.config_file(CONFIG);
    let told = run(&file, &["check"]).await.succeeded().stdout;
    for part in ["is right", "queue   sync-npm", "kind    sync: every 60m", "kind    report: on demand"] {
        assert!(told.contains(part), "{told}");
    }
    let report = run(&file, &["check", "--json"]).await.succeeded().json();
    assert_eq!((&report["ok"], &report["kinds"]), (&json!(true), &json!(["report", "sync"])));

    let file = ground.config_file("[queues.work]\nconcurency = 3\n");
    let told = run(&file, &["check"]).await.failed();
    let line =
        std::fs::read_to_string(&file).unwrap().lines().position(|line| line.contains("concurency")).unwrap() + 1;
    let place = format!("error: {}:{line}: queues.work.concurency: ", file.display());
    assert!(told.starts_with(&place) && told.contains("did you mean `concurrency`?"), "{told}");

    let told = run(&ground.path("absent.toml"), &["worker"]).await.failed();
    assert!(told.contains("absent.toml") && told.contains("--config"), "{told}");
}

#[tokio::test]
async fn every_command_teaches() {
    for command in ["demo", "worker", "enroll", "publish", "status", "check", "topology", "bench"] {
        let help = roundelay(&[command, "--help"]).await.succeeded().stdout;
        assert!(help.lines().count() > 8 && help.contains("Usage: roundelay"), "{help}");
    }
    let told = roundelay(&["enrol"]).await.failed();
    assert!(told.contains("similar") && told.contains("enroll"), "{told}");
}

// ---- enroll and status ----

#[tokio::test]
async fn enrolling_is_idempotent_and_tells_bad_rows() {
    let ground = Ground::rabbit().await;
    let file = ground.config_file(CONFIG);
    let roster = ground.path("packages.csv");
    std::fs::write(&roster, "platform,name\nnpm,ms\nnpm\npypi,six\nnpm,\"@types/node\"\nnpm,ms\n").unwrap();
    let enroll = ["enroll", "--kind", "sync", roster.to_str().unwrap(), "--json"];
    let first = run(&file, &enroll).await.succeeded();
    let report = first.json();
    let counts =
        |report: &Value| ["created", "unchanged", "updated", "rejected", "unsent"].map(|name| report[name].as_u64());
    assert_eq!(counts(&report), [Some(2), Some(1), Some(0), Some(2), Some(0)]);
    assert!(first.stderr.contains("line 3: 1 columns, where the header has 2"), "{}", first.stderr);
    let rejects = std::fs::read_to_string(report["rejects"].as_str().unwrap()).unwrap();
    let rejects: Vec<Value> = rejects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rejects.len(), 2);
    assert_eq!((&rejects[0]["line"], &rejects[0]["row"]), (&json!(3), &json!("npm")));
    assert_eq!(rejects[1]["line"], json!(4));
    assert!(rejects[1]["reason"].as_str().unwrap().contains("sync-pypi"), "{}", rejects[1]);

    // The same again, and one changed.
    std::fs::write(&roster, "platform,name,tier\nnpm,ms,gold\nnpm,left-pad,gold\n").unwrap();
    let report = run(&file, &enroll).await.succeeded().json();
    assert_eq!(counts(&report), [Some(1), Some(0), Some(1), Some(0), Some(0)]);

    let status = run(&file, &["status", "--json"]).await.succeeded().json();
    let queue = &status["ledger"]["queues"][0];
    assert_eq!((&queue["queue"], &queue["sleeping"], &queue["unsent"]), (&json!("sync-npm"), &json!(3), &json!(0)));
    assert_eq!(status["broker"]["sync-npm"], json!({ "ready": 0, "consumers": 0 }));
    let told = run(&file, &["status"]).await.succeeded().stdout;
    assert!(told.lines().any(|line| line.starts_with("sync-npm") && line.contains('3')), "{told}");
}

#[tokio::test]
async fn a_roster_that_cannot_be_used_is_an_error_that_says_why() {
    let ground = Ground::embedded();
    let file = ground.config_file(CONFIG);
    let write = |name: &str, text: &str| {
        std::fs::write(ground.path(name), text).unwrap();
        ground.path(name).display().to_string()
    };
    let table = [
        (vec!["enroll", "--kind", "sink"], write("a.csv", "key\nx\n"), "there is no [kinds.sink]"),
        (vec!["enroll", "--kind", "report"], write("b.csv", "key\nx\n"), "kinds.report has no `every`"),
        (vec!["enroll", "--kind", "sync"], write("c.csv", ""), "the roster is empty"),
        (vec!["enroll", "--kind", "sync"], write("d.xlsx", ""), "ends in .csv or .ndjson"),
        (vec!["enroll", "--kind", "sync"], ground.path("e.csv").display().to_string(), "failed to read the roster"),
    ];
    for (mut arguments, roster, part) in table {
        arguments.push(&roster);
        let told = run(&file, &arguments).await.failed();
        assert!(told.contains(part), "{told}");
    }
}

// ---- publish ----

#[tokio::test]
async fn what_is_published_waits_on_its_queue_or_its_rung() {
    let ground = Ground::rabbit().await;
    let file = ground.config_file(CONFIG);
    run(&file, &["topology", "apply"]).await.succeeded();
    let now = ["publish", "report", "now", "--payload", r#"{"n": [1]}"#, "--json"];
    let report = run(&file, &now).await.succeeded().json();
    assert_eq!((&report["queue"], &report["due"]), (&json!("slow"), &json!(null)));
    run(&file, &["publish", "report", "later", "--delay", "20m", "--queue", "sync-npm"]).await.succeeded();
    let by_payload = ["publish", "sync", "ms", "--payload", r#"{"platform": "npm"}"#, "--delay", "1s", "--json"];
    assert_eq!(run(&file, &by_payload).await.succeeded().json()["queue"], "sync-npm");

    let vhost = ground.vhost.as_ref().unwrap();
    let broker = vhost.connect("roundelay").await;
    let depth = async |queue: &str| roundelay::broker::Broker::depth(&broker, queue).await.unwrap().ready;
    assert_eq!((depth("slow").await, depth("roundelay.delay.20m").await), (1, 1));

    let table = [
        (vec!["publish", "reprot", "x"], "there is no [kinds.reprot]"),
        (vec!["publish", "report", "x", "--payload", "{n: 1}"], "--payload is not JSON"),
        (vec!["publish", "report", "x", "--queue", "fast"], "there is no [queues.fast]"),
        (vec!["publish", "report", "x", "--delay", "soon"], "`soon` is not a duration"),
        (vec!["publish", "report", ""], "`key` is empty"),
        (vec!["publish", "sync", "x"], "say --queue"),
    ];
    for (arguments, part) in table {
        let told = run(&file, &arguments).await.failed();
        assert!(told.contains(part), "{told}");
    }
}

// ---- topology ----

#[tokio::test]
async fn topology_is_applied_checked_and_exported() {
    let ground = Ground::rabbit().await;
    let file = ground.config_file(CONFIG);
    let vhost = ground.vhost.as_ref().unwrap();
    let told = run(&file, &["topology", "check"]).await;
    assert!(!told.ok && told.stdout.contains("roundelay.jobs"), "{}", told.stdout);
    run(&file, &["topology", "apply"]).await.succeeded();
    run(&file, &["topology", "apply"]).await.succeeded();
    assert_eq!(run(&file, &["topology", "check", "--json"]).await.succeeded().json()["ok"], json!(true));

    // A policy as operators write them, that would let every message expire after a minute.
    let policy = json!({ "pattern": ".*", "definition": { "message-ttl": 60_000 }, "apply-to": "queues" });
    vhost.call(Method::PUT, &format!("policies/{}/ttl-for-all", vhost.name), policy).await;
    let check = async || run(&file, &["topology", "check", "--json"]).await;
    until("the policy is in effect", async || !check().await.ok).await;
    let findings = check().await.json();
    let wrong = &findings["findings"][0];
    assert_eq!((&findings["ok"], &wrong["weight"]), (&json!(false), &json!("wrong")));
    let told = run(&file, &["topology", "check"]).await;
    assert!(told.stdout.contains("ttl-for-all") && told.stdout.contains("mend"), "{}", told.stdout);
    assert!(told.stderr.contains("not as they must be"), "{}", told.stderr);
    // And a worker does not begin to lose messages.
    let refused = run(&file, &["worker"]).await.failed();
    assert!(refused.contains("ttl-for-all"), "{refused}");

    let exported = run(&file, &["topology", "export", "--output", "-"]).await.succeeded().stdout;
    let exported: Value = serde_json::from_str(&exported).unwrap();
    let queues = exported["queues"].as_array().unwrap();
    assert!(queues.iter().any(|queue| queue["name"] == "sync-npm" && queue["durable"] == json!(true)));
    assert!(exported["exchanges"].as_array().unwrap().iter().any(|exchange| exchange["name"] == "roundelay.delay.60m"));
}

// ---- worker ----

/// A program that says when it has begun, and ends when it is told to.
fn slow(ground: &Ground) -> String {
    let (begun, end) = (ground.path("begun"), ground.path("end"));
    let script = format!(
        "#!/bin/sh\necho >> '{}'\nwhile [ ! -e '{}' ]; do sleep 0.05; done\necho done >> '{}'\n",
        begun.display(),
        end.display(),
        ground.path("done").display()
    );
    let path = ground.path("slow.sh");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    format!(
        "[queues.slow]\nconcurrency = 1\nprefetch = 4\n[kinds.report]\nqueue = \"slow\"\nhandler.exec.argv = [\"{}\"]\n",
        path.display()
    )
}

fn terminate(worker: &tokio::process::Child) {
    let pid = nix::unistd::Pid::from_raw(worker.id().expect("it runs").try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
}

#[tokio::test]
async fn a_worker_that_is_told_to_stop_finishes_what_runs_and_leaves_nothing_unacked() {
    let ground = Ground::rabbit().await;
    let file = ground.config_file(&slow(&ground));
    let mut worker = worker(&file);
    until("the queue is there", async || run(&file, &["publish", "report", "first"]).await.ok).await;
    for key in ["second", "third"] {
        run(&file, &["publish", "report", key]).await.succeeded();
    }
    until("the first runs", async || ground.path("begun").exists()).await;
    terminate(&worker);
    let vhost = ground.vhost.as_ref().unwrap();
    let broker = vhost.connect("roundelay").await;
    let depth = async || roundelay::broker::Broker::depth(&broker, "slow").await.unwrap();
    // It puts back what it has not begun, and keeps what it has.
    until("two are back", async || depth().await.ready == 2).await;
    assert!(worker.try_wait().unwrap().is_none(), "it waits for what runs");
    std::fs::write(ground.path("end"), "").unwrap();
    assert!(worker.wait().await.unwrap().success());
    assert_eq!(std::fs::read_to_string(ground.path("done")).unwrap(), "done\n");
    assert_eq!(std::fs::read_to_string(ground.path("begun")).unwrap().lines().count(), 1);
    assert_eq!(depth().await.ready, 2, "the first is acknowledged, the others wait");
}

#[tokio::test]
async fn a_worker_does_not_wait_longer_than_its_grace() {
    let ground = Ground::rabbit().await;
    let file = ground.config_file(&format!("worker.grace = \"200ms\"\n{}", slow(&ground)));
    let mut worker = worker(&file);
    until("the queue is there", async || run(&file, &["publish", "report", "first"]).await.ok).await;
    until("it runs", async || ground.path("begun").exists()).await;
    terminate(&worker);
    assert!(worker.wait().await.unwrap().success());
    let vhost = ground.vhost.as_ref().unwrap();
    let broker = vhost.connect("roundelay").await;
    assert_eq!(
        roundelay::broker::Broker::depth(&broker, "slow").await.unwrap().ready,
        1,
        "it waits for another worker"
    );
}
