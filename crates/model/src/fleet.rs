//! The workers of a ledger: what each says of itself, and what operators have ordered of them (pure).
//!
//! A worker says every few seconds how it is, in a row of its own in the ledger, and reads there what was
//! ordered of its queues and of itself. So an operator steers workers without a connection to them, and
//! sees all workers, also those that have fallen silent.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::clock::Time;
use crate::ids::Fence;
use crate::pacing::fair::Quota;

/// A worker says at least this often how it is.
pub const EVERY: Duration = Duration::from_secs(10);
/// After so long without a word from a worker, it is taken for dead or cut off.
pub const SILENT: Duration = Duration::from_secs(30);
/// A set of ten seconds is told within this after its end.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// With fewer sets than this, their seconds are told one by one.
const SINGLE: usize = 12;
/// The seconds of a [`ThroughputSample`].
pub const SECONDS: usize = 10;
/// How many of its claims a worker names.
pub const OLDEST: usize = 20;
/// How long pulses are kept, and workers that have fallen silent.
pub const KEPT: Duration = Duration::from_secs(3_600);

/// A lateness distribution: how long after its due time an attempt started, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Lateness {
    /// The median.
    pub p50: f64,
    /// Reached or exceeded by one in a hundred.
    pub p99: f64,
    /// The worst.
    pub max: f64,
}

impl Lateness {
    /// Reads a histogram of microseconds.
    pub fn of_micros(histogram: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1_000.0;
        Self {
            p50: ms(histogram.value_at_quantile(0.5)),
            p99: ms(histogram.value_at_quantile(0.99)),
            max: ms(histogram.max()),
        }
    }
}
/// How a worker is, in its own words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name, which no other has or will have.
    pub worker: String,
    /// The machine it runs on.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The version of the program.
    pub version: String,
    /// Since when it runs.
    pub started: Time,
    /// What it is doing.
    pub state: WorkerState,
    /// The queues that it consumes.
    pub queues: Vec<QueuePresence>,
    /// The kinds that it runs.
    pub kinds: Vec<String>,
    /// Claims that it holds.
    pub leases: usize,
    /// Those of them that it has held longest, the longest first, at most [`OLDEST`]; none in the words of an older
    /// version.
    #[serde(default)]
    pub oldest: Vec<Fence>,
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// It takes jobs.
    Working,
    /// It takes no more, and some still run.
    Draining,
    /// It takes none, and none runs.
    Drained,
    /// It finishes what runs and ends.
    Stopping,
}

/// A queue that a worker consumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuePresence {
    /// Its name.
    pub queue: String,
    /// How many jobs of it the worker runs at the same time at most.
    pub concurrency: usize,
    /// How many run.
    pub running: i64,
    /// How many wait for a slot of its throttle, which queues may share.
    pub waiting: i64,
    /// Whether it takes jobs from it.
    pub open: bool,
    /// Starts in a second, over the last few.
    pub starts_per_second: f64,
    /// How late they were, those of the same time.
    pub late_ms: Lateness,
}

/// Ten seconds of a worker, which begin at a multiple of ten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputSample {
    /// When they began.
    pub at: Time,
    /// How many runs started in each of them.
    pub starts: [u64; SECONDS],
    /// How late those were; nothing without any.
    pub late_ms: Option<Lateness>,
}

/// What an order is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A platform queue, on all workers.
    Queue(String),
    /// One worker, and all its queues.
    Worker(String),
    /// A tenant: its share of all fair queues and throttles.
    Tenant(String),
}

impl Subject {
    /// Reads what [`fmt::Display`] writes.
    pub fn read(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("queue", name) => Some(Self::Queue(name.into())),
            ("worker", name) => Some(Self::Worker(name.into())),
            ("tenant", name) => Some(Self::Tenant(name.into())),
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue:{name}"),
            Self::Worker(name) => write!(f, "worker:{name}"),
            Self::Tenant(name) => write!(f, "tenant:{name}"),
        }
    }
}

