//! What has failed, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::{FailedItem, Failure, ItemEnd, REFUSED};
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteLedger;
use super::store::{Result, Store, time};
use crate::decide::{Accept, RecordFailure};
use crate::error::LedgerError;
use crate::failed::{DueItem, FailureCursor, FailureFilter, Failures, Hold, Plan, PlannedItem};
use crate::look::sqlite_glob;

/// Whether the whole of the entity of a failure `f` has worked since: of its chain's last two attempts, one of which may
/// run, one was done later.
macro_rules! recovered {
    () => {
        "f.item = '' AND EXISTS (
             SELECT 1 FROM chains c LEFT JOIN hot_chains h ON h.epoch = c.epoch JOIN attempts a
                 ON a.fence IN (coalesce(h.fence, c.fence),
                                (SELECT p.previous FROM attempts p WHERE p.fence = coalesce(h.fence, c.fence)))
             WHERE c.kind = f.kind AND c.key = f.key AND c.once = 0 AND c.parent = 0
               AND a.epoch = c.epoch AND a.verdict = 'done' AND a.finished > f.last_at)"
    };
}

pub(super) const RECOVERED: &str = recovered!();

/// The columns that [`failure`] reads.
pub(super) const FAILURE: &str = concat!(
    "f.kind, f.key, f.item, f.reason, f.code, f.times, f.attempts, f.first_at, f.last_at, f.next_retry_at, f.permanent,
     f.fed, (",
    recovered!(),
    ")"
);
/// How many columns that are.
const AFTER_FAILURE: usize = 13;

/// The failures `f` that a [`FailureFilter`] means; its parameters are 1 to 8.
pub(super) const FITS: &str = concat!(
    "(?1 IS NULL OR f.kind = ?1) AND (?2 IS NULL OR f.key = ?2) AND (?3 IS NULL OR f.key GLOB ?3)
    AND (?4 IS NULL OR EXISTS (SELECT 1 FROM chains c WHERE c.kind = f.kind AND c.key = f.key AND c.owner = ?4
                                                        AND c.parent = 0))
    AND (?5 IS NULL OR f.item = ?5) AND (?6 IS NULL OR f.code = ?6) AND (?7 IS NULL OR f.permanent = ?7)
    AND (?8 IS NULL OR ?8 = (",
    recovered!(),
    "))"
);

pub(super) fn failure(row: &Row<'_>) -> Result<Failure> {
    Ok(Failure {
        kind: row.get(0)?,
        key: row.get(1)?,
        item: row.get(2)?,
        reason: row.get(3)?,
        code: row.get(4)?,
        times: row.get(5)?,
        attempts: row.get(6)?,
        first_at: time(row, 7)?,
        last_at: time(row, 8)?,
        next_retry_at: row.get::<_, Option<i64>>(9)?.map(Time::from_millis),
        permanent: row.get(10)?,
        fed: row.get(11)?,
        recovered: row.get(12)?,
    })
}

impl Store {
    fn failed(&self, filter: &FailureFilter, after: Option<FailureCursor>, limit: u32) -> Result<Vec<Failure>> {
        let sql = format!(
            "SELECT {FAILURE} FROM failures f WHERE {FITS} AND (f.kind, f.key, f.item) > (?9, ?10, ?11)
             ORDER BY f.kind, f.key, f.item LIMIT ?12"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        // Nothing is before a kind without a name, and the whole of an entity has no item.
        let (after_kind, after_key, after_item) = after.unwrap_or_default();
        let like = like.as_deref().map(sqlite_glob);
        let mut select = self.connection.prepare_cached(&sql)?;
        let parameters =
            params![kind, key, like, owner, item, code, permanent, recovered, after_kind, after_key, after_item, limit];
        select.query_map(parameters, failure)?.collect()
    }

    fn count_failed(&self, filter: &FailureFilter) -> Result<(u64, u64)> {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE f.item <> ''), count(*) FILTER (WHERE f.item = '') FROM failures f WHERE {FITS}"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sqlite_glob);
        let parameters = params![kind, key, like, owner, item, code, permanent, recovered];
        let count = |row: &Row<'_>, column| row.get::<_, i64>(column).map(i64::unsigned_abs);
        self.connection.prepare_cached(&sql)?.query_row(parameters, |row| Ok((count(row, 0)?, count(row, 1)?)))
    }

    fn retry_failed(&mut self, filter: &FailureFilter, now: Time) -> Result<u64> {
        let sql = format!(
            "UPDATE failures AS f SET next_retry_at = ?9, attempts = 0, permanent = 0
             WHERE {FITS} AND f.item <> '' AND f.code IS NOT '{REFUSED}' AND f.held_until <= ?9"
        );
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sqlite_glob);
        let parameters = params![kind, key, like, owner, item, code, permanent, recovered, now.as_millis()];
        self.connection.prepare_cached(&sql)?.execute(parameters).map(|changed| changed as u64)
    }

    fn drop_failed(&mut self, filter: &FailureFilter) -> Result<u64> {
        let sql = format!("DELETE FROM failures AS f WHERE {FITS}");
        let FailureFilter { kind, key, like, owner, item, code, permanent, recovered } = filter;
        let like = like.as_deref().map(sqlite_glob);
        let parameters = params![kind, key, like, owner, item, code, permanent, recovered];
        self.connection.prepare_cached(&sql)?.execute(parameters).map(|changed| changed as u64)
    }

    fn due_items(&self, kind: &str, now: Time, limit: u32) -> Result<Vec<DueItem>> {
        let sql = format!(
            "SELECT {FAILURE}, c.queue, c.payload, c.owner, c.depth FROM failures f
             JOIN chains c ON c.kind = f.kind AND c.key = f.key AND c.once = 0 AND c.parent = 0
             WHERE f.kind = ?1 AND f.next_retry_at <= ?2 AND f.item <> '' AND NOT f.permanent AND f.held_until <= ?2
               AND c.state = 0
             ORDER BY f.next_retry_at LIMIT ?3"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![kind, now.as_millis(), limit], |row| {
            Ok(DueItem {
                failure: failure(row)?,
                queue: row.get(AFTER_FAILURE)?,
                payload: row.get(AFTER_FAILURE + 1)?,
                owner: row.get(AFTER_FAILURE + 2)?,
                depth: row.get(AFTER_FAILURE + 3)?,
            })
        })?;
        rows.collect()
    }

    fn plan_items(&mut self, planned: &[PlannedItem], now: Time) -> Result<Vec<bool>> {
        planned.iter().map(|item| self.plan_item(item, now)).collect()
    }

    fn plan_item(&mut self, planned: &PlannedItem, now: Time) -> Result<bool> {
        let PlannedItem { kind, key, item, seen, plan } = planned;
        let (next, job) = match plan {
            Plan::Wait(until) => (Some(until.as_millis()), None),
            Plan::GiveUp => (None, None),
            Plan::Feed { job, until } => (Some(until.as_millis()), Some(job)),
        };
        let update = "UPDATE failures SET next_retry_at = ?5, permanent = ?5 IS NULL, fed = coalesce(?6, fed)
                      WHERE kind = ?1 AND key = ?2 AND item = ?3 AND next_retry_at = ?4 AND NOT permanent";
        let parameters = params![kind, key, item, seen.as_millis(), next, job.map(|job| &job.id)];
        if self.connection.prepare_cached(update)?.execute(parameters)? == 0 {
            return Ok(false);
        }
        if let Some(job) = job {
            let (chains, failed) = (Vec::new(), Vec::new());
            let (kind, key, spawned) = (kind.clone(), key.clone(), vec![job.clone()]);
            self.carry_out(&Accept { kind, key, spawned, chains, failed }, now)?;
        }
        Ok(true)
    }

    fn hold_item(&mut self, id: &str, now: Time, length: Duration) -> Result<Hold> {
        let until = (now + length).as_millis();
        let hold = "UPDATE failures SET held_until = ?3, next_retry_at = ?3
                    WHERE fed = ?1 AND held_until <= ?2 AND NOT permanent";
        let taken = self.connection.prepare_cached(hold)?.execute(params![id, now.as_millis(), until])? == 1;
        let select = format!("SELECT {FAILURE}, f.held_until FROM failures f WHERE f.fed = ?1 AND NOT f.permanent");
        let found = self
            .connection
            .prepare_cached(&select)?
            .query_row([id], |row| Ok((failure(row)?, time(row, AFTER_FAILURE)?)))
            .optional()?;
        Ok(match found {
            None => Hold::Gone,
            Some((failure, _)) if taken => Hold::Taken(Box::new(failure)),
            Some((_, until)) => Hold::Held(until),
        })
    }

    fn put_off_item(&mut self, id: &str, until: Time) -> Result<()> {
        let update = "UPDATE failures SET held_until = 0, next_retry_at = ?2 WHERE fed = ?1 AND NOT permanent";
        self.connection.prepare_cached(update)?.execute(params![id, until.as_millis()])?;
        Ok(())
    }

    fn end_item(&mut self, id: &str, end: &ItemEnd, at: Time) -> Result<()> {
        let FailedItem { reason, code, next_retry_at, permanent, .. } = match end {
            ItemEnd::Worked => {
                self.connection.prepare_cached("DELETE FROM failures WHERE fed = ?1")?.execute([id])?;
                return Ok(());
            }
            ItemEnd::Failed(failed) => failed,
        };
        let next = next_retry_at.map(Time::as_millis);
        let update = "UPDATE failures
                      SET reason = ?2, code = ?3, times = times + 1, attempts = attempts + 1, last_at = ?4,
                          permanent = ?6 OR permanent, next_retry_at = iif(permanent, NULL, ?5), fed = NULL,
                          held_until = 0
                      WHERE fed = ?1";
        self.connection.prepare_cached(update)?.execute(params![id, reason, code, at.as_millis(), next, permanent])?;
        Ok(())
    }

    pub fn failures(&self, limit: u32) -> Result<Vec<Failure>> {
        let sql = format!(
            "SELECT {FAILURE} FROM failures f ORDER BY {RECOVERED}, f.last_at DESC, f.kind, f.key, f.item
             LIMIT ?1"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map([limit], failure)?;
        rows.collect()
    }

    pub fn failures_of(&self, kind: &str, key: &str) -> Result<Vec<Failure>> {
        let sql = format!(
            "SELECT {FAILURE} FROM failures f WHERE f.kind = ?1 AND f.key = ?2 ORDER BY f.last_at DESC, f.item"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map([kind, key], failure)?;
        rows.collect()
    }
}

#[async_trait]
impl Failures for SqliteLedger {
    async fn failed(
        &self,
        filter: FailureFilter,
        after: Option<FailureCursor>,
        limit: u32,
    ) -> Result<Vec<Failure>, LedgerError> {
        self.read(move |store| store.failed(&filter, after, limit)).await
    }

    async fn count_failed(&self, filter: FailureFilter) -> Result<(u64, u64), LedgerError> {
        self.read(move |store| store.count_failed(&filter)).await
    }

    async fn retry_failed(&self, filter: FailureFilter) -> Result<u64, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.retry_failed(&filter, clock.now())).await
    }

    async fn drop_failed(&self, filter: FailureFilter) -> Result<u64, LedgerError> {
        self.writer.write(move |store| store.drop_failed(&filter)).await
    }

    async fn due_items(&self, kind: String, limit: u32) -> Result<Vec<DueItem>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.due_items(&kind, now, limit)).await
    }

    async fn plan_items(&self, planned: Vec<PlannedItem>) -> Result<Vec<bool>, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.plan_items(&planned, clock.now())).await
    }

    async fn hold_item(&self, id: String, length: Duration) -> Result<Hold, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.hold_item(&id, clock.now(), length)).await
    }

    async fn put_off_item(&self, id: String, until: Time) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.put_off_item(&id, until)).await
    }

    async fn end_item(&self, id: String, end: ItemEnd, at: Time) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.end_item(&id, &end, at)).await
    }

    async fn record_failure(&self, kind: String, key: String, failed: FailedItem, at: Time) -> Result<(), LedgerError> {
        let record = RecordFailure { kind, key, failed, at };
        self.writer.write(move |store| store.carry_out(&record, at)).await
    }

    async fn failures(&self, limit: u32) -> Result<Vec<Failure>, LedgerError> {
        self.read(move |store| store.failures(limit)).await
    }

    async fn failures_of(&self, kind: String, key: String) -> Result<Vec<Failure>, LedgerError> {
        self.read(move |store| store.failures_of(&kind, &key)).await
    }
}
