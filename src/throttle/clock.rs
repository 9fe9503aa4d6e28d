//! The clock of throttles: the ledger's, but setting that does not set it (pure).
//!
//! A ledger's clock is set now and then, by hand, by NTP, or since another server takes over. By such a
//! clock, what started a second ago would seem to have started an hour ago, and a window would be passed.
//! So the ledger remembers how far its clock has been set, and throttles count by what is left. Who
//! notices are the workers: each knows by a clock that nobody sets how long ago it looked at the ledger's.

use std::time::Duration;

use tokio::time::Instant;

use super::slots::Micros;

/// A clock that is off by no more was not set: clocks are not all alike.
pub const UNLIKE: Micros = 100_000;
/// It is put back by so much more when it was set twice at once.
const DOUBT: Micros = 10_000_000;
/// Clocks differ by one part of so many.
const RATES: Micros = 1_000;

/// What a worker knows of the ledger's clock. A look may wait for others, and its answer be on its way, for
/// seconds, so that it tells two things: what the clock of throttles does not fall short of since, and what it
/// does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// By the last look.
    least: Bound,
    /// By the look that knows best what it does not pass.
    best: (Bound, Bound),
    /// How far the ledger's clock has been set in all, in microseconds, as far as anybody had told.
    pub set: Micros,
    /// Since when the worker has known it, by the clock of throttles, if that is so short that those who have
    /// known it longer may not have told yet that it was set before.
    pub since: Option<Micros>,
}

/// What the clock of throttles shows at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    at: Instant,
    shows: Micros,
}

impl Bound {
    /// The least that it shows at `at`, which may lie before.
    fn least(self, at: Instant) -> Micros {
        let passed = micros(at.saturating_duration_since(self.at));
        self.shows + passed - passed / RATES - micros(self.at.saturating_duration_since(at))
    }

    /// Likewise the most.
    fn most(self, at: Instant) -> Micros {
        let passed = micros(at.saturating_duration_since(self.at));
        self.shows + passed + passed / RATES - micros(self.at.saturating_duration_since(at))
    }
}

impl Known {
    /// After a look that was begun at the one time and over at the other, and has shown that it is `now` by the
    /// ledger's clock, which has been `set` so far in all.
    pub fn learned(before: Option<Self>, (asked, answered): (Instant, Instant), now: Micros, set: Micros) -> Self {
        let shows = now - set;
        let (least, most) = (Bound { at: answered, shows }, Bound { at: asked, shows });
        // What it does not pass, an earlier look may know better. Not so the other: it may have been set back since.
        let better = before.filter(|before| before.set == set && before.best.1.most(asked) < shows);
        let best = better.map_or((least, most), |before| before.best);
        Self { least, best, set, since: before.map_or(Some(shows), |before| before.since) }
    }

    /// The least that the ledger's clock shows at `at`.
    pub fn shows(&self, at: Instant) -> Micros {
        self.least.least(at) + self.set
    }

    /// Of somebody who has known it for as long as anybody.
    #[must_use]
    pub fn for_long(self) -> Self {
        Self { since: None, ..self }
    }

    /// Since when it can tell how much time has passed, by the clock of throttles.
    pub fn can_tell_since(known: Option<&Self>) -> Micros {
        known.map_or(Micros::MAX, |known| known.since.unwrap_or(Micros::MIN))
    }
}

/// How far the ledger's clock has been set in all, when it shows `now`, is known to have been set by `set`, and
/// was read after the one time and before the other by a worker who knows so much of it.
///
/// The clock of throttles may be behind by what nobody knows, and is never put forward: what has started meanwhile
/// would seem to have started earlier than it did. So a ledger's clock that is set back is left to each
/// throttle, for which time stands still then. Whoever is new cannot have known how far it had been set before,
/// and so says nothing once anybody has said more.
pub fn follow(set: Micros, now: Micros, read: (Instant, Instant), known: Option<&Known>) -> Micros {
    let Some(known) = known.filter(|known| known.since.is_none() || known.set == set) else { return set };
    let passed = now - set > known.best.1.most(read.1) + UNLIKE;
    // It may have been set little by little since the best look, or back since that.
    let least = known.least.least(read.0).min(known.best.0.least(read.0));
    match passed && !mutant!(ClockBelieved) {
        true if known.set == set => now - least,
        // By how much others have left it behind, nobody else knows.
        true => now - least + DOUBT,
        false => set,
    }
}

