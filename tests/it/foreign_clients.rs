//! Other languages: the examples that users copy, against a running engine.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use lapin::options::BasicGetOptions;
use lapin::types::AMQPValue;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use roundelay::Outcome;
use roundelay::clock::Clock;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::commands::{ok, run, told};
use crate::harness::{Ground, SOON, Vhost, Watched, until, worker};

/// Clients publish to rungs, which are there on every broker only if they are asked for.
const CONFIG: &str = r#"
broker.delays = "ladder"
[queues.work]
[kinds.sync]
queue = "work"
"#;

/// A rung of every ladder.
const RUNG: (&str, Duration) = ("roundelay.delay.1s", Duration::from_secs(1));

#[derive(Clone, Copy, Debug, PartialEq)]
enum Client {
    Python,
    Php,
    JavaScript,
    Rust,
}

const CLIENTS: [Client; 4] = [Client::Python, Client::Php, Client::JavaScript, Client::Rust];

/// What tests/run says where other languages are.
pub fn provided(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(name).unwrap_or_else(|| {
        panic!("{name} is not set: these tests run programs in other languages; start them with tests/run")
    }))
}

/// A program of examples/rust, in the profile of the tests. Cargo builds them with all tests, but not with some.
async fn rust_example(name: &str) -> PathBuf {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    let build = || async {
        let profile = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "build",
            "--quiet",
            "--locked",
            "--example",
            "publish",
            "--example",
            "worker",
            "--example",
            "handler",
        ]);
        cargo.args(profile.ends_with("release").then_some("--release"));
        // Cargo sets variables about this test's package, which are no settings of a user. ring's build script reads
        // them: with them everything would be built anew, now and by the next Cargo that is not called from a test.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
                cargo.env_remove(name);
            }
        }
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).status().await.unwrap();
        assert!(built.success(), "{built}");
        profile.join("examples")
    };
    BUILT.get_or_init(build).await.join(name)
}

fn examples(folder: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).join(folder)
}

