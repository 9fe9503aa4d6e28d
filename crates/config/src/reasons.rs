//! `[reasons.<name>]`, `[kinds.<name>.reasons.<name>]`, and which replies mean which reason.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_model::job::check_name;
use roundelay_model::outcome::{Backoff, MAX_WAIT, MIN_SNOOZE, RetryPolicy};
use roundelay_model::policy::{Policies, Policy};

use super::raw;
use crate::problems::{Problems, TEN_YEARS, check_backoff, known};

/// A policy that may leave to the kind how often and when.
#[derive(Clone, Debug)]
pub(super) enum Stated {
    Retry { attempts: Option<u32>, backoff: Option<Backoff> },
    Fixed(Policy),
}

impl Stated {
    /// What it is for a kind with these retries.
    fn with(&self, retry: &RetryPolicy) -> Policy {
        match self {
            Self::Retry { attempts, backoff } => Policy::Retry(RetryPolicy {
                attempts: attempts.unwrap_or(retry.attempts),
                backoff: backoff.clone().unwrap_or_else(|| retry.backoff.clone()),
            }),
            Self::Fixed(policy) => policy.clone(),
        }
    }
}

/// Checks the reasons that stand below `table`.
pub(super) fn check(
    problems: &mut Problems,
    table: &[&str],
    reasons: BTreeMap<String, raw::Reason>,
    named: &mut Vec<Duration>,
) -> BTreeMap<String, Stated> {
    let stated = reasons.into_iter().map(|(name, reason)| {
        let path: Vec<&str> = table.iter().copied().chain([name.as_str()]).collect();
        if let Err(error) = check_name("name", &name) {
            problems.add(&path, error.to_string());
        }
        let stated = one(problems, &path, reason, named);
        (name, stated)
    });
    stated.collect()
}

fn one(problems: &mut Problems, path: &[&str], reason: raw::Reason, named: &mut Vec<Duration>) -> Stated {
    let raw::Reason { policy, attempts, backoff, after } = reason;
    let below = |key: &'static str| -> Vec<&str> { path.iter().copied().chain([key]).collect() };
    if policy != raw::Policy::Retry {
        for (key, given) in [("attempts", attempts.is_some()), ("backoff", backoff.is_some())] {
            if given {
                problems.add(&below(key), "goes with policy = \"retry\"");
            }
        }
    }
    if policy != raw::Policy::Snooze && after.is_some() {
        problems.add(&below("after"), "goes with policy = \"snooze\"");
    }
    match policy {
        raw::Policy::Fail => Stated::Fixed(Policy::Fail),
        raw::Policy::Retire => Stated::Fixed(Policy::Retire),
        raw::Policy::Snooze => {
            let after = after.map(|after| after.0);
            match after {
                None => problems.add(path, "policy = \"snooze\" needs an `after`, such as after = \"1m\""),
                Some(after) => problems.range(&below("after"), after, MIN_SNOOZE, MAX_WAIT),
            }
            Stated::Fixed(Policy::Snooze(after.unwrap_or(MIN_SNOOZE)))
        }
        raw::Policy::Retry => {
            if let Some(attempts) = attempts {
                problems.range(&below("attempts"), attempts, 1, 1_000);
            }
            if matches!(&backoff, Some(raw::Backoff::List(waits)) if waits.is_empty()) {
                problems.add(&below("backoff"), "is empty; name at least one wait");
            }
            let backoff = backoff.map(|backoff| check_backoff(problems, &below("backoff"), backoff, named));
            Stated::Retry { attempts, backoff }
        }
    }
}

/// The part of a kind that is about reasons.
pub(super) struct OfKind {
    pub(super) reasons: BTreeMap<String, raw::Reason>,
    pub(super) on_status: BTreeMap<String, String>,
    pub(super) on_exit: BTreeMap<String, String>,
}

/// The reasons of a kind, over those of all kinds, and which reply means which reason.
pub(super) fn of_kind(
    problems: &mut Problems,
    name: &str,
    of_all: &BTreeMap<String, Stated>,
    raw: OfKind,
    retry: &RetryPolicy,
    named: &mut Vec<Duration>,
) -> Policies {
    let OfKind { reasons, on_status, on_exit } = raw;
    let own = check(problems, &["kinds", name, "reasons"], reasons, named);
    let mut all = of_all.clone();
    all.extend(own);
    let mut mapped = |key: &str, from: BTreeMap<String, String>, low: i32, high: i32, what: &str| {
        let mut codes = BTreeMap::new();
        for (number, reason) in from {
            let path = ["kinds", name, key, &number];
            known(problems, &path, &reason, "reasons", all.keys());
            match number.parse::<i32>() {
                Ok(code) if (low..=high).contains(&code) => drop(codes.insert(code, reason)),
                _ => problems.add(&path, format!("`{number}` is no {what}")),
            }
        }
        codes
    };
    let on_status = mapped("on_status", on_status, 300, 599, "HTTP status from 300 to 599: only these can be failures");
    let on_exit = mapped("on_exit", on_exit, 1, 255, "exit code from 1 to 255: 0 is no failure");
    Policies {
        reasons: all.iter().map(|(name, stated)| (name.clone(), stated.with(retry))).collect(),
        on_status: on_status
            .into_iter()
            .filter_map(|(status, code)| Some((u16::try_from(status).ok()?, code)))
            .collect(),
        on_exit,
    }
}

/// How failed parts of runs are fed back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// How often is looked for parts that are due.
    pub every: Duration,
    /// The kind of the jobs; absent, the chain's own.
    pub kind: Option<String>,
}

/// Checks `reconcile` of the kind `name`, among `kinds`.
pub(super) fn reconcile<'k>(
    problems: &mut Problems,
    name: &str,
    raw: Option<raw::Reconcile>,
    kinds: impl Iterator<Item = &'k String> + Clone,
    recurs: bool,
) -> Option<Reconcile> {
    let raw::Reconcile { every, kind } = raw?;
    problems.range(&["kinds", name, "reconcile", "every"], every.0, Duration::from_secs(1), TEN_YEARS);
    if let Some(kind) = &kind {
        known(problems, &["kinds", name, "reconcile", "kind"], kind, "kinds", kinds);
    }
    if !recurs {
        let message = "goes with a schedule: what is fed back has the payload and the queue of a chain";
        problems.add(&["kinds", name, "reconcile"], message);
    }
    Some(Reconcile { every: every.0, kind })
}
