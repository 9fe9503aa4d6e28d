//! A state: what ledger, broker, workers and operators know, in a canonical form.
//!
//! Times are seconds from now. Of times that are over only the order counts, and of epochs, fences and sessions too, so
//! they are numbered anew in each state. Ticks count from a little before the chain's own. So the states are finitely
//! many, though ticks and time go on for ever.

use std::hash::{Hash, Hasher};

use roundelay_ledger::ChainState;
use roundelay_ledger::rows::{Attempt, Chain, End, KEYS, Rows};
use roundelay_model::clock::Time;
use roundelay_model::guard::{IfRunning, Manual};
use roundelay_model::ids::{Epoch, Fence, TickNo};

/// A chain's rotation, its manual run, and the rotation of another chain.
pub const ROWS: usize = 3;
/// Messages in workers' hands.
pub const TASKS: usize = 5;
/// Different messages with the broker.
pub const MESSAGES: usize = 6;
/// How long after it is due catch-up looks after a chain, in seconds.
pub const SLACK: i8 = 10;
/// What was sent again so lately is left alone, as in `catch_up.rs`.
pub const SENT_AGAIN: i8 = 5;
/// How long a worker may be silent.
pub const LEASE: i8 = 6;
/// What is ahead by so much, or more, does not come: nothing else is so far ahead.
const FAR: i8 = 100;
/// More copies of a message than this mean nothing more.
const COPIES: u8 = 2;
/// More looks than this make catch-up no more patient here.
const LOOKS: u8 = 2;
/// Now, as the ledger reads it.
pub const NOW: Time = Time::from_millis(1_000_000_000_000);

/// Seconds from now, as a ledger's time.
pub fn time(seconds: i8) -> Time {
    Time::from_millis(NOW.as_millis() + i64::from(seconds) * 1_000)
}

fn seconds(time: Time) -> i8 {
    ((time.as_millis() - NOW.as_millis()) / 1_000).clamp(-i64::from(FAR), i64::from(FAR)) as i8
}

/// A row of the ledger. Without an epoch there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub epoch: u8,
    pub tick: u8,
    pub attempt: u8,
    pub due: i8,
    pub state: u8,
    pub session: u8,
    pub sent: bool,
    pub beside: bool,
    /// Of the current tick a run has started.
    pub started: bool,
    pub fence: u8,
    pub watch: i8,
    pub looks: u8,
    pub expected: i8,
    /// Fences of the attempts by which deaths are counted, and how they have ended.
    pub tries: [(u8, u8); 4],
}

/// What a message says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub row: u8,
    pub epoch: u8,
    pub tick: u8,
    pub attempt: u8,
    pub due: i8,
}

/// Messages that are alike, with the broker. Without copies there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lying {
    pub copies: u8,
    pub message: Message,
}

/// How far a worker has come with a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// There is no message.
    #[default]
    Free,
    /// Its claim is asked for.
    Asks,
    /// Its run goes on.
    Runs,
    /// Its finish is asked for.
    Finishes,
    /// What follows is sent.
    Sends,
    /// That is confirmed, and not noted.
    Notes,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    #[default]
    Done,
    /// It is tried again as another attempt.
    Fails,
    /// The same attempt comes later.
    PutOff,
}

/// A message in a worker's hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    pub phase: Phase,
    pub worker: u8,
    pub message: Message,
    /// The claim or finish was asked for before, and its answer is not known.
    pub again: bool,
    /// The broker has taken the message back.
    pub detached: bool,
    pub fence: u8,
    pub outcome: Outcome,
    /// What follows; with [`Phase::Finishes`] only when it is due.
    pub next: Message,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    #[default]
    Works,
    Frozen,
    Dead,
}

/// A worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    pub mode: Mode,
    pub session: u8,
    /// For how long it has said nothing.
    pub silent: i8,
}

/// What the judge knows of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Known {
    /// The furthest tick that was claimed, by epoch and number.
    pub claimed: (u8, u8),
    /// The furthest that has ended.
    pub ended: (u8, u8),
    /// The last claim, until its end is written or it is given up.
    pub claim: (u8, u8),
    /// An operator has stopped the chain, and that has returned.
    pub stopped: bool,
    /// An operator has let the chain go on, and it was not claimed since: catch-up sends its message once more.
    pub resumed: bool,
}

