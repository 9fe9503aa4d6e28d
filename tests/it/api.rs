//! What people see and steer over the API: the real program answers, on a real ledger, broker and worker.

use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use crate::commands::ok;
use crate::harness::{Ground, on_all, until, worker};
use crate::served::{Answer, Served, token};

on_all!(chains_are_found_looked_at_and_steered);
on_all!(queues_and_workers_are_steered_and_say_so);
on_all!(throttles_are_held_changed_and_released);
on_all!(failures_are_counted_retried_and_forgotten);
on_all!(messages_that_cannot_be_used_are_shown_sent_again_and_forgotten);
on_all!(the_overview_tells_what_is_wrong_and_goes_on_telling);

const KEY: &str = "<img src=x onerror=alert(1)>/ü?#%20";

/// A kind whose runs fail for keys that begin with `bad`, and one that a throttle paces.
fn config(ground: &Ground) -> PathBuf {
    ground.config_file(
        r#"
[api]
name = "tests"
[catch_up]
slack = "2s"
[throttles.ios]
allow = 5
per = "1m"
[queues.work]
[queues.paced]
throttle = "ios"
[kinds.sync]
queue = "work"
every = "1h"
timeout = "20s"
roster.owner = "{{ owner }}"
retry = { attempts = 1 }
handler.exec = { argv = ["/bin/sh", "-c", "case $ROUNDELAY_KEY in bad*) exit 3;; slow*) sleep 4;; esac"], env = { PATH = "/usr/bin:/bin" } }
[kinds.other]
queue = "paced"
every = "1h"
handler.exec = { argv = ["/bin/true"] }
"#,
    )
}

async fn enroll(ground: &Ground, config: &Path, kind: &str, rows: &str, spread: &str) {
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, format!("key,owner\n{rows}")).unwrap();
    ok("enroll", config, &["--kind", kind, "--spread", spread, roster.to_str().unwrap()]).await;
}

/// A server for a client with the role of an operator.
async fn served(config: &Path) -> Served {
    let token = token(config, "ann", "operate").await;
    Served::start(config).await.with_token(&token)
}

async fn put(served: &Served, path: &str, body: Value) -> Answer {
    served.ask(Method::PUT, path, &[("content-type", "application/json")], Some(body.to_string())).await
}

async fn got(served: &Served, path: &str) -> Value {
    served.get(&format!("/api/v1{path}")).await.is(200).json()
}

async fn did(served: &Served, path: &str, body: Value) -> Value {
    served.post(&format!("/api/v1{path}"), &body).await.is(200).json()
}

