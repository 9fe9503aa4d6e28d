//! The model of chains: what may happen next, what comes of it, and whether that may be.

use std::time::Duration;

use roundelay_broker::Depth;
use roundelay_engine::decisions::{Plan, plan};
use roundelay_ledger::rows::{Chain, KIND, QUEUE, Rows};
use roundelay_ledger::{
    AfterClaim, AfterFinish, ChainOrder, ChainState, Claim, ClaimId, ClaimRequest, Enrolled, FinishRequest, Grant,
    Hint, Holder, LookAgain, NewChain, Overdue, Sent, SpawnedJob, after_claim, after_finish,
};
use roundelay_model::guard::{Guard, IfRunning, Manual};
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::outcome::{Next, Verdict};

use super::search::{Broken, Model, Stepped};
use super::state::{
    Backup, Budgets, JOB, Job, Known, LEASE, Lying, Message, Mode, NOW, Outcome, PLACES, Phase, ROWS, SENT_AGAIN,
    SLACK, State, TASKS, Task, Worker, rows_of, take, time,
};

/// From the end of a run to the next tick, in seconds.
const EVERY: i8 = 30;
/// From an attempt to the next.
const RETRY: i8 = 3;
/// By this much the ledger's clock is set back.
const BACK: i8 = 5;
/// What waits briefly comes again after this.
const BRIEFLY: Duration = Duration::from_secs(1);
/// What is left of gone workers is late by this, as in `catch_up.rs`.
const IN_HAND: Duration = Duration::from_secs(1);

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Chains {
    /// There is a second chain.
    pub two: bool,
    /// A manual run may be ordered, and what becomes of it beside the rotation's run.
    pub manual: Option<IfRunning>,
    /// Runs ask for a job.
    pub jobs: bool,
    /// What may go wrong.
    pub budgets: Budgets,
    /// What lies between the engine and the ledger. Tests break the judge's trust in it.
    pub ledger: Ledger,
}

/// Carries out a claim.
pub type Ledger = fn(&mut Rows, &ClaimRequest) -> Claim;

/// As it is.
pub fn sound(rows: &mut Rows, request: &ClaimRequest) -> Claim {
    rows.claim(request, NOW)
}

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Wake(u8),
    Start(u8),
    Claim(u8),
    ClaimUnheard(u8),
    ClaimLost(u8),
    Finish(u8, Outcome),
    FinishUnheard(u8, Outcome),
    Send(u8),
    SendUnheard(u8),
    GiveUpSending(u8),
    Note(u8),
    Forgets(u8),
    SendJob,
    ForgetJob,
    End(u8),
    Deliver(u8, u8),
    Look(u8, u8, bool),
    Adopt(u8, u8, bool),
    Time(i8),
    Slow(i8),
    Lose(u8),
    Double(u8),
    Crash(u8),
    Freeze(u8),
    TakeBack(u8),
    Disconnect(u8),
    SetForward,
    SetBack(bool),
    Pause(u8),
    Resume(u8),
    Retire(u8),
    Recover(u8),
    Anew(u8, bool),
    RunOnce(bool),
    Copy,
    Restore,
}

fn broken(invariant: &'static str, what: impl Into<String>) -> Broken {
    Broken { invariant, what: what.into() }
}

fn hint_of(message: &Message) -> Hint {
    let (key, _) = PLACES[usize::from(message.row)];
    Hint {
        kind: KIND.into(),
        key: key.into(),
        queue: QUEUE.into(),
        epoch: Epoch(message.epoch.into()),
        tick: TickNo(message.tick.into()),
        attempt: message.attempt.into(),
        due: time(message.due),
        parent: Epoch::NONE,
        priority: None,
    }
}

fn message_of(hint: &Hint, row: u8) -> Message {
    let due = ((hint.due.as_millis() - NOW.as_millis()) / 1_000) as i8;
    let (epoch, tick) = (hint.epoch.get() as u8, hint.tick.get() as u8);
    Message { row, epoch, tick, attempt: hint.attempt as u8, due }
}

/// A step that is being made: the state, and the ledger that belongs to it.
struct Step<'a> {
    model: &'a Chains,
    state: State,
    /// Only made when a move comes to the ledger.
    ledger: Option<Rows>,
    /// Rows whose chains were claimed.
    paid: u8,
}

impl Chains {
    fn new_chain(&self, row: u8) -> NewChain {
        let (key, once) = PLACES[usize::from(row)];
        NewChain {
            kind: KIND.into(),
            key: key.into(),
            queue: QUEUE.into(),
            priority: None,
            payload: String::new(),
            forms: Vec::new(),
            nominal: NOW,
            due: NOW,
            watch_at: time(SLACK),
            revive: true,
            once,
            manual: Manual { if_running: self.manual.unwrap_or_default(), force: false },
            owner: None,
            schedule: None,
            keep_schedule: false,
            only_new: false,
            depth: 0,
        }
    }

