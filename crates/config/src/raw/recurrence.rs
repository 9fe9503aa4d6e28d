//! When the chains of a kind recur: the part of `[kinds]` that is a schedule.

use serde::{Deserialize, Serialize};

use super::duration::HumanDuration;
use super::kinds::Kind;

/// The part of a kind that says when its chains recur.
#[derive(Debug)]
pub struct Recurrence {
    pub every: Option<HumanDuration>,
    pub from: Option<From>,
    pub cron: Option<String>,
    pub zone: Option<String>,
    pub at: Option<String>,
    pub jitter: Option<HumanDuration>,
    pub phase: Option<Phase>,
    pub overlap: Option<Overlap>,
    pub misfire: Option<Misfire>,
    pub misfire_window: Option<HumanDuration>,
    pub misfire_spread: Option<HumanDuration>,
    pub tolerance: Option<HumanDuration>,
    pub cooldown: Option<HumanDuration>,
    pub time_box: Option<String>,
    pub time_box_grace: Option<HumanDuration>,
    pub next_in: Option<Within>,
}

impl Kind {
    /// Takes out what says when.
    pub fn take_recurrence(&mut self) -> Recurrence {
        Recurrence {
            every: self.every.take(),
            from: self.from.take(),
            cron: self.cron.take(),
            zone: self.zone.take(),
            at: self.at.take(),
            jitter: self.jitter.take(),
            phase: self.phase.take(),
            overlap: self.overlap.take(),
            misfire: self.misfire.take(),
            misfire_window: self.misfire_window.take(),
            misfire_spread: self.misfire_spread.take(),
            tolerance: self.tolerance.take(),
            cooldown: self.cooldown.take(),
            time_box: self.time_box.take(),
            time_box_grace: self.time_box_grace.take(),
            next_in: self.next_in.take(),
        }
    }
}

impl Recurrence {
    /// Settings that mean nothing without a schedule, and whether they are given.
    pub fn needs_a_schedule(&self) -> [(&'static str, bool); 9] {
        [
            ("jitter", self.jitter.is_some()),
            ("phase", self.phase.is_some()),
            ("overlap", self.overlap.is_some()),
            ("misfire", self.misfire.is_some()),
            ("misfire_window", self.misfire_window.is_some()),
            ("misfire_spread", self.misfire_spread.is_some()),
            ("tolerance", self.tolerance.is_some()),
            ("cooldown", self.cooldown.is_some()),
            ("time_box", self.time_box.is_some()),
        ]
    }
}

/// What an interval is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// The end of the run before.
    #[default]
    Finish,
    /// Its start.
    Start,
    /// Its nominal time.
    Nominal,
}

/// How chains lie between two occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Every chain has a place of its own, always the same.
    Spread,
}

/// What becomes of occurrences whose time comes while the chain runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// They are left out.
    #[default]
    Skip,
    /// One of them runs right afterwards.
    BufferOne,
    /// The run is ended for the next.
    CancelOther,
    /// They run at the same time, each as a one-off job of its kind and key.
    Allow,
}

/// What becomes of occurrences that nothing could start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Misfire {
    /// None of them runs.
    Skip,
    /// One runs for all of them.
    #[default]
    Coalesce,
    /// Each of them runs.
    All,
}

/// Within what a run may say when the next tick is due.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Within {
    /// Not sooner than this; above zero.
    pub min: HumanDuration,
    /// Not later than this, and not below `min`.
    #[cfg_attr(test, schemars(extend("x-most" = "30days")))]
    pub max: HumanDuration,
    /// Whether the `Cache-Control` or `Expires` of an HTTP answer says so, too.
    #[serde(default)]
    pub from_headers: bool,
}
