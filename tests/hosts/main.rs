//! Several machines: workers on three hosts, each a network namespace, with a RabbitMQ cluster of three nodes and a
//! PostgreSQL server. One host is cut off, one broker node is lost, and all workers are replaced one after the
//! other; judged from the log of an independent receiver and from the ledger. `tests/run --hosts` runs it.
//!
//! - [`network`]: the hosts, and their cables.
//! - [`load`]: what the workers have to do.
//! - [`sites`]: another scenario, two sites of which the first is lost (`tests/run --hosts --sites`).
//! - [`verdict`]: throttles and doubled jobs; everything else is for the chaos test's [`judge`].
//! - [`ground`], [`proxy`], [`receiver`], [`log`]: the chaos test's services, the way to them, whom workers call,
//!   and what that writes.

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
mod network;
#[path = "../chaos/proxy.rs"]
#[allow(dead_code, reason = "the chaos test uses the rest")]
mod proxy;
#[path = "../chaos/receiver.rs"]
mod receiver;
mod sites;
#[path = "../support/mod.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "the integration tests use the rest")]
mod support;
mod verdict;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::clock::{Clock, parse_duration};
use roundelay::topology::Names;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use ground::{Ground, NODES};
use judge::{Rules, Ruling};
use load::{KINDS, LEASE, SLACK};
use log::{Did, Entry, Writer};
use network::Host;
use proxy::Link;
use receiver::Seen;
use support::workers::{Place, Plan, Workers};
use verdict::Verdict;

/// How many worker hosts there are, and workers on each.
const HOSTS: u8 = 3;
const WORKERS: usize = 2;
/// How long a chain may take to be called again after slack.
const PATIENCE: Duration = Duration::from_secs(60);
/// A host stays cut off for at least as long as its leases and the broker's heartbeats take to end.
const CUT: Duration = Duration::from_secs(25);

/// Cuts a host off, loses a broker node, replaces all workers, and judges what came of the chains.
#[derive(Parser)]
struct Arguments {
    /// How long nothing is broken, beforehand and afterwards, for throttles to be watched.
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    calm: Duration,
    /// The program that workers run before they are replaced: one of an older version. By default this one.
    #[arg(long, value_name = "PROGRAM")]
    from: Option<PathBuf>,
    /// Play the loss of a site instead: two sites, the second with the standby of the first's PostgreSQL.
    #[arg(long)]
    sites: bool,
    /// With --sites: how many chains sleep for long, beside a few that tick often.
    #[arg(long, value_name = "N", default_value_t = 3_000)]
    chains: usize,
    /// Print nothing but the report.
    #[arg(long)]
    json: bool,
    /// RabbitMQ's version, as deploy/local/rabbitmq has it.
    #[arg(long, default_value = "4.3")]
    rabbitmq: String,
    /// An empty folder for services and logs, which stays.
    #[arg(long)]
    folder: PathBuf,
}

fn main() -> ExitCode {
    support::report("hosts", run(&Arguments::parse()))
}

/// Runs on ground of its own, which is cleared away whatever happens.
async fn run(arguments: &Arguments) -> anyhow::Result<Value> {
    use std::os::unix::fs::PermissionsExt;
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder)?;
    // The services run under users of their own, who have to get in.
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let result = tokio::select! {
        result = play(folder, arguments) => result,
        _ = term.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
        _ = interrupt.recv() => Err(anyhow::anyhow!("ended by SIGINT")),
    };
    Ground::end(folder).await;
    sites::end(folder).await;
    result
}

async fn play(folder: &Path, arguments: &Arguments) -> anyhow::Result<Value> {
    let Arguments { sites, chains, calm, rabbitmq, json, .. } = arguments;
    if !sites {
        return on(folder, arguments).await;
    }
    let asked = sites::Asked { folder, chains: *chains, calm: *calm, rabbitmq, quiet: *json };
    sites::run(&asked).await
}

/// What a run has.
struct Stage {
    ground: Ground,
    hosts: Vec<Host>,
    workers: Workers,
    log: Writer,
    seen: Seen,
    began: Instant,
    quiet: bool,
    faults: usize,
}

