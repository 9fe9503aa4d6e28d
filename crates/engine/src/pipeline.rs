//! A job's life, from delivery to acknowledgement.
//!
//! A run has one of two sources: a chain, whose tick the ledger grants (`tick`), or a message that is complete in
//! itself (`one_off`). What both have in common is [`Core::run`]; what differs is a [`Source`].
//!
//! ```text
//! chain    decode ─ early? ─ permit ─ claim ────────────┐                                  ┌ finish ─ successor ────┐
//!                                                       ├ handler ─ rule ─ decide ─ asks ──┤                        ├ acknowledge
//! message  decode ─ early? ─ unique ─ permit ─ in hand ─┘                                  └ accept ─ next message ─┘
//! ```
//!
//! Nothing is acknowledged before what follows from it is safe: the successor confirmed by the
//! broker, or known to the ledger as unsent.

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_broker::Delivery;
use roundelay_config::{KindSettings, SpawnSettings};
use roundelay_model::clock::Time;
use roundelay_model::job::{BadMessage, Envelope, MAX_DEAD_LETTERED};
use roundelay_model::outcome::{Course, Decision, Outcome, RetryPolicy, decide};
use roundelay_model::reason::{Class, Reason};

use crate::call::{Call, Handled};
use crate::core::Core;
use crate::desk::Open;
use crate::fair::Place;
use crate::fair::lane::InHandOf;
use crate::life::Point;
use crate::outbox::{Asked, Asking};
use crate::queue::QueueRun;
use crate::sealing;
use crate::settlement::Settlement;
use crate::trace::Run;
use crate::vitals::Lease;

/// What is known of a run, whatever its source.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub queue: &'a QueueRun,
    pub kind: &'a KindSettings,
    pub envelope: &'a Envelope,
    /// Names the run, also in the ids of the jobs that it asks for.
    pub id: &'a str,
    pub trace: &'a Run,
}

/// Whether the handler is called.
pub(super) enum Start {
    /// The handler is called, and reports to this desk.
    Call(Box<Call>, Open),
    /// It is not: what follows was decided at this time.
    Decided(Time, Box<Decision>),
}

/// For whom, how deep and how much a run may ask for.
pub(super) struct Asks<'a> {
    pub owner: Option<&'a str>,
    pub depth: u32,
    pub bounds: SpawnSettings,
}

/// Where a run comes from. The methods are called in this order. After a [`Start::Decided`], and when `cut` has
/// decided, only `asks` and `end` follow.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// The lease without which the run may not go on.
    fn lease(&self) -> Option<&Lease<'_>> {
        None
    }

    /// The handler has ended. `false` when the ledger could not be told, so that nothing may follow.
    async fn handled(&mut self, desk: Open, called: bool) -> bool;

    /// The decision, if the source has ended the run itself (its time box, or `overlap`): then no policy applies.
    fn cut(&self, _outcome: &Outcome, _at: Time) -> Option<Decision> {
        None
    }

    /// Takes the batch out of the outcome, to be written with the end. Without a chain, a batch is a failure.
    fn gather(&mut self, outcome: &mut Outcome, at: Time);

    /// Adapts the outcome to the source, after the reason's policy was applied. Returns the retries that count in place
    /// of the policy's, if there are others.
    fn adapt(&mut self, _outcome: &mut Outcome, _at: Time) -> Option<RetryPolicy> {
        None
    }

    /// How the chain goes on, if there is one.
    fn course(&self, _at: Time) -> Option<Course<'_>> {
        None
    }

    fn asks(&self) -> Asks<'_>;

    /// Writes the end, and what the run asks for.
    async fn end(&mut self, at: Time, decision: Decision, asked: Asked);
}

/// Processes one delivery of a platform queue, and settles it (acknowledges it, or gives it back).
pub async fn process_delivery(core: Arc<Core>, queue: Arc<QueueRun>, delivery: Delivery) {
    let _unsettled = queue.holds();
    core.observing.life.reached(Point::Delivered).await;
    if let Some(settlement) = core.publishing.to_the_end(&queue, &delivery).await {
        return core.observing.settle(delivery, settlement).await;
    }
    let settlement = match core.read(&delivery) {
        Ok(envelope) => match envelope.order() {
            Some(order) => core.orders.obey(&queue, &envelope, order, &delivery).await,
            None => match core.place_of(&queue, &envelope, &delivery).await {
                Place::Here { tenant, _in_hand } => core.live(&queue, envelope, tenant, &delivery).await,
                Place::Settled(settlement) => settlement,
            },
        },
        Err(bad) => core.publishing.quarantine(&delivery, &bad).await,
    };
    core.observing.settle(delivery, settlement).await;
}

