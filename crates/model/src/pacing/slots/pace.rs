//! The pace of a throttle: the generic cell rate algorithm (GCRA), and windows whose slots are counted (pure).

use std::collections::BTreeMap;

use super::limits::{Limits, millis, tolerance};
use super::{LEAD, MAX_AHEAD, Micros};

/// In how many parts of a larger window its slots are counted.
const PARTS: i64 = 128;
/// The same for a window that the pace alone keeps, as long as every start costs 1: its slots are counted for people.
const SHOWN_PARTS: i64 = 16;
/// How many windows are counted at most, those of former limits among them.
const MAX_WINDOWS: usize = 6;

/// The slots that have been granted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pace {
    /// The emission interval (µs) by which slots were granted last.
    pub interval: f64,
    /// The theoretical arrival time: when the next slot opens if slots are spread evenly and no tolerance is left. What
    /// holds or slows the throttle moves this time.
    pub tat: f64,
    /// The theoretical arrival time by the slots that were granted alone, whatever holds or slows the throttle.
    pub unslowed_tat: f64,
    /// The slots of each counted window, by its length in milliseconds: when they opened, and how many.
    pub counted: BTreeMap<u64, Vec<(Micros, u32)>>,
    /// When the last slot for a start of a cost above 1 opened; 0 is never. The pace alone does not keep a window in
    /// which starts of different costs are.
    pub costly_at: Micros,
}

impl Pace {
    /// Adapts to limits that may have changed: slots that were granted ahead of the pace count for as many starts as
    /// before. Answers whether the emission interval has changed.
    pub fn adapt(&mut self, limits: &Limits, now: Micros) -> bool {
        let interval = limits.emission_interval();
        let changed = self.interval > 0.0 && interval != self.interval;
        if changed {
            let (now, by) = (now as f64, interval / self.interval);
            for tat in [&mut self.tat, &mut self.unslowed_tat] {
                *tat = if *tat > now { now + (*tat - now) * by } else { *tat };
            }
        }
        self.interval = interval;
        changed
    }

    /// When a slot for a start of this cost opens. A probe waits for nothing that slows other starts.
    pub fn opens(&self, limits: &Limits, cost: u32, probe: bool) -> Micros {
        let tat = if probe { self.unslowed_tat } else { self.tat };
        let mut opens = (tat - tolerance(limits)).ceil() as Micros;
        for (n, window) in limits.windows().enumerate() {
            if n == 0 && limits.pace_suffices() && cost == 1 && !self.is_costly(limits, opens) {
                continue;
            }
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

    /// Whether the first window holds a start of a cost above 1 when a slot opens at `opens`.
    fn is_costly(&self, limits: &Limits, opens: Micros) -> bool {
        self.costly_at != 0 && self.costly_at + limits.stretched(limits.window).ceil() as Micros > opens
    }

    /// Grants a slot for a start of this cost. The next one opens a `step` (µs) later: the emission interval times the
    /// cost, or more where something slows the throttle.
    pub fn take(&mut self, limits: &Limits, opens: Micros, cost: u32, step: f64, probe: bool) {
        let even = f64::from(cost) * limits.emission_interval();
        self.tat = match probe {
            true => self.tat.max(opens as f64 + even),
            false => self.tat.max(opens as f64) + step,
        };
        self.unslowed_tat = self.unslowed_tat.max(opens as f64) + even;
        if step > even {
            self.tat = self.tat.max(opens as f64 + step + tolerance(limits));
        }
        self.count(limits, opens, cost);
    }

    fn count(&mut self, limits: &Limits, opens: Micros, cost: u32) {
        let slip = limits.slip().as_micros() as Micros;
        if cost > 1 {
            self.costly_at = self.costly_at.max(opens);
        }
        let shown = (limits.pace_suffices() && !self.is_costly(limits, opens)).then(|| millis(limits.window));
        let also: Vec<u64> = limits.also.iter().copied().map(millis).collect();
        // The windows of former limits, which may be in force again, are counted as well.
        for (per, marks) in &mut self.counted {
            let parts = if Some(*per) == shown && !also.contains(per) { SHOWN_PARTS } else { PARTS };
            let length = *per as Micros * 1_000 + slip;
            // The next slot may open a little before this one, if this one was granted ahead.
            let gone = marks.iter().take_while(|(at, _)| at + length + LEAD + 2 * MAX_AHEAD + slip <= opens).count();
            marks.drain(..gone);
            let part = (length / parts).max(1);
            // All slots of a part count as if they had opened at its end: never too early.
            let few = limits.windows().any(|window| millis(window) == *per && i64::from(window.allow) <= parts);
            let at = if few { opens } else { (opens.div_euclid(part) + 1) * part };
            match marks.last_mut() {
                Some(last) if last.0 >= at => last.1 = last.1.saturating_add(cost),
                _ => marks.push((at, cost)),
            }
        }
    }

    /// From now on counts the windows of these limits, too.
    pub fn count_windows_of(&mut self, limits: &Limits) {
        let known: Vec<u64> = limits.windows().map(millis).collect();
        // A window that is new takes over the slots of the longest known one.
        let longest = self.counted.last_key_value().map(|(_, marks)| marks.clone()).unwrap_or_default();
        for per in &known {
            self.counted.entry(*per).or_insert_with(|| longest.clone());
        }
        while self.counted.len() > known.len().max(MAX_WINDOWS)
            && let Some(other) = self.counted.keys().find(|per| !known.contains(per)).copied()
        {
            self.counted.remove(&other);
        }
    }

    /// Nothing slows the throttle any more.
    pub fn resume(&mut self) {
        self.tat = self.tat.min(self.unslowed_tat);
    }

    /// Takes away the tolerance at `from`: no burst comes then.
    pub fn lose_tolerance(&mut self, limits: &Limits, from: Micros) {
        self.tat = self.tat.max(from as f64 + tolerance(limits));
    }

    /// From when on the pace is as if nothing had ever been granted.
    pub fn idle_at(&self, limits: &Limits) -> Micros {
        let longest = limits.windows().map(|window| limits.stretched(window).ceil() as Micros).max().unwrap_or(0);
        let last = self.counted.values().filter_map(|marks| marks.last()).map(|mark| mark.0).max();
        last.map_or(0, |last| last + longest).max(self.tat.ceil() as Micros)
    }

    /// The same by a clock that shows `by` more.
    pub fn shift(&mut self, by: Micros) {
        // Time 0 stands for never.
        for at in [&mut self.tat, &mut self.unslowed_tat].into_iter().filter(|at| **at != 0.0) {
            *at += by as f64;
        }
        self.costly_at += if self.costly_at == 0 { 0 } else { by };
        self.counted.values_mut().flatten().for_each(|mark| mark.0 += by);
    }
}
