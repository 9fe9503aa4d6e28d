//! Fair queues: what a flood of one tenant leaves to the others.
//!
//! A broker's queue hands out its messages in their order. So a worker takes more messages of a fair queue than it can
//! start ([`lane::REACH`]), keeps each tenant's share of them in hand ([`hand`]), and leaves the others in the ledger's
//! backlog. From there workers take them in turn over the tenants, as those in hand start. However messages lie in the
//! broker's queue, the next job of each tenant is soon in hand; which of those in hand starts next is decided by the
//! queue's room and the throttle's line.
//!
//! A queue that keeps up leaves nothing in the ledger and asks it nothing.

mod gather;
mod hand;
pub(crate) mod lane;
pub(crate) mod requests;
pub(crate) mod seats;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use roundelay_broker::Delivery;
use roundelay_ledger::{LedgerError, LeftMessage, Ownership, TakenMessage, name_of_chain};
use roundelay_model::encryption::{AssociatedData, Field};
use roundelay_model::job::Envelope;
use roundelay_model::pacing::fair::Tenant;
use roundelay_model::pacing::key::KeyPath;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::core::Core;
use crate::life::Point;
use crate::queue::QueueRun;
use crate::sealing;
use crate::settlement::Settlement;
use crate::telemetry::Count;
use hand::Quota;
use lane::{FairLane, InHandOf, TakenSettle};
use seats::Seat;

/// A message that comes earlier than this is sent on to a rung. What comes later sleeps here until it is due (less than 200 ms:
/// see `ladder`), so its tenant must be known.
const CLOSE: Duration = Duration::from_millis(250);
/// How often the backlog is looked at while messages wait there,
const BUSY: Duration = Duration::from_millis(50);
/// and while none do: other workers may have left some.
const IDLE: Duration = Duration::from_secs(1);
/// How often the backlog of a queue is looked at that is not fair.
const LEFT_OVER: Duration = Duration::from_secs(60);
/// Between two looks, at least: what ends meanwhile makes room for one set.
const PAUSE: Duration = Duration::from_millis(2);
/// How often messages are looked for that count as taken, and that no worker has in hand: the worker that took them is
/// gone, or was not told that it has them.
const RETURNS: Duration = Duration::from_secs(5);

/// Lives one message that was taken from the backlog.
pub(super) type Live = Arc<dyn Fn(Arc<QueueRun>, Delivery, InHandOf) -> BoxFuture<'static, ()> + Send + Sync>;

/// What becomes of a message that the broker has delivered.
pub(super) enum Place {
    /// It is run here, when its turn comes.
    Here {
        /// Whose it is, if that matters.
        tenant: Option<Arc<str>>,
        /// It is in hand.
        _in_hand: Option<InHandOf>,
    },
    /// It is somewhere else now.
    Settled(Settlement),
}

impl Core {
    /// Where a job waits that the broker has delivered: here, or in the backlog.
    pub(super) async fn place_of(&self, queue: &QueueRun, envelope: &Envelope, delivery: &Delivery) -> Place {
        let lane = &queue.fair;
        let Some(by) = &lane.by else { return Place::Here { tenant: None, _in_hand: None } };
        let is_early = envelope.due.is_some_and(|due| due > self.ledger.now() + CLOSE);
        // Where all that is in hand can run at once, no job waits for another, unless tenants have quotas.
        let matters =
            queue.in_hand() > queue.flow().places || queue.shares_slots() || self.shares.has_quotas(&queue.name);
        if is_early || !matters {
            return Place::Here { tenant: None, _in_hand: None };
        }
        let Some(tenant) = self.tenant_of(by, envelope).await else { return Place::Settled(Settlement::Requeue) };
        let tenant: Arc<str> = tenant.into();
        let keeps = {
            let hold = usize::from(queue.flow().prefetch);
            let mut hand = lane.hand.lock();
            let keeps = hand.keeps(&tenant, hold, |tenant| self.quota(queue, tenant));
            if keeps {
                hand.add(&tenant);
            } else {
                hand.left(&tenant);
            }
            keeps
        };
        if keeps {
            let in_hand = lane.held(tenant.clone());
            return Place::Here { tenant: Some(tenant), _in_hand: Some(in_hand) };
        }
        let name = match (&envelope.chain, &envelope.id) {
            (Some(chain), _) => name_of_chain(chain.epoch),
            (None, Some(id)) => format!("job {id} of {}", queue.name),
            (None, None) => format!("job {} without an id", self.entropy.token()),
        };
        let body = sealing::set_aside(&self.publishing.keys(), &delivery.body).to_vec();
        let message = LeftMessage { queue: queue.source.clone(), tenant: tenant.to_string(), name, body };
        if self.fair.leaves.ask(message).await.is_none() {
            return Place::Settled(Settlement::Requeue);
        }
        self.observing.telemetry.count(Count::Left);
        self.observing.life.reached(Point::Left).await;
        lane.waits.store(true, Ordering::Relaxed);
        lane.look.notify_one();
        Place::Settled(Settlement::Ack)
    }

