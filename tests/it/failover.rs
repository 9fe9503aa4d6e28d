//! PostgreSQL fails over to its standby: nothing that was answered is lost where the standby is synchronous. Where the
//! standby is asynchronous and behind, the last moments are lost, and that is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use roundelay::Outcome;
use roundelay::clock::Entropy;
use roundelay::guard::Guard;
use roundelay::ids::Fence;
use roundelay::ledger::postgres::PostgresLedger;
use roundelay::ledger::{Claim, ClaimRequest, Enrolled, LedgerClock, LedgerError, Protocol, Reports, Sessions};
use roundelay::secret::Secret;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::chaos_parts::proxy::{Link, Mode};
use crate::harness::{Ground, Run, Schema, Watched, chain, roundelay, until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/local/postgres");

/// A PostgreSQL server of a test's own, ended when it is dropped.
struct Server {
    folder: PathBuf,
    /// What its start has printed.
    env: String,
}

impl Server {
    async fn start(folder: PathBuf, options: &[&str]) -> Self {
        let mut server = Self { folder, env: String::new() };
        server.env = server.call("start", options).await;
        server
    }

    /// Does a command of the script.
    async fn call(&self, verb: &str, more: &[&str]) -> String {
        let output =
            Command::new(SCRIPT).arg(verb).arg(&self.folder).args(more).stdin(Stdio::null()).output().await.unwrap();
        assert!(output.status.success(), "{verb} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn url(&self) -> url::Url {
        let line = self.env.lines().find_map(|line| line.strip_prefix("DATABASE_URL="));
        url::Url::parse(line.unwrap_or_else(|| panic!("no DATABASE_URL in {}", self.env))).unwrap()
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.url().port().unwrap()))
    }

    async fn sql(&self) -> tokio_postgres::Client {
        let (client, connection) =
            tokio_postgres::connect(self.url().as_str(), tokio_postgres::NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        client
    }

    /// The one value of a query, as text.
    async fn ask(&self, query: &str) -> String {
        self.sql().await.query_one(query, &[]).await.unwrap().get(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::process::Command::new(SCRIPT).arg("kill").arg(&self.folder).output();
    }
}

/// A primary with its standby, and a link that leads to the one that takes writes.
struct Pair {
    primary: Server,
    standby: Server,
    link: Link,
    _folder: TempDir,
}

impl Pair {
    async fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The servers run under a user of their own, who has to get in.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let primary = Server::start(folder.path().join("primary"), &[]).await;
        let of = primary.folder.to_string_lossy().into_owned();
        let standby = Server::start(folder.path().join("standby"), &[&["--standby-of", &of], options].concat()).await;
        let link = Link::open(vec![primary.address()]).await.unwrap();
        Self { primary, standby, link, _folder: folder }
    }

    /// The ledger's URL, which stays the same.
    fn url(&self) -> String {
        let mut url = self.primary.url();
        url.set_port(Some(self.link.port)).unwrap();
        url.to_string()
    }

    /// Lets the standby have all that was written before this call, and nothing that is written after it.
    async fn hold_replication_back(&self) {
        let written = self.primary.ask("SELECT pg_current_wal_insert_lsn()::text").await;
        // What was written without a wait is flushed some time later.
        let replayed = format!("SELECT (pg_last_wal_replay_lsn() >= '{written}')::text");
        until("the standby has it all", async || self.standby.ask(&replayed).await == "true").await;
        let standby = self.standby.sql().await;
        standby.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
        standby.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let streams = "SELECT count(*)::text FROM pg_stat_replication";
        until("nothing is replicated", async || self.primary.ask(streams).await == "0").await;
    }

    /// The primary ends as by the end of its machine, and the standby takes its place. Clients get no answer and no
    /// error until `lead_over`.
    async fn fail_over(&self) {
        self.link.set(Mode::Hole { from_client: true, from_server: true });
        self.primary.call("kill", &[]).await;
        self.standby.call("promote", &[]).await;
    }

    /// Connections to the old primary end, and new ones lead to the new one.
    fn lead_over(&self) {
        self.link.lead_to(vec![self.standby.address()]);
        self.link.set(Mode::Open);
    }
}

async fn open(url: &str) -> Arc<PostgresLedger> {
    Arc::new(PostgresLedger::open(&Secret::new(url), &Entropy::from_os()).await.unwrap())
}

/// A claim of a new chain, under way.
async fn claimed(ledger: &Arc<PostgresLedger>, key: &str) -> JoinHandle<Result<Claim, LedgerError>> {
    let enrolled = ledger.enroll(vec![chain(key, ledger.now())]).await.unwrap().remove(0);
    let Enrolled::Created(hint) = enrolled else { panic!("it was there: {enrolled:?}") };
    let session = ledger.begin_session("w".into(), Duration::from_secs(60)).await.unwrap();
    let request = ClaimRequest {
        hint,
        worker: "w".into(),
        session,
        again: false,
        takeover: false,
        guard: Guard::default(),
        recurs: true,
        prepared: 2,
        ahead: Duration::ZERO,
    };
    let ledger = ledger.clone();
    tokio::spawn(async move { ledger.claim(request).await })
}

/// Whoever is told that a claim is granted finds it in the ledger; answers whether it was granted.
async fn granted(answer: Result<Claim, LedgerError>, ledger: &PostgresLedger) -> bool {
    let known: Vec<Fence> = ledger.attempts(Fence::NONE, 10).await.unwrap().iter().map(|row| row.fence).collect();
    match answer {
        Ok(Claim::Granted(grant)) => {
            assert!(known.contains(&grant.fence), "granted with fence {}, the ledger has {known:?}", grant.fence);
            true
        }
        Err(error) => {
            assert!(error.to_string().contains("whether it was written is not known"), "{error}");
            false
        }
        other => panic!("{other:?}"),
    }
}

/// The new primary gives numbers of transactions again that it has never seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_was_lost_with_its_server_is_not_taken_for_another_with_its_number() {
    let pair = Pair::start(&[]).await;
    let ledger = open(&pair.url()).await;
    pair.hold_replication_back().await;
    let mut barrier = pair.primary.sql().await;
    let barrier = barrier.transaction().await.unwrap();
    barrier.batch_execute("LOCK TABLE attempts IN EXCLUSIVE MODE").await.unwrap();
    let claim = claimed(&ledger, "a").await;
    let waits =
        "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%attempts%'";
    until("the commit is on its way", async || pair.primary.ask(waits).await == "1").await;
    pair.fail_over().await;
    let others = "DO $$ BEGIN FOR n IN 1..500 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    pair.standby.sql().await.batch_execute(others).await.unwrap();
    pair.lead_over();
    let answer = claim.await.unwrap();
    let written = granted(answer, &*open(&pair.url()).await).await;
    assert!(!written, "the chain is not even in the ledger");
}

