//! The engine: takes a configuration, and keeps its chains running.
//!
//! A program describes an [`Engine`] (`builder`). [`Engine::run`] starts and stops it (`run`). Its parts are made of
//! the configuration (`assemble`), and each task takes the parts that it needs (`wiring`):
//!
//! | Part | What it holds |
//! |---|---|
//! | `catalog` | the kinds, their handlers, and the queues |
//! | `patient` | the ledger, which is asked until it answers |
//! | `publishing` | the way to the broker: successors, jobs, messages that come again later; `quarantine` |
//! | `observing` | metrics, log lines and spans of runs |
//! | `vitals`, `in_hand`, `unique`, `suspects`, `wall`, `left_behind` | leases; messages in hand; places of unique jobs; runs that are kept apart; the wall clock; chains that dead workers have left |
//! | `stop` | the signals by which a worker stops |
//!
//! A message is delivered to `consume`, and `pipeline` says how a run goes, whatever its source. `tick` is the source
//! for chains, which asks for its claim (`claim`), and `one_off` for jobs without a chain (`redelivered` when a worker
//! had it before). Both get their `permit`, and `call` calls the handler. `outbox` and `discover` make messages and
//! chains of what a run asks for, and `publishing` sends them over [`Dispatch`]. An order is done by `orders`.
//!
//! Beside the pipeline run `heartbeat` (the session and its leases), `presence` (what the worker does, and what
//! operators have ordered), `catch_up` (messages that were lost), `hand_out` (due chains while the broker is away),
//! `rearm` (messages between two hops), [`delays`] (how messages sleep on the broker), `follow_wall` (the wall clock was
//! set), `reload` (the configuration has changed) and [`chores`] (the engine's own chains). Programs use [`enroll`],
//! [`publish`], [`reschedule`], [`resend`] and [`replay`] without a running worker.
//!
//! Where to go: waiting for a slot, [`throttle`]; payloads that are encrypted, [`sealing`]; metrics, [`telemetry`];
//! spans, [`trace`]; lists of entities, [`roster`]; health, [`monitor`].
//!
//! Layer: on `config` and all below. What is above is handed to the engine: a [`companion::Companion`] runs in the
//! worker, and a [`life::Probe`] watches it.

mod assemble;
mod builder;
pub mod calendars;
mod call;
mod catalog;
mod catch_up;
pub mod chores;
mod claim;
mod claim_time;
pub mod companion;
mod concurrency;
mod connections;
mod consume;
mod core;
pub mod delays;
pub mod desk;
mod discover;
mod dispatch;
pub mod enroll;
mod error;
mod fair;
mod flow_watch;
mod follow_wall;
pub mod fresh;
mod hand_out;
mod heartbeat;
pub mod holds;
mod in_hand;
mod kind_stats;
mod left_behind;
pub mod life;
pub mod monitor;
mod observing;
mod one_off;
mod orders;
mod outage;
mod outbox;
pub mod overslept;
mod pace;
mod patient;
mod permit;
mod pipeline;
mod presence;
pub mod publish;
mod publishing;
mod quarantine;
mod queue;
mod rearm;
mod reconcile;
mod redelivered;
mod reload;
pub mod replay;
pub mod reschedule;
pub mod resend;
pub mod roster;
mod run;
pub mod sealing;
mod settlement;
mod spread;
mod stop;
mod supervised;
mod suspects;
pub mod telemetry;
pub mod throttle;
mod tick;
pub mod topology_guard;
pub mod trace;
mod unique;
mod vitals;
mod wall;
mod wiring;

/// Decisions of the engine that are pure, for those who look at all of them.
#[doc(hidden)]
pub mod decisions {
    pub use crate::catch_up::{Plan, plan};
}

pub use builder::Engine;
pub use connections::{Connections, connect_broker, embedded_broker, open_ledger};
pub use dispatch::Dispatch;
pub use error::StartError;
