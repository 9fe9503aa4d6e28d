//! That this worker lives, and that others do.
//!
//! A worker holds one lease for all its runs: a session in the ledger (see [`roundelay_ledger::Sessions`]). About once
//! a second it says that it lives, and looks at the others. A worker that could not say so for its lease ends its runs
//! *before* others may take them: its own count begins when it asked, theirs when they saw the answer. All of that is
//! counted by clocks that cannot be set.
//!
//! A session is over for good. A worker whose session has lapsed, or was ended by others, begins another.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use roundelay_ledger::ClaimId;
use roundelay_model::clock::instant;
use roundelay_model::ids::{Epoch, Fence};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A session of this worker.
pub struct Term {
    pub(super) session: i64,
    /// On this worker's clock, by [`instant`], counted from when it last asked, so never later than on another
    /// worker's.
    pub(super) ends: Mutex<Instant>,
    pub(super) over: CancellationToken,
}

impl Term {
    fn ends(&self) -> MutexGuard<'_, Instant> {
        self.ends.lock()
    }

    /// Names it in the ledger.
    pub fn session(&self) -> i64 {
        self.session
    }
}

/// The lease of one worker, and the claims that hang on it.
pub struct Vitals {
    pub(super) length: Duration,
    term: Mutex<Option<Arc<Term>>>,
    /// Wakes in the order of waiting, so that a simulation, which has one thread, tells the same each time: Tokio's
    /// `watch` wakes by dice of its own.
    pub(super) begun: Notify,
    claims: Mutex<BTreeMap<Fence, Arc<Claimed>>>,
}

/// A claim of this worker.
pub(super) struct Claimed {
    pub(super) claim: ClaimId,
    pub(super) session: i64,
    pub(super) lost: CancellationToken,
    /// Its finish has been asked for.
    pub(super) finishes: AtomicBool,
}

/// A claim, as long as it is held here.
pub struct Lease<'a> {
    vitals: &'a Vitals,
    claimed: Arc<Claimed>,
    term: Arc<Term>,
}

impl Vitals {
    /// There is no session yet.
    pub fn new(length: Duration) -> Self {
        Self { length, term: Mutex::default(), begun: Notify::new(), claims: Mutex::default() }
    }

    /// How long a worker may be silent.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Keeps a claim that was made for `term`.
    pub fn hold(&self, term: Arc<Term>, epoch: Epoch, fence: Fence) -> Lease<'_> {
        let (lost, finishes) = (CancellationToken::new(), AtomicBool::new(false));
        let (claim, session) = (ClaimId { epoch, fence }, term.session);
        let claimed = Arc::new(Claimed { claim, session, lost, finishes });
        self.claims().insert(fence, claimed.clone());
        Lease { vitals: self, claimed, term }
    }

    /// How many claims are held.
    pub fn count(&self) -> usize {
        self.claims().len()
    }

    /// The claims that were made first, at most `most`, in the order in which they were made.
    pub fn oldest(&self, most: usize) -> Vec<Fence> {
        self.claims().keys().take(most).copied().collect()
    }

    /// Waits until there is a session to claim for.
    pub async fn term(&self) -> Arc<Term> {
        loop {
            // Hears of every session that begins from here on.
            let begun = self.begun.notified();
            if let Some(current) = self.current() {
                return current;
            }
            begun.await;
        }
    }

    /// The ledger has heard what this worker said at `asked`. If the answer took long, the session had lapsed
    /// meanwhile, and what waits for one has to hear that it goes on.
    pub(super) fn renewed(&self, term: &Term, asked: Instant) {
        *term.ends() = asked + self.length;
        self.begun.notify_waiters();
    }

    /// The session that goes on, by its name in the ledger.
    pub fn session(&self) -> Option<i64> {
        self.current().map(|term| term.session)
    }

    /// Work that can still be done under a lease ends this long before it.
    fn margin(&self) -> Duration {
        self.length / 10
    }

    pub(super) fn has_lapsed(&self, term: &Term) -> bool {
        term.over.is_cancelled() || instant() + self.margin() >= *term.ends()
    }

    pub(super) fn claims(&self) -> MutexGuard<'_, BTreeMap<Fence, Arc<Claimed>>> {
        self.claims.lock()
    }

    /// Whether a run of this session has not come to its end here. What is left of one that has is to write it.
    pub(super) fn runs(&self, session: i64) -> bool {
        self.claims().values().any(|claimed| claimed.session == session && !claimed.finishes.load(Ordering::Relaxed))
    }

    /// The session that goes on, if it does.
    pub(super) fn current(&self) -> Option<Arc<Term>> {
        self.last().filter(|term| !self.has_lapsed(term))
    }

    /// The session that was begun last, whether or not it goes on.
    pub(super) fn last(&self) -> Option<Arc<Term>> {
        self.terms().clone()
    }

    pub(super) fn terms(&self) -> MutexGuard<'_, Option<Arc<Term>>> {
        self.term.lock()
    }
}

impl Lease<'_> {
    /// From now on its finish is on the way: a claim that is not held any more then is no loss, and if another worker
    /// does, the answer to the finish says so.
    pub fn finishes(&self) {
        self.claimed.finishes.store(true, Ordering::Relaxed);
    }

    /// Waits until the run must end, because the chain is another's, or is about to be. The time is looked at whenever
    /// the run goes on: when a process has stood still, timers fire only after whatever else was ready.
    pub async fn lost(&self) {
        let mut ended = pin!(self.ended());
        poll_fn(|context| match self.vitals.has_lapsed(&self.term) {
            true => Poll::Ready(()),
            false => ended.as_mut().poll(context),
        })
        .await;
    }

    async fn ended(&self) {
        loop {
            let ends = *self.term.ends();
            tokio::select! {
                biased;
                () = self.claimed.lost.cancelled() => return,
                () = self.term.over.cancelled() => return,
                () = sleep(ends.saturating_duration_since(instant() + self.vitals.margin())) => {}
            }
            if *self.term.ends() == ends {
                return;
            }
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.vitals.claims().remove(&self.claimed.claim.fence);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// It was lost: messages stayed in the worker's hand for good, each waiting for a session.
    #[tokio::test(start_paused = true)]
    async fn waiters_for_a_session_wake_when_the_lapsed_session_goes_on() {
        let vitals = Arc::new(Vitals::new(Duration::from_secs(6)));
        let asked = Instant::now();
        let term =
            Term { session: 1, ends: Mutex::new(asked + Duration::from_secs(1)), over: CancellationToken::new() };
        let term = Arc::new(term);
        *vitals.terms() = Some(term.clone());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(vitals.current().is_none());
        let waits = tokio::spawn({
            let vitals = vitals.clone();
            async move { vitals.term().await.session() }
        });
        tokio::task::yield_now().await;
        vitals.renewed(&term, asked);
        assert_eq!(timeout(Duration::from_secs(1), waits).await.expect("it still waits").unwrap(), 1);
    }
}
