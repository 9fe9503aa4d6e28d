//! The gain from more queues: chains on one platform queue and on several, and on one rung and on several, in turn,
//! each beside the raw loop.
//!
//! An interval without jitter has one rung, on which all of its chains sleep. With jitter the interval has up to 16
//! rungs, of neighbouring delays. A quorum queue is one process of the broker, so several queues can do at the same
//! time what one does in turn, if there are cores for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use roundelay_broker::rabbit::certificates::Certificate;
use roundelay_broker::{
    Broker, BrokerError, Consumer, Depth, Destination, Message, PeekedMessage, PublishError, Rates, Sleeping,
};
use roundelay_config::Config;
use roundelay_engine::{StartError, topology_guard};
use roundelay_model::clock::short_duration;
use roundelay_model::job::Job;
use roundelay_model::ladder::jitter_rungs;
use roundelay_model::topology::Topology;
use serde::Serialize;
use tokio::time::sleep;

use super::chains::{Figures, KIND, QUEUE, Side, settle};
use super::ground::{self, Ground};
use super::raw::{Course, RawLoop};
use super::round;

/// The most platform queues that are compared.
pub const MAX_QUEUES: usize = super::raw::MAX_SHARDS;

/// The settings of the measurement: a cell for each number of queues with each jitter.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `embedded` or `amqp://…`.
    pub broker: String,
    /// `sqlite://…` or `postgres://…`.
    pub ledger: String,
    /// How many platform queues share the chains, each at most [`MAX_QUEUES`]. The first number is the baseline.
    pub queues: Vec<usize>,
    /// The jitter of the delay, to either side; the first one is the baseline.
    pub jitters: Vec<Duration>,
    /// How many chains: more than the delay allows for.
    pub chains: usize,
    /// The delay of each cycle.
    pub delay: Duration,
    /// How long engine and raw loop each run, for each cell.
    pub length: Duration,
    /// How many turns all take within that time.
    pub turns: u32,
    /// How many messages are processed at the same time, on all queues together.
    pub concurrency: u16,
}

/// Engine or raw loop of a cell.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Measured {
    /// The figures; `elsewhere` in `cpu_us` is the broker, if nothing else runs on the machine.
    #[serde(flatten)]
    pub figures: Figures,
    /// Cycles per second divided by those of the same side in the first cell.
    pub by_first: f64,
}

/// A number of queues with a jitter.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Cell {
    /// How many platform queues.
    pub queues: usize,
    /// The jitter, in milliseconds.
    pub jitter_ms: u64,
    /// How many rungs the interval has.
    pub rungs: usize,
    /// With engine and ledger.
    pub engine: Measured,
    /// The share of the engine's messages on the rung that had most of them.
    pub busiest_rung: f64,
    /// Without engine and ledger; each rung gets as many messages as the others.
    pub raw: Measured,
}

/// All cells, as printed.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Report {
    /// How many chains.
    pub chains: usize,
    /// The delay of each cycle, in milliseconds.
    pub delay_ms: u64,
    /// How long each side of each cell was measured, in seconds.
    pub seconds: f64,
    /// By jitter, and for each by number of queues, in the order of the settings.
    pub cells: Vec<Cell>,
}

/// A cell that is being measured.
struct Open {
    queues: usize,
    jitter: Duration,
    engine: Side,
    raw: Side,
    slept: Slept,
}

