//! Makes a kind's chains follow a roster.
//!
//! Entities without a chain get one, and the others are brought up to date. With
//! [`Wishes::prune`], the chains of those that are no longer in the roster end, and begin anew when
//! they return. That only happens after the whole roster was read and every row of it could be used:
//! what is missing for another reason must not count as gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use roundelay_config::Config;
use roundelay_ledger::{ChainState, Enlisted, Ledger, LedgerError};
use roundelay_model::ids::Epoch;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{BadRow, Line, Places, Shape, source};
use crate::connections::Connections;
use crate::enroll::{Enroller, Entity, Tally};
use crate::error::EnrollError;
use crate::error::StartError;

/// Rows enrolled in one transaction.
const BATCH: usize = 1_000;
/// Chains listed at a time.
const PAGE: u32 = 10_000;
/// Rows between who reads them and who enrolls them.
const AHEAD: usize = 2 * BATCH;

/// How to follow a roster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// Spread first ticks over this long, in place of the kind's interval.
    pub window: Option<Duration>,
    /// Begin also those chains anew that have ended for another reason than having left the roster.
    pub revive: bool,
    /// End the chains of entities that are not in the roster.
    pub prune: bool,
    /// Do so also when the roster is empty.
    pub allow_empty: bool,
    /// Change nothing, and only count.
    pub dry_run: bool,
    /// Whether an embedded broker is this process's own.
    pub own_process: bool,
}

/// What a synchronisation came to, or in a dry run would come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What became of the entities in the roster. A dry run does not tell whether one that has a
    /// chain is unchanged or would be brought up to date: it counts as unchanged.
    #[serde(flatten)]
    pub tally: Tally,
    /// Chains that ended because their entities have left the roster.
    pub pruned: u64,
    /// Rows that could not be used. When there are any, nothing is pruned.
    pub rejected: u64,
    /// The first of them.
    #[serde(skip)]
    pub first_bad: Option<BadRow>,
}

/// Why a synchronisation broke off; phrased to follow "failed to synchronise: ".
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The kind cannot have a roster.
    #[error(transparent)]
    Setup(#[from] StartError),
    /// Entities could not be enrolled.
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The source could not be read to its end.
    #[error("{0}")]
    Source(String),
    /// Everything would be retired.
    #[error(
        "the roster is empty, and nothing was retired: an empty list is more often a mistake than meant. To end all \
         chains of the kind, say `roundelay retire {0} --all`"
    )]
    Empty(String),
}

/// A chain as it was before the roster was read.
struct Known {
    epoch: Epoch,
    state: ChainState,
    /// Whether the roster has it.
    listed: bool,
}

/// A synchronisation under way: rows go in one by one, and [`Sync::end`] prunes.
pub struct Sync<'c> {
    kind: String,
    requests: Wishes,
    shape: Shape<'c>,
    enroller: Enroller,
    ledger: Arc<dyn Ledger>,
    /// By key. Only what was there before the roster was read can have left it.
    known: Option<HashMap<String, Known>>,
    places: Places,
    batch: Vec<Entity>,
    rows: u64,
    report: Report,
}

impl<'c> Sync<'c> {
    /// Begins to follow a roster of `kind`, which is read only after this has returned.
    ///
    /// # Errors
    /// When the kind is unknown or has no chains, a template of it is wrong, the ledger cannot be read, or
    /// its workers seal payloads and this configuration does not.
    pub async fn begin(
        config: &'c Config,
        connections: Connections,
        kind: &str,
        requests: Wishes,
    ) -> Result<Self, SyncError> {
        let settings = config.kind(kind).map_err(StartError::Setup)?;
        let shape =
            Shape::new(config, settings).map_err(|error| StartError::Setup(format!("kinds.{kind}: {error}")))?;
        let ledger = connections.ledger.clone();
        let enroller = Enroller::new(config, connections, kind, requests.window, requests.own_process)?;
        let enroller = enroller.revive(requests.revive).following_a_roster();
        enroller.check_sealing().await?;
        let known = if requests.prune || requests.dry_run { Some(list(&*ledger, kind).await?) } else { None };
        let (places, batch, report) = (Places::default(), Vec::with_capacity(BATCH), Report::default());
        Ok(Self { kind: kind.into(), requests, shape, enroller, ledger, known, places, batch, rows: 0, report })
    }

    /// Takes a row; answers with it when it cannot be used.
    ///
    /// # Errors
    /// When the ledger cannot be written. Rows taken before may be in.
    pub async fn row(&mut self, line: Line) -> Result<Option<BadRow>, SyncError> {
        let bad = match line {
            Err(bad) => bad,
            Ok((line, row)) => {
                let text = Value::Object(row.clone()).to_string();
                let entity = self.shape.entity(row).and_then(|entity| {
                    self.places.take(&self.shape, line, &entity)?;
                    Ok(entity)
                });
                match entity {
                    Ok(entity) => {
                        self.rows += 1;
                        self.batch.push(entity);
                        if self.batch.len() == BATCH {
                            self.enroll().await?;
                        }
                        return Ok(None);
                    }
                    Err(reason) => BadRow { line, reason, text },
                }
            }
        };
        self.report.rejected += 1;
        self.report.first_bad.get_or_insert_with(|| bad.clone());
        Ok(Some(bad))
    }

