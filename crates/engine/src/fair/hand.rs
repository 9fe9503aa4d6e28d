//! How much of each tenant a worker has in hand, and how much more it takes (pure).
//!
//! A worker keeps about `hold` jobs of a fair queue in hand, shared by weight between the tenants that have any. What
//! exceeds a tenant's share is left to the backlog, so a tenant's flood takes nothing from what others have in hand. The
//! order in which what is in hand starts is another matter: that is the room's and the throttle's.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Each tenant may have so many in hand, however small its share is: one that runs, and the next one. Else the next one
/// would be fetched only when the one before has ended, and others would start meanwhile.
const LEAST: usize = 2;

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
    pub(super) fn keeps(&self, tenant: &str, hold: usize, quota: impl Fn(&str) -> Quota) -> bool {
        let (own, share) = self.share(tenant, hold, quota);
        !self.behind.contains_key(tenant) && self.count(tenant) < own.of(share)
    }

    /// Whether it is the tenant's quota, and not its share, that leaves further jobs of the tenant to the backlog.
    pub(super) fn is_bound_by_quota(&self, tenant: &str, hold: usize, quota: impl Fn(&str) -> Quota) -> bool {
        let (own, share) = self.share(tenant, hold, quota);
        own.of(share) < share.max(LEAST)
    }

    /// What the tenant may have, and the tenant's share beside those that have jobs in hand.
    fn share(&self, tenant: &str, hold: usize, quota: impl Fn(&str) -> Quota) -> (Quota, usize) {
        let own = quota(tenant);
        let others: u64 = self.of.keys().filter(|of| &***of != tenant).map(|of| quota(of).weight).sum();
        (own, share(hold, own.weight, own.weight + others))
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

    /// How many messages to take of the tenants that wait in the backlog: as many as their shares have room for, until
    /// twice what is held is in hand. Where so many tenants wait that shares are less than a
    /// job, each look takes by weight.
    pub(super) fn takes(&self, waiting: &[String], hold: usize, quota: impl Fn(&str) -> Quota) -> Vec<(String, u32)> {
        let quotas: Vec<Quota> = waiting.iter().map(|tenant| quota(tenant)).collect();
        let is_waiting = |of: &Arc<str>| waiting.iter().any(|tenant| **tenant == **of);
        let in_hand: u64 = self.of.keys().filter(|of| !is_waiting(of)).map(|of| quota(of).weight).sum();
        let of_all = in_hand + quotas.iter().map(|own| own.weight).sum::<u64>();
        let lightest = quotas.iter().map(|own| own.weight).min().unwrap_or(1).max(1);
        let (mut room, mut takes) = ((2 * hold).saturating_sub(self.all), Vec::new());
        for (tenant, own) in waiting.iter().zip(quotas) {
            let by_turns = usize::try_from(own.weight / lightest).unwrap_or(hold).min(hold);
            let limit = own.of(share(hold, own.weight, of_all).max(by_turns));
            let take = limit.saturating_sub(self.count(tenant)).min(room);
            if take > 0 {
                room -= take;
                takes.push((tenant.clone(), u32::try_from(take).unwrap_or(u32::MAX)));
            }
        }
        takes
    }
}

/// What a tenant may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    /// Its share in proportion to those of others.
    pub(super) weight: u64,
    /// How many of its jobs run at the same time, at most.
    pub(super) most: Option<u32>,
}

impl Quota {
    /// How many jobs of a share are kept in hand: no more than may run, and the next one. Others would only take room.
    fn of(self, share: usize) -> usize {
        let most = self.most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
        share.max(LEAST).min(most.saturating_add(1))
    }
}