/// An older copy of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backup {
    pub taken: bool,
    pub rows: [Row; ROWS],
    pub stopped: [bool; ROWS],
}

/// What may still go wrong, or be ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budgets {
    pub faults: u8,
    pub clock: u8,
    pub orders: u8,
    pub setbacks: u8,
    pub restores: u8,
}

impl Budgets {
    /// Counts of four bits each.
    pub fn packed(self) -> u32 {
        let Self { faults, clock, orders, setbacks, restores } = self;
        [faults, clock, orders, setbacks, restores].into_iter().fold(0, |all, one| all << 4 | u32::from(one.min(15)))
    }
}

/// The search keeps it beside the hash, since it compares it.
impl Hash for Budgets {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A job that a run has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job {
    /// Its run's end is written.
    pub asked: bool,
    /// The ledger keeps it.
    pub kept: bool,
    /// The broker has confirmed it.
    pub sent: bool,
}

/// Everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State {
    pub rows: [Row; ROWS],
    /// Sessions that go on, as bits.
    pub sessions: u8,
    pub next_epoch: u8,
    pub next_fence: u8,
    /// The highest fence that was given.
    pub top_fence: u8,
    pub workers: [Worker; 2],
    pub tasks: [Task; TASKS],
    pub messages: [Lying; MESSAGES],
    pub known: [Known; ROWS],
    pub job: Job,
    pub backup: Backup,
    pub left: Budgets,
    /// An older copy was restored.
    pub restored: bool,
}

/// Which row a chain has: key, and whether it is the manual run.
pub const PLACES: [(&str, bool); ROWS] = [(KEYS[0], false), (KEYS[0], true), (KEYS[1], false)];

fn place_of(chain: &Chain) -> usize {
    PLACES.iter().position(|place| *place == (chain.key, chain.once)).unwrap_or_default()
}

/// What the ledger says of chains, as its own types have it.
pub fn rows_of(state: &State, if_running: IfRunning) -> Rows {
    let mut ledger = Rows {
        sessions: (1..8).filter(|session| state.sessions >> session & 1 == 1).map(i64::from).collect(),
        next_fence: state.next_fence.into(),
        next_epoch: state.next_epoch.into(),
        jobs: if state.job.kept { vec![JOB.into()] } else { Vec::new() },
        ..Rows::default()
    };
    for (place, row) in state.rows.iter().enumerate().filter(|(_, row)| row.epoch > 0) {
        let (key, once) = PLACES[place];
        let (epoch, tick) = (Epoch(row.epoch.into()), TickNo(row.tick.into()));
        ledger.chains.push(Chain {
            key,
            once,
            manual: Manual { if_running, force: false },
            epoch,
            tick,
            attempt: row.attempt.into(),
            due: time(row.due),
            state: ChainState::from_number(row.state.into()),
            session: row.session.into(),
            sent: row.sent,
            beside: row.beside,
            started_tick: if row.started { tick } else { TickNo(tick.get() - 1) },
            last_start: Time::default(),
            last_finish: Time::default(),
            fence: Fence(row.fence.into()),
            watch_at: time(row.watch),
            looks: row.looks.into(),
            expected: time(row.expected),
        });
        for (nth, (fence, end)) in row.tries.iter().enumerate().filter(|(_, (fence, _))| *fence > 0) {
            let previous = row.tries.get(nth + 1).map_or(0, |(fence, _)| *fence);
            let end = ENDS[usize::from(*end)];
            let (fence, previous) = (Fence((*fence).into()), Fence(previous.into()));
            ledger.attempts.push(Attempt { fence, epoch, tick, attempt: row.attempt.into(), previous, end });
        }
    }
    ledger
}

/// The id of the job.
pub const JOB: &str = "job";
const ENDS: [End; 5] = [End::Open, End::Lost, End::Excused, End::Fenced, End::Finished];

