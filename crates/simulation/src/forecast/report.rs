//! What a simulation came to.

use std::collections::BTreeMap;
use std::time::Duration;

use roundelay_model::clock::Time;
use serde::Serialize;

use super::Plan;
pub use super::ages::Quantiles;
use super::capacity::{interval, period};
use super::fleet::Fleet;
use super::fresh::{self, FreshReport};
use super::gates::{Gates, ThrottleReport};
use super::pace::{Pace, Series};
use super::recorder::Span;
use super::tenants::TenantReport;
use super::verdicts::Verdicts;
use super::words::{grouped, list, spoken, spoken_seconds};

/// What a kind's chains did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KindReport {
    /// How many there were.
    pub chains: u64,
    /// Handlers that were started.
    pub starts: u64,
    /// Attempts whose handler was not started because a guard said no.
    pub dropped: u64,
    /// Occurrences that were left out.
    pub skipped: u64,
    /// Ticks that failed for good.
    pub failed: u64,
    /// Attempts that failed and were tried again.
    pub retried: u64,
    /// How late first attempts started, in milliseconds.
    pub late_ms: Quantiles,
    /// The age of the chains' data, which is the time since their last success, over all chains and
    /// all moments, in seconds.
    pub freshness_s: Quantiles,
    /// Chains that never had a success.
    pub never: u64,
    /// Chains that were due and did not run, at the end.
    pub backlog: u64,
    /// The busiest second by the mean, after the kind's first period.
    pub peak_to_mean: Option<f64>,
    /// How right what is known of its entities is, if their changes are modelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh: Option<FreshReport>,
    /// How late jobs of each tenant started, where tenants share the queue; of more than a hundred tenants, some together
    /// as `(others)`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, TenantReport>,
    /// How often attempts ended otherwise than well, by verdict and reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, u64>,
}

/// What a simulation came to. The same plan comes to the same report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// When simulated time began: RFC 3339, UTC.
    pub from: String,
    /// How long it went on, in seconds.
    pub for_s: f64,
    /// What decided all dice.
    pub seed: u64,
    /// Workers.
    pub workers: usize,
    /// By kind.
    pub kinds: BTreeMap<String, KindReport>,
    /// The busiest second of all starts by their mean, after the first period of each kind.
    pub peak_to_mean: Option<f64>,
    /// Chains that were due and did not run, at the end.
    pub backlog: u64,
    /// The most messages that each queue was seen to have, beside those that workers held.
    pub longest_queues: BTreeMap<String, u64>,
    /// What was started under each throttle that holds for all workers and has no keys.
    pub throttles: BTreeMap<String, ThrottleReport>,
    /// What was assumed, what cannot keep up, and what did not.
    pub warnings: Vec<String>,
    /// Starts over time, of all kinds and by kind.
    #[serde(skip)]
    pub series: (Series, BTreeMap<String, Series>),
    /// When simulated time began.
    #[serde(skip)]
    pub begin: Time,
    /// How long it went on.
    #[serde(skip)]
    pub length: Duration,
}

impl Report {
    /// Ticks and attempts that were started, over all kinds.
    pub fn starts(&self) -> u64 {
        self.kinds.values().map(|kind| kind.starts).sum()
    }

    /// Notes what the [uniform plan](Plan::uniform) came to.
    pub fn compare(&mut self, uniform: &Self) {
        for (name, kind) in &mut self.kinds {
            let other = uniform.kinds.get(name).and_then(|kind| kind.fresh.as_ref());
            if let Some(fresh) = kind.fresh.as_mut().filter(|fresh| fresh.best.is_some()) {
                fresh.uniform = other.map(|other| other.learned);
            }
        }
    }

    /// Chains, over all kinds.
    pub fn chains(&self) -> u64 {
        self.kinds.values().map(|kind| kind.chains).sum()
    }
}

/// What a run leaves behind.
pub(super) struct Seen<'a> {
    pub fleet: &'a Fleet,
    pub all: &'a Pace,
    pub gates: &'a Gates,
    /// Chains of each kind that are due and do not run.
    pub waiting: BTreeMap<String, u64>,
    pub backlogs: BTreeMap<String, u64>,
    pub span: Span,
    /// What arithmetic said before.
    pub before: Vec<String>,
}

