//! The model of a throttle: two workers ask one ledger for slots, use them on time or late, and lose them.
//!
//! What the ledger decides is the real code: `serve` in `crates/model/src/pacing/`, with GCRA, counted windows, holds,
//! budgets, the breaker and orders. Modelled is what a worker does with the answer (`crates/engine/src/throttle/`): it
//! asks again when the answer says so, and uses a slot from when that opens until three quarters of the slip later. A
//! quarter is for the way to the upstream, so that a start which is late comes in a whole slip after its slot.
//!
//! Times are milliseconds from now, and those that are over are forgotten as soon as they change nothing, so that the
//! states are finitely many. What the ledger remembers is rounded up to whole milliseconds: slots come no sooner.
//!
//! Of the ledger's clock this sees what `serve` sees: a time that is a little earlier than before, that of a ledger
//! which was begun anew, and that of a server whose clock was set, read by a worker that has just begun. A worker that
//! has known the clock for longer corrects such a reading within a second (`clock/followed.rs`, not explored here).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roundelay_model::pacing::orders::{OrderedHold, OrderedLimits, Orders, ThrottleOrder};
use roundelay_model::pacing::slots::{self, Breaker, Feedback, LEAD, Limits, Micros, StartRequest, Window};
use roundelay_model::pacing::{SlotRequest, serve};
use serde::{Deserialize, Serialize};

use super::search::{Broken, Model, Stepped};

/// Milliseconds.
type Ms = i32;

/// Now, by the ledger's steady time.
const NOW: Micros = 1_000_000_000_000_000;
/// Slots that are granted and not used.
const SLOTS: usize = 4;
/// Starts of the last window.
const STARTS: usize = 8;
/// A worker that has begun can tell how much time has passed when it has known the clock for so long.
const SETTLES: Ms = 3_000;
/// By so much the ledger's time falls back: a little, and as far as that of a ledger which was begun anew.
const BACK: [Ms; 2] = [2_000, 100_000];
/// By so much the server's clock is set forward.
const FORWARD: Ms = 40_000;
/// No slot opens as long ago as this when it is granted.
const OVER: Ms = -1_000;
/// How long an operator's hold lasts, and an upstream's.
const HOLDS: [Ms; 2] = [15_000, 10_000];
/// What an upstream says of its budget: so many calls remain, for so long; with this many nothing would be slowed.
const BUDGET: (u32, Ms, u32) = (1, 20_000, 3);

/// What is explored.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// The configured limits.
    pub limits: Arc<Limits>,
    /// Those that an operator may order in their place.
    pub ordered: Option<Window>,
    /// How many slots a worker asks for at once.
    pub many: usize,
    /// The priority and the cost of each worker's starts.
    pub starts: [(i32, u32); 2],
    /// How long answers take to each worker, as it says when it asks.
    pub ahead: Ms,
    /// Runs may fail, which opens the breaker.
    pub breaker: Option<Breaker>,
    /// What may go wrong.
    pub left: Left,
}

/// What may still go wrong, or be said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    /// Crashes, answers that are lost, workers that are slow.
    pub faults: u8,
    /// Times that the clock is set.
    pub clock: u8,
    /// Orders of an operator.
    pub orders: u8,
    /// What an upstream says, and runs that fail.
    pub words: u8,
    /// Jobs that are given up while they wait.
    pub leaves: u8,
}

/// The search keeps it beside the hash, since it compares it.
impl std::hash::Hash for Left {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// A worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Worker {
    dead: bool,
    /// A job waits.
    wants: bool,
    /// When it asks.
    ask: Ms,
    /// For how long it cannot tell yet how much time has passed.
    young: Ms,
    runs: Runs,
}

/// What a worker runs. Only known where runs may fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Runs {
    #[default]
    Nothing,
    Job,
    Probe,
}

/// A slot that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Slot {
    worker: u8,
    opens: Ms,
    probe: bool,
}

