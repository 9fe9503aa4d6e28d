//! The errors of a ledger.

/// What went wrong with the ledger; phrased to follow "failed to …: ".
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// It cannot be opened.
    #[error("cannot open the ledger {path}: {reason}")]
    Open {
        /// The file.
        path: String,
        /// What SQLite or the system says.
        reason: String,
    },
    /// A statement failed.
    #[error("the ledger says: {0}")]
    Statement(String),
    /// An order for a worker that has ended, and never comes back: no other worker gets its name.
    #[error("there is no worker {0}; it may have ended")]
    NoWorker(String),
    /// The engine is stopping.
    #[error("the ledger is closed")]
    Closed,
}
