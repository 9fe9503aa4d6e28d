//! The words for times, spans, states, schedules.

use std::fmt;
use std::time::Duration;

use roundelay_config::{Config, OwnSchedule, Recurrence, schedule_of, schedule_of_kind};
use roundelay_engine::holds::Holds;
use roundelay_engine::overslept;
use roundelay_engine::overslept::schedules;
use roundelay_ledger::{ChainState, Holder, Listed};
use roundelay_model::clock::Time;
use roundelay_model::fleet::Lateness;
use roundelay_model::progress::Progress;
use roundelay_model::schedule::phase;
use roundelay_model::wall_clock::{At, WallClock};
use serde::Serialize;
use utoipa::ToSchema;

/// How long after their due times runs started, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Lateness)]
pub struct Late {
    /// The median.
    pub p50: f64,
    /// The 99th percentile: one start in a hundred was at least this late.
    pub p99: f64,
    /// The latest start.
    pub max: f64,
}

impl From<Lateness> for Late {
    fn from(late: Lateness) -> Self {
        let Lateness { p50, p99, max } = late;
        Self { p50, p99, max }
    }
}

/// The last progress that a run has reported.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Progress)]
pub struct ProgressReport {
    /// The phase of the run; empty when the run has named none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// How much of the phase is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// How much the phase has in total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// When the run reported.
    pub at: At,
}

impl ProgressReport {
    /// From the ledger's record.
    pub fn of(progress: Progress, wall_clock: &WallClock) -> Self {
        let Progress { phase, done, total, at } = progress;
        Self { phase, done, total, at: At::of(at, wall_clock) }
    }
}

impl fmt::Display for ProgressReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { phase, done, total, at } = self.clone();
        Progress { phase, done, total, at: at.shown() }.fmt(f)
    }
}

/// A span as people say it, in whole seconds.
pub fn rough(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(span.as_secs())).to_string()
}

/// A whole number with separated thousands: `1,234,567`.
pub fn grouped(number: impl TryInto<i128>) -> String {
    let number: i128 = number.try_into().unwrap_or_default();
    let digits = number.unsigned_abs().to_string();
    let mut text = if number < 0 { "-".to_owned() } else { String::new() };
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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

/// The word for what a chain is doing: its state, or, for an active chain, the part of it. `batch_open` is how much of
/// its batch has not ended.
pub fn doing(
    state: ChainState,
    holder: Holder,
    batch_open: i64,
    due: Time,
    slack: Duration,
    now: Time,
) -> &'static str {
    match state {
        ChainState::Active if holder.runs() => "runs",
        ChainState::Active if batch_open > 0 => "gathers",
        ChainState::Active if due > now => "sleeps",
        ChainState::Active if due + slack <= now => "late",
        ChainState::Active => "due",
        other => word(other),
    }
}

/// The word for what a listed chain is doing. An overslept chain is late. A chain that would be due or late is held
/// where an operator lets nothing of its queue start.
pub fn doing_of(chain: &Listed, config: &Config, holds: &Holds, (now, wall_clock): (Time, &WallClock)) -> &'static str {
    let doing = match overslept::since(chain, &schedules(config), (now, wall_clock)) {
        Some(_) => "late",
        None => doing(chain.state, chain.holder, chain.batch.0, chain.hint.due, config.catch_up.slack, now),
    };
    or_held(doing, &chain.hint.queue, holds)
}

/// `held` in place of `due` and `late` where an operator lets nothing of the queue start.
pub fn or_held(doing: &'static str, queue: &str, holds: &Holds) -> &'static str {
    if matches!(doing, "due" | "late") && holds.get(queue).is_some() { "held" } else { doing }
}

/// A chain's nominal time by the wall clock: the ledger stores wall-clock time if the chain's schedule follows it.
pub fn shown_nominal(
    (kind, key): (&str, &str),
    nominal: Time,
    own: Option<&str>,
    config: &Config,
    wall_clock: &WallClock,
) -> Time {
    match schedule_of((kind, own), config) {
        Some(schedule) => {
            let place = if schedule.spread_phase { phase(kind, key) } else { 0.0 };
            schedule.shown_nominal(nominal, place, wall_clock)
        }
        None => wall_clock.wall(nominal),
    }
}

/// The schedule of a chain of `kind`, in words; `own` is the chain's own schedule, if it has one.
pub fn schedule(kind: &str, own: Option<&str>, config: &Config) -> Option<String> {
    let of_kind = schedule_of_kind(config, kind)?;
    Some(match own {
        Some(own) => match OwnSchedule::parse(own).and_then(|own| own.apply(&of_kind)) {
            Ok(schedule) => format!("{schedule} (its own)"),
            Err(error) => format!("its own cannot be used: {error}"),
        },
        None => config
            .kinds
            .get(kind)
            .and_then(|kind| kind.recurrence.as_ref())
            .map_or(of_kind.to_string(), Recurrence::words),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        let table = [(0, "0"), (999, "999"), (1_000, "1,000"), (-12_345, "-12,345"), (1_234_567, "1,234,567")];
        for (number, text) in table {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_table_of_what_chains_are_doing() {
        let at = Time::from_millis;
        let (no, runs, gone) = (Holder::None, Holder::Alive, Holder::Gone);
        let slack = Duration::from_secs(30);
        let table = [
            (ChainState::Active, runs, 1, 0, "runs"),
            (ChainState::Active, no, 1, 0, "gathers"),
            (ChainState::Active, no, 0, 100_001, "sleeps"),
            (ChainState::Active, no, 0, 100_000, "due"),
            (ChainState::Active, gone, 0, 70_001, "due"),
            (ChainState::Active, no, 0, 70_000, "late"),
            (ChainState::Paused, runs, 0, 0, "paused"),
            (ChainState::Retired, no, 0, 0, "retired"),
            (ChainState::Quarantined, no, 0, 0, "quarantined"),
        ];
        for (state, holder, open, due, expected) in table {
            assert_eq!(doing(state, holder, open, at(due), slack, at(100_000)), expected);
        }
    }
}
