//! One-off jobs that the ledger keeps until they have been sent, and messages that cannot be used.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;

use crate::chain::{ChainState, Hint};
use crate::enroll::NewChain;
use crate::error::LedgerError;

/// In place of a kind, for the places that [`Jobs::reserve`] gives to messages sent again from quarantine: they say
/// which retry came first. They are never released.
pub const RETRIED: &str = "roundelay.retried";

/// A one-off job on its way into the ledger's outbox. The job stays there until it is forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnedJob {
    /// The job's id; one that is there already is not changed.
    pub id: String,
    /// The message body.
    pub body: Vec<u8>,
}

/// A one-off job that the ledger keeps: until it has been sent, or, where the broker keeps nothing,
/// until it has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptJob {
    /// Grows with every job.
    pub number: i64,
    /// The message body.
    pub body: Vec<u8>,
    /// When the job was kept; or when a worker last took it to send it.
    pub kept_at: Time,
}

/// Keeps one-off jobs, their places, and messages that cannot be used.
#[async_trait]
pub trait Jobs {
    /// Keeps jobs and failed parts that a run without a chain asks for, and begins chains that it has
    /// discovered, in one transaction. Answers the first messages of those that are new.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn accept(
        &self,
        kind: String,
        key: String,
        spawned: Vec<SpawnedJob>,
        chains: Vec<NewChain>,
        failed: Vec<FailedItem>,
    ) -> Result<Vec<Hint>, LedgerError>;

    /// Keeps a one-off job under its id, in place of an earlier attempt, until it is forgotten.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn keep_job(&self, id: String, body: Vec<u8>) -> Result<(), LedgerError>;

    /// Kept jobs with numbers above `after`.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>, LedgerError>;

    /// Takes kept jobs with numbers above `after`, up to `limit` of them, to send them: those that were kept, or last
    /// taken, at `before` or earlier. They count as kept from now, so of several workers one sends a job.
    ///
    /// # Errors
    /// When it is not known to be written. Then the jobs may count as taken, and are found again later.
    async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>, LedgerError>;

    /// Forgets kept jobs that have been sent, or have ended.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_jobs(&self, ids: Vec<String>) -> Result<(), LedgerError>;

    /// Keeps a message that cannot be used, where the broker keeps none. If the message is that of the kept job `job`,
    /// the job is forgotten too, so that a worker that starts does not find it again.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn quarantine(
        &self,
        from: String,
        reason: String,
        body: Vec<u8>,
        job: Option<String>,
        at: Time,
    ) -> Result<(), LedgerError>;

    /// What an owner's jobs may do; [`ChainState::Active`] for an owner without an order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn owner(&self, owner: String) -> Result<ChainState, LedgerError>;

    /// Takes the place of the job with this id as the only one of its kind and key, for `window` from
    /// now. Answers with the id of the job that has it: this one, unless another has.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn reserve(&self, kind: String, key: String, id: String, window: Duration) -> Result<String, LedgerError>;

    /// Gives up the place that [`Jobs::reserve`] gave to the job `id`.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError>;
}
