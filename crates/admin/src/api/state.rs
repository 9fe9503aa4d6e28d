//! What the endpoints share.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use roundelay_config::Config;
use roundelay_engine as engine;
use roundelay_engine::calendars::with_days;
use roundelay_engine::{Connections, StartError};
use roundelay_ledger::{Ledger, LedgerUrl};
use roundelay_model::clock::{Clock, Entropy};
use tokio::sync::OnceCell;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::problem::Problem;
use super::simulations::Simulations;
use super::{ladder, problem};
use crate::inspect::broker::BrokerStatus;
use crate::inspect::status_cache::StatusCache;
use crate::operate::Operator;

/// How often the days of calendars are read that workers have read from a database.
const DAYS_EVERY: Duration = Duration::from_secs(30);

/// Opens a second connection to the ledger, so that a count of very many chains does not delay other requests. A ledger
/// in memory has one connection only.
async fn counting(config: &Config, ledger: &Arc<dyn Ledger>, entropy: &Entropy) -> Result<Arc<dyn Ledger>, StartError> {
    match config.ledger.url {
        LedgerUrl::Memory => Ok(ledger.clone()),
        _ => Ok(engine::open_ledger(config, entropy).await?.0),
    }
}

pub struct Api {
    config: RwLock<Arc<Config>>,
    ledger: Arc<dyn Ledger>,
    clock: Clock,
    entropy: Entropy,
    /// A second connection to the ledger, for slow queries.
    counting: Arc<dyn Ledger>,
    /// Ledger and broker. The first request that needs the broker connects.
    connections: OnceCell<Connections>,
    status_cache: StatusCache,
    pub(super) rungs: ladder::Seen,
    simulations: Simulations,
    shelf: tokio::sync::Mutex<()>,
    stopping: CancellationToken,
}

impl Api {
    /// Opens the ledger that the configuration names.
    ///
    /// # Errors
    /// When the ledger cannot be opened.
    pub async fn open(config: Config) -> Result<Arc<Self>, StartError> {
        let entropy = Entropy::from_os();
        let (ledger, clock) = engine::open_ledger(&config, &entropy).await?;
        let counting = counting(&config, &ledger, &entropy).await?;
        Ok(Arc::new(Self::new(config, ledger, counting, clock, entropy, OnceCell::new())))
    }

    /// Uses the connections of a worker.
    ///
    /// # Errors
    /// When the second connection to the ledger cannot be opened.
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
            status_cache: StatusCache::default(),
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

    /// Uses a configuration that was read again.
    pub fn take_over(&self, config: Config) {
        *self.config.write() = Arc::new(config);
    }

    /// The ledger.
    pub fn ledger(&self) -> &dyn Ledger {
        &*self.ledger
    }

    /// Gives orders in the name of `actor`.
    pub fn operator(&self, actor: &Actor) -> Operator<'_> {
        Operator { config: self.config(), ledger: self.ledger(), by: actor.label() }
    }

    /// The source of random numbers.
    pub fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    /// Broker and ledger. The first request connects to the broker. While the broker cannot be reached, the status
    /// cache tries again every few seconds, and requests do not wait for it.
    ///
    /// # Errors
    /// 503 when the broker cannot be reached.
    pub async fn connections(&self) -> problem::Result<&Connections> {
        match &self.status_cache.facts().asked {
            BrokerStatus::Away(why) if !self.connections.initialized() => Err(Problem::away_because(why)),
            _ => self.connect().await,
        }
    }

    async fn connect(&self) -> problem::Result<&Connections> {
        let connect = async || {
            let broker = engine::connect_broker(&self.config(), &self.clock).await?;
            let (ledger, clock, entropy) = (self.ledger.clone(), self.clock.clone(), self.entropy.clone());
            Ok(Connections { broker, ledger, clock, entropy })
        };
        let connected: Result<_, StartError> = self.connections.get_or_try_init(connect).await;
        connected.map_err(|error| Problem::away("the broker", &error))
    }

    /// The second connection to the ledger, for slow queries: other requests do not wait for these.
    pub fn counting(&self) -> &dyn Ledger {
        &*self.counting
    }

    /// The lock on the broker's quarantine queue. A request holds the lock while it has fetched the messages: two
    /// requests at the same time would each see a part of them.
    pub async fn shelf(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.shelf.lock().await
    }

    /// The state of queues and workers as it was last read.
    pub fn status_cache(&self) -> &StatusCache {
        &self.status_cache
    }

    /// Updates the status cache without end: asks the ledger once in `every` for what costs little.
    pub async fn keep_status_cache(&self, every: Duration) {
        let broker = async || match self.connect().await {
            Ok(connections) => Ok(connections.broker.clone()),
            Err(problem) => Err(problem.detail),
        };
        let status = self.status_cache.keep(every, || self.config(), &*self.ledger, &*self.counting, broker);
        tokio::join!(status, self.keep_days());
    }

    /// Updates without end the days of calendars that workers have read.
    async fn keep_days(&self) {
        loop {
            let config = self.config();
            match with_days(&config, &*self.ledger).await {
                Ok(Cow::Owned(with)) => {
                    let mut now = self.config.write();
                    // A worker may have read the configuration again meanwhile, and brings its days along.
                    if Arc::ptr_eq(&now, &config) {
                        *now = Arc::new(with);
                    }
                }
                Ok(Cow::Borrowed(_)) => {}
                Err(error) => tracing::debug!(%error, "the days of calendars cannot be read"),
            }
            sleep(DAYS_EVERY).await;
        }
    }

    /// The simulations that requests have started.
    pub fn simulations(&self) -> &Simulations {
        &self.simulations
    }

    /// Closes the broker's connection that was opened here. A worker closes its own.
    pub async fn close(&self) {
        if let Some(connections) = self.connections.get() {
            connections.broker.close().await;
        }
    }

    /// Cancelled when the server stops: endless answers end then.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }
}
