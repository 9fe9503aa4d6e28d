//! Small types that answers of many endpoints have.

use serde::Serialize;
use utoipa::ToSchema;

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What has happened, in words.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Words {
    /// For people.
    pub words: String,
}
