//! RabbitMQ's behaviour, as far as the engine uses it, inside this process.
//!
//! The embedded broker has the same exchanges, queues, TTLs, dead-lettering, prefetch, redelivery and returned
//! messages, so the same engine runs on it; `tests/it/broker_contract` runs the same tests on it and on RabbitMQ. Time
//! is tokio's, so with a paused clock the broker runs in virtual time, and on a current-thread runtime it is
//! deterministic. Messages are in memory: they are lost when the broker is dropped.
//!
//! - `broker`: the public [`EmbeddedBroker`]. `profile`: which version of RabbitMQ it behaves like.
//! - `node`: a lock around `state` (exchanges, queues, connections), and the timers. `queue`: one queue.
//!   `dead_lettering`: where messages go whose TTL or delivery limit is over. `settings`: what a queue's arguments and
//!   `policy` come to.
//! - `connection`: what belongs to one client, and is lost with it. `consumer`: delivers a queue's messages to it.
//! - `control`: what a test or a simulation does to the broker, and what it sees of it. `publish_fault`: the faults of
//!   a publish.

mod broker;
mod connection;
mod consumer;
mod control;
mod dead_lettering;
mod node;
mod policy;
mod profile;
mod publish_fault;
mod queue;
mod settings;
mod state;

pub use broker::EmbeddedBroker;
pub use connection::EmbeddedConnection;
pub use profile::Profile;
pub use publish_fault::{Held, HeldState, PublishFault};

#[cfg(test)]
mod tests;
