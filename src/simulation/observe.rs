//! What happens in a simulation, and whether it may.
//!
//! The observer sees every commit of the ledger and every start of a handler, whoever else hears
//! of it, keeps its own small model of each chain, and compares. The invariants' numbers are those
//! of `docs/proof.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::worker::Process;
use super::world::{BRISK, PACED};
use crate::broker::embedded::EmbeddedBroker;
use crate::clock::{Time, short_duration};
use crate::fleet::{FleetOrders, Subject};
use crate::job::{Envelope, Job};
use crate::ledger::{ClaimRequest, Finish, FinishRequest, Grant, LookAgain, Renewal, SpawnedJob};
use crate::outcome::{Next, Outcome};

/// Between a deadline and its effect, at most.
const TICK: Duration = Duration::from_millis(50);
/// How long the answer about an owner may be on its way back, and a little more.
const ANSWER: Duration = Duration::from_secs(4);

/// How long whoever has a place may need until they have run: the longest timeout, and the ledger's outages before it.
const PLACES: Duration = Duration::from_secs(75);

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
    place: (i64, i64, i64),
    lease: Option<Lease>,
    /// An operator has stopped it, and the order was carried out.
    stopped: bool,
    /// When it is or was due, if the observer can know.
    due: Option<Time>,
    /// The last tick that was let start, with its epoch, and when.
    start: Option<(i64, i64, Time)>,
}

struct Lease {
    epoch: i64,
    fence: i64,
    until: Time,
    /// It had run out when the clock was set, perhaps back.
    over: bool,
}

impl Lease {
    /// Whether a claim in this epoch has to wait for it. That of an earlier epoch means nothing.
    fn holds(&self, epoch: i64, now: Time) -> bool {
        self.epoch == epoch && self.until > now && !self.over
    }
}

