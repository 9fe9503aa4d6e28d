//! Throttles of several worker processes, from the log of a receiver that knows nothing of them: the short
//! versions of what `tests/run --throttles` measures. They say only that no window ever holds too many and that
//! all is done; how much of a limit is used is a matter of the machine.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use roundelay::broker::{Broker, Destination, Message};
use roundelay::job::Envelope;
use rusqlite::{Connection, MAIN_DB};
use serde_json::json;

use crate::harness::{Ground, roundelay, until};
use crate::monitoring::Observed;
use crate::support::receiver::{Receiver, Reply};
use crate::support::windows::{Limit, judge, quantile, up, used, used_in};
use crate::support::workers::{Place, Plan, Workers};

// ---- The judge ----

fn at(millis: &[u64]) -> Vec<Duration> {
    millis.iter().map(|millis| Duration::from_millis(*millis)).collect()
}

#[test]
fn the_judge_finds_every_window_that_holds_too_many() {
    let two_a_second = Limit { allow: 2, per: Duration::from_secs(1) };
    for (starts, over, nearest, why) in [
        (vec![], vec![], None, "nothing started"),
        (vec![5, 5], vec![], None, "two at once are allowed"),
        (vec![0, 500, 1_000, 1_500], vec![], Some(0.0), "a window ends before the start a whole second later"),
        (vec![0, 500, 999], vec![(0, 999)], Some(-1.0), "one millisecond too early"),
        (vec![900, 950, 1_050, 1_100], vec![(900, 150), (950, 150)], Some(-850.0), "two in each of two whole seconds"),
        (vec![1_050, 900, 1_100, 950], vec![(900, 150), (950, 150)], Some(-850.0), "in any order"),
        (vec![0, 0, 0], vec![(0, 0)], Some(-1_000.0), "three at once"),
        (vec![0, 10, 5_000, 5_010, 5_020], vec![(5_000, 20)], Some(-980.0), "only the second burst is one too many"),
        (vec![0, 2_500, 5_000], vec![], Some(4_000.0), "far below"),
    ] {
        let ruling = judge(&at(&starts), two_a_second);
        let found: Vec<_> =
            ruling.over.iter().map(|one| (one.from.as_millis() as u64, one.took.as_millis() as u64)).collect();
        assert_eq!((found, ruling.starts), (over, starts.len()), "{why}");
        assert_eq!(ruling.nearest.map(f64::round), nearest, "{why}");
    }
}

#[test]
fn the_judge_sees_how_much_of_a_limit_is_used() {
    let sixty = Limit { allow: 60, per: Duration::from_secs(60) };
    let every = |millis: u64| at(&(0..=60).map(|n| n * millis).collect::<Vec<_>>());
    let minute = (Duration::ZERO, Duration::from_secs(60));
    for (starts, share, why) in [
        (every(1_000), 1.0, "all of it; the start at the beginning does not count"),
        (every(2_000), 0.5, "half of it"),
        (at(&[0, 100, 60_000, 60_001]), 2.0 / 60.0, "what comes later does not count"),
        (vec![], 0.0, "nothing"),
    ] {
        assert!((used(&starts, sixty, minute.0, minute.1) - share).abs() < 1e-9, "{why}");
    }
    assert_eq!(used(&every(1_000), sixty, minute.1, minute.1), 0.0, "no time, no use");
    let secs = |spans: &[(u64, u64)]| -> Vec<_> {
        spans.iter().map(|(from, to)| (Duration::from_secs(*from), Duration::from_secs(*to))).collect()
    };
    for (out, left, why) in [
        (vec![], 60, "nothing was away"),
        (vec![(10, 20), (30, 35)], 45, "twice"),
        (vec![(30, 35), (10, 20)], 45, "in any order"),
        (vec![(10, 40), (20, 30), (35, 45)], 25, "over each other"),
        (vec![(50, 90)], 50, "beyond the end"),
        (vec![(0, 60)], 0, "all the time"),
    ] {
        assert_eq!(up(minute, &secs(&out)).as_secs(), left, "{why}");
    }
    let half = at(&(0..=30).map(|n| n * 1_000).collect::<Vec<_>>());
    assert!((used_in(&half, sixty, minute, &secs(&[(30, 60)])) - 1.0).abs() < 1e-9, "all of the time that there was");
    assert_eq!(used_in(&half, sixty, minute, &secs(&[(0, 60)])), 0.0, "no time, no use");
}

