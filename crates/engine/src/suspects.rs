//! Which runs are kept apart in this worker: see [`roundelay_model::deaths`].
//!
//! A one-off job has no record in the ledger while it runs, and costs none. Only one that is delivered again, so that
//! a worker had it in hand before, is noted there before it runs, and forgotten when that has come to an end.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_model::deaths::Company;
use roundelay_model::ids::Epoch;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::Instant;

use crate::vitals::Term;

/// A claim of which nothing is known has been given up by then, as a rule.
const GIVEN_UP: Duration = Duration::from_secs(600);

/// What runs in this worker of what was in hand at deaths of others.
#[derive(Default)]
pub(super) struct Suspects {
    /// A suspect holds it alone.
    touched: Arc<RwLock<()>>,
    /// Jobs that were in the ledger when this worker began, where the broker had gone with the worker before: it may
    /// have died over them. By their ids' hashes, since they may be many.
    found: Mutex<HashSet<u64>>,
    unheard: Mutex<HashMap<Epoch, Unheard>>,
}

/// A claim whose answer was lost, and that this worker does not make again. The ledger may have granted it. Then it counts
/// as in hand here, and its chain is blamed, too, if the worker dies.
struct Unheard {
    term: Arc<Term>,
    until: Instant,
    _kept: Kept,
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
        let now = Instant::now();
        self.unheard.lock().retain(|_, claim| !claim.term.over.is_cancelled() && now < claim.until);
        match company {
            Company::Any => Some(Kept::Nothing),
            Company::NoSuspect => self.touched.clone().try_read_owned().ok().map(Kept::Suspects),
            Company::Clear => self.touched.clone().try_write_owned().ok().map(Kept::Touched),
        }
    }

    /// What must not run beside a chain is kept away also while only the ledger knows whether it was claimed.
    fn keep_unheard(&self, epoch: Epoch, term: Arc<Term>, kept: Kept) {
        self.unheard.lock().insert(epoch, Unheard { term, until: Instant::now() + GIVEN_UP, _kept: kept });
    }

    /// This worker's claims on these chains were given up.
    pub(super) fn given_up(&self, epochs: impl Iterator<Item = Epoch>) {
        let mut unheard = self.unheard.lock();
        epochs.for_each(|epoch| drop(unheard.remove(&epoch)));
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

/// A claim that is being made, and what is kept away for it.
pub(super) struct Asking<'a> {
    suspects: &'a Suspects,
    epoch: Epoch,
    pub(super) kept: Option<Kept>,
    /// The session of the last request, when its answer was lost.
    pub(super) lost: Option<Arc<Term>>,
}

impl<'a> Asking<'a> {
    pub(super) fn new(suspects: &'a Suspects, epoch: Epoch) -> Self {
        Self { suspects, epoch, kept: None, lost: None }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let (Some(term), Some(kept)) = (self.lost.take(), self.kept.take()) {
            self.suspects.keep_unheard(self.epoch, term, kept);
        }
    }
}

fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}
