//! The ready-made handlers against real servers and real programs, and the demo's upstream.

#![allow(clippy::unwrap_used, reason = "these are tests, helper functions included")]

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, future, stream};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use roundelay::Context;
use roundelay::clock::{Clock, Entropy, Time};
use roundelay::demo::upstream::{PlatformSettings, Upstream, UpstreamSettings};
use roundelay::egress::Reach;
use roundelay::handler::Handler;
use roundelay::handler::exec::{ExecHandler, ExecSettings};
use roundelay::handler::http::{self, Clients, HttpError, HttpHandler, HttpSettings};
use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::job::{Job, Tick};
use roundelay::outcome::Outcome;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes on the slowest of machines; never waited for in full.
const LONG: Duration = Duration::from_secs(120);

fn job(key: &str, payload: Value) -> Job {
    let now = Clock::System.now();
    Job {
        id: "ledger-7-3".into(),
        kind: "sync".into(),
        key: key.into(),
        queue: "sync-npm".into(),
        tick: Some(Tick { epoch: Epoch(7), tick: TickNo(3), fence: Fence(9) }),
        attempt: 2,
        owner: None,
        carry: Value::Null,
        unavailable: Vec::new(),
        grace: Duration::ZERO,
        nominal: Time::from_millis(1_790_000_000_123),
        deadline: now + LONG,
        seed: u64::MAX,
        payload,
    }
}

/// A handler with this test's clients: each test has its own thread and runtime, and connections belong to a runtime.
/// To make a client is slow, because it reads all certificates of the system.
fn posting(settings: &HttpSettings) -> Result<HttpHandler, HttpError> {
    thread_local! {
        static CLIENTS: Clients = Clients::default();
    }
    CLIENTS.with(|clients| HttpHandler::new(settings, clients, Clock::System))
}

/// Runs `job` and does not wait for ever.
async fn run(handler: &dyn Handler, job: Job) -> Outcome {
    timeout(2 * LONG, handler.run(job, Context::default())).await.expect("the handler hangs")
}

/// For what gives no signal: the state of another process, the end of a connection.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LONG, wait).await.unwrap_or_else(|_| panic!("not within {LONG:?}: {what}"));
}

/// Lets every timer run out, also those of two minutes.
async fn the_deadline_comes() {
    tokio::time::pause();
    tokio::time::advance(2 * LONG).await;
    tokio::time::resume();
}

/// An outcome's name and reason.
fn reason(outcome: Outcome) -> (&'static str, String) {
    match outcome {
        Outcome::Done => ("done", String::new()),
        Outcome::Retry { reason, .. } => ("retry", reason.text),
        Outcome::Fail { reason } => ("fail", reason.text),
        Outcome::Snooze { reason, .. } => ("snooze", reason.text),
        Outcome::DoneWith(_) => ("done", String::new()),
        Outcome::Retire { reason } => ("retire", reason.text),
    }
}

mod http_handler {
    use super::*;

    /// A call as the server saw it.
    #[derive(Debug)]
    struct Seen {
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
        from: SocketAddr,
    }

    type Answer = fn() -> Response;

