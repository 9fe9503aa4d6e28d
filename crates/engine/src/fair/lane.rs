//! What a worker has in hand of a lane of a queue, by tenant.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use parking_lot::Mutex;
use roundelay_broker::Settle;
use roundelay_model::clock::Time;
use roundelay_model::job::Job;
use roundelay_model::pacing::fair::Tenant;
use roundelay_model::pacing::key::KeyPath;
use tokio::sync::Notify;

use super::hand::Hand;

/// So many more messages than are to be held are asked for from the broker: what exceeds shares is left to the ledger in
/// sets of as many.
pub(crate) const REACH: u16 = 256;

/// What a worker has in hand of a lane of a queue.
pub(crate) struct FairLane {
    /// Names the tenant, if the queue is fair. One that was fair once may have left a backlog.
    pub(super) by: Option<KeyPath>,
    pub(super) hand: Mutex<Hand>,
    /// Messages wait in the backlog, as far as is known.
    pub(super) waits: AtomicBool,
    /// There may be room for what waits there.
    pub(super) look: Notify,
    pub(super) taken: Arc<Mutex<TakenMessages>>,
    /// When this worker began with the queue.
    pub(super) began: OnceLock<Time>,
}

/// A message that was taken from the backlog: the session that took it, and its number.
pub(super) type Taken = (i64, i64);

/// The messages that this worker has taken from the backlog.
#[derive(Default)]
pub(super) struct TakenMessages {
    /// Those that are in hand, and those of `done`.
    held: HashSet<Taken>,
    /// Those that have ended, and of which the ledger is to be told.
    pub(super) done: BTreeSet<Taken>,
    /// The ledger may count messages as taken here that are not held.
    pub(super) returns: bool,
}

impl TakenMessages {
    /// What a session has taken and the ledger is not to give to others.
    pub(super) fn held_by(&self, session: i64) -> Vec<i64> {
        self.held.iter().filter(|(taker, _)| *taker == session).map(|(_, number)| *number).collect()
    }

    /// The ledger has forgotten messages.
    pub(super) fn forgotten(&mut self, session: i64, numbers: &[i64]) {
        for number in numbers {
            self.held.remove(&(session, *number));
            self.done.remove(&(session, *number));
        }
    }
}

/// A job of a tenant is in hand while this lives.
pub(crate) struct InHandOf {
    lane: Arc<FairLane>,
    tenant: Arc<str>,
}

impl Drop for InHandOf {
    fn drop(&mut self) {
        self.lane.hand.lock().remove(&self.tenant);
        if self.lane.waits.load(Ordering::Relaxed) {
            self.lane.look.notify_one();
        }
    }
}

impl FairLane {
    pub(crate) fn new(by: Option<KeyPath>) -> Arc<Self> {
        Arc::new(Self {
            by,
            hand: Mutex::default(),
            waits: AtomicBool::new(false),
            look: Notify::new(),
            taken: Arc::default(),
            began: OnceLock::new(),
        })
    }

    /// A job of a tenant is in hand, and the hand has it already: see [`Self::hold_one`].
    pub(super) fn held(self: &Arc<Self>, tenant: Arc<str>) -> InHandOf {
        InHandOf { lane: self.clone(), tenant }
    }

    /// When this worker began with the queue, if it has.
    pub(crate) fn began(&self) -> Option<Time> {
        self.began.get().copied()
    }

    /// Whether tenants share the queue.
    pub(crate) fn is_fair(&self) -> bool {
        self.by.is_some()
    }

    /// Whose a job is; the empty tenant where it does not matter.
    pub(crate) fn tenant_of(&self, job: &Job) -> Tenant {
        self.by.as_ref().map_or_else(Tenant::default, |by| by.of(job).into())
    }

    /// One more job of a tenant is in hand.
    pub(super) fn hold_one(self: &Arc<Self>, tenant: Arc<str>) -> InHandOf {
        self.hand.lock().add(&tenant);
        InHandOf { lane: self.clone(), tenant }
    }
}

impl InHandOf {
    /// Whose the job is.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }
}

/// Settles a message that was taken from the backlog. One that is dropped unsettled waits again.
pub(super) struct TakenSettle {
    taken: Arc<Mutex<TakenMessages>>,
    message: Taken,
    done: bool,
}

impl TakenSettle {
    pub(super) fn new(lane: &FairLane, message: Taken) -> Self {
        lane.taken.lock().held.insert(message);
        Self { taken: lane.taken.clone(), message, done: false }
    }
}

#[async_trait]
impl Settle for TakenSettle {
    fn is_alive(&self) -> bool {
        true
    }

    async fn ack(mut self: Box<Self>) {
        self.done = true;
    }

    async fn requeue(self: Box<Self>) {}
}

impl Drop for TakenSettle {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if self.done {
            taken.done.insert(self.message);
        } else {
            taken.held.remove(&self.message);
            taken.returns = true;
        }
    }
}
