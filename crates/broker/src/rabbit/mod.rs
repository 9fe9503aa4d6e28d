//! RabbitMQ, over lapin.
//!
//! - `connection`: one supervised connection; it comes back by itself. [`certificates`]: when those of TLS end.
//! - `sieve`: what comes from the broker, before lapin reads it: messages that lapin cannot read stop nothing.
//! - `publish`: one task, one channel; `attempt` is one message's way to its verdict, and
//!   `attribution` says whose a return is.
//! - `consume`: a queue that keeps flowing through reconnections and server-side cancellations; `settle`
//!   acknowledges what was delivered.
//! - `declare`: the topology over AMQP; `remove` deletes it.
//! - [`check`]: what on a broker differs from the topology, `policies` included; `management` fetches
//!   what it compares.
//! - [`examine`]: examining a broker: how far a connection gets, and what its management API tells.
//! - [`definitions`](fn@definitions): the topology for `rabbitmqctl import_definitions`; [`users`]: who may do what
//!   with it.

mod attribution;
pub mod certificates;
pub mod check;
mod connection;
mod consume;
mod declare;
mod definitions;
pub mod examine;
mod headers;
mod management;
mod patience;
mod peek;
mod policies;
mod publish;
mod publish_once;
#[cfg(test)]
mod refusing;
mod remove;
mod settle;
mod sieve;
pub mod users;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Entropy;
use roundelay_model::secret::Secret;
use roundelay_model::topology::{Names, Topology};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::{Broker, BrokerError, Consumer, Depth, Message, PeekedMessage, PublishError, Rates, Sleeping};
use crate::settings::{BrokerSettings, BrokerUrl};
use certificates::Certificate;
pub use check::{Finding, Weight};
use connection::{Address, Link, up};
pub use definitions::definitions;
use management::Place;
pub use management::memory_of_nodes;
pub use patience::Patience;
use publish::Publisher;
use settle::Backlog;

