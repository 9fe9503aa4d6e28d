//! One-off jobs that run and report, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::deaths::Hands;
use roundelay_model::ids::Fence;
use roundelay_model::progress::Progress;
use rusqlite::params;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::error::LedgerError;
use crate::running::{Running, RunningJob};

impl Store {
    fn note_running(
        &mut self,
        worker: &str,
        jobs: &[RunningJob],
        ended: &[String],
        now: Time,
        hold: Duration,
    ) -> Result<()> {
        self.connection.prepare_cached("DELETE FROM running WHERE until <= ?1")?.execute([now.as_millis()])?;
        let mut delete = self.connection.prepare_cached("DELETE FROM running WHERE id = ?1 AND worker = ?2")?;
        for id in ended {
            delete.execute([id, worker])?;
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT OR REPLACE INTO running (id, worker, kind, key, queue, attempt, started, progress, until)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        let until = (now + hold).as_millis();
        for job in jobs {
            let RunningJob { id, kind, key, queue, attempt, started, progress, .. } = job;
            let (started, progress) = (started.as_millis(), progress.text());
            insert.execute(params![id, worker, kind, key, queue, attempt, started, progress, until])?;
        }
        Ok(())
    }

    fn hands(&self, job: &str, session: i64) -> Result<Hands> {
        let sql = "SELECT count(*) FILTER (WHERE session NOT IN (SELECT session FROM sessions)), count(*) FROM in_hand
                   WHERE job = ?1 AND session <> ?2";
        self.connection.prepare_cached(sql)?.query_row(params![job, session], |row| {
            let (over, all): (u32, u32) = (row.get(0)?, row.get(1)?);
            Ok(Hands { over, open: all - over })
        })
    }

    fn take_in_hand(&mut self, job: &str, session: i64, now: Time) -> Result<()> {
        let sql = "INSERT OR IGNORE INTO in_hand (job, session, at) VALUES (?1, ?2, ?3)";
        self.connection.prepare_cached(sql)?.execute(params![job, session, now.as_millis()]).map(drop)
    }

    fn out_of_hand(&mut self, job: &str) -> Result<()> {
        self.connection.prepare_cached("DELETE FROM in_hand WHERE job = ?1")?.execute([job]).map(drop)
    }

    fn running(&self, kind: &str, key: &str, now: Time) -> Result<Vec<RunningJob>> {
        let sql = "SELECT id, worker, kind, key, queue, attempt, started, progress FROM running
                   WHERE kind = ?1 AND key = ?2 AND until > ?3 ORDER BY started, id, worker";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![kind, key, now.as_millis()], |row| {
            Ok(RunningJob {
                id: row.get(0)?,
                worker: row.get(1)?,
                kind: row.get(2)?,
                key: row.get(3)?,
                queue: row.get(4)?,
                attempt: row.get(5)?,
                started: Time::from_millis(row.get(6)?),
                progress: Progress::read(&row.get::<_, String>(7)?).unwrap_or_default(),
            })
        })?;
        rows.collect()
    }

    pub fn note_progress(&mut self, runs: &[(Fence, Progress)]) -> Result<()> {
        let mut update = self
            .connection
            .prepare_cached("UPDATE attempts SET progress = ?2 WHERE fence = ?1 AND finished IS NULL")?;
        runs.iter().try_for_each(|(fence, progress)| update.execute(params![fence.get(), progress.text()]).map(drop))
    }
}

#[async_trait]
impl Running for SqliteLedger {
    async fn note_running(
        &self,
        worker: String,
        jobs: Vec<RunningJob>,
        ended: Vec<String>,
        hold: Duration,
    ) -> Result<(), LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.note_running(&worker, &jobs, &ended, clock.now(), hold)).await
    }

    async fn running(&self, kind: String, key: String) -> Result<Vec<RunningJob>, LedgerError> {
        let clock = self.clock.clone();
        self.read(move |store| store.running(&kind, &key, clock.now())).await
    }

    async fn hands(&self, job: String, session: i64) -> Result<Hands, LedgerError> {
        self.read(move |store| store.hands(&job, session)).await
    }

    async fn take_in_hand(&self, job: String, session: i64) -> Result<(), LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.take_in_hand(&job, session, clock.now())).await
    }

    async fn out_of_hand(&self, job: String) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.out_of_hand(&job)).await
    }

    async fn note_progress(&self, runs: Vec<(Fence, Progress)>) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.note_progress(&runs)).await
    }
}
