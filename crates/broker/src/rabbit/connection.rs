//! One supervised connection: it is opened, watched, and opened again for as long as it is wanted.
//!
//! lapin can recover connections by itself. That is not used: it brings consumers back on its own terms, and nothing
//! here could then tell an old channel from a new one. Instead every task that needs a channel follows the [`Line`] and
//! makes a fresh one after each reconnection.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use lapin::options::BasicQosOptions;
use lapin::tcp::{AMQPUriTcpExt, RustlsConnector};
use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties, ErrorKind, Event};
use roundelay_model::backoff::ExponentialBackoff;
use roundelay_model::clock::Entropy;
use roundelay_net::tls;
use roundelay_net::tls::BrokerTls;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::certificates::Certificates;
use super::sieve::stream::{self, Sieved};
use crate::BrokerError;

/// How long one attempt to connect may take, TLS and login included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long an orderly close may take before the connection is dropped.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// Asked for where the URL says nothing. The broker's own 60 s would leave a dead peer unnoticed
/// for two minutes.
const HEARTBEAT_SECONDS: u16 = 10;
/// How often the connection's state is looked at, since not every loss comes with an event.
const PULSE: Duration = Duration::from_millis(500);
/// How often the broker is asked whether it answers: heartbeats tell only after twice their time that it does not.
const PROBE: Duration = Duration::from_secs(1);
/// A broker that has not answered for this long is away, until it answers or the connection is lost. The connection
/// stays: a broker that is only slow would have to hand out everything once more.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Where the broker is, and the credentials for it. Shown without the credentials.
#[derive(Clone)]
pub(super) struct Address {
    uri: AMQPUri,
    pub(super) shown: String,
    pub(super) tls: BrokerTls,
    pub(super) certificates: Arc<Certificates>,
}

impl Address {
    /// Reads an `amqp://` or `amqps://` URL.
    pub(super) fn parse(url: &str) -> Result<Self, BrokerError> {
        let bad = |reason: String| BrokerError::Connect { url: "the broker URL".into(), reason };
        let mut uri: AMQPUri = url.parse().map_err(|reason| bad(format!("not an AMQP URL: {reason}")))?;
        // lapin's reader takes an IPv6 address for an absent host, which would mean localhost.
        if let Ok(url) = url::Url::parse(url)
            && let Some(url::Host::Ipv6(ip)) = url.host()
        {
            uri.authority.host = ip.to_string();
        }
        // `amqp://host/` names the virtual host with no name. No broker has one; people mean `/`.
        if uri.vhost.is_empty() {
            uri.vhost = "/".into();
        }
        uri.query.heartbeat = uri.query.heartbeat.or(Some(HEARTBEAT_SECONDS));
        let at = &uri.authority;
        let shown = format!("{}://{}:{} (virtual host `{}`)", uri.scheme, at.host, at.port, uri.vhost);
        Ok(Self { uri, shown, tls: BrokerTls::default(), certificates: Arc::default() })
    }

    /// With these files in place of what the system trusts.
    pub(super) fn with_tls(self, tls: BrokerTls) -> Self {
        Self { tls, ..self }
    }

    /// The virtual host.
    pub(super) fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    /// The host and the port.
    pub(super) fn authority(&self) -> (&str, u16) {
        (&self.uri.authority.host, self.uri.authority.port)
    }

    /// The user at the broker.
    pub(super) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    /// Whether the way there is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    /// Whether we log in by our certificate, and not by a password.
    pub(super) fn logs_in_by_certificate(&self) -> bool {
        self.uri.query.auth_mechanism == Some(SASLMechanism::External)
    }

