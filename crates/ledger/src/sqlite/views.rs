//! The verbs that only read, in SQL.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::failure::Failure;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::progress::Progress;
use rusqlite::{OptionalExtension, Row, params};

use super::failed::{FAILURE, failure};
use super::store::{AFTER_HINT, HINT, HOLDER, Result, Store, hint, holder, time};
use crate::census::{Census, QueueCensus};
use crate::chain::{ChainState, Hint, Holder, Kinds};
use crate::outbox::KeptJob;
use crate::overdue::Overdue;
use crate::view::{AttemptRecord, ChainView, LateChain};

/// Whether a row of `chains` that is due waits for the other row of its chain: for the end of its run, or, a manual run,
/// for the end of the cooldown that it has been put off to. Asked only of rows that can have such a row beside them, so
/// that it costs the others nothing.
macro_rules! waits_for_twin {
    ($now:literal) => {
        concat!(
            "CASE WHEN chains.parent = 0 AND (chains.once OR chains.beside) THEN
                 (chains.once AND chains.expected > ",
            $now,
            ") OR EXISTS (
                 SELECT 1 FROM chains_now t
                 WHERE t.kind = chains.kind AND t.key = chains.key AND t.once <> chains.once AND t.parent = 0
                   AND (t.holder IN (SELECT session FROM sessions) OR t.batch_open > 0) AND iif(t.once, t.manual, chains.manual) & 3 <> 2)
             ELSE 0 END"
        )
    };
}
pub(super) use waits_for_twin;

/// The sessions of workers that were heard of within 40 seconds: what somebody sees who only looks, where perhaps no worker
/// is left to end the others. `?2` is now.
const HEARD: &str = "(SELECT session FROM sessions WHERE beat > ?2 - 40000)";

impl Store {
    pub fn overdue(
        &self,
        queue: &str,
        kinds: &Kinds,
        now: Time,
        session: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Overdue>> {
        let sql = format!(
            "SELECT {HINT}, sent, watch_at, looks, {HOLDER}, expected, holder, fence FROM chains_now
             WHERE state = 0 AND queue = ?1 AND watch_at <= ?2 AND kind IN rarray(?3) AND (once OR kind IN rarray(?4))
                   AND (holder IN (0, ?6) OR holder NOT IN (SELECT session FROM sessions))
             ORDER BY watch_at LIMIT ?5"
        );
        let (all, recurring) = (text_array(&kinds.all), text_array(&kinds.recurring));
        let values = params![queue, now.as_millis(), all, recurring, limit, session.unwrap_or_default()];
        self.connection.prepare_cached(&sql)?.query_map(values, overdue)?.collect()
    }

    pub fn messages(&self, queues: &[String], kinds: &Kinds, after: Epoch, limit: u32) -> Result<Vec<Hint>> {
        let sql = format!(
            "SELECT {HINT} FROM chains
             WHERE state = 0 AND batch_open = 0 AND epoch > ?1 AND queue IN rarray(?2) AND kind IN rarray(?3)
                   AND (once OR kind IN rarray(?4))
             ORDER BY epoch LIMIT ?5"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(
            params![after.get(), text_array(queues), text_array(&kinds.all), text_array(&kinds.recurring), limit],
            hint,
        )?;
        rows.collect()
    }

    pub fn failures(&self, limit: u32) -> Result<Vec<Failure>> {
        let sql = format!("SELECT {FAILURE} FROM failures f ORDER BY f.last_at DESC LIMIT ?1");
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map([limit], failure)?;
        rows.collect()
    }

    pub fn kept_jobs(&self, after: i64, limit: u32) -> Result<Vec<KeptJob>> {
        let sql = "SELECT number, body, kept_at FROM jobs WHERE number > ?1 ORDER BY number LIMIT ?2";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![after, limit], kept_job)?;
        rows.collect()
    }

