//! What a group of verbs decides on: the rows that its transaction has locked, and what is to be
//! written about them (pure).
//!
//! Verbs read and change the page one after the other, as if each had the database for itself.
//! What has come of it is written at the end, with one statement for each table.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use roundelay_model::clock::Time;
use roundelay_model::deaths::SET_ASIDE;
use roundelay_model::failure::FailedItem;
use roundelay_model::guard::Manual;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::outcome::LeftOut;

use super::grant::ChainRow;
use super::sorted::SortedMap;
use crate::chain::{ChainState, Hint, Holder};

/// What is to be locked, and what is to be taken from the sequences.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Chains by epoch, and whether their payload is needed.
    pub(crate) epochs: SortedMap<Epoch, bool>,
    /// Chains by kind and key, with their payload.
    pub(crate) names: HashSet<(String, String)>,
    /// Chains whose holders are to be taken for dead.
    pub(crate) taken_over: HashSet<Epoch>,
    /// How many fences, at most.
    pub(crate) fences: i64,
    /// How many epochs, at most.
    pub(crate) new_epochs: i64,
}

impl Wanted {
    /// The chain with this epoch.
    pub(crate) fn epoch(&mut self, epoch: Epoch, with_payload: bool) {
        *self.epochs.get_or_insert(epoch, false) |= with_payload;
    }

    /// Wants nothing any more, and keeps the memory for the next verb.
    pub(crate) fn clear(&mut self) {
        let Self { epochs, names, taken_over, fences, new_epochs } = self;
        epochs.clear();
        names.clear();
        taken_over.clear();
        (*fences, *new_epochs) = (0, 0);
    }
}

/// A chain, locked.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// The epoch under which it was found.
    pub(crate) found_as: Epoch,
    pub(crate) chain: ChainRow,
    pub(crate) fence: Fence,
    pub(crate) watch_at: Time,
    pub(crate) looks: u32,
    pub(crate) expected: Time,
    pub(crate) batch_total: i64,
    pub(crate) batch_failed: i64,
    pub(crate) owner: Option<String>,
    /// Empty unless it was asked for.
    pub(crate) payload: String,
    /// `None` unless it was asked for.
    pub(crate) carry: Option<String>,
    /// `None` unless it was asked for.
    pub(crate) learned: Option<Vec<u8>>,
    pub(crate) depth: u32,
    /// Its place, lease, or marks are to be written.
    pub(crate) moved: bool,
    /// Its epoch, queue, priority, payload, owner, schedule or depth are to be written.
    pub(crate) renamed: bool,
    /// What it hands on is to be written.
    pub(crate) carries: bool,
    /// What it has learned is to be written.
    pub(crate) learns: bool,
}

/// A chain to insert.
#[derive(Clone, Debug)]
pub(crate) struct Inserted {
    pub(crate) epoch: Epoch,
    pub(crate) queue: String,
    pub(crate) priority: Option<u8>,
    pub(crate) nominal: Time,
    pub(crate) due: Time,
    pub(crate) watch_at: Time,
    pub(crate) payload: String,
    pub(crate) owner: Option<String>,
    pub(crate) schedule: Option<String>,
    pub(crate) depth: u32,
    pub(crate) manual: Manual,
    pub(crate) beside: bool,
}

/// The record of an attempt that begins.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) fence: Fence,
    pub(crate) epoch: Epoch,
    pub(crate) tick: TickNo,
    pub(crate) attempt: u32,
    pub(crate) previous: Fence,
    pub(crate) worker: std::sync::Arc<str>,
    pub(crate) due: Time,
    /// When the run may start.
    pub(crate) at: Time,
}

/// How the record of an attempt ends.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) at: Time,
    pub(crate) verdict: &'static str,
    pub(crate) reason: Option<String>,
    pub(crate) left_out: LeftOut,
    pub(crate) progress: Option<String>,
    /// Unless it has an end already.
    pub(crate) only_if_open: bool,
}

/// An entity's failures within the group.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    /// As it was told last.
    pub(crate) last: FailedItem,
    /// Whether it was told to be permanent.
    pub(crate) permanent: bool,
    pub(crate) times: i64,
    pub(crate) first_at: Time,
    pub(crate) last_at: Time,
}

