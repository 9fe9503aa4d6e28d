//! Users with no more rights than they need, on a real broker: what each must do works, and everything else is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ErrorKind, ExchangeKind};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode};
use roundelay::broker::rabbit::users::password_hash;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::commands::{ok, refused, run, told};
use crate::harness::{Ground, Output, api, roundelay_with, until};
use crate::monitoring::Observed;
use crate::node::Node;

/// Passwords with all that shells and URLs make something else of.
const PASSWORDS: [(&str, &str); 5] = [
    ("topology", "t o'p$(x)"),
    ("publisher", "p%40\"b"),
    ("worker", "w/ö?#&"),
    ("monitor", "m:@\\n!"),
    ("operator", "o;|`'x"),
];

/// The tests' own configuration, whose worker declares nothing.
fn config(folder: &Path, broker: &str, management: &str) -> PathBuf {
    let (path, ran) = (folder.join("roundelay.toml"), folder.join("ran"));
    let text = format!(
        r#"
broker.url = "{broker}"
broker.management = "{management}"
broker.declare = false
ledger.url = "sqlite://{folder}/ledger.db"
catch_up = {{ every = "1s", slack = "2s", spread = "1s" }}
[queues.work]
lanes = 2
[kinds.sync]
queue = "work"
every = "1700ms"
jitter = "300ms"
retry = {{ attempts = 2, backoff = ["200ms"] }}
handler.exec = {{ argv = ["/bin/sh", "-c", "echo $ROUNDELAY_KEY $ROUNDELAY_ATTEMPT >> {ran}; test $ROUNDELAY_ATTEMPT != 1"], env = {{ PATH = "/usr/bin:/bin" }} }}
"#,
        folder = folder.display(),
        ran = ran.display(),
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// As it stands in a URL. The crate `url` would leave a `%` as it is.
fn password(user: &str) -> String {
    let password = PASSWORDS.iter().find(|(name, _)| *name == user).unwrap().1;
    utf8_percent_encode(password, NON_ALPHANUMERIC).to_string()
}

fn amqp(user: &str, port: u16, vhost: &str) -> String {
    format!("amqp://{user}:{}@127.0.0.1:{port}/{vhost}", password(user))
}

fn management(user: &str, base: &str) -> String {
    let mut url = url::Url::parse(base).unwrap();
    url.set_username(user).unwrap();
    url.set_password(Some(&password(user))).unwrap();
    url.as_str().trim_end_matches('/').to_owned()
}

/// What a user tries on the broker.
#[derive(Clone, Copy, Debug)]
enum Act {
    Publish(&'static str),
    Consume(&'static str),
    Get(&'static str),
    Purge(&'static str),
    Bind(&'static str, &'static str),
    /// Declares it passively: whether it exists, and how full it is.
    Ask(&'static str),
    DeclareQueue(&'static str),
    DeclareExchange(&'static str),
    DeleteQueue(&'static str),
    DeleteExchange(&'static str),
}

impl Act {
    async fn on(self, channel: &Channel) -> lapin::Result<()> {
        let none = FieldTable::default;
        match self {
            Self::Publish(exchange) => {
                channel.confirm_select(ConfirmSelectOptions::default()).await?;
                let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
                let sent = channel.basic_publish(exchange.into(), "nowhere".into(), options, b"x", properties).await?;
                sent.await.map(drop)
            }
            Self::Consume(queue) => {
                let consumer =
                    channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), none()).await?;
                channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await
            }
            // What was got goes back when the channel is closed.
            Self::Get(queue) => channel.basic_get(queue.into(), BasicGetOptions::default()).await.map(drop),
            Self::Purge(queue) => channel.queue_purge(queue.into(), QueuePurgeOptions::default()).await.map(drop),
            Self::Bind(queue, exchange) => {
                let options = QueueBindOptions::default();
                channel.queue_bind(queue.into(), exchange.into(), "k".into(), options, none()).await
            }
            Self::Ask(queue) => {
                let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
                channel.queue_declare(queue.into(), options, none()).await.map(drop)
            }
            Self::DeclareQueue(queue) => {
                let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
                channel.queue_declare(queue.into(), options, none()).await.map(drop)
            }
            Self::DeclareExchange(exchange) => {
                let options = ExchangeDeclareOptions::default();
                channel.exchange_declare(exchange.into(), ExchangeKind::Fanout, options, none()).await
            }
            Self::DeleteQueue(queue) => {
                channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.map(drop)
            }
            Self::DeleteExchange(exchange) => {
                channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await
            }
        }
    }

    /// Whether the broker lets this connection do it.
    async fn is_allowed(self, connection: &Connection) -> bool {
        let channel = connection.create_channel().await.unwrap();
        match self.on(&channel).await {
            Ok(()) => {
                channel.close(200, "tried".into()).await.unwrap();
                true
            }
            Err(error) => match error.kind() {
                ErrorKind::ProtocolError(amqp) if amqp.get_id() == 403 => false,
                _ => panic!("{self:?}: {error}"),
            },
        }
    }
}

async fn tries(url: &str, table: &[(bool, Act)]) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    for (allowed, act) in table {
        assert_eq!(act.is_allowed(&connection).await, *allowed, "{url}: {act:?}");
    }
    connection.close(200, "tried".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_users_do_what_they_are_for_and_nothing_else() {
    use Act::{Ask, Bind, Consume, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Get, Publish, Purge};
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), &[]).await;
    let (port, base) = (node.port(), node.env("RABBITMQ_MANAGEMENT_URL"));
    let config = config(folder.path(), &amqp("worker", port, "roundelay"), &management("monitor", &base));
    let passwords = folder.path().join("pass words");
    std::fs::create_dir(&passwords).unwrap();
    for (user, password) in PASSWORDS {
        std::fs::write(passwords.join(user), format!("{password}\n")).unwrap();
    }
    let passwords = passwords.to_str().unwrap();

    // Without the users themselves, it is what is imported with them.
    let permissions = ok("topology users", &config, &["--definitions"]).await;
    let permissions: Value = serde_json::from_str(&permissions).unwrap();
    let all = ok("topology export", &config, &["--users", "--passwords", passwords, "--output", "-"]).await;
    let all: Value = serde_json::from_str(&all).unwrap();
    for part in ["vhosts", "permissions"] {
        assert_eq!(permissions[part], all[part], "{part}");
    }
    assert_eq!(permissions.as_object().unwrap().len(), 2, "{permissions}");

    // Virtual host, users and topology on a fresh broker, by commands.
    let commands = ok("topology users", &config, &["--commands", "--passwords", passwords]).await;
    assert!(PASSWORDS.iter().all(|(_, password)| !commands.contains(password)), "{commands}");
    node.shell(&commands).await;
    let topology = amqp("topology", port, "roundelay");
    let applied = roundelay_with(
        &[("ROUNDELAY__BROKER__URL", &topology)],
        &["topology", "apply", "--config", config.to_str().unwrap()],
    )
    .await;
    assert!(applied.ok, "{applied:?}");
    assert_eq!(ok("topology check", &config, &[]).await, "nothing is wrong\n", "and nothing was left out");

    // A queue and an exchange of another user's, in the same virtual host.
    let guest = node.env("AMQP_URL").replace("%2f", "roundelay");
    node.shell("rabbitmqctl set_permissions -p roundelay guest '.*' '.*' '.*'").await;
    tries(&guest, &[(true, DeclareQueue("theirs")), (true, DeclareExchange("theirs"))]).await;

    tries(
        &topology,
        &[
            (true, DeclareQueue("roundelay.delay.999h")),
            (true, DeleteQueue("roundelay.delay.999h")),
            (true, DeclareExchange("roundelay.delay.999h")),
            (true, DeleteExchange("roundelay.delay.999h")),
            // RabbitMQ cannot keep these from a user that declares that rungs lead to `jobs`, and binds to rungs.
            (true, Publish("roundelay.jobs")),
            (true, Get("roundelay.delay.5s")),
            (false, Consume("work")),
            (false, Consume("roundelay.lane.1.work")),
            (false, Get("roundelay.rearm")),
            (false, Get("roundelay.quarantine")),
            (false, Get("roundelay.chores")),
            (false, Purge("work")),
            (false, Publish("")),
            (false, DeclareQueue("theirs")),
            (false, DeleteQueue("theirs")),
            (false, DeclareQueue("roundelay.other")),
        ],
    )
    .await;
    tries(
        &amqp("publisher", port, "roundelay"),
        &[
            (true, Publish("roundelay.jobs")),
            (true, Publish("roundelay.delay.5s")),
            (true, Ask("work")),
            (false, Publish("")),
            (false, Publish("roundelay.unrouted")),
            (false, Publish("theirs")),
            (false, Consume("work")),
            (false, Get("work")),
            (false, Get("roundelay.quarantine")),
            (false, Get("roundelay.delay.5s")),
            (false, Purge("work")),
            (false, Bind("work", "roundelay.jobs")),
            (false, Bind("work", "theirs")),
            (false, Bind("work", "amq.fanout")),
            (false, Bind("roundelay.delay.5s", "roundelay.jobs")),
            (false, DeclareQueue("mine")),
            (false, DeclareExchange("mine")),
            (false, DeleteQueue("work")),
        ],
    )
    .await;
    tries(
        &amqp("worker", port, "roundelay"),
        &[
            (true, Publish("roundelay.jobs")),
            (true, Publish("roundelay.delay.5s")),
            (true, Consume("work")),
            (true, Consume("roundelay.lane.1.work")),
            (true, Get("roundelay.quarantine")),
            (false, Publish("")),
            (false, Publish("theirs")),
            (false, Publish("roundelay.unrouted")),
            (false, Consume("theirs")),
            (false, Consume("roundelay.delay.5s")),
            (false, Purge("theirs")),
            (false, Bind("work", "roundelay.jobs")),
            (false, DeclareQueue("work")),
            (false, DeclareQueue("mine")),
            (false, DeclareExchange("roundelay.jobs")),
            (false, DeleteQueue("work")),
            (false, DeleteQueue("theirs")),
            (false, DeleteExchange("roundelay.jobs")),
        ],
    )
    .await;
    tries(
        &amqp("monitor", port, "roundelay"),
        &[(false, Publish("roundelay.jobs")), (false, Consume("work")), (false, DeclareQueue("mine"))],
    )
    .await;

    tries(
        &amqp("operator", port, "roundelay"),
        &[
            (true, Get("roundelay.quarantine")),
            (true, Get("roundelay.unrouted")),
            (true, Publish("roundelay.jobs")),
            (false, Publish("")),
            (false, Publish("roundelay.delay.5s")),
            (false, Publish("roundelay.unrouted")),
            (false, Get("work")),
            (false, Get("roundelay.lane.1.work")),
            (false, Get("roundelay.rearm")),
            (false, Purge("work")),
            (false, Bind("work", "roundelay.jobs")),
            (false, DeclareQueue("mine")),
            (false, DeclareQueue("work")),
            (false, DeleteQueue("work")),
            (false, DeleteQueue("roundelay.quarantine")),
            (false, DeleteExchange("roundelay.jobs")),
        ],
    )
    .await;
    operates(&management("operator", &base), &amqp("publisher", port, "roundelay")).await;

    // The management API: only the monitor and the operator come in, and the monitor changes nothing.
    let monitor = management("monitor", &base);
    for (method, path, body) in [
        (Method::PUT, "queues/roundelay/mine", json!({})),
        (Method::DELETE, "queues/roundelay/work", json!(null)),
        (Method::DELETE, "queues/roundelay/work/contents", json!(null)),
        (Method::PUT, "policies/roundelay/mine", json!({ "pattern": ".*", "definition": { "expires": 1 } })),
        (
            Method::POST,
            "queues/roundelay/work/get",
            json!({ "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto" }),
        ),
        (Method::PUT, "users/mine", json!({ "password": "x", "tags": "administrator" })),
        (Method::GET, "definitions", json!(null)),
    ] {
        let (status, _) = api(&monitor, method.clone(), path, &body).await;
        assert!([StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status), "{method} {path}: {status}");
    }
    for user in ["topology", "publisher", "worker"] {
        let (status, _) = api(&management(user, &base), Method::GET, "overview", &json!(null)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{user}");
    }

    works_fully(folder.path(), &config, port).await;

    // The same on a broker that imports it when it boots, and knows neither virtual host nor users.
    node.shell(
        "rabbitmqctl delete_vhost roundelay\n\
         for user in topology publisher worker monitor operator; do rabbitmqctl delete_user $user; done",
    )
    .await;
    let definitions = node.folder.join("definitions.json");
    let file = definitions.to_str().unwrap();
    ok("topology export", &config, &["--users", "--passwords", passwords, "--output", file]).await;
    let text = std::fs::read_to_string(&definitions).unwrap();
    assert!(PASSWORDS.iter().all(|(_, password)| !text.contains(password)));
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&definitions).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&definitions, std::fs::Permissions::from_mode(0o644)).unwrap();
    let inside = node.inside("definitions.json");
    let conf = node.folder.join("etc/rabbitmq.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, format!("{text}load_definitions = {inside}\n")).unwrap();
    node.call("restart", &[]).await;
    until("it is imported", || async {
        let check = run("topology check", &config, &[]).await;
        check.ok && check.stdout == "nothing is wrong\n"
    })
    .await;
    tries(&amqp("worker", port, "roundelay"), &[(true, Consume("work")), (false, DeleteQueue("work"))]).await;
}

/// What the runbooks ask of a person, as the management UI does it: look at what is in quarantine, take it, publish it
/// back. The UI's buttons are these requests.
async fn operates(operator: &str, publisher: &str) {
    let connection = Connection::connect(publisher, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let to = "roundelay.quarantine";
    let sent = channel.basic_publish("roundelay.jobs".into(), to.into(), options, b"kept", properties).await.unwrap();
    sent.await.unwrap();
    let get = async |queue: &str, mode: &str| {
        let body = json!({ "count": 1, "ackmode": mode, "encoding": "auto" });
        api(operator, Method::POST, &format!("queues/roundelay/{queue}/get"), &body).await
    };
    for mode in ["ack_requeue_true", "ack_requeue_false"] {
        let (status, got) = get("roundelay.quarantine", mode).await;
        assert_eq!((status, &got[0]["payload"]), (StatusCode::OK, &json!("kept")), "{mode}: {got}");
    }
    let (_, empty) = get("roundelay.quarantine", "ack_requeue_true").await;
    assert_eq!(empty, json!([]), "it was taken");
    let back = async |exchange: &str, key: &str| {
        let path = format!("exchanges/roundelay/{exchange}/publish");
        let body = json!({ "properties": {}, "routing_key": key, "payload": "back", "payload_encoding": "string" });
        api(operator, Method::POST, &path, &body).await
    };
    let (status, answer) = back("roundelay.jobs", "roundelay.quarantine").await;
    assert_eq!((status, answer), (StatusCode::OK, json!({ "routed": true })));
    let (status, got) = get("roundelay.quarantine", "ack_requeue_false").await;
    assert_eq!((status, &got[0]["payload"]), (StatusCode::OK, &json!("back")), "{got}");

    assert_ne!(get("work", "ack_requeue_true").await.0, StatusCode::OK);
    assert_ne!(back("amq.default", "work").await.0, StatusCode::OK);
    for (method, path, body) in [
        (Method::PUT, "queues/roundelay/mine", json!({})),
        (Method::DELETE, "queues/roundelay/work", json!(null)),
        (Method::DELETE, "queues/roundelay/work/contents", json!(null)),
        (Method::DELETE, "exchanges/roundelay/roundelay.jobs", json!(null)),
        (Method::PUT, "policies/roundelay/mine", json!({ "pattern": ".*", "definition": { "expires": 1 } })),
        (Method::PUT, "users/mine", json!({ "password": "x", "tags": "administrator" })),
    ] {
        let (status, _) = api(operator, method.clone(), path, &body).await;
        assert!(!status.is_success(), "{method} {path}: {status}");
    }
}

/// A worker with the user `worker` does everything that workers do.
async fn works_fully(folder: &Path, config: &Path, port: u16) {
    use Act::Get;
    let roster = folder.join("roster.csv");
    std::fs::write(&roster, "key\na\nb\n").unwrap();
    let ran = || std::fs::read_to_string(folder.join("ran")).unwrap_or_default();
    let times = |line: &str| ran().lines().filter(|ran| *ran == line).count();
    let worker = Observed::start(config).await;
    ok("enroll", config, &["--kind", "sync", "--spread", "0s", roster.to_str().unwrap()]).await;
    until("chains fail, are tried again, and go on", || async {
        ["a", "b"].iter().all(|key| times(&format!("{key} 2")) >= 2)
    })
    .await;
    ok("publish", config, &["sync", "later", "--delay", "2345ms"]).await;
    until("a job slept over several rungs", || async {
        times("later 2") == 1 && worker.metrics().await.get("roundelay_rearms_total") > 0.0
    })
    .await;

    // What cannot be used goes to the quarantine, from where its user may fetch it.
    let publisher = Connection::connect(&amqp("publisher", port, "roundelay"), ConnectionProperties::default()).await;
    let publisher = publisher.unwrap();
    let channel = publisher.create_channel().await.unwrap();
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    channel.basic_publish("roundelay.jobs".into(), "work".into(), options, b"no job", properties).await.unwrap();
    let in_quarantine =
        async || told("status", config, &[]).await["broker"]["roundelay.quarantine"]["ready"] == json!(1);
    until("it is in quarantine", in_quarantine).await;
    tries(&amqp("worker", port, "roundelay"), &[(true, Get("roundelay.quarantine"))]).await;
    assert_eq!(worker.metrics().await.get("roundelay_quarantined_messages_total"), 1.0);

    // One that is killed is replaced by another.
    drop(worker);
    let before = times("a 2");
    let worker = Observed::start(config).await;
    until("another goes on", || async { times("a 2") > before + 1 }).await;
    let doctor = run("doctor", config, &["--within", "50s", "--json"]).await.json();
    let broker = doctor["findings"].as_array().unwrap().iter().filter(|finding| finding["area"] == "broker");
    let wrong: Vec<&Value> = broker.filter(|finding| finding["result"] == "bad").collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    drop(worker);
}

/// The secrets of a Compose project, with the addresses that RabbitMQ and the ledger have here.
struct Secrets {
    folder: PathBuf,
    variables: [(&'static str, String); 3],
}

impl Secrets {
    /// As docker-compose.yml hands them to a service that is this user.
    fn of(folder: &Path, user: &str) -> Self {
        let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let variables = [
            ("ROUNDELAY__BROKER__URL_FILE", file(&format!("{user}-url"))),
            ("ROUNDELAY__BROKER__MANAGEMENT_FILE", file("management-url")),
            ("ROUNDELAY__LEDGER__URL_FILE", file("ledger-url")),
        ];
        Self { folder: folder.into(), variables }
    }

    fn variables(&self) -> [(&'static str, &str); 3] {
        self.variables.each_ref().map(|(name, file)| (*name, file.as_str()))
    }

    fn url(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap().trim().to_owned()
    }

    /// A command, with what the service has.
    async fn run(&self, verb: &str, rest: &[&str]) -> Output {
        let config = self.folder.with_file_name("roundelay.toml");
        let mut arguments: Vec<&str> = verb.split(' ').collect();
        arguments.extend(["--config", config.to_str().unwrap()]);
        roundelay_with(&self.variables(), &[&arguments, rest].concat()).await
    }
}

/// A file of the project, as docker-compose.yml mounts it.
fn compose_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// New secrets in `folder`, which lead to this node and to a ledger beside them.
async fn new_secrets(folder: &Path, node: &Node) {
    let script = compose_file("deploy/compose/new-secrets");
    let written = Command::new(script).arg(folder).stdin(Stdio::null()).output().await.unwrap();
    assert!(written.status.success(), "{written:?}");
    let management = url::Url::parse(&node.env("RABBITMQ_MANAGEMENT_URL")).unwrap().port().unwrap();
    for name in ["topology-url", "worker-url", "publisher-url", "management-url"] {
        let url = std::fs::read_to_string(folder.join(name)).unwrap();
        let url = url.replace("rabbitmq:5672", &format!("127.0.0.1:{}", node.port()));
        let url = url.replace("rabbitmq:15672", &format!("127.0.0.1:{management}"));
        assert!(url.contains("@127.0.0.1:"), "{url}");
        std::fs::write(folder.join(name), url).unwrap();
    }
    std::fs::write(folder.join("ledger-url"), format!("sqlite://{}/../ledger.db\n", folder.display())).unwrap();
}

/// What a folder has: the path of each file below it, its mode, and what it says.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u32, String)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(Result::unwrap) {
            let (path, data) = (entry.path(), entry.metadata().unwrap());
            if data.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            all.insert(path.strip_prefix(folder).unwrap().to_owned(), (data.mode() & 0o777, text));
        }
    }
    all
}

#[tokio::test]
async fn the_compose_file_s_passwords_are_made_once_and_each_service_gets_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let services = ["topology", "workers", "tokens", "publishers", "examples", "rabbitmq", "postgres", "grafana"];
    for name in services.map(|name| format!("for/{name}")).into_iter().chain(["kept".into(), "given".into()]) {
        std::fs::create_dir_all(at(&name)).unwrap();
    }
    let give = async || {
        let script = compose_file("deploy/compose/give-secrets");
        let arguments = [at("kept"), at("given"), at("for")];
        let done = Command::new(script).args(arguments).stdin(Stdio::null()).output().await.unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    // A start that was broken off has left a part.
    std::fs::create_dir(at("kept/making")).unwrap();
    std::fs::write(at("kept/making/worker-url"), "half").unwrap();
    assert!(give().await.contains("made passwords"));
    let (kept, first) = (files(&at("kept")), files(&at("for")));
    assert!(kept.keys().all(|path| path.starts_with("made")) && kept.values().all(|(mode, _)| *mode == 0o600));
    assert_eq!(std::fs::metadata(at("kept/made")).unwrap().mode() & 0o777, 0o700);
    let made = |name: &str| kept[Path::new("made").join(name).as_path()].1.clone();
    let expected = [
        ("topology/broker-url", "topology-url"),
        ("topology/management-url", "management-url"),
        ("topology/ledger-url", "ledger-url"),
        ("workers/broker-url", "worker-url"),
        ("workers/management-url", "management-url"),
        ("workers/ledger-url", "ledger-url"),
        ("tokens/ledger-url", "ledger-url"),
        ("publishers/publisher-url", "publisher-url"),
        ("examples/broker-url", "examples-url"),
        ("rabbitmq/10-users.json", "users.json"),
        ("postgres/postgres-password", "postgres-password"),
        ("grafana/grafana-password", "grafana-password"),
    ];
    let given: BTreeMap<PathBuf, (u32, String)> =
        expected.iter().map(|(path, name)| (path.into(), (0o444, made(name)))).collect();
    assert_eq!(first, given, "to nobody more than that");
    let password = |url: String| url::Url::parse(url.trim()).unwrap().password().unwrap().to_owned();
    let all: BTreeSet<String> = ["topology-url", "worker-url", "publisher-url", "examples-url", "management-url"]
        .map(|name| password(made(name)))
        .into_iter()
        .chain(["operator-password", "postgres-password", "grafana-password"].map(|name| made(name).trim().to_owned()))
        .collect();
    assert!(all.len() == 8 && all.iter().all(|word| word.len() == 32), "each is another: {all:?}");
    assert_eq!(password(made("ledger-url")), made("postgres-password").trim());
    // They are the same at every start.
    assert!(!give().await.contains("made"));
    assert_eq!((files(&at("kept")), files(&at("for"))), (kept, first.clone()));
    // The first secrets stay until an operator makes others in a separate folder.
    std::fs::remove_dir(at("given")).unwrap();
    let script = compose_file("deploy/compose/new-secrets");
    assert!(Command::new(script).arg(at("given")).output().await.unwrap().status.success());
    give().await;
    let theirs = files(&at("for"));
    assert!(theirs.keys().eq(first.keys()) && theirs.iter().all(|(path, file)| first[path] != *file));
    assert_eq!(theirs[Path::new("workers/broker-url")].1, files(&at("given"))[Path::new("worker-url")].1);
    // What is checked in is no password.
    let pattern = "(amqp|postgres)://[^/:@]+:[A-Za-z0-9]+@";
    let known =
        Command::new("grep").args(["-rlE", pattern]).arg(compose_file("deploy/compose")).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&known.stdout), "");
}

/// docker-compose.yml without Docker: RabbitMQ boots for the first time with what is mounted there, and the real
/// program does with the secrets of each service what the service does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_compose_file_s_users_are_there_when_its_broker_boots_and_are_enough_for_its_services() {
    use Act::{Ask, Bind, Consume, DeclareQueue, Get, Publish};
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), &[]).await;
    node.call("stop", &[]).await;
    std::fs::remove_dir_all(node.folder.join("data")).unwrap();
    std::fs::create_dir(node.folder.join("data")).unwrap();
    let first = folder.path().join("first");
    new_secrets(&first, &node).await;
    let definitions = node.folder.join("definitions");
    std::fs::create_dir(&definitions).unwrap();
    // As the service `secrets` gives them to the broker, whose user is another.
    let give = |folder: &Path| {
        let given = definitions.join("10-users.json");
        std::fs::copy(folder.join("users.json"), &given).unwrap();
        std::fs::set_permissions(given, std::fs::Permissions::from_mode(0o444)).unwrap();
    };
    give(&first);
    for (mounted, from) in [("20-permissions.json", "permissions.json"), ("30-examples.json", "examples.json")] {
        std::fs::copy(compose_file("deploy/compose").join(from), definitions.join(mounted)).unwrap();
    }
    // The script that starts the node checks with this user whether the node is up.
    let guest = json!({ "users": [{ "name": "guest", "password_hash": password_hash("guest", [1, 2, 3, 4]),
        "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ["administrator"] }] });
    std::fs::write(definitions.join("00-guest.json"), guest.to_string()).unwrap();
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let conf = node.folder.join("etc/rabbitmq.conf");
    let ours = ["rabbitmq/rabbitmq.conf", "deploy/compose/definitions.conf"].map(|path| text(&compose_file(path)));
    let ours = ours.concat().replace("/etc/rabbitmq/definitions\n", &format!("{}\n", node.inside("definitions")));
    std::fs::write(&conf, format!("{}{ours}default_user = nobody\n", text(&conf))).unwrap();
    node.call("start", &[]).await;
    let guest = node.env("RABBITMQ_MANAGEMENT_URL");
    let (_, users) = api(&guest, Method::GET, "users?columns=name", &json!(null)).await;
    let mut users: Vec<&str> = users.as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap()).collect();
    users.sort();
    assert_eq!(
        users,
        ["examples", "guest", "monitor", "operator", "publisher", "topology", "worker"],
        "and no user that RabbitMQ makes itself"
    );

    // The handler and the roster that are mounted, where they are here.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = folder.path().join("ran");
    let _handler = Command::new("python3")
        .arg(compose_file("deploy/compose/handler.py"))
        .arg(free.to_string())
        .stdout(std::fs::File::create(&ran).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let config = text(&compose_file("deploy/compose/roundelay.toml"));
    let config = config.replace("http://handler:8000", &format!("http://{free}"));
    let config = config.replace("/etc/roundelay/apps.csv", compose_file("deploy/compose/apps.csv").to_str().unwrap());
    let config = (folder.path().join("roundelay.toml"), config);
    std::fs::write(&config.0, config.1).unwrap();
    let config = config.0;

    // The services: the worker waits for the topology, which only its own user may declare.
    let [topology, worker, publisher] = ["topology", "worker", "publisher"].map(|user| Secrets::of(&first, user));
    let early = worker.run("worker", &["--queues", "sync-ios", "--listen", "127.0.0.1:0"]).await;
    assert!(!early.ok && early.stderr.contains("broker.declare is false"), "{early:?}");
    let not_theirs = worker.run("topology apply", &[]).await;
    assert!(!not_theirs.ok && not_theirs.stderr.contains("ACCESS_REFUSED"), "{not_theirs:?}");
    let applied = topology.run("topology apply", &[]).await;
    assert!(applied.ok, "{applied:?}");
    let check = worker.run("topology check", &[]).await;
    assert_eq!((check.ok, check.stdout.as_str()), (true, "nothing is wrong\n"), "{check:?}");

    let running = Observed::start_in(&config, &["--queues", "sync-ios"], &worker.variables()).await;
    until("the roster's chains run by themselves", async || text(&ran).contains(", tick 1, attempt 1")).await;
    until("their ends are counted", async || {
        let done = "roundelay_attempts_total{kind=\"sync-app\",verdict=\"done\",reason=\"none\"}";
        running.metrics().await.get(done) >= 1.0
    })
    .await;

    // A program that publishes, as the examples do: it asks for the queue first.
    let url = publisher.url("publisher-url");
    tries(&url, &[(true, Ask("sync-ios")), (true, Ask("sync-android"))]).await;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    for n in 0..10 {
        let body = json!({ "v": 1, "kind": "sync-app", "key": "ios/news", "id": format!("order-{n}"), "payload": {} });
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let body = body.to_string();
        channel
            .basic_publish("roundelay.jobs".into(), "sync-ios".into(), options, body.as_bytes(), properties)
            .await
            .unwrap();
    }
    until("what was published runs", async || text(&ran).matches("synced ios/news, once").count() == 10).await;

    // The status and the doctor's look at the broker go by `monitor`.
    let status = worker.run("status", &["--json"]).await;
    assert!(status.ok, "{status:?}");
    assert_eq!(status.json()["broker"]["sync-ios"]["consumers"], json!(1));
    let monitor = publisher.url("management-url");
    let (seen, _) = api(&monitor, Method::GET, "queues/roundelay/sync-ios", &json!(null)).await;
    assert_eq!(seen, StatusCode::OK);
    let (purged, _) = api(&monitor, Method::DELETE, "queues/roundelay/sync-ios/contents", &json!(null)).await;
    assert!([StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&purged), "{purged}");

    let bind = Bind("sync-ios", "roundelay.jobs");
    let refused = [
        (&topology, "topology-url", [Consume("sync-ios"), Get("roundelay.quarantine"), DeclareQueue("theirs")]),
        (&worker, "worker-url", [DeclareQueue("sync-ios"), bind, Publish("roundelay.unrouted")]),
        (&publisher, "publisher-url", [Consume("sync-ios"), bind, DeclareQueue("mine")]),
    ];
    for (secrets, name, acts) in refused {
        tries(&secrets.url(name), &acts.map(|act| (false, act))).await;
    }
    drop(running);

    // Other passwords hold as soon as it boots again with them.
    let second = folder.path().join("second");
    new_secrets(&second, &node).await;
    give(&second);
    node.call("restart", &[]).await;
    assert!(Connection::connect(&worker.url("worker-url"), ConnectionProperties::default()).await.is_err());
    node.shell(&format!("rabbitmqctl import_definitions {}", node.inside("definitions/20-permissions.json"))).await;
    let check = Secrets::of(&second, "worker").run("topology check", &[]).await;
    assert_eq!((check.ok, check.stdout.as_str()), (true, "nothing is wrong\n"), "{check:?}");
}

/// rabbitmq/ as a node has it when it boots: the configuration, TLS and all, and the definitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_of_the_folder_rabbitmq_make_a_broker_ready() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(folder.path(), &[]).await;
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(project.join("rabbitmq/definitions.json"), node.folder.join("definitions.json")).unwrap();
    let conf = node.folder.join("etc/rabbitmq.conf");
    let ours = std::fs::read_to_string(project.join("rabbitmq/rabbitmq.conf")).unwrap();
    // Its own ports stay.
    let text = std::fs::read_to_string(&conf).unwrap();
    let import = format!("load_definitions = {}\n", node.inside("definitions.json"));
    std::fs::write(&conf, format!("{text}{ours}{import}")).unwrap();
    node.call("restart", &[]).await;
    node.shell("rabbitmqctl set_permissions -p roundelay guest '^$' '^$' '^$'").await;
    let url = node.env("AMQP_URL").replace("%2f", "roundelay");
    let variables = [
        ("ROUNDELAY__BROKER__URL", url.as_str()),
        ("ROUNDELAY__BROKER__MANAGEMENT", &node.env("RABBITMQ_MANAGEMENT_URL")),
    ];
    let config = project.join("deploy/compose/roundelay.toml");
    let check = roundelay_with(&variables, &["topology", "check", "--config", config.to_str().unwrap()]).await;
    assert!(check.ok, "{check:?}");
    assert_eq!(check.stdout, "nothing is wrong\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_does_not_declare_names_exactly_what_is_missing() {
    let ground = Ground::rabbit().await;
    let vhost = ground.vhost.as_ref().unwrap();
    let config =
        ground.config_file("broker.declare = false\n[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\nhandler.exec.argv = [\"/bin/true\"]\n");
    let nothing = ["of", "exchanges and queues are missing", "broker.declare is false", "roundelay topology apply"];
    refused("worker", &config, &[], &nothing).await;
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key\na\n").unwrap();
    refused("enroll", &config, &["--kind", "sync", roster.to_str().unwrap()], &nothing).await;
    let queues = vhost.call(Method::GET, &format!("queues/{}", vhost.name), json!(null)).await;
    assert_eq!(queues, json!([]), "nothing was declared");

    ok("topology apply", &config, &[]).await;
    vhost.delete_queue("work").await;
    vhost.delete_exchange("roundelay.delay.5s").await;
    let exactly = "are missing on the broker, and broker.declare is false, so this program does not declare them: \
                   exchange `roundelay.delay.5s`, queue `work`. ";
    refused("worker", &config, &[], &["2 of ", exactly]).await;

    // Arguments are seen through the management API alone.
    ok("topology apply", &config, &[]).await;
    vhost.delete_queue("work").await;
    let classic = json!({ "durable": true, "arguments": { "x-max-length": 3 } });
    vhost.call(Method::PUT, &format!("queues/{}/work", vhost.name), classic).await;
    refused("worker", &config, &[], &["argument `x-max-length`", "is 3"]).await;
}