/// Makes the report.
pub(super) fn make(plan: &Plan, seen: &Seen<'_>) -> Report {
    let mut warnings = plan.assumed.clone();
    warnings.extend(seen.before.iter().cloned());
    let verdicts = seen.fleet.verdicts();
    let mut fresh = fresh::reports(plan, &seen.fleet.recorders, seen.span);
    let (mut kinds, mut series) = (BTreeMap::new(), BTreeMap::new());
    for (name, recorder) in &seen.fleet.recorders {
        let Some(population) = plan.populations.get(name) else { continue };
        let (noted, chains) = (recorder.noted(), population.chains());
        let ended = verdicts.get(name).cloned().unwrap_or_default();
        let report = KindReport {
            chains,
            starts: noted.starts,
            dropped: ended.count("dropped"),
            skipped: ended.count("skipped"),
            failed: ended.count("failed"),
            retried: ended.count("retried"),
            late_ms: noted.late.quantiles(),
            freshness_s: noted.ages.summary(chains, seen.span.end, plan.length),
            never: noted.ages.never(chains),
            backlog: seen.waiting.get(name).copied().unwrap_or_default(),
            peak_to_mean: noted.pace.peak_to_mean().map(rounded),
            fresh: fresh.remove(name),
            tenants: noted.tenants.report(),
            reasons: ended.reasons(),
        };
        warnings.extend(judged(plan, name, &report, noted.firsts, &ended));
        series.insert(name.clone(), noted.pace.series());
        kinds.insert(name.clone(), report);
    }
    Report {
        from: plan.from.to_string(),
        for_s: plan.length.as_secs_f64(),
        seed: plan.seed,
        workers: plan.workers,
        peak_to_mean: seen.all.peak_to_mean().map(rounded),
        backlog: kinds.values().map(|kind| kind.backlog).sum(),
        kinds,
        longest_queues: seen.backlogs.clone(),
        throttles: seen.gates.report(plan.length),
        warnings,
        series: (seen.all.series(), series),
        begin: plan.from,
        length: plan.length,
    }
}

/// What a kind did that its schedule does not say.
fn judged(plan: &Plan, name: &str, report: &KindReport, firsts: u64, ended: &Verdicts) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(kind) = plan.config.kinds.get(name) else { return warnings };
    let (Some(interval), Some(period)) = (interval(kind, plan.from), period(kind, plan.from)) else { return warnings };
    let length = plan.length.as_secs_f64();
    // First ticks are spread over the interval, so a chain has half of it less on average.
    let rounds = ((length - interval.as_secs_f64() / 2.0) / period).max(0.0);
    let expected = report.chains as f64 * rounds;
    let refused = ended.count("dropped") + ended.count("skipped");
    if expected >= 2.0 && ((firsts + refused) as f64) < expected * 0.9 {
        let became = match firsts {
            0 => "none ever ran".into(),
            ran => format!(
                "each ran every {} on average, not every {}",
                spoken_seconds(length * report.chains as f64 / ran as f64),
                spoken(interval)
            ),
        };
        let (ran, due) = (grouped(firsts), grouped(expected.round() as u64));
        warnings.push(format!("{name}: {ran} ticks ran where about {due} were due; {became}"));
    }
    if report.never > 0 && rounds >= 2.0 {
        warnings.push(format!(
            "{name}: {} of {} chains never had a success",
            grouped(report.never),
            grouped(report.chains)
        ));
    }
    // What calendars leave out was not due.
    let reasons = report.reasons.iter().filter(|(reason, _)| {
        ["dropped", "skipped"].iter().any(|verdict| reason.starts_with(verdict)) && *reason != "skipped: calendar"
    });
    let reasons: Vec<String> = reasons.map(|(reason, n)| format!("{} {reason}", grouped(*n))).collect();
    if !reasons.is_empty() {
        warnings.push(format!("{name}: not everything that was due ran: {}", list(&reasons)));
    }
    warnings
}

/// To three decimals: more would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
