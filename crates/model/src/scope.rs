//! What a token of the API, or a person without one, may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a caller may do; each scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Nothing.
    None,
    /// Look at everything.
    Read,
    /// Change what chains, queues and throttles do, and publish jobs.
    Operate,
    /// Create and revoke tokens.
    Admin,
}

impl Scope {
    /// All of them, the smallest first.
    pub const ALL: [Self; 4] = [Self::None, Self::Read, Self::Operate, Self::Admin];

    /// As configuration, command line and API write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.name() == text);
        found.ok_or_else(|| format!("`{text}` is no scope; there are none, read, operate and admin"))
    }
}
