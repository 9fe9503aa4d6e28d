//! `[api]`: where the API answers, whom, and who may do what without a token.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use roundelay_model::scope::Scope;
use roundelay_net::tls::TlsSettings;

use super::raw;
use crate::problems::{Problems, listen_address};

/// The longest name of an installation, in characters.
const MAX_NAME: usize = 100;

/// `[api]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiSettings {
    /// What the installation is called where people see it.
    pub name: String,
    /// Where it answers: `roundelay serve` at its default when absent, workers only when it is there.
    pub listen: Option<SocketAddr>,
    /// By which names it is called, in small letters and without ports, beside those of this machine for itself.
    pub hosts: BTreeSet<String>,
    /// What those without a token may do; absent, it follows from the address.
    pub anonymous: Option<Scope>,
    /// Set where TLS ends here.
    pub tls: Option<TlsSettings>,
    /// TLS ends at a proxy before it.
    pub behind_proxy: bool,
    /// How long a client may take for the headers of a request; three times as long for its body, and to take
    /// what it is answered.
    pub patience: Duration,
}

/// Whether only this machine can connect to `address`.
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl ApiSettings {
    /// What those without a token may do where it answers on `address` (pure).
    ///
    /// # Errors
    /// Says what the settings must not be there.
    pub fn anonymous_on(&self, address: SocketAddr) -> Result<Scope, String> {
        // All calls that a proxy on this machine passes on come from this machine.
        let reachable = !is_loopback(address) || self.behind_proxy;
        match self.anonymous {
            None if reachable => Ok(Scope::None),
            None => Ok(Scope::Read),
            Some(scope) if scope > Scope::None && reachable => {
                let why = if self.behind_proxy { "behind a proxy" } else { "on an address other than loopback" };
                Err(format!(
                    "`{scope}` would be for everybody who reaches it, since it answers {why}; set it to \"none\" and \
                     create tokens with `roundelay token create`, or listen on 127.0.0.1 without a proxy"
                ))
            }
            Some(scope) => Ok(scope),
        }
    }

    /// Whether passwords, of which tokens are one sort, may be sent to `address` (pure).
    ///
    /// # Errors
    /// Says what to set.
    pub fn encrypted_on(&self, address: SocketAddr) -> Result<(), String> {
        if is_loopback(address) || self.behind_proxy || self.tls.is_some() {
            return Ok(());
        }
        Err(format!(
            "{address} is reached from other machines, and tokens would go over the network in the clear; set \
             api.tls.certificate and api.tls.key, or api.behind_proxy = true if a proxy before it does TLS, or listen \
             on 127.0.0.1"
        ))
    }
}

pub(super) fn check(problems: &mut Problems, raw: raw::Api) -> ApiSettings {
    let listen = raw.listen.as_deref().map(listen_address).transpose().unwrap_or_else(|message| {
        problems.add(&["api", "listen"], message);
        None
    });
    if raw.name.is_empty() || raw.name.chars().count() > MAX_NAME || raw.name.chars().any(char::is_control) {
        problems.add(&["api", "name"], format!("1 to {MAX_NAME} characters, none of them a control character"));
    }
    let hosts = hosts(problems, "api", &raw.hosts);
    let (short, long) = (Duration::from_millis(100), Duration::from_secs(300));
    problems.range(&["api", "patience"], raw.patience.0, short, long);
    if raw.tls.is_some() && raw.behind_proxy {
        problems.add(&["api", "behind_proxy"], "TLS ends at the proxy or here: leave out this or `tls`");
    }
    let settings = ApiSettings {
        name: raw.name,
        listen,
        hosts,
        anonymous: raw.anonymous,
        tls: raw.tls.map(|tls| TlsSettings { certificate: tls.certificate.into(), key: tls.key.into() }),
        behind_proxy: raw.behind_proxy,
        patience: raw.patience.0,
    };
    if let Some(address) = settings.listen {
        if let Err(message) = settings.anonymous_on(address) {
            problems.add(&["api", "anonymous"], message);
        }
        if let Err(message) = settings.encrypted_on(address) {
            problems.add(&["api", "listen"], message);
        }
    }
    settings
}

