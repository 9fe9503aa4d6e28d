//! The settings of a connection to a broker.

use std::num::NonZeroU32;

use roundelay_model::secret::Secret;
use roundelay_net::tls::BrokerTls;

use crate::sleeping::Delays;

/// `[broker]`
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    /// `embedded`, `amqp://…` or `amqps://…`.
    pub url: BrokerUrl,
    /// What every exchange and queue name of the engine's own begins with.
    pub prefix: String,
    /// Base URL of RabbitMQ's management API, with credentials.
    pub management: Option<Secret>,
    /// Whether workers, and programs that enroll, declare what is missing. Else they only check that it is there.
    pub declare: bool,
    /// How messages sleep.
    pub delays: Delays,
    /// Messages in a second that enrolling, or a worker's catch-up, publishes at most.
    pub bulk_rate: NonZeroU32,
    /// The certificates by which the broker and its management API are trusted, and ours for them.
    pub tls: BrokerTls,
}

/// Which broker.
#[derive(Clone, Debug)]
pub enum BrokerUrl {
    /// In this process.
    Embedded,
    /// RabbitMQ.
    Amqp(Secret),
}