/// What the judge knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Known {
    /// When starts came in, the last ones first; in the last window, and shortly from now.
    starts: [Option<Ms>; STARTS],
    /// Nothing may be granted that opens before.
    held: Ms,
    /// The breaker has opened, and no probe has succeeded since.
    open: bool,
    /// Failures since the last success.
    failures: u8,
    /// No other probe may be granted before: there is one.
    probe: Ms,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    /// What the ledger remembers, as it stores it.
    row: String,
    /// The operator's limits are in force.
    ordered: bool,
    /// When the operator's hold ends.
    hold: Option<Ms>,
    /// The operator has released holds, and no request has come since.
    released: bool,
    /// The server's clock was set by so much, and no worker has corrected that yet.
    set: Ms,
    workers: [Worker; 2],
    slots: [Option<Slot>; SLOTS],
    /// The worker that has had the last slot: the other one has waited longer, and asks first.
    last: u8,
    known: Known,
    left: Left,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Begin(u8),
    Ask(u8),
    AskUnheard(u8),
    Start(u8),
    GiveBack(u8),
    Ends(u8, bool),
    Come(u8),
    Leave(u8),
    Time(Ms),
    Slow(Ms),
    Crash(u8),
    Back(Ms),
    Forward,
    Hold,
    Release,
    Limits(bool),
    Says(u8, Word),
}

/// What an upstream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Hold,
    Budget,
    Spent,
}

/// The row of a throttle: the letters are those of `crates/model/src/pacing/slots/row.rs`.
#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Row {
    t: Micros,
    d: f64,
    n: f64,
    q: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    c: BTreeMap<u64, Vec<(Micros, u32)>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    w: BTreeMap<i32, Waiting>,
    l: bool,
    h: Micros,
    g: Micros,
    p: bool,
    x: u32,
    r: u32,
    b: (f64, Micros),
    o: i64,
    a: (Micros, Micros),
    e: Micros,
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Waiting {
    until: Micros,
    passed: u32,
    large: (u32, Micros),
    less: bool,
}

fn micros(ms: Ms) -> Micros {
    Micros::from(ms) * 1_000
}

fn at(ms: Ms) -> Micros {
    NOW + micros(ms)
}

/// Milliseconds from now, rounded up.
fn from_now(at: Micros) -> Ms {
    let ms = at.saturating_sub(NOW).saturating_add(999).div_euclid(1_000);
    ms.clamp(Micros::from(Ms::MIN / 4), Micros::from(Ms::MAX / 4)) as Ms
}

fn ms(duration: Duration) -> Ms {
    duration.as_millis() as Ms
}

fn broken(invariant: &'static str, what: impl Into<String>) -> Broken {
    Broken { invariant, what: what.into() }
}

fn worker(n: u8) -> char {
    if n == 0 { 'A' } else { 'B' }
}

impl Throttle {
    /// The way to the upstream.
    fn way(&self) -> Ms {
        ms(self.limits.slip()) / 4
    }

    /// How long a slot may be used after it has opened.
    fn usable(&self) -> Ms {
        ms(self.limits.slip()) - self.way()
    }

    /// The most starts in any window, whichever limits are in force.
    fn most(&self) -> usize {
        self.limits.window.allow.max(self.ordered.map_or(0, |window| window.allow)) as usize
    }

    fn per(&self) -> Ms {
        ms(self.limits.window.per)
    }

    /// Neither worker differs from the other.
    fn alike(&self) -> bool {
        self.starts[0] == self.starts[1]
    }

    fn orders(&self, state: &State) -> Orders {
        let by = String::from("operator");
        let limits = self.ordered.filter(|_| state.ordered).map(|window| OrderedLimits {
            allow: window.allow,
            per_ms: window.per.as_millis() as u64,
            burst: 1,
            by: by.clone(),
            at: NOW,
        });
        let hold = state.hold.map(|until| OrderedHold { until: at(until), why: String::new(), by, at: NOW });
        Orders { version: 1, limits, hold, released: i64::from(state.released) }
    }

