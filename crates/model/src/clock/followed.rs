//! The steady time of a ledger on a server.
//!
//! A server tells what its wall clock shows, and that is set now and then: by hand, by NTP, or since another server
//! takes over. So the ledger remembers how far the server's clock has been set, and its time is what is left. The
//! workers notice it: each knows, by a clock that cannot be set, how long ago it read the server's clock. A worker
//! writes the correction beside the reading, and the others read both and believe it. If several notice at once, the
//! first decides. A reading without a correction is corrected here before anything is decided by it.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Micros, Time, Wall, micros};
use crate::clock::machine::instant;
use crate::wall_clock::WallClock;

/// A clock that is off by no more was not set: clocks are not all alike.
pub const MAX_SKEW: Micros = 100_000;
/// Clocks differ by one part of so many.
const DRIFT_DIVISOR: Micros = 1_000;
/// For how long the best reading counts at least by which the time is told; then a newer one does, so that clocks of
/// slightly different speed do not drift apart.
const FOLLOW: Duration = Duration::from_secs(10);
/// After so many looks, one a second, everybody who has known the clock longer has corrected what there was.
const SETTLED: u32 = 3;
/// Between two looks that count, at least.
const BETWEEN_LOOKS: Duration = Duration::from_millis(900);

/// A reading of a server's clock.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Microseconds since 1970, as the server's wall clock showed.
    pub server: i64,
    /// How far that has been set in all, in microseconds, as far as the ledger remembers.
    pub set: i64,
    /// How often that was corrected.
    pub version: i64,
    /// When it was asked for, by [`instant`].
    pub asked: Instant,
    /// When the answer was there, by the same.
    pub answered: Instant,
}

/// What a reading comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The ledger's time, in microseconds since 1970.
    pub micros: Micros,
    /// The server's clock has been set, which the ledger does not remember yet: so far in all.
    pub correction: Option<i64>,
}

impl Reading {
    /// The ledger's time.
    pub fn time(self) -> Time {
        Time::from_millis(self.micros.div_euclid(1_000))
    }
}

/// What the ledger's time was at an instant of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    at: Instant,
    shows: Micros,
}

impl Bound {
    /// The least that it can be at `at`, which may lie before.
    fn least(self, at: Instant) -> Micros {
        let passed = micros(at.saturating_duration_since(self.at));
        self.shows + passed - passed / DRIFT_DIVISOR - micros(self.at.saturating_duration_since(at))
    }

    /// The most.
    fn most(self, at: Instant) -> Micros {
        let passed = micros(at.saturating_duration_since(self.at));
        self.shows + passed + passed / DRIFT_DIVISOR - micros(self.at.saturating_duration_since(at))
    }
}

/// What is known of the ledger's time. A reading may wait for locks, and its answer be on its way, for seconds, so
/// that it tells two things: what the time does not fall short of since, and what it does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// By the last reading.
    least: Bound,
    /// By the reading that knows best what the time does not pass: both bounds.
    best: (Bound, Bound),
}

impl Known {
    fn learned(before: Option<Self>, seen: &Seen, shows: Micros) -> Self {
        let (least, most) = (Bound { at: seen.answered, shows }, Bound { at: seen.asked, shows });
        // What the time does not pass, an earlier reading may know better. Not so the other: small steps back add up.
        let better = before.filter(|before| before.best.1.most(seen.asked) < shows);
        Self { least, best: better.map_or((least, most), |before| before.best) }
    }
}

/// What the ledger's time is by a reading of a worker that knows this much, in microseconds, and whether that is
/// another time than the server and the ledger's memory tell (pure).
///
/// What has started must not seem to have started earlier than it did, or a window of a throttle would be passed. So
/// where it is not known how much time has passed, it is the least that surely has.
fn judge(seen: &Seen, known: &Known) -> (Micros, bool) {
    let shows = seen.server - seen.set;
    let least = known.least.least(seen.asked);
    if shows > known.best.1.most(seen.answered) + MAX_SKEW {
        // It may have been set little by little since the best reading, or back since that.
        (least.min(known.best.0.least(seen.asked)), true)
    } else if shows < least - MAX_SKEW {
        (least, true)
    } else {
        (shows, false)
    }
}

/// Follows a server's clock. Never goes back, and never jumps, whatever either machine's wall clock does.
#[derive(Debug)]
pub struct Followed {
    start: Instant,
    state: Mutex<Following>,
    pub(super) wall: Wall,
}

