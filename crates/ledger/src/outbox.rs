//! One-off jobs that the ledger keeps until they have been sent.

use roundelay_model::clock::Time;

/// A one-off job on its way into the ledger's outbox. It stays there until it is forgotten.
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
    /// Since when; or when a worker last took the job to send it.
    pub kept_at: Time,
}
