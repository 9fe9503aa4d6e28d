//! What rosters need, in SQL.

use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::ids::Epoch;
use tokio::time::timeout;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::{Session, Use, passes, words};
use crate::chain::ChainState;
use crate::error::LedgerError;
use crate::rosters::{Enlisted, Rosters};

/// How long it may take to end a thousand chains.
const DEPART: Duration = Duration::from_secs(60);
/// How often that is tried again when others were in the way.
const TRIES: u32 = 5;

#[async_trait]
impl Rosters for PostgresLedger {
    async fn enlisted(&self, kind: String, after: String, limit: u32) -> Result<Vec<Enlisted>, LedgerError> {
        let sql = "SELECT key, epoch, state FROM chains
                   WHERE kind = $1 AND key > $2 AND NOT once AND parent = 0 ORDER BY key LIMIT $3";
        let enlisted = |row: &Row| {
            Ok(Enlisted {
                key: row.try_get(0)?,
                epoch: Epoch(row.try_get(1)?),
                state: ChainState::from_number(row.try_get(2)?),
            })
        };
        let rows = self.reader.query(sql, &[&kind, &after, &i64::from(limit)]).await?;
        rows.iter().map(enlisted).collect::<Result<_, Error>>().map_err(told)
    }

    async fn depart(&self, epochs: Vec<Epoch>) -> Result<u64, LedgerError> {
        let _leave = self.own().await?;
        let mut session = self.address.connect(Use::Long(DEPART)).await?;
        for attempt in 1.. {
            match timeout(DEPART, attempted(&mut session, &epochs)).await {
                Ok(Ok(departed)) => return Ok(departed),
                Ok(Err(error)) if passes(&error) && attempt < TRIES => {}
                Ok(Err(error)) => return Err(told(error)),
                Err(_) => break,
            }
        }
        Err(LedgerError::Statement("it has not answered in time, and whether it was written is not known".into()))
    }

    async fn departed(&self, kind: String, keys: Vec<String>) -> Result<Vec<String>, LedgerError> {
        let sql = "SELECT key FROM departed JOIN chains USING (kind, key, epoch)
                   WHERE kind = $1 AND key = ANY ($2::text[]) AND state = 2 AND NOT once AND parent = 0";
        let rows = self.reader.query(sql, &[&kind, &keys]).await?;
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, Error>>().map_err(told)
    }
}

/// Those of $1 that are rotations, and the manual runs beside them; locked first, in the order of their epochs, as
/// every transaction does.
const LOCK: &str = "SELECT epoch FROM chains WHERE state <> 2 AND epoch = ANY (ARRAY(
                        SELECT beside.epoch FROM chains c
                        JOIN chains beside ON beside.kind = c.kind AND beside.key = c.key AND beside.parent = 0
                        WHERE c.epoch = ANY ($1::int8[]) AND c.state <> 2 AND NOT c.once))
                    ORDER BY epoch FOR UPDATE";
const END: &str = "UPDATE chains SET state = 2, batch_open = 0, batch_total = 0
                   WHERE epoch = ANY ($1::int8[]) AND state <> 2";
/// The members of their batches are not wanted any more. A run of one cannot be finished.
const MEMBERS: &str = "DELETE FROM chains WHERE parent <> 0 AND parent = ANY ($1::int8[])";
const REMEMBER: &str = "INSERT INTO departed (kind, key, epoch)
                        SELECT kind, key, epoch FROM chains WHERE epoch = ANY ($1::int8[]) AND NOT once
                        ON CONFLICT (kind, key) DO UPDATE SET epoch = excluded.epoch";

async fn attempted(session: &mut Session, epochs: &[Epoch]) -> Result<u64, Error> {
    let numbers: Vec<i64> = epochs.iter().map(|epoch| epoch.get()).collect();
    let transaction = session.client.transaction().await?;
    let locked: Vec<i64> =
        transaction.query(LOCK, &[&numbers]).await?.iter().map(|row| row.try_get(0)).collect::<Result<_, Error>>()?;
    transaction.execute(END, &[&locked]).await?;
    transaction.execute(MEMBERS, &[&locked]).await?;
    let count = transaction.execute(REMEMBER, &[&locked]).await?;
    transaction.commit().await?;
    Ok(count)
}

fn told(error: Error) -> LedgerError {
    LedgerError::Statement(words(&error))
}
