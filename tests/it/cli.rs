//! The commands, by the real program.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use lapin::options::BasicGetOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use roundelay::broker::Broker;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::job::Envelope;
use serde_json::{Value, json};
use tokio::process::Child;
use tokio::time::timeout;

use crate::harness::{Ground, Output, SOON, Vhost, roundelay, roundelay_with, until, worker, worker_with};

const CONFIG: &str = r#"
[queues.work]
[queues.side]
[kinds.sync]
queue = "work"
every = "1h"
handler.exec.argv = ["/bin/true"]
"#;

/// `roundelay VERB… --config FILE REST…`
async fn run(verb: &str, config: &Path, rest: &[&str]) -> Output {
    let mut arguments: Vec<&str> = verb.split(' ').collect();
    arguments.extend(["--config", config.to_str().unwrap()]);
    arguments.extend(rest);
    roundelay(&arguments).await
}

fn ok(output: Output) -> Output {
    assert!(output.code == Some(0), "{output:?}");
    output
}

/// Asserts that the command failed with exit code 1 and said all of `words`.
fn failed(output: Output, words: &[&str]) -> Output {
    assert_eq!(output.code, Some(1), "{output:?}");
    for words in words {
        assert!(output.stderr.contains(words), "no `{words}` in {}", output.stderr);
    }
    output
}

fn vhost(ground: &Ground) -> &Vhost {
    ground.vhost.as_ref().unwrap()
}

/// Takes a message off a queue: its routing key and body.
async fn take(ground: &Ground, queue: &str) -> Option<(String, Envelope)> {
    let raw = vhost(ground).raw().await;
    let message = raw.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()?;
    Some((message.delivery.routing_key.to_string(), Envelope::decode(&message.delivery.data).unwrap()))
}

// ---- check ----

#[tokio::test]
async fn check_says_what_a_good_configuration_amounts_to() {
    let ground = Ground::embedded();
    let config = ground.config_file(CONFIG);
    let output = ok(run("check", &config, &[]).await);
    assert!(output.stdout.contains("every 60m") && output.stdout.contains("concurrency 16"), "{}", output.stdout);
    let report = ok(run("check", &config, &["--json"]).await).json();
    assert_eq!((&report["ok"], &report["queues"]), (&json!(true), &json!(["side", "work"])));
    // By default the file is looked for where one stands, and the error says how to name it.
    failed(roundelay(&["check", "--config", "absent.toml"]).await, &["absent.toml", "cannot be read", "--config"]);
}

#[tokio::test]
async fn a_reader_that_leaves_early_is_no_crash() {
    let ground = Ground::embedded();
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_roundelay"));
    command.args(["check", "--config"]).arg(ground.config_file(CONFIG)).stdin(Stdio::null());
    // The reader has left before the command begins, so that no command is too fast for it.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().await.unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.is_empty() && output.status.code() == Some(1), "{:?}: {complaint}", output.status);
}

#[tokio::test]
async fn check_says_which_queue_goes_past_an_upstream_s_throttle() {
    let ground = Ground::embedded();
    let text = r#"
[throttles.store]
allow = 5
per = "1m"
[queues.paced]
throttle = "store"
[queues.side]
[kinds.sync]
queue = "paced"
every = "1h"
handler.http.url = "http://127.0.0.1:8000/sync/{{ key }}"
[kinds.refresh]
queue = "side"
handler.http.url = "http://127.0.0.1:8000/refresh/{{ key }}"
"#;
    let config = ground.config_file(text);
    let output = ok(run("check", &config, &[]).await);
    let note = "note    queue side has no throttle, and refresh on it calls 127.0.0.1:8000, which elsewhere goes by the \
                throttle store; if that is not meant, set queues.side.throttle";
    assert!(output.stdout.lines().any(|line| line == note), "{output:?}");
    let report = ok(run("check", &config, &["--json"]).await).json();
    let told = json!([{ "queue": "side", "upstream": "127.0.0.1:8000", "kinds": ["refresh"], "throttles": ["store"] }]);
    assert_eq!(report["unpaced"], told);

    let config = ground.config_file(&text.replace("[queues.side]", "[queues.side]\nthrottle = \"store\""));
    let output = ok(run("check", &config, &[]).await);
    assert!(!output.stdout.contains("note"), "{output:?}");
}

