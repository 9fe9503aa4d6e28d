//! What people do with a running system: look, order, import.
//!
//! - [`inspect`]: the state of chains, queues, workers, throttles and failures, and `doctor`. It only reads.
//! - [`operate`]: one function for each verb of operators, with its check, its transaction and its receipt. The command
//!   line, the API and `top` call these.
//! - [`api`]: the HTTP API, and [`web`], the dashboard, which is a client of the API.
//! - [`import`]: the schedules of other programs as configuration and rosters.
//! - [`worker`]: an engine with its monitor and its API.
//!
//! Layer: on `engine` and `simulation` (the API answers forecasts). A job does not pass through this crate.

pub mod api;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod import;
pub mod inspect;
pub mod operate;
pub mod web;

use roundelay_config::Config;
use roundelay_engine::Engine;
use roundelay_engine::monitor::Monitor;

/// An engine with everything that `roundelay worker` hosts: health and metrics at `worker.listen`, the API at
/// `api.listen`.
pub fn worker(config: Config) -> Engine {
    Engine::new(config).companion(Monitor::default()).companion(api::HostedApi::default())
}
