//! What happens in a simulation, and whether it may.
//!
//! The observer sees every commit of the ledger and every start of a handler, even when answers
//! are lost, keeps its own small model of each chain, and compares. The invariants' numbers are those
//! of `docs/proof.md`. Here is what it notes; `chains`, `runs`, `jobs` and `orders` are what it is told
//! of each, and how that is judged.

mod chains;
mod jobs;
mod orders;
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use roundelay_broker::embedded::EmbeddedBroker;
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::ids::{Epoch, Fence, TickNo};
use tokio::time::Instant;

use super::rare::Rare;
use super::worker::{Process, Traps};

/// Something that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// When, from the start of the run.
    pub at: Duration,
    /// What, with the chain.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.invariant, short_duration(self.at), self.what)
    }
}

/// A chain, or the single tick beside one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The kind.
    pub kind: String,
    /// The key.
    pub key: String,
    /// A single tick.
    pub once: bool,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.kind, self.key, if self.once { " (once)" } else { "" })
    }
}

/// How late a chain was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// When it was claimed.
    pub at: Instant,
    /// After its due time; zero if it was not late.
    pub late: Duration,
    /// Which chain.
    pub name: Name,
    /// From which queue it was claimed. That need not be the one with which its chain began.
    pub queue: String,
}

/// A chain, as the observer has it.
#[derive(Default)]
struct Model {
    /// The last claim: epoch, tick, fence.
    place: (Epoch, TickNo, Fence),
    lease: Option<Lease>,
    /// An operator has stopped it, and the order was carried out.
    stopped: bool,
    /// A program has ended it by a message: it is not due any more.
    retired: bool,
    /// When it is or was due, if the observer can know.
    due: Option<Time>,
    /// The last tick that was let start, with its epoch, and when.
    start: Option<(Epoch, TickNo, Time)>,
}

#[derive(Clone)]
struct Lease {
    epoch: Epoch,
    fence: Fence,
    session: i64,
    process: Arc<Process>,
    since: Instant,
    /// For how many deaths over the attempt the worker was prepared.
    prepared: u32,
}

struct Running {
    name: Name,
    epoch: Epoch,
    process: Arc<Process>,
    /// Two at once may be, since only one connection broke.
    lenient: bool,
    since: Instant,
    /// A tick of a rotation, and no single one.
    rotates: bool,
}

/// A job of a unique kind that runs.
struct UniqueRun {
    /// Kind and key.
    name: (String, String),
    id: String,
    process: Arc<Process>,
}

/// The places of unique jobs, by kind and key.
pub type Places = BTreeMap<(String, String), Holder>;

/// Which job has the place of its kind and key, as the ledger has said.
#[derive(Clone, Debug)]
pub struct Holder {
    /// `None` when it was given up.
    id: Option<String>,
    until: Time,
}

/// What a process has last read of operators' orders.
#[derive(Default)]
struct Learned {
    /// Its name in the ledger, once it has said it.
    name: Option<String>,
    /// When it last read them.
    read: Option<Instant>,
    /// Closed for it, each since it first read so; it has no name for what drains all of its queues.
    closed: BTreeMap<Option<String>, Instant>,
    /// How many may run in each queue, and since when the process has read so.
    places: BTreeMap<String, (usize, Instant)>,
}

/// A one-off job that was accepted.
#[derive(Default)]
struct JobModel {
    /// Since then it must come to an end.
    expected: Option<Instant>,
    /// An operator has thrown its message away.
    excused: bool,
    ended: bool,
    /// A run of it ended well.
    done: bool,
    /// It failed for good, so that a person must find it.
    failed: Option<(Instant, (String, String))>,
    /// It belongs to a unique kind and once had its place.
    had_place: bool,
    /// And lost it to another when its window was over.
    outlived: bool,
    /// How often it gave it up.
    given_up: usize,
    /// First attempts that have started.
    first_starts: usize,
    /// How often it came to an end.
    ends: usize,
}

