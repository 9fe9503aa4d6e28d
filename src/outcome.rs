//! What happened → what follows (pure).
//!
//! A handler's word is one of a closed set, [`Outcome`]; [`decide`] turns it into the one thing
//! that follows, [`Next`]. Nothing else in the engine decides about retries and successors.

use std::time::Duration;

use serde_json::Value;

use crate::clock::{Entropy, Time};
use crate::ladder::Ladder;
use crate::ledger::FailedItem;
use crate::reason::Reason;
use crate::schedule::Every;

/// No retry and no snooze waits longer than this, whatever an upstream's `Retry-After` says.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30 * 86_400);
/// The shortest wait of a snooze. None is charged, so a shorter one would be a loop at full speed.
pub const SHORTEST_SNOOZE: Duration = Duration::from_millis(100);

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
    /// Not now, and nobody's fault: again after `wait`, with no attempt charged.
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
    /// What did not work. It is kept as a failure of the entity, and the run still counts as done.
    pub failed: Vec<FailedItem>,
}

/// A one-off job that a run asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        if attempt >= self.attempts {
            return None;
        }
        Some(match &self.backoff {
            Backoff::List(waits) => {
                let n = (attempt.max(1) as usize - 1).min(waits.len().saturating_sub(1));
                waits.get(n).copied().unwrap_or_default()
            }
            Backoff::Exponential { base, factor, max, jitter } => {
                let exponent = i32::try_from(attempt.max(1) - 1).unwrap_or(i32::MAX);
                let grown = (base.as_secs_f64() * factor.powi(exponent)).min(max.as_secs_f64());
                if *jitter <= 0.0 {
                    return Some(Duration::from_secs_f64(grown));
                }
                let low = Duration::from_secs_f64(grown * (1.0 - jitter));
                let high = Duration::from_secs_f64((grown * (1.0 + jitter)).min(max.as_secs_f64()));
                ladder.choose(low, high.max(low), entropy)
            }
        })
    }
}

/// The one thing that follows a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The chain's next tick, due then.
    Tick {
        /// When.
        due: Time,
    },
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
}

/// What follows an `outcome` of attempt number `attempt` that ended at `finished`. `every` is the
/// chain's schedule, `None` for a one-off job.
pub fn decide(
    every: Option<Every>,
    retry: &RetryPolicy,
    attempt: u32,
    outcome: Outcome,
    finished: Time,
    ladder: &Ladder,
    entropy: &Entropy,
) -> Decision {
    let onward = || match every {
        Some(every) => Next::Tick { due: every.next(finished, entropy) },
        None => Next::End,
    };
    let mut yields = Yield::default();
    let (next, verdict, reason) = match outcome {
        Outcome::DoneWith(asked) => {
            yields = asked;
            (onward(), Verdict::Done, None)
        }
        Outcome::Done => (onward(), Verdict::Done, None),
        Outcome::Fail { reason } => (onward(), Verdict::Failed, Some(reason)),
        Outcome::Retire { reason } => (Next::End, Verdict::Retired, Some(reason)),
        Outcome::Snooze { reason, wait } => {
            let due = finished + wait.clamp(SHORTEST_SNOOZE, LONGEST_WAIT);
            (Next::Snooze { due }, Verdict::Snoozed, Some(reason))
        }
        Outcome::Retry { reason, after } => match retry.wait(attempt, ladder, entropy) {
            Some(wait) => {
                let due = finished + wait.max(after.unwrap_or_default()).min(LONGEST_WAIT);
                (Next::Attempt { attempt: attempt + 1, due }, Verdict::Retried, Some(reason))
            }
            None => (onward(), Verdict::Failed, Some(reason)),
        },
    };
    Decision { next, verdict, reason, yields }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Option<Every> = Some(Every { interval: Duration::from_secs(300), jitter: Duration::ZERO });

    fn list(attempts: u32, secs: &[u64]) -> RetryPolicy {
        RetryPolicy { attempts, backoff: Backoff::List(secs.iter().map(|s| Duration::from_secs(*s)).collect()) }
    }

    fn at(secs: u64) -> Time {
        Time::from_millis(secs as i64 * 1_000)
    }

    fn next(every: Option<Every>, retry: &RetryPolicy, attempt: u32, outcome: Outcome) -> (Next, Verdict) {
        let decision = decide(every, retry, attempt, outcome, at(1_000), &Ladder::new([]), &Entropy::seeded(1));
        (decision.next, decision.verdict)
    }

    fn after(secs: u64) -> Outcome {
        Outcome::Retry { reason: "busy".into(), after: Some(Duration::from_secs(secs)) }
    }

    #[test]
    fn a_table_of_outcomes() {
        let backoff = list(4, &[30, 60, 120]);
        let tick = Next::Tick { due: at(1_300) };
        let attempt = |attempt, due| Next::Attempt { attempt, due: at(due) };
        let table = [
            (EVERY, 1, Outcome::Done, tick, Verdict::Done),
            (None, 1, Outcome::Done, Next::End, Verdict::Done),
            (EVERY, 1, Outcome::retry("x"), attempt(2, 1_030), Verdict::Retried),
            (EVERY, 2, Outcome::retry("x"), attempt(3, 1_060), Verdict::Retried),
            (EVERY, 3, Outcome::retry("x"), attempt(4, 1_120), Verdict::Retried),
            (EVERY, 4, Outcome::retry("x"), tick, Verdict::Failed),
            (EVERY, 99, Outcome::retry("x"), tick, Verdict::Failed),
            (None, 4, Outcome::retry("x"), Next::End, Verdict::Failed),
            (EVERY, 1, after(45), attempt(2, 1_045), Verdict::Retried),
            (EVERY, 2, after(45), attempt(3, 1_060), Verdict::Retried),
            (EVERY, 1, Outcome::fail("404"), tick, Verdict::Failed),
            (None, 1, Outcome::fail("404"), Next::End, Verdict::Failed),
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
                Next::Snooze { due: at(1_000) + SHORTEST_SNOOZE },
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
}
