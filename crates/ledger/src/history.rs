//! The verbs that keep the history of attempts within bounds.
//!
//! Records of attempts lie in one table while they are young. When they are older than the history
//! to be kept, they are deleted, or moved to an archive, where they have a longer life of their own.

use async_trait::async_trait;
use roundelay_model::clock::Time;

use crate::claim::ClaimId;
use crate::error::LedgerError;

/// Keeps the history within bounds. Each verb does a bounded part of the work, so that no claim
/// waits long behind it, and answers how much; zero says that nothing is left to do.
#[async_trait]
pub trait History {
    /// Ends the records of claims whose lease is over, on chains that no worker will claim again; looks
    /// at `limit` of them.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn end_left(&self, limit: u32) -> Result<(), LedgerError>;

    /// Claims of a session on chains that do not tick, at most `limit`. The session's worker gives up those that it
    /// does not run ([`super::Sessions::give_up`]): it never got the answers to them, and no worker claims such a chain
    /// again.
    ///
    /// # Errors
    /// When the ledger does not answer.
    async fn left_with(&self, session: i64, limit: u32) -> Result<Vec<ClaimId>, LedgerError>;

    /// Moves records of attempts that ended before `before` to the archive, looking at the `limit`
    /// oldest. What [`History::prune`] would delete, this keeps, with the chain's name.
    ///
    /// # Errors
    /// When it is not known to be written; then all of it was, or nothing.
    async fn archive(&self, before: Time, limit: u32) -> Result<usize, LedgerError>;

    /// Deletes records from the archive that ended before `before`, looking at the `limit` oldest.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn expire(&self, before: Time, limit: u32) -> Result<usize, LedgerError>;

    /// Deletes records of attempts that ended before `before`, looking at the `limit` oldest;
    /// returns how many. Also forgets the places of unique jobs, and which retries from quarantine came first, where
    /// they were to last until before `before` only.
    ///
    /// # Errors
    /// When nothing was deleted.
    async fn prune(&self, before: Time, limit: u32) -> Result<usize, LedgerError>;
}
