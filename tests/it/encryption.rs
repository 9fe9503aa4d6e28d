//! Payloads that lie sealed in the ledger and in queues: handlers read them, keys change, and what
//! does not open waits for its key.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lapin::options::BasicGetOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use roundelay::broker::{Destination, Message};
use roundelay::engine::enroll::{Enroller, Entity, Tally};
use roundelay::engine::publish::Publication;
use roundelay::engine::replay::{Again, keep_again, send_again};
use roundelay::failure::FailedItem;
use roundelay::job::{Job, MAX_PAYLOAD};
use roundelay::ledger::{AttemptRecord, TextColumn, TextReplacement};
use roundelay::outcome::{Discovered, NewJob, Yield};
use roundelay::telemetry::Count;
use roundelay::{Config, Outcome};
use serde_json::{Value, json};

use crate::commands::{refused, run, told};
use crate::harness::{Ground, Watched, on_all, until, worker};

/// In every payload, and nowhere else.
const CANARY: &str = "canary-in-a-cage";
/// In every key of an entity, so that a search for the canary can be shown to look in the right places.
const NAME: &str = "robin";

const KINDS: &str = r#"
[queues.work]
[kinds.sync]
every = "1h"
queue = "work"
retry = { attempts = 3, backoff = ["50ms"] }
[kinds.found]
every = "12h"
queue = "work"
"#;

on_all!(stored_payloads_are_sealed_and_handlers_read_them);
on_all!(a_payload_without_its_key_waits_and_loses_no_attempt);
on_all!(keys_change_under_workers_that_run);
on_all!(unusable_messages_lie_sealed_and_are_sent_again);
on_all!(a_payload_that_only_looks_sealed_is_data);
on_all!(a_key_that_comes_later_is_read_on_sighup);
on_all!(plain_payloads_are_refused_where_they_must_be_sealed);

fn key(byte: u8) -> String {
    STANDARD.encode([byte; 64])
}

/// A configuration with these keys, of which the one that is named seals.
fn text(seal: &str, keys: &[(&str, u8)]) -> String {
    let keys: Vec<String> = keys.iter().map(|(name, byte)| format!("{name} = \"{}\"", key(*byte))).collect();
    format!("[encryption]\nseal = \"{seal}\"\nkeys = {{ {} }}\n{KINDS}", keys.join(", "))
}

fn payload(of: &str) -> Value {
    json!({ "of": of, "secret": CANARY })
}

/// Begins a chain that is due at once; answers what became of it.
async fn enroll(engine: &Watched, name: &str) -> Tally {
    enroll_with(&engine.config, engine, name, &payload(name)).await
}

async fn enroll_with(config: &Config, engine: &Watched, name: &str, payload: &Value) -> Tally {
    let connections = engine.connections.clone();
    let mut enroller = Enroller::new(config, connections, "sync", Some(Duration::ZERO), true).unwrap();
    enroller.enroll(vec![Entity::new(name, "work", payload.to_string())]).await.unwrap()
}

async fn publish(engine: &Watched, name: &str, payload: Value, delay: Option<Duration>) {
    let publication = Publication {
        kind: "sync".into(),
        key: name.into(),
        payload,
        delay,
        queue: None,
        owner: None,
        id: format!("id-{name}"),
    };
    publication.check(&engine.config).unwrap().send(&engine.config, &engine.connections).await.unwrap();
}

/// Publishes a message as another program does.
async fn foreign(engine: &Watched, body: Vec<u8>) {
    let message = Message { to: Destination::Queue("work".into()), id: String::new(), body: body.into(), trace: None };
    engine.broker().publish(message).await.unwrap();
}

/// All bytes of the ledger: of its file and the log beside it, or of all rows of all tables.
async fn in_the_ledger(ground: &Ground) -> Vec<u8> {
    let Some(schema) = &ground.schema else {
        let mut all = std::fs::read(ground.path("ledger.db")).unwrap();
        all.extend(std::fs::read(ground.path("ledger.db-wal")).unwrap_or_default());
        return all;
    };
    let raw = schema.raw().await;
    let tables =
        raw.query("SELECT tablename::text FROM pg_tables WHERE schemaname = $1", &[&schema.name]).await.unwrap();
    let mut all = Vec::new();
    for table in tables {
        let table: String = table.get(0);
        for row in raw.query(&format!("SELECT t::text FROM {table} t"), &[]).await.unwrap() {
            all.extend(row.get::<_, String>(0).into_bytes());
        }
    }
    all
}

