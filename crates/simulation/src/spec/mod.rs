//! The specification of the chain protocol: which steps a ledger may take, and where each leads (pure).
//!
//! `docs/spec/README.md` says the same for people. This module calls nothing of the engine and nothing of the ledger,
//! because a specification that calls what it judges proves nothing. It knows the types of ids and times, and no more.
//!
//! [`State`] is what the specification knows of a ledger. [`Step`] is one commit of the ledger: what was asked and what
//! was answered. [`allowed`] is the relation: where the step leads, or the line of the specification that forbids it.
//! `steps` has one function for each step: the guard comes first, line by line, then the effect.
//!
//! - A simulation feeds each commit to the relation as it is made: `observe::replay`.
//! - [`record`] makes steps of the rows that a real ledger has kept: the chaos test feeds them.

pub mod record;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};

/// What so many workers have died over runs no more.
const DEATHS_TO_SET_ASIDE: u32 = 3;
/// What so many workers have died over is taken from no holder that may live.
const SUSPECTED: u32 = 2;

/// The name that a chain and the manual run beside it share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
}

/// What a chain is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It ticks.
    Active,
    /// An operator has stopped it; it keeps its place.
    Paused,
    /// It has ended.
    Retired,
    /// It waits for a person: workers have died over it, or a message was ahead of the ledger.
    Quarantined,
}

/// What sort of chain it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sort {
    /// It ticks again and again.
    Rotation,
    /// One tick of an entity, asked for by a person. It has a name of its own beside the rotation.
    Manual {
        /// It may run at the same time as the rotation.
        beside: bool,
    },
    /// One tick that another chain waits for. It has no name.
    Member {
        /// The chain that waits.
        parent: Epoch,
    },
}

/// One chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its name.
    pub entity: Arc<Entity>,
    /// What sort of chain it is.
    pub sort: Sort,
    /// Whose it is.
    pub owner: Option<String>,
    /// What it is doing.
    pub phase: Phase,
    /// The tick that comes next, or runs.
    pub tick: TickNo,
    /// The attempt of that tick.
    pub attempt: u32,
    /// When that attempt is due, by the ledger's clock.
    pub due: Time,
    /// The session that has claimed it and not finished.
    pub held: Option<i64>,
    /// The last claim.
    pub fence: Fence,
    /// The message of the attempt is known to have been sent.
    pub sent: bool,
    /// The tick of which a run last started.
    pub started: TickNo,
    /// Claims of this attempt over which workers have died.
    pub lost: Vec<Fence>,
    /// Members of the batch that the tick waits for, or has waited for.
    pub total: usize,
    /// Those of them that have not ended.
    pub open: usize,
}

/// A session: one lease of a worker for all its claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// How long the worker may be silent.
    pub lease: Duration,
    /// When it was last heard of, in time that no person sets.
    pub heard: Duration,
}

/// What the specification knows of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// All chains, by their present epochs.
    pub chains: BTreeMap<Epoch, Chain>,
    /// The epoch of each name: of the rotation, and of the manual run.
    pub names: BTreeMap<Arc<Entity>, [Option<Epoch>; 2]>,
    /// The sessions that go on.
    pub sessions: BTreeMap<i64, Session>,
    /// The highest epoch that was ever given, by this ledger or one of which it is a copy.
    pub last_epoch: Epoch,
    /// The highest fence that was ever given.
    pub last_fence: Fence,
    /// Kinds whose ticks are taken over as soon as their message comes again.
    pub redelivery: BTreeSet<String>,
    /// The last tick of each epoch that has ended.
    pub ended: BTreeMap<Epoch, TickNo>,
}

/// A copy of a ledger, as a backup has it.
#[derive(Clone, Debug)]
pub struct Copy {
    chains: BTreeMap<Epoch, Chain>,
    names: BTreeMap<Arc<Entity>, [Option<Epoch>; 2]>,
    sessions: BTreeMap<i64, Session>,
}

