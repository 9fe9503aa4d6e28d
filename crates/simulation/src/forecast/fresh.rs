//! What learned intervals come to, beside the best ones and beside one interval for all.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_config::FreshSettings;
use roundelay_engine::fresh::budgets;
use roundelay_model::fresh::{Entity, best_price};
use serde::Serialize;

use super::Plan;
use super::changes::{Quality, by_formula};
use super::recorder::{Recorder, Span};

/// How right what is known of a kind's entities is, in the second half of the time: chains have the first to learn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FreshReport {
    /// As it was in the run.
    pub learned: Quality,
    /// What the best intervals come to for one who knows how often each entity changes, by the formulas. It uses all
    /// calls that the kind's first budget has in the long run, less what other jobs took. The rates count as the same all day.
    pub best: Option<Quality>,
    /// What one interval for all came to, in a run of its own.
    pub uniform: Option<Quality>,
    /// How many calls all jobs of the budget made in an hour.
    pub calls: Option<CallsReport>,
}

/// Calls in an hour, by what the budget has in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CallsReport {
    /// In the hour with the fewest.
    pub least: f64,
    /// In the hour with the most.
    pub most: f64,
}

impl Plan {
    /// Makes the chains that are counted worth what their model says, and answers for each kind how to tell that from a
    /// payload.
    pub(super) fn weigh(&mut self) -> BTreeMap<String, Option<String>> {
        let mut weights = BTreeMap::new();
        for (name, population) in &self.populations {
            let Some(kind) = self.config.kinds.get_mut(name) else { continue };
            let weight = population.weight(kind);
            if let Some(fresh) = kind.recurrence.as_mut().and_then(|recurrence| recurrence.fresh.as_mut()) {
                fresh.weight.clone_from(&weight);
            }
            weights.insert(name.clone(), weight);
        }
        weights
    }

    /// The same with one interval for all chains that share a budget, so that they make as many calls. Nothing if no kind
    /// learns its intervals from changes.
    pub fn uniform(&self) -> Option<Self> {
        let mut uniform = self.clone();
        let mut any = false;
        for (name, kind) in &mut uniform.config.kinds {
            let changes = kind.model.change.is_some() && self.populations.contains_key(name);
            let Some(fresh) = kind.recurrence.as_mut().and_then(|recurrence| recurrence.fresh.as_mut()) else {
                continue;
            };
            // That of the budget which is the scarcest.
            let mut every = Duration::ZERO;
            for budget in &fresh.budgets {
                let sharing = sharing(self, |fresh| fresh.shares(&budget.name));
                let chains: u64 = sharing.map(|(name, _)| self.populations[name].chains()).sum();
                let rate = budget.rate(&self.config.throttles)?;
                every = every.max(Duration::try_from_secs_f64(chains as f64 / rate).unwrap_or(fresh.max));
            }
            (fresh.min, fresh.max) = (every, every);
            any |= changes;
        }
        any.then_some(uniform)
    }
}

/// The kinds with chains of which this holds.
fn sharing(plan: &Plan, shares: impl Fn(&FreshSettings) -> bool) -> impl Iterator<Item = (&String, &FreshSettings)> {
    let kinds = plan.config.kinds.iter().filter_map(|(name, kind)| Some((name, kind.fresh()?)));
    kinds.filter(move |(name, fresh)| shares(fresh) && plan.populations.contains_key(*name))
}

/// What each kind came to whose entities change.
pub(super) fn reports(
    plan: &Plan,
    recorders: &BTreeMap<String, Recorder>,
    span: Span,
) -> BTreeMap<String, FreshReport> {
    let mut reports = BTreeMap::new();
    for (name, recorder) in recorders {
        let quality = recorder.noted().changes.as_ref().and_then(|changes| changes.quality());
        let Some(learned) = quality else { continue };
        reports.insert(name.clone(), FreshReport { learned, best: None, uniform: None, calls: None });
    }
    for (budget, _) in budgets(plan.config.kinds.values()) {
        // What each kind comes to is told of its first budget.
        let first = |fresh: &FreshSettings| fresh.budgets.first().is_some_and(|of| of.name == budget);
        let sharing: Vec<_> = sharing(plan, first).filter(|(name, _)| reports.contains_key(*name)).collect();
        let Some((_, fresh)) = sharing.first() else { continue };
        let Some(rate) = fresh.budgets[0].rate(&plan.config.throttles) else { continue };
        // What each hour's starts come to, of those who share the budget and of others.
        let measured = span.measured();
        let hours = (measured.start / 3_600.0).ceil() as usize..(measured.end / 3_600.0).floor() as usize;
        let starts = |name: &str| {
            let noted = recorders.get(name).map(Recorder::noted);
            let of = |hour| noted.as_ref().and_then(|noted| noted.hours.get(hour).copied()).unwrap_or_default();
            hours.clone().map(of).collect::<Vec<u64>>()
        };
        let spend =
            plan.config.kinds.iter().filter(|(_, kind)| fresh.budgets[0].is_spent_by(kind, &plan.config.queues));
        let (mut all, mut others) = (vec![0; hours.len()], 0);
        for (name, _) in spend {
            let starts = starts(name);
            all.iter_mut().zip(&starts).for_each(|(all, starts)| *all += starts);
            if !sharing.iter().any(|(shares, _)| *shares == name) {
                others += starts.iter().sum::<u64>();
            }
        }
        let an_hour = |starts: &u64| *starts as f64 / (rate * 3_600.0);
        let least = all.iter().map(an_hour).reduce(f64::min);
        let calls =
            least.zip(all.iter().map(an_hour).reduce(f64::max)).map(|(least, most)| CallsReport { least, most });
        let others = others as f64 / (hours.len().max(1) as f64 * 3_600.0);
        let known: BTreeMap<&String, Vec<Entity>> = sharing
            .iter()
            .map(|(name, fresh)| {
                let noted = recorders[*name].noted();
                (*name, noted.changes.iter().flat_map(|of| of.known((fresh.min, fresh.max))).collect())
            })
            .collect();
        let entities: Vec<Entity> = known.values().flatten().copied().collect();
        let price = best_price(fresh.objective, &entities, (rate - others).max(0.01 * rate));
        for (name, entities) in known {
            let best = by_formula(entities.iter(), |entity| entity.every(fresh.objective, price));
            if let Some(report) = reports.get_mut(name) {
                (report.best, report.calls) = (best, calls);
            }
        }
    }
    reports
}