    /// Has the ledger serve a request, at the time that this worker reads.
    fn serve(&self, state: &mut State, of: u8, feedback: Vec<Feedback>, ask: bool) -> Answer {
        let Worker { young, .. } = state.workers[usize::from(of)];
        if young == 0 {
            state.set = 0;
        }
        let (read, since) = (at(state.set), (young > 0).then(|| at(state.set - (SETTLES - young))));
        let (priority, cost) = self.starts[usize::from(of)];
        let requests = if ask { vec![StartRequest { priority, cost, probe: false }; self.many] } else { Vec::new() };
        let ahead = micros(self.ahead);
        let limits = self.limits.clone();
        let request = SlotRequest { throttle: String::new(), key: String::new(), limits, feedback, requests, ahead };
        let mut kept: slots::State = parsed(&state.row);
        let orders = self.orders(state);
        let answer = serve(&mut kept, &orders, &request, read, since).answer.moved(NOW - read);
        state.row = serde_json::to_string(&kept).unwrap_or_default();
        let slots = answer.slots.into_iter().map(|slot| from_now(slot.1)).collect();
        Answer { slots, again: answer.again, probe: answer.probe }
    }

    fn grant(&self, state: &mut State, of: u8, answer: &Answer) -> Result<(), Broken> {
        for opens in &answer.slots {
            if *opens < state.known.held {
                let what = format!("worker {} gets a slot that opens before a hold is over", worker(of));
                return Err(broken("hold", what));
            }
            if state.known.open && *opens < state.known.probe {
                return Err(broken("breaker", "a start is granted while another one tries whether the upstream works"));
            }
            if state.known.open {
                state.known.probe = self.breaker.map_or(OVER, |breaker| opens + ms(breaker.patience));
            }
        }
        Ok(())
    }

    fn ask(&self, state: &mut State, of: u8, heard: bool) -> Result<bool, Broken> {
        let answer = self.serve(state, of, Vec::new(), true);
        self.grant(state, of, &answer)?;
        if !heard {
            return Ok(false);
        }
        for opens in &answer.slots {
            let Some(free) = state.slots.iter_mut().find(|slot| slot.is_none()) else { break };
            *free = Some(Slot { worker: of, opens: *opens, probe: answer.probe });
            state.last = of;
        }
        let early = if micros(self.way()) >= 100_000 { 0 } else { LEAD / 2 + micros(self.ahead) };
        state.workers[usize::from(of)].ask = answer.again.map_or(0, |again| from_now(again - early).max(1));
        Ok(!answer.slots.is_empty())
    }

    fn starts(&self, state: &mut State, n: u8) -> Result<(), Broken> {
        let Some(Slot { worker: of, opens, probe }) = state.slots[usize::from(n)].take() else { return Ok(()) };
        // Used at the last moment, it comes in at the last moment.
        let late = opens + self.usable() == 0;
        let comes = if late { self.way() } else { 0 };
        let (_, cost) = self.starts[usize::from(of)];
        let starts = &mut state.known.starts;
        for _ in 0..cost {
            if let Some(free) = starts.iter_mut().find(|start| start.is_none()) {
                *free = Some(comes);
            }
        }
        starts.sort_unstable_by(|a, b| b.cmp(a));
        let (most, per) = (self.most(), self.per());
        for (last, first) in starts.iter().zip(starts.iter().skip(most)) {
            if let (Some(last), Some(first)) = (last, first)
                && last - first < per
            {
                let what = format!("{} starts within {} ms, of {most} that are allowed", most + 1, last - first);
                return Err(broken("I3", what));
            }
        }
        let of = &mut state.workers[usize::from(of)];
        of.ask = 0;
        if self.breaker.is_some() {
            of.runs = if probe { Runs::Probe } else { Runs::Job };
        }
        Ok(())
    }

    /// A run ends, in a success or a failure.
    fn ends(&self, state: &mut State, of: u8, well: bool) {
        let Some(breaker) = self.breaker else { return };
        let runs = std::mem::take(&mut state.workers[usize::from(of)].runs);
        let probe = runs == Runs::Probe;
        let feedback = match well {
            true => Feedback::Worked { probe },
            false => Feedback::Failed { probe, breaker, why: String::new() },
        };
        self.serve(state, of, vec![feedback], false);
        let known = &mut state.known;
        if known.open && !probe {
            return;
        }
        (known.failures, known.probe) = (if well { 0 } else { known.failures + 1 }, OVER);
        known.open = !well && (known.open || u32::from(known.failures) >= breaker.failures);
        if known.open {
            // At least for so long; twice as long after each probe that has failed.
            known.held = known.held.max(ms(breaker.wait));
        }
    }

