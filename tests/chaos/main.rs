//! Chaos on the real thing: a RabbitMQ cluster, a PostgreSQL server and worker processes, broken
//! in every way that can be had on one machine, by a seed; judged from the log of an independent
//! receiver and from the ledger. `tests/run --chaos` runs it.
//!
//! - [`ground`]: the cluster and the database; [`proxy`]: the network in front of them.
//! - [`workers`]: processes of the ordinary program; [`load`]: what they have to do.
//! - [`receiver`]: whom they call; [`log`]: what it writes.
//! - [`faults`]: what is to happen, and when; [`blows`]: makes it happen.
//! - [`judge`]: what came of it. The ledger's rows are also held against the specification of the chain protocol
//!   (`docs/spec/README.md`). [`report`]: the result, as JSON on the last line.

mod blows;
mod faults;
mod ground;
mod judge;
mod load;
mod log;
#[allow(dead_code, reason = "the pauses' test uses the rest")]
mod proxy;
mod receiver;
mod report;
#[path = "../support/mod.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "the integration tests use the rest")]
mod support;
mod workers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;
use futures_util::future::join_all;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::clock::{Entropy, parse_duration};
use roundelay::simulation::spec;
use roundelay::topology::Names;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use blows::Stage;
use faults::{Fault, Planned, plan, wanted};
use ground::{Ground, NODES};
use judge::Rules;
use load::{CYCLE, KINDS, LEASE, SLACK};
use log::{Entry, Writer};
use proxy::Link;
use receiver::Seen;
use report::Course;

/// How long a chain may take to be called again after slack, once everything is whole.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a chain may wait at most, whatever goes wrong meanwhile. Half a minute without the ledger,
/// or the restart of a whole cluster, are in it several times over.
const LONGEST: Duration = Duration::from_secs(180);
/// How long a run may go on beyond its time to have had all its faults, as a share of its time and
/// at least.
const OVERTIME: (f64, Duration) = (0.5, Duration::from_secs(300));

/// Breaks a cluster, a database and workers for a while, and judges what came of the chains.
#[derive(Parser)]
struct Arguments {
    /// How long faults go on. What has to happen beforehand and afterwards comes on top.
    #[arg(long = "for", value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    length: Duration,
    /// Only faults in whose names this is, such as "killed"; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Which faults happen when. Random by default; a run prints its own.
    #[arg(long)]
    seed: Option<u64>,
    /// Print nothing but the report.
    #[arg(long)]
    json: bool,
    /// How many worker processes.
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// RabbitMQ's version, as deploy/local/rabbitmq has it.
    #[arg(long, default_value = "4.3")]
    rabbitmq: String,
    /// An empty folder for services and logs, which stays. By default a temporary one, which stays
    /// if the run fails.
    #[arg(long)]
    folder: Option<PathBuf>,
}

fn main() -> ExitCode {
    support::report("chaos", run(&Arguments::parse()))
}

/// Runs on ground of its own, which is cleared away whatever happens.
async fn run(arguments: &Arguments) -> anyhow::Result<Value> {
    let seed = arguments.seed.unwrap_or_else(|| Entropy::from_os().below(1 << 40) as u64);
    let temporary = tempfile::Builder::new().prefix("roundelay-chaos.").tempdir()?;
    let folder = arguments.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    open_to_services(&folder)?;
    if !arguments.json {
        println!("seed={seed} for={:?} folder={}", arguments.length, folder.display());
    }
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let ground = tokio::select! {
        ground = ground(&folder, &arguments.rabbitmq) => ground,
        _ = term.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
        _ = interrupt.recv() => Err(anyhow::anyhow!("ended by SIGINT")),
    };
    let result = match ground {
        Ok(ground) => tokio::select! {
            result = on(ground, &folder, seed, arguments) => result,
            _ = term.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
            _ = interrupt.recv() => Err(anyhow::anyhow!("ended by SIGINT")),
        },
        Err(error) => Err(error),
    };
    Ground::end(&folder).await;
    if !result.as_ref().is_ok_and(|report| report["passed"] == json!(true)) && arguments.folder.is_none() {
        eprintln!("chaos: everything is kept for a look: {}", temporary.keep().display());
    }
    result
}

/// The services, with a standby of the ledger.
async fn ground(folder: &Path, rabbitmq: &str) -> anyhow::Result<Ground> {
    let mut ground = Ground::start(folder, rabbitmq).await?;
    ground.start_standby().await?;
    Ok(ground)
}

