//! Which ledger.

use std::path::PathBuf;

use roundelay_model::secret::Secret;

/// Which ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerUrl {
    /// A file.
    Sqlite(PathBuf),
    /// A database on a server.
    Postgres(Secret),
    /// In memory, gone with the process: for tests and benchmarks.
    Memory,
}
