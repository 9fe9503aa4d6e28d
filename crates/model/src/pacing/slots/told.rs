//! What a throttle is told, by upstreams and by how starts end: it is held, slowed, or found broken, and begins
//! again with a slow start.

use super::holds::slow_start;
use super::{Micros, State, Wish};
use crate::pacing::slots::breaker::Breaker;
use crate::pacing::slots::limits::Limits;

/// What an upstream, or how the starts behind a throttle end, tells it.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    /// Nothing may start before.
    Hold {
        /// By the clock of whoever tells.
        until: Micros,
        /// In words for people.
        why: String,
    },
    /// So much of a budget remains until it is filled again.
    Budget {
        /// How many starts.
        remaining: u32,
        /// By the clock of whoever tells.
        reset: Micros,
        /// With so many or more there is no need to be careful.
        enough: u32,
    },
    /// A start has cost so much more than its slot was for.
    Spent {
        /// How many starts.
        cost: u32,
    },
    /// A start has failed.
    Failed {
        /// Whether it was to try.
        probe: bool,
        /// What follows from it.
        breaker: Breaker,
        /// In words for people.
        why: String,
    },
    /// A start has worked.
    Worked {
        /// Whether it was to try.
        probe: bool,
    },
    /// The start that was to try has not begun, and never will.
    Lost,
    /// Somebody ends what holds it or slows it.
    Release,
}

impl Word {
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
    /// Takes up what it is told.
    pub fn hear(&mut self, limits: &Limits, now: Micros, word: &Word) {
        match *word {
            Word::Hold { until, ref why } => self.hold(limits, until, why),
            Word::Budget { remaining: 0, reset, .. } => self.hold(limits, reset, "its budget is used up"),
            Word::Budget { .. } if self.circuit.tripped => {}
            Word::Budget { remaining, enough, .. } if remaining >= enough => self.holds.budget = Default::default(),
            Word::Budget { remaining, reset, .. } => {
                self.holds.budget = ((reset - now).max(0) as f64 / f64::from(remaining), reset);
            }
            Word::Spent { cost } => self.take(limits, now, Wish { priority: 0, cost, probe: true }),
            // What began before it was found broken says nothing new.
            Word::Failed { probe: false, .. } if self.circuit.tripped => {}
            Word::Failed { breaker, ref why, .. } => {
                let tried = self.circuit.tripped;
                let Some(wait) = self.circuit.failed(breaker) else { return };
                if tried {
                    // Nobody has to be patient with it any more.
                    self.pace.resume();
                }
                let failures = self.circuit.failures;
                let times = if failures == 1 { "" } else { "s" };
                self.hold(limits, now + wait, &format!("it has failed {failures} time{times} in a row: {why}"));
                self.holds.budget = (breaker.patience.as_micros() as f64, Micros::MAX);
            }
            Word::Worked { probe: false } if self.circuit.tripped => {}
            Word::Worked { .. } => self.close(limits, now),
            // Nobody has to be patient with it.
            Word::Lost if self.circuit.tripped => self.pace.resume(),
            Word::Lost => {}
            Word::Release => {
                // Whoever still waits says so again; of those who have gone nobody knew that it would be so soon.
                self.waiting.clear();
                self.holds.held_until = Micros::default();
                self.circuit.close();
                self.resume(limits, now);
            }
        }
    }

    /// It works, as far as anybody knows.
    pub(super) fn close(&mut self, limits: &Limits, now: Micros) {
        if self.circuit.close() {
            self.resume(limits, now);
        }
    }

    /// Slots are as close as ever again, after a slow start.
    pub(super) fn resume(&mut self, limits: &Limits, now: Micros) {
        self.holds.budget = Default::default();
        self.pace.resume();
        self.start_slowly(limits, now);
    }

    /// Nothing starts before, and not many at once then.
    pub(super) fn hold(&mut self, limits: &Limits, until: Micros, why: &str) {
        if self.holds.hold(until, why) {
            self.start_slowly(limits, until);
        }
    }

    pub(super) fn start_slowly(&mut self, limits: &Limits, from: Micros) {
        self.holds.slow_start_until = from + slow_start(limits);
        self.pace.lose_tolerance(limits, from);
    }

    /// Until when nothing starts, and why; the past when nothing holds it.
    pub fn held(&self) -> (Micros, &str) {
        (self.holds.held_until, &self.holds.why)
    }

