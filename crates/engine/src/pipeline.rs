//! A job's life, from delivery to acknowledgement.
//!
//! ```text
//! decode ─ early? ─ slot ─ claim ─ handler ─ decide ─ finish ─ successor ─ acknowledge
//!   │        │              │                            │
//!   │        └ rearm        ├ stale: send what follows   └ fenced: nothing of it counts
//!   └ quarantine            ├ it runs already, or has to wait for a manual run
//!                           ├ idle: nothing to do
//!                           └ of the future, or of another chain: quarantine
//! ```
//!
//! Nothing is acknowledged before what follows from it is safe: the successor confirmed by the
//! broker, or known to the ledger as unsent.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use roundelay_broker::Delivery;
use roundelay_config::{MAX_HELD, Takeover};
use roundelay_ledger::{Claim, ClaimRequest, Finish, Hint, LedgerError};
use roundelay_model::clock::Time;
use roundelay_model::deaths;
use roundelay_model::guard::Refusal;
use roundelay_model::job::{BadMessage, ChainRef, Envelope, MAX_DEATHS};
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::Claimed;
use crate::concurrency::RunPlace;
use crate::core::Core;
use crate::dispatch::Decided;
use crate::in_hand::InHand;
use crate::life::Point;
use crate::outbox::Asked;
use crate::patient::{FIRST_PAUSE, LEDGER_PAUSE};
use crate::queue::QueueRun;
use crate::sealing;
use crate::settlement::Settlement;
use crate::suspects::Kept;
use crate::telemetry::Count;
use crate::throttle::{Slot, Want};
use crate::trace::Run;
use crate::vitals::Term;

/// How long a message waits for its turn in a worker before it goes back to its queue, to come
/// again. RabbitMQ closes the channel of a consumer that keeps one for 30 minutes, and a handler
/// may take 24 of them.
pub(super) const MOST_WAITING: Duration = Duration::from_secs(5 * 60 + 10);

/// Of that, what is left for writing that it is put off.
const TIME_TO_SAY: Duration = Duration::from_secs(5);
/// A job without a slot is postponed for at least this long.
const SHORTEST_BLOCK: Duration = Duration::from_secs(1);

/// What may not run beside what runs just now comes again after a time between these two.
const SUSPECT_WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));

/// Leave to start: room among the queue's running jobs, and a slot of its throttle.
pub(super) struct Permit {
    pub(super) slot: Option<Slot>,
    /// There is no slot, nor one soon: the job is postponed for this long.
    pub(super) blocked: Option<Duration>,
    /// None for what does not start.
    pub(super) _room: Option<RunPlace>,
}

/// The answer to a claim, and the session for which it was made.
struct Answered {
    permit: Permit,
    claim: Claim,
    term: Arc<Term>,
    /// What must not run beside it is kept away.
    _kept: Option<Kept>,
}

/// An attempt whose end was written or refused.
pub(super) struct Ended {
    pub(super) finish: Finish,
    /// The time on which the decision rests.
    pub(super) at: Time,
    pub(super) asked: Asked,
}

/// Lives one delivery of a platform queue.
pub async fn process_delivery(core: Arc<Core>, queue: Arc<QueueRun>, delivery: Delivery) {
    core.observing.life.reached(Point::Delivered).await;
    let settlement = match core.read(&delivery) {
        Ok(envelope) => match (envelope.order(), &envelope.chain) {
            (Some(order), _) => core.orders.obey(&queue, &envelope, order, &delivery).await,
            (None, Some(chain)) => core.tick(&queue, &envelope, chain, &delivery).await,
            (None, None) => core.job(&queue, envelope, &delivery).await,
        },
        Err(bad) => core.publishing.quarantine(&delivery, &bad).await,
    };
    core.observing.settle(delivery, settlement).await;
}

/// Waits for an attempt, however long it takes. Its message is acknowledged before the broker takes it back: the
/// ledger knows of the run, and when its lease ends without a finish, catch-up sends the tick.
async fn letting_go<T>(delivery: &Delivery, attempt: impl Future<Output = T>) -> T {
    let mut attempt = pin!(attempt);
    tokio::select! {
        biased;
        ended = &mut attempt => ended,
        () = sleep(MAX_HELD) => {
            delivery.let_go().await;
            attempt.await
        }
    }
}

