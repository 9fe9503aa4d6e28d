//! Benchmarks and demos.
//!
//! - [`mod@bench`]: benchmarks of the engine, in pairs with the raw limit: the same messages without an engine.
//! - [`demo`]: the systems that Roundelay is for, with upstreams that limit and ban, and a judge of their records.
//!
//! Layer: on `admin`. The demos run the same worker as production.

pub mod bench;
pub mod demo;
