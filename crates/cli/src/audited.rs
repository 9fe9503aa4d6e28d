//! The orders of the command line and of `roundelay top` in the audit, beside those of the API.

use std::future::Future;

use roundelay_ledger::Ledger;
use roundelay_ledger::access::NewAuditEntry;
use roundelay_model::scope::Scope;
use serde_json::Value;

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
    let Order { by, command, target, detail } = order;
    let number = ledger
        .begin_audit(NewAuditEntry {
            actor: by.to_owned(),
            // Who reaches the ledger without the API may do everything.
            scope: Scope::Admin,
            action: format!("roundelay {command}"),
            target,
            detail: detail.to_string(),
            status: None,
        })
        .await?;
    let given = give.await;
    let status = if given.is_ok() { 200 } else { 409 };
    if let Err(error) = ledger.end_audit(number, status, None).await {
        tracing::warn!(%error, number, "how an order ended could not be written to the audit");
    }
    Ok(given?)
}
