//! Carrying messages: the trait, and the types that both brokers share.
//!
//! - [`rabbit`]: RabbitMQ over lapin, for production.
//! - [`embedded`]: the same topology in this process, for development, single machines, tests and
//!   simulation. It keeps nothing: the ledger re-creates every chain's message.
//!
//! A message sleeps on a rung, or natively on its own queue: [`Sleeping`] says which, and [`probe()`] finds out what the
//! broker can do.
//!
//! A job comes in as a delivery on a platform queue, is acknowledged when its consequences are safe, and its successor
//! goes out as a publish that the broker confirms.
//!
//! Layer: on `model` and `net`. May use: lapin. Knows neither ledger nor configuration: [`BrokerSettings`] says how to
//! connect.

pub mod embedded;
mod probe;
#[cfg(feature = "rabbitmq")]
pub mod rabbit;
#[cfg(not(feature = "rabbitmq"))]
#[path = "rabbit/left_out.rs"]
pub mod rabbit;
mod settings;
mod sleeping;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use roundelay_model::clock::Time;
use roundelay_model::job::Envelope;
use roundelay_model::topology::Topology;
use roundelay_model::trace_context::Carried;
use tokio::sync::mpsc;

pub use probe::probe;
use rabbit::certificates::Certificate;
pub use settings::{BrokerSettings, BrokerUrl};
pub use sleeping::{Delays, Sleeping, Way};

/// Where a message is published to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A platform queue (or the rearm queue), now.
    Queue(String),
    /// A rung; when its time is over the message goes to `then`, a platform queue or the rearm
    /// queue.
    Rung {
        /// The rung's time to live.
        rung: Duration,
        /// Where the message goes afterwards.
        then: String,
    },
    /// A platform queue, where the message sleeps until a time. A broker that does not know this hands the message on
    /// at once: see [`Broker::parks`].
    Asleep {
        /// The queue.
        queue: String,
        /// Until when, by the broker's clock.
        until: Time,
    },
    /// The quarantine, for a message that cannot be used.
    Quarantine {
        /// The queue it was found on.
        from: String,
        /// Why, for a person.
        reason: String,
    },
}

/// A message on its way out.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where to.
    pub to: Destination,
    /// The AMQP message id; the same when the same attempt is published again.
    pub id: String,
    /// The body, at most [`roundelay_model::job::MAX_BYTES`] unless it goes to quarantine.
    pub body: Bytes,
    /// The span that sends it, which travels in headers.
    pub trace: Option<Box<Carried>>,
}

impl Message {
    /// `envelope` on its way to `to`.
    pub fn new(to: Destination, envelope: &Envelope) -> Self {
        Self { to, id: envelope.message_id(), body: envelope.encode().into(), trace: envelope.trace.clone() }
    }
}

/// A message that has arrived and must be settled exactly once.
pub struct Delivery {
    /// The body as published.
    pub body: Bytes,
    /// The queue it was consumed from.
    pub queue: Arc<str>,
    /// Whether it was delivered before and not settled.
    pub redelivered: bool,
    /// How often it has been dead-lettered since it was published, as far as the broker says.
    pub deaths: usize,
    /// The AMQP message id, the same when it is delivered again; absent when it has none, or the broker keeps none.
    pub id: Option<Box<str>>,
    /// The span that has sent it, if it says so.
    pub trace: Option<Box<Carried>>,
    /// Until when it was to sleep on its queue, by the broker's clock, if it says so.
    pub asleep_until: Option<Time>,
    /// Why the message's properties could not be read, if they could not.
    pub unreadable: Option<Box<str>>,
    /// `None` once the delivery was let go.
    settle: Mutex<Option<Box<dyn Settle>>>,
}

impl Delivery {
    /// A delivery whose fate `settle` reports to the broker.
    pub fn new(body: Bytes, queue: Arc<str>, redelivered: bool, deaths: usize, settle: Box<dyn Settle>) -> Self {
        Self {
            body,
            queue,
            redelivered,
            deaths,
            id: None,
            trace: None,
            asleep_until: None,
            unreadable: None,
            settle: Mutex::new(Some(settle)),
        }
    }

    /// The same, with this AMQP message id; an empty one is none.
    #[must_use]
    pub fn named(self, id: Option<&str>) -> Self {
        Self { id: id.filter(|id| !id.is_empty()).map(Into::into), ..self }
    }

    /// The same, sent by this span.
    #[must_use]
    pub fn traced(self, trace: Option<Box<Carried>>) -> Self {
        Self { trace, ..self }
    }

