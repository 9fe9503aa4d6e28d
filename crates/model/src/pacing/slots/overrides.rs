//! How a throttle follows what an operator has ordered.

use super::holds::slow_start;
use super::{LEAD, Micros, State};
use crate::pacing::orders::Orders;
use crate::pacing::slots::feedback::Feedback;
use crate::pacing::slots::limits::Limits;

impl State {
    /// Applies what an operator has ordered. Each request brings the orders anew, so most calls change nothing.
    pub fn apply_orders(&mut self, limits: &Limits, now: Micros, orders: &Orders) {
        if orders.released > self.holds.released {
            self.holds.released = orders.released;
            self.release(limits, now);
        }
        if orders.held_until() != self.holds.as_ordered.0 {
            self.holds.as_ordered = (orders.held_until(), 0);
            self.waiting.clear();
        }
        self.holds.ordered = self.holds.as_ordered.0 + self.holds.as_ordered.1;
        let (until, before) = (self.holds.ordered, self.holds.slow_start_until);
        // The slow start is noted when the hold ends and not before: until then the hold may be shortened or taken
        // back.
        if orders.hold.is_some() && until <= now + LEAD && now < until + slow_start(limits) {
            self.start_slowly(limits, until);
            self.holds.slow_start_until = self.holds.slow_start_until.max(before);
        }
    }

