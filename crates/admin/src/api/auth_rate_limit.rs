//! Limits how often a client may show invalid tokens, by the rate limiter [`governor`].
//!
//! A guess never finds 256 bits. But each guess reads the ledger, and a forgotten program with a revoked token tries
//! without end. A token that was valid before is not delayed by other tokens from the same address.

use std::collections::{HashMap, HashSet};
use std::hash::Hash as Key;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};
use parking_lot::{Mutex, MutexGuard};
use roundelay_ledger::access::{Hash, MAX_TOKENS};
use roundelay_model::clock::Elapsed;

/// The time in which all failures are forgiven, evenly.
const WINDOW: Duration = Duration::from_secs(60);
/// How many tokens of one address are checked at once; after that, one whenever a failure is forgiven.
pub const MAX_FROM_ADDRESS: NonZeroU32 = NonZeroU32::new(30).unwrap();
/// The same for one token.
pub const MAX_WITH_TOKEN: NonZeroU32 = NonZeroU32::new(10).unwrap();
/// How many addresses and tokens are remembered. If none of them can be forgotten, a new one is not counted.
const MAX_REMEMBERED: usize = 10_000;

/// The theoretical arrival time of each key, as GCRA calls it: when the next check is due if checks came evenly. The
/// times are kept here and not in governor's own store because a check that was no failure is taken back.
#[derive(Clone, Debug)]
struct Arrivals<K>(Arc<Mutex<HashMap<K, Nanos>>>);

impl<K> Arrivals<K> {
    fn by_key(&self) -> MutexGuard<'_, HashMap<K, Nanos>> {
        self.0.lock()
    }
}

impl<K: Key + Eq + Copy> StateStore for Arrivals<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut by_key = self.by_key();
        let (passes, arrival) = decide(by_key.get(key).copied())?;
        by_key.insert(*key, arrival);
        Ok(passes)
    }
}

/// A limit on failures, for each key.
#[derive(Debug)]
struct Limit<K: Key + Eq + Copy> {
    limiter: RateLimiter<K, Arrivals<K>, Elapsed, NoOpMiddleware<Duration>>,
    arrivals: Arrivals<K>,
    began: Duration,
    /// The time after which one failure is forgiven.
    forgiven: Duration,
}

impl<K: Key + Eq + Copy> Limit<K> {
    fn new(most: NonZeroU32) -> Self {
        let (forgiven, clock) = (WINDOW / most.get(), Elapsed::default());
        let (arrivals, began) = (Arrivals(Arc::default()), clock.now());
        // `with_period` answers nothing only for a period of 0.
        let quota = Quota::with_period(forgiven).unwrap_or(Quota::per_second(most)).allow_burst(most);
        Self { limiter: RateLimiter::new(quota, arrivals.clone(), clock), arrivals, began, forgiven }
    }

    /// Counts a failure.
    ///
    /// # Errors
    /// How long this key must wait; then nothing was counted.
    fn count(&self, key: &K) -> Result<(), Duration> {
        if !self.remembers(key) {
            return Ok(());
        }
        let now = self.limiter.clock().now();
        self.limiter.check_key(key).map_err(|refused| refused.wait_time_from(now))
    }

    fn take_back(&self, key: &K) {
        if let Some(arrival) = self.arrivals.by_key().get_mut(key) {
            *arrival = arrival.saturating_sub(self.forgiven.into());
        }
    }

    /// Whether there is room for this key. If there is none, forgets the keys without failures.
    fn remembers(&self, key: &K) -> bool {
        let mut by_key = self.arrivals.by_key();
        if by_key.len() >= MAX_REMEMBERED && !by_key.contains_key(key) {
            let now = self.limiter.clock().now().duration_since(self.began);
            by_key.retain(|_, arrival| *arrival > now);
        }
        by_key.len() < MAX_REMEMBERED || by_key.contains_key(key)
    }
}

/// Recent failures, by address and by token.
#[derive(Debug)]
pub struct Failures {
    addresses: Limit<IpAddr>,
    tokens: Limit<Hash>,
    /// Tokens that were valid when they were last shown.
    good: Mutex<HashSet<Hash>>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { addresses: Limit::new(MAX_FROM_ADDRESS), tokens: Limit::new(MAX_WITH_TOKEN), good: Mutex::default() }
    }
}

impl Failures {
    /// Call this before a token is checked. The check counts as a failure until it has succeeded: otherwise a client
    /// that leaves before the answer would not be counted. Answers whether the check was counted. `None` as the token
    /// means text that cannot be a token.
    ///
    /// # Errors
    /// How long the client must wait; the token must not be checked.
    pub fn begin(&self, address: IpAddr, token: Option<&Hash>) -> Result<bool, Duration> {
        if token.is_some_and(|token| self.good().contains(token)) {
            return Ok(false);
        }
        if let Some(token) = token {
            self.tokens.count(token)?;
        }
        self.addresses.count(&network(address)).inspect_err(|_| {
            if let Some(token) = token {
                self.tokens.take_back(token);
            }
        })?;
        Ok(true)
    }

