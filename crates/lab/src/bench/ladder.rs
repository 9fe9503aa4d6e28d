//! Delays of all lengths: how many rungs each takes, and how late it ends.
//!
//! On RabbitMQ, delays that are short enough to wait for. On the embedded broker all of them, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use roundelay_broker::Broker;
use roundelay_broker::embedded::EmbeddedBroker;
use roundelay_config::Config;
use roundelay_engine::{Connections, Dispatch, StartError};
use roundelay_ledger::LedgerUrl;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_model::clock::{Clock, Entropy, Time, short_duration};
use roundelay_model::fleet::Lateness;
use roundelay_model::job::{Envelope, Job};
use roundelay_model::schedule::spread;
use roundelay_model::topology::Names;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::chains::{KIND, QUEUE, histogram, micros_now};
use super::ground::{self, Ground};

/// The beginning of virtual time; any time will do.
const FROM: Time = Time::from_millis(1_800_000_000_000);
/// The time over which the messages of each delay are published.
const OVER: Duration = Duration::from_secs(2);
/// If no message arrives for this long after the last was due, messages are lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// The measured delays, in milliseconds: round ones, and some that no rung has.
const DELAYS: [u64; 24] = [
    10, 20, 50, 100, 200, 250, 500, 777, 1_000, 1_500, 2_000, 5_000, 7_321, 10_000, 30_000, 60_000, 61_234, 300_000,
    900_000, 3_600_000, 4_053_217, 21_600_000, 50_000_123, 86_400_000,
];

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// How many messages for each delay.
    pub messages: usize,
    /// Longer delays are not measured; on the embedded broker, where time is virtual, all are.
    pub longest: Duration,
}

/// The figures of a delay.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// The delay, in milliseconds.
    pub delay_ms: u64,
    /// How many rungs a message passes.
    pub hops: u32,
    /// How many messages arrived.
    pub messages: u64,
    /// How many of them arrived too early.
    pub early: u64,
    /// How late they were; `None` if the delay was not measured.
    pub late_ms: Option<Lateness>,
}

/// Measures, and reports its progress to `note`.
///
/// # Errors
/// When something cannot be started, or a message does not arrive.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Vec<Report>, StartError> {
    let config = ground::config(&settings.broker, &settings.ledger, &rest(settings.messages))?;
    if settings.broker == "embedded" {
        return tokio::task::block_in_place(|| in_virtual_time(&config, settings));
    }
    note(&format!("waits for delays of up to {}", short_duration(settings.longest)));
    let ground = Ground::open(config.clone(), 1).await?;
    measure(ground, &config, settings.messages, settings.longest, micros_now).await
}

fn rest(messages: usize) -> String {
    let room = messages.clamp(1, 1_000);
    format!("[queues.{QUEUE}]\nconcurrency = {room}\nprefetch = {room}\n[kinds.{KIND}]\nqueue = \"{QUEUE}\"\n")
}

fn in_virtual_time(config: &Config, settings: &Settings) -> Result<Vec<Report>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| StartError::Setup(format!("a runtime cannot be had: {error}")))?;
    runtime.block_on(async {
        let (clock, entropy) = (Clock::starting_at(FROM), Entropy::seeded(1));
        let node = EmbeddedBroker::new(Names::new(&config.broker.prefix));
        node.apply(&config.topology()).await?;
        let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &entropy)?;
        let connections =
            Connections { broker: Arc::new(node.connect()), ledger: Arc::new(ledger), clock: clock.clone(), entropy };
        let ground = Ground::on(config.clone(), vec![connections]).await?;
        let now = move || clock.now().as_millis() * 1_000;
        measure(ground, config, settings.messages, Duration::MAX, now).await
    })
}

/// The messages of a delay that have arrived.
struct Arrived {
    late: Mutex<Histogram<u64>>,
    early: AtomicU64,
}

async fn measure(
    ground: Ground,
    config: &Config,
    messages: usize,
    longest: Duration,
    now_micros: impl Fn() -> i64 + Clone + Send + Sync + 'static,
) -> Result<Vec<Report>, StartError> {
    let all: Arc<Vec<Arrived>> =
        Arc::new(DELAYS.iter().map(|_| Arrived { late: Mutex::new(histogram()), early: AtomicU64::new(0) }).collect());
    let waited: Vec<usize> = (0..DELAYS.len()).filter(|n| Duration::from_millis(DELAYS[*n]) <= longest).collect();
    let (open, done) = (Arc::new(AtomicUsize::new(waited.len() * messages)), Arc::new(Notify::new()));
    let started = {
        let (all, open, done) = (all.clone(), open.clone(), done.clone());
        move |job: &Job| {
            let Some(arrived) = job.payload.as_u64().and_then(|n| all.get(usize::try_from(n).ok()?)) else { return };
            let late = now_micros() - job.nominal.as_millis() * 1_000;
            arrived.early.fetch_add(u64::from(late < 0), Ordering::Relaxed);
            let mut histogram = arrived.late.lock();
            histogram.saturating_record(u64::try_from(late).unwrap_or(0));
            if open.fetch_sub(1, Ordering::Relaxed) == 1 {
                done.notify_one();
            }
        }
    };
    let workers = ground.start(false, None, started).await?;
    let (connections, dispatch, begin) = (ground.first(), Dispatch::new(config, ground.first()), Instant::now());
    for nth in 0..messages {
        sleep_until(begin + spread(nth, messages, OVER)).await;
        for n in &waited {
            let now = connections.ledger.now();
            let mut envelope = Envelope::job(KIND, &format!("{n}-{nth}"), json!(n), connections.entropy.token());
            envelope.queue = Some(QUEUE.into());
            envelope.due = Some(now + Duration::from_millis(DELAYS[*n]));
            dispatch.send(&envelope, QUEUE, now).await.map_err(|error| StartError::Setup(error.to_string()))?;
        }
    }
    let last = waited.last().map_or(Duration::ZERO, |n| Duration::from_millis(DELAYS[*n]));
    if !waited.is_empty() && timeout(last + PATIENCE, done.notified()).await.is_err() {
        let open = open.load(Ordering::Relaxed);
        return Err(StartError::Setup(format!("{open} messages have not arrived")));
    }
    workers.stop().await?;
    ground.clear().await?;
    Ok(DELAYS
        .iter()
        .zip(all.iter())
        .map(|(delay, arrived)| {
            let late = arrived.late.lock();
            Report {
                delay_ms: *delay,
                hops: config.ladder.hops(Duration::from_millis(*delay)),
                messages: late.len(),
                early: arrived.early.load(Ordering::Relaxed),
                late_ms: (!late.is_empty()).then(|| Lateness::of_micros(&late)),
            }
        })
        .collect())
}
