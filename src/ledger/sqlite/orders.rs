//! What operators want, in SQL.

use rusqlite::{OptionalExtension, params};

use super::store::{Result, Store};
use crate::clock::Time;
use crate::ledger::{Order, Which};

/// The chains that a [`Which`] means; its parameters are 1 and 2.
const WHICH: &str = "(?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR key = ?2)";

impl Store {
    pub fn steer(&mut self, which: &Which, order: Order, at: Time) -> Result<u64> {
        let now = at.as_millis();
        let (kind, key) = (which.kind.as_deref(), which.key.as_deref());
        let states = match order {
            Order::Pause => "1 WHERE state = 0",
            Order::Resume => "0, sent = 0, looks = 0, expected = max(due, ?3), watch_at = ?3 WHERE state = 1",
            Order::Retire => "2 WHERE state <> 2",
            Order::Recover => return self.recover(which, "state = 3", at),
            Order::RecoverAll => return self.recover(which, "state <> 2", at),
        };
        // The parameter is named in each, so that all take the same three.
        let sql = format!("UPDATE chains SET state = {states} AND {WHICH} AND ?3 IS NOT NULL");
        let changed = self.connection.prepare_cached(&sql)?.execute(params![kind, key, now])?;
        Ok(changed as u64)
    }

    fn recover(&mut self, which: &Which, state: &str, now: Time) -> Result<u64> {
        let sql = format!("SELECT epoch FROM chains WHERE {state} AND {WHICH} ORDER BY epoch");
        let epochs: Vec<i64> = self
            .connection
            .prepare_cached(&sql)?
            .query_map(params![which.kind, which.key], |row| row.get(0))?
            .collect::<Result<_>>()?;
        for old in &epochs {
            let epoch = self.new_epoch(*old, now)?;
            // Where a chain stands in its own time is not known any more, so it is due now.
            self.connection
                .prepare_cached(
                    "UPDATE chains SET nominal = ?2, due = ?2, expected = ?2, watch_at = ?2, state = iif(state = 1, 1, 0)
                     WHERE epoch = ?1",
                )?
                .execute(params![epoch, now.as_millis()])?;
        }
        Ok(epochs.len() as u64)
    }

    pub fn set_topology(&mut self, current: Option<&str>, next: &str) -> Result<bool> {
        let found: Option<String> = self
            .connection
            .prepare_cached("SELECT value FROM meta WHERE name = 'topology'")?
            .query_row([], |row| row.get(0))
            .optional()?;
        if found.as_deref() != current {
            return Ok(false);
        }
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES ('topology', ?1)")?
            .execute([next])?;
        Ok(true)
    }
}
