//! A server's wall clock in virtual time, and what a ledger on that server takes for the time.
//!
//! With it, simulations use [`Followed`] when a clock is set.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Micros, Time, micros};
use crate::clock::followed::{Followed, Seen};
use crate::clock::machine::instant;
use crate::wall_clock::WallClock;

/// The clock, and who follows it.
#[derive(Debug)]
pub struct Server {
    base: Time,
    start: Instant,
    set: Mutex<Set>,
    followed: Followed,
}

/// How far the clock has been set in all, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Set {
    really: Micros,
    /// As far as the ledger remembers, and how often that was corrected.
    remembered: (Micros, i64),
}

impl Server {
    /// It shows `base` now, and is right.
    pub(super) fn starting_at(base: Time) -> Self {
        let now = instant();
        let seen = Seen { server: base.as_millis() * 1_000, set: 0, version: 0, asked: now, answered: now };
        Self { base, start: now, set: Mutex::default(), followed: Followed::new(seen, WallClock::default()) }
    }

    /// Sets it forward, or with a negative number back.
    pub(super) fn set_forward(&self, millis: i64) {
        self.lock().really += millis * 1_000;
    }

    /// The ledger's time now, by the readings so far.
    pub(super) fn now(&self) -> Time {
        self.followed.now()
    }

    /// Reads the server's clock. Workers learn by a reading that it was set.
    pub fn read(&self) {
        let mut set = self.lock();
        let now = instant();
        let shows = self.base.as_millis() * 1_000 + micros(now.saturating_duration_since(self.start));
        let (remembered, version) = set.remembered;
        let seen = Seen { server: shows + set.really, set: remembered, version, asked: now, answered: now };
        let reading = self.followed.read(seen);
        if let Some(correction) = reading.correction {
            set.remembered = (correction, version + 1);
        }
    }

    /// How the wall clock stands to it.
    pub(super) fn wall_clock(&self) -> Arc<WallClock> {
        self.followed.wall.wall_clock()
    }

    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_goes_on_while_the_clock_is_set_there_and_back() {
        let begin = Time::from_millis(1_800_000_000_000);
        let (server, mut off) = (Server::starting_at(begin), 0);
        for (n, by) in [0, 2_000, -20_000, 3_600_000, -3_600_000, 90_000].into_iter().enumerate() {
            let before = (server.now(), server.wall_clock());
            server.set_forward(by);
            off += by;
            tokio::time::advance(Duration::from_secs(7)).await;
            // By the rates of clocks.
            let is_late = |by: i64| (0..=50).contains(&by);
            let late = (before.0 + Duration::from_secs(7)).as_millis() - server.now().as_millis();
            assert!(is_late(late), "{by}: it goes on by what was read before: {late}");
            assert_eq!(server.wall_clock(), before.1);
            let passed = Duration::from_secs(7 * (n as u64 + 1));
            server.read();
            let late = (begin + passed).as_millis() - server.now().as_millis();
            assert!(is_late(late), "{by}: {late}");
            assert!((server.wall_clock().ahead() - off).abs() <= 50, "{by}: {:?}", server.wall_clock());
        }
    }
}
