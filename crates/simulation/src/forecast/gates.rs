//! How full the windows of throttles were, judged by when handlers started.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_config::Config;
use roundelay_model::pacing::ThrottleScope;
use serde::Serialize;

/// What was started under a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThrottleReport {
    /// How many starts.
    pub starts: u64,
    /// By what it allows in all that time, in percent. At most about 97: see `docs/configuration.md`.
    pub use_percent: f64,
    /// The most starts in any of its (first) windows, wherever that begins.
    pub most: usize,
    /// How many it allows in one.
    pub allow: u32,
}

/// The throttles that hold for all workers and have no keys.
pub(super) struct Gates {
    /// By the queue's name, the throttle's.
    of_queue: BTreeMap<String, String>,
    gates: BTreeMap<String, Mutex<Gate>>,
}

struct Gate {
    allow: u32,
    per: Duration,
    /// How many starts it allows per second, in the long run.
    rate: f64,
    starts: u64,
    most: usize,
    /// The starts of the window that ends now.
    window: VecDeque<Duration>,
}

impl Gates {
    pub fn new(config: &Config) -> Self {
        let shared = config.throttles.iter().filter(|(_, t)| t.key.is_none() && t.scope == ThrottleScope::Fleet);
        let gate = |(name, throttle): (&String, &roundelay_model::pacing::ThrottleSettings)| {
            let window = throttle.limits.window;
            let (rate, per) = (throttle.limits.rate(), window.per);
            (
                name.clone(),
                Mutex::new(Gate { allow: window.allow, per, rate, starts: 0, most: 0, window: VecDeque::new() }),
            )
        };
        let of_queue =
            config.queues.iter().filter_map(|(name, queue)| Some((name.clone(), queue.throttle.clone()?))).collect();
        Self { of_queue, gates: shared.map(gate).collect() }
    }

    /// A handler of a job from this queue starts at `at`, counted from the beginning.
    pub fn start(&self, queue: &str, at: Duration) {
        let Some(gate) = self.of_queue.get(queue).and_then(|throttle| self.gates.get(throttle)) else { return };
        let mut gate = gate.lock();
        let per = gate.per;
        while gate.window.front().is_some_and(|first| at.saturating_sub(*first) >= per) {
            gate.window.pop_front();
        }
        gate.window.push_back(at);
        gate.starts += 1;
        gate.most = gate.most.max(gate.window.len());
    }

    /// The report of each throttle after `length`.
    pub fn report(&self, length: Duration) -> BTreeMap<String, ThrottleReport> {
        let report = |(name, gate): (&String, &Mutex<Gate>)| {
            let gate = gate.lock();
            let share = gate.starts as f64 / (gate.rate * length.as_secs_f64()).max(f64::MIN_POSITIVE);
            let use_percent = (share * 1_000.0).round() / 10.0;
            (name.clone(), ThrottleReport { starts: gate.starts, use_percent, most: gate.most, allow: gate.allow })
        };
        self.gates.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_throttles_are_counted_over_all_queues_that_share_one() {
        let config = "[throttles.t]\nallow = 3\nper = \"10s\"\n[throttles.each]\nallow = 1\nper = \"1s\"\nkey = \"key\"\n\
                      [queues.a]\nthrottle = \"t\"\n[queues.b]\nthrottle = \"t\"\n[queues.c]\nthrottle = \"each\"\n[queues.d]\n";
        let gates = Gates::new(&Config::parse(config, "the test's configuration", []).unwrap());
        for (queue, at) in [("a", 0), ("b", 9), ("c", 9), ("d", 9), ("a", 10), ("b", 18), ("a", 40)] {
            gates.start(queue, Duration::from_secs(at));
        }
        let report = gates.report(Duration::from_secs(100));
        let seen = ThrottleReport { starts: 5, use_percent: 16.7, most: 3, allow: 3 };
        assert_eq!(report.into_iter().collect::<Vec<_>>(), [("t".to_owned(), seen)]);
    }
}
