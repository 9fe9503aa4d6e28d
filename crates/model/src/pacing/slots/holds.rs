//! What holds a throttle or slows it: upstreams, operators, and the slow start after a hold (pure).

use std::time::Duration;

use super::Micros;
use crate::pacing::slots::limits::Limits;

/// In a slow start, slots are so many times as far apart at first.
const SLOW_START_FACTOR: f64 = 4.0;
/// It takes so long until they are as close as ever: the window, but within these bounds.
const SLOW_START_BOUNDS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Holds, the slow start after them, and an upstream's budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Holds {
    /// Nothing starts before, by an upstream's word or while the circuit is open.
    pub held_until: Micros,
    /// Why not, in words for people.
    pub why: String,
    /// Slots are farther apart until then.
    pub slow_start_until: Micros,
    /// The upstream's budget: slots are at least this far apart, until then.
    pub budget: (f64, Micros),
    /// The last release by an operator that was obeyed.
    pub released: i64,
    /// Nothing starts before by an operator's word, which each request brings along.
    pub ordered: Micros,
    /// Until when that said so, and how much earlier that is since the clock was set back.
    pub as_ordered: (Micros, Micros),
}

impl Holds {
    /// Nothing starts before, whoever said so.
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

    /// How much later than a slot that opens at `opens` the next one does, where that would be `even` later, which is
    /// so much for each of the starts that it counts for. A start that tries whether the upstream works is held up by
    /// no budget; there is no slow start while it is not known to work.
    pub fn step(&self, limits: &Limits, opens: Micros, (cost, even): (u32, f64), works: bool, probe: bool) -> f64 {
        let mut step = even;
        let left = self.slow_start_until - opens;
        if left > 0 && works {
            let share = left as f64 / slow_start(limits) as f64;
            // No farther than to where it is over.
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
        // The beginning of time stands for never.
        for at in times.into_iter().filter(|at| **at != 0) {
            *at = at.saturating_add(by);
        }
    }
}

/// How long a slow start takes.
pub(super) fn slow_start(limits: &Limits) -> Micros {
    let (least, most) = SLOW_START_BOUNDS;
    limits.window.per.clamp(least, most).as_micros() as Micros
}
