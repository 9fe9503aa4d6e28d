//! `roundelay demo`

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use roundelay_lab::demo;
use roundelay_lab::demo::appstore::Appstore;
use roundelay_lab::demo::channels::Channels;
use roundelay_lab::demo::characters::Characters;
use roundelay_lab::demo::missions::Missions;
use roundelay_lab::demo::stage::{Event, Judged, Moment, Report, System};
use roundelay_lab::demo::trading::Trading;
use roundelay_lab::demo::{Settings, stage};
use roundelay_model::clock::{parse_duration, short_duration};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{grouped, screen, shutdown_on_signal};

/// Runs a reference system whole on this machine, against a sample upstream that checks its rules.
///
/// With the embedded broker nothing else is needed. The sample upstream plays what the system calls, on loopback, with
/// limits, latency and errors of its own, and keeps its own record of every call. At the end it says which rules of the
/// system were broken; if there are any, the command fails. Variables like ROUNDELAY__KINDS__… change the system's
/// configuration, as they do for a worker.
#[derive(Args)]
pub struct Demo {
    /// Which system.
    #[arg(value_enum, default_value_t = SystemName::Packages)]
    system: SystemName,
    /// `embedded`, or amqp://user:password@host:port/vhost; queues called roundelay-demo.… and
    /// demo-… are made there, and removed at the end.
    #[arg(long, value_name = "URL", default_value = "embedded")]
    broker: String,
    /// `sqlite://PATH`, by default a file that is removed at the end; or postgres://…, where the demo has a schema of
    /// its own, which is removed too.
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// How many entities, for packages [default: 20000]
    #[arg(long)]
    chains: Option<usize>,
    /// How often each is refreshed, for packages [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    every: Option<Duration>,
    /// How long the system runs.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    length: Duration,
    /// Do not serve the dashboard, which otherwise answers on a free port of 127.0.0.1 meanwhile.
    #[arg(long)]
    no_dashboard: bool,
    /// Only play the upstream that the system calls, until SIGTERM or SIGINT, and check the rules by its record, which
    /// has the newest 100,000 calls: for a worker that runs the files of examples/SYSTEM elsewhere. Times are not
    /// compressed.
    #[arg(long, conflicts_with_all = ["broker", "ledger", "length"])]
    upstream_only: bool,
    /// Where the upstream answers with --upstream-only.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8001", requires = "upstream_only")]
    listen: SocketAddr,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// The reference systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SystemName {
    /// Packages of two platforms, kept fresh.
    Packages,
    /// A game's characters, each updated some minutes after its last update has ended.
    Characters,
    /// A game's missions, with a worker that is killed.
    Missions,
    /// A gateway's channels, polled each at its own interval.
    Channels,
    /// A crawler of two app stores, kept apart by platform.
    Appstore,
    /// A trading bot's night: 15 commands by the clock on the wall.
    Trading,
}

/// Sections that the environment may change. Broker and ledger are the demo's own.
const CHANGEABLE: [&str; 4] = ["KINDS__", "QUEUES__", "THROTTLES__", "REASONS__"];

impl Demo {
    pub async fn run(self) -> anyhow::Result<()> {
        let length = if self.upstream_only { Duration::MAX } else { self.length };
        if self.system != SystemName::Packages {
            for (option, is_there) in [("--chains", self.chains.is_some()), ("--every", self.every.is_some())] {
                ensure!(!is_there, "{option} is for the demo of packages; the others have rosters of their own");
            }
        }
        match self.system {
            SystemName::Packages => self.packages().await,
            SystemName::Characters => self.whole(Characters::new()).await,
            SystemName::Missions => self.whole(Missions::new()).await,
            SystemName::Channels => self.whole(Channels::new(length)).await,
            SystemName::Appstore => self.whole(Appstore::new(length)).await,
            SystemName::Trading => self.whole(Trading::new(length)).await,
        }
    }

