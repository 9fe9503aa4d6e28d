//! What the engine relies on, and what it must survive: the same on the embedded broker and on
//! RabbitMQ, of whichever version the tests are given.
//!
//! - `stage`: the two brokers, and what an operator, a network or a foreign client does to them.
//! - `interrupted`: connections that are cut, queues that are deleted.
//! - `refused`: delivery limits, rungs that stall, headers that lie.
//! - `policies`: what policies do to queues.
//! - `asleep`: messages that sleep on their queue until a time.

mod asleep;
mod interrupted;
mod policies;
mod refused;
mod stage;

use std::collections::BTreeSet;
use std::time::Duration;

use roundelay::broker::{Consumer, Delivery, Destination, Message, PublishError};
use tokio::time::{Instant, timeout};

use crate::harness::{SOON, until};
use stage::{RUNG, Stage, brokers, topology};

fn message(to: Destination, body: &str) -> Message {
    Message { to, id: body.into(), body: body.to_owned().into(), trace: None }
}

fn now(queue: &str, body: &str) -> Message {
    message(Destination::Queue(queue.into()), body)
}

fn later(then: &str, body: &str) -> Message {
    message(Destination::Rung { rung: RUNG, then: then.into() }, body)
}

async fn next(consumer: &mut Consumer) -> Delivery {
    timeout(SOON, consumer.next()).await.expect("a message came").expect("the consumer lives")
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.body.to_vec()).unwrap()
}

#[tokio::test]
async fn messages_arrive_in_order_and_are_gone_once_acknowledged() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        for body in ["a", "b", "c"] {
            broker.publish(now("work", body)).await.unwrap();
        }
        let mut consumer = broker.consume("work", 10).await.unwrap();
        for body in ["a", "b", "c"] {
            let delivery = next(&mut consumer).await;
            assert_eq!((text(&delivery).as_str(), delivery.redelivered, delivery.deaths), (body, false, 0), "{name}");
            delivery.ack().await;
        }
        consumer.cancel().await;
        until("nothing is left", || async { broker.depth("work").await.unwrap().ready == 0 }).await;
    }
}

#[tokio::test]
async fn a_rung_is_never_early_and_leads_to_the_queue_of_the_routing_key() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let mut work = broker.consume("work", 10).await.unwrap();
        let mut other = broker.consume("other", 10).await.unwrap();
        let start = Instant::now();
        broker.publish(later("work", "1")).await.unwrap();
        broker.publish(later("other", "2")).await.unwrap();
        for (consumer, body) in [(&mut work, "1"), (&mut other, "2")] {
            let delivery = next(consumer).await;
            // The broker counts whole milliseconds.
            assert!(start.elapsed() + Duration::from_millis(1) >= RUNG, "{name}: early, after {:?}", start.elapsed());
            assert_eq!((text(&delivery).as_str(), delivery.deaths), (body, 1), "{name}");
            delivery.ack().await;
        }
    }
}

#[tokio::test]
async fn the_prefetch_bounds_unsettled_messages() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        for n in 0..20 {
            broker.publish(now("work", &n.to_string())).await.unwrap();
        }
        let mut consumer = broker.consume("work", 3).await.unwrap();
        let mut held = vec![next(&mut consumer).await, next(&mut consumer).await, next(&mut consumer).await];
        until("the rest waits", || async { broker.depth("work").await.unwrap().ready == 17 }).await;
        held.remove(0).ack().await;
        held.push(next(&mut consumer).await);
        until("one more is out", || async { broker.depth("work").await.unwrap().ready == 16 }).await;
        assert_eq!(held.len(), 3, "{name}");
        for delivery in held {
            delivery.requeue().await;
        }
    }
}

#[tokio::test]
async fn requeue_redelivers_with_the_flag() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        broker.publish(now("work", "again")).await.unwrap();
        let mut consumer = broker.consume("work", 1).await.unwrap();
        next(&mut consumer).await.requeue().await;
        let delivery = next(&mut consumer).await;
        assert!(delivery.redelivered, "{name}");
        delivery.ack().await;
    }
}

#[tokio::test]
async fn a_cancelled_consumer_leaves_nothing_behind() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        for n in 0..10 {
            broker.publish(now("work", &n.to_string())).await.unwrap();
        }
        let mut consumer = broker.consume("work", 5).await.unwrap();
        let taken = next(&mut consumer).await;
        consumer.cancel().await;
        // What was delivered and not taken is back; what was taken can still be settled.
        until("nine are back", || async { broker.depth("work").await.unwrap().ready == 9 }).await;
        let body = text(&taken);
        taken.ack().await;
        until("no consumer is left", || async { broker.depth("work").await.unwrap().consumers == 0 }).await;
        let mut consumer = broker.consume("work", 10).await.unwrap();
        let mut seen = BTreeSet::new();
        for _ in 0..9 {
            let delivery = next(&mut consumer).await;
            seen.insert(text(&delivery));
            delivery.ack().await;
        }
        assert!(seen.len() == 9 && !seen.contains(&body), "{name}: {seen:?} without {body}");
    }
}

#[tokio::test]
async fn an_absent_queue_never_blocks_a_rung() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        for n in 0..100 {
            broker.publish(later("absent", &format!("lost-{n}"))).await.unwrap();
        }
        broker.publish(later("work", "found")).await.unwrap();
        let mut consumer = broker.consume("work", 10).await.unwrap();
        let delivery = next(&mut consumer).await;
        assert_eq!(text(&delivery), "found", "{name}");
        delivery.ack().await;
        until("the others are kept", || async { broker.depth("r.unrouted").await.unwrap().ready == 100 }).await;
    }
}

#[tokio::test]
async fn an_absent_rung_is_reported() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let to = Destination::Rung { rung: Duration::from_millis(123_457), then: "work".into() };
        let error = broker.publish(message(to, "x")).await.unwrap_err();
        assert!(matches!(error, PublishError::Unroutable(_)), "{name}: {error}");
        broker.publish(now("work", "still works")).await.unwrap();
    }
}

#[tokio::test]
async fn quarantine_is_a_queue_like_any_other() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let to = Destination::Quarantine { from: "work".into(), reason: "unreadable".into() };
        broker.publish(message(to, "bad")).await.unwrap();
        let mut consumer = broker.consume("r.quarantine", 1).await.unwrap();
        let delivery = next(&mut consumer).await;
        assert_eq!(text(&delivery), "bad", "{name}");
        delivery.ack().await;
    }
}

#[tokio::test]
async fn applying_twice_changes_nothing_and_removing_removes() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        broker.publish(now("work", "stays")).await.unwrap();
        broker.apply(&topology(&["work", "other"])).await.unwrap();
        until("it stayed", || async { broker.depth("work").await.unwrap().ready == 1 }).await;
        broker.remove(&topology(&["work", "other"])).await.unwrap();
        assert!(broker.depth("work").await.is_err(), "{name}");
        assert!(broker.publish(later("work", "x")).await.is_err(), "{name}");
    }
}
