//! Whether the broker is away, and what that has left unsent.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_model::clock::Time;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Catch-up looks for unsent messages until this long after the last of them was due.
const GRACE: Duration = Duration::from_secs(5);

/// Messages from before an outage may come for this long after it.
const STALE: Duration = Duration::from_secs(60);

/// Whether the broker is away, and what that has left unsent.
pub(super) struct Outage {
    lasts: AtomicBool,
    begins: Notify,
    /// When the last of the successors is due that this worker has left unsent.
    unsent: AtomicI64,
    /// When the last one ended.
    ended: Mutex<Option<Instant>>,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            lasts: AtomicBool::new(false),
            begins: Notify::new(),
            unsent: AtomicI64::new(i64::MIN),
            ended: Mutex::default(),
        }
    }
}

impl Outage {
    /// Whether the ledger is in charge of every chain now.
    pub(super) fn lasts(&self) -> bool {
        self.lasts.load(Ordering::Relaxed)
    }

    /// Waits until one lasts.
    pub(super) async fn begins(&self) {
        loop {
            // Hears of every change from here on.
            let begins = self.begins.notified();
            if self.lasts() {
                return;
            }
            begins.await;
        }
    }

    /// A successor that is due then could not be sent.
    pub(super) fn left_unsent(&self, due: Time) {
        self.unsent.fetch_max(due.as_millis(), Ordering::Relaxed);
    }

    /// Whether successors that this worker has left unsent may fall due.
    pub(super) fn has_unsent(&self, now: Time) -> bool {
        let last = self.unsent.load(Ordering::Relaxed);
        last != i64::MIN && now <= Time::from_millis(last) + GRACE
    }

    /// Whether messages may come that the ledger has gone past: the broker has just come back with them.
    pub(super) fn leaves_stale(&self) -> bool {
        let ended = *self.ended.lock();
        ended.is_some_and(|ended| ended.elapsed() < STALE)
    }

    pub(super) fn set(&self, lasts: bool) {
        if !lasts {
            *self.ended.lock() = Some(Instant::now());
        }
        self.lasts.store(lasts, Ordering::Relaxed);
        self.begins.notify_waiters();
    }
}
