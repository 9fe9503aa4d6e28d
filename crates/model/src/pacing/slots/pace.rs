//! The pace of a throttle: the generic cell rate algorithm (GCRA), and windows whose slots are counted (pure).

use std::collections::BTreeMap;

use super::limits::{Limits, millis, tolerance};
use super::{LEAD, MOST_AHEAD, Micros};

/// The slots of a larger window are counted in so many parts of it.
const PARTS: i64 = 128;
/// The same for a window that its pace keeps: its slots are counted to be shown only.
const SHOWN_PARTS: i64 = 16;
/// So many windows are counted at most, beyond those that hold.
const MOST_WINDOWS: usize = 6;

/// What has been handed out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pace {
    /// The emission interval by which slots were handed out: how far they were apart.
    pub interval: f64,
    /// The theoretical arrival time: when the next slot opens if slots are spread evenly and none was saved up. What
    /// holds or slows the throttle moves it.
    pub arrival: f64,
    /// The theoretical arrival time by what has been handed out alone, whatever holds or slows the throttle.
    pub unslowed: f64,
    /// The slots of each counted window, by its length in milliseconds: when, and how many.
    pub counted: BTreeMap<u64, Vec<(Micros, u32)>>,
}

impl Pace {
    /// The limits may allow more or less than they did: what has been handed out ahead of its pace counts for as many
    /// starts as before. Answers whether they do.
    pub fn adapt(&mut self, limits: &Limits, now: Micros) -> bool {
        let interval = limits.emission_interval();
        let changed = self.interval > 0.0 && interval != self.interval;
        if changed {
            let (now, by) = (now as f64, interval / self.interval);
            for arrival in [&mut self.arrival, &mut self.unslowed] {
                *arrival = if *arrival > now { now + (*arrival - now) * by } else { *arrival };
            }
        }
        self.interval = interval;
        changed
    }

    /// When a slot for a start of this cost opens; a start that tries whether the upstream works waits for nothing that
    /// slows others.
    pub fn opens(&self, limits: &Limits, cost: u32, probe: bool) -> Micros {
        let arrival = if probe { self.unslowed } else { self.arrival };
        let mut opens = (arrival - tolerance(limits)).ceil() as Micros;
        for window in limits.counted() {
            let Some(marks) = self.counted.get(&millis(window)) else { continue };
            let mut room = i64::from(window.allow) - i64::from(cost);
            for (at, count) in marks.iter().rev() {
                room -= i64::from(*count);
                if room < 0 {
                    opens = opens.max(at + limits.stretched(window).ceil() as Micros);
                    break;
                }
            }
        }
        opens
    }

    /// A slot for a start of this cost is handed out. The next one opens a `step` later, which is as far as the cost
    /// makes it, or farther where something slows the throttle.
    pub fn take(&mut self, limits: &Limits, opens: Micros, cost: u32, step: f64, probe: bool) {
        let even = f64::from(cost) * limits.emission_interval();
        self.arrival = match probe {
            true => self.arrival.max(opens as f64 + even),
            false => self.arrival.max(opens as f64) + step,
        };
        self.unslowed = self.unslowed.max(opens as f64) + even;
        if step > even {
            self.arrival = self.arrival.max(opens as f64 + step + tolerance(limits));
        }
        self.count(limits, opens, cost);
    }

    fn count(&mut self, limits: &Limits, opens: Micros, cost: u32) {
        let slip = limits.slip().as_micros() as Micros;
        let shown = (limits.burst <= 1).then(|| millis(limits.window));
        let also: Vec<u64> = limits.also.iter().copied().map(millis).collect();
        // Those of limits that held before, and may hold again, are counted as well.
        for (per, marks) in &mut self.counted {
            let parts = if Some(*per) == shown && !also.contains(per) { SHOWN_PARTS } else { PARTS };
            let length = *per as Micros * 1_000 + slip;
            // The next slot may open a little before this one, if that was handed out ahead.
            let gone = marks.iter().take_while(|(at, _)| at + length + LEAD + 2 * MOST_AHEAD + slip <= opens).count();
            marks.drain(..gone);
            let part = (length / parts).max(1);
            // As if all of a part had opened at its end: never too early.
            let few = limits.windows().any(|window| millis(window) == *per && i64::from(window.allow) <= parts);
            let at = if few { opens } else { (opens.div_euclid(part) + 1) * part };
            match marks.last_mut() {
                Some(last) if last.0 >= at => last.1 = last.1.saturating_add(cost),
                _ => marks.push((at, cost)),
            }
        }
    }

    /// Counts the windows of these limits from now on, too.
    pub fn count_windows_of(&mut self, limits: &Limits) {
        let known: Vec<u64> = limits.windows().map(millis).collect();
        // Of a window that is new, what is known of the longest one counts.
        let longest = self.counted.last_key_value().map(|(_, marks)| marks.clone()).unwrap_or_default();
        for per in &known {
            self.counted.entry(*per).or_insert_with(|| longest.clone());
        }
        while self.counted.len() > known.len().max(MOST_WINDOWS)
            && let Some(other) = self.counted.keys().find(|per| !known.contains(per)).copied()
        {
            self.counted.remove(&other);
        }
    }

    /// Nothing slows it any more.
    pub fn resume(&mut self) {
        self.arrival = self.arrival.min(self.unslowed);
    }

    /// What was saved up before `from` is gone: no burst comes then.
    pub fn lose_tolerance(&mut self, limits: &Limits, from: Micros) {
        self.arrival = self.arrival.max(from as f64 + tolerance(limits));
    }

    /// From when on it is as if nothing had ever been handed out.
    pub fn idle_at(&self, limits: &Limits) -> Micros {
        let longest = limits.windows().map(|window| limits.stretched(window).ceil() as Micros).max().unwrap_or(0);
        let last = self.counted.values().filter_map(|marks| marks.last()).map(|mark| mark.0).max();
        last.map_or(0, |last| last + longest).max(self.arrival.ceil() as Micros)
    }

    /// The same by a clock that shows `by` more.
    pub fn shift(&mut self, by: Micros) {
        // The beginning of time stands for never.
        for at in [&mut self.arrival, &mut self.unslowed].into_iter().filter(|at| **at != 0.0) {
            *at += by as f64;
        }
        self.counted.values_mut().flatten().for_each(|mark| mark.0 += by);
    }
}