    fn step_of(&self, state: &State) -> Step<'_> {
        Step { model: self, state: *state, ledger: None, paid: 0 }
    }

    /// What catch-up looks at, of this row.
    fn overdue(&self, state: &State, worker: u8, row: u8, orphaned: bool) -> Option<Overdue> {
        let rows = rows_of(state, self.manual.unwrap_or_default());
        let session = i64::from(state.workers[usize::from(worker)].session);
        let until = orphaned.then(|| time(SLACK));
        let epoch = Epoch(state.rows[usize::from(row)].epoch.into());
        let found = rows.overdue(session, NOW, until).into_iter().find(|found| found.hint.epoch == epoch)?;
        let lately = found.looks > 0 && found.expected > time(-SENT_AGAIN);
        (!orphaned || !lately).then_some(found)
    }

    /// The only move that has to be looked at, of those that are possible where nothing more can go wrong or be ordered
    /// (partial-order reduction, with a set of one).
    ///
    /// - A dead worker begins, where the other one works. A worker that has begun and does nothing can still take each
    ///   step of a dead one: its old session may be ended, and time passes or not, as before. So nothing is left out.
    /// - A worker goes on with its message of one of two chains, if nothing else can touch that chain meanwhile: no
    ///   other message of the chain is in hand or can be delivered, catch-up does not find the chain, and no session
    ///   that ends holds it. Time does not pass before, since the worker has something to do. So all other moves are of
    ///   the other chain or of idle workers, come to the same before and after this one, and neither enable nor prevent
    ///   it. What is judged in this move is of its chain alone. No run of such moves goes on for ever: each brings its
    ///   message nearer to its end.
    fn alone(state: &State) -> Option<Move> {
        let Budgets { faults, clock: _, orders, setbacks, restores } = state.left;
        if faults + orders + setbacks + restores > 0 {
            return None;
        }
        let mode = |n: usize| state.workers[n].mode;
        for dead in 0..2u8 {
            if mode(usize::from(dead)) == Mode::Dead && mode(usize::from(1 - dead)) == Mode::Works {
                return Some(Move::Start(dead));
            }
        }
        if state.rows[0].epoch == 0 || state.rows[2].epoch == 0 || state.rows[1].epoch > 0 {
            return None;
        }
        (0u8..).zip(&state.tasks).find_map(|(n, task)| {
            let goes_on = match task.phase {
                Phase::Asks => Move::Claim(n),
                Phase::Finishes => Move::Finish(n, task.outcome),
                Phase::Sends => Move::Send(n),
                Phase::Notes => Move::Note(n),
                Phase::Free | Phase::Runs => return None,
            };
            let place = task.message.row;
            let row = &state.rows[usize::from(place)];
            let own = state.workers[usize::from(task.worker)];
            let tasks = state.tasks.iter().filter(|other| other.phase != Phase::Free && other.message.row == place);
            let lies = |lying: &Lying| lying.copies > 0 && lying.message.row == place && lying.message.due <= 0;
            let apart = own.mode == Mode::Works
                && tasks.count() == 1
                && !state.messages.iter().any(lies)
                && row.state == ChainState::Active as u8
                && row.watch > 0
                && (row.session == 0 || row.session == own.session);
            apart.then_some(goes_on)
        })
    }

    /// Whether catch-up may find a row: a cheap look before [`Self::overdue`].
    fn may_look(state: &State, row: u8) -> (bool, bool) {
        let row = &state.rows[usize::from(row)];
        let gone = row.session > 0 && state.sessions >> row.session & 1 == 0;
        let active = row.epoch > 0 && row.state == ChainState::Active as u8;
        (active && row.watch <= 0, active && gone && row.watch <= SLACK)
    }
}

impl Model for Chains {
    type State = State;
    type Move = Move;

    fn start(&self) -> State {
        let mut state = State { left: self.budgets, next_epoch: 1, next_fence: 1, ..State::default() };
        state.workers = [1, 2].map(|session| Worker { session, ..Worker::default() });
        state.sessions = 0b110;
        let mut step = self.step_of(&state);
        step.enroll(0, true);
        if self.two {
            step.enroll(2, true);
        }
        step.end().state
    }

