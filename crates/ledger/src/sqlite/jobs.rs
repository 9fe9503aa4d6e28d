//! One-off jobs, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteLedger;
use super::store::{Result, Store, time};
use crate::chain::{ChainState, Hint};
use crate::decide::{Accept, ForgetJobs, KeepJob, Quarantined};
use crate::enroll::NewChain;
use crate::error::LedgerError;
use crate::jobs::{Jobs, KeptJob, SpawnedJob};

impl Store {
    pub fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>> {
        let sql = "SELECT number, body, kept_at FROM jobs WHERE number > ?1 ORDER BY number LIMIT ?2";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![after, limit], kept_job)?;
        rows.collect()
    }

    pub fn take_jobs(&mut self, after: i64, before: Time, now: Time, limit: u32) -> Result<Vec<KeptJob>> {
        let sql = "UPDATE jobs SET kept_at = ?3 WHERE number IN
                       (SELECT number FROM jobs WHERE number > ?1 AND kept_at <= ?2 ORDER BY number LIMIT ?4)
                   RETURNING number, body, kept_at";
        let mut take = self.connection.prepare_cached(sql)?;
        let taken = take.query_map(params![after, before.as_millis(), now.as_millis(), limit], kept_job)?;
        let mut taken: Vec<KeptJob> = taken.collect::<Result<_>>()?;
        taken.sort_unstable_by_key(|job| job.number);
        Ok(taken)
    }

    pub fn owner(&self, owner: &str) -> Result<ChainState> {
        let found = self
            .connection
            .prepare_cached("SELECT state FROM owners WHERE owner = ?1")?
            .query_row([owner], |row| row.get(0).map(ChainState::from_number))
            .optional()?;
        Ok(found.unwrap_or(ChainState::Active))
    }

    pub fn reserve(&mut self, kind: &str, key: &str, id: &str, now: Time, window: Duration) -> Result<String> {
        let take = "INSERT INTO uniques (kind, key, id, until) VALUES (?1, ?2, ?3, ?5)
                    ON CONFLICT (kind, key) DO UPDATE SET id = excluded.id, until = excluded.until WHERE until <= ?4";
        let (now, until) = (now.as_millis(), (now + window).as_millis());
        self.connection.prepare_cached(take)?.execute(params![kind, key, id, now, until])?;
        let holder = "SELECT id FROM uniques WHERE kind = ?1 AND key = ?2";
        self.connection.prepare_cached(holder)?.query_row([kind, key], |row| row.get(0))
    }

    pub fn release(&mut self, kind: &str, key: &str, id: &str) -> Result<()> {
        let release = "DELETE FROM uniques WHERE kind = ?1 AND key = ?2 AND id = ?3";
        self.connection.prepare_cached(release)?.execute([kind, key, id])?;
        Ok(())
    }
}

#[async_trait]
impl Jobs for SqliteLedger {
    async fn accept(
        &self,
        kind: String,
        key: String,
        spawned: Vec<SpawnedJob>,
        chains: Vec<NewChain>,
        failed: Vec<FailedItem>,
    ) -> Result<Vec<Hint>, LedgerError> {
        let (now, accept) = (self.clock.now(), Accept { kind, key, spawned, chains, failed });
        self.writer.write(move |store| store.carry_out(&accept, now)).await
    }

    async fn keep_job(&self, id: String, body: Vec<u8>) -> Result<(), LedgerError> {
        let (now, keep) = (self.clock.now(), KeepJob { id, body });
        self.writer.write(move |store| store.carry_out(&keep, now)).await
    }

    async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        self.read(move |store| store.kept_jobs(after, limit)).await
    }

    async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        let now = self.clock.now();
        self.writer.write(move |store| store.take_jobs(after, before, now, limit)).await
    }

    async fn forget_jobs(&self, ids: Vec<String>) -> Result<(), LedgerError> {
        let (now, forget) = (self.clock.now(), ForgetJobs(ids));
        self.writer.write(move |store| store.carry_out(&forget, now)).await
    }

    async fn quarantine(
        &self,
        from: String,
        reason: String,
        body: Vec<u8>,
        job: Option<String>,
        at: Time,
    ) -> Result<(), LedgerError> {
        let quarantined = Quarantined { at, from, reason, body, job };
        self.writer.write(move |store| store.carry_out(&quarantined, at)).await
    }

    async fn owner(&self, owner: String) -> Result<ChainState, LedgerError> {
        self.read(move |store| store.owner(&owner)).await
    }

    async fn reserve(&self, kind: String, key: String, id: String, window: Duration) -> Result<String, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.reserve(&kind, &key, &id, clock.now(), window)).await
    }

    async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.release(&kind, &key, &id)).await
    }
}

pub(super) fn kept_job(row: &Row<'_>) -> Result<KeptJob> {
    Ok(KeptJob { number: row.get(0)?, body: row.get(1)?, kept_at: time(row, 2)? })
}
