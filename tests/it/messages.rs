//! Bad input: it is set aside with its reason, and delays and loses nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use roundelay::Outcome;
use roundelay::broker::{Broker, Destination, Message};
use roundelay::ids::{Epoch, TickNo};
use roundelay::job::{ChainRef, Envelope, MAX_BYTES, MAX_PAYLOAD};
use roundelay::ledger::{ChainFilter, ChainOrder};
use roundelay::telemetry::Count;
use serde_json::{Value, json};

use crate::harness::{Ground, Watched, on_all, on_ladder, until, worker};

const CONFIG: &str = r#"
[queues.work]
[queues.side]
[kinds.sync]
every = "1h"
queue = "work"
retry = { attempts = 3, backoff = ["50ms"] }
"#;

on_all!(each_sort_of_bad_input_is_set_aside_with_its_reason);
on_all!(a_flood_of_bad_input_keeps_no_good_job_from_running);
on_all!(hints_from_the_future_are_set_aside_and_stale_ones_end);
on_all!(a_job_that_came_before_its_time_waits_for_it);
on_all!(a_client_s_fields_count_as_documented);
on_all!(the_largest_job_survives_its_retries);

/// What was set aside: queue, reason and body.
type SetAside = (String, String, Vec<u8>);

/// Everything in the quarantine, which stays there.
async fn set_aside(ground: &Ground) -> Vec<SetAside> {
    let mut found = Vec::new();
    let Some(vhost) = &ground.vhost else {
        let ledger = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
        let mut select = ledger.prepare("SELECT source, reason, body FROM quarantine ORDER BY rowid").unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        return rows.map(Result::unwrap).collect();
    };
    // Unsettled, these go back when the channel closes.
    let raw = vhost.raw().await;
    while let Some(message) = get(&raw, "roundelay.quarantine").await {
        let text = |name: &str| text(&message.properties, name);
        found.push((text("roundelay-from"), text("roundelay-reason"), message.data));
    }
    raw.close(200, "looked".into()).await.unwrap();
    found
}

async fn get(raw: &Channel, queue: &str) -> Option<lapin::message::Delivery> {
    Some(raw.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap()?.delivery)
}

fn text(properties: &BasicProperties, header: &str) -> String {
    match properties.headers().as_ref().and_then(|headers| headers.inner().get(header)) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{header}: {other:?}"),
    }
}

async fn publish(engine: &Watched, queue: &str, body: impl Into<Vec<u8>>) {
    let message =
        Message { to: Destination::Queue(queue.into()), id: String::new(), body: body.into().into(), trace: None };
    engine.broker().publish(message).await.unwrap();
}

fn job(key: &str) -> Vec<u8> {
    Envelope::job("sync", key, Value::Null, format!("job-{key}")).encode()
}

async fn quarantined(engine: &Watched, count: u64) {
    until("all bad input is set aside", || async { engine.telemetry.get(Count::Quarantined) >= count }).await;
    assert_eq!(engine.telemetry.get(Count::Quarantined), count);
}

/// Asserts that nothing is left on the platform queue once the engine has stopped.
async fn nothing_left(ground: &Ground) {
    let Some(vhost) = &ground.vhost else { return };
    assert_eq!(get(&vhost.raw().await, "work").await.map(|message| message.data), None, "left on the queue");
}

mod run {
    use super::*;

