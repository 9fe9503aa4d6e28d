//! One-off jobs that run and report, in SQL.

use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::deaths::Hands;
use roundelay_model::ids::Fence;
use roundelay_model::progress::Progress;
use rusqlite::types::Value;
use rusqlite::{Row, params};

use super::SqliteLedger;
use super::store::{Result, Store, time};
use crate::error::LedgerError;
use crate::running::{OpenRun, RunSource, Running, RunningJob, longest};

/// The open attempts of the worker `?1` among those with the fences `?2` and the last `?3` of all.
const OPEN: &str = "
    SELECT c.kind, c.key, c.parent, a.attempt, a.started, a.progress
    FROM (SELECT fence, epoch, attempt, worker, started, finished, progress FROM attempts WHERE fence IN rarray(?2)
          UNION ALL
          SELECT * FROM (SELECT fence, epoch, attempt, worker, started, finished, progress FROM attempts
                         ORDER BY fence DESC LIMIT ?3)
          WHERE fence NOT IN rarray(?2)) a
    CROSS JOIN chains c ON c.epoch = a.epoch
    LEFT JOIN hot_chains h ON h.epoch = c.epoch
    WHERE a.finished IS NULL AND a.worker = ?1 AND coalesce(h.fence, c.fence) = a.fence
    ORDER BY a.started, a.fence LIMIT ?4";

/// The columns that [`job`] reads.
const JOB: &str = "id, worker, kind, key, queue, attempt, started, progress";

fn job(row: &Row<'_>) -> Result<RunningJob> {
    Ok(RunningJob {
        id: row.get(0)?,
        worker: row.get(1)?,
        kind: row.get(2)?,
        key: row.get(3)?,
        queue: row.get(4)?,
        attempt: row.get(5)?,
        started: time(row, 6)?,
        progress: Progress::read(&row.get::<_, String>(7)?).unwrap_or_default(),
    })
}

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
        let sql = format!(
            "SELECT {JOB} FROM running WHERE kind = ?1 AND key = ?2 AND until > ?3 ORDER BY started, id, worker"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![kind, key, now.as_millis()], job)?;
        rows.collect()
    }

    fn open_runs(&self, worker: &str, fences: &[Fence], now: Time, limit: u32, effort: u32) -> Result<Vec<OpenRun>> {
        let fences = Rc::new(fences.iter().map(|fence| Value::from(fence.get())).collect::<Vec<_>>());
        let mut select = self.connection.prepare_cached(OPEN)?;
        let runs = select.query_map(params![worker, fences, effort, limit], |row| {
            Ok(OpenRun {
                source: if row.get::<_, i64>(2)? == 0 { RunSource::Chain } else { RunSource::Batch },
                kind: row.get(0)?,
                key: row.get(1)?,
                attempt: row.get(3)?,
                started: time(row, 4)?,
                progress: row.get::<_, Option<String>>(5)?.as_deref().and_then(Progress::read),
            })
        })?;
        let jobs = format!("SELECT {JOB} FROM running WHERE worker = ?1 AND until > ?2 ORDER BY started, id LIMIT ?3");
        let mut select = self.connection.prepare_cached(&jobs)?;
        let jobs = select.query_map(params![worker, now.as_millis(), limit], job)?;
        Ok(longest(runs.collect::<Result<_>>()?, jobs.collect::<Result<_>>()?, limit))
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

    async fn open_runs(
        &self,
        worker: String,
        fences: Vec<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Vec<OpenRun>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.open_runs(&worker, &fences, now, limit, effort)).await
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

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::sqlite::{configure, schema};
    use roundelay_model::clock::Entropy;

    /// There may be millions of chains, and of attempts.
    #[test]
    fn what_a_worker_runs_is_found_without_going_through_all_chains() {
        let mut connection = Connection::open_in_memory().unwrap();
        configure(&connection).unwrap();
        schema::migrate(&mut connection, &Entropy::seeded(1), Time::from_millis(1_800_000_000_000)).unwrap();
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {OPEN}")).unwrap();
        let mut rows = plan.raw_query();
        let mut steps = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push(row.get::<_, String>(3).unwrap());
        }
        assert!(steps.iter().any(|step| step.starts_with("SEARCH c ")), "{steps:#?}");
        // The latest attempts are read from the end of their table, as many as are wanted.
        let whole = steps.iter().filter(|step| step.starts_with("SCAN attempts")).count();
        let in_order = !steps.iter().any(|step| step.contains("TEMP B-TREE FOR ORDER BY") && whole > 1);
        assert!(whole <= 1 && in_order, "{steps:#?}");
        assert!(!steps.iter().any(|step| step.starts_with("SCAN c") || step.starts_with("SCAN h")), "{steps:#?}");
    }
}
