//! The truth about chains.
//!
//! Messages are replaceable hints; what the ledger says counts. The calls of the ledger are its *verbs*. A verb that
//! writes takes effect as a whole or not at all; verbs that come together share a transaction. The verbs are grouped
//! into traits by their callers and subject, and [`Ledger`] is the sum of the traits:
//!
//! | Trait | Its verbs are about | Who calls them | File |
//! |---|---|---|---|
//! | [`LedgerClock`] | which ledger this is, and its time | everything | `clock.rs` |
//! | [`Protocol`] | a tick, from its chain's beginning to its end | the engine's pipeline | `protocol.rs` |
//! | [`CatchUp`] | chains whose messages may be lost | the engine's catch-up | `catch_up.rs` |
//! | [`Sessions`] | workers' leases | the engine's heartbeat | `sessions.rs` |
//! | [`Jobs`] | one-off jobs, the orders for their owners, the reservations of unique jobs; unusable messages | the engine's one-off jobs | `jobs.rs` |
//! | [`Backlog`] | messages of fair queues that wait for their tenant's turn | the engine's fair queues | `backlog.rs` |
//! | [`Running`] | how far runs have come, and which one-off jobs run | the engine's desk | `running.rs` |
//! | [`Slots`] | throttles | the engine's throttles; operators | `slots.rs` |
//! | [`Rosters`] | the entities of a kind, held to a roster | the engine's rosters | `rosters.rs` |
//! | [`Topology`] | the broker topology on which workers agree | the engine at its start | `topology.rs` |
//! | [`History`] | keeping records of attempts within bounds | the engine's chores | `history.rs` |
//! | [`StoredTexts`] | replacing stored texts by another form | the engine's encryption | `stored_texts.rs` |
//! | [`Failures`] | what has failed | the engine; operators; reports | `failed.rs` |
//! | [`ChainOrders`] | orders for chains | operators | `orders.rs` |
//! | [`Fleet`] | workers, and orders for them | the engine; operators | `fleet.rs` |
//! | [`Access`] | who may use the API | the API | `access.rs` |
//! | [`Reports`] | chains and attempts | command line, doctor, engine | `reports.rs` |
//! | [`Search`] | bounded searches, and messages in quarantine | dashboard and API | `search.rs` |
//! | [`Measured`] | how much traffic it has had, and how much it holds | metrics | `traffic.rs` |
//!
//! - `chain`, `enroll`, `claim`, `finish` and the other small files: what the verbs take and answer.
//! - `decide`: what the verbs of a tick come to (pure). [`comeback`]: when a worker asks again after the ledger has not
//!   answered.
//! - `rows`: a few rows in memory, whose every state can be looked at.
//! - [`sqlite`]: a file on this machine, written by one thread with group commit.
//! - [`postgres`]: a server that many workers share, written in groups too. Like `sqlite` it has each trait in the file
//!   of the trait's name.
//!
//! Layer: on `model` and `net`. May use: SQLite, PostgreSQL. Knows neither broker nor configuration: [`LedgerUrl`] says
//! where the ledger is.

pub mod access;
mod backlog;
mod catch_up;
mod census;
mod chain;
mod claim;
mod clock;
pub mod comeback;
mod decide;
mod enroll;
mod error;
mod failed;
mod finish;
mod fleet;
mod history;
mod jobs;
// Without the feature `postgres`, `left_out.rs` stands in for it, and refuses to open anything. With the feature it is
// compiled for its tests only.
#[cfg(all(test, feature = "postgres"))]
#[path = "postgres/left_out.rs"]
#[allow(dead_code, reason = "only what refuses is tested")]
mod left_out;
mod linger;
mod look;
mod mark;
mod orders;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(not(feature = "postgres"))]
#[path = "postgres/left_out.rs"]
pub mod postgres;
mod protocol;
mod reports;
mod rosters;
#[doc(hidden)]
pub mod rows;
mod running;
mod search;
mod sessions;
mod slots;
pub mod sqlite;
mod stored_texts;
mod topology;
mod traffic;
mod url;

pub use access::Access;
pub use backlog::{Backlog, LeftMessage, Ownership, Seat, TakenMessage, TenantBacklog, name_of_chain};
pub use catch_up::{CatchUp, LookAgain, OrphanFilter, Overdue};
pub use census::{Census, QueueCensus};
pub use chain::{ChainState, Hint, Holder, Kinds, Sent};
pub use claim::{Claim, ClaimId, ClaimRequest, Grant};
pub use clock::LedgerClock;
pub use decide::follow::{AfterClaim, AfterFinish, after_claim, after_finish};
pub use decide::grant::{ChainRow, ClaimDecision, decide_claim};
pub use enroll::{Enrolled, NewChain};
pub use error::LedgerError;
pub use failed::{DueItem, FailureCursor, FailureFilter, Failures, Hold, Plan, PlannedItem};
pub use finish::{Finish, FinishRequest, Member};
use fleet::gone;
pub use fleet::{Fleet, SeenWorker};
pub use history::History;
pub use jobs::{Jobs, KeptJob, RETRIED, SpawnedJob};
pub use look::LAST;
pub use look::{Condition, Cursor, LateCursor, ListFilter, Listed, Move, OWNERS_EFFORT, OwnerCensus, fits_pattern};
pub use orders::{ChainFilter, ChainOrder, ChainOrders};
pub use protocol::Protocol;
pub use reports::{AttemptRecord, ChainView, LateChain, Reports};
pub use rosters::{Enlisted, Rosters};
pub use running::{OpenRun, RunSource, Running, RunningJob};
pub use search::{EFFORT, Found, NamedAttempt, QuarantinedMessage, ReasonCount, RunFilter, Search};
pub use sessions::{Beat, Session, Sessions};
pub use slots::{Slots, ThrottleRow};
pub use stored_texts::{StoredText, StoredTexts, TextColumn, TextReplacement};
pub use topology::Topology;
pub use traffic::{Measured, Size, Traffic};
pub use url::LedgerUrl;

/// All verbs. Whatever has the traits of the table on the crate's first page is a ledger.
pub trait Ledger:
    LedgerClock
    + Protocol
    + CatchUp
    + Sessions
    + Jobs
    + Backlog
    + Running
    + Slots
    + Rosters
    + Topology
    + History
    + StoredTexts
    + Failures
    + ChainOrders
    + Fleet
    + Access
    + Reports
    + Search
    + Measured
    + Send
    + Sync
{
}

impl<T> Ledger for T where
    T: LedgerClock
        + Protocol
        + CatchUp
        + Sessions
        + Jobs
        + Backlog
        + Running
        + Slots
        + Rosters
        + Topology
        + History
        + StoredTexts
        + Failures
        + ChainOrders
        + Fleet
        + Access
        + Reports
        + Search
        + Measured
        + Send
        + Sync
{
}
