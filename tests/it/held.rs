//! What operators have stopped is held: it is told apart from what is late, and is no fault.

use std::cell::RefCell;
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};

use crate::commands::{ok, told};
use crate::harness::{Ground, on_all, until, worker};
use crate::served::Served;

on_all!(the_chains_behind_a_paused_queue_are_held_and_no_others);
on_all!(a_keyed_throttle_that_an_operator_holds_is_no_warning);

/// Begins chains `key,channel` of a kind that are due at once.
async fn enroll(ground: &Ground, config: &Path, kind: &str, rows: &str) {
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, format!("key,channel\n{rows}")).unwrap();
    ok("enroll", config, &["--kind", kind, "--spread", "0s", roster.to_str().unwrap()]).await;
}

async fn got(served: &Served, path: &str) -> Value {
    served.get(&format!("/api/v1{path}")).await.is(200).json()
}

mod run {
    use super::*;

    pub async fn the_chains_behind_a_paused_queue_are_held_and_no_others(ground: Ground) {
        let go = ground.path("go");
        let script = format!("[ $ROUNDELAY_KEY != slow ] || while [ ! -e '{}' ]; do sleep 0.05; done", go.display());
        let config = ground.config_file(&format!(
            r#"
catch_up.slack = "1s"
[api]
anonymous = "operate"
[queues.work]
[queues.side]
[kinds.sync]
queue = "work"
every = "1h"
handler.exec = {{ argv = ["/bin/sh", "-c", "{script}"], env = {{ PATH = "/usr/bin:/bin" }} }}
[kinds.other]
queue = "side"
every = "1h"
handler.exec.argv = ["/bin/true"]
"#
        ));
        let served = Served::start(&config).await;
        let keys = async |state: &str| -> Vec<String> {
            let page = got(&served, &format!("/chains?state={state}")).await;
            page["chains"].as_array().unwrap().iter().map(|chain| chain["key"].as_str().unwrap().into()).collect()
        };
        enroll(&ground, &config, "sync", "slow,\n").await;
        let worker = worker(&config);
        until("it runs", async || keys("running").await == ["slow"]).await;
        ok("queue pause", &config, &["work", "--why", "they are down"]).await;
        until("the worker obeys", async || {
            let queues = told("workers list", &config, &[]).await["workers"][0]["queues"].clone();
            queues.as_array().unwrap().iter().any(|queue| queue["queue"] == "work" && queue["paused"] == true)
        })
        .await;

        // Two that are due, one that is paused itself, one that sleeps, and one on another queue.
        enroll(&ground, &config, "sync", "a,\nb,\npaused,\n").await;
        ok("pause", &config, &["sync", "paused"]).await;
        let now = got(&served, "/chains").await["now"].as_i64().unwrap();
        let sleeps = json!({ "first_due": now + 3_600_000 }).to_string();
        let json_body = [("content-type", "application/json")];
        served.ask(Method::PUT, "/api/v1/chains/sync/sleeps", &json_body, Some(sleeps)).await.is(201);
        enroll(&ground, &config, "other", "x,\n").await;
        until("the other queue goes on", async || {
            got(&served, "/runs?kind=other&verdict=done").await["runs"].as_array().unwrap().len() == 1
        })
        .await;
        assert_eq!(keys("held").await, ["a", "b"]);
        assert_eq!(keys("late").await, [""; 0]);
        assert_eq!(keys("running").await, ["slow"], "what runs is not held");
        let page = got(&served, "/chains?state=held").await;
        assert!(page["chains"].as_array().unwrap().iter().all(|chain| chain["doing"] == "held"), "{page}");
        let first = got(&served, "/chains?state=held&limit=1").await;
        assert_eq!(first["chains"][0]["key"], "a");
        assert_eq!(keys(&format!("held&limit=1&after={}", first["after"].as_str().unwrap())).await, ["b"]);
        assert_eq!(keys("held&kind=other").await, [""; 0]);

        // States that there are not, also one that was called so before.
        for unknown in ["overdue", "Held", ""] {
            let path = format!("/api/v1/chains?state={unknown}");
            served.get(&path).await.says(400, "state").says(400, "`late`");
        }
        // Which of them are held changes with orders, so none can be given by it.
        let order = json!({ "action": "retire", "filter": { "state": "held" } });
        served.post("/api/v1/chains/actions", &order).await.says(422, "filter.state").says(422, "filter by queue");

        std::fs::write(&go, "").unwrap();
        ok("queue resume", &config, &["work"]).await;
        until("nothing is held", async || keys("held").await.is_empty()).await;
        until("they run", async || {
            got(&served, "/runs?kind=sync&verdict=done").await["runs"].as_array().unwrap().len() == 3
        })
        .await;
        drop(worker);
        assert_eq!(served.stop().await, Some(0));
    }

    pub async fn a_keyed_throttle_that_an_operator_holds_is_no_warning(ground: Ground) {
        let config = ground.config_file(
            // A job that would wait for longer than `block` is put off, and waits no more.
            r#"
catch_up.slack = "1s"
[queues.work]
throttle = "ios"
[throttles.ios]
allow = 1
per = "4m"
key = "payload.channel"
block = "5m"
[kinds.sync]
queue = "work"
every = "1h"
handler.exec.argv = ["/bin/true"]
"#,
        );
        enroll(&ground, &config, "sync", "a,c-1\nb,c-1\n").await;
        let served = Served::start(&config).await;
        let worker = worker(&config);
        // The level and the words that are told of the throttle while a job waits for its slot.
        let waits = async || -> Vec<(String, String)> {
            let overview = got(&served, "/overview").await;
            if overview["waiting_for_slot"] == 0 {
                return Vec::new();
            }
            let of_throttles = overview["troubles"].as_array().unwrap().iter();
            let of_throttles = of_throttles.filter(|trouble| trouble["see"]["screen"] == "throttles");
            let text = |text: &Value| text.as_str().unwrap().to_owned();
            of_throttles.map(|trouble| (text(&trouble["level"]), text(&trouble["what"]))).collect()
        };
        // No schedule says what the chains of a channel need, so a wait for the limit is a warning.
        let told = RefCell::new(Vec::new());
        until("one waits, and it is told", async || {
            let now = waits().await;
            told.replace(now);
            !told.borrow().is_empty()
        })
        .await;
        let seen = told.take();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert!(seen[0].0 == "warning" && seen[0].1.starts_with("the throttle ios for `c-1` is used up"), "{seen:?}");

        ok("throttle hold", &config, &["ios", "--for", "2m", "--why", "they are down", "--by", "ann"]).await;
        until("the hold is told while one waits", async || {
            let now = waits().await;
            told.replace(now);
            told.borrow().iter().any(|(level, _)| level == "held")
        })
        .await;
        let seen = told.take();
        assert_eq!(seen.len(), 1, "an operator's hold is no warning, and hides the limit: {seen:?}");
        assert!(seen[0].1.starts_with("the throttle ios is held by ann since "), "{seen:?}");
        drop(worker);
        assert_eq!(served.stop().await, Some(0));
    }
}
