//! Reports, in SQL: the verbs that only read.

use async_trait::async_trait;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use roundelay_model::progress::Progress;
use rusqlite::{Row, params};

use super::SqliteLedger;
use super::failed::RECOVERED;
use super::orders::{WHICH, which_of};
use super::store::{AFTER_HINT, HINT, Result, Store, hint, holder, time};
use crate::census::{Census, QueueCensus};
use crate::chain::{ChainState, Holder};
use crate::error::LedgerError;
use crate::look::{Cursor, LateCursor, ListFilter, Listed, OwnerCensus, failures_for, share, sqlite_glob};
use crate::orders::ChainFilter;
use crate::reports::{AttemptRecord, ChainView, LateChain, Reports};

/// Whether a row of `chains` that is due waits for the other row of its chain: for the end of its run, or, a manual
/// run, for the end of the cooldown that it has been put off to. Asked only of rows that can have such a row beside
/// them, so that it costs the others nothing.
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

/// How many of an owner's active rotations are late, of at most `?2` of them. The index has the owner's; only these are
/// read.
const LATE_OF_OWNER: &str = concat!(
    "SELECT count(*) FROM chains_now AS chains
     WHERE epoch IN (SELECT epoch FROM chains WHERE owner = ?1 AND once = 0 AND parent = 0 AND state = 0 LIMIT ?2)
       AND queue NOT IN (SELECT value FROM json_each(?5)) AND ",
    late!("?3", "?4")
);

/// The sessions whose beat has risen within 40 seconds. A program that only looks cannot rely on the table: perhaps no
/// worker is left to end dead sessions. `?2` is now.
const HEARD: &str = "(SELECT session FROM sessions WHERE beat > ?2 - 40000)";

impl Store {
    pub fn chains(&self, kind: &str, key: &str) -> Result<Vec<ChainView>> {
        let sql =
            format!("SELECT {HINT}, {CHAIN} FROM chains_now WHERE kind = ?1 AND key = ?2 AND parent = 0 ORDER BY once");
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map([kind, key], chain)?;
        rows.collect()
    }

