//! The exchanges: they answer every command, hang twice, and write down what came in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::judge::Call;
use crate::clock::{Clock, Entropy, Time};
use crate::engine::Connections;

/// The calls that nobody answers, of which command: one that is gated, and one that is not.
const HANGS: [(&str, usize); 2] = [("create-positions", 10), ("sync-orders", 20)];
const SYMBOLS: [&str; 6] = ["BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT", "ADAUSDT", "LINKUSDT"];

pub struct Exchanges {
    clock: Clock,
    entropy: Entropy,
    calls: Mutex<Vec<Call>>,
}

/// Which run the handler says that it is for.
#[derive(Deserialize)]
struct Run {
    #[serde(default)]
    epoch: i64,
    #[serde(default)]
    tick: i64,
    nominal: Time,
    deadline: Time,
}

impl Exchanges {
    pub fn new(connections: &Connections) -> Arc<Self> {
        let Connections { clock, entropy, .. } = connections.clone();
        Arc::new(Self { clock, entropy, calls: Mutex::default() })
    }

    pub fn router(self: Arc<Self>) -> Router {
        Router::new().route("/{command}/{key}", post(answer)).with_state(self)
    }

    /// Calls of the table's commands; those for single symbols are the batches' members.
    pub fn calls(&self) -> Vec<Call> {
        self.all().iter().filter(|call| call.command != "refresh-symbol").cloned().collect()
    }

    /// How often an occurrence was called again.
    pub fn forked(&self) -> u64 {
        let calls = self.all();
        let mut runs: Vec<_> = calls.iter().map(|call| call.run).collect();
        runs.sort();
        runs.dedup();
        (calls.len() - runs.len()) as u64
    }

    fn all(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down that a call has begun; answers with its place, and whether it is one that hangs.
    fn begins(&self, command: &str, key: &str, run: &Run) -> (usize, bool) {
        let mut calls = self.all();
        let before = calls.iter().filter(|call| call.command == command).count();
        calls.push(Call {
            command: command.into(),
            key: key.into(),
            run: (run.epoch, run.tick),
            nominal: run.nominal,
            deadline: run.deadline,
            began: self.clock.now(),
            ended: None,
            answered: false,
        });
        (calls.len() - 1, HANGS.contains(&(command, before)))
    }
}

/// A call in progress: it ends when this is dropped, answered or not.
struct Running {
    exchanges: Arc<Exchanges>,
    place: usize,
    answered: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let now = self.exchanges.clock.now();
        if let Some(call) = self.exchanges.all().get_mut(self.place) {
            (call.ended, call.answered) = (Some(now), self.answered);
        }
    }
}

async fn answer(
    State(exchanges): State<Arc<Exchanges>>,
    Path((command, key)): Path<(String, String)>,
    Json(run): Json<Run>,
) -> Json<Value> {
    let (place, hangs) = exchanges.begins(&command, &key, &run);
    let mut running = Running { exchanges: exchanges.clone(), place, answered: false };
    if hangs {
        std::future::pending::<()>().await;
    }
    sleep(exchanges.entropy.between(Duration::from_millis(3), Duration::from_millis(12))).await;
    running.answered = true;
    Json(if command == "refresh-exchange-symbols" { json!({ "symbols": SYMBOLS }) } else { json!({}) })
}
