//! The internals that the program, the tests and the benchmarks use. Any version may change all of it.

pub use roundelay_model::{
    clock, deaths, egress, encryption, failure, fleet, fresh, guard, ids, job, kind_stats, ladder, lanes, outcome,
    pacing, policy, progress, reason, schedule, scope, secret, spread, topology, trace_context, wall_clock,
};

#[cfg(fuzzing)]
pub use roundelay_admin::fuzz;
#[cfg(feature = "api")]
pub use roundelay_admin::{api, import, inspect, operate};
pub use roundelay_broker as broker;
pub use roundelay_config as config;
pub use roundelay_engine as engine;
pub use roundelay_engine::{monitor, roster, telemetry, throttle, trace};
pub use roundelay_handler as handler;
#[cfg(feature = "program")]
pub use roundelay_lab::{bench, demo};
pub use roundelay_ledger as ledger;
pub use roundelay_net::tls;
#[cfg(feature = "testing")]
pub use roundelay_simulation as simulation;
