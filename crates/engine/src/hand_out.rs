//! The beat goes on while the broker is away.
//!
//! Messages are hints, and the ledger knows which chains are due. So a worker that has been without the broker for a
//! moment hands itself the due chains of its queues from the ledger, as if their messages had come: within prefetch,
//! concurrency and throttles, each chain to one worker, by compare-and-set. What it finishes meanwhile stays unsent in
//! the ledger, which is in charge of every chain until the broker is back. Then catch-up sends what is unsent as it
//! falls due, and messages that come back with the broker are stale.
//!
//! Late chains are handed out in the same way ([`take_late`]) while a worker is silent, since the broker may give their
//! messages to that worker again; and for a moment after an outage, since queues of a broker that has just begun may
//! keep messages that are due.
//!
//! One-off jobs are in no ledger but in their messages: they wait for the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use roundelay_broker::{Delivery, Settle};
use roundelay_config::CatchUpSettings;
use roundelay_ledger::{LedgerError, LookAgain, OrphanFilter, Overdue};
use roundelay_model::clock::Entropy;
use roundelay_model::clock::Time;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::Catalog;
use crate::in_hand::Hands;
use crate::left_behind::LeftBehind;
use crate::life::Point;
use crate::observing::Observing;
use crate::patient::PatientLedger;
use crate::publishing::Publishing;
use crate::queue::QueueRun;
use crate::queue::Queues;
use crate::telemetry::Count;
use crate::vitals::Vitals;

/// Lives one delivery of a queue.
pub(crate) type Live = Arc<dyn Fn(Arc<QueueRun>, Delivery) -> BoxFuture<'static, ()> + Send + Sync>;

/// What the task needs of the worker.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(crate) ledger: PatientLedger,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) publishing: Arc<Publishing>,
    pub(crate) observing: Arc<Observing>,
    pub(crate) in_hand: Arc<Hands>,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) left: Arc<LeftBehind>,
    pub(crate) entropy: Entropy,
    pub(crate) catch_up: CatchUpSettings,
    /// Begins the life of a delivery.
    pub(crate) live: Live,
}

/// A connection that is back within this was no outage.
const AFTER: Duration = Duration::from_secs(1);
/// How often the connection, and then the ledger, is looked at.
const PERIOD: Duration = Duration::from_millis(100);
/// The same while more is due than this worker may hold.
const BUSY: Duration = Duration::from_millis(20);
/// Chains read at a time.
const PER_LOOK: u32 = 1_000;
/// A worker that has begun without the broker ends when its topology is refused as often as this,
const REFUSALS: u32 = 3;
/// each time after this.
const BETWEEN_REFUSALS: Duration = Duration::from_secs(1);

