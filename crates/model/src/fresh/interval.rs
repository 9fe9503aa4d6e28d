//! From rate, weight and price to the time until the next visit.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the calls of a budget are spent for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// For how long what is known has been out of date, in the mean. No entity is given up, however fast it changes.
    #[default]
    Age,
    /// The share of time in which what is known is up to date, with a harmonic mean over changes; no entity is given up.
    Harmonic,
    /// The share of time in which what is known is up to date. What changes too fast for its weight is not visited more
    /// often than its longest interval says.
    Freshness,
}

/// The longest interval that is worked out, in mean times between changes: beyond, `max` decides.
const FURTHEST: f64 = 1e9;

/// The interval in seconds, before it is bounded. All three are above 0.
fn unbounded(objective: Objective, rate: f64, weight: f64, price: f64) -> f64 {
    match objective {
        Objective::Age => solved(lost_age, price * rate * rate / weight) / rate,
        Objective::Freshness => solved(lost_freshness, price * rate / weight) / rate,
        Objective::Harmonic => {
            // As it stands in the literature, with numerator and denominator multiplied so that nothing cancels out.
            let root = (rate * rate + 4.0 * weight * rate / price).sqrt();
            (rate + root) * price / (2.0 * weight * rate)
        }
    }
}

/// How long until the next visit of an entity. Never less than `min`, nor more than `max`.
///
/// `rate` is how often the entity changes in a second, `weight` what one second of it is worth, and `price` what a call
/// costs, in the objective's own unit: seconds² for [`Objective::Age`], seconds for the others. With `x = rate ×
/// interval` and `P(x) = 1 - e^-x (1 + x)`, the best interval is where one more call brings as much as it costs:
///
/// - age: `weight × (interval² / 2 - P(x) / rate²) = price`
/// - freshness: `weight × P(x) / rate = price`; no interval is long enough where `price × rate ≥ weight`
/// - harmonic: calls for each second are `(-rate + √(rate² + 4 × weight × rate / price)) / 2`
pub fn interval(
    objective: Objective,
    rate: f64,
    weight: f64,
    price: f64,
    (min, max): (Duration, Duration),
) -> Duration {
    let seconds = unbounded(objective, rate.max(f64::MIN_POSITIVE), weight.max(f64::MIN_POSITIVE), price);
    // What is no number, or no time, is bounded as well.
    let known = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    known.clamp(min, max.max(min))
}

/// The price at which an entity of this weight that changes once in `every` is visited each `every`, in the unit of
/// [`interval`]: a price to begin with.
pub(super) fn price_of(objective: Objective, every: Duration, weight: f64) -> f64 {
    let seconds = every.as_secs_f64();
    match objective {
        Objective::Age => weight * seconds * seconds * lost_age(1.0),
        Objective::Freshness => weight * seconds * lost_freshness(1.0),
        Objective::Harmonic => weight * seconds / 2.0,
    }
}

/// What visits each `every` seconds of an entity that changes `rate` times a second come to: the share of time in which
/// what is known is right, and its mean age in seconds, over all time. With `x = rate × every` these are
/// `(1 - e^-x) / x` and `every × (1/2 - 1/x + (1 - e^-x) / x²)`.
pub fn expected(rate: f64, every: f64) -> (f64, f64) {
    let x = rate * every;
    let chance = -(-x).exp_m1();
    // Of small numbers the differences would have no digits left.
    if x < 1e-2 { (1.0 - x / 2.0, every * x / 6.0) } else { (chance / x, every * (0.5 - 1.0 / x + chance / (x * x))) }
}

/// An entity whose rate of change is known.
#[derive(Clone, Copy, Debug)]
pub struct Entity {
    /// How often it changes in a second.
    pub rate: f64,
    /// What it is worth.
    pub weight: f64,
    /// Its shortest and its longest interval.
    pub bounds: (Duration, Duration),
}

impl Entity {
    /// How long until its next visit at this price, in seconds: see [`interval`].
    pub fn every(&self, objective: Objective, price: f64) -> f64 {
        interval(objective, self.rate, self.weight, price, self.bounds).as_secs_f64()
    }
}

/// The price at which the best intervals of these entities take so many calls in a second. Where their bounds allow no
/// such price, the nearest one.
pub fn best_price(objective: Objective, entities: &[Entity], calls: f64) -> f64 {
    let taken = |price: f64| entities.iter().map(|entity| 1.0 / entity.every(objective, price)).sum::<f64>();
    let (mut low, mut high) = (-100.0_f64, 100.0_f64);
    while high - low > 1e-5 {
        let middle = (low + high) / 2.0;
        if taken(middle.exp()) > calls { low = middle } else { high = middle }
    }
    high.exp()
}

/// `P(x)`: the share of the mean time between changes that one visit's interval of `x` of them lets one gain.
fn lost_freshness(x: f64) -> f64 {
    // Where x is small the difference of two numbers of about 1 would have no digits left.
    if x < 0.05 { x * x * (0.5 - x * (1.0 / 3.0 - x * (0.125 - x / 30.0))) } else { -(-x).exp_m1() - x * (-x).exp() }
}

/// `x² / 2 - P(x)`.
fn lost_age(x: f64) -> f64 {
    if x < 0.05 {
        x * x * x * (1.0 / 3.0 - x * (0.125 - x * (1.0 / 30.0 - x / 144.0)))
    } else {
        x * x / 2.0 - lost_freshness(x)
    }
}

