//! What throttles need, in SQL.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};
use tokio::time::Instant;

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::clock::Clock;
use crate::ledger::slots::{state, text};
use crate::ledger::{LedgerError, SlotAnswer, SlotRequest, Slots, ThrottleRow, serve};
use crate::throttle::slots::Micros;

#[async_trait]
impl Slots for SqliteLedger {
    async fn slots(&self, requests: Vec<SlotRequest>) -> std::result::Result<Vec<SlotAnswer>, LedgerError> {
        let clock = self.clock.clone();
        let serve = move |store: &mut Store| requests.iter().map(|request| store.slots(request, &clock)).collect();
        self.writer.write(serve).await
    }

    async fn throttles(&self, limit: u32) -> std::result::Result<Vec<ThrottleRow>, LedgerError> {
        self.read(move |store| store.throttles(limit)).await
    }

    async fn forget_idle(&self, limit: u32) -> std::result::Result<usize, LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.forget_idle(clock.now().as_millis() * 1_000, limit)).await
    }
}

impl Store {
    fn slots(&mut self, request: &SlotRequest, clock: &Clock) -> Result<SlotAnswer> {
        let asked = Instant::now();
        let now: Micros = clock.now().as_millis() * 1_000;
        let read = (asked, Instant::now());
        let found: Option<String> = self
            .connection
            .prepare_cached("SELECT state FROM throttles WHERE name = ?1 AND key = ?2")?
            .query_row([&request.throttle, &request.key], |row| row.get(0))
            .optional()?;
        let mut state = found.map(|text| state(&text, request, now)).unwrap_or_default();
        let answer = serve(&mut state, request, now, read);
        let write = "INSERT INTO throttles (name, key, state, idle_at) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (name, key) DO UPDATE SET state = excluded.state, idle_at = excluded.idle_at";
        let idle_at = state.idle_at(&request.limits);
        self.connection.prepare_cached(write)?.execute(params![
            request.throttle,
            request.key,
            text(&state),
            idle_at
        ])?;
        Ok(answer)
    }

    fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>> {
        let sql = "SELECT name, key, state FROM (
                       SELECT *, row_number() OVER (PARTITION BY name ORDER BY key) AS place FROM throttles)
                   WHERE place <= ?1 ORDER BY name, key";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows = select.query_map([limit], |row| {
            let text: String = row.get(2)?;
            Ok(ThrottleRow {
                throttle: row.get(0)?,
                key: row.get(1)?,
                state: serde_json::from_str(&text).unwrap_or_default(),
            })
        })?;
        rows.collect()
    }

    fn forget_idle(&mut self, now: Micros, limit: u32) -> Result<usize> {
        let forget = "DELETE FROM throttles WHERE (name, key) IN
                      (SELECT name, key FROM throttles WHERE idle_at <= ?1 LIMIT ?2)";
        self.connection.prepare_cached(forget)?.execute(params![now, limit])
    }
}