    /// Takes back a failure that was counted: the token is valid, or could not be checked.
    pub fn take_back(&self, address: IpAddr, token: Option<&Hash>) {
        self.addresses.take_back(&network(address));
        if let Some(token) = token {
            self.tokens.take_back(token);
        }
    }

    /// A token that was valid before, and so was not counted, is not valid any more.
    pub fn failed(&self, address: IpAddr, token: &Hash) {
        self.good().remove(token);
        // The token was checked already, so a refusal here changes nothing.
        let _ = self.begin(address, Some(token));
    }

    /// The token is valid.
    pub fn succeeded(&self, token: Hash) {
        let mut good = self.good();
        // There are never more valid tokens than this at a time; earlier ones are found again by the next check.
        if good.len() >= MAX_TOKENS as usize && !good.contains(&token) {
            good.clear();
        }
        good.insert(token);
    }

    fn good(&self) -> MutexGuard<'_, HashSet<Hash>> {
        self.good.lock()
    }
}

/// One network of IPv6 is one client.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX))),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn hash(n: u32) -> Hash {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&n.to_le_bytes());
        hash
    }

    /// How many checks pass, one right after the other.
    fn looks(failures: &Failures, from: &str, tokens: std::ops::Range<u32>) -> usize {
        tokens.filter(|n| failures.begin(address(from), Some(&hash(*n))) == Ok(true)).count()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_many_failures_waits_and_others_do_not() {
        let (failures, theirs, other) = (Failures::default(), "192.0.2.1", "192.0.2.2");
        assert_eq!(looks(&failures, theirs, 0..100), 30);
        let (unknown, spacing) = (hash(1_000_000), Duration::from_secs(2));
        assert_eq!(failures.begin(address(theirs), Some(&unknown)), Err(spacing));
        assert_eq!(failures.begin(address(theirs), None), Err(spacing));
        assert_eq!(failures.begin(address(other), Some(&unknown)), Ok(true));
        advance(Duration::from_millis(1_500)).await;
        assert_eq!(failures.begin(address(theirs), None), Err(Duration::from_millis(500)));
        advance(Duration::from_millis(500)).await;
        assert_eq!(looks(&failures, theirs, 200..300), 1, "as one of 30 is forgiven in a minute");
        advance(WINDOW).await;
        assert_eq!(looks(&failures, theirs, 300..400), 30, "a minute later it is as good as new");
        // A valid token from the same address is checked as before.
        failures.succeeded(unknown);
        assert_eq!(failures.begin(address(theirs), Some(&unknown)), Ok(false));
        // This ends when the token is revoked.
        failures.failed(address(theirs), &unknown);
        assert!(failures.begin(address(theirs), Some(&unknown)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_without_an_answer_is_counted_and_one_that_succeeds_is_not() {
        let (failures, theirs) = (Failures::default(), "192.0.2.1");
        for n in 0..MAX_FROM_ADDRESS.get() * 2 {
            assert_eq!(failures.begin(address(theirs), Some(&hash(7))), Ok(true), "{n}");
            failures.take_back(address(theirs), Some(&hash(7)));
        }
        assert_eq!(looks(&failures, theirs, 0..100), 30);
    }

    /// A check that is refused because of its address does not count against the token.
    #[tokio::test(start_paused = true)]
    async fn a_token_with_many_failures_waits_from_any_address() {
        let failures = Failures::default();
        assert_eq!(looks(&failures, "192.0.2.100", 100..130), 30);
        for _ in 0..100 {
            assert!(failures.begin(address("192.0.2.100"), Some(&hash(7))).is_err());
        }
        let passed = (0..100).filter(|n| failures.begin(address(&format!("192.0.2.{n}")), Some(&hash(7))).is_ok());
        assert_eq!(passed.count(), 10);
        let elsewhere = address("198.51.100.1");
        assert_eq!(failures.begin(elsewhere, Some(&hash(7))), Err(Duration::from_secs(6)));
        assert_eq!(failures.begin(elsewhere, Some(&hash(8))), Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_of_ipv6_is_one_address() {
        let failures = Failures::default();
        let passed = (0..100).filter(|n| failures.begin(address(&format!("2001:db8:0:1::{n:x}")), None).is_ok());
        assert_eq!(passed.count(), 30);
        assert!(failures.begin(address("2001:db8:0:1:ffff::1"), None).is_err());
        assert!(failures.begin(address("2001:db8:0:2::1"), None).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded() {
        let failures = Failures::default();
        for round in 1..=2 {
            for n in 0..MAX_REMEMBERED as u32 + 500 {
                let token = hash(round << 24 | n);
                assert_eq!(failures.begin(IpAddr::V4((round << 24 | n).into()), Some(&token)), Ok(true));
                failures.succeeded(hash(n));
            }
            let remembered = (failures.addresses.arrivals.by_key().len(), failures.tokens.arrivals.by_key().len());
            assert_eq!(remembered, (MAX_REMEMBERED, MAX_REMEMBERED));
            assert!(failures.good().len() <= MAX_TOKENS as usize);
            let first = IpAddr::V4((round << 24).into());
            assert!(failures.addresses.arrivals.by_key().contains_key(&first), "old ones made room");
            advance(WINDOW).await;
        }
    }
}
