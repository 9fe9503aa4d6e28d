//! How many messages wait on each rung.

use std::time::Duration;

use roundelay_broker::Broker;
use roundelay_config::Config;
use serde::Serialize;
use utoipa::ToSchema;

use super::broker::BrokerStatus;

/// A rung of the ladder.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RungReport {
    /// The name of the broker's queue.
    pub name: String,
    /// How long messages wait there, in milliseconds.
    pub delay_ms: u64,
    /// How many messages wait there, if that is known.
    pub ready: Option<u64>,
}

/// All rungs, from the shortest delay, and why the broker could not be asked.
pub async fn rungs(config: &Config, broker: &dyn Broker) -> (Vec<RungReport>, Option<String>) {
    let names = config.topology().names;
    let rungs: Vec<(String, Duration)> =
        config.ladder.rungs().iter().map(|delay| (names.rung(*delay), *delay)).collect();
    let queues: Vec<String> = rungs.iter().map(|(name, _)| name.clone()).collect();
    let asked = BrokerStatus::about(queues, config, broker).await;
    let report = |(name, delay): (String, Duration)| RungReport {
        ready: asked.depth(&name).map(|depth| depth.ready),
        delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        name,
    };
    let why = match &asked {
        BrokerStatus::Embedded => {
            Some("messages sleep in the worker's process, which has the embedded broker".to_owned())
        }
        asked => asked.error().map(str::to_owned),
    };
    (rungs.into_iter().map(report).collect(), why)
}
