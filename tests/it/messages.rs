//! The message format against its schema, and what becomes of messages that cannot be used.

use std::collections::BTreeSet;
use std::time::Duration;

use jsonschema::Validator;
use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use proptest::prelude::*;
use roundelay::Outcome;
use roundelay::broker::{Destination, Message};
use roundelay::clock::Time;
use roundelay::job::{ChainRef, Envelope, MAX_BYTES};
use roundelay::ledger::Hint;
use roundelay::telemetry::Count;
use serde_json::{Value, json};

use crate::harness::{Ground, Watched, until};

const CONFIG: &str = r#"
[queues.work]
[queues.side]
[kinds.sync]
every = "1h"
queue = "work"
"#;

// ---- The schema ----

fn schema() -> Validator {
    let text = include_str!("../../docs/message.schema.json");
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
}

#[test]
fn schema_and_decoder_agree_on_a_table() {
    let schema = schema();
    let base = json!({ "v": 1, "kind": "k", "key": "x" });
    let with = |field: &str, value: Value| {
        let mut envelope = base.clone();
        envelope[field] = value;
        envelope
    };
    let without = |field: &str| {
        let mut envelope = base.clone();
        envelope.as_object_mut().unwrap().remove(field);
        envelope
    };
    let chain = |epoch: i64, tick: i64| json!({ "ledger": "l", "epoch": epoch, "tick": tick });
    let good = [
        base.clone(),
        with("payload", json!([1, { "a": null }])),
        with("queue", json!("q")),
        with("queue", json!(null)),
        with("due", json!(1_790_000_000_000i64)),
        with("due", json!(-1)),
        with("attempt", json!(u32::MAX)),
        with("id", json!("order-77")),
        with("chain", chain(1, i64::MAX)),
        with("chain", json!(null)),
        with("key", json!("x".repeat(512))),
        with("key", json!("π/@types/Node.js \u{1f980}")),
    ];
    let bad = [
        json!([]),
        json!("text"),
        without("v"),
        without("kind"),
        without("key"),
        with("v", json!(2)),
        with("v", json!("1")),
        with("kind", json!("")),
        with("key", json!(7)),
        with("key", json!("x".repeat(513))),
        with("key", json!("a\u{0}b")),
        with("id", json!("a\u{85}b")),
        with("queue", json!("")),
        with("due", json!("tomorrow")),
        with("due", json!(1.5)),
        with("attempt", json!(0)),
        with("attempt", json!(null)),
        with("attempt", json!(u64::from(u32::MAX) + 1)),
        with("chain", chain(0, 1)),
        with("chain", chain(1, 0)),
        with("chain", json!({ "ledger": "l", "epoch": 1 })),
        with("chain", json!({ "ledger": "l", "epoch": 1, "tick": 1, "tock": 1 })),
        with("paylod", json!({})),
    ];
    for (envelopes, expected) in [(&good[..], true), (&bad[..], false)] {
        for envelope in envelopes {
            let decoded = Envelope::decode(envelope.to_string().as_bytes());
            assert_eq!(decoded.is_ok(), expected, "{envelope}: {decoded:?}");
            assert_eq!(schema.is_valid(envelope), expected, "{envelope}");
        }
    }
}

prop_compose! {
    fn envelopes()(
        names in prop::collection::vec("\\PC{1,40}", 4),
        has in prop::collection::vec(any::<bool>(), 4),
        due in any::<i64>(),
        attempt in 1u32..,
        (epoch, tick) in (1i64.., 1i64..),
    ) -> Envelope {
        let [kind, key, queue, id] = <[String; 4]>::try_from(names).unwrap();
        let mut envelope = Envelope::job(&kind, &key, json!({ "of": key }), id);
        envelope.attempt = attempt;
        envelope.queue = has[0].then_some(queue);
        envelope.due = has[1].then_some(Time::from_millis(due));
        if has[2] {
            envelope.id = None;
        }
        envelope.chain = has[3].then(|| ChainRef { ledger: kind, epoch, tick });
        envelope
    }
}

