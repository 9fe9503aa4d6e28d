//! The words of the ledger: what its verbs take and answer.

use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::failure::{Batch, FailedItem};
use roundelay_model::guard::{Guard, Manual, Refusal};
use roundelay_model::job::{ChainRef, Envelope, VERSION};
use roundelay_model::outcome::{Next, Verdict};
use roundelay_model::progress::Progress;
use serde::Serialize;

use super::judge::ChainRow;

/// What a chain is doing, as the ledger stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainState {
    /// It ticks.
    Active = 0,
    /// An operator has stopped it; it keeps its place.
    Paused = 1,
    /// It has ended.
    Retired = 2,
    /// Its messages are ahead of the ledger; a person must decide.
    Quarantined = 3,
}

impl ChainState {
    /// The state stored as `number`.
    pub fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Active,
            1 => Self::Paused,
            2 => Self::Retired,
            _ => Self::Quarantined,
        }
    }
}

/// Who has claimed a chain, and not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    #[default]
    Nobody,
    /// A session of a worker that goes on: it runs.
    Alive,
    /// A session that is over: the run never came to its end, and the next claim takes the chain over.
    Gone,
}

impl Holder {
    /// As queries tell it.
    pub(super) fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Nobody,
            1 => Self::Alive,
            _ => Self::Gone,
        }
    }

    /// Whether it runs.
    pub fn runs(self) -> bool {
        self == Self::Alive
    }
}

/// A chain to begin.
#[derive(Clone, Debug)]
pub struct NewChain {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// Its platform queue.
    pub queue: String,
    /// The priority of its messages, in place of its kind's.
    pub priority: Option<u8>,
    /// What the handler gets, as JSON text, or sealed: see [`roundelay_model::encryption`].
    pub payload: String,
    /// Other forms of the same payload: a chain that has one of these has this payload, and keeps it as it is.
    pub forms: Vec<String>,
    /// When its first tick is nominally due: by the wall clock, where its schedule follows that.
    pub nominal: Time,
    /// When its first tick is due.
    pub due: Time,
    /// When catch-up looks after it, if its first message has not been marked as sent by then.
    pub watch_at: Time,
    /// A chain that has ended begins anew, with a new epoch.
    pub revive: bool,
    /// A manual run of the chain of this name: one tick, and then the end. There is at most one at a time: while it
    /// has not ended, another is answered with [`Enrolled::Unchanged`]. The next has the same epoch, and the next tick.
    pub once: bool,
    /// How the manual run was asked for.
    pub manual: Manual,
    /// Who it belongs to.
    pub owner: Option<String>,
    /// Its own schedule, in place of its kind's: see `OwnSchedule`.
    pub schedule: Option<String>,
    /// A chain that is there keeps its schedule, which an operator may have given to it.
    pub keep_schedule: bool,
    /// A chain that is there stays as it is, whatever this says.
    pub only_new: bool,
    /// How many runs have led to it, each of which was asked for by the one before: zero for a chain that
    /// nobody's run has asked for.
    pub depth: u32,
}

impl NewChain {
    /// Whether a chain on this queue with this priority, payload, owner and schedule is as it should be.
    pub fn is_like(
        &self,
        (queue, priority): (&str, Option<u8>),
        payload: &str,
        owner: Option<&str>,
        schedule: Option<&str>,
    ) -> bool {
        (self.queue.as_str(), self.priority) == (queue, priority)
            && (self.payload == payload || self.forms.iter().any(|form| form == payload))
            && self.owner.as_deref() == owner
            && !self.reschedules(schedule)
    }

    /// Whether a chain with this schedule gets another.
    pub fn reschedules(&self, schedule: Option<&str>) -> bool {
        !self.keep_schedule && self.schedule.as_deref() != schedule
    }
}

/// What became of a [`NewChain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// It begins, or begins anew; this is its first message.
    Created(Hint),
    /// It was there already, and is as it should be.
    Unchanged,
    /// It was there already, and has been brought up to date.
    Updated {
        /// It has another schedule now, and sleeps by the one before.
        rescheduled: bool,
    },
    /// It has ended before, and stays so.
    Retired,
}

