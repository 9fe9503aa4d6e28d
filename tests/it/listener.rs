//! Strangers at a worker's `worker.listen`, and a worker that has no more files to open: by the real program.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::commands::{ok, told};
use crate::harness::{Ground, until};
use crate::monitoring::{Observed, enroll};
use crate::served::read_all;

/// Less than a probe of Kubernetes waits.
const PROBE: Duration = Duration::from_secs(2);

/// A service, and the attempts and keys that it was called with.
async fn service() -> (String, Arc<Mutex<Vec<(String, u64)>>>) {
    type Calls = Arc<Mutex<Vec<(String, u64)>>>;
    async fn called(State(calls): State<Calls>, axum::Json(job): axum::Json<Value>) {
        calls.lock().push((job["key"].as_str().unwrap().into(), job["attempt"].as_u64().unwrap()));
    }
    let calls = Calls::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let app = Router::new().route("/", post(called)).with_state(calls.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, calls)
}

/// From now on the worker may have `most` files open; files that are open stay open.
async fn files(worker: &Observed, most: u32) {
    let (pid, limit) = (worker.pid().to_string(), format!("--nofile={most}:4096"));
    let set = tokio::process::Command::new("/usr/bin/prlimit").args(["--pid", &pid, &limit]).status().await.unwrap();
    assert!(set.success());
}

async fn connect(from: &str, to: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(to.parse().unwrap()).await.unwrap()
}

/// Sends these bytes, and answers what comes back until the worker closes the connection.
async fn raw(worker: &Observed, text: &str) -> String {
    let mut stream = connect("127.0.0.1", worker.address()).await;
    let _ = stream.write_all(text.as_bytes()).await;
    read_all(&mut stream).await
}

/// The last attempt of the chain `x` of a kind.
async fn last(config: &Path, kind: &str) -> Value {
    told("show", config, &[kind, "x"]).await["chain"]["attempts"][0].clone()
}

#[tokio::test]
async fn slow_connections_of_strangers_delay_neither_probes_nor_jobs() {
    let ground = Ground::embedded();
    let (url, calls) = service().await;
    let config = ground.config_file(&format!(
        "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\nretry.attempts = 1\nhandler.http.url = \
         \"{url}\"\n"
    ));
    let worker = Observed::start(&config).await;
    files(&worker, 256).await;
    let mut slow = Vec::new();
    for stranger in 2..=9 {
        for _ in 0..40 {
            let mut stream = connect(&format!("127.0.0.{stranger}"), worker.address()).await;
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ").await;
            slow.push(stream);
        }
        for path in ["/healthz", "/readyz", "/metrics"] {
            let answer = timeout(PROBE, worker.get(path)).await.expect("strangers keep nobody from asking");
            assert!(answer.0.is_success() || path == "/readyz", "{answer:?}");
        }
    }
    // One that takes all for itself, and says nothing at all.
    for _ in 0..80 {
        slow.push(connect("127.0.0.1", worker.address()).await);
    }
    let answer = timeout(PROBE, worker.get("/healthz")).await.expect("nor does one of the prober's own address");
    assert!(answer.0.is_success(), "{answer:?}");
    enroll(&config, ground.folder.path(), "sync").await;
    until("the job runs", async || !calls.lock().is_empty()).await;
    assert_eq!(*calls.lock(), [("x".to_owned(), 1)]);
    for stream in &mut slow {
        read_all(stream).await;
    }
}

