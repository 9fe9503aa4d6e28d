//! The backlog of fair queues, in SQL.

use async_trait::async_trait;
use tokio_postgres::Row;

use super::PostgresLedger;
use super::group::small;
use crate::backlog::{Backlog, LeftMessage, Ownership, Seat, TakenMessage, TenantBacklog};
use crate::error::LedgerError;

/// The tenants behind `$2` (all for NULL) in the rows that `$which` picks, one lookup for each.
macro_rules! tenants {
    ($which:literal) => {
        concat!(
            "WITH RECURSIVE tenants (tenant, nth) AS (
                 (SELECT tenant, 1::int8 FROM backlog WHERE queue = $1 AND ($2::text IS NULL OR tenant > $2)",
            $which,
            " ORDER BY tenant LIMIT 1)
                 UNION ALL
                 SELECT next.tenant, nth + 1 FROM tenants CROSS JOIN LATERAL
                     (SELECT b.tenant FROM backlog b WHERE b.queue = $1 AND b.tenant > tenants.tenant",
            $which,
            " ORDER BY b.tenant LIMIT 1) next WHERE nth < $3::int8)"
        )
    };
}

#[async_trait]
impl Backlog for PostgresLedger {
    async fn leave_messages(&self, messages: Vec<LeftMessage>) -> Result<(), LedgerError> {
        let leave = "INSERT INTO backlog AS b (queue, tenant, name, body, at)
                     SELECT u.*, ledger_millis() FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) AS u
                     ON CONFLICT (name) DO UPDATE
                     SET number = DEFAULT, queue = excluded.queue, tenant = excluded.tenant, body = excluded.body,
                         at = excluded.at, taken = 0, takes = 0
                     WHERE b.body <> excluded.body";
        // The number changes, since a session that has the former message in hand names it by its number.
        // Workers that leave messages of the same names lock them in the same order.
        let mut messages = messages;
        messages.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let column = |of: fn(&LeftMessage) -> &str| messages.iter().map(of).collect::<Vec<_>>();
        let [queues, tenants, names] =
            [column(|message| &message.queue), column(|message| &message.tenant), column(|message| &message.name)];
        let bodies: Vec<&[u8]> = messages.iter().map(|message| message.body.as_slice()).collect();
        self.reader.execute(leave, &[&queues, &tenants, &names, &bodies]).await.map(drop)
    }

    async fn waiting_tenants(
        &self,
        queue: String,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<String>, LedgerError> {
        let sql = concat!(tenants!(" AND taken = 0"), " SELECT tenant FROM tenants");
        self.reader.rows(sql, &[&queue, &after, &i64::from(limit)], |row| row.try_get(0)).await
    }

    async fn take_messages(
        &self,
        queue: String,
        session: i64,
        shares: Vec<(String, u32)>,
    ) -> Result<Vec<TakenMessage>, LedgerError> {
        let take = "WITH chosen AS MATERIALIZED (
                        SELECT b.number FROM unnest($3::text[], $4::int8[]) AS share (tenant, most)
                        CROSS JOIN LATERAL
                            (SELECT number FROM backlog WHERE queue = $1 AND tenant = share.tenant AND taken = 0
                             ORDER BY number LIMIT share.most FOR UPDATE SKIP LOCKED) b),
                    took AS (
                        UPDATE backlog SET taken = $2, takes = takes + 1
                        WHERE number IN (SELECT number FROM chosen) RETURNING number, tenant, body, takes)
                    SELECT number, tenant, body, takes FROM took ORDER BY number";
        let (tenants, most): (Vec<String>, Vec<i64>) =
            shares.into_iter().map(|(tenant, most)| (tenant, i64::from(most))).unzip();
        let read = |row: &Row| {
            Ok(TakenMessage {
                number: row.try_get(0)?,
                tenant: row.try_get(1)?,
                body: row.try_get(2)?,
                takes: small(row.try_get(3)?),
            })
        };
        self.reader.rows(take, &[&queue, &session, &tenants, &most], read).await
    }

    async fn forget_messages(&self, session: i64, numbers: Vec<i64>) -> Result<(), LedgerError> {
        let forget = "DELETE FROM backlog WHERE number = ANY ($2::int8[]) AND taken = $1";
        self.reader.execute(forget, &[&session, &numbers]).await.map(drop)
    }

    async fn return_messages(&self, session: i64, queue: String, in_hand: Vec<i64>) -> Result<u64, LedgerError> {
        let wait = "UPDATE backlog SET taken = 0
                    WHERE taken = $1 AND taken <> 0 AND queue = $2 AND number <> ALL ($3::int8[])";
        self.reader.execute(wait, &[&session, &queue, &in_hand]).await?;
        let seats = "DELETE FROM seats WHERE NOT EXISTS (
                         SELECT FROM unnest(held) AS seat
                         WHERE split_part(seat, '/', 1)::int8 IN (SELECT session FROM sessions))";
        self.reader.execute(seats, &[]).await?;
        let over = "UPDATE backlog SET taken = 0 WHERE taken <> 0 AND taken NOT IN (SELECT session FROM sessions)";
        self.reader.execute(over, &[]).await
    }

    async fn clear_backlog(&self) -> Result<(), LedgerError> {
        self.reader.execute("DELETE FROM backlog", &[]).await.map(drop)
    }

    async fn backlog(
        &self,
        queue: String,
        after: Option<String>,
        limit: u32,
        count: u32,
    ) -> Result<Vec<TenantBacklog>, LedgerError> {
        let sql = concat!(
            tenants!(""),
            " SELECT tenant, (SELECT count(*) FROM (SELECT FROM backlog b WHERE b.queue = $1 AND b.tenant = t.tenant
                                                    LIMIT $4::int8) counted)
              FROM tenants t"
        );
        let read = |row: &Row| {
            Ok(TenantBacklog { tenant: row.try_get(0)?, messages: row.try_get::<_, i64>(1)?.unsigned_abs() })
        };
        self.reader.rows(sql, &[&queue, &after, &i64::from(limit), &i64::from(count)], read).await
    }

    async fn take_seat(&self, seat: Seat, most: u32) -> Result<bool, LedgerError> {
        // Of two that come at once, the second waits for the row, and counts what the first has taken.
        let take = "INSERT INTO seats AS s (queue, tenant, held) SELECT $1, $2, ARRAY[$3::text] WHERE $4::int8 > 0
                    ON CONFLICT (queue, tenant) DO UPDATE
                    SET held = CASE WHEN $3 = ANY (s.held) THEN s.held ELSE array_append(ARRAY(
                                   SELECT seat FROM unnest(s.held) AS seat
                                   WHERE split_part(seat, '/', 1)::int8 IN (SELECT session FROM sessions)), $3) END
                    WHERE $3 = ANY (s.held)
                       OR (SELECT count(*) FROM unnest(s.held) AS seat
                           WHERE split_part(seat, '/', 1)::int8 IN (SELECT session FROM sessions)) < $4";
        let place = place(&seat);
        Ok(self.reader.execute(take, &[&seat.queue, &seat.tenant, &place, &i64::from(most)]).await? == 1)
    }

    async fn return_seat(&self, seat: Seat) -> Result<(), LedgerError> {
        let back = "UPDATE seats SET held = array_remove(held, $3) WHERE queue = $1 AND tenant = $2";
        self.reader.execute(back, &[&seat.queue, &seat.tenant, &place(&seat)]).await?;
        let empty = "DELETE FROM seats WHERE queue = $1 AND tenant = $2 AND held = '{}'";
        self.reader.execute(empty, &[&seat.queue, &seat.tenant]).await.map(drop)
    }

    async fn ownership(&self, epochs: Vec<i64>, payloads: bool) -> Result<Vec<Option<Ownership>>, LedgerError> {
        let sql = "SELECT c.epoch IS NOT NULL, c.owner, CASE WHEN $2 THEN c.payload ELSE '' END
                   FROM unnest($1::int8[]) WITH ORDINALITY AS asked (epoch, nth)
                   LEFT JOIN chains c ON c.epoch = asked.epoch ORDER BY asked.nth";
        let read = |row: &Row| {
            let known: bool = row.try_get(0)?;
            Ok(match known {
                true => Some(Ownership { owner: row.try_get(1)?, payload: row.try_get(2)? }),
                false => None,
            })
        };
        self.reader.rows(sql, &[&epochs, &payloads], read).await
    }
}

/// A seat, as the row of its tenant has it.
fn place(seat: &Seat) -> String {
    format!("{}/{}", seat.session, seat.number)
}
