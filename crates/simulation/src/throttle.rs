//! A throttle that workers share, over days of virtual time.
//!
//! The engines, the embedded broker and the ledger's SQL are the real ones. There is always more to do than the
//! throttle allows. Now and then something goes wrong: a worker is killed or frozen, the ledger is away or
//! slow, answers of it are lost, its clock is set. Every window of the throttle's length is judged, by when
//! handlers started; how much of it was used counts while nothing is wrong, and has not been for a while.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_broker::embedded::EmbeddedConnection;
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_engine::enroll::{Enroller, Entity};
use roundelay_engine::telemetry::SlotCounts;
use roundelay_handler::Context;
use roundelay_model::clock::{Entropy, Time, short_duration};
use roundelay_model::job::Job;
use roundelay_model::outcome::Outcome;
use roundelay_model::pacing::windows;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::ground::Ground;
use super::observe::Violation;
use super::worker::Process;

const KIND: &str = "call";
const QUEUE: &str = "calls";
const THROTTLE: &str = "upstream";
/// How long chains sleep.
const DELAY: Duration = Duration::from_secs(60);
/// Chains for each worker and for each start that is allowed, so that there is always more to do.
const PER_WORKER: usize = 6;
const PER_START: usize = 12;
/// Between two faults, at least and at most.
const QUIET: (Duration, Duration) = (Duration::from_secs(15 * 60), Duration::from_secs(45 * 60));
/// A fault that lasts goes on for no longer.
const MAX_FAULT: Duration = Duration::from_secs(4 * 60);
/// How long the effects of a fault may last after the fault has ended: leases end, and backoffs that have grown.
const RECOVERY: Duration = Duration::from_secs(3 * 60);

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Starts that the throttle allows in each window.
    pub allow: u32,
    /// The window.
    pub per: Duration,
    /// How many workers share it.
    pub workers: usize,
    /// For how long.
    pub length: Duration,
    /// What decides all dice.
    pub seed: u64,
}

/// What it came to. The same settings come to the same.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What decided all dice.
    pub seed: u64,
    /// Workers.
    pub workers: usize,
    /// How much time passed, in days.
    pub days: f64,
    /// Handlers that started.
    pub starts: usize,
    /// Things that went wrong.
    pub faults: usize,
    /// The most starts in any window, wherever it begins.
    pub most: usize,
    /// Starts that were one too many in the window that ends with them.
    pub over: usize,
    /// Starts with a slot that a worker's own gate refused.
    pub refused: u64,
    /// How much was used of what is allowed while nothing was wrong, in percent; `None` when something always was.
    pub use_percent: Option<f64>,
    /// How many windows that is over.
    pub calm_windows: usize,
    /// What else must never happen, and did.
    pub violations: Vec<String>,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(usize),
    Freeze(usize),
    LedgerAway,
    LedgerSlow { millis: u64 },
    AnswersLost { writes: usize },
    Clock { millis: i64 },
}

impl Fault {
    fn roll(dice: &Entropy, workers: usize) -> Self {
        let worker = dice.below(workers);
        match dice.below(10) {
            0..=2 => Self::Kill(worker),
            3..=4 => Self::Freeze(worker),
            5 => Self::LedgerAway,
            6 => Self::LedgerSlow { millis: 50 + dice.below(3_000) as u64 },
            7 => Self::AnswersLost { writes: 1 + dice.below(10) },
            _ => {
                let size = [2_000, 15_000, 90_000, 3_600_000][dice.below(4)];
                Self::Clock { millis: if dice.below(2) == 0 { size } else { -size.min(90_000) } }
            }
        }
    }
}

/// A worker's process.
struct Worker {
    process: Arc<Process>,
    connection: Arc<EmbeddedConnection>,
    engine: JoinHandle<()>,
}

struct World {
    ground: Ground,
    begun: Instant,
    starts: Arc<Mutex<Vec<i64>>>,
    workers: Vec<Worker>,
    /// What became of the throttle's slots in each process.
    slots: Vec<SlotCounts>,
    runs: usize,
}

/// Simulates.
///
/// # Errors
/// When the engine does not start, or ends by itself.
pub fn run(settings: &Settings) -> Result<Report, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| StartError::Setup(format!("a runtime cannot be had: {error}")))?;
    runtime.block_on(play(settings))
}

async fn play(settings: &Settings) -> Result<Report, StartError> {
    let mut world = World::new(settings).await?;
    for worker in 0..settings.workers {
        let worker = world.begin(worker);
        world.workers.push(worker);
    }
    let (end, mut wrong) = (world.begun + settings.length, vec![(Duration::ZERO, RECOVERY)]);
    let mut faults = 0;
    loop {
        let next = Instant::now() + world.ground.dice.between(QUIET.0, QUIET.1);
        sleep_until(next.min(end)).await;
        if next >= end {
            break;
        }
        let from = world.begun.elapsed();
        world.fault(Fault::roll(&world.ground.dice, settings.workers)).await;
        faults += 1;
        wrong.push((from, world.begun.elapsed() + RECOVERY));
    }
    let starts = std::mem::take(&mut *world.starts.lock());
    let calm = calm(settings, &wrong);
    let judged = windows::check(&starts, settings.allow as usize, settings.per);
    let used = windows::used(&starts, 0, settings.allow as usize, settings.per, &calm);
    Ok(Report {
        seed: settings.seed,
        workers: settings.workers,
        days: settings.length.as_secs_f64() / 86_400.0,
        starts: starts.len(),
        faults,
        most: judged.most,
        over: judged.over,
        refused: world.slots.iter().map(|counts| counts.refused.get()).sum(),
        use_percent: used.map(|used| (used * 10_000.0).round() / 100.0),
        calm_windows: calm.iter().filter(|calm| **calm).count(),
        violations: world.ground.observer.violations().iter().map(Violation::to_string).collect(),
    })
}