/// A chain to begin.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Kind and key.
    pub name: (&'a str, &'a str),
    /// What sort of chain it is.
    pub sort: Sort,
    /// Whose it is.
    pub owner: Option<&'a str>,
    /// Its epoch.
    pub epoch: Epoch,
    /// When its first tick is due.
    pub due: Time,
    /// If a chain of the name has ended, it is to begin anew.
    pub anew: bool,
}

/// A claim as it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Kind and key.
    pub name: (&'a str, &'a str),
    /// The epoch in the message.
    pub epoch: Epoch,
    /// The tick in the message.
    pub tick: TickNo,
    /// The attempt in the message.
    pub attempt: u32,
    /// When the attempt is due, as the message says.
    pub due: Time,
    /// The message is that of a member of a batch.
    pub member: bool,
    /// The session for which the claim is to hold.
    pub session: i64,
    /// The same claim was asked for before, and its answer is not known.
    pub again: bool,
    /// The message came again, and the kind says that this is enough to take the tick over.
    pub takeover: bool,
    /// The kind has a schedule.
    pub recurs: bool,
    /// For how many deaths over the attempt the worker is prepared.
    pub prepared: u32,
    /// How long before it is due the worker may claim it; it waits then.
    pub ahead: Duration,
    /// The time, by the ledger's clock.
    pub at: Time,
}

/// What the answer to a claim that was granted says.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// The claim's number.
    pub fence: Fence,
    /// The claim before it; `None` when the record does not tell.
    pub previous: Option<Fence>,
    /// When the attempt was due.
    pub due: Time,
    /// The claim before was never finished.
    pub lost: bool,
    /// Members of the batch that the tick has waited for.
    pub total: usize,
    /// When the run may start.
    pub at: Time,
    /// Whether the handler runs.
    pub runs: Runs,
}

/// Whether the handler runs after a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// It runs.
    Yes,
    /// A rule about time or company refuses it: the claim is finished at once.
    Refused,
    /// Too many workers have died over it: the claim is finished at once.
    Deadly,
}

/// Why a claim was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A session that goes on runs it.
    Runs,
    /// It waits for the other row of its name.
    Waits,
    /// So many workers have died over it.
    Suspected(u32),
    /// It is due later.
    Early,
    /// The chain is past this; with the message that follows, when that is not known to have been sent.
    Stale(Option<(TickNo, u32, Time)>),
    /// The chain does not tick, or waits for its batch, or is gone.
    Idle,
    /// A rotation without a schedule.
    NoSchedule,
    /// The epoch is that of another name.
    Other,
}

/// What follows a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then<'a> {
    /// The next tick.
    Tick,
    /// Another attempt of the tick.
    Attempt(u32),
    /// The same attempt.
    Snooze,
    /// The same attempt, once these members have ended: epochs, and when each is due.
    Gather(&'a [(Epoch, &'a str, &'a str, Time)]),
    /// Nothing.
    End,
}

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub struct Finish<'a> {
    /// The epoch that ran.
    pub epoch: Epoch,
    /// The tick that ran.
    pub tick: TickNo,
    /// The attempt that ran.
    pub attempt: u32,
    /// The claim.
    pub fence: Fence,
    /// What follows.
    pub then: Then<'a>,
    /// When that is due.
    pub due: Time,
    /// The run has said that the entity is gone, so the chain ends, with the rotation of its name.
    pub retires: bool,
    /// The tick had waited for a batch, which is over with this.
    pub from_batch: bool,
    /// The answer has the chain's next message.
    pub sends: bool,
    /// The answer has the message of the chain that waits for this one.
    pub sends_parent: bool,
}

/// Which chains an order is for: those that fit all that is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Which<'a> {
    /// Of this kind.
    pub kind: Option<&'a str>,
    /// With this key.
    pub key: Option<&'a str>,
    /// Of this owner.
    pub owner: Option<&'a str>,
}

