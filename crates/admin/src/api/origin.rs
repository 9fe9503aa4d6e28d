//! The origin of a request: whether its `Host` is a name of this server, and whether a page of another site has made a
//! browser send it (pure).
//!
//! A page whose name resolves to this machine (DNS rebinding) sends that name as the host. A form or a script of
//! another page shows in `Origin` and `Sec-Fetch-Site`, which no page can change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri, Version};
use roundelay_net::listen::host;
use roundelay_net::listen::host::{Host, ip};

use super::problem::{Problem, Result};

/// Headers that proxies and the networks before them add to requests, besides all that begin with [`FORWARDED_BY`].
const FORWARDED: [&str; 16] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-original-host",
    "x-envoy-external-address",
    "x-azure-clientip",
    "x-appengine-user-ip",
    "cf-connecting-ip",
    "cf-ray",
    "true-client-ip",
    "fastly-client-ip",
    "cdn-loop",
    "proxy-connection",
];
const FORWARDED_BY: &str = "x-forwarded-";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names of this server.
#[derive(Clone, Debug)]
pub struct Site {
    /// The names in the configuration, in small letters.
    pub hosts: BTreeSet<String>,
    /// The address that the server listens on.
    pub address: IpAddr,
    /// Whether browsers reach the server by HTTPS.
    pub secure: bool,
    /// Whether browsers reach the server through a proxy that the configuration names.
    pub behind_proxy: bool,
}

/// The only value of a header; nothing if the header is absent.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>> {
    host::only(headers, name).map_err(Problem::bad_request)
}

impl Site {
    /// The host that a request is for.
    ///
    /// # Errors
    /// When the host is not a name of this server, or cannot be read.
    pub fn host(&self, uri: &Uri, headers: &HeaderMap) -> Result<Host> {
        let host = Host::of(uri, headers).map_err(Problem::bad_request)?;
        let host = host.ok_or_else(|| Problem::bad_request("there is no header Host"))?;
        let configured =
            || self.hosts.iter().any(|name| *name == host.name || (host.ip().is_some() && ip(name) == host.ip()));
        if host.is_loopback() || host.ip() == Some(self.address.to_canonical()) || configured() {
            return Ok(host);
        }
        let detail = format!(
            "this server is not called `{}`; if that is a name of it, add it to api.hosts in the configuration",
            host.name.escape_default()
        );
        Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", detail))
    }

    /// Refuses a request that came through a proxy which the configuration does not name: the server would take its
    /// client for a user of this machine. A proxy that adds no header is recognised by HTTP/1.0, which no browser and
    /// no client of today speaks any more; nginx with nothing but `proxy_pass` does.
    ///
    /// # Errors
    /// When the request came through a proxy.
    pub fn direct(&self, version: Version, headers: &HeaderMap) -> Result<()> {
        if self.behind_proxy {
            return Ok(());
        }
        let added = |name: &&HeaderName| FORWARDED.contains(&name.as_str()) || name.as_str().starts_with(FORWARDED_BY);
        let what = match headers.keys().find(added) {
            Some(name) => format!("the header {name}"),
            None if version < Version::HTTP_11 => "HTTP/1.0".into(),
            None => return Ok(()),
        };
        Err(Problem::bad_request(format!(
            "{what} says that this came through a proxy; set api.behind_proxy = true in the configuration"
        )))
    }

    /// The address of the client: behind a proxy, the one that the proxy has added last.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let told = || {
            let last = headers.get_all(FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
            ip(last.rsplit(',').next()?.trim())
        };
        let client = if self.behind_proxy { told() } else { None };
        client.unwrap_or(peer).to_canonical()
    }

    /// Refuses a request that a page of another site has made a browser send. A client that is not a browser sends
    /// neither header.
    ///
    /// # Errors
    /// When a page of another site sent the request.
    pub fn same_origin(&self, host: &Host, headers: &HeaderMap) -> Result<()> {
        let refused = |what: &str| {
            Problem::forbidden(format!("{what} says that a page of another site sent this; only this server's own may"))
        };
        if let Some(site) = only(headers, &SEC_FETCH_SITE)?
            && !["same-origin", "none"].contains(&site)
        {
            return Err(refused("Sec-Fetch-Site"));
        }
        if let Some(origin) = only(headers, &ORIGIN)? {
            let (scheme, port) = if self.secure { ("https://", 443) } else { ("http://", 80) };
            let theirs = origin.strip_prefix(scheme).and_then(Host::read);
            let same =
                |theirs: Host| theirs.name == host.name && theirs.port.unwrap_or(port) == host.port.unwrap_or(port);
            if !theirs.is_some_and(same) {
                return Err(refused("Origin"));
            }
        }
        Ok(())
    }
}

