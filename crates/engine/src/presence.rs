//! Says how this worker is, and does what operators have ordered of it and of its queues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_config::is_internal;
use roundelay_ledger::LedgerError;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{
    Counter, EVERY, FleetOrders, Lateness, OLDEST, Presence, QueuePresence, SECONDS, Subject, ThroughputSample,
    WorkerState, host,
};
use roundelay_model::pacing::fair::Shares;
use tokio::time::{Instant, sleep, timeout};

use crate::catalog::Catalog;
use crate::chores::Chores;
use crate::kind_stats::OwnKindStats;
use crate::observing::Observing;
use crate::patient::PatientLedger;
use crate::queue::QueueRun;
use crate::queue::Queues;
use crate::stop::Stop;
use crate::telemetry::Count;
use crate::telemetry::lateness::Latenesses;
use crate::vitals::Vitals;

/// What the task needs of the worker.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) worker: Arc<str>,
    pub(crate) ledger: PatientLedger,
    pub(crate) observing: Arc<Observing>,
    pub(crate) stop: Stop,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) chores: Option<Arc<Chores>>,
    pub(crate) attended: Arc<Mutex<Option<Instant>>>,
}

/// The length of a second, at whose end the starts of it are counted.
const SECOND: i64 = 1_000;
/// After this many seconds the orders are read again.
const READ: u32 = 2;
/// What could not be written is kept for this many sets of ten seconds, and written with the next.
const MAX_UNTOLD: usize = 60;
/// How long the ledger may take to answer. A round with two questions stays below the minute after which a task that
/// has not gone round counts as stuck.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long a worker that ends waits for the ledger to forget it.
const LEAVE: Duration = Duration::from_secs(2);

/// Does what was ordered of this worker's queues, and of the worker.
pub fn obey(needs: &Needs, orders: &BTreeMap<Subject, FleetOrders>) {
    let none = FleetOrders::default();
    let worker = orders.get(&Subject::Worker(needs.worker.to_string())).unwrap_or(&none);
    needs.stop.drained.store(worker.closed.is_some(), Ordering::Relaxed);
    needs.shares.obey(orders);
    for (name, lanes) in platform_queues(needs) {
        let queue = orders.get(&Subject::Queue(name.clone())).unwrap_or(&none);
        lanes.iter().for_each(|lane| lane.obey(queue, worker));
    }
}

/// All but the one of what the engine does for itself, which is no job that a person could wish to hold back.
fn platform_queues(needs: &Needs) -> impl Iterator<Item = (&String, &Vec<Arc<QueueRun>>)> {
    let own = needs.chores.as_ref().map(|chores| chores.queue.as_str());
    needs.queues.iter().filter(move |(name, _)| Some(name.as_str()) != own)
}

/// Counts each second, reads orders every other one, and tells every ten, or at once when something has changed.
pub async fn run(needs: Needs) {
    let (mut told, mut nth) = (Told::begin(&needs), 0);
    loop {
        *needs.attended.lock() = Some(Instant::now());
        match timeout(PATIENCE, told.tell(&needs)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the ledger does not take how this worker is"),
            Err(_) => tracing::debug!("the ledger does not take how this worker is: it does not answer"),
        }
        let now = needs.ledger.now().as_millis();
        sleep(Duration::from_millis((SECOND - now.rem_euclid(SECOND)).unsigned_abs())).await;
        told.count(&needs);
        needs.observing.telemetry.notices.tell();
        nth += 1;
        if nth % READ == 0 {
            match timeout(PATIENCE, needs.ledger.fleet_orders()).await {
                Ok(Ok(orders)) => obey(&needs, &orders),
                Ok(Err(error)) => tracing::debug!(%error, "what operators have ordered cannot be read"),
                Err(_) => tracing::debug!("what operators have ordered cannot be read: the ledger does not answer"),
            }
        }
    }
}

/// Removes the worker from the ledger, so that it is not taken for dead.
pub async fn leave(needs: &Needs) {
    match timeout(LEAVE, needs.ledger.leave(needs.worker.to_string())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the ledger does not forget this worker yet"),
        Err(_) => tracing::debug!("the ledger does not forget this worker yet: it does not answer"),
    }
}

/// What this worker has told, and what it has yet to tell.
struct Told {
    started: Time,
    all: Counter,
    queues: BTreeMap<String, Counted>,
    untold: Vec<ThroughputSample>,
    kinds: OwnKindStats,
    /// When the figures of kinds were last taken.
    taken: Time,
    /// When it last told, and of what.
    last: Option<(Instant, Look)>,
}

