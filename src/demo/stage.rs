//! Runs a reference system whole, for half a minute: its own configuration, rosters and handler below `examples/`,
//! and an upstream that plays what the system calls, keeps a record, and judges by that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::serve::ListenerExt;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use toml::Table;

use crate::clock::Time;
use crate::config::Config;
use crate::engine::{Connections, Engine, StartError};
use crate::ledger::{ChainState, Filter, Listed};
use crate::roster::{Wishes, from_source};
use crate::telemetry::{Count, Lateness, Telemetry};

/// Queues of the demo on a broker that others may use are called so.
pub const PREFIX: &str = "demo-";
/// Where the examples say that their handler listens.
const HANDLER: &str = "http://127.0.0.1:8000";
/// What is due for longer than this is dead, where nothing has to wait its turn.
const SLACK: Duration = Duration::from_secs(5);
/// How long a handler has to begin to listen: an interpreter on a busy machine.
const BEGINS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// Chains looked at together.
const PAGE: u32 = 1_000;

/// What a handler is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `python3 handler.py PORT`.
    Python,
    /// `php -S 127.0.0.1:PORT handler.php`.
    Php,
}

/// What to show, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// How long.
    pub length: Duration,
}

/// A reference system.
#[async_trait]
pub trait System: Send + Sync {
    /// Its name, which is that of its folder.
    fn name(&self) -> &'static str;
    /// The files of its folder, by name.
    fn files(&self) -> &'static [(&'static str, &'static str)];
    /// What its handler is written in.
    fn language(&self) -> Language;
    /// How its time is compressed, in a sentence.
    fn told(&self) -> String;
    /// A chain is dead when it is due for longer than this and nobody runs it.
    fn patience(&self) -> Duration {
        SLACK
    }
    /// Its configuration with its times compressed.
    ///
    /// # Errors
    /// When that cannot be read.
    fn configuration(&self, text: &str) -> Result<String, String>;
    /// A roster likewise.
    ///
    /// # Errors
    /// When that cannot be read.
    fn roster(&self, text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }
    /// Takes note of the configuration as it will run from `now` on, and may change it.
    ///
    /// # Errors
    /// When it is not that of this system.
    fn prepare(&mut self, config: &mut Config, connections: &Connections) -> Result<(), String>;
    /// The upstream.
    fn upstream(&self) -> Router;
    /// What happens in the meantime: returns when the demo is over.
    ///
    /// # Errors
    /// When something could not be done.
    async fn plays(&self, stage: &Stage) -> Result<(), StartError>;
    /// What the upstream has seen, and what of it should not have been.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn judged(&self, stage: &Stage) -> Result<Judged, StartError>;
}

/// A running demo.
pub struct Stage {
    /// As it runs.
    pub config: Config,
    /// Shared with the engine.
    pub connections: Connections,
    /// When all chains had begun.
    pub from: Time,
    /// When it is over.
    pub to: Time,
    shutdown: CancellationToken,
}

impl Stage {
    /// Waits until a share of the time is over, or the demo is ended.
    pub async fn at(&self, share: f64) {
        let at = self.from + self.to.since(self.from).mul_f64(share);
        self.until(at).await;
    }

    /// Waits until then, or the demo is ended.
    pub async fn until(&self, at: Time) {
        let wait = at.since(self.connections.clock.now());
        tokio::select! { () = sleep(wait) => {}, () = self.shutdown.cancelled() => {} }
    }

    /// Whether somebody has ended it.
    pub fn is_ended(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// All chains of the ledger.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn chains(&self) -> Result<Vec<Listed>, StartError> {
        let (mut chains, mut after) = (Vec::new(), None);
        loop {
            let page = self.connections.ledger.list(Filter::default(), after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(chains) };
            after = Some((last.hint.kind.clone(), last.hint.key.clone()));
            chains.extend(page.into_iter().filter(|listed| !listed.hint.kind.starts_with("roundelay.")));
        }
    }
}

/// What the upstream says.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Occurrences that it was called for twice.
    pub forked: u64,
    /// What was broken, in sentences.
    pub violations: Vec<String>,
    /// What else it has seen.
    pub figures: Value,
}

/// How it went.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Which system.
    pub system: &'static str,
    /// Chains that had begun, in the end.
    pub chains: u64,
    /// Ticks and jobs that ended.
    pub ticks: u64,
    /// How late attempts started.
    pub late_ms: Lateness,
    /// Occurrences that the upstream was called for twice.
    pub forked: u64,
    /// Chains that should run and do not.
    pub dead: u64,
    /// Rules of the system that were broken, in sentences.
    pub violations: Vec<String>,
    /// Figures of the system.
    pub figures: Value,
}

/// A moment of a running demo.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Since all chains had begun.
    pub elapsed: Duration,
    /// Runs that have begun.
    pub started: u64,
    /// Ticks and jobs that ended.
    pub ended: u64,
    /// Ticks and jobs that did not start, by a guard's word.
    pub failed: u64,
    /// How late attempts started.
    pub late: Lateness,
}

