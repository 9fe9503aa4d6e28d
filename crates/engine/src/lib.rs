//! The engine: everything between a configuration and chains that stay alive.
//!
//! `pipeline` is a job's life from delivery to acknowledgement, `outbox` and `discover` see to what runs
//! ask for, `outage` runs chains from the ledger while the broker is away, [`sealing`] seals and opens what users have given, [`retried`] sends messages again from quarantine, [`Dispatch`] puts messages on
//! the ladder, `rearm` sends them on when a hop is over, `catch_up` re-creates messages that
//! were lost, [`enroll`] begins chains, [`moves`] brings ticks to other times, `reload` follows a
//! changed configuration, `attend` says how the worker is and does what operators have ordered of it and of its
//! queues, [`chores`] is what the engine does for itself, and [`Engine::run`] starts and stops it all.
//!
//! Where to go: how a delivery becomes a run, `pipeline`; how a run ends, `attempt` and `one_off`; leases, `vitals`; waiting
//! for a slot, [`throttle`]; metrics, [`telemetry`]; spans, [`trace`]; lists of entities, [`roster`]; health, [`monitor`].
//!
//! Layer: on `config` and all below. Everything above is handed to it: a [`companion::Companion`] runs in the worker, and a
//! [`life::Probe`] watches it.

mod attempt;
mod attend;
mod catch_up;
pub mod chores;
pub mod companion;
mod connections;
mod core;
pub mod desk;
mod discover;
mod dispatch;
pub mod enroll;
pub mod life;
pub mod monitor;
pub mod moves;
mod one_off;
mod orders;
mod outage;
mod outbox;
pub mod overslept;
mod pace;
mod parts;
mod pipeline;
pub mod publish;
mod queue;
mod rearm;
mod reconcile;
mod reload;
pub mod retried;
mod room;
pub mod roster;
pub mod sealing;
mod suspects;
pub mod telemetry;
pub mod throttle;
pub mod topology_guard;
pub mod trace;
mod valve;
mod vitals;
mod wall;

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, TryLockError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use roundelay_broker::Broker;
use roundelay_config::{Config, HandlerSettings, KindSettings, QueueSettings, TracingSettings};
use roundelay_handler::exec::ExecHandler;
use roundelay_handler::http::HttpHandler;
use roundelay_handler::{Handler, http};
use roundelay_ledger::LedgerUrl;
use roundelay_ledger::comeback::Comeback;
use roundelay_model::fleet::{FleetOrders, Flow};
use roundelay_model::schedule::Balances;
use tokio::sync::{Notify, SetOnce, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::desk::Desk;
use crate::telemetry::Telemetry;
use crate::throttle::Throttles;
use crate::trace::{Export, Tracer};
use chores::Chores;
use companion::Companion;
pub(crate) use connections::knows_chains;
pub use connections::{Connections, StartError, connect_broker, open_ledger};
pub(crate) use core::{Core, shared};
pub use dispatch::Dispatch;
use life::{Life, Point, Probe};
use orders::Orders;
use outage::Outage;
use parts::Parts;
use queue::{QueueRun, work};
use room::Room;
use suspects::Suspects;
use valve::Valve;
use vitals::Vitals;

/// Runs the jobs of a configuration.
pub struct Engine {
    config: Config,
    connections: Option<Connections>,
    handlers: HashMap<String, Arc<dyn Handler>>,
    queues: Option<Vec<String>>,
    telemetry: Arc<Telemetry>,
    ready: Arc<SetOnce<()>>,
    probe: Option<Arc<dyn Probe>>,
    chores: bool,
    attends: bool,
    gated: bool,
    configurations: Option<mpsc::Receiver<Config>>,
    companions: Vec<Box<dyn Companion>>,
}

impl Engine {
    /// An engine for `config`.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            connections: None,
            handlers: HashMap::new(),
            queues: None,
            telemetry: Arc::default(),
            ready: Arc::default(),
            probe: None,
            chores: true,
            attends: true,
            gated: true,
            configurations: None,
            companions: Vec::new(),
        }
    }

    /// Runs jobs of `kind` (a name under `[kinds]`) with `handler`, whatever the configuration says
    /// about its handler.
    #[must_use]
    pub fn handler(mut self, kind: &str, handler: impl Handler + 'static) -> Self {
        self.handlers.insert(kind.into(), Arc::new(handler));
        self
    }

    /// Uses these connections instead of opening those that the configuration names.
    #[must_use]
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = Some(connections);
        self
    }

    /// Consumes only these platform queues, which the configuration must have.
    /// Catch-up looks only after the chains of these queues.
    #[must_use]
    pub fn queues(mut self, queues: Vec<String>) -> Self {
        self.queues = Some(queues);
        self
    }

    /// Takes over configurations that are sent here while it runs: kinds' schedules, guards, timeouts and
    /// retries, and the limits of throttles, from now on, and sleeping chains move to where a new schedule has
    /// them. Of what cannot change without a restart (broker, ledger, queues, handlers) the log tells.
    #[must_use]
    pub fn configurations(mut self, fresh: mpsc::Receiver<Config>) -> Self {
        self.configurations = Some(fresh);
        self
    }

    /// Runs `companion` in the worker, beside its queues.
    #[must_use]
    #[doc(hidden)]
    pub fn companion(mut self, companion: impl Companion + 'static) -> Self {
        self.companions.push(Box::new(companion));
        self
    }

    /// Lets `probe` watch the engine from inside, and end it at any point.
    #[must_use]
    #[doc(hidden)]
    pub fn probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Leaves the engine's own chores (rosters, history) to others: for simulations and measurements,
    /// where nothing else is to happen.
    #[must_use]
    #[doc(hidden)]
    pub fn without_chores(mut self) -> Self {
        (self.chores, self.attends) = (false, false);
        self
    }

    /// Says how the worker is, and does what operators order, also [without chores](Self::without_chores).
    #[must_use]
    #[doc(hidden)]
    pub fn attending(mut self) -> Self {
        self.attends = true;
        self
    }

    /// Starts under throttles pass no last gate: only to measure what that costs.
    #[must_use]
    #[doc(hidden)]
    pub fn without_gate(mut self) -> Self {
        self.gated = false;
        self
    }

    /// What the engine has done, also while it runs.
    #[doc(hidden)]
    pub fn telemetry(&self) -> Arc<Telemetry> {
        self.telemetry.clone()
    }

    /// Is set once the engine consumes its queues and, on a broker that begins empty, has
    /// re-created the messages of all chains. Chains enrolled later in this process are sent by
    /// whoever enrolls them.
    pub fn ready(&self) -> Arc<SetOnce<()>> {
        self.ready.clone()
    }

    /// Runs until `shutdown` is cancelled, then stops taking, lets what runs finish within the
    /// configured grace, and returns with nothing left unsettled.
    ///
    /// # Errors
    /// [`StartError`] when it cannot begin. Once it runs, a broker or a ledger that goes away is
    /// waited for; only [`StartError::Broken`] ends it, in good order.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), StartError> {
        let mut companions = std::mem::take(&mut self.companions);
        companion::check(&companions, &self.config)?;
        for companion in &mut companions {
            companion.bind(&self.config).await?;
        }
        let connections = match self.connections.take() {
            Some(connections) => connections,
            None => Connections::of_worker(&self.config).await?,
        };
        let stop = shutdown.child_token();
        let fresh = self.configurations.take().map(|fresh| (fresh, self.config.clone()));
        let base = companions.iter().find_map(|companion| companion.callback());
        let worker = format!("{}-{}", std::process::id(), connections.entropy.token());
        let (tracer, export) = self.tracer(&connections, &worker)?;
        let core = Arc::new(Core { tracer, ..self.core(connections.clone(), stop.clone(), base, &worker)? });
        // Also when this future is dropped: nothing runs on with nobody to stop it.
        let _all_end_with_us = core.life.guard();
        // What lasts as long as the engine, what ends when it stops, and what then has time to come to an end.
        let (mut lasting, mut parts, mut answering) = (Parts::default(), Parts::default(), Parts::default());
        let handle = core.companion_handle(self.config.clone(), connections);
        for (name, task) in companions.iter_mut().flat_map(|companion| companion.watch(&handle)) {
            lasting.spawn(name, core.life.bind(task));
        }
        let _alone = alone(&self.config, &*core.dispatch.broker)?;
        topology_guard::check(&*core.ledger, &self.config, core.dispatch.broker.keeps_messages()).await?;
        let away = core.dispatch.broker.unavailable();
        let without = match away {
            Some(_) => knows_chains(&*core.ledger, &self.config).await?,
            None => false,
        };
        if without {
            let why = away.unwrap_or_default();
            tracing::warn!(why, "this worker begins without the broker: chains run from the ledger, one-off jobs wait");
        } else {
            core.declare().await?;
        }
        if let Some(chores) = &core.chores {
            chores.begin().await?;
        }
        for companion in &mut companions {
            for (name, task) in companion.serve(&handle).await? {
                answering.spawn(name, core.life.bind(task));
            }
        }
        let companions = Arc::new(companions);
        core.life.reached(Point::Declared).await;
        // All are there before one begins, so that a start that fails leaves nothing running.
        attend::obey(&core, &core.ledger.fleet_orders().await?);
        let keeper = vitals::begin(&core).await?;
        let mut consumers = Vec::new();
        for queue in core.queues.values().flatten() {
            let flow = queue.flow();
            let consumer = match flow.open && !without {
                true => Some(core.dispatch.broker.consume(&queue.source, flow.prefetch).await?),
                false => None,
            };
            consumers.push((queue.clone(), flow, consumer));
        }
        let hops = core.topology.names.rearm();
        let rearm = match without {
            true => None,
            false => Some(core.dispatch.broker.consume(&hops, rearm::PREFETCH).await?),
        };
        topology_guard::note_sealing(&*core.ledger, self.config.encryption.seal().is_some()).await?;
        let tasks = TaskTracker::new();
        for (queue, flow, consumer) in consumers {
            let name = format!("deliveries of the queue {}", queue.source);
            parts.spawn(name, core.life.bind(work(core.clone(), queue, flow, consumer, tasks.clone(), stop.clone())));
        }
        let rearm = rearm::work(core.clone(), rearm, tasks.clone(), stop.clone());
        parts.spawn("deliveries between hops", core.life.bind(rearm));
        if without {
            let declaring = outage::declare_late(core.clone(), stop.clone());
            parts.spawn("declaring the topology", core.life.bind(declaring));
        }
        let outage = outage::run(core.clone(), tasks.clone(), stop.clone());
        parts.spawn("running from the ledger", core.life.bind(outage));
        parts.spawn("catch-up", core.life.bind(catch_up::run(core.clone(), tasks.clone(), stop.clone())));
        if let Some((fresh, config)) = fresh {
            let reload = reload::run(core.clone(), companions.clone(), config, fresh, stop.clone());
            parts.spawn("following the configuration", core.life.bind(reload));
        }
        parts.spawn("following the wall clock", core.life.bind(wall::run(core.clone(), stop.clone())));
        // What runs keeps its lease until it has ended, also while the worker stops.
        lasting.spawn("heartbeats", core.life.bind(keeper.keep(core.clone())));
        lasting.spawn("writing of progress", core.life.bind(core.desk.clone().keep_writing()));
        lasting.spawn("reading the ledger's clock", core.life.bind(read_clock(core.clone())));
        let mut attending = Parts::default();
        if self.attends {
            attending.spawn("reading what operators order", core.life.bind(attend::run(core.clone())));
        }
        let queues: Vec<&str> = core.queues.keys().map(String::as_str).collect();
        tracing::info!(worker = %core.worker, ?queues, "working");

        let broken = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            which = lasting.one_ended() => Some(which),
            which = attending.one_ended() => Some(which),
            which = parts.one_ended() => Some(which),
            which = answering.one_ended() => Some(which),
        };
        if let Some(why) = &broken {
            companions.iter().for_each(|companion| companion.broken(why));
        }
        stop.cancel();
        tracing::info!(grace = ?core.grace, running = tasks.len(), "stopping: finishing what runs");
        core.life.reached(Point::Stopping).await;
        parts.all_ended(PARTS_STOP).await;
        tasks.close();
        if !have_ended(&tasks, core.grace).await {
            tracing::warn!(running = tasks.len(), "the grace is over: the rest is put off and runs again elsewhere");
            core.abort.cancel();
            let _ = tokio::time::timeout(ABORT, tasks.wait()).await;
        }
        answering.all_ended(PARTS_STOP).await;
        // One-off jobs that have ended go on nowhere.
        core.desk.write().await;
        drop(attending);
        if self.attends {
            attend::leave(&core).await;
        }
        vitals::end(&core).await;
        core.dispatch.broker.close().await;
        if let Err(error) = core.ledger.flush().await {
            tracing::debug!(%error, "failed to flush the ledger; some messages will be sent twice");
        }
        export.finish().await;
        tracing::info!("stopped");
        broken.map_or(Ok(()), |why| Err(StartError::Broken(why)))
    }

    /// What the configuration wants recorded. Simulated time means nothing to a collector.
    fn tracer(&self, connections: &Connections, worker: &str) -> Result<(Tracer, Export), StartError> {
        let settings = match connections.clock.is_virtual() {
            true => &TracingSettings { otlp: None, ..self.config.tracing.clone() },
            false => &self.config.tracing,
        };
        let system = if connections.broker.keeps_messages() { "rabbitmq" } else { "roundelay" };
        Tracer::start(settings, (worker, system), &connections.entropy, &self.telemetry)
            .map_err(|error| StartError::Setup(format!("tracing: {error}")))
    }

    /// `base` is what handlers reach this worker's listener by.
    fn core(
        &mut self,
        connections: Connections,
        stopping: CancellationToken,
        base: Option<String>,
        worker: &str,
    ) -> Result<Core, StartError> {
        let (config, clock) = (&self.config, &connections.clock);
        for name in self.handlers.keys() {
            config.kind(name).map_err(|error| StartError::Setup(format!("a handler is registered, but {error}")))?;
        }
        for name in self.queues.iter().flatten() {
            config.queue(name).map_err(|error| StartError::Setup(format!("a queue is to be consumed, but {error}")))?;
        }
        // The same for all HTTP handlers, so that they share connections.
        let clients = http::Clients::default();
        for (name, kind) in &config.kinds {
            if self.handlers.contains_key(name) {
                continue;
            }
            let setup = |error: String| StartError::Setup(format!("kinds.{name}.handler: {error}"));
            let handler: Arc<dyn Handler> = match &kind.handler {
                HandlerSettings::Rust => {
                    return Err(setup(format!(
                        "none is configured; set handler.http.url or handler.exec.argv, or register one with Engine::handler(\"{name}\", …)"
                    )));
                }
                HandlerSettings::Http(http) => {
                    let by_headers = kind.recurrence.as_ref().is_some_and(|recurrence| recurrence.freshness);
                    let handler = HttpHandler::new(http, &clients, clock.clone()).map_err(|e| setup(e.to_string()))?;
                    Arc::new(handler.by_headers(by_headers))
                }
                HandlerSettings::Exec(exec) => {
                    Arc::new(ExecHandler::new(exec, clock.clone()).map_err(|e| setup(e.to_string()))?)
                }
            };
            self.handlers.insert(name.clone(), handler);
        }
        let throttles = Throttles::new(&config.throttles, &connections.ledger, &self.telemetry, self.gated);
        let vitals = Arc::new(Vitals::new(config.worker.lease));
        let lives = vitals.clone();
        throttles.only_while(move || lives.session().is_some());
        let wanted = |name: &String| self.queues.as_ref().is_none_or(|queues| queues.contains(name));
        let dispatch = Dispatch { telemetry: self.telemetry.clone(), ..Dispatch::new(config, &connections) };
        let queues = config.queues.iter().filter(|(name, _)| wanted(name)).map(|(name, settings)| {
            let (room, balances) = (Room::new(settings.concurrency), Arc::<Balances>::default());
            // What waits here keeps its place from others, and can be put off only from here.
            let ahead = settings.throttle.as_ref().and_then(|name| config.throttles.get(name)?.ahead());
            let plain = FleetOrders::default();
            let flow = Flow::of(settings.concurrency, settings.prefetch, ahead, &plain, &plain);
            let lane = |(lane, source): (u8, String)| QueueRun {
                name: name.as_str().into(),
                source,
                lane,
                places: settings.concurrency,
                prefetch: settings.prefetch,
                ahead,
                valve: Valve::new(flow),
                priority: settings.rank(lane),
                room: room.clone(),
                throttle: settings
                    .throttle
                    .as_ref()
                    .and_then(|name| Some((throttles.get(name)?, self.telemetry.throttle(name)))),
                figures: self.telemetry.queue(name),
                handed_out: Arc::default(),
                frontier: AtomicI64::new(i64::MIN),
                balances: balances.clone(),
            };
            let lanes = (0..).zip(dispatch.lanes.queues(name)).map(lane).map(Arc::new);
            (name.clone(), lanes.collect())
        });
        let mut queues: BTreeMap<String, Vec<Arc<QueueRun>>> = queues.collect();
        let queue = |(name, settings): (&String, &QueueSettings)| (name.clone(), settings.throttle.clone());
        let mut known_queues: BTreeMap<String, Option<String>> = config.queues.iter().map(queue).collect();
        let chores = self.chores.then(|| Arc::new(Chores::new(config, &connections)));
        let mut kinds = self.config.kinds.clone();
        if let Some(chores) = &chores {
            let (name, most) = (chores.queue.clone(), chores.concurrency());
            let prefetch = u16::try_from(most).unwrap_or(u16::MAX).saturating_add(ORDERS);
            let queue = QueueRun {
                name: name.as_str().into(),
                source: name.clone(),
                lane: 0,
                places: most,
                prefetch,
                ahead: None,
                valve: Valve::new(Flow { open: true, places: most, prefetch }),
                priority: 0,
                room: Room::new(most),
                throttle: None,
                figures: self.telemetry.queue(&name),
                handed_out: Arc::default(),
                frontier: AtomicI64::new(i64::MIN),
                balances: Arc::default(),
            };
            queues.insert(name.clone(), vec![Arc::new(queue)]);
            known_queues.insert(name, None);
            for (name, settings) in Chores::kinds() {
                kinds.insert(name.into(), settings);
                self.handlers.insert(name.into(), chores.clone());
            }
        }
        let (entropy, life) = (connections.entropy.clone(), Life::new(self.probe.take()));
        let orders = Orders::new(&self.config, &connections, life.clone());
        Ok(Core {
            worker: worker.into(),
            known_queues,
            figures: kinds.keys().map(|name| (name.clone(), self.telemetry.kind(name))).collect(),
            kinds: Arc::new(RwLock::new(Arc::new(shared(kinds)))),
            comeback: Comeback::default(),
            handlers: std::mem::take(&mut self.handlers),
            queues,
            throttles,
            catch_up: self.config.catch_up.clone(),
            chores,
            grace: self.config.worker.grace,
            dispatch,
            topology: self.config.topology(),
            desk: Desk::new(connections.ledger.clone(), worker, base),
            ledger: connections.ledger,
            entropy,
            telemetry: self.telemetry.clone(),
            ready: self.ready.clone(),
            declared: SetOnce::new(),
            in_hand: Mutex::default(),
            vitals,
            orphaned: Notify::new(),
            silent: AtomicBool::new(false),
            outage: Outage::default(),
            wall: wall::UpToDate::default(),
            suspects: Suspects::default(),
            tracer: Tracer::default(),
            kept: Notify::new(),
            life,
            orders,
            attended: Arc::default(),
            drained: AtomicBool::new(false),
            stopping,
            abort: CancellationToken::new(),
        })
    }
}

