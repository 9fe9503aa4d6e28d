//! Reports, in SQL: the verbs that only read.

use std::collections::BTreeMap;

use async_trait::async_trait;
use std::collections::HashMap;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::progress::Progress;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::failed::recovered;
use super::group::{hint, small};
use super::reader::{Reader, Result};
use crate::census::{Census, QueueCensus};
use crate::chain::{ChainState, Holder};
use crate::error::LedgerError;
use crate::look::{Cursor, LateCursor, ListFilter, Listed, OwnerCensus, failures_for, share, sql_like};
use crate::orders::ChainFilter;
use crate::reports::{AttemptRecord, ChainView, LateChain, Reports};

pub(super) fn time(row: &Row, column: usize) -> Result<Time, Error> {
    row.try_get(column).map(Time::from_millis)
}

/// Who has claimed a row of `chains`, as [`holder`] reads it.
macro_rules! holder_of {
    () => {
        "CASE WHEN chains.holder = 0 THEN 0 WHEN chains.holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END::int8"
    };
}

pub(super) fn holder(row: &Row, column: usize) -> Result<Holder, Error> {
    row.try_get(column).map(Holder::from_number)
}

pub(super) use holder_of;

/// Whether a row of `chains` that is due waits for the other row of its chain: for the end of its run, or, a manual
/// run, for the end of the cooldown that it has been put off to. Asked only of rows that can have such a row beside
/// them, so that it costs the others nothing.
macro_rules! waits_for_twin {
    ($now:literal) => {
        concat!(
            "(CASE WHEN chains.parent = 0 AND (chains.once OR chains.beside) THEN
                  (chains.once AND chains.expected > ",
            $now,
            ") OR EXISTS (
                  SELECT FROM chains t
                  WHERE t.kind = chains.kind AND t.key = chains.key AND t.once <> chains.once AND t.parent = 0
                    AND (t.holder IN (SELECT session FROM sessions) OR t.batch_open > 0) AND (CASE WHEN t.once THEN t.manual ELSE chains.manual END) & 3 <> 2)
              ELSE false END)"
        )
    };
}
pub(super) use waits_for_twin;

/// Whether a row of `chains` is late: it ticks, was due before `$before`, is not being run, and waits neither for its
/// batch nor for the other row of its chain. `$now` is now.
macro_rules! late {
    ($before:literal, $now:literal) => {
        concat!(
            "(chains.state = 0 AND chains.due < ",
            $before,
            " AND chains.holder NOT IN (SELECT session FROM sessions) AND chains.batch_open = 0 AND NOT ",
            waits_for_twin!($now),
            ")"
        )
    };
}
pub(super) use late;

/// The columns that [`listed`] reads, of `chains`.
macro_rules! listed_columns {
    () => {
        "epoch, kind, key, queue, tick, attempt, due, parent, state, fence, nominal,
         CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END::int8, owner, schedule,
         last_start, last_finish, started_tick, batch_open, batch_total,
         -- Of the run that ended it, and of none before.
         CASE WHEN state = 2 THEN
             (SELECT coalesce(f.code || ': ', '') || f.reason FROM failures f
              WHERE f.kind = chains.kind AND f.key = chains.key AND f.item = '' AND f.permanent
                AND f.last_at = chains.last_finish)
         END, priority, learned"
    };
}
pub(super) use listed_columns;

impl Reader {
    pub(super) async fn chains(&self, kind: String, key: String) -> Result<Vec<ChainView>> {
        let sql = concat!(
            "SELECT epoch, kind, key, queue, tick, attempt, due, parent, state, payload, nominal, ",
            holder_of!(),
            ", fence, sent, once, owner, schedule, carry, last_start, last_finish, batch_open, batch_total, looks,
               watch_at, depth, priority, started_tick, learned
             FROM chains WHERE kind = $1 AND key = $2 AND parent = 0 ORDER BY once"
        );
        self.rows(sql, &[&kind, &key], chain).await
    }

