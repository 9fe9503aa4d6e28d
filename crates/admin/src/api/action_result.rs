//! The result of an action on many rows.

use serde::Serialize;
use utoipa::ToSchema;

/// The result of an action.
#[derive(Serialize, ToSchema)]
pub struct ActionResult<A> {
    /// The action.
    pub action: A,
    /// How many rows match the filter.
    pub matching: u64,
    /// How many rows were changed; null with `dry_run`.
    pub changed: Option<u64>,
}
