//! How far chains have followed the wall clock, for ticks that are about to start.

use std::time::Duration;

use roundelay_model::clock::Time;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::patient::PatientLedger;

/// How long a tick waits, at most, until the chains of all kinds are moved.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(5);
/// And how long until the ledger's clock is read.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// How far chains have followed the wall clock, for ticks that are about to start.
pub(super) struct UpToDate {
    /// The last time that it was set, as far as chains have been moved since.
    pub(super) up_to: watch::Sender<Option<Time>>,
    /// It was set again.
    pub(super) set: Notify,
    /// When a reading of the ledger's clock was last begun.
    last_read: tokio::sync::Mutex<Option<Instant>>,
    ledger: PatientLedger,
}

impl UpToDate {
    pub(super) fn new(ledger: PatientLedger) -> Self {
        Self { up_to: watch::Sender::new(None), set: Notify::new(), last_read: tokio::sync::Mutex::default(), ledger }
    }

    /// Reads the ledger's clock, unless another task begins to meanwhile. If it cannot be read, so be it: it is read
    /// once a second.
    pub(super) async fn read(&self) {
        let asked = Instant::now();
        let mut read = self.last_read.lock().await;
        if read.is_none_or(|begun| begun < asked) {
            let begun = Instant::now();
            let _ = timeout(READ_WITHIN, self.ledger.read_clock()).await;
            *read = Some(begun);
        }
    }

    /// A tick of a schedule that follows the wall clock is about to start. If that was set a moment ago, its time may
    /// not have come: waits until sleeping chains are moved, so that the ledger knows.
    pub(super) async fn is_followed(&self) {
        self.read().await;
        let mut up_to = self.up_to.subscribe();
        let is_followed = |up_to: &Option<Time>| *up_to >= self.ledger.wall_clock().last_set();
        if !is_followed(&up_to.borrow_and_update()) {
            self.set.notify_one();
            let _ = timeout(FOLLOWED_WITHIN, up_to.wait_for(is_followed)).await;
        }
    }
}