/// The services run under users of their own, who have to get in.
fn open_to_services(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

async fn on(ground: Ground, folder: &Path, seed: u64, arguments: &Arguments) -> anyhow::Result<Value> {
    let (log_path, seen) = (folder.join("receiver.log"), Seen::default());
    let log = Writer::open(&log_path)?;
    let config = load::write_config(folder, receiver::start(log.clone(), seen.clone(), load::manner, load::CARRIES)?)?;

    // The driver's own way to the broker is never broken.
    let link = Link::open(ground.nodes.iter().map(|node| node.amqp).collect()).await?;
    let broker_url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", link.port);
    let rosters: Vec<(&str, usize)> = KINDS.iter().map(|kind| (kind.name, kind.chains)).collect();
    load::enroll(&rosters, &config, &broker_url, &ground.ledger_url()).await?;
    for kind in KINDS {
        let members = ground.queue(kind.name).await?["members"].as_array().map_or(0, Vec::len);
        ensure!(members == NODES, "the queue {} has {members} members on {NODES} nodes", kind.name);
    }
    let publisher = Arc::new(RabbitBroker::connect(&broker_url, Names::new("roundelay")).await?);
    let (workers, links) = workers::start(&ground, config.clone(), arguments.workers, log.clone()).await?;
    let chains: usize = KINDS.iter().map(|kind| kind.chains).sum();
    until("every chain is called", PATIENCE, || seen.by_chain().len() == chains).await?;
    if !arguments.json {
        println!("{chains} chains run on {} workers and {NODES} broker nodes", arguments.workers);
    }

    let entropy = Entropy::seeded(seed);
    let wanted = wanted(arguments.length, &arguments.only);
    ensure!(!wanted.is_empty(), "there is no fault with {:?} in its name", arguments.only);
    let (for_workers, for_all) = plan(&wanted, arguments.length, &entropy);
    let stage = Stage {
        ground,
        workers,
        links,
        log: log.clone(),
        seen: seen.clone(),
        config,
        broker_url,
        publisher: publisher.clone(),
        entropy,
        luck: Entropy::seeded(!seed),
        quiet: arguments.json,
        numbers: Default::default(),
        counts: Default::default(),
        poisoned: Default::default(),
        began: Instant::now(),
    };
    let stop = CancellationToken::new();
    let trickle = tokio::spawn(load::trickle(publisher, log.clone(), stop.clone()));
    let (_, struck) = tokio::join!(
        strike_workers(&stage, &for_workers, arguments.length),
        strike_all(&stage, &for_all, arguments.length),
    );
    struck?;
    let seconds = stage.began.elapsed().as_secs_f64();
    stop.cancel();
    let accepted = trickle.await?;

    log.write(Entry::Calm);
    stage.say("no more faults");
    let before = seen.by_chain();
    let back = || {
        let now = seen.by_chain();
        let again = |(epoch, times): (&i64, &u64)| now.get(epoch).copied().unwrap_or(0) >= times + 2;
        before.iter().all(again) && accepted.iter().all(|id| seen.has_run(id))
    };
    // Who is not back by then is for the judge.
    let _ = until("every chain is called twice more", SLACK + PATIENCE + CYCLE, back).await;
    log.write(Entry::Over);

    let quarantined = stage.ground.depth("roundelay.quarantine").await.ok();
    let faults = wanted.into_iter().map(|(fault, count)| (fault, (stage.count(fault), count)));
    let ledger_url = stage.ground.ledger_url();
    let course = Course {
        seed,
        seconds,
        chains,
        faults: faults.collect(),
        poison: (stage.poisoned.load(std::sync::atomic::Ordering::Relaxed), quarantined),
        stuck_workers: stage.workers.stop().await,
        bounds: bounds(),
    };
    let (rows, places) = load::record(&ledger_url).await?;
    let unexplained = spec::record::unexplained(&rows, &places);
    let (chains, attempts) = load::rows(&ledger_url).await?;
    let rules = Rules {
        slack: SLACK.as_millis() as i64,
        patience: PATIENCE.as_millis() as i64,
        longest: LONGEST.as_millis() as i64,
        redelivery: KINDS.iter().filter(|kind| kind.redelivery).map(|kind| kind.name.to_owned()).collect(),
        rhythms: KINDS.iter().filter_map(|kind| Some((kind.name.to_owned(), kind.rhythm?))).collect(),
    };
    let ruling = judge::judge(&log::read(&log_path)?, &chains, &attempts, &rules);
    Ok(report::report(&course, &ruling, &unexplained))
}

/// How long a recovery may take, in milliseconds.
fn bounds() -> Vec<(&'static str, i64)> {
    let after_lease = (LEASE + Duration::from_secs(5)).as_millis() as i64;
    vec![
        ("worker killed, redelivery", 2_000),
        ("worker killed, lease", after_lease),
        ("rung purged", 60_000),
        ("queue purged", 60_000),
    ]
}

/// Kills and freezes workers by the plan, and goes on until all has happened that was to.
async fn strike_workers(stage: &Stage, plan: &[Planned], length: Duration) {
    // Some stay frozen while others are struck.
    let strike = |planned: &Planned| {
        let (at, fault) = (stage.began + planned.at, planned.fault);
        async move {
            sleep_until(at).await;
            stage.strike(fault).await;
        }
    };
    join_all(plan.iter().map(strike)).await;
    let missing = |fault: Fault| {
        let planned = plan.iter().filter(|planned| planned.fault == fault).count();
        stage.count(fault) < planned && stage.began.elapsed() < length + overtime(length)
    };
    while let Some(fault) = [Fault::WorkerKilled, Fault::WorkerFrozen].into_iter().find(|fault| missing(*fault)) {
        stage.strike(fault).await;
        sleep(Duration::from_millis(500)).await;
    }
}

/// Breaks everything else by the plan, one after the other, and later than planned if need be.
async fn strike_all(stage: &Stage, plan: &[Planned], length: Duration) -> anyhow::Result<()> {
    for planned in plan {
        sleep_until(stage.began + planned.at).await;
        if stage.began.elapsed() > length + overtime(length) {
            break;
        }
        stage.strike_all(planned.fault).await?;
    }
    Ok(())
}

/// How much longer than planned a run may take to have had all its faults.
fn overtime(length: Duration) -> Duration {
    length.mul_f64(OVERTIME.0).max(OVERTIME.1)
}

/// Waits until `what` holds.
async fn until(label: &str, patience: Duration, what: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    while !what() {
        ensure!(Instant::now() < deadline, "it did not come to this within {patience:?}: {label}");
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
