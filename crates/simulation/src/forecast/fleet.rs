//! The workers of a simulation: real engines, each with a connection of its own to the broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use roundelay_broker::Delays;
use roundelay_broker::embedded::{EmbeddedBroker, EmbeddedConnection};
use roundelay_config::Config;
use roundelay_engine::telemetry::Telemetry;
use roundelay_engine::{Connections, Engine, StartError};
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_model::clock::{Clock, Entropy};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::recorder::Recorder;
use super::verdicts::Verdicts;

/// What all workers share, and those that live.
pub(super) struct Fleet {
    pub config: Config,
    pub broker: EmbeddedBroker,
    pub ledger: Arc<SqliteLedger>,
    pub clock: Clock,
    pub dice: Entropy,
    pub recorders: BTreeMap<String, Recorder>,
    pub live: Vec<Worker>,
    /// What workers counted that live no more.
    pub past: BTreeMap<String, Verdicts>,
}

/// A worker that runs.
pub(super) struct Worker {
    connection: Arc<EmbeddedConnection>,
    telemetry: Arc<Telemetry>,
    engine: JoinHandle<Result<(), StartError>>,
}

impl Fleet {
    /// A way to broker and ledger for a process of its own, and the connection that it is.
    pub fn connections(&self) -> (Arc<EmbeddedConnection>, Connections) {
        let connection = Arc::new(self.broker.connect().with_delays(Delays::Ladder));
        let connections = Connections {
            broker: connection.clone(),
            ledger: self.ledger.clone(),
            clock: self.clock.clone(),
            entropy: Entropy::seeded(self.dice.below(usize::MAX) as u64),
        };
        (connection, connections)
    }

    /// Starts workers until `workers` of them run.
    pub fn start(&mut self, workers: usize) {
        while self.live.len() < workers {
            let (connection, connections) = self.connections();
            let mut engine = Engine::new(self.config.clone()).connections(connections);
            for (kind, recorder) in &self.recorders {
                engine = engine.handler(kind, recorder.clone());
            }
            let telemetry = engine.telemetry();
            let engine = tokio::spawn(engine.run(CancellationToken::new()));
            self.live.push(Worker { connection, telemetry, engine });
        }
    }

    /// Kills all workers, as SIGKILL does.
    pub fn kill(&mut self) {
        for worker in std::mem::take(&mut self.live) {
            Verdicts::read(&worker.telemetry.render(), &mut self.past);
            worker.connection.die();
            worker.engine.abort();
        }
    }

    /// How attempts ended until now, by kind.
    pub fn verdicts(&self) -> BTreeMap<String, Verdicts> {
        let mut verdicts = self.past.clone();
        self.live.iter().for_each(|worker| Verdicts::read(&worker.telemetry.render(), &mut verdicts));
        verdicts
    }

    /// Why a worker has ended by itself, if one has.
    ///
    /// # Errors
    /// What it ended with.
    pub async fn check(&mut self) -> Result<(), StartError> {
        for worker in &mut self.live {
            if worker.engine.is_finished() {
                let ended = (&mut worker.engine).await;
                return ended.map_err(|panic| StartError::Broken(panic.to_string())).and_then(|ended| {
                    ended.and_then(|()| Err(StartError::Broken("a worker has ended by itself".into())))
                });
            }
        }
        Ok(())
    }
}
