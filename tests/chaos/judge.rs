//! Judges a run (pure), from nothing but the receiver's log and the ledger's rows.
//!
//! - **dead**: a chain was not called for longer than it may take after it was due and the faults
//!   around that had healed; or it does not tick any more, and was not set aside as it has to be
//!   when three workers in a row were killed, frozen or cut off while they ran it.
//! - **forked**: two processes, neither of them killed or frozen meanwhile, were in the same chain
//!   at once, although its kind waits for the lease to end; or one fence was used for two calls; or
//!   a fence came after a higher one of the same chain.
//! - **unrecorded**: a call whose fence the ledger has no attempt for.
//! - **lost**: a one-off job that the broker had confirmed and the receiver never saw.
//! - **targets**: a window of a chain's schedule without its run, too late, or with two ([`targets`]).
//! - **carries**: what a run has read is not what the run before it wrote ([`carries`]).
//!
//! And it measures, for each fault, how long the chains that it hit took to be called again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use roundelay::deaths::DEATHS_TO_QUARANTINE;
use roundelay::ledger::ChainState;

use super::log::{Call, Carry, Did, Entry, Line};

#[path = "carries.rs"]
mod carries;
#[path = "targets.rs"]
mod targets;

pub use targets::Rhythm;

/// What was agreed on beforehand. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How long after its due time a chain is looked at (`catch_up.slack`).
    pub slack: i64,
    /// How much longer it may then take until it is called.
    pub patience: i64,
    /// How long a chain may be due and not be called, whatever is broken.
    pub longest: i64,
    /// Kinds whose ticks are taken over when they are delivered again.
    pub redelivery: BTreeSet<String>,
    /// The intervals of kinds that count them from the end of a run.
    pub rhythms: BTreeMap<String, Rhythm>,
}

/// A row of the table `attempts`.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub fence: i64,
    pub epoch: i64,
    pub tick: i64,
    pub due: i64,
    pub started: i64,
    pub verdict: Option<String>,
}

/// A row of the table `chains`.
#[derive(Clone, Debug)]
pub struct Chain {
    pub epoch: i64,
    pub kind: String,
    pub key: String,
    pub state: ChainState,
    pub due: i64,
}

/// How long the chains that a fault hit took to be called again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The fault's number, and its kind; for worker faults followed by the kind's `takeover`.
    pub number: usize,
    pub fault: String,
    /// How many chains it hit.
    pub chains: usize,
    /// The slowest of them, in milliseconds.
    pub slowest: i64,
    /// Another fault fell into this time, so that it says little about this one.
    pub disturbed: bool,
}

/// The findings. A run is in order when the lists of texts are empty.
#[derive(Clone, Debug, Default)]
pub struct Ruling {
    pub dead: Vec<String>,
    pub forked: Vec<String>,
    pub unrecorded: Vec<String>,
    pub lost: Vec<String>,
    pub targets: Vec<String>,
    pub carries: Vec<String>,
    /// What runs had read and was compared with what the runs before them wrote.
    pub carried: usize,
    pub recoveries: Vec<Recovery>,
    /// Calls of chains, and of one-off jobs.
    pub calls: (usize, usize),
    /// One-off jobs that were confirmed.
    pub accepted: usize,
    /// Calls that ran beside another of their chain, because a connection broke and the kind does
    /// not wait for the lease.
    pub beside: usize,
    /// Chains that were set aside since three workers in a row died over them.
    pub set_aside: usize,
    /// The longest time that a chain was due and was not called, in milliseconds.
    pub latest: i64,
}

/// A chain that is called so soon after it was due was not kept from it, in milliseconds.
const ON_TIME: i64 = 500;

/// How long the answer to a claim, or to a finish, may be on its way over a slow network, in milliseconds.
const ANSWERED: i64 = 2_000;

/// The name of the fault that freezes a worker.
const FROZEN: &str = "worker frozen";

/// How long it may take, in milliseconds, until both ends of a half-open connection have noticed: two
/// heartbeats of ten seconds, and a moment.
const NOTICED: i64 = 22_000;

