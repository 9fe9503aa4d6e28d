//! What the configuration says of a throttle.

use std::sync::Arc;
use std::time::Duration;

use super::key::KeyPath;
use crate::pacing::slots::breaker::Breaker;
use crate::pacing::slots::limits::Limits;

/// `[throttles.<name>]`
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleSettings {
    /// The windows that hold, and how many starts may follow each other at once after a pause.
    pub limits: Arc<Limits>,
    /// Who counts.
    pub scope: ThrottleScope,
    /// What of a job says which of many limits of this sort is meant: there is one for each of its values.
    pub key: Option<KeyPath>,
    /// Whoever waits longer for a slot is put off, with no attempt charged.
    pub block: Duration,
    /// Which headers of an answer say how much remains of a budget.
    pub budget: Option<BudgetSettings>,
    /// Which header of an answer says how many starts a call counts for.
    pub cost_header: Option<String>,
    /// After which run of failures starts are held, and for how long. How long a start that tries may take
    /// follows from its kind.
    pub breaker: Option<Breaker>,
}

/// `[throttles.<name>.budget]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// The header that says how many calls remain.
    pub remaining: String,
    /// The header that says when there are more: in seconds, as seconds since 1970, or as a date.
    pub reset: String,
    /// With so many or more nothing is slowed; absent, the calls that remain are always spread until there
    /// are more.
    pub slow_below: Option<u32>,
}

impl ThrottleSettings {
    /// How many messages a worker has use for at once: those that can start within ten seconds. Of a
    /// throttle with keys nobody knows.
    pub fn ahead(&self) -> Option<u16> {
        let starts = (self.limits.rate() * AHEAD.as_secs_f64()).ceil().max(2.0);
        self.key.is_none().then_some(starts.min(f64::from(u16::MAX)) as u16)
    }
}

/// See [`ThrottleSettings::ahead`].
const AHEAD: Duration = Duration::from_secs(10);

/// Who counts the starts of a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum ThrottleScope {
    /// The ledger, for all workers.
    Fleet,
    /// Each worker for itself.
    Worker,
}
