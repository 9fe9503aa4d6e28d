//! A worker that starts when all chains are overdue and the broker has no message of them: the speed of catch-up.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_ledger::NewChain;
use roundelay_model::clock::short_duration;
use roundelay_model::job::Job;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{Instant, interval, timeout};

use super::chains::{KIND, QUEUE};
use super::gauge::{cpu_seconds, mib, resident};
use super::ground::{self, Ground};
use super::round;

/// How many chains are written in one transaction.
const BATCH: usize = 10_000;
/// For how long all chains have been due.
const OVERDUE: Duration = Duration::from_secs(3_600);
/// If no tick starts for this long, the engine counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often memory is read.
const LOOK: Duration = Duration::from_millis(100);

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// How many workers start at the same time.
    pub workers: usize,
    /// How many chains.
    pub chains: usize,
    /// `catch_up.spread`: the longest time over which they are spread.
    pub spread: Duration,
    /// How many messages are processed at the same time.
    pub concurrency: u16,
}

/// The figures.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How many chains were overdue.
    pub chains: usize,
    /// How many workers started.
    pub workers: usize,
    /// From the start of the workers to the first tick, in seconds.
    pub first_tick_s: f64,
    /// From the start of the workers until each chain had ticked, in seconds.
    pub steady_after_s: f64,
    /// Ticks per second: the mean of the seconds between the first and the last.
    pub mean: f64,
    /// Ticks in the busiest of these seconds.
    pub peak: u64,
    /// `peak` divided by `mean`.
    pub peak_to_mean: f64,
    /// The most memory of this process in MiB, and its memory before the workers started.
    pub resident_mib: Option<[f64; 2]>,
    /// CPU seconds of this process.
    pub cpu_s: f64,
    /// Transactions of the ledger.
    pub transactions: u64,
}

/// The number of ticks that began, by second.
struct Ticks {
    begin: Instant,
    inner: Mutex<Counted>,
    all: usize,
    progress: Notify,
    done: Notify,
}

#[derive(Default)]
struct Counted {
    first: Option<Duration>,
    seconds: Vec<u64>,
    count: usize,
}

impl Ticks {
    fn tick(&self) {
        let at = self.begin.elapsed();
        let mut counted = self.inner.lock();
        counted.first.get_or_insert(at);
        let second = usize::try_from(at.as_secs()).unwrap_or(usize::MAX - 1);
        if counted.seconds.len() <= second {
            counted.seconds.resize(second + 1, 0);
        }
        counted.seconds[second] += 1;
        counted.count += 1;
        self.progress.notify_one();
        if counted.count == self.all {
            self.done.notify_one();
        }
    }
}

/// Measures, and reports its progress to `note`.
///
/// # Errors
/// When something cannot be started, or no tick starts.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Report, StartError> {
    let ground = Ground::open(config(settings)?, settings.workers).await?;
    note(&format!("writes {} chains into the ledger, all of them overdue", settings.chains));
    fill(&ground, settings.chains).await?;
    let (memory, cpu, before) = (resident(), cpu_seconds(), ground.traffic());
    note(&format!("starts {} worker(s); spread over {} at most", settings.workers, short_duration(settings.spread)));
    let ticks = Arc::new(Ticks {
        begin: Instant::now(),
        inner: Mutex::default(),
        all: settings.chains,
        progress: Notify::new(),
        done: Notify::new(),
    });
    let counted = ticks.clone();
    let (workers, most) = tokio::join!(ground.start(true, None, move |_: &Job| counted.tick()), most_memory(&ticks),);
    let (workers, most) = (workers?, most?);
    let steady = ticks.begin.elapsed();
    let (cpu, traffic) = (cpu_seconds() - cpu, ground.traffic().since(before));
    workers.stop().await?;
    note("ends them");
    ground.clear().await?;
    let counted = ticks.inner.lock();
    let first = counted.first.unwrap_or_default();
    let (mean, peak) = evenness(&counted.seconds, first.as_secs() as usize);
    Ok(Report {
        chains: settings.chains,
        workers: settings.workers.max(1),
        first_tick_s: round(first.as_secs_f64()),
        steady_after_s: round(steady.as_secs_f64()),
        mean: round(mean),
        peak,
        peak_to_mean: (peak as f64 / mean.max(0.001) * 1_000.0).round() / 1_000.0,
        resident_mib: memory.zip(most).map(|(before, most)| [mib(most), mib(before)]),
        cpu_s: round(cpu),
        transactions: traffic.writes,
    })
}

