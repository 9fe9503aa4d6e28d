//! Catch-up, in SQL.

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence};
use rusqlite::{Row, params};

use super::SqliteLedger;
use super::reports::{LISTED, listed, text_array};
use super::store::{AFTER_HINT, HINT, HOLDER, Result, Store, hint, holder, time};
use crate::catch_up::{CatchUp, LookAgain, OrphanFilter, Overdue};
use crate::chain::{Hint, Kinds};
use crate::error::LedgerError;
use crate::look::Listed;

/// A chain that no session has claimed, and whose message waits in the backlog, needs no other.
const WAITS: &str = "(holder = 0 AND EXISTS (SELECT 1 FROM backlog WHERE name = 'chain ' || epoch))";

impl Store {
    pub fn overdue(
        &self,
        queue: &str,
        kinds: &Kinds,
        now: Time,
        session: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Overdue>> {
        let sql = format!(
            "SELECT {HINT}, sent, watch_at, looks, {HOLDER}, expected, holder, fence FROM chains_now
             WHERE state = 0 AND queue = ?1 AND watch_at <= ?2 AND kind IN rarray(?3) AND (once OR kind IN rarray(?4))
                   AND (holder IN (0, ?6) OR holder NOT IN (SELECT session FROM sessions)) AND NOT {WAITS}
             ORDER BY watch_at LIMIT ?5"
        );
        let (all, recurring) = (text_array(&kinds.all), text_array(&kinds.recurring));
        let values = params![queue, now.as_millis(), all, recurring, limit, session.unwrap_or_default()];
        self.connection.prepare_cached(&sql)?.query_map(values, overdue)?.collect()
    }

    fn orphans(&self, queue: &str, kinds: &Kinds, left: OrphanFilter, limit: u32) -> Result<Vec<Overdue>> {
        let sql = format!(
            "SELECT {HINT}, sent, watch_at, looks, {HOLDER}, expected, holder, fence FROM chains_now
             WHERE state = 0 AND queue = ?1 AND watch_at <= ?2 AND kind IN rarray(?3) AND (once OR kind IN rarray(?4))
               AND iif(holder = 0, due < iif(sent, ?6, max(?6, ?7)) AND batch_open = 0, holder NOT IN (SELECT session FROM sessions))
               AND NOT {WAITS}
             ORDER BY watch_at LIMIT ?5"
        );
        let (all, recurring) = (text_array(&kinds.all), text_array(&kinds.recurring));
        let [until, late, unsent] = [left.until, left.late, left.unsent].map(Time::as_millis);
        let values = params![queue, until, all, recurring, limit, late, unsent];
        self.connection.prepare_cached(&sql)?.query_map(values, overdue)?.collect()
    }

    pub fn look_again(&mut self, looks: &[LookAgain]) -> Result<Vec<bool>> {
        let mut update = self.connection.prepare_cached(
            "UPDATE chains SET watch_at = ?3, looks = ?4, expected = coalesce(?5, expected)
                 WHERE epoch = ?1 AND watch_at = ?2",
        )?;
        let mut write = |l: &LookAgain| {
            let expected = l.expected.map(Time::as_millis);
            update.execute(params![l.epoch.get(), l.from.as_millis(), l.to.as_millis(), l.looks, expected])
        };
        looks.iter().map(|look| Ok(write(look)? == 1)).collect()
    }

    pub fn messages(&self, queues: &[String], kinds: &Kinds, after: Epoch, limit: u32) -> Result<Vec<Hint>> {
        let sql = format!(
            "SELECT {HINT} FROM chains
             WHERE state = 0 AND batch_open = 0 AND epoch > ?1 AND queue IN rarray(?2) AND kind IN rarray(?3)
                   AND (once OR kind IN rarray(?4))
             ORDER BY epoch LIMIT ?5"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(
            params![after.get(), text_array(queues), text_array(&kinds.all), text_array(&kinds.recurring), limit],
            hint,
        )?;
        rows.collect()
    }

    pub fn furthest(&self, queue: &str, now: Time, limit: u32) -> Result<Vec<Listed>> {
        let sql = format!(
            "SELECT {LISTED} FROM chains_now AS chains
             WHERE once = 0 AND epoch IN (
                 SELECT epoch FROM (SELECT epoch FROM chains WHERE queue = ?1 AND state = 0
                                    ORDER BY watch_at DESC LIMIT ?2)
                 UNION ALL
                 SELECT epoch FROM (SELECT epoch, due FROM chains WHERE queue = ?1 AND state = 0 AND watch_at < ?3
                                    ORDER BY watch_at LIMIT ?2) WHERE due > ?3)
             ORDER BY due DESC"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        select.query_map(params![queue, limit, now.as_millis()], listed)?.collect()
    }
}

#[async_trait]
impl CatchUp for SqliteLedger {
    async fn overdue(
        &self,
        queue: String,
        kinds: Kinds,
        now: Time,
        session: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError> {
        self.read(move |store| store.overdue(&queue, &kinds, now, session, limit)).await
    }

    async fn orphans(
        &self,
        queue: String,
        kinds: Kinds,
        left: OrphanFilter,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError> {
        self.read(move |store| store.orphans(&queue, &kinds, left, limit)).await
    }

    async fn look_again(&self, looks: Vec<LookAgain>) -> Result<Vec<bool>, LedgerError> {
        self.writer.write(move |store| store.look_again(&looks)).await
    }

    async fn messages(
        &self,
        queues: Vec<String>,
        kinds: Kinds,
        after: Epoch,
        limit: u32,
    ) -> Result<Vec<Hint>, LedgerError> {
        self.read(move |store| store.messages(&queues, &kinds, after, limit)).await
    }

    async fn furthest(&self, queue: String, limit: u32) -> Result<Vec<Listed>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.furthest(&queue, now, limit)).await
    }
}

pub(super) fn overdue(row: &Row<'_>) -> Result<Overdue> {
    Ok(Overdue {
        hint: hint(row)?,
        sent: row.get(AFTER_HINT)?,
        watch_at: time(row, AFTER_HINT + 1)?,
        looks: row.get(AFTER_HINT + 2)?,
        holder: holder(row, AFTER_HINT + 3)?,
        expected: time(row, AFTER_HINT + 4)?,
        claim: (row.get(AFTER_HINT + 5)?, Fence(row.get(AFTER_HINT + 6)?)),
    })
}
