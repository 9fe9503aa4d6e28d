//! A group of verbs as one transaction of two round trips: lock what they need and read the clock;
//! then decide here; then write what has come of it and commit. Each step is one statement for all
//! verbs of the group, and the statements of a round trip follow each other without waiting.

use futures_util::future::{BoxFuture, FutureExt, join, join_all, join3};
use roundelay_model::clock::{Followed, Seen, Time, instant};
use roundelay_model::guard::Manual;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::clock;
use super::connect::{Session, ends_session, passes, words};
use super::schema;
use super::write::{self, Column, Part};
use crate::chain::{ChainState, Hint, Holder};
use crate::decide::grant::ChainRow;
use crate::decide::{Held, Page, Wanted};

/// Locks chains, always in the order of their epochs, so that two transactions never wait for each
/// other. The locked table stands alone: from a join, a row that another transaction has changed
/// while this one waited for it can be missing.
macro_rules! lock {
    ($with_payload:literal, $which:literal) => {
        concat!(
            "SELECT epoch, kind, key, queue, tick, attempt, due, parent, state, nominal, holder, sent, once, fence,
                    watch_at, looks, expected, started_tick, last_start, last_finish, batch_total, batch_open,
                    batch_failed, owner, schedule, CASE WHEN ",
            $with_payload,
            " THEN payload ELSE '' END, CASE WHEN ",
            $with_payload,
            " THEN carry END, CASE WHEN ",
            $with_payload,
            " THEN learned END, depth, priority, manual, beside
             FROM chains WHERE epoch = ANY (",
            $which,
            ") ORDER BY epoch FOR UPDATE"
        )
    };
}
/// Chains by their epochs, some with their payloads.
const LOCK: &str = lock!("epoch IN (SELECT unnest($2::int8[]))", "$1::int8[]");
/// The same, and chains by their names, all with their payloads.
const LOCK_NAMED: &str = lock!(
    "true",
    "$1::int8[] || ARRAY(
         SELECT named.epoch FROM unnest($2::text[], $3::text[]) AS n (kind, key)
         JOIN chains named ON named.kind = n.kind AND named.key = n.key AND named.parent = 0)"
);
/// The time, the transaction, numbers from the sequences, the sessions that go on, and the format's version. Asked after all locks are held:
/// so a chain's fences rise, and no lease is judged by the time before the wait for a lock. A statement that waits for
/// a row gets the row as it is then, and everything else as it was before: by the sessions from before the wait, the
/// holder would seem gone that has begun and claimed meanwhile.
const NUMBERS: &str = "
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8, pg_current_xact_id()::text,
           concat(pg_postmaster_start_time(), ' ', pg_last_wal_replay_lsn()),
           ARRAY(SELECT nextval('fences') FROM generate_series(1, $1::int8)),
           ARRAY(SELECT nextval('epochs') FROM generate_series(1, $2::int8)), (SELECT set_by FROM ledger_clock),
           (SELECT version FROM ledger_clock), ARRAY(SELECT session FROM sessions),
           (SELECT value FROM meta WHERE name = 'ledger_version')";
/// How many workers have died over the attempts of these claims, as [`crate::sqlite`] counts it.
const DEATHS: &str = "
    WITH RECURSIVE claims AS (
        SELECT fence AS last, previous, epoch, tick, attempt, verdict, reason, 1 AS nth FROM attempts
        WHERE fence = ANY ($1::int8[])
        UNION ALL
        SELECT c.last, a.previous, a.epoch, a.tick, a.attempt, a.verdict, a.reason, c.nth + 1
        FROM claims c JOIN attempts a
            ON a.fence = c.previous AND a.epoch = c.epoch AND a.tick = c.tick AND a.attempt = c.attempt
        WHERE a.verdict IN ('lost', 'fenced') AND c.nth < 32)
    SELECT last, count(*) FROM claims WHERE verdict IS NULL OR (verdict = 'lost' AND reason IS NULL) GROUP BY last";
/// What nearly every group needs, prepared before the first one waits for it.
pub(super) const PREPARED_STATEMENTS: [&str; 6] =
    [LOCK, LOCK_NAMED, NUMBERS, write::MOVE, write::BEGIN_ATTEMPTS, write::END_ATTEMPTS];

/// How a transaction is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    /// Nothing in it is waited for, so the commit need not reach the disk at once.
    pub(super) lazy: bool,
    /// Give up soon where another transaction has locked a row.
    pub(super) impatient: bool,
}

impl Manner {
    fn begin(self) -> &'static str {
        match (self.lazy, self.impatient) {
            (false, false) => "BEGIN",
            (true, _) => "BEGIN; SET LOCAL synchronous_commit = off",
            (false, true) => "BEGIN; SET LOCAL lock_timeout = '100ms'",
        }
    }
}

