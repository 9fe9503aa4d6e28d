//! Runs a whole reference system for half a minute: its own configuration, rosters and handler below `examples/`, and
//! an upstream that plays what the system calls, keeps a record, and judges by that.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::serve::ListenerExt;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use roundelay_broker::BrokerUrl;
use roundelay_broker::embedded::EmbeddedBroker;
use roundelay_config::Config;
use roundelay_engine::roster::{Wishes, from_source};
use roundelay_engine::telemetry::{Count, QueueReport, Telemetry};
use roundelay_engine::{Connections, StartError, delays};
use roundelay_ledger::{Census, ChainState, Ledger, ListFilter, Listed};
use roundelay_model::clock::Time;
use roundelay_model::fleet::Lateness;
use roundelay_model::topology::Names;
use serde::Serialize;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use toml::Table;

use super::ground::{Dashboard, Ground};
use super::second::{Killed, Second};

/// The prefix of the demo's queues on a broker that others may use.
pub const PREFIX: &str = "demo-";
/// The address of the handler in the examples.
const HANDLER: &str = "http://127.0.0.1:8000";
/// A chain that is due for longer than this is dead, if it does not have to wait for a throttle.
const SLACK: Duration = Duration::from_secs(5);
/// How long a handler may take until it listens: an interpreter on a busy machine.
const BEGINS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// How many chains are read at a time.
const PAGE: u32 = 1_000;

/// The language of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `python3 handler.py PORT`.
    Python,
    /// `php -S 127.0.0.1:PORT handler.php`.
    Php,
    /// `node handler.js PORT`.
    Node,
}

/// The settings of a demo.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`; with nothing, a file that is removed at the end.
    pub ledger: Option<String>,
    /// How long the demo runs.
    pub length: Duration,
    /// Whether the demo serves the dashboard.
    pub dashboard: bool,
    /// `ROUNDELAY__…` variables, which override the system's configuration with its times compressed.
    pub environment: Vec<(String, String)>,
}

/// A reference system.
#[async_trait]
pub trait System: Send + Sync {
    /// The name of the system, which is that of its folder.
    fn name(&self) -> &'static str;
    /// The files of the system's folder, by name.
    fn files(&self) -> &'static [(&'static str, &'static str)];
    /// The language of the system's handler.
    fn language(&self) -> Language;
    /// A sentence about how its time is compressed.
    fn told(&self) -> String;
    /// A chain is dead when it is due for longer than this and no worker runs it.
    fn patience(&self) -> Duration {
        SLACK
    }
    /// Only the upstream will run, perhaps for days: times stay as they are, and the record keeps the newest calls.
    /// Called before the other methods.
    fn alone(&mut self) {}
    /// The system's configuration with its times compressed.
    ///
    /// # Errors
    /// When the text cannot be read.
    fn configuration(&self, text: &str) -> Result<String, String>;
    /// A roster with its times compressed.
    ///
    /// # Errors
    /// When the text cannot be read.
    fn roster(&self, text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }
    /// Reads the configuration with which the demo runs from `now` on, and may change it.
    ///
    /// # Errors
    /// When it is not the configuration of this system.
    fn prepare(&mut self, config: &mut Config, connections: &Connections) -> Result<(), String>;
    /// Whether the demo has a second worker, which [`Stage::kill`] kills.
    fn has_second(&self) -> bool {
        false
    }
    /// The routes of the upstream.
    fn upstream(&self) -> Router;
    /// Acts during the demo, as its users and operators do; returns when the demo is over.
    ///
    /// # Errors
    /// When an act failed.
    async fn plays(&self, stage: &Stage) -> Result<(), StartError>;
    /// The judgement of the upstream's record.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError>;
}

/// How much of a demo was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The whole of the planned length.
    Whole,
    /// The time until the user ended the demo.
    Ended,
    /// The upstream without a worker: nothing is known of the worker that calls it.
    Alone,
}

