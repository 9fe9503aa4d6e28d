//! The life of a chain's tick: the answer to its claim, and the run that the claim grants.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join;
use roundelay_broker::Delivery;
use roundelay_config::{MAX_HELD, OwnSchedule, SpawnSettings, Takeover};
use roundelay_handler::answer::EXCERPT;
use roundelay_ledger::{
    AfterClaim, AfterFinish, Claim, ClaimRequest, Finish, FinishRequest, Grant, Hint, Member, after_claim, after_finish,
};
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::encryption::{AssociatedData, Field};
use roundelay_model::failure::FailedItem;
use roundelay_model::guard::{Guard, Refusal};
use roundelay_model::job::{ChainRef, Envelope, Job, Tick};
use roundelay_model::outcome::{Course, Decision, NewJob, Next, Outcome, Verdict};
use roundelay_model::progress::Progress;
use roundelay_model::reason::{Class, Reason, excerpt};
use roundelay_model::schedule::{Balance, Overlap, Ran, Schedule, Setting, phase};
use roundelay_model::waits::Waits;
use roundelay_model::wall_clock::WallClock;
use roundelay_model::{job, outcome};
use serde_json::Value;
use tokio::time::sleep;

use crate::call::{Call, Pace};
use crate::claim::Answered;
use crate::core::Core;
use crate::desk::Open;
use crate::dispatch::Decided;
use crate::fresh::{self, Visit, Visited};
use crate::life::Point;
use crate::outbox::{Asked, MAX_CARRY};
use crate::permit::Permit;
use crate::pipeline::{Asks, Source, Start, Work};
use crate::queue::QueueRun;
use crate::sealing;
use crate::settlement::Settlement;
use crate::telemetry::Count;
use crate::trace::Run;
use crate::vitals::Lease;

/// The largest batch, in jobs.
pub const MAX_MEMBERS: usize = 10_000;
/// How long a run is waited for that has to make room for the next occurrence.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// An attempt that must not run beside one that runs now is postponed by a time between these two.
const SUSPECT_WAITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));

/// An attempt whose end was written or refused.
pub(super) struct Ended {
    pub(super) finish: Finish,
    /// The time on which the decision rests.
    pub(super) at: Time,
    pub(super) asked: Asked,
}

/// The run of a claimed tick.
struct ChainRun<'a> {
    core: &'a Core,
    work: Work<'a>,
    chain: &'a ChainRef,
    grant: Grant,
    lease: &'a Lease<'a>,
    /// When the chain's ticks come; none for what runs once.
    schedule: Option<Schedule>,
    /// The chain's place in its interval.
    phase: f64,
    balance: Arc<Balance>,
    /// How the wall clock stood to the ledger's time at the claim.
    wall_clock: Arc<WallClock>,
    /// The same at the end, since the wall clock may be set while the handler runs.
    wall_clock_at_end: OnceLock<Arc<WallClock>>,
    /// How long the tick has waited for its tenant's quota and turn.
    waits: Waits,
    limit: Option<Limit>,
    /// Whether the handler was called.
    ran: bool,
    progress: Option<Progress>,
    members: Vec<Member>,
    /// Where the interval follows from what is learned.
    visit: Option<Visit>,
    /// What the visit has come to.
    visited: Option<Visited>,
    /// Whether a manual run has the place of its kind and key.
    has_place: bool,
    ended: Option<Ended>,
}