    pub fn chains(&self, kind: &str, key: &str) -> Result<Vec<ChainView>> {
        let sql =
            format!("SELECT {HINT}, {CHAIN} FROM chains_now WHERE kind = ?1 AND key = ?2 AND parent = 0 ORDER BY once");
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map([kind, key], chain)?;
        rows.collect()
    }

    pub fn late(&self, before: Time, now: Time, limit: u32) -> Result<Vec<LateChain>> {
        let sql = format!(
            "SELECT {HINT}, state, sent, looks, watch_at, iif(holder = 0, 0, iif(holder IN {HEARD}, 1, 2)),
                    (SELECT worker FROM attempts WHERE attempts.fence = chains.fence),
                    (SELECT reason FROM attempts WHERE attempts.fence = chains.fence AND verdict = 'lost')
             FROM chains_now AS chains
             WHERE state = 3 OR (state = 0 AND due < ?1 AND holder NOT IN {HEARD} AND batch_open = 0
                                 AND NOT {waits})
             ORDER BY due LIMIT ?3",
            waits = waits_for_twin!("?2")
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![before.as_millis(), now.as_millis(), limit], |row| {
            Ok(LateChain {
                hint: hint(row)?,
                state: ChainState::from_number(row.get(AFTER_HINT)?),
                sent: row.get(AFTER_HINT + 1)?,
                looks: row.get(AFTER_HINT + 2)?,
                watch_at: time(row, AFTER_HINT + 3)?,
                holder: holder(row, AFTER_HINT + 4)?,
                worker: row.get(AFTER_HINT + 5)?,
                reason: row.get(AFTER_HINT + 6)?,
            })
        })?;
        rows.collect()
    }

    pub fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>> {
        let sql = format!("SELECT {ATTEMPT} FROM attempts WHERE fence > ?1 ORDER BY fence LIMIT ?2");
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![after.get(), limit], attempt)?;
        rows.collect()
    }

    pub fn topology(&self) -> Result<Option<String>> {
        let sql = "SELECT value FROM meta WHERE name = 'topology'";
        self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()
    }

    pub fn census(&self, now: Time, slack: Duration) -> Result<Census> {
        // One pass in the order of the file. Grouping in SQL would sort all chains, and going by an
        // index would fetch each from another page: both take several times as long.
        let sql = concat!(
            "SELECT state, queue, coalesce(h.holder, chains.holder) AS holder, due, coalesce(h.sent, chains.sent),
                    batch_open, ",
            waits_for_twin!("?1"),
            " FROM chains NOT INDEXED LEFT JOIN hot_chains h USING (epoch) WHERE state <> 2 OR once = 0"
        );
        let alive: HashSet<i64> = self.sessions_heard_of(now)?;
        let mut census = Census::default();
        let mut queues: BTreeMap<String, QueueCensus> = BTreeMap::new();
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query([now.as_millis()])?;
        while let Some(row) = rows.next()? {
            match ChainState::from_number(row.get(0)?) {
                ChainState::Paused => census.paused += 1,
                ChainState::Retired => census.retired += 1,
                ChainState::Quarantined => census.quarantined += 1,
                ChainState::Active => {
                    let (due, sent) = (time(row, 3)?, row.get(4)?);
                    let holder = match row.get(2)? {
                        0 => Holder::Nobody,
                        session if alive.contains(&session) => Holder::Alive,
                        _ => Holder::Gone,
                    };
                    let name = row.get_ref(1)?.as_str()?;
                    let queue = match queues.get_mut(name) {
                        Some(queue) => queue,
                        None => queues.entry(name.to_owned()).or_default(),
                    };
                    if row.get::<_, i64>(5)? > 0 {
                        queue.waiting += 1;
                        continue;
                    }
                    let waits = row.get(6)?;
                    queue.count(holder, due, sent, waits, now, slack);
                    if !holder.runs() && due <= now && !waits {
                        census.oldest_due = Some(census.oldest_due.map_or(due, |oldest| oldest.min(due)));
                    }
                }
            }
        }
        census.queues = queues.into_iter().map(|(name, counts)| QueueCensus { queue: name, ..counts }).collect();
        let counts = "SELECT (SELECT count(*) FROM failures), (SELECT count(*) FROM quarantine),
                             (SELECT count(*) FROM jobs),
                             (SELECT count(*) FROM failures f
                              JOIN chains c ON c.kind = f.kind AND c.key = f.key AND c.once = 0 AND c.parent = 0
                              WHERE f.permanent AND f.item = '' AND c.state = 2 AND c.last_finish = f.last_at)";
        self.connection.prepare_cached(counts)?.query_row([], |row| {
            census.failures = row.get(0)?;
            census.quarantined_messages = row.get(1)?;
            census.kept_jobs = row.get(2)?;
            census.unavailable = row.get(3)?;
            Ok(())
        })?;
        Ok(census)
    }
}