/// A running demo.
pub struct Stage {
    /// The configuration with which the demo runs.
    pub config: Config,
    /// Shared with the engine.
    pub connections: Connections,
    /// When all chains had begun.
    pub from: Time,
    /// When the demo is over: earlier than planned if the user has ended it.
    pub to: Time,
    second: Mutex<Option<Second>>,
    /// The work of the second worker until it was killed.
    killed: Mutex<Option<Killed>>,
    shutdown: CancellationToken,
    alone: bool,
}

impl Stage {
    /// Whether only the upstream runs here, so that its record is the only source.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Kills the second worker during a run, and answers when that was; `None` if there is no second worker.
    ///
    /// # Errors
    /// When the second worker runs nothing.
    pub async fn kill(&self) -> Result<Option<Time>, StartError> {
        let Some(second) = self.second.lock().await.take() else { return Ok(None) };
        let killed = second.kill(&self.connections).await?;
        *self.killed.lock().await = Some(killed);
        Ok(Some(killed.at))
    }

    /// Waits until this share of the time has passed, or the user ends the demo.
    pub async fn at(&self, share: f64) {
        let at = self.from + self.to.since(self.from).mul_f64(share);
        self.until(at).await;
    }

    /// Waits until this time, or until the user ends the demo.
    pub async fn until(&self, at: Time) {
        let wait = at.since(self.connections.clock.now());
        tokio::select! { () = sleep(wait) => {}, () = self.shutdown.cancelled() => {} }
    }

    /// Whether the user has ended the demo.
    pub fn is_ended(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// How much of the demo was shown.
    pub fn shown(&self) -> Shown {
        match (self.is_alone(), self.is_ended()) {
            (true, _) => Shown::Alone,
            (false, true) => Shown::Ended,
            (false, false) => Shown::Whole,
        }
    }

    /// All chains of the ledger.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn chains(&self) -> Result<Vec<Listed>, StartError> {
        let (mut chains, mut after) = (Vec::new(), None);
        loop {
            let page = self.connections.ledger.list(ListFilter::default(), after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(chains) };
            after = Some((last.hint.kind.clone(), last.hint.key.clone()));
            chains.extend(page.into_iter().filter(|listed| !listed.hint.kind.starts_with("roundelay.")));
        }
    }
}

/// The upstream's judgement.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Ticks that were called twice.
    pub forked: u64,
    /// The rules that were broken, in sentences.
    pub violations: Vec<String>,
    /// More figures of the upstream.
    pub figures: Value,
}

/// The result of a demo.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the system.
    pub system: &'static str,
    /// How many chains had begun at the end.
    pub chains: u64,
    /// Ticks and jobs that ended.
    pub ticks: u64,
    /// How late attempts started.
    pub late_ms: Lateness,
    /// Ticks for which the upstream was called twice.
    pub forked: u64,
    /// Chains that should run and do not.
    pub dead: u64,
    /// The rules of the system that were broken, in sentences.
    pub violations: Vec<String>,
    /// Figures of the system.
    pub figures: Value,
}

/// An event of a running demo.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The address of the dashboard.
    Dashboard(SocketAddr),
    /// The state of the demo, every second.
    Moment(&'a Moment),
}

/// The state of a running demo.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The time since all chains had begun.
    pub elapsed: Duration,
    /// By the ledger: the number of chains by queue and state.
    pub census: Census,
    /// By the engine: its queues.
    pub queues: BTreeMap<String, QueueReport>,
    /// Ticks and jobs that failed for good.
    pub failed: u64,
    /// How late attempts started.
    pub late: Lateness,
    /// Calls that the upstream has refused, by the name of their queue, if it counts them.
    pub turned_away: Option<BTreeMap<String, u64>>,
}

