//! Programs begin and end chains, by message and over the API.

use std::time::Duration;

use reqwest::Method;
use roundelay::Outcome;
use roundelay::broker::{Broker, Destination, Message};
use roundelay::ids::{Epoch, TickNo};
use roundelay::ledger::{ChainState, ChainView, Ledger};
use roundelay::outcome::{NewJob, Yield};
use roundelay::telemetry::Count;
use serde_json::{Value, json};

use crate::harness::{Ground, Watched, on_all, until, worker};
use crate::served::{Served, token};
use crate::virtual_time::{MONDAY, World};

const CONFIG: &str = r#"
[queues.work]
lanes = 2
[queues.side]
[kinds.sync]
queue = "work"
every = "1h"
handler.exec.argv = ["/bin/true"]
[kinds.poll]
every = "1h"
handler.exec.argv = ["/bin/true"]
[kinds.plain]
queue = "work"
handler.exec.argv = ["/bin/true"]
"#;

const CHORES: &str = "roundelay.chores";

on_all!(a_message_begins_and_ends_a_chain);
on_all!(a_message_runs_a_chain_once_more);
on_all!(the_api_begins_and_ends_chains_one_or_many);

async fn publish(broker: &dyn Broker, queue: &str, body: &Value) {
    let to = Destination::Queue(queue.into());
    let body = body.to_string().into_bytes().into();
    broker.publish(Message { to, id: String::new(), body, trace: None }).await.unwrap();
}

async fn chain(ledger: &dyn Ledger, kind: &str, key: &str) -> Option<ChainView> {
    ledger.chains(kind.into(), key.into()).await.unwrap().into_iter().find(|chain| !chain.once)
}

fn enroll(kind: &str, key: &str, payload: Value, enroll: Value) -> Value {
    json!({ "v": 1, "kind": kind, "key": key, "payload": payload, "enroll": enroll })
}

fn retire(key: &str) -> Value {
    json!({ "v": 1, "kind": "sync", "key": key, "retire": {} })
}

mod run {
    use super::*;

    pub async fn a_message_runs_a_chain_once_more(ground: Ground) {
        let mut engine = Watched::attended(&ground, CONFIG).await;
        let (broker, ledger) = (engine.connections.broker.clone(), engine.connections.ledger.clone());
        let (broker, ledger, telemetry) = (&*broker, &*ledger, engine.telemetry.clone());
        let run = |key: &str, run: Value| json!({ "v": 1, "kind": "sync", "key": key, "run": run });
        let due = json!({ "first_due": ledger.now().as_millis() });
        publish(broker, CHORES, &enroll("sync", "a", json!("own"), due)).await;
        let rotation = engine.next().await;
        // While it runs: refused, or afterwards, on another queue and with another payload.
        publish(broker, CHORES, &run("a", json!({}))).await;
        until("it is refused", async || telemetry.get(Count::Dropped) == 1).await;
        let mut other = run("a", json!({ "queue": "side", "if_running": "after" }));
        other["payload"] = json!("other");
        publish(broker, CHORES, &other).await;
        let manual = async || ledger.chains("sync".into(), "a".into()).await.unwrap().into_iter().find(|c| c.once);
        until("it is pending", async || manual().await.is_some()).await;
        publish(broker, CHORES, &run("a", json!({ "if_running": "beside" }))).await;
        until("there is one at a time", async || telemetry.get(Count::Dropped) == 2).await;
        let next = chain(ledger, "sync", "a").await.unwrap().hint.tick.next();
        rotation.end(Outcome::Done);
        let second = engine.next().await;
        assert_eq!((second.job.queue.as_str(), &second.job.payload), ("side", &json!("other")));
        let sleeping = chain(ledger, "sync", "a").await.unwrap();
        assert_eq!(sleeping.hint.tick, next, "the rotation has ended before");
        second.end(Outcome::Done);
        until("it is over", async || manual().await.is_some_and(|run| run.state == ChainState::Retired)).await;
        let after = chain(ledger, "sync", "a").await.unwrap();
        assert_eq!((after.hint.tick, after.hint.due, after.nominal), (next, sleeping.hint.due, sleeping.nominal));
        assert!(after.last_finish > sleeping.last_finish, "and counts it");

        // An entity without a chain runs with a payload alone, and waits for what it fans out.
        let mut alone = run("lonely", json!({}));
        alone["payload"] = json!({ "n": 1 });
        publish(broker, CHORES, &alone).await;
        let single = engine.next().await;
        assert_eq!((single.job.key.as_str(), single.job.queue.as_str()), ("lonely", "work"));
        let member = NewJob { kind: "plain".into(), key: "part".into(), ..NewJob::default() };
        single.end(Outcome::DoneWith(Yield { batch: vec![member], ..Yield::default() }));
        let part = engine.next().await;
        assert_eq!((part.job.kind.as_str(), part.job.key.as_str()), ("plain", "part"));
        let lonely = async || ledger.chains("sync".into(), "lonely".into()).await.unwrap().remove(0);
        assert_eq!(lonely().await.batch, (1, 1));
        part.end(Outcome::Done);
        until("its batch is over", async || lonely().await.state == ChainState::Retired).await;

        // A message that no worker can run is set aside.
        assert_eq!(telemetry.get(Count::Quarantined), 0);
        let bad = [run("nobody", json!({})), run("a", json!({ "queue": "wrok" })), run("a", json!({ "priority": 2 }))];
        for (n, body) in bad.into_iter().enumerate() {
            publish(broker, CHORES, &body).await;
            until("it is set aside", async || telemetry.get(Count::Quarantined) == n as u64 + 1).await;
        }
        engine.stop().await;
    }

