//! `roundelay bench chains`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::chains;
use roundelay_lab::bench::chains::{Comparison, Figures, Load, Settings};
use roundelay_lab::bench::stages::Stages;
use roundelay_model::clock::parse_duration;

use super::{Target, Work, note};
use crate::{grouped, screen};

/// Cycles per second and lateness of chains with a handler that does nothing.
///
/// A cycle is: consume a message, publish its successor to a rung, wait for the confirmation, acknowledge. The raw loop
/// does just that, through the client library, with no engine and no ledger; its messages sleep like the engine's.
/// Engine and raw loop take turns, so that noise on the machine affects both. The first measurement has more chains than
/// can be served, which shows the capacity; the second has as many as make `--rate`, which shows the lateness.
#[derive(Args)]
pub struct Chains {
    #[command(flatten)]
    place: Target,
    /// Workers in this process, each with its own connections; the raw loop has as many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: u8,
    /// How many chains for the capacity; 0 skips that measurement. By default 60000 on the embedded broker, 20000 on
    /// RabbitMQ.
    #[arg(long)]
    chains: Option<usize>,
    /// Cycles per second for the lateness; 0 skips that measurement.
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// The delay of each cycle.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    delay: Duration,
    /// How long to measure, engine and raw loop each, for each of the two.
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    length: Duration,
    /// How many turns engine and raw loop take within that time.
    #[arg(long, default_value_t = 4)]
    turns: u32,
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    load: Of,
}

/// What the chains are like, and what is in the ledger beside them.
#[derive(Args)]
struct Of {
    /// More chains, which sleep for the whole measurement. They begin anew for each turn.
    #[arg(long, default_value_t = 0)]
    asleep: usize,
    /// The size of each chain's payload in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    payload: usize,
    /// How many owners the chains belong to.
    #[arg(long, default_value_t = 0)]
    owners: usize,
    /// How many kinds the chains are of.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    kinds: u16,
}

impl Of {
    fn load(&self) -> Load {
        Load { asleep: self.asleep, payload: self.payload, owners: self.owners, kinds: self.kinds.into() }
    }
}

impl Chains {
    pub async fn run(self) -> anyhow::Result<()> {
        let ledger = self.place.ledger()?;
        let enough = self.place.enough();
        let settings = Settings {
            broker: self.place.broker,
            ledger: ledger.url.clone(),
            workers: self.workers.into(),
            chains: self.chains.unwrap_or(enough),
            rate: self.rate,
            delay: self.delay,
            length: self.length,
            turns: self.turns.max(1),
            concurrency: self.work.concurrency.max(1),
            delays: self.work.delays,
            load: self.load.load(),
            allocations: None,
        };
        let report = chains::run(&settings, note).await?;
        if self.place.json {
            return screen::json(&report);
        }
        if let Some(capacity) = &report.capacity {
            show(&format!("capacity, {} chains", grouped(capacity.chains as i64)), capacity);
        }
        if let Some(lateness) = &report.lateness {
            show(&format!("lateness, {} cycles/s", grouped(i64::from(self.rate))), lateness);
        }
        Ok(())
    }
}

fn show(title: &str, comparison: &Comparison) {
    let Comparison { engine, raw, ratio, ratios, transactions_per_cycle, stages_ms, .. } = comparison;
    out!("{title}");
    let row = |name: &str, figures: &Figures| {
        out!(
            "  {name:<7} {:>9} cycles/s   late p50 {:>8} ms   p99 {:>8} ms   max {:>8} ms   CPU {:>6} s",
            grouped(figures.cycles_per_s.round() as i64),
            figures.late_ms.p50,
            figures.late_ms.p99,
            figures.late_ms.max,
            figures.cpu_s
        );
    };
    row("engine", engine);
    row("raw", raw);
    let turns = ratios.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    out!("  ratio   {ratio:>9} (by turn: {turns})");
    let cpu = |figures: &Figures| {
        figures.cpu_us.iter().map(|(name, micros)| format!("{name} {micros}")).collect::<Vec<_>>().join(", ")
    };
    out!("  CPU of a cycle, µs: engine: {}", cpu(engine));
    out!("                      raw: {}", cpu(raw));
    let Stages { delivery, wait, claim, run, finish, publish, acknowledge } = stages_ms;
    out!(
        "  a cycle from its due time on, ms: delivery {delivery}, wait {wait}, claim {claim}, run {run}, finish {finish}, publish {publish}, acknowledge {acknowledge}"
    );
    out!("  transactions of the ledger for a cycle: {transactions_per_cycle}");
}
