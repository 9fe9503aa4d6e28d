//! What happened → what follows (pure).
//!
//! A handler's word is one of a closed set, [`Outcome`]; [`decide`] turns it into the one thing
//! that follows, [`Next`]. Nothing else in the engine decides about retries and successors.

use std::time::Duration;

use serde_json::Value;

use crate::clock::{Entropy, Time, short_duration};
use crate::failure::{Batch, FailedItem};
use crate::guard::Refusal;
use crate::ladder::Ladder;
use crate::reason::{Class, Reason};
use crate::schedule::{Catch, From as CountedFrom, Occurrence, Ran, Rhythm, Schedule, Setting, WhenExcluded};
use crate::waits::Hindrance;

/// No retry and no snooze waits longer than this, whatever an upstream's `Retry-After` says.
pub const MAX_WAIT: Duration = Duration::from_secs(30 * 86_400);
/// The shortest wait of a snooze. None is charged, so a shorter one would be a loop at full speed.
pub const MIN_SNOOZE: Duration = Duration::from_millis(100);

/// What a run ended as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It worked.
    Done,
    /// It worked, and this came of it.
    DoneWith(Yield),
    /// It may work later: try again by the kind's retry policy, and not before `after`.
    Retry {
        /// What went wrong.
        reason: Reason,
        /// The earliest time to try again, from now, when the upstream named one.
        after: Option<Duration>,
    },
    /// It will never work for this tick or job; kept with its reason and not retried. A chain
    /// still goes on with its next tick.
    Fail {
        /// What went wrong.
        reason: Reason,
    },
    /// Not now, and this is no failure: again after `wait`, with no attempt charged.
    Snooze {
        /// Why.
        reason: Reason,
        /// How long from now.
        wait: Duration,
    },
    /// The entity is gone: end its chain.
    Retire {
        /// Why.
        reason: Reason,
    },
}

/// What a run asks for beside its end. All of it is accepted together with the end, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Yield {
    /// One-off jobs to run. Each gets an id that follows from the run's, so that a run that has to
    /// be repeated asks for the same jobs.
    pub jobs: Vec<NewJob>,
    /// Chains to begin, of entities that the run has discovered. One that is there already, or has ended,
    /// is left as it is.
    pub chains: Vec<Discovered>,
    /// What did not work. It is kept as a failure of the entity, and the run still counts as done.
    pub failed: Vec<FailedItem>,
    /// Jobs that the tick waits for: it is done when all of them have ended, whether they worked or
    /// not, and only then the next tick follows. Only ticks of chains can have them.
    pub batch: Vec<NewJob>,
    /// What the chain's next run gets as [`crate::job::Job::carry`].
    pub carry: Option<Value>,
    /// When the next tick is due, from now, in place of what the schedule says.
    pub next_in: Option<Duration>,
    /// Whether the entity has changed since the run before; absent, nothing was said of that.
    pub change: Option<Change>,
}

/// What a run says of whether its entity has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The entity is as it was.
    Same,
    /// The entity has changed.
    Changed,
    /// The entity last changed then, by the wall clock.
    ChangedAt(Time),
    /// A number that stands for what the entity is now: another one than at the run before, and it has changed.
    Mark(u64),
}

/// A one-off job that a run asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewJob {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// What the handler gets.
    pub payload: Value,
    /// The platform queue; absent, the kind's own, or else that of the run.
    pub queue: Option<String>,
    /// Not before this long after the run has ended.
    pub delay: Duration,
    /// Who it belongs to; absent, the owner of the run. Not for a batch, which is part of its chain.
    pub owner: Option<String>,
}

/// An entity that a run has discovered, and that gets a chain of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovered {
    /// Which handler; a kind with a schedule.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// What the handler gets.
    pub payload: Value,
    /// The platform queue; absent, the kind's own, or else that of the run.
    pub queue: Option<String>,
    /// Who it belongs to; absent, the owner of the run.
    pub owner: Option<String>,
    /// A schedule of its own, as people write it in a roster: `5m`, a cron expression, or a JSON object.
    pub schedule: Option<String>,
    /// Its first tick comes within so long, at a place that follows from its name; absent, within its
    /// interval. Where the wall clock says when, this has no say.
    pub spread: Option<Duration>,
}

