//! What the parts of a worker share.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use roundelay_broker::BrokerError;
use roundelay_config::{Config, KindSettings};
use roundelay_handler::Handler;
use roundelay_ledger::comeback::Comeback;
use roundelay_ledger::{Kinds, Ledger};
use roundelay_model::clock::Entropy;
use roundelay_model::schedule::Schedule;
use roundelay_model::topology::Topology;
use tokio::sync::{Notify, SetOnce};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chores::Chores;
use crate::companion::Handle;
use crate::connections::Connections;
use crate::desk::Desk;
use crate::dispatch::Dispatch;
use crate::life::Life;
use crate::orders::Orders;
use crate::outage::Outage;
use crate::queue::QueueRun;
use crate::suspects::Suspects;
use crate::telemetry::Telemetry;
use crate::telemetry::figures::KindFigures;
use crate::throttle::Throttles;
use crate::trace::Tracer;
use crate::vitals::Vitals;
use crate::wall;

/// Kinds' settings, which are replaced while the worker runs.
pub(crate) type SharedKinds = Arc<RwLock<Arc<BTreeMap<String, Arc<KindSettings>>>>>;

/// What the parts of a running engine share.
pub(crate) struct Core {
    pub(crate) worker: Arc<str>,
    /// Those of the configuration as it was last read.
    pub(crate) kinds: SharedKinds,
    /// Whether the ledger takes claims and finishes.
    pub(crate) comeback: Comeback,
    /// By kind.
    pub(crate) figures: HashMap<String, KindFigures>,
    pub(crate) handlers: HashMap<String, Arc<dyn Handler>>,
    /// Every queue of the configuration, consumed here or not, and the throttle that paces it.
    pub(crate) known_queues: BTreeMap<String, Option<String>>,
    /// Those consumed here, each with its lanes from the lowest.
    pub(crate) queues: BTreeMap<String, Vec<Arc<QueueRun>>>,
    pub(crate) throttles: Throttles,
    pub(crate) catch_up: roundelay_config::CatchUpSettings,
    /// What this worker does for the engine itself.
    pub(crate) chores: Option<Arc<Chores>>,
    /// What programs order of chains.
    pub(crate) orders: Orders,
    pub(crate) grace: Duration,
    pub(crate) topology: Topology,
    pub(crate) dispatch: Dispatch,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) entropy: Entropy,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) ready: Arc<SetOnce<()>>,
    /// The topology is there: a worker that began without the broker declares it later.
    pub(crate) declared: SetOnce<()>,
    /// Epochs of chains whose messages this worker holds, with how many of them.
    pub(crate) in_hand: Mutex<HashMap<i64, Held>>,
    pub(crate) vitals: Arc<Vitals>,
    /// A session of another worker is over, and may have left chains.
    pub(crate) orphaned: Notify,
    /// One of them was silent: its worker may have messages in hand still.
    pub(crate) silent: AtomicBool,
    /// Whether the broker is away, so that the ledger is in charge.
    pub(crate) outage: Outage,
    pub(crate) wall: wall::UpToDate,
    /// Keeps apart what was in hand when workers died.
    pub(crate) suspects: Suspects,
    /// Records what becomes of deliveries.
    pub(crate) tracer: Tracer,
    /// Takes what runs report.
    pub(crate) desk: Arc<Desk>,
    /// Something was put in the ledger for an embedded broker.
    pub(crate) kept: Notify,
    pub(crate) life: Life,
    /// When it last went round to say how it is, and to read what operators have ordered.
    pub(crate) attended: Arc<Mutex<Option<Instant>>>,
    /// An operator wants this worker to take nothing more.
    pub(crate) drained: AtomicBool,
    /// The worker takes nothing more, and what has not started is put back.
    pub(crate) stopping: CancellationToken,
    /// The grace is over: what still runs ends.
    pub(crate) abort: CancellationToken,
}

/// Notes, while it lives, that a message of this chain is in this worker's hand.
pub(crate) struct InHand<'a> {
    pub(crate) core: &'a Core,
    pub(crate) epoch: i64,
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

/// The messages of one chain in this worker's hand.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) messages: u32,
    /// Held while one of them asks for its claim: a claim whose answer was lost may be made again only while no other
    /// message can have claimed the tick.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Core {
    /// Declares the topology, and refuses a broker on which messages would be lost.
    pub(crate) async fn declare(&self) -> Result<(), BrokerError> {
        self.dispatch.broker.apply(&self.topology).await?;
        self.dispatch.broker.verify(&self.topology).await?;
        // Nobody else sets it.
        let _ = self.declared.set(());
        Ok(())
    }

    /// What companions get of this worker.
    pub(crate) fn companion_handle(&self, config: Config, connections: Connections) -> Handle {
        // Workers do not tell of the engine's own queue, and operators cannot pause it.
        let own = self.chores.as_ref().map(|chores| &chores.queue);
        let queues = self.known_queues.iter().filter(|(name, _)| Some(*name) != own);
        Handle {
            config,
            connections,
            worker: self.worker.clone(),
            telemetry: self.telemetry.clone(),
            throttles: self.throttles.clone(),
            queues: queues.map(|(name, throttle)| (name.clone(), throttle.clone())).collect(),
            slack: self.catch_up.slack,
            schedule_of: Arc::new(schedules_of(self.kinds.clone())),
            ready: self.ready.clone(),
            stop: self.stopping.clone(),
            desk: self.desk.clone(),
            attended: self.attended.clone(),
        }
    }

    pub(crate) fn in_hand(&self, epoch: i64) -> InHand<'_> {
        let mut held = self.in_hand.lock();
        let held = held.entry(epoch).or_default();
        held.messages += 1;
        InHand { core: self, epoch, turn: held.turn.clone() }
    }

    /// The settings of a kind.
    pub(crate) fn kind(&self, name: &str) -> Option<Arc<KindSettings>> {
        self.kinds.read().get(name).cloned()
    }

    pub(crate) fn figures(&self, kind: &str) -> Option<&KindFigures> {
        self.figures.get(kind)
    }

    /// The kinds whose chains this worker looks after.
    pub(crate) fn kinds(&self) -> Kinds {
        let kinds = self.kinds.read();
        let recurring = kinds.iter().filter(|(_, kind)| kind.recurrence.is_some()).map(|(name, _)| name.clone());
        Kinds { all: kinds.keys().cloned().collect(), recurring: recurring.collect() }
    }

    /// How many messages of this chain are in this worker's hand.
    pub(crate) fn holds(&self, epoch: i64) -> u32 {
        let held = self.in_hand.lock();
        held.get(&epoch).map_or(0, |held| held.messages)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut held = self.core.in_hand.lock();
        if let Some(of_chain) = held.get_mut(&self.epoch) {
            of_chain.messages -= 1;
            if of_chain.messages == 0 {
                held.remove(&self.epoch);
            }
        }
    }
}

/// The schedule of a kind, or of the engine's own.
pub(crate) fn schedules_of(kinds: SharedKinds) -> impl Fn(&str) -> Option<Schedule> {
    move |kind| {
        if roundelay_config::is_internal(kind) {
            return Some(Schedule::fixed_delay(Duration::ZERO, Duration::ZERO));
        }
        let kinds = kinds.read();
        Some(kinds.get(kind)?.recurrence.as_ref()?.schedule.clone())
    }
}

/// Each kind's settings, to be held on to while they are replaced.
pub(crate) fn shared(kinds: BTreeMap<String, KindSettings>) -> BTreeMap<String, Arc<KindSettings>> {
    kinds.into_iter().map(|(name, kind)| (name, Arc::new(kind))).collect()
}