/// The columns that [`attempt`] reads.
pub(super) const ATTEMPT: &str =
    "fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason, overlapped, misfired, progress";

pub(super) fn attempt(row: &Row<'_>) -> Result<AttemptRecord> {
    Ok(AttemptRecord {
        fence: Fence(row.get(0)?),
        epoch: Epoch(row.get(1)?),
        tick: TickNo(row.get(2)?),
        attempt: row.get(3)?,
        worker: row.get(4)?,
        due: time(row, 5)?,
        started: time(row, 6)?,
        finished: row.get::<_, Option<i64>>(7)?.map(Time::from_millis),
        verdict: row.get(8)?,
        reason: row.get(9)?,
        overlapped: row.get(10)?,
        misfired: row.get(11)?,
        progress: row.get::<_, Option<String>>(12)?.as_deref().and_then(Progress::read),
    })
}

/// The columns that [`chain`] reads after those of the hint.
const CHAIN: &str = "state, payload, nominal,
    CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END, fence, sent, once, owner, schedule, carry, last_start,
                     last_finish, batch_open, batch_total, looks, watch_at, depth, started_tick";

fn chain(row: &Row<'_>) -> Result<ChainView> {
    let at = |column| AFTER_HINT + column;
    Ok(ChainView {
        hint: hint(row)?,
        state: ChainState::from_number(row.get(at(0))?),
        payload: row.get(at(1))?,
        nominal: time(row, at(2))?,
        holder: holder(row, at(3))?,
        fence: Fence(row.get(at(4))?),
        sent: row.get(at(5))?,
        once: row.get(at(6))?,
        owner: row.get(at(7))?,
        schedule: row.get(at(8))?,
        carry: row.get(at(9))?,
        last_start: time(row, at(10))?,
        last_finish: time(row, at(11))?,
        batch: (row.get(at(12))?, row.get(at(13))?),
        looks: row.get(at(14))?,
        watch_at: time(row, at(15))?,
        depth: row.get(at(16))?,
        started_tick: TickNo(row.get(at(17))?),
    })
}

pub(super) fn overdue(row: &Row<'_>) -> Result<Overdue> {
    Ok(Overdue {
        hint: hint(row)?,
        sent: row.get(AFTER_HINT)?,
        watch_at: time(row, AFTER_HINT + 1)?,
        looks: row.get(AFTER_HINT + 2)?,
        holder: holder(row, AFTER_HINT + 3)?,
        expected: time(row, AFTER_HINT + 4)?,
        claim: (row.get(AFTER_HINT + 5)?, Fence(row.get(AFTER_HINT + 6)?)),
    })
}

pub(super) fn kept_job(row: &Row<'_>) -> Result<KeptJob> {
    Ok(KeptJob { number: row.get(0)?, body: row.get(1)?, kept_at: time(row, 2)? })
}

pub(super) fn text_array(values: &[String]) -> rusqlite::vtab::array::Array {
    std::rc::Rc::new(values.iter().cloned().map(rusqlite::types::Value::from).collect())
}