/// A commit whose wait for the standby is broken off is in the primary, and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_the_synchronous_standby_does_not_have_is_not_answered() {
    let pair = Pair::start(&["--synchronous"]).await;
    let ledger = open(&pair.url()).await;
    let enrolled = ledger.enroll(vec![chain("a", ledger.now())]).await.unwrap();
    assert!(matches!(enrolled[..], [Enrolled::Created(_)]));
    pair.hold_replication_back().await;
    let enroll = {
        let (ledger, new) = (ledger.clone(), chain("b", ledger.now()));
        tokio::spawn(async move { ledger.enroll(vec![new]).await })
    };
    let waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'COMMIT%'";
    until("it waits for the standby", async || {
        pair.primary.ask(&format!("SELECT count(*)::text {waits}")).await == "1"
    })
    .await;
    pair.primary.ask(&format!("SELECT count(pg_terminate_backend(pid))::text {waits}")).await;
    let answer = enroll.await.unwrap();
    pair.fail_over().await;
    pair.lead_over();
    let chains = pair.standby.ask("SELECT string_agg(key, ' ' ORDER BY key) FROM chains").await;
    assert_eq!(chains, "a", "the standby never had the other");
    let error = answer.expect_err("it was answered, and is lost").to_string();
    assert!(error.contains("whether it was written is not known"), "{error}");
}

