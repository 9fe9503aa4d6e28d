//! Looking at a queue without consumers: its messages are fetched one by one, and put back or acknowledged.

use std::sync::Arc;

use bytes::Bytes;
use lapin::options::{BasicAckOptions, BasicGetOptions};
use lapin::types::AMQPValue;
use lapin::{Acker, Channel, Connection};
use roundelay_model::job::BadMessage;

use super::connection::{in_words, short};
use super::headers::unreadable;
use super::settle::requeue;
use crate::{BrokerError, PeekedMessage};

/// How many messages go by one channel. A channel that closes may forget acknowledgements of more than these, since a
/// quorum queue's log confirms only so many at a time.
const PER_CHANNEL: usize = 32;
/// Fetching stops once the bodies have this many bytes.
const MAX_PEEKED_BYTES: usize = 16 << 20;

/// Fetches the first messages of a queue, at most `most`.
pub(super) async fn fetch(
    connection: &Connection,
    queue: &str,
    most: usize,
) -> Result<Vec<PeekedMessage>, BrokerError> {
    let failed =
        |error: lapin::Error| BrokerError::Other(format!("cannot fetch from queue `{queue}`: {}", in_words(&error)));
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut open = None;
    while found.len() < most && bytes < MAX_PEEKED_BYTES {
        if found.len() % PER_CHANNEL == 0 {
            open = Some(Arc::new(Open(connection.create_channel().await.map_err(failed)?)));
        }
        let Some(open) = &open else { break };
        let Some(message) = open.0.basic_get(short(queue)?, BasicGetOptions::default()).await.map_err(failed)? else {
            break;
        };
        let headers = message.properties.headers().clone().unwrap_or_default();
        let text = |name: &str| match headers.inner().get(name) {
            Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
            _ => String::new(),
        };
        bytes += message.delivery.data.len();
        let id = message.properties.message_id().as_ref().map(|id| id.to_string()).unwrap_or_default();
        found.push(PeekedMessage {
            id,
            from: text("roundelay-from"),
            reason: match unreadable(&headers) {
                Some(why) => BadMessage::Unreadable(why.into()).to_string(),
                None => text("roundelay-reason"),
            },
            body: Bytes::from(message.delivery.data),
            settle: Box::new(Held { acker: message.delivery.acker, _open: open.clone() }),
        });
    }
    Ok(found)
}

/// The channel of what was fetched, closed with the last of it: then the broker has back what is unsettled.
struct Open(Channel);

impl Drop for Open {
    fn drop(&mut self) {
        let channel = self.0.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = channel.close(200, "looked".into()).await;
            });
        }
    }
}

struct Held {
    acker: Acker,
    _open: Arc<Open>,
}

#[async_trait::async_trait]
impl crate::Settle for Held {
    fn is_alive(&self) -> bool {
        self.acker.usable()
    }

    async fn ack(self: Box<Self>) {
        let _ = self.acker.ack(BasicAckOptions::default()).await;
    }

    async fn requeue(self: Box<Self>) {
        requeue(&self.acker).await;
    }
}
