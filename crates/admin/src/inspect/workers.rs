//! The workers: who they are, what they run, whether they are heard of.

use roundelay_ledger::SeenWorker;
use roundelay_model::calendar::{At, Calendar};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{QueuePresence, WorkerState};
use serde::Serialize;
use utoipa::ToSchema;

use super::words::Late;

/// A worker, as it was when it last said something.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkerReport {
    /// Its name.
    pub worker: String,
    /// The machine it runs on.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The version of the program.
    pub version: String,
    /// Since when it runs.
    pub started: At,
    /// When it last said how it is.
    pub seen: At,
    /// working, draining, drained, stopping; or silent, when it has said nothing for 30 s.
    pub state: &'static str,
    /// The queues that it consumes.
    pub queues: Vec<WorkerQueue>,
    /// The kinds that it runs.
    pub kinds: Vec<String>,
    /// Claims that it holds.
    pub leases: usize,
    /// Jobs that wait for a slot of a throttle.
    pub waiting: i64,
    /// Starts in a second, over the last ten.
    pub starts_per_second: f64,
    /// How late they were, on the queue where that was worst.
    pub late_ms: Option<Late>,
}

/// A queue that a worker consumes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkerQueue {
    /// Its name.
    pub queue: String,
    /// How many jobs of it run at the same time at most.
    pub concurrency: usize,
    /// How many run.
    pub running: i64,
    /// Nothing is taken from it.
    pub paused: bool,
}

/// The word for what a worker is doing.
pub fn state(worker: &SeenWorker, now: Time) -> &'static str {
    if worker.is_silent(now) {
        return "silent";
    }
    match worker.presence.state {
        WorkerState::Working => "working",
        WorkerState::Draining => "draining",
        WorkerState::Drained => "drained",
        WorkerState::Stopping => "stopping",
    }
}

impl WorkerReport {
    /// Of a worker, at `now`.
    pub fn new(worker: SeenWorker, now: Time, calendar: &Calendar) -> Self {
        let state = state(&worker, now);
        let SeenWorker { presence, seen } = worker;
        let starts = |queue: &&QueuePresence| queue.starts_per_second > 0.0;
        let late = presence.queues.iter().filter(starts).map(|queue| queue.late_ms);
        let late = late.reduce(|a, b| if a.p99 < b.p99 { b } else { a });
        let queue = |of: &QueuePresence| WorkerQueue {
            queue: of.queue.clone(),
            concurrency: of.concurrency,
            running: of.running,
            paused: !of.open,
        };
        Self {
            queues: presence.queues.iter().map(queue).collect(),
            waiting: presence.queues.iter().map(|queue| queue.waiting).sum(),
            starts_per_second: presence.queues.iter().map(|queue| queue.starts_per_second).sum(),
            late_ms: late.map(Late::from),
            worker: presence.worker,
            host: presence.host,
            pid: presence.pid,
            version: presence.version,
            started: At::of(presence.started, calendar),
            seen: At::of(seen, calendar),
            state,
            kinds: presence.kinds,
            leases: presence.leases,
        }
    }
}
