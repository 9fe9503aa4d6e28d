//! Connections that are cut, queues that are deleted, and what becomes of deliveries.

use std::collections::BTreeSet;
use std::time::Duration;

use roundelay::broker::embedded::Profile;
use roundelay::broker::{Broker, Delivery, Depth, Destination, PublishError};
use tokio::time::timeout;

use super::stage::{LONG, Stage, brokers, only, topology};
use super::{later, message, next, now, text};
use crate::harness::until;

async fn ready(broker: &dyn Broker, queue: &str, expected: u64) {
    until(&format!("{queue} has {expected} ready"), || async {
        broker.depth(queue).await.is_ok_and(|depth| depth.ready == expected)
    })
    .await;
}

fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsettled_messages_of_a_cut_connection_are_redelivered_first_and_in_order() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let mut consumer = broker.consume("work", 3).await.unwrap();
        for body in ["a", "b", "c", "d", "e"] {
            broker.publish(now("work", body)).await.unwrap();
        }
        let old = [next(&mut consumer).await, next(&mut consumer).await, next(&mut consumer).await];
        assert_eq!(texts(&old), ["a", "b", "c"], "{name}");
        stage.cut().await;
        let again = [next(&mut consumer).await, next(&mut consumer).await, next(&mut consumer).await];
        assert_eq!(texts(&again), ["a", "b", "c"], "{name}");
        assert!(again.iter().all(|delivery| delivery.redelivered && delivery.is_alive()), "{name}");
        // The old ones are past their time: nothing that is done with them has any effect, and the
        // prefetch is what it was.
        assert!(old.iter().all(|delivery| !delivery.is_alive()), "{name}");
        for delivery in old {
            delivery.ack().await;
        }
        ready(&**broker, "work", 2).await;
        for delivery in again {
            delivery.ack().await;
        }
        for body in ["d", "e"] {
            let delivery = next(&mut consumer).await;
            assert_eq!((text(&delivery).as_str(), delivery.redelivered), (body, false), "{name}");
            delivery.ack().await;
        }
        // Publishing goes on as well.
        broker.publish(now("work", "f")).await.unwrap();
        next(&mut consumer).await.ack().await;
        stage.holds("work", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requeued_messages_go_before_the_rest_in_the_order_of_requeueing() {
    for stage in brokers().await {
        // Without a delivery limit, 3.10 and 4.0 put it behind all else.
        let to_the_head = ["c", "a", "b", "d", "e"];
        let (unlimited, where_unlimited): (&[_], _) = match stage.profile {
            Profile::Rabbit310 => (&[], ["d", "e", "c", "a", "b"]),
            Profile::Rabbit40 => (&[("x-delivery-limit", -1)], ["d", "e", "c", "a", "b"]),
            Profile::Rabbit4 | Profile::Rabbit44 => (&[("x-delivery-limit", -1)], to_the_head),
        };
        stage.broker.apply(&only("unlimited", unlimited)).await.unwrap();
        for (queue, expected) in [("work", to_the_head), ("unlimited", where_unlimited)] {
            let Stage { name, broker, .. } = &stage;
            for body in ["a", "b", "c", "d", "e"] {
                broker.publish(now(queue, body)).await.unwrap();
            }
            let mut consumer = broker.consume(queue, 3).await.unwrap();
            let [a, b, c] = [next(&mut consumer).await, next(&mut consumer).await, next(&mut consumer).await];
            consumer.cancel().await;
            for (delivery, back) in [(c, 3), (a, 4), (b, 5)] {
                delivery.requeue().await;
                ready(&**broker, queue, back).await;
            }
            let mut consumer = broker.consume(queue, 1).await.unwrap();
            for body in expected {
                let delivery = next(&mut consumer).await;
                let again = ["a", "b", "c"].contains(&body);
                assert_eq!((text(&delivery).as_str(), delivery.redelivered), (body, again), "{name}: {queue}");
                delivery.ack().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_gives_its_messages_back() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let leaving = stage.connect().await;
        let mut consumer = leaving.consume("work", 2).await.unwrap();
        broker.publish(now("work", "a")).await.unwrap();
        let a = next(&mut consumer).await;
        leaving.close().await;
        assert!(consumer.next().await.is_none(), "{name}: the consumer ends");
        until("its deliveries are past settling", || async { !a.is_alive() }).await;
        let error = leaving.publish(now("work", "b")).await.unwrap_err();
        assert!(matches!(&error, PublishError::Unknown(why) if why.contains("closed")), "{name}: {error}");
        assert!(leaving.consume("work", 1).await.is_err(), "{name}");
        let mut consumer = broker.consume("work", 2).await.unwrap();
        let again = next(&mut consumer).await;
        assert_eq!((text(&again).as_str(), again.redelivered), ("a", true), "{name}");
        again.ack().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_of_one_queue_share_it() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let other = stage.connect().await;
        let mut consumers = [broker.consume("work", 2).await.unwrap(), other.consume("work", 2).await.unwrap()];
        for body in ["a", "b", "c", "d"] {
            broker.publish(now("work", body)).await.unwrap();
        }
        let mut seen = BTreeSet::new();
        for consumer in &mut consumers {
            for delivery in [next(consumer).await, next(consumer).await] {
                seen.insert(text(&delivery));
                delivery.ack().await;
            }
        }
        assert_eq!(seen.len(), 4, "{name}: each has two of them");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_takes_waiting_messages_and_none_that_are_unsettled() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let mut consumer = broker.consume("work", 1).await.unwrap();
        for body in ["out", "a", "b"] {
            broker.publish(now("work", body)).await.unwrap();
        }
        broker.publish(message(Destination::Rung { rung: LONG, then: "work".into() }, "asleep")).await.unwrap();
        let out = next(&mut consumer).await;
        ready(&**broker, "work", 2).await;
        stage.purge("work").await;
        stage.purge("r.delay.60m").await;
        ready(&**broker, "work", 0).await;
        ready(&**broker, "r.delay.60m", 0).await;
        assert!(out.is_alive(), "{name}");
        out.requeue().await;
        let out = next(&mut consumer).await;
        assert_eq!((text(&out).as_str(), out.redelivered), ("out", true), "{name}");
        out.ack().await;
        stage.holds("work", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_queue_is_unroutable_until_it_is_declared_again_and_then_consumed_again() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let mut consumer = broker.consume("work", 5).await.unwrap();
        broker.publish(now("work", "before")).await.unwrap();
        let before = next(&mut consumer).await;
        broker.publish(later("work", "asleep")).await.unwrap();
        stage.delete_queue("work").await;
        // The alternate exchange takes what is for it, directly or from a rung.
        broker.publish(now("work", "lost")).await.unwrap();
        ready(&**broker, "r.unrouted", 2).await;
        // Without the queue for unrouted messages, the publisher gets an error. A publisher that has not asked for
        // returns gets none, and the message is lost.
        stage.delete_queue("r.unrouted").await;
        let error = broker.publish(now("work", "told")).await.unwrap_err();
        assert!(matches!(&error, PublishError::Unroutable(what) if what.contains("work")), "{name}: {error}");
        stage.publish_unasked(now("work", "gone")).await;
        // Its channel is still there, so that is all its worker could know.
        assert!(before.is_alive(), "{name}");
        before.ack().await;

        broker.apply(&topology(&["work", "other"])).await.unwrap();
        broker.publish(now("work", "after")).await.unwrap();
        let after = next(&mut consumer).await;
        assert_eq!((text(&after).as_str(), after.redelivered), ("after", false), "{name}");
        after.ack().await;
        stage.holds("work", 0).await;
        stage.holds("r.unrouted", 0).await;
    }
}

/// RabbitMQ 3.10 mostly forgets consumers whose queue is deleted and at once declared again: it gives them
/// messages, and nothing arrives. They come back when the client has had enough of the silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_queue_is_consumed_again_at_once_or_after_a_silence() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let mut consumer = broker.consume("work", 2).await.unwrap();
        broker.publish(now("work", "before")).await.unwrap();
        next(&mut consumer).await.ack().await;
        stage.replace_queue("work").await;
        for body in ["a", "b", "c"] {
            broker.publish(now("work", body)).await.unwrap();
        }
        let mut first = None;
        if stage.profile == Profile::Rabbit310 {
            ready(&**broker, "work", 1).await;
            first = timeout(Duration::from_millis(500), consumer.next()).await.ok().flatten();
        }
        // A broker with much else to do may notice the deletion before the queue is there again, and cancel the
        // consumer.
        let forgotten = stage.profile == Profile::Rabbit310 && first.is_none();
        for (body, again) in [("a", forgotten), ("b", forgotten), ("c", false)] {
            let delivery = match first.take() {
                Some(delivery) => delivery,
                None => next(&mut consumer).await,
            };
            assert_eq!((text(&delivery).as_str(), delivery.redelivered), (body, again), "{name}");
            delivery.ack().await;
        }
        until("one consumes", || async {
            broker.depth("work").await.is_ok_and(|depth| depth == Depth { ready: 0, consumers: 1 })
        })
        .await;
    }
}
