//! Two sites: each with a RabbitMQ node, a PostgreSQL server and two workers. The second PostgreSQL is the synchronous
//! standby of the first; nothing else leads from site to site. The first site is cut off for good under load, one command
//! makes the second the one that counts, and then the first comes back, with all that still runs there.
//!
//! What handlers call stays within reach of both sites all the time, so that the first would be seen to go on by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use axum::http::StatusCode;
use parking_lot::Mutex;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::clock::Clock;
use roundelay::ledger::ChainState;
use roundelay::topology::Names;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;

use crate::chaos_load::{self, ONCE};
use crate::ground::{script, value};
use crate::judge::{self, Chain, Rules, Ruling};
use crate::log::{self, Call, Entry, Line, Writer};
use crate::proxy::{Link, Mode};
use crate::receiver::{self, Seen};
use crate::support::workers::{Place, Plan, Workers};

/// Workers of each site.
const WORKERS: usize = 2;
/// How long after the command a chain that was due may take to be called.
const PATIENCE: Duration = Duration::from_secs(60);
/// From the cut to the command: the time in which somebody decides.
const DECIDES: Duration = Duration::from_secs(12);
/// How long the first site is watched in each state in which it comes back.
const WATCHED: Duration = Duration::from_secs(15);
/// So many calls in a second are left to machines of two cores.
const PER_SECOND: usize = 50;
/// Chains that tick every two seconds, and those that tick once in a long time.
const QUICK: usize = 60;
/// A command that gets no answer is given up after this.
const COMMAND: Duration = Duration::from_secs(12);
/// What a manual run, and a chain that begins under load, are of.
const MANUAL: &str = "manual";
const JOINS: &str = "joins";
const KINDS: [&str; 5] = ["slow", "quick", MANUAL, JOINS, ONCE];

/// What a run of this test is given.
pub struct Asked<'a> {
    pub folder: &'a Path,
    /// How many chains sleep for long.
    pub chains: usize,
    /// How long there is load before the cut, and after the command.
    pub calm: Duration,
    pub rabbitmq: &'a str,
    pub quiet: bool,
}

/// The services of a site.
struct Site {
    folder: PathBuf,
    broker: String,
    database: SocketAddr,
}

impl Site {
    fn ledger(&self) -> String {
        format!("postgres://roundelay:roundelay@{}/roundelay?sslmode=disable", self.database)
    }

    fn postgres(&self) -> PathBuf {
        self.folder.join("postgres")
    }

    /// What the environment of its programs has.
    fn variables(&self, synchronous: bool) -> Vec<(String, String)> {
        vec![
            ("ROUNDELAY__BROKER__URL".into(), self.broker.clone()),
            ("ROUNDELAY__LEDGER__URL".into(), self.ledger()),
            ("ROUNDELAY__LEDGER__SYNCHRONOUS".into(), synchronous.to_string()),
        ]
    }

