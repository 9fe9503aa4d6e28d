//! What users have given to the ledger, in SQL.

use async_trait::async_trait;
use rusqlite::params;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::error::LedgerError;
use crate::stored_texts::{StoredText, StoredTexts, TextColumn, TextReplacement};

impl Store {
    fn stored_texts(&self, of: TextColumn, after: i64, limit: u32) -> Result<Vec<StoredText>> {
        let sql = match of {
            TextColumn::Payloads => {
                "SELECT epoch, kind, key, CAST(payload AS BLOB) FROM chains
                 WHERE epoch > ?1 AND payload <> 'null' ORDER BY epoch LIMIT ?2"
            }
            TextColumn::Carries => {
                "SELECT epoch, kind, key, CAST(carry AS BLOB) FROM chains
                 WHERE epoch > ?1 AND carry IS NOT NULL ORDER BY epoch LIMIT ?2"
            }
            TextColumn::Jobs => "SELECT number, '', '', body FROM jobs WHERE number > ?1 ORDER BY number LIMIT ?2",
            TextColumn::Quarantine => {
                "SELECT number, '', '', body FROM quarantine WHERE number > ?1 ORDER BY number LIMIT ?2"
            }
        };
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map(params![after, limit], |row| {
            Ok(StoredText { number: row.get(0)?, kind: row.get(1)?, key: row.get(2)?, text: row.get(3)? })
        })?;
        rows.collect()
    }

    fn replace_texts(&mut self, of: TextColumn, changes: &[TextReplacement]) -> Result<Vec<bool>> {
        let sql = match of {
            TextColumn::Payloads => {
                "UPDATE chains SET payload = CAST(?3 AS TEXT) WHERE epoch = ?1 AND payload = CAST(?2 AS TEXT)"
            }
            TextColumn::Carries => {
                "UPDATE chains SET carry = CAST(?3 AS TEXT) WHERE epoch = ?1 AND carry = CAST(?2 AS TEXT)"
            }
            TextColumn::Jobs => "UPDATE jobs SET body = ?3 WHERE number = ?1 AND body = ?2",
            TextColumn::Quarantine => "UPDATE quarantine SET body = ?3 WHERE number = ?1 AND body = ?2",
        };
        let mut update = self.connection.prepare_cached(sql)?;
        changes
            .iter()
            .map(|TextReplacement { number, was, now }| Ok(update.execute(params![number, was, now])? > 0))
            .collect()
    }
}

#[async_trait]
impl StoredTexts for SqliteLedger {
    async fn stored_texts(&self, of: TextColumn, after: i64, limit: u32) -> Result<Vec<StoredText>, LedgerError> {
        self.read(move |store| store.stored_texts(of, after, limit)).await
    }

    async fn replace_texts(&self, of: TextColumn, changes: Vec<TextReplacement>) -> Result<Vec<bool>, LedgerError> {
        self.writer.write(move |store| store.replace_texts(of, &changes)).await
    }
}
