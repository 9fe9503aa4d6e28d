//! The two kinds of work that other schedulers publish figures for: jobs that do nothing, burned down by one worker, and
//! chains that recur every few seconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_engine::publish::Publisher;
use roundelay_model::clock::short_duration;
use roundelay_model::job::Job;
use roundelay_model::outcome::NewJob;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::chains::{Figures, KIND, QUEUE, Side, settle};
use super::ground::{self, Ground};
use super::round;

/// Jobs that are published at the same time.
const IN_FLIGHT: usize = 512;
/// If no job starts for this long, the worker counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// How many jobs are burned down. With 0 none are.
    pub jobs: usize,
    /// How many chains recur. With 0 none do.
    pub chains: usize,
    /// Their interval.
    pub every: Duration,
    /// For how long they are measured.
    pub length: Duration,
    /// How many messages the worker processes at the same time.
    pub concurrency: u16,
    /// How messages sleep: `auto`, `native` or `ladder`.
    pub delays: String,
}

/// Jobs that were burned down.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Burned {
    /// How many jobs.
    pub jobs: usize,
    /// How often a job started: as many times, unless one ran twice.
    pub started: usize,
    /// Jobs published per second, each confirmed by the broker, or written to the ledger where the broker is embedded.
    pub published_per_s: f64,
    /// From the start of the worker until it had stopped in good order, all jobs acknowledged, in seconds.
    pub seconds: f64,
    /// The worker's CPU microseconds for each job, by thread, and those of all else on the machine (`elsewhere`).
    pub cpu_us: BTreeMap<String, f64>,
}

/// The figures, as printed.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// Jobs that were burned down.
    pub jobs: Option<Burned>,
    /// Chains that recurred.
    pub chains: Option<Figures>,
}

/// Measures, and reports its progress to `note`.
///
/// # Errors
/// When something cannot be started, or no job starts for a minute.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Report, StartError> {
    let jobs = if settings.jobs > 0 { Some(burn(settings, &note).await?) } else { None };
    let chains = if settings.chains > 0 { Some(recur(settings, &note).await?) } else { None };
    Ok(Report { jobs, chains })
}

/// Publishes all jobs, then starts a worker and waits for the last job.
async fn burn(settings: &Settings, note: &impl Fn(&str)) -> Result<Burned, StartError> {
    let (ground, jobs) = (Ground::open(config(settings, "")?, 1).await?, settings.jobs);
    note(&format!("publishes {jobs} jobs"));
    let publisher = Publisher::new(ground.config(), ground.first().clone());
    let begin = Instant::now();
    let publish = |n: usize| {
        let publisher = publisher.clone();
        let job = NewJob { kind: KIND.into(), key: n.to_string(), payload: json!({}), ..NewJob::default() };
        async move { publisher.publish(job).await.map_err(|error| StartError::Setup(error.to_string())) }
    };
    stream::iter(0..jobs).map(publish).buffer_unordered(IN_FLIGHT).try_for_each(|_| async { Ok(()) }).await?;
    let published = begin.elapsed().as_secs_f64();
    note("burns them down");
    let mut side = Side::new(None);
    let (meter, started, progress) = (side.meter.clone(), Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
    let (count, tell) = (started.clone(), progress.clone());
    let starts = move |job: &Job| {
        meter.cycle(job.nominal);
        count.fetch_add(1, Ordering::Relaxed);
        tell.notify_one();
    };
    let begin = Instant::now();
    let all = async {
        let workers = ground.start(true, None, starts).await?;
        while started.load(Ordering::Relaxed) < jobs {
            timeout(PATIENCE, progress.notified()).await.map_err(|_| {
                let count = started.load(Ordering::Relaxed);
                StartError::Setup(format!("{count} of {jobs} jobs have started, and then no more"))
            })?;
        }
        workers.stop().await
    };
    let (_, ended) = side.measure_until(all).await;
    let seconds = begin.elapsed().as_secs_f64();
    ended?;
    ground.clear().await?;
    Ok(Burned {
        jobs,
        started: started.load(Ordering::Relaxed),
        published_per_s: round(jobs as f64 / published.max(0.001)),
        seconds: round(seconds),
        cpu_us: side.figures().cpu_us,
    })
}

/// Chains with their interval, and the chores of a worker.
async fn recur(settings: &Settings, note: &impl Fn(&str)) -> Result<Figures, StartError> {
    let every = format!("every = \"{}\"\n", short_duration(settings.every));
    let ground = Ground::open(config(settings, &every)?, 1).await?;
    let mut side = Side::new(None);
    let meter = side.meter.clone();
    let workers = ground.start(true, None, move |job: &Job| meter.cycle(job.nominal)).await?;
    ground.enroll(settings.chains, None, |_| {}).await?;
    sleep(settle(settings.every)).await;
    let (chains, length) = (settings.chains, short_duration(settings.length));
    note(&format!("runs {chains} chains for {length}"));
    side.measure(settings.length).await;
    workers.stop().await?;
    ground.clear().await?;
    Ok(side.figures())
}

fn config(settings: &Settings, recurs: &str) -> Result<Config, StartError> {
    let Settings { broker, ledger, concurrency, delays, .. } = settings;
    let rest = format!(
        "broker.delays = \"{delays}\"\n[queues.{QUEUE}]\nconcurrency = {concurrency}\nprefetch = {concurrency}\n\
         [kinds.{KIND}]\nqueue = \"{QUEUE}\"\n{recurs}"
    );
    ground::config(broker, ledger, &rest)
}
