//! The verbs of workers' leases.
//!
//! A worker holds one lease for all its runs together: a *session*. It says about once a second that it lives, by a
//! number that rises (its *beat*), and whoever looks at the others does so at the same time. A session is over when its
//! row is gone; it never comes back. Who may take that row away is decided by [`roundelay_engine`], by clocks that
//! nobody sets: see `crates/engine/src/vitals.rs`.

use std::time::Duration;

use async_trait::async_trait;

use crate::claim::ClaimId;
use crate::error::LedgerError;

/// A session of a worker, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Names it, unlike any other of this ledger.
    pub session: i64,
    /// Whose it is.
    pub worker: String,
    /// It ends when its worker has not been heard of for so long.
    pub lease: Duration,
    /// Rises as long as the worker lives.
    pub beat: i64,
    /// The operating system says that the worker's process has ended.
    pub gone: bool,
}

/// The answer to [`Sessions::beat`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Whether one's own session goes on.
    pub alive: bool,
    /// The others that go on.
    pub others: Vec<Session>,
    /// Of those that were said to be dead, the ones that this has ended.
    pub ended: Vec<i64>,
}

/// Keeps the leases of workers.
#[async_trait]
pub trait Sessions {
    /// Begins a session of a worker, who promises to have ended its runs when it could not say for `lease` that it lives.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn begin_session(&self, worker: String, lease: Duration) -> Result<i64, LedgerError>;

    /// Says that a session's worker lives. Ends those of the `dead`, named by session and beat, that have not been heard
    /// of since.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn beat(&self, session: i64, dead: Vec<(i64, i64)>) -> Result<Beat, LedgerError>;

    /// Ends a session in good order: it holds nothing any more, or nothing of it is to be waited for.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn end_session(&self, session: i64) -> Result<(), LedgerError>;

    /// Whether claims still hold, each: nobody else has claimed the chain since, it has not begun anew, and the run was
    /// not finished.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn hold(&self, claims: Vec<ClaimId>) -> Result<Vec<bool>, LedgerError>;

    /// Gives up claims of a session that nobody works on. Their records end as lost.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn give_up(&self, session: i64, claims: Vec<ClaimId>) -> Result<(), LedgerError>;
}
