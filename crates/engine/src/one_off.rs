//! The life of a one-off job: a message that is complete in itself.
//!
//! ```text
//! due? ─ first of its retries ─ owner ─ unique ─ deaths ─ slot ─ in hand ─ owner ─ handler ─ decide ─ what it asks for ─ next message ─ acknowledge
//! ```
//!
//! It has no claim, so it runs at least once, on the broker's guarantees.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join;
use roundelay_broker::Delivery;
use roundelay_config::{KindSettings, MAX_HELD, Unique, UniqueUntil};
use roundelay_ledger::{ChainState, RunningJob};
use roundelay_model::clock::Time;
use roundelay_model::encryption::Unopened;
use roundelay_model::failure::{FailedItem, Failure, ItemEnd};
use roundelay_model::job;
use roundelay_model::job::{Envelope, Job};
use roundelay_model::outcome::{Decision, Next, Outcome, RetryPolicy, Verdict, Yield};
use roundelay_model::progress::Progress;
use roundelay_model::reason::{Class, Reason};

use crate::call::{Call, Pace};
use crate::core::Core;
use crate::desk::Open;
use crate::life::Point;
use crate::outbox::Asked;
use crate::permit::Permit;
use crate::pipeline::{Asks, Source, Start, Work};
use crate::queue::QueueRun;
use crate::redelivered::Released;
use crate::replay::superseded;
use crate::settlement::Settlement;
use crate::trace::Run;
use crate::{reconcile, sealing};

/// How often a job of a paused owner looks whether it may run.
const OWNER_PAUSED: Duration = Duration::from_secs(30);

/// The run of a one-off job.
struct JobRun<'a> {
    core: &'a Core,
    work: Work<'a>,
    released: Released,
    /// The part of an entity that the job is for, until the handler's outcome is judged.
    failure: Option<Failure>,
    /// What has become of that part; `None` when it is only put off.
    part_ends: Option<ItemEnd>,
    settlement: Settlement,
}

impl Core {
    /// Puts a job off that does not open.
    pub(crate) async fn postpone_sealed(&self, mut envelope: Envelope, queue: &QueueRun, why: &Unopened) -> Settlement {
        let now = self.ledger.now();
        if let Some(sealed) = &mut envelope.sealed {
            // Its publisher may have written anything.
            let since = sealed.since.unwrap_or(now).min(now);
            sealed.since = Some(since);
            (envelope.due, envelope.clock) = (Some(now + sealing::wait(since, now)), Some(0));
        }
        let reason = Reason::new(Class::Sealed, format!("its payload {why}"));
        self.observing.says_no(&envelope, queue, Verdict::Snoozed, reason, &Run::default());
        self.publishing.send_job(&envelope, &queue.name, now, &Run::default()).await
    }

    /// The life of a one-off job.
    pub(super) async fn job(&self, queue: &QueueRun, mut envelope: Envelope, delivery: &Delivery) -> Settlement {
        if let Some(settlement) = self.publishing.wait_until_due(&envelope, Duration::ZERO, &queue.name).await {
            return settlement;
        }
        if let Err(why) = sealing::open(&self.publishing.keys(), &mut envelope) {
            return self.postpone_sealed(envelope, queue, &why).await;
        }
        if let Some(settlement) = superseded(&self.ledger, &self.observing, &envelope, queue).await {
            return settlement;
        }
        let Some(kind) = self.catalog.kind(&envelope.kind) else { return Settlement::Requeue };
        let owner = self.owner_of(&envelope).await;
        if !lets_start(owner) {
            return self.owner_says_no(&kind, &envelope, queue, owner, &Run::default()).await;
        }
        // What is fed back is one of a part, and not of a key: the ledger sees to that.
        let part = envelope.id.as_deref().is_some_and(reconcile::is_part);
        if kind.unique.is_some() && envelope.id.is_none() {
            // It must be the same job when it is delivered again.
            let named = Envelope { id: Some(self.entropy.token()), ..envelope };
            return self.publishing.send_job(&named, &queue.name, self.ledger.now(), &Run::default()).await;
        }
        let named = envelope.id.is_some();
        let id = envelope.id.get_or_insert_with(|| self.entropy.token()).clone();
        let trace = self.observing.tracer.run(&envelope, &queue.name, || self.ledger.now());
        let unique = kind.unique.filter(|_| !part);
        if let Some(settlement) = self.unique_says(unique, &envelope, queue, &id, &trace).await {
            return settlement;
        }
        let released = match self.released(&kind, (&envelope, named), queue, delivery).await {
            Ok(released) => released,
            Err(settlement) => return settlement,
        };
        let waiting = trace.begin();
        let tenant = envelope.tenant.clone().unwrap_or_default();
        let permit = self.permit(queue, &envelope.kind, envelope.due, &tenant, (delivery, false)).await;
        let Some(permit) = permit else { return Settlement::Requeue };
        trace.spent("permit", (waiting, trace.begin()), || queue.paced_by());
        let work = Work { queue, kind: &kind, envelope: &envelope, id: &id, trace: &trace };
        self.permitted_job(work, unique, released, permit).await
    }

