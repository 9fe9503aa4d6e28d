//! A scenario's workers, what they have to do, and whom they call.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use parking_lot::Mutex;
use roundelay::broker::rabbit::RabbitBroker;
use roundelay::broker::{Broker, Destination, Message};
use roundelay::job::Envelope;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::support::ground::Ground;
use crate::support::receiver::{Call, Receiver, Script};
use crate::support::windows::{Limit, Ruling, judge, used};
use crate::support::workers::{Did, Place, Plan, Workers, roundelay};

/// How long anything may take that has no length of its own.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long after one worker the next is started.
const APART: Duration = Duration::from_millis(400);
/// A worker's connections to PostgreSQL, and how many more are needed.
const CONNECTIONS: usize = 5;
const SPARE: usize = 20;

/// Where the ledger is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ledger {
    Postgres,
    Sqlite,
}

/// All of it.
pub struct Fleet {
    pub receiver: Receiver,
    pub workers: Workers,
    /// What became of which worker when.
    told: Arc<Mutex<Vec<(Duration, String, Did)>>>,
    ground: Ground,
}

/// What is to be done: chains of this kind, with these keys and channels.
pub struct Chains<'a> {
    pub kind: &'a str,
    pub rows: Vec<(String, String)>,
    /// Over what their first ticks are spread, such as `10s`; by default as the program does.
    pub spread: Option<&'a str>,
}

impl<'a> Chains<'a> {
    /// `many` rows, without channels.
    pub fn of(kind: &'a str, many: usize) -> Self {
        Self { kind, rows: (0..many).map(|n| (format!("{kind}-{n}"), String::new())).collect(), spread: None }
    }
}

