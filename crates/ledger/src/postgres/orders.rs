//! Orders for chains, in SQL: statements that concern many chains at once, each a transaction by itself.

use async_trait::async_trait;
use std::time::Duration;
use tokio_postgres::types::ToSql;

use roundelay_model::clock::Time;
use roundelay_model::ids::Epoch;
use tokio::time::timeout;
use tokio_postgres::{Error, Transaction};

use super::PostgresLedger;
use super::connect::{Address, Session, Use, passes, words};
use super::group::hint;
use super::reader::{Reader, Result};
use super::reports::{late, waits_for_twin};
use crate::chain::{ChainState, Hint};
use crate::error::LedgerError;
use crate::look::{Move, sql_like};
use crate::orders::{ChainFilter, ChainOrder, ChainOrders};

/// How long an order may take; a million chains take some ten seconds.
const ORDER: Duration = Duration::from_secs(600);
/// How often an order is tried that conflicts with other transactions.
const TRIES: u32 = 5;

/// The server's time in milliseconds, and the chains that a [`ChainFilter`] means; its parameters are 1 to 7.
/// Members of a batch go with its chain.
macro_rules! sql {
    ($head:literal, $state:literal $(, $tail:literal)?) => {
        sql!($head, ($state) $(, $tail)?)
    };
    ($head:literal, ($($state:tt)*) $(, $tail:literal)?) => {
        concat!(
            "WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms) ",
            $head,
            " ",
            $($state)*,
            " AND ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR key = $2) ",
            "AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR key LIKE $4) ",
            "AND ($5::text IS NULL OR queue = $5) AND ($6::int8 IS NULL OR ",
            late!("$6", "(SELECT ms FROM now)"),
            ") ",
            "AND ($7::int8 IS NULL OR state = $7) AND parent = 0 ",
            $($tail)?
        )
    };
}

/// Those in this state, but the engine's own only if their kind is named.
macro_rules! not_own {
    ($state:literal) => {
        concat!($state, " AND ($1::text IS NOT NULL OR kind NOT LIKE 'roundelay.%')")
    };
}

/// What an order does, in this order, in one transaction. First it locks the chains in the order of their epochs, as
/// every transaction does; the statements that follow change just these.
fn statements(order: ChainOrder) -> Vec<&'static str> {
    macro_rules! lock {
        ($state:tt) => {
            sql!("SELECT epoch FROM chains WHERE", $state, "ORDER BY epoch FOR UPDATE")
        };
    }
    // Where a chain stands in its own time is not known any more, so it is due now. Its holder cannot finish any more,
    // and the record of that attempt ends here.
    macro_rules! recover {
        ($state:literal) => {
            vec![
                sql!(
                    "UPDATE attempts a SET finished = now.ms, verdict = 'lost' FROM chains, now
                     WHERE a.fence = chains.fence AND a.finished IS NULL AND holder <> 0 AND",
                    $state
                ),
                sql!(
                    "UPDATE chains
                     SET epoch = nextval('epochs'), attempt = 1, sent = false, looks = 0, holder = 0,
                         batch_total = 0, batch_open = 0, batch_failed = 0, nominal = now.ms, due = now.ms, expected = now.ms, watch_at = now.ms,
                         state = CASE state WHEN 1 THEN 1 ELSE 0 END
                     FROM now WHERE",
                    $state
                ),
            ]
        };
    }
    match order {
        ChainOrder::Pause => {
            vec![lock!((not_own!("state = 0"))), sql!("UPDATE chains SET state = 1 WHERE", (not_own!("state = 0")))]
        }
        ChainOrder::Resume => vec![
            lock!("state = 1"),
            sql!(
                "UPDATE chains SET state = 0, sent = (batch_open > 0 AND sent), looks = 0,
                                   expected = greatest(due, now.ms),
                                   watch_at = CASE WHEN batch_open > 0 THEN watch_at ELSE now.ms END
                 FROM now WHERE",
                "state = 1"
            ),
        ],
        ChainOrder::Retire => vec![
            lock!((not_own!("state <> 2"))),
            // The members of their batches are not wanted any more. A run of one cannot be finished. Only these are
            // looked at: chains that have ended before are very many in the end, and wait for nothing.
            sql!(
                "DELETE FROM chains WHERE parent <> 0 AND parent IN (SELECT epoch FROM chains WHERE",
                "state <> 2 AND batch_total > 0",
                ")"
            ),
            sql!("UPDATE chains SET state = 2, batch_open = 0, batch_total = 0 WHERE", (not_own!("state <> 2"))),
        ],
        ChainOrder::Recover => [vec![lock!("state = 3")], recover!("state = 3")].concat(),
        ChainOrder::RecoverAll => {
            let over = vec![
                lock!("(state <> 2 OR (once AND started_tick < tick))"),
                // The ticks that follow in the epoch of a manual run that is over may have run since the copy: the next
                // one begins an epoch of its own, as after one that was left in the middle.
                sql!("UPDATE chains SET started_tick = tick WHERE", "state = 2 AND once AND started_tick < tick"),
            ];
            [over, recover!("state <> 2")].concat()
        }
    }
}

