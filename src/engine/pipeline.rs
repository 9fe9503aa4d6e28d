//! A job's life, from delivery to acknowledgement.
//!
//! ```text
//! decode ─ early? ─ slot ─ claim ─ handler ─ decide ─ finish ─ successor ─ acknowledge
//!   │        │              │                            │
//!   │        └ rearm        ├ stale: send what follows   └ fenced: nothing of it counts
//!   └ quarantine            ├ held: look again later
//!                           ├ idle: nothing to do
//!                           └ of the future, or of another chain: quarantine
//! ```
//!
//! Nothing is acknowledged before what follows from it is safe: the successor confirmed by the
//! broker, or known to the ledger as unsent.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::lease::Lease;
use super::life::Point;
use super::outbox::Asked;
use super::{Core, QueueRun};
use crate::broker::{Delivery, Destination, Message};
use crate::clock::Time;
use crate::config::{KindSettings, Takeover};
use crate::job::{self, BadMessage, ChainRef, Envelope, Job, MAX_DEATHS, Tick};
use crate::ladder::Hop;
use crate::ledger::{Claim, ClaimRequest, Finish, FinishRequest, Grant, Hint, LedgerError};
use crate::outcome::{Decision, Next, Outcome, decide};
use crate::reason::{Class, Reason};
use crate::telemetry::Count;
use crate::throttle::Slot;

/// How long a successor is published again and again before it is left to catch-up.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(60);
/// The first wait between attempts to reach a ledger that does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// These waits grow to this.
const LEDGER_PAUSE: Duration = Duration::from_secs(5);

/// How long a message waits for its turn in a worker before it goes back to its queue, to come
/// again. RabbitMQ closes the channel of a consumer that keeps one for 30 minutes, and a handler
/// may take 25 of them.
const MOST_WAITING: Duration = Duration::from_secs(4 * 60);

/// What is to become of a delivery.
pub(super) enum Fate {
    /// What follows from it is safe.
    Ack,
    /// It must come again.
    Requeue,
}

/// Leave to start: room among the queue's running jobs, and a slot of its throttle.
struct Permit {
    slot: Option<Slot>,
    _room: OwnedSemaphorePermit,
}

/// The answer to a claim, and when it was asked for.
struct Claimed {
    permit: Permit,
    claim: Claim,
    asked: Instant,
}

/// An attempt whose end was written or refused.
struct Ended {
    finish: Finish,
    /// The time on which the decision rests.
    at: Time,
    asked: Asked,
}

