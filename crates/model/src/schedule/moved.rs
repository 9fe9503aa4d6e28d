//! When the next tick of a chain that sleeps comes after its schedule has changed (pure).
//!
//! It is as if the run before had ended under the new schedule, except that nothing is due earlier than
//! now. Asked again, it leaves alone what it has moved, or what fits by chance: so several workers may
//! be told of a change at the same time, and none undoes or repeats what another has done.

use std::time::Duration;

use super::{From, MILLISECOND, Rhythm, Schedule, Setting, WhenExcluded};
use crate::clock::Time;

/// A chain whose next tick has not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    /// When that tick is nominally due: by the wall clock, where the schedule follows that.
    pub nominal: Time,
    /// When it is due.
    pub due: Time,
    /// When a run last started; zero when none has.
    pub last_start: Time,
    /// When a run last ended; zero when none has.
    pub last_finish: Time,
}

/// What a new schedule makes of a sleeping chain's next tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Its time is one that the new schedule could have given.
    Fits,
    /// It comes then.
    To {
        /// Its place on the grid.
        nominal: Time,
        /// When it may start.
        due: Time,
    },
    /// The new schedule has no occurrence any more.
    Over,
}

impl Schedule {
    /// When the next tick of `asleep` comes by this schedule. What is overdue by it is due at once; or, for
    /// a fleet, at the chain's own `share` (from 0 to 1) of the interval from now on, so that it is no herd.
    pub fn moved(&self, asleep: Asleep, now: Time, share: Option<f64>, setting: Setting<'_>) -> Moved {
        match &self.rhythm {
            Rhythm::At(at) => {
                let Some(at) = self.once(*at) else { return Moved::Over };
                match setting.wall_clock.steady(at) {
                    due if due <= now => Moved::Over,
                    due if (asleep.nominal, asleep.due) == (at, due) => Moved::Fits,
                    due => Moved::To { nominal: at, due },
                }
            }
            Rhythm::Every { interval, from: From::Finish } => self.moved_delay(*interval, asleep, now, share, setting),
            Rhythm::Every { .. } => self.moved_on_grid(asleep, now, setting),
            Rhythm::Cron(_) => self.moved_on_wall_clock(asleep, now, setting),
        }
    }

    fn moved_delay(
        &self,
        interval: Duration,
        asleep: Asleep,
        now: Time,
        share: Option<f64>,
        setting: Setting<'_>,
    ) -> Moved {
        let (wall_clock, last) = (setting.wall_clock, asleep.last_finish);
        let allowed = |time| !self.excluded.excludes(wall_clock.wall(time));
        // What calendars exclude of it moves once more.
        let to = |due: Time| {
            let due = match allowed(due) {
                true => due,
                false => self.next_after(due.since(now), now, interval, setting).due,
            };
            Moved::To { nominal: due, due }
        };
        let never = last == Time::default();
        let meant = last + interval;
        let (early, late) = (meant - self.jitter, meant + self.jitter);
        let most = |time| self.latest(time, Some(interval), wall_clock);
        let latest = most(early).max(most(late));
        // What moves to an earlier time, and what is learned, comes after the run before.
        let moves_back = self.excluded.when == WhenExcluded::Previous && !allowed(late);
        let earliest = if moves_back || self.learns { last } else { early };
        if !never && (earliest..=latest).contains(&asleep.due) && allowed(asleep.due) {
            return Moved::Fits;
        }
        if !never && late > now {
            return to((last + self.delay(interval, last, setting)).max(now));
        }
        match share {
            // It comes within an interval, and where it does is as good as anywhere.
            Some(_) if asleep.due <= most(now + interval) && allowed(asleep.due) => Moved::Fits,
            Some(share) => to(now + interval.mul_f64(share.clamp(0.0, 1.0))),
            None if never && asleep.due <= most(now + interval) && allowed(asleep.due) => Moved::Fits,
            None => to(now),
        }
    }

