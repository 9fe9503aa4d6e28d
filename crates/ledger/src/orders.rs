//! Orders of operators for chains, and the filter that says for which chains.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;

use crate::chain::{ChainState, Hint};
use crate::error::LedgerError;
use crate::look::Move;

/// Which chains a [`ChainOrder`] is for: those that fit all that is given.
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
    /// Those that tick, were due before this, are not being run, and do not wait for the other row of their chain.
    pub late_before: Option<Time>,
    /// Those in this state.
    pub state: Option<ChainState>,
}

impl ChainFilter {
    /// The owner, when the order is for all chains of that owner. Then the order also holds for one-off jobs of the
    /// owner that still wait in queues.
    pub fn whole_owner(&self) -> Option<&str> {
        let of_owner = Self { owner: self.owner.clone(), ..Self::default() };
        self.owner.as_deref().filter(|_| *self == of_owner)
    }
}

/// An operator's order for chains. A run that goes on meanwhile finishes under its own claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainOrder {
    /// Active ones stop ticking and keep their place. The engine's own, which read rosters and delete old records, go
    /// on unless the filter names their kind.
    Pause,
    /// Paused ones tick again, at once when they are overdue.
    Resume,
    /// They end; the engine's own do not unless the filter names their kind.
    Retire,
    /// Quarantined ones begin a new epoch, due at once, and tick again. Messages of the epoch
    /// before mean nothing any more.
    Recover,
    /// After an older copy of the ledger was restored: all that have not ended begin a new epoch;
    /// paused ones stay paused. The next manual run of a chain begins one, too.
    RecoverAll,
}

/// Carries out orders for chains.
#[async_trait]
pub trait ChainOrders {
    /// Carries out an operator's order for chains; answers how many chains it has changed. When it has
    /// returned after [`ChainOrder::Pause`] or [`ChainOrder::Retire`], none of them is claimed any more.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn order_chains(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError>;

    /// How many chains [`ChainOrders::order_chains`] would change now.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn matching(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError>;

    /// Brings the next tick of a chain forward to now; answers its message, unless the chain does not tick,
    /// or runs, or waits for its batch.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn advance(&self, kind: String, key: String, slack: Duration) -> Result<Option<Hint>, LedgerError>;

    /// Brings the next ticks of chains that sleep forward to now, at most `limit`; answers their messages. As
    /// [`ChainOrders::advance`] does it with one.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn advance_all(&self, which: ChainFilter, limit: u32, slack: Duration) -> Result<Vec<Hint>, LedgerError>;

    /// Gives a rotation a schedule of its own, as JSON text, or takes it away; answers whether there is such a
    /// rotation that has not ended. When its next tick is due stays as it is: see [`ChainOrders::reschedule`].
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn set_schedule(&self, kind: String, key: String, schedule: Option<String>) -> Result<bool, LedgerError>;

    /// Moves the next ticks of rotations that are as they were seen and have not started; answers, for each, with its
    /// message, or that it was not moved.
    ///
    /// # Errors
    /// When nothing of it is known to be written.
    async fn reschedule(&self, moves: Vec<Move>) -> Result<Vec<Option<Hint>>, LedgerError>;
}
