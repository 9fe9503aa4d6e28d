//! The exchanges: they answer every command, hang twice, and record every call.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::{Mutex, MutexGuard};
use roundelay_engine::Connections;
use roundelay_model::clock::{Clock, Entropy, Time};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::judge::Call;
use crate::demo::newest::{Newest, repeated};

/// The calls that hang, by command and number: one of a gated command, and one of another.
const HANGS: [(&str, usize); 2] = [("create-positions", 10), ("sync-orders", 20)];
const SYMBOLS: [&str; 6] = ["BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT", "ADAUSDT", "LINKUSDT"];

pub struct Exchanges {
    clock: Clock,
    entropy: Entropy,
    seen: Mutex<Log>,
}

struct Log {
    calls: Newest<Call>,
    /// How many calls the commands that hang have had, including those that are not kept any more.
    begun: [usize; HANGS.len()],
}

impl Log {
    /// Counts a call; answers whether it hangs.
    fn hangs(&mut self, command: &str) -> bool {
        let Some(place) = HANGS.iter().position(|(hangs, _)| *hangs == command) else { return false };
        self.begun[place] += 1;
        self.begun[place] == HANGS[place].1 + 1
    }
}

/// The run, as the handler names it.
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
    /// The record keeps `most` calls; with `None`, all.
    pub fn new(connections: &Connections, most: Option<usize>) -> Arc<Self> {
        let Connections { clock, entropy, .. } = connections.clone();
        let seen = Log { calls: Newest::new(most), begun: [0; HANGS.len()] };
        Arc::new(Self { clock, entropy, seen: Mutex::new(seen) })
    }

    pub fn router(self: Arc<Self>) -> Router {
        Router::new().route("/{command}/{key}", post(answer)).with_state(self)
    }

    /// Calls of the table's commands; calls for single symbols belong to the members of batches.
    pub fn calls(&self) -> Vec<Call> {
        self.seen().calls.iter().filter(|call| call.command != "refresh-symbol").cloned().collect()
    }

    /// How many times a tick was called again.
    pub fn forked(&self) -> u64 {
        repeated(self.seen().calls.iter().map(|call| call.run))
    }

    /// How many calls are not kept any more, and when the oldest kept one came.
    pub fn left_out(&self) -> (u64, Option<Time>) {
        let seen = self.seen();
        (seen.calls.left_out(), seen.calls.iter().next().map(|call| call.began))
    }

    fn seen(&self) -> MutexGuard<'_, Log> {
        self.seen.lock()
    }

    /// Records that a call has begun; answers its ticket, and whether it hangs.
    fn begins(&self, command: &str, key: &str, run: &Run) -> (u64, bool) {
        let mut seen = self.seen();
        let ticket = seen.calls.push(Call {
            command: command.into(),
            key: key.into(),
            run: (run.epoch, run.tick),
            nominal: run.nominal,
            deadline: run.deadline,
            began: self.clock.now(),
            ended: None,
            answered: false,
        });
        (ticket, seen.hangs(command))
    }
}

/// A call that runs: it ends when this is dropped, answered or not.
struct Running {
    exchanges: Arc<Exchanges>,
    ticket: u64,
    answered: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let now = self.exchanges.clock.now();
        if let Some(call) = self.exchanges.seen().calls.get_mut(self.ticket) {
            (call.ended, call.answered) = (Some(now), self.answered);
        }
    }
}

async fn answer(
    State(exchanges): State<Arc<Exchanges>>,
    Path((command, key)): Path<(String, String)>,
    Json(run): Json<Run>,
) -> Json<Value> {
    let (ticket, hangs) = exchanges.begins(&command, &key, &run);
    let mut running = Running { exchanges: exchanges.clone(), ticket, answered: false };
    if hangs {
        std::future::pending::<()>().await;
    }
    sleep(exchanges.entropy.between(Duration::from_millis(3), Duration::from_millis(12))).await;
    running.answered = true;
    Json(if command == "refresh-exchange-symbols" { json!({ "symbols": SYMBOLS }) } else { json!({}) })
}