/// Hands out what is due whenever the broker is away, until `shutdown`.
pub(super) async fn run(needs: Needs, tasks: TaskTracker, shutdown: CancellationToken) {
    let work = async {
        loop {
            let why = away(&needs).await;
            needs.publishing.outage.set(true);
            tracing::warn!(why, "the broker is away: chains run from the ledger, and one-off jobs wait for the broker");
            let (begun, before) = (Instant::now(), needs.observing.telemetry.get(Count::HandedOut));
            hand_out(&needs, &tasks).await;
            needs.publishing.outage.set(false);
            // RabbitMQ answers some seconds before its queues pass on what has slept on them.
            needs.left.silent.store(true, Ordering::Relaxed);
            needs.left.orphaned.notify_one();
            let (lasted, ticks) = (begun.elapsed(), needs.observing.telemetry.get(Count::HandedOut) - before);
            tracing::info!(?lasted, ticks, "the broker is back");
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// Declares the topology once the broker is there, for a worker that has begun without it. What the broker refuses
/// again and again ends the worker: it would not have begun. Once may be because the broker has just begun itself.
pub(super) async fn declare_late(publishing: Arc<Publishing>, shutdown: CancellationToken) {
    let declare = async {
        let mut refused = 0;
        loop {
            while publishing.dispatch.broker.unavailable().is_some() {
                sleep(PERIOD).await;
            }
            match publishing.declare().await {
                Ok(()) => return true,
                Err(error) if publishing.dispatch.broker.unavailable().is_some() => {
                    tracing::debug!(%error, "the broker has gone again while the topology was declared");
                }
                Err(error) => {
                    refused += 1;
                    if refused == REFUSALS {
                        tracing::error!(%error, "the broker is back, and its topology is refused");
                        return false;
                    }
                    tracing::debug!(%error, refused, "the topology is refused; trying again");
                }
            }
            sleep(BETWEEN_REFUSALS).await;
        }
    };
    let declared = tokio::select! {
        biased;
        () = shutdown.cancelled() => return,
        declared = declare => declared,
    };
    if declared {
        shutdown.cancelled().await;
    }
}

/// Waits until the broker has been away for a moment, and answers why. A broker of this process goes with the process.
async fn away(needs: &Needs) -> String {
    let mut since = None;
    loop {
        match needs
            .publishing
            .dispatch
            .broker
            .unavailable()
            .filter(|_| needs.publishing.dispatch.broker.keeps_messages())
        {
            Some(why) if since.get_or_insert_with(Instant::now).elapsed() >= AFTER => return why,
            Some(_) => {}
            None => since = None,
        }
        sleep(PERIOD).await;
    }
}

/// Hands out what is due until the broker is back.
async fn hand_out(needs: &Needs, tasks: &TaskTracker) {
    while needs.publishing.dispatch.broker.unavailable().is_some() {
        let mut more = false;
        for (queue, lanes) in &*needs.queues {
            match of_queue(needs, queue, lanes, tasks).await {
                Ok(left) => more |= left,
                Err(error) => {
                    if needs
                        .observing
                        .telemetry
                        .notices
                        .begins("chains that could not be read while the broker is away")
                    {
                        tracing::warn!(queue, %error, "failed to read which chains are due; trying again");
                    }
                }
            }
        }
        // Else those that look at the same rhythm as the chains are due would always come first, or last.
        let pause = if more { BUSY } else { PERIOD };
        sleep(needs.entropy.between(pause / 2, pause * 3 / 2)).await;
    }
}

/// Hands out what is due of a queue, as far as this worker may hold it. Answers whether there is more.
async fn of_queue(
    needs: &Needs,
    queue: &str,
    lanes: &[Arc<QueueRun>],
    tasks: &TaskTracker,
) -> Result<bool, LedgerError> {
    let mut free: Vec<usize> = lanes.iter().map(|lane| may_take(lane)).collect();
    if free.iter().all(|free| *free == 0) {
        return Ok(true);
    }
    let now = needs.ledger.now();
    let until = now + needs.catch_up.slack;
    let due = OrphanFilter { until, late: now + Duration::from_millis(1), unsent: Time::default() };
    let mut due = needs.ledger.orphans(queue.to_owned(), needs.catalog.names(), due, PER_LOOK).await?;
    due.retain(|chain| needs.in_hand.count(chain.hint.epoch) == 0);
    let found = due.len();
    // Workers that look at the same moment begin at different places, or all would want the same chains.
    let spare = due.len().saturating_sub(free.iter().sum());
    due.rotate_left(needs.entropy.below(spare + 1));
    let mut takes: Vec<(Overdue, usize)> = Vec::new();
    for chain in due {
        let lane = lane_of(needs, queue, lanes, &chain);
        if free[lane] > 0 {
            free[lane] -= 1;
            takes.push((chain, lane));
        }
    }
    take(needs, lanes, takes, tasks).await?;
    Ok(found == PER_LOOK as usize || free.contains(&0))
}

/// Hands out late chains of a queue for which this worker has room now. Answers those for which it has none.
pub(super) async fn take_late(
    needs: &Needs,
    queue: &str,
    lanes: &[Arc<QueueRun>],
    late: Vec<Overdue>,
    tasks: &TaskTracker,
) -> Result<Vec<Overdue>, LedgerError> {
    let mut free: Vec<usize> = lanes.iter().map(|lane| may_take(lane)).collect();
    let mut room = lanes.first().map_or(0, |lane| lane.room.free());
    let (mut takes, mut others) = (Vec::new(), Vec::new());
    for chain in late {
        let lane = lane_of(needs, queue, lanes, &chain);
        if room > 0 && free[lane] > 0 {
            (room, free[lane]) = (room - 1, free[lane] - 1);
            takes.push((chain, lane));
        } else {
            others.push(chain);
        }
    }
    take(needs, lanes, takes, tasks).await?;
    Ok(others)
}

/// The lane on which a chain's message comes.
fn lane_of(needs: &Needs, queue: &str, lanes: &[Arc<QueueRun>], chain: &Overdue) -> usize {
    usize::from(needs.publishing.dispatch.lanes.lane(queue, &chain.hint.kind, chain.hint.priority)).min(lanes.len() - 1)
}

/// Takes chains, each with its lane, as if their messages had come. Of several workers, the one that writes first has
/// a chain.
async fn take(
    needs: &Needs,
    lanes: &[Arc<QueueRun>],
    takes: Vec<(Overdue, usize)>,
    tasks: &TaskTracker,
) -> Result<(), LedgerError> {
    if takes.is_empty() {
        return Ok(());
    }
    // The others leave it alone for a lease: by then its tick is claimed, or this worker is gone or has let go of it.
    let to = needs.ledger.now() + needs.catch_up.slack + needs.vitals.length();
    let look = |(chain, _): &(Overdue, usize)| LookAgain {
        epoch: chain.hint.epoch,
        from: chain.watch_at,
        to,
        looks: chain.looks,
        expected: None,
    };
    let mine = needs.ledger.look_again(takes.iter().map(look).collect()).await?;
    needs.observing.life.reached(Point::HandedOut).await;
    for ((chain, lane), _) in takes.into_iter().zip(mine).filter(|(_, mine)| *mine) {
        let lane = lanes[lane].clone();
        let taken = Taken::new(&lane.handed_out);
        let envelope = chain.hint.envelope(needs.ledger.id());
        let body = envelope.encode().into();
        let delivery = Delivery::new(body, lane.source.as_str().into(), false, 0, Box::new(taken));
        needs.observing.telemetry.count(Count::HandedOut);
        tasks.spawn(needs.observing.life.bind((needs.live)(lane, delivery)));
    }
    Ok(())
}

/// How many more chains of a lane this worker may hold.
fn may_take(lane: &QueueRun) -> usize {
    let flow = lane.flow();
    if flow.open { usize::from(flow.prefetch).saturating_sub(lane.handed_out.load(Ordering::Relaxed)) } else { 0 }
}

/// A tick that the ledger has handed out. There is no message to settle: a tick that was not claimed is found again.
struct Taken(Arc<AtomicUsize>);

impl Taken {
    fn new(held: &Arc<AtomicUsize>) -> Self {
        held.fetch_add(1, Ordering::Relaxed);
        Self(held.clone())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Settle for Taken {
    fn is_alive(&self) -> bool {
        true
    }

    async fn ack(self: Box<Self>) {}

    async fn requeue(self: Box<Self>) {}
}
