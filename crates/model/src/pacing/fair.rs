//! A line in which tenants have turns by their weights (pure).
//!
//! **Start-time fair queueing.** Each tenant has a tag, which is what it has had, divided by its weight. The tenant with
//! the lowest tag has the next turn, and its tag then rises by the cost of that turn, divided by its weight. The
//! line's level is the tag of the tenant that was served last. A tenant that comes, or comes back, begins at that level
//! at least: it has no credit for the time in which it wanted nothing, and it is next. So a tenant that floods the line
//! delays others by one turn. A tenant without work is forgotten as soon as the level has reached its tag.
//! After P. Goyal, H. M. Vin, H. Cheng, *Start-time Fair Queueing*, IEEE/ACM Transactions on Networking 5(5), 1997. The
//! tag is kept for the tenant and not for each waiter. So a waiter that leaves has cost its tenant nothing, and another
//! weight counts from the next turn on.
//!
//! **Turns that take time.** Where a turn is a place that a run keeps, its cost is the time for which it is kept. That
//! time is charged while it passes, and each place in use counts as if it were kept for the mean time longer, or else
//! one tenant would get all places that become free at the same moment. When a run ends, its tenant has been charged
//! exactly the time that the run took. So tenants have shares of the time of places, however long their runs are.

mod shares;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

pub use shares::{Configured, MAX_WEIGHT, Quota, ShareSettings, Shares};

/// The one who shares: the value of the field that `fair` names. Jobs without one are the empty tenant.
pub type Tenant = Arc<str>;

/// What a tenant has had, divided by its weight, in parts of [`UNIT`].
type Tag = u128;

/// One start, or one microsecond of a place, at the weight 1. Divided by the largest weight it still has three digits.
const UNIT: Tag = 1 << 20;
/// Of tenants without work, no more than so many are remembered. If ever new ones come with one job each, the level
/// would stay where it is, and all of them would be kept.
const MAX_REMEMBERED: usize = 10_000;
/// The mean time of a place follows a new one by this part.
const NEWEST: u64 = 16;
/// What it is taken for until a place has been given back: a second.
const FIRST_STAY: u64 = 1_000_000;

/// Those who wait, each for one of the tenants. Within a tenant the smallest `K` is first.
#[derive(Debug)]
pub struct FairLine<K, W> {
    shares: Arc<Shares>,
    /// Those that wait, or use places.
    tenants: HashMap<Tenant, Account<K, W>>,
    /// The others, if their tags are above the level.
    remembered: HashMap<Tenant, Tag>,
    by_tag: BTreeSet<(Tag, Tenant)>,
    /// The tag of the tenant that was served last.
    level: Tag,
    /// How many wait.
    waiting: usize,
    /// How long a place is kept, in microseconds, as a mean.
    stay: u64,
    /// Since when tenants have had to wait for each other; nothing while none has to.
    contended: Option<u64>,
}

#[derive(Debug)]
struct Account<K, W> {
    tag: Tag,
    /// As it was when the tenant last joined or had a turn.
    weight: u32,
    waiting: BTreeMap<K, W>,
    /// Places in use, and the sum of the times from which they are charged.
    places: u64,
    since: u128,
}

impl<K, W> Account<K, W> {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.places == 0
    }

    /// The tag with what its places cost at the time `now`.
    fn score(&self, now: u64, stay: u64) -> Tag {
        let until = u128::from(self.places) * (u128::from(now) + u128::from(stay));
        self.tag + share(until.saturating_sub(self.since), self.weight)
    }
}

/// A cost, divided by a weight.
fn share(cost: u128, weight: u32) -> Tag {
    cost * UNIT / Tag::from(weight.max(1))
}

impl<K: Ord + Copy, W> FairLine<K, W> {
    /// An empty line.
    pub fn new(shares: Arc<Shares>) -> Self {
        Self {
            shares,
            tenants: HashMap::new(),
            remembered: HashMap::new(),
            by_tag: BTreeSet::new(),
            level: 0,
            waiting: 0,
            stay: FIRST_STAY,
            contended: None,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many wait for `tenant`.
    pub fn len_of(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, |account| account.waiting.len())
    }

    /// How many places `tenant` uses.
    pub fn places_of(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).map_or(0, |account| account.places)
    }

    /// Whether `tenant` has had something that others have not had: else it is a newcomer, and next.
    pub fn is_in_debt(&self, tenant: &str) -> bool {
        self.tag(tenant) > self.level
    }

