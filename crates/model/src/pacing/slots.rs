//! When the starts of a throttle may happen (pure).
//!
//! A throttle grants *slots*: times at which one start may happen. A start may use its slot late, by up to the slip
//! `g`. So a late start and a start that is on time can lie closer together than their slots. All arithmetic is
//! therefore done over windows of `per + g`: then no window of `per` holds more than `allow` starts, wherever the
//! window begins.
//!
//! The first window of a throttle paces, by the generic cell rate algorithm (GCRA; ITU-T I.371, there as "virtual
//! scheduling", also known as the leaky bucket as a meter). The emission interval alone keeps the window exact, if every
//! start costs 1. With a `burst` there is a tolerance: `burst` slots may follow each other at once after a pause. Then,
//! and while a start of a higher cost is in the window, the window's slots are counted as well. Further windows (such as 1,000 per day) are only counted.
//!
//! | symbol | here | meaning |
//! |---|---|---|
//! | `g` | [`Limits::slip`] | how late a start may use its slot |
//! | `T` | `Limits::emission_interval` | `(per + g) / allow`, the spacing of slots that are spread evenly |
//! | `τ` | `limits::tolerance` | `(burst - 1) * T`, how far a slot may open before `TAT` |
//! | `TAT` | `Pace::tat` | theoretical arrival time: when the next slot opens without tolerance |
//! | `n` | [`StartRequest::cost`] | for how many starts one start counts |
//!
//! A slot opens at `max(now, TAT - τ)`, not before a hold is over, and not before each counted window has room for `n`.
//! Then `TAT` becomes `max(TAT, slot) + n * T`, or later while a budget or a slow start makes the spacing larger.
//!
//! Where each decision is:
//!
//! - `limits`: `T`, `τ`, `g`.
//! - `pace`: `TAT`, and which windows are counted.
//! - `holds`: holds, budgets, and the slow start after a hold, which make the spacing larger.
//! - [`breaker`]: the circuit breaker. `feedback` moves it, and says what else follows from what an upstream reports.
//! - `overrides`: what an operator has ordered.
//! - this file: who gets the next slot, by priority and cost.
//! - `row`: how the ledger stores the state. `view`: what people see of it.
//!
//! Slots are granted shortly before they open, never long ahead. So a start of a higher priority that comes later gets
//! the next slot; a worker that dies with a slot wastes one slot; and after a pause of the ledger no slots are saved
//! up.

pub mod breaker;
pub mod feedback;
mod holds;
pub mod limits;
mod overrides;
mod pace;
mod row;
mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::followed::MAX_SKEW;
pub use breaker::Breaker;
use breaker::Circuit;
pub use feedback::Feedback;
use holds::Holds;
pub use limits::{Limits, Window};
use pace::Pace;
pub use view::{HoldInForce, View};

/// Microseconds since 1970, by the ledger's steady time.
pub type Micros = i64;

/// Slots are granted this long before they open.
pub const LEAD: Micros = 100_000;
/// An answer may be on its way for this long, and slots open that much later; not for longer.
pub const MAX_AHEAD: Micros = 2_000_000;
/// A slot is kept this long after it has opened for a start that waits with a higher priority.
const GRACE: Micros = 250_000;
/// An open breaker for which no start asks any more is remembered for this long.
const BREAKER_KEPT: Micros = 86_400_000_000;
/// A ledger that has waited for its own answers may be unsure of the time by as much. A larger step back is a ledger
/// that was begun anew.
const MAX_STEP_BACK: Micros = 60_000_000;
/// An asker that cannot tell yet how much time has passed asks again after this long.
const RETRY_TIME_UNKNOWN: Micros = 500_000;
/// The shortest wait before an asker asks again for a slot that another asker's start will get.
const RETRY_OTHERS_SLOT: Micros = 20_000;
/// A lower priority gets one slot in this many, however many starts of a higher priority wait.
pub const MIN_SHARE_DIVISOR: u32 = 8;

/// What a throttle remembers. A new throttle remembers nothing: as if nothing had started for a long time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "row::Row", into = "row::Row")]
pub struct State {
    /// The latest time that was seen.
    seen: Micros,
    /// The priorities for which starts wait.
    waiting: BTreeMap<i32, Waiting>,
    /// The last slot went to a lower priority than the highest that waited.
    last_went_lower: bool,
    pace: Pace,
    holds: Holds,
    circuit: Circuit,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The starts of one priority that wait for a slot. The names in JSON are those of rows that ledgers have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    /// Until then the throttle counts on them; they ask again before.
    until: Micros,
    /// Slots that went to higher priorities meanwhile.
    passed: u32,
    /// The cost of a start for which room is being kept, and when there is room: starts of the same priority that cost
    /// less wait for that one.
    #[serde(rename = "large", default, skip_serializing_if = "is_default")]
    large: (u32, Micros),
    /// Room has just been kept for a large start, so starts that cost less go first.
    #[serde(rename = "less", default, skip_serializing_if = "is_default")]
    less_first: bool,
}

