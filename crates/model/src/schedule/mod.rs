//! When next (pure).
//!
//! A schedule is a [`Rhythm`], and what may bend it. A fixed delay counts from the end of the run
//! before. The others have a *grid* of nominal times that goes on whatever runs do. [`Overlap`] says what becomes of
//! times that go by while a run still runs, and [`Misfire`] of times that go by while nothing could
//! start at all (an outage, a backlog). Nothing of that needs a clock of its own: when a run has
//! ended, the grid says what has gone by since its nominal time, and what comes next.
//!
//! Times are the ledger's steady time, with one exception: the nominal times of what follows the wall clock (cron
//! expressions, `at`) are wall times. They stay what they are when the wall clock is set, so a chain's next occurrence
//! is known whenever that was, and only when it is due has to be worked out anew ([`Schedule::set`]). Occurrences that
//! the wall clock has shown before it was set back are left out, as if they were not there.
//!
//! Calendars leave out or move occurrences ([`Exclusions`]). What they leave is the grid that all the rest looks at; a
//! fixed delay has the grid of whole intervals from its first possible end on.

pub mod balance;
pub mod calendar;
mod cron;
mod moved;
mod set;

use std::time::Duration;

use crate::clock::{Entropy, Time, short_duration};
use crate::job;
use crate::ladder::{jitter_points, jitter_rungs};
use crate::wall_clock::WallClock;
pub use balance::{Balance, Balances};
use calendar::bend::{self, Bend};
pub use calendar::{Exclusions, OneOrMany, OwnExclusions, WhenExcluded};
pub use cron::{Cron, Pace};
pub use moved::{Asleep, Moved};
pub use set::{FURTHEST, MISFIRE_WINDOW};

/// Occurrences that are counted one by one when a cron expression has missed many.
const MAX_COUNTED: u32 = 10_000;

/// How a chain recurs.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// What it follows.
    pub rhythm: Rhythm,
    /// How far an occurrence may lie from its nominal time, on either side.
    pub jitter: Duration,
    /// Each chain has a place of its own in the interval, which follows from its name.
    pub spread_phase: bool,
    /// What becomes of occurrences that go by while a run runs.
    pub overlap: Overlap,
    /// What becomes of occurrences that go by while nothing can start.
    pub misfire: Misfire,
    /// When there are none, by calendars.
    pub excluded: Exclusions,
    /// How long each chain waits follows from what it has learned, and `rhythm` has the longest wait.
    pub learns: bool,
}

/// What a schedule follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Rhythm {
    /// An interval.
    Every {
        /// How long.
        interval: Duration,
        /// Counted from what.
        from: From,
    },
    /// The wall clock.
    Cron(Cron),
    /// This one time of the wall clock, and then the end.
    At(Time),
}

/// What an interval is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The end of the run before: a fixed delay.
    Finish,
    /// The start of the run before.
    Start,
    /// The nominal time of the run before: a fixed rate.
    Nominal,
}

/// What becomes of occurrences whose time comes while the chain still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They are left out.
    Skip,
    /// One of them runs right afterwards.
    BufferOne,
    /// The run is ended for the sake of the next.
    CancelOther,
    /// Each runs as a one-off job, so that the chain goes on at once.
    Allow,
}

/// What becomes of occurrences whose time goes by while nothing can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfire {
    /// How many of them run.
    pub policy: Catch,
    /// What is later than this runs no more.
    pub window: Option<Duration>,
    /// What is late is spread over so long.
    pub spread: Duration,
}

/// How many of the occurrences that were missed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Catch {
    /// None.
    Skip,
    /// One for all of them.
    Coalesce,
    /// Each of them.
    All,
}

/// A tick that has come to its end, as far as the next one depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// When it should have started: by the wall clock, where the schedule follows that.
    pub nominal: Time,
    /// When it did.
    pub started: Time,
    /// When it ended.
    pub finished: Time,
}

/// The next tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// Its place on the grid: by the wall clock, where the schedule follows that.
    pub nominal: Time,
    /// When it may start: the nominal time with its jitter, or at once.
    pub due: Time,
    /// Occurrences left out because the chain still ran.
    pub overlapped: u32,
    /// Occurrences left out because nothing could start.
    pub misfired: u32,
    /// Occurrences left out by calendars.
    pub excluded: u32,
}

