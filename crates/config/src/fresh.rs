//! `kinds.NAME.fresh`: how often to look follows from how often entities change, what they are worth, and what calls cost.

use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use roundelay_handler::Compare;
use roundelay_model::clock::{parse_duration, short_duration};
use roundelay_model::fresh::Objective;
use roundelay_model::outcome::MAX_WAIT;
use roundelay_model::pacing::ThrottleSettings;
use serde_json::Value;

use super::check::template;
use super::raw;
use crate::problems::{Problems, known};
use crate::settings::{KindSettings, QueueSettings};

/// How the intervals of a kind's chains follow from what has been learned.
#[derive(Clone, Debug, PartialEq)]
pub struct FreshSettings {
    /// The budgets of which each run takes a call; at least one.
    pub budgets: Vec<BudgetSettings>,
    /// What calls are spent for.
    pub objective: Objective,
    /// The shortest interval.
    pub min: Duration,
    /// The longest interval.
    pub max: Duration,
    /// A template for what an entity is worth, over its payload.
    pub weight: Option<String>,
    /// By what a run's handler tells whether its entity has changed.
    pub compare: Compare,
}

/// A budget of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetSettings {
    /// Its name, by which kinds share it: `throttle:NAME`, or the calls and the time as they were written.
    pub name: String,
    /// The throttle whose starts it is, or so many calls in so long.
    pub calls: Calls,
}

/// The calls of a budget.
#[derive(Clone, Debug, PartialEq)]
pub enum Calls {
    /// Those that a throttle of this name allows.
    Throttle(String),
    /// So many in so long.
    Fixed {
        /// How many.
        count: u32,
        /// In how long.
        per: Duration,
    },
}

impl FreshSettings {
    /// The interval of a chain of which nothing is known yet: the geometric mean of `min` and `max`.
    pub fn middle(&self) -> Duration {
        let (min, max) = (self.min.as_secs_f64(), self.max.as_secs_f64());
        Duration::from_secs_f64((min * max).sqrt()).clamp(self.min, self.max)
    }

    /// Whether runs take calls of the budget with this name.
    pub fn shares(&self, budget: &str) -> bool {
        self.budgets.iter().any(|of| of.name == budget)
    }

    /// What an entity with this payload is worth: see [`weight_of`].
    ///
    /// # Errors
    /// Says what the template gives, if that is no number above 0.
    pub fn weight_of(&self, payload: &Value) -> Result<f64, String> {
        weight_of(self.weight.as_deref(), payload)
    }
}

impl BudgetSettings {
    /// How many calls there are in a second, in the long run; nothing if the throttle is not among these.
    pub fn rate(&self, throttles: &BTreeMap<String, ThrottleSettings>) -> Option<f64> {
        match &self.calls {
            Calls::Throttle(name) => Some(throttles.get(name)?.limits.pace()),
            Calls::Fixed { count, per } => Some(f64::from(*count) / per.as_secs_f64()),
        }
    }

    /// Whether runs of this kind take calls of the budget.
    pub fn is_spent_by(&self, kind: &KindSettings, queues: &BTreeMap<String, QueueSettings>) -> bool {
        let shares = kind.fresh().is_some_and(|fresh| fresh.shares(&self.name));
        match &self.calls {
            Calls::Throttle(name) => {
                let queue = kind.queue.as_ref().and_then(|queue| queues.get(queue));
                queue.is_some_and(|queue| queue.throttle.as_ref() == Some(name)) || shares
            }
            Calls::Fixed { .. } => shares,
        }
    }
}

/// What an entity with this payload is worth by a template: above 0; 1 without one.
///
/// # Errors
/// Says what the template gives, if that is no number above 0.
pub fn weight_of(template: Option<&str>, payload: &Value) -> Result<f64, String> {
    let Some(template) = template else { return Ok(1.0) };
    let mut templates = minijinja::Environment::new();
    templates.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    let text = templates
        .render_str(template, minijinja::value::Serde(payload))
        .map_err(|error| format!("`fresh.weight` (`{template}`) cannot be made from the payload: {error}"))?;
    match text.trim().parse::<f64>() {
        Ok(weight) if weight.is_finite() && weight > 0.0 => Ok(weight),
        _ => Err(format!("`fresh.weight` (`{template}`) gives `{text}`; a number above 0 is possible")),
    }
}

