//! The report: a row for each scenario, for people and for machines (pure).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::blows::Blow;
use crate::judge::Ruling;
use crate::scenarios::Scenario;
use crate::verdict::{Figures, Taken, Verdict};

/// At most this number of findings of a sort is shown; all are counted.
const SHOWN: usize = 10;
/// How many lines of log a worker may write in each minute that a service is away.
const LINES_A_MINUTE: usize = 50;

/// How many lines a worker has logged from a fault on until the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    pub fault: &'static str,
    /// Of the worker that logged most.
    pub most: usize,
    pub may_be: Option<usize>,
}

impl Lines {
    /// From how many lines the workers had logged before and after.
    pub fn between(blow: Blow, before: &[usize], after: &[usize]) -> Self {
        let most = before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).max();
        let minutes = blow.outage().map(|length| length.as_secs().div_ceil(60) as usize);
        Self { fault: blow.name(), most: most.unwrap_or(0), may_be: minutes.map(|minutes| minutes * LINES_A_MINUTE) }
    }
}

/// What came of a scenario.
pub struct Outcome {
    pub seconds: u64,
    /// How many faults there were to be, and there were.
    pub wanted: usize,
    pub struck: usize,
    /// Workers that did not end in order when they were asked to.
    pub stuck: usize,
    pub lines: Vec<Lines>,
    pub ruling: Ruling,
    pub verdict: Verdict,
}

fn figures(of: Figures) -> Value {
    json!({ "hits": of.hits, "p50_ms": of.p50, "p99_ms": of.p99, "most_ms": of.most })
}

/// Makes a row. The scenario has passed if its `passed` is true.
pub fn row(scenario: &Scenario, outcome: &Outcome) -> Value {
    let Outcome { ruling, verdict, lines, .. } = outcome;
    let all = verdict.figures(|_| true);
    let mut missed = Vec::new();
    let mut miss = |true_of: bool, what: String| {
        if true_of {
            missed.push(what);
        }
    };
    miss(all.hits == 0, "no chain was hit".into());
    miss(all.p99 > scenario.p99, format!("p99 is {} ms, and may be {}", all.p99, scenario.p99));
    if let Some(most) = scenario.most {
        miss(all.most > most, format!("the longest pause is {} ms, and may be {most}", all.most));
    }
    miss(outcome.struck < outcome.wanted, format!("{} faults of {}", outcome.struck, outcome.wanted));
    miss(outcome.stuck > 0, format!("{} workers did not end", outcome.stuck));
    miss(scenario.has_long_runs() && verdict.taken.is_empty(), "nothing was taken over".into());
    let chatty = lines.iter().filter(|lines| lines.may_be.is_some_and(|may_be| lines.most > may_be));
    missed.extend(chatty.map(|lines| format!("{}: a worker logged {} lines", lines.fault, lines.most)));
    let findings = findings(ruling, verdict);
    let sound = findings.values().all(|found| found["count"] == json!(0));
    let faults: std::collections::BTreeSet<&str> = verdict.hits.iter().map(|hit| &*hit.fault).collect();
    let of_fault = |fault: &str| (fault.to_owned(), figures(verdict.figures(|hit| hit.fault == fault)));
    let mut slowest: Vec<_> = verdict.hits.iter().collect();
    slowest.sort_by_key(|hit| -hit.pause);
    let slowest: Vec<Value> =
        slowest.iter().take(SHOWN).map(|hit| json!([hit.number, hit.fault, hit.chain, hit.pause, hit.until])).collect();
    let most_lines = lines.iter().fold(BTreeMap::<&str, usize>::new(), |mut most, lines| {
        let one = most.entry(lines.fault).or_default();
        *one = (*one).max(lines.most);
        most
    });
    json!({
        "passed": sound && missed.is_empty(), "missed": missed, "seconds": outcome.seconds,
        "faults": outcome.struck, "calls": ruling.calls.0, "pauses": figures(all),
        "may_be_ms": scenario.p99, "most_may_be_ms": scenario.most,
        "by_fault": faults.into_iter().map(of_fault).collect::<Map<_, _>>(),
        "taken_over": taken(&verdict.taken), "log_lines": most_lines,
        "throttles": verdict.used.iter().map(|(kind, (used, nearest))| {
            (kind.clone(), json!({ "used": (used * 1_000.0).round() / 1_000.0, "nearest_ms": nearest }))
        }).collect::<Map<_, _>>(),
        "findings": findings, "slowest": slowest,
    })
}

fn findings(ruling: &Ruling, verdict: &Verdict) -> Map<String, Value> {
    let all = [
        ("dead", &ruling.dead),
        ("forked", &ruling.forked),
        ("unrecorded", &ruling.unrecorded),
        ("targets", &ruling.targets),
        ("twice", &verdict.twice),
        ("left_out", &verdict.left_out),
        ("unended", &verdict.unended),
        ("windows_over", &verdict.over),
    ];
    let shown =
        |found: &Vec<String>| json!({ "count": found.len(), "first": found.iter().take(SHOWN).collect::<Vec<_>>() });
    all.into_iter().map(|(name, found)| (name.to_owned(), shown(found))).collect()
}

/// How many runs were taken over, and how long before that, or after the worker was woken, they had ended.
fn taken(all: &[Taken]) -> Value {
    let of = |fault: &str| {
        let ended: Vec<i64> = all.iter().filter(|taken| taken.fault == fault).filter_map(|taken| taken.ended).collect();
        json!({
            "runs": all.iter().filter(|taken| taken.fault == fault).count(),
            "least_ms": ended.iter().min(), "most_ms": ended.iter().max(),
        })
    };
    json!({ "ended_after_waking": of("worker frozen"), "ended_before_the_others_call": of("worker cut off") })
}

/// Above the lines.
pub const HEAD: &str = "| | Scenario | Faults | p50 ms | p99 ms | May be | Most ms | Dead | Forked | Twice | Left out | Windows over | Log lines |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// A line for people.
pub fn line(scenario: &Scenario, row: &Value) -> String {
    let number = |path: &str| row.pointer(path).map(Value::to_string).unwrap_or_default();
    let found = |name: &str| number(&format!("/findings/{name}/count"));
    let lines = row["log_lines"].as_object().into_iter().flatten().filter_map(|(_, lines)| lines.as_u64()).max();
    let mut line = format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        if row["passed"] == json!(true) { "passed" } else { "FAILED" },
        scenario.name,
        number("/faults"),
        number("/pauses/p50_ms"),
        number("/pauses/p99_ms"),
        scenario.p99,
        number("/pauses/most_ms"),
        found("dead"),
        found("forked"),
        found("twice"),
        found("left_out"),
        found("windows_over"),
        lines.unwrap_or(0),
    );
    for missed in row["missed"].as_array().into_iter().flatten() {
        line += &format!("\n  missed: {}", missed.as_str().unwrap_or_default());
    }
    line
}
