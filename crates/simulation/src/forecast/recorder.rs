//! The modelled handler of a kind, and what is noted of its runs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use roundelay_config::KindSettings;
use roundelay_handler::{Context, Handler};
use roundelay_model::clock::{Clock, Entropy, Time};
use roundelay_model::job::Job;
use roundelay_model::outcome::Outcome;
use roundelay_model::schedule::{From, Rhythm};
use tokio::time::sleep;

use super::ages::{Ages, Lengths};
use super::gates::Gates;
use super::model::Model;
use super::pace::Pace;

/// When simulated time begins and ends; the end is not part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub from: Time,
    pub end: Time,
}

/// What is noted of a kind.
pub(super) struct Noted {
    /// Handlers that were started.
    pub starts: u64,
    /// Of these, first attempts at a tick.
    pub firsts: u64,
    /// How long after their due time first attempts started.
    pub late: Lengths,
    pub ages: Ages,
    pub pace: Pace,
    /// Handlers that run now.
    pub running: u64,
}

/// A kind's handler in a simulation.
#[derive(Clone)]
pub(super) struct Recorder {
    span: Span,
    clock: Clock,
    model: Arc<Model>,
    /// How far a start may lie from its nominal time by intent.
    jitter: Duration,
    /// It has a time box, and keeps to it.
    boxed: bool,
    dice: Entropy,
    noted: Arc<Mutex<Noted>>,
    /// Starts of all kinds.
    all: Arc<Mutex<Pace>>,
    gates: Arc<Gates>,
}

impl Recorder {
    pub fn new(
        kind: &KindSettings,
        span: Span,
        clock: Clock,
        dice: Entropy,
        pace: Pace,
        all: Arc<Mutex<Pace>>,
        gates: Arc<Gates>,
    ) -> Self {
        let jitter = kind.recurrence.as_ref().map_or(Duration::ZERO, |recurrence| match recurrence.schedule.rhythm {
            // The jitter of a fixed delay is in its nominal time.
            Rhythm::Every { from: From::Finish, .. } => Duration::ZERO,
            _ => recurrence.schedule.jitter,
        });
        let boxed = kind.recurrence.as_ref().is_some_and(|recurrence| recurrence.time_box.is_some());
        let model = Arc::new(Model::new(&kind.model));
        let noted = Noted { starts: 0, firsts: 0, late: Lengths::new(), ages: Ages::new(), pace, running: 0 };
        Self { span, clock, model, jitter, boxed, dice, noted: Arc::new(Mutex::new(noted)), all, gates }
    }

    pub fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock()
    }

    /// Notes a start; how long after the beginning it is.
    fn started(&self, job: &Job) -> Duration {
        let now = self.clock.now();
        let at = now.since(self.span.from);
        self.noted().running += 1;
        if now < self.span.from || now >= self.span.end {
            return at;
        }
        let mut noted = self.noted();
        noted.starts += 1;
        noted.pace.start(at);
        // A further attempt waits for its backoff, and is not late for that.
        if job.attempt == 1 {
            noted.firsts += 1;
            noted.late.record(now.since(job.nominal + self.jitter), 1);
        }
        self.gates.start(&job.queue, at);
        self.all.lock().start(at);
        at
    }

    fn worked(&self, job: &Job) {
        let now = self.clock.now();
        if let Some(tick) = job.tick.filter(|_| now < self.span.end) {
            self.noted().ages.success(tick.epoch, now);
        }
    }
}

/// A run, until it has ended or was ended.
struct Running<'a>(&'a Recorder);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut noted = self.0.noted();
        noted.running = noted.running.saturating_sub(1);
    }
}

#[async_trait]
impl Handler for Recorder {
    async fn run(&self, job: Job, _: Context) -> Outcome {
        let at = self.started(&job);
        let _running = Running(self);
        let (length, fails) = self.model.roll(at, &self.dice);
        // A good handler of a kind with a time box goes on in its next run.
        let left = if self.boxed { job.deadline.since(self.clock.wall()) } else { Duration::MAX };
        sleep(length.min(left)).await;
        if fails {
            return Outcome::retry("the model's dice");
        }
        self.worked(&job);
        Outcome::Done
    }
}
