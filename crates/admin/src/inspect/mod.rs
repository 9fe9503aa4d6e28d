//! The answers to people's questions: what is late, why does nothing run, what did it do.
//!
//! The command line, the admin API and the terminal answer from here, so that all of them say the same. Only the
//! ledger, the configuration and the broker are asked, and no worker: a worker that has the answer may be the one that
//! hangs.
//!
//! - [`overview`]: all chains in figures, and what is wrong, in words. [`status_cache`] keeps its facts up to date.
//! - [`chains`] and [`chain`]: many in rows, and everything about one. [`owners`]: to whom how many belong.
//! - `overslept`: chains whose due times lie further ahead than their schedules can explain; they count as overdue.
//! - [`queues`], [`throttles`], [`workers`], [`failures`], [`ladder`]: what lies between a chain and its run.
//! - [`kinds`]: what the runs of each kind came to over time. [`budgets`]: where calls go whose intervals are learned.
//! - [`broker`]: how many messages and consumers its queues have, or why that is not known.
//! - [`delays`]: whether messages sleep on rungs or on their own queues, and so what has to exist on the broker.
//! - [`doctor`]: what the system depends on: broker, ledger, clocks, this machine; what is wrong there, and how to mend
//!   it.
//! - [`mod@format`]: the words for times, spans, states, schedules.

pub mod broker;
pub mod budgets;
pub mod chain;
pub mod chains;
pub mod delays;
pub mod doctor;
pub mod failures;
pub mod format;
pub mod kinds;
pub mod ladder;
pub mod overview;
pub mod owners;
pub mod queues;
pub mod status_cache;
pub mod tenants;
pub mod throttles;
pub mod workers;
