//! What pauses there were, and for which fault each of them counts (pure), from the receiver's log and the ledger's
//! attempts. What is dead or forked the chaos test's judge finds; here is what it does not look at.
//!
//! A chain's *pause* is how long it was due and not called: for an interval, from one interval after the end of the
//! call before; for a call that did not count, from when its worker was struck or it ended, since it is due at once;
//! for a wall clock, from when the wall clock first showed the nominal time, or was set across it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::judge::{Attempt, Fault, Record, Seen, Span, meet, quantile, record};
use super::log::{Entry, Line};
use crate::support::windows::{self, Limit};

/// What was agreed on beforehand. All times are in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Kinds by interval, which is counted from the end of a run.
    pub every: BTreeMap<String, i64>,
    /// Kinds that are due whenever the wall clock shows a multiple of this.
    pub grid: BTreeMap<String, i64>,
    /// Nothing but clocks is broken, so no time of a grid may be left out.
    pub whole_grid: bool,
    pub limits: BTreeMap<String, Limit>,
    /// Faults from whose end pauses count: nothing can go on before.
    pub from_healing: BTreeSet<String>,
    /// For how long after its end a fault can be felt.
    pub felt: i64,
}

/// Among what a fault of one worker hits is what paused for longer.
const LATE: i64 = 500;
/// So close to where a clock was set, times of a grid may be called or not: workers notice within two seconds.
const EDGE: i64 = 3_000;
/// By how much two clocks may differ that go alike.
const ALIKE: i64 = 100;
/// How soon after a worker was woken its calls must have ended.
const AWAKE: i64 = 1_000;
/// What a run came to that another worker took over.
const TAKEN_OVER: [&str; 2] = ["lost", "fenced"];

/// The longest pause of a chain that a fault has hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    pub number: usize,
    pub fault: String,
    /// In words.
    pub chain: String,
    pub pause: i64,
    /// When it was over, in milliseconds since 1970.
    pub until: i64,
}

/// What the worker that was frozen or cut off had begun, and another took over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub fault: String,
    /// Of one that was cut off: how long before the other's call its own had ended. Of one that was frozen, how long
    /// after it was woken; none where it ended by itself before.
    pub ended: Option<i64>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub hits: Vec<Hit>,
    pub taken: Vec<Taken>,
    /// Ticks, and times of grids, that were called more than once without a takeover.
    pub twice: Vec<String>,
    pub left_out: Vec<String>,
    /// Calls that went on although they had been taken over.
    pub unended: Vec<String>,
    /// Windows that held too many starts.
    pub over: Vec<String>,
    /// For each limit how much of it was used, and by how many milliseconds a start too many missed its window.
    pub used: BTreeMap<String, (f64, Option<f64>)>,
}

/// The pauses after the faults of one kind, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// How many chains were hit, each counted once for each fault.
    pub hits: usize,
    pub p50: i64,
    pub p99: i64,
    pub most: i64,
}

impl Verdict {
    /// Of these faults.
    pub fn figures(&self, which: impl Fn(&Hit) -> bool) -> Figures {
        let mut pauses: Vec<i64> = self.hits.iter().filter(|hit| which(hit)).map(|hit| hit.pause).collect();
        pauses.sort_unstable();
        let at = |share| quantile(&pauses, share).unwrap_or_default();
        Figures { hits: pauses.len(), p50: at(0.5), p99: at(0.99), most: at(1.0) }
    }
}

/// Judges.
pub fn judge(log: &[Line], attempts: &[Attempt], terms: &Terms) -> Verdict {
    let record = record(log);
    let rows: HashMap<i64, &Attempt> = attempts.iter().map(|row| (row.fence, row)).collect();
    let clock = Clock::of(log, &record);
    let windows = windows_of(&record, terms.felt);
    let mut verdict = Verdict::default();
    for calls in record.chains.values() {
        let Some(kind) = calls.first().map(|seen| seen.call.kind.as_str()) else { continue };
        ticks(&record, calls, &rows, terms, &mut verdict);
        let pauses = if let Some(every) = terms.every.get(kind) {
            by_interval(&record, calls, *every)
        } else if let Some(grid) = terms.grid.get(kind) {
            if terms.whole_grid {
                grid_points(&record, &clock, calls, *grid, &mut verdict);
            }
            by_grid(&clock, calls, &mut verdict)
        } else {
            Vec::new()
        };
        for (fault, window) in record.faults.iter().zip(&windows) {
            verdict.hits.extend(hit(fault, *window, calls, &pauses, terms));
            taken_over(fault, terms.felt, calls, &mut verdict);
        }
    }
    for (kind, limit) in &terms.limits {
        limits(&record, kind, *limit, &mut verdict);
    }
    verdict
}

fn told(seen: &Seen) -> String {
    let (kind, key, tick) = (&seen.call.kind, &seen.call.key, seen.call.tick.unwrap_or_default());
    format!("{kind} {key} tick {tick}, called by {} at {}", seen.call.worker, seen.at)
}

fn name(seen: &Seen) -> String {
    format!("{} {}", seen.call.kind, seen.call.key)
}

