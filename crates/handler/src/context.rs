//! What a run can ask for while it runs, beside its [`Job`](roundelay_model::job::Job), which is only data.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::pacing::ThrottleSettings;
use roundelay_model::progress::Report;

use crate::span::HandlerSpan;

/// Takes what a run reports of itself.
pub trait Reports: Send + Sync {
    /// Takes a report; one of a run that has ended is dropped.
    fn report(&self, report: Report);

    /// Where another program can POST reports of this run.
    fn url(&self) -> Option<&str>;
}

/// A run's way to the throttles: the one that it started under, and the others of the configuration.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// The settings of the throttle that the run started under.
    fn settings(&self) -> Option<Arc<ThrottleSettings>>;

    /// Waits until the throttle has room for `cost` starts, and takes it.
    ///
    /// # Errors
    /// When it never will.
    async fn permit(&self, throttle: &str, cost: u32) -> Result<(), PermitError>;

    /// Tells the run's throttle what the upstream has said; returns when all workers are bound by it.
    async fn tell(&self, advice: Advice);

    /// Notes what the upstream has said with its answer. The throttle is told when the handler has returned, so that a
    /// ledger that is slow takes nothing of the run's time.
    fn note(&self, advice: Advice);
}

/// Why a run gets no leave for what it asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermitError {
    /// There is no such throttle.
    #[error("there is no [throttles.{0}] in the configuration")]
    Unknown(String),
    /// No window of it has room for so much.
    #[error("{cost} is more than the throttle {throttle} allows at once: {most}")]
    TooMuch {
        /// Its name.
        throttle: String,
        /// What was asked for.
        cost: u32,
        /// The most that can be asked for.
        most: u32,
    },
}

/// What an upstream has said in an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// No call for so long.
    pub hold: Option<Duration>,
    /// Why not.
    pub why: Option<String>,
    /// So many calls remain of its budget, and it is filled again after so long.
    pub budget: Option<(u32, Duration)>,
    /// How many starts the call counts for.
    pub cost: Option<u32>,
}

/// What a run can ask for. The default one belongs to no engine: reports go nowhere, and nothing is limited.
#[derive(Clone, Default)]
pub struct Context {
    reports: Option<Arc<dyn Reports>>,
    upstream: Option<Arc<dyn Upstream>>,
    span: HandlerSpan,
}

impl Context {
    /// The context of a run whose reports go to `reports`.
    #[doc(hidden)]
    pub fn new(reports: Arc<dyn Reports>) -> Self {
        Self { reports: Some(reports), ..Self::default() }
    }

    /// The same for a run that starts under these throttles, with this span.
    #[must_use]
    #[doc(hidden)]
    pub fn started(self, upstream: Arc<dyn Upstream>, span: HandlerSpan) -> Self {
        Self { upstream: Some(upstream), span, ..self }
    }

    /// Says that the run is at `phase` now, of which `done` out of `total` are done. `roundelay show` has it within a
    /// second or two, and the attempt's record keeps it. Say it as often as you like: what comes in between is left
    /// out.
    pub fn progress(&self, phase: &str, done: u64, total: u64) {
        self.report(Report { phase: Some(phase.into()), done: Some(done), total: Some(total) });
    }

    /// Says that the run is at `phase` now.
    pub fn phase(&self, phase: &str) {
        self.report(Report { phase: Some(phase.into()), ..Report::default() });
    }

    /// Takes a report.
    #[doc(hidden)]
    pub fn report(&self, report: Report) {
        if let Some(reports) = &self.reports {
            reports.report(report);
        }
    }

    /// Whether reports of this run are taken.
    #[doc(hidden)]
    pub fn takes_reports(&self) -> bool {
        self.reports.is_some()
    }

    /// Where another program can POST reports of this run.
    pub fn report_url(&self) -> Option<&str> {
        self.reports.as_ref()?.url()
    }

    /// Waits until `[throttles.<throttle>]` has room for `cost` starts, and takes it: for a run that makes more calls
    /// than the one that its start stands for, or that calls another upstream. The wait goes by the priority of the
    /// job's queue, and counts as part of the run's time.
    ///
    /// # Errors
    /// [`PermitError`] when there is no such throttle, or it never allows so much.
    pub async fn permit(&self, throttle: &str, cost: u32) -> Result<(), PermitError> {
        match &self.upstream {
            Some(upstream) => upstream.permit(throttle, cost).await,
            None => Ok(()),
        }
    }

    /// The upstream wants no calls for `wait`: nothing starts under this job's throttle meanwhile, in any worker, and
    /// then slowly. Under a throttle with a key, that goes for this job's key. `why` is for people. The job itself goes
    /// on; it may end with [`roundelay_model::outcome::Outcome::Snooze`].
    pub async fn hold(&self, wait: Duration, why: &str) {
        self.tell(Advice { hold: Some(wait), why: Some(why.to_owned()), ..Advice::default() }).await;
    }

    /// The upstream allows `remaining` more calls until its budget is filled again after `reset`: those are spread over
    /// that time, if there are fewer than the throttle's `slow_below`.
    pub async fn budget(&self, remaining: u32, reset: Duration) {
        self.tell(Advice { budget: Some((remaining, reset)), ..Advice::default() }).await;
    }

    /// The upstream counts this job's call for `cost` starts. The throttle makes up for what the start has not stood
    /// for.
    pub async fn spent(&self, cost: u32) {
        self.tell(Advice { cost: Some(cost), ..Advice::default() }).await;
    }

    async fn tell(&self, advice: Advice) {
        if let Some(upstream) = &self.upstream {
            upstream.tell(advice).await;
        }
    }

    /// Notes what the upstream has said with its answer: see [`Upstream::note`].
    #[doc(hidden)]
    pub fn note(&self, advice: Advice) {
        if let Some(upstream) = &self.upstream {
            upstream.note(advice);
        }
    }

    /// The settings of the throttle that the run started under.
    #[doc(hidden)]
    pub fn throttle(&self) -> Option<Arc<ThrottleSettings>> {
        self.upstream.as_ref()?.settings()
    }

    /// The span of the run, for those that the handler makes below it.
    pub fn span(&self) -> &HandlerSpan {
        &self.span
    }
}

impl fmt::Debug for Context {
    /// Without the URL, by which anybody can report for the run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("takes_reports", &self.takes_reports())
            .field("throttled", &self.throttle().is_some())
            .field("span", &self.span)
            .finish()
    }
}
