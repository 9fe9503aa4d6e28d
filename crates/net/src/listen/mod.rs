//! Listens for HTTP, and sees to it that no client costs the others anything: connections are bounded, in all and for
//! each address, and a client that is slow to send or to read is cut off. The API and `worker.listen` both stand on it.
//!
//! When all connections are taken, the one that has waited longest for a request is closed. So a client that has a
//! request gets in, and one that only holds its connection loses it.
//!
//! - [`host`]: for which host a request is.

pub mod host;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// A request's first line and headers may have so many bytes.
const MAX_HEAD: usize = 32 << 10;
/// For a body, and for a client to take what it is answered, there is so many times the patience for headers.
pub const PATIENT: u32 = 3;
/// After a connection could not be accepted, since there are no more file descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);

/// From which address a connection comes.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// How much of it clients may have.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// So many connections may be open,
    pub connections: usize,
    /// and so many from one address.
    pub per_address: usize,
    /// How long a client may take for the headers of a request; [so many times](PATIENT) as long to take what it is
    /// answered.
    pub patience: Duration,
}

/// Who is answered, and how.
#[derive(Clone)]
pub struct Served {
    /// What answers.
    pub router: Router,
    /// Set where TLS ends here.
    pub tls: Option<TlsAcceptor>,
    /// How much of it clients may have.
    pub bounds: Bounds,
    /// Once it is cancelled, connections end after what they are answering.
    pub stop: CancellationToken,
}

impl Served {
    /// Answers all connections, for ever; `connections` has those that are open.
    pub async fn accept<T>(&self, listener: &TcpListener, connections: &mut JoinSet<()>) -> T {
        let places = Places::new(self.bounds);
        let mut failed = 0_u64;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    if failed > 0 {
                        tracing::info!(failed, "connections are accepted again");
                        failed = 0;
                    }
                    let peer = peer.ip().to_canonical();
                    // Told nothing: it would take as long as what it is refused for.
                    let Some(place) = places.take(peer) else { continue };
                    let served = self.clone();
                    connections.spawn(async move {
                        let leave = place.leave.clone();
                        tokio::select! {
                            () = served.connection(stream, &place) => {}
                            () = leave.cancelled() => tracing::debug!(%peer, "a connection gave its place to another"),
                        }
                    });
                }
                Err(error) => {
                    if failed == 0 {
                        tracing::warn!(%error, "connections cannot be accepted; trying again every {PAUSE:?}");
                    }
                    failed += 1;
                    sleep(PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }

    async fn connection(&self, stream: TcpStream, place: &PlaceOf) {
        let _ = stream.set_nodelay(true);
        let (peer, patience) = (place.address, self.bounds.patience);
        let Some(tls) = &self.tls else { return self.serve(stream, place).await };
        match timeout(patience, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream, place).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS with a client"),
            Err(_) => tracing::debug!(%peer, "a client was too slow with TLS"),
        }
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin, place: &PlaceOf) {
        let (peer, patience) = (place.address, self.bounds.patience);
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(|mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            let (answering, asked) = (place.answering(), router.call(request));
            async move { asked.await.map(|response| response.map(|body| Answer { body, _answering: answering })) }
        });
        let stream = Patient { stream, patience: patience * PATIENT, waiting: None };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // Counted from the end of the answer before, too.
            .header_read_timeout(patience)
            .max_buf_size(MAX_HEAD)
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
            tracing::debug!(%peer, %error, "a connection ended");
        }
    }
}

/// The body of an answer, whose connection waits for no request until it is gone.
struct Answer {
    body: Body,
    _answering: Answering,
}

impl hyper::body::Body for Answer {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
    bounds: Bounds,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    /// By numbers that grow.
    places: BTreeMap<u64, Held>,
    /// The last number that was given, to a connection or to the moment since when one waits.
    last: u64,
}

