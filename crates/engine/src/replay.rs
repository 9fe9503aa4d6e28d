//! Messages that an operator sends to their queues once more, from quarantine.
//!
//! A message is taken out of quarantine only when its copy is confirmed, so that none is lost: a process that dies in
//! between leaves both, and the message is sent again by the next who asks for it. So each copy says [which message it
//! is a copy of, and which retry has made it](Retry). The first copy that a worker is about to run takes, in the
//! ledger, the place of that message, and copies of other retries find it taken and are dropped. What is no one-off job
//! needs none of this: a chain's messages are judged by the ledger anyhow.

use std::time::Duration;

use bytes::Bytes;
use roundelay_broker::{Destination, Message, PeekedMessage, PublishError};
use roundelay_config::Config;
use roundelay_ledger::{QuarantinedMessage, RETRIED};
use roundelay_model::encryption::Keyring;
use roundelay_model::job::{Envelope, MAX_BYTES, MAX_RETRIES, MAX_SEALED, Retry, check_name};
use roundelay_model::outcome::{Decision, Verdict};
use roundelay_model::reason::{Class, Reason};
use sha2::{Digest, Sha256};

use crate::connections::Connections;
use crate::observing::Observing;
use crate::patient::PatientLedger;
use crate::queue::QueueRun;
use crate::sealing;
use crate::settlement::Settlement;
use crate::trace::Run;

/// How long it is known which retry came first, from when its job was first about to run.
const REMEMBERED: Duration = Duration::from_secs(7 * 86_400);

/// What became of a message that was to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It is safe where it goes.
    Sent,
    /// It cannot go anywhere, and stays.
    Stays,
    /// Broker or ledger do not take it.
    Away,
}

/// The id under which a job with this id and body that came from the queue `from` lies in quarantine.
///
/// A worker that dies between setting a message aside and acknowledging it leaves it to the next worker, which sets it
/// aside once more. By the same id both are known for one message, and are shown, sent again and dropped as one. A job
/// without an id of its own cannot be told from another that says the same, and is not to be taken for it: publishers
/// give their messages what ids they like.
pub fn replay_id(from: &str, id: &str, body: &[u8]) -> String {
    let mut all = Sha256::new();
    for part in [from.as_bytes(), id.as_bytes(), body] {
        all.update(part.len().to_be_bytes());
        all.update(part);
    }
    hex(&all.finalize())
}