    /// A server that gives every call the same answer and tells of each.
    async fn server(answer: Answer) -> (String, mpsc::UnboundedReceiver<Seen>) {
        async fn serve(
            State((answer, seen)): State<(Answer, mpsc::UnboundedSender<Seen>)>,
            ConnectInfo(from): ConnectInfo<SocketAddr>,
            request: Request,
        ) -> Response {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let _ = seen.send(Seen { method: parts.method, uri: parts.uri, headers: parts.headers, body, from });
            answer()
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(serve).with_state((answer, sender));
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        (url, receiver)
    }

    /// A server that answers every call with exactly these bytes and hangs up.
    async fn raw_server(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut head = [0; 16];
                connection.read_exact(&mut head).await.unwrap();
                connection.write_all(answer).await.unwrap();
                connection.shutdown().await.unwrap();
                // Closing with unread input would reset the connection, and lose the answer.
                let mut rest = Vec::new();
                let _ = connection.read_to_end(&mut rest).await;
            }
        });
        address
    }

    fn handler(url: &str) -> HttpHandler {
        with_headers(url, &[]).unwrap()
    }

    fn with_headers(url: &str, headers: &[(&str, &str)]) -> Result<HttpHandler, HttpError> {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), (*value).into())).collect();
        let settings = HttpSettings { url: url.into(), headers, ..HttpSettings::default() };
        posting(&settings)
    }

    fn ok() -> Response {
        (StatusCode::OK, r#"{"name":"left-pad","version":"1.3.0"}"#).into_response()
    }

    #[tokio::test]
    async fn a_call_carries_the_job_in_body_and_headers() {
        let (url, mut seen) = server(ok).await;
        let handler = with_headers(&format!("{url}/hook?a=b"), &[("Authorization", "Bearer t"), ("X-A", "ü")]).unwrap();
        let job = job("npm/@types/ñode", json!({"platform": "npm", "name": "ñ"}));
        assert_eq!(run(&handler, job.clone()).await, Outcome::Done);

        let call = seen.recv().await.unwrap();
        assert_eq!((call.method, call.uri.to_string().as_str()), (Method::POST, "/hook?a=b"));
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        let expected = json!({
            "id": "ledger-7-3", "kind": "sync", "key": "npm/@types/ñode", "queue": "sync-npm", "attempt": 2,
            "payload": {"platform": "npm", "name": "ñ"}, "chain": {"epoch": 7, "tick": 3, "fence": 9},
            "nominal": 1_790_000_000_123_i64, "deadline": job.deadline.as_millis(), "seed": "18446744073709551615",
        });
        assert_eq!(body, expected);
        let table = [
            ("content-type", "application/json"),
            ("user-agent", concat!("roundelay/", env!("CARGO_PKG_VERSION"))),
            ("idempotency-key", "ledger-7-3"),
            ("roundelay-id", "ledger-7-3"),
            ("roundelay-kind", "sync"),
            ("roundelay-key", "npm/@types/%C3%B1ode"),
            ("roundelay-epoch", "7"),
            ("roundelay-tick", "3"),
            ("roundelay-fence", "9"),
            ("roundelay-attempt", "2"),
            ("roundelay-nominal", "2026-09-21T14:13:20.123Z"),
            ("roundelay-deadline", &job.deadline.to_string()),
            ("roundelay-seed", "18446744073709551615"),
            ("authorization", "Bearer t"),
        ];
        for (name, value) in table {
            assert_eq!(call.headers[name], value, "{name}");
        }
        assert_eq!(call.headers["x-a"].as_bytes(), "ü".as_bytes());
        assert!(!format!("{handler:?}").contains("Bearer"), "a token in debug output");
    }

    #[tokio::test]
    async fn a_one_off_job_has_no_chain() {
        let (url, mut seen) = server(ok).await;
        run(&handler(&url), Job { tick: None, ..job("k", Value::Null) }).await;
        let call = seen.recv().await.unwrap();
        assert!(serde_json::from_slice::<Value>(&call.body).unwrap().get("chain").is_none());
        assert!(!["epoch", "tick", "fence"].iter().any(|name| call.headers.contains_key(format!("roundelay-{name}"))));
    }

    #[tokio::test]
    async fn urls_are_constant_or_rendered() {
        let (url, mut seen) = server(ok).await;
        let payload = json!({"platform": "npm", "id": 17, "deep": {"er": ["x", "y"]}, "evil": "1&admin=true#"});
        let table = [
            ("/a/b%20c?d=@e", "npm/@types/node", "/a/b%20c?d=@e"),
            ("/{{ payload.platform }}/{{ key | urlencode }}", "npm/@types/node", "/npm/npm%2F%40types%2Fnode"),
            ("/{{ key }}", "npm/@types/node", "/npm%2F%40types%2Fnode"),
            ("/{{ key | raw }}", "npm/@types/node", "/npm/@types/node"),
            (
                "/base/{{ key }}?x={{ payload.evil }}",
                "../../admin/delete",
                "/base/..%2F..%2Fadmin%2Fdelete?x=1%26admin%3Dtrue%23",
            ),
            ("/x?at={{ key }}", "..", "/x?at=.."),
            ("/{{ key }}{{ key }}", "...", "/......"),
            ("/{{ key | urlencode }}", "a b?c#d&e=ñ.~-_", "/a%20b%3Fc%23d%26e%3D%C3%B1.~-_"),
            ("/{{ kind }}/{{ queue }}/{{ payload.id }}", "k", "/sync/sync-npm/17"),
            ("/{{ payload.deep.er[1] }}{% if payload.id > 5 %}/big{% endif %}", "k", "/y/big"),
        ];
        for (template, key, expected) in table {
            assert_eq!(run(&handler(&format!("{url}{template}")), job(key, payload.clone())).await, Outcome::Done);
            assert_eq!(seen.recv().await.unwrap().uri.to_string(), expected, "{template}");
        }
    }

    #[tokio::test]
    async fn a_job_that_has_no_url_fails() {
        let table = [
            ("http://h/{{ payload.platform }}", "k", json!({"name": 1}), "missing: payload.platform"),
            ("http://h/{{ payload.a.b | urlencode }}/{{ payload.c }}", "k", json!({"c": 1}), "missing: payload.a.b"),
            ("http://h/{{ payload.name }}", "k", json!({"name": null}), "missing: payload.name"),
            ("http://h/{{ payload.name | urlencode }}", "k", json!({"name": null}), "missing: payload.name"),
            ("http://h/{{ key | urlencode }}/x", "..", Value::Null, "\"..\" cannot be a segment of a path"),
            ("http://h/{{ key }}", ".", Value::Null, "\".\" cannot be a segment of a path"),
            ("http://h/{{ key }}{{ key }}", ".", Value::Null, "\"..\" cannot be a segment of a path"),
            ("http://h/{{ key | urlencode }}{{ key|urlencode }}/x", ".", Value::Null, "\"..\" cannot be a segment"),
            ("http://h/%2e{{ key }}?x", ".", Value::Null, "\"%2e.\" cannot be a segment of a path"),
            ("http://h/a/{{ key | raw }}", "b/../../c", Value::Null, "\"..\" cannot be a segment of a path"),
            ("http://h/a/{{ key | raw }}", "b\\.\t.\\c", Value::Null, "\"..\" cannot be a segment of a path"),
            ("http://h/{{ payload.name | raw }}", "k", json!({"name": null}), "missing: payload.name"),
            ("{{ key | raw }}", "file:///etc/passwd", Value::Null, "not an http or https URL but file"),
            ("{{ key | raw }}", "//host/x", Value::Null, "not a URL: relative URL without a base"),
            ("http://u:secret@{{ key }}/", "a b", Value::Null, "not a URL: invalid international domain name"),
        ];
        for (url, key, payload, part) in table {
            let (outcome, reason) = reason(run(&handler(url), job(key, payload)).await);
            assert!(outcome == "fail" && reason.contains(part), "{url}: {outcome} {reason}");
            assert!(!reason.contains("secret"), "{reason}");
        }
    }

    #[tokio::test]
    async fn settings_that_cannot_work_are_refused() {
        type Refused = (&'static str, &'static [(&'static str, &'static str)], &'static str);
        let table: [Refused; 9] = [
            ("http://h/{{ key", &[], "`url` is not a valid template: "),
            ("http://h/{{ key | urlencoded }}", &[], "unknown filter"),
            ("http://h/{{ now() }}", &[], "now"),
            ("h/path", &[], "`url`: not a URL"),
            ("ftp://h/", &[], "`url`: not an http or https URL but ftp"),
            ("http://h/", &[("bad name", "x")], "header `bad name`: is not a header name"),
            ("http://h/", &[("x", "a\nb")], "header `x`: has a value with control characters"),
            ("http://h/", &[("Roundelay-Id", "x")], "header `Roundelay-Id`: is set by the engine"),
            ("http://h/", &[("Content-Length", "5")], "header `Content-Length`: is set by the engine"),
        ];
        for (url, headers, part) in table {
            let error = with_headers(url, headers).unwrap_err().to_string();
            assert!(error.contains(part), "{url} {headers:?}: {error}");
            let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let told = http::check(&HttpSettings { url: url.into(), headers, ..HttpSettings::default() }).unwrap_err();
            assert_eq!(told.to_string(), error, "`roundelay check` says the same");
        }
    }

    #[tokio::test]
    async fn credentials_in_the_url_become_basic_authorization() {
        let (url, mut seen) = server(ok).await;
        for path in ["/a", "/{{ key }}"] {
            let url = format!("{}{path}", url.replace("http://", "http://user:pass@"));
            run(&handler(&url), job("k", Value::Null)).await;
            assert_eq!(seen.recv().await.unwrap().headers["authorization"], "Basic dXNlcjpwYXNz");
            let explicit = with_headers(&url, &[("Authorization", "Bearer t")]).unwrap();
            run(&explicit, job("k", Value::Null)).await;
            assert_eq!(seen.recv().await.unwrap().headers["authorization"], "Bearer t", "a configured header wins");
        }
    }

    #[tokio::test]
    async fn the_answer_is_the_outcome() {
        let s = Duration::from_secs;
        let table: [(Answer, Outcome); 7] = [
            (|| StatusCode::NO_CONTENT.into_response(), Outcome::Done),
            (
                || (StatusCode::NOT_FOUND, "no such package\n").into_response(),
                Outcome::fail("HTTP 404 Not Found: no such package"),
            ),
            (
                || (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "20")]).into_response(),
                Outcome::Snooze { reason: "HTTP 429 Too Many Requests".into(), wait: s(20) },
            ),
            (
                || {
                    (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")])
                        .into_response()
                },
                Outcome::Snooze { reason: "HTTP 503 Service Unavailable".into(), wait: s(1) },
            ),
            (
                || (StatusCode::BAD_GATEWAY, [("retry-after", "7")], "<html>").into_response(),
                Outcome::Retry { reason: "HTTP 502 Bad Gateway: <html>".into(), after: Some(s(7)) },
            ),
            (
                || (StatusCode::NOT_FOUND, r#"{"outcome":"retire","reason":"deleted"}"#).into_response(),
                Outcome::Retire { reason: "deleted".into() },
            ),
            (
                || (StatusCode::OK, r#"{"outcome":"snooze","after":"1m","reason":"not yet"}"#).into_response(),
                Outcome::Snooze { reason: "not yet".into(), wait: s(60) },
            ),
        ];
        for (answer, expected) in table {
            let (url, _seen) = server(answer).await;
            assert_eq!(run(&handler(&url), job("k", Value::Null)).await, expected);
        }
    }

    #[tokio::test]
    async fn redirects_are_not_followed() {
        let (url, mut seen) =
            server(|| (StatusCode::FOUND, [("location", "/elsewhere?token=t")]).into_response()).await;
        let expected = Outcome::fail("HTTP 302 Found: redirects are not followed: Location /elsewhere");
        assert_eq!(run(&handler(&url), job("k", Value::Null)).await, expected);
        seen.recv().await.unwrap();
        assert!(seen.try_recv().is_err(), "a second call");
    }

    #[tokio::test]
    async fn connections_are_reused() {
        let (url, mut seen) = server(ok).await;
        let mut connections = HashSet::new();
        for path in ["/a", "/{{ key }}"] {
            let settings = HttpSettings { url: format!("{url}{path}").into(), ..HttpSettings::default() };
            let handler = posting(&settings).unwrap();
            for _ in 0..20 {
                run(&handler, job("k", Value::Null)).await;
                connections.insert(seen.recv().await.unwrap().from);
            }
        }
        assert_eq!(connections.len(), 1);
    }

    fn endless(status: StatusCode) -> Response {
        let chunk = Ok::<_, std::convert::Infallible>(Bytes::from_static(&[b'x'; 10_000]));
        let body = Body::from_stream(stream::repeat(chunk));
        (status, body).into_response()
    }

    #[tokio::test]
    async fn an_endless_body_is_read_in_part() {
        let (url, _seen) = server(|| endless(StatusCode::OK)).await;
        assert_eq!(run(&handler(&url), job("k", Value::Null)).await, Outcome::Done);
        let (url, _seen) = server(|| endless(StatusCode::BAD_REQUEST)).await;
        let expected = format!("HTTP 400 Bad Request: {}…", "x".repeat(200));
        assert_eq!(run(&handler(&url), job("k", Value::Null)).await, Outcome::fail(expected));
    }

    #[tokio::test]
    async fn a_body_in_many_pieces_is_put_together() {
        let (url, _seen) = server(|| {
            let pieces = ["{\"outcome\"", ":\"retire\",", "\"reason\":\"in pieces\"}"];
            let pieces = pieces.map(|piece| Ok::<_, std::convert::Infallible>(Bytes::from_static(piece.as_bytes())));
            Body::from_stream(stream::iter(pieces)).into_response()
        })
        .await;
        let expected = Outcome::Retire { reason: "in pieces".into() };
        assert_eq!(run(&handler(&url), job("k", Value::Null)).await, expected);
    }

    #[tokio::test]
    async fn a_server_that_never_answers_is_given_up_at_the_deadline() {
        for answer in [&b""[..], b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let handler = handler(&format!("http://{}/", listener.local_addr().unwrap()));
            let running = tokio::spawn(async move { handler.run(job("k", Value::Null), Context::default()).await });
            let (mut connection, _) = timeout(LONG, listener.accept()).await.unwrap().unwrap();
            connection.read_exact(&mut [0; 16]).await.unwrap();
            connection.write_all(answer).await.unwrap();
            the_deadline_comes().await;
            assert_eq!(timeout(LONG, running).await.unwrap().unwrap(), Outcome::retry("no answer by the deadline"));
        }
        let past = Job { deadline: Clock::System.now(), ..job("k", Value::Null) };
        let outcome = run(&handler("http://127.0.0.1:1/"), past).await;
        assert_eq!(outcome, Outcome::retry("the deadline had passed before the call"));
    }

    #[tokio::test]
    async fn an_answer_that_comes_in_drops_is_given_up_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let handler = handler(&format!("http://{}/", listener.local_addr().unwrap()));
        let (dropped, mut drops) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n").await.unwrap();
            while connection.write_all(b" ").await.is_ok() && dropped.send(()).is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let running = tokio::spawn(async move { handler.run(job("k", Value::Null), Context::default()).await });
        for _ in 0..3 {
            timeout(LONG, drops.recv()).await.unwrap().unwrap();
        }
        the_deadline_comes().await;
        assert_eq!(timeout(LONG, running).await.unwrap().unwrap(), Outcome::retry("no answer by the deadline"));
    }

    #[tokio::test]
    async fn an_unusable_answer_is_retried() {
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap()
        };
        let table = [
            (closed, "cannot connect to 127.0.0.1:PORT: Connection refused (os error 111)"),
            (raw_server(b"SSH-2.0-OpenSSH_9.9\r\n").await, "the call to 127.0.0.1:PORT failed: "),
            (raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}").await, "the answer broke off: "),
        ];
        for (address, expected) in table {
            let handler = handler(&format!("http://user:secret@{address}/path?token=secret"));
            let (outcome, reason) = reason(run(&handler, job("k", Value::Null)).await);
            let expected = expected.replace("PORT", &address.port().to_string());
            assert!(outcome == "retry" && reason.starts_with(&expected), "{outcome} {reason}");
            assert!(!reason.contains("secret"), "{reason}");
        }
    }
}

