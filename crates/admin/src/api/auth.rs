//! The checks that a request to the API passes, in this order, before an endpoint sees it:
//!
//! 1. no page of another site has sent it (if the request changes something),
//! 2. path and method are in the table of endpoints,
//! 3. its body is JSON (if the request changes something),
//! 4. the actor is known and has the scope,
//! 5. the body has arrived, in time, and is not too large,
//! 6. a request with the same idempotency key has not come before,
//! 7. it is in the audit (if the request changes something).
//!
//! After these checks a change runs to its end, also if the client leaves.

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
use super::origin::{self, Site};
use super::problem::{Problem, Result};
use crate::api::detail::{Detail, RequestKey};
use crate::api::rules::{Needs, Rules};
use crate::api::state::Api;

/// How long the lease on an idempotency key lasts if its server does not renew it.
const LEASE: Duration = Duration::from_secs(30);
/// The longest idempotency key, in characters.
pub(super) const MAX_KEY_CHARS: usize = 128;
/// How many bytes of a body the audit keeps.
const MAX_DETAIL_BYTES: usize = 2_048;
/// How many bytes of a path's parameters the audit keeps.
const MAX_TARGET_BYTES: usize = 2_048;
/// The largest answer that is kept for its idempotency key, in bytes.
const MAX_KEPT_BYTES: usize = 256 << 10;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The address from which a request comes.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub IpAddr);

/// The gate before the endpoints.
pub struct Gate {
    pub api: Arc<Api>,
    /// What each endpoint needs.
    pub rules: Rules,
    /// The names of this server.
    pub site: Site,
    pub authenticator: Authenticator,
    /// How long a body may take to arrive.
    pub patience: Duration,
    /// Tasks that continue when their client has left.
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
    let target = cut(&target.join(" "), MAX_TARGET_BYTES).to_owned();
    let answer = match *request.method() {
        Method::GET | Method::HEAD => gate.read(path.as_str(), request, next).await,
        _ => gate.change(path.as_str(), target, request, next).await,
    };
    answer.unwrap_or_else(Problem::into_response)
}

impl Gate {
    /// A request that changes nothing.
    async fn read(&self, path: &str, mut request: Request, next: Next) -> Result<Response> {
        // Some answers are expensive, and no page of another site needs them.
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
        origin::is_json(request.headers())?;
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
        // From here on the request runs without its client: a client that leaves must not leave half a change.
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

    /// Reads a whole body.
    async fn take(&self, body: Body, most: usize) -> Result<Bytes> {
        // A body that announces too large a size is refused before it arrives.
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

/// A change that the actor may make.
struct Change {
    api: Arc<Api>,
    actor: Actor,
    entry: NewAuditEntry,
    parts: Parts,
    /// The idempotency key, if the request has one.
    key: Option<String>,
    body: Bytes,
    needs: Needs,
}

impl Change {
    /// Makes the change, unless it was made before.
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
            // A change that the audit cannot record is not made.
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

/// A change that runs.
struct Work {
    api: Arc<Api>,
    /// The number of its entry in the audit.
    number: i64,
    /// The id of the idempotency key's row whose lease this change holds.
    held: Option<i64>,
    /// Whether the answer has a secret, so that it must not be kept.
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
        // The answer to a change is never a stream, so the whole body is there already.
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let detail = detail.map(|Detail(detail)| detail.to_string());
        if let Err(error) = self.api.ledger().end_audit(self.number, status.as_u16(), detail).await {
            tracing::error!(%error, number = self.number, %status, "how a change ended could not be written to the audit");
        }
        // A server error is no fault of the request, so the client may try again.
        let kept = (!status.is_server_error()).then(|| KeptAnswer {
            status: status.as_u16(),
            content_type: parts.headers.get(CONTENT_TYPE).and_then(|of| of.to_str().ok()).unwrap_or_default().into(),
            body: (!(self.secret && status.is_success()) && body.len() <= MAX_KEPT_BYTES).then(|| body.to_vec()),
        });
        end(&self.api, self.held, kept).await;
        tracing::info!(number = self.number, %status, "a change was answered");
        Response::from_parts(parts, Body::from(body))
    }

    /// Renews the lease on the idempotency key, without end.
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

/// Whether the actor has the scope (pure).
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

/// The idempotency key of a request.
fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let fits =
        |key: &&str| !key.is_empty() && key.len() <= MAX_KEY_CHARS && key.bytes().all(|byte| byte.is_ascii_graphic());
    match (value.to_str().ok().filter(fits), values.next()) {
        (Some(key), None) => Ok(Some(key.to_owned())),
        _ => Err(Problem::bad_request(format!(
            "the header Idempotency-Key is one text of 1 to {MAX_KEY_CHARS} visible ASCII characters, such as a UUID"
        ))),
    }
}

/// A hash of all parts. Each part has its length, so that no two lists of parts give the same bytes.
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
    if body.len() > MAX_DETAIL_BYTES {
        return json!({ "bytes": body.len() });
    }
    serde_json::from_slice(body).unwrap_or_default()
}

/// Text without characters that a database refuses or a terminal interprets.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// The beginning of a text, of at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The answer to a request whose key is known already.
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
        assert_eq!(detail(&[b'1'; MAX_DETAIL_BYTES + 1]), json!({ "bytes": MAX_DETAIL_BYTES + 1 }));
        assert_eq!(printable("a\u{0}\r\nb\u{1b}[1m"), "a\u{fffd}\u{fffd}\u{fffd}b\u{fffd}[1m");
        assert_eq!(cut("aü", 2), "a");
    }
}
