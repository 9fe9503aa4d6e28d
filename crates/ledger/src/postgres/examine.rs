//! Examining a ledger's server without creating or changing anything there.

use roundelay_model::clock::{Clock, Time};
use roundelay_model::secret::Secret;
use tokio_postgres::{Client, Error, Row};

use super::connect::{Address, words};
use super::schema;

/// What the server says of itself and of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenServer {
    /// Its version, as `server_version_num` has it: 150018 is 15.18.
    pub version: i32,
    /// It is a standby.
    pub in_recovery: bool,
    /// Transactions are read-only unless they ask for more.
    pub read_only: bool,
    /// The default isolation level, as the database or the role has it.
    pub isolation: String,
    /// The setting `synchronous_commit`, as the database or the role has it.
    pub synchronous_commit: String,
    /// The standbys for which it waits before it confirms a commit; empty if it waits for none.
    pub waits_for: String,
    /// How many of those are connected; nothing if the role may not see it.
    pub synchronous_standbys: Option<i64>,
    /// Whether a standby is connected to its primary.
    pub following: bool,
    /// The last commit that a standby has, by the primary's clock.
    pub last_commit: Option<Time>,
    /// Whether it flushes to disk at all.
    pub fsync: bool,
    /// Whether it mends pages that a crash has torn.
    pub full_page_writes: bool,
    /// Whether it vacuums by itself.
    pub autovacuum: bool,
    /// Connections that ordinary users may have, and how many there are.
    pub connections: (i64, i64),
    /// Connections that this role may have, if that is limited, and has.
    pub of_role: (Option<i64>, i64),
    /// Connections that the database may have, if that is limited, and has.
    pub of_database: (Option<i64>, i64),
    /// The schema in which the ledger is, or would be.
    pub schema: Option<String>,
    /// The ledger in it, if there is one.
    pub ledger: Option<SeenLedger>,
    /// For how many seconds the oldest transaction of the database has been open, as far as this role may see them:
    /// vacuum removes no row that has died since then.
    pub oldest_transaction: Option<i64>,
    /// Whether tables may be made in the schema.
    pub may_create: bool,
    /// Its clock.
    pub clock: Reading,
}

/// A ledger on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenLedger {
    /// The version of its format; nothing when the table `meta` is not a ledger's.
    pub version: Option<u32>,
    /// The version that this program knows.
    pub known: u32,
    /// The highest number that its sequences have given: at least the microseconds since 1970 when it was last opened.
    pub highest: Option<i64>,
    /// Tables that this role may not read and write.
    pub withheld: Vec<String>,
    /// Why nothing can be written.
    pub unwritten: Option<String>,
    /// Tables with more dead rows than living ones, with both numbers.
    pub bloated: Vec<(String, i64, i64)>,
    /// Bytes of all its tables and indexes.
    pub bytes: i64,
}

/// What a clock showed, and this machine's before it was asked and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// This machine's clock before.
    pub before: Time,
    /// The other.
    pub told: Time,
    /// This machine's clock after.
    pub after: Time,
}

/// Why a server cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unasked {
    /// The SQLSTATE, where the server has answered.
    pub code: Option<String>,
    /// What the server, or the way to it, says.
    pub words: String,
}

