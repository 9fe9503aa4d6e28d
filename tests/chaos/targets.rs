//! The targets of each chain (pure): every window of its schedule has its run, within its bound, and none is surplus.
//!
//! A chain counts its interval from the end of a run, so each tick opens the window of the next. Judged by what the
//! receiver saw: the ticks that it was called for, with their nominal times, and when it answered. The ledger says
//! only which of the answers it has taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{ANSWERED, Attempt, Chain, Record, Rules, Seen};

/// A kind's interval, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    pub every: i64,
    pub jitter: i64,
}

/// How far apart two clocks may be that are read for one moment, in milliseconds: the receiver's, and the ledger's as
/// its worker follows it.
const CLOCKS: i64 = 50;

/// What ends a tick.
fn ends(row: &Attempt) -> bool {
    matches!(row.verdict.as_deref(), Some("done" | "failed" | "retired"))
}

/// What is wrong with the targets of all chains.
pub fn missed_and_surplus(record: &Record, chains: &[Chain], attempts: &[Attempt], rules: &Rules) -> Vec<String> {
    let mut by_chain: HashMap<i64, Vec<&Attempt>> = HashMap::new();
    attempts.iter().filter(|row| ends(row)).for_each(|row| by_chain.entry(row.epoch).or_default().push(row));
    let mut findings = Vec::new();
    // The engine's own chains call nobody.
    for chain in chains.iter().filter(|chain| !chain.kind.starts_with("roundelay.")) {
        let calls = record.chains.get(&chain.epoch).map(Vec::as_slice).unwrap_or_default();
        let mut ended = by_chain.remove(&chain.epoch).unwrap_or_default();
        ended.sort_by_key(|row| row.fence);
        let mut say = |what: String| findings.push(format!("{} {}: {what}", chain.kind, chain.key));
        of_ends(record, &ended, &mut say);
        of_calls(calls, &mut say);
        if let Some(rhythm) = rules.rhythms.get(&chain.kind) {
            of_windows(record, calls, &ended, *rhythm, &mut say);
        }
    }
    findings
}

/// The ledger's ends: each tick once, and none that the receiver knows nothing of.
fn of_ends(record: &Record, ended: &[&Attempt], say: &mut impl FnMut(String)) {
    let mut times: BTreeMap<i64, usize> = BTreeMap::new();
    for row in ended {
        *times.entry(row.tick).or_default() += 1;
        let done = row.verdict.as_deref() == Some("done");
        if done && !record.answered.contains(&row.fence) {
            say(format!("tick {} is done with fence {}, whose call was never answered", row.tick, row.fence));
        }
    }
    let twice = times.iter().filter(|(_, times)| **times > 1);
    twice.for_each(|(tick, times)| say(format!("tick {tick} has ended {times} times")));
}

/// The receiver's calls: no tick between the first and the last is left out.
fn of_calls(calls: &[Seen], say: &mut impl FnMut(String)) {
    let ticks: BTreeSet<i64> = calls.iter().filter_map(|seen| seen.call.tick).collect();
    for (before, after) in ticks.iter().zip(ticks.iter().skip(1)).filter(|(before, after)| **after != **before + 1) {
        say(format!("it was called for tick {before} and then for tick {after}"));
    }
}

/// The windows between ticks that ended and those that came next.
fn of_windows(record: &Record, calls: &[Seen], ended: &[&Attempt], rhythm: Rhythm, say: &mut impl FnMut(String)) {
    // The nominal time of each tick, and its first call.
    let mut first: BTreeMap<i64, (i64, &Seen)> = BTreeMap::new();
    for seen in calls {
        if let (Some(tick), Some(nominal)) = (seen.call.tick, seen.call.nominal) {
            first.entry(tick).or_insert((nominal.as_millis(), seen));
        }
    }
    let shortest = rhythm.every - rhythm.jitter - CLOCKS;
    for row in ended {
        let (Some((nominal, _)), Some((next, called))) = (first.get(&row.tick), first.get(&(row.tick + 1))) else {
            continue;
        };
        if next - nominal < shortest {
            let window = next - nominal;
            say(format!("ticks {} and {} are in one window, {window} ms apart", row.tick, row.tick + 1));
        }
        let of_row = calls.iter().find(|seen| seen.call.fence == Some(row.fence));
        let Some((end, true)) = of_row.and_then(|seen| seen.end) else { continue };
        if called.at - end < shortest {
            let early = called.at - end;
            say(format!("tick {} was called {early} ms after the end of the one before", row.tick + 1));
        }
        // The interval counts from when the worker has the answer, however long it then takes to write that.
        let struck = of_row.is_some_and(|seen| record.was_struck(&seen.call.worker, (end, *next)));
        if !struck && next - end > rhythm.every + rhythm.jitter + ANSWERED {
            let late = next - end;
            say(format!("tick {} has its window {late} ms after the end of the one before", row.tick + 1));
        }
    }
}
