//! Chains with a handler that does nothing, in turn with the raw loop.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::gauge::cpu_seconds;
use super::ground;
use super::raw::RawLoop;
use super::round;
use crate::clock::{Time, short_duration};
use crate::config::Config;
use crate::engine::enroll::{Enroller, Entity};
use crate::engine::{Connections, Engine, StartError};
use crate::job::Job;
use crate::ledger::{Order, Which};
use crate::outcome::Outcome;
use crate::telemetry::Lateness;

pub(super) const KIND: &str = "cycle";
/// Its platform queue.
pub(super) const QUEUE: &str = "bench-cycle";
/// Entities enrolled in one transaction.
const BATCH: usize = 1_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…`.
    pub ledger: String,
    /// How many chains.
    pub chains: usize,
    /// The delay of each cycle.
    pub delay: Duration,
    /// How long, engine and raw loop each.
    pub length: Duration,
    /// Into how many turns that is divided.
    pub turns: u32,
    /// Messages in work at the same time.
    pub concurrency: u16,
}

/// One side's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Cycles per second.
    pub cycles_per_s: f64,
    /// How late cycles began.
    pub late_ms: Lateness,
    /// CPU seconds of this process, not of the broker.
    pub cpu_s: f64,
}

/// Both sides, as printed.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How many chains.
    pub chains: usize,
    /// The delay of each cycle, in milliseconds.
    pub delay_ms: u64,
    /// How long each side was measured, in seconds.
    pub seconds: f64,
    /// The engine's cycles per second.
    pub cycles_per_s: f64,
    /// The raw loop's.
    pub raw_cycles_per_s: f64,
    /// The first by the second.
    pub ratio: f64,
    /// How late the engine's cycles began: handler start after due time.
    pub late_ms: Lateness,
    /// How late the raw loop's began: delivery after publish plus delay.
    pub raw_late_ms: Lateness,
    /// CPU seconds of this process while the engine was measured.
    pub cpu_s: f64,
    /// The same for the raw loop.
    pub raw_cpu_s: f64,
}

impl Report {
    /// The engine's figures.
    pub fn engine(&self) -> Figures {
        Figures { cycles_per_s: self.cycles_per_s, late_ms: self.late_ms, cpu_s: self.cpu_s }
    }

    /// The raw loop's figures.
    pub fn raw(&self) -> Figures {
        Figures { cycles_per_s: self.raw_cycles_per_s, late_ms: self.raw_late_ms, cpu_s: self.raw_cpu_s }
    }
}

/// Counts cycles and their lateness; both sides use the same.
#[derive(Clone)]
pub struct Meter(Arc<Mutex<Histogram<u64>>>);

impl Meter {
    pub(super) fn new() -> Self {
        // Microseconds, from 1 to an hour.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds in range");
        Self(Arc::new(Mutex::new(histogram)))
    }

    /// A cycle that was due at `due` begins now.
    pub(super) fn cycle(&self, due: Time) {
        let late = micros_now().saturating_sub(due.as_millis().saturating_mul(1_000));
        let late = u64::try_from(late).unwrap_or(0);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(late);
    }

    fn take(&self) -> Histogram<u64> {
        let mut histogram = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = histogram.clone();
        histogram.reset();
        taken
    }
}

/// Lateness is measured finer than [`Time`] counts.
#[allow(clippy::disallowed_methods)]
fn micros_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// What has been measured of one side so far.
struct Side {
    meter: Meter,
    late: Histogram<u64>,
    seconds: f64,
    cpu_s: f64,
}

impl Side {
    fn new() -> Self {
        let meter = Meter::new();
        Self { late: meter.take(), meter, seconds: 0.0, cpu_s: 0.0 }
    }

    /// Lets the side run for a while and then measures it for `length`.
    async fn measure(&mut self, settle: Duration, length: Duration) {
        sleep(settle).await;
        self.meter.take();
        let (cpu, start) = (cpu_seconds(), Instant::now());
        sleep(length).await;
        self.seconds += start.elapsed().as_secs_f64();
        self.cpu_s += cpu_seconds() - cpu;
        // The same bounds, so nothing is out of range.
        let _ = self.late.add(self.meter.take());
    }

    fn figures(&self) -> Figures {
        Figures {
            cycles_per_s: round(self.late.len() as f64 / self.seconds.max(0.001)),
            late_ms: Lateness::of_micros(&self.late),
            cpu_s: round(self.cpu_s),
        }
    }
}

/// Measures, telling `note` what is going on.
///
/// # Errors
/// When something cannot be started.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Report, StartError> {
    let (mut engine, mut raw) = (Side::new(), Side::new());
    let length = settings.length / settings.turns;
    // Every chain has begun after one delay; a second one lets the beginning die away.
    let settle = (settings.delay * 2).max(Duration::from_secs(2));
    for turn in 1..=settings.turns {
        note(&format!("turn {turn} of {}: the engine, {}", settings.turns, short_duration(length)));
        run_engine(settings, &mut engine, settle, length).await?;
        note(&format!("turn {turn} of {}: the raw loop, {}", settings.turns, short_duration(length)));
        let raw_loop = RawLoop::start(settings, raw.meter.clone()).await?;
        raw.measure(settle, length).await;
        raw_loop.stop().await?;
    }
    let (engine, raw, seconds) = (engine.figures(), raw.figures(), engine.seconds);
    Ok(Report {
        chains: settings.chains,
        delay_ms: u64::try_from(settings.delay.as_millis()).unwrap_or(u64::MAX),
        seconds: round(seconds),
        cycles_per_s: engine.cycles_per_s,
        raw_cycles_per_s: raw.cycles_per_s,
        ratio: (engine.cycles_per_s / raw.cycles_per_s.max(0.001) * 1_000.0).round() / 1_000.0,
        late_ms: engine.late_ms,
        raw_late_ms: raw.late_ms,
        cpu_s: engine.cpu_s,
        raw_cpu_s: raw.cpu_s,
    })
}

fn config(settings: &Settings) -> Result<Config, StartError> {
    let Settings { broker, ledger, concurrency, .. } = settings;
    let rest = format!(
        "[queues.{QUEUE}]\nconcurrency = {concurrency}\nprefetch = {concurrency}\n\
         [kinds.{KIND}]\nqueue = \"{QUEUE}\"\nevery = \"{}\"\n",
        short_duration(settings.delay)
    );
    ground::config(broker, ledger, &rest)
}

async fn run_engine(
    settings: &Settings,
    side: &mut Side,
    settle: Duration,
    length: Duration,
) -> Result<(), StartError> {
    let config = config(settings)?;
    let connections = Connections::open(&config).await?;
    let (broker, topology) = (connections.broker.clone(), config.topology());
    broker.remove(&topology).await?;
    broker.apply(&topology).await?;
    // Those of an earlier turn, or of an earlier benchmark on the same ledger.
    connections.ledger.steer(Which { kind: Some(KIND.into()), key: None, ..Which::default() }, Order::Retire).await?;
    let run = connections.entropy.token();
    let meter = side.meter.clone();
    let engine =
        Engine::new(config.clone()).connections(connections.clone()).without_chores().handler(KIND, move |job: Job| {
            meter.cycle(job.nominal);
            async { Outcome::Done }
        });
    let stop = CancellationToken::new();
    let ready = engine.ready();
    let mut engine = tokio::spawn(engine.run(stop.clone()));
    tokio::select! {
        () = ready.wait() => {}
        ended = &mut engine => ended.map_err(|error| StartError::Setup(error.to_string()))??,
    }
    let mut enroller = Enroller::new(&config, connections, KIND, None, true)?;
    for first in (0..settings.chains).step_by(BATCH) {
        let numbers = first..(first + BATCH).min(settings.chains);
        let entity = |n| Entity::new(format!("{run}-{n}"), QUEUE, "{}");
        enroller.enroll(numbers.map(entity).collect()).await?;
    }
    side.measure(settle, length).await;
    stop.cancel();
    engine.await.map_err(|error| StartError::Setup(error.to_string()))??;
    remove(&config).await
}

/// Cleans up on the broker, by connections of its own.
async fn remove(config: &Config) -> Result<(), StartError> {
    let connections = Connections::open(config).await?;
    connections.broker.remove(&config.topology()).await?;
    connections.broker.close().await;
    Ok(())
}
