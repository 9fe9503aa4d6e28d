//! The shape of the configuration file, with defaults: here the whole of it, and in each module some of its sections.
//! `check` turns it into settings.

mod api;
mod calendars;
pub mod duration;
mod failures;
pub mod handlers;
mod kinds;
pub mod model;
mod queues;
mod recurrence;
mod roster;
mod stores;
mod tracing;
mod worker;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use api::Api;
pub use calendars::{Calendar, CalendarSql};
pub use duration::HumanDuration;
pub use failures::{Backoff, Policy, Reason, Reconcile, Retry};
pub use handlers::{Exec, Handler, Limits};
pub use kinds::{Kind, Takeover, UniqueUntil};
pub use model::{Change, Model, Slow, Weights};
pub use queues::{Queue, Tenant, Throttle};
pub use recurrence::{Compare, Fresh, From, Misfire, Overlap, Phase, Recurrence};
pub use roster::Roster;
pub use stores::{Broker, BrokerTls, Encryption, Ledger};
pub use tracing::Tracing;
pub use worker::{CatchUp, Programs, Worker};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    /// What carries messages.
    pub broker: Broker,
    /// What holds the truth about chains.
    pub ledger: Ledger,
    /// How a worker stops, and where it answers.
    pub worker: Worker,
    /// The admin API and the dashboard.
    pub api: Api,
    /// How overdue chains are found, and sent again.
    pub catch_up: CatchUp,
    /// Which programs exec handlers may start.
    pub exec: Programs,
    /// Traces, for a collector of OpenTelemetry's.
    pub tracing: Tracing,
    /// Keys that payloads are sealed with while they lie in the ledger and in queues.
    pub encryption: Encryption,
    /// One table for each platform queue.
    pub queues: BTreeMap<String, Queue>,
    /// One table for each limit on starts.
    pub throttles: BTreeMap<String, Throttle>,
    /// One table for each tenant whose share differs from that of others.
    pub tenants: BTreeMap<String, Tenant>,
    /// One table for each set of days and hours that kinds and chains name in `except` and `only`.
    pub calendars: BTreeMap<String, Calendar>,
    /// One table for each reason that work fails for: what follows, for all kinds.
    pub reasons: BTreeMap<String, Reason>,
    /// One table for each kind of job.
    pub kinds: BTreeMap<String, Kind>,
}
