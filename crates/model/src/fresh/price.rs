//! What a call costs, so that the calls of a budget are used and no more.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::interval::{Objective, expected, interval, price_of};
use super::learned::{Known, Learned, Prior, Seen};
use crate::clock::Time;

/// How strongly the price answers to a small difference between what is wanted and what there is, and to a large one. The
/// calls that chains want change by about the second to third root of the price. Workers have a price a minute after the
/// minute that it was made of, so a stronger answer to small differences would make calls go up and down.
const GAIN: (f64, f64) = (0.25, 1.2);
/// From here on a difference is large (as a logarithm).
const FAR: f64 = 0.5;
/// The price moves by at most this factor (as a logarithm) at a time.
const LARGEST_STEP: f64 = 1.5;
/// So much of a budget that nothing else holds is meant to be used: what is wanted is known to some per cent only.
const AIM: f64 = 0.99;
/// So many visits tell what is wanted to some per cent.
const ENOUGH: f64 = 1_000.0;
/// An interval is at most so many times as long as the one before: a rate that was taken for much too low is found out.
const LONGEST_STEP: u32 = 3;
/// What is known of the number of chains, and how well things go, is a mean of about so many visits for each chain.
const SMOOTHED: f64 = 2.0;

/// What the visits of some time came to.
///
/// A chain that is visited each `gap` is among the visits of a while with a probability that falls with `gap`, and wants
/// one call for each `interval` from now on. So the sum of `gap / interval` over the visits of a while is what all chains
/// want for as long a while, also those that were not visited in it; none has to be asked. In the same way a sum of
/// `gap × something` is the sum of that something over all chains, times the length of the while.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Visits {
    /// How many.
    pub visits: u64,
    /// The calls that are wanted for as long.
    pub calls: f64,
    /// Sums over all chains, times the length of the while in seconds: of 1,
    pub gaps: f64,
    /// of the logarithms of the rates, and of their squares ([`Learned::moments`]),
    pub logs: f64,
    /// see `logs`,
    pub squares: f64,
    /// of the weights,
    pub weights: f64,
    /// of the weight times the expected share of time in which what is known is right,
    pub fresh: f64,
    /// and of the weight times the expected age of what is known, in seconds.
    pub age: f64,
    /// Where the calls go: by the class of the interval.
    pub intervals: BTreeMap<u8, OfInterval>,
}

/// What the chains with intervals of one class come to, as in [`Visits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OfInterval {
    /// Of 1,
    pub gaps: f64,
    /// of the weights;
    pub weights: f64,
    /// and the calls that they want.
    pub calls: f64,
}

/// The class of an interval: each reaches to four times where it begins, the first one below four seconds.
fn class(every: f64) -> u8 {
    (every.max(1.0).log2() / 2.0) as u8
}

/// Where a [class](OfInterval) of intervals begins.
pub fn class_begins(class: u8) -> Duration {
    Duration::from_secs(if class == 0 { 0 } else { 4_u64.saturating_pow(class.into()) })
}

impl Visits {
    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.visits == 0
    }

    /// Counts a visit `gap` after the one before, after which the next one is to come in `every`.
    pub fn visited(&mut self, gap: Duration, every: Duration, known: &Known) {
        let (gap, every, weight) = (gap.as_secs_f64(), every.as_secs_f64().max(1e-3), f64::from(known.weight));
        let (log, square) = known.learned.moments();
        let (fresh, age) = expected(known.learned.rate(), every);
        self.add(&Self {
            visits: 1,
            calls: gap / every,
            gaps: gap,
            logs: gap * log,
            squares: gap * square,
            weights: gap * weight,
            fresh: gap * weight * fresh,
            age: gap * weight * age,
            intervals: [(class(every), OfInterval { gaps: gap, weights: gap * weight, calls: gap / every })].into(),
        });
    }

    /// Adds what another worker has counted, or another time.
    pub fn add(&mut self, other: &Self) {
        self.visits += other.visits;
        self.calls += other.calls;
        self.gaps += other.gaps;
        self.logs += other.logs;
        self.squares += other.squares;
        self.weights += other.weights;
        self.fresh += other.fresh;
        self.age += other.age;
        for (class, of) in &other.intervals {
            let sum = self.intervals.entry(*class).or_default();
            sum.gaps += of.gaps;
            sum.weights += of.weights;
            sum.calls += of.calls;
        }
    }
}

/// The price of a call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Price {
    log: f64,
}

