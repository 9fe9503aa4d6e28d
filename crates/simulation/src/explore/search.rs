//! Breadth-first search over all states of a model, level by level, with the same result whatever the number of
//! threads.
//!
//! Of a state that was seen only a hash of 128 bits is kept, what may still go wrong from there, and from which state
//! it was reached by which move. The states themselves are kept for one level only. A path is made again by its moves.
//!
//! A state is not looked at if the same state was seen with as much left to go wrong, or more: whatever may come of it
//! may come of that one, too, and no later.

use std::hash::{Hash, Hasher};
use std::thread;

use roundelay_model::clock::instant;

/// What is explored.
pub trait Model: Sync {
    /// A state, in its canonical form: what is alike must be equal. What may still go wrong is not hashed.
    type State: Clone + Hash + Send + Sync;
    /// What may happen next.
    type Move: Copy + Send + Sync;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// The moves that are possible in a state, in an order that follows from the state alone.
    fn moves(&self, state: &Self::State) -> Vec<Self::Move>;

    /// What comes of a move.
    ///
    /// # Errors
    /// An invariant is violated.
    fn step(&self, state: &Self::State, chosen: Self::Move) -> Result<Stepped<Self::State>, Broken>;

    /// The move, of those, that a run without faults makes next. `None` when nothing goes on.
    fn fair(&self, state: &Self::State, moves: &[Self::Move]) -> Option<usize>;

    /// What may still go wrong from here: counts of four bits each. A state with higher counts must have all moves of
    /// the same state with lower ones, and the same fair move.
    fn left(&self, state: &Self::State) -> u32;

    /// What must be reached from this state by fair moves, as bits; at most three.
    fn owed(&self, state: &Self::State) -> u8;

    /// The same debts by the names that things have after a step that has renamed them.
    fn renamed(&self, owed: u8) -> u8;

    /// What is owed, in words.
    fn owes(&self, bit: u8) -> Broken;

    /// A move and what it led to, in words.
    fn tell(&self, before: &Self::State, chosen: Self::Move, after: &Self::State) -> String;
}

/// What came of a move.
#[derive(Clone, Debug)]
pub struct Stepped<S> {
    /// The state after it.
    pub state: S,
    /// What was owed and has come, as bits, by the names of before.
    pub paid: u8,
    /// The canonical form has other names: see [`Model::renamed`].
    pub renamed: bool,
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number in `docs/proof.md`.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
}

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Moves from the start, at most.
    pub depth: u32,
    /// States, at most: no further level is begun.
    pub states: u64,
    /// Threads.
    pub threads: usize,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Different states.
    pub states: u64,
    /// Moves that were made.
    pub moves: u64,
    /// The longest shortest path from the start.
    pub depth: u32,
    /// All states within the bound were looked at.
    pub complete: bool,
    /// States from which a fair run was seen to make each claim that is owed.
    pub lively: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The shortest way to a violation.
    pub story: Option<Story>,
}

/// How an invariant comes to be violated.
#[derive(Clone, Debug)]
pub struct Story {
    /// What is violated.
    pub broken: Broken,
    /// How many moves it takes.
    pub length: usize,
    /// The moves, in words.
    pub lines: Vec<String>,
}

const SHARDS: usize = 16;
/// States of a level that are looked at together. The same for any number of threads.
const PART: usize = 1_024;
/// Parts before what they have found is noted.
const PARTS: usize = 32;
const NONE: u32 = u32::MAX;

/// Names a state: its shard, and its place there.
fn id(shard: usize, at: usize) -> u32 {
    (shard as u32) << 28 | at as u32
}

fn place(id: u32) -> (usize, usize) {
    ((id >> 28) as usize, (id & 0x0fff_ffff) as usize)
}

/// A part of the states that were seen, by their hashes.
#[derive(Default)]
struct Shard {
    /// Places in the other columns, by hash; open addressing.
    table: Vec<u32>,
    hash: Vec<[u64; 2]>,
    /// What may still go wrong: see [`Model::left`].
    left: Vec<u32>,
    /// From which state it was reached.
    from: Vec<u32>,
    /// By which of that state's moves.
    by: Vec<u8>,
    /// Which state follows by the fair move.
    fair: Vec<u32>,
    /// What the fair move pays (three bits), whether that move renames ([`RENAMED`]), and what is owed (the high half).
    dues: Vec<u8>,
    /// Fair moves from here are known to make each claim that is owed.
    good: Vec<bool>,
}