    /// Runs a whole reference system.
    async fn whole(&self, system: impl System) -> anyhow::Result<()> {
        if self.upstream_only {
            return self.upstream(system).await;
        }
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            let section = name.strip_prefix("ROUNDELAY__")?.to_uppercase();
            CHANGEABLE.iter().any(|changeable| section.starts_with(changeable)).then_some((name, value))
        });
        let settings = stage::Settings {
            broker: self.broker.clone(),
            ledger: self.ledger.clone(),
            length: self.length,
            dashboard: !self.no_dashboard,
            environment: environment.collect(),
        };
        eprintln!("{}, for {}. {}", system.name(), short_duration(self.length), system.told());
        let mut screen = Screen::new();
        let report = stage::run(system, settings, shutdown_on_signal()?, |told| screen.show(told)).await?;
        self.tell(&report)
    }

    /// Runs only the upstream of a system.
    async fn upstream(&self, system: impl System) -> anyhow::Result<()> {
        let name = system.name();
        let listener = TcpListener::bind(self.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {} (--listen)", self.listen))?;
        eprintln!("the upstream of {name} answers at http://{}", listener.local_addr()?);
        let Judged { forked, violations, figures } =
            stage::upstream_only(system, listener, shutdown_on_signal()?).await?;
        if self.json {
            screen::json(&json!({ "system": name, "forked": forked, "violations": violations, "figures": figures }))?;
        } else {
            say_figures(&figures);
            out!("{forked} forked, {} rules broken", violations.len());
            violations.iter().for_each(|violation| out!("  {violation}"));
        }
        ensure!(violations.is_empty() && forked == 0, "rules of {name} were broken");
        Ok(())
    }

    async fn packages(self) -> anyhow::Result<()> {
        ensure!(
            !self.upstream_only,
            "--upstream-only is for the other systems; packages has no files to run elsewhere"
        );
        let (chains, every) = (self.chains.unwrap_or(20_000), self.every.unwrap_or(Duration::from_secs(10)));
        ensure!(chains > 0, "--chains is 0; there is nothing to show");
        let settings = Settings {
            broker: self.broker.clone(),
            ledger: self.ledger.clone(),
            chains,
            every,
            length: self.length,
            dashboard: !self.no_dashboard,
        };
        eprintln!(
            "{} packages on two platforms, each refreshed every {} in the mean, for {}",
            grouped(chains as u64),
            short_duration(every),
            short_duration(self.length)
        );
        let mut screen = Screen::new();
        let report = demo::run(settings, shutdown_on_signal()?, |told| screen.show(told)).await?;
        self.tell(&report)
    }

    /// Prints the report; an error when a rule was broken.
    fn tell(&self, report: &Report) -> anyhow::Result<()> {
        if self.json {
            screen::json(report)?;
        } else {
            summary(report);
        }
        let fine = report.violations.is_empty() && report.forked == 0 && report.dead == 0;
        ensure!(fine, "rules of {} were broken", report.system);
        Ok(())
    }
}

fn summary(report: &Report) {
    out!("{}: {} chains, {} ticks", report.system, grouped(report.chains), grouped(report.ticks));
    let late = report.late_ms;
    out!("started late by {} ms (median), {} ms (p99), {} ms (worst)", late.p50, late.p99, late.max);
    say_figures(&report.figures);
    out!("{} forked, {} dead, {} rules broken", report.forked, report.dead, report.violations.len());
    report.violations.iter().for_each(|violation| out!("  {violation}"));
}

/// A line for each figure.
fn say_figures(figures: &Value) {
    for (name, value) in figures.as_object().into_iter().flatten() {
        out!("{}: {}", name.replace('_', " "), said(value));
    }
}

fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_i64().map_or_else(|| number.to_string(), grouped),
        Value::Object(parts) if parts.is_empty() => "none".into(),
        Value::Object(parts) => {
            let part = |(name, value): (&String, &Value)| match value {
                Value::Object(_) => format!("{name} ({})", said(value)),
                _ => format!("{name} {}", said(value)),
            };
            parts.iter().map(part).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// Live figures: redrawn in place on a terminal, else a line each second.
struct Screen {
    in_place: bool,
    lines: usize,
}

impl Screen {
    fn new() -> Self {
        Self { in_place: std::io::stderr().is_terminal(), lines: 0 }
    }

    fn show(&mut self, told: Event<'_>) {
        let moment = match told {
            Event::Dashboard(address) => return eprintln!("dashboard: http://{address}/"),
            Event::Moment(moment) => moment,
        };
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
    let sum = |f: fn(&roundelay_ledger::QueueCensus) -> i64| grouped(moment.census.queues.iter().map(f).sum::<i64>());
    let mut text = format!(
        "{:>4}s  sleeping {}  due {}  running {}  done {}  failed {}  late p50 {} ms p99 {} ms",
        moment.elapsed.as_secs(),
        sum(|queue| queue.sleeping),
        sum(|queue| queue.due),
        sum(|queue| queue.running),
        grouped(moment.queues.values().map(|queue| queue.done).sum::<u64>()),
        grouped(moment.failed),
        moment.late.p50,
        moment.late.p99,
    );
    if let Some(away) = &moment.turned_away {
        text += &format!("  429 {}", grouped(away.values().sum::<u64>()));
    }
    text
}

fn table(moment: &Moment) -> String {
    let name = |queue: &str| queue.strip_prefix(stage::PREFIX).unwrap_or(queue).to_owned();
    let wide = moment.census.queues.iter().map(|census| name(&census.queue).len()).fold(8, usize::max);
    let mut text = format!(
        "{:>4}s {:<wide$} {:>9} {:>7} {:>8} {:>10} {:>10} {:>10}",
        moment.elapsed.as_secs(),
        "queue",
        "sleeping",
        "due",
        "running",
        "done",
        "late p50",
        "late p99"
    );
    if moment.turned_away.is_some() {
        text += &format!(" {:>7}", "429");
    }
    for census in &moment.census.queues {
        let queue = moment.queues.get(&census.queue).copied().unwrap_or_default();
        text += &format!(
            "\n{:>5} {:<wide$} {:>9} {:>7} {:>8} {:>10} {:>7} ms {:>7} ms",
            "",
            name(&census.queue),
            grouped(census.sleeping),
            grouped(census.due),
            grouped(census.running),
            grouped(queue.done),
            queue.late_ms.p50,
            queue.late_ms.p99,
        );
        if let Some(away) = &moment.turned_away {
            text += &format!(" {:>7}", grouped(away.get(&census.queue).copied().unwrap_or(0)));
        }
    }
    text + &format!("\n{:>5} {} ticks failed for good", "", grouped(moment.failed))
}
