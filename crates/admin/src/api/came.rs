//! How many an order was about.

use serde::Serialize;
use utoipa::ToSchema;

/// What came of it.
#[derive(Serialize, ToSchema)]
pub struct Came<A> {
    /// What was wanted.
    pub action: A,
    /// How many it concerns.
    pub matching: u64,
    /// How many were changed; null when they were only counted.
    pub changed: Option<u64>,
}