/// Carries out an order, on a connection of its own: it may take longer than a verb.
async fn order_chains(address: &Address, which: &ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
    let mut session = address.connect(Use::Long(ORDER)).await?;
    for attempt in 1.. {
        match timeout(ORDER, attempted(&mut session, which, order)).await {
            Ok(Ok(changed)) => return Ok(changed),
            Ok(Err(error)) if passes(&error) && attempt < TRIES => {}
            Ok(Err(error)) => return Err(LedgerError::Statement(words(&error))),
            Err(_) => break,
        }
    }
    Err(LedgerError::Statement("it has not answered in time, and whether it was written is not known".into()))
}

async fn attempted(session: &mut Session, which: &ChainFilter, order: ChainOrder) -> Result<u64, Error> {
    let transaction = session.client.transaction().await?;
    let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
    let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
    let state = state.map(|state| state as i64);
    let mut changed = 0;
    for sql in statements(order) {
        changed = transaction.execute(sql, &[kind, key, owner, &like, queue, &late_before, &state]).await?;
    }
    // The members of the batch of a chain that begins anew are not wanted any more. A run of one cannot be finished.
    let members = "DELETE FROM chains m WHERE m.parent <> 0 AND NOT EXISTS
                       (SELECT FROM chains p WHERE p.epoch = m.parent AND p.state <> 2)";
    if matches!(order, ChainOrder::Recover | ChainOrder::RecoverAll) {
        transaction.execute(members, &[]).await?;
    }
    if let Some(owner) = which.whole_owner() {
        steer_owner(&transaction, owner, order).await?;
    }
    transaction.commit().await?;
    Ok(changed)
}

/// An order for an owner also holds for one-off jobs that still wait in queues.
async fn steer_owner(transaction: &Transaction<'_>, owner: &str, order: ChainOrder) -> Result<(), Error> {
    let state = match order {
        ChainOrder::Pause => ChainState::Paused,
        ChainOrder::Retire => ChainState::Retired,
        ChainOrder::Resume => {
            transaction.execute("DELETE FROM owners WHERE owner = $1 AND state = 1", &[&owner]).await?;
            return Ok(());
        }
        ChainOrder::Recover | ChainOrder::RecoverAll => return Ok(()),
    };
    let upsert = "INSERT INTO owners (owner, state, at)
                  VALUES ($1, $2, ledger_millis())
                  ON CONFLICT (owner) DO UPDATE SET state = excluded.state, at = excluded.at WHERE owners.state <> 2";
    transaction.execute(upsert, &[&owner, &(state as i64)]).await?;
    Ok(())
}

impl Reader {
    pub(super) async fn advance(
        &self,
        kind: String,
        key: String,
        slack: Duration,
    ) -> Result<Option<Hint>, LedgerError> {
        // What is due already has its message, or catch-up sends it.
        let advance = "WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms)
                       UPDATE chains SET due = ms, expected = ms, watch_at = ms + $3, sent = false, looks = 0
                       FROM now
                       WHERE kind = $1 AND key = $2 AND NOT once AND parent = 0
                         AND state = 0 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0 AND due > ms
                       RETURNING epoch, kind, key, queue, tick, attempt, due, parent, priority";
        let slack = i64::try_from(slack.as_millis()).unwrap_or(i64::MAX);
        let rows = self.query(advance, &[&kind, &key, &slack]).await?;
        let told = |error: Error| LedgerError::Statement(words(&error));
        rows.first().map(hint).transpose().map_err(told)
    }

    pub(super) async fn matching(&self, which: ChainFilter, order: ChainOrder, now: Time) -> Result<u64> {
        macro_rules! count {
            ($($state:tt)*) => {
                concat!(
                    "SELECT count(*) FROM chains WHERE ",
                    $($state)*,
                    " AND ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR key = $2)
                      AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR key LIKE $4)
                      AND ($5::text IS NULL OR queue = $5)
                      AND ($6::int8 IS NULL OR ",
                    late!("$6", "$8"),
                    ")
                      AND ($7::int8 IS NULL OR state = $7) AND parent = 0 AND $8 IS NOT NULL"
                )
            };
        }
        let sql = match order {
            ChainOrder::Pause => count!(not_own!("state = 0")),
            ChainOrder::Resume => count!("state = 1"),
            ChainOrder::Retire => count!(not_own!("state <> 2")),
            ChainOrder::RecoverAll => count!("state <> 2"),
            ChainOrder::Recover => count!("state = 3"),
        };
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
        let (state, now) = (state.map(|state| state as i64), now.as_millis());
        let parameters: [&(dyn ToSql + Sync); 8] = [&kind, &key, &owner, &like, &queue, &late_before, &state, &now];
        let counts = self.rows(sql, &parameters, |row| row.try_get(0)).await?;
        Ok(counts.first().and_then(|count: &i64| u64::try_from(*count).ok()).unwrap_or_default())
    }

    pub(super) async fn set_schedule(&self, kind: String, key: String, schedule: Option<String>) -> Result<bool> {
        let sql = "UPDATE chains SET schedule = $3
                   WHERE kind = $1 AND key = $2 AND NOT once AND parent = 0 AND state <> 2";
        Ok(self.execute(sql, &[&kind, &key, &schedule]).await? == 1)
    }

