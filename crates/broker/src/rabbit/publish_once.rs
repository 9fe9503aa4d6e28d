//! One publish, from the message to its result.

use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Error};
use roundelay_model::topology::Names;
use tokio::sync::oneshot;

use super::attribution::{Returns, one_more_round};
use super::headers;
use crate::{Destination, Message, PublishError};

/// How much of the reason for a quarantine is kept, in bytes.
const MAX_REASON_BYTES: usize = 4_096;

/// The result of a publish.
pub(super) type PublishResult = Result<(), PublishError>;

/// A message in AMQP's terms, and the caller to answer.
pub(super) struct Outgoing {
    pub(super) exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
    id: String,
    body: Bytes,
    /// How often it has been sent.
    pub(super) tries: u8,
    answer: oneshot::Sender<PublishResult>,
}

impl Outgoing {
    pub(super) fn new(
        names: &Names,
        message: Message,
        answer: oneshot::Sender<PublishResult>,
    ) -> Result<Self, PublishError> {
        let Message { to, mut id, body, trace } = message;
        // AMQP's limit. The id is for people and for telling returns apart; the envelope has the
        // whole identity.
        id.truncate(id.floor_char_boundary(255));
        let named =
            |name: String| ShortString::try_new(name).map_err(|error| PublishError::Unroutable(error.to_string()));
        let persistent = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_message_id(id.as_str().into());
        let mut table = trace.as_deref().map(headers::write);
        if let Destination::Asleep { until, .. } = &to {
            headers::put_asleep(table.get_or_insert_default(), *until);
        }
        let persistent = match table {
            Some(table) => persistent.with_headers(table),
            None => persistent,
        };
        let (exchange, key, properties) = match to {
            Destination::Queue(queue) | Destination::Asleep { queue, .. } => (names.jobs(), queue, persistent),
            Destination::Rung { rung, then } => (names.rung(rung), then, persistent),
            Destination::Quarantine { from, mut reason } => {
                // Headers must fit into one frame, or the broker closes the connection.
                reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
                let mut headers = FieldTable::default();
                headers.insert("roundelay-reason".into(), AMQPValue::LongString(reason.into()));
                headers.insert("roundelay-from".into(), AMQPValue::LongString(from.into()));
                // These replace the headers of a trace: a message in quarantine has none.
                (names.jobs(), names.quarantine(), persistent.with_headers(headers))
            }
        };
        Ok(Self { exchange: named(exchange)?, routing_key: named(key)?, properties, id, body, tries: 0, answer })
    }

    /// Answers the caller, who may have gone.
    pub(super) fn end(self, result: PublishResult) {
        let _ = self.answer.send(result);
    }

    /// Whether the caller has given up.
    pub(super) fn forsaken(&self) -> bool {
        self.answer.is_closed()
    }

    fn unroutable(self) {
        let result =
            Err(PublishError::Unroutable(format!("`{}` (through exchange `{}`)", self.routing_key, self.exchange)));
        self.end(result);
    }

    pub(super) fn exchange_absent(self) {
        let result =
            Err(PublishError::Unroutable(format!("`{}`: there is no exchange `{}`", self.routing_key, self.exchange)));
        self.end(result);
    }
}

/// What became of one try.
pub(super) enum Tried {
    /// The caller has been told.
    Told,
    /// The confirmation came with a return that may be another message's, so the result is not known: see
    /// `attribution.rs`. The message is to be published again.
    Again(Outgoing),
    /// The channel is gone.
    Broken(Outgoing, Error),
}

/// Publishes once. Read `attribution.rs` before changing the order of the steps.
pub(super) async fn publish_once(channel: &Channel, returns: &Returns, mut message: Outgoing) -> Tried {
    message.tries += 1;
    let number = returns.next_number();
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let sent = channel
        .basic_publish(
            message.exchange.clone(),
            message.routing_key.clone(),
            options,
            &message.body,
            message.properties.clone(),
        )
        .await;
    let confirmation = match sent {
        Ok(confirmation) => confirmation.await,
        Err(error) => Err(error),
    };
    let (accepted, returned) = match confirmation {
        Ok(Confirmation::Ack(returned)) => (true, returned),
        Ok(Confirmation::Nack(returned)) => (false, returned),
        // Cannot be: the channel is in confirm mode before anyone gets it. If it ever is, nothing
        // is known about the message, and saying so is safe.
        Ok(Confirmation::NotRequested) => {
            message.end(Err(PublishError::Unknown("the channel is not in confirm mode".into())));
            return Tried::Told;
        }
        Err(error) => return Tried::Broken(message, error),
    };
    // lapin may give another message's return to this confirmation. It is noted for its own message. After one more
    // round of the runtime all earlier confirmations have done so, too, and a return of this message is there.
    let carried = returned.map(|returned| returns.note(&returned));
    one_more_round().await;
    let identity = || (message.id.clone(), message.exchange.to_string(), message.routing_key.to_string());
    if returns.claim(number, identity) {
        message.unroutable();
    } else if carried.is_some() {
        return Tried::Again(message);
    } else if accepted {
        message.end(Ok(()));
    } else {
        let routing_key = message.routing_key.to_string();
        message.end(Err(PublishError::Refused(routing_key)));
    }
    Tried::Told
}