#[tokio::test]
async fn check_says_where_a_job_s_own_values_go_into_a_url_as_they_stand() {
    let ground = Ground::embedded();
    let text = r#"
[queues.work]
[kinds.sync]
handler.http.url = "http://127.0.0.1:8000/sync/{{ key | raw }}"
[kinds.host]
handler.http.url = "http://{{ payload.host | raw }}/{{ key }}"
[kinds.plain]
handler.http.url = "http://127.0.0.1:8000/{{ key }}/{{ payload.raw }}?at={{ kind | urlencode }}"
"#;
    let config = ground.config_file(text);
    let output = ok(run("check", &config, &[]).await);
    let note = "note    kinds.sync.handler.http.url has `raw` behind the host: whoever names a key or gives a payload says \
                which path is called, with which parameters; leave `raw` out where that is not meant";
    let notes: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with("note")).collect();
    assert_eq!(notes, [note]);
    let report = ok(run("check", &config, &["--json"]).await).json();
    assert_eq!(report["raw_urls"], json!(["sync"]));
}

#[tokio::test]
async fn check_names_file_line_key_and_the_nearest_key_for_all_errors_at_once() {
    let ground = Ground::embedded();
    // Two lines come before it: those with broker.url and ledger.url.
    let shape = ground.config_file(
        r#"[worker]
grace = "soon"
[queues.work]
concurency = 4
[kinds.sync]
every = 5
retry = { atempts = 3 }
"#,
    );
    let at = |line: usize, rest: &str| format!("{}:{line}: {rest}", shape.display());
    failed(
        run("check", &shape, &[]).await,
        &[
            &at(4, "worker.grace: `soon` is not a duration"),
            &at(6, "queues.work.concurency: unknown key `concurency`; did you mean `concurrency`?"),
            &at(8, "kinds.sync.every: invalid type: integer `5`"),
            &at(9, "kinds.sync.retry.atempts: unknown key `atempts`; did you mean `attempts`?"),
        ],
    );
    let values = ground.config_file(
        r#"[queues.work]
prefetch = 0
throttle = "slw"
[throttles.slow]
allow = 0
per = "1s"
[kinds.sync]
queue = "wrok"
"#,
    );
    failed(
        run("check", &values, &[]).await,
        &[
            &at(4, "queues.work.prefetch: 0 would mean no limit"),
            &at(5, "queues.work.throttle: there is no [throttles.slw]; did you mean `slow`?"),
            &at(7, "throttles.slow.allow: 0 is out of range; from 1 to 1000000 is possible"),
            &at(10, "kinds.sync.queue: there is no [queues.wrok]; did you mean `work`?"),
        ],
    );
    let syntax = ground.config_file("[queues.work\n");
    failed(run("check", &syntax, &[]).await, &[&at(3, "not valid TOML")]);
}

#[tokio::test]
async fn check_names_the_variable_that_is_wrong_and_no_line_of_the_file() {
    let ground = Ground::embedded();
    let config = ground.config_file(&format!("worker.grace = \"3s\"\n{CONFIG}"));
    let check = async |name: &str, value: &str| {
        roundelay_with(&[(name, value)], &["check", "--config", config.to_str().unwrap()]).await
    };
    ok(check("ROUNDELAY__WORKER__GRACE", "5s").await);
    for (name, value, words) in [
        ("ROUNDELAY__WORKER__GRACE", "soon", "worker.grace: `soon` is not a duration"),
        ("ROUNDELAY__WORKER__GRACE", "1h", "worker.grace: 3600s is out of range"),
        ("ROUNDELAY__WORKER__GRAEC", "1s", "worker.graec: unknown key `graec`; did you mean `grace`?"),
        ("ROUNDELAY__WORKR__GRACE", "1s", "workr: unknown key `workr`; did you mean `worker`?"),
        ("ROUNDELAY__QUEUES__WORK__CONCURRENCY", "many", "queues.work.concurrency: invalid type: string \"many\""),
    ] {
        let place = format!("{}: {words}", config.display());
        failed(check(name, value).await, &[&place, &format!("(set by the environment variable {name})")]);
    }
}

// ---- enroll ----

