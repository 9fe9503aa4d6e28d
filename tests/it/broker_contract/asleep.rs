//! Messages that sleep on their queue until a time, where the broker knows that; and how those fare where it does not.

use std::time::Duration;

use lapin::types::AMQPValue;
use roundelay::broker::{Broker, Consumer, Delivery, Depth, Destination, Message};
use roundelay::clock::{Clock, Time};
use roundelay::topology::{Argument, Binding, Exchange, ExchangeKind, Queue};

use super::stage::{LONG, Stage, brokers, topology};
use super::{message, next, now, text};
use crate::harness::until;

/// RabbitMQ's clock is the machine's, but follows it smoothly: they are this far apart at most.
const SKEW: Duration = Duration::from_millis(5);
/// Long enough for something to happen before it is over, short enough to await it.
const NAP: Duration = Duration::from_millis(600);

/// The time on this machine, which is the broker's.
fn time() -> Time {
    Clock::System.now()
}

fn asleep(until: Time, body: &str) -> Message {
    message(Destination::Asleep { queue: "work".into(), until }, body)
}

async fn ready(broker: &dyn Broker, expected: u64) {
    until(&format!("{expected} are ready"), || async { broker.depth("work").await.unwrap().ready == expected }).await;
}

/// Takes what has to come next: this message, which was to sleep until then and does so where that is known.
async fn awoken(stage: &Stage, consumer: &mut Consumer, until: Time, body: &str) -> Delivery {
    let (name, delivery) = (stage.name, next(consumer).await);
    let at = time();
    assert_eq!((text(&delivery).as_str(), delivery.asleep_until), (body, Some(until)), "{name}");
    assert_eq!(delivery.deaths, 0, "{name}: nothing died");
    let early = stage.profile.parks() && at + SKEW < until;
    assert!(!early, "{name}: {body} came at {at}, before {until}");
    delivery
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_sleep_until_their_time_and_come_in_its_order() {
    for stage in brokers().await {
        let Stage { name, broker, profile, .. } = &stage;
        let published = [(3, "third"), (1, "first"), (2, "second"), (1, "first too")];
        let woken = [(1, "first"), (1, "first too"), (2, "second"), (3, "third")];
        // All of them have to be there before the first one wakes.
        let (mut nap, mut start) = (NAP, time());
        loop {
            for (naps, body) in published {
                broker.publish(asleep(start + nap * naps, body)).await.unwrap();
            }
            if time() + SKEW < start + nap {
                break;
            }
            stage.purge("work").await;
            (nap, start) = (nap * 2, time());
        }
        let mut consumer = broker.consume("work", 10).await.unwrap();
        for (naps, body) in if profile.parks() { woken } else { published } {
            let delivery = awoken(&stage, &mut consumer, start + nap * naps, body).await;
            assert!(!delivery.redelivered, "{name}");
            delivery.ack().await;
        }
        stage.holds("work", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_in_the_past_is_no_reason_to_wait() {
    for stage in brokers().await {
        let Stage { broker, .. } = &stage;
        let mut consumer = broker.consume("work", 10).await.unwrap();
        for (until, body) in [(time() - LONG, "an hour ago"), (Time::from_millis(1), "in 1970"), (time(), "now")] {
            broker.publish(asleep(until, body)).await.unwrap();
            awoken(&stage, &mut consumer, until, body).await.ack().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_depth_leaves_out_what_sleeps() {
    for stage in brokers().await {
        let Stage { name, broker, profile, .. } = &stage;
        for body in ["a", "b"] {
            broker.publish(asleep(time() + LONG, body)).await.unwrap();
        }
        broker.publish(now("work", "awake")).await.unwrap();
        // All of them are there, so that what the depth leaves out is not still to come.
        stage.holds("work", 3).await;
        let depth = broker.depth("work").await.unwrap();
        assert_eq!(depth, Depth { ready: if profile.parks() { 1 } else { 3 }, consumers: 0 }, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_and_a_deletion_take_what_sleeps() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        for deleted in [false, true] {
            let until = time() + NAP;
            for body in ["a", "b"] {
                broker.publish(asleep(until, body)).await.unwrap();
            }
            if deleted {
                stage.delete_queue("work").await;
                broker.apply(&topology(&["work", "other"])).await.unwrap();
            } else {
                stage.purge("work").await;
            }
            // It sleeps longer than those, so they would come before it.
            let later = until + NAP;
            broker.publish(asleep(later, "a later one")).await.unwrap();
            let mut consumer = broker.consume("work", 10).await.unwrap();
            awoken(&stage, &mut consumer, later, "a later one").await.ack().await;
            consumer.cancel().await;
            stage.holds("work", 0).await;
            assert_eq!(broker.depth("work").await.unwrap(), Depth::default(), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_wakes_goes_before_what_is_ready() {
    for stage in brokers().await {
        let Stage { name, broker, profile, .. } = &stage;
        for body in ["a", "b"] {
            broker.publish(now("work", body)).await.unwrap();
        }
        let until = time() + NAP;
        broker.publish(asleep(until, "woken")).await.unwrap();
        ready(&**broker, 3).await;
        let mut consumer = broker.consume("work", 1).await.unwrap();
        for body in if profile.parks() { ["woken", "a", "b"] } else { ["a", "b", "woken"] } {
            let delivery = next(&mut consumer).await;
            assert_eq!((text(&delivery).as_str(), delivery.redelivered), (body, false), "{name}");
            delivery.ack().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_back_after_it_has_slept_comes_again_at_once() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let until = time() + NAP;
        let mut consumer = broker.consume("work", 1).await.unwrap();
        broker.publish(asleep(until, "again")).await.unwrap();
        for redelivered in [false, true, true] {
            let delivery = awoken(&stage, &mut consumer, until, "again").await;
            assert_eq!(delivery.redelivered, redelivered, "{name}");
            delivery.requeue().await;
        }
        awoken(&stage, &mut consumer, until, "again").await.ack().await;
    }
}

/// A rung whose time is over goes on to `work`, for what is published to that.
fn rung_before_work(ttl: Duration) -> roundelay::topology::Topology {
    let mut wanted = topology(&["work"]);
    let back = Exchange { name: "back".into(), kind: ExchangeKind::Fanout, arguments: Vec::new() };
    let text = |text: &str| Argument::Text(text.into());
    let arguments = vec![
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", Argument::Number(ttl.as_millis() as i64)),
        ("x-dead-letter-exchange", text("back")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    wanted.bindings.retain(|binding| binding.queue != "work");
    wanted.bindings.push(Binding { exchange: "r.jobs".into(), queue: "rung".into(), key: "work".into() });
    wanted.bindings.push(Binding { exchange: "back".into(), queue: "work".into(), key: String::new() });
    wanted.exchanges.push(back);
    wanted.queues.push(Queue { name: "rung".into(), arguments });
    wanted
}

/// A rung is a queue too, on which the message sleeps to the end. Its time to live runs meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_rung_the_later_of_two_times_counts() {
    for stage in brokers().await {
        let Stage { name, broker, profile, .. } = &stage;
        stage.delete_queue("work").await;
        broker.apply(&rung_before_work(NAP)).await.unwrap();
        let mut consumer = broker.consume("work", 10).await.unwrap();
        for (naps, body) in [(4, "longer than the rung"), (0, "shorter")] {
            let start = time();
            let until = start + NAP * naps + NAP / 2;
            broker.publish(asleep(until, body)).await.unwrap();
            let rung_over = start + NAP;
            let delivery = next(&mut consumer).await;
            let at = time() + SKEW;
            assert_eq!((text(&delivery).as_str(), delivery.asleep_until), (body, Some(until)), "{name}");
            assert_eq!(delivery.deaths, 1, "{name}");
            assert!(at >= rung_over && (at >= until || !profile.parks()), "{name}: {body} was early");
            delivery.ack().await;
        }
        stage.holds("rung", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_loses_nothing_that_sleeps_or_has_slept() {
    for stage in brokers().await {
        let Stage { name, broker, profile, .. } = &stage;
        let mut consumer = broker.consume("work", 1).await.unwrap();
        let (soon, late) = (time() + NAP, time() + NAP * 5);
        broker.publish(asleep(soon, "soon")).await.unwrap();
        broker.publish(asleep(late, "late")).await.unwrap();
        let old = awoken(&stage, &mut consumer, soon, "soon").await;
        stage.cut().await;
        // The late one comes first if it has woken before the connection was lost.
        let mut left = vec![(soon, "soon"), (late, "late")];
        while !left.is_empty() {
            let delivery = next(&mut consumer).await;
            let index = left.iter().position(|(_, body)| *body == text(&delivery)).expect("each comes once");
            let (until, body) = left.remove(index);
            assert_eq!((delivery.asleep_until, delivery.redelivered), (Some(until), body == "soon"), "{name}: {body}");
            assert!(delivery.is_alive() && !old.is_alive(), "{name}");
            assert!(!profile.parks() || time() + SKEW >= until, "{name}: {body} was early");
            delivery.ack().await;
        }
        stage.holds("work", 0).await;
    }
}

/// What foreign clients have to heed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_long_and_a_timestamp_put_a_message_to_sleep() {
    for stage in brokers().await {
        let Stage { name, broker, profile, .. } = &stage;
        let mut consumer = broker.consume("work", 10).await.unwrap();
        let hour = (time() + LONG).as_millis();
        let ignored = [
            AMQPValue::LongInt(i32::MAX),
            AMQPValue::LongString(hour.to_string().into()),
            AMQPValue::LongString((time() + LONG).to_string().into()),
            AMQPValue::Boolean(true),
            AMQPValue::Double(hour as f64),
            AMQPValue::Void,
        ];
        for value in ignored {
            let words = format!("{name}: {value:?}");
            if !stage.publish_with_delivery_time(now("work", &words), value).await {
                continue;
            }
            let delivery = next(&mut consumer).await;
            assert_eq!((text(&delivery), delivery.asleep_until), (words, None));
            delivery.ack().await;
        }
        // AMQP's timestamps are in seconds.
        let seconds = time().as_millis() / 1_000 + 2;
        let timestamp = AMQPValue::Timestamp(seconds.unsigned_abs());
        if stage.publish_with_delivery_time(now("work", "timestamp"), timestamp).await {
            let delivery = next(&mut consumer).await;
            let parked = time() + SKEW >= Time::from_millis(seconds * 1_000);
            // The engine never sends one, and reads none.
            assert_eq!((text(&delivery).as_str(), delivery.asleep_until), ("timestamp", None), "{name}");
            assert!(parked || !profile.parks(), "{name}: a timestamp was early");
            delivery.ack().await;
        }
    }
}
