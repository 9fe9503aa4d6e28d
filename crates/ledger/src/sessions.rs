//! The verbs of workers' leases.
//!
//! A worker holds one lease for all its runs together: a *session*. About once a second it raises a number (its *beat*)
//! to say that it lives, and looks at the other sessions at the same time. A session is over when its row is gone; it
//! never comes back. The engine decides when a row may be removed, by clocks that cannot be set: see
//! `crates/engine/src/vitals.rs`.

use std::time::Duration;

use async_trait::async_trait;

use crate::claim::ClaimId;
use crate::error::LedgerError;

/// A session of a worker, as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Names it, unlike any other of this ledger.
    pub session: i64,
    /// The worker that holds it.
    pub worker: String,
    /// The session ends when its beat has not risen for this long.
    pub lease: Duration,
    /// Rises as long as the worker lives.
    pub beat: i64,
    /// The operating system says that the worker's process has ended.
    pub gone: bool,
}

/// The answer to [`Sessions::beat`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Whether the caller's session goes on.
    pub alive: bool,
    /// The other sessions that go on.
    pub others: Vec<Session>,
    /// The sessions, of those given as dead, that this beat has ended.
    pub ended: Vec<i64>,
}

/// Keeps the leases of workers.
#[async_trait]
pub trait Sessions {
    /// Begins a session of a worker. The worker must have ended its runs when it could not beat for `lease`.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn begin_session(&self, worker: String, lease: Duration) -> Result<i64, LedgerError>;

    /// Raises the beat of a session. Ends the sessions of `dead`, given as session and beat, whose beat has not risen
    /// since.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn beat(&self, session: i64, dead: Vec<(i64, i64)>) -> Result<Beat, LedgerError>;

    /// Ends a session in good order: it holds nothing any more, or nothing of it is to be waited for.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn end_session(&self, session: i64) -> Result<(), LedgerError>;

    /// Whether each claim still holds: no other claim of the chain came since, the chain has not begun anew, and the
    /// run was not finished.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn hold(&self, claims: Vec<ClaimId>) -> Result<Vec<bool>, LedgerError>;

    /// Gives up claims of a session that it does not run. Their records end as lost.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn give_up(&self, session: i64, claims: Vec<ClaimId>) -> Result<(), LedgerError>;
}
