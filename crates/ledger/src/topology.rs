//! The broker topology on which the workers of a ledger agree.

use async_trait::async_trait;

use crate::error::LedgerError;

/// Keeps the broker topology that all workers of the ledger use.
#[async_trait]
pub trait Topology {
    /// The broker topology that the workers of this ledger use, in the words they gave it.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn topology(&self) -> Result<Option<String>, LedgerError>;

    /// Puts `next` in its place, if it still is `current`; answers whether it was.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn set_topology(&self, current: Option<String>, next: String) -> Result<bool, LedgerError>;
}