    /// How many chains have begun so far.
    pub fn begun(&self) -> u64 {
        self.report.tally.created
    }

    async fn enroll(&mut self) -> Result<(), SyncError> {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        if batch.is_empty() {
            return Ok(());
        }
        if self.requests.dry_run {
            return self.count(batch).await;
        }
        if let Some(known) = &mut self.known {
            for entity in &batch {
                if let Some(there) = known.get_mut(&entity.key) {
                    there.listed = true;
                }
            }
        }
        self.report.tally += self.enroller.enroll(batch).await?;
        Ok(())
    }

    /// Counts what enrolling them would come to.
    async fn count(&mut self, batch: Vec<Entity>) -> Result<(), SyncError> {
        let Some(known) = &mut self.known else { return Ok(()) };
        let ended = |entity: &&Entity| known.get(&entity.key).is_some_and(|there| there.state == ChainState::Retired);
        let ended = batch.iter().filter(ended).map(|entity| entity.key.clone()).collect();
        let returned: HashSet<String> = self.ledger.departed(self.kind.clone(), ended).await?.into_iter().collect();
        let tally = &mut self.report.tally;
        for Entity { key, .. } in batch {
            let begins_anew = self.requests.revive || returned.contains(&key);
            match known.get_mut(&key) {
                None => {
                    tally.created += 1;
                    known.insert(key, Known { epoch: Epoch::NONE, state: ChainState::Active, listed: true });
                }
                Some(there) => {
                    match there.state {
                        ChainState::Retired if !begins_anew => tally.retired += 1,
                        ChainState::Retired if !there.listed => tally.created += 1,
                        _ => tally.unchanged += 1,
                    }
                    there.listed = true;
                }
            }
        }
        Ok(())
    }

    /// Ends it: the chains of those that were not in the roster end, if that is wished for and every
    /// row could be used.
    ///
    /// # Errors
    /// When the ledger cannot be written, or when all chains would end ([`SyncError::Empty`]).
    pub async fn end(mut self) -> Result<Report, SyncError> {
        self.enroll().await?;
        if !self.requests.prune || self.report.rejected > 0 {
            return Ok(self.report);
        }
        let gone = |there: &&Known| !there.listed && there.state != ChainState::Retired;
        let mut gone: Vec<Epoch> =
            self.known.iter().flat_map(HashMap::values).filter(gone).map(|there| there.epoch).collect();
        if self.rows == 0 && !gone.is_empty() && !self.requests.allow_empty {
            return Err(SyncError::Empty(self.kind));
        }
        gone.sort_unstable();
        if self.requests.dry_run {
            self.report.pruned = gone.len() as u64;
            return Ok(self.report);
        }
        for part in gone.chunks(BATCH) {
            self.report.pruned += self.ledger.depart(part.to_vec()).await?;
        }
        Ok(self.report)
    }
}

/// All chains of a kind, by key.
async fn list(ledger: &dyn Ledger, kind: &str) -> Result<HashMap<String, Known>, LedgerError> {
    let (mut known, mut after) = (HashMap::new(), String::new());
    loop {
        let page = ledger.enlisted(kind.into(), after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(known) };
        after = last.key.clone();
        known.extend(page.into_iter().map(|enlisted| {
            let Enlisted { key, epoch, state } = enlisted;
            (key, Known { epoch, state, listed: false })
        }));
    }
}

/// Follows the source that the configuration names for `kind`, once. `bad` is told of every row that
/// cannot be used.
///
/// # Errors
/// [`SyncError`]. Chains of rows that were read before may have begun; nothing was pruned.
pub async fn from_source(
    config: &Config,
    connections: Connections,
    kind: &str,
    requests: Wishes,
    mut bad: impl FnMut(BadRow),
) -> Result<Report, SyncError> {
    let settings = config.kind(kind).map_err(StartError::Setup)?;
    let none = || StartError::Setup(format!("kinds.{kind}.roster names no `keys`, `file`, `http` or `sql` to read"));
    let settings = settings.roster.as_ref().ok_or_else(none)?;
    let mut sync = Sync::begin(config, connections, kind, requests).await?;
    let (into, mut from) = mpsc::channel(AHEAD);
    let take = async move {
        while let Some(line) = from.recv().await {
            if let Some(row) = sync.row(line).await? {
                bad(row);
            }
        }
        Ok::<_, SyncError>(sync)
    };
    let (read, taken) = join(source::read(&settings.source, into), take).await;
    let sync = taken?;
    read.map_err(SyncError::Source)?;
    sync.end().await
}