mod exec_handler {
    use super::*;

    fn handler(argv: &[&str]) -> ExecHandler {
        let env = BTreeMap::from([("PATH".to_string(), "/usr/bin:/bin".into())]);
        let settings =
            ExecSettings { argv: argv.iter().map(|arg| arg.to_string()).collect(), env, ..ExecSettings::default() };
        ExecHandler::new(&settings, Clock::System).unwrap()
    }

    /// Runs a shell script whose `$1` is `file`.
    fn script(script: &str, file: &Path) -> ExecHandler {
        handler(&["/bin/sh", "-c", script, "script", file.to_str().unwrap()])
    }

    async fn outcome(text: &str) -> Outcome {
        run(&script(text, Path::new("/dev/null")), job("k", Value::Null)).await
    }

    /// A named pipe: a script that writes to it says that it has come that far.
    fn fifo(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    /// The process ids that a script writes to `fifo`.
    async fn pids(fifo: &Path) -> Vec<i32> {
        let text = timeout(LONG, tokio::fs::read_to_string(fifo)).await.unwrap().unwrap();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    /// `R`, `S`, `Z` and so on; `None` when there is no such process.
    fn state(pid: i32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    /// Waits until the leader is gone without a trace, and the others are dead: to bury them is the
    /// business of the process that inherits them.
    async fn all_gone(pids: &[i32]) {
        until("the leader is reaped", || state(pids[0]).is_none()).await;
        for pid in &pids[1..] {
            until("the rest is dead", || matches!(state(*pid), None | Some('Z' | 'X'))).await;
        }
    }

    const FAMILY: &str = r#"sleep 1000 & (sleep 1000 & echo $$ $! > "$1"; wait) & wait"#;

    #[tokio::test]
    async fn the_program_gets_the_job_and_only_its_own_environment() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let settings = ExecSettings {
            argv: ["/bin/sh", "-c", "cat > file; /usr/bin/env > env", "ignored"].map(String::from).into(),
            env: BTreeMap::from([("REGION".into(), "eu west".into()), ("ROUNDELAY_ID".into(), "mine".into())]),
            cwd: Some(folder.path().into()),
            ..ExecSettings::default()
        };
        let handler = ExecHandler::new(&settings, Clock::System).unwrap();
        let job = job("npm/@types/ñode", json!({"platform": "npm"}));
        assert_eq!(run(&handler, job.clone()).await, Outcome::Done);

        let input: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!((&input["key"], &input["chain"]["tick"]), (&json!("npm/@types/ñode"), &json!(3)));
        assert_eq!((&input["seed"], &input["payload"]), (&json!("18446744073709551615"), &json!({"platform": "npm"})));
        let env = std::fs::read_to_string(folder.path().join("env")).unwrap();
        let env: BTreeMap<&str, &str> = env.lines().filter_map(|line| line.split_once('=')).collect();
        let deadline = job.deadline.to_string();
        let mut expected = BTreeMap::from([
            ("REGION", "eu west"),
            ("ROUNDELAY_ID", "ledger-7-3"),
            ("ROUNDELAY_KIND", "sync"),
            ("ROUNDELAY_KEY", "npm/@types/ñode"),
            ("ROUNDELAY_ATTEMPT", "2"),
            ("ROUNDELAY_TICK", "3"),
            ("ROUNDELAY_DEADLINE", deadline.as_str()),
        ]);
        // The shell's own.
        for name in ["PWD", "OLDPWD", "SHLVL", "_"] {
            expected.extend(env.get_key_value(name));
        }
        assert_eq!(env, expected);
    }

    #[tokio::test]
    async fn the_exit_code_is_the_outcome() {
        let table = [
            ("exit 0", Outcome::Done),
            ("echo working; echo trouble >&2", Outcome::Done),
            (
                r#"echo log; echo '{"outcome":"snooze","after":30,"reason":"x"}'"#,
                Outcome::Snooze { reason: "x".into(), wait: Duration::from_secs(30) },
            ),
            ("echo one >&2; echo two >&2; exit 75", Outcome::retry("exit 75: two")),
            ("echo bad row >&2; exit 65", Outcome::fail("exit 65: bad row")),
            ("exit 1", Outcome::retry("exit 1")),
            ("kill -TERM $$", Outcome::retry("killed by SIGTERM")),
        ];
        for (text, expected) in table {
            assert_eq!(outcome(text).await, expected, "{text}");
        }
        let (what, why) = reason(outcome(r#"echo '{"outcome":"snooze"}'"#).await);
        assert!(what == "fail" && why.contains("needs an `after`"), "{why}");
    }

    #[tokio::test]
    async fn a_program_that_cannot_start_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "#!/bin/sh\n").unwrap();
        let plain = plain.to_str().unwrap();
        let table = [
            ("/no/such/program", "cannot start /no/such/program: No such file or directory (os error 2)".to_string()),
            (plain, format!("cannot start {plain}: Permission denied (os error 13)")),
        ];
        for (program, expected) in table {
            assert_eq!(run(&handler(&[program]), job("k", Value::Null)).await, Outcome::retry(expected));
        }
        let settings =
            ExecSettings { argv: vec!["/bin/true".into()], cwd: Some("/no/such".into()), ..ExecSettings::default() };
        let (what, why) =
            reason(run(&ExecHandler::new(&settings, Clock::System).unwrap(), job("k", Value::Null)).await);
        assert!(what == "retry" && why.starts_with("cannot start /bin/true in /no/such: "), "{why}");
    }

    #[tokio::test]
    async fn a_program_need_not_read_its_input() {
        let large = json!("x".repeat(1 << 20));
        assert_eq!(run(&handler(&["/bin/true"]), job("k", large.clone())).await, Outcome::Done);
        let deaf = handler(&["/bin/sh", "-c", "exec 0<&-; echo deaf >&2; exit 3"]);
        assert_eq!(run(&deaf, job("k", large.clone())).await, Outcome::retry("exit 3: deaf"));
        let counting = handler(&["/bin/sh", "-c", r#"echo "$(wc -c) bytes" >&2; exit 3"#]);
        let (_, why) = reason(run(&counting, job("k", large)).await);
        let bytes: usize = why.strip_prefix("exit 3: ").unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(bytes > 1 << 20, "a program that reads gets all: {bytes}");
    }

    #[tokio::test]
    async fn a_flood_of_output_neither_blocks_nor_hides_the_last_line() {
        let flood = r#"yes | head -c 10000000; yes error | head -c 10000000 >&2; echo; "#;
        let text = format!(r#"{flood} echo '{{"outcome":"retire","reason":"wet"}}'"#);
        assert_eq!(outcome(&text).await, Outcome::Retire { reason: "wet".into() });
        assert_eq!(
            outcome(&format!("{flood} echo >&2; echo drowned >&2; exit 1")).await,
            Outcome::retry("exit 1: drowned")
        );
        let endless = "head -c 10000000 /dev/zero; head -c 10000000 /dev/zero >&2; exit 2";
        let (what, why) = reason(outcome(endless).await);
        assert!(what == "retry" && why.chars().count() <= "exit 2: ".len() + 201, "one line without end");
    }

    #[tokio::test]
    async fn the_deadline_kills_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(&folder);
        let handler = script(FAMILY, &fifo);
        let running = tokio::spawn(async move { handler.run(job("k", Value::Null), Context::default()).await });
        let pids = pids(&fifo).await;
        assert!(pids.iter().all(|pid| state(*pid).is_some()));

        the_deadline_comes().await;
        assert_eq!(timeout(LONG, running).await.unwrap().unwrap(), Outcome::retry("no exit by the deadline, killed"));
        assert_eq!(state(pids[0]), None, "reaped before the outcome is known");
        all_gone(&pids).await;
    }

    #[tokio::test]
    async fn a_dropped_run_kills_the_whole_group() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(&folder);
        let handler = script(FAMILY, &fifo);
        let running = tokio::spawn(async move { handler.run(job("k", Value::Null), Context::default()).await });
        let pids = pids(&fifo).await;
        running.abort();
        all_gone(&pids).await;
    }

    #[test]
    fn a_runtime_that_ends_takes_its_programs_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(&folder);
        let handler = script(FAMILY, &fifo);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move { handler.run(job("k", Value::Null), Context::default()).await });
        let pids = runtime.block_on(pids(&fifo));
        runtime.shutdown_timeout(LONG);
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        other.block_on(until("all are dead", || pids.iter().all(|pid| matches!(state(*pid), None | Some('Z' | 'X')))));
    }

    #[tokio::test]
    async fn processes_left_in_a_programs_group_are_killed_when_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = fifo(&folder);
        let handler = script(r#"sleep 1000 & echo $$ $! > "$1"; exit 0"#, &fifo);
        let (outcome, pids) = tokio::join!(run(&handler, job("k", Value::Null)), pids(&fifo));
        assert_eq!(outcome, Outcome::Done);
        all_gone(&pids).await;
    }

    #[tokio::test]
    async fn a_process_that_left_the_group_does_not_delay_the_outcome() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        // The escaped one says when it has left, then keeps the output open.
        let escape = r#"mkfifo "$1.fifo"
            setsid sh -c 'echo $$ > "$0"; echo > "$0.fifo"; exec sleep 1000' "$1" &
            read -r _ < "$1.fifo"; exit 75"#;
        let outcome = run(&script(escape, &file), job("k", Value::Null)).await;
        let escaped = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(escaped), Signal::SIGKILL).unwrap();
        assert_eq!(outcome, Outcome::retry("exit 75"));
    }

    #[tokio::test]
    async fn many_programs_at_once_are_told_apart() {
        let handler = script("exit $(($ROUNDELAY_ATTEMPT))", Path::new("/dev/null"));
        let runs = (1..=40).map(|attempt| run(&handler, Job { attempt, ..job("k", Value::Null) }));
        let outcomes = future::join_all(runs).await;
        for (n, outcome) in outcomes.into_iter().enumerate() {
            assert_eq!(outcome, Outcome::retry(format!("exit {}", n + 1)));
        }
    }

    #[tokio::test]
    async fn a_deadline_that_has_passed_starts_nothing() {
        let past = Job { deadline: Time::from_millis(0), ..job("k", Value::Null) };
        assert_eq!(
            run(&handler(&["/bin/true"]), past).await,
            Outcome::retry("the deadline had passed before the start")
        );
    }
}

