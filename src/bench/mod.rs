//! Measurements of the engine beside the raw broker.

pub mod chains;
mod raw;
