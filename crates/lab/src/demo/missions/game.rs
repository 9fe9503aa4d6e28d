//! The game: it takes encounters and flushes as messages on channels, ends missions, and records every call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::{Mutex, MutexGuard};
use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_model::clock::{Clock, Entropy, Time};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::judge::Call;
use crate::demo::newest::Newest;

/// How long after the beginning the time of some missions is up.
const TIME_UP: Duration = Duration::from_secs(4);

pub struct Game {
    clock: Clock,
    entropy: Entropy,
    began: Time,
    /// The timeouts of encounters and of flushes: the deadline of a run minus its timeout is its start.
    timeouts: (Duration, Duration),
    /// Missions whose time is up before the others'.
    short: Vec<String>,
    seen: Mutex<Log>,
}

struct Log {
    calls: Newest<Call>,
    ended: BTreeSet<String>,
}

/// The run, as the handler names it, and its result.
#[derive(Deserialize)]
struct Run {
    epoch: i64,
    tick: i64,
    fence: i64,
    nominal: Time,
    deadline: Time,
    #[serde(default)]
    mission: Option<String>,
    #[serde(default)]
    result: Value,
}

impl Game {
    /// The record keeps at most `most` calls; with `None`, all.
    pub fn new(config: &Config, connections: &Connections, short: Vec<String>, most: Option<usize>) -> Arc<Self> {
        let Connections { clock, entropy, .. } = connections.clone();
        let kinds: BTreeMap<&str, Duration> =
            config.kinds.iter().map(|(name, kind)| (name.as_str(), kind.timeout)).collect();
        let timeout = |kind: &str| kinds.get(kind).copied().unwrap_or_default();
        let timeouts = (timeout("mission"), timeout("flush-channel"));
        let seen = Mutex::new(Log { calls: Newest::new(most), ended: BTreeSet::new() });
        Arc::new(Self { began: clock.now(), clock, entropy, timeouts, short, seen })
    }

    pub fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/channels/{channel}/encounters", post(message))
            .route("/channels/{channel}/flushes", post(message))
            .route("/end-missions", post(end))
            .with_state(self)
    }

    /// The calls, and how many earlier ones are not kept any more.
    pub fn calls(&self) -> (Vec<Call>, u64) {
        let seen = self.seen();
        (seen.calls.snapshot(), seen.calls.left_out())
    }

    fn seen(&self) -> MutexGuard<'_, Log> {
        self.seen.lock()
    }

    /// Records that a call has begun; answers its ticket, and whether its mission is over.
    fn begins(&self, channel: String, run: Run) -> (u64, bool) {
        let Run { epoch, tick, fence, nominal, deadline, mission, result } = run;
        let timeout = if mission.is_some() { self.timeouts.0 } else { self.timeouts.1 };
        let mut seen = self.seen();
        let over = mission.as_ref().is_some_and(|mission| seen.ended.contains(mission));
        let ticket = seen.calls.push(Call {
            mission,
            channel,
            run: (epoch, tick),
            fence,
            nominal,
            started: deadline - timeout,
            began: self.clock.now(),
            ended: None,
            answered: false,
            result: result.to_string(),
            over,
        });
        (ticket, over)
    }
}

/// A call that runs: it ends when this is dropped, answered or not.
struct Playing {
    game: Arc<Game>,
    ticket: u64,
    answered: bool,
}

impl Drop for Playing {
    fn drop(&mut self) {
        let now = self.game.clock.now();
        if let Some(call) = self.game.seen().calls.get_mut(self.ticket) {
            (call.ended, call.answered) = (Some(now), self.answered);
        }
    }
}

async fn message(State(game): State<Arc<Game>>, Path(channel): Path<String>, Json(run): Json<Run>) -> Json<Value> {
    let (ticket, over) = game.begins(channel, run);
    let mut playing = Playing { game: game.clone(), ticket, answered: false };
    sleep(game.entropy.between(Duration::from_millis(40), Duration::from_millis(200))).await;
    playing.answered = true;
    Json(json!({ "over": over }))
}

async fn end(State(game): State<Arc<Game>>) -> Json<Value> {
    if game.clock.now() >= game.began + TIME_UP {
        game.seen().ended.extend(game.short.iter().cloned());
    }
    Json(json!({}))
}
