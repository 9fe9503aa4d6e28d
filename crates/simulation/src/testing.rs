//! Tests of handlers: the real engine on a ledger in memory and the embedded broker, in virtual time.
//!
//! The facade shows this module as `roundelay::testing`. It takes workers and ledger from the simulation of faults, and
//! leaves out its judgement: what may happen is for the embedder's test to say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use roundelay_broker::BrokerUrl;
use roundelay_broker::embedded::{EmbeddedConnection, PublishFault};
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_engine::enroll::{Enroller, Entity};
use roundelay_engine::publish::Publisher;
use roundelay_handler::{Context, Handler};
use roundelay_ledger::LedgerUrl;
use roundelay_model::clock::{Entropy, Time, short_duration};
use roundelay_model::job::Job;
use roundelay_model::outcome::{NewJob, Outcome};
use roundelay_model::secret::Secret;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::ground::Ground;
use crate::worker::Process;

/// When a simulation begins, unless the test says otherwise: 2027-01-15 08:00:00 UTC.
const BEGIN: Time = Time::from_millis(1_800_000_000_000);
/// A worker that could not start, because broker or ledger were away, is started again after this.
const START_AGAIN: Duration = Duration::from_secs(1);

/// A test of handlers: what is to run, for how long, and what goes wrong meanwhile.
///
/// The engine is the real one, with all that the configuration says of schedules, retries, throttles and guards. Time
/// is virtual: it goes on to the next timer whenever no task can run, so a wait costs nothing. The same seed, with the
/// same handlers, gives the same runs.
///
/// - Broker and ledger are in memory, whatever the configuration names. Nothing listens, and no roster is read.
/// - A handler may use tokio's time (`tokio::time::sleep`), and channels and locks. It can have no real network: give
///   it a stand-in for what it calls. The machine's clock stays real; take the time from [`Job::nominal`] and
///   [`Job::deadline`].
/// - A handler that is registered here lives on when its worker crashes, as a database does.
#[must_use = "nothing happens before `run`"]
pub struct Simulation {
    config: Config,
    seed: u64,
    begin: Time,
    workers: usize,
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    chains: BTreeMap<String, Vec<Entity>>,
    jobs: Vec<NewJob>,
    faults: Vec<(Duration, Fault)>,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The process of a worker is killed, and started again after `away`. What it ran is cut off, and runs again when
    /// the ledger has noticed (see `worker.lease`).
    Crash {
        /// Which worker, from 0.
        worker: usize,
        /// How long it is gone.
        away: Duration,
    },
    /// A worker loses its connection to the broker for this long. Its acknowledgements are lost, so messages come
    /// again.
    Disconnect {
        /// Which worker, from 0.
        worker: usize,
        /// How long it is cut off.
        away: Duration,
    },
    /// The broker is away for this long, for all workers. It keeps its messages.
    BrokerAway(Duration),
    /// The ledger is away for this long, for all workers.
    LedgerAway(Duration),
    /// The broker takes this number of the next messages, and its confirmations are lost.
    LostConfirmations(usize),
    /// The ledger commits this number of the next writes, and its answers are lost.
    LostAnswers(usize),
}

/// A run of a handler.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run {
    /// Which worker ran it, from 0.
    pub worker: usize,
    /// When it began, since the beginning of the simulation.
    pub at: Duration,
    /// What the handler got.
    pub job: Job,
    /// What the handler answered, and how long it took; `None` when it was cut off (its worker crashed, its deadline
    /// passed, it panicked), or still runs at the end.
    pub ended: Option<(Duration, Outcome)>,
}

/// What came of a simulation.
///
/// A test that panics while it holds its report prints the seed to standard error. [`Display`](fmt::Display) shows
/// every run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed that decided all dice.
    pub seed: u64,
    /// Every run of a handler, in the order in which they began.
    pub runs: Vec<Run>,
}

impl Simulation {
    /// A simulation of one worker with this configuration, which begins at 2027-01-15 08:00:00 UTC with seed 0.
    pub fn new(config: Config) -> Self {
        let (handlers, chains, jobs, faults) = Default::default();
        Self { config, seed: 0, begin: BEGIN, workers: 1, handlers, chains, jobs, faults }
    }

