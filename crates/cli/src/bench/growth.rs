//! `roundelay bench growth`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::chains;
use roundelay_lab::bench::chains::{Comparison, Load, Settings};
use roundelay_lab::bench::growth::What;
use roundelay_model::clock::parse_duration;
use serde::Serialize;

use super::{Target, Work, elsewhere, here, note};
use crate::table::{Column, Table};
use crate::{grouped, screen};

/// What the cost of a cycle depends on: capacity with more chains asleep, more workers, larger payloads, more owners
/// and more kinds.
///
/// Each row has more of one thing, and a ledger of its own where the ledger is a temporary file; with `--ledger` all
/// rows share that one, with what earlier rows have left in it. Chains that sleep begin anew for each turn, and once
/// more for the clocked one. Engine and raw loop take turns, as in `bench chains`.
#[derive(Args)]
pub struct Growth {
    #[command(flatten)]
    place: Target,
    /// Chains asleep beside those that run, one row for each number.
    #[arg(long, value_delimiter = ',', default_value = "0,1000,100000")]
    asleep: Vec<usize>,
    /// Workers in this process.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    workers: Vec<usize>,
    /// Bytes of each chain's payload.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "2,1000,10000")]
    payload: Vec<usize>,
    /// Owners, among whom the chains are divided.
    #[arg(long, value_delimiter = ',', default_value = "0,100,10000")]
    owners: Vec<usize>,
    /// Kinds, among which the chains are divided.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100")]
    kinds: Vec<usize>,
    /// How many chains run. By default 60000 on the embedded broker, 20000 on RabbitMQ.
    #[arg(long)]
    chains: Option<usize>,
    /// The delay of each cycle.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    delay: Duration,
    /// How long to measure, engine and raw loop each, for each row.
    #[arg(long = "for", value_name = "DURATION", default_value = "8s", value_parser = parse_duration)]
    length: Duration,
    /// How many turns engine and raw loop take within that time.
    #[arg(long, default_value_t = 1)]
    turns: u32,
    #[command(flatten)]
    work: Work,
}

#[derive(Serialize)]
struct Row {
    of: &'static str,
    count: usize,
    #[serde(flatten)]
    capacity: Comparison,
}

impl Growth {
    pub async fn run(self) -> anyhow::Result<()> {
        let counts = |what| match what {
            What::Asleep => &self.asleep,
            What::Workers => &self.workers,
            What::Payload => &self.payload,
            What::Owners => &self.owners,
            What::Kinds => &self.kinds,
        };
        let (mut rows, mut failed) = (Vec::new(), None);
        for (what, count) in What::ALL.into_iter().flat_map(|what| counts(what).iter().map(move |count| (what, *count)))
        {
            let ledger = self.place.ledger()?;
            let base = Settings {
                broker: self.place.broker.clone(),
                ledger: ledger.url.clone(),
                workers: 1,
                chains: self.chains.unwrap_or(self.place.enough()),
                rate: 0,
                delay: self.delay,
                length: self.length,
                turns: self.turns.max(1),
                concurrency: self.work.concurrency.max(1),
                delays: self.work.delays.clone(),
                load: Load::default(),
                allocations: None,
            };
            let named = |text: &str| note(&format!("{} {}: {text}", grouped(count as i64), what.name()));
            // A row that fails costs no other.
            match chains::run(&what.row(&base, count), named).await {
                Ok(report) => rows.extend(report.capacity.map(|capacity| Row { of: what.name(), count, capacity })),
                Err(error) => {
                    named(&format!("not measured: {error}"));
                    failed = Some(error);
                }
            }
        }
        let ended = failed.map_or(Ok(()), |error| Err(error.into()));
        if self.place.json {
            return screen::json(&rows).and(ended);
        }
        let mut table = Table::new([
            Column::number("how many"),
            Column::word("of"),
            Column::number("cycles/s"),
            Column::number("raw"),
            Column::number("ratio"),
            Column::number("CPU here"),
            Column::number("elsewhere"),
        ]);
        for Row { of, count, capacity: Comparison { engine, raw, ratio, .. } } in &rows {
            table.row([
                grouped(*count as i64).into(),
                (*of).into(),
                grouped(engine.cycles_per_s.round() as i64).into(),
                grouped(raw.cycles_per_s.round() as i64).into(),
                format!("{ratio:.2}").into(),
                here(&engine.cpu_us).into(),
                elsewhere(&engine.cpu_us).into(),
            ]);
        }
        table.print();
        out!("CPU is of a cycle; elsewhere is all else on this machine, the broker for one");
        ended
    }
}