/// From when to when, in milliseconds since 1970.
pub type Span = (i64, i64);

/// Whether they have a moment in common.
pub fn meet(a: Span, b: Span) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

/// A call with its end, `None` while it lasts.
pub struct Seen<'a> {
    pub at: i64,
    /// When, and whether it was answered.
    pub end: Option<(i64, bool)>,
    pub call: &'a Call,
}

impl Seen<'_> {
    fn span(&self, over: i64) -> Span {
        (self.at, self.end.map_or(over, |(at, _)| at))
    }
}

/// The log in the order in which the judge needs it.
#[derive(Default)]
pub struct Record<'a> {
    /// Calls by chain, in the order in which they came.
    pub chains: BTreeMap<i64, Vec<Seen<'a>>>,
    once: HashSet<&'a str>,
    accepted: Vec<&'a str>,
    /// The fences of calls that were answered, also after the log's end.
    answered: HashSet<i64>,
    killed: HashMap<&'a str, i64>,
    frozen: HashMap<&'a str, Vec<Span>>,
    pub faults: Vec<Fault<'a>>,
    /// When it ended.
    pub over: i64,
}

/// What was broken, from when to when.
pub struct Fault<'a> {
    pub number: usize,
    pub kind: &'a str,
    pub target: &'a str,
    pub span: Span,
}

impl Fault<'_> {
    /// It hits one worker and leaves everything else as it is.
    pub fn is_of_a_worker(&self) -> bool {
        self.kind.starts_with("worker ")
    }

    /// From its beginning until nothing of it is left.
    fn felt(&self) -> Span {
        let rest = if self.kind.ends_with("half-open") { NOTICED } else { 0 };
        (self.span.0, self.span.1.saturating_add(rest))
    }

    /// From when on the chains that it hit can be expected to come back: at once where the others
    /// can go on without what was broken, else from its end.
    fn reference(&self) -> i64 {
        let at_once = self.is_of_a_worker() || ["node killed", "leader killed"].contains(&self.kind);
        if at_once { self.span.0 } else { self.span.1 }
    }
}

/// Puts a log into that order.
pub fn record(log: &[Line]) -> Record<'_> {
    let mut record = Record { over: log.last().map_or(0, |line| line.at.as_millis()), ..Record::default() };
    // Where each call is: its chain and its place there.
    let mut places: HashMap<u64, (i64, usize)> = HashMap::new();
    // By the caller's port: its latest call.
    let mut callers: HashMap<u16, (i64, usize)> = HashMap::new();
    for line in log {
        let at = line.at.as_millis();
        match &line.entry {
            Entry::Call(call) => match call.epoch {
                Some(epoch) => {
                    let calls = record.chains.entry(epoch).or_default();
                    places.insert(call.call, (epoch, calls.len()));
                    callers.insert(call.peer, (epoch, calls.len()));
                    calls.push(Seen { at, end: None, call });
                }
                None => {
                    record.once.insert(&call.id);
                }
            },
            Entry::End { call, answered } => {
                if let Some((epoch, place)) = places.get(call) {
                    record.chains.get_mut(epoch).expect("it has this call")[*place].end.get_or_insert((at, *answered));
                }
            }
            Entry::Left { peer } => {
                if let Some((epoch, place)) = callers.get(peer) {
                    record.chains.get_mut(epoch).expect("it has this call")[*place].end.get_or_insert((at, false));
                }
            }
            Entry::Worker { worker, did: Did::Killed } => drop(record.killed.insert(worker, at)),
            Entry::Worker { worker, did: Did::Frozen } => {
                record.frozen.entry(worker).or_default().push((at, i64::MAX));
            }
            Entry::Worker { worker, did: Did::Thawed } => {
                if let Some(span) = record.frozen.get_mut(worker.as_str()).and_then(|spans| spans.last_mut()) {
                    span.1 = at;
                }
            }
            Entry::Worker { did: Did::Start, .. } | Entry::Set { .. } | Entry::Calm => {}
            Entry::Broke { number, fault, target } => {
                record.faults.push(Fault { number: *number, kind: fault, target, span: (at, i64::MAX) });
            }
            Entry::Healed { number } => {
                if let Some(fault) = record.faults.iter_mut().find(|fault| fault.number == *number) {
                    fault.span.1 = at;
                }
            }
            Entry::Accepted { id } => record.accepted.push(id),
            Entry::Over => {
                record.over = at;
                break;
            }
        }
    }
    record.answered = answered(log);
    record
}

