//! What runs the jobs of a kind: `handler` in `[kinds]`.

use std::collections::BTreeMap;

use roundelay_model::secret::Secret;
use serde::{Deserialize, Deserializer};

use super::duration::HumanDuration;

/// What runs jobs.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Handler {
    /// A handler that a Rust program of yours registers under the kind's name.
    #[default]
    Rust,
    /// POST to a URL.
    Http(Http),
    /// Start a program.
    Exec(Exec),
}

/// A handler that is a URL, to which each job is POSTed.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Where the job is POSTed to. It may be a template over `kind`, `key`, `queue` and `payload`, and begins with
    /// `http://` or `https://`.
    pub url: Secret,
    /// Further request headers.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// What calls are signed with, by the Standard Webhooks specification: `whsec_` and 24 to 64 random bytes in
    /// base64. With a list each signs, so that receivers can change from one to the next. Without it calls are not
    /// signed.
    #[serde(default)]
    pub sign: Secrets,
    /// Where calls may lead besides public addresses: addresses, networks, and names of hosts. An address or
    /// `localhost` that stands in `url` itself needs no entry.
    #[serde(default)]
    pub allow: Vec<String>,
}

/// One secret or several.
#[derive(Default)]
pub struct Secrets(pub Vec<Secret>);

/// Not `untagged`, and not serde's own words: those would show a secret that stands in the wrong place.
impl<'de> Deserialize<'de> for Secrets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = |value| match value {
            serde_json::Value::String(word) => Some(Secret::new(word)),
            _ => None,
        };
        let secrets = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Array(list) => list.into_iter().map(words).collect::<Option<_>>(),
            one => words(one).map(|one| vec![one]),
        };
        secrets.map(Self).ok_or_else(|| serde::de::Error::custom("must be a secret such as \"whsec_…\", or a list"))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// A handler that is a program, which is started for each job.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program, by its absolute path, and its arguments. There is no shell.
    pub argv: Vec<String>,
    /// The environment that the program gets besides `ROUNDELAY_…`; nothing is inherited.
    #[serde(default)]
    pub env: BTreeMap<String, Secret>,
    /// The folder that it runs in. Without it, the worker's own.
    pub cwd: Option<String>,
    /// What the program may use. What is not said is not limited.
    #[serde(default)]
    pub limits: Limits,
}

/// What a program of a kind may use.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory that each of its processes may ask for, at least `1MiB`: a whole number of `KiB`, `MiB` or `GiB`.
    #[cfg_attr(test, schemars(regex(pattern = r"^\d+ *(KiB|MiB|GiB)$")))]
    pub memory: Option<String>,
    /// CPU time that each of its processes may take, in whole seconds.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1day")))]
    pub cpu: Option<HumanDuration>,
    /// Files that each of its processes may have open at the same time.
    #[cfg_attr(test, schemars(range(min = 4, max = 1_048_576)))]
    pub files: Option<u64>,
    /// Processes and threads that the worker's user may have when the program starts another.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_048_576)))]
    pub processes: Option<u64>,
}
