//! Throttles: their state, and orders for them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, NoBody, Path, Query, duration};
use super::problem::{Problem, Result};
use super::wire::{Receipt, receipt};
use crate::api::actor::Actor;
use crate::api::state::Api;
use crate::inspect::overview::short_of;
use crate::inspect::throttles::{ThrottleReport, all, look};
use crate::operate::throttle;
use crate::operate::throttle::NewLimits;

/// All throttles of the configuration.
#[derive(Serialize, ToSchema)]
pub struct Throttles {
    /// When the throttles were read.
    now: At,
    throttles: Vec<ThrottleReport>,
}

/// Answers the state of all throttles.
#[utoipa::path(get, path = "/throttles", tag = "throttles",
    responses((status = 200, description = "All throttles", body = Throttles)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Throttles>> {
    let mut throttles = all(&api.config(), api.ledger()).await?;
    throttles.iter_mut().for_each(|report| report.shortage = shortage(&api, &report.name));
    Ok(Json(Throttles { now: At::of(api.ledger().now(), &api.ledger().wall_clock()), throttles }))
}

/// Which keys of the throttle.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct KeyQuery {
    /// Only this key; absent: all keys, the idle ones last.
    key: Option<String>,
}

/// Answers the state of a throttle.
#[utoipa::path(get, path = "/throttles/{name}", tag = "throttles",
    params(("name" = String, Path, description = "A name under `[throttles]`"), KeyQuery),
    responses((status = 200, description = "The state of the throttle", body = ThrottleReport)))]
pub async fn show(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    Query(KeyQuery { key }): Query<KeyQuery>,
) -> Result<Json<ThrottleReport>> {
    let config = api.config();
    config.throttle(&name).map_err(Problem::not_found)?;
    let report = look(&name, key, &config, api.ledger()).await?;
    Ok(Json(ThrottleReport { shortage: shortage(&api, &name), ..report }))
}

/// That chains need more than a throttle allows, by the last count of chains.
fn shortage(api: &Api, name: &str) -> Option<String> {
    let facts = api.status_cache().facts();
    short_of(facts.throttled.iter().find(|of| of.name == name)?, &facts, &api.config())
}

/// How long to hold a throttle, and why.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// How long from now, such as `30m`.
    #[serde(rename = "for")]
    #[schema(example = "30m")]
    span: String,
    /// The reason, shown to people who ask why nothing runs.
    #[schema(example = "they are down")]
    why: String,
}

/// Holds a throttle: nothing starts for a while. What runs finishes.
#[utoipa::path(post, path = "/throttles/{name}/hold", tag = "throttles", request_body = HoldRequest,
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "The throttle is held", body = Receipt)))]
pub async fn hold(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    Body(HoldRequest { span, why }): Body<HoldRequest>,
) -> Result<Json<Receipt>> {
    receipt(throttle::hold(&api.operator(&actor), &name, duration("for", &span)?, &why).await)
}

/// Ends a hold, of an operator or of an upstream. The throttle reopens with a slow start.
#[utoipa::path(post, path = "/throttles/{name}/release", tag = "throttles",
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "The throttle is released", body = Receipt)))]
pub async fn release(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    receipt(throttle::release(&api.operator(&actor), &name).await)
}

/// Limits in place of the configured ones. A field that is left out keeps the value in force.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// How many starts each window allows.
    #[schema(minimum = 1)]
    allow: u32,
    /// The length of the window.
    #[schema(example = "1m")]
    per: Option<String>,
    /// How many starts may follow each other at once after a pause.
    #[schema(minimum = 1)]
    burst: Option<u32>,
}

/// Sets limits in place of the configured ones. Additional windows (`also`) stay as configured.
#[utoipa::path(put, path = "/throttles/{name}/limits", tag = "throttles", request_body = LimitsRequest,
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "The limits are in force", body = Receipt)))]
pub async fn set(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    Body(LimitsRequest { allow, per, burst }): Body<LimitsRequest>,
) -> Result<Json<Receipt>> {
    let per = per.as_deref().map(|per| duration("per", per)).transpose()?;
    receipt(throttle::set(&api.operator(&actor), &name, NewLimits { allow, per, burst }).await)
}

/// Restores the configured limits.
#[utoipa::path(delete, path = "/throttles/{name}/limits", tag = "throttles",
    params(("name" = String, Path, description = "A name under `[throttles]`")),
    responses((status = 200, description = "The configured limits are in force", body = Receipt)))]
pub async fn reset(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(name): Path<String>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    receipt(throttle::reset(&api.operator(&actor), &name).await)
}
