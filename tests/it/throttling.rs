//! Starts never exceed a throttle, in virtual time: the clock jumps whenever nothing can run.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay::broker::embedded::EmbeddedBroker;
use roundelay::clock::{Clock, Entropy, Time};
use roundelay::engine::enroll::{Enroller, Entity};
use roundelay::engine::{Connections, StartError};
use roundelay::handler::Handler;
use roundelay::job::Job;
use roundelay::ledger::LedgerUrl;
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::simulation::throttle;
use roundelay::telemetry::{Count, Telemetry};
use roundelay::topology::Names;
use roundelay::{Config, Context, Engine, Outcome};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::harness::{Ground, Watched};

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

/// Workers in virtual time on an embedded broker and a ledger in memory, with some chains due.
pub struct Virtual {
    /// Of the first one.
    pub telemetry: Arc<Telemetry>,
    pub connections: Connections,
    stop: CancellationToken,
    engines: Vec<JoinHandle<Result<(), StartError>>>,
}

impl Virtual {
    async fn start(config: &str, chains: u32, handler: impl Handler + Clone + 'static) -> Self {
        Self::fleet(config, 1, chains, handler).await
    }

    /// `workers` workers, which share broker and ledger.
    pub async fn fleet(config: &str, workers: usize, chains: u32, handler: impl Handler + Clone + 'static) -> Self {
        let config = Config::parse(config, "the test's configuration", []).unwrap();
        let (clock, entropy) = (Clock::starting_at(Time::from_millis(1_800_000_000_000)), Entropy::seeded(1));
        let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &entropy).unwrap();
        let broker = EmbeddedBroker::new(Names::new("roundelay"));
        let connections = Connections { broker: Arc::new(broker.clone()), ledger: Arc::new(ledger), clock, entropy };
        let stop = CancellationToken::new();
        let (mut engines, mut telemetry) = (Vec::new(), None);
        for _ in 0..workers {
            let own = Connections { broker: Arc::new(broker.connect()), ..connections.clone() };
            let engine = Engine::new(config.clone()).connections(own).without_chores();
            let engine = engine.handler("sync", handler.clone());
            telemetry.get_or_insert_with(|| engine.telemetry());
            let ready = engine.ready();
            engines.push(tokio::spawn(engine.run(stop.clone())));
            ready.wait().await;
        }
        let mut enroller = Enroller::new(&config, connections.clone(), "sync", Some(Duration::ZERO), true).unwrap();
        let entity = |n: u32| Entity::new(n.to_string(), "work", "{}");
        enroller.enroll((0..chains).map(entity).collect()).await.unwrap();
        Self { telemetry: telemetry.unwrap(), connections, stop, engines }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        for engine in self.engines {
            engine.await.unwrap().unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn runs_that_end_together_do_not_let_as_many_start_together() {
    // The upstream answers no call for a minute, and then all calls at once.
    let (begun, starts) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let seen = starts.clone();
    let engine = Virtual::start(CONFIG, 12, move |_: Job, _: Context| {
        seen.lock().push(begun.elapsed());
        async move {
            sleep_until(begun + Duration::from_secs(60)).await;
            Outcome::Done
        }
    })
    .await;
    sleep(Duration::from_secs(120)).await;
    engine.stop().await;

    let starts = starts.lock().clone();
    assert_eq!(starts.len(), 12);
    let gaps: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= Duration::from_millis(999)), "starts: {starts:?}");
}

/// RabbitMQ would close the channel of a consumer that keeps a message for half an hour, and others could
/// run meanwhile. No attempt is charged.
#[tokio::test(start_paused = true)]
async fn a_job_that_waits_long_for_its_slot_is_postponed_and_comes_again() {
    let config = CONFIG.replace("per = \"1s\"", "per = \"1h\"");
    let engine = Virtual::start(&config, 3, |_: Job, _: Context| async { Outcome::Done }).await;
    sleep(Duration::from_secs(5 * 60 - 10)).await;
    assert_eq!((engine.telemetry.get(Count::Done), engine.telemetry.get(Count::Snoozed)), (1, 0));
    sleep(Duration::from_secs(20)).await;
    assert_eq!((engine.telemetry.get(Count::Done), engine.telemetry.get(Count::Snoozed)), (1, 2));
    sleep(Duration::from_secs(4 * 3_600)).await;
    assert!(engine.telemetry.get(Count::Done) >= 3, "each gets its slot in the end");
    assert_eq!(engine.telemetry.get(Count::Retried), 0);
    engine.stop().await;
}