    /// The life of a one-off job that has its permit.
    async fn permitted_job(
        &self,
        work: Work<'_>,
        unique: Option<Unique>,
        released: Released,
        permit: Permit,
    ) -> Settlement {
        let Work { queue, kind, envelope, id, trace } = work;
        if !self.taken_in_hand(&released, queue).await {
            return Settlement::Requeue;
        }
        // The job may have waited for room, slot and ledger for minutes, and its owner may have been paused meanwhile.
        let owner = self.owner_of(envelope).await;
        if !lets_start(owner) {
            drop(permit);
            // The job does not run, so no worker can die over it.
            if !self.out_of_hand(&released).await {
                return Settlement::Requeue;
            }
            return self.owner_says_no(kind, envelope, queue, owner, trace).await;
        }
        if unique.is_some_and(|unique| unique.until == UniqueUntil::Start) {
            if !self.unique.give_place(envelope, id).await {
                return Settlement::Requeue;
            }
            self.observing.life.reached(Point::PlaceGivenBefore).await;
        }
        let longest = kind.timeout.min(MAX_HELD);
        let failure = match reconcile::is_part(id) {
            false => None,
            true => match self.publishing.hold_part(envelope, queue, (id, longest)).await {
                Ok(failure) => Some(failure),
                Err(settlement) if self.out_of_hand(&released).await => return settlement,
                Err(_) => return Settlement::Requeue,
            },
        };
        let call = self.call_of_job(&work, longest, failure.as_ref(), permit);
        let desk = self.observing.desk.open_job(RunningJob {
            id: id.to_owned(),
            worker: self.worker.to_string(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            attempt: envelope.attempt,
            started: self.ledger.now(),
            progress: Progress::default(),
        });
        self.observing.life.reached(Point::JobTaken).await;
        let mut run = JobRun { core: self, work, released, failure, part_ends: None, settlement: Settlement::Requeue };
        self.run(work, &mut run, Start::Call(Box::new(call), desk)).await;
        run.settlement
    }

    /// What a job's handler is called with.
    fn call_of_job(&self, work: &Work<'_>, longest: Duration, part: Option<&Failure>, permit: Permit) -> Call {
        let Work { queue, envelope, id, .. } = work;
        let (now, wall_clock) = (self.ledger.now(), self.ledger.wall_clock());
        let due = envelope.due.unwrap_or(now);
        let job = Job {
            seed: job::seed(&envelope.kind, &envelope.key, id),
            id: (*id).to_owned(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            tick: None,
            attempt: part.map_or(envelope.attempt, reconcile::attempt),
            owner: envelope.owner.clone(),
            carry: serde_json::Value::Null,
            unavailable: Vec::new(),
            nominal: wall_clock.wall(due),
            deadline: wall_clock.wall(now + longest),
            grace: Duration::ZERO,
            payload: envelope.payload.clone(),
        };
        let pace = Pace { due, deadline: now + longest, longest, by: None };
        Call { job, pace, permit }
    }

    /// Keeps what went wrong, and gives up what the job had.
    async fn job_ended(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        id: &str,
        end: Decision,
        at: Time,
    ) -> Settlement {
        if let Some(reason) = &end.reason {
            let record = || {
                let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
                let (code, permanent) = (reason.code().map(Into::into), end.verdict == Verdict::Retired);
                let whole = FailedItem { code, permanent, ..FailedItem::new("", reason.text.clone()) };
                self.ledger.record_failure(kind, key, whole, at)
            };
            if self.ledger.retry_until_stopped("keep a failure", record).await.is_none() {
                return Settlement::Requeue;
            }
            self.observing.life.reached(Point::FailureKept).await;
        }
        if !self.unique.end_place(kind, envelope, id, end.verdict).await {
            return Settlement::Requeue;
        }
        self.publishing.forget(id).await
    }

    /// What state a job's owner is in, active without one; `None` when the ledger could not be reached.
    async fn owner_of(&self, envelope: &Envelope) -> Option<ChainState> {
        let Some(owner) = &envelope.owner else {
            return Some(ChainState::Active);
        };
        self.ledger.retry_until_stopped("ask for an owner", || self.ledger.owner(owner.clone())).await
    }

    /// What becomes of a job whose owner does not [let it start](lets_start).
    async fn owner_says_no(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        queue: &QueueRun,
        state: Option<ChainState>,
        trace: &Run,
    ) -> Settlement {
        let owner = envelope.owner.as_deref().unwrap_or_default();
        match state {
            Some(ChainState::Retired) => {
                let reason = Reason::new(Class::Owner, format!("its owner {owner} is gone"));
                self.observing.says_no(envelope, queue, Verdict::Dropped, reason, trace);
                let Some(id) = &envelope.id else { return Settlement::Ack };
                if kind.unique.is_some() && !self.unique.give_place(envelope, id).await {
                    return Settlement::Requeue;
                }
                self.publishing.forget(id).await
            }
            Some(_) => {
                let due = self.ledger.now() + OWNER_PAUSED;
                let later = envelope.clone().due_at(due);
                let reason = Reason::new(Class::Owner, format!("its owner {owner} is paused"));
                self.observing.says_no(envelope, queue, Verdict::Snoozed, reason, trace);
                self.publishing.send_job(&later, &queue.name, self.ledger.now(), trace).await
            }
            None => Settlement::Requeue,
        }
    }

    /// What becomes of a job when another of its kind and key has its place; `None` when it has it.
    async fn unique_says(
        &self,
        unique: Option<Unique>,
        envelope: &Envelope,
        queue: &QueueRun,
        id: &str,
        trace: &Run,
    ) -> Option<Settlement> {
        let unique = unique?;
        if unique.until == UniqueUntil::Start && envelope.attempt > 1 {
            // It has started, and so given its place up.
            return None;
        }
        match self.unique.place_taken(unique, envelope, id).await {
            None => Some(Settlement::Requeue),
            Some(None) => None,
            Some(Some(reason)) => {
                self.observing.says_no(envelope, queue, Verdict::Dropped, reason, trace);
                Some(self.publishing.forget(id).await)
            }
        }
    }
}

#[async_trait]
impl Source for JobRun<'_> {
    async fn handled(&mut self, desk: Open, _called: bool) -> bool {
        drop(desk);
        if !self.core.out_of_hand(&self.released).await {
            return false;
        }
        self.released.let_others_run();
        self.core.observing.life.reached(Point::JobHandled).await;
        true
    }

    fn gather(&mut self, outcome: &mut Outcome, _at: Time) {
        if matches!(outcome, Outcome::DoneWith(Yield { batch, .. }) if !batch.is_empty()) {
            *outcome = Outcome::fail(Reason::new(Class::Answer, "only a tick of a chain can wait for a batch"));
        }
    }

    fn adapt(&mut self, outcome: &mut Outcome, at: Time) -> Option<RetryPolicy> {
        let failure = self.failure.take()?;
        self.part_ends = self.core.catalog.settle_part(&failure, self.work.kind, outcome, at);
        // Whether there is another attempt is said in the part's row.
        Some(reconcile::once())
    }

    fn asks(&self) -> Asks<'_> {
        let Work { envelope, kind, .. } = self.work;
        Asks { owner: envelope.owner.as_deref(), depth: envelope.depth, bounds: kind.spawn }
    }

