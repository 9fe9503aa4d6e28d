//! Which runs are kept apart in this worker: see [`roundelay_model::deaths`].
//!
//! A one-off job has no record in the ledger while it runs, and costs none. Only one that is delivered again, so that
//! a worker had it in hand before, is noted there before it runs, and forgotten when that has come to an end.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use roundelay_model::deaths::Company;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// What runs in this worker of what was in hand at deaths of others.
#[derive(Default)]
pub(super) struct Suspects {
    /// A suspect holds it alone.
    touched: Arc<RwLock<()>>,
    /// Jobs that were in the ledger when this worker began, where the broker had gone with the worker before: it may
    /// have died over them. By their ids' hashes, since they may be many.
    found: Mutex<HashSet<u64>>,
}

/// Keeps away what must not run beside something, as long as it lives.
#[allow(dead_code, reason = "they are there to be dropped")]
pub(super) enum Kept {
    Nothing,
    Suspects(OwnedRwLockReadGuard<()>),
    Touched(OwnedRwLockWriteGuard<()>),
}

impl Suspects {
    /// Keeps away what must not run beside a run that may have this company; `None` while some of it runs.
    pub(super) fn keep(&self, company: Company) -> Option<Kept> {
        match company {
            Company::Any => Some(Kept::Nothing),
            Company::NoSuspect => self.touched.clone().try_read_owned().ok().map(Kept::Suspects),
            Company::Clear => self.touched.clone().try_write_owned().ok().map(Kept::Touched),
        }
    }

    /// The job was in the ledger when this worker began.
    pub(super) fn found(&self, id: &str) {
        self.found.lock().insert(hash(id));
    }

    pub(super) fn was_found(&self, id: Option<&str>) -> bool {
        let found = self.found.lock();
        id.is_some_and(|id| found.contains(&hash(id)))
    }
}

fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