    fn says(&self, state: &mut State, of: u8, word: Word) {
        state.left.words -= 1;
        let (remaining, reset, enough) = BUDGET;
        let feedback = match word {
            Word::Hold => Feedback::Hold { until: micros(HOLDS[1]), why: String::new() },
            Word::Budget => Feedback::Budget { remaining, reset: micros(reset), enough },
            Word::Spent => Feedback::Spent { cost: 1 },
        };
        if word == Word::Hold {
            state.known.held = state.known.held.max(HOLDS[1]);
        }
        self.serve(state, of, vec![feedback], false);
    }

    fn order(&self, state: &mut State, order: &ThrottleOrder) {
        state.left.orders -= 1;
        let mut orders = self.orders(state);
        orders.add(order, "operator", NOW);
        state.ordered = orders.limits.is_some();
        state.hold = orders.hold.as_ref().map(|hold| from_now(hold.until));
        state.released |= orders.released == orders.version;
        // Workers that wait hear of it, and ask again.
        state.workers.iter_mut().for_each(|worker| worker.ask = worker.ask.min(0));
    }

    fn pass(&self, state: &mut State, wait: Ms) {
        let kept: slots::State = parsed(&state.row);
        state.row = serde_json::to_string(&kept.moved(-micros(wait))).unwrap_or_default();
        state.hold = state.hold.map(|until| until - wait);
        for worker in &mut state.workers {
            (worker.ask, worker.young) = (worker.ask - wait, (worker.young - wait).max(0));
        }
        for slot in state.slots.iter_mut().flatten() {
            slot.opens -= wait;
        }
        let known = &mut state.known;
        known.starts.iter_mut().flatten().for_each(|start| *start -= wait);
        (known.held, known.probe) = (known.held - wait, known.probe - wait);
        if state.workers.iter().any(|worker| !worker.dead && worker.young == 0) {
            state.set = 0;
        }
    }

    /// The ledger's time is another one: what it remembers lies so much further ahead.
    fn set(state: &mut State, by: Ms) {
        let kept: slots::State = parsed(&state.row);
        state.row = serde_json::to_string(&kept.moved(micros(by))).unwrap_or_default();
        state.hold = state.hold.map(|until| until + by);
    }

