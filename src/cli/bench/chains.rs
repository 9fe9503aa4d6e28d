//! `roundelay bench chains`

use std::time::Duration;

use clap::Args;
use roundelay::bench::chains::{self, Figures, Report, Settings};
use roundelay::clock::parse_duration;

use super::{Place, note};
use crate::cli::grouped;

/// Cycles per second and lateness of chains with a handler that does nothing.
///
/// A cycle is: consume a message, publish its successor to a rung, see it confirmed, acknowledge.
/// The raw loop does just that, through the client library, with no engine and no ledger. Engine
/// and raw loop take turns, so that noise on the machine meets both. With more chains than the
/// delay allows for, the figure is the capacity; with fewer, look at the lateness.
#[derive(Args)]
pub struct Chains {
    #[command(flatten)]
    place: Place,
    /// How many chains.
    #[arg(long, default_value_t = 10_000)]
    chains: usize,
    /// The delay of each cycle.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    delay: Duration,
    /// How long to measure, engine and raw loop each.
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    length: Duration,
    /// Into how many turns that is divided.
    #[arg(long, default_value_t = 2)]
    turns: u32,
    /// Messages in work at the same time.
    #[arg(long, default_value_t = 512)]
    concurrency: u16,
    /// Print a JSON object as the last line.
    #[arg(long)]
    json: bool,
}

impl Chains {
    pub async fn run(self) -> anyhow::Result<()> {
        let ledger = self.place.ledger()?;
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            chains: self.chains,
            delay: self.delay,
            length: self.length,
            turns: self.turns.max(1),
            concurrency: self.concurrency.max(1),
        };
        let report = chains::run(&settings, note).await?;
        if self.json {
            out!("{}", serde_json::to_string(&report)?);
        } else {
            show(&report);
        }
        Ok(())
    }
}

fn show(report: &Report) {
    let row = |name: &str, figures: &Figures| {
        out!(
            "{name:<8} {:>9} cycles/s   late p50 {:>8} ms   p99 {:>8} ms   max {:>8} ms   CPU {:>6} s",
            grouped(figures.cycles_per_s.round() as i64),
            figures.late_ms.p50,
            figures.late_ms.p99,
            figures.late_ms.max,
            figures.cpu_s
        );
    };
    row("engine", &report.engine());
    row("raw", &report.raw());
    out!("ratio    {:>9.2}", report.ratio);
}