/// The bodies and headers of all messages on RabbitMQ.
async fn in_queues(ground: &Ground) -> Vec<u8> {
    let Some(vhost) = &ground.vhost else { return NAME.into() };
    let queues = vhost.call(Method::GET, &format!("queues/{}", vhost.name), Value::Null).await;
    let raw = vhost.raw().await;
    let mut all = Vec::new();
    for queue in queues.as_array().unwrap() {
        let name = queue["name"].as_str().unwrap();
        while let Some(message) = raw.basic_get(name.into(), BasicGetOptions::default()).await.unwrap() {
            all.extend(message.delivery.data.clone());
            all.extend(format!("{:?}", message.delivery.properties).into_bytes());
        }
    }
    // Unsettled, they go back.
    raw.close(200, "looked".into()).await.unwrap();
    all
}

fn has(all: &[u8], word: &str) -> bool {
    let hex: String = word.bytes().map(|byte| format!("{byte:02x}")).collect();
    // Of base64 what does not depend on what is beside it.
    let coded = [0, 1, 2].map(|before| {
        let whole = STANDARD.encode(format!("{}{word}", "x".repeat(before)));
        whole[4..whole.len() - 4].to_owned()
    });
    [word.to_owned(), hex].into_iter().chain(coded).any(|form| shows(all, &form))
}

fn shows(all: &[u8], word: &str) -> bool {
    assert!(word.len() >= 5, "{word} is anywhere");
    all.windows(word.len()).any(|window| window == word.as_bytes())
}

async fn lies_sealed(ground: &Ground) {
    for (place, all) in [("the ledger", in_the_ledger(ground).await), ("queues", in_queues(ground).await)] {
        assert!(shows(&all, NAME), "{place}: this looked in the wrong place");
        assert!(!has(&all, CANARY), "{place}: a payload is readable");
    }
}

/// What `roundelay encryption` counts, by place and key.
async fn counted(config: &std::path::Path, more: &[&str]) -> (Vec<(String, Option<String>, u64)>, Value) {
    let report = told("encryption", config, more).await;
    let texts = report["texts"].as_array().unwrap().iter().map(|of| {
        assert_eq!(of["unopened"], 0, "{report}");
        let key = of["key"].as_str().map(Into::into);
        (of["where"].as_str().unwrap().to_owned(), key, of["texts"].as_u64().unwrap())
    });
    (texts.collect(), report)
}

/// How many texts do not open. On the embedded broker, one-off jobs are in the ledger.
fn unopened(report: &Value) -> u64 {
    report["texts"].as_array().unwrap().iter().filter_map(|of| of["unopened"].as_u64()).sum()
}

fn signal(child: &tokio::process::Child, signal: Signal) {
    kill(Pid::from_raw(child.id().unwrap().cast_signed()), signal).unwrap();
}

/// Checks what a handler has got, and its tick or job.
#[track_caller]
fn got(job: &Job, name: &str, attempt: u32) {
    assert_eq!((job.key.as_str(), job.attempt, &job.payload), (name, attempt, &payload(name)));
}

mod run {
    use super::*;

