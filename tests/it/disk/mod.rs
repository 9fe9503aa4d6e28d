//! The ledger's disk fails: it loses power, runs full, answers with errors, and rots.

mod full;
mod power;
mod rot;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use roundelay::clock::{Clock, Entropy, Time};
use roundelay::ids::Fence;
use roundelay::ledger::sqlite::SqliteLedger;
use roundelay::ledger::{FinishRequest, Hint, LedgerError, LedgerUrl};
use roundelay::outcome::{Next, Verdict};
use rusqlite::Connection;
use rusqlite::types::Value;
use tokio::time::Instant;

use crate::ledger_contract;

const NOW: Time = Time::from_millis(1_800_000_000_000);

/// Opens the ledger in a folder, with a clock that stands still. So only what the ledger remembers tells epochs and
/// fences apart from those that it has given before.
fn open(folder: &Path) -> Result<SqliteLedger, LedgerError> {
    let start = Instant::now() + Duration::from_secs(86_400);
    let clock = Clock::Virtual { base: NOW, start, wall: Default::default() };
    SqliteLedger::open(&LedgerUrl::Sqlite(folder.join("ledger.db")), clock, &Entropy::seeded(1))
}

/// All rows of all tables.
fn dump(connection: &Connection) -> rusqlite::Result<String> {
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let tables: Vec<String> =
        connection.prepare(tables)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut text = String::new();
    for table in tables {
        let mut select = connection.prepare(&format!("SELECT * FROM {table}"))?;
        let columns = select.column_count();
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let values: Vec<Value> = (0..columns).map(|column| row.get(column)).collect::<rusqlite::Result<_>>()?;
            writeln!(text, "{table} {values:?}").unwrap();
        }
    }
    Ok(text)
}

/// The end of a run.
fn end(hint: &Hint, fence: Fence, next: Next, verdict: Verdict) -> FinishRequest {
    ledger_contract::end(hint, fence, NOW, next, verdict)
}
