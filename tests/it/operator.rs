//! What an operator does with chains, by the real program and with real workers.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::timeout;

use crate::commands::{ok, refused, run, told};
use crate::harness::{Ground, SOON, on_all, until};

/// A configuration whose kind `sync` runs `script`, recurring as `schedule` says. The script finds its key and tick
/// in its environment.
fn config(ground: &Ground, schedule: &str, script: &str) -> PathBuf {
    ground.config_file(&format!(
        r#"
[queues.work]
[kinds.sync]
queue = "work"
{schedule}
roster.owner = "{{{{ owner }}}}"
retry = {{ attempts = 2, backoff = ["50ms"] }}
handler.exec = {{ argv = ["/bin/sh", "-c", "{script}"], env = {{ PATH = "/usr/bin:/bin" }} }}
"#
    ))
}

/// A script that writes each run's key on a line of `ran`.
fn notes(ground: &Ground) -> String {
    format!("echo $ROUNDELAY_KEY >> {}", ground.path("ran").display())
}

/// How often `key` has run.
fn runs(ground: &Ground, key: &str) -> usize {
    let ran = std::fs::read_to_string(ground.path("ran")).unwrap_or_default();
    ran.lines().filter(|line| *line == key).count()
}

/// Begins chains `key,owner` of the kind `sync`, with their first ticks spread over `spread`.
async fn enroll(ground: &Ground, config: &Path, rows: &str, spread: &str) {
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, format!("key,owner\n{rows}")).unwrap();
    ok("enroll", config, &["--kind", "sync", "--spread", spread, roster.to_str().unwrap()]).await;
}

