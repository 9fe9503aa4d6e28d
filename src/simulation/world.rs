//! One run of a simulation: workers, broker and ledger in virtual time, a storm of faults, and the
//! calm after it, in which everything must come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::ledger::SimulatedLedger;
use super::observe::{Observer, Violation};
use super::plan::{Fault, Plan, Planned, STORM, Wrong};
use super::worker::{Killed, Process, Traps, Watcher};
use crate::broker::embedded::{EmbeddedBroker, EmbeddedConnection, HeldState, PublishFault};
use crate::broker::topology::Names;
use crate::broker::{Broker, Destination, Message};
use crate::clock::{Clock, Entropy, Time};
use crate::config::{Config, LedgerUrl};
use crate::engine::Dispatch;
use crate::engine::enroll::{Enroller, Entity, RunOnce};
use crate::engine::life::Point;
use crate::engine::{Connections, Engine, StartError};
use crate::job::{Envelope, Job};
use crate::ledger::sqlite::SqliteLedger;
use crate::ledger::{ChainState, FailedItem, Ledger, LedgerError, Order, Which};
use crate::outcome::{NewJob, Outcome, Yield};

/// Workers in a run.
pub const WORKERS: usize = 3;
/// Queues that a fault can name; which they are depends on what holds messages then.
pub const QUEUES: usize = 8;

/// How long nothing goes wrong at the end.
const CALM: Duration = Duration::from_secs(240);
/// By then a chain that is due must have been claimed, once nothing goes wrong any more: R of I2.
const RECOVERY: Duration = Duration::from_secs(60);
/// How often the world is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// From here on the calm is steady: everything is on time, with one message for each chain.
const STEADY: Duration = Duration::from_secs(150);
/// How late a run may start then, though unusable messages come in.
const ON_TIME: Duration = Duration::from_secs(3);
/// So many messages of one chain no storm may bring about.
const MOST_MESSAGES: usize = 6;
/// Copies of the ledger, for a restore, are made this often.
const COPIES: Duration = Duration::from_secs(10);

const CONFIG: &str = r#"
broker.url = "amqp://simulated"
ledger.url = "sqlite://:memory:"
[worker]
lease = "9s"
grace = "20s"
[catch_up]
every = "5s"
slack = "10s"
spread = "5s"
[queues.alpha]
concurrency = 2
prefetch = 6
[queues.beta]
concurrency = 1
prefetch = 3
[queues.gamma]
concurrency = 6
[kinds.quick]
every = "20s"
jitter = "5s"
queue = "alpha"
timeout = "10s"
retry = { attempts = 3, backoff = ["1s", "3s"] }
[kinds.steady]
every = "45s"
queue = "beta"
timeout = "10s"
takeover = "redelivery"
retry = { attempts = 2, backoff = ["2s"] }
[kinds.long]
every = "30s"
queue = "gamma"
timeout = "60s"
retry = { attempts = 2, backoff = ["7s"] }
[kinds.job]
queue = "alpha"
timeout = "10s"
retry = { attempts = 3, backoff = ["1s", "3s"] }
"#;

/// The chains of a run, by kind, queue and key.
const CHAINS: [(&str, &str, &str); 12] = [
    ("quick", "alpha", "a"),
    ("quick", "alpha", "b"),
    ("quick", "alpha", "c"),
    ("quick", "alpha", "d"),
    ("quick", "alpha", "e"),
    ("steady", "beta", "f"),
    ("steady", "beta", "g"),
    ("steady", "beta", "h"),
    ("steady", "beta", "i"),
    ("long", "gamma", "j"),
    ("long", "gamma", "k"),
    ("long", "gamma", "l"),
];

/// Chains that a fault can name.
pub const CHAIN_COUNT: usize = CHAINS.len();

/// What lies between everybody and the ledger.
pub struct Weather {
    down: AtomicUsize,
    /// In milliseconds; zero for the ordinary.
    slow: AtomicU64,
    /// Writes whose answer does not arrive.
    hidden: AtomicUsize,
    dice: Entropy,
}

impl Weather {
    /// Whether nothing reaches the ledger.
    pub fn ledger_down(&self) -> bool {
        self.down.load(Ordering::Relaxed) > 0
    }

    /// Whether the answer to a write is lost.
    pub fn hide_answer(&self) -> bool {
        self.hidden.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// How long one way takes: mostly nothing, so that much happens at the same time.
    pub fn latency(&self) -> Duration {
        match self.slow.load(Ordering::Relaxed) {
            0 if self.dice.below(4) > 0 => Duration::ZERO,
            0 => Duration::from_millis(self.dice.below(8) as u64),
            slow => Duration::from_millis(slow / 2),
        }
    }
}

/// What one run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// Ticks that ended.
    pub ticks: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// How often somebody was killed at each point.
    pub killed_at: BTreeMap<Point, u64>,
    /// How often each point was reached.
    pub reached: BTreeMap<Point, u64>,
    /// How often there were so many messages of one chain.
    pub messages: BTreeMap<usize, u64>,
    /// How much time passed in the simulation.
    pub length: Duration,
    /// Equal only if the same things happened.
    pub trace: u64,
    /// What happened, if it was to be kept.
    pub log: Vec<String>,
}

