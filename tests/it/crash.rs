//! Real workers that are killed, or replaced one after the other, judged from what an independent
//! receiver saw.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use parking_lot::Mutex;
use roundelay::Config;
use roundelay::broker::Broker;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::engine::Connections;
use roundelay::topology::Names;
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
    // One-off jobs have neither tick nor fence.
    let number = |name: &str| headers.get(name).map_or(0, |value| value.to_str().unwrap().parse::<i64>().unwrap());
    let life = *receiver.life.borrow();
    let call = Call {
        key: header("roundelay-key"),
        tick: number("roundelay-tick"),
        fence: number("roundelay-fence"),
        life,
        answered: false,
    };
    let position = {
        let mut calls = receiver.calls.lock();
        calls.push(call);
        calls.len() - 1
    };
    sleep(Duration::from_millis(30)).await; // The work; a kill finds some of it in progress.
    receiver.calls.lock()[position].answered = true;
    "done"
}

#[tokio::test]
async fn every_chain_survives_a_kill_and_none_doubles_embedded() {
    survive(Ground::embedded(), ROOMY).await;
}

#[tokio::test]
async fn every_chain_survives_a_kill_and_none_doubles_rabbitmq() {
    survive(Ground::rabbit().await, ROOMY).await;
}

#[tokio::test]
async fn every_chain_survives_a_kill_and_none_doubles_postgres() {
    survive(Ground::rabbit_and_postgres().await, ROOMY).await;
}

#[tokio::test]
async fn every_chain_of_a_fair_queue_survives_a_kill_rabbitmq() {
    survive(Ground::rabbit().await, CROWDED).await;
}

#[tokio::test]
async fn every_chain_of_a_fair_queue_survives_a_kill_postgres() {
    survive(Ground::rabbit_and_postgres().await, CROWDED).await;
}

/// All chains have room.
const ROOMY: &str = "concurrency = 64";
/// Most chains wait in the backlog: a worker has few of them in hand.
const CROWDED: &str = "concurrency = 4\nprefetch = 8\nfair = \"kind\"";

async fn survive(ground: Ground, queue: &str) {
    let (life, watched) = watch::channel(1);
    let (receiver, port) = serve(watched).await;
    let calls = || receiver.calls.lock().clone();

    let config = ground.config_file(&format!(
        r#"
catch_up = {{ every = "1s", slack = "2s", spread = "1s" }}
[queues.work]
{queue}
[kinds.sync]
handler.http.url = "http://127.0.0.1:{port}/"
every = "400ms"
timeout = "2s"
queue = "work"
"#
    ));
    enroll(&ground, &config).await;

    // Killed while chains are in full swing and calls are in progress.
    let mut first = worker(&config);
    until("calls are in progress", || async {
        let calls = calls();
        calls.iter().filter(|call| call.tick >= 3).count() >= CHAINS && calls.iter().any(|call| !call.answered)
    })
    .await;
    if queue == CROWDED {
        let ledger = Connections::ledger(&Config::load(&config).unwrap()).await.unwrap();
        until("messages are in the backlog", || async {
            !ledger.backlog("work".into(), None, 1, 1).await.unwrap().is_empty()
        })
        .await;
    }
    first.start_kill().unwrap();
    first.wait().await.unwrap();
    life.send(2).unwrap();
    let before = calls();
    let reached = highest(&before);

    let mut second = worker(&config);
    until("every chain has gone on for three ticks", || async { are_past(&highest(&calls()), &reached, 3) }).await;
    end(&mut second).await;

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
    none_left_out(&all);
}

/// RabbitMQ goes on to give messages to a worker that stands still, until it has missed its heartbeats. Meanwhile the
/// other worker runs what is late from the ledger.
#[tokio::test]
async fn chains_go_on_while_a_worker_is_frozen_that_the_broker_still_believes_in() {
    use nix::sys::signal::{Signal, kill};

    let mut ground = Ground::rabbit_and_postgres().await;
    // The broker believes in it for longer than the test may take, however slow the machine is.
    ground.vhost.as_mut().unwrap().amqp.push_str("?heartbeat=60");
    let (receiver, port) = serve(watch::channel(1).1).await;
    let config = ground.config_file(&format!(
        r#"
worker.lease = "3s"
[queues.work]
concurrency = 64
prefetch = 1000
[kinds.sync]
handler.http.url = "http://127.0.0.1:{port}/"
every = "400ms"
timeout = "2s"
queue = "work"
"#
    ));
    enroll(&ground, &config).await;
    let workers = [worker(&config), worker(&config)];
    let vhost = ground.vhost.as_ref().unwrap();
    let broker = RabbitBroker::connect(&vhost.amqp, Names::new("roundelay")).await.unwrap();
    let consumers = || async { broker.depth("work").await.unwrap().consumers };
    let reached = || highest(&receiver.calls.lock());
    until("both consume", || async { consumers().await == 2 }).await;
    let before = reached();
    until("every chain runs", || async { are_past(&reached(), &before, 3) }).await;

    let frozen = nix::unistd::Pid::from_raw(workers[0].id().unwrap() as i32);
    kill(frozen, Signal::SIGSTOP).unwrap();
    // What was on its way when it stopped has come in by then, and its successors have gone to both.
    sleep(Duration::from_secs(1)).await;
    let before = reached();
    let both = || async { assert_eq!(consumers().await, 2, "the broker has taken its messages back") };
    until("every chain goes on", || async {
        both().await;
        are_past(&reached(), &before, 3)
    })
    .await;
    let until_now = receiver.calls.lock().len();
    kill(frozen, Signal::SIGCONT).unwrap();

    let before = reached();
    until("every chain goes on with both", || async { are_past(&reached(), &before, 3) }).await;
    let calls = receiver.calls.lock().clone();
    none_left_out(&calls);
    let mut fences = HashMap::new();
    for (n, Call { key, tick, fence, .. }) in calls.iter().enumerate() {
        let before = fences.insert((key, tick), *fence);
        // A call that the frozen worker was about to make comes late. For that it has its fence.
        let late = n >= until_now && before.is_some_and(|before| before > *fence);
        let follows = before.is_none_or(|before| before < *fence);
        assert!(follows || late, "{key} tick {tick}: from fence {before:?} to {fence}");
    }
}