    fn moved_on_grid(&self, asleep: Asleep, now: Time, setting: Setting<'_>) -> Moved {
        // Where the grid has no place of its own, the last start is a point of it.
        let anchor = if asleep.last_start == Time::default() { asleep.nominal } else { asleep.last_start };
        let Some(next) = self.after(anchor, now, setting.place()) else { return Moved::Over };
        let on_grid = self.after(anchor, asleep.nominal - MILLISECOND, setting.place()) == Some(asleep.nominal);
        self.moved_to(next, on_grid, asleep, now, setting)
    }

    fn moved_on_wall_clock(&self, asleep: Asleep, now: Time, setting: Setting<'_>) -> Moved {
        let Asleep { nominal, last_start, .. } = asleep;
        let wall = self.wall(now, setting.wall_clock);
        let Some(next) = self.pending(wall, (last_start, nominal), setting) else { return Moved::Over };
        self.moved_to(next, self.is_occurrence(nominal, setting.phase), asleep, now, setting)
    }

    fn moved_to(&self, next: Time, on_grid: bool, asleep: Asleep, now: Time, setting: Setting<'_>) -> Moved {
        if on_grid && asleep.nominal <= next && self.explains(asleep.nominal, asleep.due, setting) {
            return Moved::Fits;
        }
        let (wall_clock, first) = (setting.wall_clock, self.steady(next, setting.wall_clock));
        let latest = first + self.postponed_by();
        if asleep.nominal == asleep.due
            && self.was_postponed(wall_clock.wall(first))
            && (first..=latest).contains(&asleep.due)
            && !self.excluded.excludes(wall_clock.wall(asleep.due))
        {
            // It has got its own place after the excluded time.
            return Moved::Fits;
        }
        let due = self.bent(next, now, setting);
        Moved::To { nominal: self.anchored(next, due, setting.wall_clock), due }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Catch, Exclusions, Misfire, Overlap};
    use super::*;
    use crate::clock::Entropy;
    use crate::schedule::balance::Balance;
    use crate::schedule::cron::Cron;
    use crate::wall_clock::WallClock;

    const MINUTE: i64 = 60_000;

    fn at(minutes: i64) -> Time {
        Time::from_millis(1_800_000_000_000 + minutes * MINUTE)
    }

    fn minutes(n: u64) -> Duration {
        Duration::from_secs(n * 60)
    }

    fn every(n: u64, from: From) -> Schedule {
        Schedule {
            rhythm: Rhythm::Every { interval: minutes(n), from },
            jitter: Duration::ZERO,
            spread_phase: false,
            overlap: Overlap::BufferOne,
            misfire: Misfire { policy: Catch::All, window: None, spread: Duration::ZERO },
            excluded: Exclusions::default(),
            learns: false,
        }
    }

    fn cron(text: &str) -> Schedule {
        Schedule { rhythm: Rhythm::Cron(Cron::parse(text, None).unwrap()), ..every(1, From::Nominal) }
    }

    /// Ran from −10 to −9, and sleeps until `due`.
    fn asleep(due: i64) -> Asleep {
        Asleep { nominal: at(due), due: at(due), last_start: at(-10), last_finish: at(-9) }
    }

    fn ask(schedule: &Schedule, asleep: Asleep, share: Option<f64>) -> Moved {
        let (balance, dice, wall_clock) = (Balance::default(), Entropy::seeded(1), WallClock::default());
        let setting = Setting { phase: 0.25, balance: &balance, dice: &dice, wall_clock: &wall_clock };
        schedule.moved(asleep, at(0), share, setting)
    }

