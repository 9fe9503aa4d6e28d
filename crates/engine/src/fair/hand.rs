//! How much of each tenant a worker has in hand, and how much more it takes (pure).
//!
//! A worker keeps about `hold` jobs of a fair queue in hand, shared by weight between the tenants that have any. What
//! exceeds a tenant's share is left to the backlog, so a tenant's flood takes nothing from what others have in hand. The
//! order in which what is in hand starts is another matter: that is the room's and the throttle's.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The jobs in hand, by tenant. Tenants without any, here or in the backlog, are not in it.
#[derive(Debug, Default)]
pub(super) struct Hand {
    of: BTreeMap<Arc<str>, usize>,
    all: usize,
    /// Tenants with messages in the backlog, as far as is known, and the pass in which that was seen last.
    behind: HashMap<Arc<str>, u64>,
    pass: u64,
}

impl Hand {
    /// One more job of `tenant` is in hand.
    pub(super) fn add(&mut self, tenant: &Arc<str>) {
        *self.of.entry(tenant.clone()).or_default() += 1;
        self.all += 1;
    }

    /// One less.
    pub(super) fn remove(&mut self, tenant: &Arc<str>) {
        if let Some(count) = self.of.get_mut(tenant) {
            *count -= 1;
            self.all -= 1;
            if *count == 0 {
                self.of.remove(tenant);
            }
        }
    }

    /// How many jobs of `tenant` are in hand.
    fn count(&self, tenant: &str) -> usize {
        self.of.get(tenant).copied().unwrap_or_default()
    }

    /// Whether a job of `tenant` that the broker has delivered is kept in hand. Not beside older ones in the backlog, or
    /// these would never have their turn.
    pub(super) fn keeps(&self, tenant: &str, hold: usize, weight: impl Fn(&str) -> u32) -> bool {
        let own = u64::from(weight(tenant));
        let others: u64 = self.of.keys().filter(|of| &***of != tenant).map(|of| u64::from(weight(of))).sum();
        !self.behind.contains_key(tenant) && self.count(tenant) < share(hold, own, own + others)
    }

    /// A message of `tenant` was left to the backlog.
    pub(super) fn left(&mut self, tenant: &Arc<str>) {
        self.behind.insert(tenant.clone(), self.pass);
    }

    /// The backlog was looked at: messages of these tenants wait there. `passed` when the look has come to the last
    /// tenant: a tenant that was not seen in the whole pass before has none.
    pub(super) fn looked(&mut self, waiting: &[String], passed: bool) {
        for tenant in waiting {
            self.behind.insert(tenant.as_str().into(), self.pass);
        }
        if passed {
            let pass = self.pass;
            self.behind.retain(|_, seen| *seen == pass);
            self.pass += 1;
        }
    }

    /// How many messages to take of the tenants that wait in the backlog. A tenant with no job in hand has at least one
    /// taken, until twice what is held is in hand; of the others, as many as their shares have room for. Where so many
    /// tenants wait that shares are less than a job, each look takes by weight.
    pub(super) fn takes(&self, waiting: &[String], hold: usize, weight: impl Fn(&str) -> u32) -> Vec<(String, u32)> {
        let weights: Vec<u64> = waiting.iter().map(|tenant| u64::from(weight(tenant))).collect();
        let in_hand: u64 = self
            .of
            .keys()
            .filter(|of| !waiting.iter().any(|tenant| tenant == &***of))
            .map(|of| u64::from(weight(of)))
            .sum();
        let of_all = in_hand + weights.iter().sum::<u64>();
        let lightest = weights.iter().copied().min().unwrap_or(1).max(1);
        let (mut all, mut takes) = (self.all, Vec::new());
        for (tenant, own) in waiting.iter().zip(weights) {
            let here = self.count(tenant);
            let by_turns = usize::try_from(own / lightest).unwrap_or(hold).min(hold);
            let missing = share(hold, own, of_all).max(by_turns).saturating_sub(here);
            let room = if here == 0 { (2 * hold).saturating_sub(all) } else { hold.saturating_sub(all) };
            let most = if here == 0 && all >= hold { 1 } else { missing };
            let take = most.min(room);
            if take > 0 {
                all += take;
                takes.push((tenant.clone(), u32::try_from(take).unwrap_or(u32::MAX)));
            }
        }
        takes
    }
}

/// The share of `hold` jobs that a tenant of weight `own` has among tenants whose weights come to `of_all`: at least one.
fn share(hold: usize, own: u64, of_all: u64) -> usize {
    let share = hold as u64 * own / of_all.max(1);
    usize::try_from(share).unwrap_or(hold).max(1)
}
