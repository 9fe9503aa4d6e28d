//! What operators have ordered, as far as this worker has looked.
//!
//! Slots are handed out by what the ledger says at that moment. But a worker that has been told to wait
//! for an hour would hear of an order only after that, and a throttle that each worker counts for
//! itself asks the ledger for nothing. So while there is such a one, the orders are read, once a
//! second for all throttles and keys of this worker together.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use roundelay_ledger::Ledger;
use roundelay_ledger::comeback::Comeback;
use roundelay_model::pacing::orders::Orders;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::telemetry::notices::Notices;

/// How old what was read may be.
const FRESH: Duration = Duration::from_secs(1);
/// The longest wait for a ledger that does not answer; what was read before holds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where orders are looked up.
pub struct OrdersCache {
    ledger: Arc<dyn Ledger>,
    pub notices: Arc<Notices>,
    /// Whether the ledger answers those who ask for slots.
    pub comeback: Comeback,
    /// Whether what starts here could be claimed; without it, always.
    able: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    at: Option<Instant>,
    orders: BTreeMap<String, Orders>,
}

impl OrdersCache {
    pub fn new(ledger: Arc<dyn Ledger>, notices: Arc<Notices>) -> Self {
        Self { ledger, notices, comeback: Comeback::default(), able: OnceLock::new(), read: Mutex::default() }
    }

    /// From now on slots are asked for only while this is true.
    pub fn only_while(&self, able: impl Fn() -> bool + Send + Sync + 'static) {
        // The first setting stays.
        let _ = self.able.set(Box::new(able));
    }

    /// Whether what starts here could be claimed.
    pub fn is_able(&self) -> bool {
        self.able.get().is_none_or(|able| able())
    }

    /// The orders of a throttle, not much older than a second while the ledger answers.
    pub async fn of(&self, throttle: &str) -> Orders {
        let mut read = self.read.lock().await;
        if read.at.is_none_or(|at| at.elapsed() >= FRESH) {
            match timeout(PATIENCE, self.ledger.throttle_orders()).await {
                Ok(Ok(orders)) => read.orders = orders,
                Ok(Err(error)) => tracing::debug!(%error, "what operators have ordered of throttles cannot be read"),
                Err(_) => tracing::debug!("what operators have ordered of throttles cannot be read in time"),
            }
            read.at = Some(Instant::now());
        }
        read.orders.get(throttle).cloned().unwrap_or_default()
    }

    /// Waits until something else is ordered of a throttle than what had this version.
    pub async fn changed(&self, throttle: &str, version: i64) {
        loop {
            sleep(FRESH).await;
            // Behind by a look that was made before that version.
            if self.of(throttle).await.version > version {
                return;
            }
        }
    }
}