proptest! {
    #[test]
    fn whatever_is_encoded_is_valid_and_decodes_to_the_same(envelope in envelopes()) {
        let body = envelope.encode();
        prop_assert!(schema().is_valid(&serde_json::from_slice(&body).unwrap()));
        prop_assert_eq!(Envelope::decode(&body).unwrap(), envelope);
    }
}

#[test]
fn the_documented_example_is_valid() {
    let page = include_str!("../../docs/messages.md");
    let example = page.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(schema().is_valid(&serde_json::from_str(example).unwrap()));
    Envelope::decode(example.trim().as_bytes()).unwrap();
}

// ---- Messages that cannot be used ----

fn job(key: &str) -> Envelope {
    Envelope::job("sync", key, json!(null), format!("id-{key}"))
}

fn to_work(body: impl Into<Vec<u8>>) -> Message {
    Message { to: Destination::Queue("work".into()), id: "test".into(), body: body.into().into() }
}

/// What is in quarantine: reason, queue, body.
async fn quarantined(ground: &Ground, count: usize) -> Vec<(String, String, Vec<u8>)> {
    let Some(vhost) = &ground.vhost else {
        let ledger = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
        let mut select = ledger.prepare("SELECT reason, source, body FROM quarantine ORDER BY number").unwrap();
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        return rows.map(Result::unwrap).collect();
    };
    let channel = vhost.raw().await;
    let mut found = Vec::new();
    until("the quarantine has them all", || async { depth(&channel).await as usize == count }).await;
    while let Some(message) =
        channel.basic_get("roundelay.quarantine".into(), BasicGetOptions { no_ack: true }).await.unwrap()
    {
        let headers = message.properties.headers().clone().unwrap_or_default();
        let text = |name: &str| match headers.inner().get(name) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            other => panic!("{name} is {other:?}"),
        };
        found.push((text("roundelay-reason"), text("roundelay-from"), message.delivery.data.to_vec()));
    }
    found
}

async fn depth(channel: &Channel) -> u32 {
    let passive = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
    let queue = channel.queue_declare("roundelay.quarantine".into(), passive, FieldTable::default()).await.unwrap();
    queue.message_count()
}

