//! How long chains pause when something breaks: three workers with the settings that are there by default, on RabbitMQ
//! and either ledger, one fault after the other, measured from the log of an independent receiver. `tests/run --pauses`
//! runs it.
//!
//! - [`scenarios`]: which faults, and what they may cost; [`blows`]: makes them happen.
//! - [`load`]: what the workers have to do, and the clock that is set.
//! - [`verdict`]: the pauses; what is dead or forked is for the chaos test's [`judge`].
//! - [`report`]: the table.
//! - [`ground`], [`proxy`], [`receiver`], [`log`]: the chaos test's services, the way to them, whom workers call, and
//!   what that writes.

mod blows;
#[path = "../chaos/load.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
mod chaos_load;
#[path = "../chaos/ground.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
mod ground;
#[path = "../chaos/judge.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
mod judge;
mod load;
#[path = "../chaos/log.rs"]
mod log;
#[path = "../chaos/proxy.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
mod proxy;
#[path = "../chaos/receiver.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
mod receiver;
mod report;
mod scenarios;
#[path = "../support/mod.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "the integration tests use the rest")]
mod support;
mod verdict;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use roundelay::clock::{Entropy, parse_duration};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use blows::{Blow, Links, Stage};
use ground::Ground;
use judge::Rules;
use load::{KINDS, Wall};
use log::{Entry, Writer};
use proxy::Link;
use receiver::Seen;
use report::{Lines, Outcome};
use scenarios::{Ledger, SCENARIOS, Scenario, pause};
use support::workers::{Place, Plan, Variables, Workers};
use verdict::Terms;

const WORKERS: usize = 3;
/// For how long a fault can be felt after it has healed.
const FELT: Duration = Duration::from_secs(15);
/// How long after it is due a chain is looked at (`catch_up.slack`), and how much longer it may then take.
const SLACK: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(60);

/// Breaks one thing after the other, and measures how long chains pause.
#[derive(Parser)]
struct Arguments {
    /// How long all faults come together, in the last scenario.
    #[arg(long = "for", value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    together: Duration,
    /// How often each fault comes.
    #[arg(long, value_name = "N", default_value_t = 30)]
    times: usize,
    /// How long the broker is away, in the scenarios in which it is away for long.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    away: Duration,
    /// When this is over, no more faults come, and what is missing is found wanting.
    #[arg(long, value_name = "DURATION", default_value = "4h", value_parser = parse_duration)]
    within: Duration,
    /// Only scenarios in whose names this is, such as "killed"; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Who is struck, and when. Random by default; a run prints its own.
    #[arg(long)]
    seed: Option<u64>,
    /// How many chains tick every two seconds.
    #[arg(long, default_value_t = 300)]
    chains: usize,
    /// Print nothing but the report.
    #[arg(long)]
    json: bool,
    /// RabbitMQ's version, as deploy/local/rabbitmq has it.
    #[arg(long, default_value = "4.3")]
    rabbitmq: String,
    /// The library that shows processes another time than the machine's (Debian's package faketime).
    #[arg(long, env = "ROUNDELAY_TEST_FAKETIME", value_name = "FILE")]
    faketime: PathBuf,
    /// An empty folder for services and logs, which stays.
    #[arg(long)]
    folder: PathBuf,
}

fn main() -> ExitCode {
    support::report("pauses", run(&Arguments::parse()))
}

