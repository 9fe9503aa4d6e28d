//! Entities that change, and how right what visits have found of them is.
//!
//! Each entity changes by a Poisson process with a rate of its own. What is lost between a change and the visit that
//! finds it is summed exactly; nothing is sampled.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::ops::Range;
use std::time::Duration;

use roundelay_config::ChangeSettings;
use roundelay_model::clock::Entropy;
use roundelay_model::fresh::{Entity, expected};
use roundelay_model::ids::Epoch;
use serde::Serialize;

use super::model::normal;

/// The rate of changes follows the time of day.
const DAY: f64 = 86_400.0;

/// How right what is known of entities is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quality {
    /// The share of time in which it is right, by weight.
    pub freshness: f64,
    /// For how long it has been out of date, over all time, by weight: the mean, in seconds.
    pub age_s: f64,
}

/// Sums over time, by weight.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    right: f64,
    age: f64,
    all: f64,
}

impl Sum {
    /// Adds an entity of this weight, of which so much is right, and which is so old.
    fn add(&mut self, weight: f64, (right, age): (f64, f64)) {
        self.right += weight * right;
        self.age += weight * age;
        self.all += weight;
    }

    fn quality(self) -> Option<Quality> {
        (self.all > 0.0).then(|| Quality { freshness: self.right / self.all, age_s: self.age / self.all })
    }
}

/// What visiting each entity as often as `every` says, in seconds, comes to by the formulas.
pub fn by_formula<'e>(entities: impl Iterator<Item = &'e Entity>, every: impl Fn(&Entity) -> f64) -> Option<Quality> {
    let mut sum = Sum::default();
    entities.for_each(|entity| sum.add(entity.weight, expected(entity.rate, every(entity))));
    sum.quality()
}

/// The entities of a kind, from their first visit on.
pub struct Changes {
    settings: ChangeSettings,
    /// The time of day at the beginning, in seconds.
    midnight: f64,
    /// What counts, in seconds from the beginning.
    measured: Range<f64>,
    entities: BTreeMap<Epoch, Process>,
    sum: Sum,
}

/// An entity, with times in seconds from the beginning.
struct Process {
    rate: f64,
    weight: f64,
    /// When it changes, for the first time since its last visit.
    change: f64,
    /// Until when it is counted.
    counted: f64,
}

impl Changes {
    /// Entities that change as the settings say. `midnight` is the time of day at the beginning, and `measured` the time
    /// that counts, in seconds from the beginning.
    pub fn new(settings: ChangeSettings, midnight: f64, measured: Range<f64>) -> Self {
        Self { settings, midnight, measured, entities: BTreeMap::new(), sum: Sum::default() }
    }

    /// A visit of an entity at `at`. Answers whether it has changed since the visit before; nothing for the first visit.
    /// `new` says the seed of the entity's rate, and its weight.
    pub fn visit(&mut self, epoch: Epoch, at: f64, dice: &Entropy, new: impl FnOnce() -> (u64, f64)) -> Option<bool> {
        let ChangeSettings { every, spread, daily } = self.settings;
        let clock = Daily { share: daily, midnight: self.midnight };
        let next = |rate: f64| clock.after(at, -(1.0 - dice.unit()).ln() / rate);
        let Some(process) = self.entities.get_mut(&epoch) else {
            let (seed, weight) = new();
            let rate = (spread * normal(&Entropy::seeded(seed))).exp() / every.as_secs_f64();
            self.entities.insert(epoch, Process { rate, weight, change: next(rate), counted: at });
            return None;
        };
        process.count(at, &self.measured, &mut self.sum);
        let changed = process.change < at;
        // Changes have no memory: whenever the last one was, the next one is as far away.
        process.change = next(process.rate);
        Some(changed)
    }

    /// Counts only this time from now on, in seconds from the beginning.
    pub fn measure(&mut self, measured: Range<f64>) {
        (self.measured, self.sum) = (measured, Sum::default());
    }

    /// What all of the measured time came to, if no entity is visited any more.
    pub fn quality(&self) -> Option<Quality> {
        let mut sum = self.sum;
        for process in self.entities.values() {
            process.lost(self.measured.end, &self.measured, &mut sum);
        }
        sum.quality()
    }

