//! What the configuration says of a throttle.

use std::sync::Arc;
use std::time::Duration;

use super::key::KeyPath;
use crate::pacing::slots::breaker::Breaker;
use crate::pacing::slots::limits::Limits;

/// `[throttles.<name>]`
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleSettings {
    /// The windows, and how many starts may follow each other at once after a pause.
    pub limits: Arc<Limits>,
    /// Where the starts are counted.
    pub scope: ThrottleScope,
    /// The field of a job by which there are many limits: one for each value.
    pub key: Option<KeyPath>,
    /// The field of a job by which tenants share the starts; never together with `key`.
    pub fair: Option<KeyPath>,
    /// A job that waits longer for a slot is postponed, with no attempt charged.
    pub block: Duration,
    /// The headers of an answer that say how much of a budget remains.
    pub budget: Option<BudgetSettings>,
    /// The header of an answer that says for how many starts a call counts.
    pub cost_header: Option<String>,
    /// When the breaker opens, and for how long. A probe's patience follows from its kind.
    pub breaker: Option<Breaker>,
}

/// `[throttles.<name>.budget]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// The header that says how many calls remain.
    pub remaining: String,
    /// The header that says when there are more: in seconds, as seconds since 1970, or as a date.
    pub reset: String,
    /// With this many calls or more, nothing is slowed. `None`: the calls that remain are always spread
    /// until the budget is filled again.
    pub slow_below: Option<u32>,
}

impl ThrottleSettings {
    /// How many messages a worker can use at once: those that can start within ten seconds. `None` for a
    /// throttle with keys, where this number is unknown.
    pub fn ahead(&self) -> Option<u16> {
        let starts = (self.limits.rate() * AHEAD.as_secs_f64()).ceil().max(2.0);
        self.key.is_none().then_some(starts.min(f64::from(u16::MAX)) as u16)
    }
}

const AHEAD: Duration = Duration::from_secs(10);

/// Where the starts of a throttle are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum ThrottleScope {
    /// The ledger, for all workers.
    Fleet,
    /// Each worker for itself.
    Worker,
}
