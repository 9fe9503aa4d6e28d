//! Orders for chains, in SQL.

use async_trait::async_trait;
use rusqlite::Row;
use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::Epoch;
use rusqlite::{OptionalExtension, params};

use super::SqliteLedger;
use super::reports::{late, waits_for_twin};
use super::store::{HINT, Result, Store, hint};
use crate::chain::{ChainState, Hint};
use crate::error::LedgerError;
use crate::look::{Move, sqlite_glob};
use crate::orders::{ChainFilter, ChainOrder, ChainOrders};

/// The chains that a [`ChainFilter`] means, of `chains`; its parameters are 1 to 7, and 8 is now. Members of a batch go
/// with its chain.
pub(super) const WHICH: &str = concat!(
    "(?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR key = ?2)
     AND (?3 IS NULL OR owner = ?3) AND (?4 IS NULL OR key GLOB ?4) AND (?5 IS NULL OR queue = ?5)
     AND (?6 IS NULL OR ",
    late!("?6", "?8"),
    ") AND (?7 IS NULL OR state = ?7) AND parent = 0"
);

/// [`WHICH`], with the conditions that leave few chains repeated, so that SQLite finds an index for them.
pub(super) fn which_of(which: &ChainFilter) -> String {
    let name = if which.kind.is_some() && which.key.is_some() { " AND kind = ?1 AND key = ?2" } else { "" };
    let owner = if which.owner.is_some() { " AND owner = ?3" } else { "" };
    format!("{WHICH}{name}{owner}")
}

/// The engine's own chains are left out unless their kind is named.
const NOT_OWN: &str = "(?1 IS NOT NULL OR kind NOT GLOB 'roundelay.*')";

/// The chains of a name, and the members of their batches. `parent <> 0` is implied, and said because SQLite uses the
/// partial index `chains_by_parent` only where the query repeats the index's condition.
const OF_NAME: &str = "SELECT epoch FROM chains WHERE kind = ?1 AND key = ?2
    UNION ALL SELECT m.epoch FROM chains c CROSS JOIN chains m ON m.parent = c.epoch AND m.parent <> 0
              WHERE c.kind = ?1 AND c.key = ?2";

/// Deletes what chains that are about to end wait for. Only these are looked at: chains that have ended before are very
/// many in the end, and wait for nothing.
fn drop_members_of(which: &ChainFilter) -> String {
    let which = which_of(which);
    format!(
        "DELETE FROM chains WHERE parent <> 0
         AND parent IN (SELECT epoch FROM chains WHERE state <> 2 AND batch_total > 0 AND {which})"
    )
}

impl Store {
    pub fn order_chains(&mut self, which: &ChainFilter, order: ChainOrder, at: Time) -> Result<u64> {
        let now = at.as_millis();
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        match (kind, key) {
            // Members of its batch, which may run, go with it.
            (Some(kind), Some(key)) => self.fold_hot(OF_NAME, [kind, key])?,
            _ => self.fold_all_hot()?,
        }
        let (like, late_before) = (like.as_deref().map(sqlite_glob), late_before.map(Time::as_millis));
        let state = state.map(|state| state as i64);
        if let Some(owner) = which.whole_owner() {
            self.steer_owner(owner, order, at)?;
        }
        let parameters = params![kind, key, owner, like, queue, late_before, state, now];
        let states = match order {
            ChainOrder::Pause => &format!("1 WHERE state = 0 AND {NOT_OWN}"),
            ChainOrder::Resume => {
                "0, sent = iif(batch_open > 0, sent, 0), looks = 0, expected = max(due, ?8),
                 watch_at = iif(batch_open > 0, watch_at, ?8) WHERE state = 1"
            }
            ChainOrder::Retire => &format!("2, batch_open = 0, batch_total = 0 WHERE state <> 2 AND {NOT_OWN}"),
            ChainOrder::Recover => return self.recover(which, "state = 3", at),
            ChainOrder::RecoverAll => {
                // The ticks that follow in the epoch of a manual run that is over may have run since the copy: the next
                // one begins an epoch of its own, as after one that was left in the middle.
                let part = "UPDATE chains SET started_tick = tick WHERE state = 2 AND once = 1 AND started_tick < tick";
                let part = format!("{part} AND {}", which_of(which));
                self.connection.prepare_cached(&part)?.execute(parameters)?;
                return self.recover(which, "state <> 2", at);
            }
        };
        if order == ChainOrder::Retire {
            // The members of their batches are not wanted any more. A run of one cannot be finished.
            self.connection.prepare_cached(&drop_members_of(which))?.execute(parameters)?;
        }
        let sql = format!("UPDATE chains SET state = {states} AND {}", which_of(which));
        let changed = self.connection.prepare_cached(&sql)?.execute(parameters)?;
        Ok(changed as u64)
    }

    /// An order for an owner also holds for one-off jobs that still wait in queues.
    fn steer_owner(&mut self, owner: &str, order: ChainOrder, at: Time) -> Result<()> {
        let state = match order {
            ChainOrder::Pause => ChainState::Paused,
            ChainOrder::Retire => ChainState::Retired,
            ChainOrder::Resume => {
                let resume = "DELETE FROM owners WHERE owner = ?1 AND state = ?2";
                self.connection.prepare_cached(resume)?.execute(params![owner, ChainState::Paused as i64])?;
                return Ok(());
            }
            ChainOrder::Recover | ChainOrder::RecoverAll => return Ok(()),
        };
        let upsert = "INSERT INTO owners (owner, state, at) VALUES (?1, ?2, ?3)
                      ON CONFLICT (owner) DO UPDATE SET state = excluded.state, at = excluded.at WHERE state <> 2";
        self.connection.prepare_cached(upsert)?.execute(params![owner, state as i64, at.as_millis()])?;
        Ok(())
    }

    fn recover(&mut self, which: &ChainFilter, states: &str, now: Time) -> Result<u64> {
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        let (like, late_before) = (like.as_deref().map(sqlite_glob), late_before.map(Time::as_millis));
        let state = state.map(|state| state as i64);
        let sql = format!("SELECT epoch FROM chains WHERE {states} AND {} ORDER BY epoch", which_of(which));
        let parameters = params![kind, key, owner, like, queue, late_before, state, now.as_millis()];
        let epochs: Vec<Epoch> = self
            .connection
            .prepare_cached(&sql)?
            .query_map(parameters, |row| row.get(0).map(Epoch))?
            .collect::<Result<_>>()?;
        for old in &epochs {
            let epoch = self.new_epoch(*old, now)?;
            // Where a chain stands in its own time is not known any more, so it is due now.
            self.connection
                .prepare_cached(
                    "UPDATE chains SET nominal = ?2, due = ?2, expected = ?2, watch_at = ?2, state = iif(state = 1, 1, 0)
                     WHERE epoch = ?1",
                )?
                .execute(params![epoch.get(), now.as_millis()])?;
        }
        Ok(epochs.len() as u64)
    }

    pub fn advance(&mut self, kind: &str, key: &str, now: Time, slack: Duration) -> Result<Option<Hint>> {
        self.fold_hot("SELECT epoch FROM chains WHERE kind = ?1 AND key = ?2", [kind, key])?;
        // What is due already has its message, or catch-up sends it.
        let advance = format!(
            "UPDATE chains SET due = ?3, expected = ?3, watch_at = ?4, sent = 0, looks = 0
                       WHERE kind = ?1 AND key = ?2 AND once = 0 AND parent = 0
                         AND state = 0 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0 AND due > ?3
                       RETURNING {HINT}"
        );
        let (now, watch_at) = (now.as_millis(), (now + slack).as_millis());
        self.connection.prepare_cached(&advance)?.query_row(params![kind, key, now, watch_at], hint).optional()
    }

    pub fn matching(&self, which: &ChainFilter, order: ChainOrder, now: Time) -> Result<u64> {
        let states = match order {
            ChainOrder::Pause => &format!("state = 0 AND {NOT_OWN}"),
            ChainOrder::Resume => "state = 1",
            ChainOrder::Retire => &format!("state <> 2 AND {NOT_OWN}"),
            ChainOrder::RecoverAll => "state <> 2",
            ChainOrder::Recover => "state = 3",
        };
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        let (like, late_before) = (like.as_deref().map(sqlite_glob), late_before.map(Time::as_millis));
        let state = state.map(|state| state as i64);
        // The holders of hot chains are in another table, and matter only to a filter that asks for late chains.
        let chains = if late_before.is_some() { "chains_now" } else { "chains" };
        let sql = format!("SELECT count(*) FROM {chains} AS chains WHERE {states} AND {}", which_of(which));
        let count = |row: &Row<'_>| row.get::<_, i64>(0);
        let parameters = params![kind, key, owner, like, queue, late_before, state, now.as_millis()];
        let count = self.connection.prepare_cached(&sql)?.query_row(parameters, count)?;
        Ok(u64::try_from(count).unwrap_or_default())
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

    fn advance_all(&mut self, which: &ChainFilter, now: Time, limit: u32, slack: Duration) -> Result<Vec<Hint>> {
        self.fold_all_hot()?;
        let fits = which_of(which);
        let sql = format!(
            "UPDATE chains SET due = ?8, expected = ?8, watch_at = ?9, sent = 0, looks = 0
             WHERE epoch IN (SELECT epoch FROM chains
                             WHERE {fits} AND once = 0 AND state = 0 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0
                               AND due > ?8
                             LIMIT ?10)
             RETURNING {HINT}"
        );
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        let (like, late_before) = (like.as_deref().map(sqlite_glob), late_before.map(Time::as_millis));
        let state = state.map(|state| state as i64);
        let (now, watch_at) = (now.as_millis(), (now + slack).as_millis());
        let mut update = self.connection.prepare_cached(&sql)?;
        let parameters = params![kind, key, owner, like, queue, late_before, state, now, watch_at, limit];
        update.query_map(parameters, hint)?.collect()
    }
}

#[async_trait]
impl ChainOrders for SqliteLedger {
    async fn order_chains(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.order_chains(&which, order, clock.now())).await
    }

    async fn matching(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
        let now = self.clock.now();
        self.read(move |store| store.matching(&which, order, now)).await
    }

    async fn advance(&self, kind: String, key: String, slack: Duration) -> Result<Option<Hint>, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.advance(&kind, &key, clock.now(), slack)).await
    }

    async fn set_schedule(&self, kind: String, key: String, schedule: Option<String>) -> Result<bool, LedgerError> {
        self.writer.write(move |store| store.set_schedule(&kind, &key, schedule.as_deref())).await
    }

    async fn reschedule(&self, moves: Vec<Move>) -> Result<Vec<Option<Hint>>, LedgerError> {
        self.writer.write(move |store| store.reschedule(&moves)).await
    }

    async fn advance_all(&self, which: ChainFilter, limit: u32, slack: Duration) -> Result<Vec<Hint>, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.advance_all(&which, clock.now(), limit, slack)).await
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::sqlite::{configure, schema};
    use roundelay_model::clock::Entropy;

    /// A program may end one chain after the other, and chains that have ended stay in the file: what an order for one
    /// of them costs does not grow with their number.
    #[test]
    fn an_order_for_one_chain_reads_no_table_from_end_to_end() {
        let mut connection = Connection::open_in_memory().unwrap();
        configure(&connection).unwrap();
        schema::migrate(&mut connection, &Entropy::seeded(1), Time::from_millis(1_800_000_000_000)).unwrap();
        let one = ChainFilter { kind: Some("sync".into()), key: Some("a".into()), ..ChainFilter::default() };
        let update = format!("UPDATE chains SET state = 2 WHERE state <> 2 AND {}", which_of(&one));
        for sql in [OF_NAME, &drop_members_of(&one), &update] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let mut rows = plan.raw_query();
            let mut steps = 0;
            while let Some(row) = rows.next().unwrap() {
                let step: String = row.get(3).unwrap();
                assert!(!step.starts_with("SCAN"), "{step} in {sql}");
                steps += 1;
            }
            assert!(steps > 0, "{sql}");
        }
    }
}
