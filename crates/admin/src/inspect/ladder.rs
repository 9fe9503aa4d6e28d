//! How many messages sleep where: on each rung, or on each queue.

use std::collections::BTreeSet;
use std::time::Duration;

use roundelay_broker::Broker;
use roundelay_config::Config;
use roundelay_model::spread::HotRungs;
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

/// A queue on which messages sleep until their time.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SleepReport {
    /// The name of the queue.
    pub name: String,
    /// How many messages sleep there, with those of all its lanes, if that is known.
    pub asleep: Option<u64>,
}

const EMBEDDED: &str = "messages sleep in the worker's process, which has the embedded broker";

/// All rungs with their siblings, from the shortest delay, and why the broker could not be asked.
pub async fn rungs(config: &Config, hot: &HotRungs, broker: &dyn Broker) -> (Vec<RungReport>, Option<String>) {
    let names = config.topology().names;
    let delays: BTreeSet<Duration> = config.ladder.rungs().iter().copied().chain(hot.siblings()).collect();
    let rungs: Vec<(String, Duration)> = delays.into_iter().map(|delay| (names.rung(delay), delay)).collect();
    let queues: Vec<String> = rungs.iter().map(|(name, _)| name.clone()).collect();
    let asked = BrokerStatus::about(queues, config, broker).await;
    let report = |(name, delay): (String, Duration)| RungReport {
        ready: asked.depth(&name).map(|depth| depth.ready),
        delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        name,
    };
    let why = match &asked {
        BrokerStatus::Embedded => Some(EMBEDDED.to_owned()),
        asked => asked.error().map(str::to_owned),
    };
    (rungs.into_iter().map(report).collect(), why)
}

/// All queues on which messages sleep, and why the broker could not be asked. Only RabbitMQ's management API knows how
/// many sleep.
pub async fn sleepers(config: &Config, broker: &dyn Broker) -> (Vec<SleepReport>, Option<String>) {
    let (known, why) = match broker.keeps_messages() {
        false => (None, Some(EMBEDDED.to_owned())),
        true => match broker.rates().await {
            Ok(rates) => (Some(rates), None),
            Err(why) => (None, Some(why)),
        },
    };
    let (lanes, chores) = (config.lanes(), config.topology().names.chores());
    let report = |name: String| {
        // A queue without statistics has just been declared, or the broker has just begun.
        let of = known.as_ref().map(|known| lanes.queues(&name).map(|lane| Some(known.get(&lane)?.asleep)).sum());
        SleepReport { name, asleep: of.flatten() }
    };
    (config.queues.keys().cloned().chain([chores]).map(report).collect(), why)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use roundelay_broker::embedded::EmbeddedBroker;
    use roundelay_model::topology::Names;

    use super::*;

    #[tokio::test]
    async fn where_it_is_not_known_how_many_sleep_that_is_said() {
        let config =
            Config::parse("broker.delays = \"native\"\n[queues.a]\n[queues.b]\nlanes = 2", "r.toml", []).unwrap();
        let broker = EmbeddedBroker::new(Names::new(&config.broker.prefix));
        let (queues, why) = sleepers(&config, &broker).await;
        let asleep: BTreeMap<&str, Option<u64>> = queues.iter().map(|of| (of.name.as_str(), of.asleep)).collect();
        assert_eq!(asleep, BTreeMap::from([("a", None), ("b", None), ("roundelay.chores", None)]));
        assert!(why.unwrap().contains("embedded"));
    }
}
