//! One run: the world is built, left to itself until the time is over, and looked at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_broker::Broker;
use roundelay_broker::embedded::EmbeddedBroker;
use roundelay_config::Config;
use roundelay_engine::StartError;
use roundelay_engine::enroll::Enroller;
use roundelay_ledger::sqlite::SqliteLedger;
use roundelay_ledger::{CatchUp, Kinds, LedgerUrl};
use roundelay_model::clock::{Clock, Entropy};
use roundelay_model::ids::Epoch;
use roundelay_model::schedule::{From, Rhythm};
use roundelay_model::topology::Names;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::Plan;
use super::capacity::{self, first_period};
use super::fleet::Fleet;
use super::gates::Gates;
use super::pace::Pace;
use super::population::Population;
use super::recorder::{Recorder, Span};
use super::report::{self, Report, Seen};

/// The history of a forecast is not read. Removing it more often would take longer than the runs themselves.
const REMEMBERED: Duration = Duration::from_secs(50);

/// Chains enrolled at a time. All that are due within 200 ms of each other and of the enrolment hold
/// it up for that time, so a batch is large; and all of it is in memory at the same time.
const BATCH: usize = 50_000;
/// The resolution of time.
const MOMENT: Duration = Duration::from_millis(1);
/// How often backlogs are looked at, and progress is told, in a run.
const LOOKS: u32 = 720;
/// Chains read at a time to count those that wait.
const PAGE: u32 = 10_000;

/// Something that happens at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    WorkersBack,
    BrokerBack,
    WorkersAway,
    BrokerAway,
    Look,
}

/// Simulates a plan. `progress` is told how much of the time has passed, now and then, and answers whether to go on.
///
/// # Errors
/// When the engine does not start on this configuration, or ends by itself.
pub fn run(plan: Plan, progress: impl Fn(Duration) -> bool) -> Result<Report, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| StartError::Setup(format!("a runtime cannot be had: {error}")))?;
    // What runs is the runtime's first task, which it polls before all others when a time has come:
    // so what is due exactly at the end does not happen.
    runtime.block_on(play(plan, progress))
}

async fn play(mut plan: Plan, progress: impl Fn(Duration) -> bool) -> Result<Report, StartError> {
    let before = capacity::warnings(&plan);
    // An occurrence exactly at the beginning is part of it, and the wall clock's next is always after
    // now: so chains that follow the wall clock begin a moment before.
    let begun = Instant::now() + MOMENT;
    let (clock, dice) = (Clock::starting_at(plan.from - MOMENT), Entropy::seeded(plan.seed));
    let span = Span { from: plan.from, end: plan.from + plan.length };
    plan.config.ledger.url = LedgerUrl::Memory;
    // The records of attempts are not read here, and there may be very many.
    plan.config.ledger.history = REMEMBERED;
    plan.config.worker.listen = None;
    plan.config.api.listen = None;
    let mut weights = plan.weigh();
    let broker = EmbeddedBroker::new(Names::new(&plan.config.broker.prefix));
    broker.apply(&plan.config.topology()).await?;
    let ledger = SqliteLedger::open(&LedgerUrl::Memory, clock.clone(), &dice)?;

    let first_periods: BTreeMap<&String, Duration> = plan
        .populations
        .keys()
        .filter_map(|kind| Some((kind, first_period(plan.config.kinds.get(kind)?, plan.from)?)))
        .collect();
    // A first period that takes up most of the time would leave too little to compare.
    let counts = |period: &&Duration| **period <= plan.length / 2;
    let after = first_periods.values().filter(counts).max().copied().unwrap_or_default();
    let all = Arc::new(Mutex::new(Pace::new(plan.length, after)));
    let gates = Arc::new(Gates::new(&plan.config));
    let queues = plan.config.queues.iter();
    let fair: BTreeMap<_, _> = queues.filter_map(|(name, queue)| Some((name.clone(), queue.fair.clone()?))).collect();
    let recorders = plan.config.kinds.iter().map(|(name, kind)| {
        let own = first_periods.get(name).filter(counts).copied().unwrap_or_default();
        let pace = Pace::new(plan.length, own);
        let dice = Entropy::seeded(dice.below(usize::MAX) as u64);
        let (of, dice) = ((kind, weights.remove(name).flatten(), fair.clone()), (plan.seed, dice));
        (name.clone(), Recorder::new(of, span, clock.clone(), dice, pace, all.clone(), gates.clone()))
    });
    let recorders = recorders.collect();
    let mut fleet = Fleet {
        config: plan.config.clone(),
        broker,
        ledger: Arc::new(ledger),
        clock,
        dice,
        recorders,
        live: Vec::new(),
        past: BTreeMap::new(),
    };
    fleet.start(plan.workers);
    let mut enrolling = enroll(&mut plan, &fleet, true)?;
    sleep_until(begun).await;
    enrolling.extend(enroll(&mut plan, &fleet, false)?);

    let mut backlogs: BTreeMap<String, u64> = BTreeMap::new();
    let lanes = plan.config.lanes();
    for (at, event) in timetable(&plan) {
        sleep_until(begun + at.min(plan.length)).await;
        if at >= plan.length {
            break;
        }
        match event {
            Event::WorkersAway => fleet.kill(),
            Event::WorkersBack => fleet.start(plan.workers),
            Event::BrokerAway => fleet.broker.stop(),
            Event::BrokerBack => fleet.broker.start(),
            Event::Look => {
                fleet.check().await?;
                check(&mut enrolling).await?;
                if !progress(at) {
                    return Err(StartError::Setup("it was ended".into()));
                }
                for queue in plan.config.queues.keys() {
                    // While the broker is away there is nothing to see.
                    let mut ready = 0;
                    for lane in lanes.queues(queue) {
                        ready += at_once(fleet.broker.depth(&lane)).await.map_or(0, |depth| depth.ready);
                    }
                    let most = backlogs.entry(queue.clone()).or_default();
                    *most = ready.max(*most);
                }
            }
        }
    }
    fleet.check().await?;
    check(&mut enrolling).await?;
    let waiting = waiting(&fleet, &plan, span).await?;
    let all = all.lock();
    Ok(report::make(&plan, &Seen { fleet: &fleet, all: &all, gates: &gates, waiting, backlogs, span, before }))
}

