//! Sends messages on when a hop is over and more of their delay is left.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::life::Point;
use super::pipeline::Fate;
use crate::broker::Delivery;
use crate::job::BadMessage;
use crate::telemetry::Count;

/// Lives one delivery of the rearm queue.
pub async fn live(core: Arc<Core>, delivery: Delivery) {
    let checked = core.read(&delivery).and_then(|envelope| match envelope.queue.clone() {
        Some(queue) => Ok((envelope, queue)),
        None => Err(BadMessage::Field("`queue` is missing, so the rearm queue cannot send it on".into())),
    });
    let fate = match checked {
        Ok(_) if mutant!(RearmDrops) => Fate::Ack,
        Ok((envelope, queue)) => {
            core.telemetry.count(Count::Rearmed);
            match core.dispatch.hop(&envelope, &queue, core.ledger.now()).await {
                Ok(_) => {
                    core.life.reached(Point::Rearmed).await;
                    Fate::Ack
                }
                Err(error) => {
                    tracing::debug!(kind = envelope.kind, key = envelope.key, %error, "rearming failed");
                    // What has just refused it would refuse it again at once.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Fate::Requeue
                }
            }
        }
        Err(bad) => core.quarantine(&delivery, &bad).await,
    };
    core.settle(delivery, fate).await;
}
