//! `roundelay list`

use anyhow::{Error, anyhow};
use clap::{Args, ValueEnum};
use roundelay::Config;
use roundelay::clock::Time;
use roundelay::inspect::words::{self, doing_of, rough, word};
use roundelay::ledger::{ChainState, Condition, Filter, Listed, OwnerCensus, Place, Which};
use serde_json::{Value, json};

use super::steer::ledger;
use super::{ConfigFile, grouped};

/// Lists chains, a page at a time, or owners.
///
///   roundelay list --state late                 what should have run and has not
///   roundelay list --kind sync --key 'eu/*'     by pattern
///   roundelay list --owner channel-9            what belongs to somebody
///   roundelay list --owners                     who has how many chains
///
/// The order is that of kind and key. Where there is more, the last line says how to go on.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct List {
    #[command(flatten)]
    config: ConfigFile,
    /// Only chains of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Only chains that belong to this owner.
    #[arg(long)]
    owner: Option<String>,
    /// Only chains of this platform queue.
    #[arg(long)]
    queue: Option<String>,
    /// Only chains that are doing this.
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Only chains whose keys fit: `*` stands for anything, `?` for one character.
    #[arg(long, value_name = "PATTERN")]
    key: Option<String>,
    /// Owners instead of chains: how many chains each has, and whether an owner is paused or retired.
    #[arg(long, conflicts_with_all = ["kind", "owner", "queue", "state", "key"])]
    owners: bool,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Go on after this chain, written as `KIND KEY`; or with --owners after this owner.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// What chains are doing.
#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// They tick.
    Active,
    /// An operator has stopped them.
    Paused,
    /// They have ended.
    Retired,
    /// An older copy of the ledger was restored, and they wait for `roundelay recover`.
    Quarantined,
    /// They tick, are due for longer than catch_up.slack, and nobody runs them.
    Late,
    /// A worker runs them.
    Running,
}