    /// Forgets what makes no difference any more.
    fn forget(&self, state: &mut State) {
        let longest = micros(self.per()) + self.limits.slip().as_micros() as Micros;
        // A slot may open a quarter of the slip before it is asked for.
        let over = NOW - 1_000_000;
        let mut row: Row = parsed(&state.row);
        let rounded = |at: f64| ((at / 1_000.0).ceil() * 1_000.0).max(over as f64);
        (row.n, row.q) = (rounded(row.n), rounded(row.q));
        // Who has begun looks back no further.
        row.t = if row.t == 0 { 0 } else { row.t.max(NOW - micros(SETTLES) - 1_000_000) };
        // Where the pace alone keeps the window, its slots are counted for people only.
        if self.limits.burst <= 1 && self.starts.iter().all(|(_, cost)| *cost == 1) {
            row.c.clear();
        }
        row.e = if row.e + longest > over { row.e } else { 0 };
        for marks in row.c.values_mut() {
            marks.retain(|(at, _)| at + longest > over);
        }
        for waiting in row.w.values_mut() {
            waiting.until = waiting.until.max(NOW - 1_000);
            waiting.passed = waiting.passed.min(slots::MIN_SHARE_DIVISOR);
            if waiting.large.1 < over {
                waiting.large = (0, 0);
            }
        }
        for at in [&mut row.h, &mut row.g] {
            *at = if *at <= over { 0 } else { *at };
        }
        if row.b.1 <= over {
            row.b = (0.0, 0);
        } else if row.b.1 > Micros::MAX / 2 {
            // For ever, and still so when time has passed.
            row.b.1 = Micros::MAX;
        }
        state.released &= row.o < 1;
        row.o = 0;
        // The slow start after it is over, too.
        let ended = |at: Micros| at < over - longest;
        if let Some(until) = state.hold
            && ended(at(until) + row.a.1)
            && row.a.0 == at(until)
        {
            (state.hold, row.a) = (None, (0, 0));
        }
        state.row = serde_json::to_string(&row).unwrap_or_default();
        for worker in &mut state.workers {
            worker.ask = worker.ask.max(0);
            if worker.dead {
                *worker = Worker { dead: true, ..Worker::default() };
            }
        }
        let usable = self.usable();
        for slot in &mut state.slots {
            *slot = slot.filter(|slot| slot.opens + usable >= 0);
        }
        for n in 0..2 {
            if !waits_for_slot(state, n) {
                state.workers[usize::from(n)].ask = 0;
            }
        }
        state.slots.sort_unstable();
        let (per, known) = (self.per(), &mut state.known);
        for start in &mut known.starts {
            *start = start.filter(|start| *start > -per);
        }
        known.starts.sort_unstable_by(|a, b| b.cmp(a));
        (known.held, known.probe) = (known.held.max(OVER), known.probe.max(OVER));
    }

    /// The canonical form, and whether the workers have changed places in it: they are names only, where their starts
    /// are alike.
    fn canonical(&self, mut state: State) -> (State, bool) {
        self.forget(&mut state);
        if !self.alike() {
            return (state, false);
        }
        let mut other = state.clone();
        other.workers.swap(0, 1);
        other.last = 1 - other.last;
        other.slots.iter_mut().flatten().for_each(|slot| slot.worker = 1 - slot.worker);
        other.slots.sort_unstable();
        if other < state { (other, true) } else { (state, false) }
    }

    /// Whether a worker has something to do now, so that time does not pass unless that worker is slow.
    fn waits(&self, state: &State) -> bool {
        let ends = |slot: &Slot| slot.opens + self.usable() == 0;
        (0..2).any(|n| asks(state, n)) || state.slots.iter().flatten().any(ends)
    }

    /// How long until something may happen that cannot happen now.
    fn next_time(&self, state: &State) -> Option<Ms> {
        let asks = (0..2u8).filter(|n| waits_for_slot(state, *n)).map(|n| state.workers[usize::from(n)].ask);
        let slots = state.slots.iter().flatten().flat_map(|slot| [slot.opens, slot.opens + self.usable()]);
        let young = state.workers.iter().map(|worker| worker.young);
        asks.chain(slots).chain(young).filter(|wait| *wait > 0).min()
    }
}

struct Answer {
    slots: Vec<Ms>,
    again: Option<Micros>,
    /// The starts are probes of a half-open breaker.
    probe: bool,
}

fn parsed<T: Default + for<'a> Deserialize<'a>>(row: &str) -> T {
    serde_json::from_str(row).unwrap_or_default()
}

fn waits_for_slot(state: &State, n: u8) -> bool {
    let of = state.workers[usize::from(n)];
    let has = state.slots.iter().flatten().any(|slot| slot.worker == n);
    !of.dead && of.wants && !has && of.runs == Runs::Nothing
}

fn asks(state: &State, n: u8) -> bool {
    waits_for_slot(state, n) && state.workers[usize::from(n)].ask <= 0
}

impl Model for Throttle {
    type State = State;
    type Move = Move;

    fn start(&self) -> State {
        let state = State {
            row: String::from("{}"),
            ordered: false,
            hold: None,
            released: false,
            set: 0,
            workers: [Worker { wants: true, ..Worker::default() }; 2],
            slots: [None; SLOTS],
            last: 0,
            known: Known { held: OVER, probe: OVER, ..Known::default() },
            left: self.left,
        };
        self.canonical(state).0
    }

