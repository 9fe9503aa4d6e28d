//! How old the data of a kind's entities is: the time since their last successful end.
//!
//! Between two successes of an entity its age grows evenly from nothing to the distance between
//! them. So the distribution of ages over all entities and all moments follows from the
//! distribution of these distances alone, and no moment has to be looked at.

use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::report::Quantiles;
use crate::clock::Time;

/// Ages of one kind's entities.
pub(super) struct Ages {
    /// Distances between successes, in milliseconds.
    distances: Histogram<u64>,
    /// The last success of each entity, by its chain's epoch.
    last: HashMap<i64, Time>,
}

impl Ages {
    pub fn new() -> Self {
        Self { distances: milliseconds(), last: HashMap::new() }
    }

    /// A run of the chain with this epoch has worked.
    pub fn success(&mut self, epoch: i64, at: Time) {
        if let Some(before) = self.last.insert(epoch, at) {
            record(&mut self.distances, at.since(before));
        }
    }

    /// How many of so many entities have never had a success.
    pub fn never(&self, entities: u64) -> u64 {
        entities.saturating_sub(self.last.len() as u64)
    }

    /// The ages until `end`, in seconds. An entity counts from its first success on; one that has
    /// none is as old as the whole simulation, of length `length`.
    pub fn summary(&self, entities: u64, end: Time, length: Duration) -> Quantiles {
        let mut distances = self.distances.clone();
        self.last.values().for_each(|last| record(&mut distances, end.since(*last)));
        for _ in 0..self.never(entities).min(1) {
            let length = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            let _ = distances.record_n(length.min(distances.high()), self.never(entities));
        }
        let seconds = |ms: f64| (ms.round()) / 1_000.0;
        Quantiles {
            p50: seconds(quantile(&distances, 0.50)),
            p99: seconds(quantile(&distances, 0.99)),
            max: distances.max() as f64 / 1_000.0,
        }
    }
}

/// A histogram of milliseconds, up to ten years, with three digits.
pub(super) fn milliseconds() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10 * 366 * 86_400_000, 3).expect("constant bounds in range")
}

/// Notes a duration.
pub(super) fn record(histogram: &mut Histogram<u64>, duration: Duration) {
    histogram.saturating_record(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
}

/// The age that the share `q` of all moments stays below, when ages grow from nothing to each of
/// these distances.
fn quantile(distances: &Histogram<u64>, q: f64) -> f64 {
    let distances: Vec<(f64, f64)> = distances
        .iter_recorded()
        .map(|step| (step.value_iterated_to() as f64, step.count_since_last_iteration() as f64))
        .collect();
    let beyond = |age: f64| distances.iter().map(|(distance, n)| (distance - age).max(0.0) * n).sum::<f64>();
    let wanted = beyond(0.0) * (1.0 - q);
    let (mut low, mut high) = (0.0, distances.last().map_or(0.0, |(distance, _)| *distance));
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if beyond(middle) > wanted { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_follow_from_the_distances_between_successes() {
        let mut ages = Ages::new();
        let at = |s: i64| Time::from_millis(s * 1_000);
        (0..=10).for_each(|n| ages.success(1, at(60 * n)));
        let even = ages.summary(1, at(600), Duration::from_secs(600));
        assert!((even.p50 - 30.0).abs() < 0.1 && (even.p99 - 59.4).abs() < 0.1 && even.max == 60.0, "{even:?}");
        // A second entity has one success, and then none for 600 s: half of all moments are its.
        ages.success(2, at(0));
        let both = ages.summary(2, at(600), Duration::from_secs(600));
        assert!(both.max == 600.0 && (both.p99 - 588.0).abs() < 1.0, "{both:?}");
        // A third has none at all.
        assert_eq!(ages.never(3), 1);
        assert!((ages.summary(3, at(600), Duration::from_secs(900)).max - 900.0).abs() < 1.0);
        assert_eq!(Ages::new().summary(0, at(600), Duration::from_secs(600)).max, 0.0);
    }
}
