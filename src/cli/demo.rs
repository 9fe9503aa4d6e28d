//! `roundelay demo`

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use roundelay::clock::{Entropy, parse_duration, short_duration};
use roundelay::demo::appstore::Appstore;
use roundelay::demo::channels::Channels;
use roundelay::demo::stage::{self, System};
use roundelay::demo::trading::Trading;
use roundelay::demo::{self, Moment, Report, Settings};

use super::{grouped, screen, shutdown_on_signal};

/// Keeps 20,000 real packages fresh on this machine, against a sample upstream.
///
/// With the embedded broker nothing else is needed. The sample upstream plays two platforms on
/// loopback, with a rate limit of its own, latency, and a few 404 and 500. It keeps its own record
/// of every call, which is where `forked` and `dead` come from.
#[derive(Args)]
pub struct Demo {
    /// Which system.
    #[arg(value_enum, default_value_t = Which::Packages)]
    system: Which,
    /// `embedded`, or amqp://user:password@host:port/vhost; queues called roundelay-demo.… and
    /// demo-… are made there, and removed at the end.
    #[arg(long, value_name = "URL", default_value = "embedded")]
    broker: String,
    /// `sqlite://PATH`; by default a file in the temporary folder, removed at the end.
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// How many entities.
    #[arg(long, default_value_t = 20_000)]
    chains: usize,
    /// How often each is refreshed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    every: Duration,
    /// How long.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    length: Duration,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Packages of two platforms, kept fresh.
    Packages,
    /// A gateway's channels, polled each at its own interval.
    Channels,
    /// A crawler of two app stores, kept apart by platform.
    Appstore,
    /// A trading bot's night: 15 commands by the clock on the wall.
    Trading,
}

impl Demo {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.system {
            Which::Packages => self.packages().await,
            Which::Channels => self.whole(Channels::new(self.length)).await,
            Which::Appstore => self.whole(Appstore::new(self.length)).await,
            Which::Trading => self.whole(Trading::new(self.length)).await,
        }
    }

    /// A reference system, whole.
    async fn whole(&self, system: impl System) -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("roundelay-demo-{}", Entropy::from_os().token()));
        std::fs::create_dir(&folder)?;
        let ledger = self.ledger.clone().unwrap_or_else(|| format!("sqlite://{}/ledger.db", folder.display()));
        let settings = stage::Settings { broker: self.broker.clone(), ledger, length: self.length };
        eprintln!("{}, for {}. {}", system.name(), short_duration(self.length), system.told());
        let progress = |moment: stage::Moment| {
            eprintln!(
                "{:>4}s  started {}  ended {}  failed {}  late p50 {} ms p99 {} ms",
                moment.elapsed.as_secs(),
                grouped(moment.started),
                grouped(moment.ended),
                grouped(moment.failed),
                moment.late.p50,
                moment.late.p99
            );
        };
        let report = stage::run(system, settings, shutdown_on_signal()?, progress).await;
        let _ = std::fs::remove_dir_all(&folder);
        let report = report?;
        if self.json {
            return screen::json(&report);
        }
        out!("{}: {} chains, {} ticks", report.system, grouped(report.chains), grouped(report.ticks));
        let late = report.late_ms;
        out!("started late by {} ms (median), {} ms (p99), {} ms (worst)", late.p50, late.p99, late.max);
        out!("{}", serde_json::to_string_pretty(&report.figures)?);
        out!("{} forked, {} dead, {} rules broken", report.forked, report.dead, report.violations.len());
        for violation in &report.violations {
            out!("  {violation}");
        }
        Ok(())
    }

    async fn packages(self) -> anyhow::Result<()> {
        ensure!(self.chains > 0, "--chains is 0; there is nothing to show");
        let folder = std::env::temp_dir().join(format!("roundelay-demo-{}", Entropy::from_os().token()));
        let ledger = match &self.ledger {
            Some(ledger) => ledger.clone(),
            None => {
                std::fs::create_dir(&folder)?;
                format!("sqlite://{}/ledger.db", folder.display())
            }
        };
        let settings = Settings {
            broker: self.broker.clone(),
            ledger,
            chains: self.chains,
            every: self.every,
            length: self.length,
        };
        eprintln!(
            "{} packages on two platforms, each refreshed every {}, for {}",
            grouped(self.chains as u64),
            short_duration(self.every),
            short_duration(self.length)
        );
        let mut screen = Screen { in_place: std::io::stderr().is_terminal(), lines: 0 };
        let report = demo::run(settings, shutdown_on_signal()?, |moment| screen.show(moment)).await;
        if self.ledger.is_none() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        let report = report?;
        if self.json {
            screen::json(&report)?;
        } else {
            summary(&report);
        }
        Ok(())
    }
}

