//! This machine: the disk under the ledger, and how many files a process may have open.

use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::statfs;
use nix::sys::statvfs::statvfs;
use roundelay_config::{Config, HandlerSettings};
use roundelay_ledger::LedgerUrl;

use super::programs;
use crate::api::server::MAX_CONNECTIONS;
use crate::inspect::doctor::facts::Facts;
use crate::inspect::doctor::finding::{Area, Finding, size};
use crate::inspect::doctor::programs::ProgramFacts;

/// With less free disk in bytes, SQLite's log and a busy hour may fill the disk.
const LITTLE_DISK: u64 = 1 << 30;
/// With less free disk in bytes, the disk is full within minutes.
const NO_DISK: u64 = 128 << 20;
/// Files that every worker has open: the ledger, the broker's connections, the runtime, listeners, log.
const OWN_FILES: u64 = 64;
/// A running program has three pipes and a handle; a call has its connection, and one more during name resolution.
const FILES_OF_PROGRAM: u64 = 4;
const FILES_OF_CALL: u64 = 2;

/// Facts about this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// How many files this process may have open.
    pub files: u64,
    /// The disk under a ledger file.
    pub disk: Option<Disk>,
    /// Whether the clock is synchronised.
    pub synchronised: Synchronised,
    /// Problems with the programs of handlers.
    pub programs: Vec<ProgramFacts>,
}

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub folder: PathBuf,
    /// The number of the file system's type.
    pub magic: i64,
    /// The free bytes for this user.
    pub free: u64,
}

/// Whether a time service keeps the clock right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronised {
    /// systemd-timesyncd has set the clock since the machine started.
    Yes,
    /// systemd-timesyncd runs, and has not set the clock.
    NotYet,
    /// No known time service says that it sets the clock.
    #[default]
    Unknown,
}

/// Gathers the facts.
pub(super) async fn gather(config: Config) -> MachineFacts {
    tokio::task::spawn_blocking(move || {
        // If the limit cannot be read, the report must not say that it is too low.
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let folder = match &config.ledger.url {
            LedgerUrl::Sqlite(path) => Some(folder(path)),
            LedgerUrl::Postgres(_) | LedgerUrl::Memory => None,
        };
        let disk = folder.and_then(|folder| {
            let magic = statfs(&folder).ok()?.filesystem_type().0;
            let room = statvfs(&folder).ok()?;
            let free = room.blocks_available().saturating_mul(room.fragment_size());
            Some(Disk { folder, magic: magic as i64, free })
        });
        let timesync = Path::new("/run/systemd/timesync");
        let synchronised = match (timesync.join("synchronized").exists(), timesync.exists()) {
            (true, _) => Synchronised::Yes,
            (false, true) => Synchronised::NotYet,
            (false, false) => Synchronised::Unknown,
        };
        MachineFacts { files, disk, synchronised, programs: programs::gather(&config) }
    })
    .await
    .unwrap_or_default()
}

