//! The admin API over HTTP, with the dashboard: `roundelay serve`, or inside a worker.
//!
//! A request goes inwards:
//!
//! - `server`: connections: how many, how slow, with TLS or without.
//! - `host_check`: every request: whether it is for this server, and the headers of the answer. `origin` decides
//!   (pure).
//! - `auth`: requests to the API: the actor and the scope (`actor`, `auth_rate_limit`), the idempotency key, and the
//!   audit.
//! - `endpoints`: the table of endpoints, each with the scope that it needs.
//! - The endpoints, in a file for each resource. They share an [`Api`] and take what `extract` reads; lists have pages
//!   (`page`), and an error is a [`Problem`].
//!
//! docs/api.md says what holds for all endpoints, and docs/openapi.json describes each one.

mod action_result;
mod actor;
mod audit;
mod auth;
mod auth_rate_limit;
mod chains;
mod configuration;
mod detail;
#[cfg(test)]
mod document;
mod endpoints;
mod enrolled;
mod extract;
mod failed;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod host_check;
mod hosted;
mod jobs;
mod kinds;
mod ladder;
mod openapi;
mod origin;
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
mod state;
mod tenants;
#[cfg(test)]
mod tests;
mod throttles;
mod tokens;
mod wire;
mod workers;

pub use actor::Actor;
pub use hosted::HostedApi;
pub use openapi::DOCUMENT;
pub use problem::Problem;
pub use server::{DEFAULT_ADDRESS, Listener, MAX_CONNECTIONS, Server};
pub use state::Api;
