//! What a worker says about itself, by the real program: metrics, health, and its log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use reqwest::StatusCode;
use roundelay::engine::StartError;
use roundelay::engine::life::{Point, Probe};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::commands::{ok, refused, told};
use crate::harness::{Ground, SOON, Vhost, roundelay, until};

/// A worker whose log is read, and who is asked over HTTP.
pub struct Observed {
    process: Child,
    /// The lines of its log.
    pub log: Arc<Mutex<Vec<Value>>>,
    address: String,
}

impl Observed {
    pub async fn start(config: &Path) -> Self {
        Self::start_with(config, &[]).await
    }

    pub async fn start_with(config: &Path, arguments: &[&str]) -> Self {
        Self::start_in(config, arguments, &[]).await
    }

    /// Starts the worker with these environment variables.
    pub async fn start_in(config: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut worker = tokio::process::Command::new(env!("CARGO_BIN_EXE_roundelay"))
            .args(["worker", "--listen", "127.0.0.1:0", "--config"])
            .arg(config)
            .args(arguments)
            .env("ROUNDELAY_LOG_FORMAT", "json")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines();
        let log: Arc<Mutex<Vec<Value>>> = Arc::default();
        let theirs = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
                theirs.lock().push(line);
            }
        });
        let address = || {
            let log = log.lock();
            log.iter().find_map(|line| line["address"].as_str().map(str::to_owned))
        };
        until("it listens", || async { address().is_some() }).await;
        let address = address().unwrap();
        Self { process: worker, log, address }
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    /// Where it answers.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub async fn get(&self, path: &str) -> (StatusCode, String) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = client.get(format!("http://{}{path}", self.address)).send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    pub async fn metrics(&self) -> Metrics {
        let (status, text) = self.get("/metrics").await;
        assert_eq!(status, StatusCode::OK);
        Metrics::read(&text)
    }

    /// Ends it in good order; its exit code.
    async fn stop(mut self) -> Option<i32> {
        crate::operator::signal(&self.process, nix::sys::signal::Signal::SIGTERM);
        timeout(SOON, self.process.wait()).await.expect("it stops").unwrap().code()
    }

    /// What `/healthz` or `/readyz` answers: the status, and the parts that are not up, with why.
    async fn health(&self, path: &str) -> (u16, BTreeMap<String, String>) {
        let (status, text) = self.get(path).await;
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["ok"], json!(status == StatusCode::OK), "{report}");
        let down = report["parts"].as_array().unwrap().iter().filter(|part| part["ok"] == json!(false));
        let down = down.map(|part| {
            assert!(part["since"].as_str().unwrap().starts_with("20"), "{part}");
            (part["part"].as_str().unwrap().to_owned(), part["why"].as_str().unwrap().to_owned())
        });
        (status.as_u16(), down.collect())
    }
}

/// A scrape.
pub struct Metrics {
    /// Names as they are declared, each with the labels of its samples.
    pub names: BTreeSet<String>,
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    fn read(text: &str) -> Self {
        let mut names = BTreeSet::new();
        let mut current = "";
        for line in text.lines() {
            if let Some((name, _)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
                current = name;
            } else if !line.starts_with('#') {
                let labels = line.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap());
                let labels = labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name);
                let labels: Vec<&str> = labels.filter(|name| *name != "le").collect();
                names.insert(if labels.is_empty() {
                    current.into()
                } else {
                    format!("{current}{{{}}}", labels.join(","))
                });
            }
        }
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line}"));
            (sample.to_owned(), value.parse().unwrap_or_else(|_| panic!("not a number: {line}")))
        });
        Self { names, samples: samples.collect() }
    }

    pub fn get(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or(&f64::NAN)
    }
}

/// There only where the broker is reached by TLS.
pub const OF_TLS: &str = "roundelay_broker_certificate_expiry_timestamp_seconds{whose}";

/// The names that the page documents, with their labels: the first column of its tables.
fn documented() -> BTreeSet<String> {
    let rows = include_str!("../../docs/metrics.md").lines();
    let names = rows.filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let metric = |name: &&str| ["roundelay_", "process_"].iter().any(|start| name.starts_with(start));
    names.filter(metric).filter(|name| !name.contains(' ')).map(str::to_owned).collect()
}

