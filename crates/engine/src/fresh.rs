//! Intervals that follow from what has been learned of entities: `kinds.NAME.fresh`.
//!
//! The rules are in [`roundelay_model::fresh`]. What is known of a chain goes with its finish. What visits came
//! to goes with the figures of its kind. Once a minute a chore, one for each budget, makes the new price of these, and
//! hands it on to its next run; so the price is in the ledger, and set by one worker at a time. All workers read it from
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use roundelay_config::{Config, FreshSettings, KindSettings};
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::clock::Time;
use roundelay_model::encryption::{AssociatedData, Field, Keyring};
use roundelay_model::failure::FailedItem;
use roundelay_model::fresh::{Budget, Calls, Known, Objective, Price, Prior, Seen, Visits, interval_at, visited};
use roundelay_model::kind_stats::{KindBucket, Step};
use roundelay_model::outcome::{Change, Outcome, Yield};
use roundelay_model::pacing::ThrottleSettings;
use roundelay_model::schedule::{From, Rhythm, Schedule};
use roundelay_model::wall_clock::WallClock;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::chores::FRESH;
use crate::telemetry::Telemetry;

/// How often workers read prices.
const READ_EVERY: Duration = Duration::from_secs(10);
/// A price is made of what workers have told, and they tell within ten seconds.
const TOLD_WITHIN: Duration = Duration::from_secs(15);
/// After an outage, no more than this counts.
const LONGEST: Duration = Duration::from_secs(600);
/// An occurrence lies up to this part of its interval before or after its time, so that calls come evenly.
const JITTER: u32 = 20;

/// The prices of calls, as this worker knows them.
#[derive(Default)]
pub(crate) struct Prices(RwLock<BTreeMap<String, Arc<Budget>>>);

impl Prices {
    /// What is known of a budget.
    pub(crate) fn of(&self, budget: &str) -> Arc<Budget> {
        self.0.read().get(budget).cloned().unwrap_or_default()
    }

    /// Reads prices until the worker stops.
    pub(crate) async fn follow(
        self: Arc<Self>,
        ledger: Arc<dyn Ledger>,
        keys: Arc<Keyring>,
        budgets: impl Fn() -> Vec<(String, Objective)> + Send + 'static,
        telemetry: Arc<Telemetry>,
        stop: CancellationToken,
    ) {
        loop {
            let budgets = budgets();
            let kept = |budget: &String| budgets.iter().any(|(name, _)| name == budget);
            self.0.write().retain(|budget, _| kept(budget));
            for (budget, _) in &budgets {
                match read(&*ledger, &keys, budget).await {
                    Ok(Some(told)) => _ = self.0.write().insert(budget.clone(), Arc::new(told)),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, budget, "the price of a call cannot be read"),
                }
            }
            telemetry.budgets(budgets.iter().map(|(name, objective)| (name.as_str(), self.of(name), *objective)));
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(READ_EVERY) => {}
            }
        }
    }
}

/// What is known of a budget, as the last run of its chore has handed it on.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn read(ledger: &dyn Ledger, keys: &Keyring, budget: &str) -> Result<Option<Budget>, LedgerError> {
    let chains = ledger.chains(FRESH.into(), budget.to_owned()).await?;
    let carry = chains.into_iter().find(|chain| !chain.once).and_then(|chain| chain.carry);
    let told = carry.and_then(|carry| {
        let opened = keys.opened(AssociatedData::new(Field::Carry, FRESH, budget), &carry).ok()?;
        serde_json::from_str(&opened).ok()
    });
    Ok(told)
}

/// The budgets of a configuration, and what their calls are spent for.
pub fn budgets<'c>(kinds: impl Iterator<Item = &'c KindSettings>) -> Vec<(String, Objective)> {
    let fresh = kinds.filter_map(KindSettings::fresh);
    let of = |fresh: &'c FreshSettings| fresh.budgets.iter().map(|budget| (budget.name.clone(), fresh.objective));
    let budgets: BTreeMap<String, Objective> = fresh.flat_map(of).collect();
    budgets.into_iter().collect()
}

