//! An upstream with several platforms, which is also an independent judge.
//!
//! It answers the engine's HTTP handler the way a package registry does: versions, its own rate
//! limit, some latency, a few 404s and 500s. And it keeps its own record of who called when, so
//! that what the demo reports about the engine does not come from the engine. A call passes
//! `answer`; `judge` keeps the record, `platform` the limits and the counts.

mod judge;
mod platform;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use parking_lot::Mutex;
use roundelay_config::ChangeSettings;
use roundelay_model::clock::Entropy;
use roundelay_model::fresh::Entity;
use roundelay_model::ids::Epoch;
use roundelay_model::job::{MAX_BYTES, seed};
use roundelay_simulation::forecast::changes::{Changes, Quality};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::judge::{Judge, Occurrence};
pub use self::judge::{Offence, Verdict};
use self::platform::Platform;
pub use self::platform::{PlatformSettings, PlatformStats};

/// How an [`Upstream`] behaves.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    /// The platforms by name: the first segment of the path.
    pub platforms: BTreeMap<String, PlatformSettings>,
    /// How long a call that passes the rate limit takes, uniformly.
    pub latency: RangeInclusive<Duration>,
    /// The share of names that are always answered with 404.
    pub missing: f64,
    /// The share of calls that are answered with 500.
    pub broken: f64,
    /// How often packages have a new release; without it they have none.
    pub releases: Option<ChangeSettings>,
}

impl Default for UpstreamSettings {
    /// No platforms, 1 to 15 ms, one name and one call in a thousand.
    fn default() -> Self {
        Self {
            platforms: BTreeMap::new(),
            latency: Duration::from_millis(1)..=Duration::from_millis(15),
            missing: 0.001,
            broken: 0.001,
            releases: None,
        }
    }
}

/// A running upstream.
pub struct Upstream {
    url: String,
    shared: Arc<Shared>,
    server: JoinHandle<io::Result<()>>,
}

/// The releases of packages, by the epochs of their chains.
struct Releases {
    changes: Changes,
    /// How many were told.
    told: HashMap<i64, u32>,
}

impl Releases {
    /// Nothing is measured before [`Upstream::measure`].
    fn new(settings: ChangeSettings) -> Self {
        Self { changes: Changes::new(settings, 0.0, f64::INFINITY..f64::INFINITY), told: HashMap::new() }
    }
}

/// The record of an [`Upstream`] so far.
#[derive(Clone, Debug, Serialize)]
pub struct UpstreamStats {
    /// How long the upstream has been up.
    pub uptime: Duration,
    /// The platforms by name.
    pub platforms: BTreeMap<String, PlatformStats>,
    /// Calls that were not a job, or for an unknown platform.
    pub rejected: u64,
    /// The upstream's verdict on the engine.
    pub verdict: Verdict,
}

struct Shared {
    platforms: BTreeMap<String, Platform>,
    latency: RangeInclusive<Duration>,
    missing: f64,
    broken: f64,
    entropy: Entropy,
    judge: Judge,
    /// The releases of packages, since each was called for the first time.
    releases: Option<Mutex<Releases>>,
    rejected: std::sync::atomic::AtomicU64,
    started: Instant,
}

