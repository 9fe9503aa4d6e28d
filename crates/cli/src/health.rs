//! `roundelay health`

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use reqwest::Url;
use roundelay_model::clock::parse_duration;
use serde_json::Value;

use super::{ConfigFile, screen};

/// Asks a worker on this machine whether it lives, or is ready. Exit code 0 when the answer is yes, 1 otherwise.
///
/// For health checks without an HTTP client, as in a container. It asks /healthz at worker.listen of the configuration,
/// with --ready /readyz; docs/metrics.md says what they mean. A worker that answers no names the part that is not up,
/// and why.
#[derive(Args)]
pub struct Health {
    #[command(flatten)]
    config: ConfigFile,
    /// The URL to ask instead, without reading the configuration: http://127.0.0.1:15680/api/v1/session asks `roundelay
    /// serve`.
    #[arg(value_name = "URL", conflicts_with = "ready", value_parser = plain_url)]
    url: Option<Url>,
    /// Ask whether the worker is ready: it consumes, and reaches broker and ledger.
    #[arg(long)]
    ready: bool,
    /// How long the answer may take.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "3s")]
    within: Duration,
    /// Print the answer, a JSON object.
    #[arg(long)]
    json: bool,
}

impl Health {
    pub async fn run(self) -> anyhow::Result<()> {
        let url = self.url()?;
        // The worker is on this machine, so that there are no certificates to read.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).timeout(self.within).build()?;
        let asked = async {
            let response = client.get(url.clone()).send().await?;
            anyhow::Ok((response.status(), response.text().await?))
        };
        let (status, body) = asked.await.with_context(|| format!("{url} does not answer"))?;
        let answer: Value = serde_json::from_str(&body)
            .map_err(|_| anyhow::anyhow!("{url} answers {status}, and not in JSON: is it a worker's address?"))?;
        if self.json {
            screen::json(&answer)?;
        }
        if !status.is_success() {
            bail!("{url} answers {status}{}", missing(&answer));
        }
        if !self.json {
            out!("{url} answers {status}");
        }
        Ok(())
    }

    fn url(&self) -> anyhow::Result<Url> {
        if let Some(url) = &self.url {
            return Ok(url.clone());
        }
        let path = if self.ready { "readyz" } else { "healthz" };
        let Some(listen) = self.config.load()?.worker.listen else {
            bail!(
                "{}: worker.listen is not set, so its workers cannot be asked; set it, or name a URL",
                self.config.config.display()
            )
        };
        Ok(Url::parse(&format!("http://{}/{path}", near(listen)))?)
    }
}

/// A URL that needs no certificates.
fn plain_url(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if url.scheme() == "http" => Ok(url),
        _ => Err("it begins with http://, as in http://127.0.0.1:9464/healthz".into()),
    }
}

/// The address by which this machine reaches a listener of its own (pure).
fn near(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Which parts are not up, and why, in words to follow the status (pure).
fn missing(answer: &Value) -> String {
    let parts = answer["parts"].as_array().into_iter().flatten();
    let down = parts.filter(|part| part["ok"] == Value::Bool(false));
    let words = down.map(|part| {
        let told = |name: &str| part[name].as_str().unwrap_or("?");
        format!("; {}: {}, since {}", told("part"), told("why"), told("since"))
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_listens_everywhere_is_reached_by_loopback() {
        for (listen, expected) in [
            ("0.0.0.0:9464", "127.0.0.1:9464"),
            ("[::]:1", "[::1]:1"),
            ("192.0.2.7:9464", "192.0.2.7:9464"),
            ("127.0.0.2:9464", "127.0.0.2:9464"),
        ] {
            assert_eq!(near(listen.parse().unwrap()).to_string(), expected);
        }
    }

    #[test]
    fn parts_that_are_not_up_are_named() {
        let part = |name: &str, ok: bool| json!({ "part": name, "ok": ok, "since": "now", "why": "gone" });
        for (answer, expected) in [
            (json!({ "parts": [part("broker", true), part("ledger", false)] }), "; ledger: gone, since now"),
            (
                json!({ "parts": [part("broker", false), { "part": "x", "ok": false }] }),
                "; broker: gone, since now; x: ?, since ?",
            ),
            (json!({}), ""),
        ] {
            assert_eq!(missing(&answer), expected);
        }
    }

    #[test]
    fn only_urls_without_tls_can_be_asked() {
        for (text, fine) in
            [("http://127.0.0.1:1/x", true), ("https://127.0.0.1:1/", false), ("127.0.0.1:9464", false), ("", false)]
        {
            assert_eq!(plain_url(text).is_ok(), fine, "{text}");
        }
    }
}
