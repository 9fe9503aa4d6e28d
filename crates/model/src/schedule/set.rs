//! When the next tick of a chain that sleeps comes after the wall clock was set (pure).
//!
//! An occurrence is a time of the wall clock, and stays that. If the clock was set across it, it has misfired: it runs
//! now, or not at all, as the schedule's policy says. If the clock was set back, what comes next is the first
//! occurrence that it has not shown before, nor run as a misfire already. Asked again, it leaves alone what it has
//! moved.

use std::time::Duration;

use super::calendar::bend;
use super::{Catch, END, MAX_SKEW, MILLISECOND, Rhythm, Schedule, Setting, WhenExcluded};
use crate::clock::Time;
use crate::outcome::MAX_WAIT;
use crate::schedule::moved::{Asleep, Moved};
use crate::wall_clock::WallClock;

/// How late an occurrence may be that misfires are skipped for, unless the configuration says so.
pub const MISFIRE_WINDOW: Duration = Duration::from_secs(60);

/// No first tick is due later than this.
pub const FURTHEST: Duration = Duration::from_secs(3_660 * 86_400);

/// A ledger's time is read at different places, and by one later than by another.
const READ_APART: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(86_400);
/// Over so long, at most, come those that the wall clock was set across.
const SET_ACROSS: Duration = Duration::from_secs(3_600);

impl Schedule {
    /// When the next tick of `asleep` comes, as the wall clock is set at `now`. What the clock was set across is due
    /// within `spread`, at the chain's own `share` of it, from 0 to 1.
    pub fn set(&self, asleep: Asleep, now: Time, (spread, share): (Duration, f64), setting: Setting<'_>) -> Moved {
        let Asleep { nominal, due, last_start, .. } = asleep;
        let wall_clock = setting.wall_clock;
        let to = |next| Moved::To { nominal: next, due: self.bent(next, now, setting) };
        if !self.follows_the_wall() || !self.is_occurrence(nominal, setting.phase) {
            // The wall clock does not matter to this tick, unless calendars exclude its time now.
            let excluded = due > now && self.excluded.excludes(wall_clock.wall(due));
            return if excluded { self.moved(asleep, now, None, setting) } else { Moved::Fits };
        }
        let wall = wall_clock.wall(now);
        if nominal <= wall || wall_clock.has_shown(nominal) {
            // What was due by the clock as it is now, and has not started, was put off.
            let is_explained = self.explains(nominal, due, setting);
            if due <= now || is_explained || !self.was_explained(nominal, due, setting) {
                return Moved::Fits;
            }
            let at_once = now + spread.mul_f64(share.clamp(0.0, 1.0));
            return match self.oldest_kept(nominal, wall, setting.phase) {
                Some(oldest) => Moved::To { nominal: oldest, due: at_once },
                None => self.pending(wall, (last_start, nominal), setting).map_or(Moved::Over, to),
            };
        }
        if due <= now && !self.was_explained(nominal, due, setting) {
            // An operator wants it now.
            return Moved::Fits;
        }
        // What the clock has come to since it was set has not run.
        let since = wall_clock.last_set().map_or(now, |set| set.max(last_start).min(now));
        match self.was_next(nominal, setting) {
            true => self.pending(wall_clock.wall(since), (last_start, nominal), setting),
            false => Some(nominal),
        }
        .map_or(Moved::Over, |next| {
            if next == nominal && self.explains(nominal, due, setting) { Moved::Fits } else { to(next) }
        })
    }

    /// Whether `nominal` was due then as the wall clock was set before, which workers know to within [`MAX_SKEW`].
    fn was_explained(&self, nominal: Time, due: Time, setting: Setting<'_>) -> bool {
        let mut before = setting.wall_clock.stretches().iter().rev().skip(1).map(|stretch| stretch.ahead);
        before.any(|ahead| {
            let meant = Time::from_millis(nominal.as_millis().saturating_sub(ahead));
            (meant - self.jitter - MAX_SKEW..=meant + self.jitter + self.postponed_by() + MAX_SKEW).contains(&due)
        })
    }

