//! `RabbitBroker` on a real RabbitMQ, each test in a virtual host of its own.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use lapin::options::{BasicConsumeOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use reqwest::Method;
use roundelay::broker::rabbit::{Finding, Patience, RabbitBroker, Weight, definitions};
use roundelay::broker::{Broker, BrokerError, Consumer, Delivery, Destination, Message, PublishError};
use roundelay::ladder::Ladder;
use roundelay::topology::{Argument, Names, Topology};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::chaos_parts::proxy::{Link, Mode};
use crate::harness::{SOON, Vhost};

const PREFIX: &str = "r";

fn topology(queues: &[&str], rungs: &[u64]) -> Topology {
    let rungs: Vec<_> = rungs.iter().copied().map(Duration::from_millis).collect();
    let names = Names::new(PREFIX);
    let wanted: BTreeSet<_> = rungs.iter().map(|rung| names.rung(*rung)).collect();
    let mut topology = Topology::new(names, queues.iter().copied(), &Ladder::new(rungs));
    let keep = |name: &str| !name.starts_with("r.delay.") || wanted.contains(name);
    topology.exchanges.retain(|exchange| keep(&exchange.name));
    topology.queues.retain(|queue| keep(&queue.name));
    topology.bindings.retain(|binding| keep(&binding.queue));
    topology
}

/// Nothing but one queue and what it is bound to, with one argument changed.
fn altered(topology: &Topology, queue: &str, argument: &str, value: Argument) -> Topology {
    let mut altered = topology.clone();
    altered.queues.retain(|other| other.name == queue);
    altered.bindings.retain(|binding| binding.queue == queue);
    for (name, current) in &mut altered.queues[0].arguments {
        if *name == argument {
            *current = value.clone();
        }
    }
    altered
}

fn to_queue(queue: &str, id: &str) -> Message {
    Message { to: Destination::Queue(queue.into()), id: id.into(), body: id.to_owned().into(), trace: None }
}

fn to_rung(ms: u64, then: &str, id: &str) -> Message {
    let to = Destination::Rung { rung: Duration::from_millis(ms), then: then.into() };
    Message { to, id: id.into(), body: id.to_owned().into(), trace: None }
}

fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.body.to_vec()).unwrap()
}

async fn next(consumer: &mut Consumer) -> Delivery {
    timeout(SOON, consumer.next()).await.expect("a delivery in time").expect("an open broker")
}

/// Publishes as the engine does: what is unknown is published again.
async fn publish_until_known(broker: &RabbitBroker, message: &Message) -> Result<(), PublishError> {
    let deadline = Instant::now() + SOON;
    loop {
        match broker.publish(message.clone()).await {
            Err(PublishError::Unknown(reason)) => assert!(Instant::now() < deadline, "still unknown: {reason}"),
            known => return known,
        }
    }
}

/// Waits until a queue has `expected` messages ready.
async fn ready(broker: &RabbitBroker, queue: &str, expected: u64) {
    let deadline = Instant::now() + SOON;
    loop {
        let depth = broker.depth(queue).await.unwrap();
        if depth.ready == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{queue} has {depth:?}, not {expected} ready");
        sleep(Duration::from_millis(20)).await; // Between two looks.
    }
}

/// The findings that jobs would suffer from, by what they are about. Policies take the broker a
/// moment to put into force, so it is asked until `expected` of them are there.
async fn wrong(broker: &RabbitBroker, topology: &Topology, vhost: &Vhost, expected: usize) -> Vec<Finding> {
    let deadline = Instant::now() + SOON;
    loop {
        let mut findings = broker.check(topology, Some(&vhost.management)).await.unwrap();
        findings.retain(|finding| finding.weight == Weight::Wrong);
        if findings.len() == expected {
            return findings;
        }
        assert!(Instant::now() < deadline, "not {expected} findings: {findings:#?}");
        sleep(Duration::from_millis(100)).await; // Between two looks.
    }
}

