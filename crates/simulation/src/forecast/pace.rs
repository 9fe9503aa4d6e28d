//! Starts over time: the busiest second beside the mean, and what a chart shows.

use std::time::Duration;

/// Columns of a chart at most, before it is drawn.
const COLUMNS: u64 = 720;

/// Counts starts.
pub(super) struct Pace {
    /// Seconds before this one count for the chart alone.
    after: u64,
    /// The length in seconds, the last of which may be a part.
    length: f64,
    /// The second that is being counted, how many it has, and the most that one had.
    second: u64,
    count: u64,
    peak: u64,
    /// All that count.
    total: u64,
    /// Seconds in a column.
    width: u64,
    /// Starts in each column.
    starts: Vec<u64>,
    /// The busiest second of each column.
    peaks: Vec<u64>,
}

impl Pace {
    /// Over `length`, with what comes before `after` left out of the comparison.
    pub fn new(length: Duration, after: Duration) -> Self {
        let seconds = (length.as_secs_f64().ceil() as u64).max(1);
        let width = seconds.div_ceil(COLUMNS);
        let columns = seconds.div_ceil(width) as usize;
        Self {
            after: after.as_secs_f64().ceil() as u64,
            length: length.as_secs_f64(),
            second: 0,
            count: 0,
            peak: 0,
            total: 0,
            width,
            starts: vec![0; columns],
            peaks: vec![0; columns],
        }
    }

    /// One start at `at`, counted from the beginning. Time does not go back.
    pub fn start(&mut self, at: Duration) {
        let second = at.as_secs();
        if second != self.second {
            (self.second, self.count) = (second, 0);
        }
        self.count += 1;
        let column = (second / self.width) as usize;
        if let (Some(starts), Some(peak)) = (self.starts.get_mut(column), self.peaks.get_mut(column)) {
            *starts += 1;
            *peak = (*peak).max(self.count);
        }
        if second >= self.after {
            self.total += 1;
            self.peak = self.peak.max(self.count);
        }
    }

    /// The busiest second by the mean of all, in bins of a second; `None` when there were no starts.
    pub fn peak_to_mean(&self) -> Option<f64> {
        let mean = self.total as f64 / (self.length - self.after as f64).max(1.0);
        (self.total > 0).then(|| self.peak as f64 / mean)
    }

    /// What a chart shows.
    pub fn series(&self) -> Series {
        let (starts, peaks) = (self.starts.clone(), self.peaks.clone());
        Series { width: Duration::from_secs(self.width), starts, peaks }
    }
}

/// Starts over time, in columns.
#[derive(Clone, Debug)]
pub struct Series {
    /// The time in each column.
    pub width: Duration,
    /// Starts in each.
    pub starts: Vec<u64>,
    /// The busiest second of each.
    pub peaks: Vec<u64>,
}

impl Series {
    /// At most `most` columns of the series, each of several seconds: starts per second on average, and in the
    /// busiest second.
    pub fn columns(&self, most: usize) -> Vec<(f64, u64)> {
        let per = self.starts.len().div_ceil(most.max(1)).max(1);
        let seconds = |n: usize| n as f64 * self.width.as_secs_f64();
        let both = self.starts.chunks(per).zip(self.peaks.chunks(per));
        both.map(|(starts, peaks)| {
            let peak = peaks.iter().copied().max().unwrap_or_default();
            (starts.iter().sum::<u64>() as f64 / seconds(starts.len()), peak)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_second_by_the_mean_after_the_first_period() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(ms(10_000), ms(2_000));
        // A burst in the first period; then two in each second, but three in one and one in another.
        (0..50).for_each(|_| pace.start(ms(500)));
        for second in 2..10_u64 {
            let starts = match second {
                4 => 3,
                5 => 1,
                _ => 2,
            };
            (0..starts).for_each(|n| pace.start(ms(second * 1_000 + n)));
        }
        assert_eq!(pace.peak_to_mean(), Some(1.5));
        assert_eq!(pace.series().starts, [50, 0, 2, 2, 3, 1, 2, 2, 2, 2]);
        assert_eq!(pace.series().columns(5), [(25.0, 50), (2.0, 2), (2.0, 3), (2.0, 2), (2.0, 2)]);
        assert_eq!(Pace::new(ms(10_000), ms(0)).peak_to_mean(), None);
    }

    #[test]
    fn a_long_time_has_wider_columns() {
        let mut pace = Pace::new(Duration::from_secs(86_400), Duration::ZERO);
        pace.start(Duration::from_millis(86_399_999));
        let series = pace.series();
        assert_eq!((series.starts.len(), series.width, series.starts[719]), (720, Duration::from_secs(120), 1));
    }
}
