//! Payloads over which workers die: they are set aside, and everything else goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as Part, State};
use axum::http::HeaderMap;
use axum::routing::post;
use parking_lot::Mutex;
use roundelay::Config;
use roundelay::engine::Connections;
use roundelay::engine::replay::{Again, keep_again, send_again};
use tokio::process::Child;
use tokio::time::sleep;

use crate::commands::{ok, told};
use crate::harness::{Ground, until, worker};

const INNOCENT: usize = 20;

/// A call as the receiver saw it: key and tick, and whether it was answered.
#[derive(Clone, Debug)]
struct Call {
    key: String,
    tick: i64,
    answered: bool,
}

/// Kills the worker that calls for a culprit, as a handler in the worker's own process would.
#[derive(Clone, Default)]
struct Receiver {
    calls: Arc<Mutex<Vec<Call>>>,
    workers: Arc<Mutex<Vec<Option<Child>>>>,
    mended: Arc<AtomicBool>,
}

impl Receiver {
    fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    fn calls_of(&self, key: &str) -> usize {
        self.calls().iter().filter(|call| call.key == key).count()
    }

    /// The last tick of each key that was answered.
    fn reached(&self) -> BTreeMap<String, i64> {
        let mut reached = BTreeMap::new();
        for call in self.calls().into_iter().filter(|call| call.answered) {
            let tick = reached.entry(call.key).or_insert(0);
            *tick = call.tick.max(*tick);
        }
        reached
    }

    /// Keeps as many workers running as there are configurations.
    fn keep_up(&self, configs: Vec<PathBuf>) {
        self.workers.lock().extend(configs.iter().map(|config| Some(worker(config))));
        let workers = self.workers.clone();
        tokio::spawn(async move {
            loop {
                for (place, config) in workers.lock().iter_mut().zip(&configs) {
                    let Some(child) = place else { return };
                    if child.try_wait().unwrap().is_some() {
                        *place = Some(worker(config));
                    }
                }
                sleep(Duration::from_millis(20)).await; // Between two looks.
            }
        });
    }
}

async fn receive(State(receiver): State<Receiver>, Part(nth): Part<usize>, headers: HeaderMap) -> &'static str {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let key = text("roundelay-key").unwrap();
    let tick = text("roundelay-tick").map_or(0, |tick| tick.parse().unwrap());
    let place = {
        let mut calls = receiver.calls.lock();
        calls.push(Call { key: key.clone(), tick, answered: false });
        calls.len() - 1
    };
    if key.starts_with("culprit") && !receiver.mended.load(Ordering::Relaxed) {
        if let Some(worker) = &mut receiver.workers.lock()[nth] {
            worker.start_kill().unwrap();
        }
        std::future::pending::<()>().await;
    }
    sleep(Duration::from_millis(150)).await; // The work: some is in hand whenever a worker dies.
    receiver.calls.lock()[place].answered = true;
    "done"
}

#[tokio::test]
async fn jobs_that_workers_die_over_are_quarantined_and_others_go_on_embedded() {
    die(Ground::embedded(), 1).await;
}

#[tokio::test]
async fn jobs_that_workers_die_over_are_quarantined_and_others_go_on_rabbitmq() {
    die(Ground::rabbit().await, 2).await;
}

#[tokio::test]
async fn jobs_that_workers_die_over_are_quarantined_and_others_go_on_postgres() {
    die(Ground::rabbit_and_postgres().await, 2).await;
}

