//! Examining a broker: how far a connection gets, and what its management API tells. Nothing is declared, published or
//! consumed.

use std::sync::Arc;

use lapin::ErrorKind;
use reqwest::header::DATE;
use roundelay_model::clock::{Clock, Time};
use roundelay_net::tls;
use roundelay_net::tls::BrokerTls;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::certificates::Certificate;
use super::connection::{Address, in_words};
use super::management::{self, Api};

/// How far a connection gets.
#[derive(Clone, Debug, PartialEq)]
pub enum Reached {
    /// Nothing answers at its address.
    NoAnswer(String),
    /// A server answers, and the files of `broker.tls` cannot be used.
    NoFiles(String),
    /// A server answers, and the TLS handshake fails.
    NoTls(rustls::Error),
    /// A server answers, and it does not speak TLS, or the connection ended within the handshake.
    NoHandshake(String),
    /// The broker, or the server that answers there, refuses the login.
    Refused {
        /// AMQP's reply code, where it is a broker.
        code: Option<u16>,
        /// What it says.
        words: String,
    },
    /// The login worked.
    In(Negotiated),
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Seconds; 0 is none.
    pub heartbeat: u16,
    /// Bytes.
    pub frame_max: u32,
    /// Channels of one connection; 0 is as many as there are numbers.
    pub channel_max: u16,
}

/// Where the broker is, and the user at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The host of the URL.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The virtual host.
    pub vhost: String,
    /// The user.
    pub user: String,
    /// `amqps`.
    pub encrypted: bool,
}

impl Place {
    /// Where an `amqp://` or `amqps://` URL leads.
    ///
    /// # Errors
    /// When it cannot be read; without the password.
    pub fn of(url: &str) -> Result<Self, String> {
        let address = Address::parse(url).map_err(|error| error.to_string())?;
        let ((host, port), vhost) = (address.authority(), address.vhost().to_owned());
        Ok(Self { host: host.into(), port, vhost, user: address.user().into(), encrypted: address.is_encrypted() })
    }
}

/// Connects as far as possible: a connection, TLS where the URL wants it, the login. All is closed again. Answers also
/// with what is then known of the certificates.
pub async fn reach(url: &str, tls: &BrokerTls) -> (Reached, Vec<Certificate>) {
    let address = match Address::parse(url) {
        Ok(address) => address.with_tls(tls.clone()),
        Err(error) => return (Reached::NoAnswer(error.to_string()), Vec::new()),
    };
    let reached = go(&address).await;
    (reached, address.certificates.known())
}

async fn go(address: &Address) -> Reached {
    let stream = match TcpStream::connect(address.authority()).await {
        Ok(stream) => stream,
        Err(error) => return Reached::NoAnswer(error.to_string()),
    };
    if address.is_encrypted()
        && let Err(refused) = handshake(stream, address).await
    {
        return refused;
    }
    match address.dial(&format!("roundelay doctor {}", std::process::id())).await {
        Ok(connection) => {
            let agreed = connection.configuration();
            let agreed = Negotiated {
                heartbeat: agreed.heartbeat(),
                frame_max: agreed.frame_max(),
                channel_max: agreed.channel_max(),
            };
            let _ = connection.close(200, "seen".into()).await;
            Reached::In(agreed)
        }
        Err(error) => {
            let code = match error.kind() {
                ErrorKind::ProtocolError(amqp) => Some(amqp.get_id()),
                _ => None,
            };
            Reached::Refused { code, words: in_words(&error) }
        }
    }
}

/// As the connections of workers do it.
async fn handshake(stream: TcpStream, address: &Address) -> Result<(), Reached> {
    // Also where the rest fails, because it has ended.
    address.certificates.look(&address.tls);
    let config = tls::client(&address.tls).map_err(Reached::NoFiles)?;
    let name = rustls::pki_types::ServerName::try_from(address.authority().0.to_owned())
        .map_err(|error| Reached::NoHandshake(error.to_string()))?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(_) => Ok(()),
        Err(error) => match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => Err(Reached::NoTls(tls.clone())),
            None => Err(Reached::NoHandshake(error.to_string())),
        },
    }
}

