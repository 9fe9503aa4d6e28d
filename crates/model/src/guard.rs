//! Whether a tick may start (pure).
//!
//! A guard says no to a tick that comes too soon after another, or too late. What it looks at is in
//! the ledger, and it is asked in the claim's transaction: so two workers cannot both be told yes.
//! It is asked once for each tick. What has started is tried again whatever guards say.
//!
//! A schedule gives no time that a calendar excludes. But a tick may come later than it is due, or the calendar may have
//! changed since: so the guard asks it once more.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{Time, parse_duration, short_duration};
use crate::schedule::{Exclusions, OwnExclusions};

/// What is known of the wall clock may be wrong by as much.
const MAX_SKEW: Duration = Duration::from_micros(crate::clock::MAX_SKEW.unsigned_abs());

/// What the guards of a kind ask for; by default nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guard {
    /// How far two starts should lie apart.
    pub interval: Duration,
    /// By how much it may be less; `None` when it does not matter.
    pub tolerance: Option<Duration>,
    /// From the end of a run to the next start, at least.
    pub cooldown: Duration,
    /// What should have started longer ago than this has misfired.
    pub late_after: Option<Duration>,
    /// Nothing starts in this time.
    pub excluded: Exclusions,
    /// By how many milliseconds the wall clock is ahead of the ledger's time.
    pub ahead: i64,
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
    /// A calendar excludes the time.
    Excluded {
        /// The first time that it does not; `None` when that does not come for ten years.
        until: Option<Time>,
    },
}

/// What a guard needs to know of a chain's own schedule.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Own {
    every: Option<String>,
    #[serde(flatten)]
    excluded: OwnExclusions,
}

impl Guard {
    /// The same for a chain that has a schedule of its own, as the ledger keeps that. What cannot be used of it does not
    /// count.
    pub fn with_own(&self, own: &str) -> Self {
        let own: Own = serde_json::from_str(own).unwrap_or_default();
        let interval = own.every.and_then(|every| parse_duration(&every).ok());
        let excluded = own.excluded.apply(&self.excluded).ok().filter(|excluded| excluded.unknown().is_none());
        Self {
            interval: interval.unwrap_or(self.interval),
            excluded: excluded.unwrap_or_else(|| self.excluded.clone()),
            ..self.clone()
        }
    }

    /// From one start to the next, at least.
    fn min_gap(&self) -> Duration {
        self.tolerance.map_or(Duration::ZERO, |tolerance| self.interval.saturating_sub(tolerance))
    }

    /// Whether a tick may not start at `now`, and why.
    pub fn refuses(&self, past: Past, now: Time) -> Option<Refusal> {
        let never = Time::default();
        let wall = Time::from_millis(now.as_millis().saturating_add(self.ahead));
        // A worker knows to within this what the wall clock shows, and what is due at the end of excluded time may start.
        if self.excluded.excludes(wall) && self.excluded.excludes(wall + MAX_SKEW) {
            let until = self.excluded.allowed_from(wall).map(|until| now + until.since(wall));
            return Some(Refusal::Excluded { until });
        }
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
            Self::Excluded { until: Some(until) } => write!(f, "calendar: excluded until {until}"),
            Self::Excluded { until: None } => f.write_str("calendar: excluded for ten years at least"),
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
        // 00:01:40 of the first of all days.
        let quiet = |hours: &str| {
            let excluded = Exclusions { quiet: vec![hours.parse().unwrap()], ..Exclusions::default() };
            Guard { excluded, ..Guard::default() }
        };
        let until = Some(at(120));
        let ahead = Guard { ahead: 20_000, ..quiet("22:00-00:02") };
        let own = |text: &str| quiet("22:00-00:02").with_own(text);
        let table = [
            ("nothing asked", Guard::default(), past(99, 99, 1), None),
            ("far enough", gap.clone(), past(50, 99, 100), None),
            ("too close", gap.clone(), past(51, 99, 100), Some(Refusal::TooSoon { since: s(49), least: s(50) })),
            ("another interval", gap.with_own(r#"{"every":"59s"}"#), past(51, 99, 100), None),
            (
                "what it cannot read",
                gap.with_own("[1]"),
                past(51, 99, 100),
                Some(Refusal::TooSoon { since: s(49), least: s(50) }),
            ),
            ("the first", gap, past(0, 0, 100), None),
            ("cool", cooldown.clone(), past(99, 50, 100), None),
            ("hot", cooldown.clone(), past(99, 51, 100), Some(Refusal::Cooldown { since: s(49), least: s(50) })),
            ("never ended", cooldown, past(99, 0, 100), None),
            ("in time", late.clone(), past(99, 99, 50), None),
            ("in quiet hours", quiet("22:00-00:02"), past(0, 0, 100), Some(Refusal::Excluded { until })),
            ("after them", quiet("22:00-00:01"), past(0, 0, 100), None),
            ("after them by the wall clock", ahead, past(0, 0, 100), None),
            ("its own", own(r#"{"every":"9s","quiet":[]}"#), past(0, 0, 100), None),
            ("those of its kind", own(r#"{"every":"9s"}"#), past(0, 0, 100), Some(Refusal::Excluded { until })),
            ("in a zone of its own", own(r#"{"every":"9s","zone":"Asia/Tokyo"}"#), past(0, 0, 100), None),
            (
                "a calendar that is gone",
                own(r#"{"quiet":"","except":"x"}"#),
                past(0, 0, 100),
                Some(Refusal::Excluded { until }),
            ),
            ("late", late, past(99, 99, 49), Some(Refusal::Late { by: s(51) })),
        ];
        for (label, guard, past, expected) in table {
            assert_eq!(guard.refuses(past, at(100)), expected, "{label}");
        }
    }
}
