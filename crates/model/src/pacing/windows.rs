//! How many starts windows of time hold (pure): judged by the starts alone, and not by what anybody meant.

use std::time::Duration;

/// What windows hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The most starts that any window of that length holds, wherever it begins.
    pub most: usize,
    /// Starts that are one too many in the window that ends with them.
    pub over: usize,
}

/// Looks at every window of the length `per` over `starts`, in microseconds and in their order: what
/// starts exactly `per` after another is not in one window with it.
pub fn judge(starts: &[i64], allow: usize, per: Duration) -> Judged {
    let per = i64::try_from(per.as_micros()).unwrap_or(i64::MAX);
    let (mut judged, mut first) = (Judged::default(), 0);
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

/// How much is used of what is allowed, over the windows from `begin` on whose places `busy` tells: those in
/// which there was always work. `None` if there is no such window.
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
    fn windows_begin_anywhere_and_end_before_what_is_a_length_later() {
        let starts = [0, 900_000, 1_000_000, 1_100_000, 1_899_999, 3_000_000];
        assert_eq!(judge(&starts, 3, S), Judged { most: 4, over: 1 });
        assert_eq!(judge(&starts, 4, S), Judged { most: 4, over: 0 });
        assert_eq!(judge(&starts, 2, S), Judged { most: 4, over: 2 });
        assert_eq!(judge(&[], 1, S), Judged::default());
    }

    #[test]
    fn use_counts_where_there_was_work() {
        let starts = [100, 500_000, 1_000_000, 1_500_000, 1_600_000, 2_100_000, 9_000_000];
        assert_eq!(used(&starts, 0, 4, S, &[true, true, true]), Some(0.5));
        assert_eq!(used(&starts, 0, 4, S, &[false, true, false]), Some(0.75));
        assert_eq!(used(&starts, 500_000, 4, S, &[true]), Some(0.5));
        assert_eq!(used(&starts, 0, 4, S, &[false]), None);
    }
}
