//! What each endpoint needs.

use std::collections::HashMap;

use axum::http::Method;
use roundelay_model::scope::Scope;

use super::problem::{self, Problem};

/// The largest body that any endpoint takes, in bytes.
pub const LARGE: usize = 1 << 20;
/// The largest body that most endpoints take, in bytes.
pub(super) const SMALL: usize = 64 << 10;

/// What an endpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The smallest scope that allows the request.
    pub scope: Scope,
    /// The largest body that the endpoint takes, in bytes.
    pub body: usize,
    /// The answer has a secret, which must not be kept.
    pub secret: bool,
    /// The body is private: the audit keeps only its length and what the endpoint adds.
    pub private: bool,
}

impl Needs {
    pub(super) const fn scope(scope: Scope) -> Self {
        Self { scope, body: SMALL, secret: false, private: false }
    }

    /// The endpoint takes bodies of up to [`LARGE`].
    pub(super) const fn large(self) -> Self {
        Self { body: LARGE, ..self }
    }

    /// The audit keeps nothing of the body.
    pub const fn private(self) -> Self {
        Self { private: true, ..self }
    }

    /// The answer has a secret.
    pub(super) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }
}

/// What each path and method needs.
#[derive(Clone, Debug, Default)]
pub struct Rules(pub(super) HashMap<String, HashMap<Method, Needs>>);

impl Rules {
    pub(super) fn add(&mut self, path: &str, method: Method, needs: Needs) {
        let there = self.0.entry(path.to_owned()).or_default().insert(method, needs);
        assert!(there.is_none(), "{path} is in the table twice with one method");
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.values().map(HashMap::len).sum()
    }

    /// What this method of this path needs; `path` has the parameters' names in place of their values.
    ///
    /// # Errors
    /// When path and method are not in the table.
    pub fn find(&self, method: &Method, path: &str) -> problem::Result<Needs> {
        let methods = self.0.get(path).ok_or_else(|| Problem::not_found("there is no such path"))?;
        // Every endpoint with GET also answers HEAD.
        let asked = if *method == Method::HEAD { &Method::GET } else { method };
        methods.get(asked).copied().ok_or_else(|| {
            let mut allow: Vec<&str> = methods.keys().map(Method::as_str).collect();
            if methods.contains_key(&Method::GET) {
                allow.push("HEAD");
            }
            allow.sort_unstable();
            Problem::method_not_allowed(allow.join(", "))
        })
    }
}
