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
use futures_util::{StreamExt, stream};
use roundelay_broker::{Delivery, Destination, Message};
use roundelay_config::{MAX_HELD, Takeover};
use roundelay_ledger::{Claim, ClaimRequest, Finish, Hint, LedgerError};
use roundelay_model::clock::Time;
use roundelay_model::deaths;
use roundelay_model::deaths::SET_ASIDE;
use roundelay_model::guard::Refusal;
use roundelay_model::job::{BadMessage, ChainRef, Envelope, MAX_DEATHS};
use roundelay_model::ladder::Hop;
use roundelay_model::outcome::{Decision, Verdict};
use roundelay_model::reason::{Class, Reason};
use tokio::time::{Instant, sleep, timeout};

use super::attempt::Claimed;
use super::dispatch::Decided;
use super::life::Point;
use super::outbox::Asked;
use super::retried::lies_as;
use super::room::Place;
use super::sealing;
use super::suspects::Kept;
use super::vitals::Term;
use crate::core::{Core, InHand};
use crate::queue::QueueRun;
use crate::telemetry::Count;
use crate::throttle::{Slot, Want};
use crate::trace::Run;

/// How long a successor is published again and again before it is left to catch-up.
pub(super) const PUBLISH_PATIENCE: Duration = Duration::from_secs(60);
/// The first wait between attempts to reach a ledger that does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// These waits grow to this, but one of those who wait asks sooner, and the others hear when it is answered.
const LEDGER_PAUSE: Duration = Duration::from_secs(1);

/// How long a message waits for its turn in a worker before it goes back to its queue, to come
/// again. RabbitMQ closes the channel of a consumer that keeps one for 30 minutes, and a handler
/// may take 24 of them.
pub(super) const MOST_WAITING: Duration = Duration::from_secs(5 * 60 + 10);

/// Of that, what is left for writing that it is put off.
const TIME_TO_SAY: Duration = Duration::from_secs(5);
/// Whoever has no slot is put off for this long at least.
const SHORTEST_BLOCK: Duration = Duration::from_secs(1);

/// What may not run beside what runs just now comes again after so long, within these.
const SUSPECT_WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));

/// Messages of one finish published at the same time.
const IN_FLIGHT: usize = 64;

/// What is to become of a delivery.
pub(super) enum Fate {
    /// What follows from it is safe.
    Ack,
    /// It must come again.
    Requeue,
}

