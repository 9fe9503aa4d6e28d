//! What the tests share: a virtual host of their own, an engine to watch, the real program.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use roundelay::broker::Broker;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::broker::topology::Names;
use roundelay::clock::Time;
use roundelay::engine::enroll::{Enroller, Entity};
use roundelay::engine::{Connections, StartError};
use roundelay::job::Job;
use roundelay::ledger::{Ledger, NewChain};
use roundelay::telemetry::Telemetry;
use roundelay::{Config, Engine, Outcome};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Whatever takes longer will not happen.
pub const SOON: Duration = Duration::from_secs(60);

// ---- A virtual host for one test ----

/// A virtual host that is deleted with everything in it when the test ends, also by a panic.
pub struct Vhost {
    pub name: String,
    /// AMQP URL that leads to it.
    pub amqp: String,
    pub management: String,
    /// It outlives the test.
    keep: bool,
}

impl Vhost {
    pub async fn new() -> Self {
        let from = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| {
                panic!("{name} is not set: these tests need a real RabbitMQ; start them with tests/run")
            })
        };
        let (amqp, management) = (from("AMQP_URL"), from("RABBITMQ_MANAGEMENT_URL"));
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("roundelay-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut url = url::Url::parse(&amqp).expect("AMQP_URL is a URL");
        url.set_path(&name);
        let user = if url.username().is_empty() { "guest" } else { url.username() }.to_owned();
        let vhost =
            Self { amqp: url.to_string(), name, management: management.trim_end_matches('/').to_owned(), keep: false };
        vhost.call(Method::PUT, &format!("vhosts/{}", vhost.name), json!({})).await;
        let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
        vhost.call(Method::PUT, &format!("permissions/{}/{user}", vhost.name), all).await;
        vhost
    }

    /// A virtual host that is there already, of a broker that the test ends itself.
    pub fn existing(name: &str, amqp: String, management: String) -> Self {
        Self { name: name.into(), amqp, management, keep: true }
    }

    /// Calls the management API and insists on success.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Value {
        let (status, answer) = api(&self.management, method.clone(), path, &body).await;
        assert!(status.is_success(), "{method} {path}: {status} {answer}");
        answer
    }

    pub async fn delete_queue(&self, queue: &str) {
        self.call(Method::DELETE, &format!("queues/{}/{queue}", self.name), json!(null)).await;
    }

    pub async fn delete_exchange(&self, exchange: &str) {
        self.call(Method::DELETE, &format!("exchanges/{}/{exchange}", self.name), json!(null)).await;
    }

    /// Closes the connections whose name begins with one of `names`, once the management API
    /// knows them (it learns of connections within five seconds).
    pub async fn kill(&self, names: &[&str]) {
        let mut missing: BTreeSet<_> = names.iter().copied().collect();
        let deadline = Instant::now() + SOON;
        while !missing.is_empty() {
            assert!(Instant::now() < deadline, "the management API never showed connections {missing:?}");
            let rows = self.call(Method::GET, &format!("vhosts/{}/connections", self.name), json!(null)).await;
            for row in rows.as_array().unwrap() {
                let shown = row["client_properties"]["connection_name"].as_str().unwrap_or_default();
                let Some(name) = missing.iter().copied().find(|name| shown.starts_with(name)) else { continue };
                let id = row["name"].as_str().unwrap();
                let id = percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC);
                self.call(Method::DELETE, &format!("connections/{id}"), json!(null)).await;
                missing.remove(name);
            }
            sleep(Duration::from_millis(100)).await; // Between two looks.
        }
    }

    pub async fn connect(&self, prefix: &str) -> RabbitBroker {
        RabbitBroker::connect(&self.amqp, Names::new(prefix)).await.expect("RabbitMQ is there")
    }

    /// A connection past everything that is tested.
    pub async fn raw(&self) -> lapin::Channel {
        let connection = lapin::Connection::connect(&self.amqp, lapin::ConnectionProperties::default()).await.unwrap();
        connection.create_channel().await.unwrap()
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let (management, path) = (self.management.clone(), format!("vhosts/{}", self.name));
        let delete = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(api(&management, Method::DELETE, &path, &json!(null)));
        };
        let _ = std::thread::spawn(delete).join();
    }
}

pub async fn api(management: &str, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().timeout(SOON).build().unwrap();
    let request = client.request(method, format!("{management}/api/{path}"));
    let request = if body.is_null() { request } else { request.json(body) };
    let response = request.send().await.expect("RABBITMQ_MANAGEMENT_URL answers");
    let status = response.status();
    (status, response.json().await.unwrap_or_default())
}

// ---- A ledger in PostgreSQL for one test ----

/// A schema that is dropped with everything in it when the test ends, also by a panic.
pub struct Schema {
    pub name: String,
    /// A ledger's URL that leads to it. Its connections bear its name.
    pub url: String,
    database: String,
}