/// By when a run has to be over.
struct Limit {
    deadline: Time,
    /// How long it may take, counted from its start.
    longest: Duration,
    /// How long it is waited for then.
    grace: Duration,
    /// Why it ends then, if that is no failure.
    cut: Option<String>,
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
    /// The life of a chain's tick.
    pub(super) async fn tick(
        &self,
        queue: &QueueRun,
        envelope: &Envelope,
        chain: &ChainRef,
        delivery: &Delivery,
    ) -> Settlement {
        let in_hand = self.in_hand.take(chain.epoch);
        let due = envelope.due.unwrap_or_default();
        let now = self.ledger.now();
        queue.progressed_to(due.min(now), delivery.asleep_until.is_some(), now);
        let handed_late = queue.was_handed_late(now.since(due));
        let Some(kind) = self.catalog.kind(&envelope.kind) else { return Settlement::Requeue };
        // A slot is for now, and an occurrence by the wall clock is judged at its time.
        let may_claim_ahead = queue.throttle.is_none() && !kind.follows_the_wall();
        let ahead = if may_claim_ahead { self.claim_time.ahead() } else { Duration::ZERO };
        if let Some(settlement) = self.publishing.wait_until_due(envelope, ahead, &queue.name).await {
            return settlement;
        }
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
            hint: hint.clone(),
            worker: self.worker.clone(),
            session: 0,
            again: false,
            takeover,
            guard: match &kind.recurrence {
                Some(recurrence) => recurrence.guard(self.catch_up.slack, &self.ledger.wall_clock()),
                None => Guard::default(),
            },
            recurs: kind.recurrence.is_some(),
            prepared: 0,
            ahead,
        };
        let trace = self.observing.tracer.run(envelope, &queue.name, || self.ledger.now());
        let tenant = envelope.tenant.clone().unwrap_or_default();
        let Some(answered) = self.claim(queue, delivery, &in_hand, (request, &tenant), &trace).await else {
            return Settlement::Requeue;
        };
        let Answered { permit, claim, term, _kept } = answered;
        let stale = matches!(claim, Claim::Stale(_));
        match &claim {
            Claim::Stale(_) => self.observing.telemetry.count(Count::Stale),
            Claim::Runs | Claim::Waits { .. } | Claim::Idle => self.observing.telemetry.count(Count::Idle),
            Claim::SetAside => {
                self.observing.set_aside(envelope, queue, "look at it, and let it go on by `roundelay recover`");
            }
            _ => {}
        }
        match after_claim(claim, &hint) {
            AfterClaim::Run(grant) => {
                self.observing.life.reached(Point::Claimed).await;
                if grant.refused == Some(Refusal::Deaths) {
                    self.observing.set_aside(envelope, queue, "it has ended as failed");
                }
                let lease = self.vitals.hold(term, chain.epoch, grant.fence);
                let id = chain.run_id();
                let work = Work { queue, kind: &kind, envelope, id: &id, trace: &trace };
                let waits = self.waits(queue, envelope, &tenant, (&permit, &grant));
                let run = ChainRun { waits, ..ChainRun::new(self, work, chain, grant, &lease) };
                let ended = letting_go(delivery, run.live(permit)).await;
                drop(lease);
                let (finish, rest) = ended.map(|ended| (ended.finish, (ended.at, ended.asked))).unzip();
                match (after_finish(finish, chain.epoch), rest) {
                    (AfterFinish::Send { own, others }, Some((at, asked))) => {
                        self.observing.life.reached(Point::Finished).await;
                        let decided = Decided { at, handed_late };
                        let successor = self.publishing.send_all((own, others), chain.epoch, decided, &trace);
                        join(successor, self.publishing.send_spawned(asked.envelopes, &trace)).await.0
                    }
                    (AfterFinish::Acknowledge, _) => Settlement::Ack,
                    _ => Settlement::Requeue,
                }
            }
            AfterClaim::Send(successor) => {
                drop(permit);
                self.observing.life.reached(Point::Stale).await;
                self.publishing.publish_successor(&successor, self.ledger.now().into(), &Run::default()).await
            }
            AfterClaim::Acknowledge => {
                drop(permit);
                if stale {
                    self.observing.life.reached(Point::Stale).await;
                }
                Settlement::Ack
            }
            AfterClaim::Postpone(until) => {
                drop(permit);
                let wait = || self.ledger.now() + self.entropy.between(SUSPECT_WAITS.0, SUSPECT_WAITS.1);
                let later = Envelope { due: Some(until.unwrap_or_else(wait)), ..envelope.clone() };
                self.publishing.postpone(&later, &queue.name).await
            }
            AfterClaim::Replace(current) => {
                drop(permit);
                self.publishing.postpone(&current.envelope(self.ledger.id()), &current.queue).await
            }
            AfterClaim::Quarantine(why) => self.publishing.quarantine(delivery, &why).await,
        }
    }

    /// How long a tick has waited for its tenant's quota and turn. One from the backlog has waited there since it was due,
    /// or since this worker began: by then there may have been no worker.
    fn waits(&self, queue: &QueueRun, envelope: &Envelope, tenant: &str, (permit, grant): (&Permit, &Grant)) -> Waits {
        let Waits { quota, turn } = permit.waits;
        let behind = match queue.fair.began() {
            Some(began) if envelope.from_backlog => grant.at.since(grant.due.max(began)),
            _ => return permit.waits,
        };
        if self.is_bound_by_quota(queue, tenant) {
            Waits { quota: quota.max(behind), turn }
        } else {
            Waits { quota, turn: turn.max(behind) }
        }
    }

    /// The parts of an entity that are not to be tried any more.
    async fn unavailable(&self, kind: &str, key: &str) -> Vec<String> {
        let failures = || self.ledger.failures_of(kind.to_owned(), key.to_owned());
        let failures = self.ledger.retry_until_stopped("ask for failed parts", failures).await.unwrap_or_default();
        let parts = failures.into_iter().filter(|failure| failure.permanent && !failure.item.is_empty());
        parts.map(|failure| failure.item).collect()
    }
}

