//! lapin reads a connection through the sieve.
//!
//! lapin wants the connection to be of its runtime's own type, so this is a runtime: tokio's, whose connections are
//! sieved.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream;
use lapin::AsyncTcpStream;

use super::Sieve;

/// A connection to the broker, encrypted or not, as tokio has it.
type Plain = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;
/// tokio, with connections that are sieved.
pub(in super::super) type Kit = RuntimeParts<Tokio, Sieving>;

/// The runtime for lapin.
pub(in super::super) fn runtime() -> Runtime<Kit> {
    Runtime::new(RuntimeParts::new(Tokio::current(), Sieving(Tokio::current())))
}

/// A connection that is read through a sieve.
pub(in super::super) struct Sieved {
    inner: Plain,
    sieve: Sieve,
}

impl Sieved {
    /// `longest` is how long we want frames to be: see [`Sieve::new`].
    pub(in super::super) fn new(inner: Plain, longest: u32) -> Self {
        Self { inner, sieve: Sieve::new(longest) }
    }
}

impl AsyncRead for Sieved {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { inner, sieve } = self.get_mut();
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            let given = sieve.give(buf);
            if given > 0 {
                return Poll::Ready(Ok(given));
            }
            match ready!(Pin::new(&mut *inner).poll_read(cx, sieve.room()))? {
                0 => return Poll::Ready(Ok(0)),
                came => sieve.came(came),
            }
        }
    }
}

impl AsyncWrite for Sieved {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_close(cx)
    }
}

/// tokio's reactor, with connections that are sieved.
#[derive(Clone, Debug)]
pub(in super::super) struct Sieving(Tokio);

impl Reactor for Sieving {
    type TcpStream = Sieved;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// Never called: connections are made by their address.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Sieved, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async move { Ok(Sieved::new(AsyncTcpStream::Plain(connecting.await?), 0)) }
    }
}
