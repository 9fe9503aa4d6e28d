//! A connection to PostgreSQL: where it leads, how it is set up, and what its errors mean.

use std::collections::HashMap;
use std::error::Error as _;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use roundelay_model::secret::Secret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, SimpleQueryMessage, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::schema;
use super::tls::{self, Mode};
use crate::error::LedgerError;

/// How long one host may take to answer, where the URL says nothing.
const CONNECT_HOST: Duration = Duration::from_secs(4);
/// How long it may take until a connection can be used, all hosts of the URL together.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A peer that acknowledges nothing for this long is gone.
const SILENCE: Duration = Duration::from_secs(15);
/// A ledger needs this version, which knows what became of a transaction.
const OLDEST: i32 = 130_000;

/// Set on every connection. Everything here finds its rows by their names: a plan that
/// was made while the tables were small must not go through all of them when they have grown. To
/// compile such statements takes longer than to execute them; the server would, wherever a table
/// without an index is read in spite of [`BY_INDEX`], which it takes for very expensive.
const SETTINGS: &str = "
    SET jit = off;
    SET statement_timeout = '10s';
    SET lock_timeout = '3s';
    SET idle_in_transaction_session_timeout = '10s';
    SET default_transaction_isolation = 'read committed';
    SELECT set_config('synchronous_commit', 'on', false)
        WHERE current_setting('synchronous_commit') IN ('off', 'local');";
/// Added for those that write. Each of their statements has one plan, by an index: the server would plan the statement
/// that locks chains anew for each group, which takes longer than to execute it.
const BY_INDEX: &str = "
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;";

/// Set on connections that only look.
const READ_ONLY: &str = "SET default_transaction_read_only = on";

/// Added for those that lock rows. A worker that freezes or is cut off with chains locked keeps every group waiting in
/// which another has one of these, and that is soon all of them: so the server ends its session, before the others'
/// lock timeouts.
const PUT_OUT_SOON: &str = "SET idle_in_transaction_session_timeout = '2s'";
/// The same for slots. Nothing of a throttle starts anywhere while its row is locked, and a transaction takes two
/// statements only.
const PUT_OUT_AT_ONCE: &str = "SET idle_in_transaction_session_timeout = '500ms'";

/// The standbys for which the server waits before it confirms a commit. An empty list is none.
const STANDBYS: &str = "SHOW synchronous_standby_names";
/// The server's function that waits for a standby, as its messages name it in every language. It warns when the wait was
/// cancelled: then the transaction is committed on this server alone, and the answer would say no more than "committed".
const WAIT_FOR_STANDBY: &str = "SyncRepWaitForLSN";
/// Why a server is refused where `ledger.synchronous` is set.
const ALONE: &str = "it waits for no standby (synchronous_standby_names is empty), and ledger.synchronous is set. If \
                     another site was promoted in its place, leave it so: what it confirms, the other site does not know. \
                     If it was promoted and has no standby yet, take ledger.synchronous out of this configuration until it \
                     has one. Else name its standby: ALTER SYSTEM SET synchronous_standby_names = '…'; SELECT \
                     pg_reload_conf()";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Groups of verbs.
    Write,
    /// The slots of throttles, for which all workers wait.
    Slots,
    /// Queries.
    Read,
    /// Something rare that may take this long: migrations, an operator's orders.
    Long(Duration),
}

/// Where the ledger is, and the credentials for it. Shown without the credentials.
#[derive(Clone)]
pub(super) struct Address {
    config: Config,
    tls: MakeRustlsConnect,
    /// The URL says nothing of encryption, and leads beyond this machine.
    unsaid: bool,
    pub(super) shown: String,
    /// Connections only look: nothing can be written on them, and a standby will do.
    looks: bool,
    /// A server that waits for no standby is refused.
    pub(super) synchronous: bool,
}

/// What a URL says.
pub(super) struct Route {
    pub(super) config: Config,
    mode: Mode,
    /// A PEM file.
    authorities: Option<String>,
    /// The URL says nothing of encryption, and leads beyond this machine.
    unsaid: bool,
}

