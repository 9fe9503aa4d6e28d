//! What this worker knows of the ledger's clock.
//!
//! A worker looks at it once a second, whether it asks for slots or not. So it notices when that is set,
//! tells the ledger, and those who are new and cannot know need to wait for a moment only until everybody
//! who does has told: as long as two looks of their own take.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::clock::Known;
use super::slots::Micros;
use crate::ledger::{Ledger, LedgerError};

/// So often it is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// After so many looks, whoever has known it longer has looked as well.
const LOOKS: u32 = 3;

/// What is known of the ledger's clock.
pub struct Pulse {
    ledger: Arc<dyn Ledger>,
    known: Mutex<Option<Known>>,
}

impl Pulse {
    /// Of a clock that was never looked at.
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self { ledger, known: Mutex::default() }
    }

    /// What is known of it.
    pub fn known(&self) -> Option<Known> {
        *self.lock()
    }

    /// It was read between the one time and the other.
    pub fn learn(&self, read: (Instant, Instant), now: Micros, set: Micros) {
        let mut known = self.lock();
        *known = Some(Known::learned(*known, read, now, set));
    }

    async fn look(&self) -> Result<(), LedgerError> {
        let asked = Instant::now();
        let (now, set) = self.ledger.throttle_clock(self.known()).await?;
        self.learn((asked, Instant::now()), now, set);
        Ok(())
    }

    /// Everybody who has known it longer has told by now whether it was set.
    fn settle(&self) {
        let mut known = self.lock();
        *known = known.map(Known::for_long);
    }

    /// Looks at it until it is known as well as by anybody.
    ///
    /// # Errors
    /// When the ledger does not answer.
    pub async fn settled(ledger: &Arc<dyn Ledger>) -> Result<Option<Known>, LedgerError> {
        let pulse = Self::new(ledger.clone());
        for look in 0..LOOKS {
            if look > 0 {
                sleep(PERIOD).await;
            }
            pulse.look().await?;
        }
        pulse.settle();
        Ok(pulse.known())
    }

    /// Looks at it for good.
    pub async fn beat(&self) {
        let mut looks = 0;
        loop {
            match self.look().await {
                Ok(()) if looks == LOOKS => {}
                Ok(()) => {
                    looks += 1;
                    if looks == LOOKS {
                        self.settle();
                    }
                }
                Err(error) => tracing::debug!(%error, "the ledger's clock cannot be read"),
            }
            sleep(PERIOD).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