struct Running {
    name: Name,
    epoch: i64,
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

/// Which job has the place of its kind and key, as the ledger has said.
struct Holder {
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
    /// How many may run in each queue, likewise.
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
    chains: BTreeMap<Name, Model>,
    epochs: BTreeMap<i64, Name>,
    finished: BTreeSet<(i64, i64)>,
    /// Batches that chains wait for, by their epochs: members in all, and those that have ended.
    batches: BTreeMap<i64, (usize, usize)>,
    /// Ids of the jobs that runs of chains have asked for, by their fences.
    asked: BTreeMap<i64, Vec<String>>,
    /// Kinds and keys of the chains that runs of chains have discovered, likewise.
    found: BTreeMap<i64, Vec<(String, String)>>,
    /// Those of them that have begun, since when.
    discovered: BTreeMap<(String, String), Instant>,
    /// Fences whose finish is written.
    written: BTreeSet<i64>,
    running: BTreeMap<u64, Running>,
    unique_running: BTreeMap<u64, UniqueRun>,
    /// The places of unique jobs; what is not there is not known.
    places: BTreeMap<(String, String), Holder>,
    /// Since then everything of the owner is paused.
    owner_paused: Option<Instant>,
    /// By worker and run.
    learned: BTreeMap<(usize, usize), Learned>,
    /// What runs, by queue, worker and run.
    busy: BTreeMap<(String, usize, usize), usize>,
    /// The highest fence when the ledger's clock was last set.
    before_the_clock: i64,
    runs: u64,
    jobs: BTreeMap<String, JobModel>,
    /// When a tick of a chain last ended.
    ended: BTreeMap<(String, String), Instant>,
    /// Fences of all starts.
    started: BTreeSet<i64>,
    /// When handlers started, for each queue and process.
    starts: BTreeMap<(String, usize, usize), Vec<Instant>>,
    violations: Vec<Violation>,
    ticks: u64,
    /// Claims of chains, each with when it was.
    claims: Vec<(Instant, Late)>,
    trace: DefaultHasher,
    log: Option<Vec<String>>,
}

/// Sees everything.
pub struct Observer {
    start: Instant,
    /// The broker, if nobody but the engine itself can lose messages there.
    lossless: Option<EmbeddedBroker>,
    /// Keys of chains whose messages an operator takes away.
    touched: BTreeSet<String>,
    state: Mutex<State>,
}

/// A handler that runs; dropped when it has ended, however.
pub struct Run {
    observer: Arc<Observer>,
    /// Counts all runs.
    pub number: u64,
    /// Queue, worker and run.
    place: (String, usize, usize),
}

impl Drop for Run {
    fn drop(&mut self) {
        let at = self.observer.start.elapsed();
        let mut state = self.observer.lock();
        state.unique_running.remove(&self.number);
        state.busy.entry(self.place.clone()).and_modify(|count| *count -= 1);
        let Some(running) = state.running.remove(&self.number) else { return };
        let took = running.since.elapsed();
        let excused = running.lenient || !running.rotates || running.process.stood_still(running.since);
        if running.name.kind == "brisk" && took > BRISK + TICK && !excused {
            let what = format!("{}: ran for {took:?}, and had to make room for its next occurrence", running.name);
            state.violated(at, "schedule", what);
        }
    }
}

impl Observer {
    /// An observer that has seen nothing, and keeps a log of what it sees if it is wanted.
    pub fn new(log: bool, lossless: Option<EmbeddedBroker>, touched: BTreeSet<String>) -> Arc<Self> {
        let state = State { log: log.then(Vec::new), ..State::default() };
        Arc::new(Self { start: Instant::now(), lossless, touched, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what happens, for the trace and the log.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let at = self.start.elapsed();
        self.lock().note(at, what);
    }

    /// Notes a violation.
    pub fn violated(&self, invariant: &'static str, what: String) {
        let at = self.start.elapsed();
        self.lock().violated(at, invariant, what);
    }

    /// The ledger has granted a claim.
    pub fn granted(&self, process: &Process, request: &ClaimRequest, grant: &Grant) {
        let at = self.start.elapsed();
        let hint = &request.hint;
        let mut name = Name { kind: hint.kind.clone(), key: hint.key.clone(), once: grant.once };
        if hint.parent != 0 {
            // Members of different batches may have the same name.
            name.key = format!("{} of {}", hint.key, hint.parent);
        }
        let mut state = self.lock();
        state.note(at, || {
            let (w, r) = (process.worker, process.run);
            let Grant { fence, .. } = grant;
            format!("worker {w}.{r} claims {name} {}-{}-{} fence {fence}", hint.epoch, hint.tick, hint.attempt)
        });
        let mut wrong = Vec::new();
        if state.finished.contains(&(hint.epoch, hint.tick)) {
            wrong.push(("I1", format!("{name}: tick {} of epoch {} has ended, and is claimed", hint.tick, hint.epoch)));
        }
        if grant.at < grant.due {
            wrong.push(("schedule", format!("{name}: claimed at {}, due at {}", grant.at, grant.due)));
        }
        if let Some((total, ended)) = state.batches.remove(&hint.epoch) {
            if ended < total {
                wrong.push(("batch", format!("{name}: claimed when {ended} of its {total} members have ended")));
            }
            if grant.batch.map(|batch| batch.total) != Some(total as i64) {
                wrong.push(("batch", format!("{name}: has waited for {total}, and is told of {:?}", grant.batch)));
            }
        }
        let model = state.chains.entry(name.clone()).or_default();
        let (before, (epoch, tick, fence)) = (model.start, model.place);
        if grant.fence <= fence || (hint.epoch, hint.tick) < (epoch, tick) {
            let now = (hint.epoch, hint.tick, grant.fence);
            wrong.push(("I7", format!("{name}: from (epoch, tick, fence) {:?} back to {now:?}", model.place)));
        }
        if request.takeover && hint.kind != "steady" {
            wrong.push(("I1", format!("{name}: taken over, though its kind waits for leases")));
        }
        if let Some(lease) = model.lease.as_ref().filter(|lease| lease.holds(hint.epoch, grant.at) && !request.takeover)
        {
            wrong.push(("I1", format!("{name}: claimed, though fence {} holds until {}", lease.fence, lease.until)));
        }
        if model.stopped {
            wrong.push(("I8", format!("{name}: claimed after it was stopped")));
        }
        let ours = (hint.epoch, hint.tick, grant.at);
        if let Some((epoch, tick, at)) = model.start.replace(ours).filter(|_| name.kind == "paced" && !name.once)
            && grant.refused.is_none()
            && epoch == hint.epoch
            && tick != hint.tick
            && grant.at.since(at) < PACED
        {
            wrong.push(("schedule", format!("{name}: starts {:?} after the tick before", grant.at.since(at))));
        }
        if grant.refused.is_some() {
            model.start = before;
        }
        model.place = (hint.epoch, hint.tick, grant.fence);
        model.lease =
            Some(Lease { epoch: hint.epoch, fence: grant.fence, until: grant.at + request.lease, over: false });
        model.due = Some(grant.due).filter(|_| hint.parent == 0);
        state.epochs.insert(hint.epoch, name.clone());
        if !grant.once {
            let (late, queue) = (grant.at.since(grant.due), hint.queue.clone());
            state.claims.push((Instant::now(), Late { late, name, queue }));
        }
        wrong.into_iter().for_each(|(invariant, what)| state.violated(at, invariant, what));
    }

    /// The ledger has renewed leases.
    pub fn renewed(&self, leases: &[Renewal], kept: &[bool], until: Time) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let State { chains, epochs, .. } = &mut *state;
        let mut wrong = Vec::new();
        for (renewal, _) in leases.iter().zip(kept).filter(|(_, kept)| **kept) {
            let Some(name) = epochs.get(&renewal.epoch) else { continue };
            match chains.get_mut(name).and_then(|model| model.lease.as_mut()) {
                Some(lease) if lease.fence == renewal.fence => (lease.until, lease.over) = (until, false),
                _ => wrong.push(format!("{name}: fence {} is renewed, and is not the last", renewal.fence)),
            }
        }
        wrong.into_iter().for_each(|what| state.violated(at, "I1", what));
    }

    /// The ledger has answered a finish.
    pub fn finished(&self, request: &FinishRequest, finish: &Finish) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let name = state.epochs.get(&request.epoch).cloned();
        let Some(name) = name else { return };
        let (epoch, tick, fence) = (request.epoch, request.tick, request.fence);
        state.note(at, || {
            let how = if matches!(finish, Finish::Applied(_)) { request.verdict.as_str() } else { "fenced" };
            format!("{name} {epoch}-{tick} fence {fence} ends: {how}")
        });
        // Whoever was not told that it was written asks again, and is answered the same.
        if *finish == Finish::Fenced || !state.written.insert(fence) {
            return;
        }
        let model = state.chains.entry(name.clone()).or_default();
        // Members are judged by what waits for them, since they end with it.
        let waits = matches!(request.next, Next::End | Next::Gather) || request.parent != 0;
        model.due = (!waits).then(|| request.place().2);
        if request.next == Next::Gather {
            state.batches.insert(epoch, (request.members.len(), 0));
        }
        if request.next == Next::End
            && let Some((_, ended)) = state.batches.get_mut(&request.parent)
        {
            *ended += 1;
        }
        let model = state.chains.entry(name.clone()).or_default();
        match model.lease.take() {
            Some(lease) if lease.fence == fence => {}
            other => {
                let last = other.map_or("nobody".into(), |lease| format!("fence {}", lease.fence));
                state.violated(at, "I1", format!("{name}: fence {fence} finishes, and {last} holds the chain"));
            }
        }
        if matches!(request.next, Next::Tick { .. } | Next::End) {
            if !state.finished.insert((epoch, tick)) {
                state.violated(at, "I1", format!("{name}: tick {tick} of epoch {epoch} finishes twice"));
            }
            state.ticks += 1;
            state.ended.insert((name.kind, name.key), Instant::now());
        }
        // By what the handler said, and not by what the engine has made of it.
        let asked = state.asked.remove(&fence).unwrap_or_default();
        state.expect(asked);
        for name in state.found.remove(&fence).unwrap_or_default() {
            state.discovered.entry(name).or_insert_with(Instant::now);
        }
    }

