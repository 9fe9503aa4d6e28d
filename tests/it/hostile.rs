//! Messages that the AMQP library cannot read, and that a broker still delivers: no message may stop a queue.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use roundelay::Outcome;
use roundelay::broker::{Destination, Message, PeekedMessage};
use roundelay::telemetry::Count;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::harness::{Ground, SOON, Watched, on_ladder, roundelay_with, until};
use crate::monitoring::Observed;
use crate::served::{Served, token};

/// What a person finds it within.
const PARKED_WITHIN: Duration = Duration::from_secs(30);

const CONFIG: &str = r#"
[queues.work]
concurrency = 8
prefetch = 8
[kinds.sync]
queue = "work"
every = "1s"
timeout = "60s"
handler.exec.argv = ["/bin/true"]
"#;

// ---- A publisher that keeps to no library's manners ----

/// An AMQP connection of which only what is needed here is understood.
struct Raw {
    stream: TcpStream,
}

/// A property of a message: its flag, and how it is written.
type Properties = (u16, Vec<u8>);

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// The property `headers` with these fields, written one after the other.
fn headers(fields: &[u8]) -> Properties {
    (1 << 13, long(fields))
}

/// A field of text.
fn text(name: &str, text: &[u8]) -> Vec<u8> {
    [short(name.as_bytes()), b"S".to_vec(), long(text)].concat()
}

/// A field with `levels` tables, each inside the one before.
fn nested(name: &str, levels: usize) -> Vec<u8> {
    // From the inside: what is written last is the outermost, so the sizes are known.
    let mut lengths = Vec::new();
    let mut inside: u32 = 0;
    for _ in 0..levels {
        lengths.push(inside);
        inside += 6; // An empty name, the type and a length.
    }
    let tables = lengths.iter().rev().flat_map(|inside| [&b"\0F"[..], &inside.to_be_bytes()].concat());
    // The outermost has a name.
    [short(name.as_bytes()), tables.skip(1).collect()].concat()
}

impl Raw {
    async fn connect(ground: &Ground) -> Self {
        let url = url::Url::parse(&ground.vhost.as_ref().unwrap().amqp).unwrap();
        let mut raw =
            Self { stream: TcpStream::connect((url.host_str().unwrap(), url.port().unwrap())).await.unwrap() };
        raw.stream.write_all(b"AMQP\0\0\x09\x01").await.unwrap();
        raw.answer(10, 10).await;
        let login = format!("\0{}\0{}", url.username(), url.password().unwrap());
        raw.call(0, 10, 11, &[long(b""), short(b"PLAIN"), long(login.as_bytes()), short(b"en_US")].concat()).await;
        let tune = raw.answer(10, 30).await;
        raw.call(0, 10, 31, &[&tune[..6], &[0, 0]].concat()).await;
        let vhost = url.path().trim_start_matches('/');
        raw.call(0, 10, 40, &[short(vhost.as_bytes()), short(b""), vec![0]].concat()).await;
        raw.answer(10, 41).await;
        raw.call(1, 20, 10, &short(b"")).await;
        raw.answer(20, 11).await;
        raw.call(1, 85, 10, &[0]).await;
        raw.answer(85, 11).await;
        raw
    }

    async fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&[kind], &channel.to_be_bytes()[..], &size, payload, &[0xce]].concat();
        self.stream.write_all(&frame).await.unwrap();
    }

    async fn call(&mut self, channel: u16, class: u16, method: u16, arguments: &[u8]) {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        self.frame(1, channel, &payload).await;
    }

    /// The arguments of the broker's next method, which is to be this one.
    async fn answer(&mut self, class: u16, method: u16) -> Vec<u8> {
        let read = async {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).await.unwrap();
            let size = u32::from_be_bytes(head[3..].try_into().unwrap());
            let mut payload = vec![0; size as usize + 1];
            self.stream.read_exact(&mut payload).await.unwrap();
            payload
        };
        let payload = timeout(SOON, read).await.expect("the broker answers");
        let wanted = [class.to_be_bytes(), method.to_be_bytes()].concat();
        assert_eq!(payload[..4], wanted, "{:?}", String::from_utf8_lossy(&payload));
        payload[4..].to_vec()
    }

    /// Publishes a message and waits until the broker has it.
    async fn publish(&mut self, exchange: &str, key: &[u8], (flags, properties): &Properties, body: &[u8]) {
        let arguments = [vec![0, 0], short(exchange.as_bytes()), short(key), vec![0]].concat();
        self.call(1, 60, 40, &arguments).await;
        let size = (body.len() as u64).to_be_bytes();
        let header = [&[0, 60, 0, 0][..], &size, &flags.to_be_bytes(), properties].concat();
        self.frame(2, 1, &header).await;
        self.frame(3, 1, body).await;
        self.answer(60, 80).await;
    }
}

// ---- Each is parked, and all others go on ----

/// Where a hostile message is published to, what its headers are like, and what the reason says of it.
struct Hostile {
    exchange: &'static str,
    key: Vec<u8>,
    properties: Properties,
    says: &'static [&'static str],
    /// The queue that it arrives on.
    from: &'static str,
}

