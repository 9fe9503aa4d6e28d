//! Claims: a worker asks to run an attempt, and the ledger answers.

use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::failure::Batch;
use roundelay_model::guard::{Guard, Refusal};
use roundelay_model::ids::{Epoch, Fence};

use crate::chain::Hint;

/// A worker asks to run an attempt.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// What the message says.
    pub hint: Hint,
    /// Who asks.
    pub worker: Arc<str>,
    /// The session for which the claim is to hold: see [`crate::Sessions`].
    pub session: i64,
    /// The same claim was asked for before, and its answer is not known. A claim of this session can only be that one.
    pub again: bool,
    /// Claim it even from a holder whose session goes on, because that holder is taken for dead.
    pub takeover: bool,
    /// What a tick of the rotation has to satisfy before it starts.
    pub guard: Guard,
    /// Whether the kind has a schedule. Without one, only single ticks can be claimed.
    pub recurs: bool,
    /// The number of workers' deaths over this attempt that the worker is prepared for: it isolates the run
    /// accordingly.
    pub prepared: u32,
    /// How long before it is due the attempt may be claimed. The worker then waits until [`Grant::at`] before the run
    /// starts, so that a tick is not late by what its claim takes.
    pub ahead: Duration,
}

/// A claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId {
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The claim.
    pub fence: Fence,
}

/// The answer to a [`ClaimRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Run it.
    Granted(Grant),
    /// It runs already, so the message says nothing new: if that run is cut off, the tick's message is sent again.
    Runs,
    /// It has to wait for the other row of its chain.
    Waits {
        /// When to ask again.
        until: Time,
    },
    /// So many workers have died while they ran the attempt. The worker asks again when it is prepared for that number.
    Suspected(u32),
    /// Too many workers have died while they ran the attempt. The chain is quarantined now.
    SetAside,
    /// It is due later than the message says; this is the message that counts.
    Early(Hint),
    /// The chain is past this. When the message that follows is not known to have been sent, here
    /// it is, to be sent before this one is acknowledged.
    Stale(Option<Hint>),
    /// The chain does not tick (retired, paused, quarantined, or gone), or waits for its batch.
    Idle,
    /// It is the rotation of a kind that has no schedule any more.
    NoSchedule,
    /// The message is ahead of the ledger, so an older copy of the ledger was restored. If it knows
    /// the chain, that is quarantined now.
    Future,
    /// The epoch is that of another chain.
    Other {
        /// Its kind.
        kind: String,
        /// Its key.
        key: String,
    },
}

/// Permission to run one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Names this claim; the finish succeeds only while it is the chain's last.
    pub fence: Fence,
    /// When a run of the chain last started before this; zero when none has.
    pub last_start: Time,
    /// When the tick was first due.
    pub nominal: Time,
    /// When this attempt was due.
    pub due: Time,
    /// When the run may start, by the ledger's clock: at the claim, or when it is due, if it was claimed ahead.
    pub at: Time,
    /// What the handler gets, as JSON text.
    pub payload: String,
    /// See [`NewChain::once`](crate::NewChain::once).
    pub once: bool,
    /// The claim before this one was never finished.
    pub lost: bool,
    /// A guard refuses the run: the handler must not run, and the claim is finished at once.
    pub refused: Option<Refusal>,
    /// What the run before has handed on, as JSON text.
    pub carry: Option<String>,
    /// What the runs before have learned of how often the entity changes, as [`FinishRequest::learned`] has left it;
    /// nothing for the member of a batch.
    ///
    /// [`FinishRequest::learned`]: crate::FinishRequest::learned
    pub learned: Option<Vec<u8>>,
    /// See [`NewChain::owner`](crate::NewChain::owner).
    pub owner: Option<String>,
    /// See [`NewChain::schedule`](crate::NewChain::schedule).
    pub schedule: Option<String>,
    /// The batch that this tick has waited for: it has run, and is only to be finished.
    pub batch: Option<Batch>,
    /// See [`NewChain::depth`](crate::NewChain::depth).
    pub depth: u32,
}
