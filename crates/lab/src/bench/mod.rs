//! Benchmarks.
//!
//! - [`chains`] and `raw`: cycles per second, and lateness; [`stages`]: the stages of a cycle.
//! - [`growth`]: the same with more of one thing. [`compare`]: the work that other schedulers publish figures for.
//! - [`shards`]: the same on one platform queue and on several, on one rung and on several.
//! - [`throttles`], judged by `windows`: how much of a throttle is used, and whether ever too much.
//! - [`keys`]: a throttle with very many keys.
//! - [`parked`]: the cost of sleeping chains.
//! - [`restart`]: a start when all chains are overdue.
//! - [`flat`]: how flat a fleet's starts are. [`ladder`]: delays of all lengths.
//! - `ground` and `gauge`: the resources of a benchmark, and the resource use of this process.

pub mod chains;
pub mod compare;
pub mod flat;
mod gauge;
mod ground;
pub mod growth;
pub mod keys;
pub mod ladder;
pub mod parked;
mod raw;
pub mod restart;
pub mod shards;
pub mod stages;
pub mod throttles;

/// Rounds to two digits after the point.
fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}