struct Held {
    address: IpAddr,
    /// Since when it waits for a request; nothing while it answers one.
    waits_since: Option<u64>,
    /// Cancelled when another gets its place.
    leave: CancellationToken,
}

/// One of them, given back when it is dropped.
struct PlaceOf {
    places: Places,
    number: u64,
    address: IpAddr,
    leave: CancellationToken,
}

/// While it is there, a connection does not wait for a request.
struct Answering {
    places: Places,
    number: u64,
}

impl Places {
    fn new(bounds: Bounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock()
    }

    /// A place for a connection from `address`; nothing where all are taken by those that are being answered.
    fn take(&self, address: IpAddr) -> Option<PlaceOf> {
        let mut taken = self.taken();
        let of_this = taken.places.values().filter(|held| held.address == address).count();
        // Of those that wait the oldest leaves: of this address, where that has its share.
        if of_this >= self.bounds.per_address || taken.places.len() >= self.bounds.connections {
            let may_leave = |held: &Held| of_this < self.bounds.per_address || held.address == address;
            let waiting = taken.places.iter().filter(|(_, held)| may_leave(held));
            let waiting = waiting.filter_map(|(number, held)| Some((held.waits_since?, *number)));
            let (_, oldest) = waiting.min()?;
            taken.places.remove(&oldest)?.leave.cancel();
        }
        let number = taken.next();
        let leave = CancellationToken::new();
        taken.places.insert(number, Held { address, waits_since: Some(number), leave: leave.clone() });
        Some(PlaceOf { places: self.clone(), number, address, leave })
    }
}

impl Taken {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl PlaceOf {
    fn answering(&self) -> Answering {
        if let Some(held) = self.places.taken().places.get_mut(&self.number) {
            held.waits_since = None;
        }
        Answering { places: self.places.clone(), number: self.number }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        let now = taken.next();
        if let Some(held) = taken.places.get_mut(&self.number) {
            held.waits_since = Some(now);
        }
    }
}

impl Drop for PlaceOf {
    fn drop(&mut self) {
        self.places.taken().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn places() -> Places {
        Places::new(Bounds { connections: 5, per_address: 2, patience: Duration::from_secs(1) })
    }

    #[test]
    fn one_address_cannot_take_all_places() {
        let places = places();
        let of_one = [places.take(address(1)).unwrap(), places.take(address(1)).unwrap()];
        let answering = [of_one[0].answering(), of_one[1].answering()];
        assert!(places.take(address(1)).is_none(), "it has its share, and all of it is being answered");
        let others = [2, 2, 3].map(|n| places.take(address(n)).unwrap());
        let asking = others.each_ref().map(PlaceOf::answering);
        assert!(places.take(address(4)).is_none(), "there is an end of it");
        drop((answering, asking));
        assert!(places.take(address(4)).is_some());
        drop((of_one, others));
        assert!(places.taken().places.is_empty(), "nothing is left of those that have gone");
    }

    #[test]
    fn who_waits_longest_gives_way_to_whoever_comes() {
        let places = places();
        let held: Vec<PlaceOf> = [1, 1, 2, 2, 3].iter().map(|n| places.take(address(*n)).unwrap()).collect();
        let left = || held.iter().map(|place| place.leave.is_cancelled()).collect::<Vec<_>>();
        drop(held[0].answering());
        let answers = held[1].answering();
        let own = places.take(address(2)).unwrap();
        assert_eq!(left(), [false, false, true, false, false], "the oldest of an address that has its share");
        let other = places.take(address(4)).unwrap();
        assert_eq!(left(), [false, false, true, true, false], "then the oldest of all: not one that is answered");
        let more = [places.take(address(5)).unwrap(), places.take(address(6)).unwrap()];
        assert_eq!(left(), [true, false, true, true, true], "the one that was answered came last");
        assert!(!own.leave.is_cancelled());
        drop(answers);
        drop((own, other, more));
        assert_eq!(places.taken().places.len(), 1, "the one that was being answered");
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
