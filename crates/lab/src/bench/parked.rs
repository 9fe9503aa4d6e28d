//! The cost of sleeping chains: nothing is due, and nothing polls them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roundelay_broker::rabbit::memory_of_nodes;
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_model::clock::{Clock, short_duration};
use roundelay_model::job::Job;
use roundelay_net::tls::BrokerTls;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::chains::{KIND, QUEUE};
use super::gauge::{cpu_seconds, disk_usage, mib, resident};
use super::ground::{self, ASLEEP, Ground};
use super::round;

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// The base URL of RabbitMQ's management API, with user and password, for the broker's memory.
    pub management: Option<String>,
    /// The broker's data directory, if it is on this machine, for the broker's disk use.
    pub broker_data: Option<PathBuf>,
    /// How messages sleep: `auto`, `native` or `ladder`.
    pub delays: String,
    /// How many chains.
    pub chains: usize,
    /// How long to wait after enrolling, before the measurement begins.
    pub settle: Duration,
    /// How long to measure.
    pub length: Duration,
}

/// The figures.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How many chains slept.
    pub chains: usize,
    /// How long it took to begin them from a roster in CSV, in seconds.
    pub enrolled_in_s: f64,
    /// How long the measurement took, in seconds.
    pub seconds: f64,
    /// The share of one core that this process used, in percent.
    pub cpu_percent: f64,
    /// Memory of this process in MiB: before there were chains, and while they slept. With the embedded broker this
    /// includes their messages.
    pub resident_mib: Option<[f64; 2]>,
    /// The size of the ledger in MiB, before there were chains, and while they slept.
    pub ledger_mib: [f64; 2],
    /// Transactions of the ledger while they slept.
    pub transactions: u64,
    /// Queries of the ledger while they slept.
    pub reads: u64,
    /// Chains that woke up meanwhile; must be 0.
    pub started: u64,
    /// Memory of all nodes of the broker in MiB, before and then, if the management API is known.
    pub broker_mib: Option<[f64; 2]>,
    /// Disk use of the broker's data directory in MiB, before and then, if the directory is known.
    pub broker_disk_mib: Option<[f64; 2]>,
}

/// Measures, and reports its progress to `note`.
///
/// # Errors
/// When something cannot be started, or the management API does not answer.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Report, StartError> {
    let mut ground = Ground::open(config(settings)?, 1).await?;
    let size = ground.first().ledger.size().await?;
    let (memory, broker) = (resident(), broker_memory(settings).await?);
    let disk = broker_disk(settings)?;
    note(&format!("begins {} chains", settings.chains));
    let begin = Instant::now();
    ground
        .enroll_roster(settings.chains, |begun| {
            if begun.is_multiple_of(100_000) {
                note(&format!("{begun} have begun"));
            }
        })
        .await?;
    let enrolled = begin.elapsed().as_secs_f64();
    if !ground.is_embedded() {
        // As a worker that did not begin the chains.
        ground = ground.restarted().await?;
    }
    note(&format!("they sleep, and a worker has been started; measures for {}", short_duration(settings.length)));
    let started = Arc::new(AtomicU64::new(0));
    let count = started.clone();
    let wakes = move |_: &Job| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let workers = ground.start(true, None, wakes).await?;
    sleep(settings.settle).await;
    let (cpu, traffic, begin) = (cpu_seconds(), ground.traffic(), Instant::now());
    sleep(settings.length).await;
    let (cpu, traffic, seconds) = (cpu_seconds() - cpu, ground.traffic().since(traffic), begin.elapsed().as_secs_f64());
    let size_then = ground.first().ledger.size().await?;
    let (memory_then, broker_then) = (resident(), broker_memory(settings).await?);
    let disk_then = broker_disk(settings)?;
    let started = started.load(Ordering::Relaxed);
    workers.stop().await?;
    note("ends them");
    ground.clear().await?;
    Ok(Report {
        chains: settings.chains,
        enrolled_in_s: round(enrolled),
        seconds: round(seconds),
        cpu_percent: (cpu / seconds * 100_000.0).round() / 1_000.0,
        resident_mib: memory.zip(memory_then).map(|(before, then)| [mib(before), mib(then)]),
        ledger_mib: [mib(size.bytes), mib(size_then.bytes)],
        transactions: traffic.writes,
        reads: traffic.reads,
        started,
        broker_mib: broker.zip(broker_then).map(|(before, then)| [mib(before), mib(then)]),
        broker_disk_mib: disk.zip(disk_then).map(|(before, then)| [mib(before), mib(then)]),
    })
}

async fn broker_memory(settings: &Settings) -> Result<Option<u64>, StartError> {
    match &settings.management {
        Some(url) => memory_of_nodes(url, &BrokerTls::default()).await.map(Some).map_err(StartError::Setup),
        None => Ok(None),
    }
}

fn broker_disk(settings: &Settings) -> Result<Option<u64>, StartError> {
    let usage = |folder: &PathBuf| {
        let failed = |error| StartError::Setup(format!("the broker's data in {}: {error}", folder.display()));
        disk_usage(folder).map_err(failed)
    };
    settings.broker_data.as_ref().map(usage).transpose()
}

fn config(settings: &Settings) -> Result<Config, StartError> {
    let at = Clock::System.now() + ASLEEP;
    let delays = &settings.delays;
    let rest =
        format!("broker.delays = \"{delays}\"\n[queues.{QUEUE}]\n[kinds.{KIND}]\nqueue = \"{QUEUE}\"\nat = \"{at}\"\n");
    ground::config(&settings.broker, &settings.ledger, &rest)
}
