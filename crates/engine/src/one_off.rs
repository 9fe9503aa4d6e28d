//! The life of a one-off job: a message that is complete in itself.
//!
//! ```text
//! due? ─ first of its retries ─ owner ─ unique ─ deaths ─ slot ─ in hand ─ owner ─ handler ─ decide ─ what it asks for ─ next message ─ acknowledge
//! ```
//!
//! It has no claim, so it runs at least once, on the broker's guarantees.

use std::time::Duration;

use futures_util::future::join;
use roundelay_broker::Delivery;
use roundelay_config::{KindSettings, MAX_HELD, Unique, UniqueUntil};
use roundelay_ledger::{ChainState, RunningJob};
use roundelay_model::clock::Time;
use roundelay_model::encryption::Unopened;
use roundelay_model::failure::FailedItem;
use roundelay_model::job;
use roundelay_model::job::{Envelope, Job};
use roundelay_model::outcome::{Decision, Next, Outcome, Verdict, Yield, decide};
use roundelay_model::progress::Progress;
use roundelay_model::reason::{Class, Reason};

use crate::attempt::Pace;
use crate::core::Core;
use crate::life::Point;
use crate::outbox::Asking;
use crate::queue::QueueRun;
use crate::replay::superseded;
use crate::settlement::Settlement;
use crate::trace::Run;
use crate::{reconcile, sealing};

/// How often a job of a paused owner looks whether it may run.
const OWNER_PAUSED: Duration = Duration::from_secs(30);

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
        if let Some(settlement) = self.publishing.wait_until_due(&envelope, &queue.name).await {
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
        let Some(permit) = self.permit(queue, &envelope.kind, envelope.due, (delivery, false)).await else {
            return Settlement::Requeue;
        };
        trace.spent("permit", (waiting, trace.begin()), || queue.paced_by());
        if !self.taken_in_hand(&released, queue).await {
            return Settlement::Requeue;
        }
        // It may have waited for room, slot and ledger for minutes, and its owner may have been paused meanwhile.
        let owner = self.owner_of(&envelope).await;
        if !lets_start(owner) {
            drop(permit);
            // The job does not run, so no worker can die over it.
            if !self.out_of_hand(&released).await {
                return Settlement::Requeue;
            }
            return self.owner_says_no(&kind, &envelope, queue, owner, &trace).await;
        }
        if unique.is_some_and(|unique| unique.until == UniqueUntil::Start) {
            if !self.unique.give_place(&envelope, &id).await {
                return Settlement::Requeue;
            }
            self.observing.life.reached(Point::PlaceGivenBefore).await;
        }
        let longest = kind.timeout.min(MAX_HELD);
        let failure = match part {
            false => None,
            true => match self.publishing.hold_part(&envelope, queue, (&id, longest)).await {
                Ok(failure) => Some(failure),
                Err(settlement) if self.out_of_hand(&released).await => return settlement,
                Err(_) => return Settlement::Requeue,
            },
        };
        let (now, calendar) = (self.ledger.now(), self.ledger.calendar());
        let due = envelope.due.unwrap_or(now);
        let desk = self.observing.desk.open_job(RunningJob {
            id: id.clone(),
            worker: self.worker.to_string(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            attempt: envelope.attempt,
            started: now,
            progress: Progress::default(),
        });
        let job = Job {
            seed: job::seed(&envelope.kind, &envelope.key, &id),
            id: id.clone(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            tick: None,
            attempt: failure.as_ref().map_or(envelope.attempt, reconcile::attempt),
            owner: envelope.owner.clone(),
            carry: serde_json::Value::Null,
            unavailable: Vec::new(),
            nominal: calendar.wall(due),
            deadline: calendar.wall(now + longest),
            grace: Duration::ZERO,
            payload: envelope.payload.clone(),
        };
        self.observing.life.reached(Point::JobTaken).await;
        let pace = Pace { due, at: now, deadline: now + longest, longest, by: None };
        let mut outcome = match self.handle(queue, (job, desk.reporter()), pace, permit, &trace).await.outcome {
            Outcome::DoneWith(Yield { batch, .. }) if !batch.is_empty() => {
                Outcome::fail(Reason::new(Class::Answer, "only a tick of a chain can wait for a batch"))
            }
            outcome => outcome,
        };
        drop(desk);
        if !self.out_of_hand(&released).await {
            return Settlement::Requeue;
        }
        drop(released);
        self.observing.life.reached(Point::JobHandled).await;
        let at = self.ledger.now();
        kind.policies.judge(&kind.retry, &mut outcome, (&envelope.kind, &envelope.key), at);
        let (mut outcome, mut retry) = kind.policies.rule(outcome, &kind.retry);
        let end = failure.and_then(|failure| self.catalog.settle_part(&failure, &kind, &mut outcome, at));
        let once = reconcile::once();
        if part {
            // Whether there is another attempt is said in the part's row.
            retry = &once;
        }
        let ladder = &self.publishing.dispatch.ladder;
        let mut decision = decide(None, retry, envelope.attempt, outcome, at, ladder, &self.entropy);
        self.observing.note(&envelope, queue, None, &decision, false, &trace);
        let yields = std::mem::take(&mut decision.yields);
        let keys = self.publishing.keys();
        let asking = Asking {
            id: &id,
            kind: &envelope.kind,
            queue: &queue.name,
            owner: envelope.owner.as_deref(),
            depth: envelope.depth,
            bounds: kind.spawn,
            at,
            keys: &keys,
            calendar: &self.ledger.calendar(),
            slack: self.catch_up.slack,
        };
        let asked = self.catalog.asked(&asking, yields);
        if !asked.envelopes.is_empty() || !asked.chains.is_empty() || !asked.failed.is_empty() {
            let accept = || {
                let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
                self.ledger.accept(kind, key, asked.spawned(&keys), asked.chains.clone(), asked.failed.clone())
            };
            let Some(begun) = self.ledger.retry_until_stopped("accept what a job asks for", accept).await else {
                return Settlement::Requeue;
            };
            join(self.publishing.send_first(begun, at, &trace), self.publishing.send_spawned(asked.envelopes, &trace))
                .await;
        }
        let safe = match (&end, decision.next) {
            (Some(end), _) => self.publishing.end_part(&id, end, at).await,
            (None, Next::Snooze { due }) if part => self.publishing.postpone_part(&id, due).await,
            (None, _) => true,
        };
        match decision.next {
            _ if !safe => Settlement::Requeue,
            _ if end.is_some() => self.publishing.forget(&id).await,
            Next::End | Next::Tick { .. } | Next::Gather => self.job_ended(&kind, &envelope, &id, decision, at).await,
            Next::Attempt { attempt, due } => {
                let again = Envelope { attempt, ..envelope.due_at(due) };
                self.publishing.send_job(&again, &queue.name, at, &trace).await
            }
            Next::Snooze { due } => {
                let again = envelope.due_at(due);
                self.publishing.send_job(&again, &queue.name, at, &trace).await
            }
        }
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

/// Whether jobs of an owner in this state may start.
fn lets_start(owner: Option<ChainState>) -> bool {
    matches!(owner, Some(ChainState::Active | ChainState::Quarantined))
}