    /// A process says by which name it is known in the ledger.
    pub fn attends(&self, process: &Process, name: &str) {
        let mut state = self.lock();
        state.learned.entry((process.worker, process.run)).or_default().name = Some(name.into());
    }

    /// The name of a process in the ledger, once it has said it.
    pub fn name_of(&self, process: &Process) -> Option<String> {
        self.lock().learned.get(&(process.worker, process.run))?.name.clone()
    }

    /// A process has read what operators have ordered.
    pub fn learned(&self, process: &Process, orders: &BTreeMap<Subject, FleetOrders>) {
        let now = Instant::now();
        let mut state = self.lock();
        let learned = state.learned.entry((process.worker, process.run)).or_default();
        learned.read = Some(now);
        let (mut closed, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (subject, orders) in orders {
            let queue = match subject {
                Subject::Queue(queue) => Some(queue.clone()),
                Subject::Worker(name) if learned.name.as_ref() == Some(name) => None,
                Subject::Worker(_) => continue,
            };
            if orders.closed.is_some() {
                let since = learned.closed.get(&queue).copied().unwrap_or(now);
                closed.insert(queue.clone(), since);
            }
            if let (Some(queue), Some(ordered)) = (queue, &orders.concurrency) {
                let known = learned.places.get(&queue).filter(|(places, _)| *places == ordered.places);
                places.insert(queue, (ordered.places, known.map_or(now, |(_, since)| *since)));
            }
        }
        (learned.closed, learned.places) = (closed, places);
    }

    /// Why a process must not claim from a queue now, if it knows that. What it has read this very moment it may have
    /// read too late.
    pub fn forbidden(&self, process: &Process, queue: &str) -> Option<String> {
        let state = self.lock();
        let closed = &state.learned.get(&(process.worker, process.run))?.closed;
        let since =
            |subject: Option<String>| closed.get(&subject).map(Instant::elapsed).filter(|since| !since.is_zero());
        let closed = since(Some(queue.into())).map(|since| format!("{queue} is closed, as it knows since {since:?}"));
        closed.or_else(|| since(None).map(|since| format!("its worker is to drain, as it knows since {since:?}")))
    }

    /// How long ago a process last read what operators have ordered.
    pub fn last_read(&self, process: &Process) -> Option<Duration> {
        Some(self.lock().learned.get(&(process.worker, process.run))?.read?.elapsed())
    }

    /// How often a one-off job came to an end.
    pub fn ends(&self, id: &str) -> usize {
        self.lock().jobs.get(id).map_or(0, |job| job.ends)
    }

    /// Jobs were accepted without a chain.
    pub fn accepted(&self, jobs: &[SpawnedJob]) {
        self.lock().expect(jobs.iter().map(|job| job.id.clone()).collect());
    }

    /// A one-off job was published and confirmed.
    pub fn published(&self, id: &str) {
        self.lock().jobs.entry(id.into()).or_default().expected = Some(Instant::now());
    }

    /// A handler starts.
    pub fn started(self: &Arc<Self>, process: &Arc<Process>, job: &Job, once: bool, lenient: bool, now: Time) -> Run {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let name = Name { kind: job.kind.clone(), key: job.key.clone(), once };
        state.note(at, || format!("worker {}.{} runs {name} {}", process.worker, process.run, job.id));
        state.runs += 1;
        let number = state.runs;
        let place = (job.queue.clone(), process.worker, process.run);
        state.starts.entry(place.clone()).or_default().push(Instant::now());
        state.starts_in(at, &place, process);
        if let Some(tick) = job.tick {
            let lenient = lenient || tick.fence <= state.before_the_clock;
            let other = state.running.values().find(|running| {
                let same = running.name == name && running.epoch == tick.epoch;
                same && running.process.is_awake() && !running.lenient && !lenient
            });
            if let Some(other) = other {
                let (ours, theirs) = (process.worker, other.process.worker);
                state.violated(at, "I1", format!("{name}: runs on worker {ours} while it runs on worker {theirs}"));
            }
            if !state.started.insert(tick.fence) {
                state.violated(at, "I6", format!("{name}: two runs have the fence {}", tick.fence));
            }
            if !job.id.ends_with(&format!("-{}-{}", tick.epoch, tick.tick)) {
                state.violated(at, "I6", format!("{name}: the id {} is not that of tick {}", job.id, tick.tick));
            }
            let (epoch, process, since) = (tick.epoch, process.clone(), Instant::now());
            state.running.insert(number, Running { name, epoch, process, lenient, since, rotates: !once });
        } else {
            state.job_started(at, number, process, job, now);
        }
        Run { observer: self.clone(), number, place }
    }

    /// A handler has come to its end.
    pub fn ended(&self, job: &Job, outcome: &Outcome, last_attempt: bool) {
        if let Some(tick) = job.tick {
            if let Outcome::DoneWith(yields) = outcome {
                let ids = (1..=yields.jobs.len()).map(|n| format!("{}-{n}", job.id));
                let found = yields.chains.iter().map(|chain| (chain.kind.clone(), chain.key.clone()));
                let mut state = self.lock();
                state.asked.insert(tick.fence, ids.collect());
                state.found.insert(tick.fence, found.collect());
            }
            return;
        }
        let over = match outcome {
            Outcome::Done | Outcome::DoneWith(_) | Outcome::Fail { .. } | Outcome::Retire { .. } => true,
            Outcome::Retry { .. } => last_attempt,
            Outcome::Snooze { .. } => false,
        };
        if over {
            let mut state = self.lock();
            let model = state.jobs.entry(job.id.clone()).or_default();
            model.ended = true;
            model.ends += 1;
            // A run that has to be repeated may end better the second time.
            let failed = matches!(outcome, Outcome::Fail { .. } | Outcome::Retry { .. });
            model.failed = failed.then(|| (Instant::now(), (job.kind.clone(), job.key.clone())));
        }
    }

    /// The ledger's clock is about to be set, and shows `now`. Whoever has claimed something by then may
    /// still run, or only begin to, when somebody else does. What is over by then stays so, though the
    /// clock may go back.
    pub fn clock_is_set(&self, now: Time) {
        let mut state = self.lock();
        state.running.values_mut().for_each(|running| running.lenient = true);
        state.before_the_clock = state.chains.values().map(|model| model.place.2).max().unwrap_or_default();
        for model in state.chains.values_mut() {
            model.start = None;
            if let Some(lease) = &mut model.lease {
                lease.over |= lease.until <= now;
            }
        }
    }

    /// An order to stop a chain has been carried out, or one to let it go on is about to be.
    pub fn stopped(&self, kind: &str, key: &str, stopped: bool) {
        let mut state = self.lock();
        for once in [false, true] {
            let name = Name { kind: kind.into(), key: key.into(), once };
            // A single tick is ended by the order, and a later one is another.
            let model = state.chains.entry(name).or_default();
            model.stopped = stopped && !once;
        }
    }

    /// An order to pause everything of the owner has been carried out, or one to let it go on is about to be.
    pub fn owner_paused(&self, paused: bool) {
        self.lock().owner_paused = paused.then(Instant::now);
    }

    /// The ledger has said, at `now`, who has the place that the unique job `id` asks for.
    pub fn reserved(&self, name: (String, String), id: &str, holder: &str, (now, window): (Time, Duration)) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let known = state.places.get(&name).map(|place| (place.id.clone(), place.until));
        let (kind, key) = &name;
        if holder != id {
            state.note(at, || format!("unique {kind} {key}: {id} is turned away by {holder}"));
            if known.is_some_and(|(known, until)| known.as_deref() != Some(holder) || until <= now) {
                let what = format!("{kind} {key}: {id} is turned away by {holder}, which has no place");
                state.violated(at, "unique", what);
            }
            // It ends without a run.
            state.jobs.entry(id.into()).or_default().excused = true;
            return;
        }
        state.jobs.entry(id.into()).or_default().had_place = true;
        if let Some((Some(other), until)) = known {
            if other == id && until > now {
                return;
            }
            if other != id && until > now {
                let what = format!("{kind} {key}: {id} gets the place that {other} has until {until}");
                state.violated(at, "unique", what);
            }
            if other != id {
                state.jobs.entry(other).or_default().outlived = true;
            }
        }
        state.places.insert(name, Holder { id: Some(id.into()), until: now + window });
    }

