//! What throttles need: a connection of their own, on which requests that wait together are one
//! transaction. Rows are locked before the clock is read, so that slots never go back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join3;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_postgres::{Error, Row};

use super::PostgresLedger;
use super::connect::{Address, Session, Use, words};
use crate::clock::Followed;
use crate::ledger::slots::{state, text};
use crate::ledger::{LedgerError, SlotAnswer, SlotRequest, Slots, ThrottleRow, serve};
use crate::throttle::slots::{Micros, State};

/// How long a transaction may take before its connection counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests of one transaction.
const MOST: usize = 1_024;

const LOCK: &str = "
    SELECT name, key, state FROM throttles
    WHERE (name, key) IN (SELECT * FROM unnest($1::text[], $2::text[])) ORDER BY name, key FOR UPDATE";
const NOW: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8";
const ADD: &str = "
    INSERT INTO throttles (name, key, state, idle_at)
    SELECT name, key, '{}', 0 FROM unnest($1::text[], $2::text[]) AS new (name, key) ORDER BY name, key
    ON CONFLICT DO NOTHING";
const WRITE: &str = "
    UPDATE throttles SET state = new.state, idle_at = new.idle_at
    FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[]) AS new (name, key, state, idle_at)
    WHERE throttles.name = new.name AND throttles.key = new.key";

type Group = Vec<(Vec<SlotRequest>, oneshot::Sender<Vec<SlotAnswer>>)>;

/// Where requests wait for their transaction.
pub(super) struct Desk {
    address: Address,
    clock: Arc<Followed>,
    waiting: Mutex<Group>,
    /// Whoever has it serves all who wait.
    session: tokio::sync::Mutex<Option<Session>>,
}

impl Desk {
    pub(super) fn new(address: &Address, clock: Arc<Followed>) -> Self {
        Self { address: address.clone(), clock, waiting: Mutex::default(), session: tokio::sync::Mutex::default() }
    }

    async fn ask(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotAnswer>, LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push((requests, reply));
        let mut place = self.session.lock().await;
        let group = self.next_group();
        if !group.is_empty() {
            // Out of its place while it is used: when we are dropped midway, it is closed and rolled back.
            let mut session = match place.take().filter(|session| !session.client.is_closed()) {
                Some(session) => session,
                None => self.address.connect(Use::Write).await?,
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
                // Whoever has gone has wasted them.
                let _ = reply.send(answers.by_ref().take(requests.len()).collect());
            }
        }
        drop(place);
        answer.await.map_err(|_| LedgerError::Statement("the connection of the throttles was lost; ask again".into()))
    }

    fn next_group(&self) -> Group {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut requests, mut groups) = (0, 0);
        while let Some((next, _)) = waiting.get(groups)
            && (groups == 0 || requests + next.len() <= MOST)
        {
            (requests, groups) = (requests + next.len(), groups + 1);
        }
        waiting.drain(..groups).collect()
    }

    async fn transact(&self, session: &mut Session, group: &Group) -> Result<Vec<SlotAnswer>, Error> {
        let requests: Vec<&SlotRequest> = group.iter().flat_map(|(requests, _)| requests).collect();
        let mut rows: BTreeMap<(&str, &str), Option<State>> =
            requests.iter().map(|request| ((&*request.throttle, &*request.key), None)).collect();
        let (names, keys): (Vec<&str>, Vec<&str>) = rows.keys().copied().unzip();
        let (lock, now) = (session.statement(LOCK).await?, session.statement(NOW).await?);
        let client = &session.client;
        let mut asked = Instant::now();
        let (begun, locked, told) =
            join3(client.batch_execute("BEGIN"), client.query(&lock, &[&names, &keys]), client.query_one(&now, &[]))
                .await;
        begun?;
        let (mut locked, mut told) = (locked?, told?);
        if locked.len() < rows.len() {
            let add = session.statement(ADD).await?;
            session.client.execute(&add, &[&names, &keys]).await?;
            locked = session.client.query(&lock, &[&names, &keys]).await?;
            asked = Instant::now();
            told = session.client.query_one(&now, &[]).await?;
        }
        // Locks may have been waited for in between.
        let read = (asked, Instant::now());
        let now: Micros = told.try_get(0)?;
        self.clock.observe(now);
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
            (serve(remembered, request, now, read), remembered.idle_at(&request.limits))
        });
        let answers: Vec<(SlotAnswer, Micros)> = answers.collect();
        let idle: BTreeMap<(&str, &str), Micros> = requests
            .iter()
            .zip(&answers)
            .map(|(request, (_, idle_at))| ((&*request.throttle, &*request.key), *idle_at))
            .collect();
        let texts: Vec<String> = rows.values().flatten().map(text).collect();
        let idle: Vec<Micros> = idle.into_values().collect();
        let write = session.statement(WRITE).await?;
        let (written, committed) = futures_util::future::join(
            session.client.execute(&write, &[&names, &keys, &texts, &idle]),
            session.client.batch_execute("COMMIT"),
        )
        .await;
        written?;
        committed?;
        Ok(answers.into_iter().map(|(answer, _)| answer).collect())
    }
}

#[async_trait]
impl Slots for PostgresLedger {
    async fn slots(&self, requests: Vec<SlotRequest>) -> Result<Vec<SlotAnswer>, LedgerError> {
        self.desk.ask(requests).await
    }

    async fn throttles(&self, limit: u32) -> Result<Vec<ThrottleRow>, LedgerError> {
        let sql = "SELECT name, key, state FROM (
                       SELECT *, row_number() OVER (PARTITION BY name ORDER BY key) AS place FROM throttles) placed
                   WHERE place <= $1 ORDER BY name, key";
        let read = |row: &Row| {
            let text: String = row.try_get(2)?;
            let state = serde_json::from_str(&text).unwrap_or_default();
            Ok(ThrottleRow { throttle: row.try_get(0)?, key: row.try_get(1)?, state })
        };
        let rows = self.reader.query(sql, &[&i64::from(limit)]).await?;
        rows.iter().map(read).collect::<Result<_, Error>>().map_err(|error| LedgerError::Statement(words(&error)))
    }

    async fn forget_idle(&self, limit: u32) -> Result<usize, LedgerError> {
        // Rows that somebody has locked are in use.
        let sql = "DELETE FROM throttles WHERE (name, key) IN (
                       SELECT name, key FROM throttles
                       WHERE idle_at <= floor(extract(epoch FROM clock_timestamp()) * 1000000)::int8
                       LIMIT $1 FOR UPDATE SKIP LOCKED)";
        let forgotten = self.reader.execute(sql, &[&i64::from(limit)]).await?;
        Ok(usize::try_from(forgotten).unwrap_or(usize::MAX))
    }
}
