//! How full the broker's queues are, or why nobody knows.

use std::collections::BTreeMap;

use roundelay_broker::{Broker, Depth};
use roundelay_config::Config;
use roundelay_engine::Connections;
use roundelay_engine::monitor::stuck::Waiting;

/// What the broker said.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Nothing: it is in the worker's process.
    Embedded,
    /// Nothing, because of this.
    Away(String),
    /// How full these queues are, or why that is not known.
    Depths(BTreeMap<String, Result<Depth, String>>),
}

impl Asked {
    /// Asks the broker of the configuration, on a connection for this only.
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

    /// Asks for all platform queues and the engine's own.
    pub async fn ask(config: &Config, broker: &dyn Broker) -> Self {
        let names = config.topology().names;
        let own = [names.rearm(), names.chores(), names.unrouted(), names.quarantine()];
        Self::about(config.queues.keys().cloned().chain(own), config, broker).await
    }

    /// Asks for these queues. Of one with lanes the messages of all lanes count.
    pub async fn about(queues: impl IntoIterator<Item = String>, config: &Config, broker: &dyn Broker) -> Self {
        if !broker.keeps_messages() {
            return Self::Embedded;
        }
        let (mut depths, lanes) = (BTreeMap::new(), config.lanes());
        for queue in queues {
            let mut all = Ok(Depth { ready: 0, consumers: u64::MAX });
            for lane in lanes.queues(&queue) {
                // A lane that nobody consumes is what matters of the consumers.
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
        // One that was reached before, and has gone, tells nothing about any queue.
        let nothing = !depths.is_empty() && depths.values().all(Result::is_err);
        match broker.unavailable().filter(|_| nothing) {
            Some(why) => Self::Away(why),
            None => Self::Depths(depths),
        }
    }

    /// How full a queue is, if that is known.
    pub fn depth(&self, queue: &str) -> Option<Depth> {
        match self {
            Self::Depths(depths) => depths.get(queue)?.as_ref().ok().copied(),
            Self::Embedded | Self::Away(_) => None,
        }
    }

    /// What is known of the broker about the chains of a queue.
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

    /// Why it cannot be asked.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Away(reason) => Some(reason),
            Self::Embedded | Self::Depths(_) => None,
        }
    }
}
