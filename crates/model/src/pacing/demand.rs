//! Whether the chains that a throttle paces need more starts than the throttle allows (pure).

use std::time::Duration;

use super::slots::Limits;
use crate::clock::short_duration;

/// The chains of one kind behind a throttle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The kind.
    pub kind: String,
    /// How many chains.
    pub chains: u64,
    /// From one tick of a chain to the next, in the mean.
    pub every: Duration,
    /// For how many starts one run counts.
    pub cost: u32,
}

/// More starts are needed than a throttle allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Shortage {
    /// How many starts per second the chains need.
    pub needed: f64,
    /// How many starts per second the limits allow in the long run.
    pub allowed: f64,
}

/// What is short where these chains share these limits: nothing if all can keep their schedules. Retries and one-off
/// jobs come on top and are not counted.
pub fn shortage(needs: &[Needs], limits: &Limits) -> Option<Shortage> {
    let of = |needs: &Needs| needs.chains as f64 * f64::from(needs.cost) / needs.every.as_secs_f64().max(0.001);
    let (needed, allowed) = (needs.iter().map(of).sum::<f64>(), limits.rate());
    (needed > allowed * 1.001).then_some(Shortage { needed, allowed })
}

impl Shortage {
    /// For a person: what is needed, what is allowed, and how often each chain then runs.
    pub fn words(&self, throttle: &str, needs: &[Needs]) -> String {
        let stretch = self.needed / self.allowed;
        let kinds: Vec<&str> = needs.iter().filter(|of| of.chains > 0).map(|of| of.kind.as_str()).collect();
        let (verb, then) = match &needs.iter().filter(|of| of.chains > 0).collect::<Vec<_>>()[..] {
            [only] => {
                let every = Duration::from_secs_f64((only.every.as_secs_f64() * stretch).round().max(1.0));
                (
                    "needs",
                    format!(
                        "each runs about every {}, not every {}",
                        short_duration(every),
                        short_duration(only.every)
                    ),
                )
            }
            _ => ("need", format!("each runs {stretch:.1} times less often than its schedule says")),
        };
        let [needed, allowed] = [self.needed, self.allowed].map(per);
        format!("{} {verb} {needed}, and the throttle {throttle} allows {allowed}: {then}", kinds.join(", "))
    }
}

/// A rate in the unit in which it is a whole number, about: `30/min`.
pub fn per(rate: f64) -> String {
    let (number, unit) = match rate {
        rate if rate >= 10.0 => (rate, "s"),
        rate if rate * 60.0 >= 1.0 => (rate * 60.0, "min"),
        rate if rate * 3_600.0 >= 1.0 => (rate * 3_600.0, "h"),
        rate => (rate * 86_400.0, "day"),
    };
    if number >= 10.0 || number.fract() < 0.05 { format!("{number:.0}/{unit}") } else { format!("{number:.1}/{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacing::slots::Window;

    fn limits(allow: u32, secs: u64) -> Limits {
        Limits { window: Window { allow, per: Duration::from_secs(secs) }, burst: 1, also: Vec::new() }
    }

    fn needs(kind: &str, chains: u64, secs: u64) -> Needs {
        Needs { kind: kind.into(), chains, every: Duration::from_secs(secs), cost: 1 }
    }

    #[test]
    fn a_table_of_needs_and_limits() {
        let table = [
            (vec![], limits(30, 60), None),
            (vec![needs("pull", 30, 60)], limits(30, 60), None),
            (
                vec![needs("pull", 30, 30), needs("gone", 0, 1)],
                limits(30, 60),
                Some(
                    "pull needs 60/min, and the throttle stock allows 30/min: each runs about every 60s, not every 30s",
                ),
            ),
            (
                vec![Needs { cost: 8, ..needs("heavy", 10, 60) }],
                limits(30, 60),
                Some(
                    "heavy needs 80/min, and the throttle stock allows 30/min: each runs about every 160s, not every 60s",
                ),
            ),
            (
                vec![needs("a", 10, 10), needs("b", 5, 10)],
                limits(1, 1),
                Some(
                    "a, b need 90/min, and the throttle stock allows 60/min: each runs 1.5 times less often than \
                     its schedule says",
                ),
            ),
        ];
        for (needs, limits, expected) in table {
            let words = shortage(&needs, &limits).map(|short| short.words("stock", &needs));
            assert_eq!(words.as_deref(), expected);
        }
    }

    #[test]
    fn the_tightest_window_counts() {
        let also = vec![Window { allow: 100, per: Duration::from_secs(3_600) }];
        let both = Limits { also, ..limits(30, 60) };
        let short = shortage(&[needs("pull", 10, 60)], &both).unwrap();
        assert_eq!((per(short.needed), per(short.allowed)), ("10/min".into(), "1.7/min".into()));
    }

    #[test]
    fn a_table_of_rates() {
        let table = [(25.0, "25/s"), (1.0, "60/min"), (0.025, "1.5/min"), (0.01, "36/h"), (0.000_1, "8.6/day")];
        for (rate, text) in table {
            assert_eq!(per(rate), text);
        }
    }
}
