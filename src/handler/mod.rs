//! Running jobs: the trait, and the ready-made handlers.
//!
//! - a Rust closure or type that implements [`Handler`],
//! - [`http`]: POSTs the job to a URL,
//! - [`exec`]: starts a program with the job on its standard input.

pub mod answer;
pub mod exec;
pub mod http;
pub mod wire;

use async_trait::async_trait;

use crate::job::Job;
use crate::outcome::Outcome;
use crate::throttle::upstream::Advice;

/// Runs jobs of one kind. The engine drops the future at the job's deadline and records a retry.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Runs `job` once. Effects should be idempotent on [`Job::id`]: a crash can repeat a run.
    async fn run(&self, job: Job) -> Outcome;
}

/// An async closure is a handler; it may return an [`Outcome`] or a `Result<(), E>`, whose error
/// is retried.
#[async_trait]
impl<F, Fut, O> Handler for F
where
    F: Fn(Job) -> Fut + Send + Sync,
    Fut: Future<Output = O> + Send,
    O: Into<Outcome> + Send,
{
    async fn run(&self, job: Job) -> Outcome {
        self(job).await.into()
    }
}

/// Says where people look that an answer's word to its throttle means nothing; the run ends as it would without.
fn not_followed(job: &Job, why: &str) -> Option<Advice> {
    tracing::warn!(kind = job.kind, key = job.key, job = job.id, "the throttle was told nothing: {why}");
    None
}