impl Outcome {
    /// A failure that may pass.
    pub fn retry(reason: impl Into<Reason>) -> Self {
        Self::Retry { reason: reason.into(), after: None }
    }

    /// A failure that will not.
    pub fn fail(reason: impl Into<Reason>) -> Self {
        Self::Fail { reason: reason.into() }
    }

    /// Why it did not work, unless it did.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Done | Self::DoneWith(_) => None,
            Self::Retry { reason, .. }
            | Self::Fail { reason }
            | Self::Snooze { reason, .. }
            | Self::Retire { reason } => Some(reason),
        }
    }
}

/// Success, or an error that is worth a retry: lets a handler return an ordinary `Result`.
impl<E: std::fmt::Display> From<Result<(), E>> for Outcome {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::retry(format!("{error:#}")),
        }
    }
}

/// How often and after which waits a failed attempt is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; at least 1.
    pub attempts: u32,
    /// The wait before each further attempt.
    pub backoff: Backoff,
}

/// The waits between attempts.
#[derive(Clone, Debug, PartialEq)]
pub enum Backoff {
    /// One wait after another; the last one repeats.
    List(Vec<Duration>),
    /// `base × factor^(n − 1)` after the n-th attempt, at most `max`, give or take the fraction
    /// `jitter` of it.
    Exponential {
        /// The first wait.
        base: Duration,
        /// The growth; at least 1.
        factor: f64,
        /// The ceiling.
        max: Duration,
        /// From 0 (exact) to 1.
        jitter: f64,
    },
}

impl RetryPolicy {
    /// The wait after the failed attempt number `attempt`, or `None` when it was the last.
    fn wait(&self, attempt: u32, ladder: &Ladder, entropy: &Entropy) -> Option<Duration> {
        let (low, high) = self.window(attempt)?;
        Some(if low == high { low } else { ladder.choose(low, high, entropy) })
    }

    /// The shortest and the longest wait after the failed attempt number `attempt`, or `None` when it
    /// was the last.
    pub fn window(&self, attempt: u32) -> Option<(Duration, Duration)> {
        if attempt >= self.attempts {
            return None;
        }
        let (low, high) = match &self.backoff {
            Backoff::List(waits) => {
                let n = (attempt.max(1) as usize - 1).min(waits.len().saturating_sub(1));
                let wait = waits.get(n).copied().unwrap_or_default();
                (wait, wait)
            }
            Backoff::Exponential { base, factor, max, jitter } => {
                let exponent = i32::try_from(attempt.max(1) - 1).unwrap_or(i32::MAX);
                let grown = (base.as_secs_f64() * factor.powi(exponent)).min(max.as_secs_f64());
                let jitter = jitter.max(0.0);
                let low = Duration::from_secs_f64(grown * (1.0 - jitter));
                (low, Duration::from_secs_f64((grown * (1.0 + jitter)).min(max.as_secs_f64())))
            }
        };
        Some((low, high.max(low)))
    }
}

/// The one thing that follows a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The chain's next tick, due then.
    Tick {
        /// Its place in the schedule.
        nominal: Time,
        /// When.
        due: Time,
    },
    /// The same tick, once its batch has come to its end.
    Gather,
    /// The same tick or job again, as another attempt.
    Attempt {
        /// Its number.
        attempt: u32,
        /// When.
        due: Time,
    },
    /// The same attempt again, as if it had not started.
    Snooze {
        /// When.
        due: Time,
    },
    /// Nothing: a one-off job has ended, or a chain is retired.
    End,
}

