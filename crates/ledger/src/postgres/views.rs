//! The verbs that only read, in SQL.

use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::failure::Failure;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::progress::Progress;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::failed::{failure, failure_columns};
use super::group::{hint, small};
use super::reader::Reader;
use crate::census::{Census, QueueCensus};
use crate::chain::{ChainState, Hint, Holder, Kinds};
use crate::error::LedgerError;
use crate::outbox::KeptJob;
use crate::overdue::Overdue;
use crate::view::{AttemptRecord, ChainView, LateChain};

type Result<T> = std::result::Result<T, LedgerError>;

pub(super) fn time(row: &Row, column: usize) -> std::result::Result<Time, Error> {
    row.try_get(column).map(Time::from_millis)
}

/// Who has claimed a row of `chains`, as [`holder`] reads it.
macro_rules! holder_of {
    () => {
        "CASE WHEN chains.holder = 0 THEN 0 WHEN chains.holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END::int8"
    };
}

pub(super) fn holder(row: &Row, column: usize) -> std::result::Result<Holder, Error> {
    row.try_get(column).map(Holder::from_number)
}

pub(super) use holder_of;

/// Whether a row of `chains` that is due waits for the other row of its chain: for the end of its run, or, a manual run,
/// for the end of the cooldown that it has been put off to. Asked only of rows that can have such a row beside them, so
/// that it costs the others nothing.
macro_rules! waits_for_twin {
    ($now:literal) => {
        concat!(
            "(CASE WHEN chains.parent = 0 AND (chains.once OR chains.beside) THEN
                  (chains.once AND chains.expected > ",
            $now,
            ") OR EXISTS (
                  SELECT FROM chains t
                  WHERE t.kind = chains.kind AND t.key = chains.key AND t.once <> chains.once AND t.parent = 0
                    AND (t.holder IN (SELECT session FROM sessions) OR t.batch_open > 0) AND (CASE WHEN t.once THEN t.manual ELSE chains.manual END) & 3 <> 2)
              ELSE false END)"
        )
    };
}
pub(super) use waits_for_twin;

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
             ORDER BY watch_at LIMIT $5"
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

    pub(super) async fn failures(&self, limit: u32) -> Result<Vec<Failure>> {
        let sql = concat!("SELECT ", failure_columns!(), " FROM failures f ORDER BY f.last_at DESC LIMIT $1");
        self.rows(sql, &[&i64::from(limit)], failure).await
    }

    pub(super) async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>> {
        let sql = "SELECT number, body, kept_at FROM jobs WHERE number > $1 ORDER BY number LIMIT $2";
        self.rows(sql, &[&after, &i64::from(limit)], kept_job).await
    }

    /// What another worker takes or forgets at this moment is left to that worker.
    pub(super) async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>> {
        let sql = "WITH taken AS (
                       UPDATE jobs SET kept_at = ledger_millis() WHERE number IN (
                           SELECT number FROM jobs WHERE number > $1 AND kept_at <= $2 ORDER BY number LIMIT $3
                           FOR UPDATE SKIP LOCKED)
                       RETURNING number, body, kept_at)
                   SELECT number, body, kept_at FROM taken ORDER BY number";
        self.rows(sql, &[&after, &before.as_millis(), &i64::from(limit)], kept_job).await
    }

    pub(super) async fn chains(&self, kind: String, key: String) -> Result<Vec<ChainView>> {
        let sql = concat!(
            "SELECT epoch, kind, key, queue, tick, attempt, due, parent, state, payload, nominal, ",
            holder_of!(),
            ", fence, sent, once, owner, schedule, carry, last_start, last_finish, batch_open, batch_total, looks,
               watch_at, depth, priority, started_tick
             FROM chains WHERE kind = $1 AND key = $2 AND parent = 0 ORDER BY once"
        );
        self.rows(sql, &[&kind, &key], chain).await
    }

    pub(super) async fn late(&self, before: Time, now: Time, limit: u32) -> Result<Vec<LateChain>> {
        let sql = concat!(
            "SELECT epoch, kind, key, queue, tick, attempt, due, parent, state, sent, looks, watch_at, ",
            "CASE WHEN chains.holder = 0 THEN 0
                  WHEN chains.holder IN (SELECT session FROM sessions WHERE beat > $2::int8 - 40000) THEN 1
                  ELSE 2 END::int8",
            ", (SELECT worker FROM attempts WHERE attempts.fence = chains.fence),
             (SELECT reason FROM attempts WHERE attempts.fence = chains.fence AND verdict = 'lost'), priority
             FROM chains
             WHERE state = 3 OR (state = 0 AND due < $1 AND holder NOT IN (SELECT session FROM sessions WHERE beat > $2::int8 - 40000) AND batch_open = 0 AND NOT ",
            waits_for_twin!("$2"),
            ") ORDER BY due LIMIT $3"
        );
        let late = |row: &Row| {
            Ok(LateChain {
                hint: hint(row)?,
                state: ChainState::from_number(row.try_get(8)?),
                sent: row.try_get(9)?,
                looks: small(row.try_get(10)?),
                watch_at: time(row, 11)?,
                holder: holder(row, 12)?,
                worker: row.try_get(13)?,
                reason: row.try_get(14)?,
            })
        };
        self.rows(sql, &[&before.as_millis(), &now.as_millis(), &i64::from(limit)], late).await
    }

    pub(super) async fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>> {
        let sql = "SELECT fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason,
                          overlapped, misfired, progress
                   FROM attempts
                   WHERE fence > $1 ORDER BY fence LIMIT $2";
        self.rows(sql, &[&after.get(), &i64::from(limit)], attempt).await
    }

    pub(super) async fn topology(&self) -> Result<Option<String>> {
        let sql = "SELECT value FROM meta WHERE name = 'topology'";
        Ok(self.rows(sql, &[], |row| row.try_get(0)).await?.pop())
    }

    pub(super) async fn census(&self, now: Time, slack: Duration) -> Result<Census> {
        let queues = concat!(
            "SELECT queue, count(*) FILTER (WHERE batch_open = 0 AND holder IN (SELECT session FROM sessions WHERE beat > $1::int8 - 40000)),
                             count(*) FILTER (WHERE batch_open = 0 AND holder NOT IN (SELECT session FROM sessions WHERE beat > $1::int8 - 40000) AND due > $1),
                             count(*) FILTER (WHERE batch_open = 0 AND holder NOT IN (SELECT session FROM sessions WHERE beat > $1::int8 - 40000) AND due <= $1),
                             count(*) FILTER (WHERE batch_open = 0 AND holder NOT IN (SELECT session FROM sessions WHERE beat > $1::int8 - 40000) AND due <= $2 AND NOT ",
            waits_for_twin!("$1"),
            "),
                             count(*) FILTER (WHERE batch_open = 0 AND holder NOT IN (SELECT session FROM sessions WHERE beat > $1::int8 - 40000) AND NOT sent),
                             count(*) FILTER (WHERE batch_open > 0)
                      FROM chains WHERE state = 0 GROUP BY queue ORDER BY queue"
        );
        let queue = |row: &Row| {
            Ok(QueueCensus {
                queue: row.try_get(0)?,
                running: row.try_get(1)?,
                sleeping: row.try_get(2)?,
                due: row.try_get(3)?,
                overdue: row.try_get(4)?,
                overslept: 0,
                unsent: row.try_get(5)?,
                waiting: row.try_get(6)?,
            })
        };
        let (now, overdue_before) = (now.as_millis(), (now - slack).as_millis());
        let queues = self.rows(queues, &[&now, &overdue_before], queue).await?;
        let counts = concat!(
            "SELECT (SELECT count(*) FROM chains WHERE state = 1),
                             (SELECT count(*) FROM chains WHERE state = 2 AND NOT once),
                             (SELECT count(*) FROM chains WHERE state = 3),
                             (SELECT count(*) FROM failures),
                             (SELECT count(*) FROM quarantine),
                             (SELECT count(*) FROM jobs),
                             (SELECT min(due) FROM chains WHERE state = 0 AND due <= $1 AND holder NOT IN (SELECT session FROM sessions WHERE beat > $1::int8 - 40000)
                                                             AND batch_open = 0 AND NOT ",
            waits_for_twin!("$1"),
            "),
                             (SELECT count(*) FROM failures f
                              JOIN chains c ON c.kind = f.kind AND c.key = f.key AND NOT c.once AND c.parent = 0
                              WHERE f.permanent AND f.item = '' AND c.state = 2 AND c.last_finish = f.last_at)"
        );
        let count = |row: &Row| {
            Ok(Census {
                queues: Vec::new(),
                paused: row.try_get(0)?,
                retired: row.try_get(1)?,
                quarantined: row.try_get(2)?,
                failures: row.try_get(3)?,
                quarantined_messages: row.try_get(4)?,
                kept_jobs: row.try_get(5)?,
                oldest_due: row.try_get::<_, Option<i64>>(6)?.map(Time::from_millis),
                unavailable: row.try_get(7)?,
            })
        };
        let counted = self.rows(counts, &[&now], count).await?.pop().unwrap_or_default();
        Ok(Census { queues, ..counted })
    }

    pub(super) async fn rows<T>(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
        read: impl Fn(&Row) -> std::result::Result<T, Error>,
    ) -> Result<Vec<T>> {
        let told = |error: Error| LedgerError::Statement(super::connect::words(&error));
        self.query(sql, parameters).await?.iter().map(read).collect::<std::result::Result<_, _>>().map_err(told)
    }
}

fn kept_job(row: &Row) -> std::result::Result<KeptJob, Error> {
    Ok(KeptJob { number: row.try_get(0)?, body: row.try_get(1)?, kept_at: time(row, 2)? })
}

pub(super) fn overdue(row: &Row) -> std::result::Result<Overdue, Error> {
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

fn chain(row: &Row) -> std::result::Result<ChainView, Error> {
    Ok(ChainView {
        hint: hint(row)?,
        state: ChainState::from_number(row.try_get(8)?),
        payload: row.try_get(9)?,
        nominal: time(row, 10)?,
        holder: holder(row, 11)?,
        fence: Fence(row.try_get(12)?),
        sent: row.try_get(13)?,
        once: row.try_get(14)?,
        owner: row.try_get(15)?,
        schedule: row.try_get(16)?,
        carry: row.try_get(17)?,
        last_start: time(row, 18)?,
        last_finish: time(row, 19)?,
        batch: (row.try_get(20)?, row.try_get(21)?),
        looks: small(row.try_get(22)?),
        watch_at: time(row, 23)?,
        depth: small(row.try_get(24)?),
        started_tick: TickNo(row.try_get("started_tick")?),
    })
}

/// In the order fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason, overlapped, misfired,
/// progress.
pub(super) fn attempt(row: &Row) -> std::result::Result<AttemptRecord, Error> {
    Ok(AttemptRecord {
        fence: Fence(row.try_get(0)?),
        epoch: Epoch(row.try_get(1)?),
        tick: TickNo(row.try_get(2)?),
        attempt: small(row.try_get(3)?),
        worker: row.try_get(4)?,
        due: time(row, 5)?,
        started: time(row, 6)?,
        finished: row.try_get::<_, Option<i64>>(7)?.map(Time::from_millis),
        verdict: row.try_get(8)?,
        reason: row.try_get(9)?,
        overlapped: small(row.try_get(10)?),
        misfired: small(row.try_get(11)?),
        progress: row.try_get::<_, Option<String>>(12)?.as_deref().and_then(Progress::read),
    })
}
