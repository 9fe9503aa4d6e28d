//! How messages sleep on a broker: on rungs, or on their own queue until their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use roundelay_model::spread::HotRungs;
use tokio::time::Instant;

/// `broker.delays`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delays {
    /// On their own queue where the broker does that, else on rungs.
    #[default]
    Auto,
    /// On their own queue. A broker that does not do that is refused.
    Native,
    /// On rungs.
    Ladder,
}

/// How messages sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// On rungs.
    Ladder,
    /// On their own queue until their time ([`Destination::Asleep`](crate::Destination::Asleep)).
    Native {
        /// How far the broker's clock is ahead of the ledger's, in milliseconds.
        ahead: i64,
    },
}

/// How messages sleep on the broker behind a connection, as far as this process has found out.
#[derive(Debug)]
pub struct Sleeping {
    /// What the configuration says.
    pub setting: Delays,
    /// How messages sleep, and until when that counts as known, if not for good.
    way: RwLock<Option<(Way, Option<Instant>)>>,
    /// The rungs whose siblings are declared.
    hot_rungs: RwLock<Arc<HotRungs>>,
    /// Whose turn it is among siblings.
    turn: AtomicUsize,
}

impl Default for Sleeping {
    fn default() -> Self {
        Self::new(Delays::default())
    }
}

impl Sleeping {
    /// Nothing is known yet, unless the configuration says all there is to know.
    pub fn new(setting: Delays) -> Self {
        let way = (setting == Delays::Ladder).then_some((Way::Ladder, None));
        Self { setting, way: RwLock::new(way), hot_rungs: RwLock::default(), turn: AtomicUsize::new(0) }
    }

    /// How messages are sent to sleep; `None` where that is not known yet.
    pub fn way(&self) -> Option<Way> {
        let known = *self.way.read();
        known.filter(|(_, until)| until.is_none_or(|until| Instant::now() < until)).map(|(way, _)| way)
    }

    /// From now on messages are sent to sleep like this, for so long, or for good.
    pub fn set(&self, way: Way, holds: Option<Duration>) {
        *self.way.write() = Some((way, holds.map(|holds| Instant::now() + holds)));
    }

    /// The rungs whose siblings are declared.
    pub fn hot_rungs(&self) -> Arc<HotRungs> {
        self.hot_rungs.read().clone()
    }

    /// The siblings of these rungs are declared.
    pub fn set_hot_rungs(&self, hot: HotRungs) {
        *self.hot_rungs.write() = Arc::new(hot);
    }

    /// Where a message sleeps whose rung this is: there, or if that is hot on its siblings in turn.
    pub fn rung(&self, rung: Duration) -> Duration {
        // Multiples of the golden ratio are even for each rung, also where rungs come in a regular order.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as u64;
        self.hot_rungs.read().rung(rung, turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32)
    }
}