async fn each_is_kept_with_its_reason(ground: Ground) {
    let mut engine = Watched::start(&ground, CONFIG).await;
    let ledger = engine.ledger().id().to_owned();
    let hint = |ledger: &str, epoch, tick| {
        let hint = Hint {
            kind: "sync".into(),
            key: "x".into(),
            queue: "work".into(),
            epoch,
            tick,
            attempt: 1,
            due: Time::default(),
        };
        hint.envelope(ledger).encode()
    };
    let deep = format!(r#"{{"v":1,"kind":"sync","key":"x","payload":{}{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    let huge = format!(r#"{{"v":1,"kind":"sync","key":"x","payload":"{}"}}"#, "x".repeat(MAX_BYTES));
    let elsewhere = Envelope { queue: Some("elsewhere".into()), ..job("x") };
    let bad: Vec<(Vec<u8>, &str)> = vec![
        (b"\xff\x00 neither JSON nor text".to_vec(), "not a job envelope"),
        (b"".to_vec(), "not a job envelope"),
        (b"{\"v\":1,\"kind\":\"sync\"}".to_vec(), "missing field `key`"),
        (deep.into_bytes(), "recursion limit"),
        (huge.into_bytes(), "at most 1048576 are read"),
        (b"{\"v\":7,\"kind\":\"sync\",\"key\":\"x\"}".to_vec(), "format version 7"),
        (b"{\"v\":1,\"kind\":\"sink\",\"key\":\"x\"}".to_vec(), "unknown kind `sink`"),
        (elsewhere.encode(), "unknown queue `elsewhere`"),
        (hint("another", 1, 1), "the chain belongs to ledger another"),
        (hint(&ledger, 99, 1), "epoch 99 tick 1 is ahead of the ledger"),
    ];
    // A good one after each: nothing may wait for a bad one.
    for (n, (body, _)) in bad.iter().enumerate() {
        engine.broker().publish(to_work(body.clone())).await.unwrap();
        engine.broker().publish(to_work(job(&n.to_string()).encode())).await.unwrap();
    }
    for _ in &bad {
        engine.next().await.end(Outcome::Done);
    }
    until("all are counted", || async { engine.telemetry.get(Count::Quarantined) == bad.len() as u64 }).await;
    until("all are acknowledged", || async { engine.telemetry.get(Count::Done) == bad.len() as u64 }).await;
    // They are settled at once, so in any order.
    let mut kept = quarantined(&ground, bad.len()).await;
    for (body, reason) in &bad {
        let found = kept.iter().position(|(_, _, kept)| kept == body);
        let (told, from, _) = kept.remove(found.unwrap_or_else(|| panic!("{reason}: not kept")));
        assert!(told.contains(reason), "{told}");
        assert_eq!(from, "work");
    }
    assert!(kept.is_empty());
    assert_eq!(engine.telemetry.get(Count::Started), bad.len() as u64);
    engine.stop().await;
}

#[tokio::test]
async fn each_is_kept_with_its_reason_on_rabbitmq() {
    each_is_kept_with_its_reason(Ground::rabbit().await).await;
}

#[tokio::test]
async fn each_is_kept_with_its_reason_embedded() {
    each_is_kept_with_its_reason(Ground::embedded()).await;
}

#[tokio::test]
async fn a_flood_of_bad_messages_stops_no_good_one() {
    for ground in [Ground::embedded(), Ground::rabbit().await] {
        let mut engine = Watched::start(&ground, CONFIG).await;
        let (broker, flood) = (engine.broker(), 2_000);
        let all = (0..flood).map(|n| {
            let body = if n % 40 == 0 { job(&n.to_string()).encode() } else { format!("flood {n}").into_bytes() };
            broker.publish(to_work(body))
        });
        futures_util::future::try_join_all(all).await.unwrap();
        let mut keys = BTreeSet::new();
        while keys.len() < flood / 40 {
            let run = engine.next().await;
            assert!(keys.insert(run.job.key.clone()), "{} ran twice", run.job.key);
            run.end(Outcome::Done);
        }
        let bad = flood - flood / 40;
        until("the rest is quarantined", || async { engine.telemetry.get(Count::Quarantined) == bad as u64 }).await;
        assert_eq!(quarantined(&ground, bad).await.len(), bad);
        engine.stop().await;
    }
}

/// Publishes with headers that no engine would set.
async fn with_headers(ground: &Ground, exchange: &str, queue: &str, body: Vec<u8>, headers: FieldTable) {
    let channel = ground.vhost.as_ref().unwrap().raw().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let confirm = channel.basic_publish(exchange.into(), queue.into(), options, &body, properties).await.unwrap();
    assert!(confirm.await.unwrap().is_ack());
}

fn forged_deaths(entries: usize) -> FieldTable {
    let entry = |n: usize| {
        let mut entry = FieldTable::default();
        entry.insert("queue".into(), AMQPValue::LongString(format!("queue-{n}").into()));
        entry.insert("reason".into(), AMQPValue::LongString("expired".into()));
        entry.insert("count".into(), AMQPValue::LongLongInt(1));
        AMQPValue::FieldTable(entry)
    };
    let mut headers = FieldTable::default();
    headers.insert("x-death".into(), AMQPValue::FieldArray((0..entries).map(entry).collect::<Vec<_>>().into()));
    headers
}

#[tokio::test]
async fn what_has_died_too_often_is_quarantined_and_what_has_not_runs() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, CONFIG).await;
    with_headers(&ground, "roundelay.jobs", "work", job("tired").encode(), forged_deaths(1_000)).await;
    with_headers(&ground, "roundelay.jobs", "work", job("fresh").encode(), forged_deaths(3)).await;
    let mut large = FieldTable::default();
    large.insert("trace".into(), AMQPValue::LongString("x".repeat(100_000).into()));
    with_headers(&ground, "roundelay.jobs", "work", job("labelled").encode(), large).await;
    let mut keys = BTreeSet::new();
    for _ in 0..2 {
        let run = engine.next().await;
        keys.insert(run.job.key.clone());
        run.end(Outcome::Done);
    }
    assert_eq!(keys, BTreeSet::from(["fresh".to_owned(), "labelled".to_owned()]));
    let kept = quarantined(&ground, 1).await;
    assert!(kept[0].0.starts_with("dead-lettered 1000 times"), "{}", kept[0].0);
    engine.stop().await;
}

