//! `roundelay publish`

use std::time::Duration;

use anyhow::{Context, Error};
use clap::Args;
use roundelay_engine::Connections;
use roundelay_engine::publish::{Publication, Published};
use roundelay_model::clock::{Entropy, parse_duration};
use roundelay_model::wall_clock::At;
use serde_json::{Value, json};

use super::audited::{Order, audited_with};
use super::fleet::current_user;
use super::progress::waiting;
use super::{ConfigFile, screen};

/// Publishes one job: it runs once, outside any chain.
///
/// Exit code 0 means that the job is safe: the broker has confirmed it, or the ledger keeps it.
#[derive(Args)]
pub struct Publish {
    #[command(flatten)]
    config: ConfigFile,
    /// The kind, which names the handler: a name under [kinds].
    kind: String,
    /// The key of the entity.
    key: String,
    /// What the handler gets.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Do not start the job before this time has passed.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// The platform queue, in place of the kind's.
    #[arg(long)]
    queue: Option<String>,
    /// The owner of the job. The job does not start while the owner is paused, nor after the owner was retired.
    #[arg(long)]
    owner: Option<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Publish {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let payload: Value = match &self.payload {
            Some(text) => serde_json::from_str(text).context("--payload is not JSON")?,
            None => Value::Null,
        };
        let Self { kind, key, delay, queue, owner, json, .. } = self;
        let id = Entropy::from_os().token();
        // The audit does not get the payload, which may be private.
        let mut detail = json!({ "kind": kind, "key": key, "id": id, "queue": queue, "owner": owner });
        let target = format!("{kind} {key}");
        let job = Publication { kind, key, payload, delay, queue, owner, id };
        let job = job.check(&config).map_err(Error::new)?;
        let waits = waiting("opening ledger and broker");
        let connections = Connections::open(&config).await?;
        let by = current_user();
        let order = Order { by: &by, command: "publish", target, detail: detail.clone() };
        let outcome = |published: &Published| {
            detail["queue"] = json!(published.queue);
            Some(detail)
        };
        // The ledger is open whichever broker takes the job: jobs go by its time.
        let published = audited_with(&*connections.ledger, order, job.send(&config, &connections), outcome).await;
        let published = published.context("failed to publish")?;
        connections.broker.close().await;
        drop(waits);
        let due = published.due.map(|due| At::of(due, &connections.ledger.wall_clock()));
        if json {
            screen::json(&json!({ "id": published.id, "queue": published.queue, "due": due }))?;
        } else {
            let due = due.map_or("now".to_owned(), |due| format!("due {due}"));
            out!("published {} {} as {} to {}, {due}", published.kind, published.key, published.id, published.queue);
        }
        Ok(())
    }
}
