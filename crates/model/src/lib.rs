//! The rules: what the engine decides, as pure functions and plain data.
//!
//! Nothing here reads a clock, rolls dice, opens a file or a connection: time and randomness are passed in. So each
//! rule has a table of cases as its test, and an edit of a rule is tested in seconds: `cargo test -p roundelay-model`.
//!
//! A job meets the rules in this order:
//!
//! 1. [`job`]: the message that travels, and what a handler gets of it. [`encryption`] seals payloads,
//!    [`trace_context`] is what a message carries of a trace.
//! 2. [`topology`], [`ladder`], [`spread`], [`lanes`]: the queues of the broker; a delay as hops over rungs; rungs that
//!    take the load of a hot one; which queue of a platform queue a message takes.
//! 3. [`pacing`]: limits, slots, breakers, budgets, and operators' orders on them.
//! 4. [`guard`]: whether a manual run may start. [`deaths`]: runs that workers die over. [`fleet`]: workers and queues,
//!    and what operators have ordered of them.
//! 5. [`outcome`] with its [`reason`]: what the handler said. [`policy`]: what follows by the reason. [`failure`]: what
//!    is kept of it. [`progress`]: how far a run has come.
//!    [`kind_stats`]: what the runs of a kind came to, over time.
//! 6. [`schedule`]: when the next tick is due. [`fresh`]: how often to look at what changes now and then. [`wall_clock`] and [`clock`]: the ledger's time and the wall clock.
//!
//! Beside that: [`backoff`], the pauses between attempts; [`egress`], where HTTP calls may lead; [`ids`], the numbers
//! of chains, ticks and claims; [`scope`], what a token may do; [`secret`], text that is not shown.
//!
//! Layer: the lowest. May use: serde, jiff, ciphers; of tokio only its clock.

pub mod backoff;
pub mod clock;
pub mod deaths;
pub mod egress;
pub mod encryption;
pub mod failure;
pub mod fleet;
pub mod fresh;
pub mod guard;
pub mod ids;
pub mod job;
pub mod kind_stats;
pub mod ladder;
pub mod lanes;
pub mod outcome;
pub mod pacing;
pub mod policy;
pub mod progress;
pub mod reason;
pub mod schedule;
pub mod scope;
pub mod secret;
pub mod spread;
pub mod topology;
pub mod trace_context;
pub mod waits;
pub mod wall_clock;
