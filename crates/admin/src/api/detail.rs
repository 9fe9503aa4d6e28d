//! What an endpoint passes to the gate with its answer.

use axum::response::{IntoResponseParts, ResponseParts};
use roundelay_ledger::access::Hash;
use serde_json::Value;

/// What the audit keeps of a change in place of the request's body. Endpoints add it to the response.
#[derive(Clone, Debug)]
pub struct Detail(pub Value);

impl IntoResponseParts for Detail {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut response: ResponseParts) -> std::result::Result<ResponseParts, Self::Error> {
        response.extensions_mut().insert(self);
        Ok(response)
    }
}

/// The idempotency key of the request, hashed with its holder: equal whenever the same request is sent again.
#[derive(Clone, Debug)]
pub struct RequestKey(pub Option<Hash>);