async fn on(folder: &Path, arguments: &Arguments) -> anyhow::Result<Value> {
    let mut hosts = Vec::new();
    for number in 1..=HOSTS {
        hosts.push(Host::new(number).await?);
    }
    let ground = Ground::start(folder, &arguments.rabbitmq).await?;
    let (log_path, seen) = (folder.join("receiver.log"), Seen::default());
    let log = Writer::open(&log_path)?;
    let receiver = receiver::start(log.clone(), seen.clone(), chaos_load::manner, chaos_load::CARRIES)?;
    let config = load::write_config(folder)?;

    let nodes: Vec<_> = ground.nodes.iter().map(|node| node.amqp).collect();
    let link = Link::open(nodes.clone()).await?;
    let broker_url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", link.port);
    let ledger_url = ground.ledger_url();
    let rosters: Vec<(&str, usize)> = KINDS.iter().map(|kind| (kind.name, kind.chains)).collect();
    chaos_load::enroll(&rosters, &config, &broker_url, &ledger_url).await?;

    // A link lasts as long as it is held.
    let (mut links, mut variables, mut inside) = (vec![link], Vec::new(), Vec::new());
    for host in &hosts {
        let here = host.this_side();
        let [broker, ledger, calls] = [
            Link::open_at(here, nodes.clone()).await?,
            Link::open_at(here, vec![ground.database()]).await?,
            Link::open_at(here, vec![receiver]).await?,
        ];
        let url = |kind: &load::Kind| {
            let name = format!("ROUNDELAY__KINDS__{}__HANDLER__HTTP__URL", kind.name.to_uppercase());
            (name, format!("http://{here}:{}/", calls.port))
        };
        for _ in 0..WORKERS {
            let database = ground.database_url(ledger.port).replace("127.0.0.1", &here.to_string());
            let mut own = vec![
                ("ROUNDELAY__BROKER__URL".to_owned(), format!("amqp://guest:guest@{here}:{}/%2f", broker.port)),
                ("ROUNDELAY__LEDGER__URL".to_owned(), database),
            ];
            own.extend(KINDS.iter().map(url));
            variables.push(own);
            inside.push(host.inside());
        }
        links.extend([broker, ledger, calls]);
    }
    let kinds = KINDS.iter().map(|kind| kind.name.to_owned()).collect();
    let place = Place { inside, program: arguments.from.clone(), ..Place::default() };
    let plan = Plan { config, kinds, variables, apart: Duration::ZERO, place };
    let writer = log.clone();
    let told = Arc::new(move |worker: &str, did| writer.write(Entry::Worker { worker: worker.to_owned(), did }));
    let workers = Workers::start(plan, told).await;
    let (began, quiet) = (Instant::now(), arguments.json);
    let mut stage = Stage { ground, hosts, workers, log: log.clone(), seen, began, quiet, faults: 0 };
    let chains: usize = KINDS.iter().map(|kind| kind.chains).sum();
    stage.until("every chain is called", |stage| stage.seen.by_chain().len() == chains).await?;
    stage.say(&format!("{chains} chains run on {HOSTS} hosts with {WORKERS} workers each and {NODES} broker nodes"));

    let stop = CancellationToken::new();
    let publisher = Arc::new(RabbitBroker::connect(&broker_url, Names::new("roundelay")).await?);
    let trickle = tokio::spawn(chaos_load::trickle(publisher, log.clone(), stop.clone()));
    let calm_from = Clock::System.now().as_millis();
    sleep(arguments.calm).await;
    let calm = (calm_from, Clock::System.now().as_millis());

    stage.cut_off_a_host(1).await?;
    stage.lose_a_node().await?;
    let upgrade = stage.replace_all().await?;
    sleep(arguments.calm).await;

    stop.cancel();
    let accepted = trickle.await?;
    log.write(Entry::Calm);
    stage.everybody_again("at the end").await?;
    stage.until("every job has run", |stage| accepted.iter().all(|id| stage.seen.has_run(id))).await?;
    log.write(Entry::Over);
    let stuck = stage.workers.stop().await;
    drop(links);

    let lines = log::read(&log_path)?;
    let (chains, attempts) = chaos_load::rows(&ledger_url).await?;
    let rules = Rules {
        slack: SLACK.as_millis() as i64,
        patience: PATIENCE.as_millis() as i64,
        longest: (SLACK + PATIENCE).as_millis() as i64,
        redelivery: KINDS.iter().filter(|kind| kind.redelivery).map(|kind| kind.name.to_owned()).collect(),
        // A throttle decides when most of these chains run.
        rhythms: Default::default(),
    };
    let ruling = judge::judge(&lines, &chains, &attempts, &rules);
    let verdict = verdict::judge(&lines, KINDS, calm);
    Ok(report(&ruling, &verdict, &attempts, upgrade, stuck))
}

impl Stage {
    fn say(&self, what: &str) {
        if !self.quiet {
            println!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
        }
    }

    /// Waits until `what` holds, for as long as a single call may take.
    async fn until(&self, label: &str, what: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        self.until_within(SLACK + PATIENCE, label, what).await
    }