/// Reads `url`, without using it.
pub(super) fn parse(url: &str) -> Result<Route, String> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut said, mut authorities, mut others) = (None, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        match name {
            "sslmode" => said = Some(Mode::parse(&value)?),
            "sslrootcert" => authorities = Some(value.into_owned()),
            _ => others.push(pair),
        }
    }
    let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
    let mut config: Config =
        plain.parse().map_err(|error: Error| format!("not a PostgreSQL URL: {}", words(&error)))?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("not a PostgreSQL URL: it names no host".into());
    }
    // An attacker between two machines can answer for the server, and say that it has no TLS.
    let usual = if is_here(&config) { Mode::Prefer } else { Mode::VerifyFull };
    let mode = said.unwrap_or(usual);
    config.ssl_mode(mode.negotiation());
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_HOST);
    }
    if config.get_application_name().is_none() {
        config.application_name(format!("roundelay {}", std::process::id()));
    }
    // A server that takes no writes is as good as none; with several hosts the next one is tried.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite).tcp_user_timeout(SILENCE).keepalives_idle(SILENCE);
    Ok(Route { config, mode, authorities, unsaid: said.is_none() && usual == Mode::VerifyFull })
}

/// Whether all hosts are this machine: by loopback, or a socket in its file system.
fn is_here(config: &Config) -> bool {
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let here = |host: &Host| match host {
        Host::Tcp(name) => {
            let bare = name.trim_start_matches('[').trim_end_matches(']');
            name.eq_ignore_ascii_case("localhost")
                || bare.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
        }
        Host::Unix(_) => true,
    };
    // An address goes before the name beside it.
    let named = hosts.iter().skip(addresses.len()).all(here);
    named && addresses.iter().all(|address| address.to_canonical().is_loopback())
}

impl Route {
    /// What makes its TLS connections.
    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, String> {
        tls::connector(self.mode, self.authorities.as_deref()).map_err(|why| explain(self.unsaid, why))
    }

    /// What an error on the way there means.
    pub(super) fn words(&self, error: &Error) -> String {
        explain(self.unsaid, words(error))
    }
}

/// What went wrong, and what there is to choose where the URL has left it to us.
fn explain(unsaid: bool, words: String) -> String {
    let of_tls = ["TLS", "certificate", "sslrootcert"].iter().any(|word| words.contains(word));
    if !unsaid || !of_tls {
        return words;
    }
    format!(
        "{words}; the host is not this machine, so sslmode is verify-full where the URL does not say otherwise: name \
         the server's authority (?sslrootcert=FILE), or, on a network that you trust, say so \
         (?sslmode=disable, or ?sslmode=require for encryption that does not check the server)"
    )
}

impl Address {
    /// Reads a `postgres://` URL and the certificates that it names.
    pub(super) fn new(url: &Secret) -> Result<Self, String> {
        let route = parse(url.expose())?;
        let tls = route.connector()?;
        let Route { config, unsaid, .. } = route;
        Ok(Self { config, tls, unsaid, shown: url.to_string(), looks: false, synchronous: false })
    }

    /// The same address, for connections that only look.
    pub(super) fn for_looking(mut self) -> Self {
        self.config.target_session_attrs(TargetSessionAttrs::Any);
        self.looks = true;
        self
    }

    /// The same address, where a server that waits for no standby is refused if `synchronous`.
    pub(super) fn synchronous(mut self, synchronous: bool) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Opens a connection, without setting it up.
    pub(super) async fn dial(&self) -> Result<(Client, AbortHandle), Error> {
        let several = self.looks && self.config.get_hosts().len() > 1;
        let mut connected = None;
        if several {
            // To look, a server that takes no writes will do, where none takes writes.
            let mut writes = self.config.clone();
            writes.target_session_attrs(TargetSessionAttrs::ReadWrite);
            connected = writes.connect(self.tls.clone()).await.ok();
        }
        let (client, connection) = match connected {
            Some(connected) => connected,
            None => self.config.connect(self.tls.clone()).await?,
        };
        let task = tokio::spawn(async move {
            if let Err(error) = carry(connection).await {
                tracing::debug!(error, "a connection to the ledger has ended");
            }
        });
        Ok((client, task.abort_handle()))
    }

