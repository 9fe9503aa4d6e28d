//! The only reader of time and randomness.
//!
//! Everything else is handed a [`Clock`] or an [`Entropy`], so that a test or a simulation decides
//! what time it is and which dice fall. `clippy.toml` forbids the ordinary sources elsewhere.

pub mod followed;
mod machine;
mod server;

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::wall_clock::WallClock;
pub use followed::{Followed, MAX_SKEW, Reading, Seen};
pub use machine::{Boot, Machine, instant};
pub use server::Server;

/// Microseconds since 1970, by a ledger's time.
type Micros = i64;

/// A point in time: whole milliseconds since the Unix epoch, UTC. That is the resolution of the
/// broker's timers, of the ledger and of the message format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(i64);

impl Time {
    /// The point `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long from `earlier` to `self`; zero when `earlier` is not earlier.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, rhs: Duration) -> Time {
        Time(self.0.saturating_add(i64::try_from(rhs.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, rhs: Duration) -> Time {
        Time(self.0.saturating_sub(i64::try_from(rhs.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// RFC 3339 with milliseconds, as people read it in logs and errors.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u64::try_from(self.0) {
            Ok(ms) if ms < 253_402_300_800_000 => {
                let at = UNIX_EPOCH + Duration::from_millis(ms);
                write!(f, "{}", humantime::format_rfc3339_millis(at))
            }
            _ => write!(f, "{}ms", self.0),
        }
    }
}

/// Tells the time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's wall clock, which anybody may set.
    System,
    /// The steady time of a ledger on this machine.
    Machine(Arc<Machine>),
    /// The steady time of a ledger on a server, as that told it last.
    Followed(Arc<Followed>),
    /// `base` plus what tokio's clock has advanced since `start`. With tokio's time paused, time
    /// jumps to the next timer whenever nothing else can run.
    Virtual {
        /// What the clock showed at `start`.
        base: Time,
        /// The tokio instant at which it showed that.
        start: tokio::time::Instant,
        /// How the wall clock stands to it; shared by its clones.
        wall: Arc<Wall>,
    },
    /// The steady time of a ledger on a server whose clock goes by tokio's, and can be set.
    Server(Arc<Server>),
}

/// What a process knows of the wall clock.
#[derive(Debug, Default)]
pub struct Wall(Mutex<Arc<WallClock>>);

impl Wall {
    /// With this known of it.
    pub fn new(wall_clock: WallClock) -> Self {
        Self(Mutex::new(Arc::new(wall_clock)))
    }

    /// What is known.
    pub fn wall_clock(&self) -> Arc<WallClock> {
        self.0.lock().clone()
    }

    /// More is known.
    pub fn learn(&self, wall_clock: WallClock) {
        *self.0.lock() = Arc::new(wall_clock);
    }
}

impl Clock {
    /// A clock that shows `base` now and then follows tokio's.
    pub fn starting_at(base: Time) -> Self {
        Self::Virtual { base, start: tokio::time::Instant::now(), wall: Arc::default() }
    }

    /// The same, by a server's wall clock that shows `base` now.
    pub fn of_server(base: Time) -> Self {
        Self::Server(Arc::new(Server::starting_at(base)))
    }

    /// Sets the wall clock beside a virtual clock and its clones, or that of its server, forward, or with a negative
    /// number back, as an operator may do with the machine's. Does nothing to the machine's.
    pub fn set_forward(&self, millis: i64) {
        match self {
            Clock::Virtual { wall, .. } => {
                let before = wall.wall_clock();
                wall.learn(before.set(self.now(), before.ahead().saturating_add(millis)));
            }
            Clock::Server(server) => server.set_forward(millis),
            Clock::System | Clock::Machine(_) | Clock::Followed(_) => {}
        }
    }

    /// Whether it goes by tokio's, which may be paused.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Clock::Virtual { .. } | Clock::Server(_))
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match self {
            Clock::System => wall_now(),
            Clock::Machine(machine) => machine.now(),
            Clock::Followed(followed) => followed.now(),
            Clock::Virtual { base, start, .. } => *base + start.elapsed(),
            Clock::Server(server) => server.now(),
        }
    }

    /// What the wall clock shows now, as far as is known.
    pub fn wall(&self) -> Time {
        self.wall_clock().wall(self.now())
    }

    /// How the wall clock stands to it. The wall clock itself stands to itself as ever.
    pub fn wall_clock(&self) -> Arc<WallClock> {
        match self {
            Clock::System => Arc::default(),
            Clock::Machine(machine) => machine.wall.wall_clock(),
            Clock::Followed(followed) => followed.wall.wall_clock(),
            Clock::Virtual { wall, .. } => wall.wall_clock(),
            Clock::Server(server) => server.wall_clock(),
        }
    }
}

fn micros(length: Duration) -> Micros {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX / 4)
}

/// What the machine's wall clock shows.
#[allow(clippy::disallowed_methods)]
fn wall_now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The time since it was made, by tokio's clock: that of all rate limiters of [`governor`], so that simulation steers
/// them. governor's own `until_ready` sleeps in real time, so only what answers at once is used (`clippy.toml`).
#[derive(Clone, Debug)]
pub struct Elapsed(tokio::time::Instant);

impl Default for Elapsed {
    fn default() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl governor::clock::Clock for Elapsed {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A source of randomness; clones share one stream. Seeded, it repeats itself exactly.
#[derive(Clone, Debug)]
pub struct Entropy(Arc<Mutex<StdRng>>);

impl Entropy {
    /// A stream that the same `seed` repeats.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    /// A stream seeded by the operating system.
    #[allow(clippy::disallowed_methods)]
    pub fn from_os() -> Self {
        Self::seeded(rand::random())
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&self) -> f64 {
        self.draw(|rng| rng.random())
    }

    /// Uniform in `0..n`; zero when `n` is zero.
    pub fn below(&self, n: usize) -> usize {
        if n == 0 { 0 } else { self.draw(|rng| rng.random_range(0..n)) }
    }

    /// Uniform in `low..=high`, in whole milliseconds.
    pub fn between(&self, low: Duration, high: Duration) -> Duration {
        let (low, high) = (low.as_millis() as u64, high.as_millis() as u64);
        if high <= low {
            return Duration::from_millis(low);
        }
        Duration::from_millis(self.draw(|rng| rng.random_range(low..=high)))
    }

    /// A fresh name of 16 hexadecimal digits (64 random bits).
    pub fn token(&self) -> String {
        format!("{:016x}", self.draw(|rng| rng.random::<u64>()))
    }

    /// 64 random bits, not all of them zero.
    pub fn id(&self) -> u64 {
        self.draw(|rng| rng.random::<u64>()).max(1)
    }

    fn draw<T>(&self, f: impl FnOnce(&mut StdRng) -> T) -> T {
        f(&mut self.0.lock())
    }
}

/// 256 bits that cannot be guessed, from a generator that the operating system seeds. Unlike an [`Entropy`], which is
/// seeded with less, it never repeats itself: for secrets.
#[allow(clippy::disallowed_methods)]
pub fn secret() -> [u8; 32] {
    rand::random()
}

/// A duration as people write it in configurations: `1h 30m`, `250ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|error| {
        format!("`{text}` is not a duration ({error}); write for example \"30s\", \"5m\", \"1h 30m\" or \"250ms\"")
    })
}

