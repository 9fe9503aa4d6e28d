//! Text that must not be shown: URLs with credentials, tokens, passwords.

use std::fmt;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

/// What stands in place of a value that may be secret.
pub const HIDDEN: &str = "…";

/// Text that must not be shown: its `Debug` and `Display` hide the credentials of a URL, or everything. The
/// memory that holds it is overwritten when it is dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The URL with this user and password in place of its own.
    pub fn with_login(self, user: Option<&Self>, password: Option<&Self>) -> Self {
        let Some((scheme, rest)) = self.expose().split_once("://").filter(|_| user.or(password).is_some()) else {
            return self;
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (own, hosts) = rest[..end].rsplit_once('@').unwrap_or(("", &rest[..end]));
        let (own_user, own_password) = own.split_once(':').unwrap_or((own, ""));
        let part = |said: Option<&Self>, own: &str| {
            said.map_or_else(|| own.into(), |said| utf8_percent_encode(said.expose(), NON_ALPHANUMERIC).to_string())
        };
        let (user, password) = (Zeroizing::new(part(user, own_user)), Zeroizing::new(part(password, own_password)));
        let colon = if password.is_empty() { "" } else { ":" };
        Self::new(format!("{scheme}://{}{colon}{}@{hosts}{}", *user, *password, &rest[end..]))
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// A URL without its credentials.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match url::Url::parse(&self.0) {
            Ok(mut url) if url.has_host() => {
                let _ = url.set_username("");
                let _ = url.set_password(None);
                hide_parameters(&mut url);
                f.write_str(url.as_str())
            }
            _ => f.write_str(HIDDEN),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({self})")
    }
}

/// PostgreSQL takes a password among the parameters, too; elsewhere any of them may be a token.
fn hide_parameters(url: &mut url::Url) {
    let postgres = ["postgres", "postgresql"].contains(&url.scheme());
    let secret = |name: &str| !postgres || name.contains("password");
    url.set_fragment(None);
    if !url.query_pairs().any(|(name, _)| secret(&name)) {
        return;
    }
    let shown = url
        .query_pairs()
        .filter(|(name, _)| !secret(name))
        .map(|(name, value)| (name.into_owned(), value.into_owned()));
    let shown: Vec<(String, String)> = shown.collect();
    url.set_query(None);
    if !shown.is_empty() {
        url.query_pairs_mut().extend_pairs(shown);
    }
}

/// Only what a default says, which everybody knows.
#[cfg(feature = "schema")]
impl serde::Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.expose())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let place = |key: &str, words: &str| {
            schemars::json_schema!({
                "type": "object",
                "properties": { key: { "type": "string", "description": words } },
                "required": [key],
                "additionalProperties": false,
            })
        };
        schemars::json_schema!({
            "description": "Text that may be secret, or where it is.",
            "anyOf": [
                { "type": "string" },
                place("file", "The file that holds it, and nothing else."),
                place("env", "The environment variable that holds it."),
            ],
        })
    }
}
