//! Who asks, and with what right.

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use roundelay_ledger::Ledger;
use roundelay_ledger::access::{Token, USE_NOTED_EVERY};
use roundelay_model::clock::Time;
use roundelay_model::scope::Scope;

use super::failures::Failures;
use super::problem::{Problem, Result};
use crate::operate::token::{ANONYMOUS, hash};

/// Whoever asks. Endpoints take it as a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    who: Who,
    /// What they may do.
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

    /// Whether there was no token.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.who, Who::Anonymous(_))
    }

    /// As the audit and the log have it: without a token, with the address. `by` of an order is this.
    pub fn label(&self) -> String {
        match &self.who {
            Who::Anonymous(address) => format!("{ANONYMOUS}@{address}"),
            Who::Token(_, name) => name.clone(),
        }
    }

    /// Whose keys of requests it has: a name may have another holder later.
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
        // Only the gate knows who it is, and lets nobody past.
        parts.extensions.get().cloned().ok_or_else(Problem::broken)
    }
}

/// Tells who asks.
pub struct Authenticator {
    /// What those without a token may do.
    anonymous: Scope,
    failures: Failures,
}

/// Who it is, and which token is to be noted as used.
pub struct Authenticated {
    /// Who it is.
    pub actor: Actor,
    /// It was not noted for long.
    pub note_use: Option<i64>,
}

impl Authenticator {
    /// For a server where those without a token may do this.
    pub fn new(anonymous: Scope) -> Self {
        Self { anonymous, failures: Failures::default() }
    }

    /// Who asks, from this address.
    ///
    /// # Errors
    /// When a token is shown that is worth nothing, or too many were.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
        ledger: &dyn Ledger,
    ) -> Result<Authenticated> {
        let Some(token) = shown(headers)? else {
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
        match judge(found, ledger.now()) {
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

/// What is shown as a token.
fn shown(headers: &HeaderMap) -> Result<Option<&str>> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::bad_request("the header Authorization is there more than once"));
    }
    let bearer = value.to_str().ok().and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // Of another scheme, it is shown as a token that cannot be one.
    Ok(Some(bearer.map_or("", |(_, token)| token.trim())))
}

/// Whether a token is worth anything (pure).
fn judge(found: Option<Token>, now: Time) -> std::result::Result<Token, &'static str> {
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
            shown(&headers).map(|shown| shown.map(str::to_owned))
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
