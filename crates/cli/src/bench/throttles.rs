//! `roundelay bench throttles`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::throttles;
use roundelay_lab::bench::throttles::{Report, Settings};
use roundelay_model::clock::{parse_duration, short_duration};

use super::{Target, note};
use crate::{grouped, screen};

/// How much of a throttle is used by chains that always have more to do, and whether ever too much.
///
/// Handlers do nothing but record when they started. Every window of the throttle's length over these times is checked,
/// wherever it begins; `over` counts starts that were one too many. About 97 % is the most that can be used: a start
/// may be a little late (a 32nd of the window, at most a second), so slots are spread over the window and that.
#[derive(Args)]
pub struct Throttles {
    #[command(flatten)]
    place: Target,
    /// Starts that the throttle allows in each window; one measurement for each number.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "500,5000")]
    rates: Vec<u32>,
    /// The length of the window.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    per: Duration,
    /// How many workers share the throttle, all in this process.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// How many chains. By default four times as many as may start in a second.
    #[arg(long)]
    chains: Option<usize>,
    /// How long each measurement takes.
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    length: Duration,
    /// Also measure each with the workers' own last gates and without them, this many turns of both, and print the
    /// ratios. A queue without throttle has no gate, so `bench chains` never passes one.
    #[arg(long, value_name = "TURNS", default_value_t = 0)]
    gate_turns: u32,
    /// How many messages each worker processes at the same time. By default what the throttle needs.
    #[arg(long)]
    concurrency: Option<u16>,
}

impl Throttles {
    pub async fn run(self) -> anyhow::Result<()> {
        let ledger = self.place.ledger()?;
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            rates: self.rates.iter().map(|rate| (*rate).max(1)).collect(),
            per: self.per,
            workers: self.workers.max(1),
            chains: self.chains,
            length: self.length,
            gate_turns: self.gate_turns,
            concurrency: self.concurrency,
        };
        let reports = throttles::run(&settings, note).await?;
        if self.place.json {
            screen::json(&reports)?;
        } else {
            reports.iter().for_each(show);
        }
        Ok(())
    }
}

fn show(report: &Report) {
    let Report { allow, workers, wait_ms, .. } = report;
    let per = short_duration(Duration::from_millis(report.per_ms));
    let used = report.use_percent.map_or("use unknown: it ran out of work".into(), |used| format!("use {used} %"));
    out!("{} per {per}, {workers} worker{}:", grouped(i64::from(*allow)), if *workers == 1 { "" } else { "s" });
    out!(
        "  {} starts/s   {used} of {} windows   most in a window {}   over {}",
        report.starts_per_s,
        report.windows,
        grouped(report.most as i64),
        report.over
    );
    out!(
        "  ledger {}/s transactions, {}/s for slots   wait p50 {} ms   p99 {} ms   CPU {} s of {} s",
        report.transactions_per_s,
        report.slot_transactions_per_s,
        wait_ms.p50,
        wait_ms.p99,
        report.cpu_s,
        report.seconds
    );
    if let Some(gate) = &report.gate {
        out!(
            "  with the last gate by without: {} of the starts/s (in turns {:?}), {} of the CPU for each",
            gate.starts_ratio,
            gate.starts_ratios,
            gate.cpu_ratio
        );
    }
}