    /// The occurrence that runs of those that the wall clock was set across, of which `nominal` is the first, when it
    /// shows `wall`.
    fn oldest_kept(&self, nominal: Time, wall: Time, phase: f64) -> Option<Time> {
        if self.catches(wall.since(nominal)) {
            return Some(nominal);
        }
        let window = self.misfire.window.filter(|_| self.misfire.policy == Catch::All)?;
        self.after(nominal, wall - window - MILLISECOND, phase).filter(|next| *next <= wall)
    }

    /// Whether `asleep` is due further ahead than this schedule can explain, with all that may put a tick off; answers
    /// when it was meant, at the latest. `begun`: a run of the tick has started, so a handler's word, a backoff or a
    /// snooze may have put it off. `place` is the chain's phase.
    pub fn overslept(
        &self,
        asleep: Asleep,
        begun: bool,
        now: Time,
        place: f64,
        wall_clock: &WallClock,
    ) -> Option<Time> {
        let Asleep { nominal, due, last_start, last_finish } = asleep;
        let last = last_start.max(last_finish);
        let never = last == Time::default();
        let phase = if self.spread_phase { place } else { 0.0 };
        let meant = match &self.rhythm {
            _ if never => self.latest(now, None, wall_clock),
            Rhythm::Every { interval, .. } => {
                let meant = last + *interval;
                let early = self.latest(meant - self.jitter, Some(*interval), wall_clock);
                self.latest(meant + self.jitter, Some(*interval), wall_clock).max(early)
            }
            Rhythm::At(at) => wall_clock.steady(self.once(*at).unwrap_or(*at)) + self.jitter,
            Rhythm::Cron(_) => wall_clock.steady(self.shown_nominal(nominal, phase, wall_clock)) + self.jitter,
        };
        let occurrence = self.follows_the_wall() && self.is_occurrence(nominal, phase);
        // What a schedule makes of a tick that is late already: it comes at once, or spread over this.
        let at_once = self.latest(now, None, wall_clock) + self.jitter + self.misfire.spread + READ_APART;
        let explained = if due > now + MAX_WAIT {
            // It was put off before now, by the longest wait at most. Before the first run an operator may say more.
            if never { now + FURTHEST } else { meant }
        } else if occurrence && nominal > wall_clock.wall(now) {
            // It cannot have been put off before it came.
            wall_clock.steady(nominal) + self.jitter + self.postponed_by()
        } else if begun || never || (self.follows_the_wall() && !occurrence) {
            now + MAX_WAIT
        } else if occurrence {
            at_once + SET_ACROSS
        } else {
            // A run that says when the next tick is due says when it is nominally due.
            at_once.max(meant).max(self.steady(nominal, wall_clock) + self.jitter + self.misfire.spread)
        };
        (due > explained).then_some(meant)
    }

    /// Whether an occurrence that is so late runs yet.
    fn catches(&self, late: Duration) -> bool {
        let window = match self.misfire.policy {
            Catch::Skip => Some(self.misfire.window.unwrap_or(MISFIRE_WINDOW)),
            Catch::Coalesce | Catch::All => self.misfire.window,
        };
        window.is_none_or(|window| late <= window)
    }

    /// Whether this is when the occurrence of `nominal` is due, as the wall clock is set now.
    pub(super) fn explains(&self, nominal: Time, due: Time, setting: Setting<'_>) -> bool {
        let nominal = self.steady(nominal, setting.wall_clock);
        (nominal - self.jitter..=nominal + self.jitter + self.postponed_by()).contains(&due)
            && !self.excluded.excludes(setting.wall_clock.wall(due))
    }

    /// By how much what calendars postpone may be due after its nominal time.
    pub(super) fn postponed_by(&self) -> Duration {
        let postpones = !self.excluded.is_none() && self.excluded.when == WhenExcluded::Next;
        if postpones { self.misfire.spread } else { Duration::ZERO }
    }