impl Price {
    /// A price to begin with, where chains of this weight would be visited each `every` if all were alike.
    pub fn begin(objective: Objective, every: Duration, weight: f64) -> Self {
        Self { log: price_of(objective, every, weight).clamp(1e-100, 1e100).ln() }
    }

    /// In the objective's unit: seconds² for the age, seconds for the others.
    pub fn get(self) -> f64 {
        self.log.exp()
    }

    /// After a while in which chains wanted `calls`, as `visits` visits said, while there was room for `room` of them. Few
    /// visits move the price by little.
    fn after(self, visits: u64, calls: f64, room: f64) -> Self {
        if visits == 0 || !calls.is_finite() || !room.is_finite() || room <= 0.0 {
            return self;
        }
        let off = (calls.max(1e-9) / room).ln();
        let gain = GAIN.0 + (GAIN.1 - GAIN.0) * (off.abs() / FAR).min(1.0);
        let step = gain * (visits as f64 / ENOUGH).min(1.0) * off;
        Self { log: (self.log + step.clamp(-LARGEST_STEP, LARGEST_STEP)).clamp(-230.0, 230.0) }
    }
}

/// What is known of the chains of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfKind {
    /// How often their entities change.
    pub prior: Prior,
    /// About how many chains there are.
    pub chains: f64,
}

/// The calls of a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calls {
    /// How many were possible.
    pub allowed: f64,
    /// Those of them that went to jobs that no price concerns.
    pub others: f64,
    /// A throttle lets no more start, whatever chains want.
    pub held: bool,
}

impl Calls {
    /// For how many of its chains the budget has room.
    fn room(self) -> f64 {
        let Self { allowed, others, held } = self;
        let aim = if held { 1.0 } else { AIM };
        (aim * allowed - others).max(0.01 * allowed)
    }
}

/// The price stays within this (as a logarithm) of the price at which chains would be visited each `middle`, where all are at
/// their shortest or longest intervals and no price helps: so it is back soon when it is needed again.
const FARTHEST: f64 = 21.0;

/// A budget of calls, and the chains that share it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Until when visits are counted in it.
    pub upto: Time,
    /// The price of a call; nothing before the first visits.
    pub price: Option<Price>,
    /// The kinds that share it.
    pub kinds: BTreeMap<String, OfKind>,
    /// The calls that were allowed in the last while, for each second.
    pub allowed: f64,
    /// Those of them that other jobs took.
    pub others: f64,
    /// The calls that its chains want for each second.
    pub wanted: f64,
    /// The calls that its chains made, for each second.
    pub made: f64,
    /// The expected share of time in which what is known is right, by weight.
    pub fresh: Option<f64>,
    /// The expected age of what is known, in seconds, by weight.
    pub age: Option<f64>,
    /// What an entity is worth, in the mean.
    pub weight: Option<f64>,
}

impl Budget {
    /// After a while of `length` until `upto` that had these calls, in which the visits of each kind came to these. `middle` is the interval of chains of which nothing
    /// is known.
    pub fn after(
        mut self,
        visits: &BTreeMap<String, (Visits, Duration)>,
        objective: Objective,
        (upto, length): (Time, Duration),
        calls: Calls,
    ) -> Self {
        let seconds = length.as_secs_f64().max(1.0);
        let mut all = Visits::default();
        visits.values().for_each(|(of, _)| all.add(of));
        self.kinds.retain(|kind, _| visits.contains_key(kind));
        for (kind, (of, middle)) in visits {
            let chains = of.gaps / seconds;
            let known = self.kinds.entry(kind.clone()).or_insert(OfKind { prior: Prior::of_interval(*middle), chains });
            if of.is_empty() {
                continue;
            }
            // How much of all chains has been seen in this while.
            let share = (of.visits as f64 / (SMOOTHED * known.chains.max(1.0))).min(1.0);
            known.chains += share * (chains - known.chains);
            let mean =
                Prior::of_kind(known.chains, (of.logs / of.gaps, of.squares / of.gaps), Prior::of_interval(*middle));
            known.prior = known.prior.towards(mean, share);
        }
        let room = calls.room();
        let weights = all.weights / all.gaps;
        self.price = match self.price {
            Some(price) => Some(price.after(all.visits, all.calls, room)),
            None if weights > 0.0 => {
                let every = Duration::try_from_secs_f64(self.chains() * seconds / room).unwrap_or(Duration::MAX);
                Some(Price::begin(objective, every, weights))
            }
            None => None,
        };
        if let (Some(price), Some(middle)) = (&mut self.price, visits.values().map(|(_, middle)| *middle).min()) {
            let usual = Price::begin(objective, middle, self.weight.unwrap_or(1.0)).log;
            price.log = price.log.clamp(usual - FARTHEST, usual + FARTHEST);
        }
        let share = (all.visits as f64 / (SMOOTHED * self.chains().max(1.0))).min(1.0);
        let smoothed = |before: Option<f64>, sum: f64, of: f64| {
            let now = sum / of;
            Some(before.map_or(now, |before| before + share * (now - before))).filter(|_| of > 0.0).or(before)
        };
        self.fresh = smoothed(self.fresh, all.fresh, all.weights);
        self.age = smoothed(self.age, all.age, all.weights);
        self.weight = smoothed(self.weight, all.weights, all.gaps);
        (self.allowed, self.others) = (calls.allowed / seconds, calls.others / seconds);
        (self.wanted, self.made) = (all.calls / seconds, all.visits as f64 / seconds);
        self.upto = upto;
        self
    }

