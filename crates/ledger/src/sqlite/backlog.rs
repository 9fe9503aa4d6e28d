//! The backlog of fair queues, in SQL.

use std::rc::Rc;

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params};

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::backlog::{Backlog, LeftMessage, Ownership, Seat, TakenMessage, TenantBacklog};
use crate::error::LedgerError;

/// The tenants behind `?2` (all for NULL) in the rows that `$which` picks, one lookup for each.
macro_rules! tenants {
    ($which:literal) => {
        concat!(
            "WITH RECURSIVE tenants (tenant, nth) AS (
                 SELECT min(tenant), 1 FROM backlog WHERE queue = ?1 AND (?2 IS NULL OR tenant > ?2)",
            $which,
            " UNION ALL
                 SELECT (SELECT min(b.tenant) FROM backlog b WHERE b.queue = ?1 AND b.tenant > tenants.tenant",
            $which,
            "), nth + 1 FROM tenants WHERE tenant IS NOT NULL AND nth < ?3)"
        )
    };
}

impl Store {
    pub fn leave_messages(&mut self, messages: &[LeftMessage], now: i64) -> Result<()> {
        // Not an update: a session that has the former message in hand names it by its number.
        let mut replace = self.connection.prepare_cached("DELETE FROM backlog WHERE name = ?1 AND body <> ?2")?;
        let leave = "INSERT INTO backlog (queue, tenant, name, body, at) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (name) DO NOTHING";
        let mut leave = self.connection.prepare_cached(leave)?;
        for message in messages {
            replace.execute(params![message.name, message.body])?;
            leave.execute(params![message.queue, message.tenant, message.name, message.body, now])?;
        }
        Ok(())
    }

    pub fn waiting_tenants(&self, queue: &str, after: Option<&str>, limit: u32) -> Result<Vec<String>> {
        let sql = concat!(tenants!(" AND taken = 0"), " SELECT tenant FROM tenants WHERE tenant IS NOT NULL");
        self.connection.prepare_cached(sql)?.query_map(params![queue, after, limit], |row| row.get(0))?.collect()
    }

    pub fn take_messages(&mut self, queue: &str, session: i64, shares: &[(String, u32)]) -> Result<Vec<TakenMessage>> {
        let take = "UPDATE backlog SET taken = ?3, takes = takes + 1
                    WHERE number IN (SELECT number FROM backlog WHERE queue = ?1 AND tenant = ?2 AND taken = 0
                                     ORDER BY number LIMIT ?4)
                    RETURNING number, tenant, body, takes";
        let mut take = self.connection.prepare_cached(take)?;
        let mut taken = Vec::new();
        for (tenant, most) in shares {
            let rows = take.query_map(params![queue, tenant, session, most], taken_message)?;
            taken.extend(rows.collect::<Result<Vec<_>>>()?);
        }
        taken.sort_unstable_by_key(|message| message.number);
        Ok(taken)
    }

    pub fn forget_messages(&mut self, session: i64, numbers: &[i64]) -> Result<()> {
        let mut forget = self.connection.prepare_cached("DELETE FROM backlog WHERE number = ?1 AND taken = ?2")?;
        numbers.iter().try_for_each(|number| forget.execute([*number, session]).map(drop))
    }

    pub fn return_messages(&mut self, session: i64, queue: &str, in_hand: &[i64]) -> Result<u64> {
        let in_hand = Rc::new(in_hand.iter().copied().map(Value::from).collect::<Vec<_>>());
        let wait = "UPDATE backlog SET taken = 0
                    WHERE taken = ?1 AND taken <> 0 AND queue = ?2 AND number NOT IN rarray(?3)";
        self.connection.prepare_cached(wait)?.execute(params![session, queue, in_hand])?;
        let seats = "DELETE FROM seats WHERE session NOT IN (SELECT session FROM sessions)";
        self.connection.prepare_cached(seats)?.execute([])?;
        let over = "UPDATE backlog SET taken = 0 WHERE taken <> 0 AND taken NOT IN (SELECT session FROM sessions)";
        self.connection.prepare_cached(over)?.execute([]).map(|rows| rows as u64)
    }

    pub fn clear_backlog(&mut self) -> Result<()> {
        self.connection.prepare_cached("DELETE FROM backlog")?.execute([]).map(drop)
    }

    pub fn backlog(&self, queue: &str, after: Option<&str>, limit: u32, count: u32) -> Result<Vec<TenantBacklog>> {
        let sql = concat!(
            tenants!(""),
            " SELECT tenant, (SELECT count(*) FROM (SELECT 1 FROM backlog b WHERE b.queue = ?1 AND b.tenant = t.tenant
                                                    LIMIT ?4))
              FROM tenants t WHERE tenant IS NOT NULL"
        );
        let read = |row: &Row<'_>| Ok(TenantBacklog { tenant: row.get(0)?, messages: row.get::<_, i64>(1)? as u64 });
        self.connection.prepare_cached(sql)?.query_map(params![queue, after, limit, count], read)?.collect()
    }

    pub fn take_seat(&mut self, seat: &Seat, most: u32) -> Result<bool> {
        let Seat { queue, tenant, session, number } = seat;
        let gone =
            "DELETE FROM seats WHERE queue = ?1 AND tenant = ?2 AND session NOT IN (SELECT session FROM sessions)";
        self.connection.prepare_cached(gone)?.execute([queue, tenant])?;
        let take = "INSERT OR IGNORE INTO seats (queue, tenant, session, number)
                    SELECT ?1, ?2, ?3, ?4 WHERE (SELECT count(*) FROM seats WHERE queue = ?1 AND tenant = ?2) < ?5";
        self.connection.prepare_cached(take)?.execute(params![queue, tenant, session, number, most])?;
        let has =
            "SELECT EXISTS (SELECT 1 FROM seats WHERE queue = ?1 AND tenant = ?2 AND session = ?3 AND number = ?4)";
        self.connection.prepare_cached(has)?.query_row(params![queue, tenant, session, number], |row| row.get(0))
    }

    pub fn return_seat(&mut self, seat: &Seat) -> Result<()> {
        let Seat { queue, tenant, session, number } = seat;
        let back = "DELETE FROM seats WHERE queue = ?1 AND tenant = ?2 AND session = ?3 AND number = ?4";
        self.connection.prepare_cached(back)?.execute(params![queue, tenant, session, number]).map(drop)
    }

    pub fn ownership(&self, epochs: &[i64], payloads: bool) -> Result<Vec<Option<Ownership>>> {
        let mut select =
            self.connection.prepare_cached("SELECT owner, iif(?2, payload, '') FROM chains WHERE epoch = ?1")?;
        let read = |row: &Row<'_>| Ok(Ownership { owner: row.get(0)?, payload: row.get(1)? });
        epochs.iter().map(|epoch| select.query_row(params![epoch, payloads], read).optional()).collect()
    }
}

