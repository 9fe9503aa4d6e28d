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

mod broker;
mod connection;
mod consumer;
mod fault;
mod faults;
mod node;
mod policy;
mod profile;
mod queue;
mod rung;
mod settings;
mod state;

pub use broker::EmbeddedBroker;
pub use connection::EmbeddedConnection;
pub use faults::{Held, HeldState, PublishFault};
pub use profile::Profile;

#[cfg(test)]
mod tests;
