//! The truth about chains.
//!
//! Messages are replaceable hints; what the ledger says counts. Each verb is one transaction.
//!
//! - `chain`, `enroll`, `claim`, `finish` and the other small files: what the verbs take and answer.
//! - [`Rosters`], [`History`], [`Failures`], [`Slots`], [`Sessions`], [`Running`] and [`Fleet`]: the verbs that
//!   rosters need, those that keep the history within bounds, those for what has failed, those of throttles, those of
//!   workers' leases, those of one-off jobs that report, and those of workers and of what was ordered of them. [`Search`]: the verbs behind screens.
//!   [`StoredTexts`]: those that write what users have given in another form.
//!   [`Access`]: those of the API, for who may use it. [`Measured`]: how much all that is.
//! - [`decide_claim`] decides about a claim purely, so that every ledger decides alike.
//! - [`sqlite`]: a file on this machine, written by one thread with group commit.
//! - [`postgres`]: a server that many workers share, written in groups too.
//!
//! A job asks the ledger twice: a *claim* before its handler runs, and a *finish* with all that follows when the handler has
//! ended.
//!
//! Layer: on `model` and `net`. May use: SQLite, PostgreSQL. Knows neither broker nor configuration: [`LedgerUrl`] says where
//! the ledger is.

pub mod access;
mod census;
mod chain;
mod chain_orders;
mod claim;
pub mod comeback;
mod decide_claim;
mod enroll;
mod error;
mod failed;
mod finish;
mod fleet;
mod history;
mod look;
mod mark;
mod outbox;
mod overdue;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(not(feature = "postgres"))]
#[path = "postgres/left_out.rs"]
pub mod postgres;
mod rosters;
mod running;
mod search;
mod sessions;
mod slots;
pub mod sqlite;
mod stored_texts;
mod traffic;
mod url;
mod view;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::calendar::Calendar;
use roundelay_model::clock::Time;
use roundelay_model::failure::{FailedItem, Failure};
use roundelay_model::ids::{Epoch, Fence};
use roundelay_model::progress::Progress;

pub use access::Access;
pub use census::{Census, QueueCensus};
pub use chain::{ChainState, Hint, Holder, Kinds, Sent};
pub use chain_orders::{ChainFilter, ChainOrder};
pub use claim::{Claim, ClaimId, ClaimRequest, Grant};
pub use decide_claim::{ChainRow, ClaimDecision, decide_claim};
pub use enroll::{Enrolled, NewChain};
pub use error::LedgerError;
pub use failed::{DueItem, FailureCursor, FailureFilter, Failures, Hold, Plan, PlannedItem};
pub use finish::{Finish, FinishRequest, Member};
use fleet::gone;
pub use fleet::{Fleet, SeenWorker};
pub use history::History;
pub use look::LAST;
pub use look::{Condition, Cursor, ListFilter, Listed, Move, OwnerCensus, fits_pattern};
pub use outbox::{KeptJob, SpawnedJob};
pub use overdue::{LookAgain, OrphanFilter, Overdue};
pub use rosters::{Enlisted, Rosters};
pub use running::{Running, RunningJob};
pub use search::{EFFORT, Found, NamedAttempt, QuarantinedMessage, ReasonCount, RunFilter, Search};
pub use sessions::{Beat, Session, Sessions};
pub use slots::{Slots, ThrottleRow};
pub use stored_texts::{StoredText, StoredTexts, TextColumn, TextReplacement};
pub use traffic::{Measured, Size, Traffic};
pub use url::LedgerUrl;
pub use view::{AttemptRecord, ChainView, LateChain};

/// In place of a kind, for the places that [`Ledger::reserve`] gives to messages sent again from quarantine: which
/// retry came first. Nobody gives them up.
pub const RETRIED: &str = "roundelay.retried";

