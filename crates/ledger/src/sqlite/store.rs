//! What writes, in SQL. Plain and synchronous: [`super::writer`] calls it, and decides when a transaction commits.

use std::sync::Arc;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, TickNo};
pub(super) use rusqlite::Result;
use rusqlite::{Connection, Row, params};

use super::page::{LastNumbers, Scratch};
use crate::chain::{Hint, Holder, Sent};
use crate::traffic::Counters;

/// The columns that [`hint`] reads, in its order.
pub(super) const HINT: &str = "epoch, kind, key, queue, tick, attempt, due, parent, priority";
/// How many columns that are.
pub(super) const AFTER_HINT: usize = 9;

/// An open ledger file.
pub struct Store {
    pub connection: Connection,
    pub counters: Arc<Counters>,
    /// The transaction that is open has handed out slots.
    pub slots: bool,
    pub(super) last_numbers: LastNumbers,
    pub(super) scratch: Scratch,
}

impl Store {
    pub fn new(connection: Connection, counters: Arc<Counters>) -> Self {
        Self { connection, counters, slots: false, last_numbers: LastNumbers::default(), scratch: Scratch::default() }
    }
}

/// Who has claimed a chain, as [`holder`] reads it.
pub(super) const HOLDER: &str =
    "CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END";

pub(super) fn time(row: &Row<'_>, column: usize) -> Result<Time> {
    row.get(column).map(Time::from_millis)
}

pub(super) fn holder(row: &Row<'_>, column: usize) -> Result<Holder> {
    row.get(column).map(Holder::from_number)
}

pub(super) fn hint(row: &Row<'_>) -> Result<Hint> {
    Ok(Hint {
        epoch: Epoch(row.get(0)?),
        kind: row.get(1)?,
        key: row.get(2)?,
        queue: row.get(3)?,
        tick: TickNo(row.get(4)?),
        attempt: row.get(5)?,
        due: time(row, 6)?,
        parent: Epoch(row.get(7)?),
        priority: row.get(8)?,
    })
}

impl Store {
    /// Gives a chain a new epoch, in which it has no message, no holder, and its first attempt
    /// before it. Its holder cannot finish any more, and the record of that attempt ends here.
    pub(super) fn new_epoch(&mut self, old: Epoch, now: Time) -> Result<Epoch> {
        self.fold_hot("SELECT ?1 AS epoch", [old.get()])?;
        self.connection
            .prepare_cached(
                "UPDATE attempts SET finished = ?2, verdict = 'lost' WHERE finished IS NULL
                 AND fence = (SELECT fence FROM chains WHERE epoch = ?1 AND holder <> 0)",
            )?
            .execute(params![old.get(), now.as_millis()])?;
        self.drop_members(old)?;
        self.last_numbers = LastNumbers::default();
        let take = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'chains' RETURNING seq";
        let epoch: Epoch = self.connection.prepare_cached(take)?.query_row([], |row| row.get(0).map(Epoch))?;
        self.connection
            .prepare_cached(
                "UPDATE chains SET epoch = ?2, attempt = 1, sent = 0, looks = 0, holder = 0,
                                   batch_total = 0, batch_open = 0, batch_failed = 0
                 WHERE epoch = ?1",
            )?
            .execute([old.get(), epoch.get()])?;
        Ok(epoch)
    }

    /// Deletes the members of a chain's batch, which are not wanted any more. A run of one cannot be finished.
    pub(super) fn drop_members(&mut self, parent: Epoch) -> Result<()> {
        self.fold_hot("SELECT epoch FROM chains WHERE parent = ?1 AND parent <> 0", [parent.get()])?;
        self.connection
            .prepare_cached("DELETE FROM chains WHERE parent = ?1 AND parent <> 0")?
            .execute([parent.get()])?;
        Ok(())
    }

    pub fn enrolled_sent(&mut self, sent: &[Sent], slack: Duration) -> Result<()> {
        // Whether a hot chain's message is sent is not in its own row.
        let epochs: Vec<i64> = sent.iter().map(|sent| sent.epoch.get()).collect();
        let epochs = serde_json::to_string(&epochs).expect("numbers are always JSON");
        self.fold_hot("SELECT value AS epoch FROM json_each(?1)", [&epochs])?;
        let mut update = self.connection.prepare_cached(
            "UPDATE chains SET sent = 1, watch_at = ?5 WHERE epoch = ?1 AND tick = ?2 AND attempt = ?3 AND due = ?4",
        )?;
        for s in sent {
            let watch_at = (s.due + slack).as_millis();
            update.execute(params![s.epoch.get(), s.tick.get(), s.attempt, s.due.as_millis(), watch_at])?;
        }
        Ok(())
    }
}
