//! Chains and attempts, as people read them.

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::progress::Progress;

use crate::chain::{ChainState, Hint, Holder};

/// An active chain that is late, or a quarantined one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateChain {
    /// Its current message.
    pub hint: Hint,
    /// What it is doing.
    pub state: ChainState,
    /// Whether its message is known to have been sent.
    pub sent: bool,
    /// How often catch-up has sent it.
    pub looks: u32,
    /// When catch-up looks next.
    pub watch_at: Time,
    /// Who has claimed it: nobody, or a session that is over.
    pub holder: Holder,
    /// Who claimed it last, if anybody has and the record is kept.
    pub worker: Option<String>,
    /// Why it was set aside, if its last run was lost.
    pub reason: Option<String>,
}

/// A chain, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainView {
    /// Its current message.
    pub hint: Hint,
    /// What it is doing.
    pub state: ChainState,
    /// What the handler gets, as JSON text.
    pub payload: String,
    /// When the tick was first due.
    pub nominal: Time,
    /// Who has claimed it.
    pub holder: Holder,
    /// The last claim.
    pub fence: Fence,
    /// Whether its message is known to have been sent.
    pub sent: bool,
    /// How often catch-up has sent it.
    pub looks: u32,
    /// When catch-up looks next.
    pub watch_at: Time,
    /// See [`NewChain::once`](crate::NewChain::once).
    pub once: bool,
    /// See [`NewChain::owner`](crate::NewChain::owner).
    pub owner: Option<String>,
    /// See [`NewChain::schedule`](crate::NewChain::schedule).
    pub schedule: Option<String>,
    /// What the last run has handed on, as JSON text.
    pub carry: Option<String>,
    /// When a run last started; zero when none has.
    pub last_start: Time,
    /// When a run last ended; likewise.
    pub last_finish: Time,
    /// The tick of which a run last started.
    pub started_tick: TickNo,
    /// Members of the batch that it waits for: those that have not ended, and all. Zero without one.
    pub batch: (i64, i64),
    /// See [`NewChain::depth`](crate::NewChain::depth).
    pub depth: u32,
}

/// The record of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The claim.
    pub fence: Fence,
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The occurrence.
    pub tick: TickNo,
    /// The try.
    pub attempt: u32,
    /// Who claimed it.
    pub worker: String,
    /// When it was due.
    pub due: Time,
    /// When it was claimed.
    pub started: Time,
    /// When it ended, or was found to have been cut off.
    pub finished: Option<Time>,
    /// How: a `Verdict`, `lost`, or `fenced`.
    pub verdict: Option<String>,
    /// Why, unless it worked.
    pub reason: Option<String>,
    /// Occurrences left out because the chain still ran.
    pub overlapped: u32,
    /// Occurrences left out because nothing could start.
    pub misfired: u32,
    /// How far it has said it had come, last.
    pub progress: Option<Progress>,
}
