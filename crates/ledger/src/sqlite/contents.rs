//! What users have given to the ledger, in SQL.

use async_trait::async_trait;
use rusqlite::params;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::contents::{Content, Contents, Replacement, Shelf};
use crate::words::LedgerError;

impl Store {
    fn contents(&self, of: Shelf, after: i64, limit: u32) -> Result<Vec<Content>> {
        let sql = match of {
            Shelf::Payloads => {
                "SELECT epoch, kind, key, CAST(payload AS BLOB) FROM chains
                 WHERE epoch > ?1 AND payload <> 'null' ORDER BY epoch LIMIT ?2"
            }
            Shelf::Carries => {
                "SELECT epoch, kind, key, CAST(carry AS BLOB) FROM chains
                 WHERE epoch > ?1 AND carry IS NOT NULL ORDER BY epoch LIMIT ?2"
            }
            Shelf::Jobs => "SELECT number, '', '', body FROM jobs WHERE number > ?1 ORDER BY number LIMIT ?2",
            Shelf::Quarantine => {
                "SELECT number, '', '', body FROM quarantine WHERE number > ?1 ORDER BY number LIMIT ?2"
            }
        };
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![after, limit], |row| {
            Ok(Content { number: row.get(0)?, kind: row.get(1)?, key: row.get(2)?, text: row.get(3)? })
        })?;
        rows.collect()
    }

    fn replace_contents(&mut self, of: Shelf, changes: &[Replacement]) -> Result<Vec<bool>> {
        let sql = match of {
            Shelf::Payloads => {
                "UPDATE chains SET payload = CAST(?3 AS TEXT) WHERE epoch = ?1 AND payload = CAST(?2 AS TEXT)"
            }
            Shelf::Carries => {
                "UPDATE chains SET carry = CAST(?3 AS TEXT) WHERE epoch = ?1 AND carry = CAST(?2 AS TEXT)"
            }
            Shelf::Jobs => "UPDATE jobs SET body = ?3 WHERE number = ?1 AND body = ?2",
            Shelf::Quarantine => "UPDATE quarantine SET body = ?3 WHERE number = ?1 AND body = ?2",
        };
        let mut update = self.connection.prepare_cached(sql)?;
        changes
            .iter()
            .map(|Replacement { number, was, now }| Ok(update.execute(params![number, was, now])? > 0))
            .collect()
    }
}

#[async_trait]
impl Contents for SqliteLedger {
    async fn contents(&self, of: Shelf, after: i64, limit: u32) -> std::result::Result<Vec<Content>, LedgerError> {
        self.read(move |store| store.contents(of, after, limit)).await
    }

    async fn replace_contents(
        &self,
        of: Shelf,
        changes: Vec<Replacement>,
    ) -> std::result::Result<Vec<bool>, LedgerError> {
        self.writer.write(move |store| store.replace_contents(of, &changes)).await
    }
}
