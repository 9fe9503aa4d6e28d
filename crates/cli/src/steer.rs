//! `roundelay pause`, `resume`, `retire`, `recover`, `run` and `advance`: orders for chains.

use std::io::IsTerminal;

use anyhow::{Error, bail, ensure};
use clap::Args;
use roundelay_admin::operate::chain;
use roundelay_admin::operate::chain::plural;
use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_ledger::{ChainFilter, ChainOrder, LedgerUrl};
use roundelay_model::guard::IfRunning;
use roundelay_model::job::RunNow;
use serde_json::{Value, json};

use super::audited::{Order, audited};
use super::confirm::confirmed;
use super::fleet::current_user;
use super::progress::waiting;
use super::{ConfigFile, screen};

/// Which chains: those that match all options.
#[derive(Args)]
struct Chains {
    #[command(flatten)]
    config: ConfigFile,
    /// Chains of this kind: a name under [kinds].
    #[arg(required_unless_present = "owner")]
    kind: Option<String>,
    /// The chain with this key.
    #[arg(required_unless_present_any = ["all", "owner", "key_like"])]
    key: Option<String>,
    /// All chains of the kind.
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Chains that belong to this owner. Without another option the order is for the owner as a whole: also for the
    /// owner's one-off jobs, including those that wait in queues already.
    #[arg(long)]
    owner: Option<String>,
    /// Chains whose keys match: `*` stands for anything, `?` for one character. `eu/*`
    #[arg(long, value_name = "PATTERN", conflicts_with = "key")]
    key_like: Option<String>,
    /// Do not ask, however many chains there are.
    #[arg(long)]
    yes: bool,
    /// Only count the chains that would be changed.
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Pauses chains; they keep their place in the rotation.
///
/// When the command has returned, no new run of them begins. What runs at that moment finishes.
///
///   roundelay pause sync app-17                 one chain
///   roundelay pause sync --all                  all of a kind
///   roundelay pause --owner channel-9           all that belongs to an owner
///   roundelay pause sync --key-like 'eu/*'      by pattern
///
/// With more than one chain it asks first. Without a terminal to ask at, --yes is needed (or --all, which
/// says it).
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Pause {
    #[command(flatten)]
    chains: Chains,
}

/// Lets paused chains tick again; overdue ones at once.
///
/// Options select chains as for `roundelay pause`. An order for an owner as a whole is taken back only with --owner
/// alone.
#[derive(Args)]
pub struct Resume {
    #[command(flatten)]
    chains: Chains,
}

/// Ends chains.
///
/// When the command has returned, no new run of them begins. What runs at that moment finishes. `roundelay enroll
/// --revive` begins them anew. Options select chains as for `roundelay pause`; --owner alone is for an owner that is
/// gone, for whom nothing is to run any more.
#[derive(Args)]
pub struct Retire {
    #[command(flatten)]
    chains: Chains,
}

impl Pause {
    pub async fn run(self) -> anyhow::Result<()> {
        self.chains.steer(ChainOrder::Pause).await
    }
}

impl Resume {
    pub async fn run(self) -> anyhow::Result<()> {
        self.chains.steer(ChainOrder::Resume).await
    }
}

impl Retire {
    pub async fn run(self) -> anyhow::Result<()> {
        self.chains.steer(ChainOrder::Retire).await
    }
}

impl Chains {
    async fn steer(self, order: ChainOrder) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        let which = ChainFilter {
            kind: self.kind,
            key: self.key,
            owner: self.owner,
            like: self.key_like,
            ..ChainFilter::default()
        };
        let many = which.kind.is_none() || which.key.is_none();
        let (verb, done) = chain::verb(order);
        if many || self.dry_run {
            let waits = waiting("counting chains");
            let count = ledger.matching(which.clone(), order).await?;
            drop(waits);
            // A kind that is no longer configured can still have chains, and these can be changed.
            if let Some(kind) = which.kind.as_ref().filter(|_| count == 0) {
                config.kind(kind).map_err(Error::msg)?;
            }
            if self.dry_run {
                let would = json!({ "would_be": done, "chains": count });
                return screen::told(self.json, &would, format_args!("{} would be {done}", plural(count)));
            }
            // A script with --all has confirmed that it changes many chains.
            let agreed = count <= 1 || self.yes || (self.all && !std::io::stdin().is_terminal());
            if !confirmed(&format!("{verb} {}", plural(count)), agreed)? {
                bail!("nothing was changed");
            }
        }
        let waits = waiting(if many { "many chains are changed, all at once" } else { "the chain is changed" });
        let by = current_user();
        let order_of = Order { by: &by, command: verb, target: target(&which), detail: filter(&which) };
        let steered = audited(&*ledger, order_of, chain::steer(&config, &*ledger, which, order)).await?;
        drop(waits);
        screen::told(self.json, &json!({ done: steered.count }), steered)
    }
}

