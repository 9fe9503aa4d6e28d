//! How much of a throttle is used by chains that always have more to do, and whether ever too much.
//!
//! Handlers do nothing but record when they started. Only these times are judged: every window of the throttle's
//! length, wherever it begins.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_config::Config;
use roundelay_engine::{Engine, StartError};
use roundelay_model::clock::short_duration;
use roundelay_model::fleet::Lateness;
use roundelay_model::pacing::windows;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::chains::{KIND, QUEUE};
use super::gauge::cpu_seconds;
use super::ground::{self, Ground};
use super::round;

/// Starts within this time after the first one do not count.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the benchmark waits for the first start.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long chains sleep.
const DELAY: Duration = Duration::from_secs(1);
/// There is room for the starts of this many milliseconds: a slot is granted a tenth of a second before it opens, and
/// the rest is for the work before and after a start.
const ROOM_MS: u64 = 400;
/// The smallest room of each worker, however slow the throttle.
const MIN_ROOM: u64 = 32;

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// How many starts the throttle allows in each window; one measurement for each.
    pub rates: Vec<u32>,
    /// The length of the window.
    pub per: Duration,
    /// How many workers share the throttle.
    pub workers: usize,
    /// How many chains; by default four times as many as may start in a second, so that three quarters wait.
    pub chains: Option<usize>,
    /// How long each measurement takes.
    pub length: Duration,
    /// How many turns to measure with the workers' own gates and without, one after the other; with 0 the gates are on
    /// and nothing is compared.
    pub gate_turns: u32,
    /// How many messages each worker processes at the same time; by default what the throttle needs.
    pub concurrency: Option<u16>,
}

/// One throttle's figures.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How many starts the throttle allows in a window.
    pub allow: u32,
    /// The length of the window, in milliseconds.
    pub per_ms: u64,
    /// How many workers shared the throttle.
    pub workers: usize,
    /// How many chains wanted to start.
    pub chains: usize,
    /// How long the measurement took, in seconds.
    pub seconds: f64,
    /// Starts per second.
    pub starts_per_s: f64,
    /// Starts divided by the limit, in percent, over the windows in which there was always work; `None` if there was
    /// none.
    pub use_percent: Option<f64>,
    /// How many windows `use_percent` covers.
    pub windows: usize,
    /// The most starts in any window, wherever it begins.
    pub most: usize,
    /// Starts that were one too many in the window that ends with them.
    pub over: usize,
    /// The ledger's transactions per second that handed out slots.
    pub slot_transactions_per_s: f64,
    /// All transactions of the ledger per second.
    pub transactions_per_s: f64,
    /// How long jobs waited for a slot; with enough work that follows from `concurrency`.
    pub wait_ms: Lateness,
    /// CPU seconds of this process, not of broker and server.
    pub cpu_s: f64,
    /// The cost of the workers' own gates, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateCost>,
}

/// The cost of the workers' own gates: turns with gates divided by turns without.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct GateCost {
    /// Starts per second with gates divided by those without, over all turns.
    pub starts_ratio: f64,
    /// CPU of this process for each start with gates divided by that without, over all turns.
    pub cpu_ratio: f64,
    /// `starts_ratio` of each turn.
    pub starts_ratios: Vec<f64>,
}

/// When handlers started.
#[derive(Clone)]
struct Starts {
    began: Instant,
    at: Arc<Mutex<Vec<i64>>>,
    first: Arc<watch::Sender<bool>>,
}

impl Starts {
    fn new() -> Self {
        Self { began: Instant::now(), at: Arc::default(), first: Arc::new(watch::Sender::new(false)) }
    }

    fn micros(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX)
    }

    fn note(&self) {
        let mut at = self.at.lock();
        at.push(self.micros());
        if at.len() == 1 {
            self.first.send_replace(true);
        }
    }

    /// The starts from `begin` on and before `end`, in order.
    fn between(&self, begin: i64, end: i64) -> Vec<i64> {
        let at = self.at.lock();
        let mut at: Vec<i64> = at.iter().filter(|at| (begin..end).contains(*at)).copied().collect();
        at.sort_unstable();
        at
    }
}

/// Measures each rate, and reports its progress to `note`.
///
/// # Errors
/// When something cannot be started, or no start comes.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Vec<Report>, StartError> {
    let mut reports = Vec::new();
    for rate in &settings.rates {
        let mut report = measure(settings, *rate, true, &note).await?;
        if settings.gate_turns > 0 {
            report.gate = Some(gate_cost(settings, *rate, &note).await?);
        }
        reports.push(report);
    }
    Ok(reports)
}

