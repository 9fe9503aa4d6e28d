//! The admin API, if one is configured: the faults for which `roundelay serve` or a worker would refuse to start.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roundelay_config::Config;
use roundelay_model::scope::Scope;
use tokio::net::TcpListener;

use crate::api::server::check_tls;
use crate::inspect::doctor::facts::Facts;
use crate::inspect::doctor::finding::{Area, Finding, Gathered, blocking, limited, word};

/// Facts about the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiFacts {
    /// Why its address is not this machine's; nothing when it is.
    pub elsewhere: Option<String>,
    /// What is wrong with its certificate and key; nothing when they can be used, or none are configured.
    pub tls: Option<String>,
    /// Whether every user of this machine can read the key.
    pub key_is_open: bool,
}

/// Gathers the facts, if an API is configured.
pub(super) async fn gather(config: &Config, within: Duration) -> Option<Gathered<ApiFacts>> {
    let address = config.api.listen?;
    let tls = config.api.tls.clone();
    let files = blocking(within, move || {
        use std::os::unix::fs::MetadataExt;
        const OTHERS_READ: u32 = 0o004;
        let key = tls.as_ref().and_then(|tls| std::fs::metadata(&tls.key).ok());
        let key_is_open = key.is_some_and(|key| key.mode() & OTHERS_READ != 0);
        (tls.and_then(|tls| check_tls(&tls).err()), key_is_open)
    });
    let (files, elsewhere) = tokio::join!(files, limited(within, elsewhere(address.ip())));
    Some(files.and_then(|(tls, key_is_open)| Ok(ApiFacts { elsewhere: elsewhere?, tls, key_is_open })))
}

/// Why no process could listen on this address. Any port will do: the API's own port may be in use by the API.
async fn elsewhere(ip: IpAddr) -> Option<String> {
    TcpListener::bind(SocketAddr::new(ip, 0)).await.err().map(|error| error.to_string())
}

/// What is wrong with it.
pub(super) fn diagnose(facts: &Facts, config: &Config) -> Vec<Finding> {
    let (Some(answer), Some(address)) = (&facts.api, config.api.listen) else { return Vec::new() };
    let what = "address";
    let stops = "`roundelay serve` and workers with this configuration do not start";
    let api = match answer {
        Ok(api) => api,
        Err(why) => {
            return vec![Finding::unknown(Area::Api, what, why, "`roundelay serve` says what is wrong with it")];
        }
    };
    let mut all = vec![match &api.elsewhere {
        None => Finding::good(Area::Api, what, format!("{address} is this machine's")),
        Some(why) => {
            let seen = format!("{address} cannot be listened on: {why}");
            let fix = "set api.listen to an address of this machine (`ip address` lists them), or to 0.0.0.0 for all";
            Finding::bad(Area::Api, what, seen, stops, fix)
        }
    }];
    // The configuration refuses these settings already; this check is for settings that were made in another way.
    for (what, refused) in
        [("anonymous", config.api.anonymous_on(address).err()), ("encryption", config.api.encrypted_on(address).err())]
    {
        let fix = "as it says, in [api]";
        all.extend(refused.map(|why| Finding::bad(Area::Api, what, why, stops, fix)));
    }
    if let Some(tls) = &config.api.tls {
        let key = tls.key.display();
        all.push(match &api.tls {
            None => Finding::good(Area::Api, "TLS", "certificate and key go together"),
            Some(why) => {
                let fix = "correct api.tls.certificate and api.tls.key: files in PEM format, the certificate with those that \
                           it was signed with, readable by the user of the program";
                Finding::bad(Area::Api, "TLS", why, stops, fix)
            }
        });
        if api.key_is_open {
            let seen = format!("anybody on this machine may read {key}");
            let follows = "anybody here can pass for this server";
            all.push(Finding::warning(Area::Api, "TLS", seen, follows, format!("`chmod o-r {}`", word(key))));
        }
    }
    if config.api.anonymous_on(address) == Ok(Scope::None) {
        let create = "`roundelay token create NAME --scope admin`";
        all.push(match &facts.chains {
            Err(why) => Finding::unknown(Area::Api, "tokens", why, "`roundelay token list` lists them"),
            Ok(chains) => match chains.tokens.iter().filter(|token| token.is_valid(chains.now)).count() {
                0 => {
                    let finding = Finding::bad(
                        Area::Api,
                        "tokens",
                        "everybody needs one, and nobody has one that is valid",
                        if roundelay_config::is_loopback(address) { "nobody may use it" } else { stops },
                        create,
                    );
                    if roundelay_config::is_loopback(address) { finding.softened() } else { finding }
                }
                valid => Finding::good(Area::Api, "tokens", format!("{valid} valid")),
            },
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::{about, have_fixes};
    use super::*;
    use crate::inspect::doctor::chains::ChainFacts;
    use crate::inspect::doctor::finding::Grade;
    use roundelay_ledger::access::Token;
    use roundelay_model::clock::Time;

    fn judged(api: &str, change: impl FnOnce(&mut ApiFacts), tokens: Gathered<usize>) -> Vec<Finding> {
        let config = Config::parse(api, "r.toml", []).unwrap();
        let mut known = ApiFacts { elsewhere: None, tls: None, key_is_open: false };
        change(&mut known);
        let token = Token {
            id: 1,
            name: "ann".into(),
            scope: Scope::Admin,
            created: Time::default(),
            expires: None,
            last_used: None,
        };
        let chains = tokens.map(|count| ChainFacts { tokens: vec![token; count], ..ChainFacts::default() });
        let findings = diagnose(&Facts { api: Some(Ok(known)), chains, ..Facts::nothing() }, &config);
        have_fixes(&findings);
        findings
    }

    #[test]
    fn what_serve_would_refuse_is_found() {
        let here = "[api]\nlisten = '127.0.0.1:1'";
        let quiet = "[api]\nlisten = '127.0.0.1:1'\nanonymous = 'none'";
        let tls = "[api]\nlisten = '0.0.0.0:1'\ntls = { certificate = 'c.pem', key = 'k.pem' }";
        let nothing = |_: &mut ApiFacts| ();
        assert!(judged(here, nothing, Ok(0)).iter().all(|finding| finding.result == Grade::Good));
        let away = judged(here, |api| api.elsewhere = Some("no such address".into()), Ok(0));
        assert_eq!(about(&away, "address").result, Grade::Bad);
        assert_eq!(about(&judged(quiet, nothing, Ok(0)), "tokens").result, Grade::Warning);
        assert_eq!(about(&judged(tls, nothing, Ok(0)), "tokens").result, Grade::Bad);
        assert_eq!(about(&judged(tls, nothing, Ok(1)), "tokens").result, Grade::Good);
        assert_eq!(about(&judged(tls, nothing, Err("no answer".into())), "tokens").result, Grade::Unknown);
        let bad = judged(tls, |api| api.tls = Some("c.pem cannot be read".into()), Ok(1));
        assert_eq!(about(&bad, "TLS").result, Grade::Bad);
        let open = judged(tls, |api| api.key_is_open = true, Ok(1));
        assert!(open.iter().any(|finding| finding.fix == "`chmod o-r k.pem`" && finding.result == Grade::Warning));
        let config = Config::parse("", "r.toml", []).unwrap();
        assert_eq!(diagnose(&Facts::nothing(), &config), [], "without an API nothing is wrong with it");
    }
}
