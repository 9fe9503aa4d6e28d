//! The ledger: whether it exists, its format, and whether it can be written and is durable.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{AccessFlags, access, geteuid};
use roundelay_config::Config;
use roundelay_ledger::LedgerUrl;
use roundelay_ledger::postgres::examine as server;
use roundelay_ledger::postgres::examine::{SeenLedger, SeenServer, Unasked};
use roundelay_ledger::sqlite::examine as file;
use roundelay_ledger::sqlite::examine::{SeenFile, Unwritten};

use super::machine::folder;
use crate::inspect::doctor::facts::Facts;
use crate::inspect::doctor::finding::{Area, Finding, Gathered, blocking, limited, size, some, word};
use crate::inspect::format::rough;

/// A file up to this size is always checked for damage.
const SMALL: u64 = 64 << 20;
/// How long a check for damage may take that the user has asked for.
const THOROUGH: Duration = Duration::from_secs(6 * 3_600);
/// SQLite copies its log into the file at some 32 MiB; if the log is much larger, a reader prevents that.
const LARGE_LOG: u64 = 256 << 20;
/// A copy whose last commit is older is not followed closely: workers write once a second.
const COPY_OLD: Duration = Duration::from_secs(10);
/// How many connections a worker holds before it uses a throttle.
const OF_A_WORKER: i64 = 4;
/// A transaction that has been open for longer than this many seconds keeps too many dead rows. No statement of a ledger
/// takes as long.
const OLD_TRANSACTION_S: i64 = 600;

/// Facts about the ledger.
#[derive(Clone, Debug)]
pub enum LedgerFacts {
    /// The ledger is in the process's memory.
    Memory,
    /// The ledger is a file.
    File(Box<FileFacts>),
    /// The ledger is in PostgreSQL: what the server answers, or why it does not.
    Server(Result<Box<SeenServer>, Unasked>),
}

/// Facts about a ledger file.
#[derive(Clone, Debug)]
pub struct FileFacts {
    pub path: PathBuf,
    /// The folder, the file and its log, as the file system has them.
    pub stat: Gathered<Stat>,
    /// What is in the file; nothing if there is no file.
    pub seen: Option<Gathered<Result<SeenFile, String>>>,
    /// Whether the file can be written.
    pub written: Option<Gathered<Result<(), Unwritten>>>,
    /// The damage that SQLite reports; nothing if the file was not checked.
    pub damage: Option<Gathered<Result<Vec<String>, String>>>,
}

/// A file as the file system has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Whether the folder exists.
    pub folder: bool,
    /// Whether this user may create files in the folder.
    pub folder_writable: bool,
    /// Whether every user may create files in the folder, and remove those of others.
    pub folder_open: bool,
    /// The size of the file in bytes; nothing if there is no file.
    pub bytes: Option<u64>,
    /// Whether every user may write the file.
    pub open: bool,
    /// The user id of the file's owner.
    pub owner: u32,
    /// The user id of this process.
    pub us: u32,
    /// The size of the log in bytes.
    pub log: u64,
}

/// Gathers the facts.
pub(super) async fn gather(config: &Config, within: Duration, thorough: bool) -> LedgerFacts {
    match &config.ledger.url {
        LedgerUrl::Memory => LedgerFacts::Memory,
        LedgerUrl::Postgres(url) => {
            let url = url.clone();
            let seen = limited(within, async move { server::look(&url).await }).await;
            let seen = seen.map_err(|words| Unasked { code: None, words }).and_then(|seen| seen);
            LedgerFacts::Server(seen.map(Box::new))
        }
        LedgerUrl::Sqlite(path) => LedgerFacts::File(Box::new(gather_file(path, within, thorough).await)),
    }
}

async fn gather_file(path: &Path, within: Duration, thorough: bool) -> FileFacts {
    let ours = || path.to_owned();
    let of = ours();
    let stat = blocking(within, move || stat(&of)).await;
    let bytes = stat.as_ref().ok().and_then(|stat| stat.bytes);
    let (mut seen, mut damage) = (None, None);
    if let Some(bytes) = bytes {
        let (of, through) = (ours(), ours());
        let patience = if thorough { THOROUGH } else { within };
        let damaged = async {
            match thorough || bytes <= SMALL {
                true => Some(blocking(patience, move || file::damage(&through)).await),
                false => None,
            }
        };
        let (looked, damaged) = tokio::join!(blocking(within, move || file::look(&of)), damaged);
        (seen, damage) = (Some(looked), damaged);
    }
    FileFacts { path: ours(), stat, seen, written: None, damage }
}

impl LedgerFacts {
    /// Finds out whether a file that exists can be written. A server has been asked already.
    pub(super) async fn try_to_write(&mut self, within: Duration) {
        if let Self::File(file) = self
            && file.seen.is_some()
        {
            let path = file.path.clone();
            file.written = Some(blocking(within, move || file::try_to_write(&path)).await);
        }
    }
}