/// Refuses a content type that a form can send: for JSON, a browser asks first, and the server refuses.
///
/// # Errors
/// When the content type is not JSON.
pub fn is_json(headers: &HeaderMap) -> Result<()> {
    let given = only(headers, &CONTENT_TYPE)?;
    let essence = given.and_then(|given| given.split(';').next()).map(str::trim);
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let detail = "everything but GET needs `Content-Type: application/json`, also without a body";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn site() -> Site {
        Site {
            hosts: ["ops.example.org", "[2001:db8::1]"].map(str::to_owned).into(),
            address: "192.0.2.7".parse().unwrap(),
            secure: false,
            behind_proxy: false,
        }
    }

    #[test]
    fn only_names_of_this_server_are_answered() {
        let table = [
            ("localhost", 200),
            ("LocalHost:15680", 200),
            ("127.0.0.1:1", 200),
            ("127.8.8.8", 200),
            ("[::1]:15680", 200),
            ("[::ffff:127.0.0.1]", 200),
            ("192.0.2.7:80", 200),
            ("ops.example.org", 200),
            ("OPS.example.org:8443", 200),
            ("[2001:0db8::0001]:1", 200),
            ("evil.example", 421),
            ("localhost.evil.example", 421),
            ("evil.localhost", 421),
            ("ops.example.org.", 421),
            ("0.0.0.0:15680", 421),
            ("192.0.2.8", 421),
            ("127.0.0.1.nip.io", 421),
            ("user@localhost", 400),
            ("localhost:", 400),
            ("localhost:99999", 400),
            ("localhost, evil.example", 400),
            ("", 400),
        ];
        for (host, status) in table {
            let found = site().host(&Uri::from_static("/"), &headers(&[("host", host)]));
            assert_eq!(found.map_or_else(|problem| problem.status, |_| 200), status, "{host:?}");
        }
        let status = |uri: &'static str, pairs: &[(&'static str, &str)]| {
            site().host(&Uri::from_static(uri), &headers(pairs)).map_or_else(|problem| problem.status, |_| 200)
        };
        assert_eq!(status("/", &[]), 400);
        assert_eq!(status("/", &[("host", "localhost"), ("host", "localhost")]), 400);
        assert_eq!(status("http://localhost/", &[("host", "localhost")]), 200);
        assert_eq!(status("http://evil.example/", &[("host", "localhost")]), 400);
        assert_eq!(status("http://localhost/", &[("host", "evil.example")]), 400);
    }

    #[test]
    fn pages_of_other_sites_are_told_by_what_browsers_say() {
        let host = |text: &str| Host::read(text).unwrap();
        type Given = &'static [(&'static str, &'static str)];
        let table: [(&str, bool, Given, bool); 16] = [
            ("localhost:15680", false, &[], true),
            ("localhost:15680", false, &[("origin", "http://localhost:15680")], true),
            ("localhost:15680", false, &[("origin", "http://LOCALHOST:15680")], true),
            ("localhost:15680", false, &[("origin", "http://localhost")], false),
            ("localhost:15680", false, &[("origin", "http://localhost:3000")], false),
            ("localhost:15680", false, &[("origin", "https://localhost:15680")], false),
            ("localhost:15680", false, &[("origin", "http://127.0.0.1:15680")], false),
            ("localhost:15680", false, &[("origin", "null")], false),
            ("localhost:15680", false, &[("origin", "")], false),
            ("localhost:15680", false, &[("origin", "http://evil.example")], false),
            ("ops.example.org", true, &[("origin", "https://ops.example.org")], true),
            ("ops.example.org", true, &[("origin", "https://ops.example.org:443")], true),
            ("ops.example.org", true, &[("origin", "http://ops.example.org")], false),
            ("localhost", false, &[("sec-fetch-site", "same-origin")], true),
            ("localhost", false, &[("sec-fetch-site", "none"), ("origin", "http://localhost")], true),
            ("localhost", false, &[("sec-fetch-site", "same-site"), ("origin", "http://localhost")], false),
        ];
        for (name, secure, given, fine) in table {
            let found = Site { secure, ..site() }.same_origin(&host(name), &headers(given));
            assert_eq!(found.is_ok(), fine, "{name} {given:?}");
        }
        for given in ["cross-site", "", "SAME-ORIGIN"] {
            assert!(site().same_origin(&host("localhost"), &headers(&[("sec-fetch-site", given)])).is_err(), "{given}");
        }
    }

    #[test]
    fn only_json_is_taken() {
        for (given, fine) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("text/plain; application/json", false),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data; boundary=application/json", false),
            ("application/jsonp", false),
            ("", false),
        ] {
            assert_eq!(is_json(&headers(&[("content-type", given)])).is_ok(), fine, "{given}");
        }
        assert!(is_json(&headers(&[])).is_err());
        let twice = headers(&[("content-type", "application/json"), ("content-type", "text/plain")]);
        assert!(is_json(&twice).is_err());
    }

    #[test]
    fn an_unknown_proxy_is_refused_and_a_known_one_is_believed() {
        let peer: IpAddr = "127.0.0.1".parse().unwrap();
        let known = Site { behind_proxy: true, ..site() };
        let through = headers(&[("x-forwarded-for", "6.6.6.6, 198.51.100.9")]);
        let (new, old) = (Version::HTTP_11, Version::HTTP_10);
        for name in FORWARDED.iter().chain(&["x-forwarded-for", "x-forwarded-by-anybody"]) {
            let through = headers(&[(*name, "1.2.3.4")]);
            assert!(site().direct(new, &through).is_err() && known.direct(new, &through).is_ok(), "{name}");
        }
        assert!(site().direct(new, &headers(&[("x-forwarding", "1.2.3.4")])).is_ok());
        assert!(site().direct(new, &headers(&[])).is_ok());
        assert!(site().direct(old, &headers(&[])).is_err() && known.direct(old, &headers(&[])).is_ok());
        assert_eq!(site().client(peer, &through), peer);
        assert_eq!(known.client(peer, &through).to_string(), "198.51.100.9", "the proxy adds at the end");
        for odd in ["unknown", "", "1.2.3.4:5"] {
            assert_eq!(known.client(peer, &headers(&[("x-forwarded-for", odd)])), peer, "{odd}");
        }
    }
}
