//! Workers: their state, what they run, and when they last reported.

use roundelay_ledger::{EFFORT, Ledger, LedgerError, OpenRun, RunSource, SeenWorker};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{OLDEST, QueuePresence, WorkerState};
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use utoipa::ToSchema;

use super::format::{Late, ProgressReport};

/// A worker, as it last reported.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkerReport {
    /// The name of the worker.
    pub worker: String,
    /// The machine on which the worker runs.
    pub host: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The version of the program.
    pub version: String,
    /// When the worker started.
    pub started: At,
    /// When the worker last reported.
    pub seen: At,
    /// working, draining, drained, stopping; or silent, when it has not reported for 30 s.
    pub state: &'static str,
    /// The queues that the worker consumes.
    pub queues: Vec<WorkerQueue>,
    /// The kinds that the worker runs.
    pub kinds: Vec<String>,
    /// How many leases the worker holds.
    pub leases: usize,
    /// How many jobs wait for a slot of a throttle.
    pub waiting: i64,
    /// Starts per second, over the last ten seconds.
    pub starts_per_second: f64,
    /// How late starts were, on the queue with the latest ones.
    pub late_ms: Option<Late>,
}

/// A queue that a worker consumes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WorkerQueue {
    /// The name of the queue.
    pub queue: String,
    /// How many jobs of the queue run at the same time at most.
    pub concurrency: usize,
    /// How many jobs of the queue run.
    pub running: i64,
    /// Whether the worker takes no jobs from the queue at the moment.
    pub paused: bool,
}

/// A run that a worker has begun and not ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OpenRunReport {
    /// What runs: chain (a tick or a manual run), batch (a job of a batch), or job (a one-off job).
    pub source: &'static str,
    /// The kind, which names the handler.
    pub kind: String,
    /// The key of the entity.
    pub key: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// When the run started.
    pub started: At,
    /// How far the run has come, if it has said so.
    pub progress: Option<ProgressReport>,
}

impl OpenRunReport {
    fn of(run: OpenRun, wall_clock: &WallClock) -> Self {
        let OpenRun { source, kind, key, attempt, started, progress } = run;
        let source = match source {
            RunSource::Chain => "chain",
            RunSource::Batch => "batch",
            RunSource::Job => "job",
        };
        let progress = progress.map(|progress| ProgressReport::of(progress, wall_clock));
        Self { source, kind, key, attempt, started: At::of(started, wall_clock), progress }
    }
}

/// What a worker runs, the longest first, at most [`OLDEST`] runs. The ledger has no index that leads from a worker to
/// its runs, so they are found in two ways, each in a moment. The worker names its oldest claims with each report.
/// What it has begun since then is among the last attempts of all. One-off jobs are known if they report progress.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn runs(worker: SeenWorker, ledger: &dyn Ledger) -> Result<Vec<OpenRunReport>, LedgerError> {
    let wall_clock = ledger.wall_clock();
    let runs = ledger.open_runs(worker.presence.worker, worker.presence.oldest, OLDEST as u32, EFFORT).await?;
    Ok(runs.into_iter().map(|run| OpenRunReport::of(run, &wall_clock)).collect())
}

/// The word for a worker's state.
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
    pub fn new(worker: SeenWorker, now: Time, wall_clock: &WallClock) -> Self {
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
            started: At::of(presence.started, wall_clock),
            seen: At::of(seen, wall_clock),
            state,
            kinds: presence.kinds,
            leases: presence.leases,
        }
    }
}
