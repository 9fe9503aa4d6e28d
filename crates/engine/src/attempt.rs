//! An attempt that has been claimed: whether its handler runs, how it ends, and what is written.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use roundelay_config::{KindSettings, OwnSchedule, SpawnSettings};
use roundelay_handler::answer::EXCERPT;
use roundelay_handler::{Context, Reports};
use roundelay_ledger::{Finish, FinishRequest, Grant, Member};
use roundelay_model::calendar::Calendar;
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::encryption::{AssociatedData, Field};
use roundelay_model::failure::FailedItem;
use roundelay_model::job::{ChainRef, Envelope, Job, Tick};
use roundelay_model::outcome::{Course, Decision, NewJob, Next, Outcome, Verdict, decide};
use roundelay_model::pacing::slots::Feedback;
use roundelay_model::reason::{Class, Reason, excerpt};
use roundelay_model::schedule::{Overlap, Ran, Schedule, Setting, phase};
use roundelay_model::{job, outcome};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use crate::core::Core;
use crate::desk::Open;
use crate::life::Point;
use crate::outbox::Asking;
use crate::pipeline::{Ended, Permit};
use crate::queue::QueueRun;
use crate::sealing;
use crate::throttle::upstream::RunUpstream;
use crate::throttle::{Slot, Throttle, Want};
use crate::trace::Run;
use crate::vitals::Lease;

/// The largest thing that a run can hand on to the next, in bytes of compact JSON.
pub const MAX_CARRY: usize = 64 * 1024;
/// The largest batch.
pub const MOST_MEMBERS: usize = 10_000;
/// How long a run is waited for that has to make room for the next occurrence.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// A run that has lost its slot waits for another one no longer than this, out of its own time.
const ANOTHER_WITHIN: Duration = Duration::from_secs(2);

/// An attempt that this worker may run.
pub(super) struct Claimed<'a> {
    pub(super) queue: &'a QueueRun,
    pub(super) kind: &'a KindSettings,
    pub(super) envelope: &'a Envelope,
    pub(super) chain: &'a ChainRef,
    pub(super) grant: Grant,
    pub(super) trace: &'a Run,
    /// How the wall clock stands to the ledger's time.
    pub(super) calendar: Arc<Calendar>,
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

/// How a run has ended.
pub(super) struct Handled {
    pub outcome: Outcome,
    /// Whether the handler was called: a run that got no slot has not been one, so no cooldown counts it.
    pub called: bool,
}

impl Handled {
    /// The handler was not called.
    fn without_call(outcome: Outcome) -> Self {
        Self { outcome, called: false }
    }
}

/// How a run goes on in the ledger's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When it was due.
    pub due: Time,
    /// When it was claimed.
    pub at: Time,
    /// When it ends, unless it has to wait for a slot first.
    pub deadline: Time,
    /// How long it may take.
    pub longest: Duration,
    /// When it ends even if it could take longer.
    pub by: Option<Time>,
}

impl Claimed<'_> {
    /// Whether it is a manual run of its chain.
    fn is_manual(&self) -> bool {
        self.grant.once && self.chain.parent.is_none()
    }

    /// When the chain's ticks come; none for what runs once.
    fn schedule(&self) -> Option<Schedule> {
        if self.grant.once { None } else { self.schedule_of_chain() }
    }

    /// The same, also for a manual run.
    fn schedule_of_chain(&self) -> Option<Schedule> {
        let of_kind = &self.kind.recurrence.as_ref()?.schedule;
        let Some(own) = &self.grant.schedule else { return Some(of_kind.clone()) };
        match OwnSchedule::parse(own).and_then(|own| own.apply(of_kind)) {
            Ok(schedule) => Some(schedule),
            Err(error) => {
                let Envelope { kind, key, .. } = self.envelope;
                tracing::warn!(kind, key, error, "the chain's own schedule cannot be used; its kind's is");
                Some(of_kind.clone())
            }
        }
    }

    /// When it should have started, by the wall clock.
    fn shown_nominal(&self) -> Time {
        let nominal = self.grant.nominal;
        match self.schedule().filter(|_| self.calendar.ahead() != 0) {
            Some(schedule) => schedule.shown_nominal(nominal, self.phase(Some(&schedule)), &self.calendar),
            None => self.calendar.wall(nominal),
        }
    }

    /// The chain's place in its interval. Hashed only for those who ask.
    fn phase(&self, schedule: Option<&Schedule>) -> f64 {
        let spread = schedule.is_some_and(|schedule| schedule.spread_phase);
        if spread { phase(&self.envelope.kind, &self.envelope.key) } else { 0.0 }
    }

    fn limit(&self, schedule: Option<&Schedule>, setting: Setting<'_>) -> Limit {
        let (at, longest) = (self.grant.at, self.kind.timeout);
        let mut limit = Limit { deadline: at + longest, longest, grace: Duration::ZERO, cut: None };
        let of_chain = if self.is_manual() { self.schedule_of_chain() } else { schedule.cloned() };
        let Some(of_chain) = of_chain else { return limit };
        let time_box =
            self.kind.recurrence.as_ref().and_then(|recurrence| recurrence.time_box(&of_chain, at, &self.calendar));
        if let Some((length, grace)) = time_box {
            let cut = format!("its time box of {} was up", short_duration(length));
            limit = Limit { deadline: at + length, longest: length, grace, cut: Some(cut) };
        }
        let Some(schedule) = schedule else { return limit };
        let next = schedule.cancelled_at(self.grant.nominal, at, setting);
        if let Some(deadline) = next.filter(|next| *next < limit.deadline) {
            let cut = Some("overlap: it had to make room for the next occurrence".into());
            limit = Limit { deadline, grace: CANCEL_GRACE, cut, ..limit };
        }
        limit
    }
}

