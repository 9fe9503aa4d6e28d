//! TLS to the broker, with certificates that this test makes: who is refused and how that is said, and that all of
//! them can be renewed while a worker works.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use roundelay::broker::Broker;
use roundelay::broker::rabbit::certificates::Whose;
use roundelay::broker::rabbit::{Patience, RabbitBroker};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::commands::{ok, refused, run};
use crate::harness::{roundelay_with, until};
use crate::monitoring::{OF_TLS, Observed};
use crate::node::Node;

const DAY: Duration = Duration::from_secs(86_400);

/// An authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Writes `certificate.pem` and `key.pem` into `folder`: for `name` and for these hosts, valid for `days` days
    /// from now.
    fn certify(&self, folder: &Path, name: &str, hosts: &[&str], days: i64) {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        #[allow(clippy::disallowed_methods, reason = "certificates are of real time")]
        let now = SystemTime::now();
        params.not_before = (now - DAY * 40).into();
        let away = DAY * u32::try_from(days.abs()).unwrap();
        params.not_after = if days < 0 { now - away } else { now + away }.into();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::create_dir_all(folder).unwrap();
        // As one does who renews them: each is whole at any time.
        for (name, text) in [("certificate.pem", certificate.pem()), ("key.pem", key.serialize_pem())] {
            let fresh = folder.join("fresh");
            std::fs::write(&fresh, text).unwrap();
            std::fs::set_permissions(&fresh, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
            std::fs::rename(&fresh, folder.join(name)).unwrap();
        }
    }
}

/// A broker with TLS, and a worker's certificate.
struct Stage {
    // Dropped first: a node whose folder is gone cannot be ended.
    node: Node,
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Stage {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("the tests' authority");
        let server = folder.path().join("server");
        authority.certify(&server, "broker", &["127.0.0.1"], 300);
        for path in [server.join("ca.pem"), folder.path().join("ca.pem")] {
            std::fs::write(path, &authority.pem).unwrap();
        }
        let own = folder.path().join("own");
        authority.certify(&own, "worker", &[], 20);
        let node = Node::start(folder.path(), &["--tls", server.to_str().unwrap()]).await;
        Self { node, folder, authority }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self, user: &str) -> String {
        format!("amqps://{user}@127.0.0.1:{}/roundelay", self.node.env("AMQPS_PORT"))
    }