impl Schema {
    pub async fn new() -> Self {
        let database = std::env::var("DATABASE_URL").unwrap_or_else(|_| {
            panic!("DATABASE_URL is not set: these tests need a real PostgreSQL; start them with tests/run")
        });
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("roundelay_test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mark = if database.contains('?') { '&' } else { '?' };
        let url = format!("{database}{mark}application_name={name}&options=-csearch_path%3D{name}");
        let schema = Self { name, url, database };
        postgres(&schema.database).await.batch_execute(&format!("CREATE SCHEMA {}", schema.name)).await.unwrap();
        schema
    }

    /// A connection past the ledger, into its schema.
    pub async fn raw(&self) -> tokio_postgres::Client {
        let client = postgres(&self.database).await;
        client.batch_execute(&format!("SET search_path = {}", self.name)).await.unwrap();
        client
    }

    /// Ends the ledger's connections on the server, and answers how many there were.
    pub async fn kill(&self) -> i64 {
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
        postgres(&self.database).await.query_one(kill, &[&self.name]).await.unwrap().get(0)
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (database, drop) = (self.database.clone(), format!("DROP SCHEMA {} CASCADE", self.name));
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { postgres(&database).await.batch_execute(&drop).await })
        };
        let _ = std::thread::spawn(run).join();
    }
}

async fn postgres(url: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("DATABASE_URL leads to a PostgreSQL");
    tokio::spawn(connection);
    client
}

// ---- Where a test's chains live: a broker and a ledger of their own ----

/// A broker (embedded, or a virtual host on RabbitMQ) and a ledger (a file, or a schema in
/// PostgreSQL), for one test.
pub struct Ground {
    pub vhost: Option<Vhost>,
    pub schema: Option<Schema>,
    pub folder: TempDir,
}

impl Ground {
    pub fn embedded() -> Self {
        Self { vhost: None, schema: None, folder: tempfile::tempdir().unwrap() }
    }

    pub async fn rabbit() -> Self {
        Self { vhost: Some(Vhost::new().await), schema: None, folder: tempfile::tempdir().unwrap() }
    }

    pub async fn rabbit_and_postgres() -> Self {
        Self { schema: Some(Schema::new().await), ..Self::rabbit().await }
    }

    pub fn ledger_url(&self) -> String {
        let file = || format!("sqlite://{}", self.path("ledger.db").display());
        self.schema.as_ref().map_or_else(file, |schema| schema.url.clone())
    }

