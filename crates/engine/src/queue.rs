//! A platform queue, or a lane of it, being worked through: as long and as widely as operators let it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use roundelay_broker::{Consumer, Delivery};
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrders, Flow};
use roundelay_model::schedule::Balances;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pipeline;
use super::room::Room;
use super::valve::Valve;
use crate::core::Core;
use crate::telemetry::figures::{QueueFigures, ThrottleFigures};
use crate::throttle::Throttle;

/// After a queue could not be consumed.
const AGAIN: Duration = Duration::from_secs(2);

/// A platform queue being consumed, or one of its lanes.
pub(super) struct QueueRun {
    /// The platform queue.
    pub(super) name: Arc<str>,
    /// The broker's queue.
    pub(super) source: String,
    pub(super) lane: u8,
    /// What is configured: how many run at the same time, how many messages are held, and how many of these at most.
    pub(super) places: usize,
    pub(super) prefetch: u16,
    pub(super) ahead: Option<u16>,
    pub(super) valve: Valve,
    /// Among all that share its throttle.
    pub(super) priority: i32,
    /// What the lanes share.
    pub(super) room: Arc<Room>,
    pub(super) throttle: Option<(Arc<Throttle>, Arc<ThrottleFigures>)>,
    pub(super) figures: Arc<QueueFigures>,
    /// Ticks in hand that came from the ledger, without a message.
    pub(super) handed_out: Arc<AtomicUsize>,
    /// The latest due time among the messages that came from this queue. Messages enter a queue
    /// when they are due, so whatever was due well before this has been delivered, or is lost.
    pub(super) frontier: AtomicI64,
    /// The due times that this worker has given out; the lanes share them.
    pub(super) balances: Arc<Balances>,
}

impl QueueRun {
    pub(super) fn flow(&self) -> Flow {
        self.valve.flow()
    }

    /// Does what was ordered of the queue and of this worker.
    pub(super) fn obey(&self, queue: &FleetOrders, worker: &FleetOrders) {
        let flow = Flow::of(self.places, self.prefetch, self.ahead, queue, worker);
        self.room.resize(flow.places);
        self.valve.set(flow);
    }

    /// The throttle whose slot is part of the leave to start: that of one with keys is waited for later.
    pub(super) fn paced_by(&self) -> Option<&str> {
        let (throttle, _) = self.throttle.as_ref()?;
        throttle.settings().key.is_none().then(|| throttle.name())
    }

    /// Waits until nothing more is taken.
    pub(super) async fn closed(&self) {
        self.valve.until(|flow| !flow.open).await;
    }

    pub(super) fn progressed_to(&self, due: Time) {
        self.frontier.fetch_max(due.as_millis(), Ordering::Relaxed);
    }

    /// `None` before the first message.
    pub(super) fn frontier(&self) -> Option<Time> {
        Some(self.frontier.load(Ordering::Relaxed)).filter(|due| *due != i64::MIN).map(Time::from_millis)
    }
}

/// Works through a queue as long and as widely as operators let it, until `shutdown`. Begins with `flow` and the
/// consumer that was made for it.
pub(super) async fn work(
    core: Arc<Core>,
    queue: Arc<QueueRun>,
    mut flow: Flow,
    mut consumer: Option<Consumer>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let differs = |next: &Flow| (next.open, next.prefetch) != (flow.open, flow.prefetch);
        if !flow.open {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                _ = queue.valve.until(differs) => {}
            }
        } else if let Some(consumer) = consumer.take() {
            let turn = shutdown.child_token();
            let run = queue.clone();
            let live = move |core, delivery| pipeline::live(core, run.clone(), delivery);
            let consuming = pin!(consume(core.clone(), consumer, tasks.clone(), turn.clone(), live));
            let other = pin!(queue.valve.until(differs));
            // It ends by itself only when nothing will come any more.
            let Either::Right((_, consuming)) = select(consuming, other).await else { return };
            turn.cancel();
            consuming.await;
            if shutdown.is_cancelled() {
                return;
            }
        }
        flow = queue.flow();
        if !flow.open {
            tracing::info!(queue = queue.source, "taking no more jobs from the queue");
            continue;
        }
        tracing::info!(queue = queue.source, ?flow, "taking jobs from the queue");
        let Some(again) = self::consumer(&core, &queue.source, flow.prefetch, &shutdown).await else { return };
        consumer = again;
    }
}

/// Consumes a queue of the broker, once that is there with its topology; `Some(None)` when this did not succeed and is to
/// be tried again, and nothing at `shutdown`.
pub(super) async fn consumer(
    core: &Core,
    source: &str,
    prefetch: u16,
    shutdown: &CancellationToken,
) -> Option<Option<Consumer>> {
    let consume = async {
        core.declared.wait().await;
        match core.dispatch.broker.consume(source, prefetch).await {
            Ok(consumer) => Some(consumer),
            Err(error) => {
                tracing::warn!(queue = source, %error, "failed to consume the queue; trying again");
                tokio::time::sleep(AGAIN).await;
                None
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => None,
        consumer = consume => Some(consumer),
    }
}

/// Takes deliveries and lets each live its own life, until `shutdown`.
pub(super) async fn consume<L>(
    core: Arc<Core>,
    mut consumer: Consumer,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    live: impl Fn(Arc<Core>, Delivery) -> L,
) where
    L: Future<Output = ()> + Send + 'static,
{
    loop {
        let delivery = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            delivery = consumer.next() => delivery,
        };
        let Some(delivery) = delivery else { break };
        let life = live(core.clone(), delivery);
        // A job that has not started when the worker stops is put back by its own pipeline.
        tasks.spawn(core.life.bind(life));
    }
    consumer.cancel().await;
}