/// Puts what the ledger says now into the state.
pub fn take(state: &mut State, ledger: &Rows) {
    state.rows = [Row::default(); ROWS];
    for chain in &ledger.chains {
        let mut tries = [(0, 0); 4];
        for (place, attempt) in tries.iter_mut().zip(ledger.walk(chain.fence)) {
            // Only the attempts of where the chain stands: those of before are not counted any more.
            if (attempt.epoch, attempt.tick, attempt.attempt) != (chain.epoch, chain.tick, chain.attempt) {
                break;
            }
            *place = (attempt.fence.get() as u8, ENDS.iter().position(|end| *end == attempt.end).unwrap_or(0) as u8);
        }
        state.rows[place_of(chain)] = Row {
            epoch: chain.epoch.get() as u8,
            tick: chain.tick.get() as u8,
            attempt: chain.attempt as u8,
            due: seconds(chain.due),
            state: chain.state as u8,
            session: chain.session as u8,
            sent: chain.sent,
            beside: chain.beside,
            started: chain.started_tick == chain.tick,
            fence: chain.fence.get() as u8,
            watch: seconds(chain.watch_at),
            looks: chain.looks.min(255) as u8,
            expected: seconds(chain.expected),
            tries,
        };
    }
    state.sessions = ledger.sessions.iter().fold(0, |bits, session| bits | 1 << session);
    (state.next_epoch, state.next_fence) = (ledger.next_epoch as u8, ledger.next_fence as u8);
    state.job.kept = !ledger.jobs.is_empty();
}

impl State {
    /// Adds a message to those with the broker. When there is no room, the one that is furthest behind is lost.
    pub fn lay(&mut self, message: Message) {
        let message = Message { due: message.due.max(0), ..message };
        let same = |lying: &&mut Lying| lying.copies > 0 && lying.message == message;
        if let Some(lying) = self.messages.iter_mut().find(same) {
            lying.copies = (lying.copies + 1).min(COPIES);
            return;
        }
        let last =
            |lying: &&mut Lying| (lying.copies > 0, lying.message.epoch, lying.message.tick, lying.message.attempt);
        if let Some(place) = self.messages.iter_mut().min_by_key(last) {
            *place = Lying { copies: 1, message };
        }
    }

    /// Takes a copy of a message from the broker.
    pub fn lift(&mut self, at: usize) -> Message {
        let lying = &mut self.messages[at];
        lying.copies -= 1;
        let message = lying.message;
        if lying.copies == 0 {
            *lying = Lying::default();
        }
        message
    }

    /// How many messages of this chain a worker has in hand.
    pub fn in_hand(&self, worker: u8, row: u8, epoch: u8) -> usize {
        let is = |task: &&Task| (task.worker, task.message.row, task.message.epoch) == (worker, row, epoch);
        self.tasks.iter().filter(|task| task.phase != Phase::Free).filter(is).count()
    }

    /// Time goes on, or the ledger's clock is set: by as much less are its times ahead.
    pub fn pass(&mut self, seconds: i8) {
        let later = |time: &mut i8| *time = if *time >= FAR { FAR } else { time.saturating_sub(seconds) };
        for row in &mut self.rows {
            [&mut row.due, &mut row.watch, &mut row.expected].into_iter().for_each(later);
        }
        self.messages.iter_mut().for_each(|lying| later(&mut lying.message.due));
        self.tasks.iter_mut().for_each(|task| later(&mut task.next.due));
    }

    /// The canonical form, and whether the two chains have changed places in it.
    ///
    /// Workers are interchangeable: a move names its worker by its place only, no rule of the ledger or of the model
    /// prefers one, and sessions are names that are compared for equality. So are the two chains, where each has had
    /// one epoch: the ledger knows them by key and epoch, which it compares for equality only as long as no other epoch
    /// of a chain is known. So each state stands for the up to four that differ by such names, and of these it is the
    /// least.
    pub fn canonical(mut self) -> (Self, bool) {
        self.free_unused();
        self.number_ticks();
        self.number_epochs();
        self.number_fences();
        self.clip_times();
        let mut least = (self.with_names(), false);
        least = least.min((self.workers_swapped().with_names(), false));
        if let Some(mut swapped) = self.chains_swapped() {
            swapped.number_fences();
            least = least.min((swapped.with_names(), true));
            least = least.min((swapped.workers_swapped().with_names(), true));
        }
        least
    }

    fn with_names(mut self) -> Self {
        self.number_sessions();
        self.sort();
        self
    }

    fn workers_swapped(mut self) -> Self {
        self.workers.swap(0, 1);
        self.tasks.iter_mut().filter(|task| task.phase != Phase::Free).for_each(|task| task.worker = 1 - task.worker);
        self
    }

