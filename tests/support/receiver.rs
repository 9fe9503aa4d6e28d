//! Whom throttled workers call: an HTTP server on a thread of its own, which writes down when each call has come
//! in and answers as it was told to. It knows nothing of throttles.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::{Mutex, MutexGuard};
use roundelay::clock::Clock;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// How often it looks whether it is held up itself.
const BEAT: Duration = Duration::from_millis(5);

/// A call as it came in. Times are counted from the receiver's start, by a clock that is never set.
#[derive(Clone, Debug)]
pub struct Call {
    pub at: Duration,
    /// When it was answered; none as long as it is not, or if its caller has gone before.
    pub answered: Option<Duration>,
    /// The status it was answered with.
    pub status: u16,
    /// The process that called, such as `w2-5`: the fifth life of worker 2.
    pub worker: String,
    pub kind: String,
    pub queue: String,
    pub key: String,
    pub id: String,
    /// The payload's field of that name.
    pub channel: String,
    /// How long after its nominal time it came, by the machine's clock, in milliseconds.
    pub late: i64,
}

/// What to answer.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// How long the work takes.
    pub after: Duration,
    pub status: u16,
    /// In seconds.
    pub retry_after: Option<u64>,
}

impl Reply {
    /// The call worked, after this time.
    pub fn ok(after: Duration) -> Self {
        Self { after, status: 200, retry_after: None }
    }
}

/// Decides what to answer, when a call has come in.
pub type Script = Arc<dyn Fn(&Call) -> Reply + Send + Sync>;

/// The server and what it has seen.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    desk: Desk,
}

#[derive(Clone)]
struct Desk {
    began: Instant,
    log: Arc<Mutex<Log>>,
    script: Script,
}

#[derive(Default)]
struct Log {
    calls: Vec<Call>,
    /// The longest that the receiver itself was held up: its times are right by so much.
    stall: Duration,
}

impl Desk {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

impl Receiver {
    /// Starts it on a free port.
    pub fn start(script: Script) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let desk = Desk { began: Instant::now(), log: Arc::default(), script };
        let its = desk.clone();
        std::thread::Builder::new().name("receiver".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("the listener is of this thread");
                tokio::spawn(beat(its.clone()));
                axum::serve(listener, Router::new().route("/", post(receive)).with_state(its)).await
            })
        })?;
        Ok(Self { address, desk })
    }

    /// What its clock shows.
    pub fn now(&self) -> Duration {
        self.desk.began.elapsed()
    }

    /// All calls so far, in the order in which they came.
    pub fn calls(&self) -> Vec<Call> {
        self.desk.log().calls.clone()
    }

    /// How many calls there are for which this is true.
    pub fn count(&self, which: impl Fn(&Call) -> bool) -> usize {
        self.desk.log().calls.iter().filter(|call| which(call)).count()
    }

    /// The longest that it was held up itself so far.
    pub fn stall(&self) -> Duration {
        self.desk.log().stall
    }
}

async fn beat(desk: Desk) {
    loop {
        let since = Instant::now();
        sleep(BEAT).await;
        let stall = since.elapsed().saturating_sub(BEAT);
        let mut log = desk.log();
        log.stall = log.stall.max(stall);
    }
}

async fn receive(State(desk): State<Desk>, headers: HeaderMap, Json(job): Json<Value>) -> Response {
    let at = desk.began.elapsed();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("?").to_owned();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let call = Call {
        at,
        answered: None,
        status: 0,
        worker: header("x-worker"),
        kind: text(&job["kind"]),
        queue: text(&job["queue"]),
        key: text(&job["key"]),
        id: text(&job["id"]),
        channel: text(&job["payload"]["channel"]),
        late: Clock::System.now().as_millis() - job["nominal"].as_i64().unwrap_or_default(),
    };
    let reply = (desk.script)(&call);
    let place = {
        let mut log = desk.log();
        log.calls.push(call);
        log.calls.len() - 1
    };
    sleep(reply.after).await; // The work.
    {
        let mut log = desk.log();
        log.calls[place].answered = Some(desk.began.elapsed());
        log.calls[place].status = reply.status;
    }
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::OK);
    match reply.retry_after {
        Some(seconds) => (status, [(header::RETRY_AFTER, seconds.to_string())]).into_response(),
        None => status.into_response(),
    }
}
