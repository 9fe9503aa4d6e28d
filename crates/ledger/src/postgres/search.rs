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
use super::reports::{attempt, late, listed, listed_columns, time, waits_for_twin};
use crate::chain::ChainState;
use crate::failed::FailureFilter;
use crate::look::{Condition, Cursor, ListFilter, Listed, sql_like};
use crate::orders::ChainFilter;
use crate::reports::AttemptRecord;
use crate::search::{Border, Found, NamedAttempt, QuarantinedMessage, ReasonCount, RunFilter, Search};

/// The chains in the order of their names, as far as a search looks.
const LOOKED: &str = "SELECT kind, key FROM chains
    WHERE (kind, key) > ($1, $2) AND kind <= $3 AND NOT once AND parent = 0
    ORDER BY kind, key OFFSET $4 LIMIT 1";

/// An owner with at most this many chains is searched by the owners' index.
const MAX_OWNER_INDEX: i64 = 10_000;
/// How many attempts can be read in the order of their fences at the cost of one that the next of its chain leads to.
const FETCH: i64 = 8;

/// The attempts that a search looks at, latest first: those with fences below `$1` and above `$3`, at most `$2`.
macro_rules! all_attempts {
    () => {
        "SELECT * FROM attempts WHERE fence < $1 AND fence > $3 ORDER BY fence DESC LIMIT $2"
    };
}

/// The same of the chains that are named `$4` and `$5`, from the last attempt of each to the one before it, and no
/// farther than to one that started before `$3`. Where a page goes on, its chain has nothing to be gone through again.
macro_rules! attempts_of_name {
    () => {
        "WITH RECURSIVE back (epoch, number, more) AS (
             SELECT c.epoch, CASE WHEN p.epoch = c.epoch THEN p.previous ELSE c.fence END, $2::int8
             FROM chains c LEFT JOIN attempts p ON p.fence = $1
             WHERE c.kind = $4 AND c.key = $5
             UNION ALL
             SELECT a.epoch, a.previous, more - (a.fence < $1)::int4
             FROM back b JOIN attempts a ON a.fence = b.number AND a.epoch = b.epoch
             WHERE more > (a.fence < $1)::int4 AND a.started >= $3)
         SELECT a.* FROM back b JOIN attempts a ON a.fence = b.number AND a.epoch = b.epoch
         WHERE a.fence < $1 ORDER BY a.fence DESC LIMIT $2"
    };
}

/// Those of the attempts that fit, with their chains' names.
macro_rules! fitting {
    ($($attempts:tt)*) => {
        concat!(
            "SELECT a.fence, a.epoch, a.tick, a.attempt, a.worker, a.due, a.started, a.finished, a.verdict, a.reason,
                    a.overlapped, a.misfired, a.excluded, a.progress, c.kind, c.key
             FROM (",
            $($attempts)*,
            ") a LEFT JOIN chains c ON c.epoch = a.epoch
             WHERE ($4::text IS NULL OR c.kind = $4) AND ($5::text IS NULL OR c.key = $5)
               AND ($6::text IS NULL OR a.verdict = $6) AND ($7::text IS NULL OR c.owner = $7)
               AND ($8::text IS NULL OR c.queue = $8) AND ($13::text IS NULL OR c.queue IS DISTINCT FROM $13)
               AND ($9::text IS NULL OR strpos(lower(a.reason), lower($9)) > 0)
               AND ($10::int8 IS NULL OR a.started >= $10) AND ($11::int8 IS NULL OR a.started < $11)
             ORDER BY a.fence DESC LIMIT $12"
        )
    };
}

/// The last one of the attempts, if there are as many as are looked at.
macro_rules! last_looked_at {
    ($($attempts:tt)*) => {
        concat!("SELECT min(fence) FROM (", $($attempts)*, ") a HAVING count(*) >= $2")
    };
}

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

    async fn border(&self, at: Time, before: Fence) -> Result<Border> {
        let latest = "SELECT fence, started FROM attempts WHERE fence <= $1 ORDER BY fence DESC LIMIT 1";
        let mut border = Border::new(at, before);
        while let Some(asked) = border.asks() {
            let read = |row: &Row| Ok((Fence(row.try_get(0)?), time(row, 1)?));
            border.told(asked, self.reader.rows(latest, &[&asked.get()], read).await?.pop());
        }
        Ok(border)
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
                AND ($12::int8 IS NULL OR ",
            late!("$12", "$9"),
            ")
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
                          misfired, excluded, progress, root
                   FROM back JOIN attempts ON fence = number ORDER BY fence DESC";
        let rooted = |row: &Row| Ok((Fence(row.try_get(14)?), attempt(row)?));
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
        let named = |row: &Row| {
            let name = row.try_get::<_, Option<String>>(14)?.zip(row.try_get(15)?);
            Ok(NamedAttempt { record: attempt(row)?, name })
        };
        let mut before = before.unwrap_or(Fence(i64::MAX));
        let of_name = filter.kind.is_some() && filter.key.is_some();
        let mut effort = i64::from(effort);
        let (fitting, looked, end) = if of_name {
            effort = (effort / FETCH).max(1);
            let earliest = filter.earliest().map_or(i64::MIN, Time::as_millis);
            (fitting!(attempts_of_name!()), last_looked_at!(attempts_of_name!()), earliest)
        } else {
            let mut after = Fence::NONE;
            if let Some(earliest) = filter.earliest() {
                after = self.border(earliest, before).await?.below();
            }
            if let Some(latest) = filter.latest() {
                before = self.border(latest, before).await?.from();
            }
            (fitting!(all_attempts!()), last_looked_at!(all_attempts!()), after.get())
        };
        let RunFilter { verdict, kind, key, owner, queue, except_queue, text, since, until } = filter;
        let (before, most) = (before.get(), i64::from(limit));
        let (since, until) = (since.map(Time::as_millis), until.map(Time::as_millis));
        let parameters: [&(dyn ToSql + Sync); 13] = [
            &before,
            &effort,
            &end,
            &kind,
            &key,
            &verdict,
            &owner,
            &queue,
            &text,
            &since,
            &until,
            &most,
            &except_queue,
        ];
        let found = self.reader.rows(fitting, &parameters, named).await?;
        if found.len() >= limit as usize {
            let last = found.last().map(|last| last.record.fence);
            return Ok(Found::new(found, limit, false, last));
        }
        let parameters = if of_name { &parameters[..5] } else { &parameters[..3] };
        let last = self.reader.rows(looked, parameters, |row| row.try_get(0).map(Fence)).await?.pop();
        Ok(Found::new(found, limit, last.is_some(), last))
    }

    async fn reasons(&self, filter: FailureFilter, limit: u32) -> Result<Vec<ReasonCount>> {
        let sql = concat!(
            "SELECT f.kind, f.code, f.permanent, count(*) FILTER (WHERE f.item <> ''),
                    count(*) FILTER (WHERE f.item = ''), max(f.last_at), (array_agg(f.reason ORDER BY f.last_at DESC))[1],
                    count(*) FILTER (WHERE ",
            recovered!(),
            ")
             FROM failures f WHERE ",
            fits!(),
            " GROUP BY f.kind, f.code, f.permanent, CASE WHEN f.code IS NULL THEN left(split_part(f.reason, ':', 1), 60) END
              ORDER BY count(*) DESC, f.kind, f.code NULLS FIRST, f.permanent, max(f.last_at)
              LIMIT $9"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sql_like);
        let limit = i64::from(limit);
        let parameters: [&(dyn ToSql + Sync); 9] =
            [&kind, &key, &like, &owner, &item, &code, &permanent, &recovered, &limit];
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
