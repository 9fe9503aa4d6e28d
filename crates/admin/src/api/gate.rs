//! What every request to the API goes through, in this order, before an endpoint sees it:
//!
//! 1. it comes from no page of another site (whatever changes something),
//! 2. path and method are in the table of endpoints,
//! 3. its body is JSON (whatever changes something),
//! 4. it is known who asks, and they may,
//! 5. the body is there, in time, and not too large,
//! 6. it was not asked before, as far as it has a key,
//! 7. it is in the audit (whatever changes something).
//!
//! What changes something then goes on to its end, whether or not the client still waits.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use roundelay_ledger::access::{Begun, Hash, KeptAnswer, KeyedRequest, NewAuditEntry};
use roundelay_net::listen::host::Host;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{interval_at, timeout};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::actor::{Actor, Authenticator};
use super::problem::{Problem, Result};
use super::site::{self, Site};
use crate::api::detail::{Detail, RequestKey};
use crate::api::rules::{Needs, Rules};
use crate::api::state::Api;

/// How long a request with a key is held without a word of its server.
const LEASE: Duration = Duration::from_secs(30);
/// The longest key of a request, in characters.
pub(super) const LONGEST_KEY: usize = 128;
/// The audit keeps bodies of up to this many bytes.
const MOST_DETAIL: usize = 2_048;
/// Likewise, of the values of a path's parameters.
const MOST_TARGET: usize = 2_048;
/// Larger answers are not kept.
const MOST_KEPT: usize = 256 << 10;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// From which address a request comes.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub IpAddr);

/// What stands before the endpoints.
pub struct Gate {
    /// What they share.
    pub api: Arc<Api>,
    /// What each needs.
    pub rules: Rules,
    /// By which names this server is called.
    pub site: Site,
    /// Who asks.
    pub authenticator: Authenticator,
    /// How long a body may take.
    pub patience: Duration,
    /// What goes on without its client.
    pub tasks: TaskTracker,
}

/// Lets a request pass, or refuses it.
pub async fn pass(
    State(gate): State<Arc<Gate>>,
    path: MatchedPath,
    parameters: std::result::Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let parameters = match parameters {
        Ok(parameters) => parameters,
        Err(error) => return Problem::bad_request(error.body_text()).into_response(),
    };
    let target: Vec<String> = parameters.iter().map(|(_, value)| printable(value)).collect();
    let target = cut(&target.join(" "), MOST_TARGET).to_owned();
    let answer = match *request.method() {
        Method::GET | Method::HEAD => gate.read(path.as_str(), request, next).await,
        _ => gate.change(path.as_str(), target, request, next).await,
    };
    answer.unwrap_or_else(Problem::into_response)
}

impl Gate {
    /// A request that changes nothing.
    async fn read(&self, path: &str, mut request: Request, next: Next) -> Result<Response> {
        // Some answers cost something, and no other page has any business here.
        let host = request.extensions().get::<Host>().ok_or_else(Problem::broken)?;
        self.site.same_origin(host, request.headers())?;
        let needs = self.rules.find(request.method(), path)?;
        let actor = self.authenticate(client(&request)?, request.headers()).await?;
        allow(&actor, needs)?;
        request.extensions_mut().insert(actor);
        request.extensions_mut().insert(RequestKey(None));
        Ok(next.run(request).await)
    }

    /// A request that changes something.
    async fn change(&self, path: &str, target: String, request: Request, next: Next) -> Result<Response> {
        let host = request.extensions().get::<Host>().ok_or_else(Problem::broken)?;
        self.site.same_origin(host, request.headers())?;
        let needs = self.rules.find(request.method(), path)?;
        site::is_json(request.headers())?;
        let actor = self.authenticate(client(&request)?, request.headers()).await?;

        let entry = NewAuditEntry {
            actor: actor.label(),
            scope: actor.scope,
            action: format!("{} {path}", request.method()),
            target,
            detail: Value::Null.to_string(),
            status: None,
        };
        let (parts, body) = request.into_parts();
        let taken = async {
            allow(&actor, needs)?;
            let key = key(&parts.headers)?;
            Ok((key, self.take(body, needs.body).await?))
        };
        let taken: Result<(Option<String>, Bytes)> = taken.await;
        // From here on it goes on without the client, or one who leaves would leave half of it.
        let api = self.api.clone();
        let (key, body) = match taken {
            Ok(taken) => taken,
            Err(problem) => {
                if problem.status != StatusCode::UNAUTHORIZED.as_u16() {
                    let noted = note_refused(api, entry, problem.clone()).in_current_span();
                    let _ = self.tasks.spawn(noted).await;
                }
                return Err(problem);
            }
        };
        let change = Change { api, actor, entry, parts, key, body, needs };
        self.tasks.spawn(change.make(next).in_current_span()).await.map_err(|_| Problem::broken())?
    }

