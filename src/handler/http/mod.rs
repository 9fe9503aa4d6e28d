//! POSTs the job to a URL and takes the answer for the outcome.
//!
//! `target` makes the request's URL, `headers` its identity headers, `wire` its body,
//! and `status` turns the answer into an outcome. `docs/handlers.md` documents all of it.

mod advice;
mod freshness;
mod headers;
mod status;
mod target;

use std::error::Error;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::header::{
    AGE, CACHE_CONTROL, CONTENT_TYPE, DATE, EXPIRES, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::{Client, ClientBuilder, Response, redirect};

use self::freshness::Freshness;
pub use self::status::{Reply, outcome_of};
use self::target::Target;
use super::answer::{self, KEPT};
use super::{Handler, wire};
use crate::clock::Clock;
use crate::config::HttpSettings;
use crate::job::Job;
use crate::outcome::{Outcome, Yield};
use crate::reason::{Class, Reason};

/// Runs jobs by POSTing them.
#[derive(Debug)]
pub struct HttpHandler {
    client: Client,
    target: Target,
    clock: Clock,
    /// Whether an answer's headers say when to come again.
    by_headers: bool,
}

/// Why a handler cannot be set up; phrased to follow "failed to set up the HTTP handler: ".
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL is no template that can be rendered.
    #[error("`url` is not a valid template: {0}")]
    Template(String),
    /// The URL is constant, and wrong.
    #[error("`url`: {0}")]
    Url(String),
    /// A configured header cannot be sent.
    #[error("header `{name}`: {why}")]
    Header {
        /// The header's name as configured.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no HTTP client.
    #[error("no HTTP client: {0}")]
    Client(reqwest::Error),
}

/// The client that all handlers should share, so that they share its connections.
///
/// It follows no redirects (they would turn a POST into a GET), asks no system proxy and speaks
/// TLS through ring.
///
/// # Errors
/// [`HttpError::Client`].
pub fn client() -> Result<Client, HttpError> {
    // An error means that the program has installed a provider already, and that one serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    builder().build().or_else(|error| {
        // A small container has no certificates, and does not need them to call its neighbours.
        tracing::warn!(error = %root(&error), "no system certificates: calls to https URLs will fail");
        builder().tls_certs_only([]).build().map_err(HttpError::Client)
    })
}

fn builder() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .user_agent(concat!("roundelay/", env!("CARGO_PKG_VERSION")))
}

/// Refuses what [`HttpHandler::new`] would refuse, short of having a client.
///
/// # Errors
/// [`HttpError`] when `settings` cannot work.
pub fn check(settings: &HttpSettings) -> Result<(), HttpError> {
    fixed_headers(settings)?;
    target::check(settings.url.expose())
}

impl HttpHandler {
    /// A handler that sends with `client` (see [`client`]) and reads deadlines by `clock`.
    ///
    /// # Errors
    /// [`HttpError`] when `settings` cannot work.
    pub fn new(settings: &HttpSettings, client: Client, clock: Clock) -> Result<Self, HttpError> {
        let target = Target::new(settings.url.expose(), &client, fixed_headers(settings)?)?;
        Ok(Self { client, target, clock, by_headers: false })
    }

    /// Lets `Cache-Control` and `Expires` of an answer say when the next tick is due, unless its body does.
    #[must_use]
    pub fn by_headers(mut self, by_headers: bool) -> Self {
        self.by_headers = by_headers;
        self
    }