/// Plays a plan; the same seed and plan always come to the same.
pub fn play(seed: u64, plan: &Plan, log: bool) -> Outcomes {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without input and output needs nothing of the system");
    runtime.block_on(async {
        match World::new(seed, plan, log) {
            Ok(world) => world.play().await,
            Err(error) => panic!("the simulated world cannot begin: {error}"),
        }
    })
}

/// Something that happens at its time.
enum Event {
    Fault(usize),
    Start { worker: usize },
    Thaw(Arc<Process>),
    BrokerUp,
    BrokerTakes,
    LedgerUp,
    LedgerFast,
    Declare,
    Resume { chain: usize },
    Revive { chain: usize },
    Configure { chain: usize, variant: usize },
    Publish,
    Copy,
    Look,
    Heal,
    Poison,
}

struct Worker {
    runs: usize,
    live: Option<Live>,
}

struct Live {
    process: Arc<Process>,
    connection: Arc<EmbeddedConnection>,
    stop: CancellationToken,
    engine: JoinHandle<()>,
}

struct World {
    seed: u64,
    plan: Plan,
    begun: Instant,
    config: Config,
    clock: Clock,
    dice: Entropy,
    names: Names,
    broker: EmbeddedBroker,
    ledger: Arc<SqliteLedger>,
    copies: Vec<(Instant, Arc<SqliteLedger>)>,
    weather: Arc<Weather>,
    wrong: Arc<Mutex<Vec<Wrong>>>,
    /// The broker refuses everything.
    full: Arc<AtomicBool>,
    observer: Arc<Observer>,
    traps: Arc<Traps>,
    workers: Vec<Worker>,
    killed: (mpsc::UnboundedSender<Killed>, mpsc::UnboundedReceiver<Killed>),
    events: BTreeMap<(Instant, u64), Event>,
    numbers: u64,
    faults: u64,
    /// Messages that faults have doubled.
    doubled: usize,
    published: u64,
    /// Bodies that must be found in quarantine.
    poison: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    messages: BTreeMap<usize, u64>,
    /// Nothing goes wrong any more.
    calm: Arc<AtomicBool>,
    healed: Option<Instant>,
    /// The ledger's time then.
    healed_at: Time,
    /// Grows with every restore.
    generation: Arc<AtomicU64>,
    operator: Arc<Process>,
    /// An operator does one thing after the other with a chain.
    turns: Vec<Arc<tokio::sync::Mutex<()>>>,
}

