//! Takes the deliveries of queues, as long and as widely as operators let it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use roundelay_broker::{Consumer, Delivery};
use roundelay_model::fleet::Flow;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::core::Core;
use crate::pipeline;
use crate::queue::QueueRun;

/// After a queue could not be consumed.
const AGAIN: Duration = Duration::from_secs(2);

/// Works through a queue as long and as widely as operators let it, until `shutdown`. Begins with `flow` and the
/// consumer that was made for it.
pub(super) async fn work(
    core: Arc<Core>,
    queue: Arc<QueueRun>,
    mut flow: Flow,
    mut consumer: Option<Consumer>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let differs = |next: &Flow| (next.open, next.prefetch) != (flow.open, flow.prefetch);
        if !flow.open {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                _ = queue.flow_watch.until(differs) => {}
            }
        } else if let Some(consumer) = consumer.take() {
            let turn = shutdown.child_token();
            let run = queue.clone();
            let live = move |core, delivery| pipeline::process_delivery(core, run.clone(), delivery);
            let consuming = pin!(consume(core.clone(), consumer, tasks.clone(), turn.clone(), live));
            let other = pin!(queue.flow_watch.until(differs));
            // It ends by itself only when nothing will come any more.
            let Either::Right((_, consuming)) = select(consuming, other).await else { return };
            turn.cancel();
            consuming.await;
            if shutdown.is_cancelled() {
                return;
            }
        }
        flow = queue.flow();
        if !flow.open {
            tracing::info!(queue = queue.source, "taking no more jobs from the queue");
            continue;
        }
        tracing::info!(queue = queue.source, ?flow, "taking jobs from the queue");
        let Some(again) = self::consumer(&core, &queue.source, queue.reach(flow), &shutdown).await else { return };
        consumer = again;
    }
}

/// Consumes a queue of the broker, once that is there with its topology; `Some(None)` when this did not succeed and is
/// to be tried again, and nothing at `shutdown`.
pub(super) async fn consumer(
    core: &Core,
    source: &str,
    prefetch: u16,
    shutdown: &CancellationToken,
) -> Option<Option<Consumer>> {
    let consume = async {
        core.publishing.declared.wait().await;
        match core.publishing.dispatch.broker.consume(source, prefetch).await {
            Ok(consumer) => Some(consumer),
            Err(error) => {
                tracing::warn!(queue = source, %error, "failed to consume the queue; trying again");
                tokio::time::sleep(AGAIN).await;
                None
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => None,
        consumer = consume => Some(consumer),
    }
}

/// Takes deliveries and lets each live its own life, until `shutdown`.
pub(super) async fn consume<L>(
    core: Arc<Core>,
    mut consumer: Consumer,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    live: impl Fn(Arc<Core>, Delivery) -> L,
) where
    L: Future<Output = ()> + Send + 'static,
{
    loop {
        let delivery = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            delivery = consumer.next() => delivery,
        };
        let Some(delivery) = delivery else { break };
        let life = live(core.clone(), delivery);
        // A job that has not started when the worker stops is put back by its own pipeline.
        tasks.spawn(core.observing.life.bind(life));
    }
    consumer.cancel().await;
}
