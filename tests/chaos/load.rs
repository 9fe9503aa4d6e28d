//! What there is to do: chains of several kinds, a trickle of one-off jobs, and what the ledger
//! says of them in the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use axum::http::StatusCode;
use bytes::Bytes;
use lapin::Confirmation;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::broker::{Broker, Destination, Message};
use roundelay::clock::Time;
use roundelay::ids::{Epoch, Fence, TickNo};
use roundelay::job::Envelope;
use roundelay::ledger::ChainState;
use roundelay::simulation::spec::Phase;
use roundelay::simulation::spec::record::{Place, Row};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::judge::{Attempt, Chain, Rhythm};
use super::log::{Call, Entry, Writer};

/// A kind of the configuration. Its queue has the same name.
pub struct Kind {
    pub name: &'static str,
    pub chains: usize,
    /// Its ticks are taken over when they are delivered again, instead of when their lease is over.
    pub redelivery: bool,
    /// In milliseconds, from the end of a run.
    pub rhythm: Option<Rhythm>,
    text: &'static str,
}

/// One-off jobs go through a queue of their own, which is never purged or deleted: what is lost with
/// its queue has not been lost by the engine.
pub const ONCE: &str = "once";

pub const KINDS: &[Kind] = &[
    Kind {
        name: "quick",
        chains: 150,
        redelivery: false,
        rhythm: Some(Rhythm { every: 5_000, jitter: 0 }),
        text: "timeout = \"5s\"\n",
    },
    Kind {
        name: "eager",
        chains: 100,
        redelivery: true,
        rhythm: Some(Rhythm { every: 5_000, jitter: 1_000 }),
        text: "timeout = \"5s\"\ntakeover = \"redelivery\"\n",
    },
    // Each call takes longer than a lease.
    Kind {
        name: "long",
        chains: 20,
        redelivery: false,
        rhythm: Some(Rhythm { every: 6_000, jitter: 0 }),
        text: "timeout = \"20s\"\n",
    },
    Kind { name: ONCE, chains: 0, redelivery: false, rhythm: None, text: "timeout = \"5s\"\n" },
];

/// Kinds whose runs pass on which runs were before them.
pub const CARRIES: &[&str] = &["quick", "eager"];

/// How long a chain may be due before it is looked at.
pub const SLACK: Duration = Duration::from_secs(3);
pub const LEASE: Duration = Duration::from_secs(6);
/// How long it can take at most from one call of a chain in order to the next.
pub const CYCLE: Duration = Duration::from_secs(20);

/// How long a call of the kind `long` takes: longer than a lease.
const LONG: Duration = Duration::from_secs(9);

/// How long a call takes, and what it is answered.
pub fn manner(call: &Call) -> (Duration, StatusCode) {
    let dice = call.fence.unwrap_or(0).unsigned_abs();
    let length = if call.kind == "long" { LONG } else { Duration::from_millis(50 + dice * 37 % 250) };
    // A few fail, and are tried again.
    (length, if dice % 29 == 7 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK })
}