impl World {
    fn new(seed: u64, plan: &Plan, log: bool) -> Result<Self, String> {
        let config = Config::parse(CONFIG, "the simulation's configuration", []).map_err(|e| e.to_string())?;
        let clock = Clock::starting_at(Time::from_millis(1_800_000_000_000));
        let dice = Entropy::seeded(seed);
        let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &dice).map_err(|e| e.to_string())?;
        let names = Names::new(&config.broker.prefix);
        let weather = Weather {
            down: AtomicUsize::new(0),
            slow: AtomicU64::new(0),
            hidden: AtomicUsize::new(0),
            dice: Entropy::seeded(seed ^ 0x1a7e),
        };
        let broker = EmbeddedBroker::new(names.clone());
        let broker_copy = broker.clone();
        let wrong = Arc::new(Mutex::new(Vec::new()));
        let full = Arc::new(AtomicBool::new(false));
        let (queue, rolls, refuses) = (wrong.clone(), Entropy::seeded(seed ^ 0x510), full.clone());
        broker.on_publish(move |_| {
            if refuses.load(Ordering::Relaxed) {
                return PublishFault::Refused;
            }
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match next {
                None if rolls.below(8) == 0 => PublishFault::Slow(Duration::from_millis(rolls.below(20) as u64)),
                None => PublishFault::None,
                Some(Wrong::UnknownButKept) => PublishFault::UnknownButKept,
                Some(Wrong::UnknownAndLost) => PublishFault::UnknownAndLost,
                Some(Wrong::Refused) => PublishFault::Refused,
                Some(Wrong::Returned) => PublishFault::Returned,
                Some(Wrong::Twice) => PublishFault::Twice,
                Some(Wrong::Slow) => PublishFault::Slow(Duration::from_millis(500 + rolls.below(20_000) as u64)),
            }
        });
        Ok(Self {
            seed,
            plan: plan.clone(),
            begun: Instant::now(),
            clock,
            dice,
            names,
            broker,
            ledger: Arc::new(ledger),
            copies: Vec::new(),
            weather: Arc::new(weather),
            wrong,
            full,
            observer: Observer::new(log, lossless(plan).then(|| broker_copy.clone()), touched(plan)),
            traps: Arc::default(),
            workers: (0..WORKERS).map(|_| Worker { runs: 0, live: None }).collect(),
            killed: mpsc::unbounded_channel(),
            events: BTreeMap::new(),
            numbers: 0,
            faults: 0,
            doubled: 0,
            published: 0,
            poison: Arc::default(),
            messages: BTreeMap::new(),
            calm: Arc::default(),
            healed: None,
            healed_at: Time::default(),
            generation: Arc::default(),
            operator: Process::new(usize::MAX, 0),
            turns: (0..CHAIN_COUNT).map(|_| Arc::default()).collect(),
            config,
        })
    }

    async fn play(mut self) -> Outcomes {
        if let Err(error) = self.broker.apply(&self.config.topology()).await {
            panic!("the simulated topology cannot be declared: {error}");
        }
        self.enroll_all().await;
        (0..WORKERS).for_each(|worker| self.start(worker));
        let begun = self.begun;
        for (n, planned) in self.plan.faults.clone().iter().enumerate() {
            self.at(begun + planned.at, Event::Fault(n));
        }
        self.at(begun + Duration::from_secs(3), Event::Publish);
        self.at(begun + LOOK, Event::Look);
        self.at(begun + STORM, Event::Heal);
        if self.plan.faults.iter().any(|planned| matches!(planned.fault, Fault::Restore { .. })) {
            self.at(begun, Event::Copy);
        }
        let end = begun + STORM + CALM;
        loop {
            let next = self.events.first_key_value().map_or(end, |(key, _)| key.0);
            tokio::select! {
                biased;
                Some(killed) = self.killed.1.recv() => self.bury(&killed),
                () = sleep_until(next.min(end)) => {
                    if next >= end {
                        break;
                    }
                    let Some((_, event)) = self.events.pop_first() else { break };
                    self.happen(event).await;
                }
            }
        }
        self.judge().await;
        Outcomes {
            violations: self.observer.violations(),
            ticks: self.observer.ticks(),
            faults: self.faults,
            killed_at: self.traps.sprung(),
            reached: self.traps.reached(),
            messages: std::mem::take(&mut self.messages),
            length: STORM + CALM,
            trace: self.observer.trace(),
            log: self.observer.log(),
        }
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.numbers += 1;
        self.events.insert((at, self.numbers), event);
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.at(Instant::now() + delay, event);
    }

    // ---- Workers ----

    fn connections(&self, process: &Arc<Process>) -> (Arc<EmbeddedConnection>, Connections) {
        let connection = Arc::new(self.broker.connect());
        connection.mandatory(!mutant!(NoMandatory));
        let ledger = SimulatedLedger {
            inner: self.ledger.clone(),
            weather: self.weather.clone(),
            observer: self.observer.clone(),
            process: process.clone(),
        };
        let connections = Connections {
            broker: connection.clone(),
            ledger: Arc::new(ledger),
            clock: self.clock.clone(),
            entropy: Entropy::seeded(self.dice.below(usize::MAX) as u64),
        };
        (connection, connections)
    }

    fn start(&mut self, worker: usize) {
        if self.workers[worker].live.is_some() {
            return;
        }
        self.workers[worker].runs += 1;
        let process = Process::new(worker, self.workers[worker].runs);
        self.observer.note(|| format!("worker {worker}.{} starts", process.run));
        let (connection, connections) = self.connections(&process);
        let watcher = Watcher { process: process.clone(), traps: self.traps.clone(), killed: self.killed.0.clone() };
        let mut engine = Engine::new(self.config.clone()).connections(connections).probe(Arc::new(watcher));
        for (name, kind) in &self.config.kinds {
            let (observer, process, seed) = (self.observer.clone(), process.clone(), self.seed);
            let lenient = kind.takeover == crate::config::Takeover::Redelivery;
            let attempts = kind.retry.attempts;
            let ledger = self.ledger.clone();
            engine = engine.handler(name, move |job: Job| {
                let (observer, process, ledger) = (observer.clone(), process.clone(), ledger.clone());
                async move {
                    let once = once(&ledger, &job).await;
                    let run = observer.started(&process, &job, once, lenient);
                    let outcome = handle(seed, &job, run.number).await;
                    observer.ended(&job, &outcome, job.attempt >= attempts);
                    drop(run);
                    outcome
                }
            });
        }
        let stop = CancellationToken::new();
        let (run, token, observer) = (engine.run(stop.clone()), stop.clone(), self.observer.clone());
        let (starting, calm) = (process.clone(), self.calm.clone());
        let killed = self.killed.0.clone();
        let life = async move {
            let ended = run.await;
            let (worker, run) = (starting.worker, starting.run);
            match ended {
                Ok(()) if token.is_cancelled() => {}
                // A worker that cannot start is started again by its supervisor.
                Err(error @ (StartError::Ledger(_) | StartError::Broker(_))) if !calm.load(Ordering::Relaxed) => {
                    observer.note(|| format!("worker {worker}.{run} cannot start: {error}"));
                }
                other => observer.violated("engine", format!("worker {worker}.{run} ended by itself: {other:?}")),
            }
            starting.kill();
            let _ = killed.send(Killed { worker, run, fault: usize::MAX });
        };
        let engine = tokio::spawn(process.hold(Box::pin(life)));
        self.workers[worker].live = Some(Live { process, connection, stop, engine });
    }

    fn kill(&mut self, worker: usize) {
        let Some(live) = self.workers[worker].live.take() else { return };
        self.observer.note(|| format!("worker {worker}.{} is killed", live.process.run));
        live.process.kill();
        live.connection.die();
        live.engine.abort();
    }

    /// Ends what is left of a worker that was killed at a crash point, or has ended.
    fn bury(&mut self, killed: &Killed) {
        let current = self.workers[killed.worker].live.as_ref().map(|live| live.process.run);
        if current != Some(killed.run) {
            return;
        }
        self.kill(killed.worker);
        let away = match self.plan.faults.get(killed.fault).map(|planned| planned.fault) {
            Some(Fault::KillAt { away, .. }) => away,
            _ => Duration::from_secs(1),
        };
        let away = if self.healed.is_some() { Duration::from_millis(100) } else { away };
        self.after(away, Event::Start { worker: killed.worker });
    }

    // ---- What happens ----

    async fn happen(&mut self, event: Event) {
        match event {
            Event::Fault(n) if self.healed.is_none() => {
                let planned = self.plan.faults[n];
                self.faults += 1;
                self.observer.note(|| format!("FAULT {n}: {}", planned.fault));
                self.fault(n, planned).await;
            }
            Event::Fault(_) => {}
            Event::Start { worker } => self.start(worker),
            Event::Thaw(process) => process.thaw(),
            Event::BrokerUp => self.broker.start(),
            Event::BrokerTakes => self.full.store(false, Ordering::Relaxed),
            Event::LedgerUp => {
                let _ = self.weather.down.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            }
            Event::LedgerFast => self.weather.slow.store(0, Ordering::Relaxed),
            Event::Declare => {
                // The operator tries again while the broker is away.
                if self.broker.apply(&self.config.topology()).await.is_err() {
                    self.after(Duration::from_secs(2), Event::Declare);
                }
            }
            Event::Resume { chain } => self.order(chain, Order::Resume),
            Event::Revive { chain } => self.enroll(chain, 0, true),
            Event::Configure { chain, variant } => self.enroll(chain, variant, false),
            Event::Publish => {
                self.publish();
                if self.healed.is_none_or(|healed| healed.elapsed() < CALM / 2) {
                    let pause = Duration::from_millis(2_000 + self.dice.below(9_000) as u64);
                    self.after(pause, Event::Publish);
                }
            }
            Event::Copy => {
                if let Ok(copy) = self.ledger.copy(&self.dice) {
                    self.copies.push((Instant::now(), Arc::new(copy)));
                }
                if self.healed.is_none() {
                    self.after(COPIES, Event::Copy);
                }
            }
            Event::Look => {
                self.look().await;
                self.after(LOOK, Event::Look);
            }
            Event::Heal => self.heal().await,
            Event::Poison => (0..3).for_each(|queue| self.poison(["alpha", "beta", "gamma"][queue].into(), 20)),
        }
    }

    async fn fault(&mut self, n: usize, planned: Planned) {
        match planned.fault {
            Fault::Kill { worker, away } => {
                self.kill(worker);
                self.after(away, Event::Start { worker });
            }
            Fault::KillAt { point, nth, .. } => self.traps.arm(n, point, nth),
            Fault::Freeze { worker, length } => {
                if let Some(live) = &self.workers[worker].live {
                    live.process.freeze();
                    let process = live.process.clone();
                    self.after(length, Event::Thaw(process));
                }
            }
            Fault::Restart { worker } => {
                if let Some(live) = &self.workers[worker].live {
                    live.stop.cancel();
                }
            }
            Fault::Cut { worker, away } => {
                if let Some(live) = &self.workers[worker].live {
                    live.connection.cut(away);
                }
            }
            Fault::BrokerDown { length } => {
                self.broker.stop();
                self.after(length, Event::BrokerUp);
            }
            Fault::BrokerFull { length } => {
                self.full.store(true, Ordering::Relaxed);
                self.after(length, Event::BrokerTakes);
            }
            Fault::LedgerDown { length } => {
                self.weather.down.fetch_add(1, Ordering::Relaxed);
                self.after(length, Event::LedgerUp);
            }
            Fault::LedgerUnknown { writes } => {
                self.weather.hidden.fetch_add(writes, Ordering::Relaxed);
            }
            Fault::LedgerSlow { length, latency } => {
                self.weather.slow.store(latency.as_millis() as u64, Ordering::Relaxed);
                self.after(length, Event::LedgerFast);
            }
            Fault::Publish { how, count } => {
                // What arrived unheard is sent again, and is there twice, too.
                if matches!(how, Wrong::Twice | Wrong::UnknownButKept | Wrong::Slow) {
                    self.doubled += count;
                }
                let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                wrong.extend(std::iter::repeat_n(how, count));
            }
            Fault::Purge { queue } => {
                if let Some(queue) = self.queue(queue) {
                    self.broker.drain(&queue).iter().for_each(|body| self.thrown_away(body));
                }
            }
            Fault::Lose { queue } => {
                if let Some(body) = self.queue(queue).and_then(|queue| self.broker.lose(&queue, 0)) {
                    self.thrown_away(&body);
                }
            }
            Fault::Duplicate { queue } => {
                if let Some(queue) = self.queue(queue) {
                    self.broker.duplicate(&queue, 0);
                    self.doubled += 1;
                }
            }
            Fault::Reorder { queue } => {
                if let Some(queue) = self.queue(queue) {
                    self.broker.reorder(&queue, self.seed);
                }
            }
            Fault::DeleteQueue { queue, away } => {
                if let Some(queue) = self.queue(queue) {
                    for held in self.broker.census().iter().filter(|held| held.queue == queue) {
                        self.thrown_away(&held.body);
                    }
                    self.broker.delete_queue(&queue);
                    self.after(away, Event::Declare);
                }
            }
            Fault::Clock { millis } => {
                self.clock.set_forward(millis);
                // Leases that the jump has ended may be taken over while their holders live.
                self.observer.excuse_running();
            }
            Fault::Poison { queue, count } => {
                let queue = ["alpha", "beta", "gamma"][queue % 3];
                self.poison(queue.into(), count);
            }
            Fault::Pause { chain, length } => {
                self.order(chain, Order::Pause);
                self.after(length, Event::Resume { chain });
            }
            Fault::Retire { chain, length } => {
                self.order(chain, Order::Retire);
                // Its roster is enrolled once more meanwhile, which must not bring it back.
                self.after(length / 2, Event::Configure { chain, variant: 0 });
                self.after(length, Event::Revive { chain });
            }
            Fault::Configure { chain } => self.enroll(chain, self.dice.below(3), false),
            Fault::RunOnce { chain } => self.run_once(chain),
            Fault::Restore { age } => self.restore(age).await,
        }
    }

    /// A queue that holds messages, for a fault that names the `n`-th; not where a person looks.
    fn queue(&self, n: usize) -> Option<String> {
        let kept = [self.names.quarantine(), self.names.unrouted()];
        let held: BTreeSet<String> = self.broker.census().into_iter().map(|held| held.queue).collect();
        let held: Vec<String> = held.into_iter().filter(|queue| !kept.contains(queue)).collect();
        (!held.is_empty()).then(|| held[n % held.len()].clone())
    }

    fn thrown_away(&self, body: &[u8]) {
        self.observer.thrown_away(body);
        self.poison.lock().unwrap_or_else(PoisonError::into_inner).remove(body);
    }

    async fn heal(&mut self) {
        self.observer.note(|| "HEALED".into());
        self.healed = Some(Instant::now());
        self.calm.store(true, Ordering::Relaxed);
        self.traps.disarm();
        self.broker.start();
        self.full.store(false, Ordering::Relaxed);
        self.weather.down.store(0, Ordering::Relaxed);
        self.weather.slow.store(0, Ordering::Relaxed);
        self.weather.hidden.store(0, Ordering::Relaxed);
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.workers.iter().filter_map(|worker| worker.live.as_ref()).for_each(|live| live.process.thaw());
        self.happen_now(Event::Declare).await;
        // What was to be mended later is mended now.
        let events = std::mem::take(&mut self.events);
        for (key, event) in events {
            match event {
                Event::Resume { .. } | Event::Revive { .. } | Event::Start { .. } => self.happen_now(event).await,
                Event::Look | Event::Publish => drop(self.events.insert(key, event)),
                _ => {}
            }
        }
        (0..WORKERS).for_each(|worker| self.start(worker));
        self.healed_at = self.ledger.now();
        self.after(STEADY, Event::Poison);
    }

    async fn happen_now(&mut self, event: Event) {
        Box::pin(self.happen(event)).await;
    }

    async fn restore(&mut self, age: Duration) {
        let wanted = Instant::now() - age;
        let Some((_, copy)) = self.copies.iter().rev().find(|(at, _)| *at <= wanted).or(self.copies.first()) else {
            return;
        };
        let Ok(restored) = copy.copy(&self.dice) else { return };
        (0..WORKERS).for_each(|worker| self.kill(worker));
        self.copies.retain(|(at, _)| *at <= wanted);
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.ledger = Arc::new(restored);
        self.observer.restored();
        if let Err(error) = self.ledger.steer(Which::default(), Order::RecoverAll).await {
            self.observer.violated("world", format!("the restored ledger cannot be recovered: {error}"));
        }
        // What was paused or retired since the copy is not, and the other way round.
        let resume: Vec<Event> =
            (0..CHAIN_COUNT).flat_map(|chain| [Event::Resume { chain }, Event::Revive { chain }]).collect();
        resume.into_iter().for_each(|event| self.after(Duration::from_secs(20), event));
        (0..WORKERS).for_each(|worker| self.after(Duration::from_secs(1), Event::Start { worker }));
    }

    // ---- People and other programs ----

    fn operator(&self) -> Connections {
        self.connections(&self.operator).1
    }

    /// Carries out an order, again and again until it is. When one to stop is, the chain is known to
    /// be stopped.
    fn order(&self, chain: usize, order: Order) {
        let (kind, _, key) = CHAINS[chain];
        let which = Which { kind: Some(kind.into()), key: Some(key.into()) };
        let (ledger, observer) = (self.operator().ledger, self.observer.clone());
        let (generation, then) = (self.generation.clone(), self.generation.load(Ordering::Relaxed));
        let turn = self.turns[chain].clone();
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            if order == Order::Resume {
                observer.stopped(kind, key, false);
            }
            while ledger.steer(which.clone(), order).await.is_err() {
                sleep(Duration::from_millis(700)).await;
            }
            observer.note(|| format!("operator: {order:?} {kind} {key} is done"));
            if order != Order::Resume && generation.load(Ordering::Relaxed) == then {
                observer.stopped(kind, key, true);
            }
        });
    }

    async fn enroll_all(&mut self) {
        for kind in ["quick", "steady", "long"] {
            let entities = CHAINS.iter().filter(|chain| chain.0 == kind);
            let entities = entities.map(|(_, queue, key)| entity(key, queue, 0)).collect();
            let enroller = Enroller::new(&self.config, self.operator(), kind, None, true);
            match enroller {
                Ok(mut enroller) => {
                    if let Err(error) = enroller.enroll(entities).await {
                        self.observer.violated("world", format!("cannot enroll: {error}"));
                    }
                }
                Err(error) => self.observer.violated("world", format!("cannot enroll: {error}")),
            }
        }
    }

    /// Enrolls a chain again, with another queue and payload.
    fn enroll(&self, chain: usize, variant: usize, revive: bool) {
        let (kind, queue, key) = CHAINS[chain];
        let queue = if variant == 1 { "alpha" } else { queue };
        let window = Some(Duration::from_secs(5));
        let Ok(enroller) = Enroller::new(&self.config, self.operator(), kind, window, true) else { return };
        let (mut enroller, observer) = (enroller.revive(revive), self.observer.clone());
        let turn = self.turns[chain].clone();
        tokio::spawn(async move {
            let _turn = turn.lock().await;
            if revive {
                observer.stopped(kind, key, false);
            }
            loop {
                match enroller.enroll(vec![entity(key, queue, variant)]).await {
                    Ok(tally) => break observer.note(|| format!("operator: enrolled {kind} {key}: {tally:?}")),
                    Err(_) => sleep(Duration::from_millis(700)).await,
                }
            }
        });
    }

    fn run_once(&self, chain: usize) {
        let (kind, _, key) = CHAINS[chain];
        let Ok(mut enroller) = Enroller::new(&self.config, self.operator(), kind, None, true) else { return };
        let observer = self.observer.clone();
        tokio::spawn(async move {
            loop {
                match enroller.run_once(key).await {
                    Ok(accepted @ (RunOnce::Accepted | RunOnce::Pending | RunOnce::Ended)) => {
                        break observer.note(|| format!("operator: run {kind} {key} once: {accepted:?}"));
                    }
                    Ok(other) => break observer.violated("I7", format!("{kind} {key} cannot run once: {other:?}")),
                    Err(_) => sleep(Duration::from_millis(700)).await,
                }
            }
        });
    }

    /// Somebody publishes a one-off job. Only what is confirmed is accepted.
    fn publish(&mut self) {
        self.published += 1;
        let id = format!("job-{}", self.published);
        let queue = ["alpha", "beta"][self.dice.below(2)];
        let mut job = Envelope::job("job", &id, json!({ "n": self.published }), id.clone());
        job.queue = Some(queue.into());
        if self.dice.below(2) == 0 {
            job.due = Some(self.ledger.now() + Duration::from_millis(self.dice.below(20_000) as u64));
        }
        let (connections, observer) = (self.operator(), self.observer.clone());
        let dispatch = Dispatch::new(&self.config, &connections);
        tokio::spawn(async move {
            let now = connections.ledger.now();
            if dispatch.send(&job, queue, now).await.is_ok() {
                observer.published(&id);
            }
        });
    }

    /// Somebody publishes what cannot be used.
    fn poison(&mut self, queue: String, count: usize) {
        let connection = self.broker.connect();
        let mut bodies = Vec::new();
        for _ in 0..count {
            self.published += 1;
            let n = self.published;
            bodies.push(match self.dice.below(5) {
                0 => format!("not JSON {n}"),
                1 => json!({ "v": 1, "kind": "nobody", "key": n.to_string() }).to_string(),
                2 => json!({ "v": 1, "kind": "job", "key": n.to_string(), "queue": "nowhere" }).to_string(),
                3 => json!({ "v": 1, "kind": "quick", "key": "a", "chain": { "ledger": "other", "epoch": n, "tick": 1 } })
                    .to_string(),
                _ => json!({ "v": 9, "n": n }).to_string(),
            });
        }
        let poison = self.poison.clone();
        tokio::spawn(async move {
            for body in bodies {
                let message =
                    Message { to: Destination::Queue(queue.clone()), id: body.clone(), body: body.clone().into() };
                if connection.publish(message).await.is_ok() {
                    poison.lock().unwrap_or_else(PoisonError::into_inner).insert(body.into_bytes());
                }
            }
        });
    }

    // ---- Judgement ----

    /// Looks at the world from outside, every few seconds.
    async fn look(&mut self) {
        let now = self.ledger.now();
        let mut census = self.broker.census();
        // Where a person looks, nothing moves.
        let kept = [self.names.quarantine(), self.names.unrouted()];
        census.retain(|held| !kept.contains(&held.queue));
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for held in &census {
            if let Ok(Envelope { kind, key, chain: Some(_), .. }) = Envelope::decode(&held.body) {
                *counts.entry((kind, key)).or_default() += 1;
            }
        }
        counts.values().for_each(|count| *self.messages.entry(*count).or_default() += 1);
        let most = MOST_MESSAGES + self.doubled;
        for ((kind, key), count) in counts.iter().filter(|(_, count)| **count > most) {
            self.observer.violated("I9", format!("{kind} {key} has {count} messages"));
        }
        self.observer.look_for_overlaps();
        let Some(healed) = self.healed else { return };
        let slack = self.config.catch_up.slack;
        let late = match self.ledger.late(now, 1_000).await {
            Ok(late) => late,
            Err(error) => return self.observer.violated("world", format!("cannot look: {error}")),
        };
        for chain in &late {
            let (kind, key) = (&chain.hint.kind, &chain.hint.key);
            if chain.state == ChainState::Quarantined {
                self.observer
                    .violated("I7", format!("{kind} {key} is quarantined, and nobody restored a ledger since"));
            }
            let since = now.since(chain.hint.due.max(self.healed_at));
            if since > slack + RECOVERY {
                let what = format!("{kind} {key} is due since {since:?}, and nobody claims it: {chain:?}");
                self.observer.violated("I2", what);
            }
        }
        if healed.elapsed() < STEADY {
            return;
        }
        if healed.elapsed() + LOOK >= CALM {
            for (kind, _, key) in CHAINS {
                let chains = self.ledger.chains(kind.into(), key.into()).await.unwrap_or_default();
                let ticks = chains.iter().any(|chain| !chain.once && chain.state == ChainState::Active);
                if ticks && !self.observer.has_finished(kind, key, healed) {
                    self.observer.violated("I2", format!("{kind} {key}: no tick has ended since nothing goes wrong"));
                }
            }
        }
        for (kind, _, key) in CHAINS {
            let chains = match self.ledger.chains(kind.into(), key.into()).await {
                Ok(chains) => chains,
                Err(error) => return self.observer.violated("world", format!("cannot look: {error}")),
            };
            let active = chains.iter().filter(|chain| chain.state == ChainState::Active).count();
            let waiting =
                census.iter().filter(|held| held.state != HeldState::Unsettled && is_of(&held.body, kind, key));
            let waiting = waiting.count();
            let all = counts.get(&(kind.into(), key.into())).copied().unwrap_or_default();
            if waiting > active || all < active {
                let what = format!("{kind} {key}: {waiting} messages wait, of {all}, for {active} that tick");
                self.observer.violated("I9", what);
            }
        }
    }

    /// What must be true at the end.
    async fn judge(&mut self) {
        if let Some(healed) = self.healed {
            for (late, name) in self.observer.late_since(healed + STEADY) {
                if late > ON_TIME {
                    self.observer
                        .violated("I10", format!("{name} starts {late:?} late, though nothing is wrong any more"));
                }
            }
        }
        let quarantine = self.names.quarantine();
        let census = self.broker.census();
        let aside: BTreeSet<Vec<u8>> =
            census.iter().filter(|held| held.queue == quarantine).map(|held| held.body.to_vec()).collect();
        let poison = self.poison.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for body in poison.difference(&aside) {
            self.observer.violated("I10", format!("never set aside: {}", String::from_utf8_lossy(body)));
        }
        let restored = self.generation.load(Ordering::Relaxed) > 0;
        for body in aside.difference(&poison) {
            let ours = Envelope::decode(body).is_ok_and(|envelope| self.config.kinds.contains_key(&envelope.kind));
            if ours && !restored && Envelope::decode(body).is_ok_and(|e| e.queue.as_deref() != Some("nowhere")) {
                self.observer.violated("I4", format!("a good message is set aside: {}", String::from_utf8_lossy(body)));
            }
        }
        let found: BTreeSet<String> = census
            .iter()
            .filter(|held| held.queue == self.names.unrouted())
            .filter_map(|held| Envelope::decode(&held.body).ok()?.id)
            .collect();
        for id in self.observer.lost_jobs(Instant::now() - RECOVERY).into_iter().filter(|id| !found.contains(id)) {
            self.observer.violated("I4", format!("the job {id} was accepted, and never came to an end"));
        }
        let kept = self.ledger.failures(10_000).await.unwrap_or_default();
        for key in self.observer.failed_jobs(Instant::now() - RECOVERY) {
            if !restored && !kept.iter().any(|failure| failure.kind == "job" && failure.key == key) {
                self.observer.violated("I4", format!("the failure of job {key} is not kept"));
            }
        }
        if let Err(error) = self.judge_records(restored).await {
            self.observer.violated("world", format!("cannot read the records: {error}"));
        }
    }

    async fn judge_records(&self, restored: bool) -> Result<(), LedgerError> {
        let (mut after, mut known) = (0, BTreeSet::new());
        let now = self.ledger.now();
        loop {
            let page = self.ledger.attempts(after, 1_000).await?;
            let Some(last) = page.last() else { break };
            after = last.fence;
            for record in page {
                known.insert(record.fence);
                // Those of the last moments may run.
                let old = now.since(record.started) > Duration::from_secs(75);
                if record.verdict.is_none() && old {
                    self.observer.violated("I5", format!("an attempt has no end: {record:?}"));
                }
            }
        }
        if !restored {
            for fence in self.observer.fences().difference(&known) {
                self.observer.violated("I5", format!("a handler ran with fence {fence}, of which there is no record"));
            }
        }
        let left = self.ledger.kept_jobs(0, 100).await?;
        for job in left.iter().filter(|job| now.since(job.kept_at) > RECOVERY) {
            self.observer
                .violated("I4", format!("a job is left in the outbox: {}", String::from_utf8_lossy(&job.body)));
        }
        Ok(())
    }
}

