//! What runs in a worker beside its queues: the monitor, the API, or something of the program that embeds the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use roundelay_config::Config;
use tokio::sync::SetOnce;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connections::Connections;
use crate::desk::Desk;
use crate::error::StartError;
use crate::overslept::Schedules;
use crate::telemetry::Telemetry;
use crate::throttle::Throttles;

/// A task of a companion, with the name that the log gives it when it ends too soon.
pub type Task = (&'static str, BoxFuture<'static, ()>);

/// What a companion gets of the worker that it runs in.
pub struct Handle {
    /// The configuration that the worker began with.
    pub config: Config,
    /// The worker's broker and ledger.
    pub connections: Connections,
    /// The worker's name.
    pub worker: Arc<str>,
    /// What the worker counts.
    pub telemetry: Arc<Telemetry>,
    /// What paces the worker's starts.
    pub throttles: Throttles,
    /// The queues of the configuration, each with its throttle.
    pub queues: BTreeMap<String, Option<String>>,
    /// Knows the schedules of kinds, as they are configured now.
    pub schedule_of: Arc<Schedules<'static>>,
    /// A due chain counts as overdue after this.
    pub slack: Duration,
    /// Is set once the worker consumes its queues.
    pub ready: Arc<SetOnce<()>>,
    /// Is cancelled when the worker stops.
    pub stop: CancellationToken,
    /// Takes what runs report.
    pub desk: Arc<Desk>,
    /// When the worker last read what operators have ordered; `None` before the first time.
    pub attended: Arc<Mutex<Option<Instant>>>,
}

/// Runs in a worker beside its queues: see [`Engine::companion`](super::Engine::companion).
#[async_trait]
pub trait Companion: Send + Sync {
    /// The setting that asks for this companion, such as `worker.listen`. An engine refuses to start when the setting
    /// is given and no companion answers to it.
    fn setting(&self) -> Option<&'static str> {
        None
    }

    /// Takes addresses and reads files, before the worker connects to anything.
    ///
    /// # Errors
    /// When the worker is not to start.
    async fn bind(&mut self, _config: &Config) -> Result<(), StartError> {
        Ok(())
    }

    /// The URL at which programs that the worker runs can report, without a slash at its end.
    fn callback(&self) -> Option<String> {
        None
    }

    /// Begins before the worker declares its topology. The tasks never end by themselves, and go on while the worker
    /// stops.
    fn watch(&mut self, _worker: &Handle) -> Vec<Task> {
        Vec::new()
    }

    /// Begins when the topology is declared, before the worker consumes. The tasks end when [`Handle::stop`] is
    /// cancelled.
    ///
    /// # Errors
    /// When the worker is not to start.
    async fn serve(&mut self, _worker: &Handle) -> Result<Vec<Task>, StartError> {
        Ok(Vec::new())
    }

    /// The configuration was read again, and this is what holds from now on.
    fn reloaded(&self, _config: &Config) {}

    /// A part of the engine has ended, which it never should: the worker stops.
    fn broken(&self, _why: &str) {}
}

/// Refuses a configuration that asks for what no companion does.
pub(super) fn check(companions: &[Box<dyn Companion>], config: &Config) -> Result<(), StartError> {
    let asked = [("worker.listen", config.worker.listen), ("api.listen", config.api.listen)];
    for (setting, _) in asked.iter().filter(|(_, address)| address.is_some()) {
        if !companions.iter().any(|companion| companion.setting() == Some(setting)) {
            return Err(StartError::Setup(format!(
                "{setting} is set, and nothing in this program answers there: begin with `roundelay::worker(config)` in \
                 place of `Engine::new(config)`, or take the setting out"
            )));
        }
    }
    Ok(())
}
