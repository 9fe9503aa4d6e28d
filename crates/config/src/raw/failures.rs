//! What follows a failure: `retry` and `reconcile` in `[kinds]`, and `[reasons]`.

use serde::{Deserialize, Deserializer};

use super::duration::{HumanDuration, secs};

/// What follows a failed attempt, unless a reason says otherwise.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// How many attempts a tick or job gets in all, the first included. When the last has failed it is kept as failed,
    /// and a chain goes on with its next tick.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000)))]
    pub attempts: u32,
    /// The waits before further attempts: a list, of which the last repeats, or a table by which they grow.
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 3, backoff: Backoff::Exponential(Exponential::default()) }
    }
}

/// Waits between attempts.
#[derive(Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[cfg_attr(test, serde(untagged))]
pub enum Backoff {
    List(Vec<HumanDuration>),
    Exponential(Exponential),
}

/// Not `untagged`: serde would take a list of two for the first two fields of `Exponential`, and
/// say of a wrong one only that it fits neither.
impl<'de> Deserialize<'de> for Backoff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let read = match &value {
            serde_json::Value::Array(_) => serde_json::from_value(value).map(Self::List),
            serde_json::Value::Object(_) => serde_json::from_value(value).map(Self::Exponential),
            _ => Err(serde::de::Error::custom(
                "must be a list of waits such as [\"30s\", \"60s\"], or { base, factor, max, jitter }",
            )),
        };
        read.map_err(serde::de::Error::custom)
    }
}

/// Waits that grow: base × factor^(n − 1) after the n-th attempt, at most `max`, give or take a share.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Exponential {
    /// The first wait.
    pub base: HumanDuration,
    /// How many times as long each wait is as the one before.
    #[cfg_attr(test, schemars(range(min = 1.0, max = 100.0)))]
    pub factor: f64,
    /// The longest wait; not shorter than `base`.
    #[cfg_attr(test, schemars(extend("x-most" = "3660days")))]
    pub max: HumanDuration,
    /// A wait is so much longer or shorter, by chance: a share of it.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub jitter: f64,
}

impl Default for Exponential {
    fn default() -> Self {
        Self { base: secs(10), factor: 2.0, max: secs(600), jitter: 0.2 }
    }
}

/// What follows from a reason.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// What follows.
    pub policy: Policy,
    /// With `retry`: how many attempts in all. Without it, as many as the kind's own `retry` has.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000)))]
    pub attempts: Option<u32>,
    /// With `retry`: the waits between them. Without it, those of the kind's own `retry`.
    pub backoff: Option<Backoff>,
    /// With `snooze`, which needs it: how long, at least. What an upstream asks for (`Retry-After`) may be longer.
    #[cfg_attr(test, schemars(extend("x-least" = "100ms", "x-most" = "30days")))]
    pub after: Option<HumanDuration>,
}

/// What follows from a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Again.
    Retry,
    /// Permanent for this tick, job or part.
    Fail,
    /// Permanent for the entity: its chain ends, and it is shown as unavailable.
    Retire,
    /// Again later, with no attempt charged.
    Snooze,
}

/// How failed parts of runs are fed back.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Reconcile {
    /// How often is looked for parts that are due. They run once more as jobs on their chain's queue, under the same
    /// throttle.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "3660days")))]
    pub every: HumanDuration,
    /// The kind of these jobs. Without it, the chain's own.
    pub kind: Option<String>,
}