impl Core {
    /// What a claimed tick's handler gets, and what the run before has handed on. Or what becomes of the tick when they
    /// do not open.
    pub(crate) fn contents(&self, claimed: &Claimed<'_>) -> Result<(Value, Value), Box<Decision>> {
        let Claimed { envelope, grant, .. } = claimed;
        let keys = self.publishing.keys();
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

    /// Runs a claimed attempt, unless a guard says no, and writes its end. `None` when the ledger could
    /// not be reached any more.
    pub(super) async fn attempt(&self, claimed: Claimed<'_>, permit: Permit, lease: &Lease<'_>) -> Option<Ended> {
        let Claimed { queue, kind, envelope, chain, grant, trace, .. } = &claimed;
        let id = chain.run_id();
        if grant.lost {
            self.observing.figures(&envelope.kind).inspect(|figures| figures.lost());
        }
        let schedule = claimed.schedule();
        let balance = queue.balances.of(&envelope.kind);
        let phase = claimed.phase(schedule.as_ref());
        // The wall clock may be set while it runs.
        let calendar = OnceLock::new();
        let course = |started: Time, finished: Time| {
            let calendar = &**calendar.get_or_init(|| self.ledger.calendar());
            let setting = Setting { phase, balance: &balance, dice: &self.entropy, calendar };
            let ran = Ran { nominal: grant.nominal, started, finished };
            let bounds = kind.recurrence.as_ref().map_or((Duration::ZERO, Duration::MAX), |r| r.next_in);
            schedule.as_ref().map(|schedule| Course { schedule, ran, setting, bounds })
        };
        // Its chain does not wait for the end of such a run.
        let beside = schedule.as_ref().is_some_and(|schedule| schedule.overlap == Overlap::Allow);
        let (mut members, mut progress) = (Vec::new(), None);
        let mut ran = false;
        // Only a handler has use for them.
        let contents = match (grant.refused, grant.batch) {
            (None, None) => self.contents(&claimed),
            _ => Ok(Default::default()),
        };
        let may_start = grant.refused.is_none() && grant.batch.is_none();
        let taken = match may_start && claimed.is_manual() {
            true => self.unique.place_of_manual(kind, envelope, &id, grant.lost).await,
            false => None,
        };
        // A run whose batch has ended had its place before.
        let has_place = claimed.is_manual() && taken.is_none() && grant.refused.is_none();
        let contents = match taken {
            Some(reason) => Err(Box::new(Decision::end(Verdict::Dropped, reason))),
            None => contents,
        };
        let (at, mut decision) = match (grant.refused, grant.batch, contents) {
            (Some(refusal), ..) => {
                // The next waiter gets the slot sooner.
                drop(permit);
                let place = balance.place();
                let decision = match course(grant.at, grant.at) {
                    Some(course) => {
                        let decision = outcome::refused(course, refusal, place);
                        if let Next::Snooze { due } = decision.next {
                            balance.note(due);
                        }
                        decision
                    }
                    None => outcome::refused_once(refusal),
                };
                (grant.at, decision)
            }
            (None, Some(batch), _) => {
                drop(permit);
                // The run that asked for it ends only now.
                ran = true;
                (grant.at, outcome::gathered(course(grant.last_start, grant.at), batch))
            }
            (None, None, Err(put_off)) => {
                drop(permit);
                (grant.at, *put_off)
            }
            (None, None, Ok((payload, _))) if beside => {
                drop(permit);
                let (kind, key, queue) = (envelope.kind.clone(), envelope.key.clone(), Some(queue.name.to_string()));
                let job = NewJob { kind, key, payload, queue, ..NewJob::default() };
                (grant.at, outcome::handed_on(course(grant.at, grant.at), job))
            }
            (None, None, Ok(contents)) => {
                let setting = Setting { phase, balance: &balance, dice: &self.entropy, calendar: &claimed.calendar };
                let limit = claimed.limit(schedule.as_ref(), setting);
                let desk = self.observing.desk.open(grant.fence);
                let handled = self.run(&claimed, (&id, &desk), contents, &limit, permit, lease).await;
                let mut outcome = handled.outcome;
                ran = handled.called;
                progress = desk.end();
                self.observing.life.reached(Point::Handled).await;
                // It may have been set meanwhile.
                if schedule.as_ref().is_some_and(Schedule::follows_the_wall) {
                    self.wall.read().await;
                }
                let at = self.ledger.now();
                let course = course(grant.at, at);
                let decision = match limit.cut {
                    Some(cut) if at >= limit.deadline && matches!(outcome, Outcome::Retry { .. }) => {
                        outcome::cut(course, Reason::new(Class::TimeBox, cut))
                    }
                    _ => {
                        kind.policies.judge(&kind.retry, &mut outcome, (&envelope.kind, &envelope.key), at);
                        members = self.members(&claimed, &mut outcome, at);
                        let (outcome, retry) = kind.policies.rule(outcome, &kind.retry);
                        let ladder = &self.publishing.dispatch.ladder;
                        decide(course, retry, envelope.attempt, outcome, at, ladder, &self.entropy)
                    }
                };
                (at, decision)
            }
        };
        let keys = self.publishing.keys();
        let asking = Asking {
            id: &id,
            kind: &envelope.kind,
            queue: &queue.name,
            owner: grant.owner.as_deref(),
            depth: grant.depth,
            // The bounds are those of the run that follows.
            bounds: if beside { SpawnSettings { most: 1, depth: u32::MAX } } else { kind.spawn },
            at,
            keys: &keys,
            calendar: &self.ledger.calendar(),
            slack: self.catch_up.slack,
        };
        let mut asked = self.catalog.asked(&asking, std::mem::take(&mut decision.yields));
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
            slack: self.catch_up.slack,
            spawned: asked.spawned(&keys),
            failed: asked.failed.clone(),
            ran,
            left_out: decision.left_out,
            carry,
            parent: chain.parent,
            from_batch: grant.batch.is_some(),
            members,
            chains: asked.chains.clone(),
            progress,
        };
        lease.finishes();
        let finishing = trace.begin();
        let finish = self.ledger.retry_until_stopped("finish", || self.ledger.finish(request.clone())).await;
        trace.ended("finish", finishing);
        self.observing.note(
            envelope,
            queue,
            Some((chain, grant.fence)),
            &decision,
            finish == Some(Finish::Fenced),
            trace,
        );
        // The place of a fenced run is that of the worker that has taken it over.
        let over = matches!(finish, Some(Finish::Applied(_))) && decision.next == Next::End;
        if over && has_place {
            self.unique.end_place(kind, envelope, &id, decision.verdict).await;
        }
        Some(Ended { finish: finish?, at, asked })
    }

