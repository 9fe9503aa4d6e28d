//! Throttles on the real thing: worker processes on RabbitMQ and PostgreSQL (or SQLite), judged from the log of
//! an independent receiver. `tests/run --throttles` runs it.
//!
//! - [`fleet`]: the workers, what they have to do, and whom they call; [`strikes`]: kills and freezes them;
//!   [`services`]: a broker and a server to be killed.
//! - [`rates`], [`storm`], [`priority`], [`hold`], [`outage`], [`keyed`], [`fair`]: the scenarios.
//! - [`support`]: shared with other tests; there the judge is, in `windows.rs`.

mod fair;
mod fleet;
mod hold;
mod keyed;
mod outage;
mod priority;
mod rates;
mod services;
mod storm;
mod strikes;
#[path = "../support/mod.rs"]
#[allow(clippy::unwrap_used, dead_code, reason = "the integration tests use the rest")]
mod support;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::Parser;
use roundelay::clock::{Entropy, parse_duration};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use fleet::Ledger;

/// Has worker processes start jobs under throttles, and judges from the log of whom they call whether any window
/// held too many, and how much of each limit was used.
#[derive(Parser)]
struct Arguments {
    /// How long the windows are watched. The other scenarios take less in proportion, but for what has a length of
    /// its own.
    #[arg(long = "for", value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    length: Duration,
    /// Only scenarios in whose names this is, such as "windows"; may be given several times. Those with "storm" in
    /// their names are only played so.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Who is killed and frozen when. Random by default; a run prints its own.
    #[arg(long)]
    seed: Option<u64>,
    /// How many channels there are in the scenario "keyed", each with a limit of one start a second.
    #[arg(long, default_value_t = 200)]
    channels: usize,
    /// Print nothing but the report.
    #[arg(long)]
    json: bool,
}

/// What a scenario is told.
#[derive(Clone, Copy)]
struct Task {
    /// How long windows are watched.
    length: Duration,
    seed: u64,
    /// How many keys the throttle with keys has.
    channels: usize,
}

/// A scenario's result: whether nothing was found, a line for people, and all figures.
struct Shown {
    passed: bool,
    line: String,
    figures: Value,
}

const SCENARIOS: &[&str] = &[
    "windows-postgres-3",
    "windows-postgres-20",
    "windows-sqlite-3",
    "storm-postgres",
    "storm-sqlite",
    "priority",
    "hold",
    "outage",
    "keyed",
    "fair-flood",
    "fair-shares",
];

async fn play(name: &str, task: Task) -> anyhow::Result<Shown> {
    match name {
        "windows-postgres-3" => rates::run(Ledger::Postgres, 3, task).await,
        "windows-postgres-20" => rates::run(Ledger::Postgres, 20, task).await,
        "windows-sqlite-3" => rates::run(Ledger::Sqlite, 3, task).await,
        "storm-postgres" => storm::run(Ledger::Postgres, task).await,
        "storm-sqlite" => storm::run(Ledger::Sqlite, task).await,
        "priority" => priority::run(task).await,
        "hold" => hold::run(task).await,
        "outage" => outage::run(task).await,
        "keyed" => keyed::run(task).await,
        "fair-flood" => fair::flood(task).await,
        _ => fair::shares(task).await,
    }
}

fn main() -> ExitCode {
    support::report("throttles", run(&Arguments::parse()))
}

async fn run(arguments: &Arguments) -> anyhow::Result<Value> {
    let seed = arguments.seed.unwrap_or_else(|| Entropy::from_os().below(1 << 40) as u64);
    // What does not hold yet is played when it is asked for.
    let usual = |name: &str| arguments.only.is_empty() && !name.starts_with("storm");
    let wanted = |name: &&&str| usual(name) || arguments.only.iter().any(|text| name.contains(text));
    let names: Vec<&&str> = SCENARIOS.iter().filter(wanted).collect();
    ensure!(!names.is_empty(), "there is no scenario with {:?} in its name; there are {SCENARIOS:?}", arguments.only);
    if !arguments.json {
        println!("seed={seed} for={:?}", arguments.length);
    }
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let task = Task { length: arguments.length, seed, channels: arguments.channels };
    let (mut passed, mut figures) = (true, Map::new());
    for name in names {
        let shown = tokio::select! {
            shown = play(name, task) => shown?,
            _ = term.recv() => anyhow::bail!("ended by SIGTERM"),
            _ = interrupt.recv() => anyhow::bail!("ended by SIGINT"),
        };
        passed &= shown.passed;
        if !arguments.json {
            println!("{} {name}: {}", if shown.passed { "passed" } else { "FAILED" }, shown.line);
        }
        let mut row = shown.figures;
        row["passed"] = json!(shown.passed);
        figures.insert((**name).to_owned(), row);
    }
    Ok(json!({ "passed": passed, "seed": seed, "seconds": arguments.length.as_secs(), "scenarios": figures }))
}
