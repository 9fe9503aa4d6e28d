//! What the ready-made handlers have to do with a chain's schedule: an HTTP answer says when the next tick
//! is due, and a program is asked to end when its time box is up. They are real, and so is what they call;
//! the engine's clock is the test's.

use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{AGE, CACHE_CONTROL, DATE, EXPIRES};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::any;
use roundelay::clock::Time;
use roundelay::ids::TickNo;
use roundelay::ledger::{AttemptRecord, ChainView, Reports};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::harness::until;
use crate::virtual_time::{MONDAY, World, chain};

const fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A chain, once its first tick has ended, and what is recorded of that.
async fn ended(world: &World, kind: &str, key: &str) -> (ChainView, AttemptRecord) {
    let view = async || world.ledger.chains(kind.into(), key.into()).await.unwrap().remove(0);
    until(key, async || view().await.hint.tick > 1).await;
    let (view, attempts) = (view().await, world.attempts().await);
    let first = attempts.into_iter().find(|attempt| (attempt.epoch, attempt.tick) == (view.hint.epoch, TickNo(1)));
    (view, first.expect("an attempt is recorded"))
}

// ---- An HTTP answer that says how long it stays fresh ----

/// A server whose answer depends on the path.
async fn fresh(Path(key): Path<String>) -> Response {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    match key.as_str() {
        "max-age" => ([(CACHE_CONTROL, "public, max-age=600")], "{}").into_response(),
        "aged" => (AppendHeaders([(CACHE_CONTROL, "max-age=600"), (AGE, "120")]), "{}").into_response(),
        "expires" => ([(DATE, date), (EXPIRES, "Sun, 06 Nov 1994 08:56:17 GMT")], "{}").into_response(),
        "short" => ([(CACHE_CONTROL, "max-age=10")], "{}").into_response(),
        "stale" => ([(DATE, date), (EXPIRES, "Sat, 05 Nov 1994 08:49:37 GMT")], "{}").into_response(),
        "long" => ([(CACHE_CONTROL, "max-age=86400")], "{}").into_response(),
        "no-store" => ([(CACHE_CONTROL, "no-store, max-age=600")], "{}").into_response(),
        "says" => ([(CACHE_CONTROL, "max-age=600")], r#"{"outcome":"done","next_in":"5m"}"#.to_owned()).into_response(),
        "second" => ([(CACHE_CONTROL, "max-age=1")], "{}").into_response(),
        _ => "{}".into_response(),
    }
}

/// Where it is, as a template.
async fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/{{{{ key }}}}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/{key}", any(fresh))).await });
    url
}