/// Measures, and reports its progress to `note`. Each turn goes through all cells, the engine before the raw loop, so
/// that noise on the machine affects all.
///
/// # Errors
/// When something cannot be started, or the delay is too short for the jitter.
pub async fn run(settings: &Settings, note: impl Fn(&str)) -> Result<Report, StartError> {
    let cells = settings.jitters.iter().flat_map(|jitter| settings.queues.iter().map(move |queues| (queues, jitter)));
    let mut cells: Vec<Open> = cells
        .map(|(queues, jitter)| Open {
            queues: (*queues).clamp(1, MAX_QUEUES),
            jitter: *jitter,
            engine: Side::new(None),
            raw: Side::new(None),
            slept: Slept::default(),
        })
        .collect();
    let turns = settings.turns.max(1);
    let length = settings.length / turns;
    for turn in 1..=turns {
        for cell in &mut cells {
            let place = format!("{} queues, jitter {}", cell.queues, short_duration(cell.jitter));
            let about = |side: &str| {
                note(&format!("turn {turn} of {turns}: {place}: {side}, {}", short_duration(length)));
            };
            about("the engine");
            run_engine(settings, cell, length).await?;
            about("the raw loop");
            let course = course(settings, cell);
            let raw_loop = RawLoop::start(&course, settings.chains, cell.raw.meter.clone()).await?;
            sleep(settle(settings.delay)).await;
            cell.raw.measure(length).await;
            raw_loop.stop().await?;
        }
    }
    let first = cells.first().map(|cell| [&cell.engine, &cell.raw].map(|side| side.figures().cycles_per_s));
    let [first_engine, first_raw] = first.unwrap_or_default();
    let measured = |side: &Side, first: f64| {
        let figures = side.figures();
        Measured { by_first: round(figures.cycles_per_s / first.max(0.001)), figures }
    };
    let told = cells.iter().map(|cell| Cell {
        queues: cell.queues,
        jitter_ms: whole_ms(cell.jitter),
        rungs: rungs(settings.delay, cell.jitter).len(),
        engine: measured(&cell.engine, first_engine),
        busiest_rung: round(cell.slept.busiest()),
        raw: measured(&cell.raw, first_raw),
    });
    Ok(Report {
        chains: settings.chains,
        delay_ms: whole_ms(settings.delay),
        seconds: round(length.as_secs_f64() * f64::from(turns)),
        cells: told.collect(),
    })
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The delays of an interval with jitter, each once: with a small jitter some of the points are the same millisecond.
fn rungs(delay: Duration, jitter: Duration) -> Vec<Duration> {
    jitter_rungs(delay, jitter).into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

fn course(settings: &Settings, cell: &Open) -> Course {
    Course {
        broker: settings.broker.clone(),
        workers: 1,
        queues: cell.queues,
        delay: settings.delay,
        rungs: rungs(settings.delay, cell.jitter),
        native: false,
        concurrency: settings.concurrency,
    }
}

/// Queues that share the concurrency, and a kind whose chains are on all of them.
fn config(settings: &Settings, queues: usize, jitter: Duration) -> Result<Config, StartError> {
    let Settings { broker, ledger, concurrency, .. } = settings;
    let room = (usize::from(*concurrency) / queues).max(1);
    let name = |n: usize| if n == 0 { QUEUE.to_owned() } else { format!("{QUEUE}-{n}") };
    // Natively there are no rungs to compare.
    let mut rest = "broker.delays = \"ladder\"\n".to_owned();
    rest.extend((0..queues).map(|n| format!("[queues.{}]\nconcurrency = {room}\nprefetch = {room}\n", name(n))));
    rest += &format!("[kinds.{KIND}]\nqueue = \"{QUEUE}\"\nevery = \"{}\"\n", short_duration(settings.delay));
    if !jitter.is_zero() {
        rest += &format!("jitter = \"{}\"\n", short_duration(jitter));
    }
    ground::config(broker, ledger, &rest)
}

async fn run_engine(settings: &Settings, cell: &mut Open, length: Duration) -> Result<(), StartError> {
    let cell_config = |queues: usize| config(settings, queues, cell.jitter);
    let (ours, widest, alone) = (cell_config(cell.queues)?, cell_config(MAX_QUEUES)?, cell_config(1)?);
    let slept = cell.slept.clone();
    let ground =
        Ground::open(ours.clone(), 1).await?.through(move |broker| Arc::new(Counting { broker, slept: slept.clone() }));
    let ledger = ground.first().ledger.clone();
    // A ledger on which other workers have agreed is refused, as by every benchmark. The cells differ in their queues,
    // and the next benchmark on this ledger has one again.
    topology_guard::check(&*ledger, &widest, true).await?;
    topology_guard::adopt(&*ledger, &ours).await?;
    let meter = cell.engine.meter.clone();
    let workers = ground.start(false, None, move |job: &Job| meter.cycle(job.nominal)).await?;
    ground.enroll(settings.chains, None, |_| {}).await?;
    sleep(settle(settings.delay)).await;
    cell.slept.count(true);
    cell.engine.measure(length).await;
    cell.slept.count(false);
    workers.stop().await?;
    topology_guard::adopt(&*ledger, &alone).await?;
    ground.clear().await
}

/// How many messages each rung got while they were counted.
#[derive(Clone, Default)]
struct Slept(Arc<Mutex<(bool, BTreeMap<Duration, u64>)>>);

impl Slept {
    /// Starts or stops counting.
    fn count(&self, so: bool) {
        self.0.lock().0 = so;
    }

    fn on(&self, rung: Duration) {
        let (counts, rungs) = &mut *self.0.lock();
        if *counts {
            *rungs.entry(rung).or_default() += 1;
        }
    }

    /// The share of the rung that had most, from 0 to 1.
    fn busiest(&self) -> f64 {
        let (_, rungs) = &*self.0.lock();
        let all: u64 = rungs.values().sum();
        rungs.values().max().map_or(0.0, |most| *most as f64 / all as f64)
    }
}

/// A broker that counts the messages to its rungs.
struct Counting {
    broker: Arc<dyn Broker>,
    slept: Slept,
}

#[async_trait]
impl Broker for Counting {
    fn keeps_messages(&self) -> bool {
        self.broker.keeps_messages()
    }

    fn sleeping(&self) -> &Sleeping {
        self.broker.sleeping()
    }

    fn parks(&self) -> Option<bool> {
        self.broker.parks()
    }

    fn losses(&self) -> u64 {
        self.broker.losses()
    }

    async fn apply(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.broker.apply(topology).await
    }

    async fn verify(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.broker.verify(topology).await
    }

    async fn remove(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.broker.remove(topology).await
    }

    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        if let Destination::Rung { rung, .. } = message.to {
            self.slept.on(rung);
        }
        self.broker.publish(message).await
    }

    async fn consume(&self, queue: &str, prefetch: u16) -> Result<Consumer, BrokerError> {
        self.broker.consume(queue, prefetch).await
    }

    async fn depth(&self, queue: &str) -> Result<Depth, BrokerError> {
        self.broker.depth(queue).await
    }

    async fn peek(&self, queue: &str, most: usize) -> Result<Vec<PeekedMessage>, BrokerError> {
        self.broker.peek(queue, most).await
    }

    async fn rates(&self) -> Result<BTreeMap<String, Rates>, String> {
        self.broker.rates().await
    }

    fn certificates(&self) -> Vec<Certificate> {
        self.broker.certificates()
    }

    fn unavailable(&self) -> Option<String> {
        self.broker.unavailable()
    }

    async fn close(&self) {
        self.broker.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_jitter_has_each_of_its_rungs_once() {
        let ms = Duration::from_millis;
        assert_eq!(rungs(ms(1_000), Duration::ZERO), [ms(1_000)]);
        let few = rungs(ms(1_000), ms(8));
        assert_eq!(few.len(), 13, "{few:?}");
        assert!(few.iter().all(|rung| (ms(992)..=ms(1_008)).contains(rung)), "{few:?}");
        assert_eq!(rungs(ms(60_000), ms(8_000)).len(), 16);
    }

    #[test]
    fn the_busiest_rung_is_judged_by_what_was_counted() {
        let (slept, ms) = (Slept::default(), Duration::from_millis);
        slept.on(ms(1));
        assert_eq!(slept.busiest(), 0.0);
        slept.count(true);
        [1, 2, 2, 2].into_iter().for_each(|rung| slept.on(ms(rung)));
        slept.count(false);
        slept.on(ms(1));
        assert_eq!(slept.busiest(), 0.75);
    }
}
