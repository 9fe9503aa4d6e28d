//! The steady time of a ledger on this machine.
//!
//! The kernel counts the time since the machine was started, also while it is suspended, and that clock
//! cannot be set. All processes of the machine read the same. So a ledger remembers what its time was when the machine
//! started, and all who open it agree on the time to the millisecond, whatever the wall clock shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{Time, Wall, wall_now};
use crate::wall_clock::WallClock;

/// A wall clock that differs by no more from what is known of it has not been set.
const MAX_SKEW: i64 = 100;

/// A machine that was suspended for no longer was only slow.
const NOTICED: Duration = Duration::from_millis(50);

/// Now, by a clock that also counts the time for which this machine was suspended. Timers do not count that time.
///
/// A worker that compares how much time has passed here and on a server needs this clock: after an hour's sleep the
/// other one would tell that the server's clock had been set ahead by an hour.
pub fn instant() -> Instant {
    Instant::now() + suspended()
}

/// For how long this machine was suspended since it was started.
fn suspended() -> Duration {
    // In microseconds.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let known = Duration::from_micros(KNOWN.load(Ordering::Relaxed));
    let Some((since_start, running)) = since_start_and_running() else { return known };
    let is = suspended_for(known, since_start, running);
    if is != known {
        KNOWN.fetch_max(is.as_micros() as u64, Ordering::Relaxed);
    }
    is
}

/// For how long a machine was suspended of which so much was `known`, and that has run for so long by the kernel's two
/// clocks (pure). The clock that stands still meanwhile is read last: this process may have stood still in between.
fn suspended_for(known: Duration, since_start: Duration, running: Duration) -> Duration {
    let least = since_start.saturating_sub(running);
    if least > known + NOTICED { least } else { known }
}

#[cfg(target_os = "linux")]
fn since_start_and_running() -> Option<(Duration, Duration)> {
    let since_start = kernel()?;
    let running = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).ok()?;
    Some((since_start, Duration::from(running)))
}

#[cfg(not(target_os = "linux"))]
fn since_start_and_running() -> Option<(Duration, Duration)> {
    None
}

/// One run of this machine from its start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Names it, unlike any other.
    pub id: String,
    /// Where the kernel does not tell, a process has a time of its own.
    began: Option<Instant>,
}

impl Boot {
    /// The one that goes on. Where the kernel does not tell it, this process stands for it, by the name `otherwise`.
    pub fn current(otherwise: &str) -> Self {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        match id.trim() {
            id if !id.is_empty() && kernel().is_some() => Self { id: id.to_owned(), began: None },
            _ => Self { id: otherwise.to_owned(), began: Some(Instant::now()) },
        }
    }

    /// How long it has lasted.
    fn elapsed(&self) -> Duration {
        match self.began {
            Some(began) => began.elapsed(),
            None => kernel().unwrap_or_default(),
        }
    }
}

/// The kernel's clock that cannot be set and that goes on while the machine is suspended. A container with a time
/// namespace, which few have, may show another time.
#[cfg(target_os = "linux")]
fn kernel() -> Option<Duration> {
    let told = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    Some(Duration::from(told))
}

#[cfg(not(target_os = "linux"))]
fn kernel() -> Option<Duration> {
    None
}

/// Tells a ledger's time by this machine.
#[derive(Debug)]
pub struct Machine {
    boot: Boot,
    /// The ledger's time when the machine was started.
    base: Time,
    pub(super) wall: Wall,
}

impl Machine {
    /// By a ledger that remembers `base` for this boot of the machine.
    pub fn known(boot: Boot, base: Time, wall_clock: WallClock) -> Self {
        Self { boot, base, wall: Wall::new(wall_clock) }
    }

    /// Of a ledger that is opened for the first time since the machine has started, or ever: the wall clock tells how
    /// long that took, and is believed as far as time would not go back. `seen` is the last time that the ledger has
    /// told.
    pub fn started(boot: Boot, seen: Time, wall_clock: WallClock) -> Self {
        let now = wall_clock.steady(wall_now()).max(seen);
        let base = now - boot.elapsed();
        Self::known(boot, base, wall_clock)
    }

    /// What the ledger is to remember for this boot.
    pub fn base(&self) -> Time {
        self.base
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.base + self.boot.elapsed()
    }

    /// Whether the wall clock has been set: what is known of it then, for the ledger to remember.
    pub fn was_set(&self) -> Option<WallClock> {
        let wall_clock = self.wall.wall_clock();
        let (now, shown) = (self.now(), wall_now());
        let ahead = shown.as_millis() - now.as_millis();
        ((ahead - wall_clock.ahead()).abs() > MAX_SKEW).then(|| wall_clock.set(now, ahead))
    }

    /// What the ledger remembers of the wall clock.
    pub fn learn(&self, wall_clock: WallClock) {
        self.wall.learn(wall_clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_suspended_machines() {
        // Known before, since the machine was started, of that running; all in milliseconds.
        let table = [
            (0, 10_000, 10_000, 0),
            (0, 3_610_000, 10_000, 3_600_000),
            (3_600_000, 3_610_500, 10_500, 3_600_000),
            // It stood still once more.
            (3_600_000, 7_210_500, 10_500, 7_200_000),
            // Read one after the other, with this process standing still in between.
            (3_600_000, 3_610_500, 13_500, 3_600_000),
            (0, 10_040, 10_000, 0),
        ];
        for (known, since_start, running, expected) in table {
            let [known, since_start, running] = [known, since_start, running].map(Duration::from_millis);
            let suspended = suspended_for(known, since_start, running);
            assert_eq!(suspended, Duration::from_millis(expected), "{known:?} {since_start:?} {running:?}");
        }
    }

    #[test]
    fn it_never_goes_back() {
        let mut last = instant();
        for _ in 0..1_000 {
            let now = instant();
            assert!(now >= last);
            last = now;
        }
    }
}
