//! What there is to do: chains at an interval, by the wall clock, under a throttle that is never enough, and, where
//! workers are frozen or cut off, some whose runs last longer than that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::StatusCode;
use roundelay::ledger::ChainState;
use rusqlite::{Connection, OpenFlags};

use crate::judge::{Attempt, Chain};
use crate::log::Call;
use crate::support::windows::Limit;

/// What calls a kind's chains.
pub enum Rhythm {
    /// This time after the end of a run.
    Every(&'static str, i64),
    /// Whenever the clock shows a multiple of this number of milliseconds.
    Grid(&'static str, i64),
    /// At once, as far as the throttle lets them.
    Throttled(Limit),
}

/// A kind of the configuration. Its queue has the same name.
pub struct Kind {
    pub name: &'static str,
    pub rhythm: Rhythm,
}

/// The kind that is measured most; how many chains it has is an option.
pub const BEAT: &str = "beat";
/// Runs that outlast frosts, and by which is seen when they are ended.
pub const LONG: &str = "long";

pub const KINDS: &[Kind] = &[
    Kind { name: BEAT, rhythm: Rhythm::Every("2s", 2_000) },
    Kind { name: LONG, rhythm: Rhythm::Every("2s", 2_000) },
    Kind { name: "cron", rhythm: Rhythm::Grid("*/2 * * * * *", 2_000) },
    Kind { name: "paced", rhythm: Rhythm::Throttled(Limit { allow: 30, per: Duration::from_secs(30) }) },
];

/// How many chains of each kind.
pub fn chains(beat: usize, long: bool) -> Vec<(&'static str, usize)> {
    vec![(BEAT, beat), (LONG, if long { 12 } else { 0 }), ("cron", 10), ("paced", 20)]
}

/// How long a call takes, and what it is answered.
pub fn manner(call: &Call) -> (Duration, StatusCode) {
    let dice = call.fence.unwrap_or(0).unsigned_abs();
    let length = match call.kind.as_str() {
        LONG => Duration::from_secs(20),
        BEAT => Duration::from_millis(50 + dice * 37 % 250),
        _ => Duration::from_millis(20),
    };
    (length, StatusCode::OK)
}

/// Writes the workers' configuration: what has to be said, and all else as it is by default.
pub fn write_config(folder: &Path, receiver: std::net::SocketAddr) -> anyhow::Result<PathBuf> {
    let mut text = "# The URLs are set from the environment.\n".to_owned();
    for Kind { name, rhythm } in KINDS {
        let (queue, kind) = match rhythm {
            Rhythm::Every(every, _) => (String::new(), format!("every = \"{every}\"\n")),
            Rhythm::Grid(cron, _) => (String::new(), format!("cron = \"{cron}\"\n")),
            Rhythm::Throttled(Limit { allow, per }) => {
                text += &format!("[throttles.{name}]\nallow = {allow}\nper = \"{}s\"\n", per.as_secs());
                (format!("throttle = \"{name}\"\n"), "every = \"1s\"\n".to_owned())
            }
        };
        text += &format!(
            "[queues.{name}]\n{queue}[kinds.{name}]\nqueue = \"{name}\"\n{kind}handler.http.url = \"http://{receiver}/\"\n"
        );
    }
    let path = folder.join("roundelay.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The kinds with an interval, and with a grid.
pub fn intervals() -> (BTreeMap<String, i64>, BTreeMap<String, i64>) {
    let (mut every, mut grid) = (BTreeMap::new(), BTreeMap::new());
    for Kind { name, rhythm } in KINDS {
        match rhythm {
            Rhythm::Every(_, millis) => drop(every.insert((*name).to_owned(), *millis)),
            Rhythm::Grid(_, millis) => drop(grid.insert((*name).to_owned(), *millis)),
            Rhythm::Throttled(_) => {}
        }
    }
    (every, grid)
}

pub fn limits() -> BTreeMap<String, Limit> {
    let limit = |kind: &Kind| match kind.rhythm {
        Rhythm::Throttled(limit) => Some((kind.name.to_owned(), limit)),
        _ => None,
    };
    KINDS.iter().filter_map(limit).collect()
}

/// The rows of all chains and attempts of a ledger in SQLite.
pub fn rows(file: &Path) -> anyhow::Result<(Vec<Chain>, Vec<Attempt>)> {
    let ledger = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut chains = ledger.prepare("SELECT epoch, kind, key, state, due FROM chains")?;
    let chains = chains.query_map([], |row| {
        let state = ChainState::from_number(row.get(3)?);
        Ok(Chain { epoch: row.get(0)?, kind: row.get(1)?, key: row.get(2)?, state, due: row.get(4)? })
    })?;
    let mut attempts = ledger.prepare("SELECT fence, epoch, tick, due, started, verdict FROM attempts")?;
    let attempts = attempts.query_map([], |row| {
        let (fence, epoch, tick) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Attempt { fence, epoch, tick, due: row.get(3)?, started: row.get(4)?, verdict: row.get(5)? })
    })?;
    Ok((chains.collect::<Result<_, _>>()?, attempts.collect::<Result<_, _>>()?))
}

/// A clock that libfaketime shows to all processes that follow this file.
pub struct Wall {
    file: PathBuf,
    library: PathBuf,
}

impl Wall {
    /// One that is right.
    pub fn new(folder: &Path, library: PathBuf) -> anyhow::Result<Self> {
        // The dynamic linker only warns of a library that is not there, and no clock would be set.
        let missing = || format!("there is no {}: install Debian's package faketime", library.display());
        anyhow::ensure!(library.is_file(), missing());
        let wall = Self { file: folder.join("wall-clock"), library };
        wall.set(0)?;
        Ok(wall)
    }

    /// Sets the clock `ahead` seconds ahead of the machine's.
    pub fn set(&self, ahead: i64) -> anyhow::Result<()> {
        // A reader reads all of the old file or all of the new one.
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, format!("{ahead:+}\n"))?;
        Ok(std::fs::rename(&fresh, &self.file)?)
    }

    /// What the environment of a process has that follows it. No clock but the wall's is changed.
    pub fn environment(&self) -> Vec<(String, String)> {
        let variable = |name: &str, value: String| (name.to_owned(), value);
        vec![
            variable("LD_PRELOAD", self.library.display().to_string()),
            variable("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            variable("FAKETIME_NO_CACHE", "1".into()),
            variable("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            variable("NO_FAKE_STAT", "1".into()),
        ]
    }
}