    pub async fn a_message_begins_and_ends_a_chain(ground: Ground) {
        let mut engine = Watched::attended(&ground, CONFIG).await;
        let (broker, ledger) = (engine.connections.broker.clone(), engine.connections.ledger.clone());
        let (broker, ledger) = (&*broker, &*ledger);
        let due = || ledger.now().as_millis();
        let mut last = Epoch::NONE;
        for (n, queue) in ["work", "roundelay.lane.1.work", "side", CHORES].into_iter().enumerate() {
            let key = format!("a-{n}");
            let more = json!({
                "owner": "ann", "schedule": { "every": "2h" }, "priority": 1, "first_due": due(),
            });
            let order = enroll("sync", &key, json!({ "n": n }), more);
            publish(broker, queue, &order).await;
            let run = engine.next().await;
            // Again, as after a confirmation that was lost. Orders keep no order among each other, so the run ends
            // later.
            publish(broker, queue, &order).await;
            assert_eq!((run.job.key.as_str(), run.tick()), (key.as_str(), 1));
            assert_eq!((&run.job.payload, run.job.owner.as_deref()), (&json!({ "n": n }), Some("ann")));
            assert_eq!(run.job.queue, "work", "the kind's, and not where the order came");
            run.end(Outcome::Done);
            until("it sleeps", async || chain(ledger, "sync", &key).await.unwrap().hint.tick == 2).await;
            let view = chain(ledger, "sync", &key).await.unwrap();
            assert_eq!(view.hint.priority, Some(1));
            assert!(view.hint.due.since(ledger.now()) > Duration::from_secs(7_000), "its own schedule");
            publish(broker, queue, &enroll("sync", &key, json!("new"), json!({}))).await;
            until("it has another payload", async || {
                chain(ledger, "sync", &key).await.is_some_and(|chain| chain.payload == "\"new\"")
            })
            .await;
            let after = chain(ledger, "sync", &key).await.unwrap();
            assert_eq!(
                (after.hint.epoch, after.hint.tick),
                (view.hint.epoch, TickNo(2)),
                "the same chain, in its rhythm"
            );
            assert_eq!((after.hint.priority, after.owner, after.schedule), (None, None, view.schedule));
            last = after.hint.epoch;
        }
        // A kind that names no queue has that of the order, or else the one on which the order came.
        publish(broker, "side", &enroll("poll", "p", json!(1), json!({ "first_due": due() }))).await;
        let run = engine.next().await;
        assert_eq!((run.job.kind.as_str(), run.job.queue.as_str()), ("poll", "side"));
        run.end(Outcome::Done);
        publish(broker, CHORES, &enroll("poll", "q", json!(1), json!({ "first_due": due(), "queue": "work" }))).await;
        let run = engine.next().await;
        assert_eq!((run.job.key.as_str(), run.job.queue.as_str()), ("q", "work"));
        run.end(Outcome::Done);

        // It ends, and what is not there has ended.
        for (queue, key) in [("work", "a-0"), (CHORES, "a-3"), ("work", "a-0"), (CHORES, "never")] {
            publish(broker, queue, &retire(key)).await;
        }
        for key in ["a-0", "a-3"] {
            until("it has ended", async || {
                chain(ledger, "sync", key).await.is_some_and(|chain| chain.state == ChainState::Retired)
            })
            .await;
        }
        // And begins anew.
        publish(broker, CHORES, &enroll("sync", "a-3", json!({}), json!({ "first_due": due() }))).await;
        let run = engine.next().await;
        assert_eq!((run.job.key.as_str(), run.tick()), ("a-3", 1));
        assert!(run.job.tick.unwrap().epoch > last);
        run.end(Outcome::Done);
        assert_eq!(engine.telemetry.get(Count::Quarantined), 0);

        let with = |field: &str, value: Value| {
            let mut order = enroll("sync", "bad", json!({}), json!({}));
            order[field] = value;
            order
        };
        let bad = [
            (enroll("sync", "bad", json!({}), json!({ "schedule": "soon" })), "`soon` is no schedule"),
            (enroll("sync", "bad", json!({}), json!({ "priority": 2 })), "more than queues.work.lanes = 2 allows"),
            (enroll("sync", "bad", json!({}), json!({ "priority": 10 })), "the highest is 9"),
            (enroll("sync", "bad", json!({}), json!({ "queue": "wrok" })), "there is no [queues.wrok]"),
            (enroll("sync", "bad", json!({}), json!({ "oner": "x" })), "unknown field `oner`"),
            (enroll("sync", "bad", json!({}), json!({ "first_due": i64::MAX })), "more than ten years ahead"),
            (enroll("plain", "bad", json!({}), json!({})), "kind `plain` has no schedule"),
            (enroll("poll", "bad", json!({}), json!({})), "its kind names no queue; say `queue`"),
            (enroll("nobody", "bad", json!({}), json!({})), "unknown kind `nobody`"),
            (with("retire", json!({})), "`retire` does not go with `enroll`"),
            (with("due", json!(1)), "`due` does not go with `enroll`"),
            (with("owner", json!("x")), "`owner` does not go with `enroll`"),
            (json!({ "v": 1, "kind": "sync", "key": "a-1", "retire": {}, "payload": 1 }), "`payload` does not go"),
            (json!({ "v": 1, "kind": "sync", "key": "a-1", "retire": true }), "expected a JSON object"),
        ];
        for (n, (order, words)) in bad.iter().enumerate() {
            publish(broker, CHORES, order).await;
            until(words, async || engine.telemetry.get(Count::Quarantined) > n as u64).await;
        }
        let reasons = async || -> Vec<String> {
            match &ground.vhost {
                Some(_) => {
                    let found = broker.peek("roundelay.quarantine", 100).await.unwrap();
                    let reasons = found.iter().map(|message| message.reason.clone()).collect();
                    for message in found {
                        message.put_back().await;
                    }
                    reasons
                }
                None => {
                    let shown = ledger.quarantined(None, 100).await.unwrap();
                    shown.into_iter().map(|message| message.reason).collect()
                }
            }
        };
        // They are counted before they lie there.
        until("all are set aside", async || reasons().await.len() == bad.len()).await;
        let reasons = reasons().await;
        for (order, words) in &bad {
            assert!(reasons.iter().any(|reason| reason.contains(words)), "{words} of {order} is not in {reasons:#?}");
        }
        assert_eq!(chain(ledger, "sync", "bad").await, None);
        assert_eq!(chain(ledger, "sync", "a-1").await.unwrap().state, ChainState::Active);
        engine.stop().await;
    }