    async fn until_within(&self, patience: Duration, label: &str, what: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        while !what(self) {
            ensure!(Instant::now() < deadline, "it did not come to this in time: {label}");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Waits until every chain has been called again, twice: the first may have been under way. Each of the two may
    /// take as long as the judge allows a call: the second may have to wait its turn at a throttle of few starts.
    async fn everybody_again(&self, label: &str) -> anyhow::Result<()> {
        let before: HashMap<i64, u64> = self.seen.by_chain();
        let began = Instant::now();
        let two_calls = 2 * (SLACK + PATIENCE);
        self.until_within(two_calls, &format!("every chain is called twice {label}"), |stage| {
            let now = stage.seen.by_chain();
            before.iter().all(|(epoch, times)| now.get(epoch).is_some_and(|again| *again >= times + 2))
        })
        .await?;
        self.say(&format!("every chain was called twice {label}, within {:.1} s", began.elapsed().as_secs_f64()));
        Ok(())
    }

    fn broke(&mut self, fault: &str, target: &str) -> usize {
        self.faults += 1;
        self.say(&format!("{fault}: {target}"));
        self.log.write(Entry::Broke { number: self.faults, fault: fault.into(), target: target.into() });
        self.faults
    }

    /// While it is cut off, the others do its work. When it is back, what its workers had begun may still arrive.
    async fn cut_off_a_host(&mut self, place: usize) -> anyhow::Result<()> {
        let here = place * WORKERS..(place + 1) * WORKERS;
        let struck: Vec<String> = self.workers.seats[here].iter().filter_map(|seat| seat.awake()).collect();
        ensure!(struck.len() == WORKERS, "all workers of the host run");
        let since = Instant::now();
        self.hosts[place].cut_off().await?;
        let mut faults = Vec::new();
        for worker in &struck {
            self.log.write(Entry::Worker { worker: worker.clone(), did: Did::Frozen });
            faults.push(self.broke("worker host cut off", worker));
        }
        self.everybody_again("without the host").await?;
        sleep(CUT.saturating_sub(since.elapsed())).await;
        self.hosts[place].plug_in().await?;
        self.say("the host is back");
        let before: HashMap<&String, u64> = struck.iter().map(|worker| (worker, self.seen.calls_of(worker))).collect();
        self.until("the workers of the host call again", |stage| {
            before.iter().all(|(worker, times)| stage.seen.calls_of(worker) > *times)
        })
        .await?;
        for worker in struck {
            self.log.write(Entry::Worker { worker, did: Did::Thawed });
        }
        faults.into_iter().for_each(|number| self.log.write(Entry::Healed { number }));
        self.everybody_again("with the host").await
    }

    /// Kills the node that leads a platform queue.
    async fn lose_a_node(&mut self) -> anyhow::Result<()> {
        let shown = self.ground.queue("quick").await?;
        let leader = shown["leader"].as_str().context("a quorum queue has a leader")?.to_owned();
        let node = self.ground.nodes.iter().find(|node| node.name == leader).context("the leader is ours")?.number;
        let number = self.broke("node killed", &node.to_string());
        self.ground.node("kill", node).await?;
        self.everybody_again("without the node").await?;
        self.ground.node("start", node).await?;
        self.log.write(Entry::Healed { number });
        self.everybody_again("with the node").await
    }

    /// Replaces one worker after the other, as a rolling upgrade does. Answers from when to when.
    async fn replace_all(&mut self) -> anyhow::Result<(i64, i64)> {
        let from = Clock::System.now().as_millis();
        let seats = self.workers.seats.clone();
        for seat in &seats {
            let ended = self.workers.replace(seat, None).await?;
            ensure!(ended.success(), "worker {} ended with {ended} when it was to be replaced", seat.number);
            let fresh = seat.awake().context("the new worker runs")?;
            self.say(&format!("{fresh} is a new one"));
            self.until("the new worker calls", |stage| stage.seen.has_called(&fresh)).await?;
        }
        self.everybody_again("with new workers").await?;
        Ok((from, Clock::System.now().as_millis()))
    }
}

fn report(ruling: &Ruling, verdict: &Verdict, attempts: &[judge::Attempt], upgrade: (i64, i64), stuck: usize) -> Value {
    let during = |at: &i64| (upgrade.0..=upgrade.1).contains(at);
    // An orderly end loses no run, and has none done twice.
    let lost_runs =
        attempts.iter().filter(|row| during(&row.started) && row.verdict.as_deref() == Some("lost")).count();
    let doubled_then = verdict.again.values().filter(|times| times.iter().any(during)).count();
    let Ruling { dead, forked, unrecorded, lost, targets, carries, calls, accepted, latest, beside, .. } = ruling;
    let findings = [dead, forked, unrecorded, lost, targets, carries, &verdict.over];
    let sound = findings.iter().all(|findings| findings.is_empty()) && lost_runs == 0 && doubled_then == 0;
    json!({
        "passed": sound && stuck == 0 && calls.0 > 0 && *accepted > 0,
        "hosts": HOSTS, "workers": HOSTS as usize * WORKERS, "broker_nodes": NODES,
        "calls": calls.0,
        "one_off": { "accepted": accepted, "called": calls.1, "lost": lost.len(), "called_again": verdict.again.len() },
        "dead": dead.len(), "forked": forked.len(), "unrecorded": unrecorded.len(), "beside": beside,
        "latest_ms": latest,
        "throttles": verdict.throttles,
        "upgrade": { "lost_runs": lost_runs, "one_off_called_again": doubled_then },
        "lease_s": LEASE.as_secs(), "stuck_workers": stuck,
        "findings": {
            "dead": dead, "forked": forked, "unrecorded": unrecorded, "lost": lost, "targets": targets,
            "carries": carries, "throttles": verdict.over,
        },
    })
}
