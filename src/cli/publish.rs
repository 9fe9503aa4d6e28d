//! `roundelay publish`

use std::time::Duration;

use anyhow::{Context, Error, bail};
use clap::Args;
use roundelay::clock::parse_duration;
use roundelay::config::KindSettings;
use roundelay::engine::{Connections, Dispatch};
use roundelay::job::Envelope;
use serde_json::{Value, json};

use super::ConfigFile;

/// Publishes one job: it runs once, outside any chain.
///
/// Exit code 0 means that the job is safe: the broker has confirmed it, or the ledger keeps it.
#[derive(Args)]
pub struct Publish {
    #[command(flatten)]
    config: ConfigFile,
    /// Which handler: a name under [kinds].
    kind: String,
    /// Which entity.
    key: String,
    /// What the handler gets.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Not before this time has passed.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// The platform queue, in place of the kind's.
    #[arg(long)]
    queue: Option<String>,
    /// Who the job belongs to. It does not start while that owner is paused, nor once she is retired.
    #[arg(long)]
    owner: Option<String>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Publish {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        let kind = config.kind(&self.kind).map_err(Error::msg)?;
        let payload: Value = match &self.payload {
            Some(text) => serde_json::from_str(text).context("--payload is not JSON")?,
            None => Value::Null,
        };
        let queue = self.queue(kind, &payload)?;
        config.queue(&queue).map_err(Error::msg)?;

        let connections = Connections::open(&config).await?;
        let id = connections.entropy.token();
        let now = connections.ledger.now();
        let mut envelope = Envelope::job(&self.kind, &self.key, payload, id.clone());
        envelope.queue = Some(queue.clone());
        envelope.owner = self.owner;
        envelope.due = self.delay.map(|delay| now + delay);
        // By the engine's own reader: what is accepted here is not refused there.
        let body = envelope.encode();
        Envelope::decode(&body).context("a worker would refuse this job")?;
        if connections.broker.keeps_messages() {
            let dispatch = Dispatch::new(&config, &connections);
            dispatch.send(&envelope, &queue, now).await.context("failed to publish")?;
            connections.broker.close().await;
        } else {
            // The embedded broker lives in the worker's process; it takes the job from the ledger.
            connections.ledger.keep_job(id.clone(), body).await.context("failed to publish")?;
        }
        if self.json {
            out!("{}", json!({ "id": id, "queue": queue, "due": envelope.due }));
        } else {
            let due = envelope.due.map_or("now".to_owned(), |due| format!("due {due}"));
            out!("published {} {} as {id} to {queue}, {due}", self.kind, self.key);
        }
        Ok(())
    }

    fn queue(&self, kind: &KindSettings, payload: &Value) -> anyhow::Result<String> {
        if let Some(queue) = &self.queue {
            return Ok(queue.clone());
        }
        match kind.queue_for(payload) {
            Ok(Some(queue)) => Ok(queue),
            Ok(None) => bail!("kinds.{} names no queue; say --queue", self.kind),
            Err(why) => bail!("{why}; say --queue, or give its fields in --payload"),
        }
    }
}