    /// Ends what holds or slows the throttle, if something does.
    fn release(&mut self, limits: &Limits, now: Micros) {
        if self.holds.held_until > now || self.holds.budget.1 > now || self.circuit.tripped {
            self.apply(limits, now, &Feedback::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{GrantRequest, StartRequest};
    use super::*;
    use crate::pacing::orders::ThrottleOrder;
    use crate::pacing::slots::breaker::Breaker;
    use crate::pacing::slots::limits::Window;

    const S: Micros = 1_000_000;
    const START: Micros = 1_700_000_000 * S;

    fn limits(allow: u32, secs: u64, burst: u32) -> Limits {
        Limits { window: Window { allow, per: Duration::from_secs(secs) }, burst, also: Vec::new() }
    }

    fn hold(secs: u64) -> ThrottleOrder {
        ThrottleOrder::Hold { span: Duration::from_secs(secs), why: "they are down".into() }
    }

    fn asked(until: Micros) -> Feedback {
        Feedback::Hold { until, why: "ban".into() }
    }

    /// When slots open for `secs`, for an asker that has always enough to do, and brings the orders each time.
    fn busy(limits: &Limits, state: &mut State, orders: &Orders, from: Micros, secs: i64) -> Vec<Micros> {
        let (mut now, mut slots, requests) =
            (from, Vec::new(), [StartRequest { priority: 0, cost: 1, probe: false }; 600]);
        while now < from + secs * S {
            let time = state.turn_to(limits, now);
            state.apply_orders(limits, time, orders);
            let answer = state.grant(limits, &GrantRequest { now, ahead: 0, requests: &requests });
            slots.extend(answer.slots.iter().map(|slot| slot.1));
            now = answer.again.map_or(now + 1, |again| (again - LEAD / 2).max(now + 1));
            *state = serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap();
        }
        slots.retain(|slot| *slot < from + secs * S);
        slots
    }

    #[test]
    fn hold_of_operator_or_upstream_whichever_is_later_counts() {
        for (ordered, theirs, opens) in [(30, 10, 30), (10, 30, 30), (30, 0, 30), (0, 20, 20)] {
            let (limits, mut state, mut orders) = (limits(60, 60, 1), State::default(), Orders::default());
            orders.add(&hold(ordered), "ann", START);
            state.apply(&limits, START, &asked(START + theirs * S));
            let slots = busy(&limits, &mut state, &orders, START, 150);
            assert_eq!((slots[0] - START) / S, opens, "{ordered} s ordered, {theirs} s asked for");
            // A slow start: some fifteen in the first minute in place of sixty, and then the usual rate.
            let early = slots.iter().filter(|slot| **slot < START + (opens + 20) * S).count();
            assert!(early < 10, "{early} of 20 in the first seconds after {ordered} and {theirs}");
            assert!(slots.last().unwrap() - slots[slots.len() - 2] < 2 * S);
        }
    }

    #[test]
    fn hold_that_is_shortened_leaves_nothing_of_the_longer_one() {
        let (limits, mut state, mut orders) = (limits(60, 60, 5), State::default(), Orders::default());
        orders.add(&hold(3_600), "ann", START);
        assert_eq!(busy(&limits, &mut state, &orders, START, 10), [0; 0]);
        orders.add(&hold(5), "ann", START + 10 * S);
        let slots = busy(&limits, &mut state, &orders, START + 10 * S, 30);
        assert_eq!((slots[0] - START) / S, 15);
        assert!(slots[1] > slots[0] + S, "what was saved up before is gone");
    }

    #[test]
    fn hold_lasts_as_long_as_it_should_when_the_clock_is_set_back() {
        let (limits, mut orders) = (limits(60, 60, 5), Orders::default());
        orders.add(&hold(60), "ann", START);
        // While nothing is asked, time stands still.
        for (at, opens) in [(100, 0), (20, 60)] {
            let mut state = State::default();
            busy(&limits, &mut state, &orders, START, at);
            let back = START + (at - 3_600) * S;
            let slots = busy(&limits, &mut state, &orders, back, 120);
            let after = (slots[0] - back) / S;
            assert!((opens..opens + 5).contains(&after), "set back after {at} s, it opens {after} s later");
        }
    }

    #[test]
    fn release_ends_holds_of_both_sorts_at_once_and_once_only() {
        for burst in [1, 20] {
            let (limits, mut state, mut orders) = (limits(60, 60, burst), State::default(), Orders::default());
            busy(&limits, &mut state, &orders, START, 5);
            orders.add(&hold(3_600), "ann", START + 5 * S);
            state.apply(&limits, START + 5 * S, &asked(START + 7_200 * S));
            assert_eq!(busy(&limits, &mut state, &orders, START + 5 * S, 10), [0; 0]);
            orders.add(&ThrottleOrder::Release, "ann", START + 15 * S);
            let slots = busy(&limits, &mut state, &orders, START + 15 * S, 120);
            assert!(slots[0] < START + 17 * S, "{burst}: at once, and not {} µs later", slots[0] - START - 15 * S);
            let early = slots.iter().filter(|slot| **slot < START + 25 * S).count();
            assert!((1..=5).contains(&early), "{burst}: gently, and not {early} in ten seconds");
            // A hold that an upstream asks for after the release is in force.
            state.apply(&limits, START + 140 * S, &asked(START + 200 * S));
            assert_eq!(busy(&limits, &mut state, &orders, START + 140 * S, 50), [0; 0]);
        }
    }

    #[test]
    fn release_closes_the_breaker() {
        let (limits, mut state, mut orders) = (limits(10, 1, 1), State::default(), Orders::default());
        let patience = Duration::from_secs(600);
        let breaker = Breaker { failures: 1, wait: Duration::from_secs(300), longest: patience, patience };
        state.apply(&limits, START, &Feedback::Failed { probe: false, breaker, why: "HTTP 500".into() });
        assert!(state.is_tripped());
        orders.add(&ThrottleOrder::Release, "ann", START + 10 * S);
        let slots = busy(&limits, &mut state, &orders, START + 10 * S, 20);
        assert!(slots[0] < START + 11 * S && !state.is_tripped());
        assert!(slots.len() > 100, "{}", slots.len());
    }

    #[test]
    fn without_a_hold_a_release_changes_nothing() {
        let (limits, mut orders) = (limits(6, 60, 1), Orders::default());
        let (mut state, mut other) = (State::default(), State::default());
        busy(&limits, &mut state, &orders, START, 100);
        busy(&limits, &mut other, &orders, START, 100);
        orders.add(&ThrottleOrder::Release, "ann", START + 100 * S);
        let slots = busy(&limits, &mut state, &orders, START + 100 * S, 100);
        assert_eq!(slots, busy(&limits, &mut other, &Orders::default(), START + 100 * S, 100));
    }
}
