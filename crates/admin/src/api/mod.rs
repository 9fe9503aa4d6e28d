//! The admin API over HTTP, and with it the dashboard: `roundelay serve`, or inside a worker.
//!
//! A request goes inwards:
//!
//! - `server`: connections: how many, how slow, with TLS or without.
//! - `door`: every request: whether it is for this server, and the headers of the answer. `site` decides (pure).
//! - `gate`: requests to the API: who asks and whether they may (`actor`, `failures`), whether it was asked before,
//!   and the audit.
//! - `endpoints`: the table of what there is, with the scope that each needs.
//! - The endpoints, in a file for each resource. They share an [`Api`] and take what `extract` reads; lists have
//!   pages (`page`), and what cannot be done is a [`Problem`].
//!
//! docs/api.md says what holds for all of it, and docs/openapi.json describes every endpoint.

mod actor;
mod audit;
mod came;
mod chains;
mod configuration;
mod detail;
#[cfg(test)]
mod document;
mod door;
mod endpoints;
mod enrolled;
mod extract;
mod failed;
mod failures;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod gate;
mod hosted;
mod jobs;
mod ladder;
mod openapi;
mod overview;
mod owners;
mod page;
pub mod problem;
mod quarantine;
mod queues;
mod rules;
mod runs;
pub mod server;
mod session;
mod simulations;
mod site;
mod state;
#[cfg(test)]
mod tests;
mod throttles;
mod tokens;
mod words;
mod workers;

pub use actor::Actor;
pub use hosted::HostedApi;
pub use openapi::DOCUMENT;
pub use problem::Problem;
pub use server::{Listener, MOST_CONNECTIONS, Server, USUAL};
pub use state::Api;
