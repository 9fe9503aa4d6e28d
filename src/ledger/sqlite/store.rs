//! The verbs in SQL. Plain and synchronous: who calls them, and when a transaction commits, is
//! [`super::writer`]'s business.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::clock::Time;
use crate::ledger::{
    Census, ChainRow, ChainState, Claim, ClaimRequest, Enrolled, Failure, Finish, FinishRequest, Grant, Hint,
    Judgement, KeptJob, LookAgain, NewChain, Overdue, QueueCensus, Sent, judge,
};
use crate::outcome::{Next, Verdict};

type Result<T> = rusqlite::Result<T>;

/// The columns that [`hint`] reads, in its order.
const HINT: &str = "epoch, kind, key, queue, tick, attempt, due";

/// An open ledger file.
pub struct Store {
    pub connection: Connection,
}

fn time(row: &Row<'_>, column: usize) -> Result<Time> {
    row.get(column).map(Time::from_millis)
}

fn hint(row: &Row<'_>) -> Result<Hint> {
    Ok(Hint {
        epoch: row.get(0)?,
        kind: row.get(1)?,
        key: row.get(2)?,
        queue: row.get(3)?,
        tick: row.get(4)?,
        attempt: row.get(5)?,
        due: time(row, 6)?,
    })
}

impl Store {
    pub fn enroll(&mut self, chains: &[NewChain]) -> Result<Vec<Enrolled>> {
        chains.iter().map(|chain| self.enroll_one(chain)).collect()
    }

