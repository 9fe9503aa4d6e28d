//! What is to become of a delivery.

/// What is to become of a delivery.
pub(crate) enum Fate {
    /// What follows from it is safe.
    Ack,
    /// It must come again.
    Requeue,
}