fn end(seen: &Seen) -> i64 {
    seen.end.map_or(i64::MAX, |(at, _)| at)
}

/// No tick is left out, and none is called twice but where another worker took it over, or where its own had lost its
/// lease and ended it.
fn ticks(record: &Record, calls: &[Seen], rows: &HashMap<i64, &Attempt>, terms: &Terms, verdict: &mut Verdict) {
    for pair in calls.windows(2) {
        let (before, next) = (&pair[0], &pair[1]);
        let (Some(was), Some(is)) = (before.call.tick, next.call.tick) else { continue };
        if is > was + 1 {
            verdict.left_out.push(format!("{}: {} ticks before it were not called", told(next), is - was - 1));
        }
        let row = before.call.fence.and_then(|fence| rows.get(&fence));
        let verdict_of = row.and_then(|row| row.verdict.as_deref()).unwrap_or("no verdict");
        let lost_its_lease = || {
            let takes_leases =
                |fault: &&Fault| fault.target == before.call.worker || terms.from_healing.contains(fault.kind);
            record.faults.iter().filter(takes_leases).any(|fault| meet(fault.span, (before.at, next.at)))
        };
        let ended = TAKEN_OVER.contains(&verdict_of) || (verdict_of == "snoozed" && lost_its_lease());
        if is == was && !ended {
            verdict.twice.push(format!("{}: the call before it came to \"{verdict_of}\"", told(next)));
        }
    }
}

/// From when a chain was due until it was called, or the log ended.
type Pause = Span;

fn by_interval(record: &Record, calls: &[Seen], every: i64) -> Vec<Pause> {
    let mut pauses: Vec<Pause> = calls
        .windows(2)
        .map(|pair| {
            let (before, next) = (&pair[0], &pair[1]);
            let due = if next.call.tick == before.call.tick {
                struck(record, before, next.at).min(end(before))
            } else {
                end(before).saturating_add(every)
            };
            (due.min(next.at), next.at)
        })
        .collect();
    let last = calls.last().map_or(i64::MAX, end).saturating_add(every);
    if last < record.over {
        pauses.push((last, record.over));
    }
    pauses
}

/// When the worker of this call was struck while it ran, or until it was called anew.
fn struck(record: &Record, seen: &Seen, until: i64) -> i64 {
    let by_it = record.faults.iter().filter(|fault| fault.target == seen.call.worker);
    let meanwhile = by_it.filter(|fault| fault.span.0 <= until && fault.span.1 >= seen.at);
    meanwhile.map(|fault| fault.span.0.max(seen.at)).min().unwrap_or(i64::MAX)
}

/// What the wall clock showed: from when to when, and by how much it was ahead of the log's.
struct Clock(Vec<(Span, i64)>);

impl Clock {
    fn of(log: &[Line], record: &Record) -> Self {
        // Chains had begun before there was a log.
        let first = log.first().map_or(0, |line| line.at.as_millis()) - 60_000;
        let mut stretches = vec![((first, record.over), 0)];
        for line in log {
            if let Entry::Set { ahead } = line.entry {
                let at = line.at.as_millis();
                stretches.last_mut().expect("there is one").0.1 = at;
                stretches.push(((at, record.over), ahead));
            }
        }
        Self(stretches)
    }

    /// The moments at which it came to show `time`, or was set across it. What is about to start when it is set goes by
    /// what it showed before.
    fn moments(&self, time: i64) -> Vec<i64> {
        let shown = self.0.iter().filter_map(|((from, to), ahead)| {
            let at = time - ahead;
            (*from <= at && at < *to + EDGE).then_some(at)
        });
        let across = self.0.windows(2).filter_map(|pair| {
            let ((at, _), ahead) = pair[1];
            (at + pair[0].1 < time && time <= at + ahead).then_some(at)
        });
        let mut moments: Vec<i64> = shown.chain(across).collect();
        moments.sort_unstable();
        moments
    }
}

fn by_grid(clock: &Clock, calls: &[Seen], verdict: &mut Verdict) -> Vec<Pause> {
    let mut pauses = Vec::new();
    for seen in calls {
        let Some(nominal) = seen.call.nominal else { continue };
        let due = clock.moments(nominal.as_millis()).into_iter().rfind(|at| *at <= seen.at + ALIKE);
        match due {
            Some(due) => pauses.push((due.min(seen.at), seen.at)),
            None => verdict.twice.push(format!("{}: the clock had not shown its time, {nominal}", told(seen))),
        }
    }
    pauses
}

