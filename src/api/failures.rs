//! Bounds how often somebody may show tokens that are worth nothing (pure, but for its map).
//!
//! Nobody guesses 256 bits. But each guess is a look into the ledger, and a forgotten program with a token that was
//! revoked asks for ever. Who has shown a good token before is not held up by others at the same address.

use std::collections::{HashMap, HashSet};
use std::hash::Hash as Key;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::ledger::access::{Hash, MOST_TOKENS};

/// Failures are counted over so long.
const WINDOW: Duration = Duration::from_secs(60);
/// From one address, so many are looked at in that time.
pub const MOST_FROM_ADDRESS: u32 = 30;
/// With one token, so many.
pub const MOST_WITH_TOKEN: u32 = 10;
/// So many addresses and tokens are remembered; what comes when all are fresh is not counted.
const MOST_REMEMBERED: usize = 10_000;

/// Failures that were counted from one beginning.
#[derive(Clone, Copy, Debug)]
struct Count {
    since: Duration,
    failures: u32,
}

impl Count {
    fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= WINDOW
    }
}

/// Counts by key.
#[derive(Debug)]
struct Counts<K> {
    most: u32,
    by: HashMap<K, Count>,
}

impl<K: Key + Eq> Counts<K> {
    fn new(most: u32) -> Self {
        Self { most, by: HashMap::new() }
    }

    /// How long nothing of it is looked at any more.
    fn wait(&self, key: &K, now: Duration) -> Option<Duration> {
        let count = self.by.get(key).filter(|count| !count.is_over(now) && count.failures >= self.most)?;
        Some((count.since + WINDOW).saturating_sub(now))
    }

    fn add(&mut self, key: K, now: Duration) {
        if self.by.len() >= MOST_REMEMBERED && !self.by.contains_key(&key) {
            self.by.retain(|_, count| !count.is_over(now));
            if self.by.len() >= MOST_REMEMBERED {
                return;
            }
        }
        let count = self.by.entry(key).or_insert(Count { since: now, failures: 0 });
        if count.is_over(now) {
            *count = Count { since: now, failures: 0 };
        }
        count.failures += 1;
    }

    fn take_back(&mut self, key: &K) {
        if let Some(count) = self.by.get_mut(key) {
            count.failures = count.failures.saturating_sub(1);
        }
    }
}

/// Failures of late, by address and by token. All times count from a beginning of the caller's.
#[derive(Debug)]
pub struct Failures {
    addresses: Counts<IpAddr>,
    tokens: Counts<Hash>,
    /// Tokens that were worth something when they were last shown.
    good: HashSet<Hash>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { addresses: Counts::new(MOST_FROM_ADDRESS), tokens: Counts::new(MOST_WITH_TOKEN), good: HashSet::new() }
    }
}

impl Failures {
    /// A token is about to be looked at. It counts as a failure until it has succeeded, or whoever leaves before the
    /// answer would not be counted; answers whether it was counted.
    ///
    /// # Errors
    /// How long it is not looked at.
    pub fn begin(&mut self, address: IpAddr, token: Option<&Hash>, now: Duration) -> Result<bool, Duration> {
        if token.is_some_and(|token| self.good.contains(token)) {
            return Ok(false);
        }
        if let Some(wait) = self.wait(address, token, now) {
            return Err(wait);
        }
        self.failed(address, token.copied(), now);
        Ok(true)
    }

    /// It could not be looked at: what was counted was no failure.
    pub fn take_back(&mut self, address: IpAddr, token: Option<&Hash>) {
        self.addresses.take_back(&network(address));
        if let Some(token) = token {
            self.tokens.take_back(token);
        }
    }

    /// How long this token is not looked at when it comes from this address; nothing when it is. No token stands
    /// for what cannot be one.
    fn wait(&self, address: IpAddr, token: Option<&Hash>, now: Duration) -> Option<Duration> {
        match token {
            Some(token) if self.good.contains(token) => None,
            token => {
                let with_token = token.and_then(|token| self.tokens.wait(token, now));
                self.addresses.wait(&network(address), now).max(with_token)
            }
        }
    }

    /// It was worth nothing.
    pub fn failed(&mut self, address: IpAddr, token: Option<Hash>, now: Duration) {
        self.addresses.add(network(address), now);
        if let Some(token) = token {
            self.good.remove(&token);
            self.tokens.add(token, now);
        }
    }