/// It is parked within half a minute, with `says` in its reason. Chains on its queue tick before and after, each tick
/// once; so does the one that runs meanwhile.
async fn is_parked_and_stops_nobody(hostile: Hostile) {
    let ground = Ground::rabbit().await;
    // With native delays there are no rungs.
    let on_rung = hostile.exchange.starts_with("roundelay.delay.");
    let config = if on_rung { on_ladder(CONFIG) } else { CONFIG.to_owned() };
    let mut engine = Watched::attended(&ground, &config).await;
    let mut raw = Raw::connect(&ground).await;
    let mut ticks: BTreeMap<String, i64> = BTreeMap::new();
    for key in ["a", "b", "in hand"] {
        engine.enroll(key, "work").await;
    }
    let mut in_hand = None;
    // Each tick comes once, in its turn, at the first attempt: nothing was lost, and nothing came again.
    let mut note = |run: &crate::harness::Run| {
        let known = ticks.entry(run.job.key.to_string()).or_insert(0);
        assert_eq!((run.tick(), run.job.attempt), (*known + 1, 1), "{}", run.job.key);
        *known += 1;
        *known
    };
    // All have run, and one runs on.
    let mut begun = 0;
    while begun < 3 || in_hand.is_none() {
        let run = engine.next().await;
        begun += i32::from(note(&run) == 1);
        if &*run.job.key == "in hand" {
            in_hand = Some(run);
        } else {
            run.end(Outcome::Done);
        }
    }
    let quarantine = engine.config.topology().names.quarantine();
    let sent = Instant::now();
    raw.publish(hostile.exchange, &hostile.key, &hostile.properties, b"the whole body").await;
    // It is there, while the others tick.
    loop {
        let run = engine.next().await;
        note(&run);
        run.end(Outcome::Done);
        if engine.broker().depth(&quarantine).await.is_ok_and(|depth| depth.ready == 1) {
            break;
        }
        assert!(sent.elapsed() < PARKED_WITHIN, "it is not in quarantine after {:?}", sent.elapsed());
    }
    assert_eq!(engine.telemetry.get(Count::Quarantined), 1);
    // Each ticks on, twice.
    in_hand.take().unwrap().end(Outcome::Done);
    let mut again: BTreeMap<String, u32> = BTreeMap::new();
    while again.len() < 3 || again.values().any(|times| *times < 2) {
        let run = engine.next().await;
        note(&run);
        *again.entry(run.job.key.to_string()).or_default() += 1;
        run.end(Outcome::Done);
        assert!(sent.elapsed() < PARKED_WITHIN, "after {:?} only these have ticked: {again:?}", sent.elapsed());
    }
    // A person finds it.
    let found = engine.broker().peek(&quarantine, 10).await.unwrap();
    let [PeekedMessage { from, reason, body, .. }] = &found[..] else { panic!("{} messages", found.len()) };
    assert_eq!((from.as_str(), &body[..]), (hostile.from, &b"the whole body"[..]));
    for words in hostile.says {
        assert!(reason.contains(words), "{reason}");
    }
    drop(found);
    engine.stop_with(|run| run.end(Outcome::Done)).await;
}

/// Headers that fit into a frame until the rung has added its own.
fn too_many() -> Properties {
    headers(&text("filler", &[b'x'; 130_900]))
}

#[tokio::test]
async fn headers_that_outgrow_the_frame_on_a_rung() {
    is_parked_and_stops_nobody(Hostile {
        exchange: "roundelay.delay.1s",
        key: b"work".into(),
        properties: too_many(),
        says: &["frame", "131052", "`filler`"],
        from: "work",
    })
    .await;
}

#[tokio::test]
async fn headers_that_outgrow_the_frame_on_their_way_to_the_rearm_queue() {
    is_parked_and_stops_nobody(Hostile {
        exchange: "roundelay.delay.1s",
        key: b"roundelay.rearm".into(),
        properties: too_many(),
        says: &["frame", "`filler`"],
        from: "roundelay.rearm",
    })
    .await;
}

#[tokio::test]
async fn headers_that_outgrow_the_frame_on_their_way_to_the_chores() {
    is_parked_and_stops_nobody(Hostile {
        exchange: "roundelay.delay.1s",
        key: b"roundelay.chores".into(),
        properties: too_many(),
        says: &["frame", "`filler`"],
        from: "roundelay.chores",
    })
    .await;
}

/// A reader that is recursive has no stack left for such a field, and its process dies.
#[tokio::test]
async fn tables_within_tables() {
    is_parked_and_stops_nobody(Hostile {
        exchange: "roundelay.jobs",
        key: b"work".into(),
        properties: headers(&nested("deep", 21_000)),
        says: &["nested", "`deep`"],
        from: "work",
    })
    .await;
}

#[tokio::test]
async fn a_message_id_in_another_encoding() {
    is_parked_and_stops_nobody(Hostile {
        exchange: "roundelay.jobs",
        key: b"work".into(),
        properties: (1 << 7, short(b"caf\xe9")),
        says: &["message_id", "UTF-8", "caf"],
        from: "work",
    })
    .await;
}

