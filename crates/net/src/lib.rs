//! Listening and TLS, for all that speak over a network.
//!
//! - [`listen`]: a small HTTP server with bounds: connections, connections of one address, time.
//! - [`tls`]: certificates, keys and authorities from PEM files.
//!
//! Layer: on `model`. A job does not pass through it; health, metrics, the API and connections to brokers and databases
//! do.

pub mod listen;
pub mod tls;
