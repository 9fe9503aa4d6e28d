//! Workers' leases, in SQL and by marks: see [`crate::mark`].
//!
//! All workers on a file are on one machine, so they beat by their marks, and a ledger that is busy, or a file that is
//! locked for long, makes no worker seem dead. In memory there is no mark: there the table has the beat.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::deaths::UNHEARD;
use rusqlite::{OptionalExtension, params};

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::claim::ClaimId;
use crate::error::LedgerError;
use crate::sessions::{Beat, Session, Sessions};

/// How often a beat is also written into the table, in milliseconds.
const TELL_EVERY: i64 = 10_000;

impl Store {
    /// The sessions whose beat has risen recently: see [`super::reports`].
    pub(super) fn sessions_heard_of(&self, now: Time) -> Result<HashSet<i64>> {
        let heard_of = "SELECT session FROM sessions WHERE beat > ?1 - 40000";
        self.connection.prepare_cached(heard_of)?.query_map([now.as_millis()], |row| row.get(0))?.collect()
    }

    pub(super) fn begin_session(&mut self, worker: &str, lease: Duration, mark: &str, now: Time) -> Result<i64> {
        let insert = "INSERT INTO sessions (worker, lease, mark, beat) VALUES (?1, ?2, ?3, ?4)";
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        self.connection.prepare_cached(insert)?.execute(params![worker, lease, mark, now.as_millis()])?;
        Ok(self.connection.last_insert_rowid())
    }

    fn sessions(&self) -> Result<Vec<(Session, String)>> {
        let mut select = self.connection.prepare_cached("SELECT session, worker, lease, beat, mark FROM sessions")?;
        let session = |row: &rusqlite::Row<'_>| {
            let lease = Duration::from_millis(row.get::<_, i64>(2)?.unsigned_abs());
            let session = Session { session: row.get(0)?, worker: row.get(1)?, lease, beat: row.get(3)?, gone: false };
            Ok((session, row.get(4)?))
        };
        select.query_map([], session)?.collect()
    }

    fn raise_beat(&mut self, session: i64, now: Time) -> Result<()> {
        let raise = "UPDATE sessions SET beat = max(beat + 1, ?2) WHERE session = ?1";
        self.connection.prepare_cached(raise)?.execute([session, now.as_millis()]).map(drop)
    }

    /// Answers with the marks of those that it has ended.
    pub(super) fn end_sessions(&mut self, sessions: &[(i64, Option<i64>)]) -> Result<Vec<(i64, String)>> {
        let delete = "DELETE FROM sessions WHERE session = ?1 AND (?2 IS NULL OR beat = ?2) RETURNING mark";
        let mut delete = self.connection.prepare_cached(delete)?;
        let mut ended = Vec::new();
        for (session, beat) in sessions {
            let mark = delete.query_row(params![session, beat], |row| row.get(0)).optional()?;
            ended.extend(mark.map(|mark| (*session, mark)));
        }
        Ok(ended)
    }

    pub(super) fn hold(&self, claims: &[ClaimId]) -> Result<Vec<bool>> {
        let hold = "SELECT EXISTS (SELECT 1 FROM chains_now WHERE epoch = ?1 AND fence = ?2 AND holder <> 0)";
        let mut hold = self.connection.prepare_cached(hold)?;
        claims.iter().map(|claim| hold.query_row([claim.epoch.get(), claim.fence.get()], |row| row.get(0))).collect()
    }

    pub(super) fn give_up(&mut self, session: i64, claims: &[ClaimId], now: Time) -> Result<()> {
        for claim in claims {
            self.fold_hot("SELECT ?1 AS epoch", [claim.epoch.get()])?;
            let free = "UPDATE chains SET holder = 0 WHERE epoch = ?1 AND fence = ?2 AND holder = ?3";
            if self.connection.prepare_cached(free)?.execute([claim.epoch.get(), claim.fence.get(), session])? == 1 {
                let lost = "UPDATE attempts SET finished = ?2, verdict = 'lost', reason = ?3
                            WHERE fence = ?1 AND finished IS NULL";
                let values = params![claim.fence.get(), now.as_millis(), UNHEARD];
                self.connection.prepare_cached(lost)?.execute(values)?;
            }
        }
        Ok(())
    }
}

fn unmarked(error: std::io::Error) -> LedgerError {
    LedgerError::Statement(format!("a worker cannot leave its mark beside the ledger's file: {error}"))
}

#[async_trait]
impl Sessions for SqliteLedger {
    async fn begin_session(&self, worker: String, lease: Duration) -> Result<i64, LedgerError> {
        let now = self.clock.now();
        let (mark, text) = self.marks.leave(now).map_err(unmarked)?.unzip();
        let text = text.unwrap_or_default();
        let session = self.writer.write(move |store| store.begin_session(&worker, lease, &text, now)).await?;
        if let Some(mark) = mark {
            self.marks.keep(session, mark);
        }
        Ok(session)
    }

    async fn beat(&self, session: i64, dead: Vec<(i64, i64)>) -> Result<Beat, LedgerError> {
        let now = self.clock.now();
        let marked = self.marks.beat(session, now).map_err(unmarked)?;
        // A program that only looks reads the beat from the table, and does not need it at once.
        let told = self.told.load(Ordering::Relaxed);
        if !marked || now.as_millis() >= told + TELL_EVERY {
            self.told.store(now.as_millis(), Ordering::Relaxed);
            match marked {
                true => self.writer.write_later(move |store| store.raise_beat(session, now)),
                false => self.writer.write(move |store| store.raise_beat(session, now)).await?,
            }
        }
        let marks = self.marks.clone();
        let look = move |store: &Store| {
            let sessions = store.sessions()?.into_iter().map(|(session, mark)| {
                let beat = marks.beat_of(&mark).unwrap_or(session.beat);
                Session { beat, gone: marks.is_gone(&mark), ..session }
            });
            Ok(sessions.collect::<Vec<_>>())
        };
        let mut ended = Vec::new();
        if !dead.is_empty() {
            let seen = self.read_of(&self.pulse, look.clone()).await?;
            let still = |(session, beat): &(i64, i64)| seen.iter().any(|s| s.session == *session && s.beat == *beat);
            let dead: Vec<(i64, Option<i64>)> =
                dead.iter().filter(|dead| still(dead)).map(|(session, _)| (*session, None)).collect();
            let gone = self.writer.write(move |store| store.end_sessions(&dead)).await?;
            gone.iter().for_each(|(_, mark)| self.marks.sweep(mark));
            ended = gone.into_iter().map(|(session, _)| session).collect();
        }
        let (mine, others): (Vec<_>, Vec<_>) =
            self.read_of(&self.pulse, look).await?.into_iter().partition(|other| other.session == session);
        Ok(Beat { alive: !mine.is_empty(), others, ended })
    }

    async fn end_session(&self, session: i64) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.end_sessions(&[(session, None)])).await?;
        self.marks.forget(session);
        Ok(())
    }

    async fn hold(&self, claims: Vec<ClaimId>) -> Result<Vec<bool>, LedgerError> {
        self.read(move |store| store.hold(&claims)).await
    }

    async fn give_up(&self, session: i64, claims: Vec<ClaimId>) -> Result<(), LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.give_up(session, &claims, clock.now())).await
    }
}