/// Which windows, one after the other from the beginning, have no part of a time when something was wrong.
fn calm(settings: &Settings, wrong: &[(Duration, Duration)]) -> Vec<bool> {
    let count = settings.length.as_nanos() / settings.per.as_nanos().max(1);
    let windows = (0..u32::try_from(count).unwrap_or(u32::MAX)).map(|n| (settings.per * n, settings.per * (n + 1)));
    windows.map(|(from, to)| !wrong.iter().any(|(begun, over)| *begun < to && *over > from)).collect()
}

impl World {
    async fn new(settings: &Settings) -> Result<Self, StartError> {
        let text = format!(
            "broker.url = \"amqp://simulated\"\nledger.url = \"sqlite://:memory:\"\nledger.history = \"1h\"\n\
             [worker]\nlease = \"30s\"\n[throttles.{THROTTLE}]\nallow = {}\nper = \"{}\"\n\
             [queues.{QUEUE}]\nconcurrency = 2\nprefetch = 2\nthrottle = \"{THROTTLE}\"\n\
             [kinds.{KIND}]\nqueue = \"{QUEUE}\"\nevery = \"{}\"\ntimeout = \"1m\"\n",
            settings.allow,
            short_duration(settings.per),
            short_duration(DELAY),
        );
        let config = Config::parse(&text, "the simulation's configuration", [])
            .map_err(|error| StartError::Setup(error.to_string()))?;
        let ground = Ground::new(config, settings.seed, Time::from_millis(1_800_000_000_000)).await?;
        let connections = ground.connections(Entropy::seeded(settings.seed ^ 0x0e11));
        let mut enroller = Enroller::new(&ground.config, connections, KIND, Some(Duration::ZERO), true)?;
        let per_minute = settings.allow as f64 * DELAY.as_secs_f64() / settings.per.as_secs_f64();
        let chains = PER_WORKER * settings.workers + (PER_START as f64 * per_minute).ceil() as usize;
        enroller.enroll((0..chains).map(|n| Entity::new(n.to_string(), QUEUE, "{}")).collect()).await?;
        Ok(Self {
            ground,
            begun: Instant::now(),
            starts: Arc::default(),
            workers: Vec::new(),
            slots: Vec::new(),
            runs: 0,
        })
    }

    /// Starts a process for this worker.
    fn begin(&mut self, worker: usize) -> Worker {
        self.runs += 1;
        let (engine, process, connection) = self.ground.worker(worker, self.runs);
        let (starts, begun, dice) = (self.starts.clone(), self.begun, self.ground.dice.clone());
        let engine = engine.handler(KIND, move |_: Job, _: Context| {
            let at = i64::try_from(begun.elapsed().as_micros()).unwrap_or(i64::MAX);
            starts.lock().push(at);
            let takes = Duration::from_millis(dice.below(5_000) as u64);
            async move {
                sleep(takes).await;
                Outcome::Done
            }
        });
        self.slots.push(engine.telemetry().slots(THROTTLE));
        let (run, alive, observer) =
            (engine.run(CancellationToken::new()), process.clone(), self.ground.observer.clone());
        let life = async move {
            let ended = run.await;
            if alive.is_alive() {
                observer.violated("engine", format!("worker {worker} ended by itself: {ended:?}"));
            }
        };
        let engine = tokio::spawn(process.hold(Box::pin(life)));
        Worker { process, connection, engine }
    }

    /// Lets something go wrong, until it is over.
    async fn fault(&mut self, fault: Fault) {
        let length = self.ground.dice.between(Duration::from_secs(1), MAX_FAULT);
        match fault {
            Fault::Kill(worker) => {
                let old = &self.workers[worker];
                old.process.kill();
                old.connection.die();
                old.engine.abort();
                sleep(length).await;
                self.workers[worker] = self.begin(worker);
            }
            Fault::Freeze(worker) => {
                self.workers[worker].process.freeze();
                sleep(length).await;
                self.workers[worker].process.thaw();
            }
            Fault::LedgerAway => {
                self.ground.fault_state.set_down(true);
                sleep(length).await;
                self.ground.fault_state.set_down(false);
            }
            Fault::LedgerSlow { millis } => {
                self.ground.fault_state.set_slow(millis);
                sleep(length).await;
                self.ground.fault_state.set_slow(0);
            }
            Fault::AnswersLost { writes } => self.ground.fault_state.hide(writes),
            Fault::Clock { millis } => {
                self.ground.clock.set_forward(millis);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_calm_if_no_part_of_it_has_seen_anything_go_wrong() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let settings = Settings { allow: 5, per: minutes(1), workers: 1, length: minutes(6), seed: 0 };
        let wrong = [(Duration::ZERO, minutes(1)), (minutes(2) + minutes(1) / 2, minutes(4))];
        assert_eq!(calm(&settings, &wrong), [false, true, false, false, true, true]);
    }
}
