//! What operators want, in SQL: statements that concern many chains at once,
//! each a transaction by itself.

use std::time::Duration;

use roundelay_model::clock::Time;
use roundelay_model::ids::Fence;
use roundelay_model::progress::Progress;
use tokio::time::timeout;
use tokio_postgres::{Error, Transaction};

use super::connect::{Address, Session, Use, passes, words};
use super::group::hint;
use super::reader::Reader;
use super::views::waits_for_twin;
use crate::chain::{ChainState, Hint};
use crate::chain_orders::{ChainFilter, ChainOrder};
use crate::error::LedgerError;
use crate::look::sql_like;

/// How long an order may take; a million chains take some ten seconds.
const ORDER: Duration = Duration::from_secs(600);
/// How often an order is tried again that others were in the way of.
const TRIES: u32 = 5;

/// The server's time in milliseconds, and the chains that a [`ChainFilter`] means; its parameters are 1 to 7.
/// Members of a batch go with its chain.
macro_rules! sql {
    ($head:literal, $state:literal $(, $tail:literal)?) => {
        concat!(
            "WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms) ",
            $head,
            " ",
            $state,
            " AND ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR key = $2) ",
            "AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR key LIKE $4) ",
            "AND ($5::text IS NULL OR queue = $5) AND ($6::int8 IS NULL OR (state = 0 AND chains.due < $6 ",
            "AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0 AND NOT ",
            waits_for_twin!("(SELECT ms FROM now)"),
            ")) ",
            "AND ($7::int8 IS NULL OR state = $7) AND parent = 0 ",
            $($tail)?
        )
    };
}

/// What an order does, in this order, in one transaction. First it locks the chains in the order of
/// their epochs, as everybody does; what follows then changes just these.
fn statements(order: ChainOrder) -> Vec<&'static str> {
    macro_rules! lock {
        ($state:literal) => {
            sql!("SELECT epoch FROM chains WHERE", $state, "ORDER BY epoch FOR UPDATE")
        };
    }
    // Where a chain stands in its own time is not known any more, so it is due now. Who held it can
    // finish no more, and the record of that attempt ends here.
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
        ChainOrder::Pause => vec![lock!("state = 0"), sql!("UPDATE chains SET state = 1 WHERE", "state = 0")],
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
            lock!("state <> 2"),
            // What they wait for is wanted no more. Who runs it cannot finish it. Only these are looked at: chains that
            // have ended before are very many in the end, and wait for nothing.
            sql!(
                "DELETE FROM chains WHERE parent <> 0 AND parent IN (SELECT epoch FROM chains WHERE",
                "state <> 2 AND batch_total > 0",
                ")"
            ),
            sql!("UPDATE chains SET state = 2, batch_open = 0, batch_total = 0 WHERE", "state <> 2"),
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
pub(super) async fn order_chains(
    address: &Address,
    which: &ChainFilter,
    order: ChainOrder,
) -> Result<u64, LedgerError> {
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
    // What a chain has waited for that begins anew is wanted no more. Who runs it cannot finish it.
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

/// What holds for an owner holds for one-off jobs that still wait in queues, too.
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
    pub(super) async fn owner(&self, owner: String) -> Result<ChainState, LedgerError> {
        let rows = self.query("SELECT state FROM owners WHERE owner = $1", &[&owner]).await?;
        Ok(rows.first().map_or(ChainState::Active, |row| ChainState::from_number(row.get(0))))
    }

    pub(super) async fn reserve(
        &self,
        kind: String,
        key: String,
        id: String,
        window: Duration,
    ) -> Result<String, LedgerError> {
        // Who finds it taken changes nothing, and is told by whom.
        let take = "WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms)
                    INSERT INTO uniques AS u (kind, key, id, until) SELECT $1, $2, $3, ms + $4 FROM now
                    ON CONFLICT (kind, key) DO UPDATE
                    SET id = CASE WHEN u.until <= (SELECT ms FROM now) THEN excluded.id ELSE u.id END,
                        until = CASE WHEN u.until <= (SELECT ms FROM now) THEN excluded.until ELSE u.until END
                    RETURNING id";
        let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
        let rows = self.query(take, &[&kind, &key, &id, &window]).await?;
        Ok(rows.first().map_or(id, |row| row.get(0)))
    }

    pub(super) async fn release(&self, kind: String, key: String, id: String) -> Result<(), LedgerError> {
        let release = "DELETE FROM uniques WHERE kind = $1 AND key = $2 AND id = $3";
        self.execute(release, &[&kind, &key, &id]).await.map(drop)
    }

    /// What somebody else has locked is about to end, and says itself how far it has come. So this waits
    /// for nobody, and nobody can wait for this in a circle.
    pub(super) async fn note_progress(&self, runs: Vec<(Fence, Progress)>) -> Result<(), LedgerError> {
        let (fences, texts): (Vec<i64>, Vec<String>) =
            runs.into_iter().map(|(fence, progress)| (fence.get(), progress.text())).unzip();
        let note = "WITH open AS MATERIALIZED (
                        SELECT fence FROM attempts WHERE fence = ANY ($1::int8[]) AND finished IS NULL
                        FOR UPDATE SKIP LOCKED)
                    UPDATE attempts a SET progress = u.progress
                    FROM open, unnest($1::int8[], $2::text[]) AS u (fence, progress)
                    WHERE a.fence = open.fence AND u.fence = open.fence";
        self.execute(note, &[&fences, &texts]).await.map(drop)
    }

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

    pub(super) async fn set_topology(&self, current: Option<String>, next: String) -> Result<bool, LedgerError> {
        let changed = match current {
            None => {
                let first = "INSERT INTO meta (name, value) VALUES ('topology', $1) ON CONFLICT (name) DO NOTHING";
                self.execute(first, &[&next]).await?
            }
            Some(current) => {
                let replace = "UPDATE meta SET value = $2 WHERE name = 'topology' AND value = $1";
                self.execute(replace, &[&current, &next]).await?
            }
        };
        Ok(changed == 1)
    }
}
