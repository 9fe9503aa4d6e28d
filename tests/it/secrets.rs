//! Secrets are in nothing that the program says: canaries in every setting that may be secret, work and failures of
//! each sort, and all that is printed, logged and answered meanwhile is searched for them. By the real program.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::{Ground, SOON, Vhost, api, roundelay_with, until};
use crate::screen::SPOKEN;
use crate::support::receiver::{Receiver, Reply};

const BROKER: &str = "cage-1/@:%+ rabbit";
const MANAGEMENT: &str = "cage-2/@:%+ http";
const LEDGER: &str = "cage-3/@:%+ ledger";
const HEADER: &str = "cage-4/@:%+ header";
const VARIABLE: &str = "cage-5/@:%+ variable";
const URL_PASSWORD: &str = "cage-6/@:%+ url";
const URL_TOKEN: &str = "cage-7/@:%+ token";
const ROSTER_PASSWORD: &str = "cage-8/@:%+ roster";
const ROSTER_TOKEN: &str = "cage-9/@:%+ list";
const SQL_PASSWORD: &str = "cage-10/@:%+ sql";
const WRONG: &str = "cage-11/@:%+ wrong";
/// A key in base64.
const KEY: &str =
    concat!("cage12/", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "==");
const ALL: [&str; 12] = [
    BROKER,
    MANAGEMENT,
    LEDGER,
    HEADER,
    VARIABLE,
    URL_PASSWORD,
    URL_TOKEN,
    ROSTER_PASSWORD,
    ROSTER_TOKEN,
    SQL_PASSWORD,
    WRONG,
    KEY,
];

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// What base64 makes of these bytes wherever they stand: without what depends on what is beside them.
fn base64(bytes: &[u8]) -> [String; 3] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    [0, 1, 2].map(|before: usize| {
        let padded: Vec<u8> = std::iter::repeat_n(0, before).chain(bytes.iter().copied()).collect();
        let bits: Vec<u8> = padded.iter().flat_map(|byte| (0..8).rev().map(move |n| byte >> n & 1)).collect();
        let digit = |six: &[u8]| char::from(DIGITS[usize::from(six.iter().fold(0, |sum, bit| sum << 1 | bit))]);
        bits.chunks_exact(6).skip((before * 8).div_ceil(6)).map(digit).collect()
    })
}

/// The forms in which a secret may show itself. Spaces and slashes are written in several ways, so the part before them
/// stands for the whole where it is not encoded: no two canaries share theirs.
fn forms(secret: &str) -> Vec<String> {
    let start = &secret[..secret.find('/').unwrap() + 1];
    let bytes: Vec<String> = secret.bytes().map(|byte| byte.to_string()).collect();
    let mut forms = vec![start.to_owned(), encoded(start), start.replace('/', "%2f"), bytes.join(", ")];
    forms.extend(base64(secret.as_bytes()));
    forms
}

/// Everything that was said, with who said it.
#[derive(Default)]
struct Heard(Vec<(String, String)>);

impl Heard {
    fn add(&mut self, who: impl Into<String>, what: impl Into<String>) {
        self.0.push((who.into(), what.into()));
    }