/// Where a function that grows reaches a value; [`FURTHEST`] where it does not.
fn solved(grows: impl Fn(f64) -> f64, value: f64) -> f64 {
    if !value.is_finite() || grows(FURTHEST) <= value {
        return FURTHEST;
    }
    // The logarithm is halved, for x may have any order of magnitude: from a hundred of them to one part in a million
    // takes some thirty steps.
    let (mut low, mut high) = (-120.0_f64, FURTHEST.ln());
    while high - low > 1e-7 {
        let middle = (low + high) / 2.0;
        if grows(middle.exp()) < value { low = middle } else { high = middle }
    }
    high.exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const ALL: [Objective; 3] = [Objective::Age, Objective::Harmonic, Objective::Freshness];

    fn secs(objective: Objective, rate: f64, weight: f64, price: f64) -> f64 {
        interval(objective, rate, weight, price, (Duration::ZERO, Duration::MAX)).as_secs_f64()
    }

    #[test]
    fn a_table_of_intervals() {
        // Worked out by hand from the formulas and their limits.
        let table = [
            // P(1) = 1 - 2/e.
            (Objective::Freshness, 0.01, 1.0, 100.0 * (1.0 - 2.0 / 1_f64.exp()), 100.0),
            (Objective::Freshness, 0.01, 2.0, 200.0 * (1.0 - 2.0 / 1_f64.exp()), 100.0),
            // 1/2 - P(1).
            (Objective::Age, 0.01, 1.0, 10_000.0 * (2.0 / 1_f64.exp() - 0.5), 100.0),
            // What changes all the time: √(2 price / weight).
            (Objective::Age, 1e6, 4.0, 20_000.0, 100.0),
            // What hardly ever changes: ∛(3 price / (weight rate)).
            (Objective::Age, 1e-9, 1.0, 1e6 / 3e9, 100.0),
            // (-1 + √(1 + 4 × 2)) / 2 = 1.
            (Objective::Harmonic, 1.0, 2.0, 1.0, 1.0),
        ];
        for (objective, rate, weight, price, expected) in table {
            let is = secs(objective, rate, weight, price);
            assert!((is / expected - 1.0).abs() < 1e-3, "{objective:?} {rate} {weight} {price}: {is}, not {expected}");
        }
    }

    #[test]
    fn the_price_to_begin_with_leaves_what_changes_once_in_an_interval_at_that_interval() {
        for objective in ALL {
            for (every, weight) in [(0.5, 1.0), (60.0, 1.0), (1e6, 0.003)] {
                let price = price_of(objective, Duration::from_secs_f64(every), weight);
                let is = secs(objective, 1.0 / every, weight, price);
                assert!((is / every - 1.0).abs() < 1e-3, "{objective:?} {every} {weight}: {is}");
            }
        }
    }

    #[test]
    fn a_call_that_brings_less_than_it_costs_is_put_off_as_long_as_may_be() {
        let bounds = (Duration::from_secs(1), DAY);
        assert_eq!(
            interval(Objective::Freshness, 2.0, 1.0, 0.5, bounds),
            DAY,
            "it changes too fast for what it is worth"
        );
        for objective in [Objective::Age, Objective::Harmonic] {
            assert!(interval(objective, 2.0, 1.0, 0.5, bounds) < DAY, "{objective:?} gives nothing up");
        }
        for objective in ALL {
            for odd in [0.0, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE, f64::MAX] {
                for (rate, weight, price) in [(odd, 1.0, 1.0), (1.0, odd, 1.0), (1.0, 1.0, odd), (odd, odd, odd)] {
                    let is = interval(objective, rate, weight, price, bounds);
                    assert!(bounds.0 <= is && is <= bounds.1, "{objective:?} {rate} {weight} {price}: {is:?}");
                }
            }
        }
        assert_eq!(interval(Objective::Age, 1.0, 1.0, 1.0, (DAY, Duration::ZERO)), DAY, "bounds that are wrong");
    }

    #[test]
    fn what_is_dearer_or_worth_less_is_visited_less_often() {
        for objective in ALL {
            for exponent in -40..20 {
                let rate = 1.7_f64.powi(exponent);
                let mut last = 0.0;
                for step in -60..60 {
                    let price = 1.5_f64.powi(step);
                    let is = secs(objective, rate, 1.0, price);
                    assert!(is >= last, "{objective:?} rate {rate} price {price}: {is} after {last}");
                    last = is;
                    // Only what a call costs by what it is worth matters.
                    let same = secs(objective, rate, 8.0, price * 8.0);
                    assert!((same - is).abs() <= is * 1e-6, "{objective:?} rate {rate} price {price}: {is}, {same}");
                }
            }
        }
    }

    /// The mean cost of one visit each `interval` in a second: what is lost, and the calls.
    fn cost(objective: Objective, rate: f64, weight: f64, price: f64, interval: f64) -> f64 {
        let x = rate * interval;
        let lost = match objective {
            Objective::Age => interval * (0.5 - 1.0 / x - (-x).exp_m1() / (x * x)),
            _ => 1.0 + (-x).exp_m1() / x,
        };
        weight * lost + price / interval
    }

    #[test]
    fn no_other_interval_costs_less() {
        for objective in [Objective::Age, Objective::Freshness] {
            for rate in [0.003, 0.05, 0.4, 2.0] {
                for price in [0.02, 0.1, 0.3] {
                    let best = secs(objective, rate, 1.0, price);
                    let is = cost(objective, rate, 1.0, price, best);
                    for factor in [0.5, 0.9, 1.1, 2.0] {
                        let other = cost(objective, rate, 1.0, price, best * factor);
                        assert!(
                            other >= is - 1e-9,
                            "{objective:?} {rate} {price}: {best} costs {is}, × {factor} {other}"
                        );
                    }
                }
            }
        }
    }
}
