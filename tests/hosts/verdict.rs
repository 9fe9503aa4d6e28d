//! What came of it, beyond what the judge of the chaos test looks at: throttles, and runs that were done
//! twice (pure).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::load::{Kind, TIMEOUT};
use crate::log::{Call, Did, Entry, Line};
use crate::support::windows::{self, Limit};

/// No call should be on its way for longer, on a machine as busy as this test makes it.
const LONGEST_WAY: Duration = Duration::from_millis(100);

/// What throttles and jobs came to.
#[derive(Default)]
pub struct Verdict {
    /// For each throttle what it allows, and what was called.
    pub throttles: Map<String, Value>,
    /// Windows in which too many began, in words.
    pub over: Vec<String>,
    /// One-off jobs that were called more than once, and at what times after the first (in milliseconds since 1970).
    pub again: BTreeMap<String, Vec<i64>>,
}

/// Judges.
///
/// Windows are looked at from when all workers had begun. Calls of workers that were cut off are left out until they
/// called again: a cable that is plugged in brings what was sent half a minute before.
///
/// What counts is when calls began, which each of them tells by its deadline. As they come in, one may be in a window
/// too many by as much as the window's first took longer on its way (docs/throttles.md): with nine servers on two cores
/// that is tens of milliseconds, which says nothing of the throttle. More than [`LONGEST_WAY`] is held against it.
pub fn judge(log: &[Line], kinds: &[Kind], calm: (i64, i64)) -> Verdict {
    let mut cut_off: HashMap<&str, Vec<(i64, i64)>> = HashMap::new();
    for line in log {
        let at = line.at.as_millis();
        match &line.entry {
            Entry::Worker { worker, did: Did::Frozen } => cut_off.entry(worker).or_default().push((at, i64::MAX)),
            Entry::Worker { worker, did: Did::Thawed } => {
                cut_off.get_mut(worker.as_str()).and_then(|spans| spans.last_mut()).into_iter().for_each(|s| s.1 = at);
            }
            _ => {}
        }
    }
    let calls = || {
        log.iter().filter_map(|line| match &line.entry {
            Entry::Call(call) => Some((line.at.as_millis(), call)),
            _ => None,
        })
    };
    let mut verdict = Verdict::default();
    for (kind, limit) in kinds.iter().filter_map(|kind| Some((kind, kind.limit()?))) {
        let mut left_out = 0;
        let counts = |(at, call): &(i64, &Call)| {
            let spans = cut_off.get(call.worker.as_str()).into_iter().flatten();
            let kept = spans.into_iter().any(|(from, to)| (*from..=*to).contains(at));
            left_out += usize::from(kept);
            !kept
        };
        let of_kind = calls().filter(|(at, call)| call.kind == kind.name && *at >= calm.0);
        let judged: Vec<(i64, Option<i64>)> = of_kind.filter(counts).map(|(at, call)| (at, began(call))).collect();
        let arrivals: Vec<i64> = judged.iter().map(|(at, _)| *at).collect();
        // One that does not tell began no later than it came in.
        let starts: Vec<i64> = judged.iter().map(|(at, began)| began.unwrap_or(*at)).collect();
        let ways: Vec<f64> = judged.iter().filter_map(|(at, began)| Some((at - (*began)?) as f64)).collect();
        let untold = judged.iter().filter(|(_, began)| began.is_none()).count();
        let (ruling, arrived) = (judge_of(&starts, limit), judge_of(&arrivals, limit));
        let told = |over: &windows::Over| format!("{}: one more than {} in {:?}", kind.name, limit.allow, over.took);
        verdict.over.extend(ruling.over.iter().map(told));
        let beyond = arrived.over.iter().filter(|over| over.took + LONGEST_WAY < limit.per);
        verdict.over.extend(beyond.map(|over| format!("{}, as they came in", told(over))));
        if untold > 0 {
            verdict.over.push(format!("{}: {untold} calls do not say when they began", kind.name));
        }
        let row = json!({
            "allow": limit.allow, "per_s": limit.per.as_secs(), "starts": ruling.starts, "over": ruling.over.len(),
            "nearest_ms": ruling.nearest.map(f64::round), "left_out": left_out, "untold": untold,
            "as_they_came_in": {
                "over": arrived.over.len(), "nearest_ms": arrived.nearest.map(f64::round),
                "way_ms": {
                    "p50": windows::quantile(&ways, 0.5), "p99": windows::quantile(&ways, 0.99),
                    "p999": windows::quantile(&ways, 0.999), "most": windows::quantile(&ways, 1.0),
                },
            },
            "used_while_calm": share(&starts, limit, calm),
        });
        verdict.throttles.insert(kind.name.to_owned(), row);
    }
    let mut once: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (at, call) in calls().filter(|(_, call)| call.epoch.is_none()) {
        once.entry(&call.id).or_default().push(at);
    }
    let again = once.into_iter().filter(|(_, times)| times.len() > 1);
    verdict.again = again.map(|(id, times)| (id.to_owned(), times[1..].to_vec())).collect();
    verdict
}

/// When a call with a slot began, in milliseconds since 1970: its deadline comes the timeout later, in kinds whose
/// runs nothing else cuts short.
fn began(call: &Call) -> Option<i64> {
    Some(call.deadline?.as_millis() - TIMEOUT.as_millis() as i64)
}

fn judge_of(times: &[i64], limit: Limit) -> windows::Ruling {
    windows::judge(&moments(times), limit)
}

/// Milliseconds since 1970 as times that have passed since then.
fn moments(starts: &[i64]) -> Vec<Duration> {
    starts.iter().map(|at| Duration::from_millis(at.unsigned_abs())).collect()
}

/// How much of the limit was used between these times, in hundredths.
fn share(starts: &[i64], limit: Limit, (from, to): (i64, i64)) -> f64 {
    // A start's own time does not count.
    let first = starts.iter().copied().filter(|at| *at >= from).min().unwrap_or(from);
    let at = |moment: i64| Duration::from_millis(moment.unsigned_abs());
    (windows::used(&moments(starts), limit, at(first), at(to)) * 100.0).round() / 100.0
}
