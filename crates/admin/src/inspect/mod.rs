//! What people ask: what is late, why does nothing run, what did it do.
//!
//! The command line, the admin API and the terminal answer from here, so that all of them tell the same. Only the
//! ledger, the configuration and the broker are asked, and no worker: the one that could tell may be what is stuck.
//!
//! - [`overview`]: all chains in figures, and what is wrong, in words. [`board`] keeps what it needs up to date.
//! - [`chains`] and [`chain`]: many in rows, and all about one.
//! - `overslept`: chains whose due times lie further ahead than their schedules can explain; they count as overdue.
//! - [`queues`], [`throttles`], [`workers`], [`failures`], [`ladder`]: what lies between a chain and its run.
//! - [`broker`]: how full its queues are, or why nobody knows.
//! - [`doctor`]: the ground that all of it stands on: broker, ledger, clocks, this machine; what is wrong there, and
//!   how to mend it.
//! - [`words`]: how it is said.

pub mod board;
pub mod broker;
pub mod chain;
pub mod chains;
pub mod doctor;
pub mod failures;
pub mod ladder;
pub mod overview;
pub mod queues;
pub mod throttles;
pub mod words;
pub mod workers;