#[derive(Debug)]
struct Following {
    known: Known,
    /// How far the server's clock has been set in all, and how often that was corrected.
    set: i64,
    version: i64,
    /// Since when this process knows it, until that is long enough ago; and how often it has looked.
    since: (Option<Micros>, u32),
    /// The last look that counted.
    looked: Option<Instant>,
    /// The ledger's microseconds at `start`, by the best reading of this stretch of time, and of the one before.
    best: Micros,
    before: Micros,
    /// When this stretch began.
    stretch: Duration,
    /// The latest time that was told.
    told: Time,
}

impl Followed {
    /// Follows the server of which this is the first reading, and of which the ledger remembers this.
    pub fn new(seen: Seen, wall_clock: WallClock) -> Self {
        let shows = seen.server - seen.set;
        let state = Following {
            known: Known::learned(None, &seen, shows),
            set: seen.set,
            version: seen.version,
            since: (Some(shows), 0),
            looked: None,
            best: shows,
            before: shows,
            stretch: Duration::ZERO,
            told: Time::default(),
        };
        Self { start: seen.answered, state: Mutex::new(state), wall: Wall::new(wall_clock) }
    }

    /// Takes up a reading.
    pub fn read(&self, seen: Seen) -> Reading {
        let mut state = self.lock();
        // A reading from before a correction gets the same correction.
        let seen = if seen.version < state.version { Seen { set: state.set, ..seen } } else { seen };
        if seen.set != state.set {
            state.believe(&seen, seen.answered - self.start);
            self.wall_was_set(seen.server - seen.set, seen.set);
        }
        state.version = state.version.max(seen.version);
        let (micros, differs) = judge(&seen, &state.known);
        state.known = Known::learned(Some(state.known), &seen, micros);
        state.observe(micros, seen.answered - self.start);
        if !differs {
            return Reading { micros, correction: None };
        }
        let set = seen.server - micros;
        (state.set, state.version) = (set, state.version + 1);
        self.wall_was_set(micros, set);
        Reading { micros, correction: Some(set) }
    }

    fn wall_was_set(&self, micros: Micros, set: i64) {
        let before = self.wall.wall_clock();
        let ahead = set.div_euclid(1_000);
        if (before.ahead() - ahead).abs() * 1_000 > MAX_SKEW {
            self.wall.learn(before.set(Time::from_millis(micros.div_euclid(1_000)), ahead));
        }
    }

    /// The clock was read at `now`. What counts is one look a second, however often it is read: see
    /// [`Self::known_since`].
    pub fn looked(&self, now: Instant) {
        let mut state = self.lock();
        if state.looked.is_some_and(|last| now.saturating_duration_since(last) < BETWEEN_LOOKS) {
            return;
        }
        state.looked = Some(now);
        state.since.1 += 1;
        if state.since.1 >= SETTLED {
            state.since.0 = None;
        }
    }

    /// Since when this process can tell how much time has passed, by the ledger's time, if that is so short that those
    /// who have known it longer may not have told yet that the server's clock was set before.
    pub fn known_since(&self) -> Option<Micros> {
        self.lock().since.0
    }

    /// The ledger's time now, in microseconds. It is behind by what the fastest answer took, and not ahead: who
    /// waits until something is due here finds it due there.
    pub fn micros(&self) -> Micros {
        let elapsed = micros(instant().saturating_duration_since(self.start));
        let state = self.lock();
        state.best.max(state.before).saturating_add(elapsed)
    }

    /// The ledger's time now.
    pub fn now(&self) -> Time {
        let micros = self.micros();
        let mut state = self.lock();
        state.told = state.told.max(Time::from_millis(micros.div_euclid(1_000)));
        state.told
    }

    fn lock(&self) -> MutexGuard<'_, Following> {
        self.state.lock()
    }
}

impl Following {
    /// Others have corrected how far the server's clock has been set, and what was known before says nothing any more.
    fn believe(&mut self, seen: &Seen, elapsed: Duration) {
        let shows = seen.server - seen.set;
        self.known = Known::learned(None, seen, shows);
        self.best = shows - self::micros(elapsed);
        (self.before, self.stretch, self.set) = (self.best, elapsed, seen.set);
        self.since.0 = self.since.0.map(|_| shows);
    }

