//! One broker, one ledger and one clock in memory, which simulated workers share.

use std::collections::BTreeSet;
use std::sync::Arc;

use roundelay_broker::embedded::{EmbeddedBroker, EmbeddedConnection};
use roundelay_broker::{Broker, Delays};
use roundelay_config::Config;
use roundelay_engine::{Connections, Engine, StartError};
use roundelay_ledger::LedgerUrl;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_model::clock::{Clock, Entropy, Time};
use roundelay_model::topology::Names;
use tokio::sync::mpsc;

use crate::astray::Claims;
use crate::ledger::SimulatedLedger;
use crate::observe::Observer;
use crate::replay::Replay;
use crate::worker::{Process, Watcher};
use crate::world::FaultState;

/// What workers share whose faults are those of the broker, the ledger and the clock.
pub(crate) struct Ground {
    pub config: Config,
    pub clock: Clock,
    pub dice: Entropy,
    pub broker: EmbeddedBroker,
    pub ledger: Arc<SqliteLedger>,
    pub fault_state: Arc<FaultState>,
    pub observer: Arc<Observer>,
}

impl Ground {
    /// An empty ledger whose server's clock shows `begin`, and the broker's queues of this configuration.
    pub async fn new(config: Config, seed: u64, begin: Time) -> Result<Self, StartError> {
        let (dice, clock) = (Entropy::seeded(seed), Clock::of_server(begin));
        let ledger = Arc::new(SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &dice)?);
        let broker = EmbeddedBroker::new(Names::new(&config.broker.prefix));
        broker.apply(&config.topology()).await?;
        let fault_state = Arc::new(FaultState::new(Entropy::seeded(seed ^ 0x1a7e)));
        let observer = Observer::new(false, None, BTreeSet::new(), Arc::default());
        Ok(Self { config, clock, dice, broker, ledger, fault_state, observer })
    }

    /// Connections that no fault of the ledger strikes, as another program has them.
    pub fn connections(&self, entropy: Entropy) -> Connections {
        let broker = Arc::new(self.broker.connect().with_delays(Delays::Ladder));
        Connections { broker, ledger: self.ledger.clone(), clock: self.clock.clone(), entropy }
    }

    /// The engine of a worker's process, which has no handlers yet: `run` counts the processes.
    pub fn worker(&self, worker: usize, run: usize) -> (Engine, Arc<Process>, Arc<EmbeddedConnection>) {
        let process = Process::new(worker, run);
        let connection = Arc::new(self.broker.connect().with_delays(Delays::Ladder));
        let ledger = SimulatedLedger {
            inner: self.ledger.clone(),
            fault_state: self.fault_state.clone(),
            observer: self.observer.clone(),
            replay: Replay::off(self.observer.clone()),
            claims: Arc::new(Claims::new(mpsc::unbounded_channel().0)),
            process: process.clone(),
        };
        let connections = Connections {
            broker: connection.clone(),
            ledger: Arc::new(ledger),
            clock: self.clock.clone(),
            entropy: Entropy::seeded(self.dice.below(usize::MAX) as u64),
        };
        let watcher = Watcher { process: process.clone(), traps: Arc::default(), struck: mpsc::unbounded_channel().0 };
        let engine =
            Engine::new(self.config.clone()).connections(connections).without_chores().probe(Arc::new(watcher));
        (engine, process, connection)
    }
}