pub async fn enroll(config: &Path, folder: &Path, kind: &str) {
    let roster = folder.join(format!("{kind}.csv"));
    std::fs::write(&roster, "key\nx\n").unwrap();
    let arguments =
        ["enroll", "--config", config.to_str().unwrap(), "--kind", kind, "--spread", "0s", roster.to_str().unwrap()];
    let output = roundelay(&arguments).await;
    assert!(output.ok, "{output:?}");
}

#[tokio::test]
async fn the_metrics_are_those_that_are_documented_and_the_log_has_a_line_for_each_failure() {
    let ground = Ground::embedded();
    let seen = ground.path("seen");
    // The third tick ends the chain, so that there is a time when nothing more comes.
    let script = format!(
        "cat >> '{0}'; echo >> '{0}'; test $ROUNDELAY_TICK != 3 || echo '{{\"outcome\":\"retire\",\"reason\":\"enough\"}}'",
        seen.display()
    );
    let config = ground.config_file(&format!(
        r#"
[queues.work]
throttle = "pace"
[throttles.pace]
allow = 1000
per = "60s"
burst = 10
[kinds.sync]
queue = "work"
every = "1s"
handler.exec = {{ argv = ["/bin/sh", "-c", '''{script}'''], env = {{ PATH = "/usr/bin:/bin" }} }}
[kinds.bad]
queue = "work"
every = "1h"
retry = {{ attempts = 2, backoff = ["1s"] }}
handler.exec.argv = ["/bin/false"]
"#
    ));
    for kind in ["sync", "bad"] {
        enroll(&config, ground.folder.path(), kind).await;
    }
    let worker = Observed::start(&config).await;
    let over = async || {
        let metrics = worker.metrics().await;
        let ticks = |kind: &str| metrics.get(&format!("roundelay_ticks_total{{kind=\"{kind}\"}}"));
        (ticks("sync"), ticks("bad")) == (3.0, 1.0)
            && metrics.get("roundelay_chains{state=\"retired\",queue=\"\"}") == 1.0
    };
    until("both chains have ticked, and the ledger has been counted since", over).await;
    let metrics = worker.metrics().await;
    let mut expected = documented();
    assert!(expected.remove(OF_TLS), "it is documented, and broker_tls.rs sees that it is there");
    // Those of budgets are there where a kind has `fresh`, once there is a price: telemetry has a test of them.
    expected.retain(|name| !name.starts_with("roundelay_budget_"));
    assert_eq!(metrics.names, expected, "the worker's, and those in docs/metrics.md");
    assert_eq!(std::fs::read_to_string(&seen).unwrap().lines().count(), 3, "what the handler saw");
    let attempts = |kind: &str, verdict: &str, reason: &str| {
        metrics.get(&format!("roundelay_attempts_total{{kind=\"{kind}\",verdict=\"{verdict}\",reason=\"{reason}\"}}"))
    };
    assert_eq!(attempts("sync", "done", "none"), 2.0);
    assert_eq!(attempts("sync", "retired", "handler"), 1.0);
    assert_eq!(attempts("bad", "retried", "exit"), 1.0);
    assert_eq!(attempts("bad", "failed", "exit"), 1.0);
    for (sample, value) in [
        ("roundelay_starts_total{queue=\"work\"}", 5.0),
        ("roundelay_running{queue=\"work\"}", 0.0),
        ("roundelay_lateness_seconds_count{queue=\"work\"}", 5.0),
        ("roundelay_handler_duration_seconds_count{kind=\"sync\"}", 3.0),
        ("roundelay_throttle_wait_seconds_count{throttle=\"pace\"}", 5.0),
        ("roundelay_throttle_waiting{throttle=\"pace\"}", 0.0),
        ("roundelay_throttle_slots_total{throttle=\"pace\"}", 5.0),
        ("roundelay_throttle_lost_slots_total{throttle=\"pace\",reason=\"late\"}", 0.0),
        ("roundelay_throttle_allowed{throttle=\"pace\",per=\"60s\"}", 1_000.0),
        ("roundelay_throttle_held_seconds{throttle=\"pace\"}", 0.0),
        ("roundelay_throttle_breaker{throttle=\"pace\"}", 0.0),
        ("roundelay_throttle_budget_apart_seconds{throttle=\"pace\"}", 0.0),
        ("roundelay_throttle_ordered{throttle=\"pace\"}", 0.0),
        ("roundelay_chains{state=\"sleeping\",queue=\"work\"}", 1.0),
        ("roundelay_chains_overdue{queue=\"work\"}", 0.0),
        ("roundelay_workers{state=\"working\"}", 1.0),
        ("roundelay_workers{state=\"silent\"}", 0.0),
        ("roundelay_queue_workers{queue=\"work\"}", 1.0),
        ("roundelay_queue_places{queue=\"work\"}", 16.0),
        ("roundelay_queue_paused_seconds{queue=\"work\"}", 0.0),
        ("roundelay_queue_info{queue=\"work\",throttle=\"pace\"}", 1.0),
        ("roundelay_ready", 1.0),
        ("roundelay_ledger_failures", 2.0),
        ("roundelay_ledger_up", 1.0),
        ("roundelay_broker_up", 1.0),
        ("roundelay_quarantined_messages_total", 0.0),
    ] {
        assert_eq!(metrics.get(sample), value, "{sample}");
    }
    // Two of a second each, one retry of a second, and the hour; catch-up sent the two first ones.
    // What took more are the engine's own two chains, whose five minutes have no rung of their own; catch-up may have
    // sent their messages again on a busy machine.
    let resent = metrics.get("roundelay_resent_messages_total");
    let (in_one, all) =
        (metrics.get("roundelay_delay_hops_bucket{le=\"1.0\"}"), metrics.get("roundelay_delay_hops_count"));
    assert!(in_one >= 6.0 && all - in_one <= 2.0 + resent, "{in_one} of {all}, {resent} sent again");
    assert_eq!((worker.health("/healthz").await, worker.health("/readyz").await), ((200, [].into()), (200, [].into())));
    assert_eq!(worker.get("/").await.0, StatusCode::NOT_FOUND);

    let log = worker.log.lock().clone();
    let of = |kind: &str| log.iter().filter(|line| line["kind"] == json!(kind)).cloned().collect::<Vec<_>>();
    let failures = of("bad");
    assert_eq!(failures.len(), 2, "one line for each failed attempt: {failures:?}");
    let ended = of("sync");
    assert_eq!((ended.len(), &ended[0]["message"], &ended[0]["tick"]), (1, &json!("retired"), &json!(3)));
    for (line, (attempt, word)) in failures.iter().zip([(1, "retried"), (2, "failed")]) {
        for (field, value) in [
            ("level", json!("INFO")),
            ("message", json!(word)),
            ("key", json!("x")),
            ("queue", json!("work")),
            ("tick", json!(1)),
            ("attempt", json!(attempt)),
            ("class", json!("exit")),
            ("reason", json!("exit 1")),
        ] {
            assert_eq!(line[field], value, "{field} of {line}");
        }
        assert!(line["epoch"].as_i64().unwrap() > 0 && line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    assert!(failures[0]["fence"].as_i64().unwrap() < failures[1]["fence"].as_i64().unwrap());
}

#[tokio::test]
async fn a_chain_that_no_worker_runs_shows_within_a_minute() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        r#"
catch_up.slack = "1s"
[queues.work]
[queues.side]
[kinds.sync]
queue = "side"
every = "1h"
handler.exec.argv = ["/bin/true"]
"#,
    );
    let worker = Observed::start_with(&config, &["--queues", "work"]).await;
    enroll(&config, ground.folder.path(), "sync").await;
    // `until` waits for a minute at most.
    let overdue = async || worker.metrics().await.get("roundelay_chains_overdue{queue=\"side\"}") == 1.0;
    until("it shows", overdue).await;
    assert!(worker.metrics().await.get("roundelay_oldest_overdue_seconds") >= 1.0);
    let output = roundelay(&["status", "--config", config.to_str().unwrap(), "--json"]).await;
    let why = output.json()["stuck"][0]["why"].clone();
    assert!(why.as_str().unwrap().starts_with("its message is not known to have been sent"), "{why}");
}