/// The names of `[part]` by which it is called, in small letters.
pub(super) fn hosts(problems: &mut Problems, part: &str, raw: &[String]) -> BTreeSet<String> {
    for host in raw {
        if let Err(message) = host_name(host) {
            problems.add(&[part, "hosts"], message);
        }
    }
    raw.iter().map(|host| host.to_ascii_lowercase()).collect()
}

/// Whether `host` is a name or an IP address, as the `Host` of a request has it, without a port.
fn host_name(host: &str) -> Result<(), String> {
    let name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if name || v6.is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok()) {
        return Ok(());
    }
    Err(format!(
        "`{host}` is not the name of a host; write it as in \"roundelay.example.org\", without scheme and port (an IPv6 \
         address in brackets)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roundelay_net::tls::TlsSettings;

    fn settings(anonymous: Option<Scope>, behind_proxy: bool, tls: bool) -> ApiSettings {
        ApiSettings {
            name: "test".into(),
            listen: None,
            hosts: BTreeSet::new(),
            anonymous,
            tls: tls.then(|| TlsSettings { certificate: "c.pem".into(), key: "k.pem".into() }),
            behind_proxy,
            patience: Duration::from_secs(10),
        }
    }

    #[test]
    fn without_a_token_one_may_look_on_this_machine_and_nothing_elsewhere() {
        let (here, six, mapped, everywhere) = ("127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "0.0.0.0:1");
        let table = [
            (here, None, false, Ok(Scope::Read)),
            (six, None, false, Ok(Scope::Read)),
            (mapped, None, false, Ok(Scope::Read)),
            (here, None, true, Ok(Scope::None)),
            (everywhere, None, false, Ok(Scope::None)),
            ("[::]:1", None, false, Ok(Scope::None)),
            ("192.0.2.1:1", None, true, Ok(Scope::None)),
            (here, Some(Scope::None), false, Ok(Scope::None)),
            (here, Some(Scope::Admin), false, Ok(Scope::Admin)),
            (here, Some(Scope::Read), true, Err("behind a proxy")),
            (everywhere, Some(Scope::Read), false, Err("other than loopback")),
            (everywhere, Some(Scope::None), false, Ok(Scope::None)),
        ];
        for (address, anonymous, proxy, expected) in table {
            let found = settings(anonymous, proxy, false).anonymous_on(address.parse().unwrap());
            match expected {
                Ok(scope) => assert_eq!(found, Ok(scope), "{address} {anonymous:?} {proxy}"),
                Err(words) => assert!(found.unwrap_err().contains(words), "{address} {anonymous:?} {proxy}"),
            }
        }
    }

    #[test]
    fn tokens_go_over_no_network_in_the_clear() {
        for (address, proxy, tls, fine) in [
            ("127.0.0.1:1", false, false, true),
            ("10.0.0.1:1", false, false, false),
            ("0.0.0.0:1", false, false, false),
            ("0.0.0.0:1", true, false, true),
            ("0.0.0.0:1", false, true, true),
        ] {
            let found = settings(None, proxy, tls).encrypted_on(address.parse().unwrap());
            assert_eq!(found.is_ok(), fine, "{address} {proxy} {tls}: {found:?}");
        }
    }

    #[test]
    fn hosts_are_names_without_scheme_and_port() {
        for (host, fine) in [
            ("roundelay.example.org", true),
            ("localhost", true),
            ("192.0.2.7", true),
            ("[2001:db8::1]", true),
            ("2001:db8::1", false),
            ("", false),
            ("example.org:443", false),
            ("https://example.org", false),
            ("*.example.org", false),
            ("a b", false),
        ] {
            assert_eq!(host_name(host).is_ok(), fine, "{host}");
        }
    }
}
