//! Whether a tick may start (pure).
//!
//! A guard says no to a tick that comes too soon after another, or too late. What it looks at is in
//! the ledger, and it is asked in the claim's transaction: so two workers cannot both be told yes.
//! It is asked once for each tick. What has started is tried again whatever guards say.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{Time, short_duration};

/// What the guards of a kind ask for; by default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// How far two starts should lie apart.
    pub interval: Duration,
    /// By how much it may be less; `None` when it does not matter.
    pub tolerance: Option<Duration>,
    /// From the end of a run to the next start, at least.
    pub cooldown: Duration,
    /// What should have started longer ago than this has misfired.
    pub late_after: Option<Duration>,
}

/// What a guard looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// When a run of the chain last started; zero when none has.
    pub last_start: Time,
    /// When a run of the chain last ended; zero when none has.
    pub last_finish: Time,
    /// When the tick is due.
    pub due: Time,
}

/// What becomes of a manual run when it is asked for, or due, while the rotation of its chain runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum IfRunning {
    /// It does not run.
    #[default]
    Refuse,
    /// It runs afterwards, when the kind's cooldown is over too.
    After,
    /// It runs at the same time.
    Beside,
}

impl FromStr for IfRunning {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "refuse" => Ok(Self::Refuse),
            "after" => Ok(Self::After),
            "beside" => Ok(Self::Beside),
            other => Err(format!("`{other}` is none of refuse, after, beside")),
        }
    }
}

/// How a manual run was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manual {
    /// What becomes of it while the rotation runs.
    pub if_running: IfRunning,
    /// The kind's cooldown does not hold for it.
    pub force: bool,
}

impl Manual {
    /// As ledgers store it.
    pub fn number(self) -> i64 {
        let if_running = match self.if_running {
            IfRunning::Refuse => 0,
            IfRunning::After => 1,
            IfRunning::Beside => 2,
        };
        if_running + if self.force { 4 } else { 0 }
    }

    /// What was stored as `number`.
    pub fn from_number(number: i64) -> Self {
        let if_running = match number & 3 {
            0 => IfRunning::Refuse,
            1 => IfRunning::After,
            _ => IfRunning::Beside,
        };
        Self { if_running, force: number & 4 != 0 }
    }
}

/// Why a tick does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The last start is only this long ago.
    TooSoon {
        /// How long.
        since: Duration,
        /// How long it has to be.
        least: Duration,
    },
    /// The last run has ended only this long ago.
    Cooldown {
        /// How long.
        since: Duration,
        /// How long it has to be.
        least: Duration,
    },
    /// The rotation of its chain runs.
    Running,
    /// Its chain has ended.
    Ended,
    /// Too many workers have ended while they ran it.
    Deaths,
    /// The tick was due so long ago.
    Late {
        /// How long.
        by: Duration,
    },
}

impl Guard {
    /// The same for a chain that has this interval of its own.
    pub fn with_interval(self, own: Option<Duration>) -> Self {
        Self { interval: own.unwrap_or(self.interval), ..self }
    }

    /// From one start to the next, at least.
    fn min_gap(&self) -> Duration {
        self.tolerance.map_or(Duration::ZERO, |tolerance| self.interval.saturating_sub(tolerance))
    }

    /// Whether a tick may not start at `now`, and why.
    pub fn refuses(&self, past: Past, now: Time) -> Option<Refusal> {
        let never = Time::default();
        let since = now.since(past.last_start);
        if past.last_start != never && since < self.min_gap() {
            return Some(Refusal::TooSoon { since, least: self.min_gap() });
        }
        let since = now.since(past.last_finish);
        if past.last_finish != never && since < self.cooldown {
            return Some(Refusal::Cooldown { since, least: self.cooldown });
        }
        let by = now.since(past.due);
        self.late_after.filter(|most| by > *most).map(|_| Refusal::Late { by })
    }
}

/// As a reason that is recorded.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = |duration: &Duration| short_duration(*duration);
        match self {
            Self::TooSoon { since, least } => {
                write!(f, "tolerance: the last start was {} ago, and {} must lie between two", d(since), d(least))
            }
            Self::Cooldown { since, least } => {
                write!(f, "cooldown: the last run ended {} ago, and {} must go by", d(since), d(least))
            }
            Self::Running => f.write_str("running: the rotation of its chain ran, and `if_running` was `refuse`"),
            Self::Ended => f.write_str("ended: its chain has ended; `roundelay enroll --revive` begins it anew"),
            Self::Deaths => f.write_str(crate::deaths::SET_ASIDE),
            Self::Late { by } => write!(f, "misfire: it was due {} ago", d(by)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_manual_run_was_asked_for_is_stored_as_a_number() {
        for if_running in [IfRunning::Refuse, IfRunning::After, IfRunning::Beside] {
            for force in [false, true] {
                let manual = Manual { if_running, force };
                assert_eq!(Manual::from_number(manual.number()), manual);
            }
        }
        // Ledgers of before had no such number.
        assert_eq!(Manual::from_number(0), Manual::default());
    }

    #[test]
    fn a_table_of_refusals() {
        let s = Duration::from_secs;
        let at = |secs: i64| Time::from_millis(secs * 1_000);
        let past = |start, finish, due| Past { last_start: at(start), last_finish: at(finish), due: at(due) };
        let gap = Guard { interval: s(60), tolerance: Some(s(10)), ..Guard::default() };
        let cooldown = Guard { cooldown: s(50), ..Guard::default() };
        let late = Guard { late_after: Some(s(50)), ..Guard::default() };
        let table = [
            ("nothing asked", Guard::default(), past(99, 99, 1), None),
            ("far enough", gap, past(50, 99, 100), None),
            ("too close", gap, past(51, 99, 100), Some(Refusal::TooSoon { since: s(49), least: s(50) })),
            ("another interval", gap.with_interval(Some(s(59))), past(51, 99, 100), None),
            ("the first", gap, past(0, 0, 100), None),
            ("cool", cooldown, past(99, 50, 100), None),
            ("hot", cooldown, past(99, 51, 100), Some(Refusal::Cooldown { since: s(49), least: s(50) })),
            ("never ended", cooldown, past(99, 0, 100), None),
            ("in time", late, past(99, 99, 50), None),
            ("late", late, past(99, 99, 49), Some(Refusal::Late { by: s(51) })),
        ];
        for (label, guard, past, expected) in table {
            assert_eq!(guard.refuses(past, at(100)), expected, "{label}");
        }
    }
}
