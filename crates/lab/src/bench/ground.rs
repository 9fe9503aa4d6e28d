//! The resources of a benchmark: a broker, a ledger, and some workers in this process.
//!
//! Each worker has connections of its own, and so a ledger of its own on the same file or server, as processes have.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::{Broker, BrokerUrl};
use roundelay_config::{Config, Format};
use roundelay_engine::enroll::{Enroller, Entity};
use roundelay_engine::life::Probe;
use roundelay_engine::roster::{SyncError, Wishes};
use roundelay_engine::telemetry::{Latenesses, Telemetry};
use roundelay_engine::{Connections, Engine, StartError, delays, embedded_broker, roster, topology_guard};
use roundelay_handler::Context;
use roundelay_ledger::{ChainFilter, ChainOrder, Traffic};
use roundelay_model::job::Job;
use roundelay_model::outcome::Outcome;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::chains::{KIND, QUEUE};

/// Chains that are to sleep for a whole measurement are due after this time.
pub(super) const ASLEEP: Duration = Duration::from_secs(20 * 86_400);
/// How many entities are enrolled in one transaction.
const BATCH: usize = 1_000;

/// Reads a benchmark's configuration: broker and ledger, and what `rest` says about queue, kind and throttle.
pub(super) fn config(broker: &str, ledger: &str, rest: &str) -> Result<Config, StartError> {
    let text =
        format!("broker.url = \"{broker}\"\nbroker.prefix = \"roundelay-bench\"\nledger.url = \"{ledger}\"\n{rest}");
    Config::parse(&text, "the benchmark's configuration", []).map_err(|error| StartError::Setup(error.to_string()))
}

/// Connections for each worker, and an empty broker.
pub(super) struct Ground {
    config: Config,
    workers: Vec<Connections>,
}

impl Ground {
    /// Connects `workers` workers, and removes what an earlier benchmark has left.
    pub(super) async fn open(config: Config, workers: usize) -> Result<Self, StartError> {
        let mut node = None;
        let mut all = Vec::with_capacity(workers);
        for _ in 0..workers.max(1) {
            let mut connections = Connections::open(&config).await?;
            if matches!(config.broker.url, BrokerUrl::Embedded) {
                let node = node.get_or_insert_with(|| embedded_broker(&config, &connections.clock));
                connections.broker = Arc::new(node.connect().with_delays(config.broker.delays));
            }
            all.push(connections);
        }
        Self::on(config, all).await
    }