/// How long closing waits for confirmations that are still out, and for settlements to be written.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Refuses a URL that [`RabbitBroker::connect`] could not even read.
///
/// # Errors
/// What is wrong with it, without the password.
pub fn check_url(url: &str) -> Result<(), String> {
    match Address::parse(url) {
        Ok(_) => Ok(()),
        Err(BrokerError::Connect { reason, .. }) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}

fn address_of(settings: &BrokerSettings) -> Result<Address, BrokerError> {
    match &settings.url {
        BrokerUrl::Amqp(url) => Ok(Address::parse(url.expose())?.with_tls(settings.tls.clone())),
        BrokerUrl::Embedded => {
            Err(BrokerError::Other("the embedded broker is in a worker's process, and nowhere else".into()))
        }
    }
}

/// How the management UI names a connection; the number tells workers on one machine apart.
fn shown_as(what: &str) -> String {
    format!("roundelay {what} {}", std::process::id())
}

/// Whether a URL that can be read asks for a login with a certificate.
pub fn logs_in_by_certificate(url: &str) -> bool {
    Address::parse(url).is_ok_and(|address| address.logs_in_by_certificate())
}

/// Connects to the RabbitMQ of a configuration.
///
/// # Errors
/// [`BrokerError::Away`] or [`BrokerError::Connect`], without the password.
pub async fn connect(settings: &BrokerSettings) -> Result<Arc<dyn Broker>, BrokerError> {
    Ok(Arc::new(RabbitBroker::open(settings).await?))
}

/// The RabbitMQ of a configuration, which is away, and `why`. It is connected to once it is there.
///
/// # Errors
/// [`BrokerError::Connect`] when its URL cannot be read.
pub fn absent(settings: &BrokerSettings, why: &str) -> Result<Arc<dyn Broker>, BrokerError> {
    Ok(Arc::new(RabbitBroker::absent(settings, why)?))
}

/// RabbitMQ. Publishing and consuming have a connection each: a broker short of memory or disk
/// stops reading from connections that publish, and acknowledgements must still get through.
pub struct RabbitBroker {
    address: Address,
    publisher: Publisher,
    publishing: Link,
    consuming: Link,
    entropy: Entropy,
    patience: Patience,
    management: Option<Secret>,
    /// Whether it is ours to declare what is missing.
    declares: bool,
    /// Of deliveries that were worked.
    settlements: Backlog,
    sleeping: Sleeping,
    _watch: Option<AbortOnDropHandle<()>>,
}

impl RabbitBroker {
    /// Connects to an `amqp://` or `amqps://` URL.
    ///
    /// # Errors
    /// [`BrokerError::Away`] or [`BrokerError::Connect`], without the password.
    pub async fn connect(url: &str, names: Names) -> Result<Self, BrokerError> {
        Self::connect_with(url, names, Patience::default()).await
    }

    /// Connects, with other limits on how long things may take.
    ///
    /// # Errors
    /// [`BrokerError::Away`] or [`BrokerError::Connect`], without the password.
    pub async fn connect_with(url: &str, names: Names, patience: Patience) -> Result<Self, BrokerError> {
        Self::at(Address::parse(url)?, names, patience).await
    }

    /// Connects to the RabbitMQ of a configuration.
    ///
    /// # Errors
    /// [`BrokerError::Away`] or [`BrokerError::Connect`], without the password.
    pub async fn open(settings: &BrokerSettings) -> Result<Self, BrokerError> {
        Self::open_with(settings, Patience::default()).await
    }

    /// Connects to the RabbitMQ of a configuration, with other limits on how long things may take.
    ///
    /// # Errors
    /// [`BrokerError::Away`] or [`BrokerError::Connect`], without the password.
    pub async fn open_with(settings: &BrokerSettings, patience: Patience) -> Result<Self, BrokerError> {
        let broker = Self::at(address_of(settings)?, Names::new(&settings.prefix), patience).await?;
        Ok(broker.configured(settings))
    }

    /// The RabbitMQ of a configuration, which is away, and `why`. It is connected to once it is there.
    ///
    /// # Errors
    /// [`BrokerError::Connect`] when its URL cannot be read.
    pub fn absent(settings: &BrokerSettings, why: &str) -> Result<Self, BrokerError> {
        let (address, entropy) = (address_of(settings)?, Entropy::from_os());
        let link = |what: &str| Link::absent(address.clone(), shown_as(what), entropy.clone(), why.into());
        let links = (link("publish"), link("consume"));
        let names = Names::new(&settings.prefix);
        Ok(Self::on(links, address.clone(), names, Patience::default(), entropy.clone()).configured(settings))
    }

    fn configured(self, settings: &BrokerSettings) -> Self {
        let sleeping = Sleeping::new(settings.delays);
        Self { declares: settings.declare, management: settings.management.clone(), sleeping, ..self }
    }

    async fn at(address: Address, names: Names, patience: Patience) -> Result<Self, BrokerError> {
        let entropy = Entropy::from_os();
        let link = |what: &str| Link::connect(address.clone(), shown_as(what), entropy.clone());
        let links = (link("publish").await?, link("consume").await?);
        Ok(Self::on(links, address.clone(), names, patience, entropy.clone()))
    }

    fn on(links: (Link, Link), address: Address, names: Names, patience: Patience, entropy: Entropy) -> Self {
        let (publishing, consuming) = links;
        let publisher = Publisher::start(&publishing, names, patience);
        let watch = address.clone().watch_certificates(patience.certificate);
        let watch = address.is_encrypted().then(|| AbortOnDropHandle::new(tokio::spawn(watch)));
        Self {
            address,
            publisher,
            publishing,
            consuming,
            entropy,
            patience,
            management: None,
            declares: true,
            settlements: Backlog::default(),
            sleeping: Sleeping::default(),
            _watch: watch,
        }
    }

    /// Lets [`Broker::verify`] look at the management API, given by its base URL.
    #[must_use]
    pub fn with_management(mut self, url: Option<Secret>) -> Self {
        self.management = url;
        self
    }

    /// Compares the broker with the topology. With the base URL of the management API (and
    /// credentials in it) everything is compared, policies included; without, only whether things
    /// exist, and a finding says so.
    ///
    /// # Errors
    /// When neither way works.
    pub async fn check(&self, topology: &Topology, management: Option<&str>) -> Result<Vec<Finding>, BrokerError> {
        let why_not = match management {
            Some(url) => match management::snapshot(&self.api(url), topology).await {
                Ok(snapshot) => return Ok(check::compare(topology, &snapshot)),
                Err(reason) => reason,
            },
            None => "`broker.management` is not set".into(),
        };
        let absent = declare::absent(&*self.consuming_connection().await?, topology).await?;
        Ok(check::existence_only(&absent, &why_not))
    }

    /// The management API at `url`.
    fn api<'a>(&'a self, url: &'a str) -> Place<'a> {
        Place { url, vhost: self.address.vhost(), tls: &self.address.tls }
    }

    /// The connection for everything but publishing.
    async fn consuming_connection(&self) -> Result<Arc<lapin::Connection>, BrokerError> {
        up(&mut self.consuming.line(), self.patience.connection).await.map_err(BrokerError::Other)
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    fn keeps_messages(&self) -> bool {
        true
    }

    fn sleeping(&self) -> &Sleeping {
        &self.sleeping
    }

    fn losses(&self) -> u64 {
        self.publishing.losses()
    }

    async fn apply(&self, topology: &Topology) -> Result<(), BrokerError> {
        if !self.declares {
            return declare::expect(&*self.consuming_connection().await?, topology).await;
        }
        let applied = declare::apply(&*self.consuming_connection().await?, topology).await;
        self.publisher.topology_applied();
        applied
    }

    /// Without the management API nothing can be told about policies, and a worker that may not
    /// ask it should still start; so only what is known to be wrong is refused.
    async fn verify(&self, topology: &Topology) -> Result<(), BrokerError> {
        let Some(url) = &self.management else {
            tracing::info!(
                "broker.management is not set, so policies that would harm the delay queues are not looked for"
            );
            return Ok(());
        };
        match management::snapshot(&self.api(url.expose()), topology).await {
            Ok(snapshot) => check::refuse_wrong(topology, &snapshot),
            Err(reason) => {
                tracing::warn!(reason, "the management API cannot be asked, so policies are not checked");
                Ok(())
            }
        }
    }

    async fn remove(&self, topology: &Topology) -> Result<(), BrokerError> {
        remove::remove(&*self.consuming_connection().await?, topology).await
    }

    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        self.publisher.publish(message).await
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer, BrokerError> {
        consume::consume(
            self.consuming.line(),
            queue,
            prefetch,
            self.patience,
            self.entropy.clone(),
            self.settlements.clone(),
        )
        .await
    }

    async fn depth(&self, queue: &str) -> Result<Depth, BrokerError> {
        declare::depth(&*self.consuming_connection().await?, queue).await
    }

    async fn peek(&self, queue: &str, most: usize) -> Result<Vec<PeekedMessage>, BrokerError> {
        peek::fetch(&*self.consuming_connection().await?, queue, most).await
    }

    async fn rates(&self) -> Result<BTreeMap<String, Rates>, String> {
        match &self.management {
            Some(url) => management::rates(&self.api(url.expose())).await,
            None => Err("`broker.management` is not set".into()),
        }
    }

    fn certificates(&self) -> Vec<Certificate> {
        self.address.certificates.known()
    }

    fn unavailable(&self) -> Option<String> {
        let full = "the broker has run into its memory or disk limit and accepts no messages";
        (self.publishing.unavailable().or_else(|| self.consuming.unavailable()))
            .or_else(|| (*self.publishing.blocked().borrow()).then(|| full.to_owned()))
    }

    /// Messages on their way out first, so that what a delivery gave rise to is confirmed before
    /// that delivery goes back to its queue.
    async fn close(&self) {
        self.publisher.finish(FINISH_WITHIN).await;
        self.publishing.close().await;
        let _ = timeout(FINISH_WITHIN, self.settlements.written()).await;
        self.consuming.close().await;
    }
}