/// Whether every chain has advanced by this number of ticks.
fn are_past(now: &BTreeMap<String, i64>, before: &BTreeMap<String, i64>, ticks: i64) -> bool {
    (0..CHAINS).all(|n| {
        let key = format!("chain-{n}");
        now.get(&key).is_some_and(|tick| *tick >= before.get(&key).unwrap_or(&0) + ticks)
    })
}

#[tokio::test]
async fn a_rolling_restart_loses_and_doubles_nothing_rabbitmq() {
    replace_one_by_one(Ground::rabbit().await).await;
}

#[tokio::test]
async fn a_rolling_restart_loses_and_doubles_nothing_postgres() {
    replace_one_by_one(Ground::rabbit_and_postgres().await).await;
}

/// Three workers are told to stop and replaced, one after the other, while chains tick and one-off
/// jobs come in.
async fn replace_one_by_one(ground: Ground) {
    const JOBS: usize = 24;
    let (_life, watched) = watch::channel(1);
    let (receiver, port) = serve(watched).await;
    let calls = || receiver.calls.lock().clone();
    let config = ground.config_file(&format!(
        r#"
worker.grace = "20s"
[queues.work]
concurrency = 16
[kinds.sync]
handler.http.url = "http://127.0.0.1:{port}/"
every = "400ms"
timeout = "10s"
queue = "work"
[kinds.job]
handler.http.url = "http://127.0.0.1:{port}/"
timeout = "10s"
queue = "work"
"#
    ));
    enroll(&ground, &config).await;
    let mut workers: Vec<_> = (0..3).map(|_| worker(&config)).collect();
    let on_by = |ticks: i64| {
        let before = highest(&calls());
        async move {
            until("every chain has gone on", || async {
                let now = highest(&calls());
                (0..CHAINS)
                    .map(|n| format!("chain-{n}"))
                    .all(|key| now.get(&key).is_some_and(|tick| *tick >= before.get(&key).unwrap_or(&0) + ticks))
            })
            .await;
        }
    };
    on_by(2).await;
    let publishing = async {
        for n in 0..JOBS {
            let key = format!("job-{n}");
            let published = roundelay(&["publish", "--config", config.to_str().unwrap(), "job", &key]).await;
            assert!(published.ok, "{}", published.stderr);
        }
    };
    let replacing = async {
        for old in &mut workers {
            end(old).await;
            *old = worker(&config);
            on_by(2).await;
        }
    };
    tokio::join!(publishing, replacing);
    until("every one-off job has been called", || async {
        calls().iter().filter(|call| call.key.starts_with("job-")).count() >= JOBS
    })
    .await;
    for worker in &mut workers {
        end(worker).await;
    }

    let mut times: HashMap<(String, i64), usize> = HashMap::new();
    let (ticks, jobs): (Vec<_>, Vec<_>) = calls().into_iter().partition(|call| call.tick > 0);
    for call in ticks.iter().chain(&jobs) {
        assert!(call.answered, "{} {} was left in the middle", call.key, call.tick);
        *times.entry((call.key.clone(), call.tick)).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "called more than once: {twice:?}");
    assert_eq!(jobs.len(), JOBS);
    assert_eq!(highest(&ticks).len(), CHAINS);
    none_left_out(&ticks);
}

async fn serve(life: watch::Receiver<u32>) -> (Receiver, u16) {
    let receiver = Receiver { calls: Arc::default(), life };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = Router::new().route("/", post(receive)).with_state(receiver.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (receiver, port)
}

async fn enroll(ground: &Ground, config: &std::path::Path) {
    let roster = ground.path("roster.csv");
    let rows: String = (0..CHAINS).map(|n| format!("chain-{n}\n")).collect();
    std::fs::write(&roster, format!("key\n{rows}")).unwrap();
    let arguments = ["enroll", "--config", config.to_str().unwrap(), "--kind", "sync", roster.to_str().unwrap()];
    let enrolled = roundelay(&arguments).await;
    assert!(enrolled.ok, "{}", enrolled.stderr);
}

/// Has a worker stop in order.
async fn end(worker: &mut tokio::process::Child) {
    let pid = nix::unistd::Pid::from_raw(worker.id().unwrap() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(worker.wait().await.unwrap().success(), "an orderly end");
}

fn none_left_out(calls: &[Call]) {
    let ran: HashSet<(&str, i64)> = calls.iter().map(|call| (call.key.as_str(), call.tick)).collect();
    for (key, last) in highest(calls) {
        for tick in 1..=last {
            assert!(ran.contains(&(key.as_str(), tick)), "{key}: tick {tick} of {last} never ran");
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
