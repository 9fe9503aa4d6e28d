//! The admin API over HTTP, and with it the dashboard: `roundelay serve`, or inside a worker.
//!
//! A request goes inwards:
//!
//! - `server`: connections: how many, how slow, with TLS or without.
//! - `door`: every request: whether it is for this server, and the headers of the answer. `site` decides (pure).
//! - `gate`: requests to the API: who asks and whether they may (`actor`, `failures`), whether it was asked before,
//!   and the audit.
//! - `endpoints`: the table of what there is, with the scope that each needs.
//! - The endpoints, in a file for each resource. They share an [`Api`] and take what `extract` reads; lists have
//!   pages ([`page`]), and what cannot be done is a [`Problem`].
//!
//! docs/api.md says what holds for all of it, and docs/openapi.json describes every endpoint.

mod actor;
mod audit;
mod door;
mod endpoints;
mod extract;
mod failures;
mod gate;
mod jobs;
mod openapi;
pub mod page;
mod problem;
mod server;
mod session;
mod site;
mod tokens;
mod words;

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

pub use actor::Actor;
pub use endpoints::document;
pub use problem::Problem;
pub use server::{Listener, Server, USUAL};
pub use tokens::{TokenError, create_token};

use crate::clock::{Clock, Entropy};
use crate::config::Config;
use crate::engine::{self, Connections, StartError};
use crate::ledger::Ledger;

/// What endpoints share.
pub struct Api {
    config: RwLock<Arc<Config>>,
    ledger: Arc<dyn Ledger>,
    clock: Clock,
    entropy: Entropy,
    /// With the broker; connected when somebody first needs it.
    connections: OnceCell<Connections>,
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
        Ok(Arc::new(Self::new(config, ledger, clock, entropy, OnceCell::new())))
    }

    /// On the connections of a worker.
    pub fn of_worker(config: Config, connections: Connections) -> Arc<Self> {
        let Connections { ledger, clock, entropy, .. } = connections.clone();
        Arc::new(Self::new(config, ledger, clock, entropy, OnceCell::new_with(Some(connections))))
    }

    fn new(
        config: Config,
        ledger: Arc<dyn Ledger>,
        clock: Clock,
        entropy: Entropy,
        connections: OnceCell<Connections>,
    ) -> Self {
        let config = RwLock::new(Arc::new(config));
        Self { config, ledger, clock, entropy, connections, stopping: CancellationToken::new() }
    }

    /// The configuration, as it was last read.
    pub fn config(&self) -> Arc<Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration was read again.
    pub fn take_over(&self, config: Config) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Keeps the truth.
    pub fn ledger(&self) -> &dyn Ledger {
        &*self.ledger
    }

    /// Rolls the dice.
    pub fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    /// Broker and ledger. The first who asks connects to the broker.
    ///
    /// # Errors
    /// 503 when the broker cannot be reached.
    pub async fn connections(&self) -> problem::Result<&Connections> {
        let connect = async || {
            let broker = engine::connect_broker(&self.config()).await?;
            let (ledger, clock, entropy) = (self.ledger.clone(), self.clock.clone(), self.entropy.clone());
            Ok(Connections { broker, ledger, clock, entropy })
        };
        let connected: Result<_, StartError> = self.connections.get_or_try_init(connect).await;
        connected.map_err(|error| Problem::away("the broker", &error))
    }

    /// Cancelled when the server stops: whatever answers without an end ends then.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }
}
