//! `roundelay topology`

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use roundelay::Config;
use roundelay::broker::Broker;
use roundelay::broker::rabbit::{Finding, RabbitBroker, Weight, definitions};
use roundelay::broker::topology::Names;
use roundelay::config::{BrokerUrl, LedgerUrl, Secret};
use roundelay::engine::{Connections, topology_guard};
use serde_json::json;

use super::ConfigFile;
use super::progress::waiting;
use super::screen::{self, Tint, field};

/// Declares, checks and exports the exchanges and queues on RabbitMQ.
#[derive(Args)]
pub struct Topology {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Apply(Apply),
    Check(Check),
    Export(Export),
}

/// Declares what is missing.
///
/// Workers do so too when they start. What exists with other properties is never changed: it is
/// named, and `check` says how to mend it.
#[derive(Args)]
struct Apply {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Says exactly what differs on the broker, effective policies included, and how to mend it.
///
/// Arguments and policies are read from the management API, so set broker.management; without it
/// only existence is checked, and that is said. Exit code 1 when something is wrong.
#[derive(Args)]
struct Check {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Writes the topology in RabbitMQ's definitions format, for `rabbitmqctl import_definitions`.
#[derive(Args)]
struct Export {
    #[command(flatten)]
    config: ConfigFile,
    /// Where to; `-` is standard output.
    #[arg(long, value_name = "FILE", default_value = "rabbitmq/definitions.json")]
    output: PathBuf,
    /// Print a JSON object: where it is, and how much there is. On standard output the topology itself is JSON.
    #[arg(long)]
    json: bool,
}

impl Topology {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Apply(apply) => apply.run().await,
            Command::Check(check) => check.run().await,
            Command::Export(export) => export.run(),
        }
    }
}

impl Apply {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let topology = config.topology();
        let waits = waiting(&format!("declaring {} queues", topology.queues.len()));
        let broker = connect(&config).await?;
        broker.apply(&topology).await?;
        broker.close().await;
        // Also what the workers of the ledger are held to, if there is one yet.
        if !matches!(&config.ledger.url, LedgerUrl::Sqlite(path) if !path.exists()) {
            topology_guard::adopt(&*Connections::ledger(&config).await?, &config).await?;
        }
        drop(waits);
        let (exchanges, queues) = (topology.exchanges.len(), topology.queues.len());
        if self.json {
            return screen::json(&json!({ "exchanges": exchanges, "queues": queues }));
        }
        out!("{exchanges} exchanges and {queues} queues are in place");
        Ok(())
    }
}

impl Check {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let waits = waiting("looking at the broker");
        let broker = connect(&config).await?;
        let management = config.broker.management.as_ref().map(Secret::expose);
        let findings = broker.check(&config.topology(), management).await?;
        broker.close().await;
        drop(waits);
        let wrong = findings.iter().filter(|finding| finding.weight == Weight::Wrong).count();
        if self.json {
            let rows: Vec<_> = findings.iter().map(row).collect();
            screen::json(&json!({ "ok": wrong == 0, "findings": rows }))?;
        } else {
            findings.iter().for_each(print);
            if wrong == 0 {
                out!("nothing is wrong");
            }
        }
        if wrong > 0 {
            bail!("{wrong} things on the broker are not as they must be");
        }
        Ok(())
    }
}

impl Export {
    fn run(self) -> anyhow::Result<()> {
        let topology = self.config.load()?.topology();
        let text = serde_json::to_string_pretty(&definitions(&topology))?;
        if self.output.as_os_str() == "-" {
            screen::exact(format_args!("{text}"));
            return Ok(());
        }
        std::fs::write(&self.output, text + "\n")
            .with_context(|| format!("failed to write {}", self.output.display()))?;
        if self.json {
            let (exchanges, queues) = (topology.exchanges.len(), topology.queues.len());
            let path = self.output.display().to_string();
            return screen::json(&json!({ "path": path, "exchanges": exchanges, "queues": queues }));
        }
        out!("{}", self.output.display());
        Ok(())
    }
}

async fn connect(config: &Config) -> anyhow::Result<RabbitBroker> {
    let BrokerUrl::Amqp(url) = &config.broker.url else {
        bail!("broker.url is `embedded`, whose topology lives and dies with its worker; set it to amqp://…");
    };
    Ok(RabbitBroker::connect(url.expose(), Names::new(&config.broker.prefix)).await?)
}

fn print(finding: &Finding) {
    let Finding { weight, what, expected, found, mend } = finding;
    match weight {
        Weight::Wrong => screen::tinted(Tint::Wrong, format_args!("wrong  {what}")),
        Weight::Unknown | Weight::Note => out!("note   {what}"),
    }
    for (label, value) in [("must be", expected), ("is", found), ("mend", mend)] {
        if !value.is_empty() {
            field(label, value);
        }
    }
    out!("");
}

fn row(finding: &Finding) -> serde_json::Value {
    let weight = match finding.weight {
        Weight::Wrong => "wrong",
        Weight::Unknown | Weight::Note => "note",
    };
    json!({ "weight": weight, "what": finding.what, "expected": finding.expected, "found": finding.found, "mend": finding.mend })
}
