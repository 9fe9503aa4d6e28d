//! What the tests share: ground of their own, an engine to watch, the real program.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use roundelay::broker::Broker;
use roundelay::clock::Time;
use roundelay::engine::enroll::{Enroller, Entity};
use roundelay::engine::{Connections, StartError};
use roundelay::job::Job;
use roundelay::ledger::{Ledger, NewChain};
use roundelay::telemetry::Telemetry;
use roundelay::{Config, Context, Engine, Outcome};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use crate::support::ground::{Ground, SOON, Schema, Vhost, api};

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

/// A run of the test's handler: the job, what it can ask for, when it came, and how to end it.
pub struct Run {
    pub job: Job,
    pub context: Context,
    pub at: Time,
    end: tokio::sync::oneshot::Sender<Outcome>,
}

impl Run {
    pub fn end(self, outcome: Outcome) {
        let _ = self.end.send(outcome);
    }

    pub fn tick(&self) -> i64 {
        self.job.tick.expect("a chain's tick").tick.get()
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
        Self::begin(ground, text, Engine::without_chores).await
    }

    /// An engine that reports its state, and does what operators order.
    pub async fn attended(ground: &Ground, text: &str) -> Self {
        Self::begin(ground, text, |engine| engine).await
    }

    async fn begin(ground: &Ground, text: &str, change: impl FnOnce(Engine) -> Engine) -> Self {
        let config = ground.config(text);
        let connections = Connections::of_worker(&config).await.unwrap();
        let (seen, runs) = mpsc::unbounded_channel();
        let mut engine = change(roundelay::worker(config.clone()).connections(connections.clone()));
        for kind in config.kinds.keys() {
            let (seen, clock) = (seen.clone(), connections.clock.clone());
            engine = engine.handler(kind, move |job: Job, context: Context| {
                let (end, ended) = tokio::sync::oneshot::channel();
                let _ = seen.send(Run { job, context, at: clock.now(), end });
                async move { ended.await.unwrap_or_else(|_| Outcome::retry("the test dropped the run")) }
            });
        }
        let telemetry = engine.telemetry();
        let stop = CancellationToken::new();
        let ready = engine.ready();
        let mut engine = tokio::spawn(engine.run(stop.clone()));
        tokio::select! {
            _ = ready.wait() => {}
            ended = &mut engine => panic!("the engine ended: {ended:?}"),
        }
        Self { connections, config, telemetry, runs, stop, engine }
    }

    /// The next run; panics when none comes, and tells what is known of what should have come.
    pub async fn next(&mut self) -> Run {
        let Ok(run) = timeout(SOON, self.runs.recv()).await else {
            let now = self.ledger().now();
            let late = self.ledger().late(now, Vec::new(), 5).await;
            let mut depths = Vec::new();
            for queue in self.config.queues.keys() {
                depths.push((queue, self.broker().depth(queue).await));
            }
            let metrics = self.telemetry.render();
            panic!("no run came within {SOON:?}; at {now} late: {late:#?}, queues: {depths:?}, metrics:\n{metrics}");
        };
        run.expect("the engine lives")
    }

    /// The next run, if one comes within this time.
    pub async fn within(&mut self, time: Duration) -> Option<Run> {
        timeout(time, self.runs.recv()).await.ok().flatten()
    }

    /// Asserts that no run comes for `quiet`, which bounds what the test can prove.
    pub async fn nothing_for(&mut self, quiet: Duration) {
        if let Some(run) = self.within(quiet).await {
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

    /// Waits until the engine ends by itself.
    pub async fn ended(self) -> Result<(), StartError> {
        timeout(SOON, self.engine).await.expect("the engine ends").unwrap()
    }

    /// Stops in good order.
    pub async fn stop(self) {
        self.stop.cancel();
        timeout(SOON, self.engine).await.expect("the engine stops").unwrap().unwrap();
    }
}

/// The same configuration, with messages that sleep on rungs, whatever the broker can do.
pub fn on_ladder(text: &str) -> String {
    format!("broker.delays = \"ladder\"\n{text}")
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

/// Runs the program with these environment variables.
pub async fn roundelay_with(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_roundelay"))
        .args(arguments)
        .env_remove("ROUNDELAY_CONFIG")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    // A benchmark takes a minute, and several on a busy machine.
    let output = timeout(SOON * 4, run).await.expect("the command ends").unwrap();
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

/// Starts a worker with further arguments.
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
        priority: None,
        nominal: due,
        due,
        watch_at: due + SLACK,
        revive: false,
        once: false,
        manual: Default::default(),
        owner: None,
        schedule: None,
        keep_schedule: false,
        only_new: false,
        forms: Vec::new(),
        depth: 0,
    }
}

/// The number in an environment variable.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}
