//! One-off jobs that run and report, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::clock::Time;
use crate::ledger::{LedgerError, Running, RunningJob};
use crate::progress::Progress;

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
}

#[async_trait]
impl Running for SqliteLedger {
    async fn note_running(
        &self,
        worker: String,
        jobs: Vec<RunningJob>,
        ended: Vec<String>,
        hold: Duration,
    ) -> std::result::Result<(), LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.note_running(&worker, &jobs, &ended, clock.now(), hold)).await
    }

    async fn running(&self, kind: String, key: String) -> std::result::Result<Vec<RunningJob>, LedgerError> {
        let clock = self.clock.clone();
        self.read(move |store| store.running(&kind, &key, clock.now())).await
    }
}