    async fn authenticate(&self, Client(address): Client, headers: &HeaderMap) -> Result<Actor> {
        let authenticated = self.authenticator.authenticate(headers, address, self.api.ledger()).await?;
        if let Some(id) = authenticated.note_use {
            let api = self.api.clone();
            self.tasks.spawn(async move {
                if let Err(error) = api.ledger().token_used(id).await {
                    tracing::debug!(%error, "when a token was last used could not be noted");
                }
            });
        }
        Ok(authenticated.actor)
    }

    /// The whole of a body.
    async fn take(&self, body: Body, most: usize) -> Result<Bytes> {
        // Said beforehand, it need not be waited for.
        let told = body.size_hint().lower();
        if told > most as u64 {
            return Err(Problem::too_large(most));
        }
        match timeout(self.patience, Limited::new(body, most).collect()).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::too_large(most)),
            Ok(Err(error)) => Err(Problem::bad_request(format!("the body cannot be read: {error}"))),
            Err(_) => {
                let detail = format!("the body was not there within {:?}", self.patience);
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail))
            }
        }
    }
}

async fn note_refused(api: Arc<Api>, entry: NewAuditEntry, problem: Problem) {
    let detail = json!({ "refused": problem.detail }).to_string();
    let entry = NewAuditEntry { status: Some(problem.status), detail, ..entry };
    if let Err(error) = api.ledger().begin_audit(entry).await {
        tracing::warn!(%error, "that a change was refused could not be written to the audit");
    }
}

/// A change that may be made.
struct Change {
    api: Arc<Api>,
    actor: Actor,
    entry: NewAuditEntry,
    parts: Parts,
    /// The request's own.
    key: Option<String>,
    body: Bytes,
    needs: Needs,
}

impl Change {
    /// Makes it, unless it was made before.
    async fn make(mut self, next: Next) -> Result<Response> {
        let (mut held, mut request_key) = (None, None);
        if let Some(key) = self.key {
            let holder = self.actor.holder();
            request_key = Some(hash(&[holder.as_bytes(), key.as_bytes()]));
            let asked = self.parts.uri.path_and_query().map_or("", |asked| asked.as_str());
            let fingerprint = hash(&[self.parts.method.as_str().as_bytes(), asked.as_bytes(), &self.body]);
            let request = KeyedRequest { actor: holder, key, fingerprint };
            match self.api.ledger().begin_request(request, LEASE).await? {
                Begun::New(number) => held = Some(number),
                begun => return replay(begun),
            }
        }
        let detail = if self.needs.private { json!({ "bytes": self.body.len() }) } else { detail(&self.body) };
        let entry = NewAuditEntry { detail: detail.to_string(), ..self.entry };
        let number = match self.api.ledger().begin_audit(entry).await {
            Ok(number) => number,
            // Nothing is changed of which nobody would know.
            Err(error) => {
                end(&self.api, held, None).await;
                return Err(error.into());
            }
        };
        tracing::info!(actor = self.actor.label(), number, "a change was asked for");
        self.parts.extensions.insert(self.actor);
        self.parts.extensions.insert(RequestKey(request_key));
        let work = Work { api: self.api, number, held, secret: self.needs.secret };
        Ok(work.run(Request::from_parts(self.parts, Body::from(self.body)), next).await)
    }
}

/// A change that is under way.
struct Work {
    api: Arc<Api>,
    /// Its entry in the audit.
    number: i64,
    /// The request with a key that is held for it.
    held: Option<i64>,
    /// Its answer must not be kept.
    secret: bool,
}

impl Work {
    async fn run(self, request: Request, next: Next) -> Response {
        let answered = tokio::select! {
            answered = AssertUnwindSafe(next.run(request)).catch_unwind() => answered,
            never = self.keep_holding() => never,
        };
        let response = answered.unwrap_or_else(|_| Problem::broken().into_response());
        let (mut parts, body) = response.into_parts();
        let (status, detail) = (parts.status, parts.extensions.remove::<Detail>());
        // What endpoints answer to a change is no stream, and there already.
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let detail = detail.map(|Detail(detail)| detail.to_string());
        if let Err(error) = self.api.ledger().end_audit(self.number, status.as_u16(), detail).await {
            tracing::error!(%error, number = self.number, %status, "how a change ended could not be written to the audit");
        }
        // What failed through no fault of the request may be tried again.
        let kept = (!status.is_server_error()).then(|| KeptAnswer {
            status: status.as_u16(),
            content_type: parts.headers.get(CONTENT_TYPE).and_then(|of| of.to_str().ok()).unwrap_or_default().into(),
            body: (!(self.secret && status.is_success()) && body.len() <= MOST_KEPT).then(|| body.to_vec()),
        });
        end(&self.api, self.held, kept).await;
        tracing::info!(number = self.number, %status, "a change was answered");
        Response::from_parts(parts, Body::from(body))
    }