#[tokio::test]
async fn the_name_of_a_header_in_another_encoding() {
    is_parked_and_stops_nobody(Hostile {
        exchange: "roundelay.jobs",
        key: b"work".into(),
        properties: headers(&[text("fine", b"1"), short(b"caf\xe9"), b"V".to_vec()].concat()),
        says: &["header", "UTF-8", "caf", "`fine`"],
        from: "work",
    })
    .await;
}

/// RabbitMQ routes by the header `CC` too, so that a message arrives under a key that nothing is bound by.
#[tokio::test]
async fn a_routing_key_in_another_encoding() {
    let copies = [short(b"CC"), b"A".to_vec(), long(&[b"S".to_vec(), long(b"work")].concat())].concat();
    is_parked_and_stops_nobody(Hostile {
        exchange: "roundelay.jobs",
        key: b"caf\xe9".into(),
        properties: headers(&copies),
        says: &["not a job envelope"],
        from: "work",
    })
    .await;
}

/// As many that cannot be used as a publisher with a bug writes: all are kept, and one can still read the log.
#[tokio::test]
async fn ten_thousand_that_cannot_be_used_are_a_few_lines_of_log() {
    const ALL: u64 = 10_000;
    let ground = Ground::rabbit().await;
    let config = ground.config_file(CONFIG);
    let parsed = roundelay::Config::load(&config).unwrap();
    let connections = roundelay::engine::Connections::open(&parsed).await.unwrap();
    let broker = &connections.broker;
    broker.apply(&parsed.topology()).await.unwrap();
    let worker = Observed::start(&config).await;
    let bodies = [
        "not JSON".to_owned(),
        json!({ "v": 1, "kind": "unknown", "key": "a" }).to_string(),
        json!({ "v": 99, "kind": "sync", "key": "a" }).to_string(),
        json!({ "v": 1, "kind": "sync", "key": "a", "queue": "nowhere" }).to_string(),
    ];
    futures_util::stream::iter(0..ALL)
        .for_each_concurrent(128, async |n| {
            let to = Destination::Queue("work".into());
            let body = bodies[n as usize % bodies.len()].clone().into();
            broker.publish(Message { to, id: n.to_string(), body, trace: None }).await.unwrap();
        })
        .await;
    let quarantine = parsed.topology().names.quarantine();
    until("all are kept", || async { broker.depth(&quarantine).await.unwrap().ready == ALL }).await;
    let (_, metrics) = worker.get("/metrics").await;
    assert!(metrics.contains(&format!("roundelay_quarantined_messages_total {ALL}")), "{metrics}");
    let log = worker.log.lock();
    let about_them: Vec<String> = log
        .iter()
        .map(Value::to_string)
        .filter(|line| line.contains("quarantine") || line.contains("cannot be used"))
        .collect();
    assert!(
        (1..=20).contains(&about_them.len()) && log.len() < 40,
        "{} of {}: {about_them:#?}",
        about_them.len(),
        log.len()
    );
}

// ---- Commands that look at queues without consumers ----

/// What was put into the quarantine by hand is shown there, and can be deleted.
#[tokio::test]
async fn the_quarantine_shows_what_cannot_be_read_and_lets_go_of_it() {
    let ground = Ground::rabbit().await;
    let config = ground.config_file(&format!("[api]\nname = \"tests\"\n{CONFIG}"));
    let parsed = roundelay::Config::load(&config).unwrap();
    let connections = roundelay::engine::Connections::open(&parsed).await.unwrap();
    connections.broker.apply(&parsed.topology()).await.unwrap();
    let mut raw = Raw::connect(&ground).await;
    let hostile = [too_many(), headers(&nested("deep", 21_000)), (1 << 7, short(b"caf\xe9"))];
    for properties in &hostile {
        raw.publish("roundelay.delay.1s", b"roundelay.quarantine", properties, b"{}").await;
    }
    let quarantine = parsed.topology().names.quarantine();
    let broker = connections.broker.clone();
    until("all lie there", || async { broker.depth(&quarantine).await.unwrap().ready == 3 }).await;
    let served = Served::start(&config).await.with_token(&token(&config, "ann", "operate").await);
    let told: Value = served.get("/api/v1/quarantine").await.is(200).json();
    let reasons: Vec<&str> =
        told["messages"].as_array().unwrap().iter().map(|one| one["reason"].as_str().unwrap()).collect();
    for words in ["131052", "nested", "message_id"] {
        assert!(reasons.iter().any(|reason| reason.contains(words)), "{told}");
    }
    let did: Value = served.post("/api/v1/quarantine/actions", &json!({ "action": "drop" })).await.is(200).json();
    assert_eq!(did["changed"], 3, "{did}");
    assert_eq!(served.stop().await, Some(0));
    let status = roundelay_with(&[], &["status", "--config", config.to_str().unwrap()]).await;
    assert!(status.ok, "{status:?}");
}
