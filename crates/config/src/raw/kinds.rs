//! A kind of job: `[kinds]`. What says when it recurs, what runs it, and what follows when it fails are files of their
//! own.

use std::collections::BTreeMap;

use roundelay_model::guard::IfRunning;
use roundelay_model::schedule::{OneOrMany, WhenExcluded};
use serde::Deserialize;

use super::duration::{HumanDuration, secs};
use super::failures::{Reason, Reconcile, Retry};
use super::handlers::Handler;
use super::model::Model;
use super::recurrence::{Fresh, From, Misfire, Overlap, Phase, Within};
use super::roster::Roster;

/// A kind of job: what runs it, when it recurs, and what follows when it fails.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Kind {
    /// What runs the jobs: a URL, a program, or, when neither is named, a handler that a Rust program of yours
    /// registers under the kind's name.
    pub handler: Handler,
    /// The platform queue. It may be a template over the columns of a roster, or over the payload. Without it, a
    /// roster needs a column `queue`.
    pub queue: Option<String>,
    /// On a queue with `lanes`, jobs of a higher priority go first; less than the number of lanes.
    #[cfg_attr(test, schemars(range(min = 0, max = 9)))]
    pub priority: u8,
    /// How long a run may take. One that takes longer is ended and tried again. A run of a one-off job is ended after
    /// 24 minutes in any case.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "1d")))]
    pub timeout: HumanDuration,
    /// For how many starts of its queue's throttle a run counts.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub cost: u32,
    /// When a tick may be taken over from a worker that runs it.
    pub takeover: Takeover,
    /// What follows a failed attempt, unless a reason says otherwise.
    pub retry: Retry,
    /// Reasons of this kind alone, which go before those of all kinds.
    pub reasons: BTreeMap<String, Reason>,
    /// Which HTTP statuses, from 300 to 599, mean which reason. An answer that decides by itself goes before them.
    pub on_status: BTreeMap<String, String>,
    /// Which exit codes of programs, from 1 to 255, mean which reason.
    pub on_exit: BTreeMap<String, String>,
    /// How parts that runs report as failed are fed back. Without it they are only kept.
    pub reconcile: Option<Reconcile>,
    // When, and whether. Spelled out here since `flatten` would let unknown fields pass.
    /// How long from one run to the next. Without this, `cron` or `at` the kind has no chains, and only runs as single
    /// jobs.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "3660days")))]
    pub every: Option<HumanDuration>,
    /// What the interval `every` is counted from.
    #[cfg_attr(test, schemars(extend("default" = "finish")))]
    pub from: Option<From>,
    /// When by the wall clock: minute, hour, day of month, month, day of week, with seconds in front if wanted, or
    /// `@hourly` and its like.
    pub cron: Option<String>,
    /// The time zone of `cron`, of `quiet`, and of calendars without one, by its name in the IANA database.
    #[cfg_attr(test, schemars(extend("default" = "UTC")))]
    pub zone: Option<String>,
    /// Once, at this moment, such as `2030-01-01T03:00:00Z`.
    pub at: Option<String>,
    /// Each occurrence lies up to so much before or after its time, so that chains spread out, and never past the next
    /// one. Smaller than `every`. Without it there is none.
    pub jitter: Option<HumanDuration>,
    /// How the chains of a kind lie between two occurrences of `cron`, or of `every` with `from = "nominal"`. Without
    /// it all come at the same time.
    pub phase: Option<Phase>,
    /// What becomes of occurrences whose time comes while the chain still runs. Counted from the finish there are none.
    #[cfg_attr(test, schemars(extend("default" = "skip")))]
    pub overlap: Option<Overlap>,
    /// What becomes of occurrences that nothing could start, as in an outage or a backlog.
    #[cfg_attr(test, schemars(extend("default" = "coalesce")))]
    pub misfire: Option<Misfire>,
    /// Only those not later than this. Without it there is no bound; with `misfire = "skip"` it is one minute.
    pub misfire_window: Option<HumanDuration>,
    /// They are spread over so long, so that nothing bursts. Without it there is no spread.
    pub misfire_spread: Option<HumanDuration>,
    /// Calendars in whose time no tick starts: a name, or a list.
    pub except: Option<OneOrMany>,
    /// Calendars outside of whose time no tick starts.
    pub only: Option<OneOrMany>,
    /// Hours in which no tick starts, such as `22:00-06:00`, or a list.
    pub quiet: Option<OneOrMany>,
    /// What becomes of an occurrence in excluded time.
    #[cfg_attr(test, schemars(extend("default" = "skip")))]
    pub when_excluded: Option<WhenExcluded>,
    /// Two starts may lie closer together than `every` by this, and no more: a tick that comes sooner is dropped. With
    /// `from = "start"` or `"nominal"`.
    pub tolerance: Option<HumanDuration>,
    /// Between the end of a run and the next start, at least; a tick that comes sooner is skipped.
    pub cooldown: Option<HumanDuration>,
    /// How long a run may take before it has to make room: a duration, or a share of the interval such as `50%`. It
    /// sees its deadline, a program gets SIGTERM then. That is no failure, and no retry.
    pub time_box: Option<String>,
    /// So long after that it is aborted.
    #[cfg_attr(test, schemars(extend("default" = "5s")))]
    pub time_box_grace: Option<HumanDuration>,
    /// Within these, a run may say itself when the next one is due. Without it, from a second to 30 days.
    pub next_in: Option<Within>,
    /// In place of `every`: each chain's interval follows from how often its entity changes, what the entity is worth, and
    /// what calls cost.
    pub fresh: Option<Fresh>,
    /// What becomes of a manual run of a chain while its rotation runs. Who asks for the run can say otherwise.
    pub if_running: IfRunning,
    /// There is at most one one-off job of each key at a time: another that comes within so long is dropped.
    #[cfg_attr(test, schemars(extend("x-least" = "1ms", "x-most" = "3660days")))]
    pub unique_for: Option<HumanDuration>,
    /// Until when. It goes with `unique_for`.
    #[cfg_attr(test, schemars(extend("default" = "finish")))]
    pub unique_until: Option<UniqueUntil>,
    /// How much runs of this kind may ask for.
    pub spawn: Spawn,
    /// Which entities the kind has chains for.
    pub roster: Roster,
    /// What `roundelay simulate` takes this kind's handler for. Workers do not look at it.
    pub model: Model,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            handler: Handler::default(),
            queue: None,
            priority: 0,
            timeout: secs(30),
            cost: 1,
            takeover: Takeover::default(),
            retry: Retry::default(),
            reasons: BTreeMap::new(),
            on_status: BTreeMap::new(),
            on_exit: BTreeMap::new(),
            reconcile: None,
            every: None,
            from: None,
            cron: None,
            zone: None,
            at: None,
            jitter: None,
            phase: None,
            overlap: None,
            misfire: None,
            misfire_window: None,
            misfire_spread: None,
            except: None,
            only: None,
            quiet: None,
            when_excluded: None,
            tolerance: None,
            cooldown: None,
            time_box: None,
            time_box_grace: None,
            next_in: None,
            fresh: None,
            if_running: IfRunning::default(),
            unique_for: None,
            unique_until: None,
            spawn: Spawn::default(),
            roster: Roster::default(),
            model: Model::default(),
        }
    }
}

/// When a tick may be taken over from a worker that runs it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Takeover {
    /// When its lease is over.
    #[default]
    LeaseExpiry,
    /// Also as soon as RabbitMQ delivers its message again, which it does at once when the worker's connection is
    /// gone. If only the connection broke, the run before may still go on beside the new one.
    Redelivery,
}

/// Until when a one-off job is the only one of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum UniqueUntil {
    /// Only until the first starts.
    Start,
    /// Until the first has ended.
    #[default]
    Finish,
    /// For the whole window, also when the first has ended, unless it has failed for good.
    Window,
}

/// How much runs of this kind may ask for. What is more is left out, and kept as a failed part of the run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Spawn {
    /// So many jobs and chains, together.
    #[cfg_attr(test, schemars(range(min = 0, max = 10_000)))]
    pub most: usize,
    /// A run to which so many runs have led, each asked for by the one before, may ask for none.
    pub depth: u32,
}

impl Default for Spawn {
    fn default() -> Self {
        Self { most: 1_000, depth: 8 }
    }
}
