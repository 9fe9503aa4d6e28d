//! The clock of a ledger: its time decides dues and leases.

use std::sync::Arc;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::wall_clock::WallClock;

use crate::error::LedgerError;

/// Says which ledger this is, and what time it is there.
#[async_trait]
pub trait LedgerClock {
    /// Names this ledger; chains' messages carry it.
    fn id(&self) -> &str;

    /// The time that decides dues and leases. It is steady: it neither goes back nor jumps when a clock is set.
    fn now(&self) -> Time;

    /// How the wall clock stands to that time, as far as this process has noticed.
    fn wall_clock(&self) -> Arc<WallClock>;

    /// Reads the clocks, and notes it for all who use the ledger if the wall clock was set. A worker does so once a
    /// second.
    ///
    /// # Errors
    /// When the ledger cannot be read, or what is new is not known to be written.
    async fn read_clock(&self) -> Result<(), LedgerError>;
}
