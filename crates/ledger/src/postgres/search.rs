//! What screens ask for, in SQL.

use std::collections::HashMap;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::Fence;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresLedger;
use super::failed::{fits, recovered};
use super::reader::Result;
use super::reports::{attempt, listed, listed_columns, time, waits_for_twin};
use crate::chain::ChainState;
use crate::failed::FailureFilter;
use crate::look::{Condition, Cursor, ListFilter, Listed, sql_like};
use crate::orders::ChainFilter;
use crate::reports::AttemptRecord;
use crate::search::{Found, NamedAttempt, QuarantinedMessage, ReasonCount, RunFilter, Search};

/// The chains in the order of their names, as far as a search looks.
const LOOKED: &str = "SELECT kind, key FROM chains
    WHERE (kind, key) > ($1, $2) AND kind <= $3 AND NOT once AND parent = 0
    ORDER BY kind, key OFFSET $4 LIMIT 1";

/// An owner with at most this many chains is searched by the owners' index.
const MAX_OWNER_INDEX: i64 = 10_000;

impl PostgresLedger {
    /// Whether an index leads to what is looked for, and to little else.
    async fn is_narrow(&self, filter: &ListFilter) -> Result<bool> {
        if let Some(Condition::State(state)) = filter.condition
            && state != ChainState::Active
        {
            return Ok(true);
        }
        let Some(owner) = &filter.which.owner else {
            return Ok(filter.which.kind.is_some() && filter.which.key.is_some());
        };
        let few = "SELECT count(*) <= $2::int8 FROM
                       (SELECT FROM chains WHERE owner = $1 AND NOT once AND parent = 0 LIMIT $2::int8 + 1) few";
        let few = self.reader.rows(few, &[owner, &MAX_OWNER_INDEX], |row| row.try_get(0)).await?;
        Ok(few.first().copied().unwrap_or(false))
    }
}