/// The share of `hold` jobs that a tenant of weight `own` has among tenants whose weights come to `of_all`.
fn share(hold: usize, own: u64, of_all: u64) -> usize {
    usize::try_from(hold as u64 * own / of_all.max(1)).unwrap_or(hold)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(_: &str) -> Quota {
        Quota { weight: 1, most: None }
    }

    fn hand(of: &[(&str, usize)]) -> Hand {
        let mut hand = Hand::default();
        for (tenant, count) in of {
            (0..*count).for_each(|_| hand.add(&(*tenant).into()));
        }
        hand
    }

    fn waiting(tenants: &[&str]) -> Vec<String> {
        tenants.iter().map(|tenant| (*tenant).to_owned()).collect()
    }

    #[test]
    fn a_table_of_what_is_kept_in_hand() {
        let heavy = |tenant: &str| Quota { weight: if tenant == "heavy" { 3 } else { 1 }, most: None };
        let two = |_: &str| Quota { weight: 1, most: Some(2) };
        type Row<'a> = (&'a str, &'a [(&'a str, usize)], &'a str, &'a dyn Fn(&str) -> Quota, bool);
        let table: [Row<'_>; 9] = [
            ("the first", &[], "a", &plain, true),
            ("alone, below what is held", &[("a", 7)], "a", &plain, true),
            ("alone, as many as are held", &[("a", 8)], "a", &plain, false),
            ("beside another, below its half", &[("a", 3), ("b", 1)], "a", &plain, true),
            ("beside another, its half", &[("a", 4), ("b", 1)], "a", &plain, false),
            ("a flood of another leaves it two at least", &[("a", 800), ("b", 1)], "b", &plain, true),
            ("by weight", &[("heavy", 5), ("a", 1)], "heavy", &heavy, true),
            ("by weight, no more", &[("heavy", 6), ("a", 1)], "heavy", &heavy, false),
            ("no more than may run, and one", &[("a", 3)], "a", &two, false),
        ];
        for (label, of, tenant, quota, keeps) in table {
            assert_eq!(hand(of).keeps(tenant, 8, quota), keeps, "{label}");
        }
    }

    #[test]
    fn what_came_first_goes_first_until_the_backlog_has_none_of_the_tenant() {
        let mut hand = hand(&[("a", 1)]);
        hand.left(&"a".into());
        assert!(!hand.keeps("a", 8, plain) && hand.keeps("b", 8, plain));
        hand.looked(&waiting(&["a", "b"]), true);
        assert!(!hand.keeps("a", 8, plain) && !hand.keeps("b", 8, plain));
        hand.looked(&waiting(&["b"]), false);
        assert!(!hand.keeps("a", 8, plain), "the pass is not over");
        hand.looked(&[], true);
        assert!(hand.keeps("a", 8, plain) && !hand.keeps("b", 8, plain));
        hand.looked(&[], true);
        assert!(hand.keeps("b", 8, plain));
    }

    #[test]
    fn a_table_of_what_is_taken_from_the_backlog() {
        let heavy = |tenant: &str| Quota { weight: if tenant == "heavy" { 3 } else { 1 }, most: None };
        let one = |tenant: &str| Quota { weight: 1, most: (tenant == "a").then_some(1) };
        type Row<'a> =
            (&'a str, &'a [(&'a str, usize)], &'a [&'a str], &'a dyn Fn(&str) -> Quota, &'a [(&'a str, u32)]);
        let table: [Row<'_>; 8] = [
            ("none waits", &[("a", 3)], &[], &plain, &[]),
            ("one tenant has all", &[], &["a"], &plain, &[("a", 8)]),
            ("what is missing", &[("a", 5)], &["a"], &plain, &[("a", 3)]),
            ("its share beside one in hand", &[("b", 8)], &["a"], &plain, &[("a", 4)]),
            ("by weight", &[], &["a", "heavy"], &heavy, &[("a", 2), ("heavy", 6)]),
            ("no more than may run, and one", &[], &["a", "b"], &one, &[("a", 2), ("b", 4)]),
            ("until there is no more room", &[("x", 13)], &["a", "b", "c"], &plain, &[("a", 2), ("b", 1)]),
            ("nothing, with twice as much in hand", &[("x", 16)], &["a"], &plain, &[]),
        ];
        for (label, of, tenants, quota, takes) in table {
            let expected: Vec<_> = takes.iter().map(|(tenant, most)| ((*tenant).to_owned(), *most)).collect();
            assert_eq!(hand(of).takes(&waiting(tenants), 8, quota), expected, "{label}");
        }
        let many: Vec<String> = (0..40).map(|n| format!("t{n:02}")).chain(["heavy".into()]).collect();
        let takes = hand(&[]).takes(&many, 8, heavy);
        assert_eq!(takes.len(), 8, "two of each until twice as much is in hand: {takes:?}");
    }

    #[test]
    fn a_quota_leaves_jobs_to_the_backlog_where_it_is_less_than_the_share() {
        let two = |_: &str| Quota { weight: 1, most: Some(2) };
        for (label, of, quota, bound) in [
            ("no quota", &[("a", 3)][..], &plain as &dyn Fn(&str) -> Quota, false),
            ("a quota of two, of eight", &[("a", 3)], &two, true),
            ("beside one other, of four", &[("a", 3), ("b", 1)], &two, true),
            ("beside three others, of two", &[("a", 3), ("b", 1), ("c", 1), ("d", 1)], &two, false),
        ] {
            assert_eq!(hand(of).is_bound_by_quota("a", 8, quota), bound, "{label}");
        }
    }

    #[test]
    fn a_tenant_without_a_job_is_forgotten() {
        let mut hand = hand(&[("a", 2)]);
        hand.remove(&"a".into());
        assert_eq!((hand.of.len(), hand.all), (1, 1));
        hand.remove(&"a".into());
        assert_eq!((hand.of.len(), hand.all), (0, 0));
    }
}
