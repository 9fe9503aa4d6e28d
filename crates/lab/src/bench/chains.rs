//! Chains with a handler that does nothing, in turn with the raw loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use roundelay_broker::Way;
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_engine::enroll::Entity;
use roundelay_engine::life::Probe;
use roundelay_ledger::Traffic;
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::fleet::Lateness;
use roundelay_model::job::Job;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::gauge::{Machine, cpu_of_threads, cpu_seconds};
use super::ground::{self, ASLEEP, Ground};
use super::raw::{Course, RawLoop};
use super::round;
use super::stages::{Clock, Stages};

pub(super) const KIND: &str = "cycle";
/// The platform queue of the benchmark.
pub(super) const QUEUE: &str = "bench-cycle";

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// Workers in this process, each with connections of its own. The raw loop has as many.
    pub workers: usize,
    /// How many chains for the capacity: more than the delay allows for. With 0 the capacity is not measured.
    pub chains: usize,
    /// Cycles per second for the lateness. With 0 the lateness is not measured.
    pub rate: u32,
    /// The delay of each cycle.
    pub delay: Duration,
    /// How long engine and raw loop each run, for each of the two measurements.
    pub length: Duration,
    /// How many turns engine and raw loop take within that time.
    pub turns: u32,
    /// How many messages a worker processes at the same time.
    pub concurrency: u16,
    /// How messages sleep: `auto`, `native` or `ladder`. The raw loop's sleep like the engine's.
    pub delays: String,
    /// What the chains are like, and what is in the ledger beside them.
    pub load: Load,
    /// The number of allocations of this process so far; only a program with a counting allocator knows it.
    pub allocations: Option<fn() -> u64>,
}

/// What the chains are like, and what is in the ledger beside them. The raw loop's messages are the same whatever this
/// says: payloads and owners are in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Chains that sleep for the whole measurement.
    pub asleep: usize,
    /// The size of each chain's payload in bytes; at least that of an empty JSON object.
    pub payload: usize,
    /// How many owners the chains belong to; with 0 they have none.
    pub owners: usize,
    /// How many kinds the chains are of, at least one. All kinds share the queue.
    pub kinds: usize,
}

impl Default for Load {
    fn default() -> Self {
        Self { asleep: 0, payload: 0, owners: 0, kinds: 1 }
    }
}

impl Load {
    /// The names of the kinds.
    fn kinds(&self) -> Vec<String> {
        let further = (1..self.kinds).map(|n| format!("{KIND}-{n}"));
        std::iter::once(KIND.to_owned()).chain(further).collect()
    }

    fn entity(&self, key: String, n: usize) -> Entity {
        let empty = "{\"pad\":\"\"}".len();
        let payload = match self.payload.checked_sub(empty) {
            Some(pad) => format!("{{\"pad\":\"{}\"}}", "x".repeat(pad)),
            None => "{}".to_owned(),
        };
        let mut entity = Entity::new(key, QUEUE, payload);
        entity.owner = n.checked_rem(self.owners).map(|owner| format!("owner-{owner}"));
        entity
    }

    /// Begins the chains that sleep, and then `chains` others.
    async fn begin(&self, ground: &Ground, chains: usize, note: impl Fn(&str)) -> Result<(), StartError> {
        let (run, kinds) = (ground.first().entropy.token(), self.kinds());
        let wakes = ground.first().ledger.wall_clock().wall(ground.first().ledger.now()) + ASLEEP;
        for (sleep, count) in [(true, self.asleep), (false, chains)] {
            for (nth, kind) in kinds.iter().enumerate() {
                let entity = |n| {
                    let mut entity = self.entity(format!("{run}-{sleep}-{n}"), n);
                    entity.first_due = sleep.then_some(wakes);
                    entity
                };
                let told = |begun: usize| {
                    if sleep && begun.is_multiple_of(100_000) {
                        note(&format!("{begun} chains sleep"));
                    }
                };
                let these = (nth..count).step_by(kinds.len()).map(entity);
                ground.enroll_these(kind, None, these, told).await?;
            }
        }
        Ok(())
    }
}

/// The figures of engine or raw loop.
#[derive(Clone, Debug, Default, Serialize, PartialEq)]
pub struct Figures {
    /// Cycles per second.
    pub cycles_per_s: f64,
    /// How late cycles began. For the engine: handler start after due time. For the raw loop: delivery after publish
    /// plus delay.
    pub late_ms: Lateness,
    /// CPU seconds of this process, not of the broker.
    pub cpu_s: f64,
    /// Memory allocations for each cycle, if they are counted: see `benches/allocations.rs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations: Option<f64>,
    /// CPU microseconds for each cycle, by thread of this process, and of all other processes of the machine
    /// (`elsewhere`: broker, PostgreSQL). Only on Linux.
    pub cpu_us: BTreeMap<String, f64>,
}

