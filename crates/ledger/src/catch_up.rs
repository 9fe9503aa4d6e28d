//! Catch-up: chains whose messages may be lost, and when to look at them again.

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence};

use crate::chain::{Hint, Holder, Kinds};
use crate::error::LedgerError;
use crate::look::Listed;

/// A chain that catch-up should look after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Its current message.
    pub hint: Hint,
    /// Whether that message is known to have been sent.
    pub sent: bool,
    /// When that message was to arrive on its queue. Unlike `hint.due` it moves when catch-up
    /// sends it again, spread over its window.
    pub expected: Time,
    /// When it was to be looked after.
    pub watch_at: Time,
    /// How often catch-up has sent this message already.
    pub looks: u32,
    /// Who has claimed the chain.
    pub holder: Holder,
    /// The session that has claimed the chain, and the claim's fence.
    pub claim: (i64, Fence),
}

/// Which chains to look for that a worker or the broker may have left behind.
#[derive(Clone, Copy, Debug)]
pub struct OrphanFilter {
    /// Those that catch-up looks after until then; of these, all whose holders are gone,
    pub until: Time,
    /// those that were due before this and that are not claimed,
    pub late: Time,
    /// and, of the ones whose messages are not known to be sent, those that were due before this.
    pub unsent: Time,
}

/// Catch-up's note on a chain: when to look again. Refused when another worker was faster.
#[derive(Clone, Copy, Debug)]
pub struct LookAgain {
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// What [`Overdue::watch_at`] was.
    pub from: Time,
    /// What it becomes.
    pub to: Time,
    /// What [`Overdue::looks`] becomes.
    pub looks: u32,
    /// What [`Overdue::expected`] becomes, when the message is sent again.
    pub expected: Option<Time>,
}

/// Finds chains whose messages may be lost.
#[async_trait]
pub trait CatchUp {
    /// The chains of this queue and these kinds to look after at `now`, longest overdue first. Those that a worker runs
    /// are left out, unless it is this session's: only the holder can tell a run from a claim whose answer was lost,
    /// and looks of others, which move `watch_at`, would keep it from looking.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn overdue(
        &self,
        queue: String,
        kinds: Kinds,
        now: Time,
        session: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError>;

    /// The chains of this queue and these kinds that are left behind (see [`OrphanFilter`]), in the order in which
    /// catch-up looks after them.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn orphans(
        &self,
        queue: String,
        kinds: Kinds,
        left: OrphanFilter,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError>;

    /// Writes when to look again; answers, for each, whether it was written. It is not when another worker was faster.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn look_again(&self, looks: Vec<LookAgain>) -> Result<Vec<bool>, LedgerError>;

    /// Current messages of active chains of these queues and kinds with epochs above `after`, in
    /// their order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn messages(
        &self,
        queues: Vec<String>,
        kinds: Kinds,
        after: Epoch,
        limit: u32,
    ) -> Result<Vec<Hint>, LedgerError>;

    /// Rotations of a queue that tick: those that catch-up looks after last, and those that sleep although it should
    /// have looked after them; those that are due last first. However many there are, these are found at once: at most
    /// `limit` of each sort are looked at.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn furthest(&self, queue: String, limit: u32) -> Result<Vec<Listed>, LedgerError>;
}
