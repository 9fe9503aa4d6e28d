//! The ledger in PostgreSQL, which many workers on many machines share.
//!
//! - `connect` and `tls`: a connection and how it is set up.
//! - `schema`: the tables, and the numbers that never go back.
//! - `lane`: verbs that wait together are one transaction of two round trips (`group`), which
//!   decides about them here (`verbs`, on a `page`) and writes what has come of it (`write`).
//! - `reader`: single statements: queries (`reports`, `search`) and orders for many chains (`orders`).
//! - `examine`: examining the server without changing anything. [`standby`]: a standby, and its promotion.
//!
//! Only the server's clock decides. What [`crate::LedgerClock::now`] tells follows it.

mod access;
mod backlog;
mod catch_up;
mod clock;
mod connect;
pub mod examine;
mod failed;
mod fleet;
mod foreign;
mod group;
mod history;
mod jobs;
mod lane;
mod orders;
mod protocol;
mod reader;
mod reports;
mod rosters;
mod running;
mod schema;
mod search;
mod sessions;
mod slots;
pub mod standby;
mod stored_texts;
mod tls;
mod topology;
mod traffic;
mod write;

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use futures_util::future::try_join;
use roundelay_model::clock::{Clock, Entropy, Followed, Seen};
use roundelay_model::secret::Secret;
use roundelay_model::wall_clock::WallClock;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::Ledger;
use crate::error::LedgerError;
use crate::linger::Lateness;
use crate::mark::Marks;
use crate::traffic::Counters;
use connect::{Address, Use, words};
pub use foreign::Foreign;
use lane::Lane;
use reader::Reader;
use slots::Desk;
use standby::KeptTime;

/// The most connections for verbs that may take longer than a group, one for each: a program may end very many
/// chains at once, by a message or a request for each.
const OWN_CONNECTIONS: usize = 4;
/// How long the migrations may take, or another worker's that is waited for.
const MIGRATIONS: Duration = Duration::from_secs(120);

/// Looks whether `url` can be used, without connecting or reading a file. The reason has no
/// password in it.
pub fn check_url(url: &str) -> Result<(), String> {
    connect::parse(url).map(drop)
}

/// Opens, and if need be creates, the ledger at `url`; answers also with the clock by which it judges. If `synchronous`,
/// a server that waits for no standby is refused, now and later.
///
/// # Errors
/// [`LedgerError::Open`] with what to do.
pub async fn open(url: &Secret, synchronous: bool, entropy: &Entropy) -> Result<(Arc<dyn Ledger>, Clock), LedgerError> {
    open_with(url, synchronous, entropy, None).await
}

/// The same. A server that is a standby is waited for until it is promoted; `waits` is called when the wait begins, with
/// the server's address.
///
/// # Errors
/// [`LedgerError::Open`] with what to do.
pub async fn open_when_promoted(
    url: &Secret,
    synchronous: bool,
    entropy: &Entropy,
    waits: impl FnOnce(&str),
) -> Result<(Arc<dyn Ledger>, Clock), LedgerError> {
    let error = match open(url, synchronous, entropy).await {
        Err(error) => error,
        opened => return opened,
    };
    match standby::wait(url, waits).await {
        Some(kept) => open_with(url, synchronous, entropy, kept).await,
        None => Err(error),
    }
}

async fn open_with(
    url: &Secret,
    synchronous: bool,
    entropy: &Entropy,
    kept: Option<KeptTime>,
) -> Result<(Arc<dyn Ledger>, Clock), LedgerError> {
    let address = Address::new(url).map_err(|reason| LedgerError::Open { path: url.to_string(), reason })?;
    let ledger = PostgresLedger::open_at(address.synchronous(synchronous), entropy, kept).await?;
    let clock = ledger.clock();
    Ok((Arc::new(ledger), clock))
}

/// A ledger in PostgreSQL.
pub struct PostgresLedger {
    id: String,
    clock: Arc<Followed>,
    /// When the time was last noted, in milliseconds.
    noted: AtomicI64,
    address: Address,
    /// For the verbs of single chains.
    chains: Lane,
    /// For verbs about many chains, or none, which would hold up the others.
    rest: Lane,
    late: Lateness,
    reader: Reader,
    /// For what workers need to know of each other: a long query would keep it waiting.
    pulse: Reader,
    marks: Marks,
    desk: Desk,
    /// Permits for connections that a single verb opens.
    own: Semaphore,
    counters: Arc<Counters>,
}

impl PostgresLedger {
    /// Opens, and if need be creates, the ledger at `url` (`postgres://…`).
    ///
    /// # Errors
    /// [`LedgerError::Open`] with what to do.
    pub async fn open(url: &Secret, entropy: &Entropy) -> Result<Self, LedgerError> {
        let address = Address::new(url).map_err(|reason| LedgerError::Open { path: url.to_string(), reason })?;
        Self::open_at(address, entropy, None).await
    }

