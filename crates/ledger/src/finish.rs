//! Finishes: the end of a run, and what follows it.

use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::outcome::{LeftOut, Next, Verdict};
use roundelay_model::progress::Progress;

use crate::chain::{ChainState, Hint};
use crate::decide::grant::ChainRow;
use crate::enroll::NewChain;
use crate::jobs::SpawnedJob;

/// A member of a batch: a single tick of its own, which the tick that asked for it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which handler.
    pub kind: String,
    /// Which entity; together with the kind unique in its batch.
    pub key: String,
    /// The platform queue.
    pub queue: String,
    /// What the handler gets, as JSON text.
    pub payload: String,
    /// When it is due.
    pub due: Time,
    /// That of the tick that waits for it: see [`NewChain::depth`](crate::NewChain::depth).
    pub depth: u32,
}

/// The end of a run, to be written if its fence still holds.
#[derive(Clone, Debug)]
pub struct FinishRequest {
    /// The chain's incarnation.
    pub epoch: Epoch,
    /// The occurrence that ran.
    pub tick: TickNo,
    /// The try that ran.
    pub attempt: u32,
    /// The claim.
    pub fence: Fence,
    /// When it ended.
    pub at: Time,
    /// What follows.
    pub next: Next,
    /// How the run ended.
    pub verdict: Verdict,
    /// Why, unless it worked.
    pub reason: Option<String>,
    /// The name of that reason, if it has one.
    pub code: Option<String>,
    /// How long after the next due time catch-up looks after the chain.
    pub slack: Duration,
    /// One-off jobs that the run asks for, accepted together with its end.
    pub spawned: Vec<SpawnedJob>,
    /// What did not work within a run that did.
    pub failed: Vec<FailedItem>,
    /// A handler has run, so that it counts for cooldowns.
    pub ran: bool,
    /// Occurrences left out because the chain still ran, and because nothing could start.
    pub left_out: LeftOut,
    /// What is handed on to the next run, as JSON text; `None` leaves what was handed on before.
    pub carry: Option<String>,
    /// What the chain has learned of how often its entity changes: at most 64 bytes, which the ledger does not read.
    /// `None` leaves what was there before. That of a batch's member is not kept.
    pub learned: Option<Vec<u8>>,
    /// See [`Hint::parent`].
    pub parent: Epoch,
    /// The tick had waited for a batch, which is over with this: see [`Grant::batch`](crate::Grant::batch).
    pub from_batch: bool,
    /// With [`Next::Gather`]: what the tick waits for.
    pub members: Vec<Member>,
    /// Chains that the run has discovered. They begin together with its end.
    pub chains: Vec<NewChain>,
    /// How far the run has said it had come, last.
    pub progress: Option<Progress>,
}

impl FinishRequest {
    /// Where the chain stands afterwards: tick, attempt, due.
    pub fn place(&self) -> (TickNo, u32, Time) {
        match self.next {
            Next::Tick { due, .. } => (self.tick.next(), 1, due),
            Next::Gather => (self.tick, self.attempt, self.at),
            Next::Attempt { attempt, due } => (self.tick, attempt, due),
            Next::Snooze { due } => (self.tick, self.attempt, due),
            Next::End => (self.tick.next(), 1, self.at),
        }
    }

    /// When the tick that follows is nominally due, if it is another.
    pub fn nominal(&self) -> Option<Time> {
        match self.next {
            Next::Tick { nominal, .. } => Some(nominal),
            _ => None,
        }
    }

    /// When catch-up looks after the chain. One that waits for its batch is sent by the last member.
    pub fn watch_at(&self) -> Time {
        if self.next == Next::Gather { Time::from_millis(i64::MAX) } else { self.place().2 + self.slack }
    }

    /// Whether a batch counts the run as failed for good.
    pub fn counts_as_failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed | Verdict::Retired)
    }

    /// The failure to keep when the run has failed for good.
    pub fn failure(&self) -> Option<FailedItem> {
        let reason = self.reason.clone().unwrap_or_default();
        let (code, permanent) = (self.code.clone(), self.verdict == Verdict::Retired);
        let whole = FailedItem { code, permanent, ..FailedItem::new("", reason) };
        self.counts_as_failed().then_some(whole)
    }

    /// The answer when no session holds the chain, this finish's claim was the last to hold it, and `row` is where the
    /// finish puts the chain: the finish is written already, and its answer was lost. `None` when it is not written.
    pub fn written_before(&self, row: &ChainRow) -> Option<Finish> {
        let ChainRow { hint, state, sent, .. } = row;
        let there = (hint.tick, hint.attempt, hint.due) == self.place();
        let unsent = *state == ChainState::Active && !sent;
        there.then(|| Finish::Applied(unsent.then(|| hint.clone()).into_iter().collect()))
    }
}

/// The answer to a [`FinishRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Written. The messages to send: the chain's own, unless it has stopped ticking; those of the
    /// members of its batch, and of the chains that it has begun; that of the chain whose batch has come
    /// to its end with this run.
    Applied(Vec<Hint>),
    /// Another claim came between; nothing of this run counts.
    Fenced,
}
