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

/// Two hours in which `chains` chains sleep: what the ledger had to do, and how many messages were published.
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
    assert_eq!((few.slots, published), (0, 0));
    // Twice a second the worker says that it lives: in memory by a write, which a mark spares a file.
    assert!(few.writes <= 2 * HOURS.as_secs() + 2, "{few:?}");
    // And sees whether others do. Once a second: for jobs that other processes put there, what is overdue, and what was
    // left unfinished. Every half minute: the chains that sleep longest. Every minute: which delay queues are hot, and
    // whether the queue was fair once and has left a backlog.
    let seconds = HOURS.as_secs();
    assert!(few.reads > 0 && few.reads <= 5 * seconds + seconds / 30 + 2 * (seconds / 60) + 5, "{few:?}");
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

/// Whether windows hold is proved elsewhere, in virtual time. A machine that lets these workers stand still between the
/// last gate and the start brings starts of two windows together, and no more; then the benchmark has to count that.
#[tokio::test]
async fn the_benchmark_of_throttles_counts_windows_over_the_limit() {
    let reports = bench(&["throttles", "--rates", "40,80", "--for", "2s", "--workers", "2"]).await;
    for (report, allow) in reports.as_array().unwrap().iter().zip([40, 80]) {
        assert_eq!((&report["allow"], &report["workers"]), (&json!(allow), &json!(2)));
        let (most, over) = (report["most"].as_u64().unwrap(), report["over"].as_u64().unwrap());
        assert!(most > 0 && most <= 2 * allow && (most > allow) == (over > 0), "{report}");
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

#[tokio::test]
async fn the_benchmark_of_chains_compares_both_sides_and_says_where_the_time_goes() {
    for ground in [Ground::embedded(), Ground::rabbit_and_postgres().await] {
        let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
        let few = ["--chains", "30", "--rate", "20", "--for", "1s", "--turns", "1", "--workers", "2"];
        let place = ["--broker", &broker, "--ledger", &ledger];
        let report = bench(&[&["chains"], &few[..], &place].concat()).await;
        assert_eq!(report["workers"], 2);
        for (what, chains) in [("capacity", 30.0), ("lateness", 20.0)] {
            let comparison = &report[what];
            let of = |side: &str, figure: &str| comparison[side][figure].as_f64().unwrap();
            for side in ["engine", "raw"] {
                // No more than their number in any second, and not none.
                let rate = of(side, "cycles_per_s");
                assert!(rate > 0.0 && rate <= chains * 1.5, "{what} {side}: {comparison}");
                assert!(comparison[side]["late_ms"]["max"].as_f64().unwrap() > 0.0, "{what} {side}: {comparison}");
            }
            assert_eq!(comparison["ratios"].as_array().unwrap().len(), 1);
            // A claim and a finish, and notes beside them.
            let transactions = comparison["transactions_per_cycle"].as_f64().unwrap();
            assert!(transactions > 0.0 && transactions < 6.0, "{comparison}");
            let stages = &comparison["stages_ms"];
            for stage in ["wait", "claim", "run", "finish", "publish", "acknowledge"] {
                assert!(stages[stage].as_f64().unwrap() >= 0.0, "{stage}: {comparison}");
            }
            assert!(
                stages["claim"].as_f64().unwrap() > 0.0 && stages["finish"].as_f64().unwrap() > 0.0,
                "{comparison}"
            );
        }
    }
}

#[tokio::test]
async fn the_benchmark_of_growth_has_a_row_for_each_number_and_runs_chains_in_each() {
    let more = ["--asleep", "40", "--workers", "2", "--payload", "300", "--owners", "3", "--kinds", "2"];
    let report = bench(&[&["growth"], &more[..], &["--chains", "30", "--for", "1s"]].concat()).await;
    let rows = report.as_array().unwrap();
    let of = |row: &Value| (row["of"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap());
    let expected = [("chains asleep", 40), ("workers", 2), ("bytes of payload", 300), ("owners", 3), ("kinds", 2)];
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected.map(|(what, count)| (what.to_owned(), count)));
    for row in rows {
        for side in ["engine", "raw"] {
            // Those that sleep do not run.
            let rate = row[side]["cycles_per_s"].as_f64().unwrap();
            assert!(rate > 0.0 && rate <= 45.0, "{side}: {row}");
        }
    }
}

#[tokio::test]
async fn the_benchmark_that_compares_burns_all_jobs_down_and_runs_chains_on_each_broker_and_ledger() {
    let ground = Ground::rabbit_and_postgres().await;
    let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
    let little = ["compare", "--jobs", "300", "--chains", "20", "--every", "1s", "--for", "1s"];
    let report = bench(&[&little[..], &["--broker", &broker, "--ledger", &ledger]].concat()).await;
    let places = report.as_array().unwrap();
    let names = |place: &Value| ["broker", "ledger"].map(|what| place[what].as_str().unwrap().to_owned());
    let expected = [["embedded", "SQLite"], ["RabbitMQ", "SQLite"], ["RabbitMQ", "PostgreSQL"]];
    assert_eq!(places.iter().map(names).collect::<Vec<_>>(), expected.map(|names| names.map(String::from)));
    for place in places {
        let of = |part: &str, figure: &str| place[part][figure].as_f64().unwrap();
        assert!(of("jobs", "jobs") == 300.0 && of("jobs", "published_per_s") > 0.0, "{place}");
        // None is left out, and none comes twice.
        assert_eq!(place["jobs"]["started"], 300, "{place}");
        let rate = of("chains", "cycles_per_s");
        assert!(rate > 0.0 && rate <= 30.0, "{place}");
    }
}

#[tokio::test]
async fn the_benchmark_of_shards_compares_queues_and_rungs_and_leaves_the_ledger_to_others() {
    let all = ("1,3", "0ms,8ms", vec![[1, 0, 1], [3, 0, 1], [1, 8, 13], [3, 8, 13]]);
    // Each declares some hundred queues there.
    let one = ("3", "8ms", vec![[3, 8, 13]]);
    for (ground, (queues, jitters, expected)) in [(Ground::embedded(), all), (Ground::rabbit_and_postgres().await, one)]
    {
        let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
        let place = ["--broker", &broker, "--ledger", &ledger];
        let what = ["--queues", queues, "--jitters", jitters, "--chains", "30", "--for", "1s", "--turns", "1"];
        let report = bench(&[&["shards"], &what[..], &place].concat()).await;
        let cells = report["cells"].as_array().unwrap();
        let shapes = |cell: &Value| ["queues", "jitter_ms", "rungs"].map(|what| cell[what].as_u64().unwrap());
        assert_eq!(cells.iter().map(shapes).collect::<Vec<_>>(), expected);
        for cell in cells {
            for side in ["engine", "raw"] {
                // No more than their number in any second, and not none.
                let rate = cell[side]["cycles_per_s"].as_f64().unwrap();
                assert!(rate > 0.0 && rate <= 45.0, "{side}: {cell}");
                let first = cells[0][side]["cycles_per_s"].as_f64().unwrap();
                assert!((cell[side]["by_first"].as_f64().unwrap() - rate / first).abs() < 0.01, "{side}: {report}");
            }
            // How the engine's are shared depends on how long its machine takes to write; that they were counted does
            // not.
            let busiest = cell["busiest_rung"].as_f64().unwrap();
            assert!(busiest > 0.0 && busiest <= 1.0, "{cell}");
        }
        // The ledger's workers have agreed on one queue again.
        bench(&[&["chains", "--chains", "0", "--rate", "20", "--for", "1s", "--turns", "1"], &place[..]].concat())
            .await;
    }
}

#[tokio::test]
async fn the_benchmark_of_restarts_sees_each_overdue_chain_tick_once() {
    for ground in [Ground::embedded(), Ground::rabbit().await] {
        let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
        let few = ["restart", "--chains", "1500", "--spread", "4s", "--broker", &broker, "--ledger", &ledger];
        let report = bench(&few).await;
        assert_eq!(report["chains"], 1_500);
        let of = |figure: &str| report[figure].as_f64().unwrap();
        assert!(of("first_tick_s") <= of("steady_after_s") && of("steady_after_s") >= 3.0, "{report}");
        assert!(of("peak_to_mean") >= 1.0 && of("mean") > 0.0 && of("transactions") > 0.0, "{report}");
    }
}

#[tokio::test]
async fn the_benchmark_of_flatness_is_flat_and_repeats_itself() {
    // By then an outage of two intervals has been smoothed out.
    let settings = ["flat", "--chains", "1000", "--settle", "4m", "--for", "3m"];
    let reports = bench(&settings).await;
    for report in reports.as_array().unwrap() {
        let peak_to_mean = report["peak_to_mean"].as_f64().unwrap();
        assert!((1.0..1.2).contains(&peak_to_mean), "{report}");
        // 1,000 each minute, three minutes.
        assert!((2_850..3_150).contains(&report["starts"].as_u64().unwrap()), "{report}");
    }
    let what = |reports: &Value| reports.as_array().unwrap().iter().map(|r| r["peak"].clone()).collect::<Vec<_>>();
    assert_eq!((what(&reports).len(), what(&reports)), (3, what(&bench(&settings).await)));
}

#[tokio::test]
async fn the_benchmark_of_the_ladder_finds_no_delay_too_short_and_none_with_more_than_four_rungs() {
    let in_virtual_time = bench(&["ladder", "--messages", "5"]).await;
    let ground = Ground::rabbit().await;
    let (broker, ledger) = (ground.broker_url(), ground.ledger_url());
    let on_rabbit = ["ladder", "--messages", "5", "--longest", "2s", "--broker", &broker, "--ledger", &ledger];
    for (reports, longest) in [(in_virtual_time, u64::MAX), (bench(&on_rabbit).await, 2_000)] {
        for report in reports.as_array().unwrap() {
            let waited = report["delay_ms"].as_u64().unwrap() <= longest;
            assert_eq!(report["messages"], if waited { 5 } else { 0 }, "{report}");
            assert_eq!((&report["early"], report["late_ms"].is_null()), (&json!(0), !waited), "{report}");
            assert!(report["hops"].as_u64().unwrap() <= 4, "{report}");
        }
        assert_eq!(reports.as_array().unwrap().last().unwrap()["delay_ms"], 86_400_000);
    }
}