    fn moves(&self, state: &State) -> Vec<Move> {
        if let Some(only) = Self::alone(state) {
            return vec![only];
        }
        let mut moves = Vec::with_capacity(48);
        let fault = state.left.faults > 0;
        for (n, worker) in (0u8..).zip(&state.workers) {
            match worker.mode {
                Mode::Works => {
                    if fault {
                        moves.extend([Move::Crash(n), Move::Freeze(n)]);
                        let held = |task: &&Task| task.phase != Phase::Free && task.worker == n && !task.detached;
                        if state.tasks.iter().any(|task| held(&task)) {
                            moves.push(Move::Disconnect(n));
                        }
                    }
                }
                Mode::Frozen => {
                    moves.push(Move::Wake(n));
                    let held = |task: &Task| task.phase != Phase::Free && task.worker == n && !task.detached;
                    if worker.silent >= LEASE && state.tasks.iter().any(held) {
                        moves.push(Move::TakeBack(n));
                    }
                }
                Mode::Dead => moves.push(Move::Start(n)),
            }
        }
        for (n, task) in (0u8..).zip(&state.tasks).filter(|(_, task)| task.phase != Phase::Free) {
            let worker = state.workers[usize::from(task.worker)];
            let works = worker.mode == Mode::Works;
            match task.phase {
                Phase::Free => {}
                Phase::Asks => {
                    let alone = state.in_hand(task.worker, task.message.row, task.message.epoch) == 1;
                    if works || alone {
                        moves.push(Move::Claim(n));
                    }
                    if works && fault {
                        moves.push(Move::ClaimUnheard(n));
                        if !task.again {
                            moves.push(Move::ClaimLost(n));
                        }
                    }
                }
                Phase::Runs | Phase::Finishes => {
                    let may = [Outcome::Done, Outcome::Fails, Outcome::PutOff];
                    for outcome in may {
                        let fits = match task.phase {
                            Phase::Finishes => outcome == task.outcome,
                            _ => outcome == Outcome::Done || state.left.setbacks > 0,
                        };
                        if fits {
                            moves.push(Move::Finish(n, outcome));
                            if works && fault {
                                moves.push(Move::FinishUnheard(n, outcome));
                            }
                        }
                    }
                }
                Phase::Sends if works => {
                    moves.push(Move::Send(n));
                    if fault {
                        moves.extend([Move::SendUnheard(n), Move::GiveUpSending(n)]);
                    }
                }
                Phase::Notes if works => {
                    moves.push(Move::Note(n));
                    if fault {
                        moves.push(Move::Forgets(n));
                    }
                }
                Phase::Sends | Phase::Notes => {}
            }
        }
        let working = |worker: &Worker| worker.mode == Mode::Works;
        if state.workers.iter().any(working) {
            if state.job.kept && !state.job.sent {
                moves.push(Move::SendJob);
            } else if state.job.kept {
                moves.push(Move::ForgetJob);
            }
            for session in (1..8).filter(|session| state.sessions >> session & 1 == 1) {
                let of = state.workers.iter().find(|worker| worker.session == session);
                if of.is_none_or(|of| of.mode == Mode::Dead || (of.mode == Mode::Frozen && of.silent >= LEASE)) {
                    moves.push(Move::End(session));
                }
            }
        }
        let room = state.tasks.iter().any(|task| task.phase == Phase::Free);
        for (n, lying) in (0u8..).zip(&state.messages).filter(|(_, lying)| lying.copies > 0) {
            if lying.message.due <= 0 && room {
                for worker in (0u8..).zip(&state.workers).filter(|(_, worker)| working(worker)).map(|(w, _)| w) {
                    moves.push(Move::Deliver(n, worker));
                }
            }
            if fault {
                moves.push(Move::Lose(n));
                if lying.copies == 1 {
                    moves.push(Move::Double(n));
                }
            }
        }
        for row in 0..ROWS as u8 {
            let (overdue, orphaned) = Self::may_look(state, row);
            for worker in (0u8..).zip(&state.workers).filter(|(_, worker)| working(worker)).map(|(w, _)| w) {
                for (look, may) in [(Move::Look as fn(u8, u8, bool) -> Move, overdue), (Move::Adopt, orphaned)] {
                    if may && self.overdue(state, worker, row, look(0, 0, false) == Move::Adopt(0, 0, false)).is_some()
                    {
                        moves.push(look(worker, row, false));
                        // That the queue has passed a message that lies there means that the message was slow.
                        if fault && state.messages.iter().any(|lying| lying.copies > 0 && lying.message.due <= 0) {
                            moves.push(look(worker, row, true));
                        }
                    }
                }
            }
        }
        if let Some(wait) = next_time(state) {
            if !waits(state) {
                moves.push(Move::Time(wait));
            } else if fault {
                moves.push(Move::Slow(wait));
            }
        }
        if fault && state.left.clock > 0 {
            moves.extend([Move::SetForward, Move::SetBack(false), Move::SetBack(true)]);
        }
        for row in [0u8, 2].into_iter().filter(|row| state.rows[usize::from(*row)].epoch > 0) {
            match ChainState::from_number(state.rows[usize::from(row)].state.into()) {
                ChainState::Quarantined => moves.push(Move::Recover(row)),
                ChainState::Active if state.left.orders > 0 => moves.extend([Move::Pause(row), Move::Retire(row)]),
                ChainState::Paused => {
                    moves.push(Move::Resume(row));
                    if state.left.orders > 0 {
                        moves.push(Move::Retire(row));
                    }
                }
                ChainState::Retired => {
                    moves.push(Move::Anew(row, true));
                    if fault {
                        moves.push(Move::Anew(row, false));
                    }
                }
                ChainState::Active => {}
            }
        }
        if self.manual.is_some() && state.left.orders > 0 {
            moves.push(Move::RunOnce(true));
            if fault {
                moves.push(Move::RunOnce(false));
            }
        }
        if state.left.restores > 0 {
            moves.push(if state.backup.taken { Move::Restore } else { Move::Copy });
        }
        moves
    }

    fn fair(&self, state: &State, moves: &[Move]) -> Option<usize> {
        let rank = |chosen: &Move| match chosen {
            Move::Wake(_) | Move::Start(_) => Some(0),
            Move::Claim(_) | Move::Send(_) | Move::Note(_) => Some(1),
            Move::Finish(task, outcome) => {
                let told = state.tasks[usize::from(*task)].phase == Phase::Finishes;
                (told || *outcome == Outcome::Done).then_some(1)
            }
            Move::SendJob | Move::ForgetJob => Some(2),
            Move::End(_) => Some(3),
            Move::Deliver(..) => Some(4),
            Move::Adopt(_, _, false) => Some(5),
            Move::Look(_, _, false) => Some(6),
            Move::Time(_) => Some(7),
            _ => None,
        };
        let ranked = moves.iter().enumerate().filter_map(|(n, chosen)| Some((rank(chosen)?, n)));
        ranked.min().map(|(_, n)| n)
    }

    fn left(&self, state: &State) -> u32 {
        state.left.packed()
    }

    fn renamed(&self, owed: u8) -> u8 {
        owed & 2 | owed >> 2 & 1 | (owed & 1) << 2
    }

