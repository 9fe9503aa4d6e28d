//! Where what is due waits, and how its starts are paced: `[queues]` and `[throttles]`.

use roundelay_model::pacing::ThrottleScope;
use serde::Deserialize;

use super::duration::{HumanDuration, secs};

/// A platform queue: a queue on the broker, of this name, that holds what is due.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// How many of its jobs one worker runs at the same time.
    #[cfg_attr(test, schemars(range(min = 1, max = 10_000)))]
    pub concurrency: usize,
    /// How many of its messages one worker holds, running ones included. Without it, twice `concurrency`. Keep it
    /// small on a queue with a slow throttle, or one worker holds what another could run.
    #[cfg_attr(test, schemars(range(min = 1, max = 65_535)))]
    pub prefetch: Option<u16>,
    /// Among queues that share a throttle, the one with the higher number gets the next slot.
    pub priority: i32,
    /// How many of the kinds' priorities this queue tells apart. So many queues stand behind it on the broker, each
    /// with its own `prefetch`.
    #[cfg_attr(test, schemars(range(min = 1, max = 10)))]
    pub lanes: u8,
    /// Which of `[throttles]` paces the starts of this queue. Queues may share one. Without one nothing does.
    pub throttle: Option<String>,
    /// The part of a job by which tenants share this queue: `owner`, `kind`, `key` or `payload.FIELD`. Without it, that
    /// of its throttle; without that, who comes first is first.
    pub fair: Option<String>,
    /// How many jobs of one tenant run at the same time, over all workers. Without it there is no limit.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub most: Option<u32>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { concurrency: 16, prefetch: None, priority: 0, lanes: 1, throttle: None, fair: None, most: None }
    }
}

/// The share of one tenant of all fair queues and throttles.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Tenant {
    /// Its share in proportion to those of others.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000)))]
    pub weight: u32,
    /// How many of its jobs run at the same time on a queue, over all workers, in place of what the queue says.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub most: Option<u32>,
}

impl Default for Tenant {
    fn default() -> Self {
        Self { weight: 1, most: None }
    }
}

/// A limit on starts, which all workers keep to together.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// At most this many starts in any stretch of time of the length `per`, evenly paced.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub allow: u32,
    /// How long that stretch of time is.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "366days")))]
    pub per: HumanDuration,
    /// How many starts may follow each other at once after a pause, up to `allow`.
    #[serde(default = "one")]
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub burst: u32,
    /// Who counts.
    #[serde(default = "fleet")]
    pub scope: ThrottleScope,
    /// A limit for each value of this part of a job, instead of one for all: `payload.FIELD`, `key`, `kind` or `owner`.
    pub key: Option<String>,
    /// The part of a job by which tenants share the starts: `owner`, `kind`, `key` or `payload.FIELD`. Not together with
    /// `key`.
    pub fair: Option<String>,
    /// Further windows that hold at the same time. They are not paced, so the first may use them up early.
    #[serde(default)]
    pub also: Vec<Window>,
    /// A job that waits longer for a slot is put off, with no attempt charged. The default is `5m`, and `2s` with
    /// `key`, since a job that waits holds up others that could start.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "5m")))]
    pub block: Option<HumanDuration>,
    /// Which headers of an HTTP handler's answers say how many calls remain of a budget, and when there are more of
    /// them.
    pub budget: Option<Budget>,
    /// Which header of an HTTP handler's answers says for how many starts the call counts.
    pub cost_header: Option<String>,
    /// After so many failures with no success between them, by any worker, nothing starts for a while; then one start
    /// at a time tries. Without it nothing is counted.
    pub breaker: Option<Breaker>,
}

fn one() -> u32 {
    1
}

fn fleet() -> ThrottleScope {
    ThrottleScope::Fleet
}

/// A further window of a throttle.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// At most this many starts in any stretch of time of the length `per`.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub allow: u32,
    /// How long that stretch of time is.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "366days")))]
    pub per: HumanDuration,
}

/// What remains of a budget of calls, as headers of an HTTP handler's answers say it.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The header that says how many calls remain.
    pub remaining: String,
    /// The header that says when there are more: in seconds, as seconds since 1970, or as a date.
    pub reset: String,
    /// With so many or more remaining calls nothing is slowed; with fewer, they are spread over the time until there
    /// are more. Without it they are always spread.
    pub slow_below: Option<u32>,
}

/// When an upstream that fails is left alone.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// How many failures with no success between them.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub failures: u32,
    /// How long nothing starts then. Each try that fails doubles it.
    #[serde(default = "half_a_minute")]
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1day")))]
    pub wait: HumanDuration,
    /// How long it becomes at most; not shorter than `wait`.
    #[serde(default = "ten_minutes")]
    #[cfg_attr(test, schemars(extend("x-most" = "1day")))]
    pub longest: HumanDuration,
}

fn half_a_minute() -> HumanDuration {
    secs(30)
}

fn ten_minutes() -> HumanDuration {
    secs(600)
}