    /// About how many chains share it.
    pub fn chains(&self) -> f64 {
        self.kinds.values().map(|kind| kind.chains).sum()
    }

    /// What a tenth more calls would bring, about: so many seconds less age ([`Objective::Age`]), or so much more of the
    /// time in which what is known is right ([`Objective::Freshness`]). It is the price that says so: at the best
    /// intervals, one more call for each second brings the price, summed over all weights.
    pub fn a_tenth_more(&self, objective: Objective) -> Option<f64> {
        let (price, weight, chains) = (self.price?.get(), self.weight?, self.chains());
        let gain = price * 0.1 * self.made / (weight * chains);
        (gain.is_finite() && objective != Objective::Harmonic).then_some(gain)
    }

    /// How often the entities of a kind change, as far as its chains have shown.
    pub fn prior(&self, kind: &str, middle: Duration) -> Prior {
        self.kinds.get(kind).map_or_else(|| Prior::of_interval(middle), |known| known.prior)
    }
}

/// How long until the next visit at this price of a call, of a chain that was visited `gap` after the visit before, and of
/// which so much is known.
pub fn interval_at(
    price: f64,
    objective: Objective,
    known: &Known,
    gap: Duration,
    (min, max): (Duration, Duration),
) -> Duration {
    let longest = max.min(gap.saturating_mul(LONGEST_STEP)).max(min);
    interval(objective, known.learned.rate(), f64::from(known.weight), price, (min, longest))
}