/// What is told at once when it has changed: what the worker does, and of each queue whether it is open, and how wide.
type Look = (WorkerState, Vec<(bool, usize)>);

/// The starts of a queue.
#[derive(Default)]
struct Counted {
    counter: Counter,
    /// In a second, over the last ten.
    rate: f64,
    late: Lateness,
}

impl Told {
    fn begin(needs: &Needs) -> Self {
        let started = needs.ledger.now();
        let counted = || Counted { counter: Counter::starting(started), ..Counted::default() };
        let queues = platform_queues(needs).map(|(name, _)| (name.clone(), counted())).collect();
        Self {
            started,
            all: Counter::starting(started),
            queues,
            untold: Vec::new(),
            kinds: OwnKindStats::default(),
            taken: started,
            last: None,
        }
    }

    /// A second is over.
    fn count(&mut self, needs: &Needs) {
        let now = needs.ledger.now();
        let over = self.all.look(needs.observing.telemetry.get(Count::Started), now);
        let mut late = Latenesses::default();
        for (name, lanes) in platform_queues(needs) {
            let (Some(counted), Some(lane)) = (self.queues.get_mut(name), lanes.first()) else { continue };
            if let Some((_, starts)) = counted.counter.look(lane.figures.starts(), now) {
                counted.rate = starts.iter().sum::<u64>() as f64 / SECONDS as f64;
            }
            if over.is_some() {
                let recent = lane.figures.take_recent();
                counted.late = recent.summary();
                late.add(&recent);
            }
        }
        if let Some((at, starts)) = over {
            let late_ms = (!late.is_empty()).then(|| late.summary());
            self.untold.push(ThroughputSample { at, starts, late_ms });
            let surplus = self.untold.len().saturating_sub(MAX_UNTOLD);
            self.untold.drain(..surplus);
            for (kind, figures) in &needs.observing.figures {
                self.kinds.add(kind, figures.take_recent(), self.taken, now);
            }
            self.taken = now;
        }
    }

    async fn tell(&mut self, needs: &Needs) -> Result<(), LedgerError> {
        let presence = self.presence(needs);
        let flows = presence.queues.iter().map(|queue| (queue.open, queue.concurrency)).collect();
        let look: Look = (presence.state, flows);
        let as_told = self.last.as_ref().is_some_and(|(at, last)| at.elapsed() < EVERY && *last == look);
        if as_told && self.untold.is_empty() {
            return Ok(());
        }
        needs.ledger.attend(presence, self.untold.clone()).await?;
        self.untold.clear();
        self.last = Some((Instant::now(), look));
        let buckets = self.kinds.untold();
        if !buckets.is_empty() {
            needs.ledger.note_kinds(needs.worker.to_string(), buckets.clone()).await?;
            self.kinds.told(&buckets);
        }
        self.kinds.clear(needs.ledger.now());
        Ok(())
    }

    fn presence(&self, needs: &Needs) -> Presence {
        let queues = platform_queues(needs).filter_map(|(name, lanes)| {
            let (lane, counted) = (lanes.first()?, self.queues.get(name)?);
            let flow = lane.flow();
            Some(QueuePresence {
                queue: name.clone(),
                concurrency: flow.places,
                running: lane.figures.running(),
                waiting: lane.throttle.as_ref().map_or(0, |(_, figures)| figures.waiting()),
                open: flow.open,
                starts_per_second: counted.rate,
                late_ms: counted.late,
            })
        });
        let queues: Vec<QueuePresence> = queues.collect();
        let runs = queues.iter().any(|queue| queue.running > 0);
        let state = match (needs.stop.stopping.is_cancelled(), needs.stop.drained.load(Ordering::Relaxed)) {
            (true, _) => WorkerState::Stopping,
            (false, false) => WorkerState::Working,
            (false, true) if runs => WorkerState::Draining,
            (false, true) => WorkerState::Drained,
        };
        let kinds = needs.catalog.names().all.into_iter().filter(|kind| !is_internal(kind));
        Presence {
            worker: needs.worker.to_string(),
            host: host(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            started: self.started,
            state,
            queues,
            kinds: kinds.collect(),
            leases: needs.vitals.count(),
            oldest: needs.vitals.oldest(OLDEST),
        }
    }
}
