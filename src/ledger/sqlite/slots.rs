//! What throttles need, in SQL.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};
use tokio::time::Instant;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::clock::Clock;
use crate::ledger::slots::{orders, orders_text, state, text, was_set};
use crate::ledger::{LedgerError, SlotAnswer, SlotRequest, Slots, ThrottleRow, serve};
use crate::throttle::clock::{Known, follow};
use crate::throttle::orders::{Orders, ThrottleOrder};
use crate::throttle::slots::{Micros, State};

#[async_trait]
impl Slots for SqliteLedger {
    async fn slots(&self, requests: Vec<SlotRequest>) -> std::result::Result<Vec<SlotAnswer>, LedgerError> {
        let clock = self.clock.clone();
        let serve = move |store: &mut Store| requests.iter().map(|request| store.slots(request, &clock)).collect();
        self.writer.write(serve).await
    }

    async fn throttle_clock(&self, known: Option<Known>) -> std::result::Result<(Micros, Micros), LedgerError> {
        let clock = self.clock.clone();
        let look = move |store: &Store| store.set_of_clock(&clock, known.as_ref());
        let (now, set, told) = self.read(look).await?;
        if set == told {
            return Ok((now, set));
        }
        let clock = self.clock.clone();
        self.writer.write(move |store| store.follow_clock(&clock, known.as_ref())).await
    }

    async fn throttles(&self, limit: u32) -> std::result::Result<Vec<ThrottleRow>, LedgerError> {
        self.read(move |store| store.throttles(limit)).await
    }

    async fn throttle(
        &self,
        name: String,
        key: Option<String>,
        limit: u32,
    ) -> std::result::Result<Vec<ThrottleRow>, LedgerError> {
        self.read(move |store| store.throttle(&name, key.as_deref(), limit)).await
    }

    async fn throttle_orders(&self) -> std::result::Result<BTreeMap<String, Orders>, LedgerError> {
        self.read(Store::throttle_orders).await
    }

    async fn order_throttle(
        &self,
        name: String,
        order: ThrottleOrder,
        by: String,
    ) -> std::result::Result<Orders, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.order_throttle(&name, &order, &by, &clock)).await
    }

    async fn forget_idle(&self, limit: u32, known: Option<Known>) -> std::result::Result<usize, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.forget_idle(&clock, known.as_ref(), limit)).await
    }
}

/// One statement, whether something was ordered or not: in an empty table there is nothing to look for.
const REMEMBERED: &str = "
    SELECT (SELECT state FROM throttles WHERE name = ?1 AND key = ?2),
           (SELECT orders FROM throttle_orders WHERE name = ?1)";

impl Store {
    /// How far the clock has been set in all, as far as anybody has told.
    fn set(&self) -> Result<Micros> {
        self.connection.prepare_cached("SELECT set_by FROM throttle_clock")?.query_row([], |row| row.get(0))
    }

    /// What the clock shows; how far it has been set by somebody who knows so much of it; and how far as was told.
    fn set_of_clock(&self, clock: &Clock, known: Option<&Known>) -> Result<(Micros, Micros, Micros)> {
        let asked = Instant::now();
        let now: Micros = clock.now().as_millis() * 1_000;
        let read = (asked, Instant::now());
        let told = self.set()?;
        Ok((now, follow(told, now, read, known), told))
    }

    /// Notes if it has been set; answers what it shows, and how far it has been set in all.
    fn follow_clock(&mut self, clock: &Clock, known: Option<&Known>) -> Result<(Micros, Micros)> {
        let (now, set, told) = self.set_of_clock(clock, known)?;
        if set != told {
            tracing::warn!("{}", was_set(set - told));
            self.connection.prepare_cached("UPDATE throttle_clock SET set_by = ?1")?.execute([set])?;
        }
        Ok((now, set))
    }

