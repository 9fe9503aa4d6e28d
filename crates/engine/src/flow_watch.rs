//! How much a queue lets through: an operator's order is waited for by the queue's consumer, and by each of its
//! messages that has not started.

use parking_lot::{Mutex, MutexGuard};
use roundelay_model::fleet::Flow;
use tokio::sync::Notify;

/// Who waits is woken in the order of waiting, so that a simulation, which has one thread, tells the same each time:
/// Tokio's `watch` wakes whom dice choose.
pub(super) struct FlowWatch {
    flow: Mutex<Flow>,
    changed: Notify,
}

impl FlowWatch {
    pub fn new(flow: Flow) -> Self {
        Self { flow: Mutex::new(flow), changed: Notify::new() }
    }

    /// What holds now.
    pub fn flow(&self) -> Flow {
        *self.inner()
    }

    pub fn set(&self, flow: Flow) {
        if std::mem::replace(&mut *self.inner(), flow) != flow {
            self.changed.notify_waiters();
        }
    }

    /// Waits until it `is` so, and answers what holds then.
    pub async fn until(&self, is: impl Fn(&Flow) -> bool) -> Flow {
        loop {
            // Hears of every change from here on.
            let changed = self.changed.notified();
            let flow = self.flow();
            if is(&flow) {
                return flow;
            }
            changed.await;
        }
    }

    fn inner(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const OPEN: Flow = Flow { open: true, places: 8, prefetch: 64 };
    const CLOSED: Flow = Flow { open: false, ..OPEN };

    #[tokio::test(start_paused = true)]
    async fn flow_watch_wakes_waiters_in_their_order() {
        let valve = Arc::new(FlowWatch::new(OPEN));
        let woken = Arc::<Mutex<Vec<usize>>>::default();
        let waiting: Vec<_> = (0..32)
            .map(|number| {
                let (valve, woken) = (valve.clone(), woken.clone());
                tokio::spawn(async move {
                    valve.until(|flow| !flow.open).await;
                    woken.lock().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        valve.set(CLOSED);
        for one in waiting {
            one.await.unwrap();
        }
        assert!(woken.lock().is_sorted(), "woken in the order {:?}", woken.lock());
    }

    #[tokio::test(start_paused = true)]
    async fn flow_watch_waits_only_for_the_flow_that_was_asked_for() {
        let valve = FlowWatch::new(CLOSED);
        assert_eq!(valve.until(|flow| !flow.open).await, CLOSED);
        let wider = Flow { places: 16, ..CLOSED };
        let (flow, ()) = tokio::join!(valve.until(|flow| flow.open), async {
            valve.set(wider);
            tokio::task::yield_now().await;
            valve.set(OPEN);
        });
        assert_eq!(flow, OPEN);
    }
}