fn taken_message(row: &Row<'_>) -> Result<TakenMessage> {
    Ok(TakenMessage { number: row.get(0)?, tenant: row.get(1)?, body: row.get(2)?, takes: row.get(3)? })
}

#[async_trait]
impl Backlog for SqliteLedger {
    async fn leave_messages(&self, messages: Vec<LeftMessage>) -> Result<(), LedgerError> {
        let now = self.clock.now().as_millis();
        self.writer.write(move |store| store.leave_messages(&messages, now)).await
    }

    async fn waiting_tenants(
        &self,
        queue: String,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<String>, LedgerError> {
        self.read(move |store| store.waiting_tenants(&queue, after.as_deref(), limit)).await
    }

    async fn take_messages(
        &self,
        queue: String,
        session: i64,
        shares: Vec<(String, u32)>,
    ) -> Result<Vec<TakenMessage>, LedgerError> {
        self.writer.write(move |store| store.take_messages(&queue, session, &shares)).await
    }

    async fn forget_messages(&self, session: i64, numbers: Vec<i64>) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.forget_messages(session, &numbers)).await
    }

    async fn return_messages(&self, session: i64, queue: String, in_hand: Vec<i64>) -> Result<u64, LedgerError> {
        self.writer.write(move |store| store.return_messages(session, &queue, &in_hand)).await
    }

    async fn clear_backlog(&self) -> Result<(), LedgerError> {
        self.writer.write(Store::clear_backlog).await
    }

    async fn backlog(
        &self,
        queue: String,
        after: Option<String>,
        limit: u32,
        count: u32,
    ) -> Result<Vec<TenantBacklog>, LedgerError> {
        self.read(move |store| store.backlog(&queue, after.as_deref(), limit, count)).await
    }

    async fn take_seat(&self, seat: Seat, most: u32) -> Result<bool, LedgerError> {
        self.writer.write(move |store| store.take_seat(&seat, most)).await
    }

    async fn return_seat(&self, seat: Seat) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.return_seat(&seat)).await
    }

    async fn ownership(&self, epochs: Vec<i64>, payloads: bool) -> Result<Vec<Option<Ownership>>, LedgerError> {
        self.read(move |store| store.ownership(&epochs, payloads)).await
    }
}