/// The folder of a file.
pub(super) fn folder(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// How many files a worker may need that consumes all queues (pure).
fn files_needed(config: &Config) -> u64 {
    let of_one = config.kinds.values().map(|kind| match kind.handler {
        HandlerSettings::Exec(_) => FILES_OF_PROGRAM,
        HandlerSettings::Http(_) => FILES_OF_CALL,
        HandlerSettings::Rust => 0,
    });
    let of_one = of_one.max().unwrap_or(0);
    let places: usize = config.queues.values().map(|queue| queue.concurrency).sum();
    let api = if config.api.listen.is_some() { MAX_CONNECTIONS as u64 } else { 0 };
    OWN_FILES + api + of_one.saturating_mul(places as u64)
}

/// What is wrong with this machine.
pub(super) fn diagnose(facts: &Facts, config: &Config) -> Vec<Finding> {
    let mut all = Vec::new();
    let what = "open files";
    let needed = files_needed(config);
    let fix = format!(
        "`ulimit -n {needed}` before the worker starts, or LimitNOFILE={needed} in its systemd unit, or less \
         queues.….concurrency"
    );
    let follows = "with all places in use, runs fail to start and connections are refused: too many open files";
    let api = if config.api.listen.is_some() { MAX_CONNECTIONS as u64 } else { 0 };
    let judged = |whose: &str, limit: u64| {
        let seen = format!("{whose} may have {limit}, and a worker of all queues needs up to {needed}");
        match limit {
            _ if limit >= needed => Finding::good(Area::Machine, what, seen),
            // The limit is too low only when the dashboard has as many connections as it allows.
            _ if limit >= needed - api => Finding::warning(Area::Machine, what, seen, follows, fix.clone()),
            _ => Finding::bad(Area::Machine, what, seen, follows, fix.clone()),
        }
    };
    // The limit of the workers is what counts. If a worker runs on this machine, the limit of this process is not used.
    let workers = facts.chains.as_ref().map(|chains| chains.limits.as_slice()).unwrap_or_default();
    match (&facts.machine, workers) {
        (_, [_, ..]) => {
            let worst = workers.iter().min_by_key(|(_, limit)| *limit);
            all.extend(worst.map(|(worker, limit)| judged(&format!("the worker {worker}"), *limit)));
        }
        (Ok(machine), []) if machine.files == u64::MAX => {
            all.push(Finding::good(Area::Machine, what, "there is no limit"));
        }
        (Ok(machine), []) => all.push(judged("this process", machine.files)),
        (Err(why), []) => all.push(Finding::unknown(Area::Machine, what, why, "`ulimit -n` tells it")),
    }
    all.extend(facts.machine.iter().flat_map(|machine| programs::diagnose(&machine.programs, config)));
    let LedgerUrl::Sqlite(path) = &config.ledger.url else { return all };
    let what = "disk under the ledger";
    match facts.machine.as_ref().map(|machine| &machine.disk) {
        Ok(Some(disk)) => {
            all.push(room(disk));
            all.push(file_system(disk, path));
        }
        Ok(None) => all.push(Finding::unknown(
            Area::Machine,
            what,
            format!("{} cannot be looked at", folder(path).display()),
            format!("see that it exists: `mkdir -p {}`", folder(path).display()),
        )),
        Err(why) => {
            let fix = format!(
                "`df {}` tells it; a file system that does not answer hangs the ledger, too",
                folder(path).display()
            );
            all.push(Finding::unknown(Area::Machine, what, why, fix));
        }
    }
    all
}

fn room(disk: &Disk) -> Finding {
    let what = "disk under the ledger";
    let seen = format!("{} free in {}", size(disk.free), disk.folder.display());
    let follows = "when it is full the ledger cannot be written: nothing is claimed or finished any more";
    let fix =
        format!("make room: `du -xsh {}/*` shows what takes it; less ledger.history keeps less", disk.folder.display());
    match disk.free {
        0..NO_DISK => Finding::bad(Area::Machine, what, seen, follows, fix),
        NO_DISK..LITTLE_DISK => Finding::warning(Area::Machine, what, seen, follows, fix),
        _ => Finding::good(Area::Machine, what, seen),
    }
}

/// File systems on which a write-ahead log does not work, because it needs memory that all processes share.
const NETWORK: [(i64, &str); 12] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x564c, "NCP"),
];
/// File systems that may be local or remote.
const DOUBTFUL: [(i64, &str); 3] = [(0x6573_5546, "FUSE"), (0x0102_1997, "9P"), (0x786f_4256, "VirtualBox")];
/// File systems that lose their content at a restart.
const FLEETING: [(i64, &str); 3] = [
    (0x0102_1994, "in memory (tmpfs), gone when the machine stops"),
    (0x8584_58f6, "in memory (ramfs), gone when the machine stops"),
    (0x794c_7630, "a container's own layer (overlayfs), gone with the container"),
];