    /// The same, which was to sleep on its queue until then.
    #[must_use]
    pub fn asleep_until(self, until: Option<Time>) -> Self {
        Self { asleep_until: until, ..self }
    }

    /// The same, of which no more than the body could be read, and why.
    #[must_use]
    pub fn unreadable(self, why: Option<&str>) -> Self {
        Self { unreadable: why.map(Into::into), ..self }
    }

    /// Whether it can still be settled. When its connection has died it cannot, and the broker
    /// delivers the message again: a worker that has not begun to work on it should leave it.
    pub fn is_alive(&self) -> bool {
        self.settle.lock().as_ref().is_none_or(|settle| settle.is_alive())
    }

    /// Acknowledges it before its work is done, for work that takes longer than a broker lets a consumer keep a
    /// message and that is safe without it. Settling it afterwards does nothing.
    pub async fn let_go(&self) {
        let settle = self.settle.lock().take();
        if let Some(settle) = settle {
            settle.ack().await;
        }
    }

    /// Acknowledges the message: the broker forgets it. On a connection that has died meanwhile this does nothing, and
    /// the broker delivers the message again.
    pub async fn ack(self) {
        self.let_go().await;
    }

    /// Puts the message back: the broker delivers it again.
    pub async fn requeue(self) {
        if let Some(settle) = self.into_settle() {
            settle.requeue().await;
        }
    }

    /// What settles the delivery; `None` once the delivery was let go.
    pub(crate) fn into_settle(self) -> Option<Box<dyn Settle>> {
        self.settle.into_inner()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("queue", &self.queue).field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

/// Reports a delivery's fate.
#[async_trait]
pub trait Settle: Send + Sync {
    /// See [`Delivery::is_alive`].
    fn is_alive(&self) -> bool;
    /// See [`Delivery::ack`].
    async fn ack(self: Box<Self>);
    /// See [`Delivery::requeue`].
    async fn requeue(self: Box<Self>);
}

/// A queue being consumed. It survives reconnections; deliveries of an older connection that are
/// not yet settled come again, marked as redelivered.
pub struct Consumer {
    deliveries: mpsc::Receiver<Delivery>,
    /// Dropping this tells the broker side to cancel.
    _alive: mpsc::Sender<()>,
}

impl Consumer {
    /// A consumer, and what its broker side needs: where to put deliveries, and a receiver that
    /// ends when the consumer is cancelled.
    pub fn channel(prefetch: u16) -> (Self, mpsc::Sender<Delivery>, mpsc::Receiver<()>) {
        let (deliver, deliveries) = mpsc::channel(usize::from(prefetch.max(1)));
        let (alive, cancelled) = mpsc::channel(1);
        (Self { deliveries, _alive: alive }, deliver, cancelled)
    }

    /// The next message; `None` once the broker has been closed for good.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// Stops the flow and puts back what was delivered and not yet taken. Deliveries that were
    /// taken can still be settled. Returns when the broker has confirmed that nothing more comes,
    /// or has had its time to: what is put back afterwards does not come here again.
    pub async fn cancel(self) {
        let Self { mut deliveries, _alive } = self;
        drop(_alive);
        while let Some(delivery) = deliveries.recv().await {
            delivery.requeue().await;
        }
    }
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages that wait to be delivered, without those that sleep.
    pub ready: u64,
    /// Consumers attached.
    pub consumers: u64,
}

/// A message that waits for a person.
pub struct PeekedMessage {
    /// The AMQP message id; empty when it does not say. In quarantine no other message has it, unless it is the same
    /// one set aside twice.
    pub id: String,
    /// The queue that it came from; empty when it does not say.
    pub from: String,
    /// Why it cannot be used; empty when it does not say.
    pub reason: String,
    /// The message's body.
    pub body: Bytes,
    settle: Box<dyn Settle>,
}

impl PeekedMessage {
    /// Puts the message back where it was.
    pub async fn put_back(self) {
        self.settle.requeue().await;
    }

    /// Acknowledges the message: the broker forgets it.
    pub async fn forget(self) {
        self.settle.ack().await;
    }
}

/// Figures of a queue that only the broker has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Messages published in a second.
    pub published: f64,
    /// Messages delivered in a second.
    pub delivered: f64,
    /// Messages that sleep on it until their time; 0 where they cannot.
    pub asleep: u64,
}

/// Why a publish did not succeed; phrased to follow "failed to publish: ".
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The broker has no queue for it, so it was returned.
    #[error("the broker has no queue for {0}; run `roundelay topology apply`")]
    Unroutable(String),
    /// The broker refused it, for example because a queue is full.
    #[error("the broker refused the message for {0} (queue full or being deleted)")]
    Refused(String),
    /// It is not known whether the broker has it. Publish the same identity again.
    #[error("no confirmation ({0}); the broker may or may not have the message")]
    Unknown(String),
}

