//! Catch-up: chains whose messages may be lost, and when to look at them again.

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence};

use crate::chain::{Hint, Holder};

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
    /// Who has claimed it.
    pub holder: Holder,
    /// For which session, and by which claim.
    pub claim: (i64, Fence),
}

/// Which chains to look for that a worker, or the broker, may have left lying.
#[derive(Clone, Copy, Debug)]
pub struct OrphanFilter {
    /// Those that catch-up looks after until then; of these, all whose holders are gone,
    pub until: Time,
    /// those that were due before this and that are not claimed,
    pub late: Time,
    /// and, of the ones whose messages are not known to be sent, those that were due before this.
    pub unsent: Time,
}

/// Catch-up's note on a chain: when to look again. Refused when somebody else was faster.
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