    pub fn late(&self, before: Time, except: &[String], now: Time, limit: u32) -> Result<Vec<LateChain>> {
        let sql = format!(
            "SELECT {HINT}, state, sent, looks, watch_at, iif(holder = 0, 0, iif(holder IN {HEARD}, 1, 2)),
                    (SELECT worker FROM attempts WHERE attempts.fence = chains.fence),
                    (SELECT reason FROM attempts WHERE attempts.fence = chains.fence AND verdict = 'lost')
             FROM chains_now AS chains
             WHERE state = 3 OR (state = 0 AND due < ?1 AND holder NOT IN {HEARD} AND batch_open = 0
                                 AND NOT {waits} AND queue NOT IN (SELECT value FROM json_each(?4)))
             ORDER BY due LIMIT ?3",
            waits = waits_for_twin!("?2")
        );
        let except = serde_json::json!(except).to_string();
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![before.as_millis(), now.as_millis(), limit, except], |row| {
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

    pub fn census(&self, now: Time, slack: Duration) -> Result<Census> {
        // One pass in the order of the file. Grouping in SQL would sort all chains, and going by an
        // index would fetch each from another page: both take several times as long.
        let sql = concat!(
            "SELECT state, queue, coalesce(h.holder, chains.holder) AS holder, due, coalesce(h.sent, chains.sent),
                    batch_open, ",
            waits_for_twin!("?1"),
            ", kind, once = 0 AND parent = 0 FROM chains NOT INDEXED LEFT JOIN hot_chains h USING (epoch) WHERE state <> 2 OR once = 0"
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
                        0 => Holder::None,
                        session if alive.contains(&session) => Holder::Alive,
                        _ => Holder::Gone,
                    };
                    let name = row.get_ref(1)?.as_str()?;
                    let queue = match queues.get_mut(name) {
                        Some(queue) => queue,
                        None => queues.entry(name.to_owned()).or_default(),
                    };
                    if row.get(8)? {
                        queue.rotation(row.get_ref(7)?.as_str()?);
                    }
                    if row.get::<_, i64>(5)? > 0 {
                        queue.waiting += 1;
                        continue;
                    }
                    let waits = row.get(6)?;
                    queue.count(holder, due, sent, waits, now, slack);
                }
            }
        }
        census.queues = queues.into_iter().map(|(name, counts)| QueueCensus { queue: name, ..counts }).collect();
        let counts = format!(
            "SELECT (SELECT count(*) FROM failures), (SELECT count(*) FROM failures f WHERE {RECOVERED}),
                             (SELECT count(*) FROM quarantine),
                             (SELECT count(*) FROM jobs),
                             (SELECT count(*) FROM failures f
                              JOIN chains c ON c.kind = f.kind AND c.key = f.key AND c.once = 0 AND c.parent = 0
                              WHERE f.permanent AND f.item = '' AND c.state = 2 AND c.last_finish = f.last_at)"
        );
        self.connection.prepare_cached(&counts)?.query_row([], |row| {
            census.failures = row.get(0)?;
            census.recovered = row.get(1)?;
            census.quarantined_messages = row.get(2)?;
            census.kept_jobs = row.get(3)?;
            census.unavailable = row.get(4)?;
            Ok(())
        })?;
        let backlog = "SELECT queue, count(*) FROM backlog GROUP BY queue";
        let mut backlog = self.connection.prepare_cached(backlog)?;
        census.backlog = backlog.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_>>()?;
        Ok(census)
    }

    pub fn list(&self, filter: &ListFilter, after: Option<Cursor>, now: Time, limit: u32) -> Result<Vec<Listed>> {
        self.list_by(WHICH, filter, after, now, limit)
    }

    /// The rotations of [`Reports::list`], with a condition `which`: [`WHICH`] or a narrower one.
    pub(super) fn list_by(
        &self,
        which: &str,
        filter: &ListFilter,
        after: Option<Cursor>,
        now: Time,
        limit: u32,
    ) -> Result<Vec<Listed>> {
        let (state, running) = filter.bounds();
        // Chains that do not tick are few as a rule, and have the partial index `chains_resting`. SQLite uses that
        // index only where the query repeats the index's condition, `state <> 0`, word for word.
        let resting = state.filter(|state| *state != ChainState::Active as i64);
        let resting = resting.map_or_else(String::new, |state| format!(" AND state = {state} AND state <> 0"));
        let sql = format!(
            "SELECT {LISTED}
             FROM chains_now AS chains
             WHERE (kind, key) > (?9, ?10) AND kind <= ?11 AND once = 0 AND {which}{resting}
               AND (NOT ?12 OR holder IN (SELECT session FROM sessions))
             ORDER BY kind, key LIMIT ?13"
        );
        let ChainFilter { kind, key, owner, like, queue, late_before, .. } = &filter.which;
        let (like, late_before) = (like.as_deref().map(sqlite_glob), late_before.map(Time::as_millis));
        let ((after_kind, after_key), last) = filter.range(after);
        let mut select = self.connection.prepare_cached(&sql)?;
        let now = now.as_millis();
        let parameters = params![
            kind,
            key,
            owner,
            like,
            queue,
            late_before,
            state,
            now,
            after_kind,
            after_key,
            last,
            running,
            limit
        ];
        let rows = select.query_map(parameters, listed)?;
        rows.collect()
    }

    fn longest_late(
        &self,
        filter: &ListFilter,
        except: &[String],
        after: Option<LateCursor>,
        now: Time,
        limit: u32,
    ) -> Result<Vec<Listed>> {
        let (which, given) = (which_of(&filter.which), &filter.which);
        // In the order of the file, unless an index leads to few. By itself, SQLite goes by the names' index, so it
        // fetches each chain from another page, and takes ten times as long.
        let order =
            if given.owner.is_some() || (given.kind.is_some() && given.key.is_some()) { "" } else { "NOT INDEXED" };
        let sql = format!(
            "SELECT {LISTED} FROM chains_now AS chains
             WHERE epoch IN
                 (SELECT epoch FROM
                      (SELECT c.epoch, c.kind, c.key, c.owner, c.queue, c.state, c.due, c.expected, c.batch_open,
                              c.once, c.parent, c.manual, c.beside, coalesce(h.holder, c.holder) AS holder
                       FROM chains c {order} LEFT JOIN hot_chains h ON h.epoch = c.epoch) AS chains
                  WHERE once = 0 AND (due, epoch) > (?9, ?10) AND {which}
                    AND (NOT ?11 OR holder IN (SELECT session FROM sessions))
                    AND queue NOT IN (SELECT value FROM json_each(?12))
                  ORDER BY due, epoch LIMIT ?13)
             ORDER BY due, epoch"
        );
        let ChainFilter { kind, key, owner, like, queue, late_before, .. } = &filter.which;
        let (like, late_before) = (like.as_deref().map(sqlite_glob), late_before.map(Time::as_millis));
        let (state, running) = filter.bounds();
        let (due, epoch) = after.map_or((i64::MIN, 0), |(due, epoch)| (due.as_millis(), epoch.get()));
        let (now, except) = (now.as_millis(), serde_json::json!(except).to_string());
        let mut select = self.connection.prepare_cached(&sql)?;
        let parameters =
            params![kind, key, owner, like, queue, late_before, state, now, due, epoch, running, except, limit];
        let rows = select.query_map(parameters, listed)?;
        rows.collect()
    }

    pub fn owners(
        &self,
        after: &str,
        limit: u32,
        (before, except): (Time, &[String]),
        now: Time,
        effort: u32,
    ) -> Result<Vec<OwnerCensus>> {
        let mut owners = self.owners_by_state(after, limit)?;
        let (before, now, except) = (before.as_millis(), now.as_millis(), serde_json::json!(except).to_string());
        let each = share(owners.iter().map(|of| of.active), effort);
        let mut late = self.connection.prepare_cached(LATE_OF_OWNER)?;
        for of in owners.iter_mut().filter(|of| of.active > 0) {
            of.late = late.query_row(params![of.owner, each, before, now, except], |row| row.get(0))?;
            of.late_complete = of.active <= each;
        }
        let effort = failures_for(effort);
        let few = "SELECT count(*) <= ?1 FROM (SELECT 1 FROM failures LIMIT ?1 + 1)";
        let complete = self.connection.prepare_cached(few)?.query_row([effort], |row| row.get(0))?;
        let failing = format!(
            "SELECT f.owner, count(*) FROM
                 (SELECT kind, key, item, last_at,
                         (SELECT c.owner FROM chains c WHERE c.kind = f.kind AND c.key = f.key AND c.parent = 0
                          ORDER BY c.once LIMIT 1) AS owner
                  FROM failures f LIMIT ?2) f
             WHERE f.owner IN rarray(?1) AND NOT ({RECOVERED}) GROUP BY f.owner"
        );
        let names: Vec<String> = owners.iter().map(|of| of.owner.clone()).collect();
        let mut select = self.connection.prepare_cached(&failing)?;
        let rows = select.query_map(params![text_array(&names), effort], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let failing: HashMap<String, i64> = rows.collect::<Result<_>>()?;
        for of in &mut owners {
            of.failing = failing.get(&of.owner).copied().unwrap_or(0);
            of.failing_complete = complete;
        }
        Ok(owners)
    }

    /// Owners, with how many chains each has in which state.
    fn owners_by_state(&self, after: &str, limit: u32) -> Result<Vec<OwnerCensus>> {
        // From one name to the next, however many chains each has.
        let sql = "WITH RECURSIVE of_chains (owner, number) AS (
                       SELECT min(owner), 1 FROM chains WHERE owner > ?1
                       UNION ALL
                       SELECT (SELECT min(c.owner) FROM chains c WHERE c.owner > of_chains.owner), number + 1
                       FROM of_chains WHERE owner IS NOT NULL AND number < ?2)
                   SELECT o.owner, coalesce((SELECT state FROM owners WHERE owner = o.owner), 0),
                          count(*) FILTER (WHERE c.state = 0), count(*) FILTER (WHERE c.state = 1),
                          count(*) FILTER (WHERE c.state = 2), count(*) FILTER (WHERE c.state = 3)
                   FROM (SELECT owner FROM of_chains WHERE owner IS NOT NULL
                         UNION SELECT owner FROM owners WHERE owner > ?1 ORDER BY owner LIMIT ?2) o
                   LEFT JOIN chains c ON c.owner = o.owner AND c.once = 0 AND c.parent = 0
                   GROUP BY o.owner ORDER BY o.owner";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![after, limit], |row| {
            Ok(OwnerCensus {
                owner: row.get(0)?,
                state: ChainState::from_number(row.get(1)?),
                active: row.get(2)?,
                paused: row.get(3)?,
                retired: row.get(4)?,
                quarantined: row.get(5)?,
                late: 0,
                late_complete: true,
                failing: 0,
                failing_complete: true,
            })
        })?;
        rows.collect()
    }

    pub fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>> {
        let sql = format!(
            "WITH RECURSIVE back (number, more) AS (
                 SELECT ?1, ?2
                 UNION ALL
                 SELECT previous, more - 1 FROM back JOIN attempts ON fence = number WHERE more > 1)
             SELECT {ATTEMPT} FROM back JOIN attempts ON fence = number ORDER BY fence DESC"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map(params![fence.get(), limit], attempt)?;
        rows.collect()
    }
}