    /// Opens a connection and sets it up. A ledger that exists has its sequences raised: whatever
    /// was before this connection may have been another copy of it.
    pub(super) async fn connect(&self, usage: Use) -> Result<Session, LedgerError> {
        let work = async {
            let (client, task) = self.dial().await?;
            // Owned from here on, so that it is closed if anything below fails.
            let (statements, silent) = (Mutex::default(), AtomicBool::new(false));
            let session = Session { client, task, statements, silent, synchronous: self.synchronous };
            match self.looks {
                true => session.client.batch_execute(READ_ONLY).await?,
                false => schema::raise(&session.client).await?,
            }
            session.client.batch_execute(SETTINGS).await?;
            match usage {
                Use::Write | Use::Slots => {
                    let put_out = if usage == Use::Slots { PUT_OUT_AT_ONCE } else { PUT_OUT_SOON };
                    session.client.batch_execute(BY_INDEX).await?;
                    session.client.batch_execute(put_out).await?;
                }
                Use::Read => {}
                Use::Long(most) => {
                    let most = most.as_millis();
                    let set = format!("SET statement_timeout = {most}; SET lock_timeout = {most}");
                    session.client.batch_execute(&set).await?;
                }
            }
            let waits = self.looks || session.waits_for_a_standby().await?;
            Ok((session, waits))
        };
        match timeout(CONNECT_WITHIN, work).await {
            Ok(Ok((session, true))) => Ok(session),
            Ok(Ok((_, false))) => Err(self.failed(ALONE)),
            Ok(Err(error)) => Err(self.failed(self.words(&error))),
            Err(_) => Err(self.failed(format!("no answer within {} s", CONNECT_WITHIN.as_secs()))),
        }
    }

    /// What an error on the way there means.
    pub(super) fn words(&self, error: &Error) -> String {
        explain(self.unsaid, words(error))
    }

    pub(super) fn failed(&self, reason: impl Into<String>) -> LedgerError {
        LedgerError::Open { path: self.shown.clone(), reason: reason.into() }
    }
}

/// A connection that is set up, with the statements that were prepared on it. Closed when dropped.
pub(super) struct Session {
    pub(super) client: Client,
    task: AbortHandle,
    statements: Mutex<HashMap<&'static str, Statement>>,
    /// A caller has given up waiting for an answer: see [`Waiting`].
    silent: AtomicBool,
    /// A server that waits for no standby is refused.
    pub(super) synchronous: bool,
}

/// Carries what is asked and answered, until the connection ends.
///
/// # Errors
/// Why it has ended. It ends where a wait for a standby was cancelled, before the answer to that commit is read: what
/// became of the commit is then found out as after every lost connection.
async fn carry<S, T>(mut connection: Connection<S, T>) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notice(notice)) if notice.routine() == Some(WAIT_FOR_STANDBY) => {
                return Err(notice.message().to_owned());
            }
            Ok(AsyncMessage::Notice(notice)) => tracing::debug!("{}: {}", notice.severity(), notice.message()),
            Ok(_) => {}
            Err(error) => return Err(words(&error)),
        }
    }
    Ok(())
}

/// How long a caller waits for an answer before its giving up says something of the connection.
const UNANSWERED: Duration = Duration::from_secs(1);

/// A caller that waits for an answer, and may be given up itself. A dead network sends nothing, and a caller that gives
/// up sooner than the connection's own time limit would else find the same dead connection each time.
pub(super) struct Waiting<'a> {
    session: &'a Session,
    since: Instant,
}

impl Waiting<'_> {
    /// The server has answered, or the caller knows that it has not.
    pub(super) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.since.elapsed() >= UNANSWERED {
            self.session.silent.store(true, Ordering::Relaxed);
        }
    }
}