/// What the management API tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The user at the management API.
    pub user: String,
    /// The broker's version.
    pub version: String,
    /// Its clock: this machine's before it was asked, what it showed, in whole seconds, and this machine's after.
    pub clock: Option<(Time, Time, Time)>,
    /// Its nodes, or why they are not to be known.
    pub nodes: Result<Vec<Node>, Withheld>,
    /// Whether an alarm is in force on any node; only asked where the nodes are withheld.
    pub alarm: Option<bool>,
    /// What the user of the AMQP URL may do in its virtual host: nothing where nothing was granted.
    pub permissions: Result<Option<Permissions>, Withheld>,
    /// Features that may be switched off, and whether they are on.
    pub features: Result<Vec<Feature>, Withheld>,
}

/// Why something is not told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// The user lacks a tag.
    Forbidden,
    /// It does not answer as it should.
    Failed(String),
}

/// A node of the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it runs.
    pub running: bool,
    /// It is short of memory, and takes no messages.
    pub mem_alarm: bool,
    /// It is short of disk, and takes no messages.
    pub disk_free_alarm: bool,
    /// Bytes of disk that are free.
    pub disk_free: Option<u64>,
    /// Below which the alarm is raised.
    pub disk_free_limit: Option<u64>,
    /// Bytes of memory in use.
    pub mem_used: Option<u64>,
    /// Above which the alarm is raised.
    pub mem_limit: Option<u64>,
    /// File descriptors in use.
    pub fd_used: Option<u64>,
    /// File descriptors that it may have.
    pub fd_total: Option<u64>,
    /// Nodes that it has lost sight of.
    pub partitions: Vec<String>,
}

/// Regular expressions over the names of queues and exchanges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permissions {
    /// What may be declared.
    pub configure: String,
    /// What may be published and bound to.
    pub write: String,
    /// What may be consumed and bound from.
    pub read: String,
}

/// A feature flag.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// `enabled`, `disabled`, …
    pub state: String,
}

/// Why the management API tells nothing at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untold {
    /// It does not answer.
    NoAnswer(String),
    /// It does not know this user, or the password is another, or the user lacks the tag.
    Refused(String),
}

/// Asks the management API at `url` about the broker, and about the user `user` in the virtual host `vhost`.
///
/// # Errors
/// When it tells nothing at all; without the password.
pub async fn ask(url: &str, vhost: &str, user: &str, tls: &BrokerTls) -> Result<Told, Untold> {
    #[derive(Deserialize)]
    struct Overview {
        rabbitmq_version: String,
    }
    let api = Api::new(&management::Place { url, vhost, tls }).map_err(Untold::NoAnswer)?;
    let before = Clock::System.now();
    let response = api.request("overview", "rabbitmq_version").await.map_err(Untold::NoAnswer)?;
    let after = Clock::System.now();
    match response.status().as_u16() {
        200 => {}
        401 => return Err(Untold::Refused(api.user().into())),
        status => return Err(Untold::NoAnswer(format!("it answers {status} to {}", response.url().path()))),
    }
    let date = response.headers().get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    let told = date.and_then(|date| date.duration_since(std::time::UNIX_EPOCH).ok());
    let clock = told.map(|told| (before, Time::from_millis(told.as_millis() as i64), after));
    let overview: Overview = response.json().await.map_err(|error| Untold::NoAnswer(api.unanswered(error)))?;
    let user = percent_encoding::utf8_percent_encode(user, percent_encoding::NON_ALPHANUMERIC);
    let permissions = format!("permissions/{}/{user}", api.vhost());
    let (nodes, permissions, features) =
        tokio::join!(part(&api, "nodes"), part(&api, &permissions), part(&api, "feature-flags"));
    let alarm = match &nodes {
        Err(Withheld::Forbidden) => match api.request("health/checks/alarms", "").await {
            Ok(response) if response.status().as_u16() == 200 => Some(false),
            Ok(response) if response.status().as_u16() == 503 => Some(true),
            _ => None,
        },
        _ => None,
    };
    Ok(Told {
        user: api.user().into(),
        version: overview.rabbitmq_version,
        clock,
        nodes: nodes.map(Option::unwrap_or_default),
        alarm,
        permissions,
        features: features.map(Option::unwrap_or_default),
    })
}

/// One thing that it tells; nothing when there is no such thing.
async fn part<T: DeserializeOwned>(api: &Api, what: &str) -> Result<Option<T>, Withheld> {
    let response = api.request(what, "").await.map_err(Withheld::Failed)?;
    match response.status().as_u16() {
        200 => response.json().await.map(Some).map_err(|error| Withheld::Failed(api.unanswered(error))),
        401 | 403 => Err(Withheld::Forbidden),
        404 => Ok(None),
        status => Err(Withheld::Failed(format!("it answers {status} to {what}"))),
    }
}
