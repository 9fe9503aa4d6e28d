//! How long before a tick is due its claim is asked for.
//!
//! A claim is a transaction, which takes 1 to 20 ms. A tick that is claimed only when it is due starts that much late. So
//! a worker asks as much earlier as claims take here of late, and waits the rest once it has the answer.

use std::time::Duration;

use parking_lot::Mutex;

/// The earliest. Messages come no more than this before they are due, less what the end of the run before has taken.
const MOST: Duration = Duration::from_millis(20);

/// How long claims have taken of late.
#[derive(Default)]
pub(crate) struct ClaimTime(Mutex<Smoothed>);

/// Mean and mean deviation, in microseconds, smoothed as round trips are by TCP (RFC 6298, section 2).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Smoothed {
    mean: f64,
    deviation: f64,
}

impl Smoothed {
    /// The same after another claim has taken so long (pure).
    fn with(self, took: Duration) -> Self {
        let took = took.as_secs_f64() * 1e6;
        if self == Self::default() {
            return Self { mean: took, deviation: took / 2.0 };
        }
        let deviation = self.deviation + ((self.mean - took).abs() - self.deviation) / 4.0;
        Self { mean: self.mean + (took - self.mean) / 8.0, deviation }
    }

    /// By then nearly every claim is answered (pure).
    fn ahead(self) -> Duration {
        Duration::from_secs_f64((self.mean + 4.0 * self.deviation) / 1e6).min(MOST)
    }
}

impl ClaimTime {
    pub(crate) fn took(&self, took: Duration) {
        let mut smoothed = self.0.lock();
        *smoothed = smoothed.with(took);
    }

    pub(crate) fn ahead(&self) -> Duration {
        self.0.lock().ahead()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn claims_are_asked_for_as_early_as_nearly_all_of_them_need() {
        let after = |took: &[u32]| took.iter().fold(Smoothed::default(), |smoothed, ms| smoothed.with(MS * *ms));
        let table = [
            (vec![], 0),
            // The first says nothing of how much they differ: half of it is taken for that.
            (vec![2], 6),
            (vec![2; 40], 2),
            (vec![4; 40], 4),
            ([vec![4; 40], vec![12]].concat(), 13),
            (vec![300; 3], 20),
            ([vec![300; 3], vec![2; 80]].concat(), 2),
        ];
        for (took, expected) in table {
            let ahead = after(&took).ahead();
            assert!(ahead.abs_diff(MS * expected) < MS / 2, "{took:?}: {ahead:?} in place of {expected} ms");
        }
    }
}
