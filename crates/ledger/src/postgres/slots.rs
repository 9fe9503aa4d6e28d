//! What throttles need: a connection of their own, on which requests that wait together are one
//! transaction. Rows are locked before the clock is read, so that slots never go back, and before the
//! orders of operators are, which is the same statement: so an order costs slots no round trip, and
//! the order itself waits for the rows' locks, so that no slot is handed out in spite of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join3;
use parking_lot::Mutex;
use roundelay_model::clock::{Followed, Seen, instant};
use roundelay_model::pacing::orders::{Orders, ThrottleOrder};
use roundelay_model::pacing::slots::{Micros, State};
use roundelay_model::pacing::{SlotRequest, SlotResponse, serve};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_postgres::{Error, Row};

use super::connect::{Address, Session, Use, words};
use super::{PostgresLedger, clock};
use crate::error::LedgerError;
use crate::slots::{Slots, ThrottleRow, orders, orders_text, state, text};
use crate::traffic::Counters;

/// How long a transaction may take before its connection counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an order may take: it waits for the transactions that are under way.
const ORDER: Duration = Duration::from_secs(60);
/// Requests of one transaction.
const MAX_REQUESTS: usize = 1_024;

const LOCK: &str = "
    SELECT name, key, state FROM throttles
    WHERE (name, key) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY name, key FOR UPDATE";
const NOW: &str = "
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8,
           ARRAY(SELECT name FROM throttle_orders WHERE name = ANY ($1) ORDER BY name),
           ARRAY(SELECT orders FROM throttle_orders WHERE name = ANY ($1) ORDER BY name),
           (SELECT set_by FROM ledger_clock), (SELECT version FROM ledger_clock)";
const ADD: &str = "
    INSERT INTO throttles (name, key, state, idle_at)
    SELECT name, key, '{}', 0 FROM unnest($1::text[], $2::text[]) AS new (name, key) ORDER BY name, key
    ON CONFLICT DO NOTHING";
const WRITE: &str = "
    UPDATE throttles SET state = new.state, idle_at = new.idle_at
    FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[]) AS new (name, key, state, idle_at)
    WHERE throttles.name = new.name AND throttles.key = new.key";

type Group = Vec<(Vec<SlotRequest>, oneshot::Sender<Vec<SlotResponse>>)>;

/// Where requests wait for their transaction.
pub(super) struct Desk {
    address: Address,
    clock: Arc<Followed>,
    counters: Arc<Counters>,
    waiting: Mutex<Group>,
    /// The request that holds the session serves all that wait.
    session: tokio::sync::Mutex<Option<Session>>,
}

impl Desk {
    pub(super) fn new(address: &Address, clock: Arc<Followed>, counters: Arc<Counters>) -> Self {
        let (waiting, session) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { address: address.clone(), clock, counters, waiting, session }
    }

