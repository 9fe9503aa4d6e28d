//! The state of a throttle for people. Looking grants nothing.

use std::time::Duration;

use super::{Micros, StartRequest, State};
use crate::pacing::orders::Orders;
use crate::pacing::slots::limits::{Limits, Window};

/// The state of a throttle at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Each window in force, the one that paces first, and how many of its starts are used now. For large
    /// windows the figure is rounded up, by a 16th of the window's length at most.
    pub used: Vec<(Window, u32)>,
    /// When the next slot opens: now, if it would be granted at once.
    pub opens: Micros,
    pub held: Option<HoldInForce>,
    /// Until when a slow start makes the spacing larger than the limits say.
    pub slow_start_until: Option<Micros>,
    /// The breaker is open or half-open.
    pub tripped: bool,
    /// The least spacing by the upstream's budget, and until when.
    pub budget: Option<(Duration, Micros)>,
    /// The priorities for which starts wait, the highest first.
    pub waiting: Vec<i32>,
}

/// A hold in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldInForce {
    /// Nothing starts before.
    pub until: Micros,
    pub why: String,
    /// The operator; `None` if an upstream asked for the hold or the breaker is open.
    pub by: Option<String>,
}

impl State {
    /// The throttle at `now`, by the ledger's clock, with these `limits` in force.
    pub fn view(&self, limits: &Limits, now: Micros, orders: &Orders) -> View {
        let mut state = self.clone();
        let now = state.turn_to(limits, now);
        state.apply_orders(limits, now, orders);
        state.adapt(limits, now);
        let used = limits.windows().map(|window| {
            let marks = state.pace.counted.get(&(window.per.as_millis() as u64)).map_or(&[][..], Vec::as_slice);
            let since = now - window.per.as_micros() as Micros;
            let used = marks.iter().filter(|(at, _)| *at > since).map(|(_, count)| *count).sum::<u32>();
            (window, used.min(window.allow))
        });
        View {
            used: used.collect(),
            opens: state.earliest(limits, now, StartRequest { priority: 0, cost: 1, probe: false }).max(now),
            held: state.hold_in_force(now, orders),
            slow_start_until: Some(state.holds.slow_start_until).filter(|until| *until > now),
            tripped: state.circuit.tripped,
            budget: (state.holds.budget.1 > now && !state.circuit.tripped)
                .then(|| (Duration::from_micros(state.holds.budget.0.ceil() as u64), state.holds.budget.1)),
            waiting: state
                .waiting
                .iter()
                .rev()
                .filter(|(_, w)| w.until >= now)
                .map(|(priority, _)| *priority)
                .collect(),
        }
    }