/// Leave to start: room among the queue's running jobs, and a slot of its throttle.
pub(super) struct Permit {
    pub(super) slot: Option<Slot>,
    /// It has no slot, nor one soon: whoever would start is put off for so long.
    pub(super) blocked: Option<Duration>,
    /// None for what does not start.
    pub(super) _room: Option<Place>,
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
pub async fn live(core: Arc<Core>, queue: Arc<QueueRun>, delivery: Delivery) {
    core.life.reached(Point::Delivered).await;
    let fate = match core.read(&delivery) {
        Ok(envelope) => match (envelope.order(), &envelope.chain) {
            (Some(order), _) => core.obey(&queue, &envelope, order, &delivery).await,
            (None, Some(chain)) => core.tick(&queue, &envelope, chain, &delivery).await,
            (None, None) => core.job(&queue, envelope, &delivery).await,
        },
        Err(bad) => core.quarantine(&delivery, &bad).await,
    };
    core.settle(delivery, fate).await;
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
    /// Tells the broker a delivery's fate.
    pub(super) async fn settle(&self, delivery: Delivery, fate: Fate) {
        match fate {
            Fate::Ack => delivery.ack().await,
            Fate::Requeue => {
                self.telemetry.count(Count::Requeued);
                delivery.requeue().await;
            }
        }
        self.life.reached(Point::Settled).await;
    }

    /// Decodes and checks.
    pub(super) fn read(&self, delivery: &Delivery) -> Result<Envelope, BadMessage> {
        if let Some(why) = &delivery.unreadable {
            return Err(BadMessage::Unreadable(why.to_string()));
        }
        if delivery.deaths > MAX_DEATHS {
            return Err(BadMessage::Circles(delivery.deaths));
        }
        let keys = self.keys();
        let body = sealing::whole(&keys, &delivery.body).map_err(BadMessage::Sealed)?;
        let envelope = Envelope::decode(&body)?.read_at(&self.ledger.calendar());
        let envelope = Envelope { trace: delivery.trace.clone(), ..envelope };
        // What is sealed as a whole shows who has written it.
        if matches!(body, Cow::Borrowed(_)) {
            sealing::check(&keys, &envelope).map_err(BadMessage::Sealed)?;
        }
        if self.kind(&envelope.kind).is_none() {
            return Err(BadMessage::UnknownKind(envelope.kind));
        }
        if let Some(queue) = envelope.queue.as_ref().filter(|queue| !self.known_queues.contains_key(*queue)) {
            return Err(BadMessage::UnknownQueue(queue.clone()));
        }
        if let Some(chain) = envelope.chain.as_ref().filter(|chain| chain.ledger != self.ledger.id()) {
            let (theirs, ours) = (chain.ledger.clone(), self.ledger.id().to_owned());
            return Err(BadMessage::OtherLedger { theirs, ours });
        }
        Ok(envelope)
    }

    /// The life of a chain's tick.
    async fn tick(&self, queue: &QueueRun, envelope: &Envelope, chain: &ChainRef, delivery: &Delivery) -> Fate {
        let in_hand = self.in_hand(chain.epoch);
        let due = envelope.due.unwrap_or_default();
        queue.progressed_to(due.min(self.ledger.now()));
        if let Some(fate) = self.wait_until_due(envelope, &queue.name).await {
            return fate;
        }
        let Some(kind) = self.kind(&envelope.kind) else { return Fate::Requeue };
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
        let redelivered = delivery.redelivered && self.holds(chain.epoch) == 1;
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
        let trace = self.tracer.run(envelope, &queue.name, || self.ledger.now());
        let Some(answered) = self.claim(queue, delivery, &in_hand, request, &trace).await else {
            return Fate::Requeue;
        };
        let Answered { permit, claim, term, _kept } = answered;
        match claim {
            Claim::Granted(grant) => {
                self.life.reached(Point::Claimed).await;
                if grant.refused == Some(Refusal::Deaths) {
                    self.set_aside(envelope, queue, "it has ended as failed");
                }
                let late = self.ledger.now().since(due);
                let lease = self.vitals.hold(term, chain.epoch, grant.fence);
                let calendar = self.ledger.calendar();
                let claimed = Claimed { queue, kind: &kind, envelope, chain, grant, trace: &trace, calendar };
                let ended = letting_go(delivery, self.attempt(claimed, permit, &lease)).await;
                drop(lease);
                match ended {
                    Some(Ended { finish: Finish::Applied(messages), at, asked }) => {
                        self.life.reached(Point::Finished).await;
                        let succeed = self.send_all(messages, chain.epoch, Decided { at, late }, &trace);
                        join(succeed, self.send_spawned(asked.envelopes, &trace)).await.0
                    }
                    Some(Ended { finish: Finish::Fenced, .. }) => Fate::Ack,
                    None => Fate::Requeue,
                }
            }
            Claim::Stale(successor) => {
                drop(permit);
                self.life.reached(Point::Stale).await;
                self.telemetry.count(Count::Stale);
                match successor {
                    Some(successor) => {
                        // Who should have sent it is not known any more.
                        self.succeed(&successor, self.ledger.now().into(), &Run::default()).await
                    }
                    None => Fate::Ack,
                }
            }
            Claim::Runs => {
                self.telemetry.count(Count::Idle);
                Fate::Ack
            }
            Claim::Waits { until } => {
                drop(permit);
                self.telemetry.count(Count::Idle);
                let later = Envelope { due: Some(until), ..envelope.clone() };
                self.put_off(&later, &queue.name).await
            }
            Claim::Suspected(_) => {
                drop(permit);
                let due = self.ledger.now() + self.entropy.between(SUSPECT_WAITS.0, SUSPECT_WAITS.1);
                let later = Envelope { due: Some(due), ..envelope.clone() };
                self.put_off(&later, &queue.name).await
            }
            Claim::SetAside => {
                self.set_aside(envelope, queue, "look at it, and let it go on by `roundelay recover`");
                Fate::Ack
            }
            Claim::Early(hint) => {
                drop(permit);
                self.put_off(&hint.envelope(self.ledger.id()), &hint.queue).await
            }
            Claim::Idle => {
                self.telemetry.count(Count::Idle);
                Fate::Ack
            }
            Claim::NoSchedule => self.quarantine(delivery, &BadMessage::NoChains(envelope.kind.clone())).await,
            Claim::Future => {
                let (epoch, tick) = (chain.epoch, chain.tick);
                self.quarantine(delivery, &BadMessage::Future { epoch, tick }).await
            }
            Claim::Other { kind, key } => {
                let epoch = chain.epoch;
                self.quarantine(delivery, &BadMessage::OtherChain { epoch, kind, key }).await
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
        let may_be_stale = queue.throttle.is_some() && (delivery.redelivered || self.outage.leaves_stale());
        if may_be_stale && self.is_past(&request.hint).await {
            return self.claim_stale(queue, delivery, in_hand, request).await;
        }
        loop {
            let waiting = trace.begin();
            let permit = self.permit(queue, &request.hint.kind, Some(request.hint.due), (delivery, true)).await?;
            self.life.reached(Point::Permitted).await;
            if self.kind(&request.hint.kind).is_some_and(|kind| kind.follows_the_wall()) {
                tokio::select! {
                    biased;
                    () = self.put_back(queue) => return None,
                    () = self.wall_clock_is_followed() => {}
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
                    () = self.put_back(queue) => return None,
                };
                let again_alone = again && self.holds(in_hand.epoch) == 1;
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
                    self.comeback.answered();
                    trace.spent("permit", (waiting, permitted), || queue.paced_by());
                    trace.ended("claim", permitted);
                    return Some(Answered { permit, claim, term, _kept: kept });
                }
                Err(LedgerError::Closed) => return None,
                Err(error) => error,
            };
            // A slot is for now. Kept until the ledger is back, they would all start at once.
            drop(permit);
            if self.telemetry.notices.begins("claims that the ledger does not take") {
                tracing::warn!(%error, "failed to claim; trying again until the ledger answers");
            }
            tokio::select! {
                biased;
                () = self.comeback.wait(pause) => {}
                () = self.put_back(queue) => return None,
            }
            pause = (pause * 2).min(LEDGER_PAUSE);
        }
    }

    /// Whether the ledger is past this tick or attempt, as far as it tells at once. After an outage, messages come for
    /// most chains that run has gone past, and each would take a slot along and hand it back, until that was too old.
    async fn is_past(&self, hint: &Hint) -> bool {
        if hint.parent != 0 {
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
            () = self.put_back(queue) => return None,
        };
        let claim = self.ledger.claim(ClaimRequest { session: term.session(), ..request }).await.ok()?;
        drop(turn);
        let permit = match &claim {
            Claim::Granted(_) => self.permit(queue, &kind, Some(due), (delivery, true)).await?,
            _ => Permit { slot: None, blocked: None, _room: None },
        };
        Some(Answered { permit, claim, term, _kept: None })
    }

    /// Sends what a finish asks for: the successor of the chain with this epoch, on which hangs whether its
    /// predecessor may be acknowledged, and the members of a batch, chains that the run has discovered, and
    /// the chain that has waited for this one. Those that cannot be sent are known to the ledger as unsent.
    async fn send_all(&self, messages: Vec<Hint>, epoch: i64, decided: Decided, trace: &Run) -> Fate {
        let (own, others): (Vec<Hint>, Vec<Hint>) = messages.into_iter().partition(|hint| hint.epoch == epoch);
        let others = stream::iter(others).map(async |hint| {
            self.succeed(&hint, decided, trace).await;
            if hint.parent == epoch {
                self.life.reached(Point::MemberSent).await;
            }
        });
        let others = others.buffer_unordered(IN_FLIGHT).collect::<()>();
        let own = async {
            match own.first() {
                Some(successor) => self.succeed(successor, decided, trace).await,
                None => Fate::Ack,
            }
        };
        join(own, others).await.0
    }

    /// Sends the first messages of chains that a job has discovered. Catch-up sends those that cannot be sent.
    pub(super) async fn send_first(&self, messages: Vec<Hint>, decided: Time, trace: &Run) {
        let sends = stream::iter(messages).map(async |hint| {
            self.succeed(&hint, decided.into(), trace).await;
        });
        sends.buffer_unordered(IN_FLIGHT).collect::<()>().await;
    }

    /// Sends what follows, then it is safe to acknowledge what went before. If it cannot be sent,
    /// the ledger knows it as unsent: whoever gets the old message again, or catch-up, sends it.
    async fn succeed(&self, successor: &Hint, decided: Decided, trace: &Run) -> Fate {
        let mut envelope = successor.envelope(self.ledger.id());
        let sending = trace.sends(&mut envelope, &successor.queue, || self.ledger.now());
        let sent = tokio::select! {
            biased;
            // The ledger knows that the successor is unsent, and is in charge until the broker is back.
            () = self.outage.begins() => None,
            sent = self.dispatch.send_surely(&envelope, &successor.queue, decided, PUBLISH_PATIENCE) => Some(sent),
        };
        trace.sent(sending, matches!(sent, Some(Ok(()))));
        if !matches!(sent, Some(Ok(()))) {
            self.outage.left_unsent(successor.due);
        }
        let Some(sent) = sent else { return Fate::Ack };
        match sent {
            Ok(()) => {
                self.life.reached(Point::SuccessorSent).await;
                self.ledger.mark_sent(successor.sent());
                self.life.reached(Point::SuccessorNoted).await;
                Fate::Ack
            }
            Err(error) => {
                if self.telemetry.notices.begins("successors that could not be sent") {
                    tracing::warn!(
                        kind = successor.kind, key = successor.key, epoch = successor.epoch, tick = successor.tick, %error,
                        "a successor could not be sent; it is sent when its predecessor is delivered again, or by catch-up"
                    );
                }
                Fate::Requeue
            }
        }
    }

    /// Sees to it that nothing starts early: the last moments are slept here, more goes back to
    /// the ladder. `None` when it is time.
    pub(super) async fn wait_until_due(&self, envelope: &Envelope, queue: &str) -> Option<Fate> {
        loop {
            let remaining = envelope.due.map_or(Duration::ZERO, |due| due.since(self.ledger.now()));
            if remaining.is_zero() {
                return None;
            }
            match self.dispatch.ladder.hop(remaining, Duration::ZERO) {
                Hop::Now { wait } => sleep(wait).await,
                Hop::Last { .. } | Hop::Further { .. } => return Some(self.put_off(envelope, queue).await),
            }
        }
    }

    /// Sends the same message again for its (later) due time.
    pub(super) async fn put_off(&self, envelope: &Envelope, queue: &str) -> Fate {
        if self.outage.lasts() && envelope.chain.is_some() {
            // The ledger is in charge, and hands the chain out when that is due.
            return Fate::Ack;
        }
        self.telemetry.count(Count::Rearmed);
        let now = self.ledger.now();
        let mut envelope = Envelope { queue: Some(queue.to_owned()), ..envelope.clone() };
        if let Some(trace) = &mut envelope.trace {
            // Foreign programs do not say when they have sent it.
            trace.published.get_or_insert(now);
        }
        match self.dispatch.send(&envelope, queue, now).await {
            Ok(()) => {
                self.life.reached(Point::PutOff).await;
                Fate::Ack
            }
            Err(error) => {
                tracing::debug!(kind = envelope.kind, key = envelope.key, %error, "putting a message off failed");
                // The broker has just failed to take it; a pause keeps this from turning in circles.
                sleep(Duration::from_secs(1)).await;
                Fate::Requeue
            }
        }
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
                        let want = Want { priority: queue.priority, due, cost: self.cost_of(kind), probe: false };
                        // There is time left to say so.
                        let left = MOST_WAITING.saturating_sub(since.elapsed() + TIME_TO_SAY);
                        let slot = timeout(throttle.settings().block.min(left), throttle.slot("", want));
                        let slot = tokio::select! {
                            biased;
                            slot = slot => slot,
                            // Somebody of a higher lane has this room, and this one waits for room again.
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
            () = self.put_back(queue) => None,
            permit = wait => permit,
            () = sleep(MOST_WAITING) => None,
        }
    }

    /// Whether a delivery is still this worker's to run. One of a connection that is gone comes again; but while the
    /// broker is away nothing comes, and the claim decides who runs a tick. So workers go on with those in hand until
    /// the ledger hands out others.
    fn counts(&self, delivery: &Delivery, tick: bool) -> bool {
        delivery.is_alive() || (tick && self.dispatch.broker.away().is_some())
    }

    /// Waits until what has not started is to go back to its queue: the worker stops, or takes nothing more from
    /// this queue.
    pub(super) async fn put_back(&self, queue: &QueueRun) {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => {}
            () = queue.closed() => {}
        }
    }

    /// For how many starts a run of this kind counts.
    pub(super) fn cost_of(&self, kind: &str) -> u32 {
        self.kind(kind).map_or(1, |kind| kind.cost)
    }

    /// Counts how an attempt ended, and logs it unless it worked, as one of its cause. `claim` is the
    /// chain's tick and its fence, `fenced` whether somebody else had claimed it meanwhile, so that
    /// nothing of it counts.
    pub(super) fn note(
        &self,
        envelope: &Envelope,
        queue: &QueueRun,
        claim: Option<(&ChainRef, i64)>,
        decision: &Decision,
        fenced: bool,
        trace: &Run,
    ) {
        let figures = self.figures(&envelope.kind);
        let class = decision.reason.as_ref().map(|reason| reason.class);
        if fenced {
            self.telemetry.count(Count::Fenced);
            figures.inspect(|figures| figures.fenced());
        } else {
            self.telemetry.verdict(decision.verdict);
            figures.inspect(|figures| {
                figures.ended(decision.verdict, class, claim.is_some());
                figures.left_out(decision.left_out.0, decision.left_out.1);
            });
        }
        match fenced {
            false => {
                let failed = matches!(decision.verdict, Verdict::Failed | Verdict::Retried);
                trace.verdict(decision.verdict.as_str(), class, failed);
            }
            true => trace.verdict("fenced", Some(Class::Fenced), true),
        }
        let (word, class, reason) = match (&decision.reason, fenced) {
            (None, false) => return,
            (Some(reason), false) => (decision.verdict.as_str(), reason.class, reason.text.as_str()),
            (_, true) => {
                ("fenced", Class::Fenced, "somebody else had claimed it meanwhile; nothing of this run counts")
            }
        };
        // Each of them is in the ledger, with its reason.
        let cause = format!("runs of {} that end as {word}: {}", envelope.kind, class.as_str());
        if !self.telemetry.notices.begins(&cause) {
            return;
        }
        tracing::info!(
            kind = envelope.kind,
            key = envelope.key,
            queue = &*queue.name,
            epoch = claim.map(|(chain, _)| chain.epoch),
            tick = claim.map(|(chain, _)| chain.tick),
            id = envelope.id,
            attempt = envelope.attempt,
            fence = claim.map(|(_, fence)| fence),
            class = class.as_str(),
            code = decision.reason.as_ref().and_then(Reason::code),
            reason,
            "{word}"
        );
    }

    /// Counts and logs that a run is set aside since workers have died over it.
    pub(super) fn set_aside(&self, envelope: &Envelope, queue: &QueueRun, then: &str) {
        self.telemetry.count(Count::SetAside);
        if self.telemetry.notices.begins("runs that workers have died over") {
            tracing::error!(
                kind = envelope.kind,
                key = envelope.key,
                id = envelope.id,
                queue = &*queue.name,
                reason = SET_ASIDE,
                "set aside; {then}"
            );
        }
    }

    /// Puts a message that cannot be used where a person finds it.
    pub(super) async fn quarantine(&self, delivery: &Delivery, bad: &BadMessage) -> Fate {
        self.telemetry.count(Count::Quarantined);
        let keys = self.keys();
        let (from, reason) = (delivery.queue.to_string(), bad.told(keys.seal().is_some()));
        let body = sealing::set_aside(&keys, &delivery.body);
        if self.telemetry.notices.begins(&format!("messages of the queue {from} that cannot be used")) {
            tracing::warn!(queue = from, reason, bytes = delivery.body.len(), "quarantined");
        }
        let job = Envelope::decode(&delivery.body).ok().filter(|envelope| envelope.chain.is_none());
        let job = job.and_then(|job| job.id);
        let kept = if self.dispatch.broker.keeps_messages() {
            let id = job.map_or_else(|| self.entropy.token(), |id| lies_as(&from, &id, &body));
            let to = Destination::Quarantine { from, reason };
            let message = Message { to, id, body, trace: None };
            self.dispatch.broker.publish(message).await.map_err(|error| error.to_string())
        } else {
            let now = self.ledger.now();
            let kept = self.ledger.quarantine(from, reason, body.to_vec(), job, now).await;
            kept.map_err(|error| error.to_string())
        };
        match kept {
            Ok(()) => {
                self.life.reached(Point::SetAside).await;
                Fate::Ack
            }
            Err(error) => {
                if self.telemetry.notices.begins("messages that the quarantine did not take") {
                    tracing::warn!(error, "the quarantine could not be reached; the message stays where it is");
                }
                sleep(Duration::from_secs(1)).await;
                Fate::Requeue
            }
        }
    }

    /// Asks the ledger again and again while it does not answer, holding the delivery meanwhile:
    /// so consumption stops by itself, with no message going in circles. `None` when the worker
    /// has been told to stop for good.
    pub(super) async fn insist<T, F>(&self, verb: &str, ask: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, LedgerError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match ask().await {
                Ok(answer) => {
                    self.comeback.answered();
                    return Some(answer);
                }
                Err(LedgerError::Closed) => return None,
                Err(error) => {
                    if self.telemetry.notices.begins(&format!("failing to {verb}")) {
                        tracing::warn!(%error, "failed to {verb}; trying again until the ledger answers");
                    }
                    tokio::select! {
                        biased;
                        () = self.comeback.wait(pause) => {}
                        () = self.abort.cancelled() => return None,
                    }
                    pause = (pause * 2).min(LEDGER_PAUSE);
                }
            }
        }
    }
}
