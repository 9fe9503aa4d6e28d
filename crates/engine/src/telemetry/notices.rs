//! A log that one can read: each cause is a line when it begins, a line now and then with how many it concerns, and a
//! line when it is over. Counters and the ledger say the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// A cause that has not occurred for this long is over.
const QUIET: Duration = Duration::from_secs(15);
/// The first pause between two lines about a cause; it doubles.
const FIRST: Duration = Duration::from_secs(10);
/// The longest.
const MAX_INTERVAL: Duration = Duration::from_secs(300);
/// At most this many causes are distinguished; the others count as one.
const MAX_CAUSES: usize = 200;
/// Their name.
const OTHERS: &str = "other causes";

/// What goes wrong again and again.
#[derive(Debug, Default)]
pub struct Notices {
    causes: Mutex<BTreeMap<String, Lasting>>,
}

#[derive(Clone, Copy, Debug)]
struct Lasting {
    since: Instant,
    last: Instant,
    /// How many it concerned when it began, and in all.
    first: u64,
    count: u64,
    /// When it was last told of, how many it had concerned by then, and how long to wait before the next line.
    told: (Instant, u64),
    pause: Duration,
}

/// A line about a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// It goes on.
    Lasts {
        /// Which.
        cause: String,
        /// How many it has concerned since the last line, and in all.
        times: (u64, u64),
        /// How long it has lasted.
        lasted: Duration,
    },
    /// It is over.
    Over {
        /// Which.
        cause: String,
        /// How many it has concerned.
        times: u64,
        /// How long it had lasted.
        lasted: Duration,
    },
}

impl Notices {
    /// Whether a cause begins with this, so that it deserves a line of its own, with all that is known of it.
    pub fn begins(&self, cause: &str) -> bool {
        self.begins_with(cause, 1)
    }

    /// The same for a cause that occurs several times at once.
    pub fn begins_with(&self, cause: &str, times: usize) -> bool {
        self.note(cause, u64::try_from(times).unwrap_or(u64::MAX), Instant::now())
    }

    /// Logs what there is to say of causes that go on, and of those that are over.
    pub fn tell(&self) {
        for line in self.look(Instant::now()) {
            match line {
                Line::Lasts { cause, times: (more, times), lasted } => {
                    tracing::warn!(more, times, lasting = ?rounded(lasted), "goes on: {cause}");
                }
                Line::Over { cause, times, lasted } => {
                    tracing::info!(times, lasted = ?rounded(lasted), "is over: {cause}");
                }
            }
        }
    }

    fn note(&self, cause: &str, times: u64, now: Instant) -> bool {
        let mut causes = self.lock();
        let cause = if causes.len() >= MAX_CAUSES && !causes.contains_key(cause) { OTHERS } else { cause };
        if let Some(lasting) = causes.get_mut(cause) {
            (lasting.count, lasting.last) = (lasting.count.saturating_add(times), now);
            return false;
        }
        let told = (now, times);
        causes.insert(cause.into(), Lasting { since: now, last: now, first: times, count: times, told, pause: FIRST });
        true
    }

    /// The lines that are due (a pure function of what was noted, and the time).
    fn look(&self, now: Instant) -> Vec<Line> {
        let (mut lines, mut causes) = (Vec::new(), self.lock());
        causes.retain(|cause, lasting| {
            let over = now.saturating_duration_since(lasting.last) >= QUIET;
            let lasted = lasting.last - lasting.since;
            // What was told of whole needs no end.
            if over && lasting.count > lasting.first {
                lines.push(Line::Over { cause: cause.clone(), times: lasting.count, lasted });
            } else if !over && lasting.count > lasting.told.1 && now - lasting.told.0 >= lasting.pause {
                let times = (lasting.count - lasting.told.1, lasting.count);
                lines.push(Line::Lasts { cause: cause.clone(), times, lasted: now - lasting.since });
                (lasting.told, lasting.pause) = ((now, lasting.count), (lasting.pause * 2).min(MAX_INTERVAL));
            }
            !over
        });
        lines
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Lasting>> {
        self.causes.lock()
    }
}

fn rounded(length: Duration) -> Duration {
    Duration::from_secs(length.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_a_cause_is_a_handful_of_lines() {
        let (notices, start) = (Notices::default(), Instant::now());
        let secs = |millis: u64| start + Duration::from_millis(millis);
        let (mut begun, mut lines) = (0, Vec::new());
        for millis in (0..3_600_000).step_by(100) {
            begun += u64::from(notices.note("the ledger does not answer", 1, secs(millis)));
            if millis % 1_000 == 0 {
                lines.extend(notices.look(secs(millis)));
            }
        }
        assert_eq!(begun, 1);
        let when: Vec<u64> = lines
            .iter()
            .map(|line| match line {
                Line::Lasts { lasted, .. } => lasted.as_secs(),
                Line::Over { .. } => panic!("it goes on"),
            })
            .collect();
        assert_eq!(when[..6], [10, 30, 70, 150, 310, 610]);
        assert!(when.len() < 20, "{when:?}");
        let Line::Lasts { times: (more, times), .. } = &lines[1] else { panic!() };
        assert_eq!((*more, *times), (200, 301));
        let cause = "the ledger does not answer".to_owned();
        let lasted = Duration::from_millis(3_599_900);
        assert_eq!(notices.look(secs(3_615_000)), [Line::Over { cause, times: 36_000, lasted }]);
        assert!(notices.note("the ledger does not answer", 1, secs(3_616_000)), "and may begin again");
    }

    #[test]
    fn what_happens_once_is_one_line_and_very_many_causes_are_not_very_many_lines() {
        let (notices, start) = (Notices::default(), Instant::now());
        let begun = (0..10_000).filter(|n| notices.note(&format!("cause {}", n % 1_000), 1, start)).count();
        assert_eq!(begun, MAX_CAUSES + 1);
        let once = Notices::default();
        assert!(once.note("once", 3, start));
        assert_eq!(once.look(start + QUIET), []);
        assert!(once.lock().is_empty());
    }
}