/// One start's request for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartRequest {
    /// Higher ones go first.
    pub priority: i32,
    /// For how many starts this one counts, from 1 to [`Limits::max_cost`].
    pub cost: u32,
    /// The request belongs to a start that probes whether the upstream works again.
    pub probe: bool,
}

/// A request for slots.
#[derive(Clone, Debug)]
pub struct GrantRequest<'a> {
    pub now: Micros,
    /// How long answers take to the asker: a slot that opens sooner would be over when its answer comes.
    pub ahead: Micros,
    pub requests: &'a [StartRequest],
}

/// The slots that are granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantResponse {
    /// Which of the requests have slots, by their index, and when each slot opens.
    pub slots: Vec<(usize, Micros)>,
    /// When to ask again for the others.
    pub again: Option<Micros>,
    /// These starts are probes: they show whether the upstream works again.
    pub probe: bool,
    /// Nothing starts before, if a hold is in force.
    pub held_until: Option<Micros>,
    /// There were failures, so a success must be reported.
    pub failing: bool,
    /// An upstream's budget slows the throttle, so a larger budget must be reported.
    pub slowed: bool,
}

impl GrantResponse {
    /// The same by a clock that shows `by` more.
    #[must_use]
    pub fn moved(mut self, by: Micros) -> Self {
        let opens = self.slots.iter_mut().map(|slot| &mut slot.1);
        for at in opens.chain(&mut self.again).chain(&mut self.held_until) {
            *at = at.saturating_add(by);
        }
        self
    }
}

impl State {
    /// Grants slots that open by now, or shortly after.
    pub fn grant(&mut self, limits: &Limits, asked: &GrantRequest<'_>) -> GrantResponse {
        let now = self.turn_to(limits, asked.now);
        let ahead = asked.ahead.clamp(0, MAX_AHEAD);
        self.adapt(limits, now);
        self.waiting.retain(|_, waiting| waiting.until >= now);
        for request in asked.requests {
            self.waiting.entry(request.priority).or_default().until = now + GRACE;
        }
        let mut left: Vec<usize> = (0..asked.requests.len()).collect();
        // Stable, so that requests of equal priority are served in the order in which they stand.
        left.sort_by_key(|n| std::cmp::Reverse(asked.requests[*n].priority));
        let mut answer = GrantResponse::default();
        while let Some(first) = left.first() {
            let turn = self.turn();
            let probe = left.iter().position(|n| self.is_probe(&asked.requests[*n]));
            let large = self.waiting.get(&turn).map(|waiting| waiting.large).filter(|(_, at)| now <= at + GRACE);
            let large = large.unwrap_or_default();
            let of_turn = |least: u32| {
                left.iter().position(|n| asked.requests[*n].priority == turn && asked.requests[*n].cost >= least)
            };
            let mine = probe.or_else(|| of_turn(large.0)).or_else(|| of_turn(0));
            let request = asked.requests[mine.map_or(*first, |n| left[n])];
            let request = StartRequest { cost: request.cost.clamp(1, limits.max_cost()), ..request };
            let opens = self.earliest(limits, now + ahead, request);
            if probe.is_none() && request.cost < large.0 {
                answer.again = Some(opens.max(large.1 + LEAD));
                break;
            }
            // The asker's next answer comes as much later.
            if opens > now + ahead + LEAD.max(ahead) {
                if mine.is_some()
                    && request.cost > 1
                    && let Some(waiting) = self.waiting.get_mut(&turn).filter(|waiting| !waiting.less_first)
                {
                    waiting.large = (request.cost, opens);
                }
                answer.again = Some(opens);
                break;
            }
            let Some(mine) = mine else {
                // The slot is another worker's, which asks for it about when it opens, if that worker lives.
                let until = self.waiting.get(&turn).map_or(now, |waiting| waiting.until);
                let next = opens.max(now) + (limits.emission_interval() as Micros).max(RETRY_OTHERS_SLOT) + LEAD / 2;
                answer.again = Some((until.max(now) + LEAD).min(next));
                break;
            };
            answer.slots.push((left.remove(mine), opens));
            self.take(limits, opens, request);
            if let Some(waiting) = self.waiting.get_mut(&request.priority).filter(|_| probe.is_none()) {
                waiting.less_first = large.0 > 0 || waiting.less_first && request.cost > 1;
                waiting.large = Default::default();
            }
            if probe.is_none() {
                self.served(turn);
            }
            let others = left.iter().any(|n| asked.requests[*n].priority == request.priority);
            // Starts that had to wait for a large one go first now, and may be another worker's.
            if !others && self.waiting.get(&request.priority).is_some_and(|waiting| !waiting.less_first) {
                self.waiting.remove(&request.priority);
            }
        }
        answer.probe = self.circuit.tripped;
        answer.held_until = Some(self.holds.until()).filter(|until| *until > now);
        answer.failing = self.circuit.failures > 0;
        answer.slowed = self.holds.budget.1 > now && !self.circuit.tripped;
        if let Some(again) = answer.again {
            for n in left {
                if let Some(waiting) = self.waiting.get_mut(&asked.requests[n].priority) {
                    waiting.until = again + GRACE;
                }
            }
        }
        answer
    }

