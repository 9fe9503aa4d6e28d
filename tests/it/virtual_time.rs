//! An engine in virtual time: the real one, on the embedded broker and a ledger in memory, with
//! handlers that follow a script. Time jumps to the next thing that happens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use roundelay::broker::embedded::{EmbeddedBroker, Profile};
use roundelay::broker::{Destination, Message};
use roundelay::clock::{Clock, Entropy, Time};
use roundelay::config::{HandlerSettings, KindSettings};
use roundelay::engine::Connections;
use roundelay::engine::life::{Point, Probe};
use roundelay::ids::Fence;
use roundelay::job::{Envelope, Job};
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::{AttemptRecord, Enrolled, Jobs, LedgerClock, LedgerUrl, NewChain, Protocol, Reports};
use roundelay::topology::Names;
use roundelay::{Config, Context, Engine, Outcome};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// When virtual time begins, unless a test says otherwise: a Monday, at midnight UTC.
pub const MONDAY: Time = Time::from_millis(1_767_571_200_000);

/// A run of a handler, as it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub job: Job,
    pub from: Time,
    /// `None` while it runs, or when it was aborted.
    pub to: Option<Time>,
}

/// What a handler does: how long it takes, and what it says then.
pub type Script = Box<dyn Fn(&Job) -> (Duration, Outcome) + Send + Sync>;

/// The world. Tests that use it begin with `#[tokio::test(start_paused = true)]`.
pub struct World {
    pub config: Config,
    pub connections: Connections,
    pub begin: Time,
    pub ledger: Arc<SqliteLedger>,
    /// What the connections lead to, for its faults.
    pub broker: EmbeddedBroker,
    seen: Arc<Mutex<Vec<Seen>>>,
    started: tokio::time::Instant,
    engines: Vec<(CancellationToken, JoinHandle<()>)>,
    scripts: BTreeMap<String, Arc<Script>>,
    probe: Option<Arc<dyn Probe>>,
}

/// Keeps an engine for a while each time it comes to a point, so that others come there too.
struct Pause(Point, Duration);

impl Probe for Pause {
    fn reached(&self, point: Point) -> BoxFuture<'static, ()> {
        if point == self.0 { sleep(self.1).boxed() } else { ready(()).boxed() }
    }

    fn hold(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        task
    }
}

impl World {
    /// A world with this configuration, in which nothing runs yet.
    pub fn new(config: &str, begin: Time) -> Self {
        Self::by(Clock::starting_at(begin), config, begin, Profile::default())
    }

    /// The same, on a broker that lets messages sleep on their queues. Its workers and programs start beside each other.
    pub fn natively(config: &str, begin: Time) -> Self {
        let world = Self::by(Clock::starting_at(begin), config, begin, Profile::Rabbit44);
        let delays = world.config.broker.delays;
        let connections =
            Connections { broker: Arc::new(world.broker.connect().with_delays(delays)), ..world.connections };
        Self { connections, ..world }
    }

    /// The same, with a ledger whose time is that of a server. Workers learn that its clock was set when they read it.
    pub fn on_server(config: &str, begin: Time) -> Self {
        Self::by(Clock::of_server(begin), config, begin, Profile::default())
    }

