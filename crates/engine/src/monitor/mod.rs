//! What a worker tells those who ask how it is: figures, whether it lives, whether it is of use.
//!
//! - `health`: from facts to the answer (pure).
//! - `listener`: the answers over HTTP.
//! - [`stuck`]: why a chain that is due does not run, for `roundelay status` (pure).
//!
//! The ledger's figures are asked for by a task of their own, with a time limit, and broker and
//! connection are looked at for each request. So whatever is stuck, the answer comes at once, and
//! says since when nothing has been heard of what is stuck.

mod health;
mod listener;
pub mod stuck;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use roundelay_broker::Broker;
use roundelay_config::Config;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::Time;
use tokio::sync::SetOnce;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::companion::{Companion, Handle, Task};
use crate::connections::Connections;
use crate::desk::Desk;
use crate::error::StartError;
use crate::holds::Holds;
use crate::overslept;
use crate::overslept::Schedules;
use crate::telemetry::Telemetry;
use crate::throttle::Throttles;
use crate::throttle::throttled::Throttled;
use health::{Part, Report};
use listener::Listener;

/// How often the ledger is asked for its figures.
const EVERY: Duration = Duration::from_secs(10);
/// Counting very many chains takes long. So that it takes no more than a twentieth of the time, the
/// pauses between are longer then, up to this.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How long the ledger may take to answer. With the longest pause it stays below a minute until it
/// shows that it does not.
const PATIENCE: Duration = Duration::from_secs(25);
/// After this without a round of questions, the task that asks is dead or stuck itself.
const SILENT: Duration = Duration::from_secs(60);
/// How often the broker is looked at without a request, for the time since when it is away.
const LOOK: Duration = Duration::from_secs(1);

/// Watches the worker that it runs in, and answers at `worker.listen` those who ask.
#[derive(Default)]
pub struct Monitor {
    listener: Option<Listener>,
    callback: Option<String>,
    watch: Option<Arc<Watch>>,
}

#[async_trait]
impl Companion for Monitor {
    fn setting(&self) -> Option<&'static str> {
        Some("worker.listen")
    }

    async fn bind(&mut self, config: &Config) -> Result<(), StartError> {
        let Some(address) = config.worker.listen else { return Ok(()) };
        let listener = Listener::bind(address, &config.worker).await?;
        self.callback = config.worker.callback.clone().or_else(|| listener.base());
        self.listener = Some(listener);
        Ok(())
    }

    fn callback(&self) -> Option<String> {
        self.callback.clone()
    }

    fn watch(&mut self, worker: &Handle) -> Vec<Task> {
        let Some(listener) = self.listener.take() else { return Vec::new() };
        let watch = Arc::new(Watch::begin(worker));
        self.watch = Some(watch.clone());
        vec![
            ("counting the ledger's chains", watch.clone().keep_asking().boxed()),
            ("looking at the broker", watch.clone().keep_looking().boxed()),
            ("answering how the worker is", listener.serve(watch).boxed()),
        ]
    }

    fn broken(&self, why: &str) {
        if let Some(watch) = &self.watch {
            watch.facts().broken = Some(why.to_owned());
        }
    }
}

struct Watch {
    telemetry: Arc<Telemetry>,
    broker: Arc<dyn Broker>,
    ledger: Arc<dyn Ledger>,
    throttles: Throttles,
    queues: BTreeMap<String, Option<String>>,
    slack: Duration,
    schedule_of: Arc<Schedules<'static>>,
    ready: Arc<SetOnce<()>>,
    stop: CancellationToken,
    desk: Arc<Desk>,
    attended: Arc<Mutex<Option<Instant>>>,
    facts: Mutex<Facts>,
}

/// What is known.
struct Facts {
    started: Time,
    /// When a round of questions to the ledger last ended, well or not.
    asked: Time,
    /// The same. Silence is measured by this: the ledger's clock may be set.
    asked_at: Instant,
    broken: Option<String>,
    engine: Part,
    broker: Part,
    ledger: Part,
    /// The task that asks the ledger.
    census: Part,
    /// The task that reads what operators have ordered.
    orders: Part,
}

impl Facts {
    /// What must be up for the worker to be of use.
    fn all(&self) -> [&Part; 5] {
        [&self.engine, &self.broker, &self.ledger, &self.census, &self.orders]
    }
}

