//! What operators ask about many chains, and how chains are moved in time, in SQL.

use roundelay_model::clock::Time;
use roundelay_model::failure::Failure;
use roundelay_model::ids::{Epoch, Fence, TickNo};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::connect::words;
use super::failed::{failure, failure_columns};
use super::group::hint;
use super::reader::Reader;
use super::views::{attempt, holder, time, waits_for_twin};
use crate::chain::{ChainState, Hint};
use crate::chain_orders::{ChainFilter, ChainOrder};
use crate::error::LedgerError;
use crate::look::{Cursor, ListFilter, Listed, Move, OwnerCensus, sql_like};
use crate::view::AttemptRecord;

type Result<T> = std::result::Result<T, LedgerError>;

/// The columns that [`listed`] reads, of `chains`.
macro_rules! listed_columns {
    () => {
        "epoch, kind, key, queue, tick, attempt, due, parent, state, fence, nominal,
         CASE WHEN holder = 0 THEN 0 WHEN holder IN (SELECT session FROM sessions) THEN 1 ELSE 2 END::int8, owner, schedule,
         last_start, last_finish, started_tick, batch_open, batch_total,
         -- Of the run that ended it, and of none before.
         CASE WHEN state = 2 THEN
             (SELECT coalesce(f.code || ': ', '') || f.reason FROM failures f
              WHERE f.kind = chains.kind AND f.key = chains.key AND f.item = '' AND f.permanent
                AND f.last_at = chains.last_finish)
         END, priority"
    };
}
pub(super) use listed_columns;

pub(super) fn listed(row: &Row) -> std::result::Result<Listed, Error> {
    Ok(Listed {
        hint: hint(row)?,
        state: ChainState::from_number(row.try_get(8)?),
        fence: Fence(row.try_get(9)?),
        nominal: time(row, 10)?,
        holder: holder(row, 11)?,
        owner: row.try_get(12)?,
        schedule: row.try_get(13)?,
        last_start: time(row, 14)?,
        last_finish: time(row, 15)?,
        started_tick: TickNo(row.try_get(16)?),
        batch: (row.try_get(17)?, row.try_get(18)?),
        unavailable: row.try_get(19)?,
    })
}

