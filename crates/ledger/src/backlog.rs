//! The backlog of fair queues: messages that wait in the ledger for their tenant's turn.
//!
//! A broker's queue hands out its messages in their order, so a flood of one tenant hides what others have behind it. A
//! worker therefore takes more messages of a fair queue than it can start, and leaves here those that exceed their
//! tenant's share. From here workers take them in turn over the tenants.
//! Seats keep a tenant from running more jobs at the same time than its quota allows, over all workers.

use async_trait::async_trait;

use crate::error::LedgerError;

/// A message that is left in the backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftMessage {
    /// The broker's queue from which it came.
    pub queue: String,
    /// Whose it is; empty for those of no tenant.
    pub tenant: String,
    /// What it is a message of: [`name_of_chain`], or the name of a job. Of each name one message waits, the last.
    pub name: String,
    /// The message body.
    pub body: Vec<u8>,
}

/// The name of a chain's messages in the backlog.
pub fn name_of_chain(epoch: roundelay_model::ids::Epoch) -> String {
    format!("chain {epoch}")
}

/// A message that was taken from the backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenMessage {
    /// Names it from now on.
    pub number: i64,
    /// Whose it is.
    pub tenant: String,
    /// The message body.
    pub body: Vec<u8>,
    /// How often it was taken, this time included.
    pub takes: u32,
}

/// How many messages of a tenant wait on a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantBacklog {
    /// Whose they are.
    pub tenant: String,
    /// How many, of at most as many as were to be counted.
    pub messages: u64,
}

/// Whose chain it is, and what it is run with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// See [`NewChain::owner`](crate::NewChain::owner).
    pub owner: Option<String>,
    /// As the ledger stores it; empty unless it was asked for.
    pub payload: String,
}

/// Leave for one job of a tenant to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// On this queue.
    pub queue: String,
    /// Whose the job is.
    pub tenant: String,
    /// Whose the seat is.
    pub session: i64,
    /// Its number among those of the session.
    pub number: i64,
}

/// Keeps the backlog of fair queues.
#[async_trait]
pub trait Backlog {
    /// Leaves messages, each name once. One that waits under the same name is replaced, also if it was taken, and the new
    /// one has a number of its own; the same message is left alone.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn leave_messages(&self, messages: Vec<LeftMessage>) -> Result<(), LedgerError>;

    /// The tenants of a queue for whom messages wait that are not taken, in their order, behind the tenant `after`: at
    /// most `limit`. The work is that of so many lookups, however long the backlog is.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn waiting_tenants(
        &self,
        queue: String,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<String>, LedgerError>;

    /// Takes messages of a queue for a session: of each tenant at most so many, those that have waited longest. Of
    /// several workers, one gets a message. What a session has taken waits again when the session is over.
    ///
    /// # Errors
    /// When it is not known to be written. Then messages may count as taken that no worker has in hand, until the session
    /// is over or [`return_messages`](Self::return_messages) is called.
    async fn take_messages(
        &self,
        queue: String,
        session: i64,
        shares: Vec<(String, u32)>,
    ) -> Result<Vec<TakenMessage>, LedgerError>;

    /// Forgets messages that this session has taken and settled.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_messages(&self, session: i64, numbers: Vec<i64>) -> Result<(), LedgerError>;

    /// Has messages wait again: those of the queue that the session has taken and does not have in hand any more, and
    /// those that sessions have taken that are over. Seats of such sessions are forgotten. `in_hand` are the numbers of
    /// all messages of the queue that the session has in hand, so a message of which the session was never told that it
    /// has taken it waits again too. Answers how many messages there were whose sessions are over.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn return_messages(&self, session: i64, queue: String, in_hand: Vec<i64>) -> Result<u64, LedgerError>;

    /// Forgets the whole backlog: where the broker stores nothing, a worker that starts makes all messages anew.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn clear_backlog(&self) -> Result<(), LedgerError>;

    /// How many messages of each tenant wait on a queue, taken or not, in the order of the tenants behind `after`: at
    /// most `limit` tenants, and of each at most `count` messages.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn backlog(
        &self,
        queue: String,
        after: Option<String>,
        limit: u32,
        count: u32,
    ) -> Result<Vec<TenantBacklog>, LedgerError>;

    /// Takes a seat for one more job of a tenant to run on a queue, unless sessions that go on have `most` of them.
    /// Answers whether the session has it: asked again, it does not take another. A seat is gone with its session.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn take_seat(&self, seat: Seat, most: u32) -> Result<bool, LedgerError>;

    /// Gives a seat back, if the session has it.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn return_seat(&self, seat: Seat) -> Result<(), LedgerError>;

    /// Whose the chains with these epochs are, in the order of the epochs, with their payloads if those are wanted;
    /// `None` for one that is not known.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn ownership(&self, epochs: Vec<i64>, payloads: bool) -> Result<Vec<Option<Ownership>>, LedgerError>;
}