/// The schedule of a chain whose next visit is to come after so long.
pub(crate) fn schedule(of_kind: &Schedule, every: Duration) -> Schedule {
    let rhythm = Rhythm::Every { interval: every, from: From::Finish };
    Schedule { rhythm, jitter: every / JITTER, ..of_kind.clone() }
}

/// A visit of a chain whose interval follows from what has been learned.
pub(crate) struct Visit {
    /// The budgets of which it takes a call.
    budgets: Vec<Arc<Budget>>,
    known: Option<Known>,
    /// What the entity is worth.
    weight: f64,
    /// Since the visit before.
    gap: Duration,
    /// Why `weight` is 1, if the payload gives none.
    problem: Option<String>,
}

/// What a visit has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visited {
    pub(crate) gap: Duration,
    pub(crate) every: Duration,
    pub(crate) known: Known,
}

impl Visit {
    /// Of a chain that started at `at` and last before that at `before`. `learned` is what the ledger has kept.
    pub(crate) fn new(
        fresh: &FreshSettings,
        prices: &Prices,
        learned: Option<&[u8]>,
        (at, before): (Time, Time),
    ) -> Self {
        let known = learned.and_then(Known::from_bytes);
        let gap = if known.is_some() { at.since(before) } else { fresh.middle() };
        let budgets = fresh.budgets.iter().map(|budget| prices.of(&budget.name)).collect();
        Self { budgets, known, weight: 1.0, gap, problem: None }
    }

    /// What the handler gets says what the entity is worth.
    pub(crate) fn weigh(&mut self, fresh: &FreshSettings, payload: &Value) {
        match fresh.weight_of(payload) {
            Ok(weight) => self.weight = weight,
            Err(problem) => self.problem = Some(problem),
        }
    }

    /// How long until the next visit, by what is known before this one.
    pub(crate) fn every(&self, fresh: &FreshSettings) -> Duration {
        self.known.map_or_else(|| self.unpriced(fresh), |known| self.interval(fresh, &known))
    }

    /// A run takes a call of each budget, so their prices add up.
    fn interval(&self, fresh: &FreshSettings, known: &Known) -> Duration {
        let price = self.budgets.iter().filter_map(|budget| budget.price).map(Price::get).reduce(|a, b| a + b);
        price.map_or_else(
            || self.unpriced(fresh),
            |price| interval_at(price, fresh.objective, known, self.gap, (fresh.min, fresh.max)),
        )
    }

    /// The interval as long as no price is known, as for a moment after a worker has started: about the one before.
    fn unpriced(&self, fresh: &FreshSettings) -> Duration {
        if self.known.is_some() { self.gap.clamp(fresh.min, fresh.max) } else { fresh.middle() }
    }

    /// After a run of `kind` that ended at `now` with this outcome: what is known then, and when the next visit comes.
    /// Nothing where the run has failed, since that says nothing of the entity.
    pub(crate) fn ended(
        &mut self,
        kind: &str,
        fresh: &FreshSettings,
        outcome: &mut Outcome,
        (now, wall_clock): (Time, &WallClock),
    ) -> Option<Visited> {
        let change = match outcome {
            Outcome::Done => None,
            Outcome::DoneWith(yields) => yields.change,
            _ => return None,
        };
        if let Some(problem) = self.problem.take() {
            let refused = FailedItem::refused("weight", format!("{problem}; the entity counts as worth 1"));
            match outcome {
                Outcome::DoneWith(yields) => yields.failed.push(refused),
                _ => *outcome = Outcome::DoneWith(Yield { failed: vec![refused], ..Yield::default() }),
            }
        }
        let (seen, mark) = self.seen(change, wall_clock.wall(now));
        // All budgets have seen the same visits.
        let prior = self
            .budgets
            .first()
            .map_or_else(|| Prior::of_interval(fresh.middle()), |budget| budget.prior(kind, fresh.middle()));
        let known = visited(self.known, seen, self.weight, mark, now, prior);
        Some(Visited { gap: self.gap, every: self.interval(fresh, &known), known })
    }

