//! The verbs of a tick, from the beginning of its chain to its end. The engine calls them; the proof (docs/proof.md) is
//! about them.
//!
//! A job asks the ledger twice: a *claim* before its handler runs, and a *finish* with all that follows when the
//! handler has ended.

use std::time::Duration;

use async_trait::async_trait;

use crate::chain::Sent;
use crate::claim::{Claim, ClaimRequest};
use crate::enroll::{Enrolled, NewChain};
use crate::error::LedgerError;
use crate::finish::{Finish, FinishRequest};

/// Keeps chains and their ticks.
#[async_trait]
pub trait Protocol {
    /// Begins chains that do not exist yet, and brings payload and queue of the others up to date.
    /// One answer for each, in order.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn enroll(&self, chains: Vec<NewChain>) -> Result<Vec<Enrolled>, LedgerError>;

    /// Notes that messages were confirmed, and (with `slack`) moves catch-up's look to after
    /// their due time.
    ///
    /// # Errors
    /// When nothing of it was written.
    async fn enrolled_sent(&self, sent: Vec<Sent>, slack: Duration) -> Result<(), LedgerError>;

    /// Asks to run an attempt.
    ///
    /// # Errors
    /// When it is not known to be written; a claim that was, unheard, ends with its session.
    async fn claim(&self, request: ClaimRequest) -> Result<Claim, LedgerError>;

    /// Writes the end of a run, and with it the jobs that it asks for.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn finish(&self, request: FinishRequest) -> Result<Finish, LedgerError>;

    /// Notes that a message was confirmed; need not be durable at once, since a lost note costs
    /// one surplus message.
    fn mark_sent(&self, sent: Sent);

    /// Writes what was noted and is not written yet. A worker asks for it when it stops.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn flush(&self) -> Result<(), LedgerError>;
}