/// The fences of calls that were answered: also after the log's end, since the ledger is read later.
fn answered(log: &[Line]) -> HashSet<i64> {
    let mut fences: HashMap<u64, i64> = HashMap::new();
    let mut answered = HashSet::new();
    for line in log {
        match &line.entry {
            Entry::Call(call) => drop(call.fence.map(|fence| fences.insert(call.call, fence))),
            Entry::End { call, answered: true } => answered.extend(fences.get(call)),
            _ => {}
        }
    }
    answered
}

impl Record<'_> {
    /// Whether the process was killed or frozen at some time in `span`, so that what it had begun
    /// may overlap with what others did.
    fn was_struck(&self, worker: &str, span: Span) -> bool {
        self.killed.get(worker).is_some_and(|at| *at <= span.1) || self.was_frozen(worker, span)
    }

    fn was_frozen(&self, worker: &str, span: Span) -> bool {
        self.frozen.get(worker).is_some_and(|spans| spans.iter().any(|frozen| meet(*frozen, span)))
    }

    /// Faults that keep everybody from working.
    fn outages(&self) -> impl Iterator<Item = &Fault<'_>> {
        self.faults.iter().filter(|fault| !fault.is_of_a_worker())
    }
}

/// Judges.
pub fn judge(log: &[Line], chains: &[Chain], attempts: &[Attempt], rules: &Rules) -> Ruling {
    let record = record(log);
    let rows: HashMap<i64, &Attempt> = attempts.iter().map(|row| (row.fence, row)).collect();
    let mut ruling = Ruling {
        calls: (record.chains.values().map(Vec::len).sum(), record.once.len()),
        accepted: record.accepted.len(),
        ..Ruling::default()
    };
    for (epoch, calls) in &record.chains {
        forks_among_calls(&record, *epoch, calls, &rows, rules, &mut ruling);
        let unknown = calls.iter().filter(|seen| seen.call.fence.is_none_or(|fence| !rows.contains_key(&fence)));
        ruling.unrecorded.extend(unknown.map(|seen| told(seen, "has no attempt in the ledger")));
    }
    ruling.targets = targets::missed_and_surplus(&record, chains, attempts, rules);
    (ruling.carries, ruling.carried) = carries::lost_and_doubled(&record, attempts);
    // The test pauses and retires no chains.
    let stopped = chains.iter().filter(|chain| chain.state != ChainState::Active);
    let (set_aside, stopped): (Vec<&Chain>, Vec<&Chain>) =
        stopped.partition(|chain| is_set_aside(&record, chain, attempts));
    ruling.set_aside = set_aside.len();
    ruling
        .dead
        .extend(stopped.into_iter().map(|Chain { kind, key, .. }| format!("{kind} {key} does not tick any more")));
    let known: HashSet<i64> = chains.iter().map(|chain| chain.epoch).collect();
    let gone = record.chains.keys().filter(|epoch| !known.contains(epoch));
    ruling.dead.extend(gone.map(|epoch| format!("the chain {epoch} was called and is not in the ledger")));
    for chain in chains.iter().filter(|chain| chain.state == ChainState::Active) {
        deaths(&record, chain, &rows, rules, &mut ruling);
    }
    let lost = record.accepted.iter().filter(|id| !record.once.contains(**id));
    ruling.lost = lost.map(|id| format!("the job {id} was confirmed and never called")).collect();
    ruling.recoveries =
        record.faults.iter().flat_map(|fault| recoveries(&record, fault, &rows, rules)).collect::<Vec<_>>();
    ruling
}