const RENAMED: u8 = 8;

/// Whether each count of four bits in `more` is at least the one in `less`.
fn covers(more: u32, less: u32) -> bool {
    (0..32).step_by(4).all(|at| more >> at & 15 >= less >> at & 15)
}

impl Shard {
    /// The place of a state that is the same and has as much left; else a free slot of the table.
    fn find(&self, hash: [u64; 2], left: u32) -> Result<usize, usize> {
        let mask = self.table.len() - 1;
        let mut slot = hash[1] as usize & mask;
        loop {
            match self.table[slot] {
                NONE => return Err(slot),
                at if self.hash[at as usize] == hash && covers(self.left[at as usize], left) => return Ok(at as usize),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    fn known(&self, hash: [u64; 2], left: u32) -> Option<usize> {
        if self.table.is_empty() { None } else { self.find(hash, left).ok() }
    }

    /// Answers its place, and whether it is new.
    fn add(&mut self, (hash, left): ([u64; 2], u32), from: u32, by: u8) -> (usize, bool) {
        if self.hash.len() * 4 >= self.table.len() * 3 {
            let size = (self.table.len() * 2).max(1_024);
            self.table = vec![NONE; size];
            let mask = size - 1;
            for (at, hash) in self.hash.iter().enumerate() {
                let mut slot = hash[1] as usize & mask;
                while self.table[slot] != NONE {
                    slot = (slot + 1) & mask;
                }
                self.table[slot] = at as u32;
            }
        }
        match self.find(hash, left) {
            Ok(at) => (at, false),
            Err(slot) => {
                let at = self.hash.len();
                self.table[slot] = at as u32;
                self.hash.push(hash);
                self.left.push(left);
                self.from.push(from);
                self.by.push(by);
                self.fair.push(NONE);
                self.dues.push(0);
                self.good.push(false);
                (at, true)
            }
        }
    }
}

/// A state that a part has reached.
struct Reached<S> {
    hash: ([u64; 2], u32),
    from: u32,
    by: u8,
    fair: bool,
    /// Not kept when it was known before.
    state: Option<S>,
}

/// What a part of a level has come to.
struct Part<S> {
    reached: Vec<Vec<Reached<S>>>,
    /// State, what its fair move pays, and what it owes.
    dues: Vec<(u32, u8)>,
    moves: u64,
    /// The first violation: state, move, and what it is.
    broken: Option<(u32, usize, Broken)>,
}

/// Looks at all states within `limits`, until the first violation.
pub fn search<M: Model>(model: &M, limits: Limits) -> Found {
    let begun = instant();
    let mut found = Found::default();
    let mut shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::default()).collect();
    let start = model.start();
    let (shard, hash) = hash_of(&start);
    shards[shard].add((hash, model.left(&start)), NONE, 0);
    let mut level = vec![(id(shard, 0), start)];
    let (mut broken, mut followed) = (None, 0);
    while !level.is_empty() && broken.is_none() {
        if found.depth >= limits.depth || seen(&shards) >= limits.states {
            break;
        }
        let mut next: Vec<Vec<(u32, M::State)>> = (0..SHARDS).map(|_| Vec::new()).collect();
        for batch in level.chunks(PART * PARTS) {
            let parts: Vec<&[(u32, M::State)]> = batch.chunks(PART).collect();
            let done = in_threads(limits.threads, &parts, |part| expand(model, &shards, part));
            found.moves += done.iter().map(|part| part.moves).sum::<u64>();
            broken = done.iter().find_map(|part| part.broken.clone());
            note(&mut shards, &mut next, done, limits.threads);
            if broken.is_some() {
                break;
            }
        }
        level = next.into_iter().flatten().collect();
        found.depth += 1;
        // Those that lead to states which are new come to nothing yet: so not after each level.
        if broken.is_none() && (level.is_empty() || seen(&shards) >= followed * 2) {
            broken = stuck(model, &mut shards);
            followed = seen(&shards);
        }
    }
    found.complete = level.is_empty() && broken.is_none();
    if found.complete {
        found.depth = found.depth.saturating_sub(1);
    }
    found.states = seen(&shards);
    found.lively = shards.iter().map(|shard| shard.good.iter().filter(|good| **good).count() as u64).sum();
    found.story = broken.map(|(at, last, broken)| story(model, &shards, (at, last), broken));
    found.seconds = begun.elapsed().as_secs_f64();
    found
}

fn seen(shards: &[Shard]) -> u64 {
    shards.iter().map(|shard| shard.hash.len() as u64).sum()
}

/// Does `work` with each of `items`, and answers in their order. With one thread, on the caller's own.
fn in_threads<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let (work, next) = (&work, std::sync::atomic::AtomicUsize::new(0));
    let next = &next;
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let mine = || {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(item) = items.get(at) else { return done };
                done.push((at, work(item)));
            }
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(mine)).collect();
        let mut done = mine();
        for other in others {
            match other.join() {
                Ok(theirs) => done.extend(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Makes all moves of these states.
fn expand<M: Model>(model: &M, shards: &[Shard], states: &[(u32, M::State)]) -> Part<M::State> {
    let reached = (0..SHARDS).map(|_| Vec::new()).collect();
    let mut part = Part { reached, dues: Vec::with_capacity(states.len()), moves: 0, broken: None };
    for (from, state) in states {
        let moves = model.moves(state);
        let (fair, mut paid) = (model.fair(state, &moves), 0);
        for (by, chosen) in moves.iter().enumerate() {
            part.moves += 1;
            let stepped = match model.step(state, *chosen) {
                Ok(stepped) => stepped,
                Err(broken) => {
                    part.broken = Some((*from, by, broken));
                    return part;
                }
            };
            let (shard, hash) = hash_of(&stepped.state);
            let hash = (hash, model.left(&stepped.state));
            let is_fair = fair == Some(by);
            if is_fair {
                paid = stepped.paid & 7 | if stepped.renamed { RENAMED } else { 0 };
            }
            let known = shards[shard].known(hash.0, hash.1).is_some();
            if known && !is_fair {
                continue;
            }
            let state = (!known).then_some(stepped.state);
            part.reached[shard].push(Reached { hash, from: *from, by: by as u8, fair: is_fair, state });
        }
        part.dues.push((*from, paid | model.owed(state) << 4));
    }
    part
}

/// Notes what parts have reached, each shard for itself.
fn note<S: Send>(shards: &mut [Shard], next: &mut [Vec<(u32, S)>], parts: Vec<Part<S>>, threads: usize) {
    let mut of_shards: Vec<Vec<Vec<Reached<S>>>> = (0..SHARDS).map(|_| Vec::new()).collect();
    let mut dues = Vec::new();
    for part in parts {
        dues.extend(part.dues);
        for (shard, reached) in part.reached.into_iter().enumerate() {
            of_shards[shard].push(reached);
        }
    }
    let work: Vec<_> = shards.iter_mut().zip(next).zip(of_shards).enumerate().collect();
    let work: Vec<parking_lot::Mutex<Option<_>>> =
        work.into_iter().map(|work| parking_lot::Mutex::new(Some(work))).collect();
    let fair = in_threads(threads, &work, |work| {
        let mut fair = Vec::new();
        let Some((n, ((shard, next), reached))) = work.lock().take() else { return fair };
        for Reached { hash, from, by, fair: is_fair, state } in reached.into_iter().flatten() {
            let (at, new) = shard.add(hash, from, by);
            if is_fair {
                fair.push((from, id(n, at)));
            }
            if let Some(state) = state.filter(|_| new) {
                next.push((id(n, at), state));
            }
        }
        fair
    });
    for (from, to) in fair.into_iter().flatten() {
        let (shard, at) = place(from);
        shards[shard].fair[at] = to;
    }
    for (of, due) in dues {
        let (shard, at) = place(of);
        // What has no fair move goes nowhere.
        let shard = &mut shards[shard];
        shard.dues[at] = due;
        if shard.fair[at] == NONE {
            shard.fair[at] = of;
        }
    }
}

/// Follows fair moves from each state until each claim that is owed was made, or a state that is known to be good.
/// Answers a state from which it never comes: its fair moves go in a circle.
fn stuck<M: Model>(model: &M, shards: &mut [Shard]) -> Option<(u32, usize, Broken)> {
    for n in 0..SHARDS {
        for at in 0..shards[n].hash.len() {
            if shards[n].good[at] || shards[n].fair[at] == NONE {
                continue;
            }
            let (mut here, mut owed, mut steps) = (id(n, at), shards[n].dues[at] >> 4, 0u32);
            let ends = loop {
                let (shard, at) = place(here);
                let shard = &shards[shard];
                if owed == 0 || shard.good[at] {
                    break Some(true);
                }
                if shard.fair[at] == NONE {
                    break None;
                }
                owed &= !(shard.dues[at] & 7);
                if shard.dues[at] & RENAMED != 0 {
                    owed = model.renamed(owed);
                }
                here = shard.fair[at];
                steps += 1;
                if steps > FAIR_MOVES {
                    break Some(false);
                }
            };
            match ends {
                Some(true) => shards[n].good[at] = true,
                Some(false) => return Some((id(n, at), usize::MAX, model.owes(owed))),
                None => {}
            }
        }
    }
    None
}

/// A fair run that has not come to its end after so many moves goes in a circle.
const FAIR_MOVES: u32 = 2_000;

fn story<M: Model>(model: &M, shards: &[Shard], (at, last): (u32, usize), broken: Broken) -> Story {
    let (mut by, mut here) = (Vec::new(), at);
    loop {
        let (shard, at) = place(here);
        if shards[shard].from[at] == NONE {
            break;
        }
        by.push(usize::from(shards[shard].by[at]));
        here = shards[shard].from[at];
    }
    by.reverse();
    let (mut state, mut lines) = (model.start(), Vec::new());
    let steps: Vec<usize> = by.into_iter().chain((last != usize::MAX).then_some(last)).collect();
    for (n, by) in steps.iter().enumerate() {
        let Some(chosen) = model.moves(&state).get(*by).copied() else { break };
        match model.step(&state, chosen) {
            Ok(stepped) => {
                lines.push(format!("{:>3}. {}", n + 1, model.tell(&state, chosen, &stepped.state)));
                state = stepped.state;
            }
            Err(broken) => lines.push(format!("{:>3}. {}: {}", n + 1, model.tell(&state, chosen, &state), broken.what)),
        }
    }
    if last == usize::MAX {
        lines.push("     From here on nothing goes wrong any more:".into());
        for _ in 0..FAIR_TOLD {
            let moves = model.moves(&state);
            let Some(fair) = model.fair(&state, &moves) else {
                lines.push("     nothing is left that could happen".into());
                break;
            };
            let Ok(stepped) = model.step(&state, moves[fair]) else { break };
            lines.push(format!("     {}", model.tell(&state, moves[fair], &stepped.state)));
            state = stepped.state;
        }
    }
    Story { broken, length: steps.len(), lines }
}

/// Moves of a fair run that a story tells.
const FAIR_TOLD: usize = 12;

fn hash_of(state: &impl Hash) -> (usize, [u64; 2]) {
    let mut lanes = Lanes { lanes: [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344], word: 0, filled: 0 };
    state.hash(&mut lanes);
    let hash = lanes.end();
    ((hash[0] >> 60) as usize, hash)
}

/// A hash of 128 bits: two lanes of the multiplication that wyhash mixes with.
struct Lanes {
    lanes: [u64; 2],
    word: u64,
    filled: u32,
}

fn mixed(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Lanes {
    fn add(&mut self, word: u64) {
        let [a, b] = self.lanes;
        self.lanes = [
            mixed(a ^ word, 0x9e37_79b9_7f4a_7c15).wrapping_add(b),
            mixed(b.rotate_left(23) ^ word, 0xe703_7ed1_a0b4_28db) ^ a,
        ];
    }

    fn end(mut self) -> [u64; 2] {
        let (word, filled) = (self.word, self.filled);
        self.add(word);
        self.add(u64::from(filled));
        self.add(0);
        self.lanes
    }
}

impl Hasher for Lanes {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, byte: u8) {
        self.word = self.word << 8 | u64::from(byte);
        self.filled += 1;
        if self.filled.is_multiple_of(8) {
            let word = std::mem::take(&mut self.word);
            self.add(word);
        }
    }

    fn finish(&self) -> u64 {
        self.lanes[0] ^ self.word
    }
}