    fn observe(&mut self, micros: Micros, elapsed: Duration) {
        let at_start = micros.saturating_sub(self::micros(elapsed));
        if elapsed.saturating_sub(self.stretch) > FOLLOW {
            (self.before, self.best, self.stretch) = (self.best, at_start, elapsed);
        } else {
            self.best = self.best.max(at_start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Micros = 1_000_000;
    const SHOWN: i64 = 1_700_000_000 * S;

    /// Seconds after `start` at which it was asked for and answered, what the server shows beyond `SHOWN`, how far
    /// that is known to have been set since.
    fn seen(start: Instant, (asked, answered): (u64, u64), passed: Micros, set: Micros) -> Seen {
        let at = |secs| start + Duration::from_secs(secs);
        Seen { server: SHOWN + passed, set, version: i64::from(set != 0), asked: at(asked), answered: at(answered) }
    }

    /// One that goes on with a clock that has been read at the very beginning.
    fn followed(start: Instant) -> Followed {
        Followed::new(seen(start, (0, 0), 0, 0), WallClock::default())
    }

    #[test]
    fn a_table_of_readings_and_what_the_time_is_by_them() {
        let start = Instant::now();
        // The ledger's time beyond that of the first reading, and whether the ledger's memory is corrected.
        type Row = ((u64, u64), Micros, Micros, (Micros, bool));
        let table: [Row; 14] = [
            ((10, 10), 10 * S, 0, (10 * S, false)),
            ((10, 10), 10 * S + MAX_SKEW, 0, (10 * S + MAX_SKEW, false)),
            ((10, 10), 10 * S - MAX_SKEW, 0, (10 * S - MAX_SKEW, false)),
            // Set forward, set back.
            ((10, 10), 100 * S, 0, (10 * S, true)),
            ((10, 10), -10 * S, 0, (10 * S, true)),
            ((10, 10), 3_610 * S, 0, (10 * S, true)),
            ((10, 10), -86_390 * S, 0, (10 * S, true)),
            // Held up for five seconds somewhere: both are possible.
            ((10, 15), 10 * S, 0, (10 * S, false)),
            ((10, 15), 15 * S, 0, (15 * S, false)),
            // No more has passed than surely has.
            ((10, 15), 100 * S, 0, (10 * S, true)),
            // Others have told already, and are believed.
            ((10, 10), 100 * S, 90 * S, (10 * S, false)),
            ((10, 10), -80 * S, -90 * S, (10 * S, false)),
            ((10, 10), 100 * S, 91 * S, (9 * S, false)),
            ((10, 10), 100 * S, 89 * S, (11 * S, false)),
        ];
        for (n, (read, passed, set, (expected, differs))) in table.into_iter().enumerate() {
            let reading = followed(start).read(seen(start, read, passed, set));
            // By the rates of clocks.
            let off = reading.micros - SHOWN - expected;
            assert!(off.abs() <= 15_000, "row {n}: {off}");
            assert_eq!(reading.correction.is_some(), differs, "row {n}");
        }
    }

    #[test]
    fn time_goes_on_as_it_does_while_the_clock_is_set_there_and_back() {
        let start = Instant::now();
        let followed = followed(start);
        let (mut set, mut version, mut off) = (0, 0, 0);
        let steps = [(100, 3_600 * S), (200, -7_200 * S), (300, 86_400 * S), (400, -82_800 * S)];
        for second in 1..600_u64 {
            off += steps.iter().find(|step| step.0 == second).map_or(0, |step| step.1);
            let passed = Micros::try_from(second).unwrap() * S;
            let reading = followed.read(Seen { version, ..seen(start, (second, second), passed + off, set) });
            assert!((reading.micros - SHOWN - passed).abs() < 20_000, "{second}: {}", reading.micros - SHOWN - passed);
            assert_eq!(reading.correction.is_some(), steps.iter().any(|step| step.0 == second), "{second}");
            (set, version) = reading.correction.map_or((set, version), |set| (set, version + 1));
            let ahead = followed.wall.wall_clock().ahead() * 1_000;
            assert!((ahead - off).abs() < 20_000, "{second}: the wall clock is ahead by {off}, not {ahead}");
        }
        assert_eq!(followed.wall.wall_clock().stretches().len(), 1 + steps.len());
    }

    #[test]
    fn of_many_small_steps_none_is_forgotten() {
        for step in [60_000, 20_000, -20_000] {
            let start = Instant::now();
            let followed = followed(start);
            let (mut off, mut set, mut version) = (0, 0, 0);
            for second in 1..600_u64 {
                off += step;
                let passed = Micros::try_from(second).unwrap() * S;
                let reading = followed.read(Seen { version, ..seen(start, (second, second), passed + off, set) });
                (set, version) = reading.correction.map_or((set, version), |set| (set, version + 1));
                let ahead = reading.micros - SHOWN - passed;
                assert!(ahead <= 2 * MAX_SKEW && (step < 0 || ahead > -S), "{step}: {ahead}");
            }
        }
    }

    #[test]
    fn what_others_have_corrected_is_believed_and_what_was_read_before_that_is_corrected_likewise() {
        let start = Instant::now();
        let clock = followed(start);
        let corrected = clock.read(seen(start, (10, 10), 100 * S, 0)).correction.expect("it was set");
        assert!((corrected - 90 * S).abs() < 20_000, "{corrected}");
        let before = clock.read(seen(start, (11, 11), 101 * S, 0));
        assert!((before.micros - SHOWN - 11 * S).abs() < 20_000 && before.correction.is_none(), "{before:?}");
        // Another was first, and has lost half a second over it.
        let theirs = clock.read(seen(start, (12, 12), 102 * S, 90 * S + S / 2));
        assert_eq!(theirs, Reading { micros: SHOWN + 12 * S - S / 2, correction: None });
        // A worker that began between the setting and its correction has known nothing else.
        let new = Followed::new(seen(start, (0, 0), 90 * S, 0), WallClock::default());
        assert_eq!(new.known_since(), Some(SHOWN + 90 * S));
        assert_eq!(new.read(seen(start, (1, 1), 91 * S, 90 * S)).micros, SHOWN + S);
        assert_eq!(new.known_since(), Some(SHOWN + S));
    }

    #[test]
    fn what_an_earlier_reading_knows_better_counts() {
        let start = Instant::now();
        // A reading that is held up before the clock is read tells less.
        for by in [0, S, 90 * S, -S, -90 * S] {
            let clock = followed(start);
            clock.read(seen(start, (8, 20), 20 * S, 0));
            let reading = clock.read(seen(start, (30, 30), 30 * S + by, 0));
            assert_eq!(reading.correction.is_some(), by != 0, "{by}");
            assert!((reading.micros - SHOWN - 30 * S).abs() <= 50_000, "{by}: {}", reading.micros - SHOWN);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_takes_the_best_of_what_it_heard_and_never_goes_back() {
        let second = Duration::from_secs(1);
        let now = Instant::now;
        let prompt = |server| Seen { server, set: 0, version: 0, asked: now(), answered: now() };
        let clock = Followed::new(prompt(5_000_900), WallClock::default());
        assert_eq!(clock.now().as_millis(), 5_000);
        tokio::time::advance(second).await;
        assert_eq!(clock.now().as_millis(), 6_000, "it runs on by itself");
        clock.read(prompt(5_950_000));
        assert_eq!(clock.now().as_millis(), 6_000, "a clock that is a little slow takes nothing back");
        clock.read(prompt(6_050_000));
        assert_eq!(clock.now().as_millis(), 6_050);
        for _ in 0..3 {
            let before = clock.now();
            tokio::time::advance(FOLLOW + second).await;
            clock.read(prompt(1_000_000));
            assert!((clock.now().since(before).as_millis() as i64 - 11_000).abs() < 100, "set back, it goes on");
        }
    }

    #[test]
    fn who_is_new_believes_those_who_have_known_it_for_longer() {
        let start = Instant::now();
        // It begins just after the clock was set, before anybody has told.
        let clock = Followed::new(seen(start, (0, 0), 90 * S, 0), WallClock::default());
        assert_eq!(clock.known_since(), Some(SHOWN + 90 * S));
        let reading = clock.read(seen(start, (1, 1), 91 * S, 90 * S));
        assert_eq!(reading, Reading { micros: SHOWN + S, correction: None });
        assert_eq!(clock.known_since(), Some(SHOWN + S));
    }

    #[test]
    fn who_is_new_knows_it_after_three_looks() {
        let start = Instant::now();
        let clock = Followed::new(seen(start, (0, 0), 0, 0), WallClock::default());
        for millis in [0, 10, 500, 1_000, 1_500] {
            clock.looked(start + Duration::from_millis(millis));
            assert_eq!(clock.known_since(), Some(SHOWN), "one look a second counts");
        }
        clock.looked(start + Duration::from_secs(2));
        assert_eq!(clock.known_since(), None);
    }
}
