//! What has failed, and what becomes of it.

use roundelay_config::Config;
use roundelay_ledger::ReasonCount;
use roundelay_model::calendar::{At, Calendar};
use roundelay_model::clock::Time;
use roundelay_model::failure::Failure;
use serde::Serialize;
use utoipa::ToSchema;

use super::words::rough;

/// A failure, and what becomes of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FailureReport {
    /// Which handler.
    pub kind: String,
    /// Which entity.
    pub key: String,
    /// Which part of the entity; empty when the whole of it failed.
    pub item: String,
    /// The name of the reason, if it has one.
    pub code: Option<String>,
    /// What the handler said.
    pub reason: String,
    /// How often it has failed for good since the first time.
    pub times: i64,
    /// How often it has been tried, as the maximum of its reason counts.
    pub attempts: i64,
    /// The first time.
    pub first_at: At,
    /// The last time.
    pub last_at: At,
    /// When it is tried again by itself, if it is.
    pub next_retry_at: Option<At>,
    /// It is never tried again by itself. Of a whole: the entity is unavailable.
    pub permanent: bool,
    /// The id of the job that is under way for it.
    pub fed: Option<String>,
    /// What becomes of it, in words.
    pub then: String,
}

impl FailureReport {
    /// Of a kept failure, at `now`.
    pub fn new(failure: Failure, config: &Config, now: Time, calendar: &Calendar) -> Self {
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
            first_at: At::of(first_at, calendar),
            last_at: At::of(last_at, calendar),
            next_retry_at: next.map(|at| At::of(at, calendar)),
            permanent: failure.permanent,
            fed: failure.fed,
            then,
        }
    }
}

/// Failures with the same reason.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReasonRow {
    /// Of this kind.
    pub kind: String,
    /// The name of the reason, if it has one.
    pub code: Option<String>,
    /// They are never tried again by themselves.
    pub permanent: bool,
    /// How many parts of entities.
    pub parts: u64,
    /// How many whole entities.
    pub wholes: u64,
    /// The last time.
    pub last_at: At,
    /// What was said of the last of them.
    pub example: String,
}

impl ReasonRow {
    /// Of what the ledger has counted.
    pub fn of(count: ReasonCount, calendar: &Calendar) -> Self {
        let ReasonCount { kind, code, permanent, parts, wholes, last_at, example } = count;
        Self { kind, code, permanent, parts, wholes, last_at: At::of(last_at, calendar), example }
    }
}

/// Whether failed parts of a kind are fed back.
pub fn reconciles(config: &Config, kind: &str) -> bool {
    config.kinds.get(kind).is_some_and(|kind| kind.reconcile.is_some())
}

/// When a part is tried again by itself, if it ever is.
pub fn next_retry_at(failure: &Failure, config: &Config) -> Option<Time> {
    let settings = config.kinds.get(&failure.kind)?;
    // What reconcile looks at, and never before its reason's backoff.
    let planned = settings.policies.plan(&settings.retry, failure)?;
    failure.next_retry_at.map(|next| next.max(planned)).filter(|_| settings.reconcile.is_some())
}

/// What becomes of a failure, in words.
pub fn then(failure: &Failure, config: &Config, now: Time) -> String {
    let Failure { kind, item, permanent, next_retry_at: next, fed, .. } = failure;
    if item.is_empty() {
        return if *permanent { "unavailable".into() } else { "-".into() };
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