impl Fleet {
    /// Begins the chains, and starts `workers` processes. `text` is the configuration without the handlers' URLs:
    /// all of its `kinds` call the receiver, which answers by the script.
    pub async fn start(
        ledger: Ledger,
        workers: usize,
        (text, kinds): (&str, &[&str]),
        script: Script,
        chains: &[Chains<'_>],
    ) -> anyhow::Result<Self> {
        let ground = match ledger {
            Ledger::Postgres => Ground::rabbit_and_postgres().await,
            Ledger::Sqlite => Ground::rabbit().await,
        };
        Self::on(ground, workers, (text, kinds), script, chains).await
    }

    /// Starts a fleet on this ground.
    pub async fn on(
        ground: Ground,
        workers: usize,
        (text, kinds): (&str, &[&str]),
        script: Script,
        chains: &[Chains<'_>],
    ) -> anyhow::Result<Self> {
        if let Some(schema) = &ground.schema {
            let room: String = schema.raw().await.query_one("SHOW max_connections", &[]).await?.get(0);
            let needed = CONNECTIONS * workers + SPARE;
            ensure!(
                room.parse::<usize>()? >= needed,
                "{workers} workers need {needed} connections to PostgreSQL, and DATABASE_URL's server allows {room}: \
                 set its max_connections, or unset DATABASE_URL to have a server started"
            );
        }
        let receiver = Receiver::start(script)?;
        let mut text = format!("worker = {{ lease = \"10s\", grace = \"15s\" }}\n{text}");
        for kind in kinds {
            write!(text, "\n[kinds.{kind}.handler.http]\nurl = \"http://{}/\"\n", receiver.address)?;
        }
        let config = ground.config_file(&text);
        let path = config.to_string_lossy().into_owned();
        roundelay(&[("ROUNDELAY_CONFIG", &path)], &["topology", "apply"]).await?;
        for Chains { kind, rows, spread } in chains {
            let roster = ground.path(&format!("{kind}.csv"));
            let rows: String = rows.iter().map(|(key, channel)| format!("{key},{channel}\n")).collect();
            std::fs::write(&roster, format!("key,channel\n{rows}"))?;
            let roster = roster.to_string_lossy().into_owned();
            let spread: Vec<&str> = spread.iter().flat_map(|spread| ["--spread", *spread]).collect();
            let enroll = [&["enroll", "--kind", kind, &*roster], &*spread].concat();
            roundelay(&[("ROUNDELAY_CONFIG", &path)], &enroll).await?;
        }
        let plan = Plan {
            config,
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            variables: vec![Vec::new(); workers],
            apart: APART,
            place: Place::default(),
        };
        let (told, its) = (Arc::<Mutex<Vec<_>>>::default(), receiver.clone());
        let notes = told.clone();
        let tell = move |worker: &str, did| {
            notes.lock().push((its.now(), worker.to_owned(), did));
        };
        let workers = Workers::start(plan, Arc::new(tell)).await;
        Ok(Self { receiver, workers, told, ground })
    }

    /// When none of the workers was awake.
    pub fn idle(&self) -> Vec<(Duration, Duration)> {
        let (mut awake, mut since, mut spans) = (BTreeSet::new(), None, Vec::new());
        for (at, worker, did) in self.told.lock().iter() {
            match did {
                Did::Start | Did::Thawed => awake.insert(worker.clone()),
                Did::Killed | Did::Frozen => awake.remove(worker),
            };
            if awake.is_empty() {
                since = Some(*at);
            } else if let Some(since) = since.take() {
                spans.push((since, *at));
            }
        }
        spans.extend(since.map(|since| (since, self.receiver.now())));
        spans
    }

    /// A connection to publish by.
    pub async fn publisher(&self) -> anyhow::Result<RabbitBroker> {
        let vhost = self.ground.vhost.as_ref().context("it is on RabbitMQ")?;
        Ok(vhost.connect("roundelay").await)
    }

    /// Waits until `many` workers consume this queue.
    pub async fn consumed_by(&self, queue: &str, many: usize) -> anyhow::Result<()> {
        let vhost = self.ground.vhost.as_ref().context("it is on RabbitMQ")?;
        let channel = vhost.raw().await;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let options = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
            let shown = channel.queue_declare(queue.into(), options, Default::default()).await?;
            if shown.consumer_count() as usize >= many {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{} of {many} workers consume {queue}", shown.consumer_count());
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Carries out a command of the program.
    pub async fn operate(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let config = self.ground.path("roundelay.toml").to_string_lossy().into_owned();
        roundelay(&[("ROUNDELAY_CONFIG", &config)], arguments).await
    }

    /// Waits until this is true.
    pub async fn until(&self, label: &str, what: impl Fn(&Receiver) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !what(&self.receiver) {
            ensure!(Instant::now() < deadline, "it did not come to this within {PATIENCE:?}: {label}");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Ends the workers in order; answers what the receiver has seen, and how many did not end.
    pub async fn end(self) -> (Vec<Call>, usize) {
        let stuck = self.workers.stop().await;
        let calls = self.receiver.calls();
        if stuck > 0 {
            eprintln!("throttles: everything is kept for a look: {}", self.ground.folder.keep().display());
        }
        (calls, stuck)
    }
}

/// Publishes a one-off job, and answers once the broker has it.
pub async fn publish(broker: &RabbitBroker, kind: &str, queue: &str, id: &str) -> anyhow::Result<()> {
    let job = Envelope::job(kind, id, json!(null), id.to_owned());
    broker.publish(Message::new(Destination::Queue(queue.into()), &job)).await?;
    Ok(())
}

/// When the calls for which this is true came in.
pub fn times(calls: &[Call], which: impl Fn(&Call) -> bool) -> Vec<Duration> {
    calls.iter().filter(|call| which(call)).map(|call| call.at).collect()
}

/// What is reported of a limit: every window that held too many, and how much was used in a stretch of time.
pub struct Watched {
    pub ruling: Ruling,
    pub used: f64,
}

/// Judges these starts.
pub fn watch(starts: &[Duration], limit: Limit, (from, to): (Duration, Duration)) -> Watched {
    Watched { ruling: judge(starts, limit), used: used(starts, limit, from, to) }
}

impl Watched {
    /// For the report.
    pub fn figures(&self) -> serde_json::Value {
        let Ruling { starts, over, nearest } = &self.ruling;
        let first: Vec<_> =
            over.iter().take(10).map(|one| json!([one.from.as_millis(), one.took.as_millis()])).collect();
        json!({
            "starts": starts, "windows_over": over.len(), "over_at_and_took_ms": first,
            "nearest_ms": nearest.map(f64::round), "used": (self.used * 1_000.0).round() / 1_000.0,
        })
    }
}
