//! The ledger in a SQLite file: WAL, `synchronous=FULL`, one writing thread with group commit,
//! and a second connection for reading. Several processes on one machine may share the file; it
//! must not lie on a network file system. [`examine`] only looks at it.

mod access;
mod backlog;
mod catch_up;
mod clock;
mod disk;
pub mod examine;
mod failed;
mod fleet;
mod history;
mod hot;
mod jobs;
mod orders;
mod page;
mod protocol;
mod reports;
mod rosters;
mod running;
mod schema;
mod search;
mod sessions;
mod slots;
mod store;
mod stored_texts;
mod topology;
mod traffic;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_model::clock::{Clock, Entropy};
use rusqlite::backup::Backup;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::LedgerError;
use crate::linger::Lateness;
use crate::mark::Marks;
use crate::traffic::Counters;
use crate::url::LedgerUrl;
use store::Store;
use writer::Writer;

/// How long a statement waits for another process to release the write lock.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a file is tried to be opened that another process has to itself for a moment, and how long is waited
/// between. While that process removes the log, or recovers it, SQLite does not wait: sqlite.org/wal.html, section 9.
const BUSY_TRIES: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Memory for pages of the file, at most. The 2 MiB that SQLite takes by itself hold some 5,000
/// chains; beyond that most claims and finishes would read their pages anew.
const CACHE_KIB: i64 = 64 * 1024;
/// Pages of 4 KiB in the write-ahead log before they are copied into the file, which holds up the
/// commits that wait meanwhile. A page that was written several times is copied once, so this is
/// eight times as many as by default.
const CHECKPOINT_PAGES: i64 = 8_000;

/// A ledger in SQLite.
pub struct SqliteLedger {
    id: String,
    clock: Clock,
    reader: Arc<Mutex<Store>>,
    /// Reads what workers need to know of each other, and waits for no long query.
    pulse: Arc<Mutex<Store>>,
    /// Behind the readers, since fields are dropped in this order: what writes closes the file last.
    writer: Writer,
    counters: Arc<Counters>,
    late: Lateness,
    /// Beside the file; none in memory.
    marks: Arc<Marks>,
    /// The ledger's time, in milliseconds, when a beat was last written into the table.
    told: AtomicI64,
    /// The ledger's time, in milliseconds, when that time was last noted.
    noted: AtomicI64,
}

#[expect(clippy::disallowed_methods, reason = "as where SQLite itself waits for a lock, no task goes on meanwhile")]
fn wait_for_another_process() {
    std::thread::sleep(BUSY_PAUSE);
}

impl SqliteLedger {
    /// Opens, and if need be creates, the ledger at `url`.
    ///
    /// # Errors
    /// [`LedgerError::Open`] with the path and what to do.
    pub fn open(url: &LedgerUrl, clock: Clock, entropy: &Entropy) -> Result<Self, LedgerError> {
        match url {
            LedgerUrl::Sqlite(path) => Self::file(path, clock, entropy)
                .map_err(|reason| LedgerError::Open { path: path.display().to_string(), reason }),
            LedgerUrl::Memory => Self::memory(clock, entropy)
                .map_err(|error| LedgerError::Open { path: ":memory:".into(), reason: error.to_string() }),
            LedgerUrl::Postgres(url) => {
                Err(LedgerError::Open { path: url.to_string(), reason: "it is not a SQLite file".into() })
            }
        }
    }

