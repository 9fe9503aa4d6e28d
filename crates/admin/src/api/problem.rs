//! The error answers of endpoints: RFC 9457, `application/problem+json`.

use std::time::Duration;

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use roundelay_ledger::LedgerError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::operate::OperateError;

/// The content type of all errors.
pub const CONTENT: &str = "application/problem+json";
/// After how long a client may ask again when ledger or broker are unavailable.
const AWAY: Duration = Duration::from_secs(5);

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// The sort of the problem, for programs: `about:blank#` and a word.
    #[serde(rename = "type")]
    #[schema(example = "about:blank#conflict")]
    pub kind: String,
    /// The sort of the problem, for people.
    #[schema(example = "Conflict")]
    pub title: String,
    /// The HTTP status.
    #[schema(example = 409)]
    pub status: u16,
    /// What is wrong, where, and what to do.
    pub detail: String,
    /// After how long the client may ask again.
    #[serde(skip)]
    retry_after: Option<Duration>,
    /// The methods that the path has, for the header `Allow`.
    #[serde(skip)]
    allow: Option<String>,
}

pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    /// A problem with any status; `word` names the sort.
    pub fn new(status: StatusCode, word: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("about:blank#{word}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            retry_after: None,
            allow: None,
        }
    }

    /// 400: the request cannot be read.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// 401: the actor is unknown.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    /// 403: the actor does not have the scope.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// 404: nothing has this name.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// 405: the path has no such method.
    pub fn method_not_allowed(allow: String) -> Self {
        let detail = format!("this path has no such method; it has {allow}");
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail);
        Self { allow: Some(allow), ..problem }
    }

    /// 409: the state does not allow the change.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    /// 413: the body is too large.
    pub fn too_large(most: usize) -> Self {
        let detail = format!("the body is larger than the {most} bytes that are read here; send less at a time");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    }

    /// 422: the request can be read, but makes no sense.
    pub fn unprocessable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable", detail)
    }

    /// 429: the client has sent too many requests.
    pub fn too_many(detail: impl Into<String>, retry_after: Duration) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many", detail).retry_after(retry_after)
    }

    /// 500: a fault of this program.
    pub fn broken() -> Self {
        let detail = "this is a fault of the server; its log says more, with the id of this request (x-request-id)";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "broken", detail)
    }

    /// 503: ledger or broker are unavailable. The client gets `what`; only the log gets `why`.
    pub fn away(what: &str, why: &dyn std::fmt::Display) -> Self {
        tracing::warn!(%why, "{what} cannot be used");
        let detail = format!(
            "{what} cannot be used just now; the server's log says why, with the id of this request (x-request-id); \
             ask again"
        );
        Self::away_because(detail)
    }

    /// 503, with a reason that the client may know.
    pub fn away_because(why: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "away", why).retry_after(AWAY)
    }

    /// Says after how long the client may ask again.
    #[must_use]
    pub fn retry_after(self, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..self }
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::NoWorker(_) => Self::not_found(error.to_string()),
            error => Self::away("the ledger", &error),
        }
    }
}

impl From<OperateError> for Problem {
    fn from(error: OperateError) -> Self {
        match error {
            OperateError::Unknown(why) => Self::not_found(why),
            OperateError::Bad(why) => Self::unprocessable(why),
            OperateError::Refused(why) => Self::conflict(why),
            OperateError::Ledger(error) => error.into(),
            OperateError::Broker(error) => Self::away("the broker", &error),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, [(CONTENT_TYPE, CONTENT)], body).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            // Rounded up, so that the client does not ask too early.
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_millis().div_ceil(1_000).max(1) as u64));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::try_from(allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"roundelay\""));
        }
        response
    }
}