impl List {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        if let Some(kind) = &self.kind {
            config.kind(kind).map_err(Error::msg)?;
        }
        let ledger = ledger(&config).await?;
        if self.owners {
            // One more shows whether there is more.
            let owners = ledger.owners(self.after.clone().unwrap_or_default(), self.limit + 1).await?;
            self.print_owners(owners);
            return Ok(());
        }
        let now = ledger.now();
        let condition = self.state.and_then(|state| match state {
            State::Active => Some(Condition::State(ChainState::Active)),
            State::Paused => Some(Condition::State(ChainState::Paused)),
            State::Retired => Some(Condition::State(ChainState::Retired)),
            State::Quarantined => Some(Condition::State(ChainState::Quarantined)),
            State::Running => Some(Condition::Running),
            State::Late => None,
        });
        let which = Which {
            kind: self.kind.clone(),
            key: None,
            owner: self.owner.clone(),
            like: self.key.clone(),
            queue: self.queue.clone(),
            late_before: matches!(self.state, Some(State::Late)).then(|| now - config.catch_up.slack),
            state: None,
        };
        let after = self.after.as_deref().map(place).transpose()?;
        let chains = ledger.list(Filter { which, condition }, after, self.limit + 1).await?;
        self.print(&config, chains, now);
        Ok(())
    }

    fn print(&self, config: &Config, mut chains: Vec<Listed>, now: Time) {
        let more = chains.len() > self.limit as usize;
        chains.truncate(self.limit as usize);
        let next = chains.last().filter(|_| more).map(|last| format!("{} {}", last.hint.kind, last.hint.key));
        if self.json {
            let chains: Vec<Value> = chains.iter().map(|chain| row(chain, config, now)).collect();
            out!("{}", json!({ "chains": chains, "after": next }));
            return;
        }
        if chains.is_empty() {
            out!("there are no such chains");
            return;
        }
        let longest = |of: fn(&Listed) -> &str| chains.iter().map(|chain| of(chain).chars().count()).max().unwrap_or(0);
        let (kind, key) = (longest(|chain| &chain.hint.kind).max(4), longest(|chain| &chain.hint.key).clamp(3, 60));
        out!("{:<kind$}  {:<key$}  {:<11}  {:<28}  {:<16}  schedule", "kind", "key", "state", "due", "owner");
        for chain in &chains {
            let Listed { hint, owner, .. } = chain;
            let (doing, owner) = (doing_of(chain, config, now), owner.as_deref().unwrap_or("-"));
            let (due, schedule) = (
                due(chain, now),
                chain.unavailable.as_ref().map_or_else(|| schedule(chain, config), |why| format!("unavailable: {why}")),
            );
            out!("{:<kind$}  {:<key$}  {doing:<11}  {due:<28}  {owner:<16}  {schedule}", hint.kind, hint.key);
        }
        if let Some(next) = next {
            out!("there are more: add --after '{}'", next.replace('\'', r"'\''"));
        }
    }

    fn print_owners(&self, mut owners: Vec<OwnerCensus>) {
        let more = owners.len() > self.limit as usize;
        owners.truncate(self.limit as usize);
        let next = owners.last().filter(|_| more).map(|last| last.owner.clone());
        if self.json {
            let owners = owners.iter().map(|of| {
                let OwnerCensus { owner, state, active, paused, retired, quarantined } = of;
                json!({ "owner": owner, "state": word(*state), "active": active, "paused": paused, "retired": retired,
                        "quarantined": quarantined })
            });
            out!("{}", json!({ "owners": owners.collect::<Vec<_>>(), "after": next }));
            return;
        }
        if owners.is_empty() {
            out!("there are no owners; `roster.owner` of a kind, and `roundelay publish --owner`, say who owns what");
            return;
        }
        let width = owners.iter().map(|of| of.owner.chars().count()).max().unwrap_or(0).clamp(5, 60);
        out!(
            "{:<width$}  {:<11}  {:>9}  {:>9}  {:>9}  {:>11}",
            "owner",
            "state",
            "active",
            "paused",
            "retired",
            "quarantined"
        );
        for of in &owners {
            let counts = [of.active, of.paused, of.retired].map(grouped);
            let [active, paused, retired] = counts;
            let (state, quarantined) = (word(of.state), grouped(of.quarantined));
            out!("{:<width$}  {state:<11}  {active:>9}  {paused:>9}  {retired:>9}  {quarantined:>11}", of.owner);
        }
        if let Some(next) = next {
            out!("there are more: add --after '{}'", next.replace('\'', r"'\''"));
        }
    }
}

/// A kind has no spaces in its name.
fn place(text: &str) -> anyhow::Result<Place> {
    let (kind, key) = text.split_once(' ').ok_or_else(|| anyhow!("--after needs a kind and a key: `sync app-17`"))?;
    Ok((kind.into(), key.into()))
}

fn due(chain: &Listed, now: Time) -> String {
    if chain.state == ChainState::Retired {
        return "-".into();
    }
    let Listed { hint, .. } = chain;
    if hint.due > now {
        format!("in {}", rough(hint.due.since(now)))
    } else {
        format!("{} ago", rough(now.since(hint.due)))
    }
}

fn schedule(chain: &Listed, config: &Config) -> String {
    words::schedule(&chain.hint.kind, chain.schedule.as_deref(), config).unwrap_or_else(|| "none".into())
}

fn row(chain: &Listed, config: &Config, now: Time) -> Value {
    let Listed { hint, nominal, owner, schedule, last_start, last_finish, batch, .. } = chain;
    let known = |time: &Time| Some(*time).filter(|time| *time != Time::default());
    json!({
        "kind": hint.kind, "key": hint.key, "queue": hint.queue, "epoch": hint.epoch, "tick": hint.tick,
        "attempt": hint.attempt, "due": hint.due, "nominal": nominal, "state": word(chain.state),
        "doing": doing_of(chain, config, now), "owner": owner,
        "own_schedule": schedule.as_deref().and_then(|own| serde_json::from_str::<Value>(own).ok()),
        "last_start": known(last_start), "last_finish": known(last_finish),
        "batch": (batch.1 > 0).then(|| json!({ "open": batch.0, "total": batch.1 })),
        "unavailable": chain.unavailable,
    })
}