    /// When what is meant for `time` comes at the latest, with the time that calendars exclude: an `interval` goes on by
    /// whole ones. Where they exclude all time to come, at the end of it.
    pub(super) fn latest(&self, time: Time, interval: Option<Duration>, wall_clock: &WallClock) -> Time {
        let wall = wall_clock.wall(time);
        if !self.excluded.excludes(wall) {
            return time;
        }
        let Some(end) = bend::until(&self.excluded, wall, wall + bend::HORIZON) else { return END };
        // On a day that is excluded as a whole, the same time of another day may be as good.
        let moved = if self.excluded.when == WhenExcluded::Next { DAY } else { Duration::ZERO };
        wall_clock.steady(end) + interval.unwrap_or_default().max(moved) + self.misfire.spread
    }

    /// Whether `nominal`, which is still to come, was the next occurrence at some time that the wall clock showed
    /// before it was set. One that lies farther ahead was asked for.
    pub(super) fn was_next(&self, nominal: Time, setting: Setting<'_>) -> bool {
        let before = nominal - MILLISECOND;
        matches!(self.rhythm, Rhythm::Cron(_))
            && setting.wall_clock.earlier().any(|(begin, end)| {
                // The last of them may have run just before the clock was set, and that is known to within this.
                let last = before.min(end + MAX_SKEW);
                begin <= last && self.after(nominal, last, setting.phase) == Some(nominal)
            })
    }

    /// The first occurrence after `time` that the wall clock has not shown before it was set back, and that has not
    /// run as a misfire. The chain last started at `last_start`; what misfired before `done` has run since, where all
    /// that misfires does.
    pub(super) fn pending(&self, time: Time, (last_start, done): (Time, Time), setting: Setting<'_>) -> Option<Time> {
        let seen = self.seen(setting, END);
        let mut next = self.unseen(time, time, setting.phase, seen)?;
        if seen.is_none() {
            return Some(next);
        }
        let misfires = self.misfires(last_start, done, setting);
        while let Some((_, last)) = misfires.iter().find(|(first, last)| *first <= next && next <= *last) {
            next = self.unseen(next, *last, setting.phase, seen)?;
        }
        Some(next)
    }

