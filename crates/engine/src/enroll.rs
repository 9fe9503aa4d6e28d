//! Begins chains: into the ledger first, then their first messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt;
use roundelay_config::{Config, KindSettings, OwnSchedule, Recurrence};
use roundelay_ledger::{ChainState, Enrolled, Hint, LedgerError, NewChain};
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::encryption::is_sealed;
use roundelay_model::guard::{IfRunning, Manual};
use roundelay_model::job::{BadMessage, Enrolment, RunNow, check_name, check_priority};
use roundelay_model::schedule::{Balance, FURTHEST, Schedule, Setting, phase};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::connections::Connections;
use crate::dispatch::Dispatch;
pub use crate::error::EnrollError;
use crate::error::StartError;
use crate::life::{Life, Point};
use crate::reschedule::Rescheduler;
use crate::{sealing, topology_guard};

/// First messages published at the same time.
const IN_FLIGHT: usize = 512;
/// First messages that are not known to have been sent after this are sent by a worker's catch-up.
const GRACE: Duration = Duration::from_secs(30);
/// How long chains that run are waited for when their schedules have changed.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of places in their window at which a roster's first ticks begin.
const ANYWHERE: usize = 1_000_000;

/// An entity to keep fresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entity {
    /// Its key.
    pub key: String,
    /// The platform queue.
    pub queue: String,
    /// The priority of its chain among what waits on that queue, in place of the kind's.
    pub priority: Option<u8>,
    /// What the handler gets, as JSON text.
    pub payload: String,
    /// Who it belongs to.
    pub owner: Option<String>,
    /// A schedule of its own, as JSON text: see [`OwnSchedule`]. Without one, a chain that is there keeps
    /// what it has, unless the kind's rosters say its schedule: then it has its kind's.
    pub schedule: Option<String>,
    /// When the first tick of a chain that begins is due, by the wall clock, in place of a time that its schedule
    /// gives. A chain that is there keeps its rhythm.
    pub first_due: Option<Time>,
}

impl Entity {
    /// An entity without an owner, with the priority and the schedule of its kind.
    pub fn new(key: impl Into<String>, queue: impl Into<String>, payload: impl Into<String>) -> Self {
        let (key, queue, payload) = (key.into(), queue.into(), payload.into());
        Self { key, queue, priority: None, payload, owner: None, schedule: None, first_due: None }
    }
}

/// What an entity has to be for a worker to run its chain: the same for rosters, programs and messages.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How many lanes each has.
    queues: BTreeMap<String, u8>,
    recurrence: Option<Recurrence>,
}

impl Rules {
    /// Those of the kind with these settings.
    pub fn new(config: &Config, settings: &KindSettings) -> Self {
        Self {
            queues: config.queues.iter().map(|(name, queue)| (name.clone(), queue.lanes)).collect(),
            recurrence: settings.recurrence.clone(),
        }
    }

    /// The schedule that the entity's chain has.
    ///
    /// # Errors
    /// Says why no worker could run the entity.
    pub fn check(&self, entity: &Entity) -> Result<Schedule, String> {
        let of_kind =
            self.recurrence.as_ref().ok_or("its kind has none of `every`, `cron` and `at`, so it has no chains")?;
        let Entity { key, queue, priority, payload, owner, schedule, first_due: _ } = entity;
        self.fits(key, (queue, *priority), payload, owner.as_deref())?;
        match schedule {
            None => Ok(of_kind.beginning()),
            Some(own) => OwnSchedule::parse(own).and_then(|own| of_kind.with_own(&own)),
        }
    }