/// Reads the ledger's clock once a second.
async fn read_clock(core: Arc<Core>) {
    loop {
        if let Err(error) = core.ledger.read_clock().await {
            tracing::debug!(%error, "the ledger's clock cannot be read");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Sees to it that no other worker with an embedded broker runs on the same ledger file: each would
/// re-create all messages, and run the jobs that are kept there. Holds as long as the file is open.
fn alone(config: &Config, broker: &dyn Broker) -> Result<Option<File>, StartError> {
    let LedgerUrl::Sqlite(ledger) = &config.ledger.url else { return Ok(None) };
    if broker.keeps_messages() {
        return Ok(None);
    }
    let path = ledger.with_added_extension("lock");
    let setup = |what: String| StartError::Setup(format!("{}: {what}", path.display()));
    let file = File::create(&path).map_err(|error| setup(error.to_string()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::Error(error)) => Err(setup(error.to_string())),
        Err(TryLockError::WouldBlock) => Err(setup(
            "another worker runs on this ledger; with the embedded broker there can be one, with RabbitMQ any number"
                .into(),
        )),
    }
}

/// Orders of programs that are held beside the engine's own chores.
const ORDERS: u16 = 64;

/// How long what takes messages, and what answers over HTTP, may take to stop.
const PARTS_STOP: Duration = Duration::from_secs(5);
/// How long aborted jobs may take to put themselves off.
const ABORT: Duration = Duration::from_secs(10);

/// How often a worker that stops says how much still runs.
const TELL: Duration = Duration::from_secs(5);

/// Waits until `tasks` have ended, for no longer than `grace`, and says meanwhile how many are left. Whether they have.
async fn have_ended(tasks: &TaskTracker, grace: Duration) -> bool {
    let mut left = grace;
    loop {
        let span = left.min(TELL);
        if tokio::time::timeout(span, tasks.wait()).await.is_ok() {
            return true;
        }
        left -= span;
        if left.is_zero() {
            return false;
        }
        tracing::info!(running = tasks.len(), ?left, "still stopping");
    }
}

/// Kinds' settings, which are replaced while the worker runs.
type SharedKinds = Arc<RwLock<Arc<BTreeMap<String, Arc<KindSettings>>>>>;

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_runs_is_waited_for_until_it_ends_or_the_grace_is_over() {
        let seconds = Duration::from_secs;
        let table = [(0, 12, 0, false), (8, 12, 8, false), (12, 8, 8, true), (20, 12, 12, true), (10, 10, 10, false)];
        for (grace, runs, waited, ended) in table {
            let tasks = TaskTracker::new();
            // The one that ends at the very end of the grace is not waited for any longer.
            tasks.spawn(sleep(seconds(runs) + Duration::from_millis(1)));
            tasks.close();
            let begun = Instant::now();
            assert_eq!(have_ended(&tasks, seconds(grace)).await, ended, "{grace} {runs}");
            assert_eq!(begun.elapsed().as_secs(), waited, "{grace} {runs}");
        }
    }
}
