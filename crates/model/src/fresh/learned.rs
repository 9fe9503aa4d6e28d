//! What visits have taught of how often an entity changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Time;

/// How much of what was learned a visit leaves: a rate that has changed is followed within some thirty informative visits.
const KEPT: f64 = 0.96;
/// What an entity leaves that has not changed for so many mean times between its changes as nearly none goes without one: it
/// has changed its ways, or will never change again.
const LONG_UNCHANGED: (f64, f64) = (6.0, 0.8);
/// The logarithm of a rate moves by at most this with one visit: by more than all rates that are believed lie apart.
const LARGEST_STEP: f64 = 30.0;
/// The rates that are believed, in changes for each second: from once in a thousand years to a hundred in a second.
const RATES: (f64, f64) = (3e-11, 100.0);

/// How often entities of a kind change, as far as others of the kind have shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prior {
    /// The natural logarithm of the rate, in changes for each second.
    pub log_rate: f64,
    /// How much this is worth, in informative visits: one divided by the variance of the logarithms.
    pub precision: f64,
}

/// What a visit saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Seen {
    /// The entity is as it was at the visit before.
    Same,
    /// It has changed since the visit before.
    Changed,
    /// It has changed, and the last time so long before this visit.
    ChangedAgo(Duration),
}

/// How often an entity changes, as far as its visits have shown. What is believed of the logarithm of the rate is kept as a
/// normal distribution, so two numbers are enough for each chain: after each visit its most likely value (what was believed
/// before, times the likelihood of what was seen), and the information that has come together (Laplace's approximation).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    log_rate: f64,
    precision: f64,
    /// The end of the last visit.
    pub visited: Time,
    /// When it was last known to have changed.
    pub changed: Option<Time>,
}

impl Learned {
    /// Of an entity that has been visited for the first time. Nothing can be compared then.
    pub fn begin(prior: Prior, visited: Time) -> Self {
        let Prior { log_rate, precision } = prior.sane();
        Self { log_rate, precision, visited, changed: None }
    }

    /// After another visit, which ended at `now`.
    pub fn after(self, seen: Seen, now: Time, prior: Prior) -> Self {
        let prior = prior.sane();
        let gap = now.since(self.visited).as_secs_f64();
        let (long, left) = LONG_UNCHANGED;
        let since = self.changed.map_or(0.0, |changed| now.since(changed).as_secs_f64());
        let kept = if seen == Seen::Same && self.rate() * since > long { left } else { KEPT };
        let precision = kept * (self.precision - prior.precision) + prior.precision;
        // How the likelihood of what was seen grows with the logarithm of the rate.
        let score = |rate: f64| match seen {
            Seen::Same => -rate * gap,
            Seen::Changed if rate * gap > 0.0 => rate * gap / (rate * gap).exp_m1(),
            Seen::Changed => 1.0,
            Seen::ChangedAgo(ago) => 1.0 - rate * ago.as_secs_f64().min(gap),
        };
        // It falls while the rate grows. So the greatest likelihood lies between here and where it would lead from here.
        let first = (score(self.rate()) / precision).clamp(-LARGEST_STEP, LARGEST_STEP);
        let (mut low, mut high) = (first.min(0.0), first.max(0.0));
        while high - low > 1e-6 {
            let middle = (low + high) / 2.0;
            if score((self.log_rate + middle).exp()) > precision * middle { low = middle } else { high = middle }
        }
        let log_rate = bounded(self.log_rate + (low + high) / 2.0);
        // What such a visit tells of the logarithm of this rate, in the mean.
        let x = log_rate.exp() * gap;
        let information = match seen {
            Seen::ChangedAgo(_) => -(-x).exp_m1(),
            _ if x > 0.0 => x * x / x.exp_m1().max(f64::MIN_POSITIVE),
            _ => 0.0,
        };
        let changed = match seen {
            Seen::Same => self.changed,
            Seen::Changed => Some(now),
            Seen::ChangedAgo(ago) => Some(now - ago),
        };
        Self { log_rate, precision: precision + information, visited: now, changed }
    }