/// What a chain's message says: that an attempt of a tick is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// The platform queue.
    pub queue: String,
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence, from 1.
    pub tick: i64,
    /// The try, from 1.
    pub attempt: u32,
    /// When.
    pub due: Time,
    /// The epoch of the chain whose batch this is a member of; zero when it is none.
    pub parent: i64,
    /// See [`NewChain::priority`].
    pub priority: Option<u8>,
}

impl Hint {
    /// The message, as the engine of `ledger` writes it.
    pub fn envelope(&self, ledger: &str) -> Envelope {
        Envelope {
            v: VERSION,
            kind: self.kind.clone(),
            key: self.key.clone(),
            queue: Some(self.queue.clone()),
            due: Some(self.due),
            clock: None,
            attempt: self.attempt,
            id: None,
            payload: serde_json::Value::Null,
            sealed: None,
            owner: None,
            depth: 0,
            retries: Vec::new(),
            chain: Some(ChainRef {
                ledger: ledger.into(),
                epoch: self.epoch,
                tick: self.tick,
                parent: self.parent,
                priority: self.priority,
            }),
            enroll: None,
            retire: None,
            run: None,
            trace: None,
        }
    }

    /// What to mark as sent once the message is confirmed.
    pub fn sent(&self) -> Sent {
        Sent { epoch: self.epoch, tick: self.tick, attempt: self.attempt, due: self.due }
    }
}

/// Names the message that was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence.
    pub tick: i64,
    /// The try.
    pub attempt: u32,
    /// When it is due.
    pub due: Time,
}

/// A worker asks to run an attempt.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// What the message says.
    pub hint: Hint,
    /// Who asks.
    pub worker: Arc<str>,
    /// The session for which the claim is to hold: see [`super::Sessions`].
    pub session: i64,
    /// It was asked for before, and what became of that is not known: nobody else of this session can have claimed it.
    pub again: bool,
    /// Claim it even from a holder whose session goes on, because that holder is taken for dead.
    pub takeover: bool,
    /// What a tick of the rotation has to satisfy before it starts.
    pub guard: Guard,
    /// Whether the kind has a schedule. Without one, only single ticks can be claimed.
    pub recurs: bool,
    /// For so many deaths of workers over this attempt: the worker keeps it from the company that it must not have then.
    pub prepared: u32,
}

/// A claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The chain's incarnation.
    pub epoch: i64,
    /// The claim.
    pub fence: i64,
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
    /// So many workers have died while they ran it: it is to be asked for again by who is prepared for that.
    Suspected(u32),
    /// Too many have. The chain is quarantined now.
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

/// Leave to run one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Names this claim; the finish succeeds only while it is the chain's last.
    pub fence: i64,
    /// When a run of the chain last started before this; zero when none has.
    pub last_start: Time,
    /// When the tick was first due.
    pub nominal: Time,
    /// When this attempt was due.
    pub due: Time,
    /// When it was claimed, by the ledger's clock.
    pub at: Time,
    /// What the handler gets, as JSON text.
    pub payload: String,
    /// See [`NewChain::once`].
    pub once: bool,
    /// The claim before this one never came to its end.
    pub lost: bool,
    /// A guard says no: the handler must not run, and the claim is finished at once.
    pub refused: Option<Refusal>,
    /// What the run before has handed on, as JSON text.
    pub carry: Option<String>,
    /// See [`NewChain::owner`].
    pub owner: Option<String>,
    /// See [`NewChain::schedule`].
    pub schedule: Option<String>,
    /// The batch that this tick has waited for: it has run, and is only to be finished.
    pub batch: Option<Batch>,
    /// See [`NewChain::depth`].
    pub depth: u32,
}

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
    /// That of the tick that waits for it: see [`NewChain::depth`].
    pub depth: u32,
}