    /// Keeps the request held, for ever.
    async fn keep_holding<T>(&self) -> T {
        if let Some(held) = self.held {
            let every = LEASE / 3;
            let mut beat = interval_at(tokio::time::Instant::now() + every, every);
            loop {
                beat.tick().await;
                if let Err(error) = self.api.ledger().renew_request(held, LEASE).await {
                    tracing::warn!(%error, "a request could not be held any longer");
                }
            }
        }
        std::future::pending().await
    }
}

async fn end(api: &Api, held: Option<i64>, answer: Option<KeptAnswer>) {
    if let Some(held) = held
        && let Err(error) = api.ledger().end_request(held, answer).await
    {
        tracing::warn!(%error, "the answer to a request could not be kept; asked again, it is done again");
    }
}

fn client(request: &Request) -> Result<Client> {
    request.extensions().get().copied().ok_or_else(Problem::broken)
}

/// Whether the actor may (pure).
fn allow(actor: &Actor, needs: Needs) -> Result<()> {
    if actor.scope >= needs.scope {
        return Ok(());
    }
    let (has, needs) = (actor.scope, needs.scope);
    if actor.is_anonymous() {
        return Err(Problem::unauthorized(format!(
            "this needs a token with the scope `{needs}`: `Authorization: Bearer rl_…`; `roundelay token create` makes one"
        )));
    }
    Err(Problem::forbidden(format!("this needs the scope `{needs}`, and the token {} has `{has}`", actor.name())))
}

/// The key of a request.
fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let fits =
        |key: &&str| !key.is_empty() && key.len() <= LONGEST_KEY && key.bytes().all(|byte| byte.is_ascii_graphic());
    match (value.to_str().ok().filter(fits), values.next()) {
        (Some(key), None) => Ok(Some(key.to_owned())),
        _ => Err(Problem::bad_request(format!(
            "the header Idempotency-Key is one text of 1 to {LONGEST_KEY} visible ASCII characters, such as a UUID"
        ))),
    }
}

/// A hash of all parts, in which none can pass for a piece of another.
fn hash(parts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// What the audit keeps of a body.
fn detail(body: &[u8]) -> Value {
    if body.len() > MOST_DETAIL {
        return json!({ "bytes": body.len() });
    }
    serde_json::from_slice(body).unwrap_or_default()
}

/// Text that no database and no terminal stumbles over.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// The beginning of a text, of at most so many bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The answer to a request that is not begun.
fn replay(begun: Begun) -> Result<Response> {
    match begun {
        Begun::New(_) => Err(Problem::broken()),
        Begun::Running => {
            let detail = "the same request, with this Idempotency-Key, is being worked on; ask again for its answer";
            Err(Problem::conflict(detail).retry_after(Duration::from_secs(1)))
        }
        Begun::Other => Err(Problem::unprocessable(
            "this Idempotency-Key was used for another request; each request needs one of its own",
        )),
        Begun::Answered(KeptAnswer { status, body: None, .. }) => Err(Problem::conflict(format!(
            "this was done before, and answered with {status}; the answer had a secret or was very large, so it was \
             not kept"
        ))),
        Begun::Answered(KeptAnswer { status, content_type, body: Some(body) }) => {
            let status = StatusCode::from_u16(status).map_err(|_| Problem::broken())?;
            let mut response = (status, body).into_response();
            let headers = response.headers_mut();
            headers.remove(CONTENT_TYPE);
            if let Ok(content_type) = HeaderValue::try_from(content_type) {
                headers.insert(CONTENT_TYPE, content_type);
            }
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
            Ok(response)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_short_visible_and_one() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            key(&headers)
        };
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["6f1e"]).unwrap().as_deref(), Some("6f1e"));
        for odd in [&[""] as &[&str], &["a b"], &["ü"], &["a", "a"], &[&"a".repeat(129)]] {
            assert_eq!(read(odd).unwrap_err().status, 400, "{odd:?}");
        }
    }

    #[test]
    fn no_part_passes_for_a_piece_of_another() {
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
        assert_ne!(hash(&[b"ab"]), hash(&[b"ab", b""]));
        assert_eq!(hash(&[b"ab", b"c"]), hash(&[b"ab", b"c"]));
    }

    #[test]
    fn the_audit_keeps_what_is_small_and_printable() {
        assert_eq!(detail(b"{\"a\": [1]}"), json!({ "a": [1] }));
        assert_eq!(detail(b""), Value::Null);
        assert_eq!(detail(&[b'1'; MOST_DETAIL + 1]), json!({ "bytes": MOST_DETAIL + 1 }));
        assert_eq!(printable("a\u{0}\r\nb\u{1b}[1m"), "a\u{fffd}\u{fffd}\u{fffd}b\u{fffd}[1m");
        assert_eq!(cut("aü", 2), "a");
    }
}
