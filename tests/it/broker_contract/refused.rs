//! Messages that go nowhere: those that come back too often, those that are stuck on their rung, and
//! those whose headers lie.

use std::time::Duration;

use roundelay::broker::embedded::Profile;
use tokio::time::timeout;

use super::stage::{RUNG, Stage, brokers, only};
use super::{later, next, now, text};

const RUNG_QUEUE: &str = "r.delay.300ms";

/// How often a message of `queue` is delivered when each consumer's connection is closed with the
/// message unsettled, or when each puts it back.
async fn deliveries(stage: &Stage, queue: &str, put_back: bool, most: usize) -> usize {
    stage.broker.publish(now(queue, "x")).await.unwrap();
    if put_back {
        let mut consumer = stage.broker.consume(queue, 1).await.unwrap();
        for count in 0..most {
            let Ok(delivery) = timeout(Duration::from_secs(1), consumer.next()).await else { return count };
            delivery.unwrap().requeue().await;
        }
        return most;
    }
    for count in 0..most {
        let connection = stage.connect().await;
        let mut consumer = connection.consume(queue, 1).await.unwrap();
        let Ok(delivery) = timeout(Duration::from_secs(1), consumer.next()).await else { return count };
        connection.close().await;
        delivery.unwrap().ack().await; // Too late.
    }
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_beyond_the_delivery_limit_is_dropped() {
    for stage in brokers().await {
        let name = stage.name;
        stage.broker.apply(&only("two", &[("x-delivery-limit", 2)])).await.unwrap();
        assert_eq!(deliveries(&stage, "two", false, 9).await, 3, "{name}");
        stage.holds("two", 0).await;
        // Later versions do not count what is put back.
        let expected = if stage.profile >= Profile::Rabbit4 { 9 } else { 3 };
        assert_eq!(deliveries(&stage, "two", true, 9).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_default_delivery_limit_is_twenty_or_none() {
    for stage in brokers().await {
        stage.broker.apply(&only("plain", &[])).await.unwrap();
        let expected = if stage.profile == Profile::Rabbit310 { 23 } else { 21 };
        assert_eq!(deliveries(&stage, "plain", false, 23).await, expected, "{}", stage.name);
        // The engine's own queues have as good as none.
        assert_eq!(deliveries(&stage, "work", false, 23).await, 23, "{}", stage.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_stuck_messages_stop_a_rung() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        // The first of the topology's safeguards is gone, and the queue besides.
        stage.delete_queue("r.unrouted").await;
        stage.delete_queue("other").await;
        let mut work = broker.consume("work", 10).await.unwrap();
        for n in 0..31 {
            broker.publish(later("other", &format!("stuck-{n}"))).await.unwrap();
        }
        broker.publish(later("work", "passes")).await.unwrap();
        let passes = next(&mut work).await;
        assert_eq!((text(&passes).as_str(), passes.deaths), ("passes", 1), "{name}");
        passes.ack().await;
        stage.holds(RUNG_QUEUE, 31).await;

        broker.publish(later("other", "one too many")).await.unwrap();
        broker.publish(later("work", "stopped")).await.unwrap();
        assert!(timeout(RUNG * 5, work.next()).await.is_err(), "{name}: nothing comes through");
        stage.holds(RUNG_QUEUE, 33).await;
        assert_eq!(broker.depth(RUNG_QUEUE).await.unwrap().ready, 0, "{name}: nothing shows");

        // That the way is free again is not noticed for minutes. Purging helps only later versions.
        broker.apply(&super::topology(&["work", "other"])).await.unwrap();
        assert!(timeout(RUNG * 5, work.next()).await.is_err(), "{name}: still nothing comes through");
        stage.purge(RUNG_QUEUE).await;
        let left = if stage.profile >= Profile::Rabbit4 { 0 } else { 33 };
        stage.holds(RUNG_QUEUE, left).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_that_a_client_copied_are_believed_before_4() {
    for stage in brokers().await {
        let Stage { name, broker, .. } = &stage;
        let believed = stage.profile == Profile::Rabbit310;
        let mut work = broker.consume("work", 10).await.unwrap();
        // The message is as after a hop over the rung. That alone does no harm.
        stage.publish_with_deaths(later("work", "copied"), &[(RUNG_QUEUE, 4)]).await;
        let copied = next(&mut work).await;
        assert_eq!((text(&copied).as_str(), copied.deaths), ("copied", if believed { 5 } else { 1 }), "{name}");
        copied.ack().await;

        // Where the platform queue dead-letters too, as by a policy, it would be a cycle.
        stage.publish_with_deaths(later("work", "cyclic"), &[("work", 1), (RUNG_QUEUE, 1)]).await;
        broker.publish(later("work", "behind it")).await.unwrap();
        if !believed {
            let cyclic = next(&mut work).await;
            assert_eq!((text(&cyclic).as_str(), cyclic.deaths), ("cyclic", 1), "{name}");
            cyclic.ack().await;
        }
        let behind = next(&mut work).await;
        assert_eq!(text(&behind), "behind it", "{name}");
        behind.ack().await;
        // It is stuck on its rung for good.
        stage.holds(RUNG_QUEUE, usize::from(believed)).await;
    }
}