#[derive(Default)]
struct State {
    /// How often each rare state was reached.
    rare: BTreeMap<Rare, u64>,
    /// Chains may have no message.
    without_messages: bool,
    /// Epochs of chains that may have been claimed without a message of their own, because a worker had handed them out
    /// from the ledger, and for how many claims more that is to be thought.
    handed_out: BTreeMap<Epoch, u8>,
    /// An older copy of the ledger has taken its place.
    restored: bool,
    /// When a run of an entity's chain last ended, its rotation or a manual one, by kind and key.
    last_end: BTreeMap<(String, String), Time>,
    chains: BTreeMap<Name, Model>,
    epochs: BTreeMap<Epoch, Name>,
    finished: BTreeSet<(Epoch, TickNo)>,
    /// Ticks of chains that have started, in whatever epoch: an older copy of the ledger may know of it.
    begun: BTreeSet<(Name, TickNo)>,
    /// Occurrences of the wall clock that ticks have begun with, by epoch.
    occurrences: BTreeSet<(Epoch, Time)>,
    /// How many workers have died over a tick, by epoch and tick, since something was heard of it.
    deaths: BTreeMap<(Epoch, TickNo), u32>,
    /// Batches that chains wait for, by their epochs: members in all, and those that have ended.
    batches: BTreeMap<Epoch, (usize, usize)>,
    /// Ids of the jobs that runs of chains have asked for, by their fences.
    asked: BTreeMap<Fence, Vec<String>>,
    /// Kinds and keys of the chains that runs of chains have discovered, by the fences of the runs.
    found: BTreeMap<Fence, Vec<(String, String)>>,
    /// Those of them that have begun, since when.
    discovered: BTreeMap<(String, String), Instant>,
    /// Fences whose finish is written.
    written: BTreeSet<Fence>,
    running: BTreeMap<u64, Running>,
    unique_running: BTreeMap<u64, UniqueRun>,
    /// The places of unique jobs; what is not there is not known.
    places: Places,
    /// Since then everything of the owner is paused.
    owner_paused: Option<Instant>,
    /// By worker and run.
    learned: BTreeMap<(usize, usize), Learned>,
    /// What runs, by queue, worker and run.
    busy: BTreeMap<(String, usize, usize), usize>,
    /// The processes of sessions, and the sessions that are over.
    sessions: BTreeMap<i64, Arc<Process>>,
    over: BTreeSet<i64>,
    /// When its worker last asked for a session what was then answered, and its lease.
    kept: BTreeMap<i64, (Instant, Duration)>,
    /// Chains whose claims were given up, until they are claimed again.
    left: BTreeSet<Epoch>,
    runs: u64,
    jobs: BTreeMap<String, JobModel>,
    /// When a tick of a chain last ended.
    ended: BTreeMap<(String, String), Instant>,
    /// Fences of all starts.
    started: BTreeSet<Fence>,
    /// From when on the run of a claim may start.
    may_start: BTreeMap<Fence, Time>,
    /// When handlers started, for each queue and process.
    starts: BTreeMap<(String, usize, usize), Vec<Instant>>,
    violations: Vec<Violation>,
    ticks: u64,
    /// Claims of chains, each with when it was.
    claims: Vec<Late>,
    trace: DefaultHasher,
    log: Option<Vec<String>>,
}

/// A broker in which only the engine itself can lose messages.
pub struct Lossless {
    /// The broker.
    pub broker: EmbeddedBroker,
    /// But for those of chains with these keys, which an operator takes away.
    pub stopped: BTreeSet<String>,
}

/// Sees everything.
pub struct Observer {
    start: Instant,
    lossless: Option<Lossless>,
    traps: Arc<Traps>,
    /// Keys of chains that an operator stops, begins anew, or runs by hand.
    touched: BTreeSet<String>,
    state: Mutex<State>,
}

impl Observer {
    /// An observer that has seen nothing, and keeps a log of what it sees if it is wanted.
    pub fn new(log: bool, lossless: Option<Lossless>, touched: BTreeSet<String>, traps: Arc<Traps>) -> Arc<Self> {
        let state = State { log: log.then(Vec::new), ..State::default() };
        Arc::new(Self { start: Instant::now(), lossless, touched, traps, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// How long the run has lasted.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Notes what happens, for the trace and the log.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let at = self.start.elapsed();
        self.lock().note(at, what);
    }

    /// Notes that a rare state was reached.
    pub fn reached(&self, rare: Rare) {
        *self.lock().rare.entry(rare).or_default() += 1;
    }

    /// How often each rare state was reached.
    pub fn rare(&self) -> BTreeMap<Rare, u64> {
        self.lock().rare.clone()
    }

    /// Notes a violation.
    pub fn violated(&self, invariant: &'static str, what: String) {
        let at = self.start.elapsed();
        self.lock().violated(at, invariant, what);
    }

    /// The ledger was replaced by an older copy, and all workers are dead: what was accepted since
    /// then may be gone, and who was stopped may not be.
    ///
    /// `places` are those that the copy knows: who asks again for a place that it has there does not get it for longer.
    pub fn restored(&self, places: Places) {
        let mut state = self.lock();
        state.restored = true;
        state.last_end.clear();
        // An older copy may know some of them again.
        state.over.clear();
        for model in state.chains.values_mut() {
            *model = Model { place: model.place, ..Model::default() };
        }
        state.batches.clear();
        state.discovered.clear();
        state.places = places;
        state.owner_paused = None;
        state.jobs.values_mut().for_each(|job| job.excused = true);
    }

    /// What went wrong.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// A number that two runs have in common only if the same things happened.
    pub fn trace(&self) -> u64 {
        self.lock().trace.finish()
    }

    /// What happened, if it was to be kept.
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone().unwrap_or_default()
    }
}

impl State {
    fn note(&mut self, at: Duration, what: impl FnOnce() -> String) {
        let what = what();
        (at, &what).hash(&mut self.trace);
        if let Some(log) = &mut self.log {
            log.push(format!("{:>9.3}  {what}", at.as_secs_f64()));
        }
    }

    fn violated(&mut self, at: Duration, invariant: &'static str, what: String) {
        self.note(at, || format!("VIOLATED {invariant}: {what}"));
        self.violations.push(Violation { invariant, at, what });
    }
}
