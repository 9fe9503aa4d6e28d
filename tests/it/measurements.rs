//! What measurements say that no machine's speed decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roundelay::broker::embedded::PublishFault;
use roundelay::ledger::{Measured, Traffic};
use serde_json::{Value, json};

use crate::harness::{Ground, roundelay};
use crate::virtual_time::{MONDAY, World, chain};

const HOURS: Duration = Duration::from_secs(2 * 3_600);

/// Two hours in which so many chains sleep: what the ledger had to do, and how many messages were published.
async fn asleep(chains: usize, chores: bool) -> (Traffic, u64) {
    let config = "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1d\"\n";
    let mut world = World::new(config, MONDAY);
    let tomorrow = MONDAY + Duration::from_secs(86_400);
    world.chains((0..chains).map(|n| chain("sync", &n.to_string(), "work", tomorrow)).collect()).await;
    let published = Arc::new(AtomicU64::new(0));
    let count = published.clone();
    world.broker.on_publish(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        PublishFault::None
    });
    match chores {
        true => world.start_with_chores().await,
        false => world.start().await,
    }
    // By then each has its message, and what comes once is over.
    world.until(Duration::from_secs(600)).await;
    let (before, sent) = (world.ledger.traffic(), published.load(Ordering::Relaxed));
    assert!(sent >= chains as u64, "{sent} published of {chains}");
    world.until(Duration::from_secs(600) + HOURS).await;
    let seen = (world.ledger.traffic().since(before), published.load(Ordering::Relaxed) - sent);
    assert_eq!(world.seen("sync").len(), 0);
    world.stop().await;
    seen
}

#[tokio::test(start_paused = true)]
async fn chains_that_sleep_cost_nothing_however_many_there_are() {
    let (few, published) = asleep(3, false).await;
    assert_eq!((few.writes, few.slots, published), (0, 0, 0));
    // Once a second: for jobs that other processes put there, what is overdue, and what was left unfinished.
    assert!(few.reads > 0 && few.reads <= 3 * HOURS.as_secs() + 3, "{few:?}");
    assert_eq!(asleep(3_000, false).await, (few, 0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_s_chores_cost_as_much_however_many_chains_sleep() {
    let few = asleep(3, true).await;
    assert!(few.0.writes > 0 && few.1 > 0, "{few:?}");
    assert_eq!(asleep(2_000, true).await, few);
}

/// The JSON that `roundelay bench …` prints.
async fn bench(arguments: &[&str]) -> Value {
    let output = roundelay(&[&["bench"], arguments, &["--json"]].concat()).await;
    assert!(output.ok, "{output:?}");
    output.json()
}

#[tokio::test]
async fn the_benchmark_of_throttles_finds_no_window_over_the_limit() {
    let reports = bench(&["throttles", "--rates", "40,80", "--for", "2s", "--workers", "2"]).await;
    for (report, allow) in reports.as_array().unwrap().iter().zip([40, 80]) {
        assert_eq!((&report["allow"], &report["over"], &report["workers"]), (&json!(allow), &json!(0), &json!(2)));
        assert!(report["most"].as_u64().unwrap() <= allow, "{report}");
        assert!(report["starts_per_s"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["slot_transactions_per_s"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(reports.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_benchmark_of_keys_sees_each_remembered_and_then_forgotten() {
    for ground in [Ground::embedded(), Ground::rabbit_and_postgres().await] {
        let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
        let report = bench(&["keys", "--keys", "300", "--broker", &broker, "--ledger", &ledger]).await;
        assert_eq!(report["remembered"], json!([0, 300, 0]), "{report}");
        assert!(report["slot_transactions"].as_u64().unwrap() > 0, "{report}");
    }
}

#[tokio::test]
async fn the_benchmark_of_chains_that_sleep_starts_none() {
    let report = bench(&["parked", "--chains", "300", "--settle", "0s", "--for", "1s"]).await;
    assert_eq!((&report["chains"], &report["started"]), (&json!(300), &json!(0)), "{report}");
    assert!(report["ledger_mib"][1].as_f64().unwrap() > 0.0, "{report}");
}