    /// From which to which nominal time, both inclusively, occurrences have run as misfires since the wall clock was
    /// set across them.
    fn misfires(&self, last_start: Time, done: Time, setting: Setting<'_>) -> Vec<(Time, Time)> {
        let (phase, mut ran) = (setting.phase, Vec::<(Time, Time)>::new());
        for leap in setting.wall_clock.leaps().filter(|leap| leap.at <= last_start) {
            let seen = self.seen(setting, leap.at);
            let mut first = self.unseen(leap.from, leap.from - MILLISECOND, phase, seen);
            while let Some((_, last)) = ran.iter().find(|(from, to)| first.is_some_and(|it| *from <= it && it <= *to)) {
                first = first.and_then(|it| self.unseen(it, *last, phase, seen));
            }
            let Some(first) = first.filter(|first| leap.is_across(*first)) else { continue };
            let catches = self.catches(leap.to.since(first));
            match (self.misfire.policy, self.misfire.window) {
                (Catch::All, window) => {
                    let from = window.map_or(first, |window| first.max(leap.to - window));
                    let to = if leap.is_across(done) { done } else { leap.to } - MILLISECOND;
                    ran.push((from, to));
                }
                (Catch::Coalesce | Catch::Skip, _) if catches => ran.push((first, first)),
                (Catch::Coalesce | Catch::Skip, _) => {}
            }
        }
        ran
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::{Exclusions, From, Misfire, Overlap, Ran};
    use super::*;
    use crate::clock::Entropy;
    use crate::schedule::balance::Balance;
    use crate::schedule::cron::Cron;

    const MINUTE: i64 = 60_000;

    /// Minutes after 08:00 UTC.
    fn at(minutes: i64) -> Time {
        Time::from_millis(1_800_000_000_000 + minutes * MINUTE)
    }

    fn minutes(n: u64) -> Duration {
        Duration::from_secs(n * 60)
    }

    fn wall_clock(set: &[(i64, i64)]) -> WallClock {
        set.iter().fold(WallClock::default(), |wall_clock, (now, ahead)| wall_clock.set(at(*now), ahead * MINUTE))
    }

    fn by(rhythm: Rhythm, policy: Catch, window: Option<u64>) -> Schedule {
        Schedule {
            rhythm,
            jitter: Duration::ZERO,
            spread_phase: false,
            overlap: Overlap::Skip,
            misfire: Misfire { policy, window: window.map(minutes), spread: Duration::ZERO },
            excluded: Exclusions::default(),
            learns: false,
        }
    }

    fn cron(text: &str) -> Rhythm {
        Rhythm::Cron(Cron::parse(text, None).unwrap())
    }

    fn hourly() -> Schedule {
        by(cron("@hourly"), Catch::Coalesce, None)
    }

    /// Nominally due then by the wall clock, and by the ledger's time; last started at 0.
    fn asleep(nominal: i64, due: i64) -> Asleep {
        Asleep { nominal: at(nominal), due: at(due), last_start: at(0), last_finish: at(0) }
    }

    fn ask(schedule: &Schedule, asleep: Asleep, now: i64, wall_clock: &WallClock) -> Moved {
        let setting = Setting { phase: 0.0, balance: &Balance::default(), dice: &Entropy::seeded(1), wall_clock };
        schedule.set(asleep, at(now), (minutes(2), 0.5), setting)
    }

    #[test]
    fn a_table_of_clocks_that_were_set() {
        use Catch::{All, Coalesce, Skip};
        let to = |nominal, due| Moved::To { nominal: at(nominal), due: at(due) };
        let day = 24 * 60;
        let (back, forward) = (wall_clock(&[(30, -60)]), wall_clock(&[(30, 60)]));
        let (day_ahead, there_and_back) = (wall_clock(&[(30, day)]), wall_clock(&[(30, day), (50, 0)]));
        let (right_again, three_and_back) = (wall_clock(&[(30, 60), (60, 0)]), wall_clock(&[(30, 180), (100, 0)]));
        let of = |policy, window| by(cron("@hourly"), policy, window);
        let started = |minute| Asleep { last_start: at(minute), ..asleep(60 + day, 60) };
        let never = Asleep { last_start: Time::default(), last_finish: Time::default(), ..asleep(60 + day, 60) };
        let once = |minute| by(Rhythm::At(at(minute)), Coalesce, None);
        let every = Rhythm::Every { interval: minutes(60), from: From::Nominal };
        let table = [
            ("never set", hourly(), asleep(60, 60), 30, WallClock::default(), Moved::Fits),
            ("set back: the same wall time, an hour later", hourly(), asleep(60, 60), 31, back.clone(), to(60, 120)),
            ("set back, and moved", hourly(), asleep(60, 120), 31, back.clone(), Moved::Fits),
            ("set forward, not across it", hourly(), asleep(120, 120), 31, forward.clone(), to(120, 60)),
            ("set across it: a misfire", hourly(), asleep(60, 60), 30, forward.clone(), to(60, 31)),
            ("set across it, and moved", hourly(), asleep(60, 31), 30, forward.clone(), Moved::Fits),
            ("misfires are skipped", of(Skip, None), asleep(60, 60), 31, forward.clone(), to(120, 60)),
            (
                "and one that is not very late is not",
                of(Skip, Some(40)),
                asleep(60, 60),
                31,
                forward.clone(),
                to(60, 32),
            ),
            ("too late", of(Coalesce, Some(20)), asleep(60, 60), 31, forward.clone(), to(120, 60)),
            (
                "all, as far as they are not too late",
                of(All, Some(90)),
                asleep(60, 60),
                31,
                day_ahead.clone(),
                to(day, 32),
            ),
            ("all, and all are too late", of(All, Some(20)), asleep(60, 60), 31, day_ahead.clone(), to(day + 60, 60)),
            // A day ahead for twenty minutes; what misfired ran at 31, and then the chain slept until 09:00 of the next
            // day.
            ("there and back", hourly(), started(31), 50, there_and_back.clone(), to(120, 120)),
            (
                "there and back, all had run",
                of(All, None),
                started(31),
                50,
                there_and_back.clone(),
                to(day + 60, day + 60),
            ),
            ("there and back, none had", of(Skip, None), started(0), 50, there_and_back.clone(), to(60, 60)),
            ("there and back, never ran", hourly(), never, 50, there_and_back.clone(), to(60, 60)),
            // It was due at 60 by a clock that was then set right: its time has not come.
            ("due by the clock as it was", hourly(), asleep(120, 60), 61, right_again.clone(), to(120, 120)),
            (
                "ran in the moment in which it was set",
                hourly(),
                asleep(180, 120),
                61,
                right_again.clone(),
                to(120, 120),
            ),
            ("and its time has come meanwhile", hourly(), asleep(120, 60), 125, right_again.clone(), Moved::Fits),
            ("another time has come meanwhile", hourly(), asleep(300, 120), 121, three_and_back, to(120, 121)),
            ("made due by an operator", hourly(), asleep(120, 50), 61, right_again.clone(), Moved::Fits),
            ("an operator's own wish", hourly(), asleep(300, 300), 31, back.clone(), to(300, 360)),
            ("put off, since its time had come", hourly(), asleep(0, 40), 31, back.clone(), Moved::Fits),
            ("somebody else's time", hourly(), asleep(61, 61), 31, back.clone(), Moved::Fits),
            ("once, to come", once(70), asleep(70, 70), 31, back.clone(), to(70, 130)),
            ("once, set across", once(70), asleep(70, 70), 31, forward.clone(), to(70, 32)),
            ("once, and come", once(20), asleep(20, 40), 31, back.clone(), Moved::Fits),
            ("an interval", by(every, Coalesce, None), asleep(60, 60), 31, forward, Moved::Fits),
        ];
        for (label, schedule, asleep, now, wall_clock, expected) in table {
            assert_eq!(ask(&schedule, asleep, now, &wall_clock), expected, "{label}");
            if let Moved::To { nominal, due } = expected {
                let again = ask(&schedule, Asleep { nominal, due, ..asleep }, now, &wall_clock);
                assert_eq!(again, Moved::Fits, "{label}, again");
            }
        }
    }

    #[test]
    fn a_table_of_chains_that_sleep_for_longer_than_they_may() {
        let day = 24 * 60;
        let every = |from| by(Rhythm::Every { interval: minutes(60), from }, Catch::Coalesce, None);
        let jittered = || Schedule { jitter: minutes(10), ..every(From::Finish) };
        let never = |due| Asleep { last_start: Time::default(), last_finish: Time::default(), ..asleep(due, due) };
        let (back, set) = (wall_clock(&[(30, -60)]), WallClock::default);
        let (fresh, begun) = (false, true);
        // Whether a run of the tick has begun, and when it was meant if it has overslept.
        let table = [
            ("an interval", every(From::Finish), asleep(60, 60), fresh, set(), None),
            ("an interval, and its jitter", jittered(), asleep(60, 70), fresh, set(), None),
            ("a due time that nobody has put off", every(From::Finish), asleep(60, 62), fresh, set(), Some(60)),
            ("by a day", every(From::Finish), asleep(60, day), fresh, set(), Some(60)),
            ("by a day, on a grid", every(From::Nominal), asleep(60, day), fresh, set(), Some(60)),
            ("a misfire that comes at once", every(From::Nominal), asleep(-60, 31), fresh, set(), None),
            ("a run's word on when the next comes", every(From::Finish), asleep(day, day), fresh, set(), None),
            ("a handler's word, a backoff or a snooze", every(From::Finish), asleep(60, 29 * day), begun, set(), None),
            ("longer than any of these", every(From::Finish), asleep(60, 31 * day), begun, set(), Some(60)),
            ("on a grid", every(From::Nominal), asleep(31 * day, 31 * day), fresh, set(), Some(60)),
            ("an operator's wish", every(From::Finish), never(365 * day), fresh, set(), None),
            ("further than he may wish", every(From::Finish), never(3_700 * day), fresh, set(), Some(31)),
            ("the wall clock", hourly(), asleep(60, 60), fresh, set(), None),
            ("the wall clock, put off since", hourly(), asleep(0, day), begun, set(), None),
            ("the wall clock, and nobody has put it off", hourly(), asleep(0, day), fresh, set(), Some(0)),
            ("a misfire over which the clock was set", hourly(), asleep(0, 33), fresh, set(), None),
            ("by a clock that shows another time", hourly(), asleep(60, 120), fresh, set(), Some(60)),
            ("and by the one that shows that", hourly(), asleep(60, 120), fresh, back, None),
            ("once a year", by(cron("@yearly"), Catch::Coalesce, None), asleep(501_120, 501_120), fresh, set(), None),
            (
                "once a year, and a year too late",
                by(cron("@yearly"), Catch::Coalesce, None),
                asleep(501_120, 1_026_720),
                fresh,
                set(),
                Some(501_120),
            ),
        ];
        for (label, schedule, asleep, begun, wall_clock, meant) in table {
            let found = schedule.overslept(asleep, begun, at(31), 0.0, &wall_clock);
            assert_eq!(found, meant.map(at), "{label}");
        }
    }

    #[test]
    fn a_table_of_what_follows_a_run_while_the_clock_is_set() {
        use Catch::{All, Coalesce, Skip};
        let day = 24 * 60;
        let of = |policy| by(cron("@hourly"), policy, None);
        let (back, forward) = (wall_clock(&[(30, -60)]), wall_clock(&[(30, 60)]));
        // Nominal by the wall clock, started, finished → nominal, due, overlapped, misfired.
        let table = [
            ("nothing was set", of(Coalesce), WallClock::default(), (0, 0, 1), (60, 60, 0, 0)),
            ("set back before", of(Coalesce), back.clone(), (60, 120, 121), (120, 180, 0, 0)),
            (
                "set back before it: what was shown does not come again",
                of(Coalesce),
                back.clone(),
                (0, 0, 31),
                (60, 120, 0, 0),
            ),
            ("set forward before", of(Coalesce), forward.clone(), (120, 60, 61), (180, 120, 0, 0)),
            ("a misfire", of(Coalesce), forward.clone(), (60, 31, 32), (120, 60, 0, 0)),
            ("set forward while it ran", of(Coalesce), forward.clone(), (0, 0, 31), (60, 31, 0, 0)),
            ("and all run", of(All), forward.clone(), (0, 0, 31), (60, 31, 0, 0)),
            ("and none does", of(Skip), forward, (0, 0, 31), (120, 60, 0, 1)),
            (
                "there and back: what comes really comes",
                of(Coalesce),
                wall_clock(&[(30, day), (80, 0)]),
                (day + 60, 60, 81),
                (120, 120, 0, 0),
            ),
            (
                "a misfire that is gone on with after it was set back",
                of(Coalesce),
                wall_clock(&[(30, day), (50, 0)]),
                (60, 31, 51),
                (120, 120, 0, 23),
            ),
            (
                "a backlog over a clock that was set back",
                of(All),
                wall_clock(&[(150, -60)]),
                (0, 160, 161),
                (60, 161, 0, 0),
            ),
            (
                "there and back, just before it ran by the wrong time",
                of(Coalesce),
                wall_clock(&[(30, day), (59, 0)]),
                (day + 60, 60, 61),
                (120, 120, 0, 0),
            ),
            ("somebody's own time", of(Coalesce), back, (61, 61, 62), (60, 120, 0, 0)),
        ];
        for (label, schedule, wall_clock, (nominal, started, finished), expected) in table {
            let setting = Setting {
                phase: 0.0,
                balance: &Balance::default(),
                dice: &Entropy::seeded(1),
                wall_clock: &wall_clock,
            };
            let ran = Ran { nominal: at(nominal), started: at(started), finished: at(finished) };
            let next = schedule.next(ran, setting).unwrap();
            let minute = |time: Time| (time.as_millis() - at(0).as_millis()) / MINUTE;
            let found = (minute(next.nominal), minute(next.due), next.overlapped, next.misfired);
            assert_eq!(found, expected, "{label}");
        }
    }

    proptest! {
        /// A chain whose runs take no time, and a clock that is set now and then: what the clock shows by running on
        /// runs once, the first time that it is shown; what it was set across and never shows runs at most once.
        #[test]
        fn each_occurrence_runs_once_whatever_the_clock_is_set_to(
            set in prop::collection::vec((1_u64..90, -300_i64..300), 0..6),
            all in any::<bool>(),
        ) {
            let schedule = by(cron("*/7 * * * *"), if all { Catch::All } else { Catch::Coalesce }, None);
            let mut wall_clock = WallClock::default();
            let (balance, dice) = (Balance::default(), Entropy::seeded(1));
            let mut now = at(0);
            let first = schedule.first(now, Duration::ZERO, Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock }).unwrap();
            let (mut chain, mut runs) = (Asleep { nominal: first.nominal, due: first.due, last_start: Time::default(), last_finish: Time::default() }, BTreeMap::<Time, u32>::new());
            let begin = now;
            let ends: Vec<Time> = set.iter().scan(now, |at, (gone, _)| { *at = *at + minutes(*gone); Some(*at) }).collect();
            let end = ends.last().copied().unwrap_or(now) + minutes(700);
            for n in 0..=set.len() {
                let until = ends.get(n).copied().unwrap_or(end);
                while chain.due < until {
                    now = chain.due;
                    let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock };
                    *runs.entry(chain.nominal).or_default() += 1;
                    let next = schedule.next(Ran { nominal: chain.nominal, started: now, finished: now }, setting).unwrap();
                    chain = Asleep { nominal: next.nominal, due: next.due, last_start: now, last_finish: now };
                }
                now = until;
                if let Some((_, ahead)) = set.get(n) {
                    wall_clock = wall_clock.set(now, ahead * MINUTE);
                    let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &wall_clock };
                    if let Moved::To { nominal, due } = schedule.set(chain, now, (Duration::ZERO, 0.0), setting) {
                        prop_assert!(due >= now);
                        chain = Asleep { nominal, due, ..chain };
                    }
                }
            }
            prop_assert!(runs.values().all(|count| *count == 1), "{runs:?}");
            // Minute by minute: what the clock showed, for the first time, after the chain began.
            let mut minute = begin + minutes(1);
            let mut shown = std::collections::BTreeSet::new();
            while minute < end {
                let wall = wall_clock.showed(minute);
                shown.insert(wall);
                minute = minute + minutes(1);
            }
            let grid = |wall: &Time| schedule.is_occurrence(*wall, 0.0);
            for wall in shown.iter().filter(|wall| grid(wall) && **wall > begin) {
                // What it shows in the very moment after it was set forward counts as one with what it was set across.
                let leapt = wall_clock.leaps().any(|leap| leap.is_across(*wall) || leap.to == *wall);
                prop_assert!(leapt || runs.contains_key(wall), "{wall} was shown and has not run: {runs:?}");
            }
        }
    }
}