    fn enroll_one(&mut self, chain: &NewChain) -> Result<Enrolled> {
        let found = self
            .connection
            .prepare_cached("SELECT epoch, state, queue, payload FROM chains WHERE kind = ?1 AND key = ?2")?
            .query_row(params![chain.kind, chain.key], |row| {
                Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?))
            })
            .optional()?;
        if let Some((epoch, state, queue, payload)) = found {
            if ChainState::from_number(state) == ChainState::Retired {
                return Ok(Enrolled::Retired);
            }
            if queue == chain.queue && payload == chain.payload {
                return Ok(Enrolled::Unchanged);
            }
            self.connection
                .prepare_cached("UPDATE chains SET queue = ?2, payload = ?3 WHERE epoch = ?1")?
                .execute(params![epoch, chain.queue, chain.payload])?;
            return Ok(Enrolled::Updated);
        }
        let due = chain.due.as_millis();
        self.connection
            .prepare_cached(
                "INSERT INTO chains (kind, key, queue, nominal, due, expected, watch_at, payload)
                 VALUES (?1, ?2, ?3, ?4, ?4, ?4, ?5, ?6)",
            )?
            .execute(params![chain.kind, chain.key, chain.queue, due, chain.watch_at.as_millis(), chain.payload])?;
        Ok(Enrolled::Created(Hint {
            kind: chain.kind.clone(),
            key: chain.key.clone(),
            queue: chain.queue.clone(),
            epoch: self.connection.last_insert_rowid(),
            tick: 1,
            attempt: 1,
            due: chain.due,
        }))
    }

    pub fn enrolled_sent(&mut self, sent: &[Sent], slack: Duration) -> Result<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE chains SET sent = 1, watch_at = ?5 WHERE epoch = ?1 AND tick = ?2 AND attempt = ?3 AND due = ?4",
        )?;
        for s in sent {
            let watch_at = (s.due + slack).as_millis();
            update.execute(params![s.epoch, s.tick, s.attempt, s.due.as_millis(), watch_at])?;
        }
        Ok(())
    }

    pub fn mark_sent(&mut self, s: Sent) -> Result<()> {
        self.connection
            .prepare_cached("UPDATE chains SET sent = 1 WHERE epoch = ?1 AND tick = ?2 AND attempt = ?3 AND due = ?4")?
            .execute(params![s.epoch, s.tick, s.attempt, s.due.as_millis()])?;
        Ok(())
    }

    pub fn claim(&mut self, request: &ClaimRequest, now: Time) -> Result<Claim> {
        let sql =
            format!("SELECT {HINT}, state, nominal, lease_until, sent, fence, payload FROM chains WHERE epoch = ?1");
        let found = self
            .connection
            .prepare_cached(&sql)?
            .query_row([request.hint.epoch], |row| {
                let chain = ChainRow {
                    hint: hint(row)?,
                    state: ChainState::from_number(row.get(7)?),
                    nominal: time(row, 8)?,
                    lease_until: time(row, 9)?,
                    sent: row.get(10)?,
                };
                Ok((chain, row.get::<_, i64>(11)?, row.get::<_, String>(12)?))
            })
            .optional()?;
        let newest = if found.is_some() { 0 } else { self.newest_epoch()? };
        if let Judgement::Answer(answer) = judge(found.as_ref().map(|f| &f.0), newest, request, now) {
            return Ok(answer);
        }
        let Some((chain, previous, payload)) = found else { return Ok(Claim::Idle) };
        if chain.lease_until.as_millis() != 0 {
            // The holder never finished: its lease ran out.
            self.connection
                .prepare_cached(
                    "UPDATE attempts SET finished = ?2, verdict = 'lost' WHERE fence = ?1 AND finished IS NULL",
                )?
                .execute(params![previous, now.as_millis()])?;
        }
        self.connection
            .prepare_cached(
                "INSERT INTO attempts (epoch, tick, attempt, previous, worker, due, started)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                request.hint.epoch,
                request.hint.tick,
                request.hint.attempt,
                previous,
                request.worker,
                chain.hint.due.as_millis(),
                now.as_millis()
            ])?;
        let fence = self.connection.last_insert_rowid();
        self.connection
            // What is claimed has been sent, whether or not the note of it has come.
            .prepare_cached("UPDATE chains SET fence = ?2, lease_until = ?3, sent = 1 WHERE epoch = ?1")?
            .execute(params![request.hint.epoch, fence, (now + request.lease).as_millis()])?;
        Ok(Claim::Granted(Grant { fence, nominal: chain.nominal, due: chain.hint.due, at: now, payload }))
    }

    fn newest_epoch(&self) -> Result<i64> {
        self.connection
            .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'chains'")?
            .query_row([], |row| row.get(0))
            .optional()
            .map(Option::unwrap_or_default)
    }

    pub fn finish(&mut self, f: &FinishRequest) -> Result<Finish> {
        let at = f.at.as_millis();
        let (tick, attempt, due) = match f.next {
            Next::Tick { due } => (f.tick + 1, 1, due),
            Next::Attempt { attempt, due } => (f.tick, attempt, due),
            Next::Snooze { due } => (f.tick, f.attempt, due),
            Next::End => (f.tick + 1, 1, f.at),
        };
        // `nominal` stays with a tick through its attempts and moves with the next one. A finish
        // ends nothing but its own run, so a chain paused meanwhile stays paused.
        let (due, watch_at) = (due.as_millis(), (due + f.slack).as_millis());
        let (advances, retired) = (tick != f.tick, f.next == Next::End);
        let sql = "UPDATE chains
                   SET tick = ?3, attempt = ?4, due = ?5, nominal = iif(?6, ?5, nominal), lease_until = 0,
                       sent = 0, expected = ?5, watch_at = ?7, looks = 0, state = iif(?8, 2, state)
                   WHERE epoch = ?1 AND fence = ?2 AND lease_until <> 0
                   RETURNING epoch, kind, key, queue, tick, attempt, due, state";
        let written = self
            .connection
            .prepare_cached(sql)?
            .query_row(params![f.epoch, f.fence, tick, attempt, due, advances, watch_at, retired], |row| {
                Ok((hint(row)?, ChainState::from_number(row.get(7)?)))
            })
            .optional()?;
        let verdict = if written.is_some() { f.verdict.as_str() } else { "fenced" };
        self.connection
            .prepare_cached("UPDATE attempts SET finished = ?2, verdict = ?3, reason = ?4 WHERE fence = ?1")?
            .execute(params![f.fence, at, verdict, f.reason])?;
        let Some((hint, state)) = written else { return Ok(Finish::Fenced) };
        if matches!(f.verdict, Verdict::Failed | Verdict::Retired) {
            self.record_failure(&hint.kind, &hint.key, f.reason.as_deref().unwrap_or_default(), f.at)?;
        }
        Ok(Finish::Applied((state == ChainState::Active).then_some(hint)))
    }

    pub fn record_failure(&mut self, kind: &str, key: &str, reason: &str, at: Time) -> Result<()> {
        self.connection
            .prepare_cached(
                "INSERT INTO failures (kind, key, reason, times, first_at, last_at) VALUES (?1, ?2, ?3, 1, ?4, ?4)
                 ON CONFLICT (kind, key) DO UPDATE SET reason = ?3, times = times + 1, last_at = ?4",
            )?
            .execute(params![kind, key, reason, at.as_millis()])?;
        Ok(())
    }

    pub fn look_again(&mut self, looks: &[LookAgain]) -> Result<Vec<bool>> {
        let mut update = self.connection.prepare_cached(
            "UPDATE chains SET watch_at = ?3, looks = ?4, expected = coalesce(?5, expected)
                 WHERE epoch = ?1 AND watch_at = ?2",
        )?;
        let mut write = |l: &LookAgain| {
            let expected = l.expected.map(Time::as_millis);
            update.execute(params![l.epoch, l.from.as_millis(), l.to.as_millis(), l.looks, expected])
        };
        looks.iter().map(|look| Ok(write(look)? == 1)).collect()
    }

    pub fn overdue(&self, queue: &str, kinds: &[String], now: Time, limit: u32) -> Result<Vec<Overdue>> {
        let sql = format!(
            "SELECT {HINT}, sent, watch_at, looks, lease_until, expected FROM chains
             WHERE state = 0 AND queue = ?1 AND watch_at <= ?2 AND kind IN rarray(?3) ORDER BY watch_at LIMIT ?4"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![queue, now.as_millis(), text_array(kinds), limit], overdue)?;
        rows.collect()
    }

    pub fn messages(&self, queues: &[String], kinds: &[String], after: i64, limit: u32) -> Result<Vec<Hint>> {
        let sql = format!(
            "SELECT {HINT} FROM chains
             WHERE state = 0 AND epoch > ?1 AND queue IN rarray(?2) AND kind IN rarray(?3) ORDER BY epoch LIMIT ?4"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![after, text_array(queues), text_array(kinds), limit], hint)?;
        rows.collect()
    }

    pub fn failures(&self, limit: u32) -> Result<Vec<Failure>> {
        let sql = "SELECT kind, key, reason, times, last_at FROM failures ORDER BY last_at DESC LIMIT ?1";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map([limit], |row| {
            Ok(Failure {
                kind: row.get(0)?,
                key: row.get(1)?,
                reason: row.get(2)?,
                times: row.get(3)?,
                last_at: time(row, 4)?,
            })
        })?;
        rows.collect()
    }

    pub fn quarantine(&mut self, from: &str, reason: &str, body: &[u8], at: Time) -> Result<()> {
        self.connection
            .prepare_cached("INSERT INTO quarantine (at, source, reason, body) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![at.as_millis(), from, reason, body])?;
        Ok(())
    }

    pub fn keep_job(&mut self, id: &str, body: &[u8]) -> Result<()> {
        self.connection
            .prepare_cached(
                "INSERT INTO jobs (id, body) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
            )?
            .execute(params![id, body])?;
        Ok(())
    }

    pub fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>> {
        let mut select = self
            .connection
            .prepare_cached("SELECT number, body FROM jobs WHERE number > ?1 ORDER BY number LIMIT ?2")?;
        let rows =
            select.query_map(params![after, limit], |row| Ok(KeptJob { number: row.get(0)?, body: row.get(1)? }))?;
        rows.collect()
    }

    pub fn forget_job(&mut self, id: &str) -> Result<()> {
        self.connection.prepare_cached("DELETE FROM jobs WHERE id = ?1")?.execute([id])?;
        Ok(())
    }

    /// Attempts end about in the order of their fences, so only the oldest are looked at. One that
    /// has no end a day after it began was cut off, on a chain that nobody has claimed since.
    pub fn prune(&mut self, before: Time, limit: u32) -> Result<usize> {
        self.connection
            .prepare_cached(
                "DELETE FROM attempts WHERE fence IN (SELECT fence FROM attempts ORDER BY fence LIMIT ?2)
                 AND coalesce(finished, started + 86400000) < ?1",
            )?
            .execute(params![before.as_millis(), limit])
    }

    pub fn census(&self, now: Time, slack: Duration) -> Result<Census> {
        let mut census = Census::default();
        let sql = "SELECT queue, sum(lease_until > ?1), sum(lease_until <= ?1 AND due > ?1),
                          sum(lease_until <= ?1 AND due <= ?1), sum(lease_until <= ?1 AND due <= ?2),
                          sum(lease_until <= ?1 AND sent = 0)
                   FROM chains WHERE state = 0 GROUP BY queue ORDER BY queue";
        let now_ms = now.as_millis();
        let overdue_before = (now - slack).as_millis();
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![now_ms, overdue_before], |row| {
            Ok(QueueCensus {
                queue: row.get(0)?,
                running: row.get(1)?,
                sleeping: row.get(2)?,
                due: row.get(3)?,
                overdue: row.get(4)?,
                unsent: row.get(5)?,
            })
        })?;
        census.queues = rows.collect::<Result<_>>()?;
        let counts = "SELECT (SELECT count(*) FROM chains WHERE state = 1),
                             (SELECT count(*) FROM chains WHERE state = 2),
                             (SELECT count(*) FROM chains WHERE state = 3),
                             (SELECT count(*) FROM failures),
                             (SELECT count(*) FROM quarantine),
                             (SELECT count(*) FROM jobs),
                             (SELECT min(due) FROM chains WHERE state = 0 AND due <= ?1 AND lease_until <= ?1)";
        self.connection.prepare_cached(counts)?.query_row([now_ms], |row| {
            census.paused = row.get(0)?;
            census.retired = row.get(1)?;
            census.quarantined = row.get(2)?;
            census.failures = row.get(3)?;
            census.quarantined_messages = row.get(4)?;
            census.kept_jobs = row.get(5)?;
            census.oldest_due = row.get::<_, Option<i64>>(6)?.map(Time::from_millis);
            Ok(())
        })?;
        Ok(census)
    }
}

fn overdue(row: &Row<'_>) -> Result<Overdue> {
    Ok(Overdue {
        hint: hint(row)?,
        sent: row.get(7)?,
        watch_at: time(row, 8)?,
        looks: row.get(9)?,
        lease_until: time(row, 10)?,
        expected: time(row, 11)?,
    })
}

fn text_array(values: &[String]) -> rusqlite::vtab::array::Array {
    std::rc::Rc::new(values.iter().cloned().map(rusqlite::types::Value::from).collect())
}