/// The word under which an attempt is recorded and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It worked.
    Done,
    /// It failed, and is tried again.
    Retried,
    /// It failed for good: permanently, or at its last attempt.
    Failed,
    /// It was put off, with no attempt charged.
    Snoozed,
    /// The chain ended.
    Retired,
    /// It began a batch, and waits for it.
    FannedOut,
    /// It did not start, because it came too soon after another start.
    Dropped,
    /// It did not start, for another reason of its schedule.
    Skipped,
    /// It was ended because its time was up.
    Cut,
}

impl Verdict {
    /// As written in the ledger and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Done => "done",
            Verdict::Retried => "retried",
            Verdict::Failed => "failed",
            Verdict::Snoozed => "snoozed",
            Verdict::Retired => "retired",
            Verdict::FannedOut => "fanned_out",
            Verdict::Dropped => "dropped",
            Verdict::Skipped => "skipped",
            Verdict::Cut => "cut",
        }
    }
}

/// A decision and how to record it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What follows.
    pub next: Next,
    /// What to call the attempt.
    pub verdict: Verdict,
    /// The handler's reason, for everything but [`Verdict::Done`].
    pub reason: Option<Reason>,
    /// What the run asks for.
    pub yields: Yield,
    /// Occurrences left out on the way to what follows.
    pub left_out: LeftOut,
}

/// Occurrences of a schedule that went by without a run, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The chain still ran.
    pub overlapped: u32,
    /// Nothing could start.
    pub misfired: u32,
    /// For what the misfired ones waited.
    pub hindrance: Hindrance,
    /// A calendar excluded them.
    pub excluded: u32,
}

/// What follows, and what was left out on the way to it.
type Onward = (Next, LeftOut);

/// Nothing follows.
const OVER: Onward = (Next::End, LeftOut { overlapped: 0, misfired: 0, hindrance: Hindrance::Misfire, excluded: 0 });

impl Decision {
    /// The end, and nothing more.
    pub fn end(verdict: Verdict, reason: Reason) -> Self {
        let yields = Yield::default();
        Self { next: Next::End, verdict, reason: Some(reason), yields, left_out: LeftOut::default() }
    }

    /// The same attempt once more, soon after `at`.
    pub fn later(at: Time, reason: Reason) -> Self {
        Self::put_off(at + MIN_SNOOZE, reason)
    }

    /// The same attempt once more, at `due`.
    pub fn put_off(due: Time, reason: Reason) -> Self {
        let next = Next::Snooze { due };
        Self { next, ..Self::end(Verdict::Snoozed, reason) }
    }
}

/// How a chain goes on.
#[derive(Clone, Copy)]
pub struct Course<'a> {
    /// When its ticks come.
    pub schedule: &'a Schedule,
    /// The tick that ends.
    pub ran: Ran,
    /// The chain, and the world.
    pub setting: Setting<'a>,
    /// Within these, a run may say when the next tick is due.
    pub bounds: (Duration, Duration),
}

fn followed_by(next: Occurrence) -> Onward {
    let Occurrence { nominal, due, overlapped, misfired, excluded } = next;
    (Next::Tick { nominal, due }, LeftOut { overlapped, misfired, excluded, ..LeftOut::default() })
}

impl Course<'_> {
    /// The next tick, and what was left out on the way to it.
    fn onward(&self) -> Onward {
        self.schedule.next(self.ran, self.setting).map_or(OVER, followed_by)
    }

    /// Whether another attempt at `due` would come after the schedule's next occurrence.
    fn overtakes(&self, due: Time) -> bool {
        let delay = matches!(self.schedule.rhythm, Rhythm::Every { from: CountedFrom::Finish, .. });
        !delay && matches!(self.onward().0, Next::Tick { due: next, .. } if next <= due)
    }
}