    /// Whose a job is; `None` when the worker stops.
    async fn tenant_of(&self, by: &KeyPath, envelope: &Envelope) -> Option<String> {
        let Envelope { kind, key, .. } = envelope;
        let Some(chain) = &envelope.chain else {
            let mut opened = envelope.clone();
            if by.reads_payload() && sealing::open(&self.publishing.keys(), &mut opened).is_err() {
                // It is put off for that when its turn comes.
                opened.payload = Value::Null;
            }
            return Some(by.of_parts(kind, key, opened.owner.as_deref(), &opened.payload));
        };
        if !by.reads_owner() && !by.reads_payload() {
            return Some(by.of_parts(kind, key, None, &Value::Null));
        }
        // A chain that the ledger does not know has no tenant: its claim says so.
        let Ownership { owner, payload } = self.fair.owners.ask(chain.epoch.get()).await?.unwrap_or_default();
        let payload = if by.reads_payload() { self.payload_of(kind, key, &payload) } else { Value::Null };
        Some(by.of_parts(kind, key, owner.as_deref(), &payload))
    }

    fn payload_of(&self, kind: &str, key: &str, text: &str) -> Value {
        let place = AssociatedData::new(Field::Payload, kind, key);
        let opened = self.publishing.keys().opened(place, text).ok();
        opened.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Whether the tenant's quota leaves jobs of the tenant to the backlog.
    pub(super) fn is_bound_by_quota(&self, queue: &QueueRun, tenant: &str) -> bool {
        let hold = usize::from(queue.flow().prefetch);
        queue.fair.hand.lock().is_bound_by_quota(tenant, hold, |tenant| self.quota(queue, tenant))
    }

    fn quota(&self, queue: &QueueRun, tenant: &str) -> Quota {
        Quota { weight: self.shares.weight(tenant).into(), most: self.shares.most(tenant, &queue.name) }
    }

    /// Waits for leave to run one more job of the tenant; nothing where no quota limits them.
    pub(super) async fn seat(&self, queue: &QueueRun, tenant: &Tenant) -> Option<Seat> {
        if !queue.fair.is_fair() {
            return None;
        }
        self.fair.seats.take((&queue.name, tenant), &self.vitals, || self.shares.most(tenant, &queue.name)).await
    }
}

/// Takes from the backlog what this worker has room for, until `shutdown`. A queue that is not fair, and was once, may
/// have left a backlog, which is taken without regard to tenants.
pub(super) async fn run(
    core: Arc<Core>,
    queue: Arc<QueueRun>,
    live: Live,
    tasks: TaskTracker,
    shutdown: CancellationToken,
) {
    let lane = queue.fair.clone();
    lane.began.get_or_init(|| core.ledger.now());
    let work = async {
        let mut turn = Turn { after: None, returns: Instant::now() };
        loop {
            let pause = match (lane.waits.load(Ordering::Relaxed), lane.is_fair()) {
                (true, _) => BUSY,
                (false, true) => IDLE,
                (false, false) => LEFT_OVER,
            };
            tokio::select! {
                biased;
                () = lane.look.notified() => sleep(PAUSE).await,
                () = sleep(pause) => {}
            }
            if let Err(error) = look(&core, (&queue, &lane), &mut turn, &live, &tasks).await
                && core.observing.telemetry.notices.begins("looks at the backlog that failed")
            {
                tracing::warn!(queue = queue.source, %error, "failed to look at the backlog; trying again");
            }
        }
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// Where the looks at a backlog have come to.
struct Turn {
    /// The last tenant of the look before; none at the beginning of a pass.
    after: Option<String>,
    /// When messages are looked for next that count as taken, and that no worker has in hand.
    returns: Instant,
}

async fn look(
    core: &Arc<Core>,
    (queue, lane): (&Arc<QueueRun>, &Arc<FairLane>),
    turn: &mut Turn,
    live: &Live,
    tasks: &TaskTracker,
) -> Result<(), LedgerError> {
    if !lane.is_fair() && core.ledger.backlog(queue.source.clone(), None, 1, 1).await?.is_empty() {
        return Ok(());
    }
    forget(core, lane).await?;
    if Instant::now() >= turn.returns || lane.taken.lock().returns {
        give_back(core, queue).await?;
        turn.returns = Instant::now() + RETURNS;
    }
    let flow = queue.flow();
    let Some(session) = core.vitals.session().filter(|_| flow.open) else { return Ok(()) };
    let hold = usize::from(flow.prefetch).max(1);
    let limit = u32::try_from(hold).unwrap_or(u32::MAX);
    let tenants = core.ledger.waiting_tenants(queue.source.clone(), turn.after.clone(), limit).await?;
    let passed = tenants.len() < hold;
    let takes = {
        let mut hand = lane.hand.lock();
        hand.looked(&tenants, passed);
        hand.takes(&tenants, hold, |tenant| core.quota(queue, tenant))
    };
    // The next look begins a new pass, or goes on behind the last tenant.
    let from_the_start = turn.after.is_none();
    turn.after = if passed { None } else { tenants.last().cloned() };
    lane.waits.store(!tenants.is_empty() || !from_the_start, Ordering::Relaxed);
    if passed && !from_the_start {
        lane.look.notify_one();
    }
    if takes.is_empty() {
        return Ok(());
    }
    let taken = core.ledger.take_messages(queue.source.clone(), session, takes).await;
    // The messages of an answer that was lost are in no worker's hand.
    let taken = taken.inspect_err(|_| lane.taken.lock().returns = true)?;
    core.observing.life.reached(Point::Taken).await;
    for TakenMessage { number, tenant, body, takes } in taken {
        let in_hand = lane.hold_one(tenant.as_str().into());
        let settle = TakenSettle::new(lane, (session, number));
        let delivery = Delivery::new(body.into(), queue.source.as_str().into(), takes > 1, 0, Box::new(settle));
        tasks.spawn(core.observing.life.bind(live(queue.clone(), delivery, in_hand)));
    }
    Ok(())
}

/// Tells the ledger which messages have ended. To tell it twice does no harm.
async fn forget(core: &Core, lane: &FairLane) -> Result<(), LedgerError> {
    let mut by_session = BTreeMap::<i64, Vec<i64>>::new();
    for (session, number) in lane.taken.lock().done.iter().copied() {
        by_session.entry(session).or_default().push(number);
    }
    for (session, numbers) in by_session {
        core.ledger.forget_messages(session, numbers.clone()).await?;
        lane.taken.lock().forgotten(session, &numbers);
        core.observing.life.reached(Point::Forgotten).await;
    }
    Ok(())
}

/// Has messages wait again that count as taken, and that no worker has in hand. This worker takes none meanwhile.
async fn give_back(core: &Core, queue: &QueueRun) -> Result<(), LedgerError> {
    let session = core.vitals.session().unwrap_or_default();
    let in_hand = {
        let mut taken = queue.fair.taken.lock();
        taken.returns = false;
        taken.held_by(session)
    };
    let told = core.ledger.return_messages(session, queue.source.clone(), in_hand).await;
    told.inspect_err(|_| queue.fair.taken.lock().returns = true).map(drop)
}

/// Tells the ledger what has become of messages that were taken, as the worker ends. What cannot be told waits again
/// when the session is over.
pub(super) async fn end(core: &Core) {
    for queue in core.queues.values().flatten() {
        let told = async {
            forget(core, &queue.fair).await?;
            let returns = queue.fair.taken.lock().returns;
            if returns { give_back(core, queue).await } else { Ok(()) }
        };
        if let Err(error) = told.await {
            tracing::warn!(queue = queue.source, %error, "failed to tell the ledger which messages of the backlog are settled: they come again");
        }
    }
}