/// A role that is no monitor sees little more of other roles' sessions than that they exist.
const SERVER: &str = "
    SELECT current_setting('server_version_num')::int4, pg_is_in_recovery(),
           current_setting('default_transaction_read_only')::bool, current_setting('default_transaction_isolation'),
           current_setting('synchronous_commit'), current_setting('fsync')::bool,
           current_setting('full_page_writes')::bool, current_setting('autovacuum')::bool,
           current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8
               - coalesce(current_setting('reserved_connections', true)::int8, 0),
           (SELECT count(*) FROM pg_stat_activity WHERE usesysid IS NOT NULL),
           (SELECT nullif(rolconnlimit, -1)::int8 FROM pg_roles WHERE rolname = current_user),
           (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
           (SELECT nullif(datconnlimit, -1)::int8 FROM pg_database WHERE datname = current_database()),
           (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL),
           current_schema()::text, to_regclass('meta') IS NOT NULL,
           coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
           current_setting('synchronous_standby_names'),
           CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE')
                THEN (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) END,
           EXISTS (SELECT FROM pg_stat_wal_receiver WHERE pid IS NOT NULL),
           floor(extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000)::int8,
           (SELECT floor(extract(epoch FROM clock_timestamp() - min(began)))::int8 FROM (
               SELECT xact_start AS began FROM pg_stat_activity
               WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
                   AND coalesce(backend_xmin, backend_xid) IS NOT NULL
               UNION ALL
               SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()) open)";
const CLOCK: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8";
/// The catalogue's tables are asked, so that a table that may not be read is reported, too.
const SEEN: &str = "
    SELECT c.relname::text, coalesce(s.n_dead_tup, 0), coalesce(s.n_live_tup, 0), pg_total_relation_size(c.oid),
           has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
               AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
    WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relname = ANY($1) ORDER BY c.relname";
/// Fewer dead rows are no burden, however few live beside them.
const MIN_DEAD_ROWS: i64 = 10_000;

/// Looks at the server at `url`.
///
/// # Errors
/// When it cannot be asked.
pub async fn look(url: &Secret) -> Result<SeenServer, Unasked> {
    let address = Address::new(url).map_err(|words| Unasked { code: None, words })?.for_looking();
    let unreached = |error: Error| Unasked { words: address.words(&error), ..unasked(error) };
    let (client, task) = address.dial().await.map_err(unreached)?;
    let seen = ask(&client).await.map_err(unasked);
    task.abort();
    seen
}

async fn ask(client: &Client) -> Result<SeenServer, Error> {
    // The first statement of a session takes longer than others, and would blur the reading.
    let row = client.query_one(SERVER, &[]).await?;
    let clock = Reading {
        before: Clock::System.now(),
        told: Time::from_millis(client.query_one(CLOCK, &[]).await?.try_get(0)?),
        after: Clock::System.now(),
    };
    let ledger = if row.try_get(15)? { Some(ledger(client).await?) } else { None };
    Ok(SeenServer {
        version: row.try_get(0)?,
        in_recovery: row.try_get(1)?,
        read_only: row.try_get(2)?,
        isolation: row.try_get(3)?,
        synchronous_commit: row.try_get(4)?,
        waits_for: row.try_get(17)?,
        synchronous_standbys: row.try_get(18)?,
        following: row.try_get(19)?,
        last_commit: row.try_get::<_, Option<i64>>(20)?.map(Time::from_millis),
        fsync: row.try_get(5)?,
        full_page_writes: row.try_get(6)?,
        autovacuum: row.try_get(7)?,
        connections: (row.try_get(8)?, row.try_get(9)?),
        of_role: (row.try_get(10)?, row.try_get(11)?),
        of_database: (row.try_get(12)?, row.try_get(13)?),
        schema: row.try_get(14)?,
        may_create: row.try_get(16)?,
        oldest_transaction: row.try_get(21)?,
        ledger,
        clock,
    })
}

async fn ledger(client: &Client) -> Result<SeenLedger, Error> {
    // Another's table of that name has other columns, and a newer format may have all this elsewhere.
    let text = |row: &Row| row.try_get::<_, String>(0).ok();
    let version = client.query_opt("SELECT value::text FROM meta WHERE name = 'ledger_version'", &[]).await;
    let version = version.ok().flatten().and_then(|row| text(&row)?.parse().ok());
    let highest = "SELECT greatest((SELECT last_value FROM epochs), (SELECT last_value FROM fences))";
    let highest = client.query_one(highest, &[]).await.and_then(|row| row.try_get(0)).ok();
    let (mut withheld, mut bloated, mut bytes) = (Vec::new(), Vec::new(), 0_i64);
    for row in client.query(SEEN, &[&schema::TABLES.as_slice()]).await? {
        let (table, dead, live): (String, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        bytes = bytes.saturating_add(row.try_get(3)?);
        if !row.try_get::<_, bool>(4)? {
            withheld.push(table.clone());
        }
        if dead > MIN_DEAD_ROWS && dead > live {
            bloated.push((table, dead, live));
        }
    }
    let unwritten = try_to_write(client).await.err().map(|error| words(&error));
    Ok(SeenLedger { version, known: schema::VERSION as u32, highest, withheld, unwritten, bloated, bytes })
}

/// Writes in a transaction that is rolled back. It does not wait long for locks, and holds none that others wait for.
async fn try_to_write(client: &Client) -> Result<(), Error> {
    client.batch_execute("BEGIN; SET LOCAL lock_timeout = '2s'").await?;
    let written = client.execute("UPDATE meta SET value = value WHERE name = 'ledger_id'", &[]).await;
    client.batch_execute("ROLLBACK").await?;
    written.map(drop)
}

fn unasked(error: Error) -> Unasked {
    Unasked { code: error.code().map(|code| code.code().to_owned()), words: words(&error) }
}
