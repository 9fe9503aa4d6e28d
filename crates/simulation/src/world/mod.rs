//! One run of a simulation: workers, broker and ledger in virtual time, a storm of faults, and the
//! calm after it, in which everything must come to rest.
//!
//! - `scene`: the workers' configuration, the chains, and what their handlers do.
//! - `storm`: what happens at its time. `people`: what operators and other programs do.
//! - `verdict`: looks at the world meanwhile, and judges it in the end.

mod checks;
mod faults;
mod operators;
pub mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_broker::embedded::{EmbeddedBroker, EmbeddedConnection, Profile, PublishFault};
use roundelay_broker::{Broker, Delays};
use roundelay_config::Config;
use roundelay_engine::life::Point;
use roundelay_engine::telemetry::{SlotCounts, Telemetry};
use roundelay_engine::{Connections, Engine, StartError, delays, topology_guard};
use roundelay_handler::Context;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_ledger::{LedgerClock, LedgerUrl};
use roundelay_model::clock::{Clock, Entropy, Time};
use roundelay_model::fleet::{FleetOrder, Subject};
use roundelay_model::job::{Job, Tick};
use roundelay_model::topology::Names;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::astray::{Claims, STUCK};
use crate::ledger::SimulatedLedger;
use crate::observe::{Lossless, Observer, Places, Violation};
use crate::plan::{Astray, Blow, Fault, Plan, STORM, Wrong};
use crate::rare::Rare;
use crate::replay::Replay;
use crate::spec;
use crate::worker::{Process, Struck, Traps, Watcher};
use checks::{is_lossless, stopped, touched};
pub use workload::{CHAIN_COUNT, QUEUES, WORKERS};
use workload::{FIRST_KEY, handle, has_its_own_payload, once};

/// How long nothing goes wrong at the end.
const CALM: Duration = Duration::from_secs(240);
/// After that the broker is away for this time, and nothing else is wrong.
const OUTAGE: Duration = Duration::from_secs(40);
/// Then the broker is back for this time. Chains due in the first half minute could be in the hands of a silent worker.
const BACK: Duration = Duration::from_secs(60);
/// A run's whole length.
const LENGTH: Duration = STORM.saturating_add(CALM).saturating_add(OUTAGE).saturating_add(BACK);
/// In the calm a worker that has ended starts again after this.
const SOON: Duration = Duration::from_millis(100);
/// How often the world is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// What lies between everybody and the ledger.
pub struct FaultState {
    down: AtomicUsize,
    /// In milliseconds; zero for the ordinary.
    slow: AtomicU64,
    /// Writes whose answer does not arrive.
    hidden: AtomicUsize,
    dice: Entropy,
}

impl FaultState {
    /// Fair fault_state.
    pub fn new(dice: Entropy) -> Self {
        Self { down: AtomicUsize::new(0), slow: AtomicU64::new(0), hidden: AtomicUsize::new(0), dice }
    }

    /// Whether the ledger is away from now on.
    pub fn set_down(&self, down: bool) {
        self.down.store(down.into(), Ordering::Relaxed);
    }

    /// From now on a round trip takes this number of milliseconds; zero means the ordinary latency.
    pub fn set_slow(&self, millis: u64) {
        self.slow.store(millis, Ordering::Relaxed);
    }

    /// The answers to the next `writes` writes are lost.
    pub fn hide(&self, writes: usize) {
        self.hidden.fetch_add(writes, Ordering::Relaxed);
    }

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
    /// How often what befell a worker at each point.
    pub struck_at: BTreeMap<(Point, Blow), u64>,
    /// How often each rare state was reached.
    pub rare: BTreeMap<Rare, u64>,
    /// How often each point was reached.
    pub reached: BTreeMap<Point, u64>,
    /// For each number of messages of one chain at the same time: how often there were that many.
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
    ResumeOwner,
    Revive { chain: usize },
    Configure { chain: usize, variant: usize },
    Order { subject: Subject, order: FleetOrder },
    Retry { reasons: &'static [&'static str], dies: bool },
    ChangeKeys,
    Mended,
    Publish,
    Copy,
    Look,
    Heal,
    Poison,
    Outage,
    Mend { again: u32 },
}

