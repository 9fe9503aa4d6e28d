//! How many starts windows of time hold (pure), counted from the times of the starts alone: the check of a throttle.

use std::time::Duration;

/// The counts of all windows of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCheck {
    /// The most starts that any window holds, wherever it begins.
    pub most: usize,
    /// How many starts are one too many in the window that ends with them.
    pub over: usize,
}

/// Counts every window of the length `per` over `starts`, which are in microseconds and in order. A start exactly
/// `per` after another is not in one window with it.
pub fn check(starts: &[i64], allow: usize, per: Duration) -> WindowCheck {
    let per = i64::try_from(per.as_micros()).unwrap_or(i64::MAX);
    let (mut judged, mut first) = (WindowCheck::default(), 0);
    for (n, start) in starts.iter().enumerate() {
        while start - starts[first] >= per {
            first += 1;
        }
        let held = n - first + 1;
        judged.most = judged.most.max(held);
        judged.over += usize::from(held > allow);
    }
    judged
}

/// The share of `allow` that is used, over windows that follow each other from `begin` on. Only the windows whose
/// flag in `busy` is set count: those in which there was always work. `None` if there is no such window.
pub fn used(starts: &[i64], begin: i64, allow: usize, per: Duration, busy: &[bool]) -> Option<f64> {
    let per = i64::try_from(per.as_micros()).unwrap_or(i64::MAX).max(1);
    let counted = busy.iter().filter(|busy| **busy).count();
    let place = |start: &i64| usize::try_from((start - begin).div_euclid(per)).ok();
    let within = starts.iter().filter_map(place).filter(|place| busy.get(*place) == Some(&true)).count();
    (counted > 0).then(|| within as f64 / (counted * allow) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn windows_begin_anywhere_and_end_before_a_start_one_length_later() {
        let starts = [0, 900_000, 1_000_000, 1_100_000, 1_899_999, 3_000_000];
        assert_eq!(check(&starts, 3, S), WindowCheck { most: 4, over: 1 });
        assert_eq!(check(&starts, 4, S), WindowCheck { most: 4, over: 0 });
        assert_eq!(check(&starts, 2, S), WindowCheck { most: 4, over: 2 });
        assert_eq!(check(&[], 1, S), WindowCheck::default());
    }

    #[test]
    fn used_counts_where_there_was_work() {
        let starts = [100, 500_000, 1_000_000, 1_500_000, 1_600_000, 2_100_000, 9_000_000];
        assert_eq!(used(&starts, 0, 4, S, &[true, true, true]), Some(0.5));
        assert_eq!(used(&starts, 0, 4, S, &[false, true, false]), Some(0.75));
        assert_eq!(used(&starts, 500_000, 4, S, &[true]), Some(0.5));
        assert_eq!(used(&starts, 0, 4, S, &[false]), None);
    }
}