    async fn ask(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotResponse>, LedgerError> {
        let lost = |_| LedgerError::Statement("the connection of the throttles was lost; ask again".into());
        let (reply, mut answer) = oneshot::channel();
        self.waiting.lock().push((requests, reply));
        loop {
            let mut place = tokio::select! {
                biased;
                // A request that has its answer serves no others: else all would wait for each other's small
                // transactions.
                answer = &mut answer => return answer.map_err(lost),
                place = self.session.lock() => place,
            };
            let group = self.next_group();
            if group.is_empty() {
                continue;
            }
            // Out of its place while it is used: when we are dropped midway, it is closed and rolled back.
            let mut session = match place.take().filter(|session| !session.client.is_closed()) {
                Some(session) => session,
                None => self.address.connect(Use::Slots).await?,
            };
            let served = timeout(PATIENCE, self.transact(&mut session, &group)).await;
            let answers = match served {
                Ok(Ok(answers)) => answers,
                Ok(Err(error)) => return Err(LedgerError::Statement(words(&error))),
                Err(_) => return Err(LedgerError::Statement("it has not answered in time".into())),
            };
            *place = Some(session);
            let mut answers = answers.into_iter();
            for (requests, reply) in group {
                // The slots of a caller that has gone are wasted.
                let _ = reply.send(answers.by_ref().take(requests.len()).collect());
            }
        }
    }

    fn next_group(&self) -> Group {
        let mut waiting = self.waiting.lock();
        let (mut requests, mut groups) = (0, 0);
        while let Some((next, _)) = waiting.get(groups)
            && (groups == 0 || requests + next.len() <= MAX_REQUESTS)
        {
            (requests, groups) = (requests + next.len(), groups + 1);
        }
        waiting.drain(..groups).collect()
    }

    async fn transact(&self, session: &mut Session, group: &Group) -> Result<Vec<SlotResponse>, Error> {
        let requests: Vec<&SlotRequest> = group.iter().flat_map(|(requests, _)| requests).collect();
        let mut rows: BTreeMap<(&str, &str), Option<State>> =
            requests.iter().map(|request| ((&*request.throttle, &*request.key), None)).collect();
        let (names, keys): (Vec<&str>, Vec<&str>) = rows.keys().copied().unzip();
        let (lock, now) = (session.statement(LOCK).await?, session.statement(NOW).await?);
        let client = &session.client;
        let mut asked = instant();
        let (begun, locked, told) = join3(
            client.batch_execute("BEGIN"),
            client.query(&lock, &[&names, &keys]),
            client.query_one(&now, &[&names]),
        )
        .await;
        begun?;
        let (mut locked, mut told) = (locked?, told?);
        if locked.len() < rows.len() {
            let add = session.statement(ADD).await?;
            session.client.execute(&add, &[&names, &keys]).await?;
            locked = session.client.query(&lock, &[&names, &keys]).await?;
            asked = instant();
            told = session.client.query_one(&now, &[&names]).await?;
        }
        // Locks may have been waited for in between.
        let seen = Seen {
            server: told.try_get(0)?,
            set: told.try_get(3)?,
            version: told.try_get(4)?,
            asked,
            answered: instant(),
        };
        let reading = self.clock.read(seen);
        let (now, known_since): (Micros, _) = (reading.micros, self.clock.known_since());
        let (ordered, by_order): (Vec<String>, Vec<String>) = (told.try_get(1)?, told.try_get(2)?);
        let ordered: BTreeMap<String, Orders> = ordered
            .into_iter()
            .zip(by_order)
            .map(|(name, text)| {
                let orders = orders(&text, &name);
                (name, orders)
            })
            .collect();
        let none = Orders::default();
        let mut texts: BTreeMap<(String, String), String> = locked
            .iter()
            .map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?)))
            .collect::<Result<_, Error>>()?;
        let answers = requests.iter().map(|request| {
            let found = rows.entry((&request.throttle, &request.key)).or_default();
            let remembered = found.get_or_insert_with(|| {
                let text = texts.remove(&(request.throttle.clone(), request.key.clone())).unwrap_or_default();
                state(&text, request, now)
            });
            let answer = serve(remembered, ordered.get(&request.throttle).unwrap_or(&none), request, now, known_since);
            let idle_at = remembered.idle_at(&answer.limits);
            (answer, idle_at)
        });
        let answers: Vec<(SlotResponse, Micros)> = answers.collect();
        let idle: BTreeMap<(&str, &str), Micros> = requests
            .iter()
            .zip(&answers)
            .map(|(request, (_, idle_at))| ((&*request.throttle, &*request.key), *idle_at))
            .collect();
        let texts: Vec<String> = rows.values().flatten().map(text).collect();
        let idle: Vec<Micros> = idle.into_values().collect();
        let write = session.statement(WRITE).await?;
        clock::correct(&session.client, &seen, reading).await?;
        let (written, committed) = futures_util::future::join(
            session.client.execute(&write, &[&names, &keys, &texts, &idle]),
            session.client.batch_execute("COMMIT"),
        )
        .await;
        written?;
        committed?;
        self.counters.wrote(true);
        Ok(answers.into_iter().map(|(answer, _)| answer).collect())
    }
}

#[async_trait]
impl Slots for PostgresLedger {
    async fn slots(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotResponse>, LedgerError> {
        self.desk.ask(requests).await
    }

    async fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError> {
        let sql = "SELECT name, key, state, keys FROM (
                       SELECT *, row_number() OVER (PARTITION BY name ORDER BY key) AS place,
                              count(*) OVER (PARTITION BY name) AS keys
                       FROM throttles) placed
                   WHERE place <= $1 ORDER BY name, key";
        told(&self.reader.query(sql, &[&i64::from(limit)]).await?)
    }