/// What becomes of a kept job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Job {
    /// Kept, in place of what was there.
    Put(Vec<u8>, Time),
    /// Kept, if there was none.
    Add(Vec<u8>, Time),
    /// Forgotten.
    Forget,
    /// What was there is forgotten, and this kept.
    Anew(Vec<u8>, Time),
}

/// A message to quarantine.
#[derive(Clone, Debug)]
pub(crate) struct Quarantined {
    pub(crate) at: Time,
    pub(crate) from: String,
    pub(crate) reason: String,
    pub(crate) body: Vec<u8>,
    /// The id of the job that it was.
    pub(crate) job: Option<String>,
}

/// What there is to write besides the rows that were locked.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// By kind, key, whether it is a single tick, and the chain whose batch it is a member of.
    pub(crate) inserted: BTreeMap<(String, String, bool, Epoch), Inserted>,
    /// Epochs of chains whose batches are over: their members are to be deleted.
    pub(crate) over: Vec<Epoch>,
    pub(crate) begun: Vec<Begun>,
    pub(crate) ended: SortedMap<Fence, Ended>,
    /// By kind, key and item.
    pub(crate) failures: BTreeMap<(String, String, String), Failed>,
    pub(crate) quarantined: Vec<Quarantined>,
    /// By id.
    pub(crate) jobs: BTreeMap<String, Job>,
}

/// The rows that were locked, when that was, and what is to be written.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// By the server's clock, after all locks were had.
    pub(crate) now: Time,
    pub(crate) writes: Writes,
    rows: Vec<Held>,
    by_epoch: SortedMap<Epoch, usize>,
    /// Of each name the rotation and the manual run. Empty until a verb asks for a name, which most do not.
    by_name: HashMap<(String, String), [Option<usize>; 2]>,
    fences: VecDeque<i64>,
    epochs: VecDeque<i64>,
    overdrawn: bool,
}

impl Page {
    /// Adds a row that was locked. One that comes a second time is left as it was, but for its
    /// payload and what comes with that.
    pub(crate) fn add(&mut self, row: Held) {
        if let Some(known) = self.by_epoch.get(row.found_as).copied() {
            if !row.payload.is_empty() {
                let known = &mut self.rows[known];
                (known.payload, known.carry, known.learned) = (row.payload, row.carry, row.learned);
            }
            return;
        }
        let at = self.rows.len();
        self.by_epoch.insert(row.found_as, at);
        self.by_name.clear();
        self.rows.push(row);
    }

    fn of_name(&mut self, kind: &str, key: &str) -> [Option<usize>; 2] {
        if self.by_name.is_empty() {
            for (at, row) in self.rows.iter().enumerate().filter(|(_, row)| row.chain.hint.parent.is_none()) {
                let name = (row.chain.hint.kind.clone(), row.chain.hint.key.clone());
                self.by_name.entry(name).or_default()[usize::from(row.chain.once)] = Some(at);
            }
        }
        self.by_name.get(&(kind.to_owned(), key.to_owned())).copied().unwrap_or_default()
    }

    /// Notes which sessions go on, now that all locks are held: the holders of all other claims are gone.
    pub(crate) fn judge_holders(&mut self, sessions: &[i64]) {
        for row in self.rows.iter_mut().filter(|row| row.is_held() && !sessions.contains(&row.chain.session)) {
            row.chain.holder = Holder::Gone;
        }
    }

    /// The last claims of chains whose holders are gone, or are to be taken for that.
    pub(crate) fn left_over(&self, taken_over: &HashSet<Epoch>) -> Vec<Fence> {
        let left = |row: &&Held| match row.chain.holder {
            Holder::Gone => true,
            Holder::Alive => taken_over.contains(&row.found_as),
            Holder::None => false,
        };
        self.rows.iter().filter(left).map(|row| row.fence).collect()
    }

    /// Notes how many workers have died over the attempt of this claim.
    pub(crate) fn count_deaths(&mut self, fence: Fence, deaths: u32) {
        self.rows.iter_mut().filter(|row| row.fence == fence).for_each(|row| row.chain.deaths = deaths);
    }