    fn owed(&self, state: &State) -> u8 {
        let active = |row: &usize| state.rows[*row].epoch > 0 && state.rows[*row].state == ChainState::Active as u8;
        (0..ROWS).filter(active).fold(0, |bits, row| bits | 1 << row)
    }

    fn owes(&self, bits: u8) -> Broken {
        let row = bits.trailing_zeros() as usize;
        broken("I2", format!("{} is active, and never claimed again although nothing goes wrong", named(row as u8)))
    }

    fn step(&self, state: &State, chosen: Move) -> Result<Stepped<State>, Broken> {
        let mut step = self.step_of(state);
        step.make(chosen)?;
        step.judge()?;
        Ok(step.end())
    }

    fn tell(&self, before: &State, chosen: Move, after: &State) -> String {
        super::words::tell(before, chosen, after)
    }
}

/// A chain's name in words.
pub fn named(row: u8) -> String {
    let (key, once) = PLACES[usize::from(row)];
    format!("{} `{key}`", if once { "the manual run of chain" } else { "chain" })
}

/// Whether a worker or the broker has something to do, so that time does not pass unless one of them is slow. A run may
/// take as long as it likes.
fn waits(state: &State) -> bool {
    let works = |worker: u8| state.workers[usize::from(worker)].mode == Mode::Works;
    let task = |task: &Task| !matches!(task.phase, Phase::Free | Phase::Runs) && works(task.worker);
    let lies = |lying: &Lying| lying.copies > 0 && lying.message.due <= 0;
    state.tasks.iter().any(task) || ((works(0) || works(1)) && state.messages.iter().any(lies))
}

/// How long until something is due that is not.
fn next_time(state: &State) -> Option<i8> {
    let rows = state.rows.iter().filter(|row| row.epoch > 0 && row.state == ChainState::Active as u8);
    let rows = rows.flat_map(|row| [row.due, row.watch]);
    let messages = state.messages.iter().filter(|lying| lying.copies > 0).map(|lying| lying.message.due);
    let silent = state.workers.iter().filter(|worker| worker.mode == Mode::Frozen).map(|worker| LEASE - worker.silent);
    rows.chain(messages).chain(silent).filter(|wait| *wait > 0).min()
}