async fn run(arguments: &Arguments) -> anyhow::Result<Value> {
    let seed = arguments.seed.unwrap_or_else(|| Entropy::from_os().below(1 << 40) as u64);
    let wanted =
        |one: &&Scenario| arguments.only.is_empty() || arguments.only.iter().any(|text| one.name.contains(text));
    let chosen: Vec<&Scenario> = SCENARIOS.iter().filter(wanted).collect();
    let names: Vec<&str> = SCENARIOS.iter().map(|one| one.name).collect();
    ensure!(!chosen.is_empty(), "there is no scenario with {:?} in its name; there are {names:?}", arguments.only);
    if !arguments.json {
        println!("seed={seed} times={} folder={}", arguments.times, arguments.folder.display());
        println!("{}", report::HEAD);
    }
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let until = Instant::now() + arguments.within;
    let (mut passed, mut rows) = (true, Map::new());
    for scenario in chosen {
        let folder = arguments.folder.join(scenario.name);
        open_to_services(&folder)?;
        let outcome = tokio::select! {
            outcome = play(scenario, &folder, seed, until, arguments) => outcome,
            _ = term.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
            _ = interrupt.recv() => Err(anyhow::anyhow!("ended by SIGINT")),
        };
        Ground::end(&folder).await;
        let row = report::row(scenario, &outcome.with_context(|| format!("the scenario {}", scenario.name))?);
        passed &= row["passed"] == json!(true);
        if !arguments.json {
            println!("{}", report::line(scenario, &row));
        }
        rows.insert(scenario.name.to_owned(), row);
    }
    Ok(json!({ "passed": passed, "seed": seed, "times": arguments.times, "workers": WORKERS, "scenarios": rows }))
}

/// The services run under users of their own, who have to get in.
fn open_to_services(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder)?;
    let readable = || std::fs::Permissions::from_mode(0o755);
    if let Some(above) = folder.parent() {
        std::fs::set_permissions(above, readable())?;
    }
    std::fs::set_permissions(folder, readable())?;
    Ok(())
}

async fn play(
    scenario: &Scenario,
    folder: &Path,
    seed: u64,
    until: Instant,
    arguments: &Arguments,
) -> anyhow::Result<Outcome> {
    let mut stage = begin(scenario, folder, seed, arguments).await?;
    let began = Instant::now();
    let (mut struck, mut lines) = (0, Vec::new());
    let goes_on = |struck: usize| {
        let wanted = if scenario.is_by_time() {
            began.elapsed() < arguments.together
        } else {
            struck < scenario.times(arguments.times)
        };
        wanted && Instant::now() < until
    };
    while goes_on(struck) {
        let blow = scenario.blow(struck, arguments.away, &stage.entropy);
        let before = stage.lines()?;
        stage.strike(blow).await?;
        sleep(pause(blow, &stage.entropy)).await;
        lines.push(Lines::between(blow, &before, &stage.lines()?));
        struck += 1;
    }
    if scenario.has_clock() {
        // Later steps, such as reading the ledger, use the machine's clock.
        stage.strike(Blow::Clock(0)).await?;
    }
    sleep(FELT).await;
    stage.log.write(Entry::Calm);
    let before = stage.seen.by_chain();
    let again = |stage: &Stage| {
        let now = stage.seen.by_chain();
        before.iter().all(|(epoch, times)| now.get(epoch).is_some_and(|again| *again > *times))
    };
    let deadline = Instant::now() + SLACK + PATIENCE;
    // Who is not back by then is for the judge.
    while !again(&stage) && Instant::now() < deadline {
        sleep(Duration::from_millis(100)).await;
    }
    stage.log.write(Entry::Over);
    let Stage { ground, workers, .. } = stage;
    let stuck = workers.stop().await;
    let (chains, attempts) = match scenario.ledger {
        Ledger::Sqlite => load::rows(&folder.join("ledger.db"))?,
        Ledger::Postgres => chaos_load::rows(&ground.ledger_url()).await?,
    };
    let log = log::read(&folder.join("receiver.log"))?;
    let rules = Rules {
        slack: SLACK.as_millis() as i64,
        patience: PATIENCE.as_millis() as i64,
        longest: (SLACK + PATIENCE).as_millis() as i64,
        redelivery: Default::default(),
        // How long chains pause is what the verdict is about.
        rhythms: Default::default(),
    };
    let (every, grid) = load::intervals();
    let terms = Terms {
        every,
        grid,
        whole_grid: scenario.kind == scenarios::Kind::ClockSet,
        limits: load::limits(),
        from_healing: [Blow::LedgerKilled.name().to_owned()].into(),
        felt: FELT.as_millis() as i64,
    };
    Ok(Outcome {
        seconds: began.elapsed().as_secs(),
        wanted: if scenario.is_by_time() { 1 } else { scenario.times(arguments.times) },
        struck,
        stuck,
        lines,
        ruling: judge::judge(&log, &chains, &attempts, &rules),
        verdict: verdict::judge(&log, &attempts, &terms),
    })
}