/// What is known of a chain after a visit that ended at `now` and saw this; `known` is what was known before.
pub fn visited(
    known: Option<Known>,
    seen: Option<Seen>,
    weight: f64,
    mark: Option<u64>,
    now: Time,
    prior: Prior,
) -> Known {
    let weight = weight as f32;
    match (known, seen) {
        (None, _) => Known { learned: Learned::begin(prior, now), weight, mark },
        (Some(known), Some(seen)) => {
            Known { learned: known.learned.after(seen, now, prior), weight, mark: mark.or(known.mark) }
        }
        // Nothing could be compared. The time since the visit before last goes on to count.
        (Some(known), None) => Known { weight, mark: mark.or(known.mark), ..known },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_goes_where_calls_are_the_room_and_no_number_is_lost() {
        let price = Price::begin(Objective::Age, Duration::from_secs(60), 1.0);
        assert!(price.after(1_000, 200.0, 100.0).get() > price.get());
        assert!(price.after(1_000, 50.0, 100.0).get() < price.get());
        assert!(price.after(10, 200.0, 100.0).get() < price.after(1_000, 200.0, 100.0).get(), "few visits say little");
        assert_eq!(price.after(0, 0.0, 100.0), price);
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE] {
            for other in [0.0, 1.0, f64::NAN, f64::INFINITY, f64::MAX] {
                let mut price = price;
                for _ in 0..1_000 {
                    price = price.after(u64::MAX, odd, other);
                }
                assert!(price.get().is_finite() && price.get() > 0.0, "{odd} {other}: {price:?}");
            }
        }
    }

    #[test]
    fn what_is_known_of_a_budget_comes_back_from_text() {
        let known = Known {
            learned: Learned::begin(Prior::of_interval(Duration::from_secs(60)), Time::from_millis(5)),
            weight: 2.0,
            mark: None,
        };
        let mut of = Visits::default();
        (0..100).for_each(|_| of.visited(Duration::from_secs(60), Duration::from_secs(30), &known));
        let minute = (Time::from_millis(60_000), Duration::from_secs(60));
        let visits = BTreeMap::from([("app".to_owned(), (of, Duration::from_secs(60)))]);
        let calls = Calls { allowed: 100.0, others: 10.0, held: false };
        let budget = Budget::default().after(&visits, Objective::Age, minute, calls);
        assert!((budget.kinds["app"].chains - 100.0).abs() < 1e-9 && budget.price.is_some(), "{budget:?}");
        assert!((budget.wanted * 60.0 - 200.0).abs() < 1e-6 && (budget.made * 60.0 - 100.0).abs() < 1e-6);
        let next = budget.clone().after(&visits, Objective::Age, minute, calls);
        assert!(next.price.unwrap().get() > budget.price.unwrap().get(), "200 calls are wanted and there are 89");
        let text = serde_json::to_string(&next).unwrap();
        assert_eq!(serde_json::from_str::<Budget>(&text).unwrap(), next);
        assert_eq!(serde_json::from_str::<Budget>("{}").unwrap(), Budget::default());
        let gone = next.after(&BTreeMap::new(), Objective::Age, minute, calls);
        assert!(gone.kinds.is_empty() && gone.price.is_some());
    }

    #[test]
    fn chains_are_told_by_classes_of_their_intervals() {
        for (every, expected, begins) in [(0.1, 0, 0), (3.9, 0, 0), (4.0, 1, 4), (63.0, 2, 16), (86_400.0, 8, 65_536)] {
            assert_eq!((class(every), class_begins(expected)), (expected, Duration::from_secs(begins)), "{every}");
        }
        let learned = Learned::begin(Prior::of_interval(Duration::from_secs(60)), Time::from_millis(5));
        let known = Known { learned, weight: 2.0, mark: None };
        let mut of = Visits::default();
        // In a minute: a chain that is visited each ten seconds, and one of ten that are visited each ten minutes.
        (0..6).for_each(|_| of.visited(Duration::from_secs(10), Duration::from_secs(10), &known));
        of.visited(Duration::from_secs(600), Duration::from_secs(600), &known);
        let fast = OfInterval { gaps: 60.0, weights: 120.0, calls: 6.0 };
        let slow = OfInterval { gaps: 600.0, weights: 1_200.0, calls: 1.0 };
        assert_eq!(of.intervals.into_iter().collect::<Vec<_>>(), [(1, fast), (4, slow)]);
    }

    #[test]
    fn a_price_that_no_interval_answers_is_back_within_half_an_hour() {
        let learned = Learned::begin(Prior::of_interval(Duration::from_secs(60)), Time::from_millis(5));
        let known = Known { learned, weight: 2.0, mark: None };
        let minute = (Time::from_millis(60_000), Duration::from_secs(60));
        let middle = Duration::from_secs(60);
        let mut of = Visits::default();
        (0..2_000).for_each(|_| of.visited(middle, middle, &known));
        let visits = BTreeMap::from([("app".to_owned(), (of, middle))]);
        let calls = |allowed| Calls { allowed, others: 0.0, held: true };
        for (idle, needed) in [(20_000.0, 200.0), (200.0, 20_000.0)] {
            let mut budget = Budget::default();
            for _ in 0..1_000 {
                budget = budget.after(&visits, Objective::Age, minute, calls(idle));
            }
            let usual = Price::begin(Objective::Age, middle, 2.0).log;
            let off = |budget: &Budget| (budget.price.unwrap().log - usual) * if idle > needed { -1.0 } else { 1.0 };
            assert!(off(&budget) > 20.0, "{budget:?}");
            for _ in 0..30 {
                budget = budget.after(&visits, Objective::Age, minute, calls(needed));
            }
            assert!(off(&budget) < 0.0, "{budget:?}");
        }
    }

    #[test]
    fn an_interval_grows_step_by_step() {
        let known = Known {
            learned: Learned::begin(Prior::of_interval(Duration::from_secs(1_000_000)), Time::from_millis(5)),
            weight: 1.0,
            mark: None,
        };
        let bounds = (Duration::from_secs(10), Duration::from_secs(86_400));
        let price = Price::begin(Objective::Age, Duration::from_secs(1_000), 1.0).get();
        let after = |gap| interval_at(price, Objective::Age, &known, Duration::from_secs(gap), bounds).as_secs();
        assert_eq!((after(60), after(0), after(100_000)), (180, 10, after(50_000)));
    }
}
