//! Traces, by the real program: what a collector gets, and what a worker does without one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use parking_lot::Mutex;
use prost::Message as _;
use roundelay::Outcome;
use roundelay::broker::{Destination, Message};
use roundelay::clock::Clock;
use roundelay::job::Envelope;
use roundelay::telemetry::Count;
use roundelay::trace_context::{Carried, Context};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::harness::{Ground, SOON, Watched, on_all, roundelay, until, worker};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SENDER: &str = "b7ad6b7169203331";

on_all!(contexts_travel_to_handlers);
on_all!(a_collector_that_takes_nothing_holds_nothing_up);

/// How a collector answers.
#[derive(Clone, Copy)]
enum Manner {
    Takes,
    Answers(u16),
    Never,
}

/// A collector, and a handler that is called, in one server.
struct Server {
    address: SocketAddr,
    desk: Arc<Desk>,
}

struct Desk {
    manner: Mutex<Manner>,
    spans: Mutex<Vec<Span>>,
    /// Which service each request came from, and its token.
    senders: Mutex<BTreeSet<(String, String)>>,
    /// The headers of each call of the handler, by the job's kind and attempt.
    calls: Mutex<Vec<(String, HeaderMap)>>,
}

impl Server {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let desk = Arc::new(Desk {
            manner: Mutex::new(Manner::Takes),
            spans: Mutex::default(),
            senders: Mutex::default(),
            calls: Mutex::default(),
        });
        let routes = Router::new().route("/v1/traces", post(collect)).route("/handler", post(handle));
        let routes = routes.with_state(desk.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, desk }
    }

    fn be(&self, manner: Manner) {
        *self.desk.manner.lock() = manner;
    }

    fn spans(&self) -> Vec<Span> {
        self.desk.spans.lock().clone()
    }
}

