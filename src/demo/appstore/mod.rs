//! A crawler of two app stores.

pub mod judge;