impl Core {
    /// Decodes and checks.
    pub(super) fn read(&self, delivery: &Delivery) -> Result<Envelope, BadMessage> {
        if let Some(why) = &delivery.unreadable {
            return Err(BadMessage::Unreadable(why.to_string()));
        }
        if delivery.deaths > MAX_DEATHS {
            return Err(BadMessage::Circles(delivery.deaths));
        }
        let keys = self.publishing.keys();
        let body = sealing::whole(&keys, &delivery.body).map_err(BadMessage::Sealed)?;
        let envelope = Envelope::decode(&body)?.read_at(&self.ledger.calendar());
        let envelope = Envelope { trace: delivery.trace.clone(), ..envelope };
        // What is sealed as a whole shows who has written it.
        if matches!(body, Cow::Borrowed(_)) {
            sealing::check(&keys, &envelope).map_err(BadMessage::Sealed)?;
        }
        if self.catalog.kind(&envelope.kind).is_none() {
            return Err(BadMessage::UnknownKind(envelope.kind));
        }
        if let Some(queue) = envelope.queue.as_ref().filter(|queue| !self.catalog.queues.contains_key(*queue)) {
            return Err(BadMessage::UnknownQueue(queue.clone()));
        }
        if let Some(chain) = envelope.chain.as_ref().filter(|chain| chain.ledger != self.ledger.id()) {
            let (theirs, ours) = (chain.ledger.clone(), self.ledger.id().to_owned());
            return Err(BadMessage::OtherLedger { theirs, ours });
        }
        Ok(envelope)
    }

    /// The life of a chain's tick.
    async fn tick(&self, queue: &QueueRun, envelope: &Envelope, chain: &ChainRef, delivery: &Delivery) -> Settlement {
        let in_hand = self.in_hand.take(chain.epoch);
        let due = envelope.due.unwrap_or_default();
        queue.progressed_to(due.min(self.ledger.now()));
        if let Some(settlement) = self.publishing.wait_until_due(envelope, &queue.name).await {
            return settlement;
        }
        let Some(kind) = self.catalog.kind(&envelope.kind) else { return Settlement::Requeue };
        let hint = Hint {
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            epoch: chain.epoch,
            tick: chain.tick,
            attempt: envelope.attempt,
            due,
            parent: chain.parent,
            priority: chain.priority,
        };
        // The broker delivers again when the connection that had the message is gone, and with it
        // the worker, as a rule. If this very worker runs the tick, it is not.
        let redelivered = delivery.redelivered && self.in_hand.count(chain.epoch) == 1;
        let takeover = redelivered && kind.takeover == Takeover::Redelivery;
        let request = ClaimRequest {
            hint,
            worker: self.worker.clone(),
            session: 0,
            again: false,
            takeover,
            guard: kind.recurrence.as_ref().map(|recurrence| recurrence.guard(self.catch_up.slack)).unwrap_or_default(),
            recurs: kind.recurrence.is_some(),
            prepared: 0,
        };
        let trace = self.observing.tracer.run(envelope, &queue.name, || self.ledger.now());
        let Some(answered) = self.claim(queue, delivery, &in_hand, request, &trace).await else {
            return Settlement::Requeue;
        };
        let Answered { permit, claim, term, _kept } = answered;
        match claim {
            Claim::Granted(grant) => {
                self.observing.life.reached(Point::Claimed).await;
                if grant.refused == Some(Refusal::Deaths) {
                    self.observing.set_aside(envelope, queue, "it has ended as failed");
                }
                let late = self.ledger.now().since(due);
                let lease = self.vitals.hold(term, chain.epoch, grant.fence);
                let calendar = self.ledger.calendar();
                let claimed = Claimed { queue, kind: &kind, envelope, chain, grant, trace: &trace, calendar };
                let ended = letting_go(delivery, self.attempt(claimed, permit, &lease)).await;
                drop(lease);
                match ended {
                    Some(Ended { finish: Finish::Applied(messages), at, asked }) => {
                        self.observing.life.reached(Point::Finished).await;
                        let publish_successor =
                            self.publishing.send_all(messages, chain.epoch, Decided { at, late }, &trace);
                        join(publish_successor, self.publishing.send_spawned(asked.envelopes, &trace)).await.0
                    }
                    Some(Ended { finish: Finish::Fenced, .. }) => Settlement::Ack,
                    None => Settlement::Requeue,
                }
            }
            Claim::Stale(successor) => {
                drop(permit);
                self.observing.life.reached(Point::Stale).await;
                self.observing.telemetry.count(Count::Stale);
                match successor {
                    Some(successor) => {
                        // Who should have sent it is not known any more.
                        self.publishing.publish_successor(&successor, self.ledger.now().into(), &Run::default()).await
                    }
                    None => Settlement::Ack,
                }
            }
            Claim::Runs => {
                self.observing.telemetry.count(Count::Idle);
                Settlement::Ack
            }
            Claim::Waits { until } => {
                drop(permit);
                self.observing.telemetry.count(Count::Idle);
                let later = Envelope { due: Some(until), ..envelope.clone() };
                self.publishing.postpone(&later, &queue.name).await
            }
            Claim::Suspected(_) => {
                drop(permit);
                let due = self.ledger.now() + self.entropy.between(SUSPECT_WAITS.0, SUSPECT_WAITS.1);
                let later = Envelope { due: Some(due), ..envelope.clone() };
                self.publishing.postpone(&later, &queue.name).await
            }
            Claim::SetAside => {
                self.observing.set_aside(envelope, queue, "look at it, and let it go on by `roundelay recover`");
                Settlement::Ack
            }
            Claim::Early(hint) => {
                drop(permit);
                self.publishing.postpone(&hint.envelope(self.ledger.id()), &hint.queue).await
            }
            Claim::Idle => {
                self.observing.telemetry.count(Count::Idle);
                Settlement::Ack
            }
            Claim::NoSchedule => {
                self.publishing.quarantine(delivery, &BadMessage::NoChains(envelope.kind.clone())).await
            }
            Claim::Future => {
                let (epoch, tick) = (chain.epoch, chain.tick);
                self.publishing.quarantine(delivery, &BadMessage::Future { epoch, tick }).await
            }
            Claim::Other { kind, key } => {
                let epoch = chain.epoch;
                self.publishing.quarantine(delivery, &BadMessage::OtherChain { epoch, kind, key }).await
            }
        }
    }

