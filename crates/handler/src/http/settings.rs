//! What the HTTP handler of a kind is to do.

use std::collections::BTreeMap;
use std::fmt;

use roundelay_model::egress::Reach;
use roundelay_model::secret;
use roundelay_model::secret::Secret;

use crate::compare::Compare;

/// `handler.http`. Its `Debug` shows neither credentials in the URL nor values of headers.
#[derive(Clone, Default, PartialEq)]
pub struct HttpSettings {
    /// Where to POST; may be a template over `kind`, `key`, `queue` and `payload`.
    pub url: Secret,
    /// Further request headers.
    pub headers: BTreeMap<String, Secret>,
    /// What calls are signed with: each signs, so that receivers can change from one to the next. Without any, calls
    /// are not signed.
    pub sign: Vec<Secret>,
    /// Where calls may lead besides public addresses.
    pub allow: Reach,
    /// Which part of an answer says whether the entity has changed.
    pub compare: Compare,
}

impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&String> = self.headers.keys().collect();
        f.debug_struct("HttpSettings")
            .field("url", &self.shown_url())
            .field("headers", &headers)
            .field("sign", &self.sign.len())
            .field("allow", &self.allow)
            .field("compare", &self.compare)
            .finish()
    }
}

impl HttpSettings {
    /// The URL (or its template) without user name, password and parameters.
    pub fn shown_url(&self) -> String {
        without_credentials(self.url.expose())
    }
}

/// `text`, a URL or a template for one, without what stands before the `@` of its authority and what follows a
/// question mark, either of which may be a token.
fn without_credentials(text: &str) -> String {
    let start = text.find("://").map_or(0, |at| at + 3);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |at| start + at);
    let (host, hidden) = match text[start..end].rfind('@') {
        Some(at) => (start + at, secret::HIDDEN),
        None => (start, ""),
    };
    let rest = match text[host..].split_once('?') {
        Some((path, _)) => format!("{path}?{}", secret::HIDDEN),
        None => text[host..].to_owned(),
    };
    format!("{}{hidden}{rest}", &text[..start])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_parameters_of_urls_are_hidden() {
        let table = [
            ("http://h/a@b", "http://h/a@b"),
            ("http://u@h", "http://…@h"),
            ("http://u:p@h:1/?x=@", "http://…@h:1/?…"),
            ("{{ payload.base }}/x", "{{ payload.base }}/x"),
        ];
        for (url, shown) in table {
            assert_eq!(without_credentials(url), shown);
        }
    }
}