/// Resumes quarantined chains.
///
/// A chain over which three workers have died is quarantined, so that a fourth does not: `roundelay show` says so. When
/// its handler or payload is mended, this command resumes it.
///
/// A message that is ahead of the ledger shows that the ledger was restored from an older copy. Its chain is
/// quarantined then: it does not tick, and `roundelay status` shows it. This command begins a new epoch for each of
/// them, due at once; messages of earlier epochs have no effect. Entities that were enrolled after the copy was made
/// must be enrolled again.
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
    /// Every chain that has not ended, quarantined or not: use this right after a restore, before the workers start.
    /// Paused chains stay paused.
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
        let order = if self.all { ChainOrder::RecoverAll } else { ChainOrder::Recover };
        let ledger = ledger(&config).await?;
        let waits = waiting("beginning new epochs");
        let which = ChainFilter { kind: self.kind, key: self.key, ..ChainFilter::default() };
        let by = current_user();
        let order_of =
            Order { by: &by, command: "recover", target: target(&which), detail: json!({ "all": self.all }) };
        let steered = audited(&*ledger, order_of, chain::steer(&config, &*ledger, which, order)).await?;
        drop(waits);
        screen::told(self.json, &json!({ "recovered": steered.count }), steered)
    }
}

/// Without this parser, clap makes a JSON string of the text.
fn as_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))
}

/// Runs a chain one more time, now.
///
/// This is a run of the chain, never lost and never doubled, with retries by the kind's policy: its attempts are in the
/// chain's history, its failed parts are the chain's, and cooldowns count it. It does not shift the rotation. While one
/// is pending, another is refused.
#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind of the chain.
    kind: String,
    /// The key of the entity.
    key: String,
    /// The platform queue, in place of the chain's.
    #[arg(long)]
    queue: Option<String>,
    /// The priority on that queue, in place of the chain's.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// What the handler gets, as JSON, in place of the chain's. With it, an entity without a chain runs, too.
    #[arg(long, value_name = "JSON", value_parser = as_json)]
    payload: Option<Value>,
    /// While the rotation runs: `refuse`, run `after` it, or `beside` it [default: the kind's setting]
    #[arg(long, value_name = "HOW")]
    if_running: Option<IfRunning>,
    /// Run also within the kind's cooldown.
    #[arg(long)]
    force: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Run {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let connections = connections(&config).await?;
        let Self { kind, key, queue, priority, payload, if_running, force, json, .. } = self;
        let asked = RunNow { queue, priority, if_running, force };
        let by = current_user();
        // Payloads may be confidential.
        let detail = json!({
            "queue": asked.queue, "priority": asked.priority, "force": force, "payload": payload.is_some(),
        });
        let order = Order { by: &by, command: "run", target: format!("{kind} {key}"), detail };
        let run = chain::run(&config, &connections, (&kind, &key), payload.as_ref(), &asked);
        let runs = audited(&*connections.ledger, order, run).await;
        connections.broker.close().await;
        screen::told(json, &json!({ "accepted": true }), runs?)
    }
}

/// Brings a chain's next tick forward to now.
///
/// There is still one rotation: the tick that sleeps now runs at once, and later ticks count from this run. A waiting
/// retry comes at once, too. For a run beside the rotation see `roundelay run`.
#[derive(Args)]
pub struct Advance {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind of the chain.
    kind: String,
    /// The key of the entity.
    key: String,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Advance {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let connections = connections(&config).await?;
        let by = current_user();
        let target = format!("{} {}", self.kind, self.key);
        let order = Order { by: &by, command: "advance", target, detail: json!({}) };
        let advance = chain::advance(&config, &connections, &self.kind, &self.key);
        let advanced = audited(&*connections.ledger, order, advance).await;
        connections.broker.close().await;
        let advanced = advanced?;
        screen::told(self.json, &json!({ "advanced": true, "sent": advanced.sent }), advanced)
    }
}

/// What an order for chains is about, for the audit.
fn target(which: &ChainFilter) -> String {
    let said = [&which.kind, &which.key, &which.owner, &which.like];
    said.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// The filter of an order for chains, for the audit.
fn filter(which: &ChainFilter) -> Value {
    json!({ "kind": which.kind, "key": which.key, "owner": which.owner, "key_like": which.like })
}

/// Opens ledger and broker. If the ledger does not exist, this is an error, and none is created.
pub(super) async fn connections(config: &Config) -> anyhow::Result<Connections> {
    drop(ledger(config).await?);
    let _waits = waiting("opening ledger and broker");
    Ok(Connections::open(config).await?)
}

pub(super) async fn ledger(config: &Config) -> anyhow::Result<std::sync::Arc<dyn roundelay_ledger::Ledger>> {
    if let LedgerUrl::Sqlite(path) = &config.ledger.url {
        let absent = "a worker or `roundelay enroll` makes it; is ledger.url right?";
        ensure!(path.exists(), "there is no ledger at {}; {absent}", path.display());
    }
    // The first command of a new version migrates the ledger, which takes a while with a large one.
    let _waits = waiting("opening the ledger");
    Ok(Connections::ledger(config).await?)
}
