//! How it is said: times, spans, states, schedules.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::Time;
use crate::config::{Config, OwnSchedule};
use crate::engine::chores::is_internal;
use crate::ledger::{ChainState, Listed};
use crate::progress::Progress;
use crate::schedule::Schedule;
use crate::telemetry::Lateness;

/// A time: milliseconds since 1970, as in messages. For people it is RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = i64, example = 1_790_000_000_123_i64)]
pub struct At(pub Time);

impl From<Time> for At {
    fn from(time: Time) -> Self {
        Self(time)
    }
}

impl At {
    /// A time that may never have come, which the ledger has as zero.
    pub fn known(time: Time) -> Option<Self> {
        Some(Self(time)).filter(|at| at.0 != Time::default())
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How late starts were: how long after they were due, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Lateness)]
pub struct Late {
    /// The median.
    pub p50: f64,
    /// Reached or exceeded by one in a hundred.
    pub p99: f64,
    /// The worst.
    pub max: f64,
}

impl From<Lateness> for Late {
    fn from(late: Lateness) -> Self {
        let Lateness { p50, p99, max } = late;
        Self { p50, p99, max }
    }
}

/// How far a run had come when it last said so.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Progress)]
pub struct Come {
    /// What it is at; empty when it has not said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// How much of it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Out of how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// When it said so.
    pub at: At,
}

impl From<Progress> for Come {
    fn from(progress: Progress) -> Self {
        let Progress { phase, done, total, at } = progress;
        Self { phase, done, total, at: at.into() }
    }
}

impl fmt::Display for Come {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, done, total, at } = self.clone();
        Progress { phase, done, total, at: at.0 }.fmt(f)
    }
}

/// A span as people say it, in whole seconds.
pub fn rough(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(span.as_secs())).to_string()
}

/// The name of a state.
pub fn word(state: ChainState) -> &'static str {
    match state {
        ChainState::Active => "active",
        ChainState::Paused => "paused",
        ChainState::Retired => "retired",
        ChainState::Quarantined => "quarantined",
    }
}

/// What a chain is doing, in a word: its state, or, where it ticks, what of that. `batch_open` is how much of its
/// batch has not ended.
pub fn doing(
    state: ChainState,
    lease_until: Time,
    batch_open: i64,
    due: Time,
    slack: Duration,
    now: Time,
) -> &'static str {
    match state {
        ChainState::Active if lease_until > now => "runs",
        ChainState::Active if batch_open > 0 => "gathers",
        ChainState::Active if due > now => "sleeps",
        ChainState::Active if due + slack <= now => "late",
        ChainState::Active => "due",
        other => word(other),
    }
}

/// What a listed chain is doing, in a word.
pub fn doing_of(chain: &Listed, config: &Config, now: Time) -> &'static str {
    doing(chain.state, chain.lease_until, chain.batch.0, chain.hint.due, config.catch_up.slack, now)
}

/// The schedule of a kind, if it has one. The engine's own kinds are in no configuration, and their chains have
/// schedules of their own.
pub fn schedule_of_kind(config: &Config, kind: &str) -> Option<Schedule> {
    if is_internal(kind) {
        return Some(Schedule::fixed_delay(Duration::ZERO, Duration::ZERO));
    }
    Some(config.kinds.get(kind)?.recurrence.as_ref()?.schedule.clone())
}

/// The schedule of a chain of `kind`, which may have one of its `own`, in words.
pub fn schedule(kind: &str, own: Option<&str>, config: &Config) -> Option<String> {
    let of_kind = schedule_of_kind(config, kind)?;
    Some(match own {
        Some(own) => match OwnSchedule::parse(own).and_then(|own| own.apply(&of_kind)) {
            Ok(schedule) => format!("{schedule} (its own)"),
            Err(error) => format!("its own cannot be used: {error}"),
        },
        None => of_kind.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_what_chains_are_doing() {
        let at = Time::from_millis;
        let slack = Duration::from_secs(30);
        let table = [
            (ChainState::Active, 200_000, 1, 0, "runs"),
            (ChainState::Active, 0, 1, 0, "gathers"),
            (ChainState::Active, 0, 0, 100_001, "sleeps"),
            (ChainState::Active, 0, 0, 100_000, "due"),
            (ChainState::Active, 99_999, 0, 70_001, "due"),
            (ChainState::Active, 0, 0, 70_000, "late"),
            (ChainState::Paused, 200_000, 0, 0, "paused"),
            (ChainState::Retired, 0, 0, 0, "retired"),
            (ChainState::Quarantined, 0, 0, 0, "quarantined"),
        ];
        for (state, lease, open, due, expected) in table {
            assert_eq!(doing(state, at(lease), open, at(due), slack, at(100_000)), expected);
        }
    }
}
