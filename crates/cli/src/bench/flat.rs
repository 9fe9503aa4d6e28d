//! `roundelay bench flat`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::flat;
use roundelay_lab::bench::flat::Settings;
use roundelay_model::clock::parse_duration;

use super::note;
use crate::{grouped, screen};

/// How flat a fleet's starts are: the busiest second divided by the mean one.
///
/// In virtual time, with the real engine: chains whose first ticks are spread over the interval, chains that begin all
/// at once, and chains whose workers were away for two intervals.
#[derive(Args)]
pub struct Flat {
    /// How many chains.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    chains: u64,
    /// Their interval.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    every: Duration,
    /// Its jitter, to either side.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    jitter: Duration,
    /// How long the chains run before the measurement begins, after the first five intervals.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = parse_duration)]
    settle: Duration,
    /// How long to measure.
    #[arg(long = "for", value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    length: Duration,
    /// How many workers share them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    workers: u8,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 11)]
    seed: u64,
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

impl Flat {
    pub fn run(self) -> anyhow::Result<()> {
        let settings = Settings {
            chains: self.chains,
            every: self.every,
            jitter: self.jitter,
            settle: self.settle,
            length: self.length,
            workers: self.workers.into(),
            seed: self.seed,
        };
        let reports = flat::run(&settings, note)?;
        if self.json {
            return screen::json(&reports);
        }
        for report in &reports {
            out!(
                "{:<45} mean {:>8}/s   busiest second {:>7}   peak to mean {:>6}   {} starts per real second",
                report.scenario,
                report.mean,
                grouped(report.peak as i64),
                report.peak_to_mean,
                grouped(report.starts_per_real_s as i64)
            );
        }
        Ok(())
    }
}