/// Keys of the kind `asked`. What is confirmed will be so, unless a fault takes the message away.
#[derive(Default)]
struct Ordered {
    /// Keys whose chains are to be there: no other order is given for them.
    begun: BTreeSet<String>,
    /// Keys whose chains are to have ended: no other order is given for them.
    ended: BTreeSet<String>,
    /// Those whose messages were thrown away.
    gone: BTreeSet<String>,
}

struct Worker {
    runs: usize,
    live: Option<Live>,
}

struct Live {
    process: Arc<Process>,
    connection: Arc<EmbeddedConnection>,
    telemetry: Arc<Telemetry>,
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
    copies: Vec<(Instant, Arc<SqliteLedger>, (spec::Copy, Places))>,
    fault_state: Arc<FaultState>,
    wrong: Arc<Mutex<Vec<Wrong>>>,
    /// The broker refuses everything.
    full: Arc<AtomicBool>,
    observer: Arc<Observer>,
    replay: Arc<Replay>,
    traps: Arc<Traps>,
    claims: Arc<Claims>,
    workers: Vec<Worker>,
    /// What became of the slots of each throttle in each process.
    slots: Vec<SlotCounts>,
    struck: (mpsc::UnboundedSender<Struck>, mpsc::UnboundedReceiver<Struck>),
    events: BTreeMap<(Instant, u64), Event>,
    numbers: u64,
    faults: u64,
    /// Messages that faults have doubled.
    doubled: usize,
    published: u64,
    /// Bodies that must be found in quarantine.
    poison: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    /// Bodies that may be in quarantine, since it is unknown whether they were published.
    perhaps: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    /// Keys of chains over which the workers that run them die.
    deadly: Arc<Mutex<BTreeSet<String>>>,
    messages: BTreeMap<usize, u64>,
    /// Chains that were ordered by messages.
    ordered: Arc<Mutex<Ordered>>,
    /// Nothing goes wrong any more.
    calm: Arc<AtomicBool>,
    healed: Option<Instant>,
    /// The ledger's time then.
    healed_at: Time,
    /// The ledger's time when it was last opened: at the beginning, and with each restore.
    opened_at: Time,
    /// Grows with every restore.
    generation: Arc<AtomicU64>,
    operator: Arc<Process>,
    /// An operator does one thing after the other with a chain.
    turns: Vec<Arc<tokio::sync::Mutex<()>>>,
    /// And with all queues and workers.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Ids of jobs that lay in quarantine when nothing went wrong any more but that an operator died.
    mended: Vec<String>,
}

/// In a third of all runs payloads lie sealed.
fn seals(seed: u64) -> bool {
    Entropy::seeded(seed ^ 0x5ea1).below(3) == 0
}

/// In half of all runs the broker lets messages sleep on their queues, and the engine has to find that out.
fn natively(seed: u64) -> bool {
    !seed.is_multiple_of(2)
}

