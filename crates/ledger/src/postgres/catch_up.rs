//! Catch-up, in SQL.

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::group::{hint, small};
use super::reader::{Reader, Result};
use super::reports::{holder, holder_of, listed, listed_columns, time};
use crate::catch_up::{CatchUp, LookAgain, OrphanFilter, Overdue};
use crate::chain::{Hint, Kinds};
use crate::decide::Look;
use crate::error::LedgerError;
use crate::look::Listed;

/// A chain that no session has claimed, and whose message waits in the backlog, needs no other.
macro_rules! waits {
    () => {
        "(holder = 0 AND EXISTS (SELECT FROM backlog WHERE name = 'chain ' || epoch))"
    };
}

impl Reader {
    pub(super) async fn overdue(
        &self,
        queue: String,
        kinds: Kinds,
        now: Time,
        session: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Overdue>> {
        let sql = concat!(
            "SELECT epoch, kind, key, queue, tick, attempt, due, parent, sent, watch_at, looks, ",
            holder_of!(),
            ", expected, holder, fence, priority
             FROM chains WHERE state = 0 AND queue = $1 AND watch_at <= $2 AND kind = ANY ($3)
               AND (once OR kind = ANY ($4))
               AND (holder IN (0, $6) OR holder NOT IN (SELECT session FROM sessions))
               AND NOT ",
            waits!(),
            " ORDER BY watch_at LIMIT $5"
        );
        let (now, limit, session) = (now.as_millis(), i64::from(limit), session.unwrap_or_default());
        let parameters: [&(dyn ToSql + Sync); 6] = [&queue, &now, &kinds.all, &kinds.recurring, &limit, &session];
        self.rows(sql, &parameters, overdue).await
    }

    pub(super) async fn messages(
        &self,
        queues: Vec<String>,
        kinds: Kinds,
        after: Epoch,
        limit: u32,
    ) -> Result<Vec<Hint>> {
        let sql = "SELECT epoch, kind, key, queue, tick, attempt, due, parent, priority FROM chains
                   WHERE state = 0 AND batch_open = 0 AND epoch > $1 AND queue = ANY ($2) AND kind = ANY ($3)
                     AND (once OR kind = ANY ($4))
                   ORDER BY epoch LIMIT $5";
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&after.get(), &queues, &kinds.all, &kinds.recurring, &i64::from(limit)];
        self.rows(sql, &parameters, hint).await
    }

    pub(super) async fn furthest(&self, queue: String, now: Time, limit: u32) -> Result<Vec<Listed>> {
        let sql = concat!(
            "SELECT ",
            listed_columns!(),
            " FROM chains
              WHERE NOT once AND parent = 0 AND epoch IN (
                  SELECT epoch FROM (SELECT epoch FROM chains WHERE queue = $1 AND state = 0
                                     ORDER BY watch_at DESC LIMIT $2::int8) last
                  UNION ALL
                  SELECT epoch FROM (SELECT epoch, due FROM chains WHERE queue = $1 AND state = 0 AND watch_at < $3
                                     ORDER BY watch_at LIMIT $2::int8) first WHERE due > $3)
              ORDER BY due DESC"
        );
        let (limit, now) = (i64::from(limit), now.as_millis());
        self.rows(sql, &[&queue, &limit, &now], listed).await
    }
}

#[async_trait]
impl CatchUp for PostgresLedger {
    async fn overdue(
        &self,
        queue: String,
        kinds: Kinds,
        now: Time,
        session: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError> {
        self.reader.overdue(queue, kinds, now, session, limit).await
    }

    async fn orphans(
        &self,
        queue: String,
        kinds: Kinds,
        left: OrphanFilter,
        limit: u32,
    ) -> Result<Vec<Overdue>, LedgerError> {
        let sql = concat!(
            "SELECT epoch, kind, key, queue, tick, attempt, due, parent, sent, watch_at, looks, ",
            holder_of!(),
            ", expected, holder, fence, priority
             FROM chains WHERE state = 0 AND queue = $1 AND watch_at <= $2 AND kind = ANY ($3)
               AND (once OR kind = ANY ($4))
               AND CASE WHEN holder = 0 THEN due < (CASE WHEN sent THEN $6::int8 ELSE greatest($6, $7::int8) END) AND batch_open = 0
                        ELSE holder NOT IN (SELECT session FROM sessions) END
               AND NOT ",
            waits!(),
            " ORDER BY watch_at LIMIT $5"
        );
        let [until, late, unsent] = [left.until, left.late, left.unsent].map(Time::as_millis);
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&queue, &until, &kinds.all, &kinds.recurring, &i64::from(limit), &late, &unsent];
        self.reader.rows(sql, &parameters, overdue).await
    }

    async fn look_again(&self, looks: Vec<LookAgain>) -> Result<Vec<bool>, LedgerError> {
        self.rest.write(Look(looks)).await
    }

    async fn messages(
        &self,
        queues: Vec<String>,
        kinds: Kinds,
        after: Epoch,
        limit: u32,
    ) -> Result<Vec<Hint>, LedgerError> {
        self.reader.messages(queues, kinds, after, limit).await
    }

    async fn furthest(&self, queue: String, limit: u32) -> Result<Vec<Listed>, LedgerError> {
        self.reader.furthest(queue, self.clock.now(), limit).await
    }
}

pub(super) fn overdue(row: &Row) -> Result<Overdue, Error> {
    Ok(Overdue {
        hint: hint(row)?,
        sent: row.try_get(8)?,
        watch_at: time(row, 9)?,
        looks: small(row.try_get(10)?),
        holder: holder(row, 11)?,
        expected: time(row, 12)?,
        claim: (row.try_get(13)?, Fence(row.try_get(14)?)),
    })
}