    /// Whether a worker could run what has this key, place, payload and owner.
    fn fits(
        &self,
        key: &str,
        (queue, priority): (&str, Option<u8>),
        payload: &str,
        owner: Option<&str>,
    ) -> Result<(), String> {
        let named = |bad: BadMessage| bad.to_string();
        check_name("key", key).map_err(named)?;
        let lanes = self.queues.get(queue);
        let lanes = *lanes.ok_or_else(|| format!("there is no [queues.{queue}] in the configuration"))?;
        check_priority("priority", priority).map_err(named)?;
        if let Some(priority) = priority.filter(|priority| *priority >= lanes) {
            return Err(format!(
                "priority {priority} is more than queues.{queue}.lanes = {lanes} allows; the highest is {}",
                lanes.saturating_sub(1)
            ));
        }
        // As a worker will read it, which takes no number like 1e999, for example.
        serde_json::from_str::<serde::de::IgnoredAny>(payload)
            .map_err(|error| format!("its payload is not JSON: {error}"))?;
        owner.map_or(Ok(()), |owner| check_name("owner", owner).map_err(named))
    }
}

/// A chain, as programs ask for it: see [`Enrolment`].
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Its key.
    pub key: String,
    /// What the handler gets.
    pub payload: Value,
    /// The rest.
    pub enrolment: Enrolment,
}

impl Asked {
    /// The entity that is meant, of the kind with these settings. Where nothing says its queue, it is `queue`.
    ///
    /// # Errors
    /// Says what is missing or wrong.
    pub fn entity(self, settings: &KindSettings, queue: Option<&str>) -> Result<Entity, String> {
        let Self { key, payload, enrolment } = self;
        let Enrolment { queue: own, priority, owner, schedule, first_due } = enrolment;
        let queue = match own {
            Some(own) => own,
            None => match settings.queue_for(&payload)? {
                Some(of_kind) => of_kind,
                None => queue.map(Into::into).ok_or("its kind names no queue; say `queue`")?,
            },
        };
        let schedule = match schedule {
            None | Some(Value::Null) => None,
            Some(Value::String(words)) => Some(OwnSchedule::from_words(&words)?.text()),
            Some(object @ Value::Object(_)) => Some(OwnSchedule::from_words(&object.to_string())?.text()),
            Some(other) => return Err(format!("its schedule is `{other}`; write text or an object")),
        };
        Ok(Entity { key, queue, priority, payload: payload.to_string(), owner, schedule, first_due })
    }
}

/// What became of one entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Became {
    /// Its chain begins, or begins anew.
    Created,
    /// Its chain was there, and has been brought up to date.
    Updated,
    /// Its chain was there, and is as it should be.
    Unchanged,
    /// Its chain has ended: now, if that was asked for, or else before, and it stays so.
    Retired,
}

/// What became of entities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tally {
    /// Chains begun.
    pub created: u64,
    /// Chains there before, as they should be.
    pub unchanged: u64,
    /// Chains there before, brought up to date.
    pub updated: u64,
    /// Chains that have ended before and stay so.
    pub retired: u64,
    /// First messages that could not be sent; a worker's catch-up sends them.
    pub unsent: u64,
}

/// What became of the wish to run a chain one time more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOnce {
    /// It runs as soon as there is room. Nothing loses it.
    Accepted,
    /// One is pending already, so this would be another.
    Pending,
    /// The rotation runs, and that refuses it.
    Running,
    /// The kind's cooldown lasts this long yet.
    Cooldown(Duration),
    /// There is no such chain, and no payload was given to run without one.
    NoChain,
    /// The chain has ended.
    Ended,
    /// The chain waits for `roundelay recover`.
    Quarantined,
    /// No worker could run it.
    Bad(String),
}

impl RunOnce {
    /// Why it does not run, and what to do, in words; `None` when it does.
    pub fn why_not(&self, kind: &str, key: &str) -> Option<String> {
        let why = match self {
            Self::Accepted => return None,
            Self::Pending => format!("a run of {kind} {key} is pending already"),
            Self::Running => format!(
                "{kind} {key} runs already; ask with `if_running` `after` to run it afterwards, or `beside` to run it \
                 at the same time"
            ),
            Self::Cooldown(left) => format!(
                "the last run of {kind} {key} has just ended, and its kind's cooldown lasts {} more; `force` passes it \
                 by, and `if_running` `after` waits for it",
                short_duration(Duration::from_secs_f64(left.as_secs_f64().ceil()))
            ),
            Self::NoChain => {
                format!("there is no chain {kind} {key}; with a payload it runs without one")
            }
            Self::Ended => format!("the chain {kind} {key} has ended; `roundelay enroll --revive` begins it anew"),
            Self::Quarantined => format!("the chain {kind} {key} is quarantined; `roundelay recover` lets it go on"),
            Self::Bad(why) => format!("{kind} {key} cannot run so: {why}"),
        };
        Some(why)
    }
}