/// Whether no message is lost in this plan but by the engine's own doing. Then catch-up never has
/// to send what is not there, however often workers crash.
fn lossless(plan: &Plan) -> bool {
    !plan.faults.iter().any(|planned| {
        use Fault::*;
        matches!(planned.fault, Purge { .. } | Lose { .. } | DeleteQueue { .. } | Restore { .. } | Clock { .. })
    })
}

/// Chains whose messages an operator takes away or leaves to catch-up.
fn touched(plan: &Plan) -> BTreeSet<String> {
    let chains = plan.faults.iter().filter_map(|planned| match planned.fault {
        Fault::Pause { chain, .. } | Fault::Retire { chain, .. } | Fault::RunOnce { chain } => {
            Some(CHAINS[chain].2.into())
        }
        _ => None,
    });
    chains.collect()
}

fn entity(key: &str, queue: &str, variant: usize) -> Entity {
    Entity { key: key.into(), queue: queue.into(), payload: json!({ "variant": variant }).to_string() }
}

fn is_of(body: &[u8], kind: &str, key: &str) -> bool {
    Envelope::decode(body)
        .is_ok_and(|envelope| envelope.chain.is_some() && envelope.kind == kind && envelope.key == key)
}

/// Whether the job is a single tick, which only the ledger knows.
async fn once(ledger: &SqliteLedger, job: &Job) -> bool {
    let Some(tick) = job.tick else { return false };
    let chains = ledger.chains(job.kind.clone(), job.key.clone()).await.unwrap_or_default();
    chains.iter().any(|chain| chain.once && chain.hint.epoch == tick.epoch)
}