/// The columns that [`attempt`] reads.
pub(super) const ATTEMPT: &str = "fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason, overlapped, misfired, excluded, progress";

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
        excluded: row.get(12)?,
        progress: row.get::<_, Option<String>>(13)?.as_deref().and_then(Progress::read),
    })
}

/// The columns that [`chain`] reads after those of the hint.
const CHAIN: &str = "state, payload, nominal,
    CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END, fence, sent, once, owner, schedule, carry, last_start,
                     last_finish, batch_open, batch_total, looks, watch_at, depth, started_tick, learned";

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
        learned: row.get(at(18))?,
    })
}

pub(super) fn text_array(values: &[String]) -> rusqlite::vtab::array::Array {
    std::rc::Rc::new(values.iter().cloned().map(rusqlite::types::Value::from).collect())
}

/// The columns that [`listed`] reads, of `chains`.
pub(super) const LISTED: &str = "epoch, kind, key, queue, tick, attempt, due, parent, priority, state, fence, nominal,
     CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END, owner,
    schedule, last_start, last_finish, started_tick, batch_open, batch_total,
    -- Of the run that ended it, and of none before.
    iif(state = 2, (SELECT coalesce(f.code || ': ', '') || f.reason FROM failures f
                    WHERE f.kind = chains.kind AND f.key = chains.key AND f.item = '' AND f.permanent
                      AND f.last_at = chains.last_finish), NULL), learned";