    pub async fn the_api_begins_and_ends_chains_one_or_many(ground: Ground) {
        let config = ground.config_file(&format!("[catch_up]\nslack = \"2s\"\nevery = \"1s\"\n{CONFIG}"));
        let token = token(&config, "ann", "operate").await;
        let served = Served::start(&config).await.with_token(&token);
        let json_body = [("content-type", "application/json")];
        let put = async |path: &str, body: Value| {
            served.ask(Method::PUT, &format!("/api/v1/chains/{path}"), &json_body, Some(body.to_string())).await
        };
        let delete =
            async |path: &str| served.ask(Method::DELETE, &format!("/api/v1/chains/{path}"), &json_body, None).await;
        let shown = async |path: &str| served.get(&format!("/api/v1/chains/{path}")).await.is(200).json();
        let wanted = json!({
            "payload": { "a": 1 }, "priority": 1, "owner": "ann", "schedule": "2h", "first_due": 4_000_000_000_000_u64,
        });
        assert_eq!(put("sync/eu%2F1", json!({})).await.is(201).json()["became"], "created");
        let due = json!({ "first_due": shown("sync/eu%2F1").await["chain"]["due"] });
        assert_eq!(put("sync/eu%2F1", due).await.is(200).json()["became"], "unchanged", "it keeps its rhythm");
        assert_eq!(put("sync/eu%2F1", json!({ "payload": 7 })).await.is(200).json()["became"], "updated");
        put("sync/eu%2F2", wanted.clone()).await.says(422, "more than ten years ahead");
        let soon = (roundelay::clock::Clock::System.now() + Duration::from_secs(3_600)).as_millis();
        let mut wanted = wanted;
        wanted["first_due"] = json!(soon);
        put("sync/eu%2F2", wanted.clone()).await.is(201);
        let chain = shown("sync/eu%2F2").await["chain"].clone();
        assert_eq!((&chain["due"], &chain["priority"], &chain["owner"]), (&json!(soon), &json!(1), &json!("ann")));
        assert_eq!(chain["payload"], json!({ "a": 1 }));
        assert!(chain["schedule"].as_str().unwrap().contains("2h"), "{chain}");
        put("sync/eu%2F2", wanted.clone()).await.is(200);

        // It ends once, and begins anew.
        assert_eq!(delete("sync/eu%2F2").await.is(200).json()["became"], "retired");
        assert_eq!(delete("sync/eu%2F2").await.is(200).json()["became"], "unchanged");
        assert_eq!(delete("sync/never").await.is(200).json()["became"], "unchanged");
        delete("roundelay.history/attempts").await.says(422, "a kind of the engine's own");
        assert_eq!(delete("gone/x").await.is(200).json()["became"], "unchanged", "its kind may be gone, too");
        assert_eq!(put("sync/eu%2F2", wanted).await.is(201).json()["became"], "created");
        let anew = shown("sync/eu%2F2").await["chain"].clone();
        assert!(anew["epoch"].as_i64() > chain["epoch"].as_i64(), "{anew}");

        for (path, body, status, words) in [
            ("snyc/x", json!({}), 404, "there is no [kinds.snyc]"),
            ("plain/x", json!({}), 422, "kinds.plain has none of `every`"),
            ("poll/x", json!({}), 422, "its kind names no queue; say `queue`"),
            ("sync/x", json!({ "queue": "wrok" }), 422, "there is no [queues.wrok]"),
            ("sync/x", json!({ "priority": 2 }), 422, "priority 2 is more than queues.work.lanes = 2"),
            ("sync/x", json!({ "schedule": "soon" }), 422, "`soon` is no schedule"),
            ("sync/x", json!({ "schedule": 5 }), 422, "its schedule is `5`"),
            ("sync/x", json!({ "owner": "" }), 422, "`owner` is empty"),
            ("sync/x", json!({ "palyoad": 1 }), 422, "unknown field `palyoad`"),
            ("sync/a%0Ab", json!({}), 422, "control character"),
        ] {
            put(path, body).await.says(status, words);
        }

        // Many: the good ones are done, and the bad ones named.
        let items = json!({ "chains": [
            { "kind": "sync", "key": "m1" },
            { "kind": "sync", "key": "m2", "queue": "wrok" },
            { "kind": "poll", "key": "m3", "queue": "side", "payload": [1] },
            { "kind": "sync", "key": "eu/1", "payload": 7 },
            { "kind": "sync", "key": "eu/2", "retire": true },
            { "kind": "sync", "key": "m1", "retire": true },
            { "kind": "sync", "key": "m4", "retire": true, "payload": 1 },
            { "kind": "nobody", "key": "m5" },
            { "kind": "sync", "key": "m6", "first_due": 4_000_000_000_000_u64 },
            { "kind": "roundelay.history", "key": "attempts", "retire": true },
        ]});
        let came = served.post("/api/v1/chains", &items).await.is(200).json();
        let became: Vec<&Value> = came["chains"].as_array().unwrap().iter().map(|item| &item["became"]).collect();
        let null = Value::Null;
        let words = ["created", "", "created", "unchanged", "retired", "", "", "", "", ""].map(Value::from);
        let expected: Vec<&Value> = words.iter().map(|word| if *word == "" { &null } else { word }).collect();
        assert_eq!(became, expected, "{came}");
        for (n, words) in [
            (1, "there is no [queues.wrok]"),
            (5, "comes twice"),
            (6, "alone"),
            (7, "[kinds.nobody]"),
            (8, "more than ten years ahead"),
            (9, "a kind of the engine's own"),
        ] {
            assert!(came["chains"][n]["why"].as_str().unwrap().contains(words), "{came}");
        }
        let counts = ["created", "updated", "unchanged", "retired", "refused"].map(|name| came[name].as_u64().unwrap());
        assert_eq!(counts, [2, 0, 1, 1, 6]);
        let again = served.post("/api/v1/chains", &items).await.is(200).json();
        let counts = ["created", "unchanged", "retired", "refused"].map(|name| again[name].as_u64().unwrap());
        assert_eq!(counts, [0, 4, 0, 6]);
        let many: Vec<Value> = (0..2_500).map(|n| json!({ "kind": "sync", "key": format!("n/{n}") })).collect();
        let came = served.post("/api/v1/chains", &json!({ "chains": many })).await.is(200).json();
        assert_eq!(came["created"], 2_500);
        let dues = served.get("/api/v1/chains?text=n/&limit=500").await.is(200).json();
        let dues: std::collections::BTreeSet<i64> =
            dues["chains"].as_array().unwrap().iter().map(|chain| chain["due"].as_i64().unwrap()).collect();
        assert!(dues.len() > 480, "spread over the interval: {}", dues.len());
        let too_many: Vec<Value> = (0..5_001).map(|n| json!({ "kind": "sync", "key": n.to_string() })).collect();
        served.post("/api/v1/chains", &json!({ "chains": too_many })).await.says(422, "more than 5000");

        // A key of a request makes it one, and the audit has it without payloads.
        let keyed = [("content-type", "application/json"), ("idempotency-key", "one")];
        let body = json!({ "payload": "canary" }).to_string();
        for replayed in ["", "true"] {
            let path = "/api/v1/chains/sync/keyed";
            let answer = served.ask(Method::PUT, path, &keyed, Some(body.clone())).await.is(201);
            assert_eq!(answer.header("idempotent-replayed"), replayed);
        }
        let audit = served.get("/api/v1/audit?limit=500").await.is(200).json();
        let entries = audit["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["action"] == "PUT /api/v1/chains/{kind}/{key}").unwrap();
        assert_eq!((&entry["target"], &entry["detail"]["queue"]), (&json!("sync keyed"), &json!("work")), "{entry}");
        assert!(!audit.to_string().contains("canary"), "{audit}");

        // And they tick.
        let now = roundelay::clock::Clock::System.now().as_millis();
        put("sync/now", json!({ "first_due": now })).await.is(201);
        let worker = worker(&config);
        until("it has run", async || shown("sync/now").await["chain"]["tick"].as_i64() > Some(1)).await;
        drop(worker);
        assert_eq!(served.stop().await, Some(0));
    }
}

/// Orders wait for no room and no slot, and on the engine's own queue for no backlog.
#[tokio::test(start_paused = true)]
async fn orders_wait_for_nothing_that_jobs_wait_for() {
    let config = "[queues.work]\nconcurrency = 1\nprefetch = 2\nthrottle = \"slow\"\n\
                  [throttles.slow]\nallow = 1\nper = \"1h\"\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\n";
    let mut world = World::new(config, MONDAY);
    world.script("sync", |_| (Duration::from_secs(600), Outcome::Done));
    world.start_with_chores().await;
    let broker = world.connections.broker.clone();
    let chains = world.connections.ledger.clone();
    // One runs, and one waits for the hour's slot.
    world.publish("work", "sync", "job-1", json!({})).await;
    world.until(Duration::from_secs(1)).await;
    publish(&*broker, "work", &enroll("sync", "beside", json!({}), json!({}))).await;
    world.until(Duration::from_secs(2)).await;
    assert!(chain(&*chains, "sync", "beside").await.is_some(), "it needs no room");
    for n in 2..20 {
        world.publish("work", "sync", &format!("job-{n}"), json!({})).await;
    }
    world.until(Duration::from_secs(3)).await;
    publish(&*broker, CHORES, &enroll("sync", "past the backlog", json!({}), json!({}))).await;
    publish(&*broker, CHORES, &retire("beside")).await;
    world.until(Duration::from_secs(4)).await;
    assert!(chain(&*chains, "sync", "past the backlog").await.is_some());
    assert_eq!(chain(&*chains, "sync", "beside").await.unwrap().state, ChainState::Retired);
    assert_eq!(world.seen("sync").len(), 1, "and took the place and the slot of none");
    world.stop().await;
}
