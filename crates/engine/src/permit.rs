//! The permit: leave to start, which a job gets before it is claimed or taken in hand.

use std::time::Duration;

use roundelay_broker::Delivery;
use roundelay_model::clock::Time;
use roundelay_model::pacing::fair::Tenant;
use roundelay_model::waits::Waits;
use tokio::time::{Instant, sleep, timeout};

use crate::concurrency::RunPlace;
use crate::core::Core;
use crate::fair::seats::Seat;
use crate::queue::QueueRun;
use crate::throttle::{Slot, Want};

/// How long a message waits for its turn in a worker before it goes back to its queue, to come
/// again. RabbitMQ closes the channel of a consumer that keeps one for 30 minutes, and a handler
/// may take 24 of them.
pub(super) const MAX_WAITING: Duration = Duration::from_secs(5 * 60 + 10);

/// Of that, what is left for writing that it is put off.
const TIME_TO_SAY: Duration = Duration::from_secs(5);
/// A job without a slot is postponed for at least this long.
const MIN_BLOCK: Duration = Duration::from_secs(1);

/// Leave to start: room among the queue's running jobs, and a slot of its throttle.
pub(super) struct Permit {
    pub(super) slot: Option<Slot>,
    /// There is no slot, nor one soon: the job is postponed for this long.
    pub(super) blocked: Option<Duration>,
    /// How long the job has waited for its tenant's quota and turn.
    pub(super) waits: Waits,
    /// None for what does not start.
    pub(super) _room: Option<RunPlace>,
    /// Where quotas limit how many jobs of a tenant run at the same time.
    pub(super) _seat: Option<Seat>,
}

impl Core {
    /// A seat, where the tenant has a quota, room among the running, then a slot of the queue's throttle: in this order, because a slot
    /// is for now and not for when there is room. `None` when the worker stops, when the queue was
    /// closed, when it takes so long that the message is to come again, or when the broker has taken it back.
    pub(super) async fn permit(
        &self,
        queue: &QueueRun,
        kind: &str,
        due: Option<Time>,
        tenant: &Tenant,
        (delivery, tick): (&Delivery, bool),
    ) -> Option<Permit> {
        let since = Instant::now();
        let wait = async {
            let seat = self.seat(queue, tenant).await;
            let quota = since.elapsed();
            loop {
                let mut room = queue.room.enter(queue.lane, tenant).await;
                let mut blocked = None;
                let slot = match &queue.throttle {
                    // Asked once more below, since this can take long too.
                    Some(_) if !self.counts(delivery, tick) => return None,
                    Some((throttle, figures)) if throttle.settings().key.is_none() => {
                        let _waiting = figures.wait();
                        let due = due.unwrap_or_else(|| self.ledger.now());
                        let cost = self.catalog.cost_of(kind);
                        let want =
                            Want { priority: queue.priority, tenant: tenant.clone(), due, cost, ..Want::default() };
                        // There is time left to say so.
                        let left = MAX_WAITING.saturating_sub(since.elapsed() + TIME_TO_SAY);
                        let slot = timeout(throttle.settings().block.min(left), throttle.slot("", want.clone()));
                        let slot = tokio::select! {
                            biased;
                            slot = slot => slot,
                            // A job of a higher lane, or of another tenant, takes this place, and this job waits for a place again.
                            () = room.wanted() => continue,
                        };
                        blocked = slot.is_err().then(|| throttle.wait_of("", &want).max(MIN_BLOCK));
                        slot.ok()
                    }
                    _ => None,
                };
                let turn = if queue.fair.is_fair() { since.elapsed().saturating_sub(quota) } else { Duration::ZERO };
                let waits = Waits { quota: if seat.is_some() { quota } else { Duration::ZERO }, turn };
                let permit = Permit { slot, blocked, waits, _room: Some(room), _seat: seat };
                return self.counts(delivery, tick).then_some(permit);
            }
        };
        tokio::select! {
            biased;
            () = self.stop.put_back(queue) => None,
            permit = wait => permit,
            () = sleep(MAX_WAITING) => None,
        }
    }

    /// Whether a delivery is still this worker's to run. One of a connection that is gone comes again; but while the
    /// broker is away nothing comes, and the claim decides who runs a tick. So workers go on with those in hand until
    /// the ledger hands out others.
    fn counts(&self, delivery: &Delivery, tick: bool) -> bool {
        delivery.is_alive() || (tick && self.publishing.dispatch.broker.unavailable().is_some())
    }
}
