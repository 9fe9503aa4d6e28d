//! A platform queue, or a lane of it, being worked through: as long and as widely as operators let it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Flow};
use roundelay_model::schedule::Balances;

use crate::concurrency::ConcurrencyLimit;
use crate::flow_watch::FlowWatch;
use crate::pace::Pace;
use crate::telemetry::figures::{QueueFigures, ThrottleFigures};
use crate::throttle::Throttle;

/// What was sent to the end of a queue has come by then, as a rule.
const MAX_BEHIND: Duration = Duration::from_secs(600);

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
    /// Deliveries that are not settled.
    pub(super) unsettled: AtomicUsize,
    /// When a message was last sent to the end of the queue, in milliseconds.
    pub(super) sent_behind: AtomicI64,
    /// How many messages are sent to the end of the queue.
    pub(super) behind: Pace,
    /// The latest due time among the messages that came from this queue. Messages enter a queue
    /// when they are due, so whatever was due well before this has been delivered, or is lost.
    pub(super) frontier: AtomicI64,
    /// The due times that this worker has given out; the lanes share them.
    pub(super) balances: Arc<Balances>,
}

/// Counts a delivery as unsettled while it lives.
pub(super) struct Unsettled(Arc<QueueRun>);

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.0.unsettled.fetch_sub(1, Ordering::Relaxed);
    }
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

    /// A delivery is here, until the answer is dropped.
    pub(super) fn holds(self: &Arc<Self>) -> Unsettled {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        Unsettled(self.clone())
    }

    /// Whether as many deliveries are here as the broker gives at once, so that more may wait there.
    pub(super) fn is_full(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) >= usize::from(self.flow().prefetch)
    }

    /// A message was sent to the end of the queue.
    pub(super) fn sent_to_the_end(&self, now: Time) {
        self.sent_behind.fetch_max(now.as_millis(), Ordering::Relaxed);
    }

    /// A message that was due then has come from the queue. One that has `woken` may have come past others, which wait
    /// at the end: then that says nothing of these.
    pub(super) fn progressed_to(&self, due: Time, woken: bool, now: Time) {
        let behind = Time::from_millis(self.sent_behind.load(Ordering::Relaxed));
        if !woken || now.since(behind) > MAX_BEHIND {
            self.frontier.fetch_max(due.as_millis(), Ordering::Relaxed);
        }
    }

    /// `None` before the first message.
    pub(super) fn frontier(&self) -> Option<Time> {
        Some(self.frontier.load(Ordering::Relaxed)).filter(|due| *due != i64::MIN).map(Time::from_millis)
    }
}
