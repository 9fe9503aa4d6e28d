//! The upstream's own record of every entity's calls, and its verdict.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// How many offences are kept with their names; all are counted.
const NAMED: usize = 20;
/// How many locks the records are spread over.
const SHARDS: usize = 64;

/// Which occurrence of a chain a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Occurrence {
    /// The chain's incarnation.
    pub epoch: i64,
    /// The occurrence in it.
    pub tick: i64,
}

/// The verdict of the calls so far on the engine that made them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// All calls, including those that were refused.
    pub calls: u64,
    /// Entities with a call.
    pub entities: usize,
    /// Calls that run.
    pub running: u64,
    /// Calls that began while another for the same entity ran.
    pub overlaps: u64,
    /// Calls for an occurrence that already had its final answer.
    pub repeats: u64,
    /// The first offences, by name.
    pub offences: Vec<Offence>,
}

impl Verdict {
    /// Calls that are never allowed: two of an entity at once, or one for a finished occurrence.
    pub fn forked(&self) -> u64 {
        self.overlaps + self.repeats
    }
}

/// A call that is never allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offence {
    /// The kind, which names the handler.
    pub kind: String,
    /// The key of the entity.
    pub key: String,
    /// The occurrence, if the call was a chain's.
    pub chain: Option<Occurrence>,
    /// Another call for the entity ran.
    pub overlap: bool,
    /// The occurrence, or a later one, already had its final answer.
    pub repeat: bool,
}

#[derive(Debug)]
pub struct Judge {
    // An entity is stored as a hash of 64 bits: in a million of them, two are equal with a chance of one in thirty
    // million, and then the judge would report a fork that did not happen.
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
    offences: Mutex<Vec<Offence>>,
    started: Instant,
}

#[derive(Debug, Default)]
struct Shard {
    records: HashMap<u64, Record>,
    calls: u64,
    running: u64,
    overlaps: u64,
    repeats: u64,
}

/// 40 bytes, so that a million records fit into memory.
#[derive(Debug, Default)]
struct Record {
    /// The latest occurrence with a final answer. Occurrences never go back, so that one is enough.
    finished: Option<Occurrence>,
    calls: u32,
    running: u32,
    /// Milliseconds since the judge began.
    last_start: u32,
}

/// A call that runs; it ends when this is dropped, answered or not.
#[derive(Debug)]
pub struct Running<'a> {
    judge: &'a Judge,
    entity: u64,
    chain: Option<Occurrence>,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            offences: Mutex::default(),
            started: Instant::now(),
        }
    }
}

impl Judge {
    /// Records the start of a call.
    pub fn begins(&self, kind: &str, key: &str, chain: Option<Occurrence>) -> Running<'_> {
        let entity = self.entity(kind, key);
        let (overlap, repeat) = {
            let mut shard = self.shard(entity);
            let record = shard.records.entry(entity).or_default();
            let overlap = record.running > 0;
            let repeat = chain.is_some() && chain <= record.finished;
            record.calls = record.calls.saturating_add(1);
            record.running += 1;
            record.last_start = self.millis();
            shard.calls += 1;
            shard.running += 1;
            shard.overlaps += u64::from(overlap);
            shard.repeats += u64::from(repeat);
            (overlap, repeat)
        };
        if overlap || repeat {
            let mut offences = locked(&self.offences);
            if offences.len() < NAMED {
                offences.push(Offence { kind: kind.into(), key: key.into(), chain, overlap, repeat });
            }
        }
        Running { judge: self, entity, chain }
    }

    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict { offences: locked(&self.offences).clone(), ..Verdict::default() };
        for shard in &self.shards {
            let shard = locked(shard);
            verdict.calls += shard.calls;
            verdict.entities += shard.records.len();
            verdict.running += shard.running;
            verdict.overlaps += shard.overlaps;
            verdict.repeats += shard.repeats;
        }
        verdict
    }

    /// How many times an entity has been called, and how long ago last.
    pub fn calls(&self, kind: &str, key: &str) -> Option<(u32, Duration)> {
        let entity = self.entity(kind, key);
        let shard = self.shard(entity);
        let record = shard.records.get(&entity)?;
        Some((record.calls, Duration::from_millis(self.millis().saturating_sub(record.last_start).into())))
    }

    fn entity(&self, kind: &str, key: &str) -> u64 {
        self.hasher.hash_one((kind, key))
    }

    fn shard(&self, entity: u64) -> MutexGuard<'_, Shard> {
        locked(&self.shards[entity as usize % SHARDS])
    }

    /// Enough for seven weeks.
    fn millis(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_millis()).unwrap_or(u32::MAX)
    }
}