/// The first 128 bits, which no other id shares.
fn hex(digest: &[u8]) -> String {
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a copy of a message to the queue that it came from. When that is done, the message [can be
/// forgotten](PeekedMessage::forget).
pub async fn send_again(config: &Config, connections: &Connections, shelved: &PeekedMessage) -> Again {
    let copy = copy(&config.encryption, &shelved.body, &shelved.id, connections.entropy.token());
    publish(config, connections, &shelved.from, copy).await
}

/// The same for a message that the ledger keeps, which is then forgotten, too.
pub async fn keep_again(config: &Config, connections: &Connections, message: QuarantinedMessage) -> Again {
    let QuarantinedMessage { number, from, body, .. } = message;
    let ledger = &connections.ledger;
    if connections.broker.keeps_messages() {
        let id = format!("{}-quarantined-{number}", ledger.id());
        let copy = copy(&config.encryption, &body.into(), &id, connections.entropy.token());
        return match publish(config, connections, &from, copy).await {
            Again::Sent => told(&from, ledger.forget_quarantined(vec![number]).await),
            other => other,
        };
    }
    // The embedded broker takes jobs from the ledger, and these only as far as it can read them.
    let Ok(body) = sealing::whole(&config.encryption, &body) else { return Again::Stays };
    let Ok(mut envelope) = Envelope::decode(&body) else { return Again::Stays };
    if envelope.chain.is_some() {
        // Of a chain, catch-up has the message that counts.
        return told(&from, ledger.forget_quarantined(vec![number]).await);
    }
    // Under its own id, by which it is forgotten once it has ended.
    let id = envelope.id.get_or_insert_with(|| connections.entropy.token()).clone();
    envelope.queue.get_or_insert_with(|| from.clone());
    let body = sealing::encode(&config.encryption, &envelope);
    told(&from, ledger.retry_quarantined(number, id, body).await)
}

async fn publish(config: &Config, connections: &Connections, from: &str, body: Bytes) -> Again {
    if !config.broker_queues().iter().any(|queue| queue == from) && !config.queues.contains_key(from) {
        return Again::Stays;
    }
    let message = Message { to: Destination::Queue(from.into()), id: connections.entropy.token(), body, trace: None };
    match connections.broker.publish(message).await {
        // That is about this queue, and says nothing of others.
        Err(error @ (PublishError::Unroutable(_) | PublishError::Refused(_))) => {
            tracing::warn!(%error, queue = from, "a message in quarantine could not be sent again");
            Again::Stays
        }
        done => told(from, done),
    }
}

fn told<T, E: std::fmt::Display>(queue: &str, done: Result<T, E>) -> Again {
    match done {
        Ok(_) => Again::Sent,
        Err(error) => {
            tracing::warn!(%error, queue, "a message in quarantine could not be sent again");
            Again::Away
        }
    }
}

/// What is sent in place of a message that had this id in quarantine. One that is no job, or that says nothing of
/// itself, goes as it is.
fn copy(keys: &Keyring, body: &Bytes, lay_as: &str, by: String) -> Bytes {
    let Ok(plain) = sealing::whole(keys, body) else { return body.clone() };
    let Ok(mut envelope) = Envelope::decode(&plain) else { return body.clone() };
    if envelope.chain.is_some() || envelope.retries.len() >= MAX_RETRIES || check_name("id", lay_as).is_err() {
        return body.clone();
    }
    // Its handler is told the same id by every copy.
    envelope.id.get_or_insert_with(|| lay_as.to_owned());
    let of = hex(&Sha256::digest(lay_as));
    envelope.retries.push(Retry { of, by });
    let largest = if envelope.sealed.is_some() { MAX_SEALED } else { MAX_BYTES };
    if envelope.encode().len() > largest { body.clone() } else { sealing::encode(keys, &envelope).into() }
}

/// What becomes of a job that was sent again from quarantine when a copy of another retry has come before it;
/// `None` when none has.
pub(super) async fn superseded(
    ledger: &PatientLedger,
    observing: &Observing,
    envelope: &Envelope,
    queue: &QueueRun,
) -> Option<Settlement> {
    for Retry { of, by } in &envelope.retries {
        let reserve = || ledger.reserve(RETRIED.into(), of.clone(), by.clone(), REMEMBERED);
        match ledger.retry_until_stopped("ask for the retry that came first", reserve).await {
            None => return Some(Settlement::Requeue),
            Some(first) if first == *by => {}
            Some(_) => {
                let reason = "it was sent again from quarantine twice, and the other came first";
                let decision = Decision::end(Verdict::Dropped, Reason::new(Class::Unique, reason));
                observing.note(envelope, queue, None, &decision, false, &Run::default());
                return Some(Settlement::Ack);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn copied(body: &Bytes, lay_as: &str, by: &str) -> Envelope {
        Envelope::decode(&copy(&Keyring::default(), body, lay_as, by.into())).unwrap()
    }

    #[test]
    fn replayed_copy_names_its_message_and_its_retry() {
        let mut job = Envelope::job("k", "x", Value::Null, "own".into());
        let body: Bytes = job.encode().into();
        let (one, two, other) = (copied(&body, "m", "1a"), copied(&body, "m", "2b"), copied(&body, "n", "3c"));
        assert_eq!((one.retries[0].of.len(), &*one.retries[0].by, &*two.retries[0].by), (32, "1a", "2b"));
        assert_eq!(one.retries[0].of, two.retries[0].of);
        assert_ne!(one.retries[0].of, other.retries[0].of);
        assert_eq!(one, Envelope { retries: one.retries.clone(), ..job.clone() }, "nothing else has changed");
        // Sent again once more, it still says what it said before.
        let again = copied(&one.encode().into(), "o", "4d");
        assert_eq!((&again.retries[0], again.retries.len()), (&one.retries[0], 2));
        // Without an id of its own, every copy has the same one.
        job.id = None;
        let body: Bytes = job.encode().into();
        assert_eq!(copied(&body, "m", "1a").id, Some("m".into()));
    }

    #[test]
    fn replay_id_is_that_of_the_same_message_alone() {
        let one = replay_id("work", "m", b"body");
        assert_eq!(one, replay_id("work", "m", b"body"));
        assert_eq!(one.len(), 32);
        let others = [("other", "m", "body"), ("work", "n", "body"), ("work", "m", "bodies"), ("workm", "", "body")];
        for (from, id, body) in others {
            assert_ne!(one, replay_id(from, id, body.as_bytes()), "{from} {id} {body}");
        }
    }

    #[test]
    fn what_cannot_say_it_goes_as_it_is() {
        let job = Envelope::job("k", "x", Value::Null, "own".into());
        let often = Envelope { retries: vec![Retry { of: "a".into(), by: "b".into() }; MAX_RETRIES], ..job.clone() };
        let hint = br#"{"v":1,"kind":"k","key":"x","chain":{"ledger":"l","epoch":1,"tick":1}}"#;
        let nameless = Bytes::from(job.encode());
        assert_eq!(copy(&Keyring::default(), &nameless, "", "1a".into()), nameless);
        for body in [often.encode(), hint.to_vec(), b"{nonsense".to_vec(), job.encode()[1..].to_vec()] {
            let body = Bytes::from(body);
            assert_eq!(copy(&Keyring::default(), &body, "m", "1a".into()), body);
        }
    }
}
