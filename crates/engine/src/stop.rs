//! How a worker comes to its end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::queue::QueueRun;

/// The signals by which a worker stops.
#[derive(Clone)]
pub(crate) struct Stop {
    /// The worker takes nothing more, and what has not started is put back.
    pub(crate) stopping: CancellationToken,
    /// The grace is over: what still runs ends.
    pub(crate) abort: CancellationToken,
    /// An operator wants this worker to take nothing more.
    pub(crate) drained: Arc<AtomicBool>,
    pub(crate) grace: Duration,
}

impl Stop {
    /// Waits until what has not started is to go back to its queue: the worker stops, or takes nothing more from
    /// this queue.
    pub(crate) async fn put_back(&self, queue: &QueueRun) {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => {}
            () = queue.closed() => {}
        }
    }
}
