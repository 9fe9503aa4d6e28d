//! What has failed, in SQL: single statements, each a transaction by itself.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::{FailedItem, Failure, ItemEnd};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::words;
use super::group::small;
use super::reader::{Reader, Result};
use super::reports::time;
use crate::decide::RecordFailure;
use crate::error::LedgerError;
use crate::failed::{DueItem, FailureCursor, FailureFilter, Failures, Hold, Plan, PlannedItem};
use crate::look::sql_like;

/// Whether the whole of the entity of a failure `f` has worked since: of its chain's last two attempts, one of which may
/// run, one was done later.
macro_rules! recovered {
    () => {
        "f.item = '' AND EXISTS (
             SELECT FROM chains c JOIN attempts a
                 ON a.fence = ANY (ARRAY[c.fence, (SELECT p.previous FROM attempts p WHERE p.fence = c.fence)])
             WHERE c.kind = f.kind AND c.key = f.key AND NOT c.once AND c.parent = 0
               AND a.epoch = c.epoch AND a.verdict = 'done' AND a.finished > f.last_at)"
    };
}

/// The columns that [`failure`] reads, of a failure `f`.
macro_rules! failure_columns {
    () => {
        concat!(
            "f.kind, f.key, f.item, f.reason, f.code, f.times, f.attempts, f.first_at, f.last_at, f.next_retry_at,
             f.permanent, f.fed, (",
            recovered!(),
            ")"
        )
    };
}

/// How many columns that are.
const AFTER_FAILURE: usize = 13;

/// The failures `f` that a [`FailureFilter`] means; its parameters are 1 to 8.
macro_rules! fits {
    () => {
        concat!(
            "($1::text IS NULL OR f.kind = $1) AND ($2::text IS NULL OR f.key = $2) AND ($3::text IS NULL OR f.key LIKE $3)
         AND ($4::text IS NULL OR EXISTS (SELECT FROM chains c WHERE c.kind = f.kind AND c.key = f.key AND c.owner = $4
                                                                 AND c.parent = 0))
         AND ($5::text IS NULL OR f.item = $5) AND ($6::text IS NULL OR f.code = $6)
         AND ($7::bool IS NULL OR f.permanent = $7) AND ($8::bool IS NULL OR $8 = (",
            recovered!(),
            "))"
        )
    };
}

pub(super) use fits;
pub(super) use recovered;

/// The ledger's time, in milliseconds.
macro_rules! now {
    () => {
        "ledger_millis()"
    };
}

pub(super) fn failure(row: &Row) -> Result<Failure, Error> {
    Ok(Failure {
        kind: row.try_get(0)?,
        key: row.try_get(1)?,
        item: row.try_get(2)?,
        reason: row.try_get(3)?,
        code: row.try_get(4)?,
        times: row.try_get(5)?,
        attempts: row.try_get(6)?,
        first_at: time(row, 7)?,
        last_at: time(row, 8)?,
        next_retry_at: row.try_get::<_, Option<i64>>(9)?.map(Time::from_millis),
        permanent: row.try_get(10)?,
        fed: row.try_get(11)?,
        recovered: row.try_get(12)?,
    })
}

fn told(error: Error) -> LedgerError {
    LedgerError::Statement(words(&error))
}

#[async_trait]
impl Failures for PostgresLedger {
    async fn failed(&self, filter: FailureFilter, after: Option<FailureCursor>, limit: u32) -> Result<Vec<Failure>> {
        let sql = concat!(
            "SELECT ",
            failure_columns!(),
            " FROM failures f WHERE ",
            fits!(),
            " AND (f.kind, f.key, f.item) > ($9, $10, $11) ORDER BY f.kind, f.key, f.item LIMIT $12"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        // Nothing is before a kind without a name, and the whole of an entity has no item.
        let (after_kind, after_key, after_item) = after.unwrap_or_default();
        let (like, limit) = (like.as_deref().map(sql_like), i64::from(limit));
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &kind,
            &key,
            &like,
            &owner,
            &item,
            &code,
            &permanent,
            &recovered,
            &after_kind,
            &after_key,
            &after_item,
            &limit,
        ];
        self.reader.rows(sql, &parameters, failure).await
    }

    async fn count_failed(&self, filter: FailureFilter) -> Result<(u64, u64)> {
        let sql = concat!(
            "SELECT count(*) FILTER (WHERE f.item <> ''), count(*) FILTER (WHERE f.item = '') FROM failures f WHERE ",
            fits!()
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sql_like);
        let parameters: [&(dyn ToSql + Sync); 8] = [&kind, &key, &like, &owner, &item, &code, &permanent, &recovered];
        let counts = |row: &Row| Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?));
        let (parts, wholes) = self.reader.rows(sql, &parameters, counts).await?.pop().unwrap_or_default();
        Ok((parts.unsigned_abs(), wholes.unsigned_abs()))
    }

    async fn retry_failed(&self, filter: FailureFilter) -> Result<u64> {
        let sql = concat!(
            "WITH now AS MATERIALIZED (SELECT ",
            now!(),
            " AS ms) UPDATE failures f SET next_retry_at = now.ms, attempts = 0, permanent = false FROM now WHERE ",
            fits!(),
            " AND f.item <> '' AND f.code IS DISTINCT FROM 'refused' AND f.held_until <= now.ms"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sql_like);
        self.reader.execute(sql, &[&kind, &key, &like, &owner, &item, &code, &permanent, &recovered]).await
    }

    async fn drop_failed(&self, filter: FailureFilter) -> Result<u64> {
        let sql = concat!("DELETE FROM failures f WHERE ", fits!());
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sql_like);
        self.reader.execute(sql, &[&kind, &key, &like, &owner, &item, &code, &permanent, &recovered]).await
    }

    async fn due_items(&self, kind: String, limit: u32) -> Result<Vec<DueItem>> {
        let sql = concat!(
            "WITH now AS MATERIALIZED (SELECT ",
            now!(),
            " AS ms) SELECT ",
            failure_columns!(),
            ", c.queue, c.payload, c.owner, c.depth FROM now, failures f
             JOIN chains c ON c.kind = f.kind AND c.key = f.key AND NOT c.once AND c.parent = 0
             WHERE f.kind = $1 AND f.next_retry_at <= now.ms AND f.item <> '' AND NOT f.permanent
               AND f.held_until <= now.ms AND c.state = 0
             ORDER BY f.next_retry_at LIMIT $2"
        );
        let due = |row: &Row| {
            Ok(DueItem {
                failure: failure(row)?,
                queue: row.try_get(AFTER_FAILURE)?,
                payload: row.try_get(AFTER_FAILURE + 1)?,
                owner: row.try_get(AFTER_FAILURE + 2)?,
                depth: small(row.try_get(AFTER_FAILURE + 3)?),
            })
        };
        self.reader.rows(sql, &[&kind, &i64::from(limit)], due).await
    }

    async fn plan_items(&self, planned: Vec<PlannedItem>) -> Result<Vec<bool>> {
        let mut done = self.set_next_retries(&planned).await?;
        for (item, done) in planned.into_iter().zip(&mut done) {
            if let Plan::Feed { .. } = item.plan {
                *done = self.feed_item(item).await?;
            }
        }
        Ok(done)
    }

    async fn hold_item(&self, id: String, length: Duration) -> Result<Hold> {
        let sql = concat!(
            "WITH now AS MATERIALIZED (SELECT ",
            now!(),
            " AS ms), until AS MATERIALIZED (SELECT now.ms + $2::int8 AS ms FROM now)
             UPDATE failures f SET held_until = until.ms, next_retry_at = until.ms FROM now, until
             WHERE f.fed = $1 AND f.held_until <= now.ms AND NOT f.permanent"
        );
        let length = i64::try_from(length.as_millis()).unwrap_or(i64::MAX / 2);
        // Not asked a second time on another connection: then the first might be the one that holds it.
        if self.reader.execute(sql, &[&id, &length]).await? == 1 {
            let taken = concat!("SELECT ", failure_columns!(), " FROM failures f WHERE f.fed = $1");
            let row = self.reader.rows(taken, &[&id], failure).await?.pop();
            return Ok(row.map_or(Hold::Gone, |failure| Hold::Taken(Box::new(failure))));
        }
        let held = "SELECT held_until FROM failures WHERE fed = $1 AND NOT permanent";
        let until = self.reader.rows(held, &[&id], |row| time(row, 0)).await?.pop();
        Ok(until.map_or(Hold::Gone, Hold::Held))
    }

    async fn put_off_item(&self, id: String, until: Time) -> Result<()> {
        let sql = "UPDATE failures SET held_until = 0, next_retry_at = $2 WHERE fed = $1 AND NOT permanent";
        self.reader.execute(sql, &[&id, &until.as_millis()]).await.map(drop)
    }

    async fn end_item(&self, id: String, end: ItemEnd, at: Time) -> Result<()> {
        let ItemEnd::Failed(FailedItem { reason, code, next_retry_at, permanent, .. }) = end else {
            return self.reader.execute("DELETE FROM failures WHERE fed = $1", &[&id]).await.map(drop);
        };
        let sql = "UPDATE failures
                   SET reason = $2, code = $3, times = times + 1, attempts = attempts + 1, last_at = $4,
                       permanent = $6 OR permanent, next_retry_at = CASE WHEN permanent THEN NULL ELSE $5::int8 END,
                       fed = NULL, held_until = 0
                   WHERE fed = $1";
        let (reason, code) = (reason.replace('\0', "\u{fffd}"), code.map(|code| code.replace('\0', "\u{fffd}")));
        let (at, next) = (at.as_millis(), next_retry_at.map(Time::as_millis));
        self.reader.execute(sql, &[&id, &reason, &code, &at, &next, &permanent]).await.map(drop)
    }

    async fn record_failure(&self, kind: String, key: String, failed: FailedItem, at: Time) -> Result<(), LedgerError> {
        self.rest.write(RecordFailure { kind, key, failed, at }).await
    }

    async fn failures(&self, limit: u32) -> Result<Vec<Failure>, LedgerError> {
        self.reader.failures(limit).await
    }

    async fn failures_of(&self, kind: String, key: String) -> Result<Vec<Failure>, LedgerError> {
        self.reader.failures_of(kind, key).await
    }
}