    async fn open_at(address: Address, entropy: &Entropy, kept: Option<KeptTime>) -> Result<Self, LedgerError> {
        let (id, seen, wall_clock) = timeout(MIGRATIONS * 2, prepare(&address, entropy, kept))
            .await
            .map_err(|_| address.failed("it does not answer"))??;
        let clock = Arc::new(Followed::new(seen, wall_clock));
        let counters = Arc::<Counters>::default();
        let late = Lateness::default();
        let lane = || Lane::open(&address, clock.clone(), counters.clone(), late.clone());
        let (chains, rest) = try_join(lane(), lane()).await?;
        let reader = Reader::open(&address, counters.clone()).await?;
        let pulse = reader.again();
        let desk = Desk::new(&address, clock.clone(), counters.clone());
        let (marks, own) = (Marks::shared(format!("roundelay-{id}-"), entropy), Semaphore::new(OWN_CONNECTIONS));
        let noted = AtomicI64::default();
        Ok(Self { id, clock, noted, address, chains, rest, late, reader, pulse, marks, desk, own, counters })
    }

    /// Opens the ledger only to look at it: nothing is created, written or brought up to date, and every verb that
    /// writes is refused.
    ///
    /// # Errors
    /// [`LedgerError::Open`], also when its format is another than this program's.
    pub async fn look(url: &Secret) -> Result<Self, LedgerError> {
        let address = Address::new(url).map_err(|reason| LedgerError::Open { path: url.to_string(), reason })?;
        let address = address.for_looking();
        let session = address.connect(Use::Read).await?;
        let asked = async {
            let sql = "SELECT (SELECT value FROM meta WHERE name = 'ledger_id'),
                              (SELECT value FROM meta WHERE name = 'ledger_version')";
            let row = session.client.query_one(sql, &[]).await?;
            Ok((row.try_get(0)?, row.try_get(1)?))
        };
        let (id, version): (String, String) =
            asked.await.map_err(|error: tokio_postgres::Error| address.failed(words(&error)))?;
        if version != schema::VERSION.to_string() {
            let known = schema::VERSION;
            let words = format!("its format is version {version}, and this program looks at version {known}");
            return Err(address.failed(words));
        }
        let (seen, wall_clock) =
            clock::first(&session.client, false, None).await.map_err(|error| address.failed(words(&error)))?;
        let clock = Arc::new(Followed::new(seen, wall_clock));
        let counters = Arc::<Counters>::default();
        let reader = Reader::open(&address, counters.clone()).await?;
        let desk = Desk::new(&address, clock.clone(), counters.clone());
        let (chains, rest, own) = (Lane::closed(), Lane::closed(), Semaphore::new(OWN_CONNECTIONS));
        let late = Lateness::default();
        let pulse = reader.again();
        let marks = Marks::new(None, String::new(), &Entropy::seeded(0));
        let noted = AtomicI64::default();
        Ok(Self { id, clock, noted, address, chains, rest, late, reader, pulse, marks, desk, own, counters })
    }

    /// The clock that follows the server's.
    pub fn clock(&self) -> Clock {
        Clock::Followed(self.clock.clone())
    }

    /// Waits for a permit to open a connection for one verb.
    async fn own(&self) -> Result<SemaphorePermit<'_>, LedgerError> {
        self.own.acquire().await.map_err(|_| LedgerError::Closed)
    }
}

/// A schema that one demo has to itself, in a database that others may use.
pub struct OwnSchema {
    address: Address,
    name: String,
    url: String,
}

impl OwnSchema {
    /// Makes it, with a `name` of letters, digits and underscores.
    pub async fn create(url: &str, name: &str) -> Result<Self, LedgerError> {
        let secret = Secret::from(url.to_owned());
        let address = Address::new(&secret).map_err(|reason| LedgerError::Open { path: secret.to_string(), reason })?;
        let and = if url.contains('?') { '&' } else { '?' };
        let own = Self { address, name: name.to_owned(), url: format!("{url}{and}options=-csearch_path%3D{name}") };
        own.execute("CREATE SCHEMA", "").await?;
        Ok(own)
    }

    /// The URL of a ledger in it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Removes it with all that is in it.
    pub async fn remove(self) -> Result<(), LedgerError> {
        self.execute("DROP SCHEMA", "CASCADE").await
    }

    async fn execute(&self, what: &str, how: &str) -> Result<(), LedgerError> {
        let failed = |error: tokio_postgres::Error| self.address.failed(words(&error));
        let (client, task) = self.address.dial().await.map_err(failed)?;
        let done = client.batch_execute(&format!("{what} \"{}\" {how}", self.name)).await.map_err(failed);
        task.abort();
        done
    }
}

/// Brings the schema up to date; answers with the ledger's id, the server's time, and what is known of its clock.
async fn prepare(
    address: &Address,
    entropy: &Entropy,
    kept: Option<KeptTime>,
) -> Result<(String, Seen, WallClock), LedgerError> {
    let mut session = address.connect(Use::Long(MIGRATIONS)).await?;
    session.check_version().await.map_err(|reason| address.failed(reason))?;
    let id = schema::migrate(&mut session, entropy).await.map_err(|reason| address.failed(reason))?;
    let first = clock::first(&session.client, true, kept).await;
    let (seen, wall_clock) = first.map_err(|error| address.failed(words(&error)))?;
    Ok((id, seen, wall_clock))
}
