//! What workers that are gone, or silent, may have left.

use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct LeftBehind {
    /// A session of another worker is over, and may have left chains.
    pub(crate) orphaned: Notify,
    /// One of them was silent: its worker may have messages in hand still.
    pub(crate) silent: AtomicBool,
}
