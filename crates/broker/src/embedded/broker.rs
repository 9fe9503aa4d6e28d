//! The broker, and a connection to it.

use std::sync::Arc;

use async_trait::async_trait;
use roundelay_model::topology::{Names, Topology};

use super::node::Node;
use crate::embedded::connection::EmbeddedConnection;
use crate::embedded::profile::Profile;
use crate::rabbit::Patience;
use crate::{Broker, BrokerError, Consumer, Depth, Message, PublishError, Sleeping};

/// The broker, and a connection to it that is there as long as a clone of it exists. Clones are the
/// same one; a process of its own has its own [connection](Self::connect).
#[derive(Clone)]
pub struct EmbeddedBroker {
    names: Names,
    pub(super) node: Arc<Node>,
    own: Arc<EmbeddedConnection>,
}

impl EmbeddedBroker {
    /// An empty broker. Must be called inside a tokio runtime, which runs its clock.
    pub fn new(names: Names) -> Self {
        Self::with_profile(names, Profile::default())
    }

    /// An empty broker that behaves as this version of RabbitMQ.
    pub fn with_profile(names: Names, profile: Profile) -> Self {
        let node = Node::start(profile);
        let own = Arc::new(EmbeddedConnection::open(names.clone(), node.clone(), Patience::default()));
        Self { names, node, own }
    }

    /// A further connection, as another process has one. It waits for the broker while that is
    /// [stopped](Self::stop).
    pub fn connect(&self) -> EmbeddedConnection {
        self.connect_with(Patience::default())
    }

    /// A further connection, with other limits on how long things may take.
    pub fn connect_with(&self, patience: Patience) -> EmbeddedConnection {
        EmbeddedConnection::open(self.names.clone(), self.node.clone(), patience)
    }
}

#[async_trait]
impl Broker for EmbeddedBroker {
    fn keeps_messages(&self) -> bool {
        false
    }

    fn sleeping(&self) -> &Sleeping {
        self.own.sleeping()
    }

    fn parks(&self) -> Option<bool> {
        Some(self.node.lock().profile.parks())
    }

    async fn apply(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.own.apply(topology).await
    }

    async fn verify(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.own.verify(topology).await
    }

    async fn remove(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.own.remove(topology).await
    }

    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        self.own.publish(message).await
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer, BrokerError> {
        self.own.consume(queue, prefetch).await
    }

    async fn depth(&self, queue: &str) -> Result<Depth, BrokerError> {
        self.own.depth(queue).await
    }

    /// Leaves the connection open: it is there for everyone who holds the broker.
    async fn close(&self) {}
}