/// Whether the chain was rightly set aside: the ledger gave up its last tick three times, and during each call of that
/// tick that the receiver saw, or soon after its answer, its worker was struck, or everybody was cut off. A worker that
/// was struck between its claim and its call is in the ledger alone. One that was frozen says when it wakes up that it
/// was too late (`fenced`).
fn is_set_aside(record: &Record, chain: &Chain, attempts: &[Attempt]) -> bool {
    let of_chain = || attempts.iter().filter(|row| row.epoch == chain.epoch);
    let last = of_chain().map(|row| row.tick).max();
    let given_up = |row: &&Attempt| matches!(row.verdict.as_deref(), Some("lost" | "fenced"));
    let lost: Vec<&Attempt> = of_chain().filter(|row| Some(row.tick) == last && given_up(row)).collect();
    let died = |seen: &Seen| {
        let (begun, ended) = seen.span(record.over);
        // An answer is worth nothing before its worker has written it.
        let span = (begun, if seen.answered() { ended + ANSWERED } else { ended });
        record.was_struck(&seen.call.worker, span) || record.outages().any(|fault| meet(fault.felt(), span))
    };
    let calls = record.chains.get(&chain.epoch).map(Vec::as_slice).unwrap_or_default();
    let mut of_lost = calls.iter().filter(|seen| lost.iter().any(|row| Some(row.fence) == seen.call.fence));
    chain.state == ChainState::Quarantined && lost.len() >= DEATHS_TO_QUARANTINE as usize && of_lost.all(died)
}

fn told(seen: &Seen, what: &str) -> String {
    let Call { kind, key, tick, fence, worker, .. } = seen.call;
    let (tick, fence) = (tick.unwrap_or_default(), fence.unwrap_or_default());
    format!("{kind} {key} tick {tick} fence {fence}, called by {worker} at {}: {what}", seen.at)
}

fn forks_among_calls(
    record: &Record,
    epoch: i64,
    calls: &[Seen],
    rows: &HashMap<i64, &Attempt>,
    rules: &Rules,
    ruling: &mut Ruling,
) {
    let mut fences = HashSet::new();
    let mut highest = 0;
    for (place, seen) in calls.iter().enumerate() {
        let fence = seen.call.fence.unwrap_or_default();
        if !fences.insert(fence) {
            ruling.forked.push(told(seen, &format!("the chain {epoch} was called with this fence before")));
        }
        // A process that was frozen between its claim and its call comes late with it.
        let claimed = rows.get(&fence).map_or(seen.at, |row| row.started);
        // A worker whose connection broke while the answer to its claim was on the way calls beside the worker that
        // took the tick over.
        let overtaken = rules.redelivery.contains(&seen.call.kind) && seen.at - claimed <= ANSWERED;
        if fence < highest && overtaken {
            ruling.beside += 1;
        } else if fence < highest && !record.was_struck(&seen.call.worker, (claimed, seen.at)) {
            ruling.forked.push(told(seen, &format!("the higher fence {highest} had been called before")));
        }
        highest = highest.max(fence);
        for before in &calls[..place] {
            let lasted = before.span(record.over);
            if seen.at >= lasted.1 || record.was_struck(&before.call.worker, (before.at, seen.at)) {
                continue;
            }
            if rules.redelivery.contains(&seen.call.kind) {
                ruling.beside += 1;
            } else {
                let Call { worker, fence, .. } = before.call;
                let fence = fence.unwrap_or_default();
                ruling.forked.push(told(seen, &format!("the call of {worker} with fence {fence} still ran")));
            }
        }
    }
}