    /// The unique job `id` has given its place up.
    pub fn released(&self, name: (String, String), id: &str) {
        let mut state = self.lock();
        state.jobs.entry(id.into()).or_default().given_up += 1;
        if let Some(place) = state.places.get_mut(&name).filter(|place| place.id.as_deref() == Some(id)) {
            place.id = None;
        }
    }

    /// An operator has thrown this message away.
    pub fn thrown_away(&self, body: &[u8]) {
        let Ok(envelope) = Envelope::decode(body) else { return };
        if let (None, Some(id)) = (envelope.chain, envelope.id) {
            self.lock().jobs.entry(id).or_default().excused = true;
        }
    }

    /// The ledger was replaced by an older copy, and all workers are dead: what was accepted since
    /// then may be gone, and who was stopped may not be.
    pub fn restored(&self) {
        let mut state = self.lock();
        for model in state.chains.values_mut() {
            *model = Model { place: model.place, ..Model::default() };
        }
        state.batches.clear();
        state.discovered.clear();
        state.places.clear();
        state.owner_paused = None;
        state.jobs.values_mut().for_each(|job| job.excused = true);
    }

    /// Jobs that were accepted by `before`, and have not come to an end.
    pub fn lost_jobs(&self, before: Instant) -> Vec<String> {
        let state = self.lock();
        let expected = |job: &JobModel| job.expected.is_some_and(|since| since <= before);
        let lost = state.jobs.iter().filter(|(_, job)| expected(job) && !job.excused && !job.ended);
        lost.map(|(id, _)| id.clone()).collect()
    }

