//! `roundelay bench compare`

use std::time::Duration;

use clap::Args;
use roundelay_lab::bench::chains::Figures;
use roundelay_lab::bench::compare;
use roundelay_lab::bench::compare::{Report, Settings};
use roundelay_model::clock::{parse_duration, short_duration};
use serde::Serialize;

use super::{Ledger, Work, elsewhere, here, note};
use crate::table::{Column, Table};
use crate::{grouped, screen};

/// The two kinds of work that other schedulers publish figures for, on each broker and ledger.
///
/// One worker burns down jobs that do nothing, published before it starts. Then it runs chains that recur, with all its
/// chores. Run another scheduler's benchmark with the same numbers on the same machine to compare. `--delays` is for
/// RabbitMQ.
#[derive(Args)]
pub struct Compare {
    /// A RabbitMQ to compare as well: amqp://user:password@host:port/vhost.
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// A PostgreSQL to compare as well, with that RabbitMQ: `postgres://…`.
    #[arg(long, value_name = "URL", requires = "broker")]
    ledger: Option<String>,
    /// How many jobs to burn down; 0 skips that.
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
    /// How many chains recur; 0 skips that.
    #[arg(long, default_value_t = 1_000)]
    chains: usize,
    /// Their interval.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    every: Duration,
    /// How long to measure the chains.
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    length: Duration,
    #[command(flatten)]
    work: Work,
    /// Print a JSON array, with an object for each broker and ledger.
    #[arg(long)]
    json: bool,
}

/// What was seen on one broker and ledger.
#[derive(Serialize)]
struct Place {
    broker: &'static str,
    ledger: &'static str,
    #[serde(flatten)]
    report: Report,
}

impl Compare {
    pub async fn run(self) -> anyhow::Result<()> {
        let rabbit = self.broker.as_deref().map(|broker| (broker, "RabbitMQ"));
        let brokers = std::iter::once(("embedded", "embedded")).chain(rabbit);
        let mut places = Vec::new();
        for (url, broker) in brokers {
            // The embedded broker is for one worker, whose ledger is a file.
            let postgres = self.ledger.as_deref().filter(|_| url != "embedded");
            let postgres = postgres.map(|ledger| (Ledger::at(ledger), "PostgreSQL"));
            let ledgers = std::iter::once((Ledger::temporary()?, "SQLite"));
            for (ledger, name) in ledgers.chain(postgres) {
                let settings = Settings {
                    broker: url.into(),
                    ledger: ledger.url.clone(),
                    jobs: self.jobs,
                    chains: self.chains,
                    every: self.every,
                    length: self.length,
                    concurrency: self.work.concurrency.max(1),
                    // The embedded broker has its own way.
                    delays: if url == "embedded" { "auto".into() } else { self.work.delays.clone() },
                };
                let report = compare::run(&settings, |text| note(&format!("{broker}, {name}: {text}"))).await?;
                places.push(Place { broker, ledger: name, report });
            }
        }
        if self.json {
            return screen::json(&places);
        }
        self.show(&places);
        Ok(())
    }

    fn show(&self, places: &[Place]) {
        let place = |place: &Place| [place.broker.into(), place.ledger.into()];
        let figure = |figure: f64| grouped(figure.round() as i64);
        if self.jobs > 0 {
            out!("{} jobs that do nothing, by one worker", grouped(self.jobs as i64));
            let [first, second] = ["broker", "ledger"].map(Column::word);
            let rest = ["published/s", "burned down in", "jobs/s", "CPU here", "elsewhere"].map(Column::number);
            let [published, within, jobs, cpu, other] = rest;
            let mut table = Table::new([first, second, published, within, jobs, cpu, other]);
            for (of, burned) in places.iter().filter_map(|of| of.report.jobs.as_ref().map(|jobs| (of, jobs))) {
                let [broker, ledger] = place(of);
                table.row([
                    broker,
                    ledger,
                    figure(burned.published_per_s).into(),
                    format!("{:.1} s", burned.seconds).into(),
                    figure(burned.jobs as f64 / burned.seconds.max(0.001)).into(),
                    here(&burned.cpu_us).into(),
                    elsewhere(&burned.cpu_us).into(),
                ]);
            }
            table.print();
        }
        if self.chains > 0 {
            out!("{} chains every {}, by one worker", grouped(self.chains as i64), short_duration(self.every));
            let [first, second] = ["broker", "ledger"].map(Column::word);
            let rest = ["runs/s", "late p50", "late p99", "late max", "CPU here", "elsewhere"].map(Column::number);
            let [runs, p50, p99, max, cpu, other] = rest;
            let mut table = Table::new([first, second, runs, p50, p99, max, cpu, other]);
            for (of, runs) in places.iter().filter_map(|of| of.report.chains.as_ref().map(|runs| (of, runs))) {
                let ([broker, ledger], Figures { cycles_per_s, late_ms, .. }) = (place(of), runs);
                table.row([
                    broker,
                    ledger,
                    figure(*cycles_per_s).into(),
                    format!("{} ms", late_ms.p50).into(),
                    format!("{} ms", late_ms.p99).into(),
                    format!("{} ms", late_ms.max).into(),
                    here(&runs.cpu_us).into(),
                    elsewhere(&runs.cpu_us).into(),
                ]);
            }
            table.print();
        }
        out!("CPU is of a job or a run; elsewhere is all else on this machine, the broker for one");
    }
}