    pub async fn stored_payloads_are_sealed_and_handlers_read_them(ground: Ground) {
        let mut engine = Watched::start(&ground, &text("k1", &[("k1", 1)])).await;
        assert_eq!(enroll(&engine, "robin-chain").await.created, 1);
        assert_eq!(enroll(&engine, "robin-chain").await.unchanged, 1, "the same text is the same");
        let first = engine.next().await;
        got(&first.job, "robin-chain", 1);
        let hour = Duration::from_secs(3_600);
        let asked = |name: &str| NewJob {
            kind: "sync".into(),
            key: name.into(),
            payload: payload(name),
            delay: hour,
            ..NewJob::default()
        };
        let found = Discovered {
            kind: "found".into(),
            key: "robin-found".into(),
            payload: payload("robin-found"),
            ..Discovered::default()
        };
        first.end(Outcome::DoneWith(Yield {
            jobs: vec![asked("robin-asked")],
            chains: vec![found],
            carry: Some(payload("carry")),
            ..Yield::default()
        }));
        publish(&engine, "robin-once", payload("robin-once"), None).await;
        let once = engine.next().await;
        got(&once.job, "robin-once", 1);
        once.end(Outcome::retry("again"));
        let again = engine.next().await;
        got(&again.job, "robin-once", 2);
        again.end(Outcome::Done);
        publish(&engine, "robin-later", payload("robin-later"), Some(hour)).await;
        // Another program's message arrives plain, before its time, and the engine postpones it.
        let due = engine.ledger().now() + hour;
        let body = json!({ "v": 1, "kind": "sync", "key": "robin-foreign", "payload": payload("x"), "due": due });
        foreign(&engine, body.to_string().into_bytes()).await;
        until("it was put off", || async { engine.telemetry.get(Count::Rearmed) >= 1 }).await;
        // The interval is an hour, so the test brings the next tick forward and sends its message.
        engine.ledger().advance("sync".into(), "robin-chain".into(), hour).await.unwrap();
        let hint = engine.ledger().chains("sync".into(), "robin-chain".into()).await.unwrap().remove(0).hint;
        foreign(&engine, hint.envelope(engine.ledger().id()).encode()).await;
        let second = engine.next().await;
        got(&second.job, "robin-chain", 1);
        assert_eq!(second.job.carry, payload("carry"), "it was handed on");
        // A batch, too: its members are chains.
        let member = |name: &str| NewJob { delay: Duration::ZERO, ..asked(name) };
        second.end(Outcome::DoneWith(Yield { batch: vec![member("robin-member")], ..Yield::default() }));
        let member = engine.next().await;
        got(&member.job, "robin-member", 1);
        lies_sealed(&ground).await;
        member.end(Outcome::Done);
        // A person with the keys sees the payload.
        let config = ground.config_file(&text("k1", &[("k1", 1)]));
        let shown = told("show", &config, &["sync", "robin-chain"]).await;
        assert_eq!(shown["chain"]["payload"], payload("robin-chain"));
        assert_eq!((&shown["chain"]["carry"], &shown["chain"]["sealed"]), (&payload("carry"), &Value::Null));
        engine.stop().await;
        lies_sealed(&ground).await;
    }