/// Processes a message that was taken from a fair queue's backlog, in the same way.
pub(super) async fn process_taken(core: Arc<Core>, queue: Arc<QueueRun>, delivery: Delivery, in_hand: InHandOf) {
    let settlement = match core.read(&delivery) {
        Ok(envelope) => {
            let envelope = Envelope { from_backlog: true, ..envelope };
            core.live(&queue, envelope, Some(in_hand.tenant().clone()), &delivery).await
        }
        Err(bad) => core.publishing.quarantine(&delivery, &bad).await,
    };
    core.observing.settle(delivery, settlement).await;
}

impl Core {
    /// The life of a tick, or of a one-off job, of this tenant.
    async fn live(
        &self,
        queue: &QueueRun,
        mut envelope: Envelope,
        tenant: Option<Arc<str>>,
        delivery: &Delivery,
    ) -> Settlement {
        envelope.tenant = tenant;
        match envelope.chain.clone() {
            Some(chain) => self.tick(queue, &envelope, &chain, delivery).await,
            None => self.job(queue, envelope, delivery).await,
        }
    }

    /// Runs a job, decides what follows, and has its source write that. If the source has written no end, the message
    /// must come again.
    pub(super) async fn run(&self, work: Work<'_>, source: &mut dyn Source, start: Start) {
        let (at, mut decision) = match start {
            Start::Call(call, desk) => match self.handle(work, source, *call, desk).await {
                Some(handled) => handled,
                None => return,
            },
            Start::Decided(at, decision) => (at, *decision),
        };
        let yields = std::mem::take(&mut decision.yields);
        let Work { queue, envelope, id, .. } = work;
        let Asks { owner, depth, bounds } = source.asks();
        let (keys, wall_clock) = (self.publishing.keys(), self.ledger.wall_clock());
        let asking = Asking {
            id,
            kind: &envelope.kind,
            queue: &queue.name,
            owner,
            depth,
            bounds,
            at,
            keys: &keys,
            wall_clock: &wall_clock,
            slack: self.catch_up.slack,
        };
        let asked = self.catalog.asked(&asking, yields);
        source.end(at, decision, asked).await;
    }

    /// Calls the handler, and decides what follows, and when.
    async fn handle(
        &self,
        work: Work<'_>,
        source: &mut dyn Source,
        call: Call,
        desk: Open,
    ) -> Option<(Time, Decision)> {
        let Work { queue, kind, envelope, trace, .. } = work;
        let lost = async {
            match source.lease() {
                Some(lease) => lease.lost().await,
                None => pending().await,
            }
        };
        let Handled { mut outcome, called } = tokio::select! {
            biased;
            () = lost => {
                // Another worker that has claimed the attempt meanwhile fences this end off, and nothing is recorded.
                // Else the attempt comes again at once, without being counted. A handler may have been called.
                let reason = Reason::new(Class::Fenced, "the lease was lost, so the run was ended");
                Handled { outcome: Outcome::Snooze { reason, wait: Duration::ZERO }, called: true }
            }
            handled = self.call(queue, call, desk.reporter(), trace) => handled,
        };
        if !source.handled(desk, called).await {
            return None;
        }
        let at = self.ledger.now();
        if let Some(decision) = source.cut(&outcome, at) {
            return Some((at, decision));
        }
        let (policies, attempt) = (&kind.policies, envelope.attempt);
        policies.judge(&kind.retry, &mut outcome, (&envelope.kind, &envelope.key), at);
        source.gather(&mut outcome, at);
        let (mut outcome, of_policy) = policies.rule(outcome, &kind.retry);
        let own = source.adapt(&mut outcome, at);
        let (retry, ladder) = (own.as_ref().unwrap_or(of_policy), &self.publishing.dispatch.ladder);
        Some((at, decide(source.course(at), retry, attempt, outcome, at, ladder, &self.entropy)))
    }

    /// Decodes a message, and checks that this worker can use it.
    pub(super) fn read(&self, delivery: &Delivery) -> Result<Envelope, BadMessage> {
        if let Some(until) = delivery.asleep_until {
            self.publishing.arrived(until);
        }
        if let Some(why) = &delivery.unreadable {
            return Err(BadMessage::Unreadable(why.to_string()));
        }
        if delivery.deaths > MAX_DEAD_LETTERED {
            return Err(BadMessage::DeadLetterLoop(delivery.deaths));
        }
        let keys = self.publishing.keys();
        let body = sealing::whole(&keys, &delivery.body).map_err(BadMessage::Sealed)?;
        let envelope = Envelope::decode(&body)?.read_at(&self.ledger.wall_clock());
        let envelope = Envelope { trace: delivery.trace.clone(), ..envelope };
        // A body that was sealed as a whole has proved its sender; else the sealed fields have to.
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
}
