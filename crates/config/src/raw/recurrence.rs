//! When the chains of a kind recur: the part of `[kinds]` that is a schedule.

use roundelay_model::fresh;
use roundelay_model::schedule::{OneOrMany, WhenExcluded};
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
    pub except: Option<OneOrMany>,
    pub only: Option<OneOrMany>,
    pub quiet: Option<OneOrMany>,
    pub when_excluded: Option<WhenExcluded>,
    pub tolerance: Option<HumanDuration>,
    pub cooldown: Option<HumanDuration>,
    pub time_box: Option<String>,
    pub time_box_grace: Option<HumanDuration>,
    pub next_in: Option<Within>,
    pub fresh: Option<Fresh>,
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
            except: self.except.take(),
            only: self.only.take(),
            quiet: self.quiet.take(),
            when_excluded: self.when_excluded.take(),
            tolerance: self.tolerance.take(),
            cooldown: self.cooldown.take(),
            time_box: self.time_box.take(),
            time_box_grace: self.time_box_grace.take(),
            next_in: self.next_in.take(),
            fresh: self.fresh.take(),
        }
    }
}

impl Recurrence {
    /// Settings that mean nothing without a schedule, and whether they are given.
    pub fn needs_a_schedule(&self) -> [(&'static str, bool); 13] {
        [
            ("jitter", self.jitter.is_some()),
            ("phase", self.phase.is_some()),
            ("overlap", self.overlap.is_some()),
            ("misfire", self.misfire.is_some()),
            ("misfire_window", self.misfire_window.is_some()),
            ("misfire_spread", self.misfire_spread.is_some()),
            ("except", self.except.is_some()),
            ("only", self.only.is_some()),
            ("quiet", self.quiet.is_some()),
            ("when_excluded", self.when_excluded.is_some()),
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

/// How the interval of each chain follows from how often its entity changes.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Fresh {
    /// The calls that there are for all chains of the budget: `throttle:NAME` for those that a throttle allows, less what
    /// other jobs under it take, or so many in a time, such as `2000/1h`. Kinds with the same budget share it.
    pub budget: String,
    /// Further budgets, each written as `budget`, of which a run takes a call as well: another limit of the same upstream,
    /// or a throttle of which the handler asks for a start. The prices add up.
    #[serde(default)]
    pub also: Vec<String>,
    /// What calls are spent for: that what is known is out of date for a short time (`age`), or seldom (`harmonic`,
    /// `freshness`). With `freshness`, what changes too fast for its weight is visited only each `max`.
    #[serde(default)]
    pub objective: Objective,
    /// The shortest interval; above zero.
    pub min: HumanDuration,
    /// The longest interval.
    #[cfg_attr(test, schemars(extend("x-most" = "30days")))]
    pub max: HumanDuration,
    /// A template for what an entity is worth, over its payload: a number above 0, such as `{{ stars }}`. Without it all
    /// are worth the same.
    #[serde(default)]
    pub weight: Option<String>,
    /// How a run tells whether its entity has changed: by `changed` in its answer (`word`), by 304 in place of 200
    /// (`status`), by the `ETag` of the answer (`etag`), or by the answer's body (`hash`). A word in the answer always
    /// counts.
    #[serde(default)]
    pub compare: Compare,
}

/// What the calls of a budget are spent for.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// For how long what is known has been out of date.
    #[default]
    Age,
    /// The share of time in which it is up to date, and no entity is given up.
    Harmonic,
    /// The share of time in which it is up to date.
    Freshness,
}

impl std::convert::From<Objective> for fresh::Objective {
    fn from(objective: Objective) -> Self {
        match objective {
            Objective::Age => Self::Age,
            Objective::Harmonic => Self::Harmonic,
            Objective::Freshness => Self::Freshness,
        }
    }
}

/// How a run tells whether its entity has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Compare {
    /// The answer says so.
    #[default]
    Word,
    /// 304 in place of 200.
    Status,
    /// Another `ETag`.
    Etag,
    /// Another body.
    Hash,
}

impl std::convert::From<Compare> for roundelay_handler::Compare {
    fn from(compare: Compare) -> Self {
        match compare {
            Compare::Word => Self::Word,
            Compare::Status => Self::Status,
            Compare::Etag => Self::Etag,
            Compare::Hash => Self::Hash,
        }
    }
}
