//! The OpenAPI document of the API.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// The OpenAPI 3.1 document that describes the API, as JSON.
pub const DOCUMENT: &str = include_str!("../../openapi.json");
/// Answers this document.
#[utoipa::path(get, path = "/openapi.json", tag = "access",
    responses((status = 200, description = "An OpenAPI 3.1 document", content_type = "application/json", body = Object)))]
pub async fn show() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}
