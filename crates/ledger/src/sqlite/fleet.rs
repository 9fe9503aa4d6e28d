//! Workers and the orders for them, in SQL.

use std::collections::BTreeMap;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrder, FleetOrders, KEPT, Presence, Subject, ThroughputSample};
use roundelay_model::kind_stats::{KindBucket, Step};
use rusqlite::{OptionalExtension, params};

use super::SqliteLedger;
use super::store::{Result, Store};
use crate::error::LedgerError;
use crate::fleet::{Fleet, SeenWorker, of_all_workers};

impl Store {
    fn attend(&mut self, presence: &Presence, pulses: &[ThroughputSample], now: Time) -> Result<()> {
        let old = (now - KEPT).as_millis();
        self.connection.prepare_cached("DELETE FROM pulses WHERE at < ?1")?.execute([old])?;
        self.connection
            .prepare_cached(
                "DELETE FROM fleet_orders WHERE subject IN (SELECT 'worker:' || worker FROM workers WHERE seen < ?1)",
            )?
            .execute([old])?;
        self.connection.prepare_cached("DELETE FROM workers WHERE seen < ?1")?.execute([old])?;
        let said = serde_json::to_string(presence).unwrap_or_default();
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO workers (worker, seen, said) VALUES (?1, ?2, ?3)")?
            .execute(params![presence.worker, now.as_millis(), said])?;
        let mut insert =
            self.connection.prepare_cached("INSERT OR REPLACE INTO pulses (at, worker, said) VALUES (?1, ?2, ?3)")?;
        for pulse in pulses {
            let said = serde_json::to_string(pulse).unwrap_or_default();
            insert.execute(params![pulse.at.as_millis(), presence.worker, said])?;
        }
        Ok(())
    }

    fn leave(&mut self, worker: &str) -> Result<()> {
        self.connection.prepare_cached("DELETE FROM workers WHERE worker = ?1")?.execute([worker])?;
        let subject = Subject::Worker(worker.into()).to_string();
        self.connection.prepare_cached("DELETE FROM fleet_orders WHERE subject = ?1")?.execute([subject])?;
        Ok(())
    }

    fn workers(&self) -> Result<Vec<SeenWorker>> {
        let mut select = self.connection.prepare_cached("SELECT said, seen FROM workers ORDER BY worker")?;
        let rows = select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
        // What another version has written and this one cannot read is left out.
        rows.filter_map(|row| match row {
            Ok((said, seen)) => {
                let presence = serde_json::from_str(&said).ok()?;
                Some(Ok(SeenWorker { presence, seen: Time::from_millis(seen) }))
            }
            Err(error) => Some(Err(error)),
        })
        .collect()
    }

    fn pulses(&self, since: Time) -> Result<Vec<ThroughputSample>> {
        let mut select =
            self.connection.prepare_cached("SELECT said FROM pulses WHERE at >= ?1 ORDER BY at, worker")?;
        let rows = select.query_map([since.as_millis()], |row| row.get::<_, String>(0))?;
        rows.filter_map(|row| row.map(|said| serde_json::from_str(&said).ok()).transpose()).collect()
    }

    fn note_kinds(&mut self, worker: &str, buckets: &[KindBucket], now: Time) -> Result<()> {
        for step in Step::ALL {
            let old = (now - step.kept()).as_millis();
            let forget = "DELETE FROM kind_stats WHERE step = ?1 AND at < ?2";
            self.connection.prepare_cached(forget)?.execute([step.millis(), old])?;
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT OR REPLACE INTO kind_stats (step, at, kind, worker, said) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for KindBucket { step, at, kind, stats } in buckets {
            let said = serde_json::to_string(stats).unwrap_or_default();
            insert.execute(params![step.millis(), at.as_millis(), kind, worker, said])?;
        }
        Ok(())
    }

    fn kinds(&self, step: Step, since: Time) -> Result<Vec<KindBucket>> {
        let sql = "SELECT at, kind, said FROM kind_stats WHERE step = ?1 AND at >= ?2 ORDER BY at, kind";
        let mut select = self.connection.prepare_cached(sql)?;
        let rows =
            select.query_map([step.millis(), since.as_millis()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok(of_all_workers(step, rows.collect::<Result<Vec<_>>>()?.into_iter()))
    }

    fn fleet_orders(&self) -> Result<BTreeMap<Subject, FleetOrders>> {
        let mut select = self.connection.prepare_cached("SELECT subject, orders FROM fleet_orders")?;
        let rows = select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        rows.filter_map(|row| {
            row.map(|(subject, text)| Some((Subject::read(&subject)?, FleetOrders::read(&text, &subject)))).transpose()
        })
        .collect()
    }

    /// `None` when there is no such worker.
    fn order_fleet(
        &mut self,
        subject: &Subject,
        order: FleetOrder,
        by: &str,
        now: Time,
    ) -> Result<Option<FleetOrders>> {
        if let Subject::Worker(name) = subject {
            let there = "SELECT EXISTS (SELECT 1 FROM workers WHERE worker = ?1)";
            if !self.connection.prepare_cached(there)?.query_row([name], |row| row.get::<_, bool>(0))? {
                return Ok(None);
            }
        }
        let subject = subject.to_string();
        let read = "SELECT orders FROM fleet_orders WHERE subject = ?1";
        let found: Option<String> =
            self.connection.prepare_cached(read)?.query_row([&subject], |row| row.get(0)).optional()?;
        let mut orders = found.map(|text| FleetOrders::read(&text, &subject)).unwrap_or_default();
        orders.add(order, by, now);
        if orders.is_empty() {
            self.connection.prepare_cached("DELETE FROM fleet_orders WHERE subject = ?1")?.execute([&subject])?;
        } else {
            self.connection
                .prepare_cached("INSERT OR REPLACE INTO fleet_orders (subject, orders) VALUES (?1, ?2)")?
                .execute([&subject, &orders.text()])?;
        }
        Ok(Some(orders))
    }
}

#[async_trait]
impl Fleet for SqliteLedger {
    async fn attend(&self, presence: Presence, pulses: Vec<ThroughputSample>) -> Result<(), LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.attend(&presence, &pulses, clock.now())).await
    }

    async fn leave(&self, worker: String) -> Result<(), LedgerError> {
        self.writer.write(move |store| store.leave(&worker)).await
    }

    async fn workers(&self) -> Result<Vec<SeenWorker>, LedgerError> {
        self.read(|store| store.workers()).await
    }

    async fn pulses(&self, since: Time) -> Result<Vec<ThroughputSample>, LedgerError> {
        self.read(move |store| store.pulses(since)).await
    }

    async fn note_kinds(&self, worker: String, buckets: Vec<KindBucket>) -> Result<(), LedgerError> {
        let clock = self.clock.clone();
        self.writer.write(move |store| store.note_kinds(&worker, &buckets, clock.now())).await
    }

    async fn kinds(&self, step: Step, since: Time) -> Result<Vec<KindBucket>, LedgerError> {
        self.read(move |store| store.kinds(step, since)).await
    }

    async fn fleet_orders(&self) -> Result<BTreeMap<Subject, FleetOrders>, LedgerError> {
        self.read(|store| store.fleet_orders()).await
    }

    async fn order_fleet(&self, subject: Subject, order: FleetOrder, by: String) -> Result<FleetOrders, LedgerError> {
        let clock = self.clock.clone();
        let told = subject.clone();
        let orders = self.writer.write(move |store| store.order_fleet(&told, order.clone(), &by, clock.now())).await?;
        orders.ok_or_else(|| super::super::gone(subject))
    }
}