    async fn call(&self, job: &Job) -> Outcome {
        let mut request = match self.target.request(&self.client, job) {
            Ok(request) => request,
            // The same job would have the same URL next time.
            Err(why) => return Outcome::fail(Reason::new(Class::Job, format!("no URL for this job: {why}"))),
        };
        headers::identify(request.headers_mut(), job);
        *request.body_mut() = Some(wire::encode(job).into());
        let mut response = match self.client.execute(request).await {
            Ok(response) => response,
            Err(error) => return Outcome::retry(explain(&error)),
        };
        let body = match read(&mut response).await {
            Ok(body) => body,
            Err(error) => {
                let text = format!("the answer broke off: {}", root(&error));
                return Outcome::retry(Reason::new(Class::Transport, text));
            }
        };
        let text = |name: HeaderName| text_of(response.headers(), name.as_str());
        let reply =
            Reply { status: response.status(), retry_after: text(RETRY_AFTER), location: text(LOCATION), body: &body };
        let now = self.clock.now();
        if let Some(advice) = advice::of(&reply, &|name| text_of(response.headers(), name), job, now) {
            job.upstream.note(advice);
        }
        let outcome = outcome_of(&reply, now);
        if !self.by_headers {
            return outcome;
        }
        let headers =
            Freshness { cache_control: text(CACHE_CONTROL), age: text(AGE), expires: text(EXPIRES), date: text(DATE) };
        match (outcome, headers.lifetime()) {
            (Outcome::Done, Some(next_in)) => Outcome::DoneWith(Yield { next_in: Some(next_in), ..Yield::default() }),
            (Outcome::DoneWith(yields), Some(fresh)) => {
                Outcome::DoneWith(Yield { next_in: yields.next_in.or(Some(fresh)), ..yields })
            }
            (outcome, _) => outcome,
        }
    }
}

#[async_trait]
impl Handler for HttpHandler {
    async fn run(&self, job: Job) -> Outcome {
        let left = job.deadline.since(self.clock.now());
        if left.is_zero() {
            return Outcome::retry(Reason::new(Class::Timeout, "the deadline had passed before the call"));
        }
        match tokio::time::timeout(left + job.grace, self.call(&job)).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::retry(Reason::new(Class::Timeout, "no answer by the deadline")),
        }
    }
}

fn fixed_headers(settings: &HttpSettings) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::with_capacity(settings.headers.len() + 1);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in &settings.headers {
        let wrong = |why: &str| HttpError::Header { name: name.clone(), why: why.into() };
        let header = HeaderName::try_from(name).map_err(|_| wrong("is not a header name"))?;
        if headers::reserved(&header) {
            return Err(wrong("is set by the engine"));
        }
        let mut value =
            HeaderValue::try_from(value.expose()).map_err(|_| wrong("has a value with control characters"))?;
        // Such headers carry tokens more often than not: keep them out of debug output.
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// At most [`KEPT`] bytes of the body. The rest of a longer one is not read, at the price of its
/// connection.
async fn read(response: &mut Response) -> Result<Bytes, reqwest::Error> {
    let Some(mut first) = response.chunk().await? else { return Ok(Bytes::new()) };
    first.truncate(KEPT);
    let mut body = BytesMut::new();
    while body.len().max(first.len()) < KEPT {
        let Some(next) = response.chunk().await? else { break };
        // Nearly all bodies are one chunk, which is then not copied.
        if body.is_empty() {
            body.extend_from_slice(&first);
        }
        body.extend_from_slice(&next[..next.len().min(KEPT - body.len())]);
    }
    Ok(if body.is_empty() { first } else { body.freeze() })
}

/// Why a call got no answer, without its URL, which may hold credentials.
fn explain(error: &reqwest::Error) -> Reason {
    let host = error.url().and_then(|url| Some(format!(" to {}:{}", url.host_str()?, url.port_or_known_default()?)));
    let host = host.unwrap_or_default();
    let root = root(error);
    if error.is_connect() {
        Reason::new(Class::Connect, format!("cannot connect{host}: {root}"))
    } else {
        Reason::new(Class::Transport, format!("the call{host} failed: {root}"))
    }
}

/// The innermost cause: the only one that says more than that something went wrong.
fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        // Only an error of reqwest's own shows the URL.
        Some(_) => "the request could not be sent".into(),
        None => answer::excerpt(cause.to_string().as_bytes(), answer::EXCERPT),
    }
}