async fn die(ground: Ground, workers: usize) {
    let receiver = Receiver::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = Router::new().route("/{nth}", post(receive)).with_state(receiver.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    // By its path each call says which worker it is from.
    let configs: Vec<PathBuf> = (0..workers).map(|nth| config(&ground, port, nth)).collect();
    let config = &configs[0];
    let parsed = Config::load(config).unwrap();

    let roster = ground.path("roster.csv");
    let innocent: Vec<String> = (0..INNOCENT).map(|n| format!("innocent-{n}")).collect();
    std::fs::write(&roster, format!("key\nculprit\n{}\n", innocent.join("\n"))).unwrap();
    ok("enroll", config, &["--kind", "sync", roster.to_str().unwrap()]).await;
    for key in ["culprit-job", "innocent-job"] {
        ok("publish", config, &["job", key]).await;
    }
    // One that has no id.
    if ground.vhost.is_some() {
        publish_without_id(&parsed).await;
    }
    let jobs: BTreeSet<String> = match ground.vhost {
        Some(_) => ["culprit-job", "culprit-without-id"].map(Into::into).into(),
        None => ["culprit-job".to_owned()].into(),
    };
    receiver.keep_up(configs.clone());

    until("the chain is set aside", || async {
        told("show", config, &["sync", "culprit"]).await.to_string().contains("quarantined")
    })
    .await;
    until("the jobs are set aside", || async { set_aside(&parsed).await.len() == jobs.len() }).await;
    assert!(receiver.calls_of("culprit") <= 3, "{:?}", receiver.calls());
    for job in &jobs {
        // Fewer, where the worker died over another of them just before the call.
        assert!((1..=4).contains(&receiver.calls_of(job)), "{job}: {}", receiver.calls_of(job));
    }
    let before = receiver.reached();
    until("everything else goes on", || async {
        let now = receiver.reached();
        innocent.iter().all(|key| now.get(key).is_some_and(|tick| *tick >= before.get(key).unwrap_or(&0) + 3))
    })
    .await;
    until("the job beside them has run", || async { receiver.reached().contains_key("innocent-job") }).await;

    let words = "three workers died while they ran it";
    for (verb, rest) in [("show", &["sync", "culprit"][..]), ("status", &[]), ("failed list", &[])] {
        let told = ok(verb, config, rest).await;
        assert!(told.contains(words), "{verb}: {told}");
    }
    for (body, reason) in set_aside(&parsed).await {
        assert!(reason.contains(words) && jobs.iter().any(|job| body.contains(job.as_str())), "{body}: {reason}");
    }
    let listed = ok("list", config, &["--state", "quarantined"]).await;
    assert!(listed.contains("culprit") && !listed.contains("innocent"), "{listed}");
    let again = receiver.calls_of("culprit");

    // It is mended, and let go on.
    receiver.mended.store(true, Ordering::Relaxed);
    ok("recover", config, &["--kind", "sync", "--key", "culprit"]).await;
    send_all_again(&parsed).await;
    let goes_on = jobs.iter().map(String::as_str).chain(["culprit"]);
    for key in goes_on {
        until("what was set aside runs", || async { receiver.reached().contains_key(key) }).await;
    }
    until("the chain ticks", || async { receiver.calls_of("culprit") >= again + 3 }).await;
    assert!(set_aside(&parsed).await.is_empty());

    // None of the others has left a tick out.
    let calls = receiver.calls();
    for (key, last) in receiver.reached().iter().filter(|(key, _)| innocent.contains(key)) {
        let ran: BTreeSet<i64> = calls.iter().filter(|call| call.key == *key).map(|call| call.tick).collect();
        assert!((1..=*last).all(|tick| ran.contains(&tick)), "{key}: of {last} ticks only {ran:?} ran");
    }
    receiver.workers.lock().iter_mut().for_each(|place| *place = None);
}

fn config(ground: &Ground, port: u16, nth: usize) -> PathBuf {
    let text = ground.config_text(&format!(
        r#"
catch_up = {{ every = "1s", slack = "2s", spread = "1s" }}
[queues.work]
concurrency = 32
[kinds.sync]
handler.http.url = "http://127.0.0.1:{port}/{nth}"
every = "400ms"
timeout = "10s"
queue = "work"
[kinds.job]
handler.http.url = "http://127.0.0.1:{port}/{nth}"
timeout = "10s"
queue = "work"
"#
    ));
    let path = ground.path(&format!("worker-{nth}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}

/// As a program does that knows nothing of ids.
async fn publish_without_id(config: &Config) {
    use roundelay::broker::{Destination, Message};
    let connections = Connections::open(config).await.unwrap();
    connections.broker.apply(&config.topology()).await.unwrap();
    let body = serde_json::json!({ "v": 1, "kind": "job", "key": "culprit-without-id" }).to_string();
    let to = Destination::Queue("work".into());
    connections.broker.publish(Message { to, id: String::new(), body: body.into(), trace: None }).await.unwrap();
    connections.broker.close().await;
}

/// Bodies and reasons of the messages that are set aside. Who dies before it has acknowledged one leaves it there
/// twice.
async fn set_aside(config: &Config) -> BTreeMap<String, String> {
    if is_embedded(config) {
        let ledger = Connections::ledger(config).await.unwrap();
        let kept = ledger.quarantined(None, 9).await.unwrap();
        let kept = kept.into_iter().map(|kept| (String::from_utf8_lossy(&kept.body).into_owned(), kept.reason));
        return kept.collect();
    }
    let connections = Connections::open(config).await.unwrap();
    let shelved = connections.broker.peek(&config.topology().names.quarantine(), 9).await.unwrap();
    let told: BTreeMap<String, String> = shelved
        .iter()
        .map(|shelved| (String::from_utf8_lossy(&shelved.body).into_owned(), shelved.reason.clone()))
        .collect();
    drop(shelved);
    connections.broker.close().await;
    told
}

async fn send_all_again(config: &Config) {
    let connections = Connections::open(config).await.unwrap();
    if is_embedded(config) {
        for message in connections.ledger.quarantined(None, 9).await.unwrap() {
            assert_eq!(keep_again(config, &connections, message).await, Again::Sent);
        }
        return;
    }
    let quarantine = config.topology().names.quarantine();
    for shelved in connections.broker.peek(&quarantine, 9).await.unwrap() {
        assert_eq!(send_again(config, &connections, &shelved).await, Again::Sent);
        shelved.forget().await;
    }
    connections.broker.close().await;
}

fn is_embedded(config: &Config) -> bool {
    matches!(config.broker.url, roundelay::broker::BrokerUrl::Embedded)
}
