//! Chains and attempts, as people read them.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::progress::Progress;

use crate::census::Census;
use crate::chain::{ChainState, Hint, Holder};
use crate::error::LedgerError;
use crate::look::{Cursor, LateCursor, ListFilter, Listed, OwnerCensus};

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
    /// Who has claimed it: no session, or one that is over.
    pub holder: Holder,
    /// The worker that claimed it last, if one has and the record is kept.
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
    /// See [`FinishRequest::learned`](crate::FinishRequest::learned).
    pub learned: Option<Vec<u8>>,
    /// When a run last started; zero when none has.
    pub last_start: Time,
    /// When a run last ended; zero when none has.
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
    /// Occurrences left out by calendars.
    pub excluded: u32,
    /// How far it has said it had come, last.
    pub progress: Option<Progress>,
}

/// Shows chains and attempts.
#[async_trait]
pub trait Reports {
    /// The chain of that name, and the single tick beside it, if there are any.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn chains(&self, kind: String, key: String) -> Result<Vec<ChainView>, LedgerError>;

    /// Rotations after a place, in the order of kind and key.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn list(&self, filter: ListFilter, after: Option<Cursor>, limit: u32) -> Result<Vec<Listed>, LedgerError>;

    /// Owners after this one, in their order. Late are rotations that tick, were due before `before`, are not being
    /// run, do not wait for the other row of their chain, and are not on one of the queues `except`. To find them and
    /// what fails, at most `effort` active rotations of all these owners together are looked at, and a quarter as many
    /// failures.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn owners(
        &self,
        after: String,
        limit: u32,
        before: Time,
        except: Vec<String>,
        effort: u32,
    ) -> Result<Vec<OwnerCensus>, LedgerError>;

    /// Active chains that were due before `before`, are not being run, and do not wait for the other row of their chain
    /// (a rotation for a manual run, or that for the rotation or for the cooldown), longest overdue first, and
    /// quarantined ones. Active ones on the queues `except` are left out.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn late(&self, before: Time, except: Vec<String>, limit: u32) -> Result<Vec<LateChain>, LedgerError>;

    /// Rotations that fit the filter, those that were due first first, after a place; those on the queues `except` are
    /// left out. The filter says before when they were due (`late_before`). Goes through all chains each time, or
    /// through all of the owner.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn longest_late(
        &self,
        filter: ListFilter,
        except: Vec<String>,
        after: Option<LateCursor>,
        limit: u32,
    ) -> Result<Vec<Listed>, LedgerError>;

    /// Counts chains.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn census(&self, slack: Duration) -> Result<Census, LedgerError>;

    /// The record of the attempt with this fence, and of those of the same chain before it, latest first. It
    /// ends where the history has been deleted.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError>;

    /// Records of attempts with fences above `after`, in their order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError>;
}