/// A kind with bounds that count, one that may call again soon, and one that does not look at headers.
fn config(url: &str) -> String {
    let kind = |name: &str, next_in: &str| {
        format!("[kinds.{name}]\nqueue = \"q\"\nevery = \"1h\"\nhandler.http.url = \"{url}\"\nnext_in = {next_in}\n")
    };
    String::from("[queues.q]\n")
        + &kind("bound", r#"{ min = "2m", max = "30m", from_headers = true }"#)
        + &kind("free", r#"{ min = "1s", max = "30m", from_headers = true }"#)
        + &kind("deaf", r#"{ min = "2m", max = "30m" }"#)
}

#[tokio::test]
async fn a_chain_is_due_when_the_answer_is_not_fresh_any_more() {
    let mut world = World::new(&config(&upstream().await), MONDAY);
    let table = [
        ("bound", "max-age", 600),
        ("bound", "aged", 480),
        ("bound", "expires", 400),
        ("bound", "short", 120),
        ("bound", "stale", 120),
        ("bound", "long", 1_800),
        ("bound", "no-store", 3_600),
        ("bound", "silent", 3_600),
        ("bound", "says", 300),
        ("deaf", "max-age", 3_600),
        ("deaf", "says", 300),
    ];
    world.chains(table.iter().map(|(kind, key, _)| chain(kind, key, "q", MONDAY)).collect()).await;
    world.start().await;
    let mut found = Vec::new();
    for (kind, key, _) in table {
        let (view, first) = ended(&world, kind, key).await;
        assert_eq!(first.verdict.as_deref(), Some("done"), "{kind} {key}: {first:?}");
        assert_eq!(view.hint.due, view.nominal, "{kind} {key}");
        found.push((kind, key, view.hint.due.since(first.finished.expect("it has ended")).as_secs()));
    }
    assert_eq!(found, table);
    world.stop().await;
}

/// One that is fresh for a second is asked again after a second, and not after an hour.
#[tokio::test]
async fn a_call_comes_when_the_answer_is_not_fresh_any_more() {
    let mut world = World::new(&config(&upstream().await), MONDAY);
    world.chains(vec![chain("free", "second", "q", MONDAY)]).await;
    world.start().await;
    until("it is called three times", async || world.attempts().await.len() > 2).await;
    for pair in world.attempts().await.windows(2) {
        let due = pair[0].finished.expect("it has ended") + s(1);
        assert!(pair[1].due == due && pair[1].started >= due, "{pair:?}");
    }
    world.stop().await;
}

// ---- A program whose time box is up ----

const BOXED: &str = r#"
worker.lease = "1h"
[queues.q]
[kinds.k]
queue = "q"
every = "1h"
timeout = "24m"
next_in = { min = "1m", max = "2h" }
time_box = "10m"
time_box_grace = "5m"
"#;

/// A worker that runs `script`, which tells of itself by writing a line to the files `$1` and `$2`.
async fn boxed(script: &str) -> (World, [PathBuf; 2], TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let files = ["begun", "asked"].map(|name| folder.path().join(name));
    let argv = serde_json::json!(["/bin/sh", "-c", script, "script", files[0], files[1]]);
    let config = format!("{BOXED}handler.exec = {{ argv = {argv}, env = {{ PATH = \"/usr/bin:/bin\" }} }}\n");
    let mut world = World::new(&config, MONDAY);
    world.chains(vec![chain("k", "x", "q", MONDAY)]).await;
    world.start().await;
    (world, files, folder)
}

/// The line that the script writes to the file, when it does.
async fn told(file: &std::path::Path) -> String {
    let line = || std::fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'));
    until("the script comes this far", async || line().is_some()).await;
    line().expect("it was there")
}

/// Time goes on at once, for the engine and not for its programs.
async fn goes_by(length: Duration) {
    tokio::time::pause();
    tokio::time::advance(length).await;
    tokio::time::resume();
}

/// How long an attempt took by the engine's clock.
fn took(attempt: &AttemptRecord) -> Duration {
    attempt.finished.unwrap_or_default().since(attempt.started)
}

#[tokio::test]
async fn a_program_whose_time_box_is_up_can_end_well() {
    let script = r#"trap 'echo "{\"outcome\":\"done\",\"next_in\":\"20m\",\"carry\":\"saved\"}"; exit 0' TERM
        echo begun > "$1"
        while :; do sleep 1000 & wait; done"#;
    let (mut world, [begun, _], _folder) = boxed(script).await;
    told(&begun).await;
    goes_by(s(600)).await;
    let (view, first) = ended(&world, "k", "x").await;
    assert_eq!((first.verdict.as_deref(), &first.reason), (Some("done"), &None), "what it said counts");
    assert!(took(&first) >= s(600) && took(&first) < s(900), "{first:?}");
    assert_eq!(view.carry.as_deref(), Some("\"saved\""));
    assert_eq!(view.hint.due.since(first.finished.unwrap()), s(1_200));
    world.stop().await;
}

#[tokio::test]
async fn a_program_that_does_not_end_is_killed_after_the_grace() {
    let script = r#"trap 'echo asked > "$2"' TERM
        echo $$ > "$1"
        while :; do sleep 1000 & wait; done"#;
    let (mut world, [begun, asked], _folder) = boxed(script).await;
    let pid = told(&begun).await;
    goes_by(s(600)).await;
    assert_eq!(told(&asked).await, "asked\n", "asked first");
    let view = world.ledger.chains("k".into(), "x".into()).await.unwrap().remove(0);
    assert_eq!((view.hint.tick, view.last_finish), (TickNo(1), Time::default()), "it still runs");
    goes_by(s(300)).await;
    let (view, first) = ended(&world, "k", "x").await;
    let why = first.reason.as_deref();
    assert_eq!((first.verdict.as_deref(), why), (Some("cut"), Some("its time box of 10m was up")));
    assert!(took(&first) >= s(900) && took(&first) < s(1_440), "{first:?}");
    assert_eq!((view.hint.tick, view.hint.attempt), (TickNo(2), 1), "and nothing is tried again");
    let stat = format!("/proc/{}/stat", pid.trim());
    until("it is gone", async || !std::path::Path::new(&stat).exists()).await;
    world.stop().await;
}
