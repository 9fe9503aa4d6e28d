//! What an endpoint hands to the gate with its answer.

use axum::response::{IntoResponseParts, ResponseParts};
use roundelay_ledger::access::Hash;
use serde_json::Value;

/// What the audit tells of a change in place of the request's body. Endpoints answer it beside what they answer.
#[derive(Clone, Debug)]
pub struct Detail(pub Value);

impl IntoResponseParts for Detail {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut response: ResponseParts) -> std::result::Result<ResponseParts, Self::Error> {
        response.extensions_mut().insert(self);
        Ok(response)
    }
}

/// The key of the request that an endpoint answers, with whose it is: the same whenever the same is asked again.
#[derive(Clone, Debug)]
pub struct RequestKey(pub Option<Hash>);