pub(super) fn listed(row: &Row<'_>) -> Result<Listed> {
    let at = |column| AFTER_HINT + column;
    Ok(Listed {
        hint: hint(row)?,
        state: ChainState::from_number(row.get(at(0))?),
        fence: Fence(row.get(at(1))?),
        nominal: time(row, at(2))?,
        holder: holder(row, at(3))?,
        owner: row.get(at(4))?,
        schedule: row.get(at(5))?,
        last_start: time(row, at(6))?,
        last_finish: time(row, at(7))?,
        started_tick: TickNo(row.get(at(8))?),
        batch: (row.get(at(9))?, row.get(at(10))?),
        unavailable: row.get(at(11))?,
        learned: row.get(at(12))?,
    })
}

#[async_trait]
impl Reports for SqliteLedger {
    async fn chains(&self, kind: String, key: String) -> Result<Vec<ChainView>, LedgerError> {
        self.read(move |store| store.chains(&kind, &key)).await
    }

    async fn list(&self, filter: ListFilter, after: Option<Cursor>, limit: u32) -> Result<Vec<Listed>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.list(&filter, after, now, limit)).await
    }

    async fn owners(
        &self,
        after: String,
        limit: u32,
        before: Time,
        except: Vec<String>,
        effort: u32,
    ) -> Result<Vec<OwnerCensus>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.owners(&after, limit, (before, &except), now, effort)).await
    }

    async fn longest_late(
        &self,
        filter: ListFilter,
        except: Vec<String>,
        after: Option<LateCursor>,
        limit: u32,
    ) -> Result<Vec<Listed>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.longest_late(&filter, &except, after, now, limit)).await
    }

    async fn late(&self, before: Time, except: Vec<String>, limit: u32) -> Result<Vec<LateChain>, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.late(before, &except, now, limit)).await
    }

    async fn census(&self, slack: Duration) -> Result<Census, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.census(now, slack)).await
    }

    async fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError> {
        self.read(move |store| store.history(fence, limit)).await
    }

    async fn attempts(&self, after: Fence, limit: u32) -> Result<Vec<AttemptRecord>, LedgerError> {
        self.read(move |store| store.attempts(after, limit)).await
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::sqlite::{configure, schema};
    use roundelay_model::clock::Entropy;

    /// An owner may have a few of a million chains.
    #[test]
    fn the_late_chains_of_an_owner_are_counted_by_an_index() {
        let mut connection = Connection::open_in_memory().unwrap();
        configure(&connection).unwrap();
        schema::migrate(&mut connection, &Entropy::seeded(1), Time::from_millis(1_800_000_000_000)).unwrap();
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {LATE_OF_OWNER}")).unwrap();
        let mut rows = plan.raw_query();
        let mut steps = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push(row.get::<_, String>(3).unwrap());
        }
        assert!(steps.iter().any(|step| step.contains("chains_by_owner")), "{steps:#?}");
        let whole = |step: &&String| ["SCAN c", "SCAN h", "SCAN t"].iter().any(|scan| step.starts_with(scan));
        assert_eq!(steps.iter().find(whole), None, "{steps:#?}");
    }
}
