//! What policies do to queues, and that a broker with such policies is refused.

use std::time::Duration;

use roundelay::broker::{Broker, Consumer, Delivery, Destination, PublishError};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::stage::{LONG, RUNG, Stage, brokers, topology};
use super::{later, message, next, now, text};
use crate::harness::{SOON, until};

const RUNG_QUEUE: &str = "r.delay.300ms";

/// The words with which both brokers are refused are the same.
fn same(words: &mut Option<String>, these: String, part: &str) {
    assert!(these.contains(part), "{these}");
    assert_eq!(*words.get_or_insert_with(|| these.clone()), these);
}

/// Publishes to the long rung until the policy is in force and one comes out of it.
async fn early(broker: &dyn Broker, work: &mut Consumer) -> Delivery {
    let deadline = Instant::now() + SOON;
    loop {
        let to = Destination::Rung { rung: LONG, then: "work".into() };
        broker.publish(message(to, "early")).await.unwrap();
        if let Ok(delivery) = timeout(Duration::from_secs(1), work.next()).await {
            return delivery.expect("the consumer lives");
        }
        assert!(Instant::now() < deadline, "nothing came early");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shorter_of_two_times_to_live_counts_and_a_sleeping_message_keeps_its_own() {
    let mut words = None;
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let mut work = broker.consume("work", 10).await.unwrap();
        let to = Destination::Rung { rung: LONG, then: "other".into() };
        broker.publish(message(to, "before")).await.unwrap();
        broker.publish(now("other", "waits")).await.unwrap();
        let told = stage.set_policy(json!({ "message-ttl": 200 }), &topology(&["work", "other"])).await;
        same(&mut words, told, "policy `catch-all` sets `message-ttl` on ");
        // Only the first is looked at, and that has an hour still.
        until("it is found out", || async {
            broker.publish(now("other", "expires")).await.unwrap();
            broker.depth("other").await.unwrap().ready > 1
        })
        .await;
        assert_eq!(broker.depth("r.delay.60m").await.unwrap().ready, 1, "{name}");
        stage.purge("r.delay.60m").await;
        let delivery = early(&**broker, &mut work).await;
        assert_eq!((text(&delivery).as_str(), delivery.deaths), ("early", 1), "{name}");
        delivery.ack().await;
        // On a platform queue, messages that are not fetched in time are dropped.
        stage.purge("other").await;
        broker.publish(now("other", "dropped")).await.unwrap();
        stage.holds("other", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overflow_policy_lets_a_rung_lose_what_nobody_takes() {
    let mut words = None;
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        stage.delete_exchange("r.jobs").await;
        broker.publish(later("work", "kept")).await.unwrap();
        until("its time is over", || async { broker.depth(RUNG_QUEUE).await.unwrap().ready == 0 }).await;
        stage.holds(RUNG_QUEUE, 1).await;
        let mut without = topology(&["work", "other"]);
        without.exchanges.retain(|exchange| exchange.name != "r.jobs");
        without.bindings.retain(|binding| binding.exchange != "r.jobs");
        let told = stage.set_policy(json!({ "overflow": "drop-head" }), &without).await;
        same(&mut words, told, "policy `catch-all` sets `overflow` on ");
        broker.publish(later("work", "lost")).await.unwrap();
        // RabbitMQ drops what was stuck as well when the strategy changes.
        stage.holds(RUNG_QUEUE, 0).await;
        assert!(broker.depth("work").await.unwrap().ready == 0, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_messages_are_retried_when_a_policy_changes() {
    let mut words = None;
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        stage.delete_exchange("r.jobs").await;
        broker.publish(later("work", "stuck")).await.unwrap();
        until("its time is over", || async { broker.depth(RUNG_QUEUE).await.unwrap().ready == 0 }).await;
        broker.apply(&topology(&["work", "other"])).await.unwrap();
        let mut work = broker.consume("work", 1).await.unwrap();
        assert!(timeout(RUNG * 5, work.next()).await.is_err(), "{name}: that the way is free is not noticed");
        let told = stage.set_policy(json!({ "delivery-limit": 7 }), &topology(&["work", "other"])).await;
        same(&mut words, told, "policy `catch-all` sets `delivery-limit` on ");
        let stuck = next(&mut work).await;
        assert_eq!((text(&stuck).as_str(), stuck.deaths), ("stuck", 1), "{name}");
        stuck.ack().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expires_policy_deletes_queues_that_nobody_consumes_with_all_that_sleeps() {
    let mut words = None;
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let _work = broker.consume("work", 10).await.unwrap();
        let to = Destination::Rung { rung: LONG, then: "work".into() };
        broker.publish(message(to, "asleep")).await.unwrap();
        let told = stage.set_policy(json!({ "expires": 2_000 }), &topology(&["work"])).await;
        same(&mut words, told, "policy `catch-all` sets `expires` on ");
        until("the rung is gone", || async { broker.depth("r.delay.60m").await.is_err() }).await;
        let to = Destination::Rung { rung: LONG, then: "work".into() };
        let error = broker.publish(message(to, "x")).await.unwrap_err();
        assert!(matches!(error, PublishError::Unroutable(_)), "{name}: {error}");
        assert!(broker.depth("work").await.is_ok(), "{name}: what is consumed stays");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_without_harmful_policies_is_not_refused() {
    for stage in brokers().await {
        stage.broker.verify(&topology(&["work", "other"])).await.unwrap();
        let more = topology(&["work", "other", "absent"]);
        let error = stage.broker.verify(&more).await.unwrap_err().to_string();
        assert!(error.contains("queue `absent`: must be present, is missing"), "{}: {error}", stage.name);
    }
}
