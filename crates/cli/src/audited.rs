//! The orders of the command line and of `roundelay top` in the audit, beside those of the API.
//!
//! An entry has what the API's entry of the same act has: no payloads, no secrets, and of many chains only how many.
//! Not in the audit are:
//!
//! - what changes nothing: dry runs, `encryption` without an option, a `promote` that finds nothing to do;
//! - what the configuration refuses, before the ledger is open;
//! - `import`, which writes a configuration and knows no ledger;
//! - `topology apply`, which declares what workers declare as well, and does so where there is no ledger, too;
//! - `bench`, `demo` and `simulate`, whose ledgers are their own, and gone with them;
//! - what workers do by themselves, such as following a roster.

use std::future::Future;

use roundelay_ledger::access::NewAuditEntry;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::scope::Scope;
use serde_json::Value;

/// The status of an order that was carried out.
const DONE: u16 = 200;
/// The status of an order that was refused, or that broke off.
const FAILED: u16 = 409;

/// An order that is about to be given.
pub(super) struct Order<'a> {
    /// The operator.
    pub(super) by: &'a str,
    /// The command, without `roundelay`.
    pub(super) command: &'a str,
    /// What it is about: a queue, a throttle, a worker, a chain.
    pub(super) target: String,
    /// Its options, as JSON.
    pub(super) detail: Value,
}

impl Order<'_> {
    fn entry(self, status: Option<u16>) -> NewAuditEntry {
        let Self { by, command, target, detail } = self;
        NewAuditEntry {
            actor: by.to_owned(),
            // Who reaches the ledger without the API may do everything.
            scope: Scope::Admin,
            action: format!("roundelay {command}"),
            target,
            detail: detail.to_string(),
            status,
        }
    }
}

/// Gives an order, with an entry in the audit before it and its outcome after it. An order that the audit cannot record
/// is not given.
///
/// # Errors
/// Those of the order, and when the audit cannot be written.
pub(super) async fn audited<T, E>(
    ledger: &dyn Ledger,
    order: Order<'_>,
    give: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<T>
where
    anyhow::Error: From<E>,
{
    audited_with(ledger, order, give, |_| None).await
}

/// As [`audited`]. `outcome` is the detail of the entry once the order is carried out, in place of its options.
///
/// # Errors
/// Those of [`audited`].
pub(super) async fn audited_with<T, E>(
    ledger: &dyn Ledger,
    order: Order<'_>,
    give: impl Future<Output = Result<T, E>>,
    outcome: impl FnOnce(&T) -> Option<Value>,
) -> anyhow::Result<T>
where
    anyhow::Error: From<E>,
{
    let number = ledger.begin_audit(order.entry(None)).await?;
    let given = give.await;
    let (status, detail) = match &given {
        Ok(done) => (DONE, outcome(done).map(|detail| detail.to_string())),
        // The error's words may quote a payload. An endpoint of the API that refuses something leaves them out, too.
        Err(_) => (FAILED, None),
    };
    if let Err(error) = ledger.end_audit(number, status, detail).await {
        tracing::warn!(%error, number, "how an order ended could not be written to the audit");
    }
    Ok(given?)
}

/// Writes an order that was carried out already, for a ledger that took no writes before it.
///
/// # Errors
/// When it is not known to be written.
pub(super) async fn note(ledger: &dyn Ledger, order: Order<'_>) -> Result<(), LedgerError> {
    ledger.begin_audit(order.entry(Some(DONE))).await.map(drop)
}
