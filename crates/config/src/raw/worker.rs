//! How a worker stops and where it answers, how it finds what was lost, and which programs it may start: `[worker]`,
//! `[catch_up]` and `[exec]`.

use serde::Deserialize;

use super::duration::{HumanDuration, secs};

/// How a worker stops, and where it answers.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Worker {
    /// How long running jobs may go on after SIGTERM. What is not done by then is put off, and runs again. Keep it
    /// below the time that your supervisor waits before it kills.
    #[cfg_attr(test, schemars(extend("x-least" = "0s", "x-most" = "24m")))]
    pub grace: HumanDuration,
    /// How long a worker may be silent. It says once a second that it lives, for all its runs together. One that cannot
    /// say so ends its runs shortly before this is over, and then others run the same ticks. Where the operating system
    /// shows that a worker has ended, others do not wait for it.
    #[cfg_attr(test, schemars(extend("x-least" = "3s", "x-most" = "1h")))]
    pub lease: HumanDuration,
    /// Address and port where the worker answers `/metrics`, `/healthz` and `/readyz`, to all clients that reach it.
    /// Each worker on a machine needs a port of its own. Without it nothing listens.
    pub listen: Option<String>,
    /// What handlers reach `listen` by, as a URL: each job then says where its run can report how far it has come. By
    /// default it is the address in `listen`; where that is `0.0.0.0`, there is none.
    pub callback: Option<String>,
    /// By which names with a dot `listen` is called, beside the host of `callback` and this machine's own name. By an
    /// address, or by a name without a dot, it is always answered. Requests for others are refused, so that no page in
    /// a browser reads there by a name that is made to lead to it. Without scheme and port.
    pub hosts: Vec<String>,
}

impl Default for Worker {
    fn default() -> Self {
        Self { grace: secs(30), lease: secs(6), listen: None, callback: None, hosts: Vec::new() }
    }
}

/// How chains are found whose messages were lost, and sent again.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct CatchUp {
    /// How often overdue chains are looked for.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1h")))]
    pub every: HumanDuration,
    /// How long after its due time a chain is looked at, whose message is lost, or waits its turn.
    #[cfg_attr(test, schemars(extend("x-least" = "1s", "x-most" = "1h")))]
    pub slack: HumanDuration,
    /// When many chains are overdue at once, their messages are spread over up to this long.
    #[cfg_attr(test, schemars(extend("x-least" = "0s", "x-most" = "1h")))]
    pub spread: HumanDuration,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self { every: secs(15), slack: secs(30), spread: secs(30) }
    }
}

/// Which programs may run.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Programs {
    /// Programs, and folders of such, by absolute path. Symbolic links are followed first. A run of any other fails.
    /// Without it, any may be started.
    pub allow: Option<Vec<String>>,
}