    /// With the two chains in each other's places, if there are two, and each has had only one epoch.
    fn chains_swapped(mut self) -> Option<Self> {
        let [one, manual, other] = self.rows.map(|row| row.epoch);
        if one == 0 || other == 0 || manual > 0 || self.backup.taken {
            return None;
        }
        let messages = self.messages.iter_mut().filter(|lying| lying.copies > 0).map(|lying| &mut lying.message);
        let tasks = self.tasks.iter_mut().filter(|task| task.phase != Phase::Free);
        let of_tasks = tasks.flat_map(|task| {
            let next = (task.phase > Phase::Runs).then_some(&mut task.next);
            [Some(&mut task.message), next].into_iter().flatten()
        });
        for message in messages.chain(of_tasks) {
            message.row = 2 - message.row;
            message.epoch = swapped(message.epoch, one, other)?;
        }
        for known in &mut self.known {
            for (epoch, _) in [&mut known.claimed, &mut known.ended] {
                *epoch = swapped(*epoch, one, other)?;
            }
        }
        (self.rows[0].epoch, self.rows[2].epoch) = (other, one);
        self.rows.swap(0, 2);
        self.known.swap(0, 2);
        Some(self)
    }

    fn free_unused(&mut self) {
        for task in &mut self.tasks {
            let Task { phase, worker, message, .. } = *task;
            let message = Message { due: 0, ..message };
            *task = match phase {
                Phase::Free => Task::default(),
                Phase::Asks => {
                    Task { phase, worker, message, again: task.again, detached: task.detached, ..Task::default() }
                }
                Phase::Runs => {
                    Task { phase, worker, message, fence: task.fence, detached: task.detached, ..Task::default() }
                }
                Phase::Finishes => Task {
                    message,
                    next: Message { due: task.next.due, row: message.row, ..Message::default() },
                    ..*task
                },
                Phase::Sends | Phase::Notes => {
                    Task { phase, worker, message, next: task.next, detached: task.detached, ..Task::default() }
                }
            };
        }
        for row in &mut self.rows {
            // Catch-up does not look at chains that have ended.
            if row.state == ChainState::Retired as u8 && row.epoch > 0 {
                (row.due, row.watch, row.looks, row.expected, row.sent) = (0, 0, 0, 0, false);
                row.attempt = 1;
            }
        }
    }

    /// Ticks count from a little before the chain's own, but the first stays the first.
    fn number_ticks(&mut self) {
        for place in 0..ROWS {
            let row = self.rows[place];
            let behind = row.tick.saturating_sub(3);
            let shift = |tick: &mut u8| *tick = tick.saturating_sub(behind).max(1);
            let here = |message: &Message| usize::from(message.row) == place;
            let messages = self.messages.iter_mut().filter(|lying| lying.copies > 0).map(|lying| &mut lying.message);
            let tasks = self.tasks.iter_mut().filter(|task| task.phase != Phase::Free);
            for message in
                messages.chain(tasks.flat_map(|task| [&mut task.message, &mut task.next])).filter(|m| here(m))
            {
                if message.epoch == row.epoch {
                    shift(&mut message.tick);
                } else if message.epoch < row.epoch && message.epoch > 0 {
                    // It means nothing any more.
                    (message.tick, message.attempt, message.due) = (1, 1, message.due.min(0));
                }
            }
            for (epoch, tick) in [&mut self.known[place].claimed, &mut self.known[place].ended] {
                match *epoch == row.epoch {
                    true => *tick = tick.saturating_sub(behind),
                    false if *epoch < row.epoch => *tick = 0,
                    false => {}
                }
            }
            self.rows[place].tick -= behind;
            let backup = &mut self.backup.rows[place];
            backup.tick = backup.tick.saturating_sub(behind).max(u8::from(backup.epoch > 0));
        }
    }

    fn number_epochs(&mut self) {
        let mut epochs: Vec<&mut u8> = vec![&mut self.next_epoch];
        epochs.extend(self.rows.iter_mut().chain(&mut self.backup.rows).map(|row| &mut row.epoch));
        epochs.extend(self.messages.iter_mut().map(|lying| &mut lying.message.epoch));
        epochs.extend(self.tasks.iter_mut().flat_map(|task| [&mut task.message.epoch, &mut task.next.epoch]));
        epochs.extend(self.known.iter_mut().flat_map(|known| [&mut known.claimed.0, &mut known.ended.0]));
        number(epochs);
    }

