//! A connection for what is one statement by itself: queries, and the few verbs that are rare or
//! concern very many chains at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::connect::{Address, Session, Use, ends_session, words};
use crate::error::LedgerError;
use crate::traffic::Counters;

pub(super) type Result<T, E = LedgerError> = std::result::Result<T, E>;

/// How long a query may take before its connection counts as lost. The server ends it earlier.
const QUERY: Duration = Duration::from_secs(12);
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// A connection that several use at once, and that is opened again when it has ended.
pub(super) struct Reader {
    address: Address,
    counters: Arc<Counters>,
    state: Mutex<State>,
}

struct State {
    session: Option<Arc<Session>>,
    /// What the last attempt to connect came to, and until when that stands.
    away: Option<(Instant, LedgerError)>,
}

impl Reader {
    /// Connects.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub(super) async fn open(address: &Address, counters: Arc<Counters>) -> Result<Self, LedgerError> {
        let session = Some(Arc::new(address.connect(Use::Read).await?));
        Ok(Self { address: address.clone(), counters, state: Mutex::new(State { session, away: None }) })
    }

    /// Another to the same server, which connects when it is first asked.
    pub(super) fn again(&self) -> Self {
        let state = Mutex::new(State { session: None, away: None });
        Self { address: self.address.clone(), counters: self.counters.clone(), state }
    }

    /// Asks, and once more on a new connection if the first one is lost.
    pub(super) async fn query(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LedgerError> {
        self.counters.read();
        let mut last = String::new();
        for _ in 0..2 {
            let session = self.session().await?;
            let work = async {
                let statement = session.statement(sql).await?;
                session.client.query(&statement, parameters).await
            };
            let waiting = session.wait();
            let answer = timeout(QUERY, work).await;
            waiting.end();
            last = match answer {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) if !ends_session(&error) => return Err(LedgerError::Statement(words(&error))),
                Ok(Err(error)) => words(&error),
                Err(_) => "it has not answered in time".into(),
            };
            self.give_up(&session).await;
        }
        Err(LedgerError::Statement(last))
    }

    /// The rows of a query, each as `read` reads it.
    pub(super) async fn rows<T>(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
        read: impl Fn(&Row) -> Result<T, Error>,
    ) -> Result<Vec<T>> {
        let told = |error: Error| LedgerError::Statement(words(&error));
        self.query(sql, parameters).await?.iter().map(read).collect::<Result<_, _>>().map_err(told)
    }

    /// Does something in one statement; answers how many rows it concerned. Not tried again.
    pub(super) async fn execute(
        &self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, LedgerError> {
        let session = self.session().await?;
        let work = async {
            let statement = session.statement(sql).await?;
            session.client.execute(&statement, parameters).await
        };
        let waiting = session.wait();
        let answer = timeout(QUERY, work).await;
        waiting.end();
        let error = match answer {
            Ok(Ok(rows)) => {
                self.counters.wrote(false);
                return Ok(rows);
            }
            Ok(Err(error)) if !ends_session(&error) => return Err(LedgerError::Statement(words(&error))),
            Ok(Err(error)) => words(&error),
            Err(_) => "it has not answered in time".into(),
        };
        self.give_up(&session).await;
        Err(LedgerError::Statement(format!(
            "the connection was lost, and whether it was written is not known: {error}"
        )))
    }

    /// The connection; a new one when the last was lost. One caller opens it, and the others wait
    /// for that one and take what came of it.
    async fn session(&self) -> Result<Arc<Session>, LedgerError> {
        let mut state = self.state.lock().await;
        if let Some(session) = state.session.as_ref().filter(|session| session.is_open()) {
            return Ok(session.clone());
        }
        state.session = None;
        if let Some((until, error)) = &state.away
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        match self.address.connect(Use::Read).await {
            Ok(session) => {
                let session = Arc::new(session);
                (state.session, state.away) = (Some(session.clone()), None);
                Ok(session)
            }
            Err(error) => {
                state.away = Some((Instant::now() + PAUSE, error.clone()));
                Err(error)
            }
        }
    }

    /// Takes `session` out of use, unless another has taken its place already.
    async fn give_up(&self, session: &Arc<Session>) {
        let mut state = self.state.lock().await;
        if state.session.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            state.session = None;
        }
    }
}
