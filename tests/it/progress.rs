//! Runs report their progress, and operators can see it: by the real program, and its `show`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use parking_lot::Mutex;
use reqwest::{Client, StatusCode};
use roundelay::Outcome;
use roundelay::engine::{Connections, Dispatch};
use roundelay::job::Envelope;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::harness::{Ground, Watched, chain, on_all, roundelay, until, worker};

on_all!(a_program_says_how_far_it_has_come);
on_all!(a_service_that_is_called_says_how_far_it_has_come);
on_all!(a_rust_handler_says_how_far_it_has_come);
on_all!(a_one_off_job_says_how_far_it_has_come);

/// A chain of one tick an hour, which `handler` runs, and a worker that listens.
fn config(ground: &Ground, handler: &str) -> (PathBuf, String) {
    let text = format!(
        "worker.listen = \"127.0.0.1:0\"\n[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\n\
         timeout = \"5m\"\n{handler}\n"
    );
    (ground.config_file(&text), text)
}

/// Begins the chain, due at once, for catch-up to find.
async fn begin(ground: &Ground, text: &str) {
    let ledger = Connections::ledger(&ground.config(text)).await.unwrap();
    let now = ledger.now();
    let new = roundelay::ledger::NewChain { watch_at: now, ..chain("ios/7", now) };
    ledger.enroll(vec![new]).await.unwrap();
}

/// The chain as another process shows it.
async fn shown(config: &Path) -> Value {
    let output = roundelay(&["show", "--config", config.to_str().unwrap(), "sync", "ios/7", "--json"]).await;
    assert!(output.ok, "{output:?}");
    output.json()["chain"].clone()
}

async fn in_words(config: &Path) -> String {
    roundelay(&["show", "--config", config.to_str().unwrap(), "sync", "ios/7"]).await.stdout
}

/// The one-off jobs that run, as another process shows them; none when it knows of nothing.
async fn jobs(config: &Path) -> Vec<Value> {
    let output = roundelay(&["show", "--config", config.to_str().unwrap(), "sync", "ios/7", "--json"]).await;
    match output.ok {
        true => output.json()["running"].as_array().unwrap().clone(),
        false => {
            assert!(output.stderr.contains("no one-off job of it that has reported and runs"), "{output:?}");
            Vec::new()
        }
    }
}

/// What is shown of the progress of the run that goes on, without the time.
fn stands(shown: &Value) -> (Value, Value, Value) {
    let progress = &shown["progress"];
    (progress["phase"].clone(), progress["done"].clone(), progress["total"].clone())
}

/// The record of its first attempt, when that has ended.
async fn ended(config: &Path) -> Value {
    until("it has ended", async || shown(config).await["tick"] == 2).await;
    let shown = shown(config).await;
    assert_eq!(shown["progress"], json!(null), "nothing goes on");
    shown["attempts"][0].clone()
}

mod run {
    use super::*;

    pub async fn a_program_says_how_far_it_has_come(ground: Ground) {
        let script = r#"echo starting
            printf 'roundelay: progress {"phase":"listings",'; printf '"done":3,"total":12}\n'
            while [ ! -e "$1" ]; do /bin/sleep 0.02; done
            echo 'roundelay: progress nonsense'
            echo '{"outcome":"done","carry":7}'
            echo 'roundelay: progress {"phase":"finalize","done":1,"total":1}'"#;
        let go_on = ground.path("go-on");
        let argv = json!(["/bin/sh", "-c", script, "script", go_on]);
        let (file, text) = config(&ground, &format!("handler.exec.argv = {argv}"));
        begin(&ground, &text).await;
        let _worker = worker(&file);
        let listings = (json!("listings"), json!(3), json!(12));
        until("another process sees it", async || stands(&shown(&file).await) == listings).await;
        let words = in_words(&file).await;
        assert!(words.contains("\n  running     listings 3/12, ") && words.contains("s ago\n"), "{words}");
        std::fs::write(&go_on, "").unwrap();
        let first = ended(&file).await;
        assert_eq!((&first["verdict"], &first["progress"]["phase"]), (&json!("done"), &json!("finalize")), "{first}");
        assert_eq!(shown(&file).await["carry"], json!(7), "the line that decides counts, though another came after it");
        let words = in_words(&file).await;
        assert!(words.contains(" ms, at finalize 1/1") && !words.contains("\n  running"), "{words}");
    }