/// What has gone by until a run ended, on the grid that its schedule follows.
struct Passed<'a> {
    /// The occurrence that ran.
    anchor: Time,
    /// How far the grid had come when it started.
    started: Time,
    /// And when it ended.
    finished: Time,
    /// What comes next comes after this.
    from: Time,
    /// The wall clock was set forward meanwhile.
    leapt: bool,
    /// What had come before the occurrence that ran.
    seen: Option<Seen<'a>>,
}

/// What the wall clock showed in stretches that had ended `by` then.
#[derive(Clone, Copy)]
struct Seen<'a> {
    wall_clock: &'a WallClock,
    by: Time,
}

/// The end of time.
const END: Time = Time::from_millis(i64::MAX);
const MILLISECOND: Duration = Duration::from_millis(1);
/// What is known of a setting of the clock may be wrong by as much.
const MAX_SKEW: Duration = Duration::from_micros(crate::clock::MAX_SKEW.unsigned_abs());

/// Occurrences within a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Missed {
    count: u32,
    first: Option<Time>,
    last: Option<Time>,
}

/// Where a chain's grid lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// See [`Setting::phase`].
    phase: f64,
    /// By how many milliseconds the wall clock is ahead of the grid.
    ahead: i64,
}

/// Of a grid that follows the wall clock.
impl std::convert::From<f64> for Place {
    fn from(phase: f64) -> Self {
        Self { phase, ahead: 0 }
    }
}

/// A chain whose schedule has no occurrence that calendars allow looks again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(86_400);
/// What calendars allow of the time to come is taken from so much of it.
const SAMPLE: Duration = Duration::from_secs(28 * 86_400);

fn shifted(time: Time, millis: i64) -> Time {
    Time::from_millis(time.as_millis().saturating_add(millis))
}

/// What a schedule needs to know of a chain, and of the world.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The chain's place in the interval, from 0 to 1: see [`phase`].
    pub phase: f64,
    /// The due times given out so far.
    pub balance: &'a Balance,
    /// Dice.
    pub dice: &'a Entropy,
    /// How the wall clock stands to time.
    pub wall_clock: &'a WallClock,
}

impl Setting<'_> {
    fn place(&self) -> Place {
        Place { phase: self.phase, ahead: self.wall_clock.ahead() }
    }
}

/// So many fewer, as ledgers count them.
fn fewer(count: u64, by: u64) -> u32 {
    u32::try_from(count.saturating_sub(by)).unwrap_or(u32::MAX)
}

/// The place of a chain in its interval, from 0 up to 1: always the same, and evenly distributed.
pub fn phase(kind: &str, key: &str) -> f64 {
    (job::seed(kind, key, "phase") >> 11) as f64 / (1_u64 << 53) as f64
}

impl Schedule {
    /// A fixed delay after the end of the run before, give or take `jitter`.
    pub fn fixed_delay(interval: Duration, jitter: Duration) -> Self {
        Self {
            rhythm: Rhythm::Every { interval, from: From::Finish },
            jitter,
            spread_phase: false,
            overlap: Overlap::Skip,
            misfire: Misfire { policy: Catch::Coalesce, window: None, spread: Duration::ZERO },
            excluded: Exclusions::default(),
            learns: false,
        }
    }

    /// How long from one occurrence to the next, about: the interval, or the distance of the two
    /// occurrences of the wall clock that come after `now`. `None` for what comes once.
    pub fn interval(&self, now: Time, wall_clock: &WallClock) -> Option<Duration> {
        match &self.rhythm {
            Rhythm::Every { interval, .. } => Some(*interval),
            Rhythm::Cron(cron) => {
                let next = cron.after(self.wall(now, wall_clock))?;
                Some(cron.after(next)?.since(next))
            }
            Rhythm::At(_) => None,
        }
    }

    /// How long from one occurrence to the next in the mean, with the time that calendars exclude; `None` where nothing
    /// comes in the next four weeks.
    pub fn mean_interval(&self, now: Time, wall_clock: &WallClock) -> Option<Duration> {
        let plain = self.mean_plain_interval(now, wall_clock)?;
        let share = self.allowed_share(wall_clock.wall(now));
        (share > 0.0).then(|| Duration::try_from_secs_f64(plain.as_secs_f64() / share).unwrap_or(Duration::MAX))
    }