impl PostgresLedger {
    /// Those that wait or are given up, in one statement. Whether each was as it was seen.
    async fn set_next_retries(&self, planned: &[PlannedItem]) -> Result<Vec<bool>> {
        let next = |item: &PlannedItem| match item.plan {
            Plan::Wait(until) => Some(Some(until.as_millis())),
            Plan::GiveUp => Some(None),
            Plan::Feed { .. } => None,
        };
        let mut done = vec![false; planned.len()];
        let set: Vec<_> = planned.iter().enumerate().filter_map(|(n, item)| Some((n, item, next(item)?))).collect();
        if set.is_empty() {
            return Ok(done);
        }
        let sql = "UPDATE failures f SET next_retry_at = u.next, permanent = (u.next IS NULL)
                   FROM unnest($1::int8[], $2::text[], $3::text[], $4::text[], $5::int8[], $6::int8[])
                        AS u (n, kind, key, item, seen, next)
                   WHERE f.kind = u.kind AND f.key = u.key AND f.item = u.item AND f.next_retry_at = u.seen
                     AND NOT f.permanent
                   RETURNING u.n";
        let numbers: Vec<i64> = set.iter().map(|(n, ..)| *n as i64).collect();
        let text = |of: fn(&PlannedItem) -> &str| set.iter().map(|(_, item, _)| of(item)).collect::<Vec<&str>>();
        let (kinds, keys, items) = (text(|item| &item.kind), text(|item| &item.key), text(|item| &item.item));
        let seen: Vec<i64> = set.iter().map(|(_, item, _)| item.seen.as_millis()).collect();
        let next: Vec<Option<i64>> = set.iter().map(|(.., next)| *next).collect();
        for row in self.reader.query(sql, &[&numbers, &kinds, &keys, &items, &seen, &next]).await? {
            let n: i64 = row.try_get(0).map_err(told)?;
            if let Some(done) = usize::try_from(n).ok().and_then(|n| done.get_mut(n)) {
                *done = true;
            }
        }
        Ok(done)
    }

