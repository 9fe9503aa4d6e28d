//! The session: who sends the request, and which server answers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use roundelay_broker::BrokerUrl;
use roundelay_ledger::LedgerUrl;
use roundelay_model::scope::Scope;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::actor::Actor;
use crate::api::state::Api;

/// Who sends the request, and which server answers.
#[derive(Serialize, ToSchema)]
pub struct Session {
    /// The token's name, or `anonymous`.
    actor: String,
    /// What the actor may do.
    scope: Scope,
    /// The version of the program.
    version: &'static str,
    /// `sqlite` or `postgres`.
    ledger: &'static str,
    /// `rabbitmq` or `embedded`.
    broker: &'static str,
    /// The name of the installation.
    name: String,
}

/// Answers who sends the request, and what the actor may do.
#[utoipa::path(get, path = "/session", tag = "access",
    responses((status = 200, description = "The actor, and the server", body = Session)))]
pub async fn show(State(api): State<Arc<Api>>, actor: Actor) -> Json<Session> {
    let config = api.config();
    Json(Session {
        actor: actor.name().to_owned(),
        scope: actor.scope,
        version: env!("CARGO_PKG_VERSION"),
        ledger: match config.ledger.url {
            LedgerUrl::Postgres(_) => "postgres",
            LedgerUrl::Sqlite(_) | LedgerUrl::Memory => "sqlite",
        },
        broker: match config.broker.url {
            BrokerUrl::Amqp(_) => "rabbitmq",
            BrokerUrl::Embedded => "embedded",
        },
        name: config.api.name.clone(),
    })
}