/// What holds for a queue, a worker or a tenant by an operator's word, until it is taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetOrders {
    /// Nothing more is taken from the queue, or by the worker. What runs finishes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
    /// So many jobs of the queue run in each worker at most, in place of what is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<OrderedConcurrency>,
    /// The share of the tenant, in place of what is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<OrderedShare>,
}

/// See [`FleetOrders::closed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Why, for those who wonder why nothing runs.
    pub why: String,
    /// Who said so.
    pub by: String,
    /// When.
    pub at: Time,
}

/// See [`FleetOrders::concurrency`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedConcurrency {
    /// At least 1.
    pub places: usize,
    /// Who said so.
    pub by: String,
    /// When.
    pub at: Time,
}

/// See [`FleetOrders::share`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedShare {
    /// Its share in proportion to those of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// How many of its jobs run at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<Quota>,
    /// Who said so.
    pub by: String,
    /// When.
    pub at: Time,
}

/// One order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetOrder {
    /// Take nothing more.
    Close {
        /// Why, for people.
        why: String,
    },
    /// Take jobs again.
    Open,
    /// Run so many at the same time, or as many as configured.
    Concurrency(Option<usize>),
    /// Give the tenant this share. What is `None` stays as it was ordered before.
    Share {
        /// See [`OrderedShare::weight`].
        weight: Option<u32>,
        /// See [`OrderedShare::most`].
        most: Option<Quota>,
    },
    /// Give the tenant the share that is configured.
    ShareAsConfigured,
}

impl FleetOrders {
    /// Takes up one more order, of `by`, at `now`.
    pub fn add(&mut self, order: FleetOrder, by: &str, now: Time) {
        let by = by.to_owned();
        match order {
            FleetOrder::Close { why } => self.closed = Some(Closed { why, by, at: now }),
            FleetOrder::Open => self.closed = None,
            FleetOrder::Concurrency(places) => {
                self.concurrency = places.map(|places| OrderedConcurrency { places: places.max(1), by, at: now });
            }
            FleetOrder::Share { weight, most } => {
                let before = self.share.take();
                let weight = weight.or_else(|| before.as_ref()?.weight);
                let most = most.or_else(|| before.as_ref()?.most);
                self.share = Some(OrderedShare { weight, most, by, at: now });
            }
            FleetOrder::ShareAsConfigured => self.share = None,
        }
    }

    /// Whether nothing is ordered.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As a row of the ledger holds it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a row of the ledger holds. What cannot be read is taken for none: then the configuration holds.
    pub fn read(text: &str, subject: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|error| {
            tracing::warn!(subject, %error, "what was ordered of it cannot be read; order it again");
            Self::default()
        })
    }
}

/// What comes in from a queue, and how much of it runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whether anything is taken.
    pub open: bool,
    /// How many run at the same time, over all its lanes.
    pub places: usize,
    /// How many messages are held, running ones included.
    pub prefetch: u16,
}

impl Flow {
    /// What orders make of a queue that is configured for `places` and `prefetch`. As many messages are held for
    /// each place as are configured, and no more than `ahead`.
    pub fn of(places: usize, prefetch: u16, ahead: Option<u16>, queue: &FleetOrders, worker: &FleetOrders) -> Self {
        let ordered = queue.concurrency.as_ref().map_or(places, |said| said.places);
        let scaled = (usize::from(prefetch) * ordered).div_ceil(places.max(1)).max(1);
        let prefetch = u16::try_from(scaled).unwrap_or(u16::MAX).min(ahead.unwrap_or(u16::MAX));
        Self { open: queue.closed.is_none() && worker.closed.is_none(), places: ordered, prefetch }
    }
}

/// Starts by the second, in sets of ten seconds, as they are counted (pure).
#[derive(Debug, Default)]
pub struct Counter {
    /// Which ten seconds, counted from 1970.
    tens: i64,
    starts: [u64; SECONDS],
    /// How many there were in all when last looked at.
    before: Option<u64>,
}

