//! Examining a ledger's file without creating, changing or keeping anything of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use super::{disk, schema};

/// How long another process may hold the write lock. A worker holds it for some milliseconds at a time.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most complaints about a damaged file that are reported.
const COMPLAINTS: u32 = 3;
/// What a path in a `file:` URI may hold as it is.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// What the file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFile {
    /// The version of its format; 0 before any program has made tables in it.
    pub version: u32,
    /// The version that this program knows.
    pub known: u32,
    /// Whether it is a ledger's.
    pub is_ledger: bool,
    /// The highest number that its sequences have given: at least the microseconds since 1970 when it was last opened.
    pub highest: Option<i64>,
}

/// Why nothing could be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// Another process holds the write lock.
    Busy,
    /// What SQLite says.
    Refused(String),
}

/// The write-ahead log beside a ledger.
pub fn wal(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push("-wal");
    name.into()
}

/// Opens the file for reading. Where it has no write-ahead log, no process has it open and all is in the file: then
/// SQLite is told that the file never changes, since it would else create the log, and could not remove it again.
/// Answers also whether SQLite was told so.
pub(super) fn open(path: &Path) -> rusqlite::Result<(Connection, bool)> {
    let alone = !wal(path).exists();
    let path = utf8_percent_encode(&path.to_string_lossy(), PATH).to_string();
    let uri = format!("file:{path}?mode=ro{}", if alone { "&immutable=1" } else { "" });
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags)?;
    connection.busy_timeout(PATIENCE)?;
    Ok((connection, alone))
}

/// Asks on a connection of its own. Asks once more if another process has begun to write to a file that was taken for
/// one that never changes.
fn ask<T>(path: &Path, question: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T, String> {
    let asked = || {
        let (connection, alone) = open(path)?;
        let answer = question(&connection);
        if alone && wal(path).exists() { question(&open(path)?.0) } else { answer }
    };
    asked().map_err(|error| disk::words(&path.to_string_lossy(), &error))
}

/// Looks at the file.
///
/// # Errors
/// When it cannot be read, or is no SQLite file.
pub fn look(path: &Path) -> Result<SeenFile, String> {
    ask(path, |connection| {
        let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        // A newer format may have these elsewhere.
        let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).optional().ok().flatten();
        let is_ledger = one("SELECT 1 FROM meta WHERE name = 'ledger_id'").is_some();
        let highest = one("SELECT max(seq) FROM sqlite_sequence WHERE name IN ('chains', 'attempts')");
        Ok(SeenFile { version, known: schema::VERSION, is_ledger, highest })
    })
}

/// Looks through the whole file and its log for damage: each page, each row, that indices and tables agree, and that
/// the schema is ours. Answers what is wrong.
///
/// # Errors
/// When it cannot be read.
pub fn damage(path: &Path) -> Result<Vec<String>, String> {
    let log = wal(path);
    let lost = disk::damaged_log(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let found: Vec<String> = ask(path, |connection| {
        let mut check = connection.prepare(&format!("PRAGMA integrity_check({COMPLAINTS})"))?;
        let lines: rusqlite::Result<Vec<String>> = check.query_map([], |row| row.get(0))?.collect();
        let complaints = lines?.into_iter().filter(|line| line != "ok");
        Ok(schema::foreign(connection)?.into_iter().chain(complaints).collect())
    })?;
    Ok(lost.map(|place| disk::log_words(&log, place)).into_iter().chain(found).collect())
}

/// Writes to the file in a transaction that is rolled back.
///
/// # Errors
/// Why that does not work.
pub fn try_to_write(path: &Path) -> Result<(), Unwritten> {
    let write = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(PATIENCE)?;
        // What other processes have left in the log stays there; a log that is made for this check is removed again.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, wal(path).exists())?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let written = connection.execute("UPDATE meta SET value = value", []);
        connection.execute_batch("ROLLBACK")?;
        written.map(drop)
    };
    write().map_err(|error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Unwritten::Busy,
        _ => Unwritten::Refused(disk::words(&path.to_string_lossy(), &error)),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Jobs;
    use crate::sqlite::SqliteLedger;
    use crate::url::LedgerUrl;
    use roundelay_model::clock::{Clock, Entropy};

    /// The files of a folder and what is in them.
    fn files(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).unwrap())).collect()
    }

    /// All that can be asked.
    async fn look_at_all(path: &Path) -> SeenFile {
        assert_eq!(try_to_write(path), Ok(()));
        assert_eq!(damage(path), Ok(Vec::new()));
        let ledger = SqliteLedger::look(path, Clock::System).unwrap();
        assert_eq!(ledger.kept_jobs(0, 10).await.unwrap().len(), 1);
        let refused = ledger.keep_job("b".into(), b"{}".to_vec()).await.unwrap_err().to_string();
        assert!(refused.contains("to be looked at only"), "{refused}");
        look(path).unwrap()
    }

    #[tokio::test]
    async fn examining_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a ledger?.db");
        let before = Clock::System.now();
        let url = LedgerUrl::Sqlite(path.clone());
        let ledger = SqliteLedger::open(&url, Clock::System, &Entropy::seeded(1)).unwrap();
        ledger.keep_job("a".into(), b"{}".to_vec()).await.unwrap();

        // While it is open, its log's index is shared memory, and changes with every read.
        let without_index = |mut files: BTreeMap<OsString, Vec<u8>>| {
            files.retain(|name, _| !name.to_string_lossy().ends_with("-shm"));
            files
        };
        let there = without_index(files(folder.path()));
        assert_eq!(there.len(), 2, "the ledger and its log");
        let seen = look_at_all(&path).await;
        assert_eq!((seen.version, seen.is_ledger), (seen.known, true));
        assert!(seen.highest.unwrap() >= before.as_millis() * 1_000);
        assert_eq!(without_index(files(folder.path())), there);

        // A copy of the file alone has everything now.
        drop(ledger);
        let there = files(folder.path());
        assert_eq!(there.len(), 1);
        assert_eq!(look_at_all(&path).await, seen);
        assert_eq!(files(folder.path()), there);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.db");
        assert!(look(&path).is_err() && !path.exists(), "nothing is created");
        std::fs::write(&path, "words that are no database, however long one makes them").unwrap();
        assert!(look(&path).unwrap_err().contains("not a database"));
        std::fs::write(&path, "").unwrap();
        assert!(!look(&path).unwrap().is_ledger);
        assert!(matches!(try_to_write(&path), Err(Unwritten::Refused(why)) if why.contains("meta")));
        std::fs::remove_file(&path).unwrap();

        let connection = Connection::open(&path).unwrap();
        let fill = "CREATE TABLE meta (name TEXT, value TEXT);
            CREATE INDEX i ON meta (value);
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
            INSERT INTO meta SELECT i, hex(randomblob(20)) FROM n";
        connection.execute_batch(fill).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(try_to_write(&path), Err(Unwritten::Busy));
        drop(connection);
        assert_eq!((damage(&path), try_to_write(&path)), (Ok(Vec::new()), Ok(())));
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 4_096].fill(0x5a);
        std::fs::write(&path, bytes).unwrap();
        assert_ne!(damage(&path).unwrap_or_else(|error| vec![error]), Vec::<String>::new());
    }
}