    async fn client(&self) -> anyhow::Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.ledger(), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

/// Starts both sites. Answers also with the one way between them.
async fn start(asked: &Asked<'_>) -> anyhow::Result<(Site, Site, Link)> {
    let folders = ["first", "second"].map(|name| asked.folder.join(name));
    let arguments = ["--version", asked.rabbitmq];
    let rabbits = folders.clone().map(|folder| folder.join("rabbitmq"));
    let postgres = folders.clone().map(|folder| folder.join("postgres"));
    let (first, second, primary) = tokio::join!(
        script("rabbitmq", "start", &rabbits[0], &arguments),
        script("rabbitmq", "start", &rabbits[1], &arguments),
        script("postgres", "start", &postgres[0], &[]),
    );
    let site = |folder: &PathBuf, rabbit: &str, postgres: &str| -> anyhow::Result<Site> {
        let database = url::Url::parse(value(postgres, "DATABASE_URL")?)?;
        let port = database.port().context("DATABASE_URL has a port")?;
        let database = SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Site { folder: folder.clone(), broker: value(rabbit, "AMQP_URL")?.to_owned(), database })
    };
    let first = site(&folders[0], &first?, &primary?)?;
    let of = first.postgres().to_string_lossy().into_owned();
    let follows = ["--standby-of", &*of, "--synchronous"];
    let standby = script("postgres", "start", &postgres[1], &follows).await?;
    let second = site(&folders[1], &second?, &standby)?;
    // The standby follows over a way that can be cut.
    let link = Link::open(vec![first.database]).await?;
    let client = second.client().await?;
    let conninfo: String = client.query_one("SHOW primary_conninfo", &[]).await?.get(0);
    let (old, new) = (format!("port={}", first.database.port()), format!("port={}", link.port));
    ensure!(conninfo.contains(&old), "the standby follows {conninfo}");
    let set = format!("ALTER SYSTEM SET primary_conninfo = '{}'", conninfo.replace(&old, &new).replace('\'', "''"));
    client.batch_execute(&set).await?;
    client.batch_execute("SELECT pg_reload_conf()").await?;
    let follows = format!("SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE sender_port = {})", link.port);
    let deadline = Instant::now() + PATIENCE;
    while !client.query_one(&follows, &[]).await?.get::<_, bool>(0) {
        ensure!(Instant::now() < deadline, "the standby does not follow over the link");
        sleep(Duration::from_millis(100)).await;
    }
    Ok((first, second, link))
}

/// Ends what [`start`] has started.
pub async fn end(folder: &Path) {
    for site in ["first", "second"] {
        crate::ground::Ground::end(&folder.join(site)).await;
    }
}

fn manner(call: &Call) -> (Duration, StatusCode) {
    let dice = call.fence.unwrap_or(0).unsigned_abs();
    // A few fail, and are tried again.
    (
        Duration::from_millis(50 + dice * 37 % 250),
        if dice % 29 == 7 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK },
    )
}

