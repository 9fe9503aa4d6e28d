//! `roundelay promote`

use clap::Args;
use roundelay_admin::operate::site::{self, Plan, Promoted};
use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_ledger::LedgerError;
use serde_json::json;

use super::audited::{Order, note};
use super::fleet::current_user;
use super::{ConfigFile, screen};

/// Makes this site the one that counts, when the other is lost.
///
/// Run it at the second site, with that site's configuration: ledger.url names its PostgreSQL, a standby, and broker.url
/// its broker. It promotes the standby, declares the topology on the broker, and sends the messages of all chains there.
/// Workers of this site that were started before begin then.
///
/// The other site is fenced by its own commits: its PostgreSQL waits for this one, which follows it no more. That is known
/// if its workers were started with ledger.synchronous. If it is not known, --force is needed.
///
/// A second run changes nothing. If a run breaks off, the next does what was left.
#[derive(Args)]
pub struct Promote {
    #[command(flatten)]
    config: ConfigFile,
    /// Promote also where it is not known that the other site is fenced.
    #[arg(long)]
    force: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Promote {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let told = |words: &str| {
            if !self.json {
                screen::line(format_args!("{words}"));
            }
        };
        let done = site::promote(&config, self.force, told).await?;
        // A standby takes no writes, so the entry comes after the act; and the site is not given up for want of an entry.
        // A run that broke off has none: the next one, which does what was left, is in the audit.
        if done.plan != Plan::Done
            && let Err(error) = audit(&config, self.force, &done).await
        {
            tracing::warn!(%error, "the promotion could not be written to the audit");
        }
        screen::told(self.json, &object(&done), last(&done))
    }
}

async fn audit(config: &Config, force: bool, done: &Promoted) -> Result<(), LedgerError> {
    let mut detail = object(done);
    detail["force"] = force.into();
    let by = current_user();
    let order = Order { by: &by, command: "promote", target: done.standing.address.clone(), detail };
    note(&*Connections::ledger(config).await?, order).await
}

fn object(done: &Promoted) -> serde_json::Value {
    let fenced = match &done.plan {
        Plan::Promote { unfenced, .. } => Some(unfenced.is_none()),
        Plan::Done | Plan::GoOn => None,
    };
    let resent = done.resent.unwrap_or_default();
    json!({
        "promoted": done.promotion.is_some(),
        "promotion_ms": done.promotion.map(|took| took.as_millis() as u64),
        "fenced": fenced,
        "last_commit": done.standing.last_commit.map(|at| at.as_millis()),
        "changed": done.plan != Plan::Done,
        "sent": resent.chains, "overdue": resent.overdue, "unsent": resent.unsent,
    })
}

fn last(done: &Promoted) -> &'static str {
    match done.plan {
        Plan::Done => "this server takes writes, and the messages of its chains were sent: nothing is to be done",
        Plan::GoOn | Plan::Promote { .. } => {
            "Workers of this site that wait have begun; start the others. If the other site comes back, leave its workers \
             and its PostgreSQL off until docs/operations.md, \"A site that is lost\", is followed"
        }
    }
}
