//! `roundelay bench`

mod chains;
mod compare;
mod flat;
mod growth;
mod keys;
mod ladder;
mod parked;
mod restart;
mod shards;
mod throttles;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use roundelay_model::clock::Entropy;

use super::progress::waiting;
use super::screen;

/// Measures the engine on this machine, broker and ledger.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Chains(chains::Chains),
    Growth(growth::Growth),
    Compare(compare::Compare),
    Shards(shards::Shards),
    Throttles(throttles::Throttles),
    Keys(keys::Keys),
    Parked(parked::Parked),
    Restart(restart::Restart),
    Flat(flat::Flat),
    Ladder(ladder::Ladder),
}

/// More chains than a broker can serve at a delay of a second: the embedded one, and RabbitMQ.
const DEFAULT_CHAINS: [usize; 2] = [60_000, 20_000];

/// Broker and ledger of a measurement.
#[derive(Args)]
struct Target {
    /// `embedded` or amqp://user:password@host:port/vhost.
    #[arg(long, value_name = "URL", default_value = "embedded")]
    broker: String,
    /// `sqlite://PATH`, or with RabbitMQ `postgres://…`; by default a file in the temporary folder, removed at the end.
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// Print JSON: an object, or an array with one for each row.
    #[arg(long, display_order = 100)]
    json: bool,
}

/// The workers of a measurement.
#[derive(Args)]
struct Work {
    /// How messages sleep: on the ladder, natively on their own queue, or as the broker lets them.
    #[arg(long, default_value = "auto", value_parser = ["auto", "native", "ladder"])]
    delays: String,
    /// How many messages a worker processes at the same time.
    #[arg(long, default_value_t = 512)]
    concurrency: u16,
}

impl Bench {
    pub async fn run(self) -> anyhow::Result<()> {
        // Lines that are printed meanwhile go above it.
        let _waits = waiting("measuring");
        match self.command {
            Command::Chains(bench) => bench.run().await,
            Command::Growth(bench) => bench.run().await,
            Command::Compare(bench) => bench.run().await,
            Command::Shards(bench) => bench.run().await,
            Command::Throttles(bench) => bench.run().await,
            Command::Keys(bench) => bench.run().await,
            Command::Parked(bench) => bench.run().await,
            Command::Restart(bench) => bench.run().await,
            // The measurement has runtimes of its own.
            Command::Flat(bench) => tokio::task::block_in_place(|| bench.run()),
            Command::Ladder(bench) => bench.run().await,
        }
    }
}

/// The ledger of a measurement; a temporary one is removed with this value.
struct Ledger {
    url: String,
    folder: Option<PathBuf>,
}

impl Ledger {
    fn at(url: &str) -> Self {
        Self { url: url.into(), folder: None }
    }

    fn temporary() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("roundelay-bench-{}", Entropy::from_os().token()));
        std::fs::create_dir(&folder)?;
        Ok(Self { url: format!("sqlite://{}/ledger.db", folder.display()), folder: Some(folder) })
    }
}

impl Target {
    fn ledger(&self) -> anyhow::Result<Ledger> {
        self.ledger.as_deref().map_or_else(Ledger::temporary, |url| Ok(Ledger::at(url)))
    }

    /// See [`DEFAULT_CHAINS`].
    fn enough(&self) -> usize {
        let [embedded, rabbit] = DEFAULT_CHAINS;
        if self.broker == "embedded" { embedded } else { rabbit }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Prints progress for people who wait.
fn note(text: &str) {
    screen::note(format_args!("{text}"));
}

/// Figures of moments, one after the other.
fn steps(figures: &[f64]) -> String {
    figures.iter().map(|figure| format!("{figure} MiB")).collect::<Vec<_>>().join(", then ")
}

/// The CPU of a cycle in this process.
fn here(cpu_us: &BTreeMap<String, f64>) -> String {
    let threads = cpu_us.iter().filter(|(name, _)| *name != "elsewhere");
    format!("{:.0} µs", threads.map(|(_, micros)| micros).sum::<f64>())
}

/// The CPU of a cycle outside this process; nothing if the system does not report it.
fn elsewhere(cpu_us: &BTreeMap<String, f64>) -> String {
    cpu_us.get("elsewhere").map_or_else(String::new, |micros| format!("{micros:.0} µs"))
}