/// Everything has its default but what a small machine needs.
fn write_config(folder: &Path, receiver: SocketAddr, every: Duration) -> anyhow::Result<PathBuf> {
    let mut text = String::new();
    for name in KINDS {
        let schedule = match name {
            "slow" => format!("every = \"{}s\"\n", every.as_secs()),
            "quick" => "every = \"2s\"\n".to_owned(),
            MANUAL => "every = \"1h\"\n".to_owned(),
            JOINS => "every = \"10s\"\n".to_owned(),
            _ => String::new(),
        };
        text += &format!(
            "[queues.{name}]\nconcurrency = 24\n[kinds.{name}]\nqueue = \"{name}\"\n{schedule}timeout = \"5s\"\n\
             retry = {{ attempts = 3, backoff = [\"1s\"] }}\nhandler.http.url = \"http://{receiver}/\"\n"
        );
    }
    let path = folder.join("roundelay.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}

/// What somebody was told is accepted, and when, in milliseconds since 1970.
#[derive(Default)]
struct Accepted {
    manual: BTreeMap<String, i64>,
    joins: BTreeMap<String, i64>,
    once: BTreeMap<String, i64>,
}

type Shared = Arc<Mutex<Accepted>>;

/// A command of the program, at a site; answers what it printed.
async fn command(config: &Path, site: &[(String, String)], arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roundelay"));
    command.args(arguments).env("ROUNDELAY_CONFIG", config).envs(site.iter().cloned());
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "roundelay {}: {complaint}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// Has runs and chains accepted at the first site until `stop`, one after the other. What gets no answer is not accepted.
async fn order(config: PathBuf, site: Vec<(String, String)>, accepted: Shared, stop: CancellationToken) {
    for number in 0_u64.. {
        if stop.is_cancelled() {
            return;
        }
        let (run, joins) = (format!("run-{number}"), format!("joins-{number}"));
        let payload = json!({ "n": number }).to_string();
        let words = ["run", MANUAL, &run, "--payload", &payload];
        if let Ok(Ok(_)) = timeout(COMMAND, command(&config, &site, &words)).await {
            accepted.lock().manual.insert(run, Clock::System.now().as_millis());
        }
        let roster = config.with_file_name(format!("joins-{number}.csv"));
        std::fs::write(&roster, format!("key\n{joins}\n")).expect("the folder can be written");
        let roster = roster.to_string_lossy().into_owned();
        let words = ["enroll", "--kind", JOINS, &roster, "--spread", "5s"];
        if let Ok(Ok(_)) = timeout(COMMAND, command(&config, &site, &words)).await {
            accepted.lock().joins.insert(joins, Clock::System.now().as_millis());
        }
    }
}

/// Publishes one-off jobs at the first site's broker until `stop`, some of them for later.
async fn publish(broker: RabbitBroker, accepted: Shared, stop: CancellationToken) {
    use roundelay::broker::{Broker, Destination, Message};
    use roundelay::job::Envelope;
    for number in 0_u64.. {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(Duration::from_millis(100)) => {}
        }
        let id = format!("once-{number}");
        let job = Envelope::job(ONCE, &format!("job-{number}"), json!({ "n": number }), id.clone());
        let to = match number % 4 {
            0 => Destination::Rung { rung: Duration::from_secs(30), then: ONCE.into() },
            _ => Destination::Queue(ONCE.into()),
        };
        if broker.publish(Message::new(to, &job)).await.is_ok() {
            accepted.lock().once.insert(id, Clock::System.now().as_millis());
        }
    }
}

/// What a run has.
struct Stage {
    seen: Seen,
    began: Instant,
    quiet: bool,
}

impl Stage {
    fn say(&self, what: &str) {
        if !self.quiet {
            println!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
        }
    }

    /// Waits until `what` holds; answers how long that took.
    async fn until(&self, patience: Duration, label: &str, what: impl Fn(&Seen) -> bool) -> anyhow::Result<Duration> {
        let since = Instant::now();
        while !what(&self.seen) {
            ensure!(since.elapsed() < patience, "it did not come to this within {patience:?}: {label}");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(since.elapsed())
    }
}

/// The chains that are due at the second site's copy.
async fn due(client: &Client) -> anyhow::Result<BTreeSet<i64>> {
    let sql = "SELECT epoch FROM chains WHERE state = 0 AND kind = ANY ($1) AND due <= $2";
    let kinds: Vec<&str> = KINDS.to_vec();
    let rows = client.query(sql, &[&kinds, &Clock::System.now().as_millis()]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub async fn run(asked: &Asked<'_>) -> anyhow::Result<Value> {
    let (first, second, link) = start(asked).await?;
    let (log_path, seen) = (asked.folder.join("receiver.log"), Seen::default());
    let log = Writer::open(&log_path)?;
    let receiver = receiver::start(log.clone(), seen.clone(), manner, &[])?;
    let every = Duration::from_secs((asked.chains / PER_SECOND).max(20) as u64);
    let config = write_config(asked.folder, receiver, every)?;
    let stage = Stage { seen, began: Instant::now(), quiet: asked.quiet };
    stage.say(
        "two sites run: RabbitMQ and PostgreSQL at each, the second PostgreSQL is the first's synchronous standby",
    );

    let (at_first, at_second) = (first.variables(true), second.variables(false));
    let writer = log.clone();
    let told = Arc::new(move |worker: &str, did| writer.write(Entry::Worker { worker: worker.to_owned(), did }));
    let plan = |variables: Vec<Vec<(String, String)>>, before| Plan {
        config: config.clone(),
        kinds: KINDS.map(str::to_owned).to_vec(),
        variables,
        apart: Duration::ZERO,
        place: Place { before, ..Place::default() },
    };
    let of_first = Workers::start(plan(vec![at_first.clone(); WORKERS], 0), told.clone()).await;
    // These wait at the standby.
    let of_second = Workers::start(plan(vec![at_second.clone(); WORKERS], WORKERS), told.clone()).await;
    // The workers run already: to enroll very many takes minutes, in which the first are due.
    let spread = format!("{}s", every.as_secs());
    for (kind, chains, spread) in [("slow", asked.chains, spread.as_str()), ("quick", QUICK, "2s")] {
        let roster = asked.folder.join(format!("{kind}.csv"));
        let rows: String = (0..chains).map(|n| format!("{kind}-{n}\n")).collect();
        std::fs::write(&roster, format!("key\n{rows}"))?;
        let roster = roster.to_string_lossy().into_owned();
        command(&config, &at_first, &["enroll", "--kind", kind, &roster, "--spread", spread]).await?;
    }
    stage.say(&format!(
        "{} chains are enrolled at the first site, one tick each {every:?}; {QUICK} each 2 s",
        asked.chains
    ));

    let (accepted, stop) = (Shared::default(), CancellationToken::new());
    let publisher = RabbitBroker::connect(&first.broker, Names::new("roundelay")).await?;
    let orders = tokio::spawn(order(config.clone(), at_first.clone(), accepted.clone(), stop.clone()));
    let jobs = tokio::spawn(publish(publisher, accepted.clone(), stop.clone()));
    stage.until(PATIENCE, "the quick chains are called", |seen| seen.by_chain().len() >= QUICK).await?;
    sleep(asked.calm).await;
    let (runs, joined, jobs_so_far) = {
        let accepted = accepted.lock();
        (accepted.manual.len(), accepted.joins.len(), accepted.once.len())
    };
    stage.say(&format!(
        "load: {} calls of chains; accepted: {runs} manual runs, {joined} chains, {jobs_so_far} one-off jobs",
        stage.seen.by_chain().values().sum::<u64>()
    ));

    // What is under way when the network goes gets no error.
    link.set(Mode::Hole { from_client: true, from_server: true });
    let cut = Clock::System.now().as_millis();
    log.write(Entry::Broke { number: 1, fault: "site lost".into(), target: "first".into() });
    stage.say("the first site is cut off; its workers, broker and PostgreSQL run on");
    sleep(DECIDES).await;
    let copy = second.client().await?;
    let overdue = due(&copy).await?;
    let before = stage.seen.by_chain();
    stage.say(&format!("{} chains are due; `roundelay promote` begins", overdue.len()));
    let (began, begun) = (Instant::now(), Clock::System.now().as_millis());
    log.write(Entry::Healed { number: 1 });

    let promotion = {
        let (config, site) = (config.clone(), at_second.clone());
        tokio::spawn(async move { command(&config, &site, &["promote", "--json"]).await })
    };
    while copy.query_one("SELECT pg_is_in_recovery()", &[]).await?.get::<_, bool>(0) {
        ensure!(began.elapsed() < PATIENCE, "the standby was not promoted");
        if promotion.is_finished() {
            let told = promotion.await??;
            anyhow::bail!("the command has ended, and the server is a standby: {told}");
        }
        sleep(Duration::from_millis(20)).await;
    }
    let promoted = began.elapsed();
    stage.say(&format!("the second PostgreSQL takes writes, {:.1} s after the command began", promoted.as_secs_f64()));
    let theirs: Vec<String> = of_second.seats.iter().filter_map(|seat| seat.awake()).collect();
    stage.until(PATIENCE, "the second site calls", |seen| theirs.iter().any(|worker| seen.has_called(worker))).await?;
    let first_tick = began.elapsed();
    stage.say(&format!(
        "the second site calls for the first time, {:.1} s after the command began",
        first_tick.as_secs_f64()
    ));
    let called = |seen: &Seen| {
        let now = seen.by_chain();
        overdue.iter().filter(|epoch| now.get(epoch) > before.get(epoch)).count()
    };
    let all =
        stage.until(2 * PATIENCE, "all chains that were due are called", |seen| called(seen) == overdue.len()).await;
    let all_overdue = began.elapsed();
    let printed = timeout(Duration::from_secs(1_800), promotion).await???;
    let done: Value = serde_json::from_str(printed.trim())?;
    if all.is_ok() {
        stage.say(&format!(
            "all {} chains that were due are called, {:.1} s after the command began",
            overdue.len(),
            all_overdue.as_secs_f64()
        ));
    }
    stage.say(&format!("the command has ended, {:.1} s after it began: {done}", began.elapsed().as_secs_f64()));
    all?;
    let again: Value = serde_json::from_str(command(&config, &at_second, &["promote", "--json"]).await?.trim())?;
    ensure!(again["changed"] == json!(false), "a second run of the command changes something: {again}");
    stop.cancel();
    orders.await?;
    jobs.await?;
    let accepted = std::mem::take(&mut *accepted.lock());
    let late = |times: &BTreeMap<String, i64>| times.values().filter(|at| **at > cut).count();
    let after_cut = late(&accepted.manual) + late(&accepted.joins);
    sleep(asked.calm).await;

    // The first site comes back, in three states.
    link.set(Mode::Open);
    stage.say("the first site is back, as it was: its workers, broker and PostgreSQL");
    sleep(WATCHED).await;
    script("postgres", "kill", &first.postgres(), &[]).await?;
    script("postgres", "start", &first.postgres(), &[]).await?;
    for seat in &of_first.seats {
        of_first.kill(seat, |_| ());
    }
    stage.say("its PostgreSQL and its workers were killed and started again");
    sleep(WATCHED).await;
    let old = first.client().await?;
    old.batch_execute("ALTER SYSTEM SET synchronous_standby_names = ''").await?;
    old.batch_execute("SELECT pg_reload_conf()").await?;
    stage.say("its PostgreSQL waits for no standby any more");
    sleep(WATCHED).await;
    drop(old);

    // And at last in order: its PostgreSQL as a standby, and workers of the new primary on its broker.
    let kept: Vec<&String> = accepted.once.keys().filter(|id| !stage.seen.has_run(id)).collect();
    stage.say(&format!("{} one-off jobs lie on the first site's broker alone", kept.len()));
    let gone = of_first.seats.iter().map(|seat| seat.number).collect::<Vec<_>>();
    of_first.abandon().await;
    script("postgres", "stop", &first.postgres(), &[]).await?;
    let of = second.postgres().to_string_lossy().into_owned();
    script("postgres", "start", &first.postgres(), &["--standby-of", &of, "--synchronous"]).await?;
    let mut drains = second.variables(true);
    drains[0].1.clone_from(&first.broker);
    let of_old_broker = Workers::start(plan(vec![drains], 2 * WORKERS), told).await;
    stage.say("the first PostgreSQL follows the second, which waits for it; a worker of the second ledger is on the first broker");
    let waits = stage
        .until(2 * PATIENCE, "every one-off job has run", |seen| accepted.once.keys().all(|id| seen.has_run(id)))
        .await;
    if let Ok(took) = &waits {
        stage.say(&format!("every one-off job has run, within {:.1} s", took.as_secs_f64()));
    }
    let sql = "SELECT epoch FROM chains WHERE kind = $1 AND key = ANY ($2)";
    let keys: Vec<&String> = accepted.manual.keys().collect();
    let manual: Vec<i64> = copy.query(sql, &[&MANUAL, &keys]).await?.iter().map(|row| row.get(0)).collect();
    let ran = |seen: &Seen| {
        let calls = seen.by_chain();
        manual.iter().all(|epoch| calls.contains_key(epoch))
    };
    stage.until(PATIENCE, "every manual run that was accepted has run", ran).await?;
    log.write(Entry::Over);
    let stuck = of_second.stop().await + of_old_broker.stop().await;

    let lines = log::read(&log_path)?;
    let (chains, names) = rows(&second).await?;
    let (_, attempts) = chaos_load::rows(&second.ledger()).await?;
    let rules = Rules {
        slack: 0,
        patience: PATIENCE.as_millis() as i64,
        longest: begun - cut + PATIENCE.as_millis() as i64,
        redelivery: Default::default(),
        rhythms: Default::default(),
    };
    let ruling = judge::judge(&lines, &chains, &attempts, &rules);
    let missing = |kind: &str, keys: &BTreeMap<String, i64>| -> Vec<String> {
        let absent = keys.keys().filter(|key| !names.contains(&(kind.to_owned(), (*key).clone())));
        absent.map(|key| format!("{kind} {key} was accepted and is not in the second ledger")).collect()
    };
    let lost = [missing(MANUAL, &accepted.manual), missing(JOINS, &accepted.joins)].concat();
    let by_first = calls_of(&lines, &gone, begun);
    let stray = accepted.once.keys().filter(|id| !stage.seen.has_run(id)).count();
    let Ruling { dead, forked, unrecorded, targets, calls, latest, .. } = &ruling;
    let sound = [dead, forked, unrecorded, targets, &lost].iter().all(|findings| findings.is_empty());
    let in_time = first_tick <= PATIENCE && all_overdue <= PATIENCE;
    Ok(json!({
        "passed": sound && in_time && by_first.0 == 0 && stray == 0 && stuck == 0 && !overdue.is_empty(),
        "chains": chains.len(), "calls": calls.0,
        "accepted": {
            "manual_runs": accepted.manual.len(), "chains": accepted.joins.len(), "answered_after_the_cut": after_cut,
            "lost": lost.len(),
        },
        "dead": dead.len(), "forked": forked.len(), "unrecorded": unrecorded.len(), "latest_ms": latest,
        "from_the_command_ms": {
            "promoted": promoted.as_millis() as u64, "first_tick": first_tick.as_millis() as u64,
            "all_that_were_due": all_overdue.as_millis() as u64,
        },
        "due_at_the_command": overdue.len(), "decided_after_ms": begun - cut,
        "promote": done,
        "first_site_back": { "calls_of_chains": by_first.0, "calls_of_one_off_jobs": by_first.1 },
        "one_off": {
            "confirmed": accepted.once.len(), "on_the_lost_broker_alone": kept.len(), "never_called": stray,
        },
        "stuck_workers": stuck,
        "findings": { "dead": dead, "forked": forked, "unrecorded": unrecorded, "targets": targets, "lost": lost },
    }))
}

/// What these seats' workers have called from then on: chains, and one-off jobs.
fn calls_of(log: &[Line], seats: &[usize], since: i64) -> (usize, usize) {
    let of_them = |worker: &str| {
        let seat = worker.strip_prefix('w').and_then(|rest| rest.split('-').next()).and_then(|n| n.parse().ok());
        seat.is_some_and(|seat: usize| seats.contains(&seat))
    };
    let calls = log.iter().filter_map(|line| match &line.entry {
        Entry::Call(call) if line.at.as_millis() > since && of_them(&call.worker) => Some(call),
        _ => None,
    });
    let (chains, once): (Vec<&Call>, Vec<&Call>) = calls.partition(|call| call.epoch.is_some());
    (chains.len(), once.len())
}

/// The chains of the ledger as the judge takes them, and what they are called. A manual run that has ended is no chain that
/// has died: it is never due again.
async fn rows(site: &Site) -> anyhow::Result<(Vec<Chain>, BTreeSet<(String, String)>)> {
    let client = site.client().await?;
    let sql = "SELECT epoch, kind, key, state, due, once FROM chains WHERE kind = ANY ($1)";
    let (mut chains, mut names) = (Vec::new(), BTreeSet::new());
    for row in client.query(sql, &[&KINDS.to_vec()]).await? {
        let (kind, key): (String, String) = (row.get(1), row.get(2));
        let (mut state, mut due) = (ChainState::from_number(row.get(3)), row.get(4));
        if row.get(5) && state == ChainState::Retired {
            (state, due) = (ChainState::Active, i64::MAX / 4);
        }
        names.insert((kind.clone(), key.clone()));
        chains.push(Chain { epoch: row.get(0), kind, key, state, due });
    }
    Ok((chains, names))
}
