//! What an operator orders of throttles, by the real program and with a real worker that goes on.

use std::path::Path;

use roundelay::Config;
use roundelay::engine::Connections;
use roundelay::pacing::SlotRequest;
use roundelay::pacing::slots::Feedback;
use serde_json::json;

use crate::commands::{ok, refused, told};
use crate::harness::{Ground, on_all, until, worker};

/// What `roundelay show` says of why a chain does not run.
async fn why(config: &Path, key: &str) -> String {
    told("show", config, &["sync", key]).await["chain"]["why"].as_str().unwrap().to_owned()
}

/// How often anything has run.
fn runs(ground: &Ground, key: &str) -> usize {
    let ran = std::fs::read_to_string(ground.path("ran")).unwrap_or_default();
    ran.lines().filter(|line| *line == key).count()
}

mod run {
    use super::*;

    pub async fn limits_and_holds_are_obeyed_by_a_worker_that_goes_on(ground: Ground) {
        let config = ground.config_file(&format!(
            r#"
[queues.work]
throttle = "upstream"
[throttles.upstream]
allow = 1
per = "1h"
[kinds.sync]
queue = "work"
every = "1h"
handler.exec = {{ argv = ["/bin/sh", "-c", "echo $ROUNDELAY_KEY >> {}"], env = {{ PATH = "/usr/bin:/bin" }} }}
"#,
            ground.path("ran").display()
        ));
        let roster = ground.path("roster.csv");
        std::fs::write(&roster, "key\na\nb\nc\n").unwrap();
        ok("enroll", &config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await;
        let all = ["a", "b", "c"];
        let ran = || all.iter().map(|key| runs(&ground, key)).sum::<usize>();
        let _worker = worker(&config);
        until("the one that may has run", async || ran() == 1).await;

        // It says why the others do not.
        let state = async || told("throttle show", &config, &["upstream"]).await;
        until("somebody waits", async || state().await["waits"] == json!(["work"])).await;
        let shown = state().await;
        assert_eq!(shown["states"][0]["windows"], json!([{ "used": 1, "allow": 1, "per_ms": 3_600_000 }]), "{shown}");
        let waits = *all.iter().find(|key| runs(&ground, key) == 0).unwrap();
        let words = "the throttle upstream is used up (1 of 1 in 60m): the next slot opens in ";
        assert!(why(&config, waits).await.starts_with(words), "{}", why(&config, waits).await);
        let status = ok("status", &config, &[]).await;
        assert!(status.lines().any(|line| line.starts_with(words) && line.ends_with(", 2 wait")), "{status}");
        let list = ok("throttle list", &config, &[]).await;
        assert!(list.contains("1 of 1") && list.contains(words), "{list}");

        // Other limits, for those that wait already.
        let set = ["upstream", "--allow", "500", "--per", "10s", "--by", "ann"];
        let said = ok("throttle set", &config, &set).await;
        let words =
            "upstream: 500 per 10s, in place of the configured 1 per 60m; it holds for all workers from the next slot";
        assert!(said.starts_with(words), "{said}");
        until("all have run", async || ran() == 3).await;
        let shown = told("throttle list", &config, &[]).await["throttles"][0].clone();
        assert_eq!(shown["limits"], json!({ "windows": [{ "allow": 500, "per_ms": 10_000 }], "burst": 1 }));
        assert_eq!(
            (&shown["ordered"]["by"], &shown["hold"], &shown["in_the_way"]),
            (&json!("ann"), &json!(null), &json!(null))
        );

        // A hold, and its end.
        let hold = ["upstream", "--for", "1h", "--why", "they are down", "--by", "ann"];
        ok("throttle hold", &config, &hold).await;
        ok("advance", &config, &["sync", "a"]).await;
        let told_of = async |words: &str| why(&config, "a").await.contains(words);
        until("it says so", async || told_of("the throttle upstream is held by ann since ").await).await;
        assert!(told_of(": they are down (`roundelay throttle release upstream` lets it go on)").await);
        until("a worker wants a slot for it", async || state().await["waits"] == json!(["work"])).await;
        assert_eq!(runs(&ground, "a"), 1);
        let released = ok("throttle release", &config, &["upstream"]).await;
        assert!(released.starts_with("upstream: released; "), "{released}");
        until("it runs", async || runs(&ground, "a") == 2).await;

        // A hold that an upstream has asked for can be released, too.
        let settings = Config::load(&config).unwrap();
        let ledger = Connections::ledger(&settings).await.unwrap();
        let until_then = ledger.now().as_millis() + 3_600_000;
        let limits = settings.throttles["upstream"].limits.clone();
        let feedback = vec![Feedback::Hold { until: 3_600_000_000, why: "HTTP 429".into() }];
        let (throttle, key) = ("upstream".into(), String::new());
        let request = SlotRequest { throttle, key, limits, feedback, requests: Vec::new(), ahead: 0 };
        ledger.slots(vec![request]).await.unwrap();
        ok("advance", &config, &["sync", "b"]).await;
        until("a worker wants a slot for it", async || state().await["waits"] == json!(["work"])).await;
        let held = state().await["states"][0]["held"].clone();
        assert_eq!((&held["why"], &held["by"]), (&json!("HTTP 429"), &json!(null)));
        assert!((held["until"].as_i64().unwrap() - until_then).abs() < 60_000, "{held}");
        let before = runs(&ground, "b");
        ok("throttle release", &config, &["upstream"]).await;
        until("it runs", async || runs(&ground, "b") == before + 1).await;

        let reset = ok("throttle reset", &config, &["upstream"]).await;
        assert_eq!(reset, "upstream: 1 per 60m, as configured\n");
        assert_eq!(state().await["ordered"], json!(null));
    }

    pub async fn impossible_orders_are_refused(ground: Ground) {
        let config = ground.config_file(
            "[queues.work]\nthrottle = \"ios\"\n[throttles.ios]\nallow = 5\nper = \"1m\"\nburst = 3\n[kinds.sync]\nevery = \
             \"1h\"\nqueue = \"work\"\ncost = 2\nhandler.exec.argv = [\"/bin/true\"]\n",
        );
        let roster = ground.path("roster.csv");
        std::fs::write(&roster, "key\na\n").unwrap();
        ok("enroll", &config, &["--kind", "sync", "--spread", "1h", roster.to_str().unwrap()]).await;
        for verb in ["set", "hold", "release", "reset", "show"] {
            let rest: &[&str] = match verb {
                "set" => &["ois", "--allow", "5"],
                "hold" => &["ois", "--for", "1m", "--why", "so"],
                _ => &["ois"],
            };
            refused(&format!("throttle {verb}"), &config, rest, &["there is no [throttles.ois]", "has ios"]).await;
        }
        refused(
            "throttle set",
            &config,
            &["ios", "--allow", "0"],
            &["allow: 0 would let nothing start ever", "hold the throttle"],
        )
        .await;
        let burst = ["ios", "--allow", "5", "--burst", "6"];
        refused("throttle set", &config, &burst, &["burst: 6 is more than the window allows, which is 5"]).await;
        let words = ["a run of sync costs 2, and with an allowance of 1 it could never start"];
        refused("throttle set", &config, &["ios", "--allow", "1"], &words).await;
        refused("throttle hold", &config, &["ios", "--for", "1m", "--why", " "], &["why: it needs a word"]).await;
        refused("throttle show", &config, &["ios", "us"], &["has no keys, so none called `us`"]).await;
        assert_eq!(told("throttle show", &config, &["ios"]).await["ordered"], json!(null), "nothing was ordered");
        // What is not said stays, as far as it can.
        for (allow, burst) in [("9", 3), ("2", 2)] {
            ok("throttle set", &config, &["ios", "--allow", allow]).await;
            let limits = told("throttle show", &config, &["ios"]).await["limits"].clone();
            let allow: u32 = allow.parse().unwrap();
            assert_eq!(limits, json!({ "windows": [{ "allow": allow, "per_ms": 60_000 }], "burst": burst }));
        }
    }
}

on_all!(limits_and_holds_are_obeyed_by_a_worker_that_goes_on);
on_all!(impossible_orders_are_refused);
