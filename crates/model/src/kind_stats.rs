//! What the runs of each kind came to, over time (pure).
//!
//! Each worker counts for itself, in buckets of a minute, of ten minutes and of an hour, and writes its own buckets over
//! and over until they are over. So a bucket that is written twice counts once, and what all workers did is the sum of
//! their buckets. The cost follows from kinds and workers, not from chains or runs: of one kind and one worker there
//! are at most 582 buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Time;
use crate::fresh::Visits;

/// The length of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Kept for three hours.
    Minute,
    /// Kept for 30 hours.
    TenMinutes,
    /// Kept for nine days.
    Hour,
}

impl Step {
    /// From the shortest.
    pub const ALL: [Self; 3] = [Self::Minute, Self::TenMinutes, Self::Hour];

    /// How long a bucket is.
    pub fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Minute => 60,
            Self::TenMinutes => 600,
            Self::Hour => 3_600,
        })
    }

    /// For how long buckets are kept. More than what a screen shows, since a clock may be set.
    pub fn kept(self) -> Duration {
        Duration::from_secs(match self {
            Self::Minute => 3 * 3_600,
            Self::TenMinutes => 30 * 3_600,
            Self::Hour => 9 * 86_400,
        })
    }

    /// The step whose buckets show so much time in at most 180 of them.
    pub fn that_shows(time: Duration) -> Self {
        Self::ALL.into_iter().find(|step| time <= step.length() * 180).unwrap_or(Self::Hour)
    }

    /// When the bucket begins that this time falls into.
    pub fn begin(self, at: Time) -> Time {
        let (at, length) = (at.as_millis(), self.millis());
        Time::from_millis(at - at.rem_euclid(length))
    }

    /// Its number in the ledger: the length in milliseconds.
    pub fn millis(self) -> i64 {
        i64::try_from(self.length().as_millis()).unwrap_or(i64::MAX)
    }
}

/// Spans of time, counted by their lengths.
///
/// Lengths are in milliseconds and rounded down to four binary digits, so a quantile is at most an eighth too low. There
/// are at most 8 different lengths from each power of two to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Counts a span.
    pub fn add(&mut self, span: Duration) {
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let digits = (u64::BITS - ms.leading_zeros()).saturating_sub(4);
        *self.0.entry(ms >> digits << digits).or_default() += 1;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds the counts of another.
    pub fn add_all(&mut self, other: &Self) {
        for (ms, count) in &other.0 {
            *self.0.entry(*ms).or_default() += count;
        }
    }

    /// The length that a share of all spans (0 to 1) does not exceed; nothing without any.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let all: u64 = self.0.values().sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut counted = 0;
        let found = self.0.iter().find(|(_, count)| {
            counted += **count;
            counted >= wanted
        });
        found.map(|(ms, _)| Duration::from_millis(*ms))
    }
}

/// What runs came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindStats {
    /// How many attempts ended in each way: by verdict, `fenced` or `lost`.
    pub ends: BTreeMap<String, u64>,
    /// How long handlers ran.
    pub took: Spans,
    /// How long after they were due runs started.
    pub late: Spans,
    /// How many occurrences were left out: the chain still ran, or nothing could start.
    pub left_out: u64,
    /// How many occurrences calendars left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub excluded: u64,
    /// What visits came to, of a kind whose intervals follow from what is learned.
    #[serde(skip_serializing_if = "Visits::is_empty")]
    pub visits: Visits,
    /// Since when it was counted, by the ledger's time; a worker may have begun in the middle of a stretch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Until when: a worker tells it every ten seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl KindStats {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self { since: self.since, until: self.until, ..Self::default() }
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Self) {
        for (end, count) in &other.ends {
            *self.ends.entry(end.clone()).or_default() += count;
        }
        self.took.add_all(&other.took);
        self.late.add_all(&other.late);
        self.left_out += other.left_out;
        self.excluded += other.excluded;
        self.visits.add(&other.visits);
        self.since = self.since.into_iter().chain(other.since).min();
        self.until = self.until.max(other.until);
    }

    /// How many attempts ended in one of these ways.
    pub fn ended(&self, ways: &[&str]) -> u64 {
        ways.iter().filter_map(|way| self.ends.get(*way)).sum()
    }
}

/// What the runs of one kind came to, in one stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct KindBucket {
    /// How long the stretch is.
    pub step: Step,
    /// When it began, by the ledger's time.
    pub at: Time,
    /// The kind.
    pub kind: String,
    /// What the runs came to.
    pub stats: KindStats,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_steps() {
        let hours = |n: u64| Duration::from_secs(3_600 * n);
        let table =
            [(1, Step::Minute), (3, Step::Minute), (4, Step::TenMinutes), (24, Step::TenMinutes), (168, Step::Hour)];
        for (time, expected) in table {
            let step = Step::that_shows(hours(time));
            assert_eq!(step, expected, "{time} h");
            assert!(step.kept() >= hours(time), "{time} h");
        }
        let buckets: u128 = Step::ALL.iter().map(|step| step.kept().as_millis() / step.length().as_millis()).sum();
        assert_eq!(
            buckets, 576,
            "as the head of this file says, with one more of each that has begun, and one that goes"
        );
        assert_eq!(Step::Minute.begin(Time::from_millis(119_999)), Time::from_millis(60_000));
        assert_eq!(Step::Hour.begin(Time::from_millis(-1)), Time::from_millis(-3_600_000));
    }

    #[test]
    fn quantiles_are_at_most_an_eighth_too_low() {
        let ms = Duration::from_millis;
        let mut spans = Spans::default();
        assert_eq!(spans.quantile(0.5), None);
        (1..=1_000).for_each(|n| spans.add(ms(n)));
        for (share, exact) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1_000)] {
            let found = spans.quantile(share).unwrap();
            assert!(found <= ms(exact) && found * 8 >= ms(exact) * 7, "{share}: {found:?} for {exact} ms");
        }
        assert!(spans.0.len() <= 8 * 8, "{} lengths", spans.0.len());
        let mut twice = spans.clone();
        twice.add_all(&spans);
        assert_eq!(twice.quantile(0.5), spans.quantile(0.5));
        spans.add(Duration::MAX);
        assert!(spans.quantile(1.0).unwrap() > ms(u64::MAX / 16 * 15));
    }

    #[test]
    fn stats_add_up_and_are_read_as_they_were_written() {
        let mut one = KindStats { left_out: 2, excluded: 5, ..KindStats::default() };
        one.ends.insert("done".into(), 3);
        one.took.add(Duration::from_millis(20));
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text, r#"{"ends":{"done":3},"took":{"20":1},"late":{},"left_out":2,"excluded":5}"#);
        assert_eq!(serde_json::from_str::<KindStats>(&text).unwrap(), one);
        // What another version has added or left out is no error.
        assert_eq!(serde_json::from_str::<KindStats>(r#"{"more":1}"#).unwrap(), KindStats::default());
        let mut both = one.clone();
        let counted = |since, until| (Some(Time::from_millis(since)), Some(Time::from_millis(until)));
        for (since, until) in [counted(7, 17), counted(9, 19), counted(8, 18)] {
            let more = if both.since.is_none() { one.clone() } else { KindStats::default() };
            both.add(&KindStats { since, until, ..more });
        }
        assert_eq!((both.since, both.until), counted(7, 19));
        assert_eq!((both.ended(&["done", "failed"]), both.left_out, both.excluded), (6, 4, 10));
        assert!(!both.is_empty() && KindStats::default().is_empty());
    }
}
