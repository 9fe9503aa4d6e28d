//! What a throttle allows.

use std::fmt;
use std::time::Duration;

use crate::clock::short_duration;

/// A number of starts in any stretch of time of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// How many starts; at least 1.
    pub allow: u32,
    /// The length, at least a millisecond.
    pub per: Duration,
}

/// What a throttle allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The window that paces.
    pub window: Window,
    /// How many may start back to back, from 1 to the window's `allow`.
    pub burst: u32,
    /// Further windows, which are only counted.
    pub also: Vec<Window>,
}

impl Limits {
    /// All windows, the one that paces first.
    pub fn windows(&self) -> impl Iterator<Item = Window> {
        std::iter::once(self.window).chain(self.also.iter().copied())
    }

    /// How late a slot may be used: a 32nd of the shortest window, and at most a second.
    pub fn slip(&self) -> Duration {
        let shortest = self.windows().map(|window| window.per).min().unwrap_or_default();
        (shortest / 32).min(Duration::from_secs(1))
    }

    /// The length of the longest window.
    pub fn longest_window(&self) -> Duration {
        self.windows().map(|window| window.per).max().unwrap_or_default()
    }

    /// How many starts per second the limits allow in the long run.
    pub fn rate(&self) -> f64 {
        let rates = self.windows().map(|window| f64::from(window.allow) / window.per.as_secs_f64());
        rates.fold(f64::INFINITY, f64::min)
    }

    /// How many slots per second there are in the long run: somewhat fewer than [`Self::rate`], for each may be used late.
    pub fn pace(&self) -> f64 {
        let rates = self.windows().map(|window| f64::from(window.allow) * 1e6 / self.stretched(window));
        rates.fold(f64::INFINITY, f64::min)
    }

    /// For how many starts one start may count at most.
    pub fn max_cost(&self) -> u32 {
        self.windows().map(|window| window.allow).min().unwrap_or(1)
    }

    /// The length of a window with the slip of the starts in it, in microseconds.
    pub(super) fn stretched(&self, window: Window) -> f64 {
        (window.per + self.slip()).as_micros() as f64
    }

    /// GCRA's emission interval `T`: the spacing of slots that are spread evenly, in microseconds.
    pub(super) fn emission_interval(&self) -> f64 {
        self.stretched(self.window) / f64::from(self.window.allow.max(1))
    }

    /// The spacing of slots that are spread evenly.
    pub fn spacing(&self) -> Duration {
        Duration::from_micros(self.emission_interval().ceil() as u64)
    }

    /// Whether the pace alone keeps the first window if every start in it costs 1: there is no burst.
    pub(super) fn pace_suffices(&self) -> bool {
        self.burst <= 1
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Window { allow, per }) in self.windows().enumerate() {
            write!(f, "{}{allow} per {}", if n > 0 { " and " } else { "" }, short_duration(per))?;
        }
        Ok(())
    }
}

/// The key of a window's slots in `Pace::counted`.
pub(super) fn millis(window: Window) -> u64 {
    window.per.as_millis() as u64
}

/// GCRA's tolerance `τ`, in microseconds: how far a throttle can lie behind its pace, and catch up in a burst.
pub(super) fn tolerance(limits: &Limits) -> f64 {
    f64::from(limits.burst.max(1) - 1) * limits.emission_interval()
}
