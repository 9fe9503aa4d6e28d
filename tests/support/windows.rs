//! The judge of throttles (pure): whether any window held too many starts, and how much of a limit was used.
//!
//! It looks at every window, wherever it begins, and not only at those that begin with the minute. If a window
//! of the length `per` holds more than `allow` starts, then so does one that begins with a start; so it is
//! enough to look at each start and at the one that comes `allow` later.

use std::time::Duration;

/// A number of starts in any stretch of time of a given length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub allow: usize,
    pub per: Duration,
}

/// A window that held too many starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The first start in it.
    pub from: Duration,
    /// How long it took until there was one more than the limit allows: less than the window.
    pub took: Duration,
}

/// What the judge found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ruling {
    /// How many starts it looked at.
    pub starts: usize,
    /// Each start from which on there were too many.
    pub over: Vec<Over>,
    /// In milliseconds: by how much one start too many missed its window, where it was closest. Negative where it
    /// did not; none if there were never enough starts.
    pub nearest: Option<f64>,
}

/// Looks at all starts, in any order, by the time that has passed since some beginning.
pub fn judge(starts: &[Duration], limit: Limit) -> Ruling {
    let mut starts = starts.to_vec();
    starts.sort_unstable();
    let mut ruling = Ruling { starts: starts.len(), ..Ruling::default() };
    for (first, beyond) in starts.iter().zip(starts.iter().skip(limit.allow)) {
        let took = *beyond - *first;
        let missed = (took.as_secs_f64() - limit.per.as_secs_f64()) * 1_000.0;
        ruling.nearest = Some(ruling.nearest.map_or(missed, |nearest| nearest.min(missed)));
        if took < limit.per {
            ruling.over.push(Over { from: *first, took });
        }
    }
    ruling
}

/// How much of the limit was used after `from` and until `to`, where 1 is all of it. Only for times in which
/// there was always something to start; `from` had better be a start's own time, which then does not count.
pub fn used(starts: &[Duration], limit: Limit, from: Duration, to: Duration) -> f64 {
    let many = starts.iter().filter(|at| **at > from && **at <= to).count();
    let most = limit.allow as f64 * to.saturating_sub(from).as_secs_f64() / limit.per.as_secs_f64();
    if most > 0.0 { many as f64 / most } else { 0.0 }
}

/// How much of the limit was used, without the time in which nothing could start: `out`, spans that may overlap.
pub fn used_in(
    starts: &[Duration],
    limit: Limit,
    (from, to): (Duration, Duration),
    out: &[(Duration, Duration)],
) -> f64 {
    let whole = to.saturating_sub(from).as_secs_f64();
    let share = up((from, to), out).as_secs_f64() / whole;
    if share > 0.0 { used(starts, limit, from, to) / share } else { 0.0 }
}

/// How much of a span is in none of the others.
pub fn up((from, to): (Duration, Duration), out: &[(Duration, Duration)]) -> Duration {
    let mut out = out.to_vec();
    out.sort_unstable();
    let (mut at, mut up) = (from, Duration::ZERO);
    for (begin, end) in out {
        up += begin.min(to).saturating_sub(at);
        at = at.max(end);
    }
    up + to.saturating_sub(at)
}

/// The smallest value that is not below the share `of` of all; none of none.
pub fn quantile(values: &[f64], of: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let place = (sorted.len() as f64 * of).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied()
}
