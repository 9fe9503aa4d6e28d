//! RabbitMQ's behaviour, as far as the engine uses it, inside this process.
//!
//! It has the same exchanges, queues, times to live, dead-lettering, prefetch, redelivery and
//! returns, so the same engine runs on it; contract tests hold it against the real thing. Time is
//! tokio's, so with a paused clock it runs in virtual time, and on a current-thread runtime the same
//! calls always have the same consequences. Nothing is kept when it is dropped.
//!
//! - `node`: the lock, and the clock; `state` is what is behind the lock, `queue` one queue of it,
//!   `rung` the way out of a queue, `settings` what a queue's arguments and `policy` come to.
//! - `connection`: what belongs to one client, and is lost with it; `consumer` keeps a queue flowing
//!   to it.
//! - `fault`: what a test or a simulation does to the broker, and what it sees of it.

mod connection;
mod consumer;
mod fault;
mod node;
mod policy;
mod queue;
mod rung;
mod settings;
mod state;

use std::sync::Arc;

use async_trait::async_trait;
use roundelay_model::topology::{Names, Topology};

use super::rabbit::Patience;
use super::{Broker, BrokerError, Consumer, Depth, Message, PublishError};
pub use connection::EmbeddedConnection;
pub use fault::{Held, HeldState, PublishFault};
use node::Node;

/// Whose behaviour it has, where versions differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// RabbitMQ 3.10:
    ///
    /// - There is no delivery limit but what a queue's arguments say, and whatever comes back counts.
    ///   Without a limit, what is put back goes behind all else.
    /// - A consumer of a queue that is deleted and at once declared again is not told. Messages are
    ///   given to it, and do not arrive. It mends itself after
    ///   [`Patience::silence`](crate::rabbit::Patience::silence).
    /// - What messages say of having been dead-lettered is believed: such a message does not go on
    ///   to a queue on which, as it says, it has been before, and blocks its rung as any that is
    ///   stuck.
    /// - Purging a rung leaves what is stuck on it.
    Rabbit310,
    /// RabbitMQ 4.0: the delivery limit and the consumers of later versions, and what is put back or purged as before.
    Rabbit40,
    /// RabbitMQ 4.3: the delivery limit is 20 where nothing else is said, and only what comes back
    /// because its channel has gone counts. Consumers of a deleted queue are told. Nothing is
    /// believed. Purging a rung purges what is stuck on it.
    #[default]
    Rabbit4,
}

/// The broker, and a connection to it that is there as long as anybody holds it. Clones are the
/// same one; a process of its own has its own [connection](Self::connect).
#[derive(Clone)]
pub struct EmbeddedBroker {
    names: Names,
    node: Arc<Node>,
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

    /// Likewise, with other limits on how long things may take.
    pub fn connect_with(&self, patience: Patience) -> EmbeddedConnection {
        EmbeddedConnection::open(self.names.clone(), self.node.clone(), patience)
    }
}

#[async_trait]
impl Broker for EmbeddedBroker {
    fn keeps_messages(&self) -> bool {
        false
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

#[cfg(test)]
mod tests;
