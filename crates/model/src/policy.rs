//! What follows from a failure by its reason (pure).
//!
//! A reply becomes a *code* (by the handler's word, its HTTP status or its exit code), and a code a
//! [`Policy`]: so the configuration says once what `rate_limited` means, for all handlers. A failure
//! without a code, or with a code without settings, is what the outcome says.
//!
//! For a tick or job the policy is what follows. For a part that failed within a run that worked it
//! says when, if ever, reconcile feeds it back: see [`Policies::next_try`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Entropy, Time};
use crate::failure::{FailedItem, Failure, ItemEnd};
use crate::job;
use crate::outcome::{MAX_WAIT, Outcome, RetryPolicy, Yield};
use crate::reason::{Mark, Reason};

/// What follows from a reason.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Again, so many times and after such waits.
    Retry(RetryPolicy),
    /// Permanent for the tick, job or part: kept with its reason. A chain goes on with its next tick.
    Fail,
    /// Permanent for the entity: its chain ends, and it is kept as unavailable. For a part, like
    /// [`Policy::Fail`].
    Retire,
    /// Not now: again after so long, with no attempt charged. A part is never given up for it.
    Snooze(Duration),
}

/// A kind's codes and their policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// By code.
    pub reasons: BTreeMap<String, Policy>,
    /// The codes of HTTP statuses.
    pub on_status: BTreeMap<u16, String>,
    /// The codes of exit codes.
    pub on_exit: BTreeMap<i32, String>,
}

impl Policies {
    /// The code of a reason, if it has one.
    pub fn code<'a>(&'a self, reason: &'a Reason) -> Option<&'a str> {
        match &reason.mark {
            Mark::None => None,
            Mark::Status(status) => self.on_status.get(status).map(String::as_str),
            Mark::Exit(code) => self.on_exit.get(code).map(String::as_str),
            Mark::Code(code) => Some(code),
        }
    }

    /// `outcome` with the code of its reason.
    pub fn named(&self, mut outcome: Outcome) -> Outcome {
        let Some(code) = outcome.reason().and_then(|reason| self.code(reason)).map(str::to_owned) else {
            return outcome;
        };
        match &mut outcome {
            Outcome::Done | Outcome::DoneWith(_) => {}
            Outcome::Retry { reason, .. }
            | Outcome::Fail { reason }
            | Outcome::Snooze { reason, .. }
            | Outcome::Retire { reason } => reason.mark = Mark::Code(code),
        }
        outcome
    }