/// An answer that takes no time, if there is one.
async fn at_once<T, E>(answer: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::select! {
        biased;
        answer = answer => answer.ok(),
        () = std::future::ready(()) => None,
    }
}

/// What happens when, in order, and the end.
fn timetable(plan: &Plan) -> Vec<(Duration, Event)> {
    let mut events = Vec::new();
    for outage in &plan.outages {
        events.extend([(outage.start, Event::WorkersAway), (outage.end, Event::WorkersBack)]);
    }
    for outage in &plan.broker_outages {
        events.extend([(outage.start, Event::BrokerAway), (outage.end, Event::BrokerBack)]);
    }
    events.extend((1..LOOKS).map(|n| (plan.length * n / LOOKS, Event::Look)));
    events.push((plan.length, Event::Look));
    events.sort_unstable();
    events
}

type Enrolling = Vec<(String, JoinHandle<Result<(), StartError>>)>;

/// Whether chains of this kind have times of their own, whenever they begin.
fn has_a_grid(config: &Config, kind: &str) -> bool {
    let recurrence = config.kinds.get(kind).and_then(|kind| kind.recurrence.as_ref());
    recurrence.is_some_and(|recurrence| match recurrence.schedule.rhythm {
        Rhythm::Cron(_) => true,
        Rhythm::Every { from, .. } => from == From::Nominal && recurrence.schedule.spread_phase,
        Rhythm::At(_) => false,
    })
}

/// Begins the chains of all kinds that have a grid, or of all others, each kind by a task of its own,
/// so that all begin at the same time.
fn enroll(plan: &mut Plan, fleet: &Fleet, gridded: bool) -> Result<Enrolling, StartError> {
    let mut enrolling = Vec::new();
    for (kind, population) in &mut plan.populations {
        if has_a_grid(&fleet.config, kind) != gridded {
            continue;
        }
        let (connection, connections) = fleet.connections();
        let mut enroller = Enroller::new(&fleet.config, connections, kind, plan.spread, true)?;
        // From here on only their number is of interest.
        let (chains, queues, keys) = (population.chains(), Vec::new(), Vec::new());
        let counted = Population::Counted { chains, queues, keys, zipf: false, owners: Vec::new() };
        let batches = std::mem::replace(population, counted).batches(BATCH);
        let task = async move {
            for batch in batches {
                enroller.enroll(batch).await?;
            }
            // It closes with the last who holds it.
            drop(connection);
            Ok(())
        };
        enrolling.push((kind.clone(), tokio::spawn(task)));
    }
    Ok(enrolling)
}

/// Whether what has been enrolled was enrolled well.
async fn check(enrolling: &mut Enrolling) -> Result<(), StartError> {
    for (kind, mut task) in std::mem::take(enrolling) {
        if !task.is_finished() {
            enrolling.push((kind, task));
            continue;
        }
        match (&mut task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(StartError::Setup(format!("failed to enroll kinds.{kind}: {error}"))),
            Err(panic) => return Err(StartError::Broken(panic.to_string())),
        }
    }
    Ok(())
}

/// The rotations of a kind.
fn rotations(kind: &str) -> Kinds {
    Kinds { all: vec![kind.to_owned()], recurring: vec![kind.to_owned()] }
}

/// How many chains of each kind are due and do not run.
async fn waiting(fleet: &Fleet, plan: &Plan, span: Span) -> Result<BTreeMap<String, u64>, StartError> {
    let queues: Vec<String> = plan.config.queues.keys().cloned().collect();
    let mut waiting = BTreeMap::new();
    for kind in plan.populations.keys() {
        let (mut due, mut after) = (0, Epoch::NONE);
        loop {
            let page = fleet.ledger.messages(queues.clone(), rotations(kind), after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = last.epoch;
            due += page.iter().filter(|hint| hint.due < span.end).count() as u64;
        }
        let running = fleet.recorders.get(kind).map_or(0, |recorder| recorder.noted().running);
        waiting.insert(kind.clone(), due.saturating_sub(running));
    }
    Ok(waiting)
}