    /// Kinds and keys of jobs that failed for good before then. One whose message an operator threw away may
    /// have failed without anybody being left to write that down.
    pub fn failed_jobs(&self, before: Instant) -> Vec<(String, String)> {
        let state = self.lock();
        let failed = state.jobs.values().filter(|job| !job.excused).filter_map(|job| job.failed.clone());
        failed.filter(|(at, _)| *at <= before).map(|(_, name)| name).collect()
    }

    /// Kinds and keys of chains that were discovered before then, by a run whose end is written.
    pub fn discovered(&self, before: Instant) -> Vec<(String, String)> {
        let state = self.lock();
        state.discovered.iter().filter(|(_, at)| **at < before).map(|(name, _)| name.clone()).collect()
    }

    /// Whether a tick of the chain has ended since then.
    pub fn has_finished(&self, kind: &str, key: &str, since: Instant) -> bool {
        self.lock().ended.get(&(kind.into(), key.into())).is_some_and(|at| *at >= since)
    }

    /// Catch-up sends messages again. If nobody but the engine can lose any, they must be there.
    pub fn looked(&self, looks: &[LookAgain], mine: &[bool]) {
        let Some(broker) = &self.lossless else { return };
        let sent = looks.iter().zip(mine).filter(|(look, mine)| **mine && look.expected.is_some());
        let epochs: Vec<i64> = sent.map(|(look, _)| look.epoch).collect();
        if epochs.is_empty() {
            return;
        }
        let there: BTreeSet<i64> =
            broker.census().iter().filter_map(|held| Some(Envelope::decode(&held.body).ok()?.chain?.epoch)).collect();
        let at = self.start.elapsed();
        let mut state = self.lock();
        for epoch in epochs.into_iter().filter(|epoch| !there.contains(epoch)) {
            // What has waited for a batch is sent by the last of its members, or else by catch-up.
            if state.batches.contains_key(&epoch) {
                continue;
            }
            let name = state.epochs.get(&epoch).cloned();
            let Some(name) = name.filter(|name| !name.once && !self.touched.contains(&name.key)) else { continue };
            state.violated(at, "I9", format!("{name}: its message is gone, and only the engine can have lost it"));
        }
    }

