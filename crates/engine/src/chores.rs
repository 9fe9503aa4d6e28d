//! What the engine does for itself, as chains like all others.
//!
//! Each chore is a chain of a kind whose name begins with `roundelay.`, on a queue that every worker
//! consumes. So one worker at a time does it, it is tried again when it fails, it survives the worker that
//! does it, and the ledger has a record of each run.
//!
//! | Kind | Key | What it does |
//! |---|---|---|
//! | `roundelay.roster` | a kind's name | makes the kind's chains follow the roster in its configuration |
//! | `roundelay.reconcile` | a kind's name | feeds back parts of the kind's runs that failed and are due |
//! | `roundelay.fresh` | a budget's name | sets the price of its calls |
//! | `roundelay.calendar` | a calendar's name | reads its days from its database |
//! | `roundelay.history` | `attempts` | deletes records of attempts that are too old, or moves them to the archive |
//! | `roundelay.history` | `archive` | deletes from the archive |
//! | `roundelay.history` | `throttles` | forgets throttles and keys of which nothing has started for long |

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use roundelay_config::{Config, KindSettings, MAX_HELD, OwnSchedule, internal_kind};
use roundelay_handler::{Context, Handler};
use roundelay_ledger::{LedgerError, NewChain, SpawnedJob};
use roundelay_model::clock::{Time, short_duration};
use roundelay_model::job::{Envelope, Job};
use roundelay_model::outcome::Outcome;
use roundelay_model::pacing::ThrottleScope;
use roundelay_model::topology::Names;

use crate::calendars::{self, CALENDAR};
use crate::connections::Connections;
use crate::dispatch::Dispatch;
use crate::error::EnrollError;
use crate::fresh;
use crate::reconcile;
use crate::roster;
use crate::roster::sync::{SyncError, Wishes};

/// Follows a roster; the key is the kind's name.
pub const ROSTER: &str = "roundelay.roster";
/// Keeps the history within bounds.
pub const HISTORY: &str = "roundelay.history";
/// Feeds failed parts back; the key is the kind's name.
pub const RECONCILE: &str = "roundelay.reconcile";
/// Sets the price of the calls of a budget, once a minute; the key is the budget's name.
pub const FRESH: &str = "roundelay.fresh";
/// The chore that works on the records of attempts.
const ATTEMPTS: &str = "attempts";
/// The chore that works on the archive.
const ARCHIVE: &str = "archive";
/// The chore that works on what throttles remember.
const THROTTLES: &str = "throttles";

/// How long a roster may take: what RabbitMQ allows.
const ROSTER_TIMEOUT: Duration = MAX_HELD;
/// How long a run on the history, or on failed parts, may take.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(60);
/// A roster is followed again after this, when workers seal and this one does not yet.
const UNTIL_SEALED: Duration = Duration::from_secs(10);
/// It leaves the rest to the next run this long before that.
const RESERVE: Duration = Duration::from_secs(30);
/// The history is looked at this often, or more often when it is short.
const HISTORY_EVERY: Duration = Duration::from_secs(5 * 60);
/// The same for the archive.
const ARCHIVE_EVERY: Duration = Duration::from_secs(3_600);
/// The price of a call is set this often.
const FRESH_EVERY: Duration = Duration::from_secs(60);
/// Nothing is done more often than this.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Records moved or deleted at a time, few enough that no claim waits long behind it.
const RECORDS: u32 = 1_000;

/// The chores of a configuration, and who does them.
pub(super) struct Chores {
    config: RwLock<Arc<Config>>,
    connections: Connections,
    pub(super) queue: String,
}

/// One of them.
struct Chore {
    kind: &'static str,
    key: String,
    every: Duration,
}

impl Chore {
    /// As a chain's own, since chores of a kind differ in it.
    fn schedule(&self) -> String {
        OwnSchedule { every: Some(short_duration(self.every)), ..OwnSchedule::default() }.text()
    }
}

impl Chores {
    pub(super) fn new(config: &Config, connections: &Connections) -> Self {
        let queue = Names::new(&config.broker.prefix).chores();
        Self { config: RwLock::new(Arc::new(config.clone())), connections: connections.clone(), queue }
    }

