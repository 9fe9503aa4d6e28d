//! One-off jobs that run and report, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::deaths::Hands;
use roundelay_model::ids::Fence;
use roundelay_model::progress::Progress;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::words;
use super::group::small;
use super::reader::Reader;
use super::reports::time;
use crate::error::LedgerError;
use crate::running::{OpenRun, RunSource, Running, RunningJob, longest};

/// Waits for no lock: rows that another worker is deleting are skipped.
const FORGET: &str = "DELETE FROM running WHERE (id, worker) IN (
                          SELECT id, worker FROM running
                          WHERE until <= ledger_millis()
                             OR (worker = $1 AND id = ANY ($2::text[]))
                          FOR UPDATE SKIP LOCKED)";
const NOTE: &str = "INSERT INTO running (id, worker, kind, key, queue, attempt, started, progress, until)
                    SELECT u.*, ledger_millis() + $9
                    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int8[], $7::int8[],
                                $8::text[]) AS u
                    ON CONFLICT (id, worker) DO UPDATE
                    SET attempt = excluded.attempt, started = excluded.started, progress = excluded.progress,
                        until = excluded.until";
const SELECT: &str = "SELECT id, worker, kind, key, queue, attempt, started, progress FROM running
                      WHERE kind = $1 AND key = $2
                        AND until > ledger_millis()
                      ORDER BY started, id, worker";

/// The open attempts of the worker `$1` among those with the fences `$2` and the last `$3` of all. Each chain is looked
/// up by itself: in a join, the planner might go through all of them.
const OPEN: &str = "SELECT c.kind, c.key, c.parent, a.attempt, a.started, a.progress
                    FROM (SELECT * FROM attempts WHERE fence = ANY ($2::int8[])
                          UNION ALL
                          SELECT * FROM (SELECT * FROM attempts ORDER BY fence DESC LIMIT $3::int8) last
                          WHERE fence <> ALL ($2::int8[])) a
                    CROSS JOIN LATERAL (SELECT kind, key, parent FROM chains
                                        WHERE epoch = a.epoch AND fence = a.fence LIMIT 1) c
                    WHERE a.finished IS NULL AND a.worker = $1 ORDER BY a.started, a.fence LIMIT $4::int8";
const JOBS: &str = "SELECT id, worker, kind, key, queue, attempt, started, progress FROM running
                    WHERE worker = $1 AND until > ledger_millis() ORDER BY started, id LIMIT $2::int8";

fn job(row: &Row) -> Result<RunningJob, Error> {
    Ok(RunningJob {
        id: row.try_get(0)?,
        worker: row.try_get(1)?,
        kind: row.try_get(2)?,
        key: row.try_get(3)?,
        queue: row.try_get(4)?,
        attempt: small(row.try_get(5)?),
        started: time(row, 6)?,
        progress: Progress::read(row.try_get(7)?).unwrap_or_default(),
    })
}

const HANDS: &str =
    "SELECT count(*) FILTER (WHERE session NOT IN (SELECT session FROM sessions)), count(*) FROM in_hand
                     WHERE job = $1 AND session <> $2";
const TAKE: &str = "INSERT INTO in_hand (job, session, at) VALUES ($1, $2, ledger_millis()) ON CONFLICT DO NOTHING";

