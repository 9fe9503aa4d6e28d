//! Budgets of calls, and what they come to.

use std::time::Duration;

use roundelay_config::Config;
use roundelay_engine::fresh;
use roundelay_ledger::{Ledger, LedgerError};
use roundelay_model::fresh::{Budget, Objective, Price};
use serde::Serialize;
use utoipa::ToSchema;

use super::format::rough;

/// A budget of calls: `kinds.NAME.fresh.budget`. All of it is as a minute ago.
#[derive(Serialize, ToSchema)]
pub struct BudgetReport {
    /// Its name.
    pub budget: String,
    /// The kinds that share it.
    pub kinds: Vec<String>,
    /// What its calls are spent for.
    #[schema(value_type = String)]
    pub objective: Objective,
    /// About how many chains share it.
    pub chains: f64,
    /// The price of a call, in seconds² with the objective `age`, else in seconds; null before the first visits.
    pub price: Option<f64>,
    /// How many calls are allowed in a minute.
    pub allowed_per_minute: f64,
    /// How many of them other jobs took.
    pub others_per_minute: f64,
    /// How many the chains want.
    pub wanted_per_minute: f64,
    /// How many the chains made.
    pub made_per_minute: f64,
    /// The expected share of time in which what is known of an entity is right, by weight.
    pub freshness: Option<f64>,
    /// The expected age of what is known, in milliseconds, by weight: for how long it has been out of date, over all time.
    pub age_ms: Option<f64>,
    /// What a tenth more calls would bring, about: milliseconds less age with the objective `age`, more freshness with
    /// `freshness`; null with `harmonic`.
    pub a_tenth_more: Option<f64>,
}

impl BudgetReport {
    fn new(name: String, budget: &Budget, config: &Config) -> Option<Self> {
        let sharing = config.kinds.iter().filter_map(|(kind, settings)| Some((kind, settings.fresh()?)));
        let sharing: Vec<_> = sharing.filter(|(_, fresh)| fresh.shares(&name)).collect();
        let objective = sharing.first()?.1.objective;
        let gain = budget.a_tenth_more(objective);
        Some(Self {
            kinds: sharing.into_iter().map(|(kind, _)| kind.clone()).collect(),
            objective,
            chains: budget.chains(),
            price: budget.price.map(Price::get),
            allowed_per_minute: budget.allowed * 60.0,
            others_per_minute: budget.others * 60.0,
            wanted_per_minute: budget.wanted * 60.0,
            made_per_minute: budget.made * 60.0,
            freshness: budget.fresh,
            age_ms: budget.age.map(|age| age * 1_000.0),
            a_tenth_more: if objective == Objective::Age { gain.map(|gain| gain * 1_000.0) } else { gain },
            budget: name,
        })
    }

    /// How it is, in a line.
    pub fn words(&self) -> String {
        let Self { budget, chains, allowed_per_minute, others_per_minute, wanted_per_minute, made_per_minute, .. } =
            self;
        if self.price.is_none() {
            return format!("the budget {budget} has no price yet: intervals stay about as they are");
        }
        let others =
            if *others_per_minute > 0.0 { format!(", and other jobs {others_per_minute:.1}") } else { String::new() };
        let mut words = format!(
            "the budget {budget}: about {chains:.0} chains made {made_per_minute:.1} of {allowed_per_minute:.1} calls a \
             minute{others}; they want {wanted_per_minute:.1}"
        );
        let span = |ms: f64| rough(Duration::try_from_secs_f64(ms / 1_000.0).unwrap_or(Duration::MAX));
        if let (Some(right), Some(age)) = (self.freshness, self.age_ms) {
            words += &format!(
                "; what is known is right for {:.1} % of the time, and {} old in the mean",
                right * 100.0,
                span(age)
            );
        }
        match (self.objective, self.a_tenth_more) {
            (Objective::Age, Some(gain)) => {
                words += &format!("; a tenth more calls would make that {} less", span(gain))
            }
            (_, Some(gain)) => words += &format!("; a tenth more calls would add {:.1} % of the time", gain * 100.0),
            (_, None) => {}
        }
        words
    }
}

/// The budgets of a configuration, by name.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn budgets(config: &Config, ledger: &dyn Ledger) -> Result<Vec<BudgetReport>, LedgerError> {
    let mut budgets = Vec::new();
    for (name, _) in fresh::budgets(config.kinds.values()) {
        let known = fresh::read(ledger, &config.encryption, &name).await?.unwrap_or_default();
        budgets.extend(BudgetReport::new(name, &known, config));
    }
    Ok(budgets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_told_in_a_line() {
        let text = "[queues.q]\n[kinds.app]\nqueue = \"q\"\nhandler.exec.argv = [\"/bin/true\"]\nfresh = { budget = \"60/1m\", \
                    min = \"1m\", max = \"1h\" }";
        let config = Config::parse(text, "r.toml", []).unwrap();
        let told = |budget: &Budget| BudgetReport::new("60/1m".into(), budget, &config).unwrap().words();
        assert!(told(&Budget::default()).contains("has no price yet"));
        let known = Budget {
            price: Some(Price::begin(Objective::Age, Duration::from_secs(600), 1.0)),
            allowed: 1.0,
            others: 0.25,
            wanted: 0.8,
            made: 0.75,
            fresh: Some(0.7251),
            age: Some(312.0),
            weight: Some(1.0),
            kinds: [(
                "app".to_owned(),
                roundelay_model::fresh::OfKind {
                    prior: roundelay_model::fresh::Prior::of_interval(Duration::from_secs(600)),
                    chains: 450.0,
                },
            )]
            .into(),
            ..Budget::default()
        };
        assert_eq!(
            told(&known),
            "the budget 60/1m: about 450 chains made 45.0 of 60.0 calls a minute, and other jobs 15.0; they want 48.0; what \
             is known is right for 72.5 % of the time, and 5m 12s old in the mean; a tenth more calls would make that 14s less"
        );
    }
}