    fn config(&self, name: &str, url: &str, broker: &str) -> PathBuf {
        let path = self.path(name);
        let (own, folder) = (self.path("own"), self.folder.path().display());
        let text = format!(
            r#"
broker.url = "{url}"
broker.declare = false
broker.tls = {{ ca = "{folder}/ca.pem", certificate = "{own}/certificate.pem", key = "{own}/key.pem" }}
{broker}
ledger.url = "sqlite://{folder}/ledger.db"
[queues.work]
[kinds.sync]
queue = "work"
every = "500ms"
handler.exec = {{ argv = ["/bin/sh", "-c", "echo $ROUNDELAY_KEY >> {folder}/ran"], env = {{ PATH = "/usr/bin:/bin" }} }}
"#,
            own = own.display(),
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Renews the broker's certificate. Erlang keeps what it has read for minutes.
    async fn renew_broker(&self, days: i64) {
        self.authority.certify(&self.node.folder.join("tls"), "broker", &["127.0.0.1"], days);
        self.node.shell("rabbitmqctl eval 'ssl:clear_pem_cache().'").await;
    }

    async fn interrupt(&self) {
        self.node.shell("rabbitmqctl close_all_connections -p roundelay 'a test'").await;
    }
}

/// Whether a line of the log has all of `words` somewhere.
fn logged(worker: &Observed, words: &[&str]) -> bool {
    let log = worker.log.lock();
    log.iter().map(Value::to_string).any(|line| words.iter().all(|words| line.contains(words)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_accepted_or_refused_with_words_and_are_renewed_while_a_worker_runs() {
    let stage = Stage::new().await;
    let external = format!("{}?auth_mechanism=external", stage.url("worker"));
    let https = format!(
        "broker.management = \"https://monitor:m@127.0.0.1:{}\"",
        stage.node.env("RABBITMQ_MANAGEMENT_TLS_PORT")
    );
    let config = stage.config("roundelay.toml", &external, &https);

    // The worker has no password: its certificate is what it logs in with.
    let definitions = stage.path("definitions.json");
    let file = definitions.to_str().unwrap();
    let export =
        ["topology", "export", "--users", "--certificates", "worker,topology,publisher", "--output", file, "--config"];
    let export: Vec<&str> = export.into_iter().chain([config.to_str().unwrap()]).collect();
    let passwords = [("ROUNDELAY_PASSWORD_MONITOR", "m"), ("ROUNDELAY_PASSWORD_OPERATOR", "o")];
    let exported = roundelay_with(&passwords, &export).await;
    assert!(exported.ok, "{exported:?}");
    let target = stage.node.folder.join("definitions.json");
    std::fs::copy(&definitions, &target).unwrap();
    std::fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let inside = stage.node.inside("definitions.json");
    stage.node.shell(&format!("rabbitmqctl import_definitions '{inside}'")).await;
    assert_eq!(ok("topology check", &config, &[]).await, "nothing is wrong\n", "by https, too");

    // Whom the worker does not trust, and who does not trust the worker.
    let other = Authority::new("another authority");
    std::fs::write(stage.path("other.pem"), &other.pem).unwrap();
    let changed = |name: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(&config).unwrap();
        assert!(text.contains(from), "{from}");
        let path = stage.path(name);
        std::fs::write(&path, text.replace(from, to)).unwrap();
        path
    };
    let wrong_authority = changed("authority.toml", "/ca.pem", "/other.pem");
    refused("topology check", &wrong_authority, &[], &["amqps://127.0.0.1", "UnknownIssuer"]).await;
    let wrong_host = changed("host.toml", "worker@127.0.0.1", "worker@localhost");
    refused("topology check", &wrong_host, &[], &["amqps://localhost", "not valid for name"]).await;
    let absent = changed("absent.toml", "own/key.pem", "own/absent.pem");
    refused("topology check", &absent, &[], &["absent.pem cannot be read: No such file"]).await;
    other.certify(&stage.path("foreign"), "worker", &[], 20);
    let foreign = changed("foreign.toml", "/own/", "/foreign/");
    refused("topology check", &foreign, &[], &["cannot connect to amqps://127.0.0.1"]).await;
    stage.authority.certify(&stage.path("ended"), "worker", &[], -2);
    let ended = changed("ended.toml", "/own/", "/ended/");
    refused("topology check", &ended, &[], &["our own certificate has ended: renew broker.tls.certificate"]).await;
    stage.authority.certify(&stage.path("nobody"), "nobody", &[], 20);
    let nobody = changed("nobody.toml", "/own/", "/nobody/");
    refused("topology check", &nobody, &[], &["ACCESS_REFUSED"]).await;
    stage.renew_broker(-2).await;
    refused("topology check", &config, &[], &["amqps://127.0.0.1", "certificate expired"]).await;
    stage.renew_broker(5).await;

    // Both end soon, which the worker says; then all are renewed while it works.
    let roster = stage.path("roster.csv");
    std::fs::write(&roster, "key\na\n").unwrap();
    ok("enroll", &config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await;
    let doctor = run("doctor", &config, &["--within", "50s", "--json"]).await.json();
    let found = |result: &str, seen: &str| {
        let findings = doctor["findings"].as_array().unwrap();
        findings.iter().any(|f| f["result"] == result && f["seen"].as_str().unwrap().starts_with(seen))
    };
    assert!(found("warning", "our own certificate for the broker ends at"), "{doctor:#}");
    assert!(found("bad", "the broker's certificate ends at"), "{doctor:#}");
    let worker = Observed::start(&config).await;
    let runs = || std::fs::read_to_string(stage.path("ran")).unwrap_or_default().lines().count();
    until("it works", || async { runs() > 1 }).await;
    assert!(logged(&worker, &["WARN", "our own certificate for the broker ends within 30 days"]));
    assert!(logged(&worker, &["ERROR", "the broker's certificate ends within 7 days"]));
    let ends = async |whose: &str| {
        let name = format!("roundelay_broker_certificate_expiry_timestamp_seconds{{whose=\"{whose}\"}}");
        worker.metrics().await.get(&name)
    };
    assert!(worker.metrics().await.names.contains(OF_TLS));
    let (own, broker) = (ends("own").await, ends("broker").await);
    assert!((own - broker - 15.0 * 86_400.0).abs() < 600.0, "{own} {broker}");

    // What the broker shows is seen while connections go on.
    let settings = roundelay::Config::load(&config).unwrap().broker;
    let patience = Patience { certificate: Duration::from_millis(200), ..Patience::default() };
    let watching = RabbitBroker::open_with(&settings, patience).await.unwrap();
    let shown = || watching.certificates().iter().find(|known| known.whose == Whose::Broker).map(|known| known.ends);
    let before = shown().unwrap();
    stage.renew_broker(40).await;
    until("the renewed one is known", || async { shown().unwrap().since(before) > 34 * DAY }).await;
    assert_eq!(watching.unavailable(), None);
    watching.close().await;
    drop(watching);

    // Files that cannot be used keep it trying, and it says which.
    std::fs::write(stage.path("own/key.pem"), "nothing").unwrap();
    stage.interrupt().await;
    until("it says so", || async { logged(&worker, &["failed to reconnect", "own/key.pem", "no private key"]) }).await;
    stage.renew_broker(200).await;
    stage.authority.certify(&stage.path("own"), "worker", &[], 100);
    until("it is back", || async { worker.metrics().await.get("roundelay_broker_up") == 1.0 }).await;
    let before = runs();
    until("it goes on", || async { runs() > before + 1 }).await;
    let (own_now, broker_now) = (ends("own").await, ends("broker").await);
    assert!((own_now - own - 80.0 * 86_400.0).abs() < 600.0, "{own} {own_now}");
    assert!((broker_now - broker - 195.0 * 86_400.0).abs() < 600.0, "{broker} {broker_now}");
}

/// What a client offers is in its first words: the versions of TLS, newest first.
#[tokio::test]
async fn the_oldest_tls_that_is_offered_is_1_2() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("the tests' authority");
    std::fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
    let config = folder.path().join("roundelay.toml");
    let text = format!(
        "broker.url = \"amqps://127.0.0.1:{}\"\nbroker.tls.ca = \"{}/ca.pem\"\nledger.url = \"sqlite://:memory:\"\n",
        listener.local_addr().unwrap().port(),
        folder.path().display()
    );
    std::fs::write(&config, text).unwrap();
    let hello = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut header = [0; 5];
        stream.read_exact(&mut header).await.unwrap();
        assert_eq!(header[0], 22, "a handshake");
        let mut hello = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
        stream.read_exact(&mut hello).await.unwrap();
        // The server answers no more, so that the command ends.
        drop(stream);
        drop(listener);
        hello
    };
    let (hello, checked) = tokio::join!(hello, run("topology check", &config, &[]));
    assert!(!checked.ok);
    // The extension supported_versions: its number, its length, and a list of 1.3 and 1.2 and no more.
    let versions = [0, 43, 0, 5, 4, 3, 4, 3, 3];
    assert!(hello.windows(versions.len()).any(|window| window == versions), "{hello:?}");
}
