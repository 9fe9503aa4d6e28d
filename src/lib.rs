//! Roundelay
pub mod bench;
pub mod broker;
pub mod clock;
pub mod config;
pub mod demo;
pub mod engine;
pub mod handler;
pub mod job;
pub mod ladder;
pub mod ledger;
pub mod outcome;
pub mod roster;
pub mod schedule;
pub mod telemetry;
pub mod throttle;

pub use config::Config;
pub use engine::Engine;
pub use job::Job;
pub use outcome::Outcome;
