//! How long a client waits for RabbitMQ.

use std::time::Duration;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long everything waits for a connection while the broker is away.
    pub connection: Duration,
    /// How long a publish then waits for its confirmation.
    pub confirmation: Duration,
    /// How long a consumer without unsettled deliveries may get nothing, before it subscribes anew.
    pub silence: Duration,
    /// How long the broker's certificate is taken as known, before the broker is asked for it again.
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