/// What a run ended as, to be written if its fence still holds.
#[derive(Clone, Debug)]
pub struct FinishRequest {
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence that ran.
    pub tick: i64,
    /// The try that ran.
    pub attempt: u32,
    /// The claim.
    pub fence: i64,
    /// When it ended.
    pub at: Time,
    /// What follows.
    pub next: Next,
    /// What to call it.
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
    pub left_out: (u32, u32),
    /// What is handed on to the next run, as JSON text; `None` leaves what was handed on before.
    pub carry: Option<String>,
    /// See [`Hint::parent`].
    pub parent: i64,
    /// The tick had waited for a batch, which is over with this: see [`Grant::batch`].
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
    pub fn place(&self) -> (i64, u32, Time) {
        match self.next {
            Next::Tick { due, .. } => (self.tick + 1, 1, due),
            Next::Gather => (self.tick, self.attempt, self.at),
            Next::Attempt { attempt, due } => (self.tick, attempt, due),
            Next::Snooze { due } => (self.tick, self.attempt, due),
            Next::End => (self.tick + 1, 1, self.at),
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

    /// Whether the run has not worked for good, as a batch counts it.
    pub fn counts_as_failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed | Verdict::Retired)
    }

    /// What is kept when the run has not worked for good.
    pub fn failure(&self) -> Option<FailedItem> {
        let reason = self.reason.clone().unwrap_or_default();
        let (code, permanent) = (self.code.clone(), self.verdict == Verdict::Retired);
        let whole = FailedItem { code, permanent, ..FailedItem::new("", reason) };
        self.counts_as_failed().then_some(whole)
    }

    /// What to answer when nobody holds the chain and `row`, which this finish's claim was the last
    /// to hold, stands where the finish puts it: it is written already, and whoever was not told
    /// asks again. `None` when it is not written.
    pub fn written_before(&self, row: &ChainRow) -> Option<Finish> {
        let ChainRow { hint, state, sent, .. } = row;
        let there = (hint.tick, hint.attempt, hint.due) == self.place();
        let unsent = *state == ChainState::Active && !sent;
        there.then(|| Finish::Applied(unsent.then(|| hint.clone()).into_iter().collect()))
    }
}

/// A one-off job on its way into the ledger's outbox. It stays there until it is forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnedJob {
    /// The job's id; one that is there already is not changed.
    pub id: String,
    /// The message body.
    pub body: Vec<u8>,
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
    pub claim: (i64, i64),
}

/// Which chains to look for that a worker, or the broker, may have left lying.
#[derive(Clone, Copy, Debug)]
pub struct Left {
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
    pub epoch: i64,
    /// What [`Overdue::watch_at`] was.
    pub from: Time,
    /// What it becomes.
    pub to: Time,
    /// What [`Overdue::looks`] becomes.
    pub looks: u32,
    /// What [`Overdue::expected`] becomes, when the message is sent again.
    pub expected: Option<Time>,
}

/// A one-off job that the ledger keeps: until it has been sent, or, where the broker keeps nothing,
/// until it has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptJob {
    /// Grows with every job.
    pub number: i64,
    /// The message body.
    pub body: Vec<u8>,
    /// Since when; or when a worker last took the job to send it.
    pub kept_at: Time,
}

/// The kinds that somebody takes care of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// All of them: their single ticks.
    pub all: Vec<String>,
    /// Those with a schedule: also their rotations.
    pub recurring: Vec<String>,
}

/// Which chains an [`Order`] is for: those that fit all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Which {
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

impl Which {
    /// The owner, when the order is for all that is hers: then it also holds for one-off jobs that still
    /// wait in queues.
    pub fn whole_owner(&self) -> Option<&str> {
        let of_owner = Self { owner: self.owner.clone(), ..Self::default() };
        self.owner.as_deref().filter(|_| *self == of_owner)
    }
}

