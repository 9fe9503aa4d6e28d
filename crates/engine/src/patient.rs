//! A ledger that is asked until it answers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use roundelay_ledger::comeback::Comeback;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::Time;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::telemetry::Telemetry;

/// The first wait between attempts to reach a ledger that does not answer.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// These waits grow to this, but one of those who wait asks sooner, and the others hear when it is answered.
pub(crate) const LEDGER_PAUSE: Duration = Duration::from_secs(1);

/// The worker's ledger. While it does not answer, deliveries are held, and it is asked again.
#[derive(Clone)]
pub(crate) struct PatientLedger {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// Whether the ledger takes claims and finishes.
    pub(crate) comeback: Arc<Comeback>,
    pub(crate) telemetry: Arc<Telemetry>,
    /// The grace is over: nothing is asked again.
    pub(crate) abort: CancellationToken,
}

impl Deref for PatientLedger {
    type Target = dyn Ledger;

    fn deref(&self) -> &Self::Target {
        &*self.ledger
    }
}

impl PatientLedger {
    /// Waits for this time, by the ledger's clock.
    pub(crate) async fn reaches(&self, at: Time) {
        loop {
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }

    /// Asks the ledger again and again while it does not answer, holding the delivery meanwhile:
    /// so consumption stops by itself, with no message going in circles. `None` when the worker
    /// has been told to stop for good.
    pub(crate) async fn retry_until_stopped<T, F>(&self, verb: &str, ask: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, LedgerError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match ask().await {
                Ok(answer) => {
                    self.comeback.answered();
                    return Some(answer);
                }
                Err(LedgerError::Closed) => return None,
                Err(error) => {
                    if self.telemetry.notices.begins(&format!("failing to {verb}")) {
                        tracing::warn!(%error, "failed to {verb}; trying again until the ledger answers");
                    }
                    tokio::select! {
                        biased;
                        () = self.comeback.wait(pause) => {}
                        () = self.abort.cancelled() => return None,
                    }
                    pause = (pause * 2).min(LEDGER_PAUSE);
                }
            }
        }
    }
}
