//! The shares of tenants, and orders for them while workers run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_model::pacing::fair::Quota;
use roundelay_model::wall_clock::At;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Body, NoBody, Path};
use super::problem::Result;
use super::wire::{Receipt, receipt};
use crate::api::actor::Actor;
use crate::api::state::Api;
use crate::inspect::tenants::{TenantReport, reports};
use crate::operate::tenant;

/// The tenants whose shares differ from that of others.
#[derive(Serialize, ToSchema)]
pub struct Tenants {
    /// When the orders were read from the ledger.
    now: At,
    /// Whether tenants share any queue or throttle.
    fair: bool,
    /// The tenants that the configuration names, and those with orders. All others have the weight 1.
    tenants: Vec<TenantReport>,
}

/// Lists the shares of tenants: those that the configuration names, and those that operators have ordered.
#[utoipa::path(get, path = "/tenants", tag = "tenants",
    responses((status = 200, description = "The shares", body = Tenants)))]
pub async fn list(State(api): State<Arc<Api>>) -> Result<Json<Tenants>> {
    let (now, wall_clock) = (api.ledger().now(), api.ledger().wall_clock());
    let (orders, config) = (api.ledger().fleet_orders().await?, api.config());
    let tenants = reports(&config, &orders, &wall_clock);
    Ok(Json(Tenants { now: At::of(now, &wall_clock), fair: config.is_fair(), tenants }))
}

/// A share in place of the configured one. A field that is left out keeps the value in force.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareRequest {
    /// The tenant's share in proportion to those of others.
    #[schema(minimum = 1, maximum = 1000)]
    weight: Option<u32>,
    /// How many of the tenant's jobs run at the same time on a queue, over all workers.
    #[schema(minimum = 1, maximum = 1000000)]
    most: Option<u32>,
    /// Lets as many of the tenant's jobs run as there is room for, in place of `most`.
    #[serde(default)]
    unlimited: bool,
}

/// Gives a tenant a share of all fair queues and throttles, in place of the configured one.
#[utoipa::path(put, path = "/tenants/{tenant}/share", tag = "tenants", request_body = ShareRequest,
    params(("tenant" = String, Path, description = "The value of the field that `fair` names")),
    responses((status = 200, description = "The order is in force", body = Receipt)))]
pub async fn share(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(tenant): Path<String>,
    Body(ShareRequest { weight, most, unlimited }): Body<ShareRequest>,
) -> Result<Json<Receipt>> {
    let most = if unlimited { Some(Quota::Unlimited) } else { most.map(Quota::Most) };
    receipt(tenant::share(&api.operator(&actor), &tenant, weight, most).await)
}

/// Gives a tenant the configured share.
#[utoipa::path(delete, path = "/tenants/{tenant}/share", tag = "tenants",
    params(("tenant" = String, Path, description = "The value of the field that `fair` names")),
    responses((status = 200, description = "The configured share is in force", body = Receipt)))]
pub async fn as_configured(
    State(api): State<Arc<Api>>,
    actor: Actor,
    Path(tenant): Path<String>,
    _: NoBody,
) -> Result<Json<Receipt>> {
    receipt(tenant::as_configured(&api.operator(&actor), &tenant).await)
}