impl Moment {
    /// From the ledger and the engine.
    pub(super) async fn now(
        elapsed: Duration,
        ledger: &dyn Ledger,
        telemetry: &Telemetry,
        turned_away: Option<BTreeMap<String, u64>>,
    ) -> Result<Self, StartError> {
        let mut census = ledger.census(SLACK).await?;
        // Without the engine's own chains.
        census.queues.retain(|queue| queue.queue.starts_with(PREFIX));
        Ok(Self {
            elapsed,
            census,
            queues: telemetry.by_queue(),
            failed: telemetry.get(Count::Failed),
            late: telemetry.lateness(),
            turned_away,
        })
    }
}

/// Runs a system, and reports its events.
///
/// # Errors
/// When something cannot be started.
pub async fn run(
    system: impl System,
    settings: Settings,
    shutdown: CancellationToken,
    told: impl FnMut(Event<'_>),
) -> Result<Report, StartError> {
    let ground = Ground::new(system.name(), settings.ledger.as_deref()).await?;
    let mut config = None;
    let report = acts(system, &settings, &ground, &mut config, shutdown, told).await;
    ground.clear(config.as_ref()).await;
    report
}

/// Runs a system in an existing folder and ledger. `used` is set to the configuration as soon as it may have left
/// something behind.
async fn acts(
    mut system: impl System,
    settings: &Settings,
    ground: &Ground,
    used: &mut Option<Config>,
    shutdown: CancellationToken,
    mut told: impl FnMut(Event<'_>),
) -> Result<Report, StartError> {
    let folder = ground.folder();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(setup)?;
    let upstream = format!("http://{}", listener.local_addr().map_err(setup)?);
    write_files(&system, folder).map_err(setup)?;
    let handler = Handler::start(folder, system.language(), &upstream).await?;
    let text = configuration(&system, &settings.broker, ground, &handler.url).map_err(setup)?;
    fs::write(folder.join("roundelay.toml"), &text).map_err(setup)?;
    let environment = settings.environment.iter().cloned();
    let mut config = Config::parse(&text, "the demo's configuration", environment).map_err(setup)?;
    let mut connections = Connections::open(&config).await?;
    // Each of two workers has a connection of its own to the embedded broker.
    let shared = (system.has_second() && matches!(config.broker.url, BrokerUrl::Embedded))
        .then(|| EmbeddedBroker::new(Names::new(&config.broker.prefix)));
    if let Some(shared) = &shared {
        connections.broker = Arc::new(shared.connect());
    }
    let census = connections.ledger.census(SLACK).await?;
    if census.queues.iter().any(|queue| queue.sleeping + queue.due + queue.running > 0) {
        return Err(setup("the ledger has chains already; give the demo one of its own, which is empty"));
    }
    system.prepare(&mut config, &connections).map_err(setup)?;
    let (stop_upstream, stop_engine) = (CancellationToken::new(), CancellationToken::new());
    let listener = listener.tap_io(|connection| {
        // Answers are small: without this option the kernel holds them back for more data, and they are only late.
        let _ = connection.set_nodelay(true);
    });
    let serve =
        axum::serve(listener, system.upstream()).with_graceful_shutdown(stop_upstream.clone().cancelled_owned());
    let upstream = tokio::spawn(serve.into_future());

    // Messages of an earlier demo belong to a ledger that does not exist any more.
    *used = Some(config.clone());
    connections.broker.remove(&config.topology()).await?;
    delays::declare(&config, &connections).await?;
    let engine = roundelay_admin::worker(config.clone()).connections(connections.clone());
    let (telemetry, ready) = (engine.telemetry(), engine.ready());
    let mut engine = tokio::spawn(engine.run(stop_engine.clone()));
    tokio::select! {
        () = ready.wait() => {}
        ended = &mut engine => ended.map_err(setup)??,
    }
    for (kind, _) in config.kinds.iter().filter(|(_, settings)| settings.roster.is_some()) {
        let mut bad = Vec::new();
        let wishes = Wishes { own_process: true, ..Wishes::default() };
        from_source(&config, connections.clone(), kind, wishes, |row| bad.push(row.reason)).await.map_err(setup)?;
        if let Some(reason) = bad.first() {
            return Err(setup(format!("a row of the roster of {kind} cannot be used: {reason}")));
        }
    }
    let second = match (system.has_second(), &shared) {
        (false, _) => None,
        (true, Some(broker)) => Some(Second::here(broker, &config, &connections)),
        (true, None) => Some(Second::process(folder, &text, &settings.environment)?),
    };
    let dashboard = match settings.dashboard {
        true => Some(Dashboard::open(&config, &connections).await?),
        false => None,
    };
    if let Some(dashboard) = &dashboard {
        told(Event::Dashboard(dashboard.address));
    }
    let from = connections.clock.now();
    let (second, killed, to) = (Mutex::new(second), Mutex::default(), from + settings.length);
    let mut stage = Stage { config, connections, from, to, second, killed, shutdown, alone: false };
    let began = Instant::now();
    {
        // As a task beside the play, not between its steps: the play may wait for the same connection to the ledger.
        let moments = async {
            let mut at = began;
            loop {
                at += Duration::from_secs(1);
                sleep_until(at).await;
                match Moment::now(began.elapsed(), &*stage.connections.ledger, &telemetry, None).await {
                    Ok(moment) => told(Event::Moment(&moment)),
                    Err(error) => break error,
                }
            }
        };
        tokio::select! {
            played = system.plays(&stage) => played?,
            error = moments => return Err(error),
            () = stage.shutdown.cancelled() => {}
            ended = &mut engine => ended.map_err(setup)??,
        }
    }
    if stage.is_ended() {
        // A tick that is due from now on never comes.
        stage.to = stage.to.min(stage.connections.clock.now());
    }
    // If the second worker still runs, because the user has ended the demo, it is killed.
    drop(stage.second.lock().await.take());
    let beside = stage.killed.lock().await.map_or(0, |killed| killed.ticks);
    let late_ms = telemetry.lateness();
    let census = stage.connections.ledger.census(system.patience()).await?;
    let dead = census.queues.iter().map(|queue| queue.overdue).sum::<i64>();
    if let Some(dashboard) = dashboard {
        dashboard.close().await;
    }
    stop_engine.cancel();
    engine.await.map_err(setup)??;
    stop_upstream.cancel();
    upstream.await.map_err(setup)?.map_err(setup)?;
    let judged = system.judged(&stage).await?;
    let chains = stage.chains().await?.iter().filter(|chain| chain.state != ChainState::Retired).count() as u64;
    handler.stop().await;
    Ok(Report {
        system: system.name(),
        chains,
        ticks: telemetry.get(Count::Done) + telemetry.get(Count::Failed) + beside,
        late_ms,
        forked: judged.forked,
        dead: u64::try_from(dead).unwrap_or(0),
        violations: judged.violations,
        figures: judged.figures,
    })
}

fn setup(error: impl std::fmt::Display) -> StartError {
    StartError::Setup(error.to_string())
}

/// Plays only the upstream of a system, on `listener`, until it is stopped; answers the judgement by its own record
/// alone. Times are those of the system, not compressed.
///
/// # Errors
/// When something cannot be started.
pub async fn upstream_only(
    mut system: impl System,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> Result<Judged, StartError> {
    system.alone();
    let ground = Ground::new(system.name(), None).await?;
    write_files(&system, ground.folder()).map_err(setup)?;
    let text = configuration(&system, "embedded", &ground, HANDLER).map_err(setup)?;
    let mut config = Config::parse(&text, "the system's configuration", []).map_err(setup)?;
    let connections = Connections::open(&config).await?;
    system.prepare(&mut config, &connections).map_err(setup)?;
    let from = connections.clock.now();
    let serve = axum::serve(listener, system.upstream()).with_graceful_shutdown(shutdown.cancelled_owned());
    serve.await.map_err(setup)?;
    let to = connections.clock.now();
    let (second, killed, shutdown) = (Mutex::default(), Mutex::default(), CancellationToken::new());
    let stage = Stage { config, connections, from, to, second, killed, shutdown, alone: true };
    system.judged(&stage).await
}

fn write_files(system: &impl System, folder: &Path) -> Result<(), String> {
    for (name, text) in system.files() {
        let text = if name.ends_with(".csv") { system.roster(text)? } else { (*text).to_owned() };
        fs::write(folder.join(name), text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The system's own configuration with its times compressed, on this broker and ledger, with queues of the demo's own,
/// and with the paths of its rosters and handler.
fn configuration(system: &impl System, broker: &str, ground: &Ground, handler: &str) -> Result<String, String> {
    let text = system.files().iter().find(|(name, _)| *name == "roundelay.toml").map_or("", |(_, text)| text);
    let text = system.configuration(text)?.replace(HANDLER, handler);
    let mut table: Table = text.parse().map_err(|error| format!("not TOML: {error}"))?;
    let over = format!(
        "broker = {{ url = '{}', prefix = 'roundelay-demo' }}\nledger.url = '{}'\nworker = {{ grace = '15s', listen = \
         '127.0.0.1:0' }}\napi.name = 'demo of {}'",
        broker,
        ground.ledger(),
        system.name()
    );
    for (section, values) in over.parse::<Table>().map_err(|error| error.to_string())? {
        let section = table.entry(section).or_insert_with(|| Table::new().into());
        if let (Some(section), toml::Value::Table(values)) = (section.as_table_mut(), values) {
            section.extend(values);
        }
    }
    if let Some(queues) = table.get_mut("queues").and_then(|queues| queues.as_table_mut()) {
        *queues = std::mem::take(queues).into_iter().map(|(name, queue)| (format!("{PREFIX}{name}"), queue)).collect();
    }
    let kinds = table.get_mut("kinds").and_then(|kinds| kinds.as_table_mut());
    for (_, kind) in kinds.into_iter().flatten() {
        if let Some(toml::Value::String(queue)) = kind.get_mut("queue") {
            queue.insert_str(0, PREFIX);
        }
        if let Some(toml::Value::String(file)) = kind.get_mut("roster").and_then(|roster| roster.get_mut("file")) {
            *file = ground.folder().join(&file).display().to_string();
        }
    }
    Ok(table.to_string())
}

/// The handler's process, and its child processes.
struct Handler {
    url: String,
    child: Child,
    group: Option<Pid>,
}

impl Handler {
    async fn start(folder: &Path, language: Language, upstream: &str) -> Result<Self, StartError> {
        let free = TcpListener::bind(("127.0.0.1", 0)).await.map_err(setup)?;
        let address = free.local_addr().map_err(setup)?;
        drop(free);
        let (program, arguments) = match language {
            Language::Python => ("python3", vec!["handler.py".to_owned(), address.port().to_string()]),
            Language::Node => ("node", vec!["handler.js".to_owned(), address.port().to_string()]),
            Language::Php => ("php", vec!["-S".to_owned(), address.to_string(), "handler.php".to_owned()]),
        };
        let said = fs::File::create(folder.join("handler.log")).map_err(setup)?;
        let child = Command::new(program)
            .args(arguments)
            .env("UPSTREAM", upstream)
            .env("PHP_CLI_SERVER_WORKERS", "16")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| setup(format!("the handler cannot be started: {program}: {error}; install it")))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let mut handler = Self { url: format!("http://{address}"), child, group };
        let by = Instant::now() + BEGINS;
        while TcpStream::connect(address).await.is_err() {
            if handler.child.try_wait().map_err(setup)?.is_some() || Instant::now() > by {
                let said = fs::read_to_string(folder.join("handler.log")).unwrap_or_default();
                return Err(setup(format!("the handler does not listen at {address}: {}", said.trim())));
            }
            sleep(LOOK).await;
        }
        Ok(handler)
    }

    async fn stop(mut self) {
        self.end();
        let _ = self.child.wait().await;
    }

    fn end(&mut self) {
        if let Some(group) = self.group.take() {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.end();
    }
}