    #[track_caller]
    fn has_no_secret(&self) {
        let mut found = Vec::new();
        for (secret, form) in ALL.iter().flat_map(|secret| forms(secret).into_iter().map(move |form| (secret, form))) {
            for (who, what) in &self.0 {
                let Some(at) = what.find(&form) else { continue };
                let from = what.floor_char_boundary(at.saturating_sub(300));
                let to = what.ceil_char_boundary((at + 100).min(what.len()));
                found.push(format!("{who} tells `{secret}` as `{form}`: …{}…", &what[from..to]));
            }
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

#[test]
fn the_search_for_secrets_finds_planted_ones() {
    for said in [
        format!("password {WRONG}"),
        format!("amqp://u:{}@h", encoded(WRONG)),
        format!("amqp://u:{}@h", WRONG.replace('/', "%2f")),
        format!("Basic {}", base64(format!("u:{WRONG}").as_bytes())[0]),
        format!("Basic {}", base64(format!("ab:{WRONG}").as_bytes())[0]),
        format!("Basic {}", base64(format!("abc:{WRONG}").as_bytes())[0]),
        format!("{:?}", WRONG.as_bytes()),
    ] {
        let mut heard = Heard::default();
        heard.add("a test", &said);
        assert!(std::panic::catch_unwind(|| heard.has_no_secret()).is_err(), "{said}");
    }
}

/// Users of the broker and a role of the ledger, gone with the test.
struct Users {
    management: String,
    names: [String; 2],
    role: String,
}

/// In the database that the tests' schemas are in, past any ledger.
async fn order(statements: &str) {
    let database = std::env::var("DATABASE_URL").unwrap();
    let (client, connection) = tokio_postgres::connect(&database, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(statements).await.unwrap();
}

impl Users {
    async fn new(vhost: &Vhost) -> Self {
        let names = ["broker", "ops"].map(|name| format!("{}-{name}", vhost.name));
        for (name, password) in names.iter().zip([BROKER, MANAGEMENT]) {
            let user = json!({ "password": password, "tags": "administrator" });
            vhost.call(Method::PUT, &format!("users/{name}"), user).await;
            let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
            vhost.call(Method::PUT, &format!("permissions/{}/{name}", vhost.name), all).await;
        }
        let role = names[0].replace('-', "_");
        order(&format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{LEDGER}'")).await;
        Self { management: vhost.management.clone(), names, role }
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let (management, names, role) = (self.management.clone(), self.names.clone(), self.role.clone());
        let delete = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // What it owns goes with the schema.
            runtime.block_on(order(&format!("REASSIGN OWNED BY {role} TO CURRENT_USER; DROP ROLE {role}")));
            for name in names {
                runtime.block_on(api(&management, Method::DELETE, &format!("users/{name}"), &json!(null)));
            }
        };
        let _ = std::thread::spawn(delete).join();
    }
}

/// `roundelay`, whose output goes to a file; killed when dropped.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(variables: &[(&str, &str)], arguments: &[&str], log: PathBuf) -> Self {
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_roundelay"))
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// What its JSON log has under this name.
    async fn told(&mut self, field: &str) -> String {
        let told = |text: String| {
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.filter_map(|line| line[field].as_str().map(str::to_owned)).next()
        };
        until(field, || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {}", self.said());
            let there = told(self.said()).is_some();
            async move { there }
        })
        .await;
        told(self.said()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// With everything that it could say.
const LOUD: [(&str, &str); 2] = [("ROUNDELAY_LOG", "trace,lapin=trace"), ("RUST_BACKTRACE", "1")];
const JSON: (&str, &str) = ("ROUNDELAY_LOG_FORMAT", "json");

async fn get(url: &str) -> String {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answered = async {
        let mut response = client.get(url).send().await.unwrap();
        let mut text = format!("{:?}", response.headers());
        // A stream of events has no end: what comes first is enough of it.
        while let Some(more) = response.chunk().await.unwrap() {
            text += &String::from_utf8_lossy(&more);
            if url.ends_with("/events") {
                break;
            }
        }
        text
    };
    timeout(SOON, answered).await.unwrap_or_else(|_| panic!("{url} does not answer"))
}

fn config_text(ground: &Ground, users: &Users, calls: &str) -> String {
    let vhost = ground.vhost.as_ref().unwrap();
    let bare = |url: &str, scheme: &str| {
        let mut url = url::Url::parse(url).unwrap();
        url.set_username("").unwrap();
        url.set_password(None).unwrap();
        assert_eq!(url.scheme(), scheme);
        url.to_string()
    };
    let schema = ground.schema.as_ref().unwrap();
    let mut management = url::Url::parse(&vhost.management).unwrap();
    management.set_username(&users.names[1]).unwrap();
    management.set_password(Some(MANAGEMENT)).unwrap();
    // User and password of the URL give way to the others.
    let mut ledger = url::Url::parse(&schema.url).unwrap();
    ledger.set_username("nobody").unwrap();
    ledger.set_password(Some(WRONG)).unwrap();
    std::fs::write(ground.path("broker-password"), format!("{BROKER}\n")).unwrap();
    std::fs::write(ground.path("header"), format!("Bearer {HEADER}\n")).unwrap();
    format!(
        r#"
[broker]
url = "{amqp}"
username = "{user}"
password = {{ file = "{folder}/broker-password" }}
management = "{management}"
[ledger]
url = "{ledger}"
username = "{role}"
password = {{ env = "THE_LEDGER" }}
[worker]
listen = "127.0.0.1:0"
[api]
listen = "127.0.0.1:0"
anonymous = "admin"
[encryption]
seal = "k"
keys = {{ k = {{ env = "THE_KEY" }} }}
[queues.work]
throttle = "slow"
[throttles.slow]
allow = 500
per = "1s"
[kinds.sync]
queue = "work"
every = "1h"
retry.attempts = 1
handler.http.url = "http://u:{url_password}@{calls}/?token={url_token}"
handler.http.headers = {{ Authorization = {{ file = "{folder}/header" }} }}
[kinds.away]
queue = "work"
every = "1h"
retry.attempts = 1
handler.http.url = "http://u:{url_password}@127.0.0.1:1/{{{{ key }}}}?token={url_token}"
[kinds.template]
queue = "work"
every = "1h"
retry.attempts = 1
handler.http.url = "http://u:{url_password}@127.0.0.1:1/{{{{ payload.none }}}}?token={url_token}"
[kinds.program]
queue = "work"
every = "1h"
retry.attempts = 1
handler.exec = {{ argv = ["/bin/false"], env = {{ TOKEN = "{VARIABLE}" }} }}
[kinds.absent]
queue = "work"
every = "1h"
retry.attempts = 1
handler.exec = {{ argv = ["/no/such/program"], env = {{ TOKEN = "{VARIABLE}" }} }}
[kinds.listed]
queue = "work"
every = "1h"
handler.exec.argv = ["/bin/true"]
roster.http = "http://u:{roster_password}@127.0.0.1:1/x.csv?token={roster_token}"
[kinds.queried]
queue = "work"
every = "1h"
handler.exec.argv = ["/bin/true"]
roster.sql = {{ url = "postgres://nobody:{sql}@127.0.0.1:1/x", query = "SELECT 1" }}
"#,
        amqp = bare(&vhost.amqp, "amqp"),
        user = users.names[0],
        role = users.role,
        folder = ground.folder.path().display(),
        url_password = encoded(URL_PASSWORD),
        url_token = encoded(URL_TOKEN),
        roster_password = encoded(ROSTER_PASSWORD),
        roster_token = encoded(ROSTER_TOKEN),
        sql = encoded(SQL_PASSWORD),
    )
}

/// What a command prints. The output of `token create` is the token, which the caller is meant to see.
async fn listen(heard: &mut Heard, variables: &[(&str, &str)], verb: &str, config: &Path, rest: &[&str]) -> String {
    let mut arguments: Vec<&str> = verb.split(' ').collect();
    arguments.extend(["--config", config.to_str().unwrap()]);
    arguments.extend(rest);
    let output = roundelay_with(variables, &arguments).await;
    let said = output.stdout + &output.stderr;
    heard.add(format!("{verb} {rest:?}"), said.as_str());
    said
}

#[tokio::test]
async fn no_output_has_a_secret() {
    let ground = Ground::rabbit_and_postgres().await;
    let users = Users::new(ground.vhost.as_ref().unwrap()).await;
    let receiver =
        Receiver::start(std::sync::Arc::new(|_| Reply { status: 500, ..Reply::ok(Default::default()) })).unwrap();
    let text = config_text(&ground, &users, &receiver.address.to_string());
    let config = ground.path("roundelay.toml");
    std::fs::write(&config, &text).unwrap();
    let at = config.to_str().unwrap();
    let mut heard = Heard::default();
    let ledger = ("THE_LEDGER", LEDGER);
    let key = ("THE_KEY", KEY);
    let loud = [LOUD[0], LOUD[1], ledger, key];
    let loud_json = [LOUD[0], LOUD[1], ledger, key, JSON];

    // Work and failures of each sort.
    let mut worker = Running::start(&loud_json, &["worker", "--config", at], ground.path("worker.log"));
    let base = worker.told("api").await;
    let watched = worker.told("address").await;
    for kind in ["sync", "away", "template", "program", "absent"] {
        let roster = ground.path("one.csv");
        std::fs::write(&roster, "key\na\n").unwrap();
        listen(&mut heard, &loud, "enroll", &config, &["--kind", kind, "--spread", "0s", roster.to_str().unwrap()])
            .await;
    }
    listen(&mut heard, &loud, "publish", &config, &["away", "single"]).await;
    let mut failed = String::new();
    for kind in ["sync", "away", "template", "program", "absent"] {
        until(kind, async || {
            let output =
                roundelay_with(&[ledger, key], &["failed", "list", "--kind", kind, "--json", "--config", at]).await;
            output.stdout.contains("\"key\"")
        })
        .await;
        failed += &listen(&mut heard, &loud, "failed list", &config, &["--kind", kind, "--json"]).await;
    }
    assert!(
        failed.contains("500") && failed.contains("127.0.0.1:1") && failed.contains("/no/such/program"),
        "{failed}"
    );

    // What is answered.
    let document: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        if methods.get("get").is_none() {
            continue;
        }
        let name = if path.contains("throttles") { "slow" } else { "sync" };
        let path = path.replace("{kind}", "sync").replace("{key}", "a").replace("{name}", name).replace("{id}", "x");
        heard.add(format!("GET {path}"), get(&format!("{base}{path}")).await);
    }
    for path in ["/metrics", "/healthz", "/readyz"] {
        heard.add(path, get(&format!("http://{watched}{path}")).await);
    }
    let shown = get(&format!("{base}/api/v1/configuration")).await;
    assert!(shown.contains("amqp://127.0.0.1") && shown.contains("kinds.template"), "{shown}");

    // What is printed, by every command, for people and for programs.
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key\na\nb\nc\n").unwrap();
    let definitions = ground.path("definitions.json");
    for (verb, rest) in SPOKEN {
        let rest: Vec<&str> = rest
            .iter()
            .map(|argument| match *argument {
                "{roster}" => roster.to_str().unwrap(),
                "{definitions}" => definitions.to_str().unwrap(),
                other => other,
            })
            .collect();
        listen(&mut heard, &loud, verb, &config, &rest).await;
        listen(&mut heard, &loud_json, verb, &config, &[&rest[..], &["--json"]].concat()).await;
    }
    drop(worker.child.kill());
    heard.add("worker, in JSON", worker.said());
    // The same with the log as text, which writes values in another way.
    let worker = Running::start(&loud, &["worker", "--config", at], ground.path("worker-text.log"));
    let calls = receiver.calls().len();
    listen(&mut heard, &loud, "publish", &config, &["sync", "again"]).await;
    until("it works", async || receiver.calls().len() > calls).await;
    heard.add("worker, as text", worker.said());
    assert!(worker.said().contains("TRACE"), "it logs all that it can");
    drop(worker);

    // What cannot work.
    let wrong = encoded(WRONG);
    let changes: [(&str, String, &[&str]); 7] = [
        ("ROUNDELAY__ENCRYPTION__KEYS__K", KEY[1..].into(), &["check", "doctor", "worker"]),
        ("ROUNDELAY__BROKER__PASSWORD", WRONG.into(), &["doctor", "topology check", "publish sync x", "worker"]),
        ("ROUNDELAY__BROKER__URL", format!("amqp://u:{wrong}@127.0.0.1:1/v"), &["doctor", "topology check", "worker"]),
        ("ROUNDELAY__BROKER__URL", format!("amqp://u:{WRONG}@h?heartbeat=x"), &["check", "doctor", "worker"]),
        ("ROUNDELAY__BROKER__MANAGEMENT", format!("http://u:{wrong}@127.0.0.1:1"), &["doctor", "topology check"]),
        ("ROUNDELAY__LEDGER__URL", format!("postgres://u:{wrong}@127.0.0.1:1/x"), &["doctor", "status", "worker"]),
        ("ROUNDELAY__LEDGER__URL", WRONG.into(), &["check", "doctor", "status"]),
    ];
    for (name, value, verbs) in &changes {
        for verb in *verbs {
            let mut words: Vec<&str> = verb.split(' ').collect();
            words.extend(["--config", at]);
            let output = roundelay_with(&[loud[0], ledger, (name, value)], &words).await;
            let said = output.stdout + &output.stderr;
            assert!(!output.ok || *verb == "topology check", "{verb} with {name}: {said}");
            heard.add(format!("{verb} with {name}"), said);
        }
    }
    heard.has_no_secret();
}

#[tokio::test]
async fn a_worker_leaves_no_core_and_nobody_may_look_into_it() {
    let ground = Ground::embedded();
    let config = ground.config_file("[queues.work]\n[worker]\nlisten = \"127.0.0.1:0\"\n");
    std::fs::set_permissions(ground.folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    // The system hands what belongs to such a process to root, so a root of its own would not see a difference.
    let user = if nix::unistd::getuid().is_root() { 65_534 } else { nix::unistd::getuid().as_raw() };
    for (dumpable, owner) in [("", 0), ("1", user)] {
        let log = ground.path(&format!("log-{dumpable}"));
        let file = std::fs::File::create(&log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_roundelay"));
        command.args(["worker", "--config"]).arg(&config).env("ROUNDELAY_DUMPABLE", dumpable).env(JSON.0, JSON.1);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        if nix::unistd::getuid().is_root() {
            command.uid(user).gid(user);
        }
        let mut worker = Running { child: command.spawn().unwrap(), log };
        worker.told("address").await;
        let of = PathBuf::from(format!("/proc/{}", worker.child.id()));
        assert_eq!(std::fs::metadata(of.join("mem")).unwrap().uid(), owner, "ROUNDELAY_DUMPABLE={dumpable}");
        let limits = std::fs::read_to_string(of.join("limits")).unwrap();
        let soft = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
        let soft = soft.split_whitespace().next().unwrap();
        assert!(dumpable == "1" || soft == "0", "{limits}");
        drop(worker.child.kill());
        let _ = worker.child.wait();
        let _ = std::fs::remove_file(ground.path("ledger.db"));
    }
}
