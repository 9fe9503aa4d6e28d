//! The game's API: it answers for characters, forgives a number of errors, has a slow spell, and records every call.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use parking_lot::{Mutex, MutexGuard};
use roundelay_engine::Connections;
use roundelay_model::clock::{Clock, Entropy, Time};
use serde::Deserialize;
use tokio::time::sleep;

use super::judge::{BANNED, Call};
use crate::demo::newest::{Newest, repeated};

/// How many errors within [`WINDOW`] of the first are forgiven.
pub const FORGIVEN: u32 = 60;
/// The time after which errors are forgiven, from the first one on.
pub const WINDOW: Duration = Duration::from_secs(6);
/// In the slow spell, how many of ten requests fail.
const FAILING: usize = 5;

pub struct Esi {
    clock: Clock,
    entropy: Entropy,
    seen: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    calls: Newest<Call>,
    /// When the slow spell began, and when it ended.
    slow: Option<(Time, Option<Time>)>,
    /// The number of errors, and the time of the first.
    errors: (u32, Time),
    least: Option<u32>,
}

/// The run, as the handler names it.
#[derive(Deserialize)]
struct Run {
    update: Update,
    id: String,
    attempt: u32,
}

#[derive(Deserialize)]
struct Update {
    epoch: i64,
    tick: i64,
    nominal: Time,
}

impl Log {
    /// How many errors are left, and until when.
    fn left(&mut self, now: Time) -> (u32, Duration) {
        if self.errors.1 + WINDOW <= now {
            self.errors = (0, now);
        }
        let window = if self.errors.0 == 0 { WINDOW } else { (self.errors.1 + WINDOW).since(now) };
        (FORGIVEN.saturating_sub(self.errors.0), window)
    }

    fn fails(&mut self, now: Time) {
        self.left(now);
        if self.errors.0 == 0 {
            self.errors.1 = now;
        }
        self.errors.0 += 1;
        let left = FORGIVEN.saturating_sub(self.errors.0);
        self.least = Some(self.least.unwrap_or(left).min(left));
    }
}

impl Esi {
    /// The record keeps at most `most` calls; with `None`, all.
    pub fn new(connections: &Connections, most: Option<usize>) -> Arc<Self> {
        let Connections { clock, entropy, .. } = connections.clone();
        let seen = Mutex::new(Log { calls: Newest::new(most), ..Log::default() });
        Arc::new(Self { clock, entropy, seen })
    }

    pub fn router(self: Arc<Self>) -> Router {
        Router::new().route("/characters/{id}/{endpoint}", get(answer)).with_state(self)
    }

    /// Begins or ends the slow spell, in which the API is slow and fails.
    pub fn slow(&self, slow: bool) {
        let now = self.clock.now();
        let mut seen = self.seen();
        seen.slow = match seen.slow {
            Some((from, _)) if !slow => Some((from, Some(now))),
            spell => spell.or(slow.then_some((now, None))),
        };
    }

    /// When the slow spell began, and when it ended.
    pub fn slow_spell(&self) -> Option<(Time, Option<Time>)> {
        self.seen().slow
    }

    /// The requests, and how many earlier ones are not kept any more.
    pub fn calls(&self) -> (Vec<Call>, u64) {
        let seen = self.seen();
        (seen.calls.snapshot(), seen.calls.left_out())
    }

    /// The fewest errors that were ever left.
    pub fn least_left(&self) -> u32 {
        self.seen().least.unwrap_or(FORGIVEN)
    }

    /// A character of which a request runs: of several, one whose update has made the fewest requests, so that the
    /// update is not over before anything is done about it.
    pub fn busy(&self) -> Option<String> {
        let seen = self.seen();
        let made = |call: &&Call| seen.calls.iter().filter(|other| other.update == call.update).count();
        let running = seen.calls.iter().rev().filter(|call| call.ended.is_none());
        running.min_by_key(made).map(|call| call.character.clone())
    }

    /// How many times an attempt made the same request again.
    pub fn forked(&self) -> u64 {
        repeated(self.seen().calls.iter().map(|call| &call.job))
    }

    fn seen(&self) -> MutexGuard<'_, Log> {
        self.seen.lock()
    }

    /// Records that a request has begun; answers its ticket, whether no error is left, and whether the API is slow.
    fn begins(&self, character: String, endpoint: String, run: Run) -> (u64, bool, bool) {
        let Run { update: Update { epoch, tick, nominal }, id, attempt } = run;
        let now = self.clock.now();
        let mut seen = self.seen();
        let ticket = seen.calls.push(Call {
            character,
            endpoint,
            job: (id, attempt),
            update: (epoch, tick),
            nominal,
            began: now,
            ended: None,
            status: 0,
        });
        (ticket, seen.left(now).0 == 0, matches!(seen.slow, Some((_, None))))
    }
}

/// A request that runs: it ends when this is dropped, answered or not.
struct RunningCall {
    esi: Arc<Esi>,
    ticket: u64,
    status: u16,
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let now = self.esi.clock.now();
        if let Some(call) = self.esi.seen().calls.get_mut(self.ticket) {
            (call.ended, call.status) = (Some(now), self.status);
        }
    }
}

async fn answer(
    State(esi): State<Arc<Esi>>,
    Path((character, endpoint)): Path<(String, String)>,
    headers: HeaderMap,
) -> (StatusCode, [(&'static str, String); 2]) {
    let run = headers.get("x-run").and_then(|run| serde_json::from_slice::<Run>(run.as_bytes()).ok());
    let mut status = StatusCode::BAD_REQUEST;
    if let Some(run) = run {
        let (ticket, banned, slow) = esi.begins(character, endpoint, run);
        let mut asked = RunningCall { esi: esi.clone(), ticket, status: 0 };
        let (from, to) = if slow { (150, 350) } else { (20, 60) };
        let lasts = esi.entropy.between(Duration::from_millis(from), Duration::from_millis(to));
        sleep(if banned { Duration::ZERO } else { lasts }).await;
        status = match slow && esi.entropy.below(10) < FAILING {
            _ if banned => StatusCode::from_u16(BANNED).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
            true => StatusCode::BAD_GATEWAY,
            false => StatusCode::OK,
        };
        if !status.is_success() {
            esi.seen().fails(esi.clock.now());
        }
        asked.status = status.as_u16();
    }
    let (left, reset) = esi.seen().left(esi.clock.now());
    let reset = reset.as_millis().div_ceil(1_000);
    (status, [("X-ESI-Error-Limit-Remain", left.to_string()), ("X-ESI-Error-Limit-Reset", reset.to_string())])
}