impl Counter {
    /// There are no starts yet, at `now`.
    pub fn starting(now: Time) -> Self {
        let tens = now.as_millis().div_euclid(SECONDS as i64 * 1_000);
        Self { tens, before: Some(0), ..Self::default() }
    }

    /// There have been `total` starts at `now`, which is about the end of a second. Answers what has come to its end
    /// with that: when it began, and the starts of its seconds.
    pub fn look(&mut self, total: u64, now: Time) -> Option<(Time, [u64; SECONDS])> {
        let second = (now.as_millis() - 500).div_euclid(1_000);
        let (tens, nth) = (second.div_euclid(SECONDS as i64), second.rem_euclid(SECONDS as i64) as usize);
        // What goes on when it is first looked at is no set of its own.
        let tens = if self.before.is_none() { (second + 1).div_euclid(SECONDS as i64) } else { tens };
        let over = (tens != self.tens && self.before.is_some()).then(|| {
            let starts = std::mem::take(&mut self.starts);
            (Time::from_millis(self.tens * SECONDS as i64 * 1_000), starts)
        });
        self.tens = tens;
        self.starts[nth] += total.saturating_sub(self.before.unwrap_or(total));
        self.before = Some(total);
        over
    }

    /// Starts in a second, over those of the set that goes on, up to and including `now`.
    pub fn rate(&self, now: Time) -> f64 {
        let nth = (now.as_millis() - 500).div_euclid(1_000).rem_euclid(SECONDS as i64) + 1;
        self.starts.iter().sum::<u64>() as f64 / nth as f64
    }
}

/// Starts of all workers over time (pure).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rhythm {
    /// Sets of ten seconds in their order, those without a start included: when they began, how many runs
    /// started, and how late one in a hundred of them was, on the worker where that was longest.
    pub sets: Vec<(Time, u64, Option<f64>)>,
    /// The same for each second, while that is less than two minutes: a worker that has just begun shows something,
    /// too.
    pub seconds: Vec<(Time, u64, Option<f64>)>,
    /// The busiest second by the mean one; nothing where starts are too rare for that to mean anything.
    pub peak_to_mean: Option<f64>,
    /// Starts in a second, over the last two sets that are over.
    pub per_second: f64,
}

impl Rhythm {
    /// Of what workers have told, which may be of any order, up to `now`.
    pub fn of(pulses: &[ThroughputSample], now: Time) -> Self {
        let set = SECONDS as i64 * 1_000;
        // The last one that everybody has told of, unless the ledger is slow: then it is a little low for a moment.
        let last = (now.as_millis() - TOLD_WITHIN.as_millis() as i64).div_euclid(set) - 1;
        let Some(first) = pulses.iter().map(|pulse| pulse.at.as_millis().div_euclid(set)).min() else {
            return Self::default();
        };
        let length = usize::try_from(last - first + 1).unwrap_or(0);
        let mut seconds = vec![[0_u64; SECONDS]; length];
        let mut late = vec![None::<f64>; length];
        for pulse in pulses {
            let nth = usize::try_from(pulse.at.as_millis().div_euclid(set) - first).unwrap_or(usize::MAX);
            let Some(sums) = seconds.get_mut(nth) else { continue };
            sums.iter_mut().zip(pulse.starts).for_each(|(sum, starts)| *sum += starts);
            let worst = late[nth].into_iter().chain(pulse.late_ms.map(|late| late.p99)).reduce(f64::max);
            late[nth] = worst;
        }
        let sets = (0..)
            .zip(seconds.iter().zip(&late))
            .map(|(nth, (seconds, late))| (Time::from_millis((first + nth) * set), seconds.iter().sum::<u64>(), *late));
        let sets: Vec<_> = sets.collect();
        let each = (0..).zip(seconds.iter().zip(&late)).flat_map(|(nth, (starts, late))| {
            let begin = (first + nth) * set;
            (0..).zip(starts).map(move |(second, starts)| (Time::from_millis(begin + second * 1_000), *starts, *late))
        });
        // What comes before the first start is of the time before the first worker.
        let each = each.skip_while(|(_, starts, _)| *starts == 0);
        let each = if length < SINGLE { each.collect() } else { Vec::new() };
        // The newest and the oldest may not be whole: a worker has begun or ended within them.
        let whole = seconds.get(1..seconds.len().saturating_sub(1)).unwrap_or_default();
        let (count, sum) = (whole.len() * SECONDS, whole.iter().flatten().sum::<u64>());
        let busiest = whole.iter().flatten().max().copied().unwrap_or(0);
        let mean = sum as f64 / count.max(1) as f64;
        let recent = sets.iter().rev().take(2);
        let per_second =
            recent.clone().map(|(_, starts, _)| *starts).sum::<u64>() as f64 / (recent.len() * SECONDS).max(1) as f64;
        Self { sets, seconds: each, peak_to_mean: (mean >= 1.0).then(|| busiest as f64 / mean), per_second }
    }
}

