//! The shares of tenants: as configured, and as an operator has ordered.

use std::collections::{BTreeMap, BTreeSet};

use roundelay_config::Config;
use roundelay_model::fleet::{FleetOrders, Subject};
use roundelay_model::pacing::fair::{Quota, ShareSettings};
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use utoipa::ToSchema;

/// The share of a tenant of all fair queues and throttles.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TenantReport {
    /// The value of the field that `fair` names; empty for jobs without one.
    pub tenant: String,
    /// The tenant's share in proportion to those of others.
    pub weight: u32,
    /// How many of the tenant's jobs run at the same time on a queue, over all workers; null: as the queue says.
    pub most: Option<u32>,
    /// Whether there is no such limit for the tenant, whatever the queue says.
    pub unlimited: bool,
    /// The configured share.
    pub configured: ConfiguredShare,
    /// The order of an operator that is in force.
    pub ordered: Option<OrderedShare>,
}

/// The share of a tenant as configured.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ConfiguredShare {
    pub weight: u32,
    pub most: Option<u32>,
}

/// The share of a tenant that an operator has ordered.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct OrderedShare {
    /// The operator.
    pub by: String,
    /// When the share was ordered.
    pub at: At,
}

/// The tenants that the configuration names, and those with orders (pure).
pub fn reports(config: &Config, orders: &BTreeMap<Subject, FleetOrders>, wall_clock: &WallClock) -> Vec<TenantReport> {
    let ordered: BTreeMap<&String, _> = orders
        .iter()
        .filter_map(|(subject, orders)| match subject {
            Subject::Tenant(name) => Some((name, orders.share.as_ref()?)),
            _ => None,
        })
        .collect();
    let names: BTreeSet<&String> = config.tenants.keys().chain(ordered.keys().copied()).collect();
    let report = |name: &String| {
        let ShareSettings { weight, most } = config.tenants.get(name).copied().unwrap_or_default();
        let order = ordered.get(name);
        let quota = order.and_then(|order| order.most);
        TenantReport {
            tenant: name.clone(),
            weight: order.and_then(|order| order.weight).unwrap_or(weight),
            most: match quota {
                Some(Quota::Most(most)) => Some(most),
                Some(Quota::Unlimited) => None,
                None => most,
            },
            unlimited: quota == Some(Quota::Unlimited),
            configured: ConfiguredShare { weight, most },
            ordered: order.map(|order| OrderedShare { by: order.by.clone(), at: At::of(order.at, wall_clock) }),
        }
    };
    names.into_iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use roundelay_model::clock::Time;
    use roundelay_model::fleet::FleetOrder;

    use super::*;

    #[test]
    fn a_tenant_is_as_configured_where_nothing_is_ordered() {
        let config = Config::parse("[tenants.acme]\nweight = 5\nmost = 7\n[tenants.small]\n", "r.toml", []).unwrap();
        let order = |weight, most| {
            let mut orders = FleetOrders::default();
            orders.add(FleetOrder::Share { weight, most }, "ann", Time::from_millis(0));
            orders
        };
        let orders = [
            (Subject::Tenant("acme".into()), order(None, Some(Quota::Unlimited))),
            (Subject::Tenant("other".into()), order(Some(3), Some(Quota::Most(2)))),
            (Subject::Queue("small".into()), FleetOrders::default()),
        ];
        let found = reports(&config, &orders.into(), &WallClock::default());
        let found: Vec<_> = found
            .iter()
            .map(|of| (of.tenant.as_str(), of.weight, of.most, of.unlimited, of.configured.most, of.ordered.is_some()))
            .collect();
        let wanted = [
            ("acme", 5, None, true, Some(7), true),
            ("other", 3, Some(2), false, None, true),
            ("small", 1, None, false, None, false),
        ];
        assert_eq!(found, wanted);
    }
}
