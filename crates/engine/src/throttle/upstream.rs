//! What a run asks of throttles, and what its upstream has to say to the one that it started under.
//!
//! An upstream that has had enough says so in its next answer; all workers have to know. So each
//! run has a `RunUpstream`, a handle on its throttle, and the word spreads through the ledger: a hold
//! until a time, what remains of a budget, what a call has cost, whether it failed or worked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join3;
use parking_lot::Mutex;
use roundelay_handler::{Advice, PermitError, Upstream};
use roundelay_model::outcome::{MAX_WAIT, Outcome};
use roundelay_model::pacing::ThrottleSettings;
use roundelay_model::pacing::fair::Tenant;
use roundelay_model::pacing::slots::{Breaker, Feedback};
use roundelay_model::reason::{Class, Reason};
use tokio::time::timeout;

use super::{Throttle, Throttles, Want};

/// No call counts for more.
const MAX_SPENT: u32 = 1_000_000;
/// An upstream that wants to be left alone says so in seconds.
const MIN_HOLD: Duration = Duration::from_secs(1);
/// How long a run's end waits until all workers are bound by what its upstream has said.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// A run's handle on throttles.
pub(crate) struct RunUpstream {
    throttles: Throttles,
    /// The throttle that the run started under, which of its limits, and whether it was to try.
    own: Option<(Arc<Throttle>, String, bool)>,
    want: Want,
    /// Which of the limits of each throttle with a key the job is under, and for which tenant each fair one has it, by the
    /// throttle's name.
    keys: BTreeMap<String, (String, Tenant)>,
    /// What the upstream has said, and is told when the run has ended.
    said: Mutex<Vec<Advice>>,
}

#[async_trait]
impl Upstream for RunUpstream {
    fn settings(&self) -> Option<Arc<ThrottleSettings>> {
        self.own.as_ref().map(|(throttle, ..)| throttle.settings())
    }

    async fn permit(&self, name: &str, cost: u32) -> Result<(), PermitError> {
        let throttle = self.throttles.get(name).ok_or_else(|| PermitError::Unknown(name.to_owned()))?;
        let most = throttle.limits().max_cost();
        if cost > most {
            return Err(PermitError::TooMuch { throttle: name.to_owned(), cost, most });
        }
        let (key, tenant) = self.keys.get(name).cloned().unwrap_or_default();
        // Of the throttle that it tries, the run has its leave already.
        let own =
            |(own, its, probe): &(Arc<Throttle>, String, bool)| *probe && *its == key && Arc::ptr_eq(own, &throttle);
        let probe = self.own.as_ref().is_some_and(own);
        let want = Want { begun: true, tenant, cost, probe, ..self.want.clone() };
        // A slot that comes too late is followed by another.
        while !throttle.slot(&key, want.clone()).await.start().await {}
        Ok(())
    }

    async fn tell(&self, advice: Advice) {
        self.tell_throttle(&advice).await;
    }

    fn note(&self, advice: Advice) {
        self.said.lock().push(advice);
    }
}

impl RunUpstream {
    pub(crate) fn new(
        throttles: Throttles,
        own: Option<(Arc<Throttle>, String, bool)>,
        want: Want,
        keys: BTreeMap<String, (String, Tenant)>,
    ) -> Arc<Self> {
        Arc::new(Self { throttles, own, want, keys, said: Mutex::default() })
    }

    /// Tells its throttle what the upstream has said; returns when all workers are bound by it. While the
    /// ledger does not answer, nothing starts anyway.
    async fn tell_throttle(&self, advice: &Advice) {
        let Some((throttle, key, _)) = &self.own else { return };
        let hold = async {
            if let Some(wait) = advice.hold {
                let why = advice.why.as_deref().unwrap_or("the upstream asked for it");
                throttle.hold(key, wait.clamp(MIN_HOLD, MAX_WAIT), why).await;
            }
        };
        let budget = async {
            if let Some((remaining, reset)) = advice.budget {
                throttle.budget(key, remaining, reset.min(MAX_WAIT)).await;
            }
        };
        let spent = async {
            if let Some(cost) = advice.cost
                && let beyond @ 1.. = cost.saturating_sub(self.want.cost).min(MAX_SPENT)
            {
                throttle.tell(key, Feedback::Spent { cost: beyond }).await;
            }
        };
        // All of it is on its way before anything is waited for: the run may be ended meanwhile.
        join3(hold, budget, spent).await;
    }