    /// Decides all dice: jitter, latencies of the ledger, which of several workers gets a message.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The wall clock's time at the beginning.
    pub fn begin(mut self, begin: Time) -> Self {
        self.begin = begin;
        self
    }

    /// How many workers there are.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Runs jobs of `kind` with `handler`, in place of what the configuration says. Every kind needs one.
    pub fn handler(mut self, kind: &str, handler: impl Handler + 'static) -> Self {
        self.handlers.insert(kind.into(), Arc::new(handler));
        self
    }

    /// Begins a chain, as `roundelay enroll` does: its first tick is due within the kind's interval, or at the entity's
    /// `first_due`.
    pub fn chain(mut self, kind: &str, entity: Entity) -> Self {
        self.chains.entry(kind.into()).or_default().push(entity);
        self
    }

    /// Publishes a one-off job at the beginning; [`NewJob::delay`] puts it off. The first has the id `job-0`.
    pub fn job(mut self, job: NewJob) -> Self {
        self.jobs.push(job);
        self
    }

    /// Lets something go wrong this long after the beginning.
    pub fn fault(mut self, at: Duration, fault: Fault) -> Self {
        self.faults.push((at, fault));
        self
    }

    /// Runs for `length` of virtual time. Can be called from any test, also from one of tokio.
    ///
    /// # Errors
    /// [`StartError`] when configuration, handlers, chains, jobs and faults do not fit together, or a part of the
    /// engine ended by itself.
    pub fn run(self, length: Duration) -> Result<Report, StartError> {
        // A thread of its own: in the runtime of a test of tokio no other runtime can run.
        let simulated = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let runtime = runtime.map_err(|error| StartError::Setup(format!("there is no runtime: {error}")))?;
            runtime.block_on(self.play(length))
        });
        simulated.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    async fn play(mut self, length: Duration) -> Result<Report, StartError> {
        self.check()?;
        // Where the test's machine would be reached is not reached.
        (self.config.worker.listen, self.config.api.listen) = (None, None);
        self.config.ledger.url = LedgerUrl::Memory;
        self.config.broker.url = BrokerUrl::Amqp(Secret::new("amqp://simulated"));
        let (seed, workers) = (self.seed, self.workers);
        let mut world = World::new(self).await?;
        (0..workers).for_each(|worker| world.start(worker));
        world.go_on(length).await?;
        let runs = std::mem::take(&mut *world.runs.lock());
        Ok(Report { seed, runs })
    }

    fn check(&self) -> Result<(), StartError> {
        let wrong = |what: String| Err(StartError::Setup(what));
        let known: BTreeSet<&str> = self.config.kind_names().collect();
        if let Some(kind) = known.iter().find(|kind| !self.handlers.contains_key(**kind)) {
            return wrong(format!("kinds.{kind} has no handler in this test; register one with Simulation::handler"));
        }
        for (_, fault) in &self.faults {
            if let Fault::Crash { worker, .. } | Fault::Disconnect { worker, .. } = fault
                && *worker >= self.workers
            {
                let last = self.workers.saturating_sub(1);
                return wrong(format!("{fault:?}: there is no such worker; they are 0 to {last}"));
            }
        }
        Ok(())
    }
}

impl Report {
    /// The runs of one entity, in the order in which they began.
    pub fn runs_of<'a>(&'a self, kind: &'a str, key: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.job.kind == kind && run.job.key == key)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("roundelay::testing: this was seed {}; the same seed gives the same runs", self.seed);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} runs", self.seed, self.runs.len())?;
        self.runs.iter().try_for_each(|run| writeln!(f, "{run}"))
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { kind, key, attempt, .. } = &self.job;
        write!(f, "{:>12.3} s  worker {}  {kind} {key}", self.at.as_secs_f64(), self.worker)?;
        if let Some(tick) = self.job.tick {
            write!(f, " tick {}", tick.tick)?;
        }
        write!(f, " attempt {attempt}: ")?;
        match &self.ended {
            Some((took, outcome)) => write!(f, "{outcome:?} after {}", short_duration(*took)),
            None => f.write_str("cut off, or still running"),
        }
    }
}

enum Event {
    Fault(Fault),
    Start(usize),
    BrokerBack,
    LedgerBack,
}

