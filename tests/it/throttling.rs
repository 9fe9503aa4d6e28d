//! Starts never exceed a throttle, in virtual time: the clock jumps whenever nothing can run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use roundelay::broker::embedded::EmbeddedBroker;
use roundelay::broker::topology::Names;
use roundelay::clock::{Clock, Entropy, Time};
use roundelay::config::LedgerUrl;
use roundelay::engine::Connections;
use roundelay::engine::enroll::{Enroller, Entity};
use roundelay::job::Job;
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::{Config, Engine, Outcome};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

const CONFIG: &str = r#"
[queues.work]
concurrency = 4
prefetch = 16
throttle = "upstream"
[throttles.upstream]
allow = 1
per = "1s"
[kinds.sync]
every = "1h"
queue = "work"
timeout = "5m"
"#;

#[tokio::test(start_paused = true)]
async fn runs_that_end_together_do_not_let_as_many_start_together() {
    let config = Config::parse(CONFIG, "the test's configuration", []).unwrap();
    let (clock, entropy) = (Clock::starting_at(Time::from_millis(1_800_000_000_000)), Entropy::seeded(1));
    let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &entropy).unwrap();
    let broker = EmbeddedBroker::new(Names::new("roundelay"));
    let connections = Connections { broker: Arc::new(broker), ledger: Arc::new(ledger), clock, entropy };

    // The upstream answers nobody for a minute, and then everybody at once.
    let (begun, starts) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let seen = starts.clone();
    let engine = Engine::new(config.clone()).connections(connections.clone()).handler("sync", move |_: Job| {
        seen.lock().unwrap().push(begun.elapsed());
        async move {
            sleep_until(begun + Duration::from_secs(60)).await;
            Outcome::Done
        }
    });
    let stop = CancellationToken::new();
    let (ready, engine) = (engine.ready(), tokio::spawn(engine.run(stop.clone())));
    ready.wait().await;
    let mut enroller = Enroller::new(&config, connections, "sync", Some(Duration::ZERO), true).unwrap();
    let entity = |n: u32| Entity { key: n.to_string(), queue: "work".into(), payload: "{}".into() };
    enroller.enroll((0..12).map(entity).collect()).await.unwrap();
    sleep(Duration::from_secs(120)).await;
    stop.cancel();
    engine.await.unwrap().unwrap();

    let starts = starts.lock().unwrap().clone();
    assert_eq!(starts.len(), 12);
    let gaps: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= Duration::from_millis(999)), "starts: {starts:?}");
}