    /// Tells its throttle what was noted, and, if that has a breaker, how the run has ended: `outcome`, by the
    /// policy of its reason. `longest` is how long a run may take.
    pub(crate) async fn ended(&self, outcome: &Outcome, longest: Duration) {
        let said = std::mem::take(&mut *self.said.lock());
        for advice in said {
            // It is on its way at once, whatever becomes of the wait for those who hear it.
            let _ = timeout(HEARD_WITHIN, self.tell_throttle(&advice)).await;
        }
        let Some((throttle, key, probe)) = &self.own else { return };
        let settings = throttle.settings();
        match (verdict(outcome), settings.breaker) {
            (Some(Ok(())), _) if *probe || throttle.is_failing(key) => {
                throttle.tell(key, Feedback::Worked { probe: *probe }).await;
            }
            // Its breaker was taken away meanwhile.
            (_, None) if *probe => throttle.tell(key, Feedback::Worked { probe: true }).await,
            (Some(Err(why)), Some(breaker)) => {
                let breaker = Breaker { patience: longest.max(breaker.wait), ..breaker };
                throttle.tell(key, Feedback::Failed { probe: *probe, breaker, why: why.text.clone() }).await;
            }
            // It has found out nothing: another one tries.
            (None, Some(_)) if *probe => throttle.tell(key, Feedback::Lost).await,
            _ => {}
        }
    }
}

/// Whether the upstream works, by how a run ended: an upstream that says no to one entity works. `None`
/// when that says nothing about it.
fn verdict(outcome: &Outcome) -> Option<Result<(), &Reason>> {
    match outcome {
        Outcome::Fail { reason } if reason.class == Class::Refused => None,
        Outcome::Done | Outcome::DoneWith(_) | Outcome::Fail { .. } | Outcome::Retire { .. } => Some(Ok(())),
        Outcome::Retry { reason, .. } => match reason.class {
            Class::NoHandler | Class::Stopped | Class::Panic | Class::Start | Class::Refused => None,
            _ => Some(Err(reason)),
        },
        Outcome::Snooze { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_model::outcome::Yield;

    #[test]
    fn what_an_end_says_about_the_upstream() {
        let of = |class| Outcome::retry(Reason::new(class, "x"));
        let table = [
            (Outcome::Done, Some(true)),
            (Outcome::DoneWith(Yield::default()), Some(true)),
            (Outcome::fail("HTTP 404"), Some(true)),
            (Outcome::Retire { reason: "gone".into() }, Some(true)),
            (Outcome::Snooze { reason: "later".into(), wait: MIN_HOLD }, None),
            (of(Class::Timeout), Some(false)),
            (of(Class::Connect), Some(false)),
            (of(Class::Http5xx), Some(false)),
            (of(Class::Handler), Some(false)),
            (of(Class::NoHandler), None),
            (of(Class::Refused), None),
            (Outcome::fail(Reason::new(Class::Refused, "x")), None),
            (of(Class::Panic), None),
        ];
        for (outcome, works) in table {
            assert_eq!(verdict(&outcome).map(|verdict| verdict.is_ok()), works, "{outcome:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn probe_without_a_result_is_followed_by_another() {
        let (throttles, throttle) = super::super::tests::alone(4, 1);
        let (wait, patience) = (Duration::from_secs(30), Duration::from_secs(3_600));
        let breaker = Breaker { failures: 1, wait, longest: wait, patience };
        throttle.take_over(ThrottleSettings { breaker: Some(breaker), ..(*throttle.settings()).clone() });
        throttle.tell("", Feedback::Failed { probe: false, breaker, why: "HTTP 500".into() }).await;
        let want = super::super::tests::want(0, 0);
        let start = tokio::time::Instant::now();
        for outcome in [
            Outcome::Snooze { reason: "HTTP 429".into(), wait: MIN_HOLD },
            Outcome::retry(Reason::new(Class::Panic, "x")),
        ] {
            let slot = throttle.slot("", want.clone()).await;
            assert!(slot.probe && slot.start().await, "{outcome:?}");
            let upstream = RunUpstream::new(
                throttles.clone(),
                Some((throttle.clone(), String::new(), true)),
                want.clone(),
                BTreeMap::new(),
            );
            upstream.ended(&outcome, patience).await;
        }
        assert!(throttle.slot("", want.clone()).await.probe);
        assert!(start.elapsed() < wait * 2, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn breaker_removed_during_a_probe_is_closed_however_the_probe_ends() {
        for outcome in [Outcome::retry("it does not work"), Outcome::Done] {
            let (throttles, throttle) = super::super::tests::alone(4, 1);
            let wait = Duration::from_secs(30);
            let breaker = Breaker { failures: 1, wait, longest: wait, patience: Duration::from_secs(3_600) };
            throttle.tell("", Feedback::Failed { probe: false, breaker, why: "HTTP 500".into() }).await;
            let want = super::super::tests::want(0, 0);
            let slot = throttle.slot("", want.clone()).await;
            assert!(slot.probe && slot.start().await);
            let upstream = RunUpstream::new(
                throttles,
                Some((throttle.clone(), String::new(), true)),
                want.clone(),
                BTreeMap::new(),
            );
            upstream.ended(&outcome, wait).await;
            let start = tokio::time::Instant::now();
            for _ in 0..8 {
                assert!(throttle.slot("", want.clone()).await.start().await);
            }
            assert!(start.elapsed() < wait, "{outcome:?}: {:?}", start.elapsed());
        }
    }
}
