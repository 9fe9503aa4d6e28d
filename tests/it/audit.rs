//! The orders of the command line in the audit: the real program gives them, and the API shows the entries.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::commands::{ok, refused, told};
use crate::harness::{Ground, Output, on_all, roundelay_with};
use crate::served::Served;

on_all!(what_begins_chains_and_makes_jobs_and_tokens_is_in_the_audit);
on_all!(an_order_that_fails_is_in_the_audit_with_its_failure);
on_all!(a_ledger_that_is_encrypted_anew_is_in_the_audit);

/// In every payload, and in no other place.
const CANARY: &str = "canary-in-a-cage";

const CONFIG: &str = r#"
[api]
anonymous = "read"
[queues.work]
[queues.side]
[kinds.sync]
queue = "work"
every = "1h"
handler.exec.argv = ["/bin/true"]
"#;

/// All entries, the first order first.
async fn entries(config: &Path) -> Vec<Value> {
    let served = Served::start(config).await;
    let audit = served.get("/api/v1/audit?limit=500").await.is(200).json();
    assert_eq!(served.stop().await, Some(0));
    let mut entries = audit["entries"].as_array().unwrap().clone();
    entries.reverse();
    entries
}

/// What was ordered, of what, and how it ended.
fn told_of(entries: &[Value]) -> Vec<(&str, &str, u64)> {
    entries
        .iter()
        .map(|entry| {
            let (action, target) = (entry["action"].as_str().unwrap(), entry["target"].as_str().unwrap());
            (action, target, entry["status"].as_u64().unwrap())
        })
        .collect()
}

fn roster(ground: &Ground, name: &str, rows: &str) -> PathBuf {
    let roster = ground.path(name);
    std::fs::write(&roster, format!("key,note\n{rows}")).unwrap();
    roster
}

/// Runs a command under the account of `ann`.
async fn as_ann(verb: &str, config: &Path, rest: &[&str]) -> Output {
    let mut arguments: Vec<&str> = verb.split(' ').collect();
    arguments.extend(["--config", config.to_str().unwrap()]);
    arguments.extend(rest);
    roundelay_with(&[("SUDO_USER", "ann")], &arguments).await
}

mod run {
    use super::*;

    pub async fn what_begins_chains_and_makes_jobs_and_tokens_is_in_the_audit(ground: Ground) {
        let config = ground.config_file(CONFIG);
        let all = roster(&ground, "all.csv", &["a", "b", "c"].map(|key| format!("{key},{CANARY}\n")).concat());
        let all = all.to_str().unwrap();
        let enroll = async |rest: &[&str]| as_ann("enroll", &config, &[&["--kind", "sync"], rest].concat()).await;
        assert!(enroll(&[all, "--dry-run"]).await.ok, "it changes nothing, and is not in the audit");
        assert!(enroll(&[all, "--spread", "2h"]).await.ok);
        // One row cannot be used, so nothing is retired.
        let fewer = roster(&ground, "fewer.csv", &format!("b,other {CANARY}\nc\n"));
        let fewer = fewer.to_str().unwrap();
        assert_eq!(enroll(&[fewer, "--prune"]).await.code, Some(1));
        roster(&ground, "fewer.csv", &format!("b,other {CANARY}\n"));
        assert!(enroll(&[fewer, "--prune"]).await.ok);
        ok("retire", &config, &["sync", "b"]).await;
        assert!(enroll(&[fewer]).await.ok);

        let payload = json!(CANARY).to_string();
        let job = ["sync", "x", "--owner", "bob", "--payload", &payload, "--json"];
        let published = as_ann("publish", &config, &job).await.json();
        as_ann("publish", &config, &["sync", "y", "--queue", "side", "--delay", "1h"]).await;
        refused("publish", &config, &["snyc", "x"], &["there is no [kinds.snyc]"]).await;

        let made = as_ann("token create", &config, &["ci", "--scope", "operate", "--expires", "90d", "--json"]).await;
        let secret = made.json()["secret"].as_str().unwrap().to_owned();
        ok("token revoke", &config, &["ci"]).await;

        let entries = entries(&config).await;
        assert_eq!(
            told_of(&entries),
            [
                ("roundelay enroll", "sync", 200),
                ("roundelay enroll", "sync", 200),
                ("roundelay enroll", "sync", 200),
                ("roundelay retire", "sync b", 200),
                ("roundelay enroll", "sync", 200),
                ("roundelay publish", "sync x", 200),
                ("roundelay publish", "sync y", 200),
                ("roundelay token create", "ci", 200),
                ("roundelay token revoke", "ci", 200),
            ]
        );
        // An entry for all chains, with how many they are: those of the API for many chains have the same words.
        let counts = |entry: &Value| {
            ["created", "updated", "unchanged", "retired", "refused", "ended_before"]
                .map(|name| entry["detail"][name].as_u64().unwrap())
        };
        assert_eq!(
            [0, 1, 2, 4].map(|n| counts(&entries[n])),
            [[3, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 0, 0], [0, 0, 0, 0, 0, 1],]
        );
        let asked = |n: usize| (&entries[n]["detail"]["roster"], &entries[n]["detail"]["prune"]);
        assert_eq!([asked(0), asked(2)], [(&json!(all), &json!(false)), (&json!(fewer), &json!(true))]);
        assert_eq!(
            entries[5]["detail"],
            json!({ "kind": "sync", "key": "x", "id": published["id"], "queue": "work", "owner": "bob" })
        );
        assert_eq!((&entries[6]["detail"]["queue"], &entries[6]["detail"]["owner"]), (&json!("side"), &json!(null)));
        assert_eq!(entries[7]["detail"], json!({ "scope": "operate", "expires_in": "90d" }));
        for entry in [0, 1, 2, 4, 5, 6, 7].map(|n| &entries[n]) {
            assert!(entry["actor"].as_str().unwrap().starts_with("ann"), "{entry}");
            assert_eq!(entry["scope"], "admin");
        }
        let text = json!(entries).to_string();
        assert!(!text.contains(CANARY), "a payload is not the audit's business: {text}");
        assert!(!text.contains(&secret), "{text}");
    }

