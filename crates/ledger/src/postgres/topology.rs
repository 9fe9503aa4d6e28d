//! The broker topology on which workers agree, in SQL.

use async_trait::async_trait;

use super::PostgresLedger;
use super::reader::{Reader, Result};
use crate::error::LedgerError;
use crate::topology::Topology;

impl Reader {
    pub(super) async fn topology(&self) -> Result<Option<String>> {
        let sql = "SELECT value FROM meta WHERE name = 'topology'";
        Ok(self.rows(sql, &[], |row| row.try_get(0)).await?.pop())
    }

    pub(super) async fn set_topology(&self, current: Option<String>, next: String) -> Result<bool, LedgerError> {
        let changed = match current {
            None => {
                let first = "INSERT INTO meta (name, value) VALUES ('topology', $1) ON CONFLICT (name) DO NOTHING";
                self.execute(first, &[&next]).await?
            }
            Some(current) => {
                let replace = "UPDATE meta SET value = $2 WHERE name = 'topology' AND value = $1";
                self.execute(replace, &[&current, &next]).await?
            }
        };
        Ok(changed == 1)
    }
}

#[async_trait]
impl Topology for PostgresLedger {
    async fn topology(&self) -> Result<Option<String>, LedgerError> {
        self.reader.topology().await
    }

    async fn set_topology(&self, current: Option<String>, next: String) -> Result<bool, LedgerError> {
        self.reader.set_topology(current, next).await
    }
}