async fn gate_cost(settings: &Settings, allow: u32, note: &impl Fn(&str)) -> Result<GateCost, StartError> {
    let (mut starts, mut cpu, mut starts_ratios) = ([0.0; 2], [0.0; 2], Vec::new());
    for turn in 1..=settings.gate_turns {
        let mut per_s = [0.0; 2];
        for (n, gated) in [true, false].into_iter().enumerate() {
            let gates = if gated { "with" } else { "without" };
            note(&format!("turn {turn} of {}, {gates} the workers' own gates", settings.gate_turns));
            let report = measure(settings, allow, gated, note).await?;
            per_s[n] = report.starts_per_s;
            starts[n] += report.starts_per_s * report.seconds;
            cpu[n] += report.cpu_s;
        }
        starts_ratios.push(ratio(per_s[0], per_s[1]));
    }
    let cpu_ratio = ratio(cpu[0] * starts[1], cpu[1] * starts[0]);
    Ok(GateCost { starts_ratio: ratio(starts[0], starts[1]), cpu_ratio, starts_ratios })
}

fn ratio(of: f64, by: f64) -> f64 {
    (of / by.max(0.001) * 1_000.0).round() / 1_000.0
}

async fn measure(settings: &Settings, allow: u32, gated: bool, note: &impl Fn(&str)) -> Result<Report, StartError> {
    let per_second = f64::from(allow) / settings.per.as_secs_f64();
    let chains = settings.chains.unwrap_or((per_second * 4.0).ceil().max(64.0) as usize);
    let throttle = format!("{allow} per {}", short_duration(settings.per));
    note(&format!("{throttle}: begins {chains} chains"));
    let ground = Ground::open(config(settings, allow, per_second)?, settings.workers).await?;
    ground.enroll(chains, Some(Duration::ZERO), |_| {}).await?;
    note(&format!("{throttle}: {} for {}", workers(settings.workers), short_duration(settings.length)));
    let starts = Starts::new();
    let noted = starts.clone();
    let prepare = |engine: Engine| {
        let engine = engine.without_chores();
        if gated { engine } else { engine.without_gate() }
    };
    let workers = ground.start_prepared(prepare, move |_| noted.note()).await?;
    let begun = timeout(PATIENCE, starts.first.subscribe().wait_for(|begun| *begun)).await.is_ok();
    if !begun {
        return Err(StartError::Setup(format!("nothing has started within {}", short_duration(PATIENCE))));
    }
    sleep(SETTLE).await;

    workers.reset();
    let (cpu, traffic, begin, here) = (cpu_seconds(), ground.traffic(), starts.micros(), Instant::now());
    let count = (settings.length.as_micros() / settings.per.as_micros().max(1)).max(1);
    let (mut busy, mut waits) = (Vec::new(), ground.backlog().await? > 0);
    for n in 1..=u32::try_from(count).unwrap_or(u32::MAX) {
        sleep_until(here + settings.per * n).await;
        let before = std::mem::replace(&mut waits, ground.backlog().await? > 0);
        busy.push(before && waits);
    }
    let (seconds, traffic) = (here.elapsed().as_secs_f64(), ground.traffic().since(traffic));
    let (cpu_s, wait_ms) = (cpu_seconds() - cpu, workers.waits().summary());
    let started = starts.between(begin, begin + i64::try_from(settings.per.as_micros() * count).unwrap_or(i64::MAX));
    workers.stop().await?;
    ground.clear().await?;

    let judged = windows::check(&starts.between(0, i64::MAX), allow as usize, settings.per);
    let used = windows::used(&started, begin, allow as usize, settings.per, &busy);
    let length = settings.per.as_secs_f64() * count as f64;
    Ok(Report {
        allow,
        per_ms: u64::try_from(settings.per.as_millis()).unwrap_or(u64::MAX),
        workers: settings.workers.max(1),
        chains,
        seconds: round(seconds),
        starts_per_s: round(started.len() as f64 / length),
        use_percent: used.map(|used| round(used * 100.0)),
        windows: busy.iter().filter(|busy| **busy).count(),
        most: judged.most,
        over: judged.over,
        slot_transactions_per_s: round(traffic.slots as f64 / seconds),
        transactions_per_s: round(traffic.writes as f64 / seconds),
        wait_ms,
        cpu_s: round(cpu_s),
        gate: None,
    })
}

fn workers(number: usize) -> String {
    if number > 1 { format!("{number} workers") } else { "one worker".into() }
}

fn config(settings: &Settings, allow: u32, per_second: f64) -> Result<Config, StartError> {
    let room = (per_second * ROOM_MS as f64 / 1_000.0 / settings.workers.max(1) as f64).ceil() as u64;
    let room = settings.concurrency.map_or(room.max(MIN_ROOM), u64::from).min(u16::MAX.into());
    let rest = format!(
        "[throttles.bench]\nallow = {allow}\nper = \"{}\"\n\
         [queues.{QUEUE}]\nconcurrency = {room}\nprefetch = {}\nthrottle = \"bench\"\n\
         [kinds.{KIND}]\nqueue = \"{QUEUE}\"\nevery = \"{}\"\n",
        short_duration(settings.per),
        (room * 2).min(u16::MAX.into()),
        short_duration(DELAY),
    );
    ground::config(&settings.broker, &settings.ledger, &rest)
}