    /// Those of a row in their order, one row after the other: a fence is compared with those of its own row only.
    fn number_fences(&mut self) {
        let mut given = 0;
        for place in 0..ROWS {
            let mut fences: Vec<&mut u8> = Vec::with_capacity(16);
            for row in [&mut self.rows[place], &mut self.backup.rows[place]] {
                fences.push(&mut row.fence);
                fences.extend(row.tries.iter_mut().map(|(fence, _)| fence));
            }
            let tasks = self.tasks.iter_mut().filter(|task| usize::from(task.message.row) == place);
            fences.extend(tasks.map(|task| &mut task.fence));
            fences.push(&mut self.known[place].claim.0);
            let known = fences.iter().fold(0u64, |bits, fence| bits | 1 << (**fence & 63)) & !1;
            for fence in fences.into_iter().filter(|fence| **fence > 0) {
                *fence = given + 1 + (known & ((1 << (*fence & 63)) - 1)).count_ones() as u8;
            }
            given += known.count_ones() as u8;
        }
        (self.top_fence, self.next_fence) = (given, given + 1);
    }

    /// Of times that are over only the order counts, for those that are compared with each other.
    fn clip_times(&mut self) {
        for lying in &mut self.messages {
            lying.message.due = lying.message.due.max(0);
        }
        for (place, row) in self.rows.iter_mut().enumerate() {
            row.watch = row.watch.max(0);
            row.looks = row.looks.min(LOOKS);
            // It says how long ago catch-up has sent the message, and nothing where it has not.
            row.expected = if row.looks == 0 { 0 } else { row.expected.max(-SENT_AGAIN) };
            let tasks = self.tasks.iter_mut().filter(|task| task.phase > Phase::Runs);
            let hints = tasks.map(|task| &mut task.next).filter(|next| usize::from(next.row) == place);
            let mut over: Vec<&mut i8> = hints.map(|next| &mut next.due).collect();
            over.push(&mut row.due);
            over.retain(|due| **due <= 0);
            let mut order: Vec<i8> = over.iter().map(|due| **due).collect();
            order.sort_unstable_by(|a, b| b.cmp(a));
            order.dedup();
            for due in over {
                *due = -(order.iter().position(|at| *at == *due).unwrap_or(0) as i8);
            }
        }
        for worker in &mut self.workers {
            worker.silent = worker.silent.min(LEASE);
        }
    }

    /// The workers' own sessions come first, then the others in the order of what refers to them.
    fn number_sessions(&mut self) {
        let mut order: Vec<u8> = Vec::with_capacity(8);
        let rows = self.rows.iter().map(|row| row.session);
        let claims = self.known.iter().map(|known| known.claim.1);
        let alive = (1..8).filter(|session| self.sessions >> session & 1 == 1);
        for session in self.workers.iter().map(|worker| worker.session).chain(rows).chain(claims).chain(alive) {
            if session > 0 && !order.contains(&session) {
                order.push(session);
            }
        }
        let new = |session: u8| order.iter().position(|other| *other == session).map_or(0, |at| at as u8 + 1);
        self.sessions = (1..8)
            .filter(|session| self.sessions >> session & 1 == 1)
            .fold(0, |bits, session| bits | 1 << new(session));
        self.workers.iter_mut().for_each(|worker| worker.session = new(worker.session));
        self.rows.iter_mut().for_each(|row| row.session = new(row.session));
        self.known.iter_mut().for_each(|known| known.claim.1 = new(known.claim.1));
    }

    fn sort(&mut self) {
        self.tasks.sort_unstable();
        self.messages.sort_unstable();
    }
}

/// The epoch of the other chain; `None` if it is that of no chain.
fn swapped(epoch: u8, one: u8, other: u8) -> Option<u8> {
    match epoch {
        0 => Some(0),
        epoch if epoch == one => Some(other),
        epoch if epoch == other => Some(one),
        _ => None,
    }
}

/// Numbers anew, in their order; zero stays. A step adds only a few to numbers that were so numbered before.
fn number(numbers: Vec<&mut u8>) {
    let known = numbers.iter().fold(1u64, |bits, number| bits | 1 << (**number & 63));
    for number in numbers {
        *number = (known & ((1 << (*number & 63)) - 1)).count_ones() as u8;
    }
}