#[tokio::test]
async fn enroll_may_be_done_again_and_brings_chains_up_to_date() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file(CONFIG);
    let roster = ground.path("roster.csv");
    let enroll = async |rows: &str| {
        std::fs::write(&roster, rows).unwrap();
        ok(run("enroll", &config, &["--kind", "sync", roster.to_str().unwrap(), "--json"]).await).json()
    };
    let tally = |created, unchanged, updated| {
        json!({ "created": created, "unchanged": unchanged, "updated": updated, "retired": 0, "pruned": 0,
                "unsent": 0, "rejected": 0, "rejects": null, "dry_run": false })
    };
    assert_eq!(enroll("key,name\na,1\nb,2\nc,3\n").await, tally(3, 0, 0));
    assert_eq!(enroll("key,name\na,1\nb,2\nc,3\n").await, tally(0, 3, 0));
    assert_eq!(enroll("key,name\na,1\nb,9\nd,4\n").await, tally(1, 1, 1));
    let status = ok(run("status", &config, &["--json"]).await).json();
    let queue = &status["ledger"]["queues"][0];
    assert_eq!((&queue["queue"], &queue["unsent"]), (&json!("work"), &json!(0)));
    assert_eq!(queue["sleeping"].as_i64().unwrap() + queue["due"].as_i64().unwrap(), 4, "{queue}");
    assert_eq!((&status["broker_error"], &status["failures"]), (&json!(null), &json!([])));
    assert_eq!(status["broker"]["roundelay.quarantine"], json!({ "ready": 0, "consumers": 0 }));
}

#[tokio::test]
async fn enroll_takes_the_good_rows_and_tells_of_the_bad_ones() {
    let ground = Ground::embedded();
    let config = ground.config_file(&CONFIG.replace("queue = \"work\"", "queue = \"{{ platform }}\""));
    let roster = ground.path("roster.ndjson");
    let rows = [
        r#"{"key":"a","platform":"work"}"#,
        r#"{"key":"b","platform":"wrok"}"#,
        "{oops",
        r#"{"platform":"work"}"#,
        r#"{"key":"","platform":"work"}"#,
        r#"{"key":"c","platform":"side"}"#,
    ];
    std::fs::write(&roster, rows.join("\n")).unwrap();
    let arguments = ["--kind", "sync", roster.to_str().unwrap(), "--json"];
    let output =
        failed(run("enroll", &config, &arguments).await, &["line 2: ", "line 3: ", "4 bad rows were left out"]);
    let rejects = ground.path("roster.ndjson.rejects");
    let report = output.json();
    assert_eq!((&report["created"], &report["rejected"]), (&json!(2), &json!(4)));
    assert_eq!(report["rejects"], json!(rejects.to_str().unwrap()));
    let rejected: Vec<Value> =
        std::fs::read_to_string(&rejects).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected =
        [(2, "there is no [queues.wrok] in the configuration"), (3, "not JSON"), (4, "key"), (5, "`key` is empty")];
    assert_eq!(rejected.len(), expected.len());
    for (row, (line, reason)) in rejected.iter().zip(expected) {
        assert_eq!(row["line"], json!(line));
        assert!(row["reason"].as_str().unwrap().contains(reason), "{row}");
        assert_eq!(
            serde_json::from_str::<Value>(row["row"].as_str().unwrap()).ok(),
            serde_json::from_str(rows[line - 1]).ok()
        );
    }
    let status = ok(run("status", &config, &["--json"]).await).json();
    let queues: Vec<&Value> = status["ledger"]["queues"].as_array().unwrap().iter().map(|q| &q["queue"]).collect();
    assert_eq!(queues, ["side", "work"]);

    failed(run("enroll", &config, &["--kind", "snyc", roster.to_str().unwrap()]).await, &["[kinds.snyc]", "sync"]);
    failed(run("enroll", &config, &["--kind", "sync", "absent.csv"]).await, &["failed to read the roster absent.csv"]);
}

// ---- publish ----

