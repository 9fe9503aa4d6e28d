//! One publish, from the message to its verdict.

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
pub(super) type Verdict = Result<(), PublishError>;

/// A message in AMQP's terms, and the caller to answer.
pub(super) struct Job {
    pub(super) exchange: ShortString,
    key: ShortString,
    properties: BasicProperties,
    id: String,
    body: Bytes,
    /// How often it has been sent.
    pub(super) tries: u8,
    answer: oneshot::Sender<Verdict>,
}

impl Job {
    pub(super) fn new(names: &Names, message: Message, answer: oneshot::Sender<Verdict>) -> Result<Self, PublishError> {
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
        let persistent = match &trace {
            Some(trace) => persistent.with_headers(headers::write(trace)),
            None => persistent,
        };
        let (exchange, key, properties) = match to {
            Destination::Queue(queue) => (names.jobs(), queue, persistent),
            Destination::Rung { rung, then } => (names.rung(rung), then, persistent),
            Destination::Quarantine { from, mut reason } => {
                // Headers must fit into one frame, or the broker closes the connection.
                reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
                let mut headers = FieldTable::default();
                headers.insert("roundelay-reason".into(), AMQPValue::LongString(reason.into()));
                headers.insert("roundelay-from".into(), AMQPValue::LongString(from.into()));
                (names.jobs(), names.quarantine(), persistent.with_headers(headers))
            }
        };
        Ok(Self { exchange: named(exchange)?, key: named(key)?, properties, id, body, tries: 0, answer })
    }

    /// Answers the caller, who may have gone.
    pub(super) fn end(self, verdict: Verdict) {
        let _ = self.answer.send(verdict);
    }

    /// Whether the caller has given up.
    pub(super) fn forsaken(&self) -> bool {
        self.answer.is_closed()
    }

    fn unroutable(self) {
        let verdict = Err(PublishError::Unroutable(format!("`{}` (through exchange `{}`)", self.key, self.exchange)));
        self.end(verdict);
    }

    pub(super) fn exchange_absent(self) {
        let verdict =
            Err(PublishError::Unroutable(format!("`{}`: there is no exchange `{}`", self.key, self.exchange)));
        self.end(verdict);
    }
}

/// What became of one try.
pub(super) enum Tried {
    /// The caller has been told.
    Told,
    /// The try says nothing about this message.
    Again(Job),
    /// The channel is gone.
    Broken(Job, Error),
}

/// Publishes once. Read `attribution.rs` before changing the order of the steps.
pub(super) async fn attempt(channel: &Channel, returns: &Returns, mut job: Job) -> Tried {
    job.tries += 1;
    let number = returns.next_number();
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let sent =
        channel.basic_publish(job.exchange.clone(), job.key.clone(), options, &job.body, job.properties.clone()).await;
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
            job.end(Err(PublishError::Unknown("the channel is not in confirm mode".into())));
            return Tried::Told;
        }
        Err(error) => return Tried::Broken(job, error),
    };
    let carried = returned.map(|message| returns.note(&message));

    one_more_round().await;

    let key = || (job.id.clone(), job.exchange.to_string(), job.key.to_string());
    if returns.claim(number, key) {
        job.unroutable();
    } else if carried.is_some() {
        return Tried::Again(job);
    } else if accepted {
        job.end(Ok(()));
    } else {
        let key = job.key.to_string();
        job.end(Err(PublishError::Refused(key)));
    }
    Tried::Told
}
