//! POSTs the job to a URL and takes the answer for the outcome.
//!
//! `target` makes the request's URL, `headers` its identity headers, `wire` its body, `signature` signs it, `reach`
//! says where it may lead and `client` sees to that, `status` turns the answer into an outcome, and `change` says whether
//! the entity is another than before. `docs/handlers.md` documents all of it.

mod advice;
mod change;
mod client;
mod freshness;
mod headers;
mod settings;
mod signature;
mod status;
mod target;

use std::error::Error;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::header::{
    AGE, CACHE_CONTROL, CONTENT_TYPE, DATE, ETAG, EXPIRES, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::{Client, Response};
use roundelay_model::clock::Clock;
use roundelay_model::egress::{Reach, Refused};
use roundelay_model::job::Job;
use roundelay_model::outcome::{Outcome, Yield};
use roundelay_model::reason::{Class, Reason, excerpt};
use roundelay_model::secret::Secret;

pub use self::client::{Clients, anywhere};
use self::freshness::Freshness;
use self::signature::Signer;
pub use self::status::{Reply, outcome_of};
use self::target::Target;
use super::answer::{self, KEPT};
use super::{Handler, no_more_files, out_of_files, wire};
use crate::compare::Compare;
use crate::context::Context;
pub use settings::HttpSettings;

/// Runs jobs by POSTing them.
#[derive(Debug)]
pub struct HttpHandler {
    client: Client,
    target: Target,
    /// Where calls may lead, besides the names that the client looks up.
    reach: Reach,
    /// The host stands in the configuration, whatever the job.
    named: bool,
    signer: Signer,
    clock: Clock,
    compare: Compare,
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
    /// A secret to sign with is none.
    #[error("`sign`: {0}")]
    Sign(String),
    /// There is no HTTP client.
    #[error("no HTTP client: {0}")]
    Client(reqwest::Error),
}

/// Refuses what [`HttpHandler::new`] would refuse, short of having a client.
///
/// # Errors
/// [`HttpError`] when `settings` cannot work.
pub fn check(settings: &HttpSettings) -> Result<(), HttpError> {
    fixed_headers(settings, &signer(settings)?)?;
    target::check(settings.url.expose())
}

/// Whether the URL lets a job's own values choose path and parameters.
pub fn is_raw(settings: &HttpSettings) -> bool {
    target::is_raw_behind_host(settings.url.expose())
}

fn signer(settings: &HttpSettings) -> Result<Signer, HttpError> {
    Signer::new(settings.sign.iter().map(Secret::expose)).map_err(HttpError::Sign)
}

impl HttpHandler {
    /// A handler that sends with one of `clients` and reads deadlines by `clock`.
    ///
    /// # Errors
    /// [`HttpError`] when `settings` cannot work.
    pub fn new(settings: &HttpSettings, clients: &Clients, clock: Clock) -> Result<Self, HttpError> {
        let origin = target::origin(settings.url.expose());
        let reach = origin.iter().fold(settings.allow.clone(), Reach::naming);
        let (client, signer) = (clients.get(&reach)?, signer(settings)?);
        let target = Target::new(settings.url.expose(), &client, fixed_headers(settings, &signer)?)?;
        let (named, compare) = (origin.is_some(), settings.compare);
        Ok(Self { client, target, reach, named, signer, clock, compare, by_headers: false })
    }

    /// Lets `Cache-Control` and `Expires` of an answer say when the next tick is due, unless its body does.
    #[must_use]
    pub fn by_headers(mut self, by_headers: bool) -> Self {
        self.by_headers = by_headers;
        self
    }

    async fn call(&self, job: &Job, context: &Context) -> Outcome {
        let mut request = match self.target.request(&self.client, job) {
            Ok(request) => request,
            // The same job would have the same URL next time.
            Err(why) => return Outcome::fail(Reason::new(Class::Job, format!("no URL for this job: {why}"))),
        };
        if let Err(refused) = self.reach.check_address(request.url(), self.named) {
            return refuse(job, &refused);
        }
        headers::identify(request.headers_mut(), job, context.span());
        context.span().calls(request.url());
        let body = wire::encode(job, context.report_url());
        self.signer.sign(request.headers_mut(), &job.id, self.clock.wall(), &body);
        *request.body_mut() = Some(body.into());
        let mut response = match self.client.execute(request).await {
            Ok(response) => response,
            Err(error) => {
                let refused = client::refusal(&error).map(|refused| refuse(job, refused));
                let put_off = || {
                    let lacks = if error.is_connect() { out_of_files(&error) } else { None };
                    lacks.map(|error| no_more_files("cannot connect", &error))
                };
                return refused.or_else(put_off).unwrap_or_else(|| Outcome::retry(explain(&error)));
            }
        };
        context.span().answered(response.status().as_u16());
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
        let now = self.clock.wall();
        if let Some(advice) =
            advice::of(&reply, &|name| text_of(response.headers(), name), (job, context.throttle()), now)
        {
            context.note(advice);
        }
        let etag = response.headers().get(ETAG).map(HeaderValue::as_bytes);
        let outcome = change::compared(&reply, etag, self.compare, now);
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
    async fn run(&self, job: Job, context: Context) -> Outcome {
        let left = job.deadline.since(self.clock.wall());
        if left.is_zero() {
            return Outcome::retry(Reason::new(Class::Timeout, "the deadline had passed before the call"));
        }
        match tokio::time::timeout(left + job.grace, self.call(&job, &context)).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::retry(Reason::new(Class::Timeout, "no answer by the deadline")),
        }
    }
}

/// The same job would lead there next time. That has a name of its own, so that the configuration can say otherwise.
fn refuse(job: &Job, refused: &Refused) -> Outcome {
    let (kind, entry) = (&job.kind, refused.entry());
    let text = format!("not called: {refused}; if that is meant, add \"{entry}\" to kinds.{kind}.handler.http.allow");
    Outcome::fail(Reason::new(Class::Refused, text).coded("address_refused"))
}

/// GETs `url`, which stands in the configuration, and may lead to `allow`.
///
/// # Errors
/// Why there is no answer, in words without the URL.
pub async fn get(url: &str, allow: &Reach) -> Result<Response, String> {
    let refuse = |refused: &Refused| {
        format!("not called: {refused}; if that is meant, add \"{}\" to roster.allow", refused.entry())
    };
    let url = target::parse(url)?;
    allow.check_address(&url, true).map_err(|refused| refuse(&refused))?;
    let client = Clients::default().get(&allow.clone().naming(&url)).map_err(|error| error.to_string())?;
    let answer = client.get(url).send().await;
    answer.map_err(|error| client::refusal(&error).map_or_else(|| root(&error), refuse))
}

fn fixed_headers(settings: &HttpSettings, signer: &Signer) -> Result<HeaderMap, HttpError> {
    let mut headers = HeaderMap::with_capacity(settings.headers.len() + 1);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in &settings.headers {
        let wrong = |why: &str| HttpError::Header { name: name.clone(), why: why.into() };
        let header = HeaderName::try_from(name).map_err(|_| wrong("is not a header name"))?;
        if headers::reserved(&header) || signer.sets(&header) {
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
pub async fn read(response: &mut Response) -> Result<Bytes, reqwest::Error> {
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
pub fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        // Only an error of reqwest's own shows the URL.
        Some(_) => "the request could not be sent".into(),
        None => excerpt(cause.to_string().as_bytes(), answer::EXCERPT),
    }
}
