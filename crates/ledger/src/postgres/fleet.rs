//! Workers and the orders for them, in SQL.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use roundelay_model::clock::Time;
use roundelay_model::fleet::{FleetOrder, FleetOrders, KEPT, Presence, Subject, ThroughputSample};
use roundelay_model::kind_stats::{KindBucket, Step};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::{Use, words};
use crate::error::LedgerError;
use crate::fleet::{Fleet, SeenWorker, of_all_workers};

/// How long an order may take.
const ORDER: Duration = Duration::from_secs(60);

/// One statement for all of it. It waits for no lock: rows that another worker is deleting are skipped.
const ATTEND: &str = "
    WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms),
         silent AS (
             DELETE FROM workers WHERE worker IN (
                 SELECT worker FROM workers, now WHERE seen < ms - $5 AND worker <> $1 FOR UPDATE OF workers SKIP LOCKED)
             RETURNING worker),
         orders AS (DELETE FROM fleet_orders WHERE subject IN (SELECT 'worker:' || worker FROM silent)),
         -- Of workers that have left while the order was given.
         late AS (
             DELETE FROM fleet_orders WHERE starts_with(subject, 'worker:')
                 AND subject NOT IN (SELECT 'worker:' || worker FROM workers)),
         old AS (
             DELETE FROM pulses WHERE (at, worker) IN (
                 SELECT at, worker FROM pulses, now WHERE at < ms - $5 FOR UPDATE OF pulses SKIP LOCKED)),
         told AS (
             INSERT INTO pulses (at, worker, said)
             SELECT u.at, $1, u.said FROM unnest($3::int8[], $4::text[]) AS u (at, said)
             ON CONFLICT (at, worker) DO UPDATE SET said = excluded.said)
    INSERT INTO workers (worker, seen, said) SELECT $1, ms, $2 FROM now
    ON CONFLICT (worker) DO UPDATE SET seen = excluded.seen, said = excluded.said";
/// It waits for no lock: rows that another worker is deleting are skipped. What is written is not forgotten in the same
/// statement, which must not change a row twice.
const NOTE_KINDS: &str = "
    WITH now AS MATERIALIZED (SELECT ledger_millis() AS ms),
         old AS (
             DELETE FROM kind_stats WHERE (step, at, kind, worker) IN (
                 SELECT k.step, k.at, k.kind, k.worker
                 FROM unnest($6::int8[], $7::int8[], $8::int8[]) AS kept (step, ms, written), now, kind_stats k
                 WHERE k.step = kept.step AND k.at < least(now.ms - kept.ms, kept.written)
                 FOR UPDATE OF k SKIP LOCKED))
    INSERT INTO kind_stats (step, at, kind, worker, said)
    SELECT u.step, u.at, u.kind, $1, u.said
    FROM unnest($2::int8[], $3::int8[], $4::text[], $5::text[]) AS u (step, at, kind, said)
    ON CONFLICT (step, at, kind, worker) DO UPDATE SET said = excluded.said";
const LEAVE: &str = "
    WITH orders AS (DELETE FROM fleet_orders WHERE subject = 'worker:' || $1)
    DELETE FROM workers WHERE worker = $1";
/// An order that comes at the same time waits for this one, and is added to it.
const TAKE: &str = "
    INSERT INTO fleet_orders (subject, orders) VALUES ($1, '{}')
    ON CONFLICT (subject) DO UPDATE SET orders = fleet_orders.orders RETURNING orders";