/// Why a transaction was not committed, or is not known to be.
#[derive(Debug)]
pub(super) enum Failed {
    /// It can be tried again at once: others were in its way.
    Again(String),
    /// A statement failed, and would fail again.
    Statement(String),
    /// The connection was lost.
    Lost(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        if passes(&error) {
            Self::Again(words(&error))
        } else if ends_session(&error) {
            Self::Lost(words(&error))
        } else {
            Self::Statement(words(&error))
        }
    }
}

/// Several verbs, decided together.
pub(super) trait Decisions: Send {
    /// Adds what the verbs need to `wanted`.
    fn wants(&self, wanted: &mut Wanted);
    /// Adds what else the verbs need, now that the locked rows are known.
    fn wants_further(&self, page: &mut Page, wanted: &mut Wanted);
    /// Decides all verbs, and changes the page.
    fn decide(&mut self, page: &mut Page);
}

/// A transaction whose commit is on its way.
#[derive(Debug)]
pub(super) struct Committing {
    /// The transaction's number.
    xid: String,
    /// The run of the server that gave the number.
    run: String,
}

/// What became of a transaction, with its number and the run of the server that gave it: nothing if that run is over.
/// A server that goes on after a crash, or a standby that takes a lost server's place, gives the numbers again that it
/// has not seen in the write-ahead log, so there another transaction may have the same number. Runs differ in when the
/// server was started, or in where its recovery ended.
///
/// The message writes to the log, so that this statement, too, is answered only when a synchronous standby has it, and
/// with it all that was committed before: a commit whose wait for the standby was broken off is else
/// on this server alone.
const FATE: &str = "
    SELECT CASE WHEN concat(pg_postmaster_start_time(), ' ', pg_last_wal_replay_lsn()) = $2
                THEN pg_xact_status($1::text::xid8) END,
           pg_logical_emit_message(true, 'roundelay', ''::text)";

impl Committing {
    /// What became of it, by a new connection: `committed`, `aborted` or `in progress`; nothing if the server cannot
    /// know.
    pub(super) async fn fate(&self, session: &Session) -> Result<Option<String>, Error> {
        session.client.query_one(FATE, &[&self.xid, &self.run]).await?.try_get(0)
    }
}

/// Locks, decides, writes and commits. Once the commit is on its way, `committing` holds the
/// transaction.
pub(super) async fn transact(
    session: &Session,
    verbs: &mut dyn Decisions,
    followed: &Followed,
    manner: Manner,
    committing: &mut Option<Committing>,
) -> Result<(), Failed> {
    let mut wanted = Wanted::default();
    verbs.wants(&mut wanted);
    let numbers = session.statement(NUMBERS).await?;
    session.statement(lock_statement(&wanted)).await?;
    let (fences, epochs) = (wanted.fences, wanted.new_epochs);
    let parameters: [&(dyn ToSql + Sync); 2] = [&fences, &epochs];
    let ask = || session.client.query_one(&numbers, &parameters);
    let mut asked = instant();
    let (begun, locked, mut told) =
        join3(session.client.batch_execute(manner.begin()), lock(session, &wanted), ask()).await;
    begun?;
    let mut page = Page::default();
    locked?.into_iter().try_for_each(|row| held(&row).map(|held| page.add(held)))?;
    let mut further = Wanted::default();
    verbs.wants_further(&mut page, &mut further);
    if !further.names.is_empty() {
        lock(session, &further).await?.into_iter().try_for_each(|row| held(&row).map(|held| page.add(held)))?;
        asked = instant();
        told = ask().await;
    }
    let told = told?;
    let transaction = Committing { xid: told.try_get(1)?, run: told.try_get(2)? };
    let seen =
        Seen { server: told.try_get(0)?, set: told.try_get(5)?, version: told.try_get(6)?, asked, answered: instant() };
    let sessions: Vec<i64> = told.try_get(7)?;
    still_ours(told.try_get(8)?)?;
    page.judge_holders(&sessions);
    let left_over: Vec<i64> = page.left_over(&wanted.taken_over).into_iter().map(Fence::get).collect();
    if !left_over.is_empty() {
        let deaths = session.statement(DEATHS).await?;
        for row in session.client.query(&deaths, &[&left_over]).await? {
            page.count_deaths(Fence(row.try_get(0)?), small(row.try_get(1)?));
        }
    }
    let reading = followed.read(seen);
    clock::correct(&session.client, &seen, reading).await?;
    page.begin(reading.time(), told.try_get::<_, Vec<i64>>(3)?, told.try_get::<_, Vec<i64>>(4)?);
    verbs.decide(&mut page);
    if page.overdrawn() {
        let why = "a verb has taken more fences or epochs than it asked for, which is a bug; nothing was written";
        return Err(Failed::Statement(why.into()));
    }
    write(session, &page, transaction, committing).await
}