impl Session {
    /// Begins to wait for an answer.
    pub(super) fn wait(&self) -> Waiting<'_> {
        Waiting { session: self, since: Instant::now() }
    }

    /// Whether it can be asked, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        !self.client.is_closed() && !self.silent.load(Ordering::Relaxed)
    }

    /// The statement, prepared when it is first asked for.
    pub(super) async fn statement(&self, sql: &'static str) -> Result<Statement, Error> {
        let known = |statements: &Mutex<HashMap<&'static str, Statement>>| statements.lock().get(sql).cloned();
        if let Some(statement) = known(&self.statements) {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    /// Whether the server waits for a standby before it confirms a commit, where that is demanded. After a commit it says
    /// whether the server did: one that stops waiting reads its new setting before it answers the next question.
    pub(super) async fn waits_for_a_standby(&self) -> Result<bool, Error> {
        if !self.synchronous {
            return Ok(true);
        }
        let answer = self.client.simple_query(STANDBYS).await?;
        let names = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        Ok(names.is_some_and(|names| !names.trim().is_empty()))
    }

    /// Refuses a server that is too old.
    pub(super) async fn check_version(&self) -> Result<(), String> {
        let row = self.client.query_one("SELECT current_setting('server_version_num')::int4", &[]).await;
        let version: i32 = row.and_then(|row| row.try_get(0)).map_err(|error| words(&error))?;
        if version < OLDEST {
            return Err(format!("PostgreSQL {} is too old: the ledger needs 13 or later", version / 10_000));
        }
        Ok(())
    }
}

/// A connection that waits for an answer would else wait on, with its socket open.
impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What an error means, down to the server's own words.
pub(super) fn words(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        let detail = error.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
        return format!("{}{detail} [{}]", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Whether the same transaction may succeed when it is tried again: others were in its way.
pub(super) fn passes(error: &Error) -> bool {
    let passing = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::UNIQUE_VIOLATION];
    error.code().is_some_and(|code| passing.contains(code))
}

/// Whether the connection is of no more use: it has ended, or leads to a server that has become a
/// standby or is going down.
pub(super) fn ends_session(error: &Error) -> bool {
    match error.code() {
        None => true,
        Some(code) => {
            let over = [
                SqlState::READ_ONLY_SQL_TRANSACTION,
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            ];
            over.contains(code) || code.code().starts_with("08")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_this_machine_encryption_is_not_left_to_the_server() {
        let table = [
            ("postgres://u@localhost/d", Mode::Prefer, false),
            ("postgres://u@LocalHost:5433/d", Mode::Prefer, false),
            ("postgres://u@127.0.0.1/d", Mode::Prefer, false),
            ("postgres://u@[::1]/d", Mode::Prefer, false),
            ("postgres://u@%2Fvar%2Frun%2Fpostgresql/d", Mode::Prefer, false),
            ("postgres://u@db.example/d?hostaddr=127.0.0.1", Mode::Prefer, false),
            ("postgres://u@localhost/d?hostaddr=192.0.2.1", Mode::VerifyFull, true),
            ("postgres://u@db.example/d", Mode::VerifyFull, true),
            ("postgres://u@postgres/d", Mode::VerifyFull, true),
            ("postgres://u@192.0.2.1/d?application_name=x", Mode::VerifyFull, true),
            ("postgres://u@localhost,db.example/d", Mode::VerifyFull, true),
            ("postgres://u@127.0.0.1.example/d", Mode::VerifyFull, true),
            ("postgres://u@db.example/d?sslmode=disable", Mode::Disable, false),
            ("postgres://u@db.example/d?sslmode=prefer", Mode::Prefer, false),
            ("postgres://u@db.example/d?sslmode=require", Mode::Require, false),
            ("postgres://u@localhost/d?sslmode=verify-full", Mode::VerifyFull, false),
        ];
        for (url, mode, unsaid) in table {
            let route = parse(url).unwrap();
            assert_eq!((route.mode, route.unsaid), (mode, unsaid), "{url}");
            assert_eq!(route.config.get_ssl_mode(), mode.negotiation(), "{url}");
        }
    }
}
