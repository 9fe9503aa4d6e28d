//! Brings spans to a collector, over HTTP. A run never waits for the collector: what there is no room for is
//! dropped, and counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use roundelay_config::TracingSettings;
use roundelay_config::tracing::header;
use roundelay_handler::http;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::otlp;
use super::span::{Attribute, Span};
use crate::telemetry::{Count, Telemetry};

/// Spans that wait at most: some 5 MB.
const MAX_WAITING: usize = 8_192;
/// Spans of one request.
const BATCH: usize = 512;
/// How long spans wait for others, if a request is not full.
const EVERY: Duration = Duration::from_secs(1);
/// How long a collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a batch is sent that the collector does not take.
const TRIES: u32 = 5;
/// The pauses between that grow from one second to this, and a collector cannot ask for a longer one.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How long a worker that stops waits for what is still to be sent.
const FLUSH: Duration = Duration::from_secs(5);

/// Where spans are put that have ended.
#[derive(Debug)]
pub struct Outlet {
    waiting: Mutex<VecDeque<Span>>,
    /// There are enough for a request.
    full: Notify,
    telemetry: Arc<Telemetry>,
}

impl Outlet {
    /// With nothing in it.
    pub fn new(telemetry: Arc<Telemetry>) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), full: Notify::new(), telemetry })
    }

    /// Puts in those that there is room for.
    pub fn push(&self, mut spans: Vec<Span>) {
        let mut waiting = self.waiting();
        let room = MAX_WAITING - waiting.len();
        let over = spans.len().saturating_sub(room);
        spans.truncate(room);
        waiting.extend(spans);
        let full = waiting.len() >= BATCH;
        drop(waiting);
        self.dropped(over as u64);
        if full {
            self.full.notify_one();
        }
    }

    /// The next to be sent.
    fn take(&self) -> Vec<Span> {
        let mut waiting = self.waiting();
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    fn dropped(&self, spans: u64) {
        self.telemetry.add(Count::SpansDropped, spans);
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.waiting.lock()
    }
}

/// What sends the spans of an [`Outlet`], while it lives.
pub struct Exporter {
    task: AbortOnDropHandle<()>,
    finish: CancellationToken,
}

impl Exporter {
    /// Begins to send to the collector of `settings`, if they name one. `resource` is what sends.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn start(settings: &TracingSettings, outlet: Arc<Outlet>, resource: Vec<Attribute>) -> Result<Self, String> {
        let otlp = settings.otlp.as_ref().ok_or("no collector is configured")?;
        let (url, shown) = (url_of(otlp.expose()), url_of(&otlp.to_string()));
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let (name, mut value) = header(name, value.expose())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let client = http::anywhere().map_err(|error| error.to_string())?;
        let finish = CancellationToken::new();
        let line = Line { client, url, shown, headers, resource, outlet, finish: finish.clone(), away: false };
        Ok(Self { task: AbortOnDropHandle::new(tokio::spawn(line.run())), finish })
    }

    /// Sends what there is, in a bounded time, and nothing more.
    pub async fn finish(self) {
        self.finish.cancel();
        if timeout(FLUSH, self.task).await.is_err() {
            tracing::warn!("the collector of traces did not take the last spans within {FLUSH:?}; they are lost");
        }
    }
}

/// Where traces go, below a collector's base URL.
fn url_of(base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with("/v1/traces") { base.to_owned() } else { format!("{base}/v1/traces") }
}

/// What becomes of a batch that was sent.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    /// The collector has it, but for so many of its spans, and says this.
    Taken(u64, String),
    /// It may take it later: not before this time has passed, if it says so.
    Later(String, Option<Duration>),
    /// It will never take it.
    Never(String),
}

/// The way to the collector.
struct Line {
    client: Client,
    url: String,
    /// The URL without what is secret.
    shown: String,
    headers: HeaderMap,
    resource: Vec<Attribute>,
    outlet: Arc<Outlet>,
    finish: CancellationToken,
    /// It has not taken the last batch, and the log says so.
    away: bool,
}

impl Line {
    async fn run(mut self) {
        loop {
            let last = tokio::select! {
                biased;
                () = self.finish.cancelled() => true,
                () = self.outlet.full.notified() => false,
                () = sleep(EVERY) => false,
            };
            loop {
                let batch = self.outlet.take();
                if batch.is_empty() {
                    break;
                }
                self.deliver(&batch).await;
            }
            if last {
                return;
            }
        }
    }