    /// Two runs of one chain at the same time, neither of which stands still.
    pub fn look_for_overlaps(&self) {
        let at = self.start.elapsed();
        let mut state = self.lock();
        let running: Vec<&Running> = state.running.values().filter(|r| r.process.is_awake() && !r.lenient).collect();
        let mut wrong = Vec::new();
        for (n, one) in running.iter().enumerate() {
            if running[..n].iter().any(|other| other.name == one.name && other.epoch == one.epoch) {
                wrong.push(format!("{} runs twice at the same time", one.name));
            }
        }
        wrong.into_iter().for_each(|what| state.violated(at, "I1", what));
    }

    /// Fences of all handlers that ever started.
    pub fn fences(&self) -> BTreeSet<i64> {
        self.lock().started.clone()
    }

    /// When handlers started, for each queue and process: worker and run.
    pub fn starts(&self) -> BTreeMap<(String, usize, usize), Vec<Instant>> {
        self.lock().starts.clone()
    }

    /// Chains that were due before `before`, and that nobody holds at `now`. Those that operators
    /// stop are left out: an order takes effect some time before it has been carried out.
    pub fn stuck(&self, before: Time, now: Time) -> Vec<Name> {
        let state = self.lock();
        let held = |model: &Model| model.lease.as_ref().is_some_and(|lease| lease.until > now);
        let stuck = |name: &Name, model: &Model| {
            model.due.is_some_and(|due| due < before) && !held(model) && !self.touched.contains(&name.key)
        };
        state.chains.iter().filter(|(name, model)| stuck(name, model)).map(|(name, _)| name.clone()).collect()
    }

