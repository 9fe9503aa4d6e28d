//! `roundelay pause`, `resume`, `retire`, `recover` and `run`: an operator's word on chains.

use anyhow::{Error, bail, ensure};
use clap::Args;
use roundelay::Config;
use roundelay::config::LedgerUrl;
use roundelay::engine::Connections;
use roundelay::engine::enroll::{Enroller, RunOnce};
use roundelay::ledger::{Order, Which};
use serde_json::json;

use super::{ConfigFile, grouped};

/// Which chains.
#[derive(Args)]
struct Chains {
    #[command(flatten)]
    config: ConfigFile,
    /// Chains of this kind: a name under [kinds].
    kind: String,
    /// The chain with this key.
    #[arg(required_unless_present = "all")]
    key: Option<String>,
    /// All chains of the kind.
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Stops chains; they keep their place.
///
/// When the command has returned, no new run of them begins. What runs at that moment finishes.
#[derive(Args)]
pub struct Pause {
    #[command(flatten)]
    chains: Chains,
}

/// Lets paused chains tick again; overdue ones at once.
#[derive(Args)]
pub struct Resume {
    #[command(flatten)]
    chains: Chains,
}

/// Ends chains.
///
/// When the command has returned, no new run of them begins. What runs at that moment finishes.
/// `roundelay enroll --revive` begins them anew.
#[derive(Args)]
pub struct Retire {
    #[command(flatten)]
    chains: Chains,
}

impl Pause {
    pub async fn run(self) -> anyhow::Result<()> {
        self.chains.steer(Order::Pause, "paused", "active").await
    }
}

impl Resume {
    pub async fn run(self) -> anyhow::Result<()> {
        self.chains.steer(Order::Resume, "resumed", "paused").await
    }
}

impl Retire {
    pub async fn run(self) -> anyhow::Result<()> {
        self.chains.steer(Order::Retire, "retired", "living").await
    }
}

impl Chains {
    async fn steer(self, order: Order, done: &str, wanted: &str) -> anyhow::Result<()> {
        let config = self.config.load()?;
        config.kind(&self.kind).map_err(Error::msg)?;
        let ledger = ledger(&config).await?;
        let which = Which { kind: Some(self.kind.clone()), key: self.key.clone(), owner: None };
        let count = ledger.steer(which, order).await?;
        if self.json {
            out!("{}", json!({ done: count }));
        } else {
            out!("{} {done}", plural(count));
        }
        if let Some(key) = self.key.filter(|_| count == 0) {
            bail!("there is no {wanted} chain {} {key}", self.kind);
        }
        Ok(())
    }
}

/// Lets chains go on after an older copy of the ledger was restored.
///
/// A message that is ahead of the ledger shows that the ledger was restored from an older copy.
/// Its chain is quarantined then: it does not tick, and `roundelay status` shows it. This command
/// begins a new epoch for each of them, due at once, in which messages of the time before mean
/// nothing. Entities that were enrolled after the copy was made must be enrolled again.
#[derive(Args)]
pub struct Recover {
    #[command(flatten)]
    config: ConfigFile,
    /// Only chains of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only the chain with this key.
    #[arg(long)]
    key: Option<String>,
    /// Every chain that has not ended, quarantined or not: the thing to do right after a restore,
    /// before the workers start. Paused ones stay paused.
    #[arg(long)]
    all: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Recover {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        if let Some(kind) = &self.kind {
            config.kind(kind).map_err(Error::msg)?;
        }
        let order = if self.all { Order::RecoverAll } else { Order::Recover };
        let count = ledger(&config).await?.steer(Which { kind: self.kind, key: self.key, owner: None }, order).await?;
        if self.json {
            out!("{}", json!({ "recovered": count }));
        } else {
            out!("{} recovered", plural(count));
        }
        Ok(())
    }
}

/// Runs a chain one time more, now and beside its rotation.
///
/// The run has a tick of its own, which nothing loses and nothing doubles, with retries by the
/// kind's policy. While it is pending, another is refused.
#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind.
    kind: String,
    /// The entity.
    key: String,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Run {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        // Refuses the absence of a ledger, and makes none.
        drop(ledger(&config).await?);
        let connections = Connections::open(&config).await?;
        let broker = connections.broker.clone();
        let accepted = Enroller::new(&config, connections, &self.kind, None, false)?.run_once(&self.key).await?;
        broker.close().await;
        let Self { kind, key, .. } = self;
        match accepted {
            RunOnce::Accepted if self.json => out!("{}", json!({ "accepted": true })),
            RunOnce::Accepted => out!("{kind} {key} runs one time more"),
            RunOnce::Pending => bail!("a run of {kind} {key} is pending already"),
            RunOnce::NoChain => bail!("there is no chain {kind} {key}; `roundelay publish` runs a job without one"),
            RunOnce::Ended => bail!("the chain {kind} {key} has ended; `roundelay enroll --revive` begins it anew"),
            RunOnce::Quarantined => bail!("the chain {kind} {key} is quarantined; see `roundelay recover --help`"),
        }
        Ok(())
    }
}

async fn ledger(config: &Config) -> anyhow::Result<std::sync::Arc<dyn roundelay::ledger::Ledger>> {
    if let LedgerUrl::Sqlite(path) = &config.ledger.url {
        let absent = "a worker or `roundelay enroll` makes it; is ledger.url right?";
        ensure!(path.exists(), "there is no ledger at {}; {absent}", path.display());
    }
    Ok(Connections::ledger(config).await?)
}

fn plural(count: u64) -> String {
    if count == 1 { "1 chain".into() } else { format!("{} chains", grouped(count)) }
}