/// What follows an `outcome` of attempt number `attempt` that ended at `finished`. `course` is how the
/// chain goes on, `None` for what runs once.
pub fn decide(
    course: Option<Course<'_>>,
    retry: &RetryPolicy,
    attempt: u32,
    outcome: Outcome,
    finished: Time,
    ladder: &Ladder,
    entropy: &Entropy,
) -> Decision {
    let onward = || course.map_or(OVER, |course| course.onward());
    let failed = |reason| (onward(), Verdict::Failed, Some(reason));
    let nothing = LeftOut::default();
    let mut yields = Yield::default();
    let ((next, left_out), verdict, reason) = match outcome {
        Outcome::DoneWith(asked) if !asked.batch.is_empty() => {
            yields = asked;
            ((Next::Gather, nothing), Verdict::FannedOut, None)
        }
        Outcome::DoneWith(asked) => {
            let next = match (course, asked.next_in) {
                (Some(Course { schedule, setting, bounds: (least, most), .. }), Some(wait)) => {
                    let wait = wait.clamp(least, most);
                    followed_by(schedule.next_after(wait, finished, wait, setting))
                }
                _ => onward(),
            };
            yields = asked;
            (next, Verdict::Done, None)
        }
        Outcome::Done => (onward(), Verdict::Done, None),
        Outcome::Fail { reason } => failed(reason),
        Outcome::Retire { reason } => ((Next::End, nothing), Verdict::Retired, Some(reason)),
        Outcome::Snooze { reason, wait } => {
            let due = finished + wait.clamp(MIN_SNOOZE, MAX_WAIT);
            ((Next::Snooze { due }, nothing), Verdict::Snoozed, Some(reason))
        }
        Outcome::Retry { reason, after } => match retry.wait(attempt, ladder, entropy) {
            Some(wait) => {
                let due = finished + wait.max(after.unwrap_or_default()).min(MAX_WAIT);
                if course.is_some_and(|course| course.overtakes(due)) {
                    let text = format!("{}; the next occurrence comes before another attempt would", reason.text);
                    failed(Reason { text, ..reason })
                } else {
                    ((Next::Attempt { attempt: attempt + 1, due }, nothing), Verdict::Retried, Some(reason))
                }
            }
            None => failed(reason),
        },
    };
    Decision { next, verdict, reason, yields, left_out }
}

/// What follows a run that was ended because its time was up.
pub fn cut(course: Option<Course<'_>>, reason: Reason) -> Decision {
    let (next, left_out) = course.map_or(OVER, |course| course.onward());
    Decision { next, verdict: Verdict::Cut, reason: Some(reason), yields: Yield::default(), left_out }
}

/// What follows a tick that runs as a one-off job, beside those before it.
pub fn handed_on(course: Option<Course<'_>>, job: NewJob) -> Decision {
    let (next, left_out) = course.map_or(OVER, |course| course.onward());
    let yields = Yield { jobs: vec![job], ..Yield::default() };
    Decision { next, verdict: Verdict::FannedOut, reason: None, yields, left_out }
}

/// What follows a tick whose batch has come to its end.
pub fn gathered(course: Option<Course<'_>>, batch: Batch) -> Decision {
    let (next, left_out) = course.map_or(OVER, |course| course.onward());
    let Batch { total, failed } = batch;
    let text = format!("batch of {total}: {} done, {failed} failed", total - failed);
    let reason = Some(Reason::new(Class::Batch, text));
    Decision { next, verdict: Verdict::Done, reason, yields: Yield::default(), left_out }
}

/// What follows a manual run that a guard does not let start: nothing.
pub fn refused_once(refusal: Refusal) -> Decision {
    let (reason, verdict) = told(refusal);
    Decision::end(verdict, reason)
}

/// How a refusal is recorded.
fn told(refusal: Refusal) -> (Reason, Verdict) {
    let (class, verdict) = match refusal {
        Refusal::TooSoon { .. } => (Class::Tolerance, Verdict::Dropped),
        Refusal::Cooldown { .. } => (Class::Cooldown, Verdict::Skipped),
        Refusal::Running => (Class::Running, Verdict::Skipped),
        Refusal::Ended => (Class::Ended, Verdict::Skipped),
        Refusal::Deaths => (Class::Lost, Verdict::Failed),
        Refusal::Late { .. } => (Class::Misfire, Verdict::Skipped),
        Refusal::Excluded { .. } => (Class::Calendar, Verdict::Skipped),
    };
    (Reason::new(class, refusal.to_string()), verdict)
}