    /// Joins the line at the time `now`, in microseconds.
    pub fn join(&mut self, tenant: &Tenant, key: K, waiter: W, now: u64) {
        if self.contended.is_none() {
            self.begin(now);
        }
        let (lowest, stay) = (self.lowest(now), self.stay);
        let account = self.awake(tenant);
        if account.waiting.is_empty() {
            // Also where runs of its go on: it has wanted no more.
            account.tag += lowest.saturating_sub(account.score(now, stay));
        }
        account.waiting.insert(key, waiter);
        self.waiting += 1;
    }

    /// Leaves the line without a turn.
    pub fn leave(&mut self, tenant: &Tenant, key: K) -> Option<W> {
        let waiter = self.tenants.get_mut(tenant)?.waiting.remove(&key)?;
        self.waiting -= 1;
        self.settle(tenant);
        Some(waiter)
    }

    /// The keys of those who wait, in no order.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.tenants.values().flat_map(|account| account.waiting.keys().copied())
    }

    /// Sends those away that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&W) -> bool) {
        let all =
            self.tenants.iter().flat_map(|(tenant, account)| account.waiting.iter().map(move |one| (tenant, one)));
        let gone = all.filter(|(_, (_, waiter))| !keep(waiter));
        let gone: Vec<(Tenant, K)> = gone.map(|(tenant, (key, _))| (tenant.clone(), *key)).collect();
        for (tenant, key) in gone {
            self.leave(&tenant, key);
        }
    }

    /// Who has the next turn at the time `now`. It looks at each tenant in the line.
    pub fn next(&self, now: u64) -> Option<(Tenant, K)> {
        // Of equals, a newcomer goes before those that use places.
        let (_, _, first, tenant) = self.scores(now).min_by(|a, b| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)))?;
        Some((tenant.clone(), first))
    }

    /// The next `most` in the order of their turns, if each turn costs what `cost` says.
    pub fn order(&self, most: usize, cost: impl Fn(K) -> u32) -> Vec<(Tenant, K)> {
        let in_line = self.tenants.iter().filter(|(_, account)| !account.waiting.is_empty());
        let (mut heads, mut rest) = (BinaryHeap::new(), Vec::new());
        for (n, (tenant, account)) in in_line.enumerate() {
            let mut keys = account.waiting.keys().copied();
            heads.extend(keys.next().map(|key| Reverse((account.tag, key, n))));
            rest.push((tenant, account.weight, keys));
        }
        let mut order = Vec::with_capacity(most.min(self.waiting));
        while order.len() < most
            && let Some(Reverse((tag, key, n))) = heads.pop()
        {
            let (tenant, weight, keys) = &mut rest[n];
            order.push((tenant.clone(), key));
            let tag = tag + share(cost(key).into(), *weight);
            heads.extend(keys.next().map(|key| Reverse((tag, key, n))));
        }
        order
    }

    /// What goes before one that joins now with this key, as far as this line tells: the sum of the costs.
    pub fn cost_before(&self, tenant: &str, key: K, cost: impl Fn(K) -> u32) -> u64 {
        let own = self.tenants.get(tenant).map(|own| own.waiting.range(..key).map(|(key, _)| u64::from(cost(*key))));
        let before = own.map_or(0, Iterator::sum);
        let tag = self.tag(tenant).max(self.level) + share(before.into(), self.shares.weight(tenant));
        let others = self.tenants.iter().filter(|(other, _)| ***other != *tenant).map(|(_, account)| {
            let (mut at, mut sum) = (account.tag, 0);
            for waiting in account.waiting.keys() {
                if (at, *waiting) >= (tag, key) {
                    break;
                }
                let cost = cost(*waiting);
                (at, sum) = (at + share(cost.into(), account.weight), sum + u64::from(cost));
            }
            sum
        });
        before + others.sum::<u64>()
    }

    /// Gives a turn at the time `now`, which costs so many starts. A turn that is a place costs none here: see
    /// [`Self::occupy`].
    pub fn take(&mut self, tenant: &Tenant, key: K, now: u64, cost: u32) -> Option<W> {
        let (weight, stay) = (self.shares.weight(tenant), self.stay);
        let account = self.tenants.get_mut(tenant)?;
        let waiter = account.waiting.remove(&key)?;
        self.waiting -= 1;
        account.weight = weight;
        self.level = self.level.max(account.score(now, stay));
        account.tag += share(cost.into(), weight);
        self.settle(tenant);
        Some(waiter)
    }

    /// Charges a tenant for starts that it has had without a turn.
    pub fn charge(&mut self, tenant: &Tenant, cost: u32) {
        let level = self.level;
        let account = self.awake(tenant);
        account.tag = account.tag.max(level) + share(cost.into(), account.weight);
        self.settle(tenant);
    }

    /// `tenant` uses a place from `now` on.
    pub fn occupy(&mut self, tenant: &Tenant, now: u64) {
        let level = self.level;
        let account = self.awake(tenant);
        if account.is_idle() {
            account.tag = account.tag.max(level);
        }
        account.places += 1;
        account.since += u128::from(now);
    }

    /// `tenant` gives back a place that it has used from `began` until `now`.
    pub fn vacate(&mut self, tenant: &Tenant, began: u64, now: u64) {
        let took = now.saturating_sub(began);
        self.stay = self.stay - self.stay / NEWEST + took / NEWEST;
        // What it had while there was room for all is not charged.
        let began = began.max(self.contended.unwrap_or(began));
        if let Some(account) = self.tenants.get_mut(tenant) {
            account.places = account.places.saturating_sub(1);
            account.since = account.since.saturating_sub(began.into());
            account.tag += share(now.saturating_sub(began).into(), account.weight);
        }
        self.settle(tenant);
    }

    /// `from` gives a place to `to`, of which the first waiter is answered, if one waits.
    pub fn hand_over(&mut self, (from, began): (&Tenant, u64), to: &Tenant, now: u64) -> Option<W> {
        self.vacate(from, began, now);
        let first = *self.tenants.get(to)?.waiting.first_key_value()?.0;
        let waiter = self.take(to, first, now, 0)?;
        self.occupy(to, now);
        Some(waiter)
    }

    /// There is room for all: what tenants have had is forgotten, since none had to wait for it.
    pub fn relax(&mut self) {
        if self.is_empty() {
            self.contended = None;
            self.remembered.clear();
            self.by_tag.clear();
        }
    }

    /// From now on there is no room for all.
    fn begin(&mut self, now: u64) {
        (self.contended, self.level) = (Some(now), 0);
        for account in self.tenants.values_mut() {
            (account.tag, account.since) = (0, u128::from(account.places) * u128::from(now));
        }
    }

    /// Where a tenant begins that comes now: not behind any that has waited.
    fn lowest(&self, now: u64) -> Tag {
        self.scores(now).map(|(score, ..)| score).min().map_or(self.level, |lowest| lowest.min(self.level))
    }

    /// The tenants in the line: how high each is, how many places it uses, and its first.
    fn scores(&self, now: u64) -> impl Iterator<Item = (Tag, u64, K, &Tenant)> {
        self.tenants.iter().filter_map(move |(tenant, account)| {
            let (first, _) = account.waiting.first_key_value()?;
            Some((account.score(now, self.stay), account.places, *first, tenant))
        })
    }

    fn tag(&self, tenant: &str) -> Tag {
        let tag = self.tenants.get(tenant).map(|account| account.tag);
        tag.or_else(|| self.remembered.get(tenant).copied()).unwrap_or(0)
    }

    /// The account of a tenant that has work.
    fn awake(&mut self, tenant: &Tenant) -> &mut Account<K, W> {
        let weight = self.shares.weight(tenant);
        let account = self.tenants.entry(tenant.clone()).or_insert_with(|| {
            let tag = self.remembered.remove(tenant).unwrap_or(0);
            self.by_tag.remove(&(tag, tenant.clone()));
            Account { tag, weight, waiting: BTreeMap::new(), places: 0, since: 0 }
        });
        account.weight = weight;
        account
    }

    /// Forgets what needs not be remembered, now that `tenant` may have no work.
    fn settle(&mut self, tenant: &Tenant) {
        if self.tenants.get(tenant).is_some_and(Account::is_idle)
            && let Some(Account { tag, .. }) = self.tenants.remove(tenant)
            && self.contended.is_some()
        {
            self.remembered.insert(tenant.clone(), tag);
            self.by_tag.insert((tag, tenant.clone()));
        }
        while let Some((tag, _)) = self.by_tag.first()
            && (*tag <= self.level || self.by_tag.len() > MAX_REMEMBERED)
            && let Some((tag, tenant)) = self.by_tag.pop_first()
        {
            self.level = self.level.max(tag);
            self.remembered.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests;
