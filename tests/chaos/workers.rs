//! The workers, each with links of its own to the services.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::ground::Ground;
use super::log::{Entry, Writer};
use super::proxy::Link;
use crate::support::workers::{Place, Plan, Workers};

/// A worker's way to the broker, and to the ledger.
pub struct Links {
    pub broker: Link,
    pub ledger: Link,
}

/// Starts `count` workers with this configuration.
pub async fn start(
    ground: &Ground,
    config: PathBuf,
    count: usize,
    log: Writer,
) -> anyhow::Result<(Workers, Vec<Links>)> {
    let (mut links, mut variables) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let broker = Link::open(ground.nodes.iter().map(|node| node.amqp).collect()).await?;
        let ledger = Link::open(vec![ground.database()]).await?;
        variables.push(vec![
            ("ROUNDELAY__BROKER__URL".into(), format!("amqp://guest:guest@127.0.0.1:{}/%2f", broker.port)),
            ("ROUNDELAY__LEDGER__URL".into(), ground.database_url(ledger.port)),
        ]);
        links.push(Links { broker, ledger });
    }
    let kinds = super::load::KINDS.iter().map(|kind| kind.name.to_owned()).collect();
    let plan = Plan { config, kinds, variables, apart: Duration::ZERO, place: Place::default() };
    let told = Arc::new(move |worker: &str, did| log.write(Entry::Worker { worker: worker.to_owned(), did }));
    Ok((Workers::start(plan, told).await, links))
}
