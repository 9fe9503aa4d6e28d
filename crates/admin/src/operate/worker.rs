//! Verbs on workers: drain them, so that they can be stopped without interrupting anything, and resume them.

use roundelay_ledger::Ledger;
use roundelay_model::fleet::{FleetOrder, FleetOrders, Subject};

use super::{OperateError, Operator, Ordered, Result, reason};

/// The default reason for draining a worker.
pub const DRAINED: &str = "it is to be drained";

/// Drains a worker: the worker takes no more jobs. What runs finishes.
///
/// # Errors
/// When there is no worker of that name, or the ledger does not answer.
pub async fn drain(operator: &Operator<'_>, worker: &str, why: &str) -> Result<Ordered<FleetOrders>> {
    let why = reason(why).unwrap_or(DRAINED).to_owned();
    let words = format!("{worker} takes nothing more within two seconds, and what runs finishes");
    operator.order_fleet(Subject::Worker(worker.into()), FleetOrder::Close { why }, words).await
}

/// Lets a worker take jobs again.
///
/// # Errors
/// When there is no worker of that name, or the ledger does not answer.
pub async fn resume(operator: &Operator<'_>, worker: &str) -> Result<Ordered<FleetOrders>> {
    let words = format!("{worker} takes jobs again within two seconds");
    operator.order_fleet(Subject::Worker(worker.into()), FleetOrder::Open, words).await
}

/// The full name of the one worker whose name begins with `beginning`.
///
/// # Errors
/// When there is none, or several, or the ledger does not answer.
pub async fn named(ledger: &dyn Ledger, beginning: &str) -> Result<String> {
    let workers = ledger.workers().await?;
    only(beginning, workers.into_iter().map(|worker| worker.presence.worker))
}

fn only(beginning: &str, workers: impl Iterator<Item = String>) -> Result<String> {
    let mut fits: Vec<String> = workers.filter(|worker| worker.starts_with(beginning)).collect();
    match (fits.pop(), fits.len()) {
        (Some(only), 0) => Ok(only),
        (Some(_), _) => Err(OperateError::Refused(format!(
            "several workers have names that begin with {beginning}; say more of it"
        ))),
        (None, _) => Err(OperateError::Unknown(format!(
            "no worker is called {beginning}; `roundelay workers list` shows which there are"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_named_by_what_no_other_begins_with() {
        let workers = || ["17-ab", "17-cd", "4711-ab"].map(str::to_owned).into_iter();
        let table = [
            ("17-ab", Ok("17-ab")),
            ("4", Ok("4711-ab")),
            ("17", Err("several workers have names that begin with 17; say more of it")),
            ("18", Err("no worker is called 18; `roundelay workers list` shows which there are")),
        ];
        for (beginning, named) in table {
            let found = only(beginning, workers()).map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), named, "{beginning}");
        }
    }
}
