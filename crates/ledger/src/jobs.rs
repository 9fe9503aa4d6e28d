//! One-off jobs that the ledger keeps until they have been sent, and messages that cannot be used.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;

use crate::chain::{ChainState, Hint};
use crate::enroll::NewChain;
use crate::error::LedgerError;

/// The kind to give to [`Jobs::reserve`] for messages that are sent again from quarantine: the first copy that is about
/// to run gets the reservation, and copies of other retries are dropped. These reservations end by themselves.
pub const RETRIED: &str = "roundelay.retried";

/// A one-off job on its way into the ledger's outbox. The job stays there until it is forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnedJob {
    /// The job's id; one that is there already is not changed.
    pub id: String,
    /// The message body.
    pub body: Vec<u8>,
}

/// A one-off job that the ledger keeps: until it has been sent, or, with the embedded broker, which stores no messages,
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

/// Keeps one-off jobs, the reservations of unique ones, and messages that cannot be used.
#[async_trait]
pub trait Jobs {
    /// Keeps jobs and failed parts that the run of a one-off job of this `kind` and `key` asks for, and begins chains
    /// that it has discovered, in one transaction. Answers the first messages of those that are new.
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

    /// Keeps a message that cannot be used, with the embedded broker, which stores none. If the message is that of the
    /// kept job `job`, the job is forgotten too, so that a worker that starts does not find it again.
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

    /// Reserves kind and key for the job `id`, for `window` from now, unless there is a reservation that goes on; that
    /// one stays as it is, also if it is of the same job. Answers with the id of the job that has the reservation.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn reserve(&self, kind: String, key: String, id: String, window: Duration) -> Result<String, LedgerError>;

    /// Ends the reservation of [`Jobs::reserve`] for the job `id`; does nothing if another job has it.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError>;
}
