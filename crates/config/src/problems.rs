//! What is wrong with settings, collected.

use std::net::SocketAddr;
use std::time::Duration;

use roundelay_model::outcome::Backoff;

use super::raw;
use super::read::nearest;

/// Problems as (key, message); the parts of a key are separated by U+001F, since names may hold
/// dots.
pub struct Problems(pub Vec<(String, String)>);

impl Problems {
    pub fn none() -> Self {
        Self(Vec::new())
    }

    pub fn add(&mut self, path: &[&str], message: impl Into<String>) {
        self.0.push((path.join("\u{1f}"), message.into()));
    }

    pub fn range<T: PartialOrd + std::fmt::Debug>(&mut self, path: &[&str], value: T, low: T, high: T) {
        if value < low || value > high {
            self.add(path, format!("{value:?} is out of range; from {low:?} to {high:?} is possible"));
        }
    }
}

/// The longest interval and backoff that may be configured.
pub const TEN_YEARS: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The longest run of a chain. Its message is acknowledged after `MAX_HELD`: the ledger knows of the run.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn known<'k>(
    problems: &mut Problems,
    path: &[&str],
    name: &str,
    table: &str,
    mut names: impl Iterator<Item = &'k String> + Clone,
) {
    if names.clone().any(|known| known == name) {
        return;
    }
    let hint = match nearest(name, names.by_ref().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("add [{table}.{name}]"),
    };
    problems.add(path, format!("there is no [{table}.{name}]; {hint}"));
}

pub(super) fn check_backoff(
    problems: &mut Problems,
    path: &[&str],
    backoff: raw::Backoff,
    named: &mut Vec<Duration>,
) -> Backoff {
    match backoff {
        raw::Backoff::List(waits) => {
            let waits: Vec<Duration> = waits.into_iter().map(|wait| wait.0).collect();
            for wait in &waits {
                problems.range(path, *wait, Duration::ZERO, TEN_YEARS);
            }
            named.extend(&waits);
            Backoff::List(waits)
        }
        raw::Backoff::Exponential(e) => {
            let below = |key: &'static str| -> Vec<&str> { path.iter().copied().chain([key]).collect() };
            problems.range(&below("factor"), e.factor, 1.0, 100.0);
            problems.range(&below("jitter"), e.jitter, 0.0, 1.0);
            problems.range(&below("max"), e.max.0, e.base.0, TEN_YEARS);
            Backoff::Exponential { base: e.base.0, factor: e.factor, max: e.max.0, jitter: e.jitter }
        }
    }
}

/// An address to listen on, as the configuration and the command line write it.
///
/// # Errors
/// Says what to write.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "`{text}` is not an address and a port; write \"127.0.0.1:9464\" to be reached from this machine alone, \
             \"0.0.0.0:9464\" to be reached from everywhere, by everybody"
        )
    })
}
