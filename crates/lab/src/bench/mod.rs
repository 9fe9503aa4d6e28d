//! Measurements.
//!
//! - [`chains`] and `raw`: cycles per second, and lateness; [`stages`]: where their time goes.
//! - [`shards`]: the same on one platform queue and on several, on one rung and on several.
//! - [`throttles`], judged by `windows`: how much of a throttle is used, and whether ever too much.
//! - [`keys`]: a throttle with very many keys.
//! - [`parked`]: what chains that sleep cost.
//! - [`restart`]: a start when all chains are overdue.
//! - [`flat`]: how flat a fleet's starts are. [`ladder`]: delays of all lengths.
//! - `ground` and `gauge`: what they stand on, and what this process takes.

pub mod chains;
pub mod flat;
mod gauge;
mod ground;
pub mod keys;
pub mod ladder;
pub mod parked;
mod raw;
pub mod restart;
pub mod shards;
pub mod stages;
pub mod throttles;

/// Two digits after the point.
fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}
