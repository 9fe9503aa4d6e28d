//! The verbs of throttles: when jobs may start, for all workers.

use std::collections::BTreeMap;

use async_trait::async_trait;
use roundelay_model::pacing::orders::{Orders, ThrottleOrder};
use roundelay_model::pacing::slots::{Feedback, Micros, State};
use roundelay_model::pacing::{SlotRequest, SlotResponse};

use crate::error::LedgerError;

/// What is remembered of a throttle.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleRow {
    /// Its name.
    pub throttle: String,
    /// Which of its keys; empty without.
    pub key: String,
    /// What it remembers, with times of the ledger.
    pub state: State,
    /// How many keys of the throttle are remembered, this one included.
    pub keys: u64,
}

/// Hands out the slots of throttles, for all workers.
#[async_trait]
pub trait Slots {
    /// Asks throttles, in one transaction; one answer for each request.
    ///
    /// # Errors
    /// When it is not known to be written. Then slots may have been handed out and are lost.
    async fn slots(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotResponse>, LedgerError>;

    /// What is remembered of throttles, in the order of their names and keys, at most `limit` of each
    /// name.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError>;

    /// What is remembered of one throttle, of the key if one is given, those that are idle last first, at most
    /// `limit`.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn throttle(&self, name: String, key: Option<String>, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError>;

    /// What operators have ordered, by the throttles' names; those without orders are absent.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    async fn throttle_orders(&self) -> Result<BTreeMap<String, Orders>, LedgerError>;

    /// Adds an order of `by` to what holds for a throttle, and answers with all that holds. When this has returned,
    /// every slot is handed out by the new order.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn order_throttle(&self, name: String, order: ThrottleOrder, by: String) -> Result<Orders, LedgerError>;

    /// Forgets throttles and keys that are as good as new, at most `limit`; answers how many.
    ///
    /// # Errors
    /// When it is not known to be written.
    async fn forget_idle(&self, limit: u32) -> Result<usize, LedgerError>;
}

/// What a row of the table holds. What cannot be read is taken for a throttle that has just handed
/// out all it had, which is forgotten in time, and never for one that has handed out nothing.
pub(super) fn state(text: &str, request: &SlotRequest, now: Micros) -> State {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(throttle = request.throttle, key = request.key, %error, "what the ledger remembers of a throttle cannot be read");
        let mut state = State::default();
        let until = now + request.limits.longest_window().as_micros() as Micros;
        let why = "what was remembered of it could not be read".to_owned();
        state.apply(&request.limits, now, &Feedback::Hold { until, why });
        state
    })
}

/// The text for a row of the throttles' table.
pub(super) fn text(state: &State) -> String {
    serde_json::to_string(state).unwrap_or_default()
}

/// What a row of the orders' table holds. What cannot be read is taken for none: then the configuration holds.
pub(super) fn orders(text: &str, throttle: &str) -> Orders {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(throttle, %error, "what was ordered of a throttle cannot be read; order it again");
        Orders::default()
    })
}

/// The text for a row of the orders' table.
pub(super) fn orders_text(orders: &Orders) -> String {
    serde_json::to_string(orders).unwrap_or_default()
}