    /// What an outcome comes to by the policy of its reason, and the retries that it has then; `retry` are
    /// those of the kind. A wait that the upstream asked for is kept: no policy comes sooner.
    pub fn rule<'a>(&'a self, outcome: Outcome, retry: &'a RetryPolicy) -> (Outcome, &'a RetryPolicy) {
        let outcome = self.named(outcome);
        let policy = outcome.reason().and_then(Reason::code).and_then(|code| self.reasons.get(code));
        let Some(policy) = policy else { return (outcome, retry) };
        let (reason, asked) = match outcome {
            Outcome::Done | Outcome::DoneWith(_) => return (outcome, retry),
            Outcome::Retry { reason, after } => (reason, after),
            Outcome::Snooze { reason, wait } => (reason, Some(wait)),
            Outcome::Fail { reason } | Outcome::Retire { reason } => (reason, None),
        };
        match policy {
            Policy::Retry(own) => (Outcome::Retry { reason, after: asked }, own),
            Policy::Fail => (Outcome::Fail { reason }, retry),
            Policy::Retire => (Outcome::Retire { reason }, retry),
            Policy::Snooze(wait) => (Outcome::Snooze { reason, wait: asked.unwrap_or_default().max(*wait) }, retry),
        }
    }

    /// When a part that has failed for the `attempts`-th time (from 1), last at `at` and with this code, is
    /// to be tried again, or `None` when it never is. `seed` places it within a backoff's jitter: the
    /// same for the same failure, at each call.
    pub fn next_try(
        &self,
        code: Option<&str>,
        retry: &RetryPolicy,
        attempts: i64,
        at: Time,
        seed: u64,
    ) -> Option<Time> {
        let retry = match code.and_then(|code| self.reasons.get(code)) {
            None => retry,
            Some(Policy::Retry(own)) => own,
            Some(Policy::Fail | Policy::Retire) => return None,
            Some(Policy::Snooze(wait)) => return Some(at + (*wait).min(MAX_WAIT)),
        };
        let (low, high) = retry.window(u32::try_from(attempts.max(1)).unwrap_or(u32::MAX))?;
        let wait = if low == high { low } else { Entropy::seeded(seed).between(low, high) };
        Some(at + wait.min(MAX_WAIT))
    }

    /// Says of the parts that a run reports as failed what is to become of them, as far as that is known
    /// without knowing how often each has failed before: whether it is permanent, and not before when it is
    /// tried again. What it comes to then is [`Policies::plan`]'s word.
    pub fn judge(&self, retry: &RetryPolicy, outcome: &mut Outcome, (kind, key): (&str, &str), at: Time) {
        let Outcome::DoneWith(Yield { failed, .. }) = outcome else { return };
        for part in failed {
            let seed = item_seed(kind, key, &part.item, 1);
            part.next_retry_at = self.next_try(part.code.as_deref(), retry, 1, at, seed);
            part.permanent = part.next_retry_at.is_none();
        }
    }

    /// When a failed part is to be tried again, or `None` when it never is.
    pub fn plan(&self, retry: &RetryPolicy, failure: &Failure) -> Option<Time> {
        let Failure { kind, key, item, code, attempts, last_at, permanent, .. } = failure;
        if *permanent {
            return None;
        }
        // An operator has put it back to none: it is to be tried now.
        if *attempts == 0 {
            return Some(*last_at);
        }
        self.next_try(code.as_deref(), retry, *attempts, *last_at, item_seed(kind, key, item, *attempts))
    }

    /// What a run for one failed part comes to, once [`Policies::rule`] has spoken. It has failed also when it
    /// worked and reports that very part as failed; that report is taken out of it. `None` for a snooze: the
    /// run is only put off.
    pub fn settle(&self, failure: &Failure, outcome: &mut Outcome, retry: &RetryPolicy, at: Time) -> Option<ItemEnd> {
        let (reason, code, fatal, after) = match outcome {
            Outcome::Snooze { .. } => return None,
            Outcome::Done => return Some(ItemEnd::Worked),
            Outcome::DoneWith(yields) => {
                let mut again = None;
                yields.failed.retain(|part| {
                    let same = part.item == failure.item;
                    if same {
                        again = Some(part.clone());
                    }
                    !same
                });
                match again {
                    None => return Some(ItemEnd::Worked),
                    Some(FailedItem { reason, code, .. }) => (reason, code, false, None),
                }
            }
            Outcome::Retry { reason, after } => (reason.text.clone(), reason.code().map(Into::into), false, *after),
            Outcome::Fail { reason } | Outcome::Retire { reason } => {
                (reason.text.clone(), reason.code().map(Into::into), true, None)
            }
        };
        let attempts = failure.attempts + 1;
        let seed = item_seed(&failure.kind, &failure.key, &failure.item, attempts);
        let next = if fatal { None } else { self.next_try(code.as_deref(), retry, attempts, at, seed) };
        let next_retry_at = next.map(|next| next.max(at + after.unwrap_or_default().min(MAX_WAIT)));
        let permanent = next_retry_at.is_none();
        let item = failure.item.clone();
        Some(ItemEnd::Failed(FailedItem { item, reason, code, next_retry_at, permanent }))
    }
}