    /// Runs the handler as long as the lease holds.
    async fn run(
        &self,
        claimed: &Claimed<'_>,
        (id, desk): (&str, &Open),
        (payload, carry): (Value, Value),
        limit: &Limit,
        permit: Permit,
        lease: &Lease<'_>,
    ) -> Handled {
        let Claimed { queue, kind, envelope, chain, grant, trace, calendar } = claimed;
        let unavailable = match kind.reconcile {
            Some(_) => self.unavailable(&envelope.kind, &envelope.key).await,
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
            nominal: claimed.shown_nominal(),
            deadline: calendar.wall(limit.deadline),
            grace: limit.grace,
            seed: job::seed(&envelope.kind, &envelope.key, &chain.tick.to_string()),
            payload,
        };
        let by = limit.cut.is_some().then_some(limit.deadline);
        let pace = Pace { due: grant.due, at: grant.at, deadline: limit.deadline, longest: limit.longest, by };
        tokio::select! {
            biased;
            () = lease.lost() => {
                let reason = Reason::new(Class::Fenced, "the lease was lost, so the run was ended");
                Handled { outcome: Outcome::Snooze { reason, wait: Duration::ZERO }, called: true }
            }
            handled = self.handle(queue, (job, desk.reporter()), pace, permit, trace) => handled,
        }
    }