    /// How often the entity changes in a second.
    pub fn rate(&self) -> f64 {
        self.log_rate.exp()
    }

    /// Between what bounds the rate lies with a probability of 95 %.
    pub fn bounds(&self) -> (f64, f64) {
        let far = 1.96 / self.precision.max(f64::MIN_POSITIVE).sqrt();
        ((self.log_rate - far).exp(), (self.log_rate + far).exp())
    }

    /// What the chain says of its kind: the logarithm of its rate, and the square of that with how unsure it is. Without
    /// the last, chains that have hardly been visited, and so believe what was said of the kind, would say that all of
    /// the kind are alike.
    pub fn moments(&self) -> (f64, f64) {
        (self.log_rate, self.log_rate * self.log_rate + 1.0 / self.precision.max(f64::MIN_POSITIVE))
    }
}

/// What the ledger keeps of a chain: [`SIZE`] bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// How often the entity changes.
    pub learned: Learned,
    /// What the entity was worth at the last visit.
    pub weight: f32,
    /// What stood for the entity at the last visit, if its kind compares that.
    pub mark: Option<u64>,
}

/// How many bytes are kept of a chain.
pub const SIZE: usize = 37;
/// The first of them, which another form would not have.
const FORM: u8 = 1;

impl Known {
    /// As the ledger keeps it.
    pub fn to_bytes(&self) -> [u8; SIZE] {
        let Self { learned: Learned { log_rate, precision, visited, changed }, weight, mark } = *self;
        let mut bytes = [0; SIZE];
        bytes[0] = FORM;
        bytes[1..5].copy_from_slice(&(log_rate as f32).to_le_bytes());
        bytes[5..9].copy_from_slice(&(precision as f32).to_le_bytes());
        bytes[9..17].copy_from_slice(&visited.as_millis().to_le_bytes());
        bytes[17..25].copy_from_slice(&changed.map_or(NEVER, Time::as_millis).to_le_bytes());
        bytes[25..29].copy_from_slice(&weight.to_le_bytes());
        bytes[29..37].copy_from_slice(&mark.unwrap_or(NO_MARK).to_le_bytes());
        bytes
    }

    /// From what the ledger has kept; nothing if it is of another form.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok().filter(|bytes: &&[u8; SIZE]| bytes[0] == FORM)?;
        let four = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let eight = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).expect("eight bytes");
        let prior = Prior { log_rate: f64::from(four(1)), precision: f64::from(four(5)) }.sane();
        let (visited, changed) = (i64::from_le_bytes(eight(9)), i64::from_le_bytes(eight(17)));
        let learned = Learned {
            log_rate: prior.log_rate,
            precision: prior.precision,
            visited: Time::from_millis(visited),
            changed: (changed != NEVER).then(|| Time::from_millis(changed)),
        };
        let mark = Some(u64::from_le_bytes(eight(29))).filter(|mark| *mark != NO_MARK);
        Some(Self { learned, weight: four(25), mark })
    }
}

/// No time of a change.
const NEVER: i64 = i64::MIN;
/// No mark. One that is the same by chance is taken for none, and the next visit compares nothing.
const NO_MARK: u64 = 0;

impl Prior {
    /// Where nothing is known of a kind: about one change for each of its intervals, give or take a factor of ten.
    pub fn of_interval(every: Duration) -> Self {
        let log_rate = -every.as_secs_f64().max(1e-3).ln();
        Self { log_rate, precision: 1.0 / 10_f64.ln().powi(2) }
    }

    /// What so many chains of a kind have shown, from the means of their [`Learned::moments`]: one step of expectation
    /// and maximisation (empirical Bayes). `otherwise` counts as one chain more.
    pub fn of_kind(chains: f64, (log, square): (f64, f64), otherwise: Self) -> Self {
        let spread = 1.0 / otherwise.precision;
        let mean = (chains * log + otherwise.log_rate) / (chains + 1.0);
        let variance = (chains * square + otherwise.log_rate.powi(2) + spread) / (chains + 1.0) - mean * mean;
        Self { log_rate: mean, precision: 1.0 / variance.max(0.01) }.sane()
    }