/// What a handler does: it takes its time, and then rolls the dice of this run.
async fn handle(seed: u64, job: &Job, run: u64) -> Outcome {
    let dice = Entropy::seeded(seed ^ job.seed ^ run << 48);
    let length = match job.kind.as_str() {
        "long" => Duration::from_millis(4_000 + dice.below(26_000) as u64),
        _ => Duration::from_millis(dice.below(1_200) as u64),
    };
    sleep(length).await;
    match dice.below(100) {
        0..78 => Outcome::Done,
        78..86 => Outcome::retry("out of luck"),
        86..90 => Outcome::fail("out of luck for good"),
        90..94 => Outcome::Snooze { reason: "not now".into(), wait: Duration::from_millis(dice.below(5_000) as u64) },
        _ if job.kind == "job" => Outcome::Done,
        _ => {
            let new = |n: usize| NewJob {
                kind: "job".into(),
                key: format!("{}/{n}", job.id),
                payload: Value::Null,
                queue: None,
                delay: Duration::from_millis(dice.below(3_000) as u64),
            };
            let failed = FailedItem { item: "page 1".into(), reason: "out of luck".into() };
            Outcome::DoneWith(Yield { jobs: (0..1 + dice.below(3)).map(new).collect(), failed: vec![failed] })
        }
    }
}
