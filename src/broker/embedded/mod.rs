//! RabbitMQ's behaviour, as far as the engine uses it, inside this process.
//!
//! It has the same exchanges, queues, times to live, dead-lettering, prefetch, redelivery and
//! returns, so the same engine runs on it; contract tests hold it against the real thing. Time is
//! tokio's, so with a paused clock it runs in virtual time, and on a current-thread runtime the same
//! calls always have the same consequences. Nothing is kept when it is dropped.
//!
//! - `node`: the lock, and the clock of the rungs; `state` is what is behind the lock, `queue` one
//!   queue of it, `settings` what a queue's arguments come to.
//! - `connection`: what belongs to one client, and is lost with it; `consumer` keeps a queue flowing
//!   to it.
//! - `fault`: what a test or a simulation does to the broker, and what it sees of it.

mod connection;
mod consumer;
mod fault;
mod node;
mod queue;
mod settings;
mod state;

use std::sync::Arc;

use async_trait::async_trait;

pub use connection::EmbeddedConnection;
pub use fault::{Held, HeldState, PublishFault};

use super::topology::{Names, Topology};
use super::{Broker, BrokerError, Consumer, Depth, Message, PublishError};
use node::Node;

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
        let node = Node::start();
        let own = Arc::new(EmbeddedConnection::open(names.clone(), node.clone()));
        Self { names, node, own }
    }

    /// A further connection, as another process has one. It waits for the broker while that is
    /// [stopped](Self::stop).
    pub fn connect(&self) -> EmbeddedConnection {
        EmbeddedConnection::open(self.names.clone(), self.node.clone())
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
