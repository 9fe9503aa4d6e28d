//! A second site: commits that wait for a standby, and the standby's promotion.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use roundelay::broker::Broker;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::clock::Entropy;
use roundelay::ledger::postgres;
use roundelay::ledger::{Claim, ClaimRequest, Enrolled};
use roundelay::secret::Secret;
use roundelay::topology::Names;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

use crate::commands::{refused, run, told};
use crate::harness::{SOON, Schema, Vhost, chain, until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/local/postgres");
const LEASE: Duration = Duration::from_secs(60);

/// A primary, and a standby for which it waits.
struct Pair {
    folder: TempDir,
}

impl Pair {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The servers run under a user of their own.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let pair = Self { folder };
        pair.call("start", "primary", &[]).await;
        let primary = pair.path("primary").display().to_string();
        pair.call("start", "standby", &["--standby-of", &primary, "--synchronous"]).await;
        pair
    }

    fn path(&self, server: &str) -> PathBuf {
        self.folder.path().join(server)
    }

    async fn call(&self, verb: &str, server: &str, more: &[&str]) {
        let mut command = Command::new(SCRIPT);
        let output = command.arg(verb).arg(self.path(server)).args(more).stdin(Stdio::null()).output().await.unwrap();
        assert!(output.status.success(), "{verb} {server}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn url(&self, server: &str) -> String {
        let env = std::fs::read_to_string(self.path(server).join("env")).unwrap();
        env.lines().find_map(|line| line.strip_prefix("DATABASE_URL=")).expect("it runs").to_owned()
    }

    async fn client(&self, server: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url(server), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for server in ["standby", "primary"] {
            let mut kill = std::process::Command::new(SCRIPT);
            let killed = kill.arg("kill").arg(self.path(server)).stdin(Stdio::null()).status();
            assert!(killed.is_ok_and(|status| status.success()) || std::thread::panicking(), "{server} was not ended");
        }
    }
}

fn claim(enrolled: &Enrolled, session: i64) -> ClaimRequest {
    let Enrolled::Created(hint) = enrolled else { panic!("{enrolled:?}") };
    ClaimRequest {
        hint: hint.clone(),
        worker: "w".into(),
        session,
        again: false,
        takeover: false,
        guard: roundelay::guard::Guard::default(),
        recurs: true,
        prepared: 2,
        ahead: Duration::ZERO,
    }
}

#[tokio::test]
async fn a_server_that_waits_for_no_standby_is_refused_where_that_is_demanded() {
    let (schema, vhost, folder) = (Schema::new().await, Vhost::new().await, tempfile::tempdir().unwrap());
    let config = folder.path().join("roundelay.toml");
    let text = format!(
        "[broker]\nurl = \"{}\"\n[ledger]\nurl = \"{}\"\nsynchronous = true\n[queues.q]\n[kinds.k]\nqueue = \"q\"\n\
         every = \"1h\"\nhandler.http.url = \"http://127.0.0.1:9/\"\n",
        vhost.amqp, schema.url
    );
    std::fs::write(&config, text).unwrap();
    refused("worker", &config, &[], &["it waits for no standby", "ALTER SYSTEM SET synchronous_standby_names"]).await;
    refused("status", &config, &[], &["it waits for no standby"]).await;
    let doctor = run("doctor", &config, &[]).await;
    assert!(doctor.stdout.contains("no, and ledger.synchronous is set"), "{doctor:?}");
    refused("promote", &config, &[], &["there is no ledger"]).await;
}

/// A wait that is cancelled, or a session that is ended while it waits, leaves the transaction committed on this server
/// alone. It was taken for written: of a site that was given up, a claim would have started a run.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_this_server_has_committed_is_not_taken_for_written() {
    let pair = Pair::start().await;
    let url = Secret::new(pair.url("primary"));
    let (ledger, _) = postgres::open(&url, true, &Entropy::from_os()).await.unwrap();
    // A connection that is opened once no standby is there waits for one before it can be used.
    let (other, _) = postgres::open(&url, true, &Entropy::from_os()).await.unwrap();
    let session = ledger.begin_session("w".into(), LEASE).await.unwrap();
    let now = ledger.now();
    let chains = ledger.enroll(vec![chain("a", now), chain("b", now), chain("c", now)]).await.unwrap();
    let granted = ledger.claim(claim(&chains[0], session)).await.unwrap();
    assert!(matches!(granted, Claim::Granted(_)), "{granted:?}");
    pair.call("kill", "standby", &[]).await;
    let operator = pair.client("primary").await;
    let cases = [("pg_cancel_backend", &ledger, &chains[1]), ("pg_terminate_backend", &other, &chains[2])];
    for (ends, ledger, enrolled) in cases {
        let (claims, request) = (ledger.clone(), claim(enrolled, session));
        let asked = tokio::spawn(async move { claims.claim(request).await });
        let waiting = "query = 'COMMIT' AND wait_event = 'SyncRep'";
        let ended = format!("SELECT count({ends}(pid)) FROM pg_stat_activity WHERE {waiting}");
        until("a commit waits, and its wait is ended", || async {
            operator.query_one(&ended, &[]).await.unwrap().get::<_, i64>(0) > 0
        })
        .await;
        let answer = timeout(SOON, asked).await.expect("it is answered").unwrap();
        let why = answer.map(drop).expect_err(ends).to_string();
        assert!(why.contains("whether it was written is not known"), "{ends}: {why}");
    }
    drop((ledger, other));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_promoted_and_its_broker_gets_the_messages_of_all_chains() {
    let (pair, vhost) = (Pair::start().await, Vhost::new().await);
    let config = pair.path("roundelay.toml");
    let text = format!(
        "[broker]\nurl = \"{}\"\n[ledger]\nurl = \"{}\"\n[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\n\
         handler.http.url = \"http://127.0.0.1:9/\"\n",
        vhost.amqp,
        pair.url("standby")
    );
    std::fs::write(&config, text).unwrap();
    refused("promote", &config, &[], &["there is no ledger"]).await;

    let (lax, _) =
        postgres::open(&Secret::new(pair.url("primary")), false, &Entropy::from_os()).await.expect("a primary");
    let now = lax.now();
    lax.enroll(vec![chain("due", now), chain("sleeps", now + Duration::from_secs(600))]).await.unwrap();
    refused("promote", &config, &[], &["knows no worker", "--force"]).await;
    let session = lax.begin_session("lax".into(), LEASE).await.unwrap();
    refused("promote", &config, &[], &["1 of its 1 workers", "(lax)", "--force"]).await;
    lax.end_session(session).await.unwrap();
    let (strict, _) = postgres::open(&Secret::new(pair.url("primary")), true, &Entropy::from_os()).await.unwrap();
    strict.begin_session("strict".into(), LEASE).await.unwrap();
    let doctor = run("doctor", &config, &[]).await;
    assert!(doctor.stdout.contains("this server is a standby"), "{doctor:?}");
    drop((lax, strict));

    pair.call("kill", "primary", &[]).await;
    let done = told("promote", &config, &[]).await;
    assert_eq!((&done["promoted"], &done["fenced"], &done["changed"]), (&json!(true), &json!(true), &json!(true)));
    assert_eq!((&done["sent"], &done["overdue"], &done["unsent"]), (&json!(2), &json!(1), &json!(0)), "{done}");
    let broker = RabbitBroker::connect(&vhost.amqp, Names::new("roundelay")).await.unwrap();
    until("the message of the chain that is due is there", || async { broker.depth("work").await.unwrap().ready == 1 })
        .await;
    let again = told("promote", &config, &[]).await;
    assert_eq!((&again["promoted"], &again["changed"], &again["sent"]), (&json!(false), &json!(false), &json!(0)));
    // What changed something is in the audit: neither what was refused, nor the command that found nothing to do.
    let (promoted, _) = postgres::open(&Secret::new(pair.url("standby")), false, &Entropy::from_os()).await.unwrap();
    let mut audit = promoted.audit(None, 10).await.unwrap();
    let entry = audit.pop().expect("the promotion").entry;
    assert_eq!((audit, entry.action.as_str(), entry.status), (Vec::new(), "roundelay promote", Some(200)));
    let detail: serde_json::Value = serde_json::from_str(&entry.detail).unwrap();
    assert_eq!((&detail["force"], &detail["promoted"], &detail["sent"]), (&json!(false), &json!(true), &json!(2)));
    assert!(entry.target.contains("127.0.0.1:") && !entry.target.contains('@'), "no password: {}", entry.target);
}
