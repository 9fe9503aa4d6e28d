//! Two app stores: they know apps and charts, have no listing of some apps in some countries, fail now and then, and
//! record every call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::{Mutex, MutexGuard};
use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_model::clock::{Clock, Entropy, Time};
use roundelay_model::job::seed;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::judge::{Call, Job, What};
use crate::demo::newest::{Newest, repeated};
use crate::demo::stage::PREFIX;

/// Of this many pairs of app and country, one is without listing.
const UNAVAILABLE: u64 = 6;
/// Of this many listings, one is answered with 503.
const BROKEN: usize = 40;
/// How long a store that is down keeps its callers waiting before it answers.
const HANGS: Duration = Duration::from_millis(1_500);
/// How many apps of the charts are in no roster.
const UNKNOWN: u64 = 4;

pub struct Stores {
    clock: Clock,
    entropy: Entropy,
    /// The timeouts by kind: the deadline of a run minus its timeout is its start.
    timeouts: BTreeMap<String, Duration>,
    seen: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    calls: Newest<Call>,
    listings: usize,
    down: Option<&'static str>,
}

/// The job, as the handler names it.
#[derive(Deserialize)]
struct JobInfo {
    id: String,
    attempt: u32,
    kind: String,
    queue: String,
    #[serde(default)]
    class: String,
    part: bool,
    nominal: Time,
    deadline: Time,
}

impl Stores {
    /// The record keeps `most` calls; with `None`, all.
    pub fn new(config: &Config, connections: &Connections, most: Option<usize>) -> Arc<Self> {
        let Connections { clock, entropy, .. } = connections.clone();
        let timeouts = config.kinds.iter().map(|(name, kind)| (name.clone(), kind.timeout)).collect();
        let seen = Log { calls: Newest::new(most), ..Log::default() };
        Arc::new(Self { clock, entropy, timeouts, seen: Mutex::new(seen) })
    }

    pub fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/apps/{store}/{app}/{phase}", post(phase))
            .route("/apps/{store}/{app}/listings/{country}", post(listing))
            .route("/charts/{store}/{country}/{chart}", post(chart))
            .with_state(self)
    }

    /// From now on this store is down; with `None`, both are up.
    pub fn down(&self, store: Option<&'static str>) {
        self.seen().down = store;
    }

    /// The calls, in the order in which they came.
    pub fn calls(&self) -> Vec<Call> {
        self.seen().calls.snapshot()
    }

    /// How many calls are not kept any more.
    pub fn left_out(&self) -> u64 {
        self.seen().calls.left_out()
    }

    /// How many times an attempt made the same request again.
    pub fn forked(&self) -> u64 {
        let seen = self.seen();
        repeated(seen.calls.iter().map(|Call { job, app, what, .. }| (&job.id, job.attempt, app, what)))
    }

    fn seen(&self) -> MutexGuard<'_, Log> {
        self.seen.lock()
    }

    async fn answers(self: Arc<Self>, store: String, app: String, what: What, about: JobInfo) -> StatusCode {
        let timeout = self.timeouts.get(&about.kind).copied().unwrap_or_default();
        let JobInfo { id, attempt, kind, queue, class, part, nominal, deadline } = about;
        let queue = queue.trim_start_matches(PREFIX).to_owned();
        let class = if matches!(what, What::Chart(_)) { String::new() } else { class };
        let job = Job { id, attempt, kind, queue, class, part, nominal, started: deadline - timeout };
        let missing = match &what {
            What::Listing(country) => seed("unavailable", &app, country).is_multiple_of(UNAVAILABLE),
            What::Phase(_) | What::Chart(_) => false,
        };
        let (ticket, down, broken) = {
            let mut seen = self.seen();
            let now = self.clock.now();
            let listing = matches!(what, What::Listing(_));
            seen.listings += usize::from(listing);
            let broken = listing && seen.listings.is_multiple_of(BROKEN);
            let down = seen.down.is_some_and(|down| down == store);
            let ticket = seen.calls.push(Call { store, app, what, job, began: now, ended: now, status: 0 });
            (ticket, down, broken)
        };
        let mut asked = RunningCall { stores: self.clone(), ticket, status: 0 };
        sleep(if down { HANGS } else { self.entropy.between(Duration::from_millis(5), Duration::from_millis(25)) })
            .await;
        let status = match (down || broken, missing) {
            (true, _) => StatusCode::SERVICE_UNAVAILABLE,
            (false, true) => StatusCode::NOT_FOUND,
            (false, false) => StatusCode::OK,
        };
        asked.status = status.as_u16();
        status
    }
}

/// A call that runs: it ends when this is dropped, answered or not.
struct RunningCall {
    stores: Arc<Stores>,
    ticket: u64,
    status: u16,
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let now = self.stores.clock.now();
        if let Some(call) = self.stores.seen().calls.get_mut(self.ticket) {
            (call.ended, call.status) = (now, self.status);
        }
    }
}

type Gate = State<Arc<Stores>>;

async fn phase(
    State(stores): Gate,
    Path((store, app, phase)): Path<(String, String, String)>,
    Json(about): Json<JobInfo>,
) -> StatusCode {
    stores.answers(store, app, What::Phase(phase), about).await
}

async fn listing(
    State(stores): Gate,
    Path((store, app, country)): Path<(String, String, String)>,
    Json(about): Json<JobInfo>,
) -> StatusCode {
    stores.answers(store, app, What::Listing(country), about).await
}

async fn chart(
    State(stores): Gate,
    Path((store, country, chart)): Path<(String, String, String)>,
    Json(about): Json<JobInfo>,
) -> (StatusCode, Json<Value>) {
    let name = format!("{country}/{chart}");
    // Each chart has one app that is in no roster, the same each time.
    let app = format!("new-{}", seed("chart", &country, &chart) % UNKNOWN);
    let status = stores.answers(store, String::new(), What::Chart(name), about).await;
    (status, Json(json!({ "apps": [app] })))
}