#[async_trait]
impl Fleet for PostgresLedger {
    async fn attend(&self, presence: Presence, pulses: Vec<ThroughputSample>) -> Result<(), LedgerError> {
        let said = serde_json::to_string(&presence).unwrap_or_default();
        let at: Vec<i64> = pulses.iter().map(|pulse| pulse.at.as_millis()).collect();
        let told: Vec<String> = pulses.iter().map(|pulse| serde_json::to_string(pulse).unwrap_or_default()).collect();
        let kept = i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX);
        self.reader.execute(ATTEND, &[&presence.worker, &said, &at, &told, &kept]).await.map(drop)
    }

    async fn leave(&self, worker: String) -> Result<(), LedgerError> {
        self.reader.execute(LEAVE, &[&worker]).await.map(drop)
    }

    async fn workers(&self) -> Result<Vec<SeenWorker>, LedgerError> {
        let rows = self.reader.query("SELECT said, seen FROM workers ORDER BY worker", &[]).await?;
        let read = |row: &Row| Ok::<(String, i64), Error>((row.try_get(0)?, row.try_get(1)?));
        let rows: Vec<(String, i64)> = rows.iter().map(read).collect::<Result<_, _>>().map_err(told)?;
        // What another version has written and this one cannot read is left out.
        let seen = rows.iter().filter_map(|(said, seen)| {
            Some(SeenWorker { presence: serde_json::from_str(said).ok()?, seen: Time::from_millis(*seen) })
        });
        Ok(seen.collect())
    }

    async fn pulses(&self, since: Time) -> Result<Vec<ThroughputSample>, LedgerError> {
        let sql = "SELECT said FROM pulses WHERE at >= $1 ORDER BY at, worker";
        let rows = self.reader.query(sql, &[&since.as_millis()]).await?;
        let said: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(told)?;
        Ok(said.iter().filter_map(|said| serde_json::from_str(said).ok()).collect())
    }

    async fn note_kinds(&self, worker: String, buckets: Vec<KindBucket>) -> Result<(), LedgerError> {
        let steps: Vec<i64> = buckets.iter().map(|bucket| bucket.step.millis()).collect();
        let at: Vec<i64> = buckets.iter().map(|bucket| bucket.at.as_millis()).collect();
        let kinds: Vec<&str> = buckets.iter().map(|bucket| bucket.kind.as_str()).collect();
        let said = |bucket: &KindBucket| serde_json::to_string(&bucket.stats).unwrap_or_default();
        let said: Vec<String> = buckets.iter().map(said).collect();
        let kept = |step: Step| i64::try_from(step.kept().as_millis()).unwrap_or(i64::MAX);
        let written = |step: Step| {
            let of_step = buckets.iter().filter(|bucket| bucket.step == step);
            of_step.map(|bucket| bucket.at.as_millis()).min().unwrap_or(i64::MAX)
        };
        let of_steps = [Step::ALL.map(Step::millis), Step::ALL.map(kept), Step::ALL.map(written)].map(Vec::from);
        let [all, kept, written] = of_steps;
        let parameters: [&(dyn ToSql + Sync); 8] = [&worker, &steps, &at, &kinds, &said, &all, &kept, &written];
        self.reader.execute(NOTE_KINDS, &parameters).await.map(drop)
    }

    async fn kinds(&self, step: Step, since: Time) -> Result<Vec<KindBucket>, LedgerError> {
        let sql = "SELECT at, kind, said FROM kind_stats WHERE step = $1 AND at >= $2 ORDER BY at, kind";
        let rows = self.reader.query(sql, &[&step.millis(), &since.as_millis()]).await?;
        let read = |row: &Row| Ok::<_, Error>((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        let rows: Vec<(i64, String, String)> = rows.iter().map(read).collect::<Result<_, _>>().map_err(told)?;
        Ok(of_all_workers(step, rows.into_iter()))
    }

    async fn fleet_orders(&self) -> Result<BTreeMap<Subject, FleetOrders>, LedgerError> {
        let rows = self.reader.query("SELECT subject, orders FROM fleet_orders", &[]).await?;
        let read = |row: &Row| Ok::<(String, String), Error>((row.try_get(0)?, row.try_get(1)?));
        let rows: Vec<(String, String)> = rows.iter().map(read).collect::<Result<_, _>>().map_err(told)?;
        let orders =
            rows.iter().filter_map(|(subject, text)| Some((Subject::read(subject)?, FleetOrders::read(text, subject))));
        Ok(orders.filter(|(_, orders)| !orders.is_empty()).collect())
    }

    async fn order_fleet(&self, of: Subject, order: FleetOrder, by: String) -> Result<FleetOrders, LedgerError> {
        let subject = of.to_string();
        let mut session = self.address.connect(Use::Long(ORDER)).await?;
        let now = self.clock.now();
        let work = async {
            let transaction = session.client.transaction().await?;
            if let Subject::Worker(name) = &of {
                let there = "SELECT FROM workers WHERE worker = $1";
                if transaction.query_opt(there, &[name]).await?.is_none() {
                    return Ok(None);
                }
            }
            let text: String = transaction.query_one(TAKE, &[&subject]).await?.try_get(0)?;
            let mut orders = FleetOrders::read(&text, &subject);
            orders.add(order, &by, now);
            if orders.is_empty() {
                transaction.execute("DELETE FROM fleet_orders WHERE subject = $1", &[&subject]).await?;
            } else {
                let update = "UPDATE fleet_orders SET orders = $2 WHERE subject = $1";
                transaction.execute(update, &[&subject, &orders.text()]).await?;
            }
            transaction.commit().await?;
            Ok(Some(orders))
        };
        work.await.map_err(told)?.ok_or_else(|| super::super::gone(of))
    }
}

fn told(error: Error) -> LedgerError {
    LedgerError::Statement(words(&error))
}
