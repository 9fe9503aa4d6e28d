//! One-off jobs: which were accepted, which came to an end and how, and who has the place of a unique kind and key
//! (I8, unique).

use std::sync::Arc;
use std::time::Duration;

use roundelay_ledger::SpawnedJob;
use roundelay_model::clock::Time;
use roundelay_model::job::{Envelope, Job};
use tokio::time::Instant;

use super::orders::ANSWER;
use super::{Holder, JobModel, Observer, Places, State, UniqueRun};
use crate::worker::Process;

impl Observer {
    /// Jobs were accepted without a chain.
    pub fn accepted(&self, jobs: &[SpawnedJob]) {
        self.lock().expect(jobs.iter().map(|job| job.id.clone()).collect());
    }

    /// A one-off job was published and confirmed.
    pub fn published(&self, id: &str) {
        self.lock().jobs.entry(id.into()).or_default().expected = Some(Instant::now());
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

    /// Who has which place, for a copy of the ledger.
    pub fn places(&self) -> Places {
        self.lock().places.clone()
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

    /// Jobs that were accepted by `before`, and have not come to an end.
    pub fn lost_jobs(&self, before: Instant) -> Vec<String> {
        let state = self.lock();
        let expected = |job: &JobModel| job.expected.is_some_and(|since| since <= before);
        let lost = state.jobs.iter().filter(|(_, job)| expected(job) && !job.excused && !job.ended);
        lost.map(|(id, _)| id.clone()).collect()
    }

    /// Whether the ledger accepted a job by `before`, and not again since.
    pub fn accepted_by(&self, id: &str, before: Instant) -> bool {
        self.lock().jobs.get(id).and_then(|job| job.expected).is_some_and(|since| since <= before)
    }

    /// Kinds and keys of jobs that failed for good before then. One whose message an operator threw away may
    /// have failed without anybody being left to write that down.
    pub fn failed_jobs(&self, before: Instant) -> Vec<(String, String)> {
        let state = self.lock();
        let failed = state.jobs.values().filter(|job| !job.excused).filter_map(|job| job.failed.clone());
        failed.filter(|(at, _)| *at <= before).map(|(_, name)| name).collect()
    }

    /// How often a one-off job came to an end.
    pub fn ends(&self, id: &str) -> usize {
        self.lock().jobs.get(id).map_or(0, |job| job.ends)
    }
}

impl State {
    /// A one-off job starts: not while its owner is paused, and if it is unique, not without its place.
    pub(super) fn job_started(&mut self, at: Duration, number: u64, process: &Arc<Process>, job: &Job, now: Time) {
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

    pub(super) fn expect(&mut self, jobs: Vec<String>) {
        let now = Some(Instant::now());
        jobs.into_iter().for_each(|id| self.jobs.entry(id).or_default().expected = now);
    }
}