    /// The later of an operator's hold and an upstream's.
    fn hold_in_force(&self, now: Micros, orders: &Orders) -> Option<HoldInForce> {
        let until = self.holds.ordered;
        let ordered = orders.hold.as_ref().filter(|_| until > now && until >= self.holds.held_until);
        let ordered = ordered.map(|hold| HoldInForce { until, why: hold.why.clone(), by: Some(hold.by.clone()) });
        ordered.or_else(|| {
            (self.holds.held_until > now).then(|| HoldInForce {
                until: self.holds.held_until,
                why: self.holds.why.clone(),
                by: None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::GrantRequest;
    use super::*;
    use crate::pacing::orders::ThrottleOrder;
    use crate::pacing::slots::breaker::Breaker;
    use crate::pacing::slots::feedback::Feedback;

    const S: Micros = 1_000_000;
    const START: Micros = 1_700_000_000 * S;

    fn limits(allow: u32, secs: u64, burst: u32) -> Limits {
        Limits { window: Window { allow, per: Duration::from_secs(secs) }, burst, also: Vec::new() }
    }

    /// Takes the slots that there are at `now`, for `n` starts of a priority.
    fn take(state: &mut State, limits: &Limits, now: Micros, n: usize, priority: i32) {
        state.grant(
            limits,
            &GrantRequest { now, ahead: 0, requests: &vec![StartRequest { priority, cost: 1, probe: false }; n] },
        );
    }

    /// Limits, at which seconds how many starts asked, the second of the look, used then, seconds until the next slot.
    type Row<'a> = (&'a Limits, &'a [(i64, usize)], i64, &'a [u32], i64);

    #[test]
    fn view_counts_the_used_starts_of_each_window() {
        let spread = limits(6, 60, 1);
        let several = Limits { also: vec![Window { allow: 20, per: Duration::from_secs(600) }], ..limits(5, 60, 5) };
        let same = Limits { also: vec![Window { allow: 3, per: Duration::from_secs(60) }], ..limits(6, 60, 1) };
        let many = limits(600, 60, 1);
        let table: [Row<'_>; 9] = [
            (&spread, &[], 0, &[0], 0),
            (&spread, &[(0, 1)], 1, &[1], 9),
            (&spread, &[(0, 3), (11, 1), (22, 1)], 30, &[3], 2),
            (&spread, &[(0, 3), (11, 1), (22, 1)], 75, &[1], 0),
            (&several, &[(0, 9)], 1, &[5, 5], 59),
            (&several, &[(0, 9), (62, 2)], 63, &[2, 7], 0),
            (&several, &[(0, 9), (62, 9), (124, 9), (186, 9)], 190, &[5, 20], 410),
            (&same, &[(0, 1), (11, 1), (22, 1)], 30, &[3, 3], 30),
            (&many, &[(0, 1), (1, 1), (2, 1), (3, 1)], 4, &[4], 0),
        ];
        for (n, (limits, taken, at, used, next)) in table.into_iter().enumerate() {
            let mut state = State::default();
            for (second, requests) in taken {
                take(&mut state, limits, START + second * S, *requests, 0);
            }
            let before = state.clone();
            let view = state.view(limits, START + at * S, &Orders::default());
            assert_eq!(state, before, "a look changes nothing");
            assert_eq!(view.used.iter().map(|(_, used)| *used).collect::<Vec<_>>(), used, "{n}: {view:?}");
            let away = view.opens - START - at * S;
            assert!((away - next * S).abs() < 2 * S, "{n}: the next opens in {away} µs");
            assert_eq!((view.held, view.tripped, view.budget), (None, false, None));
        }
    }

    #[test]
    fn view_names_what_holds_or_slows() {
        let limits = limits(60, 60, 1);
        let (wait, patience) = (Duration::from_secs(10), Duration::from_secs(30));
        let breaker = Breaker { failures: 1, wait, longest: wait, patience };
        let failed = || Feedback::Failed { probe: false, breaker, why: "HTTP 500".into() };
        let look = |words: &[Feedback], orders: &[ThrottleOrder], at: i64| {
            let (mut state, mut all) = (State::default(), Orders::default());
            words.iter().for_each(|word| state.apply(&limits, START, word));
            orders.iter().for_each(|order| all.add(order, "ann", START + S));
            state.view(&limits, START + at * S, &all)
        };
        let ordered = |secs| ThrottleOrder::Hold { span: Duration::from_secs(secs), why: "they are down".into() };
        let asked = || Feedback::Hold { until: START + 20 * S, why: "ban".into() };
        let by = |view: &View| view.held.clone().map(|held| ((held.until - START) / S, held.by));

        let view = look(&[asked()], &[], 5);
        assert_eq!((by(&view), (view.opens - START) / S), (Some((20, None)), 20));
        assert_eq!(view.held.unwrap().why, "ban");
        let view = look(&[asked()], &[ordered(10)], 5);
        assert_eq!(by(&view), Some((20, None)), "the later counts");
        let view = look(&[asked()], &[ordered(30)], 5);
        assert_eq!((by(&view), (view.opens - START) / S), (Some((31, Some("ann".into()))), 31));
        assert_eq!(view.held.unwrap().why, "they are down");
        let view = look(&[asked()], &[ordered(30), ThrottleOrder::Release], 5);
        assert_eq!(by(&view), None);
        assert!(view.slow_start_until.is_some() && view.opens < START + 8 * S, "{view:?}");
        let view = look(&[asked()], &[], 22);
        assert_eq!((by(&view), view.slow_start_until.map(|until| (until - START) / S)), (None, Some(80)));
        assert_eq!(look(&[asked()], &[], 90).slow_start_until, None);

        let view = look(&[failed()], &[], 5);
        assert_eq!((view.tripped, by(&view), &view.budget), (true, Some((10, None)), &None));
        let view = look(&[failed()], &[], 15);
        assert_eq!((view.tripped, by(&view)), (true, None));
        let view = look(&[Feedback::Budget { remaining: 6, reset: START + 60 * S, enough: 50 }], &[], 5);
        assert_eq!(view.budget, Some((Duration::from_secs(10), START + 60 * S)));
        assert_eq!(look(&[Feedback::Budget { remaining: 6, reset: START + 60 * S, enough: 50 }], &[], 61).budget, None);
    }

    #[test]
    fn view_lists_the_priorities_that_wait() {
        let limits = limits(6, 60, 1);
        let mut state = State::default();
        take(&mut state, &limits, START, 3, 0);
        take(&mut state, &limits, START, 1, 7);
        let none = Orders::default();
        assert_eq!(state.view(&limits, START + S, &none).waiting, [7, 0]);
        assert_eq!(state.view(&limits, START + 3_600 * S, &none).waiting, [0; 0]);
    }
}