    /// Why what sleeps comes no sooner, where calendars are the reason, for a person: `the next tick is 06:00: 02:13 is in
    /// the quiet hours 22:00-06:00 (Asia/Tokyo)`. `place` is the chain's phase.
    pub fn because(&self, asleep: Asleep, now: Time, place: f64, wall_clock: &WallClock) -> Option<String> {
        if self.excluded.is_none() {
            return None;
        }
        let (today, due) = (wall_clock.wall(now), wall_clock.wall(asleep.due));
        let comes = Exclusions::shown(&self.excluded.zone(), due, today);
        let place = Place { phase: if self.spread_phase { place } else { 0.0 }, ahead: wall_clock.ahead() };
        let last = asleep.last_start.max(asleep.last_finish);
        let grid = |time: Time| shifted(time, if self.follows_the_wall() { wall_clock.ahead() } else { 0 });
        let anchor = if last == Time::default() { asleep.nominal } else { grid(asleep.last_start) };
        if let Some(why) = self.excluded.why(due, today) {
            let fixed = matches!(self.rhythm, Rhythm::At(_) | Rhythm::Every { from: From::Finish, .. });
            let over = if fixed {
                self.excluded.allowed_from(due).is_none()
            } else {
                self.after(anchor, grid(now), place).is_none()
            };
            return Some(match over {
                true => format!("no occurrence in the next ten years is allowed: {why}; it looks again at {comes}"),
                false => format!("{why}, so the tick will not start then"),
            });
        }
        // Now is excluded; or else what would have come after the last run.
        let plain = match &self.rhythm {
            Rhythm::Every { interval, from: From::Finish } => Some(wall_clock.wall(asleep.last_finish + *interval)),
            Rhythm::At(at) => Some(*at),
            _ => self.plain_after(anchor, anchor, place.phase).map(|next| shifted(next, self.ahead(place))),
        };
        let mut moments = [today].into_iter().chain(plain).filter(|wall| *wall < due);
        let why = moments.find_map(|wall| self.excluded.why(wall, today))?;
        Some(format!("the next tick is {comes}: {why}"))
    }

    /// The share of the time to come, from 0 to 1, that calendars do not exclude.
    pub fn allowed_share(&self, wall: Time) -> f64 {
        if self.excluded.is_none() {
            return 1.0;
        }
        let (end, mut at, mut allowed) = (wall + SAMPLE, wall, Duration::ZERO);
        while at < end {
            let piece = self.excluded.piece(at);
            let until = piece.until.min(end);
            allowed += if piece.inside { Duration::ZERO } else { until.since(at) };
            at = until;
        }
        allowed.as_secs_f64() / SAMPLE.as_secs_f64()
    }

    /// The same without calendars: of the wall clock's next week, or of its next 200 occurrences.
    fn mean_plain_interval(&self, now: Time, wall_clock: &WallClock) -> Option<Duration> {
        const WEEK: Duration = Duration::from_secs(7 * 86_400);
        const MANY: u32 = 200;
        let Rhythm::Cron(cron) = &self.rhythm else { return self.interval(now, wall_clock) };
        let first = cron.after(self.wall(now, wall_clock))?;
        let (mut last, mut count) = (first, 0);
        while count < MANY
            && last.since(first) < WEEK
            && let Some(next) = cron.after(last)
        {
            (last, count) = (next, count + 1);
        }
        (count > 0).then(|| last.since(first) / count)
    }

    /// The first occurrence of a chain that begins at `now`. `offset` is its place among those that
    /// begin with it, for rhythms that have no place of their own.
    pub fn first(&self, now: Time, offset: Duration, setting: Setting<'_>) -> Option<Occurrence> {
        let nominal = match &self.rhythm {
            Rhythm::At(at) => self.once(*at)?,
            Rhythm::Every { from: From::Nominal, .. } if self.spread_phase => {
                self.after(now, now, setting.place()).or_else(|| self.looks_again(now, now, setting.phase))?
            }
            Rhythm::Every { interval, .. } => self.delayed(now + offset, now - MILLISECOND, *interval, setting),
            Rhythm::Cron(_) => {
                let now = self.wall(now, setting.wall_clock);
                let next = self.unseen(now, now, setting.place(), self.seen(setting, END));
                next.or_else(|| self.looks_again(now, now, setting.phase))?
            }
        };
        let due = self.spread_out(self.steady(nominal, setting.wall_clock), setting);
        let nominal = self.anchored(nominal, due, setting.wall_clock);
        Some(Occurrence { nominal, due, overlapped: 0, misfired: 0, excluded: 0 })
    }

