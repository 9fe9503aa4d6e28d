//! The field of a job by which a throttle has many limits: one for each value.

use std::fmt;

use serde_json::{Map, Value};

use crate::job::Job;

/// A part of a job: `key`, `kind`, `owner`, or a field of its payload such as `payload.channel`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// Reads a path such as `payload.channel`.
    ///
    /// # Errors
    /// When `text` names no part of a job. The message says what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<String> = text.split('.').map(Into::into).collect();
        let known = match parts.first().map(String::as_str) {
            Some("payload") => parts.len() > 1 && parts.iter().all(|part| !part.is_empty()),
            Some("key" | "kind" | "owner") => parts.len() == 1,
            _ => false,
        };
        match known {
            true => Ok(Self(parts)),
            false => {
                Err(format!("`{text}` is no part of a job; write \"payload.FIELD\", \"key\", \"kind\" or \"owner\""))
            }
        }
    }

    /// Writes `value` into the payload, if the path leads there.
    pub fn write(&self, payload: &mut Value, value: &str) {
        let Some(("payload", fields)) = self.0.split_first().map(|(first, rest)| (first.as_str(), rest)) else {
            return;
        };
        let mut place = payload;
        for field in fields {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            place = &mut place[field.as_str()];
        }
        *place = value.into();
    }

    /// Whether the value is a part of the payload.
    pub fn reads_payload(&self) -> bool {
        self.0.first().is_some_and(|part| part == "payload")
    }

    /// Whether the value is the owner.
    pub fn reads_owner(&self) -> bool {
        self.0.first().is_some_and(|part| part == "owner")
    }

    /// The value in `job`. Jobs without the field have the empty value, and so share one limit.
    pub fn of(&self, job: &Job) -> String {
        self.of_parts(&job.kind, &job.key, job.owner.as_deref(), &job.payload)
    }

    /// The same as [`Self::of`], for a job with these parts.
    pub fn of_parts(&self, kind: &str, key: &str, owner: Option<&str>, payload: &Value) -> String {
        let rest = self.0.get(1..).unwrap_or_default();
        match self.0.first().map(String::as_str) {
            Some("key") => key.to_owned(),
            Some("kind") => kind.to_owned(),
            Some("owner") => owner.unwrap_or_default().to_owned(),
            _ => match rest.iter().try_fold(payload, |value, part| value.get(part)) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            },
        }
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_reads_what_it_has_written() {
        let mut payload = Value::Null;
        for (path, expected) in [
            ("payload.channel", json!({ "channel": "7" })),
            ("payload.to.channel", json!({ "channel": "7", "to": { "channel": "7" } })),
            ("payload.channel.id", json!({ "channel": { "id": "7" }, "to": { "channel": "7" } })),
            ("key", json!({ "channel": { "id": "7" }, "to": { "channel": "7" } })),
        ] {
            let path = KeyPath::parse(path).unwrap();
            path.write(&mut payload, "7");
            assert_eq!(payload, expected, "{path}");
            assert_eq!(path.of_parts("sync", "7", None, &payload), "7", "{path}");
        }
    }
}
