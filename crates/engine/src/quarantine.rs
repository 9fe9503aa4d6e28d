//! Where messages go that cannot be used.

use std::time::Duration;

use roundelay_broker::Delivery;
use roundelay_broker::Destination;
use roundelay_broker::Message;
use roundelay_model::job::{BadMessage, Envelope};
use tokio::time::sleep;

use crate::life::Point;
use crate::publishing::Publishing;
use crate::replay::replay_id;
use crate::sealing;
use crate::settlement::Settlement;
use crate::telemetry::Count;

impl Publishing {
    /// Puts a message that cannot be used where a person finds it.
    pub(crate) async fn quarantine(&self, delivery: &Delivery, bad: &BadMessage) -> Settlement {
        self.telemetry.count(Count::Quarantined);
        let keys = self.keys();
        let (from, reason) = (delivery.queue.to_string(), bad.told(keys.seal().is_some()));
        let body = sealing::set_aside(&keys, &delivery.body);
        if self.telemetry.notices.begins(&format!("messages of the queue {from} that cannot be used")) {
            tracing::warn!(queue = from, reason, bytes = delivery.body.len(), "quarantined");
        }
        let job = Envelope::decode(&delivery.body).ok().filter(|envelope| envelope.chain.is_none());
        let job = job.and_then(|job| job.id);
        let kept = if self.dispatch.broker.keeps_messages() {
            let id = job.map_or_else(|| self.entropy.token(), |id| replay_id(&from, &id, &body));
            let to = Destination::Quarantine { from, reason };
            let message = Message { to, id, body, trace: None };
            self.dispatch.broker.publish(message).await.map_err(|error| error.to_string())
        } else {
            let now = self.ledger.now();
            let kept = self.ledger.quarantine(from, reason, body.to_vec(), job, now).await;
            kept.map_err(|error| error.to_string())
        };
        match kept {
            Ok(()) => {
                self.life.reached(Point::SetAside).await;
                Settlement::Ack
            }
            Err(error) => {
                if self.telemetry.notices.begins("messages that the quarantine did not take") {
                    tracing::warn!(error, "the quarantine could not be reached; the message stays where it is");
                }
                sleep(Duration::from_secs(1)).await;
                Settlement::Requeue
            }
        }
    }
}
