//! Verbs on tenants while workers run: another share, or the configured one again.

use roundelay_config::MAX_QUOTA;
use roundelay_model::fleet::{FleetOrder, FleetOrders, Subject};
use roundelay_model::pacing::fair::{MAX_WEIGHT, Quota};

use super::{OperateError, Operator, Ordered, Result, bad};

/// What follows an order that nothing obeys yet.
const NOTHING_FAIR: &str = "; no queue or throttle has `fair`, so it changes nothing yet";

/// Gives a tenant another share of all fair queues and throttles. What is `None` stays as it is.
///
/// # Errors
/// When nothing is to change, a number is out of range, or the ledger does not answer.
pub async fn share(
    operator: &Operator<'_>,
    tenant: &str,
    weight: Option<u32>,
    most: Option<Quota>,
) -> Result<Ordered<FleetOrders>> {
    check(weight, most)?;
    let weight_words = weight.map(|weight| format!("has the weight {weight}"));
    let most_words = most.map(|most| match most {
        Quota::Most(most) => format!("runs at most {most} jobs of a queue at the same time"),
        Quota::Unlimited => "may run as many jobs as there is room for".to_owned(),
    });
    let words: Vec<String> = weight_words.into_iter().chain(most_words).collect();
    let words = format!("{} {} within two seconds", named(tenant), words.join(", and "));
    order(operator, tenant, FleetOrder::Share { weight, most }, words).await
}

/// Gives a tenant the share that is configured.
///
/// # Errors
/// When the ledger does not answer.
pub async fn as_configured(operator: &Operator<'_>, tenant: &str) -> Result<Ordered<FleetOrders>> {
    let words = format!("{} has the share that is configured within two seconds", named(tenant));
    order(operator, tenant, FleetOrder::ShareAsConfigured, words).await
}

/// A tenant in a sentence.
pub fn named(tenant: &str) -> &str {
    if tenant.is_empty() { "the tenant of jobs without one" } else { tenant }
}

async fn order(
    operator: &Operator<'_>,
    tenant: &str,
    order: FleetOrder,
    mut words: String,
) -> Result<Ordered<FleetOrders>> {
    if !operator.config.is_fair() {
        words += NOTHING_FAIR;
    }
    operator.order_fleet(Subject::Tenant(tenant.into()), order, words).await
}

fn check(weight: Option<u32>, most: Option<Quota>) -> Result<()> {
    if weight.is_none() && most.is_none() {
        return Err(OperateError::Bad("give a weight, or how many jobs may run".into()));
    }
    if weight.is_some_and(|weight| !(1..=MAX_WEIGHT).contains(&weight)) {
        return Err(bad("weight", format!("from 1 to {MAX_WEIGHT} is possible")));
    }
    if let Some(Quota::Most(most)) = most
        && !(1..=MAX_QUOTA).contains(&most)
    {
        return Err(bad(
            "most",
            format!("from 1 to {MAX_QUOTA} is possible; to stop an owner's jobs, pause the owner"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_shares() {
        let most = |most| Some(Quota::Most(most));
        let table = [
            (None, None, Err("give a weight, or how many jobs may run")),
            (Some(1), None, Ok(())),
            (Some(1_000), Some(Quota::Unlimited), Ok(())),
            (Some(0), None, Err("weight: from 1 to 1000 is possible")),
            (Some(1_001), None, Err("weight: from 1 to 1000 is possible")),
            (None, most(1), Ok(())),
            (None, most(0), Err("most: from 1 to 1000000 is possible; to stop an owner's jobs, pause the owner")),
            (
                None,
                most(1_000_001),
                Err("most: from 1 to 1000000 is possible; to stop an owner's jobs, pause the owner"),
            ),
        ];
        for (weight, most, fine) in table {
            let found = check(weight, most).map_err(|error| error.to_string());
            assert_eq!(found, fine.map_err(str::to_owned), "{weight:?} {most:?}");
        }
    }
}