impl Step<'_> {
    /// The state after the step.
    fn end(mut self) -> Stepped<State> {
        self.put_down();
        let (state, renamed) = self.state.canonical();
        Stepped { state, paid: self.paid, renamed }
    }

    /// The ledger.
    fn rows(&mut self) -> &mut Rows {
        let if_running = self.model.manual.unwrap_or_default();
        self.ledger.get_or_insert_with(|| rows_of(&self.state, if_running))
    }

    /// Puts what the ledger says into the state.
    fn put_down(&mut self) {
        if let Some(rows) = self.ledger.take() {
            take(&mut self.state, &rows);
        }
    }

    fn chain(&mut self, row: u8) -> Option<&Chain> {
        let (key, once) = PLACES[usize::from(row)];
        self.rows().chains.iter().find(|chain| (chain.key, chain.once) == (key, once))
    }

    fn known(&mut self, row: u8) -> &mut Known {
        &mut self.state.known[usize::from(row)]
    }

    fn fault(&mut self) {
        self.state.left.faults -= 1;
    }

    fn make(&mut self, chosen: Move) -> Result<(), Broken> {
        match chosen {
            Move::Claim(task) => self.claim(task, true)?,
            Move::ClaimUnheard(task) => {
                self.fault();
                self.claim(task, false)?;
            }
            Move::ClaimLost(task) => {
                self.fault();
                self.state.tasks[usize::from(task)].again = true;
            }
            Move::Finish(task, outcome) => self.finish(task, outcome, true)?,
            Move::FinishUnheard(task, outcome) => {
                self.fault();
                self.finish(task, outcome, false)?;
            }
            Move::Send(task) => {
                let task = &mut self.state.tasks[usize::from(task)];
                task.phase = Phase::Notes;
                let next = task.next;
                self.state.lay(next);
            }
            Move::SendUnheard(task) => {
                self.fault();
                self.state.lay(self.state.tasks[usize::from(task)].next);
            }
            Move::GiveUpSending(task) => {
                self.fault();
                self.put_back(usize::from(task));
            }
            Move::Note(task) => {
                let Task { next, .. } = self.state.tasks[usize::from(task)];
                self.rows().mark_sent(sent(&next), NOW);
                self.state.tasks[usize::from(task)] = Task::default();
            }
            Move::Forgets(task) => {
                self.fault();
                self.state.tasks[usize::from(task)] = Task::default();
            }
            Move::SendJob => self.state.job.sent = true,
            Move::ForgetJob => {
                self.rows().forget_jobs(vec![JOB.into()], NOW);
                self.state.job = Job::default();
            }
            Move::End(session) => self.rows().end_session(session.into()),
            Move::Deliver(at, worker) => {
                let message = self.state.lift(usize::from(at));
                if let Some(free) = self.state.tasks.iter_mut().find(|task| task.phase == Phase::Free) {
                    *free = Task { phase: Phase::Asks, worker, message, ..Task::default() };
                }
            }
            Move::Look(worker, row, passed) => self.look(worker, row, false, passed)?,
            Move::Adopt(worker, row, passed) => self.look(worker, row, true, passed)?,
            Move::Time(wait) | Move::Slow(wait) => {
                if matches!(chosen, Move::Slow(_)) {
                    self.fault();
                }
                self.pass(wait);
                for worker in self.state.workers.iter_mut().filter(|worker| worker.mode == Mode::Frozen) {
                    worker.silent = worker.silent.saturating_add(wait);
                }
            }
            Move::Lose(at) => {
                self.fault();
                self.state.messages[usize::from(at)] = Lying::default();
            }
            Move::Double(at) => {
                self.fault();
                self.state.messages[usize::from(at)].copies += 1;
            }
            Move::SetForward => {
                (self.state.left.clock, self.state.left.faults) =
                    (self.state.left.clock - 1, self.state.left.faults - 1);
                self.pass(EVERY);
            }
            Move::SetBack(also_now) => {
                (self.state.left.clock, self.state.left.faults) =
                    (self.state.left.clock - 1, self.state.left.faults - 1);
                self.set_back(also_now);
            }
            Move::Pause(row) => self.order(row, ChainOrder::Pause, true),
            Move::Resume(row) => {
                self.state.left.orders += 1;
                self.order(row, ChainOrder::Resume, false);
            }
            Move::Retire(row) => self.order(row, ChainOrder::Retire, true),
            Move::Recover(row) => {
                self.state.left.orders += 1;
                self.order(row, ChainOrder::Recover, false);
            }
            Move::Anew(row, sent) => {
                if !sent {
                    self.fault();
                }
                self.enroll(row, sent);
            }
            Move::RunOnce(sent) => {
                self.state.left.orders -= 1;
                if !sent {
                    self.fault();
                }
                self.enroll(1, sent);
            }
            Move::Copy => {
                let mut rows = self.state.rows;
                rows.iter_mut().for_each(|row| (row.due, row.watch, row.expected, row.looks) = (0, 0, 0, 0));
                let stopped = self.state.known.map(|known| known.stopped);
                self.state.backup = Backup { taken: true, rows, stopped };
            }
            Move::Restore => self.restore(),
            Move::Wake(worker) => self.wake(worker),
            Move::Start(worker) => self.begin(worker),
            Move::Crash(worker) => {
                self.fault();
                self.kill(worker);
            }
            Move::Freeze(worker) => {
                self.fault();
                self.state.workers[usize::from(worker)].mode = Mode::Frozen;
            }
            Move::TakeBack(worker) => self.take_back(worker),
            Move::Disconnect(worker) => {
                self.fault();
                self.take_back(worker);
                for task in &mut self.state.tasks {
                    if task.phase == Phase::Asks && task.worker == worker {
                        *task = Task::default();
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks for a claim.
    fn claim(&mut self, task: u8, heard: bool) -> Result<(), Broken> {
        let n = usize::from(task);
        let Task { worker, message, again, .. } = self.state.tasks[n];
        let of = self.state.workers[usize::from(worker)];
        let alone = self.state.in_hand(worker, message.row, message.epoch) == 1;
        let (_, once) = PLACES[usize::from(message.row)];
        let mut request = ClaimRequest {
            hint: hint_of(&message),
            worker: "w".into(),
            session: of.session.into(),
            again: again && alone,
            takeover: false,
            guard: Guard::default(),
            recurs: !once,
            prepared: 0,
            ahead: Duration::ZERO,
        };
        let before = self.chain(message.row).copied();
        let mut answer = (self.model.ledger)(self.rows(), &request);
        if let Claim::Suspected(deaths) = answer {
            // It waits until nothing else runs that must not run beside it.
            (request.prepared, request.again) = (deaths, alone);
            answer = (self.model.ledger)(self.rows(), &request);
        }
        if let Claim::Granted(grant) = &answer {
            self.granted(&request, grant, before, &message, worker)?;
        }
        let quarantines = matches!(answer, Claim::Future | Claim::Other { .. } | Claim::NoSchedule);
        if quarantines && !self.state.restored {
            return Err(broken("I7", "a message is quarantined, though no older copy of the ledger was restored"));
        }
        if answer == Claim::SetAside {
            self.paid |= 1 << message.row;
            self.known(message.row).claim = (0, 0);
        }
        let task = &mut self.state.tasks[n];
        if !heard {
            task.again = true;
            return Ok(());
        }
        match after_claim(answer, &request.hint) {
            AfterClaim::Run(grant) => {
                task.fence = grant.fence.get() as u8;
                if grant.refused.is_some() {
                    (task.phase, task.outcome) = (Phase::Finishes, Outcome::Done);
                    task.next = Message { row: message.row, ..Message::default() };
                    return Ok(());
                }
                task.phase = Phase::Runs;
                if of.mode == Mode::Works {
                    self.begins(n)?;
                }
            }
            AfterClaim::Send(hint) => {
                (task.phase, task.next) = (Phase::Sends, message_of(&hint, message.row));
            }
            AfterClaim::Postpone(until) => {
                let until = until.unwrap_or(NOW + BRIEFLY);
                let due = ((until.as_millis() - NOW.as_millis()) / 1_000) as i8;
                *task = Task::default();
                self.state.lay(Message { due, ..message });
            }
            AfterClaim::Replace(hint) => {
                *task = Task::default();
                self.state.lay(message_of(&hint, message.row));
            }
            AfterClaim::Acknowledge => {
                *task = Task::default();
                self.acknowledged(&message)?;
            }
            AfterClaim::Quarantine(_) => *task = Task::default(),
        }
        Ok(())
    }

    /// Judges a message that is acknowledged without a run, and without another message in its place.
    fn acknowledged(&mut self, message: &Message) -> Result<(), Broken> {
        let Some(chain) = self.chain(message.row).copied() else { return Ok(()) };
        let waits = chain.state == ChainState::Active && chain.session == 0 && !chain.sent;
        if !waits || chain.epoch != Epoch(message.epoch.into()) {
            return Ok(());
        }
        let current = message_of(&chain.hint(), message.row);
        let is = |other: &Message| Message { due: current.due, ..*other } == current;
        let lies = self.state.messages.iter().any(|lying| lying.copies > 0 && is(&lying.message));
        let tasks = || self.state.tasks.iter().filter(|task| task.phase != Phase::Free);
        if !lies && !tasks().any(|task| is(&task.message) || is(&task.next)) {
            let what = "a message is acknowledged, though the one that follows may never have been sent, and is not";
            return Err(broken("I9", format!("{what}: {}", named(message.row))));
        }
        Ok(())
    }

    /// Judges a claim that was granted.
    fn granted(
        &mut self,
        request: &ClaimRequest,
        grant: &Grant,
        before: Option<Chain>,
        message: &Message,
        worker: u8,
    ) -> Result<(), Broken> {
        let row = message.row;
        let known = self.state.known[usize::from(row)];
        let place = (message.epoch, message.tick);
        let (fence, session) = known.claim;
        let lives = session > 0 && self.rows().sessions.contains(&session.into());
        if lives && !(request.again && request.session == i64::from(session)) {
            let what = format!("{} is claimed while claim {fence} of it is live", named(row));
            return Err(broken("I1", what));
        }
        if place <= known.ended {
            let what =
                format!("{} has ended tick {} already, and tick {} is claimed", named(row), known.ended.1, place.1);
            return Err(broken("I1", what));
        }
        if place < known.claimed {
            let what =
                format!("{} was at tick {} already, and tick {} is claimed", named(row), known.claimed.1, place.1);
            return Err(broken("I7", what));
        }
        if known.stopped {
            let what = format!("{} is claimed, though an order to stop it has returned", named(row));
            return Err(broken("I8", what));
        }
        if before.is_some_and(|before| before.due > NOW) {
            return Err(broken("schedule", format!("{} is claimed before it is due", named(row))));
        }
        if grant.fence <= Fence(self.state.top_fence.into()) {
            return Err(broken("I7", format!("{} gets a fence that is not above all before it", named(row))));
        }
        if !self.rows().attempts.iter().any(|attempt| attempt.fence == grant.fence) {
            return Err(broken("I5", format!("the claim of {} leaves no record", named(row))));
        }
        self.state.top_fence = grant.fence.get() as u8;
        let session = self.state.workers[usize::from(worker)].session;
        let claim = (grant.fence.get() as u8, session);
        *self.known(row) = Known { claimed: place, claim, resumed: false, ..known };
        self.paid |= 1 << row;
        Ok(())
    }

    /// Judges a run that begins in a worker that works.
    fn begins(&self, n: usize) -> Result<(), Broken> {
        let mine = self.state.tasks[n];
        for (other, task) in self.state.tasks.iter().enumerate() {
            let works = self.state.workers[usize::from(task.worker)].mode == Mode::Works;
            if other == n || task.phase != Phase::Runs || !works {
                continue;
            }
            let (theirs, ours) = (task.message, mine.message);
            let twins = theirs.row != ours.row && theirs.row < 2 && ours.row < 2;
            // A run whose chain has begun anew is ended before long.
            let row = self.state.rows[usize::from(theirs.row)];
            let holds = (row.epoch, row.fence) == (theirs.epoch, task.fence) && row.session > 0;
            let apart = holds && self.model.manual != Some(IfRunning::Beside);
            if (theirs.row, theirs.epoch) == (ours.row, ours.epoch) {
                return Err(broken("I1", format!("two runs of {} go on at the same time", named(ours.row))));
            }
            if twins && apart {
                return Err(broken("I1", "a chain's rotation and its manual run go on at the same time"));
            }
        }
        Ok(())
    }

    /// Asks for the finish of a run.
    fn finish(&mut self, task: u8, outcome: Outcome, heard: bool) -> Result<(), Broken> {
        let n = usize::from(task);
        let Task { phase, message, fence, next: Message { due: told, .. }, .. } = self.state.tasks[n];
        let (_, once) = PLACES[usize::from(message.row)];
        if phase == Phase::Runs && outcome != Outcome::Done {
            self.state.left.setbacks -= 1;
        }
        let due = match (phase, outcome) {
            (Phase::Finishes, _) => told,
            (_, Outcome::Done) if once => 0,
            (_, Outcome::Done) => EVERY,
            _ => RETRY,
        };
        let (next, verdict) = match outcome {
            Outcome::Done if once => (Next::End, Verdict::Done),
            Outcome::Done => (Next::Tick { nominal: time(due), due: time(due) }, Verdict::Done),
            Outcome::Fails => {
                (Next::Attempt { attempt: u32::from(message.attempt) + 1, due: time(due) }, Verdict::Retried)
            }
            Outcome::PutOff => (Next::Snooze { due: time(due) }, Verdict::Snoozed),
        };
        let asks = self.model.jobs && outcome == Outcome::Done && self.state.job == Job::default();
        let request = FinishRequest {
            epoch: Epoch(message.epoch.into()),
            tick: TickNo(message.tick.into()),
            attempt: message.attempt.into(),
            fence: Fence(fence.into()),
            at: if once && outcome == Outcome::Done { time(due) } else { NOW },
            next,
            verdict,
            reason: None,
            code: None,
            slack: Duration::from_secs(SLACK as u64),
            spawned: if asks { vec![SpawnedJob { id: JOB.into(), body: Vec::new() }] } else { Vec::new() },
            failed: Vec::new(),
            ran: true,
            left_out: Default::default(),
            carry: None,
            learned: None,
            parent: Epoch::NONE,
            from_batch: false,
            members: Vec::new(),
            chains: Vec::new(),
            progress: None,
        };
        let before = self.chain(message.row).copied();
        let answer = self.rows().finish(&request, NOW);
        let after = after_finish(Some(answer), request.epoch);
        let written = self.chain(message.row).copied() != before;
        if written {
            let known = self.state.known[usize::from(message.row)];
            let place = (message.epoch, message.tick);
            if known.claim.0 != fence {
                let what = format!("a finish of {} is written that is not of its last claim", named(message.row));
                return Err(broken("I1", what));
            }
            let known = self.known(message.row);
            known.claim = (0, 0);
            if once && outcome == Outcome::Done {
                // It has ended, and owes nothing more.
                self.paid |= 1 << message.row;
            }
            let known = self.known(message.row);
            if outcome == Outcome::Done {
                if place <= known.ended {
                    return Err(broken("I1", format!("a tick of {} ends twice", named(message.row))));
                }
                known.ended = place;
                self.state.job.asked |= asks;
            }
        }
        let task = &mut self.state.tasks[n];
        if !heard {
            (task.phase, task.outcome, task.again) = (Phase::Finishes, outcome, true);
            task.next = Message { row: message.row, due, ..Message::default() };
            return Ok(());
        }
        match after {
            AfterFinish::Send { own: Some(hint), .. } => {
                (task.phase, task.next) = (Phase::Sends, message_of(&hint, message.row));
            }
            AfterFinish::Send { own: None, .. } | AfterFinish::Acknowledge => *task = Task::default(),
            AfterFinish::Requeue => self.put_back(n),
        }
        Ok(())
    }

    /// Catch-up looks at a chain.
    fn look(&mut self, worker: u8, row: u8, orphaned: bool, passed: bool) -> Result<(), Broken> {
        let Some(mut found) = self.model.overdue(&self.state, worker, row, orphaned) else { return Ok(()) };
        if passed {
            self.fault();
        }
        let session = self.state.workers[usize::from(worker)].session;
        let held = self.state.in_hand(worker, row, self.state.rows[usize::from(row)].epoch) > 0;
        if found.holder.runs() && found.claim.0 == i64::from(session) && !held {
            self.rows().give_up(session.into(), ClaimId { epoch: found.hint.epoch, fence: found.claim.1 });
            found.holder = Holder::Gone;
            self.known(row).claim = (0, 0);
        }
        let lies =
            self.state.messages.iter().filter(|lying| lying.message.due <= 0).map(|lying| u64::from(lying.copies));
        let depth = Depth { ready: lies.sum(), consumers: 2 };
        let frontier = passed.then_some(time(100));
        let slack = Duration::from_secs(SLACK as u64);
        let of_plan = if orphaned { IN_HAND } else { slack };
        let planned = plan(&found, depth, frontier, held, NOW, of_plan, Duration::ZERO);
        let (to, looks, expected) = match planned {
            // Nothing is written of chains that are left alone when others' chains are taken over.
            Plan::Wait { .. } if orphaned => return Ok(()),
            Plan::Wait { until } => (until, found.looks, None),
            Plan::Send { .. } if orphaned => (NOW + slack, found.looks + 1, Some(NOW)),
            Plan::Send { due, look_at } => (look_at, found.looks + 1, Some(due)),
        };
        let look = LookAgain { epoch: found.hint.epoch, from: found.watch_at, to, looks, expected };
        let resumed = self.state.restored || self.state.known[usize::from(row)].resumed;
        let calm = self.state.left.faults == self.model.budgets.faults && !resumed;
        if calm && expected.is_some() && found.sent {
            let what = format!("catch-up sends the message of {} again, though nothing has gone wrong", named(row));
            return Err(broken("I9", what));
        }
        if self.rows().look_again(look, NOW)
            && let Some(due) = expected
        {
            self.state.lay(Message {
                due: message_of(&Hint { due, ..found.hint.clone() }, row).due,
                ..message_of(&found.hint, row)
            });
            self.rows().mark_sent(found.hint.sent(), NOW);
        }
        Ok(())
    }

    /// All times of the ledger come nearer.
    fn pass(&mut self, wait: i8) {
        self.put_down();
        self.state.pass(wait);
    }

    /// The clock of the ledger is set back. What is over for long stays over, and what has just become due may lie
    /// ahead again.
    fn set_back(&mut self, also_now: bool) {
        self.put_down();
        let farther = |time: &mut i8, also_now: bool| {
            if *time > 0 || (also_now && *time == 0) {
                *time = time.saturating_add(BACK);
            }
        };
        for row in &mut self.state.rows {
            farther(&mut row.due, also_now);
            farther(&mut row.watch, false);
            row.expected = row.expected.saturating_add(BACK);
        }
        for lying in self.state.messages.iter_mut().filter(|lying| lying.copies > 0) {
            farther(&mut lying.message.due, also_now);
        }
        self.state.tasks.iter_mut().for_each(|task| farther(&mut task.next.due, also_now));
    }

    fn order(&mut self, row: u8, order: ChainOrder, stops: bool) {
        self.state.left.orders -= 1;
        let (key, _) = PLACES[usize::from(row)];
        self.rows().order(Some(key), order, NOW);
        let both = if row == 0 { 0..2 } else { row..row + 1 };
        for row in both {
            let there = self.chain(row).is_some();
            let known = self.known(row);
            known.stopped = stops && there;
            known.resumed = there && matches!(order, ChainOrder::Resume | ChainOrder::Recover);
            if order == ChainOrder::Recover {
                known.claim = (0, 0);
            }
        }
    }

    /// A chain begins, or begins anew, or a manual run is ordered; with `sent`, its message is sent and that noted.
    fn enroll(&mut self, row: u8, sent: bool) {
        let chain = self.model.new_chain(row);
        let became = self.rows().enroll(chain, NOW);
        let Some(Enrolled::Created(hint)) = became else { return };
        let known = self.known(row);
        (known.stopped, known.claim) = (false, (0, 0));
        if sent {
            self.state.lay(message_of(&hint, row));
            self.rows().enrolled_sent(hint.sent(), Duration::from_secs(SLACK as u64), NOW);
        }
    }

    fn restore(&mut self) {
        self.state.left.restores -= 1;
        (0..2).for_each(|worker| self.kill(worker));
        let Backup { rows, stopped, .. } = self.state.backup;
        self.put_down();
        // The jobs of the copy: whether it has this one does not matter to chains.
        self.state.job = Job::default();
        self.state.rows = rows;
        self.state.backup = Backup::default();
        self.state.restored = true;
        for (known, stopped) in self.state.known.iter_mut().zip(stopped) {
            (known.stopped, known.claim) = (stopped, (0, 0));
        }
        self.state.sessions = 0;
        // The ledger goes on from the highest epoch and fence before the restore: opening a copy raises both above
        // these (`first_number`).
        self.rows().order(None, ChainOrder::RecoverAll, NOW);
    }

    /// A worker is no more: its messages go back to the broker.
    fn kill(&mut self, worker: u8) {
        self.take_back(worker);
        for task in &mut self.state.tasks {
            if task.worker == worker {
                *task = Task::default();
            }
        }
        let worker = &mut self.state.workers[usize::from(worker)];
        (worker.mode, worker.silent) = (Mode::Dead, 0);
    }

    /// The broker gives up on a worker's connection.
    fn take_back(&mut self, worker: u8) {
        for n in 0..TASKS {
            let task = &mut self.state.tasks[n];
            if task.phase != Phase::Free && task.worker == worker && !task.detached {
                task.detached = true;
                let message = task.message;
                self.state.lay(message);
            }
        }
    }

    /// A message is given back to the broker.
    fn put_back(&mut self, n: usize) {
        let Task { message, detached, .. } = self.state.tasks[n];
        self.state.tasks[n] = Task::default();
        if !detached {
            self.state.lay(message);
        }
    }

    /// A worker begins a session.
    fn begin(&mut self, worker: u8) {
        self.put_down();
        let of = self.state.workers[usize::from(worker)];
        let used = |session: &u8| {
            self.state.sessions >> session & 1 == 1
                || self.state.rows.iter().any(|row| row.session == *session)
                || self.state.known.iter().any(|known| known.claim.1 == *session)
                || of.session == *session
        };
        let session = (1..8).find(|session| !used(session)).unwrap_or(7);
        self.state.workers[usize::from(worker)] = Worker { mode: Mode::Works, session, silent: 0 };
        self.rows().begin_session(session.into());
    }

    /// A worker goes on that stood still. One that has lost its lease ends its runs before anything else.
    fn wake(&mut self, worker: u8) {
        let Worker { session, silent, .. } = self.state.workers[usize::from(worker)];
        let goes_on = self.state.sessions >> session & 1 == 1 && silent < LEASE;
        if goes_on {
            self.state.workers[usize::from(worker)] = Worker { mode: Mode::Works, session, silent: 0 };
            return;
        }
        for task in self.state.tasks.iter_mut().filter(|task| task.worker == worker && task.phase == Phase::Runs) {
            (task.phase, task.outcome) = (Phase::Finishes, Outcome::PutOff);
            task.next = Message { row: task.message.row, ..Message::default() };
        }
        self.begin(worker);
    }

    /// What must hold in every state.
    fn judge(&self) -> Result<(), Broken> {
        // Where the ledger was left alone, it is as it was judged before.
        let Some(rows) = &self.ledger else { return Ok(()) };
        if let Some(fence) = rows.left_open() {
            let what = format!("the record of claim {} has no end, though the chain is not held by it", fence.get());
            return Err(broken("I5", what));
        }
        let aside = |chain: &&Chain| chain.state == ChainState::Quarantined;
        if let Some(chain) = rows.chains.iter().find(aside)
            && !self.state.restored
            && rows.walk(chain.fence).len() < 3
        {
            return Err(broken("I7", format!("chain `{}` is quarantined for nothing", chain.key)));
        }
        let Job { asked, sent, .. } = self.state.job;
        if asked && !sent && rows.jobs.is_empty() {
            return Err(broken("I4", "a job that a finished run asked for is neither kept nor confirmed"));
        }
        Ok(())
    }
}

fn sent(message: &Message) -> Sent {
    hint_of(message).sent()
}
