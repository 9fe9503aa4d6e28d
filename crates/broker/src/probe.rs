//! Finds out by trying whether messages sleep on the queues of a broker, and how its clock stands.
//!
//! No version is asked for: a cluster whose nodes differ, or one that was rolled back, says one thing and does another.
//! A round publishes a message that is to sleep, and behind it one that is not. Both are on the same queue, so if the
//! second comes first, the first one sleeps. That takes no waiting, and a slow broker answers right.

use std::time::Duration;

use bytes::Bytes;
use roundelay_model::clock::Time;
use roundelay_model::topology::Names;
use tokio::time::timeout;

use crate::{Broker, BrokerError, Consumer, Destination, Message};

/// So far ahead of the ledger's clock the broker's may be. What is to sleep for longer sleeps on every broker that knows
/// how to; such a message is left on the queue, and a later probe takes it away.
const FARTHEST: i64 = 24 * 60 * 60 * 1_000;
/// The first guess of how far the clocks may have moved since they were compared last, in milliseconds.
const NEAR: i64 = 64;
/// Guesses differ by so much at most, which no clock is wrong by: 50 of these are still a number.
const MAX_STEP: i64 = i64::MAX / 128;
/// The clocks are compared to so many milliseconds,
const CLOSE: i64 = 4;
/// in so many rounds at most.
const ROUNDS: u32 = 48;
/// How long the broker may take to hand on what does not sleep, and what has slept.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the last message sleeps, which has to wake.
const NAP: i64 = 40;
/// Messages of earlier probes come first, which may be many.
const PREFETCH: u16 = 100;

/// How far the broker's clock is ahead of `now`, in milliseconds, if messages sleep on its queues and wake; `None` if
/// they do not. `known` is the answer of an earlier probe, or 0. `token` is this probe's own. Only one program may probe
/// at a time. The probe's queue has to exist.
///
/// # Errors
/// When the broker does not take, or not hand on, what is published.
pub async fn probe(
    broker: &dyn Broker,
    names: &Names,
    token: &str,
    known: i64,
    now: impl Fn() -> Time,
) -> Result<Option<i64>, BrokerError> {
    let queue = names.probe();
    let consumer = broker.consume(&queue, PREFETCH).await?;
    let mut probe = Probe { broker, queue, consumer, token, round: 0 };
    let found = probe.find(known, now).await;
    probe.consumer.cancel().await;
    found
}

struct Probe<'a> {
    broker: &'a dyn Broker,
    queue: String,
    consumer: Consumer,
    token: &'a str,
    round: u32,
}

