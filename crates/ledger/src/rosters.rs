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
    /// The chains of `kind`, ended ones too, with keys above `after`, in the order of their keys, at most `limit`.
    /// Manual runs and members of batches are left out.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn enlisted(&self, kind: String, after: String, limit: u32) -> Result<Vec<Enlisted>, LedgerError>;

    /// Ends the chains with these epochs, with their manual runs and the members of their batches, because their
    /// entities have left the roster. Epochs of manual runs and of members are left out. Answers how many chains this
    /// call has ended. The ledger remembers why they ended, so that they can begin anew when the entities return. After
    /// that none of them can be claimed; a run that has begun may finish.
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