#[tokio::test]
async fn a_body_that_never_comes_is_not_waited_for() {
    let ground = Ground::embedded();
    let config = ground.config_file("[queues.work]\n");
    let worker = Observed::start(&config).await;
    let head = "Host: localhost\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{";
    let answer = timeout(PROBE, raw(&worker, &format!("POST /progress/guessed HTTP/1.1\r\n{head}"))).await;
    let answer = answer.expect("nobody knows this run, whatever it would report");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

#[tokio::test]
async fn a_rebound_host_name_reads_nothing_of_a_worker() {
    let ground = Ground::embedded();
    let config = ground.config_file(
        "[worker]\nhosts = [\"Worker.example.org\"]\ncallback = \"http://worker-1.internal:9464/x\"\n[queues.work]\n",
    );
    let worker = Observed::start(&config).await;
    let asked = async |path: &str, host: &str| {
        let answer = raw(&worker, &format!("GET {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n")).await;
        answer.split(' ').nth(1).unwrap_or_default().parse::<u16>().unwrap_or_default()
    };
    for path in ["/metrics", "/healthz", "/readyz", "/progress/x", "/nothing"] {
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:9464", "worker.example.org.evil.example"]
        {
            assert_eq!(asked(path, &format!("Host: {host}\r\n")).await, 421, "{path} {host}");
        }
        for twice in ["Host: localhost\r\nHost: evil.example\r\n", "Host: user@localhost\r\n"] {
            assert_eq!(asked(path, twice).await, 400, "{path} {twice}");
        }
    }
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    // Kubernetes and Prometheus ask by address, Compose's network by the name of the service.
    for host in [
        "localhost",
        "127.0.0.1:9464",
        "10.1.2.3:9464",
        "[2001:db8::1]:9464",
        "worker-ios:9464",
        "worker-1.internal:9464",
        "WORKER.example.org",
        &here,
    ] {
        assert_eq!(asked("/healthz", &format!("Host: {host}\r\n")).await, 200, "{host}");
    }
    assert!(raw(&worker, "GET /healthz HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 200"), "as HAProxy asks");
}

/// By a POST, one to a name that has to be looked up, and by a program: none can be without a new file.
#[tokio::test]
async fn a_worker_without_free_files_defers_runs_and_charges_no_attempt() {
    let ground = Ground::embedded();
    let (url, calls) = service().await;
    let ran = ground.path("ran");
    let kind = "queue = \"work\"\nevery = \"1h\"\nretry.attempts = 1\n";
    let config = ground.config_file(&format!(
        "[catch_up]\nevery = \"1s\"\nslack = \"1s\"\n[queues.work]\n[kinds.call]\n{kind}handler.http.url = \"{url}\"\n\
         [kinds.name]\n{kind}handler.http.url = \"{}\"\n\
         [kinds.start]\n{kind}handler.exec.argv = [\"/bin/sh\", \"-c\", 'echo $ROUNDELAY_ATTEMPT >> {}']\n",
        url.replace("127.0.0.1", "localhost"),
        ran.display()
    ));
    let worker = Observed::start(&config).await;
    until("it is ready", async || worker.get("/readyz").await.0.is_success()).await;
    files(&worker, 3).await;
    for kind in ["call", "name", "start"] {
        enroll(&config, ground.folder.path(), kind).await;
    }
    for kind in ["call", "name", "start"] {
        until("it is put off", async || last(&config, kind).await["verdict"] != json!(null)).await;
        let last = last(&config, kind).await;
        assert_eq!(last["verdict"], "snoozed", "{last}");
        let why = last["reason"].as_str().unwrap();
        assert!(why.contains("no more files can be opened") && why.contains("ulimit -n"), "{why}");
    }
    assert!(calls.lock().is_empty());
    files(&worker, 1_024).await;
    until("all have run", async || calls.lock().len() == 2 && ran.exists()).await;
    let first = ("x".to_owned(), 1);
    assert_eq!(*calls.lock(), [first.clone(), first], "it is still the first attempt");
    assert_eq!(std::fs::read_to_string(&ran).unwrap(), "1\n");
    let failed: Value =
        serde_json::from_str(ok("failed list", &config, &["--json"]).await.lines().last().unwrap()).unwrap();
    assert_eq!(failed["failures"], json!([]), "{failed}");
    let counted =
        worker.metrics().await.get("roundelay_attempts_total{kind=\"call\",verdict=\"snoozed\",reason=\"files\"}");
    assert!(counted >= 1.0, "{counted}");
}
