//! The verbs of operators, one function each. It checks names, bounds and reasons, calls the ledger or the broker, and
//! answers a sentence for people (`Display`) with the data behind it.
//!
//! The command line, the API and `roundelay top` are adapters: they read the request, call a verb, and print or
//! serialise the answer. So nothing here depends on any of them. Scopes, and the audit of requests, are the API's
//! matter (`crates/admin/src/api/auth.rs`).

pub mod chain;
pub mod failed;
pub mod quarantine;
pub mod queue;
pub mod schedule;
pub mod site;
pub mod tenant;
pub mod throttle;
pub mod token;
pub mod worker;

use std::fmt;
use std::sync::Arc;

use roundelay_broker::BrokerError;
use roundelay_config::Config;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::fleet::{FleetOrder, FleetOrders, Subject};

/// Why a verb did nothing. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// Nothing has this name.
    #[error("{0}")]
    Unknown(String),
    /// The request makes no sense; the text begins with the name of the field.
    #[error("{0}")]
    Bad(String),
    /// The state does not allow the change.
    #[error("{0}")]
    Refused(String),
    /// The ledger is unavailable.
    #[error(transparent)]
    Ledger(LedgerError),
    /// The broker is unavailable.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

pub type Result<T> = std::result::Result<T, OperateError>;

impl From<LedgerError> for OperateError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::NoWorker(_) => Self::Unknown(error.to_string()),
            error => Self::Ledger(error),
        }
    }
}

/// Refuses a field of a request.
fn bad(field: &str, wrong: impl fmt::Display) -> OperateError {
    OperateError::Bad(format!("{field}: {wrong}"))
}

/// Gives orders on a ledger, in the name of an actor.
pub struct Operator<'a> {
    /// The configuration, which has the names of queues and throttles.
    pub config: Arc<Config>,
    pub ledger: &'a dyn Ledger,
    /// The actor, for people who read the orders later.
    pub by: String,
}

impl Operator<'_> {
    async fn order_fleet(&self, of: Subject, order: FleetOrder, words: String) -> Result<Ordered<FleetOrders>> {
        Ok(Ordered { words, orders: self.ledger.order_fleet(of, order, self.by.clone()).await? })
    }
}

/// An order that is in force.
#[derive(Clone, Debug)]
pub struct Ordered<O> {
    /// The result, in words.
    words: String,
    /// All orders for the same queue, worker, tenant or throttle.
    pub orders: O,
}

impl<O> fmt::Display for Ordered<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// Why something is stopped, without the space around it.
///
/// # Errors
/// When the reason is empty.
pub fn reason(why: &str) -> std::result::Result<&str, &'static str> {
    match why.trim() {
        "" => Err("it needs a word for those who wonder why nothing runs"),
        why => Ok(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_a_word() {
        for (why, said) in [("they are down", Some("they are down")), (" \tx\n", Some("x")), ("", None), (" \n", None)]
        {
            assert_eq!(reason(why).ok(), said, "{why:?}");
        }
        let refused = bad("why", reason(" ").unwrap_err()).to_string();
        assert_eq!(refused, "why: it needs a word for those who wonder why nothing runs");
    }

    #[test]
    fn an_order_for_a_worker_that_has_ended_is_no_outage() {
        let gone = OperateError::from(LedgerError::NoWorker("17-ab".into()));
        assert!(matches!(&gone, OperateError::Unknown(_)), "{gone:?}");
        assert_eq!(gone.to_string(), "there is no worker 17-ab; it may have ended");
        assert!(matches!(OperateError::from(LedgerError::Closed), OperateError::Ledger(_)));
    }
}