    #[test]
    fn a_table_of_changed_schedules() {
        let to = |minute| Moved::To { nominal: at(minute), due: at(minute) };
        let new = |due| Asleep { last_start: Time::default(), last_finish: Time::default(), ..asleep(due) };
        let spread = |schedule: Schedule| Schedule { spread_phase: true, ..schedule };
        let learned = |schedule: Schedule| Schedule { learns: true, ..schedule };
        // 1_800_000_000 is 08:00 UTC, a whole quarter of a day and 80 minutes after midnight's quarter.
        let table = [
            ("shorter, and not over yet", every(30, From::Finish), asleep(1_000), None, to(21)),
            ("longer", every(120, From::Finish), asleep(5), None, to(111)),
            ("shorter, and over: at once", every(5, From::Finish), asleep(1_000), None, to(0)),
            ("learned, and not too long", learned(every(120, From::Finish)), asleep(5), None, Moved::Fits),
            ("learned, and too long", learned(every(120, From::Finish)), asleep(1_000), None, to(111)),
            ("of a fleet: at its share of the interval", every(8, From::Finish), asleep(1_000), Some(0.5), to(4)),
            ("of a fleet, and soon enough", every(8, From::Finish), asleep(7), Some(0.5), Moved::Fits),
            ("the same", every(30, From::Finish), asleep(21), None, Moved::Fits),
            ("never ran", every(30, From::Finish), new(1_000), None, to(0)),
            ("never ran, and soon enough", every(30, From::Finish), new(20), None, Moved::Fits),
            ("never ran, of a fleet", every(30, From::Finish), new(1_000), Some(0.5), to(15)),
            ("from the start", every(30, From::Start), asleep(1_000), None, to(20)),
            ("from the start, and over: the next of the grid", every(7, From::Start), asleep(1_000), None, to(4)),
            ("from the start, and right", every(30, From::Start), asleep(20), None, Moved::Fits),
            ("from the start, on the grid, and not the next", every(10, From::Start), asleep(30), None, to(10)),
            ("from the nominal time", every(30, From::Nominal), asleep(1_000), None, to(20)),
            ("never ran, on a grid", every(30, From::Nominal), new(1_000), None, to(10)),
            ("a place of its own", spread(every(60, From::Nominal)), asleep(1_000), None, to(15)),
            ("a place of its own, and there", spread(every(60, From::Nominal)), asleep(15), None, Moved::Fits),
            ("the wall clock", cron("*/15 * * * *"), asleep(1_000), None, to(15)),
            ("the wall clock, and right", cron("*/15 * * * *"), asleep(15), None, Moved::Fits),
            ("the wall clock, and one too late", cron("*/15 * * * *"), asleep(30), None, to(15)),
            ("once", Schedule { rhythm: Rhythm::At(at(3)), ..every(1, From::Finish) }, asleep(1_000), None, to(3)),
            ("once, and then", Schedule { rhythm: Rhythm::At(at(3)), ..cron("@hourly") }, asleep(3), None, Moved::Fits),
            ("once, gone by", Schedule { rhythm: Rhythm::At(at(-3)), ..cron("@hourly") }, asleep(3), None, Moved::Over),
        ];
        for (label, schedule, asleep, share, expected) in table {
            assert_eq!(ask(&schedule, asleep, share), expected, "{label}");
            // The same change applied once more leaves the tick as it is.
            if let Moved::To { nominal, due } = expected {
                let again = ask(&schedule, Asleep { nominal, due, ..asleep }, share);
                let at_once = due == at(0);
                assert!(again == Moved::Fits || (at_once && again == expected), "{label}, again: {again:?}");
            }
        }
    }

    #[test]
    fn what_jitter_has_moved_fits() {
        let fixed = Schedule { jitter: minutes(2), ..every(30, From::Finish) };
        let grid = Schedule { jitter: minutes(2), ..cron("*/15 * * * *") };
        for schedule in [fixed, grid] {
            let Moved::To { nominal, due } = ask(&schedule, asleep(1_000), None) else { panic!("{schedule}") };
            assert!(due > at(0));
            assert_eq!(ask(&schedule, Asleep { nominal, due, ..asleep(0) }, None), Moved::Fits, "{schedule}");
        }
        let late = Asleep { nominal: at(0), due: at(1), ..asleep(0) };
        let grid = Schedule { jitter: minutes(2), ..cron("*/15 * * * *") };
        assert_eq!(ask(&grid, late, None), Moved::Fits, "its nominal time has come, and its own has not");
    }
}
