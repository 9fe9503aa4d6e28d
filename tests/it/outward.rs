//! What leaves a worker: whom its calls can be made to reach, how receivers know who calls, and what programs may use.
//! The real program against real receivers, and names that lead elsewhere the second time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use roundelay::Context;
use roundelay::clock::{Clock, Time};
use roundelay::egress::Reach;
use roundelay::handler::Handler;
use roundelay::handler::http::{Clients, HttpHandler, HttpSettings};
use roundelay::job::Job;
use roundelay::outcome::Outcome;
use roundelay::reason::Class;
use roundelay::secret::Secret;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::commands::{ok, refused, run, told};
use crate::harness::{Ground, SOON, until, worker};

/// A call as it came in: headers and body.
type Call = (HeaderMap, Bytes);

/// A server on `address` that refuses the first call with 500, answers 204 to the others, and tells of each.
async fn receiver(address: &str) -> (SocketAddr, mpsc::UnboundedReceiver<Call>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let first = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let take = move |headers: HeaderMap, body: Bytes| {
        let (sender, first) = (sender.clone(), first.clone());
        async move {
            sender.send((headers, body)).unwrap();
            let refuse = first.swap(false, std::sync::atomic::Ordering::Relaxed);
            if refuse { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::NO_CONTENT }
        }
    };
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(take)).await });
    (address, receiver)
}

async fn next(calls: &mut mpsc::UnboundedReceiver<Call>) -> Call {
    timeout(SOON, calls.recv()).await.expect("a call comes").expect("the receiver lives")
}

/// Waits until `kind` has failed for good as many entities as there are, and gives the reasons by entity.
async fn failures(config: &Path, count: usize) -> Vec<(String, String)> {
    let list = async || told("failed list", config, &["--limit", "100"]).await["failures"].as_array().unwrap().clone();
    until("all have failed", async || list().await.len() == count).await;
    let text = |failure: &Value, field: &str| failure[field].as_str().unwrap_or_default().to_owned();
    list().await.iter().map(|failure| (text(failure, "key"), text(failure, "reason"))).collect()
}

// ---- Signatures ----