    /// Opens a connection that the management UI shows as `name`, however long that takes.
    ///
    /// Certificates are read anew each time, so that they can be renewed while this goes on.
    pub(super) async fn dial(&self, name: &str) -> lapin::Result<Connection> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let tokio = lapin::runtime::default_runtime()?;
        let at = self.clone();
        let connect = async move |uri: AMQPUri, _| {
            let longest = uri.query.frame_max.unwrap_or_default();
            // The broker may hand on messages that lapin cannot read.
            let sieved = |stream| Ok(AsyncTcpStream::Plain(Sieved::new(stream, longest)));
            let plain = AMQPUri { scheme: AMQPScheme::AMQP, ..uri };
            let stream = plain.connect_async(&tokio).await?;
            if !at.is_encrypted() {
                return sieved(stream);
            }
            at.certificates.look(&at.tls);
            let connector = RustlsConnector::from(tls::client(&at.tls).map_err(std::io::Error::other)?);
            let stream = stream.into_rustls(&connector, &plain.authority.host).await?;
            if let AsyncTcpStream::Rustls(stream) = &stream {
                at.certificates.shown(stream.get_ref().1.peer_certificates().unwrap_or_default());
            }
            at.certificates.look(&at.tls);
            sieved(stream)
        };
        // Its type is too deep for the compiler to look through wherever it is awaited.
        let connecting: BoxFuture<'_, _> =
            Box::pin(Connection::connector(self.uri.clone(), stream::runtime(), connect, properties));
        connecting.await
    }

    /// Looks whether a certificate ends soon, as often as this says, for ever. Connections that are open know only the
    /// one that the broker had when they were made, so it is asked for its own anew.
    pub(super) async fn watch_certificates(self, every: Duration) {
        let (mut asked, mut told) = (None, String::new());
        loop {
            let left = self.certificates.wait(asked, every);
            if !left.is_zero() {
                sleep(left).await;
                continue;
            }
            asked = Some(Instant::now());
            let none = || std::io::Error::other(format!("no answer within {} s", CONNECT_WITHIN.as_secs()));
            let shown = timeout(CONNECT_WITHIN, self.handshake()).await.unwrap_or_else(|_| Err(none()));
            let reason = shown.err().map(|error| error.to_string()).unwrap_or_default();
            if !reason.is_empty() && reason != told {
                warn!(
                    broker = %self.shown, %reason,
                    "the broker's certificate cannot be looked at; connections that are open go on, new ones would fail"
                );
            }
            told = reason;
            self.certificates.look(&self.tls);
        }
    }

    /// Reaches the broker as far as TLS goes, to see its certificate.
    async fn handshake(&self) -> std::io::Result<()> {
        let (host, port) = self.authority();
        let client = tls::client(&self.tls).map_err(std::io::Error::other)?;
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        let stream = TcpStream::connect((host, port)).await?;
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await?;
        self.certificates.shown(stream.get_ref().1.peer_certificates().unwrap_or_default());
        // An orderly end, which RabbitMQ takes for a check whether the port is open.
        stream.shutdown().await
    }

    /// Opens a connection that the management UI shows as `name`.
    async fn open(&self, name: &str) -> Result<Connection, BrokerError> {
        let failed = |reason: String| BrokerError::Connect { url: self.shown.clone(), reason };
        let away = |reason: String| BrokerError::Away { url: self.shown.clone(), reason };
        match timeout(CONNECT_WITHIN, self.dial(name)).await {
            Ok(Ok(connection)) => Ok(connection),
            // The broker says so at its end, if at all, and often only breaks the connection off.
            Ok(Err(error)) if self.certificates.ours_is_over() => Err(failed(format!(
                "{}; our own certificate has ended: renew broker.tls.certificate",
                in_words(&error)
            ))),
            Ok(Err(error)) if is_away(&error) => Err(away(in_words(&error))),
            Ok(Err(error)) => Err(failed(in_words(&error))),
            Err(_) => Err(away(format!("no answer within {} s", CONNECT_WITHIN.as_secs()))),
        }
    }
}

/// Chooses ring for TLS. An error means that a provider was chosen before, which is as good.
pub(super) fn install_tls_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What a lapin error means, without the layers that lapin puts around it. The broker's own words
/// say what is wrong and with what (`NOT_FOUND - no queue 'x' in vhost '/'`).
pub(super) fn in_words(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => "the connection is closed".into(),
        _ => error.to_string(),
    }
}

/// Whether nothing was there that could be wrong: files, certificates and names that do not exist come as other kinds.
fn is_away(error: &lapin::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, NotFound, Other, PermissionDenied};
    match error.kind() {
        ErrorKind::IOError(error) => {
            !matches!(error.kind(), InvalidData | InvalidInput | NotFound | Other | PermissionDenied)
        }
        _ => false,
    }
}

/// A name as AMQP carries it: at most 255 bytes.
pub(super) fn short(text: &str) -> Result<lapin::types::ShortString, BrokerError> {
    let told = || format!("a name of {} bytes is too long for AMQP, which allows 255: {text:.60}…", text.len());
    lapin::types::ShortString::try_new(text).map_err(|_| BrokerError::Other(told()))
}

/// The state of a connection, as its users see it.
#[derive(Clone)]
pub(super) enum Line {
    /// Usable.
    Up(Arc<Connection>),
    /// Lost, and being reopened. Says why it was lost.
    Away(Arc<str>),
    /// Closed on purpose, for good.
    Closed,
}

