//! The kinds and queues of the configuration, as it was last read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use roundelay_config::KindSettings;
use roundelay_handler::Handler;
use roundelay_ledger::Kinds;
use roundelay_model::schedule::Schedule;

/// Kinds' settings, which are replaced while the worker runs.
pub(crate) type SharedKinds = Arc<RwLock<Arc<BTreeMap<String, Arc<KindSettings>>>>>;

pub(crate) struct Catalog {
    /// Those of the configuration as it was last read.
    pub(crate) kinds: SharedKinds,
    pub(crate) handlers: HashMap<String, Arc<dyn Handler>>,
    /// Every queue of the configuration, consumed here or not, and the throttle that paces it.
    pub(crate) queues: BTreeMap<String, Option<String>>,
}

impl Catalog {
    /// The settings of a kind.
    pub(crate) fn kind(&self, name: &str) -> Option<Arc<KindSettings>> {
        self.kinds.read().get(name).cloned()
    }

    /// The kinds whose chains this worker looks after.
    pub(crate) fn names(&self) -> Kinds {
        let kinds = self.kinds.read();
        let recurring = kinds.iter().filter(|(_, kind)| kind.recurrence.is_some()).map(|(name, _)| name.clone());
        Kinds { all: kinds.keys().cloned().collect(), recurring: recurring.collect() }
    }

    /// For how many starts a run of this kind counts.
    pub(crate) fn cost_of(&self, kind: &str) -> u32 {
        self.kind(kind).map_or(1, |kind| kind.cost)
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