impl Client {
    /// Runs the example; `Err` has what it said when it ended with another exit code than 0.
    async fn publish(self, vhost: &Vhost, exchange: &str, queue: &str, envelope: &Value) -> Result<(), String> {
        let mut command = match self {
            Client::Python => {
                let mut command = Command::new(provided("ROUNDELAY_TEST_PYTHON"));
                command.arg(examples("python/publish.py"));
                command
            }
            Client::Php => {
                let mut command = Command::new("php");
                command.arg(examples("php/publish.php"));
                command
            }
            Client::JavaScript => {
                let mut command = Command::new("node");
                command.arg(examples("node/publish.js"));
                command.env("NODE_PATH", provided("ROUNDELAY_TEST_NODE_PATH").join("node_modules"));
                command
            }
            Client::Rust => Command::new(rust_example("publish").await),
        };
        command.args([exchange, queue, &envelope.to_string()]).env("AMQP_URL", &vhost.amqp);
        let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = timeout(SOON, run).await.expect("the client ends").expect("the client starts");
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    /// Starts the example that handles jobs, on this port; in Rust it is the worker itself.
    async fn handle(self, ground: &Ground, config: &Path, port: u16) -> Child {
        match self {
            Client::Rust => spawn(Command::new(rust_example("worker").await).arg(config)),
            _ => self.serve(ground, port, "").await,
        }
    }

    /// Starts the example that is called over HTTP, with a secret by which calls are signed, if it is not empty.
    async fn serve(self, ground: &Ground, port: u16, secret: &str) -> Child {
        let mut command = match self {
            Client::Python => {
                let mut command = Command::new(provided("ROUNDELAY_TEST_PYTHON"));
                command.arg(examples("python/handler.py")).arg(port.to_string());
                command
            }
            Client::Php => {
                let mut command = Command::new("php");
                command.arg("-S").arg(format!("127.0.0.1:{port}")).arg(examples("php/handler.php"));
                command.env("DONE_FOLDER", ground.path("done"));
                command
            }
            Client::JavaScript => {
                let mut command = Command::new("node");
                command.arg(examples("node/handler.js")).arg(port.to_string());
                command.env("NODE_PATH", provided("ROUNDELAY_TEST_NODE_PATH").join("node_modules"));
                command
            }
            Client::Rust => {
                let mut command = Command::new(rust_example("handler").await);
                command.arg(port.to_string());
                command
            }
        };
        spawn(command.env("WEBHOOK_SECRET", secret))
    }
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("the handler starts")
}

/// A port that nothing listens on.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Each example handles what it has published, with and without a delay, once for each id.
#[tokio::test]
async fn a_published_job_is_handled_in_the_same_language() {
    for client in CLIENTS {
        let (ground, port) = (Ground::rabbit().await, free_port());
        let config = ground.config_file(&format!("{CONFIG}handler.http.url = \"http://127.0.0.1:{port}/\"\n"));
        let mut handler = client.handle(&ground, &config, port).await;
        let mut lines = BufReader::new(handler.stdout.take().unwrap()).lines();
        let worker = (client != Client::Rust).then(|| worker(&config));
        if worker.is_some() {
            until("the handler listens", || async move { TcpStream::connect(("127.0.0.1", port)).await.is_ok() }).await;
        }
        let vhost = ground.vhost.as_ref().unwrap();
        // Examples ask for the queue, which the worker declares.
        until("the queue is there", || async {
            // Until the worker has made the ledger, this is refused.
            let queues = run("queue list", &config, &["--json"]).await;
            queues.ok && queues.json()["queues"][0]["consumers"].as_u64() > Some(0)
        })
        .await;
        let publish = |exchange: &'static str, id: &'static str, payload: Value| async move {
            let envelope = json!({ "v": 1, "kind": "sync", "key": format!("npm/{id}"), "id": id, "payload": payload });
            client.publish(vhost, exchange, "work", &envelope).await.unwrap();
        };
        let mut synced = Vec::new();
        let mut next = async || {
            let line = timeout(SOON, lines.next_line()).await.expect("a job is handled").unwrap();
            synced.push(line.expect("the handler lives"));
        };
        publish("roundelay.jobs", "now", json!({ "name": "ms" })).await;
        next().await;
        // Once more, as after a confirmation that was lost.
        publish("roundelay.jobs", "now", json!({ "name": "ms" })).await;
        publish("roundelay.jobs", "bad", json!({})).await;
        until("the bad one is kept as failed", || async {
            told("failed list", &config, &[]).await.to_string().contains("the payload has no name")
        })
        .await;
        publish("roundelay.jobs", "busy", json!({ "name": "ms", "busy": true })).await;
        next().await;
        publish(RUNG.0, "later", json!({ "name": "ms" })).await;
        next().await;
        let expected = ["now", "busy", "later"].map(|id| format!("synced npm/{id} {id}"));
        assert_eq!(synced, expected, "{client:?}");
        for mut process in [Some(handler), worker].into_iter().flatten() {
            process.kill().await.unwrap();
        }
    }
}

/// A job with a time asks RabbitMQ 4.4 to let it sleep, by a header of the type that this broker reads. An older broker
/// hands the job out at once, with the header.
#[tokio::test]
async fn a_published_job_with_a_time_carries_the_header_for_native_delays() {
    let due = Clock::System.now().as_millis() + 3_600_000;
    for client in CLIENTS {
        let ground = Ground::rabbit().await;
        let config = ground.config_file("[queues.work]\n[kinds.sync]\nqueue = \"work\"\n");
        ok("topology apply", &config, &[]).await;
        let envelope = json!({ "v": 1, "kind": "sync", "key": "npm/later", "id": "later", "due": due });
        let vhost = ground.vhost.as_ref().unwrap();
        client.publish(vhost, "roundelay.jobs", "work", &envelope).await.unwrap();
        let got = vhost.raw().await.basic_get("work".into(), BasicGetOptions::default()).await.unwrap();
        let (version, native) = vhost.native_delays().await;
        assert_eq!(got.is_none(), native, "{client:?} on {version}: it sleeps where it can");
        if let Some(message) = got {
            let headers = message.properties.headers().clone().unwrap_or_default();
            let header = headers.inner().get("x-opt-delivery-time");
            assert_eq!(header, Some(&AMQPValue::LongLongInt(due)), "{client:?}");
        }
    }
}

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const OTHER: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// The headers of a call that was signed `ago` seconds before now.
fn signed(secret: &str, id: &str, ago: i64, body: &str) -> HeaderMap {
    let now = Clock::System.now().as_millis() / 1_000;
    let signature = Webhook::new(secret).unwrap().sign(id, now - ago, body.as_bytes()).unwrap();
    let headers = [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", (now - ago).to_string()),
        ("webhook-signature", signature),
    ];
    headers.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

/// A handler that knows the secret does what the worker has signed, and refuses all other calls.
#[tokio::test]
async fn handlers_refuse_calls_without_a_signature() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    for client in CLIENTS {
        let (ground, port) = (Ground::rabbit().await, free_port());
        let kind = |name: &str, secret: &str| {
            format!(
                "[kinds.{name}]\nqueue = \"work\"\n\
                 handler.http = {{ url = \"http://127.0.0.1:{port}/\", sign = \"{secret}\" }}\n"
            )
        };
        let config = ground.config_file(&format!("[queues.work]\n{}{}", kind("sync", SECRET), kind("stranger", OTHER)));
        let mut handler = client.serve(&ground, port, SECRET).await;
        let mut lines = BufReader::new(handler.stdout.take().unwrap()).lines();
        until("the handler listens", || async move { TcpStream::connect(("127.0.0.1", port)).await.is_ok() }).await;
        ok("topology apply", &config, &[]).await;
        let mut worker = worker(&config);
        let mut expected = Vec::new();
        let payload = ["--payload", r#"{"name":"ms ñ 💡"}"#];

        // What the engine signs is what each library verifies; what another secret has signed is a failure.
        told("publish", &config, &[&["stranger", "npm/stranger"], &payload[..]].concat()).await;
        until("the stranger is refused", || async {
            told("failed list", &config, &[]).await["failures"].to_string().contains("HTTP 401")
        })
        .await;
        let published = told("publish", &config, &[&["sync", "npm/ms"], &payload[..]].concat()).await;
        expected.push(format!("synced npm/ms {}", published["id"].as_str().unwrap()));

        let call = async |headers: HeaderMap, body: String| {
            let client = reqwest::Client::builder().no_proxy().timeout(SOON).build().unwrap();
            let call = client.post(format!("http://127.0.0.1:{port}/")).headers(headers).body(body);
            call.send().await.unwrap().status()
        };
        let job = |key: &str| {
            json!({ "v": 1, "kind": "sync", "key": key, "id": key, "payload": { "name": "ñ" } }).to_string()
        };
        let body = job("forged");
        let good = signed(SECRET, "forged", 0, &body);
        let changed = |name: &'static str, value: &str| {
            let mut headers = good.clone();
            headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            headers
        };
        let without = |name: &str| {
            let mut headers = good.clone();
            headers.remove(name);
            headers
        };
        let later = good["webhook-timestamp"].to_str().unwrap().parse::<i64>().unwrap() + 1;
        for (what, headers, body) in [
            ("no signature", HeaderMap::new(), body.clone()),
            ("another secret", signed(OTHER, "forged", 0, &body), body.clone()),
            ("another body", good.clone(), job("swapped")),
            ("another id", changed("webhook-id", "another"), body.clone()),
            ("another time", changed("webhook-timestamp", &later.to_string()), body.clone()),
            ("no time", changed("webhook-timestamp", "now"), body.clone()),
            (
                "no version",
                changed("webhook-signature", &good["webhook-signature"].to_str().unwrap()[3..]),
                body.clone(),
            ),
            ("nothing", changed("webhook-signature", ""), body.clone()),
            ("nonsense", changed("webhook-signature", "v1,ñ"), body.clone()),
            ("without a signature", without("webhook-signature"), body.clone()),
            ("without an id", without("webhook-id"), body.clone()),
            ("without a time", without("webhook-timestamp"), body.clone()),
            ("kept for ten minutes", signed(SECRET, "forged", 600, &body), body.clone()),
            ("of the future", signed(SECRET, "forged", -600, &body), body.clone()),
        ] {
            assert_eq!(call(headers, body).await, StatusCode::UNAUTHORIZED, "{client:?}: {what}");
        }
        // While the secret is being changed, there are two signatures.
        let body = job("right");
        let mut both = signed(SECRET, "right", 60, &body);
        let theirs = signed(OTHER, "right", 60, &body)["webhook-signature"].to_str().unwrap().to_owned();
        let both_signatures = format!("{theirs} {}", both["webhook-signature"].to_str().unwrap());
        both.insert("webhook-signature", both_signatures.parse().unwrap());
        assert_eq!(call(both, body).await, StatusCode::OK, "{client:?}");
        expected.push("synced right right".into());

        let mut synced = Vec::new();
        while synced.len() < expected.len() {
            let line = timeout(SOON, lines.next_line()).await.expect("a job is handled").unwrap();
            synced.push(line.expect("the handler lives"));
        }
        synced.sort();
        expected.sort();
        assert_eq!(synced, expected, "{client:?}: and none of the others");
        worker.kill().await.unwrap();
        handler.kill().await.unwrap();
        assert_eq!(lines.next_line().await.unwrap(), None, "{client:?}");
    }
}

#[tokio::test]
async fn a_message_to_the_exchange_of_jobs_runs_at_once() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, CONFIG).await;
    for client in CLIENTS {
        let payload = json!({ "name": "@types/ñode 💡", "n": [1, 2.5, null] });
        let envelope =
            json!({ "v": 1, "kind": "sync", "key": "npm/ñ", "id": format!("{client:?}"), "payload": payload });
        client.publish(ground.vhost.as_ref().unwrap(), "roundelay.jobs", "work", &envelope).await.unwrap();
        let run = engine.next().await;
        assert_eq!((run.job.id.as_str(), run.job.key.as_str()), (&*format!("{client:?}"), "npm/ñ"));
        assert_eq!((run.job.queue.as_str(), run.job.attempt, &run.job.payload), ("work", 1, &payload));
        run.end(Outcome::Done);
    }
    engine.stop().await;
}