// ---- Publishing ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_message_is_consumed_once_and_acknowledged() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    let mut consumer = broker.consume("work", 10).await.unwrap();
    let ids: BTreeSet<_> = (0..100).map(|n| format!("job-{n}")).collect();
    for verdict in join_all(ids.iter().map(|id| broker.publish(to_queue("work", id)))).await {
        verdict.unwrap();
    }
    let mut seen = BTreeSet::new();
    for _ in 0..ids.len() {
        let delivery = next(&mut consumer).await;
        assert_eq!((&*delivery.queue, delivery.redelivered, delivery.deaths), ("work", false, 0));
        seen.insert(body(&delivery));
        delivery.ack().await;
    }
    assert_eq!(seen, ids);
    consumer.cancel().await;
    broker.close().await;
    // A new connection finds nothing: all were acknowledged before the close.
    let broker = vhost.connect(PREFIX).await;
    ready(&broker, "work", 0).await;
    assert_eq!(broker.depth("work").await.unwrap().consumers, 0);
    let absent = broker.depth("ghost").await.unwrap_err().to_string();
    assert!(absent.contains("ghost") && absent.contains("NOT_FOUND"), "{absent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_persistent_json_and_quarantine_says_why() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    let long_id = "é".repeat(200);
    broker.publish(to_queue("work", &long_id)).await.unwrap();
    let to = Destination::Quarantine { from: "work".into(), reason: "not JSON: ü".repeat(100) };
    broker.publish(Message { to, id: String::new(), body: vec![0xff, 0x00].into(), trace: None }).await.unwrap();

    let raw = vhost.raw().await;
    let get = async |queue: &str| raw.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap().unwrap();
    let properties = get("work").await.delivery.properties;
    assert_eq!(properties.delivery_mode(), &Some(2));
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "é".repeat(127), "cut at AMQP's limit");
    // RabbitMQ before 4.0 counts deliveries in a header; there are none of ours.
    let headers = properties.headers().clone().unwrap_or_default();
    assert!(headers.inner().keys().all(|name| name.as_str() == "x-delivery-count"), "{headers:?}");

    let found = get("r.quarantine").await.delivery;
    assert_eq!(found.data, [0xff, 0x00]);
    let headers = found.properties.headers().clone().unwrap();
    let text = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((text("roundelay-from").as_str(), text("roundelay-reason")), ("work", "not JSON: ü".repeat(100)));
}

/// lapin gives a return to whichever confirmation comes next, and the verdicts must be right anyhow.
/// Confirmations and returns pass each other only in a steady stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_unroutable_ones_in_a_stream_are_unroutable() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work"], &[60_000]);
    broker.apply(&topology).await.unwrap();
    vhost.delete_queue(&topology.names.rung(Duration::from_secs(60))).await;
    let broker = &broker;
    for one_in in [2, 7, 50, 201] {
        let bad = |n: usize| n % one_in == 1;
        let publish = async |n: usize| {
            let id = format!("{one_in}-{n}");
            (n, broker.publish(if bad(n) { to_rung(60_000, "work", &id) } else { to_queue("work", &id) }).await)
        };
        let mut verdicts = futures_util::stream::iter(0..4_000).map(publish).buffer_unordered(200);
        let mut unknown = 0;
        while let Some((n, verdict)) = verdicts.next().await {
            match verdict {
                Ok(()) => assert!(!bad(n), "1 in {one_in}: {n} was taken for good"),
                Err(PublishError::Unroutable(what)) => {
                    assert!(bad(n), "1 in {one_in}: {n} was taken for unroutable");
                    assert!(what.contains("r.delay.60s"), "{what}");
                }
                Err(PublishError::Unknown(_)) => unknown += 1,
                Err(other) => panic!("1 in {one_in}: {n}: {other}"),
            }
        }
        assert!(unknown < 40, "unknown is for those whose confirmations carry other ones' returns again and again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twins_in_flight_are_both_told() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work"], &[60_000]);
    broker.apply(&topology).await.unwrap();
    vhost.delete_queue(&topology.names.rung(Duration::from_secs(60))).await;
    for _ in 0..20 {
        let twin = || broker.publish(to_rung(60_000, "work", "same"));
        let elsewhere = broker.publish(to_queue("work", "same"));
        let (one, two, elsewhere) = tokio::join!(twin(), twin(), elsewhere);
        for verdict in [one, two] {
            assert!(matches!(verdict, Err(PublishError::Unroutable(_))), "{verdict:?}");
        }
        elsewhere.unwrap();
    }
}

