//! How old the data of a kind's entities is: the time since their last successful end.
//!
//! Between two successes of an entity its age grows evenly from nothing to the distance between
//! them. So the distribution of ages over all entities and all moments follows from the
//! distribution of these distances alone, and no moment has to be looked at.

use std::collections::HashMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use roundelay_model::clock::Time;
use roundelay_model::ids::Epoch;

use serde::Serialize;

/// A distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// Reached or exceeded by one in a hundred.
    pub p99: f64,
    /// The worst.
    pub max: f64,
}

/// Ages of one kind's entities.
pub(super) struct Ages {
    /// Distances between successes.
    distances: Lengths,
    /// The last success of each entity, by its chain's epoch.
    last: HashMap<Epoch, Time>,
}

impl Ages {
    pub fn new() -> Self {
        Self { distances: Lengths::new(), last: HashMap::new() }
    }

    /// A run of the chain with this epoch has worked.
    pub fn success(&mut self, epoch: Epoch, at: Time) {
        if let Some(before) = self.last.insert(epoch, at) {
            self.distances.record(at.since(before), 1);
        }
    }

    /// How many of this number of entities have never had a success.
    pub fn never(&self, entities: u64) -> u64 {
        entities.saturating_sub(self.last.len() as u64)
    }

    /// The ages until `end`, in seconds. An entity counts from its first success on; one that has
    /// none is as old as the whole simulation, of length `length`.
    pub fn summary(&self, entities: u64, end: Time, length: Duration) -> Quantiles {
        let mut distances = self.distances.clone();
        self.last.values().for_each(|last| distances.record(end.since(*last), 1));
        distances.record(length, self.never(entities));
        let max = distances.max.as_secs_f64();
        let seconds = |q| ((quantile(&distances.histogram, q)).round() / 1_000.0).min(max);
        Quantiles { p50: seconds(0.50), p99: seconds(0.99), max }
    }
}

/// Lengths of time, up to ten years, to three digits; the longest is exact.
#[derive(Clone)]
pub(super) struct Lengths {
    /// In milliseconds.
    histogram: Histogram<u64>,
    max: Duration,
}

impl Lengths {
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, 10 * 366 * 86_400_000, 3).expect("constant bounds in range");
        Self { histogram, max: Duration::ZERO }
    }

    /// Records `count` ages of this length.
    pub fn record(&mut self, length: Duration, count: u64) {
        if count > 0 {
            self.histogram.saturating_record_n(u64::try_from(length.as_millis()).unwrap_or(u64::MAX), count);
            self.max = self.max.max(length);
        }
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// In milliseconds.
    pub fn quantiles(&self) -> Quantiles {
        let max = self.max.as_millis() as f64;
        let at = |q| (self.histogram.value_at_quantile(q) as f64).min(max);
        Quantiles { p50: at(0.50), p99: at(0.99), max }
    }
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
        (0..=10).for_each(|n| ages.success(Epoch(1), at(60 * n)));
        let even = ages.summary(1, at(600), Duration::from_secs(600));
        assert!((even.p50 - 30.0).abs() < 0.1 && (even.p99 - 59.4).abs() < 0.1 && even.max == 60.0, "{even:?}");
        // A second entity has one success, and then none for 600 s: half of all moments are its.
        ages.success(Epoch(2), at(0));
        let both = ages.summary(2, at(600), Duration::from_secs(600));
        assert!(both.max == 600.0 && (both.p99 - 588.0).abs() < 1.0, "{both:?}");
        // A third has none at all.
        assert_eq!(ages.never(3), 1);
        assert_eq!(ages.summary(3, at(600), Duration::from_secs(900)).max, 900.0);
        assert_eq!(Ages::new().summary(0, at(600), Duration::from_secs(600)).max, 0.0);
    }
}
