//! The verbs of runs and their progress.
//!
//! A one-off job has no record while it runs: its message is complete. A job that reports progress has a row here as
//! long as its worker renews the row, so that others can see the run. A job that is delivered again is noted before it
//! runs, with the session that runs it, so that it is known over which jobs workers die.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::deaths::Hands;
use roundelay_model::ids::Fence;
use roundelay_model::progress::Progress;

use crate::error::LedgerError;

/// A one-off job that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningJob {
    /// The job's id.
    pub id: String,
    /// The worker that runs it. After a crash two may for a while.
    pub worker: String,
    /// Its kind.
    pub kind: String,
    /// Its entity.
    pub key: String,
    /// The platform queue that it came from.
    pub queue: String,
    /// Which attempt.
    pub attempt: u32,
    /// When it began.
    pub started: Time,
    /// How far it has come.
    pub progress: Progress,
}

/// What a run is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunSource {
    /// The ticks of a chain, or its manual runs.
    Chain,
    /// The jobs of a batch for whose end a chain waits.
    Batch,
    /// One-off jobs.
    Job,
}

/// A run that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRun {
    /// What it is one of.
    pub source: RunSource,
    /// Its kind.
    pub kind: String,
    /// Its entity.
    pub key: String,
    /// Which attempt.
    pub attempt: u32,
    /// When it began.
    pub started: Time,
    /// How far it has said it had come, last.
    pub progress: Option<Progress>,
}

impl From<RunningJob> for OpenRun {
    fn from(job: RunningJob) -> Self {
        let RunningJob { kind, key, attempt, started, progress, .. } = job;
        Self { source: RunSource::Job, kind, key, attempt, started, progress: Some(progress) }
    }
}

/// Of the open runs of chains and the jobs of a worker, at most `limit`, the longest first.
pub(super) fn longest(mut runs: Vec<OpenRun>, jobs: Vec<RunningJob>, limit: u32) -> Vec<OpenRun> {
    runs.extend(jobs.into_iter().map(OpenRun::from));
    runs.sort_by_key(|run| run.started);
    runs.truncate(limit as usize);
    runs
}

/// Keeps the progress of runs, and which one-off jobs run.
#[async_trait]
pub trait Running {
    /// Renews the rows of these jobs for `hold` from now. Forgets the rows of `ended` (by id) of `worker`, and rows
    /// that were not renewed in time.
    ///
    /// # Errors
    /// When it is not known to be written. No decision depends on it.
    async fn note_running(
        &self,
        worker: String,
        jobs: Vec<RunningJob>,
        ended: Vec<String>,
        hold: Duration,
    ) -> Result<(), LedgerError>;

    /// The one-off jobs of an entity that run, the oldest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn running(&self, kind: String, key: String) -> Result<Vec<RunningJob>, LedgerError>;

    /// What a worker has begun and not ended, the longest first, at most `limit`: of chains, the attempts with these
    /// fences, and those among the last `effort` attempts of all workers; of one-off jobs, those that report progress.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn open_runs(
        &self,
        worker: String,
        fences: Vec<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Vec<OpenRun>, LedgerError>;

    /// The sessions besides `session` that began to run the job of this name, and did not finish it.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn hands(&self, job: String, session: i64) -> Result<Hands, LedgerError>;

    /// Notes that a session begins to run a job.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn take_in_hand(&self, job: String, session: i64) -> Result<(), LedgerError>;

    /// Forgets which sessions ran a job: a run of the job has finished.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn out_of_hand(&self, job: String) -> Result<(), LedgerError>;

    /// Writes how far attempts have come, by their fences, unless they have ended.
    ///
    /// # Errors
    /// When it is not known to be written. No decision depends on it.
    async fn note_progress(&self, runs: Vec<(Fence, Progress)>) -> Result<(), LedgerError>;
}
