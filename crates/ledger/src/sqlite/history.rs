//! What keeps the history within bounds, in SQL.

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence};
use rusqlite::{OptionalExtension, params};

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::claim::ClaimId;
use crate::error::LedgerError;
use crate::history::History;

/// Those of the `?2` oldest attempts that ended before `?1`. Attempts end about in the order of
/// their fences, so only the oldest are looked at. One that has no end a day after it began was cut
/// off, on a chain that no worker has claimed since.
const OLD: &str = "fence IN (SELECT fence FROM attempts ORDER BY fence LIMIT ?2)
                   AND coalesce(finished, started + 86400000) < ?1";

/// Chains that do not tick, and whose holders are gone.
const LEFT: &str = "state <> 0 AND holder <> 0 AND holder NOT IN (SELECT session FROM sessions)";

impl Store {
    pub(super) fn any_left(&self) -> Result<bool> {
        let any = format!(
            "SELECT EXISTS (SELECT 1 FROM chains WHERE {LEFT})
                 OR EXISTS (SELECT 1 FROM hot_chains h CROSS JOIN chains USING (epoch) WHERE {hot})",
            hot = LEFT.replace("holder", "h.holder")
        );
        self.connection.prepare_cached(&any)?.query_row([], |row| row.get(0))
    }

    pub(super) fn end_left(&mut self, now: Time, limit: u32) -> Result<()> {
        self.fold_all_hot()?;
        let left = format!(
            "UPDATE chains SET holder = 0 WHERE epoch IN (SELECT epoch FROM chains WHERE {LEFT} LIMIT ?1)
             RETURNING fence"
        );
        let mut left = self.connection.prepare_cached(&left)?;
        let fences: Vec<Fence> = left.query_map([limit], |row| row.get(0).map(Fence))?.collect::<Result<_>>()?;
        for fence in fences {
            self.connection
                .prepare_cached(
                    "UPDATE attempts SET finished = ?2, verdict = 'lost' WHERE fence = ?1 AND finished IS NULL",
                )?
                .execute(params![fence.get(), now.as_millis()])?;
        }
        Ok(())
    }

    /// Mostly even the oldest attempt that has ended is young, and then there is nothing to delete.
    fn any_old(&self, before: Time) -> Result<bool> {
        let oldest = "SELECT coalesce(finished, started + 86400000) < ?1 FROM attempts
                      WHERE finished IS NOT NULL OR started + 86400000 < ?1 ORDER BY fence LIMIT 1";
        let oldest: Option<bool> =
            self.connection.prepare_cached(oldest)?.query_row([before.as_millis()], |row| row.get(0)).optional()?;
        Ok(oldest == Some(true))
    }

    pub(super) fn prune(&mut self, before: Time, limit: u32) -> Result<usize> {
        self.forget_places(before)?;
        if !self.any_old(before)? {
            return Ok(0);
        }
        let delete = format!("DELETE FROM attempts WHERE {OLD}");
        self.connection.prepare_cached(&delete)?.execute(params![before.as_millis(), limit])
    }

    /// Places of unique jobs, and of retries, that are over say nothing any more.
    fn forget_places(&mut self, before: Time) -> Result<()> {
        let delete = "DELETE FROM uniques WHERE until <= ?1";
        self.connection.prepare_cached(delete)?.execute([before.as_millis()])?;
        // Of jobs that have never come again.
        self.connection.prepare_cached("DELETE FROM in_hand WHERE at <= ?1")?.execute([before.as_millis()])?;
        Ok(())
    }

    fn archive(&mut self, before: Time, limit: u32) -> Result<usize> {
        self.forget_places(before)?;
        if !self.any_old(before)? {
            return Ok(0);
        }
        // A chain that has begun anew has another epoch, and then the name is not known any more.
        let copy = format!(
            "INSERT OR IGNORE INTO attempts_archive
                 (fence, epoch, kind, key, tick, attempt, worker, due, started, finished, verdict, reason, overlapped,
                  misfired, excluded, progress)
             SELECT fence, epoch, (SELECT kind FROM chains WHERE chains.epoch = attempts.epoch),
                    (SELECT key FROM chains WHERE chains.epoch = attempts.epoch),
                    tick, attempt, worker, due, started, finished, verdict, reason, overlapped, misfired,
                    excluded, progress
             FROM attempts WHERE {OLD}"
        );
        self.connection.prepare_cached(&copy)?.execute(params![before.as_millis(), limit])?;
        let delete = format!("DELETE FROM attempts WHERE {OLD}");
        self.connection.prepare_cached(&delete)?.execute(params![before.as_millis(), limit])
    }

    fn left_with(&self, session: i64, limit: u32) -> Result<Vec<ClaimId>> {
        // `holder <> 0` is implied, and said for the partial index `chains_left_held`, which has it as a condition.
        let left = "SELECT epoch, fence FROM chains WHERE state <> 0 AND holder <> 0 AND holder = ?1
                    UNION ALL SELECT epoch, h.fence FROM hot_chains h CROSS JOIN chains USING (epoch)
                    WHERE state <> 0 AND h.holder = ?1
                    LIMIT ?2";
        let claim = |row: &rusqlite::Row| Ok(ClaimId { epoch: Epoch(row.get(0)?), fence: Fence(row.get(1)?) });
        self.connection.prepare_cached(left)?.query_map(params![session, limit], claim)?.collect()
    }

    fn expire(&mut self, before: Time, limit: u32) -> Result<usize> {
        self.connection
            .prepare_cached(
                "DELETE FROM attempts_archive
                 WHERE fence IN (SELECT fence FROM attempts_archive ORDER BY fence LIMIT ?2)
                 AND coalesce(finished, started) < ?1",
            )?
            .execute(params![before.as_millis(), limit])
    }
}

#[async_trait]
impl History for SqliteLedger {
    async fn end_left(&self, limit: u32) -> Result<(), LedgerError> {
        let clock = self.clock.clone();
        // Every sweep asks, and mostly there is none: then nothing is written, and no other verb waits for the lock.
        if !self.read(Store::any_left).await? {
            return Ok(());
        }
        self.writer.write(move |store| store.end_left(clock.now(), limit)).await
    }

    async fn left_with(&self, session: i64, limit: u32) -> Result<Vec<ClaimId>, LedgerError> {
        self.read(move |store| store.left_with(session, limit)).await
    }

    async fn archive(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.writer.write(move |store| store.archive(before, limit)).await
    }

    async fn expire(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.writer.write(move |store| store.expire(before, limit)).await
    }

    async fn prune(&self, before: Time, limit: u32) -> Result<usize, LedgerError> {
        self.writer.write(move |store| store.prune(before, limit)).await
    }
}