/// Starts a worker that writes its log to a file.
fn worker(ground: &Ground, config: &Path, log: &str) -> Child {
    let log = std::fs::File::create(ground.path(log)).unwrap();
    tokio::process::Command::new(env!("CARGO_BIN_EXE_roundelay"))
        .args(["worker", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

pub fn signal(worker: &Child, signal: Signal) {
    kill(Pid::from_raw(worker.id().unwrap() as i32), signal).unwrap();
}

async fn stop(mut worker: Child) {
    signal(&worker, Signal::SIGTERM);
    let status = timeout(SOON, worker.wait()).await.expect("the worker ends").unwrap();
    assert_eq!(status.code(), Some(0));
}

async fn logged(ground: &Ground, log: &str, words: &str) {
    let path = ground.path(log);
    until(words, || async { std::fs::read_to_string(&path).unwrap_or_default().contains(words) }).await;
}

async fn show(config: &Path, key: &str) -> Value {
    told("show", config, &["sync", key]).await
}

mod run {
    use super::*;

    pub async fn queues_and_workers_are_steered_by_command_while_they_run(ground: Ground) {
        let config = config(&ground, "every = \"300ms\"", &notes(&ground));
        enroll(&ground, &config, "a,\n", "0s").await;
        let worker = worker(&ground, &config, "log");
        until("a worker is heard of", || async {
            told("workers list", &config, &[]).await["workers"].as_array().unwrap().len() == 1
        })
        .await;
        until("it runs", || async { runs(&ground, "a") >= 2 }).await;
        let listed = told("workers list", &config, &[]).await["workers"][0].clone();
        assert_eq!((&listed["pid"], &listed["state"]), (&json!(worker.id().unwrap()), &json!("working")));
        let name = listed["worker"].as_str().unwrap();

        ok("queue pause", &config, &["work", "--why", "they are down", "--by", "ann"]).await;
        let heard = async |open: bool| {
            let listed = told("workers list", &config, &[]).await["workers"][0].clone();
            listed["queues"][0]["paused"] == json!(!open) && listed["queues"][0]["running"] == 0
        };
        until("the worker obeys", || heard(false)).await;
        let before = runs(&ground, "a");
        let queue = told("queue list", &config, &[]).await["queues"][0].clone();
        assert_eq!((&queue["queue"], &queue["paused"]["by"]), (&json!("work"), &json!("ann")), "{queue}");
        assert!(ok("queue list", &config, &[]).await.contains("held by ann since"));
        let why = || async { show(&config, "a").await["chain"]["why"].as_str().unwrap().to_owned() };
        until("it says why", || async { why().await.contains("the queue work is paused by ann since") }).await;
        assert!(why().await.contains("they are down (`roundelay queue resume work` lets it go on)"), "{}", why().await);
        assert_eq!(runs(&ground, "a"), before, "nothing has run meanwhile");
        ok("queue concurrency", &config, &["work", "3"]).await;
        let queue = told("queue list", &config, &[]).await["queues"][0].clone();
        assert_eq!(queue["concurrency"]["ordered"], 3);
        ok("queue resume", &config, &["work"]).await;
        until("it runs again", || async { runs(&ground, "a") > before + 1 }).await;

        ok("workers drain", &config, &[&name[..name.len() - 1]]).await;
        let state = async || told("workers list", &config, &[]).await["workers"][0]["state"].clone();
        until("it is drained", || async { state().await == "drained" }).await;
        ok("workers resume", &config, &[name]).await;
        until("it works", || async { state().await == "working" }).await;
        // Everything at once.
        ok("queue pause", &config, &["--all", "--why", "incident 7"]).await;
        until("it stops", || heard(false)).await;
        let said = ok("queue resume", &config, &["--all", "--why", "another"]).await;
        assert!(said.contains("no queue is paused with the reason \"another\""), "{said}");
        assert!(ok("queue resume", &config, &["--all", "--why", "incident 7"]).await.contains("one queue is resumed"));
        until("it goes on", || heard(true)).await;
        refused("queue pause", &config, &["elsewhere", "--why", "x"], &["there is no [queues.elsewhere]"]).await;
        refused("queue pause", &config, &["work", "--why", " "], &["why: it needs a word"]).await;
        refused("workers drain", &config, &["nobody"], &["no worker is called nobody"]).await;
        stop(worker).await;
        assert_eq!(told("workers list", &config, &[]).await["workers"], json!([]), "it has said goodbye");
    }

    pub async fn chains_are_listed_and_steered_by_owner_and_pattern(ground: Ground) {
        let config = config(&ground, "every = \"1h\"", "true");
        enroll(&ground, &config, "eu/1,ann\neu/2,ann\nus/1,bob\nus/2,\n", "1h").await;
        let keys = async |rest: &[&str]| {
            let list = told("list", &config, rest).await;
            let keys: Vec<String> =
                list["chains"].as_array().unwrap().iter().map(|c| c["key"].as_str().unwrap().into()).collect();
            (keys, list["after"].clone())
        };
        let (page, after) = keys(&["--limit", "3"]).await;
        assert_eq!((page, &after), (vec!["eu/1".into(), "eu/2".into(), "us/1".to_owned()], &json!("sync us/1")));
        let (page, after) = keys(&["--limit", "3", "--after", after.as_str().unwrap()]).await;
        assert_eq!((page, after), (vec!["us/2".to_owned()], json!(null)));
        assert_eq!(keys(&["--key", "*/1", "--kind", "sync", "--state", "active"]).await.0, ["eu/1", "us/1"]);
        let shown = ok("list", &config, &["--limit", "1"]).await;
        assert!(shown.contains("sleeps") && shown.contains("every 60m"), "{shown}");
        assert!(shown.ends_with("there are more: add --after 'sync eu/1'\n"), "{shown}");
        refused("list", &config, &["--after", "sync"], &["`sync app-17`"]).await;

        // Many need a word more, and a count is to be had before.
        let words = ["this would pause 2 chains", "--yes", "--dry-run"];
        refused("pause", &config, &["--owner", "ann"], &words).await;
        assert_eq!(ok("pause", &config, &["--owner", "ann", "--dry-run"]).await, "2 chains would be paused\n");
        assert_eq!(keys(&["--state", "paused"]).await.0, [""; 0], "nothing was changed");
        assert_eq!(told("pause", &config, &["--owner", "ann", "--yes"]).await, json!({ "paused": 2 }));
        assert_eq!(keys(&["--state", "paused", "--owner", "ann"]).await.0, ["eu/1", "eu/2"]);
        let owners = told("list", &config, &["--owners"]).await;
        assert_eq!(
            owners["owners"],
            json!([
                { "owner": "ann", "state": "paused", "active": 0, "paused": 2, "retired": 0, "quarantined": 0,
                  "late": 0, "late_complete": true, "failing": 0, "failing_complete": true },
                { "owner": "bob", "state": "active", "active": 1, "paused": 0, "retired": 0, "quarantined": 0,
                  "late": 0, "late_complete": true, "failing": 0, "failing_complete": true },
            ])
        );
        let chain = show(&config, "eu/1").await["chain"].clone();
        assert_eq!((&chain["state"], &chain["owner_state"]), (&json!("paused"), &json!("paused")));
        assert_eq!(chain["why"], "its owner is paused; `roundelay resume --owner ann` lets all of hers go on");
        assert_eq!(told("resume", &config, &["--owner", "ann", "--yes"]).await, json!({ "resumed": 2 }));
        assert_eq!(told("retire", &config, &["sync", "--key-like", "us/1"]).await, json!({ "retired": 1 }));
        let all = told("pause", &config, &["sync", "--all"]).await;
        assert_eq!(all, json!({ "paused": 3 }), "who says all need not say yes");
        // A kind by itself is a slip, and a pattern by itself would also fit the engine's own chains.
        for slip in [&["sync"][..], &["--key-like", "*"]] {
            assert_eq!(run("pause", &config, slip).await.code, Some(2), "{slip:?}");
        }
    }

    pub async fn a_tick_is_brought_forward_and_the_rotation_stays_one(ground: Ground) {
        let config = config(&ground, "every = \"1h\"", &notes(&ground));
        let absent = if ground.schema.is_some() { "there is no chain sync a" } else { "there is no ledger at" };
        refused("advance", &config, &["sync", "a"], &[absent]).await;
        enroll(&ground, &config, "a,ann\nb,\n", "1h").await;
        let worker = worker(&ground, &config, "log");
        ok("advance", &config, &["sync", "a"]).await;
        until("it has run", || async { runs(&ground, "a") == 1 }).await;
        let sleeps = || async { show(&config, "a").await["chain"]["tick"] == 2 };
        until("it sleeps again", sleeps).await;
        let chain = show(&config, "a").await["chain"].clone();
        let away = chain["due"].as_i64().unwrap() - chain["last_finish"].as_i64().unwrap();
        assert!((away - 3_600_000).abs() < 200, "counted from this run: {chain}");
        assert!(chain["why"].as_str().unwrap().starts_with("it sleeps until "), "{chain}");
        assert_eq!((&chain["attempts"][0]["verdict"], runs(&ground, "b")), (&json!("done"), 0));
        refused("advance", &config, &["sync", "z"], &["there is no chain sync z"]).await;
        refused("advance", &config, &["snyc", "a"], &["[kinds.snyc]"]).await;
        ok("pause", &config, &["sync", "b"]).await;
        refused("advance", &config, &["sync", "b"], &["it is paused", "roundelay resume"]).await;
        ok("retire", &config, &["sync", "b"]).await;
        refused("advance", &config, &["sync", "b"], &["it has ended", "--revive"]).await;
        stop(worker).await;
        ok("advance", &config, &["sync", "a"]).await;
        refused("advance", &config, &["sync", "a"], &["it is due already", "roundelay show"]).await;
    }

    pub async fn a_schedule_of_its_own_holds_at_once(ground: Ground) {
        let config = config(&ground, "every = \"24h\"", &notes(&ground));
        enroll(&ground, &config, "a,\nb,\n", "24h").await;
        let worker = worker(&ground, &config, "log");
        // Never ran, and was to wait for hours.
        let set = ok("schedule", &config, &["sync", "a", "100ms"]).await;
        assert!(set.starts_with("sync a: every 100ms (its own); its next tick comes at "), "{set}");
        until("it runs again and again", || async { runs(&ground, "a") >= 3 }).await;
        assert_eq!(runs(&ground, "b"), 0);
        ok("schedule", &config, &["sync", "a", "--default"]).await;
        let chain = show(&config, "a").await["chain"].clone();
        assert_eq!((&chain["schedule"], &chain["own_schedule"]), (&json!("every 24h, as its kind"), &json!(null)));
        let away = chain["due"].as_i64().unwrap() - chain["last_finish"].as_i64().unwrap();
        assert!((away - 86_400_000).abs() < 200, "from its last run: {chain}");
        let wall_clock = r#"{"cron":"0 3 * * *","zone":"Europe/Berlin"}"#;
        let set = told("schedule", &config, &["sync", "a", wall_clock]).await;
        let chain = show(&config, "a").await["chain"].clone();
        assert_eq!((&set["due"], &set["own"]), (&chain["due"], &json!(true)));
        assert_eq!(chain["own_schedule"], serde_json::from_str::<Value>(wall_clock).unwrap());
        let gaps: Vec<i64> = chain["next"].as_array().unwrap().iter().map(|at| at.as_i64().unwrap()).collect();
        assert_eq!(gaps.len(), 10);
        assert!(gaps[0] - chain["due"].as_i64().unwrap() >= 23 * 3_600_000, "{chain}");
        for (words, wrong) in [("is no schedule", "soon"), ("has gone by", r#"{"at":"2001-01-01T00:00:00Z"}"#)] {
            refused("schedule", &config, &["sync", "a", wrong], &[words]).await;
        }
        refused("schedule", &config, &["sync", "z", "5m"], &["there is no chain sync z"]).await;
        ok("pause", &config, &["sync", "b"]).await;
        // Its first tick comes at any time within the day, but hardly within this second, and then it would stay.
        let set = ok("schedule", &config, &["sync", "b", "1s"]).await;
        assert!(set.contains("once it is resumed (it is paused)"), "{set}");
        stop(worker).await;
    }

    pub async fn a_configuration_is_read_again_on_sighup(ground: Ground) {
        let text = |schedule: &str| config(&ground, schedule, &notes(&ground));
        let config = text("every = \"24h\"");
        enroll(&ground, &config, "a,\nb,\nc,\n", "24h").await;
        // Longer than the spread of first ticks: one that lay beyond it would be moved to now.
        ok("schedule", &config, &["sync", "c", "30h"]).await;
        let several = ground.vhost.is_some();
        let mut workers = vec![worker(&ground, &config, "log-0")];
        if several {
            workers.push(worker(&ground, &config, "log-1"));
        }
        for n in 0..workers.len() {
            logged(&ground, &format!("log-{n}"), "working").await;
        }
        // What is wrong changes nothing.
        let good = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, good.replace("24h", "soon")).unwrap();
        workers.iter().for_each(|worker| signal(worker, Signal::SIGHUP));
        for n in 0..workers.len() {
            let log = format!("log-{n}");
            logged(&ground, &log, "the configuration was not read again, and the old one goes on").await;
            logged(&ground, &log, "`soon` is not a duration").await;
        }
        text("every = \"200ms\"");
        workers.iter().for_each(|worker| signal(worker, Signal::SIGHUP));
        until("both follow", || async { runs(&ground, "a") >= 3 && runs(&ground, "b") >= 3 }).await;
        assert_eq!(runs(&ground, "c"), 0, "it has a schedule of its own");
        // And back to a long one, together with what needs a restart.
        let slow = std::fs::read_to_string(text("every = \"12h\"")).unwrap();
        std::fs::write(&config, slow.replace("[queues.work]", "[queues.work]\n[queues.more]")).unwrap();
        workers.iter().for_each(|worker| signal(worker, Signal::SIGHUP));
        logged(&ground, "log-0", "setting=\"[queues]\"").await;
        let asleep = async |key: &str| {
            let chain = show(&config, key).await["chain"].clone();
            let away = chain["due"].as_i64().unwrap() - chain["last_finish"].as_i64().unwrap_or_default();
            (away - 12 * 3_600_000).abs() < 1_000
        };
        until("both sleep for long", || async { asleep("a").await && asleep("b").await }).await;
        for worker in workers {
            stop(worker).await;
        }
    }

    pub async fn a_running_chain_follows_a_new_schedule_when_its_run_has_ended(ground: Ground) {
        let go = ground.path("go");
        let script = format!("{}; while [ ! -e '{}' ]; do sleep 0.05; done", notes(&ground), go.display());
        let text = |schedule: &str| config(&ground, schedule, &script);
        let config = text("every = \"24h\"");
        enroll(&ground, &config, "a,\nb,\n", "0s").await;
        let worker = worker(&ground, &config, "log");
        until("both run", || async { runs(&ground, "a") == 1 && runs(&ground, "b") == 1 }).await;
        assert!(show(&config, "a").await["chain"]["why"].as_str().unwrap().starts_with("it runs on "));
        refused("advance", &config, &["sync", "a"], &["it runs already"]).await;
        // By command, which waits for it, and by configuration.
        let set = run("schedule", &config, &["sync", "a", "300ms", "--wait", "0s"]).await;
        let words = "has its schedule (every 300ms), but it still runs";
        assert!(set.code == Some(1) && set.stderr.contains(words), "{set:?}");
        text("every = \"200ms\"");
        signal(&worker, Signal::SIGHUP);
        logged(&ground, "log", "the configuration was read again").await;
        std::fs::write(&go, "").unwrap();
        until("both run again", || async { runs(&ground, "a") >= 3 && runs(&ground, "b") >= 3 }).await;
        stop(worker).await;
    }

    pub async fn a_chain_shows_how_its_runs_ended_and_what_is_kept(ground: Ground) {
        let config = config(&ground, "every = \"1h\"", "echo it broke >&2; exit 1");
        enroll(&ground, &config, "a,ann\n", "0s").await;
        let worker = worker(&ground, &config, "log");
        until("it has failed twice", || async { show(&config, "a").await["chain"]["tick"] == 2 }).await;
        let report = show(&config, "a").await;
        let attempts = report["chain"]["attempts"].as_array().unwrap();
        let verdicts: Vec<&str> = attempts.iter().map(|attempt| attempt["verdict"].as_str().unwrap()).collect();
        assert_eq!(verdicts, ["failed", "retried"], "{report}");
        assert!(attempts[1]["reason"].as_str().unwrap().contains("it broke"), "{report}");
        assert!(report["failures"][0]["reason"].as_str().unwrap().contains("it broke"), "{report}");
        let shown = ok("show", &config, &["sync", "a", "--last", "1"]).await;
        for words in
            ["sync a on work: active", "why         it sleeps until", "owner       ann", "tick 1, attempt 2: failed"]
        {
            assert!(shown.contains(words), "no `{words}` in {shown}");
        }
        assert!(!shown.contains("tick 1, attempt 1"), "only the last was asked for: {shown}");
        refused("show", &config, &["sync", "z"], &["there is no chain sync z", "roundelay list --kind sync"]).await;
        stop(worker).await;
    }

    pub async fn a_retired_owners_jobs_do_not_start(ground: Ground) {
        let config = config(&ground, "every = \"1h\"", &notes(&ground));
        enroll(&ground, &config, "a,ann\n", "1h").await;
        ok("publish", &config, &["sync", "hers", "--owner", "ann"]).await;
        ok("publish", &config, &["sync", "his", "--owner", "bob"]).await;
        assert_eq!(told("retire", &config, &["--owner", "ann"]).await, json!({ "retired": 1 }));
        let worker = worker(&ground, &config, "log");
        until("his has run", || async { runs(&ground, "his") == 1 }).await;
        logged(&ground, "log", "its owner ann is gone").await;
        assert_eq!(runs(&ground, "hers"), 0);
        stop(worker).await;
    }
}

on_all!(queues_and_workers_are_steered_by_command_while_they_run);
on_all!(chains_are_listed_and_steered_by_owner_and_pattern);
on_all!(a_tick_is_brought_forward_and_the_rotation_stays_one);
on_all!(a_schedule_of_its_own_holds_at_once);
on_all!(a_configuration_is_read_again_on_sighup);
on_all!(a_running_chain_follows_a_new_schedule_when_its_run_has_ended);
on_all!(a_chain_shows_how_its_runs_ended_and_what_is_kept);
on_all!(a_retired_owners_jobs_do_not_start);