    async fn feed_item(&self, planned: PlannedItem) -> Result<bool> {
        let PlannedItem { kind, key, item, seen, plan } = planned;
        let Plan::Feed { job, until } = plan else { return Ok(false) };
        let (seen, next) = (seen.as_millis(), until.as_millis());
        // Transactions that write jobs take turns: see `write`.
        let sql = concat!(
            "WITH turn AS MATERIALIZED (
                 SELECT pg_advisory_xact_lock(hashtextextended('roundelay jobs ' || current_schema(), 0))),
             fed AS (
                 UPDATE failures SET next_retry_at = $5, fed = $6 FROM turn
                 WHERE kind = $1 AND key = $2 AND item = $3 AND next_retry_at = $4 AND NOT permanent
                 RETURNING 1),
             job AS (
                 INSERT INTO jobs (id, body, kept_at) SELECT $6, $7, ",
            now!(),
            " FROM fed ON CONFLICT (id) DO NOTHING)
             SELECT count(*) FROM fed"
        );
        // As a query, it would be tried again on a new connection, and then find itself to be late: the job is
        // in the outbox all the same, and sent by catch-up.
        let parameters: [&(dyn ToSql + Sync); 7] = [&kind, &key, &item, &seen, &next, &job.id, &job.body];
        let rows = self.reader.query(sql, &parameters).await?;
        let fed: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(told)?;
        Ok(fed == 1)
    }
}

impl Reader {
    pub(super) async fn failures(&self, limit: u32) -> Result<Vec<Failure>> {
        let sql = concat!(
            "SELECT ",
            failure_columns!(),
            " FROM failures f ORDER BY (",
            recovered!(),
            "), f.last_at DESC, f.kind, f.key, f.item LIMIT $1"
        );
        self.rows(sql, &[&i64::from(limit)], failure).await
    }

    pub(super) async fn failures_of(&self, kind: String, key: String) -> Result<Vec<Failure>> {
        let sql = concat!(
            "SELECT ",
            failure_columns!(),
            " FROM failures f WHERE f.kind = $1 AND f.key = $2 ORDER BY f.last_at DESC, f.item"
        );
        self.rows(sql, &[&kind, &key], failure).await
    }
}
