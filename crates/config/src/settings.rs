//! The checked settings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roundelay_broker::{BrokerSettings, Delays};
use roundelay_handler::Compare;
use roundelay_handler::exec::ExecSettings;
use roundelay_handler::http::HttpSettings;
use roundelay_ledger::LedgerUrl;
use roundelay_model::encryption::Keyring;
use roundelay_model::ladder::Ladder;
use roundelay_model::lanes::{Lanes, MAX_LANES};
use roundelay_model::outcome::RetryPolicy;
use roundelay_model::pacing::ThrottleSettings;
use roundelay_model::pacing::fair::ShareSettings;
use roundelay_model::pacing::key::KeyPath;
use roundelay_model::policy::Policies;
use roundelay_model::schedule::calendar::Days;
use roundelay_model::schedule::{Pace, Rhythm, Schedule};
use roundelay_model::topology::{Names, Topology};

// By their files: whatever imports this one would be in a circle with the crate's first page.
use crate::api::ApiSettings;
use crate::calendars::{self, CalendarSettings};
use crate::fresh::FreshSettings;
use crate::model::ModelSettings;
use crate::raw::UniqueUntil;
use crate::reasons::Reconcile;
use crate::recurrence::{OwnSchedule, Recurrence};
use crate::roster::RosterSettings;
use crate::throttle;
use crate::tracing::TracingSettings;

/// What the names of the engine's own kinds begin with.
pub const INTERNAL: &str = "roundelay.";

/// Checked settings: what they name exists, and what they ask for is possible.
#[derive(Clone, Debug)]
pub struct Config {
    /// The broker.
    #[doc(hidden)]
    pub broker: BrokerSettings,
    /// The ledger.
    #[doc(hidden)]
    pub ledger: LedgerSettings,
    /// How a worker stops, and where it answers.
    #[doc(hidden)]
    pub worker: WorkerSettings,
    /// How the API answers.
    #[doc(hidden)]
    pub api: ApiSettings,
    /// When and how overdue chains are sent again.
    #[doc(hidden)]
    pub catch_up: CatchUpSettings,
    /// Which traces are recorded, and where they go.
    #[doc(hidden)]
    pub tracing: TracingSettings,
    /// What seals payloads while they lie in the ledger and in queues.
    #[doc(hidden)]
    pub encryption: Arc<Keyring>,
    /// Platform queues by name.
    #[doc(hidden)]
    pub queues: BTreeMap<String, QueueSettings>,
    /// Throttles by name.
    #[doc(hidden)]
    pub throttles: BTreeMap<String, ThrottleSettings>,
    /// The shares of tenants, by name.
    #[doc(hidden)]
    pub tenants: BTreeMap<String, ShareSettings>,
    /// Calendars by name.
    #[doc(hidden)]
    pub calendars: BTreeMap<String, CalendarSettings>,
    /// Kinds by name.
    #[doc(hidden)]
    pub kinds: BTreeMap<String, KindSettings>,
    /// The rungs that follow from the durations above.
    #[doc(hidden)]
    pub ladder: Ladder,
    /// The text that it was read from, without what may be secret, and without comments.
    #[doc(hidden)]
    pub shown: String,
}

/// `[ledger]`
#[derive(Clone, Debug)]
pub struct LedgerSettings {
    /// Where the truth is kept.
    pub url: LedgerUrl,
    /// How long records of attempts are kept.
    pub history: Duration,
    /// How old they may become in the archive; without it there is none, and they are deleted.
    pub archive: Option<Duration>,
    /// A PostgreSQL server that waits for no standby is refused.
    pub synchronous: bool,
}

/// `[worker]`
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// How long running jobs may go on after the signal to stop.
    pub grace: Duration,
    /// How long a claim holds without a heartbeat.
    pub lease: Duration,
    /// Where metrics and health are answered; nowhere when absent.
    pub listen: Option<SocketAddr>,
    /// What handlers reach that by, without a slash at the end; absent, what follows from the address.
    pub callback: Option<String>,
    /// By which names it is called there, in small letters and without ports, beside those that are always answered.
    pub hosts: BTreeSet<String>,
}

/// `[catch_up]`
#[derive(Clone, Debug)]
pub struct CatchUpSettings {
    /// How often overdue chains are looked for.
    pub every: Duration,
    /// How long after its due time a chain counts as overdue.
    pub slack: Duration,
    /// Over how long their messages are spread at most.
    pub spread: Duration,
}

/// `[queues.<name>]`
#[derive(Clone, Debug)]
pub struct QueueSettings {
    /// Jobs of this queue that one worker runs at the same time.
    pub concurrency: usize,
    /// Messages that one worker holds, running ones included.
    pub prefetch: u16,
    /// Among queues that share a throttle, the higher goes first.
    pub priority: i32,
    /// How many of the kinds' priorities it tells apart: so many queues on the broker stand behind it.
    pub lanes: u8,
    /// The throttle that paces its starts.
    pub throttle: Option<String>,
    /// The part of a job by which tenants share its places, and the slots of its throttle if that is fair.
    pub fair: Option<KeyPath>,
    /// How many jobs of one tenant run at the same time at most, over all workers.
    pub most: Option<u32>,
}

