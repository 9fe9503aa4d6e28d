//! What there is to do: chains with and without throttles, and one-off jobs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::chaos_load::ONCE;
use crate::support::windows::Limit;

/// A kind of the configuration. Its queue has the same name.
pub struct Kind {
    pub name: &'static str,
    pub chains: usize,
    /// Its ticks are taken over when they are delivered again, instead of when their lease is over.
    pub redelivery: bool,
    every: &'static str,
    /// Allows a number of starts in a number of seconds. Its chains always have more due.
    throttle: Option<(usize, u64)>,
}

pub const KINDS: &[Kind] = &[
    Kind { name: "quick", chains: 150, redelivery: false, every: "5s", throttle: None },
    Kind { name: "eager", chains: 100, redelivery: true, every: "5s", throttle: None },
    Kind { name: "brisk", chains: 100, redelivery: false, every: "1s", throttle: Some((20, 1)) },
    Kind { name: "paced", chains: 6, redelivery: false, every: "1s", throttle: Some((5, 10)) },
    Kind { name: ONCE, chains: 0, redelivery: false, every: "", throttle: None },
];

pub const SLACK: Duration = Duration::from_secs(3);
pub const LEASE: Duration = Duration::from_secs(6);
/// How long a run may take from when it has begun, which for one that needs a slot is when it had it.
pub const TIMEOUT: Duration = Duration::from_secs(5);

impl Kind {
    pub fn limit(&self) -> Option<Limit> {
        self.throttle.map(|(allow, per)| Limit { allow, per: Duration::from_secs(per) })
    }
}

/// Writes the workers' configuration. Each has its own addresses, from its environment.
pub fn write_config(folder: &Path) -> anyhow::Result<PathBuf> {
    let (slack, lease, limit) = (SLACK.as_secs(), LEASE.as_secs(), TIMEOUT.as_secs());
    let mut text = format!(
        "catch_up = {{ every = \"1s\", slack = \"{slack}s\", spread = \"2s\" }}\n\
         worker = {{ lease = \"{lease}s\", grace = \"15s\" }}\n"
    );
    for Kind { name, every, throttle, redelivery, .. } in KINDS {
        text += &format!("[queues.{name}]\nconcurrency = 24\n");
        if let Some((allow, per)) = throttle {
            text += &format!("throttle = \"{name}\"\n[throttles.{name}]\nallow = {allow}\nper = \"{per}s\"\n");
        }
        text += &format!("[kinds.{name}]\nqueue = \"{name}\"\ntimeout = \"{limit}s\"\n");
        if !every.is_empty() {
            text += &format!("every = \"{every}\"\n");
        }
        if *redelivery {
            text += "takeover = \"redelivery\"\n";
        }
        text += "retry = { attempts = 3, backoff = [\"1s\"] }\nhandler.http.url = \"http://127.0.0.1:1/\"\n";
    }
    let path = folder.join("roundelay.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}
