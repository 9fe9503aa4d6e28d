//! `roundelay list`

use anyhow::{Error, anyhow};
use clap::{Args, ValueEnum};
use roundelay_admin::inspect::format::{self, doing_of, rough, word};
use roundelay_admin::inspect::owners::{self, OwnerRow};
use roundelay_config::Config;
use roundelay_engine::calendars::with_days;
use roundelay_engine::holds::Holds;
use roundelay_engine::overslept;
use roundelay_engine::overslept::schedules;
use roundelay_ledger::{ChainFilter, ChainState, Condition, Cursor, ListFilter, Listed};
use roundelay_model::clock::Time;
use roundelay_model::wall_clock::{At, WallClock};
use serde_json::{Value, json};

use super::progress::waiting;
use super::screen::{self, Tint, quoted};
use super::steer::ledger;
use super::table::{Cell, Column, Table};
use super::{ConfigFile, grouped};

/// Lists chains, a page at a time, or owners.
///
///   roundelay list --state late                 what should have run and has not
///   roundelay list --kind sync --key 'eu/*'     by pattern
///   roundelay list --owner channel-9            what belongs to an owner
///   roundelay list --owners                     how many chains each owner has
///
/// The order is that of kind and key. If there is more, the last line says how to continue.
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
    /// Only chains in this state.
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Only chains whose keys match: `*` stands for anything, `?` for one character.
    #[arg(long, value_name = "PATTERN")]
    key: Option<String>,
    /// Owners instead of chains: how many chains each has, how many are late, what is failing, and whether an owner is
    /// paused or retired.
    #[arg(long, conflicts_with_all = ["kind", "owner", "queue", "state", "key"])]
    owners: bool,
    /// The most rows to list.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Continue after this chain, written as `KIND KEY`; or with --owners after this owner.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// The states of chains.
#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// The chains tick.
    Active,
    /// An operator has paused the chains.
    Paused,
    /// The chains have ended.
    Retired,
    /// Workers died over the chains, or an older copy of the ledger was restored. They wait for `roundelay recover`.
    Quarantined,
    /// The chains are due for longer than catch_up.slack, and no worker runs them; or they sleep for longer than their
    /// schedules can explain. Held chains are not late.
    Late,
    /// The chains are due, and an operator lets nothing of their queue start.
    Held,
    /// A worker runs the chains.
    Running,
}

