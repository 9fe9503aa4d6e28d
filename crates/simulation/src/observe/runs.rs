//! Runs: each start and end of a handler, two of which must not be at the same time (I1), and each of which has an
//! identity of its own (I6); and how far apart they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::Fence;
use roundelay_model::job::Job;
use roundelay_model::outcome::Outcome;
use tokio::time::Instant;

use super::{Name, Observer, Running, State};
use crate::worker::Process;
use crate::world::workload::BRISK;

/// Between a deadline and its effect, at most.
const TICK: Duration = Duration::from_millis(50);

/// A handler that runs; dropped when it has ended, however.
pub struct Run {
    observer: Arc<Observer>,
    /// Counts all runs.
    pub number: u64,
    /// Queue, worker and run.
    place: (String, usize, usize),
    /// The last attempt of a one-off job, until its handler has ended by itself.
    last: Option<LastAttempt>,
}

/// The last attempt of a one-off job, which the engine ends when its time is up.
struct LastAttempt {
    id: String,
    name: (String, String),
    process: Arc<Process>,
    until: Instant,
}

impl Drop for Run {
    fn drop(&mut self) {
        let at = self.observer.start.elapsed();
        let mut state = self.observer.lock();
        state.unique_running.remove(&self.number);
        state.busy.entry(self.place.clone()).and_modify(|count| *count -= 1);
        if let Some(last) = self.last.take().filter(|last| Instant::now() >= last.until && last.process.is_running()) {
            state.job_ended(last.id, Some(last.name));
        }
        let Some(running) = state.running.remove(&self.number) else { return };
        let took = running.since.elapsed();
        let excused = running.lenient || !running.rotates || running.process.stood_still(running.since);
        if running.name.kind == "brisk" && took > BRISK + TICK && !excused {
            let what = format!("{}: ran for {took:?}, and had to make room for its next occurrence", running.name);
            state.violated(at, "schedule", what);
        }
    }
}

impl Run {
    /// It is the last attempt of a one-off job, and has so long until its deadline.
    pub fn is_last(&mut self, job: &Job, process: &Arc<Process>, left: Duration) {
        if job.tick.is_none() {
            let (id, name) = (job.id.clone(), (job.kind.clone(), job.key.clone()));
            self.last = Some(LastAttempt { id, name, process: process.clone(), until: Instant::now() + left });
        }
    }

    /// Its handler has ended by itself.
    pub fn has_ended(mut self) {
        self.last = None;
    }
}

impl State {
    /// A run of a one-off job has ended it, and with a name as failed for good.
    fn job_ended(&mut self, id: String, failed: Option<(String, String)>) {
        let model = self.jobs.entry(id).or_default();
        model.ended = true;
        model.ends += 1;
        // Of runs that were repeated, also side by side, one that ends well is enough: the worker of the other may have
        // died before it could write anything down.
        model.done |= failed.is_none();
        model.failed = failed.filter(|_| !model.done).map(|name| (Instant::now(), name));
    }
}

impl Observer {
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
            let other = state.running.values().find(|running| {
                let same = running.name == name && running.epoch == tick.epoch;
                same && running.process.is_awake() && !running.lenient && !lenient
            });
            if let Some(other) = other {
                let (ours, theirs) = (process.worker, other.process.worker);
                state.violated(at, "I1", format!("{name}: runs on worker {ours} while it runs on worker {theirs}"));
            }
            if let Some(from) = state.may_start.remove(&tick.fence).filter(|from| now < *from) {
                state.violated(at, "schedule", format!("{name}: starts at {now}, and may from {from} on"));
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
        Run { observer: self.clone(), number, place, last: None }
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
            let failed = matches!(outcome, Outcome::Fail { .. } | Outcome::Retry { .. });
            let failed = failed.then(|| (job.kind.clone(), job.key.clone()));
            self.lock().job_ended(job.id.clone(), failed);
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
    pub fn fences(&self) -> BTreeSet<Fence> {
        self.lock().started.clone()
    }

    /// When handlers started, for each queue and process: worker and run.
    pub fn starts(&self) -> BTreeMap<(String, usize, usize), Vec<Instant>> {
        self.lock().starts.clone()
    }
}
