//! Sends messages on when a hop is over and more of their delay is left.

use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::{Consumer, Delivery};
use roundelay_model::job::BadMessage;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::consume;
use crate::core::Core;
use crate::life::Point;
use crate::settlement::Settlement;
use crate::telemetry::Count;

/// Messages held at most; each sleeps here for at most [`roundelay_model::ladder::IN_PROCESS`], so this many pass in a
/// fifth of a second. Each may be as large as the broker lets it be, so there is a limit.
pub(super) const PREFETCH: u16 = 500;

/// Works through the rearm queue, until `shutdown`. Without a consumer, it makes one once the broker is there.
pub(super) async fn work(core: Arc<Core>, consumer: Option<Consumer>, tasks: TaskTracker, shutdown: CancellationToken) {
    let consumer = match consumer {
        Some(consumer) => consumer,
        None => loop {
            match consume::consumer(&core, &core.publishing.names.rearm(), PREFETCH, &shutdown).await {
                Some(Some(consumer)) => break consumer,
                Some(None) => {}
                None => return,
            }
        },
    };
    consume::consume(core, consumer, tasks, shutdown, live).await;
}

/// Lives one delivery of the rearm queue.
pub async fn live(core: Arc<Core>, delivery: Delivery) {
    let checked = core.read(&delivery).and_then(|envelope| match envelope.queue.clone() {
        Some(queue) => Ok((envelope, queue)),
        None => Err(BadMessage::Field("`queue` is missing, so the rearm queue cannot send it on".into())),
    });
    let settlement = match checked {
        Ok((envelope, queue)) => {
            core.observing.telemetry.count(Count::Rearmed);
            match core.publishing.dispatch.hop(&envelope, &queue, core.ledger.now()).await {
                Ok(_) => {
                    core.observing.life.reached(Point::Rearmed).await;
                    Settlement::Ack
                }
                Err(error) => {
                    tracing::debug!(kind = envelope.kind, key = envelope.key, %error, "rearming failed");
                    // What has just refused it would refuse it again at once.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Settlement::Requeue
                }
            }
        }
        Err(bad) => core.publishing.quarantine(&delivery, &bad).await,
    };
    core.observing.settle(delivery, settlement).await;
}