    /// The rate and the weight of each.
    pub fn known(&self, bounds: (Duration, Duration)) -> impl Iterator<Item = Entity> {
        self.entities.values().map(move |process| Entity { rate: process.rate, weight: process.weight, bounds })
    }
}

impl Process {
    /// Adds what was lost since it was counted.
    fn lost(&self, until: f64, measured: &Range<f64>, sum: &mut Sum) {
        let (from, until) = (self.counted.max(measured.start), until.min(measured.end));
        if from < until {
            let old = |at: f64| (at - self.change).max(0.0);
            sum.right += self.weight * (until.min(self.change) - from).max(0.0);
            sum.age += self.weight * (old(until).powi(2) - old(from).powi(2)) / 2.0;
            sum.all += self.weight * (until - from);
        }
    }

    fn count(&mut self, until: f64, measured: &Range<f64>, sum: &mut Sum) {
        self.lost(until, measured, sum);
        self.counted = until;
    }
}

/// A rate that follows the time of day as a sine: at 6:00 it is the highest.
struct Daily {
    share: f64,
    midnight: f64,
}

impl Daily {
    /// How much of changing there has been until `at`, in seconds at the mean rate.
    fn passed(&self, at: f64) -> f64 {
        let angle = TAU * (at + self.midnight) / DAY;
        at + self.share * DAY / TAU * (1.0 - angle.cos())
    }

    /// When so much more of it will have been than at `at`.
    fn after(&self, at: f64, more: f64) -> f64 {
        if self.share == 0.0 {
            return at + more;
        }
        let wanted = self.passed(at) + more;
        // The two differ by what a day can shift them, and no more.
        let (mut low, mut high) = (at, at + more + self.share * DAY / TAU * 2.0);
        while high - low > 1e-3 {
            let middle = (low + high) / 2.0;
            if middle <= low || middle >= high {
                break;
            }
            if self.passed(middle) < wanted { low = middle } else { high = middle }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: f64 = 3_600.0;

    fn changes(spread: f64, daily: f64, measured: Range<f64>) -> Changes {
        let every = Duration::from_secs(3_600);
        Changes::new(ChangeSettings { every, spread, daily }, 0.0, measured)
    }

    #[test]
    fn fixed_visits_come_to_what_the_formulas_say() {
        let dice = Entropy::seeded(1);
        for (every, spread) in [(HOUR, 0.0), (HOUR / 4.0, 0.0), (HOUR * 2.0, 1.0)] {
            let mut changes = changes(spread, 0.0, 10.0 * every..400.0 * every);
            for n in 0..200_u32 {
                for visit in 0..400 {
                    let at = (f64::from(visit) + f64::from(n) / 200.0) * every;
                    let weight = f64::from(1 + n % 3);
                    let seen = changes.visit(Epoch(i64::from(n)), at, &dice, || (u64::from(n), weight));
                    assert_eq!(seen.is_none(), visit == 0, "the first visit has nothing to compare");
                }
            }
            let entities: Vec<Entity> = changes.known((Duration::ZERO, Duration::MAX)).collect();
            let should = by_formula(entities.iter(), |_| every).unwrap();
            let is = changes.quality().unwrap();
            assert!((is.freshness - should.freshness).abs() < 0.01, "{is:?}, by the formulas {should:?}");
            assert!((is.age_s / should.age_s - 1.0).abs() < 0.02, "{is:?}, by the formulas {should:?}");
        }
    }

    #[test]
    fn a_daily_rhythm_has_as_many_changes_a_day_and_most_of_them_around_six() {
        let dice = Entropy::seeded(2);
        for daily in [0.0, 0.5, 1.0] {
            let clock = Daily { share: daily, midnight: 7_200.0 };
            let (mut at, mut all, mut early) = (0.0, 0_u32, 0_u32);
            while at < 2_000.0 * DAY {
                at = clock.after(at, -(1.0 - dice.unit()).ln() * HOUR);
                all += 1;
                early += u32::from((at + clock.midnight).rem_euclid(DAY) < DAY / 2.0);
            }
            let (all, early) = (f64::from(all), f64::from(early));
            assert!((all / 48_000.0 - 1.0).abs() < 0.02, "{daily}: {all}");
            // Half of a day, and what the sine comes to in that half.
            let share = 0.5 + daily / std::f64::consts::PI;
            assert!((early / all - share).abs() < 0.01, "{daily}: {early} of {all}, not {share}");
        }
    }
}