    /// What the visit saw, and what stands for the entity now. `now` is by the wall clock.
    fn seen(&self, change: Option<Change>, now: Time) -> (Option<Seen>, Option<u64>) {
        match change {
            None => (None, None),
            Some(Change::Same) => (Some(Seen::Same), None),
            Some(Change::Changed) => (Some(Seen::Changed), None),
            Some(Change::ChangedAt(at)) => {
                let (ago, since) = (now.since(at), self.known.map(|known| now.since(known.learned.visited)));
                // The upstream's clock and this one may differ, and the visit before saw what had changed by then.
                let seen = if since.is_some_and(|since| ago >= since) { Seen::Same } else { Seen::ChangedAgo(ago) };
                (Some(seen), None)
            }
            Some(Change::Mark(mark)) => {
                let before = self.known.and_then(|known| known.mark);
                let seen = before.map(|before| if before == mark { Seen::Same } else { Seen::Changed });
                (seen, Some(mark))
            }
        }
    }
}

/// The minutes that a price is made of next, after those until `upto`; nothing if none is over and told.
fn minutes(upto: Time, now: Time) -> Option<(Time, Time)> {
    let end = Step::Minute.begin(now - TOLD_WITHIN);
    let begin = upto.max(end - LONGEST);
    let begin = if upto == Time::default() { end - Step::Minute.length() } else { begin };
    (begin < end).then_some((begin, end))
}

/// The price of a budget after the minutes that are over, from what the runs of all kinds came to in them. Nothing if no
/// kind has the budget. `throttles` are as an operator ordered, or as configured.
fn priced(
    before: Budget,
    budget: &str,
    (config, throttles): (&Config, &BTreeMap<String, ThrottleSettings>),
    buckets: &[KindBucket],
    (begin, end): (Time, Time),
) -> Option<Budget> {
    let sharing = config.kinds.iter().filter_map(|(name, kind)| Some((name, kind.fresh()?)));
    let sharing: BTreeMap<&String, &FreshSettings> = sharing.filter(|(_, fresh)| fresh.shares(budget)).collect();
    let first = *sharing.values().next()?;
    let settings = first.budgets.iter().find(|of| of.name == budget)?;
    let spends = |kind: &str| config.kinds.get(kind).is_some_and(|kind| settings.is_spent_by(kind, &config.queues));
    let mut visits: BTreeMap<String, (Visits, Duration)> =
        sharing.iter().map(|(name, fresh)| ((*name).clone(), (Visits::default(), fresh.middle()))).collect();
    let mut starts = 0;
    for bucket in buckets.iter().filter(|bucket| bucket.at >= begin && bucket.at < end) {
        if let Some((of, _)) = visits.get_mut(&bucket.kind) {
            of.add(&bucket.stats.visits);
        }
        if spends(&bucket.kind) {
            starts += bucket.stats.late.count();
        }
    }
    let length = end.since(begin);
    let allowed = settings.rate(throttles)?;
    let made: u64 = visits.values().map(|(of, _)| of.visits).sum();
    let others = starts.saturating_sub(made) as f64;
    let held = matches!(settings.calls, roundelay_config::Calls::Throttle(_));
    let calls = Calls { allowed: allowed * length.as_secs_f64(), others, held };
    Some(before.after(&visits, first.objective, (end, length), calls))
}

/// One run of the chore of a budget: `carry` is what the run before has handed on.
pub(crate) async fn reprice(config: &Config, ledger: &dyn Ledger, budget: &str, carry: &Value) -> Outcome {
    let before: Budget = serde_json::from_value(carry.clone()).unwrap_or_default();
    let Some(period) = minutes(before.upto, ledger.now()) else { return Outcome::Done };
    let asked = async {
        let (mut throttles, orders) = (config.throttles.clone(), ledger.throttle_orders().await?);
        for (name, throttle) in &mut throttles {
            if let Some(orders) = orders.get(name) {
                throttle.limits = orders.limits(&throttle.limits).into_owned();
            }
        }
        Ok::<_, LedgerError>((throttles, ledger.kinds(Step::Minute, period.0).await?))
    };
    let (throttles, buckets) = match asked.await {
        Ok(asked) => asked,
        Err(error) => return Outcome::retry(error.to_string()),
    };
    match priced(before, budget, (config, &throttles), &buckets, period) {
        None => Outcome::Retire { reason: format!("no kind of the configuration has the budget {budget}").into() },
        Some(budget) => Outcome::DoneWith(Yield { carry: serde_json::to_value(budget).ok(), ..Yield::default() }),
    }
}
