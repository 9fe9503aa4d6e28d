//! Failures by reason: what a reply means, and parts that are fed back.

use std::path::Path;
use std::time::Duration;

use roundelay::engine::Connections;
use roundelay::failure::{FailedItem, Failure};
use roundelay::job::{Envelope, Job};
use roundelay::ledger::{FailureFilter, Failures, Ledger, NewChain};
use roundelay::outcome::{Outcome, Yield};
use roundelay::reason::{Class, Mark, Reason};
use serde_json::{Value, json};

use crate::harness::{Ground, Output, on_all, roundelay, until, worker};
use crate::virtual_time::{MONDAY, World, chain};

fn s(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

// ---- In virtual time ----

const STORE: &str = r#"
[queues.q]
throttle = "store"
[throttles.store]
allow = 1
per = "10s"
[reasons.empty_response]
policy = "fail"
[reasons.busy]
policy = "retry"
attempts = 3
backoff = ["60s", "120s"]
[reasons.closed]
policy = "snooze"
after = "10m"
[reasons.gone]
policy = "retire"
[kinds.sync]
every = "1d"
timeout = "20m"
unique_for = "1h"
on_status = { 404 = "empty_response", 410 = "gone", 503 = "busy" }
reconcile = { every = "1m" }
"#;

/// The country that a run is for, if it is for one.
fn country(job: &Job) -> Option<&str> {
    job.payload["item"].as_str()
}

fn failed(items: &[(&str, &str)]) -> Outcome {
    let part = |(item, code): &(&str, &str)| FailedItem {
        code: Some((*code).into()).filter(|code: &String| !code.is_empty()),
        ..FailedItem::new(*item, "said the store")
    };
    Outcome::DoneWith(Yield { failed: items.iter().map(part).collect(), ..Yield::default() })
}

fn status(status: u16) -> Reason {
    Reason::new(Class::Http4xx, format!("HTTP {status}")).marked(Mark::Status(status))
}

/// The countries that ran, and when, in seconds since the beginning.
fn runs(world: &World) -> Vec<(String, u64)> {
    let seen = world.seen("sync").into_iter();
    seen.filter_map(|seen| Some((country(&seen.job)?.to_owned(), seen.from.since(world.begin).as_secs()))).collect()
}

async fn kept(world: &World, item: &str) -> Option<Failure> {
    let filter = FailureFilter { item: Some(item.into()), ..FailureFilter::default() };
    world.ledger.failed(filter, None, 1).await.unwrap().pop()
}

async fn begin(world: &mut World) {
    let app = NewChain { payload: r#"{"app":7}"#.into(), owner: Some("o".into()), ..chain("sync", "7", "q", MONDAY) };
    world.chains(vec![app]).await;
    world.start_with_chores().await;
}

#[tokio::test(start_paused = true)]
async fn parts_come_back_by_their_reason_under_the_same_throttle_and_not_beyond_its_maximum() {
    let mut world = World::new(STORE, MONDAY);
    world.script("sync", |job| match (country(job), job.attempt) {
        (None, _) => (s(1), failed(&[("us", "empty_response"), ("jp", "busy"), ("de", "busy"), ("fr", "")])),
        (Some("de"), _) => (s(1), Outcome::fail(status(503))),
        // It works, but for the very part that it was for: that is no success.
        (Some("fr"), 2) => (s(1), failed(&[("fr", "busy")])),
        (Some(_), _) => (s(1), Outcome::Done),
    });
    begin(&mut world).await;
    world.until(s(1_800)).await;
    let seen = world.seen("sync");
    let first = &seen[1].job;
    assert!(first.tick.is_none() && first.queue == "q" && first.key == "7", "{first:?}");
    let item = country(first).unwrap();
    assert_eq!((&first.payload, first.owner.as_deref()), (&json!({ "app": 7, "item": item }), Some("o")));
    assert_eq!(first.attempt, 2, "the run that reported it was the first");
    let starts: Vec<u64> = seen.iter().map(|seen| seen.from.since(world.begin).as_millis() as u64).collect();
    assert!(starts.windows(2).all(|two| two[1] - two[0] >= 10_000), "one throttle paces all of them: {starts:?}");
    let of = |of: &str| runs(&world).into_iter().filter(|(item, _)| item == of).map(|(_, at)| at).collect::<Vec<_>>();
    assert_eq!(of("us").len(), 0, "a permanent reason is never fed back");
    assert_eq!((of("jp").len(), of("de").len(), of("fr").len()), (1, 2, 2));
    assert!(of("jp")[0] >= 61 && of("de")[0] >= 61, "not before the backoff of their reason");
    assert!(of("de")[1] >= of("de")[0] + 121, "nor before the next: {:?}", of("de"));
    assert!((kept(&world, "jp").await, kept(&world, "fr").await) == (None, None), "those that worked are forgotten");
    let us = kept(&world, "us").await.unwrap();
    assert_eq!((us.attempts, us.permanent, us.next_retry_at), (1, true, None));
    let de = kept(&world, "de").await.unwrap();
    assert_eq!((de.attempts, de.permanent, de.code.as_deref()), (3, true, Some("busy")), "its maximum is reached");
    assert_eq!(world.ledger.failures_of("sync".into(), "7".into()).await.unwrap().len(), 2, "none of the whole");

    // The next tick knows what to leave out.
    world.until(s(86_500)).await;
    let seen = world.seen("sync");
    let told = |seen: &crate::virtual_time::Seen| {
        let mut parts = seen.job.unavailable.clone();
        parts.sort();
        parts
    };
    assert_eq!(told(&seen[0]), Vec::<String>::new());
    let next = seen.iter().find(|seen| seen.job.tick.is_some_and(|tick| tick.tick == 2)).unwrap();
    assert_eq!(told(next), ["de", "us"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_may_have_permanent_parts_tried_once_more() {
    let mut world = World::new(STORE, MONDAY);
    world.script("sync", |job| match country(job) {
        None => (s(0), failed(&[("us", "empty_response"), ("de", "empty_response")])),
        Some("de") => (s(0), Outcome::retry(status(503))),
        Some(_) => (s(0), Outcome::Done),
    });
    begin(&mut world).await;
    let of = |of: &str| runs(&world).into_iter().filter(|(item, _)| item == of).count();
    world.until(s(1_800)).await;
    assert_eq!((of("us"), of("de")), (0, 0));
    let permanent = FailureFilter { permanent: Some(true), ..FailureFilter::default() };
    assert_eq!(world.ledger.retry_failed(permanent).await.unwrap(), 2);
    world.until(s(1_900)).await;
    assert_eq!((of("us"), of("de")), (1, 1));
    assert_eq!((kept(&world, "us").await, kept(&world, "de").await.unwrap().attempts), (None, 1));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_part_whose_job_comes_twice_or_outlives_a_worker_is_retried_by_one_run_at_a_time() {
    let mut world = World::new(&format!("worker.grace = \"1s\"\n{STORE}"), MONDAY);
    world.script("sync", |job| match country(job) {
        None => (s(1), failed(&[("jp", "busy")])),
        Some(_) => (s(300), Outcome::Done),
    });
    begin(&mut world).await;
    world.until(s(200)).await;
    assert_eq!(runs(&world).len(), 1);
    let id = kept(&world, "jp").await.unwrap().fed.unwrap();
    assert_eq!(world.seen("sync")[1].job.id, id);
    // The same message once more, and one with an id that no part has.
    let copy = |id: &str| Envelope::job("sync", "7", json!({ "item": "jp" }), id.into());
    world.publish_envelope("q", &copy(&id)).await;
    world.publish_envelope("q", &copy("roundelay.part-0")).await;
    world.until(s(260)).await;
    assert_eq!(runs(&world).len(), 1, "it is held");
    // The worker stops in its midst: the run was none, and is repeated by the next worker.
    world.stop().await;
    assert!(world.seen("sync")[1].to.is_none());
    world.start_with_chores().await;
    world.until(s(3_600)).await;
    let ended = world.seen("sync").iter().filter(|seen| country(&seen.job).is_some() && seen.to.is_some()).count();
    assert_eq!((ended, runs(&world).len()), (1, 2));
    assert_eq!(kept(&world, "jp").await, None);
    // What is left of the copies finds nothing to do.
    world.until(s(9_000)).await;
    assert_eq!(runs(&world).len(), 2);
    assert!(world.ledger.kept_jobs(0, 10).await.unwrap().is_empty());
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reason_says_what_follows_a_tick() {
    let mut world = World::new(STORE, MONDAY);
    world.script("sync", |job| {
        let outcome = match job.attempt {
            1 if job.key == "limited" && job.nominal == MONDAY => Outcome::retry(Reason::from("503").coded("busy")),
            2 => Outcome::fail(Reason::from("not now").coded("unheard_of")),
            _ if job.key == "gone" => Outcome::fail(status(410)),
            _ => Outcome::Done,
        };
        (s(0), outcome)
    });
    world.chains(vec![chain("sync", "limited", "q", MONDAY), chain("sync", "gone", "q", MONDAY)]).await;
    world.start().await;
    world.until(s(600)).await;
    let verdicts: Vec<_> = world.attempts().await.into_iter().map(|a| (a.attempt, a.verdict.unwrap())).collect();
    let mut of_limited: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict != "retired").collect();
    of_limited.sort();
    assert_eq!(of_limited, [&(1, "retried".to_owned()), &(2, "failed".to_owned())]);
    assert_eq!(verdicts.iter().filter(|(_, verdict)| verdict == "retired").count(), 1);
    let limited: Vec<u64> = world
        .seen("sync")
        .iter()
        .filter(|seen| seen.job.key == "limited")
        .map(|seen| seen.from.since(MONDAY).as_secs())
        .collect();
    assert!(limited[1] >= limited[0] + 60, "the backoff of its reason: {limited:?}");
    let of = async |key: &str| world.ledger.failures_of("sync".into(), key.into()).await.unwrap().remove(0);
    let (limited, gone) = (of("limited").await, of("gone").await);
    assert_eq!((limited.code.as_deref(), limited.permanent), (Some("unheard_of"), false));
    assert_eq!((gone.code.as_deref(), gone.permanent, gone.reason.as_str()), (Some("gone"), true, "HTTP 410"));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_not_to_be_tried_now_waits_with_its_job_and_no_attempt_is_counted() {
    let mut world = World::new(STORE, MONDAY);
    let opens = MONDAY + s(3_000);
    let ledger = world.ledger.clone();
    world.script("sync", move |job| match country(job) {
        None => (s(0), failed(&[("jp", "busy")])),
        Some(_) if ledger.now() < opens => (s(0), Outcome::retry(Reason::from("closed").coded("closed"))),
        Some(_) => (s(0), Outcome::fail(status(503))),
    });
    begin(&mut world).await;
    world.until(s(2_900)).await;
    let before = kept(&world, "jp").await.unwrap();
    assert!(runs(&world).len() >= 4 && before.fed.is_some(), "{before:?}");
    assert_eq!((before.attempts, before.times), (1, 1));
    // The shop has opened, and then it is busy: that counts, and has a maximum.
    world.until(s(4_000)).await;
    let after = kept(&world, "jp").await.unwrap();
    assert_eq!((after.attempts, after.permanent, after.fed), (3, true, None));
    world.stop().await;
}

// ---- By the real program, on all grounds ----

/// The upstream: some countries fail, in one of them the app is not to be had; one app is gone.
const UPSTREAM: &str = r#"
job=$(cat)
case "$ROUNDELAY_KEY" in gone) echo "the store has no such app" >&2; exit 3;; esac
case "$job" in
*'"item":"jp"'*) exit 0;;
*'"item"'*) echo "HTTP 503" >&2; exit 75;;
esac
echo '{"outcome":"done","failed":[{"item":"us","reason":"HTTP 404","code":"empty_response"},{"item":"jp","reason":"HTTP 503","code":"busy"},{"item":"de","reason":"HTTP 503","code":"busy"}]}'
"#;

fn settings(ground: &Ground) -> String {
    let script = ground.path("upstream.sh");
    std::fs::write(&script, UPSTREAM).unwrap();
    format!(
        r#"
[catch_up]
every = "1s"
slack = "2s"
[queues.work]
[reasons.empty_response]
policy = "fail"
[reasons.busy]
policy = "retry"
attempts = 3
backoff = ["10ms"]
[reasons.gone]
policy = "retire"
[kinds.sync]
queue = "work"
every = "1h"
on_exit = {{ 3 = "gone", 75 = "busy" }}
reconcile = {{ every = "1s" }}
roster.owner = "{{{{ owner }}}}"
handler.exec = {{ argv = ["/bin/sh", "{}"], env = {{ PATH = "/usr/bin:/bin" }} }}
"#,
        script.display()
    )
}

async fn command(config: &Path, arguments: &[&str]) -> Output {
    let (verb, rest) = arguments.split_at(if arguments[0] == "failed" { 2 } else { 1 });
    roundelay(&[verb, &["--config", config.to_str().unwrap()], rest].concat()).await
}

async fn told(config: &Path, arguments: &[&str]) -> Value {
    let output = command(config, &[arguments, &["--json"]].concat()).await;
    assert!(output.ok, "{arguments:?}: {output:?}");
    output.json()
}

async fn said(config: &Path, arguments: &[&str]) -> String {
    let output = command(config, arguments).await;
    assert!(output.ok, "{arguments:?}: {output:?}");
    output.stdout
}

mod run {
    use super::*;

    pub async fn failed_parts_come_back_and_an_operator_sees_and_steers_them(ground: Ground) {
        let text = settings(&ground);
        let config = ground.config_file(&text);
        let _worker = worker(&config);
        let ledger = Connections::ledger(&ground.config(&text)).await.unwrap();
        let roster = ground.path("roster.csv");
        std::fs::write(&roster, "key,owner\napp,red\ngone,blue\n").unwrap();
        said(&config, &["enroll", "--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await;
        let of_app = async || ledger.failures_of("sync".into(), "app".into()).await.unwrap();
        until("jp has worked, and de has been tried often enough", async || {
            let items = of_app().await;
            let de = items.iter().any(|f| f.item == "de" && f.permanent && f.attempts == 3);
            de && items.iter().all(|f| f.item != "jp")
        })
        .await;
        until("the app that is gone is retired", async || ledger.census(s(30)).await.unwrap().unavailable == 1).await;

        let list = told(&config, &["failed", "list", "--code", "empty_response"]).await;
        let us = &list["failures"][0];
        assert_eq!((&us["item"], &us["attempts"], &us["permanent"]), (&json!("us"), &json!(1), &json!(true)), "{list}");
        let page = told(&config, &["failed", "list", "--limit", "1"]).await;
        assert_eq!(page["failures"][0]["item"], "de");
        let after = page["after"].as_str().unwrap();
        let rest = told(&config, &["failed", "list", "--after", after]).await;
        assert_eq!(rest["failures"].as_array().unwrap().len(), 2, "us, and the app that is gone: {rest}");
        let blue = said(&config, &["failed", "list", "--owner", "blue"]).await;
        assert!(blue.contains("gone") && blue.contains("unavailable") && !blue.contains("app "), "{blue}");
        let shown = said(&config, &["failed", "show", "sync", "app", "de"]).await;
        for words in ["sync app: de", "busy", "exit 75: HTTP 503", "failed      3 times", "permanent"] {
            assert!(shown.contains(words), "no `{words}` in {shown}");
        }

        // What is unavailable is so wherever one looks.
        let gone = told(&config, &["list", "--state", "retired"]).await;
        assert_eq!(gone["chains"][0]["unavailable"], "gone: exit 3: the store has no such app", "{gone}");
        for arguments in [&["list"][..], &["show", "sync", "gone"], &["status"]] {
            let words = said(&config, arguments).await;
            assert!(words.contains("unavailable") && words.contains("no such app"), "{arguments:?}: {words}");
        }
        assert_eq!(told(&config, &["status"]).await["ledger"]["unavailable"], 1);

        // An operator's word on many is asked for.
        let refused = command(&config, &["failed", "retry", "--kind", "sync"]).await;
        assert!(!refused.ok && refused.stderr.contains("this would make 2 parts due now; add --yes"), "{refused:?}");
        let dry = told(&config, &["failed", "retry", "--dry-run"]).await;
        assert_eq!(dry, json!({ "would_be_retried": 2, "whole": 1 }));
        let before = of_app().await.into_iter().find(|f| f.item == "de").unwrap().times;
        let retried = said(&config, &["failed", "retry", "--item", "de"]).await;
        assert!(retried.contains("1 part due now"), "{retried}");
        until("de is tried again, from the beginning", async || {
            of_app().await.iter().any(|f| f.item == "de" && f.permanent && f.times >= before + 3)
        })
        .await;
        assert_eq!(of_app().await.iter().find(|f| f.item == "us").unwrap().times, 1, "us is never tried");
        let refused = command(&config, &["failed", "drop"]).await;
        assert!(!refused.ok && refused.stderr.contains("forget 3 failures"), "{refused:?}");
        assert_eq!(told(&config, &["failed", "drop", "--yes", "--permanent"]).await, json!({ "dropped": 3 }));
        assert!(said(&config, &["failed", "list"]).await.contains("there are no such failures"));
    }
}

on_all!(failed_parts_come_back_and_an_operator_sees_and_steers_them);
