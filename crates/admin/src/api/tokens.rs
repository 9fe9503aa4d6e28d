//! Tokens: listed, created and revoked.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use roundelay_model::scope::Scope;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Body, NoBody, Path, duration};
use super::problem::Result;
use super::wire::{Receipt, receipt};
use crate::api::state::Api;
use crate::operate::token;
use crate::operate::token::{TokenMade, TokenView};

/// All tokens.
#[derive(Serialize, ToSchema)]
pub struct Tokens {
    tokens: Vec<TokenView>,
}

/// A token to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The name of the token: letters, digits, `-`, `_`, `.`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[0-9A-Za-z._-]+$")]
    name: String,
    /// What the token allows.
    scope: Scope,
    /// How long the token is valid, such as `30d`; absent or null: without end.
    #[schema(example = "90d")]
    expires_in: Option<String>,
}

/// Lists all tokens, by name.
#[utoipa::path(get, path = "/tokens", tag = "access", responses((status = 200, description = "All tokens", body = Tokens)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Tokens>> {
    Ok(Json(Tokens { tokens: token::list(api.ledger()).await? }))
}

/// Creates a token.
///
/// Only this answer has the secret. So the answer is not kept: a second request with the same Idempotency-Key is
/// answered with 409, which says that the token was created.
#[utoipa::path(post, path = "/tokens", tag = "access", request_body = TokenRequest,
    responses((status = 201, description = "The token exists", body = TokenMade)))]
pub async fn create(
    State(api): State<Arc<Api>>,
    Body(wanted): Body<TokenRequest>,
) -> Result<(StatusCode, Json<TokenMade>)> {
    let TokenRequest { name, scope, expires_in } = wanted;
    let lasts = expires_in.as_deref().map(|lasts| duration("expires_in", lasts)).transpose()?;
    Ok((StatusCode::CREATED, Json(token::create(api.ledger(), &name, scope, lasts).await?)))
}

/// Revokes a token: from now on the token is not valid.
#[utoipa::path(delete, path = "/tokens/{name}", tag = "access",
    params(("name" = String, Path, description = "The token's name")),
    responses((status = 200, description = "The token is revoked", body = Receipt)))]
pub async fn revoke(State(api): State<Arc<Api>>, Path(name): Path<String>, _: NoBody) -> Result<Json<Receipt>> {
    receipt(token::revoke(api.ledger(), &name).await)
}
