//! A platform queue, or a lane of it, being worked through: as long and as widely as operators let it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Flow};
use roundelay_model::schedule::Balances;

use crate::concurrency::ConcurrencyLimit;
use crate::flow_watch::FlowWatch;
use crate::telemetry::figures::{QueueFigures, ThrottleFigures};
use crate::throttle::Throttle;

/// A platform queue being consumed, or one of its lanes.
pub(super) struct QueueRun {
    /// The platform queue.
    pub(super) name: Arc<str>,
    /// The broker's queue.
    pub(super) source: String,
    pub(super) lane: u8,
    /// What is configured: how many run at the same time, how many messages are held, and how many of these at most.
    pub(super) places: usize,
    pub(super) prefetch: u16,
    pub(super) ahead: Option<u16>,
    pub(super) flow_watch: FlowWatch,
    /// Among all that share its throttle.
    pub(super) priority: i32,
    /// What the lanes share.
    pub(super) room: Arc<ConcurrencyLimit>,
    pub(super) throttle: Option<(Arc<Throttle>, Arc<ThrottleFigures>)>,
    pub(super) figures: Arc<QueueFigures>,
    /// Ticks in hand that came from the ledger, without a message.
    pub(super) handed_out: Arc<AtomicUsize>,
    /// How long the last job that came to the end of its wait had waited for a place and a slot, in milliseconds.
    pub(super) waited: AtomicU64,
    /// The latest due time among the messages that came from this queue. Messages enter a queue
    /// when they are due, so whatever was due well before this has been delivered, or is lost.
    pub(super) frontier: AtomicI64,
    /// The due times that this worker has given out; the lanes share them.
    pub(super) balances: Arc<Balances>,
}

/// The queues consumed here, each with its lanes from the lowest.
pub(crate) type Queues = BTreeMap<String, Vec<Arc<QueueRun>>>;

impl QueueRun {
    pub(super) fn flow(&self) -> Flow {
        self.flow_watch.flow()
    }

    /// Does what was ordered of the queue and of this worker.
    pub(super) fn obey(&self, queue: &FleetOrders, worker: &FleetOrders) {
        let flow = Flow::of(self.places, self.prefetch, self.ahead, queue, worker);
        self.room.resize(flow.places);
        self.flow_watch.set(flow);
    }

    /// The throttle whose slot is part of the leave to start: that of one with keys is waited for later.
    pub(super) fn paced_by(&self) -> Option<&str> {
        let (throttle, _) = self.throttle.as_ref()?;
        throttle.settings().key.is_none().then(|| throttle.name())
    }

    /// Waits until nothing more is taken.
    pub(super) async fn closed(&self) {
        self.flow_watch.until(|flow| !flow.open).await;
    }

    /// A job has waited for this long for a place and a slot.
    pub(super) fn has_waited(&self, wait: Duration) {
        self.waited.store(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long jobs wait for places and slots, by the last one.
    pub(super) fn waits(&self) -> Duration {
        Duration::from_millis(self.waited.load(Ordering::Relaxed))
    }

    pub(super) fn progressed_to(&self, due: Time) {
        self.frontier.fetch_max(due.as_millis(), Ordering::Relaxed);
    }

    /// `None` before the first message.
    pub(super) fn frontier(&self) -> Option<Time> {
        Some(self.frontier.load(Ordering::Relaxed)).filter(|due| *due != i64::MIN).map(Time::from_millis)
    }
}
