//! Which of a throttle's many limits a job is under.

use std::fmt;

use serde_json::Value;

use crate::job::Job;

/// A part of a job: `key`, `kind`, `owner`, or a field of its payload such as `payload.channel`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// Reads `text`.
    ///
    /// # Errors
    /// Says what to write.
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

    /// The value in `job`; those that have none are under one limit together.
    pub fn of(&self, job: &Job) -> String {
        self.of_parts(&job.kind, &job.key, job.owner.as_deref(), &job.payload)
    }

    /// Likewise, of a job that has these.
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