    pub(super) async fn late(&self, before: Time, except: &[String], now: Time, limit: u32) -> Result<Vec<LateChain>> {
        let sql = concat!(
            "SELECT epoch, kind, key, queue, tick, attempt, due, parent, state, sent, looks, watch_at, ",
            "CASE WHEN chains.holder = 0 THEN 0
                  WHEN chains.holder IN (SELECT session FROM sessions WHERE beat > $2::int8 - 40000) THEN 1
                  ELSE 2 END::int8",
            ", (SELECT worker FROM attempts WHERE attempts.fence = chains.fence),
             (SELECT reason FROM attempts WHERE attempts.fence = chains.fence AND verdict = 'lost'), priority
             FROM chains
             WHERE state = 3 OR (state = 0 AND due < $1 AND holder NOT IN (SELECT session FROM sessions WHERE beat > $2::int8 - 40000) AND batch_open = 0 AND NOT ",
            waits_for_twin!("$2"),
            " AND queue <> ALL ($4::text[])) ORDER BY due LIMIT $3"
        );
        let late = |row: &Row| {
            Ok(LateChain {
                hint: hint(row)?,
                state: ChainState::from_number(row.try_get(8)?),
                sent: row.try_get(9)?,
                looks: small(row.try_get(10)?),
                watch_at: time(row, 11)?,
                holder: holder(row, 12)?,
                worker: row.try_get(13)?,
                reason: row.try_get(14)?,
            })
        };
        self.rows(sql, &[&before.as_millis(), &now.as_millis(), &i64::from(limit), &except], late).await
    }

    pub(super) async fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>> {
        let sql = "SELECT fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason,
                          overlapped, misfired, excluded, progress
                   FROM attempts
                   WHERE fence > $1 ORDER BY fence LIMIT $2";
        self.rows(sql, &[&after.get(), &i64::from(limit)], attempt).await
    }

    pub(super) async fn census(&self, now: Time, slack: Duration) -> Result<Census> {
        let sql = concat!(
            "SELECT queue, kind, count(*) FILTER (WHERE NOT once AND parent = 0),
                    count(*) FILTER (WHERE batch_open = 0 AND runs),
                    count(*) FILTER (WHERE batch_open = 0 AND NOT runs AND due > $1),
                    count(*) FILTER (WHERE batch_open = 0 AND NOT runs AND due <= $1),
                    count(*) FILTER (WHERE batch_open = 0 AND NOT runs AND due <= $2 AND NOT ",
            waits_for_twin!("$1"),
            "),
                    count(*) FILTER (WHERE batch_open = 0 AND NOT runs AND NOT sent),
                    count(*) FILTER (WHERE batch_open > 0),
                    min(due) FILTER (WHERE batch_open = 0 AND NOT runs AND due <= $1 AND NOT ",
            waits_for_twin!("$1"),
            ")
             FROM (SELECT *, holder IN (SELECT session FROM sessions WHERE beat > $1::int8 - 40000) AS runs
                   FROM chains WHERE state = 0) chains
             GROUP BY queue, kind ORDER BY queue, kind"
        );
        let of_kind = |row: &Row| {
            Ok(QueueCensus {
                queue: row.try_get(0)?,
                kinds: Some((row.try_get(1)?, row.try_get(2)?)).filter(|(_, count)| *count > 0).into_iter().collect(),
                running: row.try_get(3)?,
                sleeping: row.try_get(4)?,
                due: row.try_get(5)?,
                overdue: row.try_get(6)?,
                held: 0,
                overslept: 0,
                unsent: row.try_get(7)?,
                waiting: row.try_get(8)?,
                oldest_due: row.try_get::<_, Option<i64>>(9)?.map(Time::from_millis),
            })
        };
        let (now, overdue_before) = (now.as_millis(), (now - slack).as_millis());
        let mut queues: Vec<QueueCensus> = Vec::new();
        for of_kind in self.rows(sql, &[&now, &overdue_before], of_kind).await? {
            match queues.last_mut().filter(|queue| queue.queue == of_kind.queue) {
                Some(queue) => queue.add(of_kind),
                None => queues.push(of_kind),
            }
        }
        let counts = concat!(
            "SELECT (SELECT count(*) FROM chains WHERE state = 1),
                    (SELECT count(*) FROM chains WHERE state = 2 AND NOT once),
                    (SELECT count(*) FROM chains WHERE state = 3),
                    (SELECT count(*) FROM failures),
                    (SELECT count(*) FROM failures f WHERE ",
            recovered!(),
            "),
                    (SELECT count(*) FROM quarantine),
                    (SELECT count(*) FROM jobs),
                    (SELECT count(*) FROM failures f
                     JOIN chains c ON c.kind = f.kind AND c.key = f.key AND NOT c.once AND c.parent = 0
                     WHERE f.permanent AND f.item = '' AND c.state = 2 AND c.last_finish = f.last_at)"
        );
        let count = |row: &Row| {
            Ok(Census {
                queues: Vec::new(),
                paused: row.try_get(0)?,
                retired: row.try_get(1)?,
                quarantined: row.try_get(2)?,
                failures: row.try_get(3)?,
                recovered: row.try_get(4)?,
                quarantined_messages: row.try_get(5)?,
                kept_jobs: row.try_get(6)?,
                unavailable: row.try_get(7)?,
                backlog: BTreeMap::new(),
            })
        };
        let counted = self.rows(counts, &[], count).await?.pop().unwrap_or_default();
        let backlog = "SELECT queue, count(*) FROM backlog GROUP BY queue";
        let backlog = self.rows(backlog, &[], |row| Ok((row.try_get(0)?, row.try_get(1)?))).await?;
        Ok(Census { queues, backlog: backlog.into_iter().collect(), ..counted })
    }

    pub(super) async fn list(
        &self,
        filter: ListFilter,
        after: Option<Cursor>,
        now: Time,
        limit: u32,
    ) -> Result<Vec<Listed>> {
        let sql = concat!(
            "SELECT ",
            listed_columns!(),
            " FROM chains
                   WHERE (kind, key) > ($4, $5) AND kind <= $6 AND NOT once AND parent = 0
                     AND ($1::text IS NULL OR key = $1) AND ($2::text IS NULL OR owner = $2)
                     AND ($3::text IS NULL OR key LIKE $3)
                     AND ($7::int8 IS NULL OR state = $7) AND (NOT $8 OR holder IN (SELECT session FROM sessions))
                     AND ($11::text IS NULL OR queue = $11)
                     AND ($12::int8 IS NULL OR ",
            late!("$12", "$9"),
            ")
                   ORDER BY kind, key LIMIT $10"
        );
        let ((after_kind, after_key), last) = filter.range(after);
        let (state, running) = filter.bounds();
        let ChainFilter { key, owner, like, queue, late_before, .. } = &filter.which;
        let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
        let (now, limit) = (now.as_millis(), i64::from(limit));
        let parameters: [&(dyn ToSql + Sync); 12] =
            [key, owner, &like, &after_kind, &after_key, &last, &state, &running, &now, &limit, queue, &late_before];
        self.rows(sql, &parameters, listed).await
    }

    async fn longest_late(
        &self,
        filter: ListFilter,
        except: &[String],
        after: Option<LateCursor>,
        now: Time,
        limit: u32,
    ) -> Result<Vec<Listed>> {
        let sql = concat!(
            "SELECT ",
            listed_columns!(),
            " FROM chains
              WHERE NOT once AND parent = 0 AND (due, epoch) > ($10::int8, $11::int8) AND queue <> ALL ($12::text[])
                AND ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR key = $2)
                AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR key LIKE $4)
                AND ($5::text IS NULL OR queue = $5) AND ($7::int8 IS NULL OR state = $7)
                AND (NOT $8 OR holder IN (SELECT session FROM sessions))
                AND ($6::int8 IS NULL OR ",
            late!("$6", "$9"),
            ")
              ORDER BY due, epoch LIMIT $13"
        );
        let ChainFilter { kind, key, owner, like, queue, late_before, .. } = &filter.which;
        let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
        let (state, running) = filter.bounds();
        let (due, epoch) = after.map_or((i64::MIN, 0), |(due, epoch)| (due.as_millis(), epoch.get()));
        let (now, limit) = (now.as_millis(), i64::from(limit));
        let parameters: [&(dyn ToSql + Sync); 13] =
            [kind, key, owner, &like, queue, &late_before, &state, &running, &now, &due, &epoch, &except, &limit];
        self.rows(sql, &parameters, listed).await
    }

    async fn owners(
        &self,
        after: String,
        limit: u32,
        (before, except): (Time, &[String]),
        now: Time,
        effort: u32,
    ) -> Result<Vec<OwnerCensus>> {
        // The range of one name, the order, and a limit that the planner does not know have each owner's chains read by
        // the index, and no more of them than are wanted, whatever it takes for the usual number of chains of an owner.
        let late = concat!(
            "SELECT o.owner,
                    (SELECT count(*) FROM
                         (SELECT * FROM chains
                          WHERE owner >= o.owner AND owner <= o.owner AND NOT once AND parent = 0 AND state = 0
                          ORDER BY owner LIMIT (SELECT $2::int8)) chains
                     WHERE queue <> ALL ($5::text[]) AND ",
            late!("$3", "$4"),
            ") FROM unnest($1::text[]) AS o (owner)"
        );
        let failing = concat!(
            "SELECT f.owner, count(*) FROM
                 (SELECT kind, key, item, last_at,
                         (SELECT c.owner FROM chains c WHERE c.kind = f.kind AND c.key = f.key AND c.parent = 0
                          ORDER BY c.once LIMIT 1) AS owner
                  FROM failures f LIMIT $2::int8) f
             WHERE f.owner = ANY ($1::text[]) AND NOT (",
            recovered!(),
            ") GROUP BY f.owner"
        );
        let few = "SELECT count(*) <= $1::int8 FROM (SELECT FROM failures LIMIT $1::int8 + 1) few";
        let mut owners = self.owners_by_state(after, limit).await?;
        let each = share(owners.iter().map(|of| of.active), effort);
        let (before, now, effort) = (before.as_millis(), now.as_millis(), i64::from(failures_for(effort)));
        let active: Vec<&str> = owners.iter().filter(|of| of.active > 0).map(|of| of.owner.as_str()).collect();
        let count = |row: &Row| Ok((row.try_get::<_, String>(0)?, row.try_get::<_, i64>(1)?));
        let late = self.rows(late, &[&active, &each, &before, &now, &except], count).await?;
        let names: Vec<&str> = owners.iter().map(|of| of.owner.as_str()).collect();
        let failing = self.rows(failing, &[&names, &effort], count).await?;
        let complete = self.rows(few, &[&effort], |row| row.try_get(0)).await?.pop().unwrap_or(false);
        let (late, failing) =
            (late.into_iter().collect::<HashMap<_, _>>(), failing.into_iter().collect::<HashMap<_, _>>());
        for of in &mut owners {
            of.late = late.get(&of.owner).copied().unwrap_or(0);
            of.late_complete = of.active <= each;
            of.failing = failing.get(&of.owner).copied().unwrap_or(0);
            of.failing_complete = complete;
        }
        Ok(owners)
    }

    /// Owners, with how many chains each has in which state.
    async fn owners_by_state(&self, after: String, limit: u32) -> Result<Vec<OwnerCensus>> {
        // From one name to the next, however many chains each has; and then the chains of each by themselves, since in
        // one join with all of them the table would be read from end to end.
        let sql = r#"WITH RECURSIVE of_chains (owner, number) AS (
                         SELECT min(owner), 1::int8 FROM chains WHERE owner > $1
                         UNION ALL
                         SELECT (SELECT min(c.owner) FROM chains c WHERE c.owner > of_chains.owner), number + 1
                         FROM of_chains WHERE owner IS NOT NULL AND number < $2::int8)
                     SELECT o.owner, coalesce((SELECT state FROM owners w WHERE w.owner = o.owner), 0),
                            n.active, n.paused, n.retired, n.quarantined
                     FROM (SELECT owner FROM of_chains WHERE owner IS NOT NULL
                           UNION SELECT owner FROM owners WHERE owner > $1 ORDER BY owner LIMIT $2::int8) o
                     CROSS JOIN LATERAL (
                         SELECT count(*) FILTER (WHERE state = 0) AS active, count(*) FILTER (WHERE state = 1) AS paused,
                                count(*) FILTER (WHERE state = 2) AS retired,
                                count(*) FILTER (WHERE state = 3) AS quarantined
                         FROM chains WHERE owner = o.owner AND NOT once AND parent = 0) n
                     ORDER BY o.owner"#;
        let census = |row: &Row| {
            Ok(OwnerCensus {
                owner: row.try_get(0)?,
                state: ChainState::from_number(row.try_get(1)?),
                active: row.try_get(2)?,
                paused: row.try_get(3)?,
                retired: row.try_get(4)?,
                quarantined: row.try_get(5)?,
                late: 0,
                late_complete: true,
                failing: 0,
                failing_complete: true,
            })
        };
        self.rows(sql, &[&after, &i64::from(limit)], census).await
    }

    pub(super) async fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>> {
        let sql = "WITH RECURSIVE back (number, more) AS (
                       SELECT $1::int8, $2::int8
                       UNION ALL
                       SELECT previous, more - 1 FROM back JOIN attempts ON fence = number WHERE more > 1)
                   SELECT fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason, overlapped,
                          misfired, excluded, progress
                   FROM back JOIN attempts ON fence = number ORDER BY fence DESC";
        self.rows(sql, &[&fence.get(), &i64::from(limit)], attempt).await
    }
}

fn chain(row: &Row) -> Result<ChainView, Error> {
    Ok(ChainView {
        hint: hint(row)?,
        state: ChainState::from_number(row.try_get(8)?),
        payload: row.try_get(9)?,
        nominal: time(row, 10)?,
        holder: holder(row, 11)?,
        fence: Fence(row.try_get(12)?),
        sent: row.try_get(13)?,
        once: row.try_get(14)?,
        owner: row.try_get(15)?,
        schedule: row.try_get(16)?,
        carry: row.try_get(17)?,
        last_start: time(row, 18)?,
        last_finish: time(row, 19)?,
        batch: (row.try_get(20)?, row.try_get(21)?),
        looks: small(row.try_get(22)?),
        watch_at: time(row, 23)?,
        depth: small(row.try_get(24)?),
        started_tick: TickNo(row.try_get("started_tick")?),
        learned: row.try_get("learned")?,
    })
}

/// In the order fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason, overlapped, misfired,
/// excluded, progress.
pub(super) fn attempt(row: &Row) -> Result<AttemptRecord, Error> {
    Ok(AttemptRecord {
        fence: Fence(row.try_get(0)?),
        epoch: Epoch(row.try_get(1)?),
        tick: TickNo(row.try_get(2)?),
        attempt: small(row.try_get(3)?),
        worker: row.try_get(4)?,
        due: time(row, 5)?,
        started: time(row, 6)?,
        finished: row.try_get::<_, Option<i64>>(7)?.map(Time::from_millis),
        verdict: row.try_get(8)?,
        reason: row.try_get(9)?,
        overlapped: small(row.try_get(10)?),
        misfired: small(row.try_get(11)?),
        excluded: small(row.try_get(12)?),
        progress: row.try_get::<_, Option<String>>(13)?.as_deref().and_then(Progress::read),
    })
}

pub(super) fn listed(row: &Row) -> Result<Listed, Error> {
    Ok(Listed {
        hint: hint(row)?,
        state: ChainState::from_number(row.try_get(8)?),
        fence: Fence(row.try_get(9)?),
        nominal: time(row, 10)?,
        holder: holder(row, 11)?,
        owner: row.try_get(12)?,
        schedule: row.try_get(13)?,
        last_start: time(row, 14)?,
        last_finish: time(row, 15)?,
        started_tick: TickNo(row.try_get(16)?),
        batch: (row.try_get(17)?, row.try_get(18)?),
        unavailable: row.try_get(19)?,
        learned: row.try_get("learned")?,
    })
}

#[async_trait]
impl Reports for PostgresLedger {
    async fn chains(&self, kind: String, key: String) -> Result<Vec<ChainView>, LedgerError> {
        self.reader.chains(kind, key).await
    }

    async fn list(&self, filter: ListFilter, after: Option<Cursor>, limit: u32) -> Result<Vec<Listed>, LedgerError> {
        self.reader.list(filter, after, self.clock.now(), limit).await
    }

    async fn owners(
        &self,
        after: String,
        limit: u32,
        before: Time,
        except: Vec<String>,
        effort: u32,
    ) -> Result<Vec<OwnerCensus>, LedgerError> {
        self.reader.owners(after, limit, (before, &except), self.clock.now(), effort).await
    }

    async fn longest_late(
        &self,
        filter: ListFilter,
        except: Vec<String>,
        after: Option<LateCursor>,
        limit: u32,
    ) -> Result<Vec<Listed>, LedgerError> {
        self.reader.longest_late(filter, &except, after, self.clock.now(), limit).await
    }

    async fn late(&self, before: Time, except: Vec<String>, limit: u32) -> Result<Vec<LateChain>, LedgerError> {
        self.reader.late(before, &except, self.clock.now(), limit).await
    }

    async fn census(&self, slack: Duration) -> Result<Census, LedgerError> {
        self.reader.census(self.clock.now(), slack).await
    }

    async fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError> {
        self.reader.history(fence, limit).await
    }

    async fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError> {
        self.reader.attempts(after, limit).await
    }
}