/// Writes the workers' configuration.
pub fn write_config(folder: &Path, receiver: std::net::SocketAddr) -> anyhow::Result<PathBuf> {
    let (slack, lease) = (SLACK.as_secs(), LEASE.as_secs());
    let mut text = format!(
        "# The URLs are set from the environment.\n\
         catch_up = {{ every = \"1s\", slack = \"{slack}s\", spread = \"2s\" }}\n\
         worker = {{ lease = \"{lease}s\", grace = \"15s\" }}\n"
    );
    for Kind { name, rhythm, text: own, .. } in KINDS {
        let every = rhythm.map_or_else(String::new, |Rhythm { every, jitter }| match jitter {
            0 => format!("every = \"{every}ms\"\n"),
            _ => format!("every = \"{every}ms\"\njitter = \"{jitter}ms\"\n"),
        });
        text += &format!(
            "[queues.{name}]\nconcurrency = 24\n\
             [kinds.{name}]\nqueue = \"{name}\"\n{every}{own}retry = {{ attempts = 3, backoff = [\"1s\"] }}\n\
             handler.http.url = \"http://{receiver}/\"\n"
        );
    }
    let path = folder.join("roundelay.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}

/// Runs a command of the program to its end, past all links.
pub async fn roundelay(config: &Path, broker: &str, ledger: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let config = config.to_string_lossy();
    let variables =
        [("ROUNDELAY_CONFIG", &*config), ("ROUNDELAY__BROKER__URL", broker), ("ROUNDELAY__LEDGER__URL", ledger)];
    crate::support::workers::roundelay(&variables, arguments).await
}

/// Begins all chains of these kinds; each kind comes with its number of chains.
pub async fn enroll(kinds: &[(&str, usize)], config: &Path, broker: &str, ledger: &str) -> anyhow::Result<()> {
    for (kind, chains) in kinds.iter().filter(|(_, chains)| *chains > 0) {
        let roster = config.with_file_name(format!("{kind}.csv"));
        let rows: String = (0..*chains).map(|n| format!("{kind}-{n}\n")).collect();
        std::fs::write(&roster, format!("key\n{rows}"))?;
        let roster = roster.to_string_lossy().into_owned();
        roundelay(config, broker, ledger, &["enroll", "--kind", kind, &roster]).await?;
    }
    Ok(())
}

/// Publishes a one-off job every so often, until `stop`, and has it written down when the broker
/// has confirmed one. Answers the ids of those.
pub async fn trickle(broker: Arc<RabbitBroker>, log: Writer, stop: CancellationToken) -> Vec<String> {
    let mut accepted = Vec::new();
    for number in 0_u64.. {
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep(Duration::from_millis(500)) => {}
        }
        let id = format!("once-{number}");
        let job = Envelope::job(ONCE, &format!("job-{number}"), json!({ "n": number }), id.clone());
        // What is not confirmed is not accepted, whether it arrives or not.
        if broker.publish(Message::new(Destination::Queue(ONCE.into()), &job)).await.is_ok() {
            accepted.push(id.clone());
            log.write(Entry::Accepted { id });
        }
    }
    accepted
}

/// Publishes `count` messages that no worker can use to a platform queue; answers how many were
/// confirmed.
pub async fn poison(broker: &RabbitBroker, queue: &str, count: usize) -> usize {
    let bodies = [
        "not even JSON".to_owned(),
        json!({ "v": 99, "kind": "quick", "key": "k" }).to_string(),
        json!({ "v": 1, "kind": "nobody-knows-it", "key": "k" }).to_string(),
        json!({ "v": 1, "kind": "quick", "key": "k", "chain": { "ledger": "another", "epoch": 1, "tick": 1 } })
            .to_string(),
    ];
    let publish = (0..count).map(|number| {
        let body = Bytes::from(bodies[number % bodies.len()].clone());
        let to = Destination::Queue(queue.into());
        broker.publish(Message { to, id: format!("poison-{number}"), body, trace: None })
    });
    futures_util::future::join_all(publish).await.into_iter().filter(Result::is_ok).count()
}

/// Moves what lies in `roundelay.unrouted` to where it was for.
pub async fn send_back_unrouted(broker: &str) -> anyhow::Result<()> {
    let connection = lapin::Connection::connect(broker, lapin::ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    while let Some(got) = channel.basic_get("roundelay.unrouted".into(), BasicGetOptions::default()).await? {
        let message = got.delivery;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = channel.basic_publish(
            "roundelay.jobs".into(),
            message.routing_key.clone(),
            options,
            &message.data,
            message.properties.clone(),
        );
        match sent.await?.await? {
            Confirmation::Ack(None) => message.acker.ack(BasicAckOptions::default()).await?,
            answer => bail!("the broker does not take a message for {} back: {answer:?}", message.routing_key),
        };
    }
    connection.close(200, "".into()).await?;
    Ok(())
}

/// The ledger's rows of all chains and attempts.
pub async fn rows(database: &str) -> anyhow::Result<(Vec<Chain>, Vec<Attempt>)> {
    let (client, connection) = tokio_postgres::connect(database, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let chains = client.query("SELECT epoch, kind, key, state, due FROM chains", &[]).await?;
    let chains = chains.iter().map(|row| Chain {
        epoch: row.get(0),
        kind: row.get(1),
        key: row.get(2),
        state: ChainState::from_number(row.get(3)),
        due: row.get(4),
    });
    let attempts = client.query("SELECT fence, epoch, tick, due, started, verdict FROM attempts", &[]).await?;
    let attempts = attempts.iter().map(|row| Attempt {
        fence: row.get(0),
        epoch: row.get(1),
        tick: row.get(2),
        due: row.get(3),
        started: row.get(4),
        verdict: row.get(5),
    });
    Ok((chains.collect(), attempts.collect()))
}

/// The same rows as the specification takes them, with where each chain stands.
pub async fn record(database: &str) -> anyhow::Result<(Vec<Row>, BTreeMap<Epoch, Place>)> {
    let (client, connection) = tokio_postgres::connect(database, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let chains = client.query("SELECT epoch, state, tick, attempt, fence FROM chains", &[]).await?;
    let places = chains.iter().map(|row| {
        let phase = match ChainState::from_number(row.get(1)) {
            ChainState::Active => Phase::Active,
            ChainState::Paused => Phase::Paused,
            ChainState::Retired => Phase::Retired,
            ChainState::Quarantined => Phase::Quarantined,
        };
        let attempt = u32::try_from(row.get::<_, i64>(3))?;
        let place = Place { phase, tick: TickNo(row.get(2)), attempt, fence: Fence(row.get(4)) };
        anyhow::Ok((Epoch(row.get(0)), place))
    });
    let places = places.collect::<anyhow::Result<_>>()?;
    let sql = "SELECT fence, epoch, tick, attempt, previous, due, started, verdict, reason FROM attempts";
    let rows = client.query(sql, &[]).await?;
    let rows = rows.iter().map(|row| {
        anyhow::Ok(Row {
            fence: Fence(row.get(0)),
            epoch: Epoch(row.get(1)),
            tick: TickNo(row.get(2)),
            attempt: u32::try_from(row.get::<_, i64>(3))?,
            previous: Fence(row.get(4)),
            due: Time::from_millis(row.get(5)),
            started: Time::from_millis(row.get(6)),
            verdict: row.get(7),
            reason: row.get(8),
        })
    });
    Ok((rows.collect::<anyhow::Result<_>>()?, places))
}