    /// Locks the chains in the order of their epochs first, as every transaction does.
    pub(super) async fn reschedule(&self, moves: Vec<Move>) -> Result<Vec<Option<Hint>>> {
        let sql = "WITH moves AS MATERIALIZED (
                       SELECT * FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[])
                           AS m (epoch, tick, was, nominal, due, watch_at)),
                   held AS MATERIALIZED (
                       SELECT epoch FROM chains WHERE epoch IN (SELECT epoch FROM moves) ORDER BY epoch FOR UPDATE),
                   locked AS MATERIALIZED (SELECT count(*) FROM held)
                   UPDATE chains c
                   SET nominal = m.nominal, due = m.due, expected = m.due, watch_at = m.watch_at, sent = false,
                       looks = 0
                   FROM moves m, locked
                   WHERE c.epoch = m.epoch AND c.tick = m.tick AND c.due = m.was AND c.attempt = 1
                     AND c.started_tick < c.tick AND c.state IN (0, 1) AND NOT c.once AND c.parent = 0
                     AND c.holder NOT IN (SELECT session FROM sessions) AND c.batch_open = 0
                   RETURNING c.epoch, c.kind, c.key, c.queue, c.tick, c.attempt, c.due, c.parent, c.priority";
        let column = |of: fn(&Move) -> i64| moves.iter().map(of).collect::<Vec<i64>>();
        let (epochs, ticks) = (column(|m| m.epoch.get()), column(|m| m.tick.get()));
        let (was, nominal) = (column(|m| m.from.as_millis()), column(|m| m.nominal.as_millis()));
        let (due, watch_at) = (column(|m| m.due.as_millis()), column(|m| m.watch_at.as_millis()));
        let parameters: [&(dyn ToSql + Sync); 6] = [&epochs, &ticks, &was, &nominal, &due, &watch_at];
        let rows = self.query(sql, &parameters).await?;
        let told = |error: Error| LedgerError::Statement(words(&error));
        let moved: Vec<Hint> = rows.iter().map(hint).collect::<Result<_, _>>().map_err(told)?;
        let mut moved: std::collections::HashMap<Epoch, Hint> =
            moved.into_iter().map(|hint| (hint.epoch, hint)).collect();
        Ok(moves.iter().map(|m| moved.remove(&m.epoch)).collect())
    }
}

#[async_trait]
impl ChainOrders for PostgresLedger {
    async fn order_chains(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
        let _permit = self.own().await?;
        order_chains(&self.address, &which, order).await
    }

    async fn matching(&self, which: ChainFilter, order: ChainOrder) -> Result<u64, LedgerError> {
        self.reader.matching(which, order, self.clock.now()).await
    }

    async fn advance(&self, kind: String, key: String, slack: Duration) -> Result<Option<Hint>, LedgerError> {
        self.reader.advance(kind, key, slack).await
    }

    async fn set_schedule(&self, kind: String, key: String, schedule: Option<String>) -> Result<bool, LedgerError> {
        self.reader.set_schedule(kind, key, schedule).await
    }

    async fn reschedule(&self, moves: Vec<Move>) -> Result<Vec<Option<Hint>>, LedgerError> {
        self.reader.reschedule(moves).await
    }

    async fn advance_all(&self, which: ChainFilter, limit: u32, slack: Duration) -> Result<Vec<Hint>> {
        // Locks the chains in the order of their epochs first, as every transaction does.
        let sql = "WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms),
                   chosen AS MATERIALIZED (
                       SELECT epoch FROM chains, now
                       WHERE ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR key = $2)
                         AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR key LIKE $4)
                         AND ($5::text IS NULL OR queue = $5)
                         AND ($6::int8 IS NULL OR due < $6) AND ($9::int8 IS NULL OR state = $9)
                         AND NOT once AND parent = 0 AND state = 0 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0 AND due > ms
                       LIMIT $8),
                   held AS MATERIALIZED (
                       SELECT epoch FROM chains WHERE epoch IN (SELECT epoch FROM chosen) ORDER BY epoch FOR UPDATE)
                   UPDATE chains c SET due = ms, expected = ms, watch_at = ms + $7, sent = false, looks = 0
                   FROM held, now
                   WHERE c.epoch = held.epoch AND c.state = 0 AND c.holder NOT IN (SELECT session FROM sessions) AND c.batch_open = 0 AND c.due > ms
                   RETURNING c.epoch, c.kind, c.key, c.queue, c.tick, c.attempt, c.due, c.parent, c.priority";
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
        let (slack, limit) = (i64::try_from(slack.as_millis()).unwrap_or(i64::MAX), i64::from(limit));
        let state = state.map(|state| state as i64);
        let parameters: [&(dyn ToSql + Sync); 9] =
            [&kind, &key, &owner, &like, &queue, &late_before, &slack, &limit, &state];
        let rows = self.reader.query(sql, &parameters).await?;
        let told = |error: Error| LedgerError::Statement(words(&error));
        rows.iter().map(hint).collect::<Result<_, _>>().map_err(told)
    }
}