impl QueueSettings {
    /// The priority of a lane's jobs among all that share a throttle.
    pub fn rank(&self, lane: u8) -> i32 {
        self.priority.saturating_mul(i32::from(MAX_LANES)).saturating_add(i32::from(lane))
    }
}

/// `[kinds.<name>]`
#[derive(Clone, Debug)]
pub struct KindSettings {
    /// What runs its jobs.
    pub handler: HandlerSettings,
    /// The platform queue, or a template for it over the columns of a roster.
    pub queue: Option<String>,
    /// Among the kinds of a queue with lanes, the higher goes first.
    pub priority: u8,
    /// How long a run may take.
    pub timeout: Duration,
    /// For how many starts of its queue's throttle a run counts.
    pub cost: u32,
    /// When a tick may be claimed from a worker that holds it.
    pub takeover: Takeover,
    /// What follows a failed attempt.
    pub retry: RetryPolicy,
    /// What follows from a failure by its reason, in place of `retry`.
    pub policies: Policies,
    /// How failed parts of its runs are fed back; `None` when they are only kept.
    pub reconcile: Option<Reconcile>,
    /// How its chains recur; `None` for kinds that only run as single jobs.
    pub recurrence: Option<Recurrence>,
    /// What becomes of a manual run while the rotation of its chain runs.
    pub if_running: roundelay_model::guard::IfRunning,
    /// There is at most one one-off job of each key at a time, manual runs among them.
    pub unique: Option<Unique>,
    /// How much its runs may ask for.
    pub spawn: SpawnSettings,
    /// A template for the key over the columns of a roster.
    pub roster_key: Option<String>,
    /// The template of its queue. Where the template gives nothing, `queue` says.
    pub roster_queue: Option<String>,
    /// The template of its priority. Where the template gives nothing, `priority` says.
    pub roster_priority: Option<String>,
    /// Where its entities are listed, if its chains follow a list.
    pub roster: Option<RosterSettings>,
    /// The template of its owner.
    pub roster_owner: Option<String>,
    /// The template of the chain's own schedule: see [`OwnSchedule`].
    pub roster_schedule: Option<String>,
    /// What `simulate` takes its handler for; workers do not look at it.
    pub model: ModelSettings,
}

/// `spawn` of a kind: bounds of what its runs ask for, jobs and chains together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnSettings {
    /// So much for each run.
    pub most: usize,
    /// A run to which so many runs have led may ask for nothing more: see [`roundelay_ledger::NewChain::depth`].
    pub depth: u32,
}

/// For how long a one-off job is the only one of its kind and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unique {
    /// Not longer than this.
    pub window: Duration,
    /// What ends it sooner.
    pub until: UniqueUntil,
}

/// When a tick may be claimed from a worker that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// When its lease has ended.
    LeaseExpiry,
    /// Also when its message is delivered again, which the broker does as soon as the connection
    /// of the worker that had it is gone. If only the connection died, the handler may still run.
    Redelivery,
}

impl KindSettings {
    /// Whether its chains follow the wall clock, but for those with a schedule of their own.
    pub fn follows_the_wall(&self) -> bool {
        self.recurrence.as_ref().is_some_and(|recurrence| recurrence.schedule.follows_the_wall())
    }

    /// How its chains' intervals follow from what has been learned, if they do.
    pub fn fresh(&self) -> Option<&FreshSettings> {
        self.recurrence.as_ref()?.fresh.as_ref()
    }

    /// The queue for a job with this payload, if the kind names one.
    ///
    /// # Errors
    /// Says what the payload lacks.
    pub fn queue_for(&self, payload: &serde_json::Value) -> Result<Option<String>, String> {
        let Some(template) = &self.queue else { return Ok(None) };
        let mut templates = minijinja::Environment::new();
        templates.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        let queue = templates.render_str(template, minijinja::value::Serde(payload));
        queue.map(Some).map_err(|error| format!("the queue `{template}` cannot be made from the payload: {error}"))
    }
}

/// What runs a kind's jobs.
#[derive(Clone, Debug, PartialEq)]
pub enum HandlerSettings {
    /// A handler that the embedding program registers under the kind's name.
    Rust,
    /// POST to a URL.
    Http(HttpSettings),
    /// Start a program.
    Exec(ExecSettings),
}

impl HandlerSettings {
    /// How it tells whether the entity of a run has changed; a handler in Rust says so itself.
    pub(super) fn compare_by(&mut self, compare: Compare) {
        match self {
            Self::Rust => {}
            Self::Http(http) => http.compare = compare,
            Self::Exec(exec) => exec.compare = compare,
        }
    }
}