/// Checks `fresh` of a kind by itself; `http` says whether an HTTP call runs its jobs.
pub(super) fn check(problems: &mut Problems, name: &str, fresh: &raw::Fresh, http: bool) -> Option<FreshSettings> {
    let at = |key: &'static str| ["kinds", name, "fresh", key];
    let mut budgets = Vec::<BudgetSettings>::new();
    for (key, text) in iter::once(("budget", &fresh.budget)).chain(fresh.also.iter().map(|text| ("also", text))) {
        let name = text.trim().to_owned();
        match calls(&name) {
            Ok(_) if budgets.iter().any(|of| of.name == name) => {
                problems.add(&at(key), format!("names `{name}` twice"));
            }
            Ok(calls) => budgets.push(BudgetSettings { name, calls }),
            Err(why) => problems.add(&at(key), why),
        }
    }
    if let Some(weight) = &fresh.weight {
        template(problems, &at("weight"), weight);
    }
    if budgets.is_empty() {
        return None;
    }
    if fresh.min.0.is_zero() || fresh.min.0 > fresh.max.0 {
        problems.add(&at("min"), "must be above zero, and not above `max`");
    }
    if fresh.max.0 > MAX_WAIT {
        problems.add(&at("max"), format!("up to {} is possible", short_duration(MAX_WAIT)));
    }
    if !http && matches!(fresh.compare, raw::Compare::Status | raw::Compare::Etag) {
        problems.add(&at("compare"), "goes with an HTTP handler: a program has no status and no ETag");
    }
    Some(FreshSettings {
        budgets,
        objective: fresh.objective.into(),
        min: fresh.min.0,
        max: fresh.max.0,
        weight: fresh.weight.clone(),
        compare: fresh.compare.into(),
    })
}

/// Checks the budget of a kind against the throttle that it names, and against the kinds that share it.
pub(super) fn check_budget(
    problems: &mut Problems,
    (name, kind): (&str, &KindSettings),
    kinds: &BTreeMap<String, KindSettings>,
    queues: &BTreeMap<String, QueueSettings>,
    throttles: &BTreeMap<String, ThrottleSettings>,
) {
    let Some(fresh) = kind.fresh() else { return };
    let at = |key: &'static str| ["kinds", name, "fresh", key];
    let mut others = kinds
        .iter()
        .filter(|(other, _)| other.as_str() < name)
        .filter_map(|(other, kind)| Some((other, kind.fresh()?)));
    let differs = |other: &FreshSettings| {
        other.objective != fresh.objective && other.budgets.iter().any(|of| fresh.shares(&of.name))
    };
    if let Some((other, _)) = others.find(|(_, other)| differs(other)) {
        problems.add(
            &at("objective"),
            format!("kinds.{other} spends the same budget for another one: a call has one price"),
        );
    }
    let queue = kind.queue.as_ref().and_then(|queue| queues.get(queue));
    for (n, BudgetSettings { calls, .. }) in fresh.budgets.iter().enumerate() {
        let Calls::Throttle(throttle) = calls else { continue };
        let key = if n == 0 { "budget" } else { "also" };
        known(problems, &at(key), throttle, "throttles", throttles.keys());
        // Of a further throttle the handler itself asks for starts.
        let elsewhere = n == 0 && queue.is_some_and(|queue| queue.throttle.as_ref() != Some(throttle));
        if throttles.contains_key(throttle) && elsewhere {
            problems.add(&at(key), format!("its queue is not under the throttle {throttle}"));
        }
        if throttles.get(throttle).is_some_and(|throttle| throttle.key.is_some()) {
            let why = "has a `key`, so its limit is one for each key and no budget; write calls and a time, as in \"2000/1h\"";
            problems.add(&at(key), format!("the throttle {throttle} {why}"));
        }
    }
}

fn calls(text: &str) -> Result<Calls, String> {
    let wrong = || {
        format!(
            "`{text}` is no budget; write \"throttle:NAME\" for all that a throttle allows, or calls and a time as in \"2000/1h\""
        )
    };
    let text = text.trim();
    if let Some(throttle) = text.strip_prefix("throttle:") {
        return Ok(Calls::Throttle(throttle.trim().to_owned()));
    }
    let (count, per) = calls_in(text).ok_or_else(wrong)?;
    Ok(Calls::Fixed { count, per })
}

/// Reads so many in so long, both above zero, as in `2000/1h`.
pub(super) fn calls_in(text: &str) -> Option<(u32, Duration)> {
    let (count, per) = text.split_once('/')?;
    let count = count.trim().parse::<u32>().ok().filter(|count| *count > 0)?;
    let per = parse_duration(per.trim()).ok().filter(|per| !per.is_zero())?;
    Some((count, per))
}
