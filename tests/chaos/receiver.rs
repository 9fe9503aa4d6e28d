//! Who is called: an HTTP server on a thread of its own that appends what it saw to the log and
//! then takes its time. It knows nothing of the engine.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use parking_lot::Mutex;
use roundelay::clock::Time;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use super::log::{Call, Carry, Entry, Writer};

/// Decides how long a call takes, and what it is answered.
pub type Manner = fn(&Call) -> (Duration, StatusCode);

/// What the driver may ask the receiver while it runs; the judge reads the log instead.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    by_worker: HashMap<String, u64>,
    by_chain: HashMap<i64, u64>,
    once: HashMap<String, u64>,
}

impl Seen {
    /// Whether this process has called at least once.
    pub fn has_called(&self, worker: &str) -> bool {
        self.calls_of(worker) > 0
    }

    /// How often this process has called.
    pub fn calls_of(&self, worker: &str) -> u64 {
        self.counts().by_worker.get(worker).copied().unwrap_or(0)
    }

    /// How often each chain has been called so far, by epoch.
    pub fn by_chain(&self) -> HashMap<i64, u64> {
        self.counts().by_chain.clone()
    }

    /// Whether this one-off job has been called.
    pub fn has_run(&self, id: &str) -> bool {
        self.counts().once.contains_key(id)
    }

    fn note(&self, call: &Call) {
        let mut counts = self.counts();
        *counts.by_worker.entry(call.worker.clone()).or_default() += 1;
        match call.epoch {
            Some(epoch) => *counts.by_chain.entry(epoch).or_default() += 1,
            None => *counts.once.entry(call.id.clone()).or_default() += 1,
        }
    }

    fn counts(&self) -> parking_lot::MutexGuard<'_, Counts> {
        self.0.lock()
    }
}

/// Starts it on a free port. Runs of the kinds in `carries` pass on which runs were before them.
pub fn start(log: Writer, seen: Seen, manner: Manner, carries: &'static [&'static str]) -> std::io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let desk = Desk { log, seen, manner, carries, next: Arc::default() };
    std::thread::Builder::new().name("receiver".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("the listener is of this thread");
            let app = Router::new().route("/", post(receive)).with_state(desk);
            axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
        })
    })?;
    Ok(address)
}

fn moment(text: &str) -> Option<Time> {
    let since = humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok().map(Time::from_millis)
}

#[derive(Clone)]
struct Desk {
    log: Writer,
    seen: Seen,
    manner: Manner,
    carries: &'static [&'static str],
    next: Arc<AtomicU64>,
}

/// Writes the end of a call, also when the caller has gone and the call is dropped.
struct Ending<'a> {
    log: &'a Writer,
    call: u64,
    answered: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.log.write(Entry::End { call: self.call, answered: self.answered });
    }
}

async fn receive(
    State(desk): State<Desk>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str| text(name).and_then(|text| text.parse::<i64>().ok());
    let kind = text("roundelay-kind").unwrap_or("?").to_owned();
    let carry = desk.carries.contains(&&*kind).then(|| serde_json::from_slice(&body).unwrap_or_default());
    let call = Call {
        call: desk.next.fetch_add(1, Ordering::Relaxed),
        worker: text("x-worker").unwrap_or("?").to_owned(),
        kind,
        key: text("roundelay-key").unwrap_or("?").to_owned(),
        id: text("roundelay-id").unwrap_or("?").to_owned(),
        attempt: number("roundelay-attempt").and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        epoch: number("roundelay-epoch"),
        tick: number("roundelay-tick"),
        fence: number("roundelay-fence"),
        deadline: text("roundelay-deadline").and_then(moment),
        nominal: text("roundelay-nominal").and_then(moment),
        peer: peer.port(),
        carry: carry.and_then(|Passed { carry }| carry),
    };
    let passes_on = desk.carries.contains(&&*call.kind).then(|| call.carry.clone().unwrap_or_default());
    let answer = passes_on.zip(call.fence).map(|(carry, fence)| json!({ "carry": carry.with(fence) }).to_string());
    desk.seen.note(&call);
    let (length, status) = (desk.manner)(&call);
    let mut ending = Ending { log: &desk.log, call: call.call, answered: false };
    desk.log.write(Entry::Call(call));
    sleep(length).await; // The work.
    ending.answered = true;
    (status, answer.filter(|_| status == StatusCode::OK).unwrap_or_default())
}

/// What a body has of the run before.
#[derive(Default, Deserialize)]
struct Passed {
    carry: Option<Carry>,
}