/// When the ticks of a chain come, by its own schedule or else by its kind's.
fn schedule_of_chain(work: &Work<'_>, grant: &Grant) -> Option<Schedule> {
    let of_kind = &work.kind.recurrence.as_ref()?.schedule;
    let Some(own) = &grant.schedule else { return Some(of_kind.clone()) };
    match OwnSchedule::parse(own).and_then(|own| own.apply(of_kind)) {
        Ok(schedule) => Some(schedule),
        Err(error) => {
            let Envelope { kind, key, .. } = work.envelope;
            tracing::warn!(kind, key, error, "the chain's own schedule cannot be used; its kind's is");
            Some(of_kind.clone())
        }
    }
}

impl<'a> ChainRun<'a> {
    fn new(core: &'a Core, work: Work<'a>, chain: &'a ChainRef, grant: Grant, lease: &'a Lease<'a>) -> Self {
        let Envelope { kind, key, .. } = work.envelope;
        let mut schedule = if grant.once { None } else { schedule_of_chain(&work, &grant) };
        let leaves_times = |own: &String| OwnSchedule::parse(own).is_ok_and(|own| !own.names_times());
        let fresh = work.kind.fresh().filter(|_| grant.schedule.as_ref().is_none_or(leaves_times));
        let visit = fresh.zip(schedule.as_mut()).map(|(fresh, schedule)| {
            let visit = Visit::new(fresh, &core.prices, grant.learned.as_deref(), (grant.at, grant.last_start));
            *schedule = fresh::schedule(schedule, visit.every(fresh));
            visit
        });
        // Hashed only for schedules that ask for it.
        let spread = schedule.as_ref().is_some_and(|schedule| schedule.spread_phase);
        Self {
            core,
            work,
            chain,
            grant,
            lease,
            phase: if spread { phase(kind, key) } else { 0.0 },
            balance: work.queue.balances.of(kind),
            schedule,
            wall_clock: core.ledger.wall_clock(),
            wall_clock_at_end: OnceLock::new(),
            waits: Waits::default(),
            limit: None,
            ran: false,
            progress: None,
            members: Vec::new(),
            visit,
            visited: None,
            has_place: false,
            ended: None,
        }
    }

    /// Runs the tick, unless a guard says no, and writes its end. `None` when the ledger could not be reached any more.
    async fn live(mut self, permit: Permit) -> Option<Ended> {
        if self.grant.lost {
            self.core.observing.figures(&self.work.envelope.kind).inspect(|figures| figures.lost());
        }
        // What was claimed ahead is not due yet.
        self.core.ledger.reaches(self.grant.at).await;
        let start = self.start(permit).await;
        self.core.run(self.work, &mut self, start).await;
        self.ended
    }

    /// Whether it is a manual run of its chain.
    fn is_manual(&self) -> bool {
        self.grant.once && self.chain.parent.is_none()
    }

    /// Whether the chain does not wait for the end of its runs.
    fn runs_beside(&self) -> bool {
        self.schedule.as_ref().is_some_and(|schedule| schedule.overlap == Overlap::Allow)
    }

    /// What the outcome says of how often the entity changes decides when the next visit comes.
    fn learn(&mut self, outcome: &mut Outcome, at: Time) {
        let Work { kind, envelope, .. } = self.work;
        let (Some(visit), Some(fresh)) = (&mut self.visit, kind.fresh()) else { return };
        let wall_clock = self.core.ledger.wall_clock();
        self.visited = visit.ended(&envelope.kind, fresh, outcome, (at, &wall_clock));
        if let (Some(Visited { every, .. }), Some(schedule)) = (self.visited, &mut self.schedule) {
            *schedule = fresh::schedule(schedule, every);
        }
    }