    /// The limits may have changed since the last grant.
    fn adapt(&mut self, limits: &Limits, now: Micros) {
        if self.pace.adapt(limits, now) {
            self.waiting.clear();
        }
    }

    /// From when on the state is as if nothing had ever started, so that it can be forgotten.
    pub fn idle_at(&self, limits: &Limits) -> Micros {
        let budget = match self.circuit.tripped {
            true => self.holds.held_until.saturating_add(BREAKER_KEPT),
            false => self.holds.budget.1,
        };
        let slowed = self.holds.held_until.max(self.holds.slow_start_until);
        self.pace.idle_at(limits).max(slowed).max(budget)
    }

    /// Which priority gets the next slot: the highest for which a start waits, or a lower one that has been passed over
    /// often enough, though never two of those in a row.
    fn turn(&self) -> i32 {
        let due = |waiting: &Waiting| waiting.passed + 1 >= MIN_SHARE_DIVISOR && !self.last_went_lower;
        let lower = self.waiting.iter().filter(|(_, waiting)| due(waiting)).max_by_key(|(_, waiting)| waiting.passed);
        lower.or_else(|| self.waiting.last_key_value()).map_or(0, |(priority, _)| *priority)
    }

    fn served(&mut self, priority: i32) {
        self.last_went_lower = self.waiting.last_key_value().is_some_and(|(highest, _)| *highest > priority);
        for (of, waiting) in &mut self.waiting {
            waiting.passed = if *of == priority { 0 } else { waiting.passed + u32::from(*of < priority) };
        }
    }

    /// Whether the request belongs to the probe of a half-open breaker. That start has its slot already and only asks
    /// for more, so nothing that slows or queues others stops it.
    fn is_probe(&self, request: &StartRequest) -> bool {
        self.circuit.tripped && request.probe
    }

    /// When the next slot opens that is enough for `request`. The slot may lie a little before `now`: the time that an
    /// answer takes on its way is not lost for the rate.
    fn earliest(&self, limits: &Limits, now: Micros, request: StartRequest) -> Micros {
        let behind = limits.slip().as_micros() as Micros / 4;
        self.pace.opens(limits, request.cost, self.is_probe(&request)).max(now - behind).max(self.holds.until())
    }

    fn take(&mut self, limits: &Limits, opens: Micros, request: StartRequest) {
        let (cost, probe) = (request.cost, self.is_probe(&request));
        let even = f64::from(cost) * limits.emission_interval();
        let step = self.holds.step(limits, opens, (cost, even), !self.circuit.tripped, probe);
        self.pace.take(limits, opens, cost, step, probe);
    }

    /// Whether an observer that has known the time since `since` can tell how long ago all remembered events were.
    pub fn is_known_since(&self, since: Micros, now: Micros) -> bool {
        // An observer that has seen a later time knows better.
        self.seen == 0 || (self.seen >= since && self.seen <= now + MAX_SKEW)
    }

    /// The answer where [`Self::is_known_since`] is false: every remembered start may have happened just now, however
    /// long ago it seems to be.
    pub fn cannot_tell(&self, now: Micros) -> GrantResponse {
        let held_until = Some(self.holds.until()).filter(|until| *until > now);
        let again = Some(now + RETRY_TIME_UNKNOWN);
        GrantResponse { again, held_until, failing: self.circuit.failures > 0, ..GrantResponse::default() }
    }

    /// The time becomes `now`, or stays a little later: time never goes back. The ledger may know a slightly earlier
    /// time for a moment. But a ledger that is behind by more than `MAX_STEP_BACK` was begun anew with another time,
    /// and has stood still.
    pub fn turn_to(&mut self, limits: &Limits, now: Micros) -> Micros {
        if self.seen - now > MAX_STEP_BACK {
            self.holds.as_ordered.1 += now - self.seen;
            self.shift(now - self.seen);
        }
        self.seen = now.max(self.seen);
        self.pace.count_windows_of(limits);
        self.seen
    }

