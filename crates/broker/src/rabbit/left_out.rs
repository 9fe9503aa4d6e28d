//! In place of RabbitMQ in a program that was built without the feature `rabbitmq`: its addresses are read, and
//! connecting says what is missing. What RabbitMQ's rules are is there all the same, since the embedded broker follows
//! them.

#[allow(dead_code, reason = "only connections to RabbitMQ note certificates")]
pub mod certificates;
#[allow(dead_code, reason = "only RabbitMQ's management API is compared as a whole")]
pub mod check;
#[allow(dead_code, reason = "only RabbitMQ imports definitions")]
mod definitions;
mod patience;
mod policies;
mod refusing;

pub use patience::Patience;
pub use refusing::{absent, connect};

/// Takes every URL: a configuration can be read, and tested, without RabbitMQ.
pub fn check_url(_url: &str) -> Result<(), String> {
    Ok(())
}

/// Says of no URL that it asks for a login with a certificate.
pub fn logs_in_by_certificate(_url: &str) -> bool {
    false
}
