//! How much a ledger has to do, and how much it holds: for measurements, and for tests that something asks
//! nothing of it.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::error::LedgerError;

/// What this process has had a ledger do since it opened it. What an operator's orders take is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Transactions that were committed to write, groups of verbs counting once.
    pub writes: u64,
    /// Those of them that had slots to hand out.
    pub slots: u64,
    /// Queries.
    pub reads: u64,
}

impl Traffic {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let Self { writes, slots, reads } = self;
        Self { writes: writes - before.writes, slots: slots - before.slots, reads: reads - before.reads }
    }
}

/// How much a ledger holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of all tables and indexes, with the room in them that is free.
    pub bytes: u64,
    /// Bytes of the tables and indexes of throttles, with the free room in them.
    pub throttle_bytes: u64,
    /// Throttles, and keys of throttles, of which something is remembered.
    pub throttles: u64,
}

/// Measures a ledger.
#[async_trait]
pub trait Measured {
    /// The traffic so far.
    fn traffic(&self) -> Traffic;

    /// The ledger's size. On PostgreSQL free room within tables comes and goes with its vacuum.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn size(&self) -> Result<Size, LedgerError>;
}

/// Counts traffic.
#[derive(Debug, Default)]
pub(super) struct Counters {
    writes: AtomicU64,
    slots: AtomicU64,
    reads: AtomicU64,
}

impl Counters {
    /// A transaction was committed, with slots in it or not.
    pub(super) fn wrote(&self, slots: bool) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.slots.fetch_add(slots.into(), Ordering::Relaxed);
    }

    /// A query was asked.
    pub(super) fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn traffic(&self) -> Traffic {
        let [writes, slots, reads] = [&self.writes, &self.slots, &self.reads].map(|n| n.load(Ordering::Relaxed));
        Traffic { writes, slots, reads }
    }
}
