//! Orders of operators for chains, and the filter that says for which chains.

use roundelay_model::clock::Time;

use crate::chain::ChainState;

/// Which chains an [`ChainOrder`] is for: those that fit all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainFilter {
    /// Those of this kind.
    pub kind: Option<String>,
    /// Those with this key.
    pub key: Option<String>,
    /// Those of this owner.
    pub owner: Option<String>,
    /// Those whose keys fit this pattern: `*` stands for anything, `?` for one character.
    pub like: Option<String>,
    /// Those of this platform queue.
    pub queue: Option<String>,
    /// Those that tick, were due before this, that nobody runs, and that do not wait for the other row of their chain.
    pub late_before: Option<Time>,
    /// Those in this state.
    pub state: Option<ChainState>,
}

impl ChainFilter {
    /// The owner, when the order is for all that is hers: then it also holds for one-off jobs that still
    /// wait in queues.
    pub fn whole_owner(&self) -> Option<&str> {
        let of_owner = Self { owner: self.owner.clone(), ..Self::default() };
        self.owner.as_deref().filter(|_| *self == of_owner)
    }
}

/// What an operator wants of chains. Whatever runs meanwhile finishes under its own claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainOrder {
    /// Active ones stop ticking and keep their place.
    Pause,
    /// Paused ones tick again, at once when they are overdue.
    Resume,
    /// They end.
    Retire,
    /// Quarantined ones begin a new epoch, due at once, and tick again. Messages of the epoch
    /// before mean nothing any more.
    Recover,
    /// After an older copy of the ledger was restored: all that have not ended begin a new epoch;
    /// paused ones stay paused. The next manual run of a chain begins one, too.
    RecoverAll,
}
