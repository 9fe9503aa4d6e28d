//! The SQLite ledger's tables and how they came to be.

use rusqlite::{Connection, TransactionBehavior};

use crate::clock::Entropy;

/// One step for each version that was ever released; a file is brought up to the last.
const MIGRATIONS: [&str; 1] = [
    // Version 1. `epoch` is the row id and AUTOINCREMENT, hence unique and never reused; messages
    // name a chain by it. An attempt's id is its fence, and `previous` leads from a chain's last
    // attempt back through its history without an index that every claim would have to maintain.
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
     CREATE TABLE chains (
         epoch       INTEGER PRIMARY KEY AUTOINCREMENT,
         kind        TEXT    NOT NULL,
         key         TEXT    NOT NULL,
         queue       TEXT    NOT NULL,
         state       INTEGER NOT NULL DEFAULT 0,
         tick        INTEGER NOT NULL DEFAULT 1,
         attempt     INTEGER NOT NULL DEFAULT 1,
         nominal     INTEGER NOT NULL,
         due         INTEGER NOT NULL,
         fence       INTEGER NOT NULL DEFAULT 0,
         lease_until INTEGER NOT NULL DEFAULT 0,
         sent        INTEGER NOT NULL DEFAULT 0,
         expected    INTEGER NOT NULL,
         watch_at    INTEGER NOT NULL,
         looks       INTEGER NOT NULL DEFAULT 0,
         payload     TEXT    NOT NULL
     );
     CREATE UNIQUE INDEX chains_by_name ON chains (kind, key);
     CREATE INDEX chains_to_watch ON chains (queue, watch_at) WHERE state = 0;
     CREATE TABLE attempts (
         fence    INTEGER PRIMARY KEY AUTOINCREMENT,
         epoch    INTEGER NOT NULL,
         tick     INTEGER NOT NULL,
         attempt  INTEGER NOT NULL,
         previous INTEGER NOT NULL,
         worker   TEXT    NOT NULL,
         due      INTEGER NOT NULL,
         started  INTEGER NOT NULL,
         finished INTEGER,
         verdict  TEXT,
         reason   TEXT
     );
     CREATE TABLE failures (
         kind     TEXT    NOT NULL,
         key      TEXT    NOT NULL,
         reason   TEXT    NOT NULL,
         times    INTEGER NOT NULL,
         first_at INTEGER NOT NULL,
         last_at  INTEGER NOT NULL,
         PRIMARY KEY (kind, key)
     ) WITHOUT ROWID;
     CREATE TABLE quarantine (
         number INTEGER PRIMARY KEY AUTOINCREMENT,
         at     INTEGER NOT NULL,
         source TEXT    NOT NULL,
         reason TEXT    NOT NULL,
         body   BLOB    NOT NULL
     );
     CREATE TABLE jobs (
         number INTEGER PRIMARY KEY AUTOINCREMENT,
         id     TEXT NOT NULL UNIQUE,
         body   BLOB NOT NULL
     );",
];

/// Why a file cannot be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(
        "its format is version {0}, and this program knows versions up to {known}: use the program that made it, or a newer one",
        known = MIGRATIONS.len()
    )]
    Newer(u32),
}

/// Brings the file up to date and returns the ledger's id. Safe when several processes start at
/// once: the write lock is taken before the version is read.
pub fn migrate(connection: &mut Connection, entropy: &Entropy) -> Result<String, MigrateError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: u32 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version as usize > MIGRATIONS.len() {
        return Err(MigrateError::Newer(version));
    }
    for migration in MIGRATIONS.iter().skip(version as usize) {
        transaction.execute_batch(migration)?;
    }
    if (version as usize) < MIGRATIONS.len() {
        transaction.pragma_update(None, "user_version", MIGRATIONS.len() as u32)?;
    }
    let token = entropy.token();
    transaction.execute("INSERT OR IGNORE INTO meta (name, value) VALUES ('ledger_id', ?1)", [&token])?;
    let id = transaction.query_row("SELECT value FROM meta WHERE name = 'ledger_id'", [], |row| row.get(0))?;
    transaction.commit()?;
    Ok(id)
}