    fn setting<'s>(&'s self, wall_clock: &'s WallClock) -> Setting<'s> {
        Setting { phase: self.phase, balance: &self.balance, dice: &self.core.entropy, wall_clock }
    }

    fn course_of(&self, started: Time, finished: Time) -> Option<Course<'_>> {
        let schedule = self.schedule.as_ref()?;
        let setting = self.setting(self.wall_clock_at_end.get_or_init(|| self.core.ledger.wall_clock()));
        let ran = Ran { nominal: self.grant.nominal, started, finished };
        let bounds = self.work.kind.recurrence.as_ref().map_or((Duration::ZERO, Duration::MAX), |r| r.next_in);
        Some(Course { schedule, ran, setting, bounds })
    }

    /// When it should have started, by the wall clock.
    fn shown_nominal(&self) -> Time {
        let nominal = self.grant.nominal;
        match self.schedule.as_ref().filter(|_| self.wall_clock.ahead() != 0) {
            Some(schedule) => schedule.shown_nominal(nominal, self.phase, &self.wall_clock),
            None => self.wall_clock.wall(nominal),
        }
    }

    /// Begins with the handler unless what follows is known without it.
    async fn start(&mut self, permit: Permit) -> Start {
        let (Work { kind, envelope, queue, id, .. }, at) = (self.work, self.grant.at);
        let decided = |decision| Start::Decided(at, Box::new(decision));
        if let Some(refusal) = self.grant.refused {
            // The next waiter gets the slot sooner.
            drop(permit);
            return decided(self.refused(refusal));
        }
        self.has_place = self.is_manual();
        if let Some(batch) = self.grant.batch {
            drop(permit);
            // The run that asked for it ends only now. Its place it had before.
            self.ran = true;
            return decided(outcome::gathered(self.course_of(self.grant.last_start, at), batch));
        }
        if self.is_manual()
            && let Some(reason) = self.core.unique.place_of_manual(kind, envelope, id, self.grant.lost).await
        {
            self.has_place = false;
            return decided(Decision::end(Verdict::Dropped, reason));
        }
        let (payload, carry) = match self.contents() {
            Ok(contents) => contents,
            Err(put_off) => return Start::Decided(at, put_off),
        };
        if self.runs_beside() {
            let (kind, key, queue) = (envelope.kind.clone(), envelope.key.clone(), Some(queue.name.to_string()));
            let job = NewJob { kind, key, payload, queue, ..NewJob::default() };
            return decided(outcome::handed_on(self.course_of(at, at), job));
        }
        self.call(payload, carry, permit).await
    }

    fn refused(&self, refusal: Refusal) -> Decision {
        let place = self.balance.place();
        let mut decision = match self.course_of(self.grant.at, self.grant.at) {
            Some(course) => outcome::refused(course, refusal, place),
            None => outcome::refused_once(refusal),
        };
        if let Next::Snooze { due } = decision.next {
            self.balance.note(due);
        }
        if let Refusal::Late { by } = refusal {
            decision.reason = decision.reason.map(|reason| self.waits.explain(by).of(reason));
        }
        decision
    }

    /// What a claimed tick's handler gets, and what the run before has handed on. Or what becomes of the tick when they
    /// do not open.
    fn contents(&self) -> Result<(Value, Value), Box<Decision>> {
        let (Work { envelope, .. }, grant) = (self.work, &self.grant);
        let keys = self.core.publishing.keys();
        let open = |field, what: &str, text: &str| {
            let opened = keys.opened(AssociatedData::new(field, &envelope.kind, &envelope.key), text);
            opened.map(|text| serde_json::from_str(&text).unwrap_or(Value::Null)).map_err(|why| {
                let due = grant.at + sealing::wait(grant.nominal, grant.at);
                Box::new(Decision::put_off(due, Reason::new(Class::Sealed, format!("{what} {why}"))))
            })
        };
        let carry = match &grant.carry {
            Some(carry) => open(Field::Carry, "what was handed on", carry)?,
            None => Value::Null,
        };
        Ok((open(Field::Payload, "its payload", &grant.payload)?, carry))
    }

    /// What the handler is called with.
    async fn call(&mut self, payload: Value, carry: Value, permit: Permit) -> Start {
        let (Work { queue, kind, envelope, id, .. }, grant, chain) = (self.work, &self.grant, self.chain);
        if let (Some(visit), Some(fresh)) = (&mut self.visit, kind.fresh()) {
            visit.weigh(fresh, &payload);
        }
        let limit = self.limit();
        let desk = self.core.observing.desk.open(grant.fence);
        let unavailable = match kind.reconcile {
            Some(_) => self.core.unavailable(&envelope.kind, &envelope.key).await,
            None => Vec::new(),
        };
        let job = Job {
            id: id.to_owned(),
            kind: envelope.kind.clone(),
            key: envelope.key.clone(),
            queue: queue.name.to_string(),
            tick: Some(Tick { epoch: chain.epoch, tick: chain.tick, fence: grant.fence }),
            attempt: envelope.attempt,
            owner: grant.owner.clone(),
            carry,
            unavailable,
            nominal: self.shown_nominal(),
            deadline: self.wall_clock.wall(limit.deadline),
            grace: limit.grace,
            seed: job::seed(&envelope.kind, &envelope.key, &chain.tick.to_string()),
            payload,
        };
        let by = limit.cut.is_some().then_some(limit.deadline);
        let pace = Pace { due: grant.due, deadline: limit.deadline, longest: limit.longest, by };
        self.limit = Some(limit);
        Start::Call(Box::new(Call { job, pace, permit }), desk)
    }

    /// By when the run has to be over.
    fn limit(&self) -> Limit {
        let Work { kind, .. } = self.work;
        let (at, longest) = (self.grant.at, kind.timeout);
        let mut limit = Limit { deadline: at + longest, longest, grace: Duration::ZERO, cut: None };
        let of_chain =
            if self.is_manual() { schedule_of_chain(&self.work, &self.grant) } else { self.schedule.clone() };
        let Some(of_chain) = of_chain else { return limit };
        let time_box =
            kind.recurrence.as_ref().and_then(|recurrence| recurrence.time_box(&of_chain, at, &self.wall_clock));
        if let Some((length, grace)) = time_box {
            let cut = format!("its time box of {} was up", short_duration(length));
            limit = Limit { deadline: at + length, longest: length, grace, cut: Some(cut) };
        }
        let Some(schedule) = &self.schedule else { return limit };
        let next = schedule.cancelled_at(self.grant.nominal, at, self.setting(&self.wall_clock));
        if let Some(deadline) = next.filter(|next| *next < limit.deadline) {
            let cut = Some("overlap: it had to make room for the next occurrence".into());
            limit = Limit { deadline, grace: CANCEL_GRACE, cut, ..limit };
        }
        limit
    }
}