fn stat(path: &Path) -> Stat {
    const ANYBODY: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let (folder, file) = (folder(path), std::fs::metadata(path).ok());
    let of_folder = std::fs::metadata(&folder).ok().filter(std::fs::Metadata::is_dir);
    let mode = of_folder.as_ref().map_or(0, MetadataExt::mode);
    Stat {
        folder: of_folder.is_some(),
        folder_writable: access(&folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok(),
        folder_open: mode & ANYBODY != 0 && mode & STICKY == 0,
        bytes: file.as_ref().map(std::fs::Metadata::len),
        open: file.as_ref().is_some_and(|file| file.mode() & ANYBODY != 0),
        owner: file.as_ref().map_or(0, MetadataExt::uid),
        us: geteuid().as_raw(),
        log: std::fs::metadata(file::wal(path)).map_or(0, |log| log.len()),
    }
}

/// What is wrong with the ledger. `synchronous` is the setting.
pub(super) fn diagnose(facts: &Facts, synchronous: bool) -> Vec<Finding> {
    match &facts.ledger {
        LedgerFacts::Memory => vec![Finding::warning(
            Area::Ledger,
            "ledger",
            "it is in memory",
            "all chains are gone when the process ends",
            "set ledger.url = \"sqlite://roundelay.db\", or to a PostgreSQL",
        )],
        LedgerFacts::File(file) => judge_file(file),
        LedgerFacts::Server(seen) => judge_server(seen.as_deref().map_err(Clone::clone), synchronous),
    }
}

/// Checks the version of the format: `found` is the ledger's, `known` this program's.
fn format(found: u32, known: u32, of_file: bool) -> Finding {
    let what = "ledger's format";
    let seen = format!("version {found}, and this program knows version {known}");
    match found.cmp(&known) {
        std::cmp::Ordering::Equal => Finding::good(Area::Ledger, what, format!("version {found}")),
        std::cmp::Ordering::Greater => Finding::bad(
            Area::Ledger,
            what,
            seen,
            "a newer program has brought it up to date; this one refuses to work on it",
            "use the program that made it, or a newer one: `roundelay --version` on each machine",
        ),
        std::cmp::Ordering::Less => {
            let stop = if of_file { "stop all workers first, since older ones refuse it then; " } else { "" };
            Finding::warning(
                Area::Ledger,
                what,
                seen,
                "the first other command of this program brings it up to date; until then chains are not looked at here",
                format!("{stop}see CHANGELOG, then start the workers of this version"),
            )
        }
    }
}

fn judge_file(facts: &FileFacts) -> Vec<Finding> {
    let FileFacts { path, stat, seen, written, damage } = facts;
    let mut all = Vec::new();
    let (name, folder) = (path.display(), folder(path));
    let folder = folder.display();
    let (file, place) = (word(&name), word(&folder));
    let stat = match stat {
        Ok(stat) => stat,
        Err(why) => {
            let fix = format!("`stat {file}` tells it; a file system that does not answer hangs every worker, too");
            return vec![Finding::unknown(Area::Ledger, "ledger", why, fix)];
        }
    };
    if !stat.folder {
        let seen = format!("the folder {folder} does not exist");
        let fix = format!("`mkdir -p {place}`, for the workers' user; or set ledger.url to another");
        return vec![Finding::bad(Area::Ledger, "ledger", seen, "no worker starts, and no command works", fix)];
    }
    let user = stat.us;
    if !stat.folder_writable {
        all.push(Finding::bad(
            Area::Ledger,
            "ledger's folder",
            format!("the user {user} may not write in {folder}"),
            "SQLite cannot make its log beside the ledger, so nothing can be written",
            format!(
                "`chown {user} {place}` and `chmod u+rwx {place}`, or run as the user whose it is; see that it is \
                     not mounted read-only: `findmnt -T {place}`"
            ),
        ));
    } else if stat.folder_open {
        all.push(Finding::warning(
            Area::Ledger,
            "ledger's folder",
            format!("anybody on this machine may write in {folder}"),
            "anybody may put another ledger in place of this one",
            format!("`chmod o-w {place}`"),
        ));
    } else {
        all.push(Finding::good(Area::Ledger, "ledger's folder", format!("{folder} can be written")));
    }
    let Some(bytes) = stat.bytes else {
        all.push(Finding::warning(
            Area::Ledger,
            "ledger",
            format!("there is no file {name}"),
            "nothing was enrolled yet, or ledger.url leads elsewhere than that of the workers",
            "a worker or `roundelay enroll` makes it; see that ledger.url is right, and that commands are run in the \
             same folder where it is a relative path",
        ));
        return all;
    };
    match seen {
        Some(Ok(Ok(SeenFile { is_ledger: false, .. }))) => all.push(Finding::bad(
            Area::Ledger,
            "ledger",
            format!("{name} is no ledger of Roundelay's"),
            "a worker would make its tables in it",
            "set ledger.url to the ledger, or take the file away if it is empty",
        )),
        Some(Ok(Ok(seen))) => {
            all.push(Finding::good(Area::Ledger, "ledger", format!("{name}, {}", size(bytes))));
            all.push(format(seen.version, seen.known, true));
        }
        Some(Err(why)) => all.push(Finding::unknown(
            Area::Ledger,
            "ledger",
            format!("{name} was not read: {why}"),
            format!("`time head -c 1M {file} > /dev/null` shows whether the disk answers; `--within 1m` waits longer"),
        )),
        Some(Ok(Err(why))) => all.push(Finding::bad(
            Area::Ledger,
            "ledger",
            format!("{name} cannot be read: {why}"),
            "no worker starts, and no command works",
            format!(
                "see whose it is (`ls -l {place}`), and what it is (`file {file}`); if it is damaged, restore a \
                     backup as docs/operations.md says"
            ),
        )),
        None => {}
    }
    all.extend(written.as_ref().and_then(|written| writing(written, path, user)));
    if stat.open {
        all.push(Finding::warning(
            Area::Ledger,
            "ledger's permissions",
            format!("anybody on this machine may write {name}"),
            "anybody may change what runs",
            format!("`chmod o-w {file}`"),
        ));
    }
    if user == 0 && stat.owner != 0 {
        all.push(Finding::warning(
            Area::Ledger,
            "ledger's owner",
            format!("the user {}, and this is root, who may do everything", stat.owner),
            "whether the workers' user can write the ledger was not found out",
            format!("run this as the workers' user: `sudo -u '#{}' roundelay doctor`", stat.owner),
        ));
    }
    let seen = format!("{} beside the ledger", size(stat.log));
    all.push(match stat.log > LARGE_LOG {
        true => Finding::warning(
            Area::Ledger,
            "write-ahead log",
            seen,
            "somebody has read the ledger for long without an end, so that the log could not be copied into it; it grows, \
             and all gets slower",
            format!("`fuser -v {file}` shows who has it open; end what is no worker. Then a worker that stops shrinks it"),
        ),
        false => Finding::good(Area::Ledger, "write-ahead log", seen),
    });
    let what = "damage";
    all.push(match damage {
        None => Finding::unknown(
            Area::Ledger,
            what,
            format!("{} were not looked through", size(bytes)),
            "`roundelay doctor --thorough` does, which reads the whole file",
        ),
        Some(Ok(Ok(complaints))) if complaints.is_empty() => Finding::good(Area::Ledger, what, "none was found"),
        Some(Ok(Ok(complaints))) => Finding::bad(
            Area::Ledger,
            what,
            complaints.join("; ").replace('\n', "; "),
            "what is read may be wrong, and what is written may be lost",
            "stop the workers, and go on as docs/operations.md says, \"A damaged ledger\": restore a backup; look for what has \
             damaged it: the disk, or a copy that was made with other means than SQLite's",
        ),
        Some(Ok(Err(why))) => Finding::bad(
            Area::Ledger,
            what,
            format!("it cannot be looked through: {why}"),
            "what is damaged, or on a disk that fails, cannot be read by workers either",
            format!("mend that, and run this again; if it stays so, look at the disk (`dmesg`), and restore a backup of {name}"),
        ),
        Some(Err(why)) => {
            Finding::unknown(Area::Ledger, what, why, "`roundelay doctor --thorough` takes the time that it takes")
        }
    });
    all
}

fn writing(written: &Gathered<Result<(), Unwritten>>, path: &Path, user: u32) -> Option<Finding> {
    let (what, file) = ("writing to the ledger", word(path.display()));
    Some(match written {
        Ok(Ok(())) => Finding::good(Area::Ledger, what, "works (rolled back again)"),
        Ok(Err(Unwritten::Busy)) => Finding::warning(
            Area::Ledger,
            what,
            "another process has held the write lock for two seconds",
            "workers wait for it, and give up after ten seconds",
            format!("`fuser -v {file}` shows who has it open; end what is no worker"),
        ),
        Ok(Err(Unwritten::Refused(why))) => Finding::bad(
            Area::Ledger,
            what,
            format!("the user {user} cannot: {why}"),
            "nothing can be enrolled, claimed or finished",
            format!(
                "`chown {user} {file}*` and `chmod u+rw {file}*`, or run as the user whose it is; see that its disk \
                     is neither full nor mounted read-only: `findmnt -T {file}`"
            ),
        ),
        Err(why) => Finding::unknown(Area::Ledger, what, why, format!("`fuser -v {file}` shows who has it open")),
    })
}

fn judge_server(seen: Result<&SeenServer, Unasked>, synchronous: bool) -> Vec<Finding> {
    let seen = match seen {
        Ok(seen) => seen,
        Err(unasked) => return vec![unreached(&unasked)],
    };
    let mut all = Vec::new();
    let version = match seen.version {
        100_000.. => format!("{}.{}", seen.version / 10_000, seen.version % 10_000),
        older => format!("{}.{}", older / 10_000, older / 100 % 100),
    };
    all.push(match seen.version {
        130_000.. => Finding::good(Area::Ledger, "PostgreSQL", version),
        _ => Finding::bad(
            Area::Ledger,
            "PostgreSQL",
            format!("version {version} is too old"),
            "no worker starts: the ledger asks what became of a transaction, which only 13 and later know",
            "upgrade the server to 13 or later",
        ),
    });
    if seen.in_recovery {
        let fix = "if the other site is lost, `roundelay promote`; if this is not to be a second site, use the primary: \
                   name all servers in ledger.url (postgres://a,b/roundelay), and the one that takes writes is chosen";
        let follows = "workers that are started wait until it is promoted, and commands fail";
        all.push(Finding::warning(Area::Ledger, "taking writes", "this server is a standby", follows, fix));
        all.push(follows_primary(seen));
    } else if seen.read_only {
        let fix = "`ALTER ROLE … RESET default_transaction_read_only`, or the same of the database";
        let words = "default_transaction_read_only is on";
        all.push(Finding::bad(Area::Ledger, "taking writes", words, "no worker starts", fix));
    } else {
        all.push(Finding::good(Area::Ledger, "taking writes", "it is a primary, and takes them"));
    }
    all.push(waits(seen, synchronous));
    all.push(room(seen));
    all.extend(durability(seen));
    all.push(match seen.autovacuum {
        true => Finding::good(Area::Ledger, "autovacuum", "on"),
        false => Finding::bad(
            Area::Ledger,
            "autovacuum",
            "off",
            "each tick leaves dead rows, so the tables grow without end and all gets slower",
            "`ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()`",
        ),
    });
    all.push(match seen.oldest_transaction.filter(|age| *age > OLD_TRANSACTION_S) {
        None => Finding::good(Area::Ledger, "open transactions", "none is old"),
        Some(age) => Finding::warning(
            Area::Ledger,
            "open transactions",
            format!("one has been open for {} minutes", age / 60),
            "vacuum removes no row that has died since then, so the tables grow and all gets slower",
            "`SELECT pid, xact_start, state, application_name, query FROM pg_stat_activity WHERE xact_start < now() - \
             interval '10 min'`, then `SELECT pg_terminate_backend(PID)`; `SELECT * FROM pg_prepared_xacts`",
        ),
    });
    let Some(schema) = &seen.schema else {
        all.push(Finding::bad(
            Area::Ledger,
            "schema",
            "the one that search_path names does not exist",
            "no worker starts",
            "`CREATE SCHEMA …`, or correct options=-csearch_path%3D… in ledger.url",
        ));
        return all;
    };
    match &seen.ledger {
        Some(ledger) => all.extend(judge_tables(ledger, schema, seen.in_recovery)),
        None if seen.may_create => all.push(Finding::warning(
            Area::Ledger,
            "ledger",
            format!("there is none in the schema {schema} yet"),
            "nothing was enrolled yet, or ledger.url leads elsewhere than that of the workers",
            "a worker or `roundelay enroll` makes its tables; see that ledger.url is right",
        )),
        None => all.push(Finding::bad(
            Area::Ledger,
            "ledger",
            format!("there is none in the schema {schema}, and this role may make no tables there"),
            "no worker starts",
            format!("`GRANT CREATE, USAGE ON SCHEMA {schema} TO …` the role of ledger.url, or make it the owner"),
        )),
    }
    all
}

fn unreached(unasked: &Unasked) -> Finding {
    let Unasked { code, words } = unasked;
    let fix = match code.as_deref() {
        Some("28P01") => {
            "correct the password in ledger.url (or ROUNDELAY__LEDGER__URL), or set it: `ALTER ROLE … PASSWORD …`"
        }
        Some("28000") => {
            "let the role in: a line for it in pg_hba.conf, `SELECT pg_reload_conf()`; see that the role exists \
                          and may log in"
        }
        Some("3D000") => "`CREATE DATABASE … OWNER …`, or correct the database in ledger.url",
        Some("53300") => "raise max_connections, or end sessions that nobody needs: `SELECT * FROM pg_stat_activity`",
        Some("57P03") => "the server is starting or stopping; wait, and look at its log if it stays so",
        Some(_) => "see what the server says, and its log",
        None => {
            "see that the server runs (`pg_isready -h HOST -p PORT`), that host and port in ledger.url are right, \
                 and that sslmode fits what it can do"
        }
    };
    let follows = "no worker starts, and no command works; those that run hold what they have";
    Finding::bad(Area::Ledger, "ledger", format!("the server cannot be asked: {words}"), follows, fix)
}

/// How many connections are left, by the limit that leaves the fewest.
fn room(seen: &SeenServer) -> Finding {
    let what = "connections left";
    let limits = [
        (Some(seen.connections.0), seen.connections.1, "the server (max_connections)"),
        (seen.of_role.0, seen.of_role.1, "the role (CONNECTION LIMIT)"),
        (seen.of_database.0, seen.of_database.1, "the database (CONNECTION LIMIT)"),
    ];
    let known = limits.into_iter().filter_map(|(limit, used, whose)| Some((limit? - used, limit?, used, whose)));
    let Some((left, limit, used, whose)) = known.min_by_key(|(left, ..)| *left) else {
        return Finding::unknown(Area::Ledger, what, "the server does not say", "`SHOW max_connections` tells it");
    };
    let seen = format!("{} of {whose}: {used} of {limit} are in use", left.max(0));
    let follows = "a worker needs four, and a fifth once it uses a throttle; commands need up to four while they run";
    let fix = "raise that limit (max_connections needs a restart of the server), or end sessions that nobody needs: `SELECT \
               * FROM pg_stat_activity`";
    match left {
        ..OF_A_WORKER => Finding::bad(Area::Ledger, what, seen, format!("no worker can be started: {follows}"), fix),
        OF_A_WORKER..15 => Finding::warning(Area::Ledger, what, seen, follows, fix),
        _ => Finding::good(Area::Ledger, what, seen),
    }
}

/// How far a standby is behind its primary.
fn follows_primary(seen: &SeenServer) -> Finding {
    let what = "following the primary";
    let last = match seen.last_commit {
        None => "it has replayed no commit since it was started".into(),
        Some(at) if at > seen.clock.told => {
            format!("its last commit is {} ahead of its clock", rough(at.since(seen.clock.told)))
        }
        Some(at) => format!("its last commit is {} old", rough(seen.clock.told.since(at))),
    };
    let off = seen.last_commit.is_none_or(|at| {
        let age = if at > seen.clock.told { at.since(seen.clock.told) } else { seen.clock.told.since(at) };
        age > COPY_OLD
    });
    match (seen.following, off) {
        (true, false) => Finding::good(Area::Ledger, what, last),
        (true, true) => Finding::warning(
            Area::Ledger,
            what,
            last,
            "no worker writes at the primary, or the copy is behind, or the clocks of the two servers differ",
            "`SELECT * FROM pg_stat_replication` at the primary shows how far it is; set both clocks right",
        ),
        (false, _) => Finding::bad(
            Area::Ledger,
            what,
            format!("it is not connected to its primary, and {last}"),
            "a primary that waits for it confirms nothing, so that no chain runs; one that does not goes on without a copy",
            "if the other site is lost, `roundelay promote`; else see the server's log, and primary_conninfo",
        ),
    }
}

/// Whether commits wait for a standby, and whether that is as it is wanted.
fn waits(seen: &SeenServer, synchronous: bool) -> Finding {
    let what = "commits wait for a standby";
    let names = seen.waits_for.trim();
    match (names.is_empty(), seen.synchronous_standbys) {
        (true, _) if synchronous && !seen.in_recovery => Finding::bad(
            Area::Ledger,
            what,
            "no, and ledger.synchronous is set",
            "no worker starts, and those that run commit nothing",
            "`ALTER SYSTEM SET synchronous_standby_names = '…'; SELECT pg_reload_conf()`; on a server that was promoted and \
             has no standby yet, take ledger.synchronous out; on one that was given up, leave it as it is",
        ),
        (true, _) => Finding::good(Area::Ledger, what, "no (synchronous_standby_names is empty)"),
        (false, _) if seen.in_recovery => {
            Finding::good(Area::Ledger, what, format!("once it is promoted, for '{names}', if one follows it then"))
        }
        (false, Some(0)) => Finding::bad(
            Area::Ledger,
            what,
            format!("for '{names}', and none of that name is connected"),
            "nothing is committed, so that no chain runs",
            "bring the standby back (its log, and `SELECT * FROM pg_stat_replication` here, say why it is away). If it was \
             promoted in place of this server, leave this one as it is",
        ),
        (false, connected) => {
            let seen = connected.map_or_else(String::new, |connected| format!(", {connected} connected"));
            Finding::good(Area::Ledger, what, format!("for '{names}'{seen}"))
        }
    }
}

fn durability(seen: &SeenServer) -> Vec<Finding> {
    let mut all = Vec::new();
    let loses = "a crash of the server loses what it has confirmed, or all of it: chains run twice, or are gone";
    for (name, on) in [("fsync", seen.fsync), ("full_page_writes", seen.full_page_writes)] {
        let fix = format!("`ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()`");
        all.push(match on {
            true => Finding::good(Area::Ledger, name, "on"),
            false => Finding::bad(Area::Ledger, name, "off", loses, fix),
        });
    }
    let words = match seen.synchronous_commit.as_str() {
        "off" | "local" => format!("{}; workers switch it on for themselves", seen.synchronous_commit),
        other => other.to_owned(),
    };
    all.push(Finding::good(Area::Ledger, "synchronous_commit", words));
    let words = match seen.isolation.as_str() {
        "read committed" => seen.isolation.clone(),
        other => format!("{other}; workers set read committed for themselves"),
    };
    all.push(Finding::good(Area::Ledger, "default_transaction_isolation", words));
    all
}

fn judge_tables(ledger: &SeenLedger, schema: &str, in_recovery: bool) -> Vec<Finding> {
    let SeenLedger { version, known, withheld, unwritten, bloated, bytes, .. } = ledger;
    let Some(version) = version else {
        return vec![Finding::bad(
            Area::Ledger,
            "ledger",
            format!("the schema {schema} has a table `meta` that is not a ledger's, or may not be read"),
            "no worker starts",
            "give the ledger a database of its own, or a schema, with ?options=-csearch_path%3DNAME in ledger.url; or let \
             this role read it",
        )];
    };
    let size = size(u64::try_from(*bytes).unwrap_or(0));
    let mut all = vec![Finding::good(Area::Ledger, "ledger", format!("in the schema {schema}, {size}"))];
    all.push(format(*version, *known, false));
    if !withheld.is_empty() {
        all.push(Finding::bad(
            Area::Ledger,
            "ledger's permissions",
            format!("this role may not read and write {}", some(withheld)),
            "workers fail on them",
            format!(
                "`GRANT ALL ON {} TO …` in the schema {schema}, and on their sequences, or make the role their owner",
                withheld.join(", ")
            ),
        ));
    }
    all.push(match unwritten {
        None => Finding::good(Area::Ledger, "writing to the ledger", "works (rolled back again)"),
        Some(_) if in_recovery => Finding::good(Area::Ledger, "writing to the ledger", "not before it is promoted"),
        Some(why) => Finding::bad(
            Area::Ledger,
            "writing to the ledger",
            why,
            "nothing can be enrolled, claimed or finished",
            "let the role of ledger.url own the tables, on a server that takes writes; `SELECT * FROM pg_locks` shows who \
             holds what is waited for",
        ),
    });
    let names: Vec<String> =
        bloated.iter().map(|(table, dead, live)| format!("{table} ({dead} dead rows, {live} living)")).collect();
    all.push(match bloated.is_empty() {
        true => Finding::good(Area::Ledger, "dead rows", "vacuum keeps up with them"),
        false => Finding::warning(
            Area::Ledger,
            "dead rows",
            some(&names),
            "vacuum does not keep up, so what is looked for takes longer and longer",
            format!(
                "`VACUUM {schema}.{}`; look for a transaction that has been open for long: `SELECT pid, xact_start, query \
                 FROM pg_stat_activity ORDER BY xact_start`",
                bloated[0].0
            ),
        ),
    });
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::{about, have_fixes};
    use super::*;
    use crate::inspect::doctor::finding::Grade;
    use roundelay_ledger::postgres::examine::Reading;
    use roundelay_model::clock::Time;

    impl LedgerFacts {
        /// A file without faults, apart from its content.
        pub(in super::super) fn file_of(seen: SeenFile) -> Self {
            let stat =
                Stat { folder: true, folder_writable: true, bytes: Some(4_096), us: 7, owner: 7, ..Stat::default() };
            Self::File(Box::new(FileFacts {
                path: "/l/ledger.db".into(),
                stat: Ok(stat),
                seen: Some(Ok(Ok(seen))),
                written: Some(Ok(Ok(()))),
                damage: Some(Ok(Ok(Vec::new()))),
            }))
        }
    }

    /// The findings about a healthy file after `change`, without the good ones.
    fn of_file(change: impl FnOnce(&mut FileFacts)) -> Vec<Finding> {
        let seen = SeenFile { version: 13, known: 13, is_ledger: true, highest: None };
        let LedgerFacts::File(mut file) = LedgerFacts::file_of(seen) else { panic!("a file") };
        change(&mut file);
        let findings = judge_file(&file);
        have_fixes(&findings);
        findings.into_iter().filter(|finding| finding.result != Grade::Good).collect()
    }

    #[test]
    fn a_table_of_files() {
        type Change = fn(&mut FileFacts);
        fn stat(file: &mut FileFacts) -> &mut Stat {
            file.stat.as_mut().unwrap()
        }
        fn seen(file: &mut FileFacts) -> &mut SeenFile {
            file.seen.as_mut().unwrap().as_mut().unwrap().as_mut().unwrap()
        }
        let table: [(Change, &str, Grade, &str); 18] = [
            (|f| f.stat = Err("no answer".into()), "ledger", Grade::Unknown, "`stat /l/ledger.db`"),
            (|f| *stat(f) = Stat::default(), "ledger", Grade::Bad, "`mkdir -p /l`"),
            (|f| stat(f).folder_writable = false, "ledger's folder", Grade::Bad, "`chown 7 /l`"),
            (|f| stat(f).folder_open = true, "ledger's folder", Grade::Warning, "`chmod o-w /l`"),
            (|f| stat(f).bytes = None, "ledger", Grade::Warning, "`roundelay enroll` makes it"),
            (|f| stat(f).open = true, "ledger's permissions", Grade::Warning, "`chmod o-w /l/ledger.db`"),
            (|f| stat(f).us = 0, "ledger's owner", Grade::Warning, "sudo -u '#7'"),
            (|f| stat(f).log = 1 << 30, "write-ahead log", Grade::Warning, "fuser -v /l/ledger.db"),
            (|f| seen(f).version = 14, "ledger's format", Grade::Bad, "or a newer one"),
            (|f| seen(f).version = 12, "ledger's format", Grade::Warning, "stop all workers first"),
            (|f| seen(f).is_ledger = false, "ledger", Grade::Bad, "set ledger.url"),
            (|f| f.damage = None, "damage", Grade::Unknown, "--thorough"),
            (|f| f.damage = Some(Ok(Ok(vec!["row 7 missing".into()]))), "damage", Grade::Bad, "restore a backup"),
            (|f| f.damage = Some(Ok(Err("I/O error".into()))), "damage", Grade::Bad, "dmesg"),
            (|f| f.damage = Some(Err("no answer".into())), "damage", Grade::Unknown, "takes the time"),
            (|f| f.seen = Some(Ok(Err("no file of a database".into()))), "ledger", Grade::Bad, "restore a backup"),
            (|f| f.seen = Some(Err("no answer".into())), "ledger", Grade::Unknown, "--within"),
            (
                |f| f.written = Some(Ok(Err(Unwritten::Refused("readonly".into())))),
                "writing to the ledger",
                Grade::Bad,
                "chmod u+rw",
            ),
        ];
        assert_eq!(of_file(|_| ()), []);
        for (n, (change, what, grade, fix)) in table.into_iter().enumerate() {
            let findings = of_file(change);
            assert_eq!(findings.len(), 1, "{n}: {findings:#?}");
            assert_eq!((findings[0].what.as_str(), findings[0].result), (what, grade), "{n}");
            assert!(findings[0].fix.contains(fix), "{n}: {}", findings[0].fix);
        }
    }

    fn server() -> SeenServer {
        let ledger = SeenLedger {
            version: Some(11),
            known: 11,
            highest: None,
            withheld: Vec::new(),
            unwritten: None,
            bloated: Vec::new(),
            bytes: 1 << 20,
        };
        let now = Time::from_millis(1_000);
        SeenServer {
            version: 150_018,
            in_recovery: false,
            read_only: false,
            isolation: "read committed".into(),
            synchronous_commit: "on".into(),
            waits_for: String::new(),
            synchronous_standbys: Some(0),
            following: false,
            last_commit: None,
            fsync: true,
            full_page_writes: true,
            autovacuum: true,
            connections: (97, 12),
            of_role: (None, 12),
            of_database: (None, 12),
            schema: Some("public".into()),
            ledger: Some(ledger),
            may_create: true,
            oldest_transaction: Some(600),
            clock: Reading { before: now, told: now, after: now },
        }
    }

    #[test]
    fn a_table_of_servers() {
        type Change = fn(&mut SeenServer);
        fn ledger(seen: &mut SeenServer) -> &mut SeenLedger {
            seen.ledger.as_mut().unwrap()
        }
        let table: [(Change, &str, Grade, &str); 19] = [
            (|s| s.oldest_transaction = Some(601), "open transactions", Grade::Warning, "pg_terminate_backend"),
            (|s| s.version = 90_624, "PostgreSQL", Grade::Bad, "13 or later"),
            (|s| s.waits_for = "b".into(), "commits wait for a standby", Grade::Bad, "bring the standby back"),
            (
                |s| (s.in_recovery, s.following, s.last_commit) = (true, true, Some(s.clock.told)),
                "taking writes",
                Grade::Warning,
                "use the primary",
            ),
            (|s| s.read_only = true, "taking writes", Grade::Bad, "RESET default_transaction_read_only"),
            (|s| s.connections = (97, 95), "connections left", Grade::Bad, "max_connections"),
            (|s| s.of_role = (Some(20), 12), "connections left", Grade::Warning, "raise that limit"),
            (|s| s.of_database = (Some(3), 12), "connections left", Grade::Bad, "raise that limit"),
            (|s| s.fsync = false, "fsync", Grade::Bad, "SET fsync = on"),
            (|s| s.full_page_writes = false, "full_page_writes", Grade::Bad, "SET full_page_writes = on"),
            (|s| s.autovacuum = false, "autovacuum", Grade::Bad, "SET autovacuum = on"),
            (|s| s.schema = None, "schema", Grade::Bad, "CREATE SCHEMA"),
            (|s| s.ledger = None, "ledger", Grade::Warning, "`roundelay enroll` makes its tables"),
            (|s| (s.ledger, s.may_create) = (None, false), "ledger", Grade::Bad, "GRANT CREATE"),
            (|s| ledger(s).version = None, "ledger", Grade::Bad, "a database of its own"),
            (|s| ledger(s).version = Some(12), "ledger's format", Grade::Bad, "or a newer one"),
            (|s| ledger(s).withheld = vec!["chains".into()], "ledger's permissions", Grade::Bad, "GRANT ALL"),
            (|s| ledger(s).unwritten = Some("no".into()), "writing to the ledger", Grade::Bad, "own the tables"),
            (
                |s| ledger(s).bloated = vec![("chains".into(), 9, 1)],
                "dead rows",
                Grade::Warning,
                "VACUUM public.chains",
            ),
        ];
        let different = |seen: &SeenServer| -> Vec<Finding> {
            let findings = judge_server(Ok(seen), false);
            have_fixes(&findings);
            findings.into_iter().filter(|finding| finding.result != Grade::Good).collect()
        };
        assert_eq!(different(&server()), []);
        for (n, (change, what, grade, fix)) in table.into_iter().enumerate() {
            let mut seen = server();
            change(&mut seen);
            let findings = different(&seen);
            assert_eq!(findings.len(), 1, "{n}: {findings:#?}");
            assert_eq!((findings[0].what.as_str(), findings[0].result), (what, grade), "{n}");
            assert!(findings[0].fix.contains(fix), "{n}: {}", findings[0].fix);
        }
        let mut lax = server();
        (lax.synchronous_commit, lax.isolation) = ("off".into(), "serializable".into());
        let findings = judge_server(Ok(&lax), false);
        assert!(about(&findings, "synchronous_commit").seen.contains("workers switch it on"));
        assert!(about(&findings, "default_transaction_isolation").seen.contains("workers set read committed"));
    }

    #[test]
    fn a_table_of_sites() {
        let (now, old) = (Time::from_millis(100_000), Some(Time::from_millis(70_000)));
        let site = |in_recovery, following, last_commit, waits_for: &str, connected| {
            let clock = Reading { before: now, told: now, after: now };
            let waits_for = waits_for.to_owned();
            SeenServer {
                in_recovery,
                following,
                last_commit,
                waits_for,
                synchronous_standbys: connected,
                clock,
                ..server()
            }
        };
        let (follows, waits) = ("following the primary", "commits wait for a standby");
        let table = [
            (site(true, true, Some(now), "", Some(0)), false, follows, Grade::Good, "last commit"),
            (site(true, true, old, "", Some(0)), false, follows, Grade::Warning, "30s old"),
            (site(true, true, Some(Time::from_millis(160_000)), "", None), false, follows, Grade::Warning, "1m ahead"),
            (site(true, false, Some(now), "", Some(0)), false, follows, Grade::Bad, "not connected"),
            (site(true, true, Some(now), "", None), true, waits, Grade::Good, "no (synchronous"),
            (site(true, true, Some(now), "c", Some(0)), false, waits, Grade::Good, "once it is promoted"),
            (site(false, false, None, "", Some(0)), true, waits, Grade::Bad, "ledger.synchronous is set"),
            (site(false, false, None, "b", Some(1)), true, waits, Grade::Good, "for 'b', 1 connected"),
            (site(false, false, None, "b", None), true, waits, Grade::Good, "for 'b'"),
        ];
        for (n, (seen, synchronous, what, grade, words)) in table.into_iter().enumerate() {
            let findings = judge_server(Ok(&seen), synchronous);
            let found = about(&findings, what);
            assert_eq!(found.result, grade, "row {n}: {found:?}");
            assert!(found.seen.contains(words), "row {n}: {}", found.seen);
        }
    }

    #[test]
    fn who_is_not_let_in_is_told_why() {
        for (code, fix) in [
            (Some("28P01"), "correct the password"),
            (Some("28000"), "pg_hba.conf"),
            (Some("3D000"), "CREATE DATABASE"),
            (Some("53300"), "max_connections"),
            (Some("XX000"), "its log"),
            (None, "pg_isready"),
        ] {
            let unasked = Unasked { code: code.map(str::to_owned), words: "no".into() };
            let findings = judge_server(Err(unasked), false);
            assert_eq!(findings[0].result, Grade::Bad);
            assert!(findings[0].fix.contains(fix), "{code:?}: {}", findings[0].fix);
        }
    }
}
