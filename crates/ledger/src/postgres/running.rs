//! One-off jobs that run and report, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::deaths::Hands;
use roundelay_model::ids::Fence;
use roundelay_model::progress::Progress;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::words;
use super::reader::Reader;
use crate::error::LedgerError;
use crate::running::{Running, RunningJob};

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
        let job = |row: &Row| {
            Ok(RunningJob {
                id: row.try_get(0)?,
                worker: row.try_get(1)?,
                kind: row.try_get(2)?,
                key: row.try_get(3)?,
                queue: row.try_get(4)?,
                attempt: u32::try_from(row.try_get::<_, i64>(5)?).unwrap_or(u32::MAX),
                started: Time::from_millis(row.try_get(6)?),
                progress: Progress::read(row.try_get(7)?).unwrap_or_default(),
            })
        };
        let rows = self.reader.query(SELECT, &[&kind, &key]).await?;
        let jobs: Result<_, Error> = rows.iter().map(job).collect();
        jobs.map_err(|error| LedgerError::Statement(words(&error)))
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