/// Engine and raw loop with the same number of chains.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Comparison {
    /// How many chains.
    pub chains: usize,
    /// How long each side was measured, in seconds.
    pub seconds: f64,
    /// With engine and ledger.
    pub engine: Figures,
    /// Without engine and ledger.
    pub raw: Figures,
    /// The engine's cycles per second divided by the raw loop's.
    pub ratio: f64,
    /// The ratio of each turn.
    pub ratios: Vec<f64>,
    /// The ledger's transactions for each cycle; a group of verbs in one transaction counts once.
    pub transactions_per_cycle: f64,
    /// The stages of the engine's time, from an additional turn that is not in the figures above.
    pub stages_ms: Stages,
}

/// Both comparisons, as printed.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How many workers, and raw loops.
    pub workers: usize,
    /// The delay of each cycle, in milliseconds.
    pub delay_ms: u64,
    /// With more chains than can be served.
    pub capacity: Option<Comparison>,
    /// With the number of chains that gives the wanted rate.
    pub lateness: Option<Comparison>,
}

/// Counts cycles and their lateness; engine and raw loop use the same.
#[derive(Clone)]
pub struct Meter(Arc<Mutex<Histogram<u64>>>);

impl Meter {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(histogram())))
    }

    /// Records that a cycle that was due at `due` begins now.
    pub(super) fn cycle(&self, due: Time) {
        let late = micros_now().saturating_sub(due.as_millis().saturating_mul(1_000));
        let late = u64::try_from(late).unwrap_or(0);
        self.0.lock().saturating_record(late);
    }

    fn take(&self) -> Histogram<u64> {
        let mut histogram = self.0.lock();
        let taken = histogram.clone();
        histogram.reset();
        taken
    }
}

/// A histogram of microseconds, from 1 to an hour.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds in range")
}

/// The time in microseconds: finer than [`Time`].
#[allow(clippy::disallowed_methods)]
pub(super) fn micros_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// The measurements of engine or raw loop so far.
pub(super) struct Side {
    pub(super) meter: Meter,
    late: Histogram<u64>,
    seconds: f64,
    cpu_s: f64,
    threads: BTreeMap<String, f64>,
    elsewhere: f64,
    count: Option<fn() -> u64>,
    allocations: u64,
}

impl Side {
    /// No measurements yet. `count` answers the allocations of this process so far.
    pub(super) fn new(count: Option<fn() -> u64>) -> Self {
        let meter = Meter::new();
        Self {
            late: meter.take(),
            meter,
            seconds: 0.0,
            cpu_s: 0.0,
            threads: BTreeMap::new(),
            elsewhere: 0.0,
            count,
            allocations: 0,
        }
    }

    /// Measures for `length`; answers the cycles per second in that time.
    pub(super) async fn measure(&mut self, length: Duration) -> f64 {
        self.measure_until(sleep(length)).await.0
    }

    /// Measures until `end`; answers the cycles per second in that time, and what `end` answers.
    pub(super) async fn measure_until<T>(&mut self, end: impl Future<Output = T>) -> (f64, T) {
        self.meter.take();
        let (cpu, threads, machine, start) = (cpu_seconds(), cpu_of_threads(), Machine::now(), Instant::now());
        let allocations = self.count.map_or(0, |count| count());
        let ended = end.await;
        self.allocations += self.count.map_or(0, |count| count()) - allocations;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        for (name, spent) in cpu_of_threads() {
            *self.threads.entry(name.clone()).or_default() += spent - threads.get(&name).copied().unwrap_or_default();
        }
        if let (Some(before), Some(now)) = (machine, Machine::now()) {
            self.elsewhere += now.since(before, seconds) - cpu;
        }
        self.seconds += seconds;
        self.cpu_s += cpu;
        let late = self.meter.take();
        // Both histograms have the same bounds, so nothing is out of range.
        let _ = self.late.add(&late);
        (late.len() as f64 / seconds.max(0.001), ended)
    }

    /// The figures of all measurements.
    pub(super) fn figures(&self) -> Figures {
        let cycles = self.late.len() as f64;
        let micros = |seconds: f64| (seconds * 1e7 / cycles.max(1.0)).round() / 10.0;
        let threads = self.threads.iter().map(|(name, seconds)| (name.clone(), micros(*seconds)));
        let all = threads.chain([("elsewhere".to_owned(), micros(self.elsewhere))]);
        Figures {
            cycles_per_s: round(cycles / self.seconds.max(0.001)),
            late_ms: Lateness::of_micros(&self.late),
            cpu_s: round(self.cpu_s),
            allocations: self.count.map(|_| round(self.allocations as f64 / cycles.max(1.0))),
            // Threads with less CPU time are left out.
            cpu_us: all.filter(|(_, micros)| *micros >= 0.5).collect(),
        }
    }
}