/// So do those whose due times mean nothing, to a worker that does not look after them.
#[tokio::test]
async fn a_chain_that_sleeps_for_longer_than_its_schedule_can_explain_shows_within_a_minute() {
    for ground in [Ground::rabbit().await, Ground::rabbit_and_postgres().await] {
        let config = ground.config_file(
            r#"
[queues.work]
[queues.side]
[kinds.sync]
queue = "side"
every = "3s"
handler.exec.argv = ["/bin/true"]
"#,
        );
        ok("topology apply", &config, &[]).await;
        let worker = Observed::start_with(&config, &["--queues", "side"]).await;
        enroll(&config, ground.folder.path(), "sync").await;
        let runs = async || worker.metrics().await.get("roundelay_handler_duration_seconds_count{kind=\"sync\"}");
        until("it has run", || async { runs().await >= 1.0 }).await;
        // In good order: what a tick that has begun is put off by may be its handler's wish.
        assert_eq!(worker.stop().await, Some(0));
        let other = Observed::start_with(&config, &["--queues", "work"]).await;
        crate::cli::put_off(&ground, 86_400_000).await;
        let shows = async |name: &str| other.metrics().await.get(name);
        let overdue = || async { shows("roundelay_chains_overdue{queue=\"side\"}").await == 1.0 };
        until("it shows", overdue).await;
        assert_eq!(shows("roundelay_chains{state=\"sleeping\",queue=\"side\"}").await, 0.0);
        assert!(shows("roundelay_oldest_overdue_seconds").await < 600.0, "not by its due time");
    }
}