    fn moves(&self, state: &State) -> Vec<Move> {
        let mut moves = Vec::with_capacity(24);
        let Left { faults, clock, orders, words, leaves } = state.left;
        let fault = faults > 0;
        for (n, worker) in (0u8..).zip(&state.workers) {
            if worker.dead {
                moves.push(Move::Begin(n));
                continue;
            }
            if asks(state, n) {
                moves.push(Move::Ask(n));
                if fault {
                    moves.push(Move::AskUnheard(n));
                }
            }
            if worker.runs != Runs::Nothing {
                moves.push(Move::Ends(n, true));
                if words > 0 {
                    moves.push(Move::Ends(n, false));
                }
            }
            if !worker.wants {
                moves.push(Move::Come(n));
            } else if leaves > 0 && waits_for_slot(state, n) {
                moves.push(Move::Leave(n));
            }
            // What is wrong with the clock stays so only as long as a worker is there that corrects it.
            let others = state.workers[usize::from(1 - n)];
            let corrects = worker.young == 0 && (others.dead || others.young > 0);
            if fault && !(state.set > 0 && corrects) {
                moves.push(Move::Crash(n));
            }
            if words > 0 && self.breaker.is_none() {
                moves.extend([Word::Hold, Word::Budget, Word::Spent].map(|word| Move::Says(n, word)));
            }
        }
        for (n, slot) in (0u8..).zip(&state.slots).filter_map(|(n, slot)| Some((n, (*slot)?))) {
            let ends = slot.opens + self.usable() == 0;
            if ends || (slot.opens <= 0 && slot.opens >= -self.way()) {
                moves.push(Move::Start(n));
            }
            if ends || slot.probe {
                moves.push(Move::GiveBack(n));
            }
        }
        if let Some(wait) = self.next_time(state) {
            if !self.waits(state) {
                moves.push(Move::Time(wait));
            } else if fault {
                moves.push(Move::Slow(wait));
            }
        }
        if clock > 0 {
            moves.extend(BACK.map(Move::Back));
            if state.set == 0 && state.workers.iter().any(|worker| !worker.dead && worker.young == 0) {
                moves.push(Move::Forward);
            }
        }
        if orders > 0 {
            moves.extend([Move::Hold, Move::Release]);
            if self.ordered.is_some() {
                moves.push(Move::Limits(!state.ordered));
            }
        }
        moves
    }

    fn step(&self, state: &State, chosen: Move) -> Result<Stepped<State>, Broken> {
        let (mut state, mut paid) = (state.clone(), 0);
        match chosen {
            Move::Begin(n) => {
                state.workers[usize::from(n)] = Worker { wants: true, young: SETTLES, ..Worker::default() };
            }
            Move::Ask(n) => {
                if self.ask(&mut state, n, true)? {
                    paid |= 1 << n;
                }
            }
            Move::AskUnheard(n) => {
                state.left.faults -= 1;
                self.ask(&mut state, n, false)?;
            }
            Move::Start(n) => self.starts(&mut state, n)?,
            Move::GiveBack(n) => {
                if let Some(slot) = state.slots[usize::from(n)].take() {
                    if slot.probe {
                        self.serve(&mut state, slot.worker, vec![Feedback::Lost], false);
                        state.known.probe = OVER;
                    }
                    state.workers[usize::from(slot.worker)].ask = 0;
                }
            }
            Move::Ends(n, well) => {
                if !well {
                    state.left.words -= 1;
                }
                self.ends(&mut state, n, well);
            }
            Move::Come(n) => (state.workers[usize::from(n)].wants, state.workers[usize::from(n)].ask) = (true, 0),
            Move::Leave(n) => {
                state.left.leaves -= 1;
                (state.workers[usize::from(n)].wants, state.workers[usize::from(n)].ask) = (false, 0);
            }
            Move::Time(wait) => self.pass(&mut state, wait),
            Move::Slow(wait) => {
                state.left.faults -= 1;
                self.pass(&mut state, wait);
            }
            Move::Crash(n) => {
                state.left.faults -= 1;
                state.workers[usize::from(n)].dead = true;
                for slot in &mut state.slots {
                    *slot = slot.filter(|slot| slot.worker != n);
                }
            }
            Move::Back(by) => {
                state.left.clock -= 1;
                Self::set(&mut state, by);
            }
            Move::Forward => {
                state.left.clock -= 1;
                state.set = FORWARD;
            }
            Move::Hold => {
                let span = Duration::from_millis(HOLDS[0] as u64);
                self.order(&mut state, &ThrottleOrder::Hold { span, why: String::new() });
                state.known.held = state.known.held.max(HOLDS[0]);
            }
            Move::Release => {
                self.order(&mut state, &ThrottleOrder::Release);
                (state.known.held, state.known.open, state.known.failures) = (OVER, false, 0);
            }
            Move::Limits(ordered) => {
                let window = self.ordered.unwrap_or(self.limits.window);
                let order = if ordered { ThrottleOrder::Limits { window, burst: 1 } } else { ThrottleOrder::Reset };
                self.order(&mut state, &order);
            }
            Move::Says(n, word) => self.says(&mut state, n, word),
        }
        let (state, renamed) = self.canonical(state);
        Ok(Stepped { state, paid, renamed })
    }

