//! What the endpoints share.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use roundelay_config::Config;
use roundelay_engine as engine;
use roundelay_engine::{Connections, StartError};
use roundelay_ledger::{Ledger, LedgerUrl};
use roundelay_model::clock::{Clock, Entropy};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::problem::Problem;
use super::simulations::Simulations;
use super::{ladder, problem};
use crate::inspect::board::Board;
use crate::inspect::broker::Asked;
use crate::operate::Operator;

/// Another connection to the ledger: a count of very many chains must hold up nobody. What is only in memory has one.
async fn counting(config: &Config, ledger: &Arc<dyn Ledger>, entropy: &Entropy) -> Result<Arc<dyn Ledger>, StartError> {
    match config.ledger.url {
        LedgerUrl::Memory => Ok(ledger.clone()),
        _ => Ok(engine::open_ledger(config, entropy).await?.0),
    }
}

/// What endpoints share.
pub struct Api {
    config: RwLock<Arc<Config>>,
    ledger: Arc<dyn Ledger>,
    clock: Clock,
    entropy: Entropy,
    /// A connection to it for what takes long.
    counting: Arc<dyn Ledger>,
    /// With the broker; connected when somebody first needs it.
    connections: OnceCell<Connections>,
    board: Board,
    pub(super) rungs: ladder::Seen,
    simulations: Simulations,
    shelf: tokio::sync::Mutex<()>,
    stopping: CancellationToken,
}

impl Api {
    /// On a ledger of its own, as the configuration names it.
    ///
    /// # Errors
    /// When the ledger cannot be opened.
    pub async fn open(config: Config) -> Result<Arc<Self>, StartError> {
        let entropy = Entropy::from_os();
        let (ledger, clock) = engine::open_ledger(&config, &entropy).await?;
        let counting = counting(&config, &ledger, &entropy).await?;
        Ok(Arc::new(Self::new(config, ledger, counting, clock, entropy, OnceCell::new())))
    }

    /// On the connections of a worker.
    ///
    /// # Errors
    /// When the ledger cannot be opened once more.
    pub async fn of_worker(config: Config, connections: Connections) -> Result<Arc<Self>, StartError> {
        let Connections { ledger, clock, entropy, .. } = connections.clone();
        let counting = counting(&config, &ledger, &entropy).await?;
        let connections = OnceCell::new_with(Some(connections));
        Ok(Arc::new(Self::new(config, ledger, counting, clock, entropy, connections)))
    }

    pub fn new(
        config: Config,
        ledger: Arc<dyn Ledger>,
        counting: Arc<dyn Ledger>,
        clock: Clock,
        entropy: Entropy,
        connections: OnceCell<Connections>,
    ) -> Self {
        let config = RwLock::new(Arc::new(config));
        Self {
            config,
            ledger,
            counting,
            clock,
            entropy,
            connections,
            board: Board::default(),
            rungs: ladder::Seen::default(),
            simulations: Simulations::default(),
            shelf: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
        }
    }

    /// The configuration, as it was last read.
    pub fn config(&self) -> Arc<Config> {
        self.config.read().clone()
    }

    /// The configuration was read again.
    pub fn take_over(&self, config: Config) {
        *self.config.write() = Arc::new(config);
    }

    /// Keeps the truth.
    pub fn ledger(&self) -> &dyn Ledger {
        &*self.ledger
    }

    /// Gives orders here for whoever asks.
    pub fn operator(&self, actor: &Actor) -> Operator<'_> {
        Operator { config: self.config(), ledger: self.ledger(), by: actor.label() }
    }

    /// Rolls the dice.
    pub fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    /// Broker and ledger. The first who asks connects to the broker; while that cannot be done, the board tries again
    /// every few seconds, and nobody waits for it.
    ///
    /// # Errors
    /// 503 when the broker cannot be reached.
    pub async fn connections(&self) -> problem::Result<&Connections> {
        match &self.board.facts().asked {
            Asked::Away(why) if !self.connections.initialized() => Err(Problem::away_because(why)),
            _ => self.connect().await,
        }
    }

    async fn connect(&self) -> problem::Result<&Connections> {
        let connect = async || {
            let broker = engine::connect_broker(&self.config()).await?;
            let (ledger, clock, entropy) = (self.ledger.clone(), self.clock.clone(), self.entropy.clone());
            Ok(Connections { broker, ledger, clock, entropy })
        };
        let connected: Result<_, StartError> = self.connections.get_or_try_init(connect).await;
        connected.map_err(|error| Problem::away("the broker", &error))
    }

    /// Keeps the truth, too: for what takes long, so that nobody else waits for it.
    pub fn counting(&self) -> &dyn Ledger {
        &*self.counting
    }

    /// Held while messages that wait for a person are in hand: two who look at the same time would each see a part.
    pub async fn shelf(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shelf.lock().await
    }

    /// What is known of everything.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Keeps that up to date, for ever, and asks the ledger `every` so often for what costs little.
    pub async fn keep_board(&self, every: Duration) {
        let broker = async || match self.connect().await {
            Ok(connections) => Ok(connections.broker.clone()),
            Err(problem) => Err(problem.detail),
        };
        self.board.keep(every, || self.config(), &*self.ledger, &*self.counting, broker).await;
    }

    /// The simulations that were asked for.
    pub fn simulations(&self) -> &Simulations {
        &self.simulations
    }

    /// Closes what was opened here of the broker's. A worker closes its own.
    pub async fn close(&self) {
        if let Some(connections) = self.connections.get() {
            connections.broker.close().await;
        }
    }

    /// Cancelled when the server stops: whatever answers without an end ends then.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }
}
