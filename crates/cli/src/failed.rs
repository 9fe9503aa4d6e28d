//! `roundelay failed list`, `show`, `retry` and `drop`: failures, and orders for them.

use anyhow::{Error, anyhow, bail};
use clap::{Args, Subcommand};
use roundelay_admin::inspect::failures::{next_retry_at, then};
use roundelay_admin::operate::failed;
use roundelay_admin::operate::failed::{Matching, plural};
use roundelay_config::Config;
use roundelay_ledger::{FailureCursor, FailureFilter, Ledger};
use roundelay_model::failure::Failure;
use roundelay_model::wall_clock::{At, WallClock};
use serde_json::{Value, json};

use super::audited::{Order, audited};
use super::confirm::confirmed;
use super::fleet::current_user;
use super::list::tell_more;
use super::progress::waiting;
use super::screen::{self, Tint, field};
use super::steer::ledger;
use super::table::{Cell, Column, Table};
use super::{ConfigFile, grouped};

/// Lists failures, retries parts, forgets failures.
///
///   roundelay failed list --kind sync --code rate_limited      by kind and reason
///   roundelay failed show sync app-17                          everything about one entity, and its parts
///   roundelay failed retry --code empty_response --permanent   parts are due now, permanent or not
///   roundelay failed drop --kind sync --key 'eu/*'             forgotten
///
/// A failure is of a whole entity (a tick or job that failed for good), or of a part that a run reported.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Failed {
    #[command(subcommand)]
    word: Word,
}

#[derive(Subcommand)]
enum Word {
    List(List),
    Show(Show),
    Retry(Retry),
    Drop(Forget),
}

/// Which failures: those that match all options.
#[derive(Args)]
struct Filter {
    #[command(flatten)]
    config: ConfigFile,
    /// Failures of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Failures of entities whose keys match: `*` stands for anything, `?` for one character.
    #[arg(long, value_name = "PATTERN")]
    key: Option<String>,
    /// Failures of this part.
    #[arg(long)]
    item: Option<String>,
    /// Failures of entities whose chains belong to this owner.
    #[arg(long)]
    owner: Option<String>,
    /// Failures with a reason of this name.
    #[arg(long, value_name = "NAME")]
    code: Option<String>,
    /// Only failures that are never retried automatically.
    #[arg(long, conflicts_with = "waiting")]
    permanent: bool,
    /// Only failures that are retried automatically.
    #[arg(long)]
    waiting: bool,
    /// Only failures of entities that fail now.
    #[arg(long, conflicts_with = "recovered")]
    failing: bool,
    /// Only failures of entities that have worked since.
    #[arg(long)]
    recovered: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Filter {
    fn filter(&self) -> FailureFilter {
        FailureFilter {
            kind: self.kind.clone(),
            key: None,
            like: self.key.clone(),
            owner: self.owner.clone(),
            item: self.item.clone(),
            code: self.code.clone(),
            permanent: (self.permanent || self.waiting).then_some(self.permanent),
            recovered: (self.recovered || self.failing).then_some(self.recovered),
        }
    }

    async fn open(&self) -> anyhow::Result<(Config, std::sync::Arc<dyn Ledger>)> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        Ok((config, ledger))
    }
}

/// Lists failures, a page at a time, in the order of kind, key and part.
#[derive(Args)]
struct List {
    #[command(flatten)]
    which: Filter,
    /// The most failures to list.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Continue after this failure: the `after` of the page before.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
}

/// Shows all failures of one entity, in full.
#[derive(Args)]
struct Show {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind.
    kind: String,
    /// The entity.
    key: String,
    /// Only this part.
    item: Option<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Makes failed parts due now, with their attempts counted from 0 again; this includes permanent failures.
///
/// The kind's reconcile feeds them back at its next look. For an entity that has failed as a whole, run it once with
/// `roundelay run`; a chain that has ended begins anew with `roundelay enroll --revive`.
#[derive(Args)]
struct Retry {
    #[command(flatten)]
    which: Filter,
    #[command(flatten)]
    care: Bulk,
}

/// Forgets failures. Runs that have begun end as usual; a part that fails again is kept again.
#[derive(Args)]
struct Forget {
    #[command(flatten)]
    which: Filter,
    #[command(flatten)]
    care: Bulk,
}

/// Options of commands that may change many failures.
#[derive(Args)]
struct Bulk {
    /// Do not ask, however many failures there are.
    #[arg(long)]
    yes: bool,
    /// Only count the failures.
    #[arg(long)]
    dry_run: bool,
}

impl Failed {
    pub async fn run(self) -> anyhow::Result<()> {
        match self.word {
            Word::List(list) => list.run().await,
            Word::Show(show) => show.run().await,
            Word::Retry(retry) => retry.run().await,
            Word::Drop(forget) => forget.run().await,
        }
    }
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let (config, ledger) = self.which.open().await?;
        let after = self.after.as_deref().map(place).transpose()?;
        // The additional row shows whether there is a next page.
        let waits = waiting("looking for failures");
        let mut failures = ledger.failed(self.which.filter(), after, self.limit + 1).await?;
        drop(waits);
        let more = failures.len() > self.limit as usize;
        failures.truncate(self.limit as usize);
        let next = failures.last().filter(|_| more).map(|last| json!([last.kind, last.key, last.item]).to_string());
        let now = ledger.now();
        if self.which.json {
            let failures: Vec<Value> =
                failures.iter().map(|failure| row(failure, &config, &ledger.wall_clock())).collect();
            return screen::json(&json!({ "failures": failures, "after": next }));
        }
        if failures.is_empty() {
            out!("there are no such failures");
            return Ok(());
        }
        let mut table = Table::new([
            Column::name("kind"),
            Column::name("key"),
            Column::name("part"),
            Column::text("code"),
            Column::number("attempts"),
            Column::text("then"),
            Column::text("reason"),
        ]);
        for failure in &failures {
            let then = then(failure, &config, now);
            table.row([
                Cell::from(&failure.kind),
                Cell::from(&failure.key),
                Cell::from(&failure.item),
                name_of(failure).into(),
                grouped(failure.attempts).into(),
                Cell::from(then).tinted_if(failure.permanent, Tint::Wrong),
                Cell::from(&failure.reason),
            ]);
        }
        table.print();
        tell_more(next);
        Ok(())
    }
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let ledger = ledger(&config).await?;
        let mut failures = ledger.failures_of(self.kind.clone(), self.key.clone()).await?;
        failures.retain(|failure| self.item.as_ref().is_none_or(|item| *item == failure.item));
        if self.json {
            let failures: Vec<Value> =
                failures.iter().map(|failure| row(failure, &config, &ledger.wall_clock())).collect();
            return screen::json(&json!({ "failures": failures }));
        }
        if failures.is_empty() {
            config.kind(&self.kind).map_err(Error::msg)?;
            bail!("nothing of {} {} has failed, or it is not kept any more", self.kind, self.key);
        }
        let (now, wall_clock) = (ledger.now(), ledger.wall_clock());
        for failure in &failures {
            let Failure { kind, key, item, reason, times, attempts, first_at, last_at, .. } = failure;
            let part = if item.is_empty() { "the whole of it".to_owned() } else { item.clone() };
            out!("{kind} {key}: {part}");
            field("reason", reason);
            field("code", name_of(failure));
            let (first, last) = (At::of(*first_at, &wall_clock), At::of(*last_at, &wall_clock));
            field("failed", &format!("{} times from {first} to {last}", grouped(*times)));
            field("attempts", &format!("{} count", grouped(*attempts)));
            field("then", &then(failure, &config, now));
            if let Some(job) = &failure.fed {
                field("job", job);
            }
        }
        Ok(())
    }
}