/// The process of a worker.
struct Live {
    process: Arc<Process>,
    connection: Arc<EmbeddedConnection>,
    engine: JoinHandle<()>,
}

/// A worker's engine has ended by itself: which worker, which start of it, and why.
type Ended = (usize, usize, Result<(), StartError>);

struct World {
    ground: Ground,
    lost_confirmations: Arc<AtomicUsize>,
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    runs: Arc<Mutex<Vec<Run>>>,
    begun: Instant,
    workers: Vec<Option<Live>>,
    starts: usize,
    ended: (mpsc::UnboundedSender<Ended>, mpsc::UnboundedReceiver<Ended>),
    events: BTreeMap<(Instant, usize), Event>,
    numbers: usize,
    broker_back: Instant,
    ledger_back: Instant,
}

impl World {
    /// Everything is there but the workers.
    async fn new(test: Simulation) -> Result<Self, StartError> {
        let Simulation { config, seed, begin, workers, handlers, chains, jobs, faults } = test;
        let ground = Ground::new(config, seed, begin).await?;
        let lost_confirmations = Arc::<AtomicUsize>::default();
        let lost = lost_confirmations.clone();
        ground.broker.on_publish(move |_| {
            let lose = |n: usize| n.checked_sub(1);
            match lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lose) {
                Ok(_) => PublishFault::UnknownButKept,
                Err(_) => PublishFault::None,
            }
        });
        let begun = Instant::now();
        let mut world = Self {
            runs: Arc::default(),
            workers: (0..workers).map(|_| None).collect(),
            starts: 0,
            ended: mpsc::unbounded_channel(),
            events: BTreeMap::new(),
            numbers: 0,
            broker_back: begun,
            ledger_back: begun,
            ground,
            lost_confirmations,
            handlers,
            begun,
        };
        world.bring(chains, jobs).await?;
        faults.into_iter().for_each(|(at, fault)| world.at(begun + at, Event::Fault(fault)));
        Ok(world)
    }

    /// What the test begins and publishes, as another program does.
    async fn bring(&self, chains: BTreeMap<String, Vec<Entity>>, jobs: Vec<NewJob>) -> Result<(), StartError> {
        let entropy = Entropy::seeded(self.ground.dice.below(usize::MAX) as u64);
        let connections = self.ground.connections(entropy);
        for (kind, entities) in chains {
            Enroller::new(&self.ground.config, connections.clone(), &kind, None, true)?.enroll(entities).await?;
        }
        let publisher = Publisher::new(&self.ground.config, connections);
        for (n, job) in jobs.into_iter().enumerate() {
            let published = publisher.publish_as(format!("job-{n}"), job).await;
            published.map_err(|error| StartError::Setup(format!("failed to publish job-{n}: {error}")))?;
        }
        Ok(())
    }

    async fn go_on(&mut self, length: Duration) -> Result<(), StartError> {
        let end = self.begun + length;
        loop {
            let next = self.events.first_key_value().map_or(end, |(key, _)| key.0);
            tokio::select! {
                biased;
                Some((worker, start, ended)) = self.ended.1.recv() => self.see_to(worker, start, ended)?,
                () = sleep_until(next.min(end)) => {
                    if next >= end {
                        return Ok(());
                    }
                    if let Some((_, event)) = self.events.pop_first() {
                        self.happen(event);
                    }
                }
            }
        }
    }

    /// A worker that finds broker or ledger away at its start is started again, as its supervisor would.
    fn see_to(&mut self, worker: usize, start: usize, ended: Result<(), StartError>) -> Result<(), StartError> {
        if self.workers[worker].as_ref().is_none_or(|live| live.process.run != start) {
            return Ok(());
        }
        match ended {
            Err(StartError::Ledger(_) | StartError::Broker(_)) => {
                self.kill(worker);
                self.after(START_AGAIN, Event::Start(worker));
                Ok(())
            }
            ended => ended,
        }
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.numbers += 1;
        self.events.insert((at, self.numbers), event);
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.at(Instant::now() + delay, event);
    }

    fn happen(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Start(worker) => self.start(worker),
            // Another outage may go on for longer.
            Event::BrokerBack if now >= self.broker_back => self.ground.broker.start(),
            Event::LedgerBack if now >= self.ledger_back => self.ground.fault_state.set_down(false),
            Event::BrokerBack | Event::LedgerBack => {}
            Event::Fault(fault) => self.fault(fault),
        }
    }

    fn fault(&mut self, fault: Fault) {
        let now = Instant::now();
        match fault {
            Fault::Crash { worker, away } => {
                self.kill(worker);
                self.after(away, Event::Start(worker));
            }
            Fault::Disconnect { worker, away } => {
                if let Some(live) = &self.workers[worker] {
                    live.connection.cut(away);
                }
            }
            Fault::BrokerAway(away) => {
                self.ground.broker.stop();
                self.broker_back = self.broker_back.max(now + away);
                self.after(away, Event::BrokerBack);
            }
            Fault::LedgerAway(away) => {
                self.ground.fault_state.set_down(true);
                self.ledger_back = self.ledger_back.max(now + away);
                self.after(away, Event::LedgerBack);
            }
            Fault::LostConfirmations(messages) => {
                self.lost_confirmations.fetch_add(messages, Ordering::Relaxed);
            }
            Fault::LostAnswers(writes) => self.ground.fault_state.hide(writes),
        }
    }

    fn kill(&mut self, worker: usize) {
        let Some(live) = self.workers[worker].take() else { return };
        live.process.kill();
        live.connection.die();
        live.engine.abort();
    }

    fn start(&mut self, worker: usize) {
        if self.workers[worker].is_some() {
            return;
        }
        self.starts += 1;
        let (mut engine, process, connection) = self.ground.worker(worker, self.starts);
        for (kind, handler) in &self.handlers {
            let (handler, runs, begun) = (handler.clone(), self.runs.clone(), self.begun);
            engine = engine.handler(kind, Recorded { worker, begun, handler, runs });
        }
        let (run, ended, start) = (engine.run(CancellationToken::new()), self.ended.0.clone(), self.starts);
        let life = async move {
            let _ = ended.send((worker, start, run.await));
        };
        let engine = tokio::spawn(process.hold(Box::pin(life)));
        self.workers[worker] = Some(Live { process, connection, engine });
    }
}