#[tokio::test]
async fn a_queue_that_is_paused_shows_and_so_does_a_worker_that_was_killed() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file("[queues.work]\nconcurrency = 3\n");
    let mut killed = Observed::start(&config).await;
    let worker = Observed::start(&config).await;
    let queue = async |name: &str| worker.metrics().await.get(&format!("roundelay_queue_{name}{{queue=\"work\"}}"));
    until("both take from it", || async { (queue("workers").await, queue("places").await) == (2.0, 6.0) }).await;
    assert_eq!(queue("paused_seconds").await, 0.0);

    let ordered = ["queue", "pause", "work", "--why", "a test", "--config", config.to_str().unwrap()];
    assert!(roundelay(&ordered).await.ok);
    until("it is paused", || async { queue("workers").await == 0.0 && queue("paused_seconds").await > 0.0 }).await;
    assert!(roundelay(&["queue", "resume", "work", "--config", config.to_str().unwrap()]).await.ok);
    until("it is open again", || async { queue("workers").await == 2.0 && queue("paused_seconds").await == 0.0 }).await;

    killed.process.kill().await.unwrap();
    let silent = async || worker.metrics().await.get("roundelay_workers{state=\"silent\"}") == 1.0;
    until("the other one is missed", silent).await;
    assert_eq!((queue("workers").await, queue("places").await), (1.0, 3.0));
}

/// A way to the broker that can be closed.
struct Door {
    open: watch::Sender<bool>,
    amqp: String,
}

impl Door {
    async fn to(vhost: &Vhost) -> Self {
        let mut url = url::Url::parse(&vhost.amqp).unwrap();
        let broker = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5_672));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((mut inside, _)) = listener.accept().await {
                let (mut is_open, broker) = (is_open.clone(), broker.clone());
                tokio::spawn(async move {
                    let pass = async {
                        let mut outside = TcpStream::connect(broker).await.unwrap();
                        let _ = copy_bidirectional(&mut inside, &mut outside).await;
                    };
                    tokio::select! {
                        biased;
                        _ = is_open.wait_for(|open| !open) => {}
                        () = pass => {}
                    }
                });
            }
        });
        Self { open, amqp: url.to_string() }
    }
}

#[tokio::test]
async fn health_tells_what_is_away_and_answers_all_the_while() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let door = Door::to(vhost).await;
    let text = "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\nhandler.exec.argv = [\"/bin/true\"]\n";
    let text = ground.config_text(text).replace(&vhost.amqp, &door.amqp);
    let config = ground.path("roundelay.toml");
    std::fs::write(&config, text).unwrap();
    let worker = Observed::start(&config).await;
    let ready = async || worker.health("/readyz").await;
    until("it is ready", || async { ready().await.0 == 200 }).await;
    // The same by the command, which finds the address in the configuration.
    let listen = format!("0.0.0.0:{}", worker.address.rsplit_once(':').unwrap().1);
    let text = std::fs::read_to_string(&config).unwrap();
    let nowhere = ground.path("nowhere.toml");
    std::fs::write(&nowhere, &text).unwrap();
    std::fs::write(&config, format!("worker.listen = \"{listen}\"\n{text}")).unwrap();
    assert!(ok("health", &config, &[]).await.ends_with("/healthz answers 200 OK\n"));
    assert_eq!(told("health", &config, &["--ready"]).await["ok"], json!(true));
    refused("health", &nowhere, &[], &["nowhere.toml: worker.listen is not set"]).await;

    // Another connection holds the ledger's write lock, and the broker goes away.
    let thief = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
    thief.execute_batch("BEGIN IMMEDIATE").unwrap();
    door.open.send_replace(false);
    until("both are missed", || async { ready().await.1.keys().eq(["broker", "ledger"]) }).await;
    let (status, down) = ready().await;
    assert_eq!(status, 503);
    assert!(down["broker"].starts_with("the broker is away: "), "{down:?}");
    assert!(down["ledger"].contains("locked"), "{down:?}");
    assert_eq!(worker.health("/healthz").await.0, 200, "it lives all the same");
    ok("health", &config, &[]).await;
    let words = ["/readyz answers 503 Service Unavailable; broker: the broker is away: ", "; ledger: "];
    refused("health", &config, &["--ready"], &words).await;
    let metrics = worker.metrics().await;
    let up = ["roundelay_broker_up", "roundelay_ledger_up", "roundelay_ready"];
    assert_eq!(up.map(|name| metrics.get(name)), [0.0; 3]);

    door.open.send_replace(true);
    thief.execute_batch("ROLLBACK").unwrap();
    until("both are back", || async { ready().await.0 == 200 }).await;
    let metrics = worker.metrics().await;
    assert_eq!(up.map(|name| metrics.get(name)), [1.0; 3]);
    let base = format!("http://{}", worker.address);
    refused("health", &nowhere, &[&format!("{base}/")], &["answers 404", "is it a worker's address?"]).await;
    drop(worker);
    until("it is gone", || async { TcpStream::connect(base.trim_start_matches("http://")).await.is_err() }).await;
    refused("health", &config, &[], &["/healthz does not answer"]).await;
}

