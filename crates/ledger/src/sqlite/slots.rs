//! What throttles need, in SQL.

use std::collections::BTreeMap;

use async_trait::async_trait;
use roundelay_model::pacing::orders::{Orders, ThrottleOrder};
use roundelay_model::pacing::slots::{Micros, State};
use roundelay_model::pacing::{SlotRequest, SlotResponse, serve};
use rusqlite::{OptionalExtension, params};

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::error::LedgerError;
use crate::slots::{Slots, ThrottleRow, orders, orders_text, state, text};

#[async_trait]
impl Slots for SqliteLedger {
    async fn slots(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotResponse>, LedgerError> {
        let clock = self.clock.clone();
        let serve = move |store: &mut Store| {
            let now = clock.now().as_millis() * 1_000;
            requests.iter().map(|request| store.slots(request, now)).collect()
        };
        self.writer.write(serve).await
    }

    async fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError> {
        self.read(move |store| store.throttles(limit)).await
    }

    async fn throttle(&self, name: String, key: Option<String>, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError> {
        self.read(move |store| store.throttle(&name, key.as_deref(), limit)).await
    }

    async fn throttle_orders(&self) -> Result<BTreeMap<String, Orders>, LedgerError> {
        self.read(Store::throttle_orders).await
    }

    async fn order_throttle(&self, name: String, order: ThrottleOrder, by: String) -> Result<Orders, LedgerError> {
        let clock = self.clock.clone();
        let now = move || clock.now().as_millis() * 1_000;
        self.writer.write(move |store| store.order_throttle(&name, &order, &by, now())).await
    }

    async fn forget_idle(&self, limit: u32) -> Result<usize, LedgerError> {
        let now = self.clock.now().as_millis() * 1_000;
        self.writer.write(move |store| store.forget_idle(now, limit)).await
    }
}

/// One statement, whether something was ordered or not: in an empty table there is nothing to look for.
const REMEMBERED: &str = "
    SELECT (SELECT state FROM throttles WHERE name = ?1 AND key = ?2),
           (SELECT orders FROM throttle_orders WHERE name = ?1)";

impl Store {
    fn slots(&mut self, request: &SlotRequest, now: Micros) -> Result<SlotResponse> {
        let (found, ordered): (Option<String>, Option<String>) = self
            .connection
            .prepare_cached(REMEMBERED)?
            .query_row([&request.throttle, &request.key], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.slots = true;
        let mut state = found.map(|text| state(&text, request, now)).unwrap_or_default();
        let orders = ordered.map(|text| orders(&text, &request.throttle)).unwrap_or_default();
        let answer = serve(&mut state, &orders, request, now, None);
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
        self.connection.prepare_cached(sql)?.query_map([limit], row)?.collect()
    }

    fn throttle(&self, name: &str, key: Option<&str>, limit: u32) -> Result<Vec<ThrottleRow>> {
        let sql = "SELECT name, key, state, (SELECT count(*) FROM throttles WHERE name = ?1) AS keys FROM throttles
                   WHERE name = ?1 AND (?2 IS NULL OR key = ?2) ORDER BY idle_at DESC, key LIMIT ?3";
        self.connection.prepare_cached(sql)?.query_map(params![name, key, limit], row)?.collect()
    }

    fn throttle_orders(&self) -> Result<BTreeMap<String, Orders>> {
        let mut select = self.connection.prepare_cached("SELECT name, orders FROM throttle_orders")?;
        let rows = select.query_map([], |row| {
            let (name, text): (String, String) = (row.get(0)?, row.get(1)?);
            let orders = orders(&text, &name);
            Ok((name, orders))
        })?;
        rows.collect()
    }

    fn order_throttle(&mut self, name: &str, order: &ThrottleOrder, by: &str, now: Micros) -> Result<Orders> {
        let read = "SELECT orders FROM throttle_orders WHERE name = ?1";
        let found: Option<String> =
            self.connection.prepare_cached(read)?.query_row([name], |row| row.get(0)).optional()?;
        let mut all = found.map(|text| orders(&text, name)).unwrap_or_default();
        all.add(order, by, now);
        let write = "INSERT INTO throttle_orders (name, orders) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET orders = excluded.orders";
        self.connection.prepare_cached(write)?.execute([name, &orders_text(&all)])?;
        Ok(all)
    }

    fn forget_idle(&mut self, now: Micros, limit: u32) -> Result<usize> {
        let forget = "DELETE FROM throttles WHERE (name, key) IN
                      (SELECT name, key FROM throttles WHERE idle_at <= ?1 LIMIT ?2)";
        self.connection.prepare_cached(forget)?.execute(params![now, limit])
    }
}

fn row(row: &rusqlite::Row<'_>) -> Result<ThrottleRow> {
    let text: String = row.get(2)?;
    let state = serde_json::from_str::<State>(&text).unwrap_or_default();
    let keys = row.get::<_, i64>(3)?.unsigned_abs();
    Ok(ThrottleRow { throttle: row.get(0)?, key: row.get(1)?, state, keys })
}
