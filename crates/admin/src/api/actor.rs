//! The actor of a request: who sends it, and with which scope.

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use roundelay_ledger::Ledger;
use roundelay_ledger::access::{Token, USE_NOTED_EVERY};
use roundelay_model::clock::Time;
use roundelay_model::scope::Scope;

use super::auth_rate_limit::Failures;
use super::problem::{Problem, Result};
use crate::operate::token::{ANONYMOUS, hash};

/// Who sends a request. Endpoints take it as a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    who: Who,
    /// What the actor may do.
    pub scope: Scope,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    Anonymous(IpAddr),
    Token(i64, String),
}

impl Actor {
    /// The token's name, or `anonymous`.
    pub fn name(&self) -> &str {
        match &self.who {
            Who::Anonymous(_) => ANONYMOUS,
            Who::Token(_, name) => name,
        }
    }

    /// Whether the request had no token.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.who, Who::Anonymous(_))
    }

    /// The actor as audit and log name it: without a token, with the address. Orders have this as `by`.
    pub fn label(&self) -> String {
        match &self.who {
            Who::Anonymous(address) => format!("{ANONYMOUS}@{address}"),
            Who::Token(_, name) => name.clone(),
        }
    }

    /// The holder of the request's idempotency keys. A token's name alone is not enough: a later token may have the
    /// same name.
    pub(super) fn holder(&self) -> String {
        match &self.who {
            Who::Anonymous(_) => self.label(),
            Who::Token(id, _) => format!("token {id}"),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Actor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self> {
        // Only the gate sets the actor, and every request goes through the gate.
        parts.extensions.get().cloned().ok_or_else(Problem::broken)
    }
}

/// Finds out who sends a request.
pub struct Authenticator {
    /// What a request without a token may do.
    anonymous: Scope,
    failures: Failures,
}

/// The actor of a request, and the token whose use must be noted.
pub struct Authenticated {
    pub actor: Actor,
    /// The id of the token, if its last noted use is long ago.
    pub note_use: Option<i64>,
}

impl Authenticator {
    /// For a server where a request without a token may do `anonymous`.
    pub fn new(anonymous: Scope) -> Self {
        Self { anonymous, failures: Failures::default() }
    }

    /// Finds out who sends a request from this address.
    ///
    /// # Errors
    /// When the token is not valid, or the client has shown too many that are not.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
        ledger: &dyn Ledger,
    ) -> Result<Authenticated> {
        let Some(token) = bearer_token(headers)? else {
            let actor = Actor { who: Who::Anonymous(address), scope: self.anonymous };
            return Ok(Authenticated { actor, note_use: None });
        };
        let hash = hash(token);
        let counted = self.failures.begin(address, hash.as_ref()).map_err(|wait| {
            let detail = "too many tokens that are worth nothing came from this address, or this one too often; mend \
                          the program that sends them";
            Problem::too_many(detail, wait)
        })?;
        let take_back = || {
            if counted {
                self.failures.take_back(address, hash.as_ref());
            }
        };
        let found = match &hash {
            Some(hash) => ledger.token(*hash).await.inspect_err(|_| take_back())?,
            None => None,
        };
        match check_validity(found, ledger.now()) {
            Ok(token) => {
                take_back();
                if let Some(hash) = hash {
                    self.failures.succeeded(hash);
                }
                let old = |noted| ledger.now().since(noted) >= USE_NOTED_EVERY;
                let note_use = token.last_used.is_none_or(old).then_some(token.id);
                let actor = Actor { who: Who::Token(token.id, token.name), scope: token.scope };
                Ok(Authenticated { actor, note_use })
            }
            Err(why) => {
                tracing::warn!(%address, why, "a token was refused");
                if let Some(hash) = hash.filter(|_| !counted) {
                    self.failures.failed(address, &hash);
                }
                Err(Problem::unauthorized(format!("{why}; `roundelay token create` makes a new one")))
            }
        }
    }
}

/// The token that a request shows.
fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::bad_request("the header Authorization is there more than once"));
    }
    let bearer = value.to_str().ok().and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // Another authorization scheme counts as a token that cannot be valid.
    Ok(Some(bearer.map_or("", |(_, token)| token.trim())))
}

/// Whether a token is valid (pure).
fn check_validity(found: Option<Token>, now: Time) -> std::result::Result<Token, &'static str> {
    match found {
        None => Err("there is no such token here: it was never created, or it was revoked"),
        Some(token) if !token.is_valid(now) => Err("the token has expired"),
        Some(token) => Ok(token),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_token_is_shown_in_one_way() {
        let shown = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            bearer_token(&headers).map(|token| token.map(str::to_owned))
        };
        assert_eq!(shown(&[]).unwrap(), None);
        assert_eq!(shown(&["Bearer rl_1"]).unwrap().as_deref(), Some("rl_1"));
        assert_eq!(shown(&["bearer  rl_1"]).unwrap().as_deref(), Some("rl_1"));
        for other in ["Basic cm9vdDpyb290", "rl_1", "Bearer", ""] {
            assert_eq!(shown(&[other]).unwrap().as_deref(), Some(""), "{other} is no token, and not anonymous either");
        }
        assert_eq!(shown(&["Bearer rl_1", "Bearer rl_2"]).unwrap_err().status, 400);
    }
}