    /// Gives the numbers that verbs may take, and the time.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        fences: impl IntoIterator<Item = i64>,
        epochs: impl IntoIterator<Item = i64>,
    ) {
        self.now = now;
        self.fences.extend(fences);
        self.epochs.extend(epochs);
    }

    /// Forgets all of it, and keeps the memory for the next verb.
    pub(crate) fn clear(&mut self) {
        let Self { now, writes, rows, by_epoch, by_name, fences, epochs, overdrawn } = self;
        let Writes { inserted, over, begun, ended, failures, quarantined, jobs } = writes;
        inserted.clear();
        over.clear();
        begun.clear();
        ended.clear();
        failures.clear();
        quarantined.clear();
        jobs.clear();
        rows.clear();
        by_epoch.clear();
        by_name.clear();
        fences.clear();
        epochs.clear();
        (*now, *overdrawn) = (Time::default(), false);
    }

    /// All rows, for writing.
    pub(crate) fn rows(&self) -> &[Held] {
        &self.rows
    }

    /// The place of the chain with this epoch.
    pub(crate) fn place(&self, epoch: Epoch) -> Option<usize> {
        self.by_epoch.get(epoch).copied()
    }

    /// The chain at this place.
    pub(crate) fn at(&self, place: usize) -> &Held {
        &self.rows[place]
    }

    /// The chain at this place.
    pub(crate) fn at_mut(&mut self, place: usize) -> &mut Held {
        &mut self.rows[place]
    }

    /// The chain with this epoch.
    pub(crate) fn epoch(&mut self, epoch: Epoch) -> Option<&mut Held> {
        self.place(epoch).map(|at| &mut self.rows[at])
    }

    /// The place of the other row of the same chain: of a rotation its manual run, and of a manual run the rotation.
    pub(crate) fn twin_place(&mut self, place: usize) -> Option<usize> {
        let chain = &self.rows[place].chain;
        let Hint { kind, key, parent: Epoch::NONE, .. } = chain.hint.clone() else { return None };
        let once = !chain.once;
        self.of_name(&kind, &key)[usize::from(once)]
    }

    /// The chain of this name, or its manual run.
    pub(crate) fn named(&mut self, kind: &str, key: &str, once: bool) -> Option<&mut Held> {
        self.of_name(kind, key)[usize::from(once)].map(|at| &mut self.rows[at])
    }

    /// The chain of this name, or its manual run, that begins with this group.
    pub(crate) fn begins(&mut self, kind: &str, key: &str, once: bool) -> Option<&mut Inserted> {
        self.writes.inserted.get_mut(&(kind.to_owned(), key.to_owned(), once, Epoch::NONE))
    }

    /// Of both that may have this name, the place of the one that began last.
    pub(crate) fn newest_place(&mut self, kind: &str, key: &str) -> Option<usize> {
        let both = self.of_name(kind, key);
        both.into_iter().flatten().max_by_key(|at| self.rows[*at].chain.hint.epoch)
    }

    /// Takes a fence. Without one, the page is [`overdrawn`](Self::overdrawn), and the answer is 0.
    pub(crate) fn take_fence(&mut self) -> Fence {
        Fence(self.fences.pop_front().unwrap_or_else(|| self.overdraw()))
    }

    /// Takes an epoch. Without one, the page is [`overdrawn`](Self::overdrawn), and the answer is 0.
    pub(crate) fn take_epoch(&mut self) -> Epoch {
        Epoch(self.epochs.pop_front().unwrap_or_else(|| self.overdraw()))
    }

    fn overdraw(&mut self) -> i64 {
        self.overdrawn = true;
        0
    }

    /// Whether the verbs have taken more numbers than they asked for ([`Wanted`]). That is a bug in a verb's `wants`;
    /// the page must not be written.
    pub(crate) fn overdrawn(&self) -> bool {
        self.overdrawn
    }

    /// Gives a chain a new epoch, in which it has no message, no holder, and its first attempt
    /// before it. Its holder cannot finish any more, and the record of that attempt ends here.
    pub(crate) fn new_epoch(&mut self, old: Epoch, new: Epoch) -> Option<&mut Held> {
        let at = self.by_epoch.remove(old)?;
        self.by_epoch.insert(new, at);
        let row = &mut self.rows[at];
        if row.chain.session != 0 {
            lost(&mut self.writes, row.fence, None, self.now);
        }
        row.chain.hint.epoch = new;
        row.chain.hint.attempt = 1;
        row.chain.sent = false;
        row.release();
        (row.batch_total, row.chain.batch_open, row.batch_failed) = (0, 0, 0);
        self.writes.over.push(old);
        row.looks = 0;
        (row.moved, row.renamed) = (true, true);
        Some(row)
    }

    /// The holder of this fence never finished.
    pub(crate) fn lost(&mut self, fence: Fence, reason: Option<&str>) {
        lost(&mut self.writes, fence, reason, self.now);
    }

    /// Too many workers have died while they ran the tick of this chain: it waits for a person.
    pub(crate) fn set_aside(&mut self, epoch: Epoch) {
        let now = self.now;
        let Some(held) = self.epoch(epoch) else { return };
        held.become_state(ChainState::Quarantined);
        held.release();
        let (fence, Hint { kind, key, .. }) = (held.fence, held.chain.hint.clone());
        self.lost(fence, Some(SET_ASIDE));
        self.failed(&kind, &key, &FailedItem::new("", SET_ASIDE.to_owned()), now);
    }

    /// Notes a failure of an entity.
    pub(crate) fn failed(&mut self, kind: &str, key: &str, told: &FailedItem, at: Time) {
        let place = (kind.to_owned(), key.to_owned(), told.item.clone());
        let first = || Failed { last: told.clone(), permanent: false, times: 0, first_at: at, last_at: at };
        let failed = self.writes.failures.entry(place).or_insert_with(first);
        failed.times += 1;
        failed.last_at = at;
        // For a whole entity the last report counts.
        failed.permanent = told.permanent || (failed.permanent && !told.item.is_empty());
        failed.last.clone_from(told);
    }

    /// Says what becomes of a job, after what the group has said of it already.
    pub(crate) fn job(&mut self, id: &str, then: Job) {
        let jobs = &mut self.writes.jobs;
        let merged = match (jobs.remove(id), then) {
            (Some(Job::Forget | Job::Anew(..)), Job::Put(body, at)) | (Some(Job::Forget), Job::Add(body, at)) => {
                Job::Anew(body, at)
            }
            (Some(kept), Job::Add(..)) => kept,
            (_, then) => then,
        };
        jobs.insert(id.to_owned(), merged);
    }
}