    /// Leave to start, and then the claim. While the ledger does not answer nothing is consumed
    /// any more: deliveries are held, and those beyond the prefetch stay with the broker. `None`
    /// when the message had better come again.
    async fn claim(
        &self,
        queue: &QueueRun,
        delivery: &Delivery,
        in_hand: &InHand<'_>,
        request: ClaimRequest,
        trace: &Run,
    ) -> Option<Answered> {
        let (mut pause, mut again) = (FIRST_PAUSE, false);
        // A claim whose answer was lost is made again as what it was.
        let (mut kept, mut prepared) = (None, 0);
        let may_be_stale = queue.throttle.is_some() && (delivery.redelivered || self.publishing.outage.leaves_stale());
        if may_be_stale && self.is_past(&request.hint).await {
            return self.claim_stale(queue, delivery, in_hand, request).await;
        }
        loop {
            let waiting = trace.begin();
            let permit = self.permit(queue, &request.hint.kind, Some(request.hint.due), (delivery, true)).await?;
            self.observing.life.reached(Point::Permitted).await;
            if self.catalog.kind(&request.hint.kind).is_some_and(|kind| kind.follows_the_wall()) {
                tokio::select! {
                    biased;
                    () = self.stop.put_back(queue) => return None,
                    () = self.wall.is_followed() => {}
                }
            }
            let permitted = trace.begin();
            let turn = in_hand.turn.lock().await;
            let (term, answer) = loop {
                // While this worker cannot show that it lives, it claims nothing: also when its turn, or the answer
                // before, has taken longer than its lease.
                let term = tokio::select! {
                    biased;
                    term = self.vitals.term() => term,
                    () = self.stop.put_back(queue) => return None,
                };
                let again_alone = again && self.in_hand.count(in_hand.epoch) == 1;
                let session = term.session();
                let request = ClaimRequest { session, again: again_alone, prepared, ..request.clone() };
                again = true;
                let answer = self.ledger.claim(request).await;
                let Ok(Claim::Suspected(deaths)) = answer else { break (term, answer) };
                drop(kept.take());
                match deaths::company(deaths).and_then(|company| self.suspects.keep(company)) {
                    Some(guard) => (kept, prepared) = (Some(guard), deaths),
                    // It comes again later, and others start meanwhile.
                    None => break (term, answer),
                }
            };
            drop(turn);
            let error = match answer {
                Ok(claim) => {
                    self.ledger.comeback.answered();
                    trace.spent("permit", (waiting, permitted), || queue.paced_by());
                    trace.ended("claim", permitted);
                    return Some(Answered { permit, claim, term, _kept: kept });
                }
                Err(LedgerError::Closed) => return None,
                Err(error) => error,
            };
            // A slot is for now. Kept until the ledger is back, they would all start at once.
            drop(permit);
            if self.observing.telemetry.notices.begins("claims that the ledger does not take") {
                tracing::warn!(%error, "failed to claim; trying again until the ledger answers");
            }
            tokio::select! {
                biased;
                () = self.ledger.comeback.wait(pause) => {}
                () = self.stop.put_back(queue) => return None,
            }
            pause = (pause * 2).min(LEDGER_PAUSE);
        }
    }

