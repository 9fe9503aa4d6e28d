//! `roundelay bench restart`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::restart;
use roundelay_lab::bench::restart::Settings;
use roundelay_model::clock::parse_duration;

use super::{Target, note};
use crate::{grouped, screen};

/// A start when all chains are overdue and the broker has no message of them.
///
/// The situation after a broker was lost, or after a long time without workers on the embedded one: how soon the first
/// tick begins, how even the rest are, and what it costs.
#[derive(Args)]
pub struct Restart {
    #[command(flatten)]
    place: Target,
    /// How many chains.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    chains: u32,
    /// `catch_up.spread`: the longest time over which they are spread.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    spread: Duration,
    /// Workers that start at the same time; on the embedded broker they share it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: u8,
    /// How many messages a worker processes at the same time.
    #[arg(long, default_value_t = 512)]
    concurrency: u16,
}

impl Restart {
    pub async fn run(self) -> anyhow::Result<()> {
        let ledger = self.place.ledger()?;
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            workers: self.workers.into(),
            chains: self.chains as usize,
            spread: self.spread,
            concurrency: self.concurrency.max(1),
        };
        let report = restart::run(&settings, note).await?;
        if self.place.json {
            return screen::json(&report);
        }
        out!(
            "{} overdue chains: first tick after {} s, all of them after {} s",
            grouped(report.chains as i64),
            report.first_tick_s,
            report.steady_after_s
        );
        out!(
            "{} ticks/s in the mean, {} in the busiest second: peak to mean {}",
            report.mean,
            grouped(report.peak as i64),
            report.peak_to_mean
        );
        if let Some([most, before]) = report.resident_mib {
            out!("memory {most} MiB at most, {before} MiB before the start");
        }
        out!("CPU {} s, {} transactions of the ledger", report.cpu_s, grouped(report.transactions as i64));
        Ok(())
    }
}
