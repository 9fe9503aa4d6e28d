//! How many messages and consumers the broker's queues have, or why that is not known.

use std::collections::BTreeMap;

use roundelay_broker::{Broker, Depth};
use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_engine::monitor::stuck::Waiting;

/// The broker's answer.
#[derive(Clone, Debug)]
pub enum BrokerStatus {
    /// The broker was not asked: the chain is unknown, or the broker is embedded in the process of a worker.
    Embedded,
    /// No answer, for this reason.
    Away(String),
    /// The messages and consumers of these queues, or why they are not known.
    Depths(BTreeMap<String, Result<Depth, String>>),
}

impl BrokerStatus {
    /// Asks the configured broker, on a new connection for this question only.
    pub async fn once(config: &Config) -> Self {
        match Connections::open(config).await {
            Ok(connections) => {
                let asked = Self::ask(config, &*connections.broker).await;
                connections.broker.close().await;
                asked
            }
            Err(error) => Self::Away(error.to_string()),
        }
    }

    /// Asks about all platform queues and the engine's own.
    pub async fn ask(config: &Config, broker: &dyn Broker) -> Self {
        let names = config.topology().names;
        let own = [names.rearm(), names.chores(), names.unrouted(), names.quarantine()];
        Self::about(config.queues.keys().cloned().chain(own), config, broker).await
    }

    /// Asks about these queues. For a queue with lanes, the messages of all lanes count.
    pub async fn about(queues: impl IntoIterator<Item = String>, config: &Config, broker: &dyn Broker) -> Self {
        if !broker.keeps_messages() {
            return Self::Embedded;
        }
        let (mut depths, lanes) = (BTreeMap::new(), config.lanes());
        for queue in queues {
            let mut all = Ok(Depth { ready: 0, consumers: u64::MAX });
            for lane in lanes.queues(&queue) {
                // For consumers, the lane with the fewest counts: a lane without a consumer is a problem.
                all = match (all, broker.depth(&lane).await) {
                    (Ok(all), Ok(depth)) => {
                        Ok(Depth { ready: all.ready + depth.ready, consumers: all.consumers.min(depth.consumers) })
                    }
                    (Err(error), _) => Err(error),
                    (_, Err(error)) => Err(error.to_string()),
                };
            }
            depths.insert(queue, all);
        }
        // A broker that has gone after it was reached answers nothing about any queue.
        let nothing = !depths.is_empty() && depths.values().all(Result::is_err);
        match broker.unavailable().filter(|_| nothing) {
            Some(why) => Self::Away(why),
            None => Self::Depths(depths),
        }
    }

    /// The messages and consumers of a queue, if known.
    pub fn depth(&self, queue: &str) -> Option<Depth> {
        match self {
            Self::Depths(depths) => depths.get(queue)?.as_ref().ok().copied(),
            Self::Embedded | Self::Away(_) => None,
        }
    }

    /// What the broker has answered about the chains of a queue.
    pub fn waiting(&self, queue: &str) -> Waiting<'_> {
        match self {
            Self::Embedded => Waiting::Embedded,
            Self::Away(reason) => Waiting::Away(reason),
            Self::Depths(depths) => match depths.get(queue) {
                Some(Ok(depth)) => Waiting::Depth(*depth),
                Some(Err(reason)) => Waiting::Unknown(reason),
                None => Waiting::Unknown("its queue was not asked for"),
            },
        }
    }

    /// Why the broker cannot be asked.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Away(reason) => Some(reason),
            Self::Embedded | Self::Depths(_) => None,
        }
    }
}
