//! The claims that this worker holds, and the heartbeat that keeps them.
//!
//! A lease is short, so that a dead worker's ticks are soon claimed by another, and renewed while
//! its run goes on, however long that takes. A run whose lease cannot be renewed ends before the
//! lease does: by then somebody else may run the same tick.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Core;
use super::life::Point;
use crate::ledger::Renewal;
use crate::telemetry::Count;

/// Renewals of so many leases go into one transaction.
const PER_RENEWAL: usize = 1_000;
/// The longest pause before a renewal that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The leases of one worker.
pub struct Leases {
    /// How long a lease holds without a heartbeat.
    pub length: Duration,
    held: Mutex<BTreeMap<i64, Arc<Held>>>,
}

struct Held {
    renewal: Renewal,
    /// On this worker's clock, counted from when the lease was asked for, so no later than the
    /// ledger's.
    ends: Mutex<Instant>,
    lost: CancellationToken,
    /// Its finish has been asked for.
    finishes: AtomicBool,
}

/// A claim, as long as it is held here.
pub struct Lease<'a> {
    leases: &'a Leases,
    held: Arc<Held>,
}

impl Leases {
    /// No leases yet.
    pub fn new(length: Duration) -> Self {
        Self { length, held: Mutex::default() }
    }

    /// Keeps a claim that was asked for at `asked`.
    pub fn hold(&self, epoch: i64, fence: i64, asked: Instant) -> Lease<'_> {
        let held = Arc::new(Held {
            renewal: Renewal { epoch, fence },
            ends: Mutex::new(asked + self.length),
            lost: CancellationToken::new(),
            finishes: AtomicBool::new(false),
        });
        self.held().insert(fence, held.clone());
        Lease { leases: self, held }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.held().len()
    }

    /// Work that can still be done under a lease ends this long before it.
    fn margin(&self) -> Duration {
        self.length / 10
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<i64, Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn ends(&self) -> MutexGuard<'_, Instant> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease<'_> {
    /// From now on its finish is on the way: that nobody holds it any more then is no loss, and if somebody else
    /// does, the answer to the finish says so.
    pub fn finishes(&self) {
        self.held.finishes.store(true, Ordering::Relaxed);
    }

    /// Waits until the run must end, because the lease is another's, or is about to be.
    pub async fn lost(&self) {
        loop {
            let ends = *self.held.ends();
            tokio::select! {
                biased;
                () = self.held.lost.cancelled() => return,
                () = sleep_until(ends - self.leases.margin()) => {}
            }
            if *self.held.ends() == ends {
                return;
            }
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.leases.held().remove(&self.held.renewal.fence);
    }
}

/// Renews what is held, until the engine ends.
pub async fn beat(core: Arc<Core>) {
    let third = core.leases.length / 3;
    let mut pause = third;
    loop {
        sleep(pause).await;
        pause = third;
        let held: Vec<Arc<Held>> = core.leases.held().values().cloned().collect();
        for held in held.chunks(PER_RENEWAL).filter(|_| !mutant!(LeaseNotRenewed)) {
            if !renew(&core, held, third).await {
                pause = third.min(RETRY);
            }
        }
    }
}

/// Whether the ledger answered.
async fn renew(core: &Core, held: &[Arc<Held>], patience: Duration) -> bool {
    let renewals = held.iter().map(|held| held.renewal).collect();
    let (asked, length) = (Instant::now(), core.leases.length);
    // The lease counts from when it was asked for, so an answer that takes long is of little use.
    let answers = match timeout(patience, core.ledger.renew(renewals, length)).await {
        Ok(Ok(answers)) => answers,
        Ok(Err(error)) => {
            tracing::warn!(%error, leases = held.len(), "failed to renew leases; trying again");
            return false;
        }
        Err(_) => {
            tracing::warn!(leases = held.len(), "the ledger takes too long to renew leases; trying again");
            return false;
        }
    };
    core.life.reached(Point::Renewed).await;
    for (held, kept) in held.iter().zip(answers) {
        if kept {
            *held.ends() = asked + length;
        } else if !held.finishes.load(Ordering::Relaxed) && core.leases.held().contains_key(&held.renewal.fence) {
            // Otherwise it has just finished, or is about to hear that it has.
            core.telemetry.count(Count::LeaseLost);
            let Renewal { epoch, fence } = held.renewal;
            tracing::warn!(epoch, fence, "a lease was lost: somebody else has claimed the tick, or it began anew");
            held.lost.cancel();
        }
    }
    true
}
