//! What came of it, beyond what the judge of the chaos test looks at: throttles, and runs that were done
//! twice (pure).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::judge::{Attempt, Chain};
use crate::load::Kind;
use crate::log::{Entry, Line};
use crate::support::windows::{self, Limit};

/// What throttles and jobs came to.
#[derive(Default)]
pub struct Verdict {
    /// For each throttle what it allows, what the ledger says of claims, and whom they call of calls.
    pub throttles: Map<String, Value>,
    /// Windows in which too many were claimed, in words.
    pub over: Vec<String>,
    /// One-off jobs that were called more than once, and at what times after the first (in milliseconds since 1970).
    pub again: BTreeMap<String, Vec<i64>>,
}

/// Judges.
///
/// Windows are judged by when starts were claimed, which is after their slot had opened and before the call, by the
/// ledger's clock: how long a call is then under way is the network's doing, which a cable that is plugged in again
/// makes half a minute. How many windows held too many calls as they came in is told beside it.
pub fn judge(log: &[Line], chains: &[Chain], attempts: &[Attempt], kinds: &[Kind], calm: (i64, i64)) -> Verdict {
    let kind_of: HashMap<i64, &str> = chains.iter().map(|chain| (chain.epoch, &*chain.kind)).collect();
    let calls = || {
        log.iter().filter_map(|line| match &line.entry {
            Entry::Call(call) => Some((line.at.as_millis(), call)),
            _ => None,
        })
    };
    let mut verdict = Verdict::default();
    for (kind, limit) in kinds.iter().filter_map(|kind| Some((kind, kind.limit()?))) {
        let of_kind = |row: &&Attempt| kind_of.get(&row.epoch) == Some(&kind.name);
        let claims: Vec<i64> = attempts.iter().filter(of_kind).map(|row| row.started).collect();
        let came: Vec<i64> = calls().filter(|(_, call)| call.kind == kind.name).map(|(at, _)| at).collect();
        let (ruling, seen) = (windows::judge(&moments(&claims), limit), windows::judge(&moments(&came), limit));
        let told = |over: &windows::Over| format!("{}: one more than {} in {:?}", kind.name, limit.allow, over.took);
        verdict.over.extend(ruling.over.iter().map(told));
        let row = json!({
            "allow": limit.allow, "per_s": limit.per.as_secs(),
            "claims": ruling.starts, "over": ruling.over.len(), "nearest_ms": ruling.nearest.map(f64::round),
            "calls": seen.starts, "calls_over": seen.over.len(), "calls_nearest_ms": seen.nearest.map(f64::round),
            "used_while_calm": share(&claims, limit, calm),
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