impl List {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        if let Some(kind) = &self.kind {
            config.kind(kind).map_err(Error::msg)?;
        }
        let ledger = ledger(&config).await?;
        let config = with_days(&config, &*ledger).await?;
        if self.owners {
            // The additional row shows whether there is a next page.
            let waits = waiting("counting chains by owner");
            let after = self.after.clone().unwrap_or_default();
            // At a terminal there is time to count all of them.
            let owners = owners::page(after, self.limit + 1, u32::MAX, &config, &*ledger).await?;
            drop(waits);
            return self.print_owners(owners);
        }
        let now = ledger.now();
        let condition = self.state.and_then(|state| match state {
            State::Active => Some(Condition::State(ChainState::Active)),
            State::Paused => Some(Condition::State(ChainState::Paused)),
            State::Retired => Some(Condition::State(ChainState::Retired)),
            State::Quarantined => Some(Condition::State(ChainState::Quarantined)),
            State::Running => Some(Condition::Running),
            State::Late | State::Held => None,
        });
        let which = ChainFilter {
            kind: self.kind.clone(),
            key: None,
            owner: self.owner.clone(),
            like: self.key.clone(),
            queue: self.queue.clone(),
            late_before: match self.state {
                Some(State::Late) => Some(now - config.catch_up.slack),
                // What is due is held at once.
                Some(State::Held) => Some(now),
                _ => None,
            },
            state: None,
        };
        let after = self.after.as_deref().map(place).transpose()?;
        let waits = waiting("looking for chains");
        let filter = ListFilter { which, condition };
        let (holds, at) = (Holds::look(&config, &*ledger).await?, (now, &*ledger.wall_clock()));
        let word = match self.state {
            Some(State::Late) => Some("late"),
            Some(State::Held) => Some("held"),
            _ => None,
        };
        let slept = match word {
            Some(_) => {
                let queues = config.queues.keys().cloned().chain([config.topology().names.chores()]);
                overslept::look(&*ledger, queues, &schedules(&config)).await?
            }
            None => Vec::new(),
        };
        let (mut chains, mut from) = (Vec::new(), after);
        loop {
            let page = ledger.list(filter.clone(), from.clone(), self.limit + 1).await?;
            let last = page.last().map(|last| (last.hint.kind.clone(), last.hint.key.clone()));
            let until = last.filter(|_| page.len() > self.limit as usize);
            let room = page.len() + slept.len();
            let places = (from.as_ref(), until.as_ref());
            let page = overslept::among(page, slept.clone(), &filter, places, room, overslept::by_name);
            let page = page.into_iter().map(|(_, chain)| chain);
            // Which of the two a chain is follows from orders that the ledger's index does not know.
            chains.extend(page.filter(|of| word.is_none_or(|word| doing_of(of, &config, &holds, at) == word)));
            from = until;
            if from.is_none() || chains.len() > self.limit as usize {
                break;
            }
        }
        drop(waits);
        self.print(&config, &holds, chains, at)
    }

    fn print(
        &self,
        config: &Config,
        holds: &Holds,
        mut chains: Vec<Listed>,
        at: (Time, &WallClock),
    ) -> anyhow::Result<()> {
        let now = at.0;
        let more = chains.len() > self.limit as usize;
        chains.truncate(self.limit as usize);
        let next = chains.last().filter(|_| more).map(|last| format!("{} {}", last.hint.kind, last.hint.key));
        if self.json {
            let chains: Vec<Value> = chains.iter().map(|chain| row(chain, config, holds, at)).collect();
            return screen::json(&json!({ "chains": chains, "after": next }));
        }
        if chains.is_empty() {
            out!("there are no such chains");
            return Ok(());
        }
        let mut table = Table::new([
            Column::name("kind"),
            Column::name("key"),
            Column::word("state"),
            Column::text("due"),
            Column::name("owner"),
            Column::text("schedule"),
        ]);
        for chain in &chains {
            let Listed { hint, owner, .. } = chain;
            let doing = doing_of(chain, config, holds, at);
            let because = |why: &String| format!("unavailable: {why}");
            table.row([
                Cell::from(&hint.kind),
                Cell::from(&hint.key),
                Cell::from(doing)
                    .tinted_if(doing == "late", Tint::Notable)
                    .tinted_if(doing == "quarantined", Tint::Wrong),
                due(chain, now).into(),
                owner.as_deref().unwrap_or("-").into(),
                chain.unavailable.as_ref().map_or_else(|| schedule(chain, config), because).into(),
            ]);
        }
        table.print();
        tell_more(next);
        Ok(())
    }

    fn print_owners(&self, mut owners: Vec<OwnerRow>) -> anyhow::Result<()> {
        let more = owners.len() > self.limit as usize;
        owners.truncate(self.limit as usize);
        let next = owners.last().filter(|_| more).map(|last| last.owner.clone());
        if self.json {
            return screen::json(&json!({ "owners": owners, "after": next }));
        }
        if owners.is_empty() {
            out!("there are no owners; `roster.owner` of a kind, and `roundelay publish --owner`, say who owns what");
            return Ok(());
        }
        let mut table = Table::new([
            Column::name("owner"),
            Column::word("state"),
            Column::number("active"),
            Column::number("paused"),
            Column::number("retired"),
            Column::number("quarantined"),
            Column::number("late"),
            Column::number("failing"),
        ]);
        for of in &owners {
            let [active, paused, retired] = [of.active, of.paused, of.retired].map(grouped);
            table.row([
                Cell::from(&of.owner),
                of.state.into(),
                active.into(),
                paused.into(),
                retired.into(),
                Cell::from(grouped(of.quarantined)).tinted_if(of.quarantined > 0, Tint::Wrong),
                Cell::from(grouped(of.late)).tinted_if(of.late > 0, Tint::Notable),
                Cell::from(grouped(of.failing)).tinted_if(of.failing > 0, Tint::Notable),
            ]);
        }
        table.print();
        tell_more(next);
        Ok(())
    }
}

/// Prints the command for the next page. The line is not wrapped, so that it can be copied.
pub fn tell_more(next: Option<String>) {
    if let Some(next) = next {
        screen::exact(format_args!("there are more: add --after {}", quoted(&next)));
    }
}

/// Splits at the first space: a kind has no spaces in its name.
fn place(text: &str) -> anyhow::Result<Cursor> {
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
    format::schedule(&chain.hint.kind, chain.schedule.as_deref(), config).unwrap_or_else(|| "none".into())
}

fn row(chain: &Listed, config: &Config, holds: &Holds, (now, wall_clock): (Time, &WallClock)) -> Value {
    let Listed { hint, nominal, owner, schedule, last_start, last_finish, batch, .. } = chain;
    let known = |time: &Time| At::known(*time, wall_clock);
    let (due, own) = (At::of(hint.due, wall_clock), schedule.as_deref());
    let nominal = format::shown_nominal((&hint.kind, &hint.key), *nominal, own, config, wall_clock);
    json!({
        "kind": hint.kind, "key": hint.key, "queue": hint.queue, "epoch": hint.epoch, "tick": hint.tick,
        "attempt": hint.attempt, "due": due, "nominal": nominal, "state": word(chain.state),
        "doing": doing_of(chain, config, holds, (now, wall_clock)), "owner": owner,
        "own_schedule": schedule.as_deref().and_then(|own| serde_json::from_str::<Value>(own).ok()),
        "last_start": known(last_start), "last_finish": known(last_finish),
        "batch": (batch.1 > 0).then(|| json!({ "open": batch.0, "total": batch.1 })),
        "unavailable": chain.unavailable,
    })
}
