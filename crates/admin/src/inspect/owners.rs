//! Owners: how many chains each has, how many of these are late, and what fails.

use std::collections::BTreeMap;

use roundelay_config::Config;
use roundelay_engine::holds::Holds;
use roundelay_engine::overslept;
use roundelay_engine::overslept::{Overslept, schedules};
use roundelay_ledger::{Ledger, LedgerError, OwnerCensus};
use serde::Serialize;
use utoipa::ToSchema;

use super::format::word;

/// An owner, and how many chains the owner has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct OwnerRow {
    /// The name of the owner.
    pub owner: String,
    /// The state that an operator has given the owner as a whole: active, paused or retired.
    pub state: &'static str,
    /// How many chains are active.
    pub active: i64,
    /// How many chains an operator has paused.
    pub paused: i64,
    /// How many chains have ended.
    pub retired: i64,
    /// How many chains are quarantined: workers died over them, or their messages were ahead of the ledger.
    pub quarantined: i64,
    /// How many active chains are late: as the search for chains with `state=late` finds them. Held chains are not
    /// late.
    pub late: i64,
    /// Whether `late` counts all of them. If not, the owner has very many chains, and only some were looked at: there
    /// may be more.
    pub late_complete: bool,
    /// How many failures the owner's entities and their parts have now, without those of entities that have worked
    /// since.
    pub failing: i64,
    /// Whether `failing` counts all of them. If not, the ledger keeps very many failures, and only some were looked at:
    /// there may be more.
    pub failing_complete: bool,
}

impl From<OwnerCensus> for OwnerRow {
    fn from(census: OwnerCensus) -> Self {
        Self {
            owner: census.owner,
            state: word(census.state),
            active: census.active,
            paused: census.paused,
            retired: census.retired,
            quarantined: census.quarantined,
            late: census.late,
            late_complete: census.late_complete,
            failing: census.failing,
            failing_complete: census.failing_complete,
        }
    }
}

/// The owners after a name, in their order, at most `limit`. At most `effort` active chains of all these owners
/// together are looked at, and a quarter as many failures.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn page(
    after: String,
    limit: u32,
    effort: u32,
    config: &Config,
    ledger: &dyn Ledger,
) -> Result<Vec<OwnerRow>, LedgerError> {
    let holds = Holds::look(config, ledger).await?;
    let before = ledger.now() - config.catch_up.slack;
    let found = ledger.owners(after, limit, before, holds.queues(), effort).await?;
    let queues = config.queues.keys().cloned().chain([config.topology().names.chores()]);
    let slept = overslept::look(ledger, queues, &schedules(config)).await?;
    let mut rows: Vec<OwnerRow> = found.into_iter().map(OwnerRow::from).collect();
    // They are late although their due times lie ahead, so the ledger does not count them.
    let slept = of_owners(slept, &holds);
    for row in &mut rows {
        row.late += slept.get(&row.owner).copied().unwrap_or(0);
    }
    Ok(rows)
}

/// How many of these each owner has, on queues that no operator holds.
fn of_owners(slept: Vec<Overslept>, holds: &Holds) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for Overslept { chain, .. } in slept {
        if let Some(owner) = chain.owner.filter(|_| holds.get(&chain.hint.queue).is_none()) {
            *counts.entry(owner).or_default() += 1;
        }
    }
    counts
}