    /// This, moved by a share of the way to another.
    pub fn towards(self, other: Self, share: f64) -> Self {
        let between = |from: f64, to: f64| from + share * (to - from);
        let spread = between(1.0 / self.precision, 1.0 / other.precision);
        Self { log_rate: between(self.log_rate, other.log_rate), precision: 1.0 / spread }.sane()
    }

    fn sane(self) -> Self {
        let precision = if self.precision.is_finite() { self.precision.clamp(1e-3, 1e6) } else { 1e-3 };
        Self { log_rate: bounded(self.log_rate), precision }
    }
}

fn bounded(log_rate: f64) -> f64 {
    let (least, most) = (RATES.0.ln(), RATES.1.ln());
    if log_rate.is_nan() { (least + most) / 2.0 } else { log_rate.clamp(least, most) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Entropy;

    const SECOND: Duration = Duration::from_secs(1);

    fn prior(rate: f64, precision: f64) -> Prior {
        Prior { log_rate: rate.ln(), precision }
    }

    #[test]
    fn what_is_seen_moves_the_rate_towards_it() {
        let begun = Learned::begin(prior(0.01, 1.0), Time::from_millis(0));
        let at = |secs: i64| Time::from_millis(secs * 1_000);
        let after = |seen, secs| begun.after(seen, at(secs), prior(0.01, 1.0));
        assert!(after(Seen::Same, 100).rate() < 0.01 && after(Seen::Changed, 100).rate() > 0.01);
        assert!(after(Seen::Changed, 1).rate() > after(Seen::Changed, 100).rate(), "a change so soon says more");
        assert!(after(Seen::Same, 1_000).rate() < after(Seen::Same, 10).rate());
        let ago = |secs| after(Seen::ChangedAgo(Duration::from_secs(secs)), 1_000).rate();
        assert!(ago(1) > 0.01 && ago(900) < 0.01, "a change just now, and one long ago with nothing since");
        assert_eq!(after(Seen::ChangedAgo(SECOND * 30), 100).changed, Some(at(70)));
        assert_eq!((after(Seen::Changed, 100).changed, after(Seen::Same, 100).changed), (Some(at(100)), None));
        // A bit from a gap in which there is a change anyhow, or none, says nothing.
        let far = after(Seen::Changed, 1_000_000);
        assert!((far.rate() - 0.01).abs() < 1e-9 && (far.precision - 1.0).abs() < 1e-9);
        assert_eq!(after(Seen::Same, 0).rate(), begun.rate(), "no time has passed");
    }

    #[test]
    fn a_rate_is_found_whatever_was_believed_and_whatever_the_gaps() {
        for (seed, believed) in [(1, 1e-6), (2, 1e-3), (3, 1.0)] {
            for exact in [false, true] {
                let (dice, rate, prior) = (Entropy::seeded(seed), 2e-3, prior(believed, 0.2));
                let mut learned = Learned::begin(prior, Time::from_millis(0));
                for _ in 0..400 {
                    // Gaps of which some say much and some say little.
                    let gap = Duration::from_secs_f64(100.0 + 900.0 * dice.unit());
                    let ago = Duration::from_secs_f64(-(1.0 - dice.unit()).ln() / rate);
                    let seen = match (ago < gap, exact) {
                        (false, _) => Seen::Same,
                        (true, false) => Seen::Changed,
                        (true, true) => Seen::ChangedAgo(ago),
                    };
                    learned = learned.after(seen, learned.visited + gap, prior);
                }
                let (low, high) = learned.bounds();
                assert!(low < rate && rate < high, "seed {seed}, exact {exact}: {learned:?}");
                assert!(high / low < 3.2, "seed {seed}, exact {exact}: {low} to {high}");
            }
        }
    }

    #[test]
    fn a_rate_that_changes_is_followed() {
        let (dice, prior) = (Entropy::seeded(7), prior(1e-3, 0.5));
        let mut learned = Learned::begin(prior, Time::from_millis(0));
        for (rate, visits) in [(1e-4, 300), (1e-2, 300)] {
            for _ in 0..visits {
                let gap = Duration::from_secs_f64((1.0 / learned.rate()).clamp(10.0, 1e5));
                let changed = dice.unit() < 1.0 - (-rate * gap.as_secs_f64()).exp();
                let seen = if changed { Seen::Changed } else { Seen::Same };
                learned = learned.after(seen, learned.visited + gap, prior);
            }
            assert!((learned.rate() / rate).ln().abs() < 0.5, "{rate}: {learned:?}");
        }
    }

    #[test]
    fn nonsense_leaves_numbers() {
        let odd = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN];
        let times = [i64::MIN, -1, 0, 1, i64::MAX].map(Time::from_millis);
        let sights = [Seen::Same, Seen::Changed, Seen::ChangedAgo(Duration::ZERO), Seen::ChangedAgo(Duration::MAX)];
        for (log_rate, precision) in odd.iter().flat_map(|a| odd.iter().map(move |b| (*a, *b))) {
            let prior = Prior { log_rate, precision };
            for (seen, now) in sights.iter().flat_map(|seen| times.iter().map(move |now| (*seen, *now))) {
                let mut bytes = [FORM; SIZE];
                bytes[1..5].copy_from_slice(&(log_rate as f32).to_le_bytes());
                bytes[5..9].copy_from_slice(&(precision as f32).to_le_bytes());
                let kept = Known::from_bytes(&bytes).unwrap().learned;
                for learned in [Learned::begin(prior, Time::from_millis(0)), kept] {
                    let after = learned.after(seen, now, prior).after(seen, now, prior);
                    let (low, high) = after.bounds();
                    assert!(after.rate().is_finite() && after.rate() > 0.0, "{prior:?} {seen:?}: {after:?}");
                    assert!(low <= after.rate() && after.rate() <= high, "{prior:?} {seen:?}: {low} {high}");
                }
            }
        }
    }

    #[test]
    fn what_is_known_of_a_kind_is_its_mean_and_spread() {
        let nothing = Prior::of_interval(SECOND * 100);
        assert!((nothing.log_rate.exp() - 0.01).abs() < 1e-12);
        assert!((Prior::of_kind(0.0, (0.0, 0.0), nothing).precision - nothing.precision).abs() < 1e-9);
        // A thousand that change about once in a hundred days, a factor of e more or less.
        let mean = -16.0;
        let known = Prior::of_kind(1_000.0, (mean, mean * mean + 1.0), nothing);
        assert!((known.log_rate - mean).abs() < 0.02 && (known.precision - 1.0).abs() < 0.15, "{known:?}");
    }

    #[test]
    fn the_ledger_gives_back_what_it_was_given() {
        let learned = Learned::begin(prior(3e-4, 0.7), Time::from_millis(77));
        let learned = learned.after(Seen::Changed, Time::from_millis(900_000), prior(3e-4, 0.7));
        for (changed, mark) in [(None, None), (learned.changed, Some(u64::MAX)), (Some(Time::from_millis(-5)), Some(1))]
        {
            let known = Known { learned: Learned { changed, ..learned }, weight: 0.25, mark };
            let back = Known::from_bytes(&known.to_bytes()).unwrap();
            assert!((back.learned.rate() / learned.rate() - 1.0).abs() < 1e-5, "{back:?}");
            assert_eq!((back.learned.changed, back.learned.visited), (changed, learned.visited));
            assert_eq!((back.weight, back.mark), (0.25, mark));
        }
        let whole = Known { learned, weight: 1.0, mark: None }.to_bytes();
        assert_eq!(Known::from_bytes(&whole[1..]), None);
        assert_eq!(Known::from_bytes(&[&[FORM + 1], &whole[1..]].concat()), None, "a form that comes later");
    }
}