#[tokio::test]
async fn publish_puts_a_job_where_it_belongs() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file(CONFIG);
    // Nothing is accepted that could not be kept.
    failed(run("publish", &config, &["sync", "x"]).await, &["failed to publish", "roundelay topology apply"]);
    ok(run("topology apply", &config, &[]).await);

    let output = ok(run("publish", &config, &["sync", "x", "--payload", r#"{"n":[1]}"#, "--json"]).await).json();
    assert_eq!((&output["queue"], &output["due"]), (&json!("work"), &json!(null)));
    let (_, job) = take(&ground, "work").await.unwrap();
    assert_eq!((job.kind.as_str(), job.key.as_str(), job.payload), ("sync", "x", json!({ "n": [1] })));
    assert_eq!(json!(job.id), output["id"]);

    let output = ok(run("publish", &config, &["sync", "y", "--queue", "side", "--delay", "1h", "--json"]).await).json();
    let (to, job) = take(&ground, "roundelay.delay.3599975ms").await.unwrap();
    assert_eq!((to.as_str(), job.key.as_str(), json!(job.due)), ("side", "y", output["due"].clone()));

    let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    ok(run("publish", &config, &["sync", "deep", "--payload", &nested(126)]).await);
    assert_eq!(take(&ground, "work").await.unwrap().1.key, "deep");
    let deep = nested(127);
    let table: [(&[&str], &[&str]); 7] = [
        (&["sync", "x", "--payload", "{n:1}"], &["--payload is not JSON"]),
        (&["sync", "x", "--payload", &deep], &["a worker would refuse this job", "recursion limit"]),
        (&["snyc", "x"], &["there is no [kinds.snyc]", "sync"]),
        (&["sync", "x", "--queue", "wrok"], &["there is no [queues.wrok]", "side, work"]),
        (&["sync", ""], &["`key` is empty"]),
        (&["sync", "a\nb"], &["`key` has a control character"]),
        (&["sync", "x", "--queue", ""], &["there is no [queues.]"]),
    ];
    for (arguments, words) in table {
        failed(run("publish", &config, arguments).await, words);
    }
    let wrong = run("publish", &config, &["sync", "x", "--delay", "soon"]).await;
    assert!(wrong.code == Some(2) && wrong.stderr.contains("`soon` is not a duration"), "{wrong:?}");
    assert!(
        take(&ground, "work").await.is_none() && take(&ground, "side").await.is_none(),
        "nothing else was published"
    );
}

#[tokio::test]
async fn without_a_broker_a_published_job_waits_in_the_ledger() {
    let ground = Ground::embedded();
    let ran = ground.path("ran");
    let touch = format!("[\"/usr/bin/touch\", \"{}\"]", ran.display());
    let config = ground.config_file(&CONFIG.replace("[\"/bin/true\"]", &touch));
    ok(run("publish", &config, &["sync", "x"]).await);
    let kept = async || ok(run("status", &config, &["--json"]).await).json()["ledger"]["kept_jobs"].clone();
    assert_eq!(kept().await, json!(1));
    let mut worker = worker(&config);
    until("it has run", || async { ran.exists() }).await;
    until("it is forgotten", || async { kept().await == json!(0) }).await;
    stop(&mut worker).await;
}

// ---- status ----

#[tokio::test]
async fn status_shows_the_ledger_when_the_broker_is_away() {
    let ground = Ground::embedded();
    let text = ground.config_text(CONFIG).replace("\"embedded\"", "\"amqp://guest:secret@127.0.0.1:1/%2f\"");
    let config = ground.path("roundelay.toml");
    std::fs::write(&config, text).unwrap();
    failed(run("status", &config, &[]).await, &["there is no ledger at", "is ledger.url right?"]);
    assert!(!ground.path("ledger.db").exists(), "asking makes nothing");
    roundelay::engine::Connections::ledger(&ground.config(CONFIG)).await.unwrap();
    let output = ok(run("status", &config, &["--json"]).await);
    let report = output.json();
    assert_eq!((&report["ledger"]["queues"], &report["broker"]), (&json!([]), &json!({})));
    assert!(report["broker_error"].as_str().unwrap().contains("cannot connect to amqp://127.0.0.1:1"), "{report}");
    assert!(!format!("{output:?}").contains("secret"), "{output:?}");
    assert!(ok(run("status", &config, &[]).await).stdout.contains("the broker was not asked: cannot connect"));
}

#[tokio::test]
async fn status_says_which_chains_are_stuck_and_why() {
    let ground = Ground::rabbit().await;
    let text = format!("catch_up.slack = \"1s\"\n{CONFIG}");
    let config = ground.config_file(&text);
    ok(run("topology apply", &config, &[]).await);
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key\nx\n").unwrap();
    ok(run("enroll", &config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await);
    let stuck = async |config: &Path| {
        let report = ok(run("status", config, &["--json"]).await).json();
        report["stuck"].as_array().unwrap().clone()
    };
    until("it is overdue", || async { stuck(&config).await.len() == 1 }).await;
    let chain = stuck(&config).await.remove(0);
    for (field, value) in [
        ("kind", json!("sync")),
        ("key", json!("x")),
        ("queue", json!("work")),
        ("tick", json!(1)),
        ("state", json!("overdue")),
        ("sent", json!(true)),
        ("worker", json!(null)),
    ] {
        assert_eq!(chain[field], value, "{field} of {chain}");
    }
    let why = chain["why"].as_str().unwrap();
    assert!(why.starts_with("no worker consumes its queue, where 1 messages wait; its message was sent"), "{why}");
    let shown = ok(run("status", &config, &[]).await).stdout;
    assert!(shown.contains("no worker runs, so nothing does: `roundelay worker` starts one\none chain is late:\n  sync x on work, tick 1, attempt 1, due at "), "{shown}");
    assert!(shown.contains(" ago): no worker consumes its queue, where 1 messages wait;"), "{shown}");
    // What is known of the queue on the broker stands in the last columns.
    let row = |shown: &str| shown.lines().find(|line| line.starts_with("work ")).unwrap().to_owned();
    assert!(row(&shown).ends_with("      1          0"), "{shown}");
    // With the broker away it is not known, and not zero.
    let amqp = &vhost(&ground).amqp;
    std::fs::write(&config, ground.config_text(&text).replace(amqp.as_str(), "amqp://127.0.0.1:1/%2f")).unwrap();
    let shown = ok(run("status", &config, &[]).await).stdout;
    assert!(row(&shown).ends_with("      -          -"), "{shown}");
    assert!(shown.contains("the broker does not answer; its message was sent; catch-up"), "{shown}");
    let config = ground.config_file(&text.replace("every = \"1h\"", ""));
    let why = stuck(&config).await.remove(0)["why"].clone();
    assert!(why.as_str().unwrap().starts_with("its kind has no schedule in this configuration"), "{why}");
}

/// The chain has not been postponed, and an interval of three seconds explains no due time a day ahead.
#[tokio::test]
async fn a_chain_that_sleeps_for_longer_than_its_schedule_can_explain_is_overdue_wherever_one_looks() {
    for ground in [Ground::rabbit().await, Ground::rabbit_and_postgres().await] {
        let config = ground.config_file(&CONFIG.replace("1h", "3s"));
        ok(run("topology apply", &config, &[]).await);
        let roster = ground.path("roster.csv");
        std::fs::write(&roster, "key\nx\n").unwrap();
        ok(run("enroll", &config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await);
        let mut worker = worker(&config);
        // Not the engine's own.
        let chain = async || ok(run("list", &config, &["--key", "x", "--json"]).await).json()["chains"][0].clone();
        until("it has run", || async { !chain().await["last_finish"].is_null() }).await;
        stop(&mut worker).await;
        assert_ne!(chain().await["doing"], json!("late"));
        put_off(&ground, 86_400_000).await;

        let report = ok(run("status", &config, &["--json"]).await).json();
        let queue = &report["ledger"]["queues"];
        let queue = queue.as_array().unwrap().iter().find(|queue| queue["queue"] == json!("work")).unwrap();
        for (what, count) in [("sleeping", 0), ("due", 1), ("overdue", 1), ("overslept", 1)] {
            assert_eq!(queue[what], json!(count), "{what} of {queue}");
        }
        let stuck = &report["stuck"][0];
        assert_eq!((&stuck["key"], &stuck["state"]), (&json!("x"), &json!("overdue")), "{stuck}");
        assert!(stuck["overslept_since"].as_i64().unwrap() < stuck["due"].as_i64().unwrap() - 80_000_000, "{stuck}");
        let words = "it is late: its due time lies further ahead than its schedule can explain";
        assert!(stuck["why"].as_str().unwrap().starts_with(words), "{stuck}");
        let shown = ok(run("status", &config, &[]).await).stdout;
        assert!(shown.contains("one chain is late:\n  sync x on work, tick "), "{shown}");
        assert!(shown.contains(words), "{shown}");
        assert!(ok(run("show", &config, &["sync", "x"]).await).stdout.contains(words));

        let late = async |more: &[&str]| {
            let all = [&["--state", "late", "--json"], more].concat();
            ok(run("list", &config, &all).await).json()["chains"].as_array().unwrap().len()
        };
        assert_eq!(chain().await["doing"], json!("late"));
        assert_eq!((late(&[]).await, late(&["--key", "x*"]).await, late(&["--queue", "work"]).await), (1, 1, 1));
        assert_eq!((late(&["--key", "y*"]).await, late(&["--queue", "side"]).await), (0, 0));
        let doctor = run("doctor", &config, &["--json"]).await.json();
        let found = doctor["findings"].as_array().unwrap().iter().find(|found| found["what"] == json!("late chains"));
        let found = found.unwrap_or_else(|| panic!("nothing of late chains in {doctor:#}"));
        assert_ne!(found["result"], json!("good"), "{found}");
        assert!(found["seen"].as_str().unwrap().contains(words), "{found}");
    }
}

/// Writes into the ledger, past all workers, that every chain but the engine's own is due `millis` later.
pub async fn put_off(ground: &Ground, millis: i64) {
    let sql = format!("UPDATE chains SET due = due + {millis} WHERE kind NOT LIKE 'roundelay.%'");
    match &ground.schema {
        Some(schema) => schema.raw().await.batch_execute(&sql).await.unwrap(),
        None => rusqlite::Connection::open(ground.path("ledger.db")).unwrap().execute_batch(&sql).unwrap(),
    }
}

// ---- topology ----

#[tokio::test]
async fn topology_check_finds_what_is_missing_and_apply_mends_it() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file(CONFIG);
    let check = async |rest: &[&str]| run("topology check", &config, rest).await;
    failed(check(&[]).await, &["not as they must be"]);
    ok(run("topology apply", &config, &[]).await);
    ok(check(&[]).await);
    vhost(&ground).delete_queue("side").await;
    let output = failed(check(&[]).await, &[]);
    assert!(output.stdout.contains("queue `side`") && output.stdout.contains("missing"), "{}", output.stdout);
    assert!(output.stdout.contains("topology apply"), "it says how to mend it: {}", output.stdout);
    ok(run("topology apply", &config, &[]).await);
    let report = ok(check(&["--json"]).await).json();
    assert_eq!(report["ok"], json!(true));
    let embedded = Ground::embedded();
    failed(run("topology check", &embedded.config_file(CONFIG), &[]).await, &["broker.url is `embedded`", "amqp://"]);
}

#[tokio::test]
async fn topology_check_finds_a_policy_that_overrides_and_says_how_to_mend_it() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file(CONFIG);
    ok(run("topology apply", &config, &[]).await);
    let policy = format!("policies/{}/all", vhost(&ground).name);
    let definition = json!({ "pattern": ".*", "apply-to": "queues", "definition": { "message-ttl": 60_000 } });
    vhost(&ground).call(Method::PUT, &policy, definition).await;
    let wrong = || async { run("topology check", &config, &[]).await.code == Some(1) };
    until("the broker shows it", wrong).await;
    let output = failed(run("topology check", &config, &[]).await, &["not as they must be"]);
    for words in ["policy `all` sets `message-ttl`", "60000", "rabbitmqctl clear_policy", "jobs come early"] {
        assert!(output.stdout.contains(words), "no `{words}` in {}", output.stdout);
    }
    let report = failed(run("topology check", &config, &["--json"]).await, &[]).json();
    assert_eq!(report["ok"], json!(false));
    // A worker refuses to start on it.
    let mut worker = worker(&config);
    let ended = timeout(SOON, worker.wait()).await.expect("it ends by itself").unwrap();
    assert_eq!(ended.code(), Some(1));
    vhost(&ground).call(Method::DELETE, &policy, json!(null)).await;
    until("all is well", || async { run("topology check", &config, &[]).await.ok }).await;
}

#[tokio::test]
async fn topology_export_is_what_the_broker_can_import() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file(CONFIG);
    let exported = ok(run("topology export", &config, &["--output", "-"]).await).stdout;
    let definitions: Value = serde_json::from_str(&exported).unwrap();
    vhost(&ground).call(Method::POST, &format!("definitions/{}", vhost(&ground).name), definitions).await;
    ok(run("topology check", &config, &[]).await);
    let file = ground.path("definitions.json");
    ok(run("topology export", &config, &["--output", file.to_str().unwrap()]).await);
    assert_eq!(std::fs::read_to_string(file).unwrap(), exported);
}

// ---- worker ----

/// A handler that says that it has begun (by its process id) and goes on until it is let go.
struct Slow {
    began: PathBuf,
    go: PathBuf,
    ended: PathBuf,
    config: PathBuf,
}

impl Slow {
    fn new(ground: &Ground) -> Self {
        let [began, go, ended] = ["began", "go", "ended"].map(|name| ground.path(name));
        let script = format!(
            "echo $$ > '{}'; while [ ! -e '{}' ]; do sleep 0.05; done; echo $ROUNDELAY_KEY $ROUNDELAY_ATTEMPT >> '{}'",
            began.display(),
            go.display(),
            ended.display()
        );
        let config = ground.config_file(&format!(
            r#"
[queues.work]
concurrency = 1
[kinds.sync]
queue = "work"
timeout = "5m"
handler.exec = {{ argv = ["/bin/sh", "-c", "{script}"], env = {{ PATH = "/usr/bin:/bin" }} }}
"#
        ));
        Self { began, go, ended, config }
    }

    async fn begun(&self) -> i32 {
        let pid = || std::fs::read_to_string(&self.began).ok()?.trim().parse().ok();
        until("the handler has begun", || async { pid().is_some() }).await;
        pid().unwrap()
    }
}

fn terminate(worker: &Child) {
    kill(Pid::from_raw(worker.id().unwrap() as i32), Signal::SIGTERM).unwrap();
}

/// Tells a worker to stop that runs one job and holds another, and waits until it has put the
/// other one back.
async fn told_to_stop(ground: &Ground, slow: &Slow, worker: &Child) -> RabbitBroker {
    ok(run("publish", &slow.config, &["sync", "second"]).await);
    let broker = vhost(ground).connect("roundelay").await;
    until("it holds the second", || async { broker.depth("work").await.unwrap().ready == 0 }).await;
    terminate(worker);
    until("the second is back", || async { broker.depth("work").await.unwrap().ready == 1 }).await;
    broker
}

async fn stop(worker: &mut Child) {
    terminate(worker);
    let status = timeout(SOON, worker.wait()).await.expect("the worker ends").unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn a_worker_told_to_stop_finishes_what_runs_and_leaves_the_rest() {
    let ground = Ground::rabbit().await;
    let slow = Slow::new(&ground);
    ok(run("topology apply", &slow.config, &[]).await);
    ok(run("publish", &slow.config, &["sync", "first"]).await);
    let mut worker = worker(&slow.config);
    slow.begun().await;
    let broker = told_to_stop(&ground, &slow, &worker).await;
    broker.close().await;
    assert_eq!(worker.try_wait().unwrap(), None, "it waits for what runs");
    std::fs::write(&slow.go, "").unwrap();
    let status = timeout(SOON, worker.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&slow.ended).unwrap(), "first 1\n");
    // The worker's connections are gone, so what it had not acknowledged would be here again.
    assert_eq!(take(&ground, "work").await.unwrap().1.key, "second");
    assert!(take(&ground, "work").await.is_none());
}

#[tokio::test]
async fn a_handler_that_outlasts_the_grace_is_ended_and_runs_again_elsewhere() {
    let ground = Ground::rabbit().await;
    let slow = Slow::new(&ground);
    ok(run("topology apply", &slow.config, &[]).await);
    ok(run("publish", &slow.config, &["sync", "x"]).await);
    let mut first = worker_with(&slow.config, &["--grace", "100ms"]);
    let pid = slow.begun().await;
    stop(&mut first).await;
    let gone = || async move {
        // What has been killed may still wait to be reaped by its new parent.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z'))
    };
    until("the handler is gone", gone).await;
    assert!(!slow.ended.exists());
    // Another worker runs it, and no attempt was charged.
    std::fs::write(&slow.go, "").unwrap();
    let mut second = worker(&slow.config);
    until("it has run", || async { slow.ended.exists() }).await;
    stop(&mut second).await;
    assert_eq!(std::fs::read_to_string(&slow.ended).unwrap(), "x 1\n");
    assert!(take(&ground, "work").await.is_none());
}

#[tokio::test]
async fn a_second_signal_ends_a_worker_at_once_and_loses_nothing() {
    let ground = Ground::rabbit().await;
    let slow = Slow::new(&ground);
    ok(run("topology apply", &slow.config, &[]).await);
    ok(run("publish", &slow.config, &["sync", "x"]).await);
    let mut worker = worker(&slow.config);
    slow.begun().await;
    let broker = told_to_stop(&ground, &slow, &worker).await;
    terminate(&worker);
    let status = timeout(SOON, worker.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(130));
    until("both jobs are back", || async { broker.depth("work").await.unwrap().ready == 2 }).await;
    // The handler is not the worker's child any more, and would wait for ever.
    std::fs::write(&slow.go, "").unwrap();
    until("the handler has ended", || async { slow.ended.exists() }).await;
}

// ---- run, pause, resume, retire, recover ----

#[tokio::test]
async fn an_operator_steers_chains_by_command() {
    let ground = Ground::embedded();
    let config = ground.config_file(CONFIG);
    failed(run("pause", &config, &["sync", "a"]).await, &["there is no ledger at"]);
    std::fs::write(ground.path("r.csv"), "key\na\nb\nc\n").unwrap();
    let roster = ground.path("r.csv");
    let enroll = async |rest: &[&str]| {
        let arguments = [&["--kind", "sync", "--json", roster.to_str().unwrap()], rest].concat();
        ok(run("enroll", &config, &arguments).await).json()
    };
    assert_eq!(enroll(&[]).await["created"], 3);
    let ledger = async || ok(run("status", &config, &["--json"]).await).json()["ledger"].clone();

    failed(run("pause", &config, &["nobody", "a"]).await, &["no [kinds.nobody]"]);
    failed(run("pause", &config, &["sync", "z"]).await, &["there is no chain sync z", "roundelay enroll"]);
    assert_eq!(ok(run("pause", &config, &["sync", "a", "--json"]).await).json(), json!({ "paused": 1 }));
    failed(run("pause", &config, &["sync", "a"]).await, &["sync a is not active: it is paused"]);
    assert_eq!(ledger().await["paused"], 1);
    assert_eq!(ok(run("pause", &config, &["sync", "--all", "--json"]).await).json(), json!({ "paused": 2 }));
    assert_eq!(ok(run("resume", &config, &["sync", "--all", "--json"]).await).json(), json!({ "resumed": 3 }));

    ok(run("run", &config, &["sync", "a"]).await);
    failed(run("run", &config, &["sync", "a"]).await, &["pending already"]);
    failed(run("run", &config, &["sync", "z"]).await, &["there is no chain sync z"]);

    ok(run("retire", &config, &["sync", "b"]).await);
    failed(run("run", &config, &["sync", "b"]).await, &["has ended", "enroll --revive"]);
    assert_eq!(enroll(&[]).await["retired"], 1);
    let tally = enroll(&["--revive"]).await;
    assert_eq!((&tally["created"], &tally["unchanged"]), (&json!(1), &json!(2)));

    assert_eq!(ok(run("recover", &config, &["--json"]).await).json(), json!({ "recovered": 0 }));
    let all = ok(run("recover", &config, &["--all", "--json"]).await).json();
    assert_eq!(all, json!({ "recovered": 4 }), "three chains, and the single tick beside one");

    // An entity without a chain runs with a payload, which the handler gets as it was said.
    ok(run("run", &config, &["sync", "lonely", "--payload", r#"{"n":[1]}"#]).await);
    let lonely = ok(run("show", &config, &["sync", "lonely", "--json"]).await).json();
    assert_eq!(lonely["single"]["payload"], json!({ "n": [1] }), "{lonely}");
    let wrong = run("run", &config, &["sync", "a", "--payload", "{n:1}"]).await;
    assert!(wrong.code == Some(2) && wrong.stderr.contains("it is not JSON"), "{wrong:?}");
}

// ---- simulate ----

#[tokio::test]
async fn simulate_tells_what_it_did_and_repeats_a_seed() {
    let report = ok(roundelay(&["simulate", "--faults", "--seed", "600", "--seeds", "3", "--json"]).await).json();
    assert_eq!((&report["seeds"], &report["violations"]), (&json!(3), &json!(0)));
    assert!(report["ticks"].as_u64().unwrap() > 300 && report["faults"].as_u64().unwrap() > 10, "{report}");
    let again = async || ok(roundelay(&["simulate", "--faults", "--seed", "601", "--log"]).await).stdout;
    let (first, second) = (again().await, again().await);
    assert!(first.contains("FAULT 0") && first.contains("claims") && first == second);
    let calm = ok(roundelay(&["simulate", "--seed", "601"]).await).stdout;
    assert!(calm.contains(" 0 faults"), "{calm}");
}

#[tokio::test]
async fn check_says_what_would_go_wrong_on_this_machine_and_for_how_many_chains_there_is_room() {
    let ground = Ground::embedded();
    let text = r#"
[throttles.stock]
allow = 30
per = "1m"
[queues.stock]
throttle = "stock"
[kinds.pull]
queue = "stock"
every = "1m"
roster.keys = KEYS
handler.exec.argv = ["/nowhere/pull.sh"]
"#;
    let named: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    let few = text.replace("roster.keys = KEYS\n", "");
    let many = text.replace("KEYS", &json!(named).to_string());
    let lines = async |text: &str| {
        let output = ok(run("check", &ground.config_file(text), &[]).await);
        let notable = |line: &&str| line.starts_with("note") || line.starts_with("room");
        output.stdout.lines().filter(notable).map(str::to_owned).collect::<Vec<_>>()
    };
    let told = lines(&few).await;
    let room = "room    the throttle stock allows 30/min: by themselves at most 30 chains of pull can keep their schedule of every 60s";
    assert_eq!(told[0], room);
    assert!(told[1].starts_with("note    program of pull: /nowhere/pull.sh: "), "{told:?}");
    assert_eq!(told.len(), 2);
    let told = lines(&many).await;
    assert!(told[0].starts_with("note    program of pull: "), "{told:?}");
    assert_eq!(
        told[1],
        "note    pull needs 60/min, and the throttle stock allows 30/min: each runs about every 2m, not every 60s"
    );
}