#[tokio::test]
async fn an_address_that_cannot_be_had_is_told_at_the_start() {
    let ground = Ground::embedded();
    let config = ground.config_file("[queues.work]\n");
    let config = config.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = roundelay(&["worker", "--config", config, "--listen", &address]).await;
    assert_eq!(output.code, Some(1));
    let told = format!("error: cannot listen on {address} (worker.listen, or --listen): ");
    assert!(output.stderr.contains(&told), "{}", output.stderr);
    let output = roundelay(&["worker", "--config", config, "--listen", ":9464"]).await;
    assert_eq!(output.code, Some(2));
    assert!(output.stderr.contains("`:9464` is not an address and a port; write"), "{}", output.stderr);
}

/// Lets one of an engine's tasks end as soon as it begins, or panic. Counts them all.
struct Ends {
    nth: usize,
    panics: bool,
    begun: Arc<AtomicUsize>,
}

impl Probe for Ends {
    fn reached(&self, _: Point) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn hold(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        if self.begun.fetch_add(1, Ordering::Relaxed) != self.nth {
            return task;
        }
        let panics = self.panics;
        Box::pin(async move { assert!(!panics, "a bug") })
    }
}

/// The tasks that last begin before any other: the three that watch, the API, deliveries of two queues (one is for the
/// engine's own chores) and between hops, catch-up, heartbeats, progress, the throttles' clock, and the orders.
const LASTING: usize = 12;

#[tokio::test]
async fn the_worker_ends_with_any_of_its_lasting_tasks_and_names_it() {
    let text = r#"
worker.listen = "127.0.0.1:0"
api.listen = "127.0.0.1:0"
[throttles.ios]
allow = 5
per = "1s"
[queues.work]
throttle = "ios"
[kinds.sync]
queue = "work"
handler.exec.argv = ["/bin/true"]
"#;
    let ground = Ground::embedded();
    let config = ground.config(text);
    let engine = |nth, panics| {
        let begun = Arc::<AtomicUsize>::default();
        let probe = Ends { nth, panics, begun: begun.clone() };
        let engine = roundelay::worker(config.clone()).probe(Arc::new(probe));
        (engine, begun)
    };
    let (all_well, begun) = engine(usize::MAX, false);
    let (ready, stop) = (all_well.ready(), CancellationToken::new());
    let running = tokio::spawn(all_well.run(stop.clone()));
    timeout(SOON, ready.wait()).await.expect("it works");
    stop.cancel();
    running.await.unwrap().unwrap();
    assert!(begun.load(Ordering::Relaxed) >= LASTING);
    for (nth, panics) in (0..LASTING).flat_map(|nth| [(nth, false), (nth, true)]) {
        let (engine, _) = engine(nth, panics);
        let ended = timeout(SOON, engine.run(CancellationToken::new())).await;
        let ended = ended.unwrap_or_else(|_| panic!("nobody notices that task {nth} has ended"));
        let Err(StartError::Broken(why)) = ended else { panic!("task {nth}: {ended:?}") };
        assert_eq!(why.contains("a bug"), panics, "{why}");
        assert!(!why.starts_with("a task"), "{why}");
    }
}