    pub fn broker_url(&self) -> String {
        self.vhost.as_ref().map_or_else(|| "embedded".into(), |vhost| vhost.amqp.clone())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration on this ground; `text` has the queues and kinds.
    pub fn config_text(&self, text: &str) -> String {
        let management = self
            .vhost
            .as_ref()
            .map_or_else(String::new, |vhost| format!("broker.management = \"{}\"\n", vhost.management));
        format!("broker.url = \"{}\"\n{management}ledger.url = \"{}\"\n{text}", self.broker_url(), self.ledger_url())
    }

    pub fn config(&self, text: &str) -> Config {
        Config::parse(&self.config_text(text), "the test's configuration", []).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes the configuration to a file, for the program to read.
    pub fn config_file(&self, text: &str) -> PathBuf {
        let path = self.path("roundelay.toml");
        std::fs::write(&path, self.config_text(text)).unwrap();
        path
    }
}

/// Runs `run::name` on both brokers, and on RabbitMQ with a ledger in PostgreSQL.
macro_rules! on_all {
    ($name:ident) => {
        mod $name {
            #[tokio::test]
            async fn embedded() {
                super::run::$name(crate::harness::Ground::embedded()).await;
            }

            #[tokio::test]
            async fn rabbitmq() {
                super::run::$name(crate::harness::Ground::rabbit().await).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::run::$name(crate::harness::Ground::rabbit_and_postgres().await).await;
            }
        }
    };
}
pub(crate) use on_all;

// ---- An engine that a test watches ----

/// A run of the test's handler: the job, when it came, and how to end it.
pub struct Run {
    pub job: Job,
    pub at: Time,
    end: tokio::sync::oneshot::Sender<Outcome>,
}

impl Run {
    pub fn end(self, outcome: Outcome) {
        let _ = self.end.send(outcome);
    }

    pub fn tick(&self) -> i64 {
        self.job.tick.expect("a chain's tick").tick
    }
}

/// An engine in this process whose jobs of kind `sync` (and `other`) arrive at the test.
pub struct Watched {
    pub connections: Connections,
    pub config: Config,
    pub telemetry: Arc<Telemetry>,
    runs: mpsc::UnboundedReceiver<Run>,
    stop: CancellationToken,
    engine: JoinHandle<Result<(), StartError>>,
}

impl Watched {
    /// Starts an engine for `text` on `ground`. Every run waits until the test ends it.
    pub async fn start(ground: &Ground, text: &str) -> Self {
        let config = ground.config(text);
        let connections = Connections::open(&config).await.unwrap();
        let (seen, runs) = mpsc::unbounded_channel();
        let mut engine = Engine::new(config.clone()).connections(connections.clone()).without_chores();
        for kind in config.kinds.keys() {
            let (seen, clock) = (seen.clone(), connections.clock.clone());
            engine = engine.handler(kind, move |job: Job| {
                let (end, ended) = tokio::sync::oneshot::channel();
                let _ = seen.send(Run { job, at: clock.now(), end });
                async move { ended.await.unwrap_or_else(|_| Outcome::retry("the test dropped the run")) }
            });
        }
        let telemetry = engine.telemetry();
        let stop = CancellationToken::new();
        // The topology is there before anything is published by the test.
        connections.broker.apply(&config.topology()).await.unwrap();
        let ready = engine.ready();
        let mut engine = tokio::spawn(engine.run(stop.clone()));
        tokio::select! {
            _ = ready.wait() => {}
            ended = &mut engine => panic!("the engine ended: {ended:?}"),
        }
        Self { connections, config, telemetry, runs, stop, engine }
    }

    /// The next run; panics when none comes.
    pub async fn next(&mut self) -> Run {
        timeout(SOON, self.runs.recv()).await.expect("a run came").expect("the engine lives")
    }

    /// Asserts that no run comes for `quiet`, which bounds what the test can prove.
    pub async fn nothing_for(&mut self, quiet: Duration) {
        if let Ok(Some(run)) = timeout(quiet, self.runs.recv()).await {
            panic!("nothing was to run, but {} {} did", run.job.kind, run.job.key);
        }
    }

    /// Begins a chain of kind `sync` on `queue`, due at once.
    pub async fn enroll(&self, key: &str, queue: &str) {
        let mut enroller =
            Enroller::new(&self.config, self.connections.clone(), "sync", Some(Duration::ZERO), true).unwrap();
        let entity = Entity::new(key, queue, json!({ "of": key }).to_string());
        let tally = enroller.enroll(vec![entity]).await.unwrap();
        assert_eq!((tally.created, tally.unsent), (1, 0));
    }

    pub fn ledger(&self) -> &dyn Ledger {
        &*self.connections.ledger
    }

    pub fn broker(&self) -> &dyn Broker {
        &*self.connections.broker
    }

    /// Begins an orderly stop without waiting for its end.
    pub fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Stops in good order; `each` gets the runs that go on, and must end them.
    pub async fn stop_with(mut self, mut each: impl FnMut(Run)) {
        self.stop.cancel();
        let stopped = async {
            loop {
                tokio::select! {
                    biased;
                    Some(run) = self.runs.recv() => each(run),
                    ended = &mut self.engine => return ended.unwrap().unwrap(),
                }
            }
        };
        timeout(SOON, stopped).await.expect("the engine stops");
    }

    /// Stops in good order.
    pub async fn stop(self) {
        self.stop.cancel();
        timeout(SOON, self.engine).await.expect("the engine stops").unwrap().unwrap();
    }
}

/// Waits until `what` holds, looking every few milliseconds.
pub async fn until<F: Future<Output = bool>>(label: &str, mut what: impl FnMut() -> F) {
    let deadline = Instant::now() + SOON;
    while !what().await {
        assert!(Instant::now() < deadline, "it never came to this: {label}");
        sleep(Duration::from_millis(5)).await; // Between two looks.
    }
}

// ---- The real program ----

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Output {
    pub ok: bool,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// The JSON object on the last line.
    pub fn json(&self) -> Value {
        let last = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|_| panic!("no JSON in {:?}; stderr: {}", self.stdout, self.stderr))
    }
}

/// Runs `roundelay` with these arguments to its end.
pub async fn roundelay(arguments: &[&str]) -> Output {
    roundelay_with(&[], arguments).await
}

/// Likewise, with these environment variables.
pub async fn roundelay_with(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_roundelay"))
        .args(arguments)
        .env_remove("ROUNDELAY_CONFIG")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(SOON, run).await.expect("the command ends").unwrap();
    Output {
        ok: output.status.success(),
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Starts `roundelay worker` in the background; killed when dropped.
pub fn worker(config: &Path) -> tokio::process::Child {
    worker_with(config, &[])
}

/// Likewise, with further arguments.
pub fn worker_with(config: &Path, arguments: &[&str]) -> tokio::process::Child {
    tokio::process::Command::new(env!("CARGO_BIN_EXE_roundelay"))
        .args(["worker", "--config"])
        .arg(config)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// The catch-up slack of chains that tests put into a ledger by themselves.
pub const SLACK: Duration = Duration::from_secs(30);

/// Such a chain, of the kind `sync` on the queue `work`.
pub fn chain(key: &str, due: Time) -> NewChain {
    NewChain {
        kind: "sync".into(),
        key: key.into(),
        queue: "work".into(),
        payload: "{}".into(),
        due,
        watch_at: due + SLACK,
        revive: false,
        once: false,
        owner: None,
        schedule: None,
        keep_schedule: false,
        only_new: false,
        depth: 0,
    }
}