    pub async fn each_sort_of_bad_input_is_set_aside_with_its_reason(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        let with = |field: &str, value: Value| {
            let mut body = json!({ "v": 1, "kind": "sync", "key": "x" });
            body[field] = value;
            body.to_string().into_bytes()
        };
        let deep = format!(r#"{{"v":1,"kind":"sync","key":"x","payload":{}"#, "[".repeat(100_000));
        let foreign = json!({ "ledger": "another", "epoch": 1, "tick": 1 });
        let table: [(&str, Vec<u8>, &str); 15] = [
            ("work", Vec::new(), "not a job envelope"),
            ("work", b"\xff\xfe\x00".to_vec(), "not a job envelope"),
            ("work", b"{\"v\":1,".to_vec(), "not a job envelope"),
            ("work", br#"{"v":1,"kind":"sync"}"#.to_vec(), "missing field `key`"),
            ("work", with("paylod", json!(1)), "unknown field `paylod`"),
            ("work", with(&"u".repeat(100_000), json!(1)), "unknown field `uuu"),
            ("work", with("v", json!(2)), "format version 2; this engine reads version 1"),
            ("work", with("key", json!("")), "`key` is empty"),
            ("work", with("kind", json!("snyc")), "unknown kind `snyc`: not under [kinds]"),
            ("work", with("queue", json!("sdie")), "unknown queue `sdie`: not under [queues]"),
            ("work", with("payload", json!("x".repeat(MAX_PAYLOAD))), "the payload has 1040386 bytes"),
            ("work", vec![b' '; MAX_BYTES + 1], "the body has 1048577 bytes; at most 1048576 are read"),
            ("work", deep.into_bytes(), "recursion limit"),
            ("work", with("chain", foreign), "the chain belongs to ledger another"),
            ("roundelay.rearm", with("attempt", json!(1)), "`queue` is missing"),
        ];
        for (n, (queue, body, reason)) in table.iter().enumerate() {
            publish(&engine, queue, body.clone()).await;
            publish(&engine, "work", job(&n.to_string())).await;
            let run = engine.next().await;
            assert_eq!(run.job.key, n.to_string(), "the good job after: {reason}");
            run.end(Outcome::Done);
        }
        quarantined(&engine, table.len() as u64).await;
        until("all have run", || async { engine.telemetry.get(Count::Done) == table.len() as u64 }).await;
        engine.stop().await;
        nothing_left(&ground).await;
        let found = set_aside(&ground).await;
        assert_eq!(found.len(), table.len());
        for (queue, body, part) in table {
            let found = found.iter().find(|(_, _, kept)| *kept == body);
            let (from, reason, _) = found.unwrap_or_else(|| panic!("nothing was set aside for: {part}"));
            assert!(from == queue && reason.contains(part), "{part}: {reason}, from {from}");
            assert!(reason.len() < 1_000, "{part}: the reason has {} bytes", reason.len());
        }
    }

    pub async fn a_flood_of_bad_input_keeps_no_good_job_from_running(ground: Ground) {
        const BAD: usize = 2_000;
        const GOOD: usize = 50;
        let mut engine = Watched::start(&ground, CONFIG).await;
        let sorts = [
            b"{".to_vec(),
            br#"{"v":1,"kind":"unknown","key":"x"}"#.to_vec(),
            br#"{"v":9,"kind":"sync","key":"x"}"#.to_vec(),
            vec![0; 10_000],
        ];
        let broker = engine.connections.broker.clone();
        let bodies = (0..BAD).flat_map(|n| {
            let good = n.is_multiple_of(BAD / GOOD).then(|| job(&n.to_string()));
            std::iter::once(sorts[n % sorts.len()].clone()).chain(good)
        });
        let publishing =
            tokio::spawn(futures_util::stream::iter(bodies.collect::<Vec<_>>()).for_each_concurrent(64, move |body| {
                let (broker, to) = (broker.clone(), Destination::Queue("work".into()));
                async move {
                    broker.publish(Message { to, id: String::new(), body: body.into(), trace: None }).await.unwrap()
                }
            }));
        let mut ran = BTreeSet::new();
        while ran.len() < GOOD {
            let run = engine.next().await;
            assert!(ran.insert(run.job.key.clone()), "{} ran twice", run.job.key);
            run.end(Outcome::Done);
        }
        publishing.await.unwrap();
        quarantined(&engine, BAD as u64).await;
        until("all are done", || async { engine.telemetry.get(Count::Done) == GOOD as u64 }).await;
        engine.stop().await;
        nothing_left(&ground).await;
        assert_eq!(set_aside(&ground).await.len(), BAD);
    }

    pub async fn hints_from_the_future_are_set_aside_and_stale_ones_end(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        engine.enroll("x", "work").await;
        let run = engine.next().await;
        let chain = run.job.tick.unwrap();
        let ledger = engine.ledger().id().to_owned();
        let hint = |epoch, tick, attempt| {
            let mut hint = Envelope::job("sync", "x", Value::Null, String::new());
            (hint.id, hint.attempt) = (None, attempt);
            hint.chain = Some(ChainRef {
                ledger: ledger.clone(),
                epoch,
                tick: TickNo(tick),
                parent: Epoch::NONE,
                priority: None,
            });
            hint.encode()
        };
        // An epoch that was never given, a tick and an attempt that have not begun.
        let future = [hint(Epoch(chain.epoch.get() + 1), 1, 1), hint(chain.epoch, 2, 1), hint(chain.epoch, 1, 2)];
        for hint in &future {
            publish(&engine, "work", hint.clone()).await;
        }
        quarantined(&engine, 3).await;
        // What runs goes on, and its chain waits for a person.
        run.end(Outcome::Done);
        until("it is done", || async { engine.telemetry.get(Count::Done) == 1 }).await;
        let idle = engine.telemetry.get(Count::Idle);
        publish(&engine, "work", hint(chain.epoch, 1, 1)).await;
        publish(&engine, "work", hint(chain.epoch, 1, 1)).await;
        until("both mean nothing", || async { engine.telemetry.get(Count::Idle) == idle + 2 }).await;
        assert_eq!(engine.ledger().census(Duration::ZERO).await.unwrap().quarantined, 1);
        // It begins a new epoch then, in which messages of the old one mean nothing either.
        assert_eq!(engine.ledger().order_chains(ChainFilter::default(), ChainOrder::Recover).await.unwrap(), 1);
        publish(&engine, "work", hint(chain.epoch, 2, 1)).await;
        until("it means nothing", || async { engine.telemetry.get(Count::Idle) == idle + 3 }).await;
        let run = engine.next().await;
        assert!(run.job.tick.unwrap().epoch > chain.epoch);
        run.end(Outcome::Done);
        until("it is done", || async { engine.telemetry.get(Count::Done) == 2 }).await;
        assert_eq!(engine.telemetry.get(Count::Started), 2);
        engine.stop().await;
        nothing_left(&ground).await;
        let found = set_aside(&ground).await;
        assert_eq!(found.len(), 3);
        for (from, reason, body) in found {
            assert_eq!(from, "work");
            assert!(reason.contains("ahead of the ledger"), "{reason}");
            assert!(future.contains(&body));
        }
    }

    pub async fn a_job_that_came_before_its_time_waits_for_it(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        let due = engine.ledger().now() + Duration::from_millis(1_437);
        let body = json!({ "v": 1, "kind": "sync", "key": "later", "due": due.as_millis() });
        publish(&engine, "work", body.to_string()).await;
        // It does not stand in the way of what is due.
        publish(&engine, "work", job("now")).await;
        let run = engine.next().await;
        assert_eq!(run.job.key, "now");
        run.end(Outcome::Done);
        let run = engine.next().await;
        assert!(run.job.key == "later" && run.job.nominal == due);
        assert!(run.at >= due, "early: {} before {due}", run.at);
        assert!(engine.telemetry.get(Count::Rearmed) >= 1);
        run.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn a_client_s_fields_count_as_documented(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        // `attempt`: the tries before it are charged.
        publish(&engine, "work", r#"{"v":1,"kind":"sync","key":"x","attempt":3,"id":"mine"}"#).await;
        let run = engine.next().await;
        assert_eq!((run.job.attempt, run.job.id.as_str()), (3, "mine"));
        run.end(Outcome::retry("busy"));
        until("it was the last try", || async { engine.telemetry.get(Count::Failed) == 1 }).await;
        // No `id`: the engine makes one, and it stays. `queue` is not where it arrived: that counts.
        publish(&engine, "work", r#"{"v":1,"kind":"sync","key":"y","queue":"side"}"#).await;
        let mut id = None;
        for attempt in 1..=2 {
            let run = engine.next().await;
            assert_eq!((run.job.attempt, run.job.queue.as_str()), (attempt, "work"));
            assert_eq!(*id.get_or_insert(run.job.id.clone()), run.job.id);
            run.end(if attempt == 1 { Outcome::retry("busy") } else { Outcome::Done });
        }
        assert_eq!(id.unwrap().len(), 16);
        // On the rearm queue `queue` says where it goes.
        publish(&engine, "roundelay.rearm", r#"{"v":1,"kind":"sync","key":"z","queue":"side"}"#).await;
        let run = engine.next().await;
        assert_eq!((run.job.key.as_str(), run.job.queue.as_str()), ("z", "side"));
        run.end(Outcome::Done);
        engine.stop().await;
        assert_eq!(set_aside(&ground).await, []);
    }

    pub async fn the_largest_job_survives_its_retries(ground: Ground) {
        let mut engine = Watched::start(&ground, CONFIG).await;
        let payload = json!("x".repeat(MAX_PAYLOAD - 2));
        let body = json!({ "v": 1, "kind": "sync", "key": "x".repeat(512), "payload": payload });
        publish(&engine, "work", body.to_string()).await;
        for attempt in 1..=3 {
            let run = engine.next().await;
            assert!(run.job.attempt == attempt && run.job.payload == payload);
            run.end(if attempt < 3 { Outcome::retry("busy") } else { Outcome::Done });
        }
        until("it is done", || async { engine.telemetry.get(Count::Done) == 1 }).await;
        engine.stop().await;
        assert_eq!(set_aside(&ground).await, []);
    }
}

// ---- What only RabbitMQ has: headers ----

async fn publish_raw(raw: &Channel, exchange: &str, key: &str, properties: BasicProperties, body: &[u8]) {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let confirm = raw.basic_publish(exchange.into(), key.into(), options, body, properties).await.unwrap();
    let confirmation = confirm.await.unwrap();
    assert!(matches!(confirmation, lapin::Confirmation::Ack(None)), "{confirmation:?}");
}

fn headers(entries: impl IntoIterator<Item = (String, AMQPValue)>) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in entries {
        headers.insert(name.into(), value);
    }
    BasicProperties::default().with_delivery_mode(2).with_headers(headers)
}

fn deaths(entries: usize, count: i64) -> BasicProperties {
    let entry = |n: usize| {
        let mut entry = FieldTable::default();
        for (name, value) in [("queue", format!("q{n}")), ("reason", "expired".into()), ("exchange", "e".into())] {
            entry.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        entry.insert("count".into(), AMQPValue::LongLongInt(count));
        entry.insert("time".into(), AMQPValue::Timestamp(1));
        entry.insert("routing-keys".into(), AMQPValue::FieldArray(vec![].into()));
        AMQPValue::FieldTable(entry)
    };
    let entries: Vec<_> = (0..entries).map(entry).collect();
    headers([("x-death".into(), AMQPValue::FieldArray(entries.into()))])
}

#[tokio::test]
async fn forged_deaths_are_quarantined_and_huge_headers_do_no_harm() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, &on_ladder(CONFIG)).await;
    let vhost = ground.vhost.as_ref().unwrap();
    let raw = vhost.raw().await;
    raw.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    for (entries, count) in [(17, 1), (1_000, 1), (1, 1_000_000)] {
        publish_raw(&raw, "roundelay.jobs", "work", deaths(entries, count), &job("circles")).await;
    }
    quarantined(&engine, 3).await;
    let long = |n: usize| AMQPValue::LongString("x".repeat(n).into());
    let many = |n: usize| headers((0..n).map(|n| (format!("h{n}"), AMQPValue::LongLongInt(1))));
    let harmless = [
        ("few deaths", deaths(3, 2)),
        ("a long header", headers([("long".into(), long(60_000))])),
        ("a very long header", headers([("long".into(), long(120_000))])),
        ("many headers", many(8_000)),
        ("not an array", headers([("x-death".into(), long(10_000))])),
    ];
    for (label, properties) in harmless {
        for exchange in ["roundelay.jobs", "roundelay.delay.200ms"] {
            if label.contains("death") && exchange.contains("delay") {
                continue; // The broker may take a forged history for a circle, and drop the message.
            }
            publish_raw(&raw, exchange, "work", properties.clone(), &job(label)).await;
            let run = engine.next().await;
            assert_eq!(run.job.key, label, "through {exchange}");
            run.end(Outcome::Done);
        }
    }
    engine.stop().await;
    nothing_left(&ground).await;
    let found = set_aside(&ground).await;
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|(_, reason, _)| reason.contains("goes round in circles")), "{found:?}");
}

#[tokio::test]
async fn a_quarantined_message_runs_when_it_is_moved_back() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let raw = vhost.raw().await;
    raw.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let engine = Watched::start(&ground, &on_ladder(CONFIG)).await;
    publish_raw(&raw, "roundelay.delay.200ms", "side", headers([]), br#"{"v":1,"kind":"new","key":"a"}"#).await;
    publish_raw(&raw, "roundelay.jobs", "work", deaths(100, 1), &job("b")).await;
    quarantined(&engine, 2).await;
    engine.stop().await;

    // The cause is mended; the messages go back as they are, headers included.
    let mended = format!("{CONFIG}\n[kinds.new]");
    let mut engine = Watched::start(&ground, &mended).await;
    while let Some(message) = get(&raw, "roundelay.quarantine").await {
        let from = text(&message.properties, "roundelay-from");
        publish_raw(&raw, "roundelay.jobs", &from, message.properties.clone(), &message.data).await;
        message.acker.ack(BasicAckOptions::default()).await.unwrap();
    }
    let mut ran = BTreeSet::new();
    for _ in 0..2 {
        let run = engine.next().await;
        ran.insert((run.job.key.clone(), run.job.queue.clone()));
        run.end(Outcome::Done);
    }
    assert_eq!(ran, [("a", "side"), ("b", "work")].map(|(key, queue)| (key.to_owned(), queue.to_owned())).into());
    until("both are done", || async { engine.telemetry.get(Count::Done) == 2 }).await;
    assert_eq!(engine.telemetry.get(Count::Quarantined), 0);
    engine.stop().await;
    assert_eq!(set_aside(&ground).await, []);
}

/// The client library reads headers by recursion, on a stack of its own: a few kilobytes of a
/// message could end every worker that gets it, one after the other. So the library never sees them.
#[tokio::test]
async fn headers_nested_however_deep_end_no_worker() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let text = r#"
[queues.work]
[kinds.sync]
queue = "work"
handler.exec = { argv = ["/bin/true"] }
"#;
    let topology = ground.config(text).topology();
    let broker = vhost.connect("roundelay").await;
    broker.apply(&topology).await.unwrap();
    // A frame has room for not many more. As text, since nesting is no easy thing here either.
    const DEEP: usize = 20_000;
    let deep = format!("{}true{}", "[".repeat(DEEP), "]".repeat(DEEP));
    let body = r#"{\"v\":1,\"kind\":\"sync\",\"key\":\"deep\"}"#;
    let message = format!(
        r#"{{"routing_key":"work","payload":"{body}","payload_encoding":"string",
             "properties":{{"delivery_mode":2,"headers":{{"deep":{deep}}}}}}}"#
    );
    let url = format!("{}/api/exchanges/{}/roundelay.jobs/publish", vhost.management, vhost.name);
    let answer = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(url)
        .body(message)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(answer, r#"{"routed":true}"#);

    let mut worker = worker(&ground.config_file(text));
    let quarantine = topology.names.quarantine();
    until("the message is set aside", || {
        let ended = worker.try_wait().unwrap();
        let depth = broker.depth(&quarantine);
        async move {
            assert_eq!(ended, None, "the worker ended");
            depth.await.unwrap().ready == 1
        }
    })
    .await;
    worker.kill().await.unwrap();
}
