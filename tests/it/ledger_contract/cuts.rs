//! A link between a ledger and PostgreSQL that reads what goes by, and ends a connection at a chosen moment of a
//! transaction: a connection that is ended at any time mostly ends between two of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use roundelay::clock::Entropy;
use roundelay::guard::Guard;
use roundelay::ids::Fence;
use roundelay::ledger::postgres::PostgresLedger;
use roundelay::ledger::{Claim, ClaimRequest, Enrolled, Hint, LedgerClock, LedgerError, Protocol, Reports, Sessions};
use roundelay::secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::LEASE;
use crate::harness::{Schema, chain, until};

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
    /// Connections that were not taken.
    refused: usize,
}

impl State {
    fn refuses(&mut self) -> bool {
        self.refused += usize::from(self.shut);
        self.shut
    }
}

/// The link. A clone is the same link.
#[derive(Clone)]
pub struct Cuts {
    /// Where ledgers connect.
    at: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Cuts {
    /// Opens a link to a schema's server. Answers also with the URL of a ledger there that leads over the link.
    pub async fn before(schema: &Schema) -> (Self, Secret) {
        let mut url = url::Url::parse(&schema.url).unwrap();
        let cuts = Self::open(url.socket_addrs(|| Some(5432)).unwrap()).await;
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(cuts.at.port())).unwrap();
        // What goes by is read.
        url.query_pairs_mut().append_pair("sslmode", "disable");
        (cuts, Secret::new(url.as_str()))
    }

    async fn open(server: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cuts = Self { at: listener.local_addr().unwrap(), state: Arc::default() };
        let all = cuts.clone();
        tokio::spawn(async move {
            while let Ok((ledger, _)) = listener.accept().await {
                if all.state.lock().refuses() {
                    continue;
                }
                tokio::spawn(all.clone().carry(ledger, server.clone()));
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
        *self.state.lock() = State { struck: Some(struck), shut, ..State::default() };
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

/// Verbs that share a transaction share its fate. While it is not known whether they are written, none may be carried
/// out again: a claim that is written would find itself, and be taken for a surplus message.
#[tokio::test]
async fn verbs_of_one_commit_that_may_be_written_are_not_carried_out_again() {
    let schema = Schema::new().await;
    let (cuts, url) = Cuts::before(&schema).await;
    let ledger = PostgresLedger::open(&url, &Entropy::from_os()).await.unwrap();
    let session = ledger.begin_session("w".into(), LEASE).await.unwrap();
    let chains = (0..20).map(|key| chain(&key.to_string(), ledger.now())).collect();
    let enrolled = ledger.enroll(chains).await.unwrap();
    let claim = |enrolled: &Enrolled, again: bool| {
        let Enrolled::Created(hint) = enrolled else { panic!("it was there: {enrolled:?}") };
        let (hint, guard, worker) = (Hint::clone(hint), Guard::default(), "w".into());
        ledger.claim(ClaimRequest {
            hint,
            worker,
            session,
            again,
            takeover: false,
            guard,
            recurs: true,
            prepared: 0,
            ahead: Duration::ZERO,
        })
    };
    cuts.arm(Moment::BeforeAnswerAndOn);
    // They come at once, so the lane writes them in one transaction.
    let (claims, ()) = tokio::join!(join_all(enrolled.iter().map(|enrolled| claim(enrolled, false))), async {
        until("a lane asks what has become of its commit", async || cuts.state.lock().refused > 0).await;
        assert_eq!(cuts.disarm(), Some(Struck::Unanswered));
    });
    let mut unknown = 0;
    for (enrolled, claimed) in enrolled.iter().zip(&claims) {
        match claimed {
            Ok(Claim::Granted(_)) => {}
            Err(LedgerError::Statement(why)) if why.contains("whether it was written is not known") => {
                unknown += 1;
                let again = claim(enrolled, true).await.unwrap();
                assert!(matches!(again, Claim::Granted(_)), "{again:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(unknown > 1, "{claims:?}");
    // Each claim has one record, and another one where the claim was made again.
    assert_eq!(ledger.attempts(Fence::NONE, 100).await.unwrap().len(), enrolled.len() + unknown);
}
