//! What rosters need, in SQL.

use async_trait::async_trait;
use roundelay_model::ids::Epoch;
use rusqlite::{OptionalExtension, params};

use super::SqliteLedger;
use super::reports::text_array;
use super::store::{Result, Store};
use crate::chain::ChainState;
use crate::error::LedgerError;
use crate::rosters::{Enlisted, Rosters};

impl Store {
    fn enlisted(&self, kind: &str, after: &str, limit: u32) -> Result<Vec<Enlisted>> {
        let sql = "SELECT key, epoch, state FROM chains
                   WHERE kind = ?1 AND key > ?2 AND once = 0 AND parent = 0 ORDER BY key LIMIT ?3";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![kind, after, limit], |row| {
            Ok(Enlisted { key: row.get(0)?, epoch: Epoch(row.get(1)?), state: ChainState::from_number(row.get(2)?) })
        })?;
        rows.collect()
    }

    pub(super) fn depart(&mut self, epochs: &[Epoch]) -> Result<u64> {
        self.fold_all_hot()?;
        let mut departed = 0;
        for epoch in epochs {
            let name = self
                .connection
                .prepare_cached(
                    "UPDATE chains SET state = 2, batch_open = 0, batch_total = 0
                     WHERE epoch = ?1 AND state <> 2 AND once = 0 RETURNING kind, key",
                )?
                .query_row([epoch.get()], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
                .optional()?;
            let Some((kind, key)) = name else { continue };
            departed += 1;
            self.connection
                .prepare_cached(
                    "UPDATE chains SET state = 2, batch_open = 0, batch_total = 0
                     WHERE kind = ?1 AND key = ?2 AND once = 1 AND parent = 0 AND state <> 2",
                )?
                .execute([&kind, &key])?;
            // The members of its batch are not wanted any more. A run of one cannot be finished.
            self.connection
                .prepare_cached(
                    "DELETE FROM chains WHERE parent <> 0 AND parent IN
                         (SELECT epoch FROM chains WHERE kind = ?1 AND key = ?2 AND parent = 0)",
                )?
                .execute([&kind, &key])?;
            self.connection
                .prepare_cached(
                    "INSERT INTO departed (kind, key, epoch) VALUES (?1, ?2, ?3)
                     ON CONFLICT (kind, key) DO UPDATE SET epoch = excluded.epoch",
                )?
                .execute(params![kind, key, epoch.get()])?;
        }
        Ok(departed)
    }

    fn departed(&self, kind: &str, keys: &[String]) -> Result<Vec<String>> {
        let sql = "SELECT key FROM departed JOIN chains USING (kind, key, epoch)
                   WHERE kind = ?1 AND key IN rarray(?2) AND state = 2 AND once = 0 AND parent = 0";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![kind, text_array(keys)], |row| row.get(0))?;
        rows.collect()
    }
}

#[async_trait]
impl Rosters for SqliteLedger {
    async fn enlisted(&self, kind: String, after: String, limit: u32) -> Result<Vec<Enlisted>, LedgerError> {
        self.read(move |store| store.enlisted(&kind, &after, limit)).await
    }

    async fn depart(&self, epochs: Vec<Epoch>) -> Result<u64, LedgerError> {
        self.writer.write(move |store| store.depart(&epochs)).await
    }

    async fn departed(&self, kind: String, keys: Vec<String>) -> Result<Vec<String>, LedgerError> {
        self.read(move |store| store.departed(&kind, &keys)).await
    }
}
