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
use roundelay_ledger::{ChainState, ChainView, RunningJob};
use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;
use roundelay_model::job;
use roundelay_model::job::{ChainRef, Envelope, Job, run_id};
use roundelay_model::outcome::{Decision, Next, Outcome, Verdict, Yield, decide};
use roundelay_model::progress::Progress;
use roundelay_model::reason::{Class, Reason};

use super::attempt::Pace;
use super::life::Point;
use super::outbox::Asking;
use super::pipeline::{Fate, PUBLISH_PATIENCE};
use super::{reconcile, sealing};
use crate::core::Core;
use crate::queue::QueueRun;
use crate::trace::Run;

/// How often a job of a paused owner looks whether it may run.
const OWNER_PAUSED: Duration = Duration::from_secs(30);

impl Core {
    /// The life of a one-off job.
    pub(super) async fn job(&self, queue: &QueueRun, mut envelope: Envelope, delivery: &Delivery) -> Fate {
        if let Some(fate) = self.wait_until_due(&envelope, &queue.name).await {
            return fate;
        }
        if let Err(why) = sealing::open(&self.keys(), &mut envelope) {
            return self.put_off_sealed(envelope, queue, &why).await;
        }
        if let Some(fate) = self.retry_says(&envelope, queue).await {
            return fate;
        }
        let Some(kind) = self.kind(&envelope.kind) else { return Fate::Requeue };
        let owner = self.owner_of(&envelope).await;
        if !lets_start(owner) {
            return self.owner_says_no(&kind, &envelope, queue, owner, &Run::default()).await;
        }
        // What is fed back is one of a part, and not of a key: the ledger sees to that.
        let part = envelope.id.as_deref().is_some_and(reconcile::is_part);
        if kind.unique.is_some() && envelope.id.is_none() {
            // It must be the same job when it is delivered again.
            let named = Envelope { id: Some(self.entropy.token()), ..envelope };
            return self.send_job(&named, &queue.name, self.ledger.now(), &Run::default()).await;
        }
        let named = envelope.id.is_some();
        let id = envelope.id.get_or_insert_with(|| self.entropy.token()).clone();
        let trace = self.tracer.run(&envelope, &queue.name, || self.ledger.now());
        let unique = kind.unique.filter(|_| !part);
        if let Some(fate) = self.unique_says(unique, &envelope, queue, &id, &trace).await {
            return fate;
        }
        let released = match self.released(&kind, (&envelope, named), queue, delivery).await {
            Ok(released) => released,
            Err(fate) => return fate,
        };
        let waiting = trace.begin();
        let Some(permit) = self.permit(queue, &envelope.kind, envelope.due, (delivery, false)).await else {
            return Fate::Requeue;
        };
        trace.spent("permit", (waiting, trace.begin()), || queue.paced_by());
        if !self.taken_in_hand(&released, queue).await {
            return Fate::Requeue;
        }
        // It may have waited for room, slot and ledger for minutes, and its owner may have been paused meanwhile.
        let owner = self.owner_of(&envelope).await;
        if !lets_start(owner) {
            drop(permit);
            // The job does not run, so no worker can die over it.
            if !self.out_of_hand(&released).await {
                return Fate::Requeue;
            }
            return self.owner_says_no(&kind, &envelope, queue, owner, &trace).await;
        }
        if unique.is_some_and(|unique| unique.until == UniqueUntil::Start) {
            if !self.give_place(&envelope, &id).await {
                return Fate::Requeue;
            }
            self.life.reached(Point::PlaceGivenBefore).await;
        }
        let longest = kind.timeout.min(MAX_HELD);
        let failure = match part {
            false => None,
            true => match self.hold_part(&envelope, queue, (&id, longest)).await {
                Ok(failure) => Some(failure),
                Err(fate) if self.out_of_hand(&released).await => return fate,
                Err(_) => return Fate::Requeue,
            },
        };
        let (now, calendar) = (self.ledger.now(), self.ledger.calendar());
        let due = envelope.due.unwrap_or(now);
        let desk = self.desk.open_job(RunningJob {
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
        self.life.reached(Point::JobTaken).await;
        let pace = Pace { due, at: now, deadline: now + longest, longest, by: None };
        let mut outcome = match self.handle(queue, (job, desk.reporter()), pace, permit, &trace).await.outcome {
            Outcome::DoneWith(Yield { batch, .. }) if !batch.is_empty() => {
                Outcome::fail(Reason::new(Class::Answer, "only a tick of a chain can wait for a batch"))
            }
            outcome => outcome,
        };
        drop(desk);
        if !self.out_of_hand(&released).await {
            return Fate::Requeue;
        }
        drop(released);
        self.life.reached(Point::JobHandled).await;
        let at = self.ledger.now();
        kind.policies.judge(&kind.retry, &mut outcome, (&envelope.kind, &envelope.key), at);
        let (mut outcome, mut retry) = kind.policies.rule(outcome, &kind.retry);
        let end = failure.and_then(|failure| self.settle_part(&failure, &kind, &mut outcome, at));
        let once = reconcile::once();
        if part {
            // Whether there is another attempt is said in the part's row.
            retry = &once;
        }
        let ladder = &self.dispatch.ladder;
        let mut decision = decide(None, retry, envelope.attempt, outcome, at, ladder, &self.entropy);
        self.note(&envelope, queue, None, &decision, false, &trace);
        let yields = std::mem::take(&mut decision.yields);
        let asking = Asking {
            id: &id,
            kind: &envelope.kind,
            queue: &queue.name,
            owner: envelope.owner.as_deref(),
            depth: envelope.depth,
            bounds: kind.spawn,
            at,
        };
        let asked = self.asked(&asking, yields);
        if !asked.envelopes.is_empty() || !asked.chains.is_empty() || !asked.failed.is_empty() {
            let keys = self.keys();
            let accept = || {
                let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
                self.ledger.accept(kind, key, asked.spawned(&keys), asked.chains.clone(), asked.failed.clone())
            };
            let Some(begun) = self.insist("accept what a job asks for", accept).await else { return Fate::Requeue };
            join(self.send_first(begun, at, &trace), self.send_spawned(asked.envelopes, &trace)).await;
        }
        let safe = match (&end, decision.next) {
            (Some(end), _) => self.end_part(&id, end, at).await,
            (None, Next::Snooze { due }) if part => self.put_part_off(&id, due).await,
            (None, _) => true,
        };
        match decision.next {
            _ if !safe => Fate::Requeue,
            _ if end.is_some() => self.forget(&id).await,
            Next::End | Next::Tick { .. } | Next::Gather => self.job_ended(&kind, &envelope, &id, decision, at).await,
            Next::Attempt { attempt, due } => {
                let again = Envelope { attempt, ..envelope.due_at(due) };
                self.send_job(&again, &queue.name, at, &trace).await
            }
            Next::Snooze { due } => {
                let again = envelope.due_at(due);
                self.send_job(&again, &queue.name, at, &trace).await
            }
        }
    }

    /// Keeps what went wrong, and gives up what the job had.
    async fn job_ended(&self, kind: &KindSettings, envelope: &Envelope, id: &str, end: Decision, at: Time) -> Fate {
        if let Some(reason) = &end.reason {
            let record = || {
                let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
                let (code, permanent) = (reason.code().map(Into::into), end.verdict == Verdict::Retired);
                let whole = FailedItem { code, permanent, ..FailedItem::new("", reason.text.clone()) };
                self.ledger.record_failure(kind, key, whole, at)
            };
            if self.insist("keep a failure", record).await.is_none() {
                return Fate::Requeue;
            }
            self.life.reached(Point::FailureKept).await;
        }
        if !self.end_place(kind, envelope, id, end.verdict).await {
            return Fate::Requeue;
        }
        self.forget(id).await
    }

    /// Gives up the place of what has ended as this, where its kind does not keep it longer. Answers whether the ledger
    /// knows.
    pub(super) async fn end_place(&self, kind: &KindSettings, envelope: &Envelope, id: &str, end: Verdict) -> bool {
        let ends = |unique: Unique| match unique.until {
            UniqueUntil::Start => false,
            UniqueUntil::Finish => true,
            // Who asks again after a failure has not had it yet.
            UniqueUntil::Window => end != Verdict::Done,
        };
        if !kind.unique.is_some_and(ends) {
            return true;
        }
        let given = self.give_place(envelope, id).await;
        if given {
            self.life.reached(Point::PlaceGivenAfter).await;
        }
        given
    }

    /// Takes the place of a manual run as the only one of its kind and key; answers why not, if another has it. `lost`:
    /// another worker has begun this attempt before.
    pub(super) async fn place_of_manual(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        id: &str,
        lost: bool,
    ) -> Option<Reason> {
        let unique = kind.unique?;
        if unique.until == UniqueUntil::Start && (envelope.attempt > 1 || lost) {
            // The run has started, and so given its place up.
            return None;
        }
        let taken = self.place_taken(unique, envelope, id).await?;
        if taken.is_none() && unique.until == UniqueUntil::Start {
            self.give_place(envelope, id).await;
        }
        taken
    }

    /// Why a job cannot have its place, `Some(None)` when it has it, and `None` when the ledger could not be reached.
    async fn place_taken(&self, unique: Unique, envelope: &Envelope, id: &str) -> Option<Option<Reason>> {
        let reserve = || {
            let (kind, key) = (envelope.kind.clone(), envelope.key.clone());
            self.ledger.reserve(kind, key, id.to_owned(), unique.window)
        };
        let mut holder = self.insist("reserve a place", reserve).await?;
        if holder != id && unique.until == UniqueUntil::Finish && self.has_ended(&holder, envelope).await? {
            // The worker died between the run's end and giving its place up.
            let release = || self.ledger.release(envelope.kind.clone(), envelope.key.clone(), holder.clone());
            self.insist("give up the place of a run that has ended", release).await?;
            holder = self.insist("reserve a place", reserve).await?;
        }
        if holder == id {
            return Some(None);
        }
        let why = match unique.until {
            UniqueUntil::Window => "has come within `unique_for`",
            UniqueUntil::Finish | UniqueUntil::Start => "has not ended",
        };
        let reason = format!("unique: the job {holder} of the same key {why}");
        Some(Some(Reason::new(Class::Unique, reason)))
    }

    /// Whether a place is that of a manual run which has ended; `None` when the ledger could not be reached.
    async fn has_ended(&self, holder: &str, envelope: &Envelope) -> Option<bool> {
        let ledger = self.ledger.id();
        if ChainRef::epoch_and_tick(ledger, holder).is_none() {
            return Some(false);
        }
        let chains = || self.ledger.chains(envelope.kind.clone(), envelope.key.clone());
        let chains = self.insist("look at a manual run", chains).await?;
        let is_it = |chain: &&ChainView| chain.once && run_id(ledger, chain.hint.epoch, chain.hint.tick) == holder;
        Some(!chains.iter().find(is_it).is_some_and(|chain| chain.state != ChainState::Retired))
    }

    /// What state a job's owner is in, active without one; `None` when the ledger could not be reached.
    async fn owner_of(&self, envelope: &Envelope) -> Option<ChainState> {
        let Some(owner) = &envelope.owner else {
            return Some(ChainState::Active);
        };
        self.insist("ask for an owner", || self.ledger.owner(owner.clone())).await
    }

    /// What becomes of a job whose owner does not [let it start](lets_start).
    async fn owner_says_no(
        &self,
        kind: &KindSettings,
        envelope: &Envelope,
        queue: &QueueRun,
        state: Option<ChainState>,
        trace: &Run,
    ) -> Fate {
        let owner = envelope.owner.as_deref().unwrap_or_default();
        match state {
            Some(ChainState::Retired) => {
                let reason = Reason::new(Class::Owner, format!("its owner {owner} is gone"));
                self.says_no(envelope, queue, Verdict::Dropped, reason, trace);
                let Some(id) = &envelope.id else { return Fate::Ack };
                if kind.unique.is_some() && !self.give_place(envelope, id).await {
                    return Fate::Requeue;
                }
                self.forget(id).await
            }
            Some(_) => {
                let due = self.ledger.now() + OWNER_PAUSED;
                let later = envelope.clone().due_at(due);
                let reason = Reason::new(Class::Owner, format!("its owner {owner} is paused"));
                self.says_no(envelope, queue, Verdict::Snoozed, reason, trace);
                self.send_job(&later, &queue.name, self.ledger.now(), trace).await
            }
            None => Fate::Requeue,
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
    ) -> Option<Fate> {
        let unique = unique?;
        if unique.until == UniqueUntil::Start && envelope.attempt > 1 {
            // It has started, and so given its place up.
            return None;
        }
        match self.place_taken(unique, envelope, id).await {
            None => Some(Fate::Requeue),
            Some(None) => None,
            Some(Some(reason)) => {
                self.says_no(envelope, queue, Verdict::Dropped, reason, trace);
                Some(self.forget(id).await)
            }
        }
    }

    /// Whether the ledger knows now that another job may have the place.
    async fn give_place(&self, envelope: &Envelope, id: &str) -> bool {
        let release = || self.ledger.release(envelope.kind.clone(), envelope.key.clone(), id.to_owned());
        self.insist("give a place up", release).await.is_some()
    }

    /// Counts and logs that a job does not run.
    pub(super) fn says_no(&self, envelope: &Envelope, queue: &QueueRun, verdict: Verdict, reason: Reason, trace: &Run) {
        let decision = Decision::end(verdict, reason);
        self.note(envelope, queue, None, &decision, false, trace);
    }

    /// Where the broker keeps nothing, the ledger does, and now it need not any more.
    pub(super) async fn forget(&self, id: &str) -> Fate {
        if self.dispatch.broker.keeps_messages() {
            return Fate::Ack;
        }
        match self.insist("forget a job", || self.ledger.forget_jobs(vec![id.to_owned()])).await {
            Some(()) => Fate::Ack,
            None => Fate::Requeue,
        }
    }

    pub(super) async fn send_job(&self, envelope: &Envelope, queue: &str, decided: Time, trace: &Run) -> Fate {
        let mut envelope = Envelope { queue: Some(queue.to_owned()), ..envelope.clone() };
        if !self.dispatch.broker.keeps_messages() {
            let body = sealing::encode(&self.keys(), &envelope);
            let keep = || self.ledger.keep_job(envelope.id.clone().unwrap_or_default(), body.clone());
            if self.insist("keep a job", keep).await.is_none() {
                return Fate::Requeue;
            }
        }
        let sending = trace.sends(&mut envelope, queue, || self.ledger.now());
        let sent = self.dispatch.send_surely(&envelope, queue, decided, PUBLISH_PATIENCE).await;
        trace.sent(sending, sent.is_ok());
        match sent {
            Ok(()) => {
                self.life.reached(Point::JobSentAgain).await;
                Fate::Ack
            }
            Err(error) => {
                if self.telemetry.notices.begins("jobs that could not be sent again") {
                    tracing::warn!(kind = envelope.kind, key = envelope.key, %error, "a job could not be sent again; its message is kept");
                }
                Fate::Requeue
            }
        }
    }
}

/// Whether jobs of an owner in this state may start.
fn lets_start(owner: Option<ChainState>) -> bool {
    matches!(owner, Some(ChainState::Active | ChainState::Quarantined))
}
