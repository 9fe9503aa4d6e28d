//! What `roundelay simulate` takes a handler for: `model` in `[kinds]`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::duration::HumanDuration;

/// What `simulate` takes a kind's handler for.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// How many chains there are. `--chains` and `--roster` go over it.
    #[cfg_attr(test, schemars(range(min = 0, max = 100_000_000)))]
    pub chains: Option<u64>,
    /// How long a run takes: always the same, or a distribution. At most an hour.
    pub duration: Length,
    /// The share of attempts that fail. They are retried by the kind's policy.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub fail: f64,
    /// When it is otherwise.
    pub slow: Vec<Slow>,
    /// How often entities change. Runs then say whether their entity has changed; without it they do not.
    pub change: Option<Change>,
    /// What entities are worth, in place of `fresh.weight`. `--roster` goes over it: the rows have the weights then.
    pub weights: Weights,
    /// Whose entities are: owners, and how many parts of all entities each has. `--roster` goes over it: the rows have
    /// the owners then.
    #[cfg_attr(test, schemars(extend("additionalProperties" = { "type": "number", "exclusiveMinimum": 0 })))]
    pub owners: BTreeMap<String, f64>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            chains: None,
            duration: Length { p50: MODEL_RUN, p99: None },
            fail: 0.0,
            slow: Vec::new(),
            change: None,
            weights: Weights::Equal,
            owners: BTreeMap::new(),
        }
    }
}

/// How long a modelled run takes where nothing is said.
const MODEL_RUN: HumanDuration = HumanDuration(Duration::from_millis(200));

/// One length, or a distribution of them.
#[derive(Debug)]
pub struct Length {
    pub p50: HumanDuration,
    pub p99: Option<HumanDuration>,
}

/// Not `untagged`, for the same reason as [`Backoff`].
impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let read = match &value {
            serde_json::Value::Object(_) => {
                serde_json::from_value(value).map(|Quantiles { p50, p99 }| Self { p50, p99: Some(p99) })
            }
            serde_json::Value::String(_) => serde_json::from_value(value).map(|p50| Self { p50, p99: None }),
            _ => Err(serde::de::Error::custom("must be a duration such as \"200ms\", or { p50, p99 }")),
        };
        read.map_err(serde::de::Error::custom)
    }
}

/// A log-normal distribution of lengths.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Quantiles {
    /// Half of the runs take at most so long.
    pub p50: HumanDuration,
    /// 99 of 100 runs take at most so long.
    pub p99: HumanDuration,
}

/// A time in which a modelled upstream is slow, or fails more.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// From so long after the start of the simulation.
    pub from: HumanDuration,
    /// Until so long after it, exclusive.
    pub to: HumanDuration,
    /// Runs that begin meanwhile take so many times as long.
    #[serde(default = "unchanged")]
    #[cfg_attr(test, schemars(range(min = 0.0, max = 100_000.0)))]
    pub factor: f64,
    /// The share of them that fails. Without it, no other than usual.
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub fail: Option<f64>,
}

fn unchanged() -> f64 {
    1.0
}

/// How often modelled entities change: each by a Poisson process with a rate of its own.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The rate of half of the entities is at most this: changes and a time, as in `1/6h`.
    pub rate: String,
    /// How far the rates of entities lie apart: the standard deviation of their natural logarithms. With 0 all are the
    /// same; with 2 the middle half lies between a quarter and four times the median.
    #[serde(default)]
    #[cfg_attr(test, schemars(range(min = 0.0, max = 5.0)))]
    pub spread: f64,
    /// By what share rates follow the time of day, as a sine: 0 not at all; with 1 an entity never changes at 18:00 UTC,
    /// and twice as often as in the mean at 6:00.
    #[serde(default)]
    #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
    pub daily: f64,
}

/// What modelled entities are worth.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Weights {
    /// All the same.
    Equal,
    /// As in Zipf's law: the n-th entity a share of 1/n. Weights have nothing to do with rates.
    Zipf,
}
