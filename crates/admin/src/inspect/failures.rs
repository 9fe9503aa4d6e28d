//! Failures, and what happens to them next.

use roundelay_config::Config;
use roundelay_ledger::ReasonCount;
use roundelay_model::clock::Time;
use roundelay_model::failure::Failure;
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use utoipa::ToSchema;

use super::format::rough;

/// A failure, and what happens to it next.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FailureReport {
    /// The kind, which names the handler.
    pub kind: String,
    /// The key of the entity.
    pub key: String,
    /// The part of the entity; empty when the whole entity failed.
    pub item: String,
    /// The name of the reason, if it has one.
    pub code: Option<String>,
    /// The reason, as the handler gave it.
    pub reason: String,
    /// How many times it has failed for good since the first time.
    pub times: i64,
    /// How many attempts count towards the maximum of its reason.
    pub attempts: i64,
    /// When it failed for the first time.
    pub first_at: At,
    /// When it failed for the last time.
    pub last_at: At,
    /// When it is retried automatically; null: never.
    pub next_retry_at: Option<At>,
    /// Whether it is never retried automatically. For a whole entity: the entity is unavailable.
    pub permanent: bool,
    /// The id of the job that retries it now.
    pub fed: Option<String>,
    /// Whether the entity has worked since. The failure is kept until it is dropped.
    pub recovered: bool,
    /// What happens to it next, in words.
    pub then: String,
}

impl FailureReport {
    /// From a kept failure, at `now`.
    pub fn new(failure: Failure, config: &Config, now: Time, wall_clock: &WallClock) -> Self {
        let (next, then) = (next_retry_at(&failure, config), then(&failure, config, now));
        let Failure { kind, key, item, reason, code, times, attempts, first_at, last_at, next_retry_at, .. } = failure;
        let next = if item.is_empty() { next_retry_at } else { next };
        Self {
            kind,
            key,
            item,
            code,
            reason,
            times,
            attempts,
            first_at: At::of(first_at, wall_clock),
            last_at: At::of(last_at, wall_clock),
            next_retry_at: next.map(|at| At::of(at, wall_clock)),
            permanent: failure.permanent,
            fed: failure.fed,
            recovered: failure.recovered,
            then,
        }
    }
}

/// Failures with the same reason.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReasonRow {
    /// The kind of the failures.
    pub kind: String,
    /// The name of the reason, if it has one.
    pub code: Option<String>,
    /// Whether the failures are never retried automatically.
    pub permanent: bool,
    /// How many parts of entities failed.
    pub parts: u64,
    /// How many whole entities failed.
    pub wholes: u64,
    /// How many of these have worked since.
    pub recovered: u64,
    /// When the last of them failed.
    pub last_at: At,
    /// The reason of the last failure, as the handler gave it.
    pub example: String,
}

impl ReasonRow {
    /// From the ledger's count.
    pub fn of(count: ReasonCount, wall_clock: &WallClock) -> Self {
        let ReasonCount { kind, code, permanent, parts, wholes, recovered, last_at, example } = count;
        Self { kind, code, permanent, parts, wholes, recovered, last_at: At::of(last_at, wall_clock), example }
    }
}

/// Whether failed parts of a kind are fed back.
pub fn reconciles(config: &Config, kind: &str) -> bool {
    config.kinds.get(kind).is_some_and(|kind| kind.reconcile.is_some())
}

/// When a part is retried automatically, if it ever is.
pub fn next_retry_at(failure: &Failure, config: &Config) -> Option<Time> {
    let settings = config.kinds.get(&failure.kind)?;
    // The times at which reconcile looks, and never before the backoff of the reason.
    let planned = settings.policies.plan(&settings.retry, failure)?;
    failure.next_retry_at.map(|next| next.max(planned)).filter(|_| settings.reconcile.is_some())
}

/// What happens to a failure next, in words.
pub fn then(failure: &Failure, config: &Config, now: Time) -> String {
    let Failure { kind, item, permanent, next_retry_at: next, fed, .. } = failure;
    if item.is_empty() {
        return match (failure.recovered, *permanent) {
            (true, _) => "has worked since".into(),
            (false, true) => "unavailable".into(),
            (false, false) => "kept".into(),
        };
    }
    match next_retry_at(failure, config) {
        _ if *permanent => "permanent".into(),
        _ if next.is_none() => "kept".into(),
        _ if !reconciles(config, kind) => "kept: no reconcile".into(),
        _ if fed.is_some() => "a job is under way".into(),
        None => "permanent".into(),
        Some(next) if next <= now => "due".into(),
        Some(next) => format!("due in {}", rough(next.since(now))),
    }
}
