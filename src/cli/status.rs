//! `roundelay status`

use anyhow::ensure;
use clap::Args;
use roundelay::broker::Depth;
use roundelay::config::LedgerUrl;
use roundelay::engine::Connections;
use serde_json::json;

use super::{ConfigFile, grouped};

/// Kept failures shown.
const FAILURES: u32 = 10;

/// Shows how the chains are: sleeping, running, due, overdue, failed.
///
/// The figures come from the ledger; where a broker can be reached, what waits in its queues is
/// shown beside them.
#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    config: ConfigFile,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub async fn run(self) -> anyhow::Result<()> {
        let config = self.config.load()?;
        if let LedgerUrl::Sqlite(path) = &config.ledger.url {
            let absent = "a worker or `roundelay enroll` makes it; is ledger.url right?";
            ensure!(path.exists(), "there is no ledger at {}; {absent}", path.display());
        }
        let ledger = Connections::ledger(&config).await?;
        let census = ledger.census(config.catch_up.slack).await?;
        let failures = ledger.failures(FAILURES).await?;
        let (depths, broker_error) = match Connections::open(&config).await {
            Ok(connections) if connections.broker.keeps_messages() => {
                let mut depths = std::collections::BTreeMap::new();
                let names = config.topology().names;
                let own = [names.rearm(), names.unrouted(), names.quarantine()];
                for queue in config.queues.keys().cloned().chain(own) {
                    if let Ok(depth) = connections.broker.depth(&queue).await {
                        depths.insert(queue, depth);
                    }
                }
                connections.broker.close().await;
                (depths, None)
            }
            Ok(_) => (Default::default(), None),
            Err(error) => (Default::default(), Some(error.to_string())),
        };
        if self.json {
            let depths: serde_json::Map<_, _> = depths
                .iter()
                .map(|(queue, depth)| (queue.clone(), json!({ "ready": depth.ready, "consumers": depth.consumers })))
                .collect();
            let report =
                json!({ "ledger": census, "broker": depths, "broker_error": broker_error, "failures": failures });
            println!("{report}");
            return Ok(());
        }
        println!(
            "{:<28} {:>11} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9}",
            "queue", "sleeping", "running", "due", "overdue", "unsent", "waiting", "consumers"
        );
        for queue in &census.queues {
            let Depth { ready, consumers } = depths.get(&queue.queue).copied().unwrap_or_default();
            println!(
                "{:<28} {:>11} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9}",
                queue.queue,
                grouped(queue.sleeping),
                grouped(queue.running),
                grouped(queue.due),
                grouped(queue.overdue),
                grouped(queue.unsent),
                grouped(ready),
                grouped(consumers)
            );
        }
        let further = [
            ("paused", census.paused),
            ("retired", census.retired),
            ("quarantined", census.quarantined),
            ("messages quarantined in the ledger", census.quarantined_messages),
            ("one-off jobs kept in the ledger", census.kept_jobs),
        ];
        for (label, count) in further.into_iter().filter(|(_, count)| *count > 0) {
            println!("{label}: {}", grouped(count));
        }
        if let Some(due) = census.oldest_due {
            println!("the chain that waits longest was due at {due}");
        }
        let names = config.topology().names;
        for (queue, meaning) in [
            (names.quarantine(), "messages that cannot be used, each with its reason in its headers"),
            (names.unrouted(), "messages for queues that do not exist"),
        ] {
            if let Some(depth) = depths.get(&queue).filter(|depth| depth.ready > 0) {
                println!("{queue}: {} {meaning}", grouped(depth.ready));
            }
        }
        if let Some(error) = broker_error {
            println!("the broker was not asked: {error}");
        }
        if census.failures > 0 {
            println!("{} entities have failed; the latest:", grouped(census.failures));
            for failure in failures {
                println!(
                    "  {} {} {} (×{}) {}",
                    failure.last_at, failure.kind, failure.key, failure.times, failure.reason
                );
            }
        }
        Ok(())
    }
}