    fn fair(&self, state: &State, moves: &[Move]) -> Option<usize> {
        let rank = |chosen: &Move| match chosen {
            // Neither a dead worker nor a job that was given up need come again.
            Move::Ask(n) => Some(1 + u8::from(*n == state.last)),
            Move::Start(_) | Move::Ends(_, true) => Some(3),
            Move::Time(_) => Some(4),
            _ => None,
        };
        let ranked = moves.iter().enumerate().filter_map(|(n, chosen)| Some((rank(chosen)?, n)));
        ranked.min().map(|(_, n)| n)
    }

    fn left(&self, state: &State) -> u32 {
        let Left { faults, clock, orders, words, leaves } = state.left;
        [faults, clock, orders, words, leaves].into_iter().fold(0, |all, one| all << 4 | u32::from(one.min(15)))
    }

    fn owed(&self, state: &State) -> u8 {
        let waits = |n: &u8| waits_for_slot(state, *n);
        (0..2).filter(waits).fold(0, |bits, n| bits | 1 << n)
    }

    fn renamed(&self, owed: u8) -> u8 {
        owed >> 1 & 1 | (owed & 1) << 1
    }

    fn owes(&self, bits: u8) -> Broken {
        let of = worker(bits.trailing_zeros() as u8);
        broken("I2", format!("worker {of} waits, and never gets a slot although nothing goes wrong"))
    }

    fn tell(&self, before: &State, chosen: Move, after: &State) -> String {
        let of = |n: u8| before.slots[usize::from(n)].map_or('?', |slot| worker(slot.worker));
        let what = match chosen {
            Move::Begin(n) => format!("worker {} starts again", worker(n)),
            Move::Ask(n) => format!("worker {} asks for slots", worker(n)),
            Move::AskUnheard(n) => format!("worker {} asks for slots; the answer is lost", worker(n)),
            Move::Start(n) => format!("worker {} uses its slot", of(n)),
            Move::GiveBack(n) => format!("worker {} does not use its slot", of(n)),
            Move::Ends(n, true) => format!("the run of worker {} succeeds", worker(n)),
            Move::Ends(n, false) => format!("the run of worker {} fails", worker(n)),
            Move::Come(n) => format!("a job of worker {} waits again", worker(n)),
            Move::Leave(n) => format!("worker {} gives up the job that waits", worker(n)),
            Move::Time(wait) => format!("{wait} ms pass"),
            Move::Slow(wait) => format!("{wait} ms pass, though a worker has something to do: it is slow"),
            Move::Crash(n) => format!("worker {} is killed", worker(n)),
            Move::Back(by) => format!("the ledger's time falls back by {by} ms"),
            Move::Forward => format!("the server's clock is set forward by {FORWARD} ms"),
            Move::Hold => format!("an operator holds the throttle for {} ms", HOLDS[0]),
            Move::Release => "an operator releases the throttle".into(),
            Move::Limits(true) => "an operator orders other limits".into(),
            Move::Limits(false) => "an operator resets the limits".into(),
            Move::Says(n, Word::Hold) => format!("worker {} hears: no calls for {} ms", worker(n), HOLDS[1]),
            Move::Says(n, Word::Budget) => format!("worker {} hears: {} call remains", worker(n), BUDGET.0),
            Move::Says(n, Word::Spent) => format!("a call of worker {} has cost one more", worker(n)),
        };
        format!("{what}\n       {}", knows(after))
    }
}

