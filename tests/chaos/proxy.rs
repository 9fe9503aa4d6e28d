//! The network between the workers and their services: TCP links that can be broken in the ways in
//! which networks break.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// What a link does with what it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Carries it.
    Open,
    /// Ends its connections and takes no new ones.
    Cut,
    /// Holds back what comes from the client, or what comes from the server, or both, as if every
    /// packet were lost; neither side gets an error.
    Hole { from_client: bool, from_server: bool },
    /// The server's ends are closed. The clients get no error and no answer any more, also when the link is
    /// open again: they have to detect the loss.
    HalfOpen,
    /// Carries everything this much later.
    Slow(Duration),
}

/// Is told of a client that has ended its connection while the link carried nothing of it: the port by which its
/// server knows it. The server is never told, nor gets what was under way.
pub type Witness = Arc<dyn Fn(u16) + Send + Sync>;

/// A place to connect to that leads to one of several servers.
pub struct Link {
    /// Where clients connect.
    pub port: u16,
    mode: watch::Sender<Mode>,
    servers: Servers,
}

/// Where a link leads.
type Servers = Arc<Mutex<Vec<SocketAddr>>>;

impl Link {
    /// Opens a link to whichever of `servers` takes connections, in turn.
    pub async fn open(servers: Vec<SocketAddr>) -> std::io::Result<Self> {
        Self::open_at(Ipv4Addr::LOCALHOST.into(), servers).await
    }

    /// Opens a proxy at this address of the machine.
    pub async fn open_at(address: IpAddr, servers: Vec<SocketAddr>) -> std::io::Result<Self> {
        Self::open_with(address, servers, None).await
    }

    /// Opens a proxy with a witness that sees which clients give up.
    pub async fn open_watched(servers: Vec<SocketAddr>, witness: Witness) -> std::io::Result<Self> {
        Self::open_with(Ipv4Addr::LOCALHOST.into(), servers, Some(witness)).await
    }

    async fn open_with(address: IpAddr, servers: Vec<SocketAddr>, witness: Option<Witness>) -> std::io::Result<Self> {
        let listener = TcpListener::bind((address, 0)).await?;
        let port = listener.local_addr()?.port();
        let (mode, watched) = watch::channel(Mode::Open);
        let (servers, turn) = (Arc::new(Mutex::new(servers)), Arc::new(AtomicUsize::new(0)));
        let leads_to = servers.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, leads_to.clone(), turn.clone(), watched.clone(), witness.clone()));
            }
        });
        Ok(Self { port, mode, servers })
    }

    /// Leads new connections to these servers from now on.
    pub fn lead_to(&self, servers: Vec<SocketAddr>) {
        *self.servers.lock() = servers;
    }

    /// Makes it so from now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

/// The life of a connection.
async fn carry(
    client: TcpStream,
    servers: Servers,
    turn: Arc<AtomicUsize>,
    mut mode: watch::Receiver<Mode>,
    witness: Option<Witness>,
) {
    let first = *mode.borrow_and_update();
    if first == Mode::Cut {
        return;
    }
    let (mut from_client, mut to_client) = client.into_split();
    if first == Mode::HalfOpen {
        return ignore(from_client, mode).await;
    }
    let servers = servers.lock().clone();
    let Some(server) = reach(&servers, &turn).await else { return };
    let port = server.local_addr().map_or(0, |address| address.port());
    let (mut from_server, mut to_server) = server.into_split();
    let broken = {
        let up = pump(&mut from_client, &mut to_server, mode.clone(), Side::Client);
        let down = pump(&mut from_server, &mut to_client, mode.clone(), Side::Server);
        tokio::select! {
            up = up => {
                if up == Ended::Unheard && let Some(witness) = witness {
                    witness(port);
                }
                return;
            }
            _ = down => return,
            broken = mode.wait_for(|mode| matches!(mode, Mode::Cut | Mode::HalfOpen)) => broken.is_ok_and(|mode| *mode == Mode::HalfOpen),
        }
    };
    if broken {
        drop((from_server, to_server));
        ignore(from_client, mode).await;
    }
    // Kept until here, since dropping either half would tell the client.
    drop(to_client);
}

/// Connects to the next server that answers.
async fn reach(servers: &[SocketAddr], turn: &AtomicUsize) -> Option<TcpStream> {
    let first = turn.fetch_add(1, Ordering::Relaxed);
    for n in 0..servers.len() {
        let server = servers[(first + n) % servers.len()];
        if let Ok(Ok(stream)) = timeout(Duration::from_secs(2), TcpStream::connect(server)).await {
            let _ = stream.set_nodelay(true);
            return Some(stream);
        }
    }
    None
}

#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
}

/// How a direction came to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The receiver can know.
    Openly,
    /// While nothing was carried.
    Unheard,
}

/// Carries one direction until it ends.
async fn pump(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, mut mode: watch::Receiver<Mode>, side: Side) -> Ended {
    let flows = |mode: &Mode| match (mode, side) {
        (Mode::Hole { from_client, .. }, Side::Client) => !from_client,
        (Mode::Hole { from_server, .. }, Side::Server) => !from_server,
        _ => true,
    };
    let mut buffer = vec![0; 16 * 1024];
    loop {
        if let Err(ended) = until_it_flows(from, &mut mode, flows, side).await {
            return ended;
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            changed = mode.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Ended::Openly,
            },
        };
        let Ok(length @ 1..) = read else { return Ended::Openly };
        // What was read just before the hole opened falls into it, too.
        let now = match until_it_flows(from, &mut mode, flows, side).await {
            Ok(now) => now,
            Err(ended) => return ended,
        };
        if let Mode::Slow(delay) = now {
            sleep(delay).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return Ended::Openly;
        }
    }
}

/// Waits until the link carries this direction, or its sender is seen to be gone.
async fn until_it_flows(
    from: &OwnedReadHalf,
    mode: &mut watch::Receiver<Mode>,
    flows: impl Fn(&Mode) -> bool,
    side: Side,
) -> Result<Mode, Ended> {
    let gone = async {
        match side {
            Side::Client => left(from).await,
            Side::Server => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        now = mode.wait_for(|mode| flows(mode)) => now.map(|mode| *mode).map_err(|_| Ended::Openly),
        () = gone => Err(Ended::Unheard),
    }
}

/// Waits until the other side has ended the connection, and reads nothing.
async fn left(from: &OwnedReadHalf) {
    loop {
        match from.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => sleep(Duration::from_millis(5)).await,
            _ => return,
        }
    }
}

/// Takes what a client says and answers nothing, until it goes or is cut off.
async fn ignore(mut client: OwnedReadHalf, mut mode: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 16 * 1024];
    let listen = async { while matches!(client.read(&mut buffer).await, Ok(1..)) {} };
    tokio::select! {
        () = listen => {}
        _ = mode.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}