/// Each time of the grid is called once: those that the clock showed, and no other twice.
fn grid_points(record: &Record, clock: &Clock, calls: &[Seen], grid: i64, verdict: &mut Verdict) {
    let mut called: BTreeMap<i64, &Seen> = BTreeMap::new();
    for seen in calls {
        let Some(nominal) = seen.call.nominal else { continue };
        if let Some(before) = called.insert(nominal.as_millis(), seen)
            && before.call.tick != seen.call.tick
        {
            verdict.twice.push(format!(
                "{}: its time, {nominal}, had been called as tick {:?}",
                told(seen),
                before.call.tick
            ));
        }
    }
    let Some(first) = calls.first().map(|seen| seen.at) else { return };
    for (place, ((from, to), ahead)) in clock.0.iter().enumerate() {
        let (from, to) = ((*from).max(first) + EDGE, (*to).min(record.over) - EDGE);
        let mut time = (from + ahead).div_euclid(grid) * grid + grid;
        while time - ahead <= to {
            // What it had shown before there was a log does not come again either.
            let before = clock.0[..place]
                .iter()
                .enumerate()
                .any(|(n, ((from, to), ahead))| time <= to + ahead && (n == 0 || time >= from + ahead));
            if !before && !called.contains_key(&time) {
                verdict.left_out.push(format!(
                    "{}: the clock showed {time} at {}, and nothing came",
                    name(&calls[0]),
                    time - ahead
                ));
            }
            time += grid;
        }
    }
}

/// The time in which pauses count for a fault: until it can be felt no more, or the next one comes.
#[derive(Clone, Copy, Debug)]
struct Window {
    span: Span,
    /// When the next fault comes: what a chain waits from then on is not for this one.
    next: i64,
}

fn windows_of(record: &Record, felt: i64) -> Vec<Window> {
    let begins: Vec<i64> = record.faults.iter().map(|fault| fault.span.0).collect();
    let window = |fault: &Fault| {
        let healed = fault.span.1.min(record.over);
        let next = begins.iter().copied().filter(|at| *at > fault.span.0).min().unwrap_or(i64::MAX);
        Window { span: (fault.span.0, healed.saturating_add(felt).min(next).max(healed)), next: next.max(healed) }
    };
    record.faults.iter().map(window).collect()
}

/// A fault of one worker hits what that was at, and whatever paused for long all the same; each other fault hits all.
fn hit(fault: &Fault, window: Window, calls: &[Seen], pauses: &[Pause], terms: &Terms) -> Option<Hit> {
    let counts_from = if terms.from_healing.contains(fault.kind) { fault.span.1 } else { i64::MIN };
    let within = pauses.iter().filter(|(due, at)| *due < window.span.1 && *at >= window.span.0);
    let lengths = within.map(|(due, at)| {
        let until = (*at).min(window.next);
        ((until - (*due).max(counts_from)).max(0), until)
    });
    let (pause, until) = lengths.max()?;
    let at_it = |seen: &Seen| seen.call.worker == fault.target && seen.at <= fault.span.0 && end(seen) >= fault.span.0;
    if fault.is_of_a_worker() && pause <= LATE && !calls.iter().any(at_it) {
        return None;
    }
    let chain = calls.first().map(name).unwrap_or_default();
    Some(Hit { number: fault.number, fault: fault.kind.into(), chain, pause, until })
}

/// What a worker that stood still or was cut off had begun must have ended before others take it, or as soon as it can.
fn taken_over(fault: &Fault, felt: i64, calls: &[Seen], verdict: &mut Verdict) {
    let frozen = fault.kind == "worker frozen";
    if !frozen && fault.kind != "worker cut off" {
        return;
    }
    let mut own =
        calls.iter().enumerate().filter(|(_, seen)| seen.call.worker == fault.target && seen.at <= fault.span.1);
    let open = own.rfind(|(_, seen)| end(seen) > fault.span.0 && !seen.end.is_some_and(|(_, answered)| answered));
    let Some((place, seen)) = open else { return };
    let other =
        calls[place..].iter().find(|next| next.call.worker != seen.call.worker && next.call.tick == seen.call.tick);
    let Some(other) = other.filter(|other| other.at <= fault.span.1.saturating_add(felt)) else { return };
    let ended = if frozen {
        Some(end(seen).saturating_sub(fault.span.1)).filter(|late| *late >= 0)
    } else {
        Some(other.at.saturating_sub(end(seen)))
    };
    let wrong = if frozen { ended.is_some_and(|late| late > AWAKE) } else { ended.is_some_and(|before| before < 0) };
    if wrong {
        verdict.unended.push(format!(
            "{}: it went on, though {} had taken it over at {}",
            told(seen),
            other.call.worker,
            other.at
        ));
    }
    verdict.taken.push(Taken { fault: fault.kind.into(), ended });
}

fn limits(record: &Record, kind: &str, limit: Limit, verdict: &mut Verdict) {
    let calls = record.chains.values().flatten().filter(|seen| seen.call.kind == kind);
    let starts: Vec<Duration> = calls.map(|seen| Duration::from_millis(seen.at.unsigned_abs())).collect();
    let ruling = windows::judge(&starts, limit);
    let told = |over: &windows::Over| {
        format!("{kind}: one more than {} in {:?}, from {} on", limit.allow, over.took, over.from.as_millis())
    };
    verdict.over.extend(ruling.over.iter().map(told));
    // A start's own time does not count.
    let first = starts.iter().min().copied().unwrap_or_default();
    let used = windows::used(&starts, limit, first, Duration::from_millis(record.over.unsigned_abs()));
    verdict.used.insert(kind.to_owned(), (used, ruling.nearest.map(f64::round)));
}
