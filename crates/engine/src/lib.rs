//! The engine: everything between a configuration and chains that stay alive.
//!
//! `pipeline` is a job's life from delivery to acknowledgement, `outbox` and `discover` see to what runs
//! ask for, `outage` runs chains from the ledger while the broker is away, [`sealing`] seals and opens what users have given, [`retried`] sends messages again from quarantine, [`Dispatch`] puts messages on
//! the ladder, `rearm` sends them on when a hop is over, `catch_up` re-creates messages that
//! were lost, [`enroll`] begins chains, [`moves`] brings ticks to other times, `reload` follows a
//! changed configuration, `attend` says how the worker is and does what operators have ordered of it and of its
//! queues, [`chores`] is what the engine does for itself, and [`Engine::run`] starts and stops it all.
//!
//! Where to go: how a delivery becomes a run, `pipeline`; how a run ends, `attempt` and `one_off`; leases, `vitals`; waiting
//! for a slot, [`throttle`]; metrics, [`telemetry`]; spans, [`trace`]; lists of entities, [`roster`]; health, [`monitor`].
//!
//! Layer: on `config` and all below. Everything above is handed to it: a [`companion::Companion`] runs in the worker, and a
//! [`life::Probe`] watches it.

mod assemble;
mod attempt;
mod attend;
mod builder;
mod catalog;
mod catch_up;
pub mod chores;
pub mod companion;
mod connections;
mod consume;
mod core;
pub mod desk;
mod discover;
mod dispatch;
pub mod enroll;
mod error;
mod fate;
mod follow_wall;
mod hand_out;
mod heartbeat;
mod in_hand;
mod left_behind;
pub mod life;
pub mod monitor;
pub mod moves;
mod observing;
mod one_off;
mod orders;
mod outage;
mod outbox;
pub mod overslept;
mod pace;
mod parts;
mod patient;
mod pipeline;
pub mod publish;
mod publishing;
mod quarantine;
mod queue;
mod rearm;
mod reconcile;
mod redelivered;
mod reload;
pub mod retried;
mod room;
pub mod roster;
mod run;
pub mod sealing;
mod stop;
mod suspects;
pub mod telemetry;
pub mod throttle;
pub mod topology_guard;
pub mod trace;
mod unique;
mod valve;
mod vitals;
mod wall;
mod wiring;
pub use builder::Engine;
pub use connections::{Connections, connect_broker, open_ledger};
pub use dispatch::Dispatch;
pub use error::StartError;