    /// The tick that follows `ran`; `None` when nothing does. Where calendars exclude all that follows in the next ten
    /// years, it is one of those that they exclude: so the chain looks again, and the guard of its claim says why it
    /// does not start.
    pub fn next(&self, ran: Ran, setting: Setting<'_>) -> Option<Occurrence> {
        match &self.rhythm {
            Rhythm::At(_) => return None,
            Rhythm::Every { interval, from: From::Finish } => {
                let delay = self.delay(*interval, ran.finished, setting);
                return Some(self.next_after(delay, ran.finished, *interval, setting));
            }
            Rhythm::Every { .. } | Rhythm::Cron(_) => {}
        }
        let passed = self.passed(ran, setting);
        let (anchor, from) = (passed.anchor, passed.from);
        let Some(next) = self.next_on_grid(passed, ran, setting) else {
            let nominal = self.looks_again(anchor, from, setting.phase)?;
            let excluded = self.bend(anchor, setting.place(), |bend, wall| bend.plain(wall(anchor), wall(nominal)));
            let due = self.steady(nominal, setting.wall_clock).max(ran.finished);
            return Some(Occurrence { nominal, due, overlapped: 0, misfired: 0, excluded: fewer(excluded, 1) });
        };
        if self.excluded.is_none() {
            return Some(next);
        }
        let gone = u64::from(next.overlapped) + u64::from(next.misfired) + 1;
        let excluded = match gone <= u64::from(MAX_COUNTED) {
            true => self.bend(anchor, setting.place(), |bend, wall| bend.meant(wall(anchor), wall(next.nominal))),
            // They were not counted to the last either.
            false => 0,
        };
        let nominal = self.anchored(next.nominal, next.due, setting.wall_clock);
        Some(Occurrence { nominal, excluded: fewer(excluded, gone), ..next })
    }

    /// The nominal time of what comes at `nominal` and is due then. An interval that has moved to the end of excluded time
    /// with many others goes on from its own place there, or they would stay together.
    fn anchored(&self, nominal: Time, due: Time, wall_clock: &WallClock) -> Time {
        let has_no_place = matches!(self.rhythm, Rhythm::Every { .. }) && !self.spread_phase;
        if has_no_place && due > nominal && self.was_postponed(wall_clock.wall(nominal)) { due } else { nominal }
    }

    /// What follows a `delay` after `finished` that would be asked for again after each `interval`.
    pub fn next_after(&self, delay: Duration, finished: Time, interval: Duration, setting: Setting<'_>) -> Occurrence {
        let meant = finished + delay;
        if self.excluded.is_none() {
            return Occurrence { nominal: meant, due: meant, overlapped: 0, misfired: 0, excluded: 0 };
        }
        let nominal = self.delayed(meant, finished, interval, setting);
        let gone = nominal.since(meant).as_millis() / interval.max(MILLISECOND).as_millis();
        // Where it lies between two of the grid, it is the last of those before it, moved.
        let due = self.spread_out(nominal, setting);
        let excluded = u32::try_from(gone).unwrap_or(u32::MAX);
        Occurrence { nominal: due, due, overlapped: 0, misfired: 0, excluded }
    }

    /// The first after `after` of what calendars leave of the grid that begins with `meant`.
    fn delayed(&self, meant: Time, after: Time, interval: Duration, setting: Setting<'_>) -> Time {
        if self.excluded.is_none() {
            return meant;
        }
        let ahead = setting.wall_clock.ahead();
        let interval = interval.max(MILLISECOND);
        let step = |time: Time| {
            let gone = time.as_millis().saturating_sub(meant.as_millis());
            let steps = if gone < 0 { 0 } else { gone / interval.as_millis() as i64 + 1 };
            shifted(meant, steps.saturating_mul(interval.as_millis() as i64))
        };
        let plain = |wall: Time| Some(shifted(step(shifted(wall, -ahead)), ahead));
        let next = Bend::new(&self.excluded, &plain, Some(interval)).after(shifted(after, ahead));
        next.map_or_else(|| step(after + LOOK_AGAIN), |next| shifted(next, -ahead))
    }