    pub async fn a_service_that_is_called_says_how_far_it_has_come(ground: Ground) {
        #[derive(Clone, Default)]
        struct Called {
            job: Arc<Mutex<Option<Value>>>,
            go_on: Arc<Notify>,
        }
        async fn called(State(called): State<Called>, axum::Json(job): axum::Json<Value>) -> &'static str {
            *called.job.lock() = Some(job);
            called.go_on.notified().await;
            ""
        }
        let called_here = Called::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sync", listener.local_addr().unwrap());
        let app = Router::new().route("/sync", post(called)).with_state(called_here.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let (file, text) = config(&ground, &format!("handler.http.url = \"{url}\""));
        begin(&ground, &text).await;
        let _worker = worker(&file);
        let job = || called_here.job.lock().clone();
        until("it is called", async || job().is_some()).await;
        let progress = job().unwrap()["progress"].as_str().expect("the worker listens").to_owned();
        assert!(progress.starts_with("http://127.0.0.1:") && progress.contains("/progress/"), "{progress}");
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().build().unwrap();
        let report = async |url: &str, body: &str| {
            let answer = client.post(url).body(body.to_owned()).send().await.unwrap();
            (answer.status(), answer.text().await.unwrap())
        };
        let listings = r#"{"phase":"listings","done":3,"total":12}"#;
        assert_eq!(report(&progress, listings).await, (StatusCode::NO_CONTENT, String::new()));
        assert_eq!(report(&progress, r#"{"done":4}"#).await.0, StatusCode::NO_CONTENT);
        let fourth = (json!("listings"), json!(4), json!(12));
        until("another process sees it", async || stands(&shown(&file).await) == fourth).await;
        // No other token can report for the run. Nonsense is refused and harms nothing.
        let guessed = format!("{}{}", &progress[..progress.len() - 32], "0".repeat(32));
        assert_eq!(report(&guessed, listings).await.0, StatusCode::NOT_FOUND);
        let (status, why) = report(&progress, "listings").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(why.starts_with("it is no object such as {\"phase\":\"listings\""), "{why}");
        let (status, why) = report(&progress, &"x".repeat(5_000)).await;
        assert!(status == StatusCode::BAD_REQUEST && why.ends_with("at most 4096 are read\n"), "{status} {why}");
        assert_eq!(report(&progress, r#"{"phase":"metrics"}"#).await.0, StatusCode::NO_CONTENT);
        called_here.go_on.notify_one();
        let first = ended(&file).await;
        assert_eq!((&first["verdict"], &first["progress"]["phase"]), (&json!("done"), &json!("metrics")), "{first}");
        assert_eq!(report(&progress, listings).await.0, StatusCode::NOT_FOUND, "it has ended");
    }

    pub async fn a_one_off_job_says_how_far_it_has_come(ground: Ground) {
        let (file, text) = config(&ground, "retry = { attempts = 2, backoff = [\"50ms\"] }");
        let mut engine = Watched::start(&ground, &text).await;
        let dispatch = Dispatch::new(&engine.config, &engine.connections);
        let envelope = Envelope::job("sync", "ios/7", json!({}), "on demand".into());
        dispatch.send(&envelope, "work", engine.ledger().now()).await.unwrap();
        let first = engine.next().await;
        assert_eq!(jobs(&file).await, [] as [Value; 0], "one that says nothing costs nothing");
        first.context.progress("listings", 3, 12);
        let listings = (json!("listings"), json!(3), json!(12));
        until("another process sees it", async || jobs(&file).await.first().map(stands) == Some(listings.clone()))
            .await;
        let shown = jobs(&file).await;
        assert_eq!((&shown[0]["id"], &shown[0]["attempt"], shown.len()), (&json!("on demand"), &json!(1), 1));
        let words = in_words(&file).await;
        assert!(
            words.starts_with("one-off job on demand on work, attempt 1, by ") && words.contains("listings 3/12, "),
            "{words}"
        );
        first.end(Outcome::retry("out of luck"));
        let second = engine.next().await;
        until("the first attempt is over", async || jobs(&file).await.is_empty()).await;
        second.context.phase("identity");
        let identity = (json!("identity"), json!(null), json!(null));
        until("each attempt has its own", async || jobs(&file).await.first().map(stands) == Some(identity.clone()))
            .await;
        engine.begin_stop();
        second.end(Outcome::Done);
        engine.stop().await;
        assert_eq!(jobs(&file).await, [] as [Value; 0], "a worker that stops leaves nothing behind");
    }

    pub async fn a_rust_handler_says_how_far_it_has_come(ground: Ground) {
        let (file, text) = config(&ground, "retry = { attempts = 2, backoff = [\"50ms\"] }");
        let mut engine = Watched::start(&ground, &text).await;
        engine.enroll("ios/7", "work").await;
        let run = engine.next().await;
        run.context.phase("identity");
        for done in 1..=1_000 {
            run.context.progress("listings", done, 1_000);
        }
        let all = (json!("listings"), json!(1_000), json!(1_000));
        until("another process sees it", async || stands(&shown(&file).await) == all).await;
        let context = run.context.clone();
        run.end(Outcome::retry("out of luck"));
        let second = engine.next().await;
        context.phase("too late");
        second.end(Outcome::Done);
        until("it has ended", async || shown(&file).await["tick"] == 2).await;
        let attempts = shown(&file).await["attempts"].clone();
        assert_eq!(attempts[0]["progress"], json!(null), "each attempt has its own: {attempts}");
        assert_eq!(attempts[1]["progress"]["phase"], json!("listings"), "{attempts}");
        engine.stop().await;
    }
}