// ---- Replication is behind, and the primary is lost ----

const CONFIG: &str = r#"
catch_up = { every = "1s", slack = "3s", spread = "1s" }
[queues.work]
concurrency = 50
[kinds.sync]
every = "1s"
queue = "work"
timeout = "60s"
"#;
const CHAINS: usize = 10;

/// Chains on RabbitMQ and on a pair, which tick.
struct Scene {
    pair: Pair,
    ground: Ground,
    engine: Watched,
    /// The run of a chain that goes on from before the primary is lost until after it.
    long: Option<Run>,
    /// The ticks that ended, with when they did.
    ended: Vec<(String, i64, Instant)>,
}

impl Scene {
    async fn begin() -> Self {
        let pair = Pair::start(&[]).await;
        let mut ground = Ground::rabbit().await;
        ground.schema = Some(Schema::existing(pair.url()));
        let engine = Watched::start(&ground, CONFIG).await;
        for n in 0..CHAINS {
            engine.enroll(&format!("chain-{n}"), "work").await;
        }
        engine.enroll("long", "work").await;
        let mut scene = Self { pair, ground, engine, long: None, ended: Vec::new() };
        scene.tick_on(2).await;
        scene
    }

    /// Lets every chain but the long one end this number of ticks more.
    async fn tick_on(&mut self, times: usize) {
        let mut ended: BTreeMap<String, usize> = BTreeMap::new();
        while ended.values().filter(|count| **count >= times).count() < CHAINS {
            let run = self.engine.next().await;
            if run.job.key == "long" {
                assert!(self.long.replace(run).is_none(), "it runs already");
                continue;
            }
            *ended.entry(run.job.key.clone()).or_default() += 1;
            self.ended.push((run.job.key.clone(), run.tick(), Instant::now()));
            run.end(Outcome::Done);
        }
    }

    /// Replication stands still while every chain ticks on; then the primary is lost. Answers how many ticks that had
    /// ended are lost.
    async fn lose_the_primary(&mut self) -> usize {
        self.pair.hold_replication_back().await;
        let since = Instant::now();
        self.tick_on(3).await;
        self.pair.fail_over().await;
        let behind = since.elapsed();
        let rows = self.pair.standby.sql().await.query("SELECT key, tick FROM chains", &[]).await.unwrap();
        let reached: BTreeMap<String, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let lost: Vec<_> = self.ended.iter().filter(|(key, tick, _)| *tick >= reached[key]).collect();
        println!("{} of {} ended ticks are lost; replication was {behind:?} behind", lost.len(), self.ended.len());
        // A tick that had ended a moment before may not have been written yet.
        let early = lost.iter().filter(|(.., at)| *at + Duration::from_secs(1) < since).count();
        assert_eq!(early, 0, "lost, though it ended before replication stood still: {lost:?} of {reached:?}");
        assert!(lost.len() >= 2 * CHAINS, "{lost:?}");
        lost.len()
    }

    fn config(&self) -> PathBuf {
        self.ground.config_file(CONFIG)
    }

    async fn end(self) {
        drop(self.long);
        self.engine.stop_with(drop).await;
    }

