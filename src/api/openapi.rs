//! The document that describes the API.

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::endpoints::document;

static DOCUMENT: LazyLock<String> = LazyLock::new(document);

/// Answers this document.
#[utoipa::path(get, path = "/openapi.json", tag = "access",
    responses((status = 200, description = "An OpenAPI 3.1 document", content_type = "application/json", body = Object)))]
pub async fn show() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}
