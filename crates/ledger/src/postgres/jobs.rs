//! One-off jobs, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::reader::{Reader, Result};
use super::reports::time;
use crate::chain::{ChainState, Hint};
use crate::decide::{Accept, ForgetJobs, KeepJob, Quarantined};
use crate::enroll::NewChain;
use crate::error::LedgerError;
use crate::jobs::{Jobs, KeptJob, SpawnedJob};

impl Reader {
    pub(super) async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>> {
        let sql = "SELECT number, body, kept_at FROM jobs WHERE number > $1 ORDER BY number LIMIT $2";
        self.rows(sql, &[&after, &i64::from(limit)], kept_job).await
    }

    /// What another worker takes or forgets at this moment is left to that worker.
    pub(super) async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>> {
        // A subquery may be carried out again for each row, and would find other rows each time, beyond the limit.
        let sql = "WITH left_over AS MATERIALIZED (
                       SELECT number FROM jobs WHERE number > $1 AND kept_at <= $2 ORDER BY number LIMIT $3
                       FOR UPDATE SKIP LOCKED),
                   taken AS (
                       UPDATE jobs SET kept_at = ledger_millis() WHERE number IN (SELECT number FROM left_over)
                       RETURNING number, body, kept_at)
                   SELECT number, body, kept_at FROM taken ORDER BY number";
        self.rows(sql, &[&after, &before.as_millis(), &i64::from(limit)], kept_job).await
    }

    pub(super) async fn owner(&self, owner: String) -> Result<ChainState, LedgerError> {
        let rows = self.query("SELECT state FROM owners WHERE owner = $1", &[&owner]).await?;
        Ok(rows.first().map_or(ChainState::Active, |row| ChainState::from_number(row.get(0))))
    }

    pub(super) async fn reserve(
        &self,
        kind: String,
        key: String,
        id: String,
        window: Duration,
    ) -> Result<String, LedgerError> {
        // Where the place is taken, the statement changes nothing, and answers with the job that has the place.
        let take = "WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms)
                    INSERT INTO uniques AS u (kind, key, id, until) SELECT $1, $2, $3, ms + $4 FROM now
                    ON CONFLICT (kind, key) DO UPDATE
                    SET id = CASE WHEN u.until <= (SELECT ms FROM now) THEN excluded.id ELSE u.id END,
                        until = CASE WHEN u.until <= (SELECT ms FROM now) THEN excluded.until ELSE u.until END
                    RETURNING id";
        let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
        let rows = self.query(take, &[&kind, &key, &id, &window]).await?;
        Ok(rows.first().map_or(id, |row| row.get(0)))
    }

    pub(super) async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError> {
        let release = "DELETE FROM uniques WHERE kind = $1 AND key = $2 AND id = $3";
        self.execute(release, &[&kind, &key, &id]).await.map(drop)
    }
}

#[async_trait]
impl Jobs for PostgresLedger {
    async fn accept(
        &self,
        kind: String,
        key: String,
        spawned: Vec<SpawnedJob>,
        chains: Vec<NewChain>,
        failed: Vec<FailedItem>,
    ) -> Result<Vec<Hint>, LedgerError> {
        self.rest.write(Accept { kind, key, spawned, chains, failed }).await
    }

    async fn keep_job(&self, id: String, body: Vec<u8>) -> Result<(), LedgerError> {
        self.rest.write(KeepJob { id, body }).await
    }

    async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        self.reader.kept_jobs(after, limit).await
    }

    async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        self.reader.take_jobs(after, before, limit).await
    }

    async fn forget_jobs(&self, ids: Vec<String>) -> Result<(), LedgerError> {
        self.rest.write(ForgetJobs(ids)).await
    }

    async fn quarantine(
        &self,
        from: String,
        reason: String,
        body: Vec<u8>,
        job: Option<String>,
        at: Time,
    ) -> Result<(), LedgerError> {
        self.rest.write(Quarantined { at, from, reason, body, job }).await
    }

    async fn owner(&self, owner: String) -> Result<ChainState, LedgerError> {
        self.reader.owner(owner).await
    }

    async fn reserve(&self, kind: String, key: String, id: String, window: Duration) -> Result<String, LedgerError> {
        self.reader.reserve(kind, key, id, window).await
    }

    async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError> {
        self.reader.release(kind, key, id).await
    }
}

fn kept_job(row: &Row) -> Result<KeptJob, Error> {
    Ok(KeptJob { number: row.try_get(0)?, body: row.try_get(1)?, kept_at: time(row, 2)? })
}