impl Probe<'_> {
    async fn find(&mut self, known: i64, now: impl Fn() -> Time) -> Result<Option<i64>, BrokerError> {
        if !self.sleeps(shifted(now(), known.saturating_add(FARTHEST))).await? {
            return Ok(None);
        }
        // The clock is ahead by `low` at least and by less than `high`. A message that was handed on came to the queue at
        // some time of its round, so it proves less by as long as the round took.
        let (mut low, mut high, mut step) = (None::<i64>, None::<i64>, NEAR);
        let mut guess = known - NEAR;
        for _ in 0..ROUNDS {
            let begun = now();
            match self.sleeps(shifted(begun, guess)).await? {
                true => high = Some(high.map_or(guess, |high| high.min(guess))),
                false => {
                    let sure = guess - now().since(begun).as_millis() as i64;
                    low = Some(low.map_or(sure, |low| low.max(sure)));
                }
            }
            guess = match (low, high) {
                (Some(low), Some(high)) if high - low <= CLOSE => break,
                (Some(low), Some(high)) => low.midpoint(high),
                (Some(low), None) => low.max(known - NEAR) + step,
                (None, Some(high)) => high - step,
                (None, None) => break,
            };
            step = step.saturating_mul(4).min(MAX_STEP);
        }
        let (Some(low), Some(high)) = (low, high) else { return Ok(None) };
        let ahead = low.midpoint(high);
        let wakes = self.wakes(shifted(now(), ahead + NAP)).await?;
        Ok(wakes.then_some(ahead))
    }

    /// Whether a message that is to sleep until then sleeps now.
    async fn sleeps(&mut self, until: Time) -> Result<bool, BrokerError> {
        let sleeper = self.send(Some(until)).await?;
        let marker = self.send(None).await?;
        let mut sleeps = true;
        loop {
            match self.next().await? {
                Some(body) if body == marker => return Ok(sleeps),
                Some(body) => sleeps &= body != sleeper,
                None => {
                    return Err(BrokerError::Other(format!(
                        "the queue `{}` hands on no message within {PATIENCE:?}",
                        self.queue
                    )));
                }
            }
        }
    }

    /// Whether a message that is to sleep until then wakes.
    async fn wakes(&mut self, until: Time) -> Result<bool, BrokerError> {
        let sleeper = self.send(Some(until)).await?;
        loop {
            match self.next().await? {
                Some(body) if body == sleeper => return Ok(true),
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }

    /// The next message; nothing when there is none for long.
    async fn next(&mut self) -> Result<Option<Bytes>, BrokerError> {
        match timeout(PATIENCE, self.consumer.next()).await {
            Ok(Some(delivery)) => {
                let body = delivery.body.clone();
                delivery.ack().await;
                Ok(Some(body))
            }
            Ok(None) => Err(BrokerError::Other("the connection has been closed".into())),
            Err(_) => Ok(None),
        }
    }

    async fn send(&mut self, until: Option<Time>) -> Result<Bytes, BrokerError> {
        self.round += 1;
        let id = format!("{} {}", self.token, self.round);
        let (body, queue) = (Bytes::from(id.clone()), self.queue.clone());
        let to = match until {
            Some(until) => Destination::Asleep { queue, until },
            None => Destination::Queue(queue),
        };
        let message = Message { to, id, body: body.clone(), trace: None };
        self.broker.publish(message).await.map_err(|error| BrokerError::Other(format!("the probe: {error}")))?;
        Ok(body)
    }
}

fn shifted(time: Time, by: i64) -> Time {
    Time::from_millis(time.as_millis().saturating_add(by))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use roundelay_model::clock::Clock;
    use roundelay_model::topology::Topology;

    use super::*;
    use crate::embedded::{EmbeddedBroker, Profile};

    async fn found(profile: Profile, ahead: i64, known: i64) -> (Option<i64>, Arc<EmbeddedBroker>) {
        let names = Names::new("r");
        let broker = EmbeddedBroker::with_profile(names.clone(), profile);
        let clock = Clock::starting_at(Time::from_millis(1_700_000_000_000));
        broker.goes_by(clock.clone());
        broker.set_clock(ahead);
        broker.apply(&Topology::native(names.clone(), ["work"])).await.unwrap();
        let found = probe(&broker, &names, "t", known, || clock.now()).await.unwrap();
        (found, Arc::new(broker))
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_is_known_by_what_it_does_and_its_clock_is_found() {
        for profile in [Profile::Rabbit310, Profile::Rabbit40, Profile::Rabbit4] {
            assert_eq!(found(profile, 0, 0).await.0, None, "{profile:?}");
        }
        let hours = 22 * 3_600_000;
        for ahead in [0, 1, -1, 57, -63, 70, -900, 5_000, -5_000, 100_000, hours, -hours, 100 * -hours] {
            for known in [0, ahead, ahead + 40, -ahead] {
                // What is farther ahead than anything that a broker could have slept on looks like one that does not.
                let too_far = ahead - known >= FARTHEST;
                let (found, _) = found(Profile::Rabbit44, ahead, known).await;
                let close = found.is_some_and(|found| (found - ahead).abs() <= CLOSE);
                assert!(close || too_far && found.is_none(), "{found:?} for {ahead}, {known} known");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_probe_has_left_does_not_count() {
        let (first, broker) = found(Profile::Rabbit44, 0, 0).await;
        assert!(first.is_some());
        broker.become_like(Profile::Rabbit4);
        let clock = Clock::starting_at(Time::from_millis(1_700_000_000_000));
        assert_eq!(probe(&*broker, &Names::new("r"), "u", 0, || clock.now()).await.unwrap(), None);
    }

    /// As one of a worker that stands still while it probes.
    #[tokio::test(start_paused = true)]
    async fn a_probe_ends_though_another_consumer_takes_its_messages() {
        for before in 0..2 {
            let (_, broker) = found(Profile::Rabbit44, 0, 0).await;
            let (names, clock) = (Names::new("r"), Clock::starting_at(Time::from_millis(1_700_000_000_000)));
            let _other = broker.consume(&names.probe(), PREFETCH).await.unwrap();
            for _ in 0..before {
                let to = Destination::Queue(names.probe());
                broker.publish(Message { to, id: "one".into(), body: Bytes::new(), trace: None }).await.unwrap();
            }
            let found = probe(&*broker, &names, "u", 0, || clock.now()).await;
            assert!(matches!(found, Ok(None) | Err(_)), "{found:?}");
        }
    }
}
