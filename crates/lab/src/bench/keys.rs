//! A throttle with very many keys: what a worker and a ledger store for them, and that they forget them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_ledger::Size;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::chains::{KIND, QUEUE};
use super::gauge::{cpu_seconds, mib, resident};
use super::ground::{self, Ground};
use super::round;

/// If no start comes for this long, something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many keys are forgotten in one transaction.
const AT_ONCE: u32 = 10_000;
/// A key of one start per second is fully refilled this long after its use, with a reserve.
const IDLE: Duration = Duration::from_secs(3);

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// How many keys, each with a chain.
    pub keys: usize,
    /// How many messages are processed at the same time.
    pub concurrency: u16,
}

/// The figures.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How many keys were used, each once.
    pub keys: usize,
    /// From the first start to the last, in seconds.
    pub seconds: f64,
    /// Starts per second.
    pub starts_per_s: f64,
    /// The ledger's transactions in that time that handed out slots.
    pub slot_transactions: u64,
    /// All transactions of the ledger in that time.
    pub transactions: u64,
    /// CPU seconds of this process in that time.
    pub cpu_s: f64,
    /// Memory of this process in MiB: with all chains begun and none started, when all keys were used, and when they
    /// were forgotten. `None` if the system does not report it.
    pub resident_mib: Option<[f64; 3]>,
    /// The ledger's size for the keys, in MiB, at these three times.
    pub throttle_mib: [f64; 3],
    /// The ledger's whole size, in MiB, at these three times.
    pub ledger_mib: [f64; 3],
    /// How many keys the ledger remembers, at these three times.
    pub remembered: [u64; 3],
    /// How long forgetting took, in seconds.
    pub forgot_in_s: f64,
}

/// Measures, and reports its progress to `note`.
///
/// # Errors
/// When something cannot be started, or no start comes.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Report, StartError> {
    let keys = settings.keys;
    note(&format!("begins {keys} chains"));
    let ground = Ground::open(config(settings)?, 1).await?;
    ground.enroll(keys, Some(Duration::ZERO), |_| {}).await?;
    let ledger = &ground.first().ledger;
    // Keys of earlier measurements.
    while ledger.forget_idle(AT_ONCE).await? > 0 {}
    let (memory_before, size_before) = (resident(), ledger.size().await?);

    note("lets each of them start once");
    let (started, progress) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, all) = (started.clone(), progress.clone());
    let (traffic, cpu, begin) = (ground.traffic(), cpu_seconds(), Instant::now());
    let workers = ground
        .start(false, None, move |_| {
            if (count.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(keys.clamp(1, 1_000)) {
                all.notify_one();
            }
        })
        .await?;
    while started.load(Ordering::Relaxed) < keys {
        if timeout(PATIENCE, progress.notified()).await.is_err() {
            let started = started.load(Ordering::Relaxed);
            return Err(StartError::Setup(format!("{started} of {keys} have started, and then no more")));
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let (traffic, cpu) = (ground.traffic().since(traffic), cpu_seconds() - cpu);
    let (memory_used, size_used) = (resident(), ledger.size().await?);

    note("forgets them");
    sleep(IDLE).await;
    let begin = Instant::now();
    while ledger.forget_idle(AT_ONCE).await? > 0 {}
    let forgot = begin.elapsed().as_secs_f64();
    let (memory_after, size_after) = (resident(), ledger.size().await?);
    workers.stop().await?;
    ground.clear().await?;
    let sizes = [size_before, size_used, size_after];
    let of = |figure: fn(&Size) -> u64| sizes.each_ref().map(figure);
    let memory = [memory_before, memory_used, memory_after];
    Ok(Report {
        keys,
        seconds: round(seconds),
        starts_per_s: round(keys as f64 / seconds),
        slot_transactions: traffic.slots,
        transactions: traffic.writes,
        cpu_s: round(cpu),
        resident_mib: memory.iter().all(Option::is_some).then(|| memory.map(|bytes| mib(bytes.unwrap_or_default()))),
        throttle_mib: of(|size| size.throttle_bytes).map(mib),
        ledger_mib: of(|size| size.bytes).map(mib),
        remembered: of(|size| size.throttles),
        forgot_in_s: round(forgot),
    })
}

fn config(settings: &Settings) -> Result<Config, StartError> {
    let room = settings.concurrency;
    // Chains sleep until long after the measurement when they have run once.
    let rest = format!(
        "[throttles.bench-keys]\nallow = 1\nper = \"1s\"\nkey = \"key\"\n\
         [queues.{QUEUE}]\nconcurrency = {room}\nprefetch = {room}\nthrottle = \"bench-keys\"\n\
         [kinds.{KIND}]\nqueue = \"{QUEUE}\"\nevery = \"1d\"\n"
    );
    ground::config(&settings.broker, &settings.ledger, &rest)
}
