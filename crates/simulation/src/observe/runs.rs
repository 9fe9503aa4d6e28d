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

use super::{Name, Observer, Running};
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
