//! `roundelay bench ladder`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::ladder;
use roundelay_lab::bench::ladder::Settings;
use roundelay_model::clock::{parse_duration, short_duration};

use super::{Target, note};
use crate::screen;

/// Delays from 10 ms to a day: how many rungs each takes, and how late it ends.
///
/// On the embedded broker time is virtual, and all delays are measured. On RabbitMQ only those up to `--longest` are
/// measured; for the others only the rungs are printed.
#[derive(Args)]
pub struct Ladder {
    #[command(flatten)]
    place: Target,
    /// How many messages for each delay.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    messages: u16,
    /// On RabbitMQ, the longest delay to measure.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    longest: Duration,
}

impl Ladder {
    pub async fn run(self) -> anyhow::Result<()> {
        let ledger = self.place.ledger()?;
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            messages: self.messages.into(),
            longest: self.longest,
        };
        let reports = ladder::run(&settings, note).await?;
        if self.place.json {
            return screen::json(&reports);
        }
        for report in &reports {
            let delay = short_duration(Duration::from_millis(report.delay_ms));
            let late = match &report.late_ms {
                Some(late) => format!(
                    "{:>5} messages, {} early, late p50 {} ms, p99 {} ms, max {} ms",
                    report.messages, report.early, late.p50, late.p99, late.max
                ),
                None => "not waited for".into(),
            };
            out!("{delay:>16}  {} rungs  {late}", report.hops);
        }
        Ok(())
    }
}