/// What each side knows.
fn knows(state: &State) -> String {
    let workers = (0u8..).zip(&state.workers).map(|(n, of)| {
        let slots = state.slots.iter().flatten().filter(|slot| slot.worker == n);
        let slots: Vec<String> = slots.map(|slot| format!("slot in {} ms", slot.opens)).collect();
        let does = match (of.dead, of.wants, of.runs) {
            (true, ..) => "is dead".into(),
            (_, _, Runs::Job) => "runs".into(),
            (_, _, Runs::Probe) => "probes".into(),
            (_, false, _) => "has nothing to do".into(),
            _ if !slots.is_empty() => slots.join(", "),
            _ => format!("asks in {} ms", of.ask),
        };
        format!("worker {} {does}", worker(n))
    });
    let workers: Vec<String> = workers.collect();
    let starts: Vec<String> = state.known.starts.iter().flatten().map(|start| format!("{start}")).collect();
    format!("{}; starts at [{}] ms; the ledger remembers {}", workers.join("; "), starts.join(", "), state.row)
}

/// What CI explores of throttles: its name, and what it is.
pub fn bounds() -> Vec<(&'static str, Throttle)> {
    let limits = |allow, secs, burst| {
        let window = Window { allow, per: Duration::from_secs(secs) };
        Arc::new(Limits { window, burst, also: Vec::new() })
    };
    let none = Left { faults: 1, ..Left::default() };
    let usual = Throttle {
        limits: limits(2, 32, 1),
        ordered: None,
        many: 1,
        starts: [(0, 1); 2],
        ahead: 0,
        breaker: None,
        left: none,
    };
    // A probe may take longer than the time from one slot to the next.
    let [wait, longest, patience] = [10, 20, 30].map(Duration::from_secs);
    let breaker = Breaker { failures: 1, wait, longest, patience };
    let with = |left| Throttle { left, ..usual.clone() };
    vec![
        ("a throttle", with(Left { faults: 2, leaves: 1, ..none })),
        ("a throttle with a burst", Throttle { limits: limits(3, 32, 3), many: 2, ..with(Left { leaves: 1, ..none }) }),
        ("a throttle of a short window", Throttle { limits: limits(2, 2, 1), ahead: 300, ..usual.clone() }),
        ("a throttle whose clock is set", with(Left { faults: 2, clock: 1, ..none })),
        ("a throttle that is held", with(Left { orders: 2, words: 1, ..none })),
        (
            "a throttle whose limits change",
            Throttle {
                ordered: Some(Window { allow: 1, per: Duration::from_secs(32) }),
                ..with(Left { orders: 2, ..none })
            },
        ),
        (
            "a throttle with a breaker",
            Throttle { breaker: Some(breaker), ..with(Left { words: 2, orders: 1, ..none }) },
        ),
        (
            "a throttle of unlike costs",
            Throttle { limits: limits(3, 32, 1), starts: [(0, 1), (0, 2)], ..usual.clone() },
        ),
        ("a throttle with priorities", Throttle { starts: [(1, 1), (0, 1)], ..with(Left { leaves: 1, ..none }) }),
    ]
}

/// The bound of an exploration, in words.
pub fn words(name: &str, throttle: &Throttle) -> String {
    let Left { faults, clock, orders, words, leaves } = throttle.left;
    format!(
        "{name} ({}): {faults} faults, {clock} settings of the clock, {orders} orders, {words} words of the upstream, {leaves} jobs given up",
        throttle.limits
    )
}
