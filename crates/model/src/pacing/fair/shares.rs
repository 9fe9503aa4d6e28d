//! The share of each tenant: its weight, and how many of its jobs run at the same time.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::fleet::{FleetOrders, OrderedShare, Subject};

/// The largest weight. The least is 1, and that is the default.
pub const MAX_WEIGHT: u32 = 1_000;

/// `[tenants.<name>]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareSettings {
    /// Its share in proportion to those of others, from 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// So many of its jobs run at the same time at most, in place of what its queue says.
    pub most: Option<u32>,
}

impl Default for ShareSettings {
    fn default() -> Self {
        Self { weight: 1, most: None }
    }
}

/// How many jobs of a tenant an operator lets run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quota {
    /// At most so many.
    Most(u32),
    /// As many as there is room for.
    Unlimited,
}

/// What is configured of the shares of tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// `[tenants]`
    pub tenants: BTreeMap<String, ShareSettings>,
    /// How many jobs of one tenant run at the same time at most, by the queue.
    pub queues: BTreeMap<String, u32>,
}

/// What is configured of tenants, under what operators have ordered. All parts of a worker read the same.
#[derive(Debug, Default)]
pub struct Shares {
    configured: RwLock<Configured>,
    ordered: RwLock<BTreeMap<String, OrderedShare>>,
}

impl Shares {
    /// As configured, without an order.
    pub fn new(configured: Configured) -> Self {
        Self { configured: RwLock::new(configured), ordered: RwLock::default() }
    }

    /// Takes over another configuration. Orders stay.
    pub fn take_over(&self, configured: Configured) {
        *self.configured.write() = configured;
    }

    /// Takes over what operators have ordered by now.
    pub fn obey(&self, orders: &BTreeMap<Subject, FleetOrders>) {
        let shares = orders.iter().filter_map(|(subject, orders)| match (subject, &orders.share) {
            (Subject::Tenant(name), Some(share)) => Some((name.clone(), share.clone())),
            _ => None,
        });
        *self.ordered.write() = shares.collect();
    }

    /// The weight of `tenant`, from 1 to [`MAX_WEIGHT`].
    pub fn weight(&self, tenant: &str) -> u32 {
        let ordered = self.ordered.read().get(tenant).and_then(|share| share.weight);
        let weight = ordered.or_else(|| self.configured.read().tenants.get(tenant).map(|share| share.weight));
        weight.unwrap_or(1).clamp(1, MAX_WEIGHT)
    }

    /// Whether the jobs of any tenant on `queue` are limited.
    pub fn has_quotas(&self, queue: &str) -> bool {
        let configured = self.configured.read();
        configured.queues.contains_key(queue)
            || configured.tenants.values().any(|share| share.most.is_some())
            || self.ordered.read().values().any(|share| matches!(share.most, Some(Quota::Most(_))))
    }

    /// How many jobs of `tenant` run at the same time at most on `queue`, over all workers. `None`: no limit.
    pub fn most(&self, tenant: &str, queue: &str) -> Option<u32> {
        match self.ordered.read().get(tenant).and_then(|share| share.most) {
            Some(Quota::Most(most)) => Some(most),
            Some(Quota::Unlimited) => None,
            None => {
                let configured = self.configured.read();
                let own = configured.tenants.get(tenant).and_then(|share| share.most);
                own.or_else(|| configured.queues.get(queue).copied())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Time;
    use crate::fleet::FleetOrder;

    #[test]
    fn an_order_goes_before_the_configuration_and_the_configuration_before_the_queue() {
        let of = |weight, most| ShareSettings { weight, most };
        let configured = [("acme", of(5, Some(100))), ("small", of(2, None))];
        let tenants = configured.map(|(name, share)| (name.to_owned(), share)).into();
        let queues: BTreeMap<String, u32> = [("work".to_owned(), 20)].into();
        let shares = Shares::new(Configured { tenants, queues: queues.clone() });
        let order = |name: &str, orders: &[FleetOrder]| {
            let mut all = FleetOrders::default();
            orders.iter().for_each(|order| all.add(order.clone(), "ann", Time::from_millis(0)));
            shares.obey(&[(Subject::Tenant(name.into()), all)].into());
        };
        let share = |weight, most| FleetOrder::Share { weight, most };
        let seen = |name: &str| (shares.weight(name), shares.most(name, "work"), shares.most(name, "other"));
        assert_eq!(seen("acme"), (5, Some(100), Some(100)));
        assert_eq!(seen("small"), (2, Some(20), None));
        assert_eq!(seen("unknown"), (1, Some(20), None));
        order("acme", &[share(Some(7), None)]);
        assert_eq!(seen("acme"), (7, Some(100), Some(100)), "of what is not ordered, the configuration says");
        order("acme", &[share(Some(7), None), share(None, Some(Quota::Most(3)))]);
        assert_eq!(seen("acme"), (7, Some(3), Some(3)), "a second order keeps the first");
        order("acme", &[share(None, Some(Quota::Unlimited))]);
        assert_eq!(seen("acme"), (5, None, None));
        order("acme", &[share(Some(7), Some(Quota::Unlimited)), FleetOrder::ShareAsConfigured]);
        assert_eq!(seen("acme"), (5, Some(100), Some(100)));
        shares.take_over(Configured { queues, ..Configured::default() });
        assert_eq!(seen("acme"), (1, Some(20), None));
    }
}
