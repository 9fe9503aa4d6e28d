//! `roundelay bench shards`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::shards;
use roundelay_lab::bench::shards::{MAX_QUEUES, Settings};
use roundelay_model::clock::{parse_duration, short_duration};

use super::{Target, elsewhere, here, note};
use crate::table::{Column, Table};
use crate::{grouped, screen};

/// The gain from several platform queues and several rungs.
///
/// Chains with a handler that does nothing, more than can be served, on each number of platform queues and with each
/// jitter: an interval without jitter has one rung, and one with jitter up to 16. Each is measured with the engine and
/// with the raw loop of `bench chains`, with the same chains and the same number of messages in work overall; all take
/// turns, so that noise on the machine affects all of them.
#[derive(Args)]
pub struct Shards {
    #[command(flatten)]
    place: Target,
    /// How many platform queues share the chains; the first number is the baseline.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=MAX_QUEUES as i64))]
    queues: Vec<u8>,
    /// The jitter of the delay, to either side; the first one is the baseline.
    #[arg(long, value_name = "DURATION", value_delimiter = ',', default_value = "0ms,8ms", value_parser = parse_duration)]
    jitters: Vec<Duration>,
    /// How many chains; by default 60000 on the embedded broker, 20000 on RabbitMQ.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    chains: Option<u64>,
    /// The delay of each cycle.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    delay: Duration,
    /// How long to measure, engine and raw loop each, for each number of queues with each jitter.
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    length: Duration,
    /// How many turns all take within that time.
    #[arg(long, default_value_t = 4)]
    turns: u32,
    /// How many messages are processed at the same time, on all queues together.
    #[arg(long, default_value_t = 512)]
    concurrency: u16,
}

impl Shards {
    pub async fn run(self) -> anyhow::Result<()> {
        let (ledger, enough) = (self.place.ledger()?, self.place.enough());
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            queues: self.queues.into_iter().map(usize::from).collect(),
            jitters: self.jitters,
            chains: self.chains.map_or(enough, |chains| usize::try_from(chains).unwrap_or(usize::MAX)),
            delay: self.delay,
            length: self.length,
            turns: self.turns.max(1),
            concurrency: self.concurrency.max(1),
        };
        let report = shards::run(&settings, note).await?;
        if self.place.json {
            return screen::json(&report);
        }
        let delay = short_duration(Duration::from_millis(report.delay_ms));
        out!("{} chains every {delay}, {} s each", grouped(report.chains as i64), report.seconds);
        let mut table = Table::new([
            Column::number("queues"),
            Column::number("jitter"),
            Column::number("rungs"),
            Column::word("side"),
            Column::number("cycles/s"),
            Column::number("by first"),
            Column::number("busiest rung"),
            Column::number("CPU here"),
            Column::number("elsewhere"),
        ]);
        for cell in &report.cells {
            let busiest = format!("{:.0} %", cell.busiest_rung * 100.0);
            for (name, side, busiest) in [("engine", &cell.engine, busiest), ("raw", &cell.raw, String::new())] {
                table.row([
                    cell.queues.to_string().into(),
                    short_duration(Duration::from_millis(cell.jitter_ms)).into(),
                    cell.rungs.to_string().into(),
                    name.into(),
                    grouped(side.figures.cycles_per_s.round() as i64).into(),
                    format!("{:.2}", side.by_first).into(),
                    busiest.into(),
                    here(&side.figures.cpu_us).into(),
                    elsewhere(&side.figures.cpu_us).into(),
                ]);
            }
        }
        table.print();
        out!("CPU is of a cycle; elsewhere is all else on this machine, the broker for one");
        Ok(())
    }
}