impl Config {
    /// The names under `[kinds]`, in order.
    pub fn kind_names(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// The names under `[queues]`, in order.
    pub fn queue_names(&self) -> impl Iterator<Item = &str> {
        self.queues.keys().map(String::as_str)
    }

    /// Has the wall clock of all cron expressions run at this pace: for demos.
    #[doc(hidden)]
    pub fn pace_wall_clock(&mut self, pace: Pace) {
        let recurrences = self.kinds.values_mut().filter_map(|kind| kind.recurrence.as_mut());
        for rhythm in recurrences.map(|recurrence| &mut recurrence.schedule.rhythm) {
            if let Rhythm::Cron(cron) = rhythm {
                *cron = cron.clone().paced(Some(pace));
            }
        }
    }

    /// The days that were read of calendars by SQL, which the configuration itself does not have.
    #[doc(hidden)]
    pub fn take_days(&mut self, read: &BTreeMap<String, Days>) {
        let book = calendars::book(&self.calendars, read);
        for recurrence in self.kinds.values_mut().filter_map(|kind| kind.recurrence.as_mut()) {
            recurrence.schedule.excluded.book.clone_from(&book);
        }
    }

    /// The settings of a kind.
    ///
    /// # Errors
    /// Says which kinds there are.
    #[doc(hidden)]
    pub fn kind(&self, name: &str) -> Result<&KindSettings, String> {
        self.kinds.get(name).ok_or_else(|| absent("kinds", name, self.kinds.keys()))
    }

    /// The settings of a platform queue.
    ///
    /// # Errors
    /// Says which queues there are.
    #[doc(hidden)]
    pub fn queue(&self, name: &str) -> Result<&QueueSettings, String> {
        self.queues.get(name).ok_or_else(|| absent("queues", name, self.queues.keys()))
    }

    /// The settings of a throttle.
    ///
    /// # Errors
    /// Says which throttles there are.
    #[doc(hidden)]
    pub fn throttle(&self, name: &str) -> Result<&ThrottleSettings, String> {
        self.throttles.get(name).ok_or_else(|| absent("throttles", name, self.throttles.keys()))
    }

    /// The costliest runs that a throttle paces: their kind, and for how many starts one of them counts.
    #[doc(hidden)]
    pub fn costliest(&self, throttle: &str) -> Option<(&str, u32)> {
        let paced = self
            .kinds
            .iter()
            .filter(|(_, kind)| throttle::throttles_of(kind, &self.queues).any(|name| name == throttle));
        paced.map(|(name, kind)| (name.as_str(), kind.cost)).max_by_key(|(_, cost)| *cost)
    }

    /// What has to exist on the broker as far as the configuration says: rungs unless `broker.delays` is `native`.
    #[doc(hidden)]
    pub fn topology(&self) -> Topology {
        match self.broker.delays {
            Delays::Native => self.native_topology(),
            Delays::Auto | Delays::Ladder => self.ladder_topology(),
        }
    }

    /// What has to exist where messages sleep on rungs.
    #[doc(hidden)]
    pub fn ladder_topology(&self) -> Topology {
        Topology::new(Names::new(&self.broker.prefix), self.broker_queues(), &self.ladder)
    }

    /// What has to exist where messages sleep on their own queue.
    #[doc(hidden)]
    pub fn native_topology(&self) -> Topology {
        Topology::native(Names::new(&self.broker.prefix), self.broker_queues())
    }

    /// The lanes of its platform queues.
    #[doc(hidden)]
    pub fn lanes(&self) -> Lanes {
        let queues = self.queues.iter().map(|(name, queue)| (name, queue.lanes));
        let kinds = self.kinds.iter().map(|(name, kind)| (name, kind.priority));
        Lanes::new(&self.broker.prefix, queues, kinds)
    }

    /// The broker's queues behind the platform queues.
    #[doc(hidden)]
    pub fn broker_queues(&self) -> Vec<String> {
        let lanes = self.lanes();
        self.queues.keys().flat_map(|queue| lanes.queues(queue)).collect()
    }
}

fn absent<'k>(table: &str, name: &str, known: impl Iterator<Item = &'k String>) -> String {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let has = if known.is_empty() { "none".into() } else { known.join(", ") };
    format!("there is no [{table}.{name}]; the configuration has {has}")
}

/// Whether `kind` is one of the engine's own.
pub fn is_internal(kind: &str) -> bool {
    kind.starts_with(INTERNAL)
}

/// The schedule of a kind, if it has one. The engine's own kinds are in no configuration, and their chains have
/// schedules of their own.
pub fn schedule_of_kind(config: &Config, kind: &str) -> Option<Schedule> {
    if is_internal(kind) {
        return Some(Schedule::fixed_delay(Duration::ZERO, Duration::ZERO));
    }
    Some(config.kinds.get(kind)?.recurrence.as_ref()?.schedule.clone())
}

/// The schedule of a chain of a kind, which may have one of its own. One that cannot be used counts as none.
pub fn schedule_of((kind, own): (&str, Option<&str>), config: &Config) -> Option<Schedule> {
    let of_kind = schedule_of_kind(config, kind)?;
    let own = own.and_then(|own| OwnSchedule::parse(own).ok()?.apply(&of_kind).ok());
    Some(own.unwrap_or(of_kind))
}