fn micros(length: Duration) -> Micros {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Micros = 1_000_000;

    /// Bounds of what has passed, what the ledger's clock shows beyond what it showed, how far that is known to have
    /// been set since, whether the worker is new, and how far it has been set.
    type Row = ((u64, u64), Micros, Micros, bool, Micros);

    #[test]
    fn a_table_of_clocks_and_how_far_they_have_been_set() {
        let table: [Row; 13] = [
            ((10, 10), 10 * S, 0, false, 0),
            ((10, 10), 10 * S + UNLIKE, 0, false, 0),
            ((10, 10), 100 * S, 0, false, 90 * S),
            ((10, 10), -10 * S, 0, false, 0),
            // Held up for five seconds somewhere: no more has passed than surely has.
            ((10, 15), 10 * S, 0, false, 0),
            ((10, 15), 15 * S, 0, false, 0),
            ((10, 15), 100 * S, 0, false, 90 * S),
            // Somebody has told already.
            ((10, 10), 100 * S, 90 * S, false, 90 * S),
            ((10, 10), 100 * S, 93 * S, false, 93 * S),
            ((10, 10), 100 * S, 60 * S, false, 90 * S + DOUBT),
            // Whoever is new knows what has happened since, as long as nobody has told of anything.
            ((10, 10), 100 * S, 0, true, 90 * S),
            ((10, 10), 100 * S, 60 * S, true, 60 * S),
            ((10, 10), 10 * S, -90 * S, true, -90 * S),
        ];
        let start = Instant::now();
        let after = |secs: u64| start + Duration::from_secs(secs);
        for (n, ((least, most), passed, told, new, expected)) in table.into_iter().enumerate() {
            for before in [0, 7 * S, -7 * S] {
                let shown = 1_700_000_000 * S;
                let since = new.then_some(shown - before);
                let known = Known { since, ..Known::learned(None, (start, start), shown, before) };
                let read = (after(least), after(most));
                let set = follow(before + told, shown + passed, read, Some(&known)) - before;
                // By the rates of clocks.
                assert!((set - expected).abs() <= 15_000, "row {n}: {set}");
                assert_eq!(follow(before + told, shown + passed, read, None), before + told);
            }
        }
    }

    /// As one that is set little by little is, or one that runs too fast.
    #[test]
    fn of_many_small_steps_none_is_forgotten() {
        for step in [60_000, 20_000, -20_000] {
            let (start, mut off, mut set, mut known) = (Instant::now(), 0, 0, None);
            for second in 0..600 {
                let at = start + Duration::from_secs(second);
                let now = 1_700_000_000 * S + second as Micros * S + off;
                set = follow(set, now, (at, at), known.as_ref());
                known = Some(Known::learned(known, (at, at), now, set).for_long());
                off += step;
            }
            let ahead = off - set;
            assert!(ahead <= 2 * UNLIKE, "{step}: {ahead}");
            // By the rates of clocks.
            assert!(step < 0 || ahead > -S, "{step}: {ahead}");
        }
    }

    #[test]
    fn what_an_earlier_look_knows_better_counts() {
        let (start, shown) = (Instant::now(), 1_700_000_000 * S);
        let at = |secs: u64| start + Duration::from_secs(secs);
        let known = Known::learned(None, (at(0), at(0)), shown, 0);
        // A look that is held up before the clock is read tells less.
        let known = Known::learned(Some(known), (at(8), at(20)), shown + 20 * S, 0);
        let late = |known: Known, by| follow(0, shown + 30 * S + by, (at(30), at(30)), Some(&known));
        assert_eq!(late(known, -S), 0);
        for by in [S, 90 * S] {
            assert!((late(known, by) - by).abs() <= 50_000, "{by}");
        }
        // One that is not, after long, more: clocks differ by some of a thousandth.
        let hours = Known::learned(None, (start - Duration::from_secs(7_200), at(0)), shown - 3_600 * S, 0);
        assert_eq!(late(hours, 600 * S), 0);
        let hours = Known::learned(Some(hours), (at(20), at(20)), shown + 20 * S, 0);
        assert!((late(hours, 600 * S) - 600 * S).abs() <= 50_000);
    }
}