    /// When what comes at `nominal` is due: there, unless it has moved to the end of excluded time with many others.
    fn spread_out(&self, nominal: Time, setting: Setting<'_>) -> Time {
        let wall = setting.wall_clock.wall(nominal);
        if !self.was_postponed(wall) || self.misfire.spread.is_zero() {
            return nominal;
        }
        let spread = setting.dice.between(Duration::ZERO, self.misfire.spread);
        let end = bend::until(&self.excluded, wall, wall + spread);
        nominal + end.map_or(spread, |end| end.since(wall).saturating_sub(MILLISECOND))
    }

    /// Whether what comes at this time of the wall clock has moved there from the excluded time before it.
    fn was_postponed(&self, wall: Time) -> bool {
        self.excluded.when == WhenExcluded::Next
            && self.excluded.excludes(wall - MILLISECOND)
            && !self.excluded.excludes(wall)
    }

    /// What comes once at `at`, as calendars have it.
    fn once(&self, at: Time) -> Option<Time> {
        if self.excluded.excludes(at) { self.after(at, at - bend::LOOK_BACK, 0.0) } else { Some(at) }
    }

    /// An occurrence at which a chain looks again whether calendars allow one.
    fn looks_again(&self, anchor: Time, now: Time, phase: f64) -> Option<Time> {
        if self.excluded.is_none() { None } else { self.plain_after(anchor, now + LOOK_AGAIN, phase) }
    }

    fn next_on_grid(&self, passed: Passed<'_>, ran: Ran, setting: Setting<'_>) -> Option<Occurrence> {
        let Passed { anchor, started, finished, from, leapt, seen } = passed;
        let phase = setting.place();
        let mut late = self.missed(anchor, (anchor, started), phase, seen);
        let mut meanwhile = self.missed(anchor, (anchor.max(started), finished), phase, seen);
        let at_once = |nominal, overlapped, misfired| {
            Some(Occurrence { nominal, due: ran.finished, overlapped, misfired, excluded: 0 })
        };
        let in_time = |nominal: Time| self.misfire.window.is_none_or(|window| finished.since(nominal) <= window);
        if self.misfire.policy == Catch::All {
            let oldest = self.misfire.window.map_or(anchor, |window| anchor.max(finished - window));
            let up_to = if leapt { finished } else { started };
            let kept = self.missed(anchor, (oldest, up_to), phase, seen);
            if let Some(nominal) = kept.first {
                let wait = self.misfire.spread / kept.count;
                let due = ran.finished + wait;
                let passed = if leapt { late.count + meanwhile.count } else { late.count };
                let misfired = passed.saturating_sub(kept.count);
                return Some(Occurrence { nominal, due, overlapped: 0, misfired, excluded: 0 });
            }
        } else if leapt {
            // Nothing could start at the times that the wall clock was set across.
            if let Some(last) = meanwhile.last.filter(|last| self.misfire.policy == Catch::Coalesce && in_time(*last)) {
                return at_once(last, 0, late.count + meanwhile.count - 1);
            }
            late.count += meanwhile.count;
            meanwhile = Missed::default();
        }
        match (self.overlap, meanwhile.last) {
            (Overlap::BufferOne | Overlap::CancelOther, Some(last)) => at_once(last, meanwhile.count - 1, late.count),
            _ => {
                let nominal = match seen {
                    Some(_) => self.pending(from, (ran.started, anchor + MILLISECOND), setting)?,
                    None => self.after(anchor, from, phase)?,
                };
                let due = self.bent(nominal, ran.finished, setting);
                let (overlapped, misfired) = (meanwhile.count, late.count);
                Some(Occurrence { nominal, due, overlapped, misfired, excluded: 0 })
            }
        }
    }