/// The name of this machine, as far as it says.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: i64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn subjects_read_as_they_are_written() {
        for subject in
            [Subject::Queue("sync-ios".into()), Subject::Worker("17-ab:c".into()), Subject::Tenant("a:b".into())]
        {
            assert_eq!(Subject::read(&subject.to_string()), Some(subject));
        }
        assert_eq!(Subject::read("throttle:x"), None);
        assert_eq!(Subject::read("queue"), None);
    }

    #[test]
    fn orders_hold_until_they_are_taken_back() {
        let mut orders = FleetOrders::default();
        orders.add(FleetOrder::Concurrency(Some(0)), "ann", at(1));
        orders.add(FleetOrder::Close { why: "they are down".into() }, "bob", at(2));
        assert_eq!(orders.concurrency.as_ref().map(|said| (said.places, &*said.by)), Some((1, "ann")));
        let again = FleetOrders::read(&orders.text(), "queue:work");
        assert_eq!(again, orders);
        assert_eq!(
            again.closed.as_ref().map(|said| (&*said.why, &*said.by, said.at)),
            Some(("they are down", "bob", at(2)))
        );
        orders.add(FleetOrder::Open, "ann", at(3));
        assert!(!orders.is_empty());
        orders.add(FleetOrder::Concurrency(None), "ann", at(4));
        assert!(orders.is_empty() && FleetOrders::read("nonsense", "queue:work").is_empty());
    }

    #[test]
    fn a_table_of_what_orders_make_of_a_queue() {
        let none = FleetOrders::default();
        let places = |places| FleetOrders {
            concurrency: Some(OrderedConcurrency { places, by: "ann".into(), at: at(0) }),
            ..FleetOrders::default()
        };
        let closed = FleetOrders {
            closed: Some(Closed { why: "x".into(), by: "ann".into(), at: at(0) }),
            ..FleetOrders::default()
        };
        /// What is configured, what was ordered of queue and worker, and what comes of it.
        type Row<'a> = ((usize, u16, Option<u16>), &'a FleetOrders, &'a FleetOrders, Flow);
        let table: [Row<'_>; 7] = [
            ((8, 16, None), &none, &none, Flow { open: true, places: 8, prefetch: 16 }),
            ((8, 16, Some(3)), &none, &none, Flow { open: true, places: 8, prefetch: 3 }),
            ((8, 12, None), &places(2), &none, Flow { open: true, places: 2, prefetch: 3 }),
            ((8, 12, None), &places(100), &none, Flow { open: true, places: 100, prefetch: 150 }),
            ((1, 1, None), &places(70_000), &none, Flow { open: true, places: 70_000, prefetch: u16::MAX }),
            ((8, 16, None), &closed, &none, Flow { open: false, places: 8, prefetch: 16 }),
            ((8, 16, None), &none, &closed, Flow { open: false, places: 8, prefetch: 16 }),
        ];
        for (n, ((of, prefetch, ahead), queue, worker, flow)) in table.into_iter().enumerate() {
            assert_eq!(Flow::of(of, prefetch, ahead, queue, worker), flow, "{n}");
        }
    }

    #[test]
    fn starts_are_counted_in_the_second_that_is_over() {
        let mut counter = Counter::default();
        assert_eq!(counter.look(5, at(20_001)), None, "what was before it began does not count");
        assert_eq!(counter.look(7, at(21_003)), None);
        assert_eq!(counter.look(7, at(22_000)), None);
        assert_eq!(counter.look(17, at(29_990)), None, "a late look counts for where it is");
        assert!((counter.rate(at(29_990)) - 1.2).abs() < 1e-9);
        assert_eq!(counter.look(18, at(30_002)), None, "this second was the last of its set");
        let (begun, starts) = counter.look(20, at(31_001)).unwrap();
        assert_eq!((begun, starts), (at(20_000), [2, 0, 0, 0, 0, 0, 0, 0, 0, 11]));
        assert!((counter.rate(at(31_001)) - 2.0).abs() < 1e-9);
        // A clock that is set begins another set, and nothing is lost.
        assert_eq!(counter.look(21, at(900_000)), Some((at(30_000), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0])));
        let mut counter = Counter::starting(at(17_300));
        assert_eq!(counter.look(4, at(18_001)), None, "those of its first second count");
        assert_eq!(counter.look(4, at(21_000)), Some((at(10_000), [0, 0, 0, 0, 0, 0, 0, 4, 0, 0])));
    }

    #[test]
    fn the_rhythm_of_all_workers_is_the_sum_of_theirs() {
        let pulse = |at: i64, starts: [u64; SECONDS], p99: f64| ThroughputSample {
            at: Time::from_millis(at),
            starts,
            late_ms: Some(Lateness { p50: 1.0, p99, max: 9.0 }),
        };
        assert_eq!(Rhythm::of(&[], at(0)), Rhythm::default());
        let even = [2; SECONDS];
        let mut uneven = even;
        uneven[3] = 7;
        let pulses = [
            pulse(10_000, even, 3.0),
            pulse(40_000, even, 3.0),
            pulse(20_000, uneven, 4.0),
            pulse(20_000, even, 8.0),
            pulse(50_000, [100; SECONDS], 1.0),
        ];
        let rhythm = Rhythm::of(&pulses, at(52_500));
        assert_eq!(Rhythm::of(&pulses, at(51_500)).sets.len(), 3, "they may not have been told of yet");
        assert_eq!(rhythm.seconds.len(), 40);
        assert_eq!(rhythm.seconds[13], (at(23_000), 9, Some(8.0)));
        let expected = [(10_000, 20, Some(3.0)), (20_000, 45, Some(8.0)), (30_000, 0, None), (40_000, 20, Some(3.0))];
        assert_eq!(rhythm.sets, expected.map(|(begun, starts, late)| (at(begun), starts, late)));
        assert!((rhythm.per_second - 1.0).abs() < 1e-9, "{rhythm:?}");
        // Of the two sets between the first and the last, 45 starts in 20 seconds, and 9 in the busiest.
        assert!((rhythm.peak_to_mean.unwrap() - 4.0).abs() < 1e-9, "{rhythm:?}");
        let rare = Rhythm::of(&[pulse(10_000, [0; SECONDS], 0.0), pulse(20_000, [0; SECONDS], 0.0)], at(90_000));
        assert_eq!(rare.peak_to_mean, None);
        let mut begins = [0; SECONDS];
        begins[7] = 4;
        let begun = Rhythm::of(&[pulse(10_000, begins, 3.0)], at(22_000));
        let expected = [(17_000, 4, Some(3.0)), (18_000, 0, Some(3.0)), (19_000, 0, Some(3.0))];
        assert_eq!(begun.seconds, expected.map(|(begun, starts, late)| (at(begun), starts, late)));
        let long: Vec<ThroughputSample> = (1..20).map(|n| pulse(n * 10_000, even, 1.0)).collect();
        assert_eq!(Rhythm::of(&long, at(300_000)).seconds, []);
    }
}
