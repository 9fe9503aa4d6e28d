//! Small types that many endpoints answer.

use std::fmt::Display;

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Result;
use crate::operate;

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What has happened, in words.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Receipt {
    /// A sentence for people.
    pub words: String,
}

/// The receipt of an operator's verb, in words.
pub fn receipt(receipt: operate::Result<impl Display>) -> Result<Json<Receipt>> {
    Ok(Json(Receipt { words: receipt?.to_string() }))
}