/// Has everything run, until every chain has been called twice.
async fn begin(scenario: &Scenario, folder: &Path, seed: u64, arguments: &Arguments) -> anyhow::Result<Stage> {
    let wall = scenario.has_clock().then(|| Wall::new(folder, arguments.faketime.clone())).transpose()?;
    let theirs: Variables = wall.as_ref().map(Wall::environment).unwrap_or_default();
    let (of_server, of_workers) = match scenario.ledger {
        Ledger::Sqlite => (Vec::new(), theirs),
        Ledger::Postgres => (theirs.iter().map(|(name, value)| format!("{name}={value}")).collect(), Vec::new()),
    };
    let ground = Ground::start_with(folder, &arguments.rabbitmq, 1, of_server).await?;
    let (log, seen) = (Writer::open(&folder.join("receiver.log"))?, Seen::default());
    let receiver = receiver::start(log.clone(), seen.clone(), load::manner, &[])?;
    let config = load::write_config(folder, receiver)?;
    let broker_url = |port: u16| format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
    let ledger_url = |port: u16| match scenario.ledger {
        Ledger::Sqlite => format!("sqlite://{}", folder.join("ledger.db").display()),
        Ledger::Postgres => ground.database_url(port),
    };
    let (broker, ledger) = (ground.nodes[0].amqp, ground.database());
    let chains = load::chains(arguments.chains, scenario.has_long_runs());
    chaos_load::enroll(&chains, &config, &broker_url(broker.port()), &ledger_url(ledger.port())).await?;

    let (mut links, mut variables) = (Vec::new(), Vec::new());
    for _ in 0..WORKERS {
        let mut own = of_workers.clone();
        let mut ports = [broker.port(), ledger.port(), receiver.port()];
        if scenario.has_links() {
            let of_worker = open_links(broker, ledger, receiver, &log).await?;
            ports = [of_worker.broker.port, of_worker.ledger.port, of_worker.handlers.port];
            links.push(of_worker);
        }
        own.push(("ROUNDELAY__BROKER__URL".into(), broker_url(ports[0])));
        own.push(("ROUNDELAY__LEDGER__URL".into(), ledger_url(ports[1])));
        let handler = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[2]));
        own.extend(KINDS.iter().map(|kind| {
            let name = kind.name.to_uppercase();
            (format!("ROUNDELAY__KINDS__{name}__HANDLER__HTTP__URL"), format!("http://{handler}/"))
        }));
        variables.push(own);
    }
    let kinds = KINDS.iter().map(|kind| kind.name.to_owned()).collect();
    let plan = Plan { config, kinds, variables, apart: Duration::ZERO, place: Place::default() };
    let told = log.clone();
    let told = Arc::new(move |worker: &str, did| told.write(Entry::Worker { worker: worker.to_owned(), did }));
    let workers = Workers::start(plan, told).await;
    let expected: usize = chains.iter().map(|(_, many)| many).sum();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let called = seen.by_chain().values().filter(|times| **times >= 2).count();
        if called == expected {
            break;
        }
        ensure!(Instant::now() < deadline, "{called} of {expected} chains have been called twice");
        sleep(Duration::from_millis(100)).await;
    }
    let (folder, entropy) = (folder.to_owned(), Entropy::seeded(seed));
    Ok(Stage { ground, workers, links, wall, log, seen, folder, entropy, numbers: 0 })
}

async fn open_links(
    broker: SocketAddr,
    ledger: SocketAddr,
    receiver: SocketAddr,
    log: &Writer,
) -> anyhow::Result<Links> {
    let log = log.clone();
    Ok(Links {
        broker: Link::open(vec![broker]).await?,
        ledger: Link::open(vec![ledger]).await?,
        handlers: Link::open_watched(vec![receiver], Arc::new(move |peer| log.write(Entry::Left { peer }))).await?,
    })
}