/// What went wrong with the broker; phrased to follow "failed to …: ".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Nothing answers at its address: it is away, or starts, or the way there is broken.
    #[error("cannot connect to {url}: {reason}")]
    Away {
        /// The address, without credentials.
        url: String,
        /// What the client says.
        reason: String,
    },
    /// It refuses these credentials, or the URL or the files of `broker.tls` are wrong.
    #[error("cannot connect to {url}: {reason}")]
    Connect {
        /// The address, without credentials.
        url: String,
        /// What the client or the broker says.
        reason: String,
    },
    /// An exchange or queue exists with other properties than it must have.
    #[error("{0}")]
    Topology(String),
    /// Anything else that the broker says.
    #[error("{0}")]
    Other(String),
}

/// Carries messages.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Whether messages outlive this process. Where they do not, every chain's message is
    /// re-created from the ledger at start.
    fn keeps_messages(&self) -> bool;

    /// Whether messages sleep on their queue until their time ([`Destination::Asleep`]), where that is known without
    /// trying. RabbitMQ does so from 4.4 on, and cannot be asked.
    fn parks(&self) -> Option<bool> {
        None
    }

    /// How messages sleep on it.
    fn sleeping(&self) -> &Sleeping;

    /// How often a connection to the broker was lost: what is behind the next one may be another version.
    fn losses(&self) -> u64 {
        0
    }

    /// Declares exchanges, queues and bindings; harmless when they are there already. Where others declare, it only
    /// looks whether they are there, as far as it may look.
    ///
    /// # Errors
    /// [`BrokerError::Topology`] names what exists with other properties, or is not there.
    async fn apply(&self, topology: &Topology) -> Result<(), BrokerError>;

    /// Refuses a broker on which messages would be lost or come early, as far as that can be told.
    /// Asked once when a worker starts.
    ///
    /// # Errors
    /// [`BrokerError::Topology`] says what is wrong and how to mend it.
    async fn verify(&self, _topology: &Topology) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Deletes everything in `topology`, messages included. For demos and benchmarks, which clean
    /// up after themselves.
    ///
    /// # Errors
    /// When the broker refuses.
    async fn remove(&self, topology: &Topology) -> Result<(), BrokerError>;

    /// Publishes: persistent, mandatory, and returning only when the broker has confirmed. While
    /// the broker is away it waits a bounded time.
    ///
    /// # Errors
    /// [`PublishError`], after which the message may have to be published again.
    async fn publish(&self, message: Message) -> Result<(), PublishError>;

    /// Consumes a queue with at most `prefetch` unsettled deliveries.
    ///
    /// # Errors
    /// When the broker refuses. Later interruptions are mended inside.
    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer, BrokerError>;

    /// How full a queue is.
    ///
    /// # Errors
    /// When the broker cannot be asked or has no such queue.
    async fn depth(&self, queue: &str) -> Result<Depth, BrokerError>;

    /// Fetches the first messages of a queue without consumers, such as the quarantine, at most `most`, for a person.
    /// Each is to be settled; a message that is only dropped goes back, too. A broker that keeps no messages has none.
    ///
    /// # Errors
    /// When the broker cannot be asked or has no such queue.
    async fn peek(&self, _queue: &str, _most: usize) -> Result<Vec<PeekedMessage>, BrokerError> {
        Ok(Vec::new())
    }

    /// How many messages come and go in a second, and how many sleep, by queue, as far as the broker reports it. A broker
    /// that keeps no such figures answers with none.
    ///
    /// # Errors
    /// Why the rates cannot be had.
    async fn rates(&self) -> Result<BTreeMap<String, Rates>, String> {
        Ok(BTreeMap::new())
    }

    /// The certificates of connections to it, as far as they are known.
    fn certificates(&self) -> Vec<Certificate> {
        Vec::new()
    }

    /// Why the broker cannot be used now; nothing when it is connected and takes messages. Answers
    /// at once, from what is known of the connections.
    fn unavailable(&self) -> Option<String> {
        None
    }

    /// Closes the connections in good order. Unsettled deliveries are delivered again.
    async fn close(&self);
}