    /// It was worth something.
    pub fn succeeded(&mut self, token: Hash) {
        // There are no more at a time; those of former times are found out again.
        if self.good.len() >= MOST_TOKENS as usize && !self.good.contains(&token) {
            self.good.clear();
        }
        self.good.insert(token);
    }
}

/// One network of IPv6 is one household.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX))),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn hash(n: u32) -> Hash {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&n.to_le_bytes());
        hash
    }

    #[test]
    fn an_address_with_many_failures_waits_and_others_do_not() {
        let (mut failures, second) = (Failures::default(), Duration::from_secs(1));
        let (theirs, other) = (address("192.0.2.1"), address("192.0.2.2"));
        for n in 0..MOST_FROM_ADDRESS {
            assert_eq!(failures.wait(theirs, Some(&hash(n)), second), None, "{n}");
            failures.failed(theirs, Some(hash(n)), second);
        }
        let unknown = hash(1_000_000);
        assert_eq!(failures.wait(theirs, Some(&unknown), second * 11), Some(second * 50));
        assert_eq!(failures.wait(theirs, None, second * 11), Some(second * 50));
        assert_eq!(failures.wait(other, Some(&unknown), second * 11), None);
        assert_eq!(failures.wait(theirs, Some(&unknown), second * 61), None, "a minute later it may try again");
        // Whoever has a good token and shares the address goes on.
        failures.succeeded(unknown);
        assert_eq!(failures.wait(theirs, Some(&unknown), second * 11), None);
        assert_eq!(failures.begin(theirs, Some(&unknown), second * 11), Ok(false));
        // Until it is revoked.
        failures.failed(theirs, Some(unknown), second * 12);
        assert!(failures.wait(theirs, Some(&unknown), second * 12).is_some());
    }

    #[test]
    fn who_leaves_before_the_answer_is_counted_and_who_succeeds_is_not() {
        let (mut failures, now, theirs) = (Failures::default(), Duration::ZERO, address("192.0.2.1"));
        for n in 0..MOST_FROM_ADDRESS * 2 {
            assert_eq!(failures.begin(theirs, Some(&hash(n)), now), Ok(true), "{n}");
            failures.take_back(theirs, Some(&hash(n)));
        }
        for n in 0..MOST_FROM_ADDRESS {
            assert_eq!(failures.begin(theirs, Some(&hash(n)), now), Ok(true), "{n}");
        }
        assert_eq!(failures.begin(theirs, Some(&hash(7)), now), Err(WINDOW));
    }

    #[test]
    fn a_token_with_many_failures_waits_wherever_it_comes_from() {
        let (mut failures, now) = (Failures::default(), Duration::ZERO);
        for n in 0..MOST_WITH_TOKEN {
            failures.failed(address(&format!("192.0.2.{n}")), Some(hash(7)), now);
        }
        let elsewhere = address("198.51.100.1");
        assert_eq!(failures.wait(elsewhere, Some(&hash(7)), now), Some(WINDOW));
        assert_eq!(failures.wait(elsewhere, Some(&hash(8)), now), None);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let (mut failures, now) = (Failures::default(), Duration::ZERO);
        for n in 0..MOST_FROM_ADDRESS {
            failures.failed(address(&format!("2001:db8:0:1::{n:x}")), None, now);
        }
        assert!(failures.wait(address("2001:db8:0:1:ffff::1"), None, now).is_some());
        assert!(failures.wait(address("2001:db8:0:2::1"), None, now).is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut failures, mut now) = (Failures::default(), Duration::ZERO);
        for round in 1..=2 {
            for n in 0..MOST_REMEMBERED as u32 + 500 {
                failures.failed(IpAddr::V4((round << 24 | n).into()), Some(hash(round << 24 | n)), now);
                failures.succeeded(hash(n));
            }
            assert_eq!((failures.addresses.by.len(), failures.tokens.by.len()), (MOST_REMEMBERED, MOST_REMEMBERED));
            assert!(failures.good.len() <= MOST_TOKENS as usize);
            assert!(failures.addresses.by.contains_key(&IpAddr::V4((round << 24).into())), "old ones made room");
            now += WINDOW;
        }
    }
}