/// Keeps the truth.
#[async_trait]
pub trait Ledger:
    Rosters
    + History
    + Failures
    + Slots
    + Sessions
    + Running
    + Fleet
    + Search
    + StoredTexts
    + Access
    + Measured
    + Send
    + Sync
{
    /// Names this ledger; chains' messages carry it.
    fn id(&self) -> &str;

    /// The time that decides dues and leases. It is steady: it neither goes back nor jumps when a clock is set.
    fn now(&self) -> Time;

    /// How the wall clock stands to that time, as far as this process has noticed.
    fn calendar(&self) -> Arc<Calendar>;

    /// Reads the clocks, and notes it for all who use the ledger if the wall clock was set. A worker does so once a
    /// second.
    ///
    /// # Errors
    /// When the ledger cannot be read, or what is new is not known to be written.
    async fn read_clock(&self) -> Result<(), LedgerError>;

    /// Begins chains that do not exist yet, and brings payload and queue of the others up to date.
    /// One answer for each, in order.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn enroll(&self, chains: Vec<NewChain>) -> Result<Vec<Enrolled>, LedgerError>;

    /// Notes that messages were confirmed, and (with `slack`) moves catch-up's look to after
    /// their due time.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn enrolled_sent(&self, sent: Vec<Sent>, slack: Duration) -> Result<(), LedgerError>;

    /// Asks to run an attempt.
    ///
    /// # Errors
    /// When it is not known to be written; a claim that was, unheard, ends with its session.
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, LedgerError>;

    /// Writes the end of a run, and with it the jobs that it asks for.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError>;

    /// Notes that a message was confirmed; need not be durable at once, since a lost note costs
    /// one surplus message.
    fn mark_sent(&self, sent: Sent);

    /// Writes what was noted and is not written yet. A worker asks for it when it stops.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn flush(&self) -> Result<(), LedgerError>;

    /// The chains of this queue and these kinds to look after at `now`, longest overdue first. Those that a worker runs
    /// are left out, unless it is this session's: only the holder can tell a run from a claim whose answer was lost, and
    /// looks of others, which move `watch_at`, would keep it from looking.
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

    /// Writes when to look again; answers, for each, whether nobody else was faster.
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

    /// Keeps what went wrong with an entity, or with a part of it.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn record_failure(&self, kind: String, key: String, failed: FailedItem, at: Time) -> Result<(), LedgerError>;

    /// The kept failures, latest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn failures(&self, limit: u32) -> Result<Vec<Failure>, LedgerError>;

    /// Keeps a message that cannot be used, where the broker keeps none. If it is that of the kept job `job`, that is
    /// forgotten with it, so that no other start of a worker finds it again.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn quarantine(
        &self,
        from: String,
        reason: String,
        body: Vec<u8>,
        job: Option<String>,
        at: Time,
    ) -> Result<(), LedgerError>;

    /// Keeps a one-off job under its id, in place of an earlier attempt, until it is forgotten.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn keep_job(&self, id: String, body: Vec<u8>) -> Result<(), LedgerError>;

    /// Kept jobs with numbers above `after`.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>, LedgerError>;

    /// Takes kept jobs with numbers above `after`, up to `limit` of them, to send them: those that were kept, or last
    /// taken, at `before` or earlier. They count as kept from now, so of several workers one sends a job.
    ///
    /// # Errors
    /// When it is not known to be written. Then the jobs may count as taken, and are found again later.
    async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>, LedgerError>;

    /// Keeps jobs and failed parts that a run without a chain asks for, and begins chains that it has
    /// discovered, in one transaction. Answers the first messages of those that are new.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn accept(
        &self,
        kind: String,
        key: String,
        spawned: Vec<SpawnedJob>,
        chains: Vec<NewChain>,
        failed: Vec<FailedItem>,
    ) -> Result<Vec<Hint>, LedgerError>;

    /// Writes how far attempts have come, by their fences, unless they have ended.
    ///
    /// # Errors
    /// When it is not known to be written. Nothing hangs on it.
    async fn note_progress(&self, runs: Vec<(Fence, Progress)>) -> Result<(), LedgerError>;

    /// Forgets kept jobs that have been sent, or have ended.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_jobs(&self, ids: Vec<String>) -> Result<(), LedgerError>;

    /// What an owner's jobs may do; [`ChainState::Active`] for one of whom nothing is known.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn owner(&self, owner: String) -> Result<ChainState, LedgerError>;

    /// Takes the place of the job with this id as the only one of its kind and key, for `window` from
    /// now. Answers with the id of the job that has it: this one, unless another has.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn reserve(&self, kind: String, key: String, id: String, window: Duration) -> Result<String, LedgerError>;

    /// Gives that place up.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError>;

    /// Brings the next tick of a chain forward to now; answers its message, unless the chain does not tick,
    /// or runs, or waits for its batch.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn advance(&self, kind: String, key: String, slack: Duration) -> Result<Option<Hint>, LedgerError>;

    /// Gives a rotation a schedule of its own, as JSON text, or takes it away; answers whether there is such a
    /// rotation that has not ended. When its next tick is due stays as it is: see [`Ledger::reschedule`].
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

    /// Does what an operator wants with chains; answers how many it has changed. When it has
    /// returned after [`ChainOrder::Pause`] or [`ChainOrder::Retire`], none of them is claimed any more.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn order_chains(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError>;

    /// How many chains [`Ledger::order_chains`] would change now.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn matching(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError>;

    /// Rotations after a place, in the order of kind and key.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn list(&self, filter: ListFilter, after: Option<Cursor>, limit: u32) -> Result<Vec<Listed>, LedgerError>;

    /// Rotations of a queue that tick: those that catch-up looks after last, and those that sleep although it should have
    /// looked after them; those that are due last first. However many there are, these are found at once: at most `limit`
    /// of each sort are looked at.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn furthest(&self, queue: String, limit: u32) -> Result<Vec<Listed>, LedgerError>;

    /// Owners after this one, in their order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn owners(&self, after: String, limit: u32) -> Result<Vec<OwnerCensus>, LedgerError>;

    /// The record of the attempt with this fence, and of those of the same chain before it, latest first. It
    /// ends where the history has been deleted.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError>;

    /// The kept failures of one entity, latest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn failures_of(&self, kind: String, key: String) -> Result<Vec<Failure>, LedgerError>;

    /// The chain of that name, and the single tick beside it, if there are any.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn chains(&self, kind: String, key: String) -> Result<Vec<ChainView>, LedgerError>;

    /// Active chains that were due before `before`, are not being run, and do not wait for the other row of their chain
    /// (a rotation for a manual run, or that for the rotation or for the cooldown), longest overdue first, and
    /// quarantined ones.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn late(&self, before: Time, limit: u32) -> Result<Vec<LateChain>, LedgerError>;

    /// Records of attempts with fences above `after`, in their order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError>;

    /// The broker topology that the workers of this ledger use, in the words they gave it.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn topology(&self) -> Result<Option<String>, LedgerError>;

    /// Puts `next` in its place, if it still is `current`; answers whether it was.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn set_topology(&self, current: Option<String>, next: String) -> Result<bool, LedgerError>;

    /// Deletes records of attempts that ended before `before`, looking at the `limit` oldest;
    /// returns how many. Also forgets the places of unique jobs, and which retries from quarantine came first, where
    /// they were to last until before `before` only.
    ///
    /// # Errors
    /// When nothing was deleted.
    async fn prune(&self, before: Time, limit: u32) -> Result<usize, LedgerError>;

    /// Counts chains.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn census(&self, slack: Duration) -> Result<Census, LedgerError>;
}
