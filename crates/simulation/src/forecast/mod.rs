//! What a configuration will do to its upstream: the real engine, in virtual time, on a
//! configuration with modelled handlers.
//!
//! The engine, the enroller, the embedded broker and the SQLite ledger (in memory) are those that
//! workers run; only handlers are replaced, by dice with the distributions of
//! `[kinds.<name>.model]`. The broker is a node of its own, as RabbitMQ is, so that it outlives the
//! workers. The same seed comes to the same report.
//!
//! - [`population`]: which chains there are. `model`: what a handler does.
//! - `capacity`: whether it can keep up, by arithmetic, before anything runs.
//! - `run`: the run itself; `fleet`: its workers.
//! - `recorder`: what is noted while it runs, in histograms and counts; nothing is kept for each tick.
//!   `ages`: how old data is. `pace`: starts over time. `gates`: how full windows of throttles were.
//!   `verdicts`: how attempts ended. `changes`: how right what is known of entities is; `fresh`: what the best intervals
//!   would come to. `tenants`: how late jobs of each tenant started.
//! - [`report`]: what it came to; [`text`] and [`svg`] show it, in the words of `words`.

mod ages;
mod capacity;
pub mod changes;
mod fleet;
mod fresh;
mod gates;
mod model;
mod pace;
pub mod population;
mod recorder;
pub mod report;
mod run;
pub mod svg;
mod tenants;
pub mod text;
mod verdicts;
mod words;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use roundelay_config::Config;
use roundelay_model::clock::Time;

pub use changes::Quality;
pub use fresh::FreshReport;
pub use gates::ThrottleReport;
pub use pace::Series;
use population::Population;
pub use report::Report;
pub use run::run;
pub use tenants::TenantReport;

/// What to simulate.
#[derive(Clone)]
pub struct Plan {
    /// The workers' configuration. Its broker and its ledger are not used.
    pub config: Config,
    /// The chains of each kind that has any.
    pub populations: BTreeMap<String, Population>,
    /// When simulated time begins.
    pub from: Time,
    /// How long it goes on; the end is not part of it.
    pub length: Duration,
    /// Decides all dice.
    pub seed: u64,
    /// How many workers there are, each of which consumes all queues.
    pub workers: usize,
    /// Over how long first ticks are spread; by default over the kind's interval.
    pub spread: Option<Duration>,
    /// When all workers are away: killed at the start of it, started again at its end.
    pub outages: Vec<Range<Duration>>,
    /// When the broker is away, with all messages on it kept.
    pub broker_outages: Vec<Range<Duration>>,
    /// What was assumed, to be told with the report.
    pub assumed: Vec<String>,
}