async fn collect(State(desk): State<Arc<Desk>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let manner = *desk.manner.lock();
    match manner {
        Manner::Takes => {}
        Manner::Answers(status) => return StatusCode::from_u16(status).unwrap(),
        Manner::Never => std::future::pending().await,
    }
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for resource in request.resource_spans {
        let of = attributes(&resource.resource.unwrap().attributes);
        let token = headers.get("x-token").map_or("", |token| token.to_str().unwrap());
        desk.senders.lock().insert((of["service.name"].clone(), token.to_owned()));
        desk.spans.lock().extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    StatusCode::OK
}

/// A job of the kind `ask` asks for a job of the kind `child`; the first try of a `tick` fails.
async fn handle(State(desk): State<Arc<Desk>>, headers: HeaderMap, Json(job): Json<Value>) -> (StatusCode, String) {
    let kind = job["kind"].as_str().unwrap().to_owned();
    desk.calls.lock().push((kind.clone(), headers));
    match (kind.as_str(), job["attempt"].as_u64(), job["chain"]["tick"].as_i64()) {
        ("ask", ..) => {
            (StatusCode::OK, json!({ "outcome": "done", "spawn": [{ "kind": "child", "key": "c" }] }).to_string())
        }
        (_, Some(1), Some(2)) => (StatusCode::BAD_GATEWAY, String::new()),
        _ => (StatusCode::OK, String::new()),
    }
}

fn attributes(all: &[opentelemetry_proto::tonic::common::v1::KeyValue]) -> BTreeMap<String, String> {
    let text = |value: Option<Any>| match value {
        Some(Any::StringValue(text)) => text,
        Some(Any::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    all.iter().map(|it| (it.key.clone(), text(it.value.clone().and_then(|value| value.value)))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A run as a collector knows it: the span of its delivery, and those directly below.
struct Traced {
    process: Span,
    below: BTreeMap<String, Span>,
}

impl Traced {
    /// That of the kind, the tick (or an empty text) and the attempt, if it is all there.
    fn find(spans: &[Span], kind: &str, tick: &str, attempt: &str) -> Option<Self> {
        let process = spans.iter().find(|span| {
            let of = attributes(&span.attributes);
            let is = |name: &str, value: &str| of.get(name).map_or("", String::as_str) == value;
            span.kind() == SpanKind::Consumer
                && is("roundelay.kind", kind)
                && is("roundelay.tick", tick)
                && is("roundelay.attempt", attempt)
        })?;
        let below = spans.iter().filter(|span| {
            (&span.trace_id, &span.parent_span_id) == (&process.trace_id, &process.span_id)
                && span.kind() != SpanKind::Consumer
        });
        Some(Self { process: process.clone(), below: below.map(|span| (span.name.clone(), span.clone())).collect() })
    }

    fn trace(&self) -> String {
        hex(&self.process.trace_id)
    }

    fn of(&self, name: &str) -> String {
        attributes(&self.process.attributes).get(name).cloned().unwrap_or_default()
    }

    /// In the order in which they began, each of which ends before the next begins.
    fn steps(&self) -> Vec<&str> {
        let mut steps: Vec<&Span> = self.below.values().collect();
        steps.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
        for pair in steps.windows(2) {
            assert!(pair[0].start_time_unix_nano <= pair[0].end_time_unix_nano, "{pair:?}");
            assert!(pair[0].end_time_unix_nano <= pair[1].start_time_unix_nano, "{pair:?}");
        }
        assert!(steps.last().unwrap().end_time_unix_nano <= self.process.end_time_unix_nano);
        steps.into_iter().map(|span| &*span.name).collect()
    }
}

#[tokio::test]
async fn a_collector_gets_the_whole_way_from_a_foreign_publisher_to_successors() {
    let (ground, server) = (Ground::rabbit().await, Server::start().await);
    let (address, env) = (server.address, ground.path("env"));
    let config = ground.config_file(&format!(
        r#"
        [tracing]
        otlp = "http://{address}"
        headers.X-Token = "t"
        sample = 1.0
        service = "charts"
        [queues.work]
        throttle = "wide"
        # A slot of a longer window may be used later, on a machine that is busy.
        [throttles.wide]
        allow = 60000
        per = "60s"
        [kinds.ask]
        queue = "work"
        handler.http.url = "http://{address}/handler"
        [kinds.tick]
        queue = "work"
        every = "1s"
        retry.backoff = ["1s"]
        handler.http.url = "http://{address}/handler"
        [kinds.child]
        handler.exec.argv = ["/bin/sh", "-c", "printf %s \"$TRACEPARENT $TRACESTATE\" > {}"]
        "#,
        env.display()
    ));
    let config_arg = config.display().to_string();
    assert!(roundelay(&["topology", "apply", "--config", &config_arg]).await.ok);
    let roster = ground.path("roster.csv");
    std::fs::write(&roster, "key\nx\n").unwrap();
    let enrolled = roundelay(&[
        "enroll",
        "--config",
        &config_arg,
        "--kind",
        "tick",
        "--spread",
        "0s",
        &roster.display().to_string(),
    ])
    .await;
    assert!(enrolled.ok, "{enrolled:?}");

    let mut program = worker(&config);
    until("it works", || async { !server.desk.calls.lock().is_empty() }).await;

    // A program in another language, which is traced itself.
    let raw = ground.vhost.as_ref().unwrap().raw().await;
    raw.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let mut headers = FieldTable::default();
    headers.insert("traceparent".into(), AMQPValue::LongString(format!("00-{TRACE}-{SENDER}-01").into()));
    headers.insert("tracestate".into(), AMQPValue::LongString("a=1".into()));
    let due = Clock::System.now() + Duration::from_secs(5);
    let body = json!({ "v": 1, "kind": "ask", "key": "k", "id": "order-7", "due": due, "queue": "work" }).to_string();
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let sent = raw.basic_publish("roundelay.jobs".into(), "work".into(), options, body.as_bytes(), properties);
    assert!(matches!(sent.await.unwrap().await.unwrap(), lapin::Confirmation::Ack(None)));

    let all = |spans: &[Span]| {
        let find = |kind, tick, attempt| Traced::find(spans, kind, tick, attempt);
        Some([
            find("ask", "", "1")?,
            find("child", "", "1")?,
            find("tick", "1", "1")?,
            find("tick", "2", "1")?,
            find("tick", "2", "2")?,
            find("tick", "3", "1")?,
        ])
    };
    until("all have run and are told", || async { all(&server.spans()).is_some() }).await;
    let pid = nix::unistd::Pid::from_raw(program.id().unwrap().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(timeout(SOON, program.wait()).await.unwrap().unwrap().success());
    let [ask, child, first, second, again, third] = all(&server.spans()).unwrap();
    let token = ("charts".to_owned(), "t".to_owned());
    assert_eq!(*server.desk.senders.lock(), BTreeSet::from([token]));

    // The job is part of its publisher's trace, and slept until it was due.
    assert_eq!((&*ask.process.name, hex(&ask.process.parent_span_id)), ("process work", SENDER.into()));
    assert_eq!((ask.trace(), &*ask.process.trace_state, ask.process.links.len()), (TRACE.into(), "a=1", 0));
    assert_eq!(ask.steps(), ["sleep", "queue", "permit", "POST", "publish work"]);
    let nanos = u64::try_from(due.as_millis()).unwrap() * 1_000_000;
    assert_eq!(ask.below["sleep"].end_time_unix_nano, nanos);
    assert!(ask.below["sleep"].start_time_unix_nano < nanos);
    assert_eq!(ask.below["queue"].start_time_unix_nano, nanos);
    assert_eq!(ask.below["queue"].end_time_unix_nano, ask.process.start_time_unix_nano);
    let of = |name| ask.of(name);
    assert_eq!((of("messaging.system"), of("messaging.destination.name")), ("rabbitmq".into(), "work".into()));
    assert_eq!((of("roundelay.key"), of("roundelay.id")), ("k".into(), "order-7".into()));
    assert_eq!((of("roundelay.verdict"), of("messaging.message.id")), ("done".into(), "order-7-1".into()));
    assert_eq!(attributes(&ask.below["permit"].attributes)["roundelay.throttle"], "wide");

    // Its handler is called in this trace, by a span of its own.
    let (_, call) = server.desk.calls.lock().iter().find(|(kind, _)| kind == "ask").unwrap().clone();
    let post = &ask.below["POST"];
    assert_eq!(call["traceparent"], format!("00-{TRACE}-{}-01", hex(&post.span_id)));
    assert_eq!(call["tracestate"], "a=1");
    let of = attributes(&post.attributes);
    assert_eq!((post.kind(), &*of["http.response.status_code"]), (SpanKind::Client, "200"));
    assert_eq!((&*of["server.address"], &*of["server.port"]), ("127.0.0.1", &*address.port().to_string()));

    // What it asked for follows in the same trace, below the span that published it.
    let publish = &ask.below["publish work"];
    assert_eq!((child.trace(), &child.process.parent_span_id), (TRACE.into(), &publish.span_id));
    assert_eq!(publish.kind(), SpanKind::Producer);
    assert_eq!(child.steps(), ["queue", "permit", "handle child"]);
    let handle = hex(&child.below["handle child"].span_id);
    assert_eq!(std::fs::read_to_string(env).unwrap(), format!("00-{TRACE}-{handle}-01 a=1"));

    // A tick is a trace of its own, known by its id, and follows from the one before.
    for tick in [&first, &second, &third] {
        assert_eq!(tick.trace(), hex(&Sha256::digest(tick.of("roundelay.id"))[..16]));
        assert!(tick.process.parent_span_id.is_empty(), "{:?}", tick.process);
    }
    assert!(first.process.links.is_empty(), "nobody traced who enrolled it");
    assert_eq!(first.steps(), ["queue", "permit", "claim", "POST", "finish", "publish work"]);
    assert_eq!(second.steps(), ["sleep", "queue", "permit", "claim", "POST", "finish", "publish work"]);
    for (before, after) in [(&first, &second), (&again, &third)] {
        let [link] = &after.process.links[..] else { panic!("{:?}", after.process) };
        let publish = &before.below["publish work"];
        assert_eq!((&link.trace_id, &link.span_id), (&before.process.trace_id, &publish.span_id));
        assert!(after.below["sleep"].start_time_unix_nano <= publish.end_time_unix_nano);
    }

    // Another attempt is part of the same trace.
    assert_eq!((second.trace(), second.of("roundelay.verdict")), (again.trace(), "retried".into()));
    assert_eq!((second.of("roundelay.reason"), second.process.status.is_some()), ("http_5xx".into(), true));
    assert_eq!(attributes(&second.below["POST"].attributes)["http.response.status_code"], "502");
    assert_eq!(again.process.parent_span_id, second.below["publish work"].span_id);
    assert!(again.process.links.is_empty() && again.process.status.is_none());
}

#[tokio::test]
async fn keys_are_left_out_where_they_are_not_to_be_told() {
    let (ground, server) = (Ground::embedded(), Server::start().await);
    let text = format!(
        "[tracing]\notlp = \"http://{}\"\nsample = 1.0\nkeys = false\n[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\n",
        server.address
    );
    let mut engine = Watched::start(&ground, &text).await;
    let job = Envelope::job("sync", "canary-key", json!("canary-payload"), "canary-id".into());
    engine.broker().publish(Message::new(Destination::Queue("work".into()), &job)).await.unwrap();
    engine.next().await.end(Outcome::fail("canary-reason"));
    engine.enroll("canary-key", "work").await;
    engine.next().await.end(Outcome::Done);
    engine.stop().await;
    let spans = server.spans();
    let told = format!("{spans:?}");
    assert!(Traced::find(&spans, "sync", "1", "1").is_some(), "{told}");
    let failed = Traced::find(&spans, "sync", "", "1").unwrap();
    assert_eq!((failed.of("roundelay.verdict"), failed.of("roundelay.reason")), ("failed".into(), "handler".into()));
    assert!(!told.contains("canary"), "{told}");
}

mod run {
    use super::*;

    /// What a worker does not record goes through it, and what it does not choose says so.
    pub async fn contexts_travel_to_handlers(ground: Ground) {
        let server = Server::start().await;
        let text = "[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\n";
        let none = format!("{text}[tracing]\notlp = \"http://{}\"\nsample = 0.0\n", server.address);
        for (text, records) in [(text, false), (&*none, true)] {
            let mut engine = Watched::start(&ground, text).await;
            let context = |flags: u8| Context::parse(&format!("00-{TRACE}-{SENDER}-{flags:02x}"), Some("a=1"));
            for sent in [None, context(0), context(1)] {
                let trace = sent.clone().map(|context| Box::new(Carried { context, published: None }));
                // It goes over a rung, and from there to a later one.
                let due = Some(engine.ledger().now() + Duration::from_millis(500));
                let id = format!("{records}-{}", sent.as_ref().map_or(9, |sent| sent.flags));
                let job = Envelope { trace, due, ..Envelope::job("sync", "x", json!(1), id.clone()) };
                engine.broker().publish(Message::new(Destination::Queue("work".into()), &job)).await.unwrap();
                let run = engine.next().await;
                assert_eq!(run.job.id, id);
                let span = run.context.span().clone();
                let got = span.traceparent().and_then(|parent| Context::parse(&parent, span.tracestate()));
                let own = u128::from_str_radix(&hex(&Sha256::digest(&id)[..16]), 16).unwrap();
                match (sent, got) {
                    (None, None) => assert!(!records),
                    (None, Some(got)) => assert_eq!((records, got.trace, got.sampled()), (true, own, false)),
                    (Some(sent), Some(got)) => {
                        assert_eq!((sent.trace, sent.flags, &sent.state), (got.trace, got.flags, &got.state));
                        assert_eq!(sent.span != got.span, records, "a span of its own, if it makes any");
                    }
                    (sent, None) => panic!("{sent:?} did not arrive"),
                }
                run.end(Outcome::Done);
            }
            engine.stop().await;
        }
        let recorded: Vec<String> = server.spans().iter().map(|span| hex(&span.trace_id)).collect();
        assert!(!recorded.is_empty() && recorded.iter().all(|trace| trace == TRACE), "{recorded:?}");
    }

    pub async fn a_collector_that_takes_nothing_holds_nothing_up(ground: Ground) {
        let server = Server::start().await;
        let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let of = |address| {
            format!(
                "[tracing]\notlp = \"http://{address}\"\nsample = 1.0\n[queues.work]\n[kinds.sync]\nqueue = \"work\"\nevery = \"1h\"\n"
            )
        };
        let table = [
            (of(server.address), Manner::Answers(500)),
            (of(server.address), Manner::Answers(429)),
            (of(server.address), Manner::Never),
            (of(away), Manner::Takes),
        ];
        for (n, (text, manner)) in table.into_iter().enumerate() {
            server.be(manner);
            let mut engine = Watched::start(&ground, &text).await;
            for tick in 0..20 {
                engine.enroll(&format!("{n}-{tick}"), "work").await;
                engine.next().await.end(Outcome::Done);
            }
            let telemetry = engine.telemetry.clone();
            if matches!(manner, Manner::Answers(500)) {
                until("spans are dropped", || async { telemetry.get(Count::SpansDropped) > 0 }).await;
                assert_eq!(telemetry.get(Count::SpansSent), 0);
                // It has come to its senses.
                server.be(Manner::Takes);
                engine.enroll("more", "work").await;
                engine.next().await.end(Outcome::Done);
                until("spans are taken", || async { telemetry.get(Count::SpansSent) > 0 }).await;
            }
            let stopped = timeout(Duration::from_secs(60), engine.stop()).await;
            assert!(stopped.is_ok(), "it waits for no collector");
            if matches!(manner, Manner::Answers(429)) || n == 3 {
                assert!(telemetry.get(Count::SpansDropped) >= 20, "what could not be sent at the end is counted");
            }
        }
    }
}