mod upstream {
    use super::*;

    fn settings(allow: usize, packages: usize) -> UpstreamSettings {
        let packages = (0..packages).map(|n| (format!("@scope/p{n}").into(), format!("1.0.{n}").into())).collect();
        let platforms = BTreeMap::from([("npm".to_string(), PlatformSettings { allow, packages })]);
        UpstreamSettings { platforms, ..UpstreamSettings::default() }
    }

    async fn start(settings: UpstreamSettings) -> (Upstream, HttpHandler, CancellationToken) {
        let stop = CancellationToken::new();
        let upstream = Upstream::start(settings, Entropy::seeded(1), stop.clone()).await.unwrap();
        let settings = HttpSettings {
            url: format!("{}/{{{{ payload.platform }}}}", upstream.url()).into(),
            ..HttpSettings::default()
        };
        let handler = posting(&settings).unwrap();
        (upstream, handler, stop)
    }

    fn package(n: usize, tick: i64) -> Job {
        let name = format!("@scope/p{n}");
        let tick = Some(Tick { epoch: Epoch(1), tick: TickNo(tick), fence: Fence(tick) });
        Job { tick, ..job(&format!("npm/{name}"), json!({"platform": "npm", "name": name})) }
    }

    #[tokio::test]
    async fn the_upstream_plays_a_registry_and_judges_its_callers() {
        const PACKAGES: usize = 1_500;
        let settings = UpstreamSettings { broken: 0.02, missing: 0.01, ..settings(1_000_000, PACKAGES) };
        let (upstream, handler, stop) = start(settings).await;
        let (mut found, mut missing, mut broken) = (0, HashSet::new(), 0);
        for tick in 1..=2 {
            let calls = (0..PACKAGES).map(|n| run(&handler, package(n, tick)));
            let outcomes: Vec<_> = stream::iter(calls).buffered(50).collect().await;
            for (n, outcome) in outcomes.into_iter().enumerate() {
                match reason(outcome) {
                    ("done", _) => found += 1,
                    ("fail", why) if why == "HTTP 404 Not Found: no such package" => drop(missing.insert(n)),
                    ("retry", why) if why == "HTTP 500 Internal Server Error: out of luck" => broken += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        let stats = upstream.stats();
        let npm = &stats.platforms["npm"];
        assert_eq!((npm.ok, npm.broken, npm.too_many), (found, broken, 0));
        let named = missing.len() as u64;
        assert!((5..=30).contains(&named) && npm.not_found <= 2 * named, "the same names each time: {missing:?}");
        assert!((20..=120).contains(&broken), "{broken} of 3,000 at 2 %");
        assert_eq!((stats.verdict.calls, stats.verdict.entities, stats.verdict.forked()), (3_000, PACKAGES, 0));
        assert_eq!((stats.verdict.running, stats.rejected), (0, 0));
        assert_eq!(upstream.calls("sync", "npm/@scope/p7").unwrap().0, 2);

        stop.cancel();
        drop(handler);
        let last = timeout(LONG, upstream.stopped()).await.unwrap().unwrap();
        assert_eq!(last.verdict.calls, 3_000);
    }

    #[tokio::test]
    async fn a_second_call_at_once_is_told() {
        let ages = Duration::from_secs(3_600);
        let (upstream, handler, _stop) = start(UpstreamSettings { latency: ages..=ages, ..settings(1_000, 2) }).await;
        let verdict = || upstream.stats().verdict;
        let calls = future::join3(
            handler.run(package(0, 1), Context::default()),
            handler.run(package(0, 1), Context::default()),
            handler.run(package(1, 1), Context::default()),
        );
        tokio::select! {
            outcomes = calls => panic!("{outcomes:?}"),
            () = until("all three are in", || verdict().running == 3) => {}
        }
        assert_eq!((verdict().overlaps, verdict().repeats, verdict().forked()), (1, 0, 1));
        assert_eq!((verdict().offences[0].key.as_str(), verdict().offences[0].overlap), ("npm/@scope/p0", true));
        until("callers that have hung up are not in progress", || verdict().running == 0).await;
    }

    #[tokio::test]
    async fn a_repeated_tick_is_told() {
        let now = Duration::ZERO;
        let settings = UpstreamSettings { latency: now..=now, broken: 0.0, missing: 0.0, ..settings(1_000, 2) };
        let (upstream, handler, _stop) = start(settings).await;
        for (n, tick) in [(0, 1), (1, 1), (0, 2), (1, 1), (1, 2)] {
            assert_eq!(run(&handler, package(n, tick)).await, Outcome::Done);
        }
        let verdict = upstream.stats().verdict;
        assert_eq!((verdict.overlaps, verdict.repeats, verdict.forked()), (0, 1, 1));
        assert_eq!((verdict.offences[0].key.as_str(), verdict.offences[0].repeat), ("npm/@scope/p1", true));
    }

    #[tokio::test]
    async fn an_upstream_beyond_its_rate_says_when_to_come_back() {
        let (upstream, handler, _stop) = start(UpstreamSettings { broken: 0.0, missing: 0.0, ..settings(5, 50) }).await;
        let outcomes = future::join_all((0..50).map(|n| run(&handler, package(n, 1)))).await;
        let snooze = Outcome::Snooze { reason: "HTTP 429 Too Many Requests".into(), wait: Duration::from_secs(1) };
        let (done, snoozed): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|outcome| *outcome == Outcome::Done);
        assert!(snoozed.iter().all(|outcome| *outcome == snooze), "{snoozed:?}");
        let npm = &upstream.stats().platforms["npm"];
        assert_eq!((npm.ok as usize, npm.too_many as usize), (done.len(), snoozed.len()));
        // More than five of them are in only when the calls took longer than a second.
        assert!(done.len() >= 5 && npm.busiest_second == 5, "{npm:?}");
    }

    #[tokio::test]
    async fn a_call_that_is_no_job_is_rejected_and_counted() {
        let (upstream, handler, _stop) = start(settings(1_000, 1)).await;
        let elsewhere = Job { payload: json!({"platform": "maven"}), ..package(0, 1) };
        assert_eq!(reason(run(&handler, elsewhere).await).0, "fail");
        let client = Clients::default().get(&Reach::default()).unwrap();
        let response = client.post(format!("{}/npm/some/path", upstream.url())).body("{}").send();
        assert_eq!(response.await.unwrap().status(), 400);
        assert_eq!((upstream.stats().rejected, upstream.stats().verdict.calls), (2, 0));
    }
}
