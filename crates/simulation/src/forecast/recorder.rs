//! The modelled handler of a kind, and what is noted of its runs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use roundelay_config::{KindSettings, weight_of};
use roundelay_handler::{Context, Handler};
use roundelay_model::clock::{Clock, Entropy, Time};
use roundelay_model::job::Job;
use roundelay_model::outcome::{Change, Outcome, Yield};
use roundelay_model::pacing::key::KeyPath;
use roundelay_model::schedule::{From, Rhythm, phase};
use tokio::time::sleep;

use super::ages::{Ages, Lengths};
use super::changes::Changes;
use super::gates::Gates;
use super::model::Model;
use super::pace::Pace;
use super::tenants::Tenants;

/// When simulated time begins and ends; the end is not part of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub from: Time,
    pub end: Time,
}

impl Span {
    /// How far the beginning is from midnight, in seconds.
    fn midnight(self) -> f64 {
        self.from.as_millis().rem_euclid(86_400_000) as f64 / 1_000.0
    }

    /// The second half: chains have had the first to learn. In seconds from the beginning.
    pub fn measured(self) -> Range<f64> {
        let length = self.end.since(self.from).as_secs_f64();
        length / 2.0..length
    }
}

/// What is noted of a kind.
pub(super) struct Noted {
    /// Handlers that were started.
    pub starts: u64,
    /// Of these, first attempts at a tick.
    pub firsts: u64,
    /// How long after their due time first attempts started.
    pub late: Lengths,
    /// The same of each tenant, on fair queues.
    pub tenants: Tenants,
    pub ages: Ages,
    pub pace: Pace,
    /// Handlers that run now.
    pub running: u64,
    /// How many were started in each hour.
    pub hours: Vec<u64>,
    /// How right what is known of the entities is, if they change.
    pub changes: Option<Changes>,
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
    /// Of fair queues: what names the tenant of a job.
    fair: BTreeMap<String, KeyPath>,
    dice: Entropy,
    seed: u64,
    /// A template for what an entity is worth.
    weight: Option<String>,
    noted: Arc<Mutex<Noted>>,
    /// Starts of all kinds.
    all: Arc<Mutex<Pace>>,
    gates: Arc<Gates>,
}

impl Recorder {
    /// Of a kind whose entities are worth what the template `weight` says. `fair`: the queues that tenants share. `seed`
    /// decides the rates at which entities change.
    pub fn new(
        (kind, weight, fair): (&KindSettings, Option<String>, BTreeMap<String, KeyPath>),
        span: Span,
        clock: Clock,
        (seed, dice): (u64, Entropy),
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
        let changes = kind.model.change.map(|change| Changes::new(change, span.midnight(), span.measured()));
        let (late, ages, hours) = (Lengths::new(), Ages::new(), Vec::new());
        let tenants = Tenants::default();
        let noted = Noted { starts: 0, firsts: 0, late, tenants, ages, pace, running: 0, hours, changes };
        Self {
            span,
            clock,
            model,
            jitter,
            boxed,
            fair,
            dice,
            seed,
            weight,
            noted: Arc::new(Mutex::new(noted)),
            all,
            gates,
        }
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
        let hour = (at.as_secs() / 3_600) as usize;
        let hours = noted.hours.len().max(hour + 1);
        noted.hours.resize(hours, 0);
        noted.hours[hour] += 1;
        // A further attempt waits for its backoff, and is not late for that.
        if job.attempt == 1 {
            noted.firsts += 1;
            let late = now.since(job.nominal + self.jitter);
            noted.late.record(late, 1);
            if let Some(by) = self.fair.get(&*job.queue) {
                noted.tenants.started(by.of(job), late);
            }
        }
        self.gates.start(&job.queue, at);
        self.all.lock().start(at);
        at
    }

    /// Notes a success. Answers whether the entity has changed since the one before, if that is modelled.
    fn worked(&self, job: &Job) -> Option<Change> {
        let now = self.clock.now();
        let tick = job.tick.filter(|_| now < self.span.end)?;
        let mut noted = self.noted();
        noted.ages.success(tick.epoch, now);
        let at = now.since(self.span.from).as_secs_f64();
        let changed = noted.changes.as_mut()?.visit(tick.epoch, at, &self.dice, || {
            let seed = self.seed ^ phase(&job.kind, &job.key).to_bits();
            // As the engine takes it, which says so.
            (seed, weight_of(self.weight.as_deref(), &job.payload).unwrap_or(1.0))
        })?;
        Some(if changed { Change::Changed } else { Change::Same })
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
        match self.worked(&job) {
            None => Outcome::Done,
            change => Outcome::DoneWith(Yield { change, ..Yield::default() }),
        }
    }
}
