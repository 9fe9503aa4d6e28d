//! The verbs that hold a kind's chains to its roster.

use async_trait::async_trait;
use roundelay_model::ids::Epoch;

use crate::chain::ChainState;
use crate::error::LedgerError;

/// A chain of a kind, as far as a roster is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enlisted {
    /// Which entity.
    pub key: String,
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// What it is doing.
    pub state: ChainState,
}

/// Knows which entities of a kind have chains, and which of those have left the roster.
#[async_trait]
pub trait Rosters {
    /// The chains of `kind` with keys above `after`, in the order of their keys, at most `limit`.
    /// Single ticks beside a chain are left out.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn enlisted(&self, kind: String, after: String, limit: u32) -> Result<Vec<Enlisted>, LedgerError>;

    /// Ends the chains with these epochs, with the single ticks beside them, because their entities
    /// have left the roster; answers how many had not ended. It is remembered why, so that they can
    /// begin anew when the entities return. When it has returned, none of them is claimed any more.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn depart(&self, epochs: Vec<Epoch>) -> Result<u64, LedgerError>;

    /// Those of `keys` whose chains ended by [`Rosters::depart`], and have not begun anew since.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn departed(&self, kind: String, keys: Vec<String>) -> Result<Vec<String>, LedgerError>;
}