/// What an operator wants of chains. Whatever runs meanwhile finishes under its own claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
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
    pub fence: i64,
    /// Whether its message is known to have been sent.
    pub sent: bool,
    /// How often catch-up has sent it.
    pub looks: u32,
    /// When catch-up looks next.
    pub watch_at: Time,
    /// See [`NewChain::once`].
    pub once: bool,
    /// See [`NewChain::owner`].
    pub owner: Option<String>,
    /// See [`NewChain::schedule`].
    pub schedule: Option<String>,
    /// What the last run has handed on, as JSON text.
    pub carry: Option<String>,
    /// When a run last started; zero when none has.
    pub last_start: Time,
    /// When a run last ended; likewise.
    pub last_finish: Time,
    /// The tick of which a run last started.
    pub started_tick: i64,
    /// Members of the batch that it waits for: those that have not ended, and all. Zero without one.
    pub batch: (i64, i64),
    /// See [`NewChain::depth`].
    pub depth: u32,
}

/// The record of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The claim.
    pub fence: i64,
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence.
    pub tick: i64,
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
    /// How: a [`Verdict`], `lost`, or `fenced`.
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

/// Figures for `roundelay status`.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Census {
    /// Chains that tick, by queue.
    pub queues: Vec<QueueCensus>,
    /// Chains that an operator has stopped.
    pub paused: i64,
    /// Chains that have ended; single ticks beside a chain are not counted.
    pub retired: i64,
    /// Of these, those that ended by a run's word: their entities are unavailable.
    pub unavailable: i64,
    /// Chains whose messages were ahead of the ledger.
    pub quarantined: i64,
    /// Entities with a kept failure, and parts of entities.
    pub failures: i64,
    /// Messages kept in the ledger because they could not be used.
    pub quarantined_messages: i64,
    /// One-off jobs kept in the ledger.
    pub kept_jobs: i64,
    /// When the longest overdue chain was due, of those that do not wait for the other row of their chain.
    pub oldest_due: Option<Time>,
}

/// The active chains of one queue.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct QueueCensus {
    /// The platform queue.
    pub queue: String,
    /// Due in the future.
    pub sleeping: i64,
    /// Being run.
    pub running: i64,
    /// Due, and not being run.
    pub due: i64,
    /// Of these, due for longer than the slack, and those that have overslept, but for those that wait for the other row of their chain: the rotation
    /// for a manual run, or that for the rotation or for the cooldown.
    pub overdue: i64,
    /// Of these, those whose due times lie further ahead than their schedules can explain, as far as they were looked at.
    pub overslept: i64,
    /// With a successor not known to have been sent.
    pub unsent: i64,
    /// Waiting for the end of their batch.
    pub waiting: i64,
}

/// What went wrong with the ledger; phrased to follow "failed to …: ".
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// It cannot be opened.
    #[error("cannot open the ledger {path}: {reason}")]
    Open {
        /// The file.
        path: String,
        /// What SQLite or the system says.
        reason: String,
    },
    /// A statement failed.
    #[error("the ledger says: {0}")]
    Statement(String),
    /// An order for a worker that is not there, and never will be: no other has its name.
    #[error("there is no worker {0}; it may have ended")]
    NoWorker(String),
    /// The engine is stopping.
    #[error("the ledger is closed")]
    Closed,
}

impl Census {
    /// A chain that was counted among those that sleep is overdue `since` then: its due time means nothing.
    pub fn overslept(&mut self, queue: &str, since: Time) {
        let Some(queue) = self.queues.iter_mut().find(|of| of.queue == queue) else { return };
        queue.sleeping = (queue.sleeping - 1).max(0);
        (queue.due, queue.overdue, queue.overslept) = (queue.due + 1, queue.overdue + 1, queue.overslept + 1);
        self.oldest_due = Some(self.oldest_due.map_or(since, |oldest| oldest.min(since)));
    }
}

impl QueueCensus {
    /// Counts an active chain. `waits`: for the other row of its chain, so it is due, and nothing is wrong.
    pub fn count(&mut self, holder: Holder, due: Time, sent: bool, waits: bool, now: Time, slack: Duration) {
        if holder.runs() {
            self.running += 1;
            return;
        }
        *(if due > now { &mut self.sleeping } else { &mut self.due }) += 1;
        self.overdue += i64::from(due + slack <= now && !waits);
        self.unsent += i64::from(!sent);
    }
}