/// The test's handler, whose runs are noted.
struct Recorded {
    worker: usize,
    begun: Instant,
    handler: Arc<dyn Handler>,
    runs: Arc<Mutex<Vec<Run>>>,
}

#[async_trait]
impl Handler for Recorded {
    async fn run(&self, job: Job, context: Context) -> Outcome {
        let from = Instant::now();
        let number = {
            let mut runs = self.runs.lock();
            runs.push(Run { worker: self.worker, at: from - self.begun, job: job.clone(), ended: None });
            runs.len() - 1
        };
        let outcome = self.handler.run(job, context).await;
        self.runs.lock()[number].ended = Some((from.elapsed(), outcome.clone()));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use roundelay_model::outcome::Yield;
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A chain whose ticks each ask for a job, under a throttle, and a kind that fails at its first attempts.
    const CONFIG: &str = "
        [throttles.upstream]
        allow = 1
        per = '10s'
        [queues.work]
        concurrency = 4
        [queues.paced]
        throttle = 'upstream'
        [kinds.sync]
        queue = 'work'
        every = '5m'
        jitter = '30s'
        timeout = '1m'
        [kinds.call]
        queue = 'paced'
        retry = { attempts = 3, backoff = ['20s'] }
    ";

    fn simulation() -> Simulation {
        let config = Config::parse(CONFIG, "the test's configuration", []).unwrap();
        let sync = async |job: Job, _: Context| {
            sleep(Duration::from_secs(20)).await;
            let call = NewJob { kind: "call".into(), key: job.key, payload: json!(1), ..NewJob::default() };
            Outcome::DoneWith(Yield { jobs: vec![call], ..Yield::default() })
        };
        let call = async |job: Job, _: Context| match job.attempt {
            1 => Outcome::retry("busy"),
            _ => Outcome::Done,
        };
        let entity = |n: usize| Entity::new(format!("e{n}"), "work", "{}");
        let test = Simulation::new(config).handler("sync", sync).handler("call", call);
        (0..4).fold(test, |test, n| test.chain("sync", entity(n)))
    }

    fn done(report: &Report, kind: &str) -> usize {
        let done = |run: &&Run| matches!(run.ended, Some((_, Outcome::Done | Outcome::DoneWith(_))));
        report.runs.iter().filter(|run| run.job.kind == kind).filter(done).count()
    }

    #[test]
    fn chains_retries_and_throttles_do_what_they_do_in_the_engine() {
        let report = simulation().run(30 * MINUTE).unwrap();
        // Every 5 min and 20 s, give or take the jitter.
        assert!((16..=26).contains(&done(&report, "sync")), "{report}");
        let calls: Vec<&Run> = report.runs.iter().filter(|run| run.job.kind == "call").collect();
        assert!(done(&report, "call") + 4 >= done(&report, "sync"), "{report}");
        for pair in calls.windows(2) {
            assert!(pair[1].at - pair[0].at >= Duration::from_millis(9_900), "{report}");
        }
    }

    #[test]
    fn a_one_off_job_runs_after_its_delay() {
        let job = NewJob { kind: "call".into(), key: "k".into(), delay: 7 * MINUTE, ..NewJob::default() };
        let report = simulation().job(job).run(10 * MINUTE).unwrap();
        let mut runs = report.runs_of("call", "k").filter(|run| run.job.id == "job-0");
        let first = runs.next().unwrap();
        assert!(first.at >= 7 * MINUTE && first.at < 8 * MINUTE, "{report}");
        assert_eq!(runs.next().map(|run| run.job.attempt), Some(2), "{report}");
    }

    #[test]
    fn the_same_seed_gives_the_same_runs_with_all_faults() {
        let faulty = |seed| {
            let faults = [
                Fault::Crash { worker: 0, away: MINUTE },
                Fault::Disconnect { worker: 1, away: MINUTE },
                Fault::BrokerAway(3 * MINUTE),
                Fault::LedgerAway(MINUTE),
                Fault::LostConfirmations(5),
                Fault::LostAnswers(5),
            ];
            let test = simulation().seed(seed).workers(2);
            let test = (1..).zip(faults).fold(test, |test, (n, fault)| test.fault(4 * n * MINUTE, fault));
            test.run(40 * MINUTE).unwrap()
        };
        let first = faulty(1);
        assert_eq!(faulty(1).to_string(), first.to_string());
        assert_ne!(faulty(2).to_string(), first.to_string());
        for key in ["e0", "e1", "e2", "e3"] {
            let last = first.runs_of("sync", key).last().map(|run| run.at);
            assert!(last > Some(30 * MINUTE), "{key} goes on:\n{first}");
        }
    }

    #[test]
    fn a_crash_cuts_a_run_off_and_the_tick_runs_again() {
        let all = simulation().seed(3).run(20 * MINUTE).unwrap();
        let at = all.runs_of("sync", "e0").next().unwrap().at + Duration::from_secs(10);
        let crash = Fault::Crash { worker: 0, away: Duration::from_secs(5) };
        let report = simulation().seed(3).fault(at, crash).run(20 * MINUTE).unwrap();
        let mut runs = report.runs_of("sync", "e0");
        let (cut, again) = (runs.next().unwrap(), runs.next().unwrap());
        assert!(cut.ended.is_none() && again.ended.is_some(), "{report}");
        assert_eq!(cut.job.id, again.job.id, "{report}");
    }

    #[tokio::test]
    async fn what_does_not_fit_together_is_refused_also_in_a_test_of_tokio() {
        let config = Config::parse(CONFIG, "the test's configuration", []).unwrap();
        let error = Simulation::new(config).run(MINUTE).unwrap_err().to_string();
        assert!(error.contains("kinds.call has no handler"), "{error}");
        let crash = Fault::Crash { worker: 1, away: MINUTE };
        let error = simulation().fault(MINUTE, crash).run(MINUTE).unwrap_err().to_string();
        assert!(error.contains("there is no such worker"), "{error}");
        let job = NewJob { kind: "absent".into(), key: "k".into(), ..NewJob::default() };
        let error = simulation().job(job).run(MINUTE).unwrap_err().to_string();
        assert!(error.contains("failed to publish job-0"), "{error}");
    }
}
