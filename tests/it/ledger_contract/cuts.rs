//! A link between a ledger and PostgreSQL that reads what goes by, and ends a connection at a chosen moment of a
//! transaction: a connection that is ended at any time mostly ends between two of them.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// When a connection ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// Before the server gets the commit.
    BeforeCommit,
    /// After the server has written, and before its answer.
    BeforeAnswer,
    /// The same after a commit. No connection can be opened then, until the cut is over.
    BeforeAnswerAndOn,
    /// After so many bytes that the server says.
    After(usize),
}

/// What the link has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Struck {
    /// A transaction whose commit the server did not get.
    Uncommitted,
    /// A transaction, or a statement by itself, that is written and not answered.
    Unanswered,
    /// Whatever there was.
    Anything,
}

#[derive(Default)]
struct State {
    armed: Option<Moment>,
    struck: Option<Struck>,
    shut: bool,
}

/// The link. A clone is the same link.
#[derive(Clone)]
pub struct Cuts {
    /// Where ledgers connect.
    pub at: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Cuts {
    /// Opens a link to one of the addresses of a server.
    pub async fn open(server: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cuts = Self { at: listener.local_addr().unwrap(), state: Arc::default() };
        let all = cuts.clone();
        tokio::spawn(async move {
            while let Ok((ledger, _)) = listener.accept().await {
                if !all.state.lock().shut {
                    tokio::spawn(all.clone().carry(ledger, server.clone()));
                }
            }
        });
        cuts
    }

    /// One connection ends at this moment, when the moment comes.
    pub fn arm(&self, moment: Moment) {
        *self.state.lock() = State { armed: Some(moment), ..State::default() };
    }

    /// From now on nothing is ended. Answers what was.
    pub fn disarm(&self) -> Option<Struck> {
        std::mem::take(&mut *self.state.lock()).struck
    }

    fn strike(&self, struck: Struck, shut: bool) {
        *self.state.lock() = State { armed: None, struck: Some(struck), shut };
    }

    async fn carry(self, ledger: TcpStream, server: Vec<SocketAddr>) {
        let Ok(server) = TcpStream::connect(&server[..]).await else { return };
        ledger.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let ((from_ledger, to_ledger), (from_server, to_server)) = (ledger.into_split(), server.into_split());
        // Where either ends, both are dropped, and with them both connections.
        tokio::select! {
            () = self.ask(from_ledger, to_server) => {}
            () = self.answer(from_server, to_ledger) => {}
        }
    }

    async fn ask(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let (mut read, mut begun) = (Vec::new(), false);
        while let Ok(1..) = from.read_buf(&mut read).await {
            let mut whole = 0;
            // The first message has no letter.
            while let Some(length) = length(&read[whole..], usize::from(begun)) {
                let is_commit = begun && read[whole..].starts_with(b"Q\0\0\0\x0bCOMMIT\0");
                begun = true;
                if is_commit && self.state.lock().armed == Some(Moment::BeforeCommit) {
                    let _ = to.write_all(&read[..whole]).await;
                    return self.strike(Struck::Uncommitted, false);
                }
                whole += length;
            }
            if to.write_all(&read[..whole]).await.is_err() {
                return;
            }
            read.drain(..whole);
        }
    }

    async fn answer(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let (mut read, mut before) = (Vec::new(), true);
        while let Ok(1..) = from.read_buf(&mut read).await {
            let (mut whole, mut alone, mut written) = (0, before, None);
            while let Some(length) = length(&read[whole..], 1) {
                let message = &read[whole..whole + length];
                match message[0] {
                    b'C' => written = Written::by(&message[5..], alone).or(written),
                    // The server says so after the commit.
                    b'Z' => {
                        alone = message[5] == b'I';
                        let armed = self.state.lock().armed;
                        let shuts = armed == Some(Moment::BeforeAnswerAndOn);
                        match written.take() {
                            Some(Written::Commit) if shuts => return self.strike(Struck::Unanswered, true),
                            Some(_) if armed == Some(Moment::BeforeAnswer) => {
                                return self.strike(Struck::Unanswered, false);
                            }
                            _ => {}
                        }
                    }
                    _ => {}
                }
                whole += length;
            }
            // An answer is held back until its end has come.
            if written.is_some() {
                continue;
            }
            let armed = self.state.lock().armed;
            let most = match armed {
                Some(Moment::After(bytes)) if bytes < whole => Some(bytes),
                Some(Moment::After(bytes)) => {
                    self.state.lock().armed = Some(Moment::After(bytes - whole));
                    None
                }
                _ => None,
            };
            if to.write_all(&read[..most.unwrap_or(whole)]).await.is_err() {
                return;
            }
            if most.is_some() {
                return self.strike(Struck::Anything, false);
            }
            read.drain(..whole);
            before = alone;
        }
    }
}

#[derive(Clone, Copy)]
enum Written {
    Commit,
    Alone,
}

impl Written {
    /// What the end of a command says; `alone` if the command is no part of a transaction of several.
    fn by(tag: &[u8], alone: bool) -> Option<Self> {
        let writes = [&b"INSERT"[..], b"UPDATE", b"DELETE"].iter().any(|verb| tag.starts_with(verb));
        match tag.starts_with(b"COMMIT") {
            true => Some(Self::Commit),
            false => (alone && writes).then_some(Self::Alone),
        }
    }
}

/// How long the first message is, with so many letters before its length, where all of it is there.
fn length(read: &[u8], letters: usize) -> Option<usize> {
    let number = read.get(letters..letters + 4)?;
    let length = letters + u32::from_be_bytes(number.try_into().ok()?) as usize;
    (read.len() >= length).then_some(length)
}
