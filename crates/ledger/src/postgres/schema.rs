//! The PostgreSQL ledger's tables and how they came to be.

use roundelay_model::clock::Entropy;
use tokio_postgres::{Client, Error};

use super::connect::{Session, words};

/// One step for each version that was ever released; a schema is brought up to the last.
const MIGRATIONS: [&str; 22] = [
    // Version 1. Epochs and fences come from sequences without a cache, which would give them out of order. Text is
    // compared byte by byte, so that an index does not depend on the system's locales. Pages have room to spare, since
    // most updates (a claim changes no indexed column) can then stay on their page and leave the indexes alone; that is
    // also why the index for claims that no worker will take over is on a column of its own and not on `lease_until`.
    r#"CREATE SEQUENCE epochs;
       CREATE SEQUENCE fences;
       SELECT setval(name, floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8)
           FROM unnest(ARRAY['epochs', 'fences']) AS name;
       CREATE TABLE chains (
           epoch       int8 PRIMARY KEY,
           kind        text COLLATE "C" NOT NULL,
           key         text COLLATE "C" NOT NULL,
           once        bool NOT NULL,
           queue       text COLLATE "C" NOT NULL,
           state       int8 NOT NULL DEFAULT 0,
           tick        int8 NOT NULL DEFAULT 1,
           attempt     int8 NOT NULL DEFAULT 1,
           nominal     int8 NOT NULL,
           due         int8 NOT NULL,
           fence       int8 NOT NULL DEFAULT 0,
           lease_until int8 NOT NULL DEFAULT 0,
           sent        bool NOT NULL DEFAULT false,
           expected    int8 NOT NULL,
           watch_at    int8 NOT NULL,
           looks       int8 NOT NULL DEFAULT 0,
           payload     text NOT NULL,
           left_held   bool GENERATED ALWAYS AS (state <> 0 AND lease_until <> 0) STORED
       ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
       CREATE UNIQUE INDEX chains_by_name ON chains (kind, key, once);
       CREATE INDEX chains_to_watch ON chains (queue, watch_at) WHERE state = 0;
       CREATE INDEX chains_left_held ON chains (epoch) WHERE left_held;
       CREATE TABLE attempts (
           fence    int8 PRIMARY KEY,
           epoch    int8 NOT NULL,
           tick     int8 NOT NULL,
           attempt  int8 NOT NULL,
           previous int8 NOT NULL,
           worker   text NOT NULL,
           due      int8 NOT NULL,
           started  int8 NOT NULL,
           finished int8,
           verdict  text,
           reason   text
       ) WITH (fillfactor = 70);
       CREATE TABLE failures (
           kind     text COLLATE "C" NOT NULL,
           key      text COLLATE "C" NOT NULL,
           item     text COLLATE "C" NOT NULL,
           reason   text NOT NULL,
           times    int8 NOT NULL,
           first_at int8 NOT NULL,
           last_at  int8 NOT NULL,
           PRIMARY KEY (kind, key, item)
       );
       CREATE TABLE quarantine (
           number int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
           at     int8 NOT NULL,
           source text NOT NULL,
           reason text NOT NULL,
           body   bytea NOT NULL
       );
       CREATE TABLE jobs (
           number  int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
           id      text COLLATE "C" NOT NULL UNIQUE,
           body    bytea NOT NULL,
           kept_at int8 NOT NULL
       );"#,
    // Version 2: owners, schedules of a chain's own, what guards look at, what a run hands on, batches. `parent` is the
    // epoch of the chain that waits for this member of its batch. A run of a member that is deleted cannot be finished,
    // so its record ends there, whatever deletes the member.
    r#"ALTER TABLE chains
           ADD COLUMN owner text COLLATE "C",
           ADD COLUMN schedule text,
           ADD COLUMN carry text,
           ADD COLUMN started_tick int8 NOT NULL DEFAULT 0,
           ADD COLUMN last_start int8 NOT NULL DEFAULT 0,
           ADD COLUMN last_finish int8 NOT NULL DEFAULT 0,
           ADD COLUMN parent int8 NOT NULL DEFAULT 0,
           ADD COLUMN batch_total int8 NOT NULL DEFAULT 0,
           ADD COLUMN batch_open int8 NOT NULL DEFAULT 0,
           ADD COLUMN batch_failed int8 NOT NULL DEFAULT 0;
       DROP INDEX chains_by_name;
       CREATE UNIQUE INDEX chains_by_name ON chains (kind, key, once, parent);
       CREATE INDEX chains_by_parent ON chains (parent) WHERE parent <> 0;
       CREATE FUNCTION member_leaves() RETURNS trigger LANGUAGE plpgsql AS $body$
           BEGIN
               UPDATE attempts SET finished = OLD.lease_until, verdict = 'lost'
               WHERE fence = OLD.fence AND finished IS NULL;
               RETURN NULL;
           END $body$;
       CREATE TRIGGER member_leaves AFTER DELETE ON chains FOR EACH ROW WHEN (OLD.lease_until <> 0)
           EXECUTE FUNCTION member_leaves();
       CREATE INDEX chains_by_owner ON chains (owner) WHERE owner IS NOT NULL;
       ALTER TABLE attempts
           ADD COLUMN overlapped int8 NOT NULL DEFAULT 0,
           ADD COLUMN misfired int8 NOT NULL DEFAULT 0;
       CREATE TABLE owners (owner text COLLATE "C" PRIMARY KEY, state int8 NOT NULL, at int8 NOT NULL);
       CREATE TABLE uniques (
           kind  text COLLATE "C" NOT NULL,
           key   text COLLATE "C" NOT NULL,
           id    text NOT NULL,
           until int8 NOT NULL,
           PRIMARY KEY (kind, key)
       );"#,
    ROSTERS_AND_ARCHIVE,
    FAILURES_BY_REASON,
    THROTTLES,
    DISCOVERED_AND_PROGRESS,
    THROTTLE_ORDERS,
    RUNNING,
    THROTTLE_CLOCK,
    FLEET,
    ACCESS,
    UNIQUES_BY_UNTIL,
    PRIORITIES,
    MANUAL_RUNS,
    STEADY_TIME,
    SESSIONS,
    IN_HAND,
    SYNCHRONOUS,
    KIND_STATS,
    LEARNED,
    EXCLUDED,
    BACKLOG,
];

/// Places that stay taken for a whole window are forgotten when that is over, with the history.
const UNIQUES_BY_UNTIL: &str = "CREATE INDEX uniques_by_until ON uniques (until);";

/// What a failure is known by, and when it is tried again. `fed` is the job that is under way for a part,
/// and `held_until` the end of the time for which a run of it has the part.
const FAILURES_BY_REASON: &str = r#"
    ALTER TABLE failures
        ADD COLUMN code text COLLATE "C",
        ADD COLUMN attempts int8 NOT NULL DEFAULT 1,
        ADD COLUMN next_retry_at int8,
        ADD COLUMN permanent bool NOT NULL DEFAULT false,
        ADD COLUMN fed text COLLATE "C",
        ADD COLUMN held_until int8 NOT NULL DEFAULT 0;
    UPDATE failures SET attempts = times;
    CREATE INDEX failures_due ON failures (kind, next_retry_at) WHERE next_retry_at IS NOT NULL;
    CREATE UNIQUE INDEX failures_fed ON failures (fed) WHERE fed IS NOT NULL;"#;

/// What throttles remember, one row for each and each of its keys, until it is as good as new.
const THROTTLES: &str = r#"
    CREATE TABLE throttles (
        name    text COLLATE "C" NOT NULL,
        key     text COLLATE "C" NOT NULL,
        state   text NOT NULL,
        idle_at int8 NOT NULL,
        PRIMARY KEY (name, key)
    ) WITH (fillfactor = 50);
    CREATE INDEX throttles_by_idle ON throttles (idle_at);"#;

/// Which chains ended because their entities left the roster (only while the chain still has that
/// epoch), and what has become too old for `attempts`.
const ROSTERS_AND_ARCHIVE: &str = r#"
    CREATE TABLE departed (
        kind  text COLLATE "C" NOT NULL,
        key   text COLLATE "C" NOT NULL,
        epoch int8 NOT NULL,
        PRIMARY KEY (kind, key)
    );
    CREATE TABLE attempts_archive (
        fence    int8 PRIMARY KEY,
        epoch    int8 NOT NULL,
        kind     text COLLATE "C",
        key      text COLLATE "C",
        tick     int8 NOT NULL,
        attempt  int8 NOT NULL,
        worker   text NOT NULL,
        due      int8 NOT NULL,
        started  int8 NOT NULL,
        finished int8,
        verdict  text,
        reason   text,
        overlapped int8 NOT NULL,
        misfired   int8 NOT NULL
    );
    CREATE INDEX attempts_archive_by_name ON attempts_archive (kind, key);"#;

/// How many runs have led to a chain, and how far an attempt has said it had come, as JSON.
const DISCOVERED_AND_PROGRESS: &str = r#"
    ALTER TABLE chains ADD COLUMN depth int8 NOT NULL DEFAULT 0;
    ALTER TABLE attempts ADD COLUMN progress text;
    ALTER TABLE attempts_archive ADD COLUMN progress text;"#;

/// The orders for throttles, as JSON.
const THROTTLE_ORDERS: &str =
    r#"CREATE TABLE throttle_orders (name text COLLATE "C" PRIMARY KEY, orders text NOT NULL);"#;

/// How far the ledger's clock has been set, as far as workers have told: throttles count by what is left.
const THROTTLE_CLOCK: &str = r#"
    CREATE TABLE throttle_clock (set_by int8 NOT NULL);
    INSERT INTO throttle_clock VALUES (0);"#;

/// The reports of workers, what they have done recently, and the orders for them and for queues, as JSON. And what
/// screens ask for among very many chains: those that rest, and how many of an owner are in which state.
const FLEET: &str = r#"
    CREATE TABLE workers (worker text COLLATE "C" PRIMARY KEY, seen int8 NOT NULL, said text NOT NULL)
        WITH (fillfactor = 50);
    CREATE TABLE pulses (
        at     int8 NOT NULL,
        worker text COLLATE "C" NOT NULL,
        said   text NOT NULL,
        PRIMARY KEY (at, worker)
    );
    CREATE TABLE fleet_orders (subject text COLLATE "C" PRIMARY KEY, orders text NOT NULL);
    CREATE INDEX chains_resting ON chains (state, kind, key) WHERE state <> 0;
    DROP INDEX chains_by_owner;
    CREATE INDEX chains_by_owner ON chains (owner, once, parent, state) WHERE owner IS NOT NULL;"#;

/// One-off jobs that run and have said how far they have come, until their worker is silent.
const RUNNING: &str = r#"
    CREATE TABLE running (
        id       text COLLATE "C" NOT NULL,
        worker   text COLLATE "C" NOT NULL,
        kind     text COLLATE "C" NOT NULL,
        key      text COLLATE "C" NOT NULL,
        queue    text NOT NULL,
        attempt  int8 NOT NULL,
        started  int8 NOT NULL,
        progress text NOT NULL,
        until    int8 NOT NULL,
        PRIMARY KEY (id, worker)
    );
    CREATE INDEX running_by_name ON running (kind, key);
    CREATE INDEX running_by_until ON running (until);"#;

/// Who may use the API, the changes that were asked for (`status` is the HTTP status of the answer), and the answers to
/// requests with a key. A request has no status while it runs.
const ACCESS: &str = r#"
    CREATE TABLE tokens (
        id        int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name      text COLLATE "C" NOT NULL UNIQUE,
        hash      bytea NOT NULL UNIQUE,
        scope     text NOT NULL,
        created   int8 NOT NULL,
        expires   int8,
        last_used int8
    );
    CREATE TABLE audit (
        number int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at     int8 NOT NULL,
        actor  text NOT NULL,
        scope  text NOT NULL,
        action text NOT NULL,
        target text NOT NULL,
        detail text NOT NULL,
        status int8
    );
    CREATE TABLE requests (
        number       int8 GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        actor        text COLLATE "C" NOT NULL,
        key          text COLLATE "C" NOT NULL,
        fingerprint  bytea NOT NULL,
        began        int8 NOT NULL,
        lease_until  int8 NOT NULL,
        status       int8,
        content_type text,
        body         bytea,
        UNIQUE (actor, key)
    );
    CREATE INDEX requests_by_age ON requests (began);"#;

/// The priority of a chain's own, in place of its kind's.
const PRIORITIES: &str = "ALTER TABLE chains ADD COLUMN priority int8";

/// How a manual run was asked for; and of a rotation, whether a manual run of its chain may not have ended.
const MANUAL_RUNS: &str = "
    ALTER TABLE chains ADD COLUMN manual int8 NOT NULL DEFAULT 0, ADD COLUMN beside bool NOT NULL DEFAULT false;
    UPDATE chains r SET beside = true FROM chains m
    WHERE m.once AND m.parent = 0 AND m.state <> 2 AND r.kind = m.kind AND r.key = m.key AND NOT r.once AND r.parent = 0";

/// The ledger's time is that of the server less how far its clock has been set, as throttles have had it. What chains
/// have by the clock itself is brought to that. `clock_sets` has from when on the wall clock was ahead by how much.
const STEADY_TIME: &str = "
    UPDATE chains SET nominal = nominal - set_by / 1000, due = due - set_by / 1000, expected = expected - set_by / 1000,
                      watch_at = watch_at - set_by / 1000, lease_until = greatest(lease_until - set_by / 1000, 0),
                      last_start = greatest(last_start - set_by / 1000, 0),
                      last_finish = greatest(last_finish - set_by / 1000, 0)
    FROM throttle_clock WHERE set_by <> 0;
    ALTER TABLE throttle_clock RENAME TO ledger_clock;
    ALTER TABLE ledger_clock ADD COLUMN seen int8 NOT NULL DEFAULT 0, ADD COLUMN version int8 NOT NULL DEFAULT 0;
    CREATE TABLE clock_sets (since int8 NOT NULL, ahead int8 NOT NULL);
    CREATE FUNCTION ledger_millis() RETURNS int8 LANGUAGE sql AS
        'SELECT (floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8 - set_by) / 1000 FROM ledger_clock';
    INSERT INTO clock_sets SELECT ledger_millis(), set_by / 1000 FROM ledger_clock WHERE set_by <> 0;";

/// Chains are held by sessions of workers. Those of an older version are given the time that their leases had.
const SESSIONS: &str = "
    ALTER TABLE chains RENAME COLUMN lease_until TO holder;
    CREATE TABLE sessions (
        session int8 PRIMARY KEY,
        worker  text NOT NULL,
        lease   int8 NOT NULL,
        mark    text NOT NULL,
        beat    int8 NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    UPDATE chains SET holder = 1 WHERE holder <> 0;
    INSERT INTO sessions (session, worker, lease, mark) SELECT 1, 'workers of an older version', 30000, ''
        WHERE EXISTS (SELECT FROM chains WHERE holder = 1);
    CREATE OR REPLACE FUNCTION member_leaves() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN
            UPDATE attempts SET finished = ledger_millis(), verdict = 'lost'
            WHERE fence = OLD.fence AND finished IS NULL;
            RETURN NULL;
        END $body$;";

/// Which sessions have run a one-off job that was delivered again, and have not finished it.
const IN_HAND: &str = r#"
    CREATE TABLE in_hand (
        job     text COLLATE "C" NOT NULL,
        session int8 NOT NULL,
        at      int8 NOT NULL,
        PRIMARY KEY (job, session)
    );
    CREATE INDEX in_hand_by_age ON in_hand (at);"#;

/// Whether a session's worker refuses a server that waits for no standby, so that the standby knows of each of its claims.
const SYNCHRONOUS: &str = "ALTER TABLE sessions ADD COLUMN synchronous bool NOT NULL DEFAULT false";

/// What the runs of each kind came to, on each worker, in stretches of a minute, of ten and of an hour.
const KIND_STATS: &str = r#"
    CREATE TABLE kind_stats (
        step   int8 NOT NULL,
        at     int8 NOT NULL,
        kind   text COLLATE "C" NOT NULL,
        worker text COLLATE "C" NOT NULL,
        said   text NOT NULL,
        PRIMARY KEY (step, at, kind, worker)
    );"#;

/// What chains have learned of how often their entities change.
const LEARNED: &str = "ALTER TABLE chains ADD COLUMN learned bytea";

/// Occurrences that calendars have left out.
const EXCLUDED: &str = "
    ALTER TABLE attempts ADD COLUMN excluded int8 NOT NULL DEFAULT 0;
    ALTER TABLE attempts_archive ADD COLUMN excluded int8 NOT NULL DEFAULT 0;";

/// Messages of fair queues that wait for their tenant's turn: `taken` is the session that has taken one, or 0. And leave
/// to run one job of a tenant each, where quotas limit them: `held` has the session and the number of each.
const BACKLOG: &str = r#"
    CREATE TABLE backlog (
        number int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        queue  text COLLATE "C" NOT NULL,
        tenant text COLLATE "C" NOT NULL,
        name   text COLLATE "C" NOT NULL,
        body   bytea NOT NULL,
        at     int8 NOT NULL,
        taken  int8 NOT NULL DEFAULT 0,
        takes  int8 NOT NULL DEFAULT 0
    );
    CREATE UNIQUE INDEX backlog_by_name ON backlog (name);
    CREATE INDEX backlog_in_turn ON backlog (queue, tenant, number) WHERE taken = 0;
    CREATE INDEX backlog_by_tenant ON backlog (queue, tenant);
    CREATE INDEX backlog_taken ON backlog (taken) WHERE taken <> 0;
    CREATE TABLE seats (
        queue  text COLLATE "C" NOT NULL,
        tenant text COLLATE "C" NOT NULL,
        held   text[] NOT NULL,
        PRIMARY KEY (queue, tenant)
    );"#;

/// The sequences of epochs and fences go on from at least now, in microseconds since 1970. So they
/// never go back, not even when the database was replaced by an older copy of itself: the numbers
/// that were given since then are all smaller. They stay below 2^53, which every JSON parser can
/// hold, until the year 2255.
///
/// Setting a sequence and taking from it exclude each other in no way. So one that is less than a
/// second behind is left alone: no worker takes a million numbers while this statement runs.
const BEHIND: &str = "last_value + 1000000 < floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// The version of the format that this program knows.
pub(super) const VERSION: usize = MIGRATIONS.len();

/// The ledger's tables. Other tables in the same schema are not the ledger's.
pub(super) const TABLES: [&str; 26] = [
    "attempts",
    "attempts_archive",
    "audit",
    "backlog",
    "chains",
    "clock_sets",
    "departed",
    "failures",
    "fleet_orders",
    "in_hand",
    "jobs",
    "kind_stats",
    "ledger_clock",
    "meta",
    "owners",
    "pulses",
    "quarantine",
    "requests",
    "running",
    "seats",
    "sessions",
    "throttle_orders",
    "throttles",
    "tokens",
    "uniques",
    "workers",
];

/// Raises the sequences, if there are any yet, and if they are behind.
pub(super) async fn raise(client: &Client) -> Result<(), Error> {
    let there = "SELECT to_regclass('epochs') IS NOT NULL AND to_regclass('fences') IS NOT NULL";
    if !client.query_one(there, &[]).await?.try_get(0)? {
        return Ok(());
    }
    let behind =
        format!("SELECT EXISTS (SELECT FROM epochs WHERE {BEHIND}) OR EXISTS (SELECT FROM fences WHERE {BEHIND})");
    if client.query_one(&behind, &[]).await?.try_get(0)? {
        // One worker after the other, or a slow one would set back what a fast one has raised.
        let set = |name: &str| {
            format!(
                "SELECT setval('{name}', floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8)
                 FROM {name} WHERE {BEHIND}"
            )
        };
        let (lock, epochs, fences) = (lock("sequences"), set("epochs"), set("fences"));
        client
            .batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({lock}); {epochs}; {fences}; COMMIT"))
            .await?;
    }
    Ok(())
}

/// The number of an advisory lock of this ledger, as an SQL expression. Several ledgers may share
/// a database, in schemas of their own.
pub(super) fn lock(purpose: &str) -> String {
    format!("hashtextextended('roundelay {purpose} ' || current_schema(), 0)")
}

/// Brings the schema up to date and returns the ledger's id. Safe when several workers start at
/// once: one does it, and the others wait for it.
///
/// # Errors
/// In words for the person who starts the worker.
pub(super) async fn migrate(session: &mut Session, entropy: &Entropy) -> Result<String, String> {
    let told = |error: Error| words(&error);
    let transaction = session.client.transaction().await.map_err(told)?;
    let place: Option<String> = transaction
        .query_one("SELECT current_schema()::text", &[])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(told)?;
    let place = place.ok_or("there is no schema to keep the ledger in; create the one that search_path names")?;
    transaction
        .batch_execute(&format!("SELECT pg_advisory_xact_lock({})", lock("migrations")))
        .await
        .map_err(|error| format!("another worker is bringing it up to date, which takes long: {}", words(&error)))?;
    let exists = "SELECT to_regclass('meta') IS NOT NULL";
    let exists: bool = transaction.query_one(exists, &[]).await.and_then(|row| row.try_get(0)).map_err(told)?;
    let version = if exists {
        let select = "SELECT value FROM meta WHERE name = 'ledger_version'";
        let foreign = format!(
            "the schema `{place}` has a table `meta` that is not a ledger's: give the ledger a database of its own, \
             or a schema, with ?options=-csearch_path%3DNAME in the URL"
        );
        let found = transaction.query_opt(select, &[]).await.map_err(|_| foreign.clone())?;
        let text: String = found.ok_or(foreign.clone())?.try_get(0).map_err(told)?;
        text.parse::<usize>().map_err(|_| foreign)?
    } else {
        transaction
            .batch_execute("CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL)")
            .await
            .map_err(|error| format!("the tables cannot be created in the schema `{place}`: {}", words(&error)))?;
        0
    };
    if version > MIGRATIONS.len() {
        return Err(format!(
            "its format is version {version}, and this program knows versions up to {}: use the program that made it, \
             or a newer one",
            MIGRATIONS.len()
        ));
    }
    for migration in MIGRATIONS.iter().skip(version) {
        transaction
            .batch_execute(migration)
            .await
            .map_err(|error| format!("the schema `{place}` cannot be brought up to date: {}", words(&error)))?;
    }
    if version < MIGRATIONS.len() {
        let upsert = "INSERT INTO meta (name, value) VALUES ('ledger_version', $1)
                      ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        transaction.execute(upsert, &[&MIGRATIONS.len().to_string()]).await.map_err(told)?;
        let insert = "INSERT INTO meta (name, value) VALUES ('ledger_id', $1) ON CONFLICT DO NOTHING";
        transaction.execute(insert, &[&entropy.token()]).await.map_err(told)?;
    }
    let select = "SELECT value FROM meta WHERE name = 'ledger_id'";
    let id = transaction.query_one(select, &[]).await.and_then(|row| row.try_get(0)).map_err(told)?;
    transaction.commit().await.map_err(told)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_ledgers_tables_are_those_that_are_created() {
        let mut created = BTreeSet::from(["meta"]);
        for step in MIGRATIONS {
            let after = |words| step.split(words).skip(1).filter_map(|rest: &str| rest.split([' ', ';']).next());
            created.extend(after("CREATE TABLE "));
            for gone in after("DROP TABLE ") {
                created.remove(gone);
            }
            for renamed in step.split("ALTER TABLE ").skip(1).filter(|rest| rest.contains(" RENAME TO ")) {
                let mut words = renamed.split([' ', ';']);
                if let (Some(before), Some("RENAME"), Some("TO"), Some(after)) =
                    (words.next(), words.next(), words.next(), words.next())
                {
                    created.remove(before);
                    created.insert(after);
                }
            }
        }
        assert_eq!(created, BTreeSet::from(TABLES));
    }
}
