//! The verbs for failures: keeping them, feeding failed parts back, and operators' orders for them.
//!
//! A part that failed within a run that worked waits in the ledger until reconcile *feeds* it back: the
//! job for it is accepted into the outbox in the same transaction that names the job in the part's row.
//! Only a job that the row names may run, and only one at a time, because a run *holds* the row. So a
//! job may be lost, sent twice or delivered again, and the part is still tried by one run at a time, and
//! in the end by one.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::{FailedItem, Failure, ItemEnd};

use crate::error::LedgerError;
use crate::jobs::SpawnedJob;

/// Failures that fit all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureFilter {
    /// Those of this kind.
    pub kind: Option<String>,
    /// Those of this entity.
    pub key: Option<String>,
    /// Those of entities whose keys fit this pattern: `*` stands for anything, `?` for one character.
    pub like: Option<String>,
    /// Those of entities whose chains belong to this owner.
    pub owner: Option<String>,
    /// Those of this part.
    pub item: Option<String>,
    /// Those with a reason of this name.
    pub code: Option<String>,
    /// Those that are never tried again by themselves, or those that are.
    pub permanent: Option<bool>,
    /// Those whose entities have worked since, or those that fail now.
    pub recovered: Option<bool>,
}

/// The place after which a page of failures begins: kind, key and item of the last one before it.
pub type FailureCursor = (String, String, String);

/// A part that may be fed back, and the chain that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueItem {
    /// What failed; its `next_retry_at` is set.
    pub failure: Failure,
    /// The chain's queue.
    pub queue: String,
    /// The chain's payload, as JSON text.
    pub payload: String,
    /// The chain's owner.
    pub owner: Option<String>,
    /// How many runs have led to the chain. The part's job is one of its runs, and may ask for no more than they may.
    pub depth: u32,
}

/// What becomes of a part that was due. Refused, so that nothing is done twice, unless the part is
/// still due since the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedItem {
    /// The entity's kind.
    pub kind: String,
    /// The entity.
    pub key: String,
    /// The part.
    pub item: String,
    /// What its `next_retry_at` was.
    pub seen: Time,
    /// What becomes of it.
    pub plan: Plan,
}

/// What becomes of a part that was due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It is looked at again then.
    Wait(Time),
    /// It has been tried often enough.
    GiveUp,
    /// This job is accepted for it. It is looked at again at `until`, in case the job is lost.
    Feed {
        /// The job.
        job: SpawnedJob,
        /// Until when the job is waited for.
        until: Time,
    },
}

/// Whether a job may run for a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It may. No other run may until the hold ends.
    Taken(Box<Failure>),
    /// Another run has it until then.
    Held(Time),
    /// No part waits for this job any more.
    Gone,
}

/// Keeps what has failed.
#[async_trait]
pub trait Failures {
    /// Failures after a place, in the order of kind, key and item.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn failed(
        &self,
        filter: FailureFilter,
        after: Option<FailureCursor>,
        limit: u32,
    ) -> Result<Vec<Failure>, LedgerError>;

    /// How many failures fit: of parts, and of whole entities.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn count_failed(&self, filter: FailureFilter) -> Result<(u64, u64), LedgerError>;

    /// Makes failed parts due now, with no attempt counted any more; answers how many. Whole entities, and
    /// parts that a run holds at this moment, stay as they are.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn retry_failed(&self, filter: FailureFilter) -> Result<u64, LedgerError>;

    /// Forgets failures; answers how many.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn drop_failed(&self, filter: FailureFilter) -> Result<u64, LedgerError>;

    /// Failed parts of a kind that are due, of chains that tick, longest due first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn due_items(&self, kind: String, limit: u32) -> Result<Vec<DueItem>, LedgerError>;

    /// Carries out plans; answers, for each, whether it was carried out. A plan is not when another worker was faster.
    ///
    /// # Errors
    /// When some of it is not known to be written.
    async fn plan_items(&self, planned: Vec<PlannedItem>) -> Result<Vec<bool>, LedgerError>;

    /// Takes the part that waits for the job with this id, for at most so long from now.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn hold_item(&self, id: String, length: Duration) -> Result<Hold, LedgerError>;

    /// Gives the part up again, and waits for the same job until `until`.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn put_off_item(&self, id: String, until: Time) -> Result<(), LedgerError>;

    /// Writes what the job with this id came to, unless the part waits for another by now.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn end_item(&self, id: String, end: ItemEnd, at: Time) -> Result<(), LedgerError>;

    /// Keeps what went wrong with an entity, or with a part of it.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn record_failure(&self, kind: String, key: String, failed: FailedItem, at: Time) -> Result<(), LedgerError>;

    /// The kept failures, latest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn failures(&self, limit: u32) -> Result<Vec<Failure>, LedgerError>;

    /// The kept failures of one entity, latest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn failures_of(&self, kind: String, key: String) -> Result<Vec<Failure>, LedgerError>;
}
