//! What only a test can do to a broker, in virtual time. What RabbitMQ can be made to do as well is
//! in the contract tests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use roundelay_model::clock::{Clock, Entropy, Time};
use roundelay_model::ladder::Ladder;
use roundelay_model::topology::{Names, Topology};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{Broker, Consumer, Delivery, Depth, Destination, Message, PublishError};

const RUNG: Duration = Duration::from_secs(7);

fn topology() -> Topology {
    Topology::new(Names::new("r"), ["work", "other"], &Ladder::new([RUNG]))
}

async fn broker() -> EmbeddedBroker {
    let broker = EmbeddedBroker::new(Names::new("r"));
    broker.apply(&topology()).await.unwrap();
    broker
}

fn message(to: Destination, body: &str) -> Message {
    Message { to, id: body.into(), body: body.to_owned().into(), trace: None }
}

fn now(queue: &str, body: &str) -> Message {
    message(Destination::Queue(queue.into()), body)
}

fn later(then: &str, body: &str) -> Message {
    message(Destination::Rung { rung: RUNG, then: then.into() }, body)
}

const BASE: Time = Time::from_millis(1_800_000_000_000);

/// A broker on which messages sleep, and whose clock goes by tokio's.
async fn parking() -> EmbeddedBroker {
    let broker = EmbeddedBroker::with_profile(Names::new("r"), Profile::Rabbit44);
    broker.goes_by(Clock::starting_at(BASE));
    broker.apply(&topology()).await.unwrap();
    broker
}

/// Sleeps on `work` until so many seconds after the start.
fn asleep(seconds: u64, body: &str) -> Message {
    let until = BASE + Duration::from_secs(seconds);
    message(Destination::Asleep { queue: "work".into(), until }, body)
}

/// What comes within an hour, and after how many seconds.
async fn arrivals(consumer: &mut Consumer, since: Instant) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    while let Ok(delivery) = timeout(Duration::from_secs(3_600), consumer.next()).await {
        let delivery = delivery.unwrap();
        all.push((text(&delivery), since.elapsed().as_secs()));
        delivery.ack().await;
    }
    all
}

fn expected(all: &[(&str, u64)]) -> Vec<(String, u64)> {
    all.iter().map(|(body, seconds)| ((*body).to_owned(), *seconds)).collect()
}

async fn next(consumer: &mut Consumer) -> Delivery {
    timeout(Duration::from_secs(3_600), consumer.next()).await.expect("a message came").expect("the consumer lives")
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.body.to_vec()).unwrap()
}