/// Mean and peak of the seconds after `first` and before the last, which are whole; of all, if there are too few
/// (pure).
fn evenness(seconds: &[u64], first: usize) -> (f64, u64) {
    let whole = seconds.get(first + 1..seconds.len().saturating_sub(1)).filter(|whole| !whole.is_empty());
    let counted = whole.unwrap_or(seconds);
    let mean = counted.iter().sum::<u64>() as f64 / counted.len().max(1) as f64;
    (mean, counted.iter().copied().max().unwrap_or_default())
}

/// Waits until all have ticked; answers the most memory that was read meanwhile.
async fn most_memory(ticks: &Ticks) -> Result<Option<u64>, StartError> {
    let (mut most, mut look) = (None, interval(LOOK));
    let mut alive = Box::pin(timeout(PATIENCE, ticks.progress.notified()));
    loop {
        tokio::select! {
            () = ticks.done.notified() => return Ok(most.max(resident())),
            _ = look.tick() => most = most.max(resident()),
            told = &mut alive => {
                if told.is_err() {
                    let count = ticks.inner.lock().count;
                    return Err(StartError::Setup(format!("{count} of {} have ticked, and then no more", ticks.all)));
                }
                alive = Box::pin(timeout(PATIENCE, ticks.progress.notified()));
            }
        }
    }
}

async fn fill(ground: &Ground, chains: usize) -> Result<(), StartError> {
    let ledger = &ground.first().ledger;
    let (due, run) = (ledger.now() - OVERDUE, ground.first().entropy.token());
    for first in (0..chains).step_by(BATCH) {
        let chain = |n| NewChain {
            kind: KIND.into(),
            key: format!("{run}-{n}"),
            queue: QUEUE.into(),
            payload: "{}".into(),
            priority: None,
            nominal: due,
            due,
            watch_at: due,
            revive: false,
            once: false,
            manual: Default::default(),
            owner: None,
            schedule: None,
            keep_schedule: false,
            only_new: true,
            forms: Vec::new(),
            depth: 0,
        };
        ledger.enroll((first..(first + BATCH).min(chains)).map(chain).collect()).await?;
    }
    Ok(())
}

/// Each chain ticks once, and then sleeps until long after the measurement.
fn config(settings: &Settings) -> Result<Config, StartError> {
    let Settings { concurrency, spread, .. } = settings;
    let rest = format!(
        "[catch_up]\nspread = \"{}\"\n[queues.{QUEUE}]\nconcurrency = {concurrency}\nprefetch = {concurrency}\n\
         [kinds.{KIND}]\nqueue = \"{QUEUE}\"\nevery = \"20d\"\n",
        short_duration(*spread)
    );
    ground::config(&settings.broker, &settings.ledger, &rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_seconds_are_compared() {
        let table: [(&[u64], usize, (f64, u64)); 4] = [
            (&[0, 3, 10, 20, 30, 2], 1, (20.0, 30)),
            (&[0, 3, 10, 2], 1, (10.0, 10)),
            (&[5], 0, (5.0, 5)),
            (&[5, 7], 0, (6.0, 7)),
        ];
        for (seconds, first, expected) in table {
            assert_eq!(evenness(seconds, first), expected, "{seconds:?}");
        }
    }
}
