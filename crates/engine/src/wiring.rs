//! Which parts of a worker each of its tasks takes.
//!
//! A task has no others. What it takes is a clone that shares the part.

use std::sync::Arc;

use crate::core::Core;
use crate::{catch_up, follow_wall, hand_out, heartbeat, pipeline, presence, reload};

impl From<&Core> for heartbeat::Needs {
    fn from(core: &Core) -> Self {
        Self {
            worker: core.worker.clone(),
            ledger: core.ledger.clone(),
            vitals: core.vitals.clone(),
            observing: core.observing.clone(),
            left: core.left.clone(),
        }
    }
}

impl From<&Core> for presence::Needs {
    fn from(core: &Core) -> Self {
        Self {
            worker: core.worker.clone(),
            ledger: core.ledger.clone(),
            observing: core.observing.clone(),
            stop: core.stop.clone(),
            catalog: core.catalog.clone(),
            shares: core.shares.clone(),
            vitals: core.vitals.clone(),
            queues: core.queues.clone(),
            chores: core.chores.clone(),
            attended: core.attended.clone(),
        }
    }
}

impl From<&Core> for follow_wall::Needs {
    fn from(core: &Core) -> Self {
        Self {
            ledger: core.ledger.clone(),
            catalog: core.catalog.clone(),
            queues: core.queues.clone(),
            publishing: core.publishing.clone(),
            wall: core.wall.clone(),
            catch_up: core.catch_up.clone(),
        }
    }
}

impl From<&Core> for reload::Needs {
    fn from(core: &Core) -> Self {
        Self {
            ledger: core.ledger.clone(),
            catalog: core.catalog.clone(),
            publishing: core.publishing.clone(),
            catch_up: core.catch_up.clone(),
            throttles: core.throttles.clone(),
            shares: core.shares.clone(),
            orders: core.orders.clone(),
            chores: core.chores.clone(),
        }
    }
}

impl From<&Arc<Core>> for hand_out::Needs {
    fn from(core: &Arc<Core>) -> Self {
        Self {
            ledger: core.ledger.clone(),
            catalog: core.catalog.clone(),
            queues: core.queues.clone(),
            publishing: core.publishing.clone(),
            observing: core.observing.clone(),
            in_hand: core.in_hand.clone(),
            vitals: core.vitals.clone(),
            left: core.left.clone(),
            entropy: core.entropy.clone(),
            catch_up: core.catch_up.clone(),
            live: live(core),
        }
    }
}

impl From<&Arc<Core>> for catch_up::Needs {
    fn from(core: &Arc<Core>) -> Self {
        Self {
            ledger: core.ledger.clone(),
            catalog: core.catalog.clone(),
            queues: core.queues.clone(),
            publishing: core.publishing.clone(),
            observing: core.observing.clone(),
            in_hand: core.in_hand.clone(),
            vitals: core.vitals.clone(),
            left: core.left.clone(),
            suspects: core.suspects.clone(),
            catch_up: core.catch_up.clone(),
            ready: core.ready.clone(),
            late: core.into(),
        }
    }
}

fn live(core: &Arc<Core>) -> hand_out::Live {
    let core = core.clone();
    Arc::new(move |queue, delivery| Box::pin(pipeline::process_delivery(core.clone(), queue, delivery)))
}