fn bodies(broker: &EmbeddedBroker, queue: &str) -> Vec<String> {
    let held = broker.census().into_iter().filter(|held| held.queue == queue);
    held.map(|held| String::from_utf8(held.body.to_vec()).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_cut_concerns_its_own_connection_and_no_other() {
    let broker = broker().await;
    let (one, other) = (broker.connect(), broker.connect());
    for body in ["a", "b", "c", "d"] {
        broker.publish(now("work", body)).await.unwrap();
    }
    let mut ones = one.consume("work", 2).await.unwrap();
    let (a, b) = (next(&mut ones).await, next(&mut ones).await);
    let mut others = other.consume("work", 1).await.unwrap();
    let c = next(&mut others).await;
    one.cut(Duration::from_secs(10));
    assert!(!a.is_alive() && !b.is_alive() && c.is_alive());
    a.ack().await;
    // The other one gets what came back before what never left, and acknowledging it counts.
    c.ack().await;
    let again = next(&mut others).await;
    assert_eq!((text(&again).as_str(), again.redelivered), ("a", true));
    assert_eq!(bodies(&broker, "work"), ["b", "d", "a"]);
    let cut = Instant::now();
    let b = next(&mut ones).await;
    assert_eq!((text(&b).as_str(), b.redelivered, cut.elapsed().as_secs()), ("b", true, 10));
}

#[tokio::test(start_paused = true)]
async fn a_publish_waits_for_its_connection_but_not_for_ever() {
    let broker = broker().await;
    let connection = broker.connect();
    connection.cut(Duration::from_secs(3));
    connection.cut(Duration::from_secs(1));
    let since = Instant::now();
    connection.publish(now("work", "soon")).await.unwrap();
    assert_eq!(since.elapsed().as_secs(), 3, "the longer one counts");
    connection.cut(Duration::from_secs(60));
    let since = Instant::now();
    let error = connection.publish(now("work", "late")).await.unwrap_err();
    assert!(matches!(&error, PublishError::Unknown(why) if why.contains("away")), "{error}");
    assert_eq!(since.elapsed().as_secs(), 5);
    assert!(connection.depth("work").await.is_err());
    assert_eq!(bodies(&broker, "work"), ["soon"]);
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_is_under_way_is_lost_with_the_connection() {
    let broker = broker().await;
    broker.on_publish(|_| PublishFault::Slow(Duration::from_secs(10)));
    let connection = Arc::new(broker.connect());
    let publishing = tokio::spawn({
        let connection = connection.clone();
        async move { connection.publish(now("work", "x")).await }
    });
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bodies(&broker, "work"), ["x"], "the queue has it before the publisher knows");
    connection.cut(Duration::ZERO);
    let verdict = publishing.await.unwrap();
    assert!(matches!(verdict, Err(PublishError::Unknown(_))), "{verdict:?}");
    let since = Instant::now();
    connection.publish(now("work", "y")).await.unwrap();
    assert_eq!(since.elapsed().as_secs(), 10);
    broker.on_publish(|_| PublishFault::Slow(Duration::from_secs(40)));
    let since = Instant::now();
    let verdict = connection.publish(now("work", "z")).await;
    assert!(matches!(verdict, Err(PublishError::Unknown(_))), "{verdict:?}");
    assert_eq!(since.elapsed().as_secs(), 30);
    assert_eq!(bodies(&broker, "work"), ["x", "y", "z"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_process_does_nothing() {
    let broker = broker().await;
    let connection = Arc::new(broker.connect());
    let mut consumer = connection.consume("work", 2).await.unwrap();
    for body in ["a", "b"] {
        broker.publish(now("work", body)).await.unwrap();
    }
    let (a, b) = (next(&mut consumer).await, next(&mut consumer).await);
    broker.on_publish(|_| PublishFault::Slow(Duration::from_secs(1)));
    let mut publishing = Box::pin(connection.publish(now("other", "x")));
    assert!((&mut publishing).now_or_never().is_none());
    connection.die();
    let long = Duration::from_secs(3_600);
    assert!(timeout(long, publishing).await.is_err());
    assert!(timeout(long, connection.publish(now("other", "y"))).await.is_err());
    assert!(timeout(long, connection.consume("work", 1)).await.is_err());
    assert!(timeout(long, connection.depth("work")).await.is_err());
    assert!(timeout(long, connection.apply(&topology())).await.is_err());
    assert!(timeout(long, connection.close()).await.is_err());
    assert!(timeout(long, a.ack()).await.is_err());
    assert!(timeout(long, consumer.next()).await.is_err());
    drop(b);
    assert_eq!((bodies(&broker, "work"), bodies(&broker, "other")), (vec!["a".into(), "b".into()], vec!["x".into()]));
    assert_eq!(broker.depth("work").await.unwrap(), Depth { ready: 2, consumers: 0 });
}

#[tokio::test(start_paused = true)]
async fn a_closed_connection_ends_its_consumers() {
    let broker = broker().await;
    let connection = broker.connect();
    let mut consumer = connection.consume("work", 2).await.unwrap();
    broker.publish(now("work", "a")).await.unwrap();
    let a = next(&mut consumer).await;
    connection.close().await;
    assert!(timeout(Duration::from_secs(1), consumer.next()).await.expect("it ends").is_none());
    a.ack().await;
    assert_eq!(broker.depth("work").await.unwrap(), Depth { ready: 1, consumers: 0 });
    let error = connection.publish(now("work", "b")).await.unwrap_err();
    assert!(matches!(&error, PublishError::Unknown(why) if why.contains("closed")), "{error}");
    assert!(connection.consume("work", 1).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_messages_and_time_goes_on() {
    let broker = broker().await;
    let (one, other) = (broker.connect(), broker.connect());
    let mut consumer = one.consume("work", 1).await.unwrap();
    one.publish(now("work", "held")).await.unwrap();
    one.publish(later("work", "asleep")).await.unwrap();
    let held = next(&mut consumer).await;
    broker.stop();
    assert!(!held.is_alive());
    other.cut(Duration::from_secs(28));
    for connection in [&one, &other, &broker.connect()] {
        assert!(matches!(connection.publish(now("work", "x")).await, Err(PublishError::Unknown(_))));
    }
    sleep(Duration::from_secs(10)).await;
    assert_eq!(bodies(&broker, "r.delay.7s"), ["asleep"], "a stopped node moves nothing");
    let since = Instant::now();
    broker.start();
    let again = next(&mut consumer).await;
    assert_eq!((text(&again).as_str(), again.redelivered), ("held", true));
    again.ack().await;
    let woken = next(&mut consumer).await;
    assert_eq!((text(&woken).as_str(), woken.deaths, since.elapsed()), ("asleep", 1, Duration::ZERO));
    woken.ack().await;
    // It was cut besides, and comes back in its own time.
    other.publish(now("work", "y")).await.unwrap();
    assert_eq!(since.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn publishes_fail_as_they_are_told_to() {
    let broker = broker().await;
    let connection = broker.connect();
    let table = [
        (PublishFault::None, "ok", 1),
        (PublishFault::UnknownButKept, "unknown", 1),
        (PublishFault::UnknownAndLost, "unknown", 0),
        (PublishFault::Refused, "refused", 0),
        (PublishFault::Returned, "unroutable", 0),
        (PublishFault::Twice, "ok", 2),
        (PublishFault::Slow(Duration::from_secs(1)), "ok", 1),
    ];
    for (fault, expected, kept) in table {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seeing = seen.clone();
        broker.on_publish(move |message| {
            seeing.lock().push(message.id.clone());
            fault
        });
        let verdict = match connection.publish(now("work", "x")).await {
            Ok(()) => "ok",
            Err(PublishError::Unknown(_)) => "unknown",
            Err(PublishError::Refused(_)) => "refused",
            Err(PublishError::Unroutable(_)) => "unroutable",
        };
        assert_eq!((verdict, broker.purge("work")), (expected, kept), "{fault:?}");
        assert_eq!(*seen.lock(), ["x"]);
    }
}

#[tokio::test(start_paused = true)]
async fn without_mandatory_an_unroutable_message_is_confirmed_and_gone() {
    let broker = broker().await;
    let connection = broker.connect();
    assert!(broker.delete_queue("r.delay.7s") && !broker.delete_queue("r.delay.7s"));
    assert!(matches!(connection.publish(later("work", "x")).await, Err(PublishError::Unroutable(_))));
    connection.mandatory(false);
    connection.publish(later("work", "x")).await.unwrap();
    broker.on_publish(|_| PublishFault::Returned);
    connection.publish(now("work", "x")).await.unwrap();
    assert_eq!(broker.census(), []);
    // An absent exchange is reported in any case.
    broker.on_publish(|_| PublishFault::None);
    assert!(broker.delete_exchange("r.delay.7s") && !broker.delete_exchange("r.delay.7s"));
    assert!(matches!(connection.publish(later("work", "x")).await, Err(PublishError::Unroutable(_))));
}

#[tokio::test(start_paused = true)]
async fn messages_are_lost_doubled_and_shuffled_on_demand() {
    let broker = broker().await;
    for body in ["a", "b", "c", "d"] {
        broker.publish(now("work", body)).await.unwrap();
    }
    assert_eq!(broker.lose("work", 1).unwrap(), "b");
    assert_eq!((broker.lose("work", 3), broker.lose("ghost", 0)), (None, None));
    assert_eq!(broker.duplicate("work", 2).unwrap(), "d");
    assert_eq!(broker.duplicate("work", 4), None);
    assert_eq!(bodies(&broker, "work"), ["a", "c", "d", "d"]);
    let shuffled = |seed| {
        let broker = broker.clone();
        async move {
            broker.purge("work");
            for body in ["1", "2", "3", "4", "5", "6", "7", "8"] {
                broker.publish(now("work", body)).await.unwrap();
            }
            broker.reorder("work", seed);
            bodies(&broker, "work")
        }
    };
    let (one, other) = (shuffled(1).await, shuffled(2).await);
    assert_eq!(shuffled(1).await, one);
    assert!(one != other && !one.is_sorted());
    let mut sorted = one.clone();
    sorted.sort();
    assert_eq!(sorted, ["1", "2", "3", "4", "5", "6", "7", "8"]);
}

#[tokio::test(start_paused = true)]
async fn a_rung_lives_on_when_messages_are_taken_from_it_or_shuffled() {
    let broker = broker().await;
    let since = Instant::now();
    for body in ["a", "b", "c", "d"] {
        broker.publish(later("work", body)).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(broker.census()[0].state, HeldState::OnRung { until: since + RUNG });
    assert_eq!(broker.lose("r.delay.7s", 0).unwrap(), "a");
    broker.duplicate("r.delay.7s", 0).unwrap();
    broker.reorder("r.delay.7s", 3);
    let order = bodies(&broker, "r.delay.7s");
    let mut consumer = broker.consume("work", 10).await.unwrap();
    for expected in &order {
        let delivery = next(&mut consumer).await;
        assert_eq!(text(&delivery), *expected);
        let earliest = match expected.as_str() {
            "b" => 8,
            "c" => 9,
            _ => 10,
        };
        assert!(since.elapsed().as_secs() >= earliest, "{expected} after {:?}", since.elapsed());
        delivery.ack().await;
    }
    assert!(since.elapsed().as_secs() <= 10);
    assert_eq!(broker.purge("r.delay.7s"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_census_names_everything_once() {
    let broker = broker().await;
    let since = Instant::now();
    broker.publish(now("work", "out")).await.unwrap();
    let mut consumer = broker.consume("work", 1).await.unwrap();
    let _out = next(&mut consumer).await;
    broker.publish(now("work", "in")).await.unwrap();
    broker.publish(now("ghost", "lost")).await.unwrap();
    broker.publish(later("other", "asleep")).await.unwrap();
    let census: Vec<_> = broker.census().into_iter().map(|held| (held.queue, held.body, held.state)).collect();
    let expected = [
        ("r.delay.7s", "asleep", HeldState::OnRung { until: since + RUNG }),
        ("r.unrouted", "lost", HeldState::Ready),
        ("work", "in", HeldState::Ready),
        ("work", "out", HeldState::Unsettled),
    ];
    assert_eq!(census, expected.map(|(queue, body, state)| (queue.to_owned(), body.into(), state)));
}

/// What RabbitMQ does as well, but after minutes.
#[tokio::test(start_paused = true)]
async fn what_is_stuck_on_a_rung_is_tried_again_every_three_minutes_or_when_the_node_starts() {
    let broker = broker().await;
    broker.delete_exchange("r.jobs");
    let since = Instant::now();
    for n in 0..40 {
        broker.publish(later("work", &format!("{n:02}"))).await.unwrap();
    }
    sleep(Duration::from_secs(60)).await;
    let census = broker.census();
    assert!(census.len() == 40 && census.iter().all(|held| held.state == HeldState::Dying));
    broker.apply(&topology()).await.unwrap();
    let mut work = broker.consume("work", 100).await.unwrap();
    for n in 0..40 {
        let delivery = next(&mut work).await;
        assert_eq!((text(&delivery), delivery.deaths), (format!("{n:02}"), 1));
        assert_eq!(since.elapsed(), RUNG + Duration::from_secs(180));
        delivery.ack().await;
    }

    broker.delete_exchange("r.jobs");
    broker.publish(later("work", "again")).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    broker.apply(&topology()).await.unwrap();
    broker.stop();
    broker.start();
    let since = Instant::now();
    assert_eq!((text(&next(&mut work).await).as_str(), since.elapsed()), ("again", Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_consumer_comes_back_after_the_silence_and_not_with_something_in_hand() {
    let broker = EmbeddedBroker::with_profile(Names::new("r"), Profile::Rabbit310);
    broker.apply(&topology()).await.unwrap();
    let mut consumer = broker.consume("work", 2).await.unwrap();
    broker.publish(now("work", "held")).await.unwrap();
    let held = next(&mut consumer).await;
    broker.delete_queue("work");
    broker.apply(&topology()).await.unwrap();
    let since = Instant::now();
    broker.publish(now("work", "a")).await.unwrap();
    assert_eq!(broker.depth("work").await.unwrap(), Depth { ready: 0, consumers: 1 });
    sleep(Duration::from_secs(100)).await;
    held.ack().await;
    let a = next(&mut consumer).await;
    assert_eq!((text(&a).as_str(), a.redelivered, since.elapsed().as_secs()), ("a", true, 120));
    a.ack().await;

    // When it is not declared again at once, the consumer is told.
    broker.delete_queue("work");
    sleep(Duration::from_millis(40)).await;
    broker.apply(&topology()).await.unwrap();
    let since = Instant::now();
    broker.publish(now("work", "b")).await.unwrap();
    assert_eq!(text(&next(&mut consumer).await), "b");
    assert!(since.elapsed() < Duration::from_secs(1));

    // A cut connection mends it too; and a cancelled consumer does not haunt.
    broker.delete_queue("work");
    broker.apply(&topology()).await.unwrap();
    consumer.cancel().await;
    sleep(Duration::from_secs(1)).await;
    broker.publish(now("work", "c")).await.unwrap();
    assert_eq!(bodies(&broker, "work"), ["c"]);
    let connection = broker.connect();
    let mut consumer = connection.consume("other", 2).await.unwrap();
    broker.delete_queue("other");
    broker.apply(&topology()).await.unwrap();
    broker.publish(now("other", "d")).await.unwrap();
    let since = Instant::now();
    connection.cut(Duration::from_secs(1));
    let d = next(&mut consumer).await;
    assert_eq!((text(&d).as_str(), d.redelivered, since.elapsed().as_secs()), ("d", true, 1));
    d.ack().await;

    // Replaced twice, the second time while it is forgotten already.
    for _ in 0..2 {
        broker.delete_queue("other");
        broker.apply(&topology()).await.unwrap();
        sleep(Duration::from_secs(20)).await;
    }
    broker.publish(now("other", "e")).await.unwrap();
    let e = next(&mut consumer).await;
    assert_eq!((text(&e).as_str(), e.redelivered), ("e", true));
    assert_eq!(broker.depth("other").await.unwrap(), Depth { ready: 0, consumers: 1 });
}

#[tokio::test(start_paused = true)]
async fn what_sleeps_is_lost_and_doubled_on_demand() {
    let broker = parking().await;
    let since = Instant::now();
    for (seconds, body) in [(30, "c"), (10, "a"), (20, "b")] {
        broker.publish(asleep(seconds, body)).await.unwrap();
    }
    broker.publish(now("work", "awake")).await.unwrap();
    assert_eq!(bodies(&broker, "work"), ["awake", "a", "b", "c"]);
    assert_eq!(broker.census()[1].state, HeldState::Asleep { until: BASE + Duration::from_secs(10) });
    assert_eq!(broker.depth("work").await.unwrap(), Depth { ready: 1, consumers: 0 });
    // What waits is counted first, then what sleeps.
    assert_eq!(broker.lose("work", 1).unwrap(), "a");
    assert_eq!(broker.duplicate("work", 2).unwrap(), "c");
    assert_eq!((broker.lose("work", 4), broker.duplicate("work", 4)), (None, None));
    let mut consumer = broker.consume("work", 10).await.unwrap();
    let all = arrivals(&mut consumer, since).await;
    assert_eq!(all, expected(&[("awake", 0), ("b", 20), ("c", 30), ("c", 30)]));
    broker.publish(asleep(9_999_999, "purged")).await.unwrap();
    assert_eq!((broker.purge("work"), broker.census()), (1, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn what_sleeps_wakes_when_the_broker_does_not_know_that_any_more() {
    let broker = parking().await;
    let since = Instant::now();
    for (seconds, body) in [(20, "b"), (10, "a")] {
        broker.publish(asleep(seconds, body)).await.unwrap();
    }
    assert_eq!(broker.parks(), Some(true));
    let mut consumer = broker.consume("work", 10).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    broker.become_like(Profile::Rabbit4);
    assert_eq!(broker.parks(), Some(false));
    broker.publish(asleep(30, "c")).await.unwrap();
    assert_eq!(arrivals(&mut consumer, since).await, expected(&[("a", 3), ("b", 3), ("c", 3)]));
    // And once it does, what comes sleeps.
    broker.become_like(Profile::Rabbit44);
    broker.publish(asleep(5_000, "d")).await.unwrap();
    broker.publish(now("work", "e")).await.unwrap();
    let all = arrivals(&mut consumer, since).await;
    assert_eq!(all, expected(&[("e", 3_603), ("d", 5_000)]));
}

#[tokio::test(start_paused = true)]
async fn what_sleeps_goes_by_the_brokers_clock() {
    let broker = parking().await;
    let since = Instant::now();
    let mut consumer = broker.consume("work", 10).await.unwrap();
    for (seconds, body) in [(10, "a"), (20, "b"), (30, "c"), (40, "d")] {
        broker.publish(asleep(seconds, body)).await.unwrap();
    }
    sleep(Duration::from_secs(5)).await;
    broker.set_clock(15_000);
    let [a, b] = [next(&mut consumer).await, next(&mut consumer).await];
    assert_eq!((text(&a).as_str(), text(&b).as_str(), since.elapsed().as_secs()), ("a", "b", 5));
    a.ack().await;
    // Put back, it is there again, though by the clock that is set back its time is to come.
    broker.set_clock(-25_000);
    assert_eq!(broker.ahead(), -10_000);
    b.requeue().await;
    let all = arrivals(&mut consumer, since).await;
    assert_eq!(all, expected(&[("b", 5), ("c", 40), ("d", 50)]));
}

#[tokio::test(start_paused = true)]
async fn what_sleeps_wakes_after_an_outage_and_not_while_the_node_is_stopped() {
    let broker = parking().await;
    let since = Instant::now();
    let mut consumer = broker.consume("work", 10).await.unwrap();
    for (seconds, body) in [(10, "a"), (20, "b"), (30, "c")] {
        broker.publish(asleep(seconds, body)).await.unwrap();
    }
    broker.stop();
    sleep(Duration::from_secs(25)).await;
    assert_eq!(broker.census()[0].state, HeldState::Asleep { until: BASE + Duration::from_secs(10) });
    broker.set_clock(-3_000);
    broker.start();
    let all = arrivals(&mut consumer, since).await;
    let seconds: Vec<_> = all.iter().map(|(body, seconds)| (body.as_str(), *seconds)).collect();
    assert_eq!(seconds, [("a", 25), ("b", 25), ("c", 33)]);
}

/// The same dice, hence the same script: several clients that publish, consume and settle while
/// connections are cut, queues deleted and the node stopped.
async fn script(profile: Profile, seed: u64) -> Vec<String> {
    let (broker, dice) = (EmbeddedBroker::with_profile(Names::new("r"), profile), Entropy::seeded(seed));
    let clock = Clock::starting_at(BASE);
    broker.goes_by(clock.clone());
    broker.apply(&topology()).await.unwrap();
    let (begun, told) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let tell = move |told: &Mutex<Vec<String>>, what: String| {
        told.lock().push(format!("{:?} {what}", begun.elapsed()));
    };
    let hook = dice.clone();
    broker.on_publish(move |_| match hook.below(8) {
        0 => PublishFault::UnknownButKept,
        1 => PublishFault::Twice,
        2 => PublishFault::Slow(Duration::from_millis(hook.below(900) as u64)),
        _ => PublishFault::None,
    });
    let clients: Vec<Arc<EmbeddedConnection>> = (0..4).map(|_| Arc::new(broker.connect())).collect();
    for (number, client) in clients.iter().enumerate() {
        for queue in ["work", "other"] {
            let [one, other] = [(); 2].map(|()| (client.clone(), dice.clone(), told.clone()));
            let (client, dice, told) = one;
            let consuming = async move {
                let mut consumer = client.consume(queue, 3).await.unwrap();
                while let Some(delivery) = consumer.next().await {
                    let (alive, again) = (delivery.is_alive(), delivery.redelivered);
                    tell(&told, format!("{number} {queue} {} {alive} {again}", text(&delivery)));
                    sleep(Duration::from_millis(dice.below(500) as u64)).await;
                    if dice.below(4) == 0 { delivery.requeue().await } else { delivery.ack().await }
                }
            };
            let ((client, dice, told), clock) = (other, clock.clone());
            let publishing = async move {
                for n in 0..40 {
                    let body = format!("{number}-{n}");
                    let message = match dice.below(3) {
                        0 => now(queue, &body),
                        1 => later(queue, &body),
                        _ => {
                            let until = clock.now() + Duration::from_millis(dice.below(9_000) as u64);
                            message(Destination::Asleep { queue: queue.into(), until }, &body)
                        }
                    };
                    let verdict = client.publish(message).await;
                    tell(&told, format!("{number} published {body}: {verdict:?}"));
                    sleep(Duration::from_millis(dice.below(300) as u64)).await;
                }
            };
            tokio::spawn(consuming);
            tokio::spawn(publishing);
        }
    }
    for _ in 0..30 {
        sleep(Duration::from_millis(700)).await;
        match dice.below(6) {
            0 => clients[dice.below(4)].cut(Duration::from_millis(dice.below(3_000) as u64)),
            1 => {
                broker.stop();
                sleep(Duration::from_secs(1)).await;
                broker.start();
            }
            2 => {
                broker.delete_queue("work");
                broker.apply(&topology()).await.unwrap();
            }
            3 => broker.reorder("other", dice.below(100) as u64),
            4 => drop(broker.lose("r.delay.7s", 0)),
            _ => clients[dice.below(4)].cut(Duration::ZERO),
        }
    }
    sleep(Duration::from_secs(60)).await;
    told.lock().clone()
}

#[tokio::test(start_paused = true)]
async fn the_same_script_has_the_same_consequences() {
    for profile in [Profile::Rabbit310, Profile::Rabbit40, Profile::Rabbit4, Profile::Rabbit44] {
        let (one, other) = (script(profile, 1).await, script(profile, 1).await);
        assert!(one.len() > 500, "{}", one.len());
        assert_eq!(one, other);
        assert_ne!(one, script(profile, 2).await);
    }
}