    fn by(clock: Clock, config: &str, begin: Time, profile: Profile) -> Self {
        let text = format!("ledger.url = \"sqlite://:memory:\"\n{config}");
        let config = Config::parse(&text, "the test's configuration", []).unwrap_or_else(|error| panic!("{error}"));
        let entropy = Entropy::seeded(7);
        let ledger = Arc::new(SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &entropy).unwrap());
        let broker = EmbeddedBroker::with_profile(Names::new(&config.broker.prefix), profile);
        broker.goes_by(clock.clone());
        let connections = Connections { broker: Arc::new(broker.clone()), ledger: ledger.clone(), clock, entropy };
        let (seen, started) = (Arc::default(), tokio::time::Instant::now());
        Self {
            config,
            connections,
            begin,
            ledger,
            broker,
            seen,
            started,
            engines: Vec::new(),
            scripts: BTreeMap::new(),
            probe: None,
        }
    }

    /// What the handler of a kind does, whatever the configuration says. Others end at once, and well, unless
    /// the configuration names a handler for them: then it is that one.
    pub fn script(&mut self, kind: &str, script: impl Fn(&Job) -> (Duration, Outcome) + Send + Sync + 'static) {
        self.scripts.insert(kind.into(), Arc::new(Box::new(script)));
    }

    /// Workers that start from now on pause for `length` each time they reach `point` of their work.
    pub fn pause_at(&mut self, point: Point, length: Duration) {
        self.probe = Some(Arc::new(Pause(point, length)));
    }

    /// Begins chains, before the engine starts.
    pub async fn chains(&self, chains: Vec<NewChain>) {
        for enrolled in self.ledger.enroll(chains).await.unwrap() {
            assert!(matches!(enrolled, Enrolled::Created(_)), "{enrolled:?}");
        }
    }

    /// A worker.
    pub async fn start(&mut self) {
        self.begin_with(Engine::without_chores).await;
    }

    /// A worker that also does what the engine does for itself.
    pub async fn start_with_chores(&mut self) {
        self.begin_with(|engine| engine).await;
    }

    /// The same, of a worker that takes over configurations.
    pub async fn start_following(&mut self, configurations: tokio::sync::mpsc::Receiver<Config>) {
        self.begin_with(|engine| engine.configurations(configurations)).await;
    }

    /// A worker that is set up like this.
    pub async fn begin_with(&mut self, set_up: impl FnOnce(Engine) -> Engine) {
        if self.connections.broker.parks() == Some(false) {
            self.connections.broker.apply(&self.config.topology()).await.unwrap();
        }
        let mut engine = set_up(Engine::new(self.config.clone()).connections(self.connections.clone()));
        if let Some(probe) = &self.probe {
            engine = engine.probe(probe.clone());
        }
        let scripted = |kind: &String| self.scripts.contains_key(kind);
        let none = |settings: &KindSettings| matches!(settings.handler, HandlerSettings::Rust);
        for (kind, _) in self.config.kinds.iter().filter(|(kind, settings)| scripted(kind) || none(settings)) {
            let (seen, ledger, script) = (self.seen.clone(), self.ledger.clone(), self.scripts.get(kind).cloned());
            engine = engine.handler(kind, move |job: Job, _: Context| {
                let (takes, outcome) = script.as_ref().map_or((Duration::ZERO, Outcome::Done), |script| script(&job));
                let number = {
                    let mut seen = seen.lock();
                    seen.push(Seen { job, from: ledger.now(), to: None });
                    seen.len() - 1
                };
                let (seen, ledger) = (seen.clone(), ledger.clone());
                async move {
                    tokio::time::sleep(takes).await;
                    seen.lock()[number].to = Some(ledger.now());
                    outcome
                }
            });
        }
        let (stop, ready) = (CancellationToken::new(), engine.ready());
        let run = engine.run(stop.clone());
        self.engines.push((stop, tokio::spawn(async move { run.await.unwrap() })));
        ready.wait().await;
    }

    /// A worker among several: its connection is its own, on a broker that outlives it, as RabbitMQ does.
    pub async fn start_beside(&mut self) {
        self.connections.broker = Arc::new(self.broker.connect().with_delays(self.config.broker.delays));
        self.start().await;
    }

    /// Stops the workers in good order.
    pub async fn stop(&mut self) {
        for (stop, engine) in self.engines.drain(..) {
            stop.cancel();
            engine.await.unwrap();
        }
    }

    /// Lets time go on to this long after the beginning.
    pub async fn until(&self, after: Duration) {
        sleep_until(self.started + after).await;
    }

    /// Publishes a one-off job, as a program in any language does.
    pub async fn publish(&self, queue: &str, kind: &str, key: &str, payload: Value) {
        self.publish_envelope(queue, &Envelope::job(kind, key, payload, format!("{kind}-{key}"))).await;
    }

    pub async fn publish_envelope(&self, queue: &str, envelope: &Envelope) {
        let message = Message::new(Destination::Queue(queue.into()), envelope);
        self.connections.broker.publish(message).await.unwrap();
    }

    /// Accepts a one-off job as `roundelay publish` does where the broker keeps nothing.
    pub async fn keep(&self, queue: &str, envelope: Envelope) {
        let envelope = Envelope { queue: Some(queue.into()), ..envelope };
        self.ledger.keep_job(envelope.id.clone().unwrap(), envelope.encode()).await.unwrap();
    }

    /// What has run so far, in order.
    pub fn seen(&self, kind: &str) -> Vec<Seen> {
        self.seen.lock().iter().filter(|seen| seen.job.kind == kind).cloned().collect()
    }

    /// The records of attempts, in order.
    pub async fn attempts(&self) -> Vec<AttemptRecord> {
        self.ledger.attempts(Fence::NONE, u32::MAX).await.unwrap()
    }

    /// Minutes and seconds since the beginning, as `mm:ss`.
    pub fn mmss(&self, at: Time) -> String {
        let secs = at.since(self.begin).as_secs();
        assert_eq!(at.since(self.begin).subsec_millis(), 0, "{at} is a whole second");
        format!("{:02}:{:02}", secs / 60, secs % 60)
    }
}

/// A chain that is due then.
pub fn chain(kind: &str, key: &str, queue: &str, due: Time) -> NewChain {
    NewChain { kind: kind.into(), queue: queue.into(), ..crate::harness::chain(key, due) }
}