impl Running<'_> {
    /// Records that the call gets its final answer.
    pub fn finished(&self) {
        let mut shard = self.judge.shard(self.entity);
        if let Some(record) = shard.records.get_mut(&self.entity) {
            record.finished = record.finished.max(self.chain);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut shard = self.judge.shard(self.entity);
        shard.running -= 1;
        if let Some(record) = shard.records.get_mut(&self.entity) {
            record.running -= 1;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: i64, tick: i64) -> Option<Occurrence> {
        Some(Occurrence { epoch, tick })
    }

    fn counts(judge: &Judge) -> (u64, usize, u64, u64, u64) {
        let v = judge.verdict();
        (v.calls, v.entities, v.running, v.overlaps, v.repeats)
    }

    #[tokio::test]
    async fn calls_one_after_the_other_are_innocent() {
        let judge = Judge::default();
        for tick in 1..=3 {
            judge.begins("sync", "a", at(1, tick));
            judge.begins("sync", "a", at(1, tick)).finished();
        }
        judge.begins("sync", "a", at(2, 1)).finished();
        judge.begins("sync", "b", None).finished();
        judge.begins("sync", "b", None).finished();
        judge.begins("other", "a", at(1, 1)).finished();
        assert_eq!(counts(&judge), (10, 3, 0, 0, 0), "a retry, a new epoch, one-off jobs, another kind");
        assert_eq!(judge.calls("sync", "a").unwrap().0, 7);
        assert_eq!(judge.calls("sync", "c"), None);
    }

    #[tokio::test]
    async fn two_at_once_are_an_overlap() {
        let judge = Judge::default();
        let first = judge.begins("sync", "a", at(1, 1));
        let other = judge.begins("sync", "b", at(1, 1));
        assert_eq!(counts(&judge), (2, 2, 2, 0, 0));
        let second = judge.begins("sync", "a", at(1, 1));
        assert_eq!(counts(&judge), (3, 2, 3, 1, 0));
        drop((first, second, other));
        judge.begins("sync", "a", at(1, 1)).finished();
        assert_eq!(counts(&judge), (4, 2, 0, 1, 0));
        let verdict = judge.verdict();
        assert_eq!((verdict.forked(), verdict.offences[0].key.as_str(), verdict.offences[0].overlap), (1, "a", true));
    }

    #[tokio::test]
    async fn an_occurrence_that_was_answered_is_not_called_again() {
        let judge = Judge::default();
        judge.begins("sync", "a", at(2, 5)).finished();
        judge.begins("sync", "a", at(2, 5));
        judge.begins("sync", "a", at(2, 4));
        judge.begins("sync", "a", at(1, 9)).finished();
        assert_eq!(counts(&judge), (4, 1, 0, 0, 3));
        judge.begins("sync", "a", at(2, 6)).finished();
        assert_eq!(judge.verdict().forked(), 3);
    }

    #[tokio::test]
    async fn offences_are_all_counted_and_only_the_first_named() {
        let judge = Judge::default();
        judge.begins("sync", "a", at(1, 1)).finished();
        for _ in 0..100 {
            judge.begins("sync", "a", at(1, 1));
        }
        let verdict = judge.verdict();
        assert_eq!((verdict.repeats, verdict.offences.len()), (100, NAMED));
    }

    #[test]
    fn a_record_is_small() {
        assert!(size_of::<Record>() <= 40, "{}", size_of::<Record>());
    }
}