/// Begins chains of one kind.
pub struct Enroller {
    kind: String,
    settings: KindSettings,
    rules: Rules,
    /// What becomes of manual runs while the rotation runs, and how long after a run, unless they say otherwise.
    if_running: IfRunning,
    cooldown: Duration,
    window: Option<Duration>,
    slack: Duration,
    begun: u64,
    balance: Balance,
    revive: bool,
    /// Chains begin anew that ended because their entities had left the roster.
    returning: bool,
    /// First ticks have places in their window that follow from the chains' names.
    by_name: bool,
    life: Life,
    /// Whether those who say nothing of a schedule keep theirs.
    keep_schedules: bool,
    mover: Rescheduler,
    /// Whether messages published by this process reach workers.
    publishes: bool,
    connections: Connections,
    dispatch: Dispatch,
}

impl Enroller {
    /// An enroller for `kind`. First ticks are spread over `window`; by default the kind's
    /// interval. With `own_process`, an embedded broker is this process's own and of use.
    ///
    /// # Errors
    /// When the kind is unknown.
    pub fn new(
        config: &Config,
        connections: Connections,
        kind: &str,
        window: Option<Duration>,
        own_process: bool,
    ) -> Result<Self, StartError> {
        let settings = config.kind(kind).map_err(StartError::Setup)?;
        let publishes = own_process || connections.broker.keeps_messages();
        let dispatch = Dispatch::new(config, &connections);
        Ok(Self {
            kind: kind.into(),
            settings: settings.clone(),
            rules: Rules::new(config, settings),
            if_running: settings.if_running,
            cooldown: settings.recurrence.as_ref().map_or(Duration::ZERO, |recurrence| recurrence.cooldown),
            window,
            slack: config.catch_up.slack,
            begun: 0,
            balance: Balance::default(),
            revive: false,
            returning: false,
            by_name: false,
            life: Life::default(),
            keep_schedules: settings.roster_schedule.is_none(),
            mover: Rescheduler::new(config, &connections),
            publishes,
            connections,
            dispatch,
        })
    }

    /// Begins also those chains anew that have ended, with a new epoch.
    #[must_use]
    pub fn revive(mut self, revive: bool) -> Self {
        self.revive = revive;
        self
    }

    /// First ticks begin at places in their window that follow from the chains' names: for entities that come one by
    /// one, each with an enroller of its own.
    #[must_use]
    #[doc(hidden)]
    pub fn by_name(mut self) -> Self {
        self.by_name = true;
        self
    }

    /// Ends with this engine.
    pub(super) fn within(mut self, life: Life) -> Self {
        self.life = life;
        self
    }

    /// Takes the entities for those of a roster: who was retired for having left it begins anew.
    /// First ticks begin anywhere in the window, so that the few that are found each time do not
    /// always get the same places.
    #[must_use]
    #[doc(hidden)]
    pub fn following_a_roster(mut self) -> Self {
        self.returning = true;
        self.begun = self.connections.entropy.below(ANYWHERE) as u64;
        self
    }

    /// Looks whether what is enrolled would lie in the clear where workers seal.
    ///
    /// # Errors
    /// [`EnrollError::Unsealed`] when it would; when the ledger cannot be read.
    #[doc(hidden)]
    pub async fn check_sealing(&self) -> Result<(), EnrollError> {
        let seals = self.dispatch.sealing.keys().seal().is_some();
        match seals || !topology_guard::is_sealed(&*self.connections.ledger).await? {
            true => Ok(()),
            false => Err(EnrollError::Unsealed),
        }
    }