impl Upstream {
    /// Starts on a free port of 127.0.0.1, and answers until `stop` is cancelled; calls that run then are still
    /// answered.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub async fn start(settings: UpstreamSettings, entropy: Entropy, stop: CancellationToken) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let started = Instant::now();
        let shared = Arc::new(Shared {
            platforms: settings.platforms.into_iter().map(|(name, it)| (name, Platform::new(it))).collect(),
            latency: settings.latency,
            missing: settings.missing,
            broken: settings.broken,
            releases: settings.releases.map(|every| Mutex::new(Releases::new(every))),
            entropy,
            judge: Judge::default(),
            rejected: Default::default(),
            started,
        });
        let router = Router::new()
            .route("/{platform}", post(answer))
            .route("/{platform}/{*rest}", post(answer_below))
            // A job may be as large as a message.
            .layer(DefaultBodyLimit::max(2 * MAX_BYTES))
            .with_state(Arc::clone(&shared));
        let listener = listener.tap_io(|connection| {
            // Answers are small: without this option the kernel holds them back for more data, and they are only late.
            let _ = connection.set_nodelay(true);
        });
        let server = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        Ok(Self { url, shared, server: tokio::spawn(server.into_future()) })
    }

    /// The base URL, with no slash at the end; a job is POSTed to `<url>/<platform>`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The record so far.
    pub fn stats(&self) -> UpstreamStats {
        let shared = &self.shared;
        UpstreamStats {
            uptime: shared.started.elapsed(),
            platforms: shared.platforms.iter().map(|(name, platform)| (name.clone(), platform.stats())).collect(),
            rejected: shared.rejected.load(std::sync::atomic::Ordering::Relaxed),
            verdict: shared.judge.verdict(),
        }
    }

    /// How many times the entity `key` of `kind` has been called, and how long ago last.
    pub fn calls(&self, kind: &str, key: &str) -> Option<(u32, Duration)> {
        self.shared.judge.calls(kind, key)
    }

    /// What is known of packages counts from `from` until `until`.
    pub fn measure(&self, from: Instant, until: Instant) {
        let since = |at: Instant| at.saturating_duration_since(self.shared.started).as_secs_f64();
        self.shared.releases.iter().for_each(|releases| releases.lock().changes.measure(since(from)..since(until)));
    }

    /// How right what callers knew of the packages was in the measured time, which is over; and the packages, with
    /// intervals within `bounds`.
    pub fn known(&self, bounds: (Duration, Duration)) -> Option<(Quality, Vec<Entity>)> {
        let releases = self.shared.releases.as_ref()?.lock();
        Some((releases.changes.quality()?, releases.changes.known(bounds).collect()))
    }

    /// Waits until the upstream has stopped, and answers its final record.
    ///
    /// # Errors
    /// When the server has failed.
    pub async fn stopped(mut self) -> io::Result<UpstreamStats> {
        (&mut self.server).await.map_err(io::Error::other)??;
        Ok(self.stats())
    }
}

/// The part of a job that the upstream reads.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    chain: Option<Occurrence>,
    #[serde(borrow, default)]
    payload: Option<Package<'a>>,
}

#[derive(Deserialize)]
struct Package<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    /// What it is worth.
    #[serde(default)]
    weight: Option<f64>,
}

async fn answer_below(
    State(shared): State<Arc<Shared>>,
    Path((platform, _)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    shared.answer(&platform, &body).await
}

async fn answer(State(shared): State<Arc<Shared>>, Path(platform): Path<String>, body: Bytes) -> Response {
    shared.answer(&platform, &body).await
}

impl Shared {
    async fn answer(&self, name: &str, body: &[u8]) -> Response {
        let (Some(platform), Ok(call)) = (self.platforms.get(name), serde_json::from_slice::<Call>(body)) else {
            self.rejected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return (StatusCode::BAD_REQUEST, "not a job, or no such platform").into_response();
        };
        let running = self.judge.begins(&call.kind, &call.key, call.chain);
        if !platform.admit() {
            return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "1")]).into_response();
        }
        sleep(self.entropy.between(*self.latency.start(), *self.latency.end())).await;
        if self.entropy.unit() < self.broken {
            platform.count(StatusCode::INTERNAL_SERVER_ERROR);
            return (StatusCode::INTERNAL_SERVER_ERROR, "out of luck").into_response();
        }
        let release = self.release(&call);
        let package = call.payload.and_then(|package| package.name).unwrap_or(call.key);
        let version = platform.version(&package).filter(|_| !self.is_missing(name, &package));
        // Both are final: the occurrence is over, and must not be called again.
        running.finished();
        match version {
            None => {
                platform.count(StatusCode::NOT_FOUND);
                (StatusCode::NOT_FOUND, "no such package").into_response()
            }
            Some(version) => {
                platform.count(StatusCode::OK);
                axum::Json(Found { name: &package, version, release }).into_response()
            }
        }
    }

    /// The number of the package's last release that a caller is told of, from 0.
    fn release(&self, call: &Call<'_>) -> Option<u32> {
        let (mut releases, chain) = (self.releases.as_ref()?.lock(), call.chain?);
        let at = self.started.elapsed().as_secs_f64();
        let Releases { changes, told } = &mut *releases;
        let new = || {
            (
                seed("releases", &call.kind, &call.key),
                call.payload.as_ref().and_then(|package| package.weight).unwrap_or(1.0),
            )
        };
        let changed = changes.visit(Epoch(chain.epoch), at, &self.entropy, new) == Some(true);
        let told = told.entry(chain.epoch).or_default();
        *told += u32::from(changed);
        Some(*told)
    }

    /// Whether the name is always answered with 404: the same names each time, and on every machine.
    fn is_missing(&self, platform: &str, name: &str) -> bool {
        (seed("missing", platform, name) as f64) < self.missing * u64::MAX as f64
    }
}

#[derive(Serialize)]
struct Found<'a> {
    name: &'a str,
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<u32>,
}