#[tokio::test]
async fn a_quarantined_message_runs_once_its_cause_is_mended() {
    let ground = Ground::rabbit().await;
    let engine = Watched::start(&ground, CONFIG).await;
    let body = Envelope { kind: "new".into(), ..job("x") }.encode();
    engine.broker().publish(to_work(body)).await.unwrap();
    until("it is quarantined", || async { engine.telemetry.get(Count::Quarantined) == 1 }).await;
    engine.stop().await;

    let mended = format!("{CONFIG}\n[kinds.new]\nqueue = \"work\"\n");
    let mut engine = Watched::start(&ground, &mended).await;
    let (reason, from, body) = quarantined(&ground, 1).await.remove(0);
    assert!(reason.starts_with("unknown kind `new`"), "{reason}");
    let mut headers = FieldTable::default();
    headers.insert("roundelay-reason".into(), AMQPValue::LongString(reason.into()));
    headers.insert("roundelay-from".into(), AMQPValue::LongString(from.as_str().into()));
    with_headers(&ground, "roundelay.jobs", &from, body, headers).await;
    let run = engine.next().await;
    assert_eq!((run.job.kind.as_str(), run.job.key.as_str(), run.job.id.as_str()), ("new", "x", "id-x"));
    run.end(Outcome::Done);
    engine.stop().await;
}

#[tokio::test]
async fn the_rearm_queue_keeps_what_does_not_say_where_it_belongs() {
    let ground = Ground::rabbit().await;
    let engine = Watched::start(&ground, CONFIG).await;
    let message = Message::new(Destination::Queue("roundelay.rearm".into()), &job("lost"));
    engine.broker().publish(message).await.unwrap();
    let kept = quarantined(&ground, 1).await;
    assert!(kept[0].0.contains("`queue` is missing") && kept[0].1 == "roundelay.rearm", "{kept:?}");
    engine.stop().await;
}

// ---- What a publisher may say ----

#[tokio::test]
async fn what_comes_before_its_time_is_sent_back_until_then() {
    for ground in [Ground::embedded(), Ground::rabbit().await] {
        let mut engine = Watched::start(&ground, CONFIG).await;
        let due = engine.ledger().now() + Duration::from_millis(1_500);
        let early = Envelope { due: Some(due), ..job("early") };
        engine.broker().publish(to_work(early.encode())).await.unwrap();
        engine.broker().publish(to_work(job("prompt").encode())).await.unwrap();
        let prompt = engine.next().await;
        assert_eq!(prompt.job.key, "prompt", "nothing waits behind what is not due");
        prompt.end(Outcome::Done);
        let run = engine.next().await;
        assert_eq!((run.job.key.as_str(), run.job.nominal), ("early", due));
        assert!(run.at >= due, "early: {} before {due}", run.at);
        run.end(Outcome::Done);
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_job_keeps_its_id_and_counts_from_the_attempt_it_names() {
    let ground = Ground::rabbit().await;
    let config = format!("{CONFIG}retry = {{ attempts = 3, backoff = [\"10ms\"] }}\n");
    let mut engine = Watched::start(&ground, &config).await;
    // `queue` says where it belongs, but it has arrived on another one and runs there.
    let named = Envelope { attempt: 2, queue: Some("side".into()), ..job("named") };
    engine.broker().publish(to_work(named.encode())).await.unwrap();
    for attempt in [2, 3] {
        let run = engine.next().await;
        assert_eq!((run.job.id.as_str(), run.job.attempt, run.job.queue.as_str()), ("id-named", attempt, "work"));
        run.end(Outcome::retry("not yet"));
    }
    until("it has failed", || async { engine.telemetry.get(Count::Failed) == 1 }).await;

    let nameless = Envelope { id: None, ..job("nameless") };
    engine.broker().publish(to_work(nameless.encode())).await.unwrap();
    let first = engine.next().await;
    let id = first.job.id.clone();
    assert!(!id.is_empty());
    first.end(Outcome::retry("again"));
    let second = engine.next().await;
    assert_eq!((&second.job.id, second.job.attempt), (&id, 2), "the id that the worker made is kept");
    second.end(Outcome::Done);
    engine.stop().await;
}