/// A connection that is kept.
pub(super) struct Link {
    line: watch::Receiver<Line>,
    blocked: watch::Receiver<bool>,
    silent: watch::Receiver<bool>,
    losses: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Link {
    /// Connects, and then keeps the connection until [`close`](Self::close) or drop.
    ///
    /// The first attempt is the only one that can fail: wrong addresses and passwords must be reported when the program
    /// starts, not retried silently.
    pub(super) async fn connect(address: Address, name: String, entropy: Entropy) -> Result<Self, BrokerError> {
        let connection = address.open(&name).await?;
        Ok(Self::keep(address, name, entropy, Ok(connection)))
    }

    /// A connection to a broker that was away at the first attempt, and why.
    pub(super) fn absent(address: Address, name: String, entropy: Entropy, why: String) -> Self {
        Self::keep(address, name, entropy, Err(why))
    }

    fn keep(address: Address, name: String, entropy: Entropy, first: Result<Connection, String>) -> Self {
        let first = first.map(Arc::new);
        let (line_out, line) = watch::channel(match &first {
            Ok(connection) => Line::Up(connection.clone()),
            Err(why) => Line::Away(why.as_str().into()),
        });
        let (blocked_out, blocked) = watch::channel(false);
        let (silent_out, silent) = watch::channel(false);
        let (losses, stop) = (Arc::<AtomicU64>::default(), CancellationToken::new());
        let keeper = Keeper {
            address,
            name,
            entropy,
            line: line_out,
            blocked: blocked_out,
            silent: silent_out,
            losses: losses.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(keeper.keep(first.ok()));
        Self { line, blocked, silent, losses, stop }
    }

    /// Follows the connection's state.
    pub(super) fn line(&self) -> watch::Receiver<Line> {
        self.line.clone()
    }

    /// Follows whether the broker has blocked the connection.
    pub(super) fn blocked(&self) -> watch::Receiver<bool> {
        self.blocked.clone()
    }

    /// How often it was lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Why the connection cannot be used; `None` when it is up and the broker answers.
    pub(super) fn unavailable(&self) -> Option<String> {
        match &*self.line.borrow() {
            Line::Up(_) => self.silent.borrow().then(|| "the broker does not answer".to_owned()),
            Line::Away(reason) => Some(format!("the broker is away: {reason}")),
            Line::Closed => Some("the connection has been closed".into()),
        }
    }

    /// Closes the connection and waits until it is closed.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let mut line = self.line.clone();
        let _ = line.wait_for(|line| matches!(line, Line::Closed)).await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The connection once it is up; or, when it is not within `patience`, why.
pub(super) async fn up(line: &mut watch::Receiver<Line>, patience: Duration) -> Result<Arc<Connection>, String> {
    let _ = timeout(patience, line.wait_for(|line| !matches!(line, Line::Away(_)))).await;
    match &*line.borrow() {
        Line::Up(connection) => Ok(connection.clone()),
        Line::Away(reason) => Err(format!("the broker is away: {reason}")),
        Line::Closed => Err("the connection has been closed".into()),
    }
}

/// Waits between attempts: from 100 ms, doubling to 5 s, each between half and all of it, so that
/// a fleet that lost its broker together does not come back in step.
pub(super) struct Backoff {
    entropy: Entropy,
    pauses: ExponentialBackoff,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(5);

    pub(super) fn new(entropy: Entropy) -> Self {
        Self { entropy, pauses: ExponentialBackoff::new(Self::FIRST, Self::MAX) }
    }

    pub(super) async fn wait(&mut self) {
        let pause = self.pauses.next_pause();
        sleep(self.entropy.between(pause / 2, pause)).await;
    }

    pub(super) fn reset(&mut self) {
        self.pauses.reset();
    }
}

/// The task behind a [`Link`].
struct Keeper {
    address: Address,
    name: String,
    entropy: Entropy,
    line: watch::Sender<Line>,
    blocked: watch::Sender<bool>,
    silent: watch::Sender<bool>,
    losses: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Keeper {
    async fn keep(self, mut connection: Option<Arc<Connection>>) {
        loop {
            if let Some(connection) = &connection {
                let Some(reason) = self.watch_over(connection).await else { break };
                warn!(connection = %self.name, broker = %self.address.shown, %reason, "lost the broker; reconnecting");
                self.losses.fetch_add(1, Ordering::Relaxed);
                self.line.send_replace(Line::Away(reason.into()));
                self.blocked.send_replace(false);
                self.silent.send_replace(false);
            }
            let Some(fresh) = self.reopen().await else { break };
            let fresh = Arc::new(fresh);
            self.line.send_replace(Line::Up(fresh.clone()));
            connection = Some(fresh);
        }
        if let Some(connection) = connection.filter(|connection| connection.status().connected()) {
            let _ = timeout(CLOSE_WITHIN, connection.close(200, "closed by roundelay".into())).await;
        }
        self.line.send_replace(Line::Closed);
    }

    /// Returns when the connection is lost (why), or no longer wanted (nothing).
    async fn watch_over(&self, connection: &Connection) -> Option<String> {
        let mut events = pin!(connection.events_listener());
        let mut pulse = interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reason = None;
        let mut probing = pin!(self.probe(connection));
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                _ = pulse.tick() => {}
                never = &mut probing => match never {},
                Some(event) = events.next() => match event {
                    Event::ConnectionBlocked(why) => self.set_blocked(Some(&why)),
                    Event::ConnectionUnblocked => self.set_blocked(None),
                    // Errors of single channels come this way too; the state tells them apart.
                    Event::Error(error) => reason = Some(in_words(&error)),
                    _ => {}
                },
            }
            if !connection.status().connected() {
                return Some(reason.unwrap_or_else(|| "the connection is closed".into()));
            }
        }
    }

    /// Asks the broker again and again, on a channel of its own, whether it answers.
    async fn probe(&self, connection: &Connection) -> Infallible {
        loop {
            if let Some(Ok(channel)) = self.answer(connection.create_channel()).await {
                let ask = || channel.basic_qos(1, BasicQosOptions::default());
                while !matches!(self.answer(ask()).await, Some(Err(_))) {
                    sleep(PROBE).await;
                }
            }
            sleep(PROBE).await;
        }
    }

    /// What the broker answers. It is silent from when it has not answered for a while until it does; one that has
    /// blocked the connection does not read what is asked, and is not asked.
    async fn answer<T>(&self, asked: impl Future<Output = lapin::Result<T>>) -> Option<lapin::Result<T>> {
        if *self.blocked.borrow() {
            return None;
        }
        let mut asked = pin!(asked);
        if let Ok(answer) = timeout(ANSWERS_WITHIN, &mut asked).await {
            return Some(answer);
        }
        if !*self.blocked.borrow() {
            warn!(connection = %self.name, "the broker has not answered for {ANSWERS_WITHIN:?}");
            self.silent.send_replace(true);
        }
        let answer = asked.await;
        if self.silent.send_replace(false) {
            info!(connection = %self.name, "the broker answers again");
        }
        Some(answer)
    }

    fn set_blocked(&self, why: Option<&str>) {
        let blocked = why.is_some();
        if self.blocked.send_replace(blocked) == blocked {
            return;
        }
        match why {
            Some(reason) => warn!(
                connection = %self.name, %reason,
                "the broker has run into its memory or disk limit and accepts no messages; publishing waits"
            ),
            None => info!(connection = %self.name, "the broker accepts messages again"),
        }
    }

    /// Connects again, for ever; nothing when no longer wanted.
    async fn reopen(&self) -> Option<Connection> {
        let mut backoff = Backoff::new(self.entropy.clone());
        let since = Instant::now();
        let mut told = String::new();
        for attempt in 1_u32.. {
            let again = async {
                backoff.wait().await;
                self.address.open(&self.name).await
            };
            let opened = tokio::select! {
                () = self.stop.cancelled() => return None,
                opened = again => opened,
            };
            match opened {
                Ok(connection) => {
                    let away_ms = since.elapsed().as_millis() as u64;
                    info!(connection = %self.name, broker = %self.address.shown, away_ms, attempt, "the broker is back");
                    return Some(connection);
                }
                Err(error) => {
                    let reason = error.to_string();
                    if told != reason {
                        warn!(connection = %self.name, attempt, %reason, "failed to reconnect; trying again");
                        told = reason;
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_show_no_password_and_mean_what_people_mean() {
        let table = [
            ("amqp://u:secret@h", "amqp://h:5672 (virtual host `/`)"),
            ("amqp://u:secret@h/", "amqp://h:5672 (virtual host `/`)"),
            ("amqp://u:secret@h:1/%2f", "amqp://h:1 (virtual host `/`)"),
            ("amqps://u:secret@h/a%20b", "amqps://h:5671 (virtual host `a b`)"),
            ("amqp://u:secret@[::1]:7/v", "amqp://::1:7 (virtual host `v`)"),
        ];
        for (url, shown) in table {
            assert_eq!(Address::parse(url).unwrap().shown, shown);
        }
        assert_eq!(Address::parse("amqp://h").unwrap().uri.query.heartbeat, Some(HEARTBEAT_SECONDS));
        assert_eq!(Address::parse("amqp://h?heartbeat=3").unwrap().uri.query.heartbeat, Some(3));
        for url in ["", "secret", "http://u:secret@h", "amqp://u:secret@h?heartbeat=x"] {
            let error = Address::parse(url).err().unwrap().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