#[test]
fn quantiles_are_values_that_were_there() {
    let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
    for (of, value) in [(0.0, 1.0), (0.01, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
        assert_eq!(quantile(&hundred, of), Some(value), "{of}");
    }
    assert_eq!((quantile(&[], 0.5), quantile(&[7.0], 0.5)), (None, Some(7.0)));
}

// ---- Worker processes ----

/// Worker processes with one-off jobs on the queue `work`, whose throttle has this limit.
struct Fleet {
    ground: Ground,
    receiver: Receiver,
    workers: Workers,
}

impl Fleet {
    /// `jobs` are names and channels.
    async fn start(ground: Ground, limit: Limit, key: &str, jobs: &[(String, String)]) -> Self {
        let receiver = Receiver::start(Arc::new(|_: &_| Reply::ok(Duration::from_millis(20)))).unwrap();
        let (Limit { allow, per }, address) = (limit, receiver.address);
        let config = ground.config_file(&format!(
            r#"
            [throttles.upstream]
            allow = {allow}
            per = "{}ms"
            {key}
            [queues.work]
            throttle = "upstream"
            concurrency = 16
            prefetch = 16
            [kinds.post]
            queue = "work"
            timeout = "10s"
            handler.http.url = "http://{address}/"
            "#,
            per.as_millis()
        ));
        let path = config.to_str().unwrap();
        let applied = roundelay(&["topology", "apply", "--config", path]).await;
        assert!(applied.ok, "{}", applied.stderr);
        let publisher = ground.vhost.as_ref().unwrap().connect("roundelay").await;
        for (id, channel) in jobs {
            let job = Envelope::job("post", id, json!({ "channel": channel }), id.clone());
            publisher.publish(Message::new(Destination::Queue("work".into()), &job)).await.unwrap();
        }
        let plan = Plan {
            config,
            kinds: vec!["post".into()],
            variables: vec![Vec::new(); 2],
            apart: Duration::ZERO,
            place: Place::default(),
        };
        let workers = Workers::start(plan, Arc::new(|_: &str, _| ())).await;
        Self { ground, receiver, workers }
    }

    /// Waits until `many` jobs have been called.
    async fn called(&self, many: usize) {
        until("jobs are called", || async {
            self.receiver.calls().into_iter().map(|call| call.id).collect::<HashSet<_>>().len() >= many
        })
        .await;
    }

    /// Waits for all jobs; answers when each channel was called.
    async fn end(self, many: usize) -> BTreeMap<String, Vec<Duration>> {
        self.called(many).await;
        assert_eq!(self.workers.stop().await, 0, "workers end in order");
        let mut channels: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
        self.receiver.calls().into_iter().for_each(|call| channels.entry(call.channel).or_default().push(call.at));
        drop(self.ground);
        channels
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_holds_too_many_while_workers_are_killed_and_frozen() {
    const JOBS: usize = 50;
    let limit = Limit { allow: 20, per: Duration::from_secs(10) };
    let jobs: Vec<_> = (0..JOBS).map(|n| (format!("job-{n}"), String::new())).collect();
    let fleet = Fleet::start(Ground::rabbit_and_postgres().await, limit, "", &jobs).await;
    fleet.called(10).await;
    assert!(fleet.workers.kill(&fleet.workers.seats[0], |_| ()).is_some());
    fleet.called(25).await;
    assert!(fleet.workers.freeze(&fleet.workers.seats[1], Duration::from_secs(3), |_| ()).await.is_some());

    let channels = fleet.end(JOBS).await;
    let starts = &channels[""];
    let ruling = judge(starts, limit);
    assert!(ruling.over.is_empty(), "{:?} in {starts:?}", ruling.over);
    assert!(ruling.nearest.is_some(), "there were windows to fill");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_has_a_limit_of_its_own_for_all_workers() {
    const CHANNELS: usize = 6;
    const OF_EACH: usize = 6;
    // The window is long, so that the latency of calls hardly counts on a busy machine.
    let limit = Limit { allow: 3, per: Duration::from_secs(16) };
    let job = |n: usize| (format!("job-{n}"), format!("channel-{}", n % CHANNELS));
    let jobs: Vec<_> = (0..CHANNELS * OF_EACH).map(job).collect();
    let key = "key = \"payload.channel\"\nburst = 3";
    let channels = Fleet::start(Ground::rabbit().await, limit, key, &jobs).await.end(jobs.len()).await;

    assert_eq!(channels.len(), CHANNELS);
    for (channel, starts) in &channels {
        let ruling = judge(starts, limit);
        assert!(ruling.over.is_empty(), "{channel}: {:?} in {starts:?}", ruling.over);
        assert!(starts.len() >= OF_EACH);
    }
    // One after the other they would have taken six times as long.
    let all: Vec<Duration> = channels.into_values().flatten().collect();
    assert!(!judge(&all, limit).over.is_empty(), "the limit is each channel's own, and not one for all");
}

/// An older copy of the ledger is restored under a running worker, again and again. It knows nothing of what has
/// started since, and each time hands a slot out at once; the worker's own gate does know.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_is_set_back_again_and_again_lets_no_more_start_than_the_limit_allows() {
    const CALLS: usize = 9;
    let limit = Limit { allow: 5, per: Duration::from_secs(10) };
    let ground = Ground::rabbit().await;
    let receiver = Receiver::start(Arc::new(|_: &_| Reply::ok(Duration::ZERO))).unwrap();
    let config = ground.config_file(&format!(
        "[throttles.upstream]\nallow = {}\nper = \"{}s\"\n[queues.work]\nthrottle = \"upstream\"\nconcurrency = 1\n\
         [kinds.post]\nqueue = \"work\"\ntimeout = \"10s\"\nhandler.http.url = \"http://{}/\"\n",
        limit.allow,
        limit.per.as_secs(),
        receiver.address
    ));
    let applied = roundelay(&["topology", "apply", "--config", config.to_str().unwrap()]).await;
    assert!(applied.ok, "{}", applied.stderr);
    let worker = Observed::start(&config).await;
    let older = ground.path("older.db");
    let mut ledger = Connection::open(ground.path("ledger.db")).unwrap();
    ledger.execute("VACUUM INTO ?1", [older.to_str().unwrap()]).unwrap();
    let publisher = ground.vhost.as_ref().unwrap().connect("roundelay").await;
    for n in 0..60 {
        let job = Envelope::job("post", &format!("job-{n}"), json!({}), format!("job-{n}"));
        publisher.publish(Message::new(Destination::Queue("work".into()), &job)).await.unwrap();
    }
    let remembered = |ledger: &Connection| {
        ledger.query_row("SELECT count(*) FROM throttles", [], |row| row.get::<_, u32>(0)).unwrap()
    };
    assert_eq!(remembered(&Connection::open(&older).unwrap()), 0);
    while receiver.calls().len() < CALLS {
        until("the ledger has handed a slot out", async || remembered(&ledger) > 0).await;
        ledger.restore(MAIN_DB, &older, None::<fn(rusqlite::backup::Progress)>).unwrap();
    }

    let metrics = worker.metrics().await;
    let of =
        |name: &str, labels: &str| metrics.get(&format!("roundelay_throttle_{name}{{throttle=\"upstream\"{labels}}}"));
    let (granted, refused) = (of("slots_total", ""), of("lost_slots_total", ",reason=\"refused\""));
    println!("{granted} slots were handed out, {refused} refused");
    assert!(refused > 0.0 && granted > refused, "{granted} slots, {refused} refused");
    let told = worker.log.lock().iter().filter(|line| line["message"].as_str().unwrap().contains("own gate")).count();
    assert_eq!(told, 1, "the log says so once");
    // The gate allows for what slots may slip by, and the calls come in as late as the machine lets them.
    let starts: Vec<Duration> = receiver.calls().iter().map(|call| call.at).collect();
    let ruling = judge(&starts, Limit { per: limit.per - Duration::from_secs(2), ..limit });
    assert!(ruling.over.is_empty() && ruling.nearest.is_some(), "{:?} in {starts:?}", ruling.over);
}
