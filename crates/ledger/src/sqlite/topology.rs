//! The broker topology on which workers agree, in SQL.

use async_trait::async_trait;
use rusqlite::OptionalExtension;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::error::LedgerError;
use crate::topology::Topology;

impl Store {
    pub fn topology(&self) -> Result<Option<String>> {
        let sql = "SELECT value FROM meta WHERE name = 'topology'";
        self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()
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

#[async_trait]
impl Topology for SqliteLedger {
    async fn topology(&self) -> Result<Option<String>, LedgerError> {
        self.read(|store| store.topology()).await
    }

    async fn set_topology(&self, current: Option<String>, next: String) -> Result<bool, LedgerError> {
        self.writer.write(move |store| store.set_topology(current.as_deref(), &next)).await
    }
}