    /// Whether one start at a time tries if the upstream works again: the circuit is open or half-open.
    pub fn is_probing(&self) -> bool {
        self.circuit.tripped
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{ask, busy, limits, wishes};
    use super::*;
    use crate::pacing::slots::limits::Window;

    const S: Micros = 1_000_000;
    const START: Micros = 1_700_000_000 * S;

    #[test]
    fn nothing_opens_while_it_is_held_and_it_reopens_gently() {
        for (limits, within) in [(limits(60, 60, 20), 4), (limits(100, 1, 50), 350)] {
            let mut state = State::default();
            busy(&limits, &mut state, START, 5, 0);
            let until = START + 25 * S;
            state.hear(&limits, START + 5 * S, &Word::Hold { until, why: "a test".into() });
            // A shorter one takes nothing of it back.
            state.hear(&limits, START + 5 * S, &Word::Hold { until: START + 6 * S, why: "another".into() });
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
    fn what_remains_of_a_budget_lasts_until_it_is_filled_again() {
        let limits = limits(10, 1, 1);
        let mut state = State::default();
        let budget = |remaining, reset| Word::Budget { remaining, reset: START + reset * S, enough: 50 };
        state.hear(&limits, START, &budget(20, 60));
        assert!(state.grant(&limits, &ask(&[], START)).slowed);
        let slots = busy(&limits, &mut state, START, 80, 0);
        let before = slots.iter().filter(|slot| **slot < START + 60 * S).count();
        assert!((19..=21).contains(&before), "{before}");
        assert!(slots.len() - before > 180);
        state.hear(&limits, START + 80 * S, &budget(0, 100));
        assert!(*busy(&limits, &mut state, START + 80 * S, 30, 0).first().unwrap() >= START + 100 * S);
    }

    #[test]
    fn with_enough_of_a_budget_nothing_is_slowed() {
        let limits = limits(10, 1, 1);
        let mut state = State::default();
        for (remaining, slowed) in [(49, true), (50, false), (49, true), (500, false)] {
            state.hear(&limits, START, &Word::Budget { remaining, reset: START + 60 * S, enough: 50 });
            assert_eq!(state.grant(&limits, &ask(&[], START)).slowed, slowed, "{remaining} remain");
        }
    }

    #[test]
    fn what_a_start_has_cost_beyond_its_slot_counts_as_well() {
        for limits in [limits(10, 10, 1), limits(10, 10, 10)] {
            let mut state = State::default();
            let first = state.grant(&limits, &ask(&wishes(1, 0), START)).slots[0].1;
            state.hear(&limits, START, &Word::Spent { cost: 9 });
            let again = state.grant(&limits, &ask(&wishes(1, 0), START)).again.unwrap();
            assert!(again >= first + 10 * S && again < first + 11 * S, "{}", again - first);
        }
    }

    fn breaker(failures: u32) -> Breaker {
        let [wait, longest, patience] = [10, 30, 25].map(Duration::from_secs);
        Breaker { failures, wait, longest, patience }
    }

    fn failed(probe: bool, failures: u32) -> Word {
        Word::Failed { probe, breaker: breaker(failures), why: "timeout".into() }
    }

    #[test]
    fn after_a_run_of_failures_one_start_at_a_time_tries_again() {
        let limits = limits(10, 1, 1);
        let mut state = State::default();
        for (word, failing) in
            [(failed(false, 3), true), (failed(false, 3), true), (Word::Worked { probe: false }, false)]
        {
            state.hear(&limits, START, &word);
            let answer = state.grant(&limits, &ask(&[], START));
            assert_eq!((answer.failing, answer.held_until), (failing, None), "{word:?}");
        }
        for _ in 0..3 {
            state.hear(&limits, START, &failed(false, 3));
        }
        assert_eq!(state.held(), (START + 10 * S, "it has failed 3 times in a row: timeout"));
        // What began before it was found broken changes nothing.
        state.hear(&limits, START + S, &failed(false, 3));
        state.hear(&limits, START + S, &Word::Worked { probe: false });
        let slots = busy(&limits, &mut state, START, 60, 0);
        assert_eq!(slots.iter().map(|slot| (slot - START) / S).collect::<Vec<_>>(), [10, 35], "each has its patience");
        assert!(state.is_probing());
        // Whoever tries in vain makes it wait twice as long, up to the longest.
        for (from, until) in [(60, 80), (80, 110), (110, 140)] {
            state.hear(&limits, START + from * S, &failed(true, 3));
            assert_eq!(state.held().0, START + until * S);
            assert_eq!(state.grant(&limits, &ask(&wishes(1, 0), START + from * S)).again, Some(START + until * S));
        }
        state.hear(&limits, START + 141 * S, &Word::Worked { probe: true });
        let slots = busy(&limits, &mut state, START + 141 * S, 20, 0);
        assert!(slots.len() > 150 && slots[0] < START + 142 * S, "{}", slots.len());
        let answer = state.grant(&limits, &ask(&wishes(1, 0), START + 170 * S));
        assert!(!answer.probe && !answer.failing);
        state.hear(&limits, START + 170 * S, &failed(false, 3));
        assert!(!state.is_probing(), "it counts from the beginning");
    }

    #[test]
    fn whoever_releases_it_ends_a_hold_a_budget_and_a_breaker() {
        let limits = limits(60, 60, 1);
        let hold = Word::Hold { until: START + 3_600 * S, why: "ban".into() };
        let budget = Word::Budget { remaining: 1, reset: START + 3_600 * S, enough: 50 };
        for word in [hold, budget, failed(false, 1)] {
            let mut state = State::default();
            state.grant(&limits, &ask(&wishes(1, 0), START));
            state.hear(&limits, START, &word);
            assert!(state.grant(&limits, &ask(&wishes(1, 0), START + S / 2)).slots.is_empty(), "{word:?}");
            state.hear(&limits, START + 2 * S, &Word::Release);
            let slots = busy(&limits, &mut state, START + 2 * S, 60, 0);
            assert!(slots[0] < START + 4 * S, "{word:?}: {}", slots[0] - START);
            let early = slots.iter().filter(|slot| **slot < START + 12 * S).count();
            assert!((2..6).contains(&early), "{word:?}: gently, and not {early} in ten seconds");
            assert!(slots.len() > 20);
        }
    }

    #[test]
    fn when_it_is_released_nobody_waits_for_those_who_have_gone() {
        let limits = limits(60, 60, 1);
        for gone in [Wish { priority: 1, cost: 1, probe: false }, Wish { priority: 0, cost: 3, probe: false }] {
            let mut state = State::default();
            state.grant(&limits, &ask(&wishes(1, 0), START));
            state.hear(&limits, START, &Word::Hold { until: START + 3_600 * S, why: "ban".into() });
            assert!(state.grant(&limits, &ask(&[gone], START)).slots.is_empty());
            state.hear(&limits, START + S, &Word::Release);
            let slots = busy(&limits, &mut state, START + S, 120, 0);
            assert!(slots.len() > 80, "{gone:?}: {} slots", slots.len());
        }
    }

    #[test]
    fn a_breaker_of_a_long_window_closes_at_once() {
        let day = Window { allow: 1_000, per: Duration::from_secs(86_400) };
        let limits = Limits { also: vec![day], ..limits(5_000, 3_600, 1) };
        let mut state = State::default();
        state.grant(&limits, &ask(&wishes(1, 0), START));
        state.hear(&limits, START, &failed(false, 1));
        let probe = state.grant(&limits, &ask(&wishes(1, 0), START + 10 * S));
        assert!(probe.probe && probe.slots.len() == 1);
        state.hear(&limits, START + 11 * S, &Word::Worked { probe: true });
        let slots = busy(&limits, &mut state, START + 11 * S, 60, 0);
        assert!(slots.len() > 10 && slots[0] < START + 15 * S, "{slots:?}");
    }

    #[test]
    fn what_a_start_that_tries_asks_for_besides_waits_for_nobodys_patience() {
        let limits = limits(10, 10, 1);
        let mut state = State::default();
        state.hear(&limits, START, &failed(false, 1));
        let now = START + 10 * S;
        assert!(state.grant(&limits, &ask(&wishes(1, 0), now)).probe);
        // By its pace, whoever else waits; and others wait for the next that tries as long as before.
        let besides = [Wish { priority: -1, cost: 2, probe: true }];
        let mut at = now;
        for _ in 0..3 {
            assert_eq!(state.grant(&limits, &ask(&wishes(1, 0), at)).slots, []);
            let again = state.grant(&limits, &ask(&besides, at)).again.unwrap();
            assert!(again > at && again <= at + 3 * S, "{}", again - at);
            assert_eq!(state.grant(&limits, &ask(&besides, again)).slots, [(0, again)]);
            at = again;
        }
        let next = state.grant(&limits, &ask(&wishes(1, 0), at)).again.unwrap();
        assert!((next - now - 25 * S).abs() < S, "{}", next - now);
        state.hear(&limits, at, &Word::Worked { probe: true });
        assert!(busy(&limits, &mut state, at, 60, 0).len() > 30);
    }

    #[test]
    fn a_start_that_was_to_try_and_never_began_is_followed_by_another_at_once() {
        let limits = limits(10, 10, 1);
        let mut state = State::default();
        state.hear(&limits, START, &failed(false, 1));
        let now = START + 10 * S;
        assert!(state.grant(&limits, &ask(&wishes(1, 0), now)).probe);
        state.hear(&limits, now, &Word::Lost);
        let again = state.grant(&limits, &ask(&wishes(1, 0), now)).again.unwrap();
        assert!(again < now + 2 * S, "{}", again - now);
        let next = state.grant(&limits, &ask(&wishes(1, 0), again));
        assert!(next.probe && next.slots.len() == 1);
        // One at a time all the same, and of one that works nothing is lost.
        assert!(state.grant(&limits, &ask(&wishes(1, 0), again)).again.unwrap() > again + 20 * S);
        state.hear(&limits, again, &Word::Worked { probe: true });
        let before = state.clone();
        state.hear(&limits, again, &Word::Lost);
        assert_eq!(state, before);
    }
}