impl World {
    fn new(seed: u64, plan: &Plan, log: bool) -> Result<Self, String> {
        let text = workload::config(seals(seed).then_some(FIRST_KEY));
        let config = Config::parse(&text, "the simulation's configuration", []).map_err(|e| e.to_string())?;
        let begin = Time::from_millis(1_800_000_000_000);
        let clock = Clock::of_server(begin);
        let dice = Entropy::seeded(seed);
        let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &dice).map_err(|e| e.to_string())?;
        let names = Names::new(&config.broker.prefix);
        let fault_state = FaultState::new(Entropy::seeded(seed ^ 0x1a7e));
        let profile = if natively(seed) { Profile::Rabbit44 } else { Profile::default() };
        let broker = EmbeddedBroker::with_profile(names.clone(), profile);
        broker.goes_by(clock.clone());
        let lossless = is_lossless(plan).then(|| Lossless { broker: broker.clone(), stopped: stopped(plan) });
        let wrong = Arc::new(Mutex::new(Vec::new()));
        let full = Arc::new(AtomicBool::new(false));
        let (queue, rolls, refuses) = (wrong.clone(), Entropy::seeded(seed ^ 0x510), full.clone());
        broker.on_publish(move |_| {
            if refuses.load(Ordering::Relaxed) {
                return PublishFault::Refused;
            }
            let next = queue.lock().pop();
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
        let traps: Arc<Traps> = Arc::default();
        let struck = mpsc::unbounded_channel();
        let claims = Arc::new(Claims::new(struck.0.clone()));
        let observer = Observer::new(log, lossless, touched(plan), traps.clone());
        let redelivers =
            |kind: &roundelay_config::KindSettings| kind.takeover == roundelay_config::Takeover::Redelivery;
        let redelivery =
            config.kinds.iter().filter(|(_, kind)| redelivers(kind)).map(|(name, _)| name.clone()).collect();
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
            fault_state: Arc::new(fault_state),
            wrong,
            full,
            replay: Replay::new(observer.clone(), redelivery),
            observer,
            traps,
            claims,
            workers: (0..WORKERS).map(|_| Worker { runs: 0, live: None }).collect(),
            slots: Vec::new(),
            struck,
            events: BTreeMap::new(),
            numbers: 0,
            faults: 0,
            doubled: 0,
            published: 0,
            poison: Arc::default(),
            perhaps: Arc::default(),
            deadly: Arc::default(),
            messages: BTreeMap::new(),
            ordered: Arc::default(),
            calm: Arc::default(),
            healed: None,
            healed_at: Time::default(),
            opened_at: begin,
            generation: Arc::default(),
            operator: Process::new(usize::MAX, 0),
            turns: (0..CHAIN_COUNT).map(|_| Arc::default()).collect(),
            turn: Arc::default(),
            mended: Vec::new(),
            config,
        })
    }

    async fn play(mut self) -> Outcomes {
        if let Err(error) = self.declare().await {
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
        if seals(self.seed) {
            self.at(begun + STORM / 2, Event::ChangeKeys);
        }
        self.at(begun + STORM, Event::Heal);
        if self.plan.faults.iter().any(|planned| matches!(planned.fault, Fault::Restore { .. })) {
            self.at(begun, Event::Copy);
        }
        let end = begun + LENGTH;
        loop {
            let next = self.events.first_key_value().map_or(end, |(key, _)| key.0);
            tokio::select! {
                biased;
                Some(struck) = self.struck.1.recv() => self.see_to(&struck),
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
            struck_at: self.traps.sprung(),
            rare: self.observer.rare(),
            reached: self.traps.reached(),
            messages: std::mem::take(&mut self.messages),
            length: LENGTH,
            trace: self.observer.trace(),
            log: self.observer.log(),
        }
    }

    /// As `roundelay topology apply` does.
    async fn declare(&self) -> Result<(), StartError> {
        if !natively(self.seed) {
            return Ok(self.broker.apply(&self.config.ladder_topology()).await?);
        }
        let connections = self.operator();
        topology_guard::adopt(&*connections.ledger, &self.config).await?;
        delays::declare(&self.config, &connections).await?;
        Ok(())
    }

    /// A further connection to the broker.
    fn connect(&self) -> EmbeddedConnection {
        let delays = if natively(self.seed) { Delays::Auto } else { Delays::Ladder };
        self.broker.connect().with_delays(delays)
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
        let connection = Arc::new(self.connect());
        let ledger = SimulatedLedger {
            inner: self.ledger.clone(),
            fault_state: self.fault_state.clone(),
            observer: self.observer.clone(),
            replay: self.replay.clone(),
            claims: self.claims.clone(),
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
        let watcher = Watcher { process: process.clone(), traps: self.traps.clone(), struck: self.struck.0.clone() };
        let mut engine = Engine::new(self.config.clone())
            .connections(connections)
            .without_chores()
            .attending()
            .probe(Arc::new(watcher));
        let telemetry = engine.telemetry();
        self.slots.extend(self.config.throttles.keys().map(|name| telemetry.slots(name)));
        for (name, kind) in &self.config.kinds {
            let (observer, process, seed) = (self.observer.clone(), process.clone(), self.seed);
            let lenient = kind.takeover == roundelay_config::Takeover::Redelivery;
            let attempts = kind.retry.attempts;
            let (ledger, deadly, struck) = (self.ledger.clone(), self.deadly.clone(), self.struck.0.clone());
            engine = engine.handler(name, move |job: Job, _: Context| {
                let (observer, process, ledger) = (observer.clone(), process.clone(), ledger.clone());
                let dies = job.tick.filter(|_| deadly.lock().contains(&job.key));
                let struck = struck.clone();
                async move {
                    let once = once(&ledger, &job).await;
                    let mut run = observer.started(&process, &job, once, lenient, ledger.now());
                    if job.attempt >= attempts {
                        let now = ledger.wall_clock().wall(ledger.now());
                        run.is_last(&job, &process, job.deadline.since(now));
                    }
                    if !has_its_own_payload(&job) {
                        observer.violated("sealed", format!("{} {} gets {}", job.kind, job.key, job.payload));
                    }
                    if let Some(Tick { epoch, tick, .. }) = dies {
                        observer.died_over((&job.kind, &job.key), epoch, tick);
                        process.kill();
                        let Process { worker, run, .. } = *process;
                        let _ = struck.send(Struck { worker, run, fault: None, claim: None });
                        std::future::pending::<()>().await;
                    }
                    let outcome = handle(seed, &job, run.number).await;
                    observer.ended(&job, &outcome, job.attempt >= attempts);
                    run.has_ended();
                    outcome
                }
            });
        }
        let stop = CancellationToken::new();
        let (run, token, observer) = (engine.run(stop.clone()), stop.clone(), self.observer.clone());
        let (starting, calm) = (process.clone(), self.calm.clone());
        let struck = self.struck.0.clone();
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
            let _ = struck.send(Struck { worker, run, fault: None, claim: None });
        };
        let engine = tokio::spawn(process.hold(Box::pin(life)));
        self.workers[worker].live = Some(Live { process, connection, telemetry, stop, engine });
    }

    fn kill(&mut self, worker: usize) {
        let Some(live) = self.workers[worker].live.take() else { return };
        self.observer.note(|| format!("worker {worker}.{} is killed", live.process.run));
        live.process.kill();
        live.connection.die();
        live.engine.abort();
    }

    /// What follows when something has befallen a worker at a crash point, or a worker has ended.
    fn see_to(&mut self, struck: &Struck) {
        let worker = struck.worker;
        let current = self.workers[worker].live.as_ref().map(|live| live.process.run);
        if current != Some(struck.run) {
            return;
        }
        match struck.fault.and_then(|fault| self.plan.faults.get(fault)).map(|planned| planned.fault) {
            Some(Fault::StrikeAt { blow, length, .. }) => self.strike(worker, blow, length),
            Some(Fault::Claim { how: Astray::Unheard, length, .. }) => self.strike(worker, Blow::LoseBroker, length),
            Some(Fault::Claim { how, .. }) => {
                if how == Astray::Stuck {
                    self.strike(worker, Blow::LoseLedger, STUCK);
                }
                if let Some(hint) = &struck.claim {
                    self.send_to_each(hint);
                }
            }
            _ => {
                self.kill(worker);
                let away = if self.healed.is_some() { SOON } else { Duration::from_secs(1) };
                self.after(away, Event::Start { worker });
            }
        }
    }
}