fn summary(report: &Report) {
    out!("{} chains, {} ticks, {:.0} per second", grouped(report.chains), grouped(report.ticks), report.ticks_per_s);
    let late = report.late_ms;
    out!("started late by {} ms (median), {} ms (p99), {} ms (worst)", late.p50, late.p99, late.max);
    out!("{} ticks failed for good, {} attempts were retried", grouped(report.failed), grouped(report.retried));
    for (name, platform) in &report.platforms {
        out!(
            "{name}: {} answered, {} not found, {} broken, {} turned away",
            grouped(platform.ok),
            grouped(platform.not_found),
            grouped(platform.broken),
            grouped(platform.too_many)
        );
    }
    out!("{} forked, {} dead", report.forked, report.dead);
}

/// Live figures: drawn over themselves on a terminal, else a line each second.
struct Screen {
    in_place: bool,
    lines: usize,
}

impl Screen {
    fn show(&mut self, moment: &Moment) {
        let text = if self.in_place { table(moment) } else { line(moment) };
        let mut stderr = std::io::stderr().lock();
        if self.in_place && self.lines > 0 {
            let _ = write!(stderr, "\x1b[{}A\x1b[J", self.lines);
        }
        self.lines = text.lines().count();
        let _ = writeln!(stderr, "{text}");
    }
}

fn line(moment: &Moment) -> String {
    let sum = |f: fn(&roundelay::ledger::QueueCensus) -> i64| grouped(moment.census.queues.iter().map(f).sum::<i64>());
    format!(
        "{:>4}s  sleeping {}  due {}  running {}  done {}  failed {}  late p50 {} ms p99 {} ms  429 {}",
        moment.elapsed.as_secs(),
        sum(|queue| queue.sleeping),
        sum(|queue| queue.due),
        sum(|queue| queue.running),
        grouped(moment.queues.values().map(|queue| queue.done).sum::<u64>()),
        grouped(moment.failed),
        moment.late.p50,
        moment.late.p99,
        grouped(moment.upstream.platforms.values().map(|platform| platform.too_many).sum::<u64>()),
    )
}

fn table(moment: &Moment) -> String {
    let mut text = format!(
        "{:>4}s {:<8} {:>9} {:>7} {:>8} {:>10} {:>10} {:>10} {:>7}",
        moment.elapsed.as_secs(),
        "platform",
        "sleeping",
        "due",
        "running",
        "done",
        "late p50",
        "late p99",
        "429"
    );
    for census in &moment.census.queues {
        let name = census.queue.trim_start_matches("demo-");
        let queue = moment.queues.get(&census.queue).copied().unwrap_or_default();
        let too_many = moment.upstream.platforms.get(name).map_or(0, |platform| platform.too_many);
        text += &format!(
            "\n{:>5} {:<8} {:>9} {:>7} {:>8} {:>10} {:>7} ms {:>7} ms {:>7}",
            "",
            name,
            grouped(census.sleeping),
            grouped(census.due),
            grouped(census.running),
            grouped(queue.done),
            queue.late_ms.p50,
            queue.late_ms.p99,
            grouped(too_many)
        );
    }
    text + &format!("\n{:>5} {} ticks failed for good", "", grouped(moment.failed))
}