/// Measures, and reports its progress to `note`.
///
/// # Errors
/// When something cannot be started.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Report, StartError> {
    let of_rate = (f64::from(settings.rate) * settings.delay.as_secs_f64()).round() as usize;
    let mut done = Vec::new();
    for (what, chains) in [("capacity", settings.chains), ("lateness", of_rate)] {
        done.push(match chains {
            0 => None,
            _ => Some(compare(settings, chains, |text: &str| note(&format!("{what}, {text}"))).await?),
        });
    }
    let (lateness, capacity) = (done.pop().flatten(), done.pop().flatten());
    Ok(Report {
        workers: settings.workers.max(1),
        delay_ms: u64::try_from(settings.delay.as_millis()).unwrap_or(u64::MAX),
        capacity,
        lateness,
    })
}

async fn compare(settings: &Settings, chains: usize, note: impl Fn(&str)) -> Result<Comparison, StartError> {
    let (mut engine, mut raw, mut traffic) =
        (Side::new(settings.allocations), Side::new(settings.allocations), Traffic::default());
    let (turns, mut ratios) = (settings.turns.max(1), Vec::new());
    let length = settings.length / turns;
    for turn in 1..=turns {
        note(&format!("turn {turn} of {turns}: the engine, {}", short_duration(length)));
        let (ours, asked, native) = run_engine(settings, chains, &mut engine, length, None, &note).await?;
        traffic = Traffic { writes: traffic.writes + asked.writes, ..traffic };
        note(&format!("turn {turn} of {turns}: the raw loop, {}", short_duration(length)));
        let raw_loop = RawLoop::start(&Course { native, ..course(settings) }, chains, raw.meter.clone()).await?;
        sleep(settle(settings.delay)).await;
        let theirs = raw.measure(length).await;
        raw_loop.stop().await?;
        ratios.push(round(ours / theirs.max(0.001)));
    }
    note(&format!("where the time goes, {}", short_duration(length)));
    let (mut clocked, clock) = (Side::new(settings.allocations), Clock::default());
    run_engine(settings, chains, &mut clocked, length, Some(&clock), &note).await?;
    let (engine_late, cycles, seconds) = (clocked.late.mean() / 1_000.0, engine.late.len(), engine.seconds);
    let (engine, raw) = (engine.figures(), raw.figures());
    Ok(Comparison {
        chains,
        seconds: round(seconds),
        ratio: (engine.cycles_per_s / raw.cycles_per_s.max(0.001) * 1_000.0).round() / 1_000.0,
        engine,
        raw,
        ratios,
        transactions_per_cycle: (traffic.writes as f64 / cycles.max(1) as f64 * 10_000.0).round() / 10_000.0,
        stages_ms: clock.stages(engine_late),
    })
}

/// Every chain has begun after one delay; in a second one the effects of the start end.
pub(super) fn settle(delay: Duration) -> Duration {
    (delay * 2).max(Duration::from_secs(2))
}

/// One work queue and one rung, like the engine's.
fn course(settings: &Settings) -> Course {
    Course {
        broker: settings.broker.clone(),
        workers: settings.workers,
        queues: 1,
        delay: settings.delay,
        rungs: vec![settings.delay],
        native: false,
        concurrency: settings.concurrency,
    }
}

fn config(settings: &Settings) -> Result<Config, StartError> {
    let Settings { broker, ledger, concurrency, delays, load, .. } = settings;
    let mut rest = format!(
        "broker.delays = \"{delays}\"\n[queues.{QUEUE}]\nconcurrency = {concurrency}\nprefetch = {concurrency}\n"
    );
    for kind in load.kinds() {
        rest += &format!("[kinds.{kind}]\nqueue = \"{QUEUE}\"\nevery = \"{}\"\n", short_duration(settings.delay));
    }
    ground::config(broker, ledger, &rest)
}

/// Answers the cycles per second, the ledger's work, and whether messages sleep on their queue.
async fn run_engine(
    settings: &Settings,
    chains: usize,
    side: &mut Side,
    length: Duration,
    clock: Option<&Clock>,
    note: impl Fn(&str),
) -> Result<(f64, Traffic, bool), StartError> {
    let ground = Ground::open(config(settings)?, settings.workers).await?;
    let (meter, probe) = (side.meter.clone(), clock.map(|clock| Arc::new(clock.clone()) as Arc<dyn Probe>));
    let workers = ground.start(false, probe, move |job: &Job| meter.cycle(job.nominal)).await?;
    settings.load.begin(&ground, chains, note).await?;
    sleep(settle(settings.delay)).await;
    clock.inspect(|clock| clock.reset());
    let before = ground.traffic();
    let rate = side.measure(length).await;
    clock.inspect(|clock| clock.stop());
    let traffic = ground.traffic().since(before);
    workers.stop().await?;
    let native = matches!(ground.first().broker.sleeping().way(), Some(Way::Native { .. }));
    ground.clear().await?;
    Ok((rate, traffic, native))
}