    /// Sends a batch until it is taken, or it is clear that it will not be.
    async fn deliver(&mut self, batch: &[Span]) {
        let count = batch.len() as u64;
        let body = bytes::Bytes::from(otlp::encode(&self.resource, batch));
        let mut pause = Duration::from_secs(1);
        for tries in 1..=TRIES {
            let (why, wait) = match self.send(body.clone()).await {
                Sent::Taken(refused, why) => {
                    let refused = refused.min(count);
                    self.outlet.telemetry.add(Count::SpansSent, count - refused);
                    self.outlet.dropped(refused);
                    if refused > 0 {
                        self.say(&format!("it refused {refused} of {count} spans: {why}"));
                    } else if std::mem::take(&mut self.away) {
                        tracing::info!(collector = self.shown, "the collector of traces takes spans again");
                    }
                    return;
                }
                Sent::Later(why, wait) => (why, wait),
                Sent::Never(why) => {
                    self.say(&why);
                    break;
                }
            };
            self.say(&why);
            // A worker that stops has no time for another try.
            if tries == TRIES || self.finish.is_cancelled() {
                break;
            }
            tokio::select! {
                biased;
                () = self.finish.cancelled() => {}
                () = sleep(wait.unwrap_or(pause).min(MAX_PAUSE)) => {}
            }
            pause *= 2;
        }
        self.outlet.dropped(count);
    }

    async fn send(&self, body: bytes::Bytes) -> Sent {
        let request = self.client.post(&self.url).headers(self.headers.clone()).timeout(PATIENCE).body(body);
        match request.send().await {
            Ok(response) => self.read(response).await,
            Err(error) => Sent::Later(http::root(&error), None),
        }
    }

    async fn read(&self, mut response: Response) -> Sent {
        let (status, after) = (response.status(), response.headers().get(RETRY_AFTER).cloned());
        let body = http::read(&mut response).await.unwrap_or_default();
        judge(status, after.as_ref().and_then(|after| after.to_str().ok()), &body)
    }

    /// Tells the first time that the collector does not take what it should.
    fn say(&mut self, why: &str) {
        if !std::mem::replace(&mut self.away, true) {
            tracing::warn!(
                collector = self.shown,
                why,
                "the collector of traces does not take spans; those that there is no room for are dropped, and \
                 counted in roundelay_spans_dropped_total"
            );
        }
    }
}

/// What an answer means, as OTLP has it (pure).
fn judge(status: StatusCode, retry_after: Option<&str>, body: &[u8]) -> Sent {
    let why = || format!("it answers {status}");
    match status.as_u16() {
        200..=299 => {
            let (refused, why) = otlp::refused(body);
            Sent::Taken(refused, why)
        }
        429 | 502 | 503 | 504 => {
            Sent::Later(why(), retry_after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs))
        }
        _ => Sent::Never(why()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::span::Role;
    use roundelay_model::trace_context::Context;

    fn spans(count: usize) -> Vec<Span> {
        let context = Context { trace: 1, span: 1, flags: 1, state: None };
        let span = Span {
            context,
            parent: 0,
            name: "claim".into(),
            role: Role::Internal,
            start: 0,
            end: 0,
            attributes: Vec::new(),
            link: None,
            failed: false,
        };
        vec![span; count]
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped_and_counted() {
        let telemetry = Arc::<Telemetry>::default();
        let outlet = Outlet::new(telemetry.clone());
        outlet.push(spans(MAX_WAITING - 1));
        outlet.push(spans(3));
        assert_eq!(telemetry.get(Count::SpansDropped), 2);
        assert_eq!(outlet.take().len(), BATCH);
        outlet.push(spans(BATCH));
        assert_eq!(telemetry.get(Count::SpansDropped), 2, "there is room again");
        let taken = std::iter::repeat_with(|| outlet.take().len()).take_while(|count| *count > 0).sum::<usize>();
        assert_eq!(taken, MAX_WAITING);
    }

    #[test]
    fn a_table_of_answers() {
        let later = |status: &str, seconds: Option<u64>| {
            Sent::Later(format!("it answers {status}"), seconds.map(Duration::from_secs))
        };
        let table = [
            (200, None, &b""[..], Sent::Taken(0, String::new())),
            // Field 1, four bytes: of them field 1 is 3, and field 2 has no text.
            (200, None, b"\x0a\x02\x08\x03", Sent::Taken(3, String::new())),
            (204, None, b"", Sent::Taken(0, String::new())),
            (429, Some("7"), b"", later("429 Too Many Requests", Some(7))),
            (503, Some("tomorrow"), b"", later("503 Service Unavailable", None)),
            (502, None, b"", later("502 Bad Gateway", None)),
            (500, None, b"", Sent::Never("it answers 500 Internal Server Error".into())),
            (401, Some("7"), b"", Sent::Never("it answers 401 Unauthorized".into())),
            (302, None, b"", Sent::Never("it answers 302 Found".into())),
        ];
        for (status, after, body, expected) in table {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(judge(status, after, body), expected, "{status}");
        }
    }

    #[test]
    fn traces_go_below_the_base() {
        for base in ["http://h:4318", "http://h:4318/", "http://h:4318/v1/traces"] {
            assert_eq!(url_of(base), "http://h:4318/v1/traces");
        }
        assert_eq!(url_of("https://h/otlp"), "https://h/otlp/v1/traces");
    }
}
