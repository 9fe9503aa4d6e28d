//! What users have given to the ledger, in SQL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use async_trait::async_trait;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::words;
use crate::error::LedgerError;
use crate::stored_texts::{StoredText, StoredTexts, TextColumn, TextReplacement};

/// The statements of [`replace`], which are prepared once.
static REPLACE: LazyLock<BTreeMap<TextColumn, String>> =
    LazyLock::new(|| TextColumn::ALL.map(|of| (of, replace(of))).into());

/// Of the rows with the numbers `$1`, those whose text still is as in `$2` have it as in `$3` afterwards; answers their
/// numbers. It locks the rows in their order first, as every transaction does.
fn replace(of: TextColumn) -> String {
    let (table, number, column, is_text) = match of {
        TextColumn::Payloads => ("chains", "epoch", "payload", true),
        TextColumn::Carries => ("chains", "epoch", "carry", true),
        TextColumn::Jobs => ("jobs", "number", "body", false),
        TextColumn::Quarantine => ("quarantine", "number", "body", false),
    };
    let (was, is_now) = match is_text {
        true => ("convert_from(u.was, 'UTF8')", "convert_from(u.is_now, 'UTF8')"),
        false => ("u.was", "u.is_now"),
    };
    format!(
        "WITH held AS MATERIALIZED (
             SELECT {number} FROM {table} WHERE {number} = ANY ($1::int8[]) ORDER BY {number} FOR UPDATE)
         UPDATE {table} t SET {column} = {is_now}
         FROM held, unnest($1::int8[], $2::bytea[], $3::bytea[]) AS u (number, was, is_now)
         WHERE t.{number} = held.{number} AND t.{number} = u.number AND t.{column} = {was}
         RETURNING t.{number}"
    )
}

#[async_trait]
impl StoredTexts for PostgresLedger {
    async fn stored_texts(&self, of: TextColumn, after: i64, limit: u32) -> Result<Vec<StoredText>, LedgerError> {
        let sql = match of {
            TextColumn::Payloads => {
                "SELECT epoch, kind, key, convert_to(payload, 'UTF8') FROM chains
                 WHERE epoch > $1 AND payload <> 'null' ORDER BY epoch LIMIT $2"
            }
            TextColumn::Carries => {
                "SELECT epoch, kind, key, convert_to(carry, 'UTF8') FROM chains
                 WHERE epoch > $1 AND carry IS NOT NULL ORDER BY epoch LIMIT $2"
            }
            TextColumn::Jobs => "SELECT number, '', '', body FROM jobs WHERE number > $1 ORDER BY number LIMIT $2",
            TextColumn::Quarantine => {
                "SELECT number, '', '', body FROM quarantine WHERE number > $1 ORDER BY number LIMIT $2"
            }
        };
        let content = |row: &Row| {
            Ok(StoredText {
                number: row.try_get(0)?,
                kind: row.try_get(1)?,
                key: row.try_get(2)?,
                text: row.try_get(3)?,
            })
        };
        let rows = self.reader.query(sql, &[&after, &i64::from(limit)]).await?;
        rows.iter().map(content).collect::<Result<_, Error>>().map_err(told)
    }

    async fn replace_texts(&self, of: TextColumn, changes: Vec<TextReplacement>) -> Result<Vec<bool>, LedgerError> {
        let numbers: Vec<i64> = changes.iter().map(|change| change.number).collect();
        let was: Vec<&[u8]> = changes.iter().map(|change| change.was.as_slice()).collect();
        let now: Vec<&[u8]> = changes.iter().map(|change| change.now.as_slice()).collect();
        // Asked again after a lost connection, it finds nothing that still is as it was, and says so.
        let rows = self.reader.query(&REPLACE[&of], &[&numbers, &was, &now]).await?;
        let done: BTreeSet<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, Error>>().map_err(told)?;
        Ok(numbers.into_iter().map(|number| done.contains(&number)).collect())
    }
}

fn told(error: Error) -> LedgerError {
    LedgerError::Statement(words(&error))
}