/// A chain must be called once it is due and nothing is broken any more, within slack and patience.
fn deaths(record: &Record, chain: &Chain, rows: &HashMap<i64, &Attempt>, rules: &Rules, ruling: &mut Ruling) {
    let none = Vec::new();
    let calls = record.chains.get(&chain.epoch).unwrap_or(&none);
    let mut gap = |due: i64, until: i64, called: bool| {
        let mut deadline = due + rules.slack + rules.patience;
        let mut outages: Vec<Span> = record.outages().map(|fault| fault.span).collect();
        outages.sort_unstable();
        for outage in outages {
            if meet(outage, (due, deadline)) {
                deadline = deadline.max(outage.1.saturating_add(rules.slack + rules.patience));
            }
        }
        // Outages follow each other closely, but no chain is in the way of all of them.
        if until > deadline || until - due > rules.longest {
            let (Chain { kind, key, .. }, late) = (chain, until - due);
            let end = if called { "was called" } else { "had not been called at the end," };
            ruling.dead.push(format!("{kind} {key}, due at {due}, {end} {late} ms later"));
        }
        if called {
            ruling.latest = ruling.latest.max(until - due);
        }
    };
    // While a call lasts, the chain is due for it and not for another, also when the same tick has
    // to be called again.
    let mut busy = 0;
    for seen in calls {
        if let Some(row) = seen.call.fence.and_then(|fence| rows.get(&fence)) {
            gap(row.due.max(busy), seen.at, true);
        }
        busy = busy.max(seen.span(record.over).1);
    }
    gap(chain.due.max(busy), record.over, false);
}

/// What a fault did to whom. A worker's death or frost hits the calls that it was in, and they are
/// told apart by how their kinds are taken over; everything else hits all chains that are due
/// before the next one.
fn recoveries(record: &Record, fault: &Fault, rows: &HashMap<i64, &Attempt>, rules: &Rules) -> Vec<Recovery> {
    let reference = fault.reference();
    let others = || record.outages().filter(|other| other.number != fault.number).map(|other| other.span);
    let next_outage = others().map(|span| span.0).filter(|at| *at >= reference).min().unwrap_or(i64::MAX);
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for calls in record.chains.values() {
        let Some(kind) = calls.first().map(|seen| seen.call.kind.as_str()) else { continue };
        let after = calls.partition_point(|seen| seen.at <= reference);
        let name = if fault.is_of_a_worker() {
            let ran = |seen: &Seen| seen.end.is_none_or(|(end, _)| end >= reference);
            if !calls[..after].iter().any(|seen| seen.call.worker == fault.target && ran(seen)) {
                continue;
            }
            let takeover = if rules.redelivery.contains(kind) { "redelivery" } else { "lease" };
            format!("{}, {takeover}", fault.kind)
        } else {
            fault.kind.to_owned()
        };
        // One that does not come back at all is dead, or still runs.
        let Some(next) = calls.get(after) else { continue };
        let due = next.call.fence.and_then(|fence| rows.get(&fence)).map_or(reference, |row| row.due);
        // What happened to this chain before it was due, or by a worker's end, is not this fault's doing.
        let struck = calls[..after].last().filter(|_| !fault.is_of_a_worker());
        if due > next_outage
            || struck.is_some_and(|seen| record.was_struck(&seen.call.worker, (seen.at, next.at)) && !seen.answered())
        {
            continue;
        }
        let late = next.at - reference.max(due);
        let group = groups.entry(name).or_insert(Group { chains: 0, back: reference, slowest: 0 });
        group.chains += 1;
        group.slowest = group.slowest.max(late);
        if late > ON_TIME {
            group.back = group.back.max(next.at);
        }
    }
    // A frozen worker keeps what was delivered to it from everybody.
    let frozen = record.faults.iter().filter(|other| other.kind == FROZEN && other.number != fault.number);
    let outages = record.outages().filter(|other| other.number != fault.number);
    let spans: Vec<Span> = outages.chain(frozen).map(Fault::felt).collect();
    let recovery = |(fault_kind, Group { chains, back, slowest })| Recovery {
        number: fault.number,
        fault: fault_kind,
        chains,
        slowest,
        disturbed: spans.iter().any(|span| meet(*span, (reference, back))),
    };
    groups.into_iter().map(recovery).collect()
}

/// Chains that a fault hit, when the last of those that were late came back, and how late they were
/// at most.
struct Group {
    chains: usize,
    back: i64,
    slowest: i64,
}

impl Seen<'_> {
    fn answered(&self) -> bool {
        self.end.is_some_and(|(_, answered)| answered)
    }
}

/// The value below which the share `q` of the sorted `values` lies (nearest rank).
pub fn quantile(values: &[i64], q: f64) -> Option<i64> {
    let rank = (q * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).or(values.last()).copied()
}
