//! Listens, and sees to it that no client costs the others anything: connections are bounded, in all and for each
//! address, and whoever is slow, to speak or to listen, is cut off.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::actor::Authenticator;
use super::endpoints::routes_and_rules;
use super::gate::{self, Gate};
use super::site::Site;
use super::{Api, door};
use crate::config::{ApiSettings, TlsSettings};
use crate::engine::StartError;
use crate::inspect::board::LOOK;
use crate::ledger::Scope;
use crate::tls;

/// Where `roundelay serve` answers when nothing is said.
pub const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 15_680);
/// So many connections may be open.
pub const MOST_CONNECTIONS: usize = 512;
/// So many from one address, unless all come from a proxy.
pub const MOST_FROM_ADDRESS: usize = 64;
/// A request's first line and headers may have so many bytes.
const MOST_HEAD: usize = 32 << 10;
/// For a body, and for a client to take what it is answered, there is so many times the patience for headers.
const PATIENT: u32 = 3;
/// How long what is under way may go on after the signal to stop.
const GRACE: Duration = Duration::from_secs(10);
/// How often what is too old is forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(600);
/// Rows forgotten at a time, few enough that nobody waits long behind it.
const ROWS: u32 = 500;
/// After a connection could not be accepted, since there are no more file descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);

/// From which address a connection comes.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// An address that is listened on, and where nobody is answered yet.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    settings: ApiSettings,
    anonymous: Scope,
}

impl Listener {
    /// Takes `address`. Port 0 is any free port.
    ///
    /// # Errors
    /// When it is taken or not this machine's, when the certificate cannot be used, or when the settings would
    /// let in everybody there.
    pub async fn bind(settings: &ApiSettings, address: SocketAddr) -> Result<Self, StartError> {
        let refused = |key: &str, why: String| StartError::Setup(format!("api.{key}: {why}"));
        let anonymous = settings.anonymous_on(address).map_err(|why| refused("anonymous", why))?;
        settings.encrypted_on(address).map_err(|why| refused("listen", why))?;
        let tls = settings.tls.as_ref().map(acceptor).transpose().map_err(|why| refused("tls", why))?;
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = bound.await.map_err(|error: io::Error| {
            StartError::Setup(format!("cannot listen on {address} (api.listen, or --listen): {error}"))
        })?;
        Ok(Self { listener, address, tls, settings: settings.clone(), anonymous })
    }

    /// Which address that is, with the port that was free.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whoever reaches it must show a token, so there must be one.
    async fn check_tokens(&self, api: &Api) -> Result<(), StartError> {
        let now = api.ledger().now();
        if self.anonymous > Scope::None || api.ledger().tokens().await?.iter().any(|token| token.is_valid(now)) {
            return Ok(());
        }
        let what = format!(
            "the API on {} has nobody who may use it: create a token first, with \
             `roundelay token create NAME --scope admin`",
            self.address
        );
        if crate::config::is_loopback(self.address) {
            tracing::warn!("{what}");
            return Ok(());
        }
        Err(StartError::Setup(what))
    }
}

/// Refuses a certificate and a key that could not be used.
pub(crate) fn check_tls(settings: &TlsSettings) -> Result<(), String> {
    acceptor(settings).map(drop)
}