    /// The engine's own kinds; each chore has its own interval.
    pub(super) fn kinds() -> [(&'static str, KindSettings); 5] {
        [
            (ROSTER, internal_kind(HISTORY_EVERY, ROSTER_TIMEOUT)),
            (HISTORY, internal_kind(HISTORY_EVERY, HISTORY_TIMEOUT)),
            (RECONCILE, internal_kind(HISTORY_EVERY, HISTORY_TIMEOUT)),
            (FRESH, internal_kind(FRESH_EVERY, HISTORY_TIMEOUT)),
            (CALENDAR, internal_kind(HISTORY_EVERY, HISTORY_TIMEOUT)),
        ]
    }

    /// The configuration was read again.
    pub(super) fn take_over(&self, config: Config) {
        *self.config.write() = Arc::new(config);
    }

    fn config(&self) -> Arc<Config> {
        self.config.read().clone()
    }

    fn chores(&self) -> Vec<Chore> {
        let config = self.config();
        let rosters = config.kinds.iter().filter_map(|(name, kind)| Some((name, kind.roster.as_ref()?)));
        let mut chores: Vec<Chore> =
            rosters.map(|(name, roster)| Chore { kind: ROSTER, key: name.clone(), every: roster.sync }).collect();
        let reconciled = config.kinds.iter().filter_map(|(name, kind)| Some((name, kind.reconcile.as_ref()?)));
        chores.extend(reconciled.map(|(name, reconcile)| Chore {
            kind: RECONCILE,
            key: name.clone(),
            every: reconcile.every,
        }));
        let budgets = fresh::budgets(config.kinds.values());
        chores.extend(budgets.into_iter().map(|(key, _)| Chore { kind: FRESH, key, every: FRESH_EVERY }));
        let calendars = calendars::by_sql(&config);
        chores.extend(calendars.map(|(name, sql)| Chore { kind: CALENDAR, key: name.clone(), every: sql.every }));
        let ledger = &config.ledger;
        // A window of a second would be no window if it moved every five minutes.
        let every = (ledger.history / 10).clamp(MIN_INTERVAL, HISTORY_EVERY);
        chores.push(Chore { kind: HISTORY, key: ATTEMPTS.into(), every });
        if let Some(archive) = ledger.archive {
            let every = (archive / 10).clamp(MIN_INTERVAL, ARCHIVE_EVERY);
            chores.push(Chore { kind: HISTORY, key: ARCHIVE.into(), every });
        }
        if config.throttles.values().any(|throttle| throttle.scope == ThrottleScope::Fleet) {
            chores.push(Chore { kind: HISTORY, key: THROTTLES.into(), every: HISTORY_EVERY });
        }
        chores
    }

    /// How many runs may be under way at once: none waits for another.
    pub(super) fn concurrency(&self) -> usize {
        self.chores().len()
    }

    /// Begins the chains of the chores that have none, due at once: catch-up sends their messages.
    pub(super) async fn begin(&self) -> Result<(), LedgerError> {
        let now = self.connections.ledger.now();
        let chains = self.chores().into_iter().map(|chore| NewChain {
            schedule: Some(chore.schedule()),
            keep_schedule: false,
            kind: chore.kind.into(),
            key: chore.key,
            queue: self.queue.clone(),
            payload: "null".into(),
            priority: None,
            forms: Vec::new(),
            nominal: now,
            due: now,
            watch_at: now,
            // It ended when a worker's configuration did not have it.
            revive: true,
            once: false,
            manual: Default::default(),
            owner: None,
            only_new: false,
            depth: 0,
        });
        self.connections.ledger.enroll(chains.collect()).await.map(drop)
    }

    /// Follows the roster of a kind.
    async fn follow(&self, kind: &str) -> Outcome {
        let config = self.config();
        let settings = config.kinds.get(kind).and_then(|kind| kind.roster.as_ref());
        let Some(settings) = settings else {
            return Outcome::Retire { reason: format!("the configuration names no roster for the kind {kind}").into() };
        };
        let requests = Wishes { prune: settings.prune, own_process: true, ..Wishes::default() };
        let report = roster::from_source(&config, self.connections.clone(), kind, requests, |_| {}).await;
        let report = match report {
            Ok(report) => report,
            // Another worker has it already, and this one has it soon: while `seal` is rolled out, that costs no
            // attempt.
            Err(SyncError::Enroll(error @ EnrollError::Unsealed)) => {
                return Outcome::Snooze { reason: error.to_string().into(), wait: UNTIL_SEALED };
            }
            Err(error) => return Outcome::retry(error.to_string()),
        };
        let tally = report.tally;
        tracing::info!(
            kind,
            begun = tally.created,
            updated = tally.updated,
            unchanged = tally.unchanged,
            ended_before = tally.retired,
            retired = report.pruned,
            rejected = report.rejected,
            "followed the roster"
        );
        match report.first_bad {
            None => Outcome::Done,
            Some(bad) => {
                let kept = if settings.prune { "; nothing was retired" } else { "" };
                Outcome::retry(format!(
                    "{} of the roster's rows cannot be used{kept}; the first is line {}: {}",
                    report.rejected, bad.line, bad.reason
                ))
            }
        }
    }

    /// Feeds back what is due of a kind's failed parts.
    async fn reconcile(&self, kind: &str, until: Time) -> Outcome {
        let config = self.config();
        let settings = config.kinds.get(kind).filter(|settings| settings.reconcile.is_some());
        let Some(settings) = settings else {
            let reason = format!("the configuration has no `reconcile` for the kind {kind}");
            return Outcome::Retire { reason: reason.into() };
        };
        let fed = match reconcile::feed(&config, settings, (&self.connections, kind), until).await {
            Ok(fed) => fed,
            Err(error) => return Outcome::retry(error.to_string()),
        };
        if !fed.is_empty() {
            tracing::info!(kind, parts = fed.len(), "fed failed parts back");
        }
        self.send(fed).await;
        Outcome::Done
    }

    /// Sends what the ledger has accepted, once. What cannot be sent is left to catch-up.
    async fn send(&self, jobs: Vec<SpawnedJob>) {
        if !self.connections.broker.keeps_messages() {
            // There they stay in the ledger until they have run, and catch-up takes them from there.
            return;
        }
        let config = self.config();
        let dispatch = Dispatch::new(&config, &self.connections);
        let mut sent = Vec::with_capacity(jobs.len());
        for SpawnedJob { id, body } in jobs {
            let Ok(envelope) = Envelope::decode(&body) else { continue };
            let envelope = envelope.read_at(&self.connections.ledger.wall_clock());
            let queue = envelope.queue.clone().unwrap_or_default();
            match dispatch.send(&envelope, &queue, self.connections.ledger.now()).await {
                Ok(()) => sent.push(id),
                Err(error) => tracing::warn!(id, %error, "a failed part could not be sent back; catch-up sends it"),
            }
        }
        if let Err(error) = self.connections.ledger.forget_jobs(sent).await {
            tracing::warn!(%error, "failed to take sent jobs out of the outbox; they are sent again");
        }
    }

    /// Deletes or archives records of attempts, until none is too old or `until` has come.
    async fn age(&self, until: Time) -> Result<(), LedgerError> {
        // Who was retired by a worker without them, in the midst of a deployment, begins anew.
        self.begin().await?;
        let (ledger, config) = (&self.connections.ledger, self.config());
        let settings = &config.ledger;
        let before = ledger.now() - settings.history;
        while ledger.now() < until {
            let done = match settings.archive {
                Some(_) => ledger.archive(before, RECORDS).await?,
                None => ledger.prune(before, RECORDS).await?,
            };
            if done == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Deletes what is too old for the archive.
    async fn expire(&self, archive: Duration, until: Time) -> Result<(), LedgerError> {
        let ledger = &self.connections.ledger;
        let before = ledger.now() - archive;
        while ledger.now() < until && ledger.expire(before, RECORDS).await? > 0 {}
        Ok(())
    }

    /// Forgets what throttles remember of long ago: as many rows as there are keys.
    async fn forget_idle(&self, until: Time) -> Result<(), LedgerError> {
        let ledger = &self.connections.ledger;
        while ledger.now() < until && ledger.forget_idle(RECORDS).await? > 0 {}
        Ok(())
    }
}

#[async_trait]
impl Handler for Chores {
    async fn run(&self, job: Job, _: Context) -> Outcome {
        let until = job.deadline - RESERVE;
        match (&*job.kind, &*job.key, self.config().ledger.archive) {
            (ROSTER, kind, _) => self.follow(kind).await,
            (RECONCILE, kind, _) => self.reconcile(kind, until).await,
            (FRESH, budget, _) => fresh::reprice(&self.config(), &*self.connections.ledger, budget, &job.carry).await,
            (CALENDAR, name, _) => calendars::follow(&self.config(), name, &job.carry).await,
            (HISTORY, ATTEMPTS, _) => self.age(until).await.into(),
            (HISTORY, ARCHIVE, Some(archive)) => self.expire(archive, until).await.into(),
            (HISTORY, THROTTLES, _) => self.forget_idle(until).await.into(),
            (HISTORY, ARCHIVE, None) => Outcome::Retire { reason: "`ledger.archive` is not set".into() },
            (kind, key, _) => Outcome::fail(format!("this version has no chore {kind} {key}")),
        }
    }
}