/// Runs it, telling `progress` about it every second.
///
/// # Errors
/// When something cannot be started.
pub async fn run(
    mut system: impl System,
    settings: Settings,
    shutdown: CancellationToken,
    mut progress: impl FnMut(Moment),
) -> Result<Report, StartError> {
    let folder = Folder::new(system.name()).map_err(setup)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(setup)?;
    let upstream = format!("http://{}", listener.local_addr().map_err(setup)?);
    for (name, text) in system.files() {
        let text = if name.ends_with(".csv") { system.roster(text).map_err(setup)? } else { (*text).to_owned() };
        fs::write(folder.0.join(name), text).map_err(setup)?;
    }
    let handler = Handler::start(&folder.0, system.language(), &upstream).await?;
    let text = configuration(&system, &settings, &folder.0, &handler.url).map_err(setup)?;
    fs::write(folder.0.join("roundelay.toml"), &text).map_err(setup)?;
    let mut config = Config::parse(&text, "the demo's configuration", []).map_err(setup)?;
    let connections = Connections::open(&config).await?;
    let census = connections.ledger.census(SLACK).await?;
    if census.queues.iter().any(|queue| queue.sleeping + queue.due + queue.running > 0) {
        return Err(setup("the ledger has chains already; give the demo one of its own, which is empty"));
    }
    system.prepare(&mut config, &connections).map_err(setup)?;
    let (stop_upstream, stop_engine) = (CancellationToken::new(), CancellationToken::new());
    let listener = listener.tap_io(|connection| {
        // Answers are small: held back for more to come, they would only be late.
        let _ = connection.set_nodelay(true);
    });
    let serve =
        axum::serve(listener, system.upstream()).with_graceful_shutdown(stop_upstream.clone().cancelled_owned());
    let upstream = tokio::spawn(serve.into_future());

    // What an earlier demo left belongs to a ledger that is gone.
    connections.broker.remove(&config.topology()).await?;
    connections.broker.apply(&config.topology()).await?;
    let engine = Engine::new(config.clone()).connections(connections.clone());
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
    let from = connections.clock.now();
    let stage = Stage { config, connections, from, to: from + settings.length, shutdown };
    let began = Instant::now();
    {
        let mut plays = std::pin::pin!(system.plays(&stage));
        let mut at = began;
        loop {
            at += Duration::from_secs(1);
            tokio::select! {
                played = &mut plays => break played?,
                () = sleep_until(at) => progress(moment(began.elapsed(), &telemetry)),
                () = stage.shutdown.cancelled() => break,
                ended = &mut engine => ended.map_err(setup)??,
            }
        }
    }
    let late_ms = telemetry.lateness();
    let census = stage.connections.ledger.census(system.patience()).await?;
    let dead = census.queues.iter().map(|queue| queue.overdue).sum::<i64>();
    stop_engine.cancel();
    engine.await.map_err(setup)??;
    stop_upstream.cancel();
    upstream.await.map_err(setup)?.map_err(setup)?;
    let judged = system.judged(&stage).await?;
    let chains = stage.chains().await?.iter().filter(|chain| chain.state != ChainState::Retired).count() as u64;
    handler.stop().await;
    if stage.connections.broker.keeps_messages() {
        // The engine has closed its connections; these are new ones, to clean up.
        let connections = Connections::open(&stage.config).await?;
        connections.broker.remove(&stage.config.topology()).await?;
        connections.broker.close().await;
    }
    Ok(Report {
        system: system.name(),
        chains,
        ticks: telemetry.get(Count::Done) + telemetry.get(Count::Failed),
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

fn moment(elapsed: Duration, telemetry: &Arc<Telemetry>) -> Moment {
    Moment {
        elapsed,
        started: telemetry.get(Count::Started),
        ended: telemetry.get(Count::Done) + telemetry.get(Count::Failed),
        failed: telemetry.get(Count::Failed),
        late: telemetry.lateness(),
    }
}

/// The system's own configuration with its times compressed, on this broker and ledger, with queues of the demo's own,
/// and its rosters and handler where they are.
fn configuration(system: &impl System, settings: &Settings, folder: &Path, handler: &str) -> Result<String, String> {
    let text = system.files().iter().find(|(name, _)| *name == "roundelay.toml").map_or("", |(_, text)| text);
    let text = system.configuration(text)?.replace(HANDLER, handler);
    let mut table: Table = text.parse().map_err(|error| format!("not TOML: {error}"))?;
    let over = format!(
        "broker = {{ url = '{}', prefix = 'roundelay-demo' }}\nledger.url = '{}'\nworker = {{ grace = '15s', listen = \
         '127.0.0.1:0' }}",
        settings.broker, settings.ledger
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
            *file = folder.join(&file).display().to_string();
        }
    }
    Ok(table.to_string())
}

/// A temporary folder, gone with this.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> io::Result<Self> {
        let token = crate::clock::Entropy::from_os().token();
        let path = std::env::temp_dir().join(format!("roundelay-demo-{name}-{token}"));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The handler's process, and those that it has started.
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
