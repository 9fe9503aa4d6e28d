//! Small types that answers of many endpoints have.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::clock::Time;

/// A time: RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-11-22T20:07:18.280Z")]
pub struct At(pub Time);

impl From<Time> for At {
    fn from(time: Time) -> Self {
        Self(time)
    }
}

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

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