/// An order for chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Active ones stop.
    Pause,
    /// Paused ones go on.
    Resume,
    /// They end.
    Retire,
}

/// One commit of the ledger, or one part of a commit.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A chain begins.
    Begin(New<'a>),
    /// A chain that has ended begins anew, with a new epoch.
    BeginAnew(New<'a>),
    /// A manual run that has ended is asked for again: the next tick of the same epoch.
    RunAgain(New<'a>),
    /// An enrolment finds its chain there, and changes its owner at most.
    Known {
        /// Kind and key.
        name: (&'a str, &'a str),
        /// It is about the manual run.
        manual: bool,
        /// The answer says that the chain has ended.
        ended: bool,
        /// The owner from now on; `None` leaves it.
        owner: Option<Option<&'a str>>,
    },
    /// A claim is granted.
    Claim(Asked<'a>, Granted),
    /// A claim is not granted, and changes nothing.
    ClaimRefused(Asked<'a>, Why),
    /// A claim finds that too many workers have died over the attempt, and the chain waits for a person.
    SetAside(Asked<'a>),
    /// A claim's message is ahead of the ledger, and the chain of that name waits for a person.
    Ahead(Asked<'a>),
    /// A run ends, and its end is written.
    Finish(Finish<'a>),
    /// A finish that was written is asked for again, because its answer was lost.
    FinishAgain(Finish<'a>),
    /// A finish comes too late, and changes nothing of the chain.
    FinishFenced(Finish<'a>),
    /// A message is known to have been sent.
    MarkSent {
        /// Of this chain.
        epoch: Epoch,
        /// Of this tick.
        tick: TickNo,
        /// Of this attempt.
        attempt: u32,
        /// When it is due.
        due: Time,
    },
    /// A session gives up a claim that its worker does not run.
    GiveUp {
        /// The chain.
        epoch: Epoch,
        /// The claim.
        fence: Fence,
        /// The session.
        session: i64,
    },
    /// A session begins.
    SessionBegins {
        /// Its number.
        session: i64,
        /// How long its worker may be silent.
        lease: Duration,
        /// When.
        now: Duration,
    },
    /// A session's worker has said that it lives.
    SessionHeard {
        /// Its number.
        session: i64,
        /// When.
        now: Duration,
    },
    /// A session is over.
    SessionOver {
        /// Its number.
        session: i64,
        /// Who ends it.
        by: By,
        /// When.
        now: Duration,
    },
    /// What chains that do not tick had in the hands of sessions that are over is let go.
    LetGo,
    /// An operator's order.
    Order(Order, Which<'a>),
    /// A chain goes on in a new epoch, due at once.
    Recover {
        /// The epoch before.
        old: Epoch,
        /// The new one.
        epoch: Epoch,
        /// When it is due.
        due: Time,
        /// After an older copy was restored: also chains that nothing was wrong with.
        all: bool,
    },
    /// The tick that comes next gets another time.
    Move {
        /// Of this chain.
        epoch: Epoch,
        /// The time.
        due: Time,
        /// Brought forward to now by an operator; otherwise moved since the schedule has changed.
        forward: bool,
    },
    /// An older copy takes the ledger's place.
    Restore(&'a Copy),
}

/// Who ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Its own worker.
    Itself,
    /// Another worker, that sees that the process has ended.
    Sight,
    /// Another worker, since the session has been silent for its lease.
    Silence,
}

/// The line of the specification that forbids a step, and how things were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line: the step's name, the line's number, and what would have to be so.
    pub line: &'static str,
    /// The chain or session.
    pub what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; but not for {}", self.line, self.what)
    }
}

/// The relation: where the step leads from this state.
///
/// # Errors
/// The line that forbids the step.
pub fn allowed(mut state: State, step: &Step) -> Result<State, Refusal> {
    state.take(step)?;
    Ok(state)
}
