//! The report: one JSON object, for people and for machines.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::faults::Fault;
use super::judge::{Recovery, Ruling, quantile};

/// At most this number of findings of a sort is shown; all are counted.
const SHOWN: usize = 20;

/// What the driver knows of a run.
pub struct Course {
    pub seed: u64,
    /// How long faults went on, in seconds.
    pub seconds: f64,
    pub chains: usize,
    /// How often each fault happened, and how often it was to.
    pub faults: BTreeMap<Fault, (usize, usize)>,
    /// Workers that did not end in order when they were asked to.
    pub stuck_workers: usize,
    /// Unusable messages that the broker confirmed, and how many are in quarantine in the end.
    pub poison: (usize, Option<u64>),
    /// Recoveries that must not take longer than this, in milliseconds, by fault.
    pub bounds: Vec<(&'static str, i64)>,
}

/// Makes the report. The run has passed if its `passed` is true. `unexplained` are the rows of the ledger that the
/// specification does not explain.
pub fn report(course: &Course, ruling: &Ruling, unexplained: &Vec<String>) -> Value {
    let mut by_fault: BTreeMap<&str, Vec<&Recovery>> = BTreeMap::new();
    for recovery in &ruling.recoveries {
        by_fault.entry(&recovery.fault).or_default().push(recovery);
    }
    let mut recovery = Map::new();
    let mut slow = Vec::new();
    for (fault, all) in &by_fault {
        let mut times: Vec<i64> = all.iter().filter(|one| !one.disturbed).map(|one| one.slowest).collect();
        times.sort_unstable();
        let bound = course.bounds.iter().find(|(name, _)| name == fault).map(|(_, bound)| *bound);
        let (p50, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
        if let (Some(p99), Some(bound)) = (p99, bound)
            && p99 > bound
        {
            slow.push(format!("after \"{fault}\" the p99 of recovery is {p99} ms, and may be {bound}"));
        }
        let row = json!({
            "faults": all.len(), "undisturbed": times.len(), "p50_ms": p50, "p99_ms": p99,
            "slowest_ms": times.last(), "may_be_ms": bound,
        });
        recovery.insert((*fault).to_owned(), row);
    }
    // What was struck only while something else was broken, so that its bound says nothing.
    let unmeasured: Vec<&str> = course
        .bounds
        .iter()
        .map(|(fault, _)| *fault)
        .filter(|fault| recovery.get(*fault).is_some_and(|row| row["undisturbed"] == json!(0)))
        .collect();
    let missing: Vec<String> = course
        .faults
        .iter()
        .filter(|(_, (happened, wanted))| happened < wanted)
        .map(|(fault, (happened, wanted))| format!("{}: {happened} of {wanted}", fault.name()))
        .collect();
    let happened: Map<String, Value> =
        course.faults.iter().map(|(fault, (happened, _))| (fault.name().to_owned(), json!(happened))).collect();
    let Ruling { dead, forked, unrecorded, lost, targets, carries, calls, accepted, beside, latest, set_aside, .. } =
        ruling;
    let all = [dead, forked, unrecorded, lost, targets, carries, unexplained];
    let sound = all.iter().all(|findings| findings.is_empty()) && calls.0 > 0 && ruling.carried > 0;
    let passed = sound && missing.is_empty() && slow.is_empty() && course.stuck_workers == 0;
    let shown = |findings: &Vec<String>| findings.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    json!({
        "passed": passed,
        "seed": course.seed,
        "seconds": course.seconds.round(),
        "chains": course.chains,
        "calls": calls.0,
        "one_off": { "accepted": accepted, "called": calls.1, "lost": lost.len() },
        "faults": happened,
        "dead": dead.len(),
        "forked": forked.len(),
        "unrecorded": unrecorded.len(),
        "targets": targets.len(),
        "carries": { "compared": ruling.carried, "wrong": carries.len() },
        "unexplained": unexplained.len(),
        "beside": beside,
        "set_aside": set_aside,
        "latest_ms": latest,
        "poison": { "confirmed": course.poison.0, "in_quarantine": course.poison.1 },
        "stuck_workers": course.stuck_workers,
        "recovery": recovery,
        "findings": {
            "dead": shown(dead), "forked": shown(forked), "unrecorded": shown(unrecorded), "lost": shown(lost),
            "targets": shown(targets), "carries": shown(carries), "unexplained": shown(unexplained),
            "too_few": missing, "slow": slow, "not_measured": unmeasured,
        },
    })
}