    /// Begins the chains of these entities that do not exist yet, in one transaction, and brings
    /// the others up to date.
    ///
    /// # Errors
    /// When an entity cannot be used (a key, a queue or a payload that a worker would refuse), or workers seal
    /// payloads and this does not; then nothing of this batch was enrolled. When the ledger cannot be written; then
    /// nothing was, or its chains are begun and catch-up sends their first messages.
    pub async fn enroll(&mut self, entities: Vec<Entity>) -> Result<Tally, EnrollError> {
        let (each, unsent) = self.enroll_each(entities).await?;
        let count = |became| each.iter().filter(|each| **each == became).count() as u64;
        Ok(Tally {
            created: count(Became::Created),
            unchanged: count(Became::Unchanged),
            updated: count(Became::Updated),
            retired: count(Became::Retired),
            unsent,
        })
    }

    /// Says why no worker could run an entity.
    ///
    /// # Errors
    /// That.
    pub fn check(&self, entity: &Entity) -> Result<(), String> {
        let schedule = self.rules.check(entity)?;
        self.first_at(entity, &schedule, self.connections.ledger.now(), 0.0).map(drop)
    }

    /// Does what [`Self::enroll`] does, and says what became of each entity, and how many first messages could not be
    /// sent.
    ///
    /// # Errors
    /// Those of [`Self::enroll`].
    #[doc(hidden)]
    pub async fn enroll_each(&mut self, entities: Vec<Entity>) -> Result<(Vec<Became>, u64), EnrollError> {
        let Some(of_kind) = self.rules.recurrence.clone() else {
            return Err(EnrollError::NoSchedule(self.kind.clone()));
        };
        let check = |entity: &Entity| {
            self.rules.check(entity).map_err(|reason| EnrollError::Entity { key: entity.key.clone(), reason })
        };
        let schedules = entities.iter().map(check).collect::<Result<Vec<Schedule>, EnrollError>>()?;
        self.check_sealing().await?;
        let (ledger, keys) = (self.connections.ledger.clone(), self.dispatch.sealing.keys());
        let mut returned = BTreeSet::new();
        if self.returning {
            let keys = entities.iter().map(|entity| entity.key.clone()).collect();
            returned.extend(ledger.departed(self.kind.clone(), keys).await?);
        }
        let now = ledger.now();
        let watch_at = if self.publishes { now + GRACE } else { now };
        let mut chains = Vec::with_capacity(entities.len());
        for (entity, schedule) in entities.into_iter().zip(schedules) {
            let revive = self.revive || returned.contains(&entity.key);
            let (nominal, due) = self.first_due(&entity, &schedule, now)?;
            let (payload, forms) = sealing::payload(&keys, (&self.kind, &entity.key), entity.payload);
            chains.push(NewChain {
                kind: self.kind.clone(),
                key: entity.key,
                queue: entity.queue,
                priority: entity.priority,
                payload,
                forms,
                nominal,
                due,
                watch_at: if self.publishes { due.max(watch_at) } else { watch_at },
                revive,
                once: false,
                manual: Default::default(),
                owner: entity.owner,
                keep_schedule: self.keep_schedules && entity.schedule.is_none(),
                schedule: entity.schedule,
                only_new: false,
                depth: 0,
            });
        }
        let (mut each, mut hints, mut rescheduled) = (Vec::with_capacity(chains.len()), Vec::new(), Vec::new());
        let names: Vec<(String, bool)> =
            chains.iter().map(|chain| (chain.key.clone(), chain.schedule.is_some())).collect();
        for (enrolled, (key, names_schedule)) in ledger.enroll(chains).await?.into_iter().zip(names) {
            each.push(match enrolled {
                Enrolled::Created(hint) => {
                    hints.push(hint);
                    Became::Created
                }
                Enrolled::Unchanged => {
                    // An order that is given again, since the worker that had it died before the tick was moved.
                    rescheduled.extend((self.by_name && names_schedule).then_some((key, None)));
                    Became::Unchanged
                }
                Enrolled::Updated { rescheduled: another } => {
                    rescheduled.extend(another.then_some((key, None)));
                    Became::Updated
                }
                Enrolled::Retired => Became::Retired,
            });
        }
        self.life.reached(Point::Enrolled).await;
        let unsent = self.send_first(hints, now).await?;
        let (_, running) = self.mover.settle(&self.kind, rescheduled, &of_kind.schedule, PATIENCE).await?;
        if let Some(first) = running.first() {
            let (kind, chains) = (&self.kind, running.len());
            tracing::warn!(
                kind,
                chains,
                first,
                "chains with a new schedule still run, and sleep by the old one once more"
            );
        }
        Ok((each, unsent))
    }

