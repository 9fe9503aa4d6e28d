//! Running jobs: the trait, and the ready-made handlers.
//!
//! - a Rust closure or type that implements [`Handler`],
//! - [`http`]: POSTs the job to a URL,
//! - [`exec`]: starts a program with the job on its standard input.
//!
//! The engine gives a handler the job, which is data, and a [`Context`], by which the run can report, ask for permits
//! and tell its throttle what the upstream has said.
//!
//! Layer: on `model`. May use: reqwest, processes. Knows neither ledger nor engine: [`Reports`] and [`Upstream`] are
//! traits that the engine implements.

pub mod answer;
mod compare;
mod context;
pub mod exec;
pub mod http;
mod span;
pub mod wire;

use std::error::Error;
use std::fs::File;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use roundelay_model::job::Job;
use roundelay_model::outcome::Outcome;
use roundelay_model::reason::{Class, Reason};

pub use compare::Compare;
pub use context::{Advice, Context, PermitError, Reports, Upstream};
pub use span::{Call, HandlerSpan};

/// Runs jobs of one kind. The engine drops the future at the job's deadline and records a retry.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Runs `job` once; `context` is what the run can ask for meanwhile. Effects should be idempotent on [`Job::id`]: a
    /// crash can repeat a run.
    async fn run(&self, job: Job, context: Context) -> Outcome;
}

/// An async closure is a handler; it may return an [`Outcome`] or a `Result<(), E>`, whose error
/// is retried.
#[async_trait]
impl<F, Fut, O> Handler for F
where
    F: Fn(Job, Context) -> Fut + Send + Sync,
    Fut: Future<Output = O> + Send,
    O: Into<Outcome> + Send,
{
    async fn run(&self, job: Job, context: Context) -> Outcome {
        self(job, context).await.into()
    }
}

/// Says where people look that an answer's word to its throttle means nothing; the run ends as it would without.
fn not_followed(job: &Job, why: &str) -> Option<Advice> {
    tracing::warn!(kind = job.kind, key = job.key, job = job.id, "the throttle was told nothing: {why}");
    None
}

/// How long a run is left alone for which this process had no file.
const UNTIL_FILES: Duration = Duration::from_secs(5);

/// Whether this says that the process, or its machine, can open no more files.
fn says_no_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}

/// That no more files can be opened here, if that is at the bottom of an error, or nothing can be opened now: a name
/// that could not be looked up for that reason says only that it was not found.
fn out_of_files(error: &(dyn Error + 'static)) -> Option<io::Error> {
    let (mut said, mut cause) = (false, Some(error));
    while let Some(error) = cause {
        said |= error.downcast_ref().is_some_and(says_no_files);
        cause = error.source();
    }
    match File::open("/dev/null") {
        Err(now) if said || says_no_files(&now) => Some(now),
        // Meanwhile there is one again.
        _ => said.then(|| Errno::EMFILE.into()),
    }
}

/// Nothing was done, and the job is not to blame: its run is put off, and no attempt charged.
fn no_more_files(what: &str, error: &io::Error) -> Outcome {
    let text = format!(
        "{what}: no more files can be opened here ({error}); raise the limit of this worker (`ulimit -n`, LimitNOFILE= of \
         systemd), or lower the concurrency of its queues"
    );
    Outcome::Snooze { reason: Reason::new(Class::Files, text), wait: UNTIL_FILES }
}
