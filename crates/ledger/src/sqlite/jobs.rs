//! One-off jobs, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::failure::FailedItem;
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteLedger;
use super::store::{Result, Store, time};
use crate::chain::{ChainState, Hint};
use crate::enroll::{Enrolled, NewChain};
use crate::error::LedgerError;
use crate::jobs::{Jobs, KeptJob, SpawnedJob};

impl Store {
    /// Keeps what a run asks for; answers the first messages of the chains among it that are new.
    pub fn accept(
        &mut self,
        (kind, key): (&str, &str),
        spawned: &[SpawnedJob],
        chains: &[NewChain],
        failed: &[FailedItem],
        now: Time,
    ) -> Result<Vec<Hint>> {
        for job in spawned {
            self.connection
                .prepare_cached("INSERT INTO jobs (id, body, kept_at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING")?
                .execute(params![job.id, job.body, now.as_millis()])?;
        }
        failed.iter().try_for_each(|part| self.record_failure(kind, key, part, now))?;
        let begun = self.enroll(chains, now)?.into_iter().filter_map(|enrolled| match enrolled {
            Enrolled::Created(hint) => Some(hint),
            _ => None,
        });
        Ok(begun.collect())
    }

    pub fn keep_job(&mut self, id: &str, body: &[u8], now: Time) -> Result<()> {
        self.connection
            .prepare_cached(
                "INSERT INTO jobs (id, body, kept_at) VALUES (?1, ?2, ?3)
                 ON CONFLICT (id) DO UPDATE SET body = excluded.body, kept_at = excluded.kept_at",
            )?
            .execute(params![id, body, now.as_millis()])?;
        Ok(())
    }

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

    pub fn forget_jobs(&mut self, ids: &[String]) -> Result<()> {
        let mut delete = self.connection.prepare_cached("DELETE FROM jobs WHERE id = ?1")?;
        ids.iter().try_for_each(|id| delete.execute([id]).map(drop))
    }

    pub fn quarantine(&mut self, from: &str, reason: &str, body: &[u8], jobs: &[String], at: Time) -> Result<()> {
        self.connection
            .prepare_cached("INSERT INTO quarantine (at, source, reason, body) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![at.as_millis(), from, reason, body])?;
        self.forget_jobs(jobs)
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
        let now = self.clock.now();
        self.writer.write(move |store| store.accept((&kind, &key), &spawned, &chains, &failed, now)).await
    }

    async fn keep_job(&self, id: String, body: Vec<u8>) -> Result<(), LedgerError> {
        let now = self.clock.now();
        self.writer.write(move |store| store.keep_job(&id, &body, now)).await
    }

    async fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        self.read(move |store| store.kept_jobs(after, limit)).await
    }

    async fn take_jobs(&self, after: i64, before: Time, limit: u32) -> Result<Vec<KeptJob>, LedgerError> {
        let now = self.clock.now();
        self.writer.write(move |store| store.take_jobs(after, before, now, limit)).await
    }

    async fn forget_jobs(&self, ids: Vec<String>) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.forget_jobs(&ids)).await
    }

    async fn quarantine(
        &self,
        from: String,
        reason: String,
        body: Vec<u8>,
        job: Option<String>,
        at: Time,
    ) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.quarantine(&from, &reason, &body, job.as_slice(), at)).await
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
