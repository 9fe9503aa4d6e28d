//! What upstreams report, and how starts end: a throttle applies this feedback. It holds or slows starts, moves the
//! circuit breaker, and begins again with a slow start.

use super::holds::slow_start;
use super::{Micros, StartRequest, State};
use crate::pacing::slots::breaker::Breaker;
use crate::pacing::slots::limits::Limits;

/// What an upstream reports, or how a start has ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Feedback {
    /// Nothing may start before.
    Hold {
        /// By the sender's clock.
        until: Micros,
        why: String,
    },
    /// What remains of the upstream's budget until `reset`.
    Budget {
        remaining: u32,
        /// When the budget is full again, by the sender's clock.
        reset: Micros,
        /// With this many or more, nothing is slowed.
        enough: u32,
    },
    /// A start has cost more than its slot was for.
    Spent {
        /// How many starts more.
        cost: u32,
    },
    Failed {
        /// Whether the start was a probe.
        probe: bool,
        breaker: Breaker,
        why: String,
    },
    Worked {
        /// Whether the start was a probe.
        probe: bool,
    },
    /// The probe has not begun, and never will.
    Lost,
    /// An operator ends all that holds or slows the throttle.
    Release,
}

impl Feedback {
    /// The same by a clock that shows `by` more.
    #[must_use]
    pub fn moved(mut self, by: Micros) -> Self {
        if let Self::Hold { until: at, .. } | Self::Budget { reset: at, .. } = &mut self {
            *at = at.saturating_add(by);
        }
        self
    }
}

impl State {
    /// Applies one piece of feedback. Its times are by this state's clock.
    pub fn apply(&mut self, limits: &Limits, now: Micros, feedback: &Feedback) {
        match *feedback {
            Feedback::Hold { until, ref why } => self.hold(limits, until, why),
            Feedback::Budget { remaining: 0, reset, .. } => self.hold(limits, reset, "its budget is used up"),
            Feedback::Budget { .. } if self.circuit.tripped => {}
            Feedback::Budget { remaining, enough, .. } if remaining >= enough => self.holds.budget = Default::default(),
            Feedback::Budget { remaining, reset, .. } => {
                self.holds.budget = ((reset - now).max(0) as f64 / f64::from(remaining), reset);
            }
            Feedback::Spent { cost } => self.take(limits, now, StartRequest { priority: 0, cost, probe: true }),
            // A start that began before the breaker opened says nothing new.
            Feedback::Failed { probe: false, .. } if self.circuit.tripped => {}
            Feedback::Failed { breaker, ref why, .. } => {
                let tried = self.circuit.tripped;
                let Some(wait) = self.circuit.failed(breaker) else { return };
                if tried {
                    // The patience with this probe is over: the next one need not wait for it.
                    self.pace.resume();
                }
                let failures = self.circuit.failures;
                let times = if failures == 1 { "" } else { "s" };
                self.hold(limits, now + wait, &format!("it has failed {failures} time{times} in a row: {why}"));
                self.holds.budget = (breaker.patience.as_micros() as f64, Micros::MAX);
            }
            Feedback::Worked { probe: false } if self.circuit.tripped => {}
            Feedback::Worked { .. } => self.close(limits, now),
            // No start has to wait for the patience with the lost probe.
            Feedback::Lost if self.circuit.tripped => self.pace.resume(),
            Feedback::Lost => {}
            Feedback::Release => {
                // Starts that still wait ask again. Starts that have gone must not count: they could not know that the
                // hold would end so soon.
                self.waiting.clear();
                self.holds.held_until = Micros::default();
                self.circuit.close();
                self.resume(limits, now);
            }
        }
    }

    /// The upstream works, as far as is known: closes the breaker.
    pub(super) fn close(&mut self, limits: &Limits, now: Micros) {
        if self.circuit.close() {
            self.resume(limits, now);
        }
    }