    async fn throttle(&self, name: String, key: Option<String>, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError> {
        let sql = "SELECT name, key, state, (SELECT count(*) FROM throttles WHERE name = $1) AS keys
                   FROM throttles
                   WHERE name = $1 AND ($2::text IS NULL OR key = $2) ORDER BY idle_at DESC, key LIMIT $3";
        told(&self.reader.query(sql, &[&name, &key, &i64::from(limit)]).await?)
    }

    async fn throttle_orders(&self) -> Result<BTreeMap<String, Orders>, LedgerError> {
        let rows = self.reader.query("SELECT name, orders FROM throttle_orders", &[]).await?;
        let read = |row: &Row| {
            let (name, text): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let orders = orders(&text, &name);
            Ok((name, orders))
        };
        rows.iter().map(read).collect::<Result<_, Error>>().map_err(|error| LedgerError::Statement(words(&error)))
    }

    async fn order_throttle(&self, name: String, order: ThrottleOrder, by: String) -> Result<Orders, LedgerError> {
        let mut session = self.address.connect(Use::Long(ORDER)).await?;
        match timeout(ORDER, give(&mut session, &name, &order, &by)).await {
            Ok(answer) => answer.map_err(|error| LedgerError::Statement(words(&error))),
            Err(_) => Err(LedgerError::Statement(
                "it has not answered in time, and whether it was written is not known".into(),
            )),
        }
    }

    async fn forget_idle(&self, limit: u32) -> Result<usize, LedgerError> {
        self.read().await?;
        // By a clock that may have been set, what has just started may seem to have started long ago.
        if self.clock.known_since().is_some() {
            return Ok(0);
        }
        // Rows that another transaction has locked are in use.
        let sql = "WITH idle AS MATERIALIZED (
                       SELECT name, key FROM throttles WHERE idle_at <= $2 LIMIT $1 FOR UPDATE SKIP LOCKED)
                   DELETE FROM throttles WHERE (name, key) IN (SELECT name, key FROM idle)";
        let forgotten = self.reader.execute(sql, &[&i64::from(limit), &self.clock.micros()]).await?;
        Ok(usize::try_from(forgotten).unwrap_or(usize::MAX))
    }
}

/// Writes an order, and waits for the transactions that are handing out slots and may not have read it.
async fn give(session: &mut Session, name: &str, order: &ThrottleOrder, by: &str) -> Result<Orders, Error> {
    let transaction = session.client.transaction().await?;
    let begin = "INSERT INTO throttle_orders (name, orders) VALUES ($1, '{}') ON CONFLICT DO NOTHING";
    transaction.execute(begin, &[&name]).await?;
    let read = "SELECT orders, ledger_millis() FROM throttle_orders WHERE name = $1 FOR UPDATE";
    let row = transaction.query_one(read, &[&name]).await?;
    let mut all = orders(row.try_get(0)?, name);
    all.add(order, by, row.try_get::<_, Micros>(1)? * 1_000);
    let write = "UPDATE throttle_orders SET orders = $2 WHERE name = $1";
    transaction.execute(write, &[&name, &orders_text(&all)]).await?;
    transaction.commit().await?;
    // A transaction that locks a row from now on reads the order after that; one that has locked a row before may not.
    let lock = "SELECT count(*) FROM (SELECT FROM throttles WHERE name = $1 ORDER BY key FOR SHARE) locked";
    session.client.query_one(lock, &[&name]).await?;
    Ok(all)
}

fn told(rows: &[Row]) -> Result<Vec<ThrottleRow>, LedgerError> {
    let read = |row: &Row| {
        let text: String = row.try_get(2)?;
        let state = serde_json::from_str::<State>(&text).unwrap_or_default();
        let keys = row.try_get::<_, i64>(3)?.unsigned_abs();
        Ok(ThrottleRow { throttle: row.try_get(0)?, key: row.try_get(1)?, state, keys })
    };
    rows.iter().map(read).collect::<Result<_, Error>>().map_err(|error| LedgerError::Statement(words(&error)))
}
