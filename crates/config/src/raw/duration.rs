//! Durations, as the file has them: text such as `30s`.

use std::time::Duration;

use roundelay_model::clock::parse_duration;
use serde::{Deserialize, Deserializer};

/// A duration as people write it: text such as `30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer).map_err(|error| match error.to_string() {
            missing if missing.starts_with("missing field") => serde::de::Error::custom(missing),
            other => serde::de::Error::custom(format!("{other}; a duration is text such as \"30s\"")),
        })?;
        parse_duration(&text).map(HumanDuration).map_err(serde::de::Error::custom)
    }
}

/// A default, in seconds.
pub(super) const fn secs(secs: u64) -> HumanDuration {
    HumanDuration(Duration::from_secs(secs))
}