fn item_seed(kind: &str, key: &str, item: &str, attempts: i64) -> u64 {
    job::seed(kind, key, &format!("{item}\0{attempts}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Backoff;
    use crate::reason::Class;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn at(secs: i64) -> Time {
        Time::from_millis(secs * 1_000)
    }

    fn retries(attempts: u32, waits: &[u64]) -> RetryPolicy {
        RetryPolicy { attempts, backoff: Backoff::List(waits.iter().map(|wait| secs(*wait)).collect()) }
    }

    fn policies() -> Policies {
        let reasons = [
            ("rate_limited", Policy::Snooze(secs(60))),
            ("empty_response", Policy::Fail),
            ("gone", Policy::Retire),
            ("busy", Policy::Retry(retries(3, &[10, 20]))),
        ];
        Policies {
            reasons: reasons.into_iter().map(|(code, policy)| (code.into(), policy)).collect(),
            on_status: [(404, "empty_response".into()), (410, "gone".into())].into(),
            on_exit: [(3, "busy".into())].into(),
        }
    }

    fn reason(mark: Mark) -> Reason {
        Reason::new(Class::Http4xx, "no").marked(mark)
    }

    fn coded(code: &str) -> Reason {
        reason(Mark::Code(code.into()))
    }

    #[test]
    fn a_table_of_rulings() {
        let of_kind = retries(9, &[1]);
        let busy = retries(3, &[10, 20]);
        let retry = |reason, after: Option<u64>| Outcome::Retry { reason, after: after.map(secs) };
        let snooze = |reason, wait| Outcome::Snooze { reason, wait: secs(wait) };
        let table = [
            // A status and an exit code have names, and these policies.
            (Outcome::fail(reason(Mark::Status(404))), Outcome::fail(coded("empty_response")), &of_kind),
            (Outcome::fail(reason(Mark::Status(410))), Outcome::Retire { reason: coded("gone") }, &of_kind),
            (Outcome::fail(reason(Mark::Exit(3))), retry(coded("busy"), None), &busy),
            // The handler's word.
            (retry(coded("empty_response"), None), Outcome::fail(coded("empty_response")), &of_kind),
            (Outcome::Retire { reason: coded("busy") }, retry(coded("busy"), None), &busy),
            (Outcome::fail(coded("rate_limited")), snooze(coded("rate_limited"), 60), &of_kind),
            // What the upstream asked for is the least.
            (retry(coded("rate_limited"), Some(300)), snooze(coded("rate_limited"), 300), &of_kind),
            (snooze(coded("rate_limited"), 5), snooze(coded("rate_limited"), 60), &of_kind),
            (snooze(coded("busy"), 90), retry(coded("busy"), Some(90)), &busy),
            // No name, or one without settings: what the outcome says.
            (Outcome::fail(reason(Mark::Status(400))), Outcome::fail(reason(Mark::None)), &of_kind),
            (retry(reason(Mark::Exit(4)), None), retry(reason(Mark::None), None), &of_kind),
            (retry(coded("unheard_of"), Some(7)), retry(coded("unheard_of"), Some(7)), &of_kind),
            (snooze(reason(Mark::None), 7), snooze(reason(Mark::None), 7), &of_kind),
            (Outcome::Done, Outcome::Done, &of_kind),
        ];
        let policies = policies();
        for (outcome, expected, retries) in table {
            let label = format!("{outcome:?}");
            assert_eq!(policies.rule(outcome, &of_kind), (expected, retries), "{label}");
        }
    }

    fn failure(code: Option<&str>, attempts: i64) -> Failure {
        Failure {
            kind: "k".into(),
            key: "x".into(),
            item: "us".into(),
            reason: "no".into(),
            code: code.map(Into::into),
            times: attempts,
            attempts,
            first_at: at(0),
            last_at: at(1_000),
            next_retry_at: Some(at(1_000)),
            permanent: false,
            fed: None,
            recovered: false,
        }
    }

    #[test]
    fn a_part_is_tried_again_by_its_reason_and_not_beyond_its_maximum() {
        let (policies, of_kind) = (policies(), retries(2, &[5]));
        let table = [
            (None, 1, Some(1_005)),
            (None, 2, None),
            (Some("unheard_of"), 1, Some(1_005)),
            (Some("busy"), 1, Some(1_010)),
            (Some("busy"), 2, Some(1_020)),
            (Some("busy"), 3, None),
            (Some("empty_response"), 1, None),
            (Some("gone"), 1, None),
            (Some("rate_limited"), 1, Some(1_060)),
            (Some("rate_limited"), 500, Some(1_060)),
            // An operator wants it now.
            (Some("busy"), 0, Some(1_000)),
        ];
        for (code, attempts, expected) in table {
            let planned = policies.plan(&of_kind, &failure(code, attempts));
            assert_eq!(planned, expected.map(at), "{code:?} after {attempts}");
        }
        let permanent = Failure { permanent: true, ..failure(Some("busy"), 1) };
        assert_eq!(policies.plan(&of_kind, &permanent), None);
    }

    #[test]
    fn jitter_is_the_same_for_the_same_failure_and_another_for_others() {
        let backoff = Backoff::Exponential { base: secs(100), factor: 2.0, max: secs(1_000), jitter: 0.5 };
        let (policies, of_kind) = (Policies::default(), RetryPolicy { attempts: 50, backoff });
        let next = |key: &str, attempts| {
            let failure = Failure { key: key.into(), ..failure(None, attempts) };
            policies.plan(&of_kind, &failure).unwrap().since(at(1_000))
        };
        let all: std::collections::BTreeSet<Duration> = (0..20).map(|key| next(&key.to_string(), 1)).collect();
        assert!(all.len() > 15 && all.iter().all(|wait| (secs(50)..=secs(150)).contains(wait)), "{all:?}");
        assert_eq!(next("a", 2), next("a", 2));
        assert!((secs(500)..=secs(1_000)).contains(&next("a", 40)));
    }

    #[test]
    fn parts_that_a_run_reports_are_judged_as_failed_for_the_first_time() {
        let part =
            |item: &str, code: Option<&str>| FailedItem { code: code.map(Into::into), ..FailedItem::new(item, "no") };
        let failed = vec![part("us", Some("empty_response")), part("jp", Some("busy")), part("de", None)];
        let mut outcome = Outcome::DoneWith(Yield { failed, ..Yield::default() });
        policies().judge(&retries(1, &[]), &mut outcome, ("k", "x"), at(1_000));
        let Outcome::DoneWith(Yield { failed, .. }) = outcome else { panic!("it stays what it was") };
        let judged: Vec<_> = failed.iter().map(|part| (part.next_retry_at, part.permanent)).collect();
        assert_eq!(judged, [(None, true), (Some(at(1_010)), false), (None, true)]);
    }

    #[test]
    fn a_table_of_runs_for_one_part() {
        let (policies, of_kind) = (policies(), retries(2, &[5]));
        let done = |failed: &[(&str, Option<&str>)]| {
            let part = |(item, code): &(&str, Option<&str>)| FailedItem {
                code: code.map(Into::into),
                ..FailedItem::new(*item, "again")
            };
            Outcome::DoneWith(Yield { failed: failed.iter().map(part).collect(), ..Yield::default() })
        };
        let busy = Some("busy");
        let retry = |after: Option<u64>| Outcome::Retry { reason: coded("busy"), after: after.map(secs) };
        // The outcome, the attempts before it, and the next try with its code; `None` when it worked.
        let table = [
            (Outcome::Done, 1, None),
            (done(&[]), 1, None),
            (done(&[("jp", busy)]), 1, None),
            (done(&[("us", busy)]), 1, Some((Some(2_020), busy))),
            (done(&[("us", Some("empty_response")), ("jp", None)]), 1, Some((None, Some("empty_response")))),
            (done(&[("us", None)]), 1, Some((None, None))),
            (retry(None), 1, Some((Some(2_020), busy))),
            (retry(Some(300)), 1, Some((Some(2_300), busy))),
            (retry(None), 2, Some((None, busy))),
            (Outcome::retry("x"), 0, Some((Some(2_005), None))),
            (Outcome::fail("x"), 0, Some((None, None))),
            (Outcome::Retire { reason: "x".into() }, 0, Some((None, None))),
        ];
        for (mut outcome, attempts, expected) in table {
            let label = format!("{outcome:?} after {attempts}");
            let end = policies.settle(&failure(busy, attempts), &mut outcome, &of_kind, at(2_000)).unwrap();
            match (end, expected) {
                (ItemEnd::Worked, None) => {}
                (ItemEnd::Failed(part), Some((next, code))) => {
                    assert_eq!((part.next_retry_at, part.code.as_deref()), (next.map(at), code), "{label}");
                    assert_eq!((part.item.as_str(), part.permanent), ("us", next.is_none()), "{label}");
                }
                (end, expected) => panic!("{label} came to {end:?} and not {expected:?}"),
            }
            if let Outcome::DoneWith(yields) = outcome {
                assert!(yields.failed.iter().all(|part| part.item != "us"), "{label}: it is counted once");
            }
        }
        let mut snooze = Outcome::Snooze { reason: "later".into(), wait: secs(1) };
        assert_eq!(policies.settle(&failure(busy, 1), &mut snooze, &of_kind, at(2_000)), None);
    }
}
