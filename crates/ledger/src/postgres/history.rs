//! What keeps the history within bounds, in SQL: single statements, each a transaction by itself.

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence};
use tokio_postgres::Row;

use super::PostgresLedger;
use super::reader::Reader;
use crate::claim::ClaimId;
use crate::error::LedgerError;
use crate::history::History;

/// Those of the `$2` oldest attempts that ended before `$1`. Attempts end about in the order of their fences, so only
/// the oldest are looked at; mostly even the oldest attempt that has ended is young, and then there is nothing to
/// delete. One that has no end a day after it began was cut off, on a chain that no worker has claimed since.
macro_rules! delete_old {
    () => {
        "DELETE FROM attempts WHERE fence IN (SELECT fence FROM attempts ORDER BY fence LIMIT $2)
         AND coalesce(finished, started + 86400000) < $1
         AND (SELECT coalesce(finished, started + 86400000) FROM attempts
              WHERE finished IS NOT NULL OR started + 86400000 < $1 ORDER BY fence LIMIT 1) < $1"
    };
}

impl Reader {
    pub(super) async fn prune(&self, before: Time, limit: u32) -> Result<u64, LedgerError> {
        self.forget_places(before).await?;
        self.execute(delete_old!(), &[&before.as_millis(), &i64::from(limit)]).await
    }

    /// Places of unique jobs, and of retries, that are over say nothing any more.
    async fn forget_places(&self, before: Time) -> Result<(), LedgerError> {
        let delete = "DELETE FROM uniques WHERE until <= $1";
        self.execute(delete, &[&before.as_millis()]).await?;
        // Of jobs that have never come again.
        self.execute("DELETE FROM in_hand WHERE at <= $1", &[&before.as_millis()]).await.map(drop)
    }
}

#[async_trait]
impl History for PostgresLedger {
    async fn end_left(&self, limit: u32) -> Result<(), LedgerError> {
        let left = "WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms),
                         held AS MATERIALIZED (SELECT epoch, fence FROM chains
                              WHERE left_held AND holder NOT IN (SELECT session FROM sessions)
                              ORDER BY epoch LIMIT $1 FOR UPDATE),
                         free AS (UPDATE chains c SET holder = 0 FROM held WHERE c.epoch = held.epoch)
                    UPDATE attempts a SET finished = now.ms, verdict = 'lost'
                    FROM held, now WHERE a.fence = held.fence AND a.finished IS NULL";
        self.reader.execute(left, &[&i64::from(limit)]).await.map(drop)
    }

    async fn left_with(&self, session: i64, limit: u32) -> Result<Vec<ClaimId>, LedgerError> {
        let left = "SELECT epoch, fence FROM chains WHERE left_held AND holder = $1 LIMIT $2";
        let claim = |row: &Row| Ok(ClaimId { epoch: Epoch(row.try_get(0)?), fence: Fence(row.try_get(1)?) });
        self.reader.rows(left, &[&session, &i64::from(limit)], claim).await
    }

    async fn archive(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.reader.forget_places(before).await?;
        // A chain that has begun anew has another epoch, and then the name is not known any more.
        let sql = concat!(
            "WITH old AS (",
            delete_old!(),
            " RETURNING *)
            INSERT INTO attempts_archive
                (fence, epoch, kind, key, tick, attempt, worker, due, started, finished, verdict, reason, overlapped,
                 misfired, excluded, progress)
            SELECT old.fence, old.epoch, c.kind, c.key, old.tick, old.attempt, old.worker, old.due, old.started,
                   old.finished, old.verdict, old.reason, old.overlapped, old.misfired, old.excluded,
                   old.progress
            FROM old LEFT JOIN chains c ON c.epoch = old.epoch
            ON CONFLICT (fence) DO NOTHING"
        );
        self.reader.execute(sql, &[&before.as_millis(), &i64::from(limit)]).await.map(number)
    }

    async fn expire(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        let sql = "DELETE FROM attempts_archive
                   WHERE fence IN (SELECT fence FROM attempts_archive ORDER BY fence LIMIT $2)
                   AND coalesce(finished, started) < $1";
        self.reader.execute(sql, &[&before.as_millis(), &i64::from(limit)]).await.map(number)
    }

    async fn prune(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.reader.prune(before, limit).await.map(|deleted| usize::try_from(deleted).unwrap_or(usize::MAX))
    }
}

fn number(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX)
}