const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// What the specification's own library for Python says of calls: `good`, or why not.
async fn verdicts(cases: &[(&str, &Call)]) -> Vec<String> {
    const VERIFY: &str = r#"
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
for case in json.load(sys.stdin):
    try:
        Webhook(case["secret"]).verify(case["body"], case["headers"])
        print("good")
    except WebhookVerificationError as error:
        print(error)
"#;
    let case = |(secret, (headers, body)): &(&str, &Call)| {
        let headers: serde_json::Map<String, Value> =
            headers.iter().map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap()))).collect();
        json!({ "secret": secret, "headers": headers, "body": std::str::from_utf8(body).unwrap() })
    };
    let cases: Vec<Value> = cases.iter().map(case).collect();
    let python = std::env::var_os("ROUNDELAY_TEST_PYTHON")
        .expect("ROUNDELAY_TEST_PYTHON is not set: this test runs a library in Python; start it with tests/run");
    let mut python = Command::new(python)
        .args(["-c", VERIFY])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(Value::Array(cases).to_string().as_bytes()).await.unwrap();
    let output = timeout(SOON, python.wait_with_output()).await.unwrap().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn calls_are_signed_as_the_specification_s_own_library_verifies() {
    let ground = Ground::rabbit().await;
    let (address, mut calls) = receiver("127.0.0.1:0").await;
    let config = ground.config_file(&format!(
        "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nretry.backoff = [\"1s\"]\n\
         [kinds.sync.handler.http]\nurl = \"http://{address}/{{{{ key }}}}\"\nsign = [\"{NEW}\", \"{OLD}\"]\n"
    ));
    ok("topology apply", &config, &[]).await;
    let mut worker = worker(&config);
    ok("publish", &config, &["sync", "a", "--payload", r#"{"name":"ñ 💡 / \" \\ </x>"}"#]).await;
    let (first, second) = (next(&mut calls).await, next(&mut calls).await);
    worker.kill().await.unwrap();

    let id = |call: &Call| call.0["webhook-id"].clone();
    assert_eq!(id(&first), first.0["roundelay-id"], "an id of the engine's own has nothing to be encoded");
    assert_eq!((id(&first), second.0["roundelay-attempt"] == "2"), (id(&second), true), "the same on every attempt");
    let changed = |name: &'static str, value: &str| {
        let mut headers = second.0.clone();
        headers.insert(name, value.parse().unwrap());
        (headers, second.1.clone())
    };
    let seconds: i64 = second.0["webhook-timestamp"].to_str().unwrap().parse().unwrap();
    let body = (second.0.clone(), Bytes::from([&second.1[..], b" "].concat()));
    let swapped = changed("webhook-signature", first.0["webhook-signature"].to_str().unwrap());
    // A call that was recorded ten minutes ago.
    let (past, mut kept) = (Clock::System.now() - Duration::from_secs(600), receiver("127.0.0.1:0").await);
    let settings = HttpSettings {
        url: format!("http://{}/", kept.0).into(),
        sign: vec![Secret::new(NEW)],
        ..HttpSettings::default()
    };
    let handler = HttpHandler::new(&settings, &Clients::default(), Clock::starting_at(past)).unwrap();
    handler.run(job("a.b", past + SOON), Context::default()).await;
    let stale = next(&mut kept.1).await;
    assert_eq!(stale.0["webhook-id"], "a%2Eb", "the full stop divides what is signed");

    let table = [
        (NEW, &first, "good"),
        (OLD, &first, "good"),
        (NEW, &second, "good"),
        (OTHER, &second, "No matching signature found"),
        (NEW, &body, "No matching signature found"),
        (NEW, &changed("webhook-id", "another"), "No matching signature found"),
        (NEW, &changed("webhook-timestamp", &(seconds + 1).to_string()), "No matching signature found"),
        (NEW, &swapped, "No matching signature found"),
        (NEW, &stale, "Message timestamp too old"),
    ];
    let said = verdicts(&table.map(|(secret, call, _)| (secret, call))).await;
    assert_eq!(said, table.map(|(.., expected)| expected));
}

// ---- Where calls may lead ----

#[tokio::test]
async fn a_job_cannot_make_the_worker_call_what_is_not_public() {
    let ground = Ground::rabbit().await;
    let (address, mut calls) = receiver("127.0.0.1:0").await;
    let port = address.port();
    let kind = |name: &str, url: &str, rest: &str| {
        format!(
            "[kinds.{name}]\nqueue = \"work\"\nretry.backoff = [\"1s\"]\nhandler.http.url = \"http://{url}\"\n{rest}\n"
        )
    };
    let config = ground.config_file(
        &(String::from("[queues.work]\n")
            + &kind("free", &format!("{{{{ payload.host | raw }}}}:{port}/{{{{ key }}}}"), "")
            + &kind("named", &format!("{{{{ payload.host }}}}:{port}/"), "handler.http.allow = [\"localhost\"]")
            + &kind("metadata", "169.254.169.254/latest", "")
            + &kind("own", &format!("localhost:{port}/{{{{ key }}}}"), "")),
    );
    ok("topology apply", &config, &[]).await;
    let mut worker = worker(&config);
    let hosts = ["localhost", "127.0.0.1", "127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0"];
    let publish = async |kind: &str, key: &str, host: &str| {
        ok("publish", &config, &[kind, key, "--payload", &json!({ "host": host }).to_string()]).await;
    };
    for host in hosts {
        publish("free", host, host).await;
    }
    publish("free", "metadata", "169.254.169.254").await;
    publish("named", "an address", "127.0.0.1").await;
    publish("metadata", "constant", "").await;
    let failed = failures(&config, hosts.len() + 3).await;
    for (key, reason) in &failed {
        assert!(reason.starts_with("not called: ") && reason.contains("is no public address ("), "{key}: {reason}");
    }
    let reason = |key: &str| &failed.iter().find(|(of, _)| of == key).unwrap().1;
    let localhost = reason("localhost");
    assert!(localhost.starts_with("not called: localhost leads to "), "{localhost}");
    assert!(localhost.ends_with("add \"localhost\" to kinds.free.handler.http.allow"), "{localhost}");
    assert!(reason("an address").ends_with("add \"127.0.0.1\" to kinds.named.handler.http.allow"));
    assert!(reason("constant").ends_with(
        "(a cloud's metadata service); if that is meant, add \"169.254.169.254\" to kinds.metadata.handler.http.allow"
    ));
    assert!(calls.try_recv().is_err(), "none has arrived");
    // What is allowed arrives: a name that stands under `allow`, and one that stands in the URL.
    publish("own", "own", "").await;
    publish("named", "named", "LOCALHOST").await;
    let seen = [next(&mut calls).await, next(&mut calls).await, next(&mut calls).await];
    assert!(seen.iter().any(|(headers, _)| headers["roundelay-key"] == "own"));
    assert!(seen.iter().any(|(headers, _)| headers["roundelay-key"] == "named"));
    worker.kill().await.unwrap();
}

#[tokio::test]
async fn a_roster_leads_where_it_may() {
    let ground = Ground::embedded();
    let app = Router::new().fallback(async || ([("content-type", "text/csv")], "key\na\n"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let config = |roster: &str| {
        ground.config_file(&format!(
            "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\nhandler.exec.argv = [\"/bin/true\"]\nroster = {{ {roster} }}\n"
        ))
    };
    let metadata = config("http = \"http://169.254.169.254/list.csv\"");
    let words =
        ["169.254.169.254 is no public address (a cloud's metadata service)", "\"169.254.169.254\" to roster.allow"];
    refused("enroll", &metadata, &["--kind", "sync"], &words).await;
    let enrolled =
        run("enroll", &config(&format!("http = \"http://localhost:{port}/list.csv\"")), &["--kind", "sync"]).await;
    assert_eq!(enrolled.code, Some(0), "{enrolled:?}");
}

/// Answers each name as it was told to, one answer after the other, and counts.
#[derive(Default)]
struct Told(Mutex<VecDeque<Vec<SocketAddr>>>);

impl Told {
    fn then(&self, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0));
        self.0.lock().push_back(addresses.collect());
    }

    fn left(&self) -> usize {
        self.0.lock().len()
    }
}

impl Resolve for Told {
    fn resolve(&self, _: Name) -> Resolving {
        let answer = self.0.lock().pop_front().expect("nobody looks more often than was told");
        Box::pin(async move { Ok(Box::new(answer.into_iter()) as Addrs) })
    }
}

fn job(id: &str, deadline: Time) -> Job {
    Job {
        id: id.into(),
        kind: "sync".into(),
        key: "k".into(),
        queue: "work".into(),
        tick: None,
        attempt: 1,
        owner: None,
        carry: Value::Null,
        unavailable: Vec::new(),
        grace: Duration::ZERO,
        nominal: deadline - SOON,
        deadline,
        seed: 1,
        payload: Value::Null,
    }
}

/// Answers each connection once with `body`, and hangs up.
async fn once(address: (&str, u16), body: &'static str) -> u16 {
    let listener = TcpListener::bind(address).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = Router::new().fallback(async move || ([("connection", "close")], body));
    tokio::spawn(async move { axum::serve(listener, app).await });
    port
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_the_second_time_is_refused() {
    // The open address stands for a public one: tests stay on this machine.
    let (open, closed) = ("127.0.0.2", "127.0.0.1");
    let port = once((open, 0), r#"{"outcome":"retire","reason":"open"}"#).await;
    once((closed, port), r#"{"outcome":"retire","reason":"closed"}"#).await;
    let told = Arc::new(Told::default());
    let clients = Clients::new(told.clone());
    let allow = Reach::new(&[format!("{open}/32")]).unwrap();
    let settings =
        HttpSettings { url: format!("http://rebinding.example:{port}/").into(), allow, ..HttpSettings::default() };
    let handler = HttpHandler::new(&settings, &clients, Clock::System).unwrap();
    let call = async |handler: &HttpHandler| {
        timeout(SOON, handler.run(job("j", Clock::System.now() + SOON), Context::default())).await.unwrap()
    };

    let reached = Outcome::Retire { reason: "open".into() };
    told.then(&[open]);
    assert_eq!(call(&handler).await, reached);
    assert_eq!(told.left(), 0, "one lookup serves the check and the connection");
    for answer in [&[closed][..], &["::1", closed], &["169.254.169.254"], &["::ffff:127.0.0.2"]] {
        told.then(answer);
        match call(&handler).await {
            Outcome::Fail { reason } => {
                assert_eq!((reason.class, reason.code()), (Class::Refused, Some("address_refused")), "{reason}");
                assert!(reason.text.starts_with("not called: rebinding.example leads to "), "{reason}");
            }
            other => panic!("{answer:?}: {other:?}"),
        }
        assert_eq!(told.left(), 0);
    }
    for answer in [[closed, open], [open, closed]] {
        told.then(&answer);
        assert_eq!(call(&handler).await, reached, "of several addresses those are used that are open");
    }
}

#[tokio::test]
async fn a_connection_that_one_kind_may_keep_serves_no_other_kind() {
    let (address, mut calls) = receiver("127.0.0.1:0").await;
    let told = Arc::new(Told::default());
    let clients = Clients::new(told.clone());
    let handler = |allow: &[&str]| {
        let allow = Reach::new(&allow.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap();
        let url = format!("http://inner.example:{}/", address.port());
        HttpHandler::new(&HttpSettings { url: url.into(), allow, ..HttpSettings::default() }, &clients, Clock::System)
            .unwrap()
    };
    let (inner, outer) = (handler(&["inner.example"]), handler(&[]));
    let call = async |handler: &HttpHandler| {
        timeout(SOON, handler.run(job("j", Clock::System.now() + SOON), Context::default())).await.unwrap()
    };
    told.then(&["127.0.0.1"]);
    for _ in 0..3 {
        call(&inner).await;
        next(&mut calls).await;
    }
    assert_eq!(told.left(), 0, "the connection is kept, and the name not looked up again");
    told.then(&["127.0.0.1"]);
    let outcome = call(&outer).await;
    assert!(matches!(&outcome, Outcome::Fail { reason } if reason.class == Class::Refused), "{outcome:?}");
    assert!(calls.try_recv().is_err());
}

// ---- Programs ----

/// A script in the test's folder.
fn script(ground: &Ground, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = ground.path(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn programs_run_within_their_limits_and_only_those_on_the_list() {
    let ground = Ground::rabbit().await;
    std::fs::create_dir(ground.path("bin")).unwrap();
    let folder = ground.path("bin");
    let told_file = ground.path("told");
    let tells = format!(
        "cat /proc/self/limits > '{0}.part'; ls -l /proc/self/fd >> '{0}.part'; mv '{0}.part' '{0}'",
        told_file.display()
    );
    let tell = script(&ground, "bin/tell", &tells);
    let outside = script(&ground, "outside", "exit 0");
    std::os::unix::fs::symlink(&outside, folder.join("escape")).unwrap();
    // Shells that use more memory, or more CPU time, than their limits allow.
    let greedy = script(&ground, "bin/greedy", "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}; exit 65");
    let busy = script(&ground, "bin/busy", "while :; do :; done");
    let kind = |name: &str, program: &Path, limits: &str| {
        format!(
            "[kinds.{name}]\nqueue = \"work\"\ntimeout = \"5m\"\nretry.attempts = 1\n\
             handler.exec = {{ argv = [\"{}\"], env = {{ PATH = \"/usr/bin:/bin\" }}, {limits} }}\n",
            program.display()
        )
    };
    let all = "limits = { memory = \"256MiB\", cpu = \"30s\", files = 33, processes = 4321 }";
    let config = ground.config_file(
        &(format!("exec.allow = [\"{}\"]\n[queues.work]\n", folder.display())
            + &kind("tell", &tell, all)
            + &kind("greedy", &greedy, "limits = { memory = \"64MiB\" }")
            + &kind("busy", &busy, "limits = { cpu = \"1s\" }")
            + &kind("absent", &folder.join("absent"), "limits = { files = 33 }")
            + &kind("escape", &folder.join("escape"), all)
            + &kind("outside", &outside, "cwd = \"/\"")),
    );
    ok("topology apply", &config, &[]).await;
    // What is open for the worker when it is started stays open for programs: as much as when the test starts it.
    let open = |text: &str| text.lines().filter(|line| line.contains(" -> ")).count();
    assert!(std::process::Command::new(&tell).status().unwrap().success());
    let inherited = open(&std::fs::read_to_string(&told_file).unwrap());
    std::fs::remove_file(&told_file).unwrap();
    let mut worker = worker(&config);
    for name in ["tell", "greedy", "busy", "absent", "escape", "outside"] {
        ok("publish", &config, &[name, name]).await;
    }
    let failed = failures(&config, 5).await;
    let reason =
        |key: &str| &failed.iter().find(|(of, _)| of == key).unwrap_or_else(|| panic!("{key} in {failed:?}")).1;
    let real = outside.canonicalize().unwrap();
    for (key, program) in [("escape", &folder.join("escape")), ("outside", &outside)] {
        let expected = format!(
            "not started: {} is {}, and neither that nor its folder is in exec.allow",
            program.display(),
            real.display()
        );
        assert_eq!(reason(key), &expected);
    }
    assert!(reason("absent").starts_with("cannot start ") && reason("absent").contains("No such file"), "{failed:?}");
    assert!(reason("busy").starts_with("killed by SIGXCPU"), "{failed:?}");
    assert!(!reason("greedy").starts_with("exit 65"), "it got the memory: {failed:?}");
    until("the program has told", async || told_file.exists()).await;
    worker.kill().await.unwrap();
    let text = std::fs::read_to_string(told_file).unwrap();
    let limit = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(limit("Max address space"), "268435456 268435456");
    assert_eq!(limit("Max cpu time"), "30 35");
    assert_eq!(limit("Max open files"), "33 33");
    assert_eq!(limit("Max processes"), "4321 4321");
    assert_eq!(open(&text), inherited, "nothing of the worker's own is open in its programs: {text}");
}

#[tokio::test]
async fn check_reports_wrong_outward_settings() {
    let ground = Ground::embedded();
    let table = [
        ("sign = \"secret\"", "kinds.k.handler.http.sign: secret 1 is not `whsec_`"),
        ("sign = 5", "kinds.k.handler.http.sign: must be a secret"),
        ("sign = [\"whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\", 5]", "must be a secret"),
        ("allow = [\"10.0.0.1/8\"]", "kinds.k.handler.http.allow: `10.0.0.1/8` does not begin where the network does"),
        ("allow = [\"http://x\"]", "nor the name of a host"),
        (
            "sign = \"whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\"\nheaders = { Webhook-Id = \"x\" }",
            "headers.Webhook-Id: is set by the engine",
        ),
    ];
    for (setting, words) in table {
        let text = format!("[queues.q]\n[kinds.k.handler.http]\nurl = \"http://127.0.0.1/\"\n{setting}\n");
        refused("check", &ground.config_file(&text), &[], &[words]).await;
    }
    for (limits, words) in [
        ("memory = \"512MB\"", "limits.memory: `512MB` is no size"),
        ("memory = \"1KiB\"", "`1KiB` is no size from 1MiB on"),
        ("cpu = \"1500ms\"", "limits.cpu: is counted in whole seconds"),
        ("cpu = \"0s\"", "limits.cpu: 0ns is out of range"),
        ("files = 2", "limits.files: 2 is out of range"),
        ("processes = 0", "limits.processes: 0 is out of range"),
        ("disk = 1", "unknown key `disk`"),
    ] {
        let text = format!("[queues.q]\n[kinds.k.handler.exec]\nargv = [\"/bin/true\"]\nlimits = {{ {limits} }}\n");
        refused("check", &ground.config_file(&text), &[], &[words]).await;
    }
    let text = "exec.allow = [\"bin\"]\n[queues.q]\n[kinds.k]\nhandler.exec.argv = [\"/bin/true\"]\n";
    refused("check", &ground.config_file(text), &[], &["exec.allow: `bin` is not an absolute path"]).await;
}