    /// Connects each worker anew, as after a restart: nothing of the work so far is in its memory any more. Not for the
    /// embedded broker, which would lose its messages.
    pub(super) async fn restarted(self) -> Result<Self, StartError> {
        let Self { config, workers } = self;
        let count = workers.len();
        for worker in workers {
            worker.broker.close().await;
        }
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            workers.push(Connections::open(&config).await?);
        }
        Ok(Self { config, workers })
    }

    pub(super) fn is_embedded(&self) -> bool {
        matches!(self.config.broker.url, BrokerUrl::Embedded)
    }

    /// Uses these connections, at least one.
    pub(super) async fn on(config: Config, workers: Vec<Connections>) -> Result<Self, StartError> {
        let ground = Self { config, workers };
        let hot = topology_guard::hot_rungs(&*ground.first().ledger).await?;
        let topology = ground.config.topology().with_siblings(&hot);
        ground.first().broker.remove(&topology).await?;
        delays::declare(&ground.config, ground.first()).await?;
        ground.end_chains().await?;
        Ok(ground)
    }

    /// Ends all chains of the configuration's kinds.
    async fn end_chains(&self) -> Result<(), StartError> {
        for kind in self.config.kinds.keys() {
            let ours = ChainFilter { kind: Some(kind.clone()), key: None, ..ChainFilter::default() };
            self.first().ledger.order_chains(ours, ChainOrder::Retire).await?;
        }
        Ok(())
    }

    /// The configuration of all workers.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The connections of the first worker.
    pub(super) fn first(&self) -> &Connections {
        &self.workers[0]
    }

    /// Replaces the workers' brokers by the answers of `wrap`.
    pub(super) fn through(mut self, wrap: impl Fn(Arc<dyn Broker>) -> Arc<dyn Broker>) -> Self {
        self.workers.iter_mut().for_each(|worker| worker.broker = wrap(worker.broker.clone()));
        self
    }

    /// Begins `chains` chains, on all queues in turn, their first ticks spread over `window`; by default over their
    /// interval.
    pub(super) async fn enroll(
        &self,
        chains: usize,
        window: Option<Duration>,
        note: impl FnMut(usize),
    ) -> Result<(), StartError> {
        let run = self.first().entropy.token();
        let queues: Vec<&String> = self.config.queues.keys().collect();
        let entity = |n: usize| Entity::new(format!("{run}-{n}"), queues[n % queues.len()], "{}");
        self.enroll_these(KIND, window, (0..chains).map(entity), note).await
    }

    /// Begins chains of this kind. `note` is told how many have begun.
    pub(super) async fn enroll_these(
        &self,
        kind: &str,
        window: Option<Duration>,
        entities: impl Iterator<Item = Entity>,
        mut note: impl FnMut(usize),
    ) -> Result<(), StartError> {
        let mut enroller = Enroller::new(&self.config, self.first().clone(), kind, window, true)?;
        let (mut entities, mut begun) = (entities.peekable(), 0);
        while entities.peek().is_some() {
            let batch: Vec<Entity> = entities.by_ref().take(BATCH).collect();
            begun += batch.len();
            let tally = enroller.enroll(batch).await?;
            if tally.unsent > 0 {
                return Err(StartError::Setup(format!("{} first messages could not be sent", tally.unsent)));
            }
            note(begun);
        }
        Ok(())
    }

    /// Begins `chains` chains as `roundelay enroll` does, from a roster in CSV, row by row.
    pub(super) async fn enroll_roster(&self, chains: usize, mut note: impl FnMut(usize)) -> Result<(), StartError> {
        let wishes = Wishes { own_process: true, ..Wishes::default() };
        let failed = |error: SyncError| StartError::Setup(error.to_string());
        let mut sync = roster::Sync::begin(&self.config, self.first().clone(), KIND, wishes).await.map_err(failed)?;
        let source = Roster { run: self.first().entropy.token(), rows: chains, next: 0, line: Vec::new(), read: 0 };
        for (n, row) in roster::rows(Format::Csv, source).map_err(StartError::Setup)?.enumerate() {
            if let Some(bad) = sync.row(row).await.map_err(failed)? {
                return Err(StartError::Setup(bad.reason));
            }
            note(n + 1);
        }
        match sync.end().await.map_err(failed)?.tally.unsent {
            0 => Ok(()),
            unsent => Err(StartError::Setup(format!("{unsent} first messages could not be sent"))),
        }
    }

    /// Starts the workers and waits until they consume. `started` is called at each start, and `probe` watches.
    pub(super) async fn start(
        &self,
        chores: bool,
        probe: Option<Arc<dyn Probe>>,
        started: impl Fn(&Job) + Clone + Send + Sync + 'static,
    ) -> Result<Workers, StartError> {
        let prepare = |engine: Engine| {
            let engine = if chores { engine } else { engine.without_chores() };
            match &probe {
                Some(probe) => engine.probe(probe.clone()),
                None => engine,
            }
        };
        self.start_prepared(prepare, started).await
    }

    /// Starts workers with engines that `prepared` has prepared.
    pub(super) async fn start_prepared(
        &self,
        prepare: impl Fn(Engine) -> Engine,
        started: impl Fn(&Job) + Clone + Send + Sync + 'static,
    ) -> Result<Workers, StartError> {
        let mut workers = Workers { stop: CancellationToken::new(), telemetries: Vec::new(), engines: Vec::new() };
        for connections in &self.workers {
            let mut engine = prepare(Engine::new(self.config.clone()).connections(connections.clone()));
            for kind in self.config.kinds.keys() {
                let started = started.clone();
                engine = engine.handler(kind, move |job: Job, _: Context| {
                    started(&job);
                    async { Outcome::Done }
                });
            }
            workers.telemetries.push(engine.telemetry());
            let ready = engine.ready();
            let mut engine = tokio::spawn(engine.run(workers.stop.clone()));
            tokio::select! {
                () = ready.wait() => {}
                ended = &mut engine => ended.map_err(|error| StartError::Setup(error.to_string()))??,
            }
            workers.engines.push(engine);
        }
        Ok(workers)
    }

    /// The work of all workers' ledgers.
    pub(super) fn traffic(&self) -> Traffic {
        self.workers.iter().map(|worker| worker.ledger.traffic()).fold(Traffic::default(), |sum, one| Traffic {
            writes: sum.writes + one.writes,
            slots: sum.slots + one.slots,
            reads: sum.reads + one.reads,
        })
    }

    /// Messages that wait in the queue, and that no worker has.
    pub(super) async fn backlog(&self) -> Result<u64, StartError> {
        Ok(self.first().broker.depth(QUEUE).await?.ready)
    }

    /// Ends the chains, so that a later worker on this ledger does not run them, and cleans up on the broker, with
    /// connections of its own.
    pub(super) async fn clear(self) -> Result<(), StartError> {
        self.end_chains().await?;
        if !matches!(self.config.broker.url, BrokerUrl::Embedded) {
            let connections = Connections::open(&self.config).await?;
            let hot = topology_guard::hot_rungs(&*connections.ledger).await?;
            connections.broker.remove(&self.config.topology().with_siblings(&hot)).await?;
            connections.broker.close().await;
        }
        Ok(())
    }
}

/// A roster in CSV that is generated while it is read, so that it takes no memory beside the chains.
struct Roster {
    run: String,
    rows: usize,
    next: usize,
    line: Vec<u8>,
    read: usize,
}

impl Read for Roster {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.read == self.line.len() && self.next <= self.rows {
            let line = match self.next {
                0 => "key,platform,country\n".into(),
                nth => format!("{}-{nth},ios,de\n", self.run),
            };
            (self.line, self.read, self.next) = (line.into_bytes(), 0, self.next + 1);
        }
        let count = into.len().min(self.line.len() - self.read);
        into[..count].copy_from_slice(&self.line[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}

/// Workers that run.
pub(super) struct Workers {
    stop: CancellationToken,
    telemetries: Vec<Arc<Telemetry>>,
    engines: Vec<JoinHandle<Result<(), StartError>>>,
}

impl Workers {
    /// Forgets waits and latenesses so far.
    pub(super) fn reset(&self) {
        self.telemetries.iter().for_each(|telemetry| telemetry.reset_lateness());
    }

    /// How long jobs waited for slots.
    pub(super) fn waits(&self) -> Latenesses {
        let mut all = Latenesses::default();
        self.telemetries.iter().for_each(|telemetry| all.add(&telemetry.waits()));
        all
    }

    /// Stops the workers as a signal would.
    pub(super) async fn stop(self) -> Result<(), StartError> {
        self.stop.cancel();
        for engine in self.engines {
            engine.await.map_err(|error| StartError::Setup(error.to_string()))??;
        }
        Ok(())
    }
}