    pub async fn a_payload_without_its_key_waits_and_loses_no_attempt(ground: Ground) {
        // By others, so that nothing runs before it should not.
        let config = ground.config_file(&text("k1", &[("k1", 1)]));
        let roster = ground.path("roster.ndjson");
        let row = |name: &str| json!({ "key": name, "secret": CANARY });
        std::fs::write(&roster, row("robin").to_string()).unwrap();
        told("enroll", &config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await;
        told("publish", &config, &["found", "job", "--payload", &row("job").to_string()]).await;

        let mut without = Watched::start(&ground, &text("", &[])).await;
        let attempts = async |engine: &Watched| {
            let fence = engine.ledger().chains("sync".into(), "robin".into()).await.unwrap()[0].fence;
            engine.ledger().history(fence, 10).await.unwrap()
        };
        until("the tick was put off twice", || async {
            let why = |reason: &Option<String>| reason.as_ref().is_some_and(|reason| reason.contains("the key `k1`"));
            let put_off = |it: &&AttemptRecord| it.verdict.as_deref() == Some("snoozed") && why(&it.reason);
            attempts(&without).await.iter().filter(put_off).count() >= 2
        })
        .await;
        until("the job was put off twice", || async {
            let lines = without.telemetry.render();
            let of_job = |line: &&str| line.contains("kind=\"found\"") && line.contains("reason=\"sealed\"");
            let count = lines.lines().find(of_job).and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            count.is_some_and(|count| count >= 2)
        })
        .await;
        // Other jobs do not wait for the sealed ones.
        assert_eq!(enroll(&without, "plain").await.created, 1);
        let plain = without.next().await;
        got(&plain.job, "plain", 1);
        plain.end(Outcome::Done);
        let config = ground.config_file(&text("", &[]));
        let shown = told("show", &config, &["sync", "robin"]).await["chain"].clone();
        let why = shown["why"].as_str().unwrap();
        assert!(why.contains("its payload is sealed with the key `k1`, which is not under encryption.keys"), "{why}");
        assert_eq!((&shown["payload"], shown["attempt"].as_u64()), (&Value::Null, Some(1)));
        let stock = run("encryption", &config, &["--json"]).await;
        assert_eq!(
            (stock.code, unopened(&stock.json())),
            (Some(1), 1 + u64::from(ground.vhost.is_none())),
            "{stock:?}"
        );
        let doctor = run("doctor", &config, &["--json"]).await.json();
        let found = doctor["findings"].as_array().unwrap().iter().find(|it| it["what"] == "encryption").unwrap();
        assert_eq!(found["result"], "bad", "{found}");
        without.stop().await;

        // Another key of the same name is as good as none, and harms as little.
        let wrong = Watched::start(&ground, &text("k1", &[("k1", 9)])).await;
        until("it was put off by this one", || async {
            let last = attempts(&wrong).await.remove(0);
            last.reason.is_some_and(|reason| reason.contains("does not open it"))
        })
        .await;
        wrong.stop().await;

        let mut with = Watched::start(&ground, &text("", &[("k1", 1)])).await;
        let mut ran = Vec::new();
        for _ in 0..2 {
            let run = with.next().await;
            assert_eq!((&run.job.payload, run.job.attempt), (&row(&run.job.key), 1));
            ran.push(run.job.key.clone());
            run.end(Outcome::Done);
        }
        ran.sort();
        assert_eq!(ran, ["job", "robin"]);
        with.stop().await;
    }

    pub async fn keys_change_under_workers_that_run(ground: Ground) {
        let engine = Watched::start(&ground, &text("", &[])).await;
        enroll(&engine, "robin").await;
        engine.stop_with(|run| run.end(Outcome::Snooze { reason: "later".into(), wait: Duration::ZERO })).await;
        // Step by step, as it is turned on: keys, then the seal, then what lies there already.
        let only = ground.config_file(&text("", &[("k1", 1)]));
        let plain = |count| vec![("payloads".to_owned(), None, count)];
        let in_key = |name: &str, count| vec![("payloads".to_owned(), Some(name.to_owned()), count)];
        assert_eq!(counted(&only, &[]).await.0, plain(1));
        let refused = run("encryption", &only, &["--reseal"]).await;
        assert!(refused.code == Some(1) && refused.stderr.contains("names no key to seal with"), "{refused:?}");
        let mut engine = Watched::start(&ground, &text("k1", &[("k1", 1)])).await;
        let tick = engine.next().await;
        got(&tick.job, "robin", 1);
        assert_eq!(enroll(&engine, "robin").await.unchanged, 1, "plain or sealed, it says the same");
        let sealed = ground.config_file(&text("k1", &[("k1", 1)]));
        assert_eq!(counted(&sealed, &[]).await.0, plain(1));
        let (after, report) = counted(&sealed, &["--reseal"]).await;
        assert_eq!((after, &report["written"]), (in_key("k1", 1), &json!(1)));
        assert_eq!(counted(&sealed, &["--reseal"]).await.1["written"], 0);
        // What was taken before goes on, and what it hands on is sealed.
        let yields = Yield { carry: Some(payload("carry")), ..Yield::default() };
        tick.end(Outcome::DoneWith(yields));
        until("it has ended", || async {
            engine.ledger().chains("sync".into(), "robin".into()).await.unwrap()[0].carry.is_some()
        })
        .await;
        engine.stop().await;

        // The next key: new texts have it, and old ones when they are sealed anew.
        let both = [("k1", 1), ("k2", 2)];
        let engine = Watched::start(&ground, &text("k2", &both)).await;
        assert_eq!(enroll(&engine, "robin").await.unchanged, 1);
        let other = json!({ "other": CANARY });
        assert_eq!(enroll_with(&engine.config, &engine, "robin", &other).await.updated, 1);
        assert_eq!(enroll_with(&engine.config, &engine, "robin", &payload("robin")).await.updated, 1);
        let config = ground.config_file(&text("k2", &both));
        let mut expected = in_key("k2", 1);
        expected.push(("carries".into(), Some("k1".into()), 1));
        assert_eq!(counted(&config, &[]).await.0, expected);
        // A text that was changed in the meantime is not replaced.
        let text_now = engine.ledger().stored_texts(TextColumn::Payloads, 0, 10).await.unwrap().remove(0);
        let change = |was: Vec<u8>| vec![TextReplacement { number: text_now.number, was, now: b"1".to_vec() }];
        for shelf in TextColumn::ALL {
            let done = engine.ledger().replace_texts(shelf, change(b"something else".to_vec())).await.unwrap();
            assert_eq!(done, [false], "{shelf:?}");
        }
        assert_eq!(engine.ledger().stored_texts(TextColumn::Payloads, 0, 10).await.unwrap(), [text_now]);
        expected[1].1 = Some("k2".into());
        assert_eq!(counted(&config, &["--reseal"]).await.0, expected);
        engine.stop().await;
        lies_sealed_in_rows(&ground).await;

        // Without the first key everything goes on.
        let mut engine = Watched::start(&ground, &text("k2", &[("k2", 2)])).await;
        engine.ledger().advance("sync".into(), "robin".into(), Duration::from_secs(1)).await.unwrap();
        let hint = engine.ledger().chains("sync".into(), "robin".into()).await.unwrap().remove(0).hint;
        foreign(&engine, hint.envelope(engine.ledger().id()).encode()).await;
        let run = engine.next().await;
        got(&run.job, "robin", 1);
        assert_eq!(run.job.carry, payload("carry"));
        run.end(Outcome::Done);
        engine.stop().await;
        // And off again.
        let refused = super::run("encryption", &config, &["--unseal"]).await;
        assert!(refused.code == Some(1) && refused.stderr.contains("workers would seal it again"), "{refused:?}");
        let off = ground.config_file(&text("", &[("k2", 2)]));
        let mut expected = plain(1);
        expected.push(("carries".into(), None, 1));
        assert_eq!(counted(&off, &["--unseal"]).await.0, expected);
        let engine = Watched::start(&ground, &text("", &[])).await;
        assert_eq!(enroll(&engine, "robin").await.unchanged, 1);
        engine.stop().await;
    }

    /// Where something was plain before, files still have it in pages that are free by now.
    async fn lies_sealed_in_rows(ground: &Ground) {
        if ground.schema.is_some() {
            assert!(!has(&in_the_ledger(ground).await, CANARY));
            return;
        }
        let ledger = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
        let rows = "SELECT count(*) FROM chains WHERE instr(payload || coalesce(carry, ''), ?1) > 0";
        assert_eq!(ledger.query_row(rows, [CANARY], |row| row.get::<_, i64>(0)).unwrap(), 0);
    }

    pub async fn unusable_messages_lie_sealed_and_are_sent_again(ground: Ground) {
        let keys = [("k1", 1)];
        let engine = Watched::start(&ground, &text("k1", &keys)).await;
        let job = json!({ "v": 1, "kind": "late", "key": "robin", "id": "its-own", "payload": payload("robin") });
        foreign(&engine, job.to_string().into_bytes()).await;
        foreign(&engine, format!("robin is no JSON, {CANARY}").into_bytes()).await;
        foreign(&engine, json!({ "v": CANARY, "kind": "sync", "key": "x" }).to_string().into_bytes()).await;
        until("they are set aside", || async { engine.telemetry.get(Count::Quarantined) == 3 }).await;
        until("they lie there", || async {
            let kept = engine.ledger().quarantined(None, 10).await.unwrap().len() as u64;
            let ready = engine.broker().depth("roundelay.quarantine").await.map_or(0, |depth| depth.ready);
            kept + ready == 3
        })
        .await;
        engine.stop().await;
        let all = if ground.vhost.is_some() { in_queues(&ground).await } else { in_the_ledger(&ground).await };
        assert!(shows(&all, "its-own") && !has(&all, CANARY));

        let with_kind = format!("{}[kinds.late]\nqueue = \"work\"\n", text("k1", &keys));
        let mut engine = Watched::start(&ground, &with_kind).await;
        let (config, connections) = (engine.config.clone(), engine.connections.clone());
        let mut sent = Vec::new();
        for shelved in connections.broker.peek("roundelay.quarantine", 10).await.unwrap() {
            let again = send_again(&config, &connections, &shelved).await;
            if again == Again::Sent {
                shelved.forget().await
            } else {
                shelved.put_back().await
            }
            sent.push(again);
        }
        for message in engine.ledger().quarantined(None, 10).await.unwrap() {
            sent.push(keep_again(&config, &connections, message).await);
        }
        assert!(sent.len() == 3 && sent.contains(&Again::Sent), "{sent:?}");
        let run = engine.next().await;
        got(&run.job, "robin", 1);
        assert_eq!(run.job.id, "its-own");
        run.end(Outcome::Done);
        // What still cannot be used comes back, or has stayed, sealed as before.
        until("the others lie there again", || async {
            let kept = engine.ledger().quarantined(None, 10).await.unwrap().len() as u64;
            let ready = engine.broker().depth("roundelay.quarantine").await.map_or(0, |depth| depth.ready);
            kept + ready == 2
        })
        .await;
        engine.stop().await;
        let all = if ground.vhost.is_some() { in_queues(&ground).await } else { in_the_ledger(&ground).await };
        assert!(!has(&all, CANARY));
    }

    pub async fn a_payload_that_only_looks_sealed_is_data(ground: Ground) {
        let mut engine = Watched::start(&ground, &text("k1", &[("k1", 1)])).await;
        let alike = [
            json!("sealed:1:k1:AAAA"),
            json!({ "sealed": { "text": "sealed:1:k1:AAAA" } }),
            json!({ "$sealed": ["k1", "AAAA"] }),
            // The largest payload is longer when it is sealed. It still fits, also when it is retried.
            json!("x".repeat(MAX_PAYLOAD - 2)),
        ];
        for (n, payload) in alike.iter().enumerate() {
            let name = format!("alike-{n}");
            publish(&engine, &name, payload.clone(), None).await;
            for attempt in 1..=2 {
                let run = engine.next().await;
                assert_eq!((&run.job.key, run.job.attempt), (&name, attempt));
                assert!(run.job.payload == *payload, "the payload of {name} is another");
                run.end(if attempt == 1 { Outcome::retry("again") } else { Outcome::Done });
            }
        }
        // A forged payload waits, as if its key were missing, and delays no other job.
        let forged =
            json!({ "v": 1, "kind": "sync", "key": "forged", "id": "f", "sealed": { "text": "sealed:1:k1:AAAA" } });
        foreign(&engine, forged.to_string().into_bytes()).await;
        until("it was put off", || async { engine.telemetry.render().contains("reason=\"sealed\"") }).await;
        publish(&engine, "good", payload("good"), None).await;
        let run = engine.next().await;
        got(&run.job, "good", 1);
        run.end(Outcome::Done);
        engine.stop().await;
    }

    pub async fn plain_payloads_are_refused_where_they_must_be_sealed(ground: Ground) {
        let before = Watched::start(&ground, &text("", &[])).await;
        for name in ["robin", "robin-again"] {
            enroll(&before, name).await;
        }
        before.stop_with(|run| run.end(Outcome::Snooze { reason: "later".into(), wait: Duration::ZERO })).await;
        let keys = [("k1", 1)];
        let mut engine = Watched::start(&ground, &text("require", &keys)).await;
        let config = ground.config_file(&text("require", &keys));
        // A plain payload in the ledger might come from any client, so it waits.
        let why = async |name: &str| told("show", &config, &["sync", name]).await["chain"]["why"].to_string();
        until("both are put off", || async {
            let both = [why("robin").await, why("robin-again").await];
            both.iter().all(|why| why.contains("its payload is in the clear, and encryption.seal requires"))
        })
        .await;
        let stock = run("encryption", &config, &["--json"]).await;
        assert_eq!((stock.code, unopened(&stock.json())), (Some(1), 2), "{stock:?}");
        assert!(stock.stderr.contains("--reseal"), "{stock:?}");
        let doctor = run("doctor", &config, &["--json"]).await.json();
        let found = doctor["findings"].as_array().unwrap().iter().find(|it| it["what"] == "encryption").unwrap();
        assert!(found["result"] == "bad" && found["fix"].to_string().contains("--reseal"), "{found}");
        // A job with a plain payload from another program is quarantined, whole; a job without a payload is accepted.
        for name in ["job-1", "job-2"] {
            let job = json!({ "v": 1, "kind": "sync", "key": name, "id": name, "payload": payload(name) });
            foreign(&engine, job.to_string().into_bytes()).await;
        }
        let order = json!({ "v": 1, "kind": "sync", "key": "ordered", "payload": payload("x"), "enroll": {} });
        foreign(&engine, order.to_string().into_bytes()).await;
        until("they are set aside", || async { engine.telemetry.get(Count::Quarantined) == 3 }).await;
        foreign(&engine, json!({ "v": 1, "kind": "found", "key": "nothing" }).to_string().into_bytes()).await;
        publish(&engine, "robin-once", payload("robin-once"), None).await;
        let mut came = Vec::new();
        for _ in 0..2 {
            let run = engine.next().await;
            came.push((run.job.key.clone(), run.job.payload.clone(), run.job.attempt));
            run.end(Outcome::Done);
        }
        came.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [("nothing".into(), Value::Null, 1), ("robin-once".into(), payload("robin-once"), 1)];
        assert_eq!(came, expected);
        // An enrolment with a key replaces the payload.
        assert_eq!(enroll(&engine, "robin-again").await.updated, 1);
        let again = engine.next().await;
        got(&again.job, "robin-again", 1);
        again.end(Outcome::Done);
        // Or an operator takes what is there for good.
        told("encryption", &config, &["--reseal"]).await;
        let robin = engine.next().await;
        got(&robin.job, "robin", 1);
        robin.end(Outcome::Done);
        engine.stop().await;
        lies_sealed_in_rows(&ground).await;
    }

    pub async fn a_key_that_comes_later_is_read_on_sighup(ground: Ground) {
        let runs = ground.path("runs");
        let with = |keys: &[(&str, u8)]| {
            let run = format!("handler.exec.argv = [\"/bin/sh\", \"-c\", 'cat >> {}']\n", runs.display());
            let sync = format!("[kinds.sync]\n{run}");
            let found = format!("[kinds.found]\n{run}");
            let seal = keys.first().map_or("", |(name, _)| name);
            text(seal, keys).replace("[kinds.sync]\n", &sync).replace("[kinds.found]\n", &found)
        };
        let config = ground.config_file(&with(&[("k1", 1)]));
        let roster = ground.path("roster.ndjson");
        std::fs::write(&roster, json!({ "key": "robin", "secret": CANARY }).to_string()).unwrap();
        let file = roster.to_str().unwrap();
        told("enroll", &config, &["--kind", "sync", "--spread", "0s", file]).await;
        ground.config_file(&with(&[]));
        let mut worker = worker(&config);
        until("it waits for its key", || async {
            let why = told("show", &config, &["sync", "robin"]).await["chain"]["attempts"][0]["reason"].clone();
            why.as_str().is_some_and(|why| why.contains("the key `k1`"))
        })
        .await;
        ground.config_file(&with(&[("k1", 1)]));
        signal(&worker, Signal::SIGHUP);
        until("it runs", || async { std::fs::read_to_string(&runs).is_ok_and(|text| text.contains(CANARY)) }).await;

        // While workers seal, `enroll` refuses to write payloads in the clear, with keys or without.
        for keys in [&[("k1", 1)][..], &[]] {
            ground.config_file(&text("", keys));
            until("it is noted that workers seal", || async {
                let enrolled = run("enroll", &config, &["--kind", "sync", file]).await;
                enrolled.code == Some(1) && enrolled.stderr.contains("names no key to seal with")
            })
            .await;
        }
        let other = ground.path("other.ndjson");
        std::fs::write(&other, json!({ "key": "wren", "secret": CANARY }).to_string()).unwrap();
        let others = ["--kind", "sync", other.to_str().unwrap()];
        refused(
            "enroll",
            &config,
            &others,
            &["the workers of this ledger seal payloads", "Nothing of this batch was enrolled"],
        )
        .await;
        ground.config_file(&with(&[("k1", 1)]));
        assert_eq!(told("enroll", &config, &others).await["created"], 1);
        // It is turned off.
        ground.config_file(&text("", &[("k1", 1)]));
        signal(&worker, Signal::SIGHUP);
        until("it is noted that they seal no more", || async { run("enroll", &config, &others).await.code == Some(0) })
            .await;
        signal(&worker, Signal::SIGTERM);
        assert!(worker.wait().await.unwrap().success());
    }
}

#[tokio::test]
async fn parts_that_failed_are_fed_back_with_what_their_chain_has() {
    let ground = Ground::embedded();
    let text = text("k1", &[("k1", 1)]).replace("[kinds.sync]\n", "[kinds.sync]\nreconcile.every = \"1s\"\n");
    let mut engine = Watched::attended(&ground, &text).await;
    enroll(&engine, "robin").await;
    let run = engine.next().await;
    let part = FailedItem::new("part-1", "no luck");
    run.end(Outcome::DoneWith(Yield { failed: vec![part], ..Yield::default() }));
    let fed = engine.next().await;
    assert_eq!(fed.job.payload, json!({ "of": "robin", "secret": CANARY, "item": "part-1" }));
    lies_sealed(&ground).await;
    fed.end(Outcome::Done);
    engine.stop().await;
}