/// An absent exchange closes the channel under everything else that is in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_exchange_fails_only_its_own_publishes() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work"], &[60_000]);
    broker.apply(&topology).await.unwrap();
    vhost.delete_exchange("r.delay.60s").await;
    for round in 0..5 {
        let publish = |n: usize| {
            let id = format!("{round}-{n}");
            broker.publish(if n % 40 == 20 { to_rung(60_000, "work", &id) } else { to_queue("work", &id) })
        };
        for (n, verdict) in join_all((0..200).map(publish)).await.into_iter().enumerate() {
            match verdict {
                Ok(()) => assert_ne!(n % 40, 20, "{n} was taken for good"),
                Err(PublishError::Unroutable(what)) => {
                    assert_eq!(n % 40, 20, "{n}: {what}");
                    assert!(what.contains("exchange `r.delay.60s`"), "{what}");
                }
                Err(other) => panic!("{n}: {other}"),
            }
        }
    }
    // Once applied again, it is there at once.
    broker.apply(&topology).await.unwrap();
    broker.publish(to_rung(60_000, "work", "again")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rungs_are_never_early_and_keep_their_order() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[250, 700])).await.unwrap();
    let mut consumer = broker.consume("work", 100).await.unwrap();
    let mut published = BTreeMap::new();
    for n in 0..40 {
        let rung = if n % 2 == 0 { 700 } else { 250 };
        let id = format!("{rung}-{n:02}");
        published.insert(id.clone(), (Instant::now(), Duration::from_millis(rung)));
        broker.publish(to_rung(rung, "work", &id)).await.unwrap();
    }
    let mut arrived: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for _ in 0..published.len() {
        let delivery = next(&mut consumer).await;
        let id = body(&delivery);
        let (at, rung) = published[&id];
        assert!(at.elapsed() >= rung, "{id} came after {:?}", at.elapsed());
        assert_eq!(delivery.deaths, 1);
        arrived.entry(id[..3].to_owned()).or_default().push(id);
        delivery.ack().await;
    }
    for ids in arrived.values() {
        assert!(ids.is_sorted(), "{ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_for_an_absent_queue_is_kept_as_unrouted() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[100])).await.unwrap();
    broker.publish(to_rung(100, "ghost", "late")).await.unwrap();
    broker.publish(to_queue("ghost", "now")).await.unwrap();
    broker.publish(to_rung(100, "work", "behind it")).await.unwrap();
    ready(&broker, "r.unrouted", 2).await;
    ready(&broker, "work", 1).await;
}

// ---- Consuming ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsettled_message_is_redelivered() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    let mut consumer = broker.consume("work", 1).await.unwrap();
    broker.publish(to_queue("work", "job")).await.unwrap();
    next(&mut consumer).await.requeue().await;
    let again = next(&mut consumer).await;
    assert!(again.redelivered);
    // As when a worker panics. With a prefetch of 1 nothing could follow if it stayed out.
    drop(again);
    let again = next(&mut consumer).await;
    assert_eq!((body(&again).as_str(), again.redelivered), ("job", true));
    again.ack().await;
    ready(&broker, "work", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_consumer_puts_back_what_waits_and_can_still_acknowledge() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    for n in 0..10 {
        broker.publish(to_queue("work", &format!("{n}"))).await.unwrap();
    }
    let mut consumer = broker.consume("work", 4).await.unwrap();
    let running = next(&mut consumer).await;
    ready(&broker, "work", 6).await;
    consumer.cancel().await;
    ready(&broker, "work", 9).await;
    running.ack().await;

    // Dropping one, as when its task is aborted, is no different.
    let mut consumer = broker.consume("work", 4).await.unwrap();
    let running = next(&mut consumer).await;
    drop(consumer);
    ready(&broker, "work", 8).await;
    running.ack().await;
    broker.close().await;
    let broker = vhost.connect(PREFIX).await;
    ready(&broker, "work", 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consuming_survives_its_connection_with_the_same_prefetch() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    for n in 0..6 {
        broker.publish(to_queue("work", &format!("{n}"))).await.unwrap();
    }
    let mut consumer = broker.consume("work", 2).await.unwrap();
    let old = [next(&mut consumer).await, next(&mut consumer).await];
    ready(&broker, "work", 4).await;
    vhost.kill(&["roundelay consume"]).await;
    let again = [next(&mut consumer).await, next(&mut consumer).await];
    let ids = |deliveries: &[Delivery]| deliveries.iter().map(body).collect::<BTreeSet<_>>();
    assert_eq!(ids(&again), ids(&old));
    assert!(again.iter().all(|delivery| delivery.redelivered));
    // Too late, and harmless: an acknowledgement on the old channel must not settle a new delivery.
    for delivery in old {
        delivery.ack().await;
    }
    // Without the prefetch all six would be out.
    ready(&broker, "work", 4).await;
    for delivery in again {
        delivery.ack().await;
    }
    for _ in 0..4 {
        next(&mut consumer).await.ack().await;
    }
    ready(&broker, "work", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_accepted_is_lost_when_connections_are_killed_under_load() {
    let vhost = Vhost::new().await;
    let broker = Arc::new(vhost.connect(PREFIX).await);
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    let mut consumer = broker.consume("work", 50).await.unwrap();
    let publishers: Vec<_> = (0..8)
        .map(|worker| {
            let broker = broker.clone();
            tokio::spawn(async move {
                let mut ids = BTreeSet::new();
                let until = Instant::now() + Duration::from_secs(8);
                for n in 0.. {
                    let id = format!("{worker}-{n}");
                    publish_until_known(&broker, &to_queue("work", &id)).await.unwrap();
                    ids.insert(id);
                    if Instant::now() > until {
                        break;
                    }
                    sleep(Duration::from_millis(2)).await; // Some 500 publishes a second are load enough.
                }
                ids
            })
        })
        .collect();
    let consuming = tokio::spawn(async move {
        let mut seen = BTreeSet::new();
        while let Some(delivery) = consumer.next().await {
            seen.insert(body(&delivery));
            let last = body(&delivery) == "last";
            delivery.ack().await;
            if last {
                break;
            }
        }
        seen
    });
    vhost.kill(&["roundelay publish", "roundelay consume"]).await;
    let mut accepted = BTreeSet::new();
    for publisher in publishers {
        accepted.extend(publisher.await.unwrap());
    }
    publish_until_known(&broker, &to_queue("work", "last")).await.unwrap();
    let seen = timeout(SOON, consuming).await.expect("the last job arrives").unwrap();
    // Redelivered ones may come after "last".
    let mut consumer = broker.consume("work", 50).await.unwrap();
    let mut lost: BTreeSet<_> = accepted.difference(&seen).cloned().collect();
    while !lost.is_empty() {
        let delivery = next(&mut consumer).await;
        lost.remove(&body(&delivery));
        delivery.ack().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_waits_for_the_connection_but_not_for_ever() {
    let vhost = Vhost::new().await;
    let patience = Patience {
        connection: Duration::from_millis(300),
        confirmation: Duration::from_secs(5),
        ..Patience::default()
    };
    let broker = RabbitBroker::connect_with(&vhost.amqp, Names::new(PREFIX), patience).await.unwrap();
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    vhost.kill(&["roundelay publish"]).await;
    publish_until_known(&broker, &to_queue("work", "job")).await.unwrap();
    ready(&broker, "work", 1).await;

    // The virtual host goes, so it cannot come back: the bound holds, and it says what is up.
    vhost.call(Method::DELETE, &format!("vhosts/{}", vhost.name), json!(null)).await;
    let deadline = Instant::now() + SOON;
    loop {
        let since = Instant::now();
        let verdict = broker.publish(to_queue("work", "job")).await;
        assert!(since.elapsed() < Duration::from_secs(6), "it took {:?}", since.elapsed());
        match verdict {
            Err(PublishError::Unknown(reason)) if reason.contains("away") => break,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    }
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consuming_survives_the_deletion_of_its_queue() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work"], &[]);
    broker.apply(&topology).await.unwrap();
    let mut consumer = broker.consume("work", 5).await.unwrap();
    broker.publish(to_queue("work", "before")).await.unwrap();
    let before = next(&mut consumer).await;
    let raw = vhost.raw().await;
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut witness = raw.basic_consume("work".into(), "".into(), options, arguments).await.unwrap();
    vhost.delete_queue("work").await;
    // The broker tells its consumers, of whom this is one.
    assert!(timeout(SOON, witness.next()).await.expect("a cancellation").is_none());
    broker.apply(&topology).await.unwrap();
    broker.publish(to_queue("work", "after")).await.unwrap();
    let after = next(&mut consumer).await;
    assert_eq!(body(&after), "after");
    before.ack().await;
    after.ack().await;
    ready(&broker, "work", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_subscribes_anew_over_a_dead_network_is_cancelled_at_once() {
    let vhost = Vhost::new().await;
    let mut url = url::Url::parse(&vhost.amqp).unwrap();
    let link = Link::open(url.socket_addrs(|| Some(5672)).unwrap()).await.unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(link.port)).unwrap();
    let broker = RabbitBroker::connect(url.as_str(), Names::new(PREFIX)).await.unwrap();
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    let consumer = broker.consume("work", 5).await.unwrap();
    // The broker says that the queue is gone, and hears nothing any more.
    link.set(Mode::Hole { from_client: true, from_server: false });
    vhost.delete_queue("work").await;
    // Long enough to be waiting for the answer; a cancellation that came earlier would be easier.
    sleep(Duration::from_secs(2)).await;
    timeout(Duration::from_secs(5), consumer.cancel()).await.expect("it waits for no answer");
}

/// RabbitMQ 3.10 forgets consumers without a word when a queue is deleted and at once declared
/// again: it says that it delivers, and nothing arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consuming_survives_the_replacement_of_its_queue() {
    let vhost = Vhost::new().await;
    let patience = Patience { silence: Duration::from_secs(1), ..Patience::default() };
    let broker = RabbitBroker::connect_with(&vhost.amqp, Names::new(PREFIX), patience).await.unwrap();
    let topology = topology(&["work"], &[]);
    broker.apply(&topology).await.unwrap();
    let mut consumer = broker.consume("work", 5).await.unwrap();
    broker.publish(to_queue("work", "before")).await.unwrap();
    let before = next(&mut consumer).await;
    vhost.delete_queue("work").await;
    broker.apply(&topology).await.unwrap();
    broker.publish(to_queue("work", "after")).await.unwrap();
    before.ack().await;
    let after = next(&mut consumer).await;
    assert_eq!(body(&after), "after");
    after.ack().await;
    ready(&broker, "work", 0).await;
    broker.publish(to_queue("work", "and on")).await.unwrap();
    next(&mut consumer).await.ack().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_everything() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    broker.apply(&topology(&["work"], &[])).await.unwrap();
    let mut consumer = broker.consume("work", 1).await.unwrap();
    let unfinished: Vec<_> = (0..50).map(|n| format!("{n}")).collect();
    let publishing = join_all(unfinished.iter().map(|id| broker.publish(to_queue("work", id))));
    let (verdicts, ()) = tokio::join!(publishing, broker.close());
    assert!(verdicts.iter().all(Result::is_ok), "those under way are confirmed first: {verdicts:?}");
    // What had been delivered is still handed over, and then comes the end.
    let end = async { while consumer.next().await.is_some() {} };
    timeout(SOON, end).await.expect("the consumer ends");
    let refused = broker.publish(to_queue("work", "late")).await.unwrap_err();
    assert!(matches!(&refused, PublishError::Unknown(reason) if reason.contains("closed")), "{refused}");
    assert!(broker.consume("work", 1).await.is_err());
    let broker = vhost.connect(PREFIX).await;
    ready(&broker, "work", 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_to_start_are_told_without_the_password() {
    let vhost = Vhost::new().await;
    let mut url = url::Url::parse(&vhost.amqp).unwrap();
    url.set_password(Some("wrong-secret")).unwrap();
    let mut nowhere = url.clone();
    nowhere.set_port(Some(1)).unwrap();
    let mut no_vhost = url::Url::parse(&vhost.amqp).unwrap();
    no_vhost.set_path("ghost");
    for (url, expected) in [(url, "ACCESS_REFUSED"), (nowhere, "refused"), (no_vhost, "ghost")] {
        let error = RabbitBroker::connect(url.as_str(), Names::new(PREFIX)).await.err().unwrap().to_string();
        assert!(error.starts_with("cannot connect to amqp://"), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("secret") && !error.contains("guest:"), "{error}");
    }
    let broker = vhost.connect(PREFIX).await;
    let error = broker.consume("ghost", 1).await.err().unwrap().to_string();
    assert!(error.contains("no queue 'ghost'"), "{error}");
    let error = broker.publish(to_queue("work", "job")).await.unwrap_err().to_string();
    assert!(error.contains("exchange `r.jobs`") && error.contains("topology apply"), "{error}");
}

// ---- Topology ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_twice_is_harmless_and_removing_removes() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work"], &[1_000]);
    broker.apply(&topology).await.unwrap();
    broker.publish(to_queue("work", "job")).await.unwrap();
    broker.apply(&topology).await.unwrap();
    ready(&broker, "work", 1).await;
    assert_eq!(wrong(&broker, &topology, &vhost, 0).await, []);
    broker.remove(&topology).await.unwrap();
    broker.remove(&topology).await.unwrap();
    let all = topology.exchanges.len() + topology.queues.len() + topology.bindings.len();
    let findings = wrong(&broker, &topology, &vhost, all).await;
    assert!(findings.iter().all(|finding| finding.found == "missing"), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_over_something_else_names_all_of_it() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work", "other"], &[1_000]);
    let raw = vhost.raw().await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    raw.queue_declare("other".into(), durable, FieldTable::default()).await.unwrap();
    broker.apply(&altered(&topology, "r.delay.1s", "x-message-ttl", Argument::Number(999))).await.unwrap();

    let error = broker.apply(&topology).await.unwrap_err();
    assert!(matches!(error, BrokerError::Topology(_)), "{error:?}");
    let error = error.to_string();
    for part in ["queue `other`", "x-queue-type", "queue `r.delay.1s`", "x-message-ttl", "topology check"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    // Everything else was declared.
    broker.publish(to_queue("work", "job")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checking_finds_what_is_missing_or_different() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work", "gone", "loose"], &[1_000]);
    broker.apply(&topology).await.unwrap();
    vhost.delete_queue("gone").await;
    vhost.call(Method::DELETE, &format!("bindings/{}/e/r.jobs/q/loose/loose", vhost.name), json!(null)).await;
    vhost.delete_queue("r.delay.1s").await;
    let at_most_once = Argument::Text("at-most-once".into());
    broker.apply(&altered(&topology, "r.delay.1s", "x-dead-letter-strategy", at_most_once)).await.unwrap();

    let findings = wrong(&broker, &topology, &vhost, 4).await;
    let what: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
    assert_eq!(
        what,
        [
            "queue `gone`",
            "queue `r.delay.1s`: argument `x-dead-letter-strategy`",
            "binding of queue `gone` to exchange `r.jobs` (routing key `gone`)",
            "binding of queue `loose` to exchange `r.jobs` (routing key `loose`)",
        ]
    );
    assert!(findings[1].mend.contains(&format!("delete_queue -p '{}' 'r.delay.1s'", vhost.name)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checking_finds_policies_that_reach_our_queues() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work"], &[1_000]);
    broker.apply(&topology).await.unwrap();
    let policy = |definition: Value| json!({ "pattern": ".*", "definition": definition, "apply-to": "queues" });
    let (policies, operator) = (format!("policies/{}", vhost.name), format!("operator-policies/{}", vhost.name));
    let harmful = policy(json!({ "message-ttl": 500, "overflow": "drop-head" }));
    vhost.call(Method::PUT, &format!("{policies}/catch-all"), harmful).await;
    vhost.call(Method::PUT, &format!("{operator}/caps"), policy(json!({ "expires": 3_600_000 }))).await;

    let findings = wrong(&broker, &topology, &vhost, 3).await;
    let starts = [
        "policy `catch-all` sets `message-ttl` on `",
        "operator policy `caps` sets `expires` on `",
        "policy `catch-all` sets `overflow` on `",
    ];
    for (finding, start) in findings.iter().zip(starts) {
        assert!(finding.what.starts_with(start) && finding.what.ends_with("6 more queues"), "{finding:#?}");
    }
    assert!(findings[0].mend.contains("clear_policy") && findings[0].mend.contains("catch-all"));
    assert!(findings[1].mend.contains("clear_operator_policy") && findings[1].mend.contains("caps"));

    vhost.call(Method::DELETE, &format!("{policies}/catch-all"), json!(null)).await;
    vhost.call(Method::DELETE, &format!("{operator}/caps"), json!(null)).await;
    wrong(&broker, &topology, &vhost, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checking_without_the_management_api_says_what_it_cannot_see() {
    let vhost = Vhost::new().await;
    let broker = vhost.connect(PREFIX).await;
    let topology = topology(&["work", "gone"], &[1_000]);
    broker.apply(&topology).await.unwrap();
    vhost.delete_queue("gone").await;
    vhost.delete_exchange("r.delay.1s").await;
    let mut wrong_password = url::Url::parse(&vhost.management).unwrap();
    wrong_password.set_password(Some("wrong-secret")).unwrap();
    let table = [
        (None, "`broker.management` is not set"),
        (Some("http://u:secret@127.0.0.1:1"), "refused"),
        (Some(wrong_password.as_str()), "refuses user"),
    ];
    for (management, reason) in table {
        let findings = broker.check(&topology, management).await.unwrap();
        let what: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(what, ["exchange `r.delay.1s`", "queue `gone`", "arguments, bindings and policies"]);
        let last = &findings[2];
        assert!(last.found.contains(reason) && last.mend.contains("broker.management"), "{last:#?}");
        assert!(!format!("{findings:?}").contains("secret"), "{findings:?}");
    }
}

/// The whole ladder, as an operator would import it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_definitions_are_what_apply_would_declare() {
    let vhost = Vhost::new().await;
    let topology = Topology::new(Names::new(PREFIX), ["work"], &Ladder::new([Duration::from_millis(1_500)]));
    vhost.call(Method::POST, "definitions", definitions(&topology, &vhost.name)).await;

    let broker = vhost.connect(PREFIX).await;
    let findings = broker.check(&topology, Some(&vhost.management)).await.unwrap();
    assert_eq!(findings, []);
    broker.apply(&topology).await.unwrap();
}