    /// Nothing slows the throttle any more: slots come as close as the limits allow, after a slow start.
    pub(super) fn resume(&mut self, limits: &Limits, now: Micros) {
        self.holds.budget = Default::default();
        self.pace.resume();
        self.start_slowly(limits, now);
    }

    /// Nothing starts before `until`; then comes a slow start.
    pub(super) fn hold(&mut self, limits: &Limits, until: Micros, why: &str) {
        if self.holds.hold(until, why) {
            self.start_slowly(limits, until);
        }
    }

    pub(super) fn start_slowly(&mut self, limits: &Limits, from: Micros) {
        self.holds.slow_start_until = from + slow_start(limits);
        self.pace.lose_tolerance(limits, from);
    }

    /// Until when nothing starts, and why; a time in the past if no hold is in force.
    pub fn held(&self) -> (Micros, &str) {
        (self.holds.held_until, &self.holds.why)
    }

    /// Whether the breaker is open or half-open: one start at a time probes whether the upstream works again.
    pub fn is_tripped(&self) -> bool {
        self.circuit.tripped
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{ask, busy, limits, requests};
    use super::*;
    use crate::pacing::slots::limits::Window;

    const S: Micros = 1_000_000;
    const START: Micros = 1_700_000_000 * S;

    #[test]
    fn hold_opens_nothing_and_ends_with_a_slow_start() {
        for (limits, within) in [(limits(60, 60, 20), 4), (limits(100, 1, 50), 350)] {
            let mut state = State::default();
            busy(&limits, &mut state, START, 5, 0);
            let until = START + 25 * S;
            state.apply(&limits, START + 5 * S, &Feedback::Hold { until, why: "a test".into() });
            // A shorter hold does not shorten the one in force.
            state.apply(&limits, START + 5 * S, &Feedback::Hold { until: START + 6 * S, why: "another".into() });
            assert_eq!(state.held(), (until, "a test"));
            let after = busy(&limits, &mut state, START + 5 * S, 200, 0);
            assert!(*after.first().unwrap() >= until && *after.first().unwrap() < until + S);
            let early = after.iter().filter(|slot| **slot < until + 5 * S).count();
            assert!(early <= within, "{early} in the first five seconds");
            let late = after.iter().filter(|slot| **slot >= until + 65 * S).count();
            assert!(late as f64 > 0.95 * 115.0 * f64::from(limits.window.allow) / limits.window.per.as_secs_f64());
        }
    }

    #[test]
    fn budget_lasts_until_it_is_filled_again() {
        let limits = limits(10, 1, 1);
        let mut state = State::default();
        let budget = |remaining, reset| Feedback::Budget { remaining, reset: START + reset * S, enough: 50 };
        state.apply(&limits, START, &budget(20, 60));
        assert!(state.grant(&limits, &ask(&[], START)).slowed);
        let slots = busy(&limits, &mut state, START, 80, 0);
        let before = slots.iter().filter(|slot| **slot < START + 60 * S).count();
        assert!((19..=21).contains(&before), "{before}");
        assert!(slots.len() - before > 180);
        state.apply(&limits, START + 80 * S, &budget(0, 100));
        assert!(*busy(&limits, &mut state, START + 80 * S, 30, 0).first().unwrap() >= START + 100 * S);
    }

    #[test]
    fn budget_that_is_large_enough_slows_nothing() {
        let limits = limits(10, 1, 1);
        let mut state = State::default();
        for (remaining, slowed) in [(49, true), (50, false), (49, true), (500, false)] {
            state.apply(&limits, START, &Feedback::Budget { remaining, reset: START + 60 * S, enough: 50 });
            assert_eq!(state.grant(&limits, &ask(&[], START)).slowed, slowed, "{remaining} remain");
        }
    }

    #[test]
    fn spent_counts_beyond_the_slot() {
        for limits in [limits(10, 10, 1), limits(10, 10, 10)] {
            let mut state = State::default();
            let first = state.grant(&limits, &ask(&requests(1, 0), START)).slots[0].1;
            state.apply(&limits, START, &Feedback::Spent { cost: 9 });
            let again = state.grant(&limits, &ask(&requests(1, 0), START)).again.unwrap();
            assert!(again >= first + 10 * S && again < first + 11 * S, "{}", again - first);
        }
    }

    fn breaker(failures: u32) -> Breaker {
        let [wait, longest, patience] = [10, 30, 25].map(Duration::from_secs);
        Breaker { failures, wait, longest, patience }
    }

    fn failed(probe: bool, failures: u32) -> Feedback {
        Feedback::Failed { probe, breaker: breaker(failures), why: "timeout".into() }
    }

    #[test]
    fn breaker_opens_after_failures_and_probes_one_at_a_time() {
        let limits = limits(10, 1, 1);
        let mut state = State::default();
        for (word, failing) in
            [(failed(false, 3), true), (failed(false, 3), true), (Feedback::Worked { probe: false }, false)]
        {
            state.apply(&limits, START, &word);
            let answer = state.grant(&limits, &ask(&[], START));
            assert_eq!((answer.failing, answer.held_until), (failing, None), "{word:?}");
        }
        for _ in 0..3 {
            state.apply(&limits, START, &failed(false, 3));
        }
        assert_eq!(state.held(), (START + 10 * S, "it has failed 3 times in a row: timeout"));
        // A start that began before the breaker opened changes nothing.
        state.apply(&limits, START + S, &failed(false, 3));
        state.apply(&limits, START + S, &Feedback::Worked { probe: false });
        let slots = busy(&limits, &mut state, START, 60, 0);
        assert_eq!(slots.iter().map(|slot| (slot - START) / S).collect::<Vec<_>>(), [10, 35], "each has its patience");
        assert!(state.is_tripped());
        // Each failed probe doubles the wait, up to the longest.
        for (from, until) in [(60, 80), (80, 110), (110, 140)] {
            state.apply(&limits, START + from * S, &failed(true, 3));
            assert_eq!(state.held().0, START + until * S);
            assert_eq!(state.grant(&limits, &ask(&requests(1, 0), START + from * S)).again, Some(START + until * S));
        }
        state.apply(&limits, START + 141 * S, &Feedback::Worked { probe: true });
        let slots = busy(&limits, &mut state, START + 141 * S, 20, 0);
        assert!(slots.len() > 150 && slots[0] < START + 142 * S, "{}", slots.len());
        let answer = state.grant(&limits, &ask(&requests(1, 0), START + 170 * S));
        assert!(!answer.probe && !answer.failing);
        state.apply(&limits, START + 170 * S, &failed(false, 3));
        assert!(!state.is_tripped(), "it counts from the beginning");
    }

    #[test]
    fn release_ends_a_hold_a_budget_and_a_breaker() {
        let limits = limits(60, 60, 1);
        let hold = Feedback::Hold { until: START + 3_600 * S, why: "ban".into() };
        let budget = Feedback::Budget { remaining: 1, reset: START + 3_600 * S, enough: 50 };
        for word in [hold, budget, failed(false, 1)] {
            let mut state = State::default();
            state.grant(&limits, &ask(&requests(1, 0), START));
            state.apply(&limits, START, &word);
            assert!(state.grant(&limits, &ask(&requests(1, 0), START + S / 2)).slots.is_empty(), "{word:?}");
            state.apply(&limits, START + 2 * S, &Feedback::Release);
            let slots = busy(&limits, &mut state, START + 2 * S, 60, 0);
            assert!(slots[0] < START + 4 * S, "{word:?}: {}", slots[0] - START);
            let early = slots.iter().filter(|slot| **slot < START + 12 * S).count();
            assert!((2..6).contains(&early), "{word:?}: gently, and not {early} in ten seconds");
            assert!(slots.len() > 20);
        }
    }

    #[test]
    fn release_forgets_starts_that_have_gone() {
        let limits = limits(60, 60, 1);
        for gone in
            [StartRequest { priority: 1, cost: 1, probe: false }, StartRequest { priority: 0, cost: 3, probe: false }]
        {
            let mut state = State::default();
            state.grant(&limits, &ask(&requests(1, 0), START));
            state.apply(&limits, START, &Feedback::Hold { until: START + 3_600 * S, why: "ban".into() });
            assert!(state.grant(&limits, &ask(&[gone], START)).slots.is_empty());
            state.apply(&limits, START + S, &Feedback::Release);
            let slots = busy(&limits, &mut state, START + S, 120, 0);
            assert!(slots.len() > 80, "{gone:?}: {} slots", slots.len());
        }
    }

    #[test]
    fn breaker_of_a_long_window_closes_at_once() {
        let day = Window { allow: 1_000, per: Duration::from_secs(86_400) };
        let limits = Limits { also: vec![day], ..limits(5_000, 3_600, 1) };
        let mut state = State::default();
        state.grant(&limits, &ask(&requests(1, 0), START));
        state.apply(&limits, START, &failed(false, 1));
        let probe = state.grant(&limits, &ask(&requests(1, 0), START + 10 * S));
        assert!(probe.probe && probe.slots.len() == 1);
        state.apply(&limits, START + 11 * S, &Feedback::Worked { probe: true });
        let slots = busy(&limits, &mut state, START + 11 * S, 60, 0);
        assert!(slots.len() > 10 && slots[0] < START + 15 * S, "{slots:?}");
    }

    #[test]
    fn probe_that_asks_for_more_waits_for_no_patience() {
        let limits = limits(10, 10, 1);
        let mut state = State::default();
        state.apply(&limits, START, &failed(false, 1));
        let now = START + 10 * S;
        assert!(state.grant(&limits, &ask(&requests(1, 0), now)).probe);
        // It waits for the pace only, not for starts that wait; and others wait for the next probe as long as before.
        let more = [StartRequest { priority: -1, cost: 2, probe: true }];
        let mut at = now;
        for _ in 0..3 {
            assert_eq!(state.grant(&limits, &ask(&requests(1, 0), at)).slots, []);
            let again = state.grant(&limits, &ask(&more, at)).again.unwrap();
            assert!(again > at && again <= at + 3 * S, "{}", again - at);
            assert_eq!(state.grant(&limits, &ask(&more, again)).slots, [(0, again)]);
            at = again;
        }
        let next = state.grant(&limits, &ask(&requests(1, 0), at)).again.unwrap();
        assert!((next - now - 25 * S).abs() < S, "{}", next - now);
        state.apply(&limits, at, &Feedback::Worked { probe: true });
        assert!(busy(&limits, &mut state, at, 60, 0).len() > 30);
    }

    #[test]
    fn lost_probe_is_followed_by_another_at_once() {
        let limits = limits(10, 10, 1);
        let mut state = State::default();
        state.apply(&limits, START, &failed(false, 1));
        let now = START + 10 * S;
        assert!(state.grant(&limits, &ask(&requests(1, 0), now)).probe);
        state.apply(&limits, now, &Feedback::Lost);
        let again = state.grant(&limits, &ask(&requests(1, 0), now)).again.unwrap();
        assert!(again < now + 2 * S, "{}", again - now);
        let next = state.grant(&limits, &ask(&requests(1, 0), again));
        assert!(next.probe && next.slots.len() == 1);
        // One at a time all the same; and after a success a lost probe changes nothing.
        assert!(state.grant(&limits, &ask(&requests(1, 0), again)).again.unwrap() > again + 20 * S);
        state.apply(&limits, again, &Feedback::Worked { probe: true });
        let before = state.clone();
        state.apply(&limits, again, &Feedback::Lost);
        assert_eq!(state, before);
    }
}