    /// The parts of an entity that are not to be tried any more.
    async fn unavailable(&self, kind: &str, key: &str) -> Vec<String> {
        let failures = || self.ledger.failures_of(kind.to_owned(), key.to_owned());
        let failures = self.ledger.retry_until_stopped("ask for failed parts", failures).await.unwrap_or_default();
        let parts = failures.into_iter().filter(|failure| failure.permanent && !failure.item.is_empty());
        parts.map(|failure| failure.item).collect()
    }

    /// What the tick is to wait for. What no worker could run becomes a failed part instead, so that
    /// people see it and the rest goes on.
    fn members(&self, claimed: &Claimed<'_>, outcome: &mut Outcome, at: Time) -> Vec<Member> {
        let Outcome::DoneWith(yields) = outcome else { return Vec::new() };
        if yields.batch.len() > MOST_MEMBERS {
            let reason = format!("a batch of {} jobs; at most {MOST_MEMBERS} are possible", yields.batch.len());
            *outcome = Outcome::fail(Reason::new(Class::Answer, reason));
            return Vec::new();
        }
        let mut names = std::collections::BTreeSet::new();
        let (mut members, keys) = (Vec::with_capacity(yields.batch.len()), self.publishing.keys());
        for job in std::mem::take(&mut yields.batch) {
            let item = format!("batch {} {}", job.kind, job.key);
            let twice = !names.insert((job.kind.clone(), job.key.clone()));
            let envelope = if twice {
                Err("it is in the batch twice".into())
            } else {
                self.catalog.envelope(String::from("member"), &claimed.queue.name, job, at)
            };
            match envelope {
                Ok(Envelope { kind, key, queue, payload, due, .. }) => members.push(Member {
                    payload: keys.sealed(AssociatedData::new(Field::Payload, &kind, &key), payload.to_string()),
                    kind,
                    key,
                    queue: queue.unwrap_or_default(),
                    due: due.unwrap_or(at),
                    depth: claimed.grant.depth,
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
        members
    }

    /// The slot of a throttle with keys, which depends on the job. A job that would wait long is postponed
    /// for about that long, so that others can start in the meantime.
    async fn slot_of_key(&self, queue: &QueueRun, job: &Job, want: Want) -> Result<Option<(Slot, String)>, Outcome> {
        let Some((throttle, figures)) = &queue.throttle else { return Ok(None) };
        let settings = throttle.settings();
        let Some(path) = &settings.key else { return Ok(None) };
        let key = path.of(job);
        let _waiting = figures.wait();
        tokio::select! {
            biased;
            () = self.stop.stopping.cancelled() => {
                let reason = Reason::new(Class::Stopped, "the worker stopped before there was a slot");
                Err(Outcome::Snooze { reason, wait: Duration::ZERO })
            }
            slot = throttle.slot_within(&key, want, settings.block) => match slot {
                Ok(slot) => Ok(Some((slot, key))),
                Err(wait) => {
                    let words = format!("the throttle {} has no slot for {key} yet", throttle.name());
                    Err(Outcome::Snooze { reason: Reason::new(Class::Slot, words), wait })
                }
            }
        }
    }

    /// Runs the handler until its deadline and the grace after it; whatever goes wrong in it becomes an
    /// outcome.
    pub(super) async fn handle(
        &self,
        queue: &QueueRun,
        (mut job, reports): (Job, Arc<dyn Reports>),
        Pace { due, at, mut deadline, longest, by }: Pace,
        permit: Permit,
        trace: &Run,
    ) -> Handled {
        let Some(handler) = self.catalog.handlers.get(&job.kind) else {
            let reason = format!("this worker has no handler for {}", job.kind);
            return Handled::without_call(Outcome::retry(Reason::new(Class::NoHandler, reason)));
        };
        // Held until the handler has ended.
        let Permit { slot, blocked, _room } = permit;
        if let Some(wait) = blocked {
            let reason = Reason::new(Class::Slot, "no slot of its throttle in time");
            return Handled::without_call(Outcome::Snooze { reason, wait });
        }
        let want = Want { priority: queue.priority, due, cost: self.catalog.cost_of(&job.kind), probe: false };
        let waiting = trace.begin();
        let slot = match self.slot_of_key(queue, &job, want).await {
            Ok(Some(of_key)) => {
                let name = || queue.throttle.as_ref().map(|(throttle, _)| throttle.name());
                trace.spent("slot", (waiting, trace.begin()), name);
                Some(of_key)
            }
            Ok(None) => slot.map(|slot| (slot, String::new())),
            Err(snooze) => return Handled::without_call(snooze),
        };
        let mut own = None;
        if slot.is_none() && queue.throttle.is_some() {
            // Its throttle had a key when leave was given, and has none now.
            let reason = Reason::new(Class::Slot, "the throttle was configured anew meanwhile");
            return Handled::without_call(Outcome::Snooze { reason, wait: Duration::ZERO });
        }
        if let Some((slot, key)) = slot
            && let Some((throttle, _)) = &queue.throttle
        {
            let Some(probe) = start_with(slot, throttle, &key, want).await else {
                let reason = Reason::new(Class::Slot, "the slot for it was over, or held, before it could start");
                return Handled::without_call(Outcome::Snooze { reason, wait: Duration::ZERO });
            };
            own = Some((throttle.clone(), key, probe));
            // What it has waited for the slot is not its own time.
            let until = self.ledger.now() + longest;
            deadline = by.map_or(until, |by| by.min(until));
            job.deadline = self.ledger.calendar().wall(deadline);
        }
        let upstream = RunUpstream::new(self.throttles.clone(), own, want, self.throttles.keys_of(&job));
        let patience = deadline.since(self.ledger.now()) + job.grace;
        let kind = self.catalog.kind(&job.kind);
        let (_running, figures, since) =
            (queue.figures.started(at.since(due)), self.observing.figures(&job.kind), Instant::now());
        let (span, handling) = (trace.handler(), trace.begin());
        let context = Context::new(reports).started(upstream.clone(), span.clone());
        let run = AssertUnwindSafe(handler.run(job, context)).catch_unwind();
        let outcome = tokio::select! {
            biased;
            ended = timeout(patience, run) => match ended {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => {
                    Outcome::retry(Reason::new(Class::Panic, format!("the handler panicked: {}", words(&*panic))))
                }
                Err(_) => Outcome::retry(Reason::new(Class::Timeout, "not done by its deadline")),
            },
            () = self.stop.abort.cancelled() => {
                let reason = Reason::new(Class::Stopped, "the worker stopped");
                Outcome::Snooze { reason, wait: Duration::ZERO }
            }
        };
        trace.handled(&span, handling, &outcome);
        if let Some(figures) = figures {
            figures.ran(since.elapsed());
        }
        // An upstream is not broken by what the reason's policy takes for no failure of it.
        let ruled = kind.filter(|_| outcome.reason().is_some());
        let ruled = ruled.map(|kind| kind.policies.rule(outcome.clone(), &kind.retry).0);
        tokio::select! {
            biased;
            () = upstream.ended(ruled.as_ref().unwrap_or(&outcome), longest) => {}
            () = self.stop.abort.cancelled() => {}
        }
        Handled { outcome, called: true }
    }
}

/// Starts with a slot; answers whether the start is to try if the upstream works again. A slot that was over
/// before it could be used, on a machine or with a ledger that is slow, is followed by another, if that comes
/// soon: to put the job off takes longer, and with many keys no other job could use the lost slot.
async fn start_with(mut slot: Slot, throttle: &Throttle, key: &str, want: Want) -> Option<bool> {
    let mut until = None;
    loop {
        let probe = slot.probe;
        if slot.start().await {
            return Some(probe);
        }
        if probe {
            // No other worker would probe before this one's time was over.
            throttle.tell(key, Feedback::Lost).await;
        }
        if throttle.is_held(key) {
            return None;
        }
        let until = *until.get_or_insert_with(|| Instant::now() + throttle.settings().block.min(ANOTHER_WITHIN));
        slot = timeout_at(until, throttle.slot(key, want)).await.ok()?;
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

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no message")
}