#[async_trait]
impl Source for ChainRun<'_> {
    fn lease(&self) -> Option<&Lease<'_>> {
        Some(self.lease)
    }

    async fn handled(&mut self, desk: Open, called: bool) -> bool {
        self.ran = called;
        self.progress = desk.end();
        self.core.observing.life.reached(Point::Handled).await;
        // The wall clock may have been set meanwhile.
        if self.schedule.as_ref().is_some_and(Schedule::follows_the_wall) {
            self.core.wall.read().await;
        }
        true
    }

    fn cut(&self, outcome: &Outcome, at: Time) -> Option<Decision> {
        let limit = self.limit.as_ref().filter(|limit| at >= limit.deadline)?;
        let cut = limit.cut.as_ref().filter(|_| matches!(outcome, Outcome::Retry { .. }))?;
        Some(outcome::cut(self.course(at), Reason::new(Class::TimeBox, cut.clone())))
    }

    /// What no worker could run becomes a failed part instead, so that people see it and the rest goes on.
    fn gather(&mut self, outcome: &mut Outcome, at: Time) {
        self.learn(outcome, at);
        let Outcome::DoneWith(yields) = outcome else { return };
        if yields.batch.len() > MAX_MEMBERS {
            let reason = format!("a batch of {} jobs; at most {MAX_MEMBERS} are possible", yields.batch.len());
            *outcome = Outcome::fail(Reason::new(Class::Answer, reason));
            return;
        }
        let mut names = std::collections::BTreeSet::new();
        let (mut members, keys) = (Vec::with_capacity(yields.batch.len()), self.core.publishing.keys());
        for job in std::mem::take(&mut yields.batch) {
            let item = format!("batch {} {}", job.kind, job.key);
            let twice = !names.insert((job.kind.clone(), job.key.clone()));
            let envelope = if twice {
                Err("it is in the batch twice".into())
            } else {
                self.core.catalog.envelope(String::from("member"), &self.work.queue.name, job, at)
            };
            match envelope {
                Ok(Envelope { kind, key, queue, payload, due, .. }) => members.push(Member {
                    payload: keys.sealed(AssociatedData::new(Field::Payload, &kind, &key), payload.to_string()),
                    kind,
                    key,
                    queue: queue.unwrap_or_default(),
                    due: due.unwrap_or(at),
                    depth: self.grant.depth,
                }),
                Err(reason) => {
                    yields.failed.push(FailedItem::refused(excerpt(item.as_bytes(), EXCERPT), reason));
                }
            }
        }
        // Only that there is something to wait for counts from here on.
        if !members.is_empty() {
            yields.batch = vec![NewJob::default()];
        }
        self.members = members;
    }

    fn course(&self, at: Time) -> Option<Course<'_>> {
        self.course_of(self.grant.at, at)
    }

    fn asks(&self) -> Asks<'_> {
        // The bounds are those of the run that follows.
        let beside = SpawnSettings { most: 1, depth: u32::MAX };
        let bounds = if self.runs_beside() { beside } else { self.work.kind.spawn };
        Asks { owner: self.grant.owner.as_deref(), depth: self.grant.depth, bounds }
    }

    async fn end(&mut self, at: Time, mut decision: Decision, mut asked: Asked) {
        decision.left_out.hindrance = self.waits.explain(self.grant.at.since(self.grant.due));
        let Self { core, work: Work { queue, kind, envelope, id, trace }, chain, grant, lease, .. } = self;
        let keys = core.publishing.keys();
        let carry = carried(asked.carry.take(), &mut asked.failed);
        let carry =
            carry.map(|text| keys.sealed(AssociatedData::new(Field::Carry, &envelope.kind, &envelope.key), text));
        let request = FinishRequest {
            epoch: chain.epoch,
            tick: chain.tick,
            attempt: envelope.attempt,
            fence: grant.fence,
            at,
            next: decision.next,
            verdict: decision.verdict,
            reason: decision.reason.as_ref().map(|reason| reason.text.clone()),
            code: decision.reason.as_ref().and_then(|reason| reason.code().map(Into::into)),
            slack: core.catch_up.slack,
            spawned: asked.spawned(&keys),
            failed: asked.failed.clone(),
            ran: self.ran,
            left_out: decision.left_out,
            carry,
            learned: self.visited.map(|visited| visited.known.to_bytes().to_vec()),
            parent: chain.parent,
            from_batch: grant.batch.is_some(),
            members: std::mem::take(&mut self.members),
            chains: asked.chains.clone(),
            progress: self.progress.take(),
        };
        lease.finishes();
        let finishing = trace.begin();
        let finish = core.ledger.retry_until_stopped("finish", || core.ledger.finish(request.clone())).await;
        trace.ended("finish", finishing);
        let fenced = finish == Some(Finish::Fenced);
        if let (Some(Visited { gap, every, known }), false) = (self.visited, fenced) {
            core.observing.figures(&envelope.kind).inspect(|figures| figures.visited(gap, every, &known));
        }
        core.observing.note(envelope, queue, Some((chain, grant.fence)), &decision, fenced, trace);
        // The place of a fenced run is that of the worker that has taken it over.
        let over = matches!(finish, Some(Finish::Applied(_))) && decision.next == Next::End;
        if over && self.has_place {
            core.unique.end_place(kind, envelope, id, decision.verdict).await;
        }
        self.ended = finish.map(|finish| Ended { finish, at, asked });
    }
}

/// What is handed on, as the ledger keeps it. What is too large is not kept, and becomes a failed part that people see.
fn carried(carry: Option<Value>, failed: &mut Vec<FailedItem>) -> Option<String> {
    let text = carry?.to_string();
    if text.len() <= MAX_CARRY {
        return Some(text);
    }
    let reason =
        format!("it has {} bytes as compact JSON; at most {MAX_CARRY} are kept, so the last one stays", text.len());
    failed.push(FailedItem::refused("carry", reason));
    None
}
