//! What users have given to the ledger, in SQL.

use std::collections::BTreeSet;

use async_trait::async_trait;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::words;
use crate::ledger::{Content, Contents, LedgerError, Replacement, Shelf};

#[async_trait]
impl Contents for PostgresLedger {
    async fn contents(&self, of: Shelf, after: i64, limit: u32) -> Result<Vec<Content>, LedgerError> {
        let sql = match of {
            Shelf::Payloads => {
                "SELECT epoch, kind, key, convert_to(payload, 'UTF8') FROM chains
                 WHERE epoch > $1 AND payload <> 'null' ORDER BY epoch LIMIT $2"
            }
            Shelf::Carries => {
                "SELECT epoch, kind, key, convert_to(carry, 'UTF8') FROM chains
                 WHERE epoch > $1 AND carry IS NOT NULL ORDER BY epoch LIMIT $2"
            }
            Shelf::Jobs => "SELECT number, '', '', body FROM jobs WHERE number > $1 ORDER BY number LIMIT $2",
            Shelf::Quarantine => {
                "SELECT number, '', '', body FROM quarantine WHERE number > $1 ORDER BY number LIMIT $2"
            }
        };
        let content = |row: &Row| {
            Ok(Content { number: row.try_get(0)?, kind: row.try_get(1)?, key: row.try_get(2)?, text: row.try_get(3)? })
        };
        let rows = self.reader.query(sql, &[&after, &i64::from(limit)]).await?;
        rows.iter().map(content).collect::<Result<_, Error>>().map_err(told)
    }

    async fn replace_contents(&self, of: Shelf, changes: Vec<Replacement>) -> Result<Vec<bool>, LedgerError> {
        // Like everybody it locks the rows in their order first.
        let sql = match of {
            Shelf::Payloads => {
                "WITH held AS MATERIALIZED (
                     SELECT epoch FROM chains WHERE epoch = ANY ($1::int8[]) ORDER BY epoch FOR UPDATE)
                 UPDATE chains c SET payload = convert_from(u.is_now, 'UTF8')
                 FROM held, unnest($1::int8[], $2::bytea[], $3::bytea[]) AS u (number, was, is_now)
                 WHERE c.epoch = held.epoch AND c.epoch = u.number AND c.payload = convert_from(u.was, 'UTF8')
                 RETURNING c.epoch"
            }
            Shelf::Carries => {
                "WITH held AS MATERIALIZED (
                     SELECT epoch FROM chains WHERE epoch = ANY ($1::int8[]) ORDER BY epoch FOR UPDATE)
                 UPDATE chains c SET carry = convert_from(u.is_now, 'UTF8')
                 FROM held, unnest($1::int8[], $2::bytea[], $3::bytea[]) AS u (number, was, is_now)
                 WHERE c.epoch = held.epoch AND c.epoch = u.number AND c.carry = convert_from(u.was, 'UTF8')
                 RETURNING c.epoch"
            }
            Shelf::Jobs => {
                "WITH held AS MATERIALIZED (
                     SELECT number FROM jobs WHERE number = ANY ($1::int8[]) ORDER BY number FOR UPDATE)
                 UPDATE jobs j SET body = u.is_now
                 FROM held, unnest($1::int8[], $2::bytea[], $3::bytea[]) AS u (number, was, is_now)
                 WHERE j.number = held.number AND j.number = u.number AND j.body = u.was
                 RETURNING j.number"
            }
            Shelf::Quarantine => {
                "WITH held AS MATERIALIZED (
                     SELECT number FROM quarantine WHERE number = ANY ($1::int8[]) ORDER BY number FOR UPDATE)
                 UPDATE quarantine q SET body = u.is_now
                 FROM held, unnest($1::int8[], $2::bytea[], $3::bytea[]) AS u (number, was, is_now)
                 WHERE q.number = held.number AND q.number = u.number AND q.body = u.was
                 RETURNING q.number"
            }
        };
        let numbers: Vec<i64> = changes.iter().map(|change| change.number).collect();
        let was: Vec<&[u8]> = changes.iter().map(|change| change.was.as_slice()).collect();
        let now: Vec<&[u8]> = changes.iter().map(|change| change.now.as_slice()).collect();
        // Asked again after a lost connection, it finds nothing that still is as it was, and says so.
        let rows = self.reader.query(sql, &[&numbers, &was, &now]).await?;
        let done: BTreeSet<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, Error>>().map_err(told)?;
        Ok(numbers.into_iter().map(|number| done.contains(&number)).collect())
    }
}

fn told(error: Error) -> LedgerError {
    LedgerError::Statement(words(&error))
}