    /// Each chain in the ledger with its state and its epoch.
    async fn states(&self) -> BTreeMap<String, (i64, i64)> {
        let rows = self.pair.standby.sql().await.query("SELECT key, state, epoch FROM chains", &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_asynchronous_failover_recover_all_lets_every_chain_go_on() {
    let mut scene = Scene::begin().await;
    assert!(scene.lose_the_primary().await > 0);
    // The workers end while there is no ledger; what they had in hand is not written.
    let Scene { pair, ground, engine, long, .. } = scene;
    drop(long);
    pair.lead_over();
    engine.stop_with(drop).await;
    let config = ground.config_file(CONFIG);
    let recovered = roundelay(&["recover", "--all", "--json", "--config", config.to_str().unwrap()]).await;
    assert_eq!(recovered.json(), json!({ "recovered": CHAINS + 1 }), "{recovered:?}");
    let engine = Watched::start(&ground, CONFIG).await;
    let mut scene = Scene { pair, ground, engine, long: None, ended: Vec::new() };
    // In its new epoch each chain begins at its first tick, and none is run twice.
    scene.tick_on(3).await;
    assert!(scene.long.is_some(), "the long one runs again");
    let mut ticks: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    scene.ended.iter().for_each(|(key, tick, _)| ticks.entry(key).or_default().push(*tick));
    for (key, ticks) in &ticks {
        assert!(ticks.windows(2).all(|pair| pair[1] == pair[0] + 1), "{key}: {ticks:?}");
    }
    assert!(scene.states().await.values().all(|(state, _)| *state == 0), "{:?}", scene.states().await);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_recover_all_chains_that_are_behind_their_messages_are_set_aside() {
    let mut scene = Scene::begin().await;
    scene.lose_the_primary().await;
    // Their claims are lost, so their ends are refused; and they have no message that is ahead, so they just go on.
    let (mut in_hand, mut runs) = (Vec::new(), BTreeSet::new());
    while let Some(run) = scene.engine.within(Duration::from_millis(100)).await {
        runs.insert(run.job.key.clone());
        in_hand.push(run);
    }
    assert!(in_hand.len() < CHAINS, "all of them run");
    scene.pair.lead_over();
    in_hand.into_iter().for_each(|run| run.end(Outcome::Done));
    // The run from before is known to the new primary.
    let long = scene.long.take().expect("it runs");
    let tick = long.tick();
    long.end(Outcome::Done);
    let config = scene.config();
    let status = async || roundelay(&["status", "--json", "--config", config.to_str().unwrap()]).await.json();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Each chain is set aside or runs.
    let ahead = loop {
        let told = status().await;
        let quarantined = told["ledger"]["quarantined"].as_u64().unwrap() as usize;
        if quarantined > 0 && quarantined + runs.len() >= CHAINS {
            break quarantined;
        }
        assert!(Instant::now() < deadline, "{} run: {told}", runs.len());
        // What catch-up has sent meanwhile.
        while let Some(run) = scene.engine.within(Duration::from_millis(100)).await {
            assert!(run.job.key != "long" || run.tick() > tick, "its end was written");
            if run.job.key != "long" {
                runs.insert(run.job.key.clone());
            }
            run.end(Outcome::Done);
        }
    };
    let held = scene.engine.broker().peek("roundelay.quarantine", 50).await.unwrap();
    let reasons: Vec<String> = held.iter().map(|held| held.reason.clone()).collect();
    drop(held);
    let of_restores = reasons.iter().filter(|reason| reason.contains("is ahead of the ledger")).count();
    assert!(of_restores >= ahead, "{reasons:?}");
    let before = scene.states().await;
    let recovered = roundelay(&["recover", "--json", "--config", config.to_str().unwrap()]).await;
    assert_eq!(recovered.json(), json!({ "recovered": ahead }), "{recovered:?}");
    scene.tick_on(2).await;
    let after = scene.states().await;
    for (key, (state, epoch)) in &after {
        assert_eq!(*state, 0, "{key} ticks");
        assert_eq!(*epoch > before[key].1, before[key].0 != 0, "a new epoch is for what was set aside: {key}");
    }
    scene.end().await;
}