/// There may be as many keys as there are users. The engine's own chain forgets those that are as good as new.
#[tokio::test(start_paused = true)]
async fn keys_of_which_nothing_has_started_for_long_are_forgotten() {
    let config = CONFIG.replace("per = \"1s\"", "per = \"1m\"\nkey = \"key\"");
    let config = Config::parse(&config, "the test's configuration", []).unwrap();
    let (clock, entropy) = (Clock::starting_at(Time::from_millis(1_800_000_000_000)), Entropy::seeded(1));
    let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &entropy).unwrap();
    let broker = EmbeddedBroker::new(Names::new("roundelay"));
    let connections = Connections { broker: Arc::new(broker), ledger: Arc::new(ledger), clock, entropy };
    let engine = Engine::new(config.clone())
        .connections(connections.clone())
        .handler("sync", |_: Job, _: Context| async { Outcome::Retire { reason: "once is enough".into() } });
    let (telemetry, ready, stop) = (engine.telemetry(), engine.ready(), CancellationToken::new());
    let engine = tokio::spawn(engine.run(stop.clone()));
    ready.wait().await;
    let mut enroller = Enroller::new(&config, connections.clone(), "sync", Some(Duration::ZERO), true).unwrap();
    let entity = |n: u32| Entity::new(n.to_string(), "work", "{}");
    enroller.enroll((0..60).map(entity).collect()).await.unwrap();
    let retired = || telemetry.get(Count::Retired);
    while retired() < 60 {
        sleep(Duration::from_secs(1)).await;
    }
    let remembered = async || connections.ledger.throttles(100).await.unwrap().len();
    assert!(remembered().await > 50, "each has a row of its own");
    // Each is as good as new a minute later, and the chore comes every five.
    sleep(Duration::from_secs(6 * 60 + 30)).await;
    assert_eq!(remembered().await, 0);
    let chore = connections.ledger.chains("roundelay.history".into(), "throttles".into()).await.unwrap();
    assert!(chore[0].hint.tick > 1 && chore[0].hint.attempt == 1, "{chore:?}");
    stop.cancel();
    engine.await.unwrap().unwrap();
}

/// While the ledger is away nothing starts, and slots that pass meanwhile are lost. Otherwise
/// everything that waits would start at once when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_was_away_lets_no_more_start_than_the_throttle_allows() {
    let ground = Ground::embedded();
    let mut engine = Watched::start(&ground, &CONFIG.replace("concurrency = 4", "concurrency = 16")).await;
    let locked = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
    for n in 0..16 {
        engine.enroll(&n.to_string(), "work").await;
    }
    engine.next().await.end(Outcome::Done);
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Longer than a statement waits for the lock, so that claims fail.
    sleep(Duration::from_secs(13)).await;
    let before = engine.telemetry.get(Count::Started);
    locked.execute_batch("ROLLBACK").unwrap();
    let back = Instant::now();
    engine.next().await.end(Outcome::Done);
    while engine.telemetry.get(Count::Started) < before + 6 {
        engine.next().await.end(Outcome::Done);
    }
    // Six starts at one per second take five seconds, and the first may use a slot that opened
    // within the second before.
    assert!(back.elapsed() >= Duration::from_millis(3_900), "six started within {:?}", back.elapsed());
    engine.stop().await;
}

/// A hold that an upstream asks for while the ledger is away is written as soon as the ledger is back. Until then
/// the hold is in force in the worker that got the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_heard_while_the_ledger_is_away_is_told_when_it_is_back() {
    let ground = Ground::embedded();
    let mut engine = Watched::start(&ground, CONFIG).await;
    engine.enroll("a", "work").await;
    let run = engine.next().await;
    let locked = rusqlite::Connection::open(ground.path("ledger.db")).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    let context = run.context.clone();
    let told = tokio::spawn(async move { context.hold(Duration::from_secs(3_600), "HTTP 429").await });
    // Longer than a statement waits for the lock, so that it cannot be written.
    sleep(Duration::from_secs(13)).await;
    assert!(!told.is_finished());
    locked.execute_batch("ROLLBACK").unwrap();
    told.await.unwrap();
    run.end(Outcome::Done);
    let rows = engine.connections.ledger.throttles(10).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.state.held().1).collect::<Vec<_>>(), ["HTTP 429"]);
    engine.enroll("b", "work").await;
    engine.nothing_for(Duration::from_secs(3)).await;
    engine.stop().await;
}

/// Days of five starts a minute, with `workers`: no window holds more, and at least 95 % of the limit is used, while
/// workers die, freeze and lose their connections, and while the ledger's clock is set. `roundelay simulate --throttle`
/// does the same for any time.
fn days_of_five_a_minute(workers: usize, length: Duration) {
    // An unoptimized build takes ten times as long for the same.
    let part = if cfg!(debug_assertions) { 8 } else { 1 };
    let seed: u64 = std::env::var("ROUNDELAY_SEED").map_or(7, |seed| seed.parse().expect("a number"));
    let settings = throttle::Settings { allow: 5, per: Duration::from_secs(60), workers, length: length / part, seed };
    let report = throttle::run(&settings).unwrap();
    println!("seed={seed} {report:?}");
    assert_eq!((report.over, report.refused, report.violations.as_slice()), (0, 0, &[][..]), "{report:?}");
    assert!(report.most == 5 && report.faults > 3 && report.calm_windows > 60, "{report:?}");
    assert!(report.use_percent.is_some_and(|used| used >= 95.0), "{report:?}");
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn throttle_of_one_worker_holds_in_every_window_and_is_used_up() {
    days_of_five_a_minute(1, 72 * HOUR);
}

#[test]
fn throttle_of_three_workers_holds_in_every_window_and_is_used_up() {
    days_of_five_a_minute(3, 48 * HOUR);
}

#[test]
fn throttle_of_twenty_workers_holds_in_every_window_and_is_used_up() {
    days_of_five_a_minute(20, 24 * HOUR);
}
