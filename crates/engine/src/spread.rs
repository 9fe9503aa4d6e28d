//! Finds rungs that are hot, and gives them siblings: rungs that take their load.
//!
//! The rule is [`Loads`]'. A worker that finds a rung hot notes that in the ledger, declares the siblings, and uses them.
//! All workers read the ledger once a minute, and do the same. So a rung that was hot once keeps its siblings, also
//! after a restart; others have none.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_broker::Way;
use roundelay_ledger::LedgerError;
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::spread::{HotRungs, Loads};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::publishing::Publishing;
use crate::topology_guard;

/// How often the ledger is asked which rungs are hot.
const EVERY: Duration = Duration::from_secs(60);

/// The load of the rungs to which this worker sends, and the rungs that were found hot since they were last asked for.
#[derive(Default)]
pub(crate) struct Heat {
    loads: Mutex<(Loads, Vec<Duration>)>,
    hotter: Notify,
}

impl Heat {
    /// A successor is sent to the rung, or to a sibling of it. `late` is said of its predecessor's message.
    pub(crate) fn sent(&self, rung: Duration, late: bool, now: Time) {
        let mut guard = self.loads.lock();
        let (loads, hot) = &mut *guard;
        if loads.sent(rung, late, now) {
            hot.push(rung);
            self.hotter.notify_one();
        }
    }

    async fn hot(&self) -> Vec<Duration> {
        self.hotter.notified().await;
        std::mem::take(&mut self.loads.lock().1)
    }
}

/// Gives hot rungs siblings, also those that other workers have found hot, until `shutdown`.
pub(crate) async fn follow(publishing: Arc<Publishing>, shutdown: CancellationToken) {
    let work = async {
        publishing.declared.wait().await;
        publishing.telemetry.hot_rungs(publishing.dispatch.broker.sleeping().hot_rungs().len());
        loop {
            let known = tokio::select! {
                found = publishing.dispatch.heat.hot() => note(&publishing, found).await,
                () = sleep(EVERY) => note(&publishing, Vec::new()).await,
            };
            match known {
                Ok(known) => take(&publishing, known).await,
                Err(error) => tracing::debug!(%error, "failed to read or write which delay queues are hot"),
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// Notes in the ledger that these rungs are hot. Returns all hot rungs of the ledger.
async fn note(publishing: &Publishing, found: Vec<Duration>) -> Result<HotRungs, LedgerError> {
    let ours = publishing.dispatch.broker.sleeping().hot_rungs();
    let hot = found.into_iter().fold((*ours).clone(), |hot, rung| hot.with(rung).unwrap_or(hot));
    // A worker of an earlier version may have written a document without them.
    if !hot.is_empty() {
        topology_guard::note_hot_rungs(&*publishing.ledger, &hot).await?;
    }
    topology_guard::hot_rungs(&*publishing.ledger).await
}

/// Declares the siblings that this worker does not use yet, and uses them.
async fn take(publishing: &Publishing, known: HotRungs) {
    let broker = &publishing.dispatch.broker;
    let sleeping = broker.sleeping();
    if *sleeping.hot_rungs() == known || !matches!(sleeping.way(), Some(Way::Ladder)) {
        return;
    }
    match broker.apply(&publishing.sleepers.ladder_with(&known)).await {
        Ok(()) => {
            publishing.telemetry.hot_rungs(known.len());
            let hot: Vec<String> = known.rungs().map(short_duration).collect();
            tracing::info!(
                ?hot,
                "delay queues are hot: they handed on most messages late, though workers had room; others of neighbouring \
                 delays take their load from now on"
            );
            sleeping.set_hot_rungs(known);
        }
        Err(error) if publishing.telemetry.notices.begins("delay queues that could not be declared") => tracing::warn!(
            %error,
            "a delay queue is hot, and those that are to take its load could not be declared: run `roundelay topology \
             apply`, or give the worker's user the right to declare them"
        ),
        Err(error) => tracing::debug!(%error, "failed to declare delay queues beside hot ones"),
    }
}
