//! What operators ask about many chains, and how chains are moved in time, in SQL.

use roundelay_model::clock::Time;
use roundelay_model::failure::Failure;
use roundelay_model::ids::{Fence, TickNo};
use rusqlite::{OptionalExtension, Row, params};

use super::failed::{FAILURE, failure};
use super::orders::{WHICH, which_of};
use super::store::{AFTER_HINT, HINT, Result, Store, hint, holder, time};
use super::views::{ATTEMPT, attempt};
use crate::chain::{ChainState, Hint};
use crate::chain_orders::{ChainFilter, ChainOrder};
use crate::look::{Cursor, ListFilter, Listed, Move, OwnerCensus, sqlite_glob};
use crate::view::AttemptRecord;

impl Store {
    pub fn matching(&self, which: &ChainFilter, order: ChainOrder, now: Time) -> Result<u64> {
        let states = match order {
            ChainOrder::Pause => "state = 0",
            ChainOrder::Resume => "state = 1",
            ChainOrder::Retire | ChainOrder::RecoverAll => "state <> 2",
            ChainOrder::Recover => "state = 3",
        };
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        let (like, late_before) = (like.as_deref().map(sqlite_glob), late_before.map(Time::as_millis));
        let state = state.map(|state| state as i64);
        // Who runs what is in another table meanwhile, and matters to those only that ask for it.
        let chains = if late_before.is_some() { "chains_now" } else { "chains" };
        let sql = format!("SELECT count(*) FROM {chains} AS chains WHERE {states} AND {}", which_of(which));
        let count = |row: &Row<'_>| row.get::<_, i64>(0);
        let parameters = params![kind, key, owner, like, queue, late_before, state, now.as_millis()];
        let count = self.connection.prepare_cached(&sql)?.query_row(parameters, count)?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    pub fn list(&self, filter: &ListFilter, after: Option<Cursor>, now: Time, limit: u32) -> Result<Vec<Listed>> {
        self.list_by(WHICH, filter, after, now, limit)
    }

    pub fn furthest(&self, queue: &str, now: Time, limit: u32) -> Result<Vec<Listed>> {
        let sql = format!(
            "SELECT {LISTED} FROM chains_now AS chains
             WHERE once = 0 AND epoch IN (
                 SELECT epoch FROM (SELECT epoch FROM chains WHERE queue = ?1 AND state = 0
                                    ORDER BY watch_at DESC LIMIT ?2)
                 UNION ALL
                 SELECT epoch FROM (SELECT epoch, due FROM chains WHERE queue = ?1 AND state = 0 AND watch_at < ?3
                                    ORDER BY watch_at LIMIT ?2) WHERE due > ?3)
             ORDER BY due DESC"
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        select.query_map(params![queue, limit, now.as_millis()], listed)?.collect()
    }

    /// Likewise, where `which` is [`WHICH`] or narrower.
    pub(super) fn list_by(
        &self,
        which: &str,
        filter: &ListFilter,
        after: Option<Cursor>,
        now: Time,
        limit: u32,
    ) -> Result<Vec<Listed>> {
        let (state, running) = filter.bounds();
        // Those that rest are few as a rule, and have an index.
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

    pub fn owners(&self, after: &str, limit: u32) -> Result<Vec<OwnerCensus>> {
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

    pub fn failures_of(&self, kind: &str, key: &str) -> Result<Vec<Failure>> {
        let sql = format!("SELECT {FAILURE} FROM failures f WHERE f.kind = ?1 AND f.key = ?2 ORDER BY f.last_at DESC");
        let mut select = self.connection.prepare_cached(&sql)?;
        let rows = select.query_map([kind, key], failure)?;
        rows.collect()
    }

    pub fn set_schedule(&mut self, kind: &str, key: &str, schedule: Option<&str>) -> Result<bool> {
        let sql = "UPDATE chains SET schedule = ?3
                   WHERE kind = ?1 AND key = ?2 AND once = 0 AND parent = 0 AND state <> 2";
        Ok(self.connection.prepare_cached(sql)?.execute(params![kind, key, schedule])? == 1)
    }

    pub fn reschedule(&mut self, moves: &[Move]) -> Result<Vec<Option<Hint>>> {
        let sql = format!(
            "UPDATE chains SET nominal = ?4, due = ?5, expected = ?5, watch_at = ?6, sent = 0, looks = 0
             WHERE epoch = ?1 AND tick = ?2 AND due = ?3 AND attempt = 1 AND started_tick < tick
               AND state IN (0, 1) AND once = 0 AND parent = 0 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0
             RETURNING {HINT}"
        );
        self.fold_all_hot()?;
        let mut update = self.connection.prepare_cached(&sql)?;
        let mut one = |Move { epoch, tick, from, nominal, due, watch_at }: &Move| {
            let [from, nominal, due, watch_at] = [*from, *nominal, *due, *watch_at].map(Time::as_millis);
            update.query_row(params![epoch.get(), tick.get(), from, nominal, due, watch_at], hint).optional()
        };
        moves.iter().map(&mut one).collect()
    }
}

/// The columns that [`listed`] reads, of `chains`.
pub(super) const LISTED: &str = "epoch, kind, key, queue, tick, attempt, due, parent, priority, state, fence, nominal,
     CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END, owner,
    schedule, last_start, last_finish, started_tick, batch_open, batch_total,
    -- Of the run that ended it, and of none before.
    iif(state = 2, (SELECT coalesce(f.code || ': ', '') || f.reason FROM failures f
                    WHERE f.kind = chains.kind AND f.key = chains.key AND f.item = '' AND f.permanent
                      AND f.last_at = chains.last_finish), NULL)";

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
    })
}