#[async_trait]
impl Search for PostgresLedger {
    async fn search(
        &self,
        filter: ListFilter,
        after: Option<Cursor>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<Listed, Cursor>> {
        let sql = concat!(
            "SELECT ",
            listed_columns!(),
            " FROM (SELECT * FROM chains WHERE (kind, key) > ($4, $5) AND kind <= $6 AND NOT once AND parent = 0
                    ORDER BY kind, key LIMIT $13) chains
              WHERE ($1::text IS NULL OR key = $1) AND ($2::text IS NULL OR owner = $2)
                AND ($3::text IS NULL OR key LIKE $3)
                AND ($7::int8 IS NULL OR state = $7) AND (NOT $8 OR holder IN (SELECT session FROM sessions))
                AND ($11::text IS NULL OR queue = $11)
                AND ($12::int8 IS NULL OR (state = 0 AND due < $12 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0 AND NOT ",
            waits_for_twin!("$9"),
            "))
              ORDER BY kind, key LIMIT $10"
        );
        if self.is_narrow(&filter).await? {
            let found = self.reader.list(filter, after, self.clock.now(), limit).await?;
            let last = found.last().map(|last| (last.hint.kind.clone(), last.hint.key.clone()));
            return Ok(Found::new(found, limit, false, last));
        }
        let ((after_kind, after_key), last_kind) = filter.range(after);
        let (state, running) = filter.bounds();
        let ChainFilter { key, owner, like, queue, late_before, .. } = &filter.which;
        let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
        let (now, most, effort) = (self.clock.now().as_millis(), i64::from(limit), i64::from(effort));
        let parameters: [&(dyn ToSql + Sync); 13] = [
            key,
            owner,
            &like,
            &after_kind,
            &after_key,
            &last_kind,
            &state,
            &running,
            &now,
            &most,
            queue,
            &late_before,
            &effort,
        ];
        let found = self.reader.rows(sql, &parameters, listed).await?;
        if found.len() >= limit as usize {
            let last = found.last().map(|last| (last.hint.kind.clone(), last.hint.key.clone()));
            return Ok(Found::new(found, limit, false, last));
        }
        let place = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
        let parameters: [&(dyn ToSql + Sync); 4] = [&after_kind, &after_key, &last_kind, &(effort - 1)];
        let last: Option<Cursor> = self.reader.rows(LOOKED, &parameters, place).await?.pop();
        Ok(Found::new(found, limit, last.is_some(), last))
    }

    async fn histories(&self, fences: Vec<Fence>, limit: u32) -> Result<Vec<Vec<AttemptRecord>>> {
        let sql = "WITH RECURSIVE back (root, number, more) AS (
                       SELECT fence, fence, $2::int8 FROM unnest($1::int8[]) AS fence
                       UNION ALL
                       SELECT root, previous, more - 1 FROM back JOIN attempts ON fence = number WHERE more > 1)
                   SELECT fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason, overlapped,
                          misfired, progress, root
                   FROM back JOIN attempts ON fence = number ORDER BY fence DESC";
        let rooted = |row: &Row| Ok((Fence(row.try_get(13)?), attempt(row)?));
        let numbers: Vec<i64> = fences.iter().map(|fence| fence.get()).collect();
        let mut of: HashMap<Fence, Vec<AttemptRecord>> = HashMap::new();
        for (root, record) in self.reader.rows(sql, &[&numbers, &i64::from(limit)], rooted).await? {
            of.entry(root).or_default().push(record);
        }
        Ok(fences.iter().map(|fence| of.get(fence).cloned().unwrap_or_default()).collect())
    }

    async fn runs(
        &self,
        filter: RunFilter,
        before: Option<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Found<NamedAttempt, Fence>> {
        let sql = "SELECT a.fence, a.epoch, a.tick, a.attempt, a.worker, a.due, a.started, a.finished, a.verdict,
                          a.reason, a.overlapped, a.misfired, a.progress, c.kind, c.key
                   FROM (SELECT * FROM attempts WHERE fence < $1 ORDER BY fence DESC LIMIT $5) a
                   LEFT JOIN chains c ON c.epoch = a.epoch
                   WHERE ($2::text IS NULL OR a.verdict = $2) AND ($3::text IS NULL OR c.kind = $3)
                   ORDER BY a.fence DESC LIMIT $4";
        let named = |row: &Row| {
            let name = row.try_get::<_, Option<String>>(13)?.zip(row.try_get(14)?);
            Ok(NamedAttempt { record: attempt(row)?, name })
        };
        let RunFilter { verdict, kind } = filter;
        let (before, most, effort) = (before.map_or(i64::MAX, Fence::get), i64::from(limit), i64::from(effort));
        let found = self.reader.rows(sql, &[&before, &verdict, &kind, &most, &effort], named).await?;
        if found.len() >= limit as usize {
            let last = found.last().map(|last| last.record.fence);
            return Ok(Found::new(found, limit, false, last));
        }
        let looked = "SELECT fence FROM attempts WHERE fence < $1 ORDER BY fence DESC OFFSET $2 LIMIT 1";
        let last = self.reader.rows(looked, &[&before, &(effort - 1)], |row| row.try_get(0).map(Fence)).await?.pop();
        Ok(Found::new(found, limit, last.is_some(), last))
    }

    async fn reasons(&self, filter: FailureFilter) -> Result<Vec<ReasonCount>> {
        let sql = concat!(
            "SELECT f.kind, f.code, f.permanent, count(*) FILTER (WHERE f.item <> ''),
                    count(*) FILTER (WHERE f.item = ''), max(f.last_at), (array_agg(f.reason ORDER BY f.last_at DESC))[1],
                    count(*) FILTER (WHERE ",
            recovered!(),
            ")
             FROM failures f WHERE ",
            fits!(),
            " GROUP BY f.kind, f.code, f.permanent, CASE WHEN f.code IS NULL THEN left(split_part(f.reason, ':', 1), 60) END
              ORDER BY count(*) DESC, f.kind, f.code NULLS FIRST, f.permanent, max(f.last_at)"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sql_like);
        let parameters: [&(dyn ToSql + Sync); 8] = [&kind, &key, &like, &owner, &item, &code, &permanent, &recovered];
        let reason = |row: &Row| {
            Ok(ReasonCount {
                kind: row.try_get(0)?,
                code: row.try_get(1)?,
                permanent: row.try_get(2)?,
                parts: row.try_get::<_, i64>(3)?.unsigned_abs(),
                wholes: row.try_get::<_, i64>(4)?.unsigned_abs(),
                last_at: time(row, 5)?,
                example: row.try_get(6)?,
                recovered: row.try_get::<_, i64>(7)?.unsigned_abs(),
            })
        };
        self.reader.rows(sql, &parameters, reason).await
    }

    async fn quarantined(&self, before: Option<i64>, limit: u32) -> Result<Vec<QuarantinedMessage>> {
        let sql = "SELECT number, at, source, reason, body FROM quarantine WHERE number < $1
                   ORDER BY number DESC LIMIT $2";
        let message = |row: &Row| {
            Ok(QuarantinedMessage {
                number: row.try_get(0)?,
                at: time(row, 1)?,
                from: row.try_get(2)?,
                reason: row.try_get(3)?,
                body: row.try_get(4)?,
            })
        };
        self.reader.rows(sql, &[&before.unwrap_or(i64::MAX), &i64::from(limit)], message).await
    }

    async fn retry_quarantined(&self, number: i64, id: String, body: Vec<u8>) -> Result<bool> {
        let retry = "WITH taken AS (DELETE FROM quarantine WHERE number = $1 RETURNING number)
                     INSERT INTO jobs (id, body, kept_at)
                     SELECT $2, $3, ledger_millis() FROM taken
                     ON CONFLICT (id) DO UPDATE SET body = excluded.body, kept_at = excluded.kept_at";
        Ok(self.reader.execute(retry, &[&number, &id, &body]).await? > 0)
    }

    async fn forget_quarantined(&self, numbers: Vec<i64>) -> Result<u64> {
        self.reader.execute("DELETE FROM quarantine WHERE number = ANY ($1::int8[])", &[&numbers]).await
    }
}