impl Retry {
    async fn run(self) -> anyhow::Result<()> {
        let (config, ledger) = self.which.open().await?;
        let (filter, json) = (self.which.filter(), self.which.json);
        let matching = count(&*ledger, filter.clone()).await?;
        let (parts, whole) = (plural(matching.parts, "part"), matching.wholes);
        if self.care.dry_run {
            let would = json!({ "would_be_retried": matching.parts, "whole": whole });
            return screen::told(json, &would, format_args!("{parts} would be due now"));
        }
        if !confirmed(&format!("make {parts} due now"), matching.parts <= 1 || self.care.yes)? {
            bail!("nothing was changed");
        }
        let waits = waiting(&format!("making {parts} due"));
        let by = current_user();
        let order = Order {
            by: &by,
            command: "failed retry",
            target: target(&filter),
            detail: detail(&filter, matching.parts),
        };
        let retried = audited(&*ledger, order, failed::retry(&config, &*ledger, filter, matching)).await?;
        drop(waits);
        screen::told(json, &json!({ "retried": retried.parts, "whole": whole }), retried)
    }
}

impl Forget {
    async fn run(self) -> anyhow::Result<()> {
        let (_, ledger) = self.which.open().await?;
        let (filter, json) = (self.which.filter(), self.which.json);
        let count = count(&*ledger, filter.clone()).await?.all();
        let failures = plural(count, "failure");
        if self.care.dry_run {
            let would = json!({ "would_be_dropped": count });
            return screen::told(json, &would, format_args!("{failures} would be forgotten"));
        }
        if !confirmed(&format!("forget {failures}"), count <= 1 || self.care.yes)? {
            bail!("nothing was changed");
        }
        let waits = waiting(&format!("forgetting {failures}"));
        let by = current_user();
        let order = Order { by: &by, command: "failed drop", target: target(&filter), detail: detail(&filter, count) };
        let dropped = audited(&*ledger, order, failed::drop(&*ledger, filter)).await?;
        drop(waits);
        screen::told(json, &json!({ "dropped": dropped.0 }), dropped)
    }
}

/// Which failures an order is about, and how many there are, for the audit.
fn detail(filter: &FailureFilter, count: u64) -> Value {
    let FailureFilter { kind, like, owner, item, code, permanent, recovered, .. } = filter;
    json!({
        "count": count, "kind": kind, "key": like, "owner": owner, "item": item, "code": code, "permanent": permanent,
        "recovered": recovered,
    })
}

/// What an order for failures is about, for the audit.
fn target(filter: &FailureFilter) -> String {
    let said = [&filter.kind, &filter.like, &filter.owner, &filter.item, &filter.code];
    said.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// How many parts and whole entities match.
async fn count(ledger: &dyn Ledger, filter: FailureFilter) -> anyhow::Result<Matching> {
    let _waits = waiting("counting failures");
    Ok(failed::count(ledger, filter).await?)
}

fn name_of(failure: &Failure) -> &str {
    failure.code.as_deref().unwrap_or("-")
}

pub(super) fn row(failure: &Failure, config: &Config, wall_clock: &WallClock) -> Value {
    let at = |time| At::of(time, wall_clock);
    let next = if failure.item.is_empty() { failure.next_retry_at } else { next_retry_at(failure, config) };
    let mut row = json!(failure);
    row["first_at"] = json!(at(failure.first_at));
    row["last_at"] = json!(at(failure.last_at));
    row["next_retry_at"] = json!(next.map(at));
    row
}

/// A kind, a key and a part, as a JSON list: key and part may have spaces.
fn place(text: &str) -> anyhow::Result<FailureCursor> {
    let example = r#"--after needs a kind, a key and a part: '["sync","app-17","us"]'"#;
    serde_json::from_str(text).map_err(|_| anyhow!(example))
}