    async fn end(&mut self, at: Time, decision: Decision, asked: Asked) {
        let Self { core, work: Work { queue, kind, envelope, id, trace }, part_ends, .. } = self;
        core.observing.note(envelope, queue, None, &decision, false, trace);
        if !asked.envelopes.is_empty() || !asked.chains.is_empty() || !asked.failed.is_empty() {
            let keys = core.publishing.keys();
            let accept = || {
                let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
                core.ledger.accept(kind, key, asked.spawned(&keys), asked.chains.clone(), asked.failed.clone())
            };
            let Some(begun) = core.ledger.retry_until_stopped("accept what a job asks for", accept).await else {
                return;
            };
            join(core.publishing.send_first(begun, at, trace), core.publishing.send_spawned(asked.envelopes, trace))
                .await;
        }
        let safe = match (&*part_ends, decision.next) {
            (Some(end), _) => core.publishing.end_part(id, end, at).await,
            (None, Next::Snooze { due }) if reconcile::is_part(id) => core.publishing.postpone_part(id, due).await,
            (None, _) => true,
        };
        self.settlement = match decision.next {
            _ if !safe => Settlement::Requeue,
            _ if part_ends.is_some() => core.publishing.forget(id).await,
            Next::End | Next::Tick { .. } | Next::Gather => core.job_ended(kind, envelope, id, decision, at).await,
            Next::Attempt { attempt, due } => {
                let again = Envelope { attempt, ..envelope.clone().due_at(due) };
                core.publishing.send_job(&again, &queue.name, at, trace).await
            }
            Next::Snooze { due } => {
                let again = envelope.clone().due_at(due);
                core.publishing.send_job(&again, &queue.name, at, trace).await
            }
        };
    }
}

/// Whether jobs of an owner in this state may start.
fn lets_start(owner: Option<ChainState>) -> bool {
    matches!(owner, Some(ChainState::Active | ChainState::Quarantined))
}
