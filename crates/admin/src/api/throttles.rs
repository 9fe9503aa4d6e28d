//! Throttles: how they are, and what is ordered of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_model::calendar::At;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Nothing, Path, Query, duration};
use super::problem::{Problem, Result};
use super::words::{Words, told};
use crate::api::actor::Actor;
use crate::api::state::Api;
use crate::inspect::throttles::{ThrottleReport, all, look};
use crate::operate::throttle;
use crate::operate::throttle::NewLimits;

/// All throttles of the configuration.
#[derive(Serialize, ToSchema)]
pub struct Throttles {
    /// When they were looked at.
    now: At,
    throttles: Vec<ThrottleReport>,
}

/// Tells how all throttles are.
#[utoipa::path(get, path = "/throttles", tag = "throttles",
    responses((status = 200, description = "All throttles", body = Throttles)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Throttles>> {
    let throttles = all(&api.config(), api.ledger()).await?;
    Ok(Json(Throttles { now: At::of(api.ledger().now(), &api.ledger().calendar()), throttles }))
}

/// Which of its keys.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OfKey {
    /// Only this one; absent: those that are idle last.
    key: Option<String>,
}

/// Tells how a throttle is.
#[utoipa::path(get, path = "/throttles/{name}", tag = "throttles",
    params(("name" = String, Path, description = "A name under `[throttles]`"), OfKey),
    responses((status = 200, description = "How it is", body = ThrottleReport)))]
pub async fn show(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    Query(OfKey { key }): Query<OfKey>,
) -> Result<Json<ThrottleReport>> {
    let config = api.config();
    config.throttle(&name).map_err(Problem::not_found)?;
    Ok(Json(look(&name, key, &config, api.ledger()).await?))
}

/// How long, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldWanted {
    /// For so long from now.
    #[serde(rename = "for")]
    #[schema(example = "30m")]
    span: String,
    /// For those who wonder why nothing runs.
    #[schema(example = "they are down")]
    why: String,
}

/// Lets nothing start for a while. What runs finishes.
#[utoipa::path(post, path = "/throttles/{name}/hold", tag = "throttles", request_body = HoldWanted,
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "It is held", body = Words)))]
pub async fn hold(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    Body(HoldWanted { span, why }): Body<HoldWanted>,
) -> Result<Json<Words>> {
    told(throttle::hold(&api.operator(&actor), &name, duration("for", &span)?, &why).await)
}

/// Ends a hold, an operator's as well as one that an upstream has asked for. It reopens gently.
#[utoipa::path(post, path = "/throttles/{name}/release", tag = "throttles",
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "It is released", body = Words)))]
pub async fn release(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    _: Nothing,
) -> Result<Json<Words>> {
    told(throttle::release(&api.operator(&actor), &name).await)
}

/// Limits in place of the configured ones. What is not said stays as it is in force.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsWanted {
    /// So many starts in each window.
    #[schema(minimum = 1)]
    allow: u32,
    /// The length of the window.
    #[schema(example = "1m")]
    per: Option<String>,
    /// So many of them may follow each other at once after a pause.
    #[schema(minimum = 1)]
    burst: Option<u32>,
}

/// Sets other limits than the configured ones. Further windows (`also`) hold as configured.
#[utoipa::path(put, path = "/throttles/{name}/limits", tag = "throttles", request_body = LimitsWanted,
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "They hold", body = Words)))]
pub async fn set(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    Body(LimitsWanted { allow, per, burst }): Body<LimitsWanted>,
) -> Result<Json<Words>> {
    let per = per.as_deref().map(|per| duration("per", per)).transpose()?;
    told(throttle::set(&api.operator(&actor), &name, NewLimits { allow, per, burst }).await)
}

/// Goes back to the configured limits.
#[utoipa::path(delete, path = "/throttles/{name}/limits", tag = "throttles",
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "The configured limits hold", body = Words)))]
pub async fn reset(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    _: Nothing,
) -> Result<Json<Words>> {
    told(throttle::reset(&api.operator(&actor), &name).await)
}
