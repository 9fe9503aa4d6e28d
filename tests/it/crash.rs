//! `kill -9` of a real worker, judged from what an independent receiver saw.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::harness::{Ground, roundelay, until, worker};

const CHAINS: usize = 100;

/// A call as the receiver saw it.
#[derive(Clone, Debug)]
struct Call {
    key: String,
    tick: i64,
    fence: i64,
    /// Which worker process was running: 1, 2.
    life: u32,
    answered: bool,
}

#[derive(Clone)]
struct Receiver {
    calls: Arc<Mutex<Vec<Call>>>,
    life: watch::Receiver<u32>,
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap) -> &'static str {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let number = |name: &str| header(name).parse::<i64>().unwrap();
    let life = *receiver.life.borrow();
    let call = Call {
        key: header("roundelay-key"),
        tick: number("roundelay-tick"),
        fence: number("roundelay-fence"),
        life,
        answered: false,
    };
    let position = {
        let mut calls = receiver.calls.lock().unwrap();
        calls.push(call);
        calls.len() - 1
    };
    sleep(Duration::from_millis(30)).await; // The work; a kill finds some of it in progress.
    receiver.calls.lock().unwrap()[position].answered = true;
    "done"
}

#[tokio::test]
async fn every_chain_survives_a_kill_and_none_doubles_embedded() {
    survive(Ground::embedded()).await;
}

#[tokio::test]
async fn every_chain_survives_a_kill_and_none_doubles_rabbitmq() {
    survive(Ground::rabbit().await).await;
}

#[tokio::test]
async fn every_chain_survives_a_kill_and_none_doubles_postgres() {
    survive(Ground::rabbit_and_postgres().await).await;
}

async fn survive(ground: Ground) {
    let (life, watched) = watch::channel(1);
    let receiver = Receiver { calls: Arc::default(), life: watched };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = Router::new().route("/", post(receive)).with_state(receiver.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let calls = || receiver.calls.lock().unwrap().clone();

    let config = ground.config_file(&format!(
        r#"
catch_up = {{ every = "1s", slack = "2s", spread = "1s" }}
[queues.work]
concurrency = 64
[kinds.sync]
handler.http.url = "http://127.0.0.1:{port}/"
every = "400ms"
timeout = "2s"
queue = "work"
"#
    ));
    let roster = ground.path("roster.csv");
    let rows: String = (0..CHAINS).map(|n| format!("chain-{n}\n")).collect();
    std::fs::write(&roster, format!("key\n{rows}")).unwrap();
    let arguments = ["enroll", "--config", config.to_str().unwrap(), "--kind", "sync", roster.to_str().unwrap()];
    let enrolled = roundelay(&arguments).await;
    assert!(enrolled.ok, "{}", enrolled.stderr);

    // Killed while chains are in full swing and calls are in progress.
    let mut first = worker(&config);
    until("calls are in progress", || async {
        let calls = calls();
        calls.iter().filter(|call| call.tick >= 3).count() >= CHAINS && calls.iter().any(|call| !call.answered)
    })
    .await;
    first.start_kill().unwrap();
    first.wait().await.unwrap();
    life.send(2).unwrap();
    let before = calls();
    let reached = highest(&before);

    let mut second = worker(&config);
    until("every chain has gone on for three ticks", || async {
        let now = highest(&calls());
        (0..CHAINS).all(|n| {
            let key = format!("chain-{n}");
            now.get(&key).is_some_and(|tick| *tick >= reached.get(&key).unwrap_or(&0) + 3)
        })
    })
    .await;
    let pid = nix::unistd::Pid::from_raw(second.id().unwrap() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(second.wait().await.unwrap().success(), "an orderly end");

    // Within one life nothing is called twice. Across the kill, only a tick that was claimed and
    // not finished may come again, under a higher fence.
    let all = calls();
    let mut by_tick: HashMap<(String, i64), Vec<&Call>> = HashMap::new();
    for call in &all {
        by_tick.entry((call.key.clone(), call.tick)).or_default().push(call);
    }
    for ((key, tick), calls) in &by_tick {
        let lives: Vec<u32> = calls.iter().map(|call| call.life).collect();
        assert!(lives == [1] || lives == [2] || lives == [1, 2], "{key} tick {tick} was called in lives {lives:?}");
        assert!(calls.windows(2).all(|pair| pair[0].fence < pair[1].fence), "{key} tick {tick}: fences go back");
        if lives == [1, 2] {
            assert_eq!(Some(tick), reached.get(key), "{key}: tick {tick} came again, but a later one had run");
        }
    }
    // No tick was left out.
    for (key, last) in highest(&all) {
        for tick in 1..=last {
            assert!(by_tick.contains_key(&(key.clone(), tick)), "{key}: tick {tick} of {last} never ran");
        }
    }
}

fn highest(calls: &[Call]) -> BTreeMap<String, i64> {
    let mut highest = BTreeMap::new();
    for call in calls {
        let tick = highest.entry(call.key.clone()).or_insert(0);
        *tick = call.tick.max(*tick);
    }
    highest
}
