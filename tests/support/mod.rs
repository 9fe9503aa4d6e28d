//! What the integration tests, the chaos test and the throttles' test share.

pub mod ground;
pub mod receiver;
pub mod windows;
pub mod workers;