/// The canonical short form that names rungs: whole milliseconds below a second or when not whole
/// seconds, else seconds below two minutes, minutes below two hours, hours below two days, days;
/// always the largest of these units that divides the duration. `60s`, `90s`, `2m`, `60m`, `24h`.
pub fn short_duration(d: Duration) -> String {
    let ms = d.as_millis();
    for (unit, name, from) in [
        (86_400_000, "d", 2 * 86_400_000),
        (3_600_000, "h", 2 * 3_600_000),
        (60_000, "m", 120_000),
        (1_000, "s", 1_000),
    ] {
        if ms >= from && ms.is_multiple_of(unit) {
            return format!("{}{name}", ms / unit);
        }
    }
    format!("{ms}ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_short_name_each() {
        let table = [
            (0, "0ms"),
            (1, "1ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_500, "1500ms"),
            (30_000, "30s"),
            (60_000, "60s"),
            (90_000, "90s"),
            (120_000, "2m"),
            (121_000, "121s"),
            (3_600_000, "60m"),
            (7_200_000, "2h"),
            (86_400_000, "24h"),
            (172_800_000, "2d"),
            (2_764_800_000, "32d"),
        ];
        for (ms, name) in table {
            assert_eq!(short_duration(Duration::from_millis(ms)), name);
            assert_eq!(parse_duration(name).unwrap(), Duration::from_millis(ms), "{name} reads back");
        }
    }

    #[test]
    fn time_saturates_and_never_goes_negative() {
        let t = Time::from_millis(1_000);
        assert_eq!(t.since(Time::from_millis(400)), Duration::from_millis(600));
        assert_eq!(t.since(Time::from_millis(2_000)), Duration::ZERO);
        assert_eq!((Time::from_millis(i64::MAX) + Duration::from_secs(1)).as_millis(), i64::MAX);
        assert_eq!(Time::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_seed_repeats_itself() {
        let (a, b) = (Entropy::seeded(7), Entropy::seeded(7));
        assert_eq!((a.token(), a.below(10), a.unit()), (b.token(), b.below(10), b.unit()));
        assert_eq!(a.below(0), 0);
        assert_eq!(a.between(Duration::from_secs(2), Duration::from_secs(1)), Duration::from_secs(2));
    }
}