/// Lives one delivery of a platform queue.
pub async fn live(core: Arc<Core>, queue: Arc<QueueRun>, delivery: Delivery) {
    core.life.reached(Point::Delivered).await;
    let fate = match core.read(&delivery) {
        Ok(envelope) => match &envelope.chain {
            Some(chain) => core.tick(&queue, &envelope, chain, &delivery).await,
            None => core.job(&queue, envelope, &delivery).await,
        },
        Err(bad) => core.quarantine(&delivery, &bad).await,
    };
    core.settle(delivery, fate).await;
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
        if delivery.deaths > MAX_DEATHS {
            return Err(BadMessage::Circles(delivery.deaths));
        }
        let envelope = Envelope::decode(&delivery.body)?;
        let Some(kind) = self.kinds.get(&envelope.kind) else {
            return Err(BadMessage::UnknownKind(envelope.kind));
        };
        if envelope.chain.is_some() && kind.every.is_none() {
            return Err(BadMessage::NoChains(envelope.kind));
        }
        if let Some(queue) = envelope.queue.as_ref().filter(|queue| !self.known_queues.contains(queue)) {
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
        let _in_hand = self.in_hand(chain.epoch);
        let due = envelope.due.unwrap_or_default();
        queue.progressed_to(due.min(self.ledger.now()));
        if let Some(fate) = self.wait_until_due(envelope, &queue.name).await {
            return fate;
        }
        let Some(kind) = self.kinds.get(&envelope.kind) else { return Fate::Requeue };
        let hint = Hint {
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            epoch: chain.epoch,
            tick: chain.tick,
            attempt: envelope.attempt,
            due,
        };
        // The broker delivers again when the connection that had the message is gone, and with it
        // the worker, as a rule. If this very worker runs the tick, it is not.
        let redelivered = delivery.redelivered && self.holds(chain.epoch) == 1;
        let takeover = redelivered && (kind.takeover == Takeover::Redelivery || mutant!(TakeoverAlways));
        let request = ClaimRequest { hint, worker: self.worker.clone(), lease: self.leases.length, takeover };
        let Some(claimed) = self.claim(queue, delivery, request).await else {
            return if mutant!(StopAcknowledges) { Fate::Ack } else { Fate::Requeue };
        };
        let Claimed { permit, claim, asked } = claimed;
        match claim {
            Claim::Granted(grant) => {
                self.life.reached(Point::Claimed).await;
                let lease = self.leases.hold(chain.epoch, grant.fence, asked);
                let ended = self.attempt(queue, kind, envelope, chain, grant, permit, &lease).await;
                drop(lease);
                match ended {
                    Some(Ended { finish: Finish::Applied(successor), at, asked }) => {
                        self.life.reached(Point::Finished).await;
                        let succeed = async {
                            match successor {
                                Some(successor) => self.succeed(&successor, at).await,
                                None => Fate::Ack,
                            }
                        };
                        join(succeed, self.send_spawned(asked.envelopes)).await.0
                    }
                    Some(Ended { finish: Finish::Fenced, .. }) => Fate::Ack,
                    None if mutant!(FinishGivesUp) => Fate::Ack,
                    None => Fate::Requeue,
                }
            }
            Claim::Stale(successor) => {
                drop(permit);
                self.life.reached(Point::Stale).await;
                self.telemetry.count(Count::Stale);
                match successor {
                    Some(successor) if !mutant!(StaleJustAck) => self.succeed(&successor, self.ledger.now()).await,
                    _ => Fate::Ack,
                }
            }
            Claim::Held { until } => {
                drop(permit);
                self.telemetry.count(Count::Idle);
                if mutant!(HeldIsDropped) {
                    return Fate::Ack;
                }
                let later = Envelope { due: Some(until), ..envelope.clone() };
                self.put_off(&later, &queue.name).await
            }
            Claim::Early(hint) => {
                drop(permit);
                self.put_off(&hint.envelope(self.ledger.id()), &hint.queue).await
            }
            Claim::Idle => {
                self.telemetry.count(Count::Idle);
                Fate::Ack
            }
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
    async fn claim(&self, queue: &QueueRun, delivery: &Delivery, request: ClaimRequest) -> Option<Claimed> {
        let mut pause = FIRST_PAUSE;
        loop {
            let permit = self.permit(queue, delivery).await?;
            self.life.reached(Point::Permitted).await;
            let asked = Instant::now();
            let error = match self.ledger.claim(request.clone()).await {
                Ok(claim) => return Some(Claimed { permit, claim, asked }),
                Err(LedgerError::Closed) => return None,
                Err(error) => error,
            };
            // A slot is for now. Kept until the ledger is back, they would all start at once.
            drop(permit);
            tracing::warn!(%error, "failed to claim; trying again in {pause:?}");
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = self.stopping.cancelled() => return None,
            }
            pause = (pause * 2).min(LEDGER_PAUSE);
        }
    }

    /// Runs a claimed attempt and writes its end. `None` when the ledger could not be reached any
    /// more.
    #[allow(clippy::too_many_arguments)] // Each is another part of one attempt.
    async fn attempt(
        &self,
        queue: &QueueRun,
        kind: &KindSettings,
        envelope: &Envelope,
        chain: &ChainRef,
        grant: Grant,
        permit: Permit,
        lease: &Lease<'_>,
    ) -> Option<Ended> {
        let id = format!("{}-{}-{}", chain.ledger, chain.epoch, chain.tick);
        if grant.lost {
            self.figures.get(&envelope.kind).inspect(|figures| figures.lost());
        }
        let job = Job {
            id: id.clone(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            tick: Some(Tick { epoch: chain.epoch, tick: chain.tick, fence: grant.fence }),
            attempt: envelope.attempt,
            nominal: grant.nominal,
            deadline: grant.at + kind.timeout,
            seed: job::seed(&envelope.kind, &envelope.key, &chain.tick.to_string()),
            payload: serde_json::from_str(&grant.payload).unwrap_or(Value::Null),
        };
        let outcome = tokio::select! {
            biased;
            () = lease.lost(), if !mutant!(LostLeaseIgnored) => {
                let reason = Reason::new(Class::Fenced, "the lease was lost, so the run was ended");
                Outcome::Snooze { reason, wait: Duration::ZERO }
            }
            outcome = self.handle(queue, job, grant.at.since(grant.due), permit) => outcome,
        };
        self.life.reached(Point::Handled).await;
        let at = self.ledger.now();
        let ladder = &self.dispatch.ladder;
        let every = kind.every.filter(|_| !grant.once);
        let mut decision = decide(every, &kind.retry, envelope.attempt, outcome, at, ladder, &self.entropy);
        let asked = self.asked(&id, &queue.name, std::mem::take(&mut decision.yields), at);
        let request = FinishRequest {
            epoch: chain.epoch,
            tick: chain.tick,
            attempt: envelope.attempt,
            fence: grant.fence,
            at,
            next: decision.next,
            verdict: decision.verdict,
            reason: decision.reason.as_ref().map(|reason| reason.text.clone()),
            slack: self.catch_up.slack,
            spawned: asked.spawned(),
            failed: asked.failed.clone(),
        };
        let finish = self.insist("finish", || self.ledger.finish(request.clone())).await;
        self.note(envelope, queue, Some((chain, grant.fence)), &decision, finish == Some(Finish::Fenced));
        Some(Ended { finish: finish?, at, asked })
    }

    /// Sends what follows, then it is safe to acknowledge what went before. If it cannot be sent,
    /// the ledger knows it as unsent: whoever gets the old message again, or catch-up, sends it.
    async fn succeed(&self, successor: &Hint, decided: Time) -> Fate {
        let envelope = successor.envelope(self.ledger.id());
        if mutant!(NotedBeforeSent) {
            self.ledger.mark_sent(successor.sent());
        }
        if mutant!(AckBeforeConfirm) {
            let (dispatch, queue) = (self.dispatch.clone(), successor.queue.clone());
            let send = async move { drop(dispatch.send_surely(&envelope, &queue, decided, PUBLISH_PATIENCE).await) };
            tokio::spawn(self.life.bind(send));
            return Fate::Ack;
        }
        match self.dispatch.send_surely(&envelope, &successor.queue, decided, PUBLISH_PATIENCE).await {
            Ok(()) => {
                self.life.reached(Point::SuccessorSent).await;
                self.ledger.mark_sent(successor.sent());
                self.life.reached(Point::SuccessorNoted).await;
                Fate::Ack
            }
            Err(error) => {
                tracing::warn!(
                    kind = successor.kind, key = successor.key, epoch = successor.epoch, tick = successor.tick, %error,
                    "a successor could not be sent; it is sent when its predecessor is delivered again, or by catch-up"
                );
                if mutant!(AckUnsent) { Fate::Ack } else { Fate::Requeue }
            }
        }
    }

    /// The life of a one-off job.
    async fn job(&self, queue: &QueueRun, mut envelope: Envelope, delivery: &Delivery) -> Fate {
        if let Some(fate) = self.wait_until_due(&envelope, &queue.name).await {
            return fate;
        }
        let Some(permit) = self.permit(queue, delivery).await else { return Fate::Requeue };
        let Some(kind) = self.kinds.get(&envelope.kind) else { return Fate::Requeue };
        let now = self.ledger.now();
        let due = envelope.due.unwrap_or(now);
        let id = envelope.id.get_or_insert_with(|| self.entropy.token()).clone();
        let job = Job {
            seed: job::seed(&envelope.kind, &envelope.key, &id),
            id: id.clone(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            tick: None,
            attempt: envelope.attempt,
            nominal: due,
            deadline: now + kind.timeout,
            payload: envelope.payload.clone(),
        };
        self.life.reached(Point::JobTaken).await;
        let outcome = self.handle(queue, job, now.since(due), permit).await;
        self.life.reached(Point::JobHandled).await;
        let at = self.ledger.now();
        let ladder = &self.dispatch.ladder;
        let mut decision = decide(None, &kind.retry, envelope.attempt, outcome, at, ladder, &self.entropy);
        self.note(&envelope, queue, None, &decision, false);
        let asked = self.asked(&id, &queue.name, std::mem::take(&mut decision.yields), at);
        if !asked.envelopes.is_empty() || !asked.failed.is_empty() {
            let accept = || {
                let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
                self.ledger.accept(kind, key, asked.spawned(), asked.failed.clone())
            };
            if self.insist("accept what a job asks for", accept).await.is_none() {
                return Fate::Requeue;
            }
            self.send_spawned(asked.envelopes).await;
        }
        match decision.next {
            Next::End | Next::Tick { .. } => {
                if let Some(reason) = decision.reason.filter(|_| !mutant!(FailureIsDropped)) {
                    let record = || {
                        let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
                        self.ledger.record_failure(kind, key, reason.text.clone(), at)
                    };
                    if self.insist("keep a failure", record).await.is_none() {
                        return Fate::Requeue;
                    }
                    self.life.reached(Point::FailureKept).await;
                }
                self.forget(&id).await
            }
            Next::Attempt { .. } if mutant!(RetryIsDropped) => Fate::Ack,
            Next::Attempt { attempt, due } => {
                let again = Envelope { attempt, due: Some(due), ..envelope };
                self.send_job(&again, &queue.name, at).await
            }
            Next::Snooze { due } => {
                let again = Envelope { due: Some(due), ..envelope };
                self.send_job(&again, &queue.name, at).await
            }
        }
    }

    /// Where the broker keeps nothing, the ledger does, and now it need not any more.
    async fn forget(&self, id: &str) -> Fate {
        if self.dispatch.broker.keeps_messages() {
            return Fate::Ack;
        }
        match self.insist("forget a job", || self.ledger.forget_jobs(vec![id.to_owned()])).await {
            Some(()) => Fate::Ack,
            None => Fate::Requeue,
        }
    }

    async fn send_job(&self, envelope: &Envelope, queue: &str, decided: Time) -> Fate {
        let envelope = &Envelope { queue: Some(queue.to_owned()), ..envelope.clone() };
        if !self.dispatch.broker.keeps_messages() {
            let keep = || self.ledger.keep_job(envelope.id.clone().unwrap_or_default(), envelope.encode());
            if self.insist("keep a job", keep).await.is_none() {
                return Fate::Requeue;
            }
        }
        match self.dispatch.send_surely(envelope, queue, decided, PUBLISH_PATIENCE).await {
            Ok(()) => {
                self.life.reached(Point::JobSentAgain).await;
                Fate::Ack
            }
            Err(error) => {
                tracing::warn!(kind = envelope.kind, key = envelope.key, %error, "a job could not be sent again; its message is kept");
                Fate::Requeue
            }
        }
    }

    /// Sees to it that nothing starts early: the last moments are slept here, more goes back to
    /// the ladder. `None` when it is time.
    async fn wait_until_due(&self, envelope: &Envelope, queue: &str) -> Option<Fate> {
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
    async fn put_off(&self, envelope: &Envelope, queue: &str) -> Fate {
        self.telemetry.count(Count::Rearmed);
        let envelope = &Envelope { queue: Some(queue.to_owned()), ..envelope.clone() };
        match self.dispatch.send(envelope, queue, self.ledger.now()).await {
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
    /// is for now and not for when there is room. `None` when the worker stops, when it takes so
    /// long that the message had better come again, or when the broker has taken it back anyway.
    async fn permit(&self, queue: &QueueRun, delivery: &Delivery) -> Option<Permit> {
        let wait = async {
            let room = queue.permits.clone().acquire_owned().await.ok()?;
            let slot = match &queue.throttle {
                // Asked once more below, since this can take long too.
                Some(_) if !delivery.is_alive() => return None,
                Some((throttle, figures)) if !mutant!(ThrottleIgnored) => {
                    let _waiting = figures.wait();
                    Some(throttle.slot(queue.priority).await)
                }
                _ => None,
            };
            delivery.is_alive().then_some(Permit { slot, _room: room })
        };
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => None,
            permit = wait => permit,
            () = sleep(MOST_WAITING) => None,
        }
    }

    /// Runs the handler until its deadline; whatever goes wrong in it becomes an outcome.
    async fn handle(&self, queue: &QueueRun, job: Job, late: Duration, permit: Permit) -> Outcome {
        let Some(handler) = self.handlers.get(&job.kind) else {
            let reason = format!("this worker has no handler for {}", job.kind);
            return Outcome::retry(Reason::new(Class::NoHandler, reason));
        };
        // Held until the handler has ended.
        let Permit { slot, _room } = permit;
        if slot.is_some_and(|slot| !slot.start()) {
            let reason = Reason::new(Class::Slot, "the claim took so long that the slot for it was over");
            return Outcome::Snooze { reason, wait: Duration::ZERO };
        }
        let timeout = job.deadline.since(self.ledger.now());
        let (_running, figures, since) = (queue.figures.started(late), self.figures.get(&job.kind), Instant::now());
        let run = AssertUnwindSafe(handler.run(job)).catch_unwind();
        let outcome = tokio::select! {
            biased;
            ended = tokio::time::timeout(timeout, run) => match ended {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => {
                    Outcome::retry(Reason::new(Class::Panic, format!("the handler panicked: {}", words(&*panic))))
                }
                Err(_) => Outcome::retry(Reason::new(Class::Timeout, "not done by its deadline")),
            },
            () = self.abort.cancelled() => {
                let reason = Reason::new(Class::Stopped, "the worker stopped");
                Outcome::Snooze { reason, wait: Duration::ZERO }
            }
        };
        if let Some(figures) = figures {
            figures.ran(since.elapsed());
        }
        outcome
    }

    /// Counts how an attempt ended, and logs it unless it worked: one line for each. `claim` is the
    /// chain's tick and its fence, `fenced` whether somebody else had claimed it meanwhile, so that
    /// nothing of it counts.
    fn note(
        &self,
        envelope: &Envelope,
        queue: &QueueRun,
        claim: Option<(&ChainRef, i64)>,
        decision: &Decision,
        fenced: bool,
    ) {
        let figures = self.figures.get(&envelope.kind);
        let class = decision.reason.as_ref().map(|reason| reason.class);
        if fenced {
            self.telemetry.count(Count::Fenced);
            figures.inspect(|figures| figures.fenced());
        } else {
            self.telemetry.verdict(decision.verdict);
            figures.inspect(|figures| figures.ended(decision.verdict, class, claim.is_some()));
        }
        let (word, class, reason) = match (&decision.reason, fenced) {
            (None, false) => return,
            (Some(reason), false) => (decision.verdict.as_str(), reason.class, reason.text.as_str()),
            (_, true) => {
                ("fenced", Class::Fenced, "somebody else had claimed it meanwhile; nothing of this run counts")
            }
        };
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
            reason,
            "{word}"
        );
    }

    /// Puts a message that cannot be used where a person finds it.
    pub(super) async fn quarantine(&self, delivery: &Delivery, bad: &BadMessage) -> Fate {
        self.telemetry.count(Count::Quarantined);
        if mutant!(QuarantineDrops) {
            return Fate::Ack;
        }
        let (from, reason) = (delivery.queue.to_string(), bad.to_string());
        tracing::warn!(queue = from, reason, bytes = delivery.body.len(), "quarantined");
        let kept = if self.dispatch.broker.keeps_messages() {
            let to = Destination::Quarantine { from, reason };
            let message = Message { to, id: self.entropy.token(), body: delivery.body.clone() };
            self.dispatch.broker.publish(message).await.map_err(|error| error.to_string())
        } else {
            let kept = self.ledger.quarantine(from, reason, delivery.body.to_vec(), self.ledger.now()).await;
            kept.map_err(|error| error.to_string())
        };
        match kept {
            Ok(()) => {
                self.life.reached(Point::SetAside).await;
                Fate::Ack
            }
            Err(error) => {
                tracing::warn!(error, "the quarantine could not be reached; the message stays where it is");
                sleep(Duration::from_secs(1)).await;
                Fate::Requeue
            }
        }
    }

    /// Asks the ledger again and again while it does not answer, holding the delivery meanwhile:
    /// so consumption stops by itself, with no message going in circles. `None` when the worker
    /// has been told to stop for good.
    async fn insist<T, F>(&self, verb: &str, ask: impl Fn() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, LedgerError>>,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(LedgerError::Closed) => return None,
                Err(_) if mutant!(FinishGivesUp) => return None,
                Err(error) => {
                    tracing::warn!(%error, "failed to {verb}; trying again in {pause:?}");
                    tokio::select! {
                        biased;
                        () = sleep(pause) => {}
                        () = self.abort.cancelled() => return None,
                    }
                    pause = (pause * 2).min(LEDGER_PAUSE);
                }
            }
        }
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no message")
}
