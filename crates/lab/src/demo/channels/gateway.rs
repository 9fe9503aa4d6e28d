//! Mailboxes, inboxes and nodes: they have messages, and record who fetches which.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::{Mutex, MutexGuard};
use roundelay_engine::Connections;
use roundelay_model::clock::{Clock, Entropy, Time};
use serde::Deserialize;
use tokio::time::sleep;

use super::judge::{Message, Session};
use crate::demo::newest::{Newest, repeated};

/// The first mailbox is so full that no run reaches its end.
pub const FULL: &str = "pop3/post@shop.example";
/// How many messages wait in any other mailbox at first.
const WAITING: u64 = 3;
/// The time between two new messages.
const ARRIVES: Duration = Duration::from_millis(700);

pub struct Gateway {
    clock: Clock,
    entropy: Entropy,
    began: Time,
    seen: Mutex<Log>,
}

struct Log {
    sessions: Newest<Session>,
    messages: Newest<Message>,
    slow: Option<Duration>,
}

/// The run, as the handler names it.
#[derive(Deserialize)]
struct Run {
    epoch: i64,
    tick: i64,
    attempt: u32,
    nominal: Time,
    deadline: Time,
}

impl Gateway {
    /// The record keeps `most` sessions, and as many messages; with `None`, all.
    pub fn new(connections: &Connections, most: Option<usize>) -> Arc<Self> {
        let Connections { clock, entropy, .. } = connections.clone();
        let seen = Log { sessions: Newest::new(most), messages: Newest::new(most), slow: None };
        Arc::new(Self { began: clock.now(), clock, entropy, seen: Mutex::new(seen) })
    }

    pub fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/{service}/{id}/sessions", post(session))
            .route("/{service}/{id}/messages/{number}", post(message))
            .route("/{service}/{way}/{id}/sessions", post(session_of_node))
            .route("/{service}/{way}/{id}/messages/{number}", post(message_of_node))
            .with_state(self)
    }

    /// From now on each session takes this much longer to open.
    pub fn slow(&self, by: Option<Duration>) {
        self.seen().slow = by;
    }

    pub fn record(&self) -> (Vec<Session>, Vec<Message>) {
        let seen = self.seen();
        (seen.sessions.snapshot(), seen.messages.snapshot())
    }

    /// How many sessions are not kept any more, and how many messages.
    pub fn left_out(&self) -> (u64, u64) {
        let seen = self.seen();
        (seen.sessions.left_out(), seen.messages.left_out())
    }

    /// How many times an attempt began again.
    pub fn forked(&self) -> u64 {
        repeated(self.seen().sessions.iter().map(|session| (session.run, session.attempt)))
    }

    fn seen(&self) -> MutexGuard<'_, Log> {
        self.seen.lock()
    }

    async fn opens(&self, path: String, run: Run) -> StatusCode {
        let Run { epoch, tick, attempt, nominal, deadline } = run;
        let slow = {
            let mut seen = self.seen();
            let began = self.clock.now();
            seen.sessions.push(Session { path, run: (epoch, tick), attempt, nominal, deadline, began });
            seen.slow.unwrap_or_default()
        };
        sleep(slow + self.entropy.between(Duration::from_millis(10), Duration::from_millis(40))).await;
        StatusCode::OK
    }

    async fn fetches(&self, path: String, number: u64, run: Run) -> StatusCode {
        let began = self.clock.now();
        sleep(self.entropy.between(Duration::from_millis(8), Duration::from_millis(25))).await;
        let since = began.since(self.began).as_millis() / ARRIVES.as_millis();
        if path != FULL && number > WAITING + since as u64 {
            return StatusCode::NO_CONTENT;
        }
        let Run { epoch, tick, deadline, .. } = run;
        // A message counts as fetched when it is sent: a caller that disconnects before has fetched nothing.
        self.seen().messages.push(Message { path, run: (epoch, tick), deadline, number, began });
        StatusCode::OK
    }
}

type Gate = State<Arc<Gateway>>;

async fn session(
    State(gateway): Gate,
    Path((service, id)): Path<(String, String)>,
    Json(run): Json<Run>,
) -> StatusCode {
    gateway.opens(format!("{service}/{id}"), run).await
}

async fn session_of_node(
    State(gateway): Gate,
    Path((service, way, id)): Path<(String, String, String)>,
    Json(run): Json<Run>,
) -> StatusCode {
    gateway.opens(format!("{service}/{way}/{id}"), run).await
}

async fn message(
    State(gateway): Gate,
    Path((service, id, number)): Path<(String, String, u64)>,
    Json(run): Json<Run>,
) -> StatusCode {
    gateway.fetches(format!("{service}/{id}"), number, run).await
}

async fn message_of_node(
    State(gateway): Gate,
    Path((service, way, id, number)): Path<(String, String, String, u64)>,
    Json(run): Json<Run>,
) -> StatusCode {
    gateway.fetches(format!("{service}/{way}/{id}"), number, run).await
}
