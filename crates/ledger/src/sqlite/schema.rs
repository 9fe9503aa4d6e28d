//! The SQLite ledger's tables and how they came to be.

use std::collections::BTreeMap;

use roundelay_model::clock::{Entropy, Time};
use rusqlite::{Connection, TransactionBehavior, params};

/// One step for each version that was ever released; a file is brought up to the last.
const MIGRATIONS: [&str; 23] = [
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
    // Version 2: a single tick beside a rotation, failed parts of a run, the age of kept jobs. The last index is for
    // claims that no worker will take over, because their chain does not tick.
    "ALTER TABLE chains ADD COLUMN once INTEGER NOT NULL DEFAULT 0;
     DROP INDEX chains_by_name;
     CREATE UNIQUE INDEX chains_by_name ON chains (kind, key, once);
     CREATE INDEX chains_left_held ON chains (lease_until) WHERE state <> 0 AND lease_until <> 0;
     CREATE INDEX chains_quarantined ON chains (due) WHERE state = 3;
     ALTER TABLE jobs ADD COLUMN kept_at INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE failures RENAME TO failures_1;
     CREATE TABLE failures (
         kind     TEXT    NOT NULL,
         key      TEXT    NOT NULL,
         item     TEXT    NOT NULL,
         reason   TEXT    NOT NULL,
         times    INTEGER NOT NULL,
         first_at INTEGER NOT NULL,
         last_at  INTEGER NOT NULL,
         PRIMARY KEY (kind, key, item)
     ) WITHOUT ROWID;
     INSERT INTO failures SELECT kind, key, '', reason, times, first_at, last_at FROM failures_1;
     DROP TABLE failures_1;",
    // Version 3: owners, schedules of a chain's own, what guards look at, what a run hands on, batches. `parent` is the
    // epoch of the chain that waits for this member of its batch. A run of a member that is deleted cannot be finished,
    // so its record ends there, whatever deletes the member.
    "ALTER TABLE chains ADD COLUMN owner TEXT;
     ALTER TABLE chains ADD COLUMN schedule TEXT;
     ALTER TABLE chains ADD COLUMN carry TEXT;
     ALTER TABLE chains ADD COLUMN started_tick INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE chains ADD COLUMN last_start INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE chains ADD COLUMN last_finish INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE chains ADD COLUMN parent INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE chains ADD COLUMN batch_total INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE chains ADD COLUMN batch_open INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE chains ADD COLUMN batch_failed INTEGER NOT NULL DEFAULT 0;
     DROP INDEX chains_by_name;
     CREATE UNIQUE INDEX chains_by_name ON chains (kind, key, once, parent);
     CREATE INDEX chains_by_parent ON chains (parent) WHERE parent <> 0;
     CREATE TRIGGER member_leaves AFTER DELETE ON chains WHEN old.lease_until <> 0 BEGIN
         UPDATE attempts SET finished = old.lease_until, verdict = 'lost' WHERE fence = old.fence AND finished IS NULL;
     END;
     CREATE INDEX chains_by_owner ON chains (owner) WHERE owner IS NOT NULL;
     ALTER TABLE attempts ADD COLUMN overlapped INTEGER NOT NULL DEFAULT 0;
     ALTER TABLE attempts ADD COLUMN misfired INTEGER NOT NULL DEFAULT 0;
     CREATE TABLE owners (owner TEXT PRIMARY KEY, state INTEGER NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
     CREATE TABLE uniques (
         kind  TEXT NOT NULL,
         key   TEXT NOT NULL,
         id    TEXT NOT NULL,
         until INTEGER NOT NULL,
         PRIMARY KEY (kind, key)
     ) WITHOUT ROWID;",
    ROSTERS_AND_ARCHIVE,
    FAILURES_BY_REASON,
    THROTTLES,
    DISCOVERED_AND_PROGRESS,
    THROTTLE_ORDERS,
    RUNNING,
    THROTTLE_CLOCK,
    HOT_CHAINS,
    FLEET,
    ACCESS,
    UNIQUES_BY_UNTIL,
    PRIORITIES,
    MANUAL_RUNS,
    STEADY_TIME,
    SESSIONS,
    IN_HAND,
    KIND_STATS,
    LEARNED,
    EXCLUDED,
    BACKLOG,
];

/// Places that stay taken for a whole window are forgotten when that is over, with the history.
const UNIQUES_BY_UNTIL: &str = "CREATE INDEX uniques_by_until ON uniques (until);";

/// What a failure is known by, and when it is tried again. `fed` is the job that is under way for a part,
/// and `held_until` the end of the time for which a run of it has the part.
const FAILURES_BY_REASON: &str = "
    ALTER TABLE failures ADD COLUMN code TEXT;
    ALTER TABLE failures ADD COLUMN attempts INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE failures ADD COLUMN next_retry_at INTEGER;
    ALTER TABLE failures ADD COLUMN permanent INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE failures ADD COLUMN fed TEXT;
    ALTER TABLE failures ADD COLUMN held_until INTEGER NOT NULL DEFAULT 0;
    UPDATE failures SET attempts = times;
    CREATE INDEX failures_due ON failures (kind, next_retry_at) WHERE next_retry_at IS NOT NULL;
    CREATE UNIQUE INDEX failures_fed ON failures (fed) WHERE fed IS NOT NULL;";

/// What throttles remember, one row for each and each of its keys, until it is as good as new.
const THROTTLES: &str = "
    CREATE TABLE throttles (
        name    TEXT    NOT NULL,
        key     TEXT    NOT NULL,
        state   TEXT    NOT NULL,
        idle_at INTEGER NOT NULL,
        PRIMARY KEY (name, key)
    ) WITHOUT ROWID;
    CREATE INDEX throttles_by_idle ON throttles (idle_at);";

/// Which chains ended because their entities left the roster (only while the chain still has that
/// epoch), and what has become too old for `attempts`.
const ROSTERS_AND_ARCHIVE: &str = "
    CREATE TABLE departed (
        kind  TEXT    NOT NULL,
        key   TEXT    NOT NULL,
        epoch INTEGER NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID;
    CREATE TABLE attempts_archive (
        fence    INTEGER PRIMARY KEY,
        epoch    INTEGER NOT NULL,
        kind     TEXT,
        key      TEXT,
        tick     INTEGER NOT NULL,
        attempt  INTEGER NOT NULL,
        worker   TEXT    NOT NULL,
        due      INTEGER NOT NULL,
        started  INTEGER NOT NULL,
        finished INTEGER,
        verdict  TEXT,
        reason   TEXT,
        overlapped INTEGER NOT NULL,
        misfired   INTEGER NOT NULL
    );
    CREATE INDEX attempts_archive_by_name ON attempts_archive (kind, key);";

/// How many runs have led to a chain, and how far an attempt has said it had come, as JSON.
const DISCOVERED_AND_PROGRESS: &str = "
    ALTER TABLE chains ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE attempts ADD COLUMN progress TEXT;
    ALTER TABLE attempts_archive ADD COLUMN progress TEXT;";

/// The orders for throttles, as JSON.
const THROTTLE_ORDERS: &str =
    "CREATE TABLE throttle_orders (name TEXT PRIMARY KEY, orders TEXT NOT NULL) WITHOUT ROWID;";

/// How far the ledger's clock has been set, as far as workers have told: throttles count by what is left.
const THROTTLE_CLOCK: &str = "
    CREATE TABLE throttle_clock (set_by INTEGER NOT NULL);
    INSERT INTO throttle_clock VALUES (0);";

/// What a run changes of its chain, while it runs and until its successor has been sent: where a chain has a
/// row here, that stands for these columns of its own, and its own `lease_until` is 0. Sleeping chains have none,
/// so the table is small and its pages are written by many runs at once, while each chain lies on a page of its
/// own: that page is written once in a tick, by the finish, instead of by claim, finish and note.
/// `chains_now` is every chain as it is.
const HOT_CHAINS: &str = "
    CREATE TABLE hot_chains (
        epoch        INTEGER PRIMARY KEY,
        fence        INTEGER NOT NULL,
        lease_until  INTEGER NOT NULL,
        sent         INTEGER NOT NULL,
        started_tick INTEGER NOT NULL,
        last_start   INTEGER NOT NULL
    );
    CREATE VIEW chains_now AS
        SELECT c.epoch, c.kind, c.key, c.queue, c.state, c.tick, c.attempt, c.nominal, c.due,
               coalesce(h.fence, c.fence) AS fence, coalesce(h.lease_until, c.lease_until) AS lease_until,
               coalesce(h.sent, c.sent) AS sent, c.expected, c.watch_at, c.looks, c.payload, c.once, c.owner,
               c.schedule, c.carry, coalesce(h.started_tick, c.started_tick) AS started_tick,
               coalesce(h.last_start, c.last_start) AS last_start, c.last_finish, c.parent, c.batch_total,
               c.batch_open, c.batch_failed, c.depth
        FROM chains c LEFT JOIN hot_chains h ON h.epoch = c.epoch;";

/// The reports of workers, what they have done recently, and the orders for them and for queues, as JSON. And what
/// screens ask for among very many chains: those that rest, and how many of an owner are in which state.
const FLEET: &str = "
    CREATE TABLE workers (worker TEXT PRIMARY KEY, seen INTEGER NOT NULL, said TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE pulses (
        at     INTEGER NOT NULL,
        worker TEXT    NOT NULL,
        said   TEXT    NOT NULL,
        PRIMARY KEY (at, worker)
    ) WITHOUT ROWID;
    CREATE TABLE fleet_orders (subject TEXT PRIMARY KEY, orders TEXT NOT NULL) WITHOUT ROWID;
    CREATE INDEX chains_resting ON chains (state, kind, key) WHERE state <> 0;
    DROP INDEX chains_by_owner;
    CREATE INDEX chains_by_owner ON chains (owner, once, parent, state) WHERE owner IS NOT NULL;";

/// One-off jobs that run and have said how far they have come, until their worker is silent.
const RUNNING: &str = "
    CREATE TABLE running (
        id       TEXT    NOT NULL,
        worker   TEXT    NOT NULL,
        kind     TEXT    NOT NULL,
        key      TEXT    NOT NULL,
        queue    TEXT    NOT NULL,
        attempt  INTEGER NOT NULL,
        started  INTEGER NOT NULL,
        progress TEXT    NOT NULL,
        until    INTEGER NOT NULL,
        PRIMARY KEY (id, worker)
    ) WITHOUT ROWID;
    CREATE INDEX running_by_name ON running (kind, key);
    CREATE INDEX running_by_until ON running (until);";

/// Who may use the API, the changes that were asked for (`status` is the HTTP status of the answer), and the answers to
/// requests with a key. A request has no status while it runs.
const ACCESS: &str = "
    CREATE TABLE tokens (
        id        INTEGER PRIMARY KEY AUTOINCREMENT,
        name      TEXT    NOT NULL UNIQUE,
        hash      BLOB    NOT NULL UNIQUE,
        scope     TEXT    NOT NULL,
        created   INTEGER NOT NULL,
        expires   INTEGER,
        last_used INTEGER
    );
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        at     INTEGER NOT NULL,
        actor  TEXT    NOT NULL,
        scope  TEXT    NOT NULL,
        action TEXT    NOT NULL,
        target TEXT    NOT NULL,
        detail TEXT    NOT NULL,
        status INTEGER
    );
    CREATE TABLE requests (
        number       INTEGER PRIMARY KEY AUTOINCREMENT,
        actor        TEXT    NOT NULL,
        key          TEXT    NOT NULL,
        fingerprint  BLOB    NOT NULL,
        began        INTEGER NOT NULL,
        lease_until  INTEGER NOT NULL,
        status       INTEGER,
        content_type TEXT,
        body         BLOB,
        UNIQUE (actor, key)
    );
    CREATE INDEX requests_by_age ON requests (began);";

/// The priority of a chain's own, in place of its kind's.
const PRIORITIES: &str = "
    ALTER TABLE chains ADD COLUMN priority INTEGER;
    DROP VIEW chains_now;
    CREATE VIEW chains_now AS
        SELECT c.epoch, c.kind, c.key, c.queue, c.state, c.tick, c.attempt, c.nominal, c.due,
               coalesce(h.fence, c.fence) AS fence, coalesce(h.lease_until, c.lease_until) AS lease_until,
               coalesce(h.sent, c.sent) AS sent, c.expected, c.watch_at, c.looks, c.payload, c.once, c.owner,
               c.schedule, c.carry, coalesce(h.started_tick, c.started_tick) AS started_tick,
               coalesce(h.last_start, c.last_start) AS last_start, c.last_finish, c.parent, c.batch_total,
               c.batch_open, c.batch_failed, c.depth, c.priority
        FROM chains c LEFT JOIN hot_chains h ON h.epoch = c.epoch;";

/// How a manual run was asked for; and of a rotation, whether a manual run of its chain may not have ended.
const MANUAL_RUNS: &str = "
    ALTER TABLE chains ADD COLUMN manual INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE chains ADD COLUMN beside INTEGER NOT NULL DEFAULT 0;
    UPDATE chains SET beside = 1 WHERE once = 0 AND parent = 0 AND (kind, key) IN
        (SELECT kind, key FROM chains WHERE once = 1 AND parent = 0 AND state <> 2);
    DROP VIEW chains_now;
    CREATE VIEW chains_now AS
        SELECT c.epoch, c.kind, c.key, c.queue, c.state, c.tick, c.attempt, c.nominal, c.due,
               coalesce(h.fence, c.fence) AS fence, coalesce(h.lease_until, c.lease_until) AS lease_until,
               coalesce(h.sent, c.sent) AS sent, c.expected, c.watch_at, c.looks, c.payload, c.once, c.owner,
               c.schedule, c.carry, coalesce(h.started_tick, c.started_tick) AS started_tick,
               coalesce(h.last_start, c.last_start) AS last_start, c.last_finish, c.parent, c.batch_total,
               c.batch_open, c.batch_failed, c.depth, c.priority, c.manual, c.beside
        FROM chains c LEFT JOIN hot_chains h ON h.epoch = c.epoch;";

/// What the ledger's time was when the machine was started, by the boot's name; the last time that was seen; and from
/// when on the wall clock was ahead by how much. How far the clock was set before, only throttles knew: what chains
/// have by the clock itself is brought to that.
const STEADY_TIME: &str = "
    UPDATE chains SET nominal = nominal - set_by / 1000, due = due - set_by / 1000, expected = expected - set_by / 1000,
                      watch_at = watch_at - set_by / 1000, lease_until = max(lease_until - set_by / 1000, 0),
                      last_start = max(last_start - set_by / 1000, 0), last_finish = max(last_finish - set_by / 1000, 0)
    FROM throttle_clock WHERE set_by <> 0;
    UPDATE hot_chains SET lease_until = max(lease_until - set_by / 1000, 0),
                          last_start = max(last_start - set_by / 1000, 0)
    FROM throttle_clock WHERE set_by <> 0;
    CREATE TABLE clock_sets (since INTEGER NOT NULL, ahead INTEGER NOT NULL);
    INSERT INTO clock_sets SELECT 0, set_by / 1000 FROM throttle_clock WHERE set_by <> 0;
    CREATE TABLE ledger_clock (boot TEXT NOT NULL, base INTEGER NOT NULL, seen INTEGER NOT NULL);
    INSERT INTO ledger_clock VALUES ('', 0, 0);
    DROP TABLE throttle_clock;";

/// Chains are held by sessions of workers. Those of an older version are given the time that their leases had.
const SESSIONS: &str = "
    DROP VIEW chains_now;
    DROP TRIGGER member_leaves;
    ALTER TABLE chains RENAME COLUMN lease_until TO holder;
    ALTER TABLE hot_chains RENAME COLUMN lease_until TO holder;
    CREATE TABLE sessions (
        session INTEGER PRIMARY KEY AUTOINCREMENT,
        worker  TEXT    NOT NULL,
        lease   INTEGER NOT NULL,
        mark    TEXT    NOT NULL,
        beat    INTEGER NOT NULL DEFAULT 0
    );
    UPDATE chains SET holder = 1 WHERE holder <> 0;
    UPDATE hot_chains SET holder = 1 WHERE holder <> 0;
    INSERT INTO sessions (session, worker, lease, mark) SELECT 1, 'workers of an older version', 30000, ''
        WHERE EXISTS (SELECT 1 FROM chains WHERE holder = 1) OR EXISTS (SELECT 1 FROM hot_chains WHERE holder = 1);
    CREATE TRIGGER member_leaves AFTER DELETE ON chains WHEN old.holder <> 0 BEGIN
        UPDATE attempts SET finished = max(started, (SELECT seen FROM ledger_clock)), verdict = 'lost'
        WHERE fence = old.fence AND finished IS NULL;
    END;
    CREATE VIEW chains_now AS
        SELECT c.epoch, c.kind, c.key, c.queue, c.state, c.tick, c.attempt, c.nominal, c.due,
               coalesce(h.fence, c.fence) AS fence, coalesce(h.holder, c.holder) AS holder,
               coalesce(h.sent, c.sent) AS sent, c.expected, c.watch_at, c.looks, c.payload, c.once, c.owner,
               c.schedule, c.carry, coalesce(h.started_tick, c.started_tick) AS started_tick,
               coalesce(h.last_start, c.last_start) AS last_start, c.last_finish, c.parent, c.batch_total,
               c.batch_open, c.batch_failed, c.depth, c.priority, c.manual, c.beside
        FROM chains c LEFT JOIN hot_chains h ON h.epoch = c.epoch;";

/// Which sessions have run a one-off job that was delivered again, and have not finished it.
const IN_HAND: &str = "
    CREATE TABLE in_hand (
        job     TEXT    NOT NULL,
        session INTEGER NOT NULL,
        at      INTEGER NOT NULL,
        PRIMARY KEY (job, session)
    ) WITHOUT ROWID;
    CREATE INDEX in_hand_by_age ON in_hand (at);";

/// What the runs of each kind came to, on each worker, in stretches of a minute, of ten and of an hour.
const KIND_STATS: &str = "
    CREATE TABLE kind_stats (
        step   INTEGER NOT NULL,
        at     INTEGER NOT NULL,
        kind   TEXT    NOT NULL,
        worker TEXT    NOT NULL,
        said   TEXT    NOT NULL,
        PRIMARY KEY (step, at, kind, worker)
    ) WITHOUT ROWID;";

/// What chains have learned of how often their entities change.
const LEARNED: &str = "
    ALTER TABLE chains ADD COLUMN learned BLOB;
    DROP VIEW chains_now;
    CREATE VIEW chains_now AS
        SELECT c.epoch, c.kind, c.key, c.queue, c.state, c.tick, c.attempt, c.nominal, c.due,
               coalesce(h.fence, c.fence) AS fence, coalesce(h.holder, c.holder) AS holder,
               coalesce(h.sent, c.sent) AS sent, c.expected, c.watch_at, c.looks, c.payload, c.once, c.owner,
               c.schedule, c.carry, c.learned, coalesce(h.started_tick, c.started_tick) AS started_tick,
               coalesce(h.last_start, c.last_start) AS last_start, c.last_finish, c.parent, c.batch_total,
               c.batch_open, c.batch_failed, c.depth, c.priority, c.manual, c.beside
        FROM chains c LEFT JOIN hot_chains h ON h.epoch = c.epoch;";

/// Occurrences that calendars have left out.
const EXCLUDED: &str = "
    ALTER TABLE attempts ADD COLUMN excluded INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE attempts_archive ADD COLUMN excluded INTEGER NOT NULL DEFAULT 0;";

/// Messages of fair queues that wait for their tenant's turn: `taken` is the session that has taken one, or 0. And leave
/// to run one job of a tenant each, where quotas limit them.
const BACKLOG: &str = "
    CREATE TABLE backlog (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        queue  TEXT    NOT NULL,
        tenant TEXT    NOT NULL,
        name   TEXT    NOT NULL,
        body   BLOB    NOT NULL,
        at     INTEGER NOT NULL,
        taken  INTEGER NOT NULL DEFAULT 0,
        takes  INTEGER NOT NULL DEFAULT 0
    );
    CREATE UNIQUE INDEX backlog_by_name ON backlog (name);
    CREATE INDEX backlog_in_turn ON backlog (queue, tenant, number) WHERE taken = 0;
    CREATE INDEX backlog_by_tenant ON backlog (queue, tenant);
    CREATE INDEX backlog_taken ON backlog (taken) WHERE taken <> 0;
    CREATE TABLE seats (
        queue   TEXT    NOT NULL,
        tenant  TEXT    NOT NULL,
        session INTEGER NOT NULL,
        number  INTEGER NOT NULL,
        PRIMARY KEY (queue, tenant, session, number)
    ) WITHOUT ROWID;";

/// The version of the format that this program knows.
pub const VERSION: u32 = MIGRATIONS.len() as u32;

/// The sequences of epochs and fences go on from at least this: the microseconds since 1970. So
/// they never go back, not even when the file was replaced by an older copy of itself: the numbers
/// that were given since then are all smaller, unless more than a million were given each second.
/// They stay below 2^53, which every JSON parser can hold, until the year 2255.
fn first_number(now: Time) -> i64 {
    now.as_millis().saturating_mul(1_000)
}

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
pub fn migrate(connection: &mut Connection, entropy: &Entropy, now: Time) -> Result<String, MigrateError> {
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
    for table in ["chains", "attempts", "sessions"] {
        transaction.execute(
            "INSERT INTO sqlite_sequence (name, seq)
             SELECT ?1, 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?1)",
            [table],
        )?;
        let raise = "UPDATE sqlite_sequence SET seq = max(seq, ?2) WHERE name = ?1";
        transaction.execute(raise, params![table, first_number(now)])?;
    }
    transaction.commit()?;
    Ok(id)
}

/// What is in the file's schema and not as this program has made it; nothing where its version is another.
pub fn foreign(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != VERSION {
        return Ok(Vec::new());
    }
    let ours = Connection::open_in_memory()?;
    MIGRATIONS.iter().try_for_each(|migration| ours.execute_batch(migration))?;
    let all = |of: &Connection| -> rusqlite::Result<BTreeMap<String, Option<String>>> {
        let mut select = of.prepare("SELECT name, sql FROM sqlite_schema")?;
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    let there = all(connection)?;
    let changed = all(&ours)?.into_iter().filter(|(name, sql)| there.get(name) != Some(sql));
    Ok(changed.map(|(name, _)| format!("the schema does not have `{name}` as this program makes it")).collect())
}

/// Refuses to go on with a file that a newer program has brought up to date meanwhile: what this one knows of its
/// tables may not be true any more, and chains could be run twice.
pub fn still_ours(connection: &Connection) -> rusqlite::Result<()> {
    let version: u32 = connection.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))?;
    if version as usize == MIGRATIONS.len() {
        return Ok(());
    }
    let words = format!(
        "a newer program has brought the ledger's format to version {version}, and this one knows version {known}: \
         stop this one",
        known = MIGRATIONS.len()
    );
    Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_SCHEMA), Some(words)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use roundelay_model::clock::Clock;
    use roundelay_model::guard::Guard;
    use roundelay_model::ids::{Epoch, TickNo};

    use super::*;
    use crate::chain::{Hint, Holder};
    use crate::claim::{Claim, ClaimRequest, Grant};
    use crate::sqlite::SqliteLedger;
    use crate::url::LedgerUrl;
    use crate::{Jobs, Protocol, Reports, Sessions};

    #[test]
    fn a_file_of_version_1_is_brought_up_to_date_with_all_that_is_in_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(MIGRATIONS[0]).unwrap();
        connection.pragma_update(None, "user_version", 1).unwrap();
        let rows = "INSERT INTO meta VALUES ('ledger_id', 'an-old-one');
            INSERT INTO chains (kind, key, queue, tick, nominal, due, fence, expected, watch_at, payload)
                VALUES ('sync', 'a', 'work', 7, 1, 2, 3, 4, 5, '{}');
            INSERT INTO attempts (epoch, tick, attempt, previous, worker, due, started) VALUES (1, 7, 1, 0, 'w', 2, 2);
            INSERT INTO failures VALUES ('sync', 'a', 'no reason', 2, 10, 20);
            INSERT INTO jobs (id, body) VALUES ('job', x'7b7d');";
        connection.execute_batch(rows).unwrap();
        let now = Time::from_millis(1_800_000_000_000);
        for _ in 0..2 {
            assert_eq!(migrate(&mut connection, &Entropy::seeded(1), now).unwrap(), "an-old-one");
            let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
            assert_eq!(version as usize, MIGRATIONS.len());
        }
        let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(one("SELECT concat_ws(' ', epoch, kind, key, tick, fence, once) FROM chains"), "1 sync a 7 3 0");
        assert_eq!(
            one("SELECT concat_ws(' ', kind, key, item, reason, times, attempts) FROM failures"),
            "sync a  no reason 2 2"
        );
        assert_eq!(one("SELECT concat_ws(' ', id, kept_at) FROM jobs"), "job 0");
        // New numbers come after all that were given.
        let insert = "INSERT INTO chains (kind, key, queue, nominal, due, expected, watch_at, payload)
            VALUES ('sync', 'b', 'work', 1, 2, 4, 5, '{}') RETURNING epoch";
        let epoch: i64 = connection.query_row(insert, [], |row| row.get(0)).unwrap();
        assert!(epoch > now.as_millis() * 1_000, "{epoch}");
    }

    /// A chain that sleeps goes on, and one that a worker of that version runs is left to the worker until its lease is
    /// over.
    #[tokio::test]
    async fn chains_in_a_file_of_each_earlier_version_go_on() {
        let hint = |key: &str, epoch, tick| Hint {
            kind: "sync".into(),
            key: key.into(),
            queue: "work".into(),
            epoch: Epoch(epoch),
            tick: TickNo(tick),
            attempt: 1,
            due: Time::from_millis(2),
            parent: Epoch::NONE,
            priority: None,
        };
        for version in 1..MIGRATIONS.len() {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("ledger.db");
            let older = Connection::open(&file).unwrap();
            older.execute_batch(MIGRATIONS[0]).unwrap();
            let rows = "INSERT INTO meta VALUES ('ledger_id', 'an-old-one');
                INSERT INTO chains (kind, key, queue, tick, nominal, due, fence, expected, watch_at, payload, lease_until)
                    VALUES ('sync', 'a', 'work', 7, 1, 2, 3, 4, 5, '{}', 0),
                           ('sync', 'b', 'work', 9, 1, 2, 4, 4, 5, '{}', 2000000000000);
                INSERT INTO attempts (fence, epoch, tick, attempt, previous, worker, due, started, finished, verdict)
                    VALUES (3, 1, 6, 1, 0, 'w', 2, 2, 3, 'done'), (4, 2, 9, 1, 0, 'w', 2, 2, NULL, NULL);";
            older.execute_batch(rows).unwrap();
            MIGRATIONS[1..version].iter().for_each(|step| older.execute_batch(step).unwrap());
            older.pragma_update(None, "user_version", version as u32).unwrap();
            drop(older);
            let url = LedgerUrl::Sqlite(file);
            let ledger = SqliteLedger::open(&url, Clock::System, &Entropy::seeded(1)).unwrap();
            let session = ledger.begin_session("new".into(), Duration::from_secs(60)).await.unwrap();
            let ask = |hint: Hint| ClaimRequest {
                hint,
                worker: "new".into(),
                session,
                again: false,
                takeover: false,
                guard: Guard::default(),
                recurs: true,
                prepared: 9,
                ahead: Duration::ZERO,
            };
            let claim = ledger.claim(ask(hint("a", 1, 7))).await.unwrap();
            let goes_on = |grant: &Grant| !grant.lost && grant.learned.is_none();
            assert!(matches!(&claim, Claim::Granted(grant) if goes_on(grant)), "version {version}: {claim:?}");
            let view = ledger.chains("sync".into(), "a".into()).await.unwrap();
            assert_eq!((view[0].holder, &view[0].learned), (Holder::Alive, &None), "version {version}");
            let claim = ledger.claim(ask(hint("b", 2, 9))).await.unwrap();
            assert_eq!(claim, Claim::Runs, "version {version}");
            let beat = ledger.beat(session, Vec::new()).await.unwrap();
            let [old] = &beat.others[..] else { panic!("version {version}: {beat:?}") };
            assert_eq!(ledger.beat(session, vec![(old.session, old.beat)]).await.unwrap().ended, [old.session]);
            let claim = ledger.claim(ask(hint("b", 2, 9))).await.unwrap();
            assert!(matches!(&claim, Claim::Granted(grant) if grant.lost), "version {version}: {claim:?}");
        }
    }

    #[tokio::test]
    async fn nothing_is_written_to_a_file_that_a_newer_program_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let url = LedgerUrl::Sqlite(folder.path().join("ledger.db"));
        let ledger = SqliteLedger::open(&url, Clock::System, &Entropy::seeded(1)).unwrap();
        ledger.keep_job("before".into(), b"{}".to_vec()).await.unwrap();
        let newer = Connection::open(folder.path().join("ledger.db")).unwrap();
        newer.pragma_update(None, "user_version", MIGRATIONS.len() as u32 + 1).unwrap();
        let refused = ledger.keep_job("after".into(), b"{}".to_vec()).await.unwrap_err().to_string();
        assert!(refused.contains("a newer program") && refused.contains("stop this one"), "{refused}");
        let jobs: i64 = newer.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).unwrap();
        assert_eq!(jobs, 1);
        // Nor does the old program keep the lock.
        newer.busy_timeout(std::time::Duration::ZERO).unwrap();
        newer.execute("DELETE FROM jobs", []).unwrap();
    }
}
