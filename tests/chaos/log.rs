//! The receiver's log: a JSON object on each line, only ever appended to.
//!
//! The receiver writes what it saw, and the driver has it write down what was done to whom, so
//! that one file by one clock holds all that the judge needs beside the ledger.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use roundelay::clock::{Clock, Time};
use serde::{Deserialize, Serialize};

pub use crate::support::workers::Did;

/// A line: when, and what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Milliseconds since 1970, by the machine's clock, which the ledger's server shares.
    pub at: Time,
    #[serde(flatten)]
    pub entry: Entry,
}

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum Entry {
    /// A handler's call has come in.
    Call(Call),
    /// It was answered, or its caller has gone.
    End { call: u64, answered: bool },
    /// A worker process: what became of it.
    Worker { worker: String, did: Did },
    /// The driver began to break something; `fault` is its kind.
    Broke { number: usize, fault: String, target: String },
    /// Whatever it broke is as it was.
    Healed { number: usize },
    /// The caller at this port has ended its connection, over a link that carries nothing of it.
    Left { peer: u16 },
    /// A clock was set: from here on it is this number of milliseconds ahead of the log's clock.
    Set { ahead: i64 },
    /// The broker confirmed a one-off job.
    Accepted { id: String },
    /// No more faults from here on.
    Calm,
    /// What comes after this is of no interest: the workers are being stopped.
    Over,
}

/// A call, by its headers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Numbers the calls in the order in which they came.
    pub call: u64,
    /// The process that called, such as `w2-5`: the fifth life of worker 2.
    pub worker: String,
    pub kind: String,
    pub key: String,
    pub id: String,
    pub attempt: u32,
    /// Of a chain's tick; absent for one-off jobs.
    pub epoch: Option<i64>,
    pub tick: Option<i64>,
    pub fence: Option<i64>,
    /// Until when its caller waits, as that says.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// Its nominal time.
    #[serde(default)]
    pub nominal: Option<Time>,
    /// The port that it came from.
    #[serde(default)]
    pub peer: u16,
    /// What the run before passed on, in kinds whose runs do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carry: Option<Carry>,
}

/// What the runs of a chain pass on: how many they were whose ends were taken, and the fences of the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carry {
    pub count: u64,
    pub last: Vec<i64>,
}

/// How many fences are passed on.
const PASSED_ON: usize = 20;

impl Carry {
    /// What the run with this fence passes on that has read this.
    pub fn with(&self, fence: i64) -> Self {
        let mut last = self.last.clone();
        last.push(fence);
        last.drain(..last.len().saturating_sub(PASSED_ON));
        Self { count: self.count + 1, last }
    }
}

/// Appends to the log. Clones append to the same file.
#[derive(Clone)]
pub struct Writer(Arc<Mutex<File>>);

impl Writer {
    /// Opens or makes the file.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(OpenOptions::new().create(true).append(true).open(path)?))))
    }

    /// Appends a line. A log that cannot be written proves nothing, so that ends the run.
    pub fn write(&self, entry: Entry) {
        // The time is read under the lock, so that the lines are in its order.
        let mut file = self.0.lock();
        let line = Line { at: Clock::System.now(), entry };
        let mut text = serde_json::to_string(&line).expect("lines are JSON");
        text.push('\n');
        file.write_all(text.as_bytes()).expect("the log can be written");
    }
}

/// Reads a whole log.
pub fn read(path: &Path) -> std::io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(|line| serde_json::from_str(line).map_err(std::io::Error::other));
    lines.collect()
}