/// What follows a tick that a guard does not let start. `place` spreads chains over a window: from 0
/// up to 1, another for each.
pub fn refused(course: Course<'_>, refusal: Refusal, place: f64) -> Decision {
    let (mut next, mut left_out) = course.onward();
    let (mut reason, mut verdict) = told(refusal);
    match refusal {
        Refusal::TooSoon { .. } | Refusal::Cooldown { .. } | Refusal::Running | Refusal::Ended | Refusal::Deaths => {}
        Refusal::Excluded { .. } => {
            let Course { schedule, ran: Ran { finished, .. }, setting, .. } = course;
            let wall = setting.wall_clock.wall(finished);
            if let Some(why) = schedule.excluded.why_until(wall) {
                reason.text = format!("calendar: {why}");
            }
            if schedule.excluded.when == WhenExcluded::Next {
                const DAY: Duration = Duration::from_secs(86_400);
                let due = schedule.next_after(Duration::ZERO, finished, DAY, setting).due;
                (next, left_out, verdict) = (Next::Snooze { due }, LeftOut::default(), Verdict::Snoozed);
            }
        }
        Refusal::Late { by } => {
            let misfire = &course.schedule.misfire;
            if misfire.policy == Catch::Skip || misfire.window.is_some_and(|window| by > window) {
                verdict = Verdict::Skipped;
            } else {
                let wait = misfire.spread.mul_f64(place.clamp(0.0, 1.0)).max(MIN_SNOOZE);
                reason.text = format!("{}; such runs are spread over {}", reason.text, short_duration(misfire.spread));
                (next, left_out) = (Next::Snooze { due: course.ran.finished + wait }, LeftOut::default());
                verdict = Verdict::Snoozed;
            }
        }
    }
    Decision { next, verdict, reason: Some(reason), yields: Yield::default(), left_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::schedule::Misfire;
    use crate::schedule::balance::Balance;
    use crate::wall_clock::WallClock;

    /// Every 300 s after the finish.
    const EVERY: bool = true;
    /// Not at all.
    const ONCE: bool = false;

    fn list(attempts: u32, secs: &[u64]) -> RetryPolicy {
        RetryPolicy { attempts, backoff: Backoff::List(secs.iter().map(|s| Duration::from_secs(*s)).collect()) }
    }

    fn at(secs: u64) -> Time {
        Time::from_millis(secs as i64 * 1_000)
    }

    fn every(interval: u64) -> Schedule {
        Schedule::fixed_delay(Duration::from_secs(interval), Duration::ZERO)
    }

    /// What follows a run of `schedule` that was due and started at 900 s and ended at 1,000 s.
    fn ended(schedule: Option<&Schedule>, retry: &RetryPolicy, attempt: u32, outcome: Outcome) -> Decision {
        let (balance, dice) = (Balance::default(), Entropy::seeded(1));
        let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &WallClock::default() };
        let ran = Ran { nominal: at(900), started: at(900), finished: at(1_000) };
        let bounds = (Duration::from_secs(1), MAX_WAIT);
        let course = schedule.map(|schedule| Course { schedule, ran, setting, bounds });
        decide(course, retry, attempt, outcome, at(1_000), &Ladder::new([]), &dice)
    }

    fn next(recurs: bool, retry: &RetryPolicy, attempt: u32, outcome: Outcome) -> (Next, Verdict) {
        let decision = ended(Some(&every(300)).filter(|_| recurs), retry, attempt, outcome);
        (decision.next, decision.verdict)
    }

    fn after(secs: u64) -> Outcome {
        Outcome::Retry { reason: "busy".into(), after: Some(Duration::from_secs(secs)) }
    }

    #[test]
    fn a_table_of_outcomes() {
        let backoff = list(4, &[30, 60, 120]);
        let tick = Next::Tick { nominal: at(1_300), due: at(1_300) };
        let attempt = |attempt, due| Next::Attempt { attempt, due: at(due) };
        let table = [
            (EVERY, 1, Outcome::Done, tick, Verdict::Done),
            (ONCE, 1, Outcome::Done, Next::End, Verdict::Done),
            (EVERY, 1, Outcome::retry("x"), attempt(2, 1_030), Verdict::Retried),
            (EVERY, 2, Outcome::retry("x"), attempt(3, 1_060), Verdict::Retried),
            (EVERY, 3, Outcome::retry("x"), attempt(4, 1_120), Verdict::Retried),
            (EVERY, 4, Outcome::retry("x"), tick, Verdict::Failed),
            (EVERY, 99, Outcome::retry("x"), tick, Verdict::Failed),
            (ONCE, 4, Outcome::retry("x"), Next::End, Verdict::Failed),
            (EVERY, 1, after(45), attempt(2, 1_045), Verdict::Retried),
            (EVERY, 2, after(45), attempt(3, 1_060), Verdict::Retried),
            (EVERY, 1, Outcome::fail("404"), tick, Verdict::Failed),
            (ONCE, 1, Outcome::fail("404"), Next::End, Verdict::Failed),
            (EVERY, 1, Outcome::Retire { reason: "gone".into() }, Next::End, Verdict::Retired),
            (
                EVERY,
                3,
                Outcome::Snooze { reason: "429".into(), wait: Duration::from_secs(20) },
                Next::Snooze { due: at(1_020) },
                Verdict::Snoozed,
            ),
            (
                EVERY,
                1,
                Outcome::Snooze { reason: "now".into(), wait: Duration::ZERO },
                Next::Snooze { due: at(1_000) + MIN_SNOOZE },
                Verdict::Snoozed,
            ),
            (
                EVERY,
                1,
                Outcome::Snooze { reason: "429".into(), wait: Duration::MAX },
                Next::Snooze { due: at(1_000 + 30 * 86_400) },
                Verdict::Snoozed,
            ),
        ];
        for (every, number, outcome, expected, verdict) in table {
            let label = format!("{outcome:?} of attempt {number}");
            assert_eq!(next(every, &backoff, number, outcome), (expected, verdict), "{label}");
        }
    }

    #[test]
    fn a_short_list_repeats_its_last_wait() {
        assert_eq!(next(EVERY, &list(9, &[5]), 7, Outcome::retry("x")).0, Next::Attempt { attempt: 8, due: at(1_005) });
    }

    #[test]
    fn exponential_waits_grow_to_their_ceiling_and_jitter_stays_inside() {
        let s = Duration::from_secs;
        let exact = RetryPolicy {
            attempts: 100,
            backoff: Backoff::Exponential { base: s(1), factor: 2.0, max: s(60), jitter: 0.0 },
        };
        let waits: Vec<_> =
            (1..=8).map(|n| exact.wait(n, &Ladder::new([]), &Entropy::seeded(1)).unwrap().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(exact.wait(99, &Ladder::new([]), &Entropy::seeded(1)), Some(s(60)), "no overflow");
        let jittered = RetryPolicy {
            attempts: 100,
            backoff: Backoff::Exponential { base: s(10), factor: 2.0, max: s(60), jitter: 0.5 },
        };
        let entropy = Entropy::seeded(2);
        for _ in 0..200 {
            let wait = jittered.wait(1, &Ladder::new([]), &entropy).unwrap();
            assert!((s(5)..=s(15)).contains(&wait), "{wait:?}");
            assert!(jittered.wait(50, &Ladder::new([]), &entropy).unwrap() <= s(60));
        }
    }

    #[test]
    fn a_run_says_when_the_next_is_due_within_bounds() {
        let says = |secs| Outcome::DoneWith(Yield { next_in: Some(Duration::from_secs(secs)), ..Yield::default() });
        let due = |secs| Next::Tick { nominal: at(secs), due: at(secs) };
        assert_eq!(next(EVERY, &list(1, &[]), 1, says(42)).0, due(1_042));
        assert_eq!(next(EVERY, &list(1, &[]), 1, says(0)).0, due(1_001));
        assert_eq!(next(EVERY, &list(1, &[]), 1, says(u64::MAX)).0, due(1_000 + 30 * 86_400));
        assert_eq!(next(ONCE, &list(1, &[]), 1, says(42)).0, Next::End);
    }

    #[test]
    fn a_batch_is_waited_for_and_its_end_moves_the_chain_on() {
        let asks = Outcome::DoneWith(Yield { batch: vec![NewJob::default()], ..Yield::default() });
        assert_eq!(next(EVERY, &list(1, &[]), 1, asks), (Next::Gather, Verdict::FannedOut));
        let end = gathered(None, Batch { total: 5, failed: 2 });
        assert_eq!((end.next, end.verdict), (Next::End, Verdict::Done));
        assert_eq!(end.reason.unwrap().text, "batch of 5: 3 done, 2 failed");
    }

    #[test]
    fn an_attempt_that_would_come_after_the_next_occurrence_gives_way() {
        let fixed_rate = Schedule {
            rhythm: Rhythm::Every { interval: Duration::from_secs(60), from: CountedFrom::Nominal },
            ..every(60)
        };
        // The next occurrence is at 1,020 s.
        let soon = ended(Some(&fixed_rate), &list(3, &[10]), 1, Outcome::retry("busy"));
        assert_eq!(soon.next, Next::Attempt { attempt: 2, due: at(1_010) });
        let late = ended(Some(&fixed_rate), &list(3, &[30]), 1, Outcome::retry("busy"));
        assert_eq!(late.next, Next::Tick { nominal: at(1_020), due: at(1_020) });
        assert_eq!((late.verdict, late.left_out), (Verdict::Failed, LeftOut { overlapped: 1, ..LeftOut::default() }));
        assert_eq!(late.reason.unwrap().text, "busy; the next occurrence comes before another attempt would");
    }

    #[test]
    fn a_table_of_refusals() {
        let s = Duration::from_secs;
        let (balance, dice) = (Balance::default(), Entropy::seeded(1));
        let setting = Setting { phase: 0.0, balance: &balance, dice: &dice, wall_clock: &WallClock::default() };
        let ran = Ran { nominal: at(900), started: at(1_000), finished: at(1_000) };
        let with = |policy, window: Option<u64>, spread| Schedule {
            rhythm: Rhythm::Every { interval: s(60), from: CountedFrom::Nominal },
            misfire: Misfire { policy, window: window.map(s), spread: s(spread) },
            ..every(60)
        };
        let tick = Next::Tick { nominal: at(1_020), due: at(1_020) };
        let late = Refusal::Late { by: s(100) };
        let table = [
            (with(Catch::Coalesce, None, 0), Refusal::TooSoon { since: s(1), least: s(2) }, tick, Verdict::Dropped),
            (with(Catch::Coalesce, None, 0), Refusal::Cooldown { since: s(1), least: s(2) }, tick, Verdict::Skipped),
            (with(Catch::Skip, None, 40), late, tick, Verdict::Skipped),
            (with(Catch::Coalesce, Some(99), 40), late, tick, Verdict::Skipped),
            (with(Catch::Coalesce, Some(100), 40), late, Next::Snooze { due: at(1_010) }, Verdict::Snoozed),
            (with(Catch::All, None, 40), late, Next::Snooze { due: at(1_010) }, Verdict::Snoozed),
        ];
        for (schedule, refusal, next, verdict) in table {
            let course = Course { schedule: &schedule, ran, setting, bounds: (s(1), s(1)) };
            let decision = refused(course, refusal, 0.25);
            assert_eq!((decision.next, decision.verdict), (next, verdict), "{refusal} {:?}", schedule.misfire);
        }
    }
}