fn file_system(disk: &Disk, ledger: &Path) -> Finding {
    let what = "file system of the ledger";
    // The type is a signed word on some machines.
    let magic = disk.magic & 0xffff_ffff;
    let named =
        |table: &[(i64, &'static str)]| table.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name);
    let follows = "SQLite's write-ahead log needs memory that all processes share; on a network the ledger breaks";
    let fix = "put the ledger on a local disk (ledger.url = \"sqlite:///var/lib/roundelay/ledger.db\"), or use a ledger \
               in PostgreSQL";
    if let Some(name) = named(&NETWORK) {
        return Finding::bad(
            Area::Machine,
            what,
            format!("{} is on {name}, a network", ledger.display()),
            follows,
            fix,
        );
    }
    if let Some(name) = named(&DOUBTFUL) {
        let seen = format!("{} is on {name}, which may lead to a network", ledger.display());
        return Finding::warning(Area::Machine, what, seen, follows, fix);
    }
    if let Some(words) = named(&FLEETING) {
        let follows = "all chains, their places and their history are gone then";
        let fix = "put the ledger on a disk that lasts: in a container, on a volume";
        return Finding::warning(Area::Machine, what, format!("it is {words}"), follows, fix);
    }
    Finding::good(Area::Machine, what, "it is on a local disk, as far as one can see")
}

/// The limit of open files, read from `/proc/PID/limits` (pure).
pub(super) fn files_of(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{about, have_fixes};
    use super::*;
    use crate::inspect::doctor::finding::Grade;

    #[test]
    fn a_limit_is_measured_by_what_a_worker_needs() {
        let config = |text: &str| Config::parse(text, "r.toml", []).unwrap();
        let work = "[queues.a]\nconcurrency = 10\n[queues.b]\nconcurrency = 6\n";
        let table = [
            ("", 64),
            (work, 64),
            ("[queues.a]\nconcurrency = 10\n[kinds.k]\nhandler.http.url = 'http://127.0.0.1/'\n", 84),
            (&format!("{work}[kinds.k]\nhandler.exec.argv = ['/bin/true']\n"), 128),
            ("[api]\nlisten = '127.0.0.1:1'\n", 576),
        ];
        for (text, needed) in table {
            assert_eq!(files_needed(&config(text)), needed, "{text}");
        }
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             63432                63432                processes\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(files_of(limits), Some(1_024));
        assert_eq!(files_of("Max open files            unlimited  unlimited  files"), Some(u64::MAX));
        assert_eq!(files_of(""), None);
    }

    #[test]
    fn a_table_of_disks() {
        let disk = |magic, free| Disk { folder: "/d".into(), magic, free };
        for (free, grade) in [(0, Grade::Bad), (200 << 20, Grade::Warning), (2 << 30, Grade::Good)] {
            let finding = room(&disk(0xef53, free));
            assert_eq!(finding.result, grade, "{free}");
            have_fixes(&[finding]);
        }
        let table = [
            (0xef53, Grade::Good),
            (0x6969, Grade::Bad),
            (0xff53_4d42_u32 as i32 as i64, Grade::Bad),
            (0x6573_5546, Grade::Warning),
            (0x0102_1994, Grade::Warning),
        ];
        for (magic, grade) in table {
            let finding = file_system(&disk(magic, 0), Path::new("/d/ledger.db"));
            assert_eq!(finding.result, grade, "{magic:x}");
            have_fixes(&[finding]);
        }
    }

    #[test]
    fn workers_that_can_be_asked_count_in_place_of_this_process() {
        let config = Config::parse(
            "ledger.url = 'sqlite:///d/l.db'\n[queues.a]\nconcurrency = 1000\n[kinds.k]\nhandler.exec.argv = ['/bin/x']",
            "r.toml",
            [],
        )
        .unwrap();
        let mut facts = Facts::nothing();
        facts.machine = Ok(MachineFacts { files: 1_024, ..MachineFacts::default() });
        let findings = diagnose(&facts, &config);
        let finding = about(&findings, "open files");
        assert_eq!((finding.result, finding.seen.contains("this process may have 1024")), (Grade::Bad, true));
        assert!(finding.fix.contains("LimitNOFILE=4064"), "{finding:?}");
        assert_eq!(about(&findings, "disk under the ledger").result, Grade::Unknown);
        facts.chains = Ok(super::super::ChainFacts { limits: vec![("w".into(), 65_536)], ..Default::default() });
        assert_eq!(about(&diagnose(&facts, &config), "open files").result, Grade::Good);
        let seen = Config::parse("api.listen = '127.0.0.1:0'\n[queues.a]\nconcurrency = 100", "r.toml", []).unwrap();
        for (files, grade) in [(63, Grade::Bad), (64, Grade::Warning), (575, Grade::Warning), (576, Grade::Good)] {
            let mut facts = Facts::nothing();
            facts.machine = Ok(MachineFacts { files, ..MachineFacts::default() });
            assert_eq!(about(&diagnose(&facts, &seen), "open files").result, grade, "{files}");
        }
        facts = Facts::nothing();
        let findings = diagnose(&facts, &config);
        assert!(findings.iter().all(|finding| finding.result == Grade::Unknown), "{findings:?}");
        have_fixes(&findings);
    }
}
