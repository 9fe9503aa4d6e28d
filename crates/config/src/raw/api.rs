//! How people and programs reach an installation: `[api]`.

use serde::Deserialize;

use super::duration::{HumanDuration, secs};

/// The admin API and the dashboard, of `roundelay serve` or inside a worker.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// What this installation is called where people see it.
    #[cfg_attr(test, schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// Address and port where it answers. Without it `roundelay serve` takes `127.0.0.1:15680`, and workers do not
    /// answer. On an address that other machines reach there must be a token, and TLS here or at a proxy.
    pub listen: Option<String>,
    /// By which names it is called, beside `localhost`, `127.0.0.1` and `[::1]`: without scheme and port. Requests for
    /// other names are refused.
    pub hosts: Vec<String>,
    /// What those without a token may do. Without it they may look (`read`) on `127.0.0.1` and `[::1]` if there is no
    /// proxy. Elsewhere it is `none`, and can be nothing else.
    pub anonymous: Option<roundelay_model::scope::Scope>,
    /// Where TLS ends here.
    pub tls: Option<Tls>,
    /// Whether a proxy before it does TLS. Then a token is always needed. A request that shows traces of a proxy is
    /// refused while this is `false`. It does not go with `tls`.
    pub behind_proxy: bool,
    /// How long a client may take for the headers of a request, and be silent between two of them. Three times as long
    /// it may take for a body, and to take what it is answered.
    #[cfg_attr(test, schemars(extend("x-least" = "100ms", "x-most" = "5m")))]
    pub patience: HumanDuration,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            name: "roundelay".into(),
            listen: None,
            hosts: Vec::new(),
            anonymous: None,
            tls: None,
            behind_proxy: false,
            patience: secs(10),
        }
    }
}

/// Where TLS ends in this process: files in PEM format, read once, at the start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate, with those that it was signed with.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}