/// Programs begin and end chains: confirmed means that it will be so.
#[tokio::test]
async fn chains_begin_and_end_by_messages() {
    let ground = Ground::rabbit().await;
    let config = CONFIG.replace("queue = \"work\"", "queue = \"work\"\nevery = \"1h\"");
    let mut engine = Watched::attended(&ground, &config).await;
    for client in CLIENTS {
        let key = format!("ñ {client:?}");
        let order = |field: &str, what: Value| json!({ "v": 1, "kind": "sync", "key": key, field: what });
        let publish = async |order: Value| {
            client.publish(ground.vhost.as_ref().unwrap(), "roundelay.jobs", "roundelay.chores", &order).await.unwrap();
        };
        let mut enroll = order("enroll", json!({ "owner": "ann", "first_due": engine.ledger().now().as_millis() }));
        enroll["payload"] = json!({ "name": "ñ" });
        publish(enroll.clone()).await;
        let run = engine.next().await;
        assert_eq!((run.job.key.as_str(), run.tick(), &run.job.payload), (key.as_str(), 1, &enroll["payload"]));
        run.end(Outcome::Done);
        publish(order("retire", json!({}))).await;
        until("it has ended", async || {
            let chains = engine.ledger().chains("sync".into(), key.clone()).await.unwrap();
            chains[0].state == roundelay::ledger::ChainState::Retired
        })
        .await;
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_message_to_a_rung_runs_when_its_delay_is_over() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, CONFIG).await;
    for client in CLIENTS {
        let envelope = json!({ "v": 1, "kind": "sync", "key": "later", "id": format!("{client:?}") });
        let before = engine.ledger().now();
        client.publish(ground.vhost.as_ref().unwrap(), RUNG.0, "work", &envelope).await.unwrap();
        let run = engine.next().await;
        assert_eq!(run.job.id, format!("{client:?}"));
        assert!(run.at.since(before) >= RUNG.1, "{client:?}: after {:?}", run.at.since(before));
        run.end(Outcome::Done);
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_message_that_the_broker_refuses_fails_loudly() {
    let ground = Ground::rabbit().await;
    let mut engine = Watched::start(&ground, CONFIG).await;
    let vhost = ground.vhost.as_ref().unwrap();
    let path = |rest: &str| format!("{rest}/{}", vhost.name);
    let nowhere = json!({ "type": "direct" });
    vhost.call(Method::PUT, &format!("{}/nowhere", path("exchanges")), nowhere).await;
    for client in CLIENTS {
        let full = format!("full-{client:?}");
        let arguments = json!({ "x-max-length": 1, "x-overflow": "reject-publish" });
        vhost
            .call(
                Method::PUT,
                &format!("{}/{full}", path("queues")),
                json!({ "durable": true, "arguments": arguments }),
            )
            .await;
        vhost
            .call(Method::POST, &format!("{}/e/nowhere/q/{full}", path("bindings")), json!({ "routing_key": full }))
            .await;
        let envelope = json!({ "v": 1, "kind": "sync", "key": "x", "id": format!("{client:?}") });
        let publish = |exchange: &'static str, queue: String| {
            let envelope = envelope.clone();
            async move { client.publish(vhost, exchange, &queue, &envelope).await }
        };
        publish("nowhere", full.clone()).await.unwrap();
        for (exchange, queue, words) in [
            ("roundelay.absent", "work", "roundelay.absent"),
            ("roundelay.jobs", "absent", "absent"),
            (RUNG.0, "absent", "absent"),
            ("nowhere", "work", "returned"),
            ("nowhere", full.as_str(), ""), // Refused; amqplib has only "message nacked" for it.
        ] {
            let error = publish(exchange, queue.into()).await.expect_err(&format!("{client:?} to {exchange}, {queue}"));
            assert!(error.contains(words), "{client:?} to {exchange}, {queue}: {error}");
        }
        // None of these has come through; the next that runs is the last.
        publish("roundelay.jobs", "work".into()).await.unwrap();
        let run = engine.next().await;
        assert_eq!(run.job.id, format!("{client:?}"));
        run.end(Outcome::Done);
    }
    engine.nothing_for(RUNG.1).await;
    engine.stop().await;
}