    fn file(path: &Path, clock: Clock, entropy: &Entropy) -> Result<Self, String> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            return Err(format!("the folder {} does not exist; create it", folder.display()));
        }
        // Before anything writes to it: SQLite would take what is behind the damage for rubbish, and write over it.
        let log = examine::wal(path);
        match disk::damaged_log(&log) {
            Ok(None) => {}
            Ok(Some(place)) => return Err(disk::log_words(&log, place)),
            Err(error) => return Err(format!("{} cannot be read: {error}", log.display())),
        }
        type Opened = (Connection, String, Clock, [Connection; 2]);
        let open = || -> Result<Opened, schema::MigrateError> {
            let mut connection = Connection::open(path)?;
            connection.busy_timeout(PATIENCE)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
            connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
            configure(&connection)?;
            let id = schema::migrate(&mut connection, entropy, clock.now())?;
            let clock = clock::open(&mut connection, clock.clone(), entropy)?;
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let reads = || -> rusqlite::Result<Connection> {
                let reader = Connection::open_with_flags(path, flags)?;
                reader.busy_timeout(PATIENCE)?;
                configure(&reader)?;
                Ok(reader)
            };
            let readers = [reads()?, reads()?];
            Ok((connection, id, clock, readers))
        };
        let mut opened = open();
        for _ in 0..BUSY_TRIES {
            match &opened {
                Err(schema::MigrateError::Sqlite(error))
                    if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
                _ => break,
            }
            wait_for_another_process();
            opened = open();
        }
        let (connection, id, clock, readers) = opened.map_err(|error| match error {
            schema::MigrateError::Sqlite(error) => disk::words(&path.to_string_lossy(), &error),
            newer @ schema::MigrateError::Newer(_) => newer.to_string(),
        })?;
        let counters = Arc::<Counters>::default();
        let writer = Store::new(connection, counters.clone());
        let late = Lateness::default();
        let writer = Writer::spawn(writer, late.clone()).map_err(|error| error.to_string())?;
        let [reader, pulse] = readers.map(|reader| Arc::new(Mutex::new(Store::new(reader, counters.clone()))));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let marks = Arc::new(Marks::new(Some(folder.to_owned()), format!("{name}.worker-"), entropy));
        Ok(Self {
            id,
            clock,
            writer,
            reader,
            pulse,
            counters,
            late,
            marks,
            told: AtomicI64::default(),
            noted: AtomicI64::default(),
        })
    }

    fn memory(clock: Clock, entropy: &Entropy) -> Result<Self, schema::MigrateError> {
        Self::in_memory(Connection::open_in_memory()?, clock, entropy)
    }

    fn in_memory(mut connection: Connection, clock: Clock, entropy: &Entropy) -> Result<Self, schema::MigrateError> {
        configure(&connection)?;
        let id = schema::migrate(&mut connection, entropy, clock.now())?;
        let clock = clock::open(&mut connection, clock, entropy)?;
        let counters = Arc::<Counters>::default();
        let store = Arc::new(Mutex::new(Store::new(connection, counters.clone())));
        Ok(Self {
            id,
            clock,
            writer: Writer::Inline(store.clone()),
            pulse: store.clone(),
            reader: store,
            counters,
            late: Lateness::default(),
            marks: Arc::new(Marks::new(None, String::new(), entropy)),
            told: AtomicI64::default(),
            noted: AtomicI64::default(),
        })
    }

    /// Opens the file only to look at it: nothing is created, written or brought up to date, and every verb that
    /// writes is refused.
    ///
    /// # Errors
    /// [`LedgerError::Open`], also when its format is another than this program's.
    pub fn look(path: &Path, clock: Clock) -> Result<Self, LedgerError> {
        let failed = |reason: String| LedgerError::Open { path: path.display().to_string(), reason };
        let open = || -> rusqlite::Result<(Connection, u32, String)> {
            let (connection, _) = examine::open(path)?;
            configure(&connection)?;
            let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
            let id = connection.query_row("SELECT value FROM meta WHERE name = 'ledger_id'", [], |row| row.get(0))?;
            Ok((connection, version, id))
        };
        let (connection, version, id) = open().map_err(|error| failed(disk::words(&path.to_string_lossy(), &error)))?;
        if version != schema::VERSION {
            let known = schema::VERSION;
            return Err(failed(format!("its format is version {version}, and this program looks at version {known}")));
        }
        let clock =
            clock::look(&connection, clock).map_err(|error| failed(disk::words(&path.to_string_lossy(), &error)))?;
        let counters = Arc::<Counters>::default();
        let reader = Arc::new(Mutex::new(Store::new(connection, counters.clone())));
        Ok(Self {
            id,
            clock,
            writer: Writer::Nowhere,
            pulse: reader.clone(),
            reader,
            counters,
            late: Lateness::default(),
            marks: Arc::new(Marks::new(None, String::new(), &Entropy::seeded(0))),
            told: AtomicI64::default(),
            noted: AtomicI64::default(),
        })
    }

    /// A copy in memory of what is committed now, opened as a restored backup is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn copy(&self, entropy: &Entropy) -> Result<Self, LedgerError> {
        let copy = || -> Result<Self, schema::MigrateError> {
            let mut connection = Connection::open_in_memory()?;
            let store = self.reader.lock();
            Backup::new(&store.connection, &mut connection)?.step(-1)?;
            Self::in_memory(connection, self.clock.clone(), entropy)
        };
        copy().map_err(|error| LedgerError::Statement(error.to_string()))
    }

    /// The clock of this ledger.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    async fn read<T, F>(&self, query: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&Store) -> rusqlite::Result<T> + Send + 'static,
    {
        self.read_of(&self.reader, query).await
    }

    async fn read_of<T, F>(&self, reader: &Arc<Mutex<Store>>, query: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&Store) -> rusqlite::Result<T> + Send + 'static,
    {
        let reader = reader.clone();
        self.counters.read();
        let run = move || {
            let store = reader.lock();
            query(&store).map_err(|error| disk::failed(&store.connection, &error))
        };
        match self.writer {
            Writer::Inline(_) => run(),
            // A long count must not hold up a thread that runs jobs.
            Writer::Thread(..) | Writer::Nowhere => {
                tokio::task::spawn_blocking(run).await.map_err(|_| LedgerError::Closed)?
            }
        }
    }
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // A page that is read is looked at for damage. On a ledger of a million chains no difference was measured.
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Otherwise a statement that might use a partial index is planned anew each time other values are bound to it,
    // which took half of the time in SQLite. None of ours has a better plan for some values than for others.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    rusqlite::vtab::array::load_module(connection)
}
