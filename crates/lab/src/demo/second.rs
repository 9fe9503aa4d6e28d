//! A second worker, which is killed during a run.
//!
//! With RabbitMQ, the second worker is a process, as in production, and ends by SIGKILL. The embedded broker is in this
//! process alone; there the second worker is an engine with a connection of its own, which is cut off at any point of
//! its work, as the simulation kills workers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::embedded::{EmbeddedBroker, EmbeddedConnection};
use roundelay_config::Config;
use roundelay_engine::telemetry::{Count, Telemetry};
use roundelay_engine::{Connections, StartError};
use roundelay_ledger::{AttemptRecord, LedgerError};
use roundelay_model::clock::Time;
use roundelay_model::ids::Fence;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use toml::Table;

/// How long the worker may take until its first run: a program that starts on a busy machine.
const BEGINS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);
const ATTEMPTS: u32 = 1_000;

pub enum Second {
    /// An engine in this process.
    Here {
        /// The engine's own connection to the broker.
        connection: Arc<EmbeddedConnection>,
        /// The work that the engine has done.
        telemetry: Arc<Telemetry>,
        /// The task of the engine.
        engine: JoinHandle<Result<(), StartError>>,
    },
    /// A process of this program.
    Process {
        child: Child,
        /// The process id, with which the names of its workers begin.
        pid: u32,
        /// The file with the output of the process.
        said: PathBuf,
    },
}

/// The result of a killed worker.
#[derive(Clone, Copy, Debug)]
pub struct Killed {
    /// When the worker was dead.
    pub at: Time,
    /// Ticks and jobs that ended while the worker lived.
    pub ticks: u64,
}

impl Second {
    /// Starts an engine on the demo's own broker.
    pub fn here(broker: &EmbeddedBroker, config: &Config, connections: &Connections) -> Self {
        let connection = Arc::new(broker.connect());
        let connections = Connections { broker: connection.clone(), ..connections.clone() };
        let mut config = config.clone();
        // The first worker serves the dashboard.
        config.api.listen = None;
        let engine = roundelay_admin::worker(config).connections(connections);
        let telemetry = engine.telemetry();
        Self::Here { connection, telemetry, engine: tokio::spawn(engine.run(CancellationToken::new())) }
    }

    /// Starts a worker of this program in `folder`, with the configuration `text` and the `ROUNDELAY__…` variables
    /// `environment`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn process(folder: &Path, text: &str, environment: &[(String, String)]) -> Result<Self, StartError> {
        let setup = |error: &dyn std::fmt::Display| StartError::Setup(format!("the second worker: {error}"));
        let mut table: Table = text.parse().map_err(|error| setup(&error))?;
        // The first worker serves the dashboard.
        table.remove("api");
        let config = folder.join("second.toml");
        fs::write(&config, table.to_string()).map_err(|error| setup(&error))?;
        let said = folder.join("second.log");
        let log = fs::File::create(&said).map_err(|error| setup(&error))?;
        let program = std::env::current_exe().map_err(|error| setup(&error))?;
        let mut command = Command::new(program);
        // With the variables of an installation on this machine, the worker would use that one's ledger and broker.
        let foreign = std::env::vars_os().map(|(name, _)| name);
        for name in foreign.filter(|name| name.to_string_lossy().starts_with("ROUNDELAY__")) {
            command.env_remove(name);
        }
        let child = command
            .args(["worker", "--config"])
            .arg(config)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        let child = child.map_err(|error| setup(&error))?;
        let pid = child.id().unwrap_or_default();
        Ok(Self::Process { child, pid, said })
    }

    /// Waits until the worker runs something, and kills it.
    ///
    /// # Errors
    /// When the worker never runs anything.
    pub async fn kill(mut self, connections: &Connections) -> Result<Killed, StartError> {
        let by = Instant::now() + BEGINS;
        while !self.is_in_the_middle(connections).await? {
            if Instant::now() > by {
                return Err(StartError::Setup(format!("the second worker ran nothing for {} s", BEGINS.as_secs())));
            }
            sleep(LOOK).await;
        }
        match &mut self {
            Self::Here { connection, engine, .. } => {
                connection.die();
                engine.abort();
                let _ = engine.await;
            }
            Self::Process { child, .. } => child.kill().await.map_err(|error| StartError::Setup(error.to_string()))?,
        }
        let at = connections.clock.now();
        let ticks = match &self {
            Self::Here { telemetry, .. } => telemetry.get(Count::Done) + telemetry.get(Count::Failed),
            Self::Process { .. } => {
                let ended = |attempt: &AttemptRecord| matches!(attempt.verdict.as_deref(), Some("done" | "failed"));
                self.attempts(connections).await?.iter().filter(|attempt| ended(attempt)).count() as u64
            }
        };
        Ok(Killed { at, ticks })
    }

    async fn is_in_the_middle(&mut self, connections: &Connections) -> Result<bool, StartError> {
        if let Self::Process { child, said, .. } = self
            && let Ok(Some(status)) = child.try_wait()
        {
            let said = fs::read_to_string(said).unwrap_or_default();
            return Err(StartError::Setup(format!("the second worker ended by itself, {status}: {}", said.trim())));
        }
        Ok(match self {
            Self::Here { telemetry, .. } => telemetry.by_queue().values().any(|queue| queue.running > 0),
            Self::Process { .. } => self.attempts(connections).await?.iter().any(|attempt| attempt.finished.is_none()),
        })
    }

    /// The attempts that the process has claimed.
    async fn attempts(&self, connections: &Connections) -> Result<Vec<AttemptRecord>, LedgerError> {
        let Self::Process { pid, .. } = self else { return Ok(Vec::new()) };
        let name = format!("{pid}-");
        let (mut attempts, mut after) = (Vec::new(), Fence::NONE);
        loop {
            let page = connections.ledger.attempts(after, ATTEMPTS).await?;
            let Some(last) = page.last() else { return Ok(attempts) };
            after = last.fence;
            attempts.extend(page.into_iter().filter(|attempt| attempt.worker.starts_with(&name)));
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if let Self::Here { connection, engine, .. } = self {
            connection.die();
            engine.abort();
        }
    }
}