    /// How late the claims after `from` were.
    pub fn late_since(&self, from: Instant) -> Vec<Late> {
        let state = self.lock();
        state.claims.iter().filter(|(at, _)| *at >= from).map(|(_, late)| late.clone()).collect()
    }

    /// Ticks that have ended.
    pub fn ticks(&self) -> u64 {
        self.lock().ticks
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

    /// One more of a queue's runs in a process, which may be too many. Whoever had a place when others were ordered may
    /// use it.
    fn starts_in(&mut self, at: Duration, place: &(String, usize, usize), process: &Process) {
        let running = self.busy.entry(place.clone()).or_default();
        *running += 1;
        let (running, (queue, worker, run)) = (*running, place);
        let Some((places, since)) = self.learned.get(&(*worker, *run)).and_then(|learned| learned.places.get(queue))
        else {
            return;
        };
        if running > *places && since.elapsed() > PLACES && !process.stood_still(*since) {
            let what = format!(
                "{running} run from {queue} on worker {worker}, and {places} were ordered {:?} ago",
                since.elapsed()
            );
            self.violated(at, "I8", what);
        }
    }

    /// A one-off job starts: not while its owner is paused, and if it is unique, not without its place.
    fn job_started(&mut self, at: Duration, number: u64, process: &Arc<Process>, job: &Job, now: Time) {
        let Job { kind, key, id, attempt, .. } = job;
        let until_start = kind == "first";
        // Giving a place up may take long, after the owner was asked.
        if let Some(since) = self.owner_paused.filter(|_| job.owner.is_some() && !until_start)
            && since.elapsed() > ANSWER
            && !process.stood_still(since)
        {
            let what = format!("{kind} {key} {id} starts {:?} after its owner was paused", since.elapsed());
            self.violated(at, "I8", what);
        }
        if !until_start && kind != "sole" {
            return;
        }
        let name = (kind.clone(), key.clone());
        let model = self.jobs.entry(id.clone()).or_default();
        let (had_place, outlived) = (model.had_place, model.outlived || model.ended);
        model.first_starts += usize::from(*attempt == 1);
        let keeps_it = until_start && *attempt == 1 && model.given_up < model.first_starts;
        if !had_place {
            self.violated(at, "unique", format!("{kind} {key}: {id} starts, and never had its place"));
        }
        if keeps_it {
            self.violated(at, "unique", format!("{kind} {key}: {id} starts, and has not given its place up"));
        }
        // Who has the place runs alone, until the window is over.
        let holder = self.places.get(&name).filter(|place| place.until > now).and_then(|place| place.id.as_ref());
        let other = self.unique_running.values().find(|run| {
            !until_start && run.name == name && run.id != *id && Some(&run.id) == holder && run.process.is_awake()
        });
        let other = other.map(|run| run.id.clone()).filter(|_| !outlived);
        if let Some(other) = other.filter(|other| !self.jobs.get(other).is_some_and(|job| job.ended)) {
            self.violated(at, "unique", format!("{kind} {key}: {id} runs while {other} does, which has the place"));
        }
        self.unique_running.insert(number, UniqueRun { name, id: id.clone(), process: process.clone() });
    }

    fn expect(&mut self, jobs: Vec<String>) {
        let now = Some(Instant::now());
        jobs.into_iter().for_each(|id| self.jobs.entry(id).or_default().expected = now);
    }
}