impl Watch {
    fn begin(worker: &Handle) -> Self {
        let Connections { broker, ledger, .. } = worker.connections.clone();
        let now = ledger.now();
        worker.telemetry.introduce(&worker.worker, now);
        let facts = Facts {
            started: now,
            asked: now,
            asked_at: Instant::now(),
            broken: None,
            engine: Part::down("engine", "it is starting", now),
            broker: Part::up("broker", now),
            ledger: Part::down("ledger", "it has not been asked yet", now),
            census: Part::up("census", now),
            orders: Part::up("orders", now),
        };
        Self {
            telemetry: worker.telemetry.clone(),
            broker,
            ledger,
            throttles: worker.throttles.clone(),
            queues: worker.queues.clone(),
            slack: worker.slack,
            schedule_of: worker.schedule_of.clone(),
            ready: worker.ready.clone(),
            stop: worker.stop.clone(),
            desk: worker.desk.clone(),
            attended: worker.attended.clone(),
            facts: Mutex::new(facts),
        }
    }

    /// Asks the ledger, again and again.
    async fn keep_asking(self: Arc<Self>) {
        loop {
            let begun = Instant::now();
            let answer = match timeout(PATIENCE, self.ask()).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("it has not answered within {} s", PATIENCE.as_secs())),
            };
            let (now, answered) = (self.ledger.now(), answer.is_none());
            {
                let mut facts = self.facts();
                (facts.asked, facts.asked_at) = (now, Instant::now());
                if facts.ledger.note(answer.clone(), now) {
                    match answer {
                        Some(why) => tracing::warn!(why, "the ledger cannot be used"),
                        None => tracing::info!("the ledger answers"),
                    }
                }
            }
            let pause = if answered { begun.elapsed() * 20 } else { EVERY };
            sleep(pause.clamp(EVERY, MAX_PAUSE)).await;
        }
    }

    /// Reads what chains do, and sees that it could be written.
    async fn ask(&self) -> Result<(), LedgerError> {
        let begun = Instant::now();
        let Self { ledger, slack, schedule_of, telemetry, queues, .. } = self;
        let (workers, orders) = (ledger.workers().await?, ledger.fleet_orders().await?);
        let paced = queues.iter().map(|(queue, throttle)| (queue.as_str(), throttle.as_deref()));
        let holds = Holds::new(paced, &orders, &ledger.throttle_orders().await?, ledger.now());
        let (census, _) = overslept::census(&**ledger, *slack, &**schedule_of, &holds).await?;
        let throttles = Throttled::look(self.throttles.settings(), &**ledger).await?;
        telemetry.throttled(&throttles);
        telemetry.fleet(queues, &workers, &orders, ledger.now());
        telemetry.census(&census, (ledger.now(), &ledger.wall_clock()), begun.elapsed());
        ledger.flush().await
    }

    async fn keep_looking(self: Arc<Self>) {
        loop {
            drop(self.look());
            sleep(LOOK).await;
        }
    }

    /// Looks at everything that can be looked at without waiting.
    fn look(&self) -> MutexGuard<'_, Facts> {
        let Self { broker, ledger, ready, stop, telemetry, attended, .. } = self;
        let now = ledger.now();
        let away = broker.unavailable();
        let mut facts = self.facts();
        let engine = match &facts.broken {
            Some(why) => Some(format!("a part of it has ended by itself: {why}")),
            None if stop.is_cancelled() => Some("it is stopping".into()),
            None if !ready.initialized() => Some("it is starting".into()),
            None => None,
        };
        facts.engine.note(engine, now);
        facts.broker.note(away, now);
        let silent = facts.asked_at.elapsed() > SILENT;
        let census = silent.then(|| format!("the ledger has not been asked since {}", facts.asked));
        facts.census.note(census, now);
        let round = attended.lock().map(|at| at.elapsed());
        facts.orders.note(round.filter(|_| !stop.is_cancelled()).and_then(stuck), now);
        let ready = facts.all().iter().all(|part| part.is_up());
        telemetry.up(facts.broker.is_up(), facts.ledger.is_up() && facts.census.is_up(), ready);
        telemetry.certificates(&broker.certificates());
        facts
    }

    fn live(&self) -> Report {
        let facts = self.look();
        let broken = facts.broken.is_some();
        // What broker and ledger do is no reason to end this process: a new one would find the same.
        let engine = if broken { facts.engine.clone() } else { Part::up("engine", facts.started) };
        Report::new(&[&engine, &facts.census, &facts.orders])
    }

    fn ready(&self) -> Report {
        Report::new(&self.look().all())
    }

    fn metrics(&self) -> String {
        drop(self.look());
        self.telemetry.render()
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock()
    }
}

/// Why operators' orders reach this worker no more, if the task that reads them last went round so long ago.
fn stuck(round: Duration) -> Option<String> {
    let words =
        || format!("what operators order has not been read for {} s, nor said how this worker is", round.as_secs());
    (round > SILENT).then(words)
}