/// Refuses to go on with tables that a newer program has brought up to date meanwhile: what this one knows of their
/// columns may no longer hold.
fn still_ours(version: &str) -> Result<(), Failed> {
    if version == schema::VERSION.to_string() {
        return Ok(());
    }
    Err(Failed::Statement(format!(
        "a newer program has brought the ledger's format to version {version}, and this one knows version {}: stop this \
         one",
        schema::VERSION
    )))
}

/// The statement that locks what is wanted: most groups want no chain by its name.
fn lock_statement(wanted: &Wanted) -> &'static str {
    if wanted.names.is_empty() { LOCK } else { LOCK_NAMED }
}

async fn lock(session: &Session, wanted: &Wanted) -> Result<Vec<Row>, Error> {
    let statement = session.statement(lock_statement(wanted)).await?;
    let epochs: Vec<i64> = wanted.epochs.iter().map(|(epoch, _)| epoch.get()).collect();
    if !wanted.names.is_empty() {
        let (kinds, keys): (Vec<&str>, Vec<&str>) = wanted.names.iter().map(|(kind, key)| (&**kind, &**key)).unzip();
        return session.client.query(&statement, &[&epochs, &kinds, &keys]).await;
    }
    let payloads: Vec<i64> = wanted.epochs.iter().filter(|(_, with)| **with).map(|(epoch, _)| epoch.get()).collect();
    session.client.query(&statement, &[&epochs, &payloads]).await
}

fn held(row: &Row) -> Result<Held, Error> {
    let time = |column: usize| row.try_get(column).map(Time::from_millis);
    let session: i64 = row.try_get(10)?;
    Ok(Held {
        found_as: Epoch(row.try_get(0)?),
        chain: ChainRow {
            hint: hint(row)?,
            state: ChainState::from_number(row.try_get(8)?),
            nominal: time(9)?,
            // Until it is known which sessions go on.
            holder: if session == 0 { Holder::None } else { Holder::Alive },
            session,
            deaths: 0,
            sent: row.try_get(11)?,
            once: row.try_get(12)?,
            started_tick: TickNo(row.try_get(17)?),
            last_start: time(18)?,
            last_finish: time(19)?,
            batch_open: row.try_get(21)?,
            schedule: row.try_get(24)?,
            manual: Manual::from_number(row.try_get(30)?),
            beside: row.try_get(31)?,
        },
        fence: Fence(row.try_get(13)?),
        watch_at: time(14)?,
        looks: small(row.try_get(15)?),
        expected: time(16)?,
        batch_total: row.try_get(20)?,
        batch_failed: row.try_get(22)?,
        owner: row.try_get(23)?,
        payload: row.try_get(25)?,
        carry: row.try_get(26)?,
        learned: row.try_get(27)?,
        depth: small(row.try_get(28)?),
        moved: false,
        renamed: false,
        carries: false,
        learns: false,
    })
}

/// The columns epoch, kind, key, queue, tick, attempt, due, parent, which come first, and the column priority.
pub(super) fn hint(row: &Row) -> Result<Hint, Error> {
    Ok(Hint {
        epoch: Epoch(row.try_get(0)?),
        kind: row.try_get(1)?,
        key: row.try_get(2)?,
        queue: row.try_get(3)?,
        tick: TickNo(row.try_get(4)?),
        attempt: small(row.try_get(5)?),
        due: Time::from_millis(row.try_get(6)?),
        parent: Epoch(row.try_get(7)?),
        priority: row.try_get::<_, Option<i64>>("priority")?.and_then(|priority| u8::try_from(priority).ok()),
    })
}

/// A number that was a `u32` when it was written.
pub(super) fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Sends everything that there is to write and the commit, without waiting in between. What fails
/// makes all that follows fail, and the commit a rollback.
async fn write(
    session: &Session,
    page: &Page,
    transaction: Committing,
    committing: &mut Option<Committing>,
) -> Result<(), Failed> {
    let mut parts = Vec::new();
    for Part { sql, columns } in write::parts(page) {
        parts.push((session.statement(sql).await?, columns));
    }
    let mut sent: Vec<BoxFuture<'_, Result<(), Error>>> =
        parts.iter().map(|(statement, columns)| execute(session, statement, columns).boxed()).collect();
    sent.push(session.client.batch_execute("COMMIT").boxed());
    *committing = Some(transaction);
    let (sent, waited) = join(join_all(sent), session.waits_for_a_standby()).await;
    // The first failure is the cause of the others.
    match (sent.into_iter().find_map(Result::err), waited) {
        (None, Ok(true)) => Ok(()),
        (None, Ok(false)) => Err(Failed::Lost("the server has stopped waiting for its standby".into())),
        (Some(error), _) | (None, Err(error)) => Err(error.into()),
    }
}

async fn execute(session: &Session, statement: &Statement, columns: &[Column<'_>]) -> Result<(), Error> {
    let columns: Vec<&(dyn ToSql + Sync)> = columns.iter().map(|column| &**column as _).collect();
    session.client.execute(statement, &columns).await.map(drop)
}