fn lost(writes: &mut Writes, fence: Fence, reason: Option<&str>, at: Time) {
    // An end that the group has written already stands.
    let ended = Ended {
        at,
        verdict: "lost",
        reason: reason.map(Into::into),
        left_out: LeftOut::default(),
        progress: None,
        only_if_open: true,
    };
    writes.ended.get_or_insert(fence, ended);
}

impl Held {
    /// Whether `tick`, `attempt` and `due` are those of its current message.
    pub(crate) fn is_at(&self, sent: &crate::Sent) -> bool {
        let hint = &self.chain.hint;
        (hint.tick, hint.attempt, hint.due) == (sent.tick, sent.attempt, sent.due)
    }

    /// Whether a session has claimed the chain, and not finished.
    pub(crate) fn is_held(&self) -> bool {
        self.chain.session != 0
    }

    /// Whether what it hands on or what it has learned is to be written.
    pub(crate) fn leaves_more(&self) -> bool {
        self.carries || self.learns
    }

    /// Gives the chain to a session.
    pub(crate) fn hold(&mut self, session: i64) {
        (self.chain.session, self.chain.holder) = (session, Holder::Alive);
    }

    /// Notes that no session has the chain any more.
    pub(crate) fn release(&mut self) {
        (self.chain.session, self.chain.holder) = (0, Holder::None);
    }

    /// Sets its state.
    pub(crate) fn become_state(&mut self, state: ChainState) {
        self.chain.state = state;
        self.moved = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_that_more_numbers_were_taken_than_were_wanted() {
        let mut page = Page::default();
        page.begin(Time::default(), vec![7], vec![8]);
        assert_eq!((page.take_fence(), page.take_epoch(), page.overdrawn()), (Fence(7), Epoch(8), false));
        page.take_epoch();
        assert!(page.overdrawn());
    }
}