fn acceptor(settings: &TlsSettings) -> Result<TlsAcceptor, String> {
    let certificates = tls::certificates(&settings.certificate)?;
    let key = tls::key(&settings.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key));
    let mut config = config.map_err(|error| {
        let (certificate, key) = (settings.certificate.display(), settings.key.display());
        format!("{certificate} and {key} do not go together: {error}")
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The API and the dashboard, ready to answer.
pub struct Server {
    listener: Listener,
    api: Arc<Api>,
    router: Router,
    /// What goes on without its client.
    tasks: TaskTracker,
}

impl Server {
    /// Prepares to answer on `listener`.
    ///
    /// # Errors
    /// When nobody could use it, or the ledger cannot be read.
    pub async fn new(listener: Listener, api: Arc<Api>) -> Result<Self, StartError> {
        listener.check_tokens(&api).await?;
        let tasks = TaskTracker::new();
        let settings = &listener.settings;
        let (routes, rules) = routes_and_rules();
        let gate = Gate {
            api: api.clone(),
            rules,
            site: Site {
                hosts: settings.hosts.clone(),
                address: listener.address.ip(),
                secure: settings.tls.is_some() || settings.behind_proxy,
                behind_proxy: settings.behind_proxy,
            },
            authenticator: Authenticator::new(listener.anonymous),
            patience: settings.patience * PATIENT,
            tasks: tasks.clone(),
        };
        let router = router(routes, gate);
        Ok(Self { listener, api, router, tasks })
    }

    /// Answers until `shutdown`, or until a part of it that should last has ended, then lets what is under way come to its end, for a bounded time.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { listener: Listener { listener, address, tls, settings, anonymous }, api, router, tasks } = self;
        let scheme = if tls.is_some() { "https" } else { "http" };
        tracing::info!(api = %format!("{scheme}://{address}"), %anonymous, "answering the API");
        // Streams end with it.
        let stopping = api.stopping().clone();
        let forget = async {
            loop {
                forget(&api).await;
                sleep(FORGET_EVERY).await;
            }
        };
        let board = api.clone();
        let mut board = AbortOnDropHandle::new(tokio::spawn(async move { board.keep_board(LOOK).await }));
        let per_address = if settings.behind_proxy { MOST_CONNECTIONS } else { MOST_FROM_ADDRESS };
        let places = Places::new(per_address);
        let served = Served { router, tls, patience: settings.patience, stop: shutdown.clone() };
        let mut connections = JoinSet::new();
        let accept = async {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let peer = peer.ip().to_canonical();
                        // Told nothing: it would take as long as what it is refused for.
                        let Some(place) = places.take(peer) else { continue };
                        let served = served.clone();
                        connections.spawn(async move {
                            served.connection(stream, peer).await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection to the API could not be accepted");
                        sleep(PAUSE).await;
                    }
                }
                while connections.try_join_next().is_some() {}
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            never = accept => never,
            never = forget => never,
            // What is shown would be old, and nobody could tell.
            ended = &mut board => {
                tracing::error!(why = ?ended.err(), "what is shown is not kept up to date any more; the API ends");
            }
        }
        drop(listener);
        stopping.cancel();
        tasks.close();
        let ended = async {
            while connections.join_next().await.is_some() {}
            tasks.wait().await;
        };
        if timeout(GRACE, ended).await.is_err() {
            tracing::warn!("some who use the API were cut off");
        }
    }
}

/// The way of a request: through the door, and to an endpoint through the gate.
pub(super) fn router(routes: Router<Arc<Api>>, gate: Gate) -> Router {
    let (api, gate) = (gate.api.clone(), Arc::new(gate));
    routes
        .layer(from_fn_with_state(gate.clone(), gate::pass))
        .fallback(door::elsewhere)
        .layer(from_fn_with_state(gate, door::pass))
        .with_state(api)
}

/// Forgets what is too old, a part at a time.
async fn forget(api: &Api) {
    loop {
        match api.ledger().forget_access(ROWS).await {
            Ok(0) => return,
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => {
                tracing::debug!(%error, "what is too old of the API's could not be forgotten");
                return;
            }
        }
    }
}

/// What connections share.
#[derive(Clone)]
struct Served {
    router: Router,
    tls: Option<TlsAcceptor>,
    patience: Duration,
    stop: CancellationToken,
}

impl Served {
    async fn connection(self, stream: TcpStream, peer: IpAddr) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.serve(stream, peer).await };
        match timeout(self.patience, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream, peer).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS with a client of the API"),
            Err(_) => tracing::debug!(%peer, "a client of the API was too slow with TLS"),
        }
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin, peer: IpAddr) {
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            router.call(request)
        });
        let stream = Patient { stream, patience: self.patience * PATIENT, waiting: None };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // Counted from the end of the answer before, too.
            .header_read_timeout(self.patience)
            .max_buf_size(MOST_HEAD)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "a connection to the API ended");
        }
    }
}

/// A stream whose other side must go on taking what is written.
struct Patient<S> {
    stream: S,
    patience: Duration,
    /// How long nothing has been taken.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Patient<S> {
    fn wait<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.stream), context) {
            self.waiting = None;
            return Poll::Ready(written);
        }
        let patience = self.patience;
        ready!(self.waiting.get_or_insert_with(|| Box::pin(sleep(patience))).as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take what it is sent")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.wait(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wait(context, S::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wait(context, S::poll_shutdown)
    }
}

/// Bounds how many connections there are.
#[derive(Clone)]
struct Places {
    per_address: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One of them, given back when it is dropped.
struct PlaceOf {
    places: Places,
    address: IpAddr,
}

impl Places {
    fn new(per_address: usize) -> Self {
        Self { per_address, taken: Arc::default() }
    }

    fn take(&self, address: IpAddr) -> Option<PlaceOf> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, of_this) = (taken.values().sum::<usize>(), taken.get(&address).copied().unwrap_or_default());
        if all >= MOST_CONNECTIONS || of_this >= self.per_address {
            return None;
        }
        taken.insert(address, of_this + 1);
        Some(PlaceOf { places: self.clone(), address })
    }
}

impl Drop for PlaceOf {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[test]
    fn one_address_cannot_take_all_places() {
        let places = Places::new(MOST_FROM_ADDRESS);
        let address = |n: u8| IpAddr::from([192, 0, 2, n]);
        let mut held: Vec<PlaceOf> = (0..MOST_FROM_ADDRESS).map(|_| places.take(address(1)).unwrap()).collect();
        assert!(places.take(address(1)).is_none());
        for n in 2..=(MOST_CONNECTIONS / MOST_FROM_ADDRESS) as u8 {
            held.extend((0..MOST_FROM_ADDRESS).map(|_| places.take(address(n)).unwrap()));
        }
        assert!(places.take(address(200)).is_none(), "there is an end of it");
        held.pop();
        assert!(places.take(address(200)).is_some());
        held.clear();
        assert!(places.taken.lock().unwrap().is_empty(), "nothing is left of those that have gone");
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_cut_off() {
        let (near, _far) = tokio::io::duplex(16);
        let mut stream = Patient { stream: near, patience: Duration::from_secs(30), waiting: None };
        let begun = tokio::time::Instant::now();
        let error = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!((error.kind(), begun.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_little_by_little_is_not() {
        use tokio::io::AsyncReadExt;
        let (near, mut far) = tokio::io::duplex(16);
        let mut stream = Patient { stream: near, patience: Duration::from_secs(30), waiting: None };
        let reader = tokio::spawn(async move {
            for _ in 0..8 {
                sleep(Duration::from_secs(20)).await;
                far.read_exact(&mut [0; 8]).await.unwrap();
            }
        });
        stream.write_all(&[0; 64]).await.unwrap();
        reader.await.unwrap();
    }
}
