//! How a delivery is settled.

/// How a delivery is settled with the broker.
pub(crate) enum Settlement {
    /// What follows from it is safe.
    Ack,
    /// It must come again.
    Requeue,
}