impl Reader {
    pub(super) async fn matching(&self, which: ChainFilter, order: ChainOrder, now: Time) -> Result<u64> {
        macro_rules! count {
            ($state:literal) => {
                concat!(
                    "SELECT count(*) FROM chains WHERE ",
                    $state,
                    " AND ($1::text IS NULL OR kind = $1) AND ($2::text IS NULL OR key = $2)
                      AND ($3::text IS NULL OR owner = $3) AND ($4::text IS NULL OR key LIKE $4)
                      AND ($5::text IS NULL OR queue = $5)
                      AND ($6::int8 IS NULL OR (state = 0 AND due < $6 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0
                                                AND NOT ",
                    waits_for_twin!("$8"),
                    "))
                      AND ($7::int8 IS NULL OR state = $7) AND parent = 0 AND $8 IS NOT NULL"
                )
            };
        }
        let sql = match order {
            ChainOrder::Pause => count!("state = 0"),
            ChainOrder::Resume => count!("state = 1"),
            ChainOrder::Retire | ChainOrder::RecoverAll => count!("state <> 2"),
            ChainOrder::Recover => count!("state = 3"),
        };
        let ChainFilter { kind, key, owner, like, queue, late_before, state } = which;
        let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
        let (state, now) = (state.map(|state| state as i64), now.as_millis());
        let parameters: [&(dyn ToSql + Sync); 8] = [&kind, &key, &owner, &like, &queue, &late_before, &state, &now];
        let counts = self.rows(sql, &parameters, |row| row.try_get(0)).await?;
        Ok(counts.first().and_then(|count: &i64| u64::try_from(*count).ok()).unwrap_or_default())
    }

    pub(super) async fn list(
        &self,
        filter: ListFilter,
        after: Option<Cursor>,
        now: Time,
        limit: u32,
    ) -> Result<Vec<Listed>> {
        let sql = concat!(
            "SELECT ",
            listed_columns!(),
            " FROM chains
                   WHERE (kind, key) > ($4, $5) AND kind <= $6 AND NOT once AND parent = 0
                     AND ($1::text IS NULL OR key = $1) AND ($2::text IS NULL OR owner = $2)
                     AND ($3::text IS NULL OR key LIKE $3)
                     AND ($7::int8 IS NULL OR state = $7) AND (NOT $8 OR holder IN (SELECT session FROM sessions))
                     AND ($11::text IS NULL OR queue = $11)
                     AND ($12::int8 IS NULL OR (state = 0 AND due < $12 AND holder NOT IN (SELECT session FROM sessions) AND batch_open = 0
                                                AND NOT ",
            waits_for_twin!("$9"),
            "))
                   ORDER BY kind, key LIMIT $10"
        );
        let ((after_kind, after_key), last) = filter.range(after);
        let (state, running) = filter.bounds();
        let ChainFilter { key, owner, like, queue, late_before, .. } = &filter.which;
        let (like, late_before) = (like.as_deref().map(sql_like), late_before.map(Time::as_millis));
        let (now, limit) = (now.as_millis(), i64::from(limit));
        let parameters: [&(dyn ToSql + Sync); 12] =
            [key, owner, &like, &after_kind, &after_key, &last, &state, &running, &now, &limit, queue, &late_before];
        self.rows(sql, &parameters, listed).await
    }

    pub(super) async fn furthest(&self, queue: String, now: Time, limit: u32) -> Result<Vec<Listed>> {
        let sql = concat!(
            "SELECT ",
            listed_columns!(),
            " FROM chains
              WHERE NOT once AND parent = 0 AND epoch IN (
                  SELECT epoch FROM (SELECT epoch FROM chains WHERE queue = $1 AND state = 0
                                     ORDER BY watch_at DESC LIMIT $2::int8) last
                  UNION ALL
                  SELECT epoch FROM (SELECT epoch, due FROM chains WHERE queue = $1 AND state = 0 AND watch_at < $3
                                     ORDER BY watch_at LIMIT $2::int8) first WHERE due > $3)
              ORDER BY due DESC"
        );
        let (limit, now) = (i64::from(limit), now.as_millis());
        self.rows(sql, &[&queue, &limit, &now], listed).await
    }

    pub(super) async fn owners(&self, after: String, limit: u32) -> Result<Vec<OwnerCensus>> {
        // From one name to the next, however many chains each has; and then the chains of each by themselves, since in
        // one join with all of them the table would be read from end to end.
        let sql = r#"WITH RECURSIVE of_chains (owner, number) AS (
                         SELECT min(owner), 1::int8 FROM chains WHERE owner > $1
                         UNION ALL
                         SELECT (SELECT min(c.owner) FROM chains c WHERE c.owner > of_chains.owner), number + 1
                         FROM of_chains WHERE owner IS NOT NULL AND number < $2::int8)
                     SELECT o.owner, coalesce((SELECT state FROM owners w WHERE w.owner = o.owner), 0),
                            n.active, n.paused, n.retired, n.quarantined
                     FROM (SELECT owner FROM of_chains WHERE owner IS NOT NULL
                           UNION SELECT owner FROM owners WHERE owner > $1 ORDER BY owner LIMIT $2::int8) o
                     CROSS JOIN LATERAL (
                         SELECT count(*) FILTER (WHERE state = 0) AS active, count(*) FILTER (WHERE state = 1) AS paused,
                                count(*) FILTER (WHERE state = 2) AS retired,
                                count(*) FILTER (WHERE state = 3) AS quarantined
                         FROM chains WHERE owner = o.owner AND NOT once AND parent = 0) n
                     ORDER BY o.owner"#;
        let census = |row: &Row| {
            Ok(OwnerCensus {
                owner: row.try_get(0)?,
                state: ChainState::from_number(row.try_get(1)?),
                active: row.try_get(2)?,
                paused: row.try_get(3)?,
                retired: row.try_get(4)?,
                quarantined: row.try_get(5)?,
            })
        };
        self.rows(sql, &[&after, &i64::from(limit)], census).await
    }

    pub(super) async fn history(&self, fence: Fence, limit: u32) -> Result<Vec<AttemptRecord>> {
        let sql = "WITH RECURSIVE back (number, more) AS (
                       SELECT $1::int8, $2::int8
                       UNION ALL
                       SELECT previous, more - 1 FROM back JOIN attempts ON fence = number WHERE more > 1)
                   SELECT fence, epoch, tick, attempt, worker, due, started, finished, verdict, reason, overlapped,
                          misfired, progress
                   FROM back JOIN attempts ON fence = number ORDER BY fence DESC";
        self.rows(sql, &[&fence.get(), &i64::from(limit)], attempt).await
    }

    pub(super) async fn failures_of(&self, kind: String, key: String) -> Result<Vec<Failure>> {
        let sql = concat!(
            "SELECT ",
            failure_columns!(),
            " FROM failures f WHERE f.kind = $1 AND f.key = $2 ORDER BY f.last_at DESC"
        );
        self.rows(sql, &[&kind, &key], failure).await
    }

    pub(super) async fn set_schedule(&self, kind: String, key: String, schedule: Option<String>) -> Result<bool> {
        let sql = "UPDATE chains SET schedule = $3
                   WHERE kind = $1 AND key = $2 AND NOT once AND parent = 0 AND state <> 2";
        Ok(self.execute(sql, &[&kind, &key, &schedule]).await? == 1)
    }

    /// Like everybody it locks the chains in the order of their epochs first.
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
        let moved: Vec<Hint> = rows.iter().map(hint).collect::<std::result::Result<_, _>>().map_err(told)?;
        let mut moved: std::collections::HashMap<Epoch, Hint> =
            moved.into_iter().map(|hint| (hint.epoch, hint)).collect();
        Ok(moves.iter().map(|m| moved.remove(&m.epoch)).collect())
    }
}
