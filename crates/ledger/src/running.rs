//! The verbs of one-off jobs that run and say how far they have come.
//!
//! A one-off job has no record while it runs: its message is complete. One that reports has a row here as
//! long as its worker says that it goes on, so that others can see it. One that is delivered again is noted before it
//! runs, with the session that has it in hand, so that it is known over which jobs workers die.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::deaths::Hands;
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

/// Knows which one-off jobs run, of those that have reported.
#[async_trait]
pub trait Running {
    /// Writes that these go on, for `hold` from now unless it is said again, and forgets `ended` (by id) of
    /// `worker`, and whatever nobody has spoken of in time.
    ///
    /// # Errors
    /// When it is not known to be written. Nothing hangs on it.
    async fn note_running(
        &self,
        worker: String,
        jobs: Vec<RunningJob>,
        ended: Vec<String>,
        hold: Duration,
    ) -> Result<(), LedgerError>;

    /// Those of an entity, the oldest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn running(&self, kind: String, key: String) -> Result<Vec<RunningJob>, LedgerError>;

    /// In whose hands the job of this name was that has not come to an end there, besides `session`.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn hands(&self, job: String, session: i64) -> Result<Hands, LedgerError>;

    /// Notes that a session has a job in hand.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn take_in_hand(&self, job: String, session: i64) -> Result<(), LedgerError>;

    /// Forgets in whose hands a job was: a run of it has come to its end.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn out_of_hand(&self, job: String) -> Result<(), LedgerError>;

    /// Writes how far attempts have come, by their fences, unless they have ended.
    ///
    /// # Errors
    /// When it is not known to be written. Nothing hangs on it.
    async fn note_progress(&self, runs: Vec<(i64, Progress)>) -> Result<(), LedgerError>;
}
