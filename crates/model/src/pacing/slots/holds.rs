//! What holds a throttle or slows it: upstreams, operators, and the slow start after a hold (pure).

use std::time::Duration;

use super::Micros;
use crate::pacing::slots::limits::Limits;

/// How many times the usual spacing the slots have when a slow start begins.
const SLOW_START_FACTOR: f64 = 4.0;
/// How long a slow start takes: the window's length, but within these bounds.
const SLOW_START_BOUNDS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Holds, the slow start after them, and an upstream's budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Holds {
    /// Nothing starts before: an upstream has asked for it, or the breaker is open.
    pub held_until: Micros,
    /// The reason, for people.
    pub why: String,
    /// The slow start ends then.
    pub slow_start_until: Micros,
    /// The upstream's budget: slots have at least this spacing (µs), until then.
    pub budget: (f64, Micros),
    /// The version of the last release by an operator that was applied.
    pub released: i64,
    /// Nothing starts before by an operator's order, which each request brings along.
    pub ordered: Micros,
    /// `ordered` as the order says, and how much earlier that time is (µs, negative) since the clock was set back.
    pub as_ordered: (Micros, Micros),
}

impl Holds {
    /// Nothing starts before: the later of an upstream's hold and an operator's.
    pub fn until(&self) -> Micros {
        self.held_until.max(self.ordered)
    }

    /// Notes a hold; answers whether it is longer than the one in force.
    pub fn hold(&mut self, until: Micros, why: &str) -> bool {
        let longer = until > self.held_until;
        if longer {
            self.held_until = until;
            why.clone_into(&mut self.why);
        }
        longer
    }

    /// The spacing (µs) between a slot that opens at `opens` and the next one. Without a slow start and a budget it is
    /// `even`: the emission interval times `cost`. No budget slows a probe. There is no slow start while the upstream
    /// is not known to work (`works`).
    pub fn step(&self, limits: &Limits, opens: Micros, (cost, even): (u32, f64), works: bool, probe: bool) -> f64 {
        let mut step = even;
        let left = self.slow_start_until - opens;
        if left > 0 && works {
            let share = left as f64 / slow_start(limits) as f64;
            // No farther than to the end of the slow start.
            step += (even * (SLOW_START_FACTOR - 1.0) * share).min((left as f64 - even).max(0.0));
        }
        if opens < self.budget.1 && !probe {
            let left = self.budget.1.saturating_sub(opens) as f64;
            step = step.max((self.budget.0 * f64::from(cost)).min(left));
        }
        step
    }

    /// The same by a clock that shows `by` more.
    pub fn shift(&mut self, by: Micros) {
        let times = [&mut self.held_until, &mut self.slow_start_until, &mut self.budget.1];
        // Time 0 stands for never.
        for at in times.into_iter().filter(|at| **at != 0) {
            *at = at.saturating_add(by);
        }
    }
}

/// How long a slow start takes, in microseconds.
pub(super) fn slow_start(limits: &Limits) -> Micros {
    let (least, most) = SLOW_START_BOUNDS;
    limits.window.per.clamp(least, most).as_micros() as Micros
}
