//! How long RabbitMQ is waited for.

use std::time::Duration;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long everything waits for a connection while the broker is away.
    pub connection: Duration,
    /// How long a publish then waits for its confirmation.
    pub confirmation: Duration,
    /// How long a consumer with nothing in hand may get nothing, before it subscribes anew.
    pub silence: Duration,
    /// For how long what is known of the broker's certificate counts, before the broker is asked for it again.
    pub certificate: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connection: Duration::from_secs(5),
            confirmation: Duration::from_secs(30),
            silence: Duration::from_secs(30),
            certificate: Duration::from_secs(300),
        }
    }
}
