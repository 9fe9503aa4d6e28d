//! The call of a handler: the slot of a throttle with keys, the handler with its deadline, and what the throttle is
//! told.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use roundelay_handler::{Context, Reports};
use roundelay_model::clock::Time;
use roundelay_model::job::Job;
use roundelay_model::outcome::Outcome;
use roundelay_model::pacing::slots::Feedback;
use roundelay_model::reason::{Class, Reason};
use tokio::time::{Instant, timeout, timeout_at};

use crate::core::Core;
use crate::permit::Permit;
use crate::queue::QueueRun;
use crate::throttle::upstream::RunUpstream;
use crate::throttle::{Slot, Throttle, Want};
use crate::trace::Run;

/// A run that has lost its slot waits for another one no longer than this, out of its own time.
const ANOTHER_WITHIN: Duration = Duration::from_secs(2);

/// What a handler is called with.
pub(super) struct Call {
    pub job: Job,
    pub pace: Pace,
    pub permit: Permit,
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
    /// When it ends, unless it has to wait for a slot first.
    pub deadline: Time,
    /// How long it may take.
    pub longest: Duration,
    /// When it ends even if it could take longer.
    pub by: Option<Time>,
}

impl Core {
    /// The slot of a throttle with keys, which depends on the job. A job that would wait long is postponed
    /// for about that long, so that others can start in the meantime.
    async fn slot_of_key(&self, queue: &QueueRun, job: &Job, want: &Want) -> Result<Option<(Slot, String)>, Outcome> {
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
            slot = throttle.slot_within(&key, want.clone(), settings.block) => match slot {
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
    pub(super) async fn call(&self, queue: &QueueRun, call: Call, reports: Arc<dyn Reports>, trace: &Run) -> Handled {
        let Call { mut job, pace: Pace { due, mut deadline, longest, by }, permit } = call;
        let Some(handler) = self.catalog.handlers.get(&job.kind) else {
            let reason = format!("this worker has no handler for {}", job.kind);
            return Handled::without_call(Outcome::retry(Reason::new(Class::NoHandler, reason)));
        };
        // Held until the handler has ended.
        let Permit { slot, blocked, waits: _, _room, _seat } = permit;
        if let Some(wait) = blocked {
            let reason = Reason::new(Class::Slot, "no slot of its throttle in time");
            return Handled::without_call(Outcome::Snooze { reason, wait });
        }
        let tenant = queue.tenant_of(&job);
        let cost = self.catalog.cost_of(&job.kind);
        let want = Want { priority: queue.priority, tenant, due, cost, ..Want::default() };
        let own = match self.use_slot(queue, &job, slot, &want, trace).await {
            Ok(own) => own,
            Err(snooze) => return Handled::without_call(snooze),
        };
        if own.is_some() {
            // What it has waited for the slot is not its own time.
            let until = self.ledger.now() + longest;
            deadline = by.map_or(until, |by| by.min(until));
            job.deadline = self.ledger.wall_clock().wall(deadline);
        }
        let upstream = RunUpstream::new(self.throttles.clone(), own, want, self.throttles.keys_of(&job));
        let patience = deadline.since(self.ledger.now()) + job.grace;
        let kind = self.catalog.kind(&job.kind);
        let late = self.ledger.now().since(due);
        let (_running, figures, since) =
            (queue.figures.started(late), self.observing.figures(&job.kind), Instant::now());
        figures.inspect(|figures| figures.started(late));
        let (span, handling) = (trace.handler(), trace.begin());
        let context = Context::new(reports).started(upstream.clone(), span.clone());
        let outcome = self.outcome_within(patience, handler.run(job, context)).await;
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

    /// Waits for a handler this long, unless the worker stops at once.
    async fn outcome_within(&self, patience: Duration, run: impl Future<Output = Outcome>) -> Outcome {
        tokio::select! {
            biased;
            ended = timeout(patience, AssertUnwindSafe(run).catch_unwind()) => match ended {
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
        }
    }

    /// Starts with a slot of the queue's throttle: with that of the permit, or with one for the job's key. Answers what
    /// was used: the throttle, the key, and whether the start is to try if the upstream works again. Without a slot,
    /// how the job is put off.
    async fn use_slot(
        &self,
        queue: &QueueRun,
        job: &Job,
        slot: Option<Slot>,
        want: &Want,
        trace: &Run,
    ) -> Result<Option<(Arc<Throttle>, String, bool)>, Outcome> {
        let put_off = |why: &str| Outcome::Snooze { reason: Reason::new(Class::Slot, why), wait: Duration::ZERO };
        let waiting = trace.begin();
        let slot = match self.slot_of_key(queue, job, want).await? {
            Some(of_key) => {
                let name = || queue.throttle.as_ref().map(|(throttle, _)| throttle.name());
                trace.spent("slot", (waiting, trace.begin()), name);
                Some(of_key)
            }
            None => slot.map(|slot| (slot, String::new())),
        };
        if slot.is_none() && queue.throttle.is_some() {
            // Its throttle had a key when leave was given, and has none now.
            return Err(put_off("the throttle was configured anew meanwhile"));
        }
        let (Some((slot, key)), Some((throttle, _))) = (slot, &queue.throttle) else { return Ok(None) };
        let Some(probe) = start_with(slot, throttle, &key, want).await else {
            return Err(put_off("the slot for it was over, or held, before it could start"));
        };
        Ok(Some((throttle.clone(), key, probe)))
    }
}

/// Starts with a slot; answers whether the start is to try if the upstream works again. A slot that was over
/// before it could be used, on a machine or with a ledger that is slow, is followed by another, if that comes
/// soon: to put the job off takes longer, and with many keys no other job could use the lost slot.
async fn start_with(mut slot: Slot, throttle: &Throttle, key: &str, want: &Want) -> Option<bool> {
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
        slot = timeout_at(until, throttle.slot(key, want.clone())).await.ok()?;
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no message")
}
