//! Broker and ledger, connected.

use std::sync::Arc;

use roundelay_broker::embedded::{EmbeddedBroker, Profile};
use roundelay_broker::{Broker, BrokerError, BrokerUrl, Delays, rabbit};
use roundelay_config::Config;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_ledger::{Kinds, Ledger, LedgerError, LedgerUrl, postgres};
use roundelay_model::clock::{Clock, Entropy};
use roundelay_model::ids::Epoch;
use roundelay_model::topology::Names;

use crate::error::StartError;

/// A broker and a ledger, connected.
#[derive(Clone)]
pub struct Connections {
    /// Carries messages.
    #[doc(hidden)]
    pub broker: Arc<dyn Broker>,
    /// Keeps the truth.
    #[doc(hidden)]
    pub ledger: Arc<dyn Ledger>,
    /// Tells the time.
    #[doc(hidden)]
    pub clock: Clock,
    /// Rolls the dice.
    #[doc(hidden)]
    pub entropy: Entropy,
}

impl Connections {
    /// Connects to the broker and the ledger that the configuration names.
    ///
    /// # Errors
    /// [`StartError`], with what to do.
    pub async fn open(config: &Config) -> Result<Self, StartError> {
        let entropy = Entropy::from_os();
        let (ledger, clock) = open_ledger(config, &entropy).await?;
        let broker = connect_broker(config, &clock).await?;
        Ok(Self { broker, ledger, clock, entropy })
    }

    #[doc(hidden)]
    /// Connects a worker. Where nothing answers at the broker's address, one whose ledger knows chains begins without
    /// the broker: there is work for it. Else the address is as likely to be wrong. Where the ledger's server is a standby,
    /// waits until it is promoted.
    ///
    /// # Errors
    /// [`StartError`], with what to do.
    pub async fn of_worker(config: &Config) -> Result<Self, StartError> {
        let entropy = Entropy::from_os();
        let (ledger, clock) = match &config.ledger.url {
            LedgerUrl::Postgres(url) => {
                let waits =
                    |server: &str| tracing::warn!(server, "this worker waits: the ledger's server is a standby");
                postgres::open_when_promoted(url, config.ledger.synchronous, &entropy, waits).await?
            }
            _ => open_ledger(config, &entropy).await?,
        };
        let broker: Arc<dyn Broker> = match connect_broker(config, &clock).await {
            Err(StartError::Broker(away @ BrokerError::Away { .. })) if knows_chains(&*ledger, config).await? => {
                rabbit::absent(&config.broker, &away.to_string())?
            }
            connected => connected?,
        };
        Ok(Self { broker, ledger, clock, entropy })
    }

    #[doc(hidden)]
    /// Opens only the ledger.
    ///
    /// # Errors
    /// [`LedgerError::Open`], with what to do.
    pub async fn ledger(config: &Config) -> Result<Arc<dyn Ledger>, LedgerError> {
        open_ledger(config, &Entropy::from_os()).await.map(|(ledger, _)| ledger)
    }
}

/// Opens the ledger; answers also with the clock by which it judges, so that all in this process
/// wait for the same time.
pub async fn open_ledger(config: &Config, entropy: &Entropy) -> Result<(Arc<dyn Ledger>, Clock), LedgerError> {
    match &config.ledger.url {
        LedgerUrl::Postgres(url) => postgres::open(url, config.ledger.synchronous, entropy).await,
        file => {
            let ledger = SqliteLedger::open(file, Clock::System, entropy)?;
            let clock = ledger.clock();
            Ok((Arc::new(ledger), clock))
        }
    }
}

/// An embedded broker for a configuration, which goes by `clock`. It lets messages sleep on their queues where that is
/// asked for.
pub fn embedded_broker(config: &Config, clock: &Clock) -> EmbeddedBroker {
    let profile = match config.broker.delays {
        Delays::Native => Profile::Rabbit44,
        Delays::Auto | Delays::Ladder => Profile::default(),
    };
    let broker = EmbeddedBroker::with_profile(Names::new(&config.broker.prefix), profile);
    broker.goes_by(clock.clone());
    broker
}

/// Connects to the broker. An embedded one goes by `clock`.
pub async fn connect_broker(config: &Config, clock: &Clock) -> Result<Arc<dyn Broker>, StartError> {
    Ok(match &config.broker.url {
        BrokerUrl::Embedded => Arc::new(embedded_broker(config, clock)),
        BrokerUrl::Amqp(_) => rabbit::connect(&config.broker).await?,
    })
}

/// Whether a worker has had something to do for this configuration before.
pub async fn knows_chains(ledger: &dyn Ledger, config: &Config) -> Result<bool, LedgerError> {
    let all: Vec<String> = config.kinds.keys().cloned().collect();
    let kinds = Kinds { recurring: all.clone(), all };
    let found = ledger.messages(config.queues.keys().cloned().collect(), kinds, Epoch::NONE, 1).await?;
    Ok(!found.is_empty())
}