fn segment(key: &str) -> String {
    key.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

mod run {
    use super::*;

    pub async fn chains_are_found_looked_at_and_steered(ground: Ground) {
        let config = config(&ground);
        let rows = format!("eu/1,ann\neu/2,ann\nus/1,bob\n\"{KEY}\",\n");
        enroll(&ground, &config, "sync", &rows, "1h").await;
        let served = served(&config).await;
        let keys = async |query: &str| -> Vec<String> {
            let page = got(&served, &format!("/chains?{query}")).await;
            assert_eq!(page["complete"], true);
            page["chains"].as_array().unwrap().iter().map(|chain| chain["key"].as_str().unwrap().into()).collect()
        };
        assert_eq!(keys("").await, [KEY, "eu/1", "eu/2", "us/1"]);
        assert_eq!(keys("text=eu").await, ["eu/1", "eu/2"]);
        assert_eq!(keys("text=*/1&owner=ann&kind=sync&queue=work&state=active").await, ["eu/1"]);
        assert_eq!(keys("state=paused").await, [""; 0]);
        let first = got(&served, "/chains?limit=3").await;
        assert_eq!(keys(&format!("limit=3&after={}", first["after"].as_str().unwrap())).await, ["us/1"]);
        served.get("/api/v1/chains?stat=late").await.says(400, "stat");
        served.get("/api/v1/chains?after=zz").await.says(400, "after");
        assert_eq!(keys("state=late&sort=late").await, [""; 0]);
        served.get("/api/v1/chains?sort=late").await.says(400, "it needs state=late");
        served.get("/api/v1/chains?state=paused&sort=late").await.says(400, "it needs state=late");
        served.get("/api/v1/chains?state=late&sort=name").await.says(400, "sort");
        let by_name = first["after"].as_str().unwrap();
        served.get(&format!("/api/v1/chains?state=late&sort=late&after={by_name}")).await.says(400, "after");

        let entity = got(&served, &format!("/chains/sync/{}", segment(KEY))).await;
        let chain = &entity["chain"];
        assert_eq!(
            (&chain["key"], &chain["doing"], &chain["state"]),
            (&json!(KEY), &json!("sleeps"), &json!("active"))
        );
        assert!(chain["why"].as_str().unwrap().starts_with("it sleeps until"), "{chain}");
        assert_eq!(chain["next"].as_array().unwrap().len(), 10);
        served.get("/api/v1/chains/sync/nobody").await.says(404, "there is no chain sync nobody");

        // One after the other.
        let of = |action: &str| format!("/chains/sync/{}/{action}", segment("eu/1"));
        did(&served, &of("pause"), json!({})).await;
        served.post(&format!("/api/v1{}", of("pause")), &json!({})).await.says(409, "is not active");
        served.post(&format!("/api/v1{}", of("advance")), &json!({})).await.says(409, "it is paused");
        did(&served, &of("resume"), json!({})).await;
        did(&served, &of("advance"), json!({})).await;
        served.post("/api/v1/chains/sync/nobody/pause", &json!({})).await.says(404, "there is no chain");

        // All that fit, counted first.
        let all = async |action: &str, filter: Value, dry: bool| {
            let wish = json!({ "action": action, "filter": filter, "dry_run": dry });
            let came = did(&served, "/chains/actions", wish).await;
            (came["matching"].as_i64().unwrap(), came["changed"].as_i64())
        };
        assert_eq!(all("pause", json!({ "owner": "ann" }), true).await, (2, None));
        assert_eq!(keys("state=paused").await, [""; 0], "only counted");
        assert_eq!(all("pause", json!({ "owner": "ann" }), false).await, (2, Some(2)));
        assert_eq!(keys("state=paused").await, ["eu/1", "eu/2"]);
        assert_eq!(all("retire", json!({ "state": "paused", "text": "eu/2" }), false).await, (1, Some(1)));
        assert_eq!(all("resume", json!({ "state": "late" }), true).await, (0, None));
        assert_eq!(all("resume", json!({}), false).await, (1, Some(1)));
        assert_eq!(all("advance", json!({ "text": "us" }), false).await, (1, Some(1)));
        let running = json!({ "action": "pause", "filter": { "state": "running" } });
        served.post("/api/v1/chains/actions", &running).await.says(422, "filter.state");
        let slip = json!({ "action": "retire", "filter": { "owner": "" } });
        served.post("/api/v1/chains/actions", &slip).await.says(422, "filter.owner: it is empty");
        let late = json!({ "action": "advance", "filter": { "state": "late" } });
        served.post("/api/v1/chains/actions", &late).await.says(422, "due already");
        let typo = json!({ "action": "pause", "filter": { "knid": "sync" } });
        served.post("/api/v1/chains/actions", &typo).await.says(422, "filter.knid");

        // Nothing runs them, and the one that was due first is told first.
        let longest = "state=late&sort=late";
        until("both are late", || async { keys(longest).await == ["eu/1", "us/1"] }).await;
        assert_eq!(keys("state=late").await, ["eu/1", "us/1"]);
        let first = got(&served, &format!("/chains?{longest}&limit=1")).await;
        let (row, after) = (&first["chains"][0], first["after"].as_str().unwrap());
        assert_eq!((&row["key"], &row["doing"]), (&json!("eu/1"), &json!("late")), "{first}");
        assert_eq!(keys(&format!("{longest}&limit=1&after={after}")).await, ["us/1"]);
        assert_eq!(keys(&format!("{longest}&owner=bob")).await, ["us/1"]);
        let owners = got(&served, "/owners").await;
        let late: Vec<&Value> = owners["owners"].as_array().unwrap().iter().map(|of| &of["late"]).collect();
        assert_eq!(late, [&json!(1), &json!(1)], "{owners}");

        // What they have done.
        let worker = worker(&config);
        until("they have run", || async {
            got(&served, "/runs?verdict=done&kind=sync").await["runs"].as_array().unwrap().len() == 2
        })
        .await;
        did(&served, &of("run"), json!({})).await;
        until("it has run beside its rotation", || async {
            let entity = got(&served, &format!("/chains/sync/{}", segment("eu/1"))).await;
            entity["single"]["attempts"][0]["verdict"] == "done"
        })
        .await;
        let attempts = got(&served, &format!("/chains/sync/{}/attempts?limit=1", segment("eu/1"))).await;
        let last = &attempts["attempts"][0];
        assert_eq!(
            (&last["verdict"], &last["manual"], &attempts["more"]),
            (&json!("done"), &json!(true), &json!(true))
        );
        let fence = &attempts["attempts"][0]["fence"];
        let before = got(&served, &format!("/chains/sync/{}/attempts?before={fence}", segment("eu/1"))).await;
        let before = before["attempts"].as_array().unwrap();
        assert_eq!(before.len(), 1, "the rotation's: one history has both");
        assert_eq!((&before[0]["verdict"], before[0].get("manual")), (&json!("done"), None));
        let runs = got(&served, "/runs?limit=1&kind=sync").await;
        assert_eq!((&runs["runs"][0]["kind"], runs["after"].is_string()), (&json!("sync"), true));
        let table = [
            ("key=eu/1", 2),
            ("kind=sync&key=eu/1", 2),
            ("kind=other&key=eu/1", 0),
            ("owner=ann", 2),
            ("owner=bob&queue=work", 1),
            ("queue=paced", 0),
            ("text=no%20reason%20has%20this", 0),
            ("kind=sync&since=1h&until=", 3),
            ("kind=sync&since=2020-01-01T00:00:00%2B01:00", 3),
            ("until=2020-01-01T00:00:00Z", 0),
            ("until=1577836800000", 0),
            ("until=1h", 0),
        ];
        for (query, expected) in table {
            let runs = got(&served, &format!("/runs?{query}")).await;
            assert_eq!(runs["runs"].as_array().unwrap().len(), expected, "{query}: {runs}");
        }
        let started = got(&served, "/runs?limit=1").await["runs"][0]["started"].as_i64().unwrap();
        let from = got(&served, &format!("/runs?since={started}")).await;
        assert_eq!(from["runs"][0]["started"], started, "what an answer has as a time is understood");
        served.get("/api/v1/runs?since=yesterday").await.says(400, "since=yesterday: this is no time");
        served.get("/api/v1/runs?until=2020-01-01").await.says(400, "until=2020-01-01: this is no time");
        // The engine's own are in lists unless they are not wanted.
        until("a chore has run", || async {
            !got(&served, "/runs?own=only&verdict=done").await["runs"].as_array().unwrap().is_empty()
        })
        .await;
        for list in ["chains", "runs"] {
            let of = async |own: &str| {
                let page = got(&served, &format!("/{list}?own={own}&limit=500")).await;
                assert_eq!((&page["after"], page.get("complete")), (&json!(null), Some(&json!(true))), "{own}: {page}");
                let rows = page[list].as_array().unwrap().iter();
                let own = rows.clone().filter(|row| row["kind"].as_str().unwrap().starts_with("roundelay.")).count();
                (rows.count() - own, own)
            };
            let (both, others, only) = (of("true").await, of("false").await, of("only").await);
            assert!(both.0 >= 2 && both.1 >= 1, "{list}: {both:?}");
            assert_eq!((others, only.0), ((both.0, 0), 0), "{list}");
            assert!(only.1 >= both.1, "{list}: {only:?}, before {both:?}");
            let name = if list == "chains" { "sort=late&state=late&own=false" } else { "kind=sync&own=only" };
            let none = got(&served, &format!("/{list}?{name}")).await;
            assert_eq!(none[list], json!([]), "{name}");
        }
        served.get("/api/v1/runs?own=maybe").await.says(400, "own");
        let row = got(&served, "/chains?text=eu/1").await["chains"][0].clone();
        assert_eq!((row["recent"].as_array().unwrap().len(), &row["recent"][0]["verdict"]), (1, &json!("done")));

        // Owners, as a whole.
        let owners = got(&served, "/owners").await;
        let of_ann = json!({
            "owner": "ann", "state": "active", "active": 1, "paused": 0, "retired": 1, "quarantined": 0,
            "late": 0, "late_complete": true, "failing": 0, "failing_complete": true,
        });
        assert_eq!(owners["owners"][0], of_ann, "{owners}");
        let dry = did(&served, "/owners/bob/pause", json!({ "dry_run": true })).await;
        assert_eq!((&dry["matching"], &dry["changed"]), (&json!(1), &json!(null)));
        assert_eq!(did(&served, "/owners/bob/pause", json!({})).await["changed"], 1);
        assert_eq!(got(&served, "/owners").await["owners"][1]["state"], "paused");
        assert_eq!(did(&served, "/owners/bob/resume", json!({})).await["changed"], 1);

        // Who did it all.
        let audit = got(&served, "/audit?limit=500").await;
        let entries = audit["entries"].as_array().unwrap();
        let said = |action: &str| entries.iter().any(|entry| entry["action"] == action && entry["actor"] == "ann");
        assert!(said("POST /api/v1/chains/actions") && said("POST /api/v1/owners/{owner}/pause"), "{audit}");
        drop(worker);
        assert_eq!(served.stop().await, Some(0));
    }

    pub async fn queues_and_workers_are_steered_and_say_so(ground: Ground) {
        let config = config(&ground);
        enroll(&ground, &config, "sync", "a,\nslow,\n", "0s").await;
        let served = served(&config).await;
        let worker = worker(&config);
        until("a worker works", || async { got(&served, "/workers").await["workers"][0]["state"] == "working" }).await;
        let name = got(&served, "/workers").await["workers"][0]["worker"].as_str().unwrap().to_owned();
        let runs = || async { got(&served, &format!("/workers/{name}/runs")).await["runs"].clone() };
        until("it is told what it runs", || async {
            let runs = runs().await;
            let slow = |run: &Value| run["key"] == "slow" && run["kind"] == "sync" && run["source"] == "chain";
            runs.as_array().unwrap().iter().any(slow)
        })
        .await;
        served.get("/api/v1/workers/nobody/runs").await.says(404, "there is no worker nobody");
        served.post("/api/v1/queues/work/pause", &json!({ "why": " " })).await.says(422, "why");
        served.post("/api/v1/queues/elsewhere/pause", &json!({ "why": "x" })).await.says(404, "no [queues.elsewhere]");
        did(&served, "/queues/work/pause", json!({ "why": "they are down" })).await;
        let queue = || async {
            let queues = got(&served, "/queues").await["queues"].clone();
            queues.as_array().unwrap().iter().find(|queue| queue["queue"] == "work").cloned().unwrap()
        };
        until("the queue is told as paused", || async { queue().await["paused"]["by"] == "ann" }).await;
        // All at once, and back, but for what was paused for another reason.
        let all = async |order: Value| did(&served, "/queues/actions", order).await["queues"].clone();
        served.post("/api/v1/queues/actions", &json!({ "action": "pause", "why": " " })).await.says(422, "why");
        served.post("/api/v1/queues/actions", &json!({ "action": "stop", "why": "x" })).await.says(422, "action");
        let others = all(json!({ "action": "pause", "why": "incident 7" })).await;
        assert!(!others.as_array().unwrap().contains(&json!("work")), "{others}");
        assert_eq!(all(json!({ "action": "pause", "why": "incident 8" })).await, json!([]));
        assert_eq!(all(json!({ "action": "resume", "why": "incident 8" })).await, json!([]));
        assert_eq!(all(json!({ "action": "resume", "why": "incident 7" })).await, others);
        assert_eq!(queue().await["paused"]["why"], "they are down");
        until("the worker obeys", || async {
            let worker = got(&served, "/workers").await["workers"][0].clone();
            worker["queues"].as_array().unwrap().iter().any(|queue| queue["queue"] == "work" && queue["paused"] == true)
        })
        .await;
        put(&served, "/api/v1/queues/work/concurrency", json!({ "concurrency": 0 })).await.says(422, "pause the queue");
        put(&served, "/api/v1/queues/work/concurrency", json!({ "concurrency": 3 })).await.is(200);
        until("it is wider", || async { queue().await["concurrency"]["ordered"] == 3 }).await;
        put(&served, "/api/v1/queues/work/concurrency", json!({ "concurrency": null })).await.is(200);
        did(&served, "/queues/work/resume", json!({})).await;
        until("it goes on", || async { queue().await["paused"] == json!(null) }).await;

        served.post("/api/v1/workers/nobody/drain", &json!({})).await.says(404, "there is no worker nobody");
        did(&served, &format!("/workers/{name}/drain"), json!({ "why": "a new kernel" })).await;
        until("it is drained", || async { got(&served, "/workers").await["workers"][0]["state"] == "drained" }).await;
        did(&served, &format!("/workers/{name}/resume"), json!({})).await;
        until("it works", || async { got(&served, "/workers").await["workers"][0]["state"] == "working" }).await;
        let ladder = got(&served, "/ladder").await;
        let native = ladder["native"].as_bool().unwrap();
        assert_eq!(ladder["rungs"].as_array().unwrap().len() > 50, !native, "{ladder}");
        assert_eq!(ladder["queues"].as_array().unwrap().is_empty(), !native, "{ladder}");
        assert!(native || ladder["broker_why"].is_null() == ladder["rungs"][0]["ready"].is_u64(), "{ladder}");
        drop(worker);
    }

    pub async fn throttles_are_held_changed_and_released(ground: Ground) {
        let config = config(&ground);
        enroll(&ground, &config, "other", "a,\n", "0s").await;
        let served = served(&config).await;
        let ios = || async { got(&served, "/throttles/ios").await };
        let open = ios().await;
        assert_eq!((&open["queues"], &open["keys"][0]["windows"][0]["allow"]), (&json!(["paced"]), &json!(5)));
        served.get("/api/v1/throttles/nothing").await.says(404, "no [throttles.nothing]");
        let hold = |span: &str, why: &str| json!({ "for": span, "why": why });
        served.post("/api/v1/throttles/ios/hold", &hold("soon", "x")).await.says(422, "for: ");
        served.post("/api/v1/throttles/ios/hold", &hold("30m", "")).await.says(422, "why: ");
        did(&served, "/throttles/ios/hold", hold("30m", "they are down")).await;
        let held = ios().await;
        assert_eq!((&held["hold"]["by"], &held["hold"]["why"]), (&json!("ann"), &json!("they are down")), "{held}");
        assert!(held["in_the_way"].as_str().unwrap().contains("by order of ann"), "{held}");
        // The chain's answer in the API says why the chain does not run.
        let entity = got(&served, "/chains/other/a").await;
        assert!(entity["chain"]["why"].as_str().unwrap().contains("they are down"), "{entity}");
        did(&served, "/throttles/ios/release", json!({})).await;
        assert_eq!(ios().await["hold"], json!(null));
        put(&served, "/api/v1/throttles/ios/limits", json!({ "allow": 0 })).await.says(422, "allow: 0");
        put(&served, "/api/v1/throttles/ios/limits", json!({ "allow": 50, "per": "10s", "burst": 4 })).await.is(200);
        let changed = ios().await;
        assert_eq!(
            (&changed["ordered"]["allow"], &changed["ordered"]["per_ms"], &changed["burst"]),
            (&json!(50), &json!(10_000), &json!(4))
        );
        served.delete("/api/v1/throttles/ios/limits").await.is(200);
        assert_eq!(ios().await["ordered"], json!(null));
        assert_eq!(got(&served, "/throttles").await["throttles"].as_array().unwrap().len(), 1);
    }

    pub async fn failures_are_counted_retried_and_forgotten(ground: Ground) {
        let config = config(&ground);
        enroll(&ground, &config, "sync", "bad/1,ann\nbad/2,\ngood,ann\n", "0s").await;
        let served = served(&config).await;
        let worker = worker(&config);
        until("both have failed", || async {
            got(&served, "/failures").await["failures"].as_array().unwrap().len() == 2
        })
        .await;
        let reasons = got(&served, "/failures/reasons").await;
        assert_eq!((&reasons["reasons"][0]["wholes"], &reasons["reasons"][0]["parts"]), (&json!(2), &json!(0)));
        let failed = got(&served, "/failures?text=bad/1").await["failures"][0].clone();
        assert_eq!((&failed["key"], &failed["item"], &failed["times"]), (&json!("bad/1"), &json!(""), &json!(1)));
        assert!(failed["reason"].as_str().unwrap().contains("exit 3"), "{failed}");
        let owners = got(&served, "/owners").await;
        assert_eq!((&owners["owners"][0]["owner"], &owners["owners"][0]["failing"]), (&json!("ann"), &json!(1)));
        assert_eq!(got(&served, "/failures?owner=ann&recovered=false").await["failures"].as_array().unwrap().len(), 1);
        let act = async |action: &str, filter: Value, dry: bool| {
            let wish = json!({ "action": action, "filter": filter, "dry_run": dry });
            let came = did(&served, "/failures/actions", wish).await;
            (came["matching"].as_i64().unwrap(), came["changed"].as_i64())
        };
        assert_eq!(act("retry", json!({}), true).await, (0, None), "they are whole entities");
        let slip = json!({ "action": "drop", "filter": { "code": "" } });
        served.post("/api/v1/failures/actions", &slip).await.says(422, "filter.code: it is empty");
        assert_eq!(act("drop", json!({ "item": "" }), true).await, (2, None), "whole entities");
        assert_eq!(act("drop", json!({ "text": "bad/1" }), true).await, (1, None));
        assert_eq!(act("drop", json!({ "text": "bad/1" }), false).await, (1, Some(1)));
        assert_eq!(got(&served, "/failures").await["failures"].as_array().unwrap().len(), 1);
        assert_eq!(act("drop", json!({ "kind": "sync" }), false).await, (1, Some(1)));
        drop(worker);
    }

    pub async fn messages_that_cannot_be_used_are_shown_sent_again_and_forgotten(ground: Ground) {
        let config = config(&ground);
        enroll(&ground, &config, "sync", "a,\n", "1h").await;
        let served = served(&config).await;
        let parsed = roundelay::Config::load(&config).unwrap();
        let connections = roundelay::engine::Connections::open(&parsed).await.unwrap();
        connections.broker.apply(&parsed.topology()).await.unwrap();
        // A job of a kind that was not there yet, and something that is no job at all.
        let later = json!({ "v": 1, "kind": "sync", "key": "x", "id": "one" }).to_string();
        for (reason, body) in [("there is no [kinds.later]", later.as_str()), ("it is not JSON", "{nonsense")] {
            if connections.broker.keeps_messages() {
                let to = roundelay::broker::Destination::Quarantine { from: "work".into(), reason: reason.into() };
                let (id, body) = (reason.to_owned(), body.to_owned().into());
                connections.broker.publish(roundelay::broker::Message { to, id, body, trace: None }).await.unwrap();
            } else {
                let at = connections.ledger.now();
                connections.ledger.quarantine("work".into(), reason.into(), body.into(), None, at).await.unwrap();
            }
        }
        let reasons = || async {
            let messages = got(&served, "/quarantine").await["messages"].clone();
            let reason = |message: &Value| message["reason"].as_str().unwrap().to_owned();
            let mut reasons: Vec<String> = messages.as_array().unwrap().iter().map(reason).collect();
            reasons.sort();
            reasons
        };
        // The answer stays the same, however often it is read.
        for _ in 0..3 {
            until("both are shown", || async { reasons().await == ["it is not JSON", "there is no [kinds.later]"] })
                .await;
        }
        let act = async |action: &str, reason: &str, dry: bool| {
            let wish = json!({ "action": action, "filter": { "reason": reason }, "dry_run": dry });
            let came = did(&served, "/quarantine/actions", wish).await;
            (came["matching"].as_i64().unwrap(), came["changed"].as_i64())
        };
        assert_eq!(act("drop", "JSON", true).await, (1, None));
        assert_eq!(act("drop", "", true).await, (0, None), "none is without a reason");
        until("it was put back", || async { reasons().await.len() == 2 }).await;
        assert_eq!(act("drop", "JSON", false).await, (1, Some(1)));
        assert_eq!(act("retry", "later", false).await, (1, Some(1)));
        until("none is left", || async { reasons().await.is_empty() }).await;
        if connections.broker.keeps_messages() {
            assert_eq!(connections.broker.depth("work").await.unwrap().ready, 1, "it waits for a worker once more");
        } else {
            assert_eq!(connections.ledger.kept_jobs(0, 9).await.unwrap().len(), 1);
            let worker = worker(&config);
            until("it has run, and is forgotten", || async {
                connections.ledger.kept_jobs(0, 9).await.unwrap().is_empty()
            })
            .await;
            drop(worker);
        }
    }

    pub async fn the_overview_tells_what_is_wrong_and_goes_on_telling(ground: Ground) {
        let config = config(&ground);
        enroll(&ground, &config, "sync", "a,\nb,\n", "0s").await;
        let served = served(&config).await;
        let troubles = || async {
            let told = got(&served, "/overview").await["troubles"].clone();
            let words = |trouble: &Value| trouble["what"].as_str().unwrap().to_owned();
            told.as_array().unwrap().iter().map(words).collect::<Vec<String>>()
        };
        until("nobody works", || async { troubles().await.iter().any(|words| words.starts_with("no worker runs")) })
            .await;
        until("they are overdue", || async {
            troubles().await.iter().any(|words| words.starts_with("2 chains are late"))
        })
        .await;
        let worker = worker(&config);
        until("all is well", || async { troubles().await.is_empty() }).await;
        let overview = got(&served, "/overview").await;
        assert_eq!(
            (&overview["chains"]["total"], &overview["workers"]["working"]),
            (&json!(2), &json!(1)),
            "{overview}"
        );
        until("starts are counted", || async {
            let hour = got(&served, "/overview").await["starts"]["hour"].clone();
            hour.as_array().unwrap().iter().map(|bucket| bucket["starts"].as_i64().unwrap()).sum::<i64>() >= 2
        })
        .await;
        // The same as events, while one listens.
        let client = crate::served::client().build().unwrap();
        let mut events = client.get(format!("{}/api/v1/events", served.base)).send().await.unwrap();
        assert_eq!(events.headers()["content-type"], "text/event-stream");
        let mut text = String::new();
        while text.matches("event: overview\n").count() < 2 {
            text.push_str(&String::from_utf8_lossy(&events.chunk().await.unwrap().expect("it goes on")));
        }
        let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(data).unwrap()["chains"]["total"], 2);
        // The configuration, and what it will do.
        let told = got(&served, "/configuration").await;
        assert!(told["toml"].as_str().unwrap().contains("[kinds.sync]"), "{told}");
        let wanted = json!({ "for": "6h", "chains": { "sync": 20, "other": 5 } });
        let begun = served.post("/api/v1/simulations", &wanted).await.is(202).json();
        let path = format!("/simulations/{}", begun["id"].as_str().unwrap());
        until("it is simulated", || async { got(&served, &path).await["state"] == "done" }).await;
        let report = got(&served, &path).await["report"].clone();
        assert_eq!((&report["kinds"]["sync"]["chains"], &report["throttles"]["ios"]["allow"]), (&json!(20), &json!(5)));
        assert!(report["series"]["all"].as_array().unwrap().len() > 10, "{report}");
        let broken = json!({ "toml": "[kinds.sync]\nevery = \"soon\"" });
        served.post("/api/v1/simulations", &broken).await.says(422, "`soon` is not a duration");
        served.delete(&format!("/api/v1{path}")).await.is(200);
        served.get(&format!("/api/v1{path}")).await.is(404);
        drop(worker);
        assert_eq!(served.stop().await, Some(0));
    }
}
