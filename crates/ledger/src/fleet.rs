//! The verbs of workers: what each says of itself, and what operators have ordered of queues and of them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrder, FleetOrders, Presence, SILENT, Subject, ThroughputSample};

use crate::error::LedgerError;

/// A worker, as it was when it last said something.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenWorker {
    /// How it was.
    pub presence: Presence,
    /// When it said so, by the ledger's clock.
    pub seen: Time,
}

impl SeenWorker {
    /// Whether the worker has said nothing for longer than [`SILENT`].
    pub fn is_silent(&self, now: Time) -> bool {
        self.seen + SILENT < now
    }
}

/// The error for a subject of which nothing can be ordered any more.
pub(super) fn gone(subject: Subject) -> LedgerError {
    let (Subject::Queue(name) | Subject::Worker(name)) = subject;
    LedgerError::NoWorker(name)
}

/// Knows the workers of this ledger.
#[async_trait]
pub trait Fleet {
    /// Writes how a worker is, and what it has done since it last said so. Forgets what is older than
    /// [`roundelay_model::fleet::KEPT`].
    ///
    /// # Errors
    /// When it is not known to be written. Nothing hangs on it.
    async fn attend(&self, presence: Presence, pulses: Vec<ThroughputSample>) -> Result<(), LedgerError>;

    /// Forgets a worker that has ended, and what was ordered of it.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn leave(&self, worker: String) -> Result<(), LedgerError>;

    /// The workers that have not ended, by their names, those included that have fallen silent.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn workers(&self) -> Result<Vec<SeenWorker>, LedgerError>;

    /// What all workers have done since then.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn pulses(&self, since: Time) -> Result<Vec<ThroughputSample>, LedgerError>;

    /// What operators have ordered; what nothing was ordered of is absent.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn fleet_orders(&self) -> Result<BTreeMap<Subject, FleetOrders>, LedgerError>;

    /// Adds an order of `by` to what holds for `subject`, and answers with all that holds. Workers know of it
    /// within two seconds.
    ///
    /// # Errors
    /// When it is not known to be written; [`LedgerError::NoWorker`] for a worker that has ended, or was silent for
    /// [`roundelay_model::fleet::KEPT`].
    async fn order_fleet(&self, subject: Subject, order: FleetOrder, by: String) -> Result<FleetOrders, LedgerError>;
}