#[async_trait]
impl Running for PostgresLedger {
    async fn note_running(
        &self,
        worker: String,
        jobs: Vec<RunningJob>,
        ended: Vec<String>,
        hold: Duration,
    ) -> Result<(), LedgerError> {
        self.reader.execute(FORGET, &[&worker, &ended]).await?;
        if jobs.is_empty() {
            return Ok(());
        }
        let text = |of: fn(&RunningJob) -> &String| jobs.iter().map(of).collect::<Vec<_>>();
        let (ids, kinds, keys) = (text(|job| &job.id), text(|job| &job.kind), text(|job| &job.key));
        let (queues, workers) = (text(|job| &job.queue), vec![&worker; jobs.len()]);
        let attempts: Vec<i64> = jobs.iter().map(|job| i64::from(job.attempt)).collect();
        let started: Vec<i64> = jobs.iter().map(|job| job.started.as_millis()).collect();
        let progress: Vec<String> = jobs.iter().map(|job| job.progress.text()).collect();
        let hold = i64::try_from(hold.as_millis()).unwrap_or(i64::MAX);
        self.reader
            .execute(NOTE, &[&ids, &workers, &kinds, &keys, &queues, &attempts, &started, &progress, &hold])
            .await
            .map(drop)
    }

    async fn running(&self, kind: String, key: String) -> Result<Vec<RunningJob>, LedgerError> {
        self.reader.rows(SELECT, &[&kind, &key], job).await
    }

    async fn open_runs(
        &self,
        worker: String,
        fences: Vec<Fence>,
        limit: u32,
        effort: u32,
    ) -> Result<Vec<OpenRun>, LedgerError> {
        let run = |row: &Row| {
            Ok(OpenRun {
                source: if row.try_get::<_, i64>(2)? == 0 { RunSource::Chain } else { RunSource::Batch },
                kind: row.try_get(0)?,
                key: row.try_get(1)?,
                attempt: small(row.try_get(3)?),
                started: time(row, 4)?,
                progress: row.try_get::<_, Option<String>>(5)?.as_deref().and_then(Progress::read),
            })
        };
        let fences: Vec<i64> = fences.iter().map(|fence| fence.get()).collect();
        let (most, effort) = (i64::from(limit), i64::from(effort));
        let runs = self.reader.rows(OPEN, &[&worker, &fences, &effort, &most], run).await?;
        let jobs = self.reader.rows(JOBS, &[&worker, &most], job).await?;
        Ok(longest(runs, jobs, limit))
    }

    async fn hands(&self, job: String, session: i64) -> Result<Hands, LedgerError> {
        let rows = self.reader.query(HANDS, &[&job, &session]).await?;
        let told = |error: Error| LedgerError::Statement(words(&error));
        let number = |column: usize| match rows.first() {
            Some(row) => row.try_get::<_, i64>(column).map_err(told),
            None => Ok(0),
        };
        let (over, all) = (number(0)?, number(1)?);
        let small = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Hands { over: small(over), open: small(all - over) })
    }

    async fn take_in_hand(&self, job: String, session: i64) -> Result<(), LedgerError> {
        self.reader.execute(TAKE, &[&job, &session]).await.map(drop)
    }

    async fn out_of_hand(&self, job: String) -> Result<(), LedgerError> {
        self.reader.execute("DELETE FROM in_hand WHERE job = $1", &[&job]).await.map(drop)
    }

    async fn note_progress(&self, runs: Vec<(Fence, Progress)>) -> Result<(), LedgerError> {
        self.reader.note_progress(runs).await
    }
}

impl Reader {
    /// A row that another transaction has locked is about to end, and its end has the progress. So this waits for no
    /// lock, and cannot be part of a deadlock.
    pub(super) async fn note_progress(&self, runs: Vec<(Fence, Progress)>) -> Result<(), LedgerError> {
        let (fences, texts): (Vec<i64>, Vec<String>) =
            runs.into_iter().map(|(fence, progress)| (fence.get(), progress.text())).unzip();
        let note = "WITH open AS MATERIALIZED (
                        SELECT fence FROM attempts WHERE fence = ANY ($1::int8[]) AND finished IS NULL
                        FOR UPDATE SKIP LOCKED)
                    UPDATE attempts a SET progress = u.progress
                    FROM open, unnest($1::int8[], $2::text[]) AS u (fence, progress)
                    WHERE a.fence = open.fence AND u.fence = open.fence";
        self.execute(note, &[&fences, &texts]).await.map(drop)
    }
}