    /// What has gone by until a run ended, on the grid that the schedule follows.
    fn passed<'a>(&self, ran: Ran, setting: Setting<'a>) -> Passed<'a> {
        let Ran { nominal, started, finished } = ran;
        if !self.follows_the_wall() {
            let anchor = if matches!(self.rhythm, Rhythm::Every { from: From::Start, .. }) { started } else { nominal };
            // A run that began early, within its jitter or by an operator's wish, may end before its own time.
            return Passed { anchor, started, finished, from: finished.max(anchor), leapt: false, seen: None };
        }
        let wall_clock = setting.wall_clock;
        let anchor = self.shown_nominal(nominal, setting.phase, wall_clock);
        let came = wall_clock.came_to(anchor, started);
        let since = came.unwrap_or(started);
        let (now, seen) = (wall_clock.wall(finished), self.seen(setting, since));
        // It began early; or it was due by a clock that was set back just before it, and others come first.
        let others_come = || self.unseen(anchor, now, setting.place(), seen).is_some_and(|next| next < anchor);
        // Settings are known to within some milliseconds, so an occurrence may run a little before the clock shows it.
        let early = now < anchor && anchor <= now + MAX_SKEW * 2;
        let back = (came.is_some() && !early) || (self.was_next(anchor, setting) && others_come());
        Passed {
            anchor,
            started: wall_clock.highest(since, started),
            finished: wall_clock.highest(since, finished),
            // The clock may have been set back since.
            from: if back { now } else { now.max(anchor) },
            leapt: wall_clock.leaps().any(|leap| started < leap.at && leap.at <= finished),
            seen,
        }
    }

    /// Whether its occurrences are times of the wall clock. A wall clock that runs faster than time is one of its own.
    pub fn follows_the_wall(&self) -> bool {
        match &self.rhythm {
            Rhythm::Every { .. } => false,
            Rhythm::Cron(cron) => cron.pace().is_none(),
            Rhythm::At(_) => true,
        }
    }

    /// What the grid has at `time`, as the wall clock is set now.
    fn wall(&self, time: Time, wall_clock: &WallClock) -> Time {
        if self.follows_the_wall() { wall_clock.wall(time) } else { time }
    }

    /// When the grid comes to `nominal`, as the wall clock is set now.
    fn steady(&self, nominal: Time, wall_clock: &WallClock) -> Time {
        if self.follows_the_wall() { wall_clock.steady(nominal) } else { nominal }
    }

    /// A chain's `nominal` time as the wall clock shows it. What is no occurrence of a schedule that follows the wall
    /// clock was asked for, by a run that said when the next one is to come, say, and is steady.
    pub fn shown_nominal(&self, nominal: Time, phase: f64, wall_clock: &WallClock) -> Time {
        let is_wall = || self.follows_the_wall() && self.is_occurrence(nominal, phase);
        if wall_clock.stretches().is_empty() || is_wall() { nominal } else { wall_clock.showed(nominal) }
    }

    /// The nominal time, as a chain keeps it, of what is to come at `due`.
    pub fn nominal_of(&self, due: Time, phase: f64, wall_clock: &WallClock) -> Time {
        let wall = self.wall(due, wall_clock);
        if self.follows_the_wall() && self.is_occurrence(wall, phase) { wall } else { due }
    }

    /// Whether `nominal` is one of the times of a schedule that follows the wall clock.
    fn is_occurrence(&self, nominal: Time, phase: f64) -> bool {
        match &self.rhythm {
            Rhythm::At(at) => self.once(*at) == Some(nominal),
            _ => self.after(nominal, nominal - MILLISECOND, phase) == Some(nominal),
        }
    }

    /// What the wall clock has shown by `by` before it was set back.
    fn seen<'a>(&self, setting: Setting<'a>, by: Time) -> Option<Seen<'a>> {
        let seen = Seen { wall_clock: setting.wall_clock, by };
        (self.follows_the_wall() && setting.wall_clock.stretches().len() > 1).then_some(seen)
    }

    /// When a run that started at `started` has to make room for the next occurrence.
    pub fn cancelled_at(&self, nominal: Time, started: Time, setting: Setting<'_>) -> Option<Time> {
        if self.overlap != Overlap::CancelOther {
            return None;
        }
        let anchor = if matches!(self.rhythm, Rhythm::Every { from: From::Start, .. }) { started } else { nominal };
        let (time, wall_clock) = (self.wall(started, setting.wall_clock), setting.wall_clock);
        let next = self.unseen(anchor, time, setting.place(), self.seen(setting, END))?;
        Some(self.steady(next, wall_clock))
    }

    /// A delay after the end of a run. A jittered one has one of the interval's own rungs, 25 ms shorter, so
    /// that it costs one hop. Other rungs in its window would do that too, but they lie denser at its lower
    /// end: the mean would suffer.
    fn delay(&self, interval: Duration, now: Time, setting: Setting<'_>) -> Duration {
        if self.jitter.is_zero() {
            return interval;
        }
        let window = (interval - self.jitter, interval + self.jitter);
        setting.balance.choose(now, window, &jitter_rungs(interval, self.jitter), setting.dice)
    }

    /// When the occurrence of `nominal` is due, as seen at `now`: somewhere within the jitter, before
    /// the next nominal time and not before now.
    fn bent(&self, nominal: Time, now: Time, setting: Setting<'_>) -> Time {
        let next = self.after(nominal, nominal, setting.place()).map_or(self.jitter, |next| next.since(nominal));
        let nominal = self.steady(nominal, setting.wall_clock);
        let spread = self.spread_out(nominal, setting);
        if self.jitter.is_zero() || spread != nominal {
            return spread.max(now);
        }
        let jitter = self.jitter.min(next.saturating_sub(MILLISECOND));
        let (first, last) = self.allowed_around(nominal, jitter, setting.wall_clock);
        let window = (first.since(now), last.since(now));
        let points = jitter_points(nominal - jitter, jitter).filter(|point| first <= *point && *point <= last);
        let points: Vec<Duration> = points.map(|point| point.since(now)).collect();
        now + setting.balance.choose(now, window, &points, setting.dice)
    }

    /// The window of `jitter` around `nominal`, as far as calendars allow it.
    fn allowed_around(&self, nominal: Time, jitter: Duration, wall_clock: &WallClock) -> (Time, Time) {
        let (first, last) = (nominal - jitter, nominal + jitter);
        if self.excluded.is_none() {
            return (first, last);
        }
        let wall = wall_clock.wall(nominal);
        let since = wall_clock.steady(bend::since(&self.excluded, wall));
        let until =
            bend::until(&self.excluded, wall, wall + jitter).map(|until| wall_clock.steady(until - MILLISECOND));
        (first.max(since), until.map_or(last, |until| last.min(until)))
    }

    /// The first occurrence after `time` that calendars leave, on the grid of which `anchor` is a point.
    fn after(&self, anchor: Time, time: Time, place: impl Into<Place>) -> Option<Time> {
        let place = place.into();
        if self.excluded.is_none() {
            return self.plain_after(anchor, time, place.phase);
        }
        let ahead = self.ahead(place);
        self.bend(anchor, place, |bend, wall| bend.after(wall(time))).map(|next| shifted(next, -ahead))
    }

    /// By how much the wall clock is ahead of the grid.
    fn ahead(&self, place: Place) -> i64 {
        if self.follows_the_wall() { 0 } else { place.ahead }
    }

    /// Asks what calendars leave of the grid of which `anchor` is a point. They are asked in times of the wall clock, into
    /// which the second argument turns those of the grid.
    fn bend<T>(&self, anchor: Time, place: Place, ask: impl FnOnce(&Bend<'_>, &dyn Fn(Time) -> Time) -> T) -> T {
        let ahead = self.ahead(place);
        let plain = |wall: Time| Some(shifted(self.plain_after(anchor, shifted(wall, -ahead), place.phase)?, ahead));
        let interval = match &self.rhythm {
            Rhythm::Every { interval, .. } => Some(*interval),
            Rhythm::Cron(_) | Rhythm::At(_) => None,
        };
        ask(&Bend::new(&self.excluded, &plain, interval), &|time| shifted(time, ahead))
    }

    /// The first occurrence after `time`, on the grid of which `anchor` is a point, whatever calendars say.
    fn plain_after(&self, anchor: Time, time: Time, phase: f64) -> Option<Time> {
        match &self.rhythm {
            Rhythm::At(at) => Some(*at).filter(|at| *at > time),
            Rhythm::Every { interval, .. } => Some(self.step(anchor, *interval, phase, time)),
            Rhythm::Cron(cron) if self.spread_phase => {
                let mut start = cron.at_or_before(time).or_else(|| cron.after(time))?;
                loop {
                    let next = cron.after(start)?;
                    let own = start + next.since(start).mul_f64(phase);
                    if own > time {
                        return Some(own);
                    }
                    start = next;
                }
            }
            Rhythm::Cron(cron) => cron.after(time),
        }
    }

    /// The first point after `time` of a grid of steps of `interval`.
    fn step(&self, anchor: Time, interval: Duration, phase: f64, time: Time) -> Time {
        let interval = (interval.as_millis() as i64).max(1);
        let anchor = match self.rhythm {
            // The same for all workers and for ever: counted from 1970.
            Rhythm::Every { from: From::Nominal, .. } if self.spread_phase => (interval as f64 * phase) as i64,
            _ => anchor.as_millis(),
        };
        let steps = time.as_millis().saturating_sub(anchor).div_euclid(interval) + 1;
        Time::from_millis(anchor.saturating_add(steps.saturating_mul(interval)))
    }

    /// The first occurrence after `time` that was not `seen` before.
    fn unseen(&self, anchor: Time, time: Time, place: impl Into<Place>, seen: Option<Seen<'_>>) -> Option<Time> {
        let place = place.into();
        let mut next = self.after(anchor, time, place)?;
        while let Some(until) = seen.and_then(|seen| seen.wall_clock.shown_until(next, seen.by)) {
            next = self.after(anchor, until - MILLISECOND, place)?;
        }
        Some(next)
    }

    /// Occurrences after `from` and up to `to`.
    fn missed(&self, anchor: Time, (from, to): (Time, Time), phase: Place, seen: Option<Seen<'_>>) -> Missed {
        if !self.excluded.is_none() && matches!(self.rhythm, Rhythm::Every { .. }) {
            let ahead = self.ahead(phase);
            let found = self.bend(anchor, phase, |bend, wall| bend.between(wall(from), wall(to)));
            let back = |time| Some(shifted(time, -ahead));
            return found.map_or(Missed::default(), |(count, first, last)| Missed {
                count: u32::try_from(count).unwrap_or(u32::MAX),
                first: back(first),
                last: back(last),
            });
        }
        let Some(first) = self.unseen(anchor, from, phase, seen).filter(|first| *first <= to) else {
            return Missed::default();
        };
        if let Rhythm::Every { interval, .. } = self.rhythm {
            let interval = (interval.as_millis() as i64).max(1);
            let more = (to.as_millis() - first.as_millis()) / interval;
            let last = Time::from_millis(first.as_millis() + more * interval);
            let count = u32::try_from(more + 1).unwrap_or(u32::MAX);
            return Missed { count, first: Some(first), last: Some(last) };
        }
        let (mut count, mut last) = (1, first);
        while let Some(next) = self.unseen(anchor, last, phase, seen).filter(|next| *next <= to && count < MAX_COUNTED)
        {
            (count, last) = (count + 1, next);
        }
        if count == MAX_COUNTED
            && let Rhythm::Cron(cron) = &self.rhythm
        {
            last = cron.at_or_before(to).filter(|_| !self.spread_phase).unwrap_or(last);
        }
        Missed { count, first: Some(first), last: Some(last) }
    }
}

/// As people say it: `every 5m from nominal ± 10s`.
impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.rhythm {
            Rhythm::Every { interval, from } => {
                write!(f, "every {}", short_duration(*interval))?;
                match from {
                    From::Finish => {}
                    From::Start => f.write_str(" from start")?,
                    From::Nominal => f.write_str(" from nominal")?,
                }
            }
            Rhythm::Cron(cron) => write!(f, "cron {cron}")?,
            Rhythm::At(at) => write!(f, "at {at}")?,
        }
        if !self.jitter.is_zero() {
            write!(f, " ± {}", short_duration(self.jitter))?;
        }
        if self.spread_phase {
            f.write_str(", phases spread")?;
        }
        self.excluded.words().map_or(Ok(()), |words| write!(f, ", {words}"))
    }
}

/// The `n`-th of `count` points spread evenly over `window`, each in the middle of its share.
pub fn spread(n: usize, count: usize, window: Duration) -> Duration {
    if count == 0 {
        return Duration::ZERO;
    }
    let share = (n.min(count - 1) as f64 + 0.5) / count as f64;
    Duration::from_millis((window.as_millis() as f64 * share) as u64)
}

#[cfg(test)]
mod tests;