    /// Whether the ledger is past this tick or attempt, as far as it tells at once. After an outage, messages come for
    /// most chains that run has gone past, and each would take a slot along and hand it back, until that was too old.
    async fn is_past(&self, hint: &Hint) -> bool {
        if !hint.parent.is_none() {
            return false;
        }
        let Ok(chains) = self.ledger.chains(hint.kind.clone(), hint.key.clone()).await else { return false };
        let chain = chains.into_iter().find(|chain| chain.hint.epoch == hint.epoch);
        chain.is_some_and(|chain| (chain.hint.tick, chain.hint.attempt) > (hint.tick, hint.attempt))
    }

    /// The claim of what the ledger is past, which needs no leave to start: a chain never goes back.
    async fn claim_stale(
        &self,
        queue: &QueueRun,
        delivery: &Delivery,
        in_hand: &InHand<'_>,
        request: ClaimRequest,
    ) -> Option<Answered> {
        let (kind, due) = (request.hint.kind.clone(), request.hint.due);
        let turn = in_hand.turn.lock().await;
        let term = tokio::select! {
            biased;
            term = self.vitals.term() => term,
            () = self.stop.put_back(queue) => return None,
        };
        let claim = self.ledger.claim(ClaimRequest { session: term.session(), ..request }).await.ok()?;
        drop(turn);
        let permit = match &claim {
            Claim::Granted(_) => self.permit(queue, &kind, Some(due), (delivery, true)).await?,
            _ => Permit { slot: None, blocked: None, _room: None },
        };
        Some(Answered { permit, claim, term, _kept: None })
    }

    /// Room among the running, then a slot of the queue's throttle: in this order, because a slot
    /// is for now and not for when there is room. `None` when the worker stops, when the queue was
    /// closed, when it takes so long that the message had better come again, or when the broker has taken it back anyway.
    pub(super) async fn permit(
        &self,
        queue: &QueueRun,
        kind: &str,
        due: Option<Time>,
        (delivery, tick): (&Delivery, bool),
    ) -> Option<Permit> {
        let since = Instant::now();
        let wait = async {
            loop {
                let room = queue.room.enter(queue.lane).await;
                let mut blocked = None;
                let slot = match &queue.throttle {
                    // Asked once more below, since this can take long too.
                    Some(_) if !self.counts(delivery, tick) => return None,
                    Some((throttle, figures)) if throttle.settings().key.is_none() => {
                        let _waiting = figures.wait();
                        let due = due.unwrap_or_else(|| self.ledger.now());
                        let want =
                            Want { priority: queue.priority, due, cost: self.catalog.cost_of(kind), probe: false };
                        // There is time left to say so.
                        let left = MOST_WAITING.saturating_sub(since.elapsed() + TIME_TO_SAY);
                        let slot = timeout(throttle.settings().block.min(left), throttle.slot("", want));
                        let slot = tokio::select! {
                            biased;
                            slot = slot => slot,
                            // A job of a higher lane takes this place, and this job waits for a place again.
                            () = room.wanted() => continue,
                        };
                        blocked = slot.is_err().then(|| throttle.wait_of("", want).max(SHORTEST_BLOCK));
                        slot.ok()
                    }
                    _ => None,
                };
                return self.counts(delivery, tick).then_some(Permit { slot, blocked, _room: Some(room) });
            }
        };
        tokio::select! {
            biased;
            () = self.stop.put_back(queue) => None,
            permit = wait => permit,
            () = sleep(MOST_WAITING) => None,
        }
    }

    /// Whether a delivery is still this worker's to run. One of a connection that is gone comes again; but while the
    /// broker is away nothing comes, and the claim decides who runs a tick. So workers go on with those in hand until
    /// the ledger hands out others.
    fn counts(&self, delivery: &Delivery, tick: bool) -> bool {
        delivery.is_alive() || (tick && self.publishing.dispatch.broker.unavailable().is_some())
    }
}
