//! `roundelay bench parked`

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::parked;
use roundelay_lab::bench::parked::Settings;
use roundelay_model::clock::parse_duration;

use super::{Target, note, steps};
use crate::{grouped, screen};

/// The cost of sleeping chains: CPU and memory of a worker, and its queries to the ledger.
///
/// All chains are due in 20 days. The worker is an ordinary one, chores included.
#[derive(Args)]
pub struct Parked {
    #[command(flatten)]
    place: Target,
    /// The base URL of RabbitMQ's management API, with user and password, for the broker's memory.
    #[arg(long, value_name = "URL", env = "RABBITMQ_MANAGEMENT_URL", hide_env_values = true)]
    management: Option<String>,
    /// The broker's data directory, if it is on this machine, for the broker's disk use.
    #[arg(long, value_name = "FOLDER")]
    broker_data: Option<PathBuf>,
    /// How messages sleep: on the ladder, natively on their own queue, or as the broker lets them.
    #[arg(long, default_value = "auto", value_parser = ["auto", "native", "ladder"])]
    delays: String,
    /// How many chains.
    #[arg(long, default_value_t = 100_000)]
    chains: usize,
    /// How long to wait after enrolling, before the measurement begins.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    settle: Duration,
    /// How long to measure.
    #[arg(long = "for", value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    length: Duration,
}

impl Parked {
    pub async fn run(self) -> anyhow::Result<()> {
        let ledger = self.place.ledger()?;
        let management = self.management.filter(|_| self.place.broker != "embedded");
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            management,
            broker_data: self.broker_data,
            delays: self.delays,
            chains: self.chains,
            settle: self.settle,
            length: self.length,
        };
        let report = parked::run(&settings, note).await?;
        if self.place.json {
            return screen::json(&report);
        }
        out!(
            "{} chains asleep for {} s (begun in {} s): {} % of a core, {} started",
            grouped(report.chains as i64),
            report.seconds,
            report.enrolled_in_s,
            report.cpu_percent,
            report.started
        );
        out!("{} transactions and {} queries of the ledger meanwhile", report.transactions, report.reads);
        out!("without chains, and with them:");
        if let Some(memory) = &report.resident_mib {
            out!("  memory of the worker      {}", steps(memory));
        }
        if let Some(memory) = &report.broker_mib {
            out!("  memory of the broker      {}", steps(memory));
        }
        if let Some(disk) = &report.broker_disk_mib {
            out!("  disk of the broker        {}", steps(disk));
        }
        out!("  the ledger                {}", steps(&report.ledger_mib));
        Ok(())
    }
}
