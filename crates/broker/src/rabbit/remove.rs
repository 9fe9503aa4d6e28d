//! Deleting the topology.

use lapin::Connection;
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use roundelay_model::topology::Topology;

use super::connection::{in_words, short};
use crate::BrokerError;

/// Deletes all queues, then all exchanges. What is absent already does not matter to the broker.
pub(super) async fn remove(connection: &Connection, topology: &Topology) -> Result<(), BrokerError> {
    let failed = |error: lapin::Error| BrokerError::Other(format!("deleting failed: {}", in_words(&error)));
    let channel = connection.create_channel().await.map_err(failed)?;
    for queue in &topology.queues {
        channel.queue_delete(short(&queue.name)?, QueueDeleteOptions::default()).await.map_err(failed)?;
    }
    for exchange in &topology.exchanges {
        let options = ExchangeDeleteOptions::default();
        channel.exchange_delete(short(&exchange.name)?, options).await.map_err(failed)?;
    }
    channel.close(200, "done".into()).await.map_err(failed)
}