    /// Runs the chain of `key` one time more, now, unless such a run is pending already: with `payload` in place of the
    /// chain's, and as `asked`. What runs then, and how long ago the last run ended, is looked at once more by the
    /// claim. With a payload it also runs where there is no chain of that name; then it is on the kind's queue, or
    /// `queue`, if nothing says another.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    #[doc(hidden)]
    pub async fn run_once(
        &mut self,
        key: &str,
        payload: Option<&Value>,
        asked: &RunNow,
        queue: Option<&str>,
    ) -> Result<RunOnce, LedgerError> {
        let ledger = self.connections.ledger.clone();
        let (kind, now) = (self.kind.clone(), ledger.now());
        let chains = ledger.chains(kind.clone(), key.into()).await?;
        let rotation = chains.iter().find(|chain| !chain.once);
        match rotation.map(|rotation| rotation.state) {
            None | Some(ChainState::Active | ChainState::Paused) => {}
            Some(ChainState::Retired) => return Ok(RunOnce::Ended),
            Some(ChainState::Quarantined) => return Ok(RunOnce::Quarantined),
        }
        let manual = Manual { if_running: asked.if_running.unwrap_or(self.if_running), force: asked.force };
        if let Some(rotation) = rotation.filter(|_| manual.if_running != IfRunning::After) {
            let runs = rotation.holder.runs() || rotation.batch.0 > 0;
            if runs && manual.if_running == IfRunning::Refuse {
                return Ok(RunOnce::Running);
            }
            let since = now.since(rotation.last_finish);
            if !manual.force && rotation.last_finish != Time::default() && since < self.cooldown {
                return Ok(RunOnce::Cooldown(self.cooldown - since));
            }
        }
        let keys = self.dispatch.sealing.keys();
        let payload = match (payload, rotation) {
            (Some(payload), _) => payload.to_string(),
            // Sealed or not, it means the same under the same name.
            (None, Some(rotation)) => rotation.payload.clone(),
            (None, None) => return Ok(RunOnce::NoChain),
        };
        let of_chain = rotation.map(|rotation| (rotation.hint.queue.clone(), rotation.hint.priority));
        let queue = match (&asked.queue, &of_chain) {
            (Some(queue), _) => queue.clone(),
            (None, Some((queue, _))) => queue.clone(),
            (None, None) => match self.queue_of(&payload, queue) {
                Ok(queue) => queue,
                Err(why) => return Ok(RunOnce::Bad(why)),
            },
        };
        // A chain's own priority is one of its own queue.
        let priority = asked.priority.or(of_chain.filter(|(own, _)| *own == queue).and_then(|(_, priority)| priority));
        let plain = if is_sealed(payload.as_bytes()) { "null" } else { &payload };
        if let Err(why) = self.rules.fits(key, (&queue, priority), plain, None) {
            return Ok(RunOnce::Bad(why));
        }
        // What still lies in the clear need not lie there twice.
        let payload = match is_sealed(payload.as_bytes()) {
            true => payload,
            false => sealing::payload(&keys, (&kind, key), payload).0,
        };
        let extra = NewChain {
            kind,
            key: key.into(),
            priority,
            queue,
            payload,
            forms: Vec::new(),
            nominal: now,
            due: now,
            watch_at: if self.publishes { now + GRACE } else { now },
            revive: false,
            once: true,
            manual,
            owner: rotation.and_then(|rotation| rotation.owner.clone()),
            schedule: None,
            keep_schedule: false,
            only_new: false,
            depth: rotation.map_or(0, |rotation| rotation.depth),
        };
        match ledger.enroll(vec![extra]).await?.pop() {
            Some(Enrolled::Created(hint)) => {
                // The run is in the ledger: it comes also when its message is not known to be sent.
                if let Err(error) = self.send_first(vec![hint], now).await {
                    tracing::warn!(key, %error, "the message of a manual run is not known to be sent; catch-up sends it");
                }
                Ok(RunOnce::Accepted)
            }
            _ => Ok(RunOnce::Pending),
        }
    }