    /// The same by a clock that shows `by` more.
    #[must_use]
    pub fn moved(mut self, by: Micros) -> Self {
        self.shift(by);
        let ordered = &mut self.holds.as_ordered.0;
        *ordered += if *ordered == 0 { 0 } else { by };
        self
    }

    fn shift(&mut self, by: Micros) {
        self.pace.shift(by);
        self.holds.shift(by);
        for waiting in self.waiting.values_mut() {
            waiting.until += by;
            // Time 0 stands for never.
            waiting.large.1 += if waiting.large.0 == 0 { 0 } else { by };
        }
        if self.seen != 0 {
            self.seen = self.seen.saturating_add(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::clock::followed::{Followed, Seen};
    use crate::pacing::orders::Orders;
    use crate::pacing::serve::{SlotRequest, serve};
    use crate::wall_clock::WallClock;

    const S: Micros = 1_000_000;
    const START: Micros = 1_700_000_000 * S;

    pub(super) fn limits(allow: u32, secs: u64, burst: u32) -> Limits {
        Limits { window: Window { allow, per: Duration::from_secs(secs) }, burst, also: Vec::new() }
    }

    pub(super) fn requests(n: usize, priority: i32) -> Vec<StartRequest> {
        vec![StartRequest { priority, cost: 1, probe: false }; n]
    }

    pub(super) fn ask(requests: &[StartRequest], now: Micros) -> GrantRequest<'_> {
        GrantRequest { now, ahead: 0, requests }
    }

    /// Always enough to do for `secs`: asks when it is feedback to, a little late.
    pub(super) fn busy(limits: &Limits, state: &mut State, from: Micros, secs: i64, late: Micros) -> Vec<Micros> {
        let (mut now, mut slots, requests) = (from, Vec::new(), requests(600, 0));
        while now < from + secs * S {
            let answer = state.grant(limits, &ask(&requests, now));
            slots.extend(answer.slots.iter().map(|slot| slot.1));
            now = answer.again.map_or(now + 1, |again| (again - LEAD / 2).max(now + 1) + late);
            // It survives being written down.
            *state = serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap();
        }
        slots.retain(|slot| *slot < from + secs * S);
        slots
    }

    /// The most starts in any window of this length.
    pub(super) fn most(starts: &[Micros], per: Duration) -> usize {
        let (per, mut first, mut most) = (per.as_micros() as Micros, 0, 0);
        for (n, start) in starts.iter().enumerate() {
            while starts[first] + per <= *start {
                first += 1;
            }
            most = most.max(n - first + 1);
        }
        most
    }

    /// The worst that slips can do: every third start as late as it may be.
    pub(super) fn slipped(limits: &Limits, slots: &[Micros]) -> Vec<Micros> {
        let slip = limits.slip().as_micros() as Micros;
        let mut starts: Vec<_> =
            slots.iter().enumerate().map(|(n, slot)| slot + if n % 3 == 0 { slip } else { 0 }).collect();
        starts.sort_unstable();
        starts
    }

    #[test]
    fn a_table_of_rates_that_are_used_up_and_never_passed() {
        for (allow, per, burst, secs) in [
            (5, 60, 1, 1_200),
            (5, 60, 3, 1_200),
            (24, 60, 1, 600),
            (37, 60, 37, 600),
            (1, 1, 1, 100),
            (500, 1, 1, 20),
            (5_000, 1, 1, 5),
            (5_000, 1, 100, 5),
        ] {
            let limits = limits(allow, per, burst);
            let slots = busy(&limits, &mut State::default(), START, secs, 3_000);
            let share = slots.len() as f64 * per as f64 / (f64::from(allow) * secs as f64);
            let most = most(&slipped(&limits, &slots), limits.window.per);
            assert!(most <= allow as usize, "{allow} per {per} s, burst {burst}: {most} in a window");
            assert!(share > 0.96, "{allow} per {per} s, burst {burst}: used to {share:.3}");
        }
    }

    #[test]
    fn several_windows_hold_at_once() {
        let day = Window { allow: 1_000, per: Duration::from_secs(86_400) };
        let limits = Limits { also: vec![day], ..limits(60, 60, 1) };
        let mut state = State::default();
        let slots = busy(&limits, &mut state, START, 2 * 86_400, 3_000);
        assert!(most(&slipped(&limits, &slots), day.per) <= 1_000);
        assert!(most(&slipped(&limits, &slots), limits.window.per) <= 60);
        assert!(slots.len() > 1_950, "{} in two days", slots.len());
        assert!(serde_json::to_string(&state).unwrap().len() < 5_000);
    }

    #[test]
    fn a_start_may_cost_more_than_one() {
        let limits = limits(10, 10, 1);
        let mut state = State::default();
        let requests =
            [StartRequest { priority: 0, cost: 5, probe: false }, StartRequest { priority: 0, cost: 99, probe: false }];
        let first = state.grant(&limits, &ask(&requests, START));
        assert_eq!((first.slots.len(), first.slots[0].0), (1, 0));
        // More than all of a window it never costs.
        // A window that holds both would hold 15.
        let again = first.again.unwrap();
        assert_eq!((again - START) / S, 10);
        let second = state.grant(&limits, &ask(&requests[1..], again));
        assert_eq!(second.slots, [(0, again)]);
        assert_eq!((state.grant(&limits, &ask(&requests[..1], again + 1)).again.unwrap() - again) / S, 10);
    }

    /// Without a burst, in spaced slots, the pace alone would let `cost - 1` too many into a window.
    #[test]
    fn no_window_holds_more_than_is_allowed_where_costs_differ() {
        for (allow, many) in [(3, 1), (10, 1), (200, 1), (200, 4)] {
            let limits = limits(allow, 10, 1);
            let (mut state, mut at) = (State::default(), START);
            let mut slots: Vec<(Micros, u32)> = Vec::new();
            for n in 0..400 {
                let costs = [1, 1, 3, 1, 2, 1, 1].into_iter().cycle().skip(n);
                let asked: Vec<StartRequest> =
                    costs.take(many).map(|cost| StartRequest { priority: 0, cost, probe: false }).collect();
                let answer = state.grant(&limits, &ask(&asked, at));
                slots.extend(answer.slots.iter().map(|(n, opens)| (*opens, asked[*n].cost)));
                at = answer.again.unwrap_or(at);
            }
            let window = (limits.window.per + limits.slip()).as_micros() as Micros;
            for (n, (first, _)) in slots.iter().enumerate() {
                let within = slots[n..].iter().take_while(|(at, _)| at - first < window);
                let cost: u32 = within.map(|(_, cost)| cost).sum();
                assert!(cost <= allow, "{cost} within a window, of {allow}, from slot {n} on");
            }
            let passed = (slots[slots.len() - 1].0 - slots[0].0) as f64 / window as f64;
            let used = slots.iter().map(|(_, cost)| f64::from(*cost)).sum::<f64>() / f64::from(allow) / passed;
            assert!(slots.len() > 100 && used > 0.7, "{used} of {allow} is used");
        }
    }

    /// Two workers, each with more to do than is allowed, one of them with requests that need room for several at once.
    #[test]
    fn what_needs_more_room_is_had_beside_what_needs_less() {
        for (limits, least) in [(limits(5, 60, 5), 0.6), (limits(5, 60, 1), 0.7), (limits(20, 60, 20), 0.6)] {
            let mut state = State::default();
            let (small, large) = (requests(600, 0), vec![StartRequest { priority: 0, cost: 3, probe: false }; 3]);
            let (mut asks, mut had) = ([START, START + 1], [0_u32, 0]);
            while asks[0].min(asks[1]) < START + 3_600 * S {
                let who = usize::from(asks[1] < asks[0]);
                let requests = [&small, &large][who];
                let answer = state.grant(&limits, &ask(requests, asks[who]));
                had[who] += answer.slots.len() as u32;
                asks[who] = answer.again.map_or(asks[who] + S, |again| (again - LEAD / 2).max(asks[who] + 1));
                state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
            }
            let used = f64::from(had[0] + 3 * had[1]) / f64::from(60 * limits.window.allow);
            assert!(had.iter().all(|had| *had >= 30) && used >= least, "{limits:?}: {had:?}, {used}");
        }
    }

    #[test]
    fn a_higher_priority_waits_for_one_slot_and_a_lower_one_gets_its_share() {
        let limits = limits(60, 60, 1);
        let mut state = State::default();
        let (low, high) = (requests(1, 0), requests(1, 1));
        // One worker has the low ones only, the other the high ones only; both ask whenever they are feedback to.
        let (mut at_low, mut at_high) = (START, START + 300 * S);
        let mut got = Vec::new();
        while got.len() < 500 {
            if at_low < at_high {
                let answer = state.grant(&limits, &ask(&low, at_low));
                got.extend(answer.slots.iter().map(|slot| (slot.1, 0)));
                at_low = answer.again.unwrap_or(at_low + 1).max(at_low + 1);
            } else {
                let answer = state.grant(&limits, &ask(&high, at_high));
                got.extend(answer.slots.iter().map(|slot| (slot.1, 1)));
                at_high = answer.again.unwrap_or(at_high + 1).max(at_high + 1);
            }
        }
        let first = got.iter().find(|slot| slot.1 == 1).unwrap();
        assert!(first.0 <= START + 302 * S, "it waited for {} µs", first.0 - START - 300 * S);
        let after: Vec<i32> = got.iter().filter(|slot| slot.0 >= first.0).map(|slot| slot.1).collect();
        let share = after.iter().filter(|priority| **priority == 0).count() as f64 / after.len() as f64;
        assert!((share - 1.0 / f64::from(MIN_SHARE_DIVISOR)).abs() < 0.02, "{share}");
        assert!(!after.windows(2).any(|pair| pair == [0, 0]));
        // A worker that has died, or wants no more slots, does not hold up the others for long.
        let now = got.last().unwrap().0 + 10 * S;
        assert_eq!(state.grant(&limits, &ask(&low, now)).slots.len(), 1);
    }

    #[test]
    fn other_limits_count_what_has_started_before_them() {
        let table = [
            (limits(5, 60, 5), limits(6, 30, 6)),
            (limits(10, 1, 10), limits(100, 60, 100)),
            (limits(60, 60, 1), limits(120, 60, 1)),
            (limits(10, 10, 1), limits(3, 1, 1)),
            (limits(3, 1, 1), limits(10, 10, 10)),
        ];
        for (before, after) in table {
            let mut state = State::default();
            let mut slots = busy(&before, &mut state, START, 30, 0);
            let changed = slots.len();
            slots.extend(busy(&after, &mut state, START + 30 * S, 120, 0));
            slots.sort_unstable();
            // Each window that ends under the new limits keeps to the larger of both, as far as it was kept before.
            let per = before.window.per.min(after.window.per);
            let within = |limits: &Limits| busy(limits, &mut State::default(), START, 120, 0);
            let usual = most(&within(&before), per).max(most(&within(&after), per));
            assert!(most(&slots, per) <= usual, "{before} then {after}: {} in {per:?}", most(&slots, per));
            assert!(slots.len() > changed + 1, "{before} then {after}");
        }
    }

    /// As `busy`, with one request at a time, so that each start is remembered for itself.
    fn one_by_one(limits: &Limits, state: &mut State, from: Micros, until: Micros) -> Vec<Micros> {
        let (mut now, mut slots) = (from, Vec::new());
        while now < until {
            let answer = state.grant(limits, &ask(&requests(1, 0), now));
            slots.extend(answer.slots.iter().map(|slot| slot.1));
            now = answer.again.map_or(now + 1_000, |again| again.max(now + 1_000));
        }
        slots
    }

    #[test]
    fn limits_that_come_back_still_know_what_has_started() {
        let (usual, ordered) = (limits(60, 60, 60), limits(10, 30, 10));
        let mut state = State::default();
        let mut slots = one_by_one(&usual, &mut state, START, START + 5 * S);
        assert_eq!(slots.len(), 60);
        slots.extend(one_by_one(&ordered, &mut state, START + 5 * S, START + 41 * S));
        slots.extend(one_by_one(&usual, &mut state, START + 41 * S, START + 300 * S));
        // Those that the ordered limits alone let start come on top.
        let most = most(&slots, Duration::from_secs(60));
        assert!(most <= 70, "{most}");
        assert!(slots.len() > 200, "{}", slots.len());
    }

    #[test]
    fn a_burst_under_other_limits_counts_under_those_that_only_pace() {
        let (ordered, usual) = (limits(30, 60, 30), limits(60, 60, 1));
        let mut state = State::default();
        let mut slots = one_by_one(&ordered, &mut state, START, START + S);
        assert_eq!(slots.len(), 30);
        slots.extend(one_by_one(&usual, &mut state, START + S, START + 200 * S));
        assert!(most(&slots, usual.window.per) <= 60, "{}", most(&slots, usual.window.per));
        // Nor is anything forgiven when a hold is released.
        state.apply(&usual, START + 200 * S, &Feedback::Spent { cost: 9 });
        state.apply(&usual, START + 200 * S, &Feedback::Spent { cost: 9 });
        state.apply(&usual, START + 200 * S, &Feedback::Release);
        let next = state.grant(&usual, &ask(&requests(1, 0), START + 200 * S)).again.unwrap();
        assert!(next >= START + 218 * S, "{}", next - START);
    }

    #[test]
    fn priorities_in_different_workers_use_a_fast_throttle() {
        let limits = limits(100, 1, 1);
        let mut state = State::default();
        let mut at = [START, START];
        let mut got = [0, 0];
        while at[0].min(at[1]) < START + 10 * S {
            let who = usize::from(at[1] < at[0]);
            let answer = state.grant(&limits, &ask(&requests(50, who as i32), at[who]));
            got[who] += answer.slots.len();
            at[who] = answer.again.map_or(at[who] + 1_000, |again| (again - LEAD / 2).max(at[who] + 1_000));
        }
        assert!(got[0] + got[1] > 900, "{got:?}");
        assert!(got[0] * 10 > got[1], "the lower one has its share: {got:?}");
    }

    #[test]
    fn what_has_been_idle_for_long_is_as_good_as_new() {
        for limits in [limits(5, 60, 1), limits(5, 60, 5)] {
            let mut state = State::default();
            assert_eq!(state.idle_at(&limits), 0);
            state.grant(&limits, &ask(&requests(3, 0), START));
            assert!(state.idle_at(&limits) > START + S && state.idle_at(&limits) < START + 100 * S);
        }
    }

    /// Over a ledger whose answers take longer than a slot may be used late, every key would lose every slot.
    #[test]
    fn slots_open_no_sooner_than_their_answer_comes() {
        for (limits, answer) in [(limits(1, 1, 1), 150_000), (limits(500, 1, 1), 700_000), (limits(5, 60, 5), 40_000)] {
            let (mut state, mut now, requests) = (State::default(), START, requests(600, 0));
            let (behind, mut used) = (limits.slip().as_micros() as Micros / 4, 0);
            while now < START + 20 * S {
                let granted = state.grant(&limits, &GrantRequest { ahead: answer, ..ask(&requests, now) });
                assert!(granted.slots.iter().all(|(_, opens)| *opens >= now + answer - behind), "{granted:?}");
                used += granted.slots.len();
                now = granted.again.map_or(now + answer, |again| (again - LEAD / 2 - answer).max(now + answer));
            }
            let allowed = f64::from(limits.window.allow) * 20.0 / limits.window.per.as_secs_f64();
            assert!(used as f64 > 0.95 * allowed.floor(), "{limits}: {used}");
        }
    }

    /// A throttle in a ledger on a server whose clock is set now and then, and is `off` by so much.
    struct Kept {
        start: Instant,
        state: State,
        off: Micros,
        /// How far that has been set in all, and how often it was corrected.
        set: (Micros, i64),
    }

    impl Kept {
        fn new() -> Self {
            Self { start: Instant::now(), state: State::default(), off: 0, set: (0, 0) }
        }

        /// A worker reads the server's clock at `at`: it asks at the first time of `read`, and is answered at the
        /// second. Returns the ledger's time.
        fn look(&mut self, at: Micros, read: (Micros, Micros), by: &mut Option<Followed>) -> Micros {
            let instant = |at: Micros| self.start + Duration::from_micros((at - START) as u64);
            let (asked, answered) = (instant(read.0), instant(read.1));
            let (set, version) = self.set;
            let seen = Seen { server: at + self.off, set, version, asked, answered };
            let followed = by.get_or_insert_with(|| Followed::new(seen, WallClock::default()));
            let reading = followed.read(seen);
            self.set = reading.correction.map_or(self.set, |set| (set, version + 1));
            reading.micros
        }

        /// A worker asks for slots. Returns when they open, by a clock that is right, and when to ask again.
        fn grant(
            &mut self,
            limits: &Limits,
            (at, ahead): (Micros, Micros),
            read: (Micros, Micros),
            by: &mut Option<Followed>,
            requests: &[StartRequest],
        ) -> (Vec<Micros>, Option<Micros>) {
            let request = SlotRequest {
                throttle: "t".into(),
                key: String::new(),
                limits: Arc::new(limits.clone()),
                feedback: Vec::new(),
                requests: requests.to_vec(),
                ahead,
            };
            let time = self.look(at, read, by);
            let known_since = by.as_ref().and_then(Followed::known_since);
            let answer =
                serve(&mut self.state, &Orders::default(), &request, time, known_since).answer.moved(at - time);
            (answer.slots.into_iter().map(|slot| slot.1).collect(), answer.again)
        }
    }

    /// Has known the clock for as long as anybody.
    fn for_long(followed: &Option<Followed>) {
        let start = Instant::now();
        for secs in 0..3 {
            followed.iter().for_each(|followed| followed.looked(start + Duration::from_secs(secs)));
        }
    }

    /// Askers wait for each other's transactions, for seconds when one of them is frozen; answers take their time,
    /// and some askers have not asked for long. None of that is a clock that was set.
    #[test]
    fn askers_that_are_held_up_neither_fill_a_window_too_much_nor_cost_slots() {
        for (seed, limits) in
            (1..5_u64).flat_map(|seed| [(24, 1), (37, 1), (60, 10)].map(|(n, b)| (seed, limits(n, 60, b))))
        {
            let mut dice = seed;
            let mut roll = |n: i64| {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (dice >> 33) as i64 % n
            };
            let (slip, requests) = (limits.slip().as_micros() as Micros, requests(3, 0));
            let mut kept = Kept::new();
            let mut askers: Vec<(Micros, Option<Followed>)> = (0..20).map(|n| (START + n * 10_000, None)).collect();
            let (mut free, mut starts) = (START, Vec::new());
            while let Some(place) = (0..askers.len()).min_by_key(|n| askers[*n].0)
                && askers[place].0 < START + 1_200 * S
            {
                let asked = askers[place].0;
                let read = asked.max(free) + roll(4_000);
                // Now and then the worker that holds the lock is frozen, or the worker that gets the answer.
                free = read + if roll(300) == 0 { roll(3 * S) } else { roll(8_000) };
                let here = free + if roll(100) == 0 { roll(10 * S) } else { roll(20_000) };
                let by = &mut askers[place].1;
                let (slots, again) = kept.grant(&limits, (read, 0), (asked, here), by, &requests);
                // The worker keeps the reading for no longer than that.
                for_long(by);
                starts
                    .extend(slots.iter().filter(|opens| here <= **opens + slip * 3 / 4).map(|opens| *opens.max(&here)));
                let again = again.map_or(here, |again| again - LEAD / 2).max(here + 1_000);
                let away = if roll(150) == 0 { roll(40 * S) } else { 0 };
                askers[place].0 = again + away;
            }
            starts.sort_unstable();
            let (most, allow) = (most(&starts, limits.window.per), limits.window.allow);
            let share = starts.len() as f64 / (f64::from(allow) * 20.0);
            assert!(most <= allow as usize, "{limits}, seed {seed}: {most} in a window");
            assert!(share > 0.94, "{limits}, seed {seed}: used to {share:.3}");
        }
    }

    proptest! {
        /// Workers that ask in any order and at their own pace, begin anew, are killed with slots in their hands, use
        /// slots as late as they may, and a clock that is set back and forth: by a clock that is right, no window
        /// holds too many. It is not set twice between two looks at it, nor by so little that those who wait for
        /// their answers cannot see it. One of them does not begin anew.
        #[test]
        fn no_window_ever_holds_too_many(
            allow in 1_u32..40,
            burst in 1_u32..40,
            daily in proptest::option::of(50_u32..200),
            steps in prop::collection::vec((0..4_usize, 0_i64..4_000_000, 0..24_u32, 1_usize..5, 0_i64..1_000), 2..300),
            ahead in prop::collection::vec(prop_oneof![Just(0), 0..2 * MAX_AHEAD], 4),
            took in prop::collection::vec(prop_oneof![Just(0), 0..3 * S], 4),
        ) {
            let also = daily.map(|allow| Window { allow, per: Duration::from_secs(600) });
            let limits = Limits { burst: burst.min(allow), also: also.into_iter().collect(), ..limits(allow, 20, 1) };
            let slip = limits.slip().as_micros() as Micros;
            let (mut kept, mut real) = (Kept::new(), START + 10 * S);
            let mut workers = [const { None }; 4];
            let (mut looks, mut set) = ([0; 4], false);
            let mut starts = Vec::new();
            for (n, (worker, wait, event, wanted, late)) in steps.into_iter().enumerate() {
                real += wait;
                let by = match event {
                    0 | 6 => 3_600 * S,
                    1 => -3_600 * S,
                    2 => 6 * S,
                    3 => 30 * S,
                    _ => 0,
                };
                let sets = by != 0 && !set;
                kept.off += if sets { by } else { 0 };
                set |= sets;
                // It may be the first that asks since the clock was set.
                if matches!(event, 4 | 6) && worker > 0 {
                    (workers[worker], looks[worker]) = (None, 0);
                }
                let at = |worker: usize| (real - took[worker] / 2, real + took[worker] / 3);
                if n % 3 == 0 {
                    set = false;
                    for worker in 0..4 {
                        kept.look(real, at(worker), &mut workers[worker]);
                        looks[worker] += 1;
                        if worker == 0 || looks[worker] >= 3 {
                            for_long(&workers[worker]);
                        }
                    }
                }
                let requests = requests(wanted, worker as i32 % 2);
                let (slots, _) = kept.grant(&limits, (real, ahead[worker]), at(worker), &mut workers[worker], &requests);
                if event == 5 {
                    continue; // Killed, with its slots.
                }
                starts.extend(slots.into_iter().map(|opens| (opens + late * slip / 1_000).max(real)));
            }
            starts.sort_unstable();
            for window in limits.windows() {
                prop_assert!(most(&starts, window.per) <= window.allow as usize, "{:?}", starts.iter().map(|s| (s-START) as f64/1e6).collect::<Vec<_>>());
            }
        }
    }
}