    fn slots(&mut self, request: &SlotRequest, clock: &Clock) -> Result<SlotAnswer> {
        let (now, set) = self.follow_clock(clock, request.known.as_ref())?;
        let (found, ordered): (Option<String>, Option<String>) = self
            .connection
            .prepare_cached(REMEMBERED)?
            .query_row([&request.throttle, &request.key], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.slots = true;
        let mut state = found.map(|text| state(&text, request, now - set)).unwrap_or_default();
        let orders = ordered.map(|text| orders(&text, &request.throttle)).unwrap_or_default();
        let answer = serve(&mut state, &orders, request, now, set);
        let write = "INSERT INTO throttles (name, key, state, idle_at) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (name, key) DO UPDATE SET state = excluded.state, idle_at = excluded.idle_at";
        let idle_at = state.idle_at(&answer.limits);
        self.connection.prepare_cached(write)?.execute(params![
            request.throttle,
            request.key,
            text(&state),
            idle_at
        ])?;
        Ok(answer)
    }

    fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>> {
        let sql = "SELECT name, key, state, keys FROM (
                       SELECT *, row_number() OVER (PARTITION BY name ORDER BY key) AS place,
                              count(*) OVER (PARTITION BY name) AS keys
                       FROM throttles)
                   WHERE place <= ?1 ORDER BY name, key";
        let (mut select, set) = (self.connection.prepare_cached(sql)?, self.set()?);
        select.query_map([limit], |read| row(read, set))?.collect()
    }

    fn throttle(&self, name: &str, key: Option<&str>, limit: u32) -> Result<Vec<ThrottleRow>> {
        let sql = "SELECT name, key, state, (SELECT count(*) FROM throttles WHERE name = ?1) AS keys FROM throttles
                   WHERE name = ?1 AND (?2 IS NULL OR key = ?2) ORDER BY idle_at DESC, key LIMIT ?3";
        let (mut select, set) = (self.connection.prepare_cached(sql)?, self.set()?);
        select.query_map(params![name, key, limit], |read| row(read, set))?.collect()
    }

    fn throttle_orders(&self) -> Result<BTreeMap<String, Orders>> {
        let mut select = self.connection.prepare_cached("SELECT name, orders FROM throttle_orders")?;
        let set = self.set()?;
        let rows = select.query_map([], |row| {
            let (name, text): (String, String) = (row.get(0)?, row.get(1)?);
            let orders = orders(&text, &name).moved(set);
            Ok((name, orders))
        })?;
        rows.collect()
    }

    fn order_throttle(&mut self, name: &str, order: &ThrottleOrder, by: &str, clock: &Clock) -> Result<Orders> {
        let (now, set) = self.follow_clock(clock, None)?;
        let read = "SELECT orders FROM throttle_orders WHERE name = ?1";
        let found: Option<String> =
            self.connection.prepare_cached(read)?.query_row([name], |row| row.get(0)).optional()?;
        let mut all = found.map(|text| orders(&text, name)).unwrap_or_default();
        all.add(order, by, now - set);
        let write = "INSERT INTO throttle_orders (name, orders) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET orders = excluded.orders";
        self.connection.prepare_cached(write)?.execute([name, &orders_text(&all)])?;
        Ok(all.moved(set))
    }

    fn forget_idle(&mut self, clock: &Clock, known: Option<&Known>, limit: u32) -> Result<usize> {
        let (now, set) = self.follow_clock(clock, known)?;
        let forget = "DELETE FROM throttles WHERE (name, key) IN
                      (SELECT name, key FROM throttles WHERE idle_at <= ?1 LIMIT ?2)";
        self.connection.prepare_cached(forget)?.execute(params![now - set, limit])
    }
}

fn row(row: &rusqlite::Row<'_>, set: Micros) -> Result<ThrottleRow> {
    let text: String = row.get(2)?;
    let state = serde_json::from_str::<State>(&text).unwrap_or_default().moved(set);
    let keys = row.get::<_, i64>(3)?.unsigned_abs();
    Ok(ThrottleRow { throttle: row.get(0)?, key: row.get(1)?, state, keys })
}