    /// The queue of a run without a chain.
    fn queue_of(&self, payload: &str, queue: Option<&str>) -> Result<String, String> {
        let payload: Value =
            serde_json::from_str(payload).map_err(|error| format!("its payload is not JSON: {error}"))?;
        match self.settings.queue_for(&payload)? {
            Some(of_kind) => Ok(of_kind),
            None => queue.map(Into::into).ok_or_else(|| "its kind names no queue; say `queue`".into()),
        }
    }

    /// Sends first messages, and notes which of them are confirmed. Answers how many are not.
    async fn send_first(&self, hints: Vec<Hint>, now: Time) -> Result<u64, LedgerError> {
        if !self.publishes {
            return Ok(0);
        }
        let (dispatch, ledger) = (&self.dispatch, &self.connections.ledger);
        let sent = dispatch.pace.over(hints).map(|hint| {
            let envelope = hint.envelope(ledger.id());
            async move {
                let sent = dispatch.send(&envelope, &hint.queue, now).await;
                sent.map(|()| hint.sent()).inspect_err(|error| {
                    tracing::warn!(kind = hint.kind, key = hint.key, %error, "a first message could not be sent; catch-up sends it");
                })
            }
        });
        let sent: Vec<_> = sent.buffer_unordered(IN_FLIGHT).collect().await;
        let unsent = sent.iter().filter(|sent| sent.is_err()).count() as u64;
        ledger.enrolled_sent(sent.into_iter().flatten().collect(), self.slack).await?;
        Ok(unsent)
    }

    /// When an entity's first tick is due, nominally and really. Where the schedule has no say in it, first ticks are
    /// spread evenly over the window, without knowing how many there will be: in steps of the golden ratio.
    fn first_due(&mut self, entity: &Entity, schedule: &Schedule, now: Time) -> Result<(Time, Time), EnrollError> {
        self.begun += u64::from(entity.first_due.is_none());
        let golden = 0.618_033_988_749_894_9_f64;
        let share = if self.by_name { phase(&self.kind, &entity.key) } else { (self.begun as f64 * golden).fract() };
        let refused = |reason| EnrollError::Entity { key: entity.key.clone(), reason };
        self.first_at(entity, schedule, now, share).map_err(refused)
    }

    /// The same, for this share of the window; else why it has no first tick.
    fn first_at(&self, entity: &Entity, schedule: &Schedule, now: Time, share: f64) -> Result<(Time, Time), String> {
        let wall_clock = self.connections.ledger.wall_clock();
        let phase = if schedule.spread_phase { phase(&self.kind, &entity.key) } else { 0.0 };
        if let Some(first) = entity.first_due {
            let due = wall_clock.steady(first).max(now);
            if due.since(now) > FURTHEST {
                return Err("`first_due` is more than ten years ahead".into());
            }
            return Ok((schedule.nominal_of(due, phase, &wall_clock), due));
        }
        let window = self.window.or_else(|| schedule.interval(now, &wall_clock)).unwrap_or_default();
        let offset = Duration::from_millis((window.as_millis() as f64 * share) as u64);
        let setting =
            Setting { phase, balance: &self.balance, dice: &self.connections.entropy, wall_clock: &wall_clock };
        let first = schedule.first(now, offset, setting);
        first
            .map(|first| (first.nominal, first.due))
            .ok_or_else(|| format!("its schedule ({schedule}) has no occurrence"))
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.created += other.created;
        self.unchanged += other.unchanged;
        self.updated += other.updated;
        self.retired += other.retired;
        self.unsent += other.unsent;
    }
}
