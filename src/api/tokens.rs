//! Tokens: who has one, and what each allows.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::actor::{check_token_name, new_token, token_hash};
use super::extract::{Body, Nothing, Path};
use super::problem::{Problem, Result};
use super::words::Words;
use crate::calendar::{At, Calendar};
use crate::clock::{Time, parse_duration};
use crate::ledger::access::{MOST_TOKENS, NewToken, Token, TokenCreated};
use crate::ledger::{Ledger, LedgerError};
use crate::scope::Scope;

/// All tokens.
#[derive(Serialize, ToSchema)]
pub struct Tokens {
    tokens: Vec<TokenView>,
}

/// A token, without what its holder shows.
#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
pub struct TokenView {
    /// Unique, never reused.
    id: i64,
    /// What it is called.
    name: String,
    /// What its holder may do.
    scope: Scope,
    /// Since when it exists.
    created: At,
    /// From then on it is worth nothing; null: never.
    expires: Option<At>,
    /// When it was last used, to a minute; null: never.
    last_used: Option<At>,
}

impl TokenView {
    fn of(token: Token, calendar: &Calendar) -> Self {
        let at = |time| At::of(time, calendar);
        let Token { id, name, scope, created, expires, last_used } = token;
        let (expires, last_used) = (expires.map(at), last_used.map(at));
        Self { id, name, scope, created: at(created), expires, last_used }
    }
}

/// A token that is to exist.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenWanted {
    /// What it is to be called: letters, digits, `-`, `_`, `.`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[0-9A-Za-z._-]+$")]
    name: String,
    /// What its holder may do.
    scope: Scope,
    /// After so long it is worth nothing; absent or null: never.
    #[schema(example = "90d")]
    expires_in: Option<String>,
}

/// A token that exists from now on.
#[derive(Serialize, ToSchema)]
pub struct TokenMade {
    /// What its holder shows. It is told only here.
    #[schema(example = "rl_…")]
    secret: String,
    /// Everything else.
    token: TokenView,
}

/// Why a token was not created.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The name, or the time for which it is to last.
    #[error("{0}")]
    Wish(String),
    /// The name is taken.
    #[error("there is a token {0} already; revoke it first, or choose another name")]
    NameTaken(String),
    /// There are as many as there can be.
    #[error("there are {MOST_TOKENS} tokens, and more cannot be; revoke some")]
    TooMany,
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl From<TokenError> for Problem {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Wish(why) => Self::unprocessable(why),
            TokenError::Ledger(error) => error.into(),
            taken => Self::conflict(taken.to_string()),
        }
    }
}

/// Creates a token in the ledger; answers what its holder shows, and the rest.
///
/// # Errors
/// [`TokenError`] says what to do.
pub async fn create_token(
    ledger: &dyn Ledger,
    name: &str,
    scope: Scope,
    lasts: Option<Duration>,
) -> std::result::Result<(String, Token), TokenError> {
    check_token_name(name).map_err(TokenError::Wish)?;
    if scope == Scope::None {
        return Err(TokenError::Wish("a token with the scope `none` would be worth nothing".into()));
    }
    let expires: Option<Time> = lasts.map(|lasts| ledger.now() + lasts);
    let secret = new_token();
    let hash = token_hash(&secret).expect("a new token has the form of a token");
    let wanted = NewToken { name: name.to_owned(), hash, scope, expires };
    match ledger.create_token(wanted).await? {
        TokenCreated::Created(token) => Ok((secret, token)),
        TokenCreated::NameTaken => Err(TokenError::NameTaken(name.to_owned())),
        TokenCreated::TooMany => Err(TokenError::TooMany),
    }
}

/// Lists all tokens, by name.
#[utoipa::path(get, path = "/tokens", tag = "access", responses((status = 200, description = "All tokens", body = Tokens)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Tokens>> {
    let tokens = api.ledger().tokens().await?;
    Ok(Json(Tokens {
        tokens: tokens.into_iter().map(|token| TokenView::of(token, &api.ledger().calendar())).collect(),
    }))
}

/// Creates a token.
///
/// Its secret is in this answer and nowhere else. So the answer is not kept: asked again with the same
/// Idempotency-Key, 409 says that the token was created.
#[utoipa::path(post, path = "/tokens", tag = "access", request_body = TokenWanted,
    responses((status = 201, description = "It exists", body = TokenMade)))]
pub async fn create(
    State(api): State<Arc<Api>>,
    Body(wanted): Body<TokenWanted>,
) -> Result<(StatusCode, Json<TokenMade>)> {
    let TokenWanted { name, scope, expires_in } = wanted;
    let lasts = expires_in.as_deref().map(parse_duration).transpose();
    let lasts = lasts.map_err(|why| Problem::unprocessable(format!("expires_in: {why}")))?;
    let (secret, token) = create_token(api.ledger(), &name, scope, lasts).await?;
    Ok((StatusCode::CREATED, Json(TokenMade { secret, token: TokenView::of(token, &api.ledger().calendar()) })))
}

/// Revokes a token: from now on it is worth nothing.
#[utoipa::path(delete, path = "/tokens/{name}", tag = "access", params(("name" = String, Path, description = "What it is called")),
    responses((status = 200, description = "It is revoked", body = Words)))]
pub async fn revoke(State(api): State<Arc<Api>>, Path(name): Path<String>, _: Nothing) -> Result<Json<Words>> {
    if api.ledger().revoke_token(name.clone()).await? {
        return Ok(Json(Words { words: format!("revoked the token {name}") }));
    }
    Err(Problem::not_found("there is no token of that name"))
}
