//! A platform queue, or a lane of it, being worked through: as long and as widely as operators let it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Flow};
use roundelay_model::job::Job;
use roundelay_model::pacing::fair::Tenant;
use roundelay_model::schedule::Balances;

use crate::concurrency::ConcurrencyLimit;
use crate::fair::lane::{FairLane, REACH};
use crate::flow_watch::FlowWatch;
use crate::pace::Pace;
use crate::telemetry::figures::{QueueFigures, ThrottleFigures};
use crate::throttle::Throttle;

/// What was sent to the end of a queue has come by then, as a rule.
const MAX_BEHIND: Duration = Duration::from_secs(600);

/// A message that comes so long after it was due was held up,
const HANDED_LATE: Duration = Duration::from_millis(50);
/// and one that comes so long after was not sent in time.
const SENT_ANEW: Duration = Duration::from_secs(30);

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
    /// What is in hand of its tenants.
    pub(super) fair: Arc<FairLane>,
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

    /// Whose a job is; the empty tenant where it does not matter.
    pub(super) fn tenant_of(&self, job: &Job) -> Tenant {
        self.fair.tenant_of(job)
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

    /// How many deliveries the broker gives at once.
    pub(super) fn reach(&self, flow: Flow) -> u16 {
        flow.prefetch.saturating_add(if self.fair.is_fair() { REACH } else { 0 })
    }

    /// How many deliveries are here that are not settled.
    pub(super) fn in_hand(&self) -> usize {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Whether tenants share the slots of its throttle.
    pub(super) fn shares_slots(&self) -> bool {
        self.throttle.as_ref().is_some_and(|(throttle, _)| throttle.settings().fair.is_some())
    }

    /// Whether as many deliveries are here as the broker gives at once, so that more may wait there.
    pub(super) fn is_full(&self) -> bool {
        self.in_hand() >= usize::from(self.reach(self.flow()))
    }

    /// Whether far fewer deliveries are here than the broker may give. A queue that waits for this worker is never far
    /// from full: what is acknowledged is replaced as soon as the broker has heard of it.
    fn has_room(&self) -> bool {
        self.in_hand() * 2 < usize::from(self.reach(self.flow()))
    }

    /// Whether a message that has just come, so long after it was due, is late because of the broker: there was room for
    /// it here. What is later still was sent anew, by catch-up or after an outage.
    pub(super) fn was_handed_late(&self, late: Duration) -> bool {
        (HANDED_LATE..SENT_ANEW).contains(&late) && self.has_room()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delays::BEHIND;
    use crate::telemetry::Telemetry;

    fn queue(prefetch: u16) -> Arc<QueueRun> {
        Arc::new(QueueRun {
            name: "q".into(),
            source: "q".into(),
            lane: 0,
            places: 1,
            prefetch,
            ahead: None,
            flow_watch: FlowWatch::new(Flow { open: true, places: 1, prefetch }),
            priority: 0,
            fair: FairLane::new(None),
            room: ConcurrencyLimit::new(1, None),
            throttle: None,
            figures: Telemetry::default().queue("q"),
            handed_out: Arc::default(),
            unsettled: AtomicUsize::new(0),
            sent_behind: AtomicI64::new(0),
            behind: Pace::new(BEHIND),
            frontier: AtomicI64::new(i64::MIN),
            balances: Arc::default(),
        })
    }

    #[test]
    fn a_queue_is_full_while_as_many_are_here_as_the_broker_gives_at_once() {
        let queue = queue(2);
        let first = queue.holds();
        assert!(!queue.is_full(), "one of two");
        let second = queue.holds();
        assert!(queue.is_full(), "two of two");
        drop(first);
        assert!(!queue.is_full(), "one is settled");
        queue.flow_watch.set(Flow { prefetch: 1, ..queue.flow() });
        assert!(queue.is_full(), "an operator has made it narrower");
        drop(second);
        assert!(!queue.is_full(), "none");
    }

    /// What has woken comes past what waits at the end of the queue. So it does not show that this is lost.
    #[test]
    fn what_has_woken_moves_the_frontier_only_where_nothing_was_sent_to_the_end() {
        let (queue, at, end) = (queue(1), Time::from_millis, 1_000_000);
        // Of a message that comes: when it was due, whether it has woken, and when it comes. `None`: one is sent to the end.
        let table = [
            ("none was sent to the end", Some((700_000, true, 700_000)), Some(700_000)),
            ("one is sent there", None, Some(700_000)),
            ("one has woken", Some((end + 1_000, true, end + 1_000)), Some(700_000)),
            ("one comes from the end", Some((end - 1_000, false, end + 2_000)), Some(end - 1_000)),
            ("an older one", Some((end - 2_000, false, end + 3_000)), Some(end - 1_000)),
            ("one has woken much later", Some((end + 600_000, true, end + 600_000)), Some(end - 1_000)),
            ("and later still", Some((end + 600_001, true, end + 600_001)), Some(end + 600_001)),
        ];
        assert_eq!(queue.frontier(), None);
        for (label, came, frontier) in table {
            match came {
                Some((due, woken, now)) => queue.progressed_to(at(due), woken, at(now)),
                None => queue.sent_to_the_end(at(end)),
            }
            assert_eq!(queue.frontier(), frontier.map(at), "{label}");
        }
    }
}