    pub async fn an_order_that_fails_is_in_the_audit_with_its_failure(ground: Ground) {
        let config = ground.config_file(CONFIG);
        // Of a job that no queue takes, the broker says so; without a broker the ledger keeps every job.
        let mut expected = Vec::new();
        if ground.vhost.is_some() {
            refused("publish", &config, &["sync", "x"], &["failed to publish", "roundelay topology apply"]).await;
            expected.push(("roundelay publish", "sync x", 409));
        }
        let (some, none) = (roster(&ground, "some.csv", "a,\n"), roster(&ground, "none.csv", ""));
        ok("enroll", &config, &["--kind", "sync", some.to_str().unwrap()]).await;
        refused("enroll", &config, &["--kind", "sync", "--prune", none.to_str().unwrap()], &["the roster is empty"])
            .await;
        refused("pause", &config, &["sync", "nobody"], &["there is no chain sync nobody"]).await;
        ok("pause", &config, &["sync", "a"]).await;
        refused("pause", &config, &["sync", "a"], &["is not active"]).await;
        refused("advance", &config, &["sync", "a"], &["it is paused"]).await;
        refused("queue pause", &config, &["work", "--why", " ", "--by", "bob"], &["why: it needs a word"]).await;
        refused("workers drain", &config, &["nobody"], &["no worker is called nobody"]).await;
        refused("token create", &config, &["two words", "--scope", "read"], &["letters"]).await;
        refused("token revoke", &config, &["ci"], &["there is no token ci"]).await;
        // Nobody was asked, and nothing is to be done.
        assert_eq!(told("pause", &config, &["sync", "--all", "--dry-run"]).await["chains"], 0);

        let entries = entries(&config).await;
        expected.extend([
            ("roundelay enroll", "sync", 200),
            ("roundelay enroll", "sync", 409),
            ("roundelay pause", "sync nobody", 409),
            ("roundelay pause", "sync a", 200),
            ("roundelay pause", "sync a", 409),
            ("roundelay advance", "sync a", 409),
            ("roundelay queue pause", "work", 409),
            ("roundelay workers drain", "nobody", 409),
            ("roundelay token create", "two words", 409),
            ("roundelay token revoke", "ci", 409),
        ]);
        assert_eq!(told_of(&entries), expected);
        // What was asked for stays.
        let of = |action: &str| entries.iter().rfind(|entry| entry["action"] == action).unwrap();
        assert_eq!(of("roundelay enroll")["detail"]["prune"], true);
        let paused = of("roundelay queue pause");
        assert_eq!((&paused["actor"], &paused["detail"]), (&json!("bob"), &json!({ "why": " " })));
    }

    pub async fn a_ledger_that_is_encrypted_anew_is_in_the_audit(ground: Ground) {
        let plain = ground.config_file(CONFIG);
        let roster = roster(&ground, "all.csv", &format!("a,{CANARY}\nb,{CANARY}\n"));
        ok("enroll", &plain, &["--kind", "sync", roster.to_str().unwrap()]).await;
        let keys = |seal: &str| {
            let key = STANDARD.encode([7; 64]);
            ground.config_file(&format!("[encryption]\nseal = \"{seal}\"\nkeys = {{ k1 = \"{key}\" }}\n{CONFIG}"))
        };
        let sealed = keys("k1");
        ok("encryption", &sealed, &[]).await;
        ok("encryption", &sealed, &["--reseal"]).await;
        let plain = keys("");
        ok("encryption", &plain, &["--unseal"]).await;
        let entries = entries(&plain).await;
        assert_eq!(
            told_of(&entries)[1..],
            [("roundelay encryption --reseal", "k1", 200), ("roundelay encryption --unseal", "", 200)],
            "a look changes nothing"
        );
        for entry in &entries[1..] {
            assert_eq!(entry["detail"], json!({ "written": 2, "unopened": 0 }));
        }
    }
}
